"""A tree: a workflow finds others among the files of one folder (`pgflow.declare.dag.scopes` has
several).

The names of workflows and commands are looked up among names, never joined to a path, so no name
leads out of the tree.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Final

from pgflow.declare.dag.fields import is_plain_name
from pgflow.declare.dag.loading import Loaded, load_file
from pgflow.declare.text.yamlfile import YamlError, decode, read_bytes

MAX_FILES: Final = 20_000
"""Most files of a tree that are looked at."""

_NAME = re.compile(
    rb"^name:[ \t]+(?P<quote>[\"']?)(?P<name>[^\r\n]*?)(?P=quote)[ \t]*(?:#[^\r\n]*)?\r?$",
    re.MULTILINE,
)
_SKIPPED = frozenset({"node_modules", "fixtures", "__pycache__"})


def most_files() -> int:
    """Return the number of files of a tree that are looked at."""
    return MAX_FILES


def workflow_files(root: Path, most: int | None = None) -> Iterator[Path]:
    """Yield the YAML files of a tree, in the order of their names, without hidden folders and
    fixtures.

    A link to a folder is not followed, so that a tree has an end.

    Args:
        root: The tree.
        most: Most files; `MAX_FILES` if not given.
    """
    left = MAX_FILES if most is None else most
    for directory, folders, files in os.walk(root):
        folders[:] = sorted(
            name
            for name in folders
            if name not in _SKIPPED and (not name.startswith(".") or name == ".archon")
        )
        for name in sorted(files):
            if name.endswith((".yaml", ".yml")) and not _is_other(name, folders):
                left -= 1
                if left < 0:
                    return
                yield Path(directory, name)


def _is_other(name: str, folders: list[str]) -> bool:
    """Return True for a YAML file that the original keeps for other purposes."""
    return name.endswith((".stubs.yaml", ".stubs.yml")) or (
        name in ("config.yaml", "config.yml") and "workflows" in folders
    )


def tree_of(path: Path) -> Path:
    """Return the tree that a file belongs to: the nearest folder above it that is called workflows,
    or its own folder.
    """
    return next((parent for parent in path.parents if parent.name == "workflows"), path.parent)


@dataclass
class Tree:
    """The workflows and commands of a tree of files. What has been read once is not read again."""

    root: Path
    loaded: dict[Path, Loaded] = field(default_factory=dict)

    def load(self, path: Path) -> Loaded:
        """Return a file of the tree."""
        if path not in self.loaded:
            self.loaded[path] = load_file(path, path.as_posix())
        return self.loaded[path]

    @cached_property
    def _by_name(self) -> dict[str, list[Path]]:
        """The files by the names that they seem to give: enough to know which ones to read."""
        found: dict[str, list[Path]] = {}
        for path in workflow_files(self.root):
            try:
                data = read_bytes(path)
            except (OSError, YamlError):
                continue
            for match in _NAME.finditer(data):
                found.setdefault(match["name"].decode("utf-8", "replace").strip(), []).append(path)
        return found

    @cached_property
    def file_names(self) -> frozenset[str]:
        """Names of its files."""
        return frozenset(path.name for path in workflow_files(self.root))

    def named(self, name: str) -> list[Loaded]:
        """Return its files whose workflow has that name."""
        files = [self.load(path) for path in dict.fromkeys(self._by_name.get(name, ()))]
        return [loaded for loaded in files if loaded.name == name]

    def shared(self, kind: str) -> list[Path]:
        """Return the folders of commands, or of scripts, beside it: one, and those in it."""
        folder = self.root.parent / kind
        return [folder, *sorted(folder.glob("*/"))]


def command_in(folders: Iterable[Path], name: str) -> str | None:
    """Return the text of a command in the first of some folders that has it.

    Args:
        folders: The folders.
        name: Name of the command.
    """
    for folder in folders if is_plain_name(name) else ():
        try:
            return decode(read_bytes(folder / f"{name}.md"))[0]
        except (OSError, YamlError):
            continue
    return None
