"""Fingerprints of values: the expected and the observed state of an effect's target.

They are compared between processes, languages and versions, so nothing may be in them but JSON.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

from pgflow._model.codecs import canonical_text
from pgflow.errors import NotStorable

_FINGERPRINT = re.compile(r"sha256:[0-9a-f]{64}")


def fingerprint(value: Any) -> str:
    """A short text that is equal for equal values, in every process and version: what an effect can
    be called to expect.

    Values are compared as JSON: the order of keys does not count, nor whether they come as a model,
    a dataclass or a dict, as a tuple or a list, as 1 or 1.0.

    Args:
        value: Anything that a step may return.

    Returns:
        ``sha256:`` and 64 hexadecimal digits.

    Raises:
        NotStorable: The value has no form as JSON.

    Example::

        page = await look(url)
        await press.options(expect=pgflow.effects.fingerprint(page))(url, "Buy")
    """
    what = "what is to be fingerprinted"
    plain = json.loads(canonical_text(value, what))
    try:
        text = json.dumps(
            _with_one_kind_of_number(plain), sort_keys=True, separators=(",", ":"), allow_nan=False
        )
    except ValueError as error:
        raise NotStorable(f"{what} cannot be stored as JSON: {error}") from error
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def is_fingerprint(text: object) -> bool:
    """Return True if :func:`fingerprint` can have made this."""
    return isinstance(text, str) and _FINGERPRINT.fullmatch(text) is not None


def _with_one_kind_of_number(value: Any) -> Any:
    """JSON whose whole numbers have no point,
    as languages write it that have one kind of number.
    """
    if isinstance(value, dict):
        return {key: _with_one_kind_of_number(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_with_one_kind_of_number(part) for part in value]
    return (
        int(value)
        if isinstance(value, float) and value.is_integer() and abs(value) < 2**53
        else value
    )
