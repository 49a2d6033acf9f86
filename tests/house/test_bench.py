"""`python -m bench`: its counts stay within their bounds, its parts fit together, its peers can be
told apart.

The figures of peers need their packages and an idle machine; here pgflow is measured alone, by
counts.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import servers

from bench import document, goals, plot, report
from bench.catalog import COMPILED, METRICS, SCENARIOS, functions_of
from bench.engines import rules
from bench.peers import NotInstalled, make_environment, read_peers
from bench.runner import Plan, Results
from pgflow._version import __version__

MACHINE = {"processors": "2 x test", "system": "Linux", "python": "3.11"}
ENGINES = sorted(
    path.stem
    for path in (servers.REPOSITORY / "bench" / "engines").glob("*.py")
    if path.stem not in ("__init__", "kit", "jobs", "rules", "claims")
)


def bench(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bench", *options],
        cwd=servers.REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )


def measured(*rows: tuple[str, str, list[float]]) -> list[report.Record]:
    return report.records_of(
        Results({(metric, engine): runs for metric, engine, runs in rows}, rounds=3)
    )


@pytest.mark.full
def test_steps_runs_and_claims_cost_no_more_than_their_bounds(tmp_path: Path):
    figures = tmp_path / "counts.json"
    done = bench("--counts", "--json", str(figures))
    assert done.returncode == 0, done.stdout + done.stderr
    assert {r.metric for r in report.read_json(figures)} >= {
        goal.metric for goal in goals.read_goals("count")
    }
    assert "UNMET" not in done.stdout


def test_goals_and_bounds_name_metrics_and_engines_that_exist():
    for goal in (*goals.read_goals("goal"), *goals.read_goals("count")):
        assert goal.other is None or goal.other[1] in ENGINES
    names = [goal.name for goal in goals.read_goals("goal")]
    assert len(set(names)) == len(names)


def test_every_metric_belongs_to_one_scenario_and_every_scenario_to_an_engine():
    names = [metric.name for scenario in SCENARIOS for metric in scenario.metrics]
    assert len(set(names)) == len(names) == len(METRICS) - 1
    for scenario in SCENARIOS:
        assert any(scenario.name in functions_of(engine) for engine in ENGINES)
        assert set(scenario.work) <= set(scenario.full)
        assert scenario.quick is None or set(scenario.quick) == set(scenario.full)


def test_of_jobs_that_are_written_down_the_most_at_once_and_in_a_window_count(db):
    db.execute("create temp table bench_job (n int, key text, began float8, ended float8)")
    db.execute(
        "insert into bench_job values (0, 'a', 0, 1), (1, 'b', 0.5, 2), (2, 'a', 1, 1.5), "
        "(3, 'c', 2.2, 2.3)"
    )
    found = [
        db.execute(query).fetchone()[0]
        for query in (
            rules.AT_ONCE.format(group="true"),
            rules.AT_ONCE.format(group="key"),
            rules.MOST_STARTS.format(window=0.9),
            rules.MOST_STARTS.format(window=1.0),
            rules.USED,
        )
    ]
    assert found == [2, 1, 2, 3, 1.5]


def test_every_peer_is_pinned_and_has_a_program():
    peers = read_peers()
    assert (
        {"dbos", "absurd", "langgraph", "pgqueuer", "procrastinate", "oban"}
        <= set(peers)
        <= set(ENGINES)
    )
    scenarios = {scenario.name for scenario in SCENARIOS}
    for peer in peers.values():
        assert all("==" in requirement for requirement in peer.requires)
        assert any(requirement.endswith(f"=={peer.version}") for requirement in peer.requires)
        assert set(peer.shares) <= scenarios & functions_of(peer.name)
        assert "install" in functions_of(peer.name)


def test_a_peer_that_cannot_be_installed_is_skipped_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from bench import runner
    from bench.peers import Peer

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    peer = Peer("dbos", "0", ("dbos==0",), python="9.99")
    results = Results()
    engines = runner._prepare(None, Plan(["dbos"]), {"dbos": peer}, results, None, lambda _: None)
    assert engines == []
    assert "needs Python 9.99" in results.missing["dbos"]


def test_where_pgflow_cannot_be_compiled_it_is_measured_as_it_is_installed_alone(
    monkeypatch: pytest.MonkeyPatch,
):
    from bench import runner

    monkeypatch.setenv("CC", "no-such-compiler")
    results = Results()
    assert (
        runner._prepare(None, Plan([COMPILED]), {}, results, None, lambda _: None, apart=True) == []
    )
    assert results.missing == {COMPILED: "skipped: there is no C compiler"}


def test_results_say_which_pgflow_is_compiled_and_how_far_it_is_from_the_other():
    runs = {
        ("bare_commits_per_second", "raw"): [1000.0],
        ("steps_per_second_at_1", "pgflow"): [100.0],
        ("steps_per_second_at_1", COMPILED): [125.0],
    }
    results = Results(runs, forms={"pgflow": "interpreted", COMPILED: "compiled"}, rounds=1)
    text = document.markdown([document.Part.of(results, MACHINE, {"server_version": "18.0"}, {})])
    assert (
        f"- versions: pgflow {__version__} (interpreted), pgflow_compiled {__version__} (compiled)"
        in text
    )
    assert "| steps | unit | pgflow | pgflow_compiled |" in text
    assert "| 100 | 125 (0.8x) |" in text


def test_an_environment_is_made_once_and_again_when_what_it_is_made_of_changes(tmp_path: Path):
    folder, python = tmp_path / "venv", tmp_path / "python"
    made = tmp_path / "made"
    python.write_text(f'#!/bin/sh\necho "$HOOKS $*" >> {made}\nmkdir -p {folder}\n')
    python.chmod(0o755)
    for stamp in ("a", "a", "b"):
        assert (
            make_environment(folder, str(python), stamp, "one", "two", HOOKS="1")
            == f"{folder}/bin/python"
        )
    commands = [
        f" -m venv --without-pip {folder}",
        f"1 -m pip --python {folder}/bin/python --disable-pip-version-check install --quiet one two",
    ]
    assert made.read_text().splitlines() == commands * 2


def test_what_pip_says_for_long_is_told_in_the_line_that_says_why(tmp_path: Path):
    python = tmp_path / "python"
    python.write_text(
        "#!/bin/sh\necho 'error: subprocess-exited-with-error\nx.c:1: fatal error: Python.h: No "
        "such file\nhint: see above' >&2; exit 1\n"
    )
    python.chmod(0o755)
    with pytest.raises(NotInstalled, match=r"^x\.c:1: fatal error: Python\.h: No such file$"):
        make_environment(tmp_path / "venv", str(python), "a")


def test_a_slow_peer_is_given_a_share_of_the_work_and_nothing_else_changes():
    steps = next(s for s in SCENARIOS if s.name == "steps")
    assert steps.sizes(quick=False, share=0.1) == {
        "runs_at_128": 300,
        "runs_at_32": 160,
        "runs_at_1": 20,
    }
    enqueue = next(s for s in SCENARIOS if s.name == "enqueue")
    assert enqueue.sizes(quick=False, share=0.1)["batch"] == enqueue.full["batch"]


def test_the_json_is_a_list_of_records_with_medians_and_ratios():
    records = measured(
        ("steps_per_second_at_128", "pgflow", [100, 120, 110]),
        ("steps_per_second_at_128", "dbos", [11, 10, 12]),
    )
    ours, theirs = json.loads(report.as_json(records))
    assert ours == {
        "metric": "steps_per_second_at_128",
        "engine": "pgflow",
        "unit": "steps/s",
        "better": "higher",
        "runs": [100, 120, 110],
        "median": 110,
        "ratio_to_pgflow": 1.0,
    }
    assert theirs["ratio_to_pgflow"] == 0.1
    assert records[1].behind == pytest.approx(10)


def test_lower_is_better_where_the_metric_says_so():
    _, theirs = measured(
        ("start_latency_p50_ms", "pgflow", [2.0]), ("start_latency_p50_ms", "dbos", [500.0])
    )
    assert theirs.behind == 250


def test_a_goal_may_be_absolute_relative_or_a_difference():
    records = measured(
        ("steps_per_second_at_128", "pgflow", [1000.0]),
        ("steps_per_second_at_128", "dbos", [20.0]),
        ("start_latency_p50_ms", "pgflow", [5.5]),
        ("idle_wake_up_p50_ms", "raw", [2.0]),
        ("claim_of_10_ms_empty", "pgflow", [2.0]),
        ("claim_of_10_ms_with_parked", "pgflow", [4.0]),
    )
    by_name = {
        "times": goals.Goal("times", "steps_per_second_at_128", at_least=50, times="dbos"),
        "absolute": goals.Goal("absolute", "steps_per_second_at_128", at_least=1001),
        "beyond": goals.Goal("beyond", "start_latency_p50_ms", at_most=3,
            beyond={"engine": "raw", "metric": "idle_wake_up_p50_ms"}),
        "per": goals.Goal("per", "claim_of_10_ms_with_parked", at_most=1.5,
            per="claim_of_10_ms_empty"),
        "missing": goals.Goal("missing", "steps_per_second_at_128", at_least=15, times="absurd"),
    }  # fmt: skip
    judged = {one.goal.name: one for one in goals.judge(by_name.values(), records)}
    assert {name: (one.figure, one.met) for name, one in judged.items()} == {
        "times": (50, True),
        "absolute": (1000, False),
        "beyond": (3.5, False),
        "per": (2, False),
        "missing": (None, False),
    }
    assert "absurd: no steps_per_second_at_128" in str(judged["missing"])


@pytest.mark.parametrize(
    ("ours", "bare", "expected"),
    [(50.0, 70.0, "UNMET"), (40.0, 59.0, "out of reach"), (61.0, 55.0, "met")],
    ids=["in reach", "out of reach", "met, whatever a bare loop came to"],
)
def test_a_goal_that_a_bare_loop_misses_too_is_out_of_reach(
    ours: float, bare: float, expected: str
):
    records = measured(
        ("steps_per_second_at_1", "pgflow", [ours]),
        ("steps_per_second_at_1", "dbos", [10.0]),
        ("steps_per_second_of_protocol_at_1", "pgflow", [bare]),
    )
    goal = goals.Goal(
        "lone",
        "steps_per_second_at_1",
        at_least=6,
        times="dbos",
        floor="steps_per_second_of_protocol_at_1",
    )
    (judged,) = goals.judge([goal], records)
    assert judged.is_out_of_reach == (expected == "out of reach")
    assert expected in str(judged)
    assert ("a bare loop" in str(judged)) == (expected != "met")


def test_of_two_looks_at_the_counts_the_least_is_judged():
    looks = [
        *measured(("dead_tuples_per_noop_run", "pgflow", [2.4])),
        *measured(("dead_tuples_per_noop_run", "pgflow", [2.0])),
    ]
    assert [record.median for record in report.least_of(looks)] == [2.0]
    assert [record.median for record in report.least_of(reversed(looks))] == [2.0]


@pytest.mark.full
def test_unmet_goals_make_the_exit_code_1(tmp_path: Path):
    figures = tmp_path / "figures.json"
    figures.write_text(report.as_json(measured(("steps_per_second_at_128", "pgflow", [70_000.0]))))
    done = bench("--goals", "--from", str(figures))
    assert done.returncode == 1
    assert "met    the same, absolutely: 70,000 steps/s, goal >= 60,000 steps/s" in done.stdout
    assert "UNMET  timers, lateness p50: not measured" in done.stdout


def test_a_run_on_a_machine_that_others_use_is_said_to_be_disturbed():
    commits = "bare_commits_per_second"
    assert report.verdict(measured((commits, "raw", [1000.0, 690.0, 900.0]))).startswith(
        "disturbed: the machine made 690 to 1,000 bare commits a second."
    )
    assert report.verdict(measured((commits, "raw", [1000.0, 710.0, 900.0]))) is None
    assert report.verdict(measured(("steps_per_second_at_32", "pgflow", [1.0, 9.0]))) is None


def test_the_tables_show_spread_advantage_and_what_is_missing():
    results = Results(
        {
            ("bare_commits_per_second", "raw"): [900.0, 1100.0, 1000.0],
            ("steps_per_second_at_1", "pgflow"): [900.0, 1100.0, 1000.0],
            ("steps_per_second_at_1", "dbos"): [100.0, 100.0, 100.0],
        },
        settings={"pgflow": {"fsync": ["on"], "synchronous_commit": ["on"]}},
        counted={"pgflow": {"steps recorded": 3000}},
        missing={"oban": "skipped: needs Python 3.12"},
        rounds=3,
    )
    text = document.markdown(
        [
            document.Part.of(
                results, MACHINE, {"server_version": "18.0", "fsync": "on"}, read_peers()
            )
        ]
    )
    assert "| runs of 10 steps, one at a time | steps/s | 1,000 ±10% | 100 ±0% (10x) |" in text
    assert "- calibration: 1,000 bare commits/s, 900 to 1,100" in text
    assert "- pgflow: fsync on, synchronous_commit on, 3,000 steps recorded" in text
    assert "- oban: skipped: needs Python 3.12" in text
    assert "- server: Postgres 18.0, fsync on" in text


def part(**figures: float) -> document.Part:
    """A run of the bench with these figures of pgflow."""
    runs = {
        ("bare_commits_per_second", "raw"): [1000.0],
        **{(metric, "pgflow"): [value] for metric, value in figures.items()},
    }
    return document.Part.of(
        Results(runs, counted={"pgflow": {"steps": len(figures)}}, rounds=1),
        MACHINE,
        {"server_version": "18.0"},
        {},
    )


def test_parts_measured_one_after_the_other_make_one_document_in_which_the_newest_counts(
    tmp_path: Path,
):
    kept = tmp_path / "parts.json"
    assert document.read_parts(kept) == []
    parts = document.added([], part(steps_per_second_at_1=1, noop_runs_per_second=2))
    parts = document.added(parts, part(claim_of_10_ms_empty=3))
    document.write_parts(kept, parts)
    assert document.read_parts(kept) == parts
    parts = document.added(
        document.read_parts(kept), part(steps_per_second_at_1=4, steps_per_second_at_32=5)
    )
    assert [one.scenarios for one in parts] == [{"drain"}, {"claim"}, {"steps"}]
    text = document.markdown(parts)
    assert [line for line in text.splitlines() if line.startswith("## ")] == [
        "## drain",
        "## claim",
        "## steps",
    ]
    assert text.count("runs of 10 steps, one at a time | steps/s | 4 |") == 1
    found = {r.metric: r.median for r in document.records_in(parts) if r.engine == "pgflow"}
    assert found == {
        "noop_runs_per_second": 2,
        "claim_of_10_ms_empty": 3,
        "steps_per_second_at_1": 4,
        "steps_per_second_at_32": 5,
    }


def test_a_part_all_of_which_was_measured_again_is_gone():
    parts = document.added(
        document.added([], part(steps_per_second_at_1=1)),
        part(steps_per_second_at_1=2, steps_per_second_at_32=1),
    )
    assert [one.scenarios for one in parts] == [{"steps"}]
    assert "## " not in document.markdown(parts)


@pytest.mark.full
def test_adding_needs_something_to_add_to():
    done = bench("--add")
    assert (done.returncode, done.stderr.splitlines()[-1]) == (
        2,
        "python -m bench: error: --add: say with --out to what",
    )


def test_without_matplotlib_or_a_peer_there_is_no_picture_and_the_reason(tmp_path: Path):
    with pytest.raises(plot.NoPlot, match=r"pgflow-engine\[bench\]|nothing to compare"):
        plot.draw(measured(("steps_per_second_at_128", "pgflow", [1.0])), tmp_path / "plot.png")
