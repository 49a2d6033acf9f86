"""``pgflow doctor``: what is wrong with a database, and what to do about it."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from pgflow.console.output import Form, console, many, note, plain
from pgflow_cli.look.failures import FAILED, Ended
from pgflow_cli.look.options import Rows


class FailOn(StrEnum):
    """Levels of findings that a check may fail on."""

    WARN = "warn"
    FAIL = "fail"


def doctor(*, deep: bool = False, fail_on: FailOn = FailOn.WARN, db: Rows) -> None:
    """Checks a database, and shows how to fix what it finds.

    It checks the server, the connection to it, the schema, the role's privileges, the workers and
    the runs. The exit code is 1 if it finds something. With --fail-on fail it still shows warnings,
    but exits 0 for them, for a health check or a deploy.

    Args:
        deep: Also prove every invariant, which reads all runs.
        fail_on: Least finding that makes the exit code 1.
    """
    from pgflow.doctor.examining import examine

    rows = examine(db.dsn, deep=deep)
    if db.form is Form.TABLE:
        _print(rows)
    else:
        db.print(rows, [], "")
    worst = ("fail",) if fail_on is FailOn.FAIL else ("fail", "warn")
    if any(row["level"] in worst for row in rows):
        raise Ended(FAILED)


_SIGNS = {"ok": ("✓", "green"), "warn": ("!", "bold yellow"), "fail": ("✗", "bold red")}


def _print(rows: list[dict[str, Any]]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    last = ""
    for row in rows:
        do = ("\n→ ", (row["do"], "cyan")) if row["do"] else ()
        name = plain(row["check"] if row["check"] != last else "")
        table.add_row(Text(*_SIGNS[row["level"]]), name, Text.assemble(row["found"], *do))
        last = row["check"]
    console().print(table)
    wrong = sum(row["level"] != "ok" for row in rows)
    needs = f"{many(wrong, 'finding')} of {len(rows)} need{'s' * (wrong == 1)} attention."
    note(f"\n{needs}" if wrong else "\nAll is well.")
