"""Rules of the two known validators of workspaces, in their words.

``icm validate`` (of icm-workspace-template) judges the layout that ``icm new`` makes:
`check_layout`. In a workspace of that layout (folders ``NN_slug`` and ``_templates/``) what it
calls an error is one; elsewhere, where other authors leave parts of it out, the same is a warning,
unless nothing can be compiled without it. The validator of the Model Workspace Protocol judges
style (`check_style`): all its rules that are about one workspace are warnings, and they are not
applied to the other layout, which has its own. Rules about a whole repository (its README, its
routing tables) are left to it.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from pgflow.declare.graph import Position
from pgflow.declare.icm.contracts import INPUTS, OUTPUTS, PROCESS, Contract
from pgflow.declare.icm.findings import Findings
from pgflow.declare.icm.folders import (
    CONTRACT,
    MAX_FOLDERS,
    OF_RUNS,
    SKIPPED,
    Folder,
    Unreadable,
    decode,
    number_of,
    resolve,
)
from pgflow.declare.icm.sources import StageSource
from pgflow.declare.icm.workflow import Workflow

_ICM_STAGE = re.compile(r"\d{2}_[a-z0-9][a-z0-9_-]*")
_MWP_STAGE = re.compile(r"\d{2}-[a-z0-9]+(-[a-z0-9]+)*")
_ICM_FOLDERS: Final = ("_config", "_templates", "shared", "stages")
_ICM_HEADINGS: Final = ("Inputs", "Process", "Outputs", "Review Gate", "Verify")

_LONGEST_CONTRACT: Final = 80
_LONGEST_REFERENCE: Final = 200
_EM_DASH: Final = "\u2014"
_REFERENCES: Final = ("references", "shared", "brand-vault", "design-system", "skills")
_LOWER = re.compile(r"[a-z0-9]+([-._][a-z0-9]+)*")
_EXEMPT: Final = frozenset(
    {
        *("CLAUDE.md", "AGENTS.md", "CONTEXT.md", "CONVENTIONS.md", "README.md", "SKILL.md"),
        *("LICENSE", "LICENSE.txt", "_core", ".gitkeep", ".gitignore", ".github"),
    }
)
_RUN_TIME_MARKS: Final = ("{{", "[", "*", "{", "<")
_PLACEHOLDER = re.compile(r"\{\{[A-Z][A-Z0-9_]*\}\}")
_MENTIONED = re.compile(r"`(?:\{\{[?/]?[A-Z][A-Z0-9_]*\}\}(?:\.\.\.)?)+`")
_CONDITIONAL = re.compile(r"\s*\{\{([?/])([A-Z][A-Z0-9_]*)\}\}\s*")
_LINK = re.compile(r"\]\(\s*(?:link-to-\S*|TODO|TBD|url|example\.com\S*|#?)\s*\)", re.IGNORECASE)


def is_icm_layout(folder: Folder, sources: list[StageSource]) -> bool:
    """Return True if a workspace has the layout that ``icm new`` makes.

    Args:
        folder: The workspace.
        sources: Its stages.
    """
    return folder.has_folder("_templates") and any(
        _ICM_STAGE.fullmatch(source.folder_name) for source in sources
    )


def check_layout(
    folder: Folder, sources: list[StageSource], workflow: Workflow | None, findings: Findings
) -> None:
    """Say what ``icm validate`` says.

    Args:
        folder: The workspace.
        sources: Its stages.
        workflow: Contents of its workflow.yaml, if there is one.
        findings: Collector of the findings.
    """
    of_icm = is_icm_layout(folder, sources)
    say = findings.error if of_icm else findings.warn
    if not folder.identities():
        say("Missing Layer 0 identity file: add AGENTS.md or CLAUDE.md")
    if not folder.has(CONTRACT):
        say("Missing Layer 1 routing file: CONTEXT.md")
    for name in _ICM_FOLDERS if of_icm else ():
        if not folder.has_folder(name):
            say(f"Missing required directory: {name}/")
    if not sources and workflow is None:
        findings.error("No stage directories found under stages/")
    _check_numbers(sources, of_icm, findings)
    _check_contracts(sources, workflow, findings)
    for source in sources if of_icm else ():
        _check_icm_stage(folder, source, findings)


def _check_numbers(sources: list[StageSource], of_icm: bool, findings: Findings) -> None:
    """Check that stage folders are named as the layout requires, each with a number of its own."""
    seen: set[str] = set()
    for source in sources:
        number = number_of(source.folder_name)
        if number is not None and number in seen:
            findings.error(
                f"Duplicate stage number: {number}",
                source.at,
                "Stages run in the order of their numbers.",
            )
        if of_icm and not _ICM_STAGE.fullmatch(source.folder_name):
            findings.warn(f"Stage name should match NN_slug: stages/{source.folder_name}/")
        elif (
            not of_icm
            and not _MWP_STAGE.fullmatch(source.folder_name)
            and not _ICM_STAGE.fullmatch(source.folder_name)
        ):
            findings.warn(
                f"Stage folders use a zero-padded numeric prefix: stages/{source.folder_name}"
            )
        seen |= {number} if number is not None else set()
    ids: set[str] = set()
    for source in sources:
        if source.id in ids:
            findings.error(f"Duplicate stage_id: {source.id!r}", source.at)
        ids.add(source.id)


def _check_contracts(
    sources: list[StageSource], workflow: Workflow | None, findings: Findings
) -> None:
    """Report stages without a contract. It is only a warning if workflow.yaml declares the
    stage.
    """
    listed = {declared.id for declared in workflow.stages} if workflow is not None else set()
    for source in sources:
        if source.contract is None and not any(
            problem.message.startswith(f"{source.file}:") for problem in findings.problems
        ):
            say = (
                findings.warn
                if source.id in listed or number_of(source.folder_name) is None
                else findings.error
            )
            say(f"Missing stage contract: stages/{source.folder_name}/CONTEXT.md")
    for stage_id in sorted(listed - {source.id for source in sources}):
        findings.warn(f"Missing stage contract: stages/{stage_id}/CONTEXT.md")


def _check_icm_stage(folder: Folder, source: StageSource, findings: Findings) -> None:
    """Check the headings and folders of a stage as ``icm validate`` does."""
    if source.contract is not None:
        headings = {heading.text.casefold() for heading in source.contract.document.headings()}
        for heading in _ICM_HEADINGS:
            if heading.casefold() not in headings:
                findings.error(
                    f"stages/{source.folder_name}/CONTEXT.md missing heading: {heading}", source.at
                )
        if not all(layer in source.contract.text for layer in ("Layer 3", "Layer 4")):
            findings.warn(
                f"stages/{source.folder_name}/CONTEXT.md should explicitly "
                "separate Layer 3 and Layer 4 inputs"
            )
    if not folder.has_folder(f"{source.base}/references"):
        findings.error(f"Missing Layer 3 folder: stages/{source.folder_name}/references/")
    if not folder.has_folder(f"{source.base}/output"):
        findings.error(f"Missing Layer 4 handoff folder: stages/{source.folder_name}/output/")


# The rules of the Model Workspace Protocol --------------------------------------------------------


def check_style(folder: Folder, sources: list[StageSource], findings: Findings) -> None:
    """Warn of what the protocol's validator says.

    Args:
        folder: The workspace.
        sources: Its stages.
        findings: Collector of the findings.
    """
    for source in sources:
        if source.contract is not None:
            _check_placeholders(source.contract, findings)
    if is_icm_layout(folder, sources):
        return
    for source in sources:
        if source.contract is not None:
            _check_shape(source.contract, findings)
            _check_inputs(folder, source, source.contract, findings)
    _check_one_way(sources, findings)
    _check_files(folder.root, findings)


def _check_placeholders(contract: Contract, findings: Findings) -> None:
    """Placeholders are filled in by ``setup``, and conditional sections are closed."""
    opened: list[tuple[str, Position]] = []
    for number, line in enumerate(contract.text.split("\n"), contract.line):
        at = Position(file=contract.file, line=number)
        for name in dict.fromkeys(_PLACEHOLDER.findall(_MENTIONED.sub("", line))):
            findings.warn(f"placeholder {name} is not filled in", at, "Run the workspace's setup.")
        mark = _CONDITIONAL.fullmatch(line)
        if mark is None:
            continue
        if mark[1] == "?":
            opened.append((mark[2], at))
        elif not opened or opened.pop()[0] != mark[2]:
            findings.warn(f"conditional section {mark[2]} is closed but not open", at)
    for name, at in opened:
        findings.warn(f"conditional section {name} is not closed", at)


def _check_shape(contract: Contract, findings: Findings) -> None:
    """Inputs, Process and Outputs are there, in this order."""
    at = Position(file=contract.file, line=1)
    length = contract.text.count("\n") + 1
    if length > _LONGEST_CONTRACT:
        findings.warn(f"CONTEXT.md under {_LONGEST_CONTRACT} lines: it has {length}", at)
    found = [contract.document.section(names) for names in (INPUTS, PROCESS, OUTPUTS)]
    lines = [section[0].line for section in found if section is not None]
    if len(lines) < len(found):
        findings.warn(
            "Stage CONTEXT.md has Inputs, Process, Outputs in order: one of them is missing", at
        )
    elif lines != sorted(lines):
        findings.warn(
            "Stage CONTEXT.md has Inputs, Process, Outputs in order: they are out of order", at
        )


def _check_inputs(
    folder: Folder, source: StageSource, contract: Contract, findings: Findings
) -> None:
    """Rows of Inputs say which part is read, and lead to files that are there."""
    section = contract.document.section(INPUTS)
    for table in (
        block
        for block in (section[1] if section else ())
        if block.kind == "table" and "why" in block.header
    ):
        for row in table.rows:
            scoped = any(row.cells.get(name) for name in ("section/scope", "section to load"))
            if any(row.cells.values()) and not scoped:
                findings.warn(
                    "Inputs rows carry a Section/Scope value",
                    Position(file=contract.file, line=row.line),
                )
    for entry in contract.inputs:
        if (
            not entry.is_path
            or any(mark in entry.location for mark in _RUN_TIME_MARKS)
            or "/output/" in f"/{entry.location}/"
        ):
            continue
        where = resolve(folder, source.base, entry.location)
        if where.startswith(("/", "~", "..")):
            continue  # reported with the paths that lead out
        if not folder.has(where):
            findings.warn(f"Inputs-table paths resolve: {entry.location} does not", entry.position)


def _check_one_way(sources: list[StageSource], findings: Findings) -> None:
    """No two stages read from each other."""
    names = {source.folder_name for source in sources}
    named: dict[str, set[str]] = defaultdict(set)
    for source in sources:
        text = source.contract.text if source.contract is not None else ""
        words = set(re.findall(r"\d{2}-[a-z0-9]+(?:-[a-z0-9]+)*", text))
        named[source.folder_name] = words & names - {source.folder_name}
    for one, others in sorted(named.items()):
        for other in sorted(others):
            if one < other and one in named[other]:
                findings.warn(f"Stage cross-references are one-way: {one} <-> {other}")


def _check_files(root: Path, findings: Findings) -> None:
    """Names, lengths and characters of the files of a workspace. One in which runs were has their
    outputs.
    """
    seen, has_runs = 0, (root / OF_RUNS).is_dir()
    for folder, names, files in os.walk(root):
        seen += 1 + len(files)
        if seen > MAX_FOLDERS:
            findings.warn(f"has more than {MAX_FOLDERS} files; the rest were not looked at")
            return
        names[:] = sorted(name for name in names if name not in SKIPPED)
        here = Path(folder).relative_to(root).as_posix()
        here = "" if here == "." else f"{here}/"
        if not names and not files:
            findings.warn(f"Empty persistent folders carry .gitkeep: {here}")
        if (
            not has_runs
            and here.endswith("output/")
            and posixpath.basename(here.rstrip("/")) == "output"
            and set(files) - {".gitkeep"}
        ):
            findings.warn(
                f"Output folders contain only .gitkeep: {here}{min(set(files) - {'.gitkeep'})}"
            )
        vendored = "skills/" in here
        for name in (*names, *sorted(files)):
            _check_name(f"{here}{name}", name, findings, vendored=vendored or name == "skills")
        for name in sorted(files):
            if name.endswith(".md") and not vendored:
                _check_text(root, f"{here}{name}", findings)


def _check_name(path: str, name: str, findings: Findings, *, vendored: bool) -> None:
    if " " in name:
        findings.warn(f"No spaces in file or folder names: {path}")
    elif not vendored and name not in _EXEMPT and not _LOWER.fullmatch(name):
        findings.warn(f"Names are lowercase-with-hyphens: {path}")


def _check_text(root: Path, path: str, findings: Findings) -> None:
    """Warn of an em dash, too many lines and links to nowhere in a Markdown file."""
    try:
        text = decode(Folder(root).read(path))
    except Unreadable:
        return  # where it matters, its reader says so
    for line, blemish in _blemishes(text, path):
        findings.warn(blemish, Position(file=path, line=line))


def _blemishes(text: str, path: str) -> Iterator[tuple[int, str]]:
    lines = text.rstrip("\n").split("\n")
    parts = path.split("/")[:-1]
    if any(name in parts for name in _REFERENCES) and len(lines) > _LONGEST_REFERENCE:
        yield 1, f"Reference files under {_LONGEST_REFERENCE} lines: it has {len(lines)}"
    if _EM_DASH in text:
        first = next(number for number, line in enumerate(lines, 1) if _EM_DASH in line)
        yield first, f"No em dashes (U+2014): it has {text.count(_EM_DASH)}"
    for number, line in enumerate(lines, 1):
        if _LINK.search(line):
            yield number, "Markdown links have real targets"
