"""Worktrees: a run works in a git worktree of its own, on a branch of its own.

A worktree begins with the last commit of the repository that the run was started in. It is below
that folder, in ``.pgflow/worktrees``, where no other tree of the repository sees it, and its branch
is ``pgflow/RUN``. It is kept when the run fails, and removed when the run succeeds and nothing in
it is uncommitted; its branch is kept as long as it has commits of its own. Files that the run keeps
beside its work (``.pgflow/runs`` and ``.pgflow/state``) stay in the folder that it was started in.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pgflow
from pgflow.declare.durable.folders import Folders
from pgflow.declare.durable.frozen import Settings
from pgflow.declare.durable.results import NodeFailed, WorkflowFailed
from pgflow.declare.graph import Graph
from pgflow.workspace.git import Git
from pgflow.workspace.places import WorkspaceError


def wants_one(graph: Graph, settings: Settings) -> bool:
    """Return True for a run that works in a worktree of its own."""
    policy = graph.options.get("worktree")
    asks = isinstance(policy, Mapping) and policy.get("enabled") is True
    return settings.worktree or (asks and "worktree" not in settings.ignored)


def why_none(folder: str | os.PathLike[str]) -> str:
    """Return the reason why no worktree can be made of a folder; empty if one can."""
    try:
        has_commit = Git(str(folder)).find("HEAD") is not None
    except WorkspaceError as error:
        return str(error)
    return "" if has_commit else f"{folder} is in no git repository that has a commit"


async def entered(settings: Settings) -> Settings:
    """Return the settings of a run in its own worktree. Make the worktree if it does not exist.

    Args:
        settings: Its settings, in the folder that it was started in.

    Raises:
        WorkflowFailed: The folder is not in a repository, or git refuses.
    """
    home, key = settings.home or settings.cwd, pgflow.run_info().key

    def make() -> str:
        try:
            return make_worktree(settings.cwd, Folders(home, key))
        except (WorkspaceError, OSError) as error:
            raise NodeFailed(f"no worktree: {error}") from error

    try:
        folder = await pgflow.call("worktree", make, retries=2, raises=[NodeFailed])
    except NodeFailed as error:
        raise WorkflowFailed(str(error)) from error
    return settings.model_copy(
        update={"cwd": folder, "home": home, "worktree": False, "lease": "share"}
    )


async def left(settings: Settings) -> None:
    """Remove the worktree of a run that succeeded, if nothing in it would be lost."""
    folders = Folders(settings.home, pgflow.run_info().key)

    def remove() -> bool:
        return remove_worktree(folders)

    await pgflow.call("worktree:end", remove, retries=2)


def make_worktree(folder: str, folders: Folders) -> str:
    """Make the worktree of a run, once; answer the folder in it that the given one is outside.

    Raises:
        WorkspaceError: Git refuses.
    """
    folders.make()
    git, place, branch = Git(folder), folders.worktree, folders.branch
    top = git.place.top or git.place.common
    if not git.has_worktree(place):
        git.place.refuse_links(f"refs/heads/{branch}")
        if git.find(f"refs/heads/{branch}") is not None:
            git.add_worktree(place, branch)
        else:
            git.add_worktree(place, "HEAD", "-b", branch)
    return str(place / os.path.relpath(os.path.realpath(folder), top))


def is_clean(place: Path) -> bool:
    """Return True if nothing in a worktree is uncommitted."""
    return Git(str(place)).is_clean()


def remove_worktree(folders: Folders) -> bool:
    """Remove the worktree of a run, and its branch if that has no commits of its own.

    Returns:
        False if something in it is uncommitted: it is kept.

    Raises:
        WorkspaceError: Git refuses.
    """
    place = folders.worktree
    if not (place / ".git").exists():
        return True
    if not is_clean(place):
        return False
    git = Git(str(Git(str(place)).common_folder()))
    git.remove_worktree(place)
    if not has_own_commits(git, folders.branch):
        git.run("branch", "--quiet", "-D", folders.branch)
    return True


def has_own_commits(git: Git, branch: str) -> bool:
    """Return True if a branch has commits that nothing else has.

    Args:
        git: Git in the folder of the repository itself.
        branch: Its name.
    """
    others = [f"--exclude={branch}", "--branches", "--remotes", "--tags"]
    command = ("rev-list", "--max-count=1", f"refs/heads/{branch}", "--not", "HEAD", *others)
    return bool(git.ask(*command))
