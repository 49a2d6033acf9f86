"""Sets: expressions that are sets, as far as the text shows.

Text hashes differently in every process, so every replay iterates over a set of it in another
order. Sets of tasks are allowed: in workflow code tasks hash by an ordinal.
"""

from __future__ import annotations

import ast

from pgflow.lint.names import Assigned, Changed, Names
from pgflow.lint.vocabulary import SCHEDULED

MAKERS = frozenset({"builtins.set", "builtins.frozenset"})
CLASSES = MAKERS | {
    "typing.Set",
    "typing.FrozenSet",
    "typing.AbstractSet",
    "typing.MutableSet",
    "collections.abc.Set",
    "collections.abc.MutableSet",
}
METHODS = frozenset({"union", "intersection", "difference", "symmetric_difference", "copy"})
TASKS = frozenset({"asyncio.Task", "asyncio.Future"})


class Sets:
    """Finds expressions that are sets.

    Args:
        names: Of the module.
    """

    def __init__(self, names: Names) -> None:
        self._names = names
        self._asking: set[ast.AST] = set()

    def is_set(self, node: ast.expr) -> bool:
        """Return True if an expression is a set of something other than tasks."""
        if node in self._asking:
            return False
        self._asking.add(node)
        try:
            return self._is_set(node)
        finally:
            self._asking.discard(node)

    def _is_set(self, node: ast.expr) -> bool:
        match node:
            case ast.Set(elts=elements):
                return not any(makes_task(element) for element in elements)
            case ast.SetComp(elt=element):
                return not makes_task(element)
            case ast.Call():
                return self._call(node)
            case ast.BinOp(
                left=left, op=ast.BitOr() | ast.BitAnd() | ast.BitXor() | ast.Sub(), right=right
            ):
                return any(self.is_set(side) or _is_view(side) for side in (left, right))
            case ast.IfExp(body=body, orelse=other):
                return self.is_set(body) and self.is_set(other)
            case ast.NamedExpr(value=value):
                return self.is_set(value)
            case ast.Name():
                return self._name(node)
            case _:
                return False

    def _call(self, node: ast.Call) -> bool:
        if (
            isinstance(node.func, ast.Attribute)
            and node.func.attr in METHODS
            and self.is_set(node.func.value)
        ):
            return True
        if self._names.resolve(node.func) not in MAKERS:
            return False
        match node.args:
            case [ast.GeneratorExp(elt=element) | ast.ListComp(elt=element)]:
                return not makes_task(element)
            case _:
                return True

    def _name(self, node: ast.Name) -> bool:
        found = self._names.scope_of.get(node, self._names.module).find(node.id)
        if found is None:
            return False
        bindings = [binding for binding in found[1] if not isinstance(binding, Changed)]
        return (
            bool(bindings)
            and all(isinstance(b, Assigned) and self._assigned(b) for b in bindings)
            and not self._holds_tasks(node)
        )

    def _assigned(self, binding: Assigned) -> bool:
        if binding.annotation is not None:
            return self._is_class(binding.annotation)
        return binding.value is not None and self.is_set(binding.value)

    def _is_class(self, annotation: ast.expr) -> bool:
        match annotation:
            case ast.Subscript(value=value, slice=element):
                return self._is_class(value) and not self._is_task(element)
            case _:
                return self._names.resolve(annotation) in CLASSES

    def _is_task(self, element: ast.expr) -> bool:
        return (
            self._names.resolve(element.value if isinstance(element, ast.Subscript) else element)
            in TASKS
        )

    def _holds_tasks(self, node: ast.Name) -> bool:
        """Return True if tasks are added to a set that begins empty."""
        around = self._names.function_around(node)
        calls = (
            (found for found in ast.walk(around) if isinstance(found, ast.Call))
            if around is not None
            else ()
        )
        return any(_adds_task(call, node.id) for call in calls)


def _adds_task(call: ast.Call, name: str) -> bool:
    match call:
        case ast.Call(
            func=ast.Attribute(value=ast.Name(id=added), attr="add" | "discard" | "update"),
            args=[element],
        ) if added == name:
            return makes_task(element) or (
                isinstance(element, ast.Name) and element.id in ("task", "tasks", "future")
            )
        case _:
            return False


def makes_task(node: ast.expr) -> bool:
    """Return True if an expression makes a task of a coroutine."""
    match node:
        case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name)):
            return name in SCHEDULED
        case _:
            return False


def _is_view(node: ast.expr) -> bool:
    match node:
        case ast.Call(func=ast.Attribute(attr="keys" | "items"), args=[]):
            return True
        case _:
            return False
