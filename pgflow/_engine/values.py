"""Values as recorded: encoded by the app's codec, if there is one. If encoding fails, the run is
held.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

from pgflow._engine.calls import ChildRequest, StepCall
from pgflow._engine.history import History
from pgflow._engine.host import StepResult
from pgflow._engine.parts import Parts
from pgflow._model.codecs import hash_arguments
from pgflow._model.envelopes import Envelopes, is_hiding, open_text, seal_metadata
from pgflow._model.exceptions import ErrorData, encode_error, rebuild_error
from pgflow._model.kinds import StepKind
from pgflow.errors import CodecError, NotStorable, PgflowError

T = TypeVar("T")

UNREADABLE = "codec"
"""Reason of a run that is held because a value cannot be encoded or decoded."""

LONG_CHARS = 400_000
"""A note of at least this length may be refused once it is encoded, so a replay encodes it again.
"""

NOT_COMPARABLE = -1
"""Hash of arguments that cannot be compared, which only a transaction may have."""


class Values:
    """Owns only the conversion between values and recorded text, including the failures of the
    app's codec.
    """

    def __init__(self, parts: Parts) -> None:
        self._history = parts[History]
        self._envelopes = envelopes = parts.claim.envelopes
        self.are_sealed = envelopes is not None
        """True if the app has a codec."""
        self.hash_key = None if envelopes is None else envelopes.hash_key
        """Secret key for hashes of arguments; None for plain hashes."""

    @property
    def are_hidden(self) -> bool:
        """True if the app's codec encrypts values, so that secrets may be among them."""
        return is_hiding(self._envelopes)

    def by_codec(self, work: Callable[[], T]) -> T:
        """Return the result of the codec's work; hold the run if it fails."""
        try:
            return work()
        except CodecError as error:
            self._history.diverge(str(error), UNREADABLE)

    def sealed(self, text: str, what: str) -> str:
        """Return a value as recorded. If the app's codec fails, the run is held.

        Raises:
            NotStorable: It is too long once it is encoded.
        """
        envelopes = self._envelopes
        return text if envelopes is None else self.by_codec(lambda: envelopes.seal(text, what))

    def sealed_note(self, text: str, what: str, *, is_object: bool = False) -> str:
        """Return a note of the code as recorded. A repeated note stays unencoded, unless it is
        long.
        """
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
        """Return an error as recorded."""
        envelopes = self._envelopes
        return (
            json.dumps(data)
            if envelopes is None
            else self.by_codec(lambda: envelopes.seal_error(data)[0])
        )

    def describe(self, error: BaseException) -> str:
        """Return the text of an error for a person, recorded unencoded. If the app has a codec, the
        text quotes no value.
        """
        if self._envelopes is None:
            return str(error)
        return getattr(error, "outline", None) or (
            str(error) if isinstance(error, PgflowError) else type(error).__name__
        )

    def decode(self, call: StepCall, result: StepResult) -> tuple[Any, Exception | None, str]:
        """Return (value, error, text) of a body's result: the first two for the code, the text to
        record. The value is always decoded from the text, which is what a replay will see.
        """
        envelopes, data = self._envelopes, result.error
        if result.text is not None:
            what, text = f"the result of step {call.name}", result.text
            try:
                if envelopes is None:
                    if call.spec.effect == StepKind.DECISION:
                        return call.value_of(text, what), None, text
                    return call.spec.result.decode(text, what), None, text
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
        """Encode the input and metadata of a child."""
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
        """Return the request of an effect as recorded; empty without a codec. The policy can read
        only ``shown``.
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
        """Return a text to recognise an equal text by."""
        return text if self._envelopes is None else self._envelopes.hashed(text)

    # ==================================================== hashes of arguments

    def other_hashes(self, call: StepCall) -> list[int]:
        """Return the hashes of a call's arguments under other keys: those from before the app had a
        codec, or after.
        """
        envelopes = self._envelopes
        return (
            [] if envelopes is None else [hash_of(call, key) for key in envelopes.other_hash_keys]
        )


def seal_result(call: StepCall, text: str, envelopes: Envelopes) -> tuple[str, str]:
    """Return the result of a step as recorded, and as read back. Policy, model and usage of a
    decision stay readable.
    """
    what, readable = f"the result of step {call.name}", None
    if call.spec.effect == StepKind.DECISION:
        chosen = json.loads(text)
        readable = {name: chosen.get(name) for name in ("policy", "model", "usage")}
    stored = envelopes.seal(text, what, readable)
    return stored, open_text(envelopes, stored, what)


def hash_of(call: StepCall, key: bytes | None = None) -> int:
    """Return the hash of a step's arguments, by which a replay recognises the call."""
    try:
        return hash_arguments(call.args, call.kwargs, f"step {call.name}", key)
    except NotStorable:
        if call.spec.effect == StepKind.TRANSACTION:
            return NOT_COMPARABLE
        raise
