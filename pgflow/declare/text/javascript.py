"""Values and texts as the originals' language sees them.

The declared workflows of one family were written for an engine in JavaScript, and what a comparison
or a substitution gives depends on its rules: which characters are white space, what ``parseFloat``
makes of "42.0px", how a number is written (``42.0`` is ``42``, ``1e21`` is ``1e+21``). They are
kept here, in one place, for every module that compares or writes values.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import NamedTuple

from pydantic import JsonValue

WHITE_SPACE = (
    "\t\n\v\f\r \u00a0\u1680"
    "\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000\ufeff"
)
SPACE = f"[{WHITE_SPACE}]"

_NUMBER_START = re.compile(r"[+-]?(?:Infinity|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)")
_ARRAY_INDEX_LIMIT = 2**32 - 1
_ESCAPES = {
    '"': '\\"',
    "\\": "\\\\",
    "\b": "\\b",
    "\f": "\\f",
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
}
_ESCAPED = re.compile('["\\\\\x00-\x1f\ud800-\udfff]')


def trim(text: str) -> str:
    """Return the text without white space at its ends."""
    return text.strip(WHITE_SPACE)


def parse_float(text: str) -> float:
    """Return the number that the text begins with; NaN if it begins with none."""
    found = _NUMBER_START.match(text.lstrip(WHITE_SPACE))
    return float(found.group()) if found else math.nan


def number_text(number: float) -> str:
    """Return a number as JavaScript writes it: the shortest digits that read back as the same
    double.
    """
    try:
        double = float(number)
    except OverflowError:
        double = math.inf if number > 0 else -math.inf
    if math.isnan(double):
        return "NaN"
    if math.isinf(double):
        return "Infinity" if double > 0 else "-Infinity"
    if double == 0:
        return "0"
    return ("-" if double < 0 else "") + _positive_text(abs(double))


def _positive_text(double: float) -> str:
    """Return the text of a finite number above zero: plain between 1e-6 and 1e21, with an exponent
    outside.
    """
    mantissa, _, exponent = f"{double!r}e0".partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).rstrip("0")
    point = len(whole) + int(exponent.split("e")[0])
    stripped = digits.lstrip("0")
    point -= len(digits) - len(stripped)
    digits = stripped
    if len(digits) <= point <= 21:
        return digits.ljust(point, "0")
    if 0 < point <= 21:
        return f"{digits[:point]}.{digits[point:]}"
    if -6 < point <= 0:
        return f"0.{'0' * -point}{digits}"
    tail = f".{digits[1:]}" if len(digits) > 1 else ""
    return f"{digits[0]}{tail}e{point - 1:+d}"


def json_text(value: JsonValue) -> str:
    """Return a value as compact JSON, in JavaScript's spelling and order of keys, however deep it
    is.

    Args:
        value: Any JSON value. Numbers that JSON lacks (NaN, infinities) are ``null``, as in the
            original.

    Returns:
        The text, without spaces. Lone surrogates are escaped, all other characters are not.
    """
    written: list[str] = []
    to_write: list[_Written | JsonValue] = [value]
    while to_write:
        item = to_write.pop()
        if isinstance(item, _Written):
            written.append(item.text)
        elif isinstance(item, list | dict):
            to_write.extend(reversed(list(_pieces(item))))
        else:
            written.append(_scalar_text(item))
    return "".join(written)


class _Written(NamedTuple):
    """A part of a JSON text that needs no more work."""

    text: str


def _pieces(value: list[JsonValue] | dict[str, JsonValue]) -> Iterator[_Written | JsonValue]:
    """Yield a list or an object as punctuation and the values between it."""
    separator = ""
    if isinstance(value, list):
        yield _Written("[")
        for item in value:
            yield _Written(separator)
            yield item
            separator = ","
        yield _Written("]")
        return
    yield _Written("{")
    for key, item in ordered(value):
        yield _Written(f"{separator}{_quoted(key)}:")
        yield item
        separator = ","
    yield _Written("}")


def _scalar_text(value: str | float | bool | None) -> str:
    """Return a value without parts as JSON."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _quoted(value)
    text = number_text(value)
    return text if text[-1].isdigit() else "null"


def _quoted(text: str) -> str:
    """Return a text as a JSON string."""
    return f'"{_ESCAPED.sub(_escape, text)}"'


def _escape(found: re.Match[str]) -> str:
    """One character that JSON does not carry as it is."""
    return _ESCAPES.get(found.group()) or f"\\u{ord(found.group()):04x}"


def ordered(mapping: dict[str, JsonValue]) -> Iterator[tuple[str, JsonValue]]:
    """Yield the items of an object in JavaScript's order: keys that are array indices by number,
    then the others as they came.
    """
    indices = sorted((key for key in mapping if _is_index(key)), key=int)
    for key in indices:
        yield key, mapping[key]
    for key, value in mapping.items():
        if not _is_index(key):
            yield key, value


def _is_index(key: str) -> bool:
    """Return True if a key is an array index: a whole number in its shortest writing."""
    return (
        key.isascii()
        and key.isdigit()
        and len(key) <= 10
        and str(int(key)) == key
        and int(key) < _ARRAY_INDEX_LIMIT
    )


def parse_json(text: str) -> JsonValue:
    """Parse a JSON text by JSON's own grammar (no NaN, no Infinity); numbers that are not whole
    become doubles.

    Raises:
        ValueError: It is not JSON, or is nested too deeply to be read.
    """
    try:
        value: JsonValue = json.loads(text, parse_constant=_refuse, parse_int=_whole)
    except RecursionError:
        raise ValueError("The JSON is nested too deeply.") from None
    return value


def _refuse(name: str) -> None:
    """Say no to the words that Python reads and JSON does not know."""
    raise ValueError(f"{name} is not JSON.")


def _whole(digits: str) -> int | float:
    """Return a whole number as JavaScript keeps it: exactly up to 2^53, as the nearest double
    above.
    """
    return int(digits) if len(digits) <= 15 else float(digits)
