"""A step on a node of Citus commits on all nodes or on none, and the next one sees its rows."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import citus
import psycopg
import pytest
from clikit import pgflow as cli
from records import SOON
from servers import wait_until, wait_until_blocked

from pgflow import App, transaction, workflow
from pgflow.errors import SetupError
from pgflow.schema.clusters import init_cluster, join_cluster

Connection = psycopg.Connection[Any]
AsyncConnection = psycopg.AsyncConnection[Any]

GUARDED = "select count(*) from pg_trigger where tgname = 'two_phase'"

# A node that dies between the phases: the warning of a commit that succeeds, and Citus's record of it.
UNFINISHED = """
create table public.pg_dist_transaction (gid text);
create table public.orders (id int);
create function public.die() returns trigger language plpgsql as $$
begin
  insert into pg_dist_transaction values (format('citus_0_%s_1_0', pg_backend_pid()));
  raise warning 'failed to commit transaction on 127.0.0.1:25803';
  return null;
end $$;
create constraint trigger die after insert on public.orders initially deferred
  for each row when (new.id = 1) execute function public.die();
"""


def test_a_plain_server_has_no_triggers_of_two_phase_commits(conn):
    assert conn.execute("select pgflow.join_citus_()").fetchone() == ("plain",)
    assert conn.execute(GUARDED).fetchone() == (0,)


@transaction
async def order(connection: AsyncConnection, number: int) -> int:
    await connection.execute("insert into orders values (%s)", (number,))
    return number


@transaction
def order_sync(connection: Connection, number: int) -> int:
    connection.execute("insert into orders values (%s)", (number,))
    return number


@workflow
async def two_orders() -> int:
    return await order(1) + await order(2)


@workflow
def two_orders_sync() -> int:
    return order_sync(1) + order_sync(2)


@pytest.mark.parametrize("flow_of", [two_orders, two_orders_sync], ids=["async", "sync"])
def test_a_run_waits_until_the_rows_of_its_step_are_on_all_nodes(dsn, conn, caplog, flow_of):
    conn.execute(UNFINISHED)
    with App(dsn, include=[flow_of]) as app, app.worker():
        run = app.start(flow_of)
        wait_until(lambda: "its run waits" in caplog.text, "the run waits")
        assert conn.execute("select array_agg(id) from orders").fetchone() == ([1],)
        conn.execute("delete from pg_dist_transaction")
        assert run.result(SOON) == 3


def test_a_look_that_fails_is_not_an_outcome_of_the_step(dsn, conn, caplog):
    conn.execute(UNFINISHED)
    conn.execute("alter table pg_dist_transaction rename column gid to number")
    with App(dsn, include=[two_orders]) as app, app.worker():
        assert app.start(two_orders).result(SOON) == 3
    assert "cannot see whether a step has committed on all nodes" in caplog.text


SKEW = """
create table if not exists public.skew (id int, n int);
truncate public.skew;
insert into public.skew values (1, 0), (2, 0);
"""


@pytest.fixture(scope="module")
def nodes() -> Iterator[dict[int, str]]:
    """DSNs of a coordinator (0) and the other nodes by group, with pgflow on each, and a table
    `ledger` that is distributed over them by `customer`.
    """
    if not citus.CLUSTER:
        pytest.skip("needs PGFLOW_CITUS_DSN, the coordinator of a Citus cluster, as a superuser")
    with citus.citus_of() as found:
        citus.execute(found[0], "create table ledger (customer int, note text)")
        citus.execute(found[0], "select create_distributed_table('ledger', 'customer')")
        yield dict(enumerate(found))


def customer_of(nodes: dict[int, str], group: int) -> int:
    """A customer whose rows lie on this node."""
    with psycopg.connect(nodes[0]) as conn:
        (customer,) = conn.execute(
            "select min(g) from generate_series(1, 200) g join pg_dist_placement p "
            "on p.shardid = get_shard_id_for_distribution_column('ledger', g) and p.groupid = %s",
            (group,),
        ).fetchone()  # type: ignore[misc]
    return int(customer)


START = "select from pgflow.start_run('w', key => %s)"

VERBS = {
    "start": START,
    "signal": "select from pgflow.post_signal(%s, 'paid', '1')",
    "cancel": "select from pgflow.cancel_run(%s, 'late')",
    "publish": "select pgflow.publish('orders', key => %s)",
}


@pytest.mark.full
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("home", [0, 1])
def test_a_verb_beside_a_remote_row_commits_in_two_phases(nodes, verb, home):
    key = f"{verb} {home}"
    with psycopg.connect(nodes[home], autocommit=True) as conn:
        if verb != "start":
            conn.execute(START, (key,))
        assert phases(nodes, conn, VERBS[verb], key) == [False, True]


def phases(nodes: dict[int, str], conn: Connection, statement: str, key: str) -> list[bool]:
    """Whether a transaction would commit in two phases after a remote row, and after a statement."""
    conn.execute("set citus.enable_ddl_propagation = off")
    conn.execute(
        "create or replace function public.two_phases() returns bool language c "
        "as 'citus', 'coordinated_transaction_should_use_2PC'"
    )
    found = []
    with conn.transaction(force_rollback=True):
        conn.execute("insert into ledger values (%s, %s)", (customer_of(nodes, 2), key))
        found += conn.execute("select public.two_phases()").fetchone() or ()
        conn.execute(statement.encode(), (key,))
        found += conn.execute("select public.two_phases()").fetchone() or ()
    return found


ANCHOR = """
select citus_move_shard_placement(s.shardid, s.nodename, s.nodeport, n.nodename, n.nodeport, 'block_writes')
from citus_shards s, pg_dist_node n
where s.table_name = 'pgflow_anchor.anchor'::regclass and n.groupid = %s and s.nodeport <> n.nodeport
"""


@pytest.mark.full
@pytest.mark.parametrize("local", ["on", "off"])
@pytest.mark.parametrize("place", [1, 2])
def test_the_place_of_the_anchor_does_not_matter(
    nodes: dict[int, str], place: int, local: str
) -> None:
    """As after a rebalance, on a node that has just been added, or on one that was drained."""
    with psycopg.connect(nodes[0], autocommit=True) as conn:
        conn.execute(ANCHOR, (place,))
    for home in (0, 1):
        with psycopg.connect(nodes[home], autocommit=True) as conn:
            conn.execute(f"set citus.enable_local_execution = {local}".encode())
            assert phases(nodes, conn, START, f"{place} {local} {home}") == [False, True]


@pytest.mark.full
@pytest.mark.parametrize("is_guarded", [True, False])
@pytest.mark.parametrize("home", [0, 1])
def test_a_commit_that_fails_here_leaves_no_remote_row(nodes, home, is_guarded):
    """Two serializable transactions that only one server can order: the second COMMIT fails. The
    control, whose anchor is not touched, shows that the remote row would stay.
    """
    key = secrets.token_hex(4)
    with psycopg.connect(nodes[home], autocommit=True) as conn:
        conn.execute("set citus.enable_ddl_propagation = off")
        conn.execute(SKEW)
    sessions = [psycopg.connect(nodes[home]) for _ in range(2)]
    for session in sessions:
        session.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
        session.execute("select sum(n) from skew")
        session.execute("insert into ledger values (%s, %s)", (customer_of(nodes, 2), key))
    for number, session in enumerate(sessions, 1):
        session.execute("update skew set n = n + 1 where id = %s", (number,))
        if not is_guarded:
            session.execute("select set_config('pgflow.two_phase', 'on', true)")
        session.execute(START, (f"{key} {number}",))
    sessions[0].commit()
    with pytest.raises(psycopg.errors.SerializationFailure):
        sessions[1].commit()
    for session in sessions:
        session.close()
    with psycopg.connect(nodes[home]) as conn:
        (runs,) = conn.execute(
            "select count(*) from pgflow.runs where key like %s", (f"{key} %",)
        ).fetchone()  # type: ignore[misc]
        (rows,) = conn.execute("select count(*) from ledger where note = %s", (key,)).fetchone()  # type: ignore[misc]
    assert (runs, rows) == (1, 1 if is_guarded else 2)


def join_all(nodes: dict[int, str]) -> None:
    """Make all nodes those of a cluster."""
    for group, dsn in nodes.items():
        with psycopg.connect(dsn, autocommit=True) as conn:
            if group == 0:
                init_cluster(conn)
            else:
                join_cluster(conn, None, node=group)


MOVE = """
select citus_move_shard_placement(s.shardid, s.nodename, s.nodeport, n.nodename, n.nodeport, 'block_writes')
from citus_shards s, pg_dist_node n
where s.shardid = get_shard_id_for_distribution_column('pgflow_cluster.key', 'moving')
  and n.groupid between 1 and 2 and s.nodeport <> n.nodeport limit 1
"""


@pytest.mark.full
def test_a_claim_that_waits_for_a_move_of_its_shard_is_kept(nodes: dict[int, str]) -> None:
    """A transaction that read the table first would write the shard that is left behind."""
    if len(nodes) < 4:
        pytest.skip("needs a node that has the shard neither before nor after the move")
    join_all(nodes)
    with (
        psycopg.connect(nodes[0], autocommit=True) as look,
        psycopg.connect(nodes[0]) as moving,
        psycopg.connect(nodes[3], autocommit=True) as claiming,
        ThreadPoolExecutor(1) as pool,
    ):
        look.execute(MOVE)  # it may have been on the third
        moving.execute(MOVE)
        claim = pool.submit(claiming.execute, "select pgflow_cluster.claim('moving', '', 3)")
        wait_until_blocked(nodes[3], claiming.info.backend_pid)
        moving.commit()
        assert claim.result().fetchone() == (3,)
        found = look.execute("select node from pgflow_cluster.key where key = 'moving'").fetchone()
    assert found == (3,)


@pytest.mark.full
def test_a_node_of_a_cluster_has_the_number_of_its_group(nodes: dict[int, str]) -> None:
    """The key of a run that is to be near rows goes to the node that has them."""
    join_all(nodes)
    with psycopg.connect(nodes[1], autocommit=True) as conn:
        with pytest.raises(SetupError, match="pass 1, the number of its group"):
            join_cluster(conn, None, node=9)
        assert conn.execute(
            "select array_agg(node order by node) from pgflow_cluster.node"
        ).fetchone() == ([*nodes],)
    for group, dsn in nodes.items():
        near = str(customer_of(nodes, 2))
        with psycopg.connect(dsn, autocommit=True) as conn:
            claim = "select pgflow_cluster.claim(%s, '', null, 'ledger', %s)"
            assert conn.execute(claim, (f"key {group}", near)).fetchone() == (2,)
    assert cli(nodes[1], "migrate", "--all-nodes").code == 0


@transaction
def book(connection: Connection, customer: int, key: str) -> None:
    connection.execute("insert into ledger values (%s, %s)", (customer, key))


@workflow
def books(customers: list[int], key: str) -> None:
    for customer in customers:
        book(customer, key)


@pytest.mark.full
@pytest.mark.parametrize("home", [0, 1])
def test_a_run_books_on_every_node_and_doctor_finds_nothing_wrong(nodes, home):
    key = secrets.token_hex(4)
    customers = [customer_of(nodes, group) for group in nodes if group]
    with App(nodes[home], include=[books]) as app, app.worker():
        app.start(books, customers, key).result(SOON)
    with psycopg.connect(nodes[home]) as conn:
        booked = conn.execute("select count(*) from ledger where note = %s", (key,)).fetchone()
        assert booked == (len(customers),)
        assert conn.execute("select * from pgflow.check()").fetchall() == []
    told = cli(nodes[home], "doctor", "--fail-on", "fail")
    assert told.code == 0
    assert "transactions of several nodes commit in two phases" in told.out
