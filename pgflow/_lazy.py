"""Packages whose names are imported when they are used, so that a command starts at once."""

from collections.abc import Callable, Mapping
from importlib import import_module  # noqa: TID251 - of names in the code
from typing import Any


def importer(names: dict[str, Any], homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a package.

    Args:
        names: The package's globals.
        homes: The module of each name.
    """
    package = names["__name__"]

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        found = names[name] = getattr(import_module(homes[name]), name)
        return found

    return find
