"""Answerers that race for gates: `python -m tests.gaterace DSN [--gates N] [--answerers N] [--seed S]`.

At each gate all of them answer at the same moment, each on a connection of its own, a third of them
in transactions of a stricter isolation level, while a worker takes the verdicts. One must win, and
each loser must be told so: by PF022, with the name of the winner, or by 40001 where its snapshot is
older than the answer that won; then it asks again, and is told. The run gets the winner's verdict.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

import pgflow
from pgflow import App, workflow

sys.path.insert(0, str(Path(__file__).parent / "kits"))

import servers

LEVELS = ("read committed", "read committed", "read committed", "repeatable read", "serializable")
GATES_AT_ONCE = 50
"""Number of runs that wait while their gates are raced for, one after the other."""


@workflow
async def raced(n: int) -> str:
    """Asks, and answers with the name of the winner."""
    verdict = await pgflow.authority.gate(f"gate-{n}", n)
    assert isinstance(verdict, pgflow.authority.Rejected)
    return verdict.reason


@dataclass
class Race:
    """Figures of a race.

    Attributes:
        gates: Number of gates.
        winners: Gates by the number of those who won.
        told: Losers by what they were told at last.
        failed_first: Losers whose snapshot was too old, and who asked again.
        wrong: Broken promises, one line each.
        seconds: Time that it took.
    """

    gates: int = 0
    winners: Counter[int] = field(default_factory=Counter)
    told: Counter[str] = field(default_factory=Counter)
    failed_first: int = 0
    wrong: list[str] = field(default_factory=list)
    seconds: float = 0.0


def answer(
    own: psycopg.Connection, gate: str, name: str, level: str, begin: threading.Barrier
) -> tuple[str, bool]:
    """One answer; what came of it, and whether it was given twice, since a snapshot was too old."""
    for attempt in range(100):
        try:
            with own.transaction():
                own.execute(f"set transaction isolation level {level}")
                own.execute("select from pgflow.gate")
                if attempt == 0:
                    begin.wait(60)
                said = own.execute(
                    "select pgflow.answer_gate(%s, 'reject', reason => %s, by => %s)",
                    (gate, name, name),
                ).fetchall()
        except psycopg.errors.SerializationFailure:
            continue
        except psycopg.Error as error:
            detail = error.diag.message_detail or "{}"
            return f"{error.sqlstate} {json.loads(detail).get('by')}", attempt > 0
        own.execute("select pgflow.wake(array[%s::bigint], tell => true)", said[0])
        return "won", attempt > 0
    return "never answered", True


def race(dsn: str, gates: int, answerers: int = 16, seed: int = 1) -> Race:
    """Has answerers race for gates in a database that has the schema."""
    rng, found, started = random.Random(seed), Race(), time.monotonic()
    app = App(dsn, include=[raced])
    owns = [psycopg.connect(dsn, autocommit=True) for _ in range(answerers)]
    look = psycopg.connect(dsn, autocommit=True)
    begin = threading.Barrier(answerers)
    with app, app.worker(), ThreadPoolExecutor(answerers) as pool:
        for first in range(0, gates, GATES_AT_ONCE):
            numbers = range(first, min(gates, first + GATES_AT_ONCE))
            runs = [app.start(raced, n) for n in numbers]
            for n, run in zip(numbers, runs, strict=True):
                gate = _await_gate(look, run.key)
                names = [f"p{i}" for i in range(answerers)]
                levels = [rng.choice(LEVELS) for _ in names]
                told = list(
                    pool.map(
                        lambda own, name, level, gate=gate: answer(own, gate, name, level, begin),
                        owns,
                        names,
                        levels,
                    )
                )
                winners = [
                    name for name, (said, _) in zip(names, told, strict=True) if said == "won"
                ]
                found.gates += 1
                found.winners[len(winners)] += 1
                found.failed_first += sum(again for _, again in told)
                losers = [said for said, _ in told if said != "won"]
                found.told.update(said.split()[0] for said in losers)
                if len(winners) != 1:
                    found.wrong.append(f"gate {n} was won by {winners}")
                    continue
                (winner,) = winners
                found.wrong += [
                    f"a loser at gate {n} was told {said}, and {winner} had won"
                    for said in losers
                    if said != f"PF022 {winner}"
                ]
                if (result := run.result(timeout=60)) != winner:
                    found.wrong.append(
                        f"the run at gate {n} heard of {result}, and {winner} had won"
                    )
    found.wrong += servers.unsound(dsn)
    for own in (*owns, look):
        own.close()
    found.seconds = time.monotonic() - started
    return found


def _await_gate(look: psycopg.Connection, key: str) -> str:
    asked = "select gate from pgflow.gates where key = %s"
    servers.wait_until(lambda: look.execute(asked, (key,)).fetchall(), f"run {key} asks")
    ((gate,),) = look.execute(asked, (key,)).fetchall()
    return str(gate)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("dsn", help="server, as a superuser")
    parser.add_argument("--gates", type=int, default=1000)
    parser.add_argument("--answerers", type=int, default=16)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    name = servers.create_database(options.dsn)
    try:
        dsn = servers.dsn_of(options.dsn, name)
        servers.install_schema(dsn)
        found = race(dsn, options.gates, options.answerers, options.seed)
    finally:
        servers.drop_database(options.dsn, name)
    print(
        f"{found.gates} gates, {options.answerers} answerers each, in {found.seconds:.0f} s: "
        f"winners {dict(found.winners)}, losers told {dict(found.told)}, "
        f"{found.failed_first} after a snapshot that was too old"
    )
    for line in found.wrong:
        print(f"FAILED {line}")
    return 1 if found.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
