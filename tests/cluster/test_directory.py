"""The directory of keys: each key has one home, whoever claims it and however transactions end."""

from __future__ import annotations

import threading

import psycopg
from clusterkit import ask, value


def test_thirty_keys_that_three_nodes_race_for_have_one_home_each(nodes: list[str]) -> None:
    answers: dict[int, dict[str, int]] = {1: {}, 2: {}, 3: {}}

    def race(me: int) -> None:
        with psycopg.connect(nodes[me - 1], autocommit=True) as connection:
            for number in range(30):
                if number == 1:
                    have_begun.wait()  # each has won the first key of its own
                key = f"key-{(10 * me + number) % 30}"
                while key not in answers[me]:
                    try:
                        row = connection.execute(
                            "select pgflow_cluster.claim(%s, '', %s)", (key, me)
                        ).fetchone()
                    except psycopg.errors.SerializationFailure:
                        continue
                    assert row is not None
                    answers[me][key] = row[0]

    have_begun = threading.Barrier(len(answers))
    racers = [threading.Thread(target=race, args=(me,)) for me in answers]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()
    assert answers[1] == answers[2] == answers[3]
    assert len(answers[1]) == 30
    assert set(answers[1].values()) == {1, 2, 3}
    assert value(nodes[1], "select count(*) from pgflow_cluster.key") == 30


def test_racers_for_the_same_batch_find_one_home_for_all_of_it(nodes: list[str]) -> None:
    keys = [f"key-{number}" for number in range(30)]
    homes: list[int] = []

    def race(me: int) -> None:
        mine = keys[me:] + keys[:me]
        with psycopg.connect(nodes[me - 1], autocommit=True) as connection:
            are_ready.wait()
            while True:
                try:
                    row = connection.execute(
                        "select pgflow_cluster.claim_all(%s)", (mine,)
                    ).fetchone()
                except (psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected):
                    continue
                assert row is not None
                homes.append(row[0])
                return

    are_ready = threading.Barrier(len(nodes))
    racers = [threading.Thread(target=race, args=(me,)) for me in (1, 2, 3)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()
    assert len(homes) == 3
    kept = ask(nodes[0], "select node, count(*) from pgflow_cluster.key group by node")
    assert kept == [(homes[0], 30)]
    assert set(homes) == {homes[0]}


def test_a_letter_does_on_its_node_what_it_asks_once(nodes: list[str]) -> None:
    start = (
        '{"workflow": "w", "input": {}, "key": "k", "queue": "default", "priority": 0, '
        '"tenant": "", "version": "", "if_taken": "match"}'
    )
    assert value(nodes[0], "select pgflow_cluster.post_start(%s, 2)", start) == 2
    ask(nodes[2], "select pgflow_cluster.send_signal('k', 's', '1')")
    for sender in (3, 1):
        dsn = nodes[sender - 1]
        assert value(dsn, "select pgflow_cluster.due()") == [2]
        low, letters = ask(dsn, "select * from pgflow_cluster.pick(2, 10, 30)")[0]
        for _ in range(2):
            said = value(
                nodes[1],
                "select pgflow_cluster.receive(%s, %s, %s)",
                sender,
                low,
                psycopg.types.json.Json(letters),
            )
            assert [one["verdict"] for one in said] == (["wait"] if sender == 3 else ["done"]), said
        ask(dsn, "select pgflow_cluster.settle(%s)", psycopg.types.json.Json(said))
    assert value(nodes[1], "select count(*) from pgflow.run") == 1
