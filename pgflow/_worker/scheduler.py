"""The scheduler: fires due schedules, and computes their next slots.

The database decides what is due, and lets one worker at a time look (``sql/events/schedules.sql``).
Cron expressions are evaluated here, in a thread, because one may take a while. Only punctuality
depends on the scheduler: a late slot is found by the next look of any worker.

Before its first look, a worker reports which schedules its code declares. It fires missed slots
before it updates the schedules that have changed, so these slots are those of the old code. If
workers declare a schedule differently, the database chooses.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import NamedTuple

from pgflow._db.calls import schedules as calls
from pgflow._db.calls.schedules import Kept, ToRefill
from pgflow._db.failures import DATABASE_ERRORS
from pgflow._flow.schedules import declarations_of
from pgflow._model.schedules import Refill, read_spec, refill
from pgflow._worker.context import WorkerContext
from pgflow._worker.notifications import Notifications
from pgflow._worker.parts import Loop, wait_for
from pgflow.errors import PgflowError
from pgflow.logs import redacted
from pgflow.texts import without_secrets

log = logging.getLogger("pgflow")

SCHEDULES_A_ROUND = 100
FIRST_SECONDS = 1.0
"""Delay of the first look of a worker without schedules, whose start has more urgent work."""
TROUBLE_SECONDS = 5.0
LEAST_SECONDS = 0.005


class Fired(NamedTuple):
    """Result of firing all due slots.

    Attributes:
        runs: Number of runs that were started.
        next_seconds: Time until the next slot is due; None if there is none.
    """

    runs: int
    next_seconds: float | None


class Scheduler(Loop):
    """Fires schedules. It keeps the schedules of the code, the worker's number under which they are
    declared, and the request to look at once.

    Args:
        notifications: Announces the lanes in which runs were started.
    """

    name = "the loop of schedules"

    def __init__(self, context: WorkerContext, notifications: Notifications) -> None:
        super().__init__(context.tasks)
        self._control = context.control
        self._life = context.life
        self._poll = context.wanted.poll
        self._declared = declarations_of(context.definitions.workflows.values())
        self._notifications = notifications
        self._declared_as: int | None = None
        self._declaring = asyncio.Lock()
        self._wanted = asyncio.Event()

    def look_now(self) -> None:
        """Look for due slots at once."""
        self._wanted.set()

    async def loop(self) -> None:
        """Look when a slot is due, if it is this worker's turn."""
        wait = 0.0 if self._declared else FIRST_SECONDS
        while True:
            await wait_for(self._wanted, wait)
            self._wanted.clear()
            if self._life.is_stopping:
                wait = TROUBLE_SECONDS
                continue
            try:
                await self._declare()
                kept = await self._round(at_once=False)
                wait = 0.0 if kept.refills else kept.wait_seconds or 0.0
                wait = max(wait, LEAST_SECONDS)
            except (*DATABASE_ERRORS, PgflowError) as error:
                wait = TROUBLE_SECONDS
                log.warning("cannot keep the schedules: %s", redacted(error))

    async def fire(self) -> Fired:
        """Fire all due slots at once, even if it is another worker's turn."""
        await self._declare()
        return await self._fire_all()

    async def _fire_all(self) -> Fired:
        runs = 0
        while True:
            kept = await self._round(at_once=True)
            runs += kept.fired
            if not kept.fired and not any(one.has_none for one in kept.refills):
                return Fired(runs, kept.wait_seconds)

    async def _round(self, *, at_once: bool) -> Kept:
        kept = await self._control.ask(
            calls.keep_schedules(self._life.worker_id, SCHEDULES_A_ROUND, at_once=at_once)
        )
        for name in kept.undeclared:
            log.warning(
                "schedule %s is due, but no living worker's code declares it: it starts "
                "nothing until one does. To remove it for good: pgflow schedules remove %s",
                name,
                name,
            )
        for trouble in kept.troubles:
            log.error("%s", trouble)
        if kept.lanes:
            self._notifications.ready(kept.lanes, [])
        if kept.cancelled:
            self._poll()
        if kept.refills:
            answers = await asyncio.to_thread(compute, kept.refills)
            for one, answer in answers:
                if isinstance(answer, str):
                    log.warning("schedule %s cannot be evaluated: %s", one.name, answer)
            await self._control.ask(calls.refill_schedules(answers))
        return kept

    async def _declare(self) -> None:
        """Declare the schedules of the code, once for each registration of the worker."""
        async with self._declaring:
            worker_id = self._life.worker_id
            if not self._declared or self._declared_as == worker_id:
                return
            names = [one["name"] for one in self._declared]
            await self._control.ask(calls.attach_schedules(worker_id, names))
            # Before declaring: missed slots belong to the old expression.
            await self._fire_all()
            query = calls.declare_schedules(worker_id, self._declared)
            for name in await self._control.ask(query):
                log.info("schedule %s is set as the code declares it", name)
            self._declared_as = worker_id


def compute(refills: Sequence[ToRefill]) -> list[tuple[ToRefill, Refill | str]]:
    """Return the next slots of schedules, or the reason why there are none."""
    answers: list[tuple[ToRefill, Refill | str]] = []
    for one in refills:
        try:
            answers.append((one, refill(read_spec(one.spec), one.after, one.now)))
        except Exception as error:  # noqa: BLE001 - whatever it is, the others have their slots
            answers.append((one, without_secrets(str(error)) or type(error).__name__))
    return answers
