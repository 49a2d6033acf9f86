"""A module as the rules see it: its text, its names, what it declares, and which of its code is
workflow code.

Workflow code is what a replay runs again: the functions under ``@workflow``, and whatever functions
and methods of the same module these refer to, and so on. Bodies of steps are not, nor is what is
declared for an effect.
"""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from pgflow.lint.definitions import Body, Callee, Declared, Definitions
from pgflow.lint.findings import Finding, Place
from pgflow.lint.names import FUNCTIONS, HERE, Function, Names
from pgflow.lint.neighbours import Neighbours
from pgflow.lint.sources import Source
from pgflow.lint.vocabulary import EXPORTED

CONSTRUCTORS = ("__init__", "__new__", "__post_init__", "model_post_init")


@dataclass(frozen=True)
class Region:
    """A function that is workflow code, and why.

    Attributes:
        function: The function, or what a class makes a default of.
        workflow: The workflow by which it was reached first.
        called: Its name if it is not the workflow's own function.
    """

    function: Body | ast.keyword
    workflow: Declared
    called: str | None

    @property
    def place(self) -> str:
        """Place, as a message names it."""
        workflow = f"workflow {self.workflow.label}"
        return (
            f"in {workflow}"
            if self.called is None
            else f"in {self.called}(), which {workflow} uses"
        )

    @property
    def is_async(self) -> bool:
        """True if its workflow is async: it then has the twins of ``pgflow``,
        else those of ``pgflow.sync``.
        """
        return self.workflow.is_async


@dataclass(frozen=True)
class Use:
    """A reference to something in workflow code.

    Attributes:
        node: The name or attribute.
        path: Dotted path that it refers to.
        call: The call that it is the function of, if it is called here.
        region: Region that it is in.
    """

    node: ast.expr
    path: str
    call: ast.Call | None
    region: Region


class Module:
    """See above.

    Args:
        source: The module's text.
        neighbours: Other modules of its project.
    """

    def __init__(self, source: Source, neighbours: Neighbours | None = None) -> None:
        self.source = source
        self.tree = source.parse()
        if neighbours is None:
            self.names = Names(self.tree, source.package, EXPORTED)
            self.definitions = Definitions(self.names)
        else:
            self.names = Names(self.tree, source.package, EXPORTED, neighbours.translate)
            self.definitions = Definitions(self.names, neighbours.declared)
        self.place = Place(source.file, source.lines)
        self._region_of: dict[ast.AST, Region] = {}

    def finding(self, node: ast.AST, code: str, message: str) -> Finding:
        """Return a finding at a node. Versions of Python disagree on the positions inside an
        f-string, so a finding in one has the position of the whole.
        """
        fields = [
            parent for parent in self.names.parents(node) if isinstance(parent, ast.JoinedStr)
        ]
        return self.place.of(fields[-1] if fields else node, code, message)

    def callee(self, node: ast.expr) -> Callee | None:
        """Return the declaration of this module that a call's function refers to; None if there is
        none.
        """
        return self.definitions.find(self.names.resolve(node))

    # ------------------------------------------------------------ workflow code

    @cached_property
    def regions(self) -> list[Region]:
        """Functions that are workflow code, those of workflows first."""
        found: list[Region] = []
        todo = deque(
            Region(declared.body, declared, None)
            for declared in self.definitions.workflows()
            if declared.body is not None
        )
        while todo:
            region = todo.popleft()
            if region.function in self._region_of:
                continue
            found.append(region)
            for node in self._walk(region.function):
                self._region_of[node] = region
                todo.extend(self._reached(node, region))
        return found

    def nodes(self) -> Iterator[tuple[ast.AST, Region]]:
        """Return every node of workflow code that a replay runs: no annotations, no bodies of
        steps.
        """
        _ = self.regions
        return iter(self._region_of.items())

    @cached_property
    def uses(self) -> list[Use]:
        """Every reference in workflow code whose path is known."""
        found = []
        for node, region in self.nodes():
            if isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load):
                path = self.names.resolve(node)
                if path is not None:
                    parent = self.names.parent_of.get(node)
                    found.append(
                        Use(
                            node,
                            path,
                            parent
                            if isinstance(parent, ast.Call) and parent.func is node
                            else None,
                            region,
                        )
                    )
        return found

    def _walk(self, function: Body | ast.keyword) -> Iterator[ast.AST]:
        yield function
        todo: deque[ast.AST] = deque(_beginning(function))
        while todo:
            node = todo.popleft()
            if node in self.definitions.bodies:
                continue
            yield node
            todo.extend(_run(node))

    def _reached(self, node: ast.AST, region: Region) -> Iterator[Region]:
        if not isinstance(node, (ast.Name, ast.Attribute)):
            return
        path = self.names.resolve(node)
        if path is None or not path.startswith(HERE) or self.definitions.find(path) is not None:
            return
        name = path.removeprefix(HERE).replace("()", "")
        for function in self._run_by(name):
            if function not in self.definitions.bodies:
                yield Region(function, region.workflow, name.rpartition("<locals>.")[2])

    def _run_by(self, name: str) -> Iterator[Function | ast.keyword]:
        """Yield the code that runs when something of this name is called: a class runs its
        constructors, and makes its defaults.
        """
        found = self.names.defined.get(name)
        if isinstance(found, FUNCTIONS):
            yield found
        elif isinstance(found, ast.ClassDef):
            for method in CONSTRUCTORS:
                yield from self._method(found, method)
            yield from _default_factories(found)
        else:
            class_name, _, method = name.rpartition(".")
            holder = self.names.defined.get(class_name)
            if isinstance(holder, ast.ClassDef):
                yield from self._method(holder, method)

    def _method(
        self, holder: ast.ClassDef, method: str, *, bases_left: int = 8
    ) -> Iterator[Function]:
        """Yield a method of a class, its own or that of a base in this module."""
        found = self.names.defined.get(f"{self.names.qualname_of[holder]}.{method}")
        if isinstance(found, FUNCTIONS):
            yield found
        elif bases_left:
            for base in holder.bases:
                inherited = self.names.defined.get(
                    (self.names.resolve(base) or "").removeprefix(HERE)
                )
                if isinstance(inherited, ast.ClassDef):
                    yield from self._method(inherited, method, bases_left=bases_left - 1)


def _default_factories(holder: ast.ClassDef) -> Iterator[ast.keyword]:
    """Yield the factories of field defaults, in the manner of dataclasses and pydantic."""
    for node in holder.body:
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and isinstance(node.value, ast.Call):
            yield from (
                keyword for keyword in node.value.keywords if keyword.arg == "default_factory"
            )


def _beginning(function: Body | ast.keyword) -> list[ast.AST]:
    match function:
        case ast.Lambda(body=body) | ast.keyword(value=body):
            return [body]
        case _:
            return list(function.body)


def _run(node: ast.AST) -> list[ast.AST]:
    """Children of a node that run when it does."""
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            return [
                *node.decorator_list,
                *node.args.defaults,
                *filter(None, node.args.kw_defaults),
                *node.body,
            ]
        case ast.AnnAssign(target=target, value=value):
            return [target] if value is None else [target, value]
        case ast.Lambda(args=arguments, body=body):
            return [*arguments.defaults, *filter(None, arguments.kw_defaults), body]
        case _:
            return list(ast.iter_child_nodes(node))
