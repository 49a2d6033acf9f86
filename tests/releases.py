"""Records of releases: the SQL of each, and the rows of a database with a few of its runs in flight.

`tests/releases/` holds one file a release. `python -m tests.upgrades SERVER_DSN --record` writes the
one of the version at hand: do so when you release it, and never change it afterwards. What upgrades
must cope with is taken from there and not from the history, which a shallow clone or a tarball lacks.
A record installs on any server: its rows are JSON, and the tables come from its own SQL.
"""

from __future__ import annotations

import json
import lzma
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from pgflow.schema import Assets, SqlFile, install

RELEASES = Path(__file__).with_name("releases")
SUFFIX = ".json.xz"

INSTALLED = ("pgflow.migration", "pgflow.source", "pgflow.unit_kind")
"""Tables that an installation fills: no record has their rows."""

APPLICATION = """
create schema app;
create table app.booked (key text, n int);
create table app.told (key text, n int, idempotency_key text);
create table app.was_held (run_id bigint, reason text);
grant usage on schema app to public;
grant all on all tables in schema app to public;
create function app.note_held() returns trigger language plpgsql as
  'begin insert into app.was_held values (new.run_id, new.reason); return null; end';
create trigger note_held after insert on pgflow.held for each row execute function app.note_held();
"""

TABLES = """
select n.nspname || '.' || c.relname from pg_class c join pg_namespace n on n.oid = c.relnamespace
where n.nspname in ('pgflow', 'app') and c.relkind in ('r', 'p') and not c.relispartition
  and c.oid <> all (%s::regclass[])
order by 1
"""

SEQUENCES = """
select format('%I.%I', s.schemaname, s.sequencename), s.last_value from pg_sequences s
where s.schemaname = 'pgflow' and s.last_value is not null order by 1
"""


@dataclass(frozen=True)
class Record:
    """A database of one version.

    Attributes:
        assets: Its SQL.
        rows: Rows of each table as texts of JSON.
        sequences: The last value of each.
    """

    assets: Assets
    rows: dict[str, list[str]]
    sequences: dict[str, int]

    @property
    def name(self) -> str:
        """Its version."""
        return self.assets.version


def take(conn: psycopg.Connection[Any], assets: Assets) -> Record:
    """Record a database in which these files were installed."""
    rows = {}
    for (table,) in conn.execute(TABLES, (list(INSTALLED),)).fetchall():
        query = sql.SQL("select row_to_json(t)::text from {} t").format(_table(table))
        if found := [text for (text,) in conn.execute(query)]:
            rows[table] = found
    return Record(assets, rows, dict(conn.execute(SEQUENCES).fetchall()))


def restore(conn: psycopg.Connection[Any], record: Record) -> None:
    """Make the recorded database out of an empty one."""
    install(conn, record.assets)
    conn.execute(APPLICATION)
    with conn.transaction():
        conn.execute("set local session_replication_role = replica")
        for table, rows in record.rows.items():
            name = _table(table)
            conn.execute(sql.SQL("delete from {}").format(name))
            conn.execute(
                sql.SQL(
                    "insert into {name} overriding system value select "
                    "(json_populate_record(null::{name}, one::json)).* from unnest(%s::text[]) one"
                ).format(name=name),
                (rows,),
            )
        for sequence, value in record.sequences.items():
            conn.execute("select setval(%s::regclass, %s)", (sequence, value))


def _table(name: str) -> sql.Identifier:
    return sql.Identifier(*name.split("."))


def write(record: Record, folder: Path = RELEASES) -> Path:
    """Write the file of a record."""
    files = {
        kind: [[file.name, file.text] for file in getattr(record.assets, kind)]
        for kind in ("migrations", "sources")
    }
    text = json.dumps({**files, "rows": record.rows, "sequences": record.sequences})
    folder.mkdir(exist_ok=True)
    path = folder / f"{record.name}{SUFFIX}"
    path.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))
    return path


def read(path: Path) -> Record:
    """Read the file of a record."""
    said = json.loads(lzma.decompress(path.read_bytes()))
    migrations, sources = (
        tuple(SqlFile(name, text) for name, text in said[kind])
        for kind in ("migrations", "sources")
    )
    assets = Assets(path.name.removesuffix(SUFFIX), migrations, sources)
    return Record(assets, said["rows"], said["sequences"])


def recorded() -> list[Path]:
    """Files of the releases, oldest first."""
    return sorted(
        RELEASES.glob(f"*{SUFFIX}"),
        key=lambda path: [int(n) for n in path.name.removesuffix(SUFFIX).split(".") if n.isdigit()],
    )


def changed_migrations(record: Record, ours: Assets) -> list[str]:
    """Migrations of a release that are not there as it has them: databases have applied them, and
    `migrate` refuses a schema whose migration has another text.
    """
    found = {file.name: file.sha256 for file in ours.migrations}
    return [
        f"{file.name} is of release {record.name}: add a new migration instead of changing it"
        for file in record.assets.migrations
        if found.get(file.name) != file.sha256
    ]
