"""`python -m tests.proof [--gate | --minutes N] [--seed S] [--postgres VERSION]... [--only
LAYER]... [--skip LAYER]... [--add] [--output FILE]`

Puts every promise to the fault that tests it and prints the table: promise, fault, runs, lost,
doubled. Each layer runs in a process of its own, two at a time, on servers that are started for it
(``--postgres``: those of the embedded server if not said; 15, 16, 17 as the tests'
``PGFLOW_TEST_POSTGRES``), with fsync on. A server may have settings of its own: ``--postgres
15,jit=on``, ``--postgres 16,default_transaction_isolation=serializable`` (of the layers, those that
go through the engine). Exit code 1 if anything was lost, doubled or broken, or if a fault happened
too seldom for the run to count. Nothing is played twice; mutants that survive are in its figure.

``--gate`` is what stands between a commit and its landing: the layers whose plan follows from a
seed. The seed is the hash of the tree, and lengths are counts: the same commit has the same plan,
which is printed first, and so the same verdict, on any machine.

Without it the run is a full proof: all layers, seeded at random unless ``--seed`` is given, with
counts by ``--minutes``. It writes docs/GUARANTEES.md, and beside it the record that the page is
made of. If something does not hold, the record goes to the folder of temporary files instead.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "kits"))
sys.path.insert(0, str(Path(__file__).parents[1]))

from evidence import Findings
from ownserver import OwnServer
from servers import find_memory

from proof import layers, named_tests, report

AT_ONCE = 2
FULL_MINUTES = 45
SEEDS = 1_000_000
GUARANTEES = report.REPOSITORY / "docs" / "GUARANTEES.md"


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.proof",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = [layer.name for layer in layers.LAYERS]
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--gate", action="store_true", help="same commit, same plan, same verdict")
    length.add_argument(
        "--minutes",
        type=float,
        default=FULL_MINUTES,
        help=f"how long the whole run takes on two cores, about ({FULL_MINUTES})",
    )
    parser.add_argument("--seed", type=int, help="else at random, in the gate the tree's hash")
    parser.add_argument(
        "--postgres",
        action="append",
        metavar="VERSION[,NAME=VALUE...]",
        help="a version or a folder of programs, and settings of the server; may be given several "
        "times",
    )
    parser.add_argument(
        "--only", action="append", choices=names, help="this layer; may be given several times"
    )
    parser.add_argument(
        "--skip",
        action="append",
        default=[],
        choices=names,
        help="not this layer; may be given several times",
    )
    parser.add_argument(
        "--add",
        action="store_true",
        help="put the lines of these layers into the page and its record, in the place of those that "
        "are there",
    )
    parser.add_argument(
        "--claim",
        action="append",
        choices=list(named_tests.TESTS),
        help="only the tests of this promise, whose lines then take the place of those in the page "
        "and its record; may be given several times",
    )
    parser.add_argument(
        "--output",
        type=Path,
        help="where the page goes, its record beside it as .json; docs/GUARANTEES.md for a full run",
    )
    parser.add_argument("--layer", help=argparse.SUPPRESS)
    parser.add_argument("--amount", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def seed_of(options: argparse.Namespace) -> int:
    """Return the seed that is given, else the tree's in the gate, else one at random."""
    if options.seed is not None:
        return int(options.seed)
    if options.gate:
        return 1 + int(report.hash_of_tree()[:12], 16) % SEEDS
    return random.SystemRandom().randrange(1, SEEDS)


def own_server(spec: str, *, in_memory: bool) -> OwnServer:
    """A server as the command line names it; its data are in memory, if there is room, or on the
    disk.
    """
    wanted, *settings = spec.split(",")
    root = find_memory(4) if in_memory else None
    return OwnServer(wanted, root=root, **dict(setting.split("=", 1) for setting in settings))


Play = tuple[layers.Layer, OwnServer, int]
"""A layer, the server that it is played on, and how much of it."""


Results = list[tuple[str, Findings]]
"""Version and findings of each layer that was played."""


def chosen(options: argparse.Namespace) -> list[layers.Layer]:
    """The layers that the command line asks for."""
    return [
        layer
        for layer in layers.LAYERS
        if layer.name in (options.only or [layer.name])
        and layer.name not in options.skip
        and not (options.gate and layer.gate is None)
    ]


def run(options: argparse.Namespace, seed: int) -> Results:
    """Prints the plan and plays it: what all layers found."""
    minutes = None if options.gate else options.minutes
    print(f"seed {seed}")
    for layer in chosen(options):
        print(f"{layer.name:12} {layer.amount(minutes):>7,} {layer.unit}: {layer.what}", flush=True)
    with ExitStack() as stack:
        servers = [
            stack.enter_context(own_server(spec, in_memory=options.gate))
            for spec in options.postgres or [""]
        ]
        plays = [
            (layer, server, layer.amount(minutes))
            for layer in chosen(options)
            for server in servers
            if layer.at_any_level or not server.has_odd_level
        ]
        return play(plays, seed)


def play(waiting: list[Play], seed: int) -> Results:
    """Plays layers, two at a time: version and findings of each."""
    running: list[layers.Job] = []
    results = []
    try:
        while waiting or running:
            while waiting and len(running) < AT_ONCE:
                layer, server, amount = waiting.pop(0)
                running.append(layers.Job(layer, server.label, server.dsn, amount, seed))
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


def claim(options: argparse.Namespace, seed: int) -> int:
    """Play the tests of single promises, and put what they say into the page."""
    tree, found = report.tree_at_hand(), []
    for spec in options.postgres or [""]:
        with own_server(spec, in_memory=True) as server:
            findings = named_tests.prove(server.dsn, 1, seed, options.claim)
            found.append((server.label, findings))
            tell(server.label, findings)
    return add(found, tree, report.with_claims)


def add(
    found: Results,
    tree: report.Tree,
    merged: Callable[[dict[str, Any], Results, report.Tree], dict[str, Any]],
) -> int:
    """Put what was found into the page and its record, unless something does not hold; returns the
    exit code.
    """
    if report.broken(found):
        return 1
    record = GUARANTEES.with_suffix(".json")
    run = merged(json.loads(record.read_text()), found, tree)
    record.write_text(json.dumps(run, indent=1) + "\n")
    GUARANTEES.write_text(report.page(run))
    return 0


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


def main() -> int:
    """Runs the proof; returns the exit code."""
    options = parse()
    seed = seed_of(options)
    if options.layer:
        findings = layers.run_here(
            options.layer, os.environ["PGFLOW_TEST_DSN"], options.amount, seed
        )
        options.json.write_text(layers.write_findings(findings))
        return 0
    if options.claim:
        return claim(options, seed)
    started, tree = time.monotonic(), report.tree_at_hand()
    results = run(options, seed)
    if options.add:
        return add(results, tree, report.with_layers)
    arguments = " --gate" if options.gate else f" --minutes {options.minutes:g}"
    arguments += "".join(f" --skip {name}" for name in options.skip)
    arguments += "".join(f" --postgres {wanted}" for wanted in options.postgres or [])
    record = report.record(
        results,
        arguments=arguments,
        seconds=time.monotonic() - started,
        date=f"{datetime.now(UTC):%Y-%m-%d}",
        seed=seed,
        trees=(tree, report.tree_at_hand()),
    )
    said = report.broken(results)
    write(options, seed, record, is_broken=bool(said))
    for line in said:
        print(f"FAILED {line}")
    print(f"seed {seed}, {time.monotonic() - started:.0f} s: {'broken' if said else 'holds'}")
    return 1 if said else 0


def write(
    options: argparse.Namespace, seed: int, record: dict[str, Any], *, is_broken: bool
) -> None:
    """Prints the page of a full proof, and writes it if all layers were played."""
    if not options.gate:
        print(report.page(record))
    is_partial = options.gate or options.only or options.skip
    output = options.output or (None if is_partial else GUARANTEES)
    if output is None:
        return
    if is_broken:
        kept = Path(tempfile.gettempdir()) / f"pgflow-proof-{seed}.json"
    else:
        kept = output.with_suffix(".json")
        output.write_text(report.page(record))
        print(f"written to {output} and {kept.name}")
    kept.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
