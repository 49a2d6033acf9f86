"""The flow of values through a script: which of its variables may hold words of an agent or a
person.

It looks at names and not at the order of commands: a variable carries a value if any assignment in
the script may give it one. Numbers that bash has computed carry none. Beside variables, ``!a`` is
the indexes of an array, ``<f`` and ``>f`` what a function reads and says.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from typing import Any, Final

from pgflow.declare.text.bash import (
    INNER_SHELLS,
    is_arithmetic,
    name_of,
    text_of,
    upwards,
    walk,
)

Source = Any
"""A node whose text is assigned, or the name of a variable that is read."""

SAID: Final = re.compile(
    r"\b(?:USER_MESSAGE|ARGUMENTS|LOOP_USER_INPUT|REJECTION_REASON|LOOP_PREV_OUTPUT"
    r"|CONTEXT|EXTERNAL_CONTEXT|ISSUE_CONTEXT|INPUTS_\w+)\b"
)
"""Variables of the environment that carry the words of people and agents."""

ARGUMENTS: Final = "@"
"""Name for the arguments of the script's functions, and for those of ``set``."""

_IDENTIFIER: Final = re.compile(r"[A-Za-z_]\w*")
_EXPRESSION: Final = re.compile(r"(?=.*[\[(+,])[^\s./:-]+")
_POSITIONAL: Final = re.compile(r"[1-9][0-9]*|[@*]")
_OF_WORDS: Final = frozenset({"array", "herestring_redirect"})
_FILES_OUT: Final = frozenset({">", ">>", "&>", "&>>", ">|"})
_COPIES: Final = frozenset({"cp", "install", "ln", "mv"})
_OPTION: Final = re.compile(r"^(?:-f|--file=|of=)")
"""Options that are written before the name of a file."""
_OF_INPUT: Final = frozenset({"dd", "sponge", "tee"})
_OTHER_INPUT: Final = re.compile(rb">&\s*\"?\$\{?\w+\[1\]|\bexec\b[^\n;]*>\(")
"""Writes to a coproc, or to a program that is kept behind a descriptor."""
_HOME_SHELLS: Final = frozenset({"BASH", "SHELL"})
_IN_SHELL: Final = frozenset({"builtin", "command", "time"})
_VARIABLE: Final = re.compile(r"\$\{?(\w+)(?:\[[0@*]\])?\}?")
_EXPORTED: Final = re.compile(rb"export\s+-f|(?:declare|typeset)\s+-\w*(?:fx|xf)")
_NOT_FOUND: Final = "command_not_found_handle"
_LITERAL: Final = frozenset({"array", "concatenation", "raw_string", "string", "word"})
READERS: Final = {"read": "REPLY", "mapfile": "MAPFILE", "readarray": "MAPFILE"}


def words_of(command: Any) -> list[Any]:
    """Return the arguments of a command."""
    if command.type == "command":
        return list(command.children_by_field_name("argument"))
    return list(command.named_children)


def command_name(command: Any) -> str:
    """Return the name of a command without its folder; empty if it is not a plain word."""
    if command.type in ("declaration_command", "unset_command"):
        return text_of(command.children[0])
    name = command.child_by_field_name("name")
    return "" if name is None else _plain_name(name)


def _plain_name(word: Any) -> str:
    text = re.sub(r"\$(?=['\"])", "", text_of(word))
    if set("$`") & set(text):
        return ""
    return re.sub(r"[\\\"']", "", text).rpartition("/")[2]


def unwrapped(command: Any) -> tuple[str, list[Any]]:
    """The name of the command that runs in the shell itself, and its arguments: of `builtin read x`
    those of `read`.
    """
    name, words = command_name(command), words_of(command)
    while name in _IN_SHELL:
        rest = [n for n, word in enumerate(words) if not word.text.startswith(b"-")]
        if not rest:
            break
        name, words = _plain_name(words[rest[0]]), words[rest[0] + 1 :]
    return name, words


class Values:
    """The values of a script.

    Args:
        root: Its tree.
        references: Start and end of each reference that is a value, in order.
        names: Variables that carry one from the start, beside those of `SAID`.
    """

    def __init__(
        self, root: Any, references: Sequence[tuple[int, int]], names: frozenset[str] = frozenset()
    ) -> None:
        self._spans = list(references)
        self._references = [start for start, _ in references]
        self._sources: defaultdict[str, list[Source]] = defaultdict(list)
        self._functions = {
            name_of_function(node) for node in walk(root) if node.type == "function_definition"
        }
        self._files: set[str] = set()
        self._root = root
        self._has_other_input = _OTHER_INPUT.search(root.text) is not None
        self._indirect: list[tuple[Any, list[Source]]] = []
        for node in walk(root):
            self._collect(node)
        for word, sources in self._indirect:
            for text in self.texts_in(word) or ():
                self._sources[text] += sources
        self.names = self._closure(names | frozenset(SAID.findall(text_of(root))))
        """Variables that may carry a value."""
        while more := {name for node in walk(root) for name in self._files_of(node)} - self._files:
            self._files |= more
            self.names = self._closure(self.names)

    @property
    def any(self) -> bool:
        """True if the script has a value at all."""
        return bool(self._references or self.names)

    def carried_by(self, node: Any) -> bool:
        """Return True if a part of the script may say a value."""
        return self._carries(node, self.names)

    def is_written(self, word: Any) -> bool:
        """Return True for a file that the script writes a value to."""
        return any(fnmatch(one, name) for name in self._names_of(word) for one in self._files)

    def may_be_written(self, word: Any) -> bool:
        """Return True for a file whose name is not known, where the script writes values to
        files.
        """
        is_unknown = text_of(word) == "{}" or ("$" in _last_name(word) and not self.texts_in(word))
        return is_unknown and bool(self._files)

    def _names_of(self, word: Any) -> list[str]:
        """Return the last names of the files that a word may name."""
        name = _last_name(word)
        texts = self.texts_in(word) if "$" in name else None
        return [name, *(text.rpartition("/")[2] for text in texts or ())]

    def has_written(self, names: frozenset[str]) -> bool:
        """Return True if the script writes a value to a file of such a name."""
        return not names.isdisjoint(self._files)

    def sets(self, name: str) -> bool:
        """Return True if the script assigns a variable."""
        return name in self._sources

    def has_reference(self, node: Any) -> bool:
        """Return True if a part of the script has a reference."""
        return self._between(node.start_byte, node.end_byte)

    def reference_in(self, node: Any) -> tuple[int, int] | None:
        """Start and end of the first reference in a part of the script."""
        first = bisect_left(self._references, node.start_byte)
        return self._spans[first] if self.has_reference(node) else None

    def expands(self, node: Any) -> bool:
        """Return True for an expansion of a variable that carries a value."""
        return node.type in ("simple_expansion", "expansion") and _read_by(node) in self.names

    def texts_in(self, word: Any) -> list[str] | None:
        """Return the texts that a word may say, which is a variable; None if they are not known."""
        text = text_of(word).strip('"')
        found = _VARIABLE.fullmatch(text) or _VARIABLE.fullmatch(_last_name(word))
        if found is None:
            last = text.rpartition("/")[2]
            return None if set(last) & set("$`") or last == text else [last]
        texts = ["bash"] if found[1] in _HOME_SHELLS else []
        name = ARGUMENTS if _POSITIONAL.fullmatch(found[1]) else found[1]
        for source in self._sources.get(name) or ([] if texts else [ARGUMENTS]):
            if isinstance(source, str) or source.type not in _LITERAL:
                return None
            parts = source.named_children if source.type == "array" else [source]
            texts.append(" ".join(re.sub(r"[\\\"']", "", text_of(part)) for part in parts))
        return None if any(set(one) & set("$`") for one in texts) else texts

    def _between(self, start: int, end: int) -> bool:
        first = bisect_left(self._references, start)
        return first < len(self._references) and self._references[first] < end

    def _carries(self, node: Any, names: frozenset[str] | set[str]) -> bool:
        if node.type == "comment" or is_arithmetic(node) or _is_length(node):
            return False
        if node.type in ("simple_expansion", "expansion") and _read_by(node) in names:
            return True
        if (node.type in INNER_SHELLS or _reads_file(node)) and any(
            name in text_of(node) for name in self._files
        ):
            return True
        if node.type == "command" and (
            f">{command_name(node)}" in names or any(map(self.is_written, words_of(node)))
        ):
            return True
        if not node.children:
            return self._between(node.start_byte, node.end_byte)
        if any(self._carries(child, names) for child in node.children):
            return True
        return self._in_gaps(node)

    def _in_gaps(self, node: Any) -> bool:
        """Return True for a reference that no child has, as within a quoted heredoc."""
        at = node.start_byte
        for child in node.children:
            if self._between(at, child.start_byte):
                return True
            at = child.end_byte
        return self._between(at, node.end_byte)

    def _closure(self, names: frozenset[str]) -> frozenset[str]:
        found = set(names)
        while True:
            more = {
                name
                for name, sources in self._sources.items()
                if name not in found and any(self._gives(source, found) for source in sources)
            }
            if not more:
                return frozenset(found)
            found |= more

    def _gives(self, source: Source, names: set[str]) -> bool:
        if isinstance(source, str):
            return source in names
        if self._carries(source, names):
            return True
        words = source.named_children if source.type in _OF_WORDS else [source]
        return any(_is_read_as(text_of(word).strip("'\""), names) for word in words)

    def _files_of(self, node: Any) -> Iterator[str]:
        """Yield the files that a command writes a value to, by their last names."""
        if node.type == "file_redirect":
            signs = {text_of(child) for child in node.children}
            words = node.named_children[-1:] if not signs.isdisjoint(_FILES_OUT) else []
            around = [node.parent]
        else:
            words = words_of(node) if node.type == "command" else []
            around = [word for word in words if word.type == "process_substitution"]
            is_read = any(text_of(word) in ("-o", "/dev/stdin") for word in words)
            if words and (command_name(node) in _OF_INPUT or is_read):
                around += _nodes(self.input_of(node))
            if command_name(node) in _COPIES and any(map(self.is_written, words)):
                yield from map(_last_name, words)
        if words and any(self.carried_by(one) for one in around):
            for word in words:
                if b"/dev/" not in word.text:
                    yield from self._names_of(word)

    # ------------------------------------------------------------ what gives what

    def _collect(self, node: Any) -> None:
        match node.type:
            case "variable_assignment":
                value = node.child_by_field_name("value")
                if value is not None and node.parent.type != "c_style_for_statement":
                    self._sources[name_of(node)].append(value)
                    if value.type == "array":
                        self._sources[f"!{name_of(node)}"].append(value)
            case "subscript":
                self._sources[f"!{name_of(node)}"] += node.children_by_field_name("index")
            case "function_definition":
                self._sources[f">{name_of_function(node)}"] += node.children_by_field_name("body")
            case "declaration_command" if _EXPORTED.match(node.text):
                self._sources[ARGUMENTS].append(self._root)  # of a shell that is started
            case "for_statement":
                values = node.children_by_field_name("value")
                self._sources[name_of(node)] += values or [ARGUMENTS]
            case "expansion":
                if {":=", "="} & {text_of(child) for child in node.children}:
                    self._sources[name_of(node)].append(node.children[-2])
            case "command":
                self._collect_command(node)
            case "binary_expression" if any(text_of(sign) == "=~" for sign in node.children):
                self._sources["BASH_REMATCH"].append(node.children[0])
            case _:
                pass

    def _collect_command(self, command: Any) -> None:
        name, words = unwrapped(command)
        self._sources["_"] += words[-1:]
        if _NOT_FOUND in self._functions:
            self._sources[ARGUMENTS] += words
        if name in READERS:
            given = [text_of(word) for word in words if word.type == "word"]
            named = {word for word in given if _IDENTIFIER.fullmatch(word)} or {READERS[name]}
            inputs = self.input_of(command)
            if not inputs or "-u" in given or any(b"<&" in one.text for one in _nodes(inputs)):
                inputs = [*inputs, self._root]  # of a file that was opened somewhere
            for variable in named:
                self._sources[variable] += inputs
        elif name == "printf" and len(words) > 1 and text_of(words[0]).startswith("-v"):
            attached = text_of(words[0])[2:]
            self._sources[attached or text_of(words[1])] += words[1 if attached else 2 :]
            self._indirect.append((words[1], words[2:]))
        elif name == "getopts":
            self._sources["OPTARG"].append(ARGUMENTS)
        elif name == "set":
            self._sources[ARGUMENTS] += words
        elif name in self._functions:
            self._sources[ARGUMENTS] += words
            self._sources[f"<{name}"] += self.input_of(command)

    def input_of(self, command: Any) -> list[Source]:
        """Return the standard input of a command: that redirected or piped to it, or to a compound
        command around it.
        """
        found: list[Source] = [self._root] if self._has_other_input else []
        inner = command
        for node in upwards(command):
            if node.type == "pipeline":
                found += [one for one in node.children if one.end_byte <= inner.start_byte]
            found += [child for child in node.children if child.type.endswith("_redirect")]
            if node.type == "function_definition":
                found.append(f"<{name_of_function(node)}")
            inner = node
        return found


def _is_read_as(text: str, names: set[str]) -> bool:
    """Return True for a text that arithmetic follows to one of these names: ``x``, ``x+1``,
    ``a[x]``.
    """
    if text in names:
        return True
    return bool(_EXPRESSION.fullmatch(text)) and not names.isdisjoint(_IDENTIFIER.findall(text))


def _nodes(sources: list[Source]) -> list[Any]:
    return [source for source in sources if not isinstance(source, str)]


def name_of_function(definition: Any) -> str:
    """Return the name of a function."""
    name = definition.child_by_field_name("name")
    return "" if name is None else text_of(name)


def _read_by(expansion: Any) -> str:
    """Return the variable that an expansion reads."""
    name = name_of(expansion)
    if is_all_indexes(expansion):
        return f"!{name}"
    return ARGUMENTS if _POSITIONAL.fullmatch(name) else name


def is_all_indexes(expansion: Any) -> bool:
    """Return True for ``${!a[@]}``."""
    return re.match(rb"\$\{!\w+\[[@*]\]", expansion.text) is not None


def _last_name(word: Any) -> str:
    name = text_of(word).strip("'\"").rpartition("/")[2].strip("'\"")
    return _OPTION.sub("", name) or "/"


def _reads_file(node: Any) -> bool:
    return node.type == "file_redirect" and any(text_of(child) == "<" for child in node.children)


def _is_length(node: Any) -> bool:
    """Return True for ``${#x}``."""
    return bool(node.type == "expansion" and node.text.startswith(b"${#"))
