"""Episode after episode, in one process or several; and of what fails, as little as still fails."""

from __future__ import annotations

import multiprocessing
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from dataclasses import fields as fields_of

from tests.simulator.broken import BROKEN
from tests.simulator.episode import Simulator, Story
from tests.simulator.world import Faults

EPISODE_TRANSACTIONS = 4000
SHRINK_SECONDS = 60.0

MINIMUM_PER_10_000 = {
    "halted inside of a function": 50,
    "waits for a lock": 2,
    "connection lost before a call": 40,
    "connection lost before the commit": 10,
    "acknowledgement lost after the commit": 20,
    "batch sent again": 10,
    "commit read back": 1,
    "dies": 20,
    "dies in a transaction": 10,
    "frozen": 10,
    "frozen in a transaction": 5,
    "frozen in a step": 2,
    "frozen behind its fence": 2,
    "frozen before the commit": 3,
    "worker declared dead alive": 5,
    "zombie": 5,
    "clock jumps forward": 20,
    "clock jumps back": 6,
    "notification lost": 60,
    "notification twice": 20,
    "connection closed": 1,
    "stuck": 1,
    "rewound and taken back": 0.1,
    "signal handed over": 20,
    "update sent again": 20,
    "update rejected": 2,
    "signal taken from the claim": 5,
    "result taken from the claim or the commit": 0.3,
    "timer fired without a question": 3,
}
"""Number of times that each fault must happen for a campaign to count."""


@dataclass
class Totals:
    """Totals of a campaign."""

    transactions: int = 0
    episodes: int = 0
    runs: int = 0
    seconds: float = 0.0
    checks: int = 0
    fired: Counter[str] = field(default_factory=Counter)
    tested: Counter[str] = field(default_factory=Counter)
    hashes: dict[int, str] = field(default_factory=dict)
    broken: list[Story] = field(default_factory=list)

    def add(self, story: Story) -> None:
        self.transactions += story.transactions
        self.episodes += 1
        self.runs += story.runs
        self.checks += story.checks
        self.fired += story.fired
        self.tested += story.tested
        self.hashes[story.seed] = story.hash
        if story.broken:
            self.broken.append(story)

    def required(self) -> dict[str, tuple[int, int]]:
        """Each fault with how often it happened and must have."""
        share = self.transactions / 10_000
        return {
            fault: (self.fired[fault], int(rate * share))
            for fault, rate in MINIMUM_PER_10_000.items()
        }


@dataclass(frozen=True)
class Order:
    """Order to one process."""

    server_dsn: str
    seed: int
    step: int = 1
    seconds: float | None = None
    transactions: int | None = None
    broken: str | None = None
    without: tuple[str, ...] = ()
    check_every: int = 16


def play(order: Order, *, shorten: bool = True) -> Totals:
    """Episodes until time or transactions are over, or something is broken."""
    simulator = Simulator(order.server_dsn, BROKEN[order.broken].changes if order.broken else ())
    totals = Totals()
    try:
        began = time.monotonic()
        seed = order.seed
        while not totals.broken:
            left = (
                EPISODE_TRANSACTIONS
                if order.transactions is None
                else min(EPISODE_TRANSACTIONS, order.transactions - totals.transactions)
            )
            seconds_left = (
                3600.0 if order.seconds is None else order.seconds - (time.monotonic() - began)
            )
            if left <= 0 or seconds_left <= 0:
                break
            totals.add(
                simulator.play(
                    seed,
                    left,
                    check_every=order.check_every,
                    without=order.without,
                    seconds=seconds_left,
                )
            )
            seed += order.step
        totals.seconds = time.monotonic() - began
        if shorten:
            totals.broken = [shrink(simulator, story) for story in totals.broken]
    finally:
        simulator.close()
    return totals


def play_many(order: Order, processes: int) -> Totals:
    """The same in several processes, each with seeds and a database of its own."""
    if processes == 1:
        return play(order)
    orders = [
        Order(
            order.server_dsn,
            order.seed + n,
            processes,
            order.seconds,
            order.transactions,
            order.broken,
            order.without,
            order.check_every,
        )
        for n in range(processes)
    ]
    totals = Totals()
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        for part in pool.map(play, orders):
            totals.transactions += part.transactions
            totals.episodes += part.episodes
            totals.runs += part.runs
            totals.checks += part.checks
            totals.seconds = max(totals.seconds, part.seconds)
            totals.fired += part.fired
            totals.tested += part.tested
            totals.hashes |= part.hashes
            totals.broken += part.broken
    return totals


def shrink(simulator: Simulator, story: Story) -> Story:
    """The same seed with as few faults and transactions as still break a promise, checked after
    every transaction.
    """
    deadline = time.monotonic() + SHRINK_SECONDS
    best = story
    for fault in ("", *(f.name for f in fields_of(Faults))):
        if time.monotonic() > deadline:
            break
        without = (*best.without, fault) if fault else best.without
        again = simulator.play(
            story.seed, best.before_healing or best.transactions, check_every=1, without=without
        )
        if again.broken and again.transactions <= best.transactions:
            best = again
    return best
