"""Streams of runs for many readers: shared tails, and an endpoint for browsers.

Values that a run emits are committed first and announced then. A reader of a stream gets the
committed units in order, each with an id from which it can continue anywhere: after a restart, in
another process, on another machine. It may also get the values that bodies of steps emit while
they run. Those are flagged, have no id, and disappear once the step has ended: its durable values
then arrive as units.

A process reads each stream once for any number of readers: a tail passes on the values that it has
read. One connection listens for all tails. A notification is only a hint; without one, polling
finds the values.

Example::

    async def may_read(scope, run, stream):
        return await session_of(scope).owns(run)

    web.mount("/streams", pgflow.streams.web.asgi(app, may_read=may_read))

    new EventSource("/streams/chat-7/answer?live=1")
"""

from pgflow.streams.messages import MESSAGE_HEADERS, message
from pgflow.streams.tails import Event, Tails

__all__ = ["MESSAGE_HEADERS", "Event", "Tails", "message"]
