"""The waterfall: the calls of a run on one time axis, as shapes with places in per cent.

A template draws each line as a small SVG, so that names stay text of the page: they wrap, scale and
can be searched, on a phone too. Calls of one name that follow each other share a line, so a loop of
a hundred steps is one. Kinds differ by shape and not by colour alone. A step is solid, a wait is an
outline, an attempt that failed is a notch, and what is open has a broken edge.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby

from pgflow.console.words import duration
from pgflow.inspect import Entry

MOST_LINES = 200
LEAST_WIDTH = 0.4
"""Per cent that a bar has at least, so that it is seen."""
SHARED_FROM = 4
"""Calls of one name, one after the other, from which on they share a line."""
TICKS = 4
"""Parts of the axis at most."""
PARTS_SECONDS = (
    *(n / 10**power for power in (3, 2, 1, 0) for n in (1, 2, 5)),
    *(10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200),
    *(86400 * n * 10**power for power in range(3) for n in (1, 2, 5)),
)
"""Lengths of a part of the axis, so that its marks are at round times."""
MARK = "mark"
BAD = ("failed", "refused", "abandoned", "given up")


@dataclass(frozen=True)
class Bar:
    """A call on a line.

    Attributes:
        x: Left edge in per cent.
        width: Width in per cent.
        is_open: True if it has not ended.
        is_bad: True if it failed.
        notches: Places of its failed attempts, in per cent.
        title: Words for it.
    """

    x: float
    width: float
    is_open: bool
    is_bad: bool
    notches: tuple[float, ...]
    title: str


@dataclass(frozen=True)
class Line:
    """A call on the axis, or several of one name.

    Attributes:
        name: Name of the call.
        kind: Kind of the call: ``step``, ``timer``, ``signal`` and so on.
        shape: ``solid``, ``outline`` or ``mark``.
        bars: Its calls.
        notes: Words beside the name: its kind, its tries, its bad end.
        took: Its duration in words; of several the sum.
        is_known: True if the journal has the time of its beginning.
    """

    name: str
    kind: str
    shape: str
    bars: tuple[Bar, ...]
    notes: str
    took: str
    is_known: bool

    @property
    def is_open(self) -> bool:
        """True if a call of it has not ended."""
        return any(bar.is_open for bar in self.bars)

    @property
    def title(self) -> str:
        """Words for the whole line."""
        return f"{self.kind} {self.name} {self.notes} {self.took}".strip()


@dataclass(frozen=True)
class Tick:
    """A mark of the axis: its place in per cent, and the time since the left edge."""

    x: float
    label: str


@dataclass(frozen=True)
class Waterfall:
    """A waterfall.

    Attributes:
        lines: Lines, in the order of the journal.
        ticks: Marks of the axis.
        more: Number of lines that are left out.
        span: Time that it covers, in words.
    """

    lines: tuple[Line, ...]
    ticks: tuple[Tick, ...]
    more: int
    span: str


class _Axis:
    """The time axis."""

    def __init__(self, began_at: datetime, until: datetime) -> None:
        self.began_at = began_at
        self.until = until
        self.seconds = max(until - began_at, timedelta(milliseconds=1)).total_seconds()

    def place(self, moment: datetime) -> float:
        """Return the place of a moment in per cent."""
        return round(100 * (moment - self.began_at).total_seconds() / self.seconds, 3)

    def bar(self, entry: Entry) -> Bar:
        """Return the bar of a call."""
        x = min(self.place(entry.began_at), 100 - LEAST_WIDTH)
        width = max(self.place(self.end_of(entry)) - x, LEAST_WIDTH)
        return Bar(
            x,
            round(min(width, 100 - x), 3),
            entry.status == "open",
            entry.status in BAD,
            tuple(self.place(failure.at) for failure in entry.failures if failure.attempt),
            f"{entry.name} {entry.status} {duration(self.took(entry))}",
        )

    def end_of(self, entry: Entry) -> datetime:
        """Return the time at which a call ended; the right edge if it has not."""
        return self.until if entry.status == "open" else entry.ended_at or entry.began_at

    def took(self, entry: Entry) -> float:
        """Return the seconds that a call took so far."""
        return (self.end_of(entry) - entry.began_at).total_seconds()


def draw(entries: Sequence[Entry], began_at: datetime, now: datetime | None) -> Waterfall:
    """Return the waterfall of some entries.

    Args:
        entries: Entries, in the order of the journal.
        began_at: Time at the left edge, unless an entry began before.
        now: Time up to which open calls go on; None if nothing goes on after the last of these.
    """
    began_at = min([began_at, *(entry.began_at for entry in entries)])
    until = max(entry.ended_at or entry.began_at for entry in entries)
    if now is not None and any(entry.status == "open" for entry in entries):
        until = max(until, now)
    axis = _Axis(began_at, max(until, began_at))
    lines = [line for group in _groups(entries) for line in _lines(axis, group)]
    drawn = tuple(lines[-MOST_LINES:])
    return Waterfall(drawn, ticks(axis.seconds), len(lines) - len(drawn), duration(axis.seconds))


def ticks(seconds: float) -> tuple[Tick, ...]:
    """Return the marks of an axis of this length: at round times, and no two with one label."""
    part = next((size for size in PARTS_SECONDS if size * TICKS >= seconds), seconds)
    times = [part * n for n in range(1, int(seconds / part) + 1)]
    return Tick(0, "0"), *(
        Tick(100 * time / seconds, f"{time * 1000:.0f} ms" if part < 0.1 else duration(time))
        for time in times
    )


def _groups(entries: Sequence[Entry]) -> list[list[Entry]]:
    """Return entries in groups of one name and kind that follow each other."""
    return [list(group) for _, group in groupby(entries, lambda entry: (entry.kind, entry.name))]


def _lines(axis: _Axis, group: list[Entry]) -> list[Line]:
    """Return the lines of such a group: one if there are many."""
    if len(group) < SHARED_FROM:
        return [_line(axis, [entry]) for entry in group]
    return [_line(axis, group)]


def _line(axis: _Axis, calls: list[Entry]) -> Line:
    first = calls[0]
    seconds = sum(axis.took(call) for call in calls)
    return Line(
        name=first.name,
        kind=first.kind,
        shape={"step": "solid", MARK: MARK}.get(first.kind, "outline"),
        bars=tuple(axis.bar(call) for call in calls),
        notes=_notes(calls),
        took="" if first.kind == MARK else duration(seconds),
        is_known=all(call.is_known for call in calls),
    )


def _notes(calls: list[Entry]) -> str:
    first = calls[0]
    notes = [first.kind] if first.kind not in ("step", MARK) else []
    if len(calls) > 1:
        notes.append(f"{len(calls)} calls")
    tries = sum(call.attempts for call in calls)
    if tries > len(calls):
        notes.append(f"{tries} tries")
    bad = [call.status for call in calls if call.status in BAD]
    if bad:
        notes.append(bad[0] if len(calls) == 1 else f"{len(bad)} {bad[0]}")
    return ", ".join(notes)
