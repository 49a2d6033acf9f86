"""``pgflow show``: everything about one run."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pgflow_cli.look.database import Dsn, as_row, database_now, fetch, opened
from pgflow_cli.look.failures import Mistake
from pgflow_cli.look.output import (
    AsJson,
    Column,
    Form,
    age,
    amount,
    choose_form,
    console,
    dump,
    duration,
    make_table,
    plain,
    short_json,
    shown,
    styled_status,
    when,
)
from pgflow_cli.look.selection import ENDED, Key, find_detail
from pgflow_cli.runs import declared
from pgflow_cli.runs.calls import call_columns, read_calls

if TYPE_CHECKING:
    from datetime import datetime

    import psycopg
    from rich.console import RenderableType
    from rich.text import Text

_RUN = (
    "key", "status", "workflow", "queue", "version", "priority", "labels", "why", "reason_code",
    "reason_detail", "attempt", "worker_id", "generation", "created_at", "since", "run_at",
    "deadline_at", "finished_at", "input", "output", "error",
    "origin_key", "origin_generation", "origin_seq",
)  # fmt: skip
_CHILD = ("key", "status", "workflow")
_ORDER = ("verb", "why", "sent_at", "sent_by")

DEFAULT_LIMIT = 30
MOST_SHOWN = 2000
"""Most characters of a value. JSON has all of it."""
PICTURE_UNITS = 400
"""Newest units of the journal that a picture shows."""


def show(
    key: Key,
    *,
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit",
            "-n",
            min=0,
            show_default=False,
            help="At most so many calls; 0 for each. A table has 30, JSON all.",
        ),
    ] = None,
    svg: Annotated[
        bool,
        typer.Option("--svg", help="Print its newest calls on a time axis, as SVG."),
    ] = False,
    as_json: AsJson = None,
    dsn: Dsn = None,
) -> None:
    """Shows a run: where it is and why, input, result, calls.

    Calls are steps, decisions and effects. Of a run with more of them than the limit, many calls of
    one name are one line, which counts them by status.
    """
    if svg:
        if as_json or limit is not None:
            raise Mistake("--svg prints a picture: leave out --json and --limit")
        with opened(dsn) as connection:
            typer.echo(_picture(connection, key), nl=False)
        return
    form = choose_form(as_json=as_json)
    most = (DEFAULT_LIMIT if form is Form.TABLE else 0) if limit is None else limit
    with opened(dsn) as connection:
        run = read_run(connection, key, most or None)
        now = database_now(connection)
    if form is Form.JSON:
        print_object(run)
        return
    out = console()
    for part in draw(run, now, out.width):
        out.print(part)


def _picture(connection: psycopg.Connection[Any], key: str) -> str:
    """Return the newest calls of a run, as SVG.

    Raises:
        Mistake: No run has the key, or it has recorded nothing yet.
    """
    from pgflow._desk.picture import draw_picture
    from pgflow._desk.waterfall import draw
    from pgflow.inspect import fold, last_seq, list_units

    run = find_detail(connection, key)
    after = max(0, fetch(connection, last_seq(run.run_id)) - PICTURE_UNITS)
    units = fetch(connection, list_units(run.run_id, after=after, limit=PICTURE_UNITS)).items
    entries = fold(units, units[0].at if units and after else run.created_at)
    if not entries:
        raise Mistake(f"run {key!r} has recorded nothing yet: there is nothing to draw")
    now = None if run.status in ENDED else database_now(connection)
    return draw_picture(
        draw(entries, run.created_at if not after else units[0].at, now),
        run.key,
        f"{run.workflow}, {run.status}",
    )


def print_object(run: dict[str, Any]) -> None:
    """Print the run for machines."""
    typer.echo(dump(run, indent=2))


def read_run(
    connection: psycopg.Connection[Any], key: str, limit: int | None = None
) -> dict[str, Any]:
    """Return a run with its calls, its children and its published state.

    Args:
        connection: To the database.
        key: Of the run.
        limit: At most so many calls, see `read_calls`; None for all.

    Raises:
        Mistake: No run has the key.
    """
    from pgflow.inspect import find_key, list_children, list_orders, read_state, sum_charges

    found = find_detail(connection, key)
    run = as_row(found, _RUN)
    run["parent"] = (
        None if found.parent_run_id is None else fetch(connection, find_key(found.parent_run_id))
    )
    run["state"] = fetch(connection, read_state(key))
    run["children"] = [
        as_row(child, _CHILD) for child in fetch(connection, list_children(found.run_id))
    ]
    run["asked"] = [as_row(order, _ORDER) for order in fetch(connection, list_orders(key))]
    spent = fetch(connection, sum_charges("run", run_id=found.run_id))
    run["spent"] = {row.unit: row.amount for row in spent}
    run["calls"], run["more_calls"] = read_calls(connection, found.run_id, limit)
    return run


def draw(run: dict[str, Any], now: datetime, width: int) -> list[RenderableType]:
    """Return the run for people."""
    from rich.table import Table
    from rich.text import Text

    head = Text.assemble((shown(run["key"]), "bold"), "  ", shown(run["workflow"]), "  ")
    head.append_text(styled_status(run["status"]))
    facts = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 2))
    facts.add_column(style="bright_black", no_wrap=True)
    facts.add_column(overflow="fold")
    for name, value in _facts(run, now):
        facts.add_row(name, value)
    parts: list[RenderableType] = [head, facts]
    if run["calls"]:
        parts += ["", make_table(call_columns(), run["calls"], width)]
    if run["more_calls"]:
        parts.append(plain(f"… and {run['more_calls']:,} more: --limit 0 shows each call"))
    if run["children"]:
        parts += ["", make_table(_CHILD_COLUMNS, run["children"], width)]
    if run["calls"]:
        owed = ", pgflow owed" if _owed_effects(run) else ""
        parts += ["", plain(f"More: pgflow timeline {shlex.quote(run['key'])}{owed}")]
    return parts


def _facts(run: dict[str, Any], now: datetime) -> list[tuple[str, RenderableType]]:
    """Names and values, without those that say nothing."""
    from pgflow.inspect import describe_error

    ended = run["status"] in ENDED
    took = (
        f", after {duration((run['finished_at'] - run['created_at']).total_seconds())}"
        if ended
        else ""
    )
    labels = " ".join(f"{name}={value}" for name, value in (run["labels"] or {}).items())
    facts: list[tuple[str, RenderableType | None]] = [
        ("why", plain(run["why"]) if run["why"] and run["status"] != "failed" else None),
        *(("asked", plain(_asked(order, now))) for order in run["asked"]),
        ("what to do", plain(_advice(run)) if _advice(run) else None),
        (
            "queue",
            plain(run["queue"] + (f", priority {run['priority']}" if run["priority"] else "")),
        ),
        (
            "worker",
            plain(f"{run['worker_id']}, claim {run['attempt']}")
            if run["worker_id"] is not None
            else None,
        ),
        ("created", plain(f"{when(run['created_at'])}, {age(run['created_at'], now)} ago")),
        (
            run["status"] if not ended else "ended",
            plain(f"{when(run['since'])}, {age(run['since'], now)} ago{took}"),
        ),
        (
            "starts at",
            plain(when(run["run_at"]))
            if run["run_at"] and not run["calls"] and not ended
            else None,
        ),
        ("deadline", plain(when(run["deadline_at"])) if run["deadline_at"] else None),
        ("generation", plain(run["generation"]) if run["generation"] > 1 else None),
        ("begun", plain(_origin(run)) if run["origin_seq"] is not None else None),
        ("parent", plain(run["parent"]) if run["parent"] else None),
        ("labels", plain(labels) if labels else None),
        ("input", _long(_of_file(run) or run["input"])),
        ("state", _long(run["state"]) if run["state"] else None),
        ("spent", plain(_spent(run["spent"])) if run["spent"] else None),
        ("output", _long(run["output"]) if run["status"] == "completed" else None),
        (
            "error",
            plain(describe_error(run["error"]))
            if run["error"] and run["status"] == "failed"
            else None,
        ),
        ("", _traceback(run["error"])),
    ]
    return [(name, value) for name, value in facts if value is not None]


def _long(value: Any) -> Text:
    """Return a value as JSON, as far as it can be read on a screen."""
    text = short_json(value)
    if len(text) <= MOST_SHOWN:
        return text
    return text[:MOST_SHOWN] + plain(f"… ({len(text):,} characters; --json has all)")


def _of_file(run: dict[str, Any]) -> dict[str, Any] | None:
    """Return the input of the run of a workflow file, without the file itself."""
    given = run["input"]
    if run["workflow"] != declared.WORKFLOW or not isinstance(given, dict):
        return None
    frozen, settings = given.get("frozen"), given.get("settings")
    if not isinstance(frozen, dict) or not isinstance(settings, dict):
        return None
    told = {"message": given.get("message"), "inputs": given.get("inputs")}
    asked = {name: settings.get(name) for name in ("cwd", "provider")}
    return {"file": frozen.get("source"), **told, **asked}


def _spent(spent: dict[str, Any]) -> str:
    """Return what a run has spent, in words."""
    return ", ".join(f"{amount(value)} {unit}" for unit, value in spent.items())


def _origin(run: dict[str, Any]) -> str:
    """Return the origin of the run whose journal it begins with, in words."""
    if run["origin_key"] is None:
        return f"with {run['origin_seq']} units of a run that is gone"
    if run["origin_key"] != run["key"]:
        return f"forked from {run['origin_key']} at unit {run['origin_seq']}"
    return f"anew after generation {run['origin_generation']}" + (
        f", at unit {run['origin_seq']}" if run["origin_seq"] else ""
    )


def _owed_effects(run: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the effects that a stuck run wants settled; none for any other run."""
    if run["status"] != "stuck" or run["reason_code"] != "effect":
        return []
    return (run["reason_detail"] or {}).get("effects") or []


def _settling(effect: dict[str, Any]) -> str:
    """Return how a person settles an effect."""
    command = f"pgflow settle {shlex.quote(effect['key'])}"
    if effect.get("compensates"):
        return f"take {effect['compensates']} back by hand, then `{command} --confirmed null`"
    return f"`{command}` with `--confirmed JSON`, `--failed` or `--absent` records its outcome"


def _asked(order: dict[str, Any], now: datetime) -> str:
    """Return an order that no worker has taken yet, in words."""
    by = f" by {order['sent_by']}" if order["sent_by"] else ""
    why = f": {order['why']}" if order["why"] else ""
    return f"to {order['verb']}, {age(order['sent_at'], now)} ago{by}{why}"


def _advice(run: dict[str, Any]) -> str:
    key = shlex.quote(run["key"])
    if owed := _owed_effects(run):
        return "; ".join(map(_settling, owed))
    if run["status"] == "stuck":
        return f"fix the cause, then `pgflow retry {key}`; or `pgflow cancel {key}`"
    if run["status"] == "paused":
        return f"`pgflow resume {key}` resumes it"
    if run["reason_code"] == "gate":
        gate = shlex.quote(run["reason_detail"]["gates"][0])
        return f"a person is needed: `pgflow approve {gate}`, or `pgflow reject {gate}`"
    if run["reason_code"] == "signal":
        return (
            f"`pgflow signal {key} {shlex.quote(run['reason_detail']['signals'][0])} JSON` "
            "answers it"
        )
    return ""


def _traceback(error: Any) -> RenderableType | None:
    from rich.text import Text

    if not isinstance(error, dict) or not error.get("traceback"):
        return None
    text = error["traceback"]
    return Text(
        (text if isinstance(text, str) else "\n".join(map(str, text))).rstrip(),
        style="bright_black",
    )


_CHILD_COLUMNS = [
    Column("CHILD", lambda row: plain(row["key"])),
    Column("STATUS", lambda row: styled_status(row["status"])),
    Column("WORKFLOW", lambda row: plain(row["workflow"])),
]
