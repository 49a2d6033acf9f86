"""Format of help: plain text, with parameters by their names and without the types of Python; and
their values, without pydantic, which takes longer to import than most commands take.

The text copies well, fits any width, and is there before a library has drawn boxes. What needs more
than our coercion, such as the message about a bad value, is typer's.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any, get_args

import typer
from typer.core import TyperCommand, TyperGroup

from pgflow_cli.look.declaring import expanded


class Coercion:
    """Replaces typer's coercion of the values of a parameter."""

    def coerce(self, value: Any, *, param: Any, ctx: Any) -> Any:
        """Return a value, a list of them, or None if none was passed.

        Raises:
            BadParameter: A word has no value of the type.
        """
        kind, info = param.type_descriptor.annotation, param.type_descriptor.parameter_info
        has_many = param.multiple or param.nargs == -1
        if value is None:
            return () if has_many else None
        try:
            if not has_many:
                return _read(value, kind, info)
            return [_read(one, get_args(kind)[0], info) for one in value]
        except ValueError:
            return type(param).get_runtime_param(param).coerce(value, param=param, ctx=ctx)


def _read(word: Any, kind: Any, info: Any) -> Any:
    """Return a word, or a default, as a value of a type.

    Raises:
        ValueError: Typer has to look at it.
    """
    if info.parser is not None:
        return info.parser(word)
    if kind is str or (kind is Path and os.access(word, os.R_OK)):
        return kind(word)
    if kind is int and re.fullmatch(r"\d{1,18}", str(word), re.ASCII):
        number = int(word)
        if (info.min is None or number >= info.min) and (info.max is None or number <= info.max):
            return number
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(word)
    if word in get_args(kind) or (isinstance(kind, type) and isinstance(word, kind)):
        return word  # of a Literal, or the default
    raise ValueError(word)


PLAIN: dict[str, Any] = {"rich_markup_mode": None, "pretty_exceptions_enable": False}


class _Words:
    """Base of the help and usage of commands and groups."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters, each with its name as the default metavar, and coerced by us.

        A flag that was not passed is False already, so it needs no conversion.
        """
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for param in params:
            param.metavar = param.metavar or param.name.upper()
            param.get_runtime_param = Coercion
            is_flag = getattr(param, "is_flag", False) and not param.secondary_opts
            if is_flag and param.default is None:
                param.default = False
        return params

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """``KEY`` for what must be given, ``[KEY]`` for what may be."""
        return [re.sub(r"^\{(.*)\}$", r"\1", piece) for piece in super().collect_usage_pieces(ctx)]  # type: ignore[misc]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Arguments and options, and the commands of a group."""
        for title, kind in (("Arguments", "argument"), ("Options", "option")):
            params = [param for param in self.get_params(ctx) if param.param_type_name == kind]
            records = [
                found for param in params if (found := param.get_help_record(ctx)) is not None
            ]
            rows = [(re.sub(r" <.*>$", "", name), text) for name, text in records]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)
        if hasattr(self, "format_commands"):
            self.format_commands(ctx, formatter)


class Command(_Words, TyperCommand):
    """A command."""


class Group(_Words, TyperGroup):
    """A command that has others."""


class Commands(typer.Typer):
    """Maker of a group; see `look.declaring` for the parameters of its commands."""

    def command(self, *given: Any, **options: Any) -> Callable[[Any], Any]:
        """Return a decorator that adds a command."""
        add = super().command(*given, **{"cls": Command, **options})

        def decorate(command: Any) -> Any:
            add(expanded(command))
            return command

        return decorate

    def callback(self, *given: Any, **options: Any) -> Callable[[Any], Any]:
        """Return a decorator that sets what the group does if none of its commands is named."""
        add = super().callback(*given, **options)

        def decorate(command: Any) -> Any:
            add(expanded(command, of_group=True))
            return command

        return decorate


def make_group(name: str, text: str | None = None, **attributes: Any) -> Commands:
    """Return a command that has others. Its help is that of its callback if none is given."""
    given = attributes if text is None else {"help": text, **attributes}
    return Commands(name=name, add_completion=False, **{"cls": Group, **PLAIN, **given})
