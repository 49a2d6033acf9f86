"""Couriers: each delivers the events of one relay, batch after batch.

An outside target gets events with different keys in parallel, under a lease that is renewed
meanwhile. A worker that was frozen must not deliver events that another worker has taken over. So
no delivery starts once the lease may have expired by this process's own clock. A target in this
database gets its events in the transaction that settles them: it locks the relay's row, and rolls
back if the relay is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import psycopg

from pgflow._db.calls import outbox as calls
from pgflow._db.calls import start
from pgflow._db.calls.outbox import TakenEvent
from pgflow._db.drivers import is_raised_in
from pgflow._db.failures import DATABASE_ERRORS, is_infrastructure
from pgflow._db.query import Query, run_by, run_through
from pgflow._engine.loop import is_interrupt
from pgflow._flow.relays import Relay, Sink, Statement, TryLater, Undeliverable
from pgflow._flow.run_info import EPOCH
from pgflow._flow.workflow import Workflow
from pgflow._model.envelopes import is_hiding, open_text, seal_metadata
from pgflow._model.events import Event
from pgflow._model.protocol import DeliveryRow
from pgflow._transactions.provider import (
    AsyncTransaction,
    AsyncTransactionProvider,
    TransactionProvider,
)
from pgflow._worker.context import WorkerContext
from pgflow._worker.notifications import Notifications
from pgflow._worker.options import Definitions
from pgflow.errors import DefinitionError
from pgflow.logs import redacted
from pgflow.texts import printable

log = logging.getLogger("pgflow")


class TargetFailed(Exception):
    """A target has failed, with this error."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error


@contextmanager
def judged(transaction: Any = None) -> Iterator[None]:
    """Raise errors of a target in the block as TargetFailed.

    Args:
        transaction: The transaction that the target works in; None if it has none of pgflow's.

    Raises:
        TargetFailed: The target has failed.
    """
    try:
        yield
    except (TargetFailed, GeneratorExit):
        raise
    except asyncio.CancelledError as error:
        if _is_being_cancelled():
            raise
        raise TargetFailed(asyncio.CancelledError("the target cancelled itself")) from error
    except BaseException as error:
        if is_interrupt(error):
            raise
        if (
            transaction is not None
            and is_infrastructure(error)
            and is_raised_in(transaction, error)
        ):
            raise
        raise TargetFailed(error) from error


def _is_being_cancelled() -> bool:
    try:
        task = asyncio.current_task()
    except RuntimeError:  # a thread has no loop and cannot be cancelled
        return False
    return task is not None and task.cancelling() > 0


BATCH = 100
# Of the 30 seconds, renewals may fail twice (at 8 and 16) before SURE_SECONDS is over; in the last
# 6 no delivery starts.
LEASE_SECONDS = 30.0
RENEW_SECONDS = 8.0
SURE_SECONDS = 24.0
"""Age of the last renewal after which no delivery starts: another worker may take the relay
soon.
"""
LOOKS_BEHIND = 50
"""Most waits in a row for a slow transaction. Later, polls find its events."""
LAST_WORD_SECONDS = 5.0


class _Lost(Exception):
    """Another worker has the relay by now."""


class Courier(ABC):
    """Delivers the events of one relay.

    Args:
        relay: The relay.
        token: Fence of this worker.
    """

    def __init__(self, context: WorkerContext, relay: Relay, token: int) -> None:
        self.relay = relay
        self.token = token
        # Runs queries that need no transaction of their own.
        self.control = context.control
        self.definitions = context.definitions

    async def bring(self) -> bool:
        """Deliver a batch; return False if there is nothing to deliver now."""
        relay = self.relay
        for _ in range(LOOKS_BEHIND):
            began = time.monotonic()
            taken = await self.control.ask(
                calls.take_events(relay.name, self.token, LEASE_SECONDS, BATCH, relay.circuit)
            )
            if taken.events:
                return await self.deliver(taken.events, began)
            if taken.state != "behind":
                return False
            await asyncio.sleep(taken.wait_seconds or 0)
        return False

    @abstractmethod
    async def deliver(self, events: list[TakenEvent], began: float) -> bool:
        """Deliver a batch and settle it; return False if the relay is lost.

        Args:
            events: In the order in which they are due.
            began: Latest start of the lease (``time.monotonic``).
        """

    async def close(self) -> None:  # noqa: B027 - most targets hold nothing open
        """Close the resources that the target holds open."""

    def event_of(self, taken: TakenEvent) -> Event:
        """Return the event as a target gets it."""
        what = f"the payload of event {taken.event_id}"
        return Event(
            taken.event_id,
            taken.topic,
            taken.key,
            json.loads(open_text(self.definitions.envelopes, taken.payload, what)),
            EPOCH + timedelta(microseconds=taken.at_us),
        )

    def failed(self, taken: TakenEvent, error: BaseException) -> DeliveryRow:
        """Return the result of a failed attempt: dead, or failed with a delay."""
        attempts = taken.attempts + 1
        retries = self.relay.retries
        is_dead = isinstance(error, Undeliverable) or attempts >= retries.max_attempts
        delay = error.seconds if isinstance(error, TryLater) else retries.delay_seconds(attempts)
        why = printable(f"{type(error).__name__}: {redacted(error)}")[:2000]
        log.warning(
            "relay %s: event %d %s: %s",
            self.relay.name,
            taken.event_id,
            "is dead" if is_dead else "failed",
            why,
        )
        if is_dead:
            return DeliveryRow(taken.event_id, "dead", why)
        return DeliveryRow(taken.event_id, "failed", why, max(delay, 0.0))

    def settling(self, upto: int | None, results: Sequence[DeliveryRow]) -> Query[bool]:
        """Return the query that settles a batch."""
        relay = self.relay
        return calls.settle_events(
            relay.name,
            self.token,
            upto,
            results,
            LEASE_SECONDS,
            relay.circuit,
            relay.cooldown_seconds,
        )


class _Lease:
    """The lease of a relay during a batch."""

    def __init__(self, began: float) -> None:
        self.prolonged = began
        self.is_lost = False

    @property
    def is_sure(self) -> bool:
        """True if no other worker can have the relay."""
        return not self.is_lost and time.monotonic() - self.prolonged < SURE_SECONDS


# ---------------------------------------------------------------- outside


class OutsideCourier(Courier):
    """Passes events to a sink or a handler function."""

    async def deliver(self, events: list[TakenEvent], began: float) -> bool:
        """See :class:`Courier`."""
        done: dict[int, DeliveryRow] = {}
        async with self._prolonged(began) as lease:
            await self._hand_over(events, lease, done)
        if lease.is_lost:
            return False
        fresh = [event for event in events if event.is_fresh]
        is_cut_short = not lease.is_sure or self._is_open(done)
        reached = [e.event_id for e in fresh if not is_cut_short or e.event_id in done]
        upto = max(reached, default=None)
        behind = [
            DeliveryRow(event.event_id, "behind")
            for event in fresh
            if upto is not None and event.event_id <= upto and event.event_id not in done
        ]
        settled = await self.control.insist(self.settling(upto, [*done.values(), *behind]))
        return settled and not is_cut_short

    async def close(self) -> None:
        """Closes the sink."""
        if isinstance(self.relay.to, Sink):
            with contextlib.suppress(Exception):
                async with asyncio.timeout(LAST_WORD_SECONDS):
                    await self.relay.to.close()

    def _is_open(self, done: dict[int, DeliveryRow]) -> bool:
        """Return True once the target has failed so often that delivery should pause."""
        failed = sum(result.outcome != "ok" for result in done.values())
        return failed == len(done) and failed >= self.relay.circuit

    async def _hand_over(
        self, events: list[TakenEvent], lease: _Lease, done: dict[int, DeliveryRow]
    ) -> None:
        lanes: dict[str | int, list[TakenEvent]] = {}
        for event in events:
            lanes.setdefault(event.event_id if event.key is None else event.key, []).append(event)
        free = asyncio.Semaphore(self.relay.parallel)

        async def bring(lane: list[TakenEvent]) -> None:
            async with free:
                for event in lane:
                    if event.is_behind or not lease.is_sure or self._is_open(done):
                        return
                    done[event.event_id] = result = await self._try(event)
                    if result.outcome == "failed":
                        return

        async with asyncio.TaskGroup() as group:
            for lane in lanes.values():
                group.create_task(bring(lane))

    async def _try(self, taken: TakenEvent) -> DeliveryRow:
        try:
            event = self.event_of(taken)
            with judged():
                async with asyncio.timeout(self.relay.timeout_seconds):
                    await self._call(event)
        except TargetFailed as failed:
            return self.failed(taken, failed.error)
        except Exception as error:  # noqa: BLE001 - an event that cannot be read has failed, too
            return self.failed(taken, error)
        return DeliveryRow(taken.event_id, "ok")

    async def _call(self, event: Event) -> None:
        to = self.relay.to
        if isinstance(to, Sink):
            await to.deliver(event, self.relay.name)
        elif inspect.iscoroutinefunction(to):
            await to(event)
        else:
            await asyncio.to_thread(self._call_in_thread, event)

    def _call_in_thread(self, event: Event) -> None:
        handler: Any = self.relay.to
        with judged():
            handler(event)

    @asynccontextmanager
    async def _prolonged(self, began: float) -> AsyncIterator[_Lease]:
        """Renew the lease during the block. Losing it ends the block."""
        lease = _Lease(began)
        me = asyncio.current_task()
        assert me is not None
        # Swallow the cancel of `_renew` only; one from outside goes on.
        cancelling = me.cancelling()
        renewing = asyncio.create_task(self._renew(lease, me))
        try:
            yield lease
        except asyncio.CancelledError:
            if not lease.is_lost or me.uncancel() > cancelling:
                raise
        finally:
            renewing.cancel()
            await asyncio.wait([renewing])

    async def _renew(self, lease: _Lease, courier: asyncio.Task[Any]) -> None:
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            asked = time.monotonic()
            query = calls.hold_relay(self.relay.name, self.token, LEASE_SECONDS)
            try:
                if await self.control.ask(query):
                    lease.prolonged = asked
                    continue
            except DATABASE_ERRORS as error:
                log.warning("relay %s: %s", self.relay.name, redacted(error))
                if lease.is_sure:
                    continue
            lease.is_lost = True
            log.warning("relay %s is lost to another worker", self.relay.name)
            courier.cancel()
            return


# ---------------------------------------------------------------- in this database


class InsideCourier(Courier):
    """Runs a statement for each event, in the transaction that settles it. It tries a whole batch
    in one transaction, then one event at a time if that failed.
    """

    def __init__(
        self, context: WorkerContext, relay: Relay, token: int, notifications: Notifications
    ) -> None:
        super().__init__(context, relay, token)
        self._notifications = notifications
        self._provider = self._find_provider()

    def _find_provider(self) -> Any:
        """Return the provider of the transactions in which events are settled."""
        return _provider(self.definitions, psycopg.AsyncConnection, is_async=True)

    async def deliver(self, events: list[TakenEvent], began: float) -> bool:
        """See :class:`Courier`."""
        del began
        if len(events) > 1 and not any(event.is_behind for event in events):
            try:
                await self._settle_together(events)
            except _Lost:
                return False
            except Exception as error:
                if is_infrastructure(error):
                    raise
            else:
                return True
        return await self._one_by_one(events)

    async def _settle_together(self, events: list[TakenEvent]) -> None:
        upto = max((event.event_id for event in events if event.is_fresh), default=None)
        results = [DeliveryRow(event.event_id, "ok") for event in events]
        await self.settle_with(events, upto, results)

    async def _one_by_one(self, events: list[TakenEvent]) -> bool:
        stuck: set[str | None] = set()
        failures = 0
        for event in events:
            upto = event.event_id if event.is_fresh else None
            if event.is_behind or event.key in stuck:
                if event.is_fresh and not await self.control.insist(
                    self.settling(upto, [DeliveryRow(event.event_id, "behind")])
                ):
                    return False
                continue
            try:
                await self.settle_with([event], upto, [DeliveryRow(event.event_id, "ok")])
                failures = 0
            except _Lost:
                return False
            except Exception as raised:
                error = raised.error if isinstance(raised, TargetFailed) else raised
                if error is raised and is_infrastructure(error):
                    raise
                result = self.failed(event, error)
                if not await self.control.insist(self.settling(upto, [result])):
                    return False
                if event.key is not None and result.outcome == "failed":
                    stuck.add(event.key)
                failures += 1
                if failures >= self.relay.circuit:
                    return False
        return True

    async def settle_with(
        self, events: list[TakenEvent], upto: int | None, results: list[DeliveryRow]
    ) -> None:
        """Run the events' statements and settle them, in one transaction.

        Raises:
            _Lost: Another worker has the relay by now; the transaction is rolled back.
        """
        queries = [self._statement(self.event_of(event)) for event in events]
        lanes: set[int] = set()
        async with self._provider.begin_async("read committed") as transaction:
            await self.hold(transaction)
            for query in queries:
                answer = await run_by(transaction.execute, query)
                if isinstance(answer, start.Started) and answer.is_new:
                    lanes.add(answer.lane_id)
            await self.end(transaction, upto, results)
        if lanes:
            self._notifications.ready(sorted(lanes), [])

    async def hold(self, transaction: AsyncTransaction) -> None:
        """Lock the relay for this transaction, behind the fence."""
        query = calls.hold_relay(self.relay.name, self.token, LEASE_SECONDS)
        if not await run_by(transaction.execute, query):
            raise _Lost

    async def end(
        self, transaction: AsyncTransaction, upto: int | None, results: list[DeliveryRow]
    ) -> None:
        """Settle, and commit."""
        if not await run_by(transaction.execute, self.settling(upto, results)):
            raise _Lost
        await transaction.commit()

    def _statement(self, event: Event) -> Query[Any]:
        to = self.relay.to
        if isinstance(to, Workflow):
            return self._start(to, event)
        assert isinstance(to, Statement)
        return to.statement(event, self.relay.name)

    def _start(self, workflow: Workflow[..., Any], event: Event) -> Query[start.Started]:
        """Return the start of a run. Its key names the event, so repeated deliveries start
        one run.
        """
        key = f"{self.relay.name}/{event.id}"
        options = replace(workflow.start_options, key=key)
        for interceptor in self.definitions.interceptors:
            options = interceptor.start(workflow.name, options)
        envelopes = self.definitions.envelopes
        metadata = seal_metadata(envelopes, options.metadata) or {}
        given = self.relay.input_of(event)
        text = workflow.encode_input((), given, is_hidden=is_hiding(envelopes))
        if envelopes is not None:
            what = f"the input of workflow {workflow.name}"
            text = envelopes.seal_compared(text, what, key, workflow.defaults_text)
        return start.start_run(workflow.name, text, key, replace(options, metadata=metadata))


class HandlerCourier(InsideCourier):
    """Calls a handler with a connection and an event, in the transaction that settles the event."""

    def _find_provider(self) -> Any:
        self._is_async = inspect.iscoroutinefunction(self.relay.to)
        return _provider(self.definitions, self.relay.connection, is_async=self._is_async)

    async def deliver(self, events: list[TakenEvent], began: float) -> bool:
        """See :class:`Courier`."""
        del began
        return await self._one_by_one(events)

    async def settle_with(
        self, events: list[TakenEvent], upto: int | None, results: list[DeliveryRow]
    ) -> None:
        """See :class:`InsideCourier`."""
        (taken,) = events
        event = self.event_of(taken)
        handler: Any = self.relay.to
        if not self._is_async:
            await asyncio.to_thread(self._in_thread, handler, event, upto, results)
            return
        async with self._provider.begin_async("read committed") as transaction:
            await self.hold(transaction)
            with judged(transaction):
                async with asyncio.timeout(self.relay.timeout_seconds):
                    await handler(transaction.connection, event)
                await transaction.flush()
            await self.end(transaction, upto, results)

    def _in_thread(
        self, handler: Any, event: Event, upto: int | None, results: list[DeliveryRow]
    ) -> None:
        with self._provider.begin("read committed") as transaction:
            query = calls.hold_relay(self.relay.name, self.token, LEASE_SECONDS)
            if not run_through(transaction.execute, query):
                raise _Lost
            with judged(transaction):
                handler(transaction.connection, event)
                transaction.flush()
            if not run_through(transaction.execute, self.settling(upto, results)):
                raise _Lost
            transaction.commit()


def _provider(definitions: Definitions, annotation: Any, *, is_async: bool) -> Any:
    wanted = AsyncTransactionProvider if is_async else TransactionProvider
    for provider in definitions.providers:
        if isinstance(provider, wanted) and provider.provides(annotation):
            return provider
    raise DefinitionError(
        f"no provider hands out {annotation!r}, which the handler of a relay takes: pass "
        "one with App(providers=[...])"
    )


def make_courier(
    context: WorkerContext, relay: Relay, token: int, notifications: Notifications
) -> Courier:
    """Return the courier for the relay's target.

    Raises:
        DefinitionError: No provider hands out the connection that its handler takes.
    """
    if relay.connection is not None:
        return HandlerCourier(context, relay, token, notifications)
    if isinstance(relay.to, (Workflow, Statement)):
        return InsideCourier(context, relay, token, notifications)
    return OutsideCourier(context, relay, token)
