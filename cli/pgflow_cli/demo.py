"""``pgflow demo``: a shop whose workers are killed while it sells, made visible.

It runs a day of the shop (`shop`) and shows it: the orders as cells that change colour, the workers
with their runs, a worker that dies, its runs that continue elsewhere. In the end the shop's book is
compared with the payment provider's, the timeline of one killed run is drawn, and commands are
named that look further.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pgflow import inspect
from pgflow.console.output import console, say
from pgflow_cli.look.database import Dsn
from pgflow_cli.look.declaring import opt
from pgflow_cli.look.failures import FAILED, Ended, mistaken

if TYPE_CHECKING:
    from pgflow_cli.shop.day import Options, Report
    from pgflow_cli.shop.proof import Proof

FAST_ORDERS = 24


def demo(
    *,
    fast: bool = False,
    orders: Annotated[int | None, opt(min=1, max=1000, show_default="60")] = None,
    kills: Annotated[int, opt(min=0, max=50)] = 3,
    seed: int = 1,
    prove: bool = False,
    folder: Path | None = None,
    dsn: Dsn = None,
) -> None:
    """Kills workers, and proves that the books still balance.

    Two workers fulfil the orders of a shop, against a payment provider and a courier that lose
    answers. Workers are killed with SIGKILL while they hold runs; the others go on. Then the shop's
    book is compared with the provider's, to the cent. It needs nothing but Python: without a
    database it starts the embedded one, and stops whatever it has started.

    Args:
        fast: Fewer orders, and a provider that answers sooner.
        orders: So many orders.
        kills: Workers to kill while they hold runs.
        seed: Of the orders, and of the answers that get lost.
        prove: Run nothing: compare the books of the last demo once more.
        folder: Folder for the provider's book and the logs; else a temporary one.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)  # so that whatever was started is stopped
    import sqlite3

    from pgflow_cli.shop.day import Options, ShopError, prove_last

    options = Options(
        orders=orders or (FAST_ORDERS if fast else Options.orders),
        kills=kills,
        seed=seed,
        folder=folder,
        latency_ms=50.0 if fast else Options.latency_ms,
    )
    with mistaken(ShopError, sqlite3.Error):
        proofs = prove_last(dsn, _say_plainly) if prove else _run(dsn, options)
    if prove:
        _show_proofs(proofs)
    if not all(proof.holds for proof in proofs):
        raise Ended(FAILED)


def _run(dsn: str | None, options: Options) -> Sequence[Proof]:
    from pgflow_cli.shop.day import database, run_day

    began = time.monotonic()
    with database(dsn, _say_plainly) as found:
        if sys.stdout.isatty():
            from pgflow_cli.shop.stage import Stage

            with Stage(console(), options.orders) as stage:
                report = run_day(found, options, stage.say, stage.look)
        else:
            report = run_day(found, options, _say_plainly)
        _show_proofs(report.proofs)
        counts = report.counts
        say(
            f"The provider lost {counts.lost} answers and was asked again {counts.again} times; it "
            "knew each order by its key."
        )
        _show_killed_run(found, report)
    _show_further(report, options.orders, time.monotonic() - began)
    return report.proofs


def _say_plainly(line: str) -> None:
    print(line, flush=True)


# ---------------------------------------------------------------- afterwards


def _show_proofs(proofs: Sequence[Proof]) -> None:
    """Print each proof on a line: that nothing was lost and nothing done twice."""
    say("\n", ("The shop's book against the provider's", "bold"))
    width = max(len(proof.name) for proof in proofs)
    for proof in proofs:
        sign = ("PASS", "green") if proof.holds else ("FAIL", "bold red")
        faults = [(f"\n     - {fault}", "red") for fault in proof.faults[:3]]
        say(sign, f" {proof.name:{width}}  ", (proof.figure, "bright_black"), *faults)
    if failed := sum(not proof.holds for proof in proofs):
        say((f"{failed} of {len(proofs)} proofs FAILED", "bold red"))
    else:
        verdict = f"All {len(proofs)} proofs hold: every order was fulfilled exactly once."
        say((verdict, "bold green"))


def _show_killed_run(dsn: str, report: Report) -> None:
    """Print the timeline of a run whose worker was killed."""
    from pgflow.console.bars import draw
    from pgflow_cli.look.database import connect

    held = [key for kill in report.kills for key in kill.held]
    if not held:
        return
    out = console()
    with connect(dsn) as connection:
        histories = [inspect.ask(connection, inspect.read_history(key)) for key in held[:20]]
    found = (h for h in histories if any(entry.name == "recovered" for entry in h.entries))
    history = next(found, histories[0])
    command = (f"pgflow timeline {history.run.key}", "cyan")
    say("\n", ("One of the runs whose worker was killed", "bold"), "   (", command, ")")
    for part in draw(history, out.width, is_unicode=out.encoding.lower().startswith("utf")):
        out.print(part)


_FURTHER = (
    ("every run of this day", "pgflow list --label shop={name}"),
    ("one of them, step by step", "pgflow show {name}/order-1"),
    (
        "how the orders ended",
        "pgflow sql \"select output#>>'{{}}' as ending, count(*) from runs group by 1\"",
    ),
    (
        "steps that took the most attempts",
        'pgflow sql "select key, step, attempts from steps order by attempts desc limit 10"',
    ),
    ("the console", "pgflow web"),
    ("the books once more, after you have changed a cent in shop.payment", "pgflow demo --prove"),
)


def _show_further(report: Report, orders: int, seconds: float) -> None:
    """Print commands that look further, and name what is left."""
    say("\n", ("Look further", "bold"))
    for what, command in _FURTHER:
        say((f"# {what}\n", "bright_black"), (command.format(name=report.name), "cyan"))
    say(
        f"\n{orders} orders, {len(report.kills)} workers killed, {seconds:.1f} s. Everything that "
        "was started is stopped."
    )
    say(
        f"Left behind: runs with the label shop={report.name}, which `pgflow prune` removes; the "
        f"schema shop; the provider's book and the logs in {report.folder}."
    )
