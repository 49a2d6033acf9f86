"""The shared parts of every engine's program: question and answer, worker processes, clocks and
counters.

The runner names the database in ``PGFLOW_BENCH_DSN``, the scenario and its sizes on the command
line, and reads one line of JSON: figures, what was counted afterwards, and the settings under which
commits were made. What has to be prepared is prepared outside the timing.
"""

from __future__ import annotations

import gc
import json
import os
import random
import resource
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

import psycopg
from psycopg import sql

DSN_VARIABLE = "PGFLOW_BENCH_DSN"
POLL_SECONDS = 0.01
PATIENCE_SECONDS = 300.0
OTHERS_MAY = 10
"""Commits in other databases that are nothing but the server's own upkeep."""

Figures = dict[str, float]


@dataclass
class Bench:
    """One scenario as it was asked for.

    Attributes:
        dsn: A database of its own, in which the engine is installed.
        sizes: Amounts by name; `bench/catalog.py` says them.
        counted: Counts after the timing, by name.
        settings: As the committing sessions had them.
        form: Form of the engine, if it can be there in several; ``install`` says it.
    """

    dsn: str
    sizes: dict[str, Any]
    counted: dict[str, int] = field(default_factory=dict)
    settings: dict[str, list[str]] = field(default_factory=dict)
    form: str = ""

    def __getitem__(self, name: str) -> Any:
        return self.sizes[name]

    def connect(self) -> psycopg.Connection[Any]:
        return psycopg.connect(self.dsn, autocommit=True, application_name="bench")

    def scalar(self, query: str, *params: Any) -> Any:
        with self.connect() as conn:
            row = conn.execute(query.encode(), params or None).fetchone()
            assert row is not None
            return row[0]

    def check(self, what: str, query: str, claimed: int) -> None:
        """Refuses a figure for work that the database does not have."""
        found = int(self.scalar(query))
        if found != claimed:
            raise AssertionError(f"{found} {what}, and {claimed} were claimed")
        self.counted[what] = self.counted.get(what, 0) + found

    def wait_for(self, query: str, count: int, *params: Any) -> float:
        """Returns the time at which the query first answered so many."""
        deadline = time.time() + PATIENCE_SECONDS
        with self.connect() as conn:
            while True:
                row = conn.execute(query.encode(), params or None).fetchone()
                if row is not None and row[0] >= count:
                    return time.time()
                if time.time() > deadline:
                    raise TimeoutError(
                        f"{row and row[0]} of {count} after {PATIENCE_SECONDS} s: {query}"
                    )
                time.sleep(POLL_SECONDS)


Scenario = Callable[[Bench], Figures | None]


def main(scenarios: Mapping[str, Any]) -> None:
    """The program of an engine: its functions are the scenarios, ``work`` is what its worker
    processes do.
    """
    name, *sizes = sys.argv[1:]
    bench = Bench(os.environ[DSN_VARIABLE], json.loads(sizes[0]) if sizes else {})
    # Of every engine alike, what is loaded is not gone through again and again: as in `pgflow
    # workers`.
    gc.collect()
    gc.freeze()
    gc.set_threshold(5_000)
    answer = scenarios[name](bench)
    said = {
        "figures": answer or {},
        "counted": bench.counted,
        "settings": bench.settings,
        "form": bench.form,
    }
    print(json.dumps(said), flush=True)
    os._exit(0)  # what a library leaves running must not keep us


# ---------------------------------------------------------------- time


class Span:
    """Wall and processor time of a block, in seconds."""

    def __enter__(self) -> Self:
        self._wall, self._cpu = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.perf_counter() - self._wall
        self.cpu_seconds = time.process_time() - self._cpu


def quantile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def latency(name: str, seconds: list[float]) -> Figures:
    """Two figures of many delays, in milliseconds."""
    return {
        f"{name}_p50_ms": quantile(seconds, 0.5) * 1000,
        f"{name}_p99_ms": quantile(seconds, 0.99) * 1000,
    }


# ---------------------------------------------------------------- long values

KB = (1, 5, 100, 900)
"""Sizes of what a step returns, in thousands of characters."""


def prose(kb: int) -> str:
    """Text as a language model writes it, as far as encoders and compression mind: words, some
    numbers, quotes and ends of lines.
    """
    chance = random.Random(kb)
    words = [
        "".join(chance.choices("abcdefghijklmnopqrstuvwxyz", k=chance.randint(2, 9)))
        for _ in range(4000)
    ]
    ends = [" "] * 16 + [".\n", ", ", ' "', '" ']
    parts: list[str] = []
    size = 0
    while size < kb * 1000:
        parts += (
            chance.choice(words) if chance.random() < 0.98 else str(chance.randint(0, 99_999)),
            chance.choice(ends),
        )
        size += len(parts[-1]) + len(parts[-2])
    return "".join(parts)[: kb * 1000]


# ---------------------------------------------------------------- what the server has to do


@dataclass
class Costs:
    """Cost of work to the server, and to this process.

    ``statements`` only where the server counts them, ``wal_bytes`` only if nobody else wrote: it
    has one log for all.
    """

    commits: float
    wal_bytes: float | None
    dead_tuples: float
    client_cpu_ms: float
    statements: float | None

    def less(self, other: Costs, share: int) -> Costs:
        """The difference, by so many."""
        pairs = zip(asdict(self).values(), asdict(other).values(), strict=True)
        return Costs(*(None if a is None or b is None else (a - b) / share for a, b in pairs))  # type: ignore[arg-type]

    def figures(self, unit: str) -> Figures:
        """As figures per something."""
        return {
            f"{name}_per_{unit}": value for name, value in asdict(self).items() if value is not None
        }

    def wal_figures(self, unit: str, share: int) -> Figures:
        """The log by something smaller."""
        return {} if self.wal_bytes is None else {f"wal_bytes_per_{unit}": self.wal_bytes / share}


@contextmanager
def alone(bench: Bench) -> Iterator[psycopg.Connection[Any]]:
    """A connection at a time when nobody else is connected: sessions hand in their counters when
    they end.
    """
    others = "select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend'"
    with bench.connect() as conn:
        deadline = time.monotonic() + 30
        while conn.execute(others).fetchone()[0] > 0:  # type: ignore[index]
            assert time.monotonic() < deadline, "somebody stays connected"
            time.sleep(POLL_SECONDS)
        yield conn


def costs_of(bench: Bench, work: Callable[[], object]) -> Costs:
    """Measure the server's work for some work here, by its own counters. The work closes its
    connections.
    """
    with alone(bench) as conn:
        counts = _has_statements(conn)
        if counts:
            conn.execute(
                "select pg_stat_statements_reset(0, (select oid from pg_database where datname = "
                "current_database()), 0)"
            )
        before = _counters(conn)
    with Span() as span:
        work()
    with alone(bench) as conn:
        statements = None
        if counts:
            query = """select coalesce(sum(calls), 0) from pg_stat_statements s join pg_database d on d.oid = s.dbid
                where d.datname = current_database() and query not like '%pg_stat_%'"""
            statements = float(conn.execute(query).fetchone()[0])  # type: ignore[index]
        after = _counters(conn)
    commits, wal_bytes, dead_tuples, elsewhere = (
        float(b - a) for a, b in zip(before, after, strict=True)
    )
    is_ours = elsewhere <= OTHERS_MAY + commits / 10
    return Costs(
        commits, wal_bytes if is_ours else None, dead_tuples, span.cpu_seconds * 1000, statements
    )


def marginal_costs(bench: Bench, work: Callable[[int], object], few: int, many: int) -> Costs:
    """Measure the cost of one more: whatever is done once, such as connecting, falls out of the
    difference.
    """
    first = costs_of(bench, lambda: work(few))
    return costs_of(bench, lambda: work(few + many)).less(first, many)


def _has_statements(conn: psycopg.Connection[Any]) -> bool:
    with suppress(psycopg.Error):
        conn.execute("create extension if not exists pg_stat_statements")
        conn.execute("select 1 from pg_stat_statements limit 1")
        return True
    return False


def _counters(conn: psycopg.Connection[Any]) -> tuple[Any, ...]:
    row = conn.execute("""
        select (select xact_commit from pg_stat_database where datname = current_database()),
               pg_current_wal_insert_lsn() - '0/0'::pg_lsn,
               (select coalesce(sum(n_tup_upd + n_tup_del), 0) from pg_stat_user_tables),
               (select sum(xact_commit) from pg_stat_database where datname <> current_database())""").fetchone()
    assert row is not None
    return row


@contextmanager
def settings_of(bench: Bench, table: str) -> Iterator[None]:
    """Notes ``fsync`` and ``synchronous_commit`` as sessions have them when they commit changes of
    a table.
    """
    with bench.connect() as conn:
        conn.execute(
            "create table bench_settings (name text, setting text, unique (name, setting))"
        )
        conn.execute("grant all on bench_settings to public")
        conn.execute("""create function bench_note_settings() returns trigger language plpgsql as $$
            begin
              insert into public.bench_settings
              select n, current_setting(n) from unnest('{fsync,synchronous_commit}'::text[]) n on conflict do nothing;
              return null;
            end $$""")
        named = sql.Identifier(*table.split("."))
        conn.execute(
            sql.SQL(
                "create constraint trigger bench_note after insert or update or "
                "delete on {} deferrable initially deferred "
                "for each row execute function public.bench_note_settings()"
            ).format(named)
        )
        yield
        for name, setting in conn.execute("select name, setting from bench_settings order by 1, 2"):
            bench.settings.setdefault(name, []).append(setting)
        conn.execute(sql.SQL("drop trigger bench_note on {}").format(named))


class Waits:
    """While it is entered: what the sessions of workers that are busy are seen to wait for, fifty
    times a second.

    Attributes:
        seen: Number of looks by type of wait of ``pg_stat_activity``; the empty one is work.
    """

    def __init__(self, bench: Bench, application_name: str) -> None:
        self._bench = bench
        self._name = application_name
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self.seen: Counter[str] = Counter()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def percent(self, kind: str) -> float:
        """Share of one type of wait."""
        return 100 * self.seen[kind] / max(1, self.seen.total())

    def _look(self) -> None:
        query = """select coalesce(wait_event_type, '') from pg_stat_activity
            where datname = current_database() and state = 'active' and application_name like %s"""
        with self._bench.connect() as conn:
            while not self._over.wait(0.02):
                self.seen.update(kind for (kind,) in conn.execute(query, (self._name + "%",)))


# ---------------------------------------------------------------- worker processes


class Worker:
    """This program once more, as a process that works until it is killed."""

    def __init__(self, bench: Bench, **options: Any) -> None:
        command = [
            sys.executable,
            "-u",
            "-m",
            _module(),
            "work",
            json.dumps({**bench.sizes, **options}),
        ]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        self._said: list[dict[str, Any]] = []
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                with self._news:
                    self._said.append(json.loads(line))
                    self._news.notify_all()
        with self._news:
            self._news.notify_all()

    def said(self, key: str, count: int = 1, timeout_seconds: float = 120.0) -> list[Any]:
        """Return the values that it said under a key, at least so many; raise TimeoutError if there
        are fewer.
        """

        with self._news:
            self._news.wait_for(
                lambda: len(self.heard(key)) >= count or not self._reader.is_alive(),
                timeout_seconds,
            )
            found = self.heard(key)
            if len(found) < count:
                raise TimeoutError(
                    f"a worker said {key} {len(found)} times of {count}, exit code "
                    f"{self.process.poll()}"
                )
            return found

    def heard(self, key: str) -> list[Any]:
        """Return the values that it has said under a key by now."""
        return [line[key] for line in self._said if key in line]

    def wait_until_ready(self) -> Self:
        self.said("ready")
        return self

    def tell(self, word: str) -> None:
        """Says a word to it: ``go``, or ``usage``."""
        assert self.process.stdin is not None
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()

    def usage(self) -> tuple[float, float]:
        """Its processor time in seconds and its resident memory in MB, up to now."""
        known = sum("usage" in line for line in self._said)
        self.tell("usage")
        cpu_seconds, resident_mb = self.said("usage", known + 1)[-1]
        return cpu_seconds, resident_mb

    def kill(self) -> None:
        """kill -9, and wait for its end."""
        self.process.kill()
        self.process.wait()


def _module() -> str:
    spec = sys.modules["__main__"].__spec__
    assert spec is not None
    return spec.name


_going = threading.Event()
ANSWERS: dict[str, Callable[[], dict[str, Any]]] = {}
"""Answers of a worker to words of its parent, beside those of this module."""


def say(**words: Any) -> None:
    """Says something to the parent, in one write, from any thread."""
    os.write(1, (json.dumps(words) + "\n").encode())


def ready(*, wait: bool = False) -> None:
    """Tells the parent that this worker is about to work, and waits for its ``go`` if asked to."""
    threading.Thread(target=_obey, daemon=True).start()
    say(ready=True)
    if wait:
        _going.wait()


def _obey() -> None:
    for line in sys.stdin:
        if line.strip() == "go":
            _going.set()
        elif line.strip() == "usage":
            say(usage=[time.process_time(), resident_mb()])
        elif answer := ANSWERS.get(line.strip()):
            say(**answer())
    os._exit(0)  # the parent is gone


def resident_mb() -> float:
    """Resident memory of this process; its peak where the system does not tell."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 1e6
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak / 1e6 if sys.platform == "darwin" else peak / 1e3


class First:
    """Says when the first body of this process ran."""

    def __init__(self) -> None:
        self.hit_once = False

    def hit(self) -> None:
        if not self.hit_once:
            self.hit_once = True
            say(first=time.time())
