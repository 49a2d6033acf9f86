"""Drafts: values that a step's body emits while it runs, streamed to readers.

Emitted values count only once the step has completed, and are recorded then. Until then they are
kept where they may be lost, and arrive slightly late: the values of a few hundredths of a second
share one statement.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from pgflow._db.calls import transaction as calls
from pgflow._engine.execution import Execution
from pgflow._flow.scope import StepScope, log_fields
from pgflow._worker.connection import WorkerConnection
from pgflow._worker.news import News
from pgflow._worker.parts import Tasks
from pgflow._worker.runs import Runs
from pgflow.logs import redacted

log = logging.getLogger("pgflow")

SEND_AFTER_SECONDS = 0.03
MAX_DRAFTS = 500
"""Most values in one statement."""


class Drafts:
    """Sends the emitted values of one body, which may emit in any thread."""

    def __init__(
        self,
        control: WorkerConnection,
        runs: Runs,
        tasks: Tasks,
        news: News,
        execution: Execution,
    ) -> None:
        self._control = control
        self._news = news
        self._runs = runs
        self._tasks = tasks
        self._execution = execution
        self._sent = 0
        self._try_id = ""
        self._sending: asyncio.Task[None] | None = None

    def tell(self, scope: StepScope) -> None:
        """Schedule sending what the body has emitted."""
        self._execution.beat = True  # its rows must be removed at the end of the run
        self._tasks.loop.call_soon_threadsafe(self._begin, scope)

    def _begin(self, scope: StepScope) -> None:
        if self._sending is None or self._sending.done():
            self._sending = self._tasks.spawn(self._send(scope))

    async def _send(self, scope: StepScope) -> None:
        """Send the emitted values, including new ones, while the step is running."""
        execution = self._execution
        while True:
            await asyncio.sleep(SEND_AFTER_SECONDS)
            if self._try_id != scope.try_id:
                self._try_id, self._sent = scope.try_id, 0
            values = scope.emitted[self._sent : self._sent + MAX_DRAFTS]
            if (
                not values
                or execution.over
                or scope.call.state != "running"
                or scope.call.number not in self._running()
            ):
                return
            query = calls.emit_drafts(
                execution.run_id,
                execution.claim.token,
                scope.call.number,
                self._try_id,
                execution.flushing.durable_seq,
                self._sent,
                values,
            )
            try:
                if not await self._control.insist(query):
                    self._runs.discard(execution, "another worker holds it")
                    return
            except Exception as error:  # noqa: BLE001 - readers get it when the step has completed
                log.warning(
                    "cannot stream the values of step %s before it completes: %s",
                    scope.call.name,
                    redacted(error),
                    extra=log_fields(execution.claim, scope.call),
                )
                return
            self._sent += len(values)
            self._news.emitted([execution.claim.chain_id])

    def _running(self) -> Any:
        return [call.number for call in self._execution.agenda.running.values()]
