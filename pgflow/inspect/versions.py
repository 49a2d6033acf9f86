"""Versions and patches: the code that open runs depend on, its workers, and the code you may
remove.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import LiteralString

from pgflow.inspect.question import Question, all_rows, select


@dataclass(frozen=True)
class VersionRow:
    """A version of a workflow. A row of the view ``pgflow.versions``.

    Attributes:
        workflow: Name of the workflow, an old name included.
        version: The version it was given, or the hash of its code.
        pinned: True if its runs stay with it.
        pinned_runs: Open runs that are pinned to it: only workers that have it claim them.
        begun_runs: Other open runs that code may have worked on while this version was served.
        workers: Live workers that have it.
        first_at: Time at which the first worker came that had it; None if none ever did.
        last_at: Time at which the last worker that had it went;
            None if one is there, or none ever was.
        safe_to_remove: True if no open run can depend on it.
    """

    workflow: str
    version: str
    pinned: bool
    pinned_runs: int
    begun_runs: int
    workers: int
    first_at: datetime | None
    last_at: datetime | None
    safe_to_remove: bool


@dataclass(frozen=True)
class PatchRow:
    """A patch. A row of the view ``pgflow.patches``.

    Attributes:
        workflow: Name of the workflow.
        patch: Name of the change.
        new_side: Open runs that took the new side.
        old_side: Open runs that may have passed before the change, and so take the old side.
        marked: Open runs whose journal holds the marker of ``patched()``.
        workers: Live workers whose code names it.
        deprecated: True if that code only deprecates it.
        safe_to_deprecate: True if no open run can take the old side.
        safe_to_remove: True if the call may go too.
    """

    workflow: str
    patch: str
    new_side: int
    old_side: int
    marked: int
    workers: int
    deprecated: bool
    safe_to_deprecate: bool
    safe_to_remove: bool


_VERSIONS: LiteralString = select(
    VersionRow,
    (
        "from pgflow.versions where %s or workflow = any(%s::text[]) order by workflow, "
        "first_at nulls first, version"
    ),
)
_PATCHES: LiteralString = select(
    PatchRow,
    ("from pgflow.patches where %s or workflow = any(%s::text[]) order by workflow, patch"),
)


def list_versions(workflows: Sequence[str] = ()) -> Question[list[VersionRow]]:
    """Ask for the versions of workflows that open runs may need or workers have.
    It reads every open run.

    Args:
        workflows: Names of the only workflows to ask for; empty for all.
    """
    return all_rows(VersionRow, _VERSIONS, not workflows, list(workflows))


def list_patches(workflows: Sequence[str] = ()) -> Question[list[PatchRow]]:
    """Ask for the patches that open runs may need or workers have. It reads every open run.

    Args:
        workflows: Names of the only workflows to ask for; empty for all.
    """
    return all_rows(PatchRow, _PATCHES, not workflows, list(workflows))
