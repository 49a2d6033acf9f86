"""Unbuilt parts of the surface, found in the code of a workflow before a run of it is started.

Read from the source, as patches are: the function, and the functions of its module that it names,
and so on. What is called by way of other modules is not found here. It raises when it is called,
and `pgflow check` reads those modules.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from pgflow._flow.patches import functions_reached

F = TypeVar("F", bound=Callable[..., Any])

_MARK = "__pgflow_not_built__"


def declared_only(what: str) -> Callable[[F], F]:
    """Marks a function of the surface as one that only raises NotBuiltError.

    Args:
        what: Things that are not built, in the plural, as messages say it.
    """

    def mark(fn: F) -> F:
        setattr(fn, _MARK, what)
        return fn

    return mark


def find_unbuilt(fn: Callable[..., Any]) -> str | None:
    """Return the first unbuilt thing that a workflow's code uses, with its line; None if there is
    none, or the source cannot be read.
    """
    module = inspect.getmodule(fn)
    for node in functions_reached(fn):
        for part, what in _uses(node, vars(module) if module is not None else {}):
            return (
                f"{what} are not built yet, and {module.__name__ if module else '?'}:{part.lineno} "
                f"uses {ast.unparse(part)}"
            )
    return None


def _uses(node: ast.AST, names: dict[str, Any]) -> Iterator[tuple[ast.expr, str]]:
    for part in ast.walk(node):
        if (
            isinstance(part, (ast.Name, ast.Attribute))
            and (what := getattr(_value(part, names), _MARK, None)) is not None
        ):
            yield part, what


def _value(node: ast.expr, names: dict[str, Any]) -> Any:
    """Return the value of a dotted name among the names of a module; None if it is not known."""
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if not isinstance(node, ast.Attribute):
        return None
    holder = _value(node.value, names)
    return getattr(holder, node.attr, None) if inspect.ismodule(holder) else None
