"""Blobs: large values beside the journal, there exactly as long as a run names them."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
import sqlkit
from records import SOON, in_a_loop
from sqlkit import begin, claim_one, commit, finish, flush, one, rows, start, unit

import pgflow
from pgflow import App, InvalidArgument
from pgflow._model.blobs import CHUNK_BYTES
from pgflow.blobs import AsyncBlobs, Blob, Blobs
from pgflow.errors import NotStorable, PgflowError, StepFailed, WrongColourError, WrongState
from pgflow.inspect import readable
from pgflow.replay.histories import export_chain, import_lines

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from pgflow.testing import AsyncHarness

Conn = psycopg.Connection[Any]


def digest_of(content: bytes) -> str:
    hashes = [
        hashlib.sha256(content[at : at + CHUNK_BYTES]).digest()
        for at in range(0, len(content), CHUNK_BYTES)
    ]
    return hashlib.sha256(b"".join(hashes)).hexdigest()


def content_of(size: int, seed: int = 0) -> bytes:
    return b"".join(hashlib.sha256(f"{seed} {n}".encode()).digest() for n in range(size // 32 + 1))[
        :size
    ]


def kept(conn: Conn) -> list[str]:
    """The digests of all that is stored."""
    return rows(conn, "select encode(digest, 'hex') from pgflow.blob order by blob_id")


def stored(conn: Conn, content: bytes = b"x", tenant: str = "") -> Blob:
    with conn.transaction():
        return Blobs(conn, tenant=tenant).store(content)


def as_json(blob: Blob) -> str:
    return json.dumps(
        {"doc": {"digest": blob.digest, "size_bytes": blob.size_bytes, "pgflow": "blob"}}
    )


def removed(conn: Conn) -> None:
    """Remove all that has ended."""
    sqlkit.set_clock(conn, one(conn, "select pgflow.now_() + interval '1 second'"))
    one(conn, "select runs from pgflow.drop_history(pgflow.now_())")


# ---------------------------------------------------------------- through runs


@dataclass
class Report:
    title: str
    pages: list[Blob]


SIZES = (0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES)


@pgflow.transaction
async def write(connection: psycopg.AsyncConnection[Any], sizes: list[int]) -> Report:
    blobs = AsyncBlobs(connection)
    return Report("annual", [await blobs.store(_pieces(content_of(size))) for size in sizes])


async def _pieces(content: bytes) -> AsyncIterator[bytes]:
    for at in range(0, len(content), 100_003):
        yield content[at : at + 100_003]


@pgflow.transaction
async def total(connection: psycopg.AsyncConnection[Any], report: Report) -> list[str]:
    blobs = AsyncBlobs(connection)
    return [hashlib.sha256(await blobs.read_all(page)).hexdigest() for page in report.pages]


@pgflow.workflow
async def reports(sizes: list[int]) -> list[str]:
    return await total(await write(sizes))


async def test_a_blob_goes_from_step_to_step(aflow: AsyncHarness, conn: Conn) -> None:
    aflow.include(reports)
    run = await aflow.start(reports, list(SIZES))
    assert await run.result(SOON) == [
        hashlib.sha256(content_of(size)).hexdigest() for size in SIZES
    ]
    assert kept(conn) == [digest_of(content_of(size)) for size in SIZES]
    assert one(conn, "select max(octet_length(payload::text)) from pgflow.unit") < 2000


tries: list[int] = []


@pgflow.transaction
async def unlucky(connection: psycopg.AsyncConnection[Any]) -> Any:
    tries.append(1)
    blob = await AsyncBlobs(connection).store(content_of(CHUNK_BYTES + 9, len(tries)))
    if len(tries) == 1:
        await connection.execute("do $$ begin raise exception using errcode = '40001'; end $$")
    return blob


@pgflow.workflow
async def tries_again() -> Any:
    return await unlucky()


async def test_an_attempt_that_does_not_commit_leaves_nothing(
    aflow: AsyncHarness, conn: Conn
) -> None:
    tries.clear()
    aflow.include(tries_again)
    run = await aflow.start(tries_again)
    found = await run.result(SOON)
    assert found == Blob(digest_of(content_of(CHUNK_BYTES + 9, 2)), CHUNK_BYTES + 9)
    assert kept(conn) == [found.digest]
    assert one(conn, "select count(*) from pgflow.blob_chunk") == 2


@pgflow.transaction
def measure(connection: psycopg.Connection[Any], doc: Blob) -> int:
    return sum(map(len, Blobs(connection).read(doc)))


@pgflow.workflow
def child(doc: Blob) -> Blob:
    assert measure(doc) == doc.size_bytes
    return doc


later = pgflow.Signal("later", Blob)


@pgflow.workflow
def parent(doc: Blob) -> list[Blob]:
    return [pgflow.sync.run_child(child, doc), later.sync.wait()]


def test_inputs_signals_and_results_of_children_name_blobs(dsn: str, conn: Conn) -> None:
    with App(dsn, include=[parent, child]) as app, app.worker():
        with psycopg.connect(dsn) as own, own.transaction():
            first, second = (Blobs(own).store(content_of(9, n)) for n in range(2))
            run = app.using(own).start(parent.options(key="p"), first)
            app.using(own).send("p", later, second)
        assert run.result(SOON) == [first, second]
        assert Blobs(app).read_all(second) == content_of(9, 1)
    assert kept(conn) == [first.digest, second.digest]
    removed(conn)
    assert kept(conn) == []
    assert one(conn, "select count(*) from pgflow.blob_chunk") == 0


def test_an_app_stores_nothing_and_the_wrong_colour_is_refused(dsn: str, conn: Conn) -> None:
    with App(dsn) as app, pytest.raises(InvalidArgument, match="in the transaction that names it"):
        Blobs(app).store(b"x")
    with pytest.raises(InvalidArgument, match="no open transaction"):
        Blobs(conn).store(b"x")
    with pytest.raises(InvalidArgument, match="made of bytes, not of str"), conn.transaction():
        Blobs(conn).store(["text"])  # type: ignore[list-item]
    with pytest.raises(InvalidArgument, match="not in this database"), conn.transaction():
        Blobs(conn).read_all(Blob("0" * 64, 0))
    with pytest.raises(InvalidArgument, match="64 hexadecimal digits"), conn.transaction():
        Blobs(conn).read_all(Blob("nonsense", 1))


@in_a_loop
async def test_an_async_one_wants_an_async_connection(conn: Conn) -> None:
    with conn.transaction(), pytest.raises(WrongColourError, match="use Blobs"):
        await AsyncBlobs(conn).store(b"x")


class Reversing:
    """A codec that hides nothing from those who read backwards."""

    key_id, hash_key = "r", b"sixteen random bytes"

    def encode(self, data: bytes) -> bytes:
        return data[::-1]

    def decode(self, key_id: str, data: bytes) -> bytes:
        return data[::-1]


@pgflow.transaction
def store_one(connection: psycopg.Connection[Any]) -> Blob:
    return Blobs(connection).store(b"in clear")


@pgflow.workflow
def stores() -> Blob:
    return store_one()


def test_an_app_with_a_codec_stores_no_blobs(dsn: str, conn: Conn) -> None:
    with App(dsn, include=[stores], codec=Reversing()) as app, app.worker():
        with pytest.raises(pgflow.RunFailed) as failed:
            app.start(stores).result(SOON)
        assert isinstance(failed.value.__cause__, (NotStorable, StepFailed))
    assert rows(conn, "select 1 from pgflow.blob") == []


# ---------------------------------------------------------------- kept once, and long enough


def test_equal_contents_are_stored_once_and_stay_for_the_last_run(db: Conn) -> None:
    for key in ("a", "b"):
        with db.transaction():
            start(db, key=key, input=as_json(stored(db, content_of(CHUNK_BYTES * 2))))
    assert len(kept(db)) == 1
    assert one(db, "select count(*) from pgflow.blob_chunk") == 2
    finish(db, claim_one(db))
    removed(db)
    assert rows(db, "select key from pgflow.runs") == ["b"]
    assert len(kept(db)) == 1
    finish(db, claim_one(db))
    removed(db)
    assert kept(db) == []


def test_a_blob_that_no_run_names_is_swept(db: Conn) -> None:
    stored(db)
    with db.transaction():  # one that was not finished
        blob = one(db, "select pgflow.open_blob()")
        db.execute("select pgflow.add_chunk(%s, 0, 'x')", (blob,))
    assert one(db, "select count(*) from pgflow.blob_chunk") == 2
    db.execute("select pgflow.sweep_keys()")
    assert one(db, "select count(*) from pgflow.blob") == 0
    assert one(db, "select count(*) from pgflow.blob_chunk") == 0


def test_a_sweep_passes_over_what_another_transaction_is_naming(dsn: str, conn: Conn) -> None:
    blob = stored(conn)
    with sqlkit.connect(dsn) as other:
        with other.transaction():
            assert stored(other) == blob  # the same again: it is locked
            conn.execute("select pgflow.sweep_keys()")
            start(other, key="keeps", input=as_json(blob))
        conn.execute("select pgflow.sweep_keys()")
    assert kept(conn) == [blob.digest]


def test_a_sweep_of_another_level_leaves_blobs_to_the_next(conn: Conn) -> None:
    stored(conn)
    with conn.transaction():
        conn.execute("set transaction isolation level repeatable read")
        conn.execute("select pgflow.sweep_keys()")
    assert len(kept(conn)) == 1


def test_writers_of_the_same_contents_share_one(dsn: str, conn: Conn) -> None:
    barrier = threading.Barrier(4)
    found: list[Blob] = []

    def write_one(n: int) -> None:
        with sqlkit.connect(dsn) as own:
            barrier.wait()
            for round_ in range(5):
                with own.transaction():
                    blob = Blobs(own).store(content_of(9, round_))
                    start(own, key=f"{n} {round_}", input=as_json(blob))
                found.append(blob)

    threads = [threading.Thread(target=write_one, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 20
    assert len(kept(conn)) == 5
    assert one(conn, "select count(*) from pgflow.blob_chunk") == 5


@pytest.mark.parametrize("where", ["input", "signal", "result", "unit"])
def test_a_value_may_look_like_a_blob_that_is_not_there(db: Conn, where: str) -> None:
    """A stranger who can write into a value can stop no run by it."""
    named = as_json(Blob("a" * 64, 5))
    run = begin(db, key="run")
    if where == "input":
        start(db, input=named)
    elif where == "signal":
        sqlkit.send(db, "run", "hello", named)
    elif where == "result":
        finish(db, run, output=named)
    else:
        commit(db, flush(run, unit(payload=named)))
    assert rows(db, "select 1 from pgflow.blob_use") == []


def test_what_merely_says_blob_is_an_ordinary_value(db: Conn) -> None:
    for text in (
        '{"a": "blob"}',
        '{"pgflow": "blob"}',
        '{"pgflow": "blob", "digest": 5, "size_bytes": 1}',
        '{"pgflow": "blob", "digest": "short", "size_bytes": 1}',
        '{"a": [{"pgflow": ["blob"]}]}',
    ):
        start(db, input=text)
    assert rows(db, "select 1 from pgflow.blob_use") == []


def test_json_that_is_no_jsonb_names_no_blob(db: Conn) -> None:
    run = begin(db, key="run")
    commit(db, flush(run, unit(payload='{"a": "blob", "n": 1e999999}')))
    assert rows(db, "select 1 from pgflow.blob_use") == []


def test_a_fork_keeps_what_its_origin_named(db: Conn) -> None:
    with db.transaction():
        start(db, key="origin", input=as_json(stored(db, b"input")))
    origin = claim_one(db)
    with db.transaction():
        commit(db, flush(origin, unit(payload=as_json(stored(db, b"result")))))
    finish(db, origin)
    db.execute("select pgflow.fork_run('origin', 'heir', 1)")
    with db.transaction():
        heir = one(db, "select run_id from pgflow.runs where key = 'heir'")
    assert one(db, "select count(*) from pgflow.blob_use where run_id = %s", heir) == 2
    removed(db)
    assert rows(db, "select key from pgflow.runs") == ["heir"]
    assert len(kept(db)) == 2


def test_a_redacted_value_takes_its_blob_along(db: Conn) -> None:
    with db.transaction():
        start(db, key="run", input=as_json(stored(db, b"input")))
    run = claim_one(db)
    with db.transaction():
        blob = stored(db, b"result")
        commit(db, flush(run, unit(payload=as_json(blob))))
    finish(db, run)
    db.execute("select pgflow.redact('run', null, 'asked to', what => 'input')")
    assert kept(db) == [blob.digest]
    db.execute("select pgflow.redact('run', 1, 'asked to')")
    assert kept(db) == []


def test_a_forgotten_subject_takes_its_blobs_along(db: Conn) -> None:
    with db.transaction():
        start(db, key="run", input=as_json(stored(db)), labels='{"subject": "ann"}')
    finish(db, claim_one(db))
    assert one(db, "select removed from pgflow.forget_subject('ann', 'asked to')") == 1
    assert kept(db) == []


def test_a_transaction_adds_to_its_own_blobs_only(dsn: str, conn: Conn) -> None:
    with sqlkit.connect(dsn) as other, other.transaction():
        blob = one(other, "select pgflow.open_blob()")
        with pytest.raises(psycopg.Error, match="is not storing blob") as refused:
            conn.execute("select pgflow.add_chunk(%s, 0, 'x')", (blob,))
        assert refused.value.sqlstate == "PF006"
    with pytest.raises(psycopg.Error, match="is not storing blob"):
        conn.execute("select pgflow.add_chunk(%s, 0, 'x')", (blob,))
    assert WrongState.sqlstate == "PF006"


@pytest.mark.parametrize(
    ("chunks", "says"),
    [([(1, 1)], "lacks a chunk"), ([(0, 1), (1, 1)], "less than"), ([(0, 1), (0, 1)], "already"),
     ([(0, 0)], "1 to 262144"), ([(-1, 1)], "from 0 on"), ([(0, CHUNK_BYTES + 1)], "262144")],
)  # fmt: skip
def test_chunks_that_make_no_blob_are_refused(
    db: Conn, chunks: list[tuple[int, int]], says: str
) -> None:
    with pytest.raises(psycopg.Error, match=says) as refused, db.transaction():
        blob = one(db, "select pgflow.open_blob()")
        for n, size in chunks:
            db.execute("select pgflow.add_chunk(%s, %s, %s)", (blob, n, b"x" * size))
        db.execute("select pgflow.finish_blob(%s)", (blob,))
    assert refused.value.sqlstate == "PF003"


def test_tenants_share_no_blobs(conn: Conn) -> None:
    theirs = stored(conn, b"same", "acme")
    with pytest.raises(InvalidArgument, match="not in this database"), conn.transaction():
        Blobs(conn).read_all(theirs)
    start(conn, tenant="beta", input=as_json(theirs))
    with pytest.raises(InvalidArgument, match="not in this database"), conn.transaction():
        Blobs(conn, tenant="beta").read_all(theirs)
    with conn.transaction():
        assert stored(conn, b"same", "beta") == theirs
        start(conn, tenant="beta", input=as_json(theirs))
    assert one(conn, "select count(*) from pgflow.blob") == 2
    with conn.transaction():
        assert Blobs(conn, tenant="beta").read_all(theirs) == b"same"


@pytest.mark.unsound
@pytest.mark.parametrize(
    "damage",
    ["update pgflow.blob_chunk set data = 'y' where n = 1", "delete from pgflow.blob_chunk where n = 1"],
)  # fmt: skip
def test_damaged_content_is_never_returned(db: Conn, damage: Any) -> None:
    blob = stored(db, b"x" * (CHUNK_BYTES + 1))
    db.execute(damage)
    with db.transaction(), pytest.raises(PgflowError, match="chunk 1 of blob .* is not what was"):
        Blobs(db).read_all(blob)


def test_an_import_has_the_reference_only(dsn: str, conn: Conn) -> None:
    with conn.transaction():
        start(conn, key="run", input=as_json(stored(conn)))
    run = claim_one(conn)
    finish(conn, run)
    out = io.StringIO()
    export_chain(conn, run.run_id, out)
    removed(conn)
    with psycopg.connect(dsn, autocommit=True) as own:
        import_lines(own, iter([("line 1", out.getvalue().strip())]))
    assert one(conn, "select input->'doc'->>'size_bytes' from pgflow.runs where key = 'run'") == "1"
    assert kept(conn) == []
    with pytest.raises(InvalidArgument, match="not in this database"), conn.transaction():
        Blobs(conn).read_all(Blob(hashlib.sha256(hashlib.sha256(b"x").digest()).hexdigest(), 1))


def test_readers_say_how_large_it_is() -> None:
    named = json.loads(as_json(Blob("a" * 64, 104_857_600)))
    assert readable([named]) == [{"doc": "<a large value of 104,857,600 bytes>"}]
    assert readable({"pgflow": "blob", "digest": "a"}) == {"pgflow": "blob", "digest": "a"}


# ---------------------------------------------------------------- memory

MEMORY = """
import pathlib, re, sys
import psycopg, pgflow
from pgflow import App
from pgflow.blobs import Blob, Blobs

SIZE = 64 << 20

def pieces():
    for n in range(SIZE >> 16):
        yield n.to_bytes(4, "big") * (1 << 14)

@pgflow.transaction
def write(connection: psycopg.Connection, whole: bool) -> Blob:
    return Blobs(connection).store(b"".join(pieces()) if whole else pieces())

@pgflow.transaction
def read(connection: psycopg.Connection, doc: Blob) -> int:
    return sum(map(len, Blobs(connection).read(doc)))

@pgflow.workflow
def through(whole: bool) -> int:
    return read(write(whole))

with App(sys.argv[1], include=[through]) as app, app.worker():
    assert app.start(through, sys.argv[2] == "whole").result(300) == SIZE
# Not ru_maxrss: a process inherits that of its parent.
print(re.search(r"VmHWM:\\s+(\\d+) kB", pathlib.Path("/proc/self/status").read_text())[1])
"""


@pytest.mark.full
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak from /proc")
def test_a_large_value_goes_through_a_step_in_little_more_memory_than_it_has(dsn: str) -> None:
    def peak(kind: str) -> int:
        command = [sys.executable, "-c", MEMORY, dsn, kind]
        ran = subprocess.run(command, check=True, capture_output=True, text=True)
        return int(ran.stdout) << 10

    size = 64 << 20
    in_pieces, whole = peak("pieces"), peak("whole")
    assert in_pieces < 3 * size, "the process itself, and a few chunks"
    assert size // 2 < whole - in_pieces < 2 * size, "the bytes that the step holds"
