"""Loops for work that was requested from SQL: updates of entities, and workflows that the database
runs itself.

The mailbox of entities has updates for entities whose code this worker has. Each update is one
transaction: it takes the mail, makes the update and writes its row of history. An update that
raises is refused in a second transaction, because the first one is rolled back.

When runs of workflows in SQL are ready, their loop calls the procedure `pgflow.work_until` on its
own connection until none is ready. The call ends before each step that has a timeout, since a
statement_timeout counts from the call: the step is then run in a statement of its own. By its
session, all of that is a separate worker in the database (``sql/flows/work.sql``), so runs in SQL
never pass through this process. The poller finds their timers and signals, as for all runs.
"""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import psycopg

from pgflow._db.calls import entities as entity_calls
from pgflow._db.calls import flows as flow_calls
from pgflow._db.connect import connect_async, cut_if_left
from pgflow._db.failures import DATABASE_ERRORS, is_infrastructure
from pgflow._db.query import Query, drive_async, run_async, run_by
from pgflow._flow.entities import known
from pgflow._model.exceptions import encode_error
from pgflow._transactions.provider import AsyncTransaction, AsyncTransactionProvider
from pgflow._worker.context import WorkerContext
from pgflow._worker.couriers import TargetFailed, judged
from pgflow._worker.parts import quietly
from pgflow._worker.rounds import Rounds
from pgflow.errors import CodecError, Redacted, WrongState
from pgflow.logs import redacted

log = logging.getLogger("pgflow")

PASSED_OVER = 100
"""Number of updates to skip in one look because they cannot be made now; the rest wait for the next
look.
"""
IDLE_TIMEOUT_MS = 10_000
"""Milliseconds after which the server disconnects a worker that is frozen in an update."""


class EntityMail(Rounds):
    """Executes the updates of entities."""

    name = "the mailbox of entities"
    work = "look for updates of entities"

    def __init__(self, context: WorkerContext) -> None:
        self._poll_seconds = context.options.poll_seconds
        super().__init__(context, retry_seconds=self._poll_seconds)
        self._providers = context.definitions.providers
        self._envelopes = context.definitions.envelopes

    async def round(self) -> float:
        """Make all updates there are. Only if there is one, the loop takes a connection from the
        pool.
        """
        if known:
            has_mail = await self._control.ask(entity_calls.has_updates(sorted(known)))
            if has_mail:
                await self._make_all()
        return self._poll_seconds

    async def _make_all(self) -> None:
        """Make one update after the other. An update that cannot be made now does not block other
        entities.
        """
        passed_over: list[int] = []
        while len(passed_over) < PASSED_OVER:
            asked: entity_calls.Asked | None = None
            try:
                async with self._provider().begin_async("read committed") as transaction:
                    query = entity_calls.take_update(sorted(known), passed_over)
                    asked = await self._ask(transaction, query)
                    if asked is None:
                        return
                    await self._make(transaction, asked)
                    await transaction.commit()
            except Exception as raised:
                error = raised.error if isinstance(raised, TargetFailed) else raised
                if asked is not None and _is_its_own(raised, error):
                    await self._refuse(asked, error)
                    continue
                if not isinstance(error, (*DATABASE_ERRORS, CodecError)):
                    raise
                log.warning("cannot execute updates of entities: %s", redacted(error))
                if asked is None:
                    return
                # Skipped in this look, so that it blocks no other entity.
                passed_over.append(asked.mail_id)

    def _provider(self) -> AsyncTransactionProvider:
        for provider in self._providers:
            if isinstance(provider, AsyncTransactionProvider) and provider.provides(
                psycopg.AsyncConnection
            ):
                return provider
        raise AssertionError("every worker has connections of psycopg")

    async def _ask(self, transaction: AsyncTransaction, query: Query[Any]) -> Any:
        return await run_by(transaction.execute, query)

    async def _make(self, transaction: AsyncTransaction, asked: entity_calls.Asked) -> None:
        update = known[asked.name].updates.get(asked.update)
        if update is None:
            raise WrongState(f"entity {asked.name!r} has no update {asked.update!r}")
        steps = update.statements(
            asked.key,
            asked.args,
            self._envelopes,
            said_by=asked.sent_by,
            mail_id=asked.mail_id,
            expect=asked.expect,
            idempotency_key=asked.idempotency_key,
            idle_timeout_ms=IDLE_TIMEOUT_MS,
        )
        of_statements: list[BaseException] = []

        async def put(query: Query[Any]) -> Any:
            try:
                return await self._ask(transaction, query)
            except Exception as error:
                of_statements.append(error)
                raise

        try:
            await drive_async(steps, put)
        except BaseException as error:
            if any(error is one for one in of_statements):
                raise
            with judged():  # the code of the update has raised it
                raise

    async def _refuse(self, asked: entity_calls.Asked, error: BaseException) -> None:
        log.warning(
            "update %s of entity %s %r is refused: %s",
            asked.update,
            asked.name,
            asked.key,
            redacted(error),
        )
        data = encode_error(error, with_traceback=False)
        text = json.dumps(data) if self._envelopes is None else self._envelopes.seal_error(data)[0]
        async with self._provider().begin_async("read committed") as transaction:
            await self._ask(transaction, entity_calls.refuse_update(asked.mail_id, text))
            await transaction.commit()


def _is_its_own(raised: Exception, error: BaseException) -> bool:
    """Return True if a retry of the update would raise the error again. A missing key may be added
    later; a redacted value stays unreadable.

    Args:
        raised: Error of the transaction: a TargetFailed if the update has raised the other one.
        error: The error itself.
    """
    if isinstance(error, CodecError):
        return isinstance(error, Redacted)
    return error is not raised or not is_infrastructure(error)


class SqlFlows(Rounds):
    """Calls `pgflow.work_until`. It keeps the connection of the call under way."""

    name = "the loop of workflows in SQL"
    work = "work on workflows in SQL"

    def __init__(self, context: WorkerContext) -> None:
        self._poll_seconds = context.options.poll_seconds
        super().__init__(context, retry_seconds=self._poll_seconds)
        self._connect = context.connect
        self._queues = list(context.options.queues)
        self._connection: psycopg.AsyncConnection[Any] | None = None

    def leave(self) -> None:
        """Cut a call on the old primary."""
        cut_if_left(self._connection)

    async def round(self) -> float:
        """Work until no run is ready."""
        while await self._control.ask(flow_calls.has_ready_flows(self._queues)):
            await self._work()
        return self._poll_seconds

    async def _work(self) -> None:
        connection = await connect_async(self._connect, "pgflow sql")
        self._connection = connection
        try:
            step: dict[str, Any] | None = {}
            while step is not None:
                step = await self._run_until_timed(connection, step)
        except asyncio.CancelledError:
            # The server has aborted the call, which may have held a run.
            await quietly(run_async(connection, flow_calls.reap_sessions()))
            raise
        finally:
            self._connection = None
            await connection.close()

    async def _run_until_timed(
        self, connection: psycopg.AsyncConnection[Any], step: dict[str, Any]
    ) -> dict[str, Any] | None:
        """Work up to a step that has a timeout and run that in a statement of its own. Return what
        to go on with; None once all is done.
        """
        cursor = await connection.execute(flow_calls.WORK, (json.dumps(step), self._queues))
        row = await cursor.fetchone()
        if row is None or row[0] is None:
            return None
        timed: dict[str, Any] = row[0]
        await run_async(connection, flow_calls.limit_statements(timed["timeout"]))
        try:
            timed = await run_async(connection, flow_calls.run_timed(timed))
        except psycopg.errors.QueryCanceled:
            log.debug("the timeout of a step was over when it was done: it is tried again")
        await run_async(connection, flow_calls.limit_statements(0))
        return dict(timed)
