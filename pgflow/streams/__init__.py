"""Streams of runs for many readers: shared tails, and an endpoint for browsers.

What a run emits is committed first and told then. A reader of a stream gets the committed units, in
order, each with an id from which it goes on anywhere: after a restart, in another process, on
another machine. Beside them it may get what bodies of steps emit while they run. That is flagged,
has no id, and is gone once the step has ended: what was emitted durably comes again then, with an
id, as a unit.

A process reads each stream once, however many follow it there: a tail hands its readers what it
has. One connection listens for all tails, and is only a hint: what nobody tells is found by
looking.

Example::

    async def may_read(scope, run, stream):
        return await session_of(scope).owns(run)

    web.mount("/streams", pgflow.streams.asgi(app, may_read=may_read))

    new EventSource("/streams/chat-7/answer?live=1")
"""

from pgflow.streams.messages import MESSAGE_HEADERS, message
from pgflow.streams.tails import Event, Tails
from pgflow.streams.web import asgi

__all__ = ["MESSAGE_HEADERS", "Event", "Tails", "asgi", "message"]
