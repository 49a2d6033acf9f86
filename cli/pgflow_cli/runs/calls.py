"""The calls of a run for ``pgflow show``: steps, decisions and effects in the order of the code,
many of one name as one line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pgflow_cli.look.database import as_row, fetch
from pgflow_cli.look.output import Column, plain, short_json, when

if TYPE_CHECKING:
    import psycopg
    from rich.text import Text

GOOD, BAD = ("completed", "confirmed"), ("failed", "abandoned", "unknown")
_WORDS = {"completed": "done", "confirmed": "done", "started": "running", "intended": "running"}
_STYLES = {**dict.fromkeys(GOOD, "green"), **dict.fromkeys(BAD, "red")}


def read_calls(
    connection: psycopg.Connection[Any], run_id: int, limit: int | None
) -> tuple[list[dict[str, Any]], int]:
    """Return the calls of a run in their order, and how many lines are left out.

    A run with more calls than the limit has those of one name folded into a row, with ``counts``:
    how many calls of each status.

    Args:
        connection: To the database.
        run_id: The run.
        limit: At most so many rows; None for each call, unfolded.
    """
    from pgflow.inspect import read_calls as calls_of

    found = fetch(connection, calls_of(run_id, limit))
    return [as_row(call) for call in found.calls], found.more


def _name(row: Any) -> Text:
    name = f"{row['kind']}: {row['name']}" if row["kind"] != "step" else row["name"]
    return plain(f"{name} x {sum(row['counts'].values()):,}" if "counts" in row else name)


def _status(row: Any) -> Text:
    from rich.text import Text

    if "counts" not in row:
        return Text(row["status"], style=_STYLES.get(row["status"], "yellow"))
    told: dict[str, int] = {}
    for status, calls in row["counts"].items():
        word = _WORDS.get(status, status)
        told[word] = told.get(word, 0) + calls
    style = (
        "red"
        if row["counts"].keys() & set(BAD)
        else "green"
        if row["counts"].keys() <= set(GOOD)
        else "yellow"
    )
    return Text(", ".join(f"{calls:,} {word}" for word, calls in told.items()), style=style)


def _result(row: Any) -> Text:
    if "counts" in row:
        return plain("")
    if row["error"]:
        from pgflow.inspect import describe_error

        return plain(describe_error(row["error"]))
    return short_json(row["output"]) if row["status"] in GOOD else plain("")


def call_columns() -> list[Column]:
    """Columns of a table of calls."""
    return [
        Column("CALL", lambda row: plain(row["call"]), right=True),
        Column("NAME", _name, most=40),
        Column("STATUS", _status),
        Column("TRIES", lambda row: plain(row["attempts"]), right=True),
        Column("ENDED", lambda row: plain(when(row["ended_at"])), from_width=110),
        Column(
            "IDEMPOTENCY KEY",
            lambda row: plain(row.get("idempotency_key")),
            from_width=150,
            most=70,
        ),
        Column("RESULT", _result, takes_rest=True, most=200),
    ]
