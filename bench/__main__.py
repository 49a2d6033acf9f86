"""`python -m bench`: pgflow and its peers in turn on the same Postgres, in the same run.

Without options everything is measured, five times, on a server that is made for it; that takes an
hour or two and a machine that has nothing else to do. `--only pgflow,dbos --quick` takes a minute
and a half.
"""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

from bench import document, goals, plot, report
from bench.catalog import COMPILED, LIMIT, OURSELVES, SCENARIOS
from bench.peers import read_peers
from bench.runner import Plan, run
from bench.server import Server, machine, open_server

QUICK_SECONDS, QUICK_EACH_SECONDS = 70.0, 15.0
FULL_ROUNDS = 5
COUNT_LOOKS = 2


def read_options() -> argparse.Namespace:
    names = [OURSELVES, COMPILED, LIMIT, *read_peers()]
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--dsn",
        help="a server on which databases may be made; else a new one, with settings as in "
        "production",
    )
    parser.add_argument(
        "--postgres",
        metavar="VERSION[,NAME=VALUE...]",
        help="programs and settings of that new server: 15,jit=on for one with LLVM",
    )
    parser.add_argument("--only", help=f"engines, with commas: {', '.join(names)}")
    parser.add_argument("--scenarios", help=f"with commas: {', '.join(s.name for s in SCENARIOS)}")
    parser.add_argument(
        "--quick", action="store_true", help="small sizes, one round, at most 90 seconds"
    )
    parser.add_argument(
        "--rounds", type=int, help=f"alternations; {FULL_ROUNDS}, or 1 in a quick run"
    )
    parser.add_argument("--json", type=Path, help="write the figures there")
    parser.add_argument("--markdown", type=Path, help="write the tables there, too")
    parser.add_argument("--plot", type=Path, help="draw the comparison there (PNG)")
    parser.add_argument(
        "--out", type=Path, help="a folder for RESULTS.md, results.json, results.png and parts.json"
    )
    parser.add_argument(
        "--add",
        action="store_true",
        help="with --out: keep what is there of scenarios that are not measured now",
    )
    parser.add_argument(
        "--goals",
        action="store_true",
        help="judge the goals of bench/goals.toml; exit code 1 if one is unmet",
    )
    parser.add_argument(
        "--from",
        dest="source",
        type=Path,
        help="with --goals or --plot: figures of an earlier run, from its JSON",
    )
    parser.add_argument(
        "--counts",
        action="store_true",
        help="pgflow only: judge what a step, a run and a claim may cost",
    )
    options = parser.parse_args()
    if options.add and not options.out:
        parser.error("--add: say with --out to what")
    options.engines = _chosen(parser, "--only", options.only, names)
    options.chosen = (
        set(_chosen(parser, "--scenarios", options.scenarios, [s.name for s in SCENARIOS]))
        if options.scenarios
        else set()
    )
    return options


def _chosen(
    parser: argparse.ArgumentParser, option: str, given: str | None, known: list[str]
) -> list[str]:
    if given is None:
        return known
    names = [name.strip() for name in given.split(",") if name.strip()]
    if unknown := sorted(set(names) - set(known)):
        parser.error(f"{option}: no such thing: {', '.join(unknown)}; there are {', '.join(known)}")
    return [name for name in known if name in names]


def plan_of(options: argparse.Namespace) -> Plan:
    """Return the plan that the options ask for."""
    rounds = options.rounds or (1 if options.quick else FULL_ROUNDS)
    if not options.quick:
        return Plan(options.engines, options.chosen, rounds=rounds)
    return Plan(
        options.engines,
        options.chosen,
        quick=True,
        rounds=rounds,
        seconds=QUICK_SECONDS,
        each_seconds=QUICK_EACH_SECONDS,
    )


def tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main() -> int:
    options = read_options()
    logging.basicConfig(level=logging.WARNING)
    if options.source:
        records = report.read_json(options.source)
        _draw(options.plot, records)
        return _judge("goal", records) if options.goals else 0
    plan, peers = plan_of(options), read_peers()
    with open_server(options.dsn, options.postgres) as server:
        if options.counts:
            return _count(server, options.json)
        settings = server.settings()
        results = run(server, plan, peers, tell, apart=True)
    part = document.Part.of(results, machine(), settings, peers)
    records = _write_all(options, part)
    return _judge("goal", records) if options.goals else 0


def _count(server: Server, path: Path | None) -> int:
    """Judges what things cost. Whatever else goes on only adds to a count: a second look takes the
    least.
    """
    found: list[report.Record] = []
    for _ in range(COUNT_LOOKS):
        results = run(server, Plan([OURSELVES], {"accounts"}, quick=True, rounds=1), {}, tell)
        found = report.least_of([*found, *report.records_of(results)])
        if all(one.met for one in goals.judge(goals.read_goals("count"), found)):
            break
    _write(path, report.as_json(found))
    return _judge("count", found)


def _write_all(options: argparse.Namespace, part: document.Part) -> list[report.Record]:
    """Prints and writes what was asked for; the figures that goals are judged by."""
    records = part.records
    text = document.markdown([part])
    print(text)
    _write(options.json, report.as_json(records))
    _write(options.markdown, text)
    _draw(options.plot, records)
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        kept = options.out / "parts.json"
        parts = document.added(document.read_parts(kept) if options.add else [], part)
        records = document.records_in(parts)
        drawn = _draw(options.out / "results.png", records)
        _write(
            options.out / "RESULTS.md",
            document.markdown(parts, plot="results.png" if drawn else None),
        )
        _write(options.out / "results.json", report.as_json(records))
        document.write_parts(kept, parts)
    return records


def _write(path: Path | None, text: str) -> None:
    if path is not None:
        path.write_text(text)


def _draw(path: Path | None, records: list[report.Record]) -> bool:
    if path is None:
        return False
    try:
        plot.draw(records, path)
    except plot.NoPlot as why:
        tell(f"no picture: {why}")
        return False
    return True


def _judge(section: str, records: list[report.Record]) -> int:
    judged = goals.judge(goals.read_goals(section), records)
    for one in judged:
        print(one)
    unmet = sum(not one.met for one in judged)
    reason = report.verdict(records)
    if reason:
        print(reason)
    out_of_reach = sum(one.is_out_of_reach for one in judged)
    print(
        f"{len(judged) - unmet} of {len(judged)} met"
        + (f", {out_of_reach} out of reach" if out_of_reach else "")
    )
    return 1 if unmet else 0


if __name__ == "__main__":
    sys.exit(main())
