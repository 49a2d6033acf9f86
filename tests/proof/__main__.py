"""`python -m tests.proof [--quick | --minutes N] [--seed S] [--postgres VERSION]... [--only
LAYER]... [--skip LAYER]... [--again RECORD] [--output FILE]`

Puts every promise to the fault that tests it and prints the table: promise, fault, runs, lost,
doubled. Each layer runs in a process of its own, two at a time, on servers that are started for it
(``--postgres``: those of the embedded server if not said; 15, 16, 17 as the tests'
``PGFLOW_TEST_POSTGRES``), with fsync on. A server may have settings of its own: ``--postgres
15,jit=on``, ``--postgres 16,default_transaction_isolation=serializable`` (of the layers, those that
go through the engine). A full run writes docs/GUARANTEES.md, and beside it the record that the page
is made of. Exit code 1 if anything was lost, doubled or broken, if a mutant was not caught, or if a
fault happened too seldom for the run to count; a layer of which that alone is wrong is played once
more, and the page says so.

A full run in which something did not hold keeps its record. ``--again RECORD``, with the same
``--postgres``, plays those layers again at the same commit and puts them in their place; the page
says so.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "kits"))
sys.path.insert(0, str(Path(__file__).parents[1]))

from evidence import Findings
from ownserver import OwnServer
from servers import find_memory

from proof import layers, report

AT_ONCE = 2
FULL_MINUTES = 45
GUARANTEES = report.REPOSITORY / "docs" / "GUARANTEES.md"


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.proof",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--quick", action="store_true", help="what CI runs: at most 8 minutes")
    length.add_argument(
        "--minutes",
        type=float,
        default=FULL_MINUTES,
        help=f"how long the whole run takes, about ({FULL_MINUTES})",
    )
    parser.add_argument("--seed", type=int, help="one of its own for every run if not given")
    parser.add_argument(
        "--postgres",
        action="append",
        metavar="VERSION[,NAME=VALUE...]",
        help="a version or a folder of programs, and settings of the server; may be given several "
        "times",
    )
    parser.add_argument(
        "--only",
        action="append",
        choices=[layer.name for layer in layers.LAYERS],
        help="only this layer; may be given several times",
    )
    parser.add_argument(
        "--skip",
        action="append",
        default=[],
        choices=[layer.name for layer in layers.LAYERS],
        help="not this layer; may be given several times",
    )
    parser.add_argument(
        "--again",
        type=Path,
        metavar="RECORD",
        help="play the layers again that did not hold in the run of this record",
    )
    parser.add_argument(
        "--output",
        type=Path,
        help="where the page goes, its record beside it as .json; docs/GUARANTEES.md for a full run",
    )
    parser.add_argument("--layer", help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def own_server(spec: str, *, in_memory: bool) -> OwnServer:
    """A server as the command line names it; its data are in memory, if there is room, or on the
    disk.
    """
    wanted, *settings = spec.split(",")
    root = find_memory(12) if in_memory else None
    return OwnServer(wanted, root=root, **dict(setting.split("=", 1) for setting in settings))


Play = tuple[layers.Layer, OwnServer, float]
"""A layer, the server that it is played on, and the seconds that it has."""


Results = list[tuple[str, Findings]]
"""Version and findings of each layer that was played."""


def run(options: argparse.Namespace, seed: int) -> tuple[Results, Results]:
    """Runs the layers on the servers, and once more those of which a fault happened too seldom,
    which says nothing of the code: what all found, and what those found then.
    """
    chosen = [
        layer
        for layer in layers.LAYERS
        if layer.name in (options.only or [layer.name]) and layer.name not in options.skip
    ]
    with ExitStack() as stack:
        servers = [
            stack.enter_context(own_server(spec, in_memory=options.quick))
            for spec in options.postgres or [""]
        ]
        plays = [
            (layer, server)
            for layer in chosen
            for server in servers
            if layer.at_any_level or not server.has_odd_level
        ]
        growing = sum(layer.quick_seconds for layer, _ in plays if layer.full_seconds is None)
        fixed = sum(layer.full_seconds or 0 for layer, _ in plays)
        factor = max(1.0, (options.minutes * 60 * AT_ONCE - fixed) / max(growing, 1))

        def seconds_of(layer: layers.Layer) -> float:
            return (
                layer.quick_seconds
                if options.quick
                else layer.full_seconds or layer.quick_seconds * factor
            )

        results = play([(layer, server, seconds_of(layer)) for layer, server in plays], seed)
        seldom = {(found.layer, version) for version, found in results if report.only_void(found)}
        anew = [p for p in plays if (p[0].name, p[1].label) in seldom]
        return results, play([(layer, server, seconds_of(layer)) for layer, server in anew], seed)


def run_again(options: argparse.Namespace, record: dict[str, Any]) -> Results:
    """Plays the layers again that did not hold in the run of a record, each for as long as it
    took.
    """
    failed = [
        (version, findings)
        for version, findings in report.results_of(record)
        if report.broken([(version, findings)])
    ]
    with ExitStack() as stack:
        servers = {
            (server := stack.enter_context(own_server(spec, in_memory=False))).label: server
            for spec in options.postgres or [""]
        }
        if missing := {version for version, _ in failed} - servers.keys():
            raise SystemExit(
                f"the record is of Postgres {', '.join(sorted(missing))} too: name it by "
                "--postgres, as in its run"
            )
        by_name = {layer.name: layer for layer in layers.LAYERS}
        return play(
            [
                (by_name[findings.layer], servers[version], findings.seconds)
                for version, findings in failed
            ],
            record["seed"],
        )


def play(plays: list[Play], seed: int) -> Results:
    """Plays layers, the longest first, two at a time: version and findings of each."""
    waiting = sorted(plays, key=lambda play: -play[2])
    running: list[layers.Job] = []
    results = []
    try:
        while waiting or running:
            while waiting and len(running) < AT_ONCE:
                layer, server, seconds = waiting.pop(0)
                running.append(layers.Job(layer, server.label, server.dsn, seconds, seed))
            for job in [job for job in running if job.is_over()]:
                running.remove(job)
                findings = job.findings()
                results.append((job.version, findings))
                tell(job.version, findings)
            time.sleep(0.1)
    finally:
        for job in running:
            job.stop()
    return results


def tell(version: str, findings: Findings) -> None:
    """One line for a layer that is over, and what is wrong with it below."""
    runs = sum(e.runs for e in findings.evidence)
    lost = sum(e.lost for e in findings.evidence)
    doubled = sum(e.doubled for e in findings.evidence)
    verdict = "void" if findings.void else "BROKEN" if findings.broken else "ok"
    print(
        f"{findings.layer:10} Postgres {version:6} {findings.seconds:6.0f} s  {runs:>12,} runs  "
        f"{lost} lost  {doubled} doubled  {verdict}",
        flush=True,
    )
    for line in report.broken([(version, findings)]):
        print(f"  {line}", flush=True)


def again(options: argparse.Namespace, tree: report.Tree) -> dict[str, Any]:
    """Return the record that was given, with what did not hold played again; refuse one of another
    commit.
    """
    earlier = json.loads(options.again.read_text())
    if (earlier["commit"], earlier["is_dirty"]) != (tree.commit, tree.is_dirty):
        raise SystemExit(
            f"the record is of commit {earlier['commit']}, the tree at hand of "
            f"{tree.commit}{', changed' if tree.is_dirty else ''}"
        )
    return report.played_again(earlier, run_again(options, earlier))


def main() -> int:
    """Runs the proof; returns the exit code."""
    options = parse()
    seed = (
        options.seed if options.seed is not None else random.SystemRandom().randrange(1, 1_000_000)
    )
    if options.layer:
        findings = layers.run_here(
            options.layer, os.environ["PGFLOW_TEST_DSN"], options.seconds, seed
        )
        options.json.write_text(layers.write_findings(findings))
        return 0
    started, tree = time.monotonic(), report.tree_at_hand()
    if options.again:
        record = again(options, tree)
        seed = record["seed"]
    else:
        results, anew = run(options, seed)
        arguments = " --quick" if options.quick else f" --minutes {options.minutes:g}"
        arguments += "".join(f" --postgres {wanted}" for wanted in options.postgres or [])
        seconds, date = time.monotonic() - started, f"{datetime.now(UTC):%Y-%m-%d}"
        record = report.record(
            results,
            arguments=arguments,
            seconds=seconds,
            date=date,
            seed=seed,
            trees=(tree, report.tree_at_hand()),
        )
        record = report.played_again(record, anew)
    page = report.page(record)
    print(page)
    said = report.broken(report.results_of(record))
    for line in said:
        print(f"FAILED {line}")
    output = options.output or (
        None if options.quick or options.only or options.skip else GUARANTEES
    )
    if output is not None:
        kept = (
            output.with_suffix(".json")
            if not said
            else Path(tempfile.gettempdir()) / f"pgflow-proof-{seed}.json"
        )
        kept.write_text(json.dumps(record, indent=1) + "\n")
        if said:
            print(
                f"play that again, with the same --postgres: python -m tests.proof --again {kept}"
            )
        else:
            output.write_text(page)
            print(f"written to {output} and {kept.name}")
    print(f"seed {seed}, {time.monotonic() - started:.0f} s: {'broken' if said else 'holds'}")
    return 1 if said else 0


if __name__ == "__main__":
    sys.exit(main())
