"""Schedules as code declares them: ``@schedule`` above ``@workflow``."""

from __future__ import annotations

import inspect
import json
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import date, datetime, timedelta
from typing import Any, ParamSpec, TypeVar, overload

from pgflow._flow.workflow import Workflow, check_workflow
from pgflow._model.durations import Duration, duration
from pgflow._model.options import Slot
from pgflow._model.schedules import (
    EPOCH,
    CatchUp,
    Declared,
    Overlap,
    declaration,
    make_spec,
)
from pgflow.errors import DefinitionError

P = ParamSpec("P")
R = TypeVar("R")


class Schedule:
    """A schedule as :func:`schedule` makes it, to be put above a workflow or set by a client."""

    def __init__(self, declared: Declared) -> None:
        self.declared = declared

    @overload
    def __call__(self, wf: Workflow[[Slot], R], /) -> Workflow[[Slot], R]: ...
    @overload
    def __call__(self, wf: Workflow[[], R], /) -> Workflow[[], R]: ...
    def __call__(self, wf: Any, /) -> Any:
        if not isinstance(wf, Workflow):
            raise DefinitionError(
                f"@schedule must be above @workflow, and {wf!r} is not a workflow: swap them"
            )
        slot_parameter(wf)
        wf.start_options.refuse_place(f"a schedule of workflow {wf.name}")
        wf.origin.schedules.append(self.declared)
        return wf


def schedule(
    cron: str | Sequence[str] | None = None,
    *,
    tz: str = "UTC",
    overlap: Overlap | None = None,
    catch_up: CatchUp = "latest",
    every: Duration | None = None,
    offset: Duration | None = None,
    name: str | None = None,
    jitter: Duration | None = None,
    max_catch_up: int = 100,
    not_on: Iterable[date | str] = (),
    only_on: Iterable[date | str] = (),
    start_at: datetime | None = None,
    end_at: datetime | None = None,
) -> Schedule:
    """Declare a schedule that starts runs of a workflow.

    A slot is a time for which a run is to start. Each slot has one run at most, with the name of
    the schedule and the slot as its key, however many workers there are. A workflow may have one
    parameter, which gets the :class:`pgflow.Slot`, and several schedules with names of their own.

    Args:
        cron: Five fields: minute, hour, day of month, month, day of week. Six begin with seconds.
            ``@hourly``, ``@daily``, ``@weekly``, ``@monthly`` and ``@yearly`` stand for such. Of
            several expressions, each names slots.
        tz: Time zone of the fields and the days.
        overlap: Action when a run before it is open; ``skip`` if not given. ``skip``: none, so
            this slot has no run. ``buffer_one`` and ``buffer_all``: one slot, or all, wait for its
            end. ``cancel_other``: it is cancelled, and the next run follows. ``allow``: the next
            run starts beside it. With ``catch_up="all"``, say which: you are warned if not.
        catch_up: Treatment of slots that are late by more than a minute, because no worker was
            there. ``skip``: they start nothing, nor do those whose next one has been due for five
            seconds. ``latest``: the newest slot that is due starts a run. ``all``: each of them
            does.
        every: Interval between slots instead of ``cron``: its multiples since 1970.
        offset: Part of the interval by which slots are later than that.
        name: Name of the schedule; that of the workflow if not given.
        jitter: Longest time by which a slot is late on purpose, so that not all begin at once. It
            is always the same for one slot.
        max_catch_up: Most late slots that are caught up at once: the newest.
        not_on: Days without slots, such as holidays.
        only_on: Days that alone have slots.
        start_at: There are no slots before it.
        end_at: There are none after it.

    Raises:
        InvalidArgument: There are no such slots: an expression, a zone or another option is wrong.

    Example::

        @schedule("30 2 * * *", tz="Europe/London", overlap="skip", catch_up="latest")
        @workflow
        async def nightly(slot: Slot) -> None:
            await close_day(slot.at.date())
    """
    spec = make_spec(
        cron,
        every=every,
        offset=offset,
        tz=tz,
        not_on=not_on,
        only_on=only_on,
        start_at=start_at,
        end_at=end_at,
    )
    late = duration(jitter, "jitter= of a schedule") or timedelta(0)
    if overlap is None and catch_up == "all":
        warnings.warn(
            'a schedule with catch_up="all" starts no run for a slot that comes while the run '
            'before it is open, since overlap="skip" if it is not given: say overlap="buffer_all" '
            'for a run of each slot, or overlap="skip" if this is meant',
            stacklevel=2,
        )
    return Schedule(Declared(spec, name, overlap or "skip", catch_up, max_catch_up, late))


def slot_parameter(workflow: Workflow[..., Any]) -> str | None:
    """Return the name of the parameter that gets the slot; None if there is none.

    Raises:
        DefinitionError: The workflow has parameters that no schedule can fill.
    """
    wanted = [
        parameter.name
        for parameter in inspect.signature(workflow.fn).parameters.values()
        if parameter.default is parameter.empty or _is_slot(parameter.annotation)
    ]
    if len(wanted) > 1:
        raise DefinitionError(
            f"workflow {workflow.name} has a schedule, which has no values for "
            f"{', '.join(wanted[1:])}: it may have one parameter, which gets the Slot"
        )
    return wanted[0] if wanted else None


def _is_slot(annotation: Any) -> bool:
    return annotation is Slot or (
        isinstance(annotation, str) and annotation.split(".")[-1] == Slot.__name__
    )


def declarations_of(workflows: Iterable[Workflow[..., Any]]) -> list[dict[str, Any]]:
    """Return the schedules of workflows, in the form in which a worker declares them.

    Raises:
        DefinitionError: Two schedules have the same name.
    """
    found: dict[str, dict[str, Any]] = {}
    for workflow in {id(w.origin): w.origin for w in workflows}.values():
        options = workflow.start_options
        for declared in workflow.schedules:
            one = declaration(
                declared,
                workflow.name,
                options.queue,
                options.priority,
                options.timeout,
                options.version,
                slot_parameter(workflow),
            )
            if found.setdefault(one["name"], one) is not one:
                raise DefinitionError(
                    f"two schedules are named {one['name']!r}: give one another name with "
                    "@schedule(name=...)"
                )
    return list(found.values())


def told_of(
    name: str,
    schedule: Schedule,
    workflow: Workflow[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> tuple[dict[str, Any], str]:
    """Return a schedule that a client sets, and the input of its runs without the slot.

    Raises:
        TypeError: The arguments do not fit the workflow.
        NotStorable: One of them cannot be stored.
        InvalidArgument: The workflow has the option ``node`` or ``near``.
    """
    check_workflow(workflow, "set_schedule()")
    workflow.start_options.refuse_place(f"schedule {name!r}")
    signature = inspect.signature(workflow.fn)
    parameters = signature.parameters.values()
    filled = next((p.name for p in parameters if _is_slot(p.annotation)), None)
    # The caller does not pass the slot, at any position.
    others = signature.replace(parameters=[p for p in parameters if p.name != filled])
    given = dict(others.bind(*args, **kwargs).arguments)
    if filled is not None:
        given[filled] = Slot(EPOCH)
    values = json.loads(workflow.encode_input((), given))
    if filled is not None:
        del values[filled]
    options = workflow.start_options
    declared = declaration(
        replace(schedule.declared, name=name),
        workflow.name,
        options.queue,
        options.priority,
        options.timeout,
        "",
        filled,
    )
    return declared, json.dumps(values)
