"""Shell scripts whose references are no text: each becomes an environment variable, once, at the
freeze.

The original splices values into a script as quoted words. Between a script's own quotes a quoted
word is no protection, so what an agent said could run. Here a real lexer says where each reference
stands, and it becomes a variable in the quoting of that place: ``$a.output`` is ``"${PGFLOW_1}"``
outside of quotes, ``${PGFLOW_1}`` within double ones, and ``'"${PGFLOW_1}"'`` within single ones. A
quoted heredoc that has references loses the quotes of its delimiter, and the rest of its body is
escaped instead. Comments stay as they are.

A variable's value is never read as a program, with one exception: where bash evaluates
(``$((...))``, ``[[ x -gt y ]]``, ``let``, an index), it evaluates the values too. There a value
must be a whole number (`Slot.is_number`).

The lexer is ``tree-sitter-bash``, of the extra ``run``. Only whoever starts a run needs it: what it
made is frozen with the run. A script without references needs no lexer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Any

from pgflow.declare.graph.graph import Part
from pgflow.declare.text.templates import program_references
from pgflow.errors import SetupError

PREFIX = "PGFLOW_VALUE_"
"""Names of the variables that carry values begin so."""

_ESCAPED = re.compile(r"[\\$`]")
_PLAIN_DELIMITER = re.compile(r"[A-Za-z0-9_.-]+")
_INNER_SHELLS = frozenset({"command_substitution", "process_substitution", "subshell", "program"})
_EVALUATED = frozenset({"arithmetic_expansion", "c_style_for_statement", "subscript"})
_COMPARED = frozenset({"-eq", "-ne", "-lt", "-le", "-gt", "-ge"})
_DECLARES_MAPS = re.compile(r"\b(?:declare|local|typeset)\s+-[a-zA-Z]*A")


class Slot(Part):
    """A reference of a script.

    ``name`` is the variable that carries its value, ``reference`` the text that it was.
    Where ``is_number``, bash evaluates the value, so it must be a whole number.
    """

    name: str
    reference: str
    is_number: bool = False


class Shell(Part):
    """A script whose references are variables, and these."""

    text: str
    slots: tuple[Slot, ...] = ()


class NotRewritable(ValueError):
    """A reference stands where no variable can stand for it."""


def rewrite(script: str) -> Shell:
    """Make variables of the references of a script.

    Args:
        script: The script as its author wrote it.

    Returns:
        The script to run, and what each variable stands for. A reference that is used twice has one
        variable for each kind of place.

    Raises:
        NotRewritable: One stands where no variable can.
        SetupError: It has references, and the lexer is not installed.
    """
    found = list(program_references(script))
    if not found:
        return Shell(text=script)
    return _Rewriting(script, found).done()


class _Rewriting:
    """The rewriting of one script. Positions are those of its UTF-8 bytes, as the lexer has
    them.
    """

    def __init__(self, script: str, found: list[tuple[int, int]]) -> None:
        self.source = script.encode("utf-8", "surrogatepass")
        self.script = script
        self.found = [(self._byte(start), self._byte(end)) for start, end in found]
        self.slots: dict[tuple[str, bool], Slot] = {}
        self.edits: list[tuple[int, int, str]] = []
        self.opened: set[int] = set()
        self.root = _parser().parse(self._masked()).root_node
        if self.root.has_error:
            line = next(_errors(self.root)).start_point[0] + 1
            raise NotRewritable(
                f"line {line}: the lexer does not understand this script, so its references cannot "
                "be told from its quotes: write it more plainly, or read them from a variable"
            )

    def _byte(self, index: int) -> int:
        return len(self.script[:index].encode("utf-8", "surrogatepass"))

    def _masked(self) -> bytes:
        """The script with each reference as a plain variable of the same length, which is what the
        lexer knows.
        """
        masked = bytearray(self.source)
        for start, end in self.found:
            masked[start + 1 : end] = b"v" * (end - start - 1)
        return bytes(masked)

    def done(self) -> Shell:
        """The script with all its references rewritten."""
        for start, end in self.found:
            self._rewrite(start, end)
        text = bytearray(self.source)
        for start, end, new in sorted(self.edits, reverse=True):
            text[start:end] = new.encode()
        return Shell(text=text.decode("utf-8", "surrogatepass"), slots=tuple(self.slots.values()))

    def _rewrite(self, start: int, end: int) -> None:
        nodes = list(_upwards(self.root.descendant_for_byte_range(start, start + 1)))
        kinds = [node.type for node in nodes]
        if "comment" in kinds:
            return
        quoted = next((node for node in nodes if _is_quoted_heredoc(node)), None)
        if quoted is not None and _innermost(nodes, quoted):
            self._open(quoted)
            self.edits.append((start, end, f"${{{self._slot(start, end, nodes)}}}"))
            return
        if "raw_string" not in kinds and "ansi_c_string" not in kinds and self._is_literal(start):
            return
        variable = f"${{{self._slot(start, end, nodes)}}}"
        self.edits.append((start, end, _in_place(kinds, variable)))

    def _is_literal(self, start: int) -> bool:
        """Return True if its ``$`` is escaped, or belongs to the ``$$`` before it."""
        before = self.source[:start]
        slashes = len(before) - len(before.rstrip(b"\\"))
        dollars = len(before) - len(before.rstrip(b"$"))
        return slashes % 2 == 1 or dollars % 2 == 1

    def _slot(self, start: int, end: int, nodes: list[Any]) -> str:
        """The variable that carries a value to this place."""
        reference = self.source[start:end].decode()
        is_number = _is_evaluated(nodes, self.script)
        known = self.slots.get((reference, is_number))
        if known is None:
            name = f"{PREFIX}{len(self.slots) + 1}"
            known = Slot(name=name, reference=reference, is_number=is_number)
            self.slots[reference, is_number] = known
        return known.name

    def _open(self, redirect: Any) -> None:
        """Take the quotes off a heredoc's delimiter, and escape its body instead."""
        if redirect.start_byte in self.opened:
            return
        self.opened.add(redirect.start_byte)
        start = next(child for child in redirect.children if child.type == "heredoc_start")
        delimiter = re.sub(r"['\"\\]", "", start.text.decode())
        if not _PLAIN_DELIMITER.fullmatch(delimiter):
            raise NotRewritable(
                f"line {start.start_point[0] + 1}: the heredoc {start.text.decode()} has "
                "references, so its delimiter must be one word of letters and digits"
            )
        self.edits.append((start.start_byte, start.end_byte, delimiter))
        body = next(child for child in redirect.children if child.type == "heredoc_body")
        inside = [found for found in self.found if body.start_byte <= found[0] < body.end_byte]
        for at in _ESCAPED.finditer(self.source[body.start_byte : body.end_byte].decode("latin-1")):
            place = body.start_byte + at.start()
            if not any(first <= place < last for first, last in inside):
                self.edits.append((place, place, "\\"))


def _errors(node: Any) -> Iterator[Any]:
    """The places that the lexer does not understand, the innermost first."""
    for child in node.children:
        if child.has_error:
            yield from _errors(child)
    yield node


def _upwards(node: Any) -> Iterator[Any]:
    """The node and those around it, the innermost first."""
    while node is not None:
        yield node
        node = node.parent


def _is_quoted_heredoc(node: Any) -> bool:
    """Return True for a heredoc in whose body nothing is expanded."""
    return node.type == "heredoc_redirect" and any(
        child.type == "heredoc_start" and re.search(rb"['\"\\]", child.text)
        for child in node.children
    )


def _innermost(nodes: list[Any], heredoc: Any) -> bool:
    """Return True if a place is in the body of a heredoc."""
    return any(node.type == "heredoc_body" and node.parent.id == heredoc.id for node in nodes)


def _in_place(kinds: list[str], variable: str) -> str:
    """A variable in the quoting of the place that these nodes are around."""
    for kind in kinds:
        if kind == "raw_string":
            return f"'\"{variable}\"'"
        if kind == "ansi_c_string":
            return f"'\"{variable}\"$'"
        if kind in {"string", "heredoc_body", "arithmetic_expansion"}:
            return variable
        if kind in _INNER_SHELLS:
            break
    return f'"{variable}"'


def _is_evaluated(nodes: list[Any], script: str) -> bool:
    """Return True where bash takes a value for an arithmetic expression."""
    for node in nodes:
        if node.type in _INNER_SHELLS:
            return False
        if node.type == "subscript":
            return _DECLARES_MAPS.search(script) is None
        if node.type in _EVALUATED or _compares_numbers(node) or _assigns_numbers(node):
            return True
    return False


def _compares_numbers(node: Any) -> bool:
    """Return True for ``x -gt y`` within ``[[ ]]``, and for ``((...))``."""
    if node.type == "test_command":
        return bool(node.children) and node.children[0].type == "(("
    if node.type == "compound_statement":
        return bool(node.children) and node.children[0].type == "(("
    operators = [child.text.decode() for child in node.children if child.type == "test_operator"]
    return node.type == "binary_expression" and not _COMPARED.isdisjoint(operators)


def _assigns_numbers(node: Any) -> bool:
    """Return True for ``let`` and ``declare -i``."""
    words = [child.text.decode("utf-8", "replace") for child in node.children]
    if node.type == "command":
        return words[:1] == ["let"]
    return node.type == "declaration_command" and any(
        re.fullmatch(r"-[a-zA-Z]*i[a-zA-Z]*", word) for word in words
    )


@cache
def _parser() -> Any:
    """The lexer.

    Raises:
        SetupError: It is not installed.
    """
    try:
        import tree_sitter
        import tree_sitter_bash
    except ImportError as error:
        raise SetupError(
            "shell scripts that read outputs of other nodes need a lexer of bash: "
            "pip install 'pgflow-engine[run]'"
        ) from error
    return tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language()))
