"""Times as people write them: ``15m``, ``seven days``, ``tomorrow morning``, ``monday 9:30``.

A day without a zone is one of UTC, since a run may continue anywhere; a zone may follow it, as in
``tomorrow 8:00 Europe/Berlin``.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final
from zoneinfo import ZoneInfo

from pgflow.declare.text.moments import moment

TIME: Final = (
    "a time like 90s, seven days, tomorrow morning, monday 9:30 Europe/Berlin or "
    "2026-12-01T09:00:00Z"
)
"""Forms of a time, for errors."""

_NUMBERS: Final = {
    "a": 1, "an": 1, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7,
    "eight": 8, "nine": 9, "ten": 10, "eleven": 11, "twelve": 12,
}  # fmt: skip
_UNITS_MS: Final = {
    "ms": 1, "s": 1_000, "sec": 1_000, "second": 1_000, "m": 60_000, "min": 60_000,
    "minute": 60_000, "h": 3_600_000, "hour": 3_600_000, "d": 86_400_000, "day": 86_400_000,
    "w": 604_800_000, "week": 604_800_000,
}  # fmt: skip
_DAYS: Final = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_HOURS: Final = {"morning": 9, "noon": 12, "afternoon": 14, "evening": 18}
_DURATION: Final = re.compile(r"(?P<amount>\d{1,12}(?:\.\d{1,9})?|[a-z]+(?= ))\s*(?P<unit>[a-z]+)")
_DAY: Final = re.compile(
    rf"(?P<day>today|tomorrow|{'|'.join(_DAYS)})"
    rf"(?:\s+(?:at\s+)?(?:(?P<part>{'|'.join(_HOURS)})|(?P<hour>\d{{1,2}}):(?P<minute>\d\d)))?"
    r"(?:\s+(?P<zone>[A-Z][\w+/-]*))?"
)


def duration_ms(text: str) -> float | None:
    """Return a duration in milliseconds; None if a text is none.

    Args:
        text: As in ``15m`` or ``two hours``.
    """
    found = _DURATION.fullmatch(" ".join(text.split()))
    if found is None:
        return None
    unit, amount = found["unit"], found["amount"]
    per_unit = _UNITS_MS.get(unit) or _UNITS_MS.get(unit.removesuffix("s"))
    number = _NUMBERS.get(amount) if amount.isalpha() else float(amount)
    return None if per_unit is None or not number else number * per_unit


def due(text: str, now: datetime) -> datetime | None:
    """Return the moment that a text names; None if it names none.

    Args:
        text: A duration, a day or a moment.
        now: The moment from which it counts.
    """
    said = " ".join(text.split())
    if (length := duration_ms(said)) is not None:
        return now + timedelta(milliseconds=length)
    if (at := moment(said)) is not None:
        return at
    found = _DAY.fullmatch(said)
    zone = _zone(found["zone"]) if found is not None else None
    if found is None or zone is None:
        return None
    here = now.astimezone(zone)
    hour = int(found["hour"]) if found["hour"] else _HOURS[found["part"] or "morning"]
    minute = int(found["minute"] or 0)
    if hour > 23 or minute > 59:
        return None
    day = here.date() + timedelta(days=_days_until(found["day"], here))
    return datetime(day.year, day.month, day.day, hour, minute, tzinfo=zone)


def _days_until(day: str, here: datetime) -> int:
    if day in _DAYS:
        return (_DAYS.index(day) - here.weekday() - 1) % 7 + 1
    return int(day == "tomorrow")


def _zone(name: str | None) -> tzinfo | None:
    if name is None:
        return UTC
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        return None
