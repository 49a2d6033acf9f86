"""Reading of this family of files for the rest of pgflow: the verdict on a text, a file, or a
folder of files.

A file that includes workflows which are nowhere is right nevertheless: the original may find them
among its own. It has no graph then, and `Verdict.unresolved` says why.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pgflow.declare.dag.building import Places, build_graph
from pgflow.declare.dag.filling import NothingFound, WrongInclude
from pgflow.declare.dag.including import TRAVELS, Shelf, Whole, expand, includes_anything
from pgflow.declare.dag.loading import Loaded, load_text
from pgflow.declare.dag.scopes import Scopes
from pgflow.declare.dag.shelf import Tree, most_files, tree_of, workflow_files
from pgflow.declare.dag.shells import shell_problems
from pgflow.declare.graph import Graph
from pgflow.declare.graph.problems import Problem, Verdict

_LAYOUT = Path(".archon/workflows")


class _NoShelf:
    """An empty shelf, for a text without a file."""

    def workflow(self, name: str) -> None:
        """No workflow."""

    def command(self, name: str, file: str) -> None:
        """No command."""


def read_text(text: str, file: str = "<text>") -> Verdict:
    """Read a workflow from its text.

    Args:
        text: The text of a workflow file.
        file: Name of the file in places.

    Returns:
        The verdict; with the graph, if the text is right and includes nothing.
    """
    return _verdict(load_text(text, file), _NoShelf())


def read_file(
    path: str | Path, *, root: str | Path | None = None, search: Sequence[str] = ()
) -> Verdict:
    """Read a workflow file, with its includes from its own tree and other folders.

    Args:
        path: The file.
        root: The tree in which included workflows are searched; by default the nearest folder above
            the file that is called ``workflows``, or the file's own folder.
        search: Folders to search after that.

    Returns:
        The verdict; with the graph, if the file and its includes are valid.

    Example::

        verdict = read_file(".archon/workflows/release.yaml")
        for problem in verdict.problems:
            print(f"{verdict.file}:{problem.line}:{problem.column}: {problem.message}")
    """
    path = Path(path)
    scopes = Scopes([tree_of(path.absolute()) if root is None else Path(root), *search])
    loaded = Tree(path.parent).load(path)
    return _verdict(loaded, scopes)


def discover(directory: str | Path, search: Sequence[str] = ()) -> list[Verdict]:
    """Read every workflow file of a folder. A file that is wrong stops no other.

    Where the folder has the original's layout (``.archon/workflows``), the workflows there are
    read, and the original's rules hold among them: no two files of one name, and no two workflows
    of one name. In any other folder every YAML file is read, and each is judged alone.

    Args:
        directory: The folder.
        search: Folders in which included workflows are looked for after that.

    Returns:
        A verdict for each file, in the order of their paths.
    """
    directory = Path(directory)
    layout = next((place for place in (directory / _LAYOUT, directory) if _is_layout(place)), None)
    scopes = Scopes([layout or directory, *search])
    tree = scopes.trees[0]
    most = most_files()
    found = [*workflow_files(tree.root, most + 1)]
    loaded = [tree.load(path) for path in found[:most]]
    collisions = _collisions(loaded, tree.root) if layout is not None else {}
    verdicts = [_verdict(one, scopes, collisions.get(one.file)) for one in loaded]
    if len(found) > len(loaded):
        message = f"There are more than {most:,} files: from {found[-1]} on none is read"
        problem = Problem(message, hint="Name a folder of them.", kind="read_error")
        verdicts.append(Verdict(str(directory), (problem,)))
    return verdicts


def _is_layout(place: Path) -> bool:
    return place.absolute().parts[-2:] == _LAYOUT.parts and place.is_dir()


def _collisions(loaded: list[Loaded], root: Path) -> dict[str, Problem]:
    """Return the files whose name, or whose workflow's name, another file has too."""
    by_file: dict[str, list[Loaded]] = defaultdict(list)
    by_name: dict[str, list[Loaded]] = defaultdict(list)
    for one in loaded:
        if one.ok:
            by_file[Path(one.file).name].append(one)
            by_name[one.name].append(one)
    problems: dict[str, Problem] = {}
    for name, files in by_name.items():
        for one in files if len(files) > 1 else ():
            others = ", ".join(
                Path(other.file).relative_to(root).as_posix() for other in files if other is not one
            )
            message = (
                f"Duplicate workflow name '{name}' — also declared in {others}. Workflow names "
                "must be unique; same-name files do not "
                "override each other (overrides are by filename)."
            )
            problems[one.file] = Problem(message, *_place(one, "name"))
    for name, files in by_file.items():
        for one in files if len(files) > 1 else ():
            message = f"Workflow filename collision within one scope: '{name}'."
            problems[one.file] = Problem(
                f"{message} Workflow filenames must be unique across flat and packaged folders."
            )
    return problems


def _place(loaded: Loaded, key: str) -> tuple[int | None, int | None]:
    return loaded.document.place((key,)) if loaded.document is not None else (None, None)


def _verdict(loaded: Loaded, shelf: Shelf, collision: Problem | None = None) -> Verdict:
    problems = [*loaded.problems, *([collision] if collision is not None else [])]
    if not loaded.ok or collision is not None or loaded.document is None:
        return Verdict(loaded.file, tuple(problems))
    try:
        whole = _whole(loaded, shelf)
    except NothingFound as error:
        return Verdict(loaded.file, tuple(problems), unresolved=(_problem(loaded, error),))
    except WrongInclude as error:
        return Verdict(loaded.file, (*problems, _problem(loaded, error)))
    problems += shell_problems(loaded, whole.nodes)
    return Verdict(loaded.file, tuple(problems), _graph(loaded, whole))


def _whole(loaded: Loaded, shelf: Shelf) -> Whole:
    if includes_anything(loaded.nodes):
        return expand(loaded, shelf)
    documents = {loaded.file: loaded.document} if loaded.document is not None else {}
    return Whole(loaded.nodes, loaded.options.returns, [], documents)


def _problem(loaded: Loaded, error: WrongInclude) -> Problem:
    line, column = (
        loaded.document.place(error.path) if loaded.document is not None else (None, None)
    )
    return Problem(error.message, line, column, error.hint)


def _graph(loaded: Loaded, whole: Whole) -> Graph:
    """Return the graph of a workflow with everything that it includes."""
    options = loaded.options
    if includes_anything(loaded.nodes):
        values = {name: value for name, value in options.values.items() if name not in TRAVELS}
        if whole.requires:
            values["requires"] = list(dict.fromkeys(whole.requires))
        options = replace(options, values=values, returns=whole.returns)
    return build_graph(loaded.head, options, whole.nodes, Places(whole.documents), loaded.file)
