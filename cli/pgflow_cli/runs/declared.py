"""``pgflow run FILE``: a declared workflow as a durable run.

Everything that can be refused is refused before a run exists: a file with errors, inputs that are
unknown or missing, a provider that is not there or that does not keep the limits of an agent.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pgflow_cli.files.declared import read_graph
from pgflow_cli.look.failures import Mistake
from pgflow_cli.look.output import note, shown
from pgflow_cli.look.parsing import parse_input

if TYPE_CHECKING:
    from pgflow.declare import Graph
    from pgflow.declare.durable import Frozen, Settings

_LAYOUT = Path(".archon", "workflows")
_GIT_SECONDS = 5


@dataclass(frozen=True)
class Wishes:
    """Words of the command line of a file.

    Attributes:
        words: Message of whoever starts it.
        inputs: Inputs, as ``NAME=TEXT`` or ``NAME:=JSON``, or all as a JSON object.
        cwd: Working folder.
        provider: Name of whoever takes the turns of agents.
        env: Variables of the environment that programs get too.
        ignored: Limits of agents that may be overlooked.
        base: Base branch.
        context: File with the issue that the run is about.
        parallel: Most nodes at work at once.
        dialect: Family whose rules hold where they differ.
    """

    words: list[str]
    inputs: list[str]
    cwd: Path | None = None
    provider: str | None = None
    env: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    base: str | None = None
    context: Path | None = None
    parallel: int = 8
    dialect: str = "archon"


def find_file(target: str) -> Path | None:
    """The file that a target names: by its path, or by the name of a workflow of this repository;
    None if it is a module's.
    """
    from pgflow.declare.reading import SOP_SUFFIXES, YAML_SUFFIXES

    path = Path(target)
    if target.lower().endswith((*YAML_SUFFIXES, *SOP_SUFFIXES)) or path.is_dir():
        return path
    if ":" in target or target.endswith(".py") or not _LAYOUT.is_dir():
        return None
    from pgflow.declare.dag.shelf import Tree

    loaded = Tree(_LAYOUT.absolute()).workflow(target)
    return None if loaded is None else Path(loaded.file)


def prepare(path: Path, wishes: Wishes) -> dict[str, Any]:
    """The arguments of the run of a file.

    Raises:
        Mistake: It cannot be run like this.
        Ended: The file has errors, and they have been said.
    """
    from pgflow.declare.durable import freeze

    graph = read_graph(path)
    _refuse_unbuilt(graph)
    inputs = _inputs(graph, wishes.inputs)
    settings = _settings(wishes)
    _check_provider(graph, settings, wishes.ignored)
    frozen = freeze(graph)
    _check_missing(frozen, inputs)
    return {
        "frozen": frozen, "settings": settings, "message": " ".join(wishes.words), "inputs": inputs
    }  # fmt: skip


def _refuse_unbuilt(graph: Graph) -> None:
    """Refuse what is only drawn and dry-run so far."""
    from pgflow.declare.durable import refuse_unbuilt
    from pgflow.errors import InvalidWorkflow

    try:
        refuse_unbuilt(graph)
    except InvalidWorkflow as error:
        raise Mistake(str(error)) from error


def _inputs(graph: Graph, words: list[str]) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for word in words:
        is_object = word.startswith(("{", "@")) or word == "-"
        given |= parse_input(None, word) if is_object else parse_input([word], None)
    names = [declared.name for declared in graph.inputs]
    for name in given:
        if name not in names:
            has = f"it has {', '.join(names)}" if names else "it has none"
            raise Mistake(f"{shown(graph.name)} has no input {name!r}: {has}")
    return given


def _check_missing(frozen: Frozen, inputs: dict[str, Any]) -> None:
    from pgflow.declare.durable import missing_inputs

    if missing := missing_inputs(frozen, inputs):
        raise Mistake(f"{shown(missing)}: pass --input NAME=TEXT")


def _settings(wishes: Wishes) -> Settings:
    from pgflow.declare.durable import Settings

    cwd = (wishes.cwd or Path()).absolute()
    if not cwd.is_dir():
        raise Mistake(f"--cwd {cwd} is no folder")
    for name in wishes.env:
        if name not in os.environ:
            raise Mistake(f"--env {name}: there is no such variable here")
    provider, stubs = wishes.provider, {}
    if provider is not None and provider.startswith("stub:"):
        provider, stubs = "stub:", _stubs(provider.removeprefix("stub:"))
    return Settings(
        cwd=str(cwd),
        provider=provider,
        stubs=stubs,
        env=wishes.env,
        parallel=wishes.parallel,
        base_branch=_base_branch(cwd) if wishes.base is None else wishes.base,
        context="" if wishes.context is None else _read(wishes.context),
        dialect="ion" if wishes.dialect == "ion" else "archon",
    )


def _stubs(file: str) -> dict[str, Any]:
    from pgflow_cli.files.dryrun import read_stubs

    return read_stubs(file) if file else {}


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise Mistake(f"--context {path} cannot be read: {why}") from error


def _base_branch(cwd: Path) -> str:
    """The branch that the repository's remote calls its own; empty if nobody says."""
    command = ["git", "-C", str(cwd), "symbolic-ref", "--short", "refs/remotes/origin/HEAD"]
    try:
        said = subprocess.run(  # noqa: S603 - a fixed command
            command, capture_output=True, text=True, timeout=_GIT_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return said.stdout.strip().removeprefix("origin/") if said.returncode == 0 else ""


def _check_provider(graph: Graph, settings: Settings, ignored: tuple[str, ...]) -> None:
    """Refuse a run whose agents nobody can be, or nobody as they are meant.

    Raises:
        Mistake: There is no provider, or it does not keep a limit.
    """
    from pgflow.declare.durable import providers
    from pgflow.errors import InvalidArgument

    if settings.provider is None:
        if needed := providers.needs_provider(graph.nodes, settings.stubs):
            raise Mistake(
                f"{', '.join(map(shown, needed[:5]))}: nobody takes the turns of agents: pass "
                "--provider, such as 'cmd:claude -p' or stub:FILE"
            )
        return
    sys.path.insert(0, str(Path.cwd()))
    try:
        provider = providers.make_provider(settings.provider)
    except InvalidArgument as error:
        raise Mistake(str(error)) from error
    if broken := providers.unsupported(graph, provider, ignored):
        raise Mistake(f"{shown(broken[0])}: choose another, or say --ignore with the field's name")
    for sentence in providers.overlooked(graph, provider):
        note(f"warning: {shown(sentence)}")


def say_end(end: dict[str, Any]) -> str:
    """One node that ended, in a line."""
    round_ = f" #{end['iteration']}" if end.get("iteration") else ""
    why = f": {end['reason']}" if end.get("reason") else ""
    return shown(f"{end['state']:<10}{end['id']}{round_}{why}"[:400])


def as_json(end: dict[str, Any]) -> str:
    """The same for programs."""
    return json.dumps(end)
