"""Views: tables of what there is, each read by one or few small questions.

A view is data: the same rows are drawn live, printed by ``--once``, and given to scripts as JSON.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from pgflow._desk.desk import Desk
from pgflow._desk.needs import SILENT_SECONDS, find_needs
from pgflow.inspect import (
    RunFilter,
    database_now,
    list_budgets,
    list_gates,
    list_obligations,
    list_queues,
    list_runs,
    list_workers,
)
from pgflow_cli.look.database import as_row
from pgflow_cli.look.output import (
    STYLES,
    Column,
    Row,
    age,
    amount,
    make_table,
    many,
    plain,
    styled_status,
)
from pgflow_cli.top.pulse import draw_pulse, read_pulse

MOST_ROWS = 100
"""Rows of a view; there may be millions."""
SEEN = "seen_at"
"""Column with the time at which a row was read, by the database's clock. Ages are computed from
it.
"""
MARKS = {"bad": ("!", "bold red"), "ask": ("?", "bold yellow"), "look": ("-", "cyan")}
"""Marks of the levels of needs, which differ without colours too."""

Place = tuple[str, str]
"""Page and key of what a row is about: ``("run", "order-1")``."""
Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class View:
    """A table of the screen.

    Attributes:
        name: Its name in JSON.
        title: Its heading.
        columns: Its columns.
        read: Function that reads its rows at a desk, at a time of the database's clock; the last
            argument is a status of runs, or empty.
        place: Function that says what a row is about; None for nothing that has a page.
        empty: Words for no rows.
        every: Number of ticks after which it is read again: those that ask much, seldom.
    """

    name: str
    title: str
    columns: tuple[Column, ...]
    read: Callable[[Desk, datetime, str], Awaitable[Rows]]
    place: Callable[[Row], Place | None]
    empty: str
    every: int = 1


# ---------------------------------------------------------------- what is read


async def _needs(desk: Desk, now: datetime, status: str) -> Rows:
    del status
    found = await find_needs(desk, await desk.ask(list_queues()), now)
    return [as_row(need) for need in found]


async def _queues(desk: Desk, now: datetime, status: str) -> Rows:
    del now, status
    return [as_row(queue) for queue in await desk.ask(list_queues())]


async def _runs(desk: Desk, now: datetime, status: str) -> Rows:
    del now
    where = RunFilter(status=[status] if status else [], tenant=desk.tenant)
    return [as_row(run) for run in await desk.ask(list_runs(where, limit=MOST_ROWS))]


async def _workers(desk: Desk, now: datetime, status: str) -> Rows:
    del now, status
    return [as_row(worker) for worker in await desk.ask(list_workers())]


GATE_NAMES = (
    "gate", "key", "workflow", "name", "asked_at", "expires_at", "approvers", "quorum",
    "payload_hash",
)  # fmt: skip


async def _gates(desk: Desk, now: datetime, status: str) -> Rows:
    del now, status
    found = await desk.ask(list_gates(tenant=desk.tenant, limit=MOST_ROWS))
    return [as_row(gate, GATE_NAMES) for gate in found]


DEBT_NAMES = (
    "effect", "key", "kind", "name", "state", "reason", "opened_at", "due_at", "owed_to", "holder",
)  # fmt: skip


async def _debts(desk: Desk, now: datetime, status: str) -> Rows:
    del now, status
    found = await desk.ask(list_obligations(tenant=desk.tenant, limit=MOST_ROWS))
    return [as_row(debt, DEBT_NAMES) for debt in found if debt.kind != "gate"]


async def _budgets(desk: Desk, now: datetime, status: str) -> Rows:
    del now, status
    return [as_row(row) for row in await desk.ask(list_budgets(limit=MOST_ROWS))]


# ---------------------------------------------------------------- how it is drawn


def _mark(row: Row) -> Text:
    mark, style = MARKS[row["level"]]
    return Text(mark, style=style)


def _count(name: str) -> Column:
    return Column(
        name.upper(),
        lambda row: Text(f"{row[name]:,}", style=STYLES.get(name, "") if row[name] else "dim"),
        right=True,
    )


def _age(title: str, name: str, from_width: int = 0) -> Column:
    return Column(title, lambda row: plain(age(row[name], row[SEEN])), from_width, right=True)


def _left(name: str) -> Callable[[Row], Text]:
    """Return a cell with the time until a moment; red once that is over."""

    def cell(row: Row) -> Text:
        if row[name] is None:
            return Text("")
        left = age(row[SEEN], row[name])
        return Text("over", style="red") if row[name] < row[SEEN] else Text(left)

    return cell


def _state_of_worker(row: Row) -> Text:
    silent = (row[SEEN] - row["beat_at"]).total_seconds()
    if silent > SILENT_SECONDS:
        return Text(f"silent for {silent:.0f} s", style="bold red")
    if row["lost_threads"]:
        return Text(many(row["lost_threads"], "lost thread"), style="red")
    return Text("stopping" if row["stopping"] else "outdated" if row["is_outdated"] else "works")


def _state_of_queue(row: Row) -> Text:
    if row["paused_at"] is not None:
        return Text("paused", style="magenta")
    if row["queued"] and not row["workers"]:
        return Text("no worker", style="bold red")
    return Text("")


def _state_of_budget(row: Row) -> Text:
    if row["revoked_at"] is not None:
        return Text("revoked", style="red")
    if row["remaining"] is not None and row["remaining"] <= 0:
        return Text("used up", style="red")
    return Text("")


def _used(row: Row) -> Text:
    """Return a bar of what is spent and reserved of a limit."""
    if row["allowed"] is None or row["allowed"] <= 0:
        return Text("")
    spent = float(min(Decimal(1), (row["charged"] + row["reserved"]) / row["allowed"]))
    full = round(spent * 10)
    return Text("#" * full + "." * (10 - full), style="red" if spent >= 1 else "green")


def _texts(name: str, empty: str = "") -> Callable[[Row], Text]:
    return lambda row: plain(", ".join(row[name]) or empty)


def _of(name: str) -> Callable[[Row], Text]:
    return lambda row: plain(row[name])


def _amount(title: str, name: str) -> Column:
    return Column(title, lambda row: plain(amount(row[name])), right=True)


def _need_place(row: Row) -> Place | None:
    said = row["said"]
    key = said.get("gate") if row["page"] == "gate" else said.get("key")
    return (row["page"], key) if row["page"] in ("run", "debt", "gate") and key else None


VIEWS = (
    View(
        "needs", "Triage",
        (
            Column("", _mark), Column("KIND", _of("kind")), Column("NAME", _of("name"), most=28),
            Column("WHAT", _of("what"), most=200, takes_rest=True), _age("SINCE", "since"),
            Column("ACTION", _of("action"), 120),
        ),
        _needs, _need_place, "Nothing needs you.", every=5,
    ),
    View(
        "queues", "Queues",
        (
            Column("QUEUE", _of("queue"), takes_rest=True), _count("queued"), _count("running"),
            _count("waiting"), _count("paused"), _count("stuck"),
            _age("OLDEST", "oldest_queued_at"), _count("workers"),
            Column("STATE", _state_of_queue, 90),
        ),
        _queues, lambda _: None, "No runs yet. `pgflow init` sets up a project.",
    ),
    View(
        "runs", "Runs",
        (
            Column("KEY", _of("key"), most=36), Column("STATUS", lambda row: styled_status(
                row["status"])),
            Column("WORKFLOW", _of("workflow"), 60, most=24), Column("QUEUE", _of("queue"), 120),
            _age("FOR", "since"), Column("WHY", _of("why"), most=200, takes_rest=True),
        ),
        _runs, lambda row: ("run", row["key"]), "No runs match.",
    ),
    View(
        "workers", "Workers",
        (
            Column("WORKER", lambda row: plain(f"{row['host']}:{row['pid']}"), most=36),
            Column("QUEUES", _texts("queues"), takes_rest=True),
            Column("RUNS", lambda row: plain(f"{row['running']}/{row['concurrency']}"), right=True),
            _age("UP", "started_at"), Column("STATE", _state_of_worker),
            Column("VERSION", _of("version"), 100),
        ),
        _workers, lambda row: ("worker", str(row["worker_id"])),
        "No worker is running. `pgflow workers MODULE` starts one.",
    ),
    View(
        "gates", "Gates",
        (
            Column("GATE", _of("name"), most=28), Column("RUN", _of("key"), most=36),
            Column("ASKS", _texts("approvers", "anybody"), takes_rest=True),
            _age("ASKED", "asked_at"), Column("LEFT", _left("expires_at"), right=True),
        ),
        _gates, lambda row: ("gate", row["gate"]), "No gate waits for an answer.",
    ),
    View(
        "debts", "Owed",
        (
            Column("NAME", _of("name"), most=28), Column("KIND", _of("kind"), 70),
            Column("STATE", lambda row: Text(row["state"] or "", style="bold red" if row["state"]
                in ("unknown", "uncompensated", "breached") else "")),
            Column("RUN", _of("key"), takes_rest=True), _age("SINCE", "opened_at"),
            Column("DUE IN", _left("due_at"), right=True),
        ),
        _debts, lambda row: ("debt", row["effect"]) if row["effect"] else None,
        "Nothing is owed.",
    ),
    View(
        "budgets", "Spend",
        (
            Column("POOL", _of("pool"), takes_rest=True), Column("UNIT", _of("unit")),
            _amount("ALLOWED", "allowed"), _amount("CHARGED", "charged"),
            _amount("RESERVED", "reserved"), _amount("LEFT", "remaining"),
            Column("USED", _used), Column("STATE", _state_of_budget, 80),
        ),
        _budgets, lambda _: None, "There are no pools.",
    ),
)  # fmt: skip
"""The views, in the order of their keys."""


async def read(view: View, desk: Desk, now: datetime, status: str = "") -> Rows:
    """Return the rows of a view, each with the time at which it was read."""
    return [{**row, SEEN: now} for row in await view.read(desk, now, status)]


async def take_picture(desk: Desk) -> dict[str, Any]:
    """Return the pulse, the rows of all views, and the time on the database's clock."""
    now = await desk.ask(database_now())
    pulse = await read_pulse(desk)
    return {
        "at": now,
        "pulse": pulse,
        **{view.name: await view.read(desk, now, "") for view in VIEWS},
    }


def draw(picture: dict[str, Any], width: int) -> Iterator[RenderableType]:
    """Yield a picture as tables for people."""
    yield draw_pulse(picture["pulse"], width)
    yield Text("")
    for view in VIEWS:
        rows = [{**row, SEEN: picture["at"]} for row in picture[view.name]]
        yield Text(view.title, style="bold")
        yield make_table(view.columns, rows, width) if rows else Text(view.empty)
        yield Text("")
