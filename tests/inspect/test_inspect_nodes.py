"""Readers of the nodes of a cluster."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import psycopg
import pytest
from clusterkit import found, value

from pgflow import AsyncApp, inspect


@pytest.mark.alone
def test_a_node_tells_of_the_others_and_of_its_letters(dsn):
    with psycopg.connect(dsn, autocommit=True) as connection:
        assert inspect.ask(connection, inspect.this_node()) is None
    found([dsn])
    value(dsn, "select pgflow_cluster.claim('k', '')")
    value(dsn, "select is_new from pgflow_cluster.send_signal('k', 's', '1')")
    with psycopg.connect(dsn, autocommit=True) as connection:
        (node,) = inspect.ask(connection, inspect.list_nodes())
        assert (node.node, node.state) == (1, "open")
        assert node.dbname == connection.info.dbname
        assert inspect.ask(connection, inspect.node_of("k")) == 1
        assert inspect.ask(connection, inspect.node_of("none")) is None
        standing = inspect.ask(connection, inspect.read_standing())
    assert (standing.node, standing.letters, standing.dead, standing.open_runs) == (1, 1, 0, 0)
    assert standing.oldest_at is not None
    assert standing.read_at > standing.oldest_at
    assert (standing.couriers, standing.layer) == (0, standing.version)

    async def ask() -> inspect.NodeStanding:
        async with AsyncApp(dsn, cluster=True) as app:
            assert await inspect.ask_async(app, inspect.list_nodes()) == [node]
            assert await inspect.ask_async(app, inspect.node_of("k")) == 1
            assert await inspect.ask_async(app, inspect.this_node()) == 1
            return await inspect.ask_async(app, inspect.read_standing())

    assert replace(asyncio.run(ask()), read_at=standing.read_at) == standing
