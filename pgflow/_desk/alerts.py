"""Alerts: what needs a person now, each with its one next action.

The order is that of a person on call: first what is wrong and grows worse, then who waits for an
answer, then what has failed and can wait until the morning.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from pgflow._desk.amounts import amount_of
from pgflow._desk.desk import Desk
from pgflow._desk.words import counted, duration, many
from pgflow.inspect import (
    DebtGroup,
    GateGroup,
    QueueRow,
    RunGroup,
    WorkerRow,
    check_workers,
    count_debts,
    count_gates,
    count_left_messages,
    count_schedules,
    group_runs,
    list_budgets,
    list_losses,
    list_relays,
    list_schedules,
    list_stray_leases,
    list_unserved_lanes,
)

MOST_ROWS = 8
"""Groups of one kind; a last row leads to the page that has the rest."""
LATE_SECONDS = 60.0
"""Time for which a run that could be claimed may wait before it is worth a look."""
SILENT_SECONDS = 10.0
"""Silence after which other workers count one as dead, by default."""
MOST_LANES = 1000
FLEET_SECONDS = 5.0
"""Time for which an answer counts that reads every open run, and changes with the fleet."""
FAILED_WITHIN = timedelta(hours=24)
LEVELS = ("bad", "ask", "look", "auto")
"""Levels of alerts, in their order: what needs repair, what waits for an answer, what is worth a
look, and what pgflow resolves by itself.
"""
DEBT_PARTS = (
    ("breached", "bad", "obligations"), ("effect", "bad", "effects"), ("effect", "auto", "effects"),
)  # fmt: skip
"""Kinds of debts and their levels, and the page of each."""
UNKNOWN = "Its outcome is unknown: it may or may not have been done."
UNCOMPENSATED = "It was done, and pgflow will not take it back."
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
class Example:
    """One of the things that an alert is about.

    Attributes:
        key: Key of the run.
        amount: Amount that it is about, in words; empty if none is found.
        since: Time since which it is so; None if that is not known.
        page: Page that has it.
        query: Parameters of that page.
    """

    key: str
    amount: str
    since: datetime | None
    page: str
    query: dict[str, Any]


@dataclass(frozen=True)
class Alert:
    """Something that needs a person, or a group of things of one kind.

    Attributes:
        kind: Kind of it, in a word or two.
        level: One of ``LEVELS``: its place in the order, and its shape.
        name: Key or name of its subject.
        what: Words for it.
        since: Time since which it is so; None if that is not known.
        until: Time at which it is too late; None for none.
        action: Words for what to do.
        page: Page where that is done, by its name: ``run``, ``debt``, ``workers``, ...
        query: Parameters of that page: the key of a run, the name of a relay.
        count: Number of things that it stands for.
        amount: Amount that it is about, in words; empty if none is found, or it is a group.
        examples: Up to five things of a group.
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
    count: int = 1
    amount: str = ""
    examples: tuple[Example, ...] = ()


def total(alerts: Iterable[Alert]) -> int:
    """Return the number of things that alerts stand for."""
    return sum(alert.count for alert in alerts)


async def find_alerts(desk: Desk, queues: list[QueueRow], now: datetime) -> list[Alert]:
    """Return what needs a person now, the most urgent first.

    Args:
        desk: The desk to ask at.
        queues: All queues.
        now: Time on the database's clock.
    """
    found = [alert async for part in _parts(desk, queues, now) for alert in part]
    return sorted(found, key=lambda alert: LEVELS.index(alert.level))


@dataclass(frozen=True)
class Verdict:
    """Health of the system, in a line.

    Attributes:
        level: ``bad``, ``look`` or ``well``.
        word: The same in a word or two.
        words: The reasons.
        needs: Number of things that need a person.
    """

    level: str
    word: str
    words: str
    needs: int


def verdict_of(
    alerts: Sequence[Alert], queues: Sequence[QueueRow], workers: Sequence[WorkerRow]
) -> Verdict:
    """Return whether the system is healthy, by all that needs a person."""
    asked = total(alert for alert in alerts if alert.level == "ask")
    needs = total(alert for alert in alerts if alert.level != "auto")
    for level, word in (("bad", "Needs repair:"), ("look", "Works, with something to look at:")):
        some = [alert for alert in alerts if alert.level == level]
        kinds = dict.fromkeys(alert.kind for alert in some)
        said = [
            f"{counted(total(one for one in some if one.kind == kind))} {kind}" for kind in kinds
        ]
        if some:
            return Verdict(level, word, f"{', '.join(said)}.", needs)
    served = f"{many(len(workers), 'worker')}, {many(sum(one.queued for one in queues), 'run')}"
    answers = f" Open for an answer: {counted(asked, 'gate')}." if asked else ""
    return Verdict("well", "Healthy.", f"{served} queued, and nothing is stuck.{answers}", needs)


async def _parts(desk: Desk, queues: list[QueueRow], now: datetime) -> AsyncIterator[list[Alert]]:
    for part in (_debts, _stuck, _workers, _losses, _gates):
        yield await part(desk)
    yield await _unserved(desk, queues, now)
    for part in (_schedules, _relays, _budgets, _messages, _failed):
        yield await part(desk)


def _cut(alerts: list[Alert], page: str, of: int = 0, **query: str) -> list[Alert]:
    """Return alerts of one kind, cut to the number shown, and one for all that are left out.

    Args:
        alerts: The alerts.
        page: Page that has all of them.
        of: Number of all things, if these alerts may not be all.
        query: Parameters of that page.
    """
    left_out = alerts[MOST_ROWS:]
    if not left_out:
        return alerts
    rest = max(total(left_out), of - total(alerts[:MOST_ROWS]))
    more = Alert(
        left_out[0].kind,
        left_out[0].level,
        f"{counted(rest)} more",
        "",
        None,
        "See all",
        page,
        query,
        count=rest,
    )
    return [*alerts[:MOST_ROWS], more]


def _group(alert: Alert, examples: Sequence[Example], all_of_it: Alert) -> Alert:
    """Return the alert of a group: that of its one thing, or that of all.

    Args:
        alert: Alert if there is one thing only.
        examples: Things of the group.
        all_of_it: Alert for all things.
    """
    if all_of_it.count == 1 and examples:
        return replace(alert, amount=examples[0].amount)
    return replace(all_of_it, examples=tuple(examples))


async def _debts(desk: Desk) -> list[Alert]:
    groups = await desk.ask(
        count_debts(("breached", "unknown", "uncompensated"), tenant=desk.tenant)
    )
    alerts = [_debt(desk, group) for group in groups]
    found = []
    for kind, level, page in DEBT_PARTS:
        found += _cut([one for one in alerts if (one.kind, one.level) == (kind, level)], page)
    return found


def _debt(desk: Desk, group: DebtGroup) -> Alert:
    first = group.oldest[0]
    if group.kind == "obligation":
        kind, level, what = "breached", "bad", "It was due, and is still open"
        action, to = "Discharge it", f" to {first.owed_to}" if first.owed_to else ""
        said = f"Run {first.key} owes this{to}, and it was due."
    else:
        kind, what = "effect", UNKNOWN if group.state == "unknown" else UNCOMPENSATED
        level = "auto" if group.is_watched else "bad"
        action = "Look at it" if group.is_watched else "Settle it"
        said = f"Run {first.key}. {what}"
    alert = Alert(
        kind, level, group.name, said, first.opened_at, action, "debt", {"key": first.effect}
    )
    examples = [
        Example(
            one.key, amount_of(desk.clear(one.facts)), one.opened_at, "debt", {"key": one.effect}
        )
        for one in group.oldest
    ]
    grouped = replace(
        alert,
        what=f"{counted(group.debts)} times. {what}",
        action="See all",
        page=f"{group.kind}s",
        query={"state": group.state},
        count=group.debts,
    )
    return _group(alert, examples, grouped)


async def _stuck(desk: Desk) -> list[Alert]:
    groups = await desk.ask(group_runs("stuck", tenant=desk.tenant))
    alerts = [
        _runs(desk, group, "stuck", "bad", "It cannot go on.", "Mend it, then retry")
        for group in groups
    ]
    return _cut(alerts, "runs", status="stuck")


def _runs(desk: Desk, group: RunGroup, status: str, level: str, nothing: str, do: str) -> Alert:
    """Return the alert for runs of one workflow that are stuck or have failed for one reason."""
    first = group.newest[0]
    alert = Alert(
        status, level, first.key, first.why or nothing, first.since, do, "run", {"key": first.key}
    )
    examples = [
        Example(one.key, amount_of(desk.clear(one.input)), one.since, "run", {"key": one.key})
        for one in group.newest
    ]
    return _group(
        alert,
        examples,
        replace(
            alert,
            name=group.workflow,
            what=f"{counted(group.runs, 'run')}: {group.reason or nothing}",
            action="See all",
            page="runs",
            query={"status": status, "workflow": group.workflow},
            count=group.runs,
        ),
    )


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
        for stray in await desk.ask_seldom("strays", list_stray_leases(), FLEET_SECONDS)
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
    groups = await desk.ask(count_gates(tenant=desk.tenant))
    return _cut([_gate(desk, group) for group in groups if group.oldest], "gates")


def _gate(desk: Desk, group: GateGroup) -> Alert:
    first = group.oldest[0]
    asked = f"asks {', '.join(first.approvers) or 'anybody'}."
    alert = Alert(
        "gate",
        "ask",
        group.name,
        f"{group.workflow} {first.key} {asked}",
        group.asked_at,
        "Answer it",
        "gate",
        {"gate": first.gate},
        group.expires_at,
    )
    examples = [
        Example(
            gate.key,
            amount_of(desk.clear(gate.request)),
            gate.asked_at,
            "gate",
            {"gate": gate.gate},
        )
        for gate in group.oldest
    ]
    return _group(
        alert,
        examples,
        replace(
            alert,
            what=f"{counted(group.gates, 'gate')} of {group.workflow}. Each {asked}",
            action=f"Answer {counted(group.gates)}",
            page="gates",
            query={"workflow": group.workflow, "name": group.name},
            count=group.gates,
        ),
    )


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
        for lane in await desk.ask_seldom(
            "lanes", list_unserved_lanes(LATE_SECONDS, limit=MOST_LANES), FLEET_SECONDS
        )
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
            alerts += _cut(of_state, "schedules", of=count.schedules)
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


async def _failed(desk: Desk) -> list[Alert]:
    """Return the runs that failed within a day, by workflow and class of their error."""
    groups = await desk.ask(group_runs("failed", within=FAILED_WITHIN, tenant=desk.tenant))
    alerts = [
        _runs(desk, group, "failed", "look", "It raised.", "Read its error") for group in groups
    ]
    return _cut(alerts, "runs", status="failed", since="24h")
