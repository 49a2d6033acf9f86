"""The loop of workflows in SQL: the database runs them itself, in a call that a worker makes.

When such runs are ready, the loop calls the procedure `pgflow.work_until` on its own connection
until none is ready. The call ends before each step that has a timeout, since a statement_timeout
counts from the call: the step is then run in a statement of its own. By its session, all of that is
a separate worker in the database (``sql/flows/work.sql``), so runs in SQL never pass through this
process. The poller finds their timers and signals, as for all runs.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence
from typing import Any

import psycopg

from pgflow._db.calls import flows as flow_calls
from pgflow._db.connect import ConnectOptions, connect_async, cut_if_left
from pgflow._db.query import run_async
from pgflow._worker.connection import WorkerConnection
from pgflow._worker.parts import Loop, Tasks
from pgflow._worker.supervision import quietly
from pgflow.logs import redacted

log = logging.getLogger("pgflow")


class SqlFlows(Loop):
    """Calls `pgflow.work_until`. It keeps the connection of the call under way.

    Args:
        queues: Queues that the worker serves.
        poll_seconds: Between looks that find nothing.
    """

    name = "the loop of workflows in SQL"

    def __init__(
        self,
        tasks: Tasks,
        connect: ConnectOptions,
        control: WorkerConnection,
        queues: Sequence[str],
        poll_seconds: float,
    ) -> None:
        super().__init__(tasks)
        self._connect = connect
        self._control = control
        self._queues = list(queues)
        self._poll_seconds = poll_seconds
        self._connection: psycopg.AsyncConnection[Any] | None = None

    def leave(self, left_at: float) -> None:
        """Cut a call on the old primary."""
        cut_if_left(self._connection, left_at)

    async def loop(self) -> None:
        """Look for ready runs, and work until none is left."""
        while True:
            try:
                while await self._look():
                    await self._work()
            except (psycopg.Error, OSError, TimeoutError) as error:
                log.warning("cannot work on workflows in SQL: %s", redacted(error))
            await asyncio.sleep(self._poll_seconds)

    async def _look(self) -> bool:
        return await self._control.ask(flow_calls.has_ready_flows(self._queues))

    async def _work(self) -> None:
        connection = await connect_async(self._connect, "pgflow sql")
        self._connection = connection
        try:
            step: dict[str, Any] | None = {}
            while step is not None:
                cursor = await connection.execute(flow_calls.WORK, (json.dumps(step), self._queues))
                (step,) = await cursor.fetchone() or (None,)
                if step is not None:
                    step = await self._run_timed(connection, step)
        except asyncio.CancelledError:
            # The server has aborted the call, which may have held a run.
            await quietly(run_async(connection, flow_calls.reap_sessions()))
            raise
        finally:
            self._connection = None
            await connection.close()

    async def _run_timed(
        self, connection: psycopg.AsyncConnection[Any], step: dict[str, Any]
    ) -> dict[str, Any]:
        """Run a step that has a timeout, in a statement of its own: only that is timed."""
        await run_async(connection, flow_calls.limit_statements(step["timeout"]))
        try:
            step = await run_async(connection, flow_calls.run_timed(step))
        except psycopg.errors.QueryCanceled:
            log.debug("a step was done, and not committed, as its timeout was over")
        await run_async(connection, flow_calls.limit_statements(0))
        return step
