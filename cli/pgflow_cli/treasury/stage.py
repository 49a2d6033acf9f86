"""Picture that ``pgflow demo`` shows while it runs: days, workers and events, drawn again ten times
a second.
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
    from types import TracebackType

    from rich.console import RenderableType

    from pgflow_cli.treasury.quarter import Options, Progress, Quarter

DRAW_SECONDS = 0.1
EVENTS = 8
STRIKING_SECONDS = 2.0
"""Seconds for which a kill is shown in red."""

CELLS = {
    "queued": ("·", "bright_black"),
    "running": ("■", "yellow"),
    "waiting": ("■", "blue"),
    "completed": ("■", "green"),
}
ORPHAN = ("✗", "bold red")
LEGEND = (
    ("·", "bright_black", "queued"),
    ("■", "yellow", "running"),
    ("■", "blue", "waiting"),
    ("✗", "bold red", "its worker is dead"),
    ("■", "green", "closed"),
)

_DAYS = """
select r.labels->>'day' as day, r.status, w.pid
from pgflow.runs r left join pgflow.workers w on w.worker_id = r.worker_id
where r.labels->>'books' = %s order by 1
"""


class Stage:
    """A live picture; use it as a context."""

    def __init__(self, console: Console, options: Options) -> None:
        self._live = Live(console=console, auto_refresh=False, transient=False)
        self._options = options
        self._began = time.monotonic()
        self._drawn = 0.0
        self._events: deque[Text] = deque(maxlen=EVENTS)
        self._kills = 0
        self._struck = 0.0

    def __enter__(self) -> Self:
        """Begins to draw."""
        self._live.start()
        return self

    def __exit__(
        self, t: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        """Leaves the last picture on the screen."""
        self._live.stop()

    def say(self, line: str) -> None:
        """Takes a line of what happens; the figures of progress are drawn anyway."""
        if line.startswith("progress"):
            return
        word = line.split(maxsplit=1)[0]
        style = {"kill": "bold red", "cfo": "magenta", "worker": "yellow"}.get(word, "")
        at = f"{time.monotonic() - self._began:5.1f}s  "
        self._events.append(
            Text.assemble((at, "bright_black"), (line, style), no_wrap=True, overflow="ellipsis")
        )
        if word == "kill":
            self._struck = time.monotonic()
            self._drawn = 0.0

    def look(self, quarter: Quarter, progress: Progress) -> None:
        """Draw, if enough time has passed since the last time."""
        is_over = progress.closed == len(quarter.days)
        if time.monotonic() - self._drawn < DRAW_SECONDS and not is_over:
            return
        self._drawn = time.monotonic()
        rows = quarter.conn.execute(_DAYS, (quarter.name,)).fetchall()
        alive = set(quarter.workers.pids)
        self._live.update(Group(*self._picture(quarter, progress, rows, alive)), refresh=True)

    def _picture(
        self, quarter: Quarter, progress: Progress, rows: list[Any], alive: set[int]
    ) -> list[RenderableType]:
        return [
            Text(
                "Treasury days: each is a run; workers are killed while they hold some",
                style="bold",
            ),
            Text(),
            self._bar(progress, len(quarter.days)),
            Text(),
            _days(rows, alive),
            _legend(),
            Text(),
            self._workers(quarter, rows, alive),
            Text(),
            *self._events,
        ]

    def _bar(self, progress: Progress, days: int) -> RenderableType:
        table = Table.grid(padding=(0, 2))
        counts = Text(f"{progress.posted} posted, {progress.closed} of {days} closed", style="bold")
        table.add_row(
            ProgressBar(total=days, completed=progress.closed, width=30),
            counts,
            Text(f"{time.monotonic() - self._began:.1f} s", style="bright_black"),
        )
        return table

    def _workers(self, quarter: Quarter, rows: list[Any], alive: set[int]) -> RenderableType:
        table = Table.grid(padding=(0, 2))
        for pid in sorted(alive):
            held = sum(row[2] == pid for row in rows)
            table.add_row(
                Text(f"worker {pid}"),
                Text("■" * held, style="yellow"),
                Text(f"{held} runs" if held else "idle", style="bright_black"),
            )
        just_now = time.monotonic() - self._struck < STRIKING_SECONDS
        for kill in quarter.chaos.kills:
            style = "bold white on red" if just_now and kill is quarter.chaos.kills[-1] else "red"
            orphans = sum(row[2] == kill.pid for row in rows)
            state = (
                f"{orphans} of its {len(kill.held)} runs not yet found"
                if orphans
                else f"all of its {len(kill.held)} runs went on"
            )
            table.add_row(
                Text(f"worker {kill.pid}", style="bright_black"),
                Text(" killed with SIGKILL ", style=style),
                Text(state, style="bright_black"),
            )
        return table


def _days(rows: list[Any], alive: set[int]) -> RenderableType:
    """Return a cell for each day, weeks apart."""
    line = Text(overflow="fold")
    last_day = 0
    for day, status, pid in rows:
        number = int(day[-2:])
        if last_day and number - last_day != 1:
            line.append(" ")
        cell, style = (
            ORPHAN if status == "running" and pid not in alive else CELLS.get(status, ORPHAN)
        )
        line.append(cell, style=style)
        last_day = number
    return line


def _legend() -> RenderableType:
    line = Text()
    for cell, style, what in LEGEND:
        line.append(cell, style=style)
        line.append(f" {what}   ", style="bright_black")
    return line
