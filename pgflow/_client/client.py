"""Clients, in both colours: starting runs, and saying something to them.

What a call says to the database is written once, in ``pgflow/_db/calls``; what a run came to is read once, in
``pgflow/handles``. The two colours only run it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Literal, ParamSpec, TypeVar

from pgflow._client.handles import AsyncRun, AsyncSession, Outcome, Run, Session, delivery_of, signal_query
from pgflow._client.mailbox import AsyncMailbox, Mailbox
from pgflow._client.rewind import stored_value
from pgflow._client.starts import effective_options, new_keys, start_id_of, stored_defaults, stored_input, stored_options
from pgflow._db.calls import effects, mail, start
from pgflow._db.query import Query
from pgflow._flow.interceptor import Interceptor
from pgflow._flow.scope import StepScope, current
from pgflow._flow.signals import Signal
from pgflow._flow.workflow import Workflow
from pgflow._model.envelopes import Envelopes
from pgflow._model.gates import Approve, Escalate, Reject
from pgflow._model.messages import Delivery
from pgflow.errors import InvalidArgument, NotBuiltError

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

Verdict = Literal["confirmed", "failed", "absent", "taken_back", "stands"]
"""Outcome that a person may state for an effect."""

Answer = Approve | Reject | Escalate
"""Answer to a gate."""


def _start_query(
    workflow: Workflow[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], interceptors: Iterable[Interceptor],
    envelopes: Envelopes | None,
) -> Query[start.Started]:
    """Starts one run; it always has a key, so that it can be sent again."""
    workflow.check_definition()
    options = stored_options(effective_options(workflow, interceptors), envelopes)
    text = stored_input(workflow, args, kwargs, options.key, envelopes)
    if options.key is None:
        if options.if_taken != "match":
            raise InvalidArgument(f"if_taken={options.if_taken!r} is said of a key: pass options(key=...) too")
        return start.start_run(workflow.name, text, replace(options, key=new_keys(1)[0]))
    return start.start_run(
        workflow.name, text, options, defaults=stored_defaults(workflow, envelopes), start_id=start_id_of(options)
    )


def _beat_query(ref: str, details: Any, envelopes: Envelopes | None) -> Query[None]:
    return effects.beat_effect(ref, None if details is None else stored_value(envelopes, details, "the details of a beat"))


# ---------------------------------------------------------------- sync


class Client(Mailbox):
    """Starts and signals runs; one bound to a connection does so in its open transaction."""

    _interceptors: list[Interceptor]
    _errors: tuple[type[Exception], ...]
    _send_signal: Callable[..., Query[mail.Sent]] = staticmethod(mail.deliver_signal)

    def _ask(self, query: Query[T], *, wakes: bool = False, once: bool = False) -> T:
        """Runs a query; if the connection is lost meanwhile, again, but not one that wakes, or that must not happen twice (``once``)."""
        raise NotImplementedError

    def _session(self) -> Session:
        raise NotImplementedError

    def _started(self, started: start.Started) -> None:
        """A run was started: whoever could work on it should hear of it once it is committed."""

    def _run_handle(self, key: str, workflow: Workflow[..., Any], chain_id: int | None = None) -> Run[Any]:
        outcome: Outcome[Any] = Outcome(key, workflow.result_codec, self._errors, workflow.raises, envelopes=self._envelopes)
        return Run(self._session(), outcome, chain_id)

    def start(self, workflow: Workflow[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Run[R]:
        """Starts a run.

        Args:
            workflow: The workflow, perhaps with ``.options(key=...)``.
            *args: Its arguments.
            **kwargs: The same by name.

        Returns:
            A handle. With a key that names a run of the same workflow and input, the handle of that run; ``options(if_taken=)``
            says what else may be done then. A parameter that is left out is the same as its default.

        Raises:
            KeyConflict: The key names another run; the message says what that is doing and what is different.
            DefinitionError: Its parameters or result cannot be stored.
            NotStorable: An argument does not fit its annotation.
        """
        started = self._ask(_start_query(workflow, args, kwargs, self._interceptors, self._envelopes))
        if started.is_new:
            self._started(started)
        return self._run_handle(started.key, workflow, started.chain_id)

    def send(self, key: str, signal: Signal[T], value: T, *, idempotency_key: str | None = None) -> Delivery:
        """Sends a signal to a run.

        Args:
            key: Key of the run.
            signal: The signal.
            value: Its payload.
            idempotency_key: The same key to the same run is one message, however late it is sent again: for as long as the
                history of the run is kept. In a step, ``pgflow.idempotency_key()`` is one.

        Returns:
            What became of it: it is in the mailbox of the run, or the run had ended and will not take it.

        Raises:
            RunNotFound: No run has the key.
            NotStorable: The payload does not fit the signal's type.
        """
        return delivery_of(self._ask(signal_query(self._send_signal, key, signal, value, idempotency_key, self._envelopes), wakes=True))

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
        self, effect_key: str, verdict: Verdict, value: Any = None, *, why: str = "", by: str | None = None
    ) -> None:
        """Says what became of an effect whose outcome is unknown, or that was accepted.

        Args:
            effect_key: Its idempotency key, as ``pgflow.obligations`` shows it.
            verdict: ``confirmed``, ``failed``, or ``absent``: nothing was done, and it may be tried again. Of an effect that a run
                ended by force has left ``uncompensated``: ``taken_back`` by other means, or ``stands``.
            value: The result, where it is confirmed: anything JSON that its annotation reads.
            why: Reason for the verdict.
            by: Name of whoever says so.

        Raises:
            RunNotFound: No open effect has the key.
            WrongState: It is under way; or the verdict is none on an effect in its state.
        """
        text = stored_value(self._envelopes, value, "the result of an effect")
        self._ask(effects.settle_effect(effect_key, verdict, text, why, by), wakes=True)

    def confirm_effect(
        self, ref: str, verdict: Literal["confirmed", "failed"] = "confirmed", value: Any = None, *, why: str = "", by: str | None = None
    ) -> None:
        """Says what became of the effect that was accepted under a reference: for the handler of a webhook.

        Args:
            ref: The counterparty's reference, as in ``Accepted(ref)``.
            verdict: ``confirmed`` or ``failed``.
            value: Answer of the counterparty; anything JSON.
            why: Reason for the verdict.
            by: Name of whoever says so.

        Raises:
            RunNotFound: No effect was accepted under the reference, or not yet: have the counterparty send again.
        """
        text = stored_value(self._envelopes, value, "the confirmation of an effect")
        self._ask(effects.confirm_effect(ref, verdict, text, why, by), wakes=True)

    def beat_effect(self, ref: str, details: Any = None) -> None:
        """Says that the effect which was accepted under a reference goes on: for whoever does the work outside.

        Args:
            ref: The counterparty's reference, as in ``Accepted(ref, heartbeat_timeout=...)``.
            details: Progress; anything JSON, at most 64 KiB. None leaves that of the last beat.

        Raises:
            RunNotFound: No effect was accepted under the reference, or it is closed.
            WrongState: No beat came in time, so its outcome is unknown; or it was accepted without ``heartbeat_timeout``.
            InvalidArgument: The details are too long.
        """
        self._ask(_beat_query(ref, details, self._envelopes))


# ---------------------------------------------------------------- async


class AsyncClient(AsyncMailbox):
    """Starts and signals runs; see :class:`Client`."""

    _interceptors: list[Interceptor]
    _errors: tuple[type[Exception], ...]
    _send_signal: Callable[..., Query[mail.Sent]] = staticmethod(mail.deliver_signal)

    async def _ask(self, query: Query[T], *, wakes: bool = False, once: bool = False) -> T:
        raise NotImplementedError

    def _session(self) -> AsyncSession:
        raise NotImplementedError

    def _started(self, started: start.Started) -> None:
        """A run was started: whoever could work on it should hear of it once it is committed."""

    def _run_handle(self, key: str, workflow: Workflow[..., Any], chain_id: int | None = None) -> AsyncRun[Any]:
        outcome: Outcome[Any] = Outcome(key, workflow.result_codec, self._errors, workflow.raises, envelopes=self._envelopes)
        return AsyncRun(self._session(), outcome, chain_id)

    async def start(self, workflow: Workflow[P, R], /, *args: P.args, **kwargs: P.kwargs) -> AsyncRun[R]:
        """Starts a run; see :meth:`Client.start`."""
        started = await self._ask(_start_query(workflow, args, kwargs, self._interceptors, self._envelopes))
        if started.is_new:
            self._started(started)
        return self._run_handle(started.key, workflow, started.chain_id)

    async def send(self, key: str, signal: Signal[T], value: T, *, idempotency_key: str | None = None) -> Delivery:
        """Sends a signal to a run; see :meth:`Client.send`."""
        query = signal_query(self._send_signal, key, signal, value, idempotency_key, self._envelopes)
        return delivery_of(await self._ask(query, wakes=True))

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
        self, effect_key: str, verdict: Verdict, value: Any = None, *, why: str = "", by: str | None = None
    ) -> None:
        """Says what became of an effect whose outcome is unknown, or that was accepted; see :meth:`Client.settle_effect`."""
        text = stored_value(self._envelopes, value, "the result of an effect")
        await self._ask(effects.settle_effect(effect_key, verdict, text, why, by), wakes=True)

    async def confirm_effect(
        self, ref: str, verdict: Literal["confirmed", "failed"] = "confirmed", value: Any = None, *, why: str = "", by: str | None = None
    ) -> None:
        """Says what became of the effect that was accepted under a reference; see :meth:`Client.confirm_effect`."""
        text = stored_value(self._envelopes, value, "the confirmation of an effect")
        await self._ask(effects.confirm_effect(ref, verdict, text, why, by), wakes=True)

    async def beat_effect(self, ref: str, details: Any = None) -> None:
        """Says that the effect which was accepted under a reference goes on; see :meth:`Client.beat_effect`."""
        await self._ask(_beat_query(ref, details, self._envelopes))


def step_scope_of(connection: Any) -> StepScope | None:
    """The transactional step whose own connection this is, if the caller is in one."""
    scope = current.get()
    return scope if isinstance(scope, StepScope) and scope.connection is connection else None


__all__ = ["Answer", "AsyncClient", "Client"]
