"""Slots are those of an independent evaluator of cron, wherever one begins, in any zone."""

from __future__ import annotations

import bisect
import functools
from datetime import UTC, date, datetime, timedelta
from itertools import islice, takewhile
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from croniter import croniter
from cronsim import CronSim
from hypothesis import given, settings
from hypothesis import strategies as st

from pgflow._model.schedules import (
    AHEAD,
    MOST_LATE,
    make_spec,
    read_spec,
    refill,
    slots_after,
    slots_between,
)
from pgflow.errors import InvalidArgument

EXPRESSIONS = [
    "*/15 * * * *", "0 * * * *", "5,35 */2 * * *", "30 2 * * *", "30 1 * * *", "0 0 * * *",
    "15 3 * * 1-5", "0 9 1 * *", "45 23 L * *", "0 12 29 2 *", "10 4 * * 0", "0 6,18 15 1,4,7,10 *",
]  # fmt: skip
ZONES = ["UTC", "Europe/London", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe"]
CHANGING = ("Europe/London", "America/New_York", "Australia/Lord_Howe")
"""Zones whose clocks change: by an hour, and the last by half of it."""
YEAR = datetime(2027, 1, 1, tzinfo=UTC)
END = datetime(2028, 1, 1, tzinfo=UTC)


def wall_times(expression: str, zone: ZoneInfo) -> list[datetime]:
    """Times that croniter finds on a clock on the wall that never changes, without a zone."""
    begin = YEAR.astimezone(zone).replace(tzinfo=None) - timedelta(days=2)
    found = croniter(expression, begin).all_next(datetime)
    last = END.astimezone(zone).replace(tzinfo=None) + timedelta(days=2)
    return list(takewhile(lambda at: at < last, found))


def exists(at: datetime) -> bool:
    return at.astimezone(UTC).astimezone(at.tzinfo).replace(tzinfo=None) == at.replace(tzinfo=None)


def oracle(expression: str, name: str) -> list[datetime]:
    """Slots of a year by croniter's times on the wall, and the rule for clocks that change: at a
    fixed hour a time that does not exist is the next that does, and one that comes twice is the
    first; every so many minutes or hours, what does not exist is left out, and what comes twice
    counts twice.
    """
    zone = ZoneInfo(name)
    minute, hour, *_ = expression.split()
    is_fixed = not minute.startswith("*") and not hour.startswith("*")
    slots = set()
    for wall in wall_times(expression, zone):
        at = wall.replace(tzinfo=zone)
        if is_fixed:
            while not exists(at):
                at += timedelta(minutes=1)
            slots.add(at.astimezone(UTC))
        elif exists(at):
            slots.update(at.replace(fold=fold).astimezone(UTC) for fold in (0, 1))
    return sorted(slot for slot in slots if YEAR < slot <= END)


def each_zone(expressions: list[str], zones: list[str]) -> Any:
    """Run a test for each expression where clocks change, and in full in every zone."""

    changing = [zone for zone in zones if zone in CHANGING]

    def is_played(expression: str, zone: str) -> bool:
        is_dense = expression.startswith("*/15")  # a year of it has 35,000 slots
        return not is_dense and zone in (
            changing[-1:] if expression in EXPRESSIONS[:3] else changing
        )

    return pytest.mark.parametrize(
        ("expression", "zone"),
        [
            pytest.param(each, zone, marks=() if is_played(each, zone) else pytest.mark.full)
            for each in expressions
            for zone in zones
        ],
    )


@functools.cache
def ours(expression: str, zone: str, after: datetime = YEAR) -> list[datetime]:
    spec = make_spec(expression, tz=zone)
    return list(takewhile(lambda slot: slot <= END, slots_after(spec, after)))


@each_zone(EXPRESSIONS, ZONES)
def test_a_year_of_slots_is_that_of_the_oracle(expression, zone):
    assert ours(expression, zone) == oracle(expression, zone)


@each_zone(EXPRESSIONS, ZONES[:4])
def test_where_clocks_change_by_an_hour_the_slots_are_those_of_debian(expression, zone):
    """By cronsim's own way, which follows Debian's."""
    found = (at.astimezone(UTC) for at in CronSim(expression, YEAR.astimezone(ZoneInfo(zone))))
    assert ours(expression, zone) == list(takewhile(lambda slot: slot <= END, found))


@each_zone(EXPRESSIONS[:8], ZONES)
def test_slots_are_the_same_wherever_one_begins(expression, zone):
    year = ours(expression, zone)
    spec = make_spec(expression, tz=zone)
    # Around both changes of each clock every slot and every quarter of an hour is a beginning.
    for change in (
        datetime(2027, 3, 14, tzinfo=UTC),
        datetime(2027, 3, 28, tzinfo=UTC),
        datetime(2027, 4, 3, tzinfo=UTC),
        datetime(2027, 10, 2, tzinfo=UTC),
        datetime(2027, 10, 31, tzinfo=UTC),
        datetime(2027, 11, 7, tzinfo=UTC),
    ):
        for quarters in range(-8, 100):
            after = change + timedelta(minutes=15 * quarters)
            assert next(slots_after(spec, after)) == year[bisect.bisect_right(year, after)]


@pytest.mark.full
@given(
    after=st.timedeltas(timedelta(days=-365), timedelta(0)).map(lambda before: YEAR + before),
    late=st.timedeltas(timedelta(0), timedelta(days=40)),
    expression=st.sampled_from([*EXPRESSIONS, "* * * * * *", "*/7 * * * *"]),
    zone=st.sampled_from(ZONES),
)
@settings(max_examples=60, deadline=None)
def test_a_refill_has_the_newest_slots_up_to_now_and_the_next_ones(after, late, expression, zone):
    spec, now = make_spec(expression, tz=zone), after + late
    found = refill(spec, after, now)
    coming = [slot for slot in found.slots if slot > now]
    past = [slot for slot in found.slots if slot <= now]
    assert coming == list(islice(slots_after(spec, now), AHEAD))
    assert len(past) <= MOST_LATE
    begin = past[0] - timedelta(microseconds=1) if len(past) == MOST_LATE else after
    assert past == list(takewhile(lambda slot: slot <= now, slots_after(spec, begin)))
    assert not found.is_over


def test_a_clock_that_has_gone_back_finds_no_slot_again():
    spec = make_spec("0 * * * *")
    after = datetime(2027, 5, 1, 12, tzinfo=UTC)
    found = refill(spec, after, after - timedelta(hours=5))
    assert found.slots[0] == after + timedelta(hours=1)


@pytest.mark.parametrize(
    ("nickname", "fields"),
    [("@daily", "0 0 * * *"), (" @Weekly ", "0 0 * * 0"), ("@yearly", "0 0 1 1 *")],
)
def test_a_nickname_stands_for_its_fields(nickname, fields):
    assert ours(nickname, "Europe/London") == ours(fields, "Europe/London") != []


def test_intervals_are_multiples_since_1970_and_know_nothing_of_clocks():
    spec = make_spec(every=timedelta(minutes=45), offset=timedelta(minutes=10))
    slots = list(islice(slots_after(spec, datetime(2027, 3, 28, tzinfo=UTC)), 5))
    assert {b - a for a, b in zip(slots, slots[1:], strict=False)} == {timedelta(minutes=45)}
    assert all((slot.timestamp() - 600) % 2700 == 0 for slot in slots)


def test_days_without_slots_and_days_that_alone_have_them_are_days_of_the_zone():
    holidays = make_spec(
        "0 9 * * 1-5", tz="Europe/London", not_on=[date(2027, 12, 27), "2027-12-28"]
    )
    assert [
        slot.day
        for slot in islice(slots_after(holidays, datetime(2027, 12, 24, 12, tzinfo=UTC)), 2)
    ] == [29, 30]
    fair = make_spec(
        "0 */12 * * *", tz="Pacific/Auckland", only_on=[date(2027, 7, 1), date(2029, 7, 1)]
    )
    slots = list(slots_after(fair, datetime(2027, 1, 1, tzinfo=UTC)))
    local = [slot.astimezone(ZoneInfo("Pacific/Auckland")) for slot in slots]
    found = [(at.year, at.day, at.hour) for at in local]
    assert found == [(2027, 1, 0), (2027, 1, 12), (2029, 1, 0), (2029, 1, 12)]
    assert refill(fair, datetime(2027, 1, 1, tzinfo=UTC), datetime(2028, 1, 1, tzinfo=UTC)).is_over


def test_slots_begin_and_end_when_they_are_to():
    spec = make_spec(
        "0 0 * * *",
        start_at=datetime(2027, 1, 3, tzinfo=UTC),
        end_at=datetime(2027, 1, 5, tzinfo=UTC),
    )
    assert [slot.day for slot in slots_after(spec, YEAR)] == [3, 4, 5]


def test_several_expressions_name_each_slot_once():
    spec = make_spec(["0 */2 * * *", "0 */3 * * *"])
    assert [s.hour for s in islice(slots_after(spec, YEAR), 5)] == [2, 3, 4, 6, 8]


@pytest.mark.parametrize("spec", [
    make_spec("30 2 * * *", tz="Europe/London"), make_spec(every=90),
    make_spec(["0 0 1 * *", "0 0 15 * *"], not_on=[date(2027, 1, 15)], end_at=END),
    make_spec(every=timedelta(hours=6), offset=60, only_on=[date(2027, 1, 15)], tz="Asia/Kolkata"),
])  # fmt: skip
def test_slots_are_stored_and_read_again(spec):
    assert read_spec(spec.as_json()) == spec


@pytest.mark.parametrize(("options", "says"), [
    ({"cron": "61 * * * *"}, "Bad minute"), ({"cron": "* * * *"}, "five fields"),
    ({"cron": "0-99999999 * * * *"}, "Bad minute"), ({"cron": "0 0 31 2 *"}, "Bad day"),
    ({"cron": "0 0 * * *", "tz": "Mars/Phobos"}, "unknown time zone"), ({}, "either"),
    ({"cron": "0 0 * * *", "every": 5}, "either"), ({"every": 0.1}, "between a second"),
    ({"every": 60, "offset": 60}, "less than that"), ({"cron": "0 0 * * *", "offset": 1}, "part of its every="),
    ({"cron": "0 0 * * *", "start_at": YEAR.replace(tzinfo=None)}, "no time zone"),
    ({"cron": "0 0 * * *", "not_on": ["2027-13-01"]}, "takes days"), ({"cron": "0 0 * * *", "only_on": [7]}, "takes days"),
])  # fmt: skip
def test_what_names_no_slots_is_refused(options, says):
    with pytest.raises(InvalidArgument, match=says):
        make_spec(**options)


def test_a_range_has_both_its_ends_and_a_bound():
    spec = make_spec("0 * * * *")
    first, last = YEAR, YEAR + timedelta(hours=3)
    assert len(slots_between(spec, first, last, 4)) == 4
    with pytest.raises(InvalidArgument, match="more than 3"):
        slots_between(spec, first, last, 3)
    with pytest.raises(InvalidArgument, match="no time zone"):
        slots_between(spec, YEAR.replace(tzinfo=None), last, 3)
