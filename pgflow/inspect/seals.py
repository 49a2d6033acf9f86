"""Seals: progress of sealing, checks of the journal against its seals, and proofs for others.

The database seals and compares (``sql/ledgers/seals.sql``). Keep an anchor elsewhere, out of reach
of everyone who can write to the database, to detect a forged seal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, LiteralString

from pgflow._db.calls import seals as calls
from pgflow.inspect.question import Question, Steps, all_rows, once, only_row, question, select

PAGE = 1000
"""Runs, or rounds, that one statement verifies."""
FIRST = -(2**63)
"""A number below that of every run, forged ones included."""


@dataclass(frozen=True)
class SealRow:
    """A seal of a run. A row of the view ``pgflow.seals``.

    Attributes:
        key: Key of the run; None if its history was removed.
        generation: Generation of the run; None if its history was removed.
        run_id: The number of that generation.
        round: The round that sealed it.
        upto_seq: The last unit that it covers; 0 for none.
        has_ended: True if it covers the outcome too.
        hash: Its hash, chained to the seal before it.
        sealed_at: Time of sealing.
        day: Day of that time in UTC, whose root covers it once the day is over.
        dropped_at: Time at which the history of the run was removed; None if it is there.
    """

    key: str | None
    generation: int | None
    run_id: int
    round: int
    upto_seq: int
    has_ended: bool
    hash: str
    sealed_at: datetime
    day: date
    dropped_at: datetime | None


@dataclass(frozen=True)
class SealLag:
    """Progress of the sealer. The row of the view ``pgflow.seal_lag``.

    Attributes:
        is_on: True if workers seal.
        last_round: Number of the last round that sealed something; None if none has.
        last_sealed_at: Time of that round.
        passed_run_id: Every run up to this number is sealed or pending.
        runs_behind: Runs behind that one, which the sealer has not reached.
        behind_since: Start of the first of them; None if it has reached all.
        cycle_began_at: Time at which it last began to visit the open runs.
        runs_pending: Number of runs that it has reached and that may still grow.
        last_day: The last day that has its root; None if none has.
        said_by: Author of the last switch of sealing, with the role of the session in brackets;
            None if it was never switched.
        said_at: Time of the switch.
        is_late: True if it has not reached a run that started an hour ago, or has not visited all
            open runs for a day.
    """

    is_on: bool
    last_round: int | None
    last_sealed_at: datetime | None
    passed_run_id: int
    runs_behind: int
    behind_since: datetime | None
    cycle_began_at: datetime | None
    runs_pending: int
    last_day: date | None
    said_by: str | None
    said_at: datetime | None
    is_late: bool


@dataclass(frozen=True)
class SealFinding:
    """A difference from the sealed journal.

    Attributes:
        finding: Code of it.
        place: Place: the key of a run, its number where the run is gone, a round, a day, or a kind
            of evidence.
        detail: The difference, in words.
        run_id: The number of the run; None if it is about a round or a day.
    """

    finding: str
    place: str
    detail: str
    run_id: int | None = None


@dataclass(frozen=True)
class Verification:
    """Result of a verification.

    Attributes:
        runs: Number of runs that were compared with their seals.
        rounds: Number of rounds that were compared with their seals.
        days: Number of days that were compared with their rounds.
        anchored_rounds: Number of rounds that the anchor covers; None without one.
        findings: Differences from the sealed journal; empty for none.
    """

    runs: int
    rounds: int
    days: int
    anchored_rounds: int | None
    findings: list[SealFinding]


_SEALS: LiteralString = select(SealRow, "from pgflow.seals where run_id = %s order by round")
_LAG: LiteralString = select(SealLag, "from pgflow.seal_lag")


def list_seals(run_id: int) -> Question[list[SealRow]]:
    """Ask for the seals of a run, the first one first.

    Args:
        run_id: The number of the run.
    """
    return all_rows(SealRow, _SEALS, run_id)


def read_seal_lag() -> Question[SealLag]:
    """Ask for the progress of the sealer. It counts the runs that are pending."""
    return only_row(SealLag, _LAG)


def read_anchor() -> Question[dict[str, Any]]:
    """Ask for an anchor: the roots and heads of all days, and the root of what is sealed since.
    Store it where no writer of this database has access.
    """
    return once(calls.anchor())


def read_proof(
    key: str, *, tenant: str = "", anchor: Mapping[str, Any] | None = None
) -> Question[dict[str, Any]]:
    """Ask for a proof of a run: all that :func:`check_proof` needs beside an anchor. It holds names
    and times, and of values only hashes.

    Args:
        key: Key of the run.
        tenant: Its tenant.
        anchor: The anchor that it will be checked against; None for one that is taken now.

    Raises:
        RunNotFound: No run has the key.
        WrongState: The run was not sealed yet, now or when the anchor was taken.
        InvalidArgument: The anchor is not valid.
    """
    return once(calls.proof(key, tenant, anchor))


@question
def verify_seals(
    key: str | None = None,
    *,
    tenant: str = "",
    anchor: Mapping[str, Any] | None = None,
    progress: Callable[[int], None] | None = None,
) -> Steps[Verification]:
    """Compare the journal with its seals: every run, or one, every round and every day. It reads
    the whole journal, page by page.

    Args:
        key: Key of the only run to compare; None for all.
        tenant: Its tenant.
        anchor: Answer of :func:`read_anchor` some time ago; None compares the seals only with each
            other.
        progress: Called after every page with the number of runs so far.

    Raises:
        RunNotFound: No run has the key.
        WrongState: The run is not sealed yet.
        InvalidArgument: The anchor is not valid.
    """
    findings: list[SealFinding] = []
    anchored: int | None = None
    if anchor is not None:
        counts = yield calls.verify_anchor(anchor)
        anchored = counts["rounds"]
        findings += [SealFinding(code, place, detail) for place, code, detail in counts["findings"]]
    days = yield calls.verify_days()
    findings += [SealFinding(code, str(day), detail) for day, code, detail in days["findings"]]
    after: int | None = 0
    rounds = 0
    while after is not None:
        page = yield calls.verify_rounds(after, PAGE)
        rounds += page["rounds"]
        findings += [
            SealFinding(code, f"round {number}", detail)
            for number, code, detail in page["findings"]
        ]
        after = page["next"]
    after = None if key is not None else 0
    while after is not None:
        page = yield calls.verify_evidence(after, PAGE)
        findings += [
            SealFinding(code, detail.partition(" ")[0], detail) for code, detail in page["findings"]
        ]
        after = page["next"]
    after, runs = FIRST, 0
    while after is not None:
        page = yield calls.verify_runs(after, PAGE, key, tenant)
        runs += page["runs"]
        findings += [_of_run(*found) for found in page["findings"]]
        after = page["next"]
        if progress is not None:
            progress(runs)
    return Verification(runs, rounds, days["days"], anchored, findings)


def _of_run(
    run_id: int, key: str | None, generation: int | None, finding: str, detail: str
) -> SealFinding:
    place = f"run number {run_id}" if key is None else f"run {key!r}"
    if generation is not None and generation > 1:
        place += f", generation {generation}"
    return SealFinding(finding, place, detail, run_id)
