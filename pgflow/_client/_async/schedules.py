"""Client methods for schedules: set, pause, trigger and backfill."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from pgflow._client._async.budgets import AsyncBudgets
from pgflow._db.calls import schedules
from pgflow._db.calls.schedules import BackfilledSlot, BackfillOverlap, StartedSlot
from pgflow._flow.schedules import Schedule, told_of
from pgflow._flow.workflow import Workflow
from pgflow._model.durations import Duration, duration
from pgflow._model.options import DEFAULT_QUEUE
from pgflow._model.schedules import MOST_LATE, declaration, read_spec, slots_between


class AsyncSchedules(AsyncBudgets):
    """Schedule methods of a client."""

    async def set_schedule(
        self,
        name: str,
        schedule: Schedule,
        workflow: Workflow[..., Any],
        /,
        *args: Any,
        why: str | None = None,
        by: str | None = None,
        **kwargs: Any,
    ) -> bool:
        """Create a schedule, or replace an existing one. Use it for schedules that you do not know
        when you write the code, such as one for each customer.

        Args:
            name: Its name, at most 90 characters: the first part of the keys of its runs.
            schedule: Its slots and policies, as ``pgflow.schedule(...)`` makes them.
            workflow: Workflow of its runs; with ``options()`` for queue, priority and timeout.
            *args: Arguments of its runs. A parameter of type :class:`pgflow.Slot` gets the slot.
            why: The reason, kept with the change.
            by: Name of the person or service that asks.
            **kwargs: Arguments by name.

        Returns:
            True if the schedule changed.

        Raises:
            TypeError: The arguments do not fit the workflow.
            InvalidArgument: The name is too long, or the workflow has the option ``node`` or
                ``near``.
        """
        declared, text = told_of(name, schedule, workflow, args, kwargs)
        labels = workflow.start_options.labels or None
        return await self._ask(schedules.set_schedule(declared, text, labels, why, by))

    async def set_schedule_by_name(
        self,
        name: str,
        schedule: Schedule,
        workflow: str,
        arguments: Mapping[str, Any],
        *,
        queue: str = DEFAULT_QUEUE,
        priority: int = 0,
        timeout: Duration | None = None,
        labels: Mapping[str, str] | None = None,
        slot_parameter: str | None = None,
        why: str | None = None,
        by: str | None = None,
    ) -> bool:
        """Create a schedule, or replace an existing one, without the code of its workflow.

        Args:
            name: As for :meth:`set_schedule`.
            schedule: Its slots and policies.
            workflow: Name of the workflow of its runs.
            arguments: Arguments of its runs by name; nothing checks them here.
            queue: Queue of its runs.
            priority: Their priority; lower numbers go first.
            timeout: Time after which a run that is not over is cancelled; None for never.
            labels: Their labels.
            slot_parameter: Name of the parameter that gets the slot; None for none.
            why: The reason, kept with the change.
            by: Name of the person or service that asks.

        Returns:
            True if the schedule changed.

        Raises:
            InvalidArgument: The name is too long.
        """
        declared = declaration(
            replace(schedule.declared, name=name),
            workflow,
            queue,
            priority,
            duration(timeout, "timeout of a schedule"),
            "",
            slot_parameter,
        )
        text = json.dumps(arguments)
        return await self._ask(schedules.set_schedule(declared, text, labels or None, why, by))

    async def remove_schedule(
        self, name: str, *, why: str | None = None, by: str | None = None
    ) -> bool:
        """Remove a schedule. Its runs stay.

        Args:
            name: Its name.
            why: The reason, kept with the change.
            by: Name of the person or service that asks.

        Returns:
            True if code of a living worker declares the schedule: the next worker restores it, so
            remove it from the code first.

        Raises:
            RunNotFound: The schedule does not exist.
        """
        return await self._ask(schedules.remove_schedule(name, why, by), once=True)

    async def pause_schedule(
        self, name: str, *, why: str | None = None, by: str | None = None
    ) -> bool:
        """Pause a schedule: it starts no runs until you resume it. Slots that pass meanwhile are
        skipped.

        Args:
            name: Its name.
            why: The reason, shown with the schedule.
            by: Name of the person or service that asks.

        Returns:
            False if it was already paused.

        Raises:
            RunNotFound: The schedule does not exist.
        """
        return await self._ask(schedules.pause_schedule(name, why, by))

    async def resume_schedule(
        self, name: str, *, why: str | None = None, by: str | None = None
    ) -> bool:
        """Resume a paused schedule from its next slot on.

        Args:
            name: Its name.
            why: The reason, kept with the change.
            by: Name of the person or service that asks.

        Returns:
            False if it was not paused.

        Raises:
            RunNotFound: The schedule does not exist.
        """
        return await self._ask(schedules.resume_schedule(name, why, by))

    async def trigger_schedule(
        self,
        name: str,
        *,
        slot_at: datetime | None = None,
        why: str | None = None,
        by: str | None = None,
    ) -> StartedSlot:
        """Start a run of a schedule now, even if it is paused or has open runs.

        Args:
            name: Its name.
            slot_at: Slot of the run, by default the present time of the database's clock. A second
                call with the same slot finds the same run.
            why: The reason, kept with the run's key.
            by: Name of the person or service that asks.

        Returns:
            The run: its ``run_key``, and ``is_new``, which is False if the slot had it already.

        Raises:
            RunNotFound: The schedule does not exist.
        """
        return await self._ask(schedules.trigger_schedule(name, why, by, slot_at), wakes=True)

    async def backfill_schedule(
        self,
        name: str,
        first: datetime,
        last: datetime,
        *,
        overlap: BackfillOverlap = "buffer_all",
        why: str | None = None,
        by: str | None = None,
    ) -> list[BackfilledSlot]:
        """Start runs for the past slots of a range. Slots that already have a run are skipped.

        Args:
            name: Name of the schedule.
            first: Begin of the range, with a time zone; a slot at this time is in it.
            last: End of the range, as ``first``.
            overlap: ``buffer_all``: one run after the other. ``allow``: all at once.
            why: The reason, kept with the range.
            by: Name of the person or service that asks.

        Returns:
            The outcome of each slot: ``started``, ``buffered``, or ``there`` if it already had a
            run.

        Raises:
            RunNotFound: The schedule does not exist.
            InvalidArgument: The range has more than 1,000 slots, or slots in the future, or a time
                without a zone.
        """
        spec = read_spec(await self._ask(schedules.read_schedule_spec(name)))
        slots = slots_between(spec, first, last, MOST_LATE)
        found = await self._ask(
            schedules.backfill_schedule(name, slots, overlap, why, by), wakes=True
        )
        return found.slots
