"""Answers of agents that were to be JSON and nearly are: words before it, fences, trailing commas,
single quotes, keys without quotes, an end that was cut off.

It is read as Archon reads it (``tryParseStructuredOutput``): an object only, from the first brace
to the end of the text. Words behind the object make it none, since they may correct it.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

from pydantic import JsonValue

from pgflow.declare.text.javascript import parse_json, trim

_OPENS: Final = re.compile(r"^```(?:json)?\s*\n?", re.IGNORECASE)
_CLOSES: Final = re.compile(r"\n?\s*```\s*$")
_BLANK: Final = re.compile(r"(?:\s|//[^\n]*|/\*.*?\*/)*", re.DOTALL)
_KEY: Final = re.compile(r"[\w$-]+")
_WORD: Final = re.compile(r"[^,:\]}\n]+")
_STRING: Final = {
    quote: re.compile(rf"{quote}((?:[^{quote}\\]|\\.)*)", re.DOTALL) for quote in "\"'"
}
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_WORDS: Final[dict[str, JsonValue]] = {
    "true": True, "false": False, "null": None, "True": True, "False": False, "None": None
}  # fmt: skip
_MOST_DEPTH: Final = 100


def meant(text: str) -> dict[str, JsonValue] | None:
    """Return the object that an answer means; None if it means none for sure.

    Args:
        text: The answer.
    """
    inner = _CLOSES.sub("", _OPENS.sub("", trim(text)))
    start = inner.find("{")
    if start < 0 or ":" not in inner[start:]:
        return None
    for read in (parse_json, _mended):
        try:
            value: Any = read(inner[start:])
        except ValueError:
            continue
        if isinstance(value, dict):
            return value
    return None


def _mended(text: str) -> JsonValue:
    """Return the value of a text that is nearly JSON.

    Raises:
        ValueError: It is not.
    """
    reading = _Reading(text)
    value = reading.value(0)
    reading.skip()
    if not reading.is_over:
        raise ValueError("words follow the object")
    return value


class _Reading:
    """Reads one value of a text, and goes on where JSON would end with an error."""

    def __init__(self, text: str) -> None:
        self._text, self._at = text, 0

    @property
    def is_over(self) -> bool:
        """True at the end of the text."""
        return self._at >= len(self._text)

    def skip(self) -> str:
        """Pass over blanks and comments; return the next character, if there is one."""
        found = _BLANK.match(self._text, self._at)
        assert found is not None
        self._at = found.end()
        return self._text[self._at : self._at + 1]

    def value(self, depth: int) -> JsonValue:
        """Read a value."""
        sign = self.skip()
        if depth > _MOST_DEPTH:
            raise ValueError("it is nested too deeply")
        if sign == "{":
            return self._object(depth)
        if sign == "[":
            return self._list(depth)
        return self._string(sign) if sign and sign in "\"'" else self._word()

    def _object(self, depth: int) -> JsonValue:
        self._at += 1
        found: dict[str, JsonValue] = {}
        while (sign := self.skip()) not in ("}", ""):
            if sign == ",":
                self._at += 1
                continue
            name = self._string(sign) if sign in "\"'" else self._taken(_KEY)
            found[name] = None
            if self.skip() == ":":
                self._at += 1
                if self.skip() not in ("", ",", "}"):
                    found[name] = self.value(depth + 1)
            elif not self.is_over:
                raise ValueError("a key has no value")
        self._at += 1
        return found

    def _list(self, depth: int) -> JsonValue:
        self._at += 1
        found: list[JsonValue] = []
        while (sign := self.skip()) not in ("]", ""):
            if sign == ",":
                self._at += 1
            elif sign in "}:":
                raise ValueError("a list does not end")
            else:
                found.append(self.value(depth + 1))
        self._at += 1
        return found

    def _string(self, quote: str) -> str:
        """Read a text in quotes; one that was cut off ends with all there is."""
        found = _STRING[quote].match(self._text, self._at)
        assert found is not None
        self._at = found.end() + 1
        inner = found[1].replace("\\'", "'")
        if quote == "'":
            inner = re.sub(r'(?<!\\)"', r"\"", inner)
        value: str = json.loads(f'"{inner}"', strict=False)
        return value

    def _word(self) -> JsonValue:
        """Read a number, a word of JSON or Python, or a text without quotes."""
        word = self._taken(_WORD).strip()
        if word in _WORDS:
            return _WORDS[word]
        return parse_json(word) if _NUMBER.fullmatch(word) else word

    def _taken(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self._text, self._at)
        if found is None:
            raise ValueError("no value is here")
        self._at = found.end()
        return found[0]
