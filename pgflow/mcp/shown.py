"""Answers of tools: JSON of bounded size.

A payload may be a megabyte and a list have thousands of rows, and an assistant pays for each word.
So long texts are cut, each saying how long it was, and what is too long as a whole says what to ask
instead.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

MOST_TEXT = 2_000
"""Characters of one text."""
MOST_ANSWER = 60_000
"""Characters of one answer."""
MOST_DEPTH = 12


def shown(**answer: Any) -> str:
    """Return an answer as JSON, cut where it is long."""
    text = json.dumps(plain(answer), ensure_ascii=False)
    if len(text) <= MOST_ANSWER:
        return text
    rest = {"cut": text[:MOST_ANSWER], "characters": len(text), "hint": "ask for fewer rows"}
    return json.dumps(rest, ensure_ascii=False)


def plain(value: Any, depth: int = 0) -> Any:
    """Return what JSON has for a value."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if depth > MOST_DEPTH:
        return "..."
    if is_dataclass(value) and not isinstance(value, type):
        named = {field.name: getattr(value, field.name) for field in fields(value)}
        return {
            name: plain(one, depth + 1) for name, one in named.items() if one not in (None, "", [])
        }
    if isinstance(value, Mapping):
        return {_cut(str(name)): plain(one, depth + 1) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one, depth + 1) for one in value]
    return _cut(str(value))


def _cut(text: str) -> str:
    if len(text) <= MOST_TEXT:
        return text
    return f"{text[:MOST_TEXT]}... ({len(text):,} characters)"
