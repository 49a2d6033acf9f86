"""The loop of relays: delivers events of the outbox to the targets of the app's relays.

The database decides which relays have something to deliver, leases each to one worker, and decides
what comes next (``sql/events/relays.sql``). ``couriers`` delivers. This loop decides which courier
runs when.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets

from pgflow._db.calls import outbox as calls
from pgflow._db.failures import DATABASE_ERRORS
from pgflow._worker.context import WorkerContext
from pgflow._worker.couriers import Courier, make_courier
from pgflow._worker.notifications import Notifications
from pgflow._worker.rounds import Rounds
from pgflow.errors import PgflowError
from pgflow.logs import redacted

log = logging.getLogger("pgflow")


class Relays(Rounds):
    """Runs couriers. It keeps the task of each relay that is being delivered.

    Args:
        notifications: Announces runs that were started.
    """

    name = "the loop of relays"
    work = "look for events of relays"

    def __init__(self, context: WorkerContext, notifications: Notifications) -> None:
        self._poll_seconds = context.options.poll_seconds
        super().__init__(context, retry_seconds=self._poll_seconds)
        relays = context.definitions.relays
        self._token = secrets.randbits(62) + 1
        self._couriers = {
            relay.name: make_courier(context, relay, self._token, notifications)
            for relay in relays.values()
        }
        self._undeclared = dict(relays)
        self._working: dict[str, asyncio.Task[None]] = {}

    async def round(self) -> float:
        """Start couriers, and return the seconds until the next look."""
        for relay in list(self._undeclared.values()):
            query = calls.declare_relay(relay.name, relay.topics, relay.target, relay.start)
            if await self._control.ask(query):
                log.info("relay %s is new: it begins with the %s event", relay.name, relay.start)
            del self._undeclared[relay.name]
        idle = [name for name in self._couriers if name not in self._working]
        if not idle:
            return self._poll_seconds
        news = await self._control.ask(calls.relay_news(idle, self._token))
        for name in news.names:
            self._working[name] = self._tasks.spawn(self._work(name, self._couriers[name]))
        if news.wait_seconds is None:
            return self._poll_seconds
        return min(self._poll_seconds, max(news.wait_seconds, 0.01))

    async def _work(self, name: str, courier: Courier) -> None:
        """Deliver batches until there is nothing to deliver."""
        try:
            while await courier.bring():
                pass
        except (*DATABASE_ERRORS, PgflowError) as error:
            log.warning("relay %s: %s", name, redacted(error))
        finally:
            del self._working[name]

    async def stop(self) -> None:
        """Release the relays, so that other workers need not wait for the leases to expire."""
        for name, courier in self._couriers.items():
            with contextlib.suppress(*DATABASE_ERRORS, PgflowError):
                await self._control.ask(calls.release_relay(name, self._token))
            await courier.close()
