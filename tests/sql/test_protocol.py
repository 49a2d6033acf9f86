"""The protocol between workers and the database: both sides read what the other writes, by the one
description in `pgflow/_model/protocol.py`.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any, get_args, get_type_hints

import psycopg
import pytest
from sqlkit import begin, commit, flush, one, rows

from pgflow._engine.flush import Ending, Flush, Returned, Row, Word, batch_document
from pgflow._model import protocol
from pgflow._model.claims import Offer
from tools.protocol import columns_of

MOMENT = datetime(2030, 1, 1, tzinfo=UTC)
SAMPLES: dict[str, tuple[Any, Any]] = {
    "int": (7, 7), "bigint": (2**40, 2**40), "bigint[]": ([1, 2], [1, 2]), "boolean": (True, True),
    "text": ("it's", "it's"), '"char"': ("c", "c"),
    "json": ('{"b":1,"a":1e22}', {"a": 1e22, "b": 1}), "jsonb": ({"a": [None]}, {"a": [None]}),
    "timestamptz": (int(MOMENT.timestamp()) * 1_000_000, MOMENT),
    "interval": (1.5, timedelta(seconds=1.5)),
}  # fmt: skip
"""By type in SQL: a value as a worker sends it, and as it is read."""


def slots(reader: protocol.Reader) -> list[tuple[str, str, str, bool]]:
    """Return name on the wire, column, type in SQL, and whether it may be null, of each slot."""
    return [
        (name, column, kind, is_optional)
        for name, (column, kind, is_optional) in zip(
            get_type_hints(reader.row), columns_of(reader.row), strict=True
        )
    ]


def read(
    conn: psycopg.Connection, name: str, wire: str, row: list[Any] | dict[str, Any]
) -> dict[str, Any]:
    """Return the columns of one row."""
    cursor = conn.execute(f"select * from pgflow.{name}(%s::{wire})", (json.dumps([row]),))  # type: ignore[arg-type]
    (found,) = cursor.fetchall()
    return {
        column.name: value for column, value in zip(cursor.description or (), found, strict=True)
    }


@pytest.mark.parametrize("name", protocol.READERS)
def test_sql_reads_each_slot_by_its_name(db, name):
    reader = protocol.READERS[name]
    sent = {slot: SAMPLES[kind][0] for slot, _, kind, _ in slots(reader)}
    found = read(db, name, reader.wire, sent if reader.of_objects else [*sent.values()])
    got = {k: v for k, v in found.items() if k not in (reader.numbered, reader.whole)}
    assert got == {column: SAMPLES[kind][1] for _, column, kind, _ in slots(reader)}
    if reader.numbered:
        assert found[reader.numbered] == 1


@pytest.mark.parametrize("name", protocol.READERS)
def test_a_slot_without_a_value_is_null_whether_it_is_sent_or_not(db, name):
    reader = protocol.READERS[name]
    optional = {slot: column for slot, column, _, may_be_null in slots(reader) if may_be_null}
    sent = {
        slot: None if slot in optional else SAMPLES[kind][0] for slot, _, kind, _ in slots(reader)
    }
    full: list[Any] | dict[str, Any] = [*sent.values()]
    short = [*sent.values()]
    while short and short[-1] is None:
        short.pop()
    if reader.of_objects:  # a member of an object is left out
        full = short = {slot: value for slot, value in sent.items() if value is not None}  # type: ignore[assignment]
    for row in (full, short):
        found = read(db, name, reader.wire, row)
        assert {found[column] for column in optional.values()} <= {None}


def test_a_reader_is_inlined_into_the_query_that_calls_it(db):
    for name, reader in protocol.READERS.items():
        plan = "\n".join(
            rows(db, f"explain (costs off) select count(*) from pgflow.{name}('[]'::{reader.wire})")
        )
        assert f"Function Scan on {reader.wire}_array_elements" in plan, plan


def test_each_row_of_a_batch_begins_with_its_run():
    for name, hint in get_type_hints(protocol.Batch).items():
        for row in get_args(hint):
            assert row is int or next(iter(get_type_hints(row))) in ("run_id", "continue"), name
    assert "run" in protocol.Question.__required_keys__


def test_a_batch_leaves_out_bad_runs_whatever_the_kind_of_row(db):
    def row(kind: Any, run: int) -> Any:
        return run if kind is int else {"run": run} if kind is protocol.Question else [run, "x"]

    lists = {
        name: get_args(hint)[0]
        for name, hint in get_type_hints(protocol.Batch).items()
        if get_args(hint)
    }
    batch = {name: [row(kind, run) for run in (1, 2, 3)] for name, kind in lists.items()}
    kept = {name: [row(kind, run) for run in (1, 3)] for name, kind in lists.items()}
    kept["worker"] = batch["worker"] = 5  # type: ignore[assignment]
    batch["taken"] = [row(protocol.TakenRow, 2)]
    del kept["taken"]
    without = "select pgflow.without_runs_(%s, '[[2, \"lost\"]]')"
    assert one(db, without, json.dumps(batch)) == kept


def test_a_run_that_ends_beside_a_lost_one_waits_for_no_events(db):
    ends, lost = begin(db), begin(db)
    wait = {"signals": [[1, "event"]], "events": [[1, "event", "orders", None, None, None]]}
    commit(db, flush(ends, **wait))
    assert one(db, "select count(*) from pgflow.event_wait") == 1
    batch = {
        "worker": ends.worker,
        "runs": [[ends.run_id, ends.token, ends.seq], [lost.run_id, lost.token + 1, lost.seq]],
        "units": [],
        "ends": [[ends.run_id, "completed", None, "1", None, ends.chain_id, ends.token]],
        "kin": [ends.run_id],
        "awaiting": [ends.run_id],
    }
    answer = one(db, "select pgflow.commit_units(%s)", json.dumps(batch))
    assert answer["bad"] == [[lost.run_id, "lost"]]
    assert one(db, "select count(*) from pgflow.event_wait") == 0


def test_a_flush_is_written_as_it_is_described():
    unit = Row(4, 2, "c", "step", '"long"', 5_000_000, 3.0, "key")
    sent = Flush(9, 77, 8, 3, 4, [unit], ending=Ending("completed", None, "1", None))
    sent.has_kin = sent.has_gates = sent.has_events = sent.has_locks = True
    sent.has_obligations = True
    sent.over = [None]
    sent.taken = [Offer(31, "paid", "1", 0), Offer(32, "2", "1", 0, 2, "child")]
    sent.returned = [Returned(2, 3, "no fit")]
    sent.words = [Word("u", 33, 4, "completed")]
    apart: list[str] = []
    batch = json.loads(batch_document(6, [(sent, lambda: 5_000_000)], apart))
    assert batch.keys() == protocol.Batch.__annotations__.keys() - {"questions"}
    assert batch["worker"] == 6
    assert [protocol.RunRow(*row) for row in batch["runs"]] == [protocol.RunRow(9, 77, 3)]
    assert [protocol.UnitRow(*row) for row in batch["units"]] == [
        protocol.UnitRow(9, 4, 2, "c", "step", '"long"', None, 5_000_000, 3.0, 77, "key")
    ]
    found = [protocol.EndRow(*row) for row in batch["ends"]]
    assert found == [protocol.EndRow(9, "completed", None, "1", None, 8, 77)]
    found = [protocol.TakenRow(*row) for row in batch["taken"]]
    assert found == [protocol.TakenRow(9, 8, "paid", 31), protocol.TakenRow(9, 8, "2", 32, "c")]
    found = [protocol.ReturnedRow(*row) for row in batch["returned"]]
    assert found == [protocol.ReturnedRow(9, 8, 2, 3, "no fit")]
    found = [protocol.ReplyRow(*row) for row in batch["replies"]]
    assert found == [protocol.ReplyRow(9, 8, "u", 33, 4, "completed", None)]
    assert [protocol.DrawRow(*row) for row in batch["draws"]] == [protocol.DrawRow(9, None)]
    assert batch["kin"] == batch["gated"] == batch["awaiting"] == batch["locking"] == [9]
