"""Defaults of parameters, as values of a call's own.

What a left-out argument means is recorded with the call: a deploy that changes a default changes
nothing for runs that have begun. And Python makes a default once, for all calls: code that changes
it would change it for other runs and for its own replays. So a default is stored as JSON, and read
anew wherever it is needed.
"""

from __future__ import annotations

import contextlib
import inspect
import json
from collections.abc import Callable
from functools import cached_property
from typing import Any

from pgflow._flow.step import resolve_hints
from pgflow._model.codecs import Codec, codec_for
from pgflow.errors import DefinitionError, NotStorable


class Defaults:
    """The defaults of a function.

    Args:
        fn: It.
        what: Name for errors, as in "workflow checkout".
    """

    def __init__(self, fn: Callable[..., Any], what: str) -> None:
        self._fn = fn
        self._what = what

    @cached_property
    def stored(self) -> dict[str, tuple[Codec[Any], str]]:
        """Codec and JSON of each default by the name of its parameter. One that cannot be stored is
        left out: the code gets the object itself, such as a client or a marker.
        """
        given = {
            name: parameter.default
            for name, parameter in inspect.signature(self._fn).parameters.items()
            if parameter.default is not parameter.empty
        }
        hints = resolve_hints(self._fn) if given else {}
        stored = {}
        for name, value in given.items():
            with contextlib.suppress(NotStorable, DefinitionError):
                codec = codec_for(hints.get(name, Any), f"a parameter of {self._what}")
                text = codec.encode(value, "a default")
                codec.decode(text, "a default")
                stored[name] = codec, text
        return stored

    @property
    def text(self) -> str:
        """All of them as one JSON object; empty if there are none."""
        parts = (f"{json.dumps(name)}: {text}" for name, (_, text) in self.stored.items())
        return "{" + ", ".join(parts) + "}" if self.stored else ""

    def fill(self, given: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call by name, with those that were left out."""
        stored = self.stored
        if not stored or given.keys() >= stored.keys():
            return given
        return given | {
            name: codec.decode(text, f"the default of {name} of {self._what}")
            for name, (codec, text) in stored.items()
            if name not in given
        }
