"""Typed texts as values: durations, moments, labels, JSON, inputs of workflows."""

from __future__ import annotations

import json
import re
import sys
from datetime import datetime, timedelta
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from pgflow.console.output import shown
from pgflow_cli.look.declaring import opt
from pgflow_cli.look.failures import Mistake, opening

Given = TypeVar("Given")

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|[smhdw])")


def refuse_empty(param: typer.CallbackParam, value: Given) -> Given:
    """For options whose absence means something else than was meant where a shell's variable was
    not set; also for those that may be given more than once.

    Raises:
        Mistake: It was given, and is empty.
    """
    if value == "" or (isinstance(value, list) and "" in value):
        raise Mistake(f"{param.opts[0]} is empty: pass one, or leave it out")
    return value


def parse_duration(text: str, what: str = "a duration") -> timedelta:
    """Read ``90s``, ``10m``, ``1h30m``, ``7d`` or ``0``.

    A number needs its unit: some commands count in days, and some delete what is older.

    Raises:
        Mistake: It is not one.
    """
    if not _is_duration(text):
        hint = ""
        if re.fullmatch(r"\d+(\.\d+)?", text):
            hint = f": a number needs a unit, {text}s for seconds or {text}d for days"
        raise Mistake(f"{what} is written like 90s, 10m, 1h30m or 7d, not {text!r}{hint}")
    parts = _DURATION.findall(text)
    try:
        return timedelta(seconds=sum(float(number) * _UNITS[unit] for number, unit in parts))
    except OverflowError:
        raise Mistake(f"{what} is too long: {text}") from None


def parse_span(text: str | None, option: str) -> timedelta | None:
    """Return the duration that an option was given; None if it was not."""
    return None if text is None else parse_duration(text, option)


def _is_duration(text: str) -> bool:
    return re.fullmatch(rf"(?:{_DURATION.pattern})+|0", text) is not None


def seconds_option(*words: str, shown: str, least: float = 0, most: float | None = None) -> Any:
    """Return an option that takes a duration, whose value is in seconds.

    Args:
        *words: Its name, such as ``--grace``, and its line of help, if no docstring has it.
        shown: Its default, as a person would type it.
        least: Smallest value that it takes, in seconds.
        most: Largest value, in seconds; None for any.
    """

    def read(given: str | float) -> float:
        if not isinstance(given, str):  # the default
            return given
        try:
            seconds = parse_duration(given, words[0]).total_seconds()
        except Mistake as error:
            raise typer.BadParameter(str(error)) from None
        if seconds < least or (most is not None and seconds > most):
            bounds = f"at least {least:g}s" + (f" and at most {most:g}s" if most else "")
            raise typer.BadParameter(f"it must be {bounds}, not {given}")
        return seconds

    return opt(*words, parser=read, metavar="DURATION", show_default=shown)


DeadAfter = Annotated[
    float,
    seconds_option(
        "--dead-after",
        "Time without a sign of life after which a worker is dead.",
        shown="10s",
        least=0.5,
    ),
]


def parse_moment(text: str, what: str) -> datetime | timedelta:
    """Reads a time with a zone, or a duration, which means that long from now.

    The clock that says what "now" is, is the database's: so a duration stays one here.

    Raises:
        Mistake: It is neither.
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        if not _is_duration(text):
            raise Mistake(
                f"{what} is a time, like 2026-03-01T09:30Z, or a duration, like 90s, 10m, 1h30m or "
                f"7d, not {text!r}"
            ) from None
        return parse_duration(text, what)
    if moment.tzinfo is None and re.fullmatch(r"[\d-]+", text):
        raise Mistake(
            f"{what} needs a time of day and a time zone: {text}T00:00Z or {text}T00:00+02:00"
        )
    if moment.tzinfo is None:
        raise Mistake(f"{what} needs a time zone: {text}Z or {text}+02:00")
    return moment


def parse_pairs(texts: list[str] | None, what: str) -> dict[str, str]:
    """Reads ``name=value`` texts.

    Raises:
        Mistake: One has no ``=``.
    """
    pairs: dict[str, str] = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise Mistake(f"{what} is written NAME=VALUE, not {text!r}")
        if name in pairs:
            raise Mistake(f"{what} {name} is given twice: {name}={pairs[name]} and {text}")
        pairs[name] = value
    return pairs


def parse_amounts(texts: list[str] | None) -> dict[str, Decimal]:
    """Reads ``usd=5``, ``tokens=1000000``.

    Raises:
        Mistake: One is not written like that.
    """
    amounts = {}
    for unit, text in parse_pairs(texts, "an amount").items():
        try:
            amounts[unit] = Decimal(text)
        except InvalidOperation:
            raise Mistake(f"the amount of {unit} must be a number, not {text!r}") from None
    return amounts


def read_given(text: str, what: str) -> tuple[str, str]:
    """Return a text and the name of its source: the text itself, which has none, that of ``@FILE``,
    or of standard input for ``-``.

    Raises:
        Mistake: It cannot be read, or is not text.
    """
    with opening(what):
        if text == "-":
            return sys.stdin.read(), "standard input"
        return (Path(text[1:]).read_text(), text[1:]) if text.startswith("@") else (text, "")


def parse_json(text: str, what: str) -> Any:
    """Reads JSON: the text itself, ``@FILE``, or ``-`` for standard input.

    Raises:
        Mistake: It is not JSON, or the file cannot be read.
    """
    text, source = read_given(text, what)
    where = f" (in {source})" if source else ""
    try:
        return json.loads(text)
    except RecursionError:
        raise Mistake(f"{what} is nested too deeply{where}: 200 levels can be stored") from None
    except ValueError as error:
        example = f'"{text}"' if re.fullmatch(r"[\w.@ -]+", text) else '{"name": "Ada"}'
        raise Mistake(
            f"{what} is not JSON: {error}{where}. Strings need double quotes, as in '{example}'"
        ) from error


def parse_input(words: list[str] | None, text: str | None) -> dict[str, Any]:
    """Return the input of a run: a JSON object, with single parameters beside or instead of it.

    Args:
        words: ``name=text`` for a string, ``name:=json`` for anything else.
        text: As in `parse_json`.

    Raises:
        Mistake: Something cannot be read, or the JSON is not an object.
    """
    value = {} if text is None else parse_json(text, "--input")
    if not isinstance(value, dict):
        raise Mistake(
            f"--input must be an object of the workflow's parameters, such as '{{\"name\": "
            f'"Ada"}}\', not {json.dumps(value)[:40]}'
        )
    by_name: dict[str, str] = {}
    for word in words or ():
        name, equals, rest = word.partition("=")
        is_text = not name.endswith(":")
        name = name.removesuffix(":")
        if not equals or not name:
            raise Mistake(f"a parameter is written NAME=TEXT or NAME:=JSON, not {word!r}")
        if name in by_name:
            raise Mistake(
                f"parameter {name} is given twice, as {by_name[name]} and {word}: a list is "
                f"{name}:='[...]'"
            )
        by_name[name] = word
        value[name] = rest if is_text else parse_json(rest, f"parameter {name}")
    return value


def read_toml(path: Path) -> dict[str, Any]:
    """Return the content of a TOML file.

    Raises:
        Mistake: It cannot be read, or is not TOML.
    """
    import tomllib

    try:
        with opening(path):
            text = path.read_bytes()
        return tomllib.loads(text.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Mistake(f"{path} is not TOML: {error}") from None


def refuse_no_folder(option: str, folder: Path) -> None:
    """Refuse a path that is not a folder, and name its option.

    Raises:
        Mistake: It is not a folder.
    """
    if not folder.is_dir():
        raise Mistake(f"{option} {shown(str(folder))} is not a folder")
