"""Progress of running bodies: heartbeats and emitted values, for the next attempt and for readers.

Progress is not an outcome. A report that does not arrive is lost, and the body continues. Emitted
values count only once the step has completed, and are recorded then. Until then they are drafts,
kept where they may be lost, and arrive slightly late: the values of a few hundredths of a second
share one statement.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from typing import Any

from pgflow._db.calls import transaction as calls
from pgflow._engine.calls import StepCall
from pgflow._engine.execution import Execution
from pgflow._flow.scope import StepScope, log_fields
from pgflow._model.envelopes import open_value
from pgflow._worker.context import WorkerContext
from pgflow._worker.notifications import Notifications
from pgflow._worker.parts import Part
from pgflow._worker.runs import Runs
from pgflow.logs import redacted

log = logging.getLogger("pgflow")

FIRST_AFTER_SECONDS = 0.1
"""Delay of the first values of a body. If it has ended by then, they leave with its result."""
SEND_AFTER_SECONDS = 0.03
MAX_DRAFTS = 500
"""Most values in one statement."""


class Drafts:
    """Sends the emitted values of one body, which may emit in any thread."""

    def __init__(
        self,
        context: WorkerContext,
        runs: Runs,
        notifications: Notifications,
        execution: Execution,
    ) -> None:
        self._control = context.control
        self._tasks = context.tasks
        self._runs = runs
        self._notifications = notifications
        self._execution = execution
        self._sent = 0
        self._try_id = ""
        self._after_seq = 0
        self._sending: asyncio.Task[None] | None = None

    def send_emitted(self, scope: StepScope) -> None:
        """Schedule sending what the body has emitted."""
        self._execution.flushing.note_beat()  # its rows must be removed at the end of the run
        self._tasks.loop.call_soon_threadsafe(self._begin, scope)

    def _begin(self, scope: StepScope) -> None:
        if self._sending is None or self._sending.done():
            self._sending = self._tasks.spawn(self._send(scope))

    async def _send(self, scope: StepScope) -> None:
        """Send the emitted values, including new ones, while the step is running."""
        execution = self._execution
        while True:
            await asyncio.sleep(SEND_AFTER_SECONDS if self._sent else FIRST_AFTER_SECONDS)
            if self._try_id != scope.try_id:
                self._try_id, self._sent, self._after_seq = scope.try_id, 0, execution.buffer.seq
            values = scope.emitted[self._sent : self._sent + MAX_DRAFTS]
            if (
                not values
                or execution.over
                or scope.call.state != "running"
                or scope.call.number not in self._running()
            ):
                return
            # A reader takes a unit of the call behind those that are durable now for the end of the
            # try, so the failure of the last try comes first. A refused flush takes numbers back.
            self._after_seq = min(self._after_seq, execution.buffer.seq)
            if execution.flushing.durable_seq < self._after_seq:
                continue
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
            self._notifications.emitted([execution.claim.chain_id])

    def _running(self) -> Any:
        return [call.number for call in self._execution.agenda.running.values()]


LAST_BEATS_SECONDS = 1.0
"""Longest time for which the end of a worker waits for heartbeats under way."""


class Progress(Part):
    """Sends the reports of bodies. It tracks the heartbeats under way to the database.

    Args:
        runs: The runs of this worker. One that another worker holds is discarded.
        notifications: Announces runs whose bodies have emitted values.
    """

    def __init__(self, context: WorkerContext, runs: Runs, notifications: Notifications) -> None:
        self._context = context
        self._control = context.control
        self._tasks = context.tasks
        self._runs = runs
        self._notifications = notifications
        self._beats: set[asyncio.Task[None]] = set()
        self._making_drafts = threading.Lock()

    async def last_details(self, execution: Execution, call: StepCall) -> Any:
        """Return the last details that the previous attempt reported."""
        if call.details is not None:
            details = json.loads(call.details)
        else:
            details = await self._control.insist(calls.step_details(execution.run_id, call.number))
        return open_value(execution.claim.envelopes, details, f"the progress of step {call.name}")

    def send_emitted(self, scope: StepScope) -> None:
        """Send what the body has emitted, before the step completes."""
        with self._making_drafts:  # a body may emit in several threads
            if scope.drafts is None:
                scope.drafts = Drafts(
                    self._context, self._runs, self._notifications, scope.execution
                )
        scope.drafts.send_emitted(scope)

    def beat(self, scope: StepScope, details: str) -> None:
        """Record a heartbeat of the body, with its details as JSON text."""
        scope.execution.flushing.note_beat()
        scope.call.details = details
        self._tasks.loop.call_soon_threadsafe(
            self._begin_beat, scope.execution, scope.call, details
        )

    def _begin_beat(self, execution: Execution, call: StepCall, details: str) -> None:
        beat = self._tasks.spawn(self._send_beat(execution, call, details))
        self._beats.add(beat)
        beat.add_done_callback(self._beats.discard)

    async def _send_beat(self, execution: Execution, call: StepCall, details: str) -> None:
        query = calls.beat_step(
            execution.run_id, execution.claim.token, call.number, call.failed_attempts + 1, details
        )
        try:
            if not await self._control.insist(query):
                self._runs.discard(execution, "another worker holds it")
        except Exception as error:  # noqa: BLE001 - a heartbeat that does not arrive is not an outcome
            log.warning(
                "a heartbeat of step %s was not recorded: %s",
                call.name,
                redacted(error),
                extra=log_fields(execution.claim, call),
            )

    async def stop(self) -> None:
        """Wait briefly for the last heartbeats: the next attempt of the body starts from them."""
        await asyncio.sleep(0)  # some may have been posted in this turn of the loop
        if self._beats:
            await asyncio.wait(self._beats, timeout=LAST_BEATS_SECONDS)
