"""The agent of `examples/agents/loop.py`, harmed at each point of its loop, again and again: `python
-m tests.loops SERVER_DSN [--kills N] [--freezes N] [--cuts N] [--seed S]`.

Workers are forked from this process. Each victim is told a point, and comes to harm when it reaches
that point for the n-th time: it kills itself with SIGKILL, or is stopped for longer than its lease
lasts and goes on then, or all its connections are cut and no new one is let in for as long. People
come to harm too: they die before or after the commit of their answer. The supplier is a process
with a book, which loses some of its replies; it and the model write down what they were asked.

At the end the ledgers are compared with these books. Each call of the model whose answer counts is
recorded once and paid for to the cent; each order was done once, and is that of its decision or of
the answer at its gate; what was to be taken back was, once; no answer at a gate is lost, doubled or
taken by another request; and the pool has got back what was not spent. A point at which harm came
too seldom makes the whole run void.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import os
import random
import secrets
import select
import signal
import socket
import sys
import tempfile
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo

import pgflow
from examples.agents import loop, offline
from pgflow import AsyncApp
from pgflow._db.calls import commit as commit_calls
from pgflow._worker.executor import CommitResults, Executor
from pgflow._worker.options import Rhythm, WorkerOptions

sys.path.insert(0, str(Path(__file__).parent / "kits"))

from collections.abc import Iterator

import servers

from pgflow._engine.flush import Flush

COMMITS = (
    "the admission", "the decision and its charge", "the question", "the answer", "the intent",
    "the outcome", "the state", "the compensation's intent", "the compensation's outcome",
    "the end",
)  # fmt: skip
"""Commits of the loop: there is a point before each, and one after it, at which the run has not
heard of it.
"""

BODIES = (
    "in the model's call", "in the act", "in the settling", "before the fold", "after the fold",
    "in the oracle", "in the compensation",
)  # fmt: skip
POINTS = (*(f"{when} {what}" for what in COMMITS for when in ("before", "after")), *BODIES)
PEOPLE = ("person, before the commit", "person, after the commit")
HARMS = ("kill", "freeze", "cut")

RHYTHM = Rhythm(beat=0.2, look=0.2, dead_after=1.0)
APART_SECONDS = 2.2
"""For so long a worker is frozen or cut off: longer than its leases last."""

AFTERWARDS_SECONDS = 1.0
"""For so long it goes on with what it knew, before it makes room for the next."""

DRAIN_SECONDS = 900
"""Time for all runs to end once nobody comes to harm any more."""

CONCURRENCY = 8
OPEN_RUNS = 3
"""Runs at a time, for each victim."""

LOST = 0.2
"""Share of the supplier's replies that are lost though nobody comes to harm."""


class Supplier:
    """The counterparty, and the maker of the model: a process that writes down what it did."""

    def __init__(self, folder: Path) -> None:
        self.address = str(folder / "supplier")
        self.path = folder / "book"
        self.path.touch()
        self.pid = os.fork()
        if not self.pid:
            try:
                asyncio.run(self._serve())
            finally:
                os._exit(0)

    async def _serve(self) -> None:
        done: dict[str, dict[str, Any]] = {}
        of_run: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
        with self.path.open("a") as book:

            def answer(asked: dict[str, Any]) -> Any:
                if asked["act"] == "find":
                    return done.get(asked["key"])
                if asked["act"] == "lines":
                    return of_run[asked["run"]]
                if asked["key"] not in done:
                    asked["number"] = f"{asked['act']}-{len(done) + 1}"
                    done[asked["key"]] = asked
                    of_run[asked["run"]].append(asked)
                    book.write(json.dumps(asked) + "\n")
                else:
                    book.write(json.dumps({"act": "again", "key": asked["key"]}) + "\n")
                book.flush()
                return done[asked["key"]]

            async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                with contextlib.suppress(ConnectionError, json.JSONDecodeError):
                    found = answer(json.loads(await reader.readline()))
                    writer.write(json.dumps(found).encode() + b"\n")
                    await writer.drain()
                writer.close()

            async with await asyncio.start_unix_server(handle, self.address):
                await asyncio.Event().wait()

    def book(self) -> list[dict[str, Any]]:
        """Return what was done, in order."""
        return [json.loads(line) for line in self.path.read_text().splitlines()]

    def close(self) -> None:
        """Ends it."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def _ask(**asked: Any) -> Any:
    while True:
        with socket.socket(socket.AF_UNIX) as line:
            try:
                line.connect(os.environ["SUPPLIER"])
            except (ConnectionError, FileNotFoundError):
                time.sleep(0.01)
                continue
            line.sendall(json.dumps(asked).encode() + b"\n")
            with line.makefile() as answer:
                return json.loads(answer.readline())


class Remote:
    """The supplier as the agent sees it: `counterparty()` in the workers."""

    async def act(self, act: str, key: str, **request: Any) -> str:
        """As `Counterparty.act`."""
        done = _ask(act=act, key=key, run=pgflow.run_info().key, **request)
        _reach("in the compensation" if act == "cancel" else "in the act")
        if random.random() < LOST:
            raise ConnectionResetError("no reply")
        return str(done["number"])

    def find(self, key: str) -> Any:
        """As `Counterparty.find`."""
        _reach("in the settling")
        return _ask(act="find", key=key)

    def lines(self) -> Any:
        """As `Counterparty.lines`, of this run."""
        _reach("in the oracle")
        return [line for line in _ask(act="lines", run=pgflow.run_info().key) if "pieces" in line]


def equip() -> None:
    """Puts this supplier and points between the loop and the world."""
    sample, fold = offline.sample, loop.State.fold

    async def written_down(least: int, most: int) -> offline.Sample:
        said = await sample(least, most)
        _ask(
            act="model",
            key=said.id,
            run=pgflow.run_info().key,
            usd=str(said.usd),
            tokens=said.tokens,
            said=said.number,
        )
        _reach("in the model's call")
        return said

    def folded(self: loop.State, order: loop.Order, number: str) -> loop.State:
        _reach("before the fold")
        state = fold(self, order, number)
        _reach("after the fold")
        return state

    loop.counterparty = lambda name: Remote()  # type: ignore[assignment]
    offline.sample = written_down
    loop.State.fold = folded  # type: ignore[method-assign]
    loop.place.timeout = timedelta(seconds=1)
    loop.place.terms = replace(loop.place.terms, settle_after=timedelta(seconds=2))


class _Point:
    """The point at which this process comes to harm, and how often it still passes it before."""

    name: str | None = None
    remaining = 0
    harm = ""
    role = ""
    told = -1


def _reach(name: str) -> None:
    if _Point.name != name:
        return
    _Point.remaining -= 1
    if _Point.remaining > 0:
        return
    _Point.name = None
    if _Point.harm == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif _Point.harm == "freeze":
        os.kill(os.getpid(), signal.SIGSTOP)
    else:
        with psycopg.connect(os.environ["LOOPS_DSN"], autocommit=True) as conn:
            conn.execute(f"alter role {_Point.role} connection limit 0")
            conn.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity where usename = %s",
                (_Point.role,),
            )
        os.write(_Point.told, f"{os.getpid()}\n".encode())


def _is_compensation(name: str | None) -> bool:
    return name == "cancel"


def _asked_in(flush: Flush) -> Iterator[str]:
    """The commits that a flush is, by what it has."""
    for row in flush.rows:
        if row.kind == "d":
            yield "the decision and its charge"
        elif row.kind == "C":
            yield "the compensation's outcome" if _is_compensation(row.name) else "the outcome"
        elif row.kind == "v":
            yield "the state"
    if flush.ending is not None:
        yield "the end"
    question = flush.question or {}
    if "admits" in question:
        yield "the admission"
    if "new_gates" in question:
        yield "the question"
    if "gates" in question:
        yield "the answer"
    for intent in question.get("effects", ()):
        is_undo = _is_compensation(intent["name"])
        yield "the compensation's intent" if is_undo else "the intent"


_OF_ANSWERS = {"m": "the admission", "g": "the question", "G": "the answer"}
"""Commits by the units that the database has added to them."""


def _arm(point: str, nth: int, harm: str, role: str, told: int) -> None:
    _Point.name, _Point.remaining, _Point.harm = point, nth, harm
    _Point.role, _Point.told = role, told
    commit, spread = Executor.execute, CommitResults.apply

    async def execute(
        self: Executor, wire: Any, items: list[Any], server: Any, *, careful: bool
    ) -> Any:
        asked = [what for _, flush in items for what in _asked_in(flush)]
        for what in asked:
            _reach(f"before {what}")
        for what in asked:
            if _Point.name == f"after {what}" and what not in _OF_ANSWERS.values():
                if _Point.remaining <= 1:
                    apart: list[str] = []
                    document = self._document(items, apart)
                    await wire.ask(commit_calls.commit_units(document, apart, careful=careful))
                _reach(f"after {what}")
        return await commit(self, wire, items, server, careful=careful)

    def apply(self: CommitResults, items: list[Any], answer: Any, server: Any) -> Any:
        for settled in answer.settled.values():
            for unit in settled.get("units") or ():
                if unit[2] in _OF_ANSWERS:
                    _reach(f"after {_OF_ANSWERS[unit[2]]}")
        return spread(self, items, answer, server)

    Executor.execute = execute  # type: ignore[method-assign]
    CommitResults.apply = apply  # type: ignore[method-assign]


@dataclass
class Victim:
    """A worker that is to come to harm."""

    point: str
    harm: str
    slot: int
    harmed_at: float | None = None
    is_apart: bool = False
    held: tuple[tuple[int, int], ...] = ()
    """Runs that it held when it was set apart, and the tokens of their leases."""


_HELD_BY = """
select l.run_id, l.token from pgflow.lease l join pgflow.worker w using (worker_id) where w.pid = %s
"""
_HELD = "select from pgflow.lease where run_id = %s and token = %s"


class Driver:
    """Starts runs, harms workers, answers at gates, and keeps count."""

    def __init__(
        self,
        dsn: str,
        supplier: Supplier,
        wanted: dict[str, int],
        seed: int,
        victims: int,
        least: int,
    ) -> None:
        self.dsn = dsn
        self.supplier = supplier
        self.wanted = wanted
        self.least = least
        self.random = random.Random(seed)
        self.fired: Counter[tuple[str, str]] = Counter()
        self.victims: dict[int, Victim] = {}
        self.healthy: list[int] = []
        self.goals: dict[str, dict[str, Any]] = {}
        self.said: dict[str, tuple[str, Any]] = {}
        self.meant: dict[str, tuple[str, Any]] = {}
        """Answers that counted, by gate: verdict and value."""
        self.hears: Counter[str] = Counter()
        """Answers that were refused, by SQLSTATE."""
        self.wrong: list[str] = []
        self.passed_on = 0
        """Runs that others held when their worker came back."""
        self.roles = [f"pgflow_loop_{secrets.token_hex(4)}_{n}" for n in range(victims)]
        self.news, self.told = os.pipe()

    # ------------------------------------------------------------ the whole

    def run(self, minutes: float) -> dict[str, Any]:
        """Harms until every point had its share, or the time is over, and lets everything come to
        its end.
        """
        began = told = time.monotonic()
        with psycopg.connect(servers.witness(self.dsn), autocommit=True) as conn:
            self._prepare(conn)
            try:
                while self._short() or sum(self.fired.values()) < self.least:
                    self._start_runs(conn)
                    self._arm_victims()
                    self._look_after(conn)
                    self._answer(conn)
                    time.sleep(0.03)
                    if time.monotonic() - told > 30:
                        told = time.monotonic()
                        done, left = self.fired.total(), len(self._short())
                        print(f"{done} harms; {left} points are short", file=sys.stderr, flush=True)
                    if time.monotonic() - began > 60 * minutes:
                        break
                for pid in list(self.victims):
                    self._bury(pid, conn)
                self._drain(conn)
            finally:
                for pid in [*self.victims, *self.healthy]:
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)
                for role in self.roles:
                    conn.execute(f"drop owned by {role}; drop role {role}")
            book = self.supplier.book()
            figures = judge(conn, book, self.said, self.goals)
            figures["wrong"] += [
                f"check(): {invariant}: {detail}"
                for invariant, detail in conn.execute("select * from pgflow.check()")
            ]
            figures["wrong"] += [
                f"the judge does not see {name}"
                for name, forged, told in forgeries(book, self.said)
                if judge(conn, forged, told, self.goals)["wrong"] == figures["wrong"]
            ]
        figures["wrong"] += self.wrong
        figures["wrong"] += [
            f"{point}: {self.fired[point, harm]} of {self.wanted[harm]} {harm}s: the run is void"
            for point, harm in self._short()
        ]
        return {
            "harm": {
                point: {harm: n for harm in HARMS if (n := self.fired[point, harm])}
                for point in (*POINTS, *PEOPLE)
            },
            **{
                f"{harm}s": sum(n for (_, h), n in self.fired.items() if h == harm)
                for harm in HARMS
            },
            "runs that a worker set apart has lost to others": self.passed_on,
            "refused_answers": dict(self.hears),
            **figures,
            "seconds": round(time.monotonic() - began),
        }

    def _short(self) -> list[tuple[str, str]]:
        """Points and harms of which there was too little."""
        return [
            (point, harm)
            for harm, least in self.wanted.items()
            for point in (*POINTS, *(PEOPLE if harm == "kill" else ()))
            if self.fired[point, harm] < least
        ]

    def _prepare(self, conn: psycopg.Connection[Any]) -> None:
        conn.execute("select pgflow.set_queue('default', jsonb_build_object('max_deaths', 1000))")
        conn.execute("select pgflow.set_pool('buying', '{\"usd\": 100000}', soft => null)")
        for role in self.roles:
            conn.execute(
                f"create role {role} login password 'loops' in role pgflow_worker, pgflow_client"
            )

    def _start_runs(self, conn: psycopg.Connection[Any]) -> None:
        for _ in range(OPEN_RUNS * len(self.roles) - _open_runs(conn)):
            key = f"shelf-{len(self.goals)}"
            goal = {
                "item": "boots",
                "pieces": self.random.randint(3, 9),
                "style": self.random.choice(("rustic", None)),
            }
            self.goals[key] = goal
            budget = self.random.choice((1, 1, 0.1))
            conn.execute(
                "select pgflow.start_run('restock', %s::json, %s, pool => 'buying', budget => %s)",
                (json.dumps({"goal": goal}), key, json.dumps({"usd": budget})),
            )

    # ------------------------------------------------------------ harm

    def _arm_victims(self) -> None:
        taken = {victim.slot for victim in self.victims.values()}
        short = [(p, h) for p, h in self._short() if p not in PEOPLE]
        under_way = Counter((v.point, v.harm) for v in self.victims.values() if not v.harmed_at)
        short = [s for s in short if self.fired[s] + under_way[s] < self.wanted[s[1]]]
        for slot in range(len(self.roles)):
            if slot in taken:
                continue
            point, harm = self.random.choice(
                short or [(self.random.choice(POINTS), self.random.choice(HARMS))]
            )
            pid = self._fork(slot, point, harm)
            self.victims[pid] = Victim(point, harm, slot)

    def _fork(self, slot: int | None, point: str = "", harm: str = "") -> int:
        pid = os.fork()
        if pid:
            return pid
        try:
            logging.disable(logging.CRITICAL)
            random.seed()
            dsn = self.dsn
            if slot is not None:
                dsn = make_conninfo(self.dsn, user=self.roles[slot], password="loops")
                _arm(point, random.randint(1, 2), harm, self.roles[slot], self.told)
            asyncio.run(_work(dsn))
        finally:
            os._exit(0)

    def _look_after(self, conn: psycopg.Connection[Any]) -> None:
        """Notices who came to harm, and lets them go on after a while."""
        while select.select([self.news], [], [], 0)[0]:
            for pid in map(int, os.read(self.news, 4096).split()):
                if pid in self.victims:
                    self._harmed(pid, conn)
        for pid, victim in list(self.victims.items()):
            gone, status = os.waitpid(pid, os.WNOHANG | os.WUNTRACED)
            if gone and os.WIFSTOPPED(status):
                self._harmed(pid, conn)
            elif gone:
                if victim.harm == "kill" and os.WIFSIGNALED(status):
                    self.fired[victim.point, "kill"] += 1
                elif not victim.harmed_at:
                    self.wrong.append(f"a worker ended by itself: {victim}, status {status}")
                del self.victims[pid]
                self._let_in(victim, conn)
                continue
            since = time.monotonic() - (victim.harmed_at or time.monotonic())
            if victim.is_apart and since > APART_SECONDS:
                victim.is_apart = False
                self.passed_on += sum(
                    not conn.execute(_HELD, held).fetchall() for held in victim.held
                )
                if victim.harm == "freeze":
                    os.kill(pid, signal.SIGCONT)
                self._let_in(victim, conn)
            elif since > APART_SECONDS + AFTERWARDS_SECONDS:
                self._bury(pid, conn)

    def _harmed(self, pid: int, conn: psycopg.Connection[Any]) -> None:
        victim = self.victims[pid]
        victim.held = tuple(conn.execute(_HELD_BY, (pid,)).fetchall())
        victim.harmed_at, victim.is_apart = time.monotonic(), True
        self.fired[victim.point, victim.harm] += 1

    def _let_in(self, victim: Victim, conn: psycopg.Connection[Any]) -> None:
        if victim.harm == "cut":
            conn.execute(f"alter role {self.roles[victim.slot]} connection limit -1")

    def _bury(self, pid: int, conn: psycopg.Connection[Any]) -> None:
        victim = self.victims.pop(pid)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        self._let_in(victim, conn)

    def _drain(self, conn: psycopg.Connection[Any]) -> None:
        self.healthy.append(self._fork(None))

        def is_over() -> bool:
            self._answer(conn)
            return not _open_runs(conn)

        try:
            servers.wait_until(is_over, "all runs end", DRAIN_SECONDS)
        except AssertionError:
            rows = conn.execute(
                "select key, status, reason from pgflow.runs where finished_at is null limit 5"
            ).fetchall()
            self.wrong.append(f"not over: {rows}")

    # ------------------------------------------------------------ people

    def _answer(self, conn: psycopg.Connection[Any]) -> None:
        rows = conn.execute(
            "select gate, key, name, request, payload_hash from pgflow.gates"
        ).fetchall()
        for gate, key, name, request, shown in rows:
            if gate in self.said:
                self.wrong.append(f"gate {gate} is open, and was answered {self.said[gate]}")
                continue
            if self.random.random() < 0.3:
                changed = request | {"pieces": request["pieces"] + 1}
                self._refused(conn, "PF023", gate, "approve", hash_of(conn, changed))
            # Who has died of it comes back with the same: what was done by hand is done.
            if gate not in self.meant:
                self.meant[gate] = self._verdict(gate, key, name, request)
            verdict, value = self.meant[gate]
            if not self._say(conn, gate, verdict, shown, value):
                continue
            self.said[gate] = (verdict, value)
            if self.random.random() < 0.3:
                self._refused(conn, "PF022", gate, "reject", shown)

    def _verdict(self, gate: str, key: str, name: str, request: Any) -> tuple[str, Any]:
        if name == "review":
            return self.random.choice((("approve", None), ("reject", None)))
        choice = self.random.random()
        if choice < 0.5:
            return "approve", None
        if choice < 0.7:
            return "approve", request | {"pieces": request["pieces"] - 1}
        if choice < 0.9:
            return "reject", None
        by_hand = _ask(
            act="order", key=f"by hand {gate}", run=key, pieces=request["pieces"], by="hand"
        )
        return "take_over", by_hand["number"]

    def _say(
        self, conn: psycopg.Connection[Any], gate: str, verdict: str, shown: str, value: Any
    ) -> bool:
        """Answers, perhaps as somebody who dies of it; False if that left the gate as it was."""
        short = [p for p in PEOPLE if self.fired[p, "kill"] < self.wanted["kill"]]
        if not short or self.random.random() < 0.5:
            chain = _answered(conn, gate, verdict, shown, value)
            conn.execute("select pgflow.wake(array[%s::bigint], tell => true)", (chain,))
            return True
        point = self.random.choice(short)
        pid = os.fork()
        if not pid:
            try:
                with psycopg.connect(self.dsn) as own:
                    _answered(own, gate, verdict, shown, value)
                    if point == PEOPLE[0]:
                        os.kill(os.getpid(), signal.SIGKILL)
                    own.commit()
                    os.kill(os.getpid(), signal.SIGKILL)
            finally:
                os._exit(1)
        _, status = os.waitpid(pid, 0)
        if not os.WIFSIGNALED(status):
            self.wrong.append(f"the answer {verdict} at {gate} was not taken")
            return False
        self.fired[point, "kill"] += 1
        return point == PEOPLE[1]

    def _refused(
        self, conn: psycopg.Connection[Any], state: str, gate: str, verdict: str, shown: str
    ) -> None:
        """Answers where that must not count."""
        try:
            _answered(conn, gate, verdict, shown, None)
        except psycopg.Error as error:
            self.hears[error.sqlstate or ""] += 1
            if error.sqlstate != state:
                self.wrong.append(f"an answer at {gate} met {error.sqlstate}, not {state}")
        else:
            self.wrong.append(f"an answer at {gate} counted that should meet {state}")


def _answered(
    conn: psycopg.Connection[Any], gate: str, verdict: str, shown: str, value: Any
) -> int:
    row = conn.execute(
        "select pgflow.answer_gate(%s, %s, %s, %s::json, by => 'ann', acting_as => '{buyers}')",
        (gate, verdict, shown, None if value is None else json.dumps(value)),
    ).fetchone()
    return int(row[0])  # type: ignore[index]


def hash_of(conn: psycopg.Connection[Any], request: Any) -> str:
    """Return the hash under which a gate would show this request."""
    row = conn.execute("select pgflow.hash_payload_(%s::json)", (json.dumps(request),)).fetchone()
    return str(row[0])  # type: ignore[index]


def _open_runs(conn: psycopg.Connection[Any]) -> int:
    row = conn.execute(
        "select (select count(*) from pgflow.ready) + (select count(*) from pgflow.lease) "
        "+ (select count(*) from pgflow.parked) + (select count(*) from pgflow.held)"
    ).fetchone()
    return int(row[0])  # type: ignore[index]


async def _work(dsn: str) -> None:
    app = AsyncApp(dsn, include=[loop.restock])
    options = WorkerOptions(concurrency=CONCURRENCY, poll_seconds=0.2, rhythm=RHYTHM)
    driver = os.getppid()
    async with app, app._work(options):
        while os.getppid() == driver:  # else there is nobody to end it
            await asyncio.sleep(1)


def judge(
    conn: psycopg.Connection[Any],
    book: list[dict[str, Any]],
    said: dict[str, tuple[str, Any]],
    goals: dict[str, dict[str, Any]],
) -> dict[str, Any]:
    """Compares the ledgers with the books of the supplier, of the model and of the people."""
    wrong: list[str] = []

    def rows(sql: str) -> list[Any]:
        return conn.execute(sql).fetchall()  # type: ignore[arg-type]

    def check(holds: object, what: str) -> None:
        if not holds:
            wrong.append(what)

    samples = {line["key"]: line for line in book if line["act"] == "model"}
    orders = {line["key"]: line for line in book if line["act"] == "order"}
    cancels = {line["key"]: line for line in book if line["act"] == "cancel"}

    # Calls of the model.
    decisions = rows(
        "select d.key, d.decision, d.name, d.value, d.evidence->>-1, c.usd, c.tokens, c.charges "
        "from pgflow.decisions d left join lateral (select sum(c.usd) as usd, "
        "sum(c.tokens) as tokens, count(*) as charges from pgflow.charges c "
        "where c.run_id = d.run_id and c.call = d.call) c on true"
    )
    check(len({d[1] for d in decisions}) == len(decisions), "a decision is recorded twice")
    check(len({d[4] for d in decisions}) == len(decisions), "an answer of the model counts twice")
    for run, key, _, value, answer, usd, tokens, charges in decisions:
        sample = samples.get(answer)
        if sample is None:
            wrong.append(f"decision {key} rests on an answer that the model never gave")
            continue
        number = value["pieces"] if isinstance(value, dict) else value
        check((sample["run"], sample["said"]) == (run, number), f"decision {key} is another's")
        check(
            (charges, usd, tokens) == (1, Decimal(sample["usd"]), sample["tokens"]),
            f"decision {key} cost {sample['usd']}, and was charged {charges} times: {usd}",
        )

    # The pool.
    ((admitted, charged, returned, reserved, overrun),) = rows(
        "select admitted, charged, returned, reserved, overrun from pgflow.spend "
        "where pool = 'buying' and unit = 'usd'"
    )
    ((admissions,),) = rows("select count(*) from pgflow.unit where kind = 'm'")
    spent = sum((Decimal(samples[d[4]]["usd"]) for d in decisions if d[4] in samples), Decimal(0))
    check(charged == spent, f"the pool was charged {charged}, and the answers cost {spent}")
    check(admitted == admissions * Decimal(str(loop.CALL.usd)), f"{admitted} of {admissions}")
    check(admitted == charged + returned, f"of {admitted} came back {returned}")
    check((reserved, overrun) == (0, 0), f"{reserved} is reserved, {overrun} overrun")
    check(admissions == len(decisions), f"{admissions} admissions, {len(decisions)} decisions")

    # Gates.
    gates = rows(
        "select g.key, g.payload, (select json_agg(a.payload::json) from pgflow.unit a "
        "where a.run_id = g.run_id and a.call = g.call and a.kind = 'G'), d.payload "
        "from pgflow.unit g left join pgflow.unit d on d.run_id = g.run_id and d.kind = 'd' "
        "and d.key = g.payload->>'decision' where g.kind = 'g'"
    )
    check({g[0] for g in gates} == set(said), "gates and answers are not the same")
    agreed: dict[str, Any] = {}
    for gate, asked, answers, decision in gates:
        if len(answers or ()) != 1 or gate not in said:
            wrong.append(f"gate {gate} has the answers {answers}, and was told {said.get(gate)}")
            continue
        (answer,) = answers
        verdict, value = said[gate]
        check(
            (answer["verdict"], answer.get("value")) == (verdict, value),
            f"gate {gate} took {answer}, and was told {verdict} {value}",
        )
        if isinstance(asked["request"], dict) and "cents" in asked["request"]:
            check(asked["request"] == decision["value"], f"gate {gate} asked for something else")
            agreed[asked["decision"]] = value if value is not None else asked["request"]
            if verdict != "approve":
                agreed[asked["decision"]] = None

    # Acts.
    effects = rows(
        "select key, effect, name, status, request, result, decision from pgflow.effects"
    )
    chosen = {d[1]: d[3] for d in decisions}
    done = [e for e in effects if e[2] == "place" and e[3] == "confirmed"]
    placed = {key for key, line in orders.items() if line.get("by") != "hand"}
    check({e[1] for e in done} == placed, "the ledger has other orders than the supplier")
    check(len({e[6] for e in done}) == len(done), "a decision has led to two orders")
    strange = {e[3] for e in effects} - {"confirmed", "failed"}
    check(not strange, f"effects are {strange}")
    for run, key, _, _, request, result, decision in done:
        line = orders.get(key)
        if line is None:
            continue
        wanted = agreed.get(decision, chosen[decision])
        check(request["order"] == wanted, f"order {key} is {request['order']}, not {wanted}")
        check(
            (line["run"], line["pieces"], line["number"])
            == (run, request["order"]["pieces"], result),
            f"order {key} is another at the supplier",
        )
    undone = {e[1] for e in effects if e[2] == "cancel" and e[3] == "confirmed"}
    check(undone == set(cancels), "the ledger has other cancellations than the supplier")
    numbers = [line["undoes"] for line in cancels.values()]
    check(len(set(numbers)) == len(numbers), "an order was cancelled twice")

    # Ends.
    ends: Counter[str] = Counter()
    outputs = rows("select key, status, output from pgflow.runs")
    check({o[0] for o in outputs} == set(goals), "there are other runs than were started")
    standing: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for line in orders.values():
        if line["number"] not in numbers:
            standing[line["run"]].append(line)
    for run, status, output in outputs:
        if status != "completed":
            wrong.append(f"run {run} is {status}")
            continue
        ends[f"{output['how']} {output['why']}".strip()] += 1
        pieces = sum(line["pieces"] for line in standing[run])
        if output["how"] == "good":
            check(pieces == goals[run]["pieces"], f"run {run} is good with {pieces} pieces")
        else:
            own = [line for line in standing[run] if line.get("by") != "hand"]
            check(not own, f"run {run} is taken back, and {own} stand")
    return {
        "runs": len(goals),
        "ends": dict(ends),
        "model_calls": {"made": len(samples), "recorded": len(decisions)},
        "acts": {"recorded": len(done) + len(undone), "done": len(placed) + len(cancels),
            "asked for again under the same key": sum(line["act"] == "again" for line in book)},
        "usd": {"admitted": str(admitted), "charged": str(charged), "returned": str(returned),
            "reserved": str(reserved)},
        "gates": {"asked": len(gates), "answered": len(said)},
        "wrong": wrong,
    }  # fmt: skip


def forgeries(
    book: list[dict[str, Any]], said: dict[str, tuple[str, Any]]
) -> Iterator[tuple[str, list[dict[str, Any]], dict[str, tuple[str, Any]]]]:
    """Yield books in which one thing is not as it was: the judge must see each."""

    def of(act: str) -> int:
        return next(
            i for i, line in enumerate(book) if line["act"] == act and line.get("by") != "hand"
        )

    def changed(at: int, **new: Any) -> list[dict[str, Any]]:
        return [*book[:at], book[at] | new, *book[at + 1 :]]

    order, cancel = of("order"), of("cancel")
    dear = [line | {"usd": "0.03999"} if line["act"] == "model" else line for line in book]
    unasked = [line for line in book if line["act"] != "model"]
    yield "an order that was not done", [*book[:order], *book[order + 1 :]], said
    yield "an order that was done twice", [*book, book[order] | {"key": "another"}], said
    yield "an order of another size", changed(order, pieces=99), said
    yield "a cancellation that was not done", [*book[:cancel], *book[cancel + 1 :]], said
    yield "answers of the model at another price", dear, said
    yield "answers that the model never gave", unasked, said
    gate = next(iter(said))
    yield "another verdict", book, said | {gate: ("escalate", None)}
    yield "an answer that was lost", book, said | {"no gate": ("approve", None)}


def play(
    dsn: str, wanted: dict[str, int], seed: int, victims: int, least: int, minutes: float
) -> dict[str, Any]:
    """Plays it in a database with the schema; returns the figures."""
    os.environ["LOOPS_DSN"] = dsn
    with tempfile.TemporaryDirectory(prefix="pgflow-loops-") as folder:
        supplier = Supplier(Path(folder))
        os.environ["SUPPLIER"] = supplier.address
        try:
            return Driver(dsn, supplier, wanted, seed, victims, least).run(minutes)
        finally:
            supplier.close()


def main() -> int:
    """Plays it, and prints the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("dsn", help="server, as a superuser")
    parser.add_argument("--kills", type=int, default=100, help="at each point")
    parser.add_argument("--freezes", type=int, default=10, help="at each point")
    parser.add_argument("--cuts", type=int, default=10, help="at each point")
    parser.add_argument("--harms", type=int, default=0, help="in all, at points by chance")
    parser.add_argument("--victims", type=int, default=5, help="workers at a time")
    parser.add_argument("--minutes", type=float, default=120, help="no harm after so long")
    parser.add_argument("--here", action="store_true", help="in this database, with the schema")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    equip()
    wanted = {"kill": options.kills, "freeze": options.freezes, "cut": options.cuts}
    name = None if options.here else servers.create_database(options.dsn)
    try:
        dsn = options.dsn if name is None else servers.dsn_of(options.dsn, name)
        if name is not None:
            servers.install_schema(dsn)
        figures = play(dsn, wanted, options.seed, options.victims, options.harms, options.minutes)
    finally:
        if name is not None:
            servers.drop_database(options.dsn, name)
    print(json.dumps(figures, indent=2, default=str))
    for line in figures["wrong"][:40]:
        print(f"FAILED {line}")
    return 1 if figures["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
