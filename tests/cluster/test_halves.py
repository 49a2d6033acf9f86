"""The shared part of a transaction commits and the part of the node does not: nothing is lost, and
nothing happens twice.

postgres_fdw commits its remote part first. A serializable conflict then fails the commit of the
node: each time, without a crash.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import citus
import psycopg
import pytest
from clusterkit import ask, value
from psycopg.types.json import Json

Connection = psycopg.Connection[Any]

SKEW = (
    "create table if not exists public.skew as select g as id, 0 as v from generate_series(1, 2) g"
)
AGE = "update pgflow_cluster.key set at = '2020-01-01' returning 1"
START = {
    "workflow": "w", "input": {}, "key": "k", "queue": "default", "priority": 0, "tenant": "",
    "version": "", "if_taken": "match",
}  # fmt: skip


def commit_half(dsn: str, work: Callable[[Connection], Any]) -> None:
    """Do work in a transaction whose commit fails on its own node, after all others."""
    if citus.CLUSTER:
        pytest.skip("Citus commits on all nodes or on none where tables of pgflow are written")
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(SKEW)
    with psycopg.connect(dsn) as one, psycopg.connect(dsn) as other:
        for connection in (one, other):
            connection.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
            connection.execute("select sum(v) from public.skew")
        work(one)
        one.execute("update public.skew set v = v + 1 where id = 1")
        other.execute("update public.skew set v = v + 1 where id = 2")
        other.commit()
        with pytest.raises(psycopg.errors.SerializationFailure):
            one.commit()


def home(nodes: list[str], key: str) -> int | None:
    return value(nodes[0], "select pgflow_cluster.node_of(%s)", key)  # type: ignore[no-any-return]


def runs(nodes: list[str]) -> list[int]:
    return [value(dsn, "select count(*) from pgflow.run") for dsn in nodes]


def bring(nodes: list[str], sender: int, *, settles: bool = True) -> list[dict[str, Any]]:
    """Do the rounds of a courier once; without the last part, as if it died before that."""
    said: list[dict[str, Any]] = []
    dsn = nodes[sender - 1]
    for node in value(dsn, "select pgflow_cluster.due()"):
        low, letters = ask(dsn, "select * from pgflow_cluster.pick(%s, 100, 30)", node)[0]
        receiving = "select pgflow_cluster.receive(%s, %s, %s)"
        verdicts = value(nodes[node - 1], receiving, sender, low, Json(letters))
        said += verdicts
        if settles:
            ask(dsn, "select pgflow_cluster.settle(%s)", Json(verdicts))
        else:
            ask(dsn, "update pgflow_cluster.outbox set due_at = at returning 1")
    return said


def test_a_claim_without_a_run_is_the_run_of_the_next_start(nodes: list[str]) -> None:
    def start(connection: Connection) -> None:
        connection.execute("select pgflow_cluster.claim('k', '', 2)")
        connection.execute("select pgflow.start_run('w', '{}'::json, 'k')")

    commit_half(nodes[1], start)
    assert home(nodes, "k") == 2
    assert runs(nodes) == [0, 0, 0]
    assert value(nodes[2], "select pgflow_cluster.claim('k', '', 3)") == 2
    with psycopg.connect(nodes[1]) as connection:
        start(connection)
    assert runs(nodes) == [0, 1, 0]


def test_claims_of_a_batch_without_its_runs_are_those_of_the_next(nodes: list[str]) -> None:
    batch = '[["a", "{}"], ["b", "{}"]]'

    def start(connection: Connection) -> None:
        connection.execute("select pgflow_cluster.claim_all('{b,a}')")
        connection.execute("select pgflow.start_runs('w', %s)", (batch,))

    commit_half(nodes[1], start)
    assert (home(nodes, "a"), home(nodes, "b"), runs(nodes)) == (2, 2, [0, 0, 0])
    assert value(nodes[2], "select pgflow_cluster.claim_all('{c,a}', '', 3)") == 2
    for _ in range(2):
        with psycopg.connect(nodes[1]) as connection:
            start(connection)
    assert runs(nodes) == [0, 2, 0]


def test_the_claim_of_a_fork_that_failed_is_that_of_the_next(nodes: list[str]) -> None:
    value(nodes[1], "select run_id from pgflow.start_run('w', '{}'::json, 'k')")

    def fork(connection: Connection) -> None:
        connection.execute("select pgflow_cluster.claim_beside('k', 'fork')")
        connection.execute("select pgflow.fork_run('k', 'fork')")

    commit_half(nodes[1], fork)
    assert (home(nodes, "fork"), runs(nodes)) == (2, [0, 1, 0])
    for _ in range(2):
        with psycopg.connect(nodes[1]) as connection:
            fork(connection)
    assert runs(nodes) == [0, 2, 0]


@pytest.mark.parametrize("call", ["claim('k', '', 2)", "claim_all('{k}', '', 2)"])
def test_a_claim_that_was_renewed_though_its_start_failed_keeps_its_home(
    nodes: list[str], call: str
) -> None:
    value(nodes[1], "select pgflow_cluster.claim('k', '', 2)")
    ask(nodes[0], AGE)
    commit_half(
        nodes[1],
        lambda connection: connection.execute(f"select pgflow_cluster.{call}"),  # type: ignore[call-overload]
    )
    assert value(nodes[1], "select pgflow_cluster.sweep()") == 0
    assert home(nodes, "k") == 2


def test_a_child_elsewhere_whose_letter_failed_is_asked_for_once(nodes: list[str]) -> None:
    asking = json.dumps({**START, "reply_key": "parent", "reply_node": 3})
    value(nodes[2], "select run_id from pgflow.start_run('p', '{}'::json, 'parent')")

    def post(connection: Connection) -> None:
        connection.execute("select pgflow_cluster.post_start(%s, 2)", (asking,))

    commit_half(nodes[2], post)
    asked = "select count(*) from pgflow_cluster.asked"
    assert (home(nodes, "k"), value(nodes[2], asked), bring(nodes, 3)) == (2, 0, [])
    with psycopg.connect(nodes[2]) as connection:
        post(connection)
    assert (value(nodes[2], asked), len(bring(nodes, 3)), runs(nodes)) == (1, 1, [0, 1, 1])


def test_a_claim_without_a_letter_is_the_run_of_the_next_letter(nodes: list[str]) -> None:
    def post(connection: Connection) -> None:
        connection.execute("select pgflow_cluster.post_start(%s, 2)", (json.dumps(START),))

    commit_half(nodes[2], post)
    assert (home(nodes, "k"), value(nodes[2], "select count(*) from pgflow_cluster.outbox")) == (
        2,
        0,
    )
    with psycopg.connect(nodes[2]) as connection:
        post(connection)
    assert [one["verdict"] for one in bring(nodes, 3)] == ["done"]
    assert runs(nodes) == [0, 1, 0]


def test_a_key_that_was_freed_though_its_sweep_failed_is_free(nodes: list[str]) -> None:
    value(nodes[1], "select pgflow_cluster.claim('k', '', 2)")
    ask(nodes[0], AGE)
    commit_half(nodes[1], lambda connection: connection.execute("select pgflow_cluster.sweep()"))
    assert home(nodes, "k") is None
    assert value(nodes[0], "select pgflow_cluster.claim('k', '', 3)") == 3


def test_a_sweep_keeps_keys_that_have_runs_and_those_claimed_again(nodes: list[str]) -> None:
    value(nodes[1], "select pgflow_cluster.claim('used', '', 2)")
    value(nodes[1], "select pgflow_cluster.claim('again', '', 2)")
    value(nodes[1], "select run_id from pgflow.start_run('w', '{}'::json, 'used')")
    ask(nodes[0], AGE)
    value(nodes[2], "select pgflow_cluster.claim('again', '', 3)")
    assert value(nodes[1], "select pgflow_cluster.sweep()") == 0
    assert (home(nodes, "used"), home(nodes, "again")) == (2, 2)


def test_a_signal_whose_transaction_fails_is_not_sent(nodes: list[str]) -> None:
    value(nodes[1], "select pgflow_cluster.claim('k', '', 2)")
    value(nodes[1], "select run_id from pgflow.start_run('w', '{}'::json, 'k')")

    def send(connection: Connection) -> None:
        connection.execute("select pgflow_cluster.send_signal('k', 's', '1')")
        connection.execute("select pgflow_cluster.cancel_run('k')")

    commit_half(nodes[2], send)
    assert bring(nodes, 3) == []
    with psycopg.connect(nodes[2]) as connection:
        send(connection)
    bring(nodes, 3)
    assert ask(nodes[1], "select kind, name from pgflow.signal order by signal_id") == [
        ("s", "s"),
        ("x", "cancel"),
    ]


@pytest.mark.parametrize("times", [1, 3])
def test_letters_that_come_again_do_nothing_again(nodes: list[str], times: int) -> None:
    asking = {**START, "reply_key": "parent", "reply_node": 1}
    value(nodes[0], "select run_id from pgflow.start_run('p', '{}'::json, 'parent')")
    value(nodes[0], "select pgflow_cluster.post_start(%s, 2)", json.dumps(asking))
    value(nodes[0], "select is_new from pgflow_cluster.send_signal('k', 's', '1')")
    for _ in range(times):
        assert {one["verdict"] for one in bring(nodes, 1, settles=False)} == {"done"}
    bring(nodes, 1)
    assert runs(nodes) == [1, 1, 0]
    assert value(nodes[1], "select count(*) from pgflow.signal") == 1
    ask(nodes[1], "select pgflow.cancel_run('k', force => true)")
    ask(nodes[1], "select pgflow.wake()")
    for _ in range(times):
        bring(nodes, 2, settles=False)
    bring(nodes, 2)
    answers = "select payload->>'status' from pgflow.signal where name = 'pgflow.answer'"
    assert ask(nodes[0], answers) == [("cancelled",)]
    for dsn in nodes:
        assert value(dsn, "select count(*) from pgflow_cluster.outbox") == 0
        assert value(dsn, "select count(*) from pgflow_cluster.dead") == 0


def test_a_letter_that_no_node_can_take_is_put_aside_with_the_reason(nodes: list[str]) -> None:
    value(
        nodes[0],
        "select pgflow_cluster.post_start(%s, 2)",
        json.dumps({**START, "priority": 99999}),
    )
    value(nodes[0], "select is_new from pgflow_cluster.send_signal('k', 's', '1')")
    assert [one["verdict"] for one in bring(nodes, 1)] == ["dead", "wait"]
    assert ask(nodes[0], "select kind, error ~ 'priority' from pgflow_cluster.dead") == [
        ("start", True)
    ]
    ask(
        nodes[0],
        "update pgflow_cluster.outbox set due_at = at, waits_since = at - interval '2 hours' "
        "returning 1",
    )
    bring(nodes, 1)
    assert ask(nodes[0], "select kind from pgflow_cluster.dead order by died_at") == [
        ("start",),
        ("signal",),
    ]


def test_a_letter_to_a_node_that_was_silent_for_long_waits_for_its_run(nodes: list[str]) -> None:
    value(nodes[0], "select pgflow_cluster.claim('k', '', 2)")
    value(nodes[0], "select is_new from pgflow_cluster.send_signal('k', 's', '1')")
    ask(nodes[0], "update pgflow_cluster.outbox set at = at - interval '2 hours' returning 1")
    assert [one["verdict"] for one in bring(nodes, 1)] == ["wait"]
    assert value(nodes[0], "select count(*) from pgflow_cluster.dead") == 0
    value(nodes[1], "select run_id from pgflow.start_run('w', '{}'::json, 'k')")
    ask(nodes[0], "update pgflow_cluster.outbox set due_at = at returning 1")
    assert [one["verdict"] for one in bring(nodes, 1)] == ["done"]


LATE_RUN = """
create table public.late (run_key text);
create function public.start_late() returns trigger language plpgsql as $$
begin
  if new.seq > 1 then -- as if another session had committed the start between two letters
    perform pgflow.start_run('w', '{}'::json, 'k');
  end if;
  return new;
end $$;
create trigger late before insert on pgflow_cluster.received
for each row execute function public.start_late();
"""


def test_a_letter_does_not_overtake_one_to_its_key_that_waits(nodes: list[str]) -> None:
    with psycopg.connect(nodes[1], autocommit=True) as connection:
        connection.execute("set citus.enable_ddl_propagation = off")
        connection.execute(LATE_RUN)
    value(nodes[0], "select pgflow_cluster.claim('k', '', 2)")
    for name in ("first", "second"):
        value(nodes[0], "select is_new from pgflow_cluster.send_signal('k', %s, '1')", name)
    bring(nodes, 1)
    value(nodes[1], "select run_id from pgflow.start_run('w', '{}'::json, 'k')")
    ask(nodes[0], "update pgflow_cluster.outbox set due_at = at returning 1")
    bring(nodes, 1)
    found = ask(nodes[1], "select name from pgflow.signal order by signal_id")
    assert found == [("first",), ("second",)]


def test_no_letter_is_picked_while_one_before_it_is_put_off(nodes: list[str]) -> None:
    value(nodes[0], "select pgflow_cluster.claim('k', '', 2)")
    for name in ("first", "second"):
        value(nodes[0], "select is_new from pgflow_cluster.send_signal('k', %s, '1')", name)
    first = value(nodes[0], "select id::text from pgflow_cluster.outbox order by seq limit 1")
    verdict = Json([{"id": first, "verdict": "wait", "code": "PF001", "error": "not yet"}])
    picking = "select letters from pgflow_cluster.pick(2, 100, 30)"
    with psycopg.connect(nodes[0]) as settling:
        settling.execute("select pgflow_cluster.settle(%s)", (verdict,))
        assert ask(nodes[0], picking) == []
