"""`python -m tests.campaigns DSN [--rounds N] [--seed S] [--only G4,G7]`: campaigns as a program."""

from __future__ import annotations

import argparse
import sys

from tests.campaigns import prove


def main() -> int:
    """Prints a line for each promise and fault; 1 if something does not hold or did not happen
    often enough.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dsn", help="a superuser's; databases are made beside its own and dropped")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="guarantees, such as G4,G7")
    options = parser.parse_args()
    findings = prove(
        options.dsn,
        options.rounds,
        options.seed,
        frozenset(filter(None, options.only.split(","))),
        tell=lambda line: print(f"   {line}", flush=True),
    )
    for e in findings.evidence:
        print(
            f"{'ok' if e.holds else 'NO':2} {e.guarantee:4} {e.fault}: {e.runs} runs, {e.lost} "
            f"lost, {e.doubled} doubled{f'; {e.figure}' if e.figure else ''}"
        )
        for line in e.wrong:
            print(f"        {line}")
    for fault, (times, minimum) in findings.fired.items():
        print(f"   fired {times:6} (at least {minimum}) {fault}")
    print(f"seed {findings.seed}")
    return 1 if findings.broken or findings.void else 0


if __name__ == "__main__":
    sys.exit(main())
