"""Copies of the database with the schema, each of which serves one test after another.

To make, audit and drop a database costs as much as the test that it is for. Most tests leave nothing
but rows, so their copy is emptied and serves again; one whose catalog, settings or sessions are no
longer those of the template is dropped. The connection that audits a copy stays open, since the first
audit of a session plans everything. Another one empties it: a session that leaves out triggers forgets
all its plans.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import psycopg
import servers
from psycopg import sql
from recycled import APPLICATION, Recycled

MOST_USES = 40
"""Tests that one copy serves: emptied tables and their indexes keep their size."""

MOST_BYTES = 4 << 20
"""Size of its tables from which a copy is not used again."""

_CLOCK = "'pgflow.now_()'::regprocedure"
"""A function that many tests replace, and that is put back: the rest of its catalog tells of the
others."""

_CATALOGS = """
select relname from pg_catalog.pg_class where relnamespace = 'pg_catalog'::regnamespace and relkind = 'r' and not relisshared
  and relname not in ('pg_statistic', 'pg_statistic_ext_data', 'pg_largeobject', 'pg_depend') order by 1
"""
"""All that say how a database is built: they tell that a test changed more than rows. What has a
row in `pg_depend`, which is long, has one elsewhere as well."""

_FIRST_OID = 16384
"""Oid from which objects are not the server's own."""

_CONDITIONS = {
    "pg_proc": f"oid <> {_CLOCK}",
    "pg_namespace": "nspname !~ '^pg_(toast_)?temp_'",
    "pg_attribute": f"attrelid >= {_FIRST_OID}",
    "pg_description": f"objoid >= {_FIRST_OID}",
}


def _shape(conn: psycopg.Connection[Any]) -> str:
    """Return an expression of the shape of a database: it changes with each statement that changes
    the catalog, but for one that only replaces the clock, or makes a schema of temporary tables.
    """
    parts = [
        f"(select concat(count(*), '/', max(xmin::text::bigint)) from pg_catalog.{name}"
        f" where {_CONDITIONS.get(name, 'true')})"
        for (name,) in conn.execute(_CATALOGS)
    ]
    parts += [
        f"(select concat(proowner, proacl) from pg_catalog.pg_proc where oid = {_CLOCK})",
        # Its settings and privileges; a name of its own, which nothing else of the cluster has.
        "(select xmin from pg_catalog.pg_database where datname = current_database())",
        """(select count(*) from pg_catalog.pg_db_role_setting s join pg_catalog.pg_database d on d.oid = s.setdatabase
          where d.datname = current_database())""",
    ]
    return f"concat_ws(' ', {', '.join(parts)})"


_LOOK = f"""
select {{shape}} as shape, (select xmin::text from pg_catalog.pg_proc where oid = {_CLOCK}) as clock,
  (select count(*) from pg_catalog.pg_stat_activity where datname = current_database()
    and application_name <> '{APPLICATION}' and backend_type in ('client backend', 'walsender', 'logical replication worker')) as sessions,
  (select count(*) from pg_catalog.pg_prepared_xacts where database = current_database()) as prepared,
  coalesce((select array_agg(c.oid::regclass::text) from pg_catalog.pg_class c where c.relnamespace = 'pgflow'::regnamespace
    and c.relkind = 'r' and pg_relation_size(c.oid) > 0), array[]::text[]) as written,
  coalesce((select sum(pg_relation_size(c.oid)) from pg_catalog.pg_class c where c.relnamespace = 'pgflow'::regnamespace
    and c.relkind = 'r'), 0)::bigint as bytes,
  coalesce((select jsonb_object_agg(s.seqrelid::regclass::text, pg_sequence_last_value(s.seqrelid)) from pg_catalog.pg_sequence s),
    jsonb_build_object()) as sequences
"""


@dataclasses.dataclass
class Copy:
    """One copy, and the connections that look after it."""

    name: str
    dsn: str
    keeper: psycopg.Connection[Any]
    """It audits and replays."""
    cleaner: psycopg.Connection[Any]
    """It empties the copy after a test."""
    shape: str
    clock: str
    """Version of the function that is its clock."""
    sound: str = ""
    """The transactions of the server that had ended when its books were known to balance."""
    uses: int = 0
    is_audited: bool = False
    """Since it was handed out."""


class Copies:
    """The copies of one template on one server.

    Args:
        server: DSN of a superuser.
        template: A database with the schema, with which nobody is connected.
    """

    def __init__(self, server: str, template: str) -> None:
        self._server, self._template = server, template
        self._idle: list[Copy] = []
        self._out: dict[str, Copy] = {}
        self._lent: set[str] = set()
        self.recycled = Recycled(server, self._lent.__contains__)
        self._given: dict[str, sql.Composable] = {}
        self._sequences: dict[str, int | None] = {}
        with psycopg.connect(servers.dsn_of(server, template), autocommit=True) as conn:
            self._look_at = _LOOK.format(shape=_shape(conn))
            look = self._look(conn)
            self._sequences = look["sequences"]
            self._clock = conn.execute(f"select pg_get_functiondef({_CLOCK})").fetchone()[0]  # type: ignore[arg-type, index]
            for table in look["written"]:
                self._given[table] = _rows_of(conn, table)

    def __contains__(self, dsn: str) -> bool:
        return dsn in self._out

    def take(self) -> str:
        """Hand out the DSN of a copy in which nobody has written."""
        copy = self._idle.pop() if self._idle else self._make()
        copy.uses += 1
        copy.sound, copy.is_audited = servers.ended_transactions(copy.keeper), False
        self._out[copy.dsn] = copy
        self._lent.add(copy.name)
        return copy.dsn

    def audit(self, dsn: str) -> list[str]:
        """Return the complaints of the engine's own audit on a copy; nothing is asked where nobody
        has written since the last time.
        """
        copy = self._out[dsn]
        ended = servers.ended_transactions(self.keeper(dsn))
        if ended == copy.sound:
            return []
        found = servers.complaints(copy.keeper)
        copy.is_audited = True
        copy.sound = "" if found else ended
        return found

    def keeper(self, dsn: str) -> psycopg.Connection[Any]:
        """The connection that looks after a copy, which has planned what every test asks."""
        copy = self._out[dsn]
        try:
            copy.keeper.execute("select")
        except psycopg.OperationalError:  # the test ended every session of its database
            copy.keeper = _keep(servers.dsn_of(self._server, copy.name))
        return copy.keeper

    def give_back(self, dsn: str) -> None:
        """Keep the copy for another test, as it was, if that can be; else drop it."""
        copy = self._out.pop(dsn)
        self._lent.discard(copy.name)
        try:
            may_stay = copy.uses < MOST_USES and self._restore(copy)
        except psycopg.Error:
            may_stay = False
        if may_stay:
            self._idle.append(copy)
        else:
            self._drop(copy)

    def close(self) -> None:
        """Drop all of them."""
        for copy in [*self._idle, *self._out.values()]:
            self._drop(copy)

    def _make(self) -> Copy:
        name = servers.create_database(self._server, self._template)
        dsn = servers.dsn_of(self._server, name)
        keeper = _keep(dsn)
        cleaner = _keep(dsn)
        look = self._look(cleaner)
        lent = servers.as_role(dsn, "owner")
        return Copy(name, lent, keeper, cleaner, look["shape"], look["clock"])

    def _drop(self, copy: Copy) -> None:
        self.recycled.drop(copy.name)
        copy.keeper.close()
        copy.cleaner.close()
        servers.drop_database(self._server, copy.name)

    def _look(self, conn: psycopg.Connection[Any]) -> dict[str, Any]:
        with conn.cursor(row_factory=psycopg.rows.dict_row) as cursor:
            return cursor.execute(self._look_at, prepare=True).fetchone()  # type: ignore[arg-type, return-value]

    def _restore(self, copy: Copy) -> bool:
        """Empty what was written; False if it is not enough."""
        if not copy.is_audited and servers.ended_transactions(copy.keeper) == copy.sound:
            return True
        look = self._look(copy.cleaner)
        if (look["shape"], look["sessions"], look["prepared"]) != (copy.shape, 0, 0):
            return False
        if look["bytes"] > MOST_BYTES:
            return False
        statements = [sql.SQL("set local session_replication_role = replica")]
        statements += self._emptied(look["written"])
        statements += self._rewound(look["sequences"])
        is_reset = look["clock"] != copy.clock
        statements += [sql.SQL(self._clock)] if is_reset else []
        with copy.cleaner.transaction():
            copy.cleaner.execute(sql.SQL("; ").join(statements))
        if is_reset:
            copy.clock = self._look(copy.cleaner)["clock"]
        return True

    def _emptied(self, written: list[str]) -> Iterator[sql.Composable]:
        for table in written:
            yield sql.SQL("delete from only " + table)  # type: ignore[arg-type]
            if table in self._given:
                yield self._given[table]

    def _rewound(self, sequences: dict[str, int | None]) -> Iterator[sql.Composable]:
        for name, last in sequences.items():
            first = self._sequences[name]
            if last != first:
                yield sql.SQL("select setval({}, {}, {})").format(
                    sql.Literal(name), sql.Literal(first or 1), sql.Literal(first is not None)
                )


def _keep(dsn: str) -> psycopg.Connection[Any]:
    return psycopg.connect(dsn, autocommit=True, application_name=APPLICATION)


def _rows_of(conn: psycopg.Connection[Any], table: str) -> sql.Composable:
    """A statement that inserts the rows which a table has in the template."""
    columns = conn.execute(
        "select string_agg(quote_ident(attname), ', ' order by attnum) from pg_attribute "
        "where attrelid = %s::regclass and attnum > 0 and not attisdropped and attgenerated = ''",
        (table,),
    ).fetchone()[0]  # type: ignore[index]
    rows = conn.execute(f"select jsonb_agg(to_jsonb(t)) from only {table} t").fetchone()[0]  # type: ignore[index, arg-type]
    return sql.SQL(
        f"insert into {table} ({columns}) overriding system value "  # type: ignore[arg-type]
        f"select {columns} from jsonb_populate_recordset(null::{table}, {{}}::jsonb)"
    ).format(sql.Literal(psycopg.types.json.Jsonb(rows)))
