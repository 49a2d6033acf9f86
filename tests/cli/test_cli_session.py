"""docs/session.md: a session at a terminal, made again from the real command line and compared.

Every command runs in a terminal of its own, as wide as the page. What differs from day to day -
times, process ids, how wide a column had to be - is masked on both sides.
`python -m tools.generate session` writes the page anew.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import shlex
import signal
import struct
import subprocess
import sys
import termios
from pathlib import Path

import psycopg
import pytest
import servers
from clikit import ANSI, APPS, statuses
from servers import HANG_SECONDS, wait_until

PAGE = servers.REPOSITORY / "docs" / "session.md"
WIDTH = 100

SESSION: list[tuple[str, list[str]]] = [
    ("A shop's orders wait for approval. Start two. No worker runs yet.", [
        "pgflow migrate",
        "pgflow start shop.py:order item=lamp --key order-1 --label customer=acme",
        "pgflow start shop.py:order item=desk --key order-2 --label customer=acme",
    ]),
    ("A worker runs them up to their wait. Waiting costs it nothing: it holds neither run.", [
        "pgflow workers shop.py --dead-after 1s --log-level error &",
        "pgflow list --watch",
        "pgflow workers",
    ]),
    ("Ada approves one. Kill its worker while it packs, as a power cut would.", [
        "pgflow signal order-1 approved '\"Ada\"'",
        "pgflow list --status running",
        "kill -9 %1",
    ]),
    ("The next worker - here a tick from cron - finds it dead, and continues from the journal.", [
        "touch door-is-open",
        "pgflow tick shop.py --dead-after 1s --log-level error",
        "pgflow timeline order-1",
        "pgflow show order-1",
    ]),
    ("The customer leaves. Show, count and cancel their open runs. Their code may clean up.", [
        "pgflow cancel --label customer=acme --status waiting --why 'the customer has left'",
        "pgflow tick shop.py --dead-after 1s",
        "pgflow list",
    ]),
    ("Everything is a row, and the books balance.", [
        'pgflow sql "select key, seq, event, name from timeline order by key, seq"',
        'pgflow sql "select * from pgflow.check()"',
        'pgflow sql "delete from timeline"',
    ]),
]  # fmt: skip


class Shell:
    """Runs commands as a person would, each in a terminal, one of them in the background."""

    def __init__(self, dsn: str, folder: Path) -> None:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        env = {
            name: value
            for name, value in os.environ.items()
            if name not in ("DATABASE_URL", "GITHUB_ACTIONS", "COLUMNS")
        }
        named = {"PGFLOW_DSN": dsn, "PGFLOW_AUDITOR_DSN": servers.as_auditor(dsn)}
        self._env = {**env, **named, "NO_COLOR": "1", "TERM": "xterm", "PATH": path}
        self._folder = folder
        self.background: subprocess.Popen[bytes] | None = None

    def run(self, line: str) -> str:
        """Run a line and return its output."""
        if line.endswith("&"):
            self.background = subprocess.Popen(
                shlex.split(line[:-1]),
                env=self._env,
                cwd=self._folder,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            return ""
        if line == "kill -9 %1":
            assert self.background is not None
            self.background.send_signal(signal.SIGKILL)
            self.background.wait()
            return ""
        return self._at_terminal(line)

    def _at_terminal(self, line: str) -> str:
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, WIDTH, 0, 0))
        started = subprocess.Popen(
            shlex.split(line),
            env=self._env,
            cwd=self._folder,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        shown, is_asked = b"", False
        while chunk := _read(ours):
            shown += chunk
            if "--watch" in line and _frame(shown).count("\n") >= 3:
                started.send_signal(signal.SIGINT)
                _drain(ours)
                started.wait(HANG_SECONDS)
                return f"{_frame(shown)}\n^C"
            if not is_asked and shown.endswith(b"[y/N]: "):
                is_asked = True
                os.write(ours, b"y\n")
        os.close(ours)
        started.wait(HANG_SECONDS)
        return ANSI.sub("", shown.decode()).replace("\r\n", "\n")


def _frame(shown: bytes) -> str:
    """Return the last frame of a screen that is drawn again and again."""
    return (
        ANSI.sub("", shown.rpartition(b"\x1b[H")[2].decode(errors="ignore"))
        .replace("\r\n", "\n")
        .rstrip()
    )


def _drain(descriptor: int) -> None:
    while _read(descriptor):
        pass
    os.close(descriptor)


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65536)
    except OSError:  # what Linux says when the other end is closed
        return b""


def play(dsn: str, folder: Path) -> str:
    """The session, as a page."""
    (folder / "shop.py").write_text((APPS / "session_shop.py").read_text())
    shell = Shell(dsn, folder)
    lines = [
        "# A session at the terminal",
        "",
        (
            "Made from the real command line by `tests/cli/test_cli_session.py`, which plays it again "
            "and compares."
        ),
        "",
    ]
    try:
        for text, commands in SESSION:
            lines += [text, "", "```"]
            for command in commands:
                wait_before(command, dsn)
                shown = "\n".join(
                    line.rstrip() for line in shell.run(command).rstrip().splitlines()
                )
                lines += [f"$ {command}", *([shown] if shown else [])]
            lines += ["```", ""]
    finally:
        if shell.background is not None and shell.background.poll() is None:
            shell.background.kill()
            shell.background.wait()
    return re.sub(r"to\s+\S+@\S+:\d+/\S+", "to shop@db:5432/shop", "\n".join(lines))


def wait_before(command: str, dsn: str) -> None:
    """A person looks when something has had the time to happen."""
    if command == "kill -9 %1":
        with psycopg.connect(dsn, autocommit=True) as conn:
            wait_until(
                lambda: (
                    conn.execute("select from pgflow.steps where step = 'pack'").fetchone()
                    is not None
                ),
                "it is being packed",
            )
    wanted = {
        "pgflow list --watch": {"order-1": "waiting", "order-2": "waiting"},
        "pgflow list --status running": {"order-1": "running", "order-2": "waiting"},
    }
    if command not in wanted:
        return
    with psycopg.connect(dsn, autocommit=True) as conn:
        if "cancelled" not in statuses(conn).values():
            wait_until(
                lambda: statuses(conn) == wanted[command], f"{command} shows {wanted[command]}"
            )


def masked(page: str) -> list[str]:
    """A page without what differs from day to day."""
    for pattern, word in (
        (r"to\s+\S+@\S+:\d+/\S+", "to DATABASE"),
        (r"is (queued|running)\.$", "is AWAKE."),
        (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\dZ?", "TIME"),
        (r"\d{4}-\d\d-\d\d[T ]\d\d:…|\d{4}-\d\d-\d\dT?[\d:]*…", "TIME"),
        (r"^\d\d:\d\d:\d\d by", "TIME by"),
        (r"\b\d+(\.\d+)?(ms|s|m|h)\b", "AGE"),
        (r"^( *\d+) +\S+ +\d+ +(0/100)", r"WORKER HOST PID \2"),
        (r"\d+ migrations? and \d+ files?", "N migrations and N files"),
        (r"[█▒]+", "█"),
        (r"─+", "─"),
        (r"[ \t]+", " "),
        (r"\b\d+\.\d+\.\d+\S*\b( \(schema \d+, files \w+\))?", "VERSION"),
    ):
        page = re.sub(pattern, word, page, flags=re.MULTILINE)
    return [line.strip() for line in page.splitlines()]


@pytest.mark.full
def test_the_session_is_what_the_command_line_shows(empty_dsn, tmp_path):
    page = play(empty_dsn, tmp_path)
    assert masked(page) == masked(PAGE.read_text()), "python -m tools.generate session"
