"""Clients and workers need no more than their roles."""

from __future__ import annotations

import json

import citus
import psycopg
import pytest
from clusterkit import ask, value
from psycopg.types.json import Json
from test_halves import START


@pytest.mark.parametrize("node", [1, 2])
def test_the_roles_of_clients_and_workers_suffice_on_every_node(
    nodes: list[str], node: int
) -> None:
    if citus.CLUSTER:
        pytest.skip("Citus connects to other nodes as the role, which must be one that logs in")
    other = 3 - node
    with psycopg.connect(nodes[node - 1], autocommit=True) as client:
        client.execute("set role pgflow_client")
        client.execute("select pgflow_cluster.claim('here', '', %s)", (node,))
        client.execute("select pgflow_cluster.post_start(%s, %s)", (json.dumps(START), other))
        client.execute("select pgflow_cluster.send_signal('k', 's', '1')")
        client.execute("select pgflow_cluster.cancel_run('k')")
        for call in ("receive(1, 1, '[]')", "settle('[]')", "take('{}')", "sweep()"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                client.execute(f"select pgflow_cluster.{call}")  # type: ignore[arg-type]
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            client.execute("select from pgflow_cluster.outbox")
    with (
        psycopg.connect(nodes[node - 1], autocommit=True) as here,
        psycopg.connect(nodes[other - 1], autocommit=True) as there,
    ):
        for worker in (here, there):
            worker.execute("set role pgflow_worker")
        assert here.execute("select pgflow_cluster.due()").fetchone() == ([other],)
        picked = here.execute("select * from pgflow_cluster.pick(%s, 10, 30)", (other,)).fetchone()
        assert picked is not None
        said = there.execute(
            "select pgflow_cluster.receive(%s, %s, %s)", (node, picked[0], Json(picked[1]))
        ).fetchone()
        assert said is not None
        assert [one["verdict"] for one in said[0]] == ["done"] * 3
        here.execute("select pgflow_cluster.settle(%s)", (Json(said[0]),))
        here.execute("select pgflow_cluster.sweep()")
    assert value(nodes[node - 1], "select count(*) from pgflow_cluster.outbox") == 0
    assert ask(nodes[other - 1], "select kind from pgflow.signal order by signal_id") == [
        ("s",),
        ("x",),
    ]


def test_nobody_else_may_use_the_layer(nodes: list[str]) -> None:
    with psycopg.connect(nodes[1], autocommit=True) as connection:
        found = connection.execute(
            "select p.oid::regprocedure::text from pg_proc p "
            "where p.pronamespace = 'pgflow_cluster'::regnamespace "
            "and has_function_privilege('public', p.oid, 'execute')"
        ).fetchall()
        owners = connection.execute(
            "select distinct pg_get_userbyid(p.proowner) from pg_proc p "
            "where p.pronamespace = 'pgflow_cluster'::regnamespace and p.prosecdef"
        ).fetchall()
    assert found == []
    assert owners == [("pgflow_owner",)]
