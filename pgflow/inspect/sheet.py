"""Sheets: results of ad-hoc statements, read with an auditor's login.

A statement may be hostile, so its rights come from a role, not from parsing. The connection *is* an
auditor: its login has the rights of ``pgflow_auditor`` and cannot take on any other role. A
superuser, or a member of any further role, is refused before the statement is sent.

Every login may call functions that are open to PUBLIC, so the server resolves the statement before
any of it runs: it is created as a temporary view, which stores a tree of the resolved names. A
statement that refers to anything outside pgflow and Postgres is refused, and so is one with a
Postgres function that does more than read. Then the transaction becomes read only, and the view is
read. It ends with the transaction.

One thing does run while a statement is resolved: the input function of a type, for a literal of
that type, which for an application's type may be the application's code. So a text that names
another schema is not even sent, and the search path has none.
"""

from __future__ import annotations

import itertools
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, LiteralString

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import ExecStatus
from psycopg.sql import Literal

from pgflow._db.connect import PATIENCE_SECONDS, Connection, ConnectOptions, connect
from pgflow._db.dsn import resolve_dsn
from pgflow._db.query import Query
from pgflow.errors import InvalidArgument, NotAllowed, SetupError

MOST_ROWS = 200
MOST_CHARS = 2_000
"""Characters of a value that are read."""
MOST_SECONDS = 5.0
MOST_STATEMENT_CHARS = 20_000

AUDITOR = "pgflow_auditor"
VARIABLE = "PGFLOW_AUDITOR_DSN"

EXAMPLES = (
    "select workflow, status, count(*) from pgflow.runs group by workflow, status order by 3 desc",
    "select key, reason, since from pgflow.runs where status = 'stuck' order by since limit 20",
    "select step, count(*), max(attempts) from pgflow.steps where status = 'failed' group by step",
)
"""Statements to begin with."""

_BEGIN: LiteralString = "begin isolation level read committed read write"
_LIMITS: LiteralString = """
select set_config('search_path', 'pg_catalog, pgflow', true),
  set_config('statement_timeout', %s, true), set_config('lock_timeout', '1s', true),
  set_config('max_parallel_workers_per_gather', '0', true), set_config('jit', 'off', true),
  set_config('standard_conforming_strings', 'on', true)
"""

_LOGIN: LiteralString = """
with recursive reach (oid) as (
  select r.oid from pg_catalog.pg_roles r where r.rolname = session_user
  union
  select m.roleid from reach join pg_catalog.pg_auth_members m on m.member = reach.oid
)
select session_user::text, exists (select from pg_catalog.pg_roles where rolname = 'pgflow_auditor'),
  coalesce(bool_or(r.rolname = 'pgflow_auditor'), false),
  array_agg(r.rolname::text order by r.rolname) filter (where r.rolname not in (session_user, 'pgflow_auditor')),
  bool_or(r.rolsuper), bool_or(r.rolcreaterole or r.rolcreatedb or r.rolreplication or r.rolbypassrls)
from reach join pg_catalog.pg_roles r using (oid)
"""  # noqa: E501
"""The login of a session, and every role that it is or could become."""

_OTHER_SCHEMAS: LiteralString = """
select nspname::text from pg_catalog.pg_namespace
where nspname = any (%s::text[]::name[]) and nspname not in ('pgflow', 'pg_catalog')
order by 1 limit 1
"""

_VIEW = sql.Identifier("pg_temp", "pgflow_sheet")
_HEAD: LiteralString = "select * from (\n"
_TAIL: LiteralString = "\n) q"

_JUDGE: LiteralString = """
with kept as (
  select r.oid, r.ev_action::text as tree from pg_catalog.pg_rewrite r
  where r.ev_class = 'pg_temp.pgflow_sheet'::regclass
), named as (
  select d.refclassid, d.refobjid, d.refobjsubid from kept
  join pg_catalog.pg_depend d on d.classid = 'pg_rewrite'::regclass and d.objid = kept.oid
  where d.refobjid <> 'pg_temp.pgflow_sheet'::regclass
), called as (
  select distinct found[1]::oid as oid
  from kept, regexp_matches(kept.tree, ':(?:funcid|opfuncid|aggfnoid|winfnoid|tsmhandler) (\\d+)', 'g') as found
)
select pg_catalog.pg_describe_object(n.refclassid, n.refobjid, 0)
  || ' is neither of pgflow nor of Postgres'
from named n, pg_catalog.pg_identify_object(n.refclassid, n.refobjid, 0) as o
where o.schema is distinct from 'pgflow'
  and not (o.type = 'schema' and o.identity = 'pgflow')
  and not (o.schema = 'pg_catalog' and n.refobjid < 16384)
union all
select p.oid::regprocedure || ' is none of the functions that only read'
from called join pg_catalog.pg_proc p using (oid)
where p.pronamespace = 'pg_catalog'::regnamespace
  and (p.provolatile = 'v' and p.proname <> all (%s)
    or p.proname ~ %s
    or p.proargtypes::oid[] && '{cstring,internal}'::regtype[]::oid[])
union all
select p.oid::regprocedure || ' is neither of pgflow nor of Postgres'
from called join pg_catalog.pg_proc p using (oid)
where p.pronamespace <> all (array['pgflow'::regnamespace, 'pg_catalog'::regnamespace])
  or p.pronamespace = 'pg_catalog'::regnamespace and p.oid >= 16384
union all
select 'a column of type anyarray, whose values may be of a type of the application'
from kept
where case when kept.tree ~ ':varattno 0 :vartype 2249\\M' then kept.tree
    else regexp_replace(kept.tree, ':joinaliasvars .*? :joinleftcols', '', 'g') end ~ ':vartype 2277\\M'
  or exists (
    select from regexp_matches(kept.tree, ':varattno 0 :vartype (\\d+)', 'g') as found
    join pg_catalog.pg_type t on t.oid = found[1]::oid
    join pg_catalog.pg_attribute a on a.attrelid = t.typrelid and a.atttypid = 2277)
limit 1
"""  # noqa: E501
"""Things that a resolved statement must not refer to. Objects below 16384 were made by initdb.

A value of the type anyarray (2277) has a type of its own, which only the value names, and a cast of
that type to json is the application's code. Each column of a join is listed in the tree whether it
is read or not; only a whole row of one, a record (2249), reads them all.
"""

_READERS = [
    "clock_timestamp", "gen_random_uuid", "pg_database_size", "pg_indexes_size",
    "pg_is_in_recovery", "pg_relation_size", "pg_table_size", "pg_total_relation_size", "random",
    "timeofday",
]  # fmt: skip
"""Functions of Postgres that are volatile and still change nothing."""
_BY_TEXT = r"^((query|cursor|table|schema|database)_to_xml|pg_input_|satisfies_hash_partition$)"
"""Functions of Postgres that run a statement, read a relation or make a value of a type that they
are given by name or number, or run a function of it, which the check of the tree does not see.
"""

_PART = re.compile(
    r"""(?P<space>\s+ | --[^\r\n]*) | (?P<opened>/\*) | (?P<text>'(?:[^']|'')*')
    | (?P<quoted>"(?:[^"]|"")*") | (?P<word>[A-Za-z_][A-Za-z0-9_]*) | (?P<sign>.)""",
    re.VERBOSE | re.DOTALL,
)
_COMMENT_SIGN = re.compile(r"/\*|\*/")


@dataclass(frozen=True)
class Sheet:
    """The answer to a statement.

    Attributes:
        columns: Names of the columns.
        rows: Values of each row; None for null.
        has_more: True if there are more rows than these.
        seconds: Time that it took.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    has_more: bool
    seconds: float


def read_sheet(
    dsn: str,
    text: str,
    *,
    auditor_dsn: str | None = None,
    most_rows: int | None = MOST_ROWS,
    most_chars: int | None = MOST_CHARS,
    seconds: float = MOST_SECONDS,
) -> Sheet:
    """Run an ad-hoc statement with an auditor's login.

    Args:
        dsn: The database. Its login is used if it has only an auditor's rights, else the login
            ``pgflow_auditor`` on the same server, if that connects.
        text: The statement: one select.
        auditor_dsn: The same database by an auditor's login; see :func:`find_auditor_dsn`.
        most_rows: Maximum rows to read; None for all.
        most_chars: Maximum characters of a value, as text; None for the values themselves.
        seconds: Timeout of the statement.

    Raises:
        InvalidArgument: The statement is not allowed here, or the server rejects it.
        NotAllowed: The login may do more than an auditor, or none exists.
        SetupError: The server cannot resolve statements: it is a standby, or the login may not
            create temporary views.
        psycopg.errors.QueryCanceled: The statement timed out.
    """
    cleaned, names = read_text(text)
    with _connect_auditor(dsn, auditor_dsn) as connection:
        try:
            return _ask(connection, cleaned, names, most_rows, most_chars, seconds)
        except psycopg.errors.QueryCanceled:
            raise
        except psycopg.Error as error:
            if (error.sqlstate or "")[:2] not in _REFUSALS:
                raise
            raise InvalidArgument(_refusal(error)) from error


_REFUSALS = ("0A", "21", "22", "25", "2B", "3F", "42", "54", "XX")
"""Classes of errors that are about a statement."""


def _refusal(error: psycopg.Error) -> str:
    hint = f". {error.diag.message_hint}" if error.diag.message_hint else ""
    return f"{error.diag.message_primary}{_near(error)}{hint}"


def _near(error: psycopg.Error) -> str:
    """Return the place of an error: the server draws a line of the statement, and a mark below."""
    drawn = re.search(r"^LINE \d+: (.*)\n( *)\^", str(error), re.MULTILINE)
    if drawn is None:
        return ""
    start = len(drawn[2]) - (drawn.start(1) - drawn.start())
    return f" (at: {' '.join(drawn[1][max(start, 0) :].split())[:30]})"


# ---------------------------------------------------------------- the text


def read_text(text: str) -> tuple[str, set[str]]:
    """Return a statement without its comments, and the names in it that precede a dot.

    Only unambiguous text passes: outside of quotation marks only ASCII, no strings with escapes,
    and no dollar sign.

    Raises:
        InvalidArgument: The text is not a single select, or is ambiguous.
    """
    if not text.strip() or len(text) > MOST_STATEMENT_CHARS:
        raise InvalidArgument(f"a statement has 1 to {MOST_STATEMENT_CHARS:,} characters")
    if "\0" in text:
        raise InvalidArgument("this statement has a character that Postgres cannot store")
    parts = list(_parts(text))
    while parts and parts[-1][1] in (" ", ";"):
        parts.pop()
    names: set[str] = set()
    solid = [part for part in parts if part[1] != " "]
    for number, (kind, part) in enumerate(parts):
        _check_part(kind, part, parts[number - 1] if number else ("", " "))
    for (kind, part), (_, after) in itertools.pairwise(solid):
        if after == "." and kind == "word":
            names.add(part.lower())
        elif after == "." and kind == "quoted":
            names.add(part[1:-1].replace('""', '"'))
    first = next((part.lower() for _, part in solid if part != "("), "")
    if first not in ("select", "with", "values", "table"):
        raise InvalidArgument(
            "a statement begins with select, with, values or table: psql does the rest"
        )
    return "".join(part for _, part in parts), names


def _parts(text: str) -> Iterator[tuple[str, str]]:
    """Yield kind and text of each part of a statement; space and comments as one space."""
    at = 0
    while at < len(text):
        found = _PART.match(text, at)
        assert found is not None
        kind, part, at = str(found.lastgroup), found.group(), found.end()
        if kind == "opened":
            at = _end_of_comment(text, at)
        yield (kind, part) if kind not in ("opened", "space") else ("space", " ")


def _end_of_comment(text: str, at: int) -> int:
    """Return the place behind a comment, in which others may be."""
    depth = 1
    for sign in _COMMENT_SIGN.finditer(text, at):
        depth += 1 if sign.group() == "/*" else -1
        if depth == 0:
            return sign.end()
    raise InvalidArgument("a comment of this statement has no end")


def _check_part(kind: str, part: str, before: tuple[str, str]) -> None:
    """Refuse a part that the server may read in another way."""
    if part == ";":
        raise InvalidArgument("one statement at a time: this one has a semicolon")
    if part in ("'", '"'):
        raise InvalidArgument("a quotation mark of this statement has no other end")
    if kind == "sign" and (not part.isascii() or part in "\\$"):
        raise InvalidArgument(
            f"this statement has {part!r} outside of quotation marks: write texts as 'text' and "
            'names as "name"'
        )
    if kind == "text" and before[0] == "word":
        raise InvalidArgument("write texts as 'text', without a letter before them")
    if kind in ("text", "quoted") and before[1] == "&":
        raise InvalidArgument("write texts and names without escapes")


# ---------------------------------------------------------------- the login


def find_auditor_dsn() -> str | None:
    """Return the connection string of an auditor's login that ``PGFLOW_AUDITOR_DSN`` names.

    Raises:
        InvalidArgument: It is set and empty, or no connection string.
    """
    named = os.environ.get(VARIABLE)
    if named is not None and not named.strip():
        raise InvalidArgument(f"{VARIABLE} is set and empty: name an auditor's login, or unset it")
    return None if named is None else resolve_dsn(named)


def _connect_auditor(dsn: str, auditor_dsn: str | None) -> Connection:
    """Return a connection of an auditor in a transaction of its own."""
    if auditor_dsn is not None:
        return _begin(_open(auditor_dsn))
    connection = _open(dsn)
    try:
        return _begin(connection)
    except NotAllowed:
        try:
            connection = _open(_as_auditor(dsn))
        except psycopg.OperationalError:
            pass  # raise the error of the given login instead
        else:
            return _begin(connection)
        raise


def _open(dsn: str) -> Connection:
    return connect(ConnectOptions(dsn, None), "pgflow sql", PATIENCE_SECONDS)


def _as_auditor(dsn: str) -> str:
    """Return the same database with the login of the role itself, and no password."""
    given = {
        name: value for name, value in conninfo_to_dict(dsn).items() if name not in _OF_A_LOGIN
    }
    return make_conninfo("", **{**given, "user": AUDITOR})


_OF_A_LOGIN = ("user", "password", "sslcert", "sslkey", "sslpassword", "options")


def _begin(connection: Connection) -> Connection:
    """Begin the transaction, and check its login."""
    try:
        connection.execute(_BEGIN)
        row = connection.execute(_LOGIN).fetchone()
        assert row is not None
        _check_login(*row)
    except BaseException:
        connection.close()
        raise
    return connection


def _check_login(
    login: str, has_role: bool, is_auditor: bool, others: list[str] | None, *may: bool
) -> None:
    """Refuse a login that has more rights than an auditor."""
    is_superuser, may_make = may
    if not has_role:
        raise SetupError("role pgflow_auditor is missing: pgflow migrate prints how to create it")
    if is_superuser:
        why = f"{login} is a superuser"
    elif others:
        why = f"{login} is a member of {others[0]}"
    elif may_make:
        why = f"{login} may make roles, databases or copies, or read past row security"
    elif not is_auditor:
        why = f"{login} is not a member of pgflow_auditor"
    else:
        return
    raise NotAllowed(
        f"statements need a login with an auditor's rights only, but {why}: let an "
        "administrator run `create role pgflow_reader login password '...' in role "
        f"pgflow_auditor`, and name its connection string in {VARIABLE}"
    )


# ---------------------------------------------------------------- asking


def _ask(
    connection: Connection,
    text: str,
    names: set[str],
    most_rows: int | None,
    most_chars: int | None,
    seconds: float,
) -> Sheet:
    """Have the server resolve a statement, check the result, and read it."""
    connection.execute(_LIMITS, (f"{seconds * 1000:.0f}",))
    began = time.perf_counter()
    _refuse_schemas(connection, names)
    columns = _describe(connection, text)
    _keep(connection, text, len(columns))
    refused = connection.execute(_JUDGE, (_READERS, _BY_TEXT)).fetchone()
    if refused is not None:
        raise InvalidArgument(f"a statement may not use this: {refused[0]}")
    connection.execute("set transaction read only")
    limit = None if most_rows is None else most_rows + 1
    found = connection.execute(_reading(len(columns), most_chars, limit)).fetchall()
    took = time.perf_counter() - began
    connection.execute("rollback")
    rows = tuple(tuple(row) for row in found[:most_rows])
    return Sheet(columns, rows, len(found) > len(rows), took)


def _refuse_schemas(connection: Connection, names: set[str]) -> None:
    """Refuse a statement with a name that could be another schema."""
    row = connection.execute(_OTHER_SCHEMAS, (sorted(names),)).fetchone()
    other = row[0] if row is not None else next((n for n in names if n.startswith("pg_temp")), None)
    if other is not None:
        raise InvalidArgument(
            f"{other} is a schema, and a statement reads pgflow and pg_catalog only: psql does the "
            "rest"
        )


def _describe(connection: Connection, text: str) -> tuple[str, ...]:
    """Return the names of the columns of a statement, which the server only reads for that."""
    pgconn = connection.pgconn
    encoding = connection.info.encoding
    for answer in (
        pgconn.prepare(b"", f"{_HEAD}{text}{_TAIL}".encode()),
        pgconn.describe_prepared(b""),
    ):
        if answer.status != ExecStatus.COMMAND_OK:
            raise psycopg.errors.error_from_result(answer, encoding=encoding)
    names = [answer.fname(number) or b"" for number in range(answer.nfields)]
    if not names:
        raise InvalidArgument("a statement has at least one column")
    return tuple(name.decode() for name in names)


def _keep(connection: Connection, text: str, count: int) -> None:
    """Have the server store a resolved statement. The protocol allows only one.

    Its columns have names of ours, since two of one name make no view.
    """
    columns = sql.SQL(", ").join(sql.Identifier(f"c{number}") for number in range(count))
    made = sql.SQL("create temporary view {} ({}) as ").format(_VIEW, columns)
    try:
        with connection.cursor() as cursor:
            cursor.execute(made.as_bytes() + f"{_HEAD}{text}{_TAIL}".encode(), binary=True)
    except psycopg.errors.InsufficientPrivilege as error:
        if "temporary" not in str(error):
            raise
        info = connection.info
        raise SetupError(
            f"{info.user} may make no temporary view, by which the server says what a statement "
            f"means: grant temporary on database {info.dbname} to {info.user}"
        ) from error
    except psycopg.errors.ReadOnlySqlTransaction as error:
        raise SetupError("a standby cannot say what a statement means: name the primary") from error


def _reading(count: int, most_chars: int | None, limit: int | None) -> sql.Composed:
    """Return the statement that reads what was judged."""
    columns: list[sql.Composable] = [sql.Identifier(f"c{number}") for number in range(count)]
    if most_chars is not None:
        columns = [sql.SQL("left({}::text, {})").format(one, most_chars) for one in columns]
    return sql.SQL("select {} from {} limit {}").format(sql.SQL(", ").join(columns), _VIEW, limit)


def shown_statement(query: Query[object]) -> str:
    """Return a statement of a reader with its parameters as literals."""
    parts = re.split(r"(?<!%)%s", str(query.sql))
    literals = [*(Literal(param).as_string(None) for param in query.params), ""]
    text = "".join(part + value for part, value in zip(parts, literals, strict=True))
    lines = text.replace("%%", "%").strip("\n").splitlines()
    indent = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
    return "\n".join(line[indent:].rstrip() for line in lines)
