"""Changed copies of workflow code, made from its source: one durable call deleted, doubled, swapped
with the next, or renamed.

A *site* is a statement of the workflow's function that makes a durable call. Deleting replaces it
by ``pass`` or, where its value is used, its value by a constant; inserting puts a call of a new
step before it; swapping exchanges it with the next site of its block; renaming gives the step that
it calls another name. The changed module is run under the old names.
"""

from __future__ import annotations

import ast
import copy
import dataclasses
import inspect
import linecache
import types
from collections.abc import Iterator
from functools import cache
from typing import Any

import exampleflows

CHANGES = ("delete", "insert", "swap", "rename")

STEPS = ("look_up", "add", "book", "ship", "charge", "flaky", "clean_up", "count", "write_row")
NOTES = ("emit", "set_state", "patched")
CALLS = {*STEPS, *NOTES, "wait", "sleep", "run_child", "map"}

EXTRA = """
@step(name="extra")
async def extra_() -> None:
    return None
"""


@dataclasses.dataclass(frozen=True)
class Change:
    """One change of one workflow's code."""

    workflow: str
    kind: str
    site: int

    def __str__(self) -> str:
        return f"{self.workflow}-{self.kind}-{self.site}"


@cache
def _source() -> str:
    return inspect.getsource(exampleflows)


@cache
def _tree() -> ast.Module:
    return ast.parse(_source())


def _function(tree: ast.Module, name: str) -> Any:
    return next(
        node
        for node in tree.body
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == name
    )


def _called(node: ast.AST) -> str | None:
    """The durable thing that an expression calls, if it is such a call."""
    if not isinstance(node, ast.Call):
        return None
    target = node.func
    names = []
    while isinstance(target, ast.Attribute):
        names.append(target.attr)
        target = target.value
    names.append(target.id if isinstance(target, ast.Name) else "")
    if "asyncio" in names:
        return "sleep" if names[0] == "sleep" else None
    return next((name for name in reversed(names) if name in CALLS), None)


def _blocks(function: Any) -> Iterator[list[ast.stmt]]:
    for node in ast.walk(function):
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if isinstance(block, list) and block and isinstance(block[0], ast.stmt):
                yield block


def _heads(statement: ast.stmt) -> list[ast.AST]:
    """The expressions of a statement itself, without the statements below it."""
    return [
        part
        for name, value in ast.iter_fields(statement)
        if name not in ("body", "orelse", "finalbody", "handlers")
        for part in (value if isinstance(value, list) else [value])
        if isinstance(part, ast.AST)
    ]


def _calls_in(statement: ast.stmt) -> list[ast.Call]:
    return [
        node
        for head in _heads(statement)
        for node in ast.walk(head)
        if isinstance(node, ast.Call) and _called(node)
    ]


def _sites(tree: ast.Module, workflow: str) -> list[tuple[list[ast.stmt], int]]:
    """Return (block, index) of each statement with a durable call, in the workflow's function and
    those that it names.
    """
    functions = [_function(tree, workflow)]
    for function in functions:
        named = {node.id for node in ast.walk(function) if isinstance(node, ast.Name)}
        functions += [
            node
            for node in tree.body
            if isinstance(node, ast.AsyncFunctionDef)
            and node.name in named
            and not node.decorator_list
            and node not in functions
        ]
    return [
        (block, at)
        for function in functions
        for block in _blocks(function)
        for at, statement in enumerate(block)
        if _calls_in(statement)
    ]


def changes(workflow: str) -> list[Change]:
    """Every change of a workflow's code that there is."""
    sites = _sites(_tree(), workflow)
    return [
        Change(workflow, kind, n)
        for n, (block, at) in enumerate(sites)
        for kind in CHANGES
        if _applies(kind, block, at)
    ]


def _applies(kind: str, block: list[ast.stmt], at: int) -> bool:
    if kind == "swap":
        return _next_site(block, at) is not None
    if kind == "rename":
        return _called(_calls_in(block[at])[0]) in STEPS
    return True


def _next_site(block: list[ast.stmt], at: int) -> int | None:
    return next((n for n in range(at + 1, len(block)) if _calls_in(block[n])), None)


class _Constant(ast.NodeTransformer):
    """Takes a durable call out of an expression."""

    def __init__(self, call: ast.Call, *, is_async: bool) -> None:
        self._call, self._is_async = call, is_async

    def visit_Await(self, node: ast.Await) -> Any:
        return ast.Constant(0) if node.value is self._call else self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> Any:
        if node is not self._call:
            return self.generic_visit(node)
        if not self._is_async or _called(node) in NOTES:
            return ast.Constant(0)
        return ast.parse("_nothing()", mode="eval").body


class _Rename(ast.NodeTransformer):
    def __init__(self, call: ast.Call, name: str) -> None:
        self._call, self._name, self._inside = call, name, False

    def visit_Call(self, node: ast.Call) -> Any:
        if node is not self._call:
            return self.generic_visit(node)
        for part in ast.walk(node.func):
            if isinstance(part, ast.Name) and part.id == self._name:
                part.id = f"renamed_{self._name}"
        return node


NOTHING = """
async def _nothing() -> int:
    return 0
"""


def _change(tree: ast.Module, change: Change) -> None:
    block, at = _sites(tree, change.workflow)[change.site]
    statement = block[at]
    call = _calls_in(statement)[0]
    is_async = isinstance(_function(tree, change.workflow), ast.AsyncFunctionDef)
    if change.kind == "delete":
        block[at] = (
            ast.parse("pass").body[0]
            if isinstance(statement, ast.Expr)
            else _Constant(call, is_async=is_async).visit(statement)
        )
    elif change.kind == "insert":
        source = "await extra_()" if is_async else "extra_.sync()"
        block.insert(at, ast.parse(f"async def f():\n    {source}").body[0].body[0])  # type: ignore[attr-defined]
    elif change.kind == "swap":
        other = _next_site(block, at)
        assert other is not None
        block[at], block[other] = block[other], block[at]
    else:
        block[at] = _Rename(call, str(_called(call))).visit(statement)


def is_reached(change: Change, lines: set[int]) -> bool:
    """Return True if code that has asked for something at these lines may have come to the
    change.
    """
    block, at = _sites(_tree(), change.workflow)[change.site]
    changed = (
        [block[at]] if change.kind != "swap" else block[at : (_next_site(block, at) or at) + 1]
    )
    awaited = {
        id(node.value)
        for statement in changed
        for node in ast.walk(statement)
        if isinstance(node, ast.Await)
    }
    calls = [call for statement in changed for call in _calls_in(statement)]
    if any(_called(call) == "map" for call in calls):
        return True  # its calls are made in tasks of its own
    if any(
        id(call) not in awaited and _called(call) not in NOTES for call in calls
    ) and inspect.iscoroutinefunction(getattr(exampleflows, change.workflow).fn):
        return True  # it is handed to a task, in which the line of the call is not seen
    return any(
        call.lineno <= line <= (call.end_lineno or call.lineno) for call in calls for line in lines
    )


def source_of(change: Change) -> str:
    """The source of the changed module."""
    tree = ast.parse(_source())  # a third of what a copy of the tree takes
    _change(tree, change)
    at = next(
        n
        for n, node in enumerate(tree.body)
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "paid"
    )
    extra = EXTRA + NOTHING + "".join(f"renamed_{name} = _again({name})\n" for name in STEPS)
    tree.body[at:at] = ast.parse(extra).body
    return ast.unparse(ast.fix_missing_locations(tree))


@cache
def load(change: Change) -> types.ModuleType:
    """The changed module, whose workflows have the old names."""
    source = source_of(change)
    name = f"changed_{change.workflow}_{change.kind}_{change.site}"
    # errors are rebuilt by the names of their classes
    module = types.ModuleType(exampleflows.__name__)
    module.__file__ = f"<{name}>"
    module.__dict__["_again"] = again
    linecache.cache[module.__file__] = (
        len(source),
        None,
        source.splitlines(keepends=True),
        module.__file__,
    )
    exec(compile(source, module.__file__, "exec"), module.__dict__)
    return module


def again(original: Any) -> Any:
    """The same step under another name."""
    other = copy.copy(original)
    other.name, other._specs = f"new {original.name}", {}
    return other
