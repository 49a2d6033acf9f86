"""Long values travel beside the document of a commit: what is recorded and what code sees of them
is what it is of short ones.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import psycopg
import pytest
import sqlkit
from records import launch
from sqlkit import begin, commit, flush, one, unit

import pgflow
from pgflow import RunFailed, read, step, transaction, workflow
from pgflow._engine.flush import APART_CHARS
from pgflow._model.codecs import MAX_BYTES

Connection = psycopg.Connection[Any]
AsyncConnection = psycopg.AsyncConnection[Any]
PROSE = 'Line {n}: "quoted" \\ [x] {{y}} é \U0001f600, NULL,\\u0000 1e22\n'
LENGTHS = [APART_CHARS - 3, APART_CHARS - 2, APART_CHARS, 5_000, 100_000, 400_000]


def prose(length: int) -> str:
    return "".join(PROSE.format(n=n) for n in range(length // 40 + 1))[:length]


@step
async def told(length: int) -> str:
    return prose(length)


@read
async def looked_up(length: int) -> dict[str, Any]:
    return {"text": prose(length), "n": [length, 1.5, None]}


@transaction
async def written(conn: AsyncConnection, length: int) -> str:
    await conn.execute("insert into page values (%s)", (length,))
    return prose(length)


@transaction
def written_sync(conn: Connection, length: int) -> str:
    conn.execute("insert into page values (%s)", (length,))
    return prose(length)


@step
def told_sync(length: int) -> str:
    return prose(length)


@workflow
async def book(lengths: list[int]) -> str:
    for length in lengths:
        assert await told(length) == prose(length)
        assert await looked_up(length) == {"text": prose(length), "n": [length, 1.5, None]}
        assert await written(length) == prose(length)
    return prose(lengths[-1])


@workflow
def book_sync(lengths: list[int]) -> str:
    for length in lengths:
        assert told_sync(length) == prose(length)
        assert written_sync(length) == prose(length)
    return prose(lengths[-1])


@pytest.fixture(autouse=True)
def _pages(request: pytest.FixtureRequest) -> None:
    if "db" not in request.fixturenames:
        request.getfixturevalue("conn").execute("create table page (length int not null)")


@pytest.mark.full
async def test_values_of_every_length_are_recorded_as_they_were_encoded(aflow, conn):
    run = await launch(aflow, book, LENGTHS)
    assert await run.result() == prose(LENGTHS[-1])
    texts = [json.dumps(prose(length), ensure_ascii=False) for length in LENGTHS]
    recorded = "select payload::text from pgflow.unit where kind = 'c' and name = %s order by seq"
    for name in (told.name, written.name):
        assert [text for (text,) in conn.execute(recorded, (name,))] == texts
    assert one(conn, "select output::text from pgflow.outcome") == texts[-1]
    assert one(conn, "select array_agg(length) from page") == LENGTHS


@pytest.mark.full
async def test_many_runs_with_long_and_short_values_share_their_commits(aflow, conn):
    aflow.include(book)
    orders = [LENGTHS[n % 4 :] + LENGTHS[: n % 4] for n in range(8)]
    runs = [await aflow.start(book, order) for order in orders]
    found = await asyncio.gather(*(run.result() for run in runs))
    assert found == [prose(order[-1]) for order in orders]
    assert one(conn, "select count(*) from page") == len(orders) * len(LENGTHS)


@pytest.mark.full
def test_steps_in_threads_have_long_values_too(flow, conn):
    assert launch(flow, book_sync, LENGTHS).result() == prose(LENGTHS[-1])
    assert (
        one(
            conn,
            "select array_agg(length(payload #>> '{}')) from pgflow.unit where kind = 'c' and name "
            "= %s",
            written_sync.name,
        )
        == LENGTHS
    )


async def test_a_value_above_the_limit_fails_its_step_and_nothing_else(aflow):
    @step(retries=1)
    async def huge(length: int) -> str:
        return "x" * length

    @workflow
    async def at_the_limit() -> int:
        assert len(await huge(MAX_BYTES - 2)) == MAX_BYTES - 2
        return len(await huge(MAX_BYTES - 1))

    with pytest.raises(RunFailed, match="is 1,048,577 bytes of JSON; the limit is 1 MiB"):
        await (await launch(aflow, at_the_limit)).result()


async def test_the_state_of_a_run_may_be_long(aflow):
    @workflow
    async def stately() -> str:
        pgflow.set_state(page=prose(50_000))
        return await told(10)

    run = await launch(aflow, stately)
    await run.result()
    assert await run.state() == {"page": prose(50_000)}


def test_long_values_find_their_rows_where_a_run_of_the_batch_is_lost(db):
    lost, a, b = begin(db), begin(db), begin(db)
    batch = json.loads(
        sqlkit.document(flush(lost, unit(), token=1), flush(a, unit()), flush(b, unit()))
    )
    payloads = [json.dumps({"of": run.run_id, "text": prose(2_000)}) for run in (lost, a, b)]
    for place, row in enumerate(batch["units"], 1):
        row[5:6] = [None]
        row += [None, place]
    answer = one(
        db, "select pgflow.commit_units(%s, payloads => %s::json[])", json.dumps(batch), payloads
    )
    assert answer["bad"] == [[lost.run_id, "lost"]]
    assert one(db, "select count(*) from pgflow.unit where run_id = %s", lost.run_id) == 0
    recorded = "select payload::text from pgflow.unit where run_id = %s"
    assert [one(db, recorded, run.run_id) for run in (a, b)] == payloads[1:]


def test_a_batch_without_long_values_needs_nothing_beside_it(db):
    run = begin(db)
    assert commit(db, flush(run, unit())).raw is None
