"""Values in clear for people, from an endpoint beside the keys.

A console or a command line need not have the keys of an app. :func:`decode_endpoint` serves, where
the keys are, what the codec opens; a :class:`Decoder` asks it for what a page shows. Secrets are
masked before they leave the endpoint, and nothing that it answers is stored or logged.

Example::

    served = decode_endpoint(ring, os.environ["CODEC_TOKEN"])  # where the keys are

    decoder = Decoder("https://keys.internal/decode", os.environ["CODEC_TOKEN"])
    console = pgflow.web.asgi(app, auth=who, decoder=decoder)
"""

from __future__ import annotations

import dataclasses
import hmac
import json
import os
import urllib.request
from collections.abc import Callable, Iterator
from http.client import HTTPException
from typing import Any
from urllib.parse import urlsplit

from pgflow._asgi import Asgi, Receive, Scope, Send, live, read_body
from pgflow._model.envelopes import Envelopes, PayloadCodec, is_redacted, open_value
from pgflow._model.tags import masked
from pgflow.errors import CodecError, InvalidArgument

__all__ = ["Decoder", "decode_endpoint"]

MIN_TOKEN_BYTES = 16
MAX_BODY_BYTES = 16 * 2**20
"""Size of a request that the endpoint reads."""
BATCH_BYTES = 4 * 2**20
"""Size from which a request takes no further value."""
ANSWER_SECONDS = 5.0
_PARTS = ("$codec", "$wrap", "data")
"""Parts of an envelope that the endpoint needs. All else in it is readable as it is."""

Name = tuple[str, ...]


def decode_endpoint(codec: PayloadCodec, token: str) -> Asgi:
    """Return an ASGI application that opens values for those who have a token. Mount it anywhere,
    behind TLS. It answers each path.

    It takes ``POST {"values": [ENVELOPE, ...]}`` with the header ``Authorization: Bearer TOKEN``,
    and answers ``{"values": [VALUE, ...]}``: null in place of a value that the codec cannot open,
    and ``***`` in place of a secret.

    Args:
        codec: The codec of the app.
        token: Secret of at least 16 bytes that the consoles have.

    Raises:
        InvalidArgument: The token is too short.
        DefinitionError: The object is not a codec.
    """
    envelopes, wanted = Envelopes(codec), f"Bearer {checked_token(token)}".encode()

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await live(receive, send)
            return
        status, answer = await _answer(scope, receive, envelopes, wanted)
        headers = [(b"content-type", b"application/json"), (b"cache-control", b"no-store")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": json.dumps(answer).encode()})

    return serve


async def _answer(
    scope: Scope, receive: Receive, envelopes: Envelopes, wanted: bytes
) -> tuple[int, dict[str, Any]]:
    """Return the status and the answer to a request."""
    if scope["type"] != "http" or scope["method"] != "POST":
        return 405, {"error": "POST the values to open"}
    if not hmac.compare_digest(dict(scope["headers"]).get(b"authorization", b""), wanted):
        return 401, {"error": "the token is not one of this endpoint"}
    if (body := await read_body(receive, MAX_BODY_BYTES)) is None:
        return 413, {"error": f"at most {MAX_BODY_BYTES:,} bytes at once"}
    try:
        values = json.loads(body)["values"]
        return 200, {"values": [_opened(envelopes, one) for one in values]}
    except (ValueError, TypeError, KeyError, RecursionError):
        return 400, {"error": 'send {"values": [...]}'}


def _opened(envelopes: Envelopes, envelope: Any) -> Any:
    """Return what an envelope holds, for people to see; None if it cannot be opened."""
    if not _is_envelope(envelope):
        return None
    try:
        return masked(open_value(envelopes, _parts_of(envelope), "a value"))
    except CodecError:
        return None


class Decoder:
    """Asks a :func:`decode_endpoint` for the values that are shown.

    Args:
        url: Address of the endpoint.
        token: Its token.

    Raises:
        InvalidArgument: The address is not one of http or https, or the token is too short.
    """

    def __init__(self, url: str, token: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidArgument(f"a codec endpoint has a URL of http or https, not {url!r}")
        self._url, self._host = url, parts.hostname
        self._token = checked_token(token)
        # A token must not follow a redirect to another server.
        self._opener = urllib.request.build_opener(_NoRedirect)

    def __repr__(self) -> str:
        return f"Decoder({self._host})"

    @classmethod
    def from_environment(cls) -> Decoder | None:
        """Return the one that ``PGFLOW_CODEC_URL`` and ``PGFLOW_CODEC_TOKEN`` name; None if the
        first is not set.

        Raises:
            InvalidArgument: They are invalid.
        """
        url = os.environ.get("PGFLOW_CODEC_URL")
        return cls(url, os.environ.get("PGFLOW_CODEC_TOKEN", "")) if url else None

    def open(self, found: Any) -> dict[Name, Any]:
        """Return the values in clear, by the names of their envelopes.

        Args:
            found: Rows with envelopes anywhere in them.

        Raises:
            CodecError: The endpoint does not answer, or refuses.
        """
        envelopes: dict[Name, dict[str, Any]] = {}

        def note(envelope: dict[str, Any]) -> Any:
            envelopes[name_of(envelope)] = _parts_of(envelope)
            return envelope

        _replaced(found, note)
        opened: dict[Name, Any] = {}
        for batch in _batches(envelopes):
            values = self._ask([envelopes[name] for name in batch])
            opened |= {
                one: value for one, value in zip(batch, values, strict=True) if value is not None
            }
        return opened

    def read(self, found: Any) -> Any:
        """Return a copy of rows with values in clear in place of the envelopes that could be
        opened.

        Args:
            found: The rows.

        Raises:
            CodecError: The endpoint does not answer, or refuses.
        """
        opened = self.open(found)
        return _replaced(found, lambda envelope: opened.get(name_of(envelope), envelope))

    def _ask(self, envelopes: list[dict[str, Any]]) -> list[Any]:
        request = urllib.request.Request(  # noqa: S310 - its scheme was checked
            self._url,
            json.dumps({"values": envelopes}).encode(),
            {"authorization": f"Bearer {self._token}", "content-type": "application/json"},
        )
        try:
            with self._opener.open(request, timeout=ANSWER_SECONDS) as answer:
                values = json.load(answer)["values"]
        except (OSError, HTTPException, ValueError, TypeError, KeyError) as error:
            status = getattr(error, "code", None)
            raise CodecError(
                f"the codec endpoint at {self._host} opened nothing: "
                f"{type(error).__name__}{f' {status}' if status else ''}"
            ) from None
        if not isinstance(values, list) or len(values) != len(envelopes):
            raise CodecError(f"the codec endpoint at {self._host} answered something else")
        return values


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """Follow none."""


def name_of(envelope: dict[str, Any]) -> Name:
    """Return what tells an envelope from all others."""
    return tuple(str(envelope.get(part) or "") for part in _PARTS)


def checked_token(token: str) -> str:
    """Return a token.

    Raises:
        InvalidArgument: It is too short.
    """
    if len(token.encode()) < MIN_TOKEN_BYTES:
        raise InvalidArgument(f"the token of a codec endpoint has at least {MIN_TOKEN_BYTES} bytes")
    return token


def _is_envelope(value: Any) -> bool:
    is_one = isinstance(value, dict) and "$codec" in value and "data" in value
    return is_one and not is_redacted(value)


def _parts_of(envelope: dict[str, Any]) -> dict[str, Any]:
    """Return an envelope that begins like one, which a column of type jsonb does not keep."""
    return {part: envelope[part] for part in _PARTS if part in envelope}


def _batches(envelopes: dict[Name, dict[str, Any]]) -> Iterator[list[Name]]:
    batch: list[Name] = []
    size = 0
    for name in envelopes:
        batch.append(name)
        size += len(name[-1])
        if size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _replaced(value: Any, by: Callable[[dict[str, Any]], Any]) -> Any:
    """Return a copy of rows and values with something else in place of each envelope."""
    if _is_envelope(value):
        return by(value)
    if isinstance(value, dict):
        return {name: _replaced(part, by) for name, part in value.items()}
    if isinstance(value, list):
        return [_replaced(part, by) for part in value]
    if type(value) is tuple:
        return tuple(_replaced(part, by) for part in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        changed = {
            name: new for name, part in parts.items() if (new := _replaced(part, by)) is not part
        }
        return dataclasses.replace(value, **changed)
    return value
