"""Runs a quarter of treasury days, kills workers on the way, and proves the books: exit code 1 if a proof fails."""

from __future__ import annotations

import argparse
import signal
import sys
from dataclasses import replace
from pathlib import Path

from pgflow_cli.failures import USAGE, explain
from pgflow_cli.treasury.quarter import Options, TreasuryError, prove_only, run_quarter

FAST = {"days": 15, "latency_ms": 20.0}


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m examples.treasury", description=__doc__)
    parser.add_argument("--dsn", help="the database; else PGFLOW_DSN, else the embedded server")
    parser.add_argument("--days", type=int, help="business days from 2 January 2024 on (63)")
    parser.add_argument("--kills", type=int, help="workers to kill while they hold runs (3)")
    parser.add_argument("--seed", type=int, help="of the accounts' flows and of the acknowledgements that are lost")
    parser.add_argument("--folder", type=Path, help="where the bank's book and the logs go; must not hold a book yet")
    parser.add_argument("--fast", action="store_true", help="15 days, and a bank that answers sooner")
    parser.add_argument("--prove-only", action="store_true", help="run nothing: prove the books as they are now")
    parser.add_argument("--book", type=Path, help="with --prove-only: the bank's book")
    return parser.parse_args()


def main() -> int:
    """Runs the program; answers its exit code."""
    arguments = parse()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # whatever was started is stopped
    if arguments.prove_only:
        return 0 if prove_only(arguments.dsn, arguments.book) else 1
    given = {name: value for name, value in vars(arguments).items() if name in ("dsn", "days", "kills", "seed", "folder") and value is not None}
    options = replace(Options(), **{**(FAST if arguments.fast else {}), **given})
    return 0 if run_quarter(options, lambda line: print(line, flush=True)) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
    except (TreasuryError, LookupError) as error:
        print(f"treasury: {error}", file=sys.stderr)
        sys.exit(USAGE)
    except Exception as error:
        code, line = explain(error)
        if line is None:
            raise
        print(f"treasury: {line}", file=sys.stderr)
        sys.exit(code)
