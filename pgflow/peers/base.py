"""The part that dialects share: a walk through a module that replaces names, and collects notes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import libcst as cst
import libcst.matchers as m
from libcst.metadata import PositionProvider

Arguments = dict[str, cst.BaseExpression]


@dataclass(frozen=True)
class Note:
    """Something that could not be translated.

    Attributes:
        line: Its line in the source.
        what: The code.
        advice: The next action.
    """

    line: int
    what: str
    advice: str


@dataclass
class Draft:
    """A translated module.

    Attributes:
        code: Its text.
        notes: Uses that are left, by line.
        translated: Number of uses of the peer that were replaced.
    """

    code: str
    notes: list[Note] = field(default_factory=list)
    translated: int = 0


def dotted(node: cst.CSTNode) -> str:
    """Return a name with dots; empty if the node is none."""
    if isinstance(node, cst.Name):
        return node.value
    if isinstance(node, cst.Attribute) and (before := dotted(node.value)):
        return f"{before}.{node.attr.value}"
    return ""


def text_of(node: cst.CSTNode) -> str:
    """Return the source of a node."""
    return cst.Module([]).code_for_node(node)


def expression(text: str) -> cst.BaseExpression:
    """Return the node of an expression."""
    return cst.parse_expression(text)


class Translator(cst.CSTTransformer):
    """Base of the dialects: it knows the functions around a node, and collects notes."""

    METADATA_DEPENDENCIES = (PositionProvider,)
    package = ""
    roots: Sequence[str] = ()
    """Names by which code speaks to the peer."""
    decorators: dict[str, str] = {}  # noqa: RUF012 - a table of the class
    calls: dict[str, Callable[[Translator, Arguments, bool], str | None]] = {}  # noqa: RUF012
    names: dict[str, str] = {}  # noqa: RUF012
    advice: dict[str, str] = {}  # noqa: RUF012
    elsewhere: dict[str, str] = {}  # noqa: RUF012
    """Names that are imported beside the roots, and what to write instead."""

    def __init__(self) -> None:
        super().__init__()
        self.notes: list[Note] = []
        self.translated = 0
        self.left: list[str] = []
        """Arguments of the present call that have no counterpart."""
        self._async: list[bool] = []

    def imports(self, module: cst.Module) -> bool:
        """Return True if a module imports the peer."""
        own: Any = m.MatchIfTrue(lambda node: dotted(node).split(".")[0] == self.package)
        found = m.findall(module, m.ImportFrom(module=own) | m.ImportAlias(name=own))
        return bool(found)

    def note(self, node: cst.CSTNode, what: str, advice: str) -> None:
        """Keep a note on a node of the source."""
        position = self.get_metadata(PositionProvider, node)
        self.notes.append(Note(position.start.line, what, advice))

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:  # noqa: N802 - of the library
        """Enter a function."""
        self._async.append(node.asynchronous is not None)

    def leave_FunctionDef(  # noqa: N802
        self, original_node: cst.FunctionDef, updated_node: cst.FunctionDef
    ) -> cst.FunctionDef:
        """Leave it."""
        del original_node
        self._async.pop()
        return updated_node

    @property
    def is_async(self) -> bool:
        """True inside an ``async def``."""
        return bool(self._async) and self._async[-1]

    def leave_ImportFrom(  # noqa: N802
        self, original_node: cst.ImportFrom, updated_node: cst.ImportFrom
    ) -> cst.ImportFrom | cst.Import:
        """Replace the import of the peer by that of pgflow."""
        if updated_node.module is None or dotted(updated_node.module).split(".")[0] != self.package:
            return updated_node
        names = [] if isinstance(updated_node.names, cst.ImportStar) else updated_node.names
        for name in map(text_of, (one.name for one in names)):
            if name not in self.roots and name not in self.elsewhere:
                advice = "is gone: what uses it is to be rewritten"
                self.note(original_node, f"import {name}", advice)
        return cst.Import([cst.ImportAlias(cst.Name("pgflow"))])

    def leave_Module(self, original_node: cst.Module, updated_node: cst.Module) -> cst.Module:  # noqa: N802
        """Import pgflow once."""
        del original_node
        seen, body = False, []
        for line in updated_node.body:
            is_simple = isinstance(line, cst.SimpleStatementLine)
            if is_simple and text_of(line).strip() == "import pgflow":
                if seen:
                    continue
                seen = True
            body.append(line)
        return updated_node.with_changes(body=body)

    def leave_Decorator(  # noqa: N802
        self, original_node: cst.Decorator, updated_node: cst.Decorator
    ) -> cst.Decorator:
        """Replace a decorator of the peer, and keep the arguments that mean the same."""
        made = updated_node.decorator
        name = dotted(made.func if isinstance(made, cst.Call) else made)
        ours = self.decorators.get(name)
        if ours is None:
            return updated_node
        given = arguments_of(made) if isinstance(made, cst.Call) else {}
        kept, left = self.decorate(ours, given)
        if left:
            words = f"@{name}({', '.join(left)}=)"
            self.note(original_node, words, "has no counterpart: see the reference")
        self.translated += 1
        text = f"pgflow.{ours}({', '.join(kept)})" if kept else f"pgflow.{ours}"
        return updated_node.with_changes(decorator=expression(text))

    def decorate(self, ours: str, given: Arguments) -> tuple[list[str], list[str]]:
        """Return the arguments for our decorator, and the names of those without a counterpart."""
        del ours
        kept = [f"name={text_of(given['name'])}"] if "name" in given else []
        return kept, sorted({*given} - {"name"})

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.BaseExpression:  # noqa: N802
        """Replace a call of the peer."""
        name = dotted(updated_node.func)
        make = self.calls.get(name)
        if make is None:
            return updated_node
        self.left = []
        text = make(self, arguments_of(updated_node), self.is_async)
        if text is None:
            advice = "is called in a way that is not known here: rewrite it"
            self.note(original_node, f"{name}(...)", advice)
            return updated_node
        self.translated += 1
        if self.left:
            words = ", ".join(f"{word}=" for word in self.left)
            self.note(original_node, f"{name}({words})", "is left out: see the page for this peer")
        if name in self.advice:
            self.note(original_node, f"{name}(...)", self.advice[name])
        return expression(text)

    def leave_Attribute(  # noqa: N802
        self, original_node: cst.Attribute, updated_node: cst.Attribute
    ) -> cst.BaseExpression:
        """Replace a name of the peer, or note that it stays."""
        name = dotted(updated_node)
        root, _, rest = name.partition(".")
        if root not in self.roots or "." in rest:
            return updated_node
        if name in self.names:
            self.translated += 1
            return expression(self.names[name])
        if name not in self.calls and name not in self.decorators:
            advice = self.advice.get(name, "has no counterpart: rewrite it by hand")
            self.note(original_node, name, advice)
        return updated_node


def arguments_of(call: cst.Call) -> Arguments:
    """Return the arguments of a call by name, those by position as ``0``, ``1``, ..."""
    found: Arguments = {}
    for number, argument in enumerate(call.args):
        name = argument.keyword.value if argument.keyword else f"{argument.star}{number}"
        found[name] = argument.value
    return found


def rest_of(given: Arguments, first: int, but: Sequence[str] = ()) -> str:
    """Return the arguments by position from one on, and those by name except some, as text."""
    texts = []
    for name, value in given.items():
        stars = name.rstrip("0123456789")
        number = name[len(stars) :]
        if number and set(stars) <= {"*"}:
            if int(number) >= first:
                texts.append(f"{stars}{text_of(value)}")
        elif name not in but:
            texts.append(f"{name}={text_of(value)}")
    return ", ".join(texts)


def plain(
    name: str, *, colour: str | None = None
) -> Callable[[Translator, Arguments, bool], str | None]:
    """Return the maker of a call with the same arguments, in code of one colour if it has one."""

    def make(_: Translator, given: Arguments, is_async: bool) -> str | None:
        if colour is not None and is_async != (colour == "async"):
            return None
        return f"pgflow.{name}({rest_of(given, 0)})"

    return make
