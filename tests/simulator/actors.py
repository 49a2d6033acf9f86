"""The actors of a simulation: workers, hearts, starters, senders, operators and pollers.

Workers do what the library's worker does, with the same calls and the same reading of errors: a
batch whose answer is lost is sent again as careful, a COMMIT whose answer is lost is read back, a
run whose commit did not go as handed out is given back. Programs are those of
:mod:`tests.simulator.programs`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field
from typing import Any

from pgflow._db.calls import schedules as calls
from pgflow._model.schedules import read_spec, refill
from tests.simulator.database import ACCOUNTS, EVERY_SECONDS, POOLS, QUEUES, WORKFLOWS
from tests.simulator.model import Act, Broken
from tests.simulator.programs import CLEANUP, SIGNALS, Journal, Unit, grow
from tests.simulator.wire import Rows, SqlError
from tests.simulator.world import Actor, Cut, Play, Step, World

CLAIMED = "run_id, token, chain_id, last_seq, key, input, units, coalesce(extra->'offer', extra->'result')"
KEYS = 24
LOCKED = ("one", "two")
UPDATE = "set"
SCHEDULES = (("alone-allow", "allow"), ("alone-skip", "skip"), ("busy", "cancel_other"))
CAPACITY = 4
DEAD_AFTER_TURNS = 120
AT_US = 1_900_000_000_000_000
"""Time of everything by a worker's own clock, which decides nothing."""

Call = Generator[Step, Any, Any]


def call(
    function: str, arguments: str, *params: Any, columns: str = "", act: Act | None = None
) -> Step:
    """A call of one stored function."""
    return Step(
        "call",
        f"select {columns + ' from ' if columns else ''}pgflow.{function}({arguments})",
        params,
        act,
        function,
    )


@dataclass
class Execution:
    """A run that a worker holds."""

    run_id: int
    token: int
    chain: int
    key: str
    journal: Journal
    committed: int
    """The last seq that is known to be recorded."""
    buffer: list[Unit] = field(default_factory=list)
    licensed: bool = False
    offer: list[Any] | None = None
    """The message that came with the claim, or with the end of a child: its number, name, payload
    and time, of a result its call and the child's workflow; and the look before that.
    """
    taken: list[list[Any]] = field(default_factory=list)
    offered: dict[int, int] = field(default_factory=dict)
    """Last look before the claim, for those that were taken so."""
    settled: list[int] = field(default_factory=list)
    """Admitted calls whose ends are in the buffer."""
    shown: list[list[Any]] = field(default_factory=list)
    """Updates that wait, as the last answer showed them: number, name, payload, taken before."""
    shown_began: int = 0
    """Look before that answer was asked for."""
    words: list[list[Any]] = field(default_factory=list)
    """Word of updates that goes with the buffer."""
    due_us: dict[int, int] = field(default_factory=dict)
    """By the seq of its start, when a timer is due of which the claim has told."""

    @property
    def brings_result(self) -> bool:
        """True if a result is offered for which it may wait."""
        offer = self.offer
        return offer is not None and len(offer) == 7 and offer[4] in self.journal.children

    def draws(self, *, asks: bool = False, ends: bool = False) -> list[list[int | None]]:
        """The rows of ``d``: what the buffer settles of pools, or asks of them."""
        if ends:
            return [[self.run_id, None]]
        if self.settled:
            return [[self.run_id, number] for number in self.settled]
        spends = asks or any(u.kind == "M" for u in self.buffer)
        return [[self.run_id, 0]] if spends else []

    def note(
        self,
        kind: str,
        call_number: int,
        name: str | None,
        payload: Any = None,
        delay_seconds: float | None = None,
        starts: str | None = None,
    ) -> None:
        u = Unit(self.journal.seq + 1, call_number, kind, name, payload, delay_seconds, starts)
        self.buffer.append(u)
        self.journal.feed(u)

    def rows(self) -> list[list[Any]]:
        """The buffer as commit_units takes it."""
        return [
            [
                self.run_id,
                u.seq,
                u.call,
                u.kind,
                u.name,
                json.dumps(u.payload),
                u.starts,
                AT_US,
                u.delay_seconds,
                self.token,
            ]
            for u in self.buffer
        ]


@dataclass
class Flush:
    """Flush of one run."""

    execution: Execution
    question: dict[str, Any] = field(default_factory=dict)
    status: str | None = None


class Cast:
    """The actors of a world, and what they have in common."""

    def __init__(self, world: World, *, workers: int = 3, live: int = 14) -> None:
        self.world = world
        self.rng = world.rng
        self.live = live
        self.starting = True
        self.messages = 0
        self.updates = 0
        self.alive: dict[int, Actor] = {}
        """Workers by number, as long as their process lives."""
        for n in range(workers):
            world.add(f"worker{n}", self.work, 5)
        world.add("hearts", self.beat_hearts, 2)
        world.add("starter", self.start_runs, 1.5)
        world.add("sender0", self.send_signals, 1)
        world.add("sender1", self.send_signals, 1)
        world.add("updater", self.send_updates, 1)
        world.add("operator", self.operate, 0.7)
        world.add("poller", self.poll, 1)
        world.add("taker0", self.take_locks, 0.7)
        world.add("taker1", self.take_locks, 0.7)
        world.add("sealer", self.seal, 0.3)
        world.add("scheduler0", self.keep_schedules, 0.5)
        world.add("scheduler1", self.keep_schedules, 0.5)

    # ---------------------------------------------------------------- workers

    def work(self, me: Actor) -> Play:
        """A worker's process, from its start to its leave."""
        rows = yield from self._insist(
            lambda: call(
                "register_worker", "'sim', 1, $1::text[], 4, 'sim'", QUEUES, act=Act("register")
            )
        )
        worker = int(rows[0][0])
        held: dict[int, Execution] = {}
        seen: dict[int, tuple[int, int]] = {}
        self.alive[worker] = me
        me.memory = {"worker": worker, "held": held}
        for _ in range(self.rng.randint(20, 400)):
            try:
                what = self.rng.choices(
                    ("claim", "advance", "transaction", "watch", "release", "poll", "strays"),
                    (3, 9, 3, 1.5, 0.2, 1, 0.3),
                )[0]
                if what == "claim" and len(held) < CAPACITY:
                    yield from self._claim(worker, held)
                elif what == "advance" and held:
                    yield from self._advance(worker, held)
                elif what == "transaction" and held:
                    yield from self._transact(me, held)
                elif what == "watch":
                    yield from self._watch(me, worker, seen)
                elif what == "release" and held:
                    yield from self._release([self.rng.choice(list(held.values()))], held)
                elif what == "strays":
                    act = Act("strays", {"worker": worker, "known": list(held)})
                    arguments = "$1::int, $2::bigint[], pgflow.now_()"
                    yield call("release_strays", arguments, worker, sorted(held), act=act)
                elif what == "poll":
                    yield call("poll", "100", columns="busy", act=Act("poll"))
                else:
                    yield Step("rest")
            except Cut:
                pass
            except SqlError as error:
                if error.state == "PF004":
                    # Declared dead: a zombie tries once more, and is a new worker then.
                    self.world.fire("zombie")
                    if held:
                        yield from self._tolerate(self._advance(worker, held))
                    self.alive.pop(worker, None)
                    return
        yield from self._tolerate(self._release(list(held.values()), held))
        yield from self._tolerate(
            _one(call("leave_worker", "$1::int", worker, act=Act("leave", {"worker": worker})))
        )
        self.alive.pop(worker, None)

    def _insist(self, step: Callable[[], Step]) -> Call:
        while True:
            try:
                return (yield step())
            except (Cut, SqlError):
                pass

    def _tolerate(self, steps: Call) -> Call:
        try:
            yield from steps
        except (Cut, SqlError):
            pass

    def _claim(self, worker: int, held: dict[int, Execution]) -> Call:
        count = self.rng.randint(1, CAPACITY - len(held))
        step = self._claiming(worker, count, "claim_runs", "", ())
        rows = yield step
        self._take(rows, held, step)

    def _claiming(
        self,
        worker: int,
        count: int,
        function: str,
        before: str,
        params: tuple[Any, ...],
        act: Act | None = None,
    ) -> Step:
        tokens = [self.rng.getrandbits(63) for _ in range(count)]
        n = len(params)
        arguments = f"{before}${n + 1}::int, array(select lane_id from pgflow.lane order by lane_id), ${n + 2}::int, ${n + 3}::bigint[], ${n + 4}::boolean"
        columns = ("answer, " if before else "") + CLAIMED
        claim = Act("claim", {"worker": worker, "tokens": set(tokens)})
        if act is not None:
            act.data |= {"claim": claim.data}
        return call(
            function,
            arguments,
            *params,
            worker,
            count,
            tokens,
            self.rng.random() < 0.7,
            columns=columns,
            act=act or claim,
        )

    def _take(self, rows: Rows, held: dict[int, Execution], step: Step) -> None:
        assert step.act is not None
        for run_id, token, chain, last_seq, key, text, units, offer in rows:
            if run_id is None:
                continue
            journal = Journal(json.loads(text or b"")["ops"])
            told = json.loads(units) if units else ()
            for seq, number, kind, name, payload, *_ in told:
                journal.feed(
                    Unit(
                        seq,
                        number,
                        kind,
                        name,
                        json.loads(payload) if payload is not None else None,
                    )
                )
            assert journal.seq == int(last_seq or 0)
            letter = json.loads(offer) if offer else None
            held[int(run_id)] = Execution(
                int(run_id),
                int(token or 0),
                int(chain or 0),
                (key or b"").decode(),
                journal,
                journal.seq,
                offer=letter and [*letter, step.act.began],
                due_us={
                    seq: due_us for seq, _, kind, _, _, _, _, due_us, *_ in told if kind == "t"
                },
            )

    # ---------------------------------------------------------------- flushes

    def _plan(self, e: Execution) -> Flush | None:
        """Runs the program up to where something must be committed; None where a transactional step
        is next.
        """
        while True:
            j = e.journal
            j.settle()
            if j.cancelled and not j.cleaned:
                e.note("c", CLEANUP, "cleanup")
            status = j.ending()
            if status is not None:
                return Flush(e, status=status)
            assert j.op is not None
            what = j.op[0]
            if what == "r":
                e.note("c", j.call, "r", {"n": self.rng.randint(1, 9)})
                if self.rng.random() < 0.4:
                    return Flush(e)
            elif what == "s":
                if not e.licensed:
                    return self._license(e)
                e.licensed = False
                if j.tries < 2 and self.rng.random() < 0.25:
                    e.note(
                        "a", j.call, "s", {"message": "no"}, delay_seconds=self.rng.choice((0.5, 5))
                    )
                    return Flush(e, self._ask(e, retries=[[j.call, j.retry]], park=True))
                e.note("c", j.call, "s", 1)
            elif what == "p":
                if not j.admitted:
                    return Flush(e, self._ask(e, admits=[self._asked(j.call)]))
                e.note("M", 0, "p", {"call": j.call, "amounts": {"usd": self._dollars()}})
                if j.tries < 2 and self.rng.random() < 0.25:
                    e.note(
                        "a", j.call, "p", {"message": "no"}, delay_seconds=self.rng.choice((0.5, 5))
                    )
                    return Flush(e, self._ask(e, retries=[[j.call, j.retry]], park=True))
                e.settled.append(j.call)
                e.note("c", j.call, "p", 1)
            elif what == "t":
                return Flush(e) if e.taken or e.words else None
            elif what == "J" and e.brings_result and not j.cancelled:
                self.world.fire("result taken from the claim or the commit")
                assert e.offer is not None
                number, name, payload, _, child_call, workflow, began = e.offer
                e.offer = None
                e.taken.append([e.run_id, e.chain, name, number, "c"])
                e.note("K", child_call, workflow, json.loads(payload))
            elif what == "w" and e.offer and e.offer[1] == j.op[1] and not j.cancelled:
                self.world.fire("signal taken from the claim")
                number, name, payload, *_, began = e.offer
                e.offer = None
                e.offered[number] = began
                e.taken.append([e.run_id, e.chain, name, number])
                e.note("S", j.call, name, json.loads(payload))
            elif what == "z" and self._is_due(e):
                self.world.fire("timer fired without a question")
                self.world.model.seen_us[e.run_id, j.call] = self.world.mirror.now_us
                e.note("T", j.call, None)
            elif what in "wvz":
                return self._wait(e)
            elif what == "u":
                if not self._serve(e):
                    return Flush(e, self._ask(e, updates=[[j.call]], park=True))
                if j.update is not None and self.rng.random() < 0.4:
                    return Flush(e)
            elif what == "b":
                if j.loser is None:
                    return Flush(
                        e,
                        self._ask(e, signals=[[j.call, j.op[1]], [j.call + 1, j.op[2]]], park=True),
                    )
                e.note("x", j.loser, None)
            elif what == "k":
                child = [
                    j.call,
                    self.rng.choice(WORKFLOWS),
                    self.rng.choice(QUEUES),
                    json.dumps({"ops": j.op[1]}),
                    j.op[2],
                    0,
                    None,
                    None,
                    None,
                    None,
                    j.op[3],
                ]
                return Flush(e, self._ask(e, children=[child]))
            elif what == "J":
                return Flush(e, self._ask(e, child_calls=sorted(j.children), park=True))
            elif what == "g":
                unwanted = sorted(c for c in j.children.values() if c is not None)
                for number in sorted(j.children):
                    e.note("x", number, None)
                return Flush(e, self._ask(e, unwanted=unwanted))
            else:
                return Flush(e, self._ask(e, **{"continue": json.dumps({"ops": j.op[1]})}))

    def _dollars(self) -> str:
        return str(self.rng.randint(0, 5))

    def _asked(self, number: int) -> dict[str, Any]:
        licence = [number, "s", "p", "1", None]
        amounts = {"usd": self._dollars()}
        return {"call": number, "name": "p", "amounts": amounts, "licence": licence}

    def _license(self, e: Execution) -> Flush:
        starts = json.dumps([[e.journal.call, "s", "s", "1", None]])
        if e.buffer:
            e.buffer[-1] = e.buffer[-1]._replace(starts=starts)
        else:
            e.note("s", e.journal.call, "s", starts=starts)
        e.licensed = True
        return Flush(e)

    def _serve(self, e: Execution) -> bool:
        """Answers the update that was taken, or takes or rejects the next that waits; False if none
        is known.
        """
        j = e.journal
        if j.update is not None:
            said = {"id": j.update, "status": "done", "value": j.seq}
            words = [e.run_id, e.chain, j.update, None, j.seq + 1, "done", None]
            e.note("b", j.call + 1, UPDATE, said)
            e.words.append(words)
            return True
        if not e.shown:
            return False
        number, name, payload, is_again = e.shown.pop(0)
        update = json.loads(payload)
        if not is_again and self.rng.random() < 0.15:
            self.world.fire("update rejected")
            why = '{"message": "no"}'
            e.words.append([e.run_id, e.chain, update["id"], number, None, "rejected", why])
            return bool(e.shown)
        e.offered[number] = e.shown_began
        e.words.append([e.run_id, e.chain, update["id"], number, None, None, None])
        e.note("h", j.call, name, update)
        return True

    def _is_due(self, e: Execution) -> bool:
        """Return True if a sleep is over that was begun before the claim. Nothing else is waited
        for, and a run with mail looks at it first.
        """
        j = e.journal
        due_us = e.due_us.get(j.timer or 0)
        return due_us is not None and due_us <= self.world.mirror.now_us and not j.cancelled

    def _wait(self, e: Execution) -> Flush:
        j = e.journal
        assert j.op is not None
        if j.op[0] != "w" and j.timer is None:
            e.note("t", j.call, None, delay_seconds=j.op[-1])
        signals = [[j.call, j.op[1]]] if j.op[0] != "z" else []
        timers = [] if j.op[0] == "w" else [[j.call, j.timer, "T" if j.op[0] == "z" else "W"]]
        return Flush(e, self._ask(e, signals=signals, timers=timers, park=True))

    def _ask(self, e: Execution, **question: Any) -> dict[str, Any]:
        if self.world.faults.die and self.rng.random() < 0.01:
            self.world.fire("stuck")
            question = {"hold": ["stuck", "nondeterminism", "code", None, "pgflow"]}
        e.offer = None  # the answer may take it
        e.shown = []
        return {"idle": True, "cancelled": e.journal.cancelled, **question}

    def _advance(self, worker: int, held: dict[int, Execution]) -> Call:
        """Commits what a few runs have come to."""
        some = self.rng.sample(sorted(held), self.rng.randint(1, len(held)))
        flushes = [f for run in sorted(some) if (f := self._plan(held[run])) is not None]
        if not flushes:
            return
        for attempt in range(4):
            try:
                answer = yield from self._commit(worker, flushes, held, careful=attempt > 0)
            except Cut:
                # The batch goes again: what has been done already answers so.
                self.world.fire("batch sent again")
                continue
            except SqlError as error:
                if error.state.startswith("23"):
                    if attempt > 0:
                        raise Broken("G3", f"a careful batch was answered {error}") from error
                    continue
                yield from self._tolerate(self._release([f.execution for f in flushes], held))
                raise
            flushes = [f for f in flushes if answer.get(f.execution.run_id) == "busy"]
            if not flushes:
                return
        yield from self._release([f.execution for f in flushes], held)

    def _commit(
        self, worker: int, flushes: list[Flush], held: dict[int, Execution], *, careful: bool
    ) -> Call:
        act = _commit_act(flushes)
        document = _document(worker, flushes)
        if not careful and len(held) < CAPACITY and self.rng.random() < 0.25:
            step = self._claiming(
                worker, CAPACITY - len(held), "commit_and_claim", "$1::jsonb, ", (document,), act
            )
        else:
            step = call(
                "commit_units", "$1::jsonb, $2::boolean", document, careful, columns="", act=act
            )
        rows = yield step
        verdicts, settled, wake = act.data["verdicts"], act.data["settled"], act.data["wake"]
        doubtful = []
        for flush in flushes:
            e = flush.execution
            verdict = verdicts.get(e.run_id, "ok")
            if verdict == "ok":
                self._settle(flush, settled.get(e.run_id), held, act.began)
            elif verdict != "busy":
                held.pop(e.run_id, None)
                if verdict == "already":
                    doubtful.append(e)
        for chain, message in act.data["told"]:
            if chain in held:
                held[chain].offer = [*message, act.began]
        if step.function == "commit_and_claim":
            self._take([r[1:] for r in rows], held, step)
        if wake and not self._is_lost():
            yield from self._tolerate(
                _one(call("wake", "$1::bigint[]", sorted(wake), columns="busy", act=Act("wake")))
            )
        yield from self._tolerate(self._release(doubtful, held))
        return verdicts

    def _is_lost(self) -> bool:
        lost = self.world._is_hit("lose")
        if lost:
            self.world.fire("notification lost")
        return lost

    def _settle(
        self,
        flush: Flush,
        settled: dict[str, Any] | None,
        held: dict[int, Execution],
        began: int,
    ) -> None:
        e = flush.execution
        e.buffer, e.taken, e.settled, e.words = [], [], [], []
        e.shown, e.shown_began = (settled or {}).get("offers") or [], began
        if flush.status is not None or (settled is not None and settled["place"] != "leased"):
            held.pop(e.run_id, None)
            return
        for seq, number, kind, name, payload in (settled or {}).get("units", ()):
            e.journal.feed(
                Unit(seq, number, kind, name, None if payload is None else json.loads(payload))
            )
        e.committed = e.journal.seq

    # ---------------------------------------------------------------- transactional steps

    def _transact(self, me: Actor, held: dict[int, Execution]) -> Call:
        """One transactional step, with the application's rows, in one transaction."""
        ready = [e for run, e in sorted(held.items()) if self._is_at_transaction(e)]
        if not ready:
            return
        e = self.rng.choice(ready)
        number = e.journal.call
        acts = Act("fence", {"leases": [(e.run_id, e.token)]})
        try:
            yield Step("begin")
            begun = yield call(
                "begin_step", "$1::bigint, $2::bigint, $3::int", e.run_id, e.token, number
            )
            yield _sql(
                "update sim.account set balance = balance + 1 where account_id = $1::int",
                1 + e.run_id % ACCOUNTS,
            )
            yield _sql(
                "insert into sim.booked values ($1::bigint, $2::int, $3::bigint)",
                e.run_id,
                number,
                e.token,
            )
            if self.rng.random() < 0.15:
                yield self._message(self.rng.choice(list(self.world.model.keys)))
            frozen = self.rng.random() if self.world.faults.freeze else 1.0
            if frozen < 0.08:
                yield from self._freeze(me, "frozen in a step")
            if self.rng.random() < 0.3:
                e.note("M", 0, "t", {"call": number, "amounts": {"usd": self._dollars()}})
            unit_rows = e.rows() + [
                [e.run_id, e.journal.seq + 1, number, "c", "t", "null", None, AT_US, None, e.token]
            ]
            yield call(
                "fence_step",
                "$1::bigint, $2::bigint, $3::int, $4::jsonb, closes => nullif($5::jsonb, '[]')",
                e.run_id,
                e.token,
                number,
                json.dumps(unit_rows),
                json.dumps(e.draws()),
                act=acts,
            )
            if 0.08 < frozen < 0.16:
                yield from self._freeze(me, "frozen behind its fence")
            try:
                yield Step("commit")
            except Cut:
                status = yield from self._insist(
                    lambda: call(
                        "read_unit",
                        "$1::bigint, $2::int",
                        e.run_id,
                        e.journal.seq + 1,
                        columns="token",
                    )
                )
                self.world.fire("commit read back")
                if not status or int(status[0][0]) != e.token:
                    assert begun
                    held.pop(e.run_id, None)
                    yield from self._release([e], held)
                    return
            e.note("c", number, "t")
            e.buffer, e.settled = [], []
            e.committed = e.journal.seq
        except SqlError as error:
            held.pop(e.run_id, None)
            if error.state != "PF004":
                yield from self._release([e], held)
        except Cut:
            held.pop(e.run_id, None)
            yield from self._release([e], held)

    def _freeze(self, me: Actor, fault: str) -> Call:
        me.frozen_until = self.world.turn + self.rng.choice((200, 600))
        self.world.fire(fault)
        yield Step("rest")

    def _is_at_transaction(self, e: Execution) -> bool:
        e.journal.settle()
        return not e.journal.cancelled and e.journal.op is not None and e.journal.op[0] == "t"

    # ---------------------------------------------------------------- giving back, and death

    def _release(self, executions: Iterable[Execution], held: dict[int, Execution]) -> Call:
        given = list(executions)
        for e in given:
            held.pop(e.run_id, None)
        if given:
            leases = [(e.run_id, e.token) for e in given]
            act = Act("release", {"leases": set(leases)})
            yield call(
                "release_runs",
                "$1::bigint[], $2::bigint[]",
                [r for r, _ in leases],
                [t for _, t in leases],
                act=act,
            )

    def _watch(self, me: Actor, worker: int, seen: dict[int, tuple[int, int]]) -> Call:
        """Looks at all beats, and declares dead whose has not moved for long."""
        rows = yield call("observe_workers", "", columns="worker_id, beat")
        now = self.world.turn
        there = {int(w): int(b) for w, b in rows}
        for other in set(seen) - set(there):
            del seen[other]
        for other, beat in sorted(there.items()):
            if other not in seen or seen[other][0] != beat:
                seen[other] = (beat, now)
            elif other != worker and now - seen[other][1] > DEAD_AFTER_TURNS:
                del seen[other]
                if other in self.alive:
                    self.world.fire("worker declared dead alive")
                if self.world.faults.freeze and self.rng.random() < 0.3:
                    # What was observed is old by the time at which it counts.
                    me.frozen_until = now + 40
                    yield Step("rest")
                yield call(
                    "reap_worker",
                    "$1::int, $2::bigint",
                    other,
                    beat,
                    columns="reclaimed",
                    act=Act("reap", {"worker": other, "beat": beat}),
                )

    def beat_hearts(self, me: Actor) -> Play:
        """The hearts of all workers that are not frozen."""
        while True:
            self.alive = {w: a for w, a in self.alive.items() if a.memory.get("worker") == w}
            beating = [
                w for w, a in sorted(self.alive.items()) if a.frozen_until <= self.world.turn
            ]
            for worker in beating or [0]:
                try:
                    yield call("beat", "$1::int", worker, columns="alive", act=Act("beat"))
                except (Cut, SqlError):
                    pass
            for _ in range(3):
                yield Step("rest")

    # ---------------------------------------------------------------- everybody else

    def start_runs(self, me: Actor) -> Play:
        """Starts runs, some under keys that are taken, some within transactions that end later or
        never.
        """
        while True:
            try:
                if not self.starting or len(self.world.model.place) >= self.live:
                    yield Step("rest")
                    continue
                explicit = self.rng.random() < 0.4
                if explicit:
                    yield Step("begin", self.rng.choice(("", "isolation level repeatable read")))
                for _ in range(self.rng.randint(1, 2) if explicit else 1):
                    yield self._start()
                if explicit:
                    yield Step(self.rng.choice(("commit", "commit", "rollback")))
            except Cut:
                pass
            except SqlError as error:
                if error.state == "PF002":
                    self.world.model.tested["G4"] += 1

    def _start(self) -> Step:
        model = self.world.model
        if model.keys and self.rng.random() < 0.15:
            key = self.rng.choice(list(model.keys))
            ops = model.keys[key][1] if self.rng.random() < 0.5 else grow(self.rng)
        else:
            key, ops = f"run-{self.world.turn}", grow(self.rng)
        delay = self.rng.choice((None, None, None, 5))
        workflow = self.rng.choice(WORKFLOWS) if key not in model.keys else "a"
        act = Act("start", {"key": key, "ops": ops, "read": self._read_start})
        arguments = "$1, $2::json, $3, $4, $5::int, run_at => timestamptz 'epoch' + $6::bigint * interval '1 microsecond', timeout_seconds => $7::float8, pool => $8"
        return call(
            "start_run",
            arguments,
            workflow,
            json.dumps({"ops": ops}),
            key,
            self.rng.choice(QUEUES),
            self.rng.choice((0, 0, 1)),
            None if delay is None else self.world.mirror.now_us + delay * 1_000_000,
            self.rng.choice((None, None, None, 20)),
            self.rng.choice((None, *POOLS)),
            columns="run_id, is_new",
            act=act,
        )

    def _read_start(self, act: Act) -> None:
        """A start under a taken key answers the run that is there."""
        known = self.world.model.keys.get(act.data["key"])
        if known is None:
            return
        run_id, is_new = act.rows[0]
        if is_new == b"t" or int(run_id) != known[0] or known[1] != act.data["ops"]:
            raise Broken(
                "G4",
                f"a start under the taken key {act.data['key']} answered {run_id}, new: {is_new}; "
                f"it names chain {known}",
            )
        self.world.model.tested["G4"] += 1

    def _message(self, key: str, name: str | None = None, *, verb: str = "send_signal") -> Step:
        self.messages += 1
        payload = self.messages
        columns = "chain_id, lane_id" if verb == "deliver_signal" else ""
        act = Act("send", {"payload": payload, "delivers": verb == "deliver_signal"})
        return call(
            verb,
            "$1, $2, $3::json",
            key,
            name or self.rng.choice(SIGNALS),
            payload,
            columns=columns,
            act=act,
        )

    def send_signals(self, me: Actor) -> Play:
        """Sends signals in transactions of its own, at both isolation levels; some are rolled
        back.
        """
        while True:
            try:
                if self.world.healing:
                    yield from self._heal(("p",), lambda key: self._answer(key))
                    continue
                if not self.world.model.keys:
                    yield Step("rest")
                    continue
                if self.rng.random() < 0.5:
                    yield from self._deliver()
                    continue
                chains = []
                yield Step("begin", self.rng.choice(("", "isolation level repeatable read")))
                for _ in range(self.rng.randint(1, 3)):
                    rows = yield self._message(self._someone())
                    chains.append(int(rows[0][0]))
                ending = self.rng.choice(("commit", "commit", "commit", "rollback"))
                yield Step(ending)
                if not self._is_lost():
                    yield call(
                        "wake", "$1::bigint[]", sorted(set(chains)), columns="busy", act=Act("wake")
                    )
                    if self._is_lost():
                        self.world.fire("notification twice")
                        yield call(
                            "wake",
                            "$1::bigint[]",
                            sorted(set(chains)),
                            columns="busy",
                            act=Act("wake"),
                        )
            except (Cut, SqlError):
                pass

    def _deliver(self) -> Call:
        """A signal in a transaction of its own, most often one that is waited for."""
        model = self.world.model
        awaited = sorted(
            (model.runs[run].chain, wait[4])
            for run, waits in model.waits.items()
            for wait in waits
            if wait[3] == "s"
        )
        key, name = self._someone(), None
        if awaited and self.rng.random() < 0.7:
            chain, name = self.rng.choice(awaited)
            key = next((k for k, (c, _) in model.keys.items() if c == chain), key)
        rows = yield self._message(key, name, verb="deliver_signal")
        chain_id, lane_id = rows[0]
        if lane_id is not None:
            self.world.fire("signal handed over")
        elif not self._is_lost():
            yield call("wake", "$1::bigint[]", [int(chain_id)], columns="busy", act=Act("wake"))

    def _heal(self, places: tuple[str, ...], help_one: Callable[[str], Step | None]) -> Call:
        """Gives one run what it waits for: a signal, or a person's word."""
        model = self.world.model
        chains = sorted(
            {model.runs[r].chain for r, line in model.place.items() if line[0] in places}
        )
        keys = {chain: key for key, (chain, _) in model.keys.items()}
        step = help_one(keys[self.rng.choice(chains)]) if chains else None
        if step is None:
            yield Step("rest")
            return
        rows = yield step
        yield call("wake", "$1::bigint[]", [int(rows[0][0])], columns="busy", act=Act("wake"))

    def _answer(self, key: str) -> Step | None:
        """The signal that a parked run waits for."""
        model = self.world.model
        run = model.newest[model.keys[key][0]]
        waits = [(wait[3], wait[4]) for wait in model.waits[run] if wait[3] in "su"]
        if not waits:
            return None
        kind, name = waits[0]
        return self._message(key, name) if kind == "s" else self._update(key, self._next_id())

    def send_updates(self, me: Actor) -> Play:
        """Sends updates, some again under their ids, some in transactions that end later or never;
        and asks for their answers.
        """
        while True:
            try:
                if self.world.healing or not self.world.model.keys:
                    yield Step("rest")
                    continue
                if self.rng.random() < 0.4:
                    yield from self._ask_for_reply()
                    continue
                explicit = self.rng.random() < 0.3
                if explicit:
                    yield Step("begin", self.rng.choice(("", "isolation level repeatable read")))
                rows = yield self._update(*self._addressed())
                if explicit:
                    yield Step(self.rng.choice(("commit", "commit", "rollback")))
                if not self._is_lost():
                    yield call(
                        "wake", "$1::bigint[]", [int(rows[0][0])], columns="busy", act=Act("wake")
                    )
            except (Cut, SqlError):
                pass

    def _next_id(self) -> str:
        self.updates += 1
        return f"update-{self.updates}"

    def _addressed(self) -> tuple[str, str]:
        """Run and id of an update: of a new one, or of one that was sent."""
        known = self.world.model.updates
        if known and self.rng.random() < 0.3:
            self.world.fire("update sent again")
            key, update_id = self.rng.choice(list(known))
            return key, update_id
        waiting = {
            self.world.model.runs[run].chain
            for run, waits in self.world.model.waits.items()
            if any(wait[3] == "u" for wait in waits)
        }
        keys = [k for k, (chain, _) in self.world.model.keys.items() if chain in waiting]
        some = self.rng.choice(keys) if keys and self.rng.random() < 0.6 else self._someone()
        return some, self._next_id()

    def _update(self, key: str, update_id: str) -> Step:
        act = Act("update", {"key": key, "id": update_id})
        return call(
            "send_update",
            "$1, $2, $3::json, $4",
            key,
            UPDATE,
            json.dumps({"n": update_id}),
            update_id,
            columns="chain_id, is_new",
            act=act,
        )

    def _ask_for_reply(self) -> Call:
        model = self.world.model
        if not model.updates:
            yield Step("rest")
            return
        key, update_id = self.rng.choice(list(model.updates))
        rows = yield call(
            "update_reply", "$1, $2", key, update_id, columns="status, value", act=Act("reply")
        )
        status, value = rows[0]
        model.judge_reply(key, update_id, status.decode(), None if value is None else int(value))

    def _someone(self) -> str:
        """A key, mostly one of an open chain."""
        model = self.world.model
        open_ones = [
            key
            for key, (chain, _) in model.keys.items()
            if model.runs[model.newest[chain]].outcome is None
        ]
        return self.rng.choice(
            open_ones if open_ones and self.rng.random() < 0.95 else list(model.keys)
        )

    def operate(self, me: Actor) -> Play:
        """Cancels, pauses, resumes and retries."""
        while True:
            try:
                if self.world.healing:
                    yield from self._heal(
                        ("h",), lambda key: call("resume_run", "$1", key, act=Act("control"))
                    )
                    continue
                if not self.world.model.keys:
                    yield Step("rest")
                    continue
                what = self.rng.choices(
                    ("cancel_run", "force", "pause_run", "resume_run", "retry_run", "pool"),
                    (2, 1, 3, 5, 3, 2),
                )[0]
                if what == "pool":
                    yield self._word_on_a_pool()
                    continue
                if what == "force":
                    rows = yield call(
                        "cancel_run", "$1, force => true", self._someone(), act=Act("control")
                    )
                elif what == "retry_run":
                    rows = yield from self._retry()
                else:
                    rows = yield call(what, "$1", self._someone(), act=Act("control"))
                if not self._is_lost():
                    yield call(
                        "wake", "$1::bigint[]", [int(rows[0][0])], columns="busy", act=Act("wake")
                    )
            except (Cut, SqlError):
                pass

    def _retry(self) -> Call:
        """Retries a run, now and then one that was refused by a pool and has failed. A new generation
        then begins with a part of the journal, of which the model knows nothing: this is taken
        back, and must leave nothing.
        """
        model = self.world.model
        newest_of = {key: model.runs[model.newest[chain]] for key, (chain, _) in model.keys.items()}
        failed = [
            key
            for key, run in newest_of.items()
            if run.journal.was_refused and run.outcome is not None and run.outcome[0] == "failed"
        ]
        is_late = bool(failed) and self.rng.random() < 0.5
        key = self.rng.choice(failed) if is_late else self._someone()
        yield Step("begin", "")
        rows = yield call("retry_run", "$1", key, act=Act("control"))
        chain = int(rows[0][0])
        newest = yield call("newest_run_", "$1::bigint", chain)
        is_rewound = int(newest[0][0]) != model.newest[chain]
        if is_rewound:
            self.world.fire("rewound and taken back")
        yield Step("rollback" if is_rewound else "commit")
        return rows

    def _word_on_a_pool(self) -> Step:
        """A grant, or that it admits nothing, or does again."""
        pool = self.rng.choice((*POOLS, "top"))
        act = Act("pool")
        if self.rng.random() < 0.6:
            return call("grant_budget", "$1, '{\"usd\": 5}'", pool, act=act)
        restore = self.rng.random() < 0.7
        return call("revoke_pool", "$1, restore => $2::boolean", pool, restore, act=act)

    def take_locks(self, me: Actor) -> Play:
        """Takes locks, some in transactions that end later or never, and gives them back, late or
        not at all.
        """
        while True:
            try:
                if self.world.healing:
                    yield Step("rest")
                    continue
                explicit = self.rng.random() < 0.3
                if explicit:
                    yield Step("begin", self.rng.choice(("", "isolation level repeatable read")))
                for _ in range(self.rng.randint(1, 2) if explicit else 1):
                    yield from self._lock_or_unlock(me)
                if explicit:
                    yield Step(self.rng.choice(("commit", "commit", "rollback")))
            except (Cut, SqlError):
                pass

    def _lock_or_unlock(self, me: Actor) -> Call:
        key, holder = self.rng.choice(LOCKED), f"{me.name}/{self.rng.randint(0, 1)}"
        fences: dict[str, int] = me.memory.setdefault("fences", {})
        what = self.rng.choices(("take", "renew", "release", "leave", "sweep"), (8, 2, 5, 1, 2))[0]
        if what == "take":
            patience = self.rng.choice((None, "3 seconds", "1 hour"))
            rows = yield call(
                "take_lock",
                "$1, $2, $3::interval, $4::boolean, $5::interval, $1",
                key,
                holder,
                self.rng.choice(("2 seconds", "1 hour")),
                self.rng.random() < 0.4,
                patience,
                act=Act("lock"),
            )
            if rows[0][0] is not None:
                fences[key] = int(rows[0][0])
        elif what == "leave":
            yield call("leave_lock", "$1, $2, $1", key, holder, act=Act("lock"))
        elif what == "sweep" and not me.explicit:
            yield call("sweep_locks", "", columns="busy", act=Act("wake"))
        elif what in ("renew", "release") and key in fences:
            fence = fences[key] if what == "renew" else fences.pop(key)
            more = ", interval '1 minute'" if what == "renew" else ""
            yield call(f"{what}_lock", f"$1, $2::bigint{more}, $1", key, fence, act=Act("lock"))
        else:
            yield Step("rest")

    def seal(self, me: Actor) -> Play:
        """Seals what has been recorded."""
        while True:
            try:
                yield call("seal_units", "20, true", columns="has_more", act=Act("seal"))
            except (Cut, SqlError):
                pass

    def keep_schedules(self, me: Actor) -> Play:
        """Looks after schedules as a tick does, sets them anew, and meddles with one."""
        while True:
            try:
                if self.world.healing:
                    yield Step("rest")
                elif self.rng.random() < 0.1:
                    yield self._word_on_a_schedule()
                else:
                    yield from self._look_at_schedules()
            except (Cut, SqlError):
                pass

    def _look_at_schedules(self) -> Call:
        rows = yield call("keep_schedules", "0, 2, true", columns="fired, refills", act=Act("fire"))
        asked = [calls.to_refill(one) for one in json.loads(rows[0][1])]
        if not asked:
            return
        for _ in range(self.rng.choice((0, 0, 5))):  # meanwhile others may do the same
            yield Step("rest")
        answers = [(one, refill(read_spec(one.spec), one.after, one.now)) for one in asked]
        (told,) = calls.refill_schedules(answers).params
        yield call("refill_schedules", "$1::jsonb", told, act=Act("refill"))

    def _word_on_a_schedule(self) -> Step:
        """One is made, or set anew; the one that may be meddled with is paused, or triggered."""
        name, overlap = self.rng.choice(SCHEDULES)
        what = "set" if name != "busy" else self.rng.choice(("set", "pause", "resume", "trigger"))
        if what == "trigger":
            slot = self.world.mirror.now_us - self.rng.choice((1, 900)) * 1_000_000
            arguments = "$1, slot_at => timestamptz 'epoch' + $2::bigint * interval '1 microsecond'"
            return call(
                "trigger_schedule", arguments, name, slot, columns="is_new", act=Act("trigger")
            )
        if what != "set":
            return call(f"{what}_schedule", "$1", name, act=Act(what))
        ops = grow(self.rng)
        self.world.model.scheduled[name].append(ops)
        return call(
            "set_schedule",
            "$1, $2, $3::jsonb, $4, $5::json, overlap => $6, catch_up => 'all', max_catch_up => 3",
            name,
            self.rng.choice(WORKFLOWS),
            json.dumps({"every": EVERY_SECONDS}),
            self.rng.choice(QUEUES),
            json.dumps({"ops": ops}),
            overlap,
            act=Act("set"),
        )

    def poll(self, me: Actor) -> Play:
        """Polls, wakes what is nudged, and takes runs back that were stuck on their definition."""
        while True:
            try:
                if self.rng.random() < 0.8:
                    yield call("poll", "100", columns="busy", act=Act("poll"))
                else:
                    yield call("wake", "null", columns="busy", act=Act("wake"))
            except (Cut, SqlError):
                pass


def _one(step: Step) -> Call:
    return (yield step)


def _sql(statement: str, *params: Any) -> Step:
    return Step("call", statement, params, None, statement.split(maxsplit=1)[0])


def _document(worker: int, flushes: list[Flush]) -> str:
    ordered = sorted(flushes, key=lambda f: f.execution.run_id)
    batch: dict[str, Any] = {
        "worker": worker,
        "runs": [[f.execution.run_id, f.execution.token, f.execution.committed] for f in ordered],
        "units": [row for f in ordered for row in f.execution.rows()],
    }
    if taken := [row for f in ordered for row in f.execution.taken]:
        batch["taken"] = taken
    if words := [word for f in ordered for word in (*f.execution.words, *_refused(f))]:
        batch["replies"] = words
    if draws := [
        row
        for f in ordered
        for row in f.execution.draws(
            asks="admits" in f.question, ends=f.status is not None or "continue" in f.question
        )
    ]:
        batch["draws"] = draws
    ended = [f for f in ordered if f.status]
    if ended:
        batch["ends"] = [_ending(f) for f in ended]
        batch["kin"] = [f.execution.run_id for f in ended]
    questions = [f for f in ordered if f.question]
    if questions:
        batch["questions"] = [
            {
                "run": f.execution.run_id,
                "token": f.execution.token,
                "chain": f.execution.chain,
                "seq": f.execution.journal.seq,
                **f.question,
            }
            for f in questions
        ]
    return json.dumps(batch)


def _refused(f: Flush) -> list[list[Any]]:
    """Word of the update that the run has taken and does not answer, since it ends."""
    e = f.execution
    if f.status is None or e.journal.update is None:
        return []
    return [[e.run_id, e.chain, e.journal.update, None, None, "refused", None]]


def _ending(f: Flush) -> list[Any]:
    error = '{"message": "no"}' if f.status == "failed" else None
    output = "1" if f.status == "completed" else None
    return [f.execution.run_id, f.status, None, output, error, f.execution.chain, f.execution.token]


def _commit_act(flushes: list[Flush]) -> Act:
    leases = {(f.execution.run_id, f.execution.token) for f in flushes}
    endings = {
        f.execution.run_id: "continued" if "continue" in f.question else f.status for f in flushes
    }
    units = {f.execution.run_id: (f.execution.committed, len(f.execution.buffer)) for f in flushes}
    unwanted = {chain for f in flushes for chain in f.question.get("unwanted", ())}
    offered = {number: began for f in flushes for number, began in f.execution.offered.items()}
    words = [(w[2], w[5]) for f in flushes for w in (*f.execution.words, *_refused(f)) if w[5]]
    return Act(
        "commit",
        {
            "offered": offered,
            "words": words,
            "unwanted": unwanted,
            "leases": leases,
            "endings": endings,
            "units": units,
            "verdicts": {},
            "settled": {},
            "wake": [],
            "told": [],
            "read": _read_commit,
        },
    )


def _read_commit(act: Act) -> None:
    told = json.loads(act.rows[0][0]) if act.rows and act.rows[0][0] else {}
    act.data["verdicts"] = dict(told.get("bad") or ())
    act.data["settled"] = {answer["run"]: answer for answer in told.get("answers") or ()}
    act.data["wake"] = told.get("wake") or []
    act.data["told"] = told.get("told") or []
