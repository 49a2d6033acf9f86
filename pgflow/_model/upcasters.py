"""Upcasters: read values that were recorded with an older form of a class.

A payload does not record its form. It is read with the class of today, and only a value that does
not fit goes through the class's upcasters, wherever the class occurs in it: the newest alone, then
the last two in order, and so on to all of them, until the class accepts the result. So each
upcaster turns one form into the next, and current values cost nothing. Recorded values never
change.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pydantic
from pydantic_core import core_schema

from pgflow._model.coreschemas import CONFIGURED, has, rebuild
from pgflow.errors import DefinitionError

Upcast = Callable[[dict[str, Any]], dict[str, Any]]
"""Turns the JSON object of one form of a class into that of the next."""

U = TypeVar("U", bound=Upcast)

_of: dict[type, list[Upcast]] = {}
_declared = [0]


def upcaster(target: Any, /) -> Callable[[U], U]:
    """Declare how to read an older recorded form of a class, or of a workflow's input.

    Tried where an input, a result of a step or child, a result of a run or the payload of a signal
    does not fit the class any more. A form that still fits is taken as it is: let what has changed
    be a required field, or forbid what is unknown. Several for one class are a chain:
    declare the oldest first.

    Args:
        target: A pydantic model, dataclass or TypedDict;
            or a workflow, for the object of its parameters.

    Raises:
        DefinitionError: Values of the target are not objects of named fields.

    Example::

        @upcaster(Order)
        def item_became_items(old: dict[str, Any]) -> dict[str, Any]:
            return {"items": [old["item"]], "customer": old["customer"]}
    """
    chain = _chain_of(target)

    def declare(function: U) -> U:
        chain.append(function)
        _declared[0] += 1
        return function

    return declare


def _chain_of(target: Any) -> list[Upcast]:
    own = getattr(target, "upcasters", None)
    if isinstance(own, list) and not isinstance(target, type):
        return own
    is_object = isinstance(target, type) and (
        issubclass(target, pydantic.BaseModel)
        or hasattr(target, "__dataclass_fields__")
        or hasattr(target, "__required_keys__")
    )
    if not is_object:
        raise DefinitionError(
            "upcaster() takes a pydantic model, a dataclass, a TypedDict or a workflow, not "
            f"{target!r}"
        )
    return _of.setdefault(target, [])


def is_any() -> bool:
    """Return True if any upcaster was declared."""
    return _declared[0] > 0


def count() -> int:
    """Return the number of upcasters declared so far."""
    return _declared[0]


def weave_in(schema: Any) -> Any:
    """A core schema in which each class that has upcasters lets them try what it does not take.
    It is the same one if there is no such class, which takes less than a copy to find out.
    """
    if not has(schema, lambda part: bool(_upcasters_of(part.get("cls")))):
        return schema
    return rebuild(schema, _weave_into)


def _weave_into(part: Any) -> Any:
    chain = _upcasters_of(part.get("cls"))
    if not chain or part.get("type") not in CONFIGURED:
        return part
    ref = part.pop("ref", None)
    return core_schema.no_info_wrap_validator_function(_Attempts(chain), part, ref=ref)


def _upcasters_of(cls: Any) -> list[Upcast]:
    if not isinstance(cls, type):
        return []
    return _of.get(cls) or getattr(cls, "__pgflow_upcasters__", [])


class _Attempts:
    """Validates as the class does, else after the newest upcaster,
    after the newest two, and so on.
    """

    def __init__(self, chain: list[Upcast]) -> None:
        self._chain = chain

    def __call__(self, value: Any, handler: core_schema.ValidatorFunctionWrapHandler) -> Any:
        try:
            return handler(value)
        except pydantic.ValidationError:
            if not isinstance(value, dict):
                raise
            for first in range(len(self._chain) - 1, -1, -1):
                taken, fits = self._try(dict(value), self._chain[first:], handler)
                if fits:
                    return taken
            raise

    @staticmethod
    def _try(
        value: Any, chain: list[Upcast], handler: core_schema.ValidatorFunctionWrapHandler
    ) -> tuple[Any, bool]:
        try:
            for upcast in chain:
                value = upcast(value)
            return handler(value), True
        except (pydantic.ValidationError, LookupError, TypeError, ValueError, AttributeError):
            # It is of another form.
            return None, False
