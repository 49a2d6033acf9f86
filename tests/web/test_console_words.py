"""Words and shapes of the console: durations, amounts, values, quotations, and the waterfall."""

from __future__ import annotations

import shlex
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from pgflow.console import words
from pgflow.console.waterfall import draw, ticks
from pgflow.inspect import Entry, Failure

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def entry(name: str, began: float, ended: float | None, **more: Any) -> Entry:
    said: dict[str, Any] = {
        "call": 1,
        "kind": "step",
        "is_known": True,
        "failures": (),
        "cut_off": 0,
        "acts": 0,
        "due_at": None,
        "payload": None,
        "status": "open" if ended is None else "completed",
    }
    ended_at = None if ended is None else at(ended)
    return Entry(name=name, began_at=at(began), ended_at=ended_at, **{**said, **more})


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0, "0 ms"), (0.0001, "< 1 ms"), (0.012, "12 ms"), (0.412, "0.4 s"), (9.9, "9.9 s"),
        (80, "80 s"), (600, "10 m"), (7200, "2 h"), (200_000, "2 d"), (-5, "0 ms"),
    ],
)  # fmt: skip
def test_durations_have_two_or_three_digits(seconds, said):
    assert words.duration(seconds) == said


@pytest.mark.parametrize(
    ("seconds", "labels"),
    [
        (0.001, "0, 1 ms"),
        (0.16, "0, 50 ms, 100 ms, 150 ms"),
        (0.31, "0, 0.1 s, 0.2 s, 0.3 s"),
        (3, "0, 1.0 s, 2.0 s, 3.0 s"),
        (130, "0, 60 s, 2 m"),
        (5000, "0, 30 m, 60 m"),
        (200_000, "0, 24 h, 2 d"),
        (3e10, "0, 347222 d"),
    ],
)
def test_marks_of_the_axis_are_at_round_times(seconds, labels):
    marks = ticks(seconds)
    assert ", ".join(mark.label for mark in marks) == labels
    assert all(0 <= mark.x <= 100 for mark in marks)


def test_ages_offsets_and_amounts_are_told():
    assert words.age(at(-120), NOON) == "2 m ago"
    assert words.age(at(7200), NOON) == "in 2 h"
    assert words.offset(0.4121) == "+0.412 s"
    assert words.offset(126.4) == "+2 m 6 s"
    assert words.offset(7260) == "+2 h 1 m"
    assert words.offset(200_000) == "+2 d 7 h"
    assert words.when(at(0.5)) == "2026-01-01 12:00:00.500Z"
    assert words.number(Decimal("1234.500")) == "1,234.5"
    assert words.number(Decimal(20)) == "20"
    assert words.number(1234567) == "1,234,567"
    assert (words.many(1, "run"), words.many(1200, "run")) == ("1 run", "1,200 runs")


def test_a_value_is_shown_up_to_a_limit_and_on_one_line():
    short = words.shown({"a": [1, "ü  ü"]})
    assert (short.text, short.line, short.left_out) == (
        '{"a": [1, "ü  ü"]}',
        '{"a": [1, "ü ü"]}',
        0,
    )
    wide = words.shown({"a": ["x" * 64]})
    assert (wide.text.count("\n"), wide.line) == (4, '{"a": ["' + "x" * 64 + '"]}')
    long = words.shown("x" * 50_000)
    assert (len(long.text), len(long.line)) == (words.MOST_CHARS, words.MOST_OF_LINE)
    assert long.left_out == 50_002 - words.MOST_CHARS
    assert words.shown("line 1\nline 2").text == "line 1\nline 2"
    assert "\u202e" not in words.shown("a\u202eb").text
    partly = {"a": {"b": 1, "c": None, "$pgflow": ["c"]}, "$pgflow": "Circle"}
    assert words.shown(partly).text == '{"a": {"b": 1, "c": null}, "$pgflow": "Circle"}'


@pytest.mark.parametrize(
    "text", ["plain", "it's", "a\\b", "$(rm -rf /)", "a; b", '"', "\n--", "\u202e"]
)
def test_a_command_and_a_statement_quote_whatever_they_are_given(text):
    assert len(shlex.split(words.quoted(text))) == 1
    literal = words.literal(text)
    assert literal.startswith(("'", "e'"))
    assert "\n" not in literal
    inside = literal.removeprefix("e")[1:-1].replace("''", "")
    assert "'" not in inside
    assert "\\" not in inside.replace("\\\\", "")


def test_a_waterfall_places_calls_on_one_axis():
    drawn = draw(
        [
            entry("a", 0, 2),
            entry("b", 2, 10, failures=(Failure(at(4), {}),)),
            entry("sleep", 5, 10, kind="timer", status="fired"),
        ],
        NOON,
        None,
    )
    assert [(line.name, line.shape, line.took) for line in drawn.lines] == [
        ("a", "solid", "2.0 s"),
        ("b", "solid", "8.0 s"),
        ("sleep", "outline", "5.0 s"),
    ]
    found = [(bar.x, bar.width) for line in drawn.lines for bar in line.bars]
    assert found == [(0, 20), (20, 80), (50, 50)]
    assert drawn.lines[1].bars[0].notches == (40,)
    assert [tick.label for tick in drawn.ticks] == ["0", "5.0 s", "10 s"]
    assert drawn.span == "10 s"


def test_calls_of_one_name_that_follow_each_other_share_a_line():
    loop = [entry("fetch", n, n + 1) for n in range(100)]
    loop[7] = entry("fetch", 7, 8, status="failed")
    drawn = draw([entry("begin", 0, 1), *loop, entry("end", 100, 101)], NOON, None)
    found = [(line.name, len(line.bars), line.notes) for line in drawn.lines]
    assert found == [("begin", 1, ""), ("fetch", 100, "100 calls, 1 failed"), ("end", 1, "")]
    assert sum(bar.is_bad for bar in drawn.lines[1].bars) == 1
    many = draw([entry(f"s{n}", n, n + 1) for n in range(500)], NOON, None)
    assert (len(many.lines), many.more) == (200, 300)


def test_only_what_is_open_goes_on_until_now():
    done = draw([entry("a", 0, 1)], NOON, at(3600))
    assert done.span == "1.0 s"
    waiting = draw([entry("a", 0, 1), entry("w", 1, None, kind="signal")], NOON, at(101))
    (_, wait) = waiting.lines
    assert (wait.is_open, wait.took, waiting.span) == (True, "2 m", "2 m")
    assert wait.bars[0].x + wait.bars[0].width == pytest.approx(100)
    instant = draw([entry("mark", 0, 0, kind="mark", status="")], NOON, None)
    assert instant.lines[0].shape == "mark"
