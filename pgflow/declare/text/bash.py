"""Places that bash evaluates: there a value of a script would be more than a text.

Bash reads some texts as arithmetic: ``$((...))``, ``[[ x -gt y ]]``, an index, the offset of
``${x:n}``, all that a variable of ``declare -i`` is given. Arithmetic runs commands, for
``a[$(touch x)]`` is an expression. `places` finds these.

The lexer is ``tree-sitter-bash``, of the extra ``run``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from pgflow.errors import SetupError

IDENTIFIER: Final = re.compile(rb"(?<![\w$#{])[A-Za-z_]\w*")
INNER_SHELLS: Final = frozenset({"command_substitution", "process_substitution"})
DECLARES: Final = frozenset({"declare", "local", "typeset", "readonly", "export"})

COMPARED: Final = frozenset({"-eq", "-ne", "-lt", "-le", "-gt", "-ge"})
_ARITHMETIC: Final = re.compile(rb"\$?\(\(.*\)\)", re.DOTALL)
_INTEGERS: Final = frozenset({"RANDOM", "SECONDS", "OPTIND", "LINENO", "HISTCMD", "SRANDOM"})
"""Variables that are integers from the start, among those that bash has itself."""


@cache
def parser() -> Any:
    """Return the lexer.

    Raises:
        SetupError: It is not installed.
    """
    try:
        import tree_sitter
        import tree_sitter_bash
    except ImportError as error:
        raise SetupError(
            "shell scripts that read values need a lexer of bash: pip install 'pgflow-engine[run]'"
        ) from error
    return tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language()))


@dataclass(frozen=True, slots=True)
class Place:
    """A part of a script that bash evaluates.

    ``node`` has the tree of it; ``is_operand`` if it is one word, and no expression with operators.
    ``shells`` are the ranges within it that are commands of their own.
    """

    start: int
    end: int
    node: Any
    is_operand: bool = False
    shells: tuple[tuple[int, int], ...] = ()

    def has(self, at: int) -> bool:
        """Return True if the value at a byte is evaluated here."""
        return self.start <= at < self.end and not any(
            first <= at < last for first, last in self.shells
        )


@dataclass(frozen=True, slots=True)
class Names:
    """Names of a script's variables: those with ``-A``, ``-i`` and ``-n``, and all arrays."""

    maps: frozenset[str]
    integers: frozenset[str]
    references: frozenset[str]
    arrays: frozenset[str]


def walk(node: Any) -> Iterator[Any]:
    """Yield the node and all in it, in the order of the text."""
    stack = [node]
    while stack:
        one = stack.pop()
        yield one
        stack += reversed(one.children)


def commands(node: Any) -> Iterator[Any]:
    """Yield the same without what only looks like commands: the inside of ``((...))``."""
    stack = [node]
    while stack:
        one = stack.pop()
        yield one
        if one.type not in ("command_substitution", "subshell") or not is_arithmetic(one):
            stack += reversed(one.children)


def upwards(node: Any) -> Iterator[Any]:
    """Yield the node and those around it, the innermost first."""
    while node is not None:
        yield node
        node = node.parent


def text_of(node: Any) -> str:
    """Return the text of a node."""
    return str(node.text.decode("utf-8", "replace"))


def flags_of(command: Any) -> str:
    """Return the letters of a declaration's options."""
    words = [text_of(child) for child in command.children[1:] if child.type == "word"]
    return "".join(word[1:] for word in words if re.fullmatch(r"[-][A-Za-z]+", word))


def name_of(node: Any) -> str:
    """Return the name of an assignment, an expansion or an index; empty if it has none."""
    for child in node.children:
        if child.type in ("variable_name", "special_variable_name"):
            return text_of(child)
        if child.type == "subscript":
            return name_of(child)
    return ""


def is_arithmetic(node: Any) -> bool:
    """Return True for ``$((...))``, which the lexer takes for a subshell within a heredoc, and for
    ``((...))``, which it takes for one behind a ``!``.
    """
    return node.type == "arithmetic_expansion" or (
        node.type in ("command_substitution", "subshell")
        and _ARITHMETIC.fullmatch(node.text) is not None
    )


def is_shell(node: Any) -> bool:
    """Return True for commands of their own within a word."""
    return node.type in INNER_SHELLS and not is_arithmetic(node)


def names_of(root: Any) -> Names:
    """Find out what a script declares of its variables."""
    found: dict[str, set[str]] = {"A": set(), "i": set(_INTEGERS), "n": set(), "a": set()}
    for node in walk(root):
        if node.type == "declaration_command":
            flags = flags_of(node)
            for child in node.children:
                if child.type in ("variable_assignment", "variable_name"):
                    name = name_of(child) or text_of(child)
                    for letter in found.keys() & set(flags):
                        found[letter].add(name)
        elif node.type == "variable_assignment":
            value = node.child_by_field_name("value")
            if value is not None and value.type == "array":
                found["a"].add(name_of(node))
    maps, integers, references = (frozenset(found[letter]) for letter in "Ain")
    return Names(maps, integers, references, maps | found["a"])


def places(root: Any, names: Names) -> list[Place]:
    """Find the places that bash evaluates, the outer ones first."""
    return [place for node in walk(root) for place in _of_node(node, names)]


def _of_node(node: Any, names: Names) -> Iterator[Place]:
    match node.type:
        case "arithmetic_expansion":
            yield _place(node)
        case "command_substitution" | "subshell" if is_arithmetic(node):
            again = parser().parse(b" " * node.start_byte + node.text).root_node
            yield _place(again, start=node.start_byte)
        case "compound_statement" | "test_command":
            if text_of(node.children[0]) == "((":
                yield _place(node)
        case "c_style_for_statement":
            body = node.child_by_field_name("body")
            yield _place(node, end=node.end_byte if body is None else body.start_byte)
        case "subscript":
            yield from _of_index(node, names)
        case "expansion":
            yield from _of_offset(node)
        case "binary_expression":
            yield from _of_comparison(node)
        case "variable_assignment":
            yield from _of_assignment(node, names)
        case "command" if _first_word(node) == "let":
            yield from (_place(child) for child in node.children[1:])
        case "declaration_command" if "i" in flags_of(node):
            yield from (_place(child) for child in node.children[1:] if child.type in _WORDS)
        case _:
            pass


_WORDS: Final = frozenset({"string", "concatenation", "simple_expansion", "expansion"})


def _place(node: Any, *, start: int = -1, end: int = -1, is_operand: bool = False) -> Place:
    first = node.start_byte if start < 0 else start
    last = node.end_byte if end < 0 else end
    shells = tuple((one.start_byte, one.end_byte) for one in walk(node) if is_shell(one))
    return Place(first, last, node, is_operand, shells)


def _first_word(command: Any) -> str:
    name = command.child_by_field_name("name")
    return "" if name is None else text_of(name)


def _of_index(node: Any, names: Names) -> Iterator[Place]:
    """Yield an index of an array; a key of a map is a text, but where arithmetic is around it."""
    index = node.child_by_field_name("index")
    is_map = name_of(node) in names.maps
    if index is not None and text_of(index) not in ("@", "*") and not is_map:
        yield _place(index)


def _of_offset(node: Any) -> Iterator[Place]:
    """Offset and length of ``${x:1:2}``."""
    signs = [child for child in node.children if text_of(child) == ":"]
    if signs:
        yield _place(node, start=signs[0].end_byte, end=node.end_byte - 1)


def _of_comparison(node: Any) -> Iterator[Place]:
    """Both sides of ``x -gt y``. What ``[`` compares must be a number as well."""
    operator = node.child_by_field_name("operator")
    if operator is not None and text_of(operator) in COMPARED:
        for side in ("left", "right"):
            operand = node.child_by_field_name(side)
            while operand is not None and operand.type == "unary_expression":  # of ! x -gt y
                operand = operand.named_children[-1]
            if operand is not None:
                yield _place(operand, is_operand=True)


def _of_assignment(node: Any, names: Names) -> Iterator[Place]:
    """Yield the value of a variable that is an integer, and the indexes within ``a=([1]=x)``."""
    value = node.child_by_field_name("value")
    if value is None or node.parent.type == "c_style_for_statement":
        return
    name = name_of(node)
    if name in names.integers:
        words = value.named_children if value.type == "array" else [value]
        yield from (_place(word, is_operand=True) for word in words)
    if value.type == "array" and name not in names.maps:
        for element in value.named_children:
            end = element.text.find(b"]=")
            if element.text.startswith(b"[") and end > 0:
                yield _place(element, end=element.start_byte + end)
