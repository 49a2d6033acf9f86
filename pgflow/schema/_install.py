"""The installation: one transaction under an advisory lock, made of the statements that
`migration_sql` prints.
"""

from __future__ import annotations

import hashlib
import json
import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from pgflow._db.connect import PATIENCE_SECONDS, ConnectOptions, connect
from pgflow._db.dsn import resolve_dsn
from pgflow.assets import DISTRIBUTION, Assets, SqlFile, own_assets
from pgflow.errors import SchemaNewer, SetupError
from pgflow.schema._locks import take_locks
from pgflow.schema._shapes import MADE_WAY, MAKE_WAY, make_way
from pgflow.schema._state import (
    OWNER_ROLE,
    Installed,
    check_ground,
    fetch_row,
    place_of,
    read_installed,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

LOCK_TIMEOUT_SECONDS = 60.0
# All locks that were foreseen are held by then. Shorter than any deadlock takes to be looked for.
UNFORESEEN_LOCK_TIMEOUT_SECONDS = 0.2
LONGEST_PAUSE_SECONDS = 2.0

# Read committed, whatever the session's default is: what the lock waited for must be visible after
# it. The number is the first eight bytes of sha256('pgflow-engine migrate').
_TAKE_LOCK = sql.SQL("""\
set transaction isolation level read committed, read write;
set local search_path = pg_catalog, pg_temp;
set local client_min_messages = warning;
set local statement_timeout = 0;
set local lock_timeout = {timeout};
set local standard_conforming_strings = on;
select pg_catalog.pg_advisory_xact_lock({key});
""")
LOCK_KEY = int.from_bytes(hashlib.sha256(b"pgflow-engine migrate").digest()[:8], signed=True)

# An installation holds some 1,800 locks at its end, in a table that all databases of a server
# share. So as many are at work at once as fit into half of it, at least one. Two that look at the
# same moment may both begin: then one fails, and tries again.
_TAKE_TURN = sql.SQL("""\
do $$
declare
  give_up_at constant timestamptz := clock_timestamp() + {patience};
  room constant bigint := current_setting('max_locks_per_transaction')::bigint
    * (current_setting('max_connections')::int + current_setting('max_prepared_transactions')::int);
begin
  while clock_timestamp() < give_up_at and greatest(room / 3600, 1) <= (
    select count(distinct l.database) from pg_locks l
    where l.locktype = 'advisory' and l.granted and l.objsubid = 1 and l.pid <> pg_backend_pid()
      and (l.classid::bigint << 32 | l.objid::bigint) = {key}
  ) loop
    perform pg_sleep(0.02 + 0.1 * random());
  end loop;
  perform pg_advisory_xact_lock({key});
end $$;
""")
TURN_KEY = int.from_bytes(
    hashlib.sha256(b"pgflow-engine migrate, at work").digest()[:8], signed=True
)

# Each node of Citus has a schema of its own. Other servers know no such setting, and accept it.
_PROPAGATE_NOTHING = "set local citus.enable_ddl_propagation = off;\n"

# Roles belong to the cluster: another database's installer may make them at the same time.
_CREATE_ROLES = """\
do $$
declare
  role_name text;
begin
  foreach role_name in array
    '{pgflow_owner,pgflow_client,pgflow_worker,pgflow_operator,pgflow_auditor,pgflow_declarer,'
    'pgflow_approver,pgflow_speaker,pgflow_tenant}'::text[]
  loop
    continue when exists (select from pg_roles where rolname = role_name);
    begin
      execute format('create role %I nologin', role_name);
    exception
      when duplicate_object or unique_violation then
        null;
      when insufficient_privilege then
        raise warning 'role % is missing: a database administrator must create it', role_name;
    end;
  end loop;
end $$;
"""

# Whether pgflow_owner can be had is asked after trying:
# another database's installer may have been granted it first.
_CREATE_SCHEMA = """\
do $$
declare
  is_16 constant boolean := current_setting('server_version_num')::int >= 160000;
  right_to_act constant text := case when is_16 then 'SET' else 'MEMBER' end;
  pgflow_owner constant oid := (select oid from pg_roles where rolname = 'pgflow_owner');
  owner_name text := current_user;
begin
  if not pg_has_role(pgflow_owner, right_to_act) then
    begin
      execute 'grant pgflow_owner to current_user'
        || case when is_16 then ' with inherit false, set true' else '' end;
    exception when insufficient_privilege or unique_violation then
      null;
    end;
  end if;
  if pg_has_role(pgflow_owner, right_to_act) then
    owner_name := 'pgflow_owner';
  end if;
  if (select rolsuper from pg_roles where rolname = owner_name) then
    raise exception 'the schema pgflow would belong to the superuser %', owner_name
      using hint = 'Its functions would run with all rights: alter role pgflow_owner nosuperuser';
  end if;
  execute format('create schema pgflow authorization %I', owner_name);
  perform set_config('role', owner_name, true);
end $$;
"""

_BEFORE_FILES = sql.SQL("""\
set local lock_timeout = {timeout};
set local check_function_bodies = off;
""")

_RECORD_MIGRATION = sql.SQL("""\
insert into pgflow.migration (number, name, sha256) values (left({name}, 4)::int, {name}, {sha256});
""")

# A file that makes a view anew drops it, and the file of privileges makes these from all views.
_DROP_OWN_VIEWS = """\
do $$
declare
  one record;
begin
  for one in
    select c.oid::regclass as name from pg_class c
    where c.relnamespace = 'pgflow'::regnamespace and c.relkind = 'v'
      and starts_with(c.relname, 'own_')
  loop
    execute format('drop view %s', one.name);
  end loop;
end $$;
"""

# The file of privileges reads what all files say of themselves.
_HAND_OVER_GRANTS = sql.SQL("""\
select pg_catalog.set_config('pgflow.grants', {grants}, true);
""")

# Files that were merged, split or moved: without its row, none counts as applied.
_FORGET_SOURCES = sql.SQL("""\
delete from pgflow.source where name <> all ({names}::text[]);
""")

_RECORD_SOURCE = sql.SQL("""\
insert into pgflow.source (name, sha256) values ({name}, {sha256})
on conflict (name) do update set sha256 = excluded.sha256, applied_at = clock_timestamp();
""")


@dataclass(frozen=True)
class MigrationReport:
    """Report of `migrate`.

    Attributes:
        migrations: Names of the migrations applied, in order.
        sources: Names of the files of functions, views and privileges applied, in order.
        roles_created: Roles made.
        owner: The role that owns the schema.
        advice: Statements that a database administrator must run, since this role may not; empty if
            nothing is missing.
        already_current: True if there was nothing to do.
    """

    migrations: tuple[str, ...]
    sources: tuple[str, ...]
    roles_created: tuple[str, ...]
    owner: str
    advice: tuple[str, ...]
    already_current: bool


def migrate_dsn(dsn: str, *, lock_timeout_seconds: float = LOCK_TIMEOUT_SECONDS) -> MigrationReport:
    """Run `migrate` on a new connection.

    Args:
        dsn: Connection string or URL.
        lock_timeout_seconds: Seconds to wait for another installer.

    Raises:
        SetupError: As `migrate`.
        psycopg.OperationalError: The server cannot be reached.
    """
    options = ConnectOptions(resolve_dsn(dsn) or dsn)
    with connect(options, "pgflow migrate", PATIENCE_SECONDS) as conn:
        return migrate(conn, lock_timeout_seconds=lock_timeout_seconds)


def migrate(
    conn: psycopg.Connection[Any], *, lock_timeout_seconds: float = LOCK_TIMEOUT_SECONDS
) -> MigrationReport:
    """Install or upgrade the schema `pgflow`, in one transaction. You may run it at any time, and
    several times at once.

    Args:
        conn: A connection without an open transaction.
        lock_timeout_seconds: Seconds to wait for another installer, and to retry while transactions
            use objects that must change. Meanwhile the installer blocks others for moments only.

    Returns:
        A report of the changes, and of the work left for a database administrator.

    Raises:
        ServerUnsupported, SchemaForeign, SchemaNewer: The database must not be changed. SetupError:
        Another installer or a long transaction blocks this one, or the role lacks a right; the
        message names it.

    Example:
        >>> with psycopg.connect(dsn) as conn:
        ...     print(migrate(conn).migrations)
        ('0001_baseline',)
    """
    return install(conn, own_assets(), lock_timeout_seconds)


def install(
    conn: psycopg.Connection[Any],
    assets: Assets,
    lock_timeout_seconds: float = LOCK_TIMEOUT_SECONDS,
) -> MigrationReport:
    """`migrate` with the given files."""
    if conn.info.transaction_status not in (TransactionStatus.IDLE, TransactionStatus.UNKNOWN):
        raise SetupError(
            "migrate needs a connection without an open transaction: commit or roll back first"
        )
    give_up_at = time.monotonic() + lock_timeout_seconds
    pause_seconds = 0.1
    while True:
        try:
            return _install_once(conn, assets, lock_timeout_seconds)
        except psycopg.Error as error:
            if not _will_pass(error):
                raise
            if time.monotonic() + pause_seconds > give_up_at:
                raise SetupError(_why_not(error)) from error
        time.sleep(pause_seconds * random.uniform(0.5, 1.5))  # noqa: S311 - spreads installers
        pause_seconds = min(2 * pause_seconds, LONGEST_PAUSE_SECONDS)


def _install_once(
    conn: psycopg.Connection[Any], assets: Assets, lock_timeout_seconds: float
) -> MigrationReport:
    with conn.transaction():
        cursor = conn.cursor(row_factory=tuple_row)
        _take_lock(cursor, lock_timeout_seconds)
        before = _look(cursor, assets)
        if _is_current(before, assets):
            _join_citus(cursor, before)
            return _report(before, before, Pending((), ()))
        _apply(cursor, _turn_sql(lock_timeout_seconds))
        _apply(cursor, _prologue(before))
        pending = _find_pending(cursor, before, assets)
        for script in pending.scripts(assets, lock_timeout_seconds):
            _apply(cursor, script)
        _join_citus(cursor, before)
        return _report(before, _look(cursor, assets), pending)


def _join_citus(cursor: psycopg.Cursor[Any], found: Installed) -> None:
    """Make the transactions of a node of Citus commit in two phases, also where Citus came later.
    The connected role does it: only an administrator may make distributed tables.
    """
    if found.has_citus:
        _apply(cursor, f"set local role none;\n{_PROPAGATE_NOTHING}select pgflow.join_citus_()")


def _will_pass(error: psycopg.Error) -> bool:
    """Return whether another try may succeed: others were in the way."""
    passing = (
        psycopg.errors.LockNotAvailable,
        psycopg.errors.DeadlockDetected,
        psycopg.errors.OutOfMemory,
        psycopg.errors.SerializationFailure,
    )
    return isinstance(error, passing) or "concurrently updated" in str(error)


def _why_not(error: psycopg.Error) -> str:
    if isinstance(error, psycopg.errors.OutOfMemory):
        return (
            "the server has no room for the locks of an installation, some 1,800 at once; nothing "
            "was done. Install fewer databases at once, or raise max_locks_per_transaction: "
            f"{error.diag.message_primary}"
        )
    return (
        "another transaction uses tables or functions that must change; nothing was done, run it "
        f"again later: {error.diag.message_primary}"
    )


def migration_sql(conn: psycopg.Connection[Any] | None = None) -> str:
    """Return the statements that `migrate` would run, as one script for psql and other clients.

    Args:
        conn: The database to bring up to date, which is only read; None for one without the schema.

    Raises:
        SetupError: As `migrate`.
    """
    assets = own_assets()
    if conn is None:
        return _script(
            _PROPAGATE_NOTHING + _CREATE_ROLES + _CREATE_SCHEMA,
            Pending(assets.migrations, assets.sources),
            assets,
        )
    with conn.transaction(force_rollback=True):
        cursor = conn.cursor(row_factory=tuple_row)
        found = _look(cursor, assets)
        if _is_current(found, assets):
            return f"-- {place_of(found)} is up to date\n"
        if found.has_schema:
            cursor.execute(_become(found))
        return _script(_prologue(found), _find_pending(cursor, found, assets), assets)


@dataclass(frozen=True)
class Pending:
    """The files that a database lacks; where it has others of the kind, their functions stay the
    same ones, if they can.
    """

    migrations: tuple[SqlFile, ...]
    sources: tuple[SqlFile, ...]
    is_upgrade: bool = False

    def scripts(
        self, assets: Assets, lock_timeout_seconds: float = LOCK_TIMEOUT_SECONDS
    ) -> Iterator[str]:
        """All locks, then each file with the record that it was applied, then the stamp."""
        if self.is_upgrade:
            yield take_locks(self.migrations, self.sources, lock_timeout_seconds)
        yield _BEFORE_FILES.format(
            timeout=sql.Literal(_milliseconds(UNFORESEEN_LOCK_TIMEOUT_SECONDS))
        ).as_string()
        for file in self.migrations:
            yield f"-- migrations/{file.name}.sql\n{file.text}\n" + _record(_RECORD_MIGRATION, file)
        if self.is_upgrade:
            yield MAKE_WAY
            yield _DROP_OWN_VIEWS
        yield _HAND_OVER_GRANTS.format(grants=sql.Literal(json.dumps(assets.grants))).as_string()
        for file in self.sources:
            way = make_way(file, assets) if self.is_upgrade else ""
            yield f"-- sql/{file.name}.sql\n{way}{file.text}\n" + _record(_RECORD_SOURCE, file)
        if self.is_upgrade:
            yield (
                MADE_WAY
                + _FORGET_SOURCES.format(
                    names=sql.Literal([file.name for file in assets.sources])
                ).as_string()
            )
        yield (
            sql.SQL("comment on schema pgflow is {};\n")
            .format(sql.Literal(str(assets.stamp)))
            .as_string()
        )


def _record(template: sql.SQL, file: SqlFile) -> str:
    return template.format(name=sql.Literal(file.name), sha256=sql.Literal(file.sha256)).as_string()


def _look(cursor: psycopg.Cursor[tuple[Any, ...]], assets: Assets) -> Installed:
    """Return the state of the installation; raise SchemaNewer, or another SetupError, if it must
    not be touched.
    """
    row = fetch_row(cursor)
    assert row is not None
    found = read_installed(row)
    check_ground(found)
    theirs, ours = found.stamp, assets.stamp
    if theirs is not None and theirs.files != ours.files and theirs.age > ours.age:
        raise SchemaNewer(
            f"{place_of(found)} was written by {theirs}, this is {ours}: upgrade {DISTRIBUTION}"
        )
    return found


def _is_current(found: Installed, assets: Assets) -> bool:
    can_help = bool(found.missing_grantees) and found.may_create_roles
    same_files = found.stamp is not None and found.stamp.files == assets.stamp.files
    return same_files and not found.lacks_privileges and not can_help


def _prologue(found: Installed) -> str:
    """Return the statements before the files: roles, the schema, and becoming its owner."""
    if not found.has_schema:
        _check_may_create(found)
        return _PROPAGATE_NOTHING + _CREATE_ROLES + _CREATE_SCHEMA
    make_roles = _CREATE_ROLES if found.missing_grantees and found.may_create_roles else ""
    return _PROPAGATE_NOTHING + make_roles + _become(found).as_string()


def _check_may_create(found: Installed) -> None:
    if not found.may_create_schema:
        grant = sql.SQL("grant create on database {} to {};").format(
            sql.Identifier(found.database), sql.Identifier(found.user)
        )
        raise SetupError(
            f"{found.user} may not create a schema in database {found.database}: "
            "run `pgflow migrate` as a role that may, or let a database administrator run: "
            f"{grant.as_string()}"
        )


def _become(found: Installed) -> sql.Composed:
    assert found.owner is not None
    if found.is_superuser and found.owner not in (found.user, OWNER_ROLE):
        raise SetupError(
            f"{place_of(found)} belongs to {found.owner}: run `pgflow migrate` as that role, "
            "not as a superuser"
        )
    if not found.may_act_as_owner:
        grant = sql.SQL("grant {} to {};").format(
            sql.Identifier(found.owner), sql.Identifier(found.user)
        )
        raise SetupError(
            f"{place_of(found)} belongs to {found.owner}, and {found.user} may not act for that "
            f"role: run `pgflow migrate` as {found.owner} or a member of it, or let a database "
            f"administrator run: {grant.as_string()}"
        )
    return sql.SQL("set local role {};\n").format(sql.Identifier(found.owner))


def _find_pending(
    cursor: psycopg.Cursor[tuple[Any, ...]], found: Installed, assets: Assets
) -> Pending:
    """Compare the files with those that the database has applied. Only the owner may ask."""
    if not found.has_schema:
        return Pending(assets.migrations, assets.sources)
    migrations = dict(cursor.execute("select name, sha256 from pgflow.migration").fetchall())
    sources = dict(cursor.execute("select name, sha256 from pgflow.source").fetchall())
    _check_history(found, migrations, assets)
    # Under another name a file may stand there as another version has it:
    # then what our names say counts for nothing.
    known = {} if sources.keys() - {file.name for file in assets.sources} else sources
    changed = tuple(
        file
        for file in assets.sources
        if known.get(file.name) != file.sha256 or file.name == "privileges"
    )
    return Pending(
        tuple(file for file in assets.migrations if file.name not in migrations),
        changed,
        is_upgrade=True,
    )


def _check_history(found: Installed, applied: dict[str, str], assets: Assets) -> None:
    ours = {file.name: file.sha256 for file in assets.migrations}
    changed = sorted(
        name
        for name in applied
        if applied[name] != ours.get(name) and int(name[:4]) <= assets.stamp.schema
    )
    if changed:
        raise SetupError(
            f"{place_of(found)} has the migration {changed[0]} with another text than "
            f"{assets.stamp}: an applied migration of a release never changes, so no release has "
            "installed this. End its runs with the copy that has, then `drop schema pgflow "
            "cascade` and run `pgflow migrate` again"
        )
    unknown = sorted(applied.keys() - ours.keys())
    if unknown:
        raise SchemaNewer(
            f"{place_of(found)} has the migration {unknown[0]}, unknown to {assets.stamp}: upgrade "
            f"{DISTRIBUTION}"
        )


def _take_lock(cursor: psycopg.Cursor[Any], timeout_seconds: float) -> None:
    try:
        cursor.execute(_lock_sql(timeout_seconds).encode())
    except psycopg.errors.LockNotAvailable as error:
        raise SetupError(
            "another `pgflow migrate` is at work on this database, for more than "
            f"{timeout_seconds:g} s: run it again later"
        ) from error


def _lock_sql(timeout_seconds: float) -> str:
    return _TAKE_LOCK.format(
        timeout=sql.Literal(_milliseconds(timeout_seconds)), key=sql.Literal(LOCK_KEY)
    ).as_string()


def _turn_sql(timeout_seconds: float) -> str:
    return _TAKE_TURN.format(
        key=sql.Literal(TURN_KEY),
        patience=sql.SQL("interval {}").format(sql.Literal(f"{timeout_seconds:g} seconds")),
    ).as_string()


def _milliseconds(seconds: float) -> str:
    return f"{max(1, round(seconds * 1000))}ms"  # 0 would wait for ever


def _apply(cursor: psycopg.Cursor[Any], script: str) -> None:
    # Without parameters a query may hold many statements.
    # The files are ASCII, so any client_encoding will do.
    try:
        cursor.execute(script.encode("ascii"))
    except psycopg.errors.RaiseException as error:
        raise SetupError(f"{error.diag.message_primary}. {error.diag.message_hint}") from error
    except psycopg.Error as error:
        error.add_note(f"in the part of the installation that begins with {script[:80]!r}")
        raise


def _report(before: Installed, after: Installed, pending: Pending) -> MigrationReport:
    assert after.owner is not None
    return MigrationReport(
        migrations=tuple(file.name for file in pending.migrations),
        sources=tuple(file.name for file in pending.sources),
        roles_created=tuple(
            name for name in before.missing_roles if name not in after.missing_roles
        ),
        owner=after.owner,
        advice=_advice(after),
        already_current=not pending.sources,
    )


def _advice(found: Installed) -> tuple[str, ...]:
    if not found.missing_grantees:
        return ()
    roles = (
        sql.SQL("create role {} nologin;").format(sql.Identifier(name)).as_string()
        for name in found.missing_grantees
    )
    return (*roles, "-- then run `pgflow migrate` again, which grants these roles their privileges")


def _script(prologue: str, pending: Pending, assets: Assets) -> str:
    return "\n".join(
        [
            "begin;",
            _lock_sql(LOCK_TIMEOUT_SECONDS),
            _turn_sql(LOCK_TIMEOUT_SECONDS),
            prologue,
            *pending.scripts(assets),
            "commit;\n",
        ]
    )
