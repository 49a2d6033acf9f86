"""Sessions: conversations that are kept in the database, each item a document.

In a workflow each method is a transactional step: items and the outcome of the step are committed
together, so an item is there once. Outside, an app is asked.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import psycopg
from agents.memory import SessionABC, SessionSettings

import pgflow
from pgflow import AsyncApp
from pgflow.documents import AsyncDocuments, Put
from pgflow.errors import InvalidArgument

ITEMS = "openai_agents.item"
Work = Callable[[AsyncDocuments], Awaitable[Any]]


class PgflowSession(SessionABC):
    """A conversation.

    Args:
        session_id: Its id.
        app: The app whose database has it; none is needed in a workflow.
        settings: Settings of the SDK: the most items that are read, say. A dictionary has their
            names.

    Raises:
        TypeError: The SDK knows no such setting.

    Example::

        result = await Runner.run(agent, "Hello", session=PgflowSession("ada", app))
    """

    def __init__(
        self,
        session_id: str,
        app: AsyncApp | None = None,
        *,
        settings: SessionSettings | dict[str, Any] | None = None,
    ) -> None:
        self.session_id = session_id
        self.session_settings = (
            _read_settings(settings)
            if isinstance(settings, dict)
            else settings or SessionSettings()
        )
        self._app = app

    async def _do(self, work: Work) -> Any:
        """Work with the documents: in a workflow as a step.

        Raises:
            InvalidArgument: This is not in a workflow, and there is no app.
        """
        if pgflow.in_workflow():

            async def session(connection: psycopg.AsyncConnection[Any]) -> Any:
                return await work(AsyncDocuments(connection))

            return await pgflow.transaction(session)()
        if self._app is None:
            raise InvalidArgument(
                f"session {self.session_id!r} is used outside a workflow: pass an AsyncApp"
            )
        return await work(AsyncDocuments(self._app))

    async def get_items(self, limit: int | None = None) -> list[Any]:
        """Returns the newest items, the oldest of them first.

        Args:
            limit: Most items; else that of the settings, else all.
        """
        most = self.session_settings.limit if limit is None and self.session_settings else limit

        async def read(documents: AsyncDocuments) -> list[Any]:
            found: list[Any] = []
            if most is not None and most <= 0:
                return found
            async for document in documents.walk(ITEMS, (self.session_id,), descending=True):
                found.append(document.value)
                if len(found) == most:
                    break
            return found[::-1]

        items: list[Any] = await self._do(read)
        return items

    async def add_items(self, items: list[Any]) -> None:
        """Adds items to the end, all of them or none."""
        if not items:
            return

        async def add(documents: AsyncDocuments) -> None:
            last = await documents.list(ITEMS, (self.session_id,), descending=True, most=1)
            first = int(last[0].path[1]) + 1 if last else 0
            await documents.put(
                # Two who add at once may have one number: both are kept, in some order.
                Put(ITEMS, (self.session_id, f"{first + n:012}", uuid.uuid4().hex), item)
                for n, item in enumerate(items)
            )

        await self._do(add)

    async def pop_item(self) -> Any:
        """Remove the newest item, and return it; None if there is none."""

        async def pop(documents: AsyncDocuments) -> Any:
            while last := await documents.list(ITEMS, (self.session_id,), descending=True, most=1):
                if await documents.delete(ITEMS, [last[0].path]):
                    return last[0].value
            return None

        return await self._do(pop)

    async def clear_session(self) -> None:
        """Removes all items."""

        async def clear(documents: AsyncDocuments) -> None:
            await documents.delete_folder(ITEMS, (self.session_id,))

        await self._do(clear)

    async def close(self) -> None:
        """Do nothing: the session has no connection of its own, and the app is yours to close."""


def _read_settings(given: dict[str, Any]) -> SessionSettings:
    known = {field.name for field in dataclasses.fields(SessionSettings)}
    if unknown := sorted(given.keys() - known):
        raise TypeError(f"Unknown session settings: {', '.join(unknown)}")
    return SessionSettings(**given)
