"""Files of a workspace in a run: found, hashed, and written whole or not at all.

A path of a contract or of a message is data. It is opened only below the folder that the run works
in: an absolute path, a ``..`` that leads out and a link that leads out are refused. What is written
is first a hidden file beside its place, and takes the place in one move.
"""

from __future__ import annotations

import hashlib
import os
import posixpath
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

MOST_FILES: Final = 2_000
"""Most files of a folder that are looked at."""

_PLACEHOLDER: Final = re.compile(r"\[[^\[\]]*\]|\{\{?[^{}]*\}?\}|<[^<>]*>|\*+")
_DRIVE: Final = re.compile(r"[A-Za-z]:")
_OWN: Final = frozenset({".pgflow", ".git"})


class Outside(Exception):
    """A path that a run may not open; the message has the reason."""


@dataclass(frozen=True, slots=True)
class Tree:
    """The folder that a run works in."""

    root: str

    def path(self, location: str) -> Path:
        """Return the path of a location below the folder.

        Raises:
            Outside: It leads elsewhere.
        """
        if "\0" in location or not location.strip():
            raise Outside(f"{location!r} is not a path")
        plain = location.replace("\\", "/")
        if plain.startswith(("/", "~")) or _DRIVE.match(plain):
            raise Outside(f"{location!r} is absolute: name a path below {self.root}")
        whole = posixpath.normpath(plain)
        if whole == ".." or whole.startswith("../"):
            raise Outside(f"{location!r} leads out of {self.root}")
        try:
            root = Path(self.root).resolve()
            found = (root / whole).resolve()
        except (OSError, RuntimeError, ValueError) as error:
            raise Outside(f"{location!r} cannot be followed: {error}") from error
        if not found.is_relative_to(root):
            raise Outside(f"{location!r} leads out of {self.root} by a link")
        return found

    def target(self, location: str) -> Path:
        """Return the folder that files are delivered to.

        Raises:
            Outside: It leads elsewhere, or is the run's own.
        """
        found = self.path(location)
        parts = found.relative_to(Path(self.root).resolve()).parts
        if not parts or parts[0] in _OWN or parts[0] == "stages":
            raise Outside(f"cannot deliver to {location!r}: the folder belongs to the workspace")
        if found.exists() and not found.is_dir():
            raise Outside(f"{location!r} is not a folder")
        return found

    def files(self, location: str) -> list[Path]:
        """Return the files at a location, in the order of their paths.

        Args:
            location: A path, a folder, or a pattern.
        """
        try:
            return [path for path in self._found(location) if _is_file(path)][:MOST_FILES]
        except (Outside, OSError):
            return []

    def _found(self, location: str) -> Iterator[Path]:
        root = Path(self.root).resolve()
        pattern = posixpath.normpath(_PLACEHOLDER.sub("*", location))
        if "*" not in pattern:
            path = self.path(pattern)
            yield from _below(path) if path.is_dir() else [path]
            return
        self.path(pattern.replace("*", "x"))
        for path in sorted(root.glob(pattern)):
            if path.resolve().is_relative_to(root) and path.name[0] != ".":
                yield from _below(path) if path.is_dir() else [path]

    def hash(self, location: str) -> str | None:
        """Return the hash of what is at a location; None if nothing is there."""
        found = self.files(location)
        if not found:
            return None
        if len(found) == 1 and not location.endswith("/"):
            return hash_of_file(found[0])
        root = Path(self.root).resolve()
        lines = (f"{path.relative_to(root)}\0{hash_of_file(path)}\n" for path in found)
        return hash_of("".join(lines).encode("utf-8", "surrogateescape"))

    def stamp(self, location: str) -> str:
        """Return a text that changes whenever a location is written to, even with the same
        bytes.
        """
        found = [(path, path.stat()) for path in self.files(location)]
        return " ".join(f"{path.name}:{one.st_ino}:{one.st_mtime_ns}" for path, one in found)

    def text(self, location: str, most_bytes: int) -> str | None:
        """Return the text of a file; None if it is not text, or too long."""
        found = self.files(location)
        if len(found) != 1 or found[0].stat().st_size > most_bytes:
            return None
        try:
            text = found[0].read_bytes().decode("utf-8")
        except UnicodeDecodeError:
            return None
        return None if "\0" in text else text

    def place(self, location: str, name: str) -> str:
        """Return the one path that a text is written to: of a folder a file of that name, of a
        pattern the words of its placeholders.
        """
        whole = f"{location}{_plain(name)}.md" if location.endswith("/") else location
        return _PLACEHOLDER.sub(lambda found: _plain(found.group()) or _plain(name), whole)

    def write(self, location: str, data: bytes) -> None:
        """Write a file of the workspace.

        Raises:
            Outside: The location leads elsewhere.
        """
        path = self.path(location)
        if path.relative_to(Path(self.root).resolve()).parts[:1] in ((".git",), (".pgflow",)):
            raise Outside(f"{location!r} is not the workspace's to write")
        write_whole(path, data)


def write_whole(path: Path, data: bytes) -> None:
    """Write a file so that others see all of it or nothing, whatever becomes of this process."""
    path.parent.mkdir(parents=True, exist_ok=True)
    begin = f".{path.name[:100]}."
    for left in path.parent.iterdir():  # by a process that died
        if left.name.startswith(begin) and left.suffix == ".part":
            left.unlink(missing_ok=True)
    draft = path.with_name(f"{begin}{os.getpid()}.part")
    with draft.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def hash_of(data: bytes) -> str:
    """Return the name of a content."""
    return hashlib.sha256(data).hexdigest()


def hash_of_file(path: Path) -> str:
    """Return the name of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _below(folder: Path) -> Iterator[Path]:
    """Yield every file in a folder that is not hidden, links to elsewhere left out."""
    for above, names, files in os.walk(folder, followlinks=False):
        names[:] = sorted(name for name in names if name[0] != ".")
        for name in sorted(files):
            path = Path(above, name)
            if name[0] != "." and not path.is_symlink():
                yield path


def _is_file(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except OSError:
        return False


def _plain(placeholder: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]+", "-", placeholder).strip("-")
