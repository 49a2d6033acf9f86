"""Envelopes: values that an app's codec has encoded, as the database stores them.

A value becomes JSON text first (:mod:`pgflow._model.codecs`). An app with a :class:`PayloadCodec`
then hands that text to the codec, and stores an *envelope* in its place: a JSON object whose first
key is ``$codec``. It names the key that the value was encoded with, so that old values stay
readable after a rotation. Names, kinds, keys, labels and classes of errors stay beside it, because
SQL branches on them.

Inside a worker everything is clear. It is sealed where a unit is recorded, and opened where a claim
or an answer comes in. A value of a user's own that begins like an envelope is refused by
:func:`pgflow._model.codecs.check_text`, with a codec and without.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from pgflow._model.codecs import ENVELOPE, MAX_BYTES, quote_json
from pgflow.errors import CodecError, DefinitionError, NotStorable, Redacted

MAX_KEY_ID_BYTES = 255

ErrorData = dict[str, Any]

REDACTED = '{"$codec":"","data":"","redacted":"'
"""Beginning of the placeholder of a redacted value (``sql/ledgers/redact.sql``): an envelope under
a key that no codec can have. The hash of the value follows.
"""


@runtime_checkable
class PayloadCodec(Protocol):
    """Encodes an app's values before they reach the database, and decodes them when they come back.

    Its methods run on the worker's event loop, between an answer of the database and the next call.
    They must be fast and must not wait for anything: fetch keys when the app starts. Threads may
    call them at the same time.

    Example::

        class Zipped:
            key_id = "zlib"
            hash_key = None  # nothing is secret

            def encode(self, data: bytes) -> bytes:
                return zlib.compress(data)

            def decode(self, key_id: str, data: bytes) -> bytes:
                return zlib.decompress(data)
    """

    @property
    def key_id(self) -> str | None:
        """Name of the key that values are encoded with from now on; None to write in clear and
        still read encoded values.
        """

    @property
    def hash_key(self) -> bytes | None:
        """Secret for hashes of values that must be compared; it stays the same for good. None only
        if the codec hides nothing.
        """

    def encode(self, data: bytes) -> bytes:
        """Return the encoded bytes, which are stored."""

    def decode(self, key_id: str, data: bytes) -> bytes:
        """Return the bytes that :meth:`encode` was given under this key, or raise anything if they
        cannot be had.
        """


@runtime_checkable
class RotatingCodec(PayloadCodec, Protocol):
    """A codec that encrypts each value with a data key and puts this key, wrapped with a key of
    yours, in front of it. To rotate your key is to wrap the data keys anew: values stay as they
    are. :class:`pgflow.extensions.Keyring` is one.

    Its ``key_id`` has at most 64 letters, digits, dots, hyphens and underscores.
    """

    @property
    def wrap_bytes(self) -> int:
        """Length of the wrapped key, with which everything begins that :meth:`encode` returns; 30
        to 190 bytes.
        """

    def rewrap(self, key_id: str, wrap: bytes) -> bytes:
        """Return the same data key wrapped with the present key: the same bytes each time.

        Args:
            key_id: Name of the key that it is wrapped with, or raise anything if it is unknown.
            wrap: The wrapped key.
        """


WRAPPED = "wrapped"
"""In place of the name of a key, where the wrap names it."""

WRAP_KEY = re.compile(r"[A-Za-z0-9._-]{1,64}")
"""Name of a key that wraps others."""


class Envelopes:
    """The envelopes of one app: seals and opens values with its codec.

    Args:
        codec: The codec.

    Raises:
        DefinitionError: The object is not a codec.
    """

    def __init__(self, codec: PayloadCodec) -> None:
        if not isinstance(codec, PayloadCodec):
            raise DefinitionError(
                "codec= takes an object with key_id, hash_key, encode() and decode(), not "
                f"{codec!r}"
            )
        key_id = codec.key_id
        if key_id is not None and not (
            isinstance(key_id, str)
            and 1 <= len(key_id.encode()) <= MAX_KEY_ID_BYTES
            and "\0" not in key_id
        ):
            raise DefinitionError(
                "key_id of a codec must be a text of 1 to 255 bytes without NUL, or None, not "
                f"{key_id!r}"
            )
        is_rotating = isinstance(codec, RotatingCodec)
        if is_rotating and key_id is not None and WRAP_KEY.fullmatch(key_id) is None:
            raise DefinitionError(
                "key_id of a codec that rotates keys has 1 to 64 letters, digits, dots, hyphens "
                f"and underscores, not {key_id!r}"
            )
        secret = codec.hash_key
        if secret is not None and (not isinstance(secret, bytes) or len(secret) < 16):
            raise DefinitionError(
                "hash_key of a codec must be at least 16 random bytes, or None if the codec hides "
                "nothing"
            )
        self._codec = codec
        self._wrap_bytes = codec.wrap_bytes if isinstance(codec, RotatingCodec) else 0
        self._secret = (
            None
            if secret is None
            else hashlib.blake2b(secret, digest_size=32, person=b"pgflow hash key").digest()
        )

    @property
    def is_writing(self) -> bool:
        """True if values are encoded from now on, and not only decoded."""
        return self._codec.key_id is not None

    @property
    def is_hiding(self) -> bool:
        """True if values are encrypted from now on, so that secrets may be among them."""
        return self._secret is not None and self.is_writing

    @property
    def hash_key(self) -> bytes | None:
        """Secret that keys hashes of arguments; None for plain ones."""
        return None if self._codec.key_id is None else self._secret

    @property
    def other_hash_keys(self) -> tuple[bytes | None, ...]:
        """Keys of hashes that may have been recorded while values were written the other way: in
        clear, or encoded.
        """
        if self._secret is None:
            return ()
        return (self._secret,) if self._codec.key_id is None else (None,)

    def seal(self, text: str, what: str, extra: Mapping[str, Any] | None = None) -> str:
        """Return the envelope of a JSON text, itself JSON text.

        Args:
            text: The text.
            what: Name for errors.
            extra: Values that stay readable beside it, by names that no envelope has.

        Raises:
            NotStorable: The envelope is longer than the limit of a value.
            CodecError: The codec has failed.
        """
        key_id = self._codec.key_id
        if key_id is None:
            return text
        try:
            encoded = self._codec.encode(text.encode())
            wrap, data = (
                base64.b64encode(part).decode()
                for part in (encoded[: self._wrap_bytes], encoded[self._wrap_bytes :])
            )
        except Exception as error:
            raise CodecError(
                f"{what} cannot be encoded with key {key_id!r}: the app's codec raised "
                f"{type(error).__name__}"
            ) from error
        beside = "".join(
            [
                f",{quote_json(name)}:{json.dumps(value, ensure_ascii=False)}"
                for name, value in (extra or {}).items()
            ]
        )
        if wrap:
            head = f'{ENVELOPE}:"{WRAPPED}","$wrap":"{key_id}:{wrap}"'
        else:
            head = f"{ENVELOPE}:{quote_json(key_id)}"
        sealed = f'{head},"data":"{data}"{beside}}}'
        size = len(sealed) if sealed.isascii() else len(sealed.encode())
        # Another key may have a longer name.
        size += 64 - len(key_id) if wrap else 0
        if size > MAX_BYTES:
            raise NotStorable(
                f"{what} is {size:,} bytes once it is encoded; the limit is 1 MiB: store it "
                "elsewhere and pass a reference"
            )
        return sealed

    def seal_error(self, data: ErrorData) -> tuple[str, ErrorData]:
        """Return the envelope of an error, whose class stays readable, and the error as it comes
        back from there.

        Errors must always be storable: of one that is too long, causes are left out,
        then arguments and fields.
        """
        readable = {"type": data.get("type"), "mro": data.get("mro", [])}
        bare = {**readable, "args": [], "message": data.get("message", "")}
        for kept in (data, {name: part for name, part in data.items() if name != "cause"}, bare):
            try:
                return self.seal(json.dumps(kept), "an error", readable), kept
            except NotStorable:
                continue
        raise CodecError(
            "an error cannot be stored: the app's codec makes more than 1 MiB of some kilobytes"
        )

    def seal_each(self, text: str, what: str) -> str:
        """Return an object of values by names with each value in an envelope of its own; the names
        stay readable.
        """
        parts = [
            f"{quote_json(name)}:{self.seal(json.dumps(value, ensure_ascii=False), what)}"
            for name, value in json.loads(text).items()
        ]
        sealed = "{" + ",".join(parts) + "}"
        if len(sealed.encode()) > MAX_BYTES:
            raise NotStorable(
                f"{what} is more than 1 MiB once it is encoded: store it elsewhere and pass a "
                "reference"
            )
        return sealed

    def seal_compared(self, text: str, what: str, about: str, defaults: str | None = None) -> str:
        """Return the envelope of a text that the database compares with others. It contains a keyed
        hash.

        Args:
            text: An input, or the payload of a message.
            what: Name for errors.
            about: Context of the comparison, such as a run's key. Equal texts have different hashes
                in other contexts.
            defaults: JSON object of the defaults for names that an input leaves out.
        """
        if self._codec.key_id is None:
            return text
        value = json.loads(text)
        if defaults is not None:
            value = {**json.loads(defaults), **value}
        plain = json.dumps([about, value], sort_keys=True, separators=(",", ":"))
        return self.seal(
            text,
            what,
            {"hash": hmac.new(self._secret or b"", plain.encode(), hashlib.sha256).hexdigest()},
        )

    def hashed(self, text: str) -> str:
        """Return a keyed hash of a text that is shown and never compared, such as a fingerprint."""
        key = self.hash_key
        return (
            text
            if key is None
            else f"keyed:{hmac.new(key, text.encode(), hashlib.sha256).hexdigest()}"
        )

    def open_sealed(self, envelope: Any, what: str) -> str:
        """Return the JSON text that an envelope holds.

        Raises:
            CodecError: It is damaged, or the codec does not know its key.
        """
        key_id = key_of(envelope)
        parts = wrap_of(envelope)[1], envelope.get("data")
        try:
            data = b"".join([base64.b64decode(part, validate=True) for part in parts])
            return self._codec.decode(key_id, data).decode()
        except Exception as error:
            raise CodecError(
                f"{what} was encoded with key {key_id!r}, and the app's codec cannot decode it "
                f"({type(error).__name__}): give the codec that key again"
            ) from error

    def rewrap(self, wrap: str) -> str | None:
        """Return a wrap with the present key in place of an earlier one; None if the codec does not
        know that one.

        Args:
            wrap: The wrap, as an envelope has it.

        Raises:
            DefinitionError: The codec wraps no keys, or has no present one.
        """
        codec = self._codec
        if not isinstance(codec, RotatingCodec) or codec.key_id is None:
            raise DefinitionError(
                "the app's codec wraps no keys that could be rotated: use one such as "
                "pgflow.extensions.Keyring, with a key_id"
            )
        name, _, wrapped = wrap.partition(":")
        try:
            again = codec.rewrap(name, base64.b64decode(wrapped, validate=True))
        except Exception:  # noqa: BLE001 - a key that is not there may be anything
            return None
        return f"{codec.key_id}:{base64.b64encode(again).decode()}"

    @property
    def key_id(self) -> str | None:
        """Name of the present key."""
        return self._codec.key_id


def envelopes_of(codec: PayloadCodec | None) -> Envelopes | None:
    """The envelopes of an app that was given this codec."""
    return None if codec is None else Envelopes(codec)


def is_hiding(envelopes: Envelopes | None) -> bool:
    """Return True if an app encrypts its values, so that secrets may be among them.

    Args:
        envelopes: Those of the app; None if it has no codec.
    """
    return envelopes is not None and envelopes.is_hiding


def is_redacted(value: Any) -> bool:
    """Return True if a value from the database is a placeholder of a redacted one."""
    return isinstance(value, dict) and value.get("$codec") == "" and "redacted" in value


def key_of(envelope: Any) -> str:
    """The id of the key that an envelope names."""
    return wrap_of(envelope)[0] or str(envelope["$codec"])


def wrap_of(envelope: Any) -> tuple[str, str]:
    """Return the name of the key that the data key of an envelope is wrapped with, and the wrapped
    key in base64; both are empty if there is none.
    """
    name, _, wrap = str(envelope.get("$wrap") or "").partition(":")
    return name, wrap


def is_envelope(value: Any) -> bool:
    """Return True if a value that was read from the database is an envelope:
    an object that begins like one.
    """
    return isinstance(value, dict) and next(iter(value), None) == "$codec"


def open_text(envelopes: Envelopes | None, text: str, what: str) -> str:
    """Return a JSON text in clear: what its envelope holds, or itself.

    Args:
        envelopes: Those of the app; None if it has no codec.
        text: As it was stored.
        what: Name for errors.

    Raises:
        CodecError: It is in an envelope that cannot be opened here.
    """
    return _open(envelopes, json.loads(text), what) if text.startswith(ENVELOPE) else text


def open_value(envelopes: Envelopes | None, value: Any, what: str) -> Any:
    """Return a value that the database has read as JSON, in clear; see :func:`open_text`."""
    return json.loads(_open(envelopes, value, what)) if is_envelope(value) else value


def open_unordered(envelopes: Envelopes | None, value: dict[str, Any], what: str) -> dict[str, Any]:
    """Return an object of a column of type ``jsonb``, which keeps no order of keys, in clear."""
    return (
        json.loads(_open(envelopes, value, what))
        if value.keys() - {"$wrap"} == {"$codec", "data"}
        else value
    )


def _open(envelopes: Envelopes | None, envelope: Any, what: str) -> str:
    if is_redacted(envelope):
        raise Redacted(
            f"{what} was redacted: only its hash is left, {envelope['redacted']}. The run can be "
            "read and verified, and not be replayed"
        )
    if envelopes is None:
        raise CodecError(
            f"{what} was encoded with key {key_of(envelope)!r}, and this app has no codec: pass "
            "codec= to App or AsyncApp"
        )
    return envelopes.open_sealed(envelope, what)


def seal_text(envelopes: Envelopes | None, text: str, what: str) -> str:
    """Return a text as it is stored by an app."""
    return text if envelopes is None else envelopes.seal(text, what)


def seal_metadata(
    envelopes: Envelopes | None, metadata: dict[str, Any] | None
) -> dict[str, Any] | None:
    """Return metadata of a run as they are stored by an app, an object either way.

    Raises:
        NotStorable: They would be taken for an envelope, or cannot be encoded.
    """
    if not metadata:
        return metadata
    if "$codec" in metadata:
        raise NotStorable(
            "metadata with the name '$codec' would be taken for encoded ones: give it another name"
        )
    return (
        metadata
        if envelopes is None
        else dict(json.loads(envelopes.seal(json.dumps(metadata), "metadata of a run")))
    )
