"""The pager: calls the app's hook when a person is needed, whatever detected it.

A run gets stuck in a worker, by a reaper, or by a verb in SQL; an effect may need a person while
its run continues. So the worker searches the database for problems without a page, at once when one
of its runs is held, and periodically.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, cast

import psycopg

from pgflow._db.calls import page as calls
from pgflow._model.durations import Duration, duration
from pgflow._model.pages import Page, PageKind
from pgflow._model.reasons import debt_in_words, in_words, reason_of
from pgflow._worker.connection import WorkerConnection
from pgflow._worker.parts import Loop, Tasks
from pgflow._worker.supervision import quietly
from pgflow._worker.threads import AppCalls, is_its_own
from pgflow.errors import DefinitionError
from pgflow.logs import redacted

log = logging.getLogger("pgflow")

LOOK_EVERY_SECONDS = 5.0
PAGES_AT_ONCE = 20
THREADS = 8
# A page is leased for the hook's time-out and this margin, so that no other worker sends it during
# the call.
LEASE_MARGIN_SECONDS = 30.0


@dataclass(frozen=True)
class PagerHook:
    """The app's function to call when a person is needed.

    Attributes:
        fn: Called with a Page, ``async def`` or ``def``.
        timeout_seconds: Longest time for one call.
        again_seconds: Seconds until it is called again while the problem is still open; None for
            never.
    """

    fn: Callable[[Page], Any]
    timeout_seconds: float
    again_seconds: float | None


def make_hook(fn: Any, again_after: Duration | None, timeout: Duration) -> PagerHook:
    """Return a hook as declared.

    Raises:
        DefinitionError: It can never be called.
    """
    if not callable(fn):
        raise DefinitionError(f"the pager must be a function that takes a Page, not {fn!r}")
    patience = duration(timeout, "timeout of the pager", least_seconds=-math.inf)
    pause = duration(again_after, "again_after of the pager", least_seconds=-math.inf)
    if patience <= timedelta(0) or (pause is not None and pause <= timedelta(0)):
        raise DefinitionError("app.pager: timeout and again_after must be greater than zero")
    return PagerHook(fn, patience.total_seconds(), None if pause is None else pause.total_seconds())


class Pager(Loop):
    """The pager of one worker. It owns the threads for its hook."""

    name = "the pager"

    def __init__(self, tasks: Tasks, control: WorkerConnection, hook: PagerHook) -> None:
        super().__init__(tasks)
        self._hook = hook
        self._control = control
        self._calls = AppCalls(THREADS, "pgflow-pager")
        self._wanted = asyncio.Event()

    def look_now(self) -> None:
        """Look for problems at once."""
        self._wanted.set()

    async def loop(self) -> None:
        """Look for problems when asked, and every few seconds."""
        while True:
            try:
                await self.look()
            except (psycopg.Error, OSError, TimeoutError) as error:
                log.warning("cannot look for due pages: %s", redacted(error))
            try:
                async with asyncio.timeout(LOOK_EVERY_SECONDS * random.uniform(0.8, 1.2)):  # noqa: S311 - spreads the load
                    await self._wanted.wait()
            except TimeoutError:
                pass
            self._wanted.clear()

    async def look(self) -> None:
        """Send every page that is due."""
        while True:
            claimed = await self._control.ask(
                calls.claim_pages(PAGES_AT_ONCE, self._hook.timeout_seconds + LEASE_MARGIN_SECONDS)
            )
            await asyncio.gather(*map(self._send, claimed))
            if len(claimed) < PAGES_AT_ONCE:
                return

    async def _send(self, claimed: calls.ClaimedPage) -> None:
        page, task = page_of(claimed), asyncio.current_task()
        try:
            async with asyncio.timeout(self._hook.timeout_seconds):
                await self._calls.call(self._hook.fn, page, page.id)
        except BaseException as error:  # on any error, the page was not delivered
            if not is_its_own(error, task):
                raise
            log.warning(
                "the pager failed for %s, run %s: %s; retrying",
                page.id,
                page.run,
                redacted(error),
            )
            await self._control.ask(calls.page_failed(claimed, type(error).__name__))
        else:
            await self._control.ask(calls.page_sent(claimed, self._hook.again_seconds))

    async def look_once_more(self, within_seconds: float) -> None:
        """Send due pages at the end of the worker. One that drains its queues and leaves would not
        look again after its last run.
        """
        await quietly(asyncio.wait_for(self.look(), within_seconds))

    async def stop(self) -> None:
        """Stop calling the hook, without waiting for a call that hangs in its thread."""
        self._calls.close()


def page_of(claimed: calls.ClaimedPage) -> Page:
    """Return the page for the hook."""
    detail = claimed.detail or {}
    words = debt_in_words(detail) if claimed.kind == "obligation" else in_words(detail)
    return Page(
        id=claimed.page_id,
        kind=cast("PageKind", claimed.kind),
        run=claimed.key,
        workflow=claimed.workflow,
        name=claimed.name,
        why=claimed.why or words,
        since=claimed.opened_at,
        attempt=claimed.tries,
        effect=claimed.effect,
        tenant=claimed.tenant,
        generation=claimed.generation,
        reason=claimed.reason or reason_of(detail),
    )
