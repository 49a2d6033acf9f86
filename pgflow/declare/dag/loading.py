"""One workflow file, from its bytes to its verdict.

The original stops at the first error. This reader reports all of them, each once and with its
place, in the original's words; the first error of a verdict is the original's. Where the original
puts several wrong fields of nodes into one sentence, each is an error of its own here.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Final, Literal

from pgflow.declare.dag.drafts import Draft, read_node, shown_id
from pgflow.declare.dag.fields import MODES
from pgflow.declare.dag.keys import (
    Warned,
    deprecated_in_node,
    unknown_in_node,
    unknown_in_workflow,
    useless_arguments,
)
from pgflow.declare.dag.noderules import NODE
from pgflow.declare.dag.shapes import Flaw
from pgflow.declare.dag.structure import Finding, Scope, check
from pgflow.declare.dag.workflow import Options, check_head, check_providers, read_options
from pgflow.declare.graph.problems import Problem
from pgflow.declare.text.scripts import is_inline
from pgflow.declare.text.spelling import similar
from pgflow.declare.text.yamlfile import (
    Marked,
    Steps,
    YamlError,
    decode,
    read_bytes,
    read_yaml,
    refuse_utf16,
)

MAX_PROBLEMS: Final = 200
"""Most errors that are reported for one file."""

MAX_WARNINGS: Final = 1000
"""After how many warnings no more are looked for."""

_NO_OBJECT = "YAML file is empty or does not contain an object"
_CHECKOUT = (
    "'mutates_checkout' is not supported on an include node: a composed block shares the run's "
    "single checkout, so concurrency safety "
    "is the composing workflow's to declare. Set it at workflow level, or use a 'workflow:' node "
    "when you want a separate governed run."
)
_EACH_CHECKOUT = (
    "'mutates_checkout' is not supported on a composed fan-out node. Declare 'mutates_checkout: "
    "false' at the root of the included workflow when its whole block is safe to run concurrently, "
    "or set 'fan_out.max_parallel: 1'."
)
_STAY = "A name must not lead to another folder."
_STUDIED = "A workflow is a mapping with name, description and nodes."
_ONE_DOCUMENT = "A line '---' begins another document: give each workflow a file of its own."


@dataclass(slots=True)
class Loaded:
    """A file as far as it could be read alone, before its includes."""

    file: str
    problems: list[Problem] = field(default_factory=list)
    document: Marked | None = None
    head: dict[str, Any] = field(default_factory=dict)
    options: Options = field(default_factory=Options)
    nodes: tuple[Draft, ...] = ()
    lines: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """True if nothing is wrong with the file itself."""
        return not any(problem.severity == "error" for problem in self.problems)

    @property
    def name(self) -> str:
        """Name that the workflow gives itself; empty if none."""
        name = self.head.get("name")
        return name if isinstance(name, str) else ""


def load_file(path: Path, file: str) -> Loaded:
    """Read a workflow file; whatever is wrong with it is among its problems."""
    try:
        data = read_bytes(path)
        refuse_utf16(data)
        text, broken = decode(data)
    except OSError as error:
        message = f"File read error: {error.strerror or error} ({_code(error)})"
        return Loaded(file, [Problem(message, kind="read_error")])
    except YamlError as error:
        problem = Problem(error.message, error.line, error.column, error.hint, kind="read_error")
        return Loaded(file, [problem])
    loaded = load_text(text, file)
    if broken is not None and loaded.ok:
        message = "Bytes that are not UTF-8 were read as U+FFFD"
        loaded.problems.append(Problem(message, broken, 1, "Save the file as UTF-8.", "warning"))
    return loaded


def _code(error: OSError) -> str:
    return errno.errorcode.get(error.errno or 0, "unknown")


def load_text(text: str, file: str) -> Loaded:
    """Read a workflow from its text; whatever is wrong with it is among its problems."""
    try:
        document = read_yaml(text)
    except YamlError as error:
        message = (
            f"YAML parse error: {'' if error.is_bound else 'YAML Parse error: '}{error.message}"
        )
        return Loaded(
            file, [Problem(message, error.line, error.column, error.hint, kind="parse_error")]
        )
    loaded = Loaded(file, document=document)
    if isinstance(document.value, dict):
        loaded.head = document.value
        loaded.lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        _load(loaded, document, loaded.lines)
    else:
        message = (
            "Missing required field 'name'" if isinstance(document.value, list) else _NO_OBJECT
        )
        hint = _STUDIED
        if _is_several(document):
            message, hint = f"{message}: the file has several documents", _ONE_DOCUMENT
        loaded.problems.append(Problem(message, document.line, document.column, hint))
    return loaded


def _is_several(document: Marked) -> bool:
    """Return True for several documents in one file, which the original takes for a list."""
    value = document.value
    return isinstance(value, list) and any(
        isinstance(one, dict) and "nodes" in one for one in value
    )


def _load(loaded: Loaded, document: Marked, lines: list[str]) -> None:
    raw = loaded.head
    findings = list(check_head(raw))
    reading = _Reading(raw)
    reading.read_nodes(loaded.file)
    findings += reading.wrong_nodes
    findings += islice(check(Scope(reading.nodes, broken=reading.broken)), MAX_PROBLEMS)
    findings += check_providers(raw, reading.nodes)
    findings += check_names(reading.nodes)
    loaded.options, wrong = read_options(raw, reading.nodes, reading.broken)
    findings += wrong
    loaded.nodes = tuple(reading.nodes)
    loaded.problems += _errors(findings, document, lines)
    warned, dropped = ([], []) if findings else (loaded.options.warnings, loaded.options.ignored)
    unknown = islice(unknown_in_workflow(raw), MAX_WARNINGS) if loaded.name else ()
    found = [*reading.warnings, *warned, *unknown, *dropped]
    loaded.problems += [_problem(one, document, lines, "warning") for one in found]


def _errors(findings: list[Finding], document: Marked, lines: list[str]) -> Iterator[Problem]:
    for finding in findings[:MAX_PROBLEMS]:
        yield _problem(finding, document, lines, "error")
    if len(findings) > MAX_PROBLEMS:
        yield Problem("More errors were found than are shown; fix these first.")


def _problem(
    about: Finding | Warned,
    document: Marked,
    lines: list[str],
    severity: Literal["error", "warning"],
) -> Problem:
    """Return a problem with its place in a file."""
    line, column = (
        document.find(about.path, about.needle, lines)
        if about.needle
        else document.place(about.path)
    )
    return Problem(about.message, line, column, about.hint, severity)


def check_names(nodes: Iterable[Draft]) -> Iterator[Finding]:
    """Names that lead out of the folders in which such things are kept. The original asks this of
    commands only.
    """
    for node in nodes:
        name = (
            node.fields.get(node.mode) if node.mode in ("script", "include", "workflow") else None
        )
        if (
            name is not None
            and not (node.mode == "script" and is_inline(name))
            and _leads_out(name)
        ):
            yield Finding(
                (*node.path, node.mode),
                f"Node '{node.id}': '{node.mode}' invalid {node.mode} name \"{name}\"",
                _STAY,
            )
        yield from check_names(node.body)


def _leads_out(name: str) -> bool:
    return ".." in name.replace("\\", "/").split("/")


class _Reading:
    """Reading of a file's nodes: the valid ones, the errors of the others, and remarks."""

    def __init__(self, raw: dict[str, Any]) -> None:
        nodes = raw.get("nodes")
        self.raw: list[Any] = nodes if isinstance(nodes, list) else []
        self.nodes: list[Draft] = []
        self.broken: frozenset[str] = frozenset()
        self.wrong_nodes: list[Finding] = []
        self.warnings: list[Warned] = []

    def read_nodes(self, file: str) -> None:
        """Read all of them."""
        found: list[Finding] = []
        broken: set[str] = set()
        for index, raw in enumerate(self.raw):
            path: Steps = ("nodes", index)
            node, flaws = read_node(raw, path, file)
            if node is not None and node.mode == "include" and "mutates_checkout" in raw:
                node, flaws = None, [Flaw((), _EACH_CHECKOUT if "fan_out" in raw else _CHECKOUT)]
            if node is None:
                if len(self.warnings) < MAX_WARNINGS:
                    self.warnings += unknown_in_node(raw, index, path)
                broken.add(shown_id(raw, index))
                found += [
                    Finding((*path, *flaw.path), text, _hint(raw, flaw))
                    for text, flaw in _told(raw, index, flaws)
                ]
                continue
            self.nodes.append(node)
            if len(self.warnings) < MAX_WARNINGS:
                self.warnings += [
                    *unknown_in_node(raw, index, path),
                    *deprecated_in_node(node),
                    *useless_arguments(node, raw),
                ]
        self.broken = frozenset(broken)
        if found:
            first = f"DAG node validation failed: {found[0].message}"
            found[0] = found[0]._replace(message=first)
        self.wrong_nodes = found


def _told(raw: Any, index: int, flaws: Iterable[Flaw]) -> Iterator[tuple[str, Flaw]]:
    """Yield a node's flaws in the original's words: the node, the field, and why."""
    for flaw in flaws:
        where = f"'{'.'.join(map(str, flaw.path))}' " if flaw.path else ""
        yield f"Node '{shown_id(raw, index)}': {where}{flaw.message}", flaw


def _hint(raw: Any, flaw: Flaw) -> str:
    """Return a hint at a misspelt key, the likeliest reason for a node that does nothing."""
    if flaw.path or not isinstance(raw, dict) or not flaw.message.startswith("must have"):
        return ""
    for key in raw:
        near = similar(key, MODES) if not NODE.knows(key) else []
        if near:
            return f"Is '{key}' meant to be '{near[0]}'?"
    return ""
