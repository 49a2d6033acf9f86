"""Locations of the files that flow between stages: each entry of the state has one, the same for
its writer and for all who read it.

The published sketch says of most files only which stage writes them (``meeting_notes: { type: file,
written_by: 01-meeting-notes }``). Such a file is where the Outputs table of that stage says. If the
table does not name it, it is in the stage's ``output`` folder, under the entry's own name.
"""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Iterable, Mapping

from pgflow.declare.graph import Artifact
from pgflow.declare.icm.contracts import Entry
from pgflow.declare.icm.folders import Folder, leads_out
from pgflow.declare.icm.sources import StageSource, place, snake


def located(
    folder: Folder, state: Mapping[str, Artifact], stages: Iterable[StageSource]
) -> dict[str, Artifact]:
    """Return the entries of a state, each file with its location.

    Args:
        folder: The workspace.
        state: The entries.
        stages: Its stages. An entry that none of them writes stays as it is.
    """
    sources = {stage.id: stage for stage in stages}
    lost = [
        entry
        for entry in state.values()
        if entry.kind == "file" and entry.location is None and entry.written_by in sources
    ]
    alone = Counter(entry.written_by for entry in lost)
    taken = {entry.location for entry in state.values()}
    found = {
        entry.name: _location(folder, sources[entry.written_by or ""], entry, alone, taken)
        for entry in lost
    }
    return {
        name: entry.model_copy(update={"location": found[name]}) if name in found else entry
        for name, entry in state.items()
    }


def _location(
    folder: Folder,
    stage: StageSource,
    entry: Artifact,
    alone: Counter[str | None],
    taken: set[str | None],
) -> str:
    """Return the location of an entry without one: that of its row, else a derived one."""
    rows = {
        where: row
        for row in (stage.contract.outputs if stage.contract else ())
        if (where := _inside(folder, stage, row)) is not None and where not in taken
    }
    names = {where: {snake(_stem(where)), snake(row.label)} for where, row in rows.items()}
    named = [where for where in rows if snake(entry.name) in names[where]]
    if not named and len(rows) == 1 and alone[entry.written_by] == 1:
        named = list(rows)
    return named[0] if named else f"{stage.base}/output/{entry.name}.md"


def _inside(folder: Folder, stage: StageSource, row: Entry) -> str | None:
    """Return the place of a row in the workspace; a folder ends with a slash."""
    where = place(folder, stage.base, row)
    if where is None or leads_out(folder, where):
        return None
    return f"{where}/" if row.location.endswith("/") else where


def _stem(where: str) -> str:
    return posixpath.splitext(posixpath.basename(where.rstrip("/")))[0]
