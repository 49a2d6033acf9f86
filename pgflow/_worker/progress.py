"""Progress of running bodies: heartbeats and emitted values, for the next attempt and for readers.

Progress is not an outcome. A report that does not arrive is lost, and the body continues.
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
from pgflow._worker.connection import WorkerConnection
from pgflow._worker.drafts import Drafts
from pgflow._worker.news import News
from pgflow._worker.parts import Part, Tasks
from pgflow._worker.runs import Runs
from pgflow.logs import redacted

log = logging.getLogger("pgflow")

LAST_BEATS_SECONDS = 1.0
"""Longest time for which the end of a worker waits for heartbeats under way."""


class Progress(Part):
    """Sends the reports of bodies. It tracks the heartbeats under way to the database.

    Args:
        control: Runs queries until there is an answer.
        runs: The runs of this worker. One that another worker holds is discarded.
        news: Announces runs whose bodies have emitted values.
    """

    def __init__(self, control: WorkerConnection, runs: Runs, tasks: Tasks, news: News) -> None:
        self._control = control
        self._news = news
        self._runs = runs
        self._tasks = tasks
        self._beats: set[asyncio.Task[None]] = set()
        self._making_drafts = threading.Lock()

    async def last_details(self, execution: Execution, call: StepCall) -> Any:
        """Return the last details that the previous attempt reported."""
        if call.details is not None:
            details = json.loads(call.details)
        else:
            details = await self._control.insist(calls.step_details(execution.run_id, call.number))
        return open_value(execution.claim.envelopes, details, f"the progress of step {call.name}")

    def tell(self, scope: StepScope) -> None:
        """Send what the body has emitted, before the step completes."""
        with self._making_drafts:  # a body may emit in several threads
            if scope.drafts is None:
                scope.drafts = Drafts(
                    self._control, self._runs, self._tasks, self._news, scope.execution
                )
        scope.drafts.tell(scope)

    def beat(self, scope: StepScope, details: str) -> None:
        """Record a heartbeat of the body, with its details as JSON text."""
        scope.execution.beat = True
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
