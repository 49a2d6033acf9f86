"""Plots in a terminal, and the picture of a run."""

from __future__ import annotations

import io
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import psycopg
import pytest
from clikit import pgflow
from rich.console import Console
from sqlkit import one

from pgflow import Signal, step, workflow
from pgflow.console.bars import Marks, draw_entries
from pgflow.console.plots import bars, plot_rates
from pgflow.inspect import Bin, Entry, Rates

if TYPE_CHECKING:
    from pgflow.testing import Harness

paid = Signal("paid", str)
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


@step
async def count(n: int) -> int:
    return n


@workflow
async def counting(steps: int) -> None:
    for n in range(steps):
        await count(n)


@workflow
async def awaiting() -> str:
    return await paid.wait()


EVIL = "</text><script>alert(1)</script>"


def test_bars_are_as_high_as_their_values() -> None:
    assert bars([0, 1, 8, 4]) == " ▁█▄"
    assert bars([0, 0]) == "  "


def test_plots_say_in_words_what_they_draw() -> None:
    at = datetime(2026, 1, 1, 12, tzinfo=UTC)
    bins = (
        Bin(at, 8, 0, 0, 0, 3, 90.0, None, None),
        Bin(at, 0, 0, 0, 0, None, None, None, None),
        Bin(at, 4, 1, 1, 0, 0, None, 1.0, 3.0),
    )
    ended, took, queued, began = plot_rates(Rates(bins, 20, 1.0, 3.0), 1)
    assert began.words == "12 runs started; at most 8 in 20 minutes."
    assert ended.words == "2 runs ended, 1 of them failed; at most 2 in 20 minutes."
    assert took.words == "p50 1.0 s, p99 3.0 s."
    assert (
        queued.words == "1 run queued now, at most 3 when workers counted; the oldest waited 90 s."
    )
    assert [column.height for column in began.columns] == [60, 0, 30]
    assert (began.top, began.middle, began.times) == ("8", "4", ("60 m ago", "30 m ago", "now"))
    assert (took.top, took.middle) == ("4.0 s", "2.0 s")
    assert ended.columns[-1].lower == 30
    assert ended.columns[-1].title == "12:00 UTC: 2 ended, 1 failed"
    _, took, queued, began = plot_rates(Rates((), 1, None, None), 7)
    assert took.words == "No run has ended."
    assert queued.words == "7 runs queued now."  # although no worker has counted them
    assert began.words == "Not counted: that takes a worker for two minutes."


@pytest.mark.full
def test_queues_are_plotted_and_a_run_is_drawn(
    flow: Harness, dsn: str, conn: psycopg.Connection
) -> None:
    flow.include(awaiting, counting)
    flow.start(counting.options(key=EVIL), 5)
    flow.until_idle()
    one(conn, "select pgflow.add_rates('[[1, 1, 0, 0]]', '{1}')")  # as its worker will
    answer = pgflow(dsn, "queues", "--plot", tty=True)
    assert (answer.code, "1 run ended, 0 of them failed" in answer.out) == (0, True), answer.out
    assert pgflow(dsn, "queues", "--plot", "--json").code == 2
    answer = pgflow(dsn, "show", EVIL, "--svg", tty=True)
    assert answer.code == 0
    drawn = ET.fromstring(answer.out)  # noqa: S314 - of ours
    assert {part.tag.rpartition("}")[2] for part in drawn.iter()} <= {
        "svg", "style", "rect", "text", "line", "g", "title", "circle",
    }  # fmt: skip
    assert EVIL in "".join(drawn.itertext())
    flow.start(awaiting.options(key="empty"))
    assert pgflow(dsn, "show", "empty", "--svg", "--limit", "3").code == 2


def test_names_in_a_timeline_cannot_drive_a_terminal() -> None:
    """The screen of `pgflow top` draws the same table, and cleans nothing itself."""
    evil = "a\u202eb\x1b[31mc"
    entries = [
        Entry(1, "step", evil, NOON, True, "completed", NOON, (), 0, 0, None, None),
        Entry(0, "mark", evil, NOON, True, "", NOON, (), 0, 0, None, {evil: evil}),
    ]
    out = Console(width=100, file=io.StringIO())
    with out.capture() as captured:
        out.print(draw_entries(entries, NOON, NOON, NOON, 100, Marks()))
    assert captured.get().count("a") >= 2
    assert not {"\u202e", "\x1b"} & set(captured.get())
