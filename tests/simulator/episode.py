"""An episode: some thousand transactions with faults, then healing, until everything has
drained.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tests.simulator.actors import Cast
from tests.simulator.database import MISCOUNTED, SEAL, UNSEALED, Change, Database
from tests.simulator.model import Broken
from tests.simulator.wire import Wire
from tests.simulator.world import NONE, Faults, World

CONNECTIONS = 16
TURNS_TO_DRAIN_A_RUN = 400


@dataclass
class Story:
    """Story of an episode."""

    seed: int
    transactions: int = 0
    before_healing: int = 0
    """As many make the same episode again; 0 where a promise was broken before."""
    runs: int = 0
    checks: int = 0
    hash: str = ""
    fired: Counter[str] = field(default_factory=Counter)
    tested: Counter[str] = field(default_factory=Counter)
    done: Counter[str] = field(default_factory=Counter)
    broken: tuple[str, str] | None = None
    """Broken promise, and how it was broken."""
    trace: list[str] = field(default_factory=list)
    without: tuple[str, ...] = ()


class Simulator:
    """A database with its connections, for one episode after the other."""

    def __init__(self, server_dsn: str, changes: tuple[Change, ...] = ()) -> None:
        self.database = Database(server_dsn, changes)
        self.wires = [Wire(self.database.dsn) for _ in range(CONNECTIONS)]

    def close(self) -> None:
        for wire in self.wires:
            wire.close()
        self.database.drop()

    def play(
        self,
        seed: int,
        transactions: int = 4000,
        *,
        faults: Faults | None = None,
        check_every: int = 16,
        without: tuple[str, ...] = (),
    ) -> Story:
        """One episode; a broken promise is in the answer."""
        for wire in self.wires[1:]:
            wire.run("rollback")
        world = World(
            self.database,
            self.wires,
            seed,
            faults or Faults(),
            check_every=check_every,
            without=without,
        )
        cast = Cast(world)
        story = Story(seed, without=without)
        try:
            while world.transactions < transactions:
                world.go()
            story.before_healing = world.transactions
            self._heal(world, cast)
        except Broken as broken:
            story.broken = (broken.guarantee, str(broken))
            self._abandon(world)
        story.transactions, story.checks, story.hash = (
            world.transactions,
            world.checks,
            world.hash.hexdigest()[:16],
        )
        story.fired, story.tested, story.done = world.fired, world.model.tested, world.done
        story.runs, story.trace = len(world.model.runs), list(world.trace)
        return story

    def _heal(self, world: World, cast: Cast) -> None:
        """No faults any more: within so many turns every run must have ended, and nothing be left
        over.
        """
        world.faults = NONE
        world.healing = True
        cast.starting = False
        for actor in world.actors:
            actor.frozen_until = 0
        bound = world.turn + 2000 + TURNS_TO_DRAIN_A_RUN * len(world.model.place)
        while not self._has_drained(world):
            world.go()
            if world.turn % 20 == 0:
                self._let_time_pass(world)
            if world.turn > bound:
                raise Broken("G13", f"not drained: {_left(world)}")
        for _ in range(3):
            self.wires[0].ask(SEAL)
        for row in self.wires[0].ask(UNSEALED):
            raise Broken("G46", f"run {(row[0] or b'').decode()} has ended and is not sealed")
        for row in self.wires[0].ask(MISCOUNTED):
            raise Broken("G23", (row[0] or b"").decode())
        world.check()
        world.model.tested["drained"] += len(world.model.runs)

    @staticmethod
    def _has_drained(world: World) -> bool:
        model = world.model
        return not (
            model.place or model.mail or +model.nudges or any(a.transaction for a in world.actors)
        )

    @staticmethod
    def _let_time_pass(world: World) -> None:
        due = [int(t[3]) for timers in world.model.timers.values() for t in timers]
        now = world.mirror.clock()
        if due and min(due) > now:
            world.move_clock(min(due) - now)

    def _abandon(self, world: World) -> None:
        """Connections that may be in the middle of something are replaced."""
        for n, wire in enumerate(self.wires):
            wire.close()
            self.wires[n] = Wire(self.database.dsn)


def _left(world: World) -> str:
    model = world.model
    runs = [
        f"{'|'.join(line)} waits for {model.waits[run]} {model.timers[run]}"
        for run, line in sorted(model.place.items())
    ]
    names = {a.wire.pid: a.name for a in world.actors}
    actors = [
        f"{a.name} {'is halted' if a.halted else f'waits for {[names.get(pid, pid) for pid in a.waits_for]}'} in {a.calling and a.calling.function}"
        for a in world.actors
        if a.halted or a.waits_for
    ]
    return (
        f"{runs[:6]}, {len(model.mail)} messages, nudges of {sorted(+model.nudges)[:6]}, {actors}"
    )
