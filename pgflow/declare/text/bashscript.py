"""A bash script that reads values, as the lexer sees it, and its findings."""

from __future__ import annotations

import re
from functools import cached_property
from typing import Any

from pgflow.declare.text.bash import Names, Place, names_of, parser, places, upwards, walk
from pgflow.declare.text.bashcode import Finding
from pgflow.declare.text.bashrules import Rules
from pgflow.declare.text.bashvalues import SAID, Values
from pgflow.declare.text.templates import program_references, value_references

_UNKNOWN = re.compile(
    rb"(?<![\w$-])(?:time(?:[ \t]+-p)?|coproc(?:[ \t]+\w+)?)[ \t]+(?=\[\[|\(\(|\{)"
    rb"|(?<![\w$])(?:0[xX]|[0-9]+#)(?=\$)"
    rb"|(?<![\w$])[0-9]+(?=<<<)"
)
"""Words that the lexer does not know: ``time`` before ``[[``, the base in ``$((10#$n))``, and the
number in ``3<<<``.
"""
_HERE_STRING = re.compile(rb"(?<=done)<<<(?=[^<])|(?<=done )<<<(?=[^<])")
"""Text that a loop reads, which the lexer knows as a file behind ``for``."""
_SELECT = re.compile(rb"(?<![\w$-])select(?=\s+\w+\s+in\s)")


def reads_values(script: str) -> bool:
    """Return True if a script may contain words of an agent or a person."""
    return any(True for _ in program_references(script)) or SAID.search(script) is not None


class Script:
    """A script. Positions are those of its UTF-8 bytes, as the lexer has them.

    Args:
        script: Its text as its author wrote it.

    Raises:
        SetupError: The lexer is not installed.
    """

    def __init__(self, script: str) -> None:
        self.text = script
        self.source = script.encode("utf-8", "surrogatepass")
        self.found = [self._bytes(span) for span in program_references(script)]
        masked = self._masked()
        self.root: Any = parser().parse(masked).root_node
        if self.root.has_error:
            self.root = parser().parse(_HERE_STRING.sub(b"<  ", masked)).root_node

    def _bytes(self, span: tuple[int, int]) -> tuple[int, int]:
        start, end = (len(self.text[:at].encode("utf-8", "surrogatepass")) for at in span)
        return start, end

    def _masked(self) -> bytes:
        """Return the script with each reference as a plain variable of the same length, which is
        what the lexer knows.
        """
        known = _SELECT.sub(b"for   ", self.source)
        masked = bytearray(_UNKNOWN.sub(lambda found: b" " * len(found[0]), known))
        for start, end in self.found:
            masked[start + 1 : end] = b"v" * (end - start - 1)
        return bytes(masked)

    @property
    def broken(self) -> Finding | None:
        """The first place that the lexer does not understand; None if it understands all."""
        if not self.root.has_error:
            return None
        node = self.root
        while inner := next((child for child in node.children if child.has_error), None):
            node = inner
        construct = " ".join(self.source[node.start_byte :].decode("utf-8", "replace").split())
        message = (
            f"the lexer does not understand {construct[:40]!r}, so it cannot tell which values are "
            "quoted: simplify the script"
        )
        return Finding(node.start_byte, message)

    @cached_property
    def names(self) -> Names:
        """The names that it declares."""
        return names_of(self.root)

    @cached_property
    def values(self) -> Values:
        """Its values, and the variables that may carry them."""
        spans = [self._bytes(span) for span in value_references(self.text)]
        return Values(self.root, [span for span in spans if self.is_live(span[0])])

    @cached_property
    def places(self) -> list[Place]:
        """The places that bash evaluates."""
        return places(self.root, self.names)

    @cached_property
    def findings(self) -> list[Finding]:
        """The refusals and warnings, in the order of its text."""
        if self.broken is not None:
            return [self.broken]
        if not self.values.any:
            return []
        found = {
            (one.start, one.message): one
            for one in Rules(self.values, self.names, self.source).findings(self.root)
        }
        return sorted(found.values(), key=lambda one: one.start)

    def nodes_at(self, start: int) -> list[Any]:
        """Return the nodes around a byte, the innermost first."""
        return list(upwards(self.root.descendant_for_byte_range(start, start + 1)))

    def is_live(self, start: int) -> bool:
        """Return True if a reference is one: it is not in a comment, and its ``$`` is neither
        escaped nor the second one of a ``$$``.
        """
        kinds = {node.type for node in self.nodes_at(start)}
        if "comment" in kinds:
            return False
        if kinds & {"raw_string", "ansi_c_string"} or self._in_quoted_heredoc(start):
            return True
        before = self.source[:start]
        slashes = len(before) - len(before.rstrip(b"\\"))
        dollars = len(before) - len(before.rstrip(b"$"))
        return slashes % 2 == 0 and dollars % 2 == 0

    def _in_quoted_heredoc(self, start: int) -> bool:
        return any(is_quoted_heredoc(node) for node in self.nodes_at(start))

    def where(self, start: int) -> tuple[int, int]:
        """Line and column of a byte, from 1."""
        before = self.source[:start]
        line = before.rpartition(b"\n")[2]
        return before.count(b"\n") + 1, len(line.decode("utf-8", "replace")) + 1

    def walk(self) -> Any:
        """Return all nodes, in the order of the text."""
        return walk(self.root)


def is_quoted_heredoc(node: Any) -> bool:
    """Return True for a heredoc in whose body nothing is expanded."""
    return node.type == "heredoc_redirect" and any(
        child.type == "heredoc_start" and any(sign in child.text for sign in (b"'", b'"', b"\\"))
        for child in node.children
    )
