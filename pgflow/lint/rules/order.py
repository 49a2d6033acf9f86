"""Order that differs in every process: sets, coroutines that race,
and identities, whose numbers differ.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from pgflow.lint import vocabulary
from pgflow.lint.findings import Finding
from pgflow.lint.module import Module, Region
from pgflow.lint.names import COMPREHENSIONS, FUNCTIONS, HERE, Assigned
from pgflow.lint.rules.base import Rule
from pgflow.lint.rules.outside import written
from pgflow.lint.sets import Sets, makes_task

IN_ORDER = frozenset(
    {
        "builtins.list", "builtins.tuple", "builtins.enumerate", "builtins.iter",
        "builtins.map", "builtins.filter", "builtins.zip", "builtins.dict.fromkeys",
        "collections.deque", "itertools.chain", "itertools.islice", "itertools.batched",
        "itertools.cycle", "itertools.chain.from_iterable", "itertools.combinations",
        "itertools.permutations", "itertools.product", "itertools.groupby", "pgflow.map",
        "pgflow.as_completed", "pgflow.sync.map",
    }
)  # fmt: skip
"""Functions whose results depend on the order of what they are given."""

IN_ANY_ORDER = frozenset(
    f"builtins.{name}"
    for name in ("sorted", "set", "frozenset", "len", "sum", "min", "max", "any", "all")
)
"""Functions whose results do not."""


DISPLAYS = (ast.List, ast.Tuple, ast.Set, *COMPREHENSIONS)


class SetIteration(Rule):
    """PF107."""

    code = "PF107"
    title = "order of a set"
    why = "a set is gone through in another order by every process"
    instead = "sort it: sorted(...), or keep a list or a dict"
    bad = """import pgflow

@pgflow.step
async def tell(name: str) -> None:
    pass

@pgflow.workflow
async def tell_all(names: list[str]) -> None:
    for name in set(names):
        await tell(name)
"""
    good = bad.replace("for name in set(names):", "for name in sorted(set(names)):")

    def check(self, module: Module) -> Iterator[Finding]:
        """Find places where the order of a set decides something."""
        sets = Sets(module.names)
        for node, region in module.nodes():
            for found in _ordered(node, module):
                if sets.is_set(found):
                    yield self.found(module, found, f"the order of a set counts {region.place}")


def _ordered(node: ast.AST, module: Module) -> Iterator[ast.expr]:
    """Parts of a node that are taken in their order."""
    match node:
        case ast.For(iter=iterated) | ast.AsyncFor(iter=iterated):
            yield iterated
        case ast.ListComp() | ast.DictComp() | ast.GeneratorExp() if not _is_order_lost(
            node, module
        ):
            yield from (part.iter for part in node.generators)
        case ast.SetComp() if _has_await(node):
            yield from (part.iter for part in node.generators)
        case ast.Call(func=ast.Attribute(value=taken, attr="pop"), args=[], keywords=[]):
            yield taken
        case ast.Call():
            yield from _ordered_arguments(node, module)
        case ast.List(elts=elements) | ast.Tuple(elts=elements):
            yield from (element.value for element in elements if isinstance(element, ast.Starred))
        case ast.Assign(targets=[ast.Tuple() | ast.List()], value=value):
            yield value


def _ordered_arguments(call: ast.Call, module: Module) -> Iterator[ast.expr]:
    path = module.names.resolve(call.func)
    yield from (
        argument.value
        for argument in call.args
        if isinstance(argument, ast.Starred) and path not in IN_ANY_ORDER
    )
    is_join = (
        isinstance(call.func, ast.Attribute) and call.func.attr == "join" and len(call.args) == 1
    )
    if (path in IN_ORDER or is_join) and not _is_order_lost(call, module):
        yield from call.args


def _is_order_lost(node: ast.expr, module: Module) -> bool:
    """Return True if the set becomes something without an order at once, and nothing is awaited on
    the way.
    """
    parent = module.names.parent_of.get(node)
    if not isinstance(parent, ast.Call) or parent.func is node or _has_await(node):
        return False
    return module.names.resolve(parent.func) in IN_ANY_ORDER


def _has_await(node: ast.AST) -> bool:
    return any(isinstance(found, ast.Await) for found in ast.walk(node))


class BareAsCompleted(Rule):
    """PF111."""

    code = "PF111"
    title = "as_completed over coroutines"
    why = "asyncio starts bare coroutines in an order that a replay cannot repeat"
    instead = "use pgflow.as_completed(...), or make tasks of them first"
    bad = """import asyncio
import pgflow

@pgflow.read
async def price(shop: str) -> int:
    return len(shop)

@pgflow.workflow
async def first(shops: list[str]) -> int:
    for found in asyncio.as_completed([price(shop) for shop in shops]):
        return await found
    return 0
"""
    good = """import pgflow

@pgflow.read
async def price(shop: str) -> int:
    return len(shop)

@pgflow.workflow
async def first(shops: list[str]) -> int:
    async for found in pgflow.as_completed([price(shop) for shop in shops]):
        return found
    return 0
"""

    def check(self, module: Module) -> Iterator[Finding]:
        """Find ``asyncio.as_completed()`` over coroutines in workflow code."""
        for use in module.uses:
            if (
                use.path == "asyncio.as_completed"
                and use.call is not None
                and use.call.args
                and _are_bare(use.call.args[0], module)
            ):
                yield self.found(
                    module, use.call, f"asyncio.as_completed() over coroutines {use.region.place}"
                )


def _are_bare(node: ast.expr, module: Module) -> bool:
    match node:
        case ast.List(elts=elements) | ast.Tuple(elts=elements) | ast.Set(elts=elements):
            return any(
                isinstance(element, ast.Call) and not makes_task(element) for element in elements
            )
        case ast.ListComp(elt=element) | ast.GeneratorExp(elt=element) | ast.SetComp(elt=element):
            return isinstance(element, ast.Call) and not makes_task(element)
        case ast.Name(id=name):
            found = module.names.scope_of[node].find(name)
            values = (
                [binding.value for binding in found[1] if isinstance(binding, Assigned)]
                if found is not None
                else []
            )
            return (
                len(values) == 1
                and isinstance(values[0], DISPLAYS)
                and _are_bare(values[0], module)
            )
        case _:
            return False


class Identity(Rule):
    """PF109."""

    code = "PF109"
    title = "identity of an object"
    why = "addresses and the hashes of texts differ in every process"
    instead = "use a key or a field of the value itself, or hashlib for a digest"
    bad = """import pgflow

@pgflow.workflow
async def shard(customer: str) -> int:
    return hash(customer) % 8
"""
    good = """import zlib
import pgflow

@pgflow.workflow
async def shard(customer: str) -> int:
    return zlib.crc32(customer.encode()) % 8
"""

    def check(self, module: Module) -> Iterator[Finding]:
        """Find identities, and texts that show addresses, in workflow code."""
        for use in module.uses:
            if use.path in vocabulary.IDENTITY:
                yield self._found(
                    module, use.call or use.node, f"{written(use.path)}()", use.region
                )
        for node, region in module.nodes():
            if (shown := _shown(node, module)) is not None and _shows_address(shown, module):
                yield self._found(
                    module, node, "the text of an object that has an address in it", region
                )

    def _found(self, module: Module, node: ast.AST, what: str, region: Region) -> Finding:
        return self.found(module, node, f"{what} {region.place}")


def _shown(node: ast.AST, module: Module) -> ast.expr | None:
    """Return the expression that a node makes a text of; None if it makes none."""
    match node:
        case ast.Call(func=ast.Name() as function, args=[shown]) if module.names.resolve(
            function
        ) in ("builtins.repr", "builtins.str"):
            return shown
        case ast.FormattedValue(value=shown):
            return shown
        case _:
            return None


def _shows_address(node: ast.expr, module: Module) -> bool:
    """Return True if the text of an expression is that of Python's plain objects: functions,
    lambdas, ``object()``.
    """
    path = module.names.resolve(node)
    if isinstance(node, ast.Lambda) or path == "builtins.object()":
        return True
    if path is None or not path.startswith(HERE) or module.definitions.find(path) is not None:
        return False
    return isinstance(module.names.defined.get(path.removeprefix(HERE)), FUNCTIONS)
