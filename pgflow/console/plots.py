"""Plots: bars over the parts of a time, as shapes with places in a box, their axes and their words.

A page draws them as SVG and a terminal as characters. The words have the same content, for readers
who do not see the plot.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC

from pgflow.console.output import many
from pgflow.console.waterfall import PARTS_SECONDS
from pgflow.console.words import duration
from pgflow.inspect import Bin, Rates

BARS = " ▁▂▃▄▅▆▇█"
BAR_WIDTH = 8
GAP = 2
HEIGHT = 60
NOT_COUNTED = "Not counted: that takes a worker for two minutes"
LEAST_HEIGHT = 1.5
"""Height that a bar has at least, so that it is seen."""
COUNTS = tuple(n * 10**power for power in range(18) for n in (1, 2, 3, 4, 5, 6, 8))
"""Values in the middle of an axis, so that its marks are round numbers."""


@dataclass(frozen=True)
class Column:
    """A part of the time of a plot.

    Attributes:
        x: Left edge.
        height: Height of the bar; 0 for none.
        lower: Height of its lower part: what failed, or the median.
        title: Words for it.
    """

    x: float
    height: float
    lower: float
    title: str


@dataclass(frozen=True)
class Plot:
    """A plot.

    Attributes:
        title: Its title.
        words: Words that say the same.
        columns: Its bars, from the oldest to the newest.
        top: The largest value, in words.
        middle: Half of it.
        times: Words for its beginning, its middle and its end.
        is_split: True if the lower part of a bar is its median, and not what failed.
        width: Width of the box that the places are in.
        height: Height of that box.
    """

    title: str
    words: str
    columns: tuple[Column, ...]
    top: str
    middle: str
    times: tuple[str, str, str]
    is_split: bool
    width: int
    height: int = HEIGHT


def plot_rates(rates: Rates, queued: int) -> list[Plot]:
    """Return the plots of what ended, of how long it took, of what was queued and started.

    Args:
        rates: Counts of workers, by the parts of a time.
        queued: Number of runs that are queued now.
    """
    bins = rates.bins
    started, ended = [one.started for one in bins], [one.ended for one in bins]
    failed = [one.failed for one in bins]
    each = "a minute" if rates.bin_minutes == 1 else f"{rates.bin_minutes} minutes"
    late = [one.oldest_seconds or 0.0 for one in bins]
    waited = f"; the oldest waited {duration(max(late))}" if any(late) else ""
    counts = [one.queued for one in bins if one.queued is not None]
    return [
        _plot(
            rates,
            "Ended",
            f"{many(sum(ended), 'run')} ended, {sum(failed):,} of them failed"
            + _at_most(ended, each),
            ended,
            failed,
            [f"{one.ended:,} ended, {one.failed:,} failed" for one in bins],
        ),
        _plot(
            rates,
            "From start to end",
            _took(rates.p50_seconds, rates.p99_seconds) or "No run has ended",
            [one.p99_seconds or 0.0 for one in bins],
            [one.p50_seconds or 0.0 for one in bins],
            [_took(one.p50_seconds, one.p99_seconds) or "none ended" for one in bins],
            is_time=True,
        ),
        _plot(
            rates,
            "Queued",
            f"{many(queued, 'run')} queued now"
            + (f", at most {max(counts):,} when workers counted{waited}" if counts else ""),
            [one.queued or 0 for one in bins],
            [0] * len(bins),
            [_queued(one) for one in bins],
        ),
        _plot(
            rates,
            "Started",
            f"{many(sum(started), 'run')} started" + _at_most(started, each)
            if len(counts) > 1
            else NOT_COUNTED,
            started,
            [0] * len(bins),
            [f"{one.started:,} started" for one in bins],
        ),
    ]


def bars(values: Sequence[float]) -> str:
    """Return values as a line of characters, each as high as its value."""
    top = max([*values, 0.0])
    if top <= 0:
        return BARS[0] * len(values)
    return "".join(BARS[math.ceil(value / top * (len(BARS) - 1))] for value in values)


def _took(p50: float | None, p99: float | None) -> str:
    """Return words for two quantiles; empty if no run has ended."""
    return "" if p50 is None or p99 is None else f"p50 {duration(p50)}, p99 {duration(p99)}"


def _queued(one: Bin) -> str:
    waited = (
        "" if one.oldest_seconds is None else f", the oldest for {duration(one.oldest_seconds)}"
    )
    return "not counted" if one.queued is None else f"{one.queued:,} queued{waited}"


def _at_most(values: Sequence[int], each: str) -> str:
    return (
        f"; at most {max(values):,} in {'a ' if each == 'minute' else ''}{each}"
        if any(values)
        else ""
    )


def _plot(
    rates: Rates,
    title: str,
    words: str,
    values: Sequence[float],
    lower: Sequence[float],
    said: Sequence[str],
    *,
    is_time: bool = False,
) -> Plot:
    most = max([*values, 0.0])
    sizes = PARTS_SECONDS if is_time else COUNTS
    middle = next((size for size in sizes if 2 * size >= most), most / 2)
    columns = tuple(
        Column(
            place * (BAR_WIDTH + GAP),
            _height(values[place], 2 * middle),
            _height(lower[place], 2 * middle),
            f"{one.at.astimezone(UTC):%H:%M} UTC: {said[place]}",
        )
        for place, one in enumerate(rates.bins)
    )
    whole = len(rates.bins) * rates.bin_minutes * 60
    return Plot(
        title,
        words + ".",
        columns,
        duration(2 * middle) if is_time else f"{2 * middle:,}",
        duration(middle) if is_time else f"{middle:,}",
        (f"{duration(whole)} ago", f"{duration(whole / 2)} ago", "now"),
        is_time,
        len(columns) * (BAR_WIDTH + GAP) - GAP,
    )


def _height(value: float, top: float) -> float:
    return round(max(value / top * HEIGHT, LEAST_HEIGHT), 2) if value > 0 else 0.0
