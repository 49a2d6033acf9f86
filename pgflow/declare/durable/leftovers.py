"""Leftovers: what runs that have ended leave in the folder that they were started in.

A run has a folder of its own, and perhaps a worktree and a branch. Their names are made of its key,
so the keys are read from the names. Two keys may make one name, which is why one name may have
several keys here. Nothing that a symbolic link leads to is looked at or removed, and what git would
lose is kept unless it is asked for.
"""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeAlias

from pgflow.declare.durable.folders import Folders
from pgflow.declare.durable.worktrees import has_own_commits, is_clean
from pgflow.workspace.git import Git
from pgflow.workspace.places import WorkspaceError

Why: TypeAlias = Literal["", "uncommitted", "commits"]
"""Reason why a part of a leftover is kept: a worktree with something uncommitted, or a branch with
commits of its own.
"""

_MOST_KEYS: Final = 64
"""Most keys that are read from one name; a name with more is left alone."""

_QUOTED = re.compile(r"%([0-9a-f]{2,6})")


@dataclass(frozen=True)
class Leftover:
    """Parts of a run that are there.

    Attributes:
        key: Key of the run.
        run_folder: The run's own folder.
        worktree: Its worktree.
        branch: Its branch.
    """

    key: str
    run_folder: Path | None = None
    worktree: Path | None = None
    branch: str | None = None

    @property
    def parts(self) -> set[Path | str]:
        """Those that are there."""
        return {part for part in (self.run_folder, self.worktree, self.branch) if part is not None}


class Leftovers:
    """Finds and removes what runs have left in one folder.

    Args:
        folder: The folder that they were started in.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = os.path.realpath(folder)
        self._git = _repository(self.folder)
        self._branches = _branches(self._git)

    def names(self) -> list[str]:
        """Return the names that runs have made: of folders, worktrees and branches."""
        own = Path(self.folder, ".pgflow")
        found = set(self._branches)
        for parent in (own / "runs", own / "worktrees"):
            if _is_folder(own) and _is_folder(parent):
                found |= {path.name for path in parent.iterdir() if _is_folder(path)}
        return sorted(found)

    def find(self, key: str) -> Leftover:
        """Return what the run of a key has left; no part if nothing."""
        folders = Folders(self.folder, key)
        is_branch = folders.worktree.name in self._branches
        return Leftover(
            key,
            _found(folders.of_run),
            _found(folders.worktree),
            folders.branch if is_branch else None,
        )

    def touched(self, leftover: Leftover) -> float:
        """Return the time at which a file of a leftover was last changed; now for a mere branch."""
        paths = [path for path in (leftover.run_folder, leftover.worktree) if path is not None]
        times = [path.lstat().st_mtime for top in paths for path in (top, *top.rglob("*"))]
        return max(times, default=float("inf"))

    def why_kept(self, leftover: Leftover) -> Why:
        """Return the reason to keep a leftover without force; empty if it may be removed.

        Raises:
            WorkspaceError: Git fails.
        """
        place = leftover.worktree
        if place is not None and not ((place / ".git").is_file() and is_clean(place)):
            return "uncommitted"
        if leftover.branch is None or self._git is None:
            return ""
        return "commits" if has_own_commits(self._git, leftover.branch) else ""

    def remove(self, leftover: Leftover, *, force: bool) -> set[Path | str]:
        """Remove a leftover, but for what git would lose.

        Args:
            leftover: The parts of one run.
            force: True to remove that, too.

        Returns:
            The parts that were removed.

        Raises:
            WorkspaceError: Git refuses.
            OSError: A file cannot be removed.
        """
        why = "" if force else self.why_kept(leftover)
        if why == "uncommitted":
            return set()
        if leftover.worktree is not None:
            self._remove_worktree(leftover.worktree)
        gone = leftover.parts
        if leftover.branch is not None and why == "commits":
            gone.remove(leftover.branch)
        elif leftover.branch is not None and self._git is not None:
            self._git.run("branch", "--quiet", "-D", leftover.branch)
        if leftover.run_folder is not None:
            shutil.rmtree(leftover.run_folder)
        return gone

    def _remove_worktree(self, place: Path) -> None:
        """Remove a worktree; git refuses one that is locked, or another repository's."""
        if (place / ".git").exists():
            git = self._git or Git(str(place))
            git.remove_worktree(place)
        else:
            shutil.rmtree(place)


def keys_of(name: str) -> list[str]:
    """Return the keys of which runs make a name; none for what is not theirs.

    Args:
        name: Name of a run's folder, worktree or branch.
    """
    read = _read(name)
    if len(read) > _MOST_KEYS:
        return []
    keys = []
    for key in (name[1:], *read):
        folders = Folders("", key)
        if key and name in (folders.of_run.name, folders.worktree.name) and key not in keys:
            keys.append(key)
    return keys


def _read(name: str) -> list[str]:
    """Read a name in the ways in which its quoted characters can be read; from its end, so that a
    hostile one takes no longer than others.
    """
    read = {len(name): [""]}
    for place in reversed(range(len(name))):
        if name[place] != "%":
            read[place] = [name[place] + rest for rest in read[place + 1]]
            continue
        found = _QUOTED.match(name, place)
        digits = "" if found is None else found[1]
        read[place] = [
            chr(code) + rest
            for size in range(2, len(digits) + 1)
            if 0 < (code := int(digits[:size], 16)) < 0xD800 or 0xDFFF < code <= 0x10FFFF
            for rest in read[place + 1 + size]
        ][: _MOST_KEYS + 1]
    return read[0]


def _found(path: Path) -> Path | None:
    """Return a folder that no symbolic link leads to, from ``.pgflow`` on; None if it is not
    one.
    """
    return path if all(map(_is_folder, (path, path.parent, path.parent.parent))) else None


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _repository(folder: str) -> Git | None:
    """Return the repository that a folder is in, None if it is in none."""
    try:
        return Git(str(Git(folder).common_folder()))
    except WorkspaceError:
        return None


def _branches(git: Git | None) -> frozenset[str]:
    if git is None:
        return frozenset()
    listed = git.ask("for-each-ref", "--format=%(refname:lstrip=3)", "refs/heads/pgflow/")
    return frozenset(listed.split("\n")) - {""}
