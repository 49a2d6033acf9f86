"""Plugin of pytest for the tests of LangGraph: those of its saver and store for Postgres, on these or on ours.

`PGFLOW_OTHERS_AS` is `theirs` or `ours`; the two differ in nothing else. A test that uses neither a saver nor
a store is left out.
"""

from __future__ import annotations

import sys
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

from databases import IS_OURS, SERVER, database

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

CHOSEN = {
    "sync_checkpointer": "postgres",
    "async_checkpointer": "postgres_aio",
    "sync_store": "postgres",
    "async_store": "postgres_aio",
    "cache": "memory",
}
"""Parameter of each fixture that is played."""
KEEPERS = [name for name in CHOSEN if name != "cache"]


@contextmanager
def sync_of(name: str) -> Iterator[Any]:
    """A saver or store for sync code."""
    from pgflow import App
    from pgflow.agent import langgraph

    with database() as dsn, App(dsn) as app:
        yield getattr(langgraph, name)(app)


@asynccontextmanager
async def async_of(name: str) -> AsyncIterator[Any]:
    """A saver or store for async code."""
    from pgflow import AsyncApp
    from pgflow.agent import langgraph

    with database() as dsn:
        async with AsyncApp(dsn) as app:
            yield getattr(langgraph, name)(app)


def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    """Keep the tests of savers and stores, and put ours in their place if that is asked for."""
    for module in ("tests.conftest_checkpointer", "tests.conftest_store"):
        sys.modules[module].DEFAULT_POSTGRES_URI = SERVER
    if IS_OURS:
        fixtures = sys.modules["tests.conftest"]
        fixtures._checkpointer_postgres = lambda: sync_of("PgflowSaver")
        fixtures._store_postgres = lambda: sync_of("PgflowStore")
        fixtures._checkpointer_postgres_aio = lambda: async_of("AsyncPgflowSaver")
        fixtures._store_postgres_aio = lambda: async_of("AsyncPgflowStore")
    kept = [item for item in items if _is_chosen(item)]
    config.hook.pytest_deselected(items=[item for item in items if item not in set(kept)])
    items[:] = kept


def _is_chosen(item: Any) -> bool:
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    asked = {name: parameters[name] for name in CHOSEN if name in parameters}
    return any(name in asked for name in KEEPERS) and all(
        CHOSEN[name] == value for name, value in asked.items()
    )
