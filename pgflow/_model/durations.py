"""Durations: a ``timedelta``, or a number of seconds.

They are checked where you pass them, so a bad duration is refused there and not at its first use.
"""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any, overload

from pgflow.errors import InvalidArgument

Duration = timedelta | float
"""Length of time; a number means seconds."""

LONGEST_SECONDS = 3.2e9
"""A hundred years: what is longer, the clock of no database will see."""


@overload
def duration(value: Duration, what: str, *, least_seconds: float = 0.0) -> timedelta: ...
@overload
def duration(
    value: Duration | None, what: str, *, least_seconds: float = 0.0
) -> timedelta | None: ...
def duration(value: Any, what: str, *, least_seconds: float = 0.0) -> timedelta | None:
    """Return a duration as a timedelta; None for None.

    Args:
        value: A timedelta or a number of seconds.
        what: Name for errors, as in "timeout of step charge".
        least_seconds: Shortest duration allowed; minus infinity also allows times that have passed.

    Raises:
        InvalidArgument: The value is not a duration, or is out of bounds.
    """
    if value is None:
        return None
    if isinstance(value, timedelta):
        seconds = value.total_seconds()
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        seconds = float(value)
    else:
        raise InvalidArgument(f"{what} must be a number of seconds or a timedelta, not {value!r}")
    if math.isnan(seconds) or not least_seconds <= seconds <= LONGEST_SECONDS:
        least = "0" if least_seconds <= 0 else f"{least_seconds:g}"
        raise InvalidArgument(
            f"{what} must be between {least} seconds and a hundred years, not {value!r}"
        )
    return timedelta(seconds=max(0.0, seconds))


def seconds(value: Any, what: str) -> float:
    """Return a duration in seconds.

    Args:
        value: A timedelta or a number of seconds.
        what: Name for errors.

    Raises:
        InvalidArgument: The value is not a duration, or is out of bounds.
    """
    given = duration(value, what)
    if given is None:
        raise InvalidArgument(f"{what} must be a number of seconds or a timedelta, not None")
    return given.total_seconds() if isinstance(value, timedelta) else float(value)


SHORTEST = 1e-6
"""Shortest time of anything that must last at all, in seconds."""

_UNITS = (("d", 86_400), ("h", 3600), ("m", 60))


def in_short(value: timedelta) -> str:
    """Return a duration as the command line takes it: ``20s``, ``1h30m``, ``0.5s``."""
    left = value.days * 86_400 + value.seconds
    parts = []
    for unit, size in _UNITS:
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count}{unit}")
    rest = left + value.microseconds / 1e6
    return "".join(parts) + (
        f"{rest:.6f}".rstrip("0").rstrip(".") + "s" if rest or not parts else ""
    )
