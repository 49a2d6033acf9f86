"""Claims as many runs as the worker has room for, in statements of their own or together with a
commit that ends runs.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence

from pgflow._db.calls.claim import ClaimRequest, Position
from pgflow._engine.flush import Flush
from pgflow._model.claims import Claim
from pgflow._worker.context import WorkerContext
from pgflow._worker.lanes import Lanes, QueueRates
from pgflow._worker.runs import Runs

log = logging.getLogger("pgflow")

TIMES_AS_LONG = 10
"""Pause between slow looks from the head, as a multiple of what the last one took: such looks take
at most about a tenth of the time.
"""

MOST_SECONDS = 1.0
"""Longest such pause: the interval of polls, which bounds how long an unnotified run waits."""


class ClaimCursor:
    """Decides where the next claim reads from.

    Args:
        clock: Seconds, on a clock that only measures durations.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last: Position | None = None
        self._head_due = 0.0

    def position(self) -> Position | None:
        """Return the run behind which the next claim reads; None to read from the head."""
        return self._last if self._clock() < self._head_due else None

    def answered(self, request: ClaimRequest, claims: list[Claim]) -> None:
        """Learn from the result of a claim. Claims may overtake each other."""
        if len(claims) < request.max_runs:
            self._last = None
            return
        # Suspects are picked from any position.
        last = max(
            [
                (claim.priority, claim.run_id)
                for claim in claims
                if not (claim.suspect and claim.is_suspect)
            ],
            default=None,
        )
        if request.after is None:
            self._last = last
            self._head_due = self._clock() + min(
                claims[0].took_us / 1e6 * TIMES_AS_LONG, MOST_SECONDS
            )
        elif self._last is not None and last is not None:
            self._last = max(self._last, last)


# Bounds the answer of one claim.
MAX_CLAIM = 128


class Claims:
    """Requests claims, and counts the places that they may fill. Requested runs count like running
    ones, so a claim never asks for more than there is room for.

    Args:
        runs: The runs of this worker. Each that leaves makes room for another.
        lanes: The lanes to claim from.
        rates: Notified when a claim found less than it asked for; knows whether a limit may be the
            reason.
    """

    def __init__(self, context: WorkerContext, runs: Runs, lanes: Lanes, rates: QueueRates) -> None:
        self._life = context.life
        self._wanted = context.wanted.claims
        self._concurrency = context.options.concurrency
        self._tally = context.options.tally
        self._meter = context.options.meter
        self._runs = runs
        self._lanes = lanes
        self._rates = rates
        self._cursor = ClaimCursor()
        self._asked_for = 0
        self._under_way: dict[int, float] = {}  # when each claim was sent, by its identity
        self._unread: set[int] = set()  # runs whose journals are still being read
        self._replaced = 0  # runs whose end is on its way, together with claims for their places
        self._has_backlog = False
        self._is_outgrown = False
        runs.when_room(self._want_more)

    @property
    def is_waiting(self) -> bool:
        """True while claims are under way, or pages of claimed runs' journals."""
        return self._asked_for > 0

    def run_ids(self) -> list[int]:
        """Return the runs that the worker knows to be leased to it."""
        return [*self._runs.executions, *self._unread]

    @property
    def sent_since(self) -> float:
        """Time, of the clock of :func:`time.monotonic`, since which all claims under way were sent;
        infinity without any.
        """
        return min(self._under_way.values(), default=math.inf)

    def outgrown(self, *, is_outgrown: bool) -> None:
        """Stop claiming because the schema was upgraded beyond this code, or resume because it was
        put back.
        """
        self._is_outgrown = is_outgrown

    def free(self) -> int:
        """Return the number of runs to claim next."""
        if self._is_outgrown:
            return 0
        if self._life.failed.is_set():
            return 0
        free = min(
            MAX_CLAIM,
            self._concurrency
            + len(self._runs.waiting)
            - len(self._runs.executions)
            + self._replaced
            - self._asked_for,
        )
        tally = self._tally
        return (
            free
            if tally is None or tally.most is None
            else min(free, tally.most - len(tally.chains) - self._asked_for)
        )

    def request(self, count: int) -> ClaimRequest:
        """Return a claim of up to `count` runs. It counts as sent."""
        self._asked_for += count
        return self._sent(self._request(count))

    def _sent(self, request: ClaimRequest) -> ClaimRequest:
        self._under_way[id(request)] = time.monotonic()
        return request

    def _request(self, count: int) -> ClaimRequest:
        return ClaimRequest(
            self._life.worker_id,
            list(self._lanes.served),
            count,
            not self._runs.suspects.alarms,
            self._cursor.position(),
        )

    def request_with(self, flushes: Sequence[Flush]) -> ClaimRequest | None:
        """Return the claim to send along with a commit of these flushes, or None.

        With a backlog it fills the places of the runs that end or park. Otherwise it claims the
        children that start and that this worker serves. It is not sent at all if a tally limits the
        worker, because it may exceed the rest of the tally.
        """
        ending = parking = starting = 0
        if self._has_backlog or self._rates.is_limited:
            ending = len([flush for flush in flushes if flush.ending is not None])
            parking = len([f for f in flushes if f.question and f.question.get("park")])
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
        return self._sent(self._request(count)._replace(replaces=ending, parks=parks))

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
        return len([child for child in started if (child[1], child[2]) in served])

    def left_of(self, request: ClaimRequest, claims: list[Claim], lanes: list[int]) -> list[int]:
        """Return the lanes made ready by the commit that may hold more runs than its claim
        found.
        """
        if request.after is not None or len(claims) >= request.max_runs:
            return lanes
        return [lane for lane in lanes if lane not in request.lanes]

    def arrived(self, request: ClaimRequest, claims: list[Claim], parked: int = 0) -> ClaimRequest:
        """Count the runs of a claim, however it was sent.

        Args:
            request: The claim.
            claims: The runs found.
            parked: Number of runs that parked in the commit that carried the claim.

        Returns:
            The claim as the database applied it, including the places of the runs that parked.
        """
        self._under_way.pop(id(request), None)
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
            if claim.suspect and claim.is_suspect:
                self._runs.suspects.claimed(claim)
        return request

    def journal_awaited(self, run_id: int) -> None:
        """Keep the place of a run whose journal is still being read."""
        self._asked_for += 1
        self._unread.add(run_id)

    def journal_read(self, run_id: int) -> None:
        """Free that place again: the run begins, or was handed back."""
        self._asked_for -= 1
        self._unread.discard(run_id)

    def _learn(self, request: ClaimRequest, claims: list[Claim]) -> None:
        """Learn from a claim whether there are more runs, and where."""
        self._cursor.answered(request, claims)
        is_short = len(claims) < request.max_runs
        self._has_backlog = not is_short
        if is_short and request.after is not None:
            self._wanted.set()
        elif is_short:
            self._rates.claim_was_short()

    def _want_more(self) -> None:
        """Request a claim if another run may start: the last claim was filled, or a limit holds
        runs back.
        """
        if self._has_backlog or self._rates.is_limited:
            self._wanted.set()
