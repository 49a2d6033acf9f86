"""Reading untrusted YAML: plain values, the line and column of each of them, and bounds on
everything.

ruamel.yaml scans and parses; this module gives its events their meaning, because the files of this
family were written for Bun's parser and not for Python's: only ``true`` and ``false`` are booleans,
``014`` is fourteen, dates are texts, keys are always texts, several documents are a list, control
characters (as left behind by a wrong decoding) are characters like others, and tabs may separate
but never indent. Where the two parsers disagree on what is YAML at all, Bun's answer holds.

Two things are stricter than the original. A key that appears twice in one mapping is an error,
since one of the two values would be lost silently. And a file has bounds: `MAX_BYTES`, `MAX_DEPTH`
nested collections, and `MAX_VALUES` values with every alias counted as often as it is used, so that
no short file can become a large one.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)

from pgflow.declare.text.yamlscan import Reader, Scanner, WrongYaml
from pgflow.declare.text.yamlvalues import as_text, resolve

MAX_BYTES: Final = 1 << 20
"""The largest file that is read, in bytes.
The largest workflow seen in the wild has a tenth of it.
"""

MAX_DEPTH: Final = 100
"""Depth to which collections may be nested."""

MAX_VALUES: Final = 100_000
"""Most values of a text, an alias counted as its target."""

Steps = tuple[str | int, ...]

_ITEM = re.compile(r"-[ \t]+(?:(\*)|[|>][-+0-9]*[ \t]*[^-+0-9 \t\r\n#])")
_SURROGATE = re.compile("[\ud800-\udfff]")
_UNFIT = re.compile("[\0\ud800-\udfff]")
_SEPARATORS = "\x85\u2028\u2029"


class YamlError(Exception):
    """A text is not YAML, or exceeds a bound.

    Args:
        message: Mistake, in the words of the original's parser.
        line: Line, from 1.
        column: Column, from 1.
        hint: Meaning of that here.
    """

    def __init__(
        self, message: str, line: int | None = None, column: int | None = None, hint: str = ""
    ) -> None:
        super().__init__(message)
        self.message, self.line, self.column, self.hint = message, line, column, hint

    @property
    def is_bound(self) -> bool:
        """True if the original would have read the text: only a bound is exceeded, or a key appears
        twice.
        """
        return self.message not in _ORIGINAL_WORDS


@dataclass(slots=True, eq=False)
class Marked:
    """A value, where it begins, and the same of its parts.
    ``keys`` has the places of a mapping's keys.

    ``end_line`` is the last line of a text; other values have none of their own.
    """

    value: Any
    line: int
    column: int
    parts: dict[str, Marked] | list[Marked] | None = None
    keys: dict[str, tuple[int, int]] | None = None
    size: int = 1
    end_line: int = 0

    def part(self, step: str | int) -> Marked | None:
        """Return the part at a key or an index, None if there is none."""
        if isinstance(self.parts, dict):
            return self.parts.get(str(step))
        if isinstance(self.parts, list) and isinstance(step, int) and 0 <= step < len(self.parts):
            return self.parts[step]
        return None

    def place(self, path: Steps = ()) -> tuple[int, int]:
        """Line and column of what is at a path: of its key if it has one; of the nearest thing
        around it, if it is missing.
        """
        node, place = self, (self.line, self.column)
        for step in path:
            inner = node.part(step)
            if inner is None:
                break
            place = (node.keys or {}).get(str(step)) or (inner.line, inner.column)
            node = inner
        return place

    def find(self, path: Steps, needle: str, lines: list[str]) -> tuple[int, int]:
        """Line and column of a piece of the text at a path, given the lines of the file; of its
        key, if it is not there.
        """
        node: Marked | None = self
        for step in path:
            node = node.part(step) if node is not None else None
        for number in range(node.line, node.end_line + 1) if node is not None else ():
            column = lines[number - 1].find(
                needle, node.column - 1 if node is not None and number == node.line else 0
            )
            if column >= 0:
                return number, column + 1
        return self.place(path)


def read_bytes(path: Path) -> bytes:
    """Return the bytes of a regular file no larger than `MAX_BYTES`.

    Raises:
        OSError: It cannot be read.
        YamlError: It is too large, or not a regular file: a pipe would block.
    """
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:  # noqa: PTH123
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise YamlError("Not a file", hint="A workflow is a regular file.")
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        message = f"File is larger than {MAX_BYTES:,} bytes"
        raise YamlError(
            message,
            hint="No workflow of this size is read; split it, "
            "or move long texts into files of their own.",
        )
    return data


def refuse_utf16(data: bytes) -> None:
    """Refuse bytes that are UTF-16, which would be reported as invisible characters.

    Raises:
        YamlError: They are.
    """
    if data[:2] in (b"\xff\xfe", b"\xfe\xff") or b"\0" in data[:2]:
        raise YamlError("The file is UTF-16", 1, 1, "Save the file as UTF-8.")


def decode(data: bytes) -> tuple[str, int | None]:
    """Return the text of a file. Bytes that are not UTF-8 become U+FFFD, as the original has it.

    Returns:
        The text, and the line of the first such bytes; None if there are none.
    """
    try:
        return data.decode("utf-8"), None
    except UnicodeDecodeError as error:
        return data.decode("utf-8", "replace"), data.count(b"\n", 0, error.start) + 1


def read_yaml(text: str) -> Marked:
    """Read a text as YAML 1.2.

    Args:
        text: The text of a file.

    Returns:
        The value with its places. Several documents are a list; no document is None.

    Raises:
        YamlError: It is not YAML, has a key twice, or exceeds a bound.
    """
    if len(text) > MAX_BYTES:
        raise YamlError(f"Text is larger than {MAX_BYTES:,} characters")
    _refuse_nul(text)
    text = _SURROGATE.sub("\ufffd", text)
    back = _stand_ins(text)
    source = (
        text.translate({ord(plain): ord(stand_in) for stand_in, plain in back.items()})
        if back
        else text
    )
    try:
        documents = list(
            _Composer(back).documents(source if source.endswith("\n") else source + "\n")
        )
    except WrongYaml as error:
        raise YamlError(error.message, error.line, error.column, error.hint) from None
    except MarkedYAMLError as error:
        raise _worded(error, source) from None
    except (YAMLError, ValueError, OverflowError) as error:
        raise YamlError("Unexpected token", hint=str(error).splitlines()[0]) from None
    return documents[0] if len(documents) == 1 else _several(documents)


def _refuse_nul(text: str) -> None:
    place = text.find("\0")
    if place >= 0:
        line, column = text.count("\n", 0, place) + 1, place - text.rfind("\n", 0, place)
        raise YamlError("Unexpected character", line, column, "A NUL is not allowed in YAML.")


def _stand_ins(text: str) -> dict[str, str]:
    """Return a private-use character that is not in the text for each line separator that YAML 1.2
    does not know.
    """
    wanted = [separator for separator in _SEPARATORS if separator in text]
    free = (char for char in map(chr, range(0xE000, 0xF900)) if char not in text)
    try:
        return {next(free): separator for separator in wanted}
    except StopIteration:  # a text of all 6,400 private-use characters and a separator
        raise YamlError(
            "Unexpected character", hint="The text uses every private-use character."
        ) from None


def _several(documents: list[Marked]) -> Marked:
    if not documents:
        return Marked(None, 1, 1)
    return Marked(
        [d.value for d in documents], 1, 1, list(documents), size=sum(d.size for d in documents)
    )


class _Composer:
    """Makes values of the parser's events: each collection is built on a stack, so that no depth
    exhausts Python's.
    """

    def __init__(self, back: Mapping[str, str]) -> None:
        self.back = back
        self.table = str.maketrans(dict(back))
        self.anchors: dict[str, Marked] = {}
        self.stack: list[_Open] = []
        self.wrong: list[WrongYaml] = []
        self.values = 0

    def documents(self, text: str) -> Iterator[Marked]:
        """Yield the documents of a text, one after the other."""
        yaml = YAML(typ="safe", pure=True)
        yaml.Reader, yaml.Scanner = Reader, Scanner
        for event in yaml.parse(text):
            if isinstance(event, DocumentStartEvent):
                self.anchors, self.stack = {}, []
            node = self._take(event)
            if node is None:
                continue
            if self.stack:
                self.stack[-1].add(node)
            else:
                yield node
        if self.wrong:  # last: the original accepts it, and reports other errors
            raise min(self.wrong, key=lambda error: error.line)

    def _take(self, event: Any) -> Marked | None:
        """Return the value that an event completes, if it completes one."""
        if isinstance(event, ScalarEvent):
            return self._anchored(event.anchor, self._scalar(event))
        if isinstance(event, (MappingStartEvent, SequenceStartEvent)):
            self._open(event)
        elif isinstance(event, (MappingEndEvent, SequenceEndEvent)):
            opened = self.stack.pop()
            if isinstance(opened, _OpenMapping) and opened.twice is not None:
                self.wrong.append(opened.twice)
            return self._anchored(opened.anchor, opened.close())
        elif isinstance(event, AliasEvent):
            return self._alias(event)
        return None

    def _open(self, event: Any) -> None:
        line, column = _place(event)
        if len(self.stack) >= MAX_DEPTH:
            raise WrongYaml(
                f"Nested deeper than {MAX_DEPTH} levels", line, column, "No workflow nests so deep."
            )
        self._count(1, line, column)
        kind = _OpenMapping if isinstance(event, MappingStartEvent) else _OpenSequence
        self.stack.append(kind(line, column, event.anchor))

    def _scalar(self, event: Any) -> Marked:
        line, column = _place(event)
        self._count(1, line, column)
        text = event.value.translate(self.table) if self.back else event.value
        plain = event.style is None or event.style == ""
        if unfit := _UNFIT.search(text):
            what = "A NUL" if unfit[0] == "\0" else "Half of a character"
            hint = "No database, program or agent accepts it: remove it."
            self.wrong.append(WrongYaml(f"{what} in a text", line, column, hint))
        tag = str(event.tag) if event.tag is not None else None
        literal = not plain or tag == "!" or (tag is not None and tag.endswith(":str"))
        return Marked(
            text if literal else resolve(text), line, column, end_line=event.end_mark.line + 1
        )

    def _alias(self, event: Any) -> Marked:
        line, column = _place(event)
        found = self.anchors.get(event.anchor)
        if found is None:
            what = (
                "is inside the value that it refers to"
                if self._is_open(event.anchor)
                else "refers to nothing before it"
            )
            raise WrongYaml("Unresolved alias", line, column, f"'*{event.anchor}' {what}.")
        self._count(found.size, line, column)
        return found

    def _is_open(self, anchor: str) -> bool:
        return any(opened.anchor == anchor for opened in self.stack)

    def _anchored(self, anchor: str | None, node: Marked) -> Marked:
        if anchor is not None:
            self.anchors[anchor] = node
        return node

    def _count(self, more: int, line: int, column: int) -> None:
        self.values += more
        if self.values > MAX_VALUES:
            raise WrongYaml(
                f"More than {MAX_VALUES:,} values",
                line,
                column,
                "Aliases count as often as they are used.",
            )


class _OpenSequence:
    """A sequence whose end has not been seen."""

    def __init__(self, line: int, column: int, anchor: str | None) -> None:
        self.line, self.column, self.anchor = line, column, anchor
        self.items: list[Marked] = []

    def add(self, node: Marked) -> None:
        """One more item."""
        self.items.append(node)

    def close(self) -> Marked:
        """Return the sequence, now that all of it is known."""
        size = 1 + sum(item.size for item in self.items)
        return Marked(
            [item.value for item in self.items], self.line, self.column, self.items, size=size
        )


class _OpenMapping:
    """A mapping whose end has not been seen."""

    def __init__(self, line: int, column: int, anchor: str | None) -> None:
        self.line, self.column, self.anchor = line, column, anchor
        self.parts: dict[str, Marked] = {}
        self.keys: dict[str, tuple[int, int]] = {}
        self.merged: list[Marked] = []
        self.key: Marked | None = None
        self.twice: WrongYaml | None = None

    def add(self, node: Marked) -> None:
        """Add a key, or the value of the last one."""
        if self.key is None:
            self.key = node
            return
        key, self.key = self.key, None
        if key.value == "<<" and isinstance(node.value, (dict, list)):
            self.merged += node.parts if isinstance(node.parts, list) else [node]
            return
        name = as_text(key.value)
        if name in self.parts and self.twice is None:
            hint = f"It is already in line {self.keys[name][0]}; keep one of them."
            self.twice = WrongYaml(f"Duplicate key '{name}'", key.line, key.column, hint)
        self.parts[name], self.keys[name] = node, (key.line, key.column)

    def close(self) -> Marked:
        """Return the mapping, now that all of it is known. Its own keys win over merged ones."""
        for source in self.merged:
            for name, part in source.parts.items() if isinstance(source.parts, dict) else ():
                self.parts.setdefault(name, part)
                self.keys.setdefault(name, (part.line, part.column))
        size = 1 + sum(part.size for part in self.parts.values())
        value = {name: part.value for name, part in self.parts.items()}
        return Marked(value, self.line, self.column, self.parts, self.keys, size)


_Open = _OpenMapping | _OpenSequence


def _place(event: Any) -> tuple[int, int]:
    return event.start_mark.line + 1, event.start_mark.column + 1


def _worded(error: MarkedYAMLError, source: str) -> YamlError:
    """Return ruamel.yaml's error in the words of the original's parser, which has few and looks one
    token ahead.
    """
    mark = error.problem_mark or error.context_mark
    line, column = (mark.line + 1, mark.column + 1) if mark is not None else (None, None)
    said = " ".join(part for part in (error.problem, error.context) if part)
    message = next((words for sign, words in _WORDS if sign in said), "Unexpected token")
    if mark is not None and (ahead := _ITEM.match(source, mark.index)):
        message = "Unresolved alias" if ahead[1] == "*" else "Unexpected character"
    return YamlError(message, line, column, f"{error.problem or error.context}.".capitalize())


_ORIGINAL_WORDS = frozenset(
    {
        "Unexpected token",
        "Unexpected character",
        "Unexpected EOF",
        "Unresolved alias",
        "Tab characters cannot be used as indentation",
    },
)
_WORDS = (
    ("unexpected end of stream", "Unexpected EOF"),
    ("undefined alias", "Unresolved alias"),
    ("escape", "Unexpected character"),
    ("block scalar", "Unexpected character"),
    ("while scanning an a", "Unexpected character"),
)
