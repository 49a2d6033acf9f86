"""``pgflow wait`` and ``pgflow result``: until runs have ended, from a shell script."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from pgflow_cli.look.database import Dsn, as_row, database_now, find_dsn, opened
from pgflow_cli.look.failures import DONE, FAILED, NEEDS_A_PERSON, TIME_LIMIT, Ended, Mistake
from pgflow_cli.look.output import AsCsv, AsJson, Form, choose_form, dump, note, print_rows, shown
from pgflow_cli.look.parsing import parse_duration
from pgflow_cli.look.selection import ENDED, Key, complete_key, find_detail
from pgflow_cli.runs.listing import run_columns

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

    import psycopg

Keys = Annotated[
    list[str],
    typer.Argument(
        metavar="KEY...", help="Keys of the runs.", autocompletion=complete_key, show_default=False
    ),
]
Timeout = Annotated[
    str | None, typer.Option("--timeout", help="Stop waiting after 90s, 10m...: exit code 3.")
]

_RUN = (
    "key",
    "status",
    "workflow",
    "queue",
    "labels",
    "priority",
    "attempt",
    "since",
    "why",
    "run_id",
    "chain_id",
    "output",
)
_NAMES = ("key", "status", "workflow", "since", "why")
OVER = (*ENDED, "stuck")
PATIENCE_SECONDS = 1.0
"""Time after which a wait prints what it waits for."""


def wait(
    keys: Keys,
    *,
    timeout: Timeout = None,
    as_json: AsJson = None,
    as_csv: AsCsv = False,
    dsn: Dsn = None,
) -> None:
    """Waits until runs end or get stuck.

    Exit code 0 if all completed, 1 if one failed or was cancelled, 4 if one is stuck, 3 if the time
    is over first.
    """
    form = choose_form(as_json=as_json, as_csv=as_csv)
    with opened(dsn) as connection:
        rows = _wait(connection, dsn, keys, timeout)
        told = (
            rows if form is Form.TABLE else [{name: row[name] for name in _NAMES} for row in rows]
        )
        print_rows(form, run_columns(rows, database_now(connection)), told)
    code = _exit_code(rows)
    if code == TIME_LIMIT:
        note(
            f"{sum(row['status'] not in OVER for row in rows)} of {len(rows)} runs have not ended."
        )
    if code != DONE:
        raise Ended(code)


def result(key: Key, *, timeout: Timeout = None, dsn: Dsn = None) -> None:
    """Waits for a run, and prints its result as JSON.

    Exit code 1 if it failed or was cancelled, 4 if it is stuck, 3 if the time is over first;
    standard error says why. If nothing comes for a second, it says what the run waits for.
    """
    with opened(dsn) as connection:
        (row,) = _wait(
            connection, dsn, [key], timeout, meanwhile=lambda: _tell_why(connection, key)
        )
    if row["status"] == "completed":
        typer.echo(dump(row["output"]))
        return
    note(f"pgflow: run {key!r} is {_standing(row)}")
    raise Ended(_exit_code([row]))


def _tell_why(connection: psycopg.Connection[Any], key: str) -> None:
    """Says once what a run waits for, if that is known: it may be for a person, or a worker."""
    import psycopg

    try:
        row = as_row(find_detail(connection, key), _RUN)
    except (Mistake, psycopg.Error):  # the wait goes on, and reports it in the end
        return
    if row["status"] not in OVER and row["why"]:
        note(f"pgflow: waiting for run {key!r}, which is {_standing(row)}")


def _standing(row: dict[str, Any]) -> str:
    """Return the status of a run and why, on one line."""
    return f"{row['status']}: {shown(row['why'])}" if row["why"] else str(row["status"])


def _exit_code(rows: list[dict[str, Any]]) -> int:
    """Return the exit code of the worst outcome, as with `pgflow tick`."""
    statuses = {row["status"] for row in rows}
    if "stuck" in statuses:
        return NEEDS_A_PERSON
    if statuses & {"failed", "cancelled"}:
        return FAILED
    return DONE if statuses <= {"completed"} else TIME_LIMIT


def _wait(
    connection: psycopg.Connection[Any],
    dsn: str | None,
    keys: list[str],
    timeout: str | None,
    *,
    meanwhile: Callable[[], None] | None = None,
) -> list[dict[str, Any]]:
    """Return the runs as they are once all are over, or the time is.

    Args:
        connection: To the database.
        dsn: Of the database; None for the one of the environment.
        keys: Of the runs.
        timeout: Longest wait, as it was given.
        meanwhile: Called once, if they are not over after a second.

    Raises:
        Mistake: No run has one of the keys, or its history was removed meanwhile.
    """
    limit = None if timeout is None else parse_duration(timeout, "--timeout")
    keys = list(dict.fromkeys(keys))
    runs = [as_row(find_detail(connection, key), _RUN) for key in keys]
    open_chains = [run["chain_id"] for run in runs if run["status"] not in OVER]
    if not open_chains:
        return runs
    import asyncio

    asyncio.run(_until_over(find_dsn(dsn), open_chains, limit, meanwhile))
    return [_find_again(connection, key) for key in keys]


def _find_again(connection: psycopg.Connection[Any], key: str) -> dict[str, Any]:
    try:
        return as_row(find_detail(connection, key), _RUN)
    except Mistake:
        raise Mistake(f"run {key!r} has ended, and its history was removed meanwhile") from None


async def _until_over(
    dsn: str, chains: list[int], limit: timedelta | None, meanwhile: Callable[[], None] | None
) -> None:
    import asyncio

    from pgflow._client.results import ResultWaiter
    from pgflow._db.connect import ConnectOptions

    waiter = ResultWaiter(ConnectOptions(dsn, prepare_threshold=None))
    ends = asyncio.gather(*(waiter.wait(chain) for chain in chains))
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
        await waiter.close()
