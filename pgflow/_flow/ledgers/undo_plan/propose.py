"""Plans: undo effects that have no ``compensate``.

A *planner* is a ``@decision`` that gets the effect, its reason and the goal of the saga, and
proposes steps. The proposal is data: names are looked up among the steps that the saga allows, and
arguments must fit their annotations. Steps that cannot be undone in turn are refused. One refused
step refuses the whole plan. :mod:`pgflow._flow.ledgers.undo_plan.run` carries it out.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import lru_cache
from typing import Any

import psycopg

from pgflow._db.calls import policy as calls
from pgflow._db.query import run_async
from pgflow._flow.parameters import field_of, parameters_codec
from pgflow._flow.scope import current
from pgflow._flow.step import Step, own_transaction
from pgflow._model.codecs import Codec, encode_loosely
from pgflow._model.decisions import Decision
from pgflow._model.effects import Risk
from pgflow._model.kinds import StepKind
from pgflow._model.tags import known
from pgflow.errors import DefinitionError, NotStorable

MAX_STEPS = 50
"""A longer plan is refused."""

WITHIN = timedelta(minutes=1)
"""Longest time of the review of a plan."""


@known
@dataclass(frozen=True)
class PlannedCall:
    """A step of a plan: one of the steps that the saga allows, by its name.

    Attributes:
        call: Name of the step.
        arguments: Its arguments by name, as JSON has them.
    """

    call: str
    arguments: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class UndoRequest:
    """Request to a planner to take an effect back.

    Attributes:
        effect: Name of the effect that must be taken back.
        key: Its idempotency key.
        request: Its arguments by name, as the ledger has them.
        reply: Value that it returned.
        risk: Means by which it can be taken back, as declared.
        because: The decision that it rests on; None if it rests on none.
        goal: Purpose of the saga, in its own words.
        steps: Steps that a plan may call: name, signature and purpose of each step.
    """

    effect: str
    key: str
    request: dict[str, Any]
    reply: Any
    risk: Risk
    because: Decision[Any] | None
    goal: str | None
    steps: dict[str, str]


@dataclass(frozen=True)
class Judged:
    """A step of a plan, and why it is refused; None if it is not.

    Attributes:
        needs: Leave that the policy wants for it: its ``version``, and the ``terms`` of the gate;
            None if it wants none.
    """

    step: dict[str, Any]
    refused: str | None
    needs: dict[str, Any] | None = None


@dataclass(frozen=True)
class Review:
    """A plan's verdict: its steps as they would be run, and why none of them is;
    None if all may be.
    """

    steps: list[Judged]
    refused: str | None


# ---------------------------------------------------------------- what a saga says


@dataclass(frozen=True)
class Planning:
    """Plan options of a saga, for effects without an inverse.

    Attributes:
        planner: The decision that proposes.
        goal: Purpose of the saga.
        steps: The steps that a plan may call, by name.
    """

    planner: Step[..., Any]
    goal: str | None
    steps: dict[str, Step[..., Any]]


def planning_of(
    planner: Step[..., Any], goal: str | None, steps: Sequence[Step[..., Any]]
) -> Planning:
    """Check the plan options of a saga and return them.

    Raises:
        DefinitionError: The planner is not a decision, or a plan cannot call one of the steps.
    """
    if not isinstance(planner, Step) or planner.effect != StepKind.DECISION:
        raise DefinitionError(f"the planner of a saga must be a @decision, not {planner!r}")
    named: dict[str, Step[..., Any]] = {}
    for step in steps:
        if not isinstance(step, Step) or step.effect not in (
            StepKind.EFFECT,
            StepKind.STEP,
            StepKind.TRANSACTION,
        ):
            raise DefinitionError(
                f"a plan may call an @effect, a @step or a @transaction, not {step!r}"
            )
        if named.setdefault(step.name, step) is not step:
            raise DefinitionError(f"two steps that a plan may call are named {step.name!r}")
        arguments_of(step.origin)
    return Planning(planner, goal, named)


@lru_cache(maxsize=4096)
def arguments_of(step: Step[..., Any]) -> Codec[dict[str, Any]]:
    """The codec of a step's arguments by name.

    Raises:
        DefinitionError: It takes some that have no name.
    """
    fields = {}
    for parameter in _parameters_of(step):
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise DefinitionError(
                f"a plan cannot call step {step.name}, whose parameter {parameter.name!r} cannot "
                "be passed by its name"
            )
        fields[parameter.name] = field_of(parameter, step.hints)
    return parameters_codec("step", step.name, fields)


def _parameters_of(step: Step[..., Any]) -> list[inspect.Parameter]:
    """Return the parameters that a caller passes: all but a transaction's connection."""
    hidden = getattr(step, "connection_parameter", None)
    return [p for name, p in inspect.signature(step.fn).parameters.items() if name != hidden]


class _Default:
    """Placeholder for a default, which may be a value that the planner must not see."""

    def __repr__(self) -> str:
        return "..."


def describe(step: Step[..., Any]) -> str:
    """Return the line on a step for a planner: its name, parameters and purpose."""
    parameters = [
        p if p.default is p.empty else p.replace(default=_Default()) for p in _parameters_of(step)
    ]
    signature = inspect.signature(step.fn).replace(parameters=parameters)
    purpose = inspect.getdoc(step.fn)
    return f"{step.name}{signature}" + (f": {purpose.splitlines()[0]}" if purpose else "")


# ---------------------------------------------------------------- the verdict


class PlanRefused(Exception):
    """A plan that is not run."""


def read_plan(value: Any) -> list[PlannedCall]:
    """Return the plan from a planner's choice: a list of :class:`PlannedCall`, or of such objects
    as JSON.

    Raises:
        PlanRefused: The choice is not a plan, or is empty.
    """
    try:
        steps = json.loads(encode_loosely(value, "the plan"))
    except NotStorable as error:
        raise PlanRefused(f"the planner returned an invalid plan: {error}") from None
    if steps is None or steps == []:
        raise PlanRefused("the planner returned an empty plan")
    if not isinstance(steps, list) or len(steps) > MAX_STEPS:
        raise PlanRefused(
            f"the planner returned an invalid plan: it must be a list of at most {MAX_STEPS} steps"
        )
    return [_read_step(number, step) for number, step in enumerate(steps, 1)]


def _read_step(number: int, step: Any) -> PlannedCall:
    match step:
        case {"call": str(name), "arguments": dict(arguments), **others} if not others:
            return PlannedCall(name, arguments)
        case {"call": str(name), **others} if not others:
            return PlannedCall(name)
    raise PlanRefused(
        f"the planner returned an invalid plan: step {number} is not a call with arguments"
    )


def judge(step: PlannedCall, allowed: dict[str, Step[..., Any]]) -> Judged:
    """Judge one step by itself, before the policy."""
    plain = {"call": step.call, "arguments": step.arguments}
    known = allowed.get(step.call)
    if known is None:
        return Judged(plain, f"no step that may be called here is named {step.call!r}")
    if _risk_of(known) == "irreversible":
        return Judged(plain, f"{step.call} is irreversible")
    try:
        arguments_of(known.origin).decode(
            json.dumps(step.arguments), f"what {step.call} would be called with"
        )
    except NotStorable as error:
        return Judged(plain, str(error))
    return Judged(plain, None)


def _risk_of(step: Step[..., Any]) -> str:
    """Return the risk of a step. A step or transaction declares none and counts as compensable: the
    author of the saga allowed it.
    """
    terms = getattr(step, "terms", None)
    return "compensable" if terms is None else str(terms.risk)


def _sum_up(judged: list[Judged]) -> Review:
    """Return the review of a plan: one refused step refuses all."""
    for number, one in enumerate(judged, 1):
        if one.refused is not None:
            return Review(
                judged,
                f"the plan needs a gate: step {number}, {one.step['call']}: {one.refused}",
            )
    return Review(judged, None)


def _act_of(
    step: dict[str, Any], allowed: dict[str, Step[..., Any]], *, is_sealed: bool
) -> tuple[str, str, Any]:
    """A step as the policy judges it: name, risk and request; of an app with a codec only what is
    readable of that.
    """
    known = allowed.get(step["call"])
    risk, arguments = "irreversible" if known is None else _risk_of(known), step["arguments"]
    if not is_sealed:
        return step["call"], risk, arguments
    readable = getattr(getattr(known, "terms", None), "readable", ())
    return (
        step["call"],
        risk,
        {
            "$codec": "",
            "data": "",
            "shown": {name: arguments[name] for name in readable if name in arguments},
        },
    )


def _is_sealed() -> bool:
    """True if the codec of the run's app encodes values."""
    scope = current.get()
    return (
        scope is not None and scope.claim.envelopes is not None and scope.claim.envelopes.is_writing
    )


async def _review(
    conn: psycopg.AsyncConnection[Any],
    plan: Any,
    allowed: dict[str, Step[..., Any]],
) -> Review:
    """Judge a plan: each step by itself, then by the policy in force."""
    try:
        steps = read_plan(plan)
    except PlanRefused as error:
        return Review([], str(error))
    judged = []
    for step in steps:
        judged.append(judge(step, allowed))
        await asyncio.sleep(0)  # a long plan lets others run, and can be cancelled
    is_sealed = _is_sealed()
    acts = [_act_of(one.step, allowed, is_sealed=is_sealed) for one in judged]
    gated = await run_async(conn, calls.judge_plan(acts))
    return _sum_up(
        [
            one if one.refused is not None else replace(one, needs=needs)
            for one, needs in zip(judged, gated, strict=True)
        ]
    )


REVIEW = own_transaction(_review, "pgflow.review", timeout=WITHIN)
"""The review of a plan: a transaction of the engine's own."""
