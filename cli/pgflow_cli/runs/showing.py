"""``pgflow show``: everything about one run, with its calls in the order of the code."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pgflow import inspect
from pgflow.console.output import (
    Form,
    age,
    amount,
    as_object,
    console,
    dump,
    duration,
    labelled,
    make_table,
    note,
    plain,
    short_json,
    shown,
    styled_status,
    table,
    when,
)
from pgflow_cli.look.database import Database
from pgflow_cli.look.declaring import opt
from pgflow_cli.look.failures import Mistake
from pgflow_cli.look.nodes import database_with
from pgflow_cli.look.options import Answer
from pgflow_cli.look.selection import ENDED, Key, find_detail
from pgflow_cli.runs import declared
from pgflow_cli.runs.following import show_at

if TYPE_CHECKING:
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
    db: Answer,
    *,
    limit: Annotated[int | None, opt("--limit", "-n", min=0)] = None,
    all_nodes: bool = False,
    svg: bool = False,
    at: Annotated[int | None, opt(metavar="UNIT", min=1)] = None,
) -> None:
    """Shows a run: where it is and why, input, result, calls.

    Calls are steps, decisions and effects. Of a run with more of them than the limit, many calls of
    one name are one line, which counts them by status.

    Args:
        limit: At most so many calls; 0 for each. A table has 30, JSON all.
        all_nodes: Look for it on all nodes of the cluster.
        svg: Print its newest calls on a time axis, as SVG.
        at: As it was at this unit of its journal: calls and state.
    """
    if svg and (db.form is Form.JSON or limit is not None or at is not None):
        raise Mistake("--svg prints a picture: leave out --json, --limit and --at")
    most = (DEFAULT_LIMIT if db.form is Form.TABLE else 0) if limit is None else limit
    with database_with(db, key) if all_nodes else db as there:
        if svg:
            typer.echo(_picture(there, key), nl=False)
            return
        if at is not None:
            show_at(there, key, at, most or None)
            return
        whole = _decoded(read_whole(there, key, most or None))
        if db.form is Form.JSON:
            typer.echo(dump(whole.as_object(), indent=2))
            return
        out = console()
        for part in draw(whole, there.now, out.width):
            out.print(part)


def _decoded(whole: WholeRun) -> WholeRun:
    """Return a run with the values in clear that the endpoint of PGFLOW_CODEC_URL opens, if there
    is one.
    """
    from pgflow.codecs import Decoder
    from pgflow.errors import CodecError

    decoder = Decoder.from_environment()
    try:
        return whole if decoder is None else decoder.read(whole)
    except CodecError as error:
        note(f"values stay encoded: {error}")
        return whole


def _picture(db: Database, key: str) -> str:
    """Return the newest calls of a run, as SVG.

    Raises:
        Mistake: No run has the key, or it has recorded nothing yet.
    """
    from pgflow.console.picture import draw_picture
    from pgflow.console.waterfall import draw

    run = find_detail(db, key)
    after = max(0, db.ask(inspect.last_seq(run.run_id)) - PICTURE_UNITS)
    units = db.ask(inspect.list_units(run.run_id, after=after, limit=PICTURE_UNITS)).items
    began_at = units[0].at if units and after else run.created_at
    entries = inspect.fold(units, began_at)
    if not entries:
        raise Mistake(f"run {key!r} has recorded nothing yet: there is nothing to draw")
    now = None if run.status in ENDED else db.now
    return draw_picture(draw(entries, began_at, now), run.key, f"{run.workflow}, {run.status}")


@dataclass(frozen=True)
class WholeRun:
    """A run with its calls, its children and its published state."""

    run: inspect.RunDetail
    parent: str | None
    state: dict[str, Any] | None
    children: list[inspect.ChildRow]
    orders: list[inspect.OrderRow]
    spent: dict[str, Decimal]
    calls: inspect.Calls
    gates: list[inspect.GateRow]

    def as_object(self) -> dict[str, Any]:
        """Return it for machines."""
        return {
            **as_object(self.run, _RUN),
            "parent": self.parent,
            "state": self.state,
            "children": [as_object(child, _CHILD) for child in self.children],
            "asked": [as_object(order, _ORDER) for order in self.orders],
            "spent": self.spent,
            "calls": [as_object(call) for call in self.calls.calls],
            "more_calls": self.calls.more,
        }


def read_whole(db: Database, key: str, limit: int | None = None) -> WholeRun:
    """Return all about a run.

    Args:
        db: The database.
        key: Of the run.
        limit: At most so many calls, those of one name folded; None for each.

    Raises:
        Mistake: No run has the key.
    """
    ask = db.ask
    run = find_detail(db, key)
    return WholeRun(
        run,
        None if run.parent_run_id is None else ask(inspect.find_key(run.parent_run_id)),
        ask(inspect.read_state(key)),
        ask(inspect.list_children(run.run_id)).items,
        ask(inspect.list_orders(key)),
        {row.unit: row.amount for row in ask(inspect.sum_charges("run", run_id=run.run_id))},
        ask(inspect.read_calls(run.run_id, limit)),
        ask(inspect.list_gates(key)).items if run.reason_code == "gate" else [],
    )


def draw(whole: WholeRun, now: datetime, width: int) -> Iterator[RenderableType]:
    """Yield the parts of the answer for people."""
    from rich.table import Table
    from rich.text import Text

    run, calls = whole.run, whole.calls
    head = Text.assemble((shown(run.key), "bold"), "  ", shown(run.workflow), "  ")
    yield head.append_text(styled_status(run.status))
    facts = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 2))
    facts.add_column(style="bright_black", no_wrap=True)
    facts.add_column(overflow="fold")
    for name, value in _facts(whole, now):
        if value:
            facts.add_row(name, value if isinstance(value, Text) else plain(value))
    yield facts
    if calls.calls:
        yield ""
        yield make_table(CALL_COLUMNS, calls.calls, width)
    if calls.more:
        yield plain(f"… and {calls.more:,} more: --limit 0 shows each call")
    if whole.children:
        yield ""
        yield make_table(_CHILD_COLUMNS, whole.children, width)
    if calls.calls:
        owed = ", pgflow owed" if _owed_effects(run) else ""
        yield ""
        yield plain(f"More: pgflow timeline {shlex.quote(run.key)}{owed}")


def _facts(whole: WholeRun, now: datetime) -> Iterator[tuple[str, Any]]:
    """Yield names and values; the value of those that say nothing is empty."""
    run, has_ended, has_failed = whole.run, whole.run.status in ENDED, whole.run.status == "failed"
    yield "why", "" if has_failed else run.why
    for order in whole.orders:
        yield "asked", _order(order, now)
    yield "what to do", _advice(run, whole.gates)
    yield "queue", run.queue + (f", priority {run.priority}" if run.priority else "")
    if run.worker_id is not None:
        yield "worker", f"{run.worker_id}, claim {run.attempt}"
    yield "created", f"{when(run.created_at)}, {age(run.created_at, now)} ago"
    took = ""
    if run.finished_at is not None:
        took = f", after {duration((run.finished_at - run.created_at).total_seconds())}"
    since = f"{when(run.since)}, {age(run.since, now)} ago"
    yield "ended" if has_ended else run.status, since + took
    if not whole.calls.calls and not has_ended:
        yield "starts at", when(run.run_at)
    yield "deadline", when(run.deadline_at)
    yield "generation", run.generation if run.generation > 1 else ""
    yield "begun", _origin(run)
    yield "parent", whole.parent
    yield "labels", labelled(run.labels)
    yield "input", _long(_of_file(run) or run.input)
    yield "state", _long(whole.state) if whole.state else ""
    yield "spent", ", ".join(f"{amount(value)} {unit}" for unit, value in whole.spent.items())
    if run.status == "completed":
        yield "output", _long(run.output)
    yield "error", inspect.describe_error(run.error) if run.error and has_failed else ""
    yield "", _traceback(run.error)


def _long(value: Any) -> Text:
    """Return a value as JSON, as far as it can be read on a screen."""
    text = short_json(value)
    if len(text) <= MOST_SHOWN:
        return text
    return text[:MOST_SHOWN] + plain(f"… ({len(text):,} characters; --json has all)")


def _of_file(run: inspect.RunDetail) -> dict[str, Any] | None:
    """Return the input of the run of a workflow file, without the file itself."""
    given = run.input
    if run.workflow != declared.WORKFLOW or not isinstance(given, dict):
        return None
    frozen, settings = given.get("frozen"), given.get("settings")
    if not isinstance(frozen, dict) or not isinstance(settings, dict):
        return None
    own = {"file": frozen.get("source")}
    own |= {name: given.get(name) for name in ("message", "inputs")}
    return own | {name: settings.get(name) for name in ("cwd", "provider")}


def _origin(run: inspect.RunDetail) -> str:
    """Return the origin of the run whose journal it begins with, in words."""
    if run.origin_seq is None:
        return ""
    if run.origin_key is None:
        return f"with {run.origin_seq} units of a run that is gone"
    if run.origin_key != run.key:
        return f"forked from {run.origin_key} at unit {run.origin_seq}"
    at = f", at unit {run.origin_seq}" if run.origin_seq else ""
    return f"anew after generation {run.origin_generation}{at}"


def _owed_effects(run: inspect.RunDetail) -> list[dict[str, Any]]:
    """Return the effects that a stuck run wants settled; none for any other run."""
    if run.status != "stuck" or run.reason_code != "effect":
        return []
    return (run.reason_detail or {}).get("effects") or []


def _settling(effect: dict[str, Any]) -> str:
    """Return how a person settles an effect."""
    command = f"pgflow settle {shlex.quote(effect['key'])}"
    if effect.get("compensates"):
        return f"take {effect['compensates']} back by hand, then `{command} --confirmed null`"
    return f"`{command}` with `--confirmed JSON`, `--failed` or `--absent` records its outcome"


def _order(order: inspect.OrderRow, now: datetime) -> str:
    """Return a command that no worker has taken yet, in words."""
    by = f" by {order.sent_by}" if order.sent_by else ""
    why = f": {order.why}" if order.why else ""
    return f"to {order.verb}, {age(order.sent_at, now)} ago{by}{why}"


def _advice(run: inspect.RunDetail, gates: list[inspect.GateRow]) -> str:
    key, detail = shlex.quote(run.key), run.reason_detail or {}
    if owed := _owed_effects(run):
        return "; ".join(map(_settling, owed))
    if run.status == "stuck" and run.reason_code == "nondeterminism":
        return (
            "deploy the code that it began with, or guard the change with `pgflow.patched`: "
            f"a worker with other code retries it; or `pgflow cancel {key}`"
        )
    if run.status == "stuck":
        return f"fix the cause, then `pgflow retry {key}`; or `pgflow cancel {key}`"
    if run.status == "paused":
        return f"`pgflow resume {key}` resumes it"
    if gates:
        gate = shlex.quote(gates[0].gate) if len(gates) > 1 else key
        role = f" --as {shlex.quote(gates[0].approvers[0])}" if gates[0].approvers else ""
        return f"answer its gate: `pgflow approve {gate}{role}`, or `pgflow reject {gate}{role}`"
    if run.reason_code == "signal":
        return f"`pgflow signal {key} {shlex.quote(detail['signals'][0])} JSON` answers it"
    return ""


def _traceback(error: Any) -> Text | None:
    from rich.text import Text

    if not isinstance(error, dict) or not error.get("traceback"):
        return None
    text = error["traceback"]
    lines = text if isinstance(text, str) else "\n".join(map(str, text))
    return Text(lines.rstrip(), style="bright_black")


_CHILD_COLUMNS = table("CHILD=key status workflow")


GOOD, BAD = ("completed", "confirmed"), ("failed", "abandoned", "unknown")
_WORDS = {"completed": "done", "confirmed": "done", "started": "running", "intended": "running"}
_STYLES = {**dict.fromkeys(GOOD, "green"), **dict.fromkeys(BAD, "red")}


def _name(call: inspect.Call) -> str:
    name = f"{call.kind}: {call.name}" if call.kind != "step" else call.name
    return (
        f"{name} x {sum(call.counts.values()):,}" if isinstance(call, inspect.CallGroup) else name
    )


def _status(call: inspect.Call) -> Text:
    from rich.text import Text

    if isinstance(call, inspect.CallRow):
        return Text(call.status, style=_STYLES.get(call.status, "yellow"))
    by_word: dict[str, int] = {}
    for status, calls in call.counts.items():
        word = _WORDS.get(status, status)
        by_word[word] = by_word.get(word, 0) + calls
    is_good, is_bad = call.counts.keys() <= set(GOOD), call.counts.keys() & set(BAD)
    style = "red" if is_bad else "green" if is_good else "yellow"
    return Text(", ".join(f"{calls:,} {word}" for word, calls in by_word.items()), style=style)


def _result(call: inspect.Call) -> Any:
    if not isinstance(call, inspect.CallRow):
        return ""
    if call.error:
        return inspect.describe_error(call.error)
    return short_json(call.output) if call.status in GOOD else ""


CALL_COLUMNS = table(
    "call NAME/40 STATUS TRIES=attempts ENDED=ended_at@110 "
    "IDEMPOTENCY_KEY=idempotency_key/70@150 RESULT*200",
    NAME=_name,
    STATUS=_status,
    RESULT=_result,
)
