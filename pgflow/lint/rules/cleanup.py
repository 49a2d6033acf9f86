"""Code that runs when a run is taken apart.

A run that waits is unwound: an exception that is no `Exception` goes through the workflow, so that
its ``finally`` runs, and runs again whenever the run waits once more. Durable calls know of it and
do nothing then. Nothing else does.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from pgflow.lint.findings import Finding
from pgflow.lint.module import Module, Region
from pgflow.lint.names import FUNCTIONS, HERE, root_of
from pgflow.lint.rules.base import Rule
from pgflow.lint.rules.outside import written

TRIES = (ast.Try, ast.TryStar)
LOUD = frozenset(
    {
        "builtins.print",
        "builtins.open",
        "builtins.input",
        "builtins.exec",
        "builtins.setattr",
        "builtins.delattr",
    }
)
"""Builtins that do something to others."""


class SideEffectInCleanup(Rule):
    """PF201."""

    code = "PF201"
    title = "side effect in finally"
    why = "it happens whenever the run is put aside to wait, and again when it ends"
    instead = "put it into a step and call that: steps know when a run is only put aside"
    bad = """import shutil
import pgflow

@pgflow.workflow
async def build(folder: str) -> None:
    try:
        await pgflow.sleep(60)
    finally:
        shutil.rmtree(folder)
"""
    good = """import shutil
import pgflow

@pgflow.step
def clear(folder: str) -> None:
    shutil.rmtree(folder)

@pgflow.workflow
async def build(folder: str) -> None:
    try:
        await pgflow.sleep(60)
    finally:
        await clear.aio(folder)
"""

    def check(self, module: Module) -> Iterator[Finding]:
        """Plain calls and assignments that others notice,
        in ``finally`` and in handlers of everything.
        """
        for node, region in module.nodes():
            if isinstance(node, TRIES):
                for block, name in _cleanups(node, module):
                    for found, what in _effects(block, module, frozenset()):
                        yield self.found(module, found, f"{what} in {name} {region.place}")


def _cleanups(node: ast.Try | ast.TryStar, module: Module) -> Iterator[tuple[list[ast.stmt], str]]:
    yield node.finalbody, "finally"
    for handler in node.handlers:
        if catches_all(handler, module):
            yield handler.body, "a handler of every exception"


def catches_all(handler: ast.ExceptHandler, module: Module) -> bool:
    """Return True if a handler catches the exceptions that take a run apart."""
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(
        kind is None or module.names.resolve(kind) == "builtins.BaseException" for kind in kinds
    )


def _effects(
    block: list[ast.stmt], module: Module, inside: frozenset[ast.AST]
) -> Iterator[tuple[ast.AST, str]]:
    """Statements of a block that others notice, with what they are called."""
    for node in _statements(block):
        match node:
            case ast.Expr(value=ast.Await(value=ast.Call() as call)):
                what = _effect_of(call, module, inside, is_awaited=True)
            case ast.Expr(value=ast.Call() as call):
                what = _effect_of(call, module, inside, is_awaited=False)
            case (
                ast.Assign(targets=[ast.Attribute() | ast.Subscript() as target, *_])
                | ast.AugAssign(target=ast.Attribute() as target)
            ):
                root = root_of(target)
                what = (
                    "an assignment"
                    if isinstance(root, ast.Name) and not module.names.is_local(root)
                    else None
                )
            case _:
                what = None
        if what is not None:
            yield node, what


def _effect_of(
    call: ast.Call, module: Module, inside: frozenset[ast.AST], *, is_awaited: bool
) -> str | None:
    """Return a description of a call that others notice;
    None if they do not, or if that is not known.
    """
    path = module.names.resolve(call.func)
    if path is None:
        root = root_of(call.func)
        is_of_module = isinstance(root, ast.Name) and module.names.module_variable(root) is not None
        return f"{ast.unparse(call.func)}()" if is_of_module else None
    if module.definitions.find(path) is not None or path.startswith(("pgflow.", "asyncio.")):
        return None
    if path.startswith(HERE):
        return _effect_inside(path.removeprefix(HERE).replace("()", ""), module, inside)
    if path.startswith("builtins."):
        return f"{written(path)}()" if path in LOUD else None
    if is_awaited or module.names.is_local(root_of(call.func)):
        return None  # it may be a step of another module, or clear away what the run alone knows of
    return f"{ast.unparse(call.func)}()"


def _effect_inside(name: str, module: Module, inside: frozenset[ast.AST]) -> str | None:
    """Return a description of a function of this module that others notice, or None."""
    function = module.names.defined.get(name)
    if not isinstance(function, FUNCTIONS) or function in inside:
        return None
    found = next(_effects(function.body, module, inside | {function}), None)
    return f"{found[1]} (by {function.name}())" if found is not None else None


def _statements(block: list[ast.stmt]) -> Iterator[ast.stmt]:
    todo: list[ast.AST] = list(reversed(block))
    while todo:
        node = todo.pop()
        if isinstance(node, ast.stmt):
            yield node
        if not isinstance(node, (*FUNCTIONS, ast.ClassDef, ast.expr)):
            todo.extend(reversed(list(ast.iter_child_nodes(node))))


class SwallowedUnwind(Rule):
    """PF202."""

    code = "PF202"
    title = "exception swallowed"
    why = "a run that waits or is cancelled is taken apart by an exception, which must get through"
    instead = "catch Exception, or raise again"
    bad = """import pgflow

@pgflow.workflow
async def patient() -> str:
    try:
        await pgflow.sleep(60)
    except BaseException:
        return "given up"
    return "slept"
"""
    good = bad.replace("except BaseException:", "except Exception:")

    def check(self, module: Module) -> Iterator[Finding]:
        """Handlers of everything that raise nothing,
        and ``finally`` blocks that leave by another way.
        """
        for node, region in module.nodes():
            match node:
                case ast.ExceptHandler() if catches_all(node, module) and not any(
                    isinstance(s, ast.Raise) for s in _statements(node.body)
                ):
                    clause = "a bare except" if node.type is None else "except BaseException"
                    yield self._found(module, node, f"{clause} that does not raise again", region)
                case ast.Try(finalbody=block) | ast.TryStar(finalbody=block):
                    for leaving in _leaving(block):
                        yield self._found(
                            module, leaving, f"{type(leaving).__name__.lower()} in finally", region
                        )
                case ast.Call(func=function, args=kinds) if (
                    module.names.resolve(function) == "contextlib.suppress"
                ):
                    if any(
                        module.names.resolve(kind) == "builtins.BaseException" for kind in kinds
                    ):
                        yield self._found(
                            module, node, "contextlib.suppress(BaseException)", region
                        )

    def _found(self, module: Module, node: ast.AST, what: str, region: Region) -> Finding:
        return self.found(module, node, f"{what} {region.place}")


def _leaving(block: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements that leave a block without its exception; loops inside it may be left."""
    for node in block:
        if isinstance(node, (ast.Return, ast.Break, ast.Continue)):
            yield node
        elif isinstance(node, (ast.For, ast.AsyncFor, ast.While)):
            yield from (found for found in _statements([node]) if isinstance(found, ast.Return))
        elif not isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            for field in ("body", "orelse", "finalbody"):
                yield from _leaving(getattr(node, field, []))
            for part in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
                yield from _leaving(part.body)
