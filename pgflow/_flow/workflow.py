"""Workflows: functions that orchestrate steps, and whose every activation replays their journal."""

from __future__ import annotations

import copy
import hashlib
import inspect
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import cached_property
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    Literal,
    NoReturn,
    ParamSpec,
    Protocol,
    Self,
    TypeVar,
    get_args,
    overload,
)

from pgflow._flow.defaults import Defaults
from pgflow._flow.parameters import field_of, parameters_codec
from pgflow._flow.patches import find_patches
from pgflow._flow.signals import Signal
from pgflow._flow.step import (
    check_aliases,
    check_callable,
    check_errors,
    check_no_method,
    look_like,
    resolve_hints,
)
from pgflow._flow.updates import QueryHandler, SignalHandler, UpdateHandler, signal_handler
from pgflow._model.budgets import Amount, Pool, amounts_of
from pgflow._model.codecs import Codec, codec_for
from pgflow._model.durations import Duration, duration
from pgflow._model.effects import Ref
from pgflow._model.exceptions import ErrorClasses
from pgflow._model.names import is_name
from pgflow._model.options import DEFAULT_QUEUE, IfTaken, StartOptions
from pgflow._model.schedules import Declared
from pgflow._model.upcasters import Upcast
from pgflow.errors import DefinitionError, InvalidArgument

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
Q = ParamSpec("Q")
T = TypeVar("T")
V = TypeVar("V")
H = TypeVar("H", bound=Callable[..., Any])


class Awaited(Protocol):
    """Interface of a :class:`pgflow.Signal`, as a workflow that waits for it needs it."""

    name: str
    codec: Codec[Any]


class Workflow(Generic[P, R_co]):
    """A workflow, async or sync. ``fn`` is the undecorated function. Its ``ref_checkers`` are plain
    functions that return True if a Ref of their kind exists; every app that includes the workflow
    has them.
    """

    name: str
    fn: Callable[P, Any]

    def __init__(
        self,
        fn: Callable[..., Any],
        name: str | None,
        queue: str,
        timeout: Duration | None,
        raises: Sequence[type[Exception]],
        version: str | None = None,
        pinned: bool = False,
        aliases: Sequence[str] = (),
        signals: Sequence[Awaited] = (),
    ) -> None:
        check_callable(fn, "@workflow")
        check_no_method(fn, "a workflow", "a run goes on in workers that have no instance")
        self.fn = fn
        self.name = name or fn.__qualname__.replace(".<locals>.", ".")
        self.raises = check_errors(raises, f"raises of workflow {self.name}")
        self.start_options = StartOptions(
            queue=queue, timeout=duration(timeout, f"timeout of workflow {self.name}")
        )
        self.is_async = inspect.iscoroutinefunction(fn)
        self.schedules: list[Declared] = []
        self.upcasters: list[Upcast] = []
        self.updates: dict[str, UpdateHandler[..., Any]] = {}
        self.signal_handlers: dict[str, SignalHandler] = {}
        self.triggers: list[Any] = []
        self.ref_checkers: dict[str, Callable[[Ref], Any]] = {}
        self.origin: Workflow[Any, Any] = self
        self._signature = inspect.signature(fn)
        kinds = {p.kind for p in self._signature.parameters.values()}
        self._names = (
            () if inspect.Parameter.KEYWORD_ONLY in kinds else tuple(self._signature.parameters)
        )
        self._has_positional_only = inspect.Parameter.POSITIONAL_ONLY in kinds
        self._defaults = Defaults(fn, f"workflow {self.name}")
        self._errors: tuple[tuple[type[Exception], ...], ErrorClasses] | None = None
        look_like(self, fn)
        if not is_name(self.name):
            raise DefinitionError(
                f"the name of workflow {self.name!r} must be a text of 1 to 255 bytes without NUL: "
                "pass name="
            )
        for parameter in self._signature.parameters.values():
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                raise DefinitionError(
                    f"workflow {self.name} takes *{parameter.name}: its input is an object of "
                    "parameter names, so each must be named"
                )
        self.aliases = check_aliases(aliases, f"workflow {self.name}")
        self._signals = _check_signals(signals, self.name)
        self.is_pinned = pinned
        if version is not None and not is_name(version):
            raise DefinitionError(
                f"the version of workflow {self.name} must be a text of 1 to 255 bytes without "
                f"NUL, not {version!r}"
            )
        self._version = version
        if pinned:
            self.start_options = replace(self.start_options, version=self.version)

    def __repr__(self) -> str:
        """As in error messages."""
        return f"<Workflow {self.name}>"

    if not TYPE_CHECKING:

        def __call__(self, *_args: Any, **_kwargs: Any) -> NoReturn:
            """A workflow is started, not called."""
            raise TypeError(
                f"workflow {self.name} is not called: start it with app.start({self.name}, ...), "
                f"from another workflow with pgflow.run_child({self.name}, ...), or call "
                f"{self.name}.fn(...) in a test"
            )

    def options(
        self,
        *,
        key: str | None = None,
        queue: str | None = None,
        priority: int | None = None,
        run_at: datetime | None = None,
        timeout: Duration | None = None,
        labels: dict[str, str] | None = None,
        metadata: dict[str, Any] | None = None,
        when_parent_ends: Literal["cancel", "abandon"] | None = None,
        if_taken: IfTaken | None = None,
        pool: Pool | str | None = None,
        budget: Mapping[str, Amount] | None = None,
        key_for: Duration | None = None,
        debounce: Duration | None = None,
        max_wait: Duration | None = None,
        collect: int | None = None,
        node: int | None = None,
        near: tuple[str, object] | None = None,
    ) -> Self:
        """Return a copy of the workflow with options for the runs started through it.

        Args:
            key: Idempotency key, at most 128 characters: a second start with it is the same run.
            queue: Queue to wait in.
            priority: Lower numbers go first.
            run_at: Do not start before this time (with time zone).
            timeout: The run is cancelled when it is not over by then.
            labels: Names and values to list runs by.
            metadata: Data that travels from the start to every child and step.
            when_parent_ends: Effect of a parent's end on this child.
            if_taken: Action where a run has the key. ``match``, as without it: with the same
                workflow and input the start is that run, else it is a KeyConflict. ``reject``: a
                KeyConflict, whatever that run is. ``attach``: that run, whatever its input is.
                ``replace``: that run is cancelled, keeps its history and loses the key to a new
                run, which begins once its code has cleaned up.
            pool: Pool that the run draws on, and its children unless they name one.
            budget: Limits by unit, such as ``{"usd": 5}``, of a pool of its own, which draws on
                that one.
            key_for: The key counts while its run is open, and for so long after its start: then
                the next start makes a new run. 0 for one open run at a time; for good without.
            debounce: The run begins so long after the last start with the key, with the input of
                that one. A run of the key that has begun is left alone, and loses the key.
            max_wait: The run begins at the latest so long after the first of those starts.
            collect: The workflow takes one list, and the run gets those of all starts with the
                key. It begins once it has so many items, or ``max_wait`` after the first start.
            node: Node of a cluster that the run is to be on, if no run has the key.
            near: Table and value of its distribution column, such as ``("orders", 7)``: the run is
                to be on the node that has these rows.
        """
        if if_taken is not None and if_taken not in get_args(IfTaken):
            raise InvalidArgument(
                f"if_taken= is 'match', 'reject', 'attach' or 'replace', not {if_taken!r}"
            )
        if run_at is not None and run_at.tzinfo is None:
            raise InvalidArgument(
                "run_at has no time zone: pass datetime.now(timezone.utc) + ..., or one with tzinfo"
            )
        given: dict[str, Any] = {
            "key": key,
            "queue": queue,
            "priority": priority,
            "run_at": run_at,
            "timeout": duration(timeout, f"timeout of workflow {self.name}"),
            "labels": labels,
            "metadata": metadata,
            "when_parent_ends": when_parent_ends,
            "if_taken": if_taken,
            "pool": pool.name if isinstance(pool, Pool) else pool,
            "budget": None
            if budget is None
            else amounts_of(budget, f"budget= of workflow {self.name}", zeros=True),
            "key_for": duration(key_for, f"key_for of workflow {self.name}"),
            "debounce": duration(debounce, f"debounce of workflow {self.name}"),
            "max_wait": duration(max_wait, f"max_wait of workflow {self.name}"),
            "collect": collect,
            "node": node,
            "near": None if near is None else (near[0], str(near[1])),
        }
        other = copy.copy(self)
        other.start_options = replace(
            self.start_options, **{k: v for k, v in given.items() if v is not None}
        )
        return other

    @overload
    def update(  # pyright: ignore[reportOverlappingOverload]
        self, fn: Callable[Concatenate[Any, Q], Coroutine[Any, Any, V]], /
    ) -> UpdateHandler[Q, V]: ...
    @overload
    def update(self, fn: Callable[Concatenate[Any, Q], V], /) -> UpdateHandler[Q, V]: ...
    def update(self, fn: Callable[..., Any], /) -> Any:
        """Declare a handler of updates: requests of clients to a run that get an answer.

        The code of the workflow takes updates where it calls :func:`pgflow.updates.serve`. The
        handler gets the state from there, and the arguments. It is async or not; in a sync workflow
        it is not.

        Example::

            @order.update
            async def add(cart: Cart, sku: str) -> int:
                await reserve(sku)
                cart.items.append(sku)
                return len(cart.items)
        """
        handler: UpdateHandler[..., Any] = UpdateHandler(self.origin, fn)
        if handler.name in self.origin.updates:
            raise DefinitionError(f"workflow {self.name} has two updates {handler.name!r}")
        self.origin.updates[handler.name] = handler
        return handler

    def on_signal(self, signal: Signal[T], /) -> Callable[[H], H]:
        """Declare a handler of a signal, beside the code of the workflow.

        :func:`pgflow.updates.serve` calls it with the state and the payload, one message after the
        other. It is async or not; in a sync workflow it is not. Its error leaves ``serve``. The
        signal counts as one of ``signals=``.

        Args:
            signal: The signal.

        Raises:
            DefinitionError: The signal has a handler, or the function cannot be one.

        Example::

            @order.on_signal(address_changed)
            def move(cart: Cart, address: str) -> None:
                cart.address = address
        """

        def declare(fn: H) -> H:
            origin = self.origin
            handler = signal_handler(origin, signal, fn)
            if signal.name in origin.signal_handlers:
                raise DefinitionError(
                    f"workflow {self.name} has two handlers of signal {signal.name!r}"
                )
            origin.signal_handlers[signal.name] = handler
            return fn

        return declare

    def query(self, fn: Callable[Concatenate[Any, Q], V], /) -> QueryHandler[Q, V]:
        """Declare a query with arguments: a plain def of what the run has published with
        :func:`pgflow.set_state`, for ``run.query``.

        Its first parameter gets the published values as an object by their names, read by its
        annotation. It runs in the process that asks, which reads the database; the run is not
        woken.

        Example::

            @order.query
            def price(state: dict[str, Any], currency: str) -> float:
                return state["cents"] * RATES[currency] / 100
        """
        return QueryHandler(self.origin, fn)

    @property
    def signals(self) -> tuple[Awaited, ...]:
        """Signals that it declares, and those with a handler."""
        declared = {signal.name: signal for signal in self.origin._signals}
        handled = {name: handler.signal for name, handler in self.origin.signal_handlers.items()}
        return tuple((declared | handled).values())

    # ------------------------------------------------------------ input and result

    @cached_property
    def input_codec(self) -> Codec[dict[str, Any]]:
        """Codec of the input: an object with the parameters."""
        if self.origin is not self:
            return self.origin.input_codec
        hints = resolve_hints(self.fn)
        fields = {
            name: field_of(parameter, hints)
            for name, parameter in self._signature.parameters.items()
        }
        return parameters_codec("workflow", self.name, fields, self.upcasters)

    @cached_property
    def result_codec(self) -> Codec[Any]:
        """Codec of the result."""
        if self.origin is not self:
            return self.origin.result_codec
        return codec_for(
            resolve_hints(self.fn).get("return", Any), f"the result of workflow {self.name}"
        )

    def errors_of(self, app_errors: tuple[type[Exception], ...]) -> ErrorClasses:
        """Return the classes as which its errors may be rebuilt, in an app that knows these."""
        found = self._errors
        if found is None or found[0] is not app_errors:
            found = self._errors = app_errors, ErrorClasses(app_errors, self.raises)
        return found[1]

    def check_definition(self) -> None:
        """Check that parameters and result can be stored, before a run starts that could never end.

        Raises:
            DefinitionError: They cannot.
        """
        assert self.input_codec is not None
        assert self.result_codec is not None

    def encode_input(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], *, is_hidden: bool = False
    ) -> str:
        """The input as JSON text, checked to be readable by the workflow.

        Args:
            args: The arguments by position.
            kwargs: The arguments by name.
            is_hidden: True if the text is encrypted before it is stored.

        Raises:
            TypeError: The arguments do not fit the signature.
            NotStorable: A value cannot be stored, or not be read back as its annotation says.
        """
        what = f"the input of workflow {self.name}"
        if not kwargs and args and len(args) == len(self._names):
            arguments = dict(zip(self._names, args, strict=True))
        else:
            arguments = self._bound(args, kwargs)
            if self._defaults.stored:
                arguments = self._defaults.fill(arguments)
        text = self.input_codec.encode(arguments, what, is_hidden=is_hidden)
        self.input_codec.decode(text, what)
        return text

    def _bound(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        try:
            return dict(self._signature.bind(*args, **kwargs).arguments)
        except TypeError as error:
            takes = str(self._signature).replace("'", "")
            raise TypeError(f"{self.name} takes {takes}: {error}") from None

    @property
    def defaults_text(self) -> str | None:
        """Defaults of its parameters as JSON, for comparing inputs; None if there are none.

        A default that cannot be stored is left out: who leaves out its parameter has then another
        input than who passes it.
        """
        return self._defaults.text or None

    @property
    def parameters(self) -> dict[str, Any] | None:
        """Shape of its input that has the names of its parameters only; None if upcasters may take
        other names, or if they cannot be stored, which holds its runs and not their worker.
        """
        try:
            shape = self.input_codec.shape
        except DefinitionError:
            return None
        if self.upcasters or not isinstance(shape, dict) or "fields" not in shape:
            return None
        return shape | {"fields": [[names, True, *rest] for names, _, *rest in shape["fields"]]}

    def bind_input(self, text: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Positional and named arguments for ``fn`` from a stored input."""
        values = self.input_codec.decode(text, f"the input of workflow {self.name}")
        if self._defaults.stored:
            values = self._defaults.fill(values)
        if not self._has_positional_only:
            return (), values
        bound = self._signature.bind_partial()
        bound.arguments.update(
            {name: values[name] for name in self._signature.parameters if name in values}
        )
        return bound.args, bound.kwargs

    @property
    def version(self) -> str:
        """The version it was given, else the hash of its code."""
        return self._version or self.code_hash

    @cached_property
    def patches(self) -> dict[str, bool]:
        """Names of the patches written in its code, each with whether that only deprecates it."""
        return find_patches(self.fn)

    @cached_property
    def code_hash(self) -> str:
        """Hash of the module the workflow is written in: a fix changes it."""
        module = inspect.getmodule(self.fn)
        try:
            source = inspect.getsource(module) if module is not None else inspect.getsource(self.fn)
        except (OSError, TypeError):
            source = self.fn.__code__.co_code.hex()
        return hashlib.blake2b(source.encode(), digest_size=8).hexdigest()


class _Workflow:
    def __init__(self, make: Callable[..., Any]) -> None:
        self._make = make

    @overload
    def __call__(self, fn: Callable[P, Coroutine[Any, Any, R]], /) -> Workflow[P, R]: ...  # pyright: ignore[reportOverlappingOverload]
    @overload
    def __call__(self, fn: Callable[P, R], /) -> Workflow[P, R]: ...
    def __call__(self, fn: Callable[..., Any], /) -> Any:
        return self._make(fn)


def check_workflow(thing: object, call: str) -> None:
    """Check that a call was given a workflow.

    Raises:
        DefinitionError: It is something else.
    """
    if isinstance(thing, Workflow):
        return
    if isinstance(thing, str):
        raise DefinitionError(
            f"{call} takes the workflow itself, not its name {thing!r}. By name, start it with "
            "pgflow.start_run() in SQL, or `pgflow start`"
        )
    raise DefinitionError(
        f"{call} takes a workflow, not {thing!r}: is it decorated with @pgflow.workflow?"
    )


def _check_signals(signals: Sequence[Awaited], workflow: str) -> tuple[Awaited, ...]:
    given = tuple(signals)
    for signal in given:
        if not hasattr(signal, "codec"):
            raise DefinitionError(
                f"signals= of workflow {workflow} takes objects of pgflow.Signal(name, type), not "
                f"{signal!r}"
            )
    if len({signal.name for signal in given}) < len(given):
        raise DefinitionError(f"signals= of workflow {workflow} names a signal twice")
    return given


@overload
def workflow(fn: Callable[P, Coroutine[Any, Any, R]], /) -> Workflow[P, R]: ...  # pyright: ignore[reportOverlappingOverload]
@overload
def workflow(fn: Callable[P, R], /) -> Workflow[P, R]: ...
@overload
def workflow(
    *,
    name: str | None = None,
    queue: str = DEFAULT_QUEUE,
    timeout: Duration | None = None,
    raises: Sequence[type[Exception]] = (),
    version: str | None = None,
    pinned: bool = False,
    aliases: Sequence[str] = (),
    signals: Sequence[Awaited] = (),
) -> _Workflow: ...
def workflow(
    fn: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    queue: str = DEFAULT_QUEUE,
    timeout: Duration | None = None,
    raises: Sequence[type[Exception]] = (),
    version: str | None = None,
    pinned: bool = False,
    aliases: Sequence[str] = (),
    signals: Sequence[Awaited] = (),
) -> Any:
    """Declare a workflow: a function, async or not, that orchestrates steps and survives its
    process.

    Its code must do the same again when it is replayed:
    everything that touches the world belongs into a step.

    Args:
        name: Its name in the database; the function's own if not given.
        queue: Queue in which its runs wait.
        timeout: A run that is not over by then is cancelled.
        raises: Errors that a waiting client gets back as themselves.
        version: Name of this code for `pgflow versions`; the hash of its module if not given.
        pinned: True if runs stay with the version that they are started with: only workers that
            have it work on them. Else any worker that has the workflow does, and a run that its
            code does not fit is held.
        aliases: Names that it had before: its workers work on runs of these too.
        signals: Signals that its code waits for. A payload that does not fit the type of one is
            then refused where it is sent, from SQL and the command line too. One that is not named
            here is sent as it is; a run whose code cannot take it is stuck.

    Example::

        @workflow(queue="orders")
        async def checkout(order: Order) -> str:
            return await charge(order.card, order.cents)
    """

    def make(fn: Callable[..., Any]) -> Any:
        options = name, queue, timeout, raises, version, pinned, aliases, signals
        return Workflow[Any, Any](fn, *options)

    return make(fn) if fn is not None else _Workflow(make)
