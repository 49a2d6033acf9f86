# Made by tools/colours.py from pgflow/_client/_async/schedules.py; edit that one.
"""Schedules, as people and programs set them: making, pausing, triggering and backfilling one."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pgflow._client._sync.budgets import Budgets
from pgflow._db.calls import schedules
from pgflow._db.calls.schedules import BackfilledSlot, BackfillOverlap
from pgflow._flow.schedules import Schedule, told_of
from pgflow._flow.workflow import Workflow
from pgflow._model.schedules import MOST_LATE, read_spec, slots_between


class Schedules(Budgets):
    """The part of a client that looks after schedules."""

    def set_schedule(
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
        """Makes a schedule, or sets it anew: for schedules that are not known when the code is
        written, such as one for each customer.

        Args:
            name: Its name, at most 90 characters: the first part of the keys of its runs.
            schedule: Its slots and policies, as ``pgflow.schedule(...)`` makes them.
            workflow: Workflow of its runs; with ``options()`` for queue, priority and timeout.
            *args: Arguments of its runs. A parameter of type :class:`pgflow.Slot` gets the slot.
            why: The reason, kept with the change.
            by: Name of whoever says so.
            **kwargs: Arguments by name.

        Returns:
            True if that has changed anything.

        Raises:
            TypeError: The arguments do not fit the workflow.
            InvalidArgument: The name is too long.
        """
        told, text = told_of(name, schedule, workflow, args, kwargs)
        labels = workflow.start_options.labels or None
        return self._ask(schedules.set_schedule(told, text, labels, why, by))

    def remove_schedule(self, name: str, *, why: str | None = None, by: str | None = None) -> None:
        """Removes a schedule. Its runs stay.

        One that code declares comes back with the next worker: remove it from the code first.

        Args:
            name: Its name.
            why: The reason, kept with the change.
            by: Name of whoever says so.

        Raises:
            RunNotFound: There is no such schedule.
        """
        self._ask(schedules.remove_schedule(name, why, by), once=True)

    def pause_schedule(self, name: str, *, why: str | None = None, by: str | None = None) -> bool:
        """Has a schedule start nothing until it is resumed. Slots that pass meanwhile start no run.

        Args:
            name: Its name.
            why: The reason, shown with the schedule.
            by: Name of whoever says so.

        Returns:
            False if it is paused already.

        Raises:
            RunNotFound: There is no such schedule.
        """
        return self._ask(schedules.pause_schedule(name, why, by))

    def resume_schedule(self, name: str, *, why: str | None = None, by: str | None = None) -> bool:
        """Has a paused schedule go on with the slots to come.

        Args:
            name: Its name.
            why: The reason, kept with the change.
            by: Name of whoever says so.

        Returns:
            False if it is not paused.

        Raises:
            RunNotFound: There is no such schedule.
        """
        return self._ask(schedules.resume_schedule(name, why, by))

    def trigger_schedule(
        self,
        name: str,
        *,
        slot_at: datetime | None = None,
        why: str | None = None,
        by: str | None = None,
    ) -> str:
        """Starts a run of a schedule now, paused or not, whatever runs of it are open.

        Args:
            name: Its name.
            slot_at: The slot that it is of; a second call with it finds the same run. The present
                time on the database's clock if not given.
            why: The reason, kept with the run's key.
            by: Name of whoever says so.

        Returns:
            The key of the run.

        Raises:
            RunNotFound: There is no such schedule.
        """
        started = self._ask(schedules.trigger_schedule(name, why, by, slot_at), wakes=True)
        return started.run_key

    def backfill_schedule(
        self,
        name: str,
        first: datetime,
        last: datetime,
        *,
        overlap: BackfillOverlap = "buffer_all",
        why: str | None = None,
        by: str | None = None,
    ) -> list[BackfilledSlot]:
        """Has the slots of a range in the past start their runs. A slot that has a run gets no
        second one.

        Args:
            name: Name of the schedule.
            first: Begin of the range, with a time zone; a slot at this time is in it.
            last: End of the range, as ``first``.
            overlap: ``buffer_all``: one run after the other. ``allow``: all at once.
            why: The reason, kept with the range.
            by: Name of whoever says so.

        Returns:
            What became of each slot: ``started``, ``buffered``, or ``there`` if it had a run.

        Raises:
            RunNotFound: There is no such schedule.
            InvalidArgument: There are more than 1,000 slots in the range, some are in the future,
                or a time has no zone.
        """
        spec = read_spec(self._ask(schedules.read_schedule_spec(name)))
        slots = slots_between(spec, first, last, MOST_LATE)
        found = self._ask(schedules.backfill_schedule(name, slots, overlap, why, by), wakes=True)
        return found.slots
