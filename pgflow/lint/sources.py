"""Sources: the files that ``FILE``, ``FOLDER`` and ``MODULE`` mean to a check, and their texts.
Nothing is imported: a module is found by the folders that Python would look into, and read.
"""

from __future__ import annotations

import ast
import io
import os
import sys
import tokenize
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from pathlib import Path

from pgflow.lint.findings import Unreadable

SKIPPED = frozenset({"__pycache__", "node_modules", "site-packages"})
"""Folders that hold no workflows of your own, beside hidden ones and virtual environments."""


class UnknownTarget(Exception):
    """A file, folder or module was not found; the message names it."""


@dataclass(frozen=True)
class Source:
    """The text of a module.

    Attributes:
        file: Its path, as messages show it.
        text: Text of the file.
        package: Dotted name of the package that it is in; empty if it is in none.
        root: The folder that it is imported from, if it is a file.
    """

    file: str
    text: str
    package: str = ""
    root: Path | None = None
    lines: list[str] = field(default_factory=list, compare=False)

    def __post_init__(self) -> None:
        self.lines.extend(line.rstrip("\r\n") for line in io.StringIO(self.text, newline=None))

    def parse(self) -> ast.Module:
        """Return the syntax tree.

        Raises:
            Unreadable: This is not Python, or not of the version that runs here.
        """
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # warnings on the text are not findings
                return ast.parse(self.text, self.file)
        except SyntaxError as error:
            version = f"{sys.version_info.major}.{sys.version_info.minor}"
            raise Unreadable(
                self.file, error.lineno, error.offset, f"this is not Python {version}: {error.msg}"
            ) from error
        except (RecursionError, MemoryError) as error:
            raise Unreadable(
                self.file, None, None, "its expressions are nested too deeply to be read"
            ) from error
        except ValueError as error:
            raise Unreadable(self.file, None, None, f"this is not Python: {error}") from error


def read_source(path: Path) -> Source:
    """Return the text of a file, in the encoding that it declares.

    Raises:
        Unreadable: It cannot be read, or is in another encoding.
    """
    file = shown(path)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise Unreadable(file, None, None, f"it cannot be read: {error.strerror}") from error
    return Source(file, _decode(content, file), *_package_of(path))


def _decode(content: bytes, file: str) -> str:
    encoding = "utf-8"
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
    except SyntaxError as error:
        if b"coding" in b"".join(content.splitlines()[:2]):
            raise Unreadable(file, 1, None, f"its encoding is not known: {error.msg}") from error
    try:
        return content.decode(encoding)
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        why = (
            f"the byte 0x{content[error.start]:02x} is not {encoding}: "
            "declare the encoding, as in # coding: latin-1"
        )
        raise Unreadable(file, line, None, why) from error


def shown(path: Path) -> str:
    """Return a path as people would type it here."""
    absolute = Path(os.path.abspath(path))  # noqa: PTH100 - resolve() would follow links
    try:
        return str(absolute.relative_to(Path.cwd()))
    except ValueError:
        return str(absolute)


def _package_of(path: Path) -> tuple[str, Path]:
    """Return the package that a file is in, and the folder that this is imported from."""
    parts: list[str] = []
    folder = path.absolute().parent
    while (folder / "__init__.py").is_file() and folder.name not in ("", *SKIPPED):
        parts.insert(0, folder.name)
        folder = folder.parent
    return ".".join(parts), folder


# ---------------------------------------------------------------- from targets to files


def find_files(targets: Sequence[str]) -> list[Path]:
    """Return the files of targets, each once, in the order in which they are named.

    Raises:
        UnknownTarget: A target has none.
    """
    found: dict[str, Path] = {}
    for target in targets:
        for path in _files_of(target):
            found.setdefault(os.path.realpath(path), path)
    return list(found.values())


def _files_of(target: str) -> list[Path]:
    path = Path(target)
    if path.is_dir():
        return _in_folder(path)
    if path.is_file():
        return [path]
    if target.endswith((".py", ".pyi")) or os.sep in target:
        raise UnknownTarget(f"file or folder {target} does not exist")
    return _of_module(target)


def _in_folder(folder: Path) -> list[Path]:
    found = sorted(_python_files(folder))
    if not found:
        raise UnknownTarget(f"{folder} has no Python files")
    return found


def _python_files(folder: Path) -> Iterator[Path]:
    """Files below a folder. Linked folders are left out: they may lead round in a circle."""
    for root, folders, files in os.walk(folder):
        folders[:] = [
            name
            for name in folders
            if not name.startswith(".") and name not in SKIPPED and not _is_environment(root, name)
        ]
        for name in files:
            path = Path(root, name)
            if name.endswith(".py") and not name.startswith(".") and path.is_file():
                yield path


def _is_environment(root: str, name: str) -> bool:
    return Path(root, name, "pyvenv.cfg").exists()


def _of_module(name: str) -> list[Path]:
    """Return the files of a module by its dotted name: one, or those of a package. Packages on the
    way are not imported.
    """
    if not all(part.isidentifier() for part in name.split(".")):
        raise UnknownTarget(f"{name} is neither a file, nor a folder, nor the name of a module")
    spec = _find_spec(name)
    if spec is None:
        raise UnknownTarget(f"file, folder or module {name} does not exist")
    if spec.submodule_search_locations is not None:
        return [
            path for folder in spec.submodule_search_locations for path in _in_folder(Path(folder))
        ]
    if spec.origin is None or not spec.origin.endswith(".py"):
        raise UnknownTarget(f"module {name} has no source in Python")
    return [Path(spec.origin)]


def _find_spec(name: str) -> ModuleSpec | None:
    """Return the spec of a module. Python's own search would import the packages around it."""
    first, *rest = name.split(".")
    spec = PathFinder.find_spec(first, [str(Path.cwd())]) or _find_installed(first)
    for number in range(len(rest)):
        if spec is None or spec.submodule_search_locations is None:
            return None
        spec = PathFinder.find_spec(
            ".".join([first, *rest[: number + 1]]), list(spec.submodule_search_locations)
        )
    return spec


def _find_installed(name: str) -> ModuleSpec | None:
    try:
        return find_spec(name)
    except ValueError:  # what runs as a program has no place
        return None
