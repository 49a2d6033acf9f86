"""Plain texts in YAML 1.2: their values, and how values are written as keys,
in the originals' language.

Numbers are JavaScript's: there is one kind of them, so ``1.0`` is one, and whole numbers are exact
only up to 2^53.
"""

from __future__ import annotations

import re

from pydantic import JsonValue

from pgflow.declare.text.javascript import number_text

_NULLS = frozenset(("", "~", "null", "Null", "NULL"))
_BOOLEANS = {word: word[0] in "tT" for word in ("true", "True", "TRUE", "false", "False", "FALSE")}
_INTEGER = re.compile(
    r"(?P<sign>[-+]?)(?:0o(?P<octal>[0-7]+)|0x(?P<hex>[0-9a-fA-F]+)|(?P<decimal>[0-9]+))"
)
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_INFINITE = re.compile(r"(?P<sign>[-+]?)\.(?:inf|Inf|INF)")
_NOT_A_NUMBER = frozenset((".nan", ".NaN", ".NAN"))
_EXACT = 1 << 53


def resolve(text: str) -> JsonValue:
    """Return the value of a text without quotes.

    Args:
        text: The text of a plain scalar.

    Returns:
        A value of YAML's core schema; the text itself, if it is nothing else.
    """
    if text in _NULLS:
        return None
    if text in _BOOLEANS:
        return _BOOLEANS[text]
    if text[0] not in "+-.0123456789":
        return text
    return _number(text)


def _number(text: str) -> JsonValue:
    if found := _INTEGER.fullmatch(text):
        return _whole(found)
    if _FLOAT.fullmatch(text):
        value = float(text)
        return int(value) if value.is_integer() and abs(value) < _EXACT else value
    if found := _INFINITE.fullmatch(text):
        return float(found["sign"] + "inf")
    return float("nan") if text in _NOT_A_NUMBER else text


def _whole(found: re.Match[str]) -> JsonValue:
    digits, base = next(
        (found[name], base)
        for name, base in (("octal", 8), ("hex", 16), ("decimal", 10))
        if found[name]
    )
    if len(digits) > 400:
        return float(found["sign"] + "inf")
    value = int(found["sign"] + digits, base)
    if abs(value) < _EXACT:
        return value
    try:
        return float(value)
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


def as_text(value: object) -> str:
    """Return a value as JavaScript writes it where it needs a text, as for a key.

    Args:
        value: A value that was read from YAML.

    Returns:
        The text: ``null``, ``true``, ``1``, ``a,b`` for a list, ``[object Object]`` for a mapping.
    """
    if isinstance(value, str):
        return value
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return number_text(value)
    if isinstance(value, list):
        return ",".join("" if item is None else as_text(item) for item in value)
    return "[object Object]"
