"""A module as the rules see it: its text, its names, what it declares, and which of its code is workflow code.

Workflow code is what a replay runs again: the functions under ``@workflow``, and whatever functions and methods of the same
module these refer to, and so on. Bodies of steps are not, nor is what is declared for an effect.
"""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from pgflow.lint.definitions import Body, Callee, Declared, Definitions
from pgflow.lint.findings import Finding, Place
from pgflow.lint.names import FUNCTIONS, HERE, Names
from pgflow.lint.neighbours import Neighbours
from pgflow.lint.sources import Source
from pgflow.lint.vocabulary import EXPORTED


@dataclass(frozen=True)
class Region:
    """A function that is workflow code, and why.

    Attributes:
        function: The function.
        workflow: The workflow by which it was reached first.
        called: Its name if it is not the workflow's own function.
    """

    function: Body
    workflow: Declared
    called: str | None

    @property
    def said(self) -> str:
        """How a message says where it is."""
        workflow = f"workflow {self.workflow.label}"
        return f"in {workflow}" if self.called is None else f"in {self.called}(), which {workflow} uses"

    @property
    def is_async(self) -> bool:
        """Whether its workflow is async: it then has the twins of ``pgflow``, else those of ``pgflow.sync``."""
        return self.workflow.is_async


@dataclass(frozen=True)
class Use:
    """A reference to something in workflow code.

    Attributes:
        node: The name or attribute.
        path: Dotted path of what it stands for.
        call: The call that it is the function of, if it is called here.
        region: Where it is.
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
        """A finding at a node. Where the parts of a text with fields are is not told alike by every Python: it is found as a whole."""
        fields = [parent for parent in self.names.parents(node) if isinstance(parent, ast.JoinedStr)]
        return self.place.of(fields[-1] if fields else node, code, message)

    def callee(self, node: ast.expr) -> Callee | None:
        """What is declared here that a call's function stands for."""
        return self.definitions.find(self.names.resolve(node))

    # ------------------------------------------------------------ workflow code

    @cached_property
    def regions(self) -> list[Region]:
        """Functions that are workflow code, those of workflows first."""
        found: list[Region] = []
        todo = deque(Region(declared.body, declared, None) for declared in self.definitions.workflows() if declared.body is not None)
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
        """Every node of workflow code that a replay runs: no annotations, no bodies of steps."""
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
                    found.append(Use(node, path, parent if isinstance(parent, ast.Call) and parent.func is node else None, region))
        return found

    def _walk(self, function: Body) -> Iterator[ast.AST]:
        yield function
        todo = deque([function.body] if isinstance(function, ast.Lambda) else function.body)
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
        for name in self._functions_at(path.removeprefix(HERE).replace("()", "")):
            function = self.names.defined[name]
            if isinstance(function, FUNCTIONS) and function not in self.definitions.bodies:
                yield Region(function, region.workflow, name.rpartition("<locals>.")[2])

    def _functions_at(self, name: str) -> Iterator[str]:
        """Functions that are run when something of this name is called: a class runs its constructors."""
        found = self.names.defined.get(name)
        if isinstance(found, ast.ClassDef):
            yield from (made for method in ("__init__", "__new__", "__post_init__") if (made := f"{name}.{method}") in self.names.defined)
        elif found is not None:
            yield name
        else:
            yield from self._inherited(*name.rpartition(".")[::2])

    def _inherited(self, class_name: str, method: str) -> Iterator[str]:
        """A method that a class of this module has from another one of it."""
        found = self.names.defined.get(class_name)
        for base in found.bases if isinstance(found, ast.ClassDef) else ():
            path = (self.names.resolve(base) or "").removeprefix(HERE)
            if f"{path}.{method}" in self.names.defined:
                yield f"{path}.{method}"


def _run(node: ast.AST) -> list[ast.AST]:
    """Children of a node that run when it does."""
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            return [*node.decorator_list, *node.args.defaults, *filter(None, node.args.kw_defaults), *node.body]
        case ast.AnnAssign(target=target, value=value):
            return [target] if value is None else [target, value]
        case ast.Lambda(args=arguments, body=body):
            return [*arguments.defaults, *filter(None, arguments.kw_defaults), body]
        case _:
            return list(ast.iter_child_nodes(node))
