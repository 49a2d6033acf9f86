"""The server: its settings, the sizes and dead rows of pgflow's tables, the sessions that keep dead
rows from vacuum, and the most expensive statements.

A role outside ``pg_read_all_stats`` sees only its own sessions and statements; each answer that
depends on it shows this.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import LiteralString

import psycopg

from pgflow._db.query import Query
from pgflow.inspect.question import Question, Steps, all_rows, only_row, question


@dataclass(frozen=True)
class ServerState:
    """A server, as the role that asks may see it.

    Attributes:
        version: Version of Postgres.
        is_standby: True if it follows another and takes no writes.
        risks: Settings that are off and should not be, such as ``fsync``.
        bytes: Size of the database on disk.
        connections: Connections of clients that are open.
        room: Connections that it admits to roles that are not superusers.
        sees_all: True if the role sees the sessions and statements of others.
    """

    version: str
    is_standby: bool
    risks: list[str]
    bytes: int
    connections: int
    room: int
    sees_all: bool


@dataclass(frozen=True)
class TableRow:
    """A table of the schema ``pgflow``, or a partition of one.

    Attributes:
        table: Its name.
        bytes: Size on disk, with indexes.
        rows: Rows that live, by the last count of the statistics.
        dead: Rows that vacuum has yet to remove.
        vacuumed_at: Time of the last vacuum; None if there was none.
        is_hot: True for one whose rows live for moments: claims pass its dead rows.
    """

    table: str
    bytes: int
    rows: int
    dead: int
    vacuumed_at: datetime | None
    is_hot: bool


@dataclass(frozen=True)
class SnapshotRow:
    """A session, or whatever else keeps dead rows from being removed.

    Attributes:
        who: The process, prepared transaction or replication slot.
        role: Role of it; None for a slot.
        application: Name that its application gave; None if it gave none.
        state: State that it is in.
        seconds: Time for which it has done so; None if that is not known.
        remedy: Statement that ends it.
    """

    who: str
    role: str | None
    application: str | None
    state: str | None
    seconds: float | None
    remedy: str


@dataclass(frozen=True)
class StatementRow:
    """A statement of this database, as ``pg_stat_statements`` has it.

    Attributes:
        statement: Its text, with constants taken out.
        calls: Number of times that it was executed.
        rows: Rows that it answered or changed.
        mean_seconds: Time that it takes on average.
        total_seconds: Time that it took altogether.
    """

    statement: str
    calls: int
    rows: int
    mean_seconds: float
    total_seconds: float


_SERVER: LiteralString = """
select current_setting('server_version'), pg_is_in_recovery(),
  array(
    select name from pg_settings
    where name in ('fsync', 'full_page_writes', 'synchronous_commit', 'autovacuum', 'track_counts')
      and setting = 'off' order by name
  ),
  pg_database_size(current_database()),
  (select count(*) from pg_stat_activity where backend_type = 'client backend'),
  current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int,
  pg_has_role('pg_read_all_stats', 'usage')
"""
_TABLES: LiteralString = """
select c.relname, pg_total_relation_size(c.oid) as bytes, s.n_live_tup, s.n_dead_tup,
  greatest(s.last_vacuum, s.last_autovacuum),
  c.relname in ('ready', 'lease', 'parked', 'timer', 'wait', 'signal', 'nudge', 'worker')
from pg_class c join pg_stat_all_tables s on s.relid = c.oid
where c.relnamespace = to_regnamespace('pgflow') and c.relkind = 'r'
order by bytes desc, c.relname limit %s
"""
_SNAPSHOTS: LiteralString = """
select 'process ' || a.pid, a.usename, nullif(a.application_name, ''), a.state,
  extract(epoch from clock_timestamp() - a.xact_start)::float8 as seconds,
  format('select pg_terminate_backend(%%s)', a.pid)
from pg_stat_activity a
where a.xact_start < clock_timestamp() - make_interval(secs => %s)
  and a.pid <> pg_backend_pid() and a.backend_type = 'client backend'
  and (a.backend_xmin is not null or a.backend_xid is not null)
union all
select 'prepared transaction ' || p.gid, p.owner, null, 'prepared',
  extract(epoch from clock_timestamp() - p.prepared)::float8, format('rollback prepared %%L', p.gid)
from pg_prepared_xacts p where p.prepared < clock_timestamp() - make_interval(secs => %s)
union all
select 'replication slot ' || s.slot_name, null, null,
  case when s.active then 'active' else 'inactive' end, null,
  format('select pg_drop_replication_slot(%%L)', s.slot_name)
from pg_replication_slots s where age(coalesce(s.xmin, s.catalog_xmin)) > 1000000
order by seconds desc nulls last
"""
_IS_COUNTED: LiteralString = "select to_regclass('pg_stat_statements') is not null"
_STATEMENTS: LiteralString = """
select s.query, s.calls, s.rows, s.mean_exec_time / 1000, s.total_exec_time / 1000
from pg_stat_statements s
where s.dbid = (select d.oid from pg_database d where d.datname = current_database())
  and s.query ~* '^\\s*(select|insert|update|delete|merge|with)\\M'
order by s.total_exec_time desc limit %s
"""
"""Only these are shown: statements such as `alter role` keep their constants, which may be secret.
"""


def read_server() -> Question[ServerState]:
    """Ask how the server is set up, and how full it is."""
    return only_row(ServerState, _SERVER)


def list_tables(limit: int | None = 50) -> Question[list[TableRow]]:
    """Ask for the tables of pgflow, the largest first.

    Args:
        limit: Most rows; None for all.
    """
    return all_rows(TableRow, _TABLES, limit)


def list_snapshots(seconds: float) -> Question[list[SnapshotRow]]:
    """Ask for whatever keeps dead rows from being removed, the oldest first.

    Args:
        seconds: Time for which it must have done so.
    """
    return all_rows(SnapshotRow, _SNAPSHOTS, seconds, seconds)


@question
def list_slow_statements(limit: int = 20) -> Steps[list[StatementRow] | None]:
    """Ask for the statements that took most time altogether; None if the server does not count
    them: the extension ``pg_stat_statements`` is missing, or on no search path, or not loaded.

    Args:
        limit: Most rows.
    """
    is_there: bool = yield Query(_IS_COUNTED, (), lambda rows: bool(rows[0][0]))
    if not is_there:
        return None
    try:
        found: list[StatementRow] = yield Query(
            _STATEMENTS, (limit,), lambda rows: [StatementRow(*row) for row in rows]
        )
    except psycopg.errors.ObjectNotInPrerequisiteState:
        return None
    return found
