"""Declarations of a module: its workflows, its steps of every kind, and the hooks of these.

A declaration is a decorated function, or a decorator that is called with one:
``settle_all = workflow(name="settle")(settle.fn)``.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias

from pgflow.lint.names import FUNCTIONS, HERE, Function, Names
from pgflow.lint.vocabulary import PGFLOW

Body: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


class Kind(StrEnum):
    """Kind of declaration that a decorator makes of a function."""

    WORKFLOW = "workflow"
    READ = "read"
    STEP = "step"
    TRANSACTION = "transaction"
    EFFECT = "effect"
    DECISION = "decision"


DECORATORS: dict[str, Kind] = {
    **{
        f"{module}.{kind}": kind
        for module, names in PGFLOW.items()
        for kind in Kind
        if kind in names
    },
    **{f"pgflow._flow.decorators.{kind}": kind for kind in Kind if kind is not Kind.WORKFLOW},
    "pgflow._flow.workflow.workflow": Kind.WORKFLOW,
    "pgflow.django.transaction": Kind.TRANSACTION,
    "pgflow.workspace.change": Kind.EFFECT,
    "pgflow.workspace.durable.change": Kind.EFFECT,
}
"""Kinds by the dotted path of the decorator."""

DYNAMIC = frozenset({"pgflow.call", "pgflow.sync.call", "pgflow._flow.dynamic.call"})
"""Functions that are called with a name and a function, and make a step of that."""

WITHOUT_CONNECTION = "pgflow.django.transaction"
"""A decorator of transactions that take no connection."""

HOOKS = frozenset({"settle", "compensate", "precondition", "verify"})
"""Hooks of an effect, declared in the manner of ``@charge.settle``."""


@dataclass
class Declared:
    """A workflow or a step.

    Attributes:
        name: Name in the module.
        kind: Kind of the definition.
        at: Place of the declaration: the function, or the call of the decorator.
        body: The function; None if it is not of this module.
        decorator: Dotted path of the decorator.
        options: Arguments of the decorator by name.
        hooks: Those of `HOOKS` that are declared for it.
    """

    name: str
    kind: Kind
    at: ast.AST
    body: Body | None
    decorator: str
    options: dict[str, ast.expr]
    hooks: set[str] = field(default_factory=set)

    @property
    def is_async(self) -> bool:
        """True if its function is a coroutine function."""
        return isinstance(self.body, ast.AsyncFunctionDef)

    @property
    def label(self) -> str:
        """Name of it in messages: the one in the journal."""
        named = self.options.get("name")
        if isinstance(named, ast.Constant) and isinstance(named.value, str):
            return named.value
        return (
            self.name.replace(".<locals>.", ".")
            if self.kind is Kind.WORKFLOW
            else self.name.rpartition(".")[2]
        )


@dataclass(frozen=True)
class Callee:
    """Declared thing that a call or a reference means, and by which of its doors (``aio``,
    ``sync``, ``fn`` or none).
    """

    declared: Declared
    door: str


_CALLEE = re.compile(r"(?P<path>.*?)(?:\.(?:options|because)\(\))*(?:\.(?P<door>aio|sync|fn))?")


class Definitions:
    """Everything that a module declares.

    Args:
        names: The names of the module.
        elsewhere: Finds what other modules of the project declare, by its dotted path.

    Attributes:
        declared: By the name that the module knows them by.
        bodies: Functions that run as bodies of steps, or of what is declared for effects: not
            workflow code.
    """

    def __init__(
        self, names: Names, elsewhere: Callable[[str], Declared | None] = lambda _: None
    ) -> None:
        self._elsewhere = elsewhere
        self.declared: dict[str, Declared] = {}
        self.bodies: set[ast.AST] = set()
        self._names = names
        for function in names.functions:
            self._decorated(function)
        for assignment in names.assignments:
            if isinstance(assignment.value, ast.Call) and assignment.value.args:
                self._applied(assignment.targets, assignment.value)
        for node in (*names.functions, *names.calls):
            self._hooked(node)

    def of_kind(self, *kinds: Kind) -> Iterator[Declared]:
        """Those of these kinds, in the order of the text."""
        return (found for found in self.declared.values() if found.kind in kinds)

    def workflows(self) -> list[Declared]:
        """Return the workflows."""
        return list(self.of_kind(Kind.WORKFLOW))

    def find(self, dotted: str | None) -> Callee | None:
        """Return the declaration under a dotted path, whatever options or door follow it; None if
        there is none.
        """
        match = _CALLEE.fullmatch(dotted) if dotted is not None else None
        if match is None:
            return None
        path = match["path"]
        found = (
            self.declared.get(path.removeprefix(HERE))
            if path.startswith(HERE)
            else self._elsewhere(path)
        )
        return Callee(found, match["door"] or "") if found is not None else None

    # ------------------------------------------------------------ finding them

    def _decorated(self, node: Function) -> None:
        for decorator in node.decorator_list:
            path = self._names.resolve(
                decorator.func if isinstance(decorator, ast.Call) else decorator
            )
            if (kind := _kind_of(path)) is not None:
                options = _options(decorator) | self._options_of(decorator)
                self._declare(
                    Declared(self._names.qualname_of[node], kind, node, node, str(path), options)
                )

    def _options_of(self, decorator: ast.expr) -> dict[str, ast.expr]:
        """Options of a decorator that was made before: ``patient = step(retries=9)``."""
        if not isinstance(decorator, ast.Name):
            return {}
        found = self._names.scope_of[decorator].find(decorator.id)
        values = [getattr(binding, "value", None) for binding in found[1]] if found else []
        return _options(values[0]) if len(values) == 1 and values[0] is not None else {}

    def _applied(self, targets: list[ast.expr], call: ast.Call) -> None:
        """``name = step(fn)``, ``name = step(retries=9)(fn)``."""
        path = self._names.resolve(call.func)
        kind = _kind_of(path)
        if (
            kind is None
            or not call.args
            or len(targets) != 1
            or not isinstance(targets[0], ast.Name)
        ):
            return
        name = self._names.scope_of[call].inside(targets[0].id)
        self._declare(
            Declared(
                name,
                kind,
                call,
                self._function(call.args[0]),
                str(path),
                _options(call.func) | _options(call),
            )
        )
        self._names.label(call, f"{HERE}{name}")

    def _function(self, node: ast.expr) -> Body | None:
        if isinstance(node, ast.Lambda):
            return node
        path = (self._names.resolve(node) or "").removesuffix(".fn")
        found = self._names.defined.get(path.removeprefix(HERE)) if path.startswith(HERE) else None
        return found if isinstance(found, FUNCTIONS) else None

    def _declare(self, found: Declared) -> None:
        self.declared[found.name] = found
        if found.kind is not Kind.WORKFLOW and found.body is not None:
            self.bodies.add(found.body)

    def _hooked(self, node: Function | ast.Call) -> None:
        """``@charge.settle`` above a function, or ``charge.settle(fn)``,
        or ``pgflow.call("name", fn)``.
        """
        if isinstance(node, FUNCTIONS):
            for decorator in node.decorator_list:
                if self._is_hook(decorator):
                    self.bodies.add(node)
        elif (passed := self._passed(node)) is not None and (
            function := self._function(passed)
        ) is not None:
            self.bodies.add(function)

    def _passed(self, call: ast.Call) -> ast.expr | None:
        """Return the argument that a call makes the body of something; None without one."""
        if call.args and self._is_hook(call.func):
            return call.args[0]
        return (
            call.args[1]
            if len(call.args) > 1 and self._names.resolve(call.func) in DYNAMIC
            else None
        )

    def _is_hook(self, node: ast.expr) -> bool:
        if not isinstance(node, ast.Attribute) or node.attr not in HOOKS:
            return False
        path, _, hook = (self._names.resolve(node) or "").rpartition(".")
        if not hook:
            return False
        found = self.find(path)
        if found is not None:
            found.declared.hooks.add(hook)
        return found is not None or not path.startswith(HERE)


def _kind_of(path: str | None) -> Kind | None:
    return DECORATORS.get(path.replace("()", "")) if path is not None else None


def _options(node: ast.expr) -> dict[str, ast.expr]:
    return (
        {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg is not None}
        if isinstance(node, ast.Call)
        else {}
    )
