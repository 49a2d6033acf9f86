"""The outside of a run, in and out: clock, chance, environment,
files and networks, threads, output.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import ClassVar

from pgflow.lint import vocabulary
from pgflow.lint.findings import Finding
from pgflow.lint.module import Module, Use
from pgflow.lint.names import HERE
from pgflow.lint.rules.base import Rule
from pgflow.lint.vocabulary import Vocabulary


class Banned(Rule):
    """References to names of a vocabulary."""

    words: ClassVar[Vocabulary]

    def check(self, module: Module) -> Iterator[Finding]:
        """Find references to banned names in workflow code."""
        for use in module.uses:
            path = self.match(module, use)
            if path is not None:
                called = "()" if use.call is not None else ""
                yield self.found(
                    module,
                    use.call or use.node,
                    f"{written(path)}{called} {use.region.place}",
                    self.advice(use),
                )

    def match(self, module: Module, use: Use) -> str | None:
        """Return the path that is not allowed, if this one is. A method of an object that the code
        itself makes is left out, since its making is a finding already.
        """
        found = self.words.match(use.path, is_called=use.call is not None)
        return found if found in self.words.paths or is_given(module, use) else None

    def advice(self, use: Use) -> str:
        """Return advice on what to do instead."""
        del use
        return self.instead


def is_given(module: Module, use: Use) -> bool:
    """Return True if a method is called on something that was made elsewhere: a variable of a
    module, or a parameter.

    Anything but a method of something that was made counts as given.
    """
    if "()." not in use.path:
        return True
    root = _variable_of(use.node)
    return root is not None and (not module.names.is_local(root) or module.names.is_parameter(root))


def _variable_of(node: ast.expr) -> ast.Name | None:
    """Return the variable that attributes are strung after, if no call comes between."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node if isinstance(node, ast.Name) else None


def written(path: str) -> str:
    """Return a path as people write it."""
    return path.removeprefix("builtins.").removeprefix(HERE)


class Clock(Banned):
    """PF101."""

    code = "PF101"
    title = "clock"
    why = "a replay sees another time"
    instead = "use pgflow.now(), the database's time of the last outcome"
    bad = """import datetime
import pgflow

@pgflow.workflow
async def remind() -> str:
    return datetime.datetime.now().isoformat()
"""
    good = bad.replace("import datetime\n", "").replace(
        "return datetime.datetime.now().isoformat()", "return pgflow.now().isoformat()"
    )
    words = vocabulary.CLOCK

    def match(self, module: Module, use: Use) -> str | None:
        """Also functions that ask the clock if they are given no time."""
        if use.path in vocabulary.CLOCK_WITHOUT_ARGUMENTS and use.call is not None:
            return None if use.call.args or use.call.keywords else use.path
        if use.path == "time.strftime" and use.call is not None and len(use.call.args) == 1:
            return use.path
        return super().match(module, use)


class Chance(Banned):
    """PF102."""

    code = "PF102"
    title = "randomness"
    why = "a replay draws something else"
    instead = (
        "use pgflow.random() or pgflow.uuid(), "
        "or random.Random(pgflow.random()) for more than a number"
    )
    bad = """import random
import pgflow

@pgflow.workflow
async def draw(names: list[str]) -> str:
    return random.choice(names)
"""
    good = bad.replace("random.choice(names", "random.Random(pgflow.random()).choice(names")
    words = vocabulary.CHANCE

    def match(self, module: Module, use: Use) -> str | None:
        """Return the path of a random generator that has no seed, or that runs share."""
        if use.path in vocabulary.SEEDED:
            return (
                use.path
                if use.call is not None and not use.call.args and not use.call.keywords
                else None
            )
        made, separator, _ = use.path.partition("().")
        if separator and made in vocabulary.SEEDED:
            root = _variable_of(use.node)
            return (
                use.path
                if use.call is not None and root is not None and not module.names.is_local(root)
                else None
            )
        return super().match(module, use)


class Environment(Banned):
    """PF103."""

    code = "PF103"
    title = "environment"
    why = "another worker has other variables, arguments and names"
    instead = "pass it as an argument of the workflow, or read it in a @read"
    bad = """import os
import pgflow

@pgflow.workflow
async def report() -> str:
    return os.environ["REGION"]
"""
    good = """import os
import pgflow

@pgflow.read
def region() -> str:
    return os.environ["REGION"]

@pgflow.workflow
async def report() -> str:
    return await region.aio()
"""
    words = vocabulary.ENVIRONMENT


class Outside(Banned):
    """PF104."""

    code = "PF104"
    title = "input and output"
    why = "it happens again at every replay"
    instead = "put it into a @read, @step, @transaction or @effect"
    bad = """import pgflow

@pgflow.workflow
async def load(path: str) -> int:
    with open(path) as file:
        return len(file.read())
"""
    good = """import pgflow

@pgflow.read
def size(path: str) -> int:
    with open(path) as file:
        return len(file.read())

@pgflow.workflow
async def load(path: str) -> int:
    return await size.aio(path)
"""
    words = vocabulary.OUTSIDE

    def match(self, module: Module, use: Use) -> str | None:
        """Also methods of files, by their names, and queries of Django."""
        made, _, method = use.path.rpartition(".")
        if (
            use.call is not None
            and made.startswith("pathlib.")
            and made.endswith("()")
            and method in vocabulary.PATH_METHODS
        ):
            return use.path
        return super().match(module, use)

    def check(self, module: Module) -> Iterator[Finding]:
        """Find access to files, networks and processes in workflow code, by full name or by the
        name of a method.
        """
        yield from super().check(module)
        for node, region in module.nodes():
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and (what := self._by_name(node.func))
            ):
                yield self.found(module, node, f"{what}() {region.place}")

    @staticmethod
    def _by_name(function: ast.Attribute) -> str | None:
        if function.attr in vocabulary.FILE_METHODS:
            return f".{function.attr}"
        if (
            function.attr in vocabulary.MANAGERS
            and isinstance(function.value, ast.Attribute)
            and function.value.attr == "objects"
        ):
            return f".objects.{function.attr}"
        return None


class BlockingSleep(Banned):
    """PF105."""

    code = "PF105"
    title = "blocking sleep"
    why = "it holds a worker, does not survive it, and is slept again at every replay"
    instead = "await pgflow.sleep(...)"
    bad = """import time
import pgflow

@pgflow.workflow
async def nap() -> None:
    time.sleep(60)
"""
    good = bad.replace("import time\n", "").replace("time.sleep(60)", "await pgflow.sleep(60)")
    words = vocabulary.SLEEPING

    def advice(self, use: Use) -> str:
        """Return the twin of the workflow's colour."""
        return self.instead if use.region.is_async else "call pgflow.sync.sleep(...)"


class Threads(Banned):
    """PF106."""

    code = "PF106"
    title = "threads and processes"
    why = "what runs beside the workflow cannot be replayed"
    instead = "put the work into steps: asyncio.gather or pgflow.map runs many at once"
    bad = """import asyncio
import pgflow

def count(text: str) -> int:
    return len(text)

@pgflow.workflow
async def measure(text: str) -> int:
    return await asyncio.to_thread(count, text)
"""
    good = """import pgflow

@pgflow.step
def count(text: str) -> int:
    return len(text)

@pgflow.workflow
async def measure(text: str) -> int:
    return await count.aio(text)
"""
    words = vocabulary.THREADS

    def check(self, module: Module) -> Iterator[Finding]:
        """Also executors of loops that are called something else."""
        yield from super().check(module)
        for node, region in module.nodes():
            match node:
                case ast.Call(func=ast.Attribute(attr="run_in_executor") as function) if (
                    module.names.resolve(function) is None
                ):
                    yield self.found(module, node, f".run_in_executor() {region.place}")


class Output(Banned):
    """PF110."""

    code = "PF110"
    title = "output"
    why = "every replay says it again"
    instead = "use pgflow.logger, which is silent on a replay"
    bad = """import pgflow

@pgflow.workflow
async def greet(name: str) -> None:
    print(f"greeting {name}")
"""
    good = bad.replace('print(f"greeting {name}")', 'pgflow.logger.info("greeting %s", name)')
    words = vocabulary.OUTPUT

    def match(self, module: Module, use: Use) -> str | None:
        """Not a logger that is only looked up."""
        if use.path in ("logging.getLogger", "structlog.get_logger"):
            return None
        return super().match(module, use)
