"""Contracts in the prose of a stage's CONTEXT.md: inputs, outputs,
checkpoints, audits, the review gate.

Authors write the same contract in several dialects, which differ in the headers of its tables (or
use bullets instead)::

    ## Inputs       Source | File/Location | Section/Scope | Why
                    Source | File/Location | Why
                    Layer | Path | Use
                    - working: ../01-script/output/
    ## Outputs      Artifact | Location | Format
                    Artifact | Location
                    File | Location | Purpose
    ## Checkpoints  After Step | Agent Presents | Human Decides
    ## Audit        Check | Pass Condition           (or ## Verify with bullets)
    ## Review Gate  prose

Every row becomes an entry with its position. Nothing is dropped silently: a column with an unknown
header keeps its words in the entry's reason, a malformed row is kept with a warning, and an empty
section gives a warning too. The agent's prompt has the whole text, since process steps refer to
tables and sections around them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from pgflow.declare.graph import Check, Gate, Position
from pgflow.declare.icm.cells import Pointer, pointers
from pgflow.declare.icm.findings import Findings
from pgflow.declare.icm.markdown import Block, Document, Item, Row, parse

INPUTS = frozenset({"inputs", "input"})
PROCESS = frozenset({"process"})
OUTPUTS = frozenset({"outputs", "output", "artifacts"})
CHECKPOINTS = frozenset({"checkpoints", "checkpoint"})
AUDITS = frozenset({"audit", "audits"})
VERIFIES = frozenset({"verify", "verification"})
REVIEWS = frozenset({"review gate", "human check", "human review", "human gate"})
_PURPOSE = frozenset({"purpose"})

_LABELS = ("source", "layer", "artifact", "name", "input", "output", "type")
_PLACES = ("file/location", "file / location", "location", "path", "file")
_SCOPES = ("section/scope", "section / scope", "section to load", "section", "scope", "format")
_REASONS = ("why", "use", "purpose", "reason", "description", "notes")
_AFTER = ("after step", "step", "after")
_PRESENTS = ("agent presents", "presents")
_DECIDES = ("human decides", "decides")
_CHECKED = ("check", "criterion", "item")
_PASSES = ("pass condition", "passes if", "pass if", "pass", "condition")

_OPTIONAL = re.compile(r"\b(?:if any|if present|if it exists|optional)\b", re.IGNORECASE)
_BULLET_LABEL = re.compile(
    r"(?:\*\*|__)?(?P<label>[A-Za-z][\w /-]{0,38}?)(?:\*\*|__)?:(?:\*\*|__)?\s+(?P<rest>.+)",
    re.DOTALL,
)
_MARKED_CHECKPOINT = re.compile(r"\*\*\[checkpoint[^\]]*\]\*\*|\[checkpoint[^\]]*\]", re.IGNORECASE)
_HELD_BY_CHECKBOX = re.compile(r"\[[ xX]\]\s+")


@dataclass(frozen=True, slots=True)
class Entry:
    """Something that a stage reads or writes, as its prose says it.
    ``location`` is a path if ``is_path``.
    """

    label: str
    location: str
    is_path: bool
    scope: str
    why: str
    position: Position

    @property
    def optional(self) -> bool:
        """True if its words say that it may be missing."""
        return any(_OPTIONAL.search(text) for text in (self.label, self.scope, self.why))


@dataclass(frozen=True, slots=True)
class Contract:
    """A stage's contract. ``text`` is the file without its frontmatter, and begins on ``line``."""

    file: str
    text: str
    document: Document
    line: int = 1
    title: str = ""
    description: str = ""
    inputs: tuple[Entry, ...] = ()
    outputs: tuple[Entry, ...] = ()
    gates: tuple[Gate, ...] = ()
    checks: tuple[Check, ...] = ()


def read_contract(text: str, file: str, findings: Findings, first_line: int = 1) -> Contract:
    """Read the prose of a stage's CONTEXT.md.

    Args:
        text: The file below its frontmatter, with line feeds at the ends of lines.
        file: Its path in the workspace, for positions and messages.
        findings: Collector of the findings.
        first_line: The line of the file on which the text begins.

    Returns:
        All that it declares.
    """
    document = parse(text, first_line)
    reading = _Reading(document, file, findings)
    return Contract(
        file=file,
        text=text.strip("\n"),
        document=document,
        line=first_line + len(text) - len(text.lstrip("\n")),
        title=document.title.text if document.title else "",
        description=reading.description(),
        inputs=tuple(reading.entries(INPUTS, "Inputs")),
        outputs=tuple(reading.entries(OUTPUTS, "Outputs")),
        gates=(*reading.checkpoints(), *reading.review()),
        checks=(*reading.checks(AUDITS, "Audit"), *reading.checks(VERIFIES, "Verify")),
    )


@dataclass(frozen=True, slots=True)
class _Reading:
    """The reading of one contract."""

    document: Document
    file: str
    findings: Findings

    def at(self, line: int, column: int = 1) -> Position:
        return Position(file=self.file, line=line, column=column)

    def description(self) -> str:
        """Return the purpose of the stage: the paragraph under its title, or its Purpose."""
        purpose = self.document.section(_PURPOSE)
        text = self.document.introduction()
        if not text and purpose is not None:
            text = next((b.text for b in purpose[1] if b.kind == "paragraph"), "")
        return text

    def blocks(self, names: frozenset[str]) -> tuple[Block, ...]:
        """Return the blocks of a section, and report oddities of its tables."""
        section = self.document.section(names)
        blocks = section[1] if section else ()
        for table in (b for b in blocks if b.kind == "table"):
            if table.oddity:
                self.findings.warn(
                    f"table {table.oddity}; its rows are read all the same", self.at(table.line)
                )
            for row in (row for row in table.rows if row.oddity):
                at = self.at(row.line, row.column)
                self.findings.warn(
                    f"{row.oddity}; it is read as far as it goes", at, "Write | in a cell as \\|."
                )
        return blocks

    def unless_empty(self, names: frozenset[str], found: int) -> None:
        """Warn of a section that has text in which nothing was recognised."""
        section = self.document.section(names)
        if section is not None and not found and section[1]:
            message = f"nothing could be read from the section {section[0].text!r}"
            self.findings.warn(message, self.at(section[0].line), "Use the section's table.")

    # Inputs and outputs ---------------------------------------------------------------------------

    def entries(self, names: frozenset[str], heading: str) -> Iterator[Entry]:
        """Yield the rows, bullets and named files of Inputs or Outputs."""
        found: list[Entry] = []
        blocks = self.blocks(names)
        has_table = any(block.kind == "table" for block in blocks)
        for block in blocks:
            if block.kind == "table":
                found.extend(
                    entry for row in block.rows for entry in self._row_entries(block, row, heading)
                )
            elif block.kind == "list":
                self._add_bullets(block, found)
            elif (
                block.kind == "paragraph" and not has_table
            ):  # below a table it is a remark on the table
                found.extend(self._paragraph_entries(block))
        self.unless_empty(names, len(found))
        yield from found

    def _row_entries(self, table: Block, row: Row, heading: str) -> Iterator[Entry]:
        """Yield the entries of a row: one for each path in its place, or one with its words."""
        cells = dict(row.cells)
        if not any(cells.values()):
            self.findings.warn(f"empty row in {heading}", self.at(row.line, row.column))
            return
        place_name = next((name for name in _PLACES if name in cells), _second(table.header))
        place = cells.pop(place_name, "")
        label = _pop(cells, (*_LABELS, "file"))
        scope, why = _pop(cells, _SCOPES), _pop(cells, _REASONS)
        why = "; ".join(
            filter(None, [why, *(f"{name}: {cell}" for name, cell in cells.items() if cell)])
        )
        if not place:
            self.findings.warn(
                f"row in {heading} names no location: {label or why}", self.at(row.line, row.column)
            )
        found = pointers(place) or [Pointer("", is_path=False)]
        if "file" in table.header and place_name != "file":
            found = [_inside(found[0], label)]
        for pointer in found:
            yield self._entry(pointer, _bare(label), scope, why, row.line, row.column)

    def _entry(
        self, pointer: Pointer, label: str, scope: str, why: str, line: int, column: int = 1
    ) -> Entry:
        whole = "; ".join(filter(None, [pointer.remark, scope]))
        return Entry(label, pointer.location, pointer.is_path, whole, why, self.at(line, column))

    def _add_bullets(self, block: Block, found: list[Entry]) -> None:
        """Read a list of files; or, below a paragraph that names one file, a list of its
        sections.
        """
        entries = [entry for item in block.items for entry in self._item_entries(item)]
        last = found[-1] if found else None
        if last is not None and last.is_path and not any(entry.is_path for entry in entries):
            text = "; ".join(filter(None, [last.scope, *(item.whole for item in block.items)]))
            found[-1] = Entry(
                last.label, last.location, last.is_path, text, last.why, last.position
            )
        else:
            found.extend(entries)

    def _item_entries(self, item: Item, label: str = "") -> Iterator[Entry]:
        """Yield the entries of a bullet; nested bullets have its label."""
        named = _BULLET_LABEL.fullmatch(item.text)
        own, rest = (named["label"].strip(), named["rest"]) if named else (label, item.text)
        if item.children and item.text.rstrip("*_ ").endswith(":"):
            for child in item.children:
                yield from self._item_entries(child, item.text.strip("*_: "))
            return
        why = " ".join(child.whole for child in item.children)
        for pointer in pointers(rest):
            yield self._entry(pointer, own, "", why, item.line, item.column)

    def _paragraph_entries(self, block: Block) -> Iterator[Entry]:
        """Yield the files that a paragraph names in back-ticks. A paragraph that forbids declares
        none.
        """
        if re.match(r"(?:do not|don't|never)\b", block.text.lstrip("*_ "), re.IGNORECASE):
            return
        for pointer in pointers(block.text):
            if pointer.is_path and f"`{pointer.location}`" in block.text:
                yield self._entry(pointer, "", "", "", block.line)

    # Checkpoints, audits, review ------------------------------------------------------------------

    def checkpoints(self) -> Iterator[Gate]:
        """Yield the rows of Checkpoints; without them, the steps of Process that are marked as
        checkpoints.
        """
        found = 0
        for block in self.blocks(CHECKPOINTS):
            for row in block.rows:
                found += 1
                yield self._checkpoint(row)
            for item in block.items:
                found += 1
                yield Gate(
                    kind="checkpoint",
                    at="inside",
                    presents=item.whole,
                    position=self.at(item.line, item.column),
                )
        self.unless_empty(CHECKPOINTS, found)
        if self.document.section(CHECKPOINTS) is None:
            yield from self._marked_checkpoints()

    def _checkpoint(self, row: Row) -> Gate:
        cells = dict(row.cells)
        after, presents, decides = (
            _pop(cells, _AFTER),
            _pop(cells, _PRESENTS),
            _pop(cells, _DECIDES),
        )
        rest = "; ".join(f"{name}: {cell}" for name, cell in cells.items() if cell)
        text = "; ".join(filter(None, [decides, rest]))
        position = self.at(row.line, row.column)
        return Gate(
            kind="checkpoint",
            at="inside",
            presents=presents,
            decides=text,
            after_step=after or None,
            position=position,
        )

    def _marked_checkpoints(self) -> Iterator[Gate]:
        """Steps like ``7. **[Checkpoint]** -- Present the draft``: after the step before them."""
        for block in self.blocks(PROCESS):
            for item in block.items:
                if _MARKED_CHECKPOINT.match(item.text):
                    text = _MARKED_CHECKPOINT.sub("", item.whole).strip(" -:\u2013\u2014")
                    after = str(item.number - 1) if item.number is not None else None
                    yield Gate(
                        kind="checkpoint",
                        at="inside",
                        presents=text,
                        after_step=after,
                        position=self.at(item.line, item.column),
                    )

    def checks(self, names: frozenset[str], heading: str) -> Iterator[Check]:
        """Yield the rows of an audit, or its bullets."""
        found = 0
        for block in self.blocks(names):
            for row in block.rows:
                if any(row.cells.values()):
                    found += 1
                    yield self._check(row)
                else:
                    self.findings.warn(f"empty row in {heading}", self.at(row.line, row.column))
            for item in block.items:
                found += 1
                yield Check(
                    check=_HELD_BY_CHECKBOX.sub("", item.whole),
                    position=self.at(item.line, item.column),
                )
        self.unless_empty(names, found)

    def _check(self, row: Row) -> Check:
        cells = dict(row.cells)
        check, passes = _pop(cells, _CHECKED), _pop(cells, _PASSES)
        rest = "; ".join(f"{name}: {cell}" for name, cell in cells.items() if cell)
        passes = "; ".join(filter(None, [passes, rest if check else ""]))
        return Check(check=check or rest, passes_if=passes, position=self.at(row.line, row.column))

    def review(self) -> Iterator[Gate]:
        """Yield the prose of a review gate."""
        section = self.document.section(REVIEWS)
        if section is None:
            return
        heading, blocks = section
        texts = [
            text
            for block in blocks
            for text in (block.text, *(item.whole for item in block.items))
            if text
        ]
        yield Gate(
            kind="review",
            at="after",
            name=heading.text,
            decides="\n".join(texts),
            position=self.at(heading.line),
        )


def _pop(cells: dict[str, str], names: tuple[str, ...]) -> str:
    """Return the cell under the first of the names that the row has, taken out of it."""
    name = next((name for name in names if name in cells), None)
    return cells.pop(name) if name is not None else ""


def _second(header: tuple[str, ...]) -> str:
    """Return the column in which a table with unknown headers names its files, as all known ones
    do: the second.
    """
    return header[1] if len(header) > 1 else header[0] if header else ""


def _inside(folder: Pointer, name: str) -> Pointer:
    """Return the file of that name in the folder (``File | Location``), unless the location names
    the file itself.
    """
    bare = _bare(name)
    if not folder.is_path or not bare or not folder.location.endswith("/") or " " in bare:
        return folder
    return Pointer(folder.location + bare, is_path=True, remark=folder.remark)


def _bare(text: str) -> str:
    """Return a label without back-ticks or stars around it."""
    return text.strip("`* ")
