"""The pulse: one line that says whether the system is healthy, in the width that there is."""

from __future__ import annotations

from typing import Any

from rich.text import Text

from pgflow import inspect
from pgflow._console.backend import Backend
from pgflow._console.plots import bars
from pgflow_cli.look.output import STYLES, duration

STATES = ("queued", "running", "waiting", "paused", "stuck")
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
        **{state: sum(getattr(queue, state) for queue in queues) for state in STATES},
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
        for state in STATES
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
