"""Processes and databases that tests share are as they would be if they were made anew."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import forked
import psycopg
import pytest
import servers
import sqlkit
from copies import APPLICATION, Copies
from servers import HANG_SECONDS
from sqlkit import one

LOOK = """
import json, os, signal, sys
print(json.dumps({
    "pid": os.getpid(), "words": sys.argv[1:], "folder": os.getcwd(), "said": os.environ.get("SAID"),
    "first": sys.path[0], "named": __name__, "seen": sys.stdin.read(),
    "ctrl_c": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
    "streams": [(s.encoding, s.errors, s.line_buffering, s.write_through) for s in (sys.stdin, sys.stdout, sys.stderr)],
}))
sys.exit(7)
"""


def test_a_forked_program_is_what_a_process_of_its_own_would_be(tmp_path: Path) -> None:
    (tmp_path / "look.py").write_text(LOOK)
    given: dict[str, Any] = {
        "env": {**os.environ, "SAID": "a word"},
        "cwd": tmp_path,
        "stdin": subprocess.PIPE,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
    }
    for arguments in (["look.py", "é", "x" * 100_000], ["-m", "look"]):
        said = []
        for started in (
            forked.start(arguments, **given),
            subprocess.Popen([sys.executable, *arguments], text=True, **given),
        ):
            out, err = started.communicate("typed", timeout=HANG_SECONDS)
            assert (started.returncode, err) == (7, "")
            said.append(out.replace(str(started.pid), "its own"))
        assert said[0] == said[1]


def test_signals_reach_a_forked_program_and_its_end_is_told() -> None:
    def wait() -> subprocess.Popen[str]:
        return forked.start(
            ["-m", "http.server", "0"],
            env=dict(os.environ),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    for number in (signal.SIGKILL, signal.SIGTERM):
        with wait() as program:
            assert program.poll() is None
            with pytest.raises(subprocess.TimeoutExpired):
                program.wait(0.01)
            program.send_signal(number)
            assert program.wait(HANG_SECONDS) == -number
            assert program.poll() == -number


def test_a_database_whose_clock_was_replaced_is_lent_again_with_its_own(
    copies: Copies, server_dsn: str
) -> None:
    first = copies.take()
    with psycopg.connect(first, autocommit=True) as conn:
        sqlkit.set_clock(conn, datetime(2001, 1, 1, tzinfo=UTC))
        assert one(conn, "select extract(year from pgflow.now_())") == 2001
    others = (
        "select count(*) from pg_stat_activity where datname = current_database() "
        f"and application_name <> '{APPLICATION}' and backend_type = 'client backend'"
    )
    servers.wait_until(lambda: one(copies.keeper(first), others) == 0, "that session has gone")
    copies.give_back(first)
    again = copies.take()
    assert again == first
    with psycopg.connect(again, autocommit=True) as conn:
        assert one(conn, "select abs(extract(epoch from pgflow.now_() - clock_timestamp())) < 60")
        conn.execute(
            "create or replace function pgflow.micros_(at timestamptz) returns bigint language sql return 1"
        )
    copies.give_back(again)
    fresh = copies.take()
    assert fresh != again
    copies.give_back(fresh)
