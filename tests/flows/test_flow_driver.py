"""The functions of the driver one by one, as a session that works calls them: claims, transactions, ends."""

from __future__ import annotations

from typing import Any, NamedTuple

import psycopg
import pytest
from flowkit import begin, ended, make, marks
from sqlkit import one

Conn = psycopg.Connection[Any]
THREE = "begin " + " ".join(f"s{n}: insert into mark (what) values ('{n}');" for n in range(3))


class Session(NamedTuple):
    """A session that works, and its lanes."""

    conn: Conn
    worker: int
    lanes: list[int]

    def claim(self, most: int = 1) -> list[list[int]] | None:
        """Return run, token and chain of each run that it claims; None if there is none."""
        return one(
            self.conn, "select pgflow.claim_flows(%s, %s, %s)", self.worker, self.lanes, most
        )

    def advance(self, held: list[int], steps: int = 1) -> dict[str, Any] | None:
        """Return what one transaction of a run answers."""
        return one(
            self.conn, "select pgflow.advance(%s, %s, %s, %s, %s)", self.worker, *held, steps
        )


@pytest.fixture
def session(conn: Conn) -> Session:
    make(conn, "w()", f"{THREE} end")
    worker = one(
        conn,
        "select pgflow.register_worker('session', pg_backend_pid(), array['default'], 1, 'sql')",
    )
    conn.execute("select pgflow.share_session(%s)", (worker,))
    return Session(
        conn, worker, one(conn, "select pgflow.serve_flows(%s, array['default'])", worker)
    )


def test_a_claim_without_runs_answers_null(session):
    assert session.claim() is None


def test_a_claim_has_what_advance_takes_and_takes_no_more_than_it_may(session):
    for n in range(3):
        begin(session.conn, key=f"k{n}")
    claimed = [*(session.claim(2) or []), *(session.claim(2) or [])]
    assert len(claimed) == 3
    assert sorted(claimed) == sorted(
        [run, token, chain]
        for run, token, chain in session.conn.execute(
            "select l.run_id, l.token, r.chain_id from pgflow.lease l join pgflow.run r using (run_id)"
            " where l.worker_id = %s",
            (session.worker,),
        )
    )
    assert len({token for _, token, _ in claimed}) == 3
    assert session.claim() is None


def test_a_transaction_that_is_nothing_but_steps_answers_null(session):
    begin(session.conn)
    (held,) = session.claim() or []
    assert session.advance(held) is None
    assert marks(session.conn) == ["0"]
    # The end of the run is in the transaction of its last step, so less than asked for was done.
    assert session.advance(held, 5) == {"place": "ended", "steps": 2, "wake": []}
    assert marks(session.conn) == ["0", "1", "2"]
    assert ended(session.conn)[0] == "completed"
    assert session.advance(held) == {"place": "lost", "steps": 0, "wake": []}


@pytest.mark.parametrize("wrong", ["token", "worker"])
def test_a_run_that_another_one_holds_is_lost_and_nothing_is_done(session, wrong):
    begin(session.conn)
    (held,) = session.claim() or []
    if wrong == "token":
        held = [held[0], held[1] + 1, held[2]]
    else:
        session = session._replace(worker=session.worker + 1)
    assert session.advance(held) == {"place": "lost", "steps": 0, "wake": []}
    assert marks(session.conn) == []


def test_the_end_of_a_child_names_its_parent_to_be_woken(session):
    make(session.conn, "above()", "begin run w(); end")
    begin(session.conn, "above", "above")
    lanes = one(session.conn, "select pgflow.serve_flows(%s, array['default'])", session.worker)
    session = session._replace(lanes=lanes)
    (above,) = session.claim() or []
    parked = session.advance(above)
    assert parked and parked["place"] == "parked"
    (child,) = session.claim() or []
    assert session.advance(child, 3) == {"place": "ended", "steps": 3, "wake": [above[2]]}
