"""The family of a file, and the way from any path to a verdict and a graph.

The name decides: ``.yaml`` and ``.yml`` are DAGs, ``.sop.md`` and ``.script.md`` are Agent SOPs, a
directory with stages is an ICM workspace, and so is the ``workflow.yaml`` inside one. Any other
directory means everything found in it. Bad content and missing paths do not raise: both are
problems of a verdict, so that you can go through a thousand files one by one.

A family's modules are imported when the first file of it is read.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

from pgflow.declare.graph import Family, Graph
from pgflow.declare.graph.problems import Problem, Verdict
from pgflow.declare.suffixes import SOP_SUFFIXES, STUBS_SUFFIXES, YAML_SUFFIXES
from pgflow.errors import InvalidWorkflow

_NOT_LOOKED_INTO: Final = frozenset({"node_modules", "fixtures", "__pycache__"})
_LAYOUT: Final = (".archon", "workflows")
"""Folders with the DAGs of a repository; beside them, YAML is something else."""

_SOP_TEXT: Final = re.compile(r"^## Steps[ \t]*$", re.MULTILINE)
_LARGEST_LOOK: Final = 1 << 20


PathLike = str | os.PathLike[str]


def validate(*paths: PathLike, search: Iterable[PathLike] = ()) -> Iterator[Verdict]:
    """Says of each file what is wrong with it.

    Args:
        *paths: Files, ICM workspaces, or directories in which all of them are looked for.
        search: Folders in which DAGs find the workflows that they include, after their own tree.

    Yields:
        A verdict a file or workspace, as soon as it is known. A path that is not there, cannot be
        read or holds no workflow gets one too.
    """
    folders = _searched(search)
    for path in paths:
        yield from _read(os.fspath(path), folders)


def discover_workflows(directory: PathLike, *, search: Iterable[PathLike] = ()) -> list[Verdict]:
    """Everything found in a directory and below it, usable or not.

    Args:
        directory: Directory to search. Links to other directories are not followed.
        search: As for `validate`.

    Returns:
        Verdicts in the order of their paths; those without errors have a graph.
    """
    return list(_inside(os.fspath(directory), _searched(search)))


def parse_workflow(source: PathLike, *, search: Iterable[PathLike] = ()) -> Graph:
    """Compiles one workflow.

    Args:
        source: The path of a file or an ICM workspace; or, if it has more than one line, the text
            of a file.
        search: As for `validate`.

    Returns:
        The graph.

    Raises:
        InvalidWorkflow: It cannot be used; the error's ``problems`` say why, with line and column.
    """
    is_text = isinstance(source, str) and "\n" in source
    verdict = read_text(str(source)) if is_text else read_one(source, search=search)
    if verdict.graph is None or not verdict.ok:
        wrong = (*verdict.errors, *verdict.unresolved)
        raise InvalidWorkflow(_first_of(verdict.file, wrong), (*wrong, *verdict.warnings))
    return verdict.graph


def read_one(path: PathLike, *, search: Iterable[PathLike] = ()) -> Verdict:
    """Return the verdict on one file or workspace; a directory of several is not one.

    Args:
        path: Its path.
        search: As for `validate`.
    """
    verdicts = _read(os.fspath(path), _searched(search))
    first = next(verdicts)
    if next(verdicts, None) is None:
        return first
    return _unreadable(os.fspath(path), "Several workflows are found here", "name one of them")


def read_text(text: str) -> Verdict:
    """Return the verdict on the text of a file, whose family is found in it: steps in Markdown,
    stages in YAML, else a DAG.

    Args:
        text: All of it.
    """
    from pgflow.declare import dag, icm, sop

    if _SOP_TEXT.search(text):
        return sop.read_text(text, "text.sop.md")
    return (
        icm.read_text(text, "text.yaml")
        if icm.is_workflow(text)
        else dag.read_text(text, "text.yaml")
    )


def _first_of(file: str, wrong: tuple[Problem, ...]) -> str:
    """Return the first error in a line, and how many there are besides."""
    if not wrong:
        return f"{file}: nothing can be made of it"
    first, more = wrong[0], len(wrong) - 1
    place = "".join(f":{number}" for number in (first.line, first.column) if number is not None)
    return f"{file}{place}: {first.message}" + (
        f" (and {more} more error{'s' if more > 1 else ''})" if more else ""
    )


# From paths to families ---------------------------------------------------------------------------


def _searched(named: Iterable[PathLike]) -> tuple[str, ...]:
    from pgflow.declare.dag.scopes import search_path

    return search_path(named)


def _read(path: str, search: tuple[str, ...]) -> Iterator[Verdict]:
    """Yield the verdicts of a path: at least one."""
    try:
        mode = os.stat(path).st_mode  # noqa: PTH116 - a NUL in a path is a ValueError here, and nothing later
    except (OSError, ValueError) as error:
        yield _unreadable(path, f"Cannot be read: {getattr(error, 'strerror', None) or error}")
        return
    if stat.S_ISDIR(mode):
        yield from _directory(path, search)
    elif stat.S_ISREG(mode):
        yield _file(path, search)
    else:
        yield _unreadable(path, "Not a file")


def _directory(path: str, search: tuple[str, ...]) -> Iterator[Verdict]:
    from pgflow.declare import icm

    if icm.is_workspace(path):
        yield icm.read_workspace(path)
        return
    found = False
    for verdict in _inside(path, search):
        found = True
        yield verdict
    if not found:
        yield _unreadable(
            path,
            "No workflow is found here",
            f"workflows end in {', '.join((*YAML_SUFFIXES, *SOP_SUFFIXES))}",
        )


def _file(path: str, search: tuple[str, ...]) -> Verdict:
    """Return the verdict on a regular file, by its name."""
    reader = _reader_of(path, search)
    if reader is None:
        return _unreadable(
            path,
            "Not a workflow",
            f"workflows end in {', '.join((*YAML_SUFFIXES, *SOP_SUFFIXES))}, or are ICM workspaces",
        )
    return reader(path)


def family_of(path: str | os.PathLike[str]) -> Family | None:
    """Return the family that a file belongs to, by its name and, for YAML with stages in it, by its
    text.

    Args:
        path: The file.

    Returns:
        ``"dag"``, ``"sop"`` or ``"icm"``; None if it is none of them.
    """
    name = os.fspath(path).lower()
    if name.endswith(SOP_SUFFIXES):
        return "sop"
    if name.endswith(YAML_SUFFIXES):
        return "icm" if _is_icm(Path(path)) else "dag"
    return None


def _is_icm(path: Path) -> bool:
    """Return True if a YAML file is the workflow file of a workspace:
    by its place, or by its content.
    """
    from pgflow.declare import icm

    if not os.path.isfile(path):  # noqa: PTH113 - a pipe would block, a NUL is not a path
        return False
    if path.name in ("workflow.yaml", "workflow.yml") and icm.is_workspace(path.parent):
        return True
    try:
        with path.open("rb") as opened:
            text = opened.read(_LARGEST_LOOK).decode("utf-8", "replace")
    except OSError:
        return False  # the DAG's reader says what is wrong with it
    return icm.is_workflow(text)


def _reader_of(path: str, search: tuple[str, ...]) -> Callable[[str], Verdict] | None:
    from pgflow.declare import dag, icm, sop

    match family_of(path):
        case "sop":
            return sop.read_file
        case "icm":
            return icm.read_file
        case "dag":
            return partial(dag.read_file, search=search)
        case None:
            return None


def _unreadable(path: str, message: str, hint: str = "") -> Verdict:
    return Verdict(path, (Problem(message, hint=hint, kind="read_error"),))


# Directories --------------------------------------------------------------------------------------


def _inside(directory: str, search: tuple[str, ...]) -> Iterator[Verdict]:
    """Everything in a directory: of each folder its workspace or its files, then the folders below
    it, by name.

    A repository with the DAGs' own layout has them there and nowhere else, and they are judged
    together: two may not have the same name.
    """
    from pgflow.declare import dag, icm

    has_layout = _has_layout(directory)
    if has_layout:
        yield from dag.discover(directory, search)
    suffixes = SOP_SUFFIXES if has_layout else (*YAML_SUFFIXES, *SOP_SUFFIXES)
    for folder, names, files in os.walk(directory, followlinks=False):
        is_workspace = icm.is_workspace(folder)
        names[:] = sorted(
            name
            for name in names
            if _is_looked_into(name) and not (is_workspace and name == "stages")
        )
        if is_workspace:
            yield icm.read_workspace(Path(folder))
        for name in sorted(files):
            path = str(Path(folder, name))
            if _is_workflow(path, suffixes) and not (
                is_workspace and name in ("workflow.yaml", "workflow.yml")
            ):
                yield _file(path, search)


def _has_layout(directory: str) -> bool:
    path = Path(directory).absolute()
    return path.parts[-2:] == _LAYOUT or path.joinpath(*_LAYOUT).is_dir()


def _is_looked_into(name: str) -> bool:
    return name not in _NOT_LOOKED_INTO and (not name.startswith(".") or name == _LAYOUT[0])


def _is_workflow(path: str, suffixes: tuple[str, ...]) -> bool:
    """Return True if a path found in a directory is a workflow: by its name, and because it is a
    file. A pipe would keep us waiting.
    """
    lower = path.lower()
    return lower.endswith(suffixes) and not lower.endswith(STUBS_SUFFIXES) and os.path.isfile(path)  # noqa: PTH113
