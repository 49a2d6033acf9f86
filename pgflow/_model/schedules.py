"""Schedules: when runs of a workflow start by themselves, and which slots come next.

A slot is computed from the slot before it and nothing else, so every worker computes the same ones.
Expressions of cron are evaluated by cronsim in the time zone of the schedule, as Debian's cron
does it where clocks change:

- A slot at a fixed hour (``30 2 * * *``) that a day does not have fires when the clock has gone
  forward, and one that a day has twice fires the first time.
- A slot every so many minutes or hours (``*/30 * * * *``) goes on without a gap: an hour that comes
  twice has its slots twice.

Intervals are lengths of time since 1970 and know nothing of clocks.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from functools import cache
from itertools import islice
from typing import Any, Literal, NamedTuple, get_args
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from pgflow._model.durations import Duration, duration, in_short
from pgflow.errors import DefinitionError, InvalidArgument

Overlap = Literal["skip", "buffer_one", "buffer_all", "cancel_other", "allow"]
"""Action of a slot while a run before it is open: none; it waits for the end of that run, one
slot at most or all of them; it cancels that run and follows it; or it starts its run beside it.
"""

CatchUp = Literal["skip", "latest", "all"]
"""Slots that start a run, of those that are late by more than a minute: none, the newest of all
that are due, or all.
"""

NICKNAMES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
"""Expressions that have a name."""

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MAX_DATES = 1000
MAX_NAME = 90
AHEAD = 16
"""Slots to come that are kept in the database."""
MOST_LATE = 1000
"""Most slots of the past that are computed: the newest."""


@dataclass(frozen=True)
class Spec:
    """Slots of a schedule.

    Attributes:
        cron: Expressions of five fields, or of six that begin with seconds, or nicknames of such;
            a slot is a time that any of them names.
        every: Interval between slots, instead of expressions.
        offset: Part of the interval by which its slots are later than the multiples of it.
        tz: Time zone of the expressions, and of the days.
        not_on: Days without slots.
        only_on: Days that alone have slots; empty for every day.
        start_at: There are no slots before it.
        end_at: There are none after it.
    """

    cron: tuple[str, ...] = ()
    every: timedelta | None = None
    offset: timedelta = timedelta(0)
    tz: str = "UTC"
    not_on: frozenset[date] = frozenset()
    only_on: frozenset[date] = frozenset()
    start_at: datetime | None = None
    end_at: datetime | None = None

    def as_json(self) -> dict[str, Any]:
        """As it is stored."""
        spec: dict[str, Any] = (
            {"cron": list(self.cron)}
            if self.every is None
            else {"every": self.every.total_seconds()}
        )
        if self.offset:
            spec["offset"] = self.offset.total_seconds()
        if self.cron or self.not_on or self.only_on:
            spec["tz"] = self.tz
        for name, days in (("not_on", self.not_on), ("only_on", self.only_on)):
            if days:
                spec[name] = [day.isoformat() for day in sorted(days)]
        for name, at in (("start_at", self.start_at), ("end_at", self.end_at)):
            if at is not None:
                spec[name] = at.astimezone(UTC).isoformat()
        return spec

    def __str__(self) -> str:
        """For people: ``30 2 * * * Europe/London``."""
        if self.every is not None:
            return f"every {in_short(self.every)}"
        text = " | ".join(self.cron)
        return text if self.tz == "UTC" else f"{text} {self.tz}"


def make_spec(
    cron: str | Sequence[str] | None = None,
    *,
    every: Duration | None = None,
    offset: Duration | None = None,
    tz: str = "UTC",
    not_on: Iterable[date | str] = (),
    only_on: Iterable[date | str] = (),
    start_at: datetime | None = None,
    end_at: datetime | None = None,
) -> Spec:
    """Return the slots that these options name.

    Raises:
        InvalidArgument: There are no such slots: an expression or a zone is wrong, or there are
            both expressions and an interval.
    """
    expressions = () if cron is None else (cron,) if isinstance(cron, str) else tuple(cron)
    interval = duration(every, "every= of a schedule")
    shift = duration(offset, "offset= of a schedule") or timedelta(0)
    if (interval is None) == (not expressions):
        raise InvalidArgument("a schedule has either expressions of cron or every=")
    if interval is not None and not timedelta(seconds=1) <= interval <= timedelta(days=36525):
        raise InvalidArgument(
            f"every={interval} of a schedule must be between a second and a century"
        )
    if shift and (interval is None or not timedelta(0) <= shift < interval):
        raise InvalidArgument("offset= of a schedule is part of its every=: less than that")
    for at in (start_at, end_at):
        if at is not None and at.tzinfo is None:
            raise InvalidArgument(f"{at} has no time zone: pass a datetime with tzinfo")
    spec = Spec(
        tuple(" ".join(text.split()) for text in expressions),
        interval,
        shift,
        tz,
        _days(not_on, "not_on"),
        _days(only_on, "only_on"),
        start_at,
        end_at,
    )
    _check(spec)
    return spec


def read_spec(stored: Mapping[str, Any]) -> Spec:
    """Return the slots that are stored so.

    Raises:
        InvalidArgument: They cannot be evaluated.
    """
    try:
        return make_spec(
            stored.get("cron"),
            every=stored.get("every"),
            offset=stored.get("offset"),
            tz=stored.get("tz", "UTC"),
            not_on=stored.get("not_on", ()),
            only_on=stored.get("only_on", ()),
            start_at=_moment(stored.get("start_at")),
            end_at=_moment(stored.get("end_at")),
        )
    except (TypeError, ValueError) as error:
        raise InvalidArgument(str(error)) from None


def _moment(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def _days(given: Iterable[date | str], name: str) -> frozenset[date]:
    try:
        days = frozenset(
            date.fromisoformat(day)
            if isinstance(day, str)
            else day.date()
            if isinstance(day, datetime)
            else day
            for day in given
        )
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"{name}= of a schedule takes days: {error}") from None
    if not all(isinstance(day, date) for day in days):
        raise InvalidArgument(f"{name}= of a schedule takes days, such as 2027-12-25")
    if len(days) > MAX_DATES:
        raise InvalidArgument(f"{name}= of a schedule takes {MAX_DATES} days at most")
    return days


def _check(spec: Spec) -> None:
    zone = zone_of(spec.tz)
    for text in spec.cron:
        fields = _fields(text)
        if len(fields) not in (5, 6) or len(text) > 255:
            raise InvalidArgument(
                f"{text!r} is not a cron expression: it has five fields (minute, hour, day of "
                "month, month, day of week), or six that begin with seconds, or is one of "
                f"{', '.join(NICKNAMES)}"
            )
        try:
            CronSim(" ".join(fields), datetime(2000, 1, 1, tzinfo=zone))
        except CronSimError as error:
            raise InvalidArgument(f"{text!r} is not a cron expression: {error}") from None


def _fields(text: str) -> list[str]:
    """Return the fields of an expression or nickname."""
    return NICKNAMES.get(text.strip().lower(), text).split()


@cache
def zone_of(name: str) -> ZoneInfo:
    """Return a time zone of the IANA database.

    Raises:
        InvalidArgument: No time zone has this name.
    """
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise InvalidArgument(
            f"unknown time zone {name!r}: use a name of the IANA database, such as Europe/London"
        ) from None


# ---------------------------------------------------------------- slots


def slots_after(spec: Spec, after: datetime) -> Iterator[datetime]:
    """Yield the slots after a time, in their order and in UTC; without end, but for what ends."""
    zone = zone_of(spec.tz)
    begin: datetime | None = after.astimezone(UTC)
    if spec.start_at is not None:
        begin = max(after, spec.start_at - timedelta(microseconds=1)).astimezone(UTC)
    while begin is not None:
        start, begin = begin, None
        for slot in _merged(spec, zone, start):
            if spec.end_at is not None and slot > spec.end_at:
                return
            day = slot.astimezone(zone).date()
            if day in spec.not_on or (spec.only_on and day not in spec.only_on):
                begin = _begin_of_next_day(spec, zone, day)
                break
            yield slot


def _begin_of_next_day(spec: Spec, zone: ZoneInfo, day: date) -> datetime | None:
    """Return the moment before the next day that may have slots; None if there is none."""
    if spec.only_on:
        later = [other for other in spec.only_on if other > day]
        if not later:
            return None
        following = min(later)
    else:
        following = day + timedelta(days=1)
    midnight = datetime.combine(following, datetime.min.time(), tzinfo=zone)
    return midnight.astimezone(UTC) - timedelta(microseconds=1)


def _merged(spec: Spec, zone: ZoneInfo, after: datetime) -> Iterator[datetime]:
    if spec.every is not None:
        yield from _multiples(spec.every, spec.offset, after)
        return
    last = after
    for slot in heapq.merge(*(_of_cron(text, zone, after) for text in spec.cron)):
        if slot > last:
            last = slot
            yield slot


def _multiples(every: timedelta, offset: timedelta, after: datetime) -> Iterator[datetime]:
    number = (after - EPOCH - offset) // every
    while True:
        number += 1
        try:
            yield EPOCH + offset + number * every
        except OverflowError:
            return


def _of_cron(text: str, zone: ZoneInfo, after: datetime) -> Iterator[datetime]:
    """Yield the slots of one expression. Its times are read off a clock on the wall that never
    changes; what they are in the zone is decided here. (cronsim's own way goes by whole hours, and
    loses slots where a clock changes by half an hour.)
    """
    fields = _fields(text)
    minute, hour, *_ = fields
    is_fixed = len(fields) == 5 and not minute.startswith("*") and not hour.startswith("*")
    last = after
    try:
        for slot in _in_zone(_walls(" ".join(fields), zone, after), zone, is_fixed=is_fixed):
            if slot > last:
                last = slot
                yield slot
    except (OverflowError, ValueError):  # the calendar has ended
        return


def _walls(text: str, zone: ZoneInfo, after: datetime) -> Iterator[datetime]:
    """Yield the times on the wall, from some time on that is not after the first slot."""
    begin = after.astimezone(zone)
    near = ((after + side).astimezone(zone).utcoffset() for side in (-_NEAR, _NEAR))
    if set(near) != {begin.utcoffset()}:
        begin -= _NEAR
    # What comes twice or never is worked out from the times, so these must not know of a zone.
    yield from CronSim(text, begin.replace(tzinfo=None, fold=0))


_NEAR = timedelta(hours=6)
"""A clock that changes further away than this does not matter."""


def _in_zone(walls: Iterator[datetime], zone: ZoneInfo, *, is_fixed: bool) -> Iterator[datetime]:
    """Yield the times at which a clock on the wall of a zone shows these."""
    twice: list[datetime] = []
    for wall in walls:
        first = wall.replace(tzinfo=zone)
        at, again = first.astimezone(UTC), first.replace(fold=1).astimezone(UTC)
        if at < again:  # it comes twice
            yield at
            if not is_fixed:
                twice.append(again)
            continue
        yield from twice
        twice = []
        if at == again:
            yield at
        elif is_fixed:  # it never comes
            yield _after_gap(first)
    yield from twice


def _after_gap(missing: datetime) -> datetime:
    """Return the moment at which the clock has gone forward over a time."""
    while missing.astimezone(UTC).astimezone(missing.tzinfo).replace(fold=0) != missing:
        missing += timedelta(minutes=1)
    return missing.astimezone(UTC)


class Refill(NamedTuple):
    """Slots behind the last one that the database knows.

    Attributes:
        slots: The newest of those up to now, and the next ones.
        is_over: True if these are the last ones.
    """

    slots: list[datetime]
    is_over: bool


def refill(spec: Spec, after: datetime, now: datetime) -> Refill:
    """Return the slots behind a time: those that have passed by now, though not more than the
    newest thousand, and the next ones.
    """
    past = _newest(spec, after, now)
    behind = max(after, now)
    coming = list(islice(slots_after(spec, behind), AHEAD))
    return Refill(past + coming, len(coming) < AHEAD)


def _newest(spec: Spec, after: datetime, now: datetime) -> list[datetime]:
    """Return the newest slots after a time and up to now. They are looked for in a time that grows
    until it has enough of them, so a year of seconds costs no more than some of them.
    """
    window = timedelta(hours=1)
    while True:
        begin = max(after, now - window)
        found = []
        for slot in slots_after(spec, begin):
            if slot > now:
                break
            found.append(slot)
        if begin == after or len(found) >= MOST_LATE:
            return found[-MOST_LATE:]
        window *= 4


def parse_moment(text: str, what: str, tz: str) -> datetime:
    """Return a time that a person typed. Without a zone it is meant in this one.

    Args:
        text: The time, such as ``2026-01-01T02:30``.
        what: Name for errors.
        tz: Time zone of the IANA database.

    Raises:
        InvalidArgument: It is not a time, or no time zone has this name.
    """
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise InvalidArgument(
            f"{what} is a time such as 2026-01-01T02:30, not {text.strip()!r}"
        ) from None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=zone_of(tz))


def slots_between(spec: Spec, first: datetime, last: datetime, most: int) -> list[datetime]:
    """Return the slots from one time to another, both included.

    Raises:
        InvalidArgument: They are more than so many, or a time has no zone.
    """
    for at in (first, last):
        if at.tzinfo is None:
            raise InvalidArgument(f"{at} has no time zone: pass a datetime with tzinfo")
    found: list[datetime] = []
    for slot in slots_after(spec, first - timedelta(microseconds=1)):
        if slot > last:
            break
        if len(found) == most:
            raise InvalidArgument(
                f"there are more than {most} slots from {first} to {last}: take a shorter range"
            )
        found.append(slot)
    return found


# ---------------------------------------------------------------- declarations


@dataclass(frozen=True)
class Declared:
    """A schedule declared by the code of a workflow.

    Attributes:
        name: Its name; None for that of the workflow.
        spec: Its slots.
        overlap: Action of a slot while an earlier run is open.
        catch_up: Treatment of late slots.
        max_catch_up: Maximum late slots to catch up at once.
        jitter: Maximum random delay of a slot.
    """

    spec: Spec
    name: str | None = None
    overlap: Overlap = "skip"
    catch_up: CatchUp = "latest"
    max_catch_up: int = 100
    jitter: timedelta = field(default=timedelta(0))

    def __post_init__(self) -> None:
        """Refuse settings that the database would refuse.

        Raises:
            InvalidArgument: It would.
        """
        if self.name is not None and not 1 <= len(self.name) <= MAX_NAME:
            raise InvalidArgument(f"the name of a schedule has 1 to {MAX_NAME} characters")
        for option, given, known in (
            ("overlap", self.overlap, get_args(Overlap)),
            ("catch_up", self.catch_up, get_args(CatchUp)),
        ):
            if given not in known:
                raise InvalidArgument(f"{option}= is one of {', '.join(known)}, not {given!r}")
        if not 1 <= self.max_catch_up <= MOST_LATE:
            raise InvalidArgument(f"max_catch_up= is between 1 and {MOST_LATE}")
        if not timedelta(0) <= self.jitter <= timedelta(days=1):
            raise InvalidArgument("jitter= is a day at most")


def declaration(
    declared: Declared,
    workflow: str,
    queue: str,
    priority: int,
    timeout: timedelta | None,
    version: str,
    slot_parameter: str | None,
) -> dict[str, Any]:
    """Return a schedule in the form in which a worker declares it.

    Raises:
        DefinitionError: Its name is too long.
    """
    name = declared.name or workflow
    if len(name) > MAX_NAME:
        raise DefinitionError(
            f"schedule {name!r} has more than {MAX_NAME} characters: pass name= to @schedule"
        )
    return {
        "name": name,
        "workflow": workflow,
        "queue": queue,
        "spec": declared.spec.as_json(),
        "overlap": declared.overlap,
        "catch_up": declared.catch_up,
        "max_catch_up": declared.max_catch_up,
        "jitter_seconds": declared.jitter.total_seconds(),
        "priority": priority,
        "timeout_seconds": None if timeout is None else timeout.total_seconds(),
        "run_version": version,
        "slot_parameter": slot_parameter,
    }
