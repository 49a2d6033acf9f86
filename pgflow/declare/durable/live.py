"""Signs of a node at work: what those get who watch, and what says that a long node goes on.

Nothing of it is an outcome. Words are gone once the step has ended, and a heartbeat is counted only
if the worker dies: a death after one is none of those that `max_deaths` bounds.
"""

from __future__ import annotations

import asyncio
from typing import Final, Literal, TypeAlias

import pgflow
from pgflow.declare.play.progress import WORDS

BEAT_SECONDS = 60.0
"""Time between heartbeats of a node."""

MOST_CHARS: Final = 2000
"""Most characters of one word that are passed on."""

MOST_COMPLAINTS: Final = 1000
"""Most lines of standard error that are passed on, for each process."""

Sign: TypeAlias = Literal["start", "assistant", "tool", "stderr"]
"""Kind of a word: the node begins, its agent says or uses something, its program complains."""


def tell(node: str, step: str, kind: Sign, text: str) -> None:
    """Emit progress of a node to its watchers. Call it inside the body of a step.

    Args:
        node: Id of the node.
        step: Key of its step.
        kind: Kind of the message.
        text: The message, of which only the end is sent.
    """
    event = {"id": node, "step": step, "type": kind, "content": text[-MOST_CHARS:]}
    pgflow.emit(WORDS, event, durable=False)


class Complaints:
    """Standard error of a process, emitted line by line up to a bound.

    Args:
        node: Id of the node.
        step: Key of its step.
    """

    def __init__(self, node: str, step: str) -> None:
        self._node, self._step = node, step
        self._rest = b""
        self._left = MOST_COMPLAINTS

    def put(self, chunk: bytes) -> None:
        """Take more of it."""
        *lines, rest = (self._rest + chunk).split(b"\n")
        self._rest = rest[-MOST_CHARS:]
        for line in lines:
            if self._left and line.strip():
                self._left -= 1
                last = "" if self._left else " [more is left out]"
                text = line.decode("utf-8", "replace").replace("\0", "\ufffd")
                tell(self._node, self._step, "stderr", text[-MOST_CHARS:] + last)


class Beating:
    """Sends heartbeats of the step while its body is in the block. Most bodies are short, so they
    cost a timer and no task.
    """

    def __enter__(self) -> None:
        self._begin()

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()

    def _begin(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(BEAT_SECONDS, self._beat)

    def _beat(self) -> None:
        pgflow.heartbeat()
        self._begin()
