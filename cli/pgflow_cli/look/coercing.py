"""Typed words as values of a parameter's type, without pydantic, which takes longer to import than
most commands take. What needs more than this, such as the message about a bad value, is typer's.
"""

from __future__ import annotations

import os
import re
from enum import Enum
from pathlib import Path
from typing import Any, get_args


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
