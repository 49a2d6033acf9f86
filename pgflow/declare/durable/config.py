"""Config of a repository (``.archon/config.yaml``): variables for its programs, and its folder of
documents and base branch. It is read once, when a run starts. Missing settings come from the user's
own (``~/.archon/config.yaml``).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from pydantic import BaseModel, JsonValue

from pgflow.declare.dag.scopes import home
from pgflow.declare.durable.agents import Agents
from pgflow.declare.durable.frozen import TIERS, Preset, Settings
from pgflow.declare.durable.providers import NEVER
from pgflow.declare.graph import Graph
from pgflow.declare.text.outputs import value_text
from pgflow.declare.text.yamlfile import YamlError, decode, read_bytes, read_yaml
from pgflow.errors import InvalidWorkflow
from pgflow.workspace.git import Git
from pgflow.workspace.places import WorkspaceError

PLACE: Final = Path(".archon", "config.yaml")
"""Place of the file in a working folder."""


_TIERS_OF: Final[dict[str, dict[str, tuple[str, str | None]]]] = {
    "claude": {"small": ("haiku", None), "medium": ("sonnet", None), "large": ("opus", None)},
    "codex": {
        "small": ("gpt-5.3-codex", "minimal"),
        "medium": ("gpt-5.3-codex", "medium"),
        "large": ("gpt-5.3-codex", "high"),
    },
}
"""Model and effort of each tier where no config has any, as Archon has them
(``packages/workflows/src/defaults/tier-defaults.json``).
"""

_WORDS: Final = ("model", "provider", "effort")

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Config(BaseModel):
    """Config of a repository.

    Args:
        variables: Variables of the environment of its programs.
        docs_dir: Folder of its documents; empty if not set.
        base_branch: Its base branch; empty if not set.
        models: Models by their tiers and aliases.
        assistant: Provider of nodes that name none; empty if not set.
        assistant_models: Models of providers for nodes that name none.
    """

    variables: dict[str, str] = {}
    docs_dir: str = ""
    base_branch: str = ""
    models: dict[str, Preset] = {}
    assistant: str = ""
    assistant_models: dict[str, str] = {}


def read_config(folder: str | Path) -> Config:
    """Return the config of a working folder, over that of the user. A place without a file has
    none.

    Args:
        folder: The folder.

    Raises:
        InvalidWorkflow: A file cannot be read, or has an invalid part.
    """
    own, users = _read(Path(folder, PLACE)), _read(home() / PLACE.name)
    return Config(
        variables={**users.variables, **own.variables},
        docs_dir=own.docs_dir or users.docs_dir,
        base_branch=own.base_branch or users.base_branch,
        models={**users.models, **own.models},
        assistant=own.assistant or users.assistant,
        assistant_models={**users.assistant_models, **own.assistant_models},
    )


def configured(folder: str | Path, provider: str | None = None) -> Settings:
    """Return the settings of a run in a working folder, by its config, over those of the user.

    Args:
        folder: The folder.
        provider: Provider of the turns of agents.

    Raises:
        InvalidWorkflow: A config cannot be read, or has an invalid part.
    """
    config = read_config(folder)
    return Settings(
        cwd=str(folder),
        provider=provider,
        assistant=config.assistant,
        assistant_models=config.assistant_models,
        models=config.models,
        variables=config.variables,
        base_branch=config.base_branch or _base_branch(folder),
        docs_dir=config.docs_dir or "docs/",
    )


def _base_branch(folder: str | Path) -> str:
    """Return the default branch of the repository's remote; empty if it is unknown."""
    try:
        git = Git(str(folder))
        head = git.ask("symbolic-ref", "--short", "refs/remotes/origin/HEAD")
    except WorkspaceError:
        return ""
    return head.strip().removeprefix("origin/")


def with_tiers(settings: Settings, graph: Graph) -> Settings:
    """Return the settings with the tiers of the provider of nodes that name none, if no config sets
    any. They are chosen at the start, so a later version, which may know other models, does not
    change a run.

    Args:
        settings: Settings of a run.
        graph: Its workflow.
    """
    if any(tier in settings.models for tier in TIERS):
        return settings
    name = Agents(graph, settings).default
    tiers = {
        tier: Preset(model=model, provider=name, effort=effort)
        for tier, (model, effort) in _TIERS_OF.get(name, {}).items()
    }
    return settings.model_copy(update={"models": {**tiers, **settings.models}})


def _read(path: Path) -> Config:
    """Return the config of a file."""
    if not path.is_file():
        return Config()
    try:
        whole = read_yaml(decode(read_bytes(path))[0]).value
    except (OSError, YamlError) as error:
        raise InvalidWorkflow(f"{path} cannot be read: {error}") from error
    docs, tree = _part(path, whole, "docs"), _part(path, whole, "worktree")
    return Config(
        variables=_variables(path, _part(path, whole, "env")),
        docs_dir=_text(path, docs, "path", "docs.path"),
        base_branch=_text(path, tree, "baseBranch", "worktree.baseBranch"),
        models={
            name: _preset(path, part, name, value)
            for part in ("tiers", "aliases")
            for name, value in _part(path, whole, part).items()
        },
        assistant=_assistant(path, whole),
        assistant_models={
            name: model
            for name, value in _part(path, whole, "assistants").items()
            if (model := _model_of(path, name, value))
        },
    )


def _assistant(path: Path, whole: JsonValue) -> str:
    """Return the provider of nodes that name none. The user's own file has another word for it."""
    parts = whole if isinstance(whole, dict) else {}
    return _text(path, parts, "assistant", "assistant") or _text(
        path, parts, "defaultAssistant", "defaultAssistant"
    )


def _model_of(path: Path, name: str, value: JsonValue) -> str:
    """Return the model of a provider; empty if the config sets none."""
    called = f"assistants.{name}"
    return _text(path, _part(path, {called: value}, called), "model", f"{called}.model")


def _preset(path: Path, part: str, name: str, value: JsonValue) -> Preset:
    """Return the model of a tier or an alias."""
    called = f"{part}.{name}"
    if part == "tiers" and name not in TIERS:
        raise InvalidWorkflow(f"{path}: {called} is not a tier: use one of {', '.join(TIERS)}")
    if part == "aliases" and not name.startswith("@"):
        raise InvalidWorkflow(f"{path}: {called} must begin with @")
    if not isinstance(value, dict) or not value.get("model"):
        raise InvalidWorkflow(f"{path}: {called} must have a provider and a model")
    words = {word: _text(path, value, word, f"{called}.{word}") for word in _WORDS}
    return Preset(model=words["model"], provider=words["provider"], effort=words["effort"] or None)


def _part(path: Path, whole: JsonValue, name: str) -> dict[str, JsonValue]:
    part = whole.get(name) if isinstance(whole, dict) else None
    if part is None:
        return {}
    if not isinstance(part, dict):
        raise InvalidWorkflow(f"{path}: {name} must be a mapping")
    return part


def _text(path: Path, part: dict[str, JsonValue], name: str, called: str) -> str:
    value = part.get(name)
    if value is not None and not isinstance(value, str):
        raise InvalidWorkflow(f"{path}: {called} must be text")
    return value or ""


def _variables(path: Path, part: dict[str, JsonValue]) -> dict[str, str]:
    """Return the variables of the environment, but for the connection to the database."""
    for name, value in part.items():
        if not _NAME.fullmatch(name) or isinstance(value, dict | list):
            raise InvalidWorkflow(
                f"{path}: env.{name} must be the name of a variable, with a text or a number"
            )
    return {
        name: value_text(value)
        for name, value in part.items()
        if value is not None and name not in NEVER
    }
