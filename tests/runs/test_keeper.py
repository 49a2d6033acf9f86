"""Processes of nodes: whatever becomes of a worker, none of them is left behind."""

from __future__ import annotations

import asyncio
import functools
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from servers import wait_until

from pgflow.declare.durable import processes
from pgflow.declare.durable.processes import KeeperLost, NotStarted, Order, close_keeper, run


@pytest.fixture(autouse=True)
def _keeper() -> Iterator[None]:
    yield
    close_keeper()


def alone(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a coroutine test on an event loop of its own."""

    @functools.wraps(test)
    def run_alone(**values: Any) -> None:
        asyncio.run(test(**values))

    return run_alone


def bash(script: str, cwd: Path | str = "/tmp", **options) -> Order:
    return Order(["bash", "-c", script], str(cwd), {"PATH": os.environ["PATH"]}, **options)


def lives(pid: int) -> bool:
    """Return True for a process that runs; one that has ended and was not asked after does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def pids(path: Path, count: int) -> list[int]:
    wait_until(lambda: path.exists() and len(path.read_text().split()) == count, "they run")
    return [int(pid) for pid in path.read_text().split()]


@alone
async def test_a_process_tells_its_status_and_what_it_printed():
    ended = await run(bash("cat; echo no >&2; exit 3", stdin=b"hello"))
    assert (ended.status, bytes(ended.stdout.text), bytes(ended.stderr.text)) == (
        3,
        b"hello",
        b"no\n",
    )


@alone
async def test_its_environment_is_what_it_is_given_and_nothing_else():
    ended = await run(bash("env | cut -d= -f1 | sort | tr '\\n' ' '"))
    assert set(ended.stdout.text.decode().split()) <= {"PATH", "PWD", "SHLVL", "_", "OLDPWD"}


@pytest.fixture(params=["setpriv", "fork"])
def way(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The way in which the keeper starts processes: by a fork where there is no setpriv."""
    if request.param == "fork":
        program = tmp_path / "keeper.py"
        program.write_text(FORKING.format(keeper=processes.keeper.__file__))
        monkeypatch.setattr(processes.keeper, "__file__", str(program))


FORKING = """
import importlib.util
spec = importlib.util.spec_from_file_location("keeper", {keeper!r})
keeper = importlib.util.module_from_spec(spec)
spec.loader.exec_module(keeper)
keeper._helper = lambda: None
keeper.main()
"""


@pytest.mark.usefixtures("way")
@alone
async def test_however_it_is_started_it_is_the_same_process(tmp_path):
    script = "pwd; ps -o sid= $$ | grep -cw $$; echo $0; grep SigIgn: /proc/self/status"
    ended = await run(bash(script, tmp_path))
    *said, ignored = ended.stdout.text.decode().split()
    assert said == [str(tmp_path), "1", "bash", "SigIgn:"]
    assert not any(int(ignored, 16) >> one - 1 & 1 for one in processes.keeper._SIGNALS)
    (tmp_path / "locked").write_text("#!/bin/sh\n")
    with pytest.raises(NotStarted, match="./locked cannot be run: Permission denied"):
        await run(Order(["./locked"], str(tmp_path), {}))
    with pytest.raises(NotStarted, match="nonesuch cannot be run: No such file"):
        await run(Order(["nonesuch"], "/tmp", {"PATH": "/bin"}))
    with pytest.raises(NotStarted, match="/no/folder"):
        await run(bash("true", "/no/folder"))


@alone
async def test_what_is_too_long_is_in_a_file_named_by_its_hash(tmp_path):
    ended = await run(bash("yes | head -c 300000", most_bytes=1000, spill_dir=tmp_path))
    assert len(ended.stdout.text) <= 1000 < ended.stdout.size == 300000
    assert ended.stdout.path is not None
    said = subprocess.run(
        ["sha256sum", ended.stdout.path], capture_output=True, text=True, check=True
    )
    assert said.stdout.split()[0] == ended.stdout.digest == Path(ended.stdout.path).name


@pytest.mark.parametrize("option", ["timeout_seconds", "idle_seconds"])
@alone
async def test_the_end_of_its_time_ends_its_whole_group(tmp_path, option):
    script = f"sleep 600 & echo $! $$ > {tmp_path}/pids; sleep 600"
    ended = await run(bash(script, **{option: 0.3}))
    assert ended.timed_out
    for pid in pids(tmp_path / "pids", 2):
        wait_until(lambda pid=pid: not lives(pid), "the group ends")


@alone
async def test_giving_up_a_step_ends_its_whole_group(tmp_path):
    task = asyncio.create_task(run(bash(f"sleep 600 & echo $! $$ > {tmp_path}/pids; sleep 600")))
    found = await asyncio.to_thread(pids, tmp_path / "pids", 2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not lives(found[1])
    wait_until(lambda: not lives(found[0]), "the group ends")


@alone
async def test_giving_up_a_step_before_its_start_was_heard_of_ends_it_too(tmp_path):
    task = asyncio.create_task(run(bash(f"echo $$ > {tmp_path}/pids; exec sleep 600")))
    await asyncio.sleep(0)  # it is asked for
    (pid,) = pids(tmp_path / "pids", 1)  # in the thread of the loop, which hears nothing meanwhile
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not lives(pid)


WORKER = """
import asyncio, os, sys
from pgflow.declare.durable.processes import Order, run
script = "sleep 600 & setsid sleep 600 & echo $! $$ > {pids}; kill -0 $!; exec sleep 600"
asyncio.run(run(Order(["bash", "-c", script], "/tmp", dict(os.environ))))
"""


@pytest.mark.full
def test_a_killed_worker_leaves_no_process_behind(tmp_path):
    worker = subprocess.Popen([sys.executable, "-c", WORKER.format(pids=tmp_path / "pids")])
    started = pids(tmp_path / "pids", 2)
    assert all(map(lives, started))
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    for pid in started:
        wait_until(lambda pid=pid: not lives(pid), "it ends with the worker")


@alone
async def test_what_runs_in_the_background_goes_on_and_ends_with_the_worker(tmp_path):
    script = f"sleep 600 >/dev/null 2>&1 </dev/null & echo $! > {tmp_path}/pids"
    ended = await run(bash(script))
    (pid,) = pids(tmp_path / "pids", 1)
    assert ended.status == 0
    assert lives(pid)
    await run(bash("true"))
    assert lives(pid)
    close_keeper()
    wait_until(lambda: not lives(pid), "it ends with the worker")


@pytest.mark.usefixtures("way")
@alone
async def test_a_lost_keeper_is_no_outcome_and_the_next_process_has_another(tmp_path):
    task = asyncio.create_task(run(bash(f"echo $$ > {tmp_path}/pids; sleep 600")))
    (pid,) = await asyncio.to_thread(pids, tmp_path / "pids", 1)
    keeper = processes._keepers._process
    assert keeper is not None
    keeper.kill()
    with pytest.raises(KeeperLost):
        await task
    wait_until(lambda: not lives(pid), "it ends with the keeper")
    assert (await run(bash("exit 7"))).status == 7


@alone
async def test_a_hundred_at_once_are_told_apart():
    ended = await asyncio.gather(*(run(bash(f"echo {n}; exit {n}")) for n in range(100)))
    found = [(one.status, bytes(one.stdout.text)) for one in ended]
    assert found == [(n, f"{n}\n".encode()) for n in range(100)]


@alone
async def test_a_keeper_that_ends_while_processes_run_says_nothing(tmp_path, capfd):
    task = asyncio.create_task(run(bash("echo $$ > pid; sleep 60", tmp_path)))
    await asyncio.to_thread(wait_until, (tmp_path / "pid").exists, "it runs")
    await asyncio.to_thread(close_keeper)
    with pytest.raises(KeeperLost):
        await task
    assert capfd.readouterr().err == ""
