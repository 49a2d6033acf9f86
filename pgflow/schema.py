"""Installs the schema `pgflow`, brings it up to date, and judges whether it fits this version.

Everything is one transaction under an advisory lock: the numbered migrations that are missing, then every
file of stored functions and views whose text changed, `privileges.sql` last. So two installers at once
take turns, and one that is killed leaves nothing. What `migrate` executes is what `migration_sql` prints:
the same statements, which decide on the server what the connected role may do.

The schema carries two marks. The comment of `pgflow.migration` says that the schema is ours: one without
it is never touched. The comment of the schema is the stamp: version, highest migration and a digest of all
files. Comments are readable by everybody, so a worker whose role may read no table can still see in one
query whether it fits. The order of two stamps is that of their migrations, then of their versions:

- an older version never migrates a newer schema, since it would put old functions under new workers;
- an older worker runs on a newer schema, as a rolling upgrade needs, unless a migration in between has a
  line ``--! breaking-change``;
- a newer worker does not run on an older schema.

Objects belong to `pgflow_owner` where that role can be had, else to the role that installs, and never to
a superuser: the functions run with their owner's rights. A superuser upgrades only what belongs to
`pgflow_owner` or to itself, because `set role` gives no shelter from triggers that another owner wrote.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import psycopg
from psycopg import sql
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from pgflow._version import __version__
from pgflow.errors import SchemaForeign, SchemaMissing, SchemaNewer, SchemaOutdated, ServerUnsupported, SetupError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from importlib.resources.abc import Traversable

__all__ = ["SCHEMA_QUERY", "MigrationReport", "judge_schema", "migrate", "migrate_dsn", "migration_sql", "require_schema"]

DISTRIBUTION = "pgflow-engine"
OWNER_ROLE = "pgflow_owner"
OLDEST_SERVER = 150000

LOCK_TIMEOUT_SECONDS = 60.0
# Whoever waits for a table that is in use makes all its later users wait too: better to give up early.
TABLE_LOCK_TIMEOUT_SECONDS = 5.0

SCHEMA_QUERY = """
with server (version) as (
  select pg_catalog.current_setting('server_version_num')::int
), pgflow_role (name) as (
  values ('pgflow_owner'), ('pgflow_client'), ('pgflow_worker'), ('pgflow_operator'), ('pgflow_auditor')
)
select
  server.version,
  n.oid is not null,
  exists (
    select from pg_catalog.pg_class c
    where c.relnamespace = n.oid and c.relname = 'migration' and c.relkind = 'r' and c.relowner = n.nspowner
      and pg_catalog.obj_description(c.oid, 'pg_class') like 'pgflow-engine%'
  ),
  pg_catalog.obj_description(n.oid, 'pg_namespace'),
  pg_catalog.pg_get_userbyid(n.nspowner),
  pg_catalog.pg_has_role(n.nspowner, case when server.version < 160000 then 'MEMBER' else 'SET' end),
  me.rolname,
  me.rolsuper,
  me.rolsuper or me.rolcreaterole,
  pg_catalog.current_database(),
  pg_catalog.has_database_privilege(pg_catalog.current_database(), 'CREATE'),
  array(select r.name from pgflow_role r where r.name not in (select rolname from pg_catalog.pg_roles)),
  exists (
    select from pgflow_role r join pg_catalog.pg_roles a on a.rolname = r.name
    where r.name <> 'pgflow_owner' and not exists (select from pg_catalog.aclexplode(n.nspacl) g where g.grantee = a.oid)
  )
from server
join pg_catalog.pg_roles me on me.rolname = current_user
left join pg_catalog.pg_namespace n on n.nspname = 'pgflow'
"""
"""One row for `judge_schema`, fetched as a tuple. It reads catalogs only, so that any role may run it."""

# Read committed, whatever the session's default is: what the lock waited for must be visible after it.
# The number is the first eight bytes of sha256('pgflow-engine migrate').
_TAKE_LOCK = sql.SQL("""\
set transaction isolation level read committed, read write;
set local search_path = pg_catalog, pg_temp;
set local client_min_messages = warning;
set local statement_timeout = 0;
set local lock_timeout = {timeout};
select pg_catalog.pg_advisory_xact_lock({key});
""")
_LOCK_KEY = int.from_bytes(hashlib.sha256(b"pgflow-engine migrate").digest()[:8], signed=True)

# Roles belong to the cluster: another database's installer may make them at the same time.
_CREATE_ROLES = """\
do $$
declare
  role_name text;
begin
  foreach role_name in array '{pgflow_owner,pgflow_client,pgflow_worker,pgflow_operator,pgflow_auditor}'::text[] loop
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

# Whether pgflow_owner can be had is asked after trying: another database's installer may have been granted it first.
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
      execute 'grant pgflow_owner to current_user' || case when is_16 then ' with inherit false, set true' else '' end;
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

_RECORD_SOURCE = sql.SQL("""\
insert into pgflow.source (name, sha256) values ({name}, {sha256})
on conflict (name) do update set sha256 = excluded.sha256, applied_at = clock_timestamp();
""")


@dataclass(frozen=True)
class SqlFile:
    """A file of SQL: ``name`` is its path below `migrations/` or `sql/`, without the suffix."""

    name: str
    text: str

    @cached_property
    def sha256(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def number(self) -> int:
        """Of a migration: the four digits that its name starts with."""
        return int(self.name[:4])

    @property
    def is_breaking(self) -> bool:
        return re.search(r"^--! breaking-change", self.text, re.MULTILINE) is not None


@dataclass(frozen=True)
class Assets:
    """All SQL of one version, in the order in which it is applied."""

    version: str
    migrations: tuple[SqlFile, ...]
    sources: tuple[SqlFile, ...]

    @cached_property
    def stamp(self) -> Stamp:
        digest = hashlib.sha256("\n".join(f"{f.name} {f.sha256}" for f in (*self.migrations, *self.sources)).encode())
        first, last = self.migrations[0].number, self.migrations[-1].number
        breaking = max((file.number for file in self.migrations if file.is_breaking), default=first)
        return Stamp(self.version, last, breaking, digest.hexdigest()[:16])


@dataclass(frozen=True)
class Stamp:
    """What the comment of the schema says: who installed it, and what."""

    version: str
    schema: int
    breaking: int
    files: str

    @classmethod
    def parse(cls, comment: str | None) -> Self | None:
        found = re.match(r"pgflow-engine (\S+) \(schema (\d+), breaking (\d+), files (\w+)\)", comment or "")
        return cls(found[1], int(found[2]), int(found[3]), found[4]) if found else None

    def __str__(self) -> str:
        return f"{DISTRIBUTION} {self.version} (schema {self.schema}, breaking {self.breaking}, files {self.files})"

    @property
    def age(self) -> tuple[int, tuple[int, ...]]:
        return self.schema, tuple(int(digits) for digits in re.findall(r"\d+", self.version)[:3])


def read_assets(root: Traversable, version: str) -> Assets:
    """Reads the folders `migrations` and `sql` below ``root``."""
    migrations = sorted(_sql_files(root / "migrations"), key=lambda file: file.number)
    sources = sorted(_sql_files(root / "sql"), key=lambda file: (file.name == "privileges", file.name))
    assert len({file.number for file in migrations}) == len(migrations), "two migrations have the same number"
    return Assets(version, tuple(migrations), tuple(sources))


def _sql_files(folder: Traversable, prefix: str = "") -> Iterator[SqlFile]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _sql_files(entry, f"{prefix}{entry.name}/")
        elif entry.name.endswith(".sql"):
            yield SqlFile(prefix + entry.name.removesuffix(".sql"), entry.read_text(encoding="utf-8"))


@cache
def own_assets() -> Assets:
    """The SQL of this version: inside the installed package, else beside it in a checkout."""
    packaged = resources.files("pgflow")
    return read_assets(packaged if (packaged / "migrations").is_dir() else Path(__file__).parent.parent, __version__)


@dataclass(frozen=True)
class Installed:
    """A row of `SCHEMA_QUERY`: what is there, and what the connected role may do about it."""

    server_version: int
    has_schema: bool
    is_ours: bool
    comment: str | None
    owner: str | None
    may_act_as_owner: bool | None
    user: str
    is_superuser: bool
    may_create_roles: bool
    database: str
    may_create_schema: bool
    missing_roles: list[str]
    lacks_privileges: bool

    @property
    def stamp(self) -> Stamp | None:
        return Stamp.parse(self.comment)

    @property
    def missing_grantees(self) -> list[str]:
        """The missing roles that the schema would grant something to: not its owner, which it has once it is there."""
        return [name for name in self.missing_roles if name != OWNER_ROLE]


def require_schema(conn: psycopg.Connection[Any]) -> None:
    """Makes sure, with one query, that this version can work with the database of ``conn``.

    Raises:
        ServerUnsupported, SchemaMissing, SchemaForeign, SchemaOutdated, SchemaNewer: Why it cannot.
    """
    with conn.transaction():
        judge_schema(_fetch_row(conn.cursor(row_factory=tuple_row)))


def judge_schema(row: Sequence[Any] | None) -> None:
    """Judges the row that `SCHEMA_QUERY` returned, fetched by either colour.

    Args:
        row: The row as a tuple (``row_factory=tuple_row``).

    Raises:
        ServerUnsupported, SchemaMissing, SchemaForeign, SchemaOutdated, SchemaNewer: Why this version cannot work there.
    """
    assert row is not None, "SCHEMA_QUERY returns one row"
    found, ours = Installed(*row), own_assets().stamp
    _check_ground(found)
    if not found.has_schema:
        raise SchemaMissing(f"database {found.database} has no schema pgflow: run `pgflow migrate`")
    theirs = found.stamp
    if theirs is not None and theirs.breaking > ours.schema:
        raise SchemaNewer(f"{_place(found)} was written by {theirs}, with which {ours} cannot work: upgrade {DISTRIBUTION}")
    if theirs is None or (theirs.files != ours.files and theirs.age <= ours.age):
        raise SchemaOutdated(f"{_place(found)} was written by {theirs or 'nobody known'}, this is {ours}: run `pgflow migrate`")


def _fetch_row(cursor: psycopg.Cursor[tuple[Any, ...]]) -> tuple[Any, ...] | None:
    return cursor.execute(SCHEMA_QUERY).fetchone()


def _place(found: Installed) -> str:
    return f"the schema pgflow in database {found.database}"


def _check_ground(found: Installed) -> None:
    if found.server_version < OLDEST_SERVER:
        raise ServerUnsupported(f"the server is Postgres {found.server_version // 10000}: pgflow needs 15 or newer")
    if found.has_schema and not found.is_ours:
        raise SchemaForeign(f"{_place(found)} is not of {DISTRIBUTION}: rename or drop it, or use another database")


@dataclass(frozen=True)
class MigrationReport:
    """What `migrate` did.

    Attributes:
        migrations: Names of the migrations applied, in order.
        sources: Names of the files of functions, views and privileges applied, in order.
        roles_created: Roles made.
        owner: The role that owns the schema.
        advice: Statements that a database administrator must run, since this role may not; empty if nothing is missing.
        already_current: True if there was nothing to do.
    """

    migrations: tuple[str, ...]
    sources: tuple[str, ...]
    roles_created: tuple[str, ...]
    owner: str
    advice: tuple[str, ...]
    already_current: bool


def migrate_dsn(dsn: str, *, lock_timeout_seconds: float = LOCK_TIMEOUT_SECONDS) -> MigrationReport:
    """`migrate` on a connection of its own.

    Args:
        dsn: Connection string or URL.
        lock_timeout_seconds: How long to wait for another installer, in seconds.

    Raises:
        SetupError: As `migrate`.
        psycopg.OperationalError: The server cannot be reached.
    """
    with psycopg.connect(dsn, autocommit=True) as conn:
        return migrate(conn, lock_timeout_seconds=lock_timeout_seconds)


def migrate(conn: psycopg.Connection[Any], *, lock_timeout_seconds: float = LOCK_TIMEOUT_SECONDS) -> MigrationReport:
    """Installs the schema `pgflow` or brings it up to date, in one transaction. Safe to run at any time, by several at once.

    Args:
        conn: A connection without an open transaction.
        lock_timeout_seconds: How long to wait for another installer, in seconds.

    Returns:
        What was done, and what is left for a database administrator.

    Raises:
        ServerUnsupported, SchemaForeign, SchemaNewer: The database must not be touched.
        SetupError: Another installer or a long transaction is in the way, or this role lacks a right; the message says which.

    Example:
        >>> with psycopg.connect(dsn) as conn:
        ...     print(migrate(conn).migrations)
        ('0001_core',)
    """
    return install(conn, own_assets(), lock_timeout_seconds)


def install(conn: psycopg.Connection[Any], assets: Assets, lock_timeout_seconds: float = LOCK_TIMEOUT_SECONDS) -> MigrationReport:
    """`migrate` with the given files."""
    if conn.info.transaction_status not in (TransactionStatus.IDLE, TransactionStatus.UNKNOWN):
        raise SetupError("migrate needs a connection without an open transaction: commit or roll back first")
    with conn.transaction():
        cursor = conn.cursor(row_factory=tuple_row)
        _take_lock(cursor, lock_timeout_seconds)
        before = _look(cursor, assets)
        if _is_current(before, assets):
            return _report(before, before, Pending((), ()))
        _apply(cursor, _prologue(before))
        pending = _find_pending(cursor, before, assets)
        for script in pending.scripts(assets):
            _apply(cursor, script)
        return _report(before, _look(cursor, assets), pending)


def migration_sql(conn: psycopg.Connection[Any] | None = None) -> str:
    """What `migrate` would run, as one script that psql and other clients can run unchanged.

    Args:
        conn: The database to bring up to date, which is only read; None for one without the schema.

    Raises:
        SetupError: As `migrate`.
    """
    assets = own_assets()
    if conn is None:
        return _script(_CREATE_ROLES + _CREATE_SCHEMA, Pending(assets.migrations, assets.sources), assets)
    with conn.transaction(force_rollback=True):
        cursor = conn.cursor(row_factory=tuple_row)
        found = _look(cursor, assets)
        if _is_current(found, assets):
            return f"-- {_place(found)} is up to date\n"
        if found.has_schema:
            cursor.execute(_become(found))
        return _script(_prologue(found), _find_pending(cursor, found, assets), assets)


@dataclass(frozen=True)
class Pending:
    """The files that a database lacks."""

    migrations: tuple[SqlFile, ...]
    sources: tuple[SqlFile, ...]

    def scripts(self, assets: Assets) -> Iterator[str]:
        """Each file with the record that it was applied, then the stamp."""
        yield _BEFORE_FILES.format(timeout=sql.Literal(_milliseconds(TABLE_LOCK_TIMEOUT_SECONDS))).as_string()
        for file in self.migrations:
            yield f"-- migrations/{file.name}.sql\n{file.text}\n" + _record(_RECORD_MIGRATION, file)
        for file in self.sources:
            yield f"-- sql/{file.name}.sql\n{file.text}\n" + _record(_RECORD_SOURCE, file)
        yield sql.SQL("comment on schema pgflow is {};\n").format(sql.Literal(str(assets.stamp))).as_string()


def _record(template: sql.SQL, file: SqlFile) -> str:
    return template.format(name=sql.Literal(file.name), sha256=sql.Literal(file.sha256)).as_string()


def _look(cursor: psycopg.Cursor[tuple[Any, ...]], assets: Assets) -> Installed:
    """What is there, unless it must not be touched."""
    row = _fetch_row(cursor)
    assert row is not None
    found = Installed(*row)
    _check_ground(found)
    theirs, ours = found.stamp, assets.stamp
    if theirs is not None and theirs.files != ours.files and theirs.age > ours.age:
        raise SchemaNewer(f"{_place(found)} was written by {theirs}, this is {ours}: upgrade {DISTRIBUTION}")
    return found


def _is_current(found: Installed, assets: Assets) -> bool:
    can_help = bool(found.missing_grantees) and found.may_create_roles
    same_files = found.stamp is not None and found.stamp.files == assets.stamp.files
    return same_files and not found.lacks_privileges and not can_help


def _prologue(found: Installed) -> str:
    """What comes before the files: roles, the schema, and becoming its owner."""
    if not found.has_schema:
        _check_may_create(found)
        return _CREATE_ROLES + _CREATE_SCHEMA
    make_roles = _CREATE_ROLES if found.missing_grantees and found.may_create_roles else ""
    return make_roles + _become(found).as_string()


def _check_may_create(found: Installed) -> None:
    if not found.may_create_schema:
        grant = sql.SQL("grant create on database {} to {};").format(sql.Identifier(found.database), sql.Identifier(found.user))
        raise SetupError(
            f"{found.user} may not create a schema in database {found.database}: "
            f"run `pgflow migrate` as a role that may, or let a database administrator run: {grant.as_string()}"
        )


def _become(found: Installed) -> sql.Composed:
    assert found.owner is not None
    if found.is_superuser and found.owner not in (found.user, OWNER_ROLE):
        raise SetupError(f"{_place(found)} belongs to {found.owner}: run `pgflow migrate` as that role, not as a superuser")
    if not found.may_act_as_owner:
        grant = sql.SQL("grant {} to {};").format(sql.Identifier(found.owner), sql.Identifier(found.user))
        raise SetupError(
            f"{_place(found)} belongs to {found.owner}, and {found.user} may not act for that role: "
            f"run `pgflow migrate` as {found.owner} or a member of it, or let a database administrator run: {grant.as_string()}"
        )
    return sql.SQL("set local role {};\n").format(sql.Identifier(found.owner))


def _find_pending(cursor: psycopg.Cursor[tuple[Any, ...]], found: Installed, assets: Assets) -> Pending:
    """Compares the files with what the database says was applied; the owner must ask."""
    if not found.has_schema:
        return Pending(assets.migrations, assets.sources)
    migrations = dict(cursor.execute("select name, sha256 from pgflow.migration").fetchall())
    sources = dict(cursor.execute("select name, sha256 from pgflow.source").fetchall())
    _check_history(found, migrations, assets)
    changed = tuple(file for file in assets.sources if sources.get(file.name) != file.sha256 or file.name == "privileges")
    return Pending(tuple(file for file in assets.migrations if file.name not in migrations), changed)


def _check_history(found: Installed, applied: dict[str, str], assets: Assets) -> None:
    ours = {file.name: file.sha256 for file in assets.migrations}
    unknown = sorted(applied.keys() - ours.keys())
    if unknown:
        raise SchemaNewer(f"{_place(found)} has the migration {unknown[0]}, unknown to {assets.stamp}: upgrade {DISTRIBUTION}")
    changed = sorted(name for name in applied if applied[name] != ours[name])
    if changed:
        raise SetupError(
            f"{_place(found)} has the migration {changed[0]} with another text than {assets.stamp}: "
            "an applied migration never changes. Use the version that installed it, or drop a schema that nobody needs"
        )


def _take_lock(cursor: psycopg.Cursor[Any], timeout_seconds: float) -> None:
    try:
        cursor.execute(_lock_sql(timeout_seconds))
    except psycopg.errors.LockNotAvailable as error:
        raise SetupError(
            f"another `pgflow migrate` is at work on this database, for more than {timeout_seconds:g} s: run it again later"
        ) from error


def _lock_sql(timeout_seconds: float) -> str:
    return _TAKE_LOCK.format(timeout=sql.Literal(_milliseconds(timeout_seconds)), key=sql.Literal(_LOCK_KEY)).as_string()


def _milliseconds(seconds: float) -> str:
    return f"{max(1, round(seconds * 1000))}ms"  # 0 would wait for ever


def _apply(cursor: psycopg.Cursor[Any], script: str) -> None:
    # Without parameters a query may hold many statements. The files are ASCII, so any client_encoding will do.
    try:
        cursor.execute(script.encode("ascii"))
    except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected) as error:
        raise SetupError(f"another transaction uses what must change; nothing was done, run it again later: {error}") from error
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
        roles_created=tuple(name for name in before.missing_roles if name not in after.missing_roles),
        owner=after.owner,
        advice=_advice(after),
        already_current=not pending.sources,
    )


def _advice(found: Installed) -> tuple[str, ...]:
    if not found.missing_grantees:
        return ()
    roles = (sql.SQL("create role {} nologin;").format(sql.Identifier(name)).as_string() for name in found.missing_grantees)
    return (*roles, "-- then run `pgflow migrate` again, which grants these roles their privileges")


def _script(prologue: str, pending: Pending, assets: Assets) -> str:
    return "\n".join(["begin;", _lock_sql(LOCK_TIMEOUT_SECONDS), prologue, *pending.scripts(assets), "commit;\n"])
