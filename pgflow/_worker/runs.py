"""The runs that a worker holds, from their start until they leave.

An error of the engine affects one run only: it is handed back, and the worker continues. A run on
which the engine keeps failing is held.

A suspect is a run whose worker died without a new unit since the claim, twice. A worker takes one
group of them at a time, whose size the database bounds (`sql/ops/worker.sql`), so a run that kills
its workers is soon alone in its group. The worker takes the next group once it has cleared each run
of this one: a body has returned, or the run has survived here for long enough. That time doubles
with each death, to catch a run that kills late.
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
from pgflow._worker.context import WorkerContext
from pgflow._worker.parts import is_the_end, quietly, wait_for
from pgflow.logs import redacted

log = logging.getLogger("pgflow")

# Bounds the time at about a week with the default time-out.
MOST_DOUBLINGS = 16


class Suspects:
    """Tracks suspects. A claim may bring more of them once there are none.

    Attributes:
        alarms: By run, the timer that clears a surviving one.

    Args:
        context: Claims are requested when there is room for the next group.
    """

    def __init__(self, context: WorkerContext) -> None:
        self._want_claims = context.wanted.claims.set
        self._dead_after_seconds = context.options.rhythm.dead_after
        self.alarms: dict[int, asyncio.TimerHandle] = {}

    def claimed(self, claim: Claim) -> None:
        """Track a claimed suspect."""
        run_id = claim.run_id
        suspected_for = self._dead_after_seconds * 2 ** min(claim.suspect - 2, MOST_DOUBLINGS)
        alarm = asyncio.get_running_loop().call_later(suspected_for, self._clear, run_id)
        self.alarms[run_id] = alarm

    def progressed(self, execution: Execution) -> None:
        """Clear a suspect that has made progress. A licence is not enough, because the licensed
        body may be what kills.
        """
        self._clear(execution.run_id)

    def _clear(self, run_id: int) -> None:
        alarm = self.alarms.pop(run_id, None)
        if alarm is not None:
            alarm.cancel()
            if not self.alarms:
                self._want_claims()


Concerns = Callable[[Execution], Any]
"""Tells whether a run concerns a callback."""

MAX_RESTING = 256
"""Parked runs that a worker keeps in memory. Each holds some kilobytes; any more are unwound, the
oldest first, and replayed when they are claimed.
"""

MAX_ENGINE_FAILURES = 3
"""Failures of the engine in this worker after which a run is held."""
MAX_REMEMBERED = 1_000


class Runs:
    """The runs that this worker holds. Other parts register callbacks for runs that leave.

    Attributes:
        executions: By run. A run is in here if, and only if, this worker works on it.
        waiting: Those of them that only wait for news of their children. They take no place.
        resting: Runs that are parked, and wait in memory to be claimed again, the oldest first.
        suspects: Those of them that may kill their worker.
        engine_failures: Failures of the engine, by run: their number and the last error.
        changed: Set when a run has left or something of it is durable; cleared by the waiter.
        departures: Number of times that a run has left.
    """

    def __init__(self, context: WorkerContext) -> None:
        self.executions: dict[int, Execution] = {}
        self.waiting: set[Execution] = set()
        self.resting: dict[int, Execution] = {}
        self.suspects = Suspects(context)
        self.changed = asyncio.Event()
        self.departures = 0
        self._control = context.control
        self._tasks = context.tasks
        self._meter = context.options.meter
        # Without a codec, the text of errors may be recorded.
        self._records_errors = context.definitions.envelopes is None
        self._releases: set[asyncio.Task[Any]] = set()
        self.engine_failures: dict[int, tuple[int, str]] = {}
        self._when_leaving: list[tuple[Concerns, Callable[[Execution], None]]] = []
        self._when_left: list[tuple[Concerns, Callable[[Execution], None]]] = []
        self._when_room: list[Callable[[], None]] = []
        self._when_released: list[Callable[[list[int]], None]] = []

    def when_leaving(self, concerns: Concerns, callback: Callable[[Execution], None]) -> None:
        """Call this with each run that leaves and that it concerns, before it is taken apart.

        Args:
            concerns: Returns a true value for such runs. Make it no Python function: it is called
                for every run.
            callback: The function to call.
        """
        self._when_leaving.append((concerns, callback))

    def when_left(self, concerns: Concerns, callback: Callable[[Execution], None]) -> None:
        """Call this with each run that has left and that it concerns; see :meth:`when_leaving`."""
        self._when_left.append((concerns, callback))

    def when_room(self, callback: Callable[[], None]) -> None:
        """Call this each time that runs have given up their places: they have left, or wait for
        their children.
        """
        self._when_room.append(callback)

    def when_released(self, callback: Callable[[list[int]], None]) -> None:
        """Call this with the lanes of runs that were handed back."""
        self._when_released.append(callback)

    def add(self, execution: Execution) -> None:
        """Hold a run."""
        self.executions[execution.run_id] = execution

    def has(self, execution: Execution) -> bool:
        """Return True if this very execution is here, rather than a later one of its run or
        none.
        """
        return self.executions.get(execution.run_id) is execution

    # ------------------------------------------------------------ moves of a run

    def waits(self, execution: Execution) -> None:
        """Give the place of a run to others while it waits for its children."""
        self.waiting.add(execution)
        for callback in self._when_room:
            callback()

    def goes_on(self, execution: Execution) -> None:
        """Have a run take a place again."""
        self.waiting.discard(execution)

    def guard(self, execution: Execution, move: Callable[..., None], *args: Any) -> None:
        """Call a method of an execution. An error hands back this run only; the worker
        continues.
        """
        try:
            move(*args)
        except BaseException as error:  # noqa: BLE001 - raised again if it is the end
            self.move_failed(execution, error)

    def move_failed(self, execution: Execution, error: BaseException) -> None:
        """Hand a run back on which the engine failed; raise the error if it ends the process."""
        if is_the_end(error):
            raise error
        log.error(
            "run %s: the engine failed; the run is handed back",
            execution.claim.key,
            exc_info=error,
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

    def deliver(self, chains: Iterable[int], offers: Mapping[int, Offer]) -> list[int]:
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
        while len(self.engine_failures) >= MAX_REMEMBERED:
            del self.engine_failures[next(iter(self.engine_failures))]
        tries = self.engine_failures.pop(claim.run_id, (0, ""))[0] + 1
        text = f": {redacted(error)}" if self._records_errors else ""
        self.engine_failures[claim.run_id] = tries, f"{type(error).__name__}{text}"

    def repeated_failures(self, claim: Claim) -> tuple[int, str] | None:
        """Return the number of failures and the last error if the engine has failed on this run too
        often, and reset the count. Else return None.
        """
        tries, why = self.engine_failures.get(claim.run_id, (0, ""))
        if tries < MAX_ENGINE_FAILURES:
            return None
        del self.engine_failures[claim.run_id]
        return tries, why

    # ------------------------------------------------------------ leaving

    def remove(self, execution: Execution) -> None:
        """Take apart a run that leaves this worker."""
        self.take_apart(execution)
        self.made_room()

    def take_apart(self, execution: Execution) -> None:
        """Take apart a run that leaves this worker. Call :meth:`made_room` after the last of
        several.
        """
        self.departures += 1
        self.executions.pop(execution.run_id, None)
        self.waiting.discard(execution)
        for concerns, callback in self._when_leaving:
            if concerns(execution):
                callback(execution)
        # Closing cuts the references that `when_leaving` callbacks may still read.
        execution.close()
        for concerns, callback in self._when_left:
            if concerns(execution):
                callback(execution)
        if self.suspects.alarms:
            self.suspects.progressed(execution)  # a suspect makes room by leaving, too

    def rest(self, execution: Execution) -> None:
        """Keep a parked run in memory: it needs no replay if this worker claims it again."""
        self.departures += 1
        del self.executions[execution.run_id]
        self.waiting.discard(execution)
        self.resting[execution.run_id] = execution
        if len(self.resting) > MAX_RESTING:
            self.resting.pop(next(iter(self.resting))).close()

    def forget_resting(self) -> None:
        """Unwind the runs that wait in memory: each is replayed when it is claimed again."""
        while self.resting:
            self.resting.popitem()[1].close()

    def made_room(self) -> None:
        """Tell those who wait for a place, and for runs to change."""
        for callback in self._when_room:
            callback()
        self.changed.set()

    def remove_all(self) -> None:
        """Take apart all runs without handing them back: other workers have them."""
        self.forget_resting()
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
            for callback in self._when_released:
                callback([claim.lane_id for claim in claims])

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
            await wait_for(self.changed, min(remaining, 0.1))

    async def hand_back_all(self) -> None:
        """Hand back all runs, and wait for the hand-backs under way."""
        await self._hand_back(list(self.executions.values()))
        if self._releases:
            await asyncio.wait(self._releases)
