"""The block of a workflow's code that serves its handlers of updates and signals.

Async handlers are tasks of the workflow, so they meet each other only where one of them awaits, and
a replay repeats that. The wait for the next update is issued when there is room for its handler,
and that for a signal when the one before is handled. In a sync workflow one thread waits for all of
them, and runs the handlers in the order in which the messages come.
"""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Awaitable, Callable, Coroutine
from datetime import timedelta
from typing import Any, TypeVar, cast

from pgflow._engine.calls import Call
from pgflow._engine.drivers import Race, ThreadDriver
from pgflow._engine.host import ContinueAsNew
from pgflow._engine.loop import Unwind
from pgflow._engine.notes import Notes
from pgflow._engine.updates import Taken, UpdateCall, Updates
from pgflow._flow.scope import WorkflowScope, async_scope, sync_scope
from pgflow._flow.updates import SignalHandler, UpdateHandler
from pgflow._model.durations import Duration, duration
from pgflow._model.envelopes import is_hiding
from pgflow.errors import DefinitionError, InvalidArgument, NotStorable

T = TypeVar("T")

_GIVEN_UP = (asyncio.CancelledError, ContinueAsNew)


class _Server:
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
        self._signals: list[SignalHandler] = list(scope.definition.origin.signal_handlers.values())
        self._workflow: str = scope.definition.name
        self._deadline_us: int | None = None
        patience = duration(timeout, "timeout of serve()", least_seconds=-math.inf)
        if patience is not None:
            self._deadline_us = scope.execution.parts[Notes].now_us() + int(
                patience.total_seconds() * 1_000_000
            )
        if not self._handlers and not self._signals:
            raise DefinitionError(
                f"workflow {self._workflow} serves updates and has none: declare a handler with "
                "its .update or .on_signal"
            )

    def _is_over(self) -> bool:
        """Return True if enough has been served."""
        return self._until is not None and self._until()

    def _next(self) -> UpdateCall:
        """Issue the wait for the next update."""
        left = None
        if self._deadline_us is not None:
            left = timedelta(
                microseconds=max(0, self._deadline_us - self._scope.execution.parts[Notes].now_us())
            )
        return self._updates.issue(self._judge, left)

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
                f"it has {', '.join(sorted(self._handlers)) or 'none'}"
            )
        return handler

    def _begin(self, taken: Taken) -> Any:
        """Call the handler of an update that was taken; return its value, or what to await."""
        handler = self._find(taken)
        return handler.fn(self._state, **handler.read_args(taken, self._scope.claim.envelopes))

    def _reply(self, taken: Taken, value: Any) -> None:
        """Answer with the handler's value."""
        what = f"the answer to update {taken.name}"
        codec = self._find(taken).result_codec
        try:
            is_hidden = is_hiding(self._scope.claim.envelopes)
            text = codec.encode(value, what, is_hidden=is_hidden)
            codec.decode(text, what)
        except NotStorable as error:
            self._updates.fail(taken, error)
        else:
            self._updates.reply(taken, text)


class _TaskServer(_Server):
    """Tasks of an async workflow: one waits for updates, one for each signal with a handler, and
    each update that is being handled has one.
    """

    def __init__(
        self,
        scope: WorkflowScope,
        state: Any,
        until: Callable[[], bool] | None,
        timeout: Duration | None,
        max_parallel: int | None,
    ) -> None:
        super().__init__(scope, state, until, timeout)
        if max_parallel is not None and max_parallel < 1:
            raise InvalidArgument(
                f"serve() cannot handle {max_parallel} updates at once: max_parallel must be 1 or "
                "more, or None for all"
            )
        self._room = None if max_parallel is None else asyncio.Semaphore(max_parallel)
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._waiting: dict[asyncio.Task[None], None] = {}
        self._stopped = asyncio.Event()
        self._error: BaseException | None = None

    async def serve(self) -> None:
        """Serve until it is over, or a handler of a signal fails."""
        self._spawn(self._take_updates())
        for handler in self._signals:
            self._spawn(self._take_signals(handler))
        try:
            await self._stopped.wait()
            await self._end(self._tasks if self._error is not None else self._waiting)
        except asyncio.CancelledError:
            await self._end(self._tasks)
            raise
        if self._error is not None:
            raise self._error

    async def _end(self, tasks: dict[asyncio.Task[None], None]) -> None:
        """Cancel some of the tasks in their order, and wait for all."""
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[None]) -> None:
        del self._tasks[task]
        error = None if task.cancelled() else task.exception()
        # That of a run that goes on elsewhere would keep it alive with its traceback.
        if error is not None and not isinstance(error, Unwind):
            self._error = self._error or error
            self._stopped.set()

    def _look(self) -> bool:
        """Return True if it is over, and stop."""
        if self._is_over():
            self._stopped.set()
        return self._stopped.is_set()

    async def _wait(self, awaited: Awaitable[T]) -> T:
        """Await what may be given up once enough is served."""
        task = cast("asyncio.Task[None]", asyncio.current_task())
        self._waiting[task] = None
        try:
            return await awaited
        finally:
            del self._waiting[task]

    async def _take_updates(self) -> None:
        while not self._look():
            if self._room is not None:
                await self._wait(self._room.acquire())
                if self._look():
                    return
            call = self._next()
            try:
                taken = cast("Taken", await self._wait(call.waiter))  # type: ignore[arg-type]
            except asyncio.CancelledError:
                self._scope.execution.cancel_call(call)
                raise
            self._updates.begin(taken)
            self._spawn(self._handle(taken))

    async def _handle(self, taken: Taken) -> None:
        try:
            value = self._begin(taken)
            if inspect.isawaitable(value):
                value = await value
        except _GIVEN_UP:
            self._updates.refuse(taken)
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer
            self._updates.fail(taken, error)
        else:
            self._reply(taken, value)
        finally:
            if self._room is not None:
                self._room.release()
        self._look()

    async def _take_signals(self, handler: SignalHandler) -> None:
        while not self._look():
            value = await self._wait(handler.signal.wait())
            handled = handler.fn(self._state, value)
            if inspect.isawaitable(handled):
                await handled


async def serve(
    state: Any,
    *,
    until: Callable[[], bool] | None = None,
    timeout: Duration | None = None,
    max_parallel: int | None = 1,
) -> None:
    """Serve the handlers of the running workflow: of updates, in the order sent, and of signals.

    The handler of its name gets the state and the arguments, and may do everything that workflow
    code may. Its return value or error is the answer to the sender, and part of the journal. An
    error of such a handler does not end the workflow. That of a signal's handler does: it leaves
    ``serve``. Signals of one name are handled one after the other, beside the updates.

    Args:
        state: First argument of handlers and validators: any object.
        until: Function of the state, called before each update and after each handler; once it
            returns True, ``serve`` returns when the handlers under way have ended. By default, it
            serves until it is cancelled or times out.
        timeout: Longest time to serve.
        max_parallel: Updates in progress at the same time. 1 begins none before the handler of the
            last one has ended; None sets no limit. Their handlers then meet where they await.

    Raises:
        TimeoutError: ``timeout`` has passed.
        DefinitionError: The workflow has no handlers.

    Example::

        cart = Cart()
        await pgflow.updates.serve(cart, until=lambda: cart.is_ordered)
    """
    scope = async_scope("pgflow.updates.serve()", "pgflow.sync.serve()")
    await _TaskServer(scope, state, until, timeout, max_parallel).serve()


class _ThreadServer(_Server):
    """The thread of a sync workflow, which waits for an update and for each signal with a handler,
    and handles what comes first.
    """

    def serve(self, thread: ThreadDriver) -> None:
        """Serve until it is over, or a handler of a signal fails."""
        race, waits = Race(), dict[int, Call]()
        try:
            # What has come was taken from the mailbox, so it is handled.
            while race.is_over or not self._is_over():
                self._issue(race, waits)
                thread.block(race)
                for number in race.take():
                    self._handle(number, waits.pop(number).waiter.take())  # type: ignore[union-attr]
        except Unwind:
            raise
        except BaseException:
            self._give_up(waits)
            raise
        self._give_up(waits)

    def _issue(self, race: Race, waits: dict[int, Call]) -> None:
        """Issue the waits that are not open: 0 is that for updates, n that for the nth signal."""
        for number, handler in enumerate([None, *self._signals]):
            if number not in waits:
                call: Call = self._next() if handler is None else handler.signal.issue(self._scope)
                waits[number] = call
                race.enter(number, call)

    def _give_up(self, waits: dict[int, Call]) -> None:
        for call in waits.values():
            self._scope.execution.cancel_call(call)

    def _handle(self, number: int, came: Any) -> None:
        if number > 0:
            self._signals[number - 1].fn(self._state, came)
            return
        taken = cast("Taken", came)
        self._updates.begin(taken)
        try:
            value = self._begin(taken)
        except _GIVEN_UP:
            self._updates.refuse(taken)
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer
            self._updates.fail(taken, error)
        else:
            self._reply(taken, value)


def serve_sync(
    state: Any, *, until: Callable[[], bool] | None = None, timeout: Duration | None = None
) -> None:
    """Serve the handlers of the running workflow, one at a time; see
    :func:`pgflow.updates.serve`.
    """
    scope, thread = sync_scope("pgflow.sync.serve()", "pgflow.updates.serve()")
    _ThreadServer(scope, state, until, timeout).serve(thread)
