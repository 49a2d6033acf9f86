"""`pgflow migrate-from`: drafts of code for other engines run as they were meant, and notes name the rest."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from clikit import Answer, pgflow
from records import SOON

import pgflow as library

if TYPE_CHECKING:
    from pgflow.testing import Harness

pytest.importorskip("libcst", reason="libcst is not installed: pip install -e '.[migrate-from]'")

DBOS_CODE = """\
from dbos import DBOS, Queue, SetWorkflowID

queue = Queue("orders", concurrency=2)


@DBOS.step(retries_allowed=True, max_attempts=5, interval_seconds=2.0)
def charge(cents: int) -> str:
    DBOS.logger.info("charging")
    return f"charged {cents}"


@DBOS.step()
def price(n: int) -> int:
    return n * 100


@DBOS.workflow()
def total(n: int) -> int:
    return price(n) + 1


@DBOS.workflow()
async def later(n: int) -> int:
    await DBOS.sleep_async(5)
    return await count(n)


@DBOS.step()
async def count(n: int) -> int:
    return n


@DBOS.workflow(max_recovery_attempts=3)
def order(n: int) -> str:
    DBOS.set_event("state", "begun")
    DBOS.sleep(5)
    DBOS.write_stream("out", DBOS.workflow_id)
    paid = DBOS.recv("paid", timeout_seconds=60)
    return f"{charge(total(n))} {paid}"


def main() -> None:
    DBOS.launch()
    with SetWorkflowID("a"):
        print(order(5))
"""

TEMPORAL_CODE = """\
from datetime import timedelta

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.common import RetryPolicy


@activity.defn
async def greet(name: str, again: str) -> str:
    activity.heartbeat(1)
    return f"hi {name} {again}"


@workflow.defn
class Greeting:
    @workflow.run
    async def run(self, name: str) -> str:
        await workflow.sleep(5)
        return await workflow.execute_activity(
            greet,
            args=[name, "there"],
            start_to_close_timeout=timedelta(seconds=5),
            heartbeat_timeout=timedelta(seconds=1),
            retry_policy=RetryPolicy(maximum_attempts=2),
        )


@workflow.defn
class Parent:
    def __init__(self) -> None:
        self.done = False

    @workflow.run
    async def run(self) -> str:
        await workflow.wait_condition(lambda: self.done)
        return await workflow.execute_child_workflow(Greeting.run, "a", id="g")

    @workflow.signal
    def finish(self) -> None:
        self.done = True
"""


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def drafted(folder: Path, peer: str, code: str) -> Answer:
    (folder / "theirs.py").write_text(code)
    return pgflow(None, "migrate-from", peer, "theirs.py")


def loaded(folder: Path, code: str) -> Any:
    """Import a draft up to what is left to do."""
    path = folder / "draft.py"
    path.write_text(code)
    spec = importlib.util.spec_from_file_location("draft", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_draft_from_dbos_does_what_the_code_did(flow: Harness, tmp_path: Path) -> None:
    answer = drafted(tmp_path, "dbos", DBOS_CODE)
    assert answer.code == 0
    assert [line.split(": ")[:2] for line in answer.err.splitlines()[:-1]] == [
        ["theirs.py:3", "Queue(...)"],
        ["theirs.py:33", "@DBOS.workflow(max_recovery_attempts=)"],
        ["theirs.py:38", "DBOS.recv(...)"],
        ["theirs.py:43", "DBOS.launch"],
        ["theirs.py:44", "SetWorkflowID(...)"],
    ]
    assert answer.err.splitlines()[-1] == "15 uses translated in 1 file, 5 notes"
    draft = answer.out.replace('queue = Queue("orders", concurrency=2)\n', "")
    module = loaded(tmp_path, draft.partition("def main")[0])
    flow.include(module)
    run = flow.start(module.order.options(key="a"), 2)
    flow.until_idle()
    assert run.state() == {"state": "begun"}
    flow.skip(6)
    run.send(library.Signal("paid", object), "in full")
    assert run.result(SOON) == "charged 201 in full"
    assert list(run.stream("out")) == ["a"]
    late = flow.start(module.later, 7)
    flow.until_idle()
    flow.skip(6)
    assert late.result(SOON) == 7
    assert (module.charge.retries.max_attempts, module.price.retries.max_attempts) == (5, 1)


def test_a_draft_from_temporal_does_what_the_code_did(flow: Harness, tmp_path: Path) -> None:
    answer = drafted(tmp_path, "temporal", TEMPORAL_CODE)
    assert answer.code == 0
    assert [line.split(": ")[:2] for line in answer.err.splitlines()[:-1]] == [
        ["theirs.py:4", "import Client"],
        ["theirs.py:19", "workflow.execute_activity(heartbeat_timeout=)"],
        ["theirs.py:28", "workflow.defn"],
        ["theirs.py:33", "workflow.run"],
        ["theirs.py:35", "workflow.wait_condition"],
        ["theirs.py:38", "workflow.signal"],
    ]
    assert 'pgflow.run_child(Greeting.options(key="g"), "a")' in answer.out
    module = loaded(tmp_path, answer.out.partition("@workflow.defn")[0])
    flow.include(module)
    run = flow.start(module.Greeting, "ann")
    flow.until_idle()
    flow.skip(6)
    assert run.result(SOON) == "hi ann there"


def test_a_folder_is_read_and_what_is_no_code_of_the_peer_is_told(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "other.py").write_text("import os\n")
    answer = pgflow(None, "migrate-from", "dbos", "code")
    assert (answer.code, answer.out) == (2, "")
    assert "no file that imports dbos" in answer.err
    for name in ("a", "b"):
        (tmp_path / "code" / f"{name}.py").write_text(
            "from dbos import DBOS\nDBOS.logger.info('x')\n"
        )
    answer = pgflow(None, "migrate-from", "dbos", "code")
    assert answer.out.count("# code/") == 2
    assert answer.err == "2 uses translated in 2 files, 0 notes\n"
    (tmp_path / "code" / "bad.py").write_text("def def\n")
    assert "is not Python" in pgflow(None, "migrate-from", "dbos", "code").err
