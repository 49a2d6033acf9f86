"""Group commit: everything that the runs of this process make durable goes through two connections.

While one batch is under way, the commits of other runs collect and leave as one. A batch takes at
most half of the active runs, and the second connection sends only when half are waiting: with one
connection, client and server would work in lockstep; without the bound, the batches would be tiny.
A run that is alone takes a direct path without a document. One connection stays open when idle, and
the other is closed after a while.

A batch whose answer is lost is sent again, unchanged, on a new connection: the careful path on the
server finds what is already there. Nothing that depends on the batch starts before then.

A batch that the server refuses is sent again too, run by run after three attempts. Data that cannot
be stored holds its run for a person at once. Any other error, such as a time-out or a function
missing during an upgrade, is retried with growing pauses and delays no other run. If a run is
refused for long, it is held, provided that the server accepts the hold. A server that accepts
nothing does not accept the hold either, so an outage holds no run.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from typing import Any, Self

import psycopg

from pgflow._db.busy_poll import BusyPoll
from pgflow._db.calls import commit as calls
from pgflow._db.calls.claim import ClaimRequest
from pgflow._db.connect import ConnectOptions, cut_if_left, server_of
from pgflow._db.failures import (
    REFUSED_AFTER_SECONDS,
    is_answer,
    is_conflict_on_unit,
    is_of_a_pooler,
    is_of_the_data,
    is_passing,
    sqlstate_of,
)
from pgflow._db.query import Query
from pgflow._db.wire import OwnWire, Wire, open_wire
from pgflow._engine.flush import batch_document
from pgflow._flow.scope import log_fields
from pgflow._model.claims import Claim
from pgflow._model.exceptions import clean
from pgflow._worker.aftermath import Aftermath
from pgflow._worker.claims import Claims
from pgflow._worker.commit_queue import CommitQueue, Item
from pgflow._worker.life import Life
from pgflow._worker.news import News
from pgflow._worker.parts import Part
from pgflow._worker.supervision import Failures, back_off_seconds
from pgflow._worker.wakes import Wakes
from pgflow.errors import PgflowError
from pgflow.logs import redacted
from pgflow.meter import Meter

log = logging.getLogger("pgflow")

LINES = 2
"""Number of connections that commit."""
# A frozen server keeps its connections open, so each wait has a deadline.
COMMIT_TIMEOUT_SECONDS = 30.0
IDLE_SECONDS = 30.0
"""Seconds before an idle second connection is closed."""
TRIES_TOGETHER = 3
"""Attempts at a refused batch as a whole, before it is sent run by run."""

_TROUBLE = (psycopg.Error, TimeoutError, OSError, PgflowError)


class Committer(Part):
    """Commits batches. It owns the lines: connections, each with its task.

    Args:
        queue: The runs that wait for a commit.
        claims: Fills the places of ending runs in the same round trip.
        aftermath: Applies the result of each flush to its run.
        wakes: Wakes the runs that a batch sent messages to.
        news: Announces the runs that have ended.
        life: Fails with the committer.
        busy_poll: Polls for answers as the rest of the worker does.
        meter: Counts batches.
    """

    def __init__(
        self,
        options: ConnectOptions,
        queue: CommitQueue,
        claims: Claims,
        aftermath: Aftermath,
        wakes: Wakes,
        news: News,
        life: Life,
        busy_poll: BusyPoll,
        meter: Meter | None,
    ) -> None:
        self._options = options
        self._queue = queue
        self._claims = claims
        self._aftermath = aftermath
        self._wakes = wakes
        self._news = news
        self._life = life
        self._busy_poll = busy_poll
        self._meter = meter
        self._closing = False
        self._tasks: list[asyncio.Task[None]] = []
        self._failures = Failures()
        self._lines: set[_Line] = set()

    def start(self) -> None:
        """Start a task for each connection."""
        self._tasks = [
            asyncio.create_task(self._serve(), name=f"pgflow-committer-{n}") for n in range(LINES)
        ]
        for task in self._tasks:
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not self._closing:
            self._life.fail(
                "the committer",
                asyncio.CancelledError("it was cancelled")
                if task.cancelled()
                else task.exception(),
            )

    def leave(self, left_at: float) -> None:
        """Cut the connections to the old primary; what was sent there is sent again."""
        for line in self._lines:
            line.leave(left_at)

    async def stop(self) -> None:
        """Cancel the tasks, and wait until they have ended."""
        self._closing = True
        self._queue.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # ------------------------------------------------------------ one connection

    async def _serve(self) -> None:
        async with _Line(self._options, self._busy_poll) as line:
            self._lines.add(line)
            has_delivered = False
            while not self._closing:
                items = self._queue.take_batch()
                if not items:
                    # The runs that the last batch released may have something at once:
                    # bodies that wait for nothing.
                    await (asyncio.sleep(0) if has_delivered else self._rest(line))
                    has_delivered = False
                    continue
                has_delivered = True
                try:
                    await self._deliver(line, items)
                except Exception as error:  # noqa: BLE001 - whatever it is, other runs have something to commit
                    await self._failed(items, error)
                except BaseException:
                    self._queue.left()
                    raise
                self._queue.came_back()

    async def _failed(self, items: list[Item], error: Exception) -> None:
        """Hand back the runs of a batch on which the engine, not the server, failed. They continue
        from the journal; the line continues with other runs.
        """
        log.error(
            "the committer failed at a batch of %d runs; they are handed back",
            len(items),
            exc_info=error,
        )
        for execution, _ in items:
            self._aftermath.not_committed(execution, error)
        if not self._failures.add():
            self._life.fail("the committer", error)
        await asyncio.sleep(back_off_seconds(self._failures.count))

    async def _rest(self, line: _Line) -> None:
        """Wait until the queue wakes this line."""
        line.rests_since = asyncio.get_running_loop().time()
        await self._queue.rest()
        line.rests_since = None

    async def close_idle(self) -> None:
        """Close the connections that have been idle for long, except one, so that the first commit
        after a pause need not wait for a new connection.
        """
        since = asyncio.get_running_loop().time() - IDLE_SECONDS
        opened = [line for line in self._lines if line.is_open]
        rested = [
            line for line in opened if line.rests_since is not None and line.rests_since <= since
        ]
        for line in rested[: len(opened) - 1]:
            await line.close()

    async def _deliver(self, line: _Line, items: list[Item]) -> None:
        """Commit a batch, whatever it takes. A run whose part the server refuses is put off, so
        that it delays no other.
        """
        tries = 0
        careful = False
        while True:
            try:
                wire = await line.connected()
                await self._commit(wire, items, careful=careful or _may_differ(wire, items))
            except _TROUBLE as error:
                careful = True
                if is_conflict_on_unit(error):
                    continue
                is_data = isinstance(error, (psycopg.Error, PgflowError)) and is_of_the_data(error)
                is_theirs = is_data or is_answer(error)
                if is_theirs and len(items) == 1:
                    await self._refused(line, items[0], error, is_data=is_data)
                    return
                if is_data or (is_theirs and tries >= TRIES_TOGETHER):
                    break
                tries += 1
                self._count_failure()
                await line.back_off(error, tries)
            else:
                return
        for item in items:  # find out whose it is
            await self._deliver(line, [item])

    def _count_failure(self) -> None:
        if self._meter is not None:
            self._meter.commit_failed()

    async def _refused(self, line: _Line, item: Item, error: Exception, *, is_data: bool) -> None:
        """Handle a flush that a working server refuses: hold the run if the error is permanent,
        else put it off.
        """
        flush = item[1]
        now = asyncio.get_running_loop().time()
        if flush.failing_since is None:
            flush.failing_since = now
        is_for_good = is_data or (
            not is_passing(error) and now - flush.failing_since >= REFUSED_AFTER_SECONDS
        )
        if not (is_for_good and await self._hold(line, item, error)):
            self._send_later(item, error)

    def _send_later(self, item: Item, error: Exception) -> None:
        execution, flush = item
        self._count_failure()
        flush.tries += 1
        delay = min(5.0, 0.02 * 2 ** min(flush.tries, 8)) * random.uniform(0.5, 1)  # noqa: S311 - spreads the load
        log.log(
            logging.WARNING if flush.tries % 8 == 1 else logging.DEBUG,
            "run %s: a commit failed (%s); sending it again in %.2f s",
            execution.claim.key,
            redacted(error),
            delay,
            extra=log_fields(execution.claim),
        )
        self._queue.put_off(item, delay)

    async def _hold(self, line: _Line, item: Item, error: Exception) -> bool:
        """Hold a run instead of its flush. Return False if the server refuses that too.

        So a server that accepts nothing holds no run, and runs continue by themselves once it
        recovers.
        """
        execution, flush = item
        held = execution.flushing.hold_instead_of(
            flush, {"message": clean(str(error)), "sqlstate": sqlstate_of(error)}
        )
        tries = 0
        while True:
            try:
                wire = await line.connected()
                answer = await wire.ask(self._query([(execution, held)], careful=True))
            except _TROUBLE as trouble:
                if is_answer(trouble) or isinstance(trouble, PgflowError):
                    return False
                tries += 1  # it may be held: nothing else can be sent before that is known
                self._count_failure()
                await line.back_off(trouble, tries)
            else:
                break
        if answer.bad and answer.bad.get(execution.run_id) == "busy":
            return False
        if not answer.bad:
            execution.flushing.refused(held)
            self._aftermath.refused(execution, error)
        self._spread([(execution, held)], answer, server_of(wire.connection))
        return True

    async def _commit(self, wire: Wire, items: list[Item], *, careful: bool) -> None:
        request = None if careful else self._claims.request_with([flush for _, flush in items])
        answer = calls.ALL_WELL
        claims: list[Claim] = []
        began = time.perf_counter()
        try:
            if request is not None:
                answer, claims = await wire.ask(self._claiming_query(items, request))
            else:
                answer = await wire.ask(self._query(items, careful=careful))
        finally:
            if request is not None:
                # Also after an error, which frees the places that it asked for.
                request = self._claims.arrived(request, claims, answer.parked)
        if self._meter is not None:
            self._meter.committed(
                len(items), sum(len(flush.rows) for _, flush in items), time.perf_counter() - began
            )
        if request is not None and answer.lanes:
            answer.lanes = self._claims.left_of(request, claims, answer.lanes)
        self._spread(items, answer, server_of(wire.connection))

    def _document(self, items: list[Item], apart: list[str]) -> str:
        return batch_document(
            self._life.worker_id,
            [(flush, execution.clock.estimate_us) for execution, flush in items],
            apart,
        )

    def _claiming_query(
        self, items: list[Item], request: ClaimRequest
    ) -> Query[tuple[calls.CommitAnswer, list[Claim]]]:
        apart: list[str] = []
        return calls.commit_and_claim(self._document(items, apart), request, apart)

    def _query(self, items: list[Item], *, careful: bool) -> Query[calls.CommitAnswer]:
        """Return the direct call for a lone unit, else the batch."""
        flush = items[0][1]
        if (
            len(items) == 1
            and not careful
            and len(flush.rows) == 1
            and flush.question is None
            and flush.ending is None
        ):
            row = flush.rows[0]
            if (
                row.delay_seconds is None
                and row.key is None
                and not (flush.has_ledger or flush.taken or flush.returned or flush.words)
                and flush.over is None
            ):
                return calls.commit_unit(
                    self._life.worker_id,
                    flush.run_id,
                    flush.token,
                    row.seq,
                    row.call,
                    row.kind,
                    row.name,
                    row.payload,
                    flush.licences(0) or None,
                    row.at_us,
                )
        apart: list[str] = []
        return calls.commit_units(self._document(items, apart), apart, careful=careful)

    def _spread(self, items: list[Item], answer: calls.CommitAnswer, server: Any) -> None:
        """Apply the answer to each run of the batch."""
        told = []
        for execution, flush in items:
            verdict = answer.bad.get(execution.run_id) if answer.bad else None
            if verdict is None or (verdict == "already" and flush.question is None):
                if flush.ending is not None or (
                    flush.words and any(word.status is not None for word in flush.words)
                ):
                    told.append(flush.chain_id)
                decided = answer.settled.get(execution.run_id)
                self._aftermath.committed(execution, flush, decided, server)
            elif verdict == "busy":
                flush.tries += 1
                self._queue.send_again((execution, flush))
            elif verdict == "already":
                self._aftermath.unanswered(execution)
            else:
                self._aftermath.lost(execution)
        self._aftermath.over()
        if answer.wake or answer.lanes:
            self._wakes.wake_soon(answer.wake, set(answer.lanes), answer.told)
        if told:
            self._news.have_told(told)


def _may_differ(wire: OwnWire, items: list[Item]) -> bool:
    """Return True if the server may already have one of the flushes, or may lack acknowledged units
    of a run.

    The first is possible if a flush was sent before. The second is possible if the last
    acknowledgement came from another server or before this connection was opened: behind the same
    address may be a new primary with a shorter log. The careful path checks for the last unit.
    """
    opened_at, server = getattr(wire.connection, "opened_at", 0.0), server_of(wire.connection)
    for execution, flush in items:
        flushing = execution.flushing
        if (
            flush.tries
            or flushing.last_acknowledged_at < opened_at
            or flushing.last_acknowledged_by not in (None, server)
        ):
            return True
    return False


class _Line:
    """A connection that opens on demand and again after a loss."""

    def __init__(self, options: ConnectOptions, busy_poll: BusyPoll) -> None:
        self._options = options
        self._busy_poll = busy_poll
        self._wire: OwnWire | None = None
        self.rests_since: float | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def is_open(self) -> bool:
        return self._wire is not None

    async def close(self) -> None:
        wire, self._wire = self._wire, None
        if wire is not None:
            await wire.close()

    def leave(self, left_at: float) -> None:
        if self._wire is not None:
            cut_if_left(self._wire.connection, left_at)

    async def connected(self) -> OwnWire:
        if self._wire is None or self._wire.connection.closed:
            await self.close()
            self._wire = await open_wire(
                self._options, "pgflow committer", COMMIT_TIMEOUT_SECONDS, self._busy_poll
            )
        return self._wire

    async def back_off(self, error: Exception, tries: int) -> None:
        delay = min(5.0, 0.02 * 2 ** min(tries, 8)) * random.uniform(0.5, 1)  # noqa: S311 - spreads the load
        log.warning("a commit failed (%s); sending it again in %.2f s", redacted(error), delay)
        if is_of_a_pooler(error):
            self._options.preparing.end(error)
        if not is_answer(error):
            await self.close()
        await asyncio.sleep(delay)
