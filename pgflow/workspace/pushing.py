"""A push of a workspace's files to a branch of a remote, and how it is taken back."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

import pgflow
from pgflow.effects import Absent, Confirmed, effect
from pgflow.workspace.folder import Workspace, quoted
from pgflow.workspace.git import Git
from pgflow.workspace.places import WorkspaceError

REFERENCES = "refs/agent-push/"
"""Folder of the references of pushes, each from before it begins: what is sent, what was there."""


class PushRefused(WorkspaceError):
    """The remote refused: the branch has moved on, or may not be written."""


@dataclass(frozen=True)
class Pushed:
    """A push that is done.

    Attributes:
        remote: Name or address.
        branch: Branch of the remote.
        before: Commit that it was at; None if there was no such branch.
        after: Commit that it is at.
    """

    remote: str
    branch: str
    before: str | None
    after: str


@effect(risk="compensable", raises=[PushRefused])
def push(ws: Workspace, remote: str, branch: str, message: str) -> Pushed:
    """Commit the files of a workspace onto the commit that it began with, and push that.

    An ``@effect``: if the reply is lost, the remote is asked where the branch is. It never forces:
    a branch that has moved on refuses the push. The compensation sets the branch back to where it
    was, if it still is where the push has put it. Ask at a gate before the push: what others have
    seen cannot be taken back.

    Args:
        ws: The workspace.
        remote: Name or address of the remote.
        branch: Branch of the remote, made if there is none.
        message: Of the commit.

    Returns:
        The push that is done.

    Raises:
        PushRefused: The remote refused.
    """
    wanted = _prepare(ws, remote, branch, message)
    done = ws.git.run(
        "push",
        "--porcelain",
        "--quiet",
        "--end-of-options",
        remote,
        f"{wanted.after}:refs/heads/{branch}",
        may=(1,),
    )
    if done.returncode != 0:
        printed = done.stdout.decode(errors="replace") + done.stderr.decode(errors="replace")
        if any(line.startswith("!") for line in printed.splitlines()):
            raise PushRefused(f"{remote} refuses branch {branch}: {printed.strip()}")
        raise WorkspaceError(f"git push to {remote}: {printed.strip()}")
    return wanted


@push.settle
def _(ws: Workspace, remote: str, branch: str, message: str) -> Confirmed[Pushed] | Absent:
    wanted = _prepare(ws, remote, branch, message)
    return Confirmed(wanted) if find_branch(ws.git, remote, branch) == wanted.after else Absent()


@push.compensate
def _(done: Pushed, ws: Workspace, remote: str, branch: str, message: str) -> None:  # noqa: ARG001
    if find_branch(ws.git, remote, branch) == done.before:
        return
    ws.git.run(
        "push",
        "--quiet",
        f"--force-with-lease=refs/heads/{branch}:{done.after}",
        "--end-of-options",
        remote,
        f"{done.before or ''}:refs/heads/{branch}",
    )


def find_branch(git: Git, remote: str, branch: str) -> str | None:
    """Asks a remote where a branch is; None if it has none."""
    listed = git.ask("ls-remote", "--end-of-options", remote, f"refs/heads/{branch}")
    return listed.split()[0] if listed else None


def _prepare(ws: Workspace, remote: str, branch: str, message: str) -> Pushed:
    """Writes down what is sent and what was there, once a key: each try sends the same commit."""
    git = ws.git
    git.run("check-ref-format", f"refs/heads/{branch}")
    reference = REFERENCES + quoted(pgflow.idempotency_key())
    found = git.find(reference)
    if found is None:
        tip = ws.save()
        if tip is None:
            raise PushRefused(f"{ws.path} has no files: there is nothing to push")
        base = ws.base()
        sent = git.commit(git.tree_of(tip.commit), message, [base] if base else [])
        record = Pushed(remote, branch, find_branch(git, remote, branch), sent)
        found = git.commit(git.tree_of(sent), json.dumps(asdict(record)), [sent])
        git.move(reference, found, None, "push")
    return Pushed(**json.loads(git.ask("log", "-1", "--format=%B", found)))
