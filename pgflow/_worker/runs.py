"""The runs that a worker holds, from their start until they leave.

An error of the engine affects one run only: it is handed back, and the worker continues. A run on
which the engine keeps failing is held.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pgflow._db.calls import claim as claim_calls
from pgflow._engine.execution import Execution
from pgflow._flow.scope import log_fields
from pgflow._model.claims import Claim, Offer
from pgflow._worker.connection import WorkerConnection
from pgflow._worker.notifier import Notifier
from pgflow._worker.parts import Tasks
from pgflow._worker.supervision import is_the_end, quietly
from pgflow.logs import redacted
from pgflow.meter import Meter

log = logging.getLogger("pgflow")

MAX_ENGINE_FAILURES = 3
"""Failures of the engine in this worker after which a run is held."""
MAX_REMEMBERED = 1_000


class Runs:
    """The runs that this worker holds. Other parts register callbacks for runs that leave.

    Args:
        control: Hands runs back.
        notifier: Announces the lanes of those.
        tasks: Run the hand-backs in the background.
        meter: Counts runs that have left.
        tells_errors: True if the text of errors may be recorded.

    Attributes:
        executions: By run. A run is in here if, and only if, this worker works on it.
        changed: Set when a run has left or something of it is durable; cleared by the waiter.
        departures: Number of times that a run has left.
    """

    def __init__(
        self,
        control: WorkerConnection,
        notifier: Notifier,
        tasks: Tasks,
        meter: Meter | None,
        *,
        tells_errors: bool,
    ) -> None:
        self.executions: dict[int, Execution] = {}
        self.changed = asyncio.Event()
        self.departures = 0
        self._control = control
        self._notifier = notifier
        self._tasks = tasks
        self._meter = meter
        self._tells_errors = tells_errors
        self._releases: set[asyncio.Task[Any]] = set()
        self._engine_failures: dict[int, tuple[int, str]] = {}
        self._leaving: list[Callable[[Execution], None]] = []
        self._left: list[Callable[[Execution], None]] = []

    def when_leaving(self, tell: Callable[[Execution], None]) -> None:
        """Call this with each run that leaves, before it is taken apart."""
        self._leaving.append(tell)

    def when_left(self, tell: Callable[[Execution], None]) -> None:
        """Call this with each run that has left."""
        self._left.append(tell)

    def add(self, execution: Execution) -> None:
        """Hold a run."""
        self.executions[execution.run_id] = execution

    def has(self, execution: Execution) -> bool:
        """Return True if this very execution is here, rather than a later one of its run or
        none.
        """
        return self.executions.get(execution.run_id) is execution

    # ------------------------------------------------------------ moves of a run

    def guard(self, execution: Execution, move: Callable[..., None], *args: Any) -> None:
        """Call a method of an execution. An error hands back this run only; the worker
        continues.
        """
        try:
            move(*args)
        except BaseException as error:
            if is_the_end(error):
                raise
            log.exception(
                "run %s: the engine failed; the run is handed back",
                execution.claim.key,
                extra=log_fields(execution.claim),
            )
            self.engine_failed(execution.claim, error)
            self.give_back(execution)

    def poke(self, run_ids: Iterable[int]) -> None:
        """Make those of these runs that are here ask the database for their mail."""
        for run_id in run_ids:
            execution = self.executions.get(run_id)
            if execution is not None and not execution.over:
                self.guard(execution, execution.poke)

    def hear(self, chains: Iterable[int], offers: Mapping[int, Offer]) -> list[int]:
        """Deliver committed mail to those of these chains whose runs are here: each takes its
        offer, or asks the database.

        Returns:
            The chains to wake in the database: their runs are not here, or may be leaving by a
                question asked before the mail arrived.
        """
        elsewhere = []
        for chain_id in chains:
            execution = self.executions.get(chain_id)  # of its first generation
            if execution is None or execution.over or execution.flushing.locked:
                elsewhere.append(chain_id)
            elif (offer := offers.get(chain_id)) is not None:
                self.guard(execution, execution.offer, offer)
            else:
                self.guard(execution, execution.poke)
        return elsewhere

    def poke_waiting(self) -> None:
        """Make runs look that wait for something only the database knows.

        A separate function, because a loop's own variables would keep the last execution alive
        while it sleeps.
        """
        for execution in list(self.executions.values()):
            if execution.agenda.waits_for_database and not execution.over:
                self.guard(execution, execution.poke)

    # ------------------------------------------------------------ failures of the engine

    def engine_failed(self, claim: Claim, error: BaseException) -> None:
        """Count a failure of the engine on a run, so that repeated failures hold it."""
        while len(self._engine_failures) >= MAX_REMEMBERED:
            del self._engine_failures[next(iter(self._engine_failures))]
        tries = self._engine_failures.pop(claim.run_id, (0, ""))[0] + 1
        told = (
            f"{type(error).__name__}: {redacted(error)}"
            if self._tells_errors
            else type(error).__name__
        )
        self._engine_failures[claim.run_id] = tries, told

    def hopeless(self, claim: Claim) -> tuple[int, str] | None:
        """Return the number of failures and the last error if the engine has failed on this run too
        often, and reset the count. Else return None.
        """
        tries, why = self._engine_failures.get(claim.run_id, (0, ""))
        if tries < MAX_ENGINE_FAILURES:
            return None
        del self._engine_failures[claim.run_id]
        return tries, why

    # ------------------------------------------------------------ leaving

    def remove(self, execution: Execution) -> None:
        """Take apart a run that leaves this worker."""
        self.departures += 1
        self.executions.pop(execution.run_id, None)
        for tell in self._leaving:
            tell(execution)
        # Closing cuts the references that `when_leaving` callbacks may still read.
        execution.close()
        for tell in self._left:
            tell(execution)
        self.changed.set()

    def remove_all(self) -> None:
        """Take apart all runs without handing them back: other workers have them."""
        for execution in list(self.executions.values()):
            self.remove(execution)

    def discard(self, execution: Execution, why: str) -> None:
        """Take apart an execution whose run another worker holds."""
        if self.has(execution):
            log.warning(
                "run %s continues elsewhere: %s",
                execution.claim.key,
                why,
                extra=log_fields(execution.claim),
            )
            self.count_left(execution, "elsewhere")
            self.remove(execution)

    def count_left(self, execution: Execution, place: str) -> None:
        """Count a run that leaves without an outcome of its own."""
        if self._meter is not None:
            self._meter.run_left(execution.claim.workflow, place)

    def give_back(self, execution: Execution) -> None:
        """Hand back a run that must be replayed, here or elsewhere."""
        self.remove(execution)
        self.release_soon(execution.claim)

    def release_soon(self, claim: Claim) -> None:
        """Hand a run back in the background. A stopping worker waits for it."""
        task = self._tasks.spawn(self._release([claim]))
        self._releases.add(task)
        task.add_done_callback(self._releases.discard)

    async def _release(self, claims: list[Claim]) -> None:
        if claims:
            await quietly(self._control.ask(claim_calls.release_runs(claims)))
            self._notifier.tell(lanes=[c.lane_id for c in claims])

    async def _hand_back(self, executions: list[Execution]) -> None:
        for execution in executions:
            self.remove(execution)
        await self._release([e.claim for e in executions])

    # ------------------------------------------------------------ the end of the worker

    async def drain(self, deadline: float, may_come: Callable[[], bool]) -> None:
        """Let running work end, and hand back each run that has nothing left to do here.

        Args:
            deadline: Time of the loop at which waiting ends.
            may_come: Returns True while a claim may still bring runs.
        """
        for execution in list(self.executions.values()):
            self.guard(execution, execution.drain)
        while self.executions or may_come():
            drained = [e for e in self.executions.values() if e.is_drained and not e.over]
            if drained:
                await self._hand_back(drained)
                continue
            remaining = deadline - asyncio.get_running_loop().time()
            if remaining <= 0:
                return
            self.changed.clear()
            try:
                async with asyncio.timeout(min(remaining, 0.1)):
                    await self.changed.wait()
            except TimeoutError:
                pass

    async def hand_back_all(self) -> None:
        """Hand back all runs, and wait for the hand-backs under way."""
        await self._hand_back(list(self.executions.values()))
        if self._releases:
            await asyncio.wait(self._releases)
