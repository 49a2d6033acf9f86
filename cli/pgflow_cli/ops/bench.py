"""``pgflow bench``: how fast pgflow is on one's own database, and what limits it there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from pgflow.console.output import note, plain
from pgflow_cli.look.database import find_dsn
from pgflow_cli.look.options import Rows
from pgflow_cli.look.parsing import seconds_option

if TYPE_CHECKING:
    from rich.console import RenderableType

FIGURES = {
    "steps_per_second": ("steps a second, 100 runs at once", "{:,.0f}"),
    "steps_per_second_alone": ("steps a second, one run at a time", "{:,.0f}"),
    "starts_per_second": ("starts a second, in batches", "{:,.0f}"),
    "start_latency_p50_ms": ("start to first line, median", "{:.1f} ms"),
    "start_latency_p99_ms": ("start to first line, 99 of 100", "{:.1f} ms"),
    "commit_ms": ("a commit", "{:.2f} ms"),
    "sync_ms": ("of which it waits for the disk", "{:.2f} ms"),
    "round_trip_ms": ("a round trip", "{:.2f} ms"),
    "client_busy": ("this process computes, 100 runs at once", "{:.0%}"),
    "fsync": ("fsync", "{}"),
    "synchronous_commit": ("synchronous_commit", "{}"),
}


def bench(
    *,
    seconds: Annotated[float, seconds_option("--time", shown="10s", least=0.5, most=600)] = 10.0,
    db: Rows,
) -> None:
    """Measures pgflow on a database, and says what limits it.

    It works in a database of its own beside the one that is named, which is dropped afterwards. The
    role must be allowed to make one.

    Args:
        seconds: Time to measure, in all.
    """
    from pgflow_cli.ops.selftest import measure

    dsn = find_dsn(db.given, migrate=False)
    figures = measure(dsn, seconds, lambda what: note(f"measuring {what} ..."))
    db.answer(figures, lambda: _table(figures))


def _table(figures: dict[str, Any]) -> RenderableType:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    for name, (text, layout) in FIGURES.items():
        table.add_row(plain(text), plain(layout.format(figures[name])))
    return Group(table, Text(), Text(figures["verdict"]))
