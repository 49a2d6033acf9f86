"""Patches in the code of a workflow: workers announce them, so that you can see when an old side is
no longer used.

They are read from the source, since a patch that no run has reached yet counts too: from the
function, the functions of its module that it names, and so on. A name that is not a literal, or a
patch in another module, is not found; it is shown as a patch that the code may lack, which errs on
the safe side.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

_FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


def find_patches(fn: Callable[..., Any]) -> dict[str, bool]:
    """Names of patches, each with whether only ``deprecate_patch`` names it; none where the source
    cannot be read.
    """
    found: dict[str, bool] = {}
    for node in functions_reached(fn):
        for patch, is_deprecated in _calls(node):
            found[patch] = found.get(patch, True) and is_deprecated
    return found


def functions_reached(fn: Callable[..., Any]) -> Iterator[ast.AST]:
    """The source of a function, of the functions of its module that it names, and so on; nothing
    where it cannot be read.
    """
    module = inspect.getmodule(fn)
    try:
        functions = _functions(inspect.getsource(module) if module is not None else "")
    except (OSError, TypeError, SyntaxError):
        return
    line = fn.__code__.co_firstlineno
    pending = [node for nodes in functions.values() for node in nodes if _first_line(node) == line]
    seen: set[int] = set()
    while pending:
        node = pending.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        yield node
        pending += [other for name in _names(node) for other in functions.get(name, ())]


@lru_cache(maxsize=256)
def _functions(source: str) -> dict[str, list[_FunctionNode]]:
    found: dict[str, list[_FunctionNode]] = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            found.setdefault(node.name, []).append(node)
    return found


def _first_line(node: _FunctionNode) -> int:
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])


def _names(node: ast.AST) -> Iterator[str]:
    for part in ast.walk(node):
        if isinstance(part, ast.Name):
            yield part.id
        elif isinstance(part, ast.Attribute):
            yield part.attr


def _calls(node: ast.AST) -> Iterator[tuple[str, bool]]:
    for part in ast.walk(node):
        if not isinstance(part, ast.Call):
            continue
        name = (
            part.func.attr
            if isinstance(part.func, ast.Attribute)
            else part.func.id
            if isinstance(part.func, ast.Name)
            else ""
        )
        given = [*part.args, *(keyword.value for keyword in part.keywords if keyword.arg == "id")]
        if (
            name in ("patched", "deprecate_patch")
            and given
            and isinstance(given[0], ast.Constant)
            and isinstance(given[0].value, str)
        ):
            yield given[0].value, name == "deprecate_patch"
