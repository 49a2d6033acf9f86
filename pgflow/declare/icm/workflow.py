"""``workflow.yaml`` at the root of a workspace: its name, its state, and its stages with what comes
after each.

The shape is that of the published sketch (``name``, ``version``, ``state``, ``stages``), with
``next`` in the plainest form that also says what the sketch leaves open::

    next: 02-action-items                     # one stage
    next: END                                 # none
    next: [02-audio, 02-video]                # parallel fan-out: all of them
    next:                                     # branches: those whose condition holds
      02-video: request.kind == 'video'
      02-audio: request.kind == 'audio'
      END: else                               # if no other does
    next:                                     # the same as a list
      - { to: 02-video, when: "request.kind == 'video'" }
      - { to: 02-audio, else: true }

A condition compares paths into the state with literals (``== != < > <= >=``, joined by ``&&`` and
``||``). A stage without ``next`` goes on to the stage after it in the list; where there are
branches or a fan-out, every stage must say.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from pgflow.declare.graph import Artifact, Compensation, Position
from pgflow.declare.icm.findings import Findings
from pgflow.declare.icm.folders import MAX_STAGES, Folder
from pgflow.declare.icm.given import Given
from pgflow.declare.icm.stagefields import (
    STAGE_KEYS,
    StageFields,
    read_compensations,
    read_stage_fields,
)
from pgflow.declare.icm.state import State, read_state
from pgflow.declare.text.yamlfile import YamlError, read_yaml

END: Final = "END"
ELSE: Final = frozenset({"else", "otherwise", "default"})
_EMPTY_STATE = re.compile(
    r"^state[ \t]*:[ \t]*(?:#.*)?\n(?:[ \t]*(?:#.*)?\n)*(?=[^\s#-])", re.MULTILINE
)
_LOST = re.compile(
    r"^([A-Za-z_][\w-]*)[ \t]*:[ \t]*\{[ \t]*type[ \t]*:[ \t]*(?:file|signal)\b", re.MULTILINE
)
_KEYS: Final = frozenset({"name", "version", "description", "state", "stages", "compensations"})


@dataclass(frozen=True, slots=True)
class Arrow:
    """Succession of a stage by another: always, if a condition holds, or (``otherwise``) if none of
    the others does.
    """

    target: str
    at: Position
    when: str | None = None
    otherwise: bool = False
    given: Given | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Declared:
    """A stage of the list. ``arrows`` is None if it does not declare what comes next."""

    id: str
    at: Position
    arrows: tuple[Arrow, ...] | None
    fields: StageFields


@dataclass(frozen=True, slots=True)
class Workflow:
    """Content of workflow.yaml."""

    name: str | None = None
    version: str = "1"
    description: str | None = None
    state: dict[str, Artifact] = field(default_factory=dict)
    stages: tuple[Declared, ...] = ()
    compensations: tuple[Compensation, ...] = ()


def read_yaml_of(text: str, file: str, findings: Findings, name: str) -> Given | None:
    """Read a YAML text of a workspace; what is wrong with it is one error.

    Args:
        text: The text.
        file: Its file, for positions.
        findings: Collector of the findings.
        name: Name of the whole of it in messages.
    """
    try:
        marked = read_yaml(text)
    except YamlError as error:
        at = Position(file=file, line=error.line or 1, column=error.column or 1)
        findings.error(error.message, at, error.hint)
        return None
    return Given(
        marked, name, Position(file=file, line=marked.line, column=marked.column), findings
    )


def read_workflow(
    text: str, file: str, folder: Folder | None, findings: Findings
) -> Workflow | None:
    """Read a workflow file.

    Args:
        text: Its text.
        file: Its name, for positions.
        folder: The workspace that it is in; None if it is read alone.
        findings: Collector of the findings.

    Returns:
        Its content; None if it cannot be used at all.
    """
    given = (
        None
        if _is_flattened(text, file, findings)
        else read_yaml_of(text, file, findings, "workflow.yaml")
    )
    fields = given.fields(_KEYS) if given is not None else None
    if given is None or fields is None:
        return None
    state = (
        read_state(fields["state"], folder)
        if "state" in fields and fields["state"].value is not None
        else {}
    )
    shared = read_compensations(fields["compensations"]) if "compensations" in fields else ()
    stages = tuple(_stages(fields["stages"], state, shared)) if "stages" in fields else ()
    if not stages:
        findings.error(
            "workflow.yaml lists no stages", fields["stages"].at if "stages" in fields else given.at
        )
    _check_ids(stages, state, findings)
    return Workflow(
        name=fields["name"].text() if "name" in fields else None,
        version=_version(fields["version"]) if "version" in fields else "1",
        description=fields["description"].text() if "description" in fields else None,
        state=state,
        stages=stages,
        compensations=shared,
    )


def _is_flattened(text: str, file: str, findings: Findings) -> bool:
    """Return True, and record an error, if the state's entries are at the top level, as after a web
    page removed the indentation.

    This is searched in the text, since a parser fails further down in such a file, with an error
    that does not help.
    """
    lost = _LOST.findall(text)
    empty = _EMPTY_STATE.search(text)
    if not lost or empty is None:
        return False
    at = Position(file=file, line=text.count("\n", 0, empty.start()) + 1)
    message = (
        f"`state` is empty and its entries are at the top level ({', '.join(lost)}): "
        "the file has lost its indentation"
    )
    hint = (
        "Indent the entries by two spaces below `state:`, "
        "and below each `- ` of `stages:` the lines that belong to it."
    )
    findings.error(message, at, hint)
    return True


def _version(given: Given) -> str:
    if isinstance(given.value, int | float | str) and not isinstance(given.value, bool):
        return str(given.value)
    given.wrong("a number or a text")
    return "1"


def _stages(given: Given, state: State, shared: tuple[Compensation, ...]) -> Iterator[Declared]:
    items = given.items()
    if len(items) > MAX_STAGES:
        given.findings.error(f"workflow.yaml lists more than {MAX_STAGES} stages", given.at)
        return
    for item in items:
        fields = item.fields(STAGE_KEYS | {"id", "next"})
        if fields is None:
            continue
        if "id" not in fields:
            given.findings.error(f"{item.name} has no id", item.at)
            continue
        stage_id = fields["id"].text()
        if stage_id is not None:
            arrows = (
                tuple(_arrows(fields["next"]))
                if "next" in fields and fields["next"].value is not None
                else None
            )
            yield Declared(stage_id, item.at, arrows, read_stage_fields(fields, state, shared))


def _arrows(given: Given) -> Iterator[Arrow]:
    """Yield the arrows to what comes next, in each of its shapes."""
    if isinstance(given.value, dict):
        for target, condition in (given.fields() or {}).items():
            yield _branch(target, condition)
        return
    for item in given.items():
        if isinstance(item.value, dict):
            yield from _listed_branch(item)
        elif (named := item.text()) is not None:
            yield Arrow(named, item.at)


def _branch(target: str, condition: Given) -> Arrow:
    """Return a branch of the mapping: a target and its condition."""
    if condition.value is None or (
        isinstance(condition.value, str) and condition.value.strip().casefold() in ELSE
    ):
        return Arrow(target, condition.at, otherwise=True)
    return Arrow(target, condition.at, when=condition.text(), given=condition)


def _listed_branch(item: Given) -> Iterator[Arrow]:
    """Yield a branch of the list: ``{ to, when }``, or ``{ to, else: true }``."""
    fields = item.fields(frozenset({"to", "when", "else"})) or {}
    target = fields["to"].text() if "to" in fields else None
    if target is None:
        item.findings.error(
            f"{item.name} names no stage", item.at, "Write { to: STAGE, when: CONDITION }."
        )
    elif "when" in fields:
        yield Arrow(target, item.at, when=fields["when"].text(), given=fields["when"])
    else:
        yield Arrow(
            target, item.at, otherwise="else" in fields and fields["else"].boolean() is True
        )


def _check_ids(stages: tuple[Declared, ...], state: State, findings: Findings) -> None:
    """Check that every stage has its own id, and that the writers in the state are stages."""
    seen: set[str] = set()
    for stage in stages:
        if stage.id in seen:
            findings.error(f"Duplicate stage id: {stage.id!r}", stage.at)
        if (
            stage.id == END
            or not stage.id.strip()
            or "/" in stage.id
            or "\\" in stage.id
            or stage.id.startswith(".")
        ):
            findings.error(
                f"{stage.id!r} cannot be the id of a stage",
                stage.at,
                "An id is the name of a folder below stages/.",
            )
        seen.add(stage.id)
    for entry in state.values():
        if entry.kind == "file" and entry.written_by is not None and entry.written_by not in seen:
            findings.error(
                f"state entry {entry.name!r} is written by {entry.written_by!r}, "
                "which is not a stage",
                entry.position,
            )
