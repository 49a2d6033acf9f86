"""The courier of a node: brings letters to other nodes of the cluster.

Three transactions, each on one node: it leases due letters here, has the other node take them, and
strikes them out here. If it ends between them, another courier brings them again once the lease has
expired, and the other node knows their numbers (``pgflow/schema/cluster/node.sql``). Each node that
has letters is served by a task of its own, so that one that is silent holds up no other.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time

from pgflow._db.calls import cluster as calls
from pgflow._db.connect import ConnectOptions
from pgflow._db.failures import DATABASE_ERRORS
from pgflow._db.nodes import dsn_of_node
from pgflow._worker.connection import WorkerConnection
from pgflow._worker.context import WorkerContext
from pgflow._worker.rounds import Rounds
from pgflow.errors import PgflowError
from pgflow.logs import redacted

log = logging.getLogger("pgflow")

MOST = 200
"""Letters of one delivery."""
LEASE_SECONDS = 15.0
"""Time after which others bring what one courier has picked."""
ANSWER_SECONDS = 10.0
"""Longest wait for the answer of another node; shorter than the lease."""
LOOK_SECONDS = 0.1
"""Between looks for letters: nothing is notified, because NOTIFY would hold up the senders."""
SWEEP_SECONDS = 3600.0
CONNECT_SECONDS = 3
TROUBLE = (*DATABASE_ERRORS, PgflowError)


class Letters(Rounds):
    """Brings letters. It keeps a connection to each node that had some, and the tasks at work."""

    name = "the courier of the node"
    work = "look for letters to other nodes"

    def __init__(self, context: WorkerContext) -> None:
        super().__init__(context, retry_seconds=1)
        self._connect = context.connect
        self._look_seconds = min(LOOK_SECONDS, context.options.poll_seconds)
        self._links: dict[int, WorkerConnection] = {}
        self._working: dict[int, asyncio.Task[None]] = {}
        self._silent: set[int] = set()
        self._own: int | None = None
        self._sweep_at = time.monotonic() + SWEEP_SECONDS

    async def round(self) -> float:
        """Start a task for each node that has due letters, and free keys now and then."""
        if self._own is None:
            self._own = await self._control.ask(calls.this_node())
        for node in await self._control.ask(calls.due()):
            if node not in self._working:
                self._working[node] = self._tasks.spawn(self._work(node, self._own))
        if (now := time.monotonic()) >= self._sweep_at:
            self._sweep_at = now + SWEEP_SECONDS
            await self._control.ask(calls.sweep())
        return self._look_seconds

    async def _work(self, node: int, own: int) -> None:
        """Bring letters to a node until none is due."""
        try:
            while picked := await self._control.ask(calls.pick(node, MOST, LEASE_SECONDS)):
                await self._control.ask(calls.settle(await self._bring(node, own, picked)))
        except TROUBLE as error:
            log.warning("letters to node %s: %s", node, redacted(error))
        finally:
            del self._working[node]

    async def _bring(self, node: int, own: int, picked: calls.Picked) -> str:
        """Return the verdicts of a node on letters; that it is silent, if it does not answer."""
        try:
            link = self._control if node == own else await self._link(node)
            verdicts = await link.ask(calls.receive(own, picked))
        except TROUBLE as error:
            if node not in self._silent:
                self._silent.add(node)
                log.warning("node %s is silent, its letters wait: %s", node, redacted(error))
            await self._cut(node)
            why = redacted(error)
            letters = json.loads(picked.letters)
            return json.dumps(
                [{"id": one["id"], "verdict": "silent", "error": why} for one in letters]
            )
        if node in self._silent:
            self._silent.discard(node)
            log.info("node %s answers again", node)
        return verdicts

    async def _link(self, node: int) -> WorkerConnection:
        if node not in self._links:
            found = [n for n in await self._control.ask(calls.list_nodes()) if n.node == node]
            if not found:
                raise PgflowError(f"the cluster has no node {node}")
            options = ConnectOptions(
                dsn_of_node(self._connect.dsn, found[0]),
                self._connect.prepare_threshold,
                CONNECT_SECONDS,
            )
            self._links[node] = WorkerConnection(options, "pgflow courier", ANSWER_SECONDS)
        return self._links[node]

    async def _cut(self, node: int) -> None:
        if (link := self._links.pop(node, None)) is not None:
            await link.close()

    async def stop(self) -> None:
        """Close the connections to other nodes."""
        for node in list(self._links):
            await self._cut(node)
