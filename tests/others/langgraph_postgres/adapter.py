"""Plugin of pytest for the tests of LangGraph's saver and store for Postgres: on these, or on ours.

The tests make each part by `from_conn_string` or by a helper `_saver`; both are replaced. Tests of pools,
pipelines and of the saver without a history are left out: those are parts of the peer.
"""

from __future__ import annotations

import sys
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

import psycopg
from databases import IS_OURS, SERVER, create, emptied

from pgflow import App, AsyncApp
from pgflow.agent.langgraph import AsyncPgflowSaver, AsyncPgflowStore, PgflowSaver, PgflowStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

LEFT_OUT = {
    *("pool", "pipe", "shallow", "aio_pool", "aio_pipe"),
    *("halfvec", "l2", "inner_product"),
}
"""Parameters of tests: other connections of theirs, and vectors and distances of pgvector."""


class _SyncPart:
    """Makes a part for sync code in an empty database, wherever the test wants it."""

    MIGRATIONS = ()

    @classmethod
    @contextmanager
    def from_conn_string(cls, _: str, **options: Any) -> Iterator[Any]:
        dsn = emptied()
        with App(dsn) as app:
            part: Any = cls(app, **options)  # type: ignore[call-arg]
            part.dsn = dsn
            yield part

    def setup(self) -> None:
        """Do nothing: the schema is there."""

    @contextmanager
    def _cursor(self) -> Iterator[Any]:
        with psycopg.connect(self.dsn, autocommit=True) as conn:  # type: ignore[attr-defined]
            yield conn.cursor()


class _AsyncPart:
    """The same for async code."""

    MIGRATIONS = ()

    @classmethod
    @asynccontextmanager
    async def from_conn_string(cls, _: str, **options: Any) -> AsyncIterator[Any]:
        dsn = emptied()
        async with AsyncApp(dsn) as app:
            part: Any = cls(app, **options)  # type: ignore[call-arg]
            part.dsn = dsn
            yield part

    async def setup(self) -> None:
        """Do nothing: the schema is there."""

    @asynccontextmanager
    async def _cursor(self) -> AsyncIterator[Any]:
        async with await psycopg.AsyncConnection.connect(self.dsn, autocommit=True) as conn:  # type: ignore[attr-defined]
            yield conn.cursor()


class _Saver(_SyncPart, PgflowSaver):
    """Our saver, made as theirs."""


class _AsyncSaver(_AsyncPart, AsyncPgflowSaver):
    """Our async saver, made as theirs."""


class _Store(_SyncPart, PgflowStore):
    """Our store, made as theirs."""


class _AsyncStore(_AsyncPart, AsyncPgflowStore):
    """Our async store, made as theirs."""


@contextmanager
def _saver(_: str) -> Iterator[Any]:
    with _Saver.from_conn_string("") as saver:
        yield saver


@asynccontextmanager
async def _async_saver(_: str) -> AsyncIterator[Any]:
    async with _AsyncSaver.from_conn_string("") as saver:
        yield saver


OURS = {
    "PostgresSaver": _Saver,
    "AsyncPostgresSaver": _AsyncSaver,
    "PostgresStore": _Store,
    "AsyncPostgresStore": _AsyncStore,
}
HELPERS = {
    ("tests.test_sync", "_saver"): _saver,
    ("tests.test_async", "_saver"): _async_saver,
    ("tests.test_prune", "_sync_saver"): _saver,
    ("tests.test_prune", "_async_saver"): _async_saver,
}


def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    """Name the server to the tests, put our parts in place if that is asked for, and choose."""
    address = create()
    for name, module in list(sys.modules.items()):
        if not name.startswith("tests."):
            continue
        found = vars(module)
        new = {"DEFAULT_URI": address, "DEFAULT_POSTGRES_URI": SERVER} | (OURS if IS_OURS else {})
        found.update({key: value for key, value in new.items() if key in found})
        if IS_OURS:
            found.update({key: part for (home, key), part in HELPERS.items() if home == name})
    kept = [item for item in items if _is_chosen(item)]
    config.hook.pytest_deselected(items=[item for item in items if item not in set(kept)])
    items[:] = kept


def _is_chosen(item: Any) -> bool:
    parameters = getattr(getattr(item, "callspec", None), "params", {}).values()
    values = [part for value in parameters for part in (value if _is_row(value) else [value])]
    return not any(value in LEFT_OUT for value in values if isinstance(value, str))


def _is_row(value: Any) -> bool:
    return isinstance(value, tuple)
