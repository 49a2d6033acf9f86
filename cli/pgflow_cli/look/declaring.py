"""Declarations of arguments and options: `arg` and `opt`, and parameters that are `Made` of several
options.

A command is a function, and its docstring has the line of help of each parameter, under ``Args``.
A keyword is an option and any other parameter an argument; `opt` and `arg` add names and layout,
and declare those that commands share. A parameter whose annotation has `Made` is made of the
options of the function in it. `expanded` makes of a command what typer takes.

Help is plain text, with parameters by their names and without the types of Python. It copies well,
fits any width, and is there before a library has drawn boxes. Values are read without pydantic,
which takes longer to import than most commands take. What needs more than our coercion, such as the
message about a bad value, is typer's.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from copy import copy
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from typer.core import TyperCommand, TyperGroup
from typer.models import OptionInfo, ParameterInfo


def arg(about: str | None = None, **layout: Any) -> Any:
    """Return the declaration of an argument: its line of help, if no docstring has it, and further
    parameters of ``typer.Argument``.
    """
    return typer.Argument(help=about, **layout)


def opt(*words: str, **layout: Any) -> Any:
    """Return the declaration of an option.

    Args:
        *words: Its line of help, if no docstring has it, and its names, which begin with a hyphen;
            that of its parameter if none is given.
        **layout: Further parameters of ``typer.Option``.
    """
    names = [word for word in words if word.startswith("-")]
    about = next((word for word in words if not word.startswith("-")), None)
    return typer.Option(*names, help=about, **layout)


@dataclass(frozen=True)
class Made:
    """Mark of a parameter: its value is what this function returns, whose own parameters are
    options. A context manager is open while the command works.
    """

    make: Callable[..., Any]


_KEYWORD = inspect.Parameter.KEYWORD_ONLY
_LAST = ("as_json", "as_csv", "dsn")
"""Options that come last in the help."""


_ARGS = re.compile(r"\n+Args:\n((?:    .*\n?|\n)*)")
_ENTRY = re.compile(r"^    (\w+): (.*(?:\n        .*)*)", re.MULTILINE)


def _documented(function: Callable[..., Any]) -> dict[str, str]:
    """Return the lines of help of the parameters that a docstring describes."""
    found = _ARGS.search(inspect.cleandoc(function.__doc__ or ""))
    entries = _ENTRY.findall(found[1]) if found else ()
    return {name: " ".join(about.split()) for name, about in entries}


def _fields_of_its_own(function: Callable[..., Any]) -> set[str]:
    """Return the fields of a dataclass that a factory fills instead of an option."""
    if not is_dataclass(function):
        return set()
    return {field.name for field in fields(function) if field.default_factory is not MISSING}


class _Call:
    """A function with the options that it and its parts need."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._own: list[str] = []
        self._parts: dict[str, _Call] = {}
        self.options: list[inspect.Parameter] = []
        helps, own = _documented(function), _fields_of_its_own(function)
        for parameter in inspect.signature(function, eval_str=True).parameters.values():
            marks = getattr(parameter.annotation, "__metadata__", ())
            made = next((mark for mark in marks if isinstance(mark, Made)), None)
            if parameter.name in own:
                continue
            if made is None:
                self._own.append(parameter.name)
                is_option = isinstance(function, type) or parameter.kind is parameter.KEYWORD_ONLY
                make = opt if is_option else arg
                self.options.append(_completed(parameter, helps.get(parameter.name), make))
            else:
                self._parts[parameter.name] = part = _Call(made.make)
                self.options += part.options

    def call(self, given: dict[str, Any], opened: ExitStack) -> Any:
        """Return what the function returns for these options."""
        parts = {name: part.call(given, opened) for name, part in self._parts.items()}
        for name, part in parts.items():
            parts[name] = opened.enter_context(part) if hasattr(part, "__exit__") else part
        return self._function(**{name: given[name] for name in self._own}, **parts)


def _completed(
    parameter: inspect.Parameter, about: str | None, make: Callable[[], Any]
) -> inspect.Parameter:
    """Return a parameter with what goes without saying: its help is in the docstring, a flag has
    one name, and the help shows no default where there is none.
    """
    kind, marks = parameter.annotation, getattr(parameter.annotation, "__metadata__", ())
    if marks:
        kind = get_args(kind)[0]
    info = copy(next((mark for mark in marks if isinstance(mark, ParameterInfo)), None))
    if kind is typer.Context:
        return parameter
    info = info or make()
    info.help = info.help or about
    if kind is bool and isinstance(info, OptionInfo) and info.default is ...:  # it has no name
        info.default = f"--{parameter.name.replace('_', '-')}"  # where typer takes the first one
    if info.show_default is True:
        info.show_default = parameter.default not in (None, parameter.empty)
    return parameter.replace(annotation=Annotated[kind, info])


def expanded(command: Callable[..., Any], *, of_group: bool = False) -> Callable[..., Any]:
    """Return a command as typer takes it: with options in place of parameters that are made. That
    of a group works only if none of its commands is named.
    """
    whole = _Call(command)
    options = sorted(whole.options, key=lambda option: option.name in _LAST)
    if of_group:
        options.insert(0, inspect.Parameter("group", _KEYWORD, annotation=typer.Context))

    def call(**given: Any) -> Any:
        if of_group and given["group"].invoked_subcommand is not None:
            return None
        with ExitStack() as opened:
            return whole.call(given, opened)

    call.__name__ = command.__name__
    call.__doc__ = _ARGS.sub("", inspect.cleandoc(command.__doc__ or ""))
    call.__module__ = command.__module__
    call.__annotations__ = {each.name: each.annotation for each in options}
    call.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [each.replace(kind=_KEYWORD) for each in options]
    )
    return call


def options_of(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """Return the options that a function declares, each with its help, as typer takes them."""
    return _Call(function).options


def made_of(options: Mapping[str, tuple[Any, Any]], make: Callable[..., Any]) -> Made:
    """Return the mark of a parameter that is made of these options.

    Args:
        options: Annotation and default of each option, by the name under which `make` gets it.
        make: Function that returns the value of the parameter.
    """

    def call(**given: Any) -> Any:
        return make(**given)

    call.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(name, _KEYWORD, default=default, annotation=kind)
            for name, (kind, default) in options.items()
        ]
    )
    return Made(call)


# ---------------------------------------------------------------- values and help


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
