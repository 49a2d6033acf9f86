"""Plugin of pytest for the tests of the OpenAI Agents SDK on sessions: on its own for SQLite, or on ours.

A file or a name of SQLite becomes part of the id of a session: two with one file and one id are the same.
"""

from __future__ import annotations

import inspect
import re
from itertools import count
from typing import Any

from databases import IS_OURS, emptied

from pgflow import AsyncApp
from pgflow.agent.openai_agents import PgflowSession
from pgflow.documents import AsyncDocuments

DSN = emptied()
PARTS = {"SQLiteSession", "AsyncSQLiteSession"}
"""Names of the classes that are replaced."""
INSIDE = re.compile(r"sqlite3|_connection|_init_db|_await_mutation|_locked_for|_lock\b|corrupt")
"""Words of tests that look inside of a session for SQLite: at its connections, locks and rows."""
_in_memory = count()


class Session(PgflowSession):
    """Our session, made and closed as theirs. It opens an app for each call, in whatever loop that is."""

    def __init__(
        self, session_id: str, db_path: Any = ":memory:", *, session_settings: Any = None
    ) -> None:
        place = next(_in_memory) if str(db_path) == ":memory:" else db_path
        super().__init__(f"{place} {session_id}", settings=session_settings)

    async def _do(self, work: Any) -> Any:
        async with AsyncApp(DSN) as app:
            return await work(AsyncDocuments(app))

    def close(self) -> Any:
        """Do nothing, awaited or not."""
        return _Done()


class _Done:
    def __await__(self) -> Any:
        return iter(())


def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    """Choose the tests, and put our session in place if that is asked for."""
    kept = [item for item in items if not INSIDE.search(inspect.getsource(item.function))]
    config.hook.pytest_deselected(items=[item for item in items if item not in set(kept)])
    items[:] = kept
    for found in {id(item.module): vars(item.module) for item in items if IS_OURS}.values():
        found.update({part: Session for part in PARTS if part in found})
