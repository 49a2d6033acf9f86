"""Alerts: what needs a person now, each with its one next action.

The order is that of a person on call: first what is wrong and grows worse, then who waits for an
answer, then what has failed and can wait until the morning.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from pgflow._desk.desk import Desk
from pgflow._desk.words import duration, many
from pgflow.inspect import (
    QueueRow,
    RunFilter,
    check_workers,
    count_left_messages,
    count_schedules,
    count_stuck,
    list_budgets,
    list_gates,
    list_losses,
    list_obligations,
    list_relays,
    list_runs,
    list_schedules,
    list_stray_leases,
    list_unserved_lanes,
)

MOST_ROWS = 8
"""Rows of one kind; the last one leads to the page that has the rest."""
LATE_SECONDS = 60.0
"""Time for which a run that could be claimed may wait before it is worth a look."""
SILENT_SECONDS = 10.0
"""Silence after which other workers count one as dead, by default."""
FAILED_WITHIN = timedelta(hours=24)
LEVELS = ("bad", "ask", "look")
"""Levels of alerts, in their order."""
SCHEDULE_STATES = {
    "active": "It starts a run at each slot.",
    "paused": "It starts nothing until it is resumed.",
    "undeclared": "No code of a living worker declares it, so it starts nothing until a worker or "
    "a tick has that code.",
    "broken": "Its slots cannot be evaluated, so it starts nothing.",
    "over": "No slot is left.",
}
"""States of schedules, and what they mean."""


@dataclass(frozen=True)
class Alert:
    """Something that needs a person.

    Attributes:
        kind: Kind of it, in a word or two.
        level: ``bad``, ``ask`` or ``look``: its place in the order, and its shape.
        name: Key or name of its subject.
        what: Words for it.
        since: Time since which it is so; None if that is not known.
        until: Time at which it is too late; None for none.
        action: Words for what to do.
        page: Page where that is done, by its name: ``run``, ``debt``, ``workers``, ...
        query: Parameters of that page: the key of a run, the name of a relay.
    """

    kind: str
    level: str
    name: str
    what: str
    since: datetime | None
    action: str
    page: str
    query: dict[str, Any] = field(default_factory=dict)
    until: datetime | None = None


async def find_alerts(desk: Desk, queues: list[QueueRow], now: datetime) -> list[Alert]:
    """Return what needs a person now, the most urgent first.

    Args:
        desk: The desk to ask at.
        queues: All queues.
        now: Time on the database's clock.
    """
    found = [alert async for part in _parts(desk, queues, now) for alert in part]
    return sorted(found, key=lambda alert: LEVELS.index(alert.level))


async def _parts(desk: Desk, queues: list[QueueRow], now: datetime) -> AsyncIterator[list[Alert]]:
    yield await _breached(desk)
    yield await _unknown(desk)
    yield await _stuck(desk)
    yield await _workers(desk)
    yield await _losses(desk)
    yield await _gates(desk)
    yield await _unserved(desk, queues, now)
    yield await _schedules(desk)
    yield await _relays(desk)
    yield await _budgets(desk)
    yield await _messages(desk)
    yield await _failed(desk, now)


def _cut(alerts: list[Alert], page: str, **query: str) -> list[Alert]:
    """Return alerts of one kind, cut to the number shown; the caller asks for one more than that.

    Args:
        alerts: The alerts.
        page: Page that has all of them.
        query: Parameters of that page.
    """
    if len(alerts) <= MOST_ROWS:
        return alerts
    over = alerts[MOST_ROWS]
    more = Alert(
        over.kind,
        over.level,
        "more",
        "There are more than are listed here.",
        None,
        "See all",
        page,
        query,
    )
    return [*alerts[:MOST_ROWS], more]


async def _breached(desk: Desk) -> list[Alert]:
    found = await desk.ask(
        list_obligations(
            state="breached", kind="obligation", tenant=desk.tenant, limit=MOST_ROWS + 1
        )
    )
    alerts = [
        Alert(
            "breached",
            "bad",
            debt.name,
            f"Run {debt.key} owes this"
            + (f" to {debt.owed_to}" if debt.owed_to else "")
            + ", and it was due.",
            debt.due_at,
            "Discharge it",
            "debt",
            {"key": debt.effect},
        )
        for debt in found
    ]
    return _cut(alerts, "obligations")


async def _unknown(desk: Desk) -> list[Alert]:
    alerts = []
    for state, what in (
        ("unknown", "Its outcome is unknown: it may or may not have been done."),
        ("uncompensated", "It was done, and pgflow will not take it back."),
    ):
        found = await desk.ask(
            list_obligations(state=state, kind="effect", tenant=desk.tenant, limit=MOST_ROWS + 1)
        )
        of_state = [
            Alert(
                "effect",
                "bad",
                debt.name,
                what if debt.due_at is None else f"{what} pgflow asks the other side again.",
                debt.opened_at,
                "Settle it",
                "debt",
                {"key": debt.effect},
            )
            for debt in found
        ]
        alerts += _cut(of_state, "effects")
    return alerts


async def _stuck(desk: Desk) -> list[Alert]:
    counts = await desk.ask(count_stuck())
    if sum(count.runs for count in counts) > MOST_ROWS:
        groups = [
            Alert(
                "stuck",
                "bad",
                many(count.runs, "run"),
                f"{count.reason}, such as {count.example}",
                None,
                "Look at one",
                "run",
                {"key": count.example},
            )
            for count in counts
        ]
        return _cut(groups, "runs", status="stuck")
    if not counts:
        return []
    where = RunFilter(status=["stuck"], tenant=desk.tenant)
    return [
        Alert(
            "stuck",
            "bad",
            run.key,
            run.why or "It cannot go on.",
            run.since,
            "Mend it, then retry",
            "run",
            {"key": run.key},
        )
        for run in await desk.ask(list_runs(where, limit=MOST_ROWS))
    ]


async def _workers(desk: Desk) -> list[Alert]:
    alerts = [
        Alert(
            "worker",
            "bad",
            f"{worker.host}:{worker.pid}",
            f"It was last heard of {duration(worker.silent_seconds)} ago, and holds "
            f"{many(worker.running, 'run')}.",
            None,
            "Look at the workers",
            "workers",
        )
        for worker in await desk.ask(check_workers())
        if worker.silent_seconds > SILENT_SECONDS
    ]
    alerts += [
        Alert(
            "worker",
            "bad",
            f"worker {stray.worker_id}",
            f"It is gone, and held {many(stray.runs, 'run')}: the next worker takes them over.",
            None,
            "Look at the workers",
            "workers",
        )
        for stray in await desk.ask(list_stray_leases())
    ]
    return alerts


async def _losses(desk: Desk) -> list[Alert]:
    return [
        Alert(
            "loss",
            "bad",
            f"loss {loss.loss_id}",
            f"A fail-over lost what was acknowledged of {many(loss.run_count, 'run')}.",
            loss.noticed_at,
            "See the runs",
            "runs",
        )
        for loss in await desk.ask(list_losses())
    ]


async def _gates(desk: Desk) -> list[Alert]:
    alerts = [
        Alert(
            "gate",
            "ask",
            gate.name,
            f"{gate.workflow} {gate.key} asks {', '.join(gate.approvers) or 'anybody'}.",
            gate.asked_at,
            "Answer it",
            "gate",
            {"gate": gate.gate},
            gate.expires_at,
        )
        for gate in await desk.ask(list_gates(tenant=desk.tenant, limit=MOST_ROWS + 1))
    ]
    return _cut(alerts, "gates")


async def _unserved(desk: Desk, queues: list[QueueRow], now: datetime) -> list[Alert]:
    alerts = [
        Alert(
            "queue",
            "bad",
            lane.workflow,
            f"{many(lane.queued, 'run')} queued: {lane.why}.",
            None,
            "Start a worker that has it",
            "queues",
        )
        for lane in await desk.ask(list_unserved_lanes(LATE_SECONDS, limit=MOST_ROWS + 1))
    ]
    return _cut(alerts, "queues") + _cut(_late(queues, now), "queues")


def _late(queues: list[QueueRow], now: datetime) -> list[Alert]:
    """Return the queues whose oldest run waits for too long."""
    alerts = []
    for queue in queues:
        oldest = queue.oldest_queued_at
        if oldest is None or (now - oldest).total_seconds() < LATE_SECONDS:
            continue
        what = f"{many(queue.queued, 'run')} queued"
        if queue.paused_at is not None:
            alerts.append(
                Alert(
                    "queue",
                    "look",
                    queue.queue,
                    f"{what}, and the queue is paused.",
                    oldest,
                    "Resume the queue",
                    "queues",
                )
            )
        elif not queue.workers:
            alerts.append(
                Alert(
                    "queue",
                    "bad",
                    queue.queue,
                    f"{what}, and no worker serves it.",
                    oldest,
                    "Start a worker",
                    "queues",
                )
            )
        else:
            alerts.append(
                Alert(
                    "queue",
                    "look",
                    queue.queue,
                    f"{what}, and the workers are behind.",
                    oldest,
                    "Look at the queue",
                    "queues",
                )
            )
    return alerts


async def _schedules(desk: Desk) -> list[Alert]:
    """Return the schedules that start nothing and should. What the good ones are called is not
    asked: there may be a thousand.
    """
    alerts = []
    for count in await desk.ask(count_schedules()):
        if count.state in ("broken", "undeclared"):
            of_state = [
                Alert(
                    "schedule",
                    "bad",
                    one.name,
                    one.error or SCHEDULE_STATES[count.state],
                    one.error_at or one.undeclared_at,
                    "Look at it",
                    "schedule",
                    {"name": one.name},
                )
                for one in await desk.ask(list_schedules(state=count.state, limit=MOST_ROWS + 1))
            ]
            alerts += _cut(of_state, "schedules")
        elif count.state == "active" and count.late_seconds > LATE_SECONDS:
            alerts.append(
                Alert(
                    "schedule",
                    "bad",
                    "schedules",
                    f"A slot has been due for {duration(count.late_seconds)}, and no worker "
                    "fires it.",
                    None,
                    "Look at the workers",
                    "workers",
                )
            )
    return alerts


async def _relays(desk: Desk) -> list[Alert]:
    alerts = []
    for relay in await desk.ask(list_relays()):
        if relay.dead:
            what = (
                f"{many(relay.dead, 'event')} could not be delivered, and will not be tried again."
            )
            level, since = "bad", None
        elif relay.state == "open":
            what, level, since = f"Its target fails: {relay.error}", "bad", relay.oldest_at
        elif relay.lag and relay.state == "paused":
            what = f"It is paused, and {many(relay.lag, 'event')} wait."
            level, since = "look", relay.oldest_at
        else:
            continue
        alerts.append(
            Alert(
                "relay",
                level,
                relay.name,
                what,
                since,
                "Look at it",
                "relay",
                {"name": relay.name},
            )
        )
    return _cut(alerts, "outbox")


async def _budgets(desk: Desk) -> list[Alert]:
    alerts = [
        Alert(
            "budget",
            "look",
            row.pool,
            f"It is revoked: {row.revoked_why}"
            if row.revoked_at
            else f"All {row.unit} of this period are spent.",
            row.revoked_at,
            "Grant more, or restore it",
            "budget",
            {"pool": row.pool},
        )
        for row in await desk.ask(list_budgets(limit=100))
        if row.revoked_at or (row.remaining is not None and row.remaining <= 0)
    ]
    return _cut(alerts, "budgets")


async def _messages(desk: Desk) -> list[Alert]:
    words = {
        "refused": "the code of the run could not take them.",
        "ended": "the run had ended.",
    }
    return [
        Alert(
            "signal",
            "look",
            many(left.messages, "signal"),
            f"They were not received: {words[left.state]} One is for {left.example}.",
            None,
            "Look at that run",
            "run",
            {"key": left.example},
        )
        for left in await desk.ask(count_left_messages())
    ]


async def _failed(desk: Desk, now: datetime) -> list[Alert]:
    """Return the newest runs that failed within a day. Their order is that of their starts, by
    which the index finds them.
    """
    where = RunFilter(status=["failed"], tenant=desk.tenant)
    alerts = [
        Alert(
            "failed",
            "look",
            run.key,
            run.why or "It raised.",
            run.finished_at,
            "Read its error",
            "run",
            {"key": run.key},
        )
        for run in await desk.ask(list_runs(where, limit=MOST_ROWS + 1))
        if run.finished_at is not None and now - run.finished_at < FAILED_WITHIN
    ]
    return _cut(alerts, "runs", status="failed")
