"""``pgflow schedules``: what starts by itself; setting, pausing, triggering, backfilling."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pgflow import inspect
from pgflow.console.output import as_object, duration, many, names_of, note, shown, table, when
from pgflow_cli.look.database import Database
from pgflow_cli.look.declaring import Made, arg, make_group, opt
from pgflow_cli.look.failures import Mistake
from pgflow_cli.look.options import Answer, OwnLabels, Rows, operator
from pgflow_cli.look.parsing import parse_input, parse_pairs, parse_span
from pgflow_cli.ops.options import ChangeWhy

schedules = make_group("schedules", invoke_without_command=True)

Name = Annotated[str, arg("Name of the schedule.")]


@schedules.callback()
def list_schedules(*, db: Rows) -> None:
    """Shows schedules, or changes one.

    NEXT is when the next slot is due. SKIPPED counts slots at which a run before was open, MISSED
    those that were late and not caught up.
    """
    columns = table(
        "SCHEDULE=name state slots*120 NEXT=due_at LAST=last_slot_at OPEN=open_runs fired "
        "skipped missed WHY",
        WHY=lambda row: row.why_paused or row.error,
    )
    rows = db.ask(inspect.list_schedules(limit=None)).items
    names = (*names_of(inspect.ScheduleRow), "slots")
    db.print(rows, columns, "There are no schedules.", names)


@schedules.command("show")
def show_schedule(
    schedule: Name, *, count: Annotated[int, opt("--next", min=1, max=1000)] = 5, db: Answer
) -> None:
    """Shows a schedule, its next slots, and its changes.

    Args:
        count: Slots to show.
    """
    from rich.text import Text

    found = _find(db, schedule)
    coming = [] if found.state == "broken" else found.next_slots(count)
    changes = db.ask(inspect.list_schedule_changes(schedule)).items
    row = {**as_object(found), "slots": found.slots, "next": coming}
    row["changes"] = [as_object(change) for change in changes]
    db.answer(row, lambda: Text("\n".join(map(shown, _story(found, coming, changes)))))


def _story(
    row: inspect.ScheduleRow, coming: list[datetime], changes: list[inspect.ScheduleChangeRow]
) -> list[str]:
    policies = f"overlap {row.overlap}, catch-up {row.catch_up}"
    counts = f"{row.skipped} skipped, {row.missed} missed, {row.open_runs} open"
    lines = [
        f"{row.name}: {row.slots}, {row.state}",
        f"starts {row.workflow} in queue {row.queue}; {policies}",
        f"{many(row.fired, 'run')} started, {counts}",
    ]
    if row.jitter_seconds:
        lines.append(f"late on purpose by up to {duration(row.jitter_seconds)}")
    if row.last_run_key:
        lines.append(f"last run: {row.last_run_key}")
    if row.paused_at:
        lines.append(f"paused by {row.paused_by}: {row.why_paused or 'no reason given'}")
    if row.undeclared_at:
        lines.append(
            f"no code of a living worker declares it since {when(row.undeclared_at)}: it starts "
            "nothing"
        )
    if row.error:
        lines.append(f"trouble at {when(row.error_at)}: {row.error}")
    lines += [f"buffered: {when(at)}" for at in row.buffered]
    lines += [f"next: {when(at)}" for at in coming]
    return lines + [
        f"{when(one.at)}: {one.what} by {one.said_by}" + (f": {one.why}" if one.why else "")
        for one in changes
    ]


@schedules.command("pause")
def pause_schedule(schedule: Name, *, why: ChangeWhy = None, db: Answer) -> None:
    """Has a schedule start nothing until it is resumed; slots that pass meanwhile are left out."""
    if not why:
        raise Mistake("give the reason for the pause: --why")
    is_new = db.client.pause_schedule(schedule, why=why, by=operator())
    row = {"name": schedule, "paused": True, "changed": is_new}
    db.answer(row, f"Schedule {schedule} {'is' if is_new else 'was already'} paused.")


@schedules.command("resume")
def resume_schedule(schedule: Name, *, why: ChangeWhy = None, db: Answer) -> None:
    """Has a paused schedule go on with the slots to come."""
    is_new = db.client.resume_schedule(schedule, why=why, by=operator())
    row = {"name": schedule, "paused": False, "changed": is_new}
    db.answer(row, f"Schedule {schedule} {'goes on' if is_new else 'was not paused'}.")


@schedules.command("trigger")
def trigger_schedule(
    schedule: Name, *, slot: str | None = None, why: ChangeWhy = None, db: Answer
) -> None:
    """Starts a run of a schedule now, paused or not, whatever runs of it are open.

    Args:
        slot: Slot that the run is of; the present time if not given.
    """
    at = None if slot is None else _find(db, schedule).parse_moment(slot, "--slot")
    started = db.client.trigger_schedule(schedule, slot_at=at, why=why, by=operator())
    row = {"name": schedule, "key": started.run_key, "is_new": started.is_new}
    db.answer(
        row, f"Run {started.run_key} {'is started' if started.is_new else 'was there already'}."
    )


@schedules.command("backfill")
def backfill_schedule(
    schedule: Name,
    first: str,
    last: str,
    *,
    overlap: Annotated[Literal["buffer_all", "allow"], opt(metavar="WORD")] = "buffer_all",
    dry_run: bool = False,
    why: ChangeWhy = None,
    db: Rows,
) -> None:
    """Has the slots of a range in the past start their runs.

    A slot that has a run gets no second one. Times without a zone are meant in the schedule's. At
    most 1,000 slots at once.

    Args:
        first: Begin: 2026-01-01, or 2026-01-01T02:30+00:00.
        last: End, a slot at it included.
        overlap: One run after the other (buffer_all), or all at once (allow).
        dry_run: Only list the slots.
    """
    found = _find(db, schedule)
    begin, end = found.parse_moment(first, "FIRST"), found.parse_moment(last, "LAST")
    if dry_run:
        slots: Any = [(at, None, "would") for at in found.slots_between(begin, end)]
    else:
        made = db.client.backfill_schedule(
            schedule, begin, end, overlap=overlap, why=why, by=operator()
        )
        slots = [(one.slot_at, one.run_key, one.state) for one in made]
    names = ("slot_at", "key", "state")
    rows = [dict(zip(names, slot, strict=True)) for slot in slots]
    if found.state in ("paused", "undeclared") and any(r["state"] == "buffered" for r in rows):
        note(f"The schedule is {found.state}: what is buffered waits until it goes on.")
    columns = table("SLOT state RUN=key*128", SLOT=lambda row: when(row["slot_at"]))
    db.print(rows, columns, "No slot is in there.", names)


# ---------------------------------------------------------------- set

Days = list[str] | None


def _schedule(
    *,
    cron: list[str] | None = None,
    every: str | None = None,
    offset: str | None = None,
    tz: str = "UTC",
    overlap: str = "skip",
    catch_up: str = "latest",
    max_catch_up: int = 100,
    jitter: str = "0s",
    not_on: Days = None,
    only_on: Days = None,
    start_at: str | None = None,
    end_at: str | None = None,
) -> Any:
    """Return the schedule that these options describe.

    Args:
        cron: Expression of cron, or @daily; may be given again.
        every: Interval instead: 90s, 1h30m.
        offset: Part of the interval to be later.
        tz: Time zone of expressions and days.
        overlap: While a run is open: skip, buffer_one, buffer_all, cancel_other or allow.
        catch_up: For missed slots: skip, latest or all.
        max_catch_up: Most missed slots to catch up at once.
        jitter: Most that a slot is late on purpose.
        not_on: Day without slots; may be given again.
        only_on: Day that alone has slots; may be given again.
        start_at: No slots before: 2026-01-01T02:30, in --tz.
        end_at: None after.
    """
    given = dict(locals())
    import pgflow

    for name in ("every", "offset", "jitter"):
        given[name] = parse_span(given[name], f"--{name}")
    for name in ("start_at", "end_at"):
        if (at := given[name]) is not None:
            given[name] = inspect.parse_moment(at, f"--{name.replace('_', '-')}", tz)
    days = {name: given[name] or () for name in ("not_on", "only_on")}
    return pgflow.schedule(given.pop("cron") or None, **{**given, **days})


@schedules.command("set")
def set_schedule(
    schedule: Name,
    workflow: str,
    words: Annotated[list[str] | None, arg(metavar="[NAME=VALUE]...")] = None,
    *,
    slots: Annotated[Any, Made(_schedule)],
    slot_parameter: Annotated[str | None, opt("--slot-to")] = None,
    input_text: Annotated[str | None, opt("--input")] = None,
    queue: Annotated[str, opt("--queue", "-q")] = "default",
    priority: int = 0,
    timeout: str | None = None,
    label: OwnLabels = None,
    why: ChangeWhy = None,
    db: Answer,
) -> None:
    """Makes a schedule, or sets it anew.

    Of one that exists all options are those given here. What code declares is set again when its
    declaration changes.

    Args:
        workflow: Name of the workflow.
        words: Input of its runs.
        slot_parameter: Name of the parameter that gets the slot.
        input_text: Input as JSON; - reads it.
        queue: Queue of its runs.
        priority: Lower numbers go first.
        timeout: Cancel a run that is not over by then.
    """
    changed = db.client.set_schedule_by_name(
        schedule,
        slots,
        workflow,
        parse_input(words, input_text),
        queue=queue,
        priority=priority,
        timeout=parse_span(timeout, "--timeout"),
        labels=parse_pairs(label, "--label"),
        slot_parameter=slot_parameter,
        why=why,
        by=operator(),
    )
    row = {"name": schedule, "changed": changed}
    db.answer(row, f"Schedule {schedule} {'is set' if changed else 'was like that already'}.")


@schedules.command("remove")
def remove_schedule(schedule: Name, *, why: ChangeWhy = None, db: Answer) -> None:
    """Removes a schedule; its runs stay."""
    comes_back = db.client.remove_schedule(schedule, why=why, by=operator())
    if comes_back:
        text = "The code of a living worker declares it: the next worker makes it again."
        note(f"{text} Remove it from the code, or pause it instead.")
    row = {"name": schedule, "removed": True, "comes_back": comes_back}
    db.answer(row, f"Schedule {schedule} is removed.")


def _find(db: Database, name: str) -> inspect.ScheduleRow:
    found = db.ask(inspect.find_schedule(name))
    if found is None:
        raise Mistake(f"schedule {name!r} does not exist: `pgflow schedules` lists them")
    return found
