"""A stream of a run as a message of the Vercel AI SDK, whose ``useChat`` shows it.

Its protocol (``x-vercel-ai-ui-message-stream: v1``) is server-sent events, each a chunk of one
message, and has no ids to go on from. So each reader gets the message from its beginning, and a
page that reloads asks again. What a page has shown cannot be taken back: words of a try that failed
stay as a part of their own, and the whole text follows as the next.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import Any, Final

from pgflow.errors import InvalidArgument, RunNotFound, RunStuck
from pgflow.streams.tails import Event, Tails

MESSAGE_HEADERS: Final = {
    "content-type": "text/event-stream",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
    "x-vercel-ai-ui-message-stream": "v1",
}
"""Headers of an answer that is a message."""


async def message(
    tails: Tails, run: str, stream: str, *, live: bool = True
) -> AsyncGenerator[str, None]:
    """Yield a stream as server-sent events of one message, for an answer with ``MESSAGE_HEADERS``.
    First check that the reader may see the run.

    A text is words, which follow each other. ``{"type": "text", "text": ...}`` is the whole text,
    in place of the words that were not durable. Any other object with a ``type`` is a chunk of the
    protocol, such as ``tool-output-available`` or ``data-weather``, and is sent as it is once it is
    durable. All other values are chunks ``data-value``.

    Args:
        tails: The streams of this process.
        run: Key of the run, which is the id of the message.
        stream: Name of the stream.
        live: True for words of running steps, before they are durable.

    Example::

        @web.get("/chat/{run}")
        async def chat(run: str) -> StreamingResponse:
            return StreamingResponse(message(tails, run, "answer"), headers=MESSAGE_HEADERS)
    """
    yield _sent({"type": "start", "messageId": run})
    made = _Message(run)
    end: dict[str, Any] = {"type": "finish"}
    try:
        async with aclosing(tails.read(run, stream, live=live)) as events:
            async for event in events:
                for chunk in made.take(event):
                    yield _sent(chunk)
    except RunStuck:
        end = {"type": "error", "errorText": "the run needs a person"}
    except (RunNotFound, InvalidArgument):
        end = {"type": "error", "errorText": "the run does not exist"}
    for chunk in [*made.close(), end]:
        yield _sent(chunk)
    yield "data: [DONE]\n\n"


class _Message:
    """A message in the making: its open part, and the words in it that are not durable yet."""

    def __init__(self, run: str) -> None:
        self._run = run
        self._parts = 0
        self._is_open = False
        self._words: dict[str | None, str] = {}

    def take(self, event: Event) -> Iterator[dict[str, Any]]:
        """Yield the chunks of an event."""
        value = event.value
        if isinstance(value, str):
            yield from self._say(event, value)
        elif not event.is_durable:
            return  # it comes again, as a unit
        elif isinstance(value, dict) and value.get("type") == "text":
            yield from self._settle(str(value.get("text", "")))
        else:
            yield from self.close()
            is_chunk = isinstance(value, dict) and isinstance(value.get("type"), str)
            yield value if is_chunk else {"type": "data-value", "id": event.id, "data": value}

    def _say(self, event: Event, word: str) -> Iterator[dict[str, Any]]:
        """Words, once: as a draft, or as a unit of which no draft was seen."""
        if event.is_durable:
            if self._words.pop(event.draft, None) is None:
                yield from self._add(word)
        else:
            self._words[event.draft] = word
            yield from self._add(word)

    def _settle(self, whole: str) -> Iterator[dict[str, Any]]:
        """The whole text: what the words lack of it, or all of it in a part of its own."""
        shown = "".join(self._words.values())
        if not whole.startswith(shown):
            yield from self.close()
            shown = ""
        yield from self._add(whole[len(shown) :])
        yield from self.close()

    def _add(self, text: str) -> Iterator[dict[str, Any]]:
        if not text:
            return
        if not self._is_open:
            self._is_open = True
            self._parts += 1
            yield {"type": "text-start", "id": self._id}
        yield {"type": "text-delta", "id": self._id, "delta": text}

    def close(self) -> Iterator[dict[str, Any]]:
        """Yield the end of the part that is open, if one is."""
        self._words.clear()
        if self._is_open:
            self._is_open = False
            yield {"type": "text-end", "id": self._id}

    @property
    def _id(self) -> str:
        return f"{self._run}/{self._parts}"


def _sent(chunk: dict[str, Any]) -> str:
    return f"data: {json.dumps(chunk, ensure_ascii=False)}\n\n"
