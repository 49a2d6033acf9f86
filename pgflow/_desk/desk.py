"""The desk at which pages ask and say: an app of either colour, and its codec.

Pages read by :mod:`pgflow.inspect` and write by the verbs of a client, and by nothing else. Values
come as they are stored. What the codec of the app can open is opened here, and a word stands in
place of what it cannot.
"""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

import psycopg
import psycopg_pool

from pgflow._model.envelopes import is_redacted, open_value
from pgflow.app import App, AsyncApp
from pgflow.errors import CodecError
from pgflow.inspect import Question, ask, ask_async, encoded, readable

T = TypeVar("T")

Unreachable = (psycopg.OperationalError, psycopg_pool.PoolTimeout)
"""Errors of a database that cannot be asked just now."""


class Desk:
    """One app, as pages see it.

    Attributes:
        tenant: Tenant whose runs are shown: the only one that the verbs of a client know.
    """

    def __init__(self, app: App | AsyncApp) -> None:
        self._app = app
        self.tenant = ""

    async def ask(self, question: Question[T]) -> T:
        """Ask the database."""
        if isinstance(self._app, App):
            return await asyncio.to_thread(ask, self._app, question)
        return await ask_async(self._app, question)

    async def tell(self, verb: str, *given: Any, **options: Any) -> Any:
        """Call a verb of the client by its name."""
        method = getattr(self._app, verb)
        if isinstance(self._app, App):
            return await asyncio.to_thread(method, *given, **options)
        return await method(*given, **options)

    def clear(self, value: Any) -> Any:
        """Return a value with what the codec has encoded in clear, or a word in its place."""
        if isinstance(value, list):
            return [self.clear(part) for part in value]
        if not isinstance(value, dict):
            return value
        if not encoded(value):
            return {name: self.clear(part) for name, part in value.items()}
        if is_redacted(value):
            return readable(value)
        envelopes = self._app.definitions.envelopes
        try:
            # A column of type jsonb keeps no order, and an envelope begins with its key.
            return open_value(envelopes, {"$codec": value["$codec"], **value}, "a value")
        except CodecError:
            return encoded(value)

    def reads_everything(self, value: Any) -> bool:
        """Return True if a value can be shown in clear, and so be edited."""
        try:
            open_value(self._app.definitions.envelopes, value, "a value")
        except CodecError:
            return False
        return True
