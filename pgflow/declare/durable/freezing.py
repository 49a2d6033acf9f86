"""Freezing: a workflow file becomes a document with every text that a run of it can read."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from pgflow.declare.dag import read_file
from pgflow.declare.dag.fields import is_plain_name
from pgflow.declare.dag.scopes import Scopes, scopes_of, search_path
from pgflow.declare.durable.frozen import Frozen
from pgflow.declare.durable.programs import Language, Program, prepare
from pgflow.declare.durable.shell import NotRewritable, Shell, rewrite
from pgflow.declare.graph import (
    Approval,
    Bash,
    Command,
    Family,
    Graph,
    Group,
    Loop,
    Node,
    Script,
    every_node,
)
from pgflow.declare.graph.problems import Verdict
from pgflow.declare.text.yamlfile import YamlError, decode, read_bytes
from pgflow.errors import InvalidWorkflow, SetupError

_SUFFIXES: Final = {
    "bun": (".ts", ".js", ".mts", ".mjs", ".tsx", ".jsx"),
    "uv": (".py",),
}
_LANGUAGES: Final[dict[str, Language]] = {"bun": "javascript", "uv": "python"}
PLAYED: Final[frozenset[Family]] = frozenset({"dag", "sop", "icm"})
"""Families that have a player (`pgflow.declare.durable.families`)."""

_CALLED: Final[dict[Family, str]] = {
    "dag": "YAML DAGs",
    "sop": "Agent SOPs",
    "icm": "ICM workspaces",
}
_TYPED: Final = (".ts", ".mts", ".tsx")


def refuse_unbuilt(graph: Graph) -> None:
    """Refuse a workflow of a family that no run plays so far: it is drawn and dry-run only.

    Raises:
        InvalidWorkflow: It is of one.
    """
    if graph.family not in PLAYED:
        raise InvalidWorkflow(
            f"{graph.name}: runs of {_CALLED[graph.family]} are not built yet: "
            "`pgflow dry-run` plays them"
        )


def freeze(
    graph: Graph,
    folder: str | os.PathLike[str] | None = None,
    *,
    search: Iterable[str | os.PathLike[str]] = (),
) -> Frozen:
    """Read everything that a run of a workflow can read.

    Args:
        graph: The workflow. Commands and scripts are searched beside its file.
        folder: Folder of an ICM workspace. Its contracts are frozen; the files that its stages read
            are not, and are known by their hashes.
        search: Folders to search for commands, scripts and children after that.

    Returns:
        The document that a run of it is started with. A command or script that was not found is
        missing in it, and fails the node that needs it.

    Raises:
        InvalidWorkflow: A script reads an output where neither a variable nor a literal can be
            placed, a stage needs a file that does not exist, or the folder of its workspace is
            unknown.
        SetupError: Scripts read outputs or outputs have schemas, and the extra ``run`` is not
            installed.
    """
    refuse_unbuilt(graph)
    if graph.family == "icm":
        return _freeze_workspace(graph, folder)
    if any(node.output_schema is not None for node in every_node(graph.nodes)):
        _require_validator()
    source = graph.files[0] if graph.files else ""
    folders = search_path(search)
    reader = _Reader(scopes_of(source, folders) if source else None)
    for node in every_node(graph.nodes):
        try:
            reader.read(node, source)
        except NotRewritable as error:
            raise InvalidWorkflow(f"{source}: node '{node.id}': {error}") from error
    return Frozen(
        graph=graph,
        commands=reader.commands,
        programs=reader.programs,
        typed=tuple(sorted(reader.typed)),
        shells=reader.shells,
        source=str(Path(source).absolute()) if source else "",
        search=folders,
    )


def _freeze_workspace(graph: Graph, folder: str | os.PathLike[str] | None) -> Frozen:
    if folder is None:
        raise InvalidWorkflow(f"{graph.name}: the stages of a workspace run in its folder: name it")
    if any(entry.json_schema for entry in graph.artifacts) or any(
        node.checks for node in graph.nodes
    ):
        _require_validator()
    from pgflow.declare.durable.stages.plans import plan_stages

    workspace = plan_stages(graph, folder)
    return Frozen(graph=graph, source=str(Path(folder).absolute()), workspace=workspace)


def _require_validator() -> None:
    """Refuse a workflow whose outputs could not be held to their schemas.

    Raises:
        SetupError: The validator is not installed.
    """
    if find_spec("jsonschema") is None:
        raise SetupError(
            "outputs and messages with a schema need its validator: "
            "pip install 'pgflow-engine[run]'"
        )


def freeze_named(name: str, source: str, search: Sequence[str] = ()) -> Frozen:
    """Read the workflow of a name in the scopes of a file, as it is now.

    Args:
        name: Name of the workflow.
        source: The file.
        search: Folders to search after the tree of that.

    Raises:
        InvalidWorkflow: It does not exist, or cannot be used.
    """
    if not source:
        raise InvalidWorkflow(f"workflow '{name}' cannot be found from a text without a file")
    scopes = scopes_of(source, search)
    loaded = scopes.workflow(name)
    if loaded is None:
        raise InvalidWorkflow(f"workflow '{name}' is not among the files of {source}")
    folders = tuple(str(tree.root) for tree in scopes.trees)
    return _freeze_verdict(read_file(loaded.file, search=folders), folders)


def freeze_sop(file: str) -> Frozen:
    """Read the SOP that another one names, as it is now.

    Raises:
        InvalidWorkflow: It is not there, or cannot be used.
    """
    from pgflow.declare.sop import read_file as read_sop

    return _freeze_verdict(read_sop(file))


def _freeze_verdict(verdict: Verdict, search: Sequence[str] = ()) -> Frozen:
    if verdict.graph is None or not verdict.ok:
        wrong = (*verdict.errors, *verdict.unresolved)
        why = wrong[0].message if wrong else "nothing can be made of it"
        raise InvalidWorkflow(f"{verdict.file}: {why}", wrong)
    return freeze(verdict.graph, search=search)


def can_pause(graph: Graph) -> bool:
    """Return True if a run of a workflow may wait for a person."""
    return any(
        isinstance(node.body, Approval)
        or (isinstance(node.body, Loop | Group) and node.body.interactive)
        for node in every_node(graph.nodes)
    )


class _Reader:
    """Reads what nodes mention."""

    def __init__(self, scopes: Scopes | None) -> None:
        self.scopes = scopes
        self.commands: dict[str, str] = {}
        self.programs: dict[str, Program] = {}
        self.typed: set[str] = set()
        self.shells: dict[str, Shell] = {}

    def read(self, node: Node, source: str) -> None:
        """Read what one node mentions."""
        match node.body:
            case Command(name=name) | Loop(command=str(name)):
                self._command(name, source)
            case Bash(script=script):
                self._shell(script)
            case Script():
                self._program(node.body)
            case _:
                pass
        if isinstance(node.body, Loop | Group) and node.body.until.bash is not None:
            self._shell(node.body.until.bash)

    def _command(self, name: str, source: str) -> None:
        text = self.scopes.command(name, source) if self.scopes is not None else None
        if text is not None:
            self.commands[name] = text

    def _shell(self, script: str) -> None:
        if script not in self.shells and (made := rewrite(script)).text != script:
            self.shells[script] = made

    def _program(self, body: Script) -> None:
        language = _LANGUAGES[body.runtime]
        if body.inline:
            self.programs[body.script] = prepare(body.script, language)
            return
        for path in self._script_files(body):
            try:
                text = decode(read_bytes(path))[0]
            except (OSError, YamlError):
                continue
            self.programs[body.script] = Program(language=language, texts=(text,))
            if path.suffix in _TYPED:
                self.typed.add(body.script)
            return

    def _script_files(self, body: Script) -> Iterator[Path]:
        """Yield the places in which a named script may be, the nearest first."""
        if self.scopes is None or not is_plain_name(body.script):
            return
        for folder in self.scopes.script_folders():
            for suffix in _SUFFIXES[body.runtime]:
                yield folder / f"{body.script}{suffix}"
