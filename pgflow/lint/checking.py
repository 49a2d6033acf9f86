"""Checks from targets to findings: files are read one by one, each is put to every rule that was
chosen, comments are obeyed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TypeAlias

from pgflow.lint.findings import Finding, Unreadable
from pgflow.lint.ignores import Ignores
from pgflow.lint.module import Module
from pgflow.lint.neighbours import Neighbours
from pgflow.lint.rules import BY_CODE, RULES, Rule
from pgflow.lint.rules.comments import CommentRule
from pgflow.lint.rules.values import NotStorableAnnotation
from pgflow.lint.sources import Source, find_files, read_source

Load: TypeAlias = Callable[[Path], ModuleType]
"""Imports the module that a file is."""

INSTEAD_OF = {
    **{code: frozenset({"PF201"}) for code in ("PF104", "PF105", "PF110")},
    "PF207": frozenset({"PF203"}),
}
"""Rules that keep quiet where a more specific one has a finding."""


class UnknownCode(Exception):
    """No rule has this code, and none begins with it."""


@dataclass
class Report:
    """Result of a check.

    Attributes:
        findings: Findings, by file and line.
        unreadable: Files that could not be checked, and why: each a line.
        files: Number of files checked.
        workflows: Number of workflows in them.
    """

    findings: list[Finding] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)
    files: int = 0
    workflows: int = 0


def check(
    *targets: str, select: Sequence[str] = (), ignore: Sequence[str] = (), load: Load | None = None
) -> Report:
    """Check the workflow code of files, of the files in folders, and of modules, without running
    it.

    Args:
        *targets: Paths, or dotted names of modules.
        select: Codes of the rules to check, or their beginnings; every rule if empty.
        ignore: Codes of rules to leave out, or their beginnings.
        load: Imports a file, so that the codec of every annotation can be asked for; nothing is
            imported without.

    Raises:
        UnknownTarget: A target has no files.
        UnknownCode: No rule has such a code.
    """
    check_one = _Files(choose_rules(select, ignore), load)
    report = Report()
    for path in find_files(targets):
        try:
            check_one(path, report)
        except Unreadable as error:
            report.unreadable.append(str(error))
    report.findings.sort()
    return report


class _Files:
    """Checks files one by one; those of a project share what is read of it."""

    def __init__(self, rules: Sequence[Rule], load: Load | None) -> None:
        self._rules = rules
        self._load = load
        self._neighbours: dict[Path, Neighbours] = {}

    def __call__(self, path: Path, report: Report) -> None:
        source = read_source(path)
        assert source.root is not None
        neighbours = self._neighbours.setdefault(source.root, Neighbours(source.root))
        module, found = check_source(
            source,
            self._rules,
            neighbours,
            partial(self._load, path) if self._load is not None else None,
        )
        report.files += 1
        report.workflows += len(module.definitions.workflows())
        report.findings += found


def check_source(
    source: Source,
    rules: Sequence[Rule] = RULES,
    neighbours: Neighbours | None = None,
    load: Callable[[], ModuleType] | None = None,
) -> tuple[Module, list[Finding]]:
    """Checks one module.

    Args:
        source: Its text.
        rules: Rules to check.
        neighbours: Other modules of its project.
        load: Imports it; called only if it declares something.

    Returns:
        The module, and what was found in it, by line.

    Raises:
        Unreadable: It is not Python, or too deep for Python.
    """
    try:
        module = Module(source, neighbours)
        found = _without_echoes({finding for rule in rules for finding in rule.check(module)})
        if (
            load is not None
            and module.definitions.declared
            and NotStorableAnnotation.code in {rule.code for rule in rules}
        ):
            from pgflow.lint.codecs import ask_codecs  # which needs the engine

            found += [more for more in ask_codecs(module, load()) if not _is_said(more, found)]
    except RecursionError as error:
        raise Unreadable(
            source.file, None, None, "its expressions are nested too deeply to be checked"
        ) from error
    return module, sorted(_obeying_comments(source, found, rules))


def _is_said(finding: Finding, found: Collection[Finding]) -> bool:
    return any(
        (finding.line, finding.column, finding.code) == (other.line, other.column, other.code)
        for other in found
    )


def _without_echoes(found: Collection[Finding]) -> list[Finding]:
    places = {(finding.line, finding.column, finding.code) for finding in found}
    return [
        f
        for f in found
        if not any((f.line, f.column, other) in places for other in INSTEAD_OF.get(f.code, ()))
    ]


def _obeying_comments(
    source: Source, found: Sequence[Finding], rules: Sequence[Rule]
) -> Iterator[Finding]:
    ignores = Ignores(source.text)
    yield from (finding for finding in found if not ignores.allow(finding))
    applied = {rule.code for rule in rules}
    for rule in rules:
        if isinstance(rule, CommentRule):
            of_comments = list(rule.check_comments(source.file, ignores, BY_CODE.keys(), applied))
            yield from (finding for finding in of_comments if not ignores.allow(finding))


def choose_rules(select: Sequence[str] = (), ignore: Sequence[str] = ()) -> list[Rule]:
    """Return the rules with these codes, or with codes that begin like this.

    Raises:
        UnknownCode: None does.
    """
    chosen = {code for prefix in select for code in _codes(prefix)} if select else set(BY_CODE)
    chosen -= {code for prefix in ignore for code in _codes(prefix)}
    return [rule for rule in RULES if rule.code in chosen]


def _codes(prefix: str) -> list[str]:
    found = [code for code in BY_CODE if prefix and code.startswith(prefix.upper())]
    if not found:
        raise UnknownCode(prefix)
    return found
