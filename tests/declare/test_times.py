"""Times as people write them."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from pgflow.declare.text.times import due, duration_ms

FRIDAY = datetime(2026, 11, 27, 23, 30, tzinfo=UTC)


@pytest.mark.parametrize(("text", "length"), [
    ("500ms", 500), ("90s", 90_000), ("1.5 h", 5_400_000), ("seven days", 604_800_000),
    ("an  hour", 3_600_000), ("2 weeks", 1_209_600_000), ("0d", None), ("ahour", None),
    ("many days", None), ("5", None), ("5 moons", None),
])  # fmt: skip
def test_a_duration_is_read_in_figures_and_in_words(text, length):
    assert duration_ms(text) == length


@pytest.mark.parametrize(("text", "at"), [
    ("seven days", "2026-12-04T23:30:00+00:00"), ("tomorrow morning", "2026-11-28T09:00:00+00:00"),
    ("tomorrow", "2026-11-28T09:00:00+00:00"),
    ("tomorrow at 7:05 Europe/Berlin", "2026-11-29T07:05:00+01:00"),
    ("today evening", "2026-11-27T18:00:00+00:00"), ("friday noon", "2026-12-04T12:00:00+00:00"),
    ("monday 9:30", "2026-11-30T09:30:00+00:00"),
    ("2026-12-01T09:00:00Z", "2026-12-01T09:00:00+00:00"), ("tomorrow 25:00", None),
    ("tomorrow morning Mars/Base", None), ("2026-12-01", None), ("soon", None),
])  # fmt: skip
def test_a_time_is_the_next_such_moment_in_its_zone(text, at):
    found = due(text, FRIDAY)
    assert (found and found.isoformat()) == at
