"""Kill -9 around effects: `python -m tests.effectcrashes DSN [--kills N] [--seed S] [--control]`.

A witness - a process of its own, with a book that it syncs to disk before it answers - counts what
reaches the outside. Workers die before an intent, after it, in the call, after the reply, after the
outcome, while they settle, and at the same five points of each single compensation. Half of the
sagas that fail have continued as new on the way. At the end every effect must have one key, what
has no key must have reached the witness once, what a failed run did must be undone, and the ledger
must say what the book says. `--control` runs the same workflow with steps that know nothing of
intents: the same judge must find doubles.

An effect without a key is safe as long as nothing of an attempt arrives after `settle_after`. So no
worker is taken for dead because the machine is slow: the driver, who buries the victims, has them
reaped. The witness answers in the order in which it was called.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import socket
import sys
import tempfile
from collections import Counter, defaultdict
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg

import pgflow
from pgflow import Retries, step, workflow
from pgflow._worker.bodies import Bodies
from pgflow._worker.executor import CommitResults, Executor
from pgflow._worker.options import Rhythm
from pgflow.effects import Absent, Confirmed, StillUnknown, effect

sys.path.insert(0, str(Path(__file__).parent / "kits"))
sys.path.insert(0, str(Path(__file__).parent))

from collections.abc import Callable

import crashes
import servers
from crashes import Driver, _Point, _reach
from evidence import Evidence, Findings

CHARGES = 3
"""Effects of a saga that must be taken back if it fails."""

PLACES = ("before intent", "after intent", "in the call", "after the reply", "after the outcome")
COMPENSATIONS = tuple(
    f"compensation {n} of {CHARGES}: {place}" for n in range(1, CHARGES + 1) for place in PLACES
)
POINTS = (*PLACES, "in settle", *COMPENSATIONS)
ASKING = Retries(
    max_attempts=1000,
    first_delay=timedelta(seconds=0.1),
    backoff=1.5,
    max_delay=timedelta(seconds=1),
)
LOST = 0.2
"""Share of the acts whose reply is lost though nobody dies."""

RHYTHM = Rhythm(beat=0.2, look=0.05, dead_after=3600.0)
ATTEMPT = timedelta(seconds=1)
SETTLED_AFTER = timedelta(seconds=1.5)


class Witness:
    """The counterparty: a process that writes what it is asked into a book, on disk before it
    answers.
    """

    def __init__(self, folder: Path) -> None:
        self.address = str(folder / "witness")
        self.book = folder / "book"
        self.book.touch()
        self.pid = os.fork()
        if not self.pid:
            try:
                self._serve()
            finally:
                os._exit(0)

    def _serve(self) -> None:
        """Answers one after the other."""
        known: set[tuple[str, str]] = set()
        book = os.open(self.book, os.O_WRONLY | os.O_APPEND)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(self.address)
            listener.listen(128)
            while True:
                caller, _ = listener.accept()
                with caller, contextlib.suppress(ConnectionError, json.JSONDecodeError):
                    request = json.loads(caller.makefile().readline())
                    act, name, key = request
                    if act != "find":
                        os.write(book, (json.dumps(request) + "\n").encode())
                        os.fsync(book)
                        known.add((name, key))
                    caller.sendall(json.dumps((name, key) in known).encode() + b"\n")

    def lines(self) -> list[tuple[str, str, str]]:
        """Return the entries of the book: act, name, key."""
        return [tuple(json.loads(line)) for line in self.book.read_text().splitlines()]

    def close(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


async def ask(act: str, name: str, key: str, lost: Callable[[], None] = lambda: None) -> bool:
    """Asks the witness; `lost` runs between the request and the reply."""
    while True:
        try:
            reader, writer = await asyncio.open_unix_connection(os.environ["WITNESS"])
            break
        except (ConnectionError, FileNotFoundError):
            await asyncio.sleep(0.02)
    try:
        writer.write(json.dumps([act, name, key]).encode() + b"\n")
        await writer.drain()
        answer = await reader.readline()
        lost()
        attempt = pgflow.run_info().step_attempt
        if act == "do" and random.Random(f"{name} {key} {attempt}").random() < LOST:
            raise ConnectionResetError(f"no reply to {name}")
        return bool(json.loads(answer))
    finally:
        writer.close()


class Refused(Exception):
    """Refusal that makes half of the runs fail."""


@effect(risk="compensable", timeout=ATTEMPT, settle_after=SETTLED_AFTER, settle_retries=ASKING)
async def charge(run: str, n: int) -> str:
    del n
    key = pgflow.idempotency_key()
    await ask("do", f"charge {run}", key, lambda: _reach("in the call"))
    return key


@charge.settle
async def _(run: str, n: int) -> Confirmed[str] | Absent | StillUnknown:
    del n
    key = pgflow.idempotency_key()
    _reach("in settle")
    return Confirmed(key) if await ask("find", f"charge {run}", key) else Absent()


@charge.compensate
async def refund(key: str, run: str, n: int) -> int:
    await ask(
        "undo",
        f"charge {run}",
        f"{key} {pgflow.idempotency_key()}",
        lambda: _reach(_of_refund(n, "in the call")),
    )
    return n


def _of_refund(n: int, place: str) -> str:
    """A point of the refund of the n-th charge: the last one is the first that is taken back."""
    return f"compensation {CHARGES + 1 - n} of {CHARGES}: {place}"


@effect(
    risk="irreversible",
    keyed=False,
    timeout=ATTEMPT,
    settle_after=SETTLED_AFTER,
    settle_retries=ASKING,
)
async def post(run: str) -> str:
    """Post without a key for the counterparty: twice done is done twice."""
    await ask("do", f"post {run}", "", lambda: _reach("in the call"))
    return run


@post.settle
async def _(run: str) -> Confirmed[str] | Absent | StillUnknown:
    _reach("in settle")
    return Confirmed(run) if await ask("find", f"post {run}", "") else Absent()


@workflow
async def deal(run: str, fails: bool, carries: bool = False, begin: int = 1) -> str:
    if begin == 1:
        await post(run)
    async with pgflow.effects.saga():
        for n in range(begin, CHARGES + 1):
            if carries and n == CHARGES and begin == 1:
                pgflow.continue_as_new(run, fails, carries, n)
            await charge(run, n)
        if fails:
            raise Refused(run)
    return run


@step(retries=10)
async def blind_post(run: str) -> str:
    await ask("do", f"post {run}", "", lambda: _reach("in the call"))
    return run


@workflow
async def blind_deal(run: str, fails: bool, carries: bool = False) -> str:
    """The control: the same without intents."""
    del fails, carries
    await blind_post(run)
    return run


_ARMS = {
    "before intent": lambda: _arm_intent(), "after intent": lambda: _arm_start(), "after the reply": lambda: _arm_reply(),
    "after the outcome": lambda: _arm_outcome(),
}  # fmt: skip


def _arm(name: str, nth: int) -> None:
    _Point.name, _Point.remaining = name, nth
    _ARMS.get(name.rpartition(": ")[2], lambda: None)()


def _reach_at(place: str, name: str, n: Any) -> None:
    """An effect has come to a place: a point of all effects that are no compensation, or of this
    one.
    """
    _reach(_of_refund(n, place) if name == "refund" else place)


def _arm_intent() -> None:
    original = Executor.execute

    async def execute(
        self: Executor, wire: Any, items: list[Any], server: Any, *, careful: bool
    ) -> Any:
        for _, flush in items:
            for intent in (flush.question or {}).get("effects", ()):
                _reach_at("before intent", intent["name"], json.loads(intent["request"]).get("n"))
        return await original(self, wire, items, server, careful=careful)

    Executor.execute = execute  # type: ignore[method-assign]


def _arm_start() -> None:
    original = Bodies.start

    def start(self: Bodies, execution: Any, call: Any) -> None:
        if call.spec.effect == "e":
            _reach_at("after intent", call.name, call.args[-1])
        original(self, execution, call)

    Bodies.start = start  # type: ignore[method-assign]


def _arm_reply() -> None:
    original = Bodies.returned

    def returned(self: Bodies, execution: Any, result: Any) -> None:
        if result.call.spec.effect == "e":
            _reach_at("after the reply", result.call.name, result.call.args[-1])
        original(self, execution, result)

    Bodies.returned = returned  # type: ignore[method-assign]


def _arm_outcome() -> None:
    original = CommitResults.apply

    def apply(self: CommitResults, items: list[Any], answer: Any, server: Any) -> Any:
        for _, flush in items:
            for row in flush.rows:
                if row.kind == "C":
                    _reach_at("after the outcome", row.name, json.loads(row.payload))
        return original(self, items, answer, server)

    CommitResults.apply = apply  # type: ignore[method-assign]


def fork_worker(dsn: str, point: str | None, nth: int) -> int:
    """Forks a worker; returns its pid."""
    return crashes.fork(lambda: _arm(point or "", nth), dsn, [deal, blind_deal], RHYTHM)


class EffectDriver(Driver):
    """Starts runs, keeps workers going, answers for what only a person can say, and judges by the
    witness's book.
    """

    points = POINTS
    fork = staticmethod(fork_worker)

    def __init__(
        self, dsn: str, witness: Witness, kills: int, seed: int, *, control: bool = False
    ) -> None:
        if control:
            self.points = ("in the call",)
        super().__init__(dsn, kills, seed)
        self.witness = witness
        self.workflow = "blind_deal" if control else "deal"
        self.answered = 0

    def _prepare(self, conn: psycopg.Connection[Any]) -> None:
        conn.execute("select pgflow.set_queue('default', jsonb_build_object('max_deaths', 1000))")

    def _start_runs(self, conn: psycopg.Connection[Any]) -> None:
        open_runs = conn.execute(
            "select count(*) from pgflow.runs where status not in ('completed', 'failed', "
            "'cancelled')"
        ).fetchone()[0]  # type: ignore[index]
        for _ in range(max(0, 16 - open_runs)):
            key = f"deal-{len(self.keys)}"
            self.keys.append(key)
            asked = {"run": key, "fails": len(self.keys) % 3 > 0, "carries": len(self.keys) % 3 > 1}
            conn.execute(
                "select pgflow.start_run(%s, %s::json, %s)", (self.workflow, json.dumps(asked), key)
            )

    def _bury(self, conn: psycopg.Connection[Any]) -> None:
        alive = set(self.victims)
        super()._bury(conn)
        for pid in alive - set(self.victims):
            conn.execute(
                "select pgflow.reap_worker(worker_id, beat) from pgflow.worker where pid = %s",
                (pid,),
            )

    def _attend(self, conn: psycopg.Connection[Any]) -> None:
        """The person: of what has no key and is unknown, looks into the book, once nobody can be at
        it any more.
        """
        rows = conn.execute(
            "select o.effect, o.key from pgflow.obligations o join pgflow.held h on h.run_id = "
            "o.run_id "
            "where h.reason = 'effect' and o.state = 'unknown'"
        ).fetchall()
        if not rows:
            return
        booked = {name for _, name, _ in self.witness.lines()}
        for effect_key, run in rows:
            is_there = f"post {run}" in booked
            with contextlib.suppress(psycopg.errors.RaiseException, psycopg.Error):
                conn.execute(
                    "select pgflow.settle_effect(%s, %s, %s::json, 'the book says so', 'clerk')",
                    (
                        effect_key,
                        "confirmed" if is_there else "absent",
                        json.dumps(run if is_there else None),
                    ),
                )
                conn.execute("select pgflow.wake()")
                self.answered += 1

    def _judge(self, conn: psycopg.Connection[Any]) -> dict[str, Any]:
        lines = self.witness.lines()
        posts = Counter(name for act, name, _ in lines if name.startswith("post") and act == "do")
        charged: defaultdict[str, set[str]] = defaultdict(set)
        undone: defaultdict[str, set[str]] = defaultdict(set)
        undo_keys: defaultdict[str, set[str]] = defaultdict(set)
        for act, name, key in lines:
            if name.startswith("charge"):
                run = name.removeprefix("charge ")
                if act == "do":
                    charged[run].add(key)
                else:
                    undone[run].add(key.split()[0])
                    undo_keys[key.split()[0]].add(key.split()[1])
        failed = {
            key
            for (key,) in conn.execute(
                "select key from pgflow.runs where status = 'failed'"
            ).fetchall()
        }
        ended = conn.execute(
            "select count(*) from pgflow.runs where status in ('completed', 'failed')"
        ).fetchone()[0]  # type: ignore[index]
        said = conn.execute(
            "select count(*) from pgflow.effects where status <> 'confirmed'"
        ).fetchone()[0]  # type: ignore[index]
        return {
            "kills": dict(self.fired),
            "runs": len(self.keys),
            "answered_by_a_person": self.answered,
            "done": len(lines),
            "lost": sum(posts[f"post {key}"] == 0 for key in self.keys),
            "doubled": sum(n - 1 for n in posts.values()),
            "keys_too_many": sum(len(keys) > CHARGES for keys in charged.values())
            + sum(len(keys) > 1 for keys in undo_keys.values()),
            "failed": len(failed),
            "failed_after_continuing": conn.execute(
                "select count(*) from pgflow.runs where status = 'failed' and generation > 1"
            ).fetchone()[0],  # type: ignore[index]
            "not_undone": sum(charged[run] != undone[run] for run in failed),
            "undone_for_nothing": sum(bool(undone[run]) for run in self.keys if run not in failed),
            "not_ended": len(self.keys) - ended,
            "not_confirmed": said,
            "owed": conn.execute("select count(*) from pgflow.owed").fetchone()[0],  # type: ignore[index]
            "violations": conn.execute("select invariant, detail from pgflow.check()").fetchall(),
        }


WRONG = (
    "lost", "doubled", "keys_too_many", "not_undone", "undone_for_nothing", "not_ended",
    "not_confirmed", "owed",
)  # fmt: skip


def verdict(figures: dict[str, Any]) -> list[str]:
    """Return complaints; none if nothing is wrong."""
    wrong = [f"{name}: {figures[name]}" for name in WRONG if figures[name]]
    return wrong + ([f"check(): {figures['violations'][:3]}"] if figures["violations"] else [])


def campaign(dsn: str, kills: int, seed: int, *, control: bool = False) -> dict[str, Any]:
    """Runs it in a database with the schema; answers the figures."""
    with tempfile.TemporaryDirectory(prefix="pgflow-witness-") as folder:
        witness = Witness(Path(folder))
        os.environ["WITNESS"] = witness.address
        try:
            return EffectDriver(dsn, witness, kills, seed, control=control).run()
        finally:
            witness.close()


def prove(server_dsn: str, amount: int, seed: int) -> Findings:
    """Kills workers around effects, at each point so many times."""
    name = servers.create_database(server_dsn)
    dsn = servers.dsn_of(server_dsn, name)
    servers.install_schema(dsn)
    try:
        figures = campaign(dsn, amount, seed)
    finally:
        servers.drop_database(server_dsn, name)
    at = f"kill -9 at {len(POINTS)} points"
    return Findings(
        "effects",
        seed,
        [
            Evidence("G11", f"{at} around effects without a key", figures["runs"], figures["lost"],
                figures["doubled"], tuple(verdict(figures))),
            Evidence("G12", f"{at} around effects with a key", CHARGES * figures["runs"],
                doubled=figures["keys_too_many"]),
            Evidence("G35", f"{at} of sagas that fail", 0, figures["not_undone"],
                figures["undone_for_nothing"], shared=figures["failed"]),
            Evidence("G45", f"{at}: ledger against the witness's book", 0,
                figures["owed"] + figures["not_confirmed"], shared=figures["done"]),
        ],
        {f"kill {point}": (figures["kills"].get(point, 0), amount) for point in POINTS},
    )  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("dsn")
    parser.add_argument("--kills", type=int, default=100, help="times that each point must fire")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--control",
        action="store_true",
        help="steps without intents instead of effects: must be found out",
    )
    options = parser.parse_args()
    figures = campaign(options.dsn, options.kills, options.seed, control=options.control)
    print(json.dumps(figures, indent=2, default=str))
    wrong = verdict(figures)
    for line in wrong:
        print(f"FAILED {line}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
