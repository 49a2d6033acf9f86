"""Values as they are recorded: sealed by the app's codec, if it has one.
If that fails, the run is held.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

from pgflow._engine.calls import ChildRequest, StepCall
from pgflow._engine.history import History
from pgflow._engine.host import StepResult
from pgflow._model.claims import Claim
from pgflow._model.codecs import hash_arguments
from pgflow._model.envelopes import Envelopes, open_text, seal_metadata
from pgflow._model.exceptions import ErrorData, encode_error, rebuild_error
from pgflow._model.kinds import StepKind
from pgflow.errors import CodecError, NotStorable, PgflowError

T = TypeVar("T")

UNREADABLE = "codec"
"""Reason of a run that is held because a value cannot be encoded or decoded."""

LONG_CHARS = 400_000
"""A note of this length might be refused once it is encoded: then it is again on a replay."""

NOT_COMPARABLE = -1
"""In place of a hash: a transaction may be called with what has no form that could be compared."""


class Values:
    """Owns nothing but the way from a value to its text: what the app's codec makes of it, and what
    a failure of it means.
    """

    def __init__(self, claim: Claim, history: History) -> None:
        self._history = history
        self._envelopes = claim.envelopes
        self.hash_key = None if claim.envelopes is None else claim.envelopes.hash_key
        """Secret that keys hashes of arguments; None for plain ones."""

    @property
    def are_sealed(self) -> bool:
        """True if the app has a codec."""
        return self._envelopes is not None

    def by_codec(self, work: Callable[[], T]) -> T:
        """Return what the app's codec makes of something; if it fails, the run is held."""
        try:
            return work()
        except CodecError as error:
            self._history.diverge(str(error), UNREADABLE)

    def sealed(self, text: str, what: str) -> str:
        """A value as it is recorded. If the app's codec fails, the run is held.

        Raises:
            NotStorable: It is too long once it is encoded.
        """
        envelopes = self._envelopes
        return text if envelopes is None else self.by_codec(lambda: envelopes.seal(text, what))

    def sealed_note(self, text: str, what: str, *, is_object: bool = False) -> str:
        """Return a note of the code as it is recorded; in clear where a replay repeats it."""
        envelopes = self._envelopes
        if envelopes is None:
            return text
        self._history.check_open()
        if len(text) < LONG_CHARS and self._history.next_noted() is not None:
            return text
        return (
            self.by_codec(lambda: envelopes.seal_each(text, what))
            if is_object
            else self.sealed(text, what)
        )

    def error_text(self, data: ErrorData) -> str:
        """An error as it is recorded."""
        envelopes = self._envelopes
        return (
            json.dumps(data)
            if envelopes is None
            else self.by_codec(lambda: envelopes.seal_error(data)[0])
        )

    def told(self, error: BaseException) -> str:
        """Return the text of an error for a person, recorded in clear: where the app has a codec,
        nothing that may quote a value.
        """
        if self._envelopes is None:
            return str(error)
        return getattr(error, "outline", None) or (
            str(error) if isinstance(error, PgflowError) else type(error).__name__
        )

    def decode(self, call: StepCall, result: StepResult) -> tuple[Any, Exception | None, str]:
        """Return (value, error, text) of a body's result: for the code, and as it is recorded. The
        value is always the decoded text, which is what a replay will see.
        """
        envelopes, data = self._envelopes, result.error
        if result.text is not None:
            what, text = f"the result of step {call.name}", result.text
            try:
                if envelopes is None:
                    return call.value_of(text, what), None, text
                stored, opened = self.by_codec(lambda: seal_result(call, text, envelopes))
                return call.value_of(opened, what), None, stored
            except NotStorable as refused:
                data = encode_error(refused, with_traceback=False)
        assert data is not None
        recorded, error = json.dumps(data), data
        if envelopes is not None:
            recorded, error = self.by_codec(lambda: envelopes.seal_error(data))
        return None, rebuild_error(error, call.spec.errors, call.failed_attempts + 1), recorded

    def seal_child(self, request: ChildRequest) -> None:
        """Encodes what a child is started with."""
        envelopes = self._envelopes
        if envelopes is None:
            return
        what, key = f"the input of child {request.workflow}", request.key
        request.stored_metadata = self.by_codec(lambda: seal_metadata(envelopes, request.metadata))
        if key is None:
            request.stored = self.sealed(request.input, what)
        else:
            request.stored = self.by_codec(
                lambda: envelopes.seal_compared(request.input, what, key)
            )

    def seal_request(self, text: str, what: str, shown: dict[str, Any] | None) -> str:
        """Return the request of an effect as it is recorded: the policy reads what is shown, and
        nothing else. Empty without a codec.
        """
        envelopes = self._envelopes
        return (
            ""
            if envelopes is None
            else self.by_codec(
                lambda: envelopes.seal(text, what, {"shown": shown} if shown else None)
            )
        )

    def hashed(self, text: str) -> str:
        """Return a text by which another is known again."""
        return text if self._envelopes is None else self._envelopes.hashed(text)

    # ==================================================== arguments, by which a call is known again

    def other_hashes(self, call: StepCall) -> list[int]:
        """Hashes of a call's arguments as they were recorded before
        the app's codec encoded values, or after.
        """
        envelopes = self._envelopes
        return (
            [] if envelopes is None else [hash_of(call, key) for key in envelopes.other_hash_keys]
        )


def seal_result(call: StepCall, text: str, envelopes: Envelopes) -> tuple[str, str]:
    """Return the result of a step as it is recorded, and as it is read from there: of a decision,
    policy, model and usage stay readable.
    """
    what, readable = f"the result of step {call.name}", None
    if call.spec.effect == StepKind.DECISION:
        chosen = json.loads(text)
        readable = {name: chosen.get(name) for name in ("policy", "model", "usage")}
    stored = envelopes.seal(text, what, readable)
    return stored, open_text(envelopes, stored, what)


def hash_of(call: StepCall, key: bytes | None = None) -> int:
    """By which a call of a step is known again."""
    try:
        return hash_arguments(call.args, call.kwargs, f"step {call.name}", key)
    except NotStorable:
        if call.spec.effect == StepKind.TRANSACTION:
            return NOT_COMPARABLE
        raise
