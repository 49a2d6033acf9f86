"""Names in a module, and the objects that they refer to by Python's own rules of scopes, without
running anything.

`Names.resolve` returns a dotted path: ``time.time`` for ``now`` after ``from time import time as
now``. The module's own definitions begin with ``here:``, as in ``here:Planner.decide``. A call ends
in ``()``, so that ``datetime.datetime.now().timestamp`` and ``here:Planner().decide`` name the
method. An unknown object is None, and a rule that does not know keeps quiet.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

HERE = "here:"
"""Before the qualified name of what the module defines itself."""

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


@dataclass(frozen=True)
class Imported:
    """Bound by an import of this dotted path."""

    dotted: str


@dataclass(frozen=True)
class Defined:
    """Bound by ``def`` or ``class``."""

    node: Function | ast.ClassDef
    qualname: str


@dataclass(frozen=True)
class Assigned:
    """Bound to a value, an annotation, or both; to something unknown if it has neither."""

    value: ast.expr | None = None
    annotation: ast.expr | None = None


@dataclass(frozen=True)
class SelfParameter:
    """The first parameter of a method."""

    class_qualname: str


@dataclass(frozen=True)
class Changed:
    """Changed where it is, as by ``+=``."""


Binding: TypeAlias = Imported | Defined | Assigned | SelfParameter | Changed


class Scope:
    """A module, class, function or comprehension, and what is bound in it."""

    def __init__(self, node: ast.AST, parent: Scope | None, qualname: str) -> None:
        self.node = node
        self.parent = parent
        self.qualname = qualname
        self.bindings: dict[str, list[Binding]] = {}
        self.globals: set[str] = set()
        self.nonlocals: set[str] = set()

    @property
    def is_class(self) -> bool:
        """True if functions inside do not see its names."""
        return isinstance(self.node, ast.ClassDef)

    @property
    def module(self) -> Scope:
        """The outermost scope."""
        return self if self.parent is None else self.parent.module

    def inside(self, name: str) -> str:
        """Qualified name of something defined here."""
        if not self.qualname:
            return name
        return f"{self.qualname}.{name}" if self.is_class else f"{self.qualname}.<locals>.{name}"

    def bind(self, name: str, binding: Binding) -> None:
        """Binds a name where Python would."""
        if name in self.globals:
            self.module.bindings.setdefault(name, []).append(binding)
        elif name in self.nonlocals and self.parent is not None:
            self.parent.bind(name, binding)
        else:
            self.bindings.setdefault(name, []).append(binding)

    def find(self, name: str) -> tuple[Scope, list[Binding]] | None:
        """Return the scope that a name is looked up in from here, and what binds it there."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.globals:
                scope = scope.module
            if name in scope.bindings and (scope is self or not scope.is_class):
                return scope, scope.bindings[name]
            scope = scope.parent
        return None


class Names:
    """Scopes of a module, and the objects that its names refer to.

    Args:
        tree: The module.
        package: Dotted name of the package that it is in, for relative imports; empty if it is in
            none.
        exported: Names that ``from M import *`` is known to bind, by M.
        translate: Returns the path that a path leads to in other modules of the project.

    Attributes:
        functions: Every ``def``, in the order of the text.
        calls: Every call.
        assignments: Every plain assignment.
    """

    def __init__(
        self,
        tree: ast.Module,
        package: str,
        exported: dict[str, frozenset[str]],
        translate: Callable[[str], str] | None = None,
    ) -> None:
        self.module = Scope(tree, None, "")
        self.scope_of: dict[ast.AST, Scope] = {}
        self.parent_of: dict[ast.AST, ast.AST] = {}
        self.functions: list[Function] = []
        self.calls: list[ast.Call] = []
        self.assignments: list[ast.Assign] = []
        self.defined: dict[str, Function | ast.ClassDef] = {}
        self.qualname_of: dict[ast.AST, str] = {}
        self.labels: dict[ast.AST, str] = {}
        self._package = package
        self._exported = exported
        self._translate = translate
        self._stars: list[str] = []
        self._known: dict[ast.AST, str | None] = {}
        self._asking: set[ast.AST] = set()
        _Builder(self).build(tree)

    # ------------------------------------------------------------ resolving

    def resolve(self, node: ast.AST) -> str | None:
        """Return the dotted path that an expression refers to; None if that is not known."""
        if node in self.labels:
            return self.labels[node]
        if node in self._known:
            return self._known[node]
        if node in self._asking:
            return None
        self._asking.add(node)
        try:
            found = self._resolve(node)
            if (
                found is not None
                and self._translate is not None
                and not found.startswith((HERE, "builtins."))
            ):
                found = self._translate(found)
        finally:
            self._asking.discard(node)
        self._known[node] = found
        return found

    def label(self, node: ast.AST, dotted: str) -> None:
        """Set the dotted path of a node, whatever it looks like."""
        self.labels[node] = dotted
        self._known.clear()

    def _resolve(self, node: ast.AST) -> str | None:
        match node:
            case ast.Name(id=name):
                return self._name(name, self.scope_of.get(node, self.module))
            case ast.Attribute(value=value, attr=attribute):
                return _joined(self.resolve(value), attribute)
            case ast.Call(func=function):
                called = self.resolve(function)
                return None if called is None else f"{called}()"
            case ast.Await(value=value) | ast.NamedExpr(value=value):
                return self.resolve(value)
            case _:
                return None

    def _name(self, name: str, scope: Scope) -> str | None:
        found = scope.find(name)
        if found is None:
            return self._starred(name) or (f"builtins.{name}" if hasattr(builtins, name) else None)
        bindings = [binding for binding in found[1] if not isinstance(binding, Changed)]
        imported = [binding.dotted for binding in bindings if isinstance(binding, Imported)]
        if imported:
            return imported[0]
        paths = [self._bound(binding) for binding in bindings]
        return (
            paths[-1]
            if paths and (len(set(paths)) == 1 or isinstance(bindings[-1], Defined))
            else None
        )

    def _bound(self, binding: Binding) -> str | None:
        match binding:
            case Imported(dotted=dotted):
                return dotted
            case Defined(qualname=qualname):
                return f"{HERE}{qualname}"
            case SelfParameter(class_qualname=qualname):
                return f"{HERE}{qualname}()"
            case Assigned(value=None, annotation=None):
                return None
            case Assigned(value=value, annotation=annotation):
                return (self.resolve(value) if value is not None else None) or self.instance_of(
                    annotation
                )
            case _:
                return None

    def instance_of(self, annotation: ast.expr | None) -> str | None:
        """Path of an instance of the class that an annotation names."""
        match annotation:
            case None | ast.Constant(value=None):
                return None
            case ast.Constant(value=str()):
                return None
            case ast.BinOp(left=left, op=ast.BitOr(), right=right):
                return self.instance_of(left) or self.instance_of(right)
            case ast.Subscript(value=value):
                return self.instance_of(value)
            case _:
                path = self.resolve(annotation)
                return None if path is None or path.startswith("typing.") else f"{path}()"

    def _starred(self, name: str) -> str | None:
        for module in reversed(self._stars):
            if name in self._exported.get(module, ()):
                return f"{module}.{name}"
        return None

    def import_star(self, module: str) -> None:
        """Takes note of ``from module import *``."""
        self._stars.append(module)

    def absolute(self, module: str | None, level: int) -> str:
        """Dotted path of what an import names; one that leaves the package begins with a dot."""
        if not level:
            return module or ""
        parts = self._package.split(".") if self._package else []
        base = parts[: len(parts) - level + 1] if level <= len(parts) else ["." * level]
        return ".".join([*base, *([module] if module else [])])

    # ------------------------------------------------------------ around a node

    def parents(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield the nodes around a node, from the inside."""
        while (parent := self.parent_of.get(node)) is not None:
            yield parent
            node = parent

    def function_around(self, node: ast.AST) -> Function | None:
        """Return the innermost function that runs a node. Decorators and defaults are run by what
        is around their function.
        """
        return next(self._functions_around(node), None)

    def outermost_function(self, node: ast.AST) -> Function | None:
        """Return the function of the module that a node is in."""
        return next(iter(list(self._functions_around(node))[::-1]), None)

    def _functions_around(self, node: ast.AST) -> Iterator[Function]:
        scope: Scope | None = self.scope_of.get(node, self.module)
        while scope is not None:
            if isinstance(scope.node, FUNCTIONS):
                yield scope.node
            scope = scope.parent

    def module_variable(self, node: ast.expr) -> str | None:
        """Name of the variable of the module that a name is, if it is one."""
        if not isinstance(node, ast.Name):
            return None
        found = self.scope_of.get(node, self.module).find(node.id)
        if found is None or found[0] is not self.module:
            return None
        return node.id if any(isinstance(binding, Assigned) for binding in found[1]) else None

    def is_parameter(self, node: ast.Name) -> bool:
        """Return True if a name is a parameter that nothing else is bound to."""
        found = self.scope_of.get(node, self.module).find(node.id)
        if found is None or found[0] is self.module or len(found[1]) != 1:
            return False
        binding = found[1][0]
        return (
            isinstance(binding, Assigned)
            and binding.value is None
            and binding.annotation is not None
        )

    def is_local(self, node: ast.expr) -> bool:
        """Return True if a name belongs to a function: a parameter, or a variable that is bound
        there and not imported.
        """
        if not isinstance(node, ast.Name):
            return False
        found = self.scope_of.get(node, self.module).find(node.id)
        return (
            found is not None
            and found[0] is not self.module
            and not any(isinstance(binding, Imported) for binding in found[1])
        )


def root_of(node: ast.expr) -> ast.expr:
    """Return the expression that attributes, items and calls are strung after:
    ``a`` of ``a.b[0].c()``.
    """
    while True:
        match node:
            case (
                ast.Attribute(value=inner)
                | ast.Subscript(value=inner)
                | ast.Starred(value=inner)
                | ast.Await(value=inner)
            ):
                node = inner
            case ast.Call(func=inner):
                node = inner
            case _:
                return node


def _joined(base: str | None, attribute: str) -> str | None:
    return None if base is None else f"{base}.{attribute}"


class _Builder:
    """Finds scopes and bindings. It keeps a stack of its own: expressions may be nested deeper than
    Python may call.
    """

    def __init__(self, names: Names) -> None:
        self._names = names
        self._todo: list[tuple[ast.AST, ast.AST | None, Scope]] = []

    def build(self, tree: ast.Module) -> None:
        self._push_all(tree.body, tree, self._names.module)
        while self._todo:
            node, parent, scope = self._todo.pop()
            if parent is not None:
                self._names.parent_of[node] = parent
            self._names.scope_of[node] = scope
            self._enter(node, scope)

    def _push_all(
        self, nodes: list[ast.AST] | list[ast.stmt] | list[ast.expr], parent: ast.AST, scope: Scope
    ) -> None:
        self._todo.extend((node, parent, scope) for node in reversed(nodes))

    def _enter(self, node: ast.AST, scope: Scope) -> None:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._function(node, scope)
            case ast.Lambda(args=arguments, body=body):
                inner = Scope(node, scope, scope.inside("<lambda>"))
                self._parameters(arguments, node, scope, inner, None)
                self._push_all([body], node, inner)
            case ast.ClassDef(name=name, body=body):
                self._define(node, name, scope)
                inner = Scope(node, scope, scope.inside(name))
                self._push_all([*node.decorator_list, *node.bases, *node.keywords], node, scope)
                self._push_all(body, node, inner)
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
                self._push_all(
                    list(ast.iter_child_nodes(node)), node, Scope(node, scope, scope.qualname)
                )
            case _:
                self._note(node)
                self._bind(node, scope)
                self._push_all(list(ast.iter_child_nodes(node)), node, scope)

    def _note(self, node: ast.AST) -> None:
        if isinstance(node, ast.Call):
            self._names.calls.append(node)
        elif isinstance(node, ast.Assign):
            self._names.assignments.append(node)

    def _define(self, node: Function | ast.ClassDef, name: str, scope: Scope) -> None:
        qualname = scope.inside(name)
        scope.bind(name, Defined(node, qualname))
        self._names.defined[qualname] = node
        self._names.qualname_of[node] = qualname

    def _function(self, node: Function, scope: Scope) -> None:
        self._define(node, node.name, scope)
        self._names.functions.append(node)
        inner = Scope(node, scope, scope.inside(node.name))
        for statement in _own_statements(node):
            if isinstance(statement, ast.Global):
                inner.globals.update(statement.names)
            elif isinstance(statement, ast.Nonlocal):
                inner.nonlocals.update(statement.names)
        is_method = scope.is_class and not {"staticmethod", "classmethod"} & {
            d.id for d in node.decorator_list if isinstance(d, ast.Name)
        }
        self._parameters(node.args, node, scope, inner, scope.qualname if is_method else None)
        around = [*node.decorator_list, *([node.returns] if node.returns is not None else [])]
        self._push_all(around, node, scope)
        self._push_all(node.body, node, inner)

    def _parameters(
        self,
        arguments: ast.arguments,
        node: ast.AST,
        scope: Scope,
        inner: Scope,
        method_of: str | None,
    ) -> None:
        positional = [*arguments.posonlyargs, *arguments.args]
        several = [
            argument for argument in (arguments.vararg, arguments.kwarg) if argument is not None
        ]
        for argument in (*positional, *arguments.kwonlyargs):
            is_self = method_of is not None and positional[:1] == [argument]
            inner.bind(
                argument.arg,
                SelfParameter(method_of)
                if is_self and method_of
                else Assigned(annotation=argument.annotation),
            )
        for argument in several:
            inner.bind(argument.arg, Assigned())
        annotations = [
            a.annotation
            for a in (*positional, *arguments.kwonlyargs, *several)
            if a.annotation is not None
        ]
        defaults = [
            default
            for default in (*arguments.defaults, *arguments.kw_defaults)
            if default is not None
        ]
        self._push_all([*annotations, *defaults], node, scope)

    def _bind(self, node: ast.AST, scope: Scope) -> None:  # noqa: PLR0912 - a case for each kind of node
        match node:
            case ast.Import(names=aliases):
                for alias in aliases:
                    scope.bind(
                        alias.asname or alias.name.split(".")[0],
                        Imported(alias.name if alias.asname else alias.name.split(".")[0]),
                    )
            case ast.ImportFrom(module=module, names=aliases, level=level):
                self._import_from(self._names.absolute(module, level), aliases, scope)
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    self._assign(target, Assigned(value), scope)
            case ast.AnnAssign(target=target, annotation=annotation, value=value):
                self._assign(target, Assigned(value, annotation), scope)
            case ast.NamedExpr(target=target, value=value):
                self._assign(target, Assigned(value), _outside_of_comprehensions(scope))
            case ast.withitem(context_expr=value, optional_vars=ast.expr() as target):
                self._assign(target, Assigned(value), scope)
            case ast.AugAssign(target=ast.Name(id=name)):
                scope.bind(name, Changed())
            case (
                ast.For(target=target)
                | ast.AsyncFor(target=target)
                | ast.comprehension(target=target)
            ):
                self._assign(target, Assigned(), scope)
            case (
                ast.ExceptHandler(name=str(name))
                | ast.MatchAs(name=str(name))
                | ast.MatchStar(name=str(name))
            ):
                scope.bind(name, Assigned())
            case ast.MatchMapping(rest=str(name)):
                scope.bind(name, Assigned())
            case _ if type(node).__name__ == "TypeAlias":  # Python 3.12
                scope.bind(node.name.id, Assigned())  # type: ignore[attr-defined]

    def _assign(self, target: ast.expr, binding: Assigned, scope: Scope) -> None:
        match target:
            case ast.Name(id=name):
                scope.bind(name, binding)
            case ast.Tuple(elts=elements) | ast.List(elts=elements):
                for element in elements:
                    self._assign(element, Assigned(), scope)
            case ast.Starred(value=value):
                self._assign(value, Assigned(), scope)

    def _import_from(self, module: str, aliases: list[ast.alias], scope: Scope) -> None:
        for alias in aliases:
            if alias.name == "*":
                self._names.import_star(module)
            else:
                scope.bind(alias.asname or alias.name, Imported(f"{module}.{alias.name}"))


def _outside_of_comprehensions(scope: Scope) -> Scope:
    while isinstance(scope.node, COMPREHENSIONS) and scope.parent is not None:
        scope = scope.parent
    return scope


def _own_statements(function: Function) -> Iterator[ast.stmt]:
    """Statements of a function, those of functions inside left out."""
    todo: list[ast.AST] = list(function.body)
    while todo:
        node = todo.pop()
        if isinstance(node, ast.stmt):
            yield node
        if not isinstance(node, (*FUNCTIONS, ast.ClassDef, ast.expr)):
            todo.extend(ast.iter_child_nodes(node))
