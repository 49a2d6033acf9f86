"""The catalog of measurements: every scenario with its sizes, and every figure that comes out of
one.

A scenario is a function of the same name in an engine's program (`bench/engines`); an engine that
has none is not measured there. The order is that of importance: a quick run that runs out of time
leaves out the last.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

ENGINES = Path(__file__).parent / "engines"
OURSELVES, COMPILED, LIMIT = "pgflow", "pgflow_compiled", "raw"
"""pgflow as README's command installs it, the same compiled, and the limits of the server."""


@dataclass(frozen=True)
class Metric:
    """A figure.

    Attributes:
        name: Its name, with the unit in it where it has one.
        unit: As it is printed.
        better: ``higher`` or ``lower``.
        says: Name of it in a table.
    """

    name: str
    unit: str
    better: str
    says: str


def rate(name: str, unit: str, says: str) -> Metric:
    return Metric(name, f"{unit}/s", "higher", says)


def cost(name: str, unit: str, says: str) -> Metric:
    return Metric(name, unit, "lower", says)


def delay(name: str, says: str) -> tuple[Metric, Metric]:
    return cost(f"{name}_p50_ms", "ms", f"{says}, p50"), cost(
        f"{name}_p99_ms", "ms", f"{says}, p99"
    )


def costs(unit: str, says: str, *, cpu: bool = False) -> tuple[Metric, ...]:
    """Return the metrics that the server counts, per something."""
    found = (
        cost(f"statements_per_{unit}", "", f"SQL statements per {says}"),
        cost(f"commits_per_{unit}", "", f"commits per {says}"),
        cost(f"wal_bytes_per_{unit}", "B", f"WAL per {says}"),
        cost(f"dead_tuples_per_{unit}", "", f"dead tuples per {says}"),
    )
    return (
        (*found, cost(f"client_cpu_ms_per_{unit}", "ms", f"client CPU per {says}"))
        if cpu
        else found
    )


@dataclass(frozen=True)
class Scenario:
    """A piece of work.

    Attributes:
        name: Of the function in the engines' programs.
        full: Its sizes.
        quick: Those of a quick run; None: not in one.
        work: The sizes of which a slow peer gets a share.
        metrics: Metrics that come out.
        quick_peers: True if peers take part in a quick run.
        timeout_seconds: One engine may take so long.
    """

    name: str
    full: dict[str, Any]
    quick: dict[str, Any] | None
    metrics: tuple[Metric, ...]
    work: tuple[str, ...] = ()
    quick_peers: bool = True
    timeout_seconds: float = field(default=600.0)

    def sizes(self, *, quick: bool, share: float = 1.0) -> dict[str, Any] | None:
        """Return the sizes of the work for one engine; None if the scenario is left out."""
        sizes = self.quick if quick else self.full
        if sizes is None:
            return None
        return {
            name: max(1, round(size * share)) if name in self.work else size
            for name, size in sizes.items()
        }


SCENARIOS = (
    Scenario(
        "steps", {"runs_at_128": 3000, "runs_at_32": 1600, "runs_at_1": 200}, {"runs_at_128": 640, "runs_at_32": 320, "runs_at_1": 30},
        (
            rate("steps_per_second_at_128", "steps", "runs of 10 steps, 128 at once"),
            rate("steps_per_second_at_32", "steps", "runs of 10 steps, 32 at once"),
            rate("steps_per_second_at_1", "steps", "runs of 10 steps, one at a time"),
            cost("client_cpu_seconds_per_1000_steps_at_128", "s", "client CPU per 1,000 steps, 128 "
                                                                  "at once"),
            cost("client_cpu_seconds_per_1000_steps_at_32", "s", "client CPU per 1,000 steps, 32 "
                                                                 "at once"),
            cost("client_cpu_seconds_per_1000_steps_at_1", "s", "client CPU per 1,000 steps, one "
                                                                "at a time"),
        ),
        work=("runs_at_128", "runs_at_32", "runs_at_1"),
    ),
    Scenario(
        "floor",
        {
            "runs_at_128": 2560, "runs": 200, "starts": 40_000, "single_starts": 2000,
            "runs_that_sleep": 1280, "parents": 512, "runs_that_park": 10_000, "runs_that_await": 1000, "children": 10_000,
            "plain_runs": 1280, "runs_at_100": 200, "delays": 100,
        },
        None,
        (
            rate("steps_per_second_of_protocol_at_128", "steps", "what the engine asks of the server for runs of 10 steps, 128 at once"),
            cost("client_cpu_seconds_per_1000_steps_of_protocol_at_128", "s", "client CPU per 1,000 of these"),
            rate("steps_per_second_of_protocol_and_code_at_128", "steps", "the same, with the code of the runs and its bodies run, and their values encoded"),
            cost("client_cpu_seconds_per_1000_steps_of_protocol_and_code_at_128", "s", "client CPU per 1,000 of these"),
            rate("steps_per_second_of_protocol_at_1", "steps", "what the engine asks of the server "
                                                               "for runs of 10 steps, one at a time"),
            rate("steps_per_second_of_protocol_and_bodies_at_1", "steps", "the same, with each step's body run as a task of the event loop"),
            rate("sleeps_per_second_of_protocol", "sleeps", "what the engine asks for runs of 10 sleeps, 128 at once"),
            rate("parks_per_second_of_protocol", "runs", "what the engine asks for runs that park, 200 at once"),
            rate("children_in_turn_per_second_of_protocol", "runs", "what the engine asks for children one after the other, of 128 parents that stay in memory"),
            rate("children_at_once_per_second_of_protocol", "runs", "what the engine asks for a map over 10,000 children"),
            rate("awaiting_steps_per_second_of_protocol", "steps", "what the engine asks for steps whose bodies await 10 ms, 100 at once, each body a task"),
            rate("def_steps_per_second_of_protocol", "steps", "what the engine asks for steps of plain functions, 128 at once, each run in a thread"),
            rate("transactional_steps_per_second_of_protocol", "steps", "what the engine asks for transactional steps, with the application's insert"),
            rate("batched_starts_per_second_of_rows", "runs", "the rows of runs that are started, "
                                                              "with their inputs, 500 a commit, by "
                                                              "bare inserts"),
            rate("single_starts_per_second_of_rows", "runs", "the same, one a commit"),
            rate("def_transactional_steps_per_second_of_protocol", "steps", "what the engine asks for transactional steps of plain functions, in as many threads as a worker opens transactions"),
            cost("start_latency_p50_ms_of_protocol", "ms", "from a start, by bare calls, to where its code would begin, p50"),
            cost("signal_latency_p50_ms_of_protocol", "ms", "from a signal to where the code would go on, p50"),
            cost("timer_lateness_p50_ms_of_protocol", "ms", "from the time of a timer to where the code would go on, p50"),
            cost("wal_bytes_per_step_of_protocol", "B", "WAL per step, 128 at once, by bare calls"),
        ),
    ),
    Scenario(
        "transactional", {"runs": 100}, {"runs": 15},
        (rate("transactional_steps_per_second", "steps", "transactional steps, one at a time (raw: "
                                                         "begin, insert, commit)"),),
    ),
    Scenario(
        "drain", {"runs": 20_000}, {"runs": 3000},
        (
            rate("noop_runs_per_second", "runs", "draining runs that do nothing, one worker "
                                                 "(pgflow: 200 at once; pgmq: 100 a batch)"),
            cost("client_cpu_seconds_per_1000_noop_runs", "s", "client CPU per 1,000 of these"),
        ),
        work=("runs",),
    ),
    Scenario(
        "enqueue", {"batched": 40_000, "single": 1000, "batch": 500}, {"batched": 5000, "single": 100, "batch": 500},
        (
            rate("batched_starts_per_second", "runs", "starting runs on one connection, 500 a "
                                                      "commit"),
            rate("single_starts_per_second", "runs", "starting runs on one connection, one a commit"),
        ),
        work=("batched", "single"),
    ),
    Scenario(
        "latency", {"starts": 200, "results": 30, "signals": 200, "settle_seconds": 2.0},
        {"starts": 15, "results": 4, "signals": 15, "settle_seconds": 0.5},
        (
            *delay("idle_wake_up", "the machine's own idle wake-up, through NOTIFY"), *delay("start_latency", "start to first line"),
            *delay("signal_latency", "signal to the line after its wait"), *delay("result_latency", "end of a run to its result elsewhere"),
        ),
    ),
    Scenario(
        "timers", {"timers": 200, "seconds": 4.0, "many": 10_000, "many_seconds": 15.0, "spread_seconds": 10.0},
        {"timers": 50, "seconds": 1.0, "many": 500, "many_seconds": 1.5, "spread_seconds": 1.0},
        (
            *delay("timer_lateness", "lateness of runs that sleep, started one after the other"),
            *delay("timer_lateness_at_once", "lateness where 200 timers fall due at the same moment"),
            *delay("timer_lateness_under_load", "lateness where 10,000 timers fall due in 10 s"),
        ),
        work=("many",),
    ),
    Scenario(
        "accounts", {"few": 20, "runs_at_1": 50, "runs_at_128": 3840, "noop_runs": 500, "claims": 100},
        {"few": 5, "runs_at_1": 15, "runs_at_128": 256, "noop_runs": 60, "claims": 30},
        (
            *costs("run_at_1", "run of 10 steps, one at a time", cpu=True), *costs("run_at_128", "run of 10 steps, 128 at once", cpu=True),
            *costs("noop_run", "run that does nothing", cpu=True),
            *costs("claim_and_release_of_10", "claim and release of ten runs", cpu=True),
            cost("wal_bytes_per_step_at_1", "B", "WAL per step, one at a time"),
            cost("wal_bytes_per_step_at_128", "B", "WAL per step, 128 at once"),
        ),
        quick_peers=False,
    ),
    Scenario(
        "claim", {"parked": 100_000, "ready": 100_000, "finished": 1_000_000, "unclaimable": 100_000},
        {"parked": 1000, "ready": 2000, "finished": 5000, "unclaimable": 2000},
        (
            cost("claim_of_10_ms_empty", "ms", "claim of ten, empty tables"),
            cost("claim_of_10_ms_with_parked", "ms", "claim of ten, 100,000 parked"),
            cost("claim_of_10_ms_with_finished_and_ready", "ms", "claim of ten, 1,000,000 finished "
                                                                 "and 100,000 ready"),
            cost("claim_of_10_ms_behind_unclaimable", "ms", "claim of ten behind 100,000 of "
                                                            "workflows that are not served"),
        ),
    ),
    Scenario(
        "snapshot", {"runs": 10_000, "since": 100_000, "claims": 300}, None,
        (
            *(
                metric
                for when, says in (("before", "before a snapshot is held"), ("with", "held since 100,000 runs"), ("after", "once it is gone"))
                for metric in (
                    cost(f"claim_of_10_ms_{when}_snapshot", "ms", "claims of ten, on the average, "
                                                                  f"{says}"),
                    rate(f"noop_runs_per_second_{when}_snapshot", "runs", f"draining runs that do nothing, {says}"),
                )
            ),
            cost("claim_of_10_ms_from_head_with_snapshot", "ms", "claims of ten, held since "
                                                                 "100,000 runs, always from the "
                                                                 "head"),
        ),
    ),
    Scenario(
        "replay", {"steps": 1000, "times": 5}, {"steps": 1000, "times": 2},
        (cost("replay_of_1000_steps_ms", "ms", "signal to the line after its wait, behind 1,000 "
                                               "steps"),),
    ),
    Scenario("fanout", {"children": 1000}, {"children": 200}, (rate("children_per_second", "runs", "a parent with 1,000 children"),), work=("children",)),
    Scenario(
        "payloads", {"runs_of_1_kb": 1280, "runs_of_5_kb": 1280, "runs_of_100_kb": 256, "runs_of_900_kb": 32},
        {"runs_of_1_kb": 128, "runs_of_5_kb": 128, "runs_of_100_kb": 16, "runs_of_900_kb": 2},
        tuple(
            rate(f"steps_per_second_of_{kb}_kb", "steps", f"runs of 10 steps that return {kb} kB "
                                                          "of text, 128 at once")
            for kb in (1, 5, 100, 900)
        ),
    ),
    Scenario(
        "colours", {"runs_at_128": 1000, "runs_at_100": 200}, {"runs_at_128": 128, "runs_at_100": 20},
        (
            rate("def_steps_per_second_at_128", "steps", "runs of 10 steps whose code and bodies "
                                                         "are plain functions in threads, 128 at "
                                                         "once"),
            rate("transactional_steps_per_second_at_100", "steps", "transactional steps, 100 runs "
                                                                   "at once"),
            rate("def_transactional_steps_per_second_at_100", "steps", "transactional steps that are plain functions, 100 runs at once"),
        ),
    ),
    Scenario(
        "sleeps", {"runs": 3000}, {"runs": 300},
        (
            rate("sleeps_per_second", "sleeps", "runs of 10 sleeps of a millisecond, 128 at once"),
            cost("client_cpu_ms_per_sleep", "ms", "client CPU per sleep"),
        ),
        quick_peers=False,
    ),
    Scenario(
        "parks", {"runs": 20_000}, {"runs": 2000},
        (
            rate("parks_per_second", "runs", "runs that come to a wait for a signal and park, 200 "
                                             "at once"),
            rate("signalled_runs_per_second", "runs", "parked runs whose signals have come, to "
                                                      "their ends"),
        ),
        quick_peers=False,
    ),
    Scenario(
        "children", {"runs": 1000, "children": 10_000}, {"runs": 100, "children": 1000},
        (
            rate("children_in_turn_per_second", "runs", "children one after the other, of 128 "
                                                        "parents at once"),
            rate("children_at_once_per_second", "runs", "a map over 10,000 children"),
        ),
        quick_peers=False,
    ),
    Scenario(
        "awaiting", {"runs": 2000}, {"runs": 300},
        (rate("awaiting_steps_per_second", "steps", "steps whose bodies await 10 ms, 100 runs at "
                                                    "once: at most 10,000"),),
        quick_peers=False,
    ),
    Scenario(
        "sql_steps", {"runs": 100, "rounds": 4, "waiting": 100_000}, {"runs": 20, "rounds": 2, "waiting": 1000},
        (
            rate("sql_steps_per_second_of_bare_loop", "steps", "`insert; commit` in a loop of a procedure"),
            rate("sql_steps_per_second", "steps", "steps of workflows in SQL, a commit each"),
            rate("sql_steps_per_second_of_10_a_commit", "steps", "the same, 10 a commit"),
            rate("sql_steps_per_second_of_10_a_commit_claiming_8", "steps", "the same, and 8 runs a claim"),
            cost("sql_idle_ms_of_waiting_runs", "ms", "an idle call of work() longer with 100,000 runs in SQL that wait"),
        ),
        quick_peers=False,
    ),
    Scenario(
        "recovery", {"runs": 40, "dead_after": 10.0}, {"runs": 10, "dead_after": 1.0},
        (cost("recovery_beyond_timeout_seconds", "s", "kill -9 to its runs going on elsewhere, "
                                                      "beyond the time-out"),),
        quick_peers=False,
    ),
    Scenario(
        "memory", {"live": 1000, "parked": 100_000}, {"live": 200, "parked": 500},
        (
            cost("resident_mb_idle", "MB", "resident memory of an idle worker"),
            cost("resident_mb_with_live_runs", "MB", "with 1,000 runs in a step"),
            cost("resident_kb_per_live_run", "kB", "per run in a step"),
            cost("resident_mb_with_parked_runs", "MB", "with 100,000 parked runs"),
        ),
        quick_peers=False,
    ),
    Scenario(
        "latency_polling", {"starts": 60, "results": 20, "signals": 30, "settle_seconds": 2.0}, None,
        (
            *delay("start_latency_polling", "start to first line, nobody listens"),
            *delay("signal_latency_polling", "signal to the line after its wait, nobody listens"),
            *delay("result_latency_polling", "end of a run to its result elsewhere, nobody listens"),
        ),
    ),
    Scenario(
        "processes", {"runs": 12_000}, None,
        tuple(
            metric
            for n in (1, 2, 4)
            for metric in (
                rate(f"steps_per_second_of_{n}_workers", "steps", f"runs of 10 steps, {n} worker "
                                                                  "process(es)"),
                cost(f"lock_waits_percent_of_{n}_workers", "%", "busy sessions seen waiting for a "
                                                                "lock of another"),
            )
        ),
    ),
    Scenario(
        "limited", {"runs": 20_000, "limit": 100, "held_seconds": 0.05}, {"runs": 1000, "limit": 50, "held_seconds": 0.05},
        (
            rate("limited_runs_per_second", "runs", "draining runs that do nothing, 2 workers, 100 "
                                                    "at once over both"),
            Metric("limit_used_percent", "%", "higher", "most that were seen at once where runs "
                                                        "last 50 ms, of these 100"),
        ),
        work=("runs",),
    ),
    Scenario(
        "keyed", {"keys": 10_000, "runs_a_key": 3, "held_seconds": 0.05}, {"keys": 500, "runs_a_key": 2, "held_seconds": 0.05},
        (rate("keyed_runs_per_second", "runs", "draining runs that do nothing, 2 workers, of "
                                               "10,000 keys with one at once each"),),
        work=("keys",),
    ),
    Scenario(
        "rated", {"rate": 500, "seconds": 8}, {"rate": 300, "seconds": 2},
        (
            Metric("rate_used_percent", "%", "higher", "runs that begin, of a rate of 500 a "
                                                       "second, 2 workers"),
            cost("most_starts_percent", "%", "most that began in 0.9 s, of these 500"),
        ),
    ),
)  # fmt: skip

CALIBRATION = rate(
    "bare_commits_per_second", "commits", "calibration: bare one-row commits, once a round"
)
METRICS = {
    metric.name: metric
    for metric in (CALIBRATION, *(metric for scenario in SCENARIOS for metric in scenario.metrics))
}


def program_of(engine: str) -> str:
    """The module of `bench.engines` that measures an engine."""
    return OURSELVES if engine == COMPILED else engine


@cache
def functions_of(engine: str) -> frozenset[str]:
    """Return the scenarios of an engine's program, read from its text: its library need not be
    here.
    """
    names: set[str] = set()
    for node in ast.parse((ENGINES / f"{program_of(engine)}.py").read_text()).body:
        if isinstance(node, ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names.update(target.id for target in node.targets if isinstance(target, ast.Name))
    return frozenset(names)
