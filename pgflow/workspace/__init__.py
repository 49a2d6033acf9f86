"""Workspaces: folders that coding agents work in, with a journal of their files in git.

A change of files is an effect whose ledger is the repository's own: the files after the act become
a commit under ``refs/agent/<run>``, and that commit decides whether it was done. It is written
between the act and the unit of the journal, so that after a crash the repository decides: if the
commit is there, the act is not repeated; if not, its leftovers are put aside, and it is done anew.

``Workspace`` works without a database too. ``change`` makes effects of it, ``lease`` keeps other
runs out of a folder, and ``classify`` returns how far a command of the shell may reach.
"""

from typing import TYPE_CHECKING

from pgflow._lazy import importer

if TYPE_CHECKING:
    from pgflow.workspace import sync as sync
    from pgflow.workspace.commands import Command, Reach, classify
    from pgflow.workspace.durable import NotChanged, SyncFileEffect, change, lease
    from pgflow.workspace.folder import Change, Workspace
    from pgflow.workspace.git import Conflict, Fenced, Moved
    from pgflow.workspace.places import WorkspaceError
    from pgflow.workspace.pushing import Pushed, PushRefused, push
    from pgflow.workspace.snapshots import Snapshot
else:
    __getattr__ = importer(
        globals(),
        {
            "Change": "pgflow.workspace.folder",
            "Command": "pgflow.workspace.commands",
            "Conflict": "pgflow.workspace.git",
            "Fenced": "pgflow.workspace.git",
            "Moved": "pgflow.workspace.git",
            "NotChanged": "pgflow.workspace.durable",
            "PushRefused": "pgflow.workspace.pushing",
            "Pushed": "pgflow.workspace.pushing",
            "Reach": "pgflow.workspace.commands",
            "Snapshot": "pgflow.workspace.snapshots",
            "SyncFileEffect": "pgflow.workspace.durable",
            "Workspace": "pgflow.workspace.folder",
            "WorkspaceError": "pgflow.workspace.places",
            "change": "pgflow.workspace.durable",
            "classify": "pgflow.workspace.commands",
            "lease": "pgflow.workspace.durable",
            "push": "pgflow.workspace.pushing",
        },
    )

__all__ = [
    "Change", "Command", "Conflict", "Fenced", "Moved", "NotChanged", "PushRefused", "Pushed",
    "Reach", "Snapshot", "SyncFileEffect", "Workspace", "WorkspaceError", "change", "classify",
    "lease", "push", "sync",
]  # fmt: skip
