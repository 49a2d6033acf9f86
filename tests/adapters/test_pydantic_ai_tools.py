"""Tools of an agent are steps of the run: of the class that they say, and approved at gates."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from records import settle
from scripted import call, durable, echo, model, run_id_of, steps_of

import pgflow
from pgflow.agent.pydantic_ai import Approvals, PgflowDurability, as_tool, read_token
from pgflow.authority import Approve, Reject, TakeOver
from pgflow.inspect import ask_async, list_effects

from pydantic_ai import Agent, FunctionToolset, RunContext, Tool, ToolFailed  # isort: skip
from pydantic_ai.capabilities import AbstractCapability, durable_operation  # isort: skip
from pydantic_ai.exceptions import ApprovalRequired, CallDeferred, UserError  # isort: skip
from pydantic_ai.external_events import ExternalEventError, wait_for_external_event  # isort: skip
from pydantic_ai.tools import DeferredToolRequests  # isort: skip
from pydantic_ai.toolsets import DynamicToolset, ExternalToolset  # isort: skip
from pgflow.testing import AsyncHarness

done: list[Any] = []


def look(what: str) -> str:
    return f"saw {what}"


async def plain(what: str) -> str:
    assert pgflow.in_workflow()
    return what


def fail() -> str:
    raise ToolFailed("it is broken")


@pgflow.effects.effect(risk="irreversible", dedup_window=timedelta(days=1), raises=[ToolFailed])
async def refund(order: str, cents: int) -> str:
    """Give money back.

    Args:
        order: The order.
        cents: The amount.
    """
    if cents > 100:
        raise ToolFailed("too much")
    done.append(pgflow.idempotency_key())
    return f"{cents} for {order}"


@pgflow.transaction
async def note(conn: psycopg.AsyncConnection, text: str) -> str:
    await conn.execute("create table if not exists notes (text text)")
    await conn.execute("insert into notes values (%s)", (text,))
    return "noted"


classes = durable(
    [call("look", what="sea"), call("plain", what="p"), call("fail"), call("note", text="n"),
     call("refund", order="o1", cents=5), call("refund", order="o2", cents=500)],
    echo, name="classes",
    tools=[
        Tool(look, metadata={"pgflow": {"kind": "read"}}), Tool(plain, metadata={"pgflow": False}), fail,
        as_tool(note), as_tool(refund),
    ],
)  # fmt: skip


@pgflow.workflow
async def use_classes() -> str:
    return str((await classes.run("hi")).output)


@pgflow.workflow
def use_classes_in_thread() -> str:
    return str(classes.run_sync("hi").output)


@pytest.mark.parametrize("workflow", [use_classes, use_classes_in_thread])
async def test_a_tool_is_a_step_of_the_class_that_it_says(aflow, workflow):
    aflow.include(workflow)
    done.clear()
    run = await aflow.start(workflow)
    result = await run.result()
    assert result.startswith("saw sea p it is broken noted 5 for o1 ")
    assert "too much" in result
    steps = await steps_of(aflow, run)
    assert sorted(steps) == [
        ("classes__function_toolset__<agent>.call_tool:fail", "completed"),
        ("classes__function_toolset__<agent>.call_tool:look", "completed"),
        ("classes__model.request", "decided"),
        ("classes__model.request", "decided"),
        ("note", "completed"),
    ]
    effects = await ask_async(aflow.app, list_effects(await run_id_of(aflow, run)))
    assert [effect.status for effect in effects] == ["confirmed", "failed"]
    assert "classes__model.request" in done[0]  # the act rests on the decision


def test_a_tool_of_a_step_shows_its_signature():
    definition = as_tool(refund, requires_approval=True).tool_def
    assert definition.name == "refund"
    assert definition.description == "Give money back."
    assert list(definition.parameters_json_schema["properties"]) == ["order", "cents"]
    assert list(as_tool(note).tool_def.parameters_json_schema["properties"]) == ["text"]


def pay(to: str, cents: int) -> str:
    done.append((to, cents))
    return f"paid {cents} to {to}"


def pay_if_small(ctx: RunContext[None], cents: int) -> str:
    if cents > 10 and not ctx.tool_call_approved:
        raise ApprovalRequired
    return f"paid {cents}"


async def ask_bank() -> str:
    raise CallDeferred


asking = durable(
    [call("pay", to="ann", cents=900), call("pay", to="bob", cents=1), call("pay_if_small", cents=50),
     call("ask_bank")],
    echo, name="asking",
    tools=[Tool(pay, requires_approval=True), pay_if_small, ask_bank],
    approvals=Approvals(approvers=["ops"], timeout=3600),
)  # fmt: skip


@pgflow.workflow
async def use_gates() -> str:
    return str((await asking.run("hi")).output)


@pgflow.workflow
def use_gates_in_thread() -> str:
    return str(asking.run_sync("hi").output)


async def answer_all(aflow: AsyncHarness) -> None:
    for _ in range(4):
        await aflow.until_idle()
        for gate in await aflow.gates():
            match gate.name, gate.request:
                case "asking:pay", {"to": "ann"}:
                    await aflow.answer(gate, Approve(edit={"to": "ann", "cents": 9}), by="ops")
                case "asking:pay", _:
                    await aflow.answer(gate, Reject("not bob"), by="ops")
                case "asking:pay_if_small", _:
                    await aflow.answer(gate, Approve(), by="ops")
                case _:
                    await aflow.answer(gate, Approve(edit={"rate": 3}), by="ops")


@pytest.mark.parametrize("workflow", [use_gates, use_gates_in_thread])
async def test_an_approval_is_a_gate_and_may_change_the_arguments(aflow, workflow):
    aflow.include(workflow)
    done.clear()
    run = await settle(aflow, workflow)
    assert done == []
    await aflow.crash()  # whoever answers, answers to what the database has
    await answer_all(aflow)
    result = await run.result()
    assert done == [("ann", 9)]
    for part in ("paid 9 to ann", "The call was rejected: not bob", "paid 50", "{'rate': 3}"):
        assert part in result


taken = durable(call("pay", to="ann", cents=1), echo, name="taken", output_type=[str, DeferredToolRequests],
                tools=[Tool(pay, requires_approval=True)], approvals={"pay": Approvals()})  # fmt: skip
returned = durable(call("pay", to="ann", cents=1), echo, name="returned", output_type=[str, DeferredToolRequests],
                   tools=[Tool(pay, requires_approval=True)], approvals={"other": Approvals()})  # fmt: skip


@pgflow.workflow
async def use_terms(name: str) -> str:
    output = (await {"taken": taken, "returned": returned}[name].run("hi")).output
    return output if isinstance(output, str) else f"deferred {output.approvals[0].tool_name}"


async def test_tools_without_terms_are_deferred_as_the_framework_does(aflow):
    aflow.include(use_terms)
    done.clear()
    assert await (await aflow.start(use_terms, "returned")).result() == "deferred pay"
    run = await settle(aflow, use_terms, "taken")
    await aflow.answer("taken:pay", TakeOver("by hand"), by="ann")
    assert "do not repeat it. Result: 'by hand'" in await run.result()
    assert done == []


tokens: list[str] = []


async def hand_out(token: str) -> Any:
    tokens.append(token)


async def colour() -> str:
    try:
        return str(
            await wait_for_external_event("colour", ask=hand_out, timeout=timedelta(hours=1))
        )
    except ExternalEventError as error:
        return str(error)


asks = durable(call("colour"), echo, name="asks", tools=[Tool(colour, metadata={"pgflow": False})])


@pgflow.workflow
async def use_events() -> list[str]:
    return [str((await asks.run("hi")).output) for _ in range(2)]


@pgflow.workflow
def use_events_in_thread() -> list[str]:
    return [str(asks.run_sync("hi").output)]


async def test_a_token_outlives_the_process_that_handed_it_out(aflow):
    aflow.include(use_events, use_events_in_thread)
    tokens.clear()
    run = await settle(aflow, use_events)
    await aflow.crash()
    await aflow.app.send(*read_token(tokens[0]), {"value": "blue"})
    await aflow.until_idle()
    await aflow.app.send(*read_token(tokens[1]), {"error": "no idea"})
    assert await run.result() == ["blue", "no idea"]
    assert len(tokens) == 2
    run = await settle(aflow, use_events_in_thread)
    await aflow.skip(3601)
    assert await run.result() == ["No resolution arrived within 1:00:00."]
    with pytest.raises(pgflow.InvalidArgument, match="not a token"):
        read_token("run-1/other")


class Audit(AbstractCapability[Any]):
    id = "audit"

    @durable_operation(name="record")
    async def record(self, ctx: RunContext[Any], text: str) -> int:
        done.append(text)
        return len(text)

    async def before_run(self, ctx: RunContext[Any]) -> None:
        await self.record(ctx, "began")


def choose_toolset(ctx: RunContext[Any]) -> FunctionToolset[Any]:
    return FunctionToolset([look])


extended = durable(
    [call("look", what="x"), call("far")], echo, name="extended", more=[Audit()],
    toolsets=[DynamicToolset(choose_toolset, id="chosen")], output_type=[str, DeferredToolRequests],
)  # fmt: skip


@pgflow.workflow
async def use_toolsets(kind: str) -> str:
    far = ExternalToolset([as_tool(refund).tool_def], id="far")
    given: list[Any] = {"external": [far], "function": [FunctionToolset([look], id="late")]}[kind]
    return str((await extended.run("hi", toolsets=given)).output)


async def test_toolsets_and_capabilities_work_in_steps(aflow):
    aflow.include(use_toolsets)
    done.clear()
    run = await aflow.start(use_toolsets, "external")
    await run.result()
    names = {name for name, _ in await steps_of(aflow, run)}
    assert done == ["began"]
    assert {
        "extended__capability__audit.record",
        "extended__dynamic_toolset__chosen.get_tools",
        "extended__dynamic_toolset__chosen.call_tool:look",
    } <= names
    with pytest.raises(pgflow.RunFailed, match="cannot be added at runtime"):
        await (await aflow.start(use_toolsets, "function")).result()


def enqueue(ctx: RunContext[Any]) -> str:
    try:
        ctx.enqueue("more")
    except UserError:
        return "refused"
    return "?"


together: list[int] = []


async def meet(n: int) -> str:
    together.append(n)
    while len(together) < 2:
        await asyncio.sleep(0.001)
    return str(n)


inner = durable("inner", name="inner")


async def delegate() -> str:
    return str((await inner.run("hi")).output)


many = durable(
    [call("meet", n=1), call("meet", n=2), call("enqueue"), call("delegate"), call("big")], echo, name="many",
    tools=[meet, enqueue, Tool(delegate, metadata={"pgflow": False}), Tool(lambda: "x" * 100_000, name="big")],
)  # fmt: skip


@pgflow.workflow
async def use_many() -> str:
    return str((await many.run("hi")).output)


async def test_tools_run_at_once_and_sub_agents_are_part_of_the_run(aflow):
    aflow.include(use_many)
    together.clear()
    run = await aflow.start(use_many)
    assert (await run.result()).startswith("1 2 refused inner xxx")
    assert ("inner__model.request", "decided") in await steps_of(aflow, run)


def test_a_tool_says_options_that_there_are():
    agent = Agent(model("x"), name="n", capabilities=[PgflowDurability(name="other")])
    backend = PgflowDurability.from_agent(agent)
    assert backend is not None
    assert backend.name == "other"
    for said, complaint in (
        ({"retry": 3}, "unknown option 'retry'"),
        ("no", "must be False or a dict"),
    ):
        tool = type("T", (), {"tool_def": type("D", (), {"metadata": {"pgflow": said}})})
        with pytest.raises(UserError, match=complaint):
            backend._options_of(None, tool, "look")
