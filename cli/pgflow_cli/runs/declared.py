"""``pgflow run FILE``: a declared workflow as a durable run.

Everything that can be refused is refused before a run exists: a file with errors, inputs that are
unknown or missing, a provider that is not there or that does not keep the limits of an agent.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pgflow_cli.files.declared import read_graph
from pgflow_cli.look.database import fetch, opened
from pgflow_cli.look.failures import USAGE, Mistake
from pgflow_cli.look.mail import operator, wake
from pgflow_cli.look.output import note, shown
from pgflow_cli.look.parsing import parse_input, refuse_no_folder
from pgflow_cli.look.selection import find_detail
from pgflow_cli.runs import stages

if TYPE_CHECKING:
    from pgflow._db.calls.fork import PlaceOptions
    from pgflow.declare import Graph
    from pgflow.declare.durable import Frozen, Settings
    from pgflow.declare.durable.agents import Agents

WORKFLOW = "pgflow.declared"
"""Workflow of the runs of files."""
_LAYOUT = Path(".archon", "workflows")
_SOPS = (".", "sops", "agent-sops", ".agents/sops")
_SIGNS = {"tool": ">", "stderr": "!"}


@dataclass(frozen=True)
class Wishes:
    """Options of the command line for a file.

    Attributes:
        words: Message of the person who starts it.
        inputs: Inputs, as ``NAME=TEXT`` or ``NAME:=JSON``, or all as a JSON object.
        cwd: Working folder.
        provider: Name of the provider of the agents' turns.
        providers: Providers by the names that files use for them.
        env: Variables of the environment that programs get too.
        secrets: More of them, whose values are never recorded.
        has_budget: True if the run has a spending limit.
        is_elsewhere: True if another process works on it.
        ignored: Limits of agents that may be overlooked.
        base: Base branch.
        context: File with the issue that the run is about.
        parallel: Most nodes at work at once.
        dialect: Family whose rules hold where they differ.
        requested: Stages of a workspace that run only on request.
        chain: True if agents may have other SOPs carried out.
        lease: Right to the working folder: ``wait``, ``refuse`` or ``share``.
        worktree: True to work in a git worktree of the run's own.
        conversation: Name of the conversation whose sessions it continues.
        search: Folders in which a DAG finds others, after its own.
    """

    words: list[str]
    inputs: list[str]
    cwd: Path | None = None
    provider: str | None = None
    env: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()
    has_budget: bool = False
    is_elsewhere: bool = False
    ignored: tuple[str, ...] = ()
    base: str | None = None
    context: Path | None = None
    parallel: int = 8
    dialect: str = "archon"
    requested: tuple[str, ...] = ()
    chain: bool = False
    lease: str = "wait"
    worktree: bool = False
    conversation: str = ""
    search: tuple[Path, ...] = ()
    providers: Mapping[str, str] = field(default_factory=dict)


def find_file(target: str, search: tuple[Path, ...] = ()) -> Path | None:
    """Return the file that a target names: by its path, or by the name of a workflow of this
    repository, of these folders, or of the user; None if it is a module's.
    """
    from pgflow.declare.reading import SOP_SUFFIXES, YAML_SUFFIXES

    path = Path(target)
    if target.lower().endswith((*YAML_SUFFIXES, *SOP_SUFFIXES)) or path.is_dir():
        return path
    if ":" in target or target.endswith(".py") or "\0" in target:
        return None
    try:
        return _find_dag(target, search) or _find_sop(target, search)
    except ImportError:  # without the extra `files`, a name is a module's
        return None


def unfound(target: str, search: tuple[Path, ...] = ()) -> str:
    """Return the message on a word that names neither a file nor a module: the places that were
    searched, and what to pass.
    """
    from pgflow.declare.dag.scopes import home

    def listed(folders: Sequence[str | Path]) -> str:
        *others, last = map(str, folders)
        return f"{', '.join(others)} or {last}"

    return (
        f"nothing here is named {target!r}: "
        f"no workflow in {listed([_LAYOUT, *search, home() / 'workflows'])}, "
        f"no SOP in {listed([*_SOPS, *search])}, and no module importable from {Path.cwd()}. "
        f"Pass a FILE, or MODULE:WORKFLOW; `pgflow start {target}` starts a workflow that the "
        "database knows"
    )


def _find_dag(name: str, search: tuple[Path, ...]) -> Path | None:
    """Return the DAG of that name among those of this repository and further scopes."""
    from pgflow.declare.dag.scopes import Scopes, search_path

    own = [_LAYOUT.absolute()] if _LAYOUT.is_dir() else []
    loaded = Scopes([*own, *search_path(search)]).workflow(name)
    return None if loaded is None else Path(loaded.file)


def _find_sop(name: str, search: tuple[Path, ...]) -> Path | None:
    """Return the SOP of that name, here or in a folder of SOPs."""
    from pgflow.declare.reading import SOP_SUFFIXES

    folders: tuple[str | Path, ...] = (*_SOPS, *search)
    files = (Path(folder, f"{name}{suffix}") for folder in folders for suffix in SOP_SUFFIXES)
    return next((file for file in files if "/" not in name and file.is_file()), None)


Ask = Callable[["Graph", dict[str, Any]], dict[str, Any]]
"""Asks for the inputs of a workflow that are missing beside these."""


def prepare(path: Path, wishes: Wishes, ask: Ask | None = None) -> dict[str, Any]:
    """Return the arguments of the run of a file.

    Args:
        path: The file.
        wishes: Options of the command line.
        ask: Function that asks for missing inputs; None to refuse them.

    Raises:
        Mistake: It cannot be run like this.
        Ended: The file has errors; they are already printed.
    """
    from pgflow.declare.durable import freeze
    from pgflow.declare.durable.config import with_tiers

    graph = read_graph(path, tells=True, search=wishes.search, code=USAGE)
    _refuse_unbuilt(graph)
    folder = stages.folder_of(graph, path)
    inputs = _inputs(graph, wishes.inputs)
    settings = with_tiers(_settings(wishes, folder), graph)
    stages.check_requested(graph, wishes.requested)
    _check_worktree(graph, settings)
    agents = _check_agents(graph, settings, is_here=not wishes.is_elsewhere)
    frozen = freeze(graph, folder, search=wishes.search)
    for name in inputs if folder is not None else ():
        stages.check_message(graph, settings.cwd, name, inputs[name])
    if ask is not None:
        inputs |= ask(graph, inputs)
    _check_missing(frozen, inputs)
    _warn(frozen, agents, settings)
    message = " ".join(wishes.words)
    told = {"the message": message, "--input": inputs, "--context": settings.context}
    texts = {
        "the stubs": settings.stubs,
        "the config": settings.variables,
        "the file": frozen.model_dump(mode="json"),
    }
    for where, value in (told | texts).items():
        _refuse_secrets(wishes.secrets, where, value)
    return {"frozen": frozen, "settings": settings, "message": message, "inputs": inputs}


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
    names = [declared.name for declared in graph.inputs] + stages.signals_of(graph)
    for name in given:
        if name not in names:
            has = f"it has {', '.join(names)}" if names else "it has none"
            raise Mistake(f"{shown(graph.name)} has no input {name!r}: {has}")
    return given


def _check_worktree(graph: Graph, settings: Settings) -> None:
    """Refuse a worktree that cannot be, or that the file does not want."""
    from pgflow.declare.durable.worktrees import wants_one, why_none

    if not wants_one(graph, settings):
        return
    if graph.family == "icm":
        raise Mistake("--worktree: the stages of a workspace work in its own folder")
    if graph.options.get("worktree") == {"enabled": False}:
        raise Mistake(f"--worktree: {shown(graph.name)} says worktree: {{enabled: false}}")
    if why := why_none(settings.cwd):
        raise Mistake(f"no worktree: {why}")


def _check_missing(frozen: Frozen, inputs: dict[str, Any]) -> None:
    from pgflow.declare.durable import missing_inputs

    if missing := missing_inputs(frozen, inputs):
        raise Mistake(f"{shown(missing)}: pass --input NAME=TEXT")


def _settings(wishes: Wishes, folder: Path | None = None) -> Settings:
    cwd = (wishes.cwd or folder or Path()).absolute()
    refuse_no_folder("--cwd", cwd)
    for option, names in (("--env", wishes.env), ("--secret", wishes.secrets)):
        for name in names:
            _check_variable(option, name, is_elsewhere=wishes.is_elsewhere)
    provider, stubs = wishes.provider, {}
    if provider is not None and provider.startswith("stub:"):
        provider, stubs = "stub:", _stubs(provider.removeprefix("stub:"))
    said: dict[str, Any] = {
        "providers": dict(wishes.providers),
        "stubs": stubs,
        "env": wishes.env,
        "secrets": wishes.secrets,
        "ignored": wishes.ignored,
        "has_budget": wishes.has_budget,
        "parallel": wishes.parallel,
        "context": "" if wishes.context is None else _read(wishes.context),
        "dialect": wishes.dialect,
        "requested": wishes.requested,
        "chain": wishes.chain,
        "lease": wishes.lease,
        "worktree": wishes.worktree,
        "conversation": wishes.conversation,
    }
    if wishes.base:
        said["base_branch"] = wishes.base
    return _configured(cwd, provider).model_copy(update=said)


def _configured(cwd: Path, provider: str | None) -> Settings:
    """Return the settings that the config of the working folder has."""
    from pgflow.declare.durable.config import configured
    from pgflow.errors import InvalidWorkflow

    try:
        return configured(cwd, provider)
    except InvalidWorkflow as error:
        raise Mistake(shown(str(error))) from error


def _check_variable(option: str, name: str, *, is_elsewhere: bool) -> None:
    from pgflow.declare.durable.providers import NEVER

    if name in NEVER:
        raise Mistake(f"{option} {name}: no program gets the connection to the database")
    if not is_elsewhere and not os.environ.get(name):
        raise Mistake(f"{option} {name}: this variable is not set, or is empty")


def _refuse_secrets(names: tuple[str, ...], where: str, value: Any) -> None:
    """Refuse what a run would record, if it says a secret. A word that is short may be another."""
    from pgflow.declare.durable.processes import SHORTEST, Mask
    from pgflow.declare.durable.providers import known_secrets

    said = json.dumps(value)
    for name, secret in known_secrets(names).items():
        if len(secret) >= SHORTEST and Mask([secret]).text(said) != said:
            raise Mistake(f"--secret {name}: {where} says its value, which would be recorded")


def _stubs(file: str) -> dict[str, Any]:
    from pgflow_cli.files.dryrun import read_stubs

    return read_stubs(file) if file else {}


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise Mistake(f"--context {path} cannot be read: {why}") from error


def _check_agents(graph: Graph, settings: Settings, *, is_here: bool) -> Agents:
    """Refuse a run whose agents have no provider, or one that ignores their limits.

    Raises:
        Mistake: A provider is missing, or a limit would not be kept.
    """
    from pgflow.declare.durable import limits, providers
    from pgflow.declare.durable.agents import Agents
    from pgflow.errors import InvalidArgument

    agents = Agents(graph, settings)
    if needed := agents.unserved():
        raise Mistake(
            f"{', '.join(map(shown, needed[:5]))}: no provider for these agents: pass "
            "--provider, such as 'cmd:claude -p' or stub:FILE"
        )
    sys.path.insert(0, str(Path.cwd()))
    try:
        for spec in (settings.provider, *settings.providers.values()):
            if spec is not None:
                provider = providers.make_provider(spec)
                if is_here and isinstance(provider, providers.CommandProvider):
                    provider.check(settings.cwd)
        broken = limits.refused(graph, agents, settings.ignored)
    except InvalidArgument as error:
        raise Mistake(str(error)) from error
    if broken:
        raise Mistake(
            f"{'; '.join(map(shown, broken[:5]))}: run it elsewhere, or pass --ignore with the "
            "field's name"
        )
    return agents


def _warn(frozen: Frozen, agents: Agents, settings: Settings) -> None:
    """Say what will not be done as the file says."""
    from pgflow.declare.durable import limits
    from pgflow.declare.graph import Call, every_node

    for sentence in limits.overlooked(frozen, agents, settings):
        note(f"warning: {shown(sentence)}")
    if not any(isinstance(node.body, Call) for node in every_node(frozen.graph.nodes)):
        for word in agents.unmeant(settings.providers):
            note(f"warning: --map {word}: no agent of {shown(frozen.graph.name)} is for {word}")


def go_back(dsn: str | None, path: Path, key: str, node: str, effects: str | None) -> None:
    """Take the run of a file back to before a node: what had ended by then is kept.

    Raises:
        Mistake: The file has no such node, or the run has not come to it.
        HasActed: Acts on the world are in the way.
    """
    from pgflow._db.calls.fork import rewind_run
    from pgflow._db.query import run
    from pgflow.declare.graph import every_node
    from pgflow.inspect import list_units

    graph = read_graph(path, code=USAGE)
    if node not in (ids := [one.id for one in graph.nodes]):
        raise Mistake(f"{shown(graph.name)} has no node {node!r}: it has {', '.join(ids)}")
    with opened(dsn) as connection:
        found = find_detail(connection, key)
        _tell_edits(graph, found.input)
        units = fetch(connection, list_units(found.run_id, limit=None))
        first = min((unit.seq for unit in units if _is_of(unit.name, node)), default=None)
        if first is None:
            raise Mistake(f"run {key!r} has not come to node {node!r}")
        acts = any(one.effects for one in every_node(graph.nodes))
        shared: PlaceOptions = {
            "effects": effects or (None if acts else "repeat"),  # type: ignore[typeddict-item]
            "why": f"from node {node}",
            "by": operator(),
        }
        started = run(connection, rewind_run(key, first - 1, None, None, shared))
        wake(connection, [], [started.lane_id])


def _tell_edits(graph: Graph, given: Any) -> None:
    """Say that a run goes on with the file as it was at its start."""
    frozen = given.get("frozen") if isinstance(given, dict) else None
    if isinstance(frozen, dict) and frozen.get("graph") != graph.model_dump(mode="json"):
        note("warning: the file was edited since: the run goes on with what it was at its start")


def _is_of(name: str | None, node: str) -> bool:
    """Return True for the name of a step of a node, in any round of it."""
    return name is not None and (
        name == node or (name.startswith(node) and name[len(node)] in "#~:/")
    )


def check_folder(dsn: str | None, arguments: dict[str, Any], key: str | None) -> None:
    """Refuse a run that would have to wait for its folder, if it was not to wait.

    Raises:
        Mistake: Another run works there.
    """
    from pgflow.declare.durable.lease import is_alone, lease_key
    from pgflow.inspect import list_locks

    settings = arguments["settings"]
    graph = arguments["frozen"].graph
    if settings.lease != "refuse" or settings.worktree or not is_alone(settings, graph):
        return
    with opened(dsn) as connection:
        held = fetch(connection, list_locks(lease_key(os.path.realpath(settings.cwd))))
    if others := [one.holder for one in held if one.holder != key]:
        raise Mistake(
            f"run {others[0]!r} works in {settings.cwd}: wait for it, or work elsewhere with --cwd"
        )


def say_end(end: dict[str, Any], seconds: float | None = None) -> str:
    """One node that ended, in a line. Of a long reason the end is shown too: programs complain with
    their source first, and with the error last.

    Args:
        end: Its end.
        seconds: Time from its beginning, if that was seen.
    """
    from pgflow.texts import cut

    round_ = f" #{end['iteration']}" if end.get("iteration") else ""
    took = f" ({seconds:.1f} s)" if seconds is not None else ""
    why = f": {cut(shown(end['reason']), 600)}" if end.get("reason") else ""
    return shown(f"{end['state']:<10}{end['id']}{round_}{took}") + why


def say_word(word: dict[str, Any]) -> str:
    """The beginning of a node, or one thing that it lets out, in a line."""
    if word["type"] == "start":
        return shown(f"{'running':<10}{word['step']}")
    sign = _SIGNS.get(word["type"], "|")
    return shown(f"{'':<10}{word['step']} {sign} {' '.join(word['content'].split())}"[:400])


def as_json(end: dict[str, Any]) -> str:
    """Return the same for programs."""
    return json.dumps(end)
