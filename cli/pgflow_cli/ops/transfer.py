"""``pgflow export`` and ``pgflow import``: recorded runs as lines of JSON, out of one database and
into another; and ``pgflow sql``: questions to the database that cannot change it.

These take the way of :mod:`pgflow.inspect.sheet`, as those of the console do: by the login of an
auditor, and only over what is pgflow's. That module documents what is refused and why.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, Literal

from pgflow import inspect
from pgflow.console.output import Column, Form, as_object, dump, many, note, short_json, shown
from pgflow_cli.look.database import Database, find_dsn
from pgflow_cli.look.declaring import arg, opt
from pgflow_cli.look.failures import TIME_LIMIT, Ended, Mistake
from pgflow_cli.look.options import Answer, Chosen, Db, Keys, Limit, Rows
from pgflow_cli.look.parsing import read_given, seconds_option
from pgflow_cli.look.selection import Filters, find_run
from pgflow_cli.ops.options import OutputFile, open_file

if TYPE_CHECKING:
    from pgflow.inspect.sheet import Sheet
    from pgflow.replay.contents import Output


AT_ONCE = 100
"""Runs of a page, and decisions of a page: an export of decisions holds no more."""


def export(
    keys: Keys = None,
    *,
    filters: Chosen,
    everything: Annotated[bool, opt("--all")] = False,
    children: bool = False,
    decisions: bool = False,
    blobs: bool = False,
    form: Annotated[Literal["jsonl", "parquet"], opt("--format")] = "jsonl",
    since_last: Annotated[Path | None, opt(metavar="CURSOR")] = None,
    output: OutputFile = None,
    db: Db,
) -> None:
    """Writes runs and journals as JSON Lines or Parquet.

    Each line is one generation of a run; `pgflow replay --from-files` and `pgflow import` read
    them. Inputs, results and payloads are in them as they were recorded: treat the file like the
    database.

    With --decisions each line is a decision with its reasons and cost, the acts that rest on it,
    the answers that people gave at gates, and how its run ended: for evaluations.

    With --since-last each run is added to the output once, after it has ended. The cursor is a
    small file, which says how far the output is written: what a kill left behind that is cut off.
    With --format parquet the output is a folder then, which gets a file each time.

    Args:
        everything: Every run.
        children: The runs that they started too, and so on.
        decisions: Their decisions instead, each with what became of it.
        blobs: The contents of their large values too.
        form: JSON Lines, or Parquet for analysis.
        since_last: Runs that ended since the last export with this file.
    """
    if form == "parquet" and (decisions or blobs or output is None):
        raise Mistake("--format parquet takes --output, and neither --decisions nor --blobs")
    if since_last is not None:
        if keys or filters or everything or children or decisions or output is None:
            raise Mistake("--since-last takes --output, and no other choice of runs")
        _export_ended(db, since_last, output, form, contents=blobs)
        return
    if bool(keys) + bool(filters) + everything != 1:
        raise Mistake("which runs? Pass keys, or options that choose, or --all")
    if decisions and (children or blobs):
        raise Mistake("--decisions takes neither --children nor --blobs")
    if output is None and sys.stdout.isatty():
        raise Mistake("this would fill the terminal: pass --output FILE, or send it on with > or |")
    named = [find_run(db, key) for key in dict.fromkeys(keys or ())]
    with _at_one_moment(db), _opened(output, form) as out:
        if decisions:
            batches = (named[at : at + AT_ONCE] for at in range(0, len(named), AT_ONCE))
            pages = batches if keys else _pages(db, filters)
            lines = sum(_write_decisions(db, [run.run_id for run in page], out) for page in pages)
            summary = f"{many(lines, 'decision')} exported"
        else:
            chosen = iter([run.chain_id for run in named]) if keys else choose_chains(db, filters)
            runs, lines = _export(db, chosen, out, children=children, blobs=blobs)
            summary = f"{many(runs, 'run')} exported, {many(lines, 'line')}"
    note(summary)


def _export_ended(db: Database, cursor: Path, output: Path, form: str, *, contents: bool) -> None:
    """Add the runs that have ended since to a file, or as a file to a folder."""
    from pgflow.replay.contents import Contents
    from pgflow.replay.histories import export_ended

    kept = _read_cursor(cursor)
    measure = "parts" if form == "parquet" else "bytes"
    if kept and measure not in kept:
        raise Mistake(f"{shown(str(cursor))} is the cursor of an export with another --format")
    written = kept.get(measure, 0)
    writer = Contents() if contents else None
    if form == "parquet":
        output.mkdir(exist_ok=True)
        part = output / f"{written + 1:06}.parquet"
        with _as_parquet(part) as out:
            done = export_ended(db.connection, kept.get("place"), out)
        written += 1
    else:
        with open_file(output, "a") as file:
            file.truncate(written if kept else file.tell())
            done = export_ended(db.connection, kept.get("place"), file, writer)
            _store(file)
            written = file.tell()
    beside = cursor.with_name(cursor.name + ".new")
    with open_file(beside, "w") as file:
        json.dump({"place": done.place, measure: written}, file)
        _store(file)
    beside.replace(cursor)
    note(f"{many(done.runs, 'run')} exported, {many(done.lines, 'line')}")
    if done.removed:
        note(
            f"up to {many(done.removed, 'run')} were removed before they were exported: "
            "export more often, or keep runs longer"
        )


def _read_cursor(cursor: Path) -> dict[str, Any]:
    if not cursor.exists():
        return {}
    with open_file(cursor, "r") as file:
        try:
            kept: dict[str, Any] = json.load(file)
        except ValueError as error:
            raise Mistake(f"{shown(str(cursor))} is not a cursor of an export") from error
    return kept


def _store(file: IO[str]) -> None:
    """Write to the disk what is still in memory."""
    file.flush()
    os.fsync(file.fileno())


def _opened(output: Path | None, form: str) -> AbstractContextManager[Output]:
    if output is None:
        return nullcontext(sys.stdout)
    return _as_parquet(output) if form == "parquet" else open_file(output, "w")


@contextmanager
def _as_parquet(output: Path) -> Iterator[Output]:
    """Write a file of Parquet, which has its name once it is complete."""
    from pgflow.replay.parquet import ParquetRuns

    beside = output.with_name(f".{output.name}.new")
    try:
        runs = ParquetRuns(beside)
    except OSError as error:
        raise Mistake(f"{shown(str(output))} cannot be written: {error.strerror}") from error
    yield runs
    runs.close()
    with beside.open("rb") as file:
        os.fsync(file.fileno())
    beside.replace(output)


@contextmanager
def _at_one_moment(db: Database) -> Iterator[None]:
    """Read all as of one moment, and write nothing."""
    from psycopg import IsolationLevel

    db.connection.isolation_level, db.connection.read_only = IsolationLevel.REPEATABLE_READ, True
    with db.connection.transaction():
        yield


def _export(
    db: Database, chosen: Iterator[int], out: Output, *, children: bool, blobs: bool
) -> tuple[int, int]:
    """Export chains; return the numbers of runs and lines."""
    from pgflow.replay.contents import Contents
    from pgflow.replay.histories import export_chain

    contents = Contents() if blobs else None
    done: set[int] = set()
    lines = 0
    for chain in chosen:
        pending = [chain]
        while pending:
            chain_id = pending.pop(0)
            if chain_id in done:
                continue
            done.add(chain_id)
            written = export_chain(db.connection, chain_id, out, contents)
            lines += len(written)
            if children:
                pending += db.ask(inspect.list_child_chains(written))
    return len(done), lines


def _pages(db: Database, filters: Filters) -> Iterator[list[inspect.RunRow]]:
    """Return the runs that are meant, page by page, the oldest first."""
    chosen = filters.chosen()
    return db.pages(
        lambda after: inspect.list_runs(chosen, after=after, limit=AT_ONCE, oldest_first=True)
    )


def _write_decisions(db: Database, run_ids: list[int], out: Output) -> int:
    """Write the decisions of these runs, with a word in place of each part that a codec has
    encoded; return their number.
    """
    lines = 0
    for page in db.pages(lambda after: inspect.list_decided(run_ids, after=after, limit=AT_ONCE)):
        for decided in page:
            out.write(dump(inspect.readable(as_object(decided))) + "\n")
        lines += len(page)
    return lines


def choose_chains(db: Database, filters: Filters) -> Iterator[int]:
    """Yield the chains of the chosen runs, in the order of their starts; a transaction must be
    open.
    """
    return inspect.stream(db.connection, inspect.list_chains(filters.chosen()))


def import_runs(file: Annotated[str, arg(metavar="FILE")], *, db: Answer) -> None:
    """Imports exported runs as read-only history.

    It imports all of them or none: if a key or a run exists here already, it refuses the file. A
    run that was open is cancelled here, with the reason "imported while waiting"; replays judge it
    by its former status.

    Args:
        file: Histories, one a line, or - for standard input.
    """
    from pgflow.replay.histories import import_lines

    count = import_lines(db.connection, _lines(file))
    text = f"{count:,} {'history' if count == 1 else 'histories'} imported"
    db.answer({"imported": count}, text)


def _lines(file: str) -> Iterator[tuple[str, str]]:
    from pgflow.replay.histories import read_lines

    if file == "-":
        yield from read_lines(sys.stdin, "standard input")
        return
    with open_file(Path(file), "r") as opened:
        try:
            yield from read_lines(opened, file)
        except OSError as error:
            raise Mistake(f"{shown(file)} cannot be read: {error.strerror}") from error


def sql(
    statement: Annotated[str, arg(metavar="SELECT")],
    *,
    limit: Limit = 1000,
    timeout: Annotated[float, seconds_option("--timeout", shown="60s")] = 60.0,
    db: Rows,
) -> None:
    """Runs a read-only query against the database.

    Query the views runs, steps, timeline, queues and workers. The query runs under a login that is
    only an auditor: that of --dsn, else PGFLOW_AUDITOR_DSN. The embedded server has one.

    Args:
        statement: A question in SQL, @FILE, or - for standard input.
        timeout: Give up after 90s, 10m...
    """
    sheet = _ask(db.given, read_given(statement, "the statement")[0], limit or None, timeout)
    # Two columns may have one name, so the cells of a table are found by their position.
    names: Any = range(len(sheet.columns)) if db.form is Form.TABLE else sheet.columns
    rows = [dict(zip(names, row, strict=True)) for row in sheet.rows]
    columns = [_column(name, number) for number, name in enumerate(sheet.columns)]
    db.print(rows, columns, "no rows", list(sheet.columns))
    if sheet.has_more:
        note(f"The first {limit} rows; there are more: --limit 0 gives all.")


def _ask(dsn: str | None, text: str, limit: int | None, seconds: float) -> Sheet:
    import psycopg

    from pgflow.inspect.sheet import find_auditor_dsn, read_sheet

    try:
        auditor_dsn = None if dsn else find_auditor_dsn()
        return read_sheet(
            auditor_dsn or find_dsn(dsn),
            text,
            auditor_dsn=auditor_dsn,
            most_rows=limit,
            most_chars=None,
            seconds=seconds,
        )
    except psycopg.errors.QueryCanceled as error:
        note(f"pgflow: no answer within {seconds:g} s: pass --timeout, or ask for less")
        raise Ended(TIME_LIMIT) from error


def _column(name: str, number: int) -> Column:
    def cell(row: Any) -> Any:
        value = row[number]
        return short_json(value) if isinstance(value, (dict, list)) else value

    return Column(name, cell, most=100)
