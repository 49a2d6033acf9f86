"""Sessions of the OpenAI SDK outside of workflows: the behaviour that its own tests ask of sessions.

`session_suite.tsv` has a line for each of those tests: the suite, the test, and a test of this
file, or a code of `REASONS`.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from records import in_a_loop

from pgflow import AsyncApp, InvalidArgument

pytest.importorskip("agents", reason="openai-agents is not installed: pip install -e '.[adapters]'")

from collections.abc import AsyncIterator

from agents import (  # noqa: E402
    Agent,
    Model,
    ModelResponse,
    RunConfig,
    Runner,
    SessionSettings,
    Usage,
    function_tool,
    set_tracing_disabled,
)
from openai.types.responses import (  # noqa: E402
    Response,
    ResponseCompletedEvent,
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
)

from pgflow.agent.openai_agents import PgflowSession  # noqa: E402

set_tracing_disabled(True)

ROWS = [
    line.split("\t")
    for line in (Path(__file__).parent / "session_suite.tsv").read_text().splitlines()
]
REASONS = {
    "connection": "of a database's own connections, files, locks and pools; an app has them here",
    "corrupt": "of rows that are no JSON, which a column of JSON cannot have",
    "closing": "of sessions that are closed; here the app is",
    "constructor": "of the class's own arguments and attributes",
    "schema": "of tables that are made at the first use; here the schema is there",
    "loop": "of one session in several loops; a session is for one, as its app is",
    "runner": "of the Runner itself, or of sessions that are another's",
    "ties": "of rows of the same time; a path has a number here",
}


class Scripted(Model):
    """A model that says what was put into it, and keeps what it was asked."""

    def __init__(self, *turns: Any) -> None:
        self.turns, self.asked = list(turns), list[Any]()

    async def get_response(
        self,
        system_instructions: Any,
        input: Any,  # noqa: A002
        *args: Any,
        **options: Any,
    ) -> ModelResponse:
        self.asked.append(input)
        turn = self.turns.pop(0)
        output = say(turn) if isinstance(turn, str) else turn
        return ModelResponse(output=[output], usage=Usage(), response_id=None)

    async def stream_response(self, *args: Any, **options: Any) -> AsyncIterator[Any]:
        said = await self.get_response(*args, **options)
        response = Response(
            id="r",
            created_at=0,
            model="m",
            object="response",
            output=said.output,
            tool_choice="auto",
            tools=[],
            parallel_tool_calls=False,
        )
        yield ResponseCompletedEvent(
            type="response.completed", response=response, sequence_number=0
        )


def say(text: str) -> ResponseOutputMessage:
    content = ResponseOutputText(annotations=[], text=text, type="output_text")
    return ResponseOutputMessage(
        id="m", role="assistant", status="completed", type="message", content=[content]
    )


def words(items: Any) -> list[str]:
    """Texts of items, in order."""
    texts = []
    for item in items:
        content = item.get("content") or item.get("output") or item.get("name")
        texts.append(content if isinstance(content, str) else content[0]["text"])
    return texts


def user(text: str) -> Any:
    return {"role": "user", "content": text}


@function_tool(needs_approval=True)
async def note(text: str) -> str:
    return f"noted {text}"


@in_a_loop
async def test_the_runner_goes_on_with_what_a_session_has(dsn):
    async with AsyncApp(dsn) as app:
        model = Scripted("one", "two", "three", "four")
        agent = Agent(name="a", model=model)
        ada, bob = PgflowSession("ada", app), PgflowSession("bob", app)
        assert (await Runner.run(agent, "first", session=ada)).final_output == "one"
        await Runner.run(agent, [user("second")], session=ada)
        assert words(model.asked[-1]) == ["first", "one", "second"]
        await Runner.run(agent, "other", session=bob)
        assert words(model.asked[-1]) == ["other"]
        streamed = Runner.run_streamed(agent, "third", session=ada)
        async for _ in streamed.stream_events():
            pass
        assert words(model.asked[-1]) == ["first", "one", "second", "two", "third"]
        said = ["first", "one", "second", "two", "third", "four"]
        assert words(await PgflowSession("ada", app).get_items()) == said


@in_a_loop
async def test_the_runner_reads_as_much_as_it_is_told(dsn):
    async with AsyncApp(dsn) as app:
        model = Scripted(*"abcdef")
        agent = Agent(name="a", model=model)
        session = PgflowSession("limited", app, settings=SessionSettings(limit=2))
        await session.add_items([user(str(n)) for n in range(4)])
        assert words(await session.get_items()) == ["2", "3"]
        assert words(await session.get_items(limit=3)) == ["1", "2", "3"]
        assert words(await session.get_items(limit=99)) == ["0", "1", "2", "3"]
        for limit, known in ((None, ["2", "3"]), (1, ["a"]), (0, []), (50, None)):
            config = RunConfig(session_settings=SessionSettings(limit=limit))
            await Runner.run(agent, "new", session=session, run_config=config)
            if known is not None:
                assert words(model.asked[-1]) == [*known, "new"]
            else:
                assert len(model.asked[-1]) == 4 + 2 * 3 + 1

        def only_first(history: list[Any], new: list[Any]) -> list[Any]:
            return [*history[:1], *new]

        config = RunConfig(
            session_input_callback=only_first, session_settings=SessionSettings(limit=50)
        )
        before = await session.get_items(limit=99)
        await Runner.run(agent, "last", session=session, run_config=config)
        assert words(model.asked[-1]) == ["0", "last"]
        assert words(await session.get_items(limit=99)) == [*words(before), "last", "e"]


@in_a_loop
async def test_items_come_back_as_they_were(dsn):
    async with AsyncApp(dsn) as app:
        session = PgflowSession("o'hara \u2603 %s", app)
        texts = [
            "こんにちは",
            "😊👍",
            "O'Reilly",
            "Robert'); DROP TABLE students;--",
            "x" * 100_000,
        ]
        items = [{"role": "user", "content": text, "deep": [{"n": 1.5}, None]} for text in texts]
        await session.add_items(items)
        await session.close()
        assert await session.get_items() == items
        with pytest.raises(InvalidArgument, match="JSON"):
            await session.add_items([user("good"), {"role": "user", "content": object()}])
        assert await session.get_items() == items
        assert [await session.pop_item() for _ in items] == items[::-1]
        assert await session.pop_item() is None


@in_a_loop
async def test_many_at_once_lose_and_double_nothing(dsn):
    async with AsyncApp(dsn) as app:
        sessions = [PgflowSession("shared", app) for _ in range(4)]
        adding = [sessions[n % 4].add_items([user(f"{n}"), user(f"{n}+")]) for n in range(12)]
        await asyncio.gather(*adding)
        every = sorted([f"{n}" for n in range(12)] + [f"{n}+" for n in range(12)])
        assert sorted(words(await sessions[0].get_items())) == every
        late = asyncio.create_task(sessions[0].add_items([user("late"), user("late+")]))
        await asyncio.sleep(0)
        late.cancel()
        with pytest.raises(asyncio.CancelledError):
            await late
        popped = await asyncio.gather(*(sessions[n % 4].pop_item() for n in range(30)))
        found = Counter(words(item for item in popped if item))
        assert set(found.values()) == {1}
        assert sorted(set(found) - {"late", "late+"}) == every
        assert len(set(found) & {"late", "late+"}) in (0, 2)  # all of them or none
        assert await sessions[0].get_items() == []


@in_a_loop
async def test_a_call_that_waits_for_approval_is_in_the_session_once(dsn):
    async with AsyncApp(dsn) as app:
        for said in (True, False):
            asks = ResponseFunctionToolCall(
                arguments='{"text": "this"}', call_id="c", name="note", type="function_call"
            )
            agent = Agent(name="a", model=Scripted(asks, "done"), tools=[note])
            session = PgflowSession(f"asked {said}", app)
            result = await Runner.run(agent, "note this", session=session)
            state = result.to_state()
            (asked,) = result.interruptions
            if said:
                state.approve(asked)
            else:
                state.reject(asked, rejection_message="no")
            again = PgflowSession(f"asked {said}", app)
            assert (await Runner.run(agent, state, session=again)).final_output == "done"
            output = "noted this" if said else "no"
            assert words(await again.get_items()) == ["note this", "note", output, "done"]


def test_each_test_of_the_sdk_has_a_counterpart_or_a_reason():
    assert len({(suite, test) for suite, test, _ in ROWS}) == len(ROWS)
    own = Path(__file__).read_text()
    direct = (Path(__file__).parent / "test_openai_agents_durable.py").read_text()
    for suite, test, fate in ROWS:
        known = fate in REASONS or re.search(rf"def test_{fate}\(", own + direct)
        assert known, f"{suite} {test}: {fate}"
    counterparts = sum(fate not in REASONS for *_, fate in ROWS)
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "openai-agents.md").read_text()
    said = f"Of its {len(ROWS)} tests {counterparts} have a counterpart"
    assert said in page
