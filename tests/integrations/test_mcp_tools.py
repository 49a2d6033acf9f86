"""Tools both ways: workflows that an assistant starts, and tools of a server as steps."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from records import launch, settle
from servers import HANG_SECONDS

import pgflow
from pgflow import InvalidArgument, workflow
from pgflow.authority import Approve
from pgflow.effects import Absent, Confirmed

mcp = pytest.importorskip("mcp", reason="needs the extra mcp")

import bank_mcp  # noqa: E402
from mcp.server.mcpserver import MCPServer  # noqa: E402

from pgflow.mcp import RemoteTools, ServerUnreachable, ToolFailed, add_workflows  # noqa: E402
from pgflow.mcp.offering import WAIT  # noqa: E402

BANK = Path(__file__).parents[1] / "apps" / "bank_mcp.py"


def remote_bank() -> Any:
    return mcp.StdioServerParameters(
        command=sys.executable,
        args=[str(BANK)],
        env={"PGFLOW_TEST_BOOK": os.environ["PGFLOW_TEST_BOOK"]},
    )


@workflow
async def greet(name: str, times: int = 1) -> list[str]:
    """Greet somebody."""
    return [f"hello {name}"] * times


@workflow
async def refund(cents: int) -> str:
    verdict = await pgflow.authority.gate("refund", {"cents": cents}, approvers=["ann"])
    return type(verdict).__name__


@workflow
async def fail() -> None:
    raise ValueError("no such order")


@workflow
async def other() -> int:
    return 1


async def call(client: Any, name: str, /, **given: Any) -> Any:
    found = await client.call_tool(name, given)
    text = found.content[0].text
    return text if found.is_error else json.loads(text)


def shop(app: Any, *workflows: Any, wait_seconds: float = 20) -> Any:
    server: MCPServer[Any] = MCPServer("shop")
    add_workflows(server, app, workflows, wait_seconds=wait_seconds)
    return mcp.Client(server)


@pytest.mark.full
async def test_a_workflow_is_a_tool_that_returns_its_result_and_one_key_is_one_run(aflow):
    elsewhere = await launch(aflow, other, beside=[greet, fail])
    async with aflow.app.worker(), shop(aflow.app, greet, fail) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert list(tools) == ["greet", "fail", WAIT]
        assert set(tools["greet"].input_schema["properties"]) == {"name", "times", "run_key"}
        assert "Greet somebody." in tools["greet"].description
        long = await call(client, "greet", name="x" * 3_000, run_key="a")
        assert long == {"run_key": "a", "status": "completed", "result": ["hello " + "x" * 3_000]}
        assert await call(client, "greet", name="x" * 3_000, run_key="a") == long
        assert "other input" in await call(client, "greet", name="y", run_key="a")
        assert "no such order" in await call(client, "fail")
        assert "valid integer" in await call(client, "greet", name="y", times="often")
        assert "of no workflow" in await call(client, WAIT, run_key=elsewhere.key)


async def test_a_tool_says_that_a_person_is_needed_and_waits_on_by_the_key(aflow):
    aflow.include(refund)
    async with aflow.app.worker(), shop(aflow.app, refund) as client:
        asked = await call(client, "refund", cents=5, run_key="r1")
        assert (asked["needs"], asked["gates"][0]["approvers"]) == ("a person", ["ann"])
        assert "result" not in asked
        await aflow.app.answer(asked["gates"][0]["gate"], Approve(), by="ann")
        assert (await call(client, WAIT, run_key="r1"))["result"] == "Approved"


async def test_a_run_that_takes_longer_is_answered_by_its_key_and_goes_on(aflow):
    aflow.include(greet)
    async with shop(aflow.app, greet, wait_seconds=0.01) as client:
        late = await call(client, "greet", name="ann")  # no worker is there yet
        assert (late["status"], late["next"]) == ("queued", f"call {WAIT} with this run_key")
        await aflow.until_idle()
        while "result" not in late:  # each call waits for ten milliseconds
            late = await call(client, WAIT, run_key=late["run_key"])
        assert late["result"] == ["hello ann"]


def test_a_workflow_whose_parameters_the_tool_needs_itself_is_refused():
    @workflow
    async def bad(run_key: str) -> None: ...

    with pytest.raises(InvalidArgument, match="rename it"):
        add_workflows(MCPServer("shop"), pgflow.AsyncApp(include=[bad]), [bad])


bank = RemoteTools("bank", lambda: bank_mcp.server, timeout=30)  # in this process
remote = RemoteTools("remote", lambda: remote_bank(), timeout=30)
closed = RemoteTools("closed", mcp.StdioServerParameters(command="/no/such/program"))


@pytest.fixture
def book(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PGFLOW_TEST_BOOK", str(tmp_path / "book"))
    return tmp_path / "book"


@bank.read()
async def balance(account: str) -> int: ...


@bank.effect(risk="irreversible", key_argument="key", raises=[ToolFailed])
async def transfer(to: str, cents: int, *, lose: bool = False) -> dict[str, str]: ...


async def transfer_remotely(to: str, cents: int, *, lose: bool = False) -> dict[str, str]: ...


transfer_remotely.__name__ = "transfer"
send = remote.effect(risk="irreversible", key_argument="key")(transfer_remotely)


@send.settle
async def find(to: str, cents: int, *, lose: bool = False) -> Confirmed[dict[str, str]] | Absent:
    found = await bank.call("find_transfer", {"to": to, "key": pgflow.idempotency_key()})
    return Confirmed({"receipt": found}) if found else Absent()


@closed.effect(risk="irreversible")
async def act() -> None: ...


@workflow
async def pay(to: str, cents: int) -> list[Any]:
    before = await balance(to)
    receipt = await transfer(to, cents)
    return [before, receipt, await balance(to)]


@workflow
async def pay_remotely(to: str, cents: int) -> dict[str, str]:
    return await send(to, cents, lose=True)


@workflow
def pay_sync(to: str, cents: int) -> list[Any]:
    return [transfer.sync(to, cents), balance.sync(to)]


@workflow
async def knock() -> None:
    await act()


def lines(book: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in book.read_text().splitlines()]


async def test_tools_of_a_server_are_steps_of_their_class_with_keys_in_both_colours(
    aflow, book, conn
):
    run = await launch(aflow, pay, "bob", 30, beside=[pay_sync])
    assert await run.result(HANG_SECONDS) == [1_000, {"receipt": "30 to bob"}, 970]
    again = await aflow.start(pay_sync, "bob", 5)
    assert await again.result(HANG_SECONDS) == [{"receipt": "5 to bob"}, 965]
    keys = [one["key"] for one in lines(book)]
    assert keys == [
        key for (key,) in conn.execute("select effect from pgflow.effects order by run_id")
    ]
    assert [one["meta"]["pgflow.dev/idempotency-key"] for one in lines(book)] == keys
    steps = conn.execute("select step from pgflow.steps where key = %s order by call", [run.key])
    assert [step for (step,) in steps] == ["bank.balance", "bank.balance"]


@pytest.mark.full
async def test_a_call_whose_answer_is_lost_is_asked_after_and_not_made_again(aflow, book):
    run = await launch(aflow, pay_remotely, "bob", 30)
    assert await run.result(HANG_SECONDS) == {"receipt": "30 to bob"}
    assert len(lines(book)) == 1


async def test_what_a_server_refuses_or_never_hears_was_not_done(aflow, book):
    aflow.include(pay, knock)
    with pytest.raises(pgflow.RunFailed) as refused:
        await (await aflow.start(pay, "bob", 5_000)).result(HANG_SECONDS)
    assert isinstance(refused.value.__cause__, ToolFailed)
    with pytest.raises(pgflow.RunFailed) as unheard:
        await (await aflow.start(knock)).result(HANG_SECONDS)
    assert isinstance(unheard.value.__cause__, ServerUnreachable)
    assert not book.exists()


@pytest.mark.full
async def test_a_tool_asks_for_leave_where_the_policy_wants_it(aflow, book, conn):
    conn.execute(
        """select pgflow.set_policy(
            '[{"name": "bank.transfer", "amount": "$.cents", "above": 50}]', 'limits')"""
    )
    run = await settle(aflow, pay, "bob", 80)
    (gate,) = await aflow.gates()
    assert (gate.name, gate.request) == ("policy/bank.transfer", {"to": "bob", "cents": 80})
    assert not book.exists()
    await aflow.answer(gate, Approve(edit={"to": "bob", "cents": 60}), by="ann")
    assert (await run.result(HANG_SECONDS))[1] == {"receipt": "60 to bob"}
