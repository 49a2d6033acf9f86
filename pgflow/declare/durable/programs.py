"""Programs of script nodes, whose references become literals that the engine writes.

A program has no variables that all languages share, so values become literals in it. A reference
that is an expression becomes the value itself (its JSON, else a text). One inside a string becomes
the value's text, escaped so that it stays inside that string. A real lexer decides which place it
is, from the same extra as for shells (`pgflow.declare.durable.shell`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache
from typing import Any, Literal

from pgflow.declare.durable.shell import NotRewritable
from pgflow.declare.graph import Part
from pgflow.declare.text.javascript import parse_json
from pgflow.declare.text.templates import program_references
from pgflow.errors import SetupError

Language = Literal["javascript", "python"]

_IN_JAVASCRIPT = re.compile(r"[\\'\"`$\x00-\x1f\x7f\u2028\u2029]")


class Hole(Part):
    """A place of a program that takes a value.

    ``opened`` is what ends the string around it before the value, and ``closed`` what begins it
    again; both are empty where the value is an expression, or part of a text of JavaScript.
    """

    reference: str
    place: Literal["expression", "text"]
    opened: str = ""
    closed: str = ""


class Program(Part):
    """A program with holes: ``texts`` are the parts around them, one more than there are holes."""

    language: Language
    texts: tuple[str, ...]
    holes: tuple[Hole, ...] = ()


def prepare(source: str, language: Language) -> Program:
    """Find the places of a program's references.

    Args:
        source: The program as its author wrote it.
        language: Its language.

    Raises:
        NotRewritable: A reference is where a literal cannot be.
        SetupError: It has references, and the lexer is not installed.
    """
    found = list(program_references(source))
    if not found:
        return Program(language=language, texts=(source,))
    masked = bytearray(source.encode("utf-8", "surrogatepass"))
    starts = [len(source[:start].encode("utf-8", "surrogatepass")) for start, _ in found]
    for start, (first, last) in zip(starts, found, strict=True):
        masked[start : start + last - first] = b"v" * (last - first)
    root = _parser(language).parse(bytes(masked)).root_node
    texts, holes, end = [], [], 0
    for start, (first, last) in zip(starts, found, strict=True):
        hole = _hole(root.descendant_for_byte_range(start, start + 1), source[first:last], language)
        if hole is None:
            continue
        texts.append(source[end:first])
        holes.append(hole)
        end = last
    return Program(language=language, texts=(*texts, source[end:]), holes=tuple(holes))


def fill(program: Program, text_of: Callable[[str], str]) -> str:
    """Return the program with literals in its holes.

    Args:
        program: The program.
        text_of: Gives the text of a reference.
    """
    written = [program.texts[0]]
    for hole, rest in zip(program.holes, program.texts[1:], strict=True):
        text = text_of(hole.reference)
        literal = (
            _expression(text, program.language)
            if hole.place == "expression"
            else _string(text, program.language)
        )
        written += [hole.opened, literal, hole.closed, rest]
    return "".join(written)


def _hole(node: Any, reference: str, language: Language) -> Hole | None:
    """Return the hole for a reference; None in a comment."""
    while node is not None:
        kind = node.type
        if kind == "comment":
            return None
        if kind in {"template_substitution", "interpolation"}:
            break
        if kind == "regex":
            raise NotRewritable(f"{reference} is inside a regular expression")
        if kind in {"string", "template_string"}:
            return _in_string(node, reference, language)
        node = node.parent
    return Hole(reference=reference, place="expression")


def _in_string(node: Any, reference: str, language: Language) -> Hole:
    """Return the hole within a string: in Python the string ends before the value and goes on after
    it, which any kind of string can do.
    """
    if language == "javascript":
        return Hole(reference=reference, place="text")
    start, end = node.children[0].text.decode(), node.children[-1].text.decode()
    if "b" in start.lower():
        raise NotRewritable(f"{reference} is inside a string of bytes")
    return Hole(reference=reference, place="text", opened=f"{end} ", closed=f" {start}")


def _expression(text: str, language: Language) -> str:
    """Return a value as an expression."""
    try:
        value = parse_json(text)
    except ValueError:
        value = text
    if language == "python":
        return ascii(value) if not isinstance(value, float | int) else f"({value!r})"
    if isinstance(value, str):
        return f'"{_string(value, language)}"'
    literal = json.dumps(value)
    return (
        f'JSON.parse("{_string(literal, language)}")' if isinstance(value, dict | list) else literal
    )


def _string(text: str, language: Language) -> str:
    """Return a text as a literal of Python, or as the inside of any string of JavaScript."""
    if language == "python":
        return ascii(text)
    return _IN_JAVASCRIPT.sub(lambda found: f"\\u{ord(found.group()):04x}", text)


@cache
def _parser(language: Language) -> Any:
    try:
        import tree_sitter
        import tree_sitter_python
        import tree_sitter_typescript
    except ImportError as error:
        raise SetupError(
            "scripts that read outputs of other nodes need a lexer of their language: "
            "pip install 'pgflow-engine[run]'"
        ) from error
    grammar = (
        tree_sitter_python.language()
        if language == "python"
        else tree_sitter_typescript.language_typescript()
    )
    return tree_sitter.Parser(tree_sitter.Language(grammar))
