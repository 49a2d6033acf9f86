"""Documents: values under paths, in both colours and in the transaction of a step."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
import sqlkit
from records import SOON, in_a_loop

import pgflow
from pgflow import App, AsyncApp, InvalidArgument
from pgflow.documents import AsyncDocuments, Documents, Put
from pgflow.errors import NotStorable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pgflow.testing import AsyncHarness

ODD = [("a",), ("a", "b"), ("a", "b", "ä"), ("a\x01", "b"), ("aa", "b"), ("b", "\U0010ffff")]


@pytest.fixture
def documents(dsn: str) -> Iterator[Documents]:
    with App(dsn) as app:
        yield Documents(app)


def test_a_folder_has_what_is_below_it_and_nothing_else(documents: Documents) -> None:
    documents.put([Put("c", path, {"n": n}) for n, path in enumerate(ODD)])
    documents.put([Put("other", ("a", "b"), None)])
    paths = [document.path for document in documents.list("c")]
    assert paths == ODD
    assert [d.path for d in documents.list("c", ("a",))] == ODD[:3]
    assert [d.path for d in documents.list("c", ("a",), descending=True)] == ODD[2::-1]
    assert documents.folders("c") == [(), ("a",), ("a", "b"), ("a\x01",), ("aa",), ("b",)]
    for descending in (False, True):
        read: list[tuple[str, ...]] = []
        while page := documents.list(
            "c", after=read[-1] if read else None, descending=descending, most=2
        ):
            read += [document.path for document in page]
        assert read == (ODD[::-1] if descending else ODD)
    assert documents.delete_folder("c", ("a",)) == 3
    assert [document.path for document in documents.walk("c")] == ODD[3:]


def test_a_write_replaces_or_leaves_and_deletes(documents: Documents) -> None:
    path = ("x", "y")
    assert documents.put([Put("c", path, 1), Put("c", path, 2)]) == 1
    first = documents.get("c", [path])[path]
    assert documents.put([Put("c", path, 3, once=True), Put("c", ("z",), 4, once=True)]) == 1
    assert documents.get("c", [path])[path] == first
    documents.put([Put("c", path, 5)])
    second = documents.get("c", [path, ("none",)])[path]
    assert (first.value, second.value, second.created_at) == (2, 5, first.created_at)
    assert second.updated_at > first.updated_at
    assert documents.delete("c", [path, ("none",)]) == 1
    assert documents.get("c", [path]) == {}


@pytest.mark.parametrize(
    "path", [(), ("",), ("a\0",), ("\ud800",), "text", ("x" * 2001,), ("x",) * 51]
)
def test_what_is_no_path_is_refused(documents: Documents, path: Any) -> None:
    with pytest.raises(InvalidArgument):
        documents.put([Put("c", ("fine",), 1), Put("c", path, 1)])
    assert documents.list("c") == []


def test_what_is_no_value_is_refused(documents: Documents) -> None:
    for value in (float("nan"), object(), "x" * (1 << 20), "\0"):
        with pytest.raises(NotStorable):
            documents.put([Put("c", ("fine",), 1), Put("c", ("a",), value)])
    with pytest.raises(InvalidArgument, match="ttl"):
        documents.put([Put("c", ("fine",), 1, ttl=0)])
    assert documents.list("c") == []


def test_a_document_that_has_expired_is_seen_by_nobody(
    documents: Documents, conn: psycopg.Connection
) -> None:
    advance(conn, 0)
    documents.put([Put("c", ("a",), 1, ttl=60), Put("c", ("b",), 1, ttl=60)])
    advance(conn, 30)
    assert set(documents.get("c", [("a",)], refresh=True)) == {("a",)}
    advance(conn, 61)
    assert [d.path for d in documents.list("c")] == [("a",)]
    assert documents.get("c", [("b",)]) == {}
    assert documents.folders("c") == [()]
    advance(conn, 121)
    assert documents.put([Put("c", ("a",), 2, once=True)]) == 1  # what has expired is not there
    assert documents.sweep() == 0  # the write has swept
    assert sqlkit.one(conn, "select count(*) from pgflow.document") == 1


def advance(conn: psycopg.Connection, seconds: float) -> None:
    """Sets the clock to so many seconds after the beginning."""
    sqlkit.set_clock(conn, sqlkit.T0 + sqlkit.seconds(seconds))


def test_writers_of_the_same_documents_never_wait_in_a_circle(dsn: str) -> None:
    paths = [(f"{n}",) for n in range(20)]

    def write(order: int) -> None:
        with App(dsn) as app:
            for _ in range(20):
                Documents(app).put([Put("c", path, order) for path in paths[::order]])

    errors: list[Any] = []
    threads = [threading.Thread(target=_noting(errors, write), args=(n,)) for n in (1, -1, 1, -1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def _noting(errors: list[Any], fn: Any) -> Any:
    def run(*args: Any) -> None:
        try:
            fn(*args)
        except Exception as error:
            errors.append(error)

    return run


tries: list[int] = []


class Reversing:
    """A codec that hides nothing from those who read backwards."""

    key_id, hash_key = "r", b"sixteen random bytes"

    def encode(self, data: bytes) -> bytes:
        return data[::-1]

    def decode(self, key_id: str, data: bytes) -> bytes:
        return data[::-1]


@in_a_loop
async def test_an_app_with_a_codec_seals_values(dsn: str, conn: psycopg.Connection) -> None:
    async with AsyncApp(dsn, codec=Reversing()) as app:
        documents = AsyncDocuments(app)
        await documents.put([Put("c", ("a",), {"secret": 1})])
        assert [d.value async for d in documents.walk("c")] == [{"secret": 1}]
    stored = sqlkit.one(conn, "select value::text from pgflow.document")
    assert "$codec" in stored
    assert "secret" not in stored


@pgflow.transaction
async def write(connection: psycopg.AsyncConnection) -> int:
    documents = AsyncDocuments(connection)
    tries.append(1)
    written = await documents.put([Put("c", ("a", str(len(tries))), len(tries))])
    if len(tries) == 1:
        await connection.execute("do $$ begin raise exception using errcode = '40001'; end $$")
    return written


@pgflow.workflow
async def writes() -> int:
    return await write()


async def test_documents_and_the_outcome_of_a_step_are_one_transaction(
    aflow: AsyncHarness, conn: psycopg.Connection
) -> None:
    aflow.include(writes)
    run = await aflow.start(writes)
    assert await run.result(SOON) == 1
    assert sqlkit.one(conn, "select array_agg(value::text) from pgflow.documents") == ["2"]
