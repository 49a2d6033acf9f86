"""The scheduler of a simulation: it decides whose turn it is, and what goes wrong.

An actor is a generator of steps - begin, call, commit, roll back - and gets back rows or an error.
Each turn one actor does one step. A call outside of a transaction is one of its own, which the
scheduler may hold open after the call has returned, so that others act before it commits; and it
may be halted inside of a function. All randomness is one generator, so a seed is a history.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections import Counter, deque
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.simulator.database import AUDIT, HALTS, LIMIT, T0_US, Database
from tests.simulator.mirror import Mirror
from tests.simulator.model import Act, Broken, Model, Transaction
from tests.simulator.wire import Rows, SqlError, Wire, wait_or_block

PRECIOUS = ("commit", "fence")
"""Acts whose acknowledgement is lost more often: what a worker makes of that matters most."""


class Step(NamedTuple):
    """Next step of an actor; ``function`` names a function that may be halted inside of the
    call.
    """

    verb: str
    statement: str = ""
    params: tuple[Any, ...] = ()
    act: Act | None = None
    function: str = ""


class Cut(Exception):
    """The connection broke: whether the statement was done, nobody knows."""


Play = Generator[Step, Any, None]

INSIDE = {
    "wake": ["wake", "apply_controls_"],
    "poll": ["poll", "wake", "wake_due_", "apply_controls_", "sweep_locks_"],
    "take_lock": ["take_lock"],
    "release_lock": ["nudge_key_"],
    "leave_lock": ["nudge_key_"],
    "sweep_locks": ["sweep_locks_", "wake"],
    "commit_units": ["commit_units", "answer_all_", "answer_kind_", "insert_run_"],
    "claim_runs": ["take_heads_"],
    "commit_and_claim": ["commit_units", "answer_all_", "answer_kind_", "take_heads_"],
    "fence_step": ["fence_step"],
    "reap_worker": ["reap_worker"],
    "release_runs": ["release_runs"],
    "start_run": ["insert_run_"],
    "keep_schedules": ["keep_schedules", "fire_slot_", "insert_run_"],
    "trigger_schedule": ["insert_run_"],
}
PLACES = {
    verb: [h.place for function in functions for h in HALTS if h.function == function]
    for verb, functions in INSIDE.items()
}


@dataclass(frozen=True)
class Faults:
    """Likelihood of each fault, where it can happen."""

    open: float = 0.3
    """A statement of its own is held open before it commits."""
    halt: float = 0.08
    cut: float = 0.02
    die: float = 0.008
    freeze: float = 0.004
    jump: float = 0.004
    lose: float = 0.25
    """A notification is lost, or comes twice."""
    close: float = 0.1
    """Share of the connections that break which is closed in earnest, and not only rolled back."""


NONE = Faults(0, 0, 0, 0, 0, 0, 0)


@dataclass
class Actor:
    """Actor and its progress."""

    name: str
    play: Callable[[Actor], Play]
    wire: Wire
    weight: float = 1.0
    steps: Play | None = None
    answer: Rows | Exception | None = None
    transaction: Transaction | None = None
    explicit: bool = False
    """True if the actor itself has begun the transaction."""
    returned: bool = False
    """The call of a transaction of its own has returned and waits for its commit."""
    calling: Step | None = None
    """The call that waits for a lock."""
    waits_for: frozenset[int] = frozenset()
    place: str = ""
    """Place in its call at which the actor is to be halted."""
    halted: bool = False
    frozen_until: int = 0
    memory: dict[str, Any] = field(default_factory=dict)
    """Memory that survives nothing: gone when the actor dies."""


class World:
    """One episode."""

    def __init__(
        self,
        database: Database,
        wires: list[Wire],
        seed: int,
        faults: Faults,
        *,
        check_every: int = 16,
        without: tuple[str, ...] = (),
    ) -> None:
        self.rng = random.Random(seed)
        self.faults = faults
        self.without = without
        self.check_every = check_every
        self.database = database
        self.wires = wires
        """The first is the observer's, the others the actors'."""
        self.mirror = Mirror(wires[0])
        self.model = Model(self.mirror, database.limited, LIMIT)
        self.actors: list[Actor] = []
        self.fired: Counter[str] = Counter()
        self.done: Counter[str] = Counter()
        self.transactions = 0
        self.turn = 0
        self.changes = 0
        self.checks = 0
        self.last_jump_us = T0_US
        self.clock_went_back = False
        self.healing = False
        self.trace: deque[str] = deque(maxlen=60)
        self.hash = hashlib.sha256()
        database.reset(wires[0])
        self.mirror.clock()

    def add(self, name: str, play: Callable[[Actor], Play], weight: float = 1.0) -> Actor:
        actor = Actor(name, play, self.wires[1 + len(self.actors)], weight)
        self.actors.append(actor)
        return actor

    # ---------------------------------------------------------------- turns

    def go(self) -> None:
        """One turn."""
        self.turn += 1
        self._jump()
        able = [a for a in self.actors if not a.waits_for and a.frozen_until <= self.turn]
        if not able:
            for actor in self.actors:
                actor.frozen_until = 0
            return
        actor = self.rng.choices(able, [a.weight for a in able])[0]
        if actor.halted:
            self._let_go(actor)
        elif self._is_hit("die") and not actor.waits_for:
            self._kill(actor)
        elif self._is_hit("freeze") or (actor.explicit and self._is_hit("freeze")):
            actor.frozen_until = self.turn + self.rng.choice((30, 100, 400, 1000))
            self.fire("frozen in a transaction" if actor.transaction else "frozen")
        elif actor.returned:
            self._end(actor, commit=True)
        else:
            self._step(actor)

    def _is_hit(self, fault: str) -> bool:
        chance = getattr(self.faults, fault)
        return chance > 0 and self.rng.random() < chance and fault not in self.without

    def fire(self, fault: str) -> None:
        self.fired[fault] += 1
        self.tell("fault", fault)

    def tell(self, who: str, what: Any) -> None:
        line = f"{self.turn:6} {who:<12} {what}"
        self.trace.append(line)
        self.hash.update(line.encode())

    def _jump(self) -> None:
        if self._is_hit("jump"):
            far = self.rng.choice((1, 5, 60, 7200)) * self.rng.choice((1, 1, 1, -1))
            self.fire("clock jumps forward" if far > 0 else "clock jumps back")
            self.move_clock(far * 1_000_000)

    def move_clock(self, by_us: int) -> None:
        old = self.mirror.clock()
        new = old + by_us
        self.clock_went_back |= by_us < 0
        self.wires[0].ask("select setval('sim.clock', $1::bigint)", new)
        self.mirror.now_us = new
        for actor in self.actors:
            if actor.transaction:
                actor.transaction.low_us = min(actor.transaction.low_us, new)
                actor.transaction.high_us = max(actor.transaction.high_us, old, new)

    # ---------------------------------------------------------------- a step

    def _step(self, actor: Actor) -> None:
        if actor.steps is None:
            actor.steps = actor.play(actor)
            actor.answer = None
        answer, actor.answer = actor.answer, None
        try:
            step = (
                actor.steps.throw(answer)
                if isinstance(answer, Exception)
                else actor.steps.send(answer)
            )
        except StopIteration:
            actor.steps = None
            return
        if step.verb == "rest":
            return
        self.done[step.verb if step.verb != "call" else step.function] += 1
        if step.verb == "begin":
            actor.explicit = True
            self._begin(actor, step.statement)
            self.tell(actor.name, f"begin {step.statement}")
        elif step.verb == "commit":
            self._end(actor, commit=True)
        elif step.verb == "rollback":
            self.tell(actor.name, "rollback")
            self._end(actor, commit=False)
        else:
            self._call(actor, step)

    def _begin(self, actor: Actor, isolation: str = "") -> None:
        now = self.mirror.now_us
        actor.transaction = Transaction(actor.name, low_us=now, high_us=now)
        if isolation is not None:
            actor.wire.run(f"begin {isolation}")

    def _call(self, actor: Actor, step: Step) -> None:
        if self._is_hit("cut"):
            self.fire("connection lost before a call")
            self._break(actor)
            return
        held_open = actor.transaction is None and self._is_hit("open")
        places = PLACES.get(step.function)
        halts = places is not None and self._is_hit("halt")
        if actor.transaction is None:
            self._begin(actor, "" if held_open or halts else None)  # type: ignore[arg-type]
            actor.explicit = False
            actor.returned = held_open or halts
        if halts and places:
            actor.place = self.rng.choice(places)
            actor.wire.run(f"set local sim.halt = '{actor.place}'")
            self.wires[0].ask("select pg_advisory_lock(1, $1::int)", actor.wire.pid)
        self.tell(
            actor.name,
            f"{step.function} {_shown(step)} {actor.place}{' held open' if held_open else ''}",
        )
        if step.act:
            step.act.began = self.model.looks
        actor.calling = step
        actor.wire.send(step.statement, step.params)
        self._listen(actor)

    def _listen(self, actor: Actor) -> None:
        """Takes the answer if there is one, and judges what has ended with it."""
        ended: list[Transaction] = []
        self._receive(actor, ended)
        if ended:
            self._judge(ended)

    def _receive(self, actor: Actor, ended: list[Transaction]) -> None:
        """Takes the answer, or notes whom the actor waits for; adds its transaction, and those that
        waited for it, if they end.
        """
        observer = self.wires[0]
        blockers = wait_or_block(
            actor.wire, observer, {w.pid for w in self.wires}, 1 if actor.place else 10
        )
        if observer.pid in blockers:
            actor.halted = True
            actor.frozen_until = self.turn + self.rng.choice((0, 0, 10, 60))
            self.fire("halted inside of a function")
            self.tell(actor.name, f"is halted at {actor.place}")
            return
        actor.waits_for = blockers
        self._look_for_circle(actor)
        others = [a for a in self.actors if a is not actor and a.waits_for]
        if blockers and not any(a.waits_for & blockers or a.wire.pid in blockers for a in others):
            self.fire("waits for a lock")
            self.tell(
                actor.name,
                f"waits for {', '.join(a.name for a in self.actors if a.wire.pid in blockers)}",
            )
            return
        actor.waits_for = frozenset()
        if blockers:
            # Two that wait for one end, or one behind the other, would go on together, in an order
            # that is nobody's.
            actor.wire.pg.get_cancel().cancel()
            self.fire("statement cancelled")
        if actor.place:
            observer.ask("select pg_advisory_unlock(1, $1::int)", actor.wire.pid)
            actor.place = ""
        self._read(actor, ended)

    def _look_for_circle(self, actor: Actor) -> None:
        """Two that wait for each other would wait for ever here: what the server makes of it is
        nobody's to read.
        """
        circle: list[Actor] = []
        behind = [actor]
        while behind:
            other = behind.pop()
            if other in circle:
                continue
            circle.append(other)
            behind += [a for a in self.actors if a.wire.pid in other.waits_for]
            if actor in behind:
                said = "; ".join(
                    f"{a.name}: {a.calling.function if a.calling else '?'}" for a in circle
                )
                raise Broken("G29", f"these wait for each other: {said}")

    def _read(self, actor: Actor, ended: list[Transaction]) -> None:
        step, actor.calling = actor.calling, None
        assert step is not None and actor.transaction is not None
        try:
            rows = actor.wire.rows()
        except SqlError as error:
            self.tell(actor.name, f"error {UUID.sub('made-up-key', str(error))}")
            if error.state == "40P01":
                raise Broken("G29", f"{step.function}: {error}") from error
            if error.state[:2] not in ("PF", "23", "40", "57", "55"):
                raise Broken("G10", f"{step.function}: {error}") from error
            actor.answer = error
            self.fire(f"error {error.state}")
            if actor.explicit or actor.returned:
                actor.wire.run("rollback")
            self._close(actor, ended, committed=False)
            return
        if step.act:
            step.act.rows = rows
            actor.transaction.acts.append(step.act)
            _read_answer(step)
        actor.answer = rows
        if (
            actor.returned
            and step.act
            and step.act.kind == "commit"
            and self.faults.freeze
            and self.rng.random() < 0.08
        ):
            actor.frozen_until = self.turn + self.rng.choice((200, 600))
            self.fire("frozen before the commit")
        if not actor.explicit and not actor.returned:
            if step.act and step.act.kind in PRECIOUS and self._is_hit("cut"):
                self.fire("acknowledgement lost after the commit")
                actor.answer = Cut()
            self._close(actor, ended, committed=True)

    def _let_go(self, actor: Actor) -> None:
        actor.halted = False
        actor.place = ""
        self.wires[0].ask("select pg_advisory_unlock(1, $1::int)", actor.wire.pid)
        self.tell(actor.name, "goes on")
        self._listen(actor)

    # ---------------------------------------------------------------- the end of a transaction

    def _end(self, actor: Actor, *, commit: bool, answer: Exception | None = None) -> None:
        """COMMIT or ROLLBACK, or what a fault makes of it."""
        assert actor.transaction is not None
        ambiguous = False
        precious = actor.transaction.acts and actor.transaction.acts[-1].kind in PRECIOUS
        if commit and (
            self._is_hit("cut")
            or (precious and self._is_hit("cut"))
            or (precious and self._is_hit("cut"))
        ):
            ambiguous = True
            commit = self.rng.random() < 0.7
            self.fire(
                "acknowledgement lost after the commit"
                if commit
                else "connection lost before the commit"
            )
        if actor.explicit or actor.returned:
            actor.wire.run("commit" if commit else "rollback")
        if ambiguous:
            answer = Cut()
        elif commit and actor.explicit:
            answer = None
            actor.answer = []  # type: ignore[assignment]
        if answer is not None:
            actor.answer = answer
        self.tell(actor.name, "committed" if commit else "rolled back")
        self._over(actor, committed=commit)

    def _over(self, actor: Actor, *, committed: bool) -> None:
        """The actor's transaction has ended, and with it perhaps what waited for it."""
        ended: list[Transaction] = []
        self._close(actor, ended, committed=committed)
        self._judge(ended)

    def _close(
        self, actor: Actor, ended: list[Transaction], *, committed: bool, pid: int | None = None
    ) -> None:
        transaction, actor.transaction = actor.transaction, None
        assert transaction is not None
        transaction.committed = committed
        actor.explicit = actor.returned = False
        self.transactions += 1
        ended.append(transaction)
        pid = pid or actor.wire.pid
        for waiter in [a for a in self.actors if pid in a.waits_for]:
            waiter.waits_for = frozenset()
            self.tell(waiter.name, "has waited")
            self._receive(waiter, ended)

    def _judge(self, ended: list[Transaction]) -> None:
        came, went = self.model.judge(ended)
        for mark, lines in (("+", came), ("-", went)):
            for line in lines:
                if line[0] != "k":
                    self.tell("", f"{mark}{'|'.join(line)}")
        if self.model.changed:
            self.changes += 1
            if self.changes % self.check_every == 0:
                self.check()

    def check(self) -> None:
        """The engine's own audit."""
        self.checks += 1
        for row in self.wires[0].ask(AUDIT):
            invariant, detail = ((text or b"").decode() for text in row)
            if not (self.clock_went_back and invariant in BY_THE_CLOCK):
                raise Broken("check", f"{invariant}: {detail}")

    # ---------------------------------------------------------------- faults

    def _break(self, actor: Actor) -> None:
        """The connection is lost, and with it the transaction."""
        actor.answer = Cut()
        if actor.transaction is None:
            return
        if actor.explicit or actor.returned:
            actor.wire.run("rollback")
        self._over(actor, committed=False)

    def _kill(self, actor: Actor) -> None:
        """The process is gone; another of its name comes in its place and knows nothing."""
        self.fire("dies in a transaction" if actor.transaction else "dies")
        if actor.steps is not None:
            actor.steps.close()
        actor.steps = None
        actor.answer = None
        actor.memory = {}
        if actor.transaction is not None:
            if self._is_hit("close"):
                self._replace_connection(actor)
                return
            actor.wire.run("rollback")
            self._over(actor, committed=False)

    def _replace_connection(self, actor: Actor) -> None:
        """Replace the connection of a process that is gone: the server rolls back, once it has
        noticed.
        """
        self.fire("connection closed")
        old = actor.wire
        old.close()
        while self.wires[0].ask("select from pg_stat_activity where pid = $1::int", old.pid):
            pass
        actor.wire = Wire(self.database.dsn)
        self.wires[self.wires.index(old)] = actor.wire
        ended: list[Transaction] = []
        self._close(actor, ended, committed=False, pid=old.pid)
        self._judge(ended)


BY_THE_CLOCK = (
    "nothing is recorded after the outcome",
    "a deadline is not forgotten",
    "deadlines are of open runs",
)
"""Invariants that compare times, which a clock that went back makes say nothing."""


UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
"""Pattern of UUIDs, which no seed decides, and on which nothing depends."""


def _shown(step: Step) -> str:
    return UUID.sub("made-up-key", " ".join(str(p) for p in step.params))


def _read_answer(step: Step) -> None:
    """Lets the act say itself what its rows mean."""
    assert step.act is not None
    read = step.act.data.get("read")
    if read is not None:
        read(step.act)
