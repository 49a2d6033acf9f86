"""Group commit: everything that the runs of this process have
to make durable goes through two connections.

While one batch is on its way, what other runs want committed piles up, and goes as one. At most
half of the active runs go in one batch, and the second connection sets out only when half are
waiting: with one connection client and server would work in lockstep, with a free-for-all the
batches would be crumbs. A run that is alone takes a direct path without a document. One connection
is kept where nothing is to do, and the other closed after a while.

A batch whose answer is lost is sent again, exactly as it was, on a new connection: the careful path
on the server says what is there already. Nothing that rests on it starts before that is known.

A batch that the server refuses is sent again too, after three tries run by run. Data that cannot be
stored hold their run for a person at once. Anything else - a time-out, a function that is missing
during an upgrade - is sent again with growing pauses, and holds up no other run; if it is refused
for long while the server would take it that the run is held, the run is held. A server that takes
nothing does not take the hold either, so an outage holds nobody.
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
"""Number of connections."""
COMMIT_TIMEOUT_SECONDS = 30.0
IDLE_SECONDS = 30.0
"""Seconds for which a second connection is kept that nothing needs."""
TRIES_TOGETHER = 3
"""Times that a batch which the server refuses is sent as it is; then it goes run by run."""

_TROUBLE = (psycopg.Error, TimeoutError, OSError, PgflowError)


class Committer(Part):
    """See the module. It has the lines, as a connection with its task is called.

    Args:
        queue: Has the runs that wait for a commit.
        claims: Give room that a batch makes to other runs, in the same round trip.
        aftermath: Told what became of each run's flush.
        wakes: Told of runs that a batch gave a reason to look at.
        news: Told of runs that have ended.
        life: Fails with it.
        busy_poll: As the worker waits for answers.
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
        """Starts the connections' tasks."""
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
        """Another server is the primary since then: what was sent to the old one is sent again."""
        for line in self._lines:
            line.leave(left_at)

    async def stop(self) -> None:
        """Ends the tasks, once what is on its way has arrived."""
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
                    # What the last batch has let go on may have something at once:
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
        """Something is wrong with the engine, not with the server: the runs of the batch go on from
        the journal, this line goes on.
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
        """Waits to be called up: if all rest, by the first that has something to commit."""
        line.rests_since = asyncio.get_running_loop().time()
        await self._queue.rest()
        line.rests_since = None

    async def close_idle(self) -> None:
        """Closes the connections that have rested for long, but for one: who comes first after a
        rest should not wait for it.
        """
        since = asyncio.get_running_loop().time() - IDLE_SECONDS
        opened = [line for line in self._lines if line.is_open]
        rested = [
            line for line in opened if line.rests_since is not None and line.rests_since <= since
        ]
        for line in rested[: len(opened) - 1]:
            await line.close()

    async def _deliver(self, line: _Line, items: list[Item]) -> None:
        """Commits a batch, whatever it takes; a run whose part the server refuses is put off, so
        that it holds up no other.
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
        """The server is well, and will not commit this:
        holds the run if that is for good, else puts it off.
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
            "run %s: a commit failed (%s); it is sent again in %.2f s",
            execution.claim.key,
            redacted(error),
            delay,
            extra=log_fields(execution.claim),
        )
        self._queue.put_off(item, delay)

    async def _hold(self, line: _Line, item: Item, error: Exception) -> bool:
        """Holds a run for a person instead of what it wanted to record; False if the server will
        not have that either.

        So nothing is held while the server takes nothing from anybody:
        what is well again goes on by itself.
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
            [(flush, execution.estimate_us) for execution, flush in items],
            apart,
        )

    def _claiming_query(
        self, items: list[Item], request: ClaimRequest
    ) -> Query[tuple[calls.CommitAnswer, list[Claim]]]:
        apart: list[str] = []
        return calls.commit_and_claim(self._document(items, apart), request, apart)

    def _query(self, items: list[Item], *, careful: bool) -> Query[calls.CommitAnswer]:
        """The direct path for a lone unit, else the batch."""
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
        """Tells each run what became of its flush."""
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
    """Return True if the server may have a flush already, which was sent before, or may lack
    acknowledged units of a run: another server said so, or it was before this connection was
    opened.

    Behind that may be another server, to which not everything had come. The careful path looks
    whether the last unit is there.
    """
    opened_at, server = getattr(wire.connection, "opened_at", 0.0), server_of(wire.connection)
    for execution, flush in items:
        flushing = execution.flushing
        if flush.tries or flushing.told_at < opened_at or flushing.told_by not in (None, server):
            return True
    return False


class _Line:
    """A connection that is opened when needed and again when lost."""

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
        log.warning("a commit failed (%s); it is sent again in %.2f s", redacted(error), delay)
        if is_of_a_pooler(error):
            self._options.preparing.end(error)
        if not is_answer(error):
            await self.close()
        await asyncio.sleep(delay)
