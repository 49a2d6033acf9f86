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
    ParamSpec,
    Protocol,
    Self,
    TypeVar,
    cast,
)

from pgflow._db.calls.updates import Reply
from pgflow._engine.host import ContinueAsNew
from pgflow._engine.notes import Notes
from pgflow._engine.updates import Taken, UpdateCall, Updates
from pgflow._flow.scope import WorkflowScope, async_scope, sync_scope
from pgflow._flow.updating import UpdateFunction
from pgflow._model.codecs import ANYTHING
from pgflow._model.durations import Duration, duration
from pgflow._model.envelopes import Envelopes, open_text, open_value
from pgflow._model.exceptions import ErrorClasses, rebuild_error
from pgflow._model.names import is_name
from pgflow._model.updates import UpdateStatus
from pgflow.errors import (
    DefinitionError,
    InvalidArgument,
    NotStorable,
    UpdateFailed,
    UpdateRefused,
    UpdateRejected,
)

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


class _UpdateServer:
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
        self._updates = scope.execution.parts[Updates]
        self._handlers: dict[str, UpdateHandler[..., Any]] = scope.definition.origin.updates
        self._workflow: str = scope.definition.name
        self._deadline_us: int | None = None
        patience = duration(timeout, "timeout of serve()", least_seconds=-math.inf)
        if patience is not None:
            self._deadline_us = scope.execution.parts[Notes].now_us() + int(
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
                microseconds=max(0, self._deadline_us - self._scope.execution.parts[Notes].now_us())
            )
        return self._updates.issue(self._judge, left)

    def give_up_wait(self, call: UpdateCall) -> None:
        """Cancel the wait for an update."""
        self._scope.execution.cancel_call(call)

    def _judge(self, taken: Taken, is_again: bool) -> Exception | None:
        """Return why an update is rejected, or None."""
        try:
            handler = self._find(taken)
            given = handler.read_args(taken, self._scope.claim.envelopes)
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
        return handler.fn(self._state, **handler.read_args(taken, self._scope.claim.envelopes))

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
        self._updates.refuse(taken)


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
    server = _UpdateServer(scope, state, until, timeout)
    while (call := server.next()) is not None:
        try:
            taken = cast("Taken", await call.waiter)  # type: ignore[misc]
        except asyncio.CancelledError:
            server.give_up_wait(call)
            raise
        try:
            value = server.begin(taken)
            if inspect.isawaitable(value):
                value = await value
        except _GIVEN_UP:
            server.give_up(taken)
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer
            server.fail(taken, error)
        else:
            server.reply(taken, value)


def serve_sync(
    state: Any, *, until: Callable[[], bool] | None = None, timeout: Duration | None = None
) -> None:
    """Serve updates of the running workflow; see :func:`serve`."""
    scope, thread = sync_scope("pgflow.sync.serve()", "pgflow.updates.serve()")
    server = _UpdateServer(scope, state, until, timeout)
    while (call := server.next()) is not None:
        try:
            thread.block(call)
        except asyncio.CancelledError:
            server.give_up_wait(call)
            raise
        taken = cast("Taken", call.waiter.take())  # type: ignore[union-attr]
        try:
            value = server.begin(taken)
        except _GIVEN_UP:
            server.give_up(taken)
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer
            server.fail(taken, error)
        else:
            server.reply(taken, value)
