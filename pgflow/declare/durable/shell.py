"""Shell scripts whose references become environment variables, once, at the freeze.

The original splices values into a script as quoted words. Between a script's own quotes a quoted
word does not protect, so an agent's output could run. Here a real lexer finds the place of each
reference, which becomes a variable in the quoting of that place: ``$a.output`` is ``"${PGFLOW_1}"``
outside of quotes, ``${PGFLOW_1}`` within double ones, and ``'"${PGFLOW_1}"'`` within single ones. A
quoted heredoc that has references loses the quotes of its delimiter, and the rest of its body is
escaped instead. Comments stay as they are.

A variable's value is never read as a program. Where bash evaluates (``$((...))``, ``let``, an
index, ``[[ x -gt y ]]``), it evaluates the values too, and arithmetic can run commands. So a value
there must be a whole number. For a reference, the value is checked before the script runs
(`Slot.is_number`). For a variable that the script itself fills with a value, guards around it check
it when bash evaluates it (`_Guards`). Where bash would take a value for a name or a program, the
script is refused (`pgflow.declare.text.bashrules`).

Only starting a run needs the lexer: its result is frozen with the run. A script without values
needs none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from pgflow.declare.graph import Part
from pgflow.declare.text.bash import IDENTIFIER, INNER_SHELLS, Place, is_shell, upwards, walk
from pgflow.declare.text.bashscript import Script, is_quoted_heredoc, reads_values

PREFIX = "PGFLOW_VALUE_"
"""Names of the variables that carry values begin so."""

NUMBER: Final = "pgflow_number_"
"""The function by which a script checks values before it evaluates them."""
_GUARD: Final = "/*[!0-9[:space:]+-]*/.no_whole_number"
"""Suffix to the name of a variable. It changes any text but a whole number into one that bash
refuses to evaluate.
"""
_PRELUDE: Final = (
    f"{NUMBER}() {{ case $1 in *[!0-9[:space:]+-]*) "
    "printf '%s\\n' \"pgflow: bash would evaluate '${1:0:100}', which is not a whole number\" >&2; "
    'printf .no_whole_number;; *) printf %s "$1";; esac; }; '
)

_ESCAPED = re.compile(r"[\\$`]")
_PLAIN_DELIMITER = re.compile(r"[A-Za-z0-9_.-]+")
_INNER_SHELLS = INNER_SHELLS | {"subshell", "program"}
_TESTS = re.compile(rb"(?:\[|test)\s")
_CHANGES = re.compile(rb"\s*(?:\+\+|--|[-+*/%&|^]=|<<=|>>=)")
_IS_CHANGED = re.compile(rb"(?:\+\+|--)\s*$")
_ELEMENT = re.compile(rb"\[([^][]*)\]")
_ASSIGNS = re.compile(rb"\s*=(?!=)")


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
    """A reference is where a variable cannot replace it."""


def rewrite(script: str) -> Shell:
    """Replace the references of a script by variables.

    Args:
        script: The script as its author wrote it.

    Returns:
        The script to run, and the reference of each variable. A reference that is used twice has
        one variable for each kind of place.

    Raises:
        NotRewritable: A reference is where a variable cannot be, or bash would take a value for a
            name or a program.
        SetupError: It has values, and the lexer is not installed.
    """
    if not reads_values(script):
        return Shell(text=script)
    read = Script(script)
    for finding in read.findings:
        if finding.is_error:
            line, column = read.where(finding.start)
            raise NotRewritable(f"line {line}, column {column}: {finding.message}")
    return _Rewriting(read).done()


Edit = tuple[int, int, str]
"""Start and end of what is replaced, and the text in its stead."""


class _Rewriting:
    """The rewriting of one script."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.source = script.source
        self.slots: dict[tuple[str, bool], Slot] = {}
        self.edits: list[Edit] = []
        self.opened: set[int] = set()

    def done(self) -> Shell:
        """Return the script with all its references rewritten."""
        for start, end in self.script.found:
            self._rewrite(start, end)
        guards = list(dict.fromkeys(_Guards(self.script).edits()))
        text = bytearray(self.source)
        for start, end, new in sorted([*self.edits, *guards], reverse=True):
            text[start:end] = new.encode()
        whole = text.decode("utf-8", "surrogatepass")
        if any(NUMBER in new for _, _, new in guards):
            whole = _PRELUDE + whole
        return Shell(text=whole, slots=tuple(self.slots.values()))

    def _rewrite(self, start: int, end: int) -> None:
        nodes = self.script.nodes_at(start)
        kinds = [node.type for node in nodes]
        if not self.script.is_live(start):
            return
        quoted = next((node for node in nodes if is_quoted_heredoc(node)), None)
        if quoted is not None and _innermost(nodes, quoted):
            self._open(quoted)
            self.edits.append((start, end, f"${{{self._slot(start, end)}}}"))
            return
        variable = f"${{{self._slot(start, end)}}}"
        self.edits.append((start, end, _in_place(kinds, variable)))

    def _slot(self, start: int, end: int) -> str:
        """Return the variable that carries a value to this place."""
        reference = self.source[start:end].decode()
        is_number = any(place.has(start) for place in self.script.places)
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
        inside = [
            found for found in self.script.found if body.start_byte <= found[0] < body.end_byte
        ]
        for at in _ESCAPED.finditer(self.source[body.start_byte : body.end_byte].decode("latin-1")):
            place = body.start_byte + at.start()
            if not any(first <= place < last for first, last in inside):
                self.edits.append((place, place, "\\"))


def _innermost(nodes: list[Any], heredoc: Any) -> bool:
    """Return True if a place is in the body of a heredoc."""
    return any(node.type == "heredoc_body" and node.parent.id == heredoc.id for node in nodes)


def _in_place(kinds: list[str], variable: str) -> str:
    """Return a variable in the quoting of the place that these nodes are around."""
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


class _Guards:
    """Guards around the variables of a script that may carry a value, where bash would
    evaluate it.

    A plain variable gets a pattern behind its name; all else goes through a function. A value
    other than a whole number becomes a text that bash refuses. Words of ``[`` get quotes, so that
    no value can bring in an operator.
    """

    def __init__(self, script: Script) -> None:
        self.script, self.values = script, script.values

    def edits(self) -> Iterator[Edit]:
        """Yield all of them."""
        for place in self.script.places:
            if place.is_operand and _is_of_test(place.node):
                continue
            if place.is_operand:
                yield from self._operand(place)
            else:
                yield from self._within(place, place.node)
                yield from self._names(place)
        for node in self.script.walk():
            if node.type in ("test_command", "command") and _TESTS.match(node.text):
                yield from self._quotes(node)

    def _operand(self, place: Place) -> Iterator[Edit]:
        """One word: it is guarded as a whole, unless it is a plain variable."""
        node = place.node
        inner = node.named_children[0] if _is_quoted_one(node) else node
        if node.type in ("word", "variable_name"):
            if node.text.decode() in self.values.names:
                yield place.start, place.end, f"${{{node.text.decode()}{_GUARD}}}"
        elif self.values.expands(inner) and _is_plain(inner):
            yield _with_guard(inner)
        elif (
            self.values.has_reference(node)
            and not place.shells
            and not _has_variable(self.values, node)
        ):
            return  # it is a number, or the script does not run
        elif self.values.carried_by(node):
            yield place.start, place.start, f"$({NUMBER} "
            yield place.end, place.end, ")"

    def _within(self, place: Place, node: Any) -> Iterator[Edit]:
        """Yield the expansions and commands of an expression."""
        start, end = node.byte_range
        if end <= place.start or start >= place.end:
            return
        if is_shell(node):
            if self.values.carried_by(node):
                yield start, start, f'$({NUMBER} "'
                yield end, end, '")'
        elif start >= place.start and self._is_read(node):
            if _is_plain(node):
                yield _with_guard(node)
            else:
                yield start, start, f'$({NUMBER} "'
                yield end, end, '")'
        else:
            for child in node.children:
                yield from self._within(place, child)

    def _is_read(self, node: Any) -> bool:
        return self.values.expands(node) and not node.text.startswith(b"${#")

    def _names(self, place: Place) -> Iterator[Edit]:
        """Yield the names of an expression without a ``$``."""
        text = bytearray(self.script.source[place.start : place.end])
        for node in walk(place.node):
            if node.type in ("simple_expansion", "expansion", "raw_string") or is_shell(node):
                first, last = (at - place.start for at in node.byte_range)
                if node is not place.node and first >= 0:
                    text[first:last] = b" " * (last - first)
        for found in IDENTIFIER.finditer(bytes(text)):
            name, start = found[0].decode(), place.start + found.start()
            if name not in self.values.names or not place.has(start):
                continue
            element = _ELEMENT.match(text, found.end())
            end = found.end() if element is None else element.end()
            if _CHANGES.match(text, end) or _IS_CHANGED.search(text, 0, found.start()):
                if element is not None and not self._is_clean(element[1]):
                    line, column = self.script.where(start)
                    message = f"bash evaluates the index of {name}: use a number of its own"
                    raise NotRewritable(f"line {line}, column {column}: {message}")
                at = place.start + _expression_start(bytes(text), found.start())
                yield at, at, f"(${{{text[found.start() : end].decode()}{_GUARD}}}+0), "
            elif not _ASSIGNS.match(text, end):
                yield start, start, "(${"
                yield place.start + end, place.start + end, f"{_GUARD}}}+0)"

    def _is_clean(self, index: bytes) -> bool:
        """Return True for a number, and for the name of a variable without a value."""
        return index.isalnum() and index.decode() not in self.values.names

    def _quotes(self, command: Any) -> Iterator[Edit]:
        """Quotes for the words of a test that have none."""
        stack = list(command.children)
        while stack:
            node = stack.pop()
            if self.values.expands(node):
                yield node.start_byte, node.start_byte, '"'
                yield node.end_byte, node.end_byte, '"'
            elif node.type not in ("string", "raw_string", *INNER_SHELLS):
                stack += node.children


def _with_guard(node: Any) -> Edit:
    """Return a plain variable with the guard behind its name."""
    text = node.text.decode()
    inner = text[2:-1] if text.startswith("${") else text[1:]
    return node.start_byte, node.end_byte, f"${{{inner}{_GUARD}}}"


def _is_plain(node: Any) -> bool:
    """Return True for ``$x``, ``${x}`` and ``${x[0]}``."""
    if node.type == "simple_expansion":
        return True
    inner = node.named_children
    return len(node.children) == 3 and inner[0].type in ("variable_name", "special_variable_name")


def _is_quoted_one(node: Any) -> bool:
    """Return True for ``"$x"``."""
    return (
        node.type == "string"
        and len(node.children) == 3
        and node.children[1].type in ("simple_expansion", "expansion")
    )


def _is_of_test(node: Any) -> bool:
    """Return True for a word of ``[ ... ]``, which takes a number only."""
    around = next((one for one in upwards(node) if one.type == "test_command"), None)
    return around is not None and around.children[0].text == b"["


def _has_variable(values: Any, node: Any) -> bool:
    return any(values.expands(one) for one in walk(node))


def _expression_start(text: bytes, at: int) -> int:
    """Return the beginning of the expression that a name is in: behind ``((``, ``$[`` or a
    semicolon.
    """
    opened = re.match(rb"(?:for\s*)?\(\(|\$\(\(|\$\[", text)
    first = opened.end() if opened is not None else 0
    return max(first, text.rfind(b";", 0, at) + 1)
