"""Plots: small bars over the minutes of an hour, as shapes with places in a box, and their words.

A page draws them as SVG and a terminal as characters. The words have the same content, for readers
who do not see the plot.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pgflow._desk.words import duration, many
from pgflow.inspect import Rates

BARS = " ▁▂▃▄▅▆▇█"
BAR_WIDTH = 8
GAP = 2
HEIGHT = 60
LEAST_HEIGHT = 1.5
"""Height that a bar has at least, so that it is seen."""


@dataclass(frozen=True)
class Column:
    """A minute of a plot.

    Attributes:
        x: Left edge.
        height: Height of the bar; 0 for none.
        bad: Height of its lower part, which went wrong.
        title: Words for it.
    """

    x: float
    height: float
    bad: float
    title: str


@dataclass(frozen=True)
class Plot:
    """A plot.

    Attributes:
        title: Its title.
        words: Words that say the same.
        columns: Its bars, from the oldest to the newest.
        top: The largest value, in words.
        width: Width of the box that the places are in.
        height: Height of that box.
    """

    title: str
    words: str
    columns: tuple[Column, ...]
    top: str
    width: int
    height: int = HEIGHT


def plot_rates(rates: Rates, minutes: int = 60) -> list[Plot]:
    """Return the plots of the runs that began, that ended, and of how long they took."""
    by_ago = {minute.ago: minute for minute in rates.minutes}
    found = [by_ago.get(ago) for ago in reversed(range(minutes))]
    began = [0 if one is None else one.started for one in found]
    ended = [0 if one is None else one.ended for one in found]
    failed = [0 if one is None else one.failed for one in found]
    took = [0.0 if one is None else one.most_seconds or 0.0 for one in found]
    half = [0.0 if one is None else one.half_seconds or 0.0 for one in found]
    share = "" if rates.is_whole else " among the newest runs"
    return [
        _counts("Started", began, [0] * minutes, f"{many(sum(began), 'run')} started{share}"),
        _counts(
            "Ended",
            ended,
            failed,
            f"{many(sum(ended), 'run')} ended{share}, {sum(failed):,} of them failed",
        ),
        _times("From start to end", took, half, _took_words(rates)),
    ]


def bars(values: Sequence[float]) -> str:
    """Return values as a line of characters, each as high as its value."""
    top = max([*values, 0.0])
    if top <= 0:
        return BARS[0] * len(values)
    return "".join(BARS[math.ceil(value / top * (len(BARS) - 1))] for value in values)


def _took_words(rates: Rates) -> str:
    if rates.half_seconds is None or rates.most_seconds is None:
        return "None has ended"
    return (
        f"Half took up to {duration(rates.half_seconds)}, "
        f"99 of 100 up to {duration(rates.most_seconds)}"
    )


def _counts(title: str, values: Sequence[int], bad: Sequence[int], words: str) -> Plot:
    top = max(values)
    if top:
        words += f"; at most {top:,} in a minute"
    titles = [
        f"{_ago(place, len(values))}: {value:,}" + (f", {wrong:,} failed" if wrong else "")
        for place, (value, wrong) in enumerate(zip(values, bad, strict=True))
    ]
    return _plot(title, words, values, bad, titles, f"{top:,}")


def _times(title: str, values: Sequence[float], half: Sequence[float], words: str) -> Plot:
    titles = [
        f"{_ago(place, len(values))}: half up to {duration(middle)}, 99 of 100 up to "
        f"{duration(value)}"
        for place, (value, middle) in enumerate(zip(values, half, strict=True))
    ]
    return _plot(title, words, values, [0] * len(values), titles, duration(max(values)))


def _ago(place: int, count: int) -> str:
    ago = count - 1 - place
    return "this minute" if ago == 0 else f"{ago} m ago"


def _plot(
    title: str,
    words: str,
    values: Sequence[float],
    bad: Sequence[float],
    titles: Sequence[str],
    top: str,
) -> Plot:
    most = max([*values, 0.0])
    columns = tuple(
        Column(place * (BAR_WIDTH + GAP), _height(value, most), _height(wrong, most), titles[place])
        for place, (value, wrong) in enumerate(zip(values, bad, strict=True))
    )
    return Plot(title, words + ".", columns, top, len(columns) * (BAR_WIDTH + GAP) - GAP)


def _height(value: float, most: float) -> float:
    return round(max(value / most * HEIGHT, LEAST_HEIGHT), 2) if value > 0 else 0.0
