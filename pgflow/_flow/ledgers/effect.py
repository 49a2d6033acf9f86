"""Effects: steps that write to the outside and must not be repeated blindly,
and what belongs to each.

An effect is declared with ``@effect``; with it may be declared how the counterparty is asked what
became of an attempt (``settle``), how the effect is taken back (``compensate``), what must hold
immediately before the act (``precondition``) and after it (``verify``), and what is looked at
before an act that rests on what was seen (``observe``).
"""

from __future__ import annotations

import copy
import inspect
import json
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Concatenate, NotRequired, ParamSpec, Self, TypeVar, cast

from pgflow._engine.calls import EffectTerms, StepSpec
from pgflow._engine.effects import EffectCall, Leave
from pgflow._engine.keys import MAX_KEY_NAME_CHARS, Resting
from pgflow._engine.ledger import EffectRequest, Ledger
from pgflow._flow.authority.gate import give_up, notice_of
from pgflow._flow.authority.gate import issue as issue_gate
from pgflow._flow.authority.leave import can_ask, gate_of, granted
from pgflow._flow.ledgers.saga import enlist
from pgflow._flow.parameters import parameters_codec
from pgflow._flow.scope import WorkflowScope, variables
from pgflow._flow.step import AsyncStep, Calls, Step, SyncStep, follow, follow_sync
from pgflow._model.budgets import Admit
from pgflow._model.codecs import Codec, encode_loosely, encode_plain
from pgflow._model.durations import Duration
from pgflow._model.effects import Absent, Accepted, Confirmed, Risk, StillUnknown
from pgflow._model.envelopes import is_hiding
from pgflow._model.fingerprints import is_fingerprint
from pgflow._model.gates import GateRequest
from pgflow._model.kinds import StepKind
from pgflow._model.options import Retries
from pgflow._model.protocol import SagaEntry
from pgflow._model.tags import secrets_in
from pgflow.errors import DefinitionError, InvalidArgument, NeedsGate, NotStorable

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)
F = TypeVar("F")

DEFAULT_TIMEOUT = timedelta(minutes=5)
"""Longest time for one attempt, if nothing is declared."""

_MASKED = "*" * 10
"""Mask that pydantic shows of every secret."""

LEAST_SLACK = timedelta(seconds=0.5)
"""Between the time-out of an attempt and when it is believed not to be under way: an attempt must
have time to begin.
"""

DEAD_AFTER = timedelta(seconds=10)
"""Time after its worker's death in which an attempt may still be believed to be under way
(`pgflow._worker.heartbeat`).
"""

DEFAULT_SETTLING = Retries(
    max_attempts=60, first_delay=timedelta(seconds=1), max_delay=timedelta(minutes=10)
)
"""Asks for some nine hours; then a person must say."""

_FOR_EVER = 100 * 365.25 * 86400.0


@dataclass(frozen=True)
class EffectOptions:
    """Options of an effect as declared; see :func:`pgflow.effects.effect`."""

    risk: Risk
    keyed: bool = True
    dedup_window: timedelta | None = None
    settle_after: timedelta | None = None
    settle_retries: Retries = DEFAULT_SETTLING
    has_body: bool = True
    is_compensation: bool = False
    readable: tuple[str, ...] = ()


class EffectStep(Step[P, R_co]):
    """Base of the effects of both colours."""

    terms: EffectOptions
    settler: Callable[..., Any] | None = None
    guard: Callable[..., Any] | None = None
    observer: Callable[..., Any] | None = None
    expected: str | None = None
    verifier: Callable[..., Any] | None = None
    compensation: EffectStep[..., Any] | None = None
    notify: Step[[GateRequest], Any] | None = None
    _request_codec: Codec[dict[str, Any]] | None = None
    _edit_codec: Codec[dict[str, Any]] | None = None

    def __init__(
        self,
        fn: Callable[..., Any],
        terms: EffectOptions,
        name: str | None,
        timeout: Duration | None,
        raises: Sequence[type[Exception]],
        aliases: Sequence[str] = (),
    ) -> None:
        super().__init__(
            fn,
            StepKind.EFFECT,
            name,
            1,
            DEFAULT_TIMEOUT if timeout is None else timeout,
            raises,
            aliases,
        )
        self.terms = terms
        self._signature = inspect.signature(fn)
        self._check_times()
        strange = (
            []
            if terms.is_compensation
            else [name for name in terms.readable if name not in self._signature.parameters]
        )
        if strange:
            raise DefinitionError(
                f"readable= of effect {self.name} names {strange[0]!r}, which is none of its "
                "parameters"
            )

    def called(self, item: str) -> Self:  # noqa: ARG002 - it has the signature of a step
        """Refuse the name of an item: what becomes of an effect is found by its own.

        Raises:
            DefinitionError: Always.
        """
        raise DefinitionError(
            f"effect {self.name} keeps its name whatever the item: leave out item_name"
        )

    def _check_times(self) -> None:
        settle_after = self.terms.settle_after
        if settle_after is not None and settle_after < self.timeout_ + LEAST_SLACK:
            raise DefinitionError(
                f"effect {self.name} is settled after {settle_after}, while an attempt may take "
                f"{self.timeout_}: what is still under way would be called absent; settle_after "
                f"must be at least {LEAST_SLACK.total_seconds():g} s longer than timeout"
            )

    def options(
        self,
        *,
        retries: Retries | int | None = None,
        timeout: Duration | None = None,
        admit: Admit | None = None,
        expect: str | None = None,
    ) -> Self:
        """Return a copy of the effect with options.

        Args:
            retries: An effect has none: it is settled instead.
            timeout: Longest time for one attempt.
            admit: Most that the call may cost; see :meth:`Step.options`.
            expect: Fingerprint (:func:`pgflow.effects.fingerprint`) of the data behind the decision
                to act. What ``.observe`` returns immediately before the act must have the same one;
                else nothing is done and Diverged is raised.
        """
        if retries is not None:
            raise DefinitionError(
                f"effect {self.name} is not retried: set settle_retries= where it is declared"
            )
        # The same step, so that the engine need not learn it anew for each call.
        is_same_step = timeout is None and admit is None
        other = copy.copy(self) if is_same_step else super().options(timeout=timeout, admit=admit)
        other._check_times()
        if expect is not None:
            if not is_fingerprint(expect):
                raise InvalidArgument(
                    f"effect {self.name} is called with expect= of something that "
                    "pgflow.effects.fingerprint() did not return"
                )
            other.expected = expect
        return other

    @property
    def declared(self) -> EffectStep[..., Any]:
        """The effect as it was declared, with all that belongs to it,
        whatever options this one has.
        """
        return cast("EffectStep[..., Any]", self.origin)

    @property
    def timeout_(self) -> timedelta:
        """Longest time for one attempt."""
        return self.timeout or DEFAULT_TIMEOUT

    def spec(self, app_errors: tuple[type[Exception], ...]) -> StepSpec:
        """Return the engine's declaration of this effect, for an app that knows these errors."""
        found = super().spec(app_errors)
        if found.terms is None:
            terms = self.terms
            settle_after = terms.settle_after or self.timeout_ + DEAD_AFTER
            found.terms = EffectTerms(
                risk=terms.risk,
                is_keyed=terms.keyed,
                dedup_seconds=self._dedup_seconds(settle_after),
                settle_after_seconds=settle_after.total_seconds(),
                settling=terms.settle_retries,
                can_ask=self.declared.settler is not None,
                code=self.code,
                has_body=terms.has_body,
                is_mandatory=terms.is_compensation,
                readable=terms.readable,
                notify=None if self.declared.notify is None else self.declared.notify.name,
            )
        return found

    def _dedup_seconds(self, settle_after: timedelta) -> float | None:
        """Return for how many seconds after the first attempt the key may be sent again: it must
        arrive while the counterparty remembers it.
        """
        if self.terms.dedup_window is not None:
            return max(0.0, (self.terms.dedup_window - settle_after).total_seconds())
        return _FOR_EVER if self.terms.is_compensation and self.terms.keyed else None

    async def _call_async(
        self, scope: WorkflowScope, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> R_co:
        return await follow(scope, self.calls(scope, args, kwargs))  # type: ignore[no-any-return]

    def _call_sync(
        self, scope: WorkflowScope, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> R_co:
        return cast("R_co", follow_sync(scope, self.calls(scope, args, kwargs)))

    def calls(self, scope: WorkflowScope, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Calls:
        """Yield the act, after the calls that ask for approval if the policy requires it."""
        call = self.issue(scope, args, kwargs)
        try:
            return (yield call)
        except NeedsGate as refused:
            if not can_ask(refused):
                raise
            needs = refused
        return (yield from self._with_leave(scope, call, needs))

    def _with_leave(self, scope: WorkflowScope, call: EffectCall, needs: NeedsGate) -> Calls:
        """Yield the calls that ask for approval, and then the act."""
        asked = gate_of(call, self.edit_codec, needs)
        gate = issue_gate(scope, asked)
        notify = self.declared.notify
        # By the record: so it may be declared while the run waits.
        if needs.notify is not None and notify is not None:
            try:
                shown = json.loads(call.request)
                notice = notice_of(scope, gate, asked._replace(value=shown))
                yield from notify.calls(scope, (notice,), {})
            except BaseException as error:
                give_up(scope, gate, error)
                raise
        found = granted(call, gate, (yield gate), self.bind)
        return (yield self.issue(scope, found.args, found.kwargs, leave=found.leave))

    def issue(
        self,
        scope: WorkflowScope,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        leave: Leave | None = None,
    ) -> EffectCall:
        """Issue the call, with an approval if one was given."""
        if self.expected is not None and self.declared.observer is None:
            raise DefinitionError(
                f"effect {self.name} is called with expect=, and it has no observer: declare "
                f"@{self.name}.observe"
            )
        asked = EffectRequest(
            self.spec(scope.app_errors),
            args,
            kwargs,
            self._request(args, kwargs) if leave is None else leave.request,
            self.resting(),
            expected=self.expected,
            leave=leave,
        )
        call = scope.execution.parts[Ledger].issue(asked)
        call.variables = variables()
        enlist(scope, self, call)
        return call

    def _request(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        return encode_loosely(
            dict(self._signature.bind(*args, **kwargs).arguments),
            f"the request of effect {self.name}",
        )

    @property
    def has_compensation(self) -> bool:
        """True if a compensation is declared."""
        return self.declared.compensation is not None

    @property
    def code(self) -> str:
        """Place in the code: module and name."""
        fn = self.declared.fn
        return f"{getattr(fn, '__module__', '?')}:{getattr(fn, '__qualname__', self.name)}"

    def issue_compensation(self, scope: WorkflowScope, effect: EffectCall) -> EffectCall:
        """Ask the engine to compensate one of these effects, or a person if it cannot."""
        args = (effect.value, *effect.args)
        compensation = self.declared.compensation
        if compensation is not None:
            try:
                request = compensation._request(args, effect.kwargs)
                asked = EffectRequest(
                    compensation.spec(scope.app_errors),
                    args,
                    effect.kwargs,
                    request,
                    compensates=effect.key,
                    takes_back=_awaited(effect),
                )
                return scope.execution.parts[Ledger].issue(asked)
            except (TypeError, InvalidArgument):
                # Its arguments cannot be recorded, so only a person can do it.
                pass
        return self.issue_by_hand(scope, effect)

    def issue_by_hand(
        self, scope: WorkflowScope, effect: EffectCall, *, notice: dict[str, Any] | None = None
    ) -> EffectCall:
        """Ask a person to compensate one of these effects, with the reason. An accepted effect must
        be confirmed first.
        """
        spec = self._by_hand().spec(scope.app_errors)
        asked = EffectRequest(
            spec,
            (),
            {},
            effect.request,
            compensates=effect.key,
            takes_back=_awaited(effect),
            notice=notice,
        )
        return scope.execution.parts[Ledger].issue(asked)

    def read_request(self, text: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a call, by position and by name, from its request.

        Raises:
            NotStorable: They do not fit the annotations, or one of them is a secret, which a
                request only masks.
        """
        values = self.request_codec.decode(text, f"the request of effect {self.name}")
        if any(held == _MASKED for held in secrets_in(values)):
            raise NotStorable(
                f"the request of effect {self.name} has a secret, of which only a mask is recorded:"
                " pass a name by which the effect and its compensation find it"
            )
        return self.bind(values)

    def bind(self, values: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a call, by position and by name, from all of them by name."""
        bound = self._signature.bind_partial()
        for name, parameter in self._signature.parameters.items():
            if name in values:
                bound.arguments[name] = (
                    tuple(values[name])
                    if parameter.kind is parameter.VAR_POSITIONAL
                    else values[name]
                )
        return bound.args, bound.kwargs

    @property
    def request_codec(self) -> Codec[dict[str, Any]]:
        """Type of its arguments, by name."""
        declared: EffectStep[..., Any] = self.declared
        if declared._request_codec is None:
            declared._request_codec = self._make_request_codec()
        return declared._request_codec

    @property
    def edit_codec(self) -> Codec[dict[str, Any]]:
        """Type of arguments with which it can be called, by name: none that it needs is missing."""
        declared: EffectStep[..., Any] = self.declared
        if declared._edit_codec is None:
            declared._edit_codec = self._make_request_codec(is_whole=True)
        return declared._edit_codec

    def _make_request_codec(self, *, is_whole: bool = False) -> Codec[dict[str, Any]]:
        fields: dict[str, Any] = {}
        for name, parameter in self._signature.parameters.items():
            hint = self.hints.get(name, Any)
            if parameter.kind is parameter.VAR_POSITIONAL:
                hint = list[hint]  # type: ignore[valid-type]
            elif parameter.kind is parameter.VAR_KEYWORD:
                hint = dict[str, hint]  # type: ignore[valid-type]
            is_needed = is_whole and parameter.default is parameter.empty
            is_many = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
            fields[name] = hint if is_needed and not is_many else NotRequired[hint]
        return parameters_codec("effect", self.name, fields)

    def check_request(self, effect: EffectCall) -> None:
        """Refuse an effect whose arguments could not be read back from its request.

        Raises:
            NotStorable: They do not fit the annotations.
        """
        try:
            self.read_request(effect.request)
        except (NotStorable, DefinitionError) as error:
            raise NotStorable(
                f"effect {self.name} cannot be carried into the next generation: {error}"
            ) from error

    def entry_of(self, scope: WorkflowScope, effect: EffectCall) -> SagaEntry:
        """Return the saga entry of a completed effect, from which it is compensated."""
        if isinstance(effect.value, Accepted):
            return SagaEntry(self.name, effect.key, "", effect.request, None, effect.value.ref)
        what = f"the result of effect {self.name}"
        try:
            result = self.spec(scope.app_errors).result.encode(
                effect.value, what, is_hidden=is_hiding(scope.claim.envelopes)
            )
        except NotStorable:  # a person may have settled it with any value
            result = encode_plain(effect.value, what)
        return SagaEntry(self.name, effect.key, "", effect.request, result, None)

    @property
    def risk(self) -> Risk:
        """Kind of undo: ``reversible``, ``compensable`` or ``irreversible``."""
        return self.terms.risk

    def issue_in_plan(
        self,
        scope: WorkflowScope,
        arguments: dict[str, Any],
        rests_on: Resting,
        leave: Leave | None = None,
    ) -> EffectCall:
        """Issue it as a step of a plan. It is not compensated in turn."""
        request = self.request_of(arguments) if leave is None else leave.request
        spec = self.spec(scope.app_errors)
        asked = EffectRequest(spec, (), arguments, request, rests_on, is_undo=True, leave=leave)
        return scope.execution.parts[Ledger].issue(asked)

    def request_of(self, arguments: dict[str, Any]) -> str:
        """Return the request of a call with these arguments, as JSON."""
        return self._request((), arguments)

    def issue_taken_back(
        self, scope: WorkflowScope, effect: EffectCall, plan: str, steps: list[Any]
    ) -> EffectCall:
        """Record that a plan has compensated one of these effects."""

        async def taken_back() -> str:
            """Nothing is left to do."""
            return plan

        terms = replace(self.terms, risk="reversible", is_compensation=True, settle_after=None)
        aliases = tuple(map(_compensation_name, self.aliases))
        closing: EffectStep[..., Any] = AsyncEffect(
            taken_back, terms, _compensation_name(self.name), None, (), aliases
        )
        request = encode_plain({"plan": plan, "steps": steps}, f"the plan for effect {self.name}")
        spec, rests_on = closing.spec(scope.app_errors), (plan, "taken back")
        asked = EffectRequest(spec, (), {}, request, rests_on, compensates=effect.key)
        return scope.execution.parts[Ledger].issue(asked)

    def _by_hand(self) -> EffectStep[..., Any]:
        def by_hand(result: Any, *args: Any, **kwargs: Any) -> None:
            """Nothing takes it back."""

        terms = replace(self.terms, has_body=False, is_compensation=True, settle_after=None)
        return SyncEffect(
            by_hand,
            terms,
            _compensation_name(self.name),
            None,
            (),
            tuple(map(_compensation_name, self.aliases)),
        )

    def _take(self, fn: Callable[..., Any], what: str) -> Callable[..., Any]:
        if inspect.iscoroutinefunction(fn) != self.is_async:
            colour = "async def" if self.is_async else "def"
            raise DefinitionError(
                f"{what} of effect {self.name} must be written with {colour}, as the effect is"
            )
        self.origin._specs.clear()
        return fn

    def _make_compensation(self, fn: Callable[..., Any]) -> EffectStep[..., Any]:
        is_named = fn.__name__ != "_"
        name = fn.__name__ if is_named else _compensation_name(self.name)
        aliases = () if is_named else tuple(map(_compensation_name, self.aliases))
        terms = replace(self.terms, risk="reversible", is_compensation=True, settle_after=None)
        kind = AsyncEffect if self.is_async else SyncEffect
        made: EffectStep[..., Any] = kind(
            self._take(fn, "the compensation"), terms, name, self.timeout, (), aliases
        )
        parameters = self._signature.parameters.values()
        given = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        try:
            made._signature.bind(
                None, *given, **{p.name: p for p in parameters if p.kind is p.KEYWORD_ONLY}
            )
        except TypeError as error:
            raise DefinitionError(
                f"the compensation {name} of effect {self.name} must take its result and then its "
                f"arguments: {error}"
            ) from None
        return made


def _awaited(effect: EffectCall) -> EffectCall | None:
    """The effect, if what takes it back has to wait until it is confirmed:
    it was accepted, by this run.
    """
    return effect if effect.was_accepted and effect.number else None


def _compensation_name(effect: str) -> str:
    return f"{effect[: MAX_KEY_NAME_CHARS - 11]}.compensate"


class AsyncEffect(EffectStep[P, R_co], AsyncStep[P, R_co, F]):
    """An effect made of an ``async def``."""

    def settle(
        self, fn: Callable[P, Coroutine[Any, Any, Confirmed[R_co] | Absent | StillUnknown]], /
    ) -> None:
        """Declare how to query the counterparty for the outcome of an attempt: called with the
        effect's arguments, under its key.
        """
        self.declared.settler = self._take(fn, "settle")

    def compensate(self, fn: Callable[Concatenate[R_co, P], Coroutine[Any, Any, Any]], /) -> None:
        """Declare the compensation of the effect: an effect with a key of its own, called with the
        result and the arguments.
        """
        self.declared.compensation = self._make_compensation(fn)

    def precondition(self, fn: Callable[P, Coroutine[Any, Any, bool]], /) -> None:
        """Declare a check immediately before each act. If it fails, nothing is done and Stale is
        raised.
        """
        self.declared.guard = self._take(fn, "the precondition")

    def observe(self, fn: Callable[P, Coroutine[Any, Any, Any]], /) -> None:
        """Declare the observation that is made immediately before an act with ``expect=``: called
        with the effect's arguments.
        """
        self.declared.observer = self._take(fn, "the observer")

    def verify(self, fn: Callable[Concatenate[R_co, P], Coroutine[Any, Any, bool]], /) -> None:
        """Declare a check after the act. If it fails, the outcome is unknown."""
        self.declared.verifier = self._take(fn, "verify")


class SyncEffect(EffectStep[P, R_co], SyncStep[P, R_co, F]):
    """An effect made of a ``def``."""

    def settle(self, fn: Callable[P, Confirmed[R_co] | Absent | StillUnknown], /) -> None:
        """Declare how to query the counterparty for the outcome of an attempt: called with the
        effect's arguments, under its key.
        """
        self.declared.settler = self._take(fn, "settle")

    def compensate(self, fn: Callable[Concatenate[R_co, P], Any], /) -> None:
        """Declare the compensation of the effect: an effect with a key of its own, called with the
        result and the arguments.
        """
        self.declared.compensation = self._make_compensation(fn)

    def precondition(self, fn: Callable[P, bool], /) -> None:
        """Declare a check immediately before each act. If it fails, nothing is done and Stale is
        raised.
        """
        self.declared.guard = self._take(fn, "the precondition")

    def observe(self, fn: Callable[P, Any], /) -> None:
        """Declare the observation that is made immediately before an act with ``expect=``: called
        with the effect's arguments.
        """
        self.declared.observer = self._take(fn, "the observer")

    def verify(self, fn: Callable[Concatenate[R_co, P], bool], /) -> None:
        """Declare a check after the act. If it fails, the outcome is unknown."""
        self.declared.verifier = self._take(fn, "verify")
