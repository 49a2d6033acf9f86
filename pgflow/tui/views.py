"""Views: tables of what there is, each read by one or few small questions.

A view is data: the same rows are drawn live, printed by ``--once``, and given to scripts as JSON.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from pgflow import inspect
from pgflow.console.alert import Alert, total
from pgflow.console.alerts import SILENT_SECONDS, find_alerts
from pgflow.console.backend import Backend
from pgflow.console.orders import OPEN
from pgflow.console.output import STYLES, Column, age, as_object, duration, make_table, many, table
from pgflow.console.plots import bars

MOST_ROWS = 100
"""Rows of a view; there may be millions."""
MARKS = {
    "bad": ("!", "bold red"), "ask": ("?", "bold yellow"), "look": ("-", "cyan"),
    "auto": ("~", "dim"),
}  # fmt: skip
"""Marks of the levels of needs, which differ without colours too."""
GATE_NAMES = (
    "gate", "key", "workflow", "name", "asked_at", "expires_at", "approvers", "quorum",
    "payload_hash",
)  # fmt: skip
DEBT_NAMES = (
    "effect", "key", "kind", "name", "state", "reason", "opened_at", "due_at", "owed_to", "holder",
)  # fmt: skip

Place = tuple[str, str]
"""Page and key of what a row is about: ``("run", "order-1")``."""
Rows = list[Any]


@dataclass(frozen=True)
class View:
    """A table of the screen.

    Attributes:
        name: Its name in JSON.
        title: Its heading.
        read: Function that reads its rows at a backend; the last argument is a status of runs, or
            empty.
        columns: Function from the time at which rows were read, on the database's clock, to the
            columns.
        empty: Words for no rows.
        place: Function that says what a row is about; None for nothing that has a page.
        every: Number of ticks after which it is read again: those that ask much, seldom.
        names: Attributes of a row that JSON has; empty for all.
    """

    name: str
    title: str
    read: Callable[[Backend, str], Awaitable[Iterable[Any]]]
    columns: Callable[[datetime], Sequence[Column]]
    empty: str
    place: Callable[[Any], Place | None] = lambda _: None
    every: int = 1
    names: tuple[str, ...] = ()


# ---------------------------------------------------------------- what is read


async def _needs(backend: Backend, _: str) -> Rows:
    return await find_alerts(
        backend, await backend.ask(inspect.list_queues()), await backend.ask(inspect.database_now())
    )


async def _runs(backend: Backend, status: str) -> Rows:
    chosen = inspect.RunFilter(status=[status] if status else [], tenant=backend.tenant)
    return (await backend.ask(inspect.list_runs(chosen, limit=MOST_ROWS))).items


async def _debts(backend: Backend, _: str) -> Rows:
    found = await backend.ask(inspect.list_obligations(tenant=backend.tenant, limit=MOST_ROWS))
    return [debt for debt in found if debt.kind != "gate"]


# ---------------------------------------------------------------- how it is drawn


def _left(at: datetime | None, now: datetime) -> Text | str:
    """Return the time until a moment; "over" in red once it has passed."""
    if at is not None and at < now:
        return Text("over", style="red")
    return "" if at is None else age(now, at)


def _state_of_worker(row: inspect.WorkerRow, now: datetime) -> Text:
    silent = (now - row.beat_at).total_seconds()
    if silent > SILENT_SECONDS:
        return Text(f"silent for {silent:.0f} s", style="bold red")
    if row.lost_threads:
        return Text(many(row.lost_threads, "lost thread"), style="red")
    return Text("stopping" if row.stopping else "outdated" if row.is_outdated else "works")


def _state_of_queue(row: inspect.QueueRow) -> Text:
    if row.paused_at is not None:
        return Text("paused", style="magenta")
    return Text("no worker" if row.queued and not row.workers else "", style="bold red")


def _state_of_debt(row: inspect.ObligationRow) -> Text:
    is_bad = row.state in ("unknown", "uncompensated", "breached")
    return Text(row.state or "", style="bold red" if is_bad else "")


def _state_of_budget(row: inspect.BudgetRow) -> Text:
    if row.revoked_at is not None:
        return Text("revoked", style="red")
    return Text("used up" if row.remaining is not None and row.remaining <= 0 else "", style="red")


def _used(row: inspect.BudgetRow) -> Text:
    """Return a bar of what is spent and reserved of a limit."""
    if row.allowed is None or row.allowed <= 0:
        return Text("")
    spent = min(1.0, float((row.charged + row.reserved) / row.allowed))
    full = round(spent * 10)
    return Text("#" * full + "." * (10 - full), style="red" if spent >= 1 else "green")


def _need_place(row: Alert) -> Place | None:
    key = row.query.get("gate") if row.page == "gate" else row.query.get("key")
    return (row.page, key) if row.page in ("run", "debt", "gate") and key else None


def _examples(row: Alert) -> str:
    return ", ".join(f"{one.key} {one.amount}".strip() for one in row.examples)


VIEWS = (
    View(
        "needs",
        "Triage",
        _needs,
        lambda now: [
            Column("", lambda row: Text(MARKS[row.level][0], style=MARKS[row.level][1])),
            *table(
                "kind name/28 amount>@120 what*200 SUCH_AS/40@140 since action@120",
                now,
                SUCH_AS=_examples,
            ),
        ],
        "Nothing needs you.",
        _need_place,
        every=5,
    ),
    View(
        "queues",
        "Queues",
        lambda backend, _: backend.ask(inspect.list_queues()),
        lambda now: table(
            "queue*60 queued# running# waiting# paused# stuck# OLDEST=oldest_queued_at workers#"
            " STATE@90",
            now,
            STATE=_state_of_queue,
        ),
        "No runs yet. `pgflow init` sets up a project.",
    ),
    View(
        "runs",
        "Runs",
        _runs,
        lambda now: table("key/36 status workflow/24@60 queue@120 FOR=since why*200", now),
        "No runs match.",
        lambda row: ("run", row.key),
    ),
    View(
        "workers",
        "Workers",
        lambda backend, _: backend.ask(inspect.list_workers()),
        lambda now: table(
            "WORKER/36 queues*60 RUNS> UP=started_at STATE version@100",
            now,
            WORKER=lambda row: f"{row.host}:{row.pid}",
            RUNS=lambda row: f"{row.running}/{row.concurrency}",
            STATE=lambda row: _state_of_worker(row, now),
        ),
        "No worker is running. `pgflow workers MODULE` starts one.",
        lambda row: ("worker", str(row.worker_id)),
    ),
    View(
        "gates",
        "Gates",
        lambda backend, _: backend.ask(inspect.list_gates(tenant=backend.tenant, limit=MOST_ROWS)),
        lambda now: table(
            "GATE=name/28 RUN=key/36 ASKS*60 ASKED=asked_at LEFT>",
            now,
            ASKS=lambda row: ", ".join(row.approvers) or "anybody",
            LEFT=lambda row: _left(row.expires_at, now),
        ),
        "No gate waits for an answer.",
        lambda row: ("gate", row.gate),
        names=GATE_NAMES,
    ),
    View(
        "debts",
        "Owed",
        _debts,
        lambda now: table(
            "name/28 kind@70 STATE RUN=key*60 SINCE=opened_at DUE_IN>",
            now,
            STATE=_state_of_debt,
            DUE_IN=lambda row: _left(row.due_at, now),
        ),
        "Nothing is owed.",
        lambda row: ("debt", row.effect) if row.effect else None,
        names=DEBT_NAMES,
    ),
    View(
        "budgets",
        "Spend",
        lambda backend, _: backend.ask(inspect.list_budgets(limit=MOST_ROWS)),
        lambda _: table(
            "pool*60 unit allowed charged reserved LEFT=remaining USED STATE@80",
            USED=_used,
            STATE=_state_of_budget,
        ),
        "There are no pools.",
    ),
)
"""The views, in the order of their keys."""


@dataclass(frozen=True)
class Picture:
    """All views as of a time on the database's clock, and the pulse."""

    at: datetime
    pulse: dict[str, Any]
    rows: dict[str, Rows]

    def as_json(self) -> dict[str, Any]:
        """Return it for scripts."""
        views = {
            view.name: [as_object(row, view.names) for row in self.rows[view.name]]
            for view in VIEWS
        }
        return {"at": self.at, "pulse": self.pulse, **views}


async def take_picture(backend: Backend) -> Picture:
    """Return the pulse and the rows of all views."""
    now, pulse = await backend.ask(inspect.database_now()), await read_pulse(backend)
    return Picture(now, pulse, {view.name: [*await view.read(backend, "")] for view in VIEWS})


def draw(picture: Picture, width: int) -> Iterator[RenderableType]:
    """Yield a picture as tables for people."""
    yield draw_pulse(picture.pulse, width)
    yield Text("")
    for view in VIEWS:
        rows = picture.rows[view.name]
        needs = total(row for row in rows if row.level != "auto") if view.name == "needs" else 0
        yield Text(f"{view.title} {needs:,}" if needs else view.title, style="bold")
        yield make_table(view.columns(picture.at), rows, width) if rows else Text(view.empty)
        yield Text("")


LATE_MINUTES = 5
"""Whole minutes over which runs a minute are averaged: the one that goes on is not whole."""
MINUTES = 60
LEAST_BARS = 10


async def read_pulse(backend: Backend) -> dict[str, Any]:
    """Return totals of open runs, runs a minute of late, and latencies of the last hour."""
    queues = await backend.ask(inspect.list_queues())
    rates = await backend.ask(inspect.read_rates(MINUTES))
    late = rates.bins[-1 - LATE_MINUTES : -1]
    return {
        **{state: sum(getattr(queue, state) for queue in queues) for state in OPEN},
        "started_a_minute": sum(minute.started for minute in late) / LATE_MINUTES,
        "ended_a_minute": sum(minute.ended for minute in late) / LATE_MINUTES,
        "failed_in_an_hour": sum(minute.failed for minute in rates.bins),
        "p50_seconds": rates.p50_seconds,
        "p99_seconds": rates.p99_seconds,
        "ended_by_minute": [minute.ended for minute in rates.bins],
    }


def draw_pulse(pulse: dict[str, Any], width: int) -> Text:
    """Return the line: each part that fits, and bars of the hour in what is left."""
    line = Text(no_wrap=True)
    for part in _parts(pulse):
        gap = 2 if line.cell_len else 0
        if line.cell_len + gap + part.cell_len <= width:
            line.append(" " * gap).append_text(part)
    room = min(MINUTES, width - line.cell_len - 2)
    if room >= LEAST_BARS and any(pulse["ended_by_minute"]):
        line.append("  " + bars(pulse["ended_by_minute"][-room:]), style="green")
    return line


def _parts(pulse: dict[str, Any]) -> list[Text]:
    """The parts of the line, the first ones for the narrowest terminal."""
    found = [
        Text(f"{pulse[state]:,} {state}", style=STYLES[state] if pulse[state] else "dim")
        for state in OPEN
        if pulse[state] or state in ("queued", "running", "waiting")
    ]
    failed = pulse["failed_in_an_hour"]
    of_failed = Text(f"{failed:,} failed in 1h", style="red" if failed else "dim")
    found += [of_failed] if failed else []
    found.append(Text(f"{pulse['ended_a_minute']:,.1f} ended/min"))
    if pulse["p50_seconds"] is not None:
        took = f"p50 {duration(pulse['p50_seconds'])} p99 {duration(pulse['p99_seconds'])}"
        found.append(Text(took))
    found.append(Text(f"{pulse['started_a_minute']:,.1f} started/min"))
    return found if failed else [*found, of_failed]
