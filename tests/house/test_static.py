"""Facts on the code and the schema that are known without running a workflow."""

from __future__ import annotations

import ast
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
    from collections.abc import Iterator

    import psycopg

REPOSITORY = servers.REPOSITORY
PYTHON = sorted(path for root in ("pgflow", "cli") for path in (REPOSITORY / root).rglob("*.py"))

# ---------------------------------------------------------------- Python

MAKES_CODE = {
    "pickle",
    "marshal",
    "shelve",
    "dill",
    "cloudpickle",
    "jsonpickle",
    "joblib",
    "runpy",
    "code",
    "codeop",
    "imp",
    "pydoc",
    "pkgutil",
}
"""Modules by which what was stored could become code."""
CALLS = {
    "eval",
    "exec",
    "compile",
    "__import__",
    "import_module",
    "import_string",
    "run_module",
    "run_path",
    "spec_from_file_location",
    "module_from_spec",
}

PRIVATE = {
    (
        "pgflow/sqlalchemy/__init__.py",
        "_transport",
    ): "asyncpg tells its socket nowhere else; without it a wait has no deadline",
    (
        "pgflow/agent/pydantic_ai/backend.py",
        "pydantic_ai._utils",
    ): "nothing public keeps its functions off threads in workflow code and on them in a step",
}
"""Private names of other libraries that we look for, and do without where they are not."""

PUBLIC_ALL_THE_SAME = {"_fields"}  # of a named tuple, as documented

MAY = {
    ("cli/pgflow_cli/commands.py", "import_module"): "modules of ours, from a table in the code",
    ("cli/pgflow_cli/look/targets.py", "import_module"): "the module that the command line names",
    (
        "pgflow/declare/durable/providers.py",
        "import_module",
    ): "named by whoever starts a run of a file, whose shell scripts such a worker runs too",
    ("cli/pgflow_cli/treasury/attended.py", "runpy"): "starts a module of ours as `python -m` does",
    (
        "cli/pgflow_cli/treasury/attended.py",
        "run_module",
    ): "its name comes from our own command line",
    (
        "pgflow/_transactions/join.py",
        "import_module",
    ): "one of our integrations, from a table in the code",
    ("pgflow/django/__init__.py", "import_module"): "the modules that the project's settings name",
    ("pgflow/django/__init__.py", "import_string"): "the codec that the project's settings name",
    (
        "pgflow/django/management/commands/pgflow.py",
        "import_module",
    ): "our own command line, by a constant",
    ("pgflow/sqlalchemy/__init__.py", "import_module"): "our own module, by a constant",
}
"""Places where code is made from a name after all, and the reason why that name never comes from
the database.
"""


def makers_of_code(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Names that stand for making code, wherever they are imported, called or passed on."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (
                    (name.name.partition(".")[0], node.lineno)
                    for name in names
                    if name.name.partition(".")[0] in MAKES_CODE
                )
            case ast.ImportFrom(module=str(module), names=names):
                if module.partition(".")[0] in MAKES_CODE:
                    yield module.partition(".")[0], node.lineno
                yield from ((name.name, node.lineno) for name in names if name.name in CALLS)
            case ast.Name(id=name) if name in CALLS:
                yield name, node.lineno
            case ast.Attribute(value=ast.Name(id="re"), attr="compile"):
                pass
            case ast.Attribute(attr=name) if name in CALLS:
                yield name, node.lineno


def test_nothing_that_was_stored_can_become_code():
    found = {
        (path.relative_to(REPOSITORY).as_posix(), name): line
        for path in PYTHON
        for name, line in makers_of_code(ast.parse(path.read_text()))
    }
    assert {place: line for place, line in found.items() if place not in MAY} == {}
    assert set(MAY) - set(found) == set(), "no longer there: strike it off the list"


@pytest.mark.parametrize(
    "text",
    [
        "import pickle",
        "from marshal import loads",
        "eval(x)",
        "m.exec(x)",
        "f = compile",
        "from importlib import import_module as i",
    ],
)
def test_the_search_for_makers_of_code_finds_them(text):
    assert list(makers_of_code(ast.parse(text)))


def accepted(finding: dict[str, object]) -> bool:
    """Return True if its lines say why it is well: ruff's S-rules are bandit's, so that one remark
    serves both.
    """
    lines = (REPOSITORY / str(finding["filename"])).read_text().splitlines()
    reported: list[int] = finding["line_range"]  # type: ignore[assignment]
    text = "\n".join(lines[min(reported) - 1 : max(reported)])
    number = str(finding["test_id"])[1:]
    return re.search(rf"# (noqa: S{number}|nosec B{number})\b", text) is not None


def test_bandit_finds_nothing_that_has_no_reason_beside_it():
    command = [
        sys.executable,
        "-m",
        "bandit",
        "--quiet",
        "--configfile",
        "pyproject.toml",
        "--format",
        "json",
        "--recursive",
        "pgflow",
        "cli",
    ]
    answer = json.loads(
        subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False).stdout
    )
    assert answer["errors"] == []
    left = [
        f"{f['filename']}:{f['line_number']} {f['test_id']} {f['issue_text']}"
        for f in answer["results"]
        if not accepted(f)
    ]
    assert left == []


def private_names(path: Path) -> Iterator[str]:
    """Private names of other libraries that a file imports, or asks objects for by name."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("getattr", "hasattr", "setattr")
        ):
            names = [
                str(given.value) for given in node.args[1:2] if isinstance(given, ast.Constant)
            ]
        else:
            continue
        for name in names:
            first = name.partition(".")[0]
            if (
                first not in ("pgflow", "pgflow_cli", "__future__")
                and name not in PUBLIC_ALL_THE_SAME
                and any(re.match(r"_(?!_)", part) for part in name.split("."))
            ):
                yield name


def test_no_private_name_of_a_dependency_is_used():
    """It would tie us to a version: such names come and go without notice."""
    found = {
        (path.relative_to(REPOSITORY).as_posix(), name)
        for path in PYTHON
        for name in private_names(path)
    }
    assert found == set(PRIVATE)


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


def test_squawk_has_nothing_against_the_migrations():
    assert squawk(*(f"migrations/{file.name}.sql" for file in schema.own_assets().migrations)) == []


def test_squawk_has_nothing_against_the_functions_and_views_but_that_they_are_made_anew():
    files = (f"sql/{file.name}.sql" for file in schema.own_assets().sources)
    excluded = tomllib.loads((REPOSITORY / ".squawk.toml").read_text())["excluded_rules"]
    assert (
        squawk("--exclude", ",".join([*excluded, "ban-drop-function", "ban-drop-view"]), *files)
        == []
    )


def test_squawk_would_notice_a_migration_that_stops_writers(tmp_path):
    (tmp_path / "9999_next.sql").write_text(
        "create index outcome_status_idx on pgflow.outcome (status);\n"
    )
    assert any(
        "require-concurrent-index-creation" in found
        for found in squawk(str(tmp_path / "9999_next.sql"))
    )


def test_lines_of_functions_and_views_are_no_longer_than_120_characters():
    files = schema.own_assets().sources
    assert [
        f"{file.name}:{n}"
        for file in files
        for n, line in enumerate(file.text.splitlines(), 1)
        if len(line) > 120
    ] == []


DYNAMIC = {
    "core/guard": "names are those of partitions in the catalog, by %I",
    "core/partition": "names are unit_ and a number, by %I",
    "core/sparse": "names are those of partitions in the catalog, by %I",
    "events/outbox": "names are event_ and a number, or those of partitions in the catalog, by %I",
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
            assert set(re.findall(r"%.", statement)) <= {"%I", "%s"}, statement


# ---------------------------------------------------------------- the schema as it is installed


def test_every_column_says_what_it_holds(db: psycopg.Connection):
    query = """
        select format('%s.%s', c.relname, a.attname) from pg_class c
        join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
        where c.relnamespace = 'pgflow'::regnamespace and c.relkind in ('r', 'p', 'v') and not c.relispartition
          and coalesce(col_description(c.oid, a.attnum), '') = ''
        order by 1
    """
    assert db.execute(query).fetchall() == []


def test_comments_begin_with_a_capital_and_end_without_a_stop(db: psycopg.Connection):
    query = """
        select d.description from pg_description d
        left join pg_class c on c.oid = d.objoid and d.classoid = 'pg_class'::regclass
        left join pg_proc p on p.oid = d.objoid and d.classoid = 'pg_proc'::regclass
        where 'pgflow'::regnamespace in (c.relnamespace, p.pronamespace) and (d.description like '%.' or btrim(d.description) <> d.description)
    """
    assert db.execute(query).fetchall() == []


CLOCKS = r"\m(now|clock_timestamp|statement_timestamp|transaction_timestamp|timeofday|current_timestamp|localtimestamp|random|gen_random_uuid|nextval|setval|set_config|now_|uuid7_)\M"
WRITES = r"\m(insert\s+into|update\s+pgflow|delete\s+from|for\s+update|for\s+no\s+key\s+update|for\s+key\s+share)\M"
READS = r"\m(from|join)\s+pgflow\.[a-z_]+\M(?!\s*\()"


@pytest.fixture
def functions(db: psycopg.Connection) -> list[tuple[str, str, str]]:
    """(name, volatility, body without comments and texts)."""
    query = """
        select proname, provolatile::text, regexp_replace(regexp_replace(prosrc, '--[^\\n]*', '', 'g'), '''[^'']*''', '''''', 'g')
        from pg_proc where pronamespace = 'pgflow'::regnamespace
    """
    return db.execute(query).fetchall()


def calls(body: str, names: set[str]) -> set[str]:
    """Those of these functions of ours that a body calls."""
    return set(re.findall(r"pgflow\.(\w+)\s*\(", body)) & names


def matching(db: psycopg.Connection, pattern: str) -> set[str]:
    query = """
        select proname from pg_proc where pronamespace = 'pgflow'::regnamespace
          and regexp_replace(regexp_replace(prosrc, '--[^\\n]*', '', 'g'), '''[^'']*''', '''''', 'g') ~* %s
    """
    return {name for (name,) in db.execute(query, (pattern,))}


def test_a_function_that_writes_locks_or_reads_the_clock_is_volatile(db, functions):
    acting = matching(db, CLOCKS) | matching(db, WRITES)
    while more := {name for name, _, body in functions if calls(body, acting)} - acting:
        acting |= more
    promised = {name for name, volatility, _ in functions if volatility != "v"}
    assert promised & acting == set()


def test_a_function_that_reads_a_table_is_not_immutable(db, functions):
    reading = matching(db, READS)
    while more := {name for name, _, body in functions if calls(body, reading)} - reading:
        reading |= more
    assert {name for name, volatility, _ in functions if volatility == "i"} & reading == set()


MUST_BE_VOLATILE = {
    "pick_heads_": "it locks rows, which only a volatile function may",
    "verdict_": "it must see what was committed while the statement before it waited for a lock",
}
KNOWN = (
    (
        "target type is different type than source type",
        "claim_",
        "an empty array as the first value of a variable",
    ),
    ("target type is different type than source type", "commit_units", "as in claim_"),
    ("target type is different type than source type", "answer_all_", "as in claim_"),
    ('cast "bigint" value to "integer"', "", "a count of rows that are there, into an int"),
    ('cast "numeric" value to "double precision"', "poll", "seconds until a timer"),
    ("unreachable code", "insert_run_", "after a loop that is left by EXIT WHEN"),
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
        select p.proname, k.lineno, k.level, k.message, coalesce(k.detail, '')
        from pg_proc p join pg_language l on l.oid = p.prolang and l.lanname = 'plpgsql'
        cross join lateral audit.plpgsql_check_function_tb(p.oid, performance_warnings => true, extra_warnings => true, security_warnings => true) k
        where p.pronamespace = 'pgflow'::regnamespace order by 1, 2
    """
    found = conn.execute(query).fetchall()
    left = [
        row
        for row in found
        if not (
            row[3] == "routine is marked as VOLATILE, should be STABLE"
            and row[0] in MUST_BE_VOLATILE
        )
        and not any(
            text in f"{row[3]} {row[4]}" and name in ("", row[0]) for text, name, _ in KNOWN
        )
    ]
    assert left == []
