"""Sheets: the answer to a statement that somebody has written, read as an auditor who only reads.

Several walls stand one behind the other, since whoever writes the statement may mean ill. Its text
is read here first. It is one select with no comment, no text with escapes and no call of a function
that is not on a list: none of those could change the role, wait, or read a file. The server gets it
as a part of a statement of ours that has a parameter, and so takes no second one. The transaction
is read only, has the role ``pgflow_auditor``, and ends soon. Whatever that role may not read stays
unread.

Values come as their texts, as they are stored: what is encoded stays encoded, and what was redacted
is gone.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import LiteralString

import psycopg
from psycopg.sql import Literal

from pgflow._db.connect import ConnectOptions, connect_async
from pgflow._db.query import Query
from pgflow.errors import InvalidArgument, NotAllowed, SetupError

MOST_ROWS = 200
MOST_CHARS = 2_000
"""Characters of a value that are read."""
MOST_SECONDS = 5.0
MOST_STATEMENT_CHARS = 20_000

FUNCTIONS = frozenset({
    "abs", "age", "array_agg", "array_length", "array_position", "array_remove",
    "array_to_string", "avg", "bool_and", "bool_or", "cardinality", "ceil", "clock_timestamp",
    "coalesce", "concat", "concat_ws", "count", "current_database", "current_setting",
    "date_part", "date_trunc", "dense_rank", "extract", "first_value", "floor", "format",
    "greatest", "has_function_privilege", "has_table_privilege", "json_agg",
    "json_array_elements", "json_array_length", "json_build_object", "json_each",
    "json_each_text", "json_strip_nulls", "json_typeof", "jsonb_agg", "jsonb_array_elements",
    "jsonb_array_elements_text", "jsonb_array_length", "jsonb_build_object", "jsonb_each",
    "jsonb_each_text", "jsonb_strip_nulls", "jsonb_typeof", "lag", "last_value", "lead",
    "least", "left", "length", "lower", "make_interval", "max", "min", "mode", "now", "nullif",
    "num_nonnulls", "percentile_cont", "percentile_disc", "pg_backend_pid", "pg_database_size",
    "pg_has_role", "pg_is_in_recovery", "pg_size_pretty", "pg_total_relation_size", "rank",
    "regexp_replace", "replace", "right", "round", "row_number", "row_to_json", "split_part",
    "starts_with", "string_agg", "string_to_array", "substr", "substring", "sum", "to_char",
    "to_jsonb", "to_regclass", "to_regnamespace", "to_timestamp", "trim", "unnest", "upper",
})  # fmt: skip
"""Functions that a statement may call, beside those of the schema, which the role decides about."""
WORDS = frozenset({
    "all", "and", "any", "array", "as", "between", "by", "case", "cast", "char", "cross", "cube",
    "distinct", "else", "end", "except", "exists", "filter", "from", "group", "grouping", "having",
    "ilike", "in", "intersect", "interval", "is", "join", "lateral", "like", "limit",
    "materialized", "not", "numeric", "offset", "on", "or", "over", "partition", "recursive",
    "rollup", "select", "sets", "some", "then", "timestamp", "timestamptz", "union", "using",
    "values", "varchar", "when", "where", "with", "within",
})  # fmt: skip
"""Words and types of the language that may stand before a parenthesis."""
OURS = "pgflow"

EXAMPLES = (
    "select workflow, status, count(*) from pgflow.runs group by workflow, status order by 3 desc",
    "select key, reason, since from pgflow.runs where status = 'stuck' order by since limit 20",
    "select step, count(*), max(attempts) from pgflow.steps where status = 'failed' group by step",
)
"""Statements to begin with."""

_PART = re.compile(
    r"""(?P<space>\s+) | (?P<text>'(?:[^']|'')*') | (?P<quoted>"(?:[^"]|"")*")
    | (?P<word>[A-Za-z_][A-Za-z0-9_]*) | (?P<number>[0-9][0-9.]*) | (?P<sign>.)""",
    re.VERBOSE | re.DOTALL,
)
_FORBIDDEN = (
    ("--", "a comment"), ("/*", "a comment"), ("$", "a dollar sign"),
    ("\0", "a character that Postgres cannot store"),
)  # fmt: skip

_BEGIN: LiteralString = "begin transaction read only"
_LIMITS: LiteralString = """
select set_config('search_path', 'pg_catalog, pgflow', true),
  set_config('statement_timeout', %s, true), set_config('lock_timeout', '1s', true),
  set_config('max_parallel_workers_per_gather', '0', true), set_config('jit', 'off', true),
  set_config('standard_conforming_strings', 'on', true)
"""
_ROLE: LiteralString = "set local role pgflow_auditor"
_HEAD: LiteralString = """
select array(select e.key from json_each_text(s.line) e),
  array(select left(e.value, %s) from json_each_text(s.line) e)
from (select row_to_json(q) as line from (
"""
_TAIL: LiteralString = "\n) q limit %s) s"


@dataclass(frozen=True)
class Sheet:
    """The answer to a statement.

    Attributes:
        columns: Names of the columns; empty if there is no row.
        rows: Texts of the values of each row; None for null.
        has_more: True if there are more rows than these.
        seconds: Time that it took.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str | None, ...], ...]
    has_more: bool
    seconds: float


def check_statement(text: str) -> None:
    """Refuse whatever is not one select that only reads.

    Raises:
        InvalidArgument: It is something else, or calls a function that is not on the list.
    """
    if not text.strip() or len(text) > MOST_STATEMENT_CHARS:
        raise InvalidArgument(f"a statement has 1 to {MOST_STATEMENT_CHARS:,} characters")
    for sign, what in _FORBIDDEN:
        if sign in text:
            raise InvalidArgument(f"this statement has {what} ({sign!r}): write it without")
    first = re.match(r"[\s(]*(\w*)", text)
    if first is None or first[1].lower() not in ("select", "with", "values", "table"):
        raise InvalidArgument("a statement begins with select, with, values or table")
    depth, before = 0, ["", "", ""]
    for kind, part in _parts(text):
        _check_part(kind, part, before)
        depth += {"(": 1, ")": -1}.get(part, 0)
        if depth < 0:
            break
        before = [*before[1:], part]
    if depth:
        raise InvalidArgument("a parenthesis of this statement has no other end")


def _parts(text: str) -> Iterator[tuple[str, str]]:
    """Yield kind and text of each part of a statement, without the space between them."""
    for found in _PART.finditer(text):
        if found.lastgroup is not None and found.lastgroup != "space":
            yield found.lastgroup, found.group()


def _check_part(kind: str, part: str, before: list[str]) -> None:
    """Refuse a part that means more than it seems to; ``before`` are the three before it."""
    if part == ";":
        raise InvalidArgument("one statement at a time: this one has a semicolon")
    if part in ("'", '"'):
        raise InvalidArgument("a quotation mark of this statement has no other end")
    if part == "\\":
        raise InvalidArgument("this statement has a backslash that is in no text")
    if kind == "text" and before[-1].lower() in ("e", "u", "b", "x", "n", "&"):
        raise InvalidArgument("write texts as 'text', without a letter before them")
    if kind == "quoted" and before[-1] == "&":
        raise InvalidArgument("write names without escapes")
    if part == "(":
        _check_call(before)


def _check_call(before: list[str]) -> None:
    """Refuse a call of a function that is not on the list; ``before`` are the three parts before
    its parenthesis.
    """
    name = before[-1]
    is_quoted = name.startswith('"')
    if not is_quoted and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        return
    if before[-2] == "." and before[-3].lower() == OURS and not is_quoted:
        return
    plain = name.lower()
    is_listed = plain in FUNCTIONS and (before[-2] != "." or before[-3].lower() == "pg_catalog")
    if is_quoted or not (is_listed or (plain in WORDS and before[-2] != ".")):
        raise InvalidArgument(
            f"{name}() is not on the list of functions that a statement may call here"
        )


def shown_statement(query: Query[object]) -> str:
    """Return a statement of a reader with its parameters as literals."""
    parts = re.split(r"(?<!%)%s", str(query.sql))
    literals = [*(Literal(param).as_string(None) for param in query.params), ""]
    text = "".join(part + said for part, said in zip(parts, literals, strict=True))
    lines = text.replace("%%", "%").strip("\n").splitlines()
    indent = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
    return "\n".join(line[indent:].rstrip() for line in lines)


async def read_sheet(
    dsn: str, text: str, *, most_rows: int = MOST_ROWS, seconds: float = MOST_SECONDS
) -> Sheet:
    """Run a statement that somebody has written, as an auditor who only reads.

    Args:
        dsn: The database. Its role must be a member of ``pgflow_auditor``, or a superuser.
        text: The statement.
        most_rows: Most rows that are read.
        seconds: Time after which it is given up.

    Raises:
        InvalidArgument: It is no statement that may be run here.
        NotAllowed: The role of the connection cannot become an auditor.
        SetupError: There is no role ``pgflow_auditor``.
        psycopg.Error: The server refuses it.
    """
    check_statement(text)
    connection = await connect_async(ConnectOptions(dsn, None), "pgflow console")
    try:
        await connection.execute(_BEGIN)
        await connection.execute(_LIMITS, (f"{seconds * 1000:.0f}",))
        await _become_auditor(connection)
        # A statement of ours with a parameter: the server takes no second one behind it.
        sql = f"{_HEAD}{text.replace('%', '%%')}{_TAIL}".encode()
        began = time.perf_counter()
        async with psycopg.AsyncCursor(connection) as cursor:
            await cursor.execute(sql, (MOST_CHARS, most_rows + 1))
            found = await cursor.fetchall()
        took = time.perf_counter() - began
        await connection.execute("rollback")
    finally:
        await connection.close()
    columns = tuple(found[0][0]) if found else ()
    rows = tuple(tuple(row[1]) for row in found[:most_rows])
    return Sheet(columns, rows, len(found) > most_rows, took)


async def _become_auditor(connection: psycopg.AsyncConnection[object]) -> None:
    try:
        await connection.execute(_ROLE)
    except psycopg.errors.InsufficientPrivilege:
        raise NotAllowed(
            "the role of this console's connection is no member of pgflow_auditor: "
            f"grant pgflow_auditor to {connection.info.user}"
        ) from None
    except psycopg.errors.InvalidParameterValue:
        raise SetupError(
            "there is no role pgflow_auditor: pgflow migrate prints how it is made"
        ) from None
