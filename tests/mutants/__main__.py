"""The command line: `python -m tests.mutants [record | list] [--seed N] [--count N] [--only PATTERN]
[--out FOLDER]`.
"""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import ExitStack
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
sys.path[:0] = [str(REPOSITORY / "tests" / "kits"), str(REPOSITORY / "tests"), str(REPOSITORY)]

from . import __doc__ as about  # noqa: E402
from . import places, traces, trials  # noqa: E402
from .proofs import FOLDER, RECORD  # noqa: E402
from .reports import Report  # noqa: E402


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=about)
    parser.add_argument(
        "what",
        nargs="?",
        choices=("try", "record", "list"),
        default="try",
        help="try mutants; record what the tests of a tier enter; or list the ids of the places",
    )
    parser.add_argument("--seed", type=int, default=1, help="draws the mutants (1)")
    parser.add_argument("--count", type=int, default=100, help="number of mutants (100)")
    parser.add_argument(
        "--only", action="append", default=[], metavar="PATTERN", help="part of an id, or a pattern"
    )
    parser.add_argument("--tier", choices=traces.TIERS, default="default", help="tier to record")
    parser.add_argument(
        "--tests", nargs="+", default=[], help="folders or files of tests to record again"
    )
    parser.add_argument("--record", type=Path, default=RECORD, help="folder of the record")
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder of the report")
    parser.add_argument("--at-once", type=int, default=2, help="mutants tried at a time (2)")
    parser.add_argument(
        "--most-seconds", type=float, default=300.0, help="seconds of tests tried on a mutant (300)"
    )
    parser.add_argument("--server", help="a superuser's DSN; else a server is started")
    return parser.parse_args()


def _server(given: str | None, stack: ExitStack) -> str:
    if dsn := given or os.environ.get("PGFLOW_TEST_DSN"):
        return dsn
    from ownserver import OwnServer
    from servers import find_memory

    return stack.enter_context(OwnServer(root=find_memory(4), fsync="off")).dsn


def main() -> int:
    """Do what the command line says; 1 if a mutant has survived or was not reached."""
    options = parse()
    if options.what == "record":
        with ExitStack() as stack:
            dsn = _server(options.server, stack)
            return traces.record(options.record, options.tier, options.tests, dsn)
    found = places.find_all(options.only)
    if options.what == "list":
        print(*(mutant.id for mutant in found), sep="\n")
        return 0
    trace = traces.read(options.record, traces.rooms_of_tests())
    report = Report(options.seed, len(found))
    with ExitStack() as stack:
        dsn = _server(options.server, stack)
        drawn = places.draw(found, options.seed, options.count)
        tried = trials.try_all(
            drawn, trace, dsn, at_once=options.at_once, most_seconds=options.most_seconds
        )
        for trial in tried:
            print(trial, flush=True)
            report.add(trial)
            report.write(options.out)
    print(report.figure)
    return int(len(report.of(trials.NOTICED)) < len(report.trials))


if __name__ == "__main__":
    sys.exit(main())
