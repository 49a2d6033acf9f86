"""The backend through which pages read and write: an app of either colour, and its codec.

Pages read by :mod:`pgflow.inspect` and write by the verbs of a client, and by nothing else. Values
come as they are stored. The backend opens those that the app's codec can open, or an endpoint that
has the keys, and puts a word in place of the others.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import psycopg
import psycopg_pool

from pgflow._db.query import Query, ReadingQuery, changed
from pgflow._model.blobs import blob_words, names_blob
from pgflow._model.envelopes import is_redacted, open_value
from pgflow._model.tags import masked
from pgflow.app import App, AsyncApp
from pgflow.codecs import Decoder, Name, name_of
from pgflow.console.graphs import GraphDrawer
from pgflow.documents import AsyncDocuments, Documents, Put
from pgflow.errors import CodecError, WrongState
from pgflow.inspect import Question, ask, ask_async, encoded, readable
from pgflow.inspect.question import Steps

T = TypeVar("T")
log = logging.getLogger("pgflow")

Unreachable = (psycopg.OperationalError, psycopg_pool.PoolTimeout)
"""Errors of a database that cannot be asked just now."""


@dataclass
class Seen:
    """Questions that a page has asked.

    Attributes:
        statements: Its statements.
        seconds: Time for which it waited for answers.
    """

    statements: list[Query[Any]] = field(default_factory=list)
    seconds: float = 0.0


_seen: ContextVar[Seen | None] = ContextVar("seen", default=None)


@contextlib.contextmanager
def watched() -> Iterator[Seen]:
    """Keep what is asked while the context is open."""
    seen = Seen()
    token = _seen.set(seen)
    try:
        yield seen
    finally:
        _seen.reset(token)


PAGE_SECONDS = 10.0
"""Time that the database has for all that a page asks. What takes longer is asked in SQL."""
LEAST_SECONDS = 0.1

_until: ContextVar[float | None] = ContextVar("until", default=None)
_opened: ContextVar[dict[Name, Any] | None] = ContextVar("opened", default=None)
"""Values that the decoder has opened for the page that is made."""


@contextlib.contextmanager
def hurried() -> Iterator[None]:
    """Give all that is asked while the context is open the time of one page."""
    token, values = _until.set(time.monotonic() + PAGE_SECONDS), _opened.set({})
    try:
        yield
    finally:
        _until.reset(token)
        _opened.reset(values)


def _in_time(query: Query[Any]) -> Query[Any]:
    """Return a query that the server gives up in time."""
    until = _until.get()
    if until is None:
        return query
    seconds = max(LEAST_SECONDS, until - time.monotonic())
    return ReadingQuery(query.sql, query.params, query.read, seconds)


def _hurried(question: Question[T]) -> Steps[T]:
    """Ask a question whose statements the server gives up in time."""
    return changed(iter(question), _in_time)


def _kept(question: Question[T], statements: list[Query[Any]]) -> Steps[T]:
    """Ask a question, and keep its statements."""

    def keep(query: Query[Any]) -> Query[Any]:
        statements.append(query)
        return query

    return changed(iter(question), keep)


@dataclass(frozen=True)
class _Kept:
    """An answer, the time until which it counts, and the statements that it was asked by."""

    until: float
    answer: Any
    statements: list[Query[Any]]


class Backend:
    """One app, as pages see it.

    Attributes:
        tenant: Tenant whose runs are shown: the only one that the verbs of a client know.
        logs: Address at which the logs of a run are found, with ``{trace_id}`` or ``{key}`` in it;
            empty for none.
        graphs: Drawers of graphs by the name of the workflow.
        auditor_dsn: Connection string by which people's own statements are run; None if none was
            given.
        decoder: Endpoint that opens the values that the app's codec cannot; None for none.
    """

    def __init__(self, app: App | AsyncApp) -> None:
        self._app = app
        self._kept: dict[str, _Kept] = {}
        self.tenant = ""
        self.logs = ""
        self.auditor_dsn: str | None = None
        self.decoder: Decoder | None = None
        self.graphs: Mapping[str, GraphDrawer] = {}

    @property
    def dsn(self) -> str:
        """Connection string of the app."""
        return self._app.dsn

    @property
    def listens_at(self) -> str | None:
        """Connection string at which LISTEN works; None if it does not, or is not known yet."""
        try:
            return self._app.dsn if self._app.listens else None
        except WrongState:
            return None

    async def ask(self, question: Question[T]) -> T:
        """Ask the database."""
        seen = _seen.get()
        if seen is None:
            return await self._decoded(await self._ask(question))
        began = time.perf_counter()
        try:
            found = await self._ask(Question(partial(_kept, question, seen.statements)))
        finally:
            seen.seconds += time.perf_counter() - began
        return await self._decoded(found)

    async def ask_seldom(self, name: str, question: Question[T], seconds: float) -> T:
        """Ask the database, unless this process has asked that by this name a short while ago."""
        now = time.monotonic()
        kept = self._kept.get(name)
        if kept is None or kept.until < now:
            statements: list[Query[Any]] = []
            answer = await self.ask(Question(partial(_kept, question, statements)))
            self._kept = {one: old for one, old in self._kept.items() if old.until > now}
            self._kept[name] = kept = _Kept(now + seconds, answer, statements)
        else:
            if (seen := _seen.get()) is not None:
                seen.statements += kept.statements
            await self._decoded(kept.answer)
        found: T = kept.answer
        return found

    async def _decoded(self, found: T) -> T:
        """Have the decoder open what is in an answer, for :meth:`clear`; return the answer."""
        opened = _opened.get()
        if self.decoder is not None and opened is not None:
            try:
                opened |= await asyncio.to_thread(self.decoder.open, found)
            except CodecError as error:
                log.warning("values stay encoded in the console: %s", error)
        return found

    async def _ask(self, question: Question[T]) -> T:
        question = Question(partial(_hurried, question))
        if isinstance(self._app, App):
            return await asyncio.to_thread(ask, self._app, question)
        return await ask_async(self._app, question)

    async def call(self, verb: str, *given: Any, **options: Any) -> Any:
        """Call a verb of the client by its name."""
        method = getattr(self._app, verb)
        if isinstance(self._app, App):
            return await asyncio.to_thread(method, *given, **options)
        return await method(*given, **options)

    async def keep(self, *documents: Put) -> None:
        """Write documents of the console's own."""
        if isinstance(self._app, App):
            await asyncio.to_thread(Documents(self._app).put, documents)
        else:
            await AsyncDocuments(self._app).put(documents)

    async def forget(self, collection: str, path: tuple[str, ...]) -> None:
        """Delete such a document, if it is there."""
        if isinstance(self._app, App):
            await asyncio.to_thread(Documents(self._app).delete, collection, [path])
        else:
            await AsyncDocuments(self._app).delete(collection, [path])

    def clear(self, value: Any) -> Any:
        """Return a value with what the codec has encoded in clear, or a word in its place; and with
        words in place of large values.
        """
        if isinstance(value, list):
            return [self.clear(part) for part in value]
        if not isinstance(value, dict):
            return value
        if not encoded(value):
            return blob_words(value) or {name: self.clear(part) for name, part in value.items()}
        if is_redacted(value):
            return readable(value)
        envelopes = self._app.definitions.envelopes
        try:
            # A column of type jsonb keeps no order, and an envelope begins with its key.
            opened = open_value(envelopes, {"$codec": value["$codec"], **value}, "a value")
            return masked(opened)
        except CodecError:
            return (_opened.get() or {}).get(name_of(value), encoded(value))

    def reads_everything(self, value: Any) -> bool:
        """Return True if a value can be shown in clear, and so be edited: neither a secret nor a
        large value is in it.
        """
        try:
            opened = open_value(self._app.definitions.envelopes, value, "a value")
        except CodecError:
            return False
        return bool(opened == masked(opened) and not names_blob(json.dumps(opened)))
