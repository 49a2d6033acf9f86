"""Updates of a running workflow: handlers that are declared on it, and the block of its code that
serves them.

A workflow is a function, so the state that its handlers see is an object that its code hands over
where it is ready for them. From there on it takes updates one at a time, each at a place of its
journal: no handler meets a state that is half made, nor another handler on the way. Handlers are
workflow code, and may wait and call steps.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
import json
import math
import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import (
    Any,
    Generic,
    NamedTuple,
    NotRequired,
    ParamSpec,
    Protocol,
    Self,
    TypeVar,
    cast,
)

import pydantic
from typing_extensions import TypedDict

from pgflow._engine.host import ContinueAsNew
from pgflow._engine.updates import Taken, UpdateCall
from pgflow._flow.defaults import Defaults
from pgflow._flow.scope import WorkflowScope, async_scope, sync_scope
from pgflow._flow.step import resolve_hints
from pgflow._model.codecs import Codec, codec_for
from pgflow._model.durations import Duration, duration
from pgflow._model.envelopes import Envelopes, open_value
from pgflow._model.names import is_name
from pgflow.errors import DefinitionError, InvalidArgument, NotStorable

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])

_GIVEN_UP = (asyncio.CancelledError, ContinueAsNew)


class _Owner(Protocol):
    """A workflow, as far as its handlers ask."""

    @property
    def name(self) -> str:
        """Name of the workflow."""

    @property
    def is_async(self) -> bool:
        """True if its code is an ``async def``."""


class UpdateHandler(Generic[P, R]):
    """A handler of updates, made by ``@my_workflow.update``. ``fn`` is the undecorated function."""

    def __init__(self, workflow: _Owner, fn: Callable[..., Any]) -> None:
        self.fn = fn
        self.workflow = workflow
        self.name: str = fn.__name__
        self.update_id: str | None = None
        self._check: Callable[..., object] | None = None
        self._signature = inspect.signature(fn)
        self._defaults = Defaults(fn, f"update {fn.__name__}")
        self._args: Codec[dict[str, Any]] | None = None
        self._result: Codec[R] | None = None
        self._origin: UpdateHandler[P, R] = self
        self.__doc__ = fn.__doc__
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

    @property
    def args_codec(self) -> Codec[dict[str, Any]]:
        """Codec of its arguments, an object of the parameters behind the state."""
        if self._args is None:
            hints = resolve_hints(self.fn)
            _, *parameters = self._signature.parameters.values()
            fields = {
                p.name: hints.get(p.name, Any)
                if p.default is p.empty
                else NotRequired[hints.get(p.name, Any)]
                for p in parameters
            }
            shape = TypedDict(f"the parameters of {self.name}", fields)  # type: ignore[misc]
            shape.__pydantic_config__ = pydantic.ConfigDict(extra="forbid")  # type: ignore[attr-defined]
            self._args = codec_for(shape, f"a parameter of update {self.name}")
        return self._args

    @property
    def result_codec(self) -> Codec[R]:
        """Codec of its answer."""
        if self._result is None:
            self._result = codec_for(
                resolve_hints(self.fn).get("return", Any), f"the answer to update {self.name}"
            )
        return self._result

    def encode_args(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """The arguments as JSON text, checked to be readable by the handler.

        Raises:
            TypeError: They do not fit the signature.
            NotStorable: A value cannot be stored, or not be read back as its annotation says.
        """
        what = f"the arguments of update {self.name}"
        _, *bound = self._signature.bind(None, *args, **kwargs).arguments.items()
        given = self._defaults.fill(dict(bound))
        text = self.args_codec.encode(given, what)
        self.args_codec.decode(text, what)
        return text

    def decode_args(self, taken: Taken, envelopes: Envelopes | None) -> dict[str, Any]:
        """The arguments by name.

        Raises:
            NotStorable: They do not fit the annotations.
        """
        what = f"the arguments of update {self.name}"
        text = json.dumps(open_value(envelopes, taken.args, what), ensure_ascii=False)
        return self._defaults.fill(self.args_codec.decode(text, what))

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


class _Desk:
    """The part of serving that both colours share."""

    def __init__(
        self,
        scope: WorkflowScope,
        state: Any,
        until: Callable[[], bool] | None,
        timeout: Duration | None,
    ) -> None:
        self._scope = scope
        self._state = state
        self._until = until
        self._updates = scope.execution.updates
        self._handlers: dict[str, UpdateHandler[..., Any]] = scope.definition.origin.updates
        self._workflow: str = scope.definition.name
        self._deadline_us: int | None = None
        patience = duration(timeout, "timeout of serve()", least_seconds=-math.inf)
        if patience is not None:
            self._deadline_us = scope.execution.notes.now_us() + int(
                patience.total_seconds() * 1_000_000
            )
        if not self._handlers:
            raise DefinitionError(
                f"workflow {self._workflow} serves updates and has none: declare one with its "
                ".update"
            )

    def next(self) -> UpdateCall | None:
        """The wait for the next update; None if enough have been served."""
        if self._until is not None and self._until():
            return None
        left = None
        if self._deadline_us is not None:
            left = timedelta(
                microseconds=max(0, self._deadline_us - self._scope.execution.notes.now_us())
            )
        return self._updates.issue(self._judge, left)

    def give_up_wait(self, call: UpdateCall) -> None:
        """Cancel the wait for an update."""
        self._scope.execution.cancel_call(call)

    def _judge(self, taken: Taken, is_again: bool) -> Exception | None:
        """Return why an update is rejected, or None."""
        try:
            handler = self._find(taken)
            given = handler.decode_args(taken, self._scope.claim.envelopes)
            if not is_again:
                handler.check(self._state, given)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer
            return error
        return None

    def _find(self, taken: Taken) -> UpdateHandler[..., Any]:
        handler = self._handlers.get(taken.name)
        if handler is None:
            raise InvalidArgument(
                f"workflow {self._workflow} has no update {taken.name!r}; "
                f"it has {', '.join(sorted(self._handlers))}"
            )
        return handler

    def begin(self, taken: Taken) -> Any:
        """Call the handler of an update that was taken; return its value, or what to await."""
        self._updates.begin(taken)
        handler = self._find(taken)
        return handler.fn(self._state, **handler.decode_args(taken, self._scope.claim.envelopes))

    def reply(self, taken: Taken, value: Any) -> None:
        """Answer with the handler's value."""
        what = f"the answer to update {taken.name}"
        codec = self._find(taken).result_codec
        try:
            text = codec.encode(value, what)
            codec.decode(text, what)
        except NotStorable as error:
            self._updates.fail(taken, error)
        else:
            self._updates.reply(taken, text)

    def fail(self, taken: Taken, error: Exception) -> None:
        """Answer with the handler's error."""
        self._updates.fail(taken, error)

    def give_up(self, taken: Taken) -> None:
        """The workflow goes on without the rest of the handler."""
        self._updates.give_up(taken)


async def serve(
    state: Any, *, until: Callable[[], bool] | None = None, timeout: Duration | None = None
) -> None:
    """Serve updates of the running workflow, one at a time, in the order sent.

    The handler of its name gets the state and the arguments, and may do everything that workflow
    code may. Its return value or error is the answer to the sender, and part of the journal. An
    error of a handler does not end the workflow.

    Args:
        state: First argument of handlers and validators: any object.
        until: Function of the state, called before each update; once it returns True, ``serve``
            returns. By default, it serves until it is cancelled or times out.
        timeout: Longest time to serve.

    Raises:
        TimeoutError: ``timeout`` has passed.
        DefinitionError: The workflow has no handlers.

    Example::

        cart = Cart()
        await pgflow.updates.serve(cart, until=lambda: cart.is_ordered)
    """
    scope = async_scope("pgflow.updates.serve()", "pgflow.sync.serve()")
    desk = _Desk(scope, state, until, timeout)
    while (call := desk.next()) is not None:
        try:
            taken = cast("Taken", await call.waiter)  # type: ignore[misc]
        except asyncio.CancelledError:
            desk.give_up_wait(call)
            raise
        try:
            value = desk.begin(taken)
            if inspect.isawaitable(value):
                value = await value
        except _GIVEN_UP:
            desk.give_up(taken)
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer
            desk.fail(taken, error)
        else:
            desk.reply(taken, value)


def serve_sync(
    state: Any, *, until: Callable[[], bool] | None = None, timeout: Duration | None = None
) -> None:
    """Serve updates of the running workflow; see :func:`serve`."""
    scope, thread = sync_scope("pgflow.sync.serve()", "pgflow.updates.serve()")
    desk = _Desk(scope, state, until, timeout)
    while (call := desk.next()) is not None:
        try:
            thread.block(call)
        except asyncio.CancelledError:
            desk.give_up_wait(call)
            raise
        taken = cast("Taken", call.waiter.take())  # type: ignore[union-attr]
        try:
            value = desk.begin(taken)
        except _GIVEN_UP:
            desk.give_up(taken)
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer
            desk.fail(taken, error)
        else:
            desk.reply(taken, value)
