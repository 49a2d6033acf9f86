"""Picture that ``pgflow demo`` shows while it runs: orders, workers and events, drawn ten times a
second.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from rich.console import RenderableType

    from pgflow_cli.shop.day import Day, Progress

DRAW_SECONDS = 0.1
EVENTS = 8
STRIKING_SECONDS = 2.0
"""Seconds for which a kill is shown in red."""

CELLS = {
    "queued": ("·", "bright_black", "queued"),
    "running": ("■", "yellow", "running"),
    "waiting": ("■", "blue", "with the courier"),
    "orphaned": ("✗", "bold red", "its worker is dead"),
    "completed": ("■", "green", "ended"),
}
STYLES = {"kill": "bold red", "worker": "yellow"}

_ORDERS = """
select r.status, w.pid
from pgflow.runs r left join pgflow.workers w on w.worker_id = r.worker_id
where r.labels->>'shop' = %s order by r.run_id
"""


class Stage:
    """A live picture; use it as a context."""

    def __init__(self, console: Console, orders: int) -> None:
        self._live = Live(console=console, auto_refresh=False)
        self._orders = orders
        self._began = time.monotonic()
        self._drawn = self._struck = 0.0
        self._events: deque[Text] = deque(maxlen=EVENTS)

    def __enter__(self) -> Self:
        """Begin to draw."""
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the last picture on the screen."""
        self._live.stop()

    def say(self, line: str) -> None:
        """Take a line of what happens; the figures of progress are drawn anyway."""
        word = line.split(maxsplit=1)[0]
        if word == "progress":
            return
        at = f"{time.monotonic() - self._began:5.1f}s  "
        parts = ((at, "bright_black"), (line, STYLES.get(word, "")))
        self._events.append(Text.assemble(*parts, no_wrap=True, overflow="ellipsis"))
        if word == "kill":
            self._struck, self._drawn = time.monotonic(), 0.0

    def look(self, day: Day, progress: Progress) -> None:
        """Draw, if enough time has passed since the last time."""
        now = time.monotonic()
        if now - self._drawn < DRAW_SECONDS and progress.ended < self._orders:
            return
        self._drawn = now
        rows = day.conn.execute(_ORDERS, (day.name,)).fetchall()
        bar = Table.grid(padding=(0, 2))
        bar.add_row(
            ProgressBar(total=self._orders, completed=progress.ended, width=30),
            Text(f"{progress.paid} paid, {progress.ended} of {self._orders} ended", style="bold"),
            Text(f"{now - self._began:.1f} s", style="bright_black"),
        )
        title = Text("A shop's orders: each is a run; workers are killed while they hold some")
        title.stylize("bold")
        cells = _orders(rows, day.chaos.pids)
        picture: list[RenderableType] = [title, bar, cells, _legend(), self._workers(day, rows)]
        parts = [part for one in picture for part in (one, Text())]
        self._live.update(Group(*parts, *self._events), refresh=True)

    def _workers(self, day: Day, rows: list[Any]) -> Table:
        table = Table.grid(padding=(0, 2))
        for pid in sorted(day.chaos.pids):
            held = sum(row[1] == pid for row in rows)
            state = f"{held} run{'s' * (held != 1)}" if held else "idle"
            table.add_row(
                f"worker {pid}", Text("■" * held, "yellow"), Text(state, style="bright_black")
            )
        strikes = time.monotonic() - self._struck < STRIKING_SECONDS
        for kill in day.chaos.kills:
            is_new = strikes and kill is day.chaos.kills[-1]
            lost = sum(row[1] == kill.pid for row in rows)
            held = len(kill.held)
            state = f"{lost} of its {held} runs not yet found" if lost else f"its {held} went on"
            table.add_row(
                Text(f"worker {kill.pid}", style="bright_black"),
                Text("killed", style="bold white on red" if is_new else "red"),
                Text(state, style="bright_black"),
            )
        return table


def _orders(rows: list[Any], alive: list[int]) -> Text:
    """Return a cell for each order, in groups of ten."""
    line = Text(overflow="fold")
    for number, (status, pid) in enumerate(rows):
        has_lost_worker = status == "running" and pid not in alive
        cell, style, _ = CELLS.get("orphaned" if has_lost_worker else status, CELLS["orphaned"])
        line.append(" " * (number > 0 and number % 10 == 0) + cell, style=style)
    return line


def _legend() -> Text:
    line = Text()
    for cell, style, what in CELLS.values():
        line.append(cell, style=style).append(f" {what}   ", style="bright_black")
    return line
