"""Episode after episode, in one process or several; and of what fails, as little as still fails.

Same order, same episodes: their number follows from transactions and from the faults that must have
happened, never from a clock.
"""

from __future__ import annotations

import multiprocessing
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from dataclasses import fields as fields_of

from tests.simulator.broken import BROKEN
from tests.simulator.episode import Simulator, Story
from tests.simulator.world import Faults

EPISODE_TRANSACTIONS = 2000
MOST_EXTRA_EPISODES = 40

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
"""Number of times that each fault must happen, by the transactions that were ordered."""


@dataclass
class Totals:
    """Totals of a campaign."""

    transactions: int = 0
    episodes: int = 0
    runs: int = 0
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

    def merge(self, other: Totals) -> None:
        """Counts what another process has played."""
        self.transactions += other.transactions
        self.episodes += other.episodes
        self.runs += other.runs
        self.checks += other.checks
        self.fired += other.fired
        self.tested += other.tested
        self.hashes |= other.hashes
        self.broken += other.broken

    def required(self, transactions: int) -> dict[str, tuple[int, int]]:
        """Each fault with how often it happened, and must have in so many transactions."""
        return {
            fault: (self.fired[fault], int(rate * transactions / 10_000))
            for fault, rate in MINIMUM_PER_10_000.items()
        }

    def lacks_faults(self, transactions: int) -> bool:
        """True if a fault has happened too seldom."""
        return any(times < least for times, least in self.required(transactions).values())


@dataclass(frozen=True)
class Order:
    """Order to one process: the seed of its first episode, and the step to that of the next."""

    server_dsn: str
    seed: int
    transactions: int
    step: int = 1
    broken: str | None = None
    without: tuple[str, ...] = ()
    check_every: int = 16


def play(order: Order, *, shorten: bool = True) -> Totals:
    """Episodes until the transactions are over, or something is broken."""
    simulator = Simulator(order.server_dsn, BROKEN[order.broken].changes if order.broken else ())
    totals = Totals()
    seed = order.seed
    try:
        while totals.transactions < order.transactions and not totals.broken:
            totals.add(
                simulator.play(
                    seed,
                    min(EPISODE_TRANSACTIONS, order.transactions - totals.transactions),
                    check_every=order.check_every,
                    without=order.without,
                )
            )
            seed += order.step
        if shorten:
            totals.broken = [shrink(simulator, story) for story in totals.broken]
    finally:
        simulator.close()
    return totals


def play_many(order: Order, processes: int) -> Totals:
    """The same in several processes, each with seeds and a database of its own and as many
    transactions; and further episodes until each fault has happened as often as it must.
    """
    totals = Totals()
    wanted = order.transactions * processes
    first = [replace(order, seed=order.seed + n, step=processes) for n in range(processes)]
    # A process plays at most one episode to each so many transactions: what comes then is new.
    seed = order.seed + processes * order.transactions
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        for part in pool.map(play, first):
            totals.merge(part)
        for extra in range(0 if order.without else MOST_EXTRA_EPISODES):
            if totals.broken or not totals.lacks_faults(wanted):
                break
            one = replace(order, seed=seed + extra, transactions=EPISODE_TRANSACTIONS // 2)
            totals.merge(pool.submit(play, one).result())
    return totals


def shrink(simulator: Simulator, story: Story) -> Story:
    """The same seed with as few faults and transactions as still break a promise, checked after
    every transaction.
    """
    best = story
    for fault in ("", *(f.name for f in fields_of(Faults))):
        without = (*best.without, fault) if fault else best.without
        again = simulator.play(
            story.seed, best.before_healing or best.transactions, check_every=1, without=without
        )
        if again.broken and again.transactions <= best.transactions:
            best = again
    return best
