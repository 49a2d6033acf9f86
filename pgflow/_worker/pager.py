"""The pager of a worker: calls the app's function when a person is needed."""

from __future__ import annotations

import asyncio
import logging
import random
from typing import cast

from pgflow._db.calls import page as page_calls
from pgflow._model.pages import Page, PageKind
from pgflow._model.reasons import debt_in_words, in_words, reason_of
from pgflow._worker.context import WorkerContext
from pgflow._worker.hooks import PagerHook
from pgflow._worker.parts import is_its_own, quietly
from pgflow._worker.rounds import Rounds
from pgflow._worker.threads import AppCalls
from pgflow.logs import redacted

log = logging.getLogger("pgflow")

PAGES_EVERY_SECONDS = 5.0
PAGES_AT_ONCE = 20
PAGER_THREADS = 8
# A page is leased for the hook's time-out and this margin, so that no other worker sends it during
# the call.
LEASE_MARGIN_SECONDS = 30.0


class Pager(Rounds):
    """The pager of one worker. It owns the threads for its hook.

    Args:
        wanted: Set when there may be a problem without a page.
    """

    name = "the pager"
    work = "look for due pages"

    def __init__(self, context: WorkerContext, hook: PagerHook) -> None:
        super().__init__(context, retry_seconds=PAGES_EVERY_SECONDS, wanted=context.wanted.pages)
        self._hook = hook
        self._calls = AppCalls(PAGER_THREADS, "pgflow-pager")

    async def round(self) -> float:
        """Look for problems, when asked and every few seconds."""
        await self.look()
        return PAGES_EVERY_SECONDS * random.uniform(0.8, 1.2)  # noqa: S311 - spreads the load

    async def look(self) -> None:
        """Send every page that is due."""
        while True:
            claimed = await self._control.ask(
                page_calls.claim_pages(
                    PAGES_AT_ONCE, self._hook.timeout_seconds + LEASE_MARGIN_SECONDS
                )
            )
            await asyncio.gather(*map(self._send, claimed))
            if len(claimed) < PAGES_AT_ONCE:
                return

    async def _send(self, claimed: page_calls.ClaimedPage) -> None:
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
            await self._control.ask(page_calls.page_failed(claimed, type(error).__name__))
        else:
            await self._control.ask(page_calls.page_sent(claimed, self._hook.again_seconds))

    async def look_once_more(self, within_seconds: float) -> None:
        """Send due pages at the end of the worker. One that drains its queues and leaves would not
        look again after its last run.
        """
        await quietly(asyncio.wait_for(self.look(), within_seconds))

    async def stop(self) -> None:
        """Stop calling the hook, without waiting for a call that hangs in its thread."""
        self._calls.close()


def page_of(claimed: page_calls.ClaimedPage) -> Page:
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
