"""Scopes: the folders in which a workflow finds others, and the commands and scripts that it names.

The nearest is the file's own tree. After it come the folders named for the run, those of the user
(``~/.archon``), and those of installed packages: entry points of the group ``pgflow.workflows``,
each the name of a module with a folder ``workflows`` beside its code. A file of a nearer scope
hides all files of its name in later scopes, as in the original.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from functools import lru_cache
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from pgflow.declare.dag.loading import Loaded
from pgflow.declare.dag.shelf import Tree, command_in, tree_of

GROUP: Final = "pgflow.workflows"
"""Entry points of this group bring workflows along."""

_FOLDER: Final = "workflows"


class Scopes:
    """The workflows and commands of several trees, the nearest first.

    Args:
        roots: Folders of the trees.
    """

    def __init__(self, roots: Iterable[str | os.PathLike[str]]) -> None:
        self.trees = [Tree(root) for root in _distinct(roots)]

    def workflow(self, name: str) -> Loaded | None:
        """Return the workflow of that name in the nearest scope that has one; None if none has
        exactly one.
        """
        hidden: set[str] = set()
        for number, tree in enumerate(self.trees):
            if number:
                hidden |= self.trees[number - 1].file_names
            named = [one for one in tree.named(name) if Path(one.file).name not in hidden]
            if named:
                return named[0] if len(named) == 1 else None
        return None

    def command(self, name: str, file: str) -> str | None:
        """Return the text of a command: of the workflow's own folder, or of the commands beside a
        tree, one folder deep.
        """
        shared = (folder for tree in self.trees for folder in tree.shared("commands"))
        return command_in([Path(file).parent / "commands", *shared], name)

    def script_folders(self) -> Iterator[Path]:
        """Yield the folders in which a named script may be, the nearest first."""
        for tree in self.trees:
            yield tree.root / "scripts"
            yield from tree.shared("scripts")


def scopes_of(file: str | os.PathLike[str], search: Iterable[str] = ()) -> Scopes:
    """Return the scopes of a file: its own tree, and these.

    Args:
        file: The file.
        search: Folders that are searched after it: `search_path`.
    """
    return Scopes([tree_of(Path(file).absolute()), *search])


def home() -> Path:
    """Return the user's own folder of workflows and config."""
    return Path(os.environ.get("ARCHON_HOME") or "~/.archon").expanduser()


def search_path(named: Iterable[str | os.PathLike[str]] = ()) -> tuple[str, ...]:
    """Return the folders to search after a file's own tree: those named, the user's, and those of
    installed packages.

    Args:
        named: Folders named for the run.
    """
    found = [*map(Path, named), home() / _FOLDER, *_bundled()]
    return tuple(str(folder.absolute()) for folder in _distinct(found) if folder.is_dir())


@lru_cache(maxsize=1)
def _bundled() -> tuple[Path, ...]:
    """Return the folders of installed packages, in the order of their names."""
    points = sorted(entry_points(group=GROUP), key=lambda point: point.name)
    specs = (find_spec(point.value) for point in points)
    return tuple(
        Path(spec.origin).parent / _FOLDER for spec in specs if spec is not None and spec.origin
    )


def _distinct(roots: Iterable[str | os.PathLike[str]]) -> list[Path]:
    """Return the roots without those that are there twice."""
    found: dict[str, Path] = {}
    for root in roots:
        found.setdefault(os.path.realpath(root), Path(root))
    return [*found.values()]
