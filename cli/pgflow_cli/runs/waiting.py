"""``pgflow wait`` and ``pgflow result``: until runs have ended, from a shell script."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Annotated

import typer

from pgflow import inspect
from pgflow.console.output import dump, note, shown
from pgflow_cli.look.database import Database
from pgflow_cli.look.declaring import arg
from pgflow_cli.look.failures import DONE, FAILED, NEEDS_A_PERSON, TIME_LIMIT, Ended, Mistake
from pgflow_cli.look.options import Db, Rows, Timeout
from pgflow_cli.look.parsing import parse_span
from pgflow_cli.look.selection import ENDED, Key, complete_key, find_detail
from pgflow_cli.runs.listing import run_columns

Keys = Annotated[list[str], arg("Keys of the runs.", metavar="KEY...", autocompletion=complete_key)]
_NAMES = ("key", "status", "workflow", "since", "why")
OVER = (*ENDED, "stuck")
PATIENCE_SECONDS = 1.0
"""Time after which a wait prints what it waits for."""


def wait(keys: Keys, db: Rows, *, timeout: Timeout = None) -> None:
    """Waits until runs end or get stuck.

    Exit code 0 if all completed, 1 if one failed or was cancelled, 4 if one is stuck, 3 if the time
    is over first.
    """
    runs = _wait(db, keys, timeout)
    db.print(runs, run_columns(runs, db.now), "", _NAMES)
    code = _exit_code(runs)
    if code == TIME_LIMIT:
        open_runs = sum(run.status not in OVER for run in runs)
        has = "run has" if len(runs) == 1 else "runs have"
        note(f"{open_runs} of {len(runs)} {has} not ended.")
    if code != DONE:
        raise Ended(code)


def result(key: Key, db: Db, *, timeout: Timeout = None) -> None:
    """Waits for a run, and prints its result as JSON.

    Exit code 1 if it failed or was cancelled, 4 if it is stuck, 3 if the time is over first;
    standard error says why. If nothing comes for a second, it says what the run waits for.
    """
    (run,) = _wait(db, [key], timeout, meanwhile=lambda: _note_reason(db, key))
    if run.status == "completed":
        typer.echo(dump(run.output))
        return
    note(f"pgflow: run {key!r} is {_status(run)}")
    raise Ended(_exit_code([run]))


def _note_reason(db: Database, key: str) -> None:
    """Print what a run waits for, if that is known: it may be for a person, or a worker."""
    import psycopg

    try:
        run = find_detail(db, key)
    except (Mistake, psycopg.Error):  # the wait goes on, and reports it in the end
        return
    if run.status not in OVER and run.why:
        note(f"pgflow: waiting for run {key!r}, which is {_status(run)}")


def _status(run: inspect.RunRow) -> str:
    """Return the status of a run and why, on one line."""
    return f"{run.status}: {shown(run.why)}" if run.why else run.status


def _exit_code(runs: Sequence[inspect.RunRow]) -> int:
    """Return the exit code of the worst outcome, as with `pgflow tick`."""
    statuses = {run.status for run in runs}
    if "stuck" in statuses:
        return NEEDS_A_PERSON
    if statuses & {"failed", "cancelled"}:
        return FAILED
    return DONE if statuses <= {"completed"} else TIME_LIMIT


def _wait(
    db: Database,
    keys: list[str],
    timeout: str | None,
    *,
    meanwhile: Callable[[], None] | None = None,
) -> list[inspect.RunDetail]:
    """Return the runs as they are once all are over, or the time is.

    Args:
        db: The database.
        keys: Of the runs.
        timeout: Longest wait, as it was given.
        meanwhile: Called once, if they are not over after a second.

    Raises:
        Mistake: No run has one of the keys, or its history was removed meanwhile.
    """
    limit = parse_span(timeout, "--timeout")
    keys = list(dict.fromkeys(keys))
    runs = [find_detail(db, key) for key in keys]
    open_runs = {run.key: run.chain_id for run in runs if run.status not in OVER}
    if not open_runs:
        return runs
    import asyncio

    asyncio.run(_until_over(db.dsn, open_runs, limit, meanwhile))
    return [_find_again(db, key) for key in keys]


def _find_again(db: Database, key: str) -> inspect.RunDetail:
    try:
        return find_detail(db, key)
    except Mistake:
        raise Mistake(f"run {key!r} has ended, and its history was removed meanwhile") from None


async def _until_over(
    dsn: str, chains: dict[str, int], limit: timedelta | None, meanwhile: Callable[[], None] | None
) -> None:
    import asyncio

    from pgflow.app import AsyncApp

    async with AsyncApp(dsn, prepare_threshold=None) as app:
        ends = asyncio.gather(*(app.wait(key, chain, None) for key, chain in chains.items()))
        try:
            async with asyncio.timeout(None if limit is None else limit.total_seconds()):
                over, _ = await asyncio.wait([ends], timeout=PATIENCE_SECONDS)
                if not over and meanwhile is not None:
                    meanwhile()
                await ends
        except TimeoutError:
            return
        finally:
            ends.cancel()
            await asyncio.gather(ends, return_exceptions=True)
