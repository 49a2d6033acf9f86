"""Every command, in the order in which ``pgflow --help`` shows them.

The module of a command is imported when that command is asked for, and psycopg, pgflow and rich
when it runs: so help and completion answer at once.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Iterator, Mapping
from typing import Any

import typer
from typer.main import get_command, get_group

from pgflow_cli import version as own_version
from pgflow_cli.look import failures
from pgflow_cli.look.database import Dsn
from pgflow_cli.look.help import PLAIN, Command, Group

SECTIONS: dict[str, dict[str, tuple[str, str]]] = {
    "Begin": {
        "demo": ("demo:demo", "Kills workers, and proves that the books still balance."),
        "init": ("ops.schema:init", "Begins a project: installs the schema, writes flows.py."),
        "doctor": ("ops.doctor:doctor", "Examines a database, and says what to do."),
        "health": (
            "ops.health:health",
            "Says whether the database answers and fits; for probes.",
        ),
        "bench": ("ops.bench:bench", "Measures pgflow on a database, and says what limits it."),
        "install-skill": (
            "skill:install_skill",
            "Writes the skill for coding assistants, or renews it.",
        ),
    },
    "Start and work": {
        "start": ("runs.starting:start", "Starts a run; workers do the rest."),
        "run": ("runs.starting:run", "Starts a run, works on it here, and waits for its result."),
        "workers": ("ops.workers:workers", "Works on runs until SIGTERM, or lists the workers."),
        "tick": ("ops.tick:tick", "Drains queues once, for cron: ends when nothing is ready."),
    },
    "Write": {
        "check": ("files.checking:check", "Finds what a replay would not repeat in workflow code."),
    },
    "Workflows in SQL": {
        "apply": (
            "files.sqlflows:apply",
            "Runs files that create workflows in SQL: all, or none.",
        ),
        "flow": (
            "files.sqlflows:flow",
            "Lists workflows in SQL, or shows one with its text.",
        ),
    },
    "Declared workflows": {
        "validate": (
            "files.validating:validate",
            "Says everything that is wrong with workflow files.",
        ),
        "dry-run": ("files.dryrun:dry_run", "Tells what a run would do; nothing is run."),
        "compile": (
            "files.compiling:compile_workflow",
            "Prints the graph of a workflow, or draws it.",
        ),
        "icm": ("files.icm:icm", "Makes the prose of an ICM workspace executable."),
        "serve": (
            "ops.serve:serve",
            "Runs workflow files by schedule, webhook, topic or new file.",
        ),
        "reset-sessions": (
            "runs.sessions:reset_sessions",
            "Has agents forget what they keep from run to run.",
        ),
    },
    "Look": {
        "web": ("ops.web:web", "Serves the console: pages where people see, decide and mend."),
        "top": ("top.command:top", "Watches all work live in the terminal, and takes orders."),
        "list": ("runs.listing:list_runs", "Lists runs, the newest first."),
        "show": ("runs.showing:show", "Shows a run: where it is and why, input, result, calls."),
        "wait": ("runs.waiting:wait", "Waits until runs have ended, or are stuck."),
        "result": ("runs.waiting:result", "Waits for a run, and prints its result as JSON."),
        "logs": ("runs.following:logs", "Tells what happened to a run, line by line."),
        "query": ("runs.updates:query", "Prints what a run has published."),
        "timeline": ("runs.timeline:timeline", "Draws what a run did and waited for."),
        "gates": ("ledgers.gates:gates", "Lists the gates that wait for an answer."),
        "policy": ("ledgers.policy:policy", "Says what the policy would ask of an act."),
        "owed": ("ledgers.owing:owed", "Lists what is owed: effects and obligations."),
        "budgets": (
            "ledgers.budgets:budgets",
            "Shows what pools allow, or sets, revokes and grants.",
        ),
        "audit": (
            "ledgers.seals:audit",
            "Tells the story of a run, or proves that it is unchanged.",
        ),
        "queues": ("ops.queues:queues", "Shows queues, or pauses, resumes and sets rules of one."),
        "mcp": ("ops.mcp:mcp", "Serves tools to an assistant that started it."),
        "batches": ("runs.batches:batches", "Lists batches, or counts the runs of one."),
        "schedules": (
            "ops.schedules:schedules",
            "Shows what starts by itself, or sets it.",
        ),
        "locks": ("ops.locks:locks", "Shows who holds which lock, or takes one away."),
        "entities": ("ops.entities:entities", "Lists entities, or what was done to one."),
        "outbox": (
            "ops.outbox:outbox",
            "Shows relays and their lag, or replays and mends one.",
        ),
        "triggers": (
            "ops.triggers:triggers",
            "Lists triggers that start runs, or prints their statements.",
        ),
        "sql": ("ops.reading:sql", "Asks the database a question; it can change nothing."),
    },
    "Change code": {
        "replay": ("ops.replaying:replay", "Replays recorded runs against the code at hand."),
        "versions": (
            "ops.versions:versions",
            "Shows which versions open runs need, and who serves them.",
        ),
        "patches": ("ops.versions:patches", "Shows patches, and whether their old sides may go."),
        "export": ("ops.transfer:export", "Writes runs with their journals as JSON Lines."),
        "import": (
            "ops.transfer:import_runs",
            "Inserts exported runs as history that nothing can run.",
        ),
    },
    "Act": {
        "signal": ("runs.signals:signal", "Sends a signal to a run."),
        "request": ("runs.stages:request", "Asks a run for a stage that it would leave out."),
        "update": ("runs.updates:update", "Asks a run for an update, and waits for the answer."),
        "messages": (
            "runs.messages:messages",
            "Lists signals that no run has taken, or mends one.",
        ),
        "approve": ("ledgers.gates:approve", "Approves what a gate asks."),
        "edit": ("ledgers.gates:edit", "Approves something else than a gate asks."),
        "reject": ("ledgers.gates:reject", "Rejects what a gate asks."),
        "respond": ("ledgers.gates:respond", "Takes one of the decisions that a gate offers."),
        "escalate": ("ledgers.gates:escalate", "Says of a gate that somebody else must decide."),
        "take-over": (
            "ledgers.gates:take_over",
            "Says that you have done what a gate asks about.",
        ),
        "delegate": ("ledgers.gates:delegate", "Lets another answer a gate."),
        "settle": (
            "ledgers.owing:settle",
            "Says what became of an effect whose outcome is unknown.",
        ),
        "discharge": ("ledgers.owing:discharge", "Closes an obligation: it was done."),
        "transfer": ("ledgers.owing:transfer", "Hands an obligation to somebody outside."),
        "waive": ("ledgers.owing:waive", "Closes an obligation that need not be done."),
        "redact": ("ledgers.seals:redact", "Replaces a value of a run by its hash, for good."),
        "cancel": ("runs.orders:cancel", "Cancels runs: their code may clean up first."),
        "pause": ("runs.orders:pause", "Holds runs until they are resumed."),
        "resume": ("runs.orders:resume", "Lets paused or stuck runs go on."),
        "retry": ("runs.orders:retry", "Lets stuck or failed runs try again."),
        "rewind": ("runs.rewinding:rewind", "Takes a run back to an earlier point."),
        "restart": ("runs.rewinding:restart", "Begins a run anew, with its key."),
        "fork": ("runs.rewinding:fork", "Starts a run that begins with another's journal."),
    },
    "Database": {
        "migrate": ("ops.schema:migrate", "Installs the schema, or brings it up to date."),
        "prune": ("ops.pruning:prune", "Removes runs that ended long ago."),
        "cleanup": (
            "ops.cleaning:cleanup",
            "Removes what ended runs of files have left in a folder.",
        ),
        "pg": ("ops.embedded:pg", "The embedded Postgres server, for development."),
    },
}
"""Commands by section, each with its place and its line of help, so that a list of all of them
imports none.
"""

ELSEWHERE = {
    "abandon": "cancel",
    "console": "web",
    "dashboard": "web",
    "get": "show",
    "runs": "list",
    "status": "list",
    "worker": "workers",
}
"""Words of other engines for what a command does here: they are taken, and mean the same."""

EPILOG = (
    "Exit codes: "
    + " · ".join(f"{code} {meaning}" for code, meaning in failures.MEANINGS.items())
    + ". Taken too: "
    + " · ".join(f"{word} for {ours}" for word, ours in ELSEWHERE.items())
)


class Commands(Mapping[str, Any]):
    """The commands by name, each made when it is first asked for."""

    def __init__(self) -> None:
        self._places = {
            name: place for section in SECTIONS.values() for name, (place, _) in section.items()
        }
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            self._made[name] = make_command(name, self._places[name])
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


class Pgflow(Group):
    """Knows its commands by name, and says of them what `SECTIONS` says."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**{**attributes, "commands": Commands()})

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that is asked for, also by a word of another engine."""
        return super().resolve_command(ctx, ours(args))

    def list_commands(self, ctx: Any) -> list[str]:
        """Their names."""
        del ctx
        return list(self.commands)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """The list of commands, by what one is about to do."""
        del ctx
        widest = max(len(name) for section in SECTIONS.values() for name in section)
        for title, section in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl(
                    [(name.ljust(widest), text) for name, (_, text) in section.items()]
                )


def ours(args: list[str]) -> list[str]:
    """A command line in our words. The status of a run is its page, and the status of all of them
    are the open ones.
    """
    if not args or args[0] not in ELSEWHERE:
        return args
    word, *rest = args
    if word == "status":
        from pgflow_cli.look.selection import OPEN

        names_run = bool(rest) and not rest[0].startswith("-")
        return ["show", *rest] if names_run else ["list", "--status", ",".join(OPEN), *rest]
    return [ELSEWHERE[word], *rest]


def make_command(name: str, place: str) -> Any:
    """The command that a function is, or a group of them."""
    module, attribute = place.split(":")
    found = getattr(importlib.import_module(f"pgflow_cli.{module}"), attribute)  # noqa: TID251 - from a table in the code
    if isinstance(found, typer.Typer):
        command: Any = get_group(found)
    else:
        alone = typer.Typer(add_completion=False, **PLAIN)
        alone.command(name, cls=Command)(found)
        command = get_command(alone)
    command.name = name
    return command


def _version(asked: bool) -> None:
    if asked:
        typer.echo(own_version())
        raise typer.Exit


app = typer.Typer(
    name="pgflow",
    cls=Pgflow,
    help="Durable execution with nothing but Postgres.",
    epilog=EPILOG,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    **PLAIN,
)


@app.callback()
def _main(
    *,
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Say which version this is."
    ),
    dsn: Dsn = None,
) -> None:
    """Durable execution with nothing but Postgres."""
    del version
    if dsn is not None:  # for the command, whose own option has the last word
        os.environ["PGFLOW_DSN"] = dsn
    from pgflow_cli.look.logs import quiet_driver

    quiet_driver()


def needs_target(arguments: list[str]) -> bool:
    """Return True if a command line asks for work without naming the module to work on; for a front
    that knows which.
    """
    name, *rest = arguments
    if name not in ("workers", "tick"):
        return False
    given = Commands()[name].make_context(name, rest, resilient_parsing=True).params
    lists = name == "workers" and (
        given.get("only_list") or given.get("as_csv") or given.get("as_json") is not None
    )
    return given["target"] is None and not lists


def run(arguments: list[str]) -> int:
    """Runs a command line; answers its exit code. A mistake is one line on standard error."""
    try:
        answer = get_command(app)(args=arguments, prog_name="pgflow", standalone_mode=False)
    except failures.Ended as ended:
        return ended.code
    except typer.Abort as aborted:
        is_interrupted = isinstance(aborted.__context__, KeyboardInterrupt)
        failures_say("nothing was done", below=is_interrupted)
        return failures.INTERRUPTED if is_interrupted else failures.FAILED
    except KeyboardInterrupt:
        failures_say("interrupted", below=True)
        return failures.INTERRUPTED
    except BrokenPipeError:
        return _unread()
    except SystemExit as ended:
        if isinstance(ended.__context__, BrokenPipeError):  # typer has seen it first
            return _unread()
        raise
    except Exception as error:  # noqa: BLE001 - whatever it is, it has an exit code
        return _fail(error)
    return answer if isinstance(answer, int) else failures.DONE


def _unread() -> int:
    """End without complaint when the reader of our output has had enough: Python must not write to
    it at its end.
    """
    os.dup2(
        os.open(os.devnull, os.O_WRONLY),
        sys.__stdout__.fileno() if sys.__stdout__ is not None else 1,
    )
    return failures.DONE


def _fail(error: Exception) -> int:
    from pgflow_cli.look.output import printable

    if hasattr(error, "format_message"):
        return _misused(error)
    code, line = failures.explain(error)
    if line is None or os.environ.get("PGFLOW_TRACEBACK"):
        from pgflow.texts import without_secrets

        print(
            printable(without_secrets("".join(traceback.format_exception(error)))),
            end="",
            file=sys.stderr,
        )
    if line is not None:
        failures_say(line)
    return code


def _misused(error: Any) -> int:
    """A command line that cannot be read: what is wrong with it, and where to look."""
    path = getattr(getattr(error, "ctx", None), "command_path", "pgflow")
    if type(error).__name__ == "NoArgsIsHelpError":
        print(error.ctx.get_help())
    else:
        message = " ".join(error.format_message().split())
        print(
            f"{path}: {message}{'' if message.endswith(('.', '?')) else '.'} See `{path} --help`",
            file=sys.stderr,
        )
    return failures.USAGE


def failures_say(line: str, *, below: bool = False) -> None:
    """Says what went wrong; below the ^C that a terminal shows."""
    from pgflow_cli.look.output import shown

    print(
        f"{chr(10) if below and sys.stderr.isatty() else ''}pgflow: {shown(line)}", file=sys.stderr
    )
