"""``pgflow start`` and ``pgflow run``: a run begins, elsewhere or right here."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pgflow import inspect
from pgflow.console.output import Form, dump, note, shown
from pgflow_cli.look.database import Database
from pgflow_cli.look.declaring import Made, arg, opt
from pgflow_cli.look.failures import Mistake
from pgflow_cli.look.options import Answer, Deadline, OwnLabels
from pgflow_cli.look.parsing import parse_input, parse_moment, parse_pairs, parse_span, refuse_empty
from pgflow_cli.look.selection import exists
from pgflow_cli.runs.declared import FileOptions

if TYPE_CHECKING:
    from pgflow import AsyncApp, StartOptions, Workflow

RunKey = Annotated[
    str | None,
    opt(
        "Idempotency key: a second start with it is the same run.",
        "--key",
        "-k",
        callback=refuse_empty,
    ),
]

# ---------------------------------------------------------------- start


class IfTaken(StrEnum):
    """Action of `start` where a run has the key."""

    MATCH = "match"
    REJECT = "reject"
    ATTACH = "attach"
    REPLACE = "replace"


@dataclass(frozen=True)
class StartGiven:
    """Options of a start, as they are given. The help of each says what it is.

    Args:
        queue: Queue to wait in; else the workflow's own.
        priority: Lower numbers go first.
        at: Not before: a time with zone, or 10m (from now).
        if_taken: With --key: what to do if a run has it. match: the same input is the same run.
        key_for: With --key: the key counts while its run is open, and this long after its start.
        debounce: With --key: begin so long after the last start with it, which alone counts.
        max_wait: With --debounce or --collect: begin at the latest so long after the first start.
        collect: With --key and --max-wait: one run gets the lists of all starts, up to so many
            items.
        pool: Pool that the run draws on.
        version: With a name: pin the run to this version of the code.
    """

    key: RunKey = None
    queue: Annotated[str | None, opt("--queue", "-q")] = None
    priority: Annotated[int, opt(min=-32768, max=32767)] = 0
    at: str | None = None
    deadline: Deadline = None
    label: OwnLabels = None
    if_taken: IfTaken = IfTaken.MATCH
    key_for: Annotated[str | None, opt(metavar="DURATION")] = None
    debounce: Annotated[str | None, opt(metavar="DURATION")] = None
    max_wait: Annotated[str | None, opt(metavar="DURATION")] = None
    collect: Annotated[int | None, opt(metavar="ITEMS", min=1)] = None
    pool: str | None = None
    version: Annotated[str | None, opt(callback=refuse_empty)] = None

    def parsed(self) -> dict[str, Any]:
        """Return the options of a start that need no database.

        Raises:
            Mistake: One is invalid, or requires a key.
        """
        spans = {
            name: parse_span(getattr(self, name), f"--{name.replace('_', '-')}")
            for name in ("key_for", "debounce", "max_wait")
        }
        if self.if_taken is not IfTaken.MATCH and self.key is None:
            raise Mistake(f"--if-taken {self.if_taken.value} requires --key")
        if self.key is None and any(span is not None for span in (*spans.values(), self.collect)):
            raise Mistake("--key-for, --debounce, --max-wait and --collect require --key")
        return {
            "key": self.key,
            "priority": self.priority,
            "run_at": None if self.at is None else parse_moment(self.at, "--at"),
            "timeout": parse_span(self.deadline, "--deadline"),
            "labels": parse_pairs(self.label, "--label"),
            "if_taken": self.if_taken.value,
            "pool": self.pool,
            "collect": self.collect,
            **spans,
        }


def start(
    target: Annotated[str, arg(metavar="WORKFLOW")],
    given: Annotated[StartGiven, Made(StartGiven)],
    db: Answer,
    words: Annotated[list[str] | None, arg(metavar="NAME=TEXT|NAME:=JSON")] = None,
    *,
    text: Annotated[str | None, opt("--input", "-i")] = None,
    new: bool = False,
) -> None:
    """Starts a run; workers do the rest.

    Args:
        target: Name of a workflow that the database knows, or MODULE:WORKFLOW.
        words: Parameters of the workflow.
        text: All parameters as a JSON object, @FILE, or - for standard input.
        new: Start it even if the database does not know the name.
    """
    from pgflow import StartOptions

    value, parsed = parse_input(words, text), given.parsed()
    if ":" not in target and not target.endswith(".py"):
        name, defaults = target, None
        queue, version = _find_queue(db, name, given.queue, new=new), given.version or ""
    else:
        if given.version is not None:
            raise Mistake(
                f"--version requires the name of a workflow: the code of {target} decides whether "
                "its runs are pinned"
            )
        from pgflow_cli.look.targets import load_workflow

        workflow = load_workflow(target, db.given)[1]
        check_input(workflow, value)
        name, defaults, own = workflow.name, workflow.defaults_text, workflow.start_options
        queue, version = own.queue, own.version
        parsed["timeout"] = parsed["timeout"] or own.timeout
    if isinstance(parsed["run_at"], timedelta):
        parsed["run_at"] += db.now
    queue = queue if given.queue is None else given.queue
    options = StartOptions(**parsed, queue=queue, version=version)
    started = db.client.start_by_name(name, value, options, defaults=defaults)
    row = {"key": started.key, "workflow": name, "queue": options.queue, "new": started.is_new}
    facts = {
        "changed": options.debounce is not None and not started.is_new,
        "collected": options.collect is not None,
        "replaced": started.has_replaced,
    }
    row |= {fact: True for fact, holds in facts.items() if holds}
    db.answer(row, _describe(row))
    if db.form is Form.TABLE:
        _note_unserved(db, name, options)


def _note_unserved(db: Database, name: str, options: StartOptions) -> None:
    """Print why no worker takes a run now, if none does and the role may see that."""
    from psycopg.errors import InsufficientPrivilege

    try:
        is_served = db.ask(inspect.is_served(options.queue))
        why = db.ask(inspect.why_unserved(options.queue, name, options.version))
    except InsufficientPrivilege:  # a login of a tenant
        return
    if not is_served:
        text = f"No worker serves the queue {options.queue!r} now: it begins once one does"
        note(f"{text} (`pgflow workers MODULE`).")
    elif why:
        note(f"It is not taken now: {why}.")


def check_input(workflow: Workflow[..., Any], value: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments as the workflow's annotations say.

    Raises:
        Mistake: They do not fit.
    """
    from inspect import signature

    from pgflow.errors import NotStorable

    parameters = signature(workflow.fn).parameters
    takes = f"it takes ({', '.join(map(str, parameters.values()))})".replace("'", "")
    for name in value:
        if name not in parameters:
            raise Mistake(f"{workflow.name} has no parameter {name!r}: {takes}")
    for name, parameter in parameters.items():
        if parameter.default is parameter.empty and name not in value:
            raise Mistake(f"{workflow.name} needs parameter {name!r}: {takes}")
    try:
        return workflow.input_codec.decode(dump(value), f"the input of {workflow.name}")
    except NotStorable as error:
        problem = " ".join(str(error).split()).rpartition(f"the parameters of {workflow.name}: ")[2]
        raise Mistake(f"the input of {workflow.name} does not fit: {problem}; {takes}") from error


def _describe(started: dict[str, Any]) -> str:
    key = started["key"]
    begun = f"Started {key} ({started['workflow']}, queue {started['queue']})"
    if started.get("replaced"):
        return f"{begun}: the run that had the key is cancelled first"
    if started["new"]:
        return begun
    if started.get("changed"):
        return f"{key} had not begun: it begins later, with this input."
    if started.get("collected"):
        return f"{key} collects items: it has these too."
    return f"{key} is the same run as before: nothing new was started."


def _find_queue(db: Database, name: str, queue: str | None, *, new: bool) -> str:
    """Return the queue of a workflow that is known by name only: that of its latest run, else one
    that workers serve for it.

    Raises:
        Mistake: No run and no worker has ever named the workflow, so a run of it would never begin.
    """
    import difflib

    found = db.ask(inspect.find_queue(name))
    if found is not None:
        return found
    if new:
        return queue or "default"
    close = difflib.get_close_matches(name, db.ask(inspect.list_workflows()), 1)
    hint = "name it MODULE:WORKFLOW to take it from its code"
    hint = f"did you mean {close[0]}?" if close else hint
    raise Mistake(
        f"no run and no worker has named a workflow {name!r}: {hint} (--new starts it all the same)"
    )


# ---------------------------------------------------------------- run


FILES = "pgflow.declare.durable"
"""Module whose workers run files."""


@dataclass(frozen=True)
class RunGiven:
    """Options of a run that is worked on here, as they are given.

    Args:
        max_runtime: Stop waiting after 90s, 10m...: exit code 3, and the run goes on with the next
            worker.
        from_node: FILE, with --key: do this node of the run again, and all that ended after it.
        effects: With --from: what becomes of external nodes that were done: reuse, repeat or
            compensate.
    """

    key: RunKey = None
    deadline: Deadline = None
    label: OwnLabels = None
    max_runtime: str | None = None
    from_node: Annotated[str | None, opt("--from", metavar="NODE", callback=refuse_empty)] = None
    effects: Annotated[str | None, opt(metavar="WORD")] = None


@dataclass
class Prepared:
    """Target of a run: a workflow or a file.

    Attributes:
        app: Its app.
        workflow: The workflow.
        arguments: Arguments of the run.
        module: Module that a worker of it serves.
        file: The workflow file; None for a workflow in Python.
        label: Name of the file, as a label of its runs.
    """

    app: AsyncApp
    workflow: Workflow[..., Any]
    arguments: dict[str, Any]
    module: str = FILES
    file: Path | None = None
    label: str = ""


def run(
    called: typer.Context,
    target: Annotated[str, arg(metavar="MODULE[:WORKFLOW]|FILE|FOLDER|NAME")],
    options: Annotated[FileOptions, Made(FileOptions)],
    given: Annotated[RunGiven, Made(RunGiven)],
    db: Answer,
    *,
    watch: bool = False,
    log_level: str = "warning",
) -> None:
    """Starts a run, works on it here, and waits for its result.

    The process serves the workflow's queue until the run is over; what else it has taken by then,
    it hands back. A run that waits for a person ends it with exit code 4; the same command with the
    same key goes on.

    Args:
        target: The workflow: MODULE:NAME, FILE.py:NAME, a YAML file or SOP, the folder of a
            workspace, or a name in .archon/workflows, of an SOP here or in sops/.
        watch: FILE: print each node as it begins and ends.
        log_level: debug, info, warning or error.
    """
    import asyncio

    from pgflow_cli.look.logs import set_up_logging
    from pgflow_cli.runs.running import RunHere, Watch

    set_up_logging(log_level, tells_failures=True)
    limit = parse_span(given.max_runtime, "--max-runtime")
    timeout = parse_span(given.deadline, "--deadline")
    labels, pool = parse_pairs(given.label, "--label"), options.pool
    found = _prepare(db, target, options, given)
    if found.label:
        labels = {"file": found.label, **labels}
    workflow = found.workflow.options(
        key=given.key, timeout=timeout, labels=labels or None, budget=pool
    )
    if options.detach:
        _start_only(db, workflow, found.arguments, given.key)
        return
    goes_back = given.from_node is not None
    more = None if goes_back else () if given.key is not None else ("--key",)
    here = RunHere(
        found.app,
        None if limit is None else limit.total_seconds(),
        partial(_how_to_go_on, called.find_root().obj, more, found.module),
        shows_progress=db.form is Form.TABLE and sys.stderr.isatty(),
        watch=Watch(as_json=db.form is Form.JSON) if watch else None,
        stops_at_gates=found.file is not None,
    )
    attach = given.key if goes_back else None
    key, output = asyncio.run(here.run(workflow, found.arguments, attach))
    result = dump(output) if found.file is None else shown(output["output"])
    row = {"key": key, "status": "completed", "output": output}
    db.answer(row, f"{key} completed: {result}")


def _prepare(db: Database, target: str, options: FileOptions, given: RunGiven) -> Prepared:
    """Return what a target names, with its arguments; rewind the run if it is to begin at a node.

    Raises:
        Mistake: It cannot be run like this.
    """
    from pgflow_cli.look.targets import NoModule, load_module, load_workflow
    from pgflow_cli.runs import declared, stages

    folders = options.folders
    file = declared.find_file(target, folders)
    if given.from_node is not None:
        _go_back(db, file, given.key, given.from_node, given.effects, options)
        return Prepared(*_app_of_files(db.dsn), {}, file=file)
    if file is not None:
        ask = partial(stages.ask_missing, db, given.key)
        arguments = declared.prepare(file, options, ask)
        declared.check_folder(db, arguments, given.key)
        label = arguments["frozen"].graph.name[:255]
        return Prepared(*_app_of_files(db.dsn), arguments, file=file, label=label)
    if ":" not in target:
        try:
            load_module(target)
        except NoModule:
            raise Mistake(declared.unfound(target, folders)) from None
    options.refuse_other(target)
    app, workflow = load_workflow(target, db.dsn)
    value = parse_input(options.words, options.inputs[0] if options.inputs else None)
    return Prepared(app, workflow, check_input(workflow, value), target.partition(":")[0])


def _how_to_go_on(
    typed: tuple[str, ...], more: tuple[str, ...] | None, module: str, key: str
) -> str:
    """The commands that go on with a run, each on a line of its own, to be copied.

    Args:
        typed: Words of this command.
        more: Options that the same command needs for that; None if it would do something else.
        module: Module that a worker of it serves.
        key: Key of the run.
    """
    worker = f"pgflow workers {module}"
    if more is None:
        return f"Go on with:\n  {worker}"
    words = ["pgflow", *typed]
    here = shlex.join([*words, *(word for option in more for word in (option, key))])
    return f"Go on here with:\n  {here}\nor with a worker:\n  {worker}"


def _go_back(
    db: Database,
    file: Path | None,
    key: str | None,
    node: str,
    effects: str | None,
    options: FileOptions,
) -> None:
    """Rewind a run to a node.

    Raises:
        Mistake: The run is not named, or other options would change what it began with.
    """
    from pgflow_cli.look.options import EFFECTS, check_word
    from pgflow_cli.runs import declared

    if file is None or key is None:
        raise Mistake("--from requires a file and the --key of its run")
    own = ("words", "inputs", "provider", "providers", "cwd", "secret", "env", "budget", "detach")
    if any(getattr(options, name) for name in own):
        text = "--from reuses the options that the run began with"
        raise Mistake(f"{text}: pass --key and --from alone")
    check_word("--effects", effects, EFFECTS)
    declared.go_back(db, file, key, node, effects)


def _start_only(
    db: Database, workflow: Workflow[..., Any], arguments: dict[str, Any], key: str | None
) -> None:
    """Start a run that a worker elsewhere will take."""
    is_new = key is None or not exists(db, key)
    handle = db.client.start(workflow, **arguments)
    queue = workflow.start_options.queue
    row = {"key": handle.key, "workflow": workflow.name, "queue": queue, "new": is_new}
    db.answer(row, _describe(row))


def _app_of_files(dsn: str) -> tuple[AsyncApp, Workflow[..., Any]]:
    """Return the app that runs files."""
    from pgflow import AsyncApp
    from pgflow.declare.durable import declared

    return AsyncApp(dsn, include=[declared]), declared
