"""Requests of a run's code: steps, timers, signals, children, notes; and what it gives up."""

from __future__ import annotations

import json
import uuid
from abc import abstractmethod
from collections import deque
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from pgflow._engine import mypyc_attr
from pgflow._engine.calls import Call, ChildCall, ChildRequest, SignalCall, StepCall, StepSpec, TimerCall, Waiter, Want
from pgflow._engine.effects import EffectCall
from pgflow._engine.history import NEVER, History
from pgflow._engine.host import Host, StepResult
from pgflow._engine.outcomes import decode_result
from pgflow._model.claims import Claim, ReusedStep
from pgflow._model.codecs import Codec, hash_arguments
from pgflow._model.envelopes import seal_metadata
from pgflow._model.exceptions import ErrorClasses
from pgflow._model.kinds import ClosePolicy, Kind, StepKind
from pgflow._model.units import Start, ended_by, relabelled
from pgflow.errors import InvalidArgument, NotStorable

Resting = tuple[str, str | int | None]
"""Key of a decision, and the item of it that a call is about."""

MAX_KEY_BYTES = 255
MAX_KEY_NAME_CHARS = 64
"""Characters of a step's name in its idempotency keys: others allow 255 for a key, and its other parts take a hundred."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Requests(History):
    """The middle layer of an :class:`~pgflow._engine.execution.Execution`; see the module."""

    def __init__(self, claim: Claim, host: Host[Any]) -> None:
        super().__init__(claim, host)
        self._key_counts: dict[str, int] = {}
        self._unlicensed: list[StepCall] = []
        self._startable: list[StepCall] = []
        self._running: set[int] = set()
        self._new_children: list[ChildCall] = []
        self._open_children: dict[int, ChildCall] = {}
        """Those of the open calls that are children: a family may have ten thousand, which are not gone through for each of them."""
        self._new_effects: list[EffectCall] = []
        self._inbox: deque[StepResult] = deque()
        self._items: set[str] = set()
        self._has_ledger_rows = False
        self._unwanted_children: list[int] = []
        self._ask_wanted = claim.has_mail
        self._carried: dict[tuple[str, int], deque[ReusedStep]] = {}
        self._inherited: frozenset[int] = frozenset()
        self._children = [] if claim.heritage is None else list(claim.heritage.children)
        self.has_children = bool(self._children)
        if claim.heritage is not None and claim.heritage.carried:
            self._carried = {step: deque(known) for step, known in claim.heritage.carried.items()}
            self._inherited = ended_by(claim.units, claim.heritage.cut)

    @abstractmethod
    def _stop_body(self, call: StepCall) -> None:
        """Nobody waits for this body any more."""

    @abstractmethod
    def _give_up_effect(self, call: EffectCall) -> None:
        """The code waits no longer for an effect that was intended."""

    @abstractmethod
    def _record_renewals(self) -> None:
        """Everything recorded has been repeated: what was made anew meanwhile is added."""

    @abstractmethod
    def _retry_later(self, call: StepCall, delay_seconds: float) -> None:
        """The body is due again after a delay."""

    def next_ordinal(self, name: str) -> int:
        """The how-manieth use of a name this is, in program order: the last part of an idempotency key."""
        count = self._key_counts.get(name, 0) + 1
        self._key_counts[name] = count
        return count

    def issue_step(
        self, spec: StepSpec, args: tuple[Any, ...], kwargs: dict[str, Any], rests_on: Resting | None = None, *, is_undo: bool = False
    ) -> StepCall:
        """Asks for a step's body to run, or to have run; what helps to take an effect back is never handed what another came to."""
        number = self._next_call()
        call = StepCall(number, spec.name, self._driver.waiter(), spec=spec, args=args, kwargs=kwargs, aliases=spec.aliases)
        if number == NEVER:
            return call
        if rests_on is None and spec.effect != StepKind.DECISION:
            call.ordinal = self.next_ordinal(spec.name)
            if len(spec.name) > MAX_KEY_NAME_CHARS:  # what journals and views make of a number would have all of the name
                started = self.journal.starts.get(number)
                call.ordinal = f"{self.claim.stem}/{name_in_key(spec.name)}/{call.ordinal}" if started is None else started.ordinal
        else:
            self._name_key(call, rests_on)
        if spec.effect in (StepKind.STEP, StepKind.TRANSACTION) and (number not in self.journal.ended or self._carried):
            call.args_hash = hash_of(call, self._hash_key())
        if self.claim.heritage is not None:
            call.max_attempts = self.claim.heritage.attempts
            if not is_undo:
                self._inherit(call)
        self._enter(call)
        return call

    def _name_key(self, call: StepCall, rests_on: Resting | None) -> None:
        """Makes the key of a call that the ledgers know by its key; of one that is known by an old name, the key that it has."""
        known = self.journal.names.get(call.number)
        if known is not None and known in call.aliases:
            call.name = known
        if rests_on is None:
            call.ordinal = self.next_ordinal(call.name)
            call.key = f"{self.claim.stem}/{name_in_key(call.name)}/{call.ordinal}"
            if len(call.name) > MAX_KEY_NAME_CHARS:
                call.ordinal = call.key
        else:
            self._name_resting(call, rests_on)
        started = self.journal.starts.get(call.number)
        # Perhaps intended by another run.
        if started is not None and started.effect == StepKind.EFFECT and isinstance(started.ordinal, str):
            call.key = call.ordinal = started.ordinal

    def _name_compensation(self, call: EffectCall, effect_key: str) -> None:
        """Give a compensation a key made of its effect's key, whichever run or generation does it."""
        stem = f"{effect_key}/{name_in_key(call.name)}"
        ordinal = self.next_ordinal(stem)
        key = f"{stem}/{ordinal}"
        if len(key.encode()) > MAX_KEY_BYTES:
            key = f"{self.claim.root}/{name_in_key(call.name)}/{uuid.uuid5(uuid.NAMESPACE_OID, effect_key)}/{ordinal}"
        started = self.journal.starts.get(call.number)
        if started is not None and started.effect == StepKind.EFFECT and isinstance(started.ordinal, str):
            key = started.ordinal
        call.key = call.ordinal = key

    def _name_resting(self, call: StepCall, rests_on: Resting) -> None:
        decision, item = rests_on
        stem = f"{decision}/{name_in_key(call.name)}"
        call.key = call.ordinal = f"{stem}/{self.next_ordinal(stem) if item is None else item}"
        if call.key in self._items:
            raise InvalidArgument(f"{call.name} has been called before because of {decision} for item {item!r}: each item once")
        if len(call.key.encode()) > MAX_KEY_BYTES:
            raise InvalidArgument(f"the key of {call.name} would be longer than {MAX_KEY_BYTES} bytes: {call.key[:80]}...")
        self._items.add(call.key)

    def _enter(self, call: StepCall) -> None:
        self._calls[call.number] = call
        started = self.journal.starts.get(call.number)
        if started is not None:
            call.is_licensed = True
            self._check_start(call, started)
        if not self.replaying:
            self._do(call, call.ask())

    def _inherit(self, call: StepCall) -> None:
        """Gives a step what a dropped part of the journal knew of it, if it is asked for again with the same arguments."""
        if call.number in self._inherited:
            return
        known = self._carried.get((call.name, call.args_hash))
        if not known:
            others = [self._carried.get((call.name, args_hash)) for args_hash in self._other_hashes(call)]
            known = next((carried for carried in others if carried), None)
        if known:
            carried = known.popleft()
            call.carried = carried.result
            call.ordinal = carried.key
            call.key = carried.key if call.key else ""

    def _check_start(self, call: StepCall, started: Start) -> None:
        """A body that may have run already must be asked for again exactly as it was."""
        if call.aliases and call.answers_to(started.name):  # its key stays the one that it has been started under
            call.name, call.ordinal = started.name, started.ordinal
            call.key = started.ordinal if isinstance(started.ordinal, str) else call.key
        if (started.name, started.effect) != (call.name, call.spec.effect):
            licensed = f"the journal has licensed call {call.number} as step {started.name!r}"
            self.diverge(licensed, code=f"the code asks for {call}")
        if call.number in self.journal.ended or call.args_hash == started.args_hash:
            return
        if started.args_hash not in self._other_hashes(call):
            self.diverge(
                f"{call} has been started with other arguments than the code passes now: "
                "running it again under the same idempotency key could do something else"
            )

    def _hash_key(self) -> bytes | None:
        """Return the secret that keys hashes of arguments; None for plain ones."""
        envelopes = self.claim.envelopes
        return None if envelopes is None else envelopes.hash_key

    def _other_hashes(self, call: StepCall) -> list[int]:
        """Hashes of a call's arguments as they were recorded before the app's codec encoded values, or after."""
        envelopes = self.claim.envelopes
        return [] if envelopes is None else [hash_of(call, key) for key in envelopes.other_hash_keys]

    def _decode(self, call: StepCall, result: StepResult) -> tuple[Any, Exception | None, str]:
        """Return (value, error, text) of a body's result: for the code, and as it is recorded."""
        envelopes = self.claim.envelopes
        return decode_result(call, result) if envelopes is None else self._by_codec(lambda: decode_result(call, result, envelopes))

    def _seal_child(self, request: ChildRequest) -> None:
        """Encodes what a child is started with."""
        envelopes = self.claim.envelopes
        if envelopes is None:
            return
        what, key = f"the input of child {request.workflow}", request.key
        request.stored_metadata = self._by_codec(lambda: seal_metadata(envelopes, request.metadata))
        if key is None:
            request.stored = self.sealed(request.input, what)
        else:
            request.stored = self._by_codec(lambda: envelopes.seal_compared(request.input, what, key))

    def _do(self, call: StepCall, want: str) -> None:
        """Brings the call of a step on, as far as it can be without an answer."""
        if want == Want.LICENCE:
            call.state = "unlicensed"
            self._unlicensed.append(call)
        elif want == Want.BODY:
            call.state = "startable"
            self._startable.append(call)
        elif want == Want.LATER:
            self._wait_until(call, call.retry_due_us or 0)
        else:
            assert want == Want.RESULT, want
            call.state = "running"
            self._inbox.append(StepResult(call, call.carried, None))

    def _wait_until(self, call: StepCall, due_us: int) -> None:
        delay_us = due_us - self.estimate_us()
        if delay_us > 0:
            self._back_off(call, delay_us / 1e6)
        else:
            self._do(call, call.come_due())

    def _back_off(self, call: StepCall, delay_seconds: float) -> None:
        call.state = "backoff"
        self._retry_later(call, delay_seconds)

    def start_timer(self, delay_seconds: float, fire: Callable[[], None]) -> Callable[[], None]:
        """Starts a durable timer; returns what gives it up."""
        call = TimerCall(self._next_call(), "timer", None, fire=fire)
        if call.number == NEVER:
            return lambda: None
        self._calls[call.number] = call
        call.started_seq, call.due_us = self._note_timer(call.number, None, delay_seconds)
        return lambda: self.cancel_call(call)

    def issue_sleep(self, delay_seconds: float) -> TimerCall:
        """A timer that a thread waits for."""
        waiter = self._driver.waiter()
        call = TimerCall(self._next_call(), "timer", waiter, fire=lambda: waiter.set_result(None))
        if call.number == NEVER:
            return call
        self._calls[call.number] = call
        call.started_seq, call.due_us = self._note_timer(call.number, None, delay_seconds)
        return call

    def _note_timer(self, number: int, name: str | None, delay_seconds: float) -> tuple[int, int]:
        unit = self._note(number, Kind.TIMER_STARTED, name, json.dumps(delay_seconds), delay_seconds)
        if unit is not None:
            return unit.seq, unit.due_us or 0
        row = self._buffer[-1]
        return row.seq, row.at_us + int(delay_seconds * 1e6)

    def issue_signal(self, name: str, codec: Codec[Any], timeout: timedelta | None) -> SignalCall:
        """Waits for a signal."""
        call = SignalCall(self._next_call(), name, self._driver.waiter(), codec=codec)
        if call.number == NEVER:
            return call
        self._calls[call.number] = call
        if timeout is not None:
            call.started_seq, call.due_us = self._note_timer(call.number, name, max(0.0, timeout.total_seconds()))
        self._bring_on(call)
        return call

    def issue_child(
        self, request: ChildRequest, result: Codec[Any], errors: ErrorClasses, waits_for_start: bool = False
    ) -> ChildCall:
        """Starts a child run and waits for its result, and perhaps first for its start."""
        call = ChildCall(
            self._next_call(), request.workflow, self._driver.waiter(), request=request, result=result, errors=errors,
            aliases=request.aliases,
        )
        if call.number == NEVER:
            return call
        self._take_over(call)
        if not (self.claim.envelopes is None or call.chain_id or call.number in self.journal.called):
            self._seal_child(request)
        self._calls[call.number] = self._open_children[call.number] = call
        self.has_children = True
        if waits_for_start:
            call.start = Call(call.number, call.name, self._driver.waiter())
            if call.chain_id:
                call.tell_start()
        if call.chain_id or not self.replaying:
            self._bring_on(call)
        return call

    def _take_over(self, call: ChildCall) -> None:
        """If a dropped part of the journal has started the same child, it is this one: its result comes under a number of its own."""
        if not self._children or call.number in self.journal.called:
            return
        for known in self._children:
            is_same = call.answers_to(known.workflow) and call.request.key == known.key
            if is_same and json.loads(call.request.input) == json.loads(known.input):
                self._children.remove(known)
                call.number, call.chain_id = known.call, known.chain_id
                started = [u for u in self.claim.units if u.call == known.call and u.kind == Kind.CHILD_STARTED]
                call.key = json.loads(started[-1].payload or "{}").get("key", "") if started else known.key or ""
                return

    def patched(self, patch_id: str) -> bool:
        """Return True if the code may take the new side of a change: always, unless this run passed here before the change."""
        if self._take_deprecated(patch_id):
            return True
        unit = self._next_noted()
        if unit is not None and (unit.kind, unit.name) != (Kind.PATCHED, patch_id):
            return False
        self._note(self._next_call(), Kind.PATCHED, patch_id, None)
        return True

    def deprecate_patch(self, patch_id: str) -> None:
        """Accepts the marker of a change, or that there is none; a new one has no call number, so that code may do without it."""
        if self._take_deprecated(patch_id):
            return
        unit = self._next_noted()
        if unit is None:
            self._check_open()
            self._record(0, Kind.PATCHED, patch_id, None)
        elif (unit.kind, unit.name) == (Kind.PATCHED, patch_id):
            self._note(self._next_call(), Kind.PATCHED, patch_id, None)

    def _take_deprecated(self, patch_id: str) -> bool:
        """Take the marker of a deprecated patch if the journal has it here; return True if it had."""
        self._check_open()
        if not self.replaying:
            return False
        self._skip_marks(upto_patch=patch_id)
        unit = self.journal.peek()
        if unit is None or (unit.call, unit.kind, unit.name) != (0, Kind.PATCHED, patch_id):
            return False
        self._seq = unit.seq
        self.journal.take()
        return True

    def set_state(self, text: str) -> None:
        """Records what the run says of itself."""
        number = self._next_call()
        self._note(number, Kind.STATE_SET, None, self._sealed_note(text, "the state of a run", is_object=True))

    def set_labels(self, text: str) -> None:
        """Records a change of the run's labels: names and values, null for one that is taken away."""
        unit = self._note(self._next_call(), Kind.LABELS_SET, None, text)
        if unit is None:
            self._has_ledger_rows = True
            self._want_flush()
        else:
            text = unit.payload or "{}"
        self.claim.labels = relabelled(self.claim.labels, json.loads(text))

    def emit(self, stream: str, text: str) -> None:
        """Records a value of an output stream and has it flushed at once."""
        number = self._next_call()
        self._emit(number, stream, self._sealed_note(text, f"a value of stream {stream!r}"))

    def close_stream(self, stream: str) -> None:
        """Records that nothing more comes on an output stream: its unit has no value."""
        self._emit(self._next_call(), stream, None)

    def _emit(self, number: int, stream: str, text: str | None) -> None:
        unit = self._note(number, Kind.EMITTED, stream, text)
        if unit is None:
            self._want_flush()
        elif (unit.payload is None) != (text is None):
            was, asked = ("closed", "emit to") if unit.payload is None else ("given a value", "close")
            self.diverge(f"in the journal stream {stream!r} was {was} here", code=f"the code asks to {asked} it")

    def cancel_call(self, call: Call) -> None:
        """The code has given up a call: that is recorded, its late result is not."""
        if self.closing or call.state in ("over", "decided") or self._calls.get(call.number) is not call:
            return
        if isinstance(call, EffectCall):
            self._next_noted()  # reads the marks that say whether it was intended
            if call.attempts > 0:
                self._give_up_effect(call)
                return
        kind = Kind.STEP_ABANDONED if isinstance(call, StepCall) and call.spec.effect == StepKind.STEP else Kind.CALL_CANCELLED
        self._note(call.number, kind, self._name_in_journal(call), None)
        self._drop(call)
        if isinstance(call, StepCall):
            self._running.discard(call.number)
            self._stop_body(call)
        elif isinstance(call, ChildCall) and call.chain_id and call.request.close_policy == ClosePolicy.CANCEL:
            self._unwanted_children.append(call.chain_id)

    def ask_to_end(self, call: ChildCall) -> None:
        """Cancels a child that has started, and goes on waiting for what becomes of it."""
        if self.closing or self._calls.get(call.number) is not call:
            return
        if not (self.replaying or call.is_unwanted or call.state == "decided"):
            self._unwanted_children.append(call.chain_id)
        call.is_unwanted = True

    def unwant(self, call: ChildCall) -> Waiter | None:
        """Asks a child to end, and goes on waiting for it: a place for its outcome; None if there is nothing to wait for."""
        if self.closing or self._calls.get(call.number) is not call or call.request.close_policy != ClosePolicy.CANCEL:
            return None
        if self.replaying and call.state != "decided":
            self._skip_marks(only_of_known=True)  # one says whether it was started
        if not (call.chain_id or call.state == "decided"):
            return None
        call.waiter = self._driver.waiter()
        if not (self.replaying or call.is_unwanted or call.state == "decided"):
            self._unwanted_children.append(call.chain_id)
        call.is_unwanted = True
        return call.waiter

    def _name_in_journal(self, call: Call) -> str:
        """The name under which the next note of the journal knows a call that has had others."""
        unit = self._next_noted() if call.aliases else None
        return unit.name if unit is not None and unit.call == call.number and unit.name in call.aliases else call.name

    def _drop(self, call: Call) -> None:
        call.state = "over"
        self._calls.pop(call.number, None)
        if isinstance(call, ChildCall):
            self._open_children.pop(call.number, None)
            if not call.chain_id and call in self._new_children:
                self._new_children.remove(call)
            return
        for group in (self._unlicensed, self._startable, self._new_effects):
            if call in group:
                group.remove(call)  # type: ignore[arg-type]

    def _go_live(self) -> None:
        """Everything recorded has been repeated: from here on the run makes history."""
        self._check_starts()
        self.replaying = False
        self._record_renewals()
        for call in list(self._calls.values()):
            if call.state == "pending":
                self._bring_on(call)

    def _bring_on(self, call: Call) -> None:
        """Does what a call asks for, as far as it can be done without an answer."""
        want = call.ask()
        if isinstance(call, StepCall):
            self._do(call, want)
        elif isinstance(call, ChildCall):
            if want == Want.CHILD:
                self._new_children.append(call)
                return
            if call.is_unwanted:
                self._unwanted_children.append(call.chain_id)
        if want == Want.LOOK:
            self._ask_wanted = True


def name_in_key(name: str) -> str:
    """A name as idempotency keys have it: a long one by its beginning and a hash."""
    return name if len(name) <= MAX_KEY_NAME_CHARS else f"{name[:31]}~{uuid.uuid5(uuid.NAMESPACE_OID, name).hex}"


NOT_COMPARABLE = -1
"""In place of a hash: a transaction may be called with what has no form that could be compared."""


def hash_of(call: StepCall, key: bytes | None = None) -> int:
    """By which a call of a step is known again."""
    try:
        return hash_arguments(call.args, call.kwargs, f"step {call.name}", key)
    except NotStorable:
        if call.spec.effect == StepKind.TRANSACTION:
            return NOT_COMPARABLE
        raise
