"""Words for what pages show: durations, times, values, and what to do about a run.

All data on a page is untrusted. Templates escape it for HTML; this module removes invisible
characters, such as a reversal of the writing direction, which could make a key look like another.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pgflow.console.output import many
from pgflow.inspect import RunDetail, RunRow
from pgflow.inspect.listing import COUNTED
from pgflow.inspect.words import readable
from pgflow.texts import printable, visible

MOST_CHARS = 20_000
"""Characters of a value that a page shows; the rest is in a page of its own."""
MOST_OF_LINE = 120
MOST_SHORT = 64
"""Characters of a value that is shown as it is, on one line."""


def duration(seconds: float) -> str:
    """Return a duration in its two or three leading digits: ``12 ms``, ``80 s``, ``3 h``."""
    seconds = max(seconds, 0.0)
    if 0 < seconds < 0.0005:
        return "< 1 ms"
    if seconds < 0.0995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    for size, unit, limit in ((1, "s", 100), (60, "m", 100), (3600, "h", 48)):
        if seconds / size < limit - 0.5:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86400:.0f} d"


def offset(seconds: float) -> str:
    """Return the time since a beginning, finer the shorter it is: ``+0.412 s``, ``+3 h 5 m``."""
    if seconds < 60:
        return f"+{seconds:.3f} s"
    size, unit, part, of = (86400, "d", 3600, "h")
    if seconds < 86400:
        size, unit, part, of = (60, "m", 1, "s") if seconds < 3600 else (3600, "h", 60, "m")
    return f"+{seconds // size:.0f} {unit} {seconds % size // part:.0f} {of}"


def age(moment: datetime, now: datetime) -> str:
    """Return the time since a moment, or until it: ``3 m ago``, ``in 2 h``."""
    seconds = (now - moment).total_seconds()
    return f"{duration(seconds)} ago" if seconds >= 0 else f"in {duration(-seconds)}"


def when(moment: datetime) -> str:
    """Return a moment in UTC, to the millisecond."""
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + "Z"


def wall(moment: datetime, zone: str) -> str:
    """Return a moment as local time in a zone; in UTC if the zone is unknown."""
    try:
        local = moment.astimezone(ZoneInfo(zone))
    except (ZoneInfoNotFoundError, ValueError):
        local = moment.astimezone(UTC)
    return local.strftime("%a %Y-%m-%d %H:%M:%S" if local.second else "%a %Y-%m-%d %H:%M")


def number(value: float | Decimal) -> str:
    """Return an amount with separators between thousands, and without trailing zeros."""
    if isinstance(value, Decimal):
        text = f"{value:,f}"
        return text.rstrip("0").rstrip(".") if "." in text else text
    return f"{value:,}"


def size(count: float) -> str:
    """Return a size in bytes in its two or three leading digits: ``820 kB``, ``1.4 GB``."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 999.5:
            return f"{count:.1f} {unit}" if unit == "GB" and count < 9.95 else f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:,.1f} TB"


def counted(count: int, thing: str = "") -> str:
    """Return a count that ended at a bound, with its noun: ``12 gates``, ``2,000+ gates``."""
    if count > COUNTED:
        return f"{COUNTED:,}+ {thing}{'s' if thing else ''}".rstrip()
    return many(count, thing) if thing else f"{count:,}"


def whole(value: Any) -> str:
    """Return a value as JSON in full."""
    text = value if isinstance(value, str) and "\n" in value else None
    if text is None:
        text = json.dumps(value, ensure_ascii=False, indent=2, default=str)
    return printable(text, keep="\n")


def written(value: Any) -> str:
    """Return a value as JSON that people read and write."""
    text = json.dumps(value, ensure_ascii=False, indent=2)
    return text if printable(text, keep="\n") == text else json.dumps(value, indent=2)


@dataclass(frozen=True)
class Shown:
    """A value as a page shows it.

    Attributes:
        text: Its text, perhaps only the beginning.
        line: The same on one line, for a heading that folds it.
        left_out: Number of characters that are not in ``text``.
    """

    text: str
    line: str
    left_out: int


def shown(value: Any) -> Shown:
    """Return a value as a page shows it: without the names of the fields that its models were not
    given, which the journal keeps.
    """
    value = readable(value)
    text = line = whole(value) if isinstance(value, str) else _on_one_line(value)
    if not isinstance(value, str):
        if len(text) <= MOST_SHORT:
            return Shown(printable(text), visible(text), 0)
        text = whole(value)
    line = visible(line[:MOST_CHARS])
    if len(line) > MOST_OF_LINE:
        line = line[: MOST_OF_LINE - 1] + "…"
    return Shown(text[:MOST_CHARS], line, max(0, len(text) - MOST_CHARS))


def _on_one_line(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def quoted(text: str) -> str:
    """Return a text as a word of a command line."""
    return shlex.quote(visible(text))


def literal(text: str) -> str:
    """Return a text as a literal of SQL."""
    shown = visible(text)
    escaped = shown.replace("'", "''")
    if "\\" in shown:
        escaped = escaped.replace("\\", "\\\\")
        return f"e'{escaped}'"
    return f"'{escaped}'"


# ---------------------------------------------------------------- what to do

WHY_IT_WAITS = {
    "gate": "It waits for an answer to its gate.",
    "signal": "It waits for a signal from outside.",
    "effect": "It waits for an effect to be settled.",
    "owes": "It has an obligation that is still open.",
    "lock": "Another run or process holds the lock that it wants.",
    "child": "It waits for a child.",
    "update": "It waits for an update.",
    "timer": "It sleeps until its timer fires.",
    "replacement": "It begins when the run that it replaces has ended.",
    "batch": "It begins when the runs of its batch have ended.",
}
WHY_NOBODY_TAKES_IT = {
    "queue_paused": "Its queue is paused. Resume the queue.",
    "no_worker": "No worker serves its queue. Start one: pgflow workers MODULE.",
    "no_workflow": (
        "Workers serve its queue, and none of them has this workflow. Start one that includes it."
    ),
    "no_version": "No worker has the version of the code that it is pinned to. Start one.",
    "suspect": "Workers died while they held it. It is tried again, in ever smaller groups.",
}


def why(run: RunRow | RunDetail) -> str:
    """Return the reason for a run's status, in a sentence."""
    code = getattr(run, "reason_code", None)
    if run.status == "waiting":
        return WHY_IT_WAITS.get(code or "", "It waits.")
    if run.status == "queued":
        return WHY_NOBODY_TAKES_IT.get(code or "", "It is next: a worker will take it.")
    return {
        "running": "A worker holds it and runs its code.",
        "paused": "It was paused.",
        "stuck": "It cannot go on without a person.",
        "completed": f"It has completed{_after(run)}.",
        "failed": "Its code raised an error, and it has ended.",
        "cancelled": "It was cancelled.",
    }[run.status]


def _after(run: RunRow) -> str:
    if run.finished_at is None:
        return ""
    return f", after {duration((run.finished_at - run.created_at).total_seconds())}"


def advice(run: RunRow | RunDetail) -> str:
    """Return what a person may do about a run; empty for nothing."""
    code = getattr(run, "reason_code", None)
    if run.status in ("stuck", "waiting") and code == "effect":
        return "Find out whether the other side did the effect, then settle it."
    if run.status == "stuck":
        return "Fix the cause, then retry it. It continues from its journal with a fresh budget."
    if run.status == "failed":
        return "Fix the cause, then retry it: the step that failed runs again, those before do not."
    if run.status == "paused":
        return "Resume it when it may go on."
    if run.status == "waiting" and code == "gate":
        return "Open the gate and answer it."
    if run.status == "waiting" and code == "signal":
        return "The signal has not arrived. You can send it yourself."
    return ""
