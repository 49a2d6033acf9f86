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
from pgflow_cli.look.declaring import PLAIN, Group, make_group

SECTIONS: dict[str, dict[str, tuple[str, str]]] = {
    "Everyday": {
        "init": ("ops.schema", "Sets up a project: installs the schema, writes flows.py."),
        "migrate": ("ops.schema", "Installs the schema, or brings it up to date."),
        "workers": ("ops.workers", "Works on runs until SIGTERM, or lists the workers."),
        "start": ("runs.starting", "Starts a run; workers do the rest."),
        "run": ("runs.starting", "Starts a run, works on it here, and waits for its result."),
        "list": ("runs.listing:list_runs", "Lists runs, the newest first."),
        "show": ("runs.showing", "Shows a run: where it is and why, input, result, calls."),
        "logs": ("runs.following", "Prints the history of a run, line by line."),
        "signal": ("runs.messages", "Sends a signal to a run."),
        "gates": ("ledgers.gates", "Lists the gates that wait for an answer."),
        "approve": ("ledgers.gates", "Approves what a gate asks."),
        "cancel": ("runs.orders", "Cancels runs: their code may clean up first."),
        "retry": ("runs.orders", "Retries stuck or failed runs."),
        "web": ("ops.web", "Serves the web console."),
        "doctor": ("ops.doctor", "Checks a database, and shows how to fix what it finds."),
    },
    "Runs": {
        "wait": ("runs.waiting", "Waits until runs end or get stuck."),
        "result": ("runs.waiting", "Waits for a run, and prints its result as JSON."),
        "query": ("runs.messages", "Prints what a run has published."),
        "timeline": ("runs.following", "Draws what a run did and waited for."),
        "update": ("runs.messages", "Sends an update to a run, and waits for the answer."),
        "request": ("runs.stages", "Requests a stage that a run would skip."),
        "messages": ("runs.messages", "Lists undelivered signals, or repairs one."),
        "pause": ("runs.orders", "Holds runs until they are resumed."),
        "resume": ("runs.orders", "Resumes paused or stuck runs."),
        "rewind": ("runs.orders", "Takes a run back to an earlier point."),
        "restart": ("runs.orders", "Restarts a run from the beginning, with the same key."),
        "fork": ("runs.orders", "Starts a run from a copy of another's journal."),
        "batches": ("runs.listing", "Lists batches, or counts the runs of one."),
        "entities": ("ops.entities", "Lists entities, or the updates of one."),
    },
    "Queues": {
        "queues": ("ops.queues", "Shows queues, or pauses, resumes or configures one."),
        "schedules": ("ops.schedules", "Shows schedules, or changes one."),
        "locks": ("ops.entities", "Shows locks and their holders, or releases one."),
        "outbox": ("ops.outbox", "Shows relays and their lag, or replays or repairs one."),
        "triggers": ("ops.versions", "Lists triggers that start runs, or prints their statements."),
        "tick": ("ops.workers", "Drains queues once, for cron: ends when nothing is ready."),
    },
    "Ledgers": {
        "reject": ("ledgers.gates", "Rejects what a gate asks."),
        "edit": ("ledgers.gates", "Approves an edited version of the request."),
        "respond": ("ledgers.gates", "Answers a gate with one of the decisions it offers."),
        "escalate": ("ledgers.gates", "Escalates a gate to another person."),
        "take-over": ("ledgers.gates", "Closes a gate whose request you did yourself."),
        "delegate": ("ledgers.gates", "Delegates a gate to another person."),
        "owed": ("ledgers.owing", "Lists what is owed: effects and obligations."),
        "settle": ("ledgers.owing", "Records the outcome of an effect that is unknown."),
        "discharge": ("ledgers.owing", "Closes an obligation: it was done."),
        "transfer": ("ledgers.owing", "Hands an obligation to an outside party."),
        "waive": ("ledgers.owing", "Waives an obligation."),
        "budgets": ("ledgers.budgets", "Shows what pools allow, or sets, revokes and grants."),
        "policy": ("ledgers.policy", "Shows what the policy requires of an effect."),
        "audit": ("ledgers.seals", "Shows a run's audit trail, or proves that it is unchanged."),
        "redact": ("ledgers.seals", "Replaces a value of a run by its hash, permanently."),
    },
    "Files and code": {
        "migrate-from": ("files.translating", "Drafts pgflow code from code for DBOS or Temporal."),
        "check": ("files.checking", "Finds code in workflows that a replay would not repeat."),
        "validate": ("files.validating", "Lists all errors in workflow files."),
        "dry-run": ("files.dryrun", "Shows what a run would do, without running it."),
        "compile": (
            "files.validating:compile_workflow",
            "Prints the graph of a workflow, or draws it.",
        ),
        "icm": ("files.validating", "Makes the prose of an ICM workspace executable."),
        "serve": ("ops.serve", "Runs workflow files by schedule, webhook, topic or new file."),
        "reset-sessions": ("ops.cleaning", "Forgets the sessions that agents keep between runs."),
        "apply": ("files.sqlflows", "Runs files that create workflows in SQL: all, or none."),
        "flow": ("files.sqlflows", "Lists workflows in SQL, or shows one."),
        "replay": ("ops.versions", "Replays recorded runs against the current code."),
        "versions": ("ops.versions", "Shows which versions open runs need, and who serves them."),
        "patches": ("ops.versions", "Shows patches, and whether their old code can be removed."),
    },
    "Operations": {
        "cluster": ("ops.cluster", "Databases that are the nodes of one cluster."),
        "health": ("ops.schema", "Checks that the database answers and its schema fits."),
        "top": ("ops.top", "Opens the live console in the terminal."),
        "sql": ("ops.transfer", "Runs a read-only query against the database."),
        "export": ("ops.transfer", "Writes runs and journals as JSON Lines or Parquet."),
        "import": ("ops.transfer:import_runs", "Imports exported runs as read-only history."),
        "prune": ("ops.retaining", "Removes runs that ended long ago."),
        "retention": ("ops.retaining", "Shows how long runs are kept, or changes that."),
        "forget": ("ops.retaining", "Removes all runs of a subject, permanently."),
        "rotate": ("ops.retaining", "Wraps the keys of stored values with an app's present key."),
        "cleanup": ("ops.cleaning", "Removes what ended runs of files left in a folder."),
        "mcp": ("ops.mcp", "Serves MCP tools over standard input and output."),
        "bench": ("ops.bench", "Measures pgflow on a database, and says what limits it."),
        "demo": ("demo", "Kills workers, and proves that the books still balance."),
        "pg": ("ops.embedded", "The embedded Postgres server, for development."),
        "install-skill": ("skill", "Writes the skill for coding assistants, or renews it."),
    },
}
"""Commands by section, each with its module and its line of help, so that a list of all of them
imports none. The function has the name of the command, unless another one is given.
"""

ELSEWHERE = {
    "abandon": "cancel",
    "console": "web",
    "dashboard": "web",
    "effects": "owed",
    "get": "show",
    "history": "logs",
    "pools": "budgets",
    "runs": "list",
    "status": "list",
    "triage": "top --once",
    "worker": "workers",
}
"""Words of other engines, and of the console's pages, for what a command does here: they are taken,
and mean the same.
"""

EPILOG = (
    "Exit codes: "
    + " · ".join(f"{code} {meaning}" for code, meaning in failures.MEANINGS.items())
    + ". --dsn, and --tenant for the runs of one tenant, may come before the command."
    + " Also accepted: "
    + " · ".join(f"{word} for {ours}" for word, ours in ELSEWHERE.items())
)


class Commands(Mapping[str, Any]):
    """The commands by name, each made when it is first asked for."""

    def __init__(self) -> None:
        sections = SECTIONS.values()
        self._places = {name: at for section in sections for name, (at, _) in section.items()}
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
        """Return the command that is asked for, also by a word of another engine."""
        return super().resolve_command(ctx, ours(args))

    def list_commands(self, ctx: Any) -> list[str]:
        """Return their names."""
        del ctx
        return list(self.commands)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list of commands, by sections."""
        del ctx
        widest = max(len(name) for section in SECTIONS.values() for name in section)
        for title, section in SECTIONS.items():
            rows = [(name.ljust(widest), text) for name, (_, text) in section.items()]
            with formatter.section(title):
                formatter.write_dl(rows)


def ours(args: list[str]) -> list[str]:
    """Return a command line with the words of other engines replaced. ``status KEY`` is ``show
    KEY``, and ``status`` alone lists the open runs.
    """
    if not args or args[0] not in ELSEWHERE:
        return args
    word, *rest = args
    if word == "status":
        from pgflow_cli.look.selection import OPEN

        names_run = bool(rest) and not rest[0].startswith("-")
        return ["show", *rest] if names_run else ["list", "--status", ",".join(OPEN), *rest]
    return [*ELSEWHERE[word].split(), *rest]


def make_command(name: str, place: str) -> Any:
    """Return the command of a function, or the group of a Typer app."""
    module, _, attribute = place.partition(":")
    attribute = attribute or name.replace("-", "_")
    found = getattr(importlib.import_module(f"pgflow_cli.{module}"), attribute)  # noqa: TID251 - from a table in the code
    if isinstance(found, typer.Typer):
        command: Any = get_group(found)
    else:
        alone = make_group(name, "")
        alone.command(name)(found)
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
        False, "--version", callback=_version, is_eager=True, help="Print the version."
    ),
) -> None:
    """Durable execution with nothing but Postgres."""
    del version
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
    forms = given.get("only_list") or given.get("as_csv") or given.get("as_json") is not None
    lists = name == "workers" and forms
    return given["target"] is None and not lists


BEFORE = {"--dsn": "PGFLOW_DSN", "--tenant": "PGFLOW_TENANT"}
"""Options that may come before the command, and the variables that say the same."""


def after_common(arguments: list[str]) -> list[str]:
    """Return a command line without the options before the command that all commands share. They go
    to the environment for the command, whose own ``--dsn`` has the last word. As options of typer's
    they would cost each command, and its help, the import of pydantic.
    """
    rest, refused = arguments, []
    while rest and (name := rest[0].partition("=")[0]) in BEFORE:
        if "=" in rest[0]:
            value, rest = rest[0].partition("=")[2], rest[1:]
        elif len(rest) > 1:
            value, rest = rest[1], rest[2:]
        else:
            return rest
        if value:
            os.environ[BEFORE[name]] = value
        elif name == "--dsn":
            refused = ["--dsn", ""]  # which the command refuses by this name
        else:
            raise failures.Mistake(f"{name} is empty: pass a name, or leave it out")
    return [*rest, *refused]


def run(arguments: list[str]) -> int:
    """Run a command line and return its exit code. A mistake is one line on standard error."""
    try:
        answer = get_command(app)(
            args=after_common(arguments),
            prog_name="pgflow",
            standalone_mode=False,
            obj=tuple(arguments),
        )
    except failures.Ended as ended:
        return ended.code
    except typer.Abort as aborted:
        is_interrupted = isinstance(aborted.__context__, KeyboardInterrupt)
        print_mistake("nothing was done", below=is_interrupted)
        return failures.INTERRUPTED if is_interrupted else failures.FAILED
    except KeyboardInterrupt:
        print_mistake("interrupted", below=True)
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
    out = sys.__stdout__.fileno() if sys.__stdout__ is not None else 1
    os.dup2(os.open(os.devnull, os.O_WRONLY), out)
    return failures.DONE


def _fail(error: Exception) -> int:
    from pgflow.console.output import printable

    if hasattr(error, "format_message"):
        return _misused(error)
    code, line = failures.explain(error)
    if line is None or os.environ.get("PGFLOW_TRACEBACK"):
        from pgflow.texts import without_secrets

        text = printable(without_secrets("".join(traceback.format_exception(error))))
        print(text, end="", file=sys.stderr)
    if line is not None:
        print_mistake(line)
    return code


def _misused(error: Any) -> int:
    """Print the fault of a command line and the help to read; return the exit code."""
    path = getattr(getattr(error, "ctx", None), "command_path", "pgflow")
    if type(error).__name__ == "NoArgsIsHelpError":
        print(error.ctx.get_help())
    else:
        message = " ".join(error.format_message().split())
        end = "" if message.endswith((".", "?")) else "."
        print(f"{path}: {message}{end} See `{path} --help`", file=sys.stderr)
    return failures.USAGE


def print_mistake(line: str, *, below: bool = False) -> None:
    """Print what went wrong; below the ^C that a terminal shows."""
    from pgflow.console.output import shown

    start = "\n" if below and sys.stderr.isatty() else ""
    print(f"{start}pgflow: {shown(line)}", file=sys.stderr)
