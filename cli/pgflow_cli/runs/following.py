"""``pgflow logs`` and ``timeline``: what happens to a run, line by line as it is recorded, and as a
waterfall; and ``pgflow show --at UNIT``: a run as it was when a unit of its journal had been
recorded.

The last is the fold of the journal up to there: the calls of the code, and what it had published.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from pgflow import inspect
from pgflow.console.bars import detail, draw
from pgflow.console.output import (
    Form,
    as_object,
    console,
    dump,
    note,
    short_json,
    shown,
    table,
    when,
)
from pgflow_cli.look.database import Database
from pgflow_cli.look.declaring import opt
from pgflow_cli.look.failures import Mistake
from pgflow_cli.look.options import Answer, Rows
from pgflow_cli.look.parsing import seconds_option
from pgflow_cli.look.selection import ENDED, Key, find, find_detail, find_run

_NAMES = ("seq", "call", "event", "name", "at", "payload")
LONGEST = 200
"""Characters of a payload on a line."""


def logs(
    key: Key,
    db: Answer,
    *,
    tail: Annotated[int | None, opt("--tail", "-n", min=0)] = None,
    follow: Annotated[bool, opt("--follow", "-f")] = False,
    every: Annotated[float, seconds_option("--every", shown="500ms", least=0.1)] = 0.5,
) -> None:
    """Prints the history of a run, line by line.

    Each line is a unit of its journal. Log records of your own code are where its workers write
    them; each carries the key of its run.

    Args:
        tail: Only so many lines of those there are.
        follow: Go on until the run has ended, or Ctrl-C.
        every: With --follow: time between looks.
    """
    run = find_run(db, key)
    seq = 0 if tail is None else max(0, db.ask(inspect.last_seq(run.run_id)) - tail)
    while True:
        newest = find_run(db, key)
        seq = _print_units(db, run.run_id, seq)
        if newest.run_id != run.run_id:
            run, seq = newest, 0
            continue
        if newest.status in ENDED and follow and db.form is Form.TABLE:
            typer.echo(shown(f"{newest.status}{': ' + newest.why if newest.why else ''}"))
        if newest.status in ENDED or not follow:
            return
        time.sleep(every)


def _print_units(db: Database, run_id: int, seq: int) -> int:
    """Print the units after one, and return the number of the last."""
    for units in db.pages(lambda after: inspect.list_units(run_id, after=after), seq):
        for unit in units:
            typer.echo(dump(as_object(unit, _NAMES)) if db.form is Form.JSON else _line(unit))
            seq = unit.seq
        sys.stdout.flush()
    return seq


def _line(unit: inspect.UnitRow) -> str:
    """One unit as people read it: when, which call, what, with what."""
    call = f"#{unit.call}" if unit.call else ""
    payload = ""
    if _is_error(unit.payload):
        payload = inspect.describe_error(unit.payload)
    elif unit.payload is not None:
        payload = dump(inspect.readable(unit.payload))
    text = shown(f"{unit.event.replace('_', ' ')} {unit.name or ''} {payload}")
    short = text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
    return f"{when(unit.at)} {call:>5} {short}"


def _is_error(payload: Any) -> bool:
    return (
        isinstance(payload, dict)
        and "type" in payload
        and ("message" in payload or "$codec" in payload)
    )


AT_ONCE = 1000


def show_at(db: Database, key: str, seq: int, limit: int | None) -> None:
    """Print a run as it was at a unit.

    Args:
        db: The database.
        key: Key of the run.
        seq: Number of the unit.
        limit: At most so many calls, the newest; None for each.

    Raises:
        Mistake: The journal has no such unit.
    """
    run = find_detail(db, key)
    last = db.ask(inspect.last_seq(run.run_id))
    if seq > last:
        raise Mistake(f"the journal of run {key!r} has {last:,} units: --at is 1 to {last:,}")
    state: dict[str, Any] = {}
    newest: list[inspect.UnitRow] = []
    entries = inspect.fold(_kept(_units(db, run.run_id, seq), state, newest), run.created_at)
    calls = [entry for entry in entries if entry.call]
    shown = calls if limit is None else calls[-limit:]
    state = inspect.readable(state)
    if db.form is Form.JSON:
        answer = {
            "key": run.key,
            "unit": seq,
            "units": last,
            "at": newest[0].recorded_at,
            "calls": [inspect.readable(as_object(one)) for one in shown],
            "state": state,
        }
        typer.echo(dump(answer, indent=2))
        return
    columns = "call kind name*60 status attempts"
    db.print(shown, columns, "It had called nothing yet.", inspect.Entry)
    for name, value in state.items():
        typer.echo(f"{name} = {short_json(value)}")
    left = len(calls) - len(shown)
    note(
        f"run {run.key} at unit {seq:,} of {last:,}, recorded {when(newest[0].recorded_at)}"
        + (f"; {left:,} earlier calls are left out: --limit 0 shows them" if left else "")
    )


def _units(db: Database, run_id: int, upto: int) -> Iterator[inspect.UnitRow]:
    after = 0
    while after < upto:
        limit = min(AT_ONCE, upto - after)
        yield from db.ask(inspect.list_units(run_id, after=after, limit=limit)).items
        after += limit


def _kept(
    units: Iterator[inspect.UnitRow], state: dict[str, Any], newest: list[inspect.UnitRow]
) -> Iterator[inspect.UnitRow]:
    """Yield units, and keep what they publish, and the last one."""
    for unit in units:
        if unit.event == "state_set" and isinstance(unit.payload, dict):
            state.update(unit.payload)
        newest[:] = [unit]
        yield unit


# ---------------------------------------------------------------- as a waterfall

_UNIT_NAMES = ("seq", "call", "event", "name", "at", "is_inherited")
_UNIT_COLUMNS = table(
    "UNIT=seq> CALL> EVENT name*60 AT@90 FROM@110",
    CALL=lambda unit: unit.call or "",
    EVENT=lambda unit: unit.event.replace("_", " "),
    AT=lambda unit: when(unit.at),
    FROM=lambda unit: "its origin" if unit.is_inherited else "",
)


def timeline(
    key: Key, db: Rows, *, generation: Annotated[int | None, opt(min=1)] = None, units: bool = False
) -> None:
    """Draws what a run did and waited for.

    Full bars are steps whose beginning is recorded; of reads and transactions only the end is, so
    their lighter bar begins with the entry before. Lines are waits, crosses failed attempts.
    "recovered" says that another worker went on from the journal.

    Args:
        generation: An earlier one of a run that was continued as new; else the newest.
        units: The units of its journal, as they are numbered for fork and rewind.
    """
    history = find(db, key, inspect.read_history(key, generation))
    if units:
        db.print(history.units, _UNIT_COLUMNS, "nothing found", _UNIT_NAMES)
    elif db.form is Form.TABLE:
        out = console()
        for part in draw(history, out.width, is_unicode=out.encoding.lower().startswith("utf")):
            out.print(part)
    else:
        db.print([entry_row(entry) for entry in history.entries], [], "", _ENTRY_NAMES)


_ENTRY_NAMES = (
    "call", "kind", "name", "status", "began_at", "began_is_recorded", "ended_at", "seconds",
    "attempts", "errors", "due_at", "detail",
)  # fmt: skip


def entry_row(entry: inspect.Entry) -> dict[str, Any]:
    """Return an entry for machines."""
    row = {name: getattr(entry, name, None) for name in _ENTRY_NAMES}
    return row | {
        "began_is_recorded": entry.is_known,
        "seconds": None if entry.seconds is None else round(entry.seconds, 6),
        "errors": [inspect.describe_error(failure.error) for failure in entry.failures],
        "detail": detail(entry),
    }
