"""Handlers that are declared on a workflow: of updates, of signals, and of queries.

A workflow is a function, so the state that its handlers see is an object that its code hands over
where it is ready for them (``serving``). From there on it takes updates and signals, each at a
place of its journal: no handler meets a state that is half made. Handlers are workflow code, and
may wait and call steps. A query is a function of what the run has published, and runs where it is
asked.
"""

from __future__ import annotations

import copy
import inspect
import json
import uuid
from collections.abc import Callable
from typing import (
    Any,
    Generic,
    NamedTuple,
    ParamSpec,
    Protocol,
    Self,
    TypeVar,
    cast,
)

from pgflow._db.calls.updates import Reply
from pgflow._engine.updates import Taken
from pgflow._flow.signals import Signal
from pgflow._flow.step import resolve_hints
from pgflow._flow.updating import UpdateFunction
from pgflow._model.codecs import ANYTHING, codec_for
from pgflow._model.envelopes import Envelopes, open_text, open_value
from pgflow._model.exceptions import ErrorClasses, rebuild_error
from pgflow._model.names import is_name
from pgflow._model.updates import UpdateStatus
from pgflow.errors import (
    DefinitionError,
    InvalidArgument,
    UpdateFailed,
    UpdateRefused,
    UpdateRejected,
)

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])


class _Owner(Protocol):
    """A workflow, as far as its handlers ask."""

    @property
    def name(self) -> str:
        """Name of the workflow."""

    @property
    def is_async(self) -> bool:
        """True if its code is an ``async def``."""

    @property
    def raises(self) -> tuple[type[Exception], ...]:
        """Errors that may come back as themselves."""


class UpdateHandler(UpdateFunction[P, R]):
    """A handler of updates, made by ``@my_workflow.update``. ``fn`` is the undecorated function."""

    def __init__(self, workflow: _Owner, fn: Callable[..., Any]) -> None:
        super().__init__(fn)
        self.workflow = workflow
        self.update_id: str | None = None
        self._origin: UpdateHandler[P, R] = self
        shown = f"update {fn.__qualname__} of workflow {workflow.name}"
        if not is_name(self.name):
            raise DefinitionError(f"the name of {shown} is longer than 255 bytes")
        if not self._signature.parameters:
            raise DefinitionError(
                f"{shown} takes no state: its first parameter is what serve() has"
            )
        for parameter in self._signature.parameters.values():
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                raise DefinitionError(
                    f"{shown} takes *{parameter.name}: each argument must be named"
                )
        if inspect.iscoroutinefunction(fn) and not workflow.is_async:
            raise DefinitionError(f"{shown} must be a plain def, as its workflow is")

    def __repr__(self) -> str:
        """As in error messages."""
        return f"<UpdateHandler {self.workflow.name}.{self.name}>"

    def options(self, *, update_id: str | None = None) -> Self:
        """The same handler, for one update.

        Args:
            update_id: The same id to the same run is one update, and gets the same answer, for as
                long as the history of the run is kept. Made up if not given.
        """
        if update_id is not None and not is_name(update_id):
            raise InvalidArgument(
                "the id of an update must be a text of 1 to 255 bytes without NUL, not "
                f"{update_id!r}"
            )
        other = copy.copy(self)
        other.update_id = update_id
        return other

    def bind(self, *args: P.args, **kwargs: P.kwargs) -> BoundUpdate[R]:
        """An update with its arguments, for :meth:`pgflow.App.update_with_start`."""
        return BoundUpdate(self, args, kwargs, self.update_id or str(uuid.uuid4()))

    def validator(self, fn: F) -> F:
        """Declare a validator, which is called with the same arguments before an update is taken.
        An error rejects the update and leaves nothing in the journal of the run.

        It is a plain def, reads the state and changes nothing, and calls nothing of the workflow's.
        """
        if inspect.iscoroutinefunction(fn):
            raise DefinitionError(f"the validator of update {self.name} must be a plain def")
        self._origin._check = fn
        return fn

    # ================================================================ for the library

    def read_args(self, taken: Taken, envelopes: Envelopes | None) -> dict[str, Any]:
        """Return the arguments of a taken update by name.

        Raises:
            NotStorable: They do not fit the annotations.
        """
        value = open_value(envelopes, taken.args, f"the arguments of update {self.name}")
        return self.decode_args(json.dumps(value, ensure_ascii=False))

    def check(self, state: Any, given: dict[str, Any]) -> None:
        """Call the validator."""
        if self._origin._check is not None:
            self._origin._check(state, **given)


class BoundUpdate(NamedTuple, Generic[R]):
    """An update with its arguments, and its id."""

    handler: UpdateHandler[Any, R]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    update_id: str


class SignalHandler(NamedTuple):
    """A handler of a signal, made by ``@my_workflow.on_signal``."""

    signal: Signal[Any]
    fn: Callable[..., Any]


def signal_handler(workflow: _Owner, signal: object, fn: Callable[..., Any]) -> SignalHandler:
    """Return the handler of a signal.

    Raises:
        DefinitionError: It is not a signal, or the function cannot be a handler.
    """
    if not isinstance(signal, Signal):
        raise DefinitionError(
            f"@{workflow.name}.on_signal takes a pgflow.Signal(name, type), not {signal!r}"
        )
    shown = f"the handler of signal {signal.name!r} of workflow {workflow.name}"
    try:
        inspect.signature(fn).bind(None, None)
    except TypeError:
        raise DefinitionError(f"{shown} must take the state and the payload") from None
    if inspect.iscoroutinefunction(fn) and not workflow.is_async:
        raise DefinitionError(f"{shown} must be a plain def, as its workflow is")
    return SignalHandler(signal, fn)


class QueryHandler(Generic[P, R]):
    """A function of what a run has published, made by ``@my_workflow.query``. ``fn`` is the
    undecorated function.
    """

    def __init__(self, workflow: _Owner, fn: Callable[..., Any]) -> None:
        self.fn = fn
        self.name: str = fn.__name__
        self.__doc__ = fn.__doc__
        self._shown = f"query {self.name} of workflow {workflow.name}"
        if not inspect.signature(fn).parameters or inspect.iscoroutinefunction(fn):
            raise DefinitionError(
                f"{self._shown} must be a plain def, whose first parameter is the published state"
            )

    def __repr__(self) -> str:
        """As in error messages."""
        return f"<QueryHandler {self._shown.removeprefix('query ')}>"

    def answer(self, state: dict[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> R:
        """Return what the function answers, given the values that a run has published.

        Raises:
            NotStorable: They do not fit the annotation of its first parameter.
        """
        first = next(iter(inspect.signature(self.fn).parameters))
        codec = codec_for(resolve_hints(self.fn).get(first, Any), self._shown)
        given = codec.decode(json.dumps(state, ensure_ascii=False), f"the state for {self._shown}")
        return cast("R", self.fn(given, *args, **kwargs))


def read_reply(
    handler: UpdateHandler[Any, R],
    key: str,
    reply: Reply,
    envelopes: Envelopes | None,
    errors: ErrorClasses,
) -> R:
    """Return the handler's value from an answer, or raise its error."""
    shown = f"update {handler.name!r} of run {key!r}"
    if reply.status == UpdateStatus.DONE:
        what = f"the answer to {shown}"
        return handler.result_codec.decode(open_text(envelopes, reply.value or "null", what), what)
    if reply.status == UpdateStatus.REFUSED:
        raise UpdateRefused(f"{shown} was refused: the run ended before it was answered")
    text = open_text(envelopes, reply.error or "{}", f"the error of {shown}")
    data = ANYTHING.decode(text, "an error")
    is_rejected = reply.status == UpdateStatus.REJECTED
    raise (UpdateRejected if is_rejected else UpdateFailed)(
        f"{shown} {'was rejected' if is_rejected else 'failed'}: "
        f"{data.get('type')}: {data.get('message')}"
    ) from rebuild_error(data, errors)
