"""Plots in a terminal, and the picture of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import pytest
from clikit import pgflow

from pgflow import Signal, step, workflow
from pgflow._desk.plots import bars, plot_rates
from pgflow.inspect import Minute, Rates

if TYPE_CHECKING:
    from pgflow.testing import Harness

paid = Signal("paid", str)


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
    minutes = (Minute(0, 4, 2, 1, 1.0, 3.0), Minute(3, 8, 0, 0, None, None))
    began, ended, took = plot_rates(Rates(minutes, 1.0, 3.0, is_whole=False), 5)
    assert began.words == "12 runs started among the newest runs; at most 8 in a minute."
    assert ended.words.startswith("2 runs ended among the newest runs, 1 of them failed")
    assert took.words == "Half took up to 1.0 s, 99 of 100 up to 3.0 s."
    assert [column.height for column in began.columns] == [0, 60, 0, 0, 30]
    assert ended.columns[-1].bad == 30
    assert ended.columns[-1].title == "this minute: 2, 1 failed"
    assert plot_rates(Rates((), None, None, is_whole=True), 5)[2].words == "None has ended."


@pytest.mark.full
def test_queues_are_plotted_and_a_run_is_drawn(flow: Harness, dsn: str) -> None:
    flow.include(awaiting, counting)
    flow.start(counting.options(key=EVIL), 5)
    flow.until_idle()
    answer = pgflow(dsn, "queues", "--plot", tty=True)
    assert (answer.code, "1 run ended, 0 of them failed" in answer.out) == (0, True), answer.out
    assert pgflow(dsn, "queues", "--plot", "--json").code == 2
    answer = pgflow(dsn, "show", EVIL, "--svg", tty=True)
    assert answer.code == 0
    drawn = ET.fromstring(answer.out)  # noqa: S314 - of ours
    assert {one.tag.rpartition("}")[2] for one in drawn.iter()} <= {
        "svg",
        "style",
        "rect",
        "text",
        "line",
        "g",
        "title",
        "circle",
    }
    assert EVIL in "".join(drawn.itertext())
    flow.start(awaiting.options(key="empty"))
    assert pgflow(dsn, "show", "empty", "--svg", "--limit", "3").code == 2
