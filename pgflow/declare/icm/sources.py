"""The stages of a workspace as its files have them: contract, frontmatter, and the targets of the
rows of tables.

Frontmatter is YAML between two ``---`` at the very beginning of a CONTEXT.md. Its lines are counted
in the file.
"""

from __future__ import annotations

import posixpath
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from pgflow.declare.graph import Artifact, Position
from pgflow.declare.icm.contracts import Contract, Entry, read_contract
from pgflow.declare.icm.findings import Findings
from pgflow.declare.icm.folders import CONTRACT, Folder, Unreadable, decode, number_of, resolve
from pgflow.declare.icm.given import Given
from pgflow.declare.icm.workflow import read_yaml_of

_DEEPEST = 32  # folders above an artifact that may stand for it
_FENCE = re.compile(r"---[ \t]*")
_END = re.compile(r"(?:---|\.\.\.)[ \t]*")


@dataclass(frozen=True, slots=True)
class StageSource:
    """A folder below ``stages`` and what its files say. ``id`` is the frontmatter's ``stage_id``,
    or the folder's name.
    """

    id: str
    folder_name: str
    contract: Contract | None = None
    frontmatter: dict[str, Given] | None = None

    @property
    def base(self) -> str:
        """The folder that the contract's paths are from."""
        return f"stages/{self.folder_name}"

    @property
    def file(self) -> str:
        """The contract's path in the workspace."""
        return f"{self.base}/{CONTRACT}"

    @property
    def at(self) -> Position:
        """Beginning of the stage: its title, or its file."""
        title = self.contract.document.title if self.contract else None
        return Position(file=self.file, line=title.line if title else 1)


def split_frontmatter(text: str) -> tuple[str | None, str, int]:
    """Frontmatter and the prose below it.

    Args:
        text: The text of a file.

    Returns:
        The YAML between the fences (None if the file has no frontmatter), the prose, and the line
        on which that begins.
    """
    lines = text.split("\n")
    if not _FENCE.fullmatch(lines[0]):
        return None, text, 1
    end = next((number for number, line in enumerate(lines[1:], 1) if _END.fullmatch(line)), None)
    if end is None:
        return None, text, 1
    return "\n".join(lines[1:end]), "\n".join(lines[end + 1 :]), end + 2


def read_stage(folder: Folder, name: str, findings: Findings) -> StageSource:
    """Read the files of a stage.

    Args:
        folder: The workspace.
        name: The name of the stage's folder.
        findings: Collector of the findings.
    """
    file = f"stages/{name}/{CONTRACT}"
    if not folder.has(file):
        return StageSource(name, name)
    try:
        text = decode(folder.read(file))
    except Unreadable as error:
        findings.error(str(error), Position(file=file, line=1))
        return StageSource(name, name)
    yaml, prose, line = split_frontmatter(text)
    frontmatter = _frontmatter(yaml, file, findings) if yaml is not None else None
    contract = read_contract(prose, file, findings, line)
    stage_id = frontmatter["stage_id"].text() if frontmatter and "stage_id" in frontmatter else None
    return StageSource(stage_id or name, name, contract, frontmatter)


def _frontmatter(yaml: str, file: str, findings: Findings) -> dict[str, Given] | None:
    """Return the fields of frontmatter; none if it is empty."""
    given = read_yaml_of(f"\n{yaml}\n", file, findings, "frontmatter")
    if given is None or given.value is None:
        return {}
    return given.fields() or {}


# What rows point to -------------------------------------------------------------------------------


def place(folder: Folder, base: str, entry: Entry) -> str | None:
    """Return the path of an entry, seen from the workspace; None if it names none."""
    return resolve(folder, base, entry.location) if entry.is_path else None


def snake(text: str) -> str:
    """Return a name for an artifact in the style of the published sketch: ``Meeting notes`` is
    ``meeting_notes``.
    """
    name = re.sub(r"[^a-z0-9]+", "_", text.casefold()).strip("_")[:60].strip("_")
    return name if name[:1].isalpha() else f"file_{name}".strip("_")


def derive_state(folder: Folder, stages: Iterable[StageSource]) -> dict[str, Artifact]:
    """Return the artifacts that flow between stages, by the outputs in their contracts.

    Args:
        folder: The workspace.
        stages: Its stages in their order.

    Returns:
        An artifact for each place that a stage writes to, named as its author names it; where two
        stages call different files the same, the later ones have their stage's number at the end.
    """
    state: dict[str, Artifact] = {}
    known: set[str] = set()
    counts: Counter[str] = Counter()
    for stage in stages:
        for entry in stage.contract.outputs if stage.contract else ():
            where = place(folder, stage.base, entry)
            if where is None or where.startswith(("/", "~", "..")) or where in known:
                continue
            known.add(where)
            name = _unused(
                snake(_called(entry, where)), number_of(stage.folder_name), state, counts
            )
            location = f"{where}/" if entry.location.endswith("/") else where
            state[name] = Artifact(
                name=name, location=location, written_by=stage.id, position=entry.position
            )
    return state


def _called(entry: Entry, where: str) -> str:
    """Return the author's name of an output; if that is the file's own name, without its ending."""
    is_file_name = not entry.label or entry.location.endswith(entry.label)
    return posixpath.splitext(posixpath.basename(where))[0] if is_file_name else entry.label


def _unused(
    name: str, number: str | None, state: Mapping[str, Artifact], counts: Counter[str]
) -> str:
    """Return the name; if it is taken, with the stage's number at its end, and if need be a
    count.
    """
    if name not in state:
        return name
    longer = candidate = f"{name}_{number or 'more'}"
    while candidate in state:
        counts[longer] += 1
        candidate = f"{longer}_{counts[longer] + 1}"
    return candidate


@dataclass(frozen=True, slots=True)
class Places:
    """Artifacts by their places. A folder that holds one artifact is the place of that artifact."""

    by_place: Mapping[str, str]
    by_folder: Mapping[str, frozenset[str]]

    @staticmethod
    def of(folder: Folder, state: Mapping[str, Artifact]) -> Places:
        """Return the places of a state's entries."""
        placed = {
            resolve(folder, "", entry.location): name
            for name, entry in state.items()
            if entry.location is not None
        }
        inside: dict[str, set[str]] = defaultdict(set)
        for place_, name in placed.items():
            for above in list(PurePosixPath(place_).parents)[:_DEEPEST]:
                inside[str(above)].add(name)
        return Places(placed, {above: frozenset(names) for above, names in inside.items()})

    def artifact(self, where: str | None) -> str | None:
        """Return the artifact at a place, if there is one."""
        if where is None:
            return None
        inside = self.by_folder.get(where, frozenset())
        if where in self.by_place or len(inside) == 1:
            return self.by_place.get(where) or min(inside)
        return None
