"""What the database is asked for a run: the parts of a question that describe its open calls."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pgflow._engine.calls import Call, ChildCall, SignalCall, StepCall, TimerCall
from pgflow.model import Kind


def waits_of(calls: Iterable[Call]) -> dict[str, Any]:
    """What only the database can bring, as a question names it."""
    signals: list[Any] = []
    timers: list[Any] = []
    retries: list[Any] = []
    children: list[Any] = []
    for call in calls:
        if call.state == "decided":
            continue
        if isinstance(call, SignalCall):
            signals.append([call.number, call.name])
            if call.started_seq:
                timers.append([call.number, call.started_seq, Kind.WAIT_TIMED_OUT])
        elif isinstance(call, TimerCall):
            timers.append([call.number, call.started_seq, Kind.TIMER_FIRED])
        elif isinstance(call, ChildCall):
            children.append(call.number)
        elif isinstance(call, StepCall) and call.state == "backoff":
            retries.append([call.number, call.retry_seq])
    waits = {"signals": signals, "timers": timers, "retries": retries, "child_calls": children}
    return {name: rows for name, rows in waits.items() if rows}


def child_row(call: ChildCall) -> list[Any]:
    """A child to be started, as a question carries it."""
    r = call.request
    return [
        call.number, r.workflow, r.queue, r.input, r.key, r.priority, r.run_at_us, r.timeout_seconds, r.labels, r.metadata, r.close_policy,
        *((r.version,) if r.version else ()),
    ]


def stuck(reason: str, detail: dict[str, Any], code_hash: str | None = None) -> list[Any]:
    """A run that the engine holds for a person, as a question carries it; with a hash, also for a worker with other code than this."""
    return ["stuck", reason, code_hash, detail, "pgflow"]
