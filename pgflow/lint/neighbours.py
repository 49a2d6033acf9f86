"""Neighbours: modules of the same project that a module imports from, read so that a step is known
as one where it is called.

They are read as text too, at the first use of a name of theirs, and only from the folder that the
module itself is imported from. Installed packages are not read.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

from pgflow.lint.definitions import Declared, Definitions
from pgflow.lint.findings import Unreadable
from pgflow.lint.names import HERE, Imported, Names
from pgflow.lint.sources import read_source
from pgflow.lint.vocabulary import EXPORTED

MAX_HOPS = 8
"""Times that a name may be handed on from module to module."""


@dataclass(frozen=True)
class Neighbour:
    """Another module."""

    names: Names
    definitions: Definitions


class Neighbours:
    """The modules of one folder, by their dotted names.

    Args:
        root: The folder that they are imported from.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._read: dict[str, Neighbour | None] = {}
        self._is_here: dict[str, bool] = {}
        self._translated: dict[str, str] = {}

    def translate(self, path: str) -> str:
        """Return the target of a dotted path: follow it through modules of the project that hand a
        name on.
        """
        if not self._has(path.partition(".")[0]):
            return path
        found = self._translated.get(path)
        if found is None:
            found = self._translated[path] = self._follow(path)
        return found

    def declared(self, path: str) -> Declared | None:
        """Return the workflow or step that another module declares under a dotted path."""
        if not self._has(path.partition(".")[0]):
            return None
        module, name = self._split(path)
        neighbour = self._open(module) if module else None
        return neighbour.definitions.declared.get(name) if neighbour is not None else None

    def _has(self, name: str) -> bool:
        if name not in self._is_here:
            is_module = name.isidentifier() and (
                _file(self._root, name) is not None or (self._root / name).is_dir()
            )
            self._is_here[name] = is_module
        return self._is_here[name]

    def _follow(self, path: str) -> str:
        for _ in range(MAX_HOPS):
            onward = self._hand_on(path)
            if onward is None or onward == path:
                return path
            path = onward
        return path

    def _hand_on(self, path: str) -> str | None:
        module, rest = self._split(path)
        neighbour = self._open(module) if module else None
        first, _, further = rest.partition(".")
        if neighbour is None or not first:
            return None
        return _stands_for(
            neighbour,
            first.replace("()", ""),
            f"{'()' if first.endswith('()') else ''}{'.' if further else ''}{further}",
        )

    def _split(self, path: str) -> tuple[str, str]:
        """Return the longest beginning of a path that is a module, and the rest."""
        parts = path.split(".")
        for at in range(len(parts) - 1, 0, -1):
            if self._file_of(parts[:at]) is not None:
                return ".".join(parts[:at]), ".".join(parts[at:])
        return "", path

    def _file_of(self, parts: list[str]) -> Path | None:
        return (
            _file(self._root.joinpath(*parts[:-1]), parts[-1])
            if all(part.isidentifier() for part in parts)
            else None
        )

    def _open(self, module: str) -> Neighbour | None:
        if module not in self._read:
            self._read[module] = None  # while it is being read: modules may import each other
            self._read[module] = self._parse(module)
        return self._read[module]

    def _parse(self, module: str) -> Neighbour | None:
        file = self._file_of(module.split("."))
        if file is None:
            return None
        try:
            source = read_source(file)
            tree = source.parse()
            names = Names(tree, source.package, EXPORTED)
            return Neighbour(names, Definitions(names))
        except (Unreadable, RecursionError):
            return None


def _file(folder: Path, name: str) -> Path | None:
    for path in (folder / f"{name}.py", folder / name / "__init__.py"):
        if path.is_file():
            return path
    return None


def _stands_for(neighbour: Neighbour, name: str, further: str) -> str | None:
    """Return the path that a name of another module refers to, with the attributes after it here;
    None if it is defined there.
    """
    bindings = neighbour.names.module.bindings.get(name, [])
    if len(bindings) != 1:
        return None
    binding = bindings[0]
    if isinstance(binding, Imported):
        return binding.dotted + further
    value = getattr(binding, "value", None)
    path = neighbour.names.resolve(value) if isinstance(value, ast.expr) else None
    return path + further if path is not None and not path.startswith(HERE) else None
