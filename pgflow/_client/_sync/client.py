# Made by tools/colours.py from pgflow/_client/_async/client.py; edit that one.
"""Clients: start runs, and send them messages.

Calls to the database are built in ``pgflow/_db/calls``. Results of runs are read in
``pgflow/_client/handles``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, ParamSpec, TypeVar

from pgflow._client._sync.batches import Batches
from pgflow._client._sync.gates import Gates
from pgflow._client._sync.handles import Run
from pgflow._client._sync.obligations import Obligations
from pgflow._client._sync.schedules import Schedules
from pgflow._client._sync.session import Session
from pgflow._client._sync.updates import SentUpdate
from pgflow._client.handles import Outcome, signal_query
from pgflow._client.starts import NO_CLUSTER, StartedRun, named_start_query, start_query
from pgflow._client.updates import update_query
from pgflow._client.values import stored_value
from pgflow._db.calls import effects, entities, mail, outbox, policy, seals, start, updates
from pgflow._db.calls.effects import Verdict
from pgflow._db.calls.seals import RedactedPart
from pgflow._db.query import Query, Steps
from pgflow._flow.entities import Snapshot, Update, check_entity_key, entity_of
from pgflow._flow.events import encode_event
from pgflow._flow.interceptor import Interceptor
from pgflow._flow.messages import delivery_of
from pgflow._flow.signals import Signal
from pgflow._flow.updates import BoundUpdate
from pgflow._flow.workflow import Workflow
from pgflow._model.messages import Delivery
from pgflow._model.options import StartOptions
from pgflow.errors import InvalidArgument, WrongState

RUNS_A_ROUND = 500
"""Runs that are sealed in one transaction."""

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
V = TypeVar("V")


class Client(Obligations, Gates, Schedules, Batches):
    """Starts and signals runs; one bound to a connection does so in its open transaction."""

    _interceptors: list[Interceptor]
    _errors: tuple[type[Exception], ...]
    _send_signal: Callable[..., Query[mail.Sent]] = staticmethod(mail.deliver_signal)
    _cancel_run: Callable[..., Query[mail.Sent]] = staticmethod(mail.cancel_run)

    def _session(self) -> Session:
        raise NotImplementedError

    def _perform(self, make: Callable[[int], Steps[T]], *, once: bool) -> T:
        """Run statements in one transaction. With ``once``, do not repeat them if the transaction
        is lost. ``make`` gets the server's idle timeout in milliseconds.
        """
        raise NotImplementedError

    def _at(self, starting: start.StartQuery) -> Client:
        """Return the client of the node that a run is to be started on."""
        if starting.options.is_placed:
            raise InvalidArgument(NO_CLUSTER)
        return self

    def _run_handle(
        self, key: str, workflow: Workflow[..., Any], chain_id: int | None = None
    ) -> Run[Any]:
        outcome: Outcome[Any] = Outcome(
            key, workflow.result_codec, self._errors, workflow.raises, envelopes=self._envelopes
        )
        return Run(self._session(), outcome, chain_id)

    def start(self, workflow: Workflow[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Run[R]:
        """Start a run.

        Args:
            workflow: The workflow, perhaps with ``.options(key=...)``.
            *args: Its arguments.
            **kwargs: The same by name.

        Returns:
            A handle. With a key that names a run of the same workflow and input, the handle of that
            run; ``options(if_taken=)`` says what else may be done then. A parameter that is left
            out is the same as its default.

        Raises:
            KeyConflict: The key names another run;
                the message says what that is doing and what is different.
            DefinitionError: Its parameters or result cannot be stored.
            NotStorable: An argument does not fit its annotation.
        """
        starting = start_query(workflow, args, kwargs, self._interceptors, self._envelopes)
        client = self._at(starting)
        started = client._ask(starting)
        if started.is_new:
            client._started(started)
        return client._run_handle(started.key, workflow, started.chain_id)

    def start_by_name(
        self,
        workflow: str,
        arguments: dict[str, Any],
        options: StartOptions = StartOptions(),  # noqa: B008 - it is frozen
        *,
        defaults: str | None = None,
    ) -> StartedRun:
        """Start a run of a workflow whose code is elsewhere.

        Args:
            workflow: Name of the workflow.
            arguments: Its arguments by name, as JSON.
            options: Options of the start; see :meth:`pgflow.Workflow.options`.
            defaults: Defaults of its parameters as a JSON object, if its code is known: with a key,
                a parameter that is left out is the same as its default.

        Raises:
            KeyConflict: The key names another run.
        """
        starting = named_start_query(workflow, arguments, options, defaults, self._envelopes)
        client = self._at(starting)
        started = client._ask(starting)
        if started.is_new:
            client._started(started)
        return StartedRun(started.key, started.is_new, started.replaced is not None)

    def send(
        self,
        key: str,
        signal: Signal[T],
        value: T,
        *,
        idempotency_key: str | None = None,
        by: str | None = None,
    ) -> Delivery:
        """Send a signal to a run.

        Args:
            key: Key of the run.
            signal: The signal.
            value: Its payload.
            idempotency_key: Key that deduplicates the message. Sending it to the same run again has
                no effect, for as long as the run's history is kept. In a step, use
                ``pgflow.idempotency_key()``.
            by: Name of the sender; the database role by default.

        Returns:
            The delivery: the signal is in the run's mailbox, or the run had already ended and will
            not take it.

        Raises:
            RunNotFound: No run has the key.
            NotStorable: The payload does not fit the signal's type.
        """
        query = signal_query(
            self._send_signal, key, signal, value, idempotency_key, self._envelopes, by
        )
        return delivery_of(self._ask(query, wakes=True))

    def update_with_start(
        self,
        update: BoundUpdate[V],
        workflow: Workflow[P, R],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> SentUpdate[V]:
        """Start a run, unless the key has one, and send it an update, in one transaction.

        Args:
            update: The update with its arguments: ``add.bind("sku")``.
            workflow: The workflow, mostly with ``.options(key=..., if_taken="attach")``.
            *args: Its arguments.
            **kwargs: The same by name.

        Returns:
            A handle of the update, whose ``result()`` waits for the answer.

        Raises:
            KeyConflict: The key names another run, or the id of the update another update of it.
            NotStorable: An argument does not fit its annotation.
        """
        starting = start_query(workflow, args, kwargs, self._interceptors, self._envelopes)

        def steps(idle_timeout_ms: int) -> Steps[start.Started]:
            del idle_timeout_ms  # no other session waits for these locks
            started: start.Started = yield starting
            yield update_query(self._run_handle(started.key, workflow)._outcome, update)
            return started

        client = self._at(starting)
        started = client._perform(steps, once=False)
        client._started(started)
        client._started(started._replace(replaced=started.chain_id))  # the run may be parked for it
        run = client._run_handle(started.key, workflow, started.chain_id)
        return SentUpdate(client._session(), run._outcome, update)

    def update(self, update: Update[P, R], key: str, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Update an entity. The change and a row of its history are one commit.

        Args:
            update: The update, perhaps with ``.options(expect=, idempotency_key=)``.
            key: Key of the entity.
            *args: Arguments of the update.
            **kwargs: The same by name.

        Returns:
            Its verdict: what the update returned.

        Raises:
            VersionConflict: The entity has another version than expected.
            NotStorable: An argument does not fit its annotation.
        """
        text = update.encode_args(args, kwargs)
        verdict = self._perform(
            lambda idle_timeout_ms: update.statements(
                check_entity_key(key),
                text,
                self._envelopes,
                expect=update.expected,
                idempotency_key=update.idempotency_key,
                idle_timeout_ms=idle_timeout_ms,
            ),
            once=update.idempotency_key is None,
        )
        return update.result_codec.decode(verdict, f"the verdict of update {update.name}")

    def query(self, entity: type[T], key: str) -> Snapshot[T]:
        """Read an entity, without a lock.

        Args:
            entity: Class of its state.
            key: Key of the entity.

        Returns:
            Its state and version; its first state, and version 0, if nothing has changed it yet.
        """
        kind = entity_of(entity)
        stored = self._ask(entities.read_entity(kind.name, check_entity_key(key)))
        return kind.snapshot(stored, self._envelopes)

    def publish(self, topic: str, payload: Any, *, key: str | None = None) -> int:
        """Publish an event for relays to deliver. Through :meth:`App.using` it is part of the
        caller's transaction.

        Args:
            topic: Topic, to which relays listen.
            payload: Content; anything JSON.
            key: Events of one key are delivered in their order; None if any order will do.

        Returns:
            The number of the event.

        Raises:
            InvalidArgument: No event can have the topic or the key.
            NotStorable: The payload cannot be stored.
        """
        text = encode_event(topic, payload, key, self._envelopes)
        return self._ask(outbox.publish(topic, text, key), once=True)

    def cancel(
        self, key: str, *, why: str = "cancelled", by: str | None = None, force: bool = False
    ) -> None:
        """Cancel a run. Its code may clean up.

        Args:
            key: Key of the run.
            why: Reason, kept with the run.
            by: Name of the person or service that asks.
            force: True to end the run without running any more of its code. Effects that it has
                done and not compensated stay owed.

        Raises:
            RunNotFound: No run has the key.
            WrongState: The run has ended.
        """
        self._ask(self._cancel_run(key, why, sent_by=by, force=force), wakes=True)

    def pause(self, key: str, *, why: str = "paused", by: str | None = None) -> None:
        """Pause a run until :meth:`resume`."""
        self._ask(mail.pause_run(key, why, sent_by=by), wakes=True)

    def resume(self, key: str, *, why: str = "resumed", by: str | None = None) -> None:
        """Resume a paused or stuck run."""
        self._ask(mail.resume_run(key, why, sent_by=by), wakes=True)

    def send_update(
        self,
        key: str,
        name: str,
        arguments: dict[str, Any],
        *,
        update_id: str,
        by: str | None = None,
    ) -> None:
        """Send an update to a run by the name of its handler, without waiting for the answer:
        :func:`pgflow.inspect.read_reply` reads that.

        Args:
            key: Key of the run.
            name: Name of the handler.
            arguments: Its arguments by name.
            update_id: Id of the update. The same id to the same run is one update.
            by: Name of the person or service that asks.

        Raises:
            RunNotFound: No run has the key.
            KeyConflict: Another update of this run has the id.
        """
        what = f"the arguments of update {name}"
        text = stored_value(self._envelopes, arguments, what, update_id)
        self._ask(updates.send_update(key, name, text, update_id, sent_by=by), wakes=True)

    def settle_effect(
        self,
        effect_key: str,
        verdict: Verdict,
        value: Any = None,
        *,
        why: str = "",
        by: str | None = None,
    ) -> None:
        """Settle an effect whose outcome is unknown, or that was accepted.

        Args:
            effect_key: Its idempotency key, as ``pgflow.obligations`` shows it.
            verdict: ``confirmed``, ``failed``, or ``absent`` if nothing was done and the effect may
                be retried. For an effect left ``uncompensated`` by a forced end: ``taken_back`` if
                you undid it by other means, or ``stands`` to keep it.
            value: The result of a confirmed effect, as JSON that fits its annotation.
            why: Reason for the verdict.
            by: Name of the person or service that asks.

        Raises:
            RunNotFound: No open effect has the key.
            WrongState: The effect is in progress, or its state does not allow the verdict.
        """
        text = stored_value(self._envelopes, value, "the result of an effect")
        self._ask(effects.settle_effect(effect_key, verdict, text, why, by), wakes=True)

    def redact(
        self,
        key: str,
        seq: int | None = None,
        *,
        why: str,
        by: str | None = None,
        what: RedactedPart = "unit",
        generation: int | None = None,
    ) -> str:
        """Replace a value of a finished run by its hash, permanently. The seals of the run stay
        valid, and a unit of its journal records who did it and why.

        Args:
            key: Key of the run.
            seq: Place of the unit in its journal; None with another ``what``.
            why: Reason; kept in the journal.
            by: Name of the person or service that asks.
            what: ``unit``, ``input``, or ``result``: what the run returned or raised.
            generation: Generation of the run; None for the newest.

        Returns:
            The hash: SHA-256 of the value's JSON text, in hexadecimal.

        Raises:
            RunNotFound: No run has the key, or not this generation.
            InvalidArgument: The value does not exist, or ``why`` is empty.
            WrongState: The run, or a run that began with its journal, is open; or the value is
                already redacted.
        """
        return self._ask(seals.redact(key, seq, why, by, what, generation))

    def redact_update(self, key: str, update_id: str, *, why: str, by: str | None = None) -> int:
        """Replace all values of an update by their hashes, permanently: its arguments, and its
        value or error. This includes updates that were rejected or never taken.

        Args:
            key: Key of the run, which has ended.
            update_id: Id of the update.
            why: Reason; kept in the journal.
            by: Name of the person or service that asks.

        Returns:
            Number of values replaced.

        Raises:
            RunNotFound: No run has the key, or the run no update of this id.
            InvalidArgument: The reason is empty.
            WrongState: The run is open, or all values are already redacted.
        """
        return self._ask(seals.redact_update(key, update_id, why, by))

    def confirm_effect(
        self,
        ref: str,
        verdict: Literal["confirmed", "failed"] = "confirmed",
        value: Any = None,
        *,
        why: str = "",
        by: str | None = None,
    ) -> None:
        """Settle the effect that was accepted under a reference. Call it from the handler of a
        webhook or the consumer of a queue.

        You may call it more than once with the same verdict, even after the run has ended: the
        first call counts, with its value.

        Args:
            ref: The counterparty's reference, as in ``Accepted(ref)``.
            verdict: ``confirmed`` or ``failed``.
            value: Answer of the counterparty; anything JSON.
            why: Reason for the verdict.
            by: Name of the person or service that asks.

        Raises:
            RunNotFound: No effect was accepted under the reference yet. Have the counterparty send
                it again.
            WrongState: The effect already has the other verdict.
        """
        text = stored_value(self._envelopes, value, "the confirmation of an effect")
        self._ask(effects.confirm_effect(ref, verdict, text, why, by), wakes=True)

    def beat_effect(self, ref: str, details: Any = None) -> None:
        """Record a heartbeat of the effect that was accepted under a reference. The service that
        does the work outside calls it.

        Args:
            ref: The counterparty's reference, as in ``Accepted(ref, heartbeat_timeout=...)``.
            details: Progress, as JSON of at most 64 KiB. None keeps the details of the last beat.

        Raises:
            RunNotFound: No effect was accepted under the reference, or it is closed.
            WrongState: The last beat is too long ago, so the outcome is unknown; or the effect was
                accepted without ``heartbeat_timeout``.
            InvalidArgument: The details are too long.
        """
        text = (
            None
            if details is None
            else stored_value(self._envelopes, details, "the details of a beat")
        )
        self._ask(effects.beat_effect(ref, text))

    def set_policy(
        self, rules: Sequence[Mapping[str, Any]], *, why: str, by: str | None = None
    ) -> int:
        """Put a new version of the policy in force: the rules that decide which effects need
        approval.

        Args:
            rules: Its rules; the first that fits counts.
            why: The reason, kept with the version.
            by: Name of the person or service that asks.

        Returns:
            The number of the version.

        Raises:
            InvalidArgument: A rule is invalid.
        """
        text = stored_value(None, rules, "the rules of a policy")
        return self._ask(policy.set_policy(text, why, by))

    def set_sealing(self, *, is_on: bool, by: str | None = None) -> None:
        """Have workers seal the journal from now on, or nothing more. Existing seals stay.

        Args:
            is_on: True to seal.
            by: Name of the person or service that asks.
        """
        self._ask(seals.set_sealing(is_on=is_on, by=by))

    def seal(self) -> int:
        """Seal all that can be sealed now, as workers do in the background.

        Returns:
            Number of seals made.

        Raises:
            WrongState: Sealing is off: call :meth:`set_sealing` first.
        """
        sealed = 0
        while True:
            done = self._ask(seals.seal_units(RUNS_A_ROUND, at_once=True))
            if done.wait_seconds is None:
                raise WrongState("sealing is off: call `pgflow audit on` first")
            sealed += done.sealed
            if not done.has_more:
                return sealed
