"""The ``pgflow`` command.

Each module is a command or a group of them, and `commands` lists them: ``runs`` has those on runs,
``ledgers`` those on effects and decisions, ``files`` those on workflow files and code, ``ops``
those on a database and its workers. ``look`` has what they share: `declaring` and `options` declare
parameters and prints help, `parsing` reads what was typed, `selection`, `targets` and `database`
find runs, code and the database, `failures` has the exit codes. ``pgflow.console.output`` prints
answers. ``shop`` is the example that ``pgflow demo`` runs.

Exit codes, the same for every command, are in `look.failures`. A user's mistake gives one line on
standard error, never a traceback; ``PGFLOW_TRACEBACK=1`` shows it all the same.
"""

from __future__ import annotations

import gc
import signal
import sys
from typing import NoReturn

_SERVERS = ("workers", "worker", "serve")
"""Commands that SIGTERM asks to end, and that have then ended well."""


def main() -> None:
    """Runs the command line; entry point of ``pgflow``."""
    if sys.argv[1:] == ["--version"]:  # which needs no options, and so no typer
        print(version())
        return
    # Imports make no garbage: `pgflow run FILE`, which has most of them, ends without a collection.
    gc.set_threshold(250_000)
    if sys.argv[1:2] and sys.argv[1] in _SERVERS:
        # Until the command hears it itself: it holds nothing yet.
        signal.signal(signal.SIGTERM, _end)
    try:
        from pgflow_cli.commands import run

        code = run(sys.argv[1:])
    except KeyboardInterrupt:  # before there was a command to be interrupted
        code = 130
    gc.freeze()  # else Python walks all that was imported once more before it ends
    sys.exit(code)


def version() -> str:
    """Return the version, that of its schema, and whether the engine is compiled."""
    from pgflow.assets import is_compiled, own_assets

    return f"pgflow {own_assets().stamp.brief}{' (compiled)' if is_compiled() else ''}"


def _end(*_: object) -> NoReturn:
    sys.exit(0)
