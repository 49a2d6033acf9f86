"""``sql/ops/worker.sql``: signs of life, and recovery of the work of dead workers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

from pgflow._db.query import Query, Row
from pgflow._model.protocol import CodeRow


class Beat(NamedTuple):
    """Answer to a sign of life."""

    alive: bool
    mail: list[int]
    timeline: int | None = None
    """Timeline of the server's log; None where it does not say, as for all below."""
    flushed: int | None = None
    """Log position behind everything acknowledged by now."""
    recovered_to: int | None = None
    """Log position up to which the server had the old primary's log when it was promoted."""
    waits: bool | None = None
    """True if a commit waits for a standby."""


class Reaped(NamedTuple):
    """Result of reaping a dead worker: its runs by outcome."""

    reclaimed: int
    stuck: list[int]
    lanes: list[int]


def _nothing(_rows: list[Row]) -> None:
    return None


def register_worker(
    host: str,
    pid: int,
    queues: Sequence[str],
    concurrency: int,
    version: str,
    stamp: str | None = None,
) -> Query[int]:
    """A worker announces itself, and the stamp of the schema that its code is made for."""
    sql = (
        "select pgflow.register_worker(%s::text, %s::int, %s::text[], %s::int, %s::text, %s::text)"
    )
    return Query(
        sql, (host, pid, list(queues), concurrency, version, stamp), lambda rows: int(rows[0][0])
    )


def read_stamp() -> Query[str | None]:
    """The comment of the schema, which says what installed it;
    None if there is none. Any role may read it.
    """
    sql = "select pg_catalog.obj_description(pg_catalog.to_regnamespace('pgflow'), 'pg_namespace')"
    return Query(sql, (), lambda rows: rows[0][0])


def beat(worker_id: int, *, stopping: bool = False) -> Query[Beat]:
    """A sign of life."""
    sql = (
        "select alive, mail, timeline, flushed, recovered_to, waits "
        "from pgflow.beat(%s::int, %s::boolean)"
    )
    return Query(sql, (worker_id, stopping), lambda rows: Beat(*rows[0]))


def observe_workers() -> Query[dict[int, int]]:
    """The beats of all workers."""
    return Query("select worker_id, beat from pgflow.observe_workers()", (), dict)


def reap_worker(worker_id: int, seen_beat: int) -> Query[Reaped]:
    """Declare a worker dead if its beat is still the one seen."""
    sql = "select reclaimed, stuck, lanes from pgflow.reap_worker(%s::int, %s::bigint)"
    return Query(sql, (worker_id, seen_beat), lambda rows: Reaped(*rows[0]))


def leave_worker(worker_id: int) -> Query[None]:
    """A worker takes its leave."""
    return Query("select pgflow.leave_worker(%s::int)", (worker_id,), _nothing)


def count_lost_threads(worker_id: int, lost: int) -> Query[None]:
    """Record the number of a worker's lost threads."""
    return Query("select pgflow.count_lost_threads(%s::int, %s::int)", (worker_id, lost), _nothing)


def release_stuck(code: dict[str, str]) -> Query[int]:
    """Retry runs that other code could not replay with this code: {workflow: code hash}."""
    sql = "select pgflow.release_stuck(%s::text[], %s::text[])"
    return Query(sql, (list(code), list(code.values())), lambda rows: int(rows[0][0]))


def release_outdated(worker_id: int) -> Query[int]:
    """Retry runs that older code could not replay; return their number."""
    return Query(
        "select pgflow.release_outdated(%s::int)", (worker_id,), lambda rows: int(rows[0][0])
    )


def register_code(worker_id: int, codes: Sequence[CodeRow]) -> Query[None]:
    """A worker says what code it has."""
    return Query(
        "select pgflow.register_code(%s::int, %s::jsonb)", (worker_id, json.dumps(codes)), _nothing
    )


def add_unit_partitions() -> Query[int]:
    """Create partitions ahead of the newest run."""
    return Query("select pgflow.add_unit_partitions()", (), lambda rows: int(rows[0][0]))


def sweep_keys() -> Query[int]:
    """Free keys whose retention is over, unless history is being removed."""
    return Query("select pgflow.sweep_keys(wait => false)", (), lambda rows: int(rows[0][0]))


class Shrunk(NamedTuple):
    """A partition of the journal that is smaller now."""

    partition: str
    bytes_before: int
    bytes_after: int
    units: int


def shrink_journal() -> Query[list[Shrunk]]:
    """Shrink partitions that hold little after a removal of history, unless others have used them
    too much lately.
    """
    query = (
        "select partition, bytes_before, bytes_after, units "
        "from pgflow.shrink_journal(backing_off => true)"
    )
    return Query(query, (), lambda rows: [Shrunk(*row) for row in rows])


def notify(channel: str, payload: str) -> Query[None]:
    """Send a notification. It needs no disk, but its transaction has a number, so it would wait for
    one without the setting.
    """
    return Query(
        "select pg_notify(%s::text, %s::text), set_config('synchronous_commit', 'off', true)",
        (channel, payload),
        _nothing,
    )


def begin_tick(queues: str) -> Query[bool]:
    """Keep other exclusive ticks away in this transaction; False if one is at work."""
    return Query("select pgflow.begin_tick(%s::text)", (queues,), lambda rows: bool(rows[0][0]))
