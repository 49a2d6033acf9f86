"""Histories: recorded runs as text, one generation a line, to replay anywhere.

A line is a JSON object: ``pgflow_history`` (the version of the format, 1), the start options and
the status of the run, and ``units``, its journal. Inputs, results and payloads are strings with the
exact recorded JSON text, because a replay compares text. ``sql/ops/transfer.sql`` writes and reads
the same lines. Lines with contents of large values may be between them (``contents``).

Readers hold at most one line in memory. An export writes a journal page by page.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

import psycopg

from pgflow._db.calls import transfer
from pgflow._db.calls.replay import RecordedRun
from pgflow._db.query import run
from pgflow._model.claims import CarriedChild, Claim, Heritage
from pgflow._model.kinds import ClosePolicy
from pgflow._model.protocol import SagaEntry
from pgflow._model.units import Unit
from pgflow._worker.options import Definitions
from pgflow.errors import InvalidArgument, KeyConflict, Redacted
from pgflow.replay.check import Divergence, find_divergence
from pgflow.replay.contents import ContentReader, Contents, Output, is_content

FORMAT = 1
_TOO_DEEP = "is nested too deeply for a run, so it was not exported by pgflow"
SUFFIX = ".jsonl"


@dataclass(frozen=True)
class Verdict:
    """Result of replaying one recorded run.

    Attributes:
        key: Key of the run.
        workflow: Name of its workflow.
        generation: Number of the generation of the run.
        units: Number of units in its journal.
        divergence: Difference between code and record; None if the code repeats it.
        is_known: True if the code has this workflow; if not, nothing was replayed.
        is_redacted: True if it cannot be replayed, because a value that the code needs was
            redacted.
    """

    key: str
    workflow: str
    generation: int
    units: int
    divergence: Divergence | None = None
    is_known: bool = True
    is_redacted: bool = False


# ---------------------------------------------------------------- a line


def read_history(line: str, where: str = "the history") -> RecordedRun:
    """Return the recorded run of a line.

    Args:
        line: A JSON object, as exported.
        where: Name of the line for errors, as in ``runs.jsonl, line 3``.

    Raises:
        InvalidArgument: The line is not a history, or has a format that this version cannot read.
    """
    try:
        data = json.loads(line)
    except ValueError as error:
        raise InvalidArgument(f"{where} is not JSON: {error}") from error
    except RecursionError:
        raise InvalidArgument(f"{where} {_TOO_DEEP}") from None
    if not isinstance(data, dict) or "pgflow_history" not in data:
        raise InvalidArgument(f"{where} is not a history of a run: write one with `pgflow export`")
    if data["pgflow_history"] != FORMAT:
        raise InvalidArgument(
            f"{where} is of format {data['pgflow_history']}, this version reads format {FORMAT}: "
            "upgrade pgflow-engine"
        )
    try:
        return _recorded(data)
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidArgument(
            f"{where} is not a complete history: {type(error).__name__}: {error}"
        ) from error


def _recorded(data: dict[str, Any]) -> RecordedRun:
    units = [Unit(*unit[:8]) for unit in data["units"]]
    if [unit.seq for unit in units] != list(range(1, len(units) + 1)):
        raise ValueError("its units are not numbered from 1 without a gap")
    parent = data["parent"] or {}
    claim = Claim(
        leaves_saga=parent.get("close_policy") == ClosePolicy.CANCEL,
        run_id=data["run_id"],
        token=0,
        chain_id=data["run_id"],
        lane_id=0,
        generation=data["generation"],
        attempt=1,
        suspect=0,
        last_seq=len(units),
        key=data["key"],
        root=data["root"],
        input=data["input"],
        units=units,
        has_mail=False,
        created_us=max(data["created_us"], data["run_at_us"] or 0),
        now_us=data["ended_us"] or data["exported_us"],
        workflow=data["workflow"],
        tenant=data["tenant"],
        parent_run_id=parent.get("run_id"),
        deadline_us=data["deadline_us"],
        labels=data["labels"] or {},
        metadata=data["metadata"] or {},
        saga=[SagaEntry(*entry) for entry in data.get("saga") or ()],
    )
    if (heritage := data.get("heritage")) is not None:
        seeds = [(upto, stem) for upto, stem in heritage["seeds"]]
        children = [CarriedChild(*row) for row in heritage.get("children") or ()]
        claim.heritage = Heritage(
            seeds,
            data["origin_seq"],
            heritage.get("began_us"),
            heritage.get("attempts"),
            children=children,
        )
        claim.created_us = claim.heritage.began_us or claim.created_us
    return RecordedRun(claim, data["status"], data["output"])


# ---------------------------------------------------------------- export and import


def export_chain(
    connection: psycopg.Connection[Any],
    chain_id: int,
    out: Output,
    contents: Contents | None = None,
) -> list[int]:
    """Write a run with all its generations, each on a line.

    Args:
        connection: Connection to its database. Use a repeatable-read transaction for a consistent
            export of several runs.
        chain_id: Its chain.
        out: File to write to.
        contents: Writer of large values; None writes their references only.

    Returns:
        The numbers of its generations.
    """
    if contents is not None:
        contents.write(connection, chain_id, out)
    written = []
    for found in run(connection, transfer.export_runs([chain_id])):
        out.write(found.history.rstrip().removesuffix("}") + ', "units": [')
        for number, page in enumerate(_pages(connection, found)):
            out.write((", " if number else "") + page.strip()[1:-1])
        out.write("]}\n")
        written.append(found.run_id)
    return written


@dataclass
class EndedRuns:
    """An export of runs that have ended.

    Attributes:
        place: The place to go on from the next time; None for the beginning.
        runs: Number of runs written.
        lines: Number of their generations.
        removed: Number of runs, at most, that were removed before an export had them.
    """

    place: dict[str, Any] | None = None
    runs: int = 0
    lines: int = 0
    removed: int = 0


def export_ended(
    connection: psycopg.Connection[Any],
    place: dict[str, Any] | None,
    out: Output,
    contents: Contents | None = None,
) -> EndedRuns:
    """Write the runs that have ended since a place, each once.

    Args:
        connection: Connection to the database, in autocommit mode, at the level read committed.
        place: Place that an earlier call has returned; None for the beginning.
        out: File to write to.
        contents: Writer of large values; None writes their references only.
    """
    done, has_more = EndedRuns(place), True
    while has_more:
        with connection.transaction():
            ended = run(connection, transfer.list_ended(done.place, _ENDED_AT_ONCE))
            for chain in ended.chains:
                done.lines += len(export_chain(connection, chain, out, contents))
        done.runs += len(ended.chains)
        done.removed += ended.next["removed"]
        done.place, has_more = ended.next, ended.has_more
    return done


_ENDED_AT_ONCE = 1000


def _pages(connection: psycopg.Connection[Any], found: transfer.Exported) -> Iterator[str]:
    """Yield the journal page by page, as it was when the export began: later units are left out."""
    after = 0
    while after < found.last_seq:
        page = run(connection, transfer.export_units(found.run_id, after))
        if page is None:
            raise InvalidArgument(
                f"the journal of run {found.run_id} ends at unit {after} of {found.last_seq}"
            )
        units = json.loads(page)
        after = units[-1][0]
        if after > found.last_seq:
            page = json.dumps(
                [unit for unit in units if unit[0] <= found.last_seq], ensure_ascii=False
            )
        yield page


def import_lines(connection: psycopg.Connection[Any], lines: Iterable[tuple[str, str]]) -> int:
    """Insert histories, all or none.

    Args:
        connection: Connection to the target, without an open transaction.
        lines: Pairs of a name for errors and a line.

    Returns:
        Number of histories.

    Raises:
        KeyConflict: The database already has a run or its key.
        InvalidArgument: A line is not a history, or the next generation of one is missing.
    """
    count = 0
    unfinished: dict[tuple[str, int], str] = {}
    contents = ContentReader(connection)
    with connection.transaction():
        for where, line in lines:
            if is_content(line):
                contents.take(where, line)
                continue
            contents.end(where)
            recorded = read_history(line, where)
            try:
                run(connection, transfer.import_run(line))
            except (InvalidArgument, KeyConflict) as error:
                raise type(error)(f"{where}: {error}; nothing was imported") from error
            except psycopg.errors.StatementTooComplex:
                raise InvalidArgument(f"{where} {_TOO_DEEP}; nothing was imported") from None
            claim = recorded.claim
            unfinished.pop((claim.root, claim.generation), None)
            if recorded.status == "continued":
                unfinished[claim.root, claim.generation + 1] = (
                    f"{where}: run {claim.key!r} goes on as generation {claim.generation + 1}"
                )
            count += 1
        contents.end("the end")
        if unfinished:
            raise InvalidArgument(
                f"{next(iter(unfinished.values()))}, which is missing; nothing was imported"
            )
    return count


# ---------------------------------------------------------------- files


def history_files(paths: Sequence[str | Path]) -> list[Path]:
    """Return the given files, and those in the given folders, in order.

    Raises:
        InvalidArgument: A file or folder does not exist, or a folder has no history.
    """
    found: list[Path] = []
    for path in map(Path, paths):
        files = sorted(path.rglob(f"*{SUFFIX}")) if path.is_dir() else [path]
        if not files:
            raise InvalidArgument(
                f"no *{SUFFIX} file in {path}: write one with "
                f"`pgflow export --all > {path / 'runs'}{SUFFIX}`"
            )
        if not files[0].exists():
            raise InvalidArgument(f"file {path} does not exist")
        found += files
    return found


def read_lines(file: IO[str], name: str) -> Iterator[tuple[str, str]]:
    """Yield the lines of a file, each after its name for errors; skip empty lines.

    Raises:
        InvalidArgument: It is not text.
    """
    try:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield f"{name}, line {number}", line
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"{name} is not UTF-8: {error.reason}") from error


def read_files(paths: Sequence[str | Path]) -> Iterator[RecordedRun]:
    """Yield the recorded runs of files and folders, one after the other."""
    for path in history_files(paths):
        with path.open(encoding="utf-8") as file:
            for where, line in read_lines(file, str(path)):
                if not is_content(line):
                    yield read_history(line, where)


def read_database(
    connection: psycopg.Connection[Any], chains: Iterable[int]
) -> Iterator[RecordedRun]:
    """Yield the recorded runs of these chains, each generation by itself."""
    for chain in chains:
        for found in run(connection, transfer.export_runs([chain])):
            units = [unit for page in _pages(connection, found) for unit in json.loads(page)]
            yield _recorded({**json.loads(found.history), "units": units})


# ---------------------------------------------------------------- replaying


@dataclass
class Replayed:
    """Counts of verdicts.

    Attributes:
        repeated: Number of runs that the code repeats.
        diverged: Number of runs that it does not repeat.
        unknown: Number of runs of workflows that the code does not have, by workflow.
        redacted: Number of runs that cannot be replayed, because a value was redacted.
    """

    repeated: int = 0
    diverged: int = 0
    unknown: dict[str, int] = field(default_factory=dict)
    redacted: int = 0

    def count(self, verdict: Verdict) -> None:
        """Count a verdict."""
        if not verdict.is_known:
            self.unknown[verdict.workflow] = self.unknown.get(verdict.workflow, 0) + 1
        elif verdict.is_redacted:
            self.redacted += 1
        elif verdict.divergence is not None:
            self.diverged += 1
        else:
            self.repeated += 1


def replay_histories(
    histories: Iterable[RecordedRun], definitions: Definitions
) -> Iterator[Verdict]:
    """Replay recorded runs against the present code. No body runs, and nothing is written.

    Args:
        histories: Recorded runs.
        definitions: The code: the definitions of an app.
    """
    for recorded in histories:
        claim = recorded.claim
        workflow = definitions.workflows.get(claim.workflow)
        if workflow is None:
            yield Verdict(
                claim.key, claim.workflow, claim.generation, len(claim.units), is_known=False
            )
            continue
        verdict = Verdict(claim.key, claim.workflow, claim.generation, len(claim.units))
        try:
            divergence = find_divergence(
                recorded,
                workflow,
                definitions.errors,
                definitions.interceptors,
                definitions.envelopes,
            )
        except Redacted:
            yield replace(verdict, is_redacted=True)
        else:
            yield replace(verdict, divergence=divergence)
