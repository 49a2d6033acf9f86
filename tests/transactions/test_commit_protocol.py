"""A transactional attempt, op by op, when the answer to COMMIT is lost: it reads what is there
before it goes on.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from pgflow._db.calls.transaction import Recorded
from pgflow._transactions import protocol as transactions

CLAIM: Any = SimpleNamespace(run_id=1, token=77)
CALL: Any = SimpleNamespace(number=5, name="book", args_hash=0, fences=None)
FLUSH: Any = SimpleNamespace(
    rows=[SimpleNamespace(at_us=9, call=5)],
    last_seq=3,
    over=None,
    unit_rows=lambda _now_us, _apart: "[]",
)
OURS, ANOTHERS = Recorded(77, 5, "c", "1"), Recorded(78, 5, "c", "1")


@pytest.fixture(params=[False, True], ids=["one after the other", "fence and commit at once"])
def together(request: pytest.FixtureRequest) -> bool:
    return request.param


def after_commit(
    together: bool, error: Exception, *answers: Any
) -> tuple[list[str], tuple[Any, ...] | None, BaseException | None]:
    """Plays an attempt up to COMMIT, which raises, and then these answers: the ops asked for, how
    the turn ended, and what was raised.
    """
    protocol = transactions.attempt(CLAIM, CALL, str, together=together)
    asked = next(protocol)
    for op, answer in [
        ("query", "900"),
        ("body", 1),
        ("flush", None),
        ("turn", FLUSH),
        *([] if together else [("query", 10)]),
    ]:
        assert asked.what == op
        asked = protocol.send(answer)
    assert asked.what == ("last" if together else "commit")
    ops, ended = [], None
    remaining = list(answers)
    try:
        asked = protocol.throw(error)
        while True:
            ops.append(asked.what)
            if asked.what == "end":
                ended = asked.args
            asked = protocol.send(remaining.pop(0) if asked.what == "elsewhere" else None)
    except StopIteration:
        assert remaining == []
        return ops, ended, None
    except transactions.Trouble as raised:
        assert remaining == []
        return ops, ended, raised.error


LOST = psycopg.OperationalError("the connection is lost")


def test_a_unit_that_is_there_says_that_the_commit_happened(together):
    found = after_commit(together, LOST, OURS)
    assert found == (["elsewhere", "end"], (CALL, FLUSH, True, 0 if together else 10), None)


def test_a_transaction_in_progress_is_waited_out_and_not_taken_for_failed(together):
    ops, ended, raised = after_commit(
        together, LOST, None, "in progress", None, "in progress", OURS
    )
    assert ops == [
        "elsewhere", "elsewhere", "pause", "elsewhere", "elsewhere", "pause", "elsewhere", "end",
    ]  # fmt: skip
    assert (ended, raised) == ((CALL, FLUSH, True, 0 if together else 10), None)


def test_a_commit_between_the_two_looks_is_not_overlooked(together):
    found = after_commit(together, LOST, None, "committed", OURS)[1]
    assert found == (CALL, FLUSH, True, 0 if together else 10)


@pytest.mark.parametrize(
    "answers", [(None, "aborted", None), (ANOTHERS,), (None, "committed", ANOTHERS)]
)
def test_a_commit_that_did_not_happen_is_raised_and_the_turn_given_back(together, answers):
    _, ended, raised = after_commit(together, LOST, *answers)
    assert raised is LOST
    assert ended == (CALL, FLUSH, False, 0 if together else 10)


def test_an_error_of_the_server_is_no_question(together):
    conflict = psycopg.errors.SerializationFailure("could not serialize")
    found = after_commit(together, conflict)
    assert found == (["end"], (CALL, FLUSH, False, 0 if together else 10), conflict)
