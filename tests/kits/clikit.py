"""The command line in tests: run in this process, on a terminal or into a pipe, and what it
answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cli_jobs
import forked
import psycopg
from pgflow_cli.commands import app, ours, run
from servers import HANG_SECONDS, wait_until
from typer.main import get_command

from pgflow import AsyncApp, RunFailed
from pgflow._db.calls import claim as claim_calls
from pgflow._db.calls import worker as worker_calls
from pgflow._db.query import run as ask

APPS = Path(__file__).parents[1] / "apps"
ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@dataclass
class Answer:
    """Output of a command, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        """Standard output as JSON."""
        return json.loads(self.out)


class Screen(io.StringIO):
    """A stream that says it is a terminal, or that it is not."""

    def __init__(self, text: str = "", *, is_terminal: bool = False) -> None:
        super().__init__(text)
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal

    @property
    def encoding(self) -> str:
        return "utf-8"


@contextlib.contextmanager
def environment(**values: str | None) -> Iterator[None]:
    """Variables for a while."""
    before = {name: os.environ.get(name) for name in values}
    for name, value in values.items():
        os.environ.pop(name, None) if value is None else os.environ.__setitem__(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.__setitem__(name, value)


def pgflow(
    dsn: str | None, *arguments: str, tty: bool = False, width: int = 120, typed: str | None = None
) -> Answer:
    """Runs a command in this process.

    Args:
        dsn: The database, named as most people name it.
        *arguments: The command line.
        tty: True if it talks to a terminal; else a program reads it, which asks for JSON.
        width: Of the terminal.
        typed: Text that is typed, at a terminal; nobody is there if None.
    """
    out, err = Screen(is_terminal=tty), Screen(is_terminal=tty)
    stdin, sys.stdin = sys.stdin, Screen(typed or "", is_terminal=typed is not None)
    try:
        with environment(
            PGFLOW_DSN=dsn,
            PGFLOW_TENANT=None,
            DATABASE_URL=None,
            COLUMNS=str(width),
            NO_COLOR="1",
            PGFLOW_TRACEBACK=None,
        ):
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                code = run(list(arguments if tty else in_json(*arguments)))
    finally:
        sys.stdin = stdin
    return Answer(code, ANSI.sub("", out.getvalue()), ANSI.sub("", err.getvalue()))


def in_json(*arguments: str) -> tuple[str, ...]:
    """A command line that asks for JSON, where the command has it and no other form is named."""
    words: list[str] = [word for word in arguments if not word.startswith("-")]
    command: Any = get_command(app)
    for word in ours(words):
        command = getattr(command, "commands", {}).get(word, command)
    forms = {form for param in command.params for form in param.secondary_opts}
    named = {"--json", "--table", "--csv", "--help", "-h", "--"} & set(arguments)
    return arguments if named or "--table" not in forms else (*arguments, "--json")


def process(dsn: str | None, *arguments: str, **variables: str) -> subprocess.Popen[str]:
    """Starts a command as a process of its own, which a program reads as in `pgflow`."""
    env = {
        name: value
        for name, value in os.environ.items()
        if name not in ("DATABASE_URL", "PGFLOW_DSN")
    }
    env |= {"PGFLOW_DSN": dsn} if dsn is not None else {}
    return forked.start(
        ["-m", "pgflow_cli", *in_json(*arguments)],
        env=env | variables,
        cwd=APPS,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def finish(started: subprocess.Popen[str]) -> Answer:
    """Waits for its end."""
    out, err = started.communicate(timeout=HANG_SECONDS)
    return Answer(started.returncode, out, err)


def prepare(dsn: str) -> None:
    """Runs in every status there is, made by the library itself."""
    asyncio.run(_work(dsn))
    with psycopg.connect(dsn, autocommit=True) as conn:
        make_stuck(conn, "stuck-1")
        conn.execute(
            "select pgflow.start_run('greet', '{\"name\": \"later\"}', 'later-1', run_at => now() "
            "+ interval '2 hours')"
        )
        conn.execute("select pgflow.start_run('greet', '{\"name\": \"held\"}', 'paused-1')")
        conn.execute("select pgflow.pause_run('paused-1', 'a look first', sent_by => 'ada')")
        conn.execute("select pgflow.start_run('greet', '{\"name\": \"gone\"}', 'cancelled-1')")
        conn.execute("select pgflow.cancel_run('cancelled-1', 'not needed')")
        conn.execute("select pgflow.wake()")
        conn.execute(
            "select pgflow.start_run('greet', '{\"name\": \"idle\"}', 'queued-1', 'unserved')"
        )


async def _work(dsn: str) -> None:
    app = AsyncApp(dsn, include=[cli_jobs])
    async with app, app.worker(poll_seconds=0.1, grace_seconds=5.0):
        labels = {"customer": "acme", "region": "eu"}
        await app.start(
            cli_jobs.checkout.options(key="order-1", labels=labels), cli_jobs.Order("lamp")
        )
        await app.start(
            cli_jobs.checkout.options(key="order-2", labels=labels | {"region": "us"}),
            cli_jobs.Order("desk", 2),
        )
        first = app.get("order-1", cli_jobs.checkout)
        failed = await app.start(cli_jobs.failing.options(key="bad-1"), 7)
        done = await app.start(cli_jobs.greet.options(key="hello-1"), "Ada")
        kin = await app.start(cli_jobs.family.options(key="family-1"))
        long = await app.start(cli_jobs.counting.options(key="count-1"), 1)
        await app.start(cli_jobs.napping.options(key="nap-1"), 3600.0)
        await asyncio.to_thread(_until_waiting, dsn, "order-1", "order-2", "nap-1")
        await first.send(cli_jobs.paid, 500)
        for run_ in (first, done, kin, long):
            await run_.result()
        with contextlib.suppress(RunFailed):
            await failed.result()


def _until_waiting(dsn: str, *keys: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as conn:
        wait_until(lambda: all(statuses(conn)[key] == "waiting" for key in keys), f"{keys} wait")


def make_stuck(conn: psycopg.Connection[Any], key: str) -> None:
    """A run over which more workers have died than may."""
    conn.execute("select pgflow.start_run('poisoned', '{}', %s, 'fragile')", (key,))
    conn.execute("select pgflow.set_queue('fragile', jsonb_build_object('max_deaths', 1))")
    worker_id = ask(conn, worker_calls.register_worker("elsewhere", 1, ["fragile"], 1, "0"))
    lanes = ask(conn, claim_calls.serve_lanes(["fragile"], ["poisoned"]))
    claimed = ask(
        conn,
        claim_calls.claim_runs(
            claim_calls.ClaimRequest(worker_id, [lane.lane_id for lane in lanes], 10)
        ),
    )
    assert len(claimed) == 1
    assert ask(conn, worker_calls.reap_worker(worker_id, 0)).stuck


def as_role(dsn: str, role: str) -> str:
    """The same database as another role, whose password is ``secret``."""
    return re.sub(r"//[^@]*@", f"//{role}:secret@", dsn)


def statuses(conn: psycopg.Connection[Any]) -> dict[str, str]:
    """Every run's status by key."""
    return dict(conn.execute("select key, status from pgflow.runs").fetchall())
