"""The history of a run as bars on one axis of time, for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from pgflow import inspect
from pgflow._model.kinds import ENDED
from pgflow.console.output import (
    GAP,
    Column,
    column_widths,
    duration,
    make_table,
    plain,
    shown,
    styled_status,
    table,
    when,
)

if TYPE_CHECKING:
    from rich.console import Group, RenderableType
    from rich.text import Text

NARROW = 100
"""Below so many columns a name gets less room, and the bars the rest."""


_NAMED = ("timer", "signal", "child", "lock", "update")
"""Kinds of entries that are shown before their names."""


def detail(entry: inspect.Entry) -> str:
    """Return the text of a mark: its payload in words."""
    from pgflow.inspect.timeline import MARK, RECOVERED

    if entry.kind == MARK and entry.name == RECOVERED:
        return "another lease goes on from the journal"
    payload = inspect.readable(entry.payload)
    if isinstance(payload, dict):
        return ", ".join(f"{name}: {value}" for name, value in payload.items() if value is not None)
    return "" if payload is None else str(payload)


@dataclass(frozen=True)
class Marks:
    """Characters that bars are made of."""

    work: str = "█"
    guess: str = "▒"
    wait: str = "─"
    point: str = "◆"
    failure: str = "✗"
    open: str = "▸"


ASCII = Marks("#", "=", "-", "*", "x", ">")
_COLOURS = {"failed": "red", "abandoned": "red", "given up": "bright_black", "open": "yellow"}


def draw(history: inspect.History, width: int, *, is_unicode: bool = True) -> list[RenderableType]:
    """Return the picture: a line on the run, the bars, and remarks."""
    begin, end = history.began_at, history.seen_until
    marks = Marks() if is_unicode else ASCII
    return [
        _headline(history),
        "",
        draw_entries(history.entries, begin, end, history.now, width, marks),
        *_errors(history.entries),
        *_tail(history),
    ]


def draw_entries(
    entries: Sequence[inspect.Entry],
    begin: datetime,
    end: datetime,
    now: datetime,
    width: int,
    marks: Marks,
) -> Group:
    """Return entries as bars on one scale of time.

    Args:
        entries: The entries.
        begin: The left edge.
        end: The right edge.
        now: Time up to which entries that are open go on.
        width: Cells of a line.
        marks: Characters that bars are made of.
    """
    bars = Bars(begin, max((end - begin).total_seconds(), 0.001), marks)
    columns = table(
        f"CALL> WHAT/{24 if width < NARROW else 40} AT> TOOK> TRIES>",
        CALL=lambda entry: entry.call or "",
        WHAT=_what,
        AT=lambda entry: f"+{duration((entry.began_at - begin).total_seconds())}",
        TOOK=_took,
        TRIES=lambda entry: entry.attempts or "",
    )
    taken = sum(column_widths(columns, entries, width)) + GAP * len(columns)
    bar_room = max(10, width - taken)
    columns.append(Column("", lambda entry: bars.draw(entry, bar_room, now), most=bar_room))
    return make_table(columns, entries, width)


def _headline(history: inspect.History) -> RenderableType:
    from rich.text import Text

    run = history.run
    line = Text.assemble((shown(run.key), "bold"), "  ", shown(run.workflow), "  ")
    line.append_text(styled_status(history.status))
    generation = f", generation {history.generation}" if history.generation > 1 else ""
    took = duration((history.seen_until - history.began_at).total_seconds())
    line.append(f"  started {when(history.began_at)}, {took} in all{generation}")
    return line


def _what(entry: inspect.Entry) -> Text:
    from rich.text import Text

    from pgflow.inspect.timeline import MARK, RECOVERED

    if entry.kind == MARK:
        if entry.name == RECOVERED:
            return Text(RECOVERED, style="bold magenta")
        text = f" ({said})" if (said := detail(entry)) else ""
        return Text(shown(f"· {entry.name}{text}"), style="bright_black")
    kind = "sleep" if entry.kind == "timer" else entry.kind
    prefix = f"{kind}: " if entry.kind in _NAMED and not entry.name.startswith("sleep") else ""
    return plain(prefix + entry.name)


def _took(entry: inspect.Entry) -> str:
    from pgflow.inspect.timeline import MARK

    if entry.kind == MARK:
        return ""
    return "…" if entry.seconds is None else duration(entry.seconds)


@dataclass(frozen=True)
class Bars:
    """Draws entries on one scale of time.

    Attributes:
        begin: The left edge.
        seconds: Time that the picture covers.
        marks: Characters that bars are made of.
    """

    begin: datetime
    seconds: float
    marks: Marks

    def draw(self, entry: inspect.Entry, room: int, now: datetime) -> Text:
        """Return the bar of an entry, so many cells wide at most."""
        from rich.text import Text

        from pgflow.inspect.timeline import MARK, STEP

        left = self._cell(entry.began_at, room)
        right = max(left, self._cell(entry.ended_at or now, room))
        if entry.kind == MARK:
            return Text(" " * left + self.marks.point, style="bright_black")
        cells = [self._fill(entry)] * (right - left + 1)
        for failure in (one for one in entry.failures if one.attempt):
            cells[min(max(self._cell(failure.at, room) - left, 0), len(cells) - 1)] = (
                self.marks.failure
            )
        if entry.ended_at is None:
            cells[-1] = self.marks.open
        style = _COLOURS.get(entry.status, "green" if entry.kind == STEP else "blue")
        bar = Text(" " * left)
        for cell in cells:
            bar.append(cell, style="bold red" if cell == self.marks.failure else style)
        return bar

    def _fill(self, entry: inspect.Entry) -> str:
        from pgflow.inspect.timeline import STEP

        if entry.kind != STEP:
            return self.marks.wait
        return self.marks.work if entry.is_known else self.marks.guess

    def _cell(self, at: datetime, room: int) -> int:
        share = (at - self.begin).total_seconds() / self.seconds
        return min(room - 1, max(0, int(share * room)))


def _errors(entries: Sequence[inspect.Entry]) -> list[RenderableType]:
    """Return the failed attempts in words, and the questions about effects."""
    lines: list[RenderableType] = []
    for entry in entries:
        for failure in entry.failures:
            which = f"try {failure.attempt}" if failure.attempt else "asked"
            why = inspect.describe_error(failure.error)
            lines.append(plain(f"call {entry.call} {entry.name}, {which}: {why}"))
    return ["", *lines] if lines else []


def _tail(history: inspect.History) -> list[RenderableType]:
    """Return the status of the run and the reason for it; nothing if it ended without one."""
    if history.status in ENDED and not history.why:
        return []
    why = f": {history.why}" if history.why else ""
    return ["", plain(f"{history.status}{why}")]
