"""``pgflow demo``: treasury days that are closed while their workers are killed, made visible.

It runs the main example (`treasury`) and shows it: the days as cells that change colour, the
workers with what they hold, a worker that dies, its runs that go on elsewhere. In the end the two
books are compared, one killed run's timeline is drawn, and the questions are named that one may ask
the database next.
"""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pgflow_cli.look.database import Dsn
from pgflow_cli.look.failures import FAILED, Ended, Mistake
from pgflow_cli.look.output import console

if TYPE_CHECKING:
    from pgflow_cli.treasury.quarter import Options, Report

QUICK_DAYS = 15


def demo(
    *,
    fast: Annotated[
        bool,
        typer.Option(
            "--fast", help="Fifteen days instead of a quarter, and a bank that answers sooner."
        ),
    ] = False,
    days: Annotated[
        int | None, typer.Option(min=1, max=250, help="So many business days.", show_default=False)
    ] = None,
    kills: Annotated[
        int, typer.Option(min=0, max=50, help="Workers to kill while they hold runs.")
    ] = 3,
    seed: Annotated[
        int, typer.Option(help="Of the made-up flows, and of the lost answers of the bank.")
    ] = 2024,
    prove: Annotated[
        bool,
        typer.Option("--prove", help="Run nothing: compare the books of the last demo once more."),
    ] = False,
    folder: Annotated[
        Path | None,
        typer.Option(help="Where the bank's book and the logs go; else a temporary folder."),
    ] = None,
    dsn: Dsn = None,
) -> None:
    """Kills workers, and proves that the books still balance.

    Two workers close a company's treasury days against a bank that loses answers. Workers are
    killed with SIGKILL while they hold runs; the others go on. Then both books are compared to the
    cent. It needs nothing but Python: without a database it starts the embedded one, and stops
    whatever it has started.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)  # so that whatever was started is stopped
    _import_treasury()
    from pgflow_cli.treasury.quarter import Options, TreasuryError, prove_only

    options = Options(
        dsn=dsn,
        days=days or (QUICK_DAYS if fast else Options.days),
        kills=kills,
        seed=seed,
        folder=folder,
        latency_ms=20.0 if fast else Options.latency_ms,
    )
    try:
        holds = prove_only(dsn, None, _say_plainly) if prove else _run(options)
    except (TreasuryError, LookupError) as error:
        raise Mistake(str(error)) from error
    if not holds:
        raise Ended(FAILED)


def _import_treasury() -> None:
    """Import the treasury, or report that its extra is missing before anything is started."""
    from pgflow_cli.treasury.rates import RatesMissing, published

    try:
        published()
    except RatesMissing as error:
        raise Mistake(str(error)) from error


def _run(options: Options) -> bool:
    from pgflow_cli.treasury.quarter import close_quarter, database

    began = time.monotonic()
    with database(options.dsn, _say_plainly) as dsn:
        if sys.stdout.isatty():
            from pgflow_cli.treasury.stage import Stage

            with Stage(console(), options) as stage:
                report = close_quarter(dsn, options, stage.say, stage.look)
        else:
            report = close_quarter(dsn, options, _say_plainly)
        _show_proofs(report)
        _show_killed_run(dsn, report)
    _show_further(report, time.monotonic() - began)
    return all(proof.holds for proof in report.proofs)


def _say_plainly(line: str) -> None:
    print(line, flush=True)


# ---------------------------------------------------------------- afterwards


def _show_proofs(report: Report) -> None:
    """Print each proof on a line: that nothing was lost and nothing done twice."""
    from rich.table import Table
    from rich.text import Text

    out = console()
    out.print()
    out.print(Text("The bank's book against the general ledger, compared in SQL", style="bold"))
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 1, 0, 0))
    for proof in report.proofs:
        sign = Text("PASS", style="green") if proof.holds else Text("FAIL", style="bold red")
        table.add_row(sign, Text(proof.name), Text(proof.figure, style="bright_black"))
        for fault in proof.faults[:3]:
            table.add_row("", Text(f"- {fault}", style="red"), "")
    out.print(table)
    failed = sum(not proof.holds for proof in report.proofs)
    verdict = (
        f"{failed} of {len(report.proofs)} proofs FAILED"
        if failed
        else f"All {len(report.proofs)} proofs hold: every day was closed exactly once."
    )
    out.print(Text(verdict, style="bold red" if failed else "bold green"))
    again, lost = report.counts.get("asked again", 0), report.counts.get("acks lost", 0)
    out.print(
        Text(
            f"The bank lost {lost} answers and was asked again {again} times; it knew each "
            "instruction by its key."
        )
    )


def _show_killed_run(dsn: str, report: Report) -> None:
    """Print the timeline of a run whose worker was killed."""
    from pgflow.inspect import read_history
    from pgflow_cli.look.database import connect, fetch
    from pgflow_cli.runs.timeline import draw

    held = [key for kill in report.kills for key in kill.held]
    if not held:
        return
    out = console()
    with connect(dsn) as connection:
        histories = (fetch(connection, read_history(key)) for key in held)
        history = next(
            (h for h in histories if any(entry.name == "recovered" for entry in h.entries)), None
        )
        history = history or fetch(connection, read_history(held[0]))
    out.print()
    out.print(
        "[bold]One of the runs whose worker was killed[/bold]   ([cyan]pgflow timeline "
        f"{history.run.key}[/cyan])"
    )
    for part in draw(history, out.width, is_unicode=out.encoding.lower().startswith("utf")):
        out.print(part)


_QUESTIONS = (
    ("every run of these books", "pgflow list --label books={name}"),
    ("one of them, step by step", "pgflow show {name}/{day}"),
    (
        "which steps took the most attempts",
        (
            "pgflow sql \"select key, step, attempts from steps where key like '{name}/%' order by "
            'attempts desc limit 10"'
        ),
    ),
    (
        "where leases changed hands",
        (
            'pgflow sql "select key, count(distinct token) as leases from timeline where key like '
            "'{name}/%' group by key order by 2 desc\""
        ),
    ),
    (
        "what was filed",
        "pgflow sql \"select key, output from runs where key like '{name}/%' order by key\"",
    ),
    ("the books once more, after you have changed a cent", "pgflow demo --prove"),
)


def _show_further(report: Report, seconds: float) -> None:
    """Print questions to ask next: everything is a row."""
    from rich.text import Text

    out = console()
    out.print()
    out.print(Text("Look further", style="bold"))
    for what, command in _QUESTIONS:
        text = command.format(name=report.name, day=report.days[0])
        out.print(
            Text.assemble(("# " + what + "\n", "bright_black"), (text, "cyan")), soft_wrap=True
        )
    out.print()
    out.print(
        f"{len(report.days)} days, {len(report.kills)} workers killed, {seconds:.1f} s. Everything "
        "that was started is stopped."
    )
    out.print(f"The bank's book and the logs are in {report.folder}.", soft_wrap=True)
