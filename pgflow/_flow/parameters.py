"""Codecs of arguments by name: an object with the parameters of a function, and no more."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, NotRequired

import pydantic
from typing_extensions import TypedDict

from pgflow._model.codecs import Codec, codec_for


def parameters_codec(
    what: str, name: str, fields: Mapping[str, Any], upcasters: Any = None
) -> Codec[dict[str, Any]]:
    """Return the codec of an object with these parameters.

    Args:
        what: Kind of the function for errors, as in "workflow".
        name: Name of the function.
        fields: Annotations by parameter.
        upcasters: Functions that bring older objects up to date.
    """
    shape = TypedDict(f"the parameters of {name}", fields)  # type: ignore[misc]
    if upcasters is not None:
        shape.__pgflow_upcasters__ = upcasters  # type: ignore[attr-defined]
    shape.__pydantic_config__ = pydantic.ConfigDict(extra="forbid")  # type: ignore[attr-defined]
    return codec_for(shape, f"a parameter of {what} {name}")


def field_of(parameter: inspect.Parameter, hints: Mapping[str, Any]) -> Any:
    """Return the annotation of a parameter, ``NotRequired`` if it has a default."""
    hint = hints.get(parameter.name, Any)
    return hint if parameter.default is parameter.empty else NotRequired[hint]
