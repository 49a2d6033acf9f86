"""Run a quarter of treasury days, kill workers on the way, and prove the books: exit code 1 if a
proof fails.

Start with `workflow.py`.
"""

from __future__ import annotations

import argparse
import signal
import sys
from dataclasses import replace
from pathlib import Path

from pgflow_cli.look.failures import FAILED, USAGE, explain

from examples.treasury.quarter import Options, TreasuryError, prove_only, run_quarter

FAST = Options(days=15, latency_ms=20.0)


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.treasury", description="A quarter of treasury days, with crashes."
    )
    parser.add_argument("--dsn", help="the database; else PGFLOW_DSN, else the embedded server")
    parser.add_argument(
        "--days",
        type=int,
        choices=range(1, 251),
        metavar="N",
        help="business days from 2 January 2024 on (63)",
    )
    parser.add_argument(
        "--kills",
        type=int,
        choices=range(51),
        metavar="N",
        help="workers to kill while they hold runs (3)",
    )
    parser.add_argument(
        "--seed", type=int, help="of the accounts' flows, and of which acknowledgements are lost"
    )
    parser.add_argument(
        "--folder",
        type=Path,
        help="where the bank's book and the logs go; must not hold a book yet",
    )
    parser.add_argument(
        "--fast", action="store_true", help="15 days, and a bank that answers sooner"
    )
    parser.add_argument(
        "--prove-only", action="store_true", help="run nothing: prove the books as they are now"
    )
    parser.add_argument(
        "--book", type=Path, help="with --prove-only: the bank's book, if it was moved"
    )
    return parser.parse_args()


def run(arguments: argparse.Namespace) -> bool:
    """Run the parsed command line; return True if every proof holds."""
    if arguments.prove_only:
        return prove_only(arguments.dsn, arguments.book, say)
    given = {name: getattr(arguments, name) for name in ("dsn", "days", "kills", "seed", "folder")}
    options = replace(
        FAST if arguments.fast else Options(), **{k: v for k, v in given.items() if v is not None}
    )
    return run_quarter(options, say)


def say(line: str) -> None:
    """Print a line at once, also into a pipe."""
    print(line, flush=True)


def main() -> int:
    """Run the program; return its exit code."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(
            number, signal.default_int_handler
        )  # these stop all processes, as Ctrl-C does
    try:
        return 0 if run(parse()) else FAILED
    except KeyboardInterrupt:
        return 130
    except (TreasuryError, LookupError) as error:
        return fail(USAGE, str(error))
    except Exception as error:
        code, line = explain(error)
        if line is None:
            raise
        return fail(code, line)


def fail(code: int, line: str) -> int:
    """Print why there are no books to prove, and return the exit code."""
    print(f"treasury: {line}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
