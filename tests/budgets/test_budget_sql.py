"""Pools, reservations and charges by the stored functions alone, as workers call them."""

from __future__ import annotations

import json
from datetime import timedelta
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from sqlkit import (
    T0,
    Claim,
    Unit,
    begin,
    claim,
    claim_one,
    commit,
    count,
    finish,
    flush,
    one,
    rows,
    set_clock,
    start,
    unit,
)

Conn = psycopg.Connection[Any]

DAY = timedelta(days=1)


def pool(db: Conn, name: str, limits: dict[str, Any], **options: Any) -> None:
    arguments = {"name": name, "limits": json.dumps(limits), **options}
    named = ", ".join(f"{key} => %s" for key in arguments)
    db.execute(f"select pgflow.set_pool({named})", list(arguments.values()))


def admit(
    call: int, pool: str | None = None, *, hard: bool = False, **amounts: Any
) -> dict[str, Any]:
    """An element of ``admits``."""
    asked: dict[str, Any] = {
        "call": call,
        "name": "ask",
        "amounts": {u: str(a) for u, a in amounts.items()},
    }
    if pool is not None:
        asked["pool"] = pool
    if hard:
        asked["hard"] = True
    return asked


def ask(db: Conn, run: Claim, *admits: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Answers of the database to each call."""
    answer = commit(db, flush(run, closes=(), admits=list(admits)))
    return [(u[2], json.loads(u[4])) for u in answer.units_of(run)]


def spent(call: int, **amounts: Any) -> Unit:
    said = {"call": call, "amounts": {u: str(a) for u, a in amounts.items()}}
    return unit("M", 0, "ask", json.dumps(said))


def sums(db: Conn, name: str, of: str = "usd") -> tuple[Decimal, ...]:
    """Charged, reserved and remaining of a pool."""
    found = one(
        db,
        "select charged, reserved, remaining from pgflow.budgets where pool = %s and unit = %s",
        name,
        of,
    )
    assert found is not None
    return tuple(found)


def test_an_admitted_call_reserves_on_its_pool_and_all_above_it(db):
    pool(db, "tenant", {"usd": 100})
    pool(db, "user", {"usd": 10, "tokens": 1000}, parent="tenant")
    run = begin(db, pool="user")
    found = ask(db, run, admit(1, usd="0.5", tokens=100))
    assert found == [("m", {"pool": "user", "amounts": {"usd": 0.5, "tokens": 100}})]
    assert sums(db, "user") == (0, Decimal("0.5"), Decimal("9.5"))
    assert sums(db, "tenant") == (0, Decimal("0.5"), Decimal("99.5"))
    assert sums(db, "tenant", "tokens") == (0, 100, None)


def test_what_a_pool_or_one_above_it_lacks_is_refused_with_what_is_left(db):
    pool(db, "tenant", {"usd": 1})
    pool(db, "user", {"usd": 10}, parent="tenant")
    run = begin(db, pool="user")
    ask(db, run, admit(1, usd="0.6"))
    assert ask(db, run, admit(2, usd="0.5")) == [
        (
            "q",
            {
                "reason": "used_up",
                "pool": "tenant",
                "unit": "usd",
                "limit": "1",
                "left": "0.4",
                "asked": "0.5",
            },
        )
    ]
    found = sums(db, "user")
    assert found == (0, Decimal("0.6"), Decimal("9.4")), "a refused call reserves nothing anywhere"


def test_several_calls_of_one_flush_are_admitted_one_after_the_other(db):
    pool(db, "p", {"usd": 1})
    one_run, other = begin(db, pool="p"), begin(db, pool="p")
    answer = commit(
        db,
        flush(one_run, closes=(), admits=[admit(1, usd="0.4"), admit(2, usd="0.4")]),
        flush(other, closes=(), admits=[admit(1, usd="0.4"), admit(2, usd="0.2")]),
    )
    assert [u[2] for u in answer.units_of(one_run)] == ["m", "m"]
    assert [u[2] for u in answer.units_of(other)] == ["q", "m"]
    assert sums(db, "p") == (0, 1, 0)


def test_a_charge_is_taken_out_of_the_reservation_and_the_rest_returns(db):
    pool(db, "p", {"usd": 1})
    run = begin(db, pool="p")
    ask(db, run, admit(1, usd="0.6"))
    commit(db, flush(run, spent(1, usd="0.25"), unit("c", 1, "ask"), closes=[1]))
    assert sums(db, "p") == (Decimal("0.25"), 0, Decimal("0.75"))
    found = one(db, "select admitted, charged, returned from pgflow.spend")
    assert found == (Decimal("0.6"), Decimal("0.25"), Decimal("0.35"))


def test_charges_of_failed_attempts_are_kept_and_share_the_reservation(db):
    pool(db, "p", {"usd": 1})
    run = begin(db, pool="p")
    ask(db, run, admit(1, usd="0.6"))
    commit(db, flush(run, spent(1, usd="0.25"), unit("a", 1, "ask", delay_seconds=1), closes=()))
    assert sums(db, "p") == (Decimal("0.25"), Decimal("0.35"), Decimal("0.4"))
    commit(db, flush(run, spent(1, usd="0.25"), unit("c", 1, "ask"), closes=[1]))
    assert sums(db, "p") == (Decimal("0.5"), 0, Decimal("0.5"))


def test_what_a_call_costs_beyond_its_reservation_is_drawn_from_the_pool(db):
    pool(db, "p", {"usd": 1})
    run = begin(db, pool="p")
    ask(db, run, admit(1, usd="0.1"))
    commit(db, flush(run, spent(1, usd="0.4"), unit("c", 1, "ask"), closes=[1]))
    assert sums(db, "p") == (Decimal("0.4"), 0, Decimal("0.6"))


def test_an_overrun_fills_the_pool_and_is_covered_before_anything_else_is_admitted(db):
    pool(db, "p", {"usd": 1})
    run, other = begin(db, pool="p"), begin(db, pool="p")
    ask(db, other, admit(1, usd="0.5"))
    ask(db, run, admit(1, usd="0.1"))
    commit(db, flush(run, spent(1, usd="0.8"), unit("c", 1, "ask"), closes=[1]))
    found = one(db, "select charged, reserved, overrun from pgflow.spend")
    assert found == (Decimal("0.5"), Decimal("0.5"), Decimal("0.3"))
    assert ask(db, run, admit(2, tokens=1))[0][0] == "q", (
        "a pool that is used up admits nothing at all"
    )
    commit(db, flush(other, spent(1, usd="0.1"), unit("c", 1, "ask"), closes=[1]))
    found = one(db, "select charged, reserved, overrun from pgflow.spend where unit = 'usd'")
    assert found == (Decimal("0.9"), 0, 0)


@pytest.mark.unsound
def test_no_row_can_say_that_more_is_spent_than_is_allowed(db):
    pool(db, "p", {"usd": 1})
    ask(db, begin(db, pool="p"), admit(1, usd=1))
    with pytest.raises(psycopg.errors.CheckViolation):
        db.execute("update pgflow.spend set reserved = 2, admitted = 2")


def test_code_may_charge_without_asking_and_never_fails_for_it(db):
    pool(db, "p", {"usd": 1})
    run = begin(db, pool="p")
    commit(db, flush(run, unit("M", 1, None, '{"amounts": {"usd": "1.5"}}'), closes=()))
    found = one(db, "select charged, overrun, remaining from pgflow.budgets")
    assert found == (Decimal("1.5"), Decimal("0.5"), 0)


def test_what_a_run_without_a_pool_spends_is_recorded_all_the_same(db):
    run = begin(db)
    commit(
        db, flush(run, unit("M", 1, None, '{"amounts": {"usd": "1.5"}, "model": "m1"}'), closes=())
    )
    assert one(db, "select usd, model, pool from pgflow.charges") == (Decimal("1.5"), "m1", None)
    assert ask(db, run, admit(2, usd=1)) == [("q", {"reason": "no_pool"})]


def test_the_end_of_a_run_returns_all_that_it_has_reserved(db):
    pool(db, "p", {"usd": 1})
    run = begin(db, pool="p")
    ask(db, run, admit(1, usd="0.6"), admit(2, usd="0.2"))
    commit(db, flush(run, outcome=("completed", None, "null", None), closes=[None]))
    assert sums(db, "p") == (0, 0, 1)


def test_a_run_that_is_ended_by_force_returns_all_that_it_has_reserved(db):
    pool(db, "p", {"usd": 1})
    run = begin(db, pool="p")
    ask(db, run, admit(1, usd="0.6"))
    db.execute("select pgflow.force_cancel_run(%s)", (run.key,))
    commit(db, flush(run, idle=True))
    assert sums(db, "p") == (0, 0, 1)


def test_a_period_is_full_again_when_the_calendar_of_its_zone_says_so(db):
    set_clock(db, T0)  # midnight in UTC, five in the afternoon before in Honolulu
    pool(db, "p", {"usd": 1}, per="1 day", tz="Pacific/Honolulu")
    run = begin(db, pool="p")
    ask(db, run, admit(1, usd="0.6"))
    set_clock(db, T0 + timedelta(hours=9))
    assert ask(db, run, admit(2, usd="0.6"))[0][0] == "q"
    set_clock(db, T0 + timedelta(hours=10))
    assert ask(db, run, admit(3, usd="0.6"))[0][0] == "m"
    commit(db, flush(run, spent(1, usd="0.5"), unit("c", 1, "ask"), closes=[1]))
    assert sums(db, "p") == (0, Decimal("0.6"), Decimal("0.4")), (
        "a call is charged to the period that admitted it"
    )
    assert rows(db, "select charged from pgflow.spend order by period_at") == [Decimal("0.5"), 0]


def test_a_pool_that_is_revoked_admits_nothing_below_it_until_it_is_restored(db):
    pool(db, "tenant", {"usd": 1})
    pool(db, "user", {"usd": 1}, parent="tenant")
    run = begin(db, pool="user")
    db.execute("select pgflow.revoke_pool('tenant', why => 'unpaid')")
    assert ask(db, run, admit(1, usd="0.1")) == [("q", {"reason": "revoked", "pool": "tenant"})]
    db.execute("select pgflow.revoke_pool('tenant', restore => true)")
    assert ask(db, run, admit(2, usd="0.1"))[0][0] == "m"
    found = rows(db, "select what from pgflow.pool_change order by changed_at")
    assert found == ["set", "set", "revoked", "restored"]


def test_a_grant_raises_the_limit_of_this_period_alone_and_covers_an_overrun(db):
    set_clock(db, T0)
    pool(db, "p", {"usd": 1}, per="day")
    run = begin(db, pool="p")
    commit(db, flush(run, unit("M", 1, None, '{"amounts": {"usd": "1.5"}}'), closes=()))
    db.execute("""select pgflow.grant_budget('p', '{"usd": 2}')""")
    found = one(db, "select allowed, charged, overrun, remaining from pgflow.budgets")
    assert found == (3, Decimal("1.5"), 0, Decimal("1.5"))
    set_clock(db, T0 + DAY)
    assert one(db, "select allowed, charged, remaining from pgflow.budgets") == (1, 0, 1)


def test_a_limit_may_be_set_below_what_is_charged_and_not_below_what_is_reserved(db):
    pool(db, "p", {"usd": 2})
    run = begin(db, pool="p")
    ask(db, run, admit(1, usd="0.5"))
    commit(db, flush(run, unit("M", 2, None, '{"amounts": {"usd": "1"}}'), closes=()))
    pool(db, "p", {"usd": 1})
    found = one(db, "select charged, reserved, overrun from pgflow.spend")
    assert found == (Decimal("0.5"), Decimal("0.5"), Decimal("0.5"))
    with (
        pytest.raises(
            psycopg.Error, match="open calls have reserved 0.5 usd of pool 'p', more than 0.2"
        ),
        db.transaction(),
    ):
        pool(db, "p", {"usd": 0.2})
    pool(db, "p", {})
    found = one(db, "select charged, reserved, overrun, allowed from pgflow.spend")
    assert found == (1, Decimal("0.5"), 0, None)


def test_a_soft_threshold_sends_one_signal_a_period_to_the_run_that_passes_it(db):
    pool(db, "p", {"usd": 1}, soft=Decimal("0.5"))
    run = begin(db, pool="p")
    ask(db, run, admit(1, usd="0.4"))
    assert count(db, "signal") == 0
    answer = commit(db, flush(run, closes=(), admits=[admit(2, usd="0.2")]))
    assert answer.wake == [run.chain_id]
    ask(db, run, admit(3, usd="0.2"))
    assert rows(db, "select payload from pgflow.signal where name = 'budget'") == [
        {"pool": "p", "unit": "usd", "limit": "1", "charged": "0", "reserved": "0.6", "left": "0.4"}
    ]


def test_a_hard_pool_asks_for_every_step_and_refuses_all_once_it_is_used_up(db):
    pool(db, "p", {"usd": 1}, hard=True)
    pool(db, "q", {"usd": 9})
    start(db, pool="p")
    run = claim_one(db)
    assert run.extra is not None
    assert run.extra["pool"] == {"name": "p", "hard": True}
    assert ask(db, run, admit(1, hard=True)) == [("m", {"pool": "p", "amounts": {}})]
    commit(db, flush(run, unit("M", 2, None, '{"amounts": {"usd": "1"}}'), closes=()))
    found = [kind for kind, _ in ask(db, run, admit(3, hard=True), admit(4, "q", hard=True, usd=1))]
    assert found == ["q", "q"]


def test_children_and_the_next_generation_draw_on_the_pool_of_their_run(db):
    pool(db, "p", {"usd": 1})
    run = begin(db, pool="p")
    kid = [1, "child", "default", "{}", None, 0, None, None, None, None, "c"]
    named = [2, "child", "default", "{}", "named", 0, None, None, None, None, "c"]
    rich = [
        3,
        "child",
        "default",
        "{}",
        None,
        0,
        None,
        None,
        None,
        None,
        "c",
        "",
        None,
        {"usd": 0.1},
    ]
    commit(db, flush(run, children=[kid, named, rich]))
    commit(db, flush(run, **{"continue": "{}"}))
    assert rows(db, "select pool from pgflow.run where pool not like 'run/%'") == ["p"] * 4
    assert one(db, "select pools[2] from pgflow.pool where name like 'run/%'") == "p"


def test_a_child_under_a_pool_that_nobody_has_made_is_admitted_nothing(db):
    pool(db, "p", {"usd": 1})
    run = begin(db, pool="p")
    row = [1, "child", "default", "{}", None, 0, None, None, None, None, "c", "", "typo"]
    commit(db, flush(run, children=[[*row, None], [2, *row[1:], {"usd": 5}]]))
    kids = sorted(claim(db, 2), key=lambda kid: kid.run_id)
    for kid in kids:
        ((kind, said),) = ask(db, kid, admit(1, usd=1))
        assert (kind, said["reason"], said["pool"]) == ("q", "no_pool", "typo")
        told = '{"amounts": {"usd": "0.5"}}'
        commit(db, flush(kid, unit("M", 2, None, told), closes=()))
    assert rows(db, "select cardinality(pools) from pgflow.charges order by run_id") == [0, 1]
    pool(db, "typo", {"usd": 1})
    assert [ask(db, kid, admit(3, usd=1))[0][0] for kid in kids] == ["m", "q"]


def test_a_run_may_have_a_pool_of_its_own_under_another(db):
    pool(db, "p", {"usd": 1})
    run = begin(db, pool="p", budget='{"usd": 0.2}')
    assert ask(db, run, admit(1, usd="0.3"))[0][1]["pool"] == f"run/{run.root}"
    assert ask(db, run, admit(2, usd="0.1"))[0][0] == "m"
    assert sums(db, "p") == (0, Decimal("0.1"), Decimal("0.9"))


def test_a_start_with_a_pool_that_is_not_there_is_refused(db):
    with pytest.raises(psycopg.Error, match="no pool is named 'nope'") as error:
        start(db, pool="nope")
    assert error.value.diag.sqlstate == "PF026"


def test_a_rewind_returns_what_the_dropped_part_has_reserved_and_keeps_what_it_spent(db):
    pool(db, "p", {"usd": 1})
    run = begin(db, pool="p")
    ask(db, run, admit(1, usd="0.5"))
    commit(db, flush(run, spent(1, usd="0.2"), unit("a", 1, "ask", delay_seconds=1), closes=()))
    commit(db, flush(run, hold=["stuck", "test", None, {}, "test"]))
    db.execute("select pgflow.rewind_run(%s, 1)", (run.key,))
    assert sums(db, "p") == (Decimal("0.2"), 0, Decimal("0.8"))
    assert one(db, "select pool from pgflow.run where generation = 2") == "p"


def test_a_fork_draws_on_the_same_pool_and_has_neither_charged_nor_reserved_anything(db):
    pool(db, "p", {"usd": 1})
    run = begin(db, pool="p", budget='{"usd": 0.5}')
    ask(db, run, admit(1, usd="0.2"))
    commit(db, flush(run, spent(1, usd="0.1"), unit("c", 1, "ask"), closes=[1]))
    ask(db, run, admit(2, usd="0.3"))
    db.execute("select pgflow.fork_run(%s, 'copy', effects => 'repeat')", (run.key,))
    assert sums(db, "p") == (Decimal("0.1"), Decimal("0.3"), Decimal("0.6"))
    assert rows(db, "select pool from pgflow.run") == [f"run/{run.root}"] * 2
    assert rows(db, "select run_id from pgflow.charge") == [run.run_id]


def test_sums_of_a_pool_stay_when_the_history_of_its_runs_goes(db):
    pool(db, "p", {"usd": 1})
    run = begin(db, pool="p", budget='{"usd": 1}')
    commit(db, flush(run, unit("M", 1, None, '{"amounts": {"usd": "0.5"}}'), closes=()))
    finish(db, run)
    db.execute("select pgflow.drop_history(pgflow.now_())")
    assert count(db, "charge") == 0
    found = one(db, "select charged, remaining from pgflow.budgets")
    assert found == (Decimal("0.5"), Decimal("0.5"))


def test_a_pool_of_a_run_goes_with_the_last_that_draws_on_it(db):
    pool(db, "p", {"usd": 1})
    run = begin(db, pool="p", budget='{"usd": 1}')
    db.execute("select pgflow.fork_run(%s, 'copy')", (run.key,))
    kid = [1, "child", "default", "{}", None, 0, None, None, None, None, "a", "", None, {"usd": 1}]
    commit(db, flush(run, children=[kid]))
    finish(db, run)
    db.execute("select pgflow.drop_history(pgflow.now_())")
    assert count(db, "pool") == 3
    for left in claim(db, 2):
        assert ask(db, left, admit(9, usd="0.25"))[0][0] == "m"
        commit(db, flush(left, outcome=("completed", None, "null", None), closes=[None]))
    db.execute("select pgflow.drop_history(pgflow.now_())")
    assert rows(db, "select name from pgflow.pool") == ["p"]


def test_runs_ended_together_by_force_return_what_they_have_in_one_order(db):
    runs = []
    for name in ("z", "a"):
        pool(db, name, {"usd": 1})
        runs.append(begin(db, pool=name))
        ask(db, runs[-1], admit(1, usd="0.5"))
        commit(db, flush(runs[-1], hold=["stuck", "test", None, {}, "test"]))
        db.execute("select pgflow.cancel_run(%s, force => true)", (runs[-1].key,))
    db.execute("select pgflow.wake(%s)", ([run.chain_id for run in runs],))
    assert count(db, "reservation") == 0
    assert sums(db, "a") == sums(db, "z") == (0, 0, 1)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("set_pool('')", "the name of a pool must be"),
        ("set_pool('p', '[]')", "must be an object of amounts"),
        ("""set_pool('p', '{"usd": -1}')""", "the unit 'usd' must be"),
        ("""set_pool('p', '{"US D": 1}')""", "the unit 'US D' must be"),
        ("set_pool('p', parent => 'nope')", "no pool is named 'nope'"),
        ("set_pool('p', per => 'fortnight')", "not 'fortnight'"),
        ("set_pool('p', tz => 'Mars/Olympus')", "unknown time zone"),
        ("set_pool('p', soft => 2)", "soft must be"),
        ("set_pool('child', parent => null)", "draws on 'top', which cannot be changed"),
        ("""grant_budget('top', '{"tokens": 1}')""", "has no limit of tokens"),
        ("revoke_pool('nope')", "no pool is named 'nope'"),
        ("set_pool('run/1')", "is a name for the pool that a run has of its own"),
        (
            "set_pool('p', (select jsonb_object_agg('u' || n, 1) from generate_series(1, 500) n))",
            "4,096",
        ),
        ("set_pool('p', null)", "must be an object of amounts"),
        ("set_pool('p', tz => null)", "unknown time zone NULL"),
        ("grant_budget(null, '{}')", "no pool is named NULL"),
        ("revoke_pool(null)", "no pool is named NULL"),
        ("declare_pools('[{}]')", "must be an object of amounts"),
    ],
)
def test_what_cannot_be_said_of_a_pool_is_refused(db, call, said):
    pool(db, "top", {"usd": 1})
    pool(db, "child", {"usd": 1}, parent="top")
    with pytest.raises(psycopg.Error, match=said):
        db.execute(f"select pgflow.{call}")


def test_a_declaration_stands_until_it_changes_whatever_people_set_since(db):
    said = [
        {
            "name": "p",
            "limits": {"usd": 1},
            "parent": None,
            "per": None,
            "tz": "UTC",
            "soft": 0.8,
            "hard": False,
        }
    ]
    assert one(db, "select pgflow.declare_pools(%s)", json.dumps(said)) == 1
    pool(db, "p", {"usd": 5})
    assert one(db, "select pgflow.declare_pools(%s)", json.dumps(said)) == 0
    assert one(db, "select allowed from pgflow.budgets") == 5
    said[0]["limits"] = {"usd": 2}
    assert one(db, "select pgflow.declare_pools(%s)", json.dumps(said)) == 1
    assert one(db, "select allowed from pgflow.budgets") == 2
