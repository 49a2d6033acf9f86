"""Workers of a durable LangGraph graph are killed again and again: `python -m tests.graphkills
SERVER_DSN [--kills N] [--seed S]`.

Each node writes the key of its step to a file, and returns it. After each kill the keys that the
journal has are read: none of them may appear in the file again. Questions are answered while
workers die. Each run must complete, and with the same words. Every other run is of a sync workflow.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import signal
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import psycopg

sys.path.insert(0, str(Path(__file__).parent / "kits"))
sys.path.insert(0, str(Path(__file__).parent / "apps"))

import servers
from processes import WorkerProcess, eventually, one

from pgflow import App, Approve, GateClosed, inspect

RUNS_AT_ONCE = 3
WORDS = ["answer yes", "beside", "deep", "first", "item 0", "item 1", "item 2", "item 3"]
KEY = re.compile(r"node-[\w:./-]+")


def _recorded(conn: psycopg.Connection[Any]) -> set[str]:
    rows = conn.execute("select payload::text from pgflow.unit where payload::text like '%node-%'")
    return {key for (text,) in rows for key in KEY.findall(text)}


def _answer(app: App) -> None:
    for gate in inspect.ask(app, inspect.list_gates(limit=None)):
        try:
            app.answer(gate.gate, Approve("yes"), by="ada")
        except GateClosed:  # answered a moment ago
            continue


def _again(trace: Path, known: dict[str, int]) -> list[str]:
    """Return what was written by steps that were recorded before."""
    wrong, place = [], 0
    for line in trace.read_bytes().splitlines(keepends=True):
        key = line.decode().strip()
        if place >= known.get(key, place + 1):
            wrong.append(f"{key} was recorded, and ran again")
        place += len(line)
    return wrong


def play(dsn: str, *, kills: int, seed: int, trace: Path) -> tuple[int, list[str]]:
    """Kill workers until so many have died.

    Returns:
        Number of runs, and what is wrong.
    """
    os.environ["GRAPH_TRACE"] = str(trace)
    os.environ["FORKED_IMPORTS"] = "pgflow.agent.langgraph langgraph.graph"
    trace.touch()
    rng, pause, known, runs = random.Random(seed), threading.Event(), dict[str, int](), 0
    with psycopg.connect(dsn, autocommit=True) as conn, App(dsn) as app:
        conn.execute("update pgflow.queue set max_deaths = 10000")  # a run that dies often goes on

        def open_runs() -> int:
            return int(one(conn, "select count(*) from pgflow.runs where finished_at is null"))

        def is_over() -> bool:
            _answer(app)
            return not open_runs()

        for kill in range(kills + 1):
            for _ in range(RUNS_AT_ONCE - open_runs()):
                flow = ("walk", "walk_in_thread")[runs % 2]
                conn.execute("select pgflow.start_run(%s, '{}'::json)", (flow,))
                runs += 1
            worker = WorkerProcess(dsn, "--concurrency", "4", module="graph_jobs")
            number = worker.registered()

            def is_at_work(number: int = number) -> bool:
                _answer(app)
                holds = "select count(*) from pgflow.lease where worker_id = %s"
                return bool(one(conn, holds, number)) or not open_runs()

            eventually(is_at_work, "the worker has taken over", 60)
            if kill == kills:
                eventually(is_over, "all runs end", 120)
            for _ in range(rng.randrange(1, 5)):
                pause.wait(rng.uniform(0.0, 0.15))
                _answer(app)
            worker.send(signal.SIGKILL)
            worker.process.communicate()
            size = trace.stat().st_size
            for key in _recorded(conn):
                known.setdefault(key, size)
        ended = conn.execute("select status, output from pgflow.runs").fetchall()
        unsound = conn.execute("select * from pgflow.check()").fetchall()
    wrong = _again(trace, known)
    wrong += [
        f"a run is {status} with {words}"
        for status, words in ended
        if status != "completed" or sorted(words) != WORDS
    ]
    return runs, [*wrong, *map(str, unsound)]


def main() -> int:
    """Plays in a database of its own, and prints a line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("dsn", help="a superuser's")
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    name = servers.create_database(options.dsn)
    try:
        dsn = servers.dsn_of(options.dsn, name)
        servers.install_schema(dsn)
        with tempfile.TemporaryDirectory() as folder:
            trace = Path(folder) / "trace"
            runs, wrong = play(dsn, kills=options.kills, seed=options.seed, trace=trace)
            nodes = len(trace.read_bytes().splitlines())
    finally:
        servers.drop_database(options.dsn, name)
    print(f"{options.kills} kills, {runs} runs, {nodes} nodes ran, {len(wrong)} wrong", flush=True)
    for line in wrong[:20]:
        print(f"FAILED {line}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
