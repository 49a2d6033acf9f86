"""A person follows `pgflow run FILE`: what it says while nodes are at work, when one fails, and when
it is stopped.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from clikit import finish, pgflow, process
from servers import wait_until
from test_cli_watch import Watcher

SLOW = """\
name: slow
description: Waits for its pipe.
nodes:
  - id: wait
    bash: echo "warming up" >&2; cat gate
  - {id: after, bash: echo over, depends_on: [wait]}
"""
LONG = "x" * 3000
BAD = f"""\
name: bad
description: Fails with its source first.
nodes:
  - id: look
    runtime: bun
    script: |
      const first = '{LONG}'; throw new Error('the reason that counts')
"""


@pytest.mark.full
def test_a_node_is_told_when_it_begins_complains_and_ends(dsn: str, tmp_path: Path) -> None:
    (tmp_path / "slow.yaml").write_text(SLOW)
    os.mkfifo(tmp_path / "gate")
    started = process(
        dsn, "run", str(tmp_path / "slow.yaml"), "--cwd", str(tmp_path), "--watch", "--table"
    )
    watcher = Watcher(started)
    try:
        watcher.hears("running wait")
        watcher.hears("wait ! warming up")
        (tmp_path / "gate").write_text("open")
        assert "completed wait (" in watcher.hears("completed wait")
        watcher.hears("completed after")
        assert started.wait() == 0
    finally:
        started.kill()
        started.wait()
        for reader in watcher.readers:
            reader.join()


@pytest.mark.full
def test_ctrl_c_says_the_command_that_goes_on(dsn: str, tmp_path: Path) -> None:
    (tmp_path / "slow.yaml").write_text(SLOW)
    os.mkfifo(tmp_path / "gate")
    command = ("run", str(tmp_path / "slow.yaml"), "--cwd", str(tmp_path), "--table")
    started = process(dsn, *command)
    try:
        wait_until(
            lambda: [run["status"] for run in pgflow(dsn, "list", "--json").data] == ["running"],
            "the run is worked on",
        )
        started.send_signal(signal.SIGINT)
        said = finish(started)
    finally:
        started.kill()
    (key,) = [run["key"] for run in pgflow(dsn, "list", "--json").data]
    assert said.code == 130
    assert said.err == (
        f"pgflow: run '{key}' was handed back. Go on here with: pgflow {' '.join(command)} "
        f"--key {key}; or with a worker: pgflow workers pgflow.declare.durable\n"
    )
    (tmp_path / "gate").unlink()
    (tmp_path / "gate").write_text("open")
    said = pgflow(dsn, *command, "--key", key)
    assert (said.code, said.out) == (0, f"{key} completed: over\n"), said


@pytest.mark.full
def test_a_script_that_fails_shows_the_end_of_its_error(dsn: str, tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text(BAD)
    said = pgflow(dsn, "run", str(tmp_path / "bad.yaml"), "--watch", "--table", "--key", "bad-1")
    assert said.code == 1
    ends = [line for line in said.err.splitlines() if line.startswith("failed ")]
    assert len(ends) == 1
    assert "script node 'look' failed [exit 1]" in ends[0]
    assert "the reason that counts" in ends[0]
    assert len(ends[0]) < 650
