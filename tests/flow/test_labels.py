"""Labels that a run changes: it is found by what they are now, and a replay begins with what they
were.
"""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from records import SOON, events, launch, result_of, settle

import pgflow
from pgflow import InvalidArgument, Signal, step, transaction, workflow
from pgflow.errors import NotInRunError

go = Signal("go", int)


@step
async def work(n: int) -> int:
    return n


@transaction
async def book(conn: psycopg.AsyncConnection[Any]) -> int:
    await conn.execute("create table if not exists booked (n int)")
    return 1


@workflow
async def order() -> list[dict[str, str]]:
    seen = [pgflow.run_info().labels]
    pgflow.set_labels(stage="new", hold="yes")
    seen.append(pgflow.run_info().labels)
    await work(1)
    await go.wait()
    pgflow.set_labels(stage="paid", hold=None)
    seen.append(pgflow.run_info().labels)
    await book()
    await go.wait()
    return seen


def labels(conn: psycopg.Connection[Any], key: str) -> dict[str, str] | None:
    return conn.execute("select labels from pgflow.runs where key = %s", (key,)).fetchone()[0]  # type: ignore[index]


def found(conn: psycopg.Connection[Any], **wanted: str) -> list[str]:
    query = "select key from pgflow.runs where labels @> %s::jsonb order by key"
    return [key for (key,) in conn.execute(query, (psycopg.types.json.Json(wanted),))]


@pytest.mark.full
def test_a_run_is_found_by_the_labels_that_it_has_now_and_replays_with_those_of_then(flow, conn):
    run = settle(flow, order.options(key="o", labels={"shop": "1", "stage": "asked"}))
    assert labels(conn, "o") == {"shop": "1", "stage": "new", "hold": "yes"}
    assert (found(conn, stage="new"), found(conn, stage="asked")) == (["o"], [])
    run.send(go, 1)
    flow.until_idle()  # it was parked: its code has run again from the start
    assert labels(conn, "o") == {"shop": "1", "stage": "paid"}
    run.send(go, 2)
    first = {"shop": "1", "stage": "asked"}
    got = run.result(SOON)
    assert got == [first, {**first, "stage": "new", "hold": "yes"}, {"shop": "1", "stage": "paid"}]
    assert found(conn, stage="paid", shop="1") == ["o"]
    assert [kind for kind, _ in events(conn, "o")].count("labels_set") == 2


@pytest.mark.full
def test_a_run_without_labels_may_set_and_take_away_its_first(flow, conn):
    @workflow
    async def shy() -> dict[str, str]:
        before = pgflow.run_info().labels
        pgflow.set_labels(a="1")
        await work(1)
        pgflow.set_labels(a=None)
        await go.wait()
        return before

    run = settle(flow, shy.options(key="s"))
    assert labels(conn, "s") == {}
    run.send(go, 1)
    assert run.result(SOON) == {}


@pytest.mark.full
def test_the_next_generation_begins_with_the_labels_of_the_one_before(flow, conn):
    @workflow
    async def rounds(n: int = 0) -> dict[str, str]:
        if n == 2:
            return pgflow.run_info().labels
        pgflow.set_labels(**{f"round {n}": "done"})
        pgflow.continue_as_new(n + 1)

    assert result_of(flow, rounds.options(key="r", labels={"shop": "1"})) == {
        "shop": "1",
        "round 0": "done",
        "round 1": "done",
    }


@pytest.mark.full
def test_a_rewind_brings_the_labels_of_then_back_and_a_fork_has_its_own(flow, conn):
    @workflow
    async def stages() -> dict[str, str]:
        for n in range(4):
            pgflow.set_labels(stage=str(n), **{f"was {n}": "yes"})
            await work(n)
        await go.wait()
        return pgflow.run_info().labels

    run = settle(flow, stages.options(key="k", labels={"shop": "1"}))
    assert labels(conn, "k") == {"shop": "1", "stage": "3"} | {f"was {n}": "yes" for n in range(4)}
    ends = [
        seq
        for seq, kind in conn.execute(
            "select seq, kind from pgflow.unit u join pgflow.runs r using (run_id) where r.key = 'k' "
            "order by seq"
        )
        if kind == "c"
    ]
    with conn.transaction():  # what no worker sees yet, none takes up
        conn.execute(
            "select pgflow.fork_run('k', 'forked', at_seq => %s, effects => 'repeat', labels => "
            '\'{"test": "1"}\')',
            (ends[1],),
        )
        assert labels(conn, "forked") == {"test": "1", "stage": "1", "was 0": "yes", "was 1": "yes"}
    with conn.transaction():
        conn.execute("select pgflow.rewind_run('k', %s, effects => 'repeat')", (ends[0],))
        assert labels(conn, "k") == {"shop": "1", "stage": "0", "was 0": "yes"}
    flow.until_idle()
    run.send(go, 1)
    assert run.result(SOON) == {"shop": "1", "stage": "3"} | {f"was {n}": "yes" for n in range(4)}
    flow.app.send("forked", go, 1)
    found = flow.app.get("forked", stages).result(SOON)
    assert found == {"test": "1", "stage": "3"} | {f"was {n}": "yes" for n in range(4)}


def test_an_export_tells_the_labels_of_the_start_and_an_import_has_those_of_the_end(flow, conn):
    run = launch(flow, order.options(key="o", labels={"shop": "1"}))
    run.send(go, 1)
    run.send(go, 2)
    run.result(SOON)
    chain = conn.execute("select chain_id from pgflow.runs where key = 'o'").fetchone()[0]  # type: ignore[index]
    (history,) = conn.execute(
        "select history::jsonb || jsonb_build_object('units', pgflow.export_units(run_id)::jsonb) "
        "from pgflow.export_runs(%s)",
        ([chain],),
    ).fetchone()  # type: ignore[misc]
    assert history["labels"] == {"shop": "1"}
    conn.execute("select pgflow.drop_history(clock_timestamp())")
    assert conn.execute("select count(*) from pgflow.relabelled").fetchone() == (0,)
    conn.execute("select pgflow.import_run(%s)", (psycopg.types.json.Json(history),))
    assert labels(conn, "o") == {"shop": "1", "stage": "paid"}


@pytest.mark.full
def test_labels_that_are_set_before_a_transaction_are_durable_with_it(flow, conn):
    @transaction
    async def look(conn: psycopg.AsyncConnection[Any], n: int) -> int:
        await conn.execute("select 1")
        return n

    @workflow
    async def staged() -> list[Any]:
        seen = []
        for n in range(3):
            pgflow.set_labels(stage=str(n))
            seen.append(await look(n))
        return seen

    assert result_of(flow, staged.options(key="staged")) == [0, 1, 2]
    assert conn.execute("select labels->>'stage' from pgflow.runs").fetchone() == ("2",)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"a": 1}, "label 'a' must be a string, or None"),
        ({"a": "x" * 17_000}, "labels are 17009 bytes long; the limit is 16 KiB"),
    ],
    ids=["a number", "too long"],
)
def test_what_no_label_can_be_is_refused_where_it_is_set(flow, given, said):
    @workflow
    async def wrong() -> str:
        try:
            pgflow.set_labels(**given)
        except InvalidArgument as error:
            return str(error)
        return ""

    assert said in result_of(flow, wrong)


def test_labels_are_set_by_the_code_of_a_run_alone():
    with pytest.raises(NotInRunError):
        pgflow.set_labels(a="1")
