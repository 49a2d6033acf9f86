"""Clients and handles of runs, in both colours.

What a call says to the database is written once, in ``pgflow/_calls``; what an answer means, once here.
The two colours only run it.
"""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any, Generic, Literal, ParamSpec, Protocol, TypeVar, cast

from pgflow._calls import effects, mail, result, start
from pgflow._io import Query
from pgflow._scope import StepScope, current
from pgflow.context import Signal
from pgflow.errors import NotBuiltError, RunCancelled, RunFailed, RunStuck
from pgflow.failures import ErrorClasses, rebuild_error
from pgflow.interceptor import Interceptor
from pgflow.model import Approve, Escalate, Reject, StartOptions, Status
from pgflow.rewinding import AsyncRewinds, Rewinds
from pgflow.values import ANYTHING, Codec, encode_plain
from pgflow.workflow import Workflow

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")

Answer = Approve | Reject | Escalate
"""Answer to a gate."""

STREAM_PAGE = 500


def new_key() -> str:
    """A UUID version 7 (RFC 9562, 5.7). Made here, so that a start whose answer was lost can be sent again."""
    milliseconds = time.time_ns() // 1_000_000
    number = (milliseconds << 80) | (0x7 << 76) | (int.from_bytes(os.urandom(10)) & ~(0xF << 76) & ~(0x3 << 62)) | (0x2 << 62)
    text = f"{number:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def effective_options(workflow: Workflow[..., Any], interceptors: Iterable[Interceptor]) -> StartOptions:
    """Options of a start as the interceptors leave them, always with a key."""
    options: StartOptions = workflow.start_options
    for interceptor in interceptors:
        options = interceptor.start(workflow.name, options)
    scope = current.get()
    if scope is not None and scope.claim.metadata:
        options = replace(options, metadata={**scope.claim.metadata, **options.metadata})
    return options if options.key is not None else replace(options, key=new_key())


class Outcome(Generic[R_co]):
    """How a client reads what a run came to."""

    def __init__(self, key: str, codec: Codec[Any], errors: ErrorClasses) -> None:
        self.key = key
        self.codec = codec
        self.errors = errors

    def read(self, ended: result.Ended) -> R_co:
        """The run's value, or the error that its result raises."""
        if ended.status == "completed":
            return cast("R_co", self.codec.decode(ended.output or "null", f"the result of run {self.key!r}"))
        if ended.status == "cancelled":
            raise RunCancelled(f"run {self.key!r} was cancelled: {ended.reason}")
        data = ANYTHING.decode(ended.error or "{}", "an error")
        if ended.status == "stuck":
            message = data.get("message") or ""
            raise RunStuck(f"run {self.key!r} is stuck ({ended.reason}): {message}. See it in pgflow.runs; retry_run lets it go on")
        cause = rebuild_error(data, self.errors)
        raise RunFailed(f"run {self.key!r} failed: {data.get('type')}: {data.get('message')}") from cause


# ---------------------------------------------------------------- sync


class Session(Protocol):
    """What a sync client's handles need of it."""

    def ask(self, query: Query[T], *, wakes: bool = False) -> T:
        """Runs a query; ``wakes``: it sends a message, and answers whom to wake."""

    def wait(self, key: str, chain_id: int, timeout: timedelta | None) -> result.Ended:
        """Waits until a chain has ended."""


class Run(Generic[R_co]):
    """Handle of a run.

    Attributes:
        key: The run's public key.
    """

    key: str

    def __init__(self, session: Session, outcome: Outcome[R_co], chain_id: int | None = None) -> None:
        self.key = outcome.key
        self._session = session
        self._outcome = outcome
        self._chain_id = chain_id

    def __repr__(self) -> str:
        """As in logs."""
        return f"<Run {self.key!r}>"

    def result(self, timeout: timedelta | None = None) -> R_co:
        """Waits for the run to end and returns its value.

        Args:
            timeout: How long to wait at most.

        Raises:
            RunFailed: The workflow raised; its error is the ``__cause__``.
            RunCancelled: The run was cancelled.
            RunStuck: The run cannot go on without a person.
            RunNotFound: There is no such run: its start was rolled back.
            TimeoutError: It has not ended in time.
        """
        chain_id = self._chain_id
        if chain_id is None:
            chain_id = self._session.ask(result.find_chain(self.key))
        return self._outcome.read(self._session.wait(self.key, chain_id, timeout))

    def send(self, signal: Signal[T], value: T) -> None:
        """Sends a signal to the run."""
        self._session.ask(signal_query(mail.deliver_signal, self.key, signal, value), wakes=True)

    def cancel(self) -> None:
        """Cancels the run: its code may clean up."""
        self._session.ask(mail.cancel_run(self.key, "cancelled"), wakes=True)

    def status(self) -> Status:
        """What the run is doing."""
        return cast("Status", self._session.ask(result.run_status(self.key)))

    def state(self) -> dict[str, Any]:
        """What the run last said of itself with ``set_state``."""
        return self._session.ask(result.run_state(self.key))

    def stream(self, name: str, *, offset: int = 0) -> Iterator[Any]:
        """Yields what the run emits to a stream, from an offset, until the run has ended.

        Args:
            name: The stream.
            offset: How many values to skip.
        """
        cursor, skip, ended = (0, 0), offset, False
        while True:
            page = self._session.ask(result.read_stream(self.key, name, cursor, skip, STREAM_PAGE))
            for item in page:
                cursor, skip = (item.run_id, item.seq), 0
                yield ANYTHING.decode(item.value, "a value of a stream")
            if not page:
                if ended:
                    return
                ended = self._has_ended()

    def _has_ended(self) -> bool:
        """Waits a moment for the end: nothing can be emitted after it."""
        try:
            self._session.wait(self.key, self._session.ask(result.find_chain(self.key)), timedelta(seconds=0.1))
        except TimeoutError:
            return False
        return True


def signal_query(send: Callable[[str, str, str], Query[mail.Sent]], key: str, signal: Signal[T], value: T) -> Query[mail.Sent]:
    """A signal on its way: the payload is checked to be readable by the receiver."""
    what = f"the payload of signal {signal.name!r}"
    text = signal.codec.encode(value, what)
    signal.codec.decode(text, what)
    return send(key, signal.name, text)


class Client(Rewinds):
    """Starts and signals runs; one bound to a connection does so in its open transaction."""

    _interceptors: list[Interceptor]
    _errors: tuple[type[Exception], ...]
    _send_signal: Callable[[str, str, str], Query[mail.Sent]] = staticmethod(mail.deliver_signal)

    def _ask(self, query: Query[T], *, wakes: bool = False) -> T:
        raise NotImplementedError

    def _session(self) -> Session:
        raise NotImplementedError

    def _started(self, started: start.Started) -> None:
        """A run was started: whoever could work on it should hear of it once it is committed."""

    def _run_handle(self, key: str, workflow: Workflow[..., Any], chain_id: int | None = None) -> Run[Any]:
        outcome: Outcome[Any] = Outcome(key, workflow.result_codec, ErrorClasses(self._errors, workflow.raises))
        return Run(self._session(), outcome, chain_id)

    def start(self, workflow: Workflow[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Run[R]:
        """Starts a run.

        Args:
            workflow: The workflow, perhaps with ``.options(key=...)``.
            *args: Its arguments.
            **kwargs: The same by name.

        Returns:
            A handle. With a key that names a run of the same workflow and input, the handle of that run.

        Raises:
            KeyConflict: The key names another run.
            DefinitionError: Its parameters or result cannot be stored.
            NotStorable: An argument does not fit its annotation.
        """
        workflow.check_definition()
        options = effective_options(workflow, self._interceptors)
        started = self._ask(start.start_run(workflow.name, workflow.encode_input(args, kwargs), options))
        if started.is_new:
            self._started(started)
        return self._run_handle(started.key, workflow, started.chain_id)

    def send(self, key: str, signal: Signal[T], value: T) -> None:
        """Sends a signal to a run; RunNotFound if no run has the key."""
        self._ask(signal_query(self._send_signal, key, signal, value), wakes=True)

    def answer(self, gate: str, answer: Answer, *, by: str) -> None:
        """Answers a gate. Declared now; gates are not built yet."""
        raise NotBuiltError(f"gates are not built yet: answer({gate!r}, {answer!r}, by={by!r})")

    def publish(self, topic: str, payload: Any, *, key: str | None = None) -> None:
        """Publishes to the outbox. Declared now; the outbox is not built yet."""
        del payload
        raise NotBuiltError(f"the outbox is not built yet: publish({topic!r}, key={key!r})")

    def cancel(self, key: str, *, why: str = "cancelled") -> None:
        """Cancels a run: its code may clean up; RunNotFound if no run has the key."""
        self._ask(mail.cancel_run(key, why), wakes=True)

    def settle_effect(
        self, effect_key: str, verdict: Literal["confirmed", "failed", "absent"], value: Any = None, *, why: str = "", by: str | None = None
    ) -> None:
        """Says what became of an effect whose outcome is unknown, or that was accepted.

        Args:
            effect_key: Its idempotency key, as ``pgflow.obligations`` shows it.
            verdict: ``confirmed``, ``failed``, or ``absent``: nothing was done, and it may be tried again.
            value: The result, where it is confirmed: anything JSON that its annotation reads.
            why: How this is known.
            by: Who says so.

        Raises:
            RunNotFound: No open effect has the key.
            WrongState: It is under way.
        """
        text = encode_plain(value, "the result of an effect")
        self._ask(effects.settle_effect(effect_key, verdict, text, why, by), wakes=True)

    def confirm_effect(
        self, ref: str, verdict: Literal["confirmed", "failed"] = "confirmed", value: Any = None, *, why: str = "", by: str | None = None
    ) -> None:
        """Says what became of the effect that was accepted under a reference: for the handler of a webhook.

        Args:
            ref: The counterparty's reference, as in ``Accepted(ref)``.
            verdict: ``confirmed`` or ``failed``.
            value: What the counterparty says of it; anything JSON.
            why: How this is known.
            by: Who says so.

        Raises:
            RunNotFound: No effect was accepted under the reference, or not yet: have the counterparty send again.
        """
        text = encode_plain(value, "the confirmation of an effect")
        self._ask(effects.confirm_effect(ref, verdict, text, why, by), wakes=True)


# ---------------------------------------------------------------- async


class AsyncSession(Protocol):
    """What an async client's handles need of it."""

    async def ask(self, query: Query[T], *, wakes: bool = False) -> T:
        """Runs a query; ``wakes``: it sends a message, and answers whom to wake."""

    async def wait(self, key: str, chain_id: int, timeout: timedelta | None) -> result.Ended:
        """Waits until a chain has ended."""


class AsyncRun(Generic[R_co]):
    """Handle of a run; see :class:`Run`.

    Attributes:
        key: The run's public key.
    """

    key: str

    def __init__(self, session: AsyncSession, outcome: Outcome[R_co], chain_id: int | None = None) -> None:
        self.key = outcome.key
        self._session = session
        self._outcome = outcome
        self._chain_id = chain_id

    def __repr__(self) -> str:
        """As in logs."""
        return f"<AsyncRun {self.key!r}>"

    async def result(self, timeout: timedelta | None = None) -> R_co:
        """Waits for the run to end and returns its value; see :meth:`Run.result`."""
        chain_id = self._chain_id
        if chain_id is None:
            chain_id = await self._session.ask(result.find_chain(self.key))
        return self._outcome.read(await self._session.wait(self.key, chain_id, timeout))

    async def send(self, signal: Signal[T], value: T) -> None:
        """Sends a signal to the run."""
        await self._session.ask(signal_query(mail.deliver_signal, self.key, signal, value), wakes=True)

    async def cancel(self) -> None:
        """Cancels the run: its code may clean up."""
        await self._session.ask(mail.cancel_run(self.key, "cancelled"), wakes=True)

    async def status(self) -> Status:
        """What the run is doing."""
        return cast("Status", await self._session.ask(result.run_status(self.key)))

    async def state(self) -> dict[str, Any]:
        """What the run last said of itself with ``set_state``."""
        return await self._session.ask(result.run_state(self.key))

    async def stream(self, name: str, *, offset: int = 0) -> AsyncIterator[Any]:
        """Yields what the run emits to a stream; see :meth:`Run.stream`."""
        cursor, skip, ended = (0, 0), offset, False
        while True:
            page = await self._session.ask(result.read_stream(self.key, name, cursor, skip, STREAM_PAGE))
            for item in page:
                cursor, skip = (item.run_id, item.seq), 0
                yield ANYTHING.decode(item.value, "a value of a stream")
            if not page:
                if ended:
                    return
                ended = await self._has_ended()

    async def _has_ended(self) -> bool:
        try:
            await self._session.wait(self.key, await self._session.ask(result.find_chain(self.key)), timedelta(seconds=0.1))
        except TimeoutError:
            return False
        return True


class AsyncClient(AsyncRewinds):
    """Starts and signals runs; see :class:`Client`."""

    _interceptors: list[Interceptor]
    _errors: tuple[type[Exception], ...]
    _send_signal: Callable[[str, str, str], Query[mail.Sent]] = staticmethod(mail.deliver_signal)

    async def _ask(self, query: Query[T], *, wakes: bool = False) -> T:
        raise NotImplementedError

    def _session(self) -> AsyncSession:
        raise NotImplementedError

    def _started(self, started: start.Started) -> None:
        """A run was started: whoever could work on it should hear of it once it is committed."""

    def _run_handle(self, key: str, workflow: Workflow[..., Any], chain_id: int | None = None) -> AsyncRun[Any]:
        outcome: Outcome[Any] = Outcome(key, workflow.result_codec, ErrorClasses(self._errors, workflow.raises))
        return AsyncRun(self._session(), outcome, chain_id)

    async def start(self, workflow: Workflow[P, R], /, *args: P.args, **kwargs: P.kwargs) -> AsyncRun[R]:
        """Starts a run; see :meth:`Client.start`."""
        workflow.check_definition()
        options = effective_options(workflow, self._interceptors)
        started = await self._ask(start.start_run(workflow.name, workflow.encode_input(args, kwargs), options))
        if started.is_new:
            self._started(started)
        return self._run_handle(started.key, workflow, started.chain_id)

    async def send(self, key: str, signal: Signal[T], value: T) -> None:
        """Sends a signal to a run; RunNotFound if no run has the key."""
        await self._ask(signal_query(self._send_signal, key, signal, value), wakes=True)

    async def answer(self, gate: str, answer: Answer, *, by: str) -> None:
        """Answers a gate. Declared now; gates are not built yet."""
        raise NotBuiltError(f"gates are not built yet: answer({gate!r}, {answer!r}, by={by!r})")

    async def publish(self, topic: str, payload: Any, *, key: str | None = None) -> None:
        """Publishes to the outbox. Declared now; the outbox is not built yet."""
        del payload
        raise NotBuiltError(f"the outbox is not built yet: publish({topic!r}, key={key!r})")

    async def cancel(self, key: str, *, why: str = "cancelled") -> None:
        """Cancels a run: its code may clean up; RunNotFound if no run has the key."""
        await self._ask(mail.cancel_run(key, why), wakes=True)

    async def settle_effect(
        self, effect_key: str, verdict: Literal["confirmed", "failed", "absent"], value: Any = None, *, why: str = "", by: str | None = None
    ) -> None:
        """Says what became of an effect whose outcome is unknown, or that was accepted; see :meth:`Client.settle_effect`."""
        text = encode_plain(value, "the result of an effect")
        await self._ask(effects.settle_effect(effect_key, verdict, text, why, by), wakes=True)

    async def confirm_effect(
        self, ref: str, verdict: Literal["confirmed", "failed"] = "confirmed", value: Any = None, *, why: str = "", by: str | None = None
    ) -> None:
        """Says what became of the effect that was accepted under a reference; see :meth:`Client.confirm_effect`."""
        text = encode_plain(value, "the confirmation of an effect")
        await self._ask(effects.confirm_effect(ref, verdict, text, why, by), wakes=True)


def step_scope_of(connection: Any) -> StepScope | None:
    """The transactional step whose own connection this is, if the caller is in one."""
    scope = current.get()
    return scope if isinstance(scope, StepScope) and scope.connection is connection else None


__all__ = ["Answer", "AsyncClient", "AsyncRun", "Client", "Run", "new_key"]
