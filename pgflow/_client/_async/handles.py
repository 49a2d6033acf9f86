"""Handles of runs: the operations of a client on a run."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any, ParamSpec, TypeVar, cast, overload

from pgflow._client._async.session import AsyncSession
from pgflow._client._async.updates import AsyncSentUpdate
from pgflow._client.handles import Handle, Position, signal_query
from pgflow._client.updates import bound, update_query
from pgflow._db.calls import mail, result, updates
from pgflow._flow.messages import delivery_of
from pgflow._flow.signals import Signal
from pgflow._flow.updates import QueryHandler, UpdateHandler
from pgflow._model.durations import Duration
from pgflow._model.kinds import Status
from pgflow._model.messages import Delivery

R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")
P = ParamSpec("P")
V = TypeVar("V")


class AsyncRun(Handle[AsyncSession, R_co]):
    """Handle of a run.

    Attributes:
        key: The run's public key.
    """

    async def result(self, timeout: Duration | None = None) -> R_co:
        """Wait for the run to end and return its value.

        Args:
            timeout: Longest time to wait.

        Raises:
            RunFailed: The workflow raised an error, which is the ``__cause__``.
            RunCancelled: The run was cancelled.
            RunStuck: The run cannot go on without a person.
            RunNotFound: The run does not exist: its start was rolled back or lost in a failover, or
                its history was removed.
            CodecError: The app lacks the key that encoded its result.
            TimeoutError: The run did not end within ``timeout``.
        """
        chain_id = self._chain_id
        if chain_id is None:
            chain_id = await self._session.ask(result.find_chain(self.key))
        return self._outcome.read(await self._session.wait(self.key, chain_id, timeout))

    async def send(
        self, signal: Signal[T], value: T, *, idempotency_key: str | None = None
    ) -> Delivery:
        """Send a signal to the run; see :meth:`pgflow.AsyncApp.send`."""
        query = signal_query(
            mail.deliver_signal, self.key, signal, value, idempotency_key, self._outcome.envelopes
        )
        return delivery_of(await self._session.ask(query, wakes=True))

    async def cancel(self, *, why: str = "cancelled", by: str | None = None) -> None:
        """Cancel the run. Its code may clean up.

        Args:
            why: Reason, kept with the run.
            by: Name of the person or service that asks; the session's role is recorded too.
        """
        await self._session.ask(mail.cancel_run(self.key, why, sent_by=by), wakes=True)

    async def status(self) -> Status:
        """Return the status of the run."""
        return cast("Status", await self._session.ask(result.run_status(self.key)))

    async def state(self) -> dict[str, Any]:
        """Return the values that the run last set with ``set_state``."""
        return self._opened(await self._session.ask(result.run_state(self.key)))

    @overload
    async def query(self, name: str, /, type: type[T] | None = None) -> T: ...
    @overload
    async def query(self, name: QueryHandler[P, V], /, *args: P.args, **kwargs: P.kwargs) -> V: ...
    async def query(self, name: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Return the value that the run last published under a name with ``set_state``, or the
        answer of a query to all that it has published. It reads the database without waking the
        run.

        Args:
            name: Name of the value, or a function that ``@workflow.query`` has made.
            *args: Class of the value (``type``), None to return the decoded JSON; or the arguments
                of the query, without the state.
            **kwargs: The same by name.

        Raises:
            RunNotFound: The run does not exist.
            InvalidArgument: The run has published no value under the name.
            NotStorable: The value is not of the type.
        """
        if isinstance(name, QueryHandler):
            return name.answer(await self.state(), args, kwargs)
        return self._published(
            name, await self._session.ask(updates.query(self.key, name)), *args, **kwargs
        )

    async def execute_update(
        self, update: UpdateHandler[P, V], /, *args: P.args, **kwargs: P.kwargs
    ) -> V:
        """Send an update to the run and wait for the answer.

        Args:
            update: The handler, perhaps with ``.options(update_id=)``.
            *args: Its arguments, without the state.
            **kwargs: The same by name.

        Raises:
            UpdateFailed: The handler raised an error, which is the ``__cause__``.
            UpdateRejected: The validator raised, or the handler does not exist. Nothing was done.
            UpdateRefused: The run ended before it answered.
            KeyConflict: Another update of this run has the id.
            RunNotFound: The run does not exist.
            RunStuck: The run cannot go on without a person.
            NotStorable: An argument does not fit its annotation.
        """
        return await (await self.start_update(update, *args, **kwargs)).result()

    async def start_update(
        self, update: UpdateHandler[P, V], /, *args: P.args, **kwargs: P.kwargs
    ) -> AsyncSentUpdate[V]:
        """Send an update to the run without waiting for the answer. On return, it is in the run's
        mailbox.

        Args:
            update: The handler, perhaps with ``.options(update_id=)``.
            *args: Its arguments, without the state.
            **kwargs: The same by name.

        Returns:
            A handle, whose ``result()`` waits for the answer.

        Raises:
            KeyConflict: Another update of this run has the id.
            RunNotFound: The run does not exist.
            NotStorable: An argument does not fit its annotation.
        """
        sent = bound(update, args, kwargs)
        await self._session.ask(update_query(self._outcome, sent), wakes=True)
        return AsyncSentUpdate(self._session, self._outcome, sent)

    async def stream(self, name: str, *, offset: int = 0, live: bool = False) -> AsyncIterator[Any]:
        """Yield the values that the run emits to a stream, from an offset, until the run closes the
        stream or ends.

        Values dropped by a rewind are skipped. A reader that is ahead of the rewind continues with
        the values of the new generation.

        Args:
            name: The stream.
            offset: Number of values to skip.
            live: True to yield values of running steps before the steps complete. If an attempt
                fails, its values are void and those of the next attempt follow, so each valid value
                is yielded at least once.

        Raises:
            RunStuck: The run cannot go on without a person, and all its values have been read.
            RunNotFound: The run does not exist, or its history was removed.
        """
        position = Position(self.key, name, offset, self._outcome.envelopes)
        while True:
            for value in position.take(await self._session.ask(position.query())):
                yield value
            if not position.has_moved:
                for value in (
                    position.take_drafts(await self._session.ask(position.draft_query()))
                    if live
                    else ()
                ):
                    yield value
                if position.is_at_end:
                    return
                position.is_at_end = await self._has_ended()

    async def _has_ended(self) -> bool:
        """Wait a moment for the end, after which nothing is emitted."""
        try:
            chain_id = await self._session.ask(result.find_chain(self.key))
            self._outcome.check_end(
                await self._session.wait(self.key, chain_id, timedelta(seconds=0.1))
            )
        except TimeoutError:
            return False
        return True
