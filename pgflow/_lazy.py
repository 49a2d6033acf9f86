"""Packages whose names are imported when they are used, so that a command starts at once."""

from collections.abc import Callable, Mapping
from importlib import import_module  # noqa: TID251 - of names in the code
from importlib.util import find_spec
from typing import Any


def importer(names: dict[str, Any], homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a package, which finds its modules too.

    Args:
        names: The package's globals.
        homes: The module of each name.
    """
    package = names["__name__"]

    def find(name: str) -> Any:
        if name not in homes:
            if not name.startswith("_") and find_spec(module := f"{package}.{name}"):
                return import_module(module)
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        found = names[name] = getattr(import_module(homes[name]), name)
        return found

    return find
