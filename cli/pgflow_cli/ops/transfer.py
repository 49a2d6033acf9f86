"""``pgflow export`` and ``pgflow import``: recorded runs as lines of JSON, out of one database and
into another.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pgflow_cli.look.database import Dsn, as_row, fetch, opened
from pgflow_cli.look.failures import Mistake
from pgflow_cli.look.options import Keys
from pgflow_cli.look.output import AsJson, Form, choose_form, dump, many, note, shown
from pgflow_cli.look.selection import (
    Filters,
    KeyPattern,
    Labels,
    Queues,
    Since,
    Statuses,
    Until,
    WorkflowNames,
    find_run,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    import psycopg

Everything = Annotated[bool, typer.Option("--all", help="Every run.")]
Children = Annotated[
    bool, typer.Option("--children", help="The runs that they started too, and so on.")
]
Decisions = Annotated[
    bool,
    typer.Option("--decisions", help="Their decisions instead, each with what became of it."),
]
AT_ONCE = 100
"""Runs of a page, and decisions of a page: an export of decisions holds no more."""

Output = Annotated[
    Path | None,
    typer.Option(
        "--output", "-o", help="Write to this file instead of standard output.", show_default=False
    ),
]
File = Annotated[
    str,
    typer.Argument(
        metavar="FILE", help="Histories, one a line, or - for standard input.", show_default=False
    ),
]


def export(
    keys: Keys = None,
    *,
    status: Statuses = None,
    workflow: WorkflowNames = None,
    queue: Queues = None,
    label: Labels = None,
    key: KeyPattern = None,
    since: Since = None,
    until: Until = None,
    everything: Everything = False,
    children: Children = False,
    decisions: Decisions = False,
    output: Output = None,
    dsn: Dsn = None,
) -> None:
    """Writes runs with their journals as JSON Lines.

    Each line is one generation of a run; `pgflow replay --from-files` and `pgflow import` read
    them. Inputs, results and payloads are in them as they were recorded: treat the file like the
    database.

    With --decisions each line is a decision with its reasons and cost, the acts that rest on it,
    the answers that people gave at gates, and how its run ended: for evaluations.
    """
    filters = Filters(status, workflow, queue, label, key, since, until)
    if bool(keys) + bool(filters) + everything != 1:
        raise Mistake("which runs? Pass keys, or options that choose, or --all")
    if decisions and children:
        raise Mistake("--decisions takes no --children: choose those runs by options or keys")
    if output is None and sys.stdout.isatty():
        raise Mistake("this would fill the terminal: pass --output FILE, or send it on with > or |")
    with opened(dsn) as connection:
        if decisions:
            lines = _export_decisions(connection, keys or [], filters, output)
            note(f"{many(lines, 'decision')} exported")
            return
        runs, lines = _export(connection, keys or [], filters, output, children=children)
    note(f"{many(runs, 'run')} exported, {many(lines, 'line')}")


def _export(
    connection: psycopg.Connection[Any],
    keys: list[str],
    filters: Filters,
    output: Path | None,
    *,
    children: bool,
) -> tuple[int, int]:
    """Export all runs as of one moment; return the numbers of runs and lines."""
    from psycopg import IsolationLevel

    from pgflow.inspect import list_child_chains
    from pgflow.replay.histories import export_chain

    named = [find_run(connection, key).chain_id for key in keys]
    connection.isolation_level, connection.read_only = IsolationLevel.REPEATABLE_READ, True
    done: set[int] = set()
    lines = 0
    with connection.transaction():
        chosen = iter(named) if keys else choose_chains(connection, filters)
        with _opened(output) as out:
            for chain in chosen:
                pending = [chain]
                while pending:
                    chain_id = pending.pop(0)
                    if chain_id in done:
                        continue
                    done.add(chain_id)
                    written = export_chain(connection, chain_id, out)
                    lines += len(written)
                    if children:
                        pending += fetch(connection, list_child_chains(written))
    return len(done), lines


def _export_decisions(
    connection: psycopg.Connection[Any], keys: list[str], filters: Filters, output: Path | None
) -> int:
    """Export all decisions as of one moment, holding one page of runs and one of decisions; return
    their number.
    """
    from psycopg import IsolationLevel

    named = list(dict.fromkeys(find_run(connection, key).run_id for key in keys))
    connection.isolation_level, connection.read_only = IsolationLevel.REPEATABLE_READ, True
    lines = 0
    with connection.transaction(), _opened(output) as out:
        for run_ids in _batched(named) if keys else _choose_runs(connection, filters):
            for decided in _decided(connection, run_ids):
                out.write(dump(decided) + "\n")
                lines += 1
    return lines


def _batched(run_ids: list[int]) -> Iterator[list[int]]:
    for first in range(0, len(run_ids), AT_ONCE):
        yield run_ids[first : first + AT_ONCE]


def _choose_runs(connection: psycopg.Connection[Any], filters: Filters) -> Iterator[list[int]]:
    """Numbers of the runs that are meant, page by page, the oldest first."""
    from pgflow.inspect import list_runs

    place = None
    while True:
        page = fetch(
            connection,
            list_runs(filters.chosen(), after=place, limit=AT_ONCE, oldest_first=True),
        )
        yield [run.run_id for run in page]
        if (place := page.next) is None:
            return


def _decided(connection: psycopg.Connection[Any], run_ids: list[int]) -> Iterator[dict[str, Any]]:
    """Yield the decisions of these runs, with a word in place of each part that a codec has
    encoded.
    """
    from pgflow.inspect import list_decided, readable

    place = None
    while True:
        page = fetch(connection, list_decided(run_ids, after=place, limit=AT_ONCE))
        for decided in page:
            yield readable(as_row(decided))
        if (place := page.next) is None:
            return


def _opened(output: Path | None) -> Any:
    from contextlib import nullcontext

    if output is None:
        return nullcontext(sys.stdout)
    try:
        return output.open("w", encoding="utf-8")
    except (OSError, ValueError) as error:  # a path with NUL is a ValueError
        raise Mistake(
            f"{shown(str(output))} cannot be written: {getattr(error, 'strerror', None) or error}"
        ) from error


def choose_chains(connection: psycopg.Connection[Any], filters: Filters) -> Iterator[int]:
    """Yield the chains of the chosen runs, in the order of their starts; a transaction must be
    open.
    """
    from pgflow.inspect import list_chains, stream

    return stream(connection, list_chains(filters.chosen()))


def import_runs(file: File, *, as_json: AsJson = None, dsn: Dsn = None) -> None:
    """Imports exported runs as read-only history.

    It imports all of them or none: if a key or a run exists here already, it refuses the file. A
    run that was open is cancelled here, with the reason "imported while waiting"; replays judge it
    by its former status.
    """
    from pgflow.replay.histories import import_lines

    with opened(dsn) as connection:
        count = import_lines(connection, _lines(file))
    if choose_form(as_json=as_json) is Form.JSON:
        typer.echo(dump({"imported": count}))
    else:
        typer.echo(f"{count:,} {'history' if count == 1 else 'histories'} imported")


def _lines(file: str) -> Iterator[tuple[str, str]]:
    from pgflow.replay.histories import read_lines

    if file == "-":
        yield from read_lines(sys.stdin, "standard input")
        return
    try:
        opened_file = Path(file).open(encoding="utf-8")  # noqa: SIM115 - left below
    except (OSError, ValueError) as error:  # a path with NUL is a ValueError
        raise Mistake(
            f"{shown(file)} cannot be read: {getattr(error, 'strerror', None) or error}"
        ) from error
    with opened_file:
        try:
            yield from read_lines(opened_file, file)
        except OSError as error:
            raise Mistake(f"{shown(file)} cannot be read: {error.strerror}") from error
