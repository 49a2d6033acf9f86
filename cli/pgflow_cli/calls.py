"""The calls of a run for ``pgflow show``: steps, decisions and effects in the order of the code, many of one name as one line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pgflow_cli.database import fetch_dicts
from pgflow_cli.history import describe_error
from pgflow_cli.output import Column, plain, short_json, when

if TYPE_CHECKING:
    import psycopg
    from rich.text import Text

_ALL = """
select * from (
  select s.call, 'step' as kind, s.step as name, s.status, s.attempts, s.started_at, s.ended_at, s.idempotency_key,
    {output} as output, {error} as error
  from pgflow.steps s where s.run_id = %(run)s
  union all
  select d.call, 'decision', d.name, 'completed', 1, null, d.decided_at, d.decision, {value}, null
  from pgflow.decisions d where d.run_id = %(run)s
  union all
  select e.call, 'effect', e.name, e.status, e.attempts, e.intended_at, e.closed_at, e.effect, {result}, {effect_error}
  from pgflow.effects e where e.run_id = %(run)s
) c"""

_WITH_VALUES = _ALL.format(
    output="s.output::json", error="s.error::json", value="d.value::json", result="e.result::json", effect_error="e.error::json"
)
_WITHOUT = _ALL.format(**dict.fromkeys(("output", "error", "value", "result", "effect_error"), "null::json"))

_COUNT = f"""
select kind, name, status, count(*) as calls, sum(attempts)::bigint as attempts, min(call) as first_call, max(ended_at) as ended_at
from ({_WITHOUT}) c group by kind, name, status order by first_call
"""  # noqa: S608 - our own words
_SOME = f"""
select * from ({_WITH_VALUES}) c where (kind, name) in (select * from unnest(%(kinds)s::text[], %(names)s::text[]))
order by call limit %(limit)s
"""  # noqa: S608 - our own words

FOLDED_FROM = 4
"""Calls of one name from which on they are one line, where a run has more calls than are shown."""

GOOD, BAD = ("completed", "confirmed"), ("failed", "abandoned", "unknown")
_WORDS = {"completed": "done", "confirmed": "done", "started": "running", "intended": "running"}
_STYLES = {**dict.fromkeys(GOOD, "green"), **dict.fromkeys(BAD, "red")}


def read_calls(connection: psycopg.Connection[Any], run_id: int, limit: int | None) -> tuple[list[dict[str, Any]], int]:
    """Return the calls of a run in their order, and how many lines are left out.

    A run with more calls than the limit has those of one name folded into a row, with ``counts``: how many calls of each status.

    Args:
        connection: To the database.
        run_id: The run.
        limit: At most so many rows; None for each call, unfolded.
    """
    counted = fetch_dicts(connection, _COUNT, {"run": run_id})
    total = sum(row["calls"] for row in counted)
    names: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in counted:
        names.setdefault((row["kind"], row["name"]), []).append(row)
    is_long = limit is not None and total > limit
    folded = {name: rows for name, rows in names.items() if is_long and sum(row["calls"] for row in rows) >= FOLDED_FROM}
    single = [name for name in names if name not in folded]
    params = {"run": run_id, "kinds": [kind for kind, _ in single], "names": [name for _, name in single], "limit": limit}
    rows = fetch_dicts(connection, _SOME, params) + [_fold(*name, rows) for name, rows in folded.items()]
    rows.sort(key=lambda row: row["call"])
    lines = len(folded) + sum(row["calls"] for name in single for row in names[name])
    return rows[:limit], max(0, lines - len(rows[:limit]))


def _fold(kind: str, name: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    ends = [row["ended_at"] for row in rows if row["ended_at"] is not None]
    return {
        "call": min(row["first_call"] for row in rows), "kind": kind, "name": name,
        "counts": {row["status"]: row["calls"] for row in sorted(rows, key=lambda row: -row["calls"])},
        "attempts": sum(row["attempts"] for row in rows), "ended_at": max(ends, default=None),
    }  # fmt: skip


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
    style = "red" if row["counts"].keys() & set(BAD) else "green" if row["counts"].keys() <= set(GOOD) else "yellow"
    return Text(", ".join(f"{calls:,} {word}" for word, calls in told.items()), style=style)


def _result(row: Any) -> Text:
    if "counts" in row:
        return plain("")
    if row["error"]:
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
        Column("IDEMPOTENCY KEY", lambda row: plain(row.get("idempotency_key")), from_width=150, most=70),
        Column("RESULT", _result, takes_rest=True, most=200),
    ]
