"""The loop of workflows in SQL: the database works on them itself, and a worker has it do so.

It looks whether such runs are ready, and if so calls the procedure `pgflow.work` on a connection of
its own until none is. That call is a worker of its own in the database, by its session
(``sql/flows/work.sql``): nothing of a run in SQL comes by here. Timers and signals are found by the
poller, as they are for all runs.
"""

from __future__ import annotations

import asyncio
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
    """See the module. It keeps the connection on which a call is under way.

    Args:
        queues: Queues that the worker serves.
        poll_seconds: Between two looks that find nothing.
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
        """Another server is the primary since then: the call ends."""
        cut_if_left(self._connection, left_at)

    async def loop(self) -> None:
        """Looks, and works until nothing is ready."""
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
            await connection.execute(flow_calls.WORK, (self._queues,))
        except asyncio.CancelledError:
            # The server has broken off the call, which held a run perhaps.
            await quietly(run_async(connection, flow_calls.reap_sessions()))
            raise
        finally:
            self._connection = None
            await connection.close()
