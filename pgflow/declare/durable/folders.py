"""Folders of a run, and the names of files in them."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")


@dataclass(frozen=True)
class Folders:
    """Folders of a run, below its working folder. Every program asks for them, so each name is
    made once.
    """

    cwd: str
    key: str

    @cached_property
    def of_run(self) -> Path:
        """The run's own folder."""
        return Path(self.cwd, ".pgflow", "runs", _file_name(self.key))

    @cached_property
    def spills(self) -> Path:
        """Folder of the run's outputs that are too long for the journal."""
        return self.of_run / "spills"

    @cached_property
    def worktree(self) -> Path:
        """The run's own worktree, if it has one."""
        return Path(self.cwd, ".pgflow", "worktrees", quoted_key(self.key).replace(".", "%2e"))

    @cached_property
    def branch(self) -> str:
        """The branch of that."""
        return f"pgflow/{self.worktree.name}"

    @cached_property
    def artifacts(self) -> str:
        """``$ARTIFACTS_DIR``."""
        return str(self.of_run / "artifacts")

    @cached_property
    def state(self) -> str:
        """``$STATE_DIR``, which outlives the run."""
        return str(Path(self.cwd, ".pgflow", "state"))

    @cached_property
    def _ignored(self) -> Path:
        return Path(self.cwd, ".pgflow", ".gitignore")

    def of_conversation(self, workflow: str, name: str) -> Path | None:
        """Folder of the runs of a workflow in one conversation; None for a conversation without a
        name.
        """
        if not name:
            return None
        scopes = Path(self.cwd, ".pgflow", "scopes")
        return scopes.joinpath(*(_file_name(word) for word in (workflow, name)))

    def make(self, artifacts: str = "") -> None:
        """Make those that programs write to, and keep them out of the working tree's history.

        Args:
            artifacts: Folder of the run's artifacts, if that is not its own.
        """
        for folder in (artifacts or self.artifacts, self.state):
            if not os.path.isdir(folder):  # noqa: PTH112 - asked before each program of the run
                os.makedirs(folder, exist_ok=True)  # noqa: PTH103
        self.hide()

    def hide(self) -> None:
        """Keep what belongs to runs out of the working tree's history.

        Raises:
            OSError: The working folder is not there, or may not be written to.
        """
        if not os.path.exists(self._ignored):  # noqa: PTH110 - as above
            self._ignored.parent.mkdir(exist_ok=True)
            self._ignored.write_text("*\n")


def quoted_key(key: str) -> str:
    """Return a key as the name of a file."""
    return _UNSAFE.sub(lambda found: f"%{ord(found.group()):02x}", key)


def _file_name(word: str) -> str:
    """Return the same for a folder, which may not be ``..`` either."""
    name = quoted_key(word)
    return name if name.strip(".") else f"%{name}"


def write_whole(path: Path, data: bytes) -> None:
    """Write a file that is never seen in part."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_bytes(data)
    draft.rename(path)
