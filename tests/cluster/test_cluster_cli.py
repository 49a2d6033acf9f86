"""`pgflow cluster`, and the options by which commands ask all nodes."""

from __future__ import annotations

import psycopg
import pytest
from clikit import pgflow
from clusterkit import ask, value

from pgflow.schema.clusters import init_cluster


def test_commands_found_join_list_and_close_nodes(dsn: str, empty_dsn: str, other_dsn: str) -> None:
    del dsn
    assert pgflow(empty_dsn, "migrate").code == 0
    refused = pgflow(empty_dsn, "cluster", "list")
    assert refused.code != 0
    assert "is not a node of a cluster" in refused.err
    assert pgflow(empty_dsn, "cluster", "init", "--json").data == {
        "node": 1,
        "kind": "plain",
        "is_new": True,
    }
    joined = pgflow(other_dsn, "cluster", "join", "2", "--home", empty_dsn)
    assert joined.code == 0, joined.err
    assert pgflow(other_dsn, "cluster", "join", "1", "--home", empty_dsn).code != 0
    rows = pgflow(other_dsn, "cluster", "list", "--json").data
    assert [(row["node"], row["state"], row["letters"]) for row in rows] == [
        (1, "open", 0),
        (2, "open", 0),
    ]
    assert "closed" in pgflow(empty_dsn, "cluster", "leave", "2").out
    assert pgflow(empty_dsn, "cluster", "leave", "9").code != 0
    with pytest.raises(psycopg.Error, match="not an open node"):
        value(empty_dsn, "select pgflow_cluster.claim('k', '', 2)")
    # Both commands renew what is there.
    assert pgflow(empty_dsn, "cluster", "init", "--json").data["is_new"] is False
    again = pgflow(other_dsn, "cluster", "join", "2", "--home", empty_dsn, "--json")
    assert again.data["is_new"] is False
    assert value(empty_dsn, "select pgflow_cluster.claim('k', '', 2)") == 2


def test_one_command_migrates_all_nodes_and_names_those_that_fail(nodes: list[str]) -> None:
    for dsn in nodes:
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("comment on schema pgflow is 'an old one'")
            connection.execute("comment on schema pgflow_cluster is 'an old one'")
    assert pgflow(nodes[0], "cluster", "leave", "3").code != 0  # the schema is too old
    ask(nodes[0], "update pgflow_cluster.node set state = 'closed' where node = 3 returning 1")
    ask(nodes[0], "update pgflow_cluster.node set port = '1' where node = 2 returning 1")
    first = pgflow(nodes[2], "migrate", "--all-nodes")
    assert first.code == 1
    assert [row.get("error", "")[:31] for row in first.data["nodes"]] == [
        "", "the database cannot be reached:", "",
    ]  # fmt: skip
    (port,) = ask(nodes[1], "select current_setting('port')")[0]
    ask(nodes[0], "update pgflow_cluster.node set port = %s where node = 2 returning 1", port)
    second = pgflow(nodes[2], "migrate", "--all-nodes", "--json")
    assert second.code == 0, second.err
    told = [(row["node"], row["up_to_date"]) for row in second.data["nodes"]]
    assert told == [(1, True), (2, False), (3, True)]
    rows = pgflow(nodes[1], "cluster", "list", "--json").data
    assert [row["state"] for row in rows] == ["open", "open", "closed"]
    assert [level for level, _ in cluster_findings(nodes[0])] == ["ok"] * 3
    for words in (["--all-nodes", "--sql"], []):
        assert pgflow(nodes[0], "migrate", *words).code == (2 if words else 0)


def test_a_database_of_no_cluster_has_no_nodes_to_migrate(dsn: str) -> None:
    refused = pgflow(dsn, "migrate", "--all-nodes")
    assert (refused.code, "a node of no cluster" in refused.err) == (2, True)


ASKING_IN_VAIN = """
create function public.ask() returns trigger language plpgsql as $$
begin
  raise exception using errcode = '08006', message = 'connection to the remote node a@b:1 failed';
end $$;
create trigger ask before update on pgflow_cluster.node for each row execute function public.ask();
"""


def test_a_node_of_citus_that_is_down_is_not_taken_for_the_database(nodes: list[str]) -> None:
    with psycopg.connect(nodes[0], autocommit=True) as connection:
        connection.execute(ASKING_IN_VAIN)
    refused = pgflow(nodes[0], "cluster", "leave", "2")
    assert "was reached, and asked a node of Citus in vain: connection to the remote" in refused.err
    assert "--dsn" not in refused.err


def test_list_and_show_ask_all_nodes_and_name_the_silent_ones(nodes: list[str]) -> None:
    for number, dsn in enumerate(nodes, 1):
        value(dsn, "select run_id from pgflow.start_run('w', '{}'::json, %s)", f"run-{number}")
    found = pgflow(nodes[0], "list", "--all-nodes", "--json").data
    assert {(row["node"], row["key"]) for row in found} == {
        (1, "run-1"),
        (2, "run-2"),
        (3, "run-3"),
    }
    assert pgflow(nodes[0], "show", "run-3", "--all-nodes", "--json").data["key"] == "run-3"
    assert pgflow(nodes[0], "show", "none", "--all-nodes").code != 0
    ask(nodes[0], "update pgflow_cluster.node set dbname = 'gone' where node = 2 returning 1")
    answer = pgflow(nodes[0], "list", "--all-nodes")
    assert answer.code == 0
    assert "run-3" in answer.out
    assert "Node 2 is silent" in answer.err
    table = pgflow(nodes[0], "cluster", "list", "--json")
    silent = [row["node"] for row in table.data if row["silence"]]
    assert silent == [2]
    assert "node 2 is silent" in pgflow(nodes[0], "show", "none", "--all-nodes").err


def test_a_database_without_the_schema_is_refused(empty_dsn: str) -> None:
    with psycopg.connect(empty_dsn) as connection, pytest.raises(Exception, match="pgflow migrate"):
        init_cluster(connection)


def test_workers_refuse_a_node_that_is_not_there(nodes: list[str]) -> None:
    answer = pgflow(nodes[0], "workers", "--node", "7")
    assert answer.code != 0
    assert "the cluster has no node 7: it has 1, 2, 3" in answer.err
    assert pgflow(nodes[0], "workers", "--node", "2").code == 0


def test_a_list_of_all_nodes_counts_all_and_says_that_there_are_more(nodes: list[str]) -> None:
    for number, dsn in enumerate(nodes, 1):
        for place in range(number):
            value(dsn, "select run_id from pgflow.start_run('w', '{}'::json, %s)", f"k-{place}")
        ask(dsn, "select pgflow.cancel_run('k-0')")
        ask(dsn, "select pgflow.wake()")
    counted = pgflow(nodes[0], "list", "--all-nodes", "--count", "--json")
    found = {(row["node"], row["status"]): row["runs"] for row in counted.data if row["runs"]}
    assert found == {
        (1, "cancelled"): 1,
        (2, "cancelled"): 1,
        (2, "queued"): 1,
        (3, "cancelled"): 1,
        (3, "queued"): 2,
    }
    assert "3 queued" in counted.err
    assert "3 cancelled" in counted.err
    newest = pgflow(nodes[0], "list", "--all-nodes", "--limit", "2", "--json")
    assert [(row["node"], row["key"]) for row in newest.data] == [(3, "k-2"), (3, "k-1")]
    assert "The newest 2; there are more" in newest.err
    assert "there are more" not in pgflow(nodes[0], "list", "--all-nodes", "--limit", "6").err
    none = pgflow(nodes[0], "list", "--all-nodes", "--queue", "none", "--json")
    assert (none.code, none.data) == (0, [])


def cluster_findings(dsn: str) -> list[tuple[str, str]]:
    rows = pgflow(dsn, "doctor", "--json").data
    return [(row["level"], row["found"]) for row in rows if row["check"] == "cluster"]


def test_the_doctor_says_of_each_node_how_it_is(nodes: list[str], dsn: str) -> None:
    assert cluster_findings(dsn) == [("ok", "this database is not a node of a cluster")]
    found = cluster_findings(nodes[1])
    assert [level for level, _ in found] == ["ok"] * 3
    for number, (_, text) in enumerate(found, 1):
        assert text.startswith(f"node {number} (")
        assert "0 letters waiting, 0 couriers" in text
    value(nodes[2], "select pgflow_cluster.claim('k', '', 2)")
    value(nodes[2], "select is_new from pgflow_cluster.send_signal('k', 's', '1')")
    dead = (
        "insert into pgflow_cluster.dead select id, node, kind, tenant, key, content, at, at, '' "
    )
    ask(nodes[2], f"{dead} from pgflow_cluster.outbox returning 1")
    ask(nodes[0], "update pgflow_cluster.node set port = '1' where node = 2 returning 1")
    found = cluster_findings(nodes[0])
    assert [level for level, _ in found] == ["ok", "warn", "warn", "warn"]
    assert ") is silent: " in found[1][1]
    assert found[2][1].endswith("has no courier, and 1 letter to other nodes")
    assert found[3][1].endswith("has 1 letter that no node will take")
    ask(nodes[2], "delete from pgflow_cluster.dead returning 1")
    ask(nodes[2], "update pgflow_cluster.outbox set at = at - interval '5 minutes' returning 1")
    ask(
        nodes[2],
        "select pgflow.register_worker('h', 1, '{pgflow.elsewhere}', 1, '0')",
    )
    with psycopg.connect(nodes[2], autocommit=True) as connection:
        connection.execute("comment on schema pgflow_cluster is 'an old one'")
    late, layer = cluster_findings(nodes[0])[-1][1], cluster_findings(nodes[0])[-2][1]
    assert "has had 1 letter for up to 5" in late
    assert "has the cluster layer of an old one, and the schema of pgflow-engine" in layer
    with psycopg.connect(nodes[2], autocommit=True) as connection:
        connection.execute("delete from pgflow_cluster.outbox")
        connection.execute("delete from pgflow.worker")
