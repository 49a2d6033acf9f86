"""``pgflow timeline``: what a run did and waited for, as a waterfall."""

from __future__ import annotations

from typing import Annotated, Any

from pgflow import inspect
from pgflow.console.bars import detail, draw
from pgflow.console.output import (
    Form,
    console,
    table,
    when,
)
from pgflow_cli.look.declaring import opt
from pgflow_cli.look.options import Rows
from pgflow_cli.look.selection import Key, find

_UNIT_NAMES = ("seq", "call", "event", "name", "at", "is_inherited")
_UNIT_COLUMNS = table(
    "UNIT=seq> CALL> EVENT name*60 AT@90 FROM@110",
    CALL=lambda unit: unit.call or "",
    EVENT=lambda unit: unit.event.replace("_", " "),
    AT=lambda unit: when(unit.at),
    FROM=lambda unit: "its origin" if unit.is_inherited else "",
)


def timeline(
    key: Key,
    db: Rows,
    *,
    generation: Annotated[int | None, opt(min=1)] = None,
    units: bool = False,
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
