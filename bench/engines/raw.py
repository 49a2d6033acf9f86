"""The limit: the rows that a step leaves, written by bare psycopg, one commit each and many in one.

No engine can be faster than this on the same server and still have every step on disk before the
next.
"""

from __future__ import annotations

import json
import time
from typing import Any

import psycopg

from bench.engines import jobs, kit

COLUMNS = "(run_id, token, at, recorded_at, seq, call, kind, name, payload, starts)"
STEP = f"insert into step {COLUMNS} values (%s, 1, now(), now(), %s, %s, 'c', 'small', '{{\"i\": 1}}', '[[1, \"s\", \"small\", 1, 7]]')"
COMPRESSION = """do $$ begin alter table step alter column payload set compression lz4; exception when feature_not_supported then null; end $$"""
"""As the journal's, where the server was built with it."""
STEPS = (
    f"insert into step {COLUMNS} select r, 1, now(), now(), %s, %s, 'c', 'small', '{{\"i\": 1}}', "
    '\'[[1, "s", "small", 1, 7]]\' '
    "from unnest(%s::bigint[]) r"
)


def install(bench: kit.Bench) -> None:
    """A table like the journal's."""
    with bench.connect() as conn:
        conn.execute("""create table step (run_id bigint not null, token bigint not null, at timestamptz not null,
            recorded_at timestamptz not null, seq int not null, call int not null, kind "char" not null, name text, payload json,
            starts json, primary key (run_id, seq))""")
        conn.execute(
            "create table bench_app (id bigint generated always as identity primary key, v jsonb)"
        )


def _prepared(bench: kit.Bench) -> psycopg.Connection[Any]:
    return psycopg.connect(bench.dsn, autocommit=True, prepare_threshold=0)


def steps(bench: kit.Bench) -> kit.Figures:
    """One row a commit; and, for many runs at once, the rows of half of them a commit."""
    figures: kit.Figures = {}
    first_run = 0
    with _prepared(bench) as conn:
        for concurrency in (128, 32):
            group, runs = (
                concurrency // 2,
                bench[f"runs_at_{concurrency}"] // concurrency * concurrency,
            )
            with kit.Span() as span:
                for first in range(first_run, first_run + runs, group):
                    ids = list(range(first, first + group))
                    for seq in range(10):
                        conn.execute(STEPS, (seq, seq, ids))
            figures |= _rates(concurrency, runs, span)
            first_run += runs
        runs = bench["runs_at_1"]
        with kit.Span() as span:
            for run in range(first_run, first_run + runs):
                for seq in range(10):
                    conn.execute(STEP, (run, seq, seq))
        figures |= _rates(1, runs, span)
        bench.check("steps recorded", "select count(*) from step", (first_run + runs) * 10)
    with kit.settings_of(bench, "step"), _prepared(bench) as conn:
        conn.execute(STEP, (-1, 0, 0))
    return figures


def _rates(concurrency: int, runs: int, span: kit.Span) -> kit.Figures:
    return {
        f"steps_per_second_at_{concurrency}": runs * 10 / span.seconds,
        f"client_cpu_seconds_per_1000_steps_at_{concurrency}": span.cpu_seconds / runs * 100,
    }


TEXT = f"insert into step {COLUMNS} values (%s, 1, now(), now(), %s, %s, 'c', 'write', %s::json, '[[1, \"s\", \"write\", 1, 7]]')"
MAX_BATCH_BYTES = 4 * 1024 * 1024
"""Most bytes in one commit, as in the engine's."""


def payloads(bench: kit.Bench) -> kit.Figures:
    """Rows with long texts, those of 64 runs a commit as far as they fit, each commit in one round
    trip.
    """
    figures: kit.Figures = {}
    first_run = 0
    with _prepared(bench) as conn:
        conn.execute(COMPRESSION)
        for kb in kit.KB:
            text = json.dumps({"text": kit.prose(kb)}, ensure_ascii=False)
            runs = bench[f"runs_of_{kb}_kb"]
            group = min(64, -(-MAX_BATCH_BYTES // len(text)), max(1, runs // 2))
            with kit.Span() as span:
                for first in range(first_run, first_run + runs, group):
                    for seq in range(10):
                        with conn.pipeline(), conn.transaction():
                            for run in range(first, min(first + group, first_run + runs)):
                                conn.execute(TEXT, (run, seq, seq, text))
            figures[f"steps_per_second_of_{kb}_kb"] = runs * 10 / span.seconds
            first_run += runs
    bench.check("steps recorded", "select count(*) from step", first_run * 10)
    with kit.settings_of(bench, "step"), _prepared(bench) as conn:
        conn.execute(STEP, (-1, 0, 0))
    return figures


def transactional(bench: kit.Bench) -> kit.Figures:
    """The bare transaction: begin, one insert, commit."""
    count = bench["runs"] * 10
    with _prepared(bench) as conn, kit.Span() as span:
        for _ in range(count):
            conn.execute("begin")
            conn.execute("insert into bench_app (v) values (%s)", ('{"a": 1}',))
            conn.execute("commit")
    bench.check("rows of the application", "select count(*) from bench_app", count)
    return {"transactional_steps_per_second": count / span.seconds}


def work(bench: kit.Bench) -> None:
    """A process that listens and does nothing else."""
    with bench.connect() as conn:
        conn.execute("listen bench_wake")
        kit.ready()
        for notice in conn.notifies():
            kit.say(late=time.time() - float(notice.payload))


def latency(bench: kit.Bench) -> kit.Figures:
    """Measure the time that this machine takes to tell an idle process something, through this
    server.
    """
    count, warm = bench["starts"], 3
    with kit.Worker(bench).wait_until_ready() as worker, bench.connect() as conn:
        for _ in range(warm + count):
            time.sleep(jobs.pause_seconds())
            conn.execute("select pg_notify('bench_wake', %s)", (repr(time.time()),))
        late = worker.said("late", warm + count)
    return kit.latency("idle_wake_up", late[warm:])


if __name__ == "__main__":
    kit.main(globals())
