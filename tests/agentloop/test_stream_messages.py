"""A stream as a message of the Vercel AI SDK: chunks of its protocol, each word once."""

from __future__ import annotations

import json
from typing import Any

import pytest
from records import SOON, launch

import pgflow
from pgflow import RunFailed, step, workflow
from pgflow.streams import MESSAGE_HEADERS, Event, Tails, message
from pgflow.streams.messages import _Message

LONG = "é\n\n" * 30_000


@step
async def answer() -> None:
    for word in ["it ", "it "]:
        pgflow.emit("answer", word, durable=False)
    pgflow.emit("answer", {"type": "text", "text": "it it rains"})


@workflow
async def chat(how: str) -> None:
    await answer()
    pgflow.emit("answer", {"type": "tool-output-available", "toolCallId": "c1", "output": [1]})
    pgflow.emit("answer", LONG)
    pgflow.emit("answer", 7)
    if how == "fails":
        raise ValueError("hunter2")


async def chunks(tails: Tails, run: str) -> list[dict[str, Any]]:
    """Read a message as a browser does."""
    text = "".join([part async for part in message(tails, run, "answer")])
    *events, done, nothing = text.split("\n\n")
    assert (done, nothing) == ("data: [DONE]", "")
    return [json.loads(event.removeprefix("data: ")) for event in events]


@pytest.mark.parametrize("how", ["ends", "fails"])
async def test_a_run_is_one_message_and_each_reader_gets_it_from_the_beginning(aflow, how):
    run = await launch(aflow, chat.options(key="k"), how)
    tails = Tails(aflow.app)
    live = await chunks(tails, "k")
    elsewhere = Tails(aflow.app)
    later = await chunks(elsewhere, "k")
    await elsewhere.close()
    for found in (live, later):
        words = [c["delta"] for c in found if c.get("id") == "k/1" and c["type"] == "text-delta"]
        assert "".join(words) == "it it rains"
        rest = [c for c in found if c.get("id") != "k/1"]
        assert rest[0] == {"type": "start", "messageId": "k"}
        assert rest[1] == {"type": "tool-output-available", "toolCallId": "c1", "output": [1]}
        assert rest[2:5] == [
            {"type": "text-start", "id": "k/2"},
            {"type": "text-delta", "id": "k/2", "delta": LONG},
            {"type": "text-end", "id": "k/2"},
        ]
        assert (rest[5]["type"], rest[5]["data"], rest[6:]) == (
            "data-value",
            7,
            [{"type": "finish"}],
        )
    assert MESSAGE_HEADERS["x-vercel-ai-ui-message-stream"] == "v1"
    assert (await chunks(tails, "nobody"))[1] == {
        "type": "error",
        "errorText": "the run does not exist",
    }
    await tails.close()
    if how == "fails":
        with pytest.raises(RunFailed):
            await run.result(SOON)


def told(*events: Event) -> list[str]:
    """Texts of the parts that a page has at the end."""
    made = _Message("k")
    said = [chunk for event in events for chunk in made.take(event)] + list(made.close())
    assert [c["type"] for c in said if c["type"] != "text-delta"] == ["text-start", "text-end"] * (
        len({c["id"] for c in said})
    ), "each part ends before the next one begins"
    texts: dict[str, str] = {}
    for chunk in said:
        texts[chunk["id"]] = texts.get(chunk["id"], "") + chunk.get("delta", "")
    return list(texts.values())


def test_a_word_that_becomes_durable_is_not_said_again():
    drafts = [Event(word, None, name) for word, name in (("a", "1"), ("b", "2"))]
    assert told(*drafts, Event("a", "1-1", "1"), Event("b", "1-2", "2")) == ["ab"]
    assert told(drafts[0], Event("a", "1-1", "1"), Event("b", "1-2", "2")) == ["ab"]


def test_words_of_a_try_that_failed_stay_beside_the_whole_text():
    whole = Event({"type": "text", "text": "good"}, "1-1", "9")
    assert told(Event("ba", None, "1"), Event("go", None, "2"), whole) == ["bago", "good"]
    assert told(Event("go", None, "2"), Event(whole.value, None, "9"), whole) == ["good"]
