"""Variables of the module that functions change."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from pgflow.lint.findings import Finding
from pgflow.lint.module import Module, Region
from pgflow.lint.names import FUNCTIONS, HERE, Assigned, root_of
from pgflow.lint.rules.base import Rule

CHANGERS = frozenset(
    {
        "append", "appendleft", "extend", "extendleft", "insert", "remove", "pop", "popleft",
        "popitem", "clear", "sort", "reverse", "add", "discard", "update", "setdefault",
        "difference_update", "intersection_update", "symmetric_difference_update", "rotate",
        "subtract",
    }
)  # fmt: skip
"""Methods by which lists, dicts, sets and their like change."""

CONTAINERS = frozenset(
    {"builtins.list", "builtins.dict", "builtins.set", "builtins.bytearray"}
    | {
        f"collections.{name}"
        for name in ("defaultdict", "deque", "Counter", "OrderedDict", "ChainMap")
    }
)


class ModuleState(Rule):
    """PF108."""

    code = "PF108"
    title = "mutable state of the module"
    why = "its value is that of the process, not of the run"
    instead = "pass it as an argument, keep it in a local variable, or read it in a step"
    bad = """import pgflow

limit = 10

def raise_limit() -> None:
    global limit
    limit += 1

@pgflow.workflow
async def fits(size: int) -> bool:
    return size <= limit
"""
    good = """import pgflow

@pgflow.workflow
async def fits(size: int, limit: int) -> bool:
    return size <= limit
"""

    def check(self, module: Module) -> Iterator[Finding]:
        """Yield the first place in each function of workflow code that reads or changes such a
        variable.
        """
        if not module.regions:
            return
        changed = _changed_variables(module)
        first: dict[tuple[ast.AST, str], tuple[ast.Name, Region]] = {}
        for node, region in module.nodes() if changed else ():
            if isinstance(node, ast.Name) and module.names.module_variable(node) in changed:
                known = first.setdefault((region.function, node.id), (node, region))
                if (node.lineno, node.col_offset) < (known[0].lineno, known[0].col_offset):
                    first[region.function, node.id] = (node, region)
        for node, region in first.values():
            where = f"which line {changed[node.id]} changes"
            yield self.found(
                module, node, f"variable {node.id} of the module, {where}, {region.place}"
            )


def _changed_variables(module: Module) -> dict[str, int]:
    """Variables of the module that code in a function changes, with the first line that does.

    Functions that run only while the module is imported, such as decorators that register
    something, do not count.
    """
    found: dict[str, int] = {}
    early = _run_by_import(module)
    for node in module.names.scope_of:
        name = _changed(node, module)
        around = module.names.function_around(node) if name is not None else None
        if (
            name is not None
            and around is not None
            and module.names.outermost_function(node) not in early
        ):
            line: int = node.lineno  # type: ignore[attr-defined]
            found[name] = min(found.get(name, line), line)
    return found


def _run_by_import(module: Module) -> set[ast.AST]:
    """Functions that are decorators of what the module defines, or that it calls by a statement at
    its top; and nothing else.
    """
    by_import: set[str] = set()
    otherwise: set[str] = set()
    for node in module.names.scope_of:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            path = module.names.resolve(node)
            if path is not None and path.startswith(HERE):
                (by_import if _is_used_by_import(node, module) else otherwise).add(
                    path.removeprefix(HERE)
                )
    return {
        module.names.defined[name] for name in by_import - otherwise if name in module.names.defined
    }


def _is_used_by_import(node: ast.Name, module: Module) -> bool:
    if module.names.function_around(node) is not None:
        return False
    used, user = _called(node, module)
    if isinstance(user, (*FUNCTIONS, ast.ClassDef)):
        return used in user.decorator_list
    return (
        isinstance(user, ast.Expr)
        and used is not node
        and module.names.parent_of.get(user) is module.tree
    )


def _called(node: ast.expr, module: Module) -> tuple[ast.AST, ast.AST | None]:
    """Return the call that a name is the function of, or the name itself; and the node around
    that.
    """
    parent = module.names.parent_of.get(node)
    if isinstance(parent, ast.Call) and parent.func is node:
        return parent, module.names.parent_of.get(parent)
    return node, parent


def _changed(node: ast.AST, module: Module) -> str | None:
    names = module.names
    match node:
        case ast.Name(ctx=ast.Store() | ast.Del()):
            return names.module_variable(node)
        case (
            ast.Subscript(ctx=ast.Store() | ast.Del()) | ast.Attribute(ctx=ast.Store() | ast.Del())
        ):
            return names.module_variable(root_of(node))
        case ast.Call(func=ast.Attribute(value=ast.Name() as changed, attr=method)) if (
            method in CHANGERS
        ):
            return names.module_variable(changed) if _is_container(changed, module) else None
        case ast.Call(func=ast.Name() as function, args=[ast.Name() as changed, *_]) if (
            names.resolve(function) == "builtins.next"
        ):
            return names.module_variable(changed)
        case _:
            return None


def _is_container(node: ast.Name, module: Module) -> bool:
    found = module.names.scope_of.get(node, module.names.module).find(node.id)
    return found is not None and any(
        isinstance(binding, Assigned) and _holds(binding, module) for binding in found[1]
    )


def _holds(binding: Assigned, module: Module) -> bool:
    match binding.value:
        case ast.List() | ast.Dict() | ast.Set() | ast.ListComp() | ast.DictComp() | ast.SetComp():
            return True
        case ast.Call(func=function):
            return module.names.resolve(function) in CONTAINERS
        case _:
            return False
