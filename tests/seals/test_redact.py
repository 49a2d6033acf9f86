"""Redaction: a value is taken out for good, the seals stay valid, and everybody is told so."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from clikit import pgflow
from records import settle, wait_until
from sealkit import adding, findings, paying, seal, switch_on
from servers import HANG_SECONDS
from sqlkit import one, rows

from pgflow import Run, Signal, sync, workflow
from pgflow.authority import Approved, owe
from pgflow.effects import effect
from pgflow.entities import entity, update
from pgflow.errors import InvalidArgument, Redacted, RunNotFound, RunStuck, WrongState
from pgflow.replay.check import replay
from pgflow.replay.histories import read_database
from pgflow.testing import Harness

Conn = psycopg.Connection[Any]

go = Signal("go", str)
SECRET = "receipt 1"


@workflow
def waiting() -> str:
    return go.sync.wait()


@effect(risk="irreversible")
def lose(card: str) -> str:
    raise RuntimeError(f"no answer for {card}")


@workflow
def losing() -> str:
    return lose("4000-1234")


@entity("test tally")
@dataclass
class Tally:
    total: int = 0

    @update
    def add(self, amount: int) -> str:
        self.total += amount
        return f"receipt {self.total}"


@workflow
def tallying() -> str:
    with sync.lock("tally"):
        return Tally.add.options(idempotency_key="once").sync("t", 1)


@workflow
def asking(card: str) -> str:
    verdict = sync.gate("pay", card)
    return f"approved {verdict.value}" if isinstance(verdict, Approved) else "rejected"


@workflow
def owing() -> str:
    owe("refund", to="ada", outlives=True, detail="to 4000-1234")
    return "done"


def seqs(conn: Conn, kind: str) -> list[int]:
    return rows(conn, "select seq from pgflow.unit where kind = %s order by run_id, seq", kind)


def everything(conn: Conn) -> str:
    """All that the database holds of runs, as one text."""
    return one(
        conn,
        "select string_agg(t, ' ') from (select u::text from pgflow.unit u union all"
        " select r::text from pgflow.run r union all select o::text from pgflow.outcome o) x (t)",
    )


@pytest.fixture
def paid(conn: Conn, flow: Harness) -> Run[list[str]]:
    """A run that has paid twice, sealed."""
    flow.include(adding, paying)
    switch_on(conn)
    run: Run[list[str]] = flow.start(paying, 2)
    flow.until_idle()
    seal(conn)
    return run


@pytest.mark.full
def test_a_redacted_value_is_gone_and_the_seals_stay_valid(conn, flow, paid):
    anchor = one(conn, "select pgflow.anchor()::text")
    seq = seqs(conn, "C")[0]
    text = one(conn, "select payload::text from pgflow.unit where seq = %s", seq)
    hashed = flow.app.redact(paid.key, seq, why="the customer asked", by="ada")
    assert hashed == hashlib.sha256(text.encode()).hexdigest()
    assert findings(conn, anchor) == []
    assert seal(conn) == 1
    assert findings(conn, anchor) == []
    flow.app.redact(paid.key, why="the customer asked", what="result")
    assert SECRET not in everything(conn)
    told = one(
        conn,
        "select payload->>'seq', payload->>'hash', payload->>'why', payload->>'by' from pgflow.unit where kind = 'Z' order by seq limit 1",
    )
    assert told == (str(seq), hashed, "the customer asked", "ada (postgres)")
    seal(conn)
    assert findings(conn, anchor) == []
    assert conn.execute("select * from pgflow.check()").fetchall() == []


def test_the_input_is_redacted_too(conn, flow, paid):
    flow.app.redact(paid.key, why="asked for", what="input")
    assert one(conn, "select input->>'redacted' is not null from pgflow.run") is True
    seal(conn)
    assert findings(conn) == []


@pytest.mark.parametrize("kind", ["c", "C", "d"])
def test_a_replay_is_refused_with_an_error_of_its_own(conn, flow, paid, kind):
    flow.app.redact(paid.key, seqs(conn, kind)[0], why="asked for")
    (recorded,) = read_database(conn, [1])
    with pytest.raises(Redacted, match="was redacted: only its hash is left"):
        replay(recorded, paying)


@pytest.mark.full
def test_a_replay_does_not_need_the_request_of_an_effect(conn, flow, paid):
    flow.app.redact(paid.key, seqs(conn, "i")[0], why="asked for")
    (recorded,) = read_database(conn, [1])
    assert replay(recorded, paying) is None
    risk = "select risk, request->>'redacted' is null from pgflow.effects order by seq limit 1"
    assert one(conn, risk) == ("irreversible", True)
    seal(conn)
    assert findings(conn) == []


def test_a_result_that_was_redacted_is_no_value(conn, flow, paid):
    flow.app.redact(paid.key, why="asked for", what="result")
    with pytest.raises(Redacted):
        paid.result(HANG_SECONDS)


@pytest.mark.full
def test_readers_say_that_it_was_redacted(conn, dsn, flow, paid):
    seq = seqs(conn, "C")[0]
    answer = pgflow(dsn, "redact", paid.key, str(seq), "--why", "asked for")
    assert answer.code == 0
    found = answer.data["sha256"]
    assert found == one(conn, "select payload->>'redacted' from pgflow.unit where seq = %s", seq)
    assert "<redacted, sha256" in pgflow(dsn, "audit", paid.key, tty=True, width=200).out
    assert "redacted" in pgflow(dsn, "logs", paid.key, tty=True, width=200).out
    assert pgflow(dsn, "redact", paid.key, "result", "--why", "asked for").code == 0
    assert "<redacted" in pgflow(dsn, "show", paid.key, tty=True, width=200).out


@pytest.mark.full
def test_copies_in_later_generations_go_with_it(conn, flow):
    flow.include(adding)
    switch_on(conn)
    run = settle(flow, adding, 41)
    conn.execute("select pgflow.rewind_run(%s, 3, effects => 'repeat')", (run.key,))
    flow.until_idle()
    seal(conn)
    assert one(conn, "select count(*) from pgflow.unit where seq = 2 and payload::text = '42'") == 2
    flow.app.redact(run.key, 2, why="asked for")
    assert one(conn, "select count(*) from pgflow.unit where payload::text = '42'") == 0
    assert len(seqs(conn, "Z")) == 2
    seal(conn)
    assert findings(conn) == []


@pytest.mark.full
def test_a_generation_that_begins_with_a_redacted_value_is_stuck_and_says_why(conn, flow):
    flow.include(adding)
    switch_on(conn)
    run = settle(flow, adding, 41)
    flow.app.redact(run.key, 2, why="asked for")
    seal(conn)
    conn.execute("select pgflow.rewind_run(%s, 3, effects => 'repeat')", (run.key,))
    flow.until_idle()
    with pytest.raises(RunStuck, match="was redacted"):
        run.result(HANG_SECONDS)
    seal(conn)
    assert findings(conn) == []


def test_what_is_carried_for_reuse_goes_with_it(conn, flow):
    run = settle(flow, adding, 41)
    seq = one(conn, "select seq from pgflow.unit where payload::text = '44' and kind = 'c'")
    conn.execute("select pgflow.rewind_run(%s, %s, effects => 'reuse')", (run.key, seq - 1))
    with pytest.raises(WrongState, match="is open"):
        flow.app.redact(run.key, seq, why="asked for", generation=1)
    flow.until_idle()
    carried = "select count(*) from pgflow.carried where payload::text = '44'"
    assert one(conn, carried) == 1
    flow.app.redact(run.key, seq, why="asked for", generation=1)
    assert one(conn, carried) == 0


@pytest.mark.full
def test_what_a_person_had_changed_is_redacted_too(conn, dsn, flow):
    """The unit of a rewind says what the run had come to, and what it was given instead."""
    run = settle(flow, adding, 41)
    flow.app.restart(run.key, input={"x": 70_001}, effects="repeat", why="a typing error")
    flow.until_idle()
    ((seq, payload),) = rows(
        conn, "select seq, payload::text from pgflow.unit where kind = 'o' and name = 'restart'"
    )
    assert '"output" : 44' in payload
    flow.app.redact(run.key, seq, why="asked for")
    left = one(conn, "select payload from pgflow.unit where kind = 'o' and name = 'restart'")
    assert left["why"] == "a typing error"
    assert {"was", "input", "edit"}.isdisjoint(left)
    for command in ("audit", "logs", "show", "timeline"):
        assert pgflow(dsn, command, run.key, tty=True, width=200).code == 0, command


@pytest.mark.full
@pytest.mark.parametrize("kind", ["i", "U", "E"])
def test_what_became_of_an_effect_is_redacted_and_still_told(conn, dsn, flow, kind):
    run = settle(flow, losing)
    conn.execute(
        "select pgflow.settle_effect(effect, 'confirmed', '\"done\"', 'seen', 'ada') from pgflow.obligations"
    )
    flow.until_idle()
    switch_on(conn)
    seal(conn)
    flow.app.redact(run.key, seqs(conn, kind)[0], why="asked for")
    left = one(conn, "select payload from pgflow.unit where kind = %s", kind)
    assert "4000-1234" not in str(left)
    assert "redacted" in left
    seal(conn)
    assert findings(conn) == []
    for command in ("audit", "logs", "show", "timeline"):
        assert pgflow(dsn, command, run.key, tty=True, width=200).code == 0, command


@pytest.mark.full
def test_a_redacted_verdict_leaves_the_history_of_its_entity_too(conn, flow):
    flow.include(tallying)
    switch_on(conn)
    run = settle(flow, tallying)
    seal(conn)
    flow.app.redact(run.key, seqs(conn, "H")[0], why="asked for")
    verdicts = rows(conn, "select verdict::text from pgflow.entity_history")
    assert len(verdicts) == 1
    assert SECRET not in verdicts[0]
    (recorded,) = read_database(conn, [1])
    with pytest.raises(Redacted, match="was redacted"):
        replay(recorded, tallying)
    seal(conn)
    assert findings(conn) == []
    # Who asks for the same update again has an answer all the same.
    mail = one(
        conn,
        "select pgflow.post_update('test tally', 't', 'add', '{\"amount\": 1}', idempotency_key => 'once')",
    )
    verdict = "select state, error->>'type' from pgflow.update_verdict(%s)"
    with flow.app.worker(poll_seconds=0.1):
        wait_until(lambda: one(conn, verdict, mail)[0] != "waiting", "it is answered")
    assert one(conn, verdict, mail) == ("refused", "pgflow.errors.Redacted")


@pytest.mark.full
@pytest.mark.parametrize("kind", ["g", "G"])
def test_what_was_asked_at_a_gate_and_said_is_redacted_and_still_told(conn, dsn, flow, kind):
    flow.include(asking)
    switch_on(conn)
    run = settle(flow, asking, "4000-1234")
    gate = one(conn, "select gate from pgflow.gates")
    conn.execute("select pgflow.answer_gate(%s, 'approve', null, '\"4000-1235\"')", (gate,))
    flow.until_idle()
    assert run.result(HANG_SECONDS) == "approved 4000-1235"
    seal(conn)
    flow.app.redact(run.key, seqs(conn, kind)[0], why="asked for")
    left = one(conn, "select payload from pgflow.unit where kind = %s", kind)
    assert "4000-12" not in str(left)
    assert "redacted" in left
    assert one(conn, "select value::text from pgflow.gate_answer").count("redacted") == 1
    (recorded,) = read_database(conn, [1])
    with pytest.raises(Redacted, match="was redacted"):
        replay(recorded, asking)
    seal(conn)
    assert findings(conn) == []
    for command in ("audit", "logs", "show", "timeline"):
        assert pgflow(dsn, command, run.key, tty=True, width=200).code == 0, command


@pytest.mark.full
@pytest.mark.parametrize("kind", ["O", "D"])
def test_what_a_run_owed_is_redacted_once_it_is_closed_and_still_told(conn, dsn, flow, kind):
    flow.include(owing)
    switch_on(conn)
    run = settle(flow, owing)
    assert run.result(HANG_SECONDS) == "done"
    seal(conn)
    with pytest.raises(WrongState, match="is open"):
        flow.app.redact(run.key, seqs(conn, "O")[0], why="asked for")
    key = one(conn, "select effect from pgflow.obligations")
    conn.execute("select pgflow.discharge(%s, '\"to 4000-1234\"')", (key,))
    flow.app.redact(run.key, seqs(conn, kind)[0], why="asked for")
    left = one(conn, "select payload from pgflow.unit where kind = %s", kind)
    assert "4000-1234" not in str(left)
    assert (left["key"], "redacted" in left) == (key, True)
    seal(conn)
    assert findings(conn) == []
    for command in ("audit", "logs", "show", "timeline"):
        assert pgflow(dsn, command, run.key, tty=True, width=200).code == 0, command


@pytest.mark.full
def test_an_open_run_is_not_redacted(conn, flow):
    run = settle(flow, waiting)
    with pytest.raises(WrongState, match="is open"):
        flow.app.redact(run.key, why="asked for", what="input")
    assert seqs(conn, "Z") == []


def test_what_cannot_be_redacted_is_refused(conn, flow, paid):
    with pytest.raises(RunNotFound):
        flow.app.redact("nobody", 1, why="x")
    with pytest.raises(RunNotFound, match="no generation 7"):
        flow.app.redact(paid.key, 1, why="x", generation=7)
    with pytest.raises(InvalidArgument, match="no unit 999"):
        flow.app.redact(paid.key, 999, why="x")
    with pytest.raises(InvalidArgument, match="say why"):
        flow.app.redact(paid.key, 2, why=" ")
    with pytest.raises(InvalidArgument, match="say which unit"):
        flow.app.redact(paid.key, why="x")
    flow.app.redact(paid.key, seqs(conn, "C")[0], why="x")
    with pytest.raises(WrongState, match="redacted already"):
        flow.app.redact(paid.key, seqs(conn, "C")[0], why="x")
    with pytest.raises(InvalidArgument, match="holds no value that can be redacted"):
        flow.app.redact(paid.key, seqs(conn, "Z")[0], why="x")
    for part in ("output", "-1", "2.5", "99999999999999999999"):
        answer = pgflow(conn.info.dsn, "redact", paid.key, "--why", "x", "--", part)
        assert (answer.code, answer.err.count("\n")) == (2, 1), part


def test_redaction_needs_a_fresh_look_with_each_statement(conn, paid):
    with pytest.raises(psycopg.Error, match="read committed"), conn.transaction():
        conn.execute("set transaction isolation level repeatable read")
        conn.execute("select pgflow.redact(%s, 2, 'x')", (paid.key,))


@pytest.mark.full
def test_only_an_operator_redacts(conn, paid):
    for role in ("pgflow_client", "pgflow_worker", "pgflow_auditor"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege), conn.transaction():
            conn.execute(f"set local role {role}")  # type: ignore[arg-type]
            conn.execute("select pgflow.redact(%s, 2, 'x')", (paid.key,))


def test_a_redaction_that_nobody_recorded_is_found(conn, paid):
    """A value replaced by its hash keeps the chain as it is, and is found all the same."""
    seq = seqs(conn, "C")[0]
    with conn.transaction(force_rollback=True):
        conn.execute("set local pgflow.rewrites = 'on'")
        conn.execute(
            "update pgflow.unit set payload = pgflow.redacted_(payload, kind) where seq = %s",
            (seq,),
        )
        assert findings(conn) == ["redaction_unrecorded"]
    conn.execute("select pgflow.redact(%s, %s, 'x')", (paid.key, seq))
    with conn.transaction(force_rollback=True):
        conn.execute("set local pgflow.rewrites = 'on'")
        # What stands beside the hash is not in the chain, and the unit that records it has its hash.
        conn.execute(
            'update pgflow.unit set payload = (left(payload::text, -1) || \',"risk":"none"}\')::json where seq = %s',
            (seq,),
        )
        assert findings(conn) == ["redaction_unrecorded"]
    assert findings(conn) == []


def test_a_value_of_a_user_is_never_taken_for_a_redacted_one(conn, flow):
    flow.include(adding)
    with pytest.raises(InvalidArgument, match="begins with the key"):
        flow.app.send("k", Signal("go", dict), {"$codec": "", "data": "", "redacted": "00"})
