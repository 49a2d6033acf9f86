"""`pgflow workers --all-nodes`: one command works on every node, and goes on after a death."""

from __future__ import annotations

import os
import signal
from collections import Counter

import clusterapp
from clikit import pgflow
from clusterkit import ask, booked, cluster_of, make_ledger
from processes import worker
from servers import wait_until

from pgflow import App

FLOWS = [clusterapp.hop, clusterapp.leaf, clusterapp.stem]


def pids_of(dsn: str) -> set[int]:
    """Processes that work on a node, and any that died there and was not found dead yet."""
    return {pid for (pid,) in ask(dsn, "select pid from pgflow.workers")}


def test_all_nodes_are_worked_on_though_a_worker_is_killed(server_dsn: str, template: str) -> None:
    with cluster_of(server_dsn, template, 2) as nodes:
        make_ledger(nodes)
        with (
            worker(nodes[0], "--all-nodes", module="clusterapp:app") as supervisor,
            App(nodes[0], include=FLOWS, cluster=True) as app,
        ):
            wait_until(lambda: all(map(pids_of, nodes)), "each node has a worker")
            (dying,) = pids_of(nodes[1])
            assert dying not in pids_of(nodes[0]) | {supervisor.pid}
            ring = [
                app.start(
                    clusterapp.hop.options(key=f"hop-{n}", node=n % 2 + 1),
                    f"hop-{n}",
                    f"hop-{n + 1}" if n < 3 else None,
                )
                for n in range(4)
            ]
            wait_until(lambda: booked(nodes).total() == 4, "all wait for their turn")
            os.kill(dying, signal.SIGKILL)
            stems = [
                app.start(clusterapp.stem.options(key=f"stem-{n}", node=n), f"stem-{n}", 3 - n)
                for n in (1, 2)
            ]
            app.send("hop-0", clusterapp.TURN, 0)
            assert [run.result() for run in ring] == [0, 1, 2, 3]
            assert [run.result() for run in stems] == ["stem-1", "stem-2"]
            wait_until(lambda: dying not in pids_of(nodes[1]), "the dead one is found dead")
            (other,) = pids_of(nodes[1])
            assert other not in pids_of(nodes[0])
            listed = pgflow(nodes[0], "workers", "--node", "2", "--json").data
            assert [row["pid"] for row in listed] == [other]
            supervisor.send(signal.SIGTERM)
            code, log = supervisor.finish()
            assert code == 0, log
            assert log.count("was killed by signal 9; starting another") == 1
        expected = [f"hop-{n}/{what}" for n in range(4) for what in ("begin", f"turn-{n}")]
        expected += [f"stem-{n}/{what}" for n in (1, 2) for what in ("before", "leaf", "after")]
        assert booked(nodes) == Counter(expected)
        assert [pids_of(dsn) for dsn in nodes] == [set(), set()]
