"""Health: what is wrong with the database beneath the work, and what to do about it.

What is wrong with the work itself is an alert (:mod:`pgflow.console.alerts`). ``pgflow doctor``
looks at the same, and at the way to the server too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pgflow.console.output import many
from pgflow.console.words import duration, size
from pgflow.inspect import LargePartition, LossRow, SealLag, ServerState, SnapshotRow, TableRow

LONG_SECONDS = 300.0
"""Time after which a transaction that is open is worth a look."""
MOST_DEAD = 40_000
"""Dead rows of a hot table, at most, while vacuum keeps up."""
FULL = 0.9
"""Part of the server's connections from which on it is worth a look."""
RISKS = {
    "autovacuum": "tables that are written all the time only grow",
    "track_counts": "autovacuum does not learn what to do",
    "fsync": "what was committed may be lost in a power cut",
    "full_page_writes": "what was committed may be lost in a power cut",
    "synchronous_commit": "what was committed may be lost in a power cut",
}
KEPT_LARGE = {
    "busy": "its lock was not to be had. Look for a transaction that reads the journal for long",
    "units": "it has too many rows to be moved while everybody waits. `pgflow doctor` says how",
    "vacuum": "rows that were removed are still in its file. Vacuum it",
}


@dataclass(frozen=True)
class Finding:
    """Something that is wrong with a database.

    Attributes:
        name: Name of it, in a word or two.
        found: Words for it.
        remedy: Words, or a statement, for what to do.
    """

    name: str
    found: str
    remedy: str


def judge_server(server: ServerState) -> Iterator[Finding]:
    """Yield what is wrong with how the server is set up."""
    if server.is_standby:
        yield Finding(
            "standby",
            "This server follows another, and takes no writes.",
            "Name the primary in the connection string.",
        )
    for name in server.risks:
        yield Finding(
            "setting",
            f"{name} is off: {RISKS[name]}.",
            f"alter system set {name} = on; select pg_reload_conf()",
        )
    if server.connections > FULL * server.room:
        yield Finding(
            "connections",
            f"{server.connections:,} of {many(server.room, 'connection')} are in use.",
            "Raise max_connections, or put a pooler in front of the application.",
        )


def judge_snapshots(snapshots: Sequence[SnapshotRow]) -> Iterator[Finding]:
    """Yield who keeps dead rows from being removed."""
    for one in snapshots:
        since = "" if one.seconds is None else f" for {duration(one.seconds)}"
        whose = f" of {one.role}" if one.role else ""
        named = f" ({one.application})" if one.application else ""
        yield Finding(
            "snapshot", f"The {one.who}{whose}{named} keeps dead rows{since}.", one.remedy
        )


def judge_tables(tables: Sequence[TableRow]) -> Iterator[Finding]:
    """Yield hot tables that vacuum does not keep up with."""
    for table in tables:
        if table.is_hot and table.dead > MOST_DEAD:
            yield Finding(
                "dead rows",
                f"pgflow.{table.table} has {many(table.dead, 'dead row')}.",
                f"vacuum pgflow.{table.table}",
            )


def judge_journal(
    partitions: Sequence[LargePartition], losses: Sequence[LossRow], lag: SealLag
) -> Iterator[Finding]:
    """Yield what is wrong with the journal and its seals."""
    for loss in losses:
        yield Finding(
            "loss",
            f"A fail-over lost what was acknowledged of {many(loss.run_count, 'run')}.",
            f"Compare with what was done outside, then: select pgflow.close_loss({loss.loss_id}, "
            "'why')",
        )
    for one in partitions:
        yield Finding(
            "partition",
            f"pgflow.{one.partition} has {one.size}: {KEPT_LARGE[one.kept_large]}.",
            "pgflow doctor",
        )
    if lag.is_on and lag.is_late:
        yield Finding(
            "seals",
            f"Seals are late: {many(lag.runs_behind, 'run')} not sealed yet.",
            "Start a worker; if there is one, its log says why it cannot seal.",
        )


def grown(tables: Sequence[TableRow]) -> str:
    """Return the size of some tables together, in words."""
    return size(sum(table.bytes for table in tables))
