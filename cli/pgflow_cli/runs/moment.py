"""``pgflow show --at UNIT``: a run as it was when a unit of its journal had been recorded.

It is the fold of the journal up to there: the calls of the code, and what it had published.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer

from pgflow import inspect
from pgflow_cli.look.database import Database
from pgflow_cli.look.failures import Mistake
from pgflow_cli.look.output import (
    Form,
    as_object,
    dump,
    note,
    short_json,
    when,
)
from pgflow_cli.look.selection import find_detail

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
