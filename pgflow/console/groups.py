"""Groups: debts, gates and runs that need a person, counted by name, state or reason. Each group
has a few examples with the key of the run and the amount.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

from pgflow.console.alert import Alert, Example, cut
from pgflow.console.amounts import amount_of
from pgflow.console.backend import Backend
from pgflow.console.words import counted
from pgflow.inspect import DebtGroup, GateGroup, RunGroup, count_debts, count_gates, group_runs

FAILED_WITHIN = timedelta(hours=24)
DEBT_PARTS = (
    ("breached", "bad", "obligations"), ("effect", "bad", "effects"), ("effect", "auto", "effects"),
)  # fmt: skip
"""Kinds of debts and their levels, and the page of each."""
UNKNOWN = "Its outcome is unknown: it may or may not have been done."
UNCOMPENSATED = "It was done, and pgflow will not take it back."


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


async def find_debts(backend: Backend) -> list[Alert]:
    groups = await backend.ask(
        count_debts(("breached", "unknown", "uncompensated"), tenant=backend.tenant)
    )
    alerts = [_debt(backend, group) for group in groups]
    found = []
    for kind, level, page in DEBT_PARTS:
        found += cut([one for one in alerts if (one.kind, one.level) == (kind, level)], page)
    return found


def _debt(backend: Backend, group: DebtGroup) -> Alert:
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
            one.key, amount_of(backend.clear(one.facts)), one.opened_at, "debt", {"key": one.effect}
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


async def find_stuck(backend: Backend) -> list[Alert]:
    """Return the stuck runs, without those that wait for an effect: that is among the debts."""
    groups = await backend.ask(group_runs("stuck", tenant=backend.tenant))
    alerts = [
        _runs(backend, group, "stuck", "bad", "It cannot go on.", "Mend it, then retry")
        for group in groups
        if group.reason != "effect"
    ]
    return cut(alerts, "runs", status="stuck")


def _runs(
    backend: Backend, group: RunGroup, status: str, level: str, nothing: str, do: str
) -> Alert:
    """Return the alert for runs of one workflow that are stuck or have failed for one reason. The
    page of all of them finds failed ones by the class of their error.
    """
    first = group.newest[0]
    message = (first.why or "").partition(f"{group.reason}: ")[2]
    query = {"status": status, "workflow": group.workflow}
    if status == "failed" and group.reason:
        query["error"] = group.reason
    alert = Alert(
        status, level, first.key, first.why or nothing, first.since, do, "run", {"key": first.key}
    )
    examples = [
        Example(one.key, amount_of(backend.clear(one.input)), one.since, "run", {"key": one.key})
        for one in group.newest
    ]
    return _group(
        alert,
        examples,
        replace(
            alert,
            name=group.workflow,
            what=f"{counted(group.runs, 'run')}: {group.reason or nothing}"
            + (f", the newest: {message}" if message else ""),
            action="See all",
            page="runs",
            query=query,
            count=group.runs,
        ),
    )


async def find_gates(backend: Backend) -> list[Alert]:
    groups = await backend.ask(count_gates(tenant=backend.tenant))
    return cut([_gate(backend, group) for group in groups if group.oldest], "gates")


def _gate(backend: Backend, group: GateGroup) -> Alert:
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
            amount_of(backend.clear(gate.request)),
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


async def find_failed(backend: Backend) -> list[Alert]:
    """Return the runs that failed within a day, by workflow and class of their error."""
    groups = await backend.ask(group_runs("failed", within=FAILED_WITHIN, tenant=backend.tenant))
    alerts = [
        _runs(backend, group, "failed", "look", "It raised.", "Read its error") for group in groups
    ]
    return cut(alerts, "runs", status="failed", since="24h")
