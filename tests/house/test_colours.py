"""Both colours offer the same: sync twins are made of the async source, and pairs that are written
twice have the same signatures.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import typing
from pathlib import Path
from typing import Any

import pytest
import servers

import pgflow
from tools import colours, generate

# ---------------------------------------------------------------- twins that are made

SOURCE = '''"""Runs; see :meth:`AsyncApp.start`."""

from collections.abc import AsyncIterator, Awaitable, Callable

from pgflow.shop._async.tools import AsyncTool, lent_async


class AsyncShop(AsyncTool):
    async def sell(self, ask: Callable[[str], Awaitable[T]]) -> T:
        """Sells; `run_async` is awaited in it."""
        async with lent_async(self) as awaited:  # async in a comment stays
            return await ask("await", awaited.key)

    async def keys_that_it_has_sold_and_not_yet_sent(
        self, ask: Callable[[str], Awaitable[T]]
    ) -> T:
        return await ask(
            "keys",
        )
'''

TWIN = '''# Made by tools/colours.py from pgflow/shop/_async/things.py; edit that one.
"""Runs; see :meth:`App.start`."""

from collections.abc import Callable, Iterator

from pgflow.shop._sync.tools import Tool, lent


class Shop(Tool):
    def sell(self, ask: Callable[[str], T]) -> T:
        """Sells; `run` is awaited in it."""
        with lent(self) as awaited:  # async in a comment stays
            return ask("await", awaited.key)

    def keys_that_it_has_sold_and_not_yet_sent(self, ask: Callable[[str], T]) -> T:
        return ask(
            "keys",
        )
'''


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A repository of one async module."""
    source = tmp_path / "pgflow" / "shop" / "_async" / "things.py"
    source.parent.mkdir(parents=True)
    source.write_text(SOURCE)
    return tmp_path


def test_a_twin_waits_for_nothing_and_has_the_names_of_its_colour(shop: Path) -> None:
    twin = shop / "pgflow" / "shop" / "_sync" / "things.py"
    assert colours.twins(shop) == {twin: TWIN}
    generate.write(colours.twins(shop))
    assert generate.stale(colours.twins(shop)) == {}


def test_a_twin_that_is_out_of_date_or_without_a_source_is_found(shop: Path) -> None:
    generate.write(colours.twins(shop))
    (twin,) = colours.twins(shop)
    twin.write_text(TWIN.replace("Sells", "Buys"))
    assert '+        """Sells' in generate.stale(colours.twins(shop))[twin]
    (shop / "pgflow" / "shop" / "_async" / "things.py").unlink()
    assert colours.twins(shop) == {twin: None}
    generate.write(colours.twins(shop))
    assert list(shop.rglob("*.py")) == []


# ---------------------------------------------------------------- pairs that are written


class Colourless(ast.NodeTransformer):
    """Takes the colour out of an annotation."""

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        match node:
            case ast.Subscript(value=ast.Name("Awaitable"), slice=awaited):
                return self.visit(awaited)
            case ast.Subscript(value=ast.Name("Coroutine"), slice=ast.Tuple(elts=[_, _, awaited])):
                return self.visit(awaited)
        return self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Name(colourless(node.id))

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        return ast.Attribute(self.visit(node.value), colourless(node.attr))


def colourless(name: str) -> str:
    return colours.of_the_other_colour(name).replace("Sync", "")


def annotation(given: Any) -> str | None:
    if given is inspect.Parameter.empty:
        return None
    text = given if isinstance(given, str) else getattr(given, "__name__", repr(given))
    return ast.unparse(
        Colourless().visit(ast.parse(f"_[{text}]", mode="eval"))
    )  # as an index, where stars may stand too


def shapes(member: Any) -> list[str]:
    """Signatures of a function or property, without their colour; of each overload, if it has
    some.
    """
    fn = inspect.unwrap(member.fget if isinstance(member, property) else member)
    return [shape(overload) for overload in typing.get_overloads(fn) or [fn]]


def shape(fn: Any) -> str:
    signature = inspect.signature(fn)
    parameters = [
        f"{p.kind.name} {p.name}: {annotation(p.annotation)} = {p.default!r}"
        for p in signature.parameters.values()
    ]
    return "\n".join([*parameters, f"-> {annotation(signature.return_annotation)}"])


def surface(thing: Any) -> dict[str, list[str]]:
    """Signatures of the public methods of a class, those that it has from bases of ours included;
    of a function, its own.
    """
    if not inspect.isclass(thing):
        return {"": shapes(thing)}
    members = {
        name: getattr(member, "__func__", member)
        for base in reversed(thing.__mro__)
        if base.__module__.startswith("pgflow")
        for name, member in vars(base).items()
    }
    return {
        colourless(name): shapes(member)
        for name, member in members.items()
        if not name.startswith("_") and (inspect.isfunction(member) or isinstance(member, property))
    }


def names_by_concept() -> dict[tuple[str, str], list[tuple[str, str]]]:
    """Module and name of classes and public functions, by what both are without their colour; none
    of modules that are made or made from.
    """
    made = {*colours.sources(), *colours.twins()}
    found: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for path in sorted({*(servers.REPOSITORY / "pgflow").rglob("*.py")} - made):
        parts = path.relative_to(servers.REPOSITORY).with_suffix("").parts
        module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) or (
                isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
                and not node.name.startswith("_")
            ):
                concept = re.sub(r"\b_a?sync\b|\.asyncio", "", module), colourless(node.name)
                found.setdefault(concept, []).append((module, node.name))
    return found


def pairs() -> dict[str, list[Any]]:
    """Both of each pair, by the name that they share."""
    found = {}
    for (_, concept), names in names_by_concept().items():
        coloured = [name for name in names if name[1] != concept]
        if coloured:
            both = (
                coloured if len(coloured) == 2 else names
            )  # else one of them has the name of the concept
            found[concept] = [
                getattr(importlib.import_module(module), name) for module, name in both
            ]
    offered = {
        name: vars(module)[name]
        for module in (
            pgflow,
            pgflow.authority,
            pgflow.effects,
            pgflow.entities,
            pgflow.events,
            pgflow.updates,
        )
        for name in module.__all__
    }
    for name in pgflow.sync.__all__:
        found[f"sync.{name}"] = [offered[name], getattr(pgflow.sync, name)]
    return found


DIFFERENT = {
    "Connection.wait": "an async connection has the patience of the pool that lends it",
    "Harness.close": "the async one is closed by leaving its context",
    "PsycopgProvider.replace": "as leave_behind() below it",
    "Signal.issue": "issues the wait of both",
    "Signal.sync": "leads to the twin",
    "Wire.ask": "only workers have a connection of their own that they ask through one",
    "_PsycopgTransaction.leave_behind": "a thread cannot be cancelled: its body may go on though "
    "nobody waits for it",
    "connect": "async code has its time-outs around a call",
    "sync.serve": "a thread runs one handler at a time, so it takes no max_parallel",
    "drive": "a thread that waits for its server is freed by cutting its connection",
}
"""Methods and functions that are not the same in both colours, and the reason."""


def differences(name: str, both: list[Any]) -> set[str]:
    """Methods of a pair that are not the same in both colours; the pair itself, if it is none."""
    if len(both) != 2:
        return {f"{name}: a twin is missing, or more than two share the name: {both}"}
    one, other = map(surface, both)
    return {
        f"{name}.{method}".removesuffix(".")
        for method in {*one, *other}
        if one.get(method) != other.get(method)
    }


@pytest.mark.full
def test_both_of_a_pair_have_the_same_signatures() -> None:
    found = set().union(*(differences(name, both) for name, both in pairs().items()))
    assert found == set(DIFFERENT)


def test_a_difference_is_found() -> None:
    class AsyncThing:
        async def do(self, what: AsyncThing, *, times: int = 1) -> list[AsyncThing]: ...

    class Thing:
        def do(self, what: Thing, *, times: int = 2) -> list[Thing]: ...

    assert shape(AsyncThing.do) == shape(Thing.do).replace("= 2", "= 1") != shape(Thing.do)
