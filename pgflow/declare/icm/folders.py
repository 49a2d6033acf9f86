"""The folders of a workspace: finding it, its stages and its files, and staying inside.

A workspace is untrusted data. Files are read only if they are regular files inside it, of moderate
size and in UTF-8; a link that leads elsewhere is an error, never followed. Files that its contracts
*name* are not opened at all, but a path that leads out is reported too. The protocol has one way
out: a collection of workspaces may keep shared folders above them (``/_core/CONVENTIONS.md``), so
the nearest folder above that has ``_core``, ``workspaces`` or ``.git`` is the border for reading.
Nothing may be written outside the workspace itself.
"""

from __future__ import annotations

import os
import posixpath
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Final

CONTRACT: Final = "CONTEXT.md"
IDENTITIES: Final = ("CLAUDE.md", "AGENTS.md")
WORKFLOWS: Final = ("workflow.yaml", "workflow.yml")
MAX_BYTES: Final = 256 * 1024
"""Largest file that is read; a contract has 80 lines by its own conventions."""
MAX_LINES: Final = 5_000
MAX_LINES_OF_ALL: Final = 50_000
MAX_ENTRIES: Final = 5_000
"""Most inputs and outputs of all contracts of a workspace together."""
MAX_STAGES: Final = 500
MAX_FOLDERS: Final = 20_000

BOM: Final = b"\xef\xbb\xbf"
_STAGE = re.compile(r"(?P<number>\d+[a-z]?)[-_ .]")
OF_RUNS: Final = ".pgflow"
"""Folder of the runs in a workspace. It does not belong to the workspace's content."""
SKIPPED: Final = frozenset({".git", "node_modules", "__pycache__", ".venv", OF_RUNS})
"""Folders that are not looked into."""
_BORDERS = ("_core", "workspaces", ".git")
_DRIVE = re.compile(r"[A-Za-z]:[/\\]")


class Unreadable(Exception):
    """A file that is not read, and why."""


@dataclass(frozen=True)
class Folder:
    """A workspace on disk. ``overlay`` holds files that are read instead of those on disk, by their
    path in the workspace.
    """

    root: Path
    overlay: Mapping[str, bytes] = field(default_factory=dict)

    @cached_property
    def real(self) -> Path:
        """The root with its links followed."""
        return self.root.resolve()

    @cached_property
    def border(self) -> Path:
        """The folder beyond which no path of the workspace may lead:
        that of its collection, or its own.
        """
        above = (folder for folder in self.real.parents if folder != Path(self.real.anchor))
        return next(
            (folder for folder in above if any((folder / name).is_dir() for name in _BORDERS)),
            self.real,
        )

    def read(self, name: str) -> bytes:
        """Return the bytes of a file of the workspace.

        Args:
            name: Its path in the workspace, with slashes.

        Raises:
            Unreadable: If it is missing, no regular file, too large, or a link that leads outside.
        """
        if name in self.overlay:
            return self.overlay[name]
        try:
            path = (self.root / name).resolve(strict=True)
            kind = path.stat()
            if not path.is_relative_to(self.real):
                raise Unreadable("is a link that leads out of the workspace, which is not followed")
            if not stat.S_ISREG(kind.st_mode):
                raise Unreadable("is not a regular file")
            if kind.st_size > MAX_BYTES:
                raise Unreadable(f"is larger than {MAX_BYTES // 1024} KiB")
            return path.read_bytes()
        except (OSError, RuntimeError, ValueError) as error:  # a circle of links; a NUL in the name
            raise Unreadable(
                f"cannot be read: {getattr(error, 'strerror', None) or 'no name of a file'}"
            ) from error

    def has(self, name: str) -> bool:
        """Return True if there is such a file or folder, by name."""
        return name in self.overlay or os.path.lexists(self.root / name)

    def has_folder(self, name: str) -> bool:
        """Return True if the workspace has a folder of this name."""
        return (self.root / name).is_dir()

    def workflow(self) -> str | None:
        """Return the name of the workspace's workflow file, if it has one."""
        return next((name for name in WORKFLOWS if self.has(name)), None)

    def identities(self) -> list[str]:
        """Return the existing files of Layer 0."""
        return [name for name in IDENTITIES if self.has(name)]

    def stages(self) -> list[str]:
        """Return the names of the folders below ``stages``, by their numbers.

        Raises:
            Unreadable: If one is a link that leads out of the workspace, or there are too many.
        """
        names = [
            entry.name
            for entry in _entries(self.root / "stages")
            if entry.is_dir() and not entry.name.startswith(".")
        ]
        for name in names:
            if not (self.root / "stages" / name).resolve().is_relative_to(self.real):
                raise Unreadable(
                    f"stages/{name} is a link that leads out of the workspace, "
                    "which is not followed"
                )
        if len(names) > MAX_STAGES:
            raise Unreadable(f"stages/ has more than {MAX_STAGES} folders")
        return sorted(names, key=_order)


def decode(data: bytes) -> str:
    """Return the text of a file: without a byte order mark, with line feeds at the ends of lines.

    Raises:
        Unreadable: It is not text.
    """
    try:
        text = data.removeprefix(BOM).decode("utf-8")
    except UnicodeDecodeError as error:
        raise Unreadable(f"is not UTF-8 text (byte {error.start})") from None
    if "\0" in text:
        raise Unreadable("has a NUL character, so it is not text")
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if text.count("\n") > MAX_LINES:
        raise Unreadable(f"has more than {MAX_LINES} lines")
    return text


def number_of(stage: str) -> str | None:
    """Return the number with which a stage's folder begins (``03-build``: ``03``)."""
    found = _STAGE.match(stage)
    return found["number"] if found else None


def _order(name: str) -> tuple[int, str]:
    """Stages by number, then by name; those without a number come last."""
    digits = re.match(r"\d{1,9}", name)
    return (int(digits[0]) if digits else 10**9, name)


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    """Return the sorted entries of a folder; none if it cannot be read."""
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError:
        return []


# Workspaces ---------------------------------------------------------------------------------------


def is_workflow(text: str) -> bool:
    """Return True if a YAML text looks like a workflow of this family: it has stages, and no nodes.

    Args:
        text: The whole of a file.
    """
    return bool(re.search(r"^stages[ \t]*:", text, re.MULTILINE)) and not re.search(
        r"^nodes[ \t]*:", text, re.MULTILINE
    )


def is_workspace(directory: str | os.PathLike[str]) -> bool:
    """Return True for an ICM workspace: a directory with numbered folders below ``stages`` and a
    file of the family beside or in them.

    Args:
        directory: The directory.
    """
    root = Path(directory)
    files = any((root / name).is_file() for name in (*IDENTITIES, CONTRACT))
    declared = any((root / name).is_file() for name in WORKFLOWS)
    stages = [
        entry for entry in _entries(root / "stages") if entry.is_dir() and number_of(entry.name)
    ]
    if not stages:
        return declared and (files or (root / "stages").is_dir())
    return declared or files or any(Path(stage.path, CONTRACT).is_file() for stage in stages)


def find_workspaces(directory: str | os.PathLike[str]) -> list[Path]:
    """Return every workspace in a directory or below it, in the order of their paths; what stages
    hold is not looked into.

    Args:
        directory: Directory to search. Links are not followed.
    """
    return sorted(path for path in _walk(Path(directory)) if is_workspace(path))


def _walk(top: Path) -> Iterator[Path]:
    """Yield the folders in which a workspace may be."""
    for seen, (folder, names, _files) in enumerate(os.walk(top, followlinks=False)):
        if seen >= MAX_FOLDERS:
            return
        yield Path(folder)
        inside = {"stages"} if is_workspace(folder) else set[str]()
        names[:] = sorted(name for name in names if name not in SKIPPED | inside)


# Paths that contracts name ------------------------------------------------------------------------


def resolve(folder: Folder, base: str, location: str) -> str:
    """Return a path of a contract as seen from the workspace: ``../01-a/output/x.md`` in
    ``stages/02-b`` is ``stages/01-a/output/x.md``.

    Paths are from the stage's folder, as the protocol says. Some authors write them
    from the workspace's root: that is meant where the first part of a path exists there
    and not in the stage.

    Args:
        folder: The workspace.
        base: The folder that the path is from, in the workspace (empty: its root).
        location: The path as it is written.

    Returns:
        The path from the workspace's root (with ``..`` if it leads out), or the path as it is if it
        begins with ``/``, ``~`` or a drive.
    """
    path = location.replace("\\", "/")
    if path.startswith(("/", "~")) or _DRIVE.match(path):
        return path
    first = path.split("/", 1)[0]
    if (
        first not in {".", ".."}
        and "/" in path
        and not folder.has(f"{base}/{first}")
        and (first == "stages" or folder.has(first))
    ):
        base = ""
    return posixpath.normpath(posixpath.join(base, path)) if path else base


def leads_out(folder: Folder, resolved: str) -> bool:
    """Return True if a resolved path leads out of the workspace, by its name or through a link.

    Args:
        folder: The workspace.
        resolved: Answer of `resolve`.
    """
    if resolved.startswith(("/", "~", "../")) or resolved == ".." or _DRIVE.match(resolved):
        return True
    return _beyond(folder.real / resolved, folder.real)


def leads_beyond_border(folder: Folder, resolved: str) -> bool:
    """Return True if a path that leads out leads further than the workspace's collection, in which
    ``/`` is its own folder.

    Args:
        folder: The workspace.
        resolved: Answer of `resolve`.
    """
    border = folder.border
    if resolved.startswith("/"):
        inside = posixpath.normpath(resolved.lstrip("/"))
        return inside.startswith("..") or _beyond(border / inside, border)
    return not resolved.startswith("~") and (
        bool(_DRIVE.match(resolved)) or _beyond(folder.real / resolved, border)
    )


def _beyond(path: Path, border: Path) -> bool:
    """Return True if a path, its links followed, is not below the border, or cannot be followed."""
    try:
        return not path.resolve().is_relative_to(border)
    except (OSError, RuntimeError, ValueError):
        return True
