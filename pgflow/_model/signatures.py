"""Signatures of webhooks, as Standard Webhooks has them: what goes out is signed, and what comes in
verified, by the same few lines.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac

from pgflow.errors import InvalidArgument

PREFIX = "whsec_"
MIN_SECRET_BYTES = 16


def key_of(secret: str | bytes) -> bytes:
    """Return the key of a secret: the decoded base64 of a text with the prefix ``whsec_``, else its
    bytes.

    Raises:
        InvalidArgument: The secret is not base64, or is too short.
    """
    if isinstance(secret, str) and secret.startswith(PREFIX):
        try:
            key = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
        except binascii.Error as error:
            raise InvalidArgument("the secret of a webhook is not base64 after whsec_") from error
    else:
        key = secret.encode() if isinstance(secret, str) else secret
    if len(key) < MIN_SECRET_BYTES:
        raise InvalidArgument(f"the secret of a webhook is shorter than {MIN_SECRET_BYTES} bytes")
    return key


def mac(key: bytes, data: bytes) -> bytes:
    """The HMAC-SHA256 of some bytes."""
    return hmac.new(key, data, hashlib.sha256).digest()


def sign(key: bytes, message_id: str, timestamp: int, body: bytes) -> str:
    """The header ``webhook-signature`` of a message."""
    signed = f"{message_id}.{timestamp}.".encode() + body
    return "v1," + base64.b64encode(mac(key, signed)).decode()
