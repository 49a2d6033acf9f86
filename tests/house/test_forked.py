"""Processes that tests share are as they would be if they were made anew."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import forked
import pytest
from servers import HANG_SECONDS

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
