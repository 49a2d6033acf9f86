"""Facts on the schema that are known without running a workflow."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import servers

from pgflow import schema

if TYPE_CHECKING:
    import psycopg

REPOSITORY = servers.REPOSITORY

# ---------------------------------------------------------------- SQL as text


def squawk(*arguments: str) -> list[str]:
    program = shutil.which(
        "squawk", path=os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    )
    if program is None:
        pytest.skip("needs squawk: pip install squawk-cli")
    command = [program, "--config", ".squawk.toml", "--reporter", "json", *arguments]
    answer = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    return [
        f"{found['file']}:{found['line'] + 1} {found['rule_name']}: {found['message']}"
        for found in json.loads(answer.stdout)
    ]


def test_squawk_has_nothing_against_migrations_functions_and_views(tmp_path):
    assets = schema.own_assets()
    assert squawk(*(f"migrations/{file.name}.sql" for file in assets.migrations)) == []
    excluded = tomllib.loads((REPOSITORY / ".squawk.toml").read_text())["excluded_rules"]
    made_anew = ",".join([*excluded, "ban-drop-function", "ban-drop-view"])
    assert (
        squawk("--exclude", made_anew, *(f"sql/{file.name}.sql" for file in assets.sources)) == []
    )
    stopping = tmp_path / "9999_next.sql"
    stopping.write_text("create index outcome_status_idx on pgflow.outcome (status);\n")
    assert "require-concurrent-index-creation" in str(squawk(str(stopping)))


DYNAMIC = {
    "core/citus": "names are those of tables in the catalog, by regclass",
    "core/guard": "names are those of partitions in the catalog, by %I",
    "core/numbers": "names are those of our own tables and columns in the catalog, by %I",
    "core/partition": "names are unit_ and a number, by %I",
    "core/sparse": "names are those of partitions in the catalog, by %I",
    "events/outbox": "names are event_ and a number, or those of partitions in the catalog, by %I",
    "ledgers/evidence": "statements are those of our own function evidence_kinds_(), values by using",
    "flows/look": "the schema of plpgsql_check in the catalog, by %I; values are parameters",
    "flows/work": "the name of a function that create_workflow has made, by %I; values are parameters",
    "flows/workflows": "names by %I, text that its author wrote by %L, all with the rights of the caller",
    "ops/rewrap": "names are those of tables and columns in the catalog, by %I; values by %L",
    "ops/check": "names are those of our own functions check_<concept>_() in the catalog, by %I",
    "privileges": "names of our own roles and functions, by %I",
}
"""Files that run statements put together from text, and why that is safe."""


def test_only_partitions_and_privileges_are_made_by_statements_put_together():
    bodies = {file.name: re.sub(r"--.*", "", file.text) for file in schema.own_assets().sources}
    found = {
        name
        for name, text in bodies.items()
        if re.search(r"\bexecute\s+(?!on\b|function\b)[\w']", text)
    }
    assert found == set(DYNAMIC)
    for name in found:
        for statement in re.findall(r"\bexecute (?!on\b)(.*);", bodies[name]):
            assert statement.startswith("format('"), statement
            assert set(re.findall(r"%.", statement)) <= {"%I", "%L", "%s"}, statement


# ---------------------------------------------------------------- the schema as it is installed


def test_every_column_has_a_comment_and_comments_are_no_sentences(db: psycopg.Connection):
    silent = """
        select format('%s.%s', c.relname, a.attname) from pg_class c
        join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
        where c.relnamespace = 'pgflow'::regnamespace and c.relkind in ('r', 'p', 'v') and not c.relispartition
          and not (c.relkind = 'v' and starts_with(c.relname, 'own_')) -- these are made from the others
          and coalesce(col_description(c.oid, a.attnum), '') = ''
        order by 1
    """
    assert db.execute(silent).fetchall() == []
    sentences = """
        select d.description from pg_description d
        left join pg_class c on c.oid = d.objoid and d.classoid = 'pg_class'::regclass
        left join pg_proc p on p.oid = d.objoid and d.classoid = 'pg_proc'::regclass
        where 'pgflow'::regnamespace in (c.relnamespace, p.pronamespace) and (d.description like '%.' or btrim(d.description) <> d.description)
    """
    assert db.execute(sentences).fetchall() == []


CLOCKS = r"\m(now|clock_timestamp|statement_timestamp|transaction_timestamp|timeofday|current_timestamp|localtimestamp|random|gen_random_uuid|nextval|setval|set_config|now_|uuid7_)\M"
WRITES = r"\m(insert\s+into|update\s+pgflow|delete\s+from|for\s+update|for\s+no\s+key\s+update|for\s+key\s+share)\M"
READS = r"\m(from|join)\s+pgflow\.[a-z_]+\M(?!\s*\()"


def calls(body: str, names: set[str]) -> set[str]:
    """Those of these functions of ours that a body calls."""
    return set(re.findall(r"pgflow\.(\w+)\s*\(", body)) & names


def doing(db: psycopg.Connection, pattern: str) -> set[str]:
    """Names of functions whose body matches, and of those that call one of them."""
    bodies = db.execute(
        """
        select proname, prosrc ~* %s as does, prosrc
        from (
          select proname, regexp_replace(regexp_replace(prosrc, '--[^\\n]*', '', 'g'), '''[^'']*''', '''''', 'g') as prosrc
          from pg_proc where pronamespace = 'pgflow'::regnamespace
        ) p
    """,
        (pattern,),
    ).fetchall()
    found = {name for name, does, _ in bodies if does}
    while more := {name for name, _, body in bodies if calls(body, found)} - found:
        found |= more
    return found


def test_no_function_promises_more_than_it_keeps(db: psycopg.Connection):
    """One that writes, locks or reads the clock is volatile; one that reads is not immutable."""
    query = (
        "select proname, provolatile::text from pg_proc where pronamespace = 'pgflow'::regnamespace"
    )
    promised = db.execute(query).fetchall()
    acting = doing(db, CLOCKS) | doing(db, WRITES)
    assert {name for name, volatility in promised if volatility != "v"} & acting == set()
    assert {name for name, volatility in promised if volatility == "i"} & doing(db, READS) == set()


KNOWN = (
    ('record "new" has no field', "name_blobs_", "an argument says which of six tables it is"),
    ("control reached end of function without RETURN", "flow_refuse_", "flow_fail_ always raises"),
    ('relation "pg_dist_', "", "a table of Citus"),
    ('schema "pgflow_anchor" does not exist', "make_anchor_", "the statement before makes it"),
    ('record "here" is not assigned yet', "make_anchor_", "it is a row of a table of Citus"),
)
"""False alarms of plpgsql_check: message, function, reason."""


def test_plpgsql_check_finds_nothing(conn: psycopg.Connection):
    if not conn.execute(
        "select from pg_available_extensions where name = 'plpgsql_check'"
    ).fetchall():
        judge = (
            pytest.fail
            if "plpgsql_check" in os.environ.get("PGFLOW_TEST_NEEDS", "").split()
            else pytest.skip
        )
        judge(
            "needs plpgsql_check: apt install postgresql-15-plpgsql-check, and "
            "PGFLOW_TEST_POSTGRES=15"
        )
    conn.execute("create schema audit")
    conn.execute("create extension plpgsql_check schema audit")
    query = """
        select p.proname, k.lineno, k.message
        from pg_proc p join pg_language l on l.oid = p.prolang and l.lanname = 'plpgsql'
        left join (select distinct tgfoid, tgrelid from pg_trigger) t on t.tgfoid = p.oid
        cross join lateral audit.plpgsql_check_function_tb(p.oid, coalesce(t.tgrelid, 0), fatal_errors => false) k
        where p.pronamespace = 'pgflow'::regnamespace and k.level = 'error' order by 1, 2
    """
    found = conn.execute(query).fetchall()
    left = [
        (name, line, message)
        for name, line, message in found
        if not any(text in message and of in ("", name) for text, of, _ in KNOWN)
    ]
    assert left == []
    assert len({name for name, _, _ in found}) >= 3, "it finds what is known, so it looks"
