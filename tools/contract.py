"""The contract with other languages: the functions and views that any client of Postgres may use,
as a page of the reference and as a client in TypeScript. Both are made from the catalog.

What is listed here stays within a version: a function keeps its parameters and columns, and a view
its columns; new ones have defaults, or come last.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import psycopg

VERSION = 1
FUNCTIONS = (
    "start_run", "start_runs", "send_signal", "answer_gate", "send_update", "update_reply",
    "result", "run_status", "run_state", "cancel_run", "pause_run", "resume_run", "retry_run",
    "publish", "settle_effect", "discharge",
)  # fmt: skip
VIEWS = ("runs", "gates", "effects", "obligations", "queues", "rates")
MADE = "Made by tools/contract.py; do not edit."
PAGE = f"""<!-- {MADE} -->

# Contract with other languages

Any client of Postgres can start runs, signal them, answer their gates and read their results. These functions and views are the contract, **version {VERSION}**. Within a version, each keeps its parameters and columns. A new parameter has a default, and a new column comes last. A change that breaks this gets the next version, and the old version works until the next minor release.

[Use it from another language](../how-to/other-languages.md) has a complete program in each of three languages. Pass parameters by name, as in `start_run(workflow => ..., input => ...)`: their order is not part of the contract. An error has one of [these SQLSTATEs](errors.md), a message for people and mostly a hint. [The reference](sql.md) explains each function.
"""

ROUTINES = """
select p.proname, p.proretset, format_type(p.prorettype, null), p.pronargdefaults,
  coalesce(p.proargnames, '{}'), coalesce(p.proargmodes::text[], '{}'),
  array(select format_type(case t when 'anycompatible'::regtype then 'jsonb'::regtype else t end, null) -- any JSON
    from unnest(coalesce(p.proallargtypes, p.proargtypes)) t),
  obj_description(p.oid),
  array(select r.rolname::text from pg_roles r where r.rolname ~ '^pgflow_(client|operator|approver|speaker)$'
    and has_function_privilege(r.rolname, p.oid, 'execute') order by 1)
from pg_proc p where p.pronamespace = 'pgflow'::regnamespace and p.proname = any(%s)
"""
COLUMNS = """
select c.relname, array_agg(a.attname::text order by a.attnum),
  array_agg(format_type(a.atttypid, a.atttypmod) order by a.attnum)
from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
where c.relnamespace = 'pgflow'::regnamespace and c.relkind = 'v' and c.relname = any(%s) group by c.relname
"""
TYPES = {
    "text": "string", "uuid": "string", "bigint": "string", "numeric": "string",
    "integer": "number", "smallint": "number", "real": "number", "double precision": "number",
    "boolean": "boolean",
    "json": "Json", "jsonb": "Json", "timestamp with time zone": "Date", "void": "null",
}  # fmt: skip
"""Types in TypeScript, as node-postgres reads them."""
NEVER_NULL = (
    "run_key", "run_id", "is_new", "lane_id", "status", "update_id", "chain_id", "key", "workflow",
    "queue", "gate", "name", "effect", "kind",
)  # fmt: skip
"""Columns of results and views that always have a value."""


@dataclass(frozen=True)
class Function:
    """A function of the contract.

    Attributes:
        name: Its name.
        taken: Name, type and True if it is required, of each parameter.
        given: Name and type of each column that it returns.
        is_row: True if it returns rows with these columns, not one value.
        is_set: True if it returns many rows.
        words: Its comment.
        roles: Roles that may call it.
    """

    name: str
    taken: list[tuple[str, str, bool]]
    given: list[tuple[str, str]]
    is_row: bool
    is_set: bool
    words: str
    roles: list[str]


def read_functions(conn: psycopg.Connection[Any]) -> list[Function]:
    """Return the functions of the contract, in their order here."""
    found = {row[0]: _function(*row) for row in conn.execute(ROUTINES, (list(FUNCTIONS),))}
    return [found[name] for name in FUNCTIONS]


def _function(
    name: str, is_set: bool, result: str, defaults: int, names: list[str], modes: list[str],
    types: list[str], words: str, roles: list[str],
) -> Function:  # fmt: skip
    every = list(zip(names, types, modes or ["i"] * len(names), strict=True))
    ins = [(one, kind) for one, kind, mode in every if mode in "ib"]
    outs = [(one, kind) for one, kind, mode in every if mode in "obt"]
    taken = [(one, kind, n < len(ins) - defaults) for n, (one, kind) in enumerate(ins)]
    return Function(name, taken, outs or [(name, result)], bool(outs), is_set, words, roles)


def read_views(conn: psycopg.Connection[Any]) -> dict[str, list[tuple[str, str]]]:
    """Return the columns of each view of the contract, with their types."""
    found = {
        name: list(zip(columns, types, strict=True))
        for name, columns, types in conn.execute(COLUMNS, (list(VIEWS),))
    }
    return {name: found[name] for name in VIEWS}


# ---------------------------------------------------------------- the page


def contract_page(conn: psycopg.Connection[Any]) -> str:
    """Return the page of the contract."""
    said = [PAGE, "## Functions\n"]
    for one in read_functions(conn):
        rows = "\n".join(
            f"| `{name}` | {kind} | {'required' if needed else ''} |"
            for name, kind, needed in one.taken
        )
        given = ", ".join(f"`{name}` {kind}" for name, kind in one.given)
        roles = ", ".join(f"`{role}`" for role in one.roles)
        said.append(
            f"### `{one.name}`\n\n[Explained here](sql.md#{one.name}), for {roles}. Returns {given}."
            f"\n\n| parameter | type | |\n|---|---|---|\n{rows}\n"
        )
    said.append("## Views\n")
    for name, columns in read_views(conn).items():
        listed = ", ".join(f"`{column}` {kind}" for column, kind in columns)
        said.append(f"### `{name}`\n\n[Explained here](sql.md#{name}). Columns: {listed}.\n")
    return "\n".join(said)


# ---------------------------------------------------------------- the client in TypeScript

HEAD = f"""// {MADE}
// A client of pgflow for node-postgres, contract version {VERSION}. Copy this file into your project.
// Pass a Client, a Pool, or a client with an open transaction of yours: then a start or a signal
// commits with your own rows. A bigint is a string here, as in node-postgres.

export const CONTRACT = {VERSION};

export type Json = null | boolean | number | string | Json[] | {{ [name: string]: Json }};

/** What node-postgres calls Client, Pool and PoolClient. */
export interface Queryable {{
  query(text: string, values: unknown[]): Promise<{{ rows: any[] }}>;
}}

/** The SQLSTATE of an error of pgflow, such as PF001; null for any other error. */
export function codeOf(error: unknown): string | null {{
  const code = (error as {{ code?: unknown }} | null)?.code;
  return typeof code === "string" && /^PF\\d{{3}}$/.test(code) ? code : null;
}}

const snake = (name: string) => name.replace(/[A-Z]/g, (letter) => "_" + letter.toLowerCase());
const camel = (name: string) => name.replace(/_(\\w)/g, (_, letter) => letter.toUpperCase());

function named<T>(row: Record<string, unknown>): T {{
  return Object.fromEntries(Object.entries(row).map(([name, value]) => [camel(name), value])) as T;
}}

function written(value: unknown, type: string): unknown {{
  return type.startsWith("json") && value !== undefined ? JSON.stringify(value) : value;
}}

async function call(db: Queryable, fn: string, types: Record<string, string>, given: object) {{
  const said = Object.entries(given).filter(([name, value]) => name in types && value !== undefined);
  const taken = said.map(([name], n) => `${{snake(name)}} => $${{n + 1}}::${{types[name]}}`);
  const values = said.map(([name, value]) => written(value, types[name]));
  return (await db.query(`select * from pgflow.${{fn}}(${{taken.join(", ")}})`, values)).rows;
}}
"""
TAIL = """
/** Rows of a view whose columns have these values, in an order, at most so many. */
export async function find<V extends keyof Views>(
  db: Queryable, view: V, where: Partial<Views[V]> = {},
  options: { orderBy?: keyof Views[V] & string; descending?: boolean; limit?: number } = {},
): Promise<Views[V][]> {
  const known: readonly string[] = COLUMNS[view];
  const column = (name: string) => {
    if (!known.includes(name)) throw new Error(`${view} has no column ${name}`);
    return `"${snake(name)}"`;
  };
  const said = Object.entries(where).filter(([, value]) => value !== undefined);
  const tests = said.map(([name], n) => `${column(name)} = $${n + 1}`);
  const order = options.orderBy ?? known[0];
  const text = `select * from pgflow.${view}`
    + (tests.length ? ` where ${tests.join(" and ")}` : "")
    + ` order by ${column(order)}${options.descending ? " desc" : ""} limit $${said.length + 1}`;
  const values = [...said.map(([, value]) => value), options.limit ?? 100];
  return (await db.query(text, values)).rows.map((row) => named<Views[V]>(row));
}

/** Wait until a run has ended, and return its result; look every so many milliseconds. */
export async function ended(db: Queryable, key: string, everyMs = 500): Promise<ResultRow> {
  for (;;) {
    const found = await result(db, { key });
    if (["completed", "failed", "cancelled"].includes(found.status)) return found;
    await new Promise((wake) => setTimeout(wake, everyMs));
  }
}
"""


def typescript_client(conn: psycopg.Connection[Any]) -> str:
    """Return the client in TypeScript."""
    said = [HEAD, *map(_typed_function, read_functions(conn))]
    views = read_views(conn)
    said += [
        f"export interface {_pascal(name)}Row {{\n{_fields(columns)}}}\n"
        for name, columns in views.items()
    ]
    rows = "; ".join(f"{name}: {_pascal(name)}Row" for name in views)
    said.append(f"export interface Views {{ {rows} }}\n")
    listed = "".join(
        _folded(f"  {name}: [", [f'"{_camel(column)}"' for column, _ in columns], "],\n")
        for name, columns in views.items()
    )
    said.append(f"const COLUMNS = {{\n{listed}}} as const;")
    return "\n".join(said) + TAIL


def _typed_function(one: Function) -> str:
    name, kind = _camel(one.name), _pascal(one.name)
    fields = "".join(
        f"  {_camel(field)}{'' if needed else '?'}: {_type(sql)};\n"
        for field, sql, needed in one.taken
    )
    types = ", ".join(f'{_camel(field)}: "{sql}"' for field, sql, _ in one.taken)
    row = (
        f"export interface {kind}Row {{ {'; '.join(_fields_of(one.given))} }}\n"
        if one.is_row
        else ""
    )
    returned = f"{kind}Row" if one.is_row else f"{_type(one.given[0][1])}"
    found = f"named<{kind}Row>(rows[0])" if one.is_row else f"rows[0].{one.given[0][0]}"
    if one.is_set:
        returned, found = f"{returned}[]", f"rows.map((row) => named<{kind}Row>(row))"
    brief = re.split(r"[;.:]", one.words, maxsplit=1)[0]
    return (
        f"export interface {kind} {{\n{fields}}}\n{row}/** {brief}. */\n"
        f"export async function {name}(db: Queryable, given: {kind}): Promise<{returned}> {{\n"
        f'  const rows = await call(db, "{one.name}", {{{types}}}, given);\n'
        f"  return {found};\n}}\n"
    )


def _fields(columns: list[tuple[str, str]]) -> str:
    return _folded("  ", _fields_of(columns), ";\n", "; ")


def _fields_of(columns: list[tuple[str, str]]) -> list[str]:
    return [
        f"{_camel(name)}: {_type(kind)}{'' if name in NEVER_NULL else ' | null'}"
        for name, kind in columns
    ]


def _folded(head: str, parts: list[str], end: str, between: str = ", ") -> str:
    """Return parts on lines of at most a hundred characters."""
    lines, line = [], head
    for part in parts:
        if len(line) + len(part) > 96:
            lines.append(line.rstrip())
            line = "    "
        line += part + between
    return "\n".join([*lines, line.removesuffix(between) + end])


def _type(sql: str) -> str:
    return f"{TYPES[sql.removesuffix('[]')]}[]" if sql.endswith("[]") else TYPES[sql]


def _camel(name: str) -> str:
    return re.sub(r"_(\w)", lambda found: found[1].upper(), name)


def _pascal(name: str) -> str:
    return name[0].upper() + _camel(name)[1:]
