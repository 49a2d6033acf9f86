"""A workspace as a graph: one node for each stage, wired in the order of the workflow, with all
that its contract declares.

What holds where several files speak:

- the order of stages and the state: ``workflow.yaml``; without it, the numbers of the folders and
  the Outputs tables;
- what is declared of a stage: its frontmatter, then ``workflow.yaml``, then the prose;
- a row of the prose about something that the state names is read only if the declared ``reads`` or
  ``writes`` have it (otherwise there is a warning), and then adds its scope and reason; rows about
  anything else (references, shared files, the conversation) always hold, since the state does not
  cover them.

The prompt of a stage has the contract's whole prose and the folder that its paths are from; files
are named, not included.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from pgflow.declare.graph import (
    Artifact,
    Compensation,
    Gate,
    Graph,
    Node,
    Pause,
    Position,
    Prompt,
    Use,
)
from pgflow.declare.graph.problems import Verdict
from pgflow.declare.icm.contracts import Contract, Entry
from pgflow.declare.icm.findings import Findings
from pgflow.declare.icm.flow import Wiring, wire
from pgflow.declare.icm.folders import (
    CONTRACT,
    MAX_ENTRIES,
    MAX_LINES_OF_ALL,
    Folder,
    Unreadable,
    decode,
    leads_beyond_border,
    leads_out,
    number_of,
)
from pgflow.declare.icm.locations import located
from pgflow.declare.icm.markdown import parse
from pgflow.declare.icm.rules import check_layout, check_style
from pgflow.declare.icm.sources import Places, StageSource, derive_state, place, read_stage
from pgflow.declare.icm.stagefields import STAGE_KEYS, StageFields, combine, read_stage_fields
from pgflow.declare.icm.state import entry_of, key_paths
from pgflow.declare.icm.workflow import Declared, Workflow, read_workflow

_FRONTMATTER_KEYS = STAGE_KEYS | {"stage_id"}
_UP = "../../"  # from a stage's folder to the workspace


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage with everything that is known of it: its files (if it has a folder), and what is
    declared of it.
    """

    id: str
    source: StageSource
    fields: StageFields
    has_frontmatter: bool
    at: Position

    @property
    def contract(self) -> Contract | None:
        """Its prose."""
        return self.source.contract


@dataclass(frozen=True, slots=True)
class Workspace:
    """A workspace that was read, before it becomes a graph."""

    folder: Folder
    name: str
    workflow_file: str | None
    workflow: Workflow
    stages: tuple[Stage, ...]
    description: str = ""
    identities: tuple[str, ...] = ()

    @property
    def state(self) -> Mapping[str, Artifact]:
        """The artifacts that flow between its stages."""
        return self.workflow.state


def read_workspace(
    directory: str | os.PathLike[str], overlay: Mapping[str, bytes] | None = None
) -> Verdict:
    """Read a workspace and compile it.

    Args:
        directory: Its root.
        overlay: Files that are read instead of those on disk, by their paths in the workspace.

    Returns:
        Its problems and, if none is an error, its graph: positions and files are named by their
        paths in the workspace.
    """
    findings = Findings()
    folder = Folder(Path(directory), overlay or {})
    workspace = load(folder, findings)
    graph = (
        compile_workspace(workspace, findings)
        if workspace is not None and not findings.failed
        else None
    )
    return Verdict(str(directory), tuple(findings.problems), None if findings.failed else graph)


def read_text(text: str, file: str) -> Verdict:
    """Compile a workflow file that is read alone, without the folders of its stages.

    Args:
        text: Its text.
        file: Its name, for the verdict and for positions.

    Returns:
        Its problems and, if none is an error, its graph.
    """
    findings = Findings(in_one_file=True)
    workflow = read_workflow(text, file, None, findings)
    graph = None
    if workflow is not None and not findings.failed:
        stages = tuple(_stage(declared, None, workflow, findings) for declared in workflow.stages)
        folder = Folder(Path(file).parent)
        name = workflow.name or Path(file).name.split(".")[0]
        state = located(folder, workflow.state, (stage.source for stage in stages))
        workspace = Workspace(folder, name, file, replace(workflow, state=state), stages)
        graph = compile_workspace(workspace, findings)
    return Verdict(file, tuple(findings.problems), None if findings.failed else graph)


def load(folder: Folder, findings: Findings) -> Workspace | None:
    """Read the files of a workspace.

    Args:
        folder: The workspace.
        findings: Collector of the findings.

    Returns:
        What they say; None if nothing can be made of them.
    """
    if not folder.root.is_dir():
        what = "is not a directory" if folder.root.exists() else "does not exist"
        findings.error(f"Workspace {what}: {folder.root}")
        return None
    try:
        names = folder.stages()
    except Unreadable as error:
        findings.error(str(error))
        return None
    file, workflow = _read_workflow(folder, findings)
    if file is not None and workflow is None:
        return None
    sources = list(_read_stages(folder, names, findings))
    if (
        sum(len(c.inputs) + len(c.outputs) for c in (source.contract for source in sources) if c)
        > MAX_ENTRIES
    ):
        findings.error(f"the contracts have more than {MAX_ENTRIES} inputs and outputs")
        return None
    check_layout(folder, sources, workflow, findings)
    check_style(folder, sources, findings)
    numbered = [
        source for source in sources if source.contract is not None or number_of(source.folder_name)
    ]
    return None if findings.failed else _assemble(folder, file, workflow, numbered, findings)


def _read_stages(folder: Folder, names: list[str], findings: Findings) -> Iterator[StageSource]:
    """Yield the stages, as long as they are together of a moderate size."""
    lines = 0
    for name in names:
        source = read_stage(folder, name, findings)
        lines += source.contract.text.count("\n") if source.contract is not None else 0
        if lines > MAX_LINES_OF_ALL:
            findings.error(f"the contracts have more than {MAX_LINES_OF_ALL} lines together")
            return
        yield source


def _read_workflow(folder: Folder, findings: Findings) -> tuple[str | None, Workflow | None]:
    """Return the workspace's workflow file, if it has one."""
    file = folder.workflow()
    if file is None:
        return None, None
    try:
        return file, read_workflow(decode(folder.read(file)), file, folder, findings)
    except Unreadable as error:
        findings.error(str(error), Position(file=file, line=1))
        return file, None


def _assemble(
    folder: Folder,
    file: str | None,
    workflow: Workflow | None,
    sources: list[StageSource],
    findings: Findings,
) -> Workspace:
    """Bring together what the files say."""
    own_ids = {source.id: source for source in sources}
    if workflow is None:
        state = derive_state(folder, sources)
        derived = tuple(Declared(source.id, source.at, None, StageFields()) for source in sources)
        workflow = Workflow(state=state, stages=derived)
    else:
        listed = {declared.id for declared in workflow.stages}
        for source in sources:
            if source.id not in listed:
                findings.warn(f"stage {source.id!r} is not in {file} and is not run", source.at)
    stages = tuple(
        _stage(declared, own_ids.get(declared.id), workflow, findings)
        for declared in workflow.stages
    )
    state = located(folder, workflow.state, (stage.source for stage in stages))
    return Workspace(
        folder=folder,
        name=workflow.name or folder.root.resolve().name,
        workflow_file=file,
        workflow=replace(workflow, state=state),
        stages=stages,
        description=workflow.description or _introduction(folder),
        identities=tuple(folder.identities()),
    )


def _stage(
    declared: Declared, source: StageSource | None, workflow: Workflow, findings: Findings
) -> Stage:
    """Return a stage with its fields: frontmatter before workflow.yaml."""
    if source is None:
        return Stage(
            declared.id,
            StageSource(declared.id, declared.id),
            declared.fields,
            has_frontmatter=False,
            at=declared.at,
        )
    if source.frontmatter is None:
        return Stage(declared.id, source, declared.fields, has_frontmatter=False, at=source.at)
    given = {key: value for key, value in source.frontmatter.items() if key in _FRONTMATTER_KEYS}
    for key, value in source.frontmatter.items():
        if key not in _FRONTMATTER_KEYS:
            findings.warn(f"unknown key {key!r} will be ignored", value.at)
    fields = combine(
        read_stage_fields(given, workflow.state, workflow.compensations),
        declared.fields,
        declared.id,
        findings,
    )
    return Stage(declared.id, source, fields, has_frontmatter=True, at=source.at)


def _introduction(folder: Folder) -> str:
    """Return the workspace's words on itself: the first paragraph of its routing file, or of its
    identity file.
    """
    for name in (CONTRACT, *folder.identities()):
        try:
            introduction = parse(decode(folder.read(name))).introduction()
        except Unreadable:
            continue
        if introduction:
            return introduction
    return ""


# The graph ----------------------------------------------------------------------------------------


def compile_workspace(workspace: Workspace, findings: Findings) -> Graph:
    """Return the graph of a workspace.

    Args:
        workspace: Contents of its files.
        findings: Collector of the findings.
    """
    may_miss = frozenset(
        stage.id for stage in workspace.stages if stage.fields.on_request or stage.fields.skips
    )
    wiring = wire(workspace.workflow.stages, may_miss, workspace.state, findings)
    compiling = _Compiling(workspace, findings, Places.of(workspace.folder, workspace.state))
    nodes = tuple(compiling.node(stage, wiring[stage.id]) for stage in workspace.stages)
    _check_order(workspace, nodes, findings)
    files = [
        workspace.workflow_file,
        *workspace.identities,
        *(stage.source.file for stage in workspace.stages if stage.contract),
    ]
    return Graph(
        name=workspace.name,
        family="icm",
        description=workspace.description,
        version=workspace.workflow.version,
        artifacts=tuple(workspace.state.values()),
        nodes=nodes,
        interactive=any(node.gates for node in nodes),
        files=tuple(file for file in files if file is not None),
    )


def _pause(fields: StageFields) -> Pause | None:
    if fields.wait is None and fields.deadline_ms is None:
        return None
    return Pause(until=fields.wait, deadline_ms=fields.deadline_ms, skips=bool(fields.skips))


def _check_order(workspace: Workspace, nodes: tuple[Node, ...], findings: Findings) -> None:
    """Warn of what is read before the stage that writes it has run."""
    direct = {node.id: node.depends_on for node in nodes}
    for node in nodes:
        ahead: set[str] = set()
        waiting = list(node.depends_on)
        while waiting:
            other = waiting.pop()
            if other not in ahead:
                ahead.add(other)
                waiting.extend(direct[other])
        for use in node.reads:
            writer = workspace.state[use.artifact].written_by if use.artifact is not None else None
            if writer is not None and writer != node.id and writer not in ahead:
                findings.warn(
                    f"stage {node.id!r} reads {use.artifact!r}, "
                    f"which {writer!r} has not written by then",
                    use.position,
                )


@dataclass(slots=True)
class _Compiling:
    """The compilation of one workspace's stages."""

    workspace: Workspace
    findings: Findings
    places: Places

    def node(self, stage: Stage, wiring: Wiring) -> Node:
        contract, fields = stage.contract, stage.fields
        reads = self._uses(stage, contract.inputs if contract else (), fields.reads, "reads")
        writes = self._uses(stage, contract.outputs if contract else (), fields.writes, "writes")
        return Node(
            id=stage.id,
            body=Prompt(text=self._text(stage, reads, writes), literal=True),
            title=contract.title if contract else "",
            description=fields.description or (contract.description if contract else ""),
            depends_on=wiring.depends_on,
            trigger_rule=wiring.trigger_rule,
            when=wiring.when,
            retry=fields.retry,
            timeout_ms=fields.timeout_ms,
            pause=_pause(fields),
            reads=(*reads, *self._globals()),
            writes=writes,
            effects=fields.effects or (),
            gates=(*self._gates(stage, reads), *(contract.gates if contract else ())),
            checks=contract.checks if contract else (),
            compensations=(*(fields.compensations or ()), *self._shared_compensations(stage)),
            position=stage.at,
        )

    def _uses(
        self, stage: Stage, rows: tuple[Entry, ...], declared: tuple[str, ...] | None, word: str
    ) -> tuple[Use, ...]:
        """Return the rows of a table that hold, then the declared artifacts that are in no row."""
        uses: list[Use] = []
        for row in rows:
            where = place(self.workspace.folder, stage.source.base, row)
            self._check_place(row, where, word)
            name = self.places.artifact(where)
            if name is None or declared is None or name in declared:
                uses.append(self._use(row, name))
            else:
                self.findings.warn(
                    f"{row.location!r} ({name}) is not among the declared {word} and is left out",
                    row.position,
                )
        mentioned = {use.artifact for use in uses}
        at = stage.fields.places.get(word)
        missing = [name for name in declared or () if name not in mentioned]
        return (
            *uses,
            *(
                Use(artifact=name, optional=self.workspace.state[name].optional, position=at)
                for name in missing
            ),
        )

    def _use(self, row: Entry, name: str | None) -> Use:
        optional = row.optional or (name is not None and self.workspace.state[name].optional)
        return Use(
            artifact=name,
            location=row.location or None,
            label=row.label,
            scope=row.scope,
            why=row.why,
            optional=optional,
            position=row.position,
        )

    def _check_place(self, row: Entry, where: str | None, word: str) -> None:
        """No path may lead out, but for what a collection of workspaces shares for reading."""
        folder = self.workspace.folder
        if where is None or not leads_out(folder, where):
            return
        if leads_beyond_border(folder, where) or (word == "writes" and not where.startswith("~")):
            self.findings.error(
                f"{row.location!r} leads out of the workspace",
                row.position,
                "Name a path below the workspace's folder.",
            )
        else:
            self.findings.warn(f"{row.location!r} lies outside the workspace", row.position)

    def _globals(self) -> tuple[Use, ...]:
        """Layer 0, which every stage's agent has before it."""
        names = self.workspace.identities
        return tuple(
            Use(location=_UP + name, label="Layer 0", position=Position(file=name, line=1))
            for name in names
        )

    def _gates(self, stage: Stage, reads: tuple[Use, ...]) -> tuple[Gate, ...]:
        """Return the points before a stage at which it waits for a person: a request, a go-ahead, a
        message from outside.
        """
        fields, gates = stage.fields, list[Gate]()
        if fields.on_request:
            gates.append(
                Gate(kind="request", at="before", name=stage.id, position=fields.places.get("gate"))
            )
        if fields.interrupt_before:
            gates.append(
                Gate(
                    kind="interrupt",
                    at="before",
                    name=stage.id,
                    position=fields.places.get("interrupt_before"),
                )
            )
        used = [use.artifact for use in reads] + [
            entry_of(path)
            for effect in fields.effects or ()
            for path in key_paths(effect.idempotency_key or "")
        ]
        entries = [
            self.workspace.state[name]
            for name in dict.fromkeys(used)
            if name is not None and name in self.workspace.state
        ]
        signals = [entry for entry in entries if entry.kind == "signal"]
        return (
            *gates,
            *(
                Gate(kind="signal", at="before", name=entry.name, position=entry.position)
                for entry in signals
            ),
        )

    def _shared_compensations(self, stage: Stage) -> tuple[Compensation, ...]:
        """Return the workflow's compensations that the stage's effects name."""
        own = {compensation.name for compensation in stage.fields.compensations or ()}
        named = {effect.compensation for effect in stage.fields.effects or ()} - own
        return tuple(
            compensation
            for compensation in self.workspace.workflow.compensations
            if compensation.name in named
        )

    def _text(self, stage: Stage, reads: tuple[Use, ...], writes: tuple[Use, ...]) -> str:
        """Return the prompt of the stage's agent."""
        parts = [f"You work in {stage.source.base}/; the paths below are from there."]
        if stage.contract is not None:
            parts.append(stage.contract.text)
        elif stage.fields.description:
            parts.append(stage.fields.description)
        for word, uses in (("Read", reads), ("Write", writes)):
            names = [
                self._named(use)
                for use in uses
                if use.location is None and use.artifact is not None
            ]
            if names:
                parts.append(f"{word}: {', '.join(names)}.")
        return "\n\n".join(parts)

    def _named(self, use: Use) -> str:
        """Return an artifact and where it is."""
        artifact = self.workspace.state[use.artifact or ""]
        return f"{artifact.name} ({_UP}{artifact.location})" if artifact.location else artifact.name
