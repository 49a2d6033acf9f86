"""Plans: how an effect is taken back for which nobody wrote an inverse, because nobody knew that it would be done.

A *planner* is a ``@decision`` that is told what was done, why, and what it was for, and proposes steps. What
it proposes is data: names are looked up among the steps that the saga allows, SQL is read before it runs
(:mod:`pgflow.lineage`), and what cannot be undone in its turn is not done at all. A plan with one step that
is refused is refused as a whole.

Choice, verdict and each step are units of the journal, so a crash goes on where it was and never asks the
planner again. Only when every step is confirmed is the effect said to be taken back. In any other case -
the planner fails, proposes nothing or nonsense, a step is refused or fails - it stays owed, with the plan
beside it, until a person has said that it is taken back.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import lru_cache
from typing import Any, NotRequired, Protocol

import psycopg
import pydantic
from typing_extensions import TypedDict

from pgflow._calls import plan as calls
from pgflow._engine.calls import EffectCall, StepCall
from pgflow._engine.drivers import ThreadWaiter
from pgflow._engine.requests import Resting
from pgflow._io import run_async
from pgflow._scope import WorkflowScope
from pgflow.errors import DefinitionError, NotStorable, PgflowError
from pgflow.lineage import Table, UnreadableSql, read_statement, table_named
from pgflow.model import Decision, Risk
from pgflow.step import AsyncStep, Step
from pgflow.units import SagaEntry
from pgflow.values import Codec, codec_for, encode_plain

MAX_STEPS = 50
"""A longer plan is refused."""

WITHIN = timedelta(minutes=1)
"""So long the review of a plan may take, and so long the step that runs a statement of one."""

STATEMENT_LIMIT = timedelta(seconds=50)
"""So long the server works at a statement of a plan: less than the step has, since a cancelled client does not stop the server."""

LOCK_LIMIT = timedelta(seconds=20)
"""So long a statement of a plan waits for a lock, before it is rolled back and tried again."""

SQL_NAME = "pgflow.sql"
"""Name of the step that runs a statement of a plan, in the journal and for the policy."""


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
class PlannedSql:
    """A step of a plan: one SQL statement that reads and writes nothing but tables which the effect says it writes.

    Attributes:
        sql: One INSERT, UPDATE, DELETE or MERGE, its tables named with their schema.
    """

    sql: str


@dataclass(frozen=True)
class UndoRequest:
    """What a planner is told.

    Attributes:
        effect: Name of the effect that must be taken back.
        key: Its idempotency key.
        request: Its arguments by name, as the ledger has them.
        reply: What it returned.
        risk: What it takes to take it back, as declared.
        because: The decision that it rests on; None if it rests on none.
        goal: What the saga was for, in its own words.
        steps: What a plan may call: name, signature and purpose of each step.
        tables: What SQL in a plan may read and write.
    """

    effect: str
    key: str
    request: dict[str, Any]
    reply: Any
    risk: Risk
    because: Decision[Any] | None
    goal: str | None
    steps: dict[str, str]
    tables: tuple[str, ...]


@dataclass(frozen=True)
class Judged:
    """A step of a plan, and why it is refused; None if it is not."""

    step: dict[str, Any]
    refused: str | None


@dataclass(frozen=True)
class Review:
    """A plan's verdict: its steps as they would be run, and why none of them is; None if all may be."""

    steps: list[Judged]
    refused: str | None


class Reversible(Protocol):
    """An effect, as a saga sees it."""

    @property
    def has_compensation(self) -> bool:
        """Whether something is declared that takes it back."""

    @property
    def code(self) -> str:
        """Where it stands in the code, for the generation that has to find it there."""

    def check_request(self, effect: EffectCall) -> None:
        """Refuses one of these effects whose arguments could not be read back from its request."""

    def entry_of(self, scope: WorkflowScope, effect: EffectCall) -> SagaEntry:
        """What is passed on of one of these effects, which was done, to whoever has to take it back."""

    def issue_compensation(self, scope: WorkflowScope, effect: EffectCall) -> EffectCall:
        """Asks for one of these effects to be taken back; if nothing is declared, by a person."""


class Undoable(Reversible, Protocol):
    """An effect, as a plan sees it."""

    name: str

    @property
    def tables(self) -> tuple[Table, ...]:
        """What it says it writes."""

    @property
    def risk(self) -> Risk:
        """What it takes to take it back."""

    def issue_taken_back(self, scope: WorkflowScope, effect: EffectCall, plan: str, steps: list[Any]) -> EffectCall:
        """Records that a plan has taken one of these effects back."""

    def issue_by_hand(self, scope: WorkflowScope, effect: EffectCall, *, notice: dict[str, Any] | None = None) -> EffectCall:
        """Asks for one of these effects to be taken back by a person."""


# ---------------------------------------------------------------- what a saga says


@dataclass(frozen=True)
class Planning:
    """What a saga says of effects without an inverse.

    Attributes:
        planner: The decision that proposes.
        goal: What the saga is for.
        steps: The steps that a plan may call, by name.
    """

    planner: Step[..., Any]
    goal: str | None
    steps: dict[str, Step[..., Any]]


def planning_of(planner: Step[..., Any], goal: str | None, steps: Sequence[Step[..., Any]]) -> Planning:
    """What a saga says, checked.

    Raises:
        DefinitionError: The planner is no decision, or a step is none that a plan could call.
    """
    if not isinstance(planner, Step) or planner.effect != "d":
        raise DefinitionError(f"the planner of a saga must be a @decision, not {planner!r}")
    named: dict[str, Step[..., Any]] = {}
    for step in steps:
        if not isinstance(step, Step) or step.effect not in ("e", "s", "t"):
            raise DefinitionError(f"a plan may call an @effect, a @step or a @transaction, not {step!r}")
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
            raise DefinitionError(f"a plan cannot call step {step.name}, whose parameter {parameter.name!r} cannot be passed by its name")
        hint = step.hints.get(parameter.name, Any)
        fields[parameter.name] = hint if parameter.default is parameter.empty else NotRequired[hint]
    shape = TypedDict(f"the parameters of {step.name}", fields)  # type: ignore[misc]
    shape.__pydantic_config__ = pydantic.ConfigDict(extra="forbid")  # type: ignore[attr-defined]
    return codec_for(shape, f"a parameter of step {step.name}")


def _parameters_of(step: Step[..., Any]) -> list[inspect.Parameter]:
    """What a caller passes: a transaction's connection is not among it."""
    hidden = getattr(step, "connection_parameter", None)
    return [p for name, p in inspect.signature(step.fn).parameters.items() if name != hidden]


class _Default:
    """Stands for a default, which may be something that a planner must not be told."""

    def __repr__(self) -> str:
        return "..."


def _described(step: Step[..., Any]) -> str:
    parameters = [p if p.default is p.empty else p.replace(default=_Default()) for p in _parameters_of(step)]
    signature = inspect.signature(step.fn).replace(parameters=parameters)
    purpose = inspect.getdoc(step.fn)
    return f"{step.name}{signature}" + (f": {purpose.splitlines()[0]}" if purpose else "")


# ---------------------------------------------------------------- the verdict


class PlanRefused(Exception):
    """A plan, or a statement of one, that is not run."""


def read_plan(value: Any) -> list[PlannedCall | PlannedSql]:
    """A plan from what a planner chose: a list of :class:`PlannedCall` and :class:`PlannedSql`, or of such objects as JSON.

    Raises:
        PlanRefused: It is no plan, or proposes nothing.
    """
    try:
        steps = json.loads(encode_plain(value, "the plan"))
    except NotStorable as error:
        raise PlanRefused(f"what the planner proposes is no plan: {error}") from None
    if steps is None or steps == []:
        raise PlanRefused("the planner proposes nothing")
    if not isinstance(steps, list) or len(steps) > MAX_STEPS:
        raise PlanRefused(f"what the planner proposes is no plan: it must be a list of at most {MAX_STEPS} steps")
    return [_read_step(number, step) for number, step in enumerate(steps, 1)]


def _read_step(number: int, step: Any) -> PlannedCall | PlannedSql:
    match step:
        case {"sql": str(sql), **others} if not others:
            return PlannedSql(sql)
        case {"call": str(name), "arguments": dict(arguments), **others} if not others:
            return PlannedCall(name, arguments)
        case {"call": str(name), **others} if not others:
            return PlannedCall(name)
    raise PlanRefused(f"what the planner proposes is no plan: step {number} is neither a call with arguments nor sql")


def judge(step: PlannedCall | PlannedSql, allowed: dict[str, Step[..., Any]], tables: frozenset[Table]) -> Judged:
    """Judges one step by itself; the policy is asked afterwards."""
    if isinstance(step, PlannedSql):
        return _judge_sql(step, tables)
    plain = {"call": step.call, "arguments": step.arguments}
    known = allowed.get(step.call)
    if known is None:
        return Judged(plain, f"no step that may be called here is named {step.call!r}")
    if _risk_of(known) == "irreversible":
        return Judged(plain, f"{step.call} is irreversible")
    try:
        arguments_of(known.origin).decode(json.dumps(step.arguments), f"what {step.call} would be called with")
    except NotStorable as error:
        return Judged(plain, str(error))
    return Judged(plain, None)


def _judge_sql(step: PlannedSql, tables: frozenset[Table]) -> Judged:
    try:
        statement = read_statement(step.sql)
    except UnreadableSql as error:
        return Judged({"sql": step.sql}, str(error))
    strange = statement.writes - tables
    if strange:
        return Judged({"sql": step.sql}, f"it writes {', '.join(map(str, sorted(strange)))}, which the effect does not")
    strange = statement.reads - tables
    if strange:
        return Judged({"sql": step.sql}, f"it reads {', '.join(map(str, sorted(strange)))}, which the effect does not write")
    return Judged({"sql": statement.text}, None)


def _risk_of(step: Step[..., Any]) -> str:
    """A step or a transaction that may be called says nothing of its risk: whoever allows it has it taken back by hand if need be."""
    terms = getattr(step, "terms", None)
    return "compensable" if terms is None else str(terms.risk)


def _sum_up(judged: list[Judged]) -> Review:
    """One step that is refused refuses them all: half a plan is nobody's plan."""
    for number, one in enumerate(judged, 1):
        if one.refused is not None:
            return Review(judged, f"the plan needs a gate: step {number}, {one.step.get('call', 'sql')}: {one.refused}")
    return Review(judged, None)


def _act_of(step: dict[str, Any], allowed: dict[str, Step[..., Any]]) -> tuple[str, str, Any]:
    """A step as the policy judges it: name, risk and request."""
    if "sql" in step:
        return SQL_NAME, "compensable", step
    known = allowed.get(step["call"])
    return step["call"], "irreversible" if known is None else _risk_of(known), step["arguments"]


async def _review(conn: psycopg.AsyncConnection[Any], plan: Any, allowed: dict[str, Step[..., Any]], tables: list[str]) -> Review:
    """Judges a plan: each step by itself, then by the policy in force."""
    try:
        steps = read_plan(plan)
    except PlanRefused as error:
        return Review([], str(error))
    writable = frozenset(map(table_named, tables))
    judged = []
    for step in steps:
        judged.append(judge(step, allowed, writable))
        await asyncio.sleep(0)  # so that a long plan holds up nobody else, and can be cancelled
    acts = [_act_of(one.step, allowed) for one in judged]
    gated = await run_async(conn, calls.judge_acts(acts))
    return _sum_up(
        [
            one if version is None or one.refused is not None else Judged(one.step, f"version {version} of the policy says so")
            for one, version in zip(judged, gated, strict=True)
        ]
    )


async def _run_sql(conn: psycopg.AsyncConnection[Any], text: str, tables: list[str]) -> int:
    """Runs one statement of a plan; what it wrote is compared with what it may write before it is committed.

    Returns:
        How many rows it changed.

    Raises:
        PlanRefused: It wrote another table as well: nothing of it is done.
    """
    await run_async(conn, calls.confine(STATEMENT_LIMIT, LOCK_LIMIT))
    cursor = await conn.execute(text.encode(), binary=True)  # binary: then the server takes one statement and no more
    await conn.execute("set constraints all immediate")  # what is deferred would write after the look
    written = await run_async(conn, calls.written_tables())
    strange = {Table(*one) for one in written} - set(map(table_named, tables))
    if strange:
        raise PlanRefused(
            f"the statement has also written {', '.join(map(str, sorted(strange)))}, "
            "by a trigger, a rule, a view, a cascade or a table that inherits; it was rolled back"
        )
    return cursor.rowcount


def _inner(fn: Any, name: str) -> AsyncStep[..., Any, Any]:
    """A transaction of the engine's own."""
    step: Any = AsyncStep(fn, "t", name, 1, WITHIN, ())
    step.isolation, step.provider, step.connection_parameter = None, None, "conn"
    return step  # type: ignore[no-any-return]


REVIEW = _inner(_review, "pgflow.review")
RUN_SQL = _inner(_run_sql, SQL_NAME)


# ---------------------------------------------------------------- what is done


class Planned:
    """An effect without an inverse, in a saga that has a planner."""

    has_compensation = True

    def __init__(self, effect: Undoable, planning: Planning) -> None:
        self._effect = effect
        self._planning = planning
        self.code = effect.code
        self.planner = planning.planner.name

    def check_request(self, effect: EffectCall) -> None:
        """Refuses one whose arguments could not be read back from its request."""
        self._effect.check_request(effect)

    def entry_of(self, scope: WorkflowScope, effect: EffectCall) -> SagaEntry:
        """What is passed on of one that was done."""
        return self._effect.entry_of(scope, effect)

    def issue_compensation(self, scope: WorkflowScope, effect: EffectCall) -> EffectCall:
        """Asks a person to take back one that was accepted and is not confirmed: there is no reply yet to make a plan of."""
        return self._effect.issue_compensation(scope, effect)

    def undo(self, scope: WorkflowScope, done: EffectCall) -> Iterator[StepCall]:
        """Takes an effect back by a plan, or asks a person to.

        Yields:
            Each call as it is asked for; whoever drives this goes on once it has an outcome.
        """
        attempt = Undoing(scope, self._effect, self._planning, done)
        try:
            yield from attempt.plan()
            yield from attempt.run()
            closing = attempt.close()
        except _Failed as failure:
            notice = {"why": str(failure), "plan": attempt.decision and attempt.decision.id, "steps": attempt.told()}
            closing = self._effect.issue_by_hand(scope, done, notice=notice)
        yield closing


class _Failed(Exception):
    """An effect is not taken back."""


class Undoing:
    """One effect that is taken back by a plan."""

    def __init__(self, scope: WorkflowScope, effect: Undoable, planning: Planning, done: EffectCall) -> None:
        self._scope = scope
        self._effect = effect
        self._planning = planning
        self._done = done
        self.decision: Decision[Any] | None = None
        self._steps: list[Judged] = []
        self._confirmed = 0

    def told(self) -> list[dict[str, Any]]:
        """The steps as a person reads them: what was proposed, what was refused, what is done."""
        return [
            {**one.step, **({"refused": one.refused} if one.refused else {}), **({"done": True} if number < self._confirmed else {})}
            for number, one in enumerate(self._steps)
        ]

    def plan(self) -> Iterator[StepCall]:
        """Asks the planner, and has its plan judged."""
        execution, planning = self._scope.execution, self._planning
        tables = [str(table) for table in self._effect.tables]
        try:
            proposal = execution.issue_step(planning.planner.spec(self._scope.app_errors), (self._request(tables),), {})
        except Exception as error:  # noqa: BLE001 - such as an annotation that cannot be read
            raise _Failed(f"the planner {planning.planner.name} could not be called: {error}") from None
        yield proposal
        try:
            self.decision = outcome_of(proposal)
        except Exception as error:  # noqa: BLE001 - whatever it raised, nothing is taken back
            raise _Failed(f"the planner {planning.planner.name} failed: {error}") from None
        assert self.decision is not None
        verdict = execution.issue_step(REVIEW.spec(()), (self.decision.value, planning.steps, tables), {})
        yield verdict
        try:
            review: Review = outcome_of(verdict)
        except Exception as error:  # noqa: BLE001 - a plan that cannot be judged is not run
            raise _Failed(f"the plan could not be reviewed: {error}") from None
        self._steps = review.steps
        if review.refused is not None:
            raise _Failed(review.refused)

    def _request(self, tables: list[str]) -> UndoRequest:
        done = self._done
        return UndoRequest(
            self._effect.name, done.key, json.loads(done.request), done.value, self._effect.risk,
            self._scope.decisions.get(done.decision or ""), self._planning.goal,
            {name: _described(step) for name, step in self._planning.steps.items()}, tuple(tables),
        )

    def run(self) -> Iterator[StepCall]:
        """Runs the steps, one after the other, until one is not confirmed."""
        assert self.decision is not None
        for number, one in enumerate(self._steps, 1):
            what = f"step {number} of the plan, {one.step.get('call', 'sql')},"
            try:
                call = self._issue(one.step, (self.decision.id, number))
            except Exception as error:  # noqa: BLE001 - it cannot even be asked for
                raise _Failed(f"{what} could not be called: {error}") from None
            yield call
            try:
                outcome_of(call)
            except Exception as error:  # noqa: BLE001 - a step that failed took nothing back
                raise _Failed(f"{what} failed: {error}") from None
            if isinstance(call, EffectCall) and call.closed_as != "confirmed":
                raise _Failed(f"{what} was accepted, which is not yet done")
            self._confirmed = number

    def close(self) -> EffectCall:
        """Records that the effect is taken back."""
        assert self.decision is not None
        try:
            return self._effect.issue_taken_back(self._scope, self._done, self.decision.id, self.told())
        except PgflowError as error:
            raise _Failed(f"every step is done, which could not be recorded: {error}") from None

    def _issue(self, step: dict[str, Any], rests_on: Resting) -> StepCall:
        execution = self._scope.execution
        if "sql" in step:
            tables = [str(table) for table in self._effect.tables]
            return execution.issue_step(RUN_SQL.spec(()), (step["sql"], tables), {}, rests_on, is_undo=True)
        known: Any = self._planning.steps.get(step["call"])
        if known is None:
            raise LookupError("the saga does not allow it any more")
        arguments = arguments_of(known.origin).decode(json.dumps(step["arguments"]), f"what {known.name} is called with")
        if known.effect == "e":
            return known.issue_in_plan(self._scope, arguments, rests_on)  # type: ignore[no-any-return]
        return execution.issue_step(known.spec(self._scope.app_errors), (), arguments, rests_on, is_undo=True)


def outcome_of(call: StepCall) -> Any:
    """What a call that is over returned; raises what it raised."""
    waiter: Any = call.waiter
    return waiter.take() if isinstance(waiter, ThreadWaiter) else waiter.result()
