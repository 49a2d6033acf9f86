"""Changes of Python: operators that read the syntax tree and answer with new text for a part of it.

Left out is what changes nothing that a test may see: docstrings, annotations, what is logged, the
text of errors and of help, assertions, `__repr__`, constants at the top of a module that only name or
type, statements in another order, handlers of more errors, and times, which no test bounds.
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Any

from . import sql_operators

if TYPE_CHECKING:
    from collections.abc import Iterator

Spliced = tuple[tuple[int, int, str], ...]

COMPARED = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in",
}  # fmt: skip
CALLED = {"min": "max", "max": "min", "any": "all", "all": "any", "sorted": "list"}
COMPUTED = {ast.Add: "-", ast.Sub: "+", ast.Mult: "//", ast.FloorDiv: "*"}
LOGS = frozenset({"log", "logger", "logging", "_log", "_logger", "warnings"})
SILENT = ("__repr__", "__str__", "__rich__")
SHOWN = frozenset(
    {
        "about", "description", "epilog", "help", "hint", "instead", "metavar", "prog", "style",
        "title", "usage", "why",
    }
)  # fmt: skip
"""Arguments whose text is only shown."""
UNSEEN = SHOWN | {"compare", "eq", "frozen", "hash", "kw_only", "order", "repr", "slots"}
"""The same, and how a class is made."""
TIMES = re.compile(r"(seconds|timeout|period|patience|interval|_ms|_us|_ns)(_\w+)?$", re.IGNORECASE)
TYPES = frozenset({"Literal", "TypeVar", "ParamSpec", "NewType", "TypeVarTuple"})
SMALL = 10
NAMES = ("__all__", "__slots__", "__match_args__", "log", "logger")
WORD = re.compile(r"[\w.:/%$-]{1,24}")
QUERY = re.compile(r"\s*(select|with|insert|update|delete|from|where|and|or|begin|set|perform)\s")
PATTERN = re.compile(r"\S*\w\S*\|\S*\w\S*")
QUOTES = re.compile(r'r?("{3}|\'{3}|"|\')')
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def find(text: str) -> Iterator[tuple[str, str, Spliced]]:
    """Function, operator and new text of each place of a module."""
    yield from _Places(text).find()


class _Places:
    """The walk through one module."""

    def __init__(self, text: str) -> None:
        self._tree = ast.parse(text)
        self._text = text
        self._starts = [0]
        for line in text.split("\n"):
            self._starts.append(self._starts[-1] + len(line) + 1)
        self._lines = text.split("\n")

    def find(self) -> Iterator[tuple[str, str, Spliced]]:
        yield from self._in_block(self._tree.body, "<module>", None)

    def _offset(self, line: int, column: int) -> int:
        text = self._lines[line - 1]
        if not text.isascii():
            column = len(text.encode()[:column].decode())
        return self._starts[line - 1] + column

    def _span(self, node: Any) -> tuple[int, int]:
        return (
            self._offset(node.lineno, node.col_offset),
            self._offset(node.end_lineno, node.end_col_offset),
        )

    def _source(self, node: Any) -> str:
        start, end = self._span(node)
        return self._text[start:end]

    def _replace(self, node: Any, text: str) -> Spliced:
        return ((*self._span(node), text),)

    def _cut(self, nodes: list[Any], at: int) -> Spliced:
        """Take one of several nodes out, with the separator beside it."""
        if at + 1 < len(nodes):
            return ((self._span(nodes[at])[0], self._span(nodes[at + 1])[0], ""),)
        return ((self._span(nodes[at - 1])[1], self._span(nodes[at])[1], ""),)

    # Statements

    def _in_block(
        self, block: list[ast.stmt], function: str, owner: ast.AST | None
    ) -> Iterator[tuple[str, str, Spliced]]:
        for at, statement in enumerate(block):
            if isinstance(statement, FUNCTIONS):
                yield from self._in_function(statement, function, owner)
            elif isinstance(statement, ast.ClassDef):
                inner = _inner(function, statement.name, owner)
                for name, operator, splices in self._in_block(statement.body, inner, statement):
                    yield name, operator, splices
            elif not self._is_silent(statement):
                is_last = owner is not None and at == len(block) - 1
                for operator, splices in self._of_statement(statement, owner, is_last=is_last):
                    yield function, operator, splices
                for inner_block in _blocks(statement):
                    yield from self._in_block(inner_block, function, owner)

    def _in_function(
        self, node: Any, function: str, owner: ast.AST | None
    ) -> Iterator[tuple[str, str, Spliced]]:
        if node.name in SILENT or any("overload" in ast.unparse(d) for d in node.decorator_list):
            return
        inner = _inner(function, node.name, owner)
        named = [*node.args.posonlyargs, *node.args.args]
        defaults = [
            *zip(named[len(named) - len(node.args.defaults) :], node.args.defaults, strict=True),
            *zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True),
        ]
        for argument, default in defaults:
            if default is None or TIMES.search(argument.arg):
                continue
            for operator, splices in self._of_constant(default):
                yield inner, operator, splices
        yield from self._in_block(node.body, inner, node)

    def _is_silent(self, node: ast.stmt) -> bool:
        if isinstance(node, ast.Import | ast.ImportFrom | ast.Assert | ast.Pass | ast.Global):
            return True
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            return True
        if isinstance(node, ast.AnnAssign) and node.value is None:
            return True
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Constant):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            name = getattr(target, "id", "")
            if TIMES.search(name) or name in SHOWN or isinstance(node.value.value, float):
                return True
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") in NAMES:
            return True
        if isinstance(node, ast.Expr):
            return isinstance(node.value, ast.Constant) or _logs(node.value)
        return isinstance(node, ast.Raise) and "NotImplementedError" in ast.unparse(node)

    def _of_statement(
        self, node: Any, owner: ast.AST | None, *, is_last: bool
    ) -> Iterator[tuple[str, Spliced]]:
        if isinstance(owner, FUNCTIONS):
            if _acts(node) or isinstance(node, ast.Raise | ast.Continue):
                yield "statement dropped", self._replace(node, "pass")
            elif isinstance(node, ast.Return) and not is_last:
                yield "return dropped", self._replace(node, "pass")
        if isinstance(node, ast.Return) and node.value is not None:
            if "bool" in ast.unparse(getattr(owner, "returns", None) or ast.Constant("")):
                yield (
                    "return negated",
                    self._replace(node.value, f"not ({self._source(node.value)})"),
                )
            elif not (isinstance(node.value, ast.Constant) and node.value.value is None):
                yield "return None", self._replace(node.value, "None")
        if isinstance(owner, FUNCTIONS) and _names(node) and not _is_constant(node.value):
            yield "value None", self._replace(node.value, "None")
        if isinstance(node, ast.For):
            yield "loop dropped", self._replace(node.iter, "()")
        if isinstance(node, ast.With | ast.AsyncWith):
            yield from self._of_with(node)
        if isinstance(node, ast.Try):
            for handler in node.handlers:
                yield from self._of_handler(handler)
        if isinstance(node, ast.While):
            yield from self._of_while(node)
        for head in _heads(node):
            if not isinstance(node, ast.Raise) or not isinstance(head, ast.Call):
                yield from self._of_expression(head)
        if isinstance(node, ast.If):
            yield from self._of_condition(node.test)

    def _of_while(self, node: ast.While) -> Iterator[tuple[str, Spliced]]:
        leaves = any(isinstance(n, ast.Break | ast.Continue) for n in ast.walk(node))
        if isinstance(node.test, ast.Constant) or leaves:
            return
        start, _ = self._span(node)
        yield "loop once", ((start, start + len("while"), "if"),)
        yield "condition false", self._replace(node.test, "False")

    def _of_with(self, node: Any) -> Iterator[tuple[str, Spliced]]:
        if any(item.optional_vars for item in node.items):
            return
        start, body = self._span(node)[0], node.body[0].lineno
        if body == node.items[-1].context_expr.end_lineno:
            return
        colon = self._text.index(":", self._span(node.items[-1].context_expr)[1])
        yield "context dropped", ((start, colon, "if True"),)

    def _of_handler(self, node: ast.ExceptHandler) -> Iterator[tuple[str, Spliced]]:
        if node.type is None:
            return
        if self._source(node.type) == "BaseException":
            yield "handler narrowed", self._replace(node.type, "Exception")
        if isinstance(node.type, ast.Tuple) and len(node.type.elts) > 2:
            for at in range(len(node.type.elts)):
                yield "handler narrowed", self._cut(node.type.elts, at)

    # Expressions

    def _of_condition(self, test: ast.expr) -> Iterator[tuple[str, Spliced]]:
        if not isinstance(test, ast.Constant):
            yield "condition true", self._replace(test, "True")
            yield "condition false", self._replace(test, "False")

    def _of_expression(self, top: ast.AST) -> Iterator[tuple[str, Spliced]]:
        for node in _walk(top):
            yield from self._of_node(node)

    def _of_node(self, node: Any) -> Iterator[tuple[str, Spliced]]:
        if isinstance(node, ast.IfExp):
            yield from self._of_condition(node.test)
        elif isinstance(node, ast.comprehension):
            for test in node.ifs:
                yield "condition true", self._replace(test, "True")
        elif isinstance(node, ast.Compare):
            yield from self._of_compare(node)
        elif isinstance(node, ast.BoolOp):
            for at in range(len(node.values)):
                yield "term dropped", self._cut_term(node, at)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield "not dropped", self._replace(node, f"({self._source(node.operand)})")
        elif isinstance(node, ast.BinOp) and type(node.op) in COMPUTED and not _is_text(node):
            start, end = self._span(node.left)[1], self._span(node.right)[0]
            sign = re.search(r"//|[-+*]", self._text[start:end])
            if sign:
                new = COMPUTED[type(node.op)]
                yield "arithmetic", ((start + sign.start(), start + sign.end(), new),)
        elif isinstance(node, ast.Call):
            yield from self._of_call(node)
        elif isinstance(node, ast.Tuple | ast.List | ast.Set) and len(node.elts) > 2:
            for at in range(len(node.elts)):
                yield "element dropped", self._cut(node.elts, at)
        elif isinstance(node, ast.Dict) and len(node.keys) > 1 and None not in node.keys:
            for at in range(len(node.keys)):
                yield "element dropped", self._cut_pair(node, at)
        elif isinstance(node, ast.Constant):
            yield from self._of_constant(node)

    def _cut_term(self, node: ast.BoolOp, at: int) -> Spliced:
        """Put the neutral value in its place, which needs no care for parentheses."""
        return self._replace(node.values[at], "True" if isinstance(node.op, ast.And) else "False")

    def _cut_pair(self, node: ast.Dict, at: int) -> Spliced:
        if at + 1 < len(node.keys):
            return ((self._span(node.keys[at])[0], self._span(node.keys[at + 1])[0], ""),)
        return ((self._span(node.values[at - 1])[1], self._span(node.values[at])[1], ""),)

    def _of_compare(self, node: ast.Compare) -> Iterator[tuple[str, Spliced]]:
        for op, left, right in zip(
            node.ops, [node.left, *node.comparators], node.comparators, strict=False
        ):
            start, end = self._span(left)[1], self._span(right)[0]
            sign = re.search(r"[<>=!]=?|\bis(\s+not)?\b|\b(not\s+)?in\b", self._text[start:end])
            if sign:
                new = COMPARED[type(op)]
                is_order = isinstance(op, ast.Lt | ast.LtE | ast.Gt | ast.GtE)
                name = "boundary" if is_order else "comparison negated"
                yield name, ((start + sign.start(), start + sign.end(), new),)

    def _of_call(self, node: ast.Call) -> Iterator[tuple[str, Spliced]]:
        if isinstance(node.func, ast.Name) and node.func.id in CALLED:
            yield "call exchanged", self._replace(node.func, CALLED[node.func.id])
        for at, keyword in enumerate(node.keywords):
            rest: list[Any] = [*node.args, *node.keywords]
            if keyword.arg in UNSEEN:
                continue
            if keyword.arg is not None and len(rest) > 1 and not _is_constant(keyword.value):
                yield "argument dropped", self._cut(rest, len(node.args) + at)
        for argument in node.args:
            if isinstance(argument, ast.Name | ast.Attribute | ast.Call) and len(node.args) > 1:
                yield "argument None", self._replace(argument, "None")

    def _of_constant(self, node: ast.AST) -> Iterator[tuple[str, Spliced]]:
        if not isinstance(node, ast.Constant):
            return
        value = node.value
        if isinstance(value, bool):
            yield "constant", self._replace(node, str(not value))
        elif isinstance(value, int):
            yield "constant", self._replace(node, repr(value + 1 if value < SMALL else 1))
        elif isinstance(value, str):
            yield from self._of_text(node, value)

    def _of_text(self, node: ast.Constant, value: str) -> Iterator[tuple[str, Spliced]]:
        """A word, an alternative of a pattern, or a place of a query."""
        start, end = self._span(node)
        source = self._text[start:end]
        quotes = QUOTES.match(source)
        if quotes is None or source[quotes.end() : -len(quotes[1])] != value:
            return  # of several parts, or with escapes
        inside = start + quotes.end()
        if QUERY.match(value):
            for operator, splices in sql_operators.of_query(value):
                yield operator, tuple((inside + a, inside + b, text) for a, b, text in splices)
        elif PATTERN.fullmatch(value):
            for found in re.finditer(r"[^|()]+\||\|[^|()]+", value):
                yield "alternative dropped", ((inside + found.start(), inside + found.end(), ""),)
        elif WORD.fullmatch(value):
            yield "constant", ((start, end, repr(f"{value}x")),)


def _inner(function: str, name: str, owner: ast.AST | None) -> str:
    if function == "<module>":
        return name
    return f"{function}.<locals>.{name}" if isinstance(owner, FUNCTIONS) else f"{function}.{name}"


def _blocks(node: ast.stmt) -> Iterator[list[ast.stmt]]:
    for name in ("body", "orelse", "finalbody"):
        if block := getattr(node, name, None):
            yield block
    for part in [*getattr(node, "handlers", ()), *getattr(node, "cases", ())]:
        yield part.body


def _heads(node: ast.stmt) -> Iterator[ast.AST]:
    """The expressions of a statement itself, without annotations and the statements in it."""
    for name, value in ast.iter_fields(node):
        if name in {
            "body",
            "orelse",
            "finalbody",
            "handlers",
            "cases",
            "annotation",
            "targets",
            "target",
        }:
            continue
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, ast.AST):
                yield part
    for case in getattr(node, "cases", ()):
        yield from filter(None, [case.guard])


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    """The node and all below, without what is only shown: f-strings and logs."""
    if isinstance(node, ast.JoinedStr | ast.Lambda) or _logs(node):
        if isinstance(node, ast.Lambda):
            yield from _walk(node.body)
        return
    if isinstance(node, ast.Call | ast.Subscript):
        named = node.func if isinstance(node, ast.Call) else node.value
        if isinstance(named, ast.Name) and named.id in TYPES:
            return
    if isinstance(node, ast.keyword) and (node.arg in UNSEEN or TIMES.search(node.arg or "")):
        return
    yield node
    for child in ast.iter_child_nodes(node):
        yield from _walk(child)


def _logs(node: ast.AST) -> bool:
    while isinstance(node, ast.Await):
        node = node.value
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    of = node.func.value
    return getattr(of, "attr", getattr(of, "id", "")) in LOGS


def _acts(node: ast.AST) -> bool:
    """Return True for a statement that is done for its effect."""
    if isinstance(node, ast.Expr):
        value = node.value.value if isinstance(node.value, ast.Await) else node.value
        return isinstance(value, ast.Call) and not _logs(value)
    if isinstance(node, ast.Assign):
        return all(isinstance(t, ast.Attribute | ast.Subscript) for t in node.targets)
    if isinstance(node, ast.Delete):  # of a name, which only says that it is not used
        return not all(isinstance(target, ast.Name) for target in node.targets)
    return isinstance(node, ast.AugAssign)


def _names(node: ast.AST) -> bool:
    """Return True for `name = value`."""
    return isinstance(node, ast.Assign) and all(isinstance(t, ast.Name) for t in node.targets)


def _is_constant(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant)


def _is_text(node: ast.BinOp) -> bool:
    kinds = (ast.JoinedStr, ast.List, ast.Tuple)
    return any(
        isinstance(n, kinds) or isinstance(n, ast.Constant) and isinstance(n.value, str)
        for n in ast.walk(node)
    )
