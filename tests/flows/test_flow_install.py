"""`pgflow.sql` and psql are all that it takes."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import psycopg
import pytest
import servers
from ownserver import OwnServer
from psycopg.conninfo import make_conninfo

from tools import sqlfile

ORDER = """
select pgflow.create_workflow('w()', $$ begin a: create table made (x int); return 1; end $$);
select pgflow.start_run('w', key => 'k');
"""


GUIDE = Path(__file__).parents[2] / "docs" / "how-to" / "sql-workflows.md"


def psql(dsn: str, *arguments: str) -> str:
    program = servers.find_program("psql", "postgresql-client")
    command = [program, dsn, "-v", "ON_ERROR_STOP=1", "-qAt", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.fixture
def file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    sqlfile.main()
    file = tmp_path / "pgflow.sql"
    file.write_text(capsys.readouterr().out)
    return str(file)


@pytest.mark.full
def test_a_database_is_installed_and_works_by_psql_alone(empty_dsn, file):
    assert psql(empty_dsn, "-f", file) == ""
    psql(empty_dsn, "-c", ORDER)
    psql(empty_dsn, "-c", "call pgflow.work(until_idle => true)")
    assert psql(empty_dsn, "-c", "select status, output from pgflow.runs") == "completed|1\n"
    with psycopg.connect(empty_dsn) as conn:
        assert servers.complaints(conn) == []


@pytest.mark.full
def test_the_guide_is_followed_without_a_superuser(file):
    with OwnServer(fsync="off") as server:
        with psycopg.connect(server.dsn, autocommit=True) as conn:
            conn.execute("create role me login createrole password 'x'")
            conn.execute("create database mine owner me")
        dsn = make_conninfo(server.dsn, user="me", password="x", dbname="mine")
        assert psql(dsn, "-f", file) == ""
        text = GUIDE.read_text()
        (grant,) = re.findall(r"```text\n(grant .*?)```", text, re.DOTALL)
        psql(dsn, "-c", grant)
        for block in re.findall(r"```sql\n(.*?)```", text, re.DOTALL):
            # A call stands alone; else psql has one transaction for all.
            psql(dsn, "-c", block)
        ended = (
            "select key, status, output from pgflow.runs where parent_run_id is null order by key"
        )
        assert psql(dsn, "-c", ended).splitlines() == [
            "load-1|completed|2500",
            'order-7|completed|"shipped"',
            'refund-1|completed|"paid"',
        ]
        assert psql(dsn, "-c", "select * from pgflow.check()") == ""
