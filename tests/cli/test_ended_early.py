"""SIGTERM that comes while a command still loads its code."""

from __future__ import annotations

import subprocess
import sys

import pytest

TERMINATED_WHILE_IT_LOADS = """
import os, signal, sys

class Terminates:
    def find_spec(self, name, path=None, target=None):
        if name == "pgflow_cli.commands":
            os.kill(os.getpid(), signal.SIGTERM)

import pgflow_cli

sys.meta_path.insert(0, Terminates())
sys.argv = ["pgflow", *sys.argv[1:]]
pgflow_cli.main()
"""


@pytest.mark.parametrize(("command", "code"), [("workers", 0), ("serve", 0), ("list", -15)])
def test_a_server_that_is_ended_while_it_loads_has_ended_well(command: str, code: int) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", TERMINATED_WHILE_IT_LOADS, command, "module"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (code, "")
