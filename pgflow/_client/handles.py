"""Shared parts of both handles: reading results and streams, and building signals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar, cast

from pgflow._db.calls import mail, result
from pgflow._db.query import Query
from pgflow._flow.messages import payload_text
from pgflow._flow.signals import Signal
from pgflow._model.codecs import ANYTHING, Codec, codec_for
from pgflow._model.envelopes import Envelopes, open_text, open_value
from pgflow._model.exceptions import ErrorClasses, rebuild_error
from pgflow.errors import RunCancelled, RunFailed, RunNotFound, RunStuck

R_co = TypeVar("R_co", covariant=True)
S = TypeVar("S")
T = TypeVar("T")

STREAM_PAGE = 500


class Outcome(Generic[R_co]):
    """Reader of a run's result for a client."""

    def __init__(
        self,
        key: str,
        codec: Codec[Any],
        *errors: Sequence[type[Exception]],
        envelopes: Envelopes | None = None,
    ) -> None:
        self.key = key
        self.envelopes = envelopes
        self.codec = codec
        self.errors = errors

    def read(self, ended: result.Ended) -> R_co:
        """Return the run's value, or raise the error of its result."""
        self.check_end(ended)
        if ended.status == "completed":
            what = f"the result of run {self.key!r}"
            return cast(
                "R_co",
                self.codec.decode(open_text(self.envelopes, ended.output or "null", what), what),
            )
        if ended.status == "cancelled":
            raise RunCancelled(f"run {self.key!r} was cancelled: {ended.reason}")
        data = ANYTHING.decode(
            open_text(self.envelopes, ended.error or "{}", f"the error of run {self.key!r}"),
            "an error",
        )
        cause = rebuild_error(data, ErrorClasses(*self.errors))
        raise RunFailed(
            f"run {self.key!r} failed: {data.get('type')}: {data.get('message')}"
        ) from cause

    def check_end(self, ended: result.Ended) -> None:
        """Raise RunStuck or RunNotFound if the run has no result to read."""
        if ended.status == "gone" or ended.key != self.key:
            raise RunNotFound(
                f"run {self.key!r} is gone: its history was removed, and its result with it, or "
                "a fail-over lost its start. In doubt start it again under the same key"
            )
        if ended.status == "stuck":
            message = ANYTHING.decode(ended.error or "{}", "an error").get("message") or ""
            raise RunStuck(
                f"run {self.key!r} is stuck ({ended.reason}): {message}. See it in pgflow.runs; "
                "retry_run lets it go on"
            )


class Position:
    """Position of a reader in a stream."""

    def __init__(self, key: str, stream: str, offset: int, envelopes: Envelopes | None) -> None:
        self._key = key
        self._envelopes = envelopes
        self._stream = stream
        self._after = (0, 0)
        self._skip = offset
        self._drafts: set[str] = set()
        self.has_moved = False
        """True if the last page had a value, even if that had been read before it was durable."""
        self.is_at_end = False
        """True if the stream ends here unless there is a further value:
        it was closed, or its run has ended.
        """

    def query(self) -> Query[list[result.Emitted]]:
        return result.read_stream(self._key, self._stream, self._after, self._skip, STREAM_PAGE)

    def draft_query(self) -> Query[list[tuple[str, str]]]:
        return result.read_drafts(self._key, self._stream)

    def take_drafts(self, drafts: list[tuple[str, str]]) -> list[Any]:
        """The values that running steps have emitted meanwhile;
        they are passed over once they are durable.
        """
        new = [(draft, value) for draft, value in drafts if draft not in self._drafts]
        self._drafts.update(draft for draft, _ in new)
        return [self._value(value) for _, value in new]

    def take(self, page: list[result.Emitted]) -> list[Any]:
        """The values of a page; the mark of a close says that none may follow, and is read again as
        long as none does.
        """
        values = []
        self.has_moved = any(item.value is not None for item in page)
        for item in page:
            self.is_at_end = item.value is None
            if item.value is not None:
                self._after, self._skip = (item.run_id, item.seq), 0
                if item.draft is not None and item.draft in self._drafts:
                    self._drafts.discard(item.draft)
                    continue
                values.append(self._value(item.value))
        return values

    def _value(self, text: str) -> Any:
        what = f"a value of stream {self._stream!r} of run {self._key!r}"
        return ANYTHING.decode(open_text(self._envelopes, text, what), what)


class Handle(Generic[S, R_co]):
    """Base of the handles of both colours: ``S`` is the session that asks for it."""

    key: str

    def __init__(self, session: S, outcome: Outcome[R_co], chain_id: int | None = None) -> None:
        self.key = outcome.key
        self._session = session
        self._outcome = outcome
        self._chain_id = chain_id

    def __repr__(self) -> str:
        """As in logs."""
        return f"<{type(self).__name__} {self.key!r}>"

    def _opened(self, state: dict[str, Any]) -> dict[str, Any]:
        """Return the state that a run has set, in clear."""
        envelopes = self._outcome.envelopes
        return {
            name: open_value(envelopes, value, f"{name!r} of the state of run {self.key!r}")
            for name, value in state.items()
        }

    def _published(self, name: str, text: str, type: Any = None) -> Any:  # noqa: A002 - as Signal has it
        """Return a value that a run has published, in clear."""
        what = f"{name!r} of the state of run {self.key!r}"
        codec = ANYTHING if type is None else codec_for(type, what)
        return codec.decode(open_text(self._outcome.envelopes, text, what), what)


def signal_query(
    send: Callable[..., Query[mail.Sent]],
    key: str,
    signal: Signal[T],
    value: T,
    idempotency_key: str | None,
    envelopes: Envelopes | None,
    by: str | None = None,
) -> Query[mail.Sent]:
    """A signal on its way: the payload is checked to be readable by the receiver."""
    text = payload_text(signal, value, envelopes, idempotency_key)
    return send(key, signal.name, text, sent_by=by, idempotency_key=idempotency_key)
