"""Whatever is changed in the ledgers or in the seals themselves is found, and a proof convinces
whoever has no database.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest
import servers
from clikit import pgflow
from records import settle
from sealkit import adding, findings, paying, seal, switch_on, tamper
from servers import HANG_SECONDS
from sqlkit import T0, one, rows, set_clock

from pgflow import inspect
from pgflow.errors import InvalidArgument, RunNotFound, WrongState
from pgflow.inspect import check_anchor, check_proof
from pgflow.testing import Harness

Conn = psycopg.Connection[Any]

UNITS = 1000
COLUMNS = {
    "run_id": "run_id = (select run_id from pgflow.run order by run_id desc limit 1) + 1",
    "seq": "seq = 1 + (select max(seq) from pgflow.unit x where x.run_id = {run})",
    "token": "token = token + 1",
    "at": "at = at + interval '1 microsecond'",
    "recorded_at": "recorded_at = recorded_at - interval '1 microsecond'",
    "due_at": "due_at = case when due_at is null then at end",
    "args_hash": "args_hash = coalesce(args_hash, 0) + 1",
    "call": "call = call + 1",
    "kind": "kind = case when kind = 'c' then 'f' else 'c' end",
    "name": "name = coalesce(name, '') || 'x'",
    "key": "key = case when key is null then '' end",
    "payload": "payload = case when payload is null then 'null' else (payload::text || ' ')::json end",
    "starts": "starts = case when starts is null then '[]'::json end",
}
FURTHER = {
    "at, at the end of time": "at = 'infinity'",
    "due_at, never": "due_at = 'infinity'",
    "payload, like one redacted": (
        "payload = json_build_object('$codec', '', 'data', '', 'redacted', encode(sha256(convert_to("
        "coalesce(payload::text, ''), 'UTF8')), 'hex'))"
    ),
    "payload, redacted": "payload = pgflow.redacted_(coalesce(payload, 'null'), null)",
}
EDITS = {
    name: f"update pgflow.unit set {change} where run_id = {{run}} and seq = {{seq}}"
    for name, change in {**COLUMNS, **FURTHER}.items()
}
OTHERS = {
    "deleted": "delete from pgflow.unit where run_id = {run} and seq = {seq}",
    "cut off": "delete from pgflow.unit where run_id = {run} and seq >= {seq}",
    "inserted": (
        "insert into pgflow.unit (run_id, seq, call, kind, payload, token, at, recorded_at)"
        " select run_id, 1 + (select max(seq) from pgflow.unit x where x.run_id = {run}), call,"
        " kind, payload, token, at, recorded_at from pgflow.unit"
        " where run_id = {run} and seq = {seq}"
    ),
    "inserted before": (
        "insert into pgflow.unit (run_id, seq, call, kind, payload, token, at, recorded_at)"
        " select run_id, -seq, call, kind, payload, token, at, recorded_at from pgflow.unit"
        " where run_id = {run} and seq = {seq}"
    ),
    "reordered": (
        "update pgflow.unit set seq = -seq where run_id = {run} and seq in ({seq}, {next});"
        " update pgflow.unit set seq = case -seq when {seq} then {next} else {seq} end"
        " where run_id = {run} and seq < 0"
    ),
}
TRIES = """
create function pg_temp.tries(statement text, me bigint) returns int language plpgsql as $$
declare
  found_ int;
begin
  begin
    execute statement;
    found_ := (select count(*) from pgflow.verify_run_(me));
    raise exception 'undone';
  exception when raise_exception then
    return found_;
  end;
end $$
"""


RUN = {
    "run_id": "run_id = run_id + 100000",
    "chain_id": "chain_id = chain_id + 1",
    "root_run_id": "root_run_id = root_run_id + 1",
    "created_at": "created_at = created_at + interval '1 us'",
    "run_at": "run_at = created_at",
    "deadline_at": "deadline_at = created_at",
    "root": "root = gen_random_uuid()",
    "generation": "generation = 2",
    "lane_id": "lane_id = (select max(lane_id) from pgflow.lane)",
    "priority": "priority = priority + 1",
    "tenant": "tenant = 'other'",
    "key": "key = 'other'",
    "input": "input = '{}'",
    "metadata": "metadata = '{}'",
    "origin_run_id": "origin_run_id = 3",
    "origin_seq": "origin_seq = 1",
    "heritage": "heritage = '{}'",
    "start_id": "start_id = gen_random_uuid()",
    "pool": "pool = 'other'",
}
CHANGES_LATER = {"labels", "parent_run_id", "parent_call", "close_policy"}
"""Columns of a run that are no part of its seals: relabelling changes the first, a rewind of the
parent the others.
"""
OUTCOME = {
    "token": "token = coalesce(token, 0) + 1",
    "finished_at": "finished_at = finished_at - interval '1 us'",
    "status": "status = 'cancelled'",
    "reason": "reason = 'asked'",
    "output": "output = '1'",
    "error": "status = 'failed', output = null, error = '{}'",
    "run_id": "run_id = run_id + 100000",
}
CHANGES = [
    ("update pgflow.run set input = '{\"x\": 100}' where run_id = 1", "units_changed"),
    ("update pgflow.run set key = 'other' where run_id = 1", "units_changed"),
    ("delete from pgflow.run where run_id = 1", "run_missing"),
    ("update pgflow.outcome set output = '100' where run_id = 1", "outcome_changed"),
    ("update pgflow.outcome set finished_at = finished_at + interval '1 us' where run_id = 1", "outcome_changed"),
    ("delete from pgflow.outcome where run_id = 1", "outcome_missing"),
    ("delete from pgflow.unit", "units_missing"),
    ("insert into pgflow.unit (run_id, seq, call, kind, token, at, recorded_at) values (0, 1, 0, 'o', 0, now(), now())", "units_added"),
    ("delete from pgflow.seal where run_id = 1", "run_unsealed"),
    ("update pgflow.seal set upto_seq = upto_seq - 1 where run_id = 1", "units_changed"),
    ("update pgflow.seal set hash = sha256('') where run_id = 1", "round_changed"),
    ("update pgflow.seal set outcome_hash = null where run_id = 1", "units_changed"),
    ("update pgflow.seal set sealed_at = sealed_at + interval '1 s' where run_id = 1", "seal_added"),
    ("update pgflow.seal set dropped_at = now() where run_id = 1", "seal_changed"),
    ("insert into pgflow.seal select run_id, round + 1, sealed_at, null, upto_seq, hash, outcome_hash from pgflow.seal where run_id = 1", "seal_added"),
    ("update pgflow.seal_round set root = sha256('') where round = 1", "round_changed"),
    ("update pgflow.seal_round set runs = runs[2:] where round = 1", "round_changed"),
    ("update pgflow.seal_round set sealed_at = sealed_at + interval '1 s' where round = 1", "day_changed"),
    ("update pgflow.seal_round set day = day + 1 where round = 1", "round_changed"),
    ("update pgflow.seal_round set dropped_at = now(), runs = '{}' where round = 1", "round_changed"),
    ("delete from pgflow.seal_round where round = 2", "round_missing"),
    ("delete from pgflow.seal_round where round = 12", "anchor_missing"),
    ("update pgflow.seal_day set root = sha256('') where day = '2030-01-02'", "day_changed"),
    ("update pgflow.seal_day set head = sha256('') where day = '2030-01-04'", "day_changed"),
    ("delete from pgflow.seal_day where day = '2030-01-02'", "day_missing"),
    ("delete from pgflow.seal_day where day = '2030-01-04'", "anchor_missing"),
    ("update pgflow.seal_day set last_round = last_round - 1 where day = '2030-01-01'", "day_changed"),
]  # fmt: skip
"""Statements that change a run or the seals, and a code that is found then."""


@pytest.fixture(scope="module")
def sealed(server_dsn: str, template: str) -> Iterator[str]:
    """Name of a database with a thousand rows of the ledgers, sealed, with which nobody is connected."""
    name = servers.create_database(server_dsn, template)
    dsn = servers.dsn_of(server_dsn, name)
    flow = Harness(dsn)
    try:
        with psycopg.connect(dsn, autocommit=True) as conn:
            _fill(conn, flow)
    finally:
        flow.close()
    yield name
    servers.drop_database(server_dsn, name)


def _fill(conn: Conn, flow: Harness) -> None:
    set_clock(conn, T0)
    flow.include(adding, paying)
    switch_on(conn)
    for n in range(12):
        set_clock(conn, T0 + timedelta(hours=9 * n))
        flow.start(adding, n)
        flow.start(paying, 28).result(HANG_SECONDS)
        flow.until_idle()
        seal(conn)
    assert one(conn, "select count(*) from pgflow.unit") >= UNITS
    assert one(conn, "select count(*) from pgflow.seal_day") == 4
    assert findings(conn) == []


@pytest.fixture
def dsn(request: pytest.FixtureRequest, server_dsn: str, dsn: str) -> Iterator[str]:
    """The database of a test: a copy of the sealed one, if it asks for the ledger."""
    if "ledger" not in request.fixturenames:
        yield dsn
        return
    name = servers.create_database(server_dsn, request.getfixturevalue("sealed"))
    copy_dsn = servers.dsn_of(server_dsn, name)
    yield copy_dsn
    try:
        assert servers.unsound(copy_dsn) == []
    finally:
        servers.drop_database(server_dsn, name)


@pytest.fixture
def ledger(conn: Conn, flow: Harness) -> Conn:
    """A thousand rows of the ledgers, sealed."""
    flow.include(adding, paying)
    return conn


@pytest.mark.full
def test_every_change_of_a_single_row_of_a_thousand_is_found(ledger):
    anchor = one(ledger, "select pgflow.anchor()::text")
    ledger.execute("set pgflow.rewrites = 'on'")
    ledger.execute(TRIES)
    tried = 0
    units = rows(ledger, "select run_id, seq from pgflow.unit order by run_id, seq")
    last = dict(units)
    units = units[::10]
    for name, change in {**EDITS, **OTHERS}.items():
        statements = [
            (change.format(run=run, seq=seq, next=seq + 1 if seq < last[run] else seq - 1), run)
            for run, seq in units
        ]
        missed = rows(
            ledger,
            "select s from unnest(%s::text[], %s::bigint[]) as x (s, r) where pg_temp.tries(s, r) = 0",
            [statement for statement, _ in statements],
            [run for _, run in statements],
        )
        assert missed == [], name
        tried += len(statements)
    assert tried >= UNITS // 10 * (len(EDITS) + len(OTHERS))
    assert set(COLUMNS) == set(columns(ledger, "unit"))
    assert findings(ledger, anchor) == []  # all was undone


def columns(conn: Conn, table: str) -> list[str]:
    """Return the names of a table's columns: one that is new belongs into the seals."""
    return rows(
        conn,
        "select attname::text from pg_attribute where attrelid = %s::regclass and attnum > 0 and not attisdropped",
        f"pgflow.{table}",
    )


@pytest.mark.full
def test_every_change_of_a_start_or_an_outcome_is_found(ledger):
    assert set(RUN) | CHANGES_LATER == set(columns(ledger, "run"))
    assert set(OUTCOME) == set(columns(ledger, "outcome"))
    for table, changes in (("run", RUN), ("outcome", OUTCOME)):
        for name, change in changes.items():
            with ledger.transaction(force_rollback=True):
                ledger.execute("alter table pgflow.run drop constraint run_check")
                ledger.execute(f"update pgflow.{table} set {change} where run_id = 1")
                assert findings(ledger), (table, name)
    with ledger.transaction(force_rollback=True):
        ledger.execute("update pgflow.run set labels = '{}' where run_id = 1")
        assert findings(ledger) == []


@pytest.mark.full
def test_a_page_of_nothing_is_no_verification(ledger):
    for call in (
        "verify_runs(null)",
        "verify_runs(0, 0)",
        "verify_runs(0, null)",
        "verify_rounds(null)",
        "verify_rounds(0, -1)",
    ):
        with pytest.raises(psycopg.Error) as refused:
            ledger.execute(f"select pgflow.{call}")
        assert refused.value.sqlstate == InvalidArgument.sqlstate, call
    for anchor in ("null", "'[]'", "'{}'", "'{\"pgflow_anchor\": 1}'"):
        with pytest.raises(psycopg.Error, match="not an anchor"):
            ledger.execute(f"select pgflow.verify_anchor({anchor})")


@pytest.mark.full
def test_a_gap_behind_the_last_seal_is_found(ledger, flow):
    run = settle(flow, adding, 1)
    me = one(ledger, "select run_id from pgflow.run where key = %s", run.key)
    seal(ledger)
    with ledger.transaction(force_rollback=True):
        ledger.execute("set local pgflow.rewrites = 'on'")
        ledger.execute("select pgflow.look_again_(array[%s::bigint])", (me,))
        ledger.execute(
            "update pgflow.seal set upto_seq = 1, outcome_hash = null where run_id = %s", (me,)
        )
        assert "units_missing" not in findings(ledger)
        ledger.execute("delete from pgflow.unit where run_id = %s and seq = 2", (me,))
        assert "units_missing" in findings(ledger)


@pytest.mark.full
def test_every_change_of_a_run_or_of_the_seals_is_found(ledger):
    anchor = one(ledger, "select pgflow.anchor()::text")
    for change, code in CHANGES:
        with ledger.transaction(force_rollback=True):
            ledger.execute("set local pgflow.rewrites = 'on'")
            assert ledger.execute(change).rowcount > 0, change
            assert code in findings(ledger, anchor), change
    assert findings(ledger, anchor) == []


@pytest.mark.full
def test_whoever_forges_the_seals_too_is_found_by_the_anchor_alone(ledger):
    anchor = one(ledger, "select pgflow.anchor()::text")
    with ledger.transaction(force_rollback=True):
        ledger.execute("set local pgflow.rewrites = 'on'")
        ledger.execute(
            "update pgflow.unit set payload = '\"more\"' where run_id = 2 and kind = 'C'"
        )
        # All of it once more, as a sealer that begins anew would have it, at the times of then.
        kept = rows(
            ledger, "select day, first_round, last_round, closed_at from pgflow.seal_day order by 1"
        )
        times = rows(ledger, "select sealed_at, runs from pgflow.seal_round order by round")
        ledger.execute(
            "delete from pgflow.seal; delete from pgflow.seal_round; delete from pgflow.seal_day"
        )
        for number, (at, runs) in enumerate(times, 1):
            ledger.execute("select pgflow.seal_runs_(%s::bigint[], %s, %s)", (runs, number, at))
            ledger.execute(
                "insert into pgflow.seal_round (round, sealed_at, day, root, runs) select %s, %s,"
                " (%s at time zone 'UTC')::date, pgflow.merkle_root_(array_agg(hash order by run_id)), %s::bigint[]"
                " from pgflow.seal where round = %s",
                (number, at, at, runs, number),
            )
        ledger.execute("select pgflow.close_days_(%s)", (kept[-1][3],))
        assert findings(ledger) == []
        assert findings(ledger, anchor) == ["anchor_changed"]


@pytest.mark.full
def test_an_anchor_stays_true_while_more_is_sealed(ledger, flow):
    anchors = [one(ledger, "select pgflow.anchor()::text")]
    for day in range(2):
        set_clock(ledger, T0 + timedelta(days=9 + day))
        flow.start(adding, day).result(HANG_SECONDS)
        seal(ledger)
        anchors.append(one(ledger, "select pgflow.anchor()::text"))
    for anchor in anchors:
        assert findings(ledger, anchor) == []
        assert check_anchor(json.loads(anchor)) == []


def test_a_proof_convinces_without_a_database(ledger):
    key = one(ledger, "select key from pgflow.run where run_id = 2")
    proof = inspect.ask(ledger, inspect.read_proof(key))
    anchor = inspect.ask(ledger, inspect.read_anchor())
    assert check_proof(proof, anchor) == []
    assert "receipt" not in json.dumps(proof)
    for path in leaves(proof["runs"][0]):
        forged = copy.deepcopy(proof)
        change(forged["runs"][0], path)
        if path[0] != "seals" or path[-1] != "day":
            assert check_proof(forged, anchor), path
    for missing in range(len(proof["runs"][0]["units"])):
        forged = copy.deepcopy(proof)
        del forged["runs"][0]["units"][missing]
        assert check_proof(forged, anchor)
    other = copy.deepcopy(anchor)
    other["days"][0]["root"] = "00" * 32
    assert check_proof(proof, other)
    assert check_anchor(other)


@pytest.mark.full
def test_a_proof_fits_the_anchor_that_it_was_made_for(ledger, flow):
    anchors = [inspect.ask(ledger, inspect.read_anchor())]
    key = one(ledger, "select key from pgflow.run where run_id = 24")
    for day in range(2):
        for hour in range(2):
            set_clock(ledger, T0 + timedelta(days=9 + day, hours=hour))
            flow.start(adding, day).result(HANG_SECONDS)
            seal(ledger)
            anchors.append(inspect.ask(ledger, inspect.read_anchor()))
    for anchor in anchors:
        proof = inspect.ask(ledger, inspect.read_proof(key, anchor=anchor))
        assert check_proof(proof, anchor) == []
    # An open day has another root with each round.
    assert check_proof(inspect.ask(ledger, inspect.read_proof(key)), anchors[0]) != []
    newest = one(ledger, "select key from pgflow.run order by run_id desc")
    with pytest.raises(WrongState, match="no seal of run .* is as old as the anchor"):
        inspect.ask(ledger, inspect.read_proof(newest, anchor=anchors[0]))


def leaves(part: Any, *path: Any) -> list[tuple[Any, ...]]:
    """Return the places of all single values in a document."""
    if isinstance(part, dict):
        return [leaf for name, inner in part.items() for leaf in leaves(inner, *path, name)]
    if isinstance(part, list):
        return [leaf for at, inner in enumerate(part) for leaf in leaves(inner, *path, at)]
    return [path]


def change(document: Any, path: tuple[Any, ...]) -> None:
    """Change the value at a place to another of its type."""
    *before, last = path
    for name in before:
        document = document[name]
    old = document[last]
    if isinstance(old, int):
        document[last] = old + 1
    elif old in ("left", "right"):
        document[last] = "right" if old == "left" else "left"
    else:
        document[last] = ("1" if old[0] != "1" else "2") + old[1:]


def test_what_is_not_sealed_has_no_proof(conn, flow):
    run = settle(flow, adding, 1)
    with pytest.raises(WrongState, match="no seal covers run"):
        flow.app.ask(inspect.read_proof(run.key).first)
    with pytest.raises(RunNotFound):
        flow.app.ask(inspect.read_proof("nobody").first)
    with pytest.raises(InvalidArgument, match="not an anchor"):
        flow.app.ask(inspect.verify_seals(anchor={"x": 1}).first)


@pytest.mark.full
def test_the_command_line_finds_it_and_says_where(ledger, dsn, tmp_path):
    anchor, proof = tmp_path / "anchor.json", tmp_path / "proof.json"
    anchor.write_text(pgflow(dsn, "audit", "anchor").out)
    key = one(ledger, "select key from pgflow.run where run_id = 2")
    proof.write_text(pgflow(dsn, "audit", "proof", key).out)
    assert pgflow(None, "audit", "check", str(proof), "--anchor", str(anchor)).code == 0
    sound = pgflow(dsn, "audit", "verify", "--anchor", str(anchor), tty=True)
    assert (sound.code, sound.out) == (0, "")
    assert (
        "Nothing was changed: 24 runs, 12 rounds and 4 days, 12 of the rounds by the anchor"
        in sound.err
    )
    moved = "update pgflow.unit set at = at {} interval '1 us' where run_id = 2 and seq = 3"
    tamper(ledger, moved.format("+"))
    found = pgflow(dsn, "audit", "verify", "--anchor", str(anchor))
    assert found.code == 1
    assert [(row["finding"], row["run_id"]) for row in found.data["findings"]] == [
        ("units_changed", 2)
    ]
    shown = pgflow(dsn, "audit", "verify", "--run", key, tty=True, width=200)
    assert shown.code == 1
    assert key in shown.out
    proof.write_text(pgflow(dsn, "audit", "proof", key, "--anchor", str(anchor)).out)
    assert pgflow(None, "audit", "check", str(proof), "--anchor", str(anchor)).code == 1
    tamper(ledger, moved.format("-"))
    damaged = json.loads(proof.read_text())
    damaged["runs"][0]["seals"][0]["upto_seq"] = -1
    proof.write_text(json.dumps(damaged))
    answer = pgflow(None, "audit", "check", str(proof), "--anchor", str(anchor))
    assert (answer.code, "is damaged" in answer.err) == (2, True)


@pytest.mark.full
def test_the_command_line_switches_seals_and_answers_mistakes(conn, dsn, flow, tmp_path):
    run = settle(flow, adding, 1)
    refused = pgflow(dsn, "audit", "verify")
    assert refused.code == 2
    assert "pgflow audit on" in refused.err
    assert pgflow(dsn, "audit", "seal").code == 2
    assert pgflow(dsn, "audit", "on").code == 0
    assert pgflow(dsn, "audit", "seal").data == {"sealed": 1}
    assert pgflow(dsn, "audit", "verify").data["findings"] == []
    assert "the journal is sealed" in pgflow(dsn, "doctor", tty=True, width=200).out
    assert pgflow(dsn, "audit", "off").code == 0
    assert one(conn, "select is_on from pgflow.seal_lag") is False
    for text in ("{}", "[" * 50_000):
        (tmp_path / "x.json").write_text(text)
        refused = pgflow(dsn, "audit", "verify", "--anchor", str(tmp_path / "x.json"))
        assert "is not an anchor" in refused.err
    assert pgflow(dsn, "audit", run.key, tty=True).out.startswith(run.key)
    assert "verify" in pgflow(dsn, "audit", "--help").out
