"""``pgflow start`` and ``pgflow run``: a run begins, elsewhere or right here."""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import replace
from datetime import timedelta
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from uuid import uuid4

import typer

from pgflow_cli.files.declared import Dialect, ProviderMap, SearchPath, check_search
from pgflow_cli.look.database import Dsn, database_now, fetch, find_dsn, opened
from pgflow_cli.look.failures import Mistake
from pgflow_cli.look.mail import wake
from pgflow_cli.look.output import AsJson, Form, choose_form, dump, note, plain, print_one, shown
from pgflow_cli.look.parsing import (
    parse_amounts,
    parse_duration,
    parse_input,
    parse_moment,
    parse_pairs,
    refuse_empty,
)

if TYPE_CHECKING:
    import psycopg

    from pgflow import AsyncApp, StartOptions, Workflow

Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="NAME=TEXT|NAME:=JSON", help="Parameters of the workflow.", show_default=False
    ),
]
Input = Annotated[
    str | None,
    typer.Option(
        "--input", "-i", help="All parameters as a JSON object, @FILE, or - for standard input."
    ),
]
RunKey = Annotated[
    str | None,
    typer.Option(
        "--key",
        "-k",
        callback=refuse_empty,
        help="Idempotency key: a second start with it is the same run.",
    ),
]
RunLabels = Annotated[
    list[str] | None,
    typer.Option(
        "--label",
        "-l",
        metavar="NAME=VALUE",
        help="A label to find the run by; may be given again.",
    ),
]
RunTimeout = Annotated[
    str | None,
    typer.Option("--deadline", help="Cancel the run if it is not over after 90s, 10m, 7d..."),
]


# ---------------------------------------------------------------- start


class IfTaken(StrEnum):
    """Action of `start` where a run has the key."""

    MATCH = "match"
    REJECT = "reject"
    ATTACH = "attach"
    REPLACE = "replace"


def start(
    target: Annotated[
        str,
        typer.Argument(
            metavar="WORKFLOW",
            help="Name of a workflow that the database knows, or MODULE:WORKFLOW.",
            show_default=False,
        ),
    ],
    words: Words = None,
    *,
    text: Input = None,
    key: RunKey = None,
    queue: Annotated[
        str | None, typer.Option("--queue", "-q", help="Queue to wait in; else the workflow's own.")
    ] = None,
    priority: Annotated[
        int, typer.Option(min=-32768, max=32767, help="Lower numbers go first.")
    ] = 0,
    at: Annotated[
        str | None, typer.Option(help="Not before: a time with zone, or 10m (from now).")
    ] = None,
    deadline: RunTimeout = None,
    label: RunLabels = None,
    if_taken: Annotated[
        IfTaken,
        typer.Option(
            "--if-taken",
            help="With --key: what to do if a run has it. match: the same input is the same run.",
        ),
    ] = IfTaken.MATCH,
    key_for: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="With --key: the key counts while its run is open, and this long after its start.",
        ),
    ] = None,
    debounce: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="With --key: begin so long after the last start with it, which alone counts.",
        ),
    ] = None,
    max_wait: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="With --debounce or --collect: begin at the latest so long after the first start.",
        ),
    ] = None,
    collect: Annotated[
        int | None,
        typer.Option(
            metavar="ITEMS",
            min=1,
            help="With --key and --max-wait: one run gets the lists of all starts, up to so many "
            "items.",
        ),
    ] = None,
    pool: Annotated[
        str | None, typer.Option("--pool", help="Pool that the run draws on.", show_default=False)
    ] = None,
    version: Annotated[
        str | None,
        typer.Option(
            callback=refuse_empty,
            help="With a name: pin the run to this version of the code.",
            show_default=False,
        ),
    ] = None,
    new: Annotated[
        bool,
        typer.Option("--new", help="Start it even if the database does not know the name."),
    ] = False,
    as_json: AsJson = None,
    dsn: Dsn = None,
) -> None:
    """Starts a run; workers do the rest."""
    form = choose_form(as_json=as_json)
    value = parse_input(words, text)
    labels = parse_pairs(label, "--label")
    if if_taken is not IfTaken.MATCH and key is None:
        raise Mistake(f"--if-taken {if_taken.value} requires --key")
    times = {
        name: None if text is None else parse_duration(text, f"--{name.replace('_', '-')}")
        for name, text in (("key_for", key_for), ("debounce", debounce), ("max_wait", max_wait))
    }
    if key is None and any(span is not None for span in (*times.values(), collect)):
        raise Mistake("--key-for, --debounce, --max-wait and --collect require --key")
    workflow = _load(target, dsn) if ":" in target or target.endswith(".py") else None
    if workflow is not None and version is not None:
        raise Mistake(
            f"--version requires the name of a workflow: the code of {target} decides whether its "
            "runs are pinned"
        )
    with opened(dsn) as connection:
        from pgflow.inspect import is_served, why_unserved

        name = target if workflow is None else workflow.name
        own_queue = (
            _find_queue(connection, name, queue, new=new)
            if workflow is None
            else workflow.start_options.queue
        )
        if workflow is not None:
            check_input(workflow, value)
        options = _options(
            connection,
            key,
            own_queue if queue is None else queue,
            priority,
            at,
            deadline,
            labels,
            workflow,
        )
        options = replace(
            options,
            if_taken=if_taken.value,
            pool=pool,
            key_for=times["key_for"],
            debounce=times["debounce"],
            max_wait=times["max_wait"],
            collect=collect,
            version=version or options.version,
        )
        started = _start(
            connection, name, value, options, None if workflow is None else workflow.defaults_text
        )
        served, why = (
            fetch(connection, is_served(options.queue)),
            fetch(connection, why_unserved(options.queue, name, options.version)),
        )
    print_one(form, started, lambda: plain(_say_started(started)))
    if not served and form is Form.TABLE:
        note(
            f"No worker serves the queue {options.queue!r} now: it begins once one does (`pgflow "
            "workers MODULE`)."
        )
    elif why is not None and form is Form.TABLE:
        note(f"It is not taken now: {why}.")


def _load(target: str, dsn: str | None) -> Workflow[..., Any]:
    from pgflow_cli.look.targets import load_workflow

    return load_workflow(target, dsn)[1]


def check_input(workflow: Workflow[..., Any], value: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments as the workflow's annotations say.

    Raises:
        Mistake: They do not fit.
    """
    import inspect

    from pgflow.errors import NotStorable

    parameters = inspect.signature(workflow.fn).parameters
    takes = f"it takes ({', '.join(str(parameter) for parameter in parameters.values())})".replace(
        "'", ""
    )
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


def _options(
    connection: psycopg.Connection[Any],
    key: str | None,
    queue: str,
    priority: int,
    at: str | None,
    deadline: str | None,
    labels: dict[str, str],
    workflow: Workflow[..., Any] | None,
) -> StartOptions:
    from pgflow._client.starts import new_keys
    from pgflow._model.options import StartOptions

    moment = None if at is None else parse_moment(at, "--at")
    if isinstance(moment, timedelta):
        moment = database_now(connection) + moment
    own = None if workflow is None else workflow.start_options.timeout
    timeout = own if deadline is None else parse_duration(deadline, "--deadline")
    return StartOptions(
        key=key or new_keys(1)[0],
        queue=queue,
        priority=priority,
        run_at=moment,
        timeout=timeout,
        labels=labels,
        version="" if workflow is None else workflow.start_options.version,
    )


def _start(
    connection: psycopg.Connection[Any],
    name: str,
    value: dict[str, Any],
    options: StartOptions,
    defaults: str | None,
) -> dict[str, Any]:
    from pgflow._db.calls.start import start_run
    from pgflow._db.query import run

    number = str(uuid4()) if options.collect is not None else None
    started = run(
        connection, start_run(name, dump(value), options, defaults=defaults, start_id=number)
    )
    if started.is_new:
        wake(connection, started.chains, [started.lane_id])
    said = {"key": started.key, "workflow": name, "queue": options.queue, "new": started.is_new}
    if options.debounce is not None and not started.is_new:
        said["changed"] = True
    if options.collect is not None:
        said["collected"] = True
    return said if started.replaced is None else {**said, "replaced": True}


def _say_started(started: dict[str, Any]) -> str:
    if started.get("replaced"):
        return (
            f"Started {started['key']} ({started['workflow']}, queue {started['queue']}): "
            "the run that had the key is cancelled first"
        )
    if started.get("changed"):
        return f"{started['key']} had not begun: it begins later, with this input."
    if started.get("collected") and not started["new"]:
        return f"{started['key']} collects items: it has these too."
    if started["new"]:
        return f"Started {started['key']} ({started['workflow']}, queue {started['queue']})"
    return f"{started['key']} is the same run as before: nothing new was started."


def _find_queue(
    connection: psycopg.Connection[Any], name: str, queue: str | None, *, new: bool
) -> str:
    """Return the queue of a workflow that is known by name only: that of its latest run, else one
    that workers serve for it.

    Raises:
        Mistake: No run and no worker has ever named the workflow, so a run of it would never begin.
    """
    from pgflow.inspect import find_queue, list_workflows

    found = fetch(connection, find_queue(name))
    if found is not None:
        return found
    if new:
        return queue or "default"
    import difflib

    close = difflib.get_close_matches(name, fetch(connection, list_workflows()), 1)
    hint = (
        f"did you mean {close[0]}?" if close else "name it MODULE:WORKFLOW to take it from its code"
    )
    raise Mistake(
        f"no run and no worker has named a workflow {name!r}: {hint} (--new starts it all the same)"
    )


# ---------------------------------------------------------------- run


FILES = "pgflow.declare.durable"
"""Module whose workers run files."""


class Folder(StrEnum):
    """Action of `run` where another run works in the folder."""

    WAIT = "wait"
    REFUSE = "refuse"
    SHARE = "share"


def run(
    called: typer.Context,
    target: Annotated[
        str,
        typer.Argument(
            metavar="MODULE[:WORKFLOW]|FILE|FOLDER|NAME",
            help="The workflow: MODULE:NAME, FILE.py:NAME, a YAML file or SOP, the folder of a "
            "workspace, or a name in .archon/workflows, of an SOP here or in sops/.",
            show_default=False,
        ),
    ],
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME=TEXT|NAME:=JSON|MESSAGE",
            help="Parameters of a workflow in Python; the message of one in a file.",
            show_default=False,
        ),
    ] = None,
    *,
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            "-i",
            help="All parameters as a JSON object, @FILE, or - for standard input; of a file also "
            "NAME=TEXT, and more than once.",
        ),
    ] = None,
    key: RunKey = None,
    deadline: RunTimeout = None,
    label: RunLabels = None,
    max_runtime: Annotated[
        str | None,
        typer.Option(
            help="Stop waiting after 90s, 10m...: exit code 3, "
            "and the run goes on with the next worker."
        ),
    ] = None,
    cwd: Annotated[
        Path | None, typer.Option(help="FILE: folder to work in; else this one.")
    ] = None,
    provider: Annotated[
        str | None,
        typer.Option(
            help="FILE: who takes the turns of agents: cmd:COMMAND, python:MODULE:FUNCTION, "
            "stub:FILE, or a plug-in."
        ),
    ] = None,
    providers: ProviderMap = None,
    env: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="FILE: a variable that programs get too."),
    ] = None,
    secret: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="FILE: the same, and its value is taken out of everything that is recorded.",
        ),
    ] = None,
    budget: Annotated[
        list[str] | None,
        typer.Option(
            metavar="UNIT=AMOUNT",
            help="Most that the run may spend, such as usd=5; may be given again.",
        ),
    ] = None,
    from_node: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="NODE",
            callback=refuse_empty,
            help="FILE, with --key: do this node of the run again, and all that ended after it.",
        ),
    ] = None,
    effects: Annotated[
        str | None,
        typer.Option(
            metavar="WORD",
            help="With --from: what becomes of external nodes that were done: reuse, repeat or "
            "compensate.",
        ),
    ] = None,
    ignore: Annotated[
        list[str] | None,
        typer.Option(metavar="FIELD", help="FILE: a limit of agents that may be overlooked."),
    ] = None,
    base: Annotated[str | None, typer.Option(metavar="BRANCH", help="FILE: $BASE_BRANCH.")] = None,
    context: Annotated[Path | None, typer.Option(help="FILE: file with $CONTEXT.")] = None,
    parallel: Annotated[int, typer.Option(min=1, help="FILE: most nodes at work at once.")] = 8,
    dialect: Annotated[
        Dialect, typer.Option(help="FILE: a rejection cancels the run, or fails the node (ion).")
    ] = Dialect.ARCHON,
    requested: Annotated[
        list[str] | None,
        typer.Option("--with", metavar="STAGE", help="FOLDER: a stage that runs on request only."),
    ] = None,
    chain: Annotated[
        bool, typer.Option("--chain", help="SOP: agents may have the SOPs run that it names.")
    ] = False,
    lease: Annotated[
        Folder,
        typer.Option(
            help="FILE: what to do if another run works in the folder, which it has alone."
        ),
    ] = Folder.WAIT,
    worktree: Annotated[
        bool,
        typer.Option("--worktree", help="FILE: work in a git worktree of the run's own."),
    ] = False,
    conversation: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="FILE: agents that persist_session go on in its last run.",
        ),
    ] = "",
    search: SearchPath = None,
    detach: Annotated[
        bool, typer.Option("--detach", help="FILE: only start it; a worker does the rest.")
    ] = False,
    watch: Annotated[
        bool, typer.Option("--watch", help="FILE: print each node as it begins and ends.")
    ] = False,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "warning",
    as_json: AsJson = None,
    dsn: Dsn = None,
) -> None:
    """Starts a run, works on it here, and waits for its result.

    The process serves the workflow's queue until the run is over; what else it has taken by then,
    it hands back. A run that waits for a person ends it with exit code 4; the same command with the
    same key goes on.
    """
    from pgflow_cli.look.logs import set_up_logging
    from pgflow_cli.look.targets import NoModule, load_module, load_workflow
    from pgflow_cli.runs import asking, declared
    from pgflow_cli.runs.running import run_here

    form = choose_form(as_json=as_json)
    set_up_logging(log_level, tells_failures=True)
    limit = (
        None
        if max_runtime is None
        else parse_duration(max_runtime, "--max-runtime").total_seconds()
    )
    timeout = None if deadline is None else parse_duration(deadline, "--deadline")
    labels = parse_pairs(label, "--label")
    folders = check_search(search)
    file = declared.find_file(target, folders)
    pool = parse_amounts(budget) if budget else None
    if from_node is not None:
        given = words or inputs or provider or providers or cwd or secret or env or pool
        _go_back(dsn, file, key, from_node, effects, has_more=bool(given) or detach)
        app, workflow = _app_of_files(find_dsn(dsn))
        arguments = {}
    elif file is not None:
        wishes = declared.Wishes(
            words or [],
            inputs or [],
            cwd,
            provider,
            tuple(env or ()),
            tuple(secret or ()),
            pool is not None,
            detach,
            tuple(ignore or ()),
            base,
            context,
            parallel,
            dialect.value,
            tuple(requested or ()),
            chain,
            lease.value,
            worktree,
            conversation,
            folders,
            parse_pairs(providers, "--map"),
        )
        arguments = declared.prepare(file, wishes, partial(asking.ask_missing, dsn, key))
        declared.check_folder(dsn, arguments, key)
        app, workflow = _app_of_files(find_dsn(dsn))
        labels = {"file": arguments["frozen"].graph.name[:255], **labels}
    else:
        if ":" not in target:
            try:
                load_module(target)
            except NoModule:
                raise Mistake(declared.unfound(target, folders)) from None
        of_files = {
            "--cwd": cwd,
            "--with": requested,
            "--provider": provider,
            "--map": providers,
            "--env": env,
            "--secret": secret,
            "--ignore": ignore,
            "--base": base,
            "--context": context,
            "--chain": chain,
            "--worktree": worktree,
            "--conversation": conversation,
            "--path": search,
        }
        if said := [option for option, value in of_files.items() if value]:
            raise Mistake(f"{said[0]} requires a file, and {target} is not one")
        if len(inputs or ()) > 1:
            raise Mistake("--input holds all parameters in one object: pass it once")
        app, workflow = load_workflow(target, find_dsn(dsn))
        arguments = check_input(workflow, parse_input(words, inputs[0] if inputs else None))
    prepared = workflow.options(key=key, timeout=timeout, labels=labels or None, budget=pool)
    if detach:
        started = _start_only(dsn, prepared, arguments, key, deadline, labels)
        print_one(form, started, lambda: plain(_say_started(started)))
        return
    answer = run_here(
        app,
        prepared,
        arguments,
        limit,
        shows_progress=form is Form.TABLE and sys.stderr.isatty(),
        watch=watch,
        as_json=form is Form.JSON,
        stops_at_gates=file is not None,
        attach=None if from_node is None else key,
        again=partial(
            _how_to_go_on,
            called.find_root().obj,
            None if from_node is not None else () if key is not None else ("--key",),
            FILES if file is not None else target.partition(":")[0],
        ),
    )
    print_one(form, answer, lambda: plain(f"{answer['key']} completed: {_said(answer, file)}"))


def _how_to_go_on(
    typed: tuple[str, ...], more: tuple[str, ...] | None, module: str, key: str
) -> str:
    """The commands that go on with a run.

    Args:
        typed: Words of this command.
        more: Options that the same command needs for that; None if it would do something else.
        module: Module that a worker of it serves.
        key: Key of the run.
    """
    worker = f"pgflow workers {module}"
    if more is None:
        return f"Go on with: {worker}"
    words = ["pgflow", *typed]
    here = shlex.join([*words, *(word for option in more for word in (option, key))])
    return f"Go on here with: {here}; or with a worker: {worker}"


def _go_back(
    dsn: str | None,
    file: Path | None,
    key: str | None,
    node: str,
    effects: str | None,
    *,
    has_more: bool,
) -> None:
    """Rewind a run to a node.

    Raises:
        Mistake: The run is not named, or other options would change what it began with.
    """
    from pgflow_cli.runs import declared
    from pgflow_cli.runs.rewinding import check_effects

    if file is None or key is None:
        raise Mistake("--from requires a file and the --key of its run")
    if has_more:
        raise Mistake(
            "--from reuses the options that the run began with: pass --key and --from alone"
        )
    check_effects(effects)
    declared.go_back(dsn, file, key, node, effects)


def _start_only(
    dsn: str | None,
    workflow: Workflow[..., Any],
    arguments: dict[str, Any],
    key: str | None,
    deadline: str | None,
    labels: dict[str, str],
) -> dict[str, Any]:
    """Starts a run that a worker elsewhere will take."""
    value = json.loads(workflow.encode_input((), arguments))
    queue = workflow.start_options.queue
    with opened(dsn) as connection:
        options = _options(connection, key, queue, 0, None, deadline, labels, workflow)
        options = replace(options, budget=workflow.start_options.budget)
        return _start(connection, workflow.name, value, options, workflow.defaults_text)


def _said(answer: dict[str, Any], file: Path | None) -> str:
    """Return the value of a run that completed, or the words of a file."""
    return dump(answer["output"]) if file is None else shown(answer["output"]["output"])


def _app_of_files(dsn: str) -> tuple[AsyncApp, Workflow[..., Any]]:
    """Return the app that runs files."""
    from pgflow import AsyncApp
    from pgflow.declare.durable import declared

    return AsyncApp(dsn, include=[declared]), declared
