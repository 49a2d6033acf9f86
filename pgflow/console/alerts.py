"""Alerts: what needs a person now, each with its one next action.

The order is that of a person on call: first what is wrong and grows worse, then who waits for an
answer, then what has failed and can wait until the morning.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from pgflow.console.alert import LEVELS, MOST_ROWS, Alert, cut, total
from pgflow.console.backend import Backend
from pgflow.console.groups import find_debts, find_failed, find_gates, find_stuck
from pgflow.console.output import many
from pgflow.console.words import counted, duration
from pgflow.inspect import (
    QueueRow,
    WorkerRow,
    check_workers,
    count_left_messages,
    count_schedules,
    list_budgets,
    list_losses,
    list_relays,
    list_schedules,
    list_stray_leases,
    list_unserved_lanes,
)

LATE_SECONDS = 60.0
"""Time for which a run that could be claimed may wait before it is worth a look."""
SILENT_SECONDS = 10.0
"""Silence after which other workers count one as dead, by default."""
MOST_LANES = 1000
FLEET_SECONDS = 5.0
"""Time for which an answer counts that reads every open run, and changes with the fleet."""
SCHEDULE_STATES = {
    "active": "It starts a run at each slot.",
    "paused": "It starts nothing until it is resumed.",
    "undeclared": "No code of a living worker declares it, so it starts nothing until a worker or "
    "a tick has that code.",
    "broken": "Its slots cannot be evaluated, so it starts nothing.",
    "over": "No slot is left.",
}
"""States of schedules, and what they mean."""


async def find_alerts(backend: Backend, queues: list[QueueRow], now: datetime) -> list[Alert]:
    """Return what needs a person now, the most urgent first.

    Args:
        backend: The backend to ask at.
        queues: All queues.
        now: Time on the database's clock.
    """
    found = [alert async for part in _parts(backend, queues, now) for alert in part]
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
    for level, word in (("bad", "Needs repair:"), ("look", "Working, with something to look at:")):
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


async def _parts(
    backend: Backend, queues: list[QueueRow], now: datetime
) -> AsyncIterator[list[Alert]]:
    for part in (find_debts, find_stuck, _workers, _losses, find_gates):
        yield await part(backend)
    yield await _unserved(backend, queues, now)
    for part in (_schedules, _relays, _budgets, _messages, find_failed):
        yield await part(backend)


async def _workers(backend: Backend) -> list[Alert]:
    alerts = [
        Alert(
            "worker",
            "bad",
            f"{worker.host}:{worker.pid}",
            f"Silent for {duration(worker.silent_seconds)}. The next live worker takes over its "
            f"{many(worker.running, 'run')}.",
            None,
            "Look at the workers",
            "workers",
        )
        for worker in await backend.ask(check_workers())
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
        for stray in await backend.ask_seldom("strays", list_stray_leases(), FLEET_SECONDS)
    ]
    return alerts


async def _losses(backend: Backend) -> list[Alert]:
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
        for loss in await backend.ask(list_losses())
    ]


async def _unserved(backend: Backend, queues: list[QueueRow], now: datetime) -> list[Alert]:
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
        for lane in await backend.ask_seldom(
            "lanes", list_unserved_lanes(LATE_SECONDS, limit=MOST_LANES), FLEET_SECONDS
        )
    ]
    return cut(alerts, "queues") + cut(_late(queues, now), "queues")


def _late(queues: list[QueueRow], now: datetime) -> list[Alert]:
    """Return the queues whose oldest run waits for too long."""
    alerts = []
    for queue in queues:
        oldest = queue.oldest_queued_at
        if oldest is None or (now - oldest).total_seconds() < LATE_SECONDS:
            continue
        if queue.paused_at is not None:
            level, why, action = "look", "the queue is paused", "Resume the queue"
        elif not queue.workers:
            level, why, action = "bad", "no worker serves it", "Start a worker"
        else:
            level, why, action = "look", "the workers are behind", "Look at the queue"
        what = f"{many(queue.queued, 'run')} queued, and {why}."
        alerts.append(Alert("queue", level, queue.queue, what, oldest, action, "queues"))
    return alerts


async def _schedules(backend: Backend) -> list[Alert]:
    """Return the schedules that start nothing and should. What the good ones are called is not
    asked: there may be a thousand.
    """
    alerts = []
    for count in await backend.ask(count_schedules()):
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
                for one in await backend.ask(list_schedules(state=count.state, limit=MOST_ROWS + 1))
            ]
            alerts += cut(of_state, "schedules", of=count.schedules)
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


async def _relays(backend: Backend) -> list[Alert]:
    alerts = []
    for relay in await backend.ask(list_relays()):
        if relay.dead:
            what = (
                f"{many(relay.dead, 'event')} could not be delivered, and will not be tried again."
            )
            level, since = "bad", None
        elif relay.is_failing:
            what, level, since = f"Its target fails: {relay.error}", "bad", relay.oldest_at
        elif relay.lag and relay.state == "paused":
            what = f"It is paused, and {many(relay.lag, 'event')} wait."
            level, since = "look", relay.oldest_at
        else:
            continue
        alerts.append(
            Alert(
                "relay", level, relay.name, what, since, "Look at it", "relay", {"name": relay.name}
            )
        )
    return cut(alerts, "outbox")


async def _budgets(backend: Backend) -> list[Alert]:
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
        for row in await backend.ask(list_budgets(limit=100))
        if row.revoked_at or (row.remaining is not None and row.remaining <= 0)
    ]
    return cut(alerts, "budgets")


async def _messages(backend: Backend) -> list[Alert]:
    words = {"refused": "the code of the run could not take them.", "ended": "the run had ended."}
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
        for left in await backend.ask(count_left_messages())
    ]
