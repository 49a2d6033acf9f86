"""The log of units: each point that a log of an agent has to keep, and where others do not.

The log is the journal read in the words of a conversation (`pgflow/agent/log.py`), so most points
are promises of the journal, looked at from there.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from records import SOON, eventually, launch, result_of, settle
from servers import HANG_SECONDS

import pgflow
from pgflow import Signal, step, workflow
from pgflow.agent import LogUnit, Remarks, read_log
from pgflow.authority import Approved
from pgflow.decisions import Choice, decision
from pgflow.effects import effect
from pgflow.errors import UpdateRejected
from pgflow.inspect import ask_async
from pgflow.streams import Tails
from pgflow.testing import AsyncHarness

says = Signal("says", str)


class World:
    calls: list[str]
    hang: dict[str, asyncio.Event]


@pytest.fixture(autouse=True)
def world() -> None:
    World.calls, World.hang = [], {}


@decision()
async def reply(heard: str) -> Choice[str]:
    return Choice(heard.upper(), why="it was said", model="small-1")


@effect(risk="irreversible")
async def send(text: str) -> str:
    World.calls.append(f"send {text}")
    if text in World.hang:
        await World.hang[text].wait()
    return f"sent {text}"


@send.settle
async def _(text: str) -> pgflow.effects.Absent:
    del text
    return pgflow.effects.Absent()


@step
async def look_up(text: str) -> str:
    World.calls.append(f"look up {text}")
    return f"found {text}"


@workflow
async def chats(turns: int) -> str:
    """Hears something, looks it up, and sends an answer, some times."""
    for _ in range(turns):
        heard = await says.wait()
        found = await look_up(heard)
        chosen = await reply(found)
        with pgflow.because(chosen):
            pgflow.emit("said", await send(chosen.value))
    return "bye"


async def log_of(aflow: AsyncHarness, key: str = "k") -> list[LogUnit]:
    return await ask_async(aflow.app, read_log(key))


def shown(log: list[LogUnit]) -> list[tuple[str, str, str | None]]:
    return [(unit.role, unit.kind, unit.name) for unit in log]


TURN = [
    ("user", "message", "says"), ("assistant", "tool_call", "look_up"),
    ("system", "tool_result", "look_up"), ("assistant", "message", "reply"),
    ("assistant", "tool_call", "send"), ("system", "tool_result", "send"),
    ("assistant", "message", "said"),
]  # fmt: skip


def run_id_of(conn: psycopg.Connection, key: str) -> int:
    row = conn.execute("select run_id from pgflow.runs where key = %s", (key,)).fetchone()
    assert row is not None
    return int(row[0])


async def start(aflow: AsyncHarness, turns: int, key: str = "k") -> Any:
    aflow.include(chats)
    return await aflow.start(chats.options(key=key), turns)


async def test_a_conversation_has_its_roles_and_every_call_and_result_is_a_unit(aflow):
    run = await start(aflow, 2)
    for text in ("one", "two"):
        await run.send(says, text)
    await run.result(SOON)
    log = await log_of(aflow)
    ends = [("user", "message", "chats"), ("assistant", "final", "chats")]
    assert shown(log) == [ends[0], *TURN, *TURN, ends[1]]
    assert [unit.parent for unit in log[1:]] == [unit.id for unit in log[:-1]]
    assert len({unit.id for unit in log}) == len(log)
    by_id = {unit.id: unit for unit in log}
    results = [unit for unit in log if unit.kind == "tool_result"]
    assert [by_id[u.ref].name for u in results if u.ref] == ["look_up", "send"] * 2
    assert not [unit for unit in log if unit.is_owed]
    assert (log[0].value, log[-1].value) == ({"turns": 2}, "bye")


@pytest.mark.full
async def test_a_nothing_is_told_that_is_not_committed(aflow, conn):
    """Point a: persist, then emit."""
    run = await start(aflow, 3)
    tails = Tails(aflow.app)
    told = []

    async def follow() -> None:
        async for event in tails.read("k", "said"):
            assert event.id is not None
            place = event.id.split("-")
            found = conn.execute(
                "select payload from pgflow.timeline where run_id = %s and seq = %s", place
            ).fetchone()
            told.append((event.value, found and found[0], event.id))

    following = asyncio.create_task(follow())
    for text in ("one", "two", "three"):
        await run.send(says, text)
    await asyncio.wait_for(following, HANG_SECONDS)
    await tails.close()
    assert len(told) == 3
    assert all(said == stored for said, stored, _ in told)
    messages = [unit.id for unit in await log_of(aflow) if unit.name == "said"]
    assert messages == [event_id for *_, event_id in told], "the log has them under the same ids"


@pytest.mark.full
async def test_b_a_crash_loses_no_result_that_was_there_and_the_intent_stands_before_it(aflow):
    """Point b: results of one turn are units of their own, as their calls are."""

    @workflow
    async def both() -> list[str]:
        return await asyncio.gather(send("slow"), send("fast"))

    aflow.include(both)
    World.hang["slow"] = asyncio.Event()
    run = await aflow.start(both.options(key="k"))
    working = asyncio.create_task(aflow.until_idle())

    async def fast_is_known() -> bool:
        return any(unit.kind == "tool_result" for unit in await log_of(aflow))

    await eventually(fast_is_known, "the result of the fast one is in the log")
    log = await log_of(aflow)
    calls = [unit for unit in log if unit.kind == "tool_call"]
    found = [(unit.value["text"], unit.is_owed) for unit in calls]
    assert found == [("slow", True), ("fast", False)]
    working.cancel()
    await asyncio.wait([working])
    await aflow.crash()
    World.hang.clear()
    await aflow.until_idle()
    await aflow.skip(timedelta(hours=1))
    assert await run.result(SOON) == ["sent slow", "sent fast"]
    assert World.calls.count("send fast") == 1
    assert "failure" in [u.kind for u in await log_of(aflow)], "that nobody knew is a unit too"


@pytest.mark.full
async def test_c_forks_rewinds_archives_and_feedback_are_on_record(aflow, conn):
    """Point c: nothing of it lives in a process."""
    run = await start(aflow, 1)
    await run.send(says, "one")
    await run.result(SOON)
    log = await log_of(aflow)
    unit = log[5].id
    assert await aflow.app.update(Remarks.note, "k", unit, {"stars": 2}, "ann") == 1
    assert await aflow.app.update(Remarks.note, "k", unit, {"stars": 5}, "bob") == 2
    assert await aflow.app.update(Remarks.archive, "k", log[4].id)
    assert not await aflow.app.update(Remarks.archive, "k", log[4].id)
    assert await aflow.app.update(Remarks.archive, "k", log[3].id)
    assert await aflow.app.update(Remarks.restore, "k", log[3].id)
    await aflow.app.rewind("k", to=1, effects="repeat", by="ann")
    await aflow.app.fork("k", "k2", at=1, effects="repeat")
    await aflow.until_idle()  # a crash in the effect would leave minutes until it is settled
    await aflow.crash()
    log = await log_of(aflow)
    assert log[1].feedback == ()
    made = conn.execute(
        "select update from pgflow.entity_updates where name = 'pgflow.remarks' order by version"
    ).fetchall()
    assert [name for (name,) in made] == [
        "note", "note", "archive", "archive", "archive", "restore",
    ]  # fmt: skip
    await run.result(SOON)
    noted = [u for u in await log_of(aflow) if u.is_archived or u.feedback]
    assert noted == [], "the units that they are about are in the branch that was left"
    who = conn.execute(
        "select payload->>'by' from pgflow.timeline where key = 'k' and event = 'operator'"
    ).fetchall()
    assert ("ann (postgres)",) in who


@pytest.mark.full
async def test_what_people_say_of_a_unit_stays_with_it(aflow):
    run = await start(aflow, 2)
    await run.send(says, "one")
    await aflow.until_idle()
    log = await log_of(aflow)
    await aflow.app.update(Remarks.note, "k", log[2].id, "good", "ann")
    await aflow.app.update(Remarks.archive, "k", log[3].id)
    await aflow.app.rewind("k", to=3, effects="reuse")
    await run.send(says, "two")
    await run.result(SOON)
    log = await log_of(aflow)
    assert [(f.value, f.by) for f in log[2].feedback] == [("good", "ann")]
    assert [unit.is_archived for unit in log[:5]] == [False, False, False, True, False]


@pytest.mark.full
async def test_d_another_process_approves_with_other_arguments(aflow, dsn):
    """Point d: a question to a person is an owed unit, whoever is alive."""

    @workflow
    async def asks(text: str) -> str:
        verdict = await pgflow.authority.gate("send", text)
        assert isinstance(verdict, Approved)
        return await send(verdict.value)

    run = await settle(aflow, asks.options(key="k"), "hello")
    await aflow.crash()
    log = await log_of(aflow)
    assert shown(log)[1:] == [("assistant", "tool_call", "send")]
    assert (log[1].value, log[1].is_owed) == ("hello", True)
    program = """
import sys, pgflow
with pgflow.App(sys.argv[1]) as app:
    app.answer(sys.argv[2], pgflow.authority.Approve(edit="goodbye"), by="ann")
"""
    await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", program, dsn, await gate_of(dsn)], check=True
    )
    await aflow.until_idle()
    assert await run.result(SOON) == "sent goodbye"
    log = await log_of(aflow)
    assert (log[2].role, log[2].kind, log[2].ref) == ("user", "tool_result", log[1].id)
    assert log[2].value["value"] == "goodbye"
    assert log[3].value == {"text": "goodbye"}


async def gate_of(dsn: str) -> str:
    async with await psycopg.AsyncConnection.connect(dsn) as conn:
        row = await (await conn.execute("select gate from pgflow.gates")).fetchone()
        assert row is not None
        return str(row[0])


@pytest.mark.full
async def test_e_after_a_rewind_what_comes_belongs_to_the_new_branch_alone(aflow, conn):
    """Point e: appending to a branch moves no other's tip; fork and rewind change nothing."""
    run = await start(aflow, 2)
    await run.send(says, "one")
    await run.send(says, "two")
    await run.result(SOON)
    before = await log_of(aflow)
    assert before[0].id == f"{run_id_of(conn, 'k')}-0"
    units = """select seq, event, name, payload::text from pgflow.timeline
      where key = 'k' and generation = 1 order by seq"""
    rows = conn.execute(units).fetchall()
    cut = max(seq for seq, event, *_ in rows if event == "signal_received")
    await aflow.app.fork("k", "other", at=cut - 1, effects="reuse")
    await aflow.app.send("other", says, "four")
    await aflow.app.rewind("k", to=cut - 1, effects="repeat")
    await run.result(SOON)
    await aflow.app.get("other", chats).result(SOON)
    assert conn.execute(units).fetchall() == rows
    after, other = await log_of(aflow), await log_of(aflow, "other")
    kept = [unit.id for unit in before[:8]]
    assert [unit.id for unit in after[:8]] == kept, "the part in common, under its ids"
    assert {u.id for u in after[8:]}.isdisjoint({u.id for u in before[8:]})
    assert {u.id for u in other}.isdisjoint({u.id for u in [*before, *after]})
    heard = [unit.value for unit in after if unit.name == "says"]
    assert heard == ["one", "two"], "the message is in the mailbox again"
    assert [unit.value for unit in other if unit.name == "says"] == ["one", "four"]


@dataclass
class Talk:
    said: list[str] = field(default_factory=list)


@workflow
async def talk() -> list[str]:
    state = Talk()
    await pgflow.updates.serve(state, until=lambda: len(state.said) == 2)
    return state.said


@talk.update
async def say(state: Talk, text: str, tip: int) -> int:
    del tip
    state.said.append(text)
    return len(state.said)


@say.validator
def _(state: Talk, text: str, tip: int) -> None:
    if tip != len(state.said):
        raise ValueError(f"the tip of {text!r} is {len(state.said)}")


@pytest.mark.full
async def test_f_who_appends_to_a_tip_that_has_moved_is_told(aflow):
    """Point f: a stale append is a conflict, and never silence."""

    run = await launch(aflow, talk.options(key="k"))
    working = asyncio.create_task(aflow.until_idle())
    answers = await asyncio.gather(
        *(run.execute_update(say, text, 0) for text in "abcd"), return_exceptions=True
    )
    await working
    assert answers.count(1) == 1
    assert sum(isinstance(answer, UpdateRejected) for answer in answers) == 3
    assert await run.execute_update(say, "last", 1) == 2
    assert (await run.result(SOON))[1] == "last"
    assert [u.role for u in await log_of(aflow) if u.name == "say"] == ["user", "user"]


@pytest.mark.full
async def test_g_a_sub_agent_has_a_log_of_its_own_and_resumes_in_it(aflow):
    """Point g: it is a child, found by the call of its parent."""

    @workflow
    async def research(text: str) -> str:
        found = await look_up(text)
        return await send(found)

    @workflow
    async def leads(text: str) -> str:
        return await pgflow.run_child(research, text)

    World.hang["found it"] = asyncio.Event()
    run = await launch(aflow, leads.options(key="k"), "it", beside=[research])
    working = asyncio.create_task(aflow.until_idle())
    await eventually(lambda: "send found it" in World.calls, "the child acts")
    working.cancel()
    await asyncio.wait([working])
    await aflow.crash()
    World.hang.clear()
    await aflow.until_idle()
    await aflow.skip(timedelta(hours=1))
    assert await run.result(SOON) == "sent found it"
    log = await log_of(aflow)
    (call,) = [unit for unit in log if unit.kind == "tool_call"]
    assert call.ref is not None
    child = await log_of(aflow, call.ref)
    assert [u.name for u in child if u.kind == "tool_result"] == ["look_up", "send"]
    assert World.calls.count("look up it") == 1


async def test_the_log_goes_over_all_generations_of_a_run(aflow):
    @workflow
    async def long(n: int, summary: str) -> str:
        await look_up(f"{summary} {n}")
        if n < 2:
            pgflow.continue_as_new(n + 1, f"after {n}")
        return "done"

    await result_of(aflow, long.options(key="k"), 0, "new")
    log = await log_of(aflow)
    results = [unit for unit in log if unit.kind == "tool_result"]
    assert [unit.value for unit in results] == ["found new 0", "found after 0 1", "found after 1 2"]
    (summary,) = [unit for unit in log if unit.role == "system" and unit.kind == "message"]
    assert summary.value == {"n": 2, "summary": "after 1"}
    assert len({unit.id for unit in log}) == len(log)
