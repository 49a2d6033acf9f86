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
from typing import Any, Self

import psycopg

from pgflow._db.connect import ConnectOptions, cut_if_left, server_of
from pgflow._db.failures import (
    DATABASE_ERRORS,
    REFUSED_AFTER_SECONDS,
    is_answer,
    is_conflict_on_unit,
    is_of_a_pooler,
    is_of_the_data,
    is_passing,
    sqlstate_of,
)
from pgflow._db.wire import OwnWire, open_wire
from pgflow._engine.execution import Execution
from pgflow._flow.scope import log_fields
from pgflow._model.exceptions import clean
from pgflow._worker.body_calls import LostThreads
from pgflow._worker.context import WorkerContext
from pgflow._worker.executor import CommitResults, Executor, Item
from pgflow._worker.parts import FailureCount, Loop, Part, back_off_seconds
from pgflow._worker.runs import Runs
from pgflow.errors import PgflowError
from pgflow.logs import redacted

log = logging.getLogger("pgflow")

MAX_BATCH_RUNS = 256
# Bounds the document of one batch, beside the number of runs.
MAX_BATCH_BYTES = 4 * 1024 * 1024


class CommitQueue:
    """Runs with something to commit, and connections that rest until a batch is worth sending.

    A batch takes at most half of the active runs. A second connection sends only when that many
    runs are waiting. A line (a connection with its task) looks for a batch,
    sends one, or rests.

    Args:
        runs: The runs of this worker. Their number bounds a batch.
        lines: Number of lines. All of them look first.
    """

    def __init__(self, runs: Runs, lines: int) -> None:
        self._executions = runs.executions
        self._pending: dict[int, Execution] = {}
        self._again: list[Item] = []
        self._due: list[Item] = []  # flushes that were put off, each sent alone
        self._resting: list[asyncio.Future[None]] = []
        self._awake = lines
        self._looking = lines  # lines among them that are about to look for a batch
        self._is_closed = False

    def submit(self, execution: Execution) -> None:
        """Queue a run that has something to commit."""
        self._pending[execution.run_id] = execution
        if self._resting and not self._looking:
            self._call_up()

    def send_again(self, items: list[Item]) -> None:
        """Send flushes unchanged with the next batch, because the server was busy with the runs."""
        self._again += items

    def put_off(self, item: Item, delay_seconds: float) -> None:
        """Send a flush unchanged and alone after a delay: it may be refused again."""
        asyncio.get_running_loop().call_later(delay_seconds, self._come_due, item)

    def _come_due(self, item: Item) -> None:
        if not self._is_closed:
            self._due.append(item)
            self._call_up()

    def _call_up(self) -> None:
        """Wake a resting line, unless another is about to look or too few runs are waiting."""
        if not self._resting or self._looking:
            return
        if self._due or (self._pending and (not self._awake or len(self._pending) >= self._limit)):
            self._awake += 1
            self._looking += 1
            self._resting.pop().set_result(None)

    @property
    def _limit(self) -> int:
        """Most runs in one batch, and the number that must wait before a second connection
        sends.
        """
        return min(MAX_BATCH_RUNS, max(1, (len(self._executions) + 1) // 2))

    def take_batch(self) -> list[Item]:
        """Return the next batch for a line to send. It is empty if there is none, or if the other
        line should continue alone.
        """
        items = self._next_batch()
        if items:
            self._looking -= 1
            self._call_up()
        return items

    def _next_batch(self) -> list[Item]:
        if self._due:
            return [self._due.pop(0)]
        again, self._again = self._again, []
        limit = self._limit
        if not again and self._awake > 1 and len(self._pending) < limit:
            return []
        items = again
        size = 0
        while self._pending and len(items) < limit and size < MAX_BATCH_BYTES:
            execution = self._pending.pop(next(iter(self._pending)))
            flush = None if execution.over else execution.flushing.take()
            if flush is not None:
                items.append((execution, flush))
                size += flush.size_bytes
        return items

    def came_back(self) -> None:
        """Note that a line has delivered its batch and looks for the next."""
        self._looking += 1

    def left(self) -> None:
        """Note that a line ended while it was sending."""
        self._awake -= 1

    def rest(self) -> asyncio.Future[None]:
        """Return the future that wakes a resting line. If all lines rest, the first run with
        something to commit sets it.
        """
        self._awake -= 1
        self._looking -= 1
        called: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._resting.append(called)
        return called

    def close(self) -> None:
        """Drop the flushes that were put off."""
        self._is_closed = True


LINES = 2
"""Number of connections that commit."""
# A frozen server keeps its connections open, so each wait has a deadline.
COMMIT_TIMEOUT_SECONDS = 30.0
IDLE_SECONDS = 30.0
"""Seconds before an idle second connection is closed."""
TRIES_TOGETHER = 3
"""Attempts at a refused batch as a whole, before it is sent run by run."""

_TROUBLE = (*DATABASE_ERRORS, PgflowError)


class Committer(Part):
    """Commits batches. It owns the lines: connections, each with its task.

    Args:
        queue: The runs that wait for a commit.
        executor: Sends a batch, and applies the answer.
        results: Applies a refusal.
    """

    def __init__(
        self, context: WorkerContext, queue: CommitQueue, executor: Executor, results: CommitResults
    ) -> None:
        self._options = context.connect
        self._life = context.life
        self._meter = context.options.meter
        self._queue = queue
        self._executor = executor
        self._results = results
        self._closing = False
        self._tasks: list[asyncio.Task[None]] = []
        self._failures = FailureCount()
        self._lines: set[_CommitLine] = set()

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

    def leave(self) -> None:
        """Cut the connections to the old primary; what was sent there is sent again."""
        for line in self._lines:
            line.leave()

    async def stop(self) -> None:
        """Cancel the tasks, and wait until they have ended."""
        self._closing = True
        self._queue.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # ------------------------------------------------------------ one connection

    async def _serve(self) -> None:
        async with _CommitLine(self._options) as line:
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
            self._results.not_committed(execution, error)
        if not self._failures.add():
            self._life.fail("the committer", error)
        await asyncio.sleep(back_off_seconds(self._failures.count))

    async def _rest(self, line: _CommitLine) -> None:
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

    async def _deliver(self, line: _CommitLine, items: list[Item]) -> None:
        """Commit a batch, whatever it takes. A run whose part the server refuses is put off, so
        that it delays no other.
        """
        tries = 0
        careful = False
        while True:
            try:
                wire = await line.connected()
                server = server_of(wire.connection)
                careful_now = careful or _may_differ(wire, items, server)
                busy = await self._executor.execute(wire, items, server, careful=careful_now)
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
                self._queue.send_again(busy)
                return
        for item in items:  # find out whose it is
            await self._deliver(line, [item])

    def _count_failure(self) -> None:
        if self._meter is not None:
            self._meter.commit_failed()

    async def _refused(
        self, line: _CommitLine, item: Item, error: Exception, *, is_data: bool
    ) -> None:
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
        delay = back_off_seconds(flush.tries, 0.02)
        log.log(
            logging.WARNING if flush.tries % 8 == 1 else logging.DEBUG,
            "run %s: a commit failed (%s); sending it again in %.2f s",
            execution.claim.key,
            redacted(error),
            delay,
            extra=log_fields(execution.claim),
        )
        self._queue.put_off(item, delay)

    async def _hold(self, line: _CommitLine, item: Item, error: Exception) -> bool:
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
                query = self._executor.commit_query([(execution, held)], careful=True)
                answer = await wire.ask(query)
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
            self._results.refused(execution, error)
        busy = self._results.apply([(execution, held)], answer, server_of(wire.connection))
        self._queue.send_again(busy)
        return True


def _may_differ(wire: OwnWire, items: list[Item], server: Any) -> bool:
    """Return True if the server may already have one of the flushes, or may lack acknowledged units
    of a run.

    The first is possible if a flush was sent before. The second is possible if the last
    acknowledgement came from another server or before this connection was opened: behind the same
    address may be a new primary with a shorter log. The careful path checks for the last unit.
    """
    opened_at = getattr(wire.connection, "opened_at", 0.0)
    for execution, flush in items:
        flushing = execution.flushing
        if (
            flush.tries
            or flushing.last_acknowledged_at < opened_at
            or flushing.last_acknowledged_by not in (None, server)
        ):
            return True
    return False


class _CommitLine:
    """A connection that opens on demand and again after a loss."""

    def __init__(self, options: ConnectOptions) -> None:
        self._options = options
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

    def leave(self) -> None:
        if self._wire is not None:
            cut_if_left(self._wire.connection)

    async def connected(self) -> OwnWire:
        if self._wire is None or self._wire.connection.closed:
            await self.close()
            self._wire = await open_wire(self._options, "pgflow committer", COMMIT_TIMEOUT_SECONDS)
        return self._wire

    async def back_off(self, error: Exception, tries: int) -> None:
        delay = back_off_seconds(tries, 0.02)
        log.warning("a commit failed (%s); sending it again in %.2f s", redacted(error), delay)
        if is_of_a_pooler(error):
            self._options.preparing.end(error)
        if not is_answer(error):
            await self.close()
        await asyncio.sleep(delay)


FLUSH_AFTER_US = 100_000
SWEEP_SECONDS = 0.05


class Flusher(Loop):
    """Bounds how long a unit waits in a buffer.

    Attributes:
        ticks: Counter that moves while the worker's loop runs.
    """

    name = "the loop of flushes"

    def __init__(
        self, context: WorkerContext, runs: Runs, queue: CommitQueue, lost: LostThreads
    ) -> None:
        super().__init__(context.tasks)
        self.ticks = 0
        self._runs = runs
        self._queue = queue
        self._lost = lost

    async def loop(self) -> None:
        """Look twenty times a second."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            self.ticks += 1
            self._flush_old()
            self._lost.look()

    def _flush_old(self) -> None:
        """Submit runs with old units. A separate function, because the loop's own variables would
        keep the last execution alive while it sleeps.
        """
        for execution in self._runs.executions.values():
            if (
                execution.buffer.rows
                and (oldest := execution.oldest_unflushed_us) is not None
                and execution.clock.estimate_us() - oldest > FLUSH_AFTER_US
                and not execution.history.replaying
            ):
                self._queue.submit(execution)
