"""Group commit: everything that the runs of this process have to make durable goes through two connections.

While one batch is on its way, what other runs want committed piles up, and goes as one. At most half of
the active runs go in one batch, and the second connection sets out only when half are waiting: with one
connection client and server would work in lockstep, with a free-for-all the batches would be crumbs. A run
that is alone takes a direct path without a document. One connection is kept where nothing is to do, and the
other closed after a while.

A batch whose answer is lost is sent again, exactly as it was, on a new connection: the careful path on the
server says what is there already. Nothing that rests on it starts before that is known.

A batch that the server refuses is sent again too, and soon run by run. Data that cannot be stored hold their
run for a person at once. Anything else - a time-out, a function that is missing during an upgrade - is sent
again with growing pauses, and holds up no other run; if it is refused for long while the server would take
it that the run is held, the run is held.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from typing import Any, Protocol, Self

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
from pgflow._engine.execution import Execution
from pgflow._engine.flush import Flush, batch_document
from pgflow._flow.scope import log_fields
from pgflow._model.claims import Claim
from pgflow._model.exceptions import clean
from pgflow._worker.supervision import Failures, back_off_seconds
from pgflow.errors import PgflowError
from pgflow.logs import redacted
from pgflow.meter import Meter

log = logging.getLogger("pgflow")

MAX_BATCH_RUNS = 256
MAX_BATCH_BYTES = 4 * 1024 * 1024
COMMIT_TIMEOUT_SECONDS = 30.0
IDLE_SECONDS = 30.0
"""Seconds for which a second connection is kept that nothing needs."""
TRIES_TOGETHER = 3
"""Times that a batch which the server refuses is sent as it is; then it goes run by run."""

_TROUBLE = (psycopg.Error, TimeoutError, OSError, PgflowError)

Item = tuple[Execution, Flush]


class CommitHost(Protocol):
    """Interface of the worker, as the committer needs it."""

    meter: Meter | None
    worker_id: int

    @property
    def active(self) -> int:
        """Number of executions."""

    def claim_request(self, ending: int) -> ClaimRequest | None:
        """Return the claim to send with a batch that ends so many runs; None for no claim."""

    def claims_arrived(self, request: ClaimRequest, claims: list[Claim]) -> None:
        """The answer to a claim."""

    def committed(self, execution: Execution, flush: Flush, answer: dict[str, Any] | None) -> None:
        """A flush is durable."""

    def lost(self, execution: Execution) -> None:
        """Somebody else holds the run."""

    def give_back(self, execution: Execution) -> None:
        """Have the run replayed: the answer for it is lost, the lease is not."""

    def refused(self, execution: Execution, error: Exception) -> None:
        """The server would not store what the run wanted to record: it is held."""

    def not_committed(self, execution: Execution, error: BaseException) -> None:
        """Give up a flush of unknown fate: nobody will find out."""

    def fail(self, part: str, error: BaseException | None = None) -> None:
        """The worker cannot go on."""

    def wake_soon(self, chains: list[int], lanes: set[int]) -> None:
        """Runs to wake and lanes with new runs."""

    def runs_ended(self, chains: list[int]) -> None:
        """Chains whose outcome is durable, for those who wait."""


class Committer:
    """See the module."""

    def __init__(self, host: CommitHost, options: ConnectOptions, busy_poll: BusyPoll | None = None, connections: int = 2) -> None:
        self._host = host
        self._options = options
        self._busy_poll = busy_poll
        self._connections = connections
        self._pending: dict[int, Execution] = {}
        self._again: list[Item] = []
        self._due: list[Item] = []  # those that were put off, and go alone
        self._put_off = 0
        self._idle: list[asyncio.Future[None]] = []
        self._busy = 0  # lines that are awake
        self._looking = 0  # those of them that are about to look for what waits
        self._closing = False
        self._tasks: list[asyncio.Task[None]] = []
        self._failures = Failures()
        self._lines: set[_Line] = set()
        self.batches = 0
        self.flushes = 0

    def start(self) -> None:
        """Starts the connections' tasks."""
        self._busy = self._looking = self._connections
        self._tasks = [asyncio.create_task(self._serve(), name=f"pgflow-committer-{n}") for n in range(self._connections)]
        for task in self._tasks:
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not self._closing:
            self._host.fail("the committer", asyncio.CancelledError("it was cancelled") if task.cancelled() else task.exception())

    def submit(self, execution: Execution) -> None:
        """This run has something to make durable."""
        self._pending[execution.run_id] = execution
        self._call_up()

    def _call_up(self) -> None:
        """Calls a line that rests, if none is about to look anyway and what waits is worth it."""
        waits = self._due or (self._pending and (not self._busy or len(self._pending) >= self._limit))
        if self._idle and not self._looking and waits:
            self._busy += 1
            self._looking += 1
            self._idle.pop().set_result(None)

    @property
    def idle(self) -> bool:
        """True if nothing waits and nothing is on its way."""
        return not (self._pending or self._again or self._put_off or self._busy)

    def leave(self, left_at: float) -> None:
        """Another server is the primary since then: what was sent to the old one is sent again."""
        for line in self._lines:
            line.leave(left_at)

    async def close(self) -> None:
        """Ends the tasks, once what is on its way has arrived."""
        self._closing = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # ------------------------------------------------------------ one connection

    async def _serve(self) -> None:
        async with _Line(self._options, self._busy_poll) as line:
            self._lines.add(line)
            has_delivered = False
            while not self._closing:
                items = self._take_batch()
                if not items:
                    # What the last batch has let go on may have something at once: bodies that wait for nothing.
                    await (asyncio.sleep(0) if has_delivered else self._rest(line))
                    has_delivered = False
                    continue
                has_delivered = True
                self._looking -= 1
                self._call_up()
                try:
                    await self._deliver(line, items)
                except Exception as error:  # noqa: BLE001 - whatever it is, other runs have something to commit
                    await self._failed(items, error)
                except BaseException:
                    self._busy -= 1
                    raise
                self._looking += 1

    async def _failed(self, items: list[Item], error: Exception) -> None:
        """Something is wrong with the engine, not with the server: the runs of the batch go on from the journal, this line goes on."""
        log.error("the committer failed at a batch of %d runs; they are handed back", len(items), exc_info=error)
        for execution, _ in items:
            self._host.not_committed(execution, error)
        if not self._failures.add():
            self._host.fail("the committer", error)
        await asyncio.sleep(back_off_seconds(self._failures.count))

    async def _rest(self, line: _Line) -> None:
        """Waits to be called up: if all rest, by the first that has something to commit."""
        self._busy -= 1
        self._looking -= 1
        loop = asyncio.get_running_loop()
        called = loop.create_future()
        self._idle.append(called)
        line.rests_since = loop.time()
        await called
        line.rests_since = None

    async def close_idle(self) -> None:
        """Closes the connections that have rested for long, but for one: who comes first after a rest should not wait for it."""
        since = asyncio.get_running_loop().time() - IDLE_SECONDS
        opened = [line for line in self._lines if line.is_open]
        rested = [line for line in opened if line.rests_since is not None and line.rests_since <= since]
        for line in rested[: len(opened) - 1]:
            await line.close()

    @property
    def _limit(self) -> int:
        """Most runs in one batch; so many must wait before a second connection sets out."""
        return min(MAX_BATCH_RUNS, max(1, (self._host.active + 1) // 2))

    def _take_batch(self) -> list[Item]:
        """Return the next batch; empty if there is none, or if the other connection should go on alone."""
        if self._due:
            self._put_off -= 1
            return [self._due.pop(0)]
        again, self._again = self._again, []
        limit = self._limit
        if not again and self._busy > 1 and len(self._pending) < limit:
            return []
        items = again
        size = 0
        while self._pending and len(items) < limit and size < MAX_BATCH_BYTES:
            execution = self._pending.pop(next(iter(self._pending)))
            flush = execution.take_flush()
            if flush is not None:
                items.append((execution, flush))
                size += flush.size_bytes
        return items

    async def _deliver(self, line: _Line, items: list[Item]) -> None:
        """Commits a batch, whatever it takes; a run whose part the server refuses is put off, so that it holds up no other."""
        tries = 0
        careful = any(flush.tries > 0 for _, flush in items)
        while True:
            try:
                wire = await line.connected()
                await self._commit(wire, items, careful=careful or _may_lack(wire, items))
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
        if self._host.meter is not None:
            self._host.meter.commit_failures += 1

    async def _refused(self, line: _Line, item: Item, error: Exception, *, is_data: bool) -> None:
        """The server is well, and will not commit this: holds the run if that is for good, else puts it off."""
        flush = item[1]
        now = asyncio.get_running_loop().time()
        if flush.failing_since is None:
            flush.failing_since = now
        is_for_good = is_data or (not is_passing(error) and now - flush.failing_since >= REFUSED_AFTER_SECONDS)
        if not (is_for_good and await self._hold(line, item, error)):
            self._send_later(item, error)

    def _send_later(self, item: Item, error: Exception) -> None:
        execution, flush = item
        self._count_failure()
        flush.tries += 1
        delay = min(5.0, 0.02 * 2 ** min(flush.tries, 8)) * random.uniform(0.5, 1)  # noqa: S311 - spreads the load
        log.log(
            logging.WARNING if flush.tries % 8 == 1 else logging.DEBUG, "run %s: a commit failed (%s); it is sent again in %.2f s",
            execution.claim.key, redacted(error), delay, extra=log_fields(execution.claim),
        )
        self._put_off += 1
        asyncio.get_running_loop().call_later(delay, self._take_up, item)

    def _take_up(self, item: Item) -> None:
        if not self._closing:
            self._due.append(item)
            self._call_up()

    async def _hold(self, line: _Line, item: Item, error: Exception) -> bool:
        """Holds a run for a person instead of what it wanted to record; False if the server will not have that either.

        So nothing is held while the server takes nothing from anybody: what is well again goes on by itself.
        """
        execution, flush = item
        held = execution.hold_instead_of(flush, {"message": clean(str(error)), "sqlstate": sqlstate_of(error)})
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
            execution.refused(held)
            self._host.refused(execution, error)
        self._spread([(execution, held)], answer, server_of(wire.connection))
        return True

    async def _commit(self, wire: Wire, items: list[Item], *, careful: bool) -> None:
        ending = sum(1 for _, flush in items if flush.ending is not None)
        request = None if careful or not ending else self._host.claim_request(ending)
        claims: list[Claim] = []
        began = time.perf_counter()
        try:
            if request is not None:
                answer, claims = await wire.ask(self._claiming_query(items, request))
            else:
                answer = await wire.ask(self._query(items, careful=careful))
        finally:
            if request is not None:
                self._host.claims_arrived(request, claims)
        self.batches += 1
        self.flushes += len(items)
        if self._host.meter is not None:
            self._host.meter.committed(len(items), sum(len(flush.rows) for _, flush in items), time.perf_counter() - began)
        self._spread(items, answer, server_of(wire.connection))

    def _document(self, items: list[Item], apart: list[str]) -> str:
        return batch_document(self._host.worker_id, ((flush, execution.estimate_us) for execution, flush in items), apart)

    def _claiming_query(self, items: list[Item], request: ClaimRequest) -> Query[tuple[calls.CommitAnswer, list[Claim]]]:
        apart: list[str] = []
        return calls.commit_and_claim(self._document(items, apart), request, apart)

    def _query(self, items: list[Item], *, careful: bool) -> Query[calls.CommitAnswer]:
        """The direct path for a lone unit, else the batch."""
        flush = items[0][1]
        if len(items) == 1 and not careful and len(flush.rows) == 1 and flush.question is None and flush.ending is None:
            row = flush.rows[0]
            if row.delay_seconds is None and row.key is None and not (flush.has_ledger or flush.taken or flush.returned):
                return calls.commit_unit(
                    self._host.worker_id, flush.run_id, flush.token, row.seq, row.call, row.kind, row.name, row.payload,
                    flush.licences(0), row.at_us,
                )
        apart: list[str] = []
        return calls.commit_units(self._document(items, apart), apart, careful=careful)

    def _spread(self, items: list[Item], answer: calls.CommitAnswer, server: Any) -> None:
        """Tells each run what became of its flush."""
        ended = []
        for execution, flush in items:
            execution.told_by = server
            verdict = answer.bad.get(execution.run_id) if answer.bad else None
            if verdict is None or (verdict == "already" and flush.question is None):
                if flush.ending is not None:
                    ended.append(flush.chain_id)
                self._host.committed(execution, flush, answer.settled.get(execution.run_id))
            elif verdict == "busy":
                flush.tries += 1
                self._again.append((execution, flush))
            elif verdict == "already":
                self._host.give_back(execution)
            else:
                self._host.lost(execution)
        if answer.wake or answer.lanes:
            self._host.wake_soon(answer.wake, set(answer.lanes))
        if ended:
            self._host.runs_ended(ended)


def _may_lack(wire: OwnWire, items: list[Item]) -> bool:
    """Return True if the server may lack acknowledged units of a run: another said so, or it was before this connection was opened.

    Behind that may be another server, to which not everything had come. The careful path looks whether the last unit is there.
    """
    opened_at, server = getattr(wire.connection, "opened_at", 0.0), server_of(wire.connection)
    return any(execution.told_at < opened_at or execution.told_by not in (None, server) for execution, _ in items)


class _Line:
    """A connection that is opened when needed and again when lost."""

    def __init__(self, options: ConnectOptions, busy_poll: BusyPoll | None) -> None:
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
            self._wire = await open_wire(self._options, "pgflow committer", COMMIT_TIMEOUT_SECONDS, self._busy_poll)
        return self._wire

    async def back_off(self, error: Exception, tries: int) -> None:
        delay = min(5.0, 0.02 * 2 ** min(tries, 8)) * random.uniform(0.5, 1)  # noqa: S311 - spreads the load
        log.warning("a commit failed (%s); it is sent again in %.2f s", redacted(error), delay)
        if is_of_a_pooler(error):
            self._options.preparing.end(error)
        if not is_answer(error):
            await self.close()
        await asyncio.sleep(delay)
