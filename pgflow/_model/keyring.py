"""The codec that pgflow brings: AES-GCM with data keys, which are wrapped with keys of yours.

Each process makes a data key of its own, encrypts values with it, and puts it in front of each of
them, wrapped with the present key. So rotating a key touches no value: it is enough to wrap the few
data keys anew (``sql/ops/rewrap.sql``). A data key has the same wrap wherever it is stored, since
the nonce of the wrap is made of both keys: what is equal before a rotation is equal after it.

A data key serves a million values, far fewer than the 2**32 for which nonces drawn by chance are
safe with AES-GCM.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Mapping
from typing import Any

from pgflow._model.envelopes import WRAP_KEY
from pgflow.errors import DefinitionError

VALUES_OF_A_KEY = 2**20
"""Values that one data key encrypts."""

MOST_OPENED = 4096
"""Unwrapped data keys that a process remembers."""

_NONCE_BYTES = 12
_KEY_BYTES = 32
_WRAP_BYTES = _NONCE_BYTES + _KEY_BYTES + 16


class Keyring:
    """Encrypts the values of an app with AES-GCM, and rotates its keys (``pgflow rotate``).

    The extra ``encryption`` brings the package ``cryptography``, which it needs.

    Args:
        keys: Keys of 32 random bytes by name: the present one, and those that stored values still
            need. A name has 1 to 64 letters, digits, dots, hyphens and underscores.
        key_id: Name of the present key; None to write in clear and read what is encrypted.
        hash_key: Secret of at least 16 random bytes for hashes of values that are compared. It
            stays the same when keys are rotated.

    Raises:
        DefinitionError: A key has another length or name, or the present one is not among them.

    Example::

        keys = {"2026": base64.b64decode(os.environ["SHOP_KEY"])}
        app = App(codec=Keyring(keys, "2026", hash_key=os.environ["SHOP_HASH"].encode()))
    """

    def __init__(self, keys: Mapping[str, bytes], key_id: str | None, *, hash_key: bytes) -> None:
        try:
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        except ImportError as error:
            raise DefinitionError(
                "Keyring needs the package cryptography: pip install 'pgflow-engine[encryption]'"
            ) from error
        for name, key in keys.items():
            if not isinstance(name, str) or WRAP_KEY.fullmatch(name) is None:
                raise DefinitionError(
                    "the name of a key has 1 to 64 letters, digits, dots, hyphens and underscores, "
                    f"not {name!r}"
                )
            if not isinstance(key, bytes) or len(key) != _KEY_BYTES:
                raise DefinitionError(f"key {name!r} must be 32 random bytes: os.urandom(32)")
        if key_id is not None and key_id not in keys:
            raise DefinitionError(f"key_id names no key: {key_id!r} is not among the keys given")
        self._cipher: Any = AESGCM
        self._keys = dict(keys)
        self._key_id = key_id
        self._hash_key = hash_key
        self._opened: dict[bytes, Any] = {}
        self._made: list[Any] = [b"", None, VALUES_OF_A_KEY]
        """The wrap of the data key at work, its cipher, and the number of values it has encrypted.
        Threads may count too few: the bound need not be exact."""

    def __repr__(self) -> str:
        return f"Keyring({', '.join(sorted(self._keys))}; writes with {self._key_id})"

    @property
    def key_id(self) -> str | None:
        """Name of the present key."""
        return self._key_id

    @property
    def hash_key(self) -> bytes:
        """Secret for hashes of values that are compared."""
        return self._hash_key

    @property
    def wrap_bytes(self) -> int:
        """Length of a wrapped data key."""
        return _WRAP_BYTES

    def encode(self, data: bytes) -> bytes:
        """Return a wrapped data key, a nonce and the encrypted bytes."""
        made = self._made
        if made[2] >= VALUES_OF_A_KEY:
            key = os.urandom(_KEY_BYTES)
            self._made = made = [self._wrapped(key), self._cipher(key), 0]
        made[2] += 1
        nonce = os.urandom(_NONCE_BYTES)
        encrypted: bytes = made[1].encrypt(nonce, data, None)
        return bytes(made[0]) + nonce + encrypted

    def decode(self, key_id: str, data: bytes) -> bytes:
        """Return the bytes that :meth:`encode` was given.

        Raises:
            Exception: The key is not here, or the bytes were changed.
        """
        wrap, rest = data[:_WRAP_BYTES], data[_WRAP_BYTES:]
        named = key_id.encode() + b":" + wrap
        cipher = self._opened.get(named)
        if cipher is None:
            if len(self._opened) >= MOST_OPENED:
                self._opened = {}
            cipher = self._opened[named] = self._cipher(self._unwrapped(key_id, wrap))
        decrypted: bytes = cipher.decrypt(rest[:_NONCE_BYTES], rest[_NONCE_BYTES:], None)
        return decrypted

    def rewrap(self, key_id: str, wrap: bytes) -> bytes:
        """Return a data key wrapped with the present key.

        Raises:
            Exception: The key that it is wrapped with is not here, or it was changed.
        """
        return self._wrapped(self._unwrapped(key_id, wrap))

    def _wrapped(self, key: bytes) -> bytes:
        assert self._key_id is not None
        present = self._keys[self._key_id]
        nonce = hmac.digest(present, b"pgflow wrap\0" + key, "sha256")[:_NONCE_BYTES]
        encrypted: bytes = self._cipher(present).encrypt(nonce, key, self._key_id.encode())
        return nonce + encrypted

    def _unwrapped(self, key_id: str, wrap: bytes) -> bytes:
        cipher = self._cipher(self._keys[key_id])
        key: bytes = cipher.decrypt(wrap[:_NONCE_BYTES], wrap[_NONCE_BYTES:], key_id.encode())
        return key
