"""``pgflow run FILE``: a declared workflow as a durable run.

Everything that can be refused is refused before a run exists: a file with errors, inputs that are
unknown or missing, a provider that is not there or that does not keep the limits of an agent.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pgflow import inspect
from pgflow.console.output import note, shown
from pgflow_cli.files.declared import (
    Dialect,
    ProviderMap,
    SearchPath,
    check_search,
    read_graph,
    refuse_unknown,
)
from pgflow_cli.look.database import Database
from pgflow_cli.look.declaring import arg, opt
from pgflow_cli.look.failures import USAGE, Mistake, opening
from pgflow_cli.look.options import operator
from pgflow_cli.look.parsing import parse_amounts, parse_input, parse_pairs, refuse_no_folder
from pgflow_cli.look.selection import find_detail
from pgflow_cli.runs import stages

if TYPE_CHECKING:
    from pgflow.declare import Graph
    from pgflow.declare.durable import Frozen, Settings
    from pgflow.declare.durable.agents import Agents

WORKFLOW = "pgflow.declared"
"""Workflow of the runs of files."""
_LAYOUT = Path(".archon", "workflows")
_SOPS = (".", "sops", "agent-sops", ".agents/sops")
_SIGNS = {"tool": ">", "stderr": "!"}


class Folder(StrEnum):
    """Action of `run` where another run works in the folder."""

    WAIT = "wait"
    REFUSE = "refuse"
    SHARE = "share"


Names = list[str] | None


@dataclass(frozen=True)
class FileOptions:
    """Options of the run of a file, as they are given. The help of each says what it is.

    Args:
        words: Parameters of a workflow in Python; the message of one in a file.
        inputs: All parameters as a JSON object, @FILE, or - for standard input; of a file also
            NAME=TEXT, and more than once.
        cwd: FILE: folder to work in; else this one.
        provider: FILE: who takes the turns of agents: cmd:COMMAND, python:MODULE:FUNCTION,
            stub:FILE, or a plug-in.
        env: FILE: a variable that programs get too.
        secret: FILE: the same, and its value is taken out of everything that is recorded.
        budget: Most that the run may spend, such as usd=5; may be given again.
        ignore: FILE: a limit of agents that may be overlooked.
        base: FILE: $BASE_BRANCH.
        context: FILE: file with $CONTEXT.
        parallel: FILE: most nodes at work at once.
        dialect: FILE: a rejection cancels the run, or fails the node (ion).
        requested: FOLDER: a stage that runs on request only.
        chain: SOP: agents may have the SOPs run that it names.
        lease: FILE: what to do if another run works in the folder, which it has alone.
        worktree: FILE: work in a git worktree of the run's own.
        conversation: FILE: agents that persist_session go on in its last run.
        detach: FILE: only start it; a worker does the rest.
    """

    words: Annotated[Names, arg(metavar="NAME=TEXT|NAME:=JSON|MESSAGE")] = None
    inputs: Annotated[Names, opt("--input", "-i")] = None
    cwd: Path | None = None
    provider: str | None = None
    providers: ProviderMap = None
    env: Annotated[Names, opt(metavar="NAME")] = None
    secret: Annotated[Names, opt(metavar="NAME")] = None
    budget: Annotated[Names, opt(metavar="UNIT=AMOUNT")] = None
    ignore: Annotated[Names, opt(metavar="FIELD")] = None
    base: Annotated[str | None, opt(metavar="BRANCH")] = None
    context: Path | None = None
    parallel: Annotated[int, opt(min=1)] = 8
    dialect: Dialect = Dialect.ARCHON
    requested: Annotated[Names, opt("--with", metavar="STAGE")] = None
    chain: bool = False
    lease: Folder = Folder.WAIT
    worktree: bool = False
    conversation: Annotated[str, opt(metavar="NAME")] = ""
    search: SearchPath = None
    detach: bool = False

    @property
    def folders(self) -> tuple[Path, ...]:
        """Folders in which a DAG finds others, after its own."""
        return check_search(self.search)

    @property
    def pool(self) -> dict[str, Decimal] | None:
        """Limits of spending; None for none."""
        return parse_amounts(self.budget) if self.budget else None

    def refuse_other(self, target: str) -> None:
        """Refuse options that only files have, of a run of something else.

        Raises:
            Mistake: One was given.
        """
        for name, option in _FILE_ONLY.items():
            if getattr(self, name):
                raise Mistake(f"--{option} requires a file, and {target} is not one")
        if len(self.inputs or ()) > 1:
            raise Mistake("--input holds all parameters in one object: pass it once")


_FILE_ONLY = {
    "cwd": "cwd", "requested": "with", "provider": "provider", "providers": "map", "env": "env",
    "secret": "secret", "ignore": "ignore", "base": "base", "context": "context", "chain": "chain",
    "worktree": "worktree", "conversation": "conversation", "search": "path",
}  # fmt: skip
"""Options that only files have, by their names here."""
_AS_GIVEN = ("parallel", "chain", "worktree", "conversation")


def find_file(target: str, search: tuple[Path, ...] = ()) -> Path | None:
    """Return the file that a target names: by its path, or by the name of a workflow of this
    repository, of these folders, or of the user; None if it is a module's.
    """
    from pgflow.declare.suffixes import SOP_SUFFIXES, YAML_SUFFIXES

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
    from pgflow.declare.suffixes import SOP_SUFFIXES

    folders: tuple[str | Path, ...] = (*_SOPS, *search)
    files = (Path(folder, f"{name}{suffix}") for folder in folders for suffix in SOP_SUFFIXES)
    return next((file for file in files if "/" not in name and file.is_file()), None)


Ask = Callable[["Graph", dict[str, Any]], dict[str, Any]]
"""Asks for the inputs of a workflow that are missing beside these."""


def prepare(path: Path, given: FileOptions, ask: Ask | None = None) -> dict[str, Any]:
    """Return the arguments of the run of a file.

    Args:
        path: The file.
        given: Options of the command line.
        ask: Function that asks for missing inputs; None to refuse them.

    Raises:
        Mistake: It cannot be run like this.
        Ended: The file has errors; they are already printed.
    """
    from pgflow.declare.durable import freeze, missing_inputs, refuse_unbuilt
    from pgflow.declare.durable.config import with_tiers

    graph = read_graph(path, tells=True, search=given.folders, code=USAGE)
    refuse_unbuilt(graph)
    folder = stages.folder_of(graph, path)
    inputs = _inputs(graph, given.inputs or [])
    settings = with_tiers(_settings(given, folder), graph)
    stages.check_requested(graph, settings.requested)
    _check_worktree(graph, settings)
    agents = _check_agents(graph, settings, is_here=not given.detach)
    frozen = freeze(graph, folder, search=given.folders)
    for name in inputs if folder is not None else ():
        stages.check_message(graph, settings.cwd, name, inputs[name])
    if ask is not None:
        inputs |= ask(graph, inputs)
    if missing := missing_inputs(frozen, inputs):
        raise Mistake(f"{shown(missing)}: pass --input NAME=TEXT")
    _warn(frozen, agents, settings)
    message = " ".join(given.words or ())
    recorded = {
        "the message": message,
        "--input": inputs,
        "--context": settings.context,
        "the stubs": settings.stubs,
        "the config": settings.variables,
        "the file": frozen.model_dump(mode="json"),
    }
    for where, value in recorded.items():
        _refuse_secrets(settings.secrets, where, value)
    return {"frozen": frozen, "settings": settings, "message": message, "inputs": inputs}


def _inputs(graph: Graph, words: list[str]) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for word in words:
        is_object = word.startswith(("{", "@")) or word == "-"
        given |= parse_input(None, word) if is_object else parse_input([word], None)
    names = [declared.name for declared in graph.inputs] + stages.signals_of(graph)
    refuse_unknown("input", given, names, graph)
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


def _settings(given: FileOptions, folder: Path | None = None) -> Settings:
    from pgflow.declare.durable.config import configured

    cwd = (given.cwd or folder or Path()).absolute()
    refuse_no_folder("--cwd", cwd)
    for option, names in (("--env", given.env), ("--secret", given.secret)):
        for name in names or ():
            _check_variable(option, name, is_elsewhere=given.detach)
    provider, stubs = given.provider, {}
    if provider is not None and provider.startswith("stub:"):
        from pgflow_cli.files.dryrun import read_stubs

        provider, stubs = "stub:", read_stubs(provider.removeprefix("stub:") or None)
    context = ""
    if given.context is not None:
        with opening(f"--context {given.context}"):
            context = given.context.read_text(encoding="utf-8")
    changes: dict[str, Any] = {
        "providers": parse_pairs(given.providers, "--map"),
        "stubs": stubs,
        "env": tuple(given.env or ()),
        "secrets": tuple(given.secret or ()),
        "ignored": tuple(given.ignore or ()),
        "has_budget": given.pool is not None,
        "context": context,
        "dialect": given.dialect.value,
        "requested": tuple(given.requested or ()),
        "lease": given.lease.value,
        **{name: getattr(given, name) for name in _AS_GIVEN},
        **({"base_branch": given.base} if given.base else {}),
    }
    return configured(cwd, provider).model_copy(update=changes)


def _check_variable(option: str, name: str, *, is_elsewhere: bool) -> None:
    from pgflow.declare.durable.providers import NEVER

    if name in NEVER:
        raise Mistake(f"{option}: no program gets the connection to the database, as in {name}")
    if not is_elsewhere and not os.environ.get(name):
        raise Mistake(f"{option}: the variable {name} is not set, or is empty")


def _refuse_secrets(names: tuple[str, ...], where: str, value: Any) -> None:
    """Refuse what a run would record, if it says a secret. A word that is short may be another."""
    from pgflow.declare.durable.processes import SHORTEST, Mask
    from pgflow.declare.durable.providers import known_secrets

    text = json.dumps(value)
    for name, secret in known_secrets(names).items():
        if len(secret) >= SHORTEST and Mask([secret]).text(text) != text:
            raise Mistake(f"{where} says the value of the secret {name}, which would be recorded")


def _check_agents(graph: Graph, settings: Settings, *, is_here: bool) -> Agents:
    """Refuse a run whose agents have no provider, or one that ignores their limits.

    Raises:
        Mistake: A provider is missing, or a limit would not be kept.
    """
    from pgflow.declare.durable import limits, providers
    from pgflow.declare.durable.agents import Agents

    agents = Agents(graph, settings)
    if needed := agents.unserved():
        agents_of = ", ".join(map(shown, needed[:5]))
        remedy = "pass --provider, such as 'cmd:claude -p' or stub:FILE"
        raise Mistake(f"{agents_of}: no provider for these agents: {remedy}")
    sys.path.insert(0, str(Path.cwd()))
    for spec in (settings.provider, *settings.providers.values()):
        if spec is not None:
            provider = providers.make_provider(spec)
            if is_here and isinstance(provider, providers.CommandProvider):
                provider.check(settings.cwd)
    broken = limits.refused(graph, agents, settings.ignored)
    if broken:
        remedy = "run it elsewhere, or pass --ignore with the field's name"
        raise Mistake(f"{'; '.join(map(shown, broken[:5]))}: {remedy}")
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


def go_back(db: Database, path: Path, key: str, node: str, effects: str | None) -> None:
    """Take the run of a file back to before a node: what had ended by then is kept.

    Raises:
        Mistake: The file has no such node, or the run has not come to it.
        HasActed: Acts on the world are in the way.
    """
    from pgflow.declare.graph import every_node

    graph = read_graph(path, code=USAGE)
    refuse_unknown("node", [node], [one.id for one in graph.nodes], graph)
    found = find_detail(db, key)
    frozen = found.input.get("frozen") if isinstance(found.input, dict) else None
    if isinstance(frozen, dict) and frozen.get("graph") != graph.model_dump(mode="json"):
        note("warning: the file was edited since: the run goes on with what it was at its start")
    units = db.ask(inspect.list_units(found.run_id, limit=None))
    first = min((unit.seq for unit in units if _is_of(unit.name, node)), default=None)
    if first is None:
        raise Mistake(f"run {key!r} has not come to node {node!r}")
    if effects is None and not any(one.effects for one in every_node(graph.nodes)):
        effects = "repeat"
    send: Any = db.client.rewind
    send(key, first - 1, effects=effects, why=f"from node {node}", by=operator())


def _is_of(name: str | None, node: str) -> bool:
    """Return True for the name of a step of a node, in any round of it."""
    return name is not None and (
        name == node or (name.startswith(node) and name[len(node)] in "#~:/")
    )


def check_folder(db: Database, arguments: dict[str, Any], key: str | None) -> None:
    """Refuse a run that would have to wait for its folder, if it was not to wait.

    Raises:
        Mistake: Another run works there.
    """
    from pgflow.declare.durable.lease import is_alone, lease_key

    settings, graph = arguments["settings"], arguments["frozen"].graph
    if settings.lease != "refuse" or settings.worktree or not is_alone(settings, graph):
        return
    held = db.ask(inspect.list_locks(lease_key(os.path.realpath(settings.cwd))))
    if others := [one.holder for one in held if one.holder != key]:
        raise Mistake(
            f"run {others[0]!r} works in {settings.cwd}: wait for it, or work elsewhere with --cwd"
        )


def end_line(end: dict[str, Any], seconds: float | None = None) -> str:
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


def word_line(word: dict[str, Any], *, again: bool = False) -> str:
    """The beginning of a node, or one thing that it lets out, in a line.

    Args:
        word: Its entry in the stream of the run.
        again: True if it has begun before, and not ended.
    """
    if word["type"] == "start":
        return shown(f"{'running':<10}{word['step']}{' again' * again}")
    sign = _SIGNS.get(word["type"], "|")
    return shown(f"{'':<10}{word['step']} {sign} {' '.join(word['content'].split())}"[:400])
