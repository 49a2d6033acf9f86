"""Fail-overs by Patroni: ``python -m tests.patroni [--rounds N] [--only FAULT]``.

Three nodes on this machine, two worker processes and a client, all with every host in their DSN. A
leader's server is killed, its node is killed, frozen until it is reset or for long, cut off from its
peers, or hands over in good order. What was acknowledged is then compared with what the new leader
has, as in :mod:`tests.failover`: where commits wait for a standby nothing may be lost, and where
they do not, the engine must have said of which runs.

It prints how long the cluster took to have a leader, which is Patroni's, and how long after that a
run went on, which is ours. These are figures, no bounds.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent / "kits"))
sys.path.insert(0, str(Path(__file__).parent / "apps"))

from collections.abc import Callable

import psycopg
import servers
from failover import UNACKNOWLEDGED_STEPS, Clients, Round, judge, notes_of, wait_until, work
from patronis import PROGRAMS, Node, Patronis, find_postgres


def hand_over(cluster: Patronis, leader: Node) -> None:
    cluster.switch_over()


def kill_server(cluster: Patronis, leader: Node) -> None:
    leader.signal(signal.SIGKILL, leader.postgres_pids())


def kill_node(cluster: Patronis, leader: Node) -> None:
    leader.kill()


def freeze(cluster: Patronis, leader: Node) -> None:
    leader.freeze()


def cut_off(cluster: Patronis, leader: Node) -> None:
    leader.cut_off()


def lag_and_kill(cluster: Patronis, leader: Node) -> None:
    """The standbys stand still while steps are acknowledged, then the leader's node is killed."""
    senders = [
        pid
        for pid in leader.postgres_pids()
        if b"walsender" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
    leader.signal(signal.SIGSTOP, senders)
    folder = Path(os.environ["FAILOVER_NOTES"]).parent
    before = len(notes_of(folder))
    wait_until(
        lambda: len(notes_of(folder)) > before + UNACKNOWLEDGED_STEPS, "steps are acknowledged"
    )
    leader.kill()


@dataclass(frozen=True)
class Fault:
    """What happens to a leader."""

    what: str
    do: Callable[[Patronis, Node], None]
    is_lasting: bool = False
    """True if the node comes back only when the books have been compared."""


FAULTS = {
    "switchover": Fault("hands over in good order", hand_over),
    "server": Fault("server killed", kill_server),
    "node": Fault("node killed", kill_node),
    "frozen": Fault("node frozen, reset by its watchdog", freeze),
    "gone": Fault("node frozen for long", freeze, is_lasting=True),
    "cut": Fault("node cut off from its peers, not from clients", cut_off),
}
LOSSY = Fault("node killed while its standbys lag", lag_and_kill)


@dataclass
class Outcome:
    """Figures of one fault."""

    books: Round
    promoted_seconds: float
    going_on_seconds: float

    def show(self) -> None:
        """Print its row of the table."""
        books = self.books
        lost = f"{books.lost}" if books.synchronous else f"{books.lost}, all reported"
        print(
            f"| {books.fault} | {self.promoted_seconds:.1f} | {self.going_on_seconds:.1f} "
            f"| {books.acknowledged} | {lost} | {books.doubled} |",
            flush=True,
        )


class Play:
    """A cluster with work on it.

    Args:
        cluster: The nodes.
        folder: For notes and logs.
    """

    def __init__(self, cluster: Patronis, folder: Path) -> None:
        self._cluster, self._folder = cluster, folder
        self._rounds = 0

    def play(self, fault: Fault) -> Outcome:
        """Let it happen to the leader of now, and compare the books."""
        self._rounds += 1
        cluster, folder = self._cluster, self._folder
        clients = Clients(cluster.dsn, f"round{self._rounds}")
        wait_until(lambda: len(clients.ended) > 10, "runs end before anything happens")
        leader = cluster.leader()
        print(f"{leader.name}: {fault.what}", file=sys.stderr)
        began = time.monotonic()
        fault.do(cluster, leader)
        new = self._new_leader(leader, fault)
        promoted = time.monotonic()
        ended, notes = len(clients.ended), len(notes_of(folder))
        wait_until(
            lambda: len(clients.ended) > ended and len(notes_of(folder)) > notes,
            "runs end and steps are acknowledged with the new leader",
        )
        went_on = time.monotonic()
        if not fault.is_lasting:
            leader.join_again()
            cluster.wait_for_standbys()
        wait_until(lambda: len(clients.ended) > ended + 20, "work goes on")
        clients.stop()
        done = Round(cluster.is_synchronous, fault.what)
        judge(
            done,
            cluster.dsn_of(cluster.leader(None if leader is new else leader)),
            clients,
            notes_of(folder),
        )
        if fault.is_lasting:
            leader.kill()
            leader.join_again()
            cluster.wait_for_standbys()
        return Outcome(done, promoted - began, went_on - promoted)

    def _new_leader(self, leader: Node, fault: Fault) -> Node:
        """The node that leads now: another, but for a server that its own Patroni starts again."""
        if fault.do is not kill_server:
            return self._cluster.leader(leader)
        wait_until(
            lambda: not leader.is_leader() or leader.state().get("state") == "running", "it is seen"
        )
        return self._cluster.leader()


def play_all(
    faults: list[Fault], *, rounds: int, is_synchronous: bool = True, is_cut: bool = False
) -> list[Outcome]:
    """Play each fault so many times on one cluster."""
    outcomes: list[Outcome] = []
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        os.environ["FAILOVER_NOTES"] = str(folder / "notes")
        (folder / "notes").touch()
        cluster = stack.enter_context(Patronis(is_synchronous=is_synchronous, is_cut=is_cut))
        servers.install_schema(cluster.dsn)
        with psycopg.connect(cluster.dsn, autocommit=True) as conn:
            conn.execute("create schema app; create table app.booked (key text, n int)")
        workers = [work(cluster.dsn, folder / f"log{number}") for number in range(2)]
        for worker in workers:
            stack.callback(worker.kill)
        play = Play(cluster, folder)
        for fault in faults * rounds:
            outcomes.append(play.play(fault))
            outcomes[-1].show()
        for number, worker in enumerate(workers):
            worker.terminate()
            if (code := worker.wait()) != 0:
                said = (folder / f"log{number}").read_text()[-500:]
                outcomes[-1].books.wrong.append(f"a worker ended with {code}: {said}")
    return outcomes


def main() -> int:
    """Play, print a table, and return 1 if something was lost, doubled or wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=1, help="times that each fault is played")
    parser.add_argument(
        "--only",
        choices=[*FAULTS, "lossy"],
        action="append",
        help="play this fault; may be given again",
    )
    options = parser.parse_args()
    missing = [
        name
        for name in PROGRAMS
        if shutil.which(name, path=f"{os.environ['PATH']}:/usr/bin") is None
    ]
    if missing or find_postgres() is None:
        print("needs Patroni: apt install patroni etcd-server postgresql", file=sys.stderr)
        return 2
    logging.getLogger("psycopg").setLevel(logging.CRITICAL)  # it names each address that refuses
    wanted = options.only or [*FAULTS, "lossy"]
    outcomes: list[Outcome] = []
    print(
        "| leader | leads again after, s | went on after that, s | acknowledged | lost | doubled |\n"
        "|---|---:|---:|---:|---:|---:|"
    )
    if safe := [FAULTS[name] for name in wanted if name in FAULTS and name != "cut"]:
        outcomes += play_all(safe, rounds=options.rounds)
    if "cut" in wanted:
        outcomes += play_all([FAULTS["cut"]], rounds=options.rounds, is_cut=True)
    if "lossy" in wanted:
        outcomes += play_all([LOSSY], rounds=options.rounds, is_synchronous=False)
    wrong = [line for outcome in outcomes for line in outcome.books.wrong]
    wrong += [
        f"{o.books.fault}: {o.books.lost} lost"
        for o in outcomes
        if o.books.synchronous and o.books.lost
    ]
    wrong += [f"{o.books.fault}: {o.books.doubled} doubled" for o in outcomes if o.books.doubled]
    for line in wrong:
        print(f"FAILED {line}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
