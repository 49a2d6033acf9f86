"""Handles of runs, in both colours: what a client can do with a run, and how it reads what the run came to."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any, Generic, Protocol, TypeVar, cast

from pgflow._calls import mail, result
from pgflow._io import Query
from pgflow.context import Signal
from pgflow.errors import RunCancelled, RunFailed, RunStuck
from pgflow.failures import ErrorClasses, rebuild_error
from pgflow.model import Delivery, EndedAs, Status
from pgflow.values import ANYTHING, Codec

R_co = TypeVar("R_co", covariant=True)
S = TypeVar("S")
T = TypeVar("T")

STREAM_PAGE = 500


class Outcome(Generic[R_co]):
    """How a client reads what a run came to."""

    def __init__(self, key: str, codec: Codec[Any], *errors: Sequence[type[Exception]]) -> None:
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
        cause = rebuild_error(data, ErrorClasses(*self.errors))
        raise RunFailed(f"run {self.key!r} failed: {data.get('type')}: {data.get('message')}") from cause


class _Handle(Generic[S, R_co]):
    """What a handle knows in either colour: ``S`` is the session that asks for it."""

    key: str

    def __init__(self, session: S, outcome: Outcome[R_co], chain_id: int | None = None) -> None:
        self.key = outcome.key
        self._session = session
        self._outcome = outcome
        self._chain_id = chain_id

    def __repr__(self) -> str:
        """As in logs."""
        return f"<{type(self).__name__} {self.key!r}>"


def signal_query(send: Callable[[str, str, str], Query[mail.Sent]], key: str, signal: Signal[T], value: T) -> Query[mail.Sent]:
    """A signal on its way: the payload is checked to be readable by the receiver."""
    what = f"the payload of signal {signal.name!r}"
    text = signal.codec.encode(value, what)
    signal.codec.decode(text, what)
    return send(key, signal.name, text)


def delivery_of(sent: mail.Sent) -> Delivery:
    """What a sender is told."""
    return Delivery(sent.message_id, cast("EndedAs | None", sent.ended_as))


# ---------------------------------------------------------------- sync


class Session(Protocol):
    """What a sync client's handles need of it."""

    def ask(self, query: Query[T], *, wakes: bool = False) -> T:
        """Runs a query; ``wakes``: it sends a message, and answers whom to wake."""

    def wait(self, key: str, chain_id: int, timeout: timedelta | None) -> result.Ended:
        """Waits until a chain has ended."""


class Run(_Handle[Session, R_co]):
    """Handle of a run.

    Attributes:
        key: The run's public key.
    """

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

    def send(self, signal: Signal[T], value: T) -> Delivery:
        """Sends a signal to the run; see :meth:`pgflow.App.send`."""
        return delivery_of(self._session.ask(signal_query(mail.deliver_signal, self.key, signal, value), wakes=True))

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


# ---------------------------------------------------------------- async


class AsyncSession(Protocol):
    """What an async client's handles need of it."""

    async def ask(self, query: Query[T], *, wakes: bool = False) -> T:
        """Runs a query; ``wakes``: it sends a message, and answers whom to wake."""

    async def wait(self, key: str, chain_id: int, timeout: timedelta | None) -> result.Ended:
        """Waits until a chain has ended."""


class AsyncRun(_Handle[AsyncSession, R_co]):
    """Handle of a run; see :class:`Run`.

    Attributes:
        key: The run's public key.
    """

    async def result(self, timeout: timedelta | None = None) -> R_co:
        """Waits for the run to end and returns its value; see :meth:`Run.result`."""
        chain_id = self._chain_id
        if chain_id is None:
            chain_id = await self._session.ask(result.find_chain(self.key))
        return self._outcome.read(await self._session.wait(self.key, chain_id, timeout))

    async def send(self, signal: Signal[T], value: T) -> Delivery:
        """Sends a signal to the run; see :meth:`pgflow.App.send`."""
        return delivery_of(await self._session.ask(signal_query(mail.deliver_signal, self.key, signal, value), wakes=True))

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
