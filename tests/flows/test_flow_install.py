"""`pgflow.sql` and psql are all that it takes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import psycopg
import pytest
import servers

from tools import sqlfile

ORDER = """
select pgflow.create_workflow('w()', $$ begin a: create table made (x int); return 1; end $$);
select pgflow.start_run('w', key => 'k');
"""


@pytest.mark.full
def test_a_database_is_installed_and_works_by_psql_alone(
    empty_dsn: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    psql = servers.find_program("psql", "postgresql-client")
    sqlfile.main()
    file = tmp_path / "pgflow.sql"
    file.write_text(capsys.readouterr().out)

    def play(*arguments: str) -> str:
        command = [psql, empty_dsn, "-v", "ON_ERROR_STOP=1", "-qAt", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    assert play("-f", str(file)) == ""
    play("-c", ORDER)
    play("-c", "call pgflow.work(until_idle => true)")
    assert play("-c", "select status, output from pgflow.runs") == "completed|1\n"
    with psycopg.connect(empty_dsn) as conn:
        assert servers.complaints(conn) == []
