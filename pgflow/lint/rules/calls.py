"""Calls of declared things in workflow code: awaited, as a child, through the journal."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from pgflow.lint.definitions import Callee, Kind
from pgflow.lint.findings import Finding
from pgflow.lint.module import Module, Region
from pgflow.lint.names import FUNCTIONS, HERE, Function
from pgflow.lint.rules.base import Rule
from pgflow.lint.vocabulary import ASYNC_TWINS, OF_WORKFLOWS, SYNC_TWINS, WAITING


class MissingAwait(Rule):
    """PF203."""

    code = "PF203"
    title = "missing await"
    why = "without it nothing happens"
    instead = "await it"
    bad = """import pgflow

@pgflow.step
async def ship(order: int) -> None:
    pass

@pgflow.workflow
async def fulfil(order: int) -> None:
    ship(order)
"""
    good = bad.replace("ship(order)", "await ship(order)")

    def check(self, module: Module) -> Iterator[Finding]:
        """Calls that make a coroutine and throw it away, or take it for its result."""
        for node, region in module.nodes():
            if (
                isinstance(node, ast.Call)
                and (called := _coroutine(node, module)) is not None
                and _is_lost(node, module)
            ):
                how = (
                    self.instead
                    if _is_in_async(node, module)
                    else f"in a sync workflow, call {_sync_twin(called, node, module)}()"
                )
                yield self.found(module, node, f"{called}() {region.place} is not awaited", how)


def _coroutine(call: ast.Call, module: Module) -> str | None:
    """Return the called expression if the call makes a coroutine, else None."""
    callee = module.callee(call.func)
    if callee is not None:
        return ast.unparse(call.func) if _is_async_door(callee) else None
    path = module.names.resolve(call.func)
    if path is None:
        return None
    if path in WAITING:
        return ast.unparse(call.func)
    function = module.names.defined.get(path.removeprefix(HERE)) if path.startswith(HERE) else None
    is_coroutine = (
        isinstance(function, ast.AsyncFunctionDef)
        and not function.decorator_list
        and not _is_generator(function)
    )
    return ast.unparse(call.func) if is_coroutine else None


def _is_async_door(callee: Callee) -> bool:
    return callee.declared.kind is not Kind.WORKFLOW and (
        callee.door == "aio" or (callee.door == "" and callee.declared.is_async)
    )


def _is_generator(function: Function) -> bool:
    todo: list[ast.AST] = list(function.body)
    while todo:
        node = todo.pop()
        if isinstance(node, (ast.Yield, ast.YieldFrom)):
            return True
        if not isinstance(node, (*FUNCTIONS, ast.Lambda)):
            todo.extend(ast.iter_child_nodes(node))
    return False


def _is_in_async(node: ast.AST, module: Module) -> bool:
    return isinstance(module.names.function_around(node), ast.AsyncFunctionDef)


def _sync_twin(called: str, call: ast.Call, module: Module) -> str:
    """Return the name that sync code calls instead."""
    twin = SYNC_TWINS.get(module.names.resolve(call.func) or "")
    return f"{called.removesuffix('.aio')}.sync" if twin is None else _as_said(twin, called)


def _as_said(twin: str, called: str) -> str:
    """Return a twin in the words of the module: a signal has a name there."""
    _, is_signal, method = twin.partition("Signal().")
    if not is_signal:
        return twin
    return f"{called.removesuffix('.wait').removesuffix('.sync')}.{method}"


def _is_lost(call: ast.Call, module: Module) -> bool:
    """Return True if a coroutine is dropped, or used as if it were the result."""
    parent = module.names.parent_of.get(call)
    match parent:
        case (
            ast.Expr()
            | ast.BoolOp()
            | ast.Compare()
            | ast.UnaryOp()
            | ast.BinOp()
            | ast.FormattedValue()
        ):
            return True
        case (
            ast.If(test=test) | ast.While(test=test) | ast.Assert(test=test) | ast.IfExp(test=test)
        ):
            return test is call
        case ast.Match(subject=taken) | ast.For(iter=taken) | ast.comprehension(iter=taken):
            return taken is call
        case ast.Attribute(attr=attribute):
            return attribute not in ("send", "throw", "close")
        case ast.Subscript(value=value):
            return value is call
        case ast.Return():
            return _is_in_async(call, module)
        case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
            return not _is_read(name, call, module)
        case _:
            return False


def _is_read(name: str, call: ast.Call, module: Module) -> bool:
    around = module.names.function_around(call)
    return around is None or any(
        isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Load)
        for n in ast.walk(around)
    )


class WorkflowCalled(Rule):
    """PF204."""

    code = "PF204"
    title = "workflow called as a function"
    why = "a workflow is started, not called: this raises TypeError"
    instead = "pgflow.run_child(...) starts it as a child and waits"
    bad = """import pgflow

@pgflow.workflow
async def pack(order: int) -> str:
    return f"parcel {order}"

@pgflow.workflow
async def fulfil(order: int) -> str:
    return await pack(order)
"""
    good = bad.replace("return await pack(order)", "return await pgflow.run_child(pack, order)")

    def check(self, module: Module) -> Iterator[Finding]:
        """Find calls of a workflow in workflow code."""
        for node, region, callee in _calls(module):
            if callee.declared.kind is Kind.WORKFLOW and not callee.door:
                name = callee.declared.name
                twin = (
                    f"await pgflow.run_child({name}, ...)"
                    if _is_in_async(node, module)
                    else f"pgflow.sync.run_child({name}, ...)"
                )
                yield self.found(
                    module,
                    node,
                    f"workflow {name} is called {region.place}",
                    f"{twin} starts it as a child and waits",
                )


class BodyCalled(Rule):
    """PF205."""

    code = "PF205"
    title = "step called past the journal"
    why = "the undecorated function is not recorded, and runs again at every replay"
    instead = "call the step itself"
    bad = """import pgflow

@pgflow.step
async def ship(order: int) -> str:
    return f"parcel {order}"

@pgflow.workflow
async def fulfil(order: int) -> str:
    return await ship.fn(order)
"""
    good = bad.replace("return await ship.fn(order)", "return await ship(order)")

    def check(self, module: Module) -> Iterator[Finding]:
        """Find calls of the function under a step in workflow code."""
        for node, region, callee in _calls(module):
            if callee.declared.kind is not Kind.WORKFLOW and callee.door == "fn":
                yield self.found(module, node, f"{callee.declared.name}.fn() {region.place}")


def _calls(module: Module) -> Iterator[tuple[ast.Call, Region, Callee]]:
    for node, region in module.nodes():
        if isinstance(node, ast.Call) and (callee := module.callee(node.func)) is not None:
            yield node, region, callee


class WaitInBody(Rule):
    """PF206."""

    code = "PF206"
    title = "wait in the body of a step"
    why = "a body cannot wait for people, signals, time or other runs, and raises NotInRunError"
    instead = "wait in the workflow, and call the step with what came of it"
    bad = """import pgflow

@pgflow.step
async def publish(text: str) -> None:
    await pgflow.authority.gate("publish", text)

@pgflow.workflow
async def release(text: str) -> None:
    await publish(text)
"""
    good = """import pgflow

@pgflow.step
async def publish(text: str) -> None:
    pass

@pgflow.workflow
async def release(text: str) -> None:
    verdict = await pgflow.authority.gate("publish", text)
    if isinstance(verdict, pgflow.authority.Approved):
        await publish(verdict.value)
"""

    def check(self, module: Module) -> Iterator[Finding]:
        """Calls in bodies, and in what is declared for effects, of what only workflows can do."""
        for body in module.definitions.bodies:
            for node in ast.walk(body):
                if (
                    isinstance(node, ast.Call)
                    and module.names.resolve(node.func) in OF_WORKFLOWS
                    and not _is_of_another(body, node, module)
                ):
                    name = getattr(body, "name", "a lambda")
                    yield self.found(
                        module,
                        node,
                        f"{ast.unparse(node.func)}() is called in {name}, the body of a step",
                    )


def _is_of_another(body: ast.AST, call: ast.Call, module: Module) -> bool:
    """Return True if the call is in a function that is declared for itself inside of the body."""
    around = next(
        (each for each in module.names.parents(call) if isinstance(each, FUNCTIONS)), None
    )
    return around is not body and around is not None and bool(around.decorator_list)


class OtherColour(Rule):
    """PF207."""

    code = "PF207"
    title = "call of the other colour"
    why = "it raises WrongColourError, or does nothing"
    instead = "await NAME.aio() in async workflows, call NAME.sync() in sync ones"
    bad = """import pgflow

@pgflow.step
async def ship(order: int) -> str:
    return f"parcel {order}"

@pgflow.workflow
def fulfil(order: int) -> str:
    return ship(order)
"""
    good = bad.replace("return ship(order)", "return ship.sync(order)")

    def check(self, module: Module) -> Iterator[Finding]:
        """Find calls of steps, and of functions that wait, that are for the other colour."""
        for node, region in module.nodes():
            if not isinstance(node, ast.Call):
                continue
            if not (_is_for_sync if region.is_async else _is_for_async)(node, module):
                continue
            called = ast.unparse(node.func)
            if region.is_async:
                how = f"a sync call {region.place}, which is async"
                instead = f"await {_async_twin(called, node, module)}()"
            else:
                how = f"an async call {region.place}, which is sync"
                instead = f"call {_sync_twin(called, node, module)}()"
            yield self.found(module, node, f"{called}() is {how}", instead)


def _is_for_async(call: ast.Call, module: Module) -> bool:
    callee = module.callee(call.func)
    if callee is None:
        return module.names.resolve(call.func) in SYNC_TWINS
    return _is_async_door(callee)


def _is_for_sync(call: ast.Call, module: Module) -> bool:
    callee = module.callee(call.func)
    if callee is None:
        return module.names.resolve(call.func) in ASYNC_TWINS
    declared = callee.declared
    if declared.kind is Kind.WORKFLOW or declared.body is None:
        return False
    return callee.door == "sync" or (callee.door == "" and not declared.is_async)


def _async_twin(called: str, call: ast.Call, module: Module) -> str:
    """Return the name that async code awaits instead of a sync call."""
    callee = module.callee(call.func)
    if callee is None:
        return _as_said(ASYNC_TWINS[module.names.resolve(call.func) or ""], called)
    return called.removesuffix(".sync") + ("" if callee.declared.is_async else ".aio")
