"""Tails: each stream read once in a process, for all that follow it there."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from pgflow._client.handles import STREAM_PAGE
from pgflow._db.calls import result
from pgflow._db.failures import DATABASE_ERRORS
from pgflow._model.codecs import ANYTHING
from pgflow._model.envelopes import open_text
from pgflow._worker.listener import STREAM_CHANNEL, Listener, ListenerCallbacks, parse_done
from pgflow._worker.parts import cancel
from pgflow.app import App, AsyncApp
from pgflow.errors import InvalidArgument, PgflowError, RunNotFound, RunStuck
from pgflow.logs import redacted

log = logging.getLogger("pgflow")

Cursor = tuple[int, int]

KEPT = 1_000
"""Events that a tail keeps for its readers. Slower readers query the database."""
FIRST_LOOK_SECONDS = 0.02
LONGEST_LOOK_SECONDS = 1.0
UNTOLD_LOOK_SECONDS = 0.1
"""Interval of polling without notifications."""


@dataclass(frozen=True)
class Event:
    """Something that a run has emitted to a stream.

    Attributes:
        value: The value.
        id: Place of a committed unit, from which reading goes on; None for what is not durable.
        draft: Name that it has, or had, while its step runs: a unit takes the place of the draft of
            the same name.
    """

    value: Any
    id: str | None
    draft: str | None = None

    @property
    def is_durable(self) -> bool:
        """True if it is committed."""
        return self.id is not None


def _id_of(cursor: Cursor) -> str:
    return f"{cursor[0]}-{cursor[1]}"


def cursor_of(event_id: str) -> Cursor:
    """Return the place that an id names.

    Raises:
        InvalidArgument: The id is not valid.
    """
    found = re.fullmatch(r"([0-9]{1,19})-([0-9]{1,10})", event_id)
    run_id, seq = (int(found[1]), int(found[2])) if found else (-1, -1)
    if not (0 <= run_id < 2**63 and 0 <= seq < 2**31):
        raise InvalidArgument(f"{event_id!r} is not the id of an event of a stream")
    return run_id, seq


class Tails:
    """The streams that are followed in this process, each read once. Belongs to one event loop.

    Args:
        app: The app. Values are decoded with its codec.
    """

    def __init__(self, app: App | AsyncApp) -> None:
        self._app = app if isinstance(app, AsyncApp) else app.on(None)
        self._is_own = not isinstance(app, AsyncApp)
        self._tails: dict[tuple[str, str], _Tail] = {}
        self._listener: Listener | None = None

    async def read(
        self, run: str, stream: str, *, after: str | None = None, live: bool = False
    ) -> AsyncGenerator[Event, None]:
        """Yield the values that a run emits to a stream, until the run closes it or ends.

        Args:
            run: Key of the run.
            stream: Name of the stream.
            after: Id of the last event that was read; by default, read from the beginning.
            live: True to get values of running steps too, before they are durable.

        Raises:
            RunNotFound: The run does not exist, or its history was removed.
            RunStuck: The run cannot go on without a person, and all its values have been read.
            InvalidArgument: The id is not one of an event of a stream.
        """
        cursor = (0, 0) if after is None else cursor_of(after)
        seen: set[str] = set()
        tail = await self._enter(run, stream, cursor, live=live)
        try:
            while True:
                changed = tail.changed
                found = tail.since(cursor)
                if found is None:
                    last = tail.last
                    found, _ = await tail.page(cursor)
                    if not found:
                        tail.go_back(cursor, last)
                        continue
                for place, event in found:
                    cursor = place
                    yield event
                if found:
                    continue
                if live:
                    drafts = [(d.draft, d) for d in tail.drafts if d.draft is not None]
                    new = [event for name, event in drafts if name not in seen]
                    seen = {name for name, _ in drafts}  # no other comes back
                    for event in new:
                        yield event
                if tail.changed is not changed:
                    continue
                if tail.error is not None:
                    raise tail.error
                if tail.has_ended:
                    return
                await changed.wait()
        finally:
            await self._leave(tail, live=live)

    async def _enter(self, run: str, stream: str, cursor: Cursor, *, live: bool) -> _Tail:
        await self._app._open()
        connect = self._app._connect
        if self._listener is None and self._app.listens and connect is not None:
            callbacks = ListenerCallbacks(self._heard, self._look_now, self._not_listening)
            self._listener = Listener(connect, [STREAM_CHANNEL], callbacks)
            self._listener.start()
        tail = self._tails.get((run, stream))
        if tail is None or tail.has_ended or tail.error is not None:
            # Readers of one that is over have it still; a rewind may have given it more since.
            tail = self._tails[run, stream] = _Tail(self._app, run, stream, cursor, self._patience)
        tail.readers += 1
        tail.live_readers += live
        if live:
            tail.look()
        return tail

    async def _leave(self, tail: _Tail, *, live: bool) -> None:
        tail.readers -= 1
        tail.live_readers -= live
        if not tail.readers:
            if self._tails.get((tail.key, tail.stream)) is tail:
                del self._tails[tail.key, tail.stream]
            await tail.stop()

    def _patience(self) -> float:
        is_told = self._listener is not None and self._listener.listening
        return LONGEST_LOOK_SECONDS if is_told else UNTOLD_LOOK_SECONDS

    def _heard(self, payload: str) -> None:
        chains = parse_done(payload)
        for tail in self._tails.values():
            if tail.chain_id in chains:
                tail.look()

    def _look_now(self) -> None:
        for tail in self._tails.values():
            tail.look()

    def _not_listening(self, name: str, error: BaseException) -> None:
        log.error(
            "%s has failed again and again: streams are looked at ten times a second",
            name,
            exc_info=error,
        )

    @property
    def count(self) -> int:
        """Number of streams that are followed."""
        return len(self._tails)

    async def close(self) -> None:
        """Stop all tails and cancel their readers."""
        for tail in list(self._tails.values()):
            await tail.stop()
        if self._listener is not None:
            await self._listener.stop()
            self._listener = None
        if self._is_own:
            await self._app.close()


class _Tail:
    """One stream that is followed.

    Attributes:
        changed: Set, and replaced by another, whenever there is something new.
        base: Place behind which the events that it keeps begin.
        last: Place from which it goes on.
        drafts: Values that running steps have emitted and that are not durable, as of the last
            look.
        error: Error because of which it cannot go on; None for none.
        has_ended: True if nothing more comes.
    """

    def __init__(
        self,
        app: AsyncApp,
        key: str,
        stream: str,
        cursor: Cursor,
        patience: Callable[[], float],
    ) -> None:
        self.key, self.stream = key, stream
        self.readers = self.live_readers = 0
        self.chain_id: int | None = None
        self.changed = asyncio.Event()
        self.base = cursor
        self.drafts: list[Event] = []
        self.error: Exception | None = None
        self.has_ended = False
        self._app = app
        self._patience = patience
        self.last = cursor
        self._kept: deque[tuple[Cursor, Event]] = deque()
        self._hint = asyncio.Event()
        self._is_closed = False
        self._task = asyncio.create_task(self._follow(), name=f"pgflow-tail-{stream}")

    def since(self, cursor: Cursor) -> list[tuple[Cursor, Event]] | None:
        """Return what it keeps from there on; None if it does not keep that any more."""
        if cursor < self.base:
            return None
        found: list[tuple[Cursor, Event]] = []
        for place, event in reversed(self._kept):  # most readers have all but the newest
            if place <= cursor:
                break
            found.append((place, event))
        found.reverse()
        return found

    def go_back(self, cursor: Cursor, last: Cursor) -> None:
        """Go back to a cursor from which a reader found nothing although the tail was further: a
        rewind dropped the values between, or the first reader came with an unknown id. So readers
        do not miss later values there.
        """
        if self.last == last:
            self.base = self.last = cursor
            self._kept.clear()
            self.look()

    async def page(self, cursor: Cursor) -> tuple[list[tuple[Cursor, Event]], bool]:
        """Read a page from the database, and whether the stream is closed behind it."""
        rows = await self._app.ask(
            result.read_stream(self.key, self.stream, cursor, 0, STREAM_PAGE)
        )
        found = [((r.run_id, r.seq), self._event(r)) for r in rows if r.value is not None]
        return found, bool(rows) and rows[-1].value is None

    def _event(self, row: result.Emitted) -> Event:
        assert row.value is not None
        return Event(self._opened(row.value), _id_of((row.run_id, row.seq)), row.draft)

    def _opened(self, text: str) -> Any:
        what = f"a value of stream {self.stream!r} of run {self.key!r}"
        envelopes = self._app.definitions.envelopes
        return ANYTHING.decode(open_text(envelopes, text, what), what)

    def look(self) -> None:
        """There may be something new."""
        self._hint.set()

    def _tell(self) -> None:
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()

    async def stop(self) -> None:
        """Stop the tail."""
        await cancel([self._task])

    async def _follow(self) -> None:
        ending: asyncio.Task[result.Ended] | None = None
        try:
            found = await self._insist(lambda: self._app.ask(result.find_chain(self.key)))
            chain_id = self.chain_id = int(found)
            ending = asyncio.create_task(self._app.wait(self.key, chain_id, None))
            ending.add_done_callback(lambda _: self._hint.set())
            await self._look_until(ending)
            self.has_ended = True
        except Exception as error:  # noqa: BLE001 - its readers raise it
            self.error = error
        finally:
            if ending is not None:
                await cancel([ending])
            self._tell()

    async def _look_until(self, ending: asyncio.Task[result.Ended]) -> None:
        """Poll until the stream is closed, or its run has ended, and nothing has arrived since."""
        delay = FIRST_LOOK_SECONDS
        while True:
            self._hint.clear()
            is_over = ending.done()
            has_moved = await self._insist(self._look)
            if has_moved:
                delay = FIRST_LOOK_SECONDS
                continue
            if is_over:
                self._check_end(ending.result())
            if is_over or self._is_closed:
                return
            if not ending.done():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(delay):
                        await self._hint.wait()
            delay = min(self._patience(), delay * 1.5)

    def _check_end(self, ended: result.Ended) -> None:
        if ended.status == "gone" or ended.key != self.key:
            raise RunNotFound(f"run {self.key!r} is gone: its history was removed")
        if ended.status == "stuck":
            raise RunStuck(f"run {self.key!r} is stuck ({ended.reason}): retry_run lets it go on")

    async def _look(self) -> bool:
        """Read what is new; return True if there is a further unit."""
        last = self.last
        found, is_closed = await self.page(last)
        drafts: list[Event] = []
        if self.live_readers:
            rows = await self._app.ask(result.read_drafts(self.key, self.stream))
            drafts = [Event(self._opened(value), None, name) for name, value in rows]
        if self.last != last:
            return True
        # From here on at once: a reader must not meet a unit beside the draft whose place it takes.
        self._is_closed = is_closed
        self._kept.extend(found)
        if found:
            self.last = found[-1][0]
        while len(self._kept) > KEPT:
            self.base = self._kept.popleft()[0]
        if found or drafts != self.drafts:
            self.drafts = drafts
            self._tell()
        return bool(found)

    async def _insist(self, ask: Callable[[], Awaitable[Any]]) -> Any:
        """Ask until there is an answer, even across a failover."""
        delay = FIRST_LOOK_SECONDS
        while True:
            try:
                return await ask()
            except PgflowError:
                raise
            except DATABASE_ERRORS as error:
                log.debug("cannot look at a stream: %s", redacted(error))
            await asyncio.sleep(delay)
            delay = min(LONGEST_LOOK_SECONDS, delay * 2)
