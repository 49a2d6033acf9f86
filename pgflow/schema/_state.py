"""The installed schema of a database, and whether this version can work with it:
one query of catalogs.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.rows import tuple_row

from pgflow.assets import DISTRIBUTION, Stamp, own_assets
from pgflow.errors import (
    SchemaForeign,
    SchemaMissing,
    SchemaNewer,
    SchemaOutdated,
    ServerUnsupported,
    SetupError,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

OWNER_ROLE = "pgflow_owner"
OLDEST_SERVER = 150000

SCHEMA_QUERY = """
with server (version) as (
  select pg_catalog.current_setting('server_version_num')::int
), pgflow_role (name) as (
  values ('pgflow_owner'), ('pgflow_client'), ('pgflow_worker'), ('pgflow_operator'),
    ('pgflow_auditor'), ('pgflow_declarer'), ('pgflow_approver'), ('pgflow_speaker'),
    ('pgflow_tenant')
)
select
  server.version,
  n.oid is not null,
  exists (
    select from pg_catalog.pg_class c
    where c.relnamespace = n.oid and c.relname = 'migration' and c.relkind = 'r'
      and c.relowner = n.nspowner
      and pg_catalog.obj_description(c.oid, 'pg_class') like 'pgflow-engine%'
  ),
  pg_catalog.obj_description(n.oid, 'pg_namespace'),
  pg_catalog.pg_get_userbyid(n.nspowner),
  coalesce((select o.rolsuper from pg_catalog.pg_roles o where o.oid = n.nspowner), false),
  pg_catalog.pg_has_role(
    n.nspowner, case when server.version < 160000 then 'MEMBER' else 'SET' end
  ),
  me.rolname,
  me.rolsuper,
  me.rolsuper or me.rolcreaterole,
  pg_catalog.current_database(),
  pg_catalog.has_database_privilege(pg_catalog.current_database(), 'CREATE'),
  array(
    select r.name from pgflow_role r
    where r.name not in (select rolname from pg_catalog.pg_roles)
  ),
  exists (
    select from pgflow_role r join pg_catalog.pg_roles a on a.rolname = r.name
    where r.name <> 'pgflow_owner' and not exists (
      select from pg_catalog.aclexplode(n.nspacl) g where g.grantee = a.oid
    )
  ),
  pg_catalog.current_setting('server_encoding'),
  exists (select from pg_catalog.pg_extension e where e.extname = 'citus')
from server
join pg_catalog.pg_roles me on me.rolname = current_user
left join pg_catalog.pg_namespace n on n.nspname = 'pgflow'
"""
"""One row for `judge_schema`, fetched as a tuple. It reads catalogs only,
so that any role may run it.
"""


@dataclass(frozen=True)
class Installed:
    """A row of `SCHEMA_QUERY`: what is there, and what the connected role may do about it."""

    server_version: int
    has_schema: bool
    is_ours: bool
    comment: str | None
    owner: str | None
    is_owner_superuser: bool
    may_act_as_owner: bool | None
    user: str
    is_superuser: bool
    may_create_roles: bool
    database: str
    may_create_schema: bool
    missing_roles: list[str]
    lacks_privileges: bool
    encoding: str
    has_citus: bool

    @property
    def stamp(self) -> Stamp | None:
        return Stamp.parse(self.comment)

    @property
    def missing_grantees(self) -> list[str]:
        """The missing roles that the schema would grant something to: not its owner, which it has
        once it is there.
        """
        return [name for name in self.missing_roles if name != OWNER_ROLE]


def require_schema(conn: psycopg.Connection[Any]) -> None:
    """Check, with one query, that this version can work with the database of ``conn``.

    Raises:
        ServerUnsupported, SchemaMissing, SchemaForeign, SchemaOutdated, SchemaNewer: Why it cannot.
    """
    with conn.transaction():
        judge_schema(fetch_row(conn.cursor(row_factory=tuple_row)))


def judge_schema(row: Sequence[Any] | None) -> None:
    """Judge the row of `SCHEMA_QUERY`, fetched by either colour.

    Args:
        row: The row as a tuple (``row_factory=tuple_row``).

    Raises:
        ServerUnsupported, SchemaMissing, SchemaForeign, SchemaOutdated, SchemaNewer: Why this
            version cannot work there.
    """
    assert row is not None, "SCHEMA_QUERY returns one row"
    found, ours = read_installed(row), own_assets().stamp
    check_ground(found)
    if not found.has_schema:
        raise SchemaMissing(f"database {found.database} has no schema pgflow: run `pgflow migrate`")
    standing = compare_stamp(found.comment)
    if standing is Standing.BREAKING:
        raise SchemaNewer(
            f"{place_of(found)} was written by {found.stamp}, with which {ours} cannot work: "
            f"upgrade {DISTRIBUTION}"
        )
    if standing is Standing.OLDER:
        theirs = found.stamp
        is_copy = theirs is not None and theirs.age == ours.age
        raise SchemaOutdated(
            f"{place_of(found)} was written by {theirs or 'an unknown version'}, this is {ours}"
            + (", another copy of the same version" if is_copy else "")
            + ": run `pgflow migrate`"
        )


class Standing(StrEnum):
    """Relation of the schema in a database to this version."""

    SAME = "same"
    NEWER = "newer"
    """This version goes on beside it, as a rolling upgrade needs."""
    BREAKING = "breaking"
    """A migration of it says that this version cannot."""
    OLDER = "older"


def compare_stamp(comment: str | None) -> Standing:
    """Compare the schema, by its comment, with this version.

    Args:
        comment: The comment of the schema `pgflow`; None without a comment or a schema.
    """
    theirs, ours = Stamp.parse(comment), own_assets().stamp
    if theirs is None:
        return Standing.OLDER
    if theirs.breaking > ours.schema:
        return Standing.BREAKING
    if theirs.files == ours.files:
        return Standing.SAME
    return Standing.NEWER if theirs.age > ours.age else Standing.OLDER


def read_installed(row: Sequence[Any]) -> Installed:
    """The row as what it says. Where the connection's encoding
    is SQL_ASCII its texts come as bytes.
    """
    texts: list[Any] = [
        value.decode("utf-8", "replace") if isinstance(value, bytes) else value for value in row
    ]
    return Installed(*texts)


def fetch_row(cursor: psycopg.Cursor[tuple[Any, ...]]) -> tuple[Any, ...] | None:
    """The row for :class:`Installed`."""
    return cursor.execute(SCHEMA_QUERY).fetchone()


def place_of(found: Installed) -> str:
    """As error messages name it."""
    return f"the schema pgflow in database {found.database}"


def check_ground(found: Installed) -> None:
    """Raise if neither work nor an upgrade is possible."""
    if found.server_version < OLDEST_SERVER:
        raise ServerUnsupported(
            f"the server is Postgres {found.server_version // 10000}: pgflow needs 15 or newer"
        )
    if found.encoding != "UTF8":
        raise ServerUnsupported(
            f"database {found.database} has the encoding {found.encoding}, which cannot store "
            "every text: pgflow needs UTF8. "
            "Make a database with: create database NAME encoding 'UTF8' template template0"
        )
    if found.has_schema and not found.is_ours:
        raise SchemaForeign(
            f"{place_of(found)} is not of {DISTRIBUTION}: rename or drop it, "
            "or use another database"
        )
    if found.is_owner_superuser:
        raise SetupError(
            f"{place_of(found)} belongs to the superuser {found.owner}, and its functions would "
            f"run with all rights: alter role {found.owner} nosuperuser, or restore the dump "
            f"again, with its owners and after the role {OWNER_ROLE}"
        )
