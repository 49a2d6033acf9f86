"""The server, and the way to it."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pgflow import inspect
from pgflow.console.health import FULL, RISKS
from pgflow.console.output import duration, many
from pgflow.doctor.finding import Finding, Findings, Level, Patient, each, fail, warn

if TYPE_CHECKING:
    import psycopg

OLDEST, NEWEST = 15, 18
LONG_SECONDS = 300
CLOCK_SECONDS = 2.0
LISTEN_SECONDS = 3.0
CONNECTIONS_OF_A_WORKER = 9
"""Five, plus four for transactional steps unless the worker is configured otherwise."""


def check_version(patient: Patient) -> Findings:
    """Postgres 15 to 18."""
    version = patient.ask(inspect.read_server()).version
    major = patient.connection.info.server_version // 10000
    if major < OLDEST:
        remedy = f"pgflow needs Postgres {OLDEST} or newer: upgrade the server"
        yield fail(f"Postgres {version}", remedy)
    elif major > NEWEST:
        text = f"Postgres {version}, newer than this version of pgflow was tested with"
        yield warn(text, "upgrade pgflow-engine, if there is a newer one")
    return f"Postgres {version}"


def _switched_off(risks: Sequence[str], level: Level, names: Sequence[str]) -> Iterator[Finding]:
    """Yield the settings of these names that are off."""
    for name in risks:
        if name in names:
            remedy = f"alter system set {name} = on; select pg_reload_conf()"
            yield Finding(level, f"{name} is off: {RISKS[name]}", remedy)


def check_durability(patient: Patient) -> Findings:
    """Check that commits survive a power cut."""
    server = patient.ask(inspect.read_server())
    names = ("fsync", "full_page_writes", "synchronous_commit")
    yield from _switched_off(server.risks, "warn", names)
    if server.is_standby:
        yield fail(
            "this server is a standby, which takes no writes",
            "name the primary in the connection string, or several hosts with "
            "target_session_attrs=read-write",
        )
    return "commits survive a power cut"


_STANDBYS = """
select count(*) as standbys, current_setting('synchronous_standby_names') <> '' as has_synchronous,
  current_setting('synchronous_commit') as synchronous_commit,
  count(*) filter (where r.sync_state in ('async', 'potential')) as behind,
  max(pg_wal_lsn_diff(pg_current_wal_flush_lsn(), r.flush_lsn))::bigint as behind_bytes,
  extract(epoch from max(r.flush_lag))::float8 as behind_seconds
from pg_stat_replication r
where r.state is distinct from 'backup'
  and not exists (
    select from pg_replication_slots s where s.active_pid = r.pid and s.slot_type = 'logical'
  )
"""


def check_replication(patient: Patient) -> Findings:
    """Check which commits a fail-over would lose."""
    if patient.ask(inspect.read_server()).is_standby:
        yield fail("a standby cannot be asked this", "name the primary in the connection string")
        return
    row = patient.row(_STANDBYS)
    if not row["standbys"]:
        return "no standby follows: there is nothing to fail over to"
    standbys = many(row["standbys"], "standby")
    waits = row["has_synchronous"] and row["synchronous_commit"] not in ("off", "local")
    if waits and row["behind"] < row["standbys"]:
        others = f", one to any of the {row['behind']} others may" if row["behind"] else ""
        return f"commits wait for a standby ({standbys}): a fail-over to it loses nothing{others}"
    if waits:
        yield warn(
            f"no standby is synchronous, though synchronous_standby_names has some ({standbys}): "
            "commits wait for one that is not here",
            "start that standby, or name one that follows (pg_stat_replication.application_name)",
        )
        return
    behind = ""
    if row["behind_bytes"] is not None:
        lag = duration(row["behind_seconds"] or 0.0)
        behind = f" (now {row['behind_bytes']:,} bytes, {lag})"
    yield warn(
        f"commits do not wait for the {standbys}: a fail-over loses what had not reached "
        f"it{behind}, your rows and pgflow's alike",
        "alter system set synchronous_standby_names = 'ANY 1 (*)'; select pg_reload_conf() "
        "- or accept it: workers notice such a loss and `pgflow doctor` names the runs",
    )


def check_clock(patient: Patient) -> Findings:
    """Yield a difference of clocks. The database's clock decides, so it only misleads readers of
    logs.
    """
    before = time.time()
    row = patient.row("select extract(epoch from clock_timestamp())::float8 as now")
    offset = row["now"] - (before + time.time()) / 2
    side = "ahead of" if offset > 0 else "behind"
    text = f"the database is {duration(abs(offset))} {side} this machine"
    if abs(offset) > CLOCK_SECONDS:
        yield warn(text, "run NTP on both: due times go by the database's clock, logs by this one")
    return text


def check_pooler(patient: Patient) -> Findings:
    """PgBouncer and its like: a pooler answers with a process id of its own, and lends one server
    process to many.
    """
    pid = patient.row("select pg_backend_pid() as pid")["pid"]
    if pid == patient.connection.info.backend_pid:
        return "a direct connection, no pooler"
    if _shares_a_backend(patient):
        yield warn(
            "a pooler in transaction mode is in between: LISTEN and prepared statements may not "
            "work through it",
            "App(listen=False, prepare_threshold=None), or name the server itself in PGFLOW_DSN "
            "for workers; `pgflow tick` needs neither",
        )
    return "a pooler in session mode is in between"


def _shares_a_backend(patient: Patient) -> bool:
    """Return True if one server process serves two connections that are open at once."""
    query = "select pg_backend_pid() as pid"
    with patient.second_connection() as other:
        for _ in range(5):
            mine = patient.row(query)["pid"]
            if other.execute(query).fetchone() == (mine,):
                return True
    return False


def check_listen(patient: Patient) -> Findings:
    """Check that a notification arrives. Without, work is found by polling."""
    from psycopg import sql

    channel = f"pgflow_doctor_{secrets.token_hex(6)}"
    with patient.second_connection() as ear:
        ear.execute(sql.SQL("listen {}").format(sql.Identifier(channel)))
        began = time.monotonic()
        patient.connection.execute("select pg_notify(%s, 'hello')", (channel,))
        heard = _hears(ear, channel)
    if not heard:
        yield warn(
            "no notification arrived: workers find work by polling, up to a second later",
            "connect workers to the server itself, or App(listen=False) to stop trying",
        )
    return f"LISTEN works, a notification took {duration(time.monotonic() - began)}"


_HOT = """
select c.relname as table, s.n_dead_tup as dead, c.reloptions as options,
  coalesce(
    (select o.option_value::bigint from pg_options_to_table(c.reloptions) o
      where o.option_name = 'autovacuum_vacuum_threshold'),
    50
  ) as threshold,
  coalesce(
    (select o.option_value from pg_options_to_table(c.reloptions) o
      where o.option_name = 'autovacuum_enabled'),
    'true'
  ) as enabled
from pg_class c join pg_stat_all_tables s on s.relid = c.oid
where c.relnamespace = to_regnamespace('pgflow') and c.relkind = 'r'
  and c.relname in ('ready', 'lease', 'parked', 'timer', 'wait', 'signal', 'nudge', 'worker')
order by c.relname
"""


def _hears(connection: psycopg.Connection[Any], channel: str) -> bool:
    told = connection.notifies(timeout=LISTEN_SECONDS, stop_after=1)
    return any(notification.channel == channel for notification in told)


def check_autovacuum(patient: Patient) -> Findings:
    """Places and mail live for milliseconds: without vacuum, claims step over the dead."""
    risks = patient.ask(inspect.read_server()).risks
    yield from _switched_off(risks, "fail", ("autovacuum", "track_counts"))
    for row in patient.rows(_HOT):
        table = f"pgflow.{row['table']}"
        if row["options"] is None or row["enabled"] in ("false", "off"):
            settings = "autovacuum_enabled = true, autovacuum_vacuum_threshold = 2000"
            yield warn(
                f"{table} has lost its vacuum settings", f"alter table {table} set ({settings})"
            )
        elif row["dead"] > 20 * max(row["threshold"], 1000):
            remedy = f"vacuum {table}; then see which transaction keeps them (below)"
            yield warn(f"{table} holds {row['dead']:,} dead rows", remedy)
    return "autovacuum is on, hot tables are clean"


def _old(row: inspect.SnapshotRow) -> tuple[str, str]:
    since = f" for {duration(row.seconds)}" if row.seconds is not None else ""
    whose = f" of {row.role} ({row.application or '?'})" if row.role else ""
    kept = f"{row.who}{whose}, {row.state}, has kept a snapshot{since}"
    return f"{kept}: dead rows cannot be removed", f"end it: {row.remedy}"


# Claims read on past the dead rows that an old snapshot keeps, but everything else slows down.
check_long_transactions = each(
    lambda: inspect.list_snapshots(LONG_SECONDS),
    f"no transaction is older than {duration(LONG_SECONDS)}",
    _old,
)


_ROOM = """
select
  count(*) filter (
    where datname = current_database()
      and application_name in (
        'pgflow worker', 'pgflow committer', 'pgflow listener', 'pgflow heartbeat', 'pgflow step'
      )
  ) as of_workers,
  to_regclass('pgflow.workers') is not null as has_workers
from pg_stat_activity where backend_type = 'client backend'
"""


def check_connections(patient: Patient) -> Findings:
    """Workers open connections as they need them: whether there is room if all do at once."""
    row, server = patient.row(_ROOM), patient.ask(inspect.read_server())
    room, used = server.room, server.connections
    workers = patient.ask(inspect.count_workers()).workers if row["has_workers"] else 0
    most = workers * CONNECTIONS_OF_A_WORKER
    text = f"{many(used, 'connection')} of {room} in use"
    remedy = "raise max_connections, or put a pooler in front of the application"
    if used > FULL * room:
        yield warn(text, remedy)
    elif used - row["of_workers"] + most > room:
        text += f"; {many(workers, 'worker')} may want {most}, up to {CONNECTIONS_OF_A_WORKER} each"
        yield warn(text, f"{remedy}, or `pgflow workers --transactions` with less than 4")
    return text


_JIT = """
select pg_jit_available() and reset_val = 'on' as is_on,
  current_setting('jit_above_cost')::float8 as above
from pg_settings where name = 'jit'
"""
"""`reset_val` is the setting that sessions of this role begin with. Our own session turns jit off,
after which `pg_jit_available` is false.
"""


def check_compiling(patient: Patient) -> Findings:
    """Check whether a look at a view is compiled first. Statements of pgflow itself never are."""
    with patient.connection.transaction():
        patient.connection.execute("set local jit = on")
        row = patient.row(_JIT)
    if not row["is_on"] or row["above"] < 0:
        return "this server compiles nothing (jit)"
    costs = patient.ask(inspect.read_view_costs())
    dear = ", ".join(f"pgflow.{name}" for name, cost in costs.items() if cost > row["above"])
    if dear:
        yield warn(
            f"psql and dashboards wait for a compiler (jit) before they see {dear}",
            "alter role NAME set jit = off, for the role that looks; if these tables have just "
            "been filled: vacuum analyze",
        )
    return "Postgres does not compile (jit) what reads the views"
