"""Arguments by name, as JSON and back: an object with the parameters of a function, and no more."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NotRequired

import pydantic
from typing_extensions import TypedDict

from pgflow._flow.defaults import Defaults
from pgflow._flow.step import resolve_hints
from pgflow._model.codecs import Codec, codec_for


def parameters_codec(
    name: str, hints: Mapping[str, Any], what: str, upcasters: Any = None
) -> Codec[dict[str, Any]]:
    """Return the codec of an object with these parameters.

    Args:
        name: Name of the function.
        hints: Annotations by parameter; ``NotRequired`` for those that may be left out.
        what: Kind of the function for errors, as in "workflow".
        upcasters: Functions that bring older values up.
    """
    shape = TypedDict(f"the parameters of {name}", hints)  # type: ignore[misc]
    if upcasters is not None:
        shape.__pgflow_upcasters__ = upcasters  # type: ignore[attr-defined]
    shape.__pydantic_config__ = pydantic.ConfigDict(extra="forbid")  # type: ignore[attr-defined]
    return codec_for(shape, f"a parameter of {what} {name}")


def needed(parameter: inspect.Parameter, hint: Any) -> Any:
    """Return an annotation, ``NotRequired`` if the parameter has a default."""
    return hint if parameter.default is parameter.empty else NotRequired[hint]


class UpdateArguments:
    """The arguments of an update, without the state that comes first.

    Args:
        fn: The function of the update.
    """

    def __init__(self, fn: Callable[..., Any]) -> None:
        self._fn = fn
        self._name = fn.__name__
        self._signature = inspect.signature(fn)
        self._defaults = Defaults(fn, f"update {self._name}")
        self._made: Codec[dict[str, Any]] | None = None

    @property
    def codec(self) -> Codec[dict[str, Any]]:
        """Codec of the object of the parameters."""
        if self._made is None:
            hints = resolve_hints(self._fn)
            _, *parameters = self._signature.parameters.values()
            fields = {p.name: needed(p, hints.get(p.name, Any)) for p in parameters}
            self._made = parameters_codec(self._name, fields, "update")
        return self._made

    def encode(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """Return the arguments as JSON text, checked to be readable by the update.

        Raises:
            TypeError: They do not fit the signature.
            NotStorable: A value cannot be stored, or not be read back as its annotation says.
        """
        what = f"the arguments of update {self._name}"
        _, *bound = self._signature.bind(None, *args, **kwargs).arguments.items()
        text = self.codec.encode(self._defaults.fill(dict(bound)), what)
        self.codec.decode(text, what)
        return text

    def decode(self, text: str) -> dict[str, Any]:
        """Return the arguments by name, with the defaults of those that were left out."""
        return self._defaults.fill(self.codec.decode(text, f"the arguments of update {self._name}"))
