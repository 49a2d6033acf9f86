"""Functions that update the state of a run or an entity: arguments and result as JSON."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, ClassVar, Generic, ParamSpec, TypeVar

from pgflow._flow.defaults import Defaults
from pgflow._flow.parameters import field_of, parameters_codec
from pgflow._flow.step import resolve_hints
from pgflow._model.codecs import Codec, codec_for

P = ParamSpec("P")
R = TypeVar("R")


class UpdateFunction(Generic[P, R]):
    """A function whose first parameter is the state, with its arguments and result as JSON."""

    returns: ClassVar[str] = "the answer to"
    """Name of the result for errors."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.fn = fn
        self.name: str = fn.__name__
        self._check: Callable[..., object] | None = None
        self._signature = inspect.signature(fn)
        self._defaults = Defaults(fn, f"update {fn.__name__}")
        self._args: Codec[dict[str, Any]] | None = None
        self._result: Codec[R] | None = None
        self.__doc__ = fn.__doc__

    @property
    def args_codec(self) -> Codec[dict[str, Any]]:
        """Codec of its arguments, an object of the parameters behind the state."""
        if self._args is None:
            hints = resolve_hints(self.fn)
            _, *parameters = self._signature.parameters.values()
            fields = {p.name: field_of(p, hints) for p in parameters}
            self._args = parameters_codec("update", self.name, fields)
        return self._args

    @property
    def result_codec(self) -> Codec[R]:
        """Codec of its result."""
        if self._result is None:
            self._result = codec_for(
                resolve_hints(self.fn).get("return", Any), f"{self.returns} update {self.name}"
            )
        return self._result

    def encode_args(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], *, is_hidden: bool = False
    ) -> str:
        """Return the arguments as JSON text, checked to be readable by the function.

        Args:
            args: The arguments by position.
            kwargs: The arguments by name.
            is_hidden: True if the text is encrypted before it is stored.

        Raises:
            TypeError: They do not fit the signature.
            NotStorable: A value cannot be stored, or not be read back as its annotation says.
        """
        what = f"the arguments of update {self.name}"
        _, *bound = self._signature.bind(None, *args, **kwargs).arguments.items()
        given = self._defaults.fill(dict(bound))
        text = self.args_codec.encode(given, what, is_hidden=is_hidden)
        self.args_codec.decode(text, what)
        return text

    def decode_args(self, text: str) -> dict[str, Any]:
        """Return the arguments by name.

        Raises:
            NotStorable: They do not fit the annotations.
        """
        return self._defaults.fill(
            self.args_codec.decode(text, f"the arguments of update {self.name}")
        )
