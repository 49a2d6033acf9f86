"""What people type, as values: durations, moments, labels, JSON, inputs of workflows."""

from __future__ import annotations

import json
import re
import sys
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from pgflow_cli.failures import Mistake

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|[smhdw])")


def parse_duration(text: str, what: str = "a duration") -> timedelta:
    """Reads ``90s``, ``10m``, ``1h30m``, or plain seconds.

    Raises:
        Mistake: It is not one.
    """
    if re.fullmatch(r"\d+(\.\d+)?", text):
        return timedelta(seconds=float(text))
    parts = _DURATION.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise Mistake(f"{what} is written like 90s, 10m, 1h30m or 7d, not {text!r}")
    return timedelta(seconds=sum(float(number) * _UNITS[unit] for number, unit in parts))


def parse_moment(text: str, what: str) -> datetime | timedelta:
    """Reads a time with a zone, or a duration, which means that long from now.

    The clock that says what "now" is, is the database's: so a duration stays one here.

    Raises:
        Mistake: It is neither.
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return parse_duration(text, what)
    if moment.tzinfo is None:
        raise Mistake(f"{what} needs a time zone: {text}Z or {text}+02:00")
    return moment


def parse_pairs(texts: list[str] | None, what: str) -> dict[str, str]:
    """Reads ``name=value`` texts.

    Raises:
        Mistake: One has no ``=``.
    """
    pairs = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise Mistake(f"{what} is written NAME=VALUE, not {text!r}")
        pairs[name] = value
    return pairs


def parse_json(text: str, what: str) -> Any:
    """Reads JSON: the text itself, ``@FILE``, or ``-`` for standard input.

    Raises:
        Mistake: It is not JSON, or the file cannot be read.
    """
    if text == "-":
        source, text = "standard input", sys.stdin.read()
    elif text.startswith("@"):
        source = text[1:]
        try:
            text = Path(source).read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise Mistake(f"{what} cannot be read: {error}") from error
    else:
        source = ""
    try:
        return json.loads(text)
    except ValueError as error:
        where = f" (in {source})" if source else ""
        raise Mistake(f'{what} is not JSON: {error}{where}. Strings need double quotes, as in \'{{"name": "Ada"}}\'') from error


def parse_input(words: list[str] | None, text: str | None) -> dict[str, Any]:
    """The input of a run: an object in JSON, and single parameters beside or instead of it.

    Args:
        words: ``name=text`` for a string, ``name:=json`` for anything else.
        text: As in `parse_json`.

    Raises:
        Mistake: Something cannot be read, or the JSON is no object.
    """
    value = {} if text is None else parse_json(text, "--input")
    if not isinstance(value, dict):
        raise Mistake(
            f'--input must be an object of the workflow\'s parameters, such as \'{{"name": "Ada"}}\', not {json.dumps(value)[:40]}'
        )
    for word in words or ():
        name, equals, rest = word.partition("=")
        if not equals or not name.rstrip(":"):
            raise Mistake(f"a parameter is written NAME=TEXT or NAME:=JSON, not {word!r}")
        value[name.removesuffix(":")] = parse_json(rest, f"parameter {name.removesuffix(':')}") if name.endswith(":") else rest
    return value
