"""Claims as many runs as the worker has room for, in statements of their own or together with a
commit that ends runs.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence

import psycopg

from pgflow._db.calls import claim as claim_calls
from pgflow._db.calls.claim import ClaimRequest
from pgflow._engine.execution import Execution
from pgflow._engine.flush import Flush
from pgflow._flow.scope import log_fields
from pgflow._model.claims import Claim
from pgflow._worker.beginnings import Beginnings
from pgflow._worker.claim_cursor import ClaimCursor
from pgflow._worker.connection import WorkerConnection
from pgflow._worker.lanes import Lanes
from pgflow._worker.life import Life
from pgflow._worker.lines import Lines
from pgflow._worker.options import WorkerOptions
from pgflow._worker.parts import Loop, Tasks
from pgflow._worker.runs import Runs
from pgflow._worker.suspects import Suspects
from pgflow.errors import LeaseLost, PgflowError
from pgflow.logs import redacted

log = logging.getLogger("pgflow")

# Bounds the answer of one claim.
MAX_CLAIM = 128


class Claims(Loop):
    """Claims runs. Requested runs count like running ones, so a claim never asks for more than
    there is room for.

    Args:
        wanted: Set when there may be work, or room for some.
        beginnings: Starts claimed runs.
        lines: Notified when a claim found less than it asked for; knows whether a limit may be the
            reason.
    """

    name = "the loop of claims"

    def __init__(
        self,
        tasks: Tasks,
        control: WorkerConnection,
        life: Life,
        wanted: asyncio.Event,
        runs: Runs,
        lanes: Lanes,
        suspects: Suspects,
        beginnings: Beginnings,
        lines: Lines,
        options: WorkerOptions,
    ) -> None:
        super().__init__(tasks)
        self._control = control
        self._life = life
        self._wanted = wanted
        self._runs = runs
        self._lanes = lanes
        self._suspects = suspects
        self._beginnings = beginnings
        self._lines = lines
        self._concurrency = options.concurrency
        self._tally = options.tally
        self._meter = options.meter
        self._cursor = ClaimCursor()
        self._asked_for = 0
        self._replaced = 0  # runs whose end is on its way, together with claims for their places
        self._has_backlog = False
        self._is_outgrown = False
        runs.when_left(self._run_left)

    @property
    def is_waiting(self) -> bool:
        """True while claims are under way, or pages of claimed runs' journals."""
        return self._asked_for > 0

    @property
    def _may_find_more(self) -> bool:
        """True if the end of a run may let another start: the last claim was filled, or a limit may
        hold runs back.
        """
        return self._has_backlog or self._lines.is_limited

    def outgrown(self, *, is_outgrown: bool) -> None:
        """Stop claiming because the schema was upgraded beyond this code, or resume because it was
        put back.
        """
        self._is_outgrown = is_outgrown

    async def loop(self) -> None:
        """Claim whenever there may be work, for as long as there is work and room."""
        while True:
            await self._wanted.wait()
            # Before the claim: work announced during it is claimed in the next round.
            self._wanted.clear()
            while not self._life.is_stopping and (count := self.free()) > 0:
                try:
                    if await self.claim(count) < count:
                        break
                except LeaseLost:
                    break
                except (psycopg.Error, OSError, TimeoutError) as error:
                    log.warning("cannot claim: %s", redacted(error))
                    break

    def free(self) -> int:
        """Return the number of runs to claim next."""
        if self._is_outgrown:
            return 0
        if self._life.failed.is_set():
            return 0
        free = min(
            MAX_CLAIM,
            self._concurrency - len(self._runs.executions) + self._replaced - self._asked_for,
        )
        tally = self._tally
        return (
            free
            if tally is None or tally.most is None
            else min(free, tally.most - len(tally.chains) - self._asked_for)
        )

    async def claim(self, count: int) -> int:
        """Claim up to `count` runs and return how many were found. Fewer means that there are no
        more.
        """
        found, is_from_head = await self._claim_once(count)
        # Behind the cursor there are too few: runs may have become ready before it.
        if found < count and not is_from_head:
            found += (await self._claim_once(count - found))[0]
        return found

    async def _claim_once(self, count: int) -> tuple[int, bool]:
        request = self._request(count)
        self._asked_for += count
        claims: list[Claim] = []
        began = time.perf_counter()
        try:
            claims = await self._control.ask(claim_calls.claim_runs(request))
            if self._meter is not None:
                self._meter.claim_seconds.observe(time.perf_counter() - began)
        finally:
            # Also after an error, which frees the places that it asked for.
            self.arrived(request, claims)
        return len(claims), request.after is None

    def _request(self, count: int) -> ClaimRequest:
        return ClaimRequest(
            self._life.worker_id,
            list(self._lanes.served),
            count,
            self._suspects.has_room,
            self._cursor.position(),
        )

    def request_with(self, flushes: Sequence[Flush]) -> ClaimRequest | None:
        """Return the claim to send along with a commit of these flushes, or None.

        With a backlog it fills the places of the runs that end or park. Otherwise it claims the
        children that start and that this worker serves. It is not sent at all if a tally limits the
        worker, because it may exceed the rest of the tally.
        """
        ending = parking = starting = 0
        if self._may_find_more:
            ending = sum(1 for flush in flushes if flush.ending is not None)
            parking = sum(1 for flush in flushes if flush.question and flush.question.get("park"))
        else:
            starting = self._starting(flushes)
        if not (ending or parking or starting):
            return None
        free = self.free()
        count = max(0, min(MAX_CLAIM, free + ending))
        parks = max(0, min(MAX_CLAIM, free + ending + parking) - count)
        if starting:
            count = min(count, starting + 1)  # one more, to come short if there are no others
        is_limited = self._tally is not None and self._tally.most is not None
        may_not = self._life.is_stopping or self._is_outgrown or self._life.failed.is_set()
        if may_not or is_limited or not (count or parks):
            return None
        self._asked_for += count + parks
        self._replaced += ending + parks
        return self._request(count)._replace(replaces=ending, parks=parks)

    def _starting(self, flushes: Sequence[Flush]) -> int:
        """Return how many children start in these flushes that this worker may claim."""
        started = [
            child
            for flush in flushes
            if flush.question is not None and "children" in flush.question
            for child in flush.question["children"]
        ]
        if not started:
            return 0
        served = {(lane.workflow, lane.queue) for lane in self._lanes.served.values()}
        return sum(1 for _, workflow, queue, *_ in started if (workflow, queue) in served)

    def left_of(self, request: ClaimRequest, claims: list[Claim], lanes: list[int]) -> list[int]:
        """Return the lanes made ready by the commit that may hold more runs than its claim
        found.
        """
        if request.after is not None or len(claims) >= request.max_runs:
            return lanes
        return [lane for lane in lanes if lane not in request.lanes]

    def arrived(self, request: ClaimRequest, claims: list[Claim], parked: int = 0) -> ClaimRequest:
        """Start the runs of a claim, however it was sent.

        Args:
            request: The claim.
            claims: The runs found.
            parked: Number of runs that parked in the commit that carried the claim.

        Returns:
            The claim as the database applied it, including the places of the runs that parked.
        """
        self._asked_for -= request.max_runs + request.parks
        self._replaced -= request.replaces + request.parks
        request = request._replace(
            max_runs=request.max_runs + min(parked, request.parks), replaces=0, parks=0
        )
        if request.max_runs:
            self._learn(request, claims)
        if self._tally is not None:
            self._tally.chains.update(claim.chain_id for claim in claims)
        for claim in claims:
            claim.workflow = self._lanes.served[claim.lane_id].workflow
            if self._meter is not None:
                self._meter.run_claimed(claim.workflow)
            if claim.is_suspect:
                self._suspects.claimed(claim)
            if self._life.is_stopping:
                self._runs.release_soon(claim)
            elif len(claim.units) < claim.last_seq:
                # Keep the place until the rest of the journal is here.
                self._asked_for += 1
                self._tasks.spawn(self._load_and_begin(claim))
            else:
                self._beginnings.begin(claim)
        return request

    def _learn(self, request: ClaimRequest, claims: list[Claim]) -> None:
        """Learn from a claim whether there are more runs, and where."""
        self._cursor.answered(request, claims)
        is_short = len(claims) < request.max_runs
        self._has_backlog = not is_short
        if is_short and request.after is not None:
            self._wanted.set()
        elif is_short:
            self._lines.came_short()

    async def _load_and_begin(self, claim: Claim) -> None:
        """Load the rest of a journal that was too long for the claim's answer, then start
        the run.
        """
        try:
            while len(claim.units) < claim.last_seq:
                page = await self._control.insist(
                    claim_calls.load_units(claim.run_id, len(claim.units))
                )
                if not page:
                    break
                claim.units.extend(page)
        except PgflowError:
            raise  # the worker ends
        except Exception as error:
            log.exception(
                "run %s: cannot read its journal; the run is handed back",
                claim.key,
                extra=log_fields(claim),
            )
            self._runs.engine_failed(claim, error)
            self._runs.release_soon(claim)
            return
        finally:
            self._asked_for -= 1
        if self._life.is_stopping:
            self._runs.release_soon(claim)
        else:
            self._beginnings.begin(claim)

    def _run_left(self, execution: Execution) -> None:
        self._suspects.got_on(execution)  # a suspect makes room by leaving, too
        if self._may_find_more:
            self._wanted.set()
