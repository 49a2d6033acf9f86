"""A person follows `pgflow run FILE`: what it says while nodes are at work, when one fails, and when
it is stopped.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from subprocess import Popen

import pytest
from clikit import pgflow, process
from test_cli_watch import Watcher

Command = tuple[str, ...]

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


@pytest.fixture
def stopped(dsn: str, tmp_path: Path) -> Iterator[tuple[Command, Watcher, Popen[str]]]:
    """A run whose first node is at work, and which Ctrl-C has stopped once."""
    (tmp_path / "slow.yaml").write_text(SLOW)
    os.mkfifo(tmp_path / "gate")
    command = ("run", str(tmp_path / "slow.yaml"), "--cwd", str(tmp_path), "--watch", "--table")
    started = process(dsn, *command)
    watcher = Watcher(started)
    try:
        watcher.hears("warming up")
        started.send_signal(signal.SIGINT)
        watcher.hears(
            "pgflow: stopping: steps at work have 10 s to end. Ctrl-C again stops at once"
        )
        yield command, watcher, started
    finally:
        started.kill()
        started.wait()
        for reader in watcher.readers:
            reader.join()


@pytest.mark.full
def test_ctrl_c_says_the_command_that_goes_on(
    dsn: str, tmp_path: Path, stopped: tuple[Command, Watcher, Popen[str]]
) -> None:
    command, watcher, started = stopped
    told = watcher.hears("was handed back")
    (key,) = [run["key"] for run in pgflow(dsn, "list", "--json").data]
    assert told == f"pgflow: run '{key}' was handed back. Go on here with:\n"
    assert watcher.hears("pgflow run") == f"  pgflow {' '.join(command)} --key {key}\n"
    watcher.hears("or with a worker:")
    watcher.hears("  pgflow workers pgflow.declare.durable")
    assert started.wait() == 130
    (tmp_path / "gate").unlink()
    (tmp_path / "gate").write_text("open")
    said = pgflow(dsn, *command, "--key", key)
    assert (said.code, said.out) == (0, f"{key} completed: over\n"), said
    begun = [line.split() for line in said.err.splitlines() if line.startswith("running")]
    # What the first try has told may be gone with it.
    assert begun in ([["running", "wait"]], [["running", "wait"], ["running", "wait", "again"]])


@pytest.mark.full
def test_ctrl_c_again_stops_at_once_and_says_what_becomes_of_the_run(
    stopped: tuple[Command, Watcher, Popen[str]],
) -> None:
    _, watcher, started = stopped
    started.send_signal(signal.SIGINT)
    watcher.hears("was left, and goes on once this worker counts as dead. Go on here with:")
    assert started.wait() == 130


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
