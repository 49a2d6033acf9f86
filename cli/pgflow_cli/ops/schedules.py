"""``pgflow schedules``: what starts by itself; setting, pausing, triggering, backfilling."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from pgflow_cli.look.database import Dsn, as_row, fetch, opened
from pgflow_cli.look.failures import Mistake
from pgflow_cli.look.help import Command, make_group
from pgflow_cli.look.mail import operator
from pgflow_cli.look.output import (
    AsCsv,
    AsJson,
    Column,
    choose_form,
    duration,
    many,
    note,
    plain,
    print_one,
    print_rows,
    when,
)
from pgflow_cli.look.parsing import parse_duration, parse_input, parse_pairs

if TYPE_CHECKING:
    from collections.abc import Mapping

    import psycopg

    from pgflow.inspect import ScheduleRow

schedules = make_group("schedules", "Shows schedules, or changes one.", invoke_without_command=True)

Name = Annotated[str, typer.Argument(help="Name of the schedule.", show_default=False)]
Why = Annotated[str | None, typer.Option(help="The reason, kept with the change.")]

_COLUMNS = (
    "name", "state", "slots", "workflow", "queue", "due_at", "last_slot_at", "last_run_key",
    "open_runs", "fired", "skipped", "missed", "overlap", "catch_up", "is_declared", "why_paused",
    "error",
)  # fmt: skip


@schedules.callback()
def show_all(
    context: typer.Context, *, as_json: AsJson = None, as_csv: AsCsv = False, dsn: Dsn = None
) -> None:
    """Shows schedules, or changes one.

    NEXT is when the next slot is due. SKIPPED counts slots at which a run before was open, MISSED
    those that were late and not caught up.
    """
    if context.invoked_subcommand is None:
        _list(as_json=as_json, as_csv=as_csv, dsn=dsn)


@schedules.command("list", cls=Command)
def list_schedules(*, as_json: AsJson = None, as_csv: AsCsv = False, dsn: Dsn = None) -> None:
    """Lists schedules by their names."""
    _list(as_json=as_json, as_csv=as_csv, dsn=dsn)


def _list(*, as_json: bool | None, as_csv: bool, dsn: str | None) -> None:
    from pgflow import inspect

    form = choose_form(as_json=as_json, as_csv=as_csv)
    with opened(dsn) as connection:
        found = fetch(connection, inspect.list_schedules(limit=None))
    rows = [_row(one) for one in found]
    columns = [
        Column("SCHEDULE", lambda row: plain(row["name"])),
        Column("STATE", lambda row: plain(row["state"])),
        Column("SLOTS", lambda row: plain(row["slots"]), takes_rest=True, most=120),
        Column("NEXT", lambda row: plain(when(row["due_at"]))),
        Column("LAST", lambda row: plain(when(row["last_slot_at"]))),
        Column("OPEN", lambda row: plain(row["open_runs"]), right=True),
        Column("FIRED", lambda row: plain(row["fired"]), right=True),
        Column("SKIPPED", lambda row: plain(row["skipped"]), right=True),
        Column("MISSED", lambda row: plain(row["missed"]), right=True),
        Column("WHY", lambda row: plain(row["why_paused"] or row["error"] or ""), most=60),
    ]
    print_rows(form, columns, rows, names=_COLUMNS, empty="There are no schedules.")


def _row(one: ScheduleRow) -> dict[str, Any]:
    return {**as_row(one), "slots": one.slots}


@schedules.command("show", cls=Command)
def show_schedule(
    schedule: Name,
    *,
    count: Annotated[int, typer.Option("--next", min=1, max=1000, help="Slots to show.")] = 5,
    as_json: AsJson = None,
    dsn: Dsn = None,
) -> None:
    """Shows a schedule, its next slots, and its changes."""
    from pgflow import inspect

    with opened(dsn) as connection:
        found = fetch(connection, inspect.find_schedule(schedule))
        if found is None:
            raise _unknown(schedule)
        coming = [] if found.state == "broken" else found.next_slots(count)
        changes = [as_row(c) for c in fetch(connection, inspect.list_schedule_changes(schedule))]
    row = {**_row(found), "next": coming, "changes": changes}
    print_one(choose_form(as_json=as_json), row, lambda: plain(_say(row)))


def _say(row: Mapping[str, Any]) -> str:
    policies = f"overlap {row['overlap']}, catch-up {row['catch_up']}"
    counts = f"{row['skipped']} skipped, {row['missed']} missed, {row['open_runs']} open"
    lines = [
        f"{row['name']}: {row['slots']}, {row['state']}",
        f"starts {row['workflow']} in queue {row['queue']}; {policies}",
        f"{many(row['fired'], 'run')} started, {counts}",
    ]
    if row["jitter_seconds"]:
        lines.append(f"late on purpose by up to {duration(row['jitter_seconds'])}")
    if row["last_run_key"]:
        lines.append(f"last run: {row['last_run_key']}")
    if row["paused_at"]:
        lines.append(f"paused by {row['paused_by']}: {row['why_paused'] or 'no reason given'}")
    if row["undeclared_at"]:
        lines.append(
            f"no code of a living worker declares it since {when(row['undeclared_at'])}: it starts "
            "nothing"
        )
    if row["error"]:
        lines.append(f"trouble at {when(row['error_at'])}: {row['error']}")
    lines += [f"buffered: {when(at)}" for at in row["buffered"]]
    lines += [f"next: {when(at)}" for at in row["next"]]
    lines += [
        f"{when(one['at'])}: {one['what']} by {one['said_by']}"
        + (f": {one['why']}" if one["why"] else "")
        for one in row["changes"]
    ]
    return "\n".join(lines)


@schedules.command("pause", cls=Command)
def pause_schedule(
    schedule: Name, *, why: Why = None, as_json: AsJson = None, dsn: Dsn = None
) -> None:
    """Has a schedule start nothing until it is resumed; slots that pass meanwhile are left out."""
    from pgflow._db.calls import schedules as calls
    from pgflow._db.query import run

    if not why:
        raise Mistake("give the reason for the pause: --why")
    with opened(dsn) as connection:
        _require(connection, schedule)
        is_new = run(connection, calls.pause_schedule(schedule, why, operator()))
    print_one(
        choose_form(as_json=as_json),
        {"name": schedule, "paused": True, "changed": is_new},
        lambda: plain(f"Schedule {schedule} {'is' if is_new else 'was already'} paused."),
    )


@schedules.command("resume", cls=Command)
def resume_schedule(
    schedule: Name, *, why: Why = None, as_json: AsJson = None, dsn: Dsn = None
) -> None:
    """Has a paused schedule go on with the slots to come."""
    from pgflow._db.calls import schedules as calls
    from pgflow._db.query import run

    with opened(dsn) as connection:
        _require(connection, schedule)
        is_new = run(connection, calls.resume_schedule(schedule, why, operator()))
    print_one(
        choose_form(as_json=as_json),
        {"name": schedule, "paused": False, "changed": is_new},
        lambda: plain(f"Schedule {schedule} {'goes on' if is_new else 'was not paused'}."),
    )


@schedules.command("trigger", cls=Command)
def trigger_schedule(
    schedule: Name,
    *,
    slot: Annotated[
        str | None,
        typer.Option(
            help="Slot that the run is of; the present time if not given.", show_default=False
        ),
    ] = None,
    why: Why = None,
    as_json: AsJson = None,
    dsn: Dsn = None,
) -> None:
    """Starts a run of a schedule now, paused or not, whatever runs of it are open."""
    from pgflow._db.calls import schedules as calls
    from pgflow._db.calls import worker
    from pgflow._db.query import run
    from pgflow._worker.listener import WORK_CHANNEL, payloads

    with opened(dsn) as connection:
        found = _require(connection, schedule)
        at = None if slot is None else _moment(slot, "--slot", _zone(found))
        started = run(connection, calls.trigger_schedule(schedule, why, operator(), at))
        for text in payloads(set(started.lanes), set()):
            run(connection, worker.notify(WORK_CHANNEL, text))
    print_one(
        choose_form(as_json=as_json),
        {"name": schedule, "key": started.run_key, "is_new": started.is_new},
        lambda: plain(
            f"Run {started.run_key} {'is started' if started.is_new else 'was there already'}."
        ),
    )


@schedules.command("backfill", cls=Command)
def backfill_schedule(
    schedule: Name,
    first: Annotated[
        str,
        typer.Argument(help="Begin: 2026-01-01, or 2026-01-01T02:30+00:00.", show_default=False),
    ],
    last: Annotated[str, typer.Argument(help="End, a slot at it included.", show_default=False)],
    *,
    overlap: Annotated[
        str, typer.Option(help="One run after the other (buffer_all), or all at once (allow).")
    ] = "buffer_all",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list the slots.")] = False,
    why: Why = None,
    as_json: AsJson = None,
    as_csv: AsCsv = False,
    dsn: Dsn = None,
) -> None:
    """Has the slots of a range in the past start their runs.

    A slot that has a run gets no second one. Times without a zone are meant in the schedule's. At
    most 1,000 slots at once.
    """
    from pgflow._db.calls import schedules as calls
    from pgflow._db.calls import worker
    from pgflow._db.query import run
    from pgflow._model.schedules import MOST_LATE, read_spec, slots_between
    from pgflow._worker.listener import WORK_CHANNEL, payloads

    if overlap not in get_args(calls.BackfillOverlap):
        raise Mistake(f"--overlap is buffer_all or allow, not {overlap!r}")
    with opened(dsn) as connection:
        found = _require(connection, schedule)
        slots = slots_between(
            read_spec(found.spec),
            _moment(first, "FIRST", _zone(found)),
            _moment(last, "LAST", _zone(found)),
            MOST_LATE,
        )
        rows: list[dict[str, Any]] = [
            {"slot_at": at, "key": None, "state": "would"} for at in slots
        ]
        if not dry_run:
            query = calls.backfill_schedule(schedule, slots, overlap, why, operator())
            done = run(connection, query)
            rows = [
                {"slot_at": one.slot_at, "key": one.run_key, "state": one.state}
                for one in done.slots
            ]
            for text in payloads(set(done.lanes), set()):
                run(connection, worker.notify(WORK_CHANNEL, text))
    if found.state in ("paused", "undeclared") and any(r["state"] == "buffered" for r in rows):
        note(f"The schedule is {found.state}: what is buffered waits until it goes on.")
    columns = [
        Column("SLOT", lambda row: plain(when(row["slot_at"]))),
        Column("STATE", lambda row: plain(row["state"])),
        Column("RUN", lambda row: plain(row["key"] or ""), takes_rest=True, most=128),
    ]
    form = choose_form(as_json=as_json, as_csv=as_csv)
    print_rows(form, columns, rows, names=("slot_at", "state", "key"), empty="No slot is in there.")


@schedules.command("set", cls=Command)
def set_schedule(
    schedule: Name,
    workflow: Annotated[str, typer.Argument(help="Name of the workflow.", show_default=False)],
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME=VALUE]...", help="Input of its runs.", show_default=False),
    ] = None,
    *,
    cron: Annotated[
        list[str] | None,
        typer.Option(help="Expression of cron, or @daily; may be given again.", show_default=False),
    ] = None,
    every: Annotated[
        str | None, typer.Option(help="Interval instead: 90s, 1h30m.", show_default=False)
    ] = None,
    offset: Annotated[
        str | None, typer.Option(help="Part of the interval to be later.", show_default=False)
    ] = None,
    tz: Annotated[str, typer.Option(help="Time zone of expressions and days.")] = "UTC",
    overlap: Annotated[
        str,
        typer.Option(
            help="While a run is open: skip, buffer_one, buffer_all, cancel_other or allow."
        ),
    ] = "skip",
    catch_up: Annotated[
        str, typer.Option(help="For missed slots: skip, latest or all.")
    ] = "latest",
    max_catch_up: Annotated[int, typer.Option(help="Most missed slots to catch up at once.")] = 100,
    jitter: Annotated[str, typer.Option(help="Most that a slot is late on purpose.")] = "0s",
    not_on: Annotated[
        list[str] | None,
        typer.Option(help="Day without slots; may be given again.", show_default=False),
    ] = None,
    only_on: Annotated[
        list[str] | None,
        typer.Option(help="Day that alone has slots; may be given again.", show_default=False),
    ] = None,
    start_at: Annotated[
        str | None,
        typer.Option(help="No slots before: 2026-01-01T02:30, in --tz.", show_default=False),
    ] = None,
    end_at: Annotated[str | None, typer.Option(help="None after.", show_default=False)] = None,
    slot_parameter: Annotated[
        str | None,
        typer.Option(
            "--slot-to", help="Name of the parameter that gets the slot.", show_default=False
        ),
    ] = None,
    input_text: Annotated[
        str | None, typer.Option("--input", help="Input as JSON; - reads it.", show_default=False)
    ] = None,
    queue: Annotated[str, typer.Option("--queue", "-q", help="Queue of its runs.")] = "default",
    priority: Annotated[int, typer.Option(help="Lower numbers go first.")] = 0,
    timeout: Annotated[
        str | None, typer.Option(help="Cancel a run that is not over by then.", show_default=False)
    ] = None,
    label: Annotated[
        list[str] | None, typer.Option("--label", "-l", help="NAME=VALUE.", show_default=False)
    ] = None,
    why: Why = None,
    as_json: AsJson = None,
    dsn: Dsn = None,
) -> None:
    """Makes a schedule, or sets it anew.

    Of one that exists all options are those given here. What code declares is set again when its
    declaration changes.
    """
    import json

    from pgflow._db.calls import schedules as calls
    from pgflow._db.query import run
    from pgflow._model.schedules import Declared, declaration, make_spec

    def span(text: str | None, name: str) -> timedelta | None:
        return None if text is None else parse_duration(text, name)

    spec = make_spec(
        cron or None,
        every=span(every, "--every"),
        offset=span(offset, "--offset"),
        tz=tz,
        not_on=not_on or (),
        only_on=only_on or (),
        start_at=None if start_at is None else _moment(start_at, "--start-at", tz),
        end_at=None if end_at is None else _moment(end_at, "--end-at", tz),
    )
    late = parse_duration(jitter, "--jitter")
    declared = Declared(spec, schedule, overlap, catch_up, max_catch_up, late)  # type: ignore[arg-type]
    told = declaration(
        declared, workflow, queue, priority, span(timeout, "--timeout"), "", slot_parameter
    )
    labels = parse_pairs(label, "--label") or None
    text = json.dumps(parse_input(words, input_text))
    with opened(dsn) as connection:
        changed = run(connection, calls.set_schedule(told, text, labels, why, operator()))
    print_one(
        choose_form(as_json=as_json),
        {"name": schedule, "changed": changed},
        lambda: plain(f"Schedule {schedule} {'is set' if changed else 'was like that already'}."),
    )


@schedules.command("remove", cls=Command)
def remove_schedule(
    schedule: Name, *, why: Why = None, as_json: AsJson = None, dsn: Dsn = None
) -> None:
    """Removes a schedule; its runs stay."""
    from pgflow._db.calls import schedules as calls
    from pgflow._db.query import run

    with opened(dsn) as connection:
        _require(connection, schedule)
        comes_back = run(connection, calls.remove_schedule(schedule, why, operator()))
    if comes_back:
        note(
            "The code of a living worker declares it: the next worker makes it again. Remove it "
            "from the code, or pause it instead."
        )
    print_one(
        choose_form(as_json=as_json),
        {"name": schedule, "removed": True, "comes_back": comes_back},
        lambda: plain(f"Schedule {schedule} is removed."),
    )


def _require(connection: psycopg.Connection[Any], name: str) -> ScheduleRow:
    from pgflow import inspect

    found = fetch(connection, inspect.find_schedule(name))
    if found is None:
        raise _unknown(name)
    return found


def _unknown(name: str) -> Mistake:
    return Mistake(f"schedule {name!r} does not exist: `pgflow schedules` lists them")


def _zone(schedule: ScheduleRow) -> str:
    return str(schedule.spec.get("tz", "UTC"))


def _moment(text: str, what: str, zone: str) -> datetime:
    """Return a time; without a zone it is meant in that of the schedule."""
    from pgflow._model.schedules import zone_of

    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise Mistake(f"{what} is a time such as 2026-01-01T02:30, not {text!r}") from None
    if moment.tzinfo is not None:
        return moment
    return moment.replace(tzinfo=zone_of(zone))
