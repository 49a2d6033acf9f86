"""Checks of Refs: recorded results refer to outside objects, and the app's checkers report whether
these still exist when a run resumes.

Each Ref is checked once per resumption, before the code runs and outside any transaction. A checker
that raises or times out is retried with a growing delay, and the run waits for its answer.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from pgflow._flow.scope import log_fields
from pgflow._model.claims import Claim
from pgflow._model.durations import Duration, duration
from pgflow._model.effects import Ref
from pgflow._model.kinds import Kind
from pgflow._model.options import Retries
from pgflow._model.units import Unit
from pgflow._worker.threads import AppCalls, is_its_own
from pgflow.errors import DefinitionError
from pgflow.logs import redacted

log = logging.getLogger("pgflow")

AT_ONCE = 16
"""Most Refs of one run that are checked at the same time."""

_SIGN = '"pgflow"'
_HOLDING = frozenset(
    {Kind.STEP_COMPLETED, Kind.STEP_RENEWED, Kind.DECISION_RECORDED, Kind.EFFECT_CONFIRMED}
)
_AGAIN = Retries(first_delay=timedelta(seconds=0.2), max_delay=timedelta(seconds=30))


@dataclass(frozen=True)
class Checker:
    """Function that reports whether objects of one kind exist.

    Attributes:
        fn: Called with a Ref, ``async def`` or ``def``; True if it exists.
        timeout_seconds: Longest time for one answer.
    """

    fn: Callable[[Ref], Any]
    timeout_seconds: float


def make_checker(kind: str, fn: Any, timeout: Duration) -> Checker:
    """Return a checker as declared.

    Raises:
        DefinitionError: It can never be called.
    """
    if not isinstance(kind, str) or not kind:
        raise DefinitionError(
            f"ref_checker() takes the kind of Refs that it checks, such as 's3', not {kind!r}"
        )
    if not callable(fn):
        raise DefinitionError(
            f"the checker of {kind!r} must be a function that takes a Ref, not {fn!r}"
        )
    patience = duration(timeout, f"timeout of the checker of {kind!r}", least_seconds=-math.inf)
    if patience <= timedelta(0):
        raise DefinitionError(
            f"the checker of {kind!r}: timeout must be greater than zero, not {timeout}"
        )
    return Checker(fn, patience.total_seconds())


def refs_in(units: list[Unit], checkers: Container[str]) -> dict[Ref, list[int]]:
    """Return the Refs of these checkers' kinds in the newest result of each call, each with the
    calls that returned it.
    """
    newest = {unit.call: unit for unit in units if unit.kind in _HOLDING}
    found: dict[Ref, list[int]] = {}
    for unit in newest.values():
        if unit.payload is not None and _SIGN in unit.payload:
            for ref in set(_walk(json.loads(unit.payload))):
                if ref.kind in checkers:
                    found.setdefault(ref, []).append(unit.call)
    return found


def _walk(value: Any) -> Iterator[Ref]:
    if isinstance(value, dict):
        if (
            value.get("pgflow") == "ref"
            and isinstance(value.get("kind"), str)
            and isinstance(value.get("id"), str)
        ):
            yield Ref(value["kind"], value["id"])
        for part in value.values():
            yield from _walk(part)
    elif isinstance(value, list):
        for part in value:
            yield from _walk(part)


async def find_lost(
    claim: Claim,
    refs: dict[Ref, list[int]],
    checkers: dict[str, Checker],
    calls: AppCalls,
    goes_on: Callable[[], bool],
) -> dict[int, list[Ref]]:
    """Check Refs, and return the lost ones.

    Args:
        claim: The run, for the log.
        refs: The Refs, each with the calls that returned it.
        checkers: By kind.
        calls: Calls the checkers.
        goes_on: Called between attempts; returns False once the answer is not needed.

    Returns:
        The Refs that do not exist, by call. Meaningless once `goes_on` has returned False.
    """
    turns = asyncio.Semaphore(AT_ONCE)

    async def exists(ref: Ref) -> bool:
        async with turns:
            return await _ask(claim, ref, checkers[ref.kind], calls, goes_on)

    answers = await asyncio.gather(*map(exists, refs))
    lost: dict[int, list[Ref]] = {}
    for (ref, numbers), is_there in zip(refs.items(), answers, strict=True):
        for number in () if is_there else numbers:
            lost.setdefault(number, []).append(ref)
    return lost


async def _ask(
    claim: Claim, ref: Ref, checker: Checker, calls: AppCalls, goes_on: Callable[[], bool]
) -> bool:
    tries = 0
    task = asyncio.current_task()
    while goes_on():
        try:
            async with asyncio.timeout(checker.timeout_seconds):
                return _verdict(await calls.call(checker.fn, ref, ref))
        except BaseException as error:  # on any error, it has not answered
            if not is_its_own(error, task):
                raise
            tries += 1
            delay = _AGAIN.delay_seconds(tries)
            log.warning(
                "the checker of %s %r did not answer: %s; retrying in %.1f s",
                ref.kind,
                ref.id,
                redacted(error),
                delay,
                extra=log_fields(claim),
            )
            await asyncio.sleep(delay)
    return True


def _verdict(answer: object) -> bool:
    if not isinstance(answer, bool):
        raise TypeError(f"a checker of Refs must return True or False, not {answer!r}")
    return answer
