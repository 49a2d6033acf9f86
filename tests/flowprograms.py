"""Random workflows in SQL: grown from a seed, worked on by sessions that are killed, and computed by
a plain interpreter to compare.

Each step writes a row of its name and of what it sees. So the rows of a run say which steps have
happened, how often, in which order and with which values; the journal says so too, and must agree. A
program has loops, conditions, cases, waits, gates, locks that runs contend for, events, charges,
children, fan-outs, notes, steps that fail at first or for good, compensations, blocks with handlers
and variables of their own, early returns, steps with time-outs. Nothing in it depends on a race.

The seed draws the programs and the harm: backends are killed (`kill -9`, which brings the whole
server down, or terminated) at moments that are counted in units of the journal. With `--control`,
jobs that commit their effect and the record of it apart are killed as often, and must double.

With `--again N`, N of the programs are forked and rewound at every unit of their journal, and must
come to the same end by the same acts.

`python -m tests.flowprograms DSN [--programs N] [--kills N] [--sessions N] [--workers N] [--seed S] [--again N] [--control]`
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg

sys.path.insert(0, str(Path(__file__).parent / "kits"))

import servers  # noqa: E402
from evidence import Evidence, Findings  # noqa: E402

Connection = psycopg.Connection[Any]
LOT, KILLS = 100, 20
"""Programs in one database of a proof, and how often a session is ended under them."""
NAMES = ("a", "b", "c")

SETUP = """
set client_min_messages = error;
create table if not exists trace (n bigint generated always as identity, key text, what text);
create sequence if not exists flaky;
select pgflow.set_queue('default', jsonb_build_object('max_deaths', 1000));
select pgflow.create_workflow('leaf(n int)', $$
declare x int;
begin
  l1: insert into trace (key, what) values (run->>'key', 'l1');
  undo l1: insert into trace (key, what) values (run->>'key', 'undo l1');
  l2: x := n * 2 + 1; insert into trace (key, what) values (run->>'key', 'l2');
  if n % 7 = 3 then
    raise exception 'leaf';
  end if;
  return x;
end $$);
"""


CONDITIONS = ("", "when division_by_zero then raise; when others then", "when raise_exception then")
"""Heads of handlers, each of which takes the errors of these programs."""


WAITED: dict[str, list[tuple[str, str | None]]] = {
    "wait": [("wait_timed_out", "nothing")],
    "event": [("wait_timed_out", "event")],
    "ask": [("gate_asked", "gate"), ("gate_answered", "gate")],
    "sleep": [("timer_fired", "sleep")],
}
"""What the journal says of a wait that is over."""


class Boom(Exception):
    """A step that fails for good."""


class Exit(Exception):
    """Leaves a loop."""


class Continue(Exception):
    """Begins the next round of a loop."""


class Return(Exception):
    """Ends the run."""


@dataclass
class Program:
    """A program as text, and what is needed to compute it."""

    seed: str
    body: list[Any] = field(default_factory=list)
    handler: list[Any] | None = None
    loops: list[str] = field(default_factory=list)
    condition: str = ""

    @property
    def text(self) -> str:
        declared = "".join(f"  {name} int := {n};\n" for n, name in enumerate(NAMES))
        declared += "  v jsonb;\n" + "".join(f"  {name} int;\n" for name in self.loops)
        handler = (
            "" if self.handler is None else f"exception {self.condition}\n{show(self.handler)}"
        )
        return f"declare\n{declared}begin\n{show(self.body)}  return a * 100 + b * 10 + c;\n{handler}end"


class Grower:
    """Grows one program."""

    def __init__(self, seed: str, *, has_python: bool = False) -> None:
        self.random = random.Random(seed)
        self.program = Program(seed)
        self.leaves = ("leaf", "pyleaf") if has_python else ("leaf",)
        self.count = 0
        self.in_lock = False

    def grow(self) -> Program:
        self.program.body = self.block(3, in_loop=False)
        if self.random.random() < 0.3:
            self.program.handler = self.block(1, in_loop=False, may_fail=False)
            self.program.condition = self.random.choice(CONDITIONS)
        return self.program

    def name(self, kind: str) -> str:
        self.count += 1
        return f"{kind}{self.count}"

    def block(self, depth: int, *, in_loop: bool, may_fail: bool = True) -> list[Any]:
        return [
            self.part(depth, in_loop=in_loop, may_fail=may_fail)
            for _ in range(self.random.randint(1, 4))
        ]

    def part(self, depth: int, *, in_loop: bool, may_fail: bool) -> Any:
        draw, variable = self.random, self.random.choice(NAMES)
        kinds = ["step"] * 6 + ["flaky", "sleep", "wait", "run", "each"]
        kinds += ["event", "ask", "spend", "publish", "note"]
        kinds += ["if", "for", "rows", "while"] * 2 if depth else []
        kinds += ["case", "scope"] if depth else []
        # One lock at a time: runs that wait for each other are a race.
        kinds += ["lock"] * 2 if depth and not self.in_lock else []
        kinds += ["try"] * 3 if depth else []
        kinds += ["leave"] if in_loop else []
        kinds += ["boom"] if may_fail and draw.random() < 0.3 else []
        kinds += ["return"] if depth < 3 else []
        kind = draw.choice(kinds)
        if kind in ("step", "flaky"):
            return (kind, self.name("s"), variable, draw.randint(1, 9), draw.random() < 0.3)
        if kind in ("sleep", "wait", "event", "ask", "spend", "publish"):
            return (kind, variable)
        if kind == "note":
            return (kind, variable, draw.choice(["set", "emit"]))
        if kind == "return":
            return (kind, variable, draw.randint(3, 9))
        if kind == "try":
            inner = self.block(depth - 1, in_loop=in_loop)
            handler = self.block(depth - 1, in_loop=in_loop, may_fail=may_fail)
            return (kind, draw.choice(CONDITIONS), inner, handler, draw.random() < 0.2)
        if kind == "lock":
            self.in_lock = True
            inner = self.block(depth - 1, in_loop=True, may_fail=may_fail)
            self.in_lock = False
            return (kind, draw.choice("xy"), inner)
        if kind in ("run", "each"):
            leaf = draw.choice(self.leaves)
            return (kind, variable, draw.randint(1, 4), may_fail and draw.random() < 0.5, leaf)
        if kind == "boom":
            return ("boom", self.name("x"), variable, draw.randint(2, 4), draw.randint(0, 2))
        if kind == "leave":
            return ("leave", draw.choice(["exit", "continue"]), variable, draw.randint(2, 5))
        is_round = kind in ("for", "rows", "while")
        inner = self.block(depth - 1, in_loop=in_loop or is_round, may_fail=may_fail)
        if kind == "scope":
            return (kind, self.name("d"), variable, inner)
        if kind in ("if", "case"):
            others = self.block(depth - 1, in_loop=in_loop, may_fail=may_fail)
            return (kind, variable, draw.randint(2, 4), inner, others)
        loop = self.name("i")
        self.program.loops.append(loop)
        return (kind, loop, variable, draw.randint(0, 3), inner)


def show(block: list[Any]) -> str:
    return "".join(show_part(*part) for part in block)


def row(name: str) -> str:
    return f"insert into trace (key, what) values (run->>'key', '{name}' || concat_ws(',', a, b, c));\n"


def show_part(kind: str, *said: Any) -> str:  # noqa: PLR0911 - one for each kind
    match kind, said:
        case "step" | "flaky", (name, variable, number, has_undo):
            retry = " timeout '1 h' retry 99 every '0 s'" if kind == "flaky" else ""
            fails = "if nextval('flaky') % 2 = 0 then raise exception 'flaky'; end if;\n"
            undo = f"undo {name}: {row('undo ' + name)}" if has_undo else ""
            return (
                f"{name}{retry}: {variable} := ({variable} * 3 + {number}) % 17;\n{row(name)}"
                f"{fails if retry else ''}{undo}"
            )
        case "sleep", _:
            return "sleep '0.001 s';\n"
        case "wait", (variable,):
            return f"wait for nothing timeout '0 s' into {variable};\nif timed_out then {variable} := 5; end if;\n"
        case "event", (variable,):
            return f"wait for event 'nothing' timeout '0 s' into v;\nif timed_out then {variable} := 6; end if;\n"
        case "ask", (variable,):
            return (
                f"ask gate(n => {variable}) of 'ann' timeout '0 s' into v;\n"
                f"{variable} := length(v->>'verdict');\n"
            )
        case "spend", (variable,):
            return f"spend jsonb_build_object('usd', {variable});\n"
        case "publish", (variable,):
            return f"publish {variable} to 'news';\n"
        case "try", (condition, inner, handler, raises):
            again = "raise;\n" if raises else ""
            return f"begin\n{show(inner)}exception {condition}\n{show(handler)}{again}end;\n"
        case "lock", (key, inner):
            return f"lock '{key}' loop\n{show(inner)}end loop;\n"
        case "run", (variable, number, may_fail, leaf):
            spare = "" if may_fail else " * 7"
            return f"run {leaf}(n => {number}{spare} + {variable} * {7 if not may_fail else 1}) into {variable};\n{variable} := {variable} % 17;\n"
        case "each", (variable, number, may_fail, leaf):
            go_on = "" if may_fail else " on failure continue"
            return (
                f"for each r in select g from generate_series(1, {number}) g run {leaf}(n => r.g + {variable}) at most 2 into v{go_on};\n"
                f"{variable} := (select count(*) filter (where jsonb_typeof(e) = 'number') + coalesce(sum(e::int) filter"
                f" (where jsonb_typeof(e) = 'number'), 0) from jsonb_array_elements(v) e) % 17;\n"
            )
        case "note", (variable, word):
            return (
                f"emit {variable} to notes;\n"
                if word == "emit"
                else f"set state jsonb_build_object('at', {variable});\n"
            )
        case "return", (variable, number):
            return f"if {variable} % {number} = 2 then\nreturn {variable};\nend if;\n"
        case "scope", (name, variable, inner):
            return (
                f"declare {name} int := {variable} * 2;\nbegin\n{show(inner)}"
                f"{name}s: {variable} := {name} % 17;\n{row(name + 's')}end;\n"
            )
        case "case", (variable, number, inner, others):
            return (
                f"case {variable} % {number}\nwhen 0 then\n{show(inner)}when 1, 2 then\n{show(others)}"
                "else\nsleep '0 s';\nend case;\n"
            )
        case "boom", (name, variable, number, tries):
            retry = f" retry {tries} every '0 s'" if tries else ""
            return f"{name}{retry}: {row(name)}if {variable} % {number} = 0 then raise exception '{name}'; end if;\n"
        case "leave", (word, variable, number):
            return f"{word} when {variable} % {number} = 1;\n"
        case "if", (variable, number, inner, others):
            return f"if {variable} % {number} = 0 then\n{show(inner)}else\n{show(others)}end if;\n"
        case "for", (loop, _, number, inner):
            return f"for {loop} in 1 .. {number} loop\n{show(inner)}end loop;\n"
        case "rows", (loop, _, number, inner):
            return f"for {loop} in select g from generate_series(1, {number}) g loop\n{show(inner)}end loop;\n"
        case "while", (loop, _, number, inner):
            return f"{loop} := 0;\nwhile {loop} < {number} loop\n{loop} := {loop} + 1;\n{show(inner)}end loop;\n"
    raise AssertionError(kind)


class Interpreter:
    """Computes a program: the rows that its steps write, and how it ends."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.vars: dict[str, int | None] = dict(zip(NAMES, range(3), strict=True))
        self.trace: list[str] = []
        self.journal: list[tuple[str, str | None]] = []
        self.undo: list[tuple[str, dict[str, int | None]]] = []
        self.spent = 0
        self.published = 0

    def run(self) -> tuple[str, Any]:
        """Return the status and the output, or the message of the error."""
        try:
            try:
                self.play(self.program.body)
            except Boom as error:
                self.take_back()
                if self.program.handler is None:
                    return "failed", str(error)
                self.play(self.program.handler)
                return "completed", None
        except Return as value:
            return "completed", value.args[0]
        except Boom as error:
            self.take_back()
            return "failed", str(error)
        return "completed", self.value("a") * 100 + self.value("b") * 10 + self.value("c")

    def value(self, name: str) -> int:
        value = self.vars[name]
        assert value is not None
        return value

    def take_back(self, upto: int = 0) -> None:
        while len(self.undo) > upto:
            name, then = self.undo.pop()
            self.write("undo " + name, then)

    def write(self, name: str, seen: dict[str, int | None] | None = None) -> None:
        self.trace.append(name + ",".join(str((seen or self.vars)[n]) for n in NAMES))
        self.journal.append(("step_completed", name))

    def play(self, block: list[Any]) -> None:
        for part in block:
            self.play_part(*part)

    def leaf(self, n: int) -> int:
        if n % 7 == 3:
            raise Boom("leaf")
        return n * 2 + 1

    def rounds(self, number: int, inner: list[Any]) -> None:
        with contextlib.suppress(Exit):
            for _ in range(number):
                with contextlib.suppress(Continue):
                    self.play(inner)

    def play_part(self, kind: str, *said: Any) -> None:
        match kind, said:
            case "step" | "flaky", (name, variable, number, has_undo):
                self.vars[variable] = (self.value(variable) * 3 + number) % 17
                self.write(name)
                if has_undo:
                    self.undo.append((name, dict(self.vars)))
            case "wait" | "event" | "ask", (variable,):
                self.vars[variable] = {"wait": 5, "event": 6, "ask": len("expire")}[kind]
                self.journal += WAITED[kind]
            case "sleep", _:
                self.journal += WAITED[kind]
            case "spend", (variable,):
                self.spent += self.value(variable)
                self.journal.append(("budget_charged", None))
            case "note", (_, word):
                self.journal.append(("emitted", "notes") if word == "emit" else ("state_set", None))
            case "return", (variable, number):
                if self.value(variable) % number == 2:
                    raise Return(self.value(variable))
            case "scope", (name, variable, inner):
                kept = self.value(variable) * 2
                self.play(inner)
                self.vars[variable] = kept % 17
                self.write(name + "s")
            case "publish", (variable,):
                self.published += 1
            case "try", (_, inner, handler, raises):
                before = len(self.undo)
                try:
                    self.play(inner)
                except Boom as error:
                    self.take_back(before)
                    self.play(handler)
                    if raises:
                        self.journal.append(("step_failed", "raise"))
                        raise Boom(str(error)) from None
            case "lock", (key, inner):
                self.journal.append(("lock_won", key))
                self.rounds(1, inner)
            case "run", (variable, number, may_fail, _):
                n = (
                    number + self.value(variable)
                    if may_fail
                    else 7 * (number + self.value(variable))
                )
                self.vars[variable] = self.leaf(n) % 17
            case "each", (variable, number, may_fail, leaf):
                self.journal.append(("step_completed", f"for each {leaf}"))
                results = []
                for g in range(1, number + 1):
                    try:
                        results.append(self.leaf(g + self.value(variable)))
                    except Boom:
                        if may_fail:
                            raise
                self.vars[variable] = (len(results) + sum(results)) % 17
            case "boom", (name, variable, number, _):
                if self.value(variable) % number == 0:
                    self.journal.append(("step_failed", name))
                    raise Boom(name)
                self.write(name)
            case "leave", (word, variable, number):
                if self.value(variable) % number == 1:
                    raise Exit if word == "exit" else Continue
            case "if", (variable, number, inner, others):
                self.play(inner if self.value(variable) % number == 0 else others)
            case "case", (variable, number, inner, others):
                rest = self.value(variable) % number
                if rest < 3:
                    self.play(others if rest else inner)
                else:
                    self.journal += WAITED["sleep"]
            case "for" | "rows" | "while", (_, _, number, inner):
                self.rounds(number, inner)


def patiently(dsn: str) -> Connection:
    """Connect, also to a server that is just recovering."""
    give_up = time.monotonic() + servers.HANG_SECONDS
    while True:
        try:
            return psycopg.connect(
                dsn, autocommit=True, options="-c jit=off -c client_min_messages=error"
            )
        except psycopg.OperationalError:
            if time.monotonic() > give_up:
                raise
            time.sleep(0.05)


class Session(threading.Thread):
    """Works, connects again after each death, until it is told to stop."""

    def __init__(
        self, dsn: str, seed: str, call: str | None = None, *, spares_server: bool = False
    ) -> None:
        super().__init__(daemon=True)
        self._dsn = dsn
        self._random = random.Random(seed)
        self._call = call
        self._spares_server = spares_server
        self.pid: int | None = None
        self.over = threading.Event()
        self.errors: list[str] = []

    def run(self) -> None:
        while not self.over.is_set():
            try:
                with patiently(self._dsn) as conn:
                    self.pid = conn.info.backend_pid
                    while not self.over.is_set():
                        self.work(conn, self._random)
            except psycopg.OperationalError:
                pass  # it was killed
            except psycopg.Error as error:
                self.errors.append(str(error))
            self.pid = None

    def work(self, conn: Connection, draw: random.Random) -> None:
        """Make one call."""
        steps, claim = draw.choice([1, 1, 3]), draw.choice([1, 4])
        conn.execute(
            self._call
            or f"call pgflow.work(1, until_idle => true, steps_per_commit => {steps}, claim => {claim})"
        )

    def kill(self, pid: int, draw: random.Random) -> str:
        """Kill the server's process, which brings all of them down, or have the server end it."""
        if draw.random() < 0.2 and not self._spares_server:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            return "servers"
        with contextlib.suppress(psycopg.Error), patiently(self._dsn) as conn:
            conn.execute("select pg_terminate_backend(%s)", (pid,))
        return "sessions"


class Process(threading.Thread):
    """A worker in Python, which drives runs in SQL beside its own; begun again after each death."""

    def __init__(self, dsn: str) -> None:
        super().__init__(daemon=True)
        self._environment = {**os.environ, "PGFLOW_DSN": dsn}
        self.pid: int | None = None
        self.over = threading.Event()
        self.errors: list[str] = []

    def run(self) -> None:
        app = Path(__file__).parent / "apps" / "flowapp.py"
        command = [
            sys.executable,
            "-m",
            "pgflow_cli",
            "workers",
            str(app),
            "--poll",
            "0.1s",
            "--dead-after",
            "3s",
        ]
        while not self.over.is_set():
            with subprocess.Popen(
                command, env=self._environment, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
            ) as process:
                self.pid = process.pid
                while process.poll() is None and not self.over.is_set():
                    time.sleep(0.05)
                self.pid = None
                process.terminate()

    def kill(self, pid: int, draw: random.Random) -> str:
        """Kill it."""
        del draw
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        return "workers"


@dataclass
class Result:
    """Figures of a campaign, and all that was wrong."""

    runs: int = 0
    rows: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


def ask(dsn: str, query: str, *params: Any) -> list[Any]:
    """All rows of a query that may be asked again."""
    while True:
        with contextlib.suppress(psycopg.OperationalError), patiently(dsn) as conn:
            return conn.execute(query, params or None).fetchall()


IDLE = """select not exists (select from pgflow.runs where status not in ('completed', 'failed', 'cancelled')
  and key like 'p%')"""
UNITS = "select count(*) from pgflow.unit"


def harm(
    dsn: str,
    sessions: Sequence[Session | Process],
    draw: random.Random,
    kills: int,
    count: str = UNITS,
    idle: str = IDLE,
) -> Counter[str]:
    """Kill so many times, at moments counted in units; return what and how often, when nothing is
    left.
    """
    done, at = Counter[str](), draw.randint(1, 20)
    seen, give_up = -1, 0.0
    while not ask(dsn, idle)[0][0]:
        units = ask(dsn, count)[0][0]
        if units != seen:
            seen, give_up = units, time.monotonic() + servers.HANG_SECONDS
        if time.monotonic() > give_up:
            raise AssertionError(f"it hangs: {ask(dsn, OPEN)}")
        alive = [(session, pid) for session in sessions if (pid := session.pid)]
        if done.total() < kills and units >= at and alive:
            session, pid = draw.choice(alive)
            done[session.kill(pid, draw)] += 1
            at = units + draw.randint(1, 12)
        time.sleep(0.005)
    return done


OPEN = "select key, status, reason from pgflow.runs where finished_at is null limit 20"
OUTCOME = """select status, output, error->>'message',
  (select coalesce(sum((c.amounts->>'usd')::int), 0) from pgflow.charge c where c.run_id = r.run_id),
  (select count(*) from pgflow.event e where e.run_id = r.run_id)
  from pgflow.runs r where key = %s"""


JOURNAL = """select t.event, t.name from pgflow.runs r join pgflow.timeline t using (key, generation)
  where key = %s and t.event in ('step_completed', 'step_failed',
  'wait_timed_out', 'gate_asked', 'gate_answered', 'timer_fired', 'budget_charged', 'state_set', 'emitted', 'lock_won')
  and coalesce(t.name, '') !~ '^(line|for i)' order by t.seq"""
"""What a run did, but for attempts, for what has no label, and for children, of which several are under way."""


def campaign(
    dsn: str,
    *,
    programs: int,
    kills: int,
    sessions: int,
    seed: str,
    copies: int = 1,
    workers: int = 0,
    spares_server: bool = False,
    harm: Callable[..., Counter[str]] = harm,
    kind: type[Session] = Session,
) -> Result:
    """Plays programs under harm, and judges them."""
    result, draw = Result(), random.Random(seed)
    grown = {f"p{n}": Grower(f"{seed}/{n}", has_python=workers > 0).grow() for n in range(programs)}
    with patiently(dsn) as conn:
        conn.execute(SETUP)
        for name, program in grown.items():
            try:
                conn.execute("select pgflow.create_workflow(%s, %s)", (f"{name}()", program.text))
            except psycopg.Error as error:
                raise AssertionError(f"{error}\n{program.text}") from error
        conn.execute(
            "select count(*) from unnest(%s::text[]) w, generate_series(1, %s) i,"
            " pgflow.start_run(w, '{}', key => w || '/' || i) s",
            (list(grown), copies),
        )
    working: list[Session | Process] = [
        kind(dsn, f"{seed}/{n}", spares_server=spares_server) for n in range(sessions)
    ]
    working += [Process(dsn) for _ in range(workers)]
    for session in working:
        session.start()
    try:
        result.kills = harm(dsn, working, draw, kills)
    finally:
        for session in working:
            session.over.set()
        for session in working:
            session.join()
            result.wrong += session.errors
    reap = "select pgflow.reap_worker(worker_id, beat) from pgflow.worker"  # of those just killed
    ask(dsn, reap)
    with patiently(dsn) as conn:
        conn.execute("call pgflow.work(60, until_idle => true)")
        judge(conn, grown, copies, result)
    return result


def rehearse(dsn: str, *, programs: int, seed: str) -> Result:
    """Play programs as tests, each in a transaction of its own that makes it too and is rolled back."""
    result = Result()
    with patiently(dsn) as conn:
        conn.execute(SETUP)
        for n in range(programs):
            program = Grower(f"{seed}/{n}").grow()
            with conn.transaction(force_rollback=True):
                conn.execute("select pgflow.create_workflow('p()', %s)", (program.text,))
                conn.execute("select pgflow.test_run('p', keep => true)")
                (key,) = conn.execute("select queue from pgflow.flow_test").fetchone()  # type: ignore[misc]
                compare(conn, program, [key], result)
    return result


def compare(conn: Connection, program: Program, keys: Sequence[str], result: Result) -> None:
    """Compare runs of a program, and their rows, with the interpreter."""
    plain = Interpreter(program)
    expected = plain.run()
    for key in keys:
        status, output, error, *sums = conn.execute(OUTCOME, (key,)).fetchone()  # type: ignore[misc]
        found = (status, error if status == "failed" else output)
        rows = conn.execute("select what from trace where key = %s order by n", (key,))
        trace = [what for (what,) in rows]
        journal = conn.execute(JOURNAL, (key,)).fetchall()
        if journal != plain.journal:
            result.wrong.append(
                f"{program.seed} {key}: the journal is {journal}, not {plain.journal}"
            )
        result.runs += 1
        result.rows += len(trace)
        sums_expected = [plain.spent, plain.published]
        if (found, trace, sums) != (expected, plain.trace, sums_expected):
            result.wrong.append(
                f"{program.seed} {key}: {found} {sums} {trace}, not {expected} {sums_expected} {plain.trace}"
            )


def judge(conn: Connection, grown: dict[str, Program], copies: int, result: Result) -> None:
    """Compare runs, their rows and those of their children with the interpreter."""
    for name, program in grown.items():
        compare(conn, program, [f"{name}/{copy}" for copy in range(1, copies + 1)], result)
    doubled = """select key, what, count(*) from trace where key not like 'p%' group by key, what
      having count(*) > 1"""
    result.wrong += [f"doubled in a child: {row}" for row in conn.execute(doubled)]
    # A child that completed has done both of its steps.
    lacking = """select r.key from pgflow.runs r where r.workflow in ('leaf', 'pyleaf') and r.status = 'completed'
      and (select count(*) from trace t where t.key = r.key) <> 2"""
    result.wrong += [f"missing in a child: {row}" for row in conn.execute(lacking)]
    result.rows += conn.execute("select count(*) from trace where key not like 'p%'").fetchone()[0]  # type: ignore[index]
    result.wrong += [f"check: {row}" for row in conn.execute("select * from pgflow.check()")]
    for name in (
        "flow_frame",
        "lease",
        "worker",
        "lock",
        "lock_wait",
        "gate",
        "event_wait",
        "reservation",
    ):
        (left,) = conn.execute(f"select count(*) from pgflow.{name}").fetchone()  # type: ignore[misc]
        if left:
            result.wrong.append(f"left over: {left} of {name}")


def play_again(dsn: str, keys: Sequence[str], result: Result) -> None:
    """Fork and rewind these runs at every unit: each comes to the same end by the same acts."""
    work = "call pgflow.work(3600, until_idle => true, claim => 20)"
    count = "select count(*) from pgflow.timeline where key = %s"
    found = "select status, output, error->>'message' from pgflow.runs where key = %s"
    with patiently(dsn) as conn:

        def said(key: str) -> Any:
            return conn.execute(found, (key,)).fetchone(), conn.execute(JOURNAL, (key,)).fetchall()

        def compare(key: str, origin: str, how: str) -> None:
            result.runs += 1
            if (again := said(key)) != expected[origin]:
                result.wrong.append(f"{how} of {origin}: {again}, not {expected[origin]}")

        expected = {key: said(key) for key in keys}
        units = {key: conn.execute(count, (key,)).fetchone()[0] for key in keys}  # type: ignore[index]
        cuts = [(key, cut) for key in keys for cut in range(1, units[key])]
        for key, cut in cuts:
            conn.execute(
                "select pgflow.fork_run(%s, at_seq => %s, new_key => %s, effects => 'repeat')",
                (key, cut, f"fork {cut} of {key}"),
            )
        conn.execute(work)
        for key, cut in cuts:
            compare(f"fork {cut} of {key}", key, f"fork {cut}")
        for back in range(1, max(units.values())):
            taken = [(key, units[key] - back) for key in keys if units[key] > back]
            for key, cut in taken:
                conn.execute(
                    "select pgflow.rewind_run(%s, to_seq => %s, effects => 'repeat', children => 'cancel')",
                    (key, cut),
                )
            conn.execute(work)
            for key, cut in taken:
                compare(key, key, f"rewind {cut}")
        result.wrong += [f"check: {row}" for row in conn.execute("select * from pgflow.check()")]


def without_locks(dsn: str) -> list[str]:
    """Return the keys of programs that can be played again from any unit: a fork holds no locks of its origin."""
    found = """select r.key from pgflow.runs r join pgflow.workflows w using (workflow)
      where r.key like 'p%' and w.body !~ 'lock ' order by r.key"""
    return [key for (key,) in ask(dsn, found)]


CONTROL = """
create table if not exists job (id int primary key, is_done boolean not null default false);
create or replace procedure control() language plpgsql as $$
declare j int;
begin
  loop
    select id into j from job where not is_done order by random() limit 1;
    exit when j is null;
    insert into trace (key, what) values ('job', j::text);
    commit;
    perform pg_sleep(0.004);
    update job set is_done = true where id = j;
    commit;
    perform pg_sleep(0.004);
  end loop;
end $$;
"""


def control(dsn: str, *, jobs: int, kills: int, seed: str) -> int:
    """Kills a session whose jobs commit effect and record apart; return how many were doubled."""
    with patiently(dsn) as conn:
        conn.execute(SETUP)
        conn.execute(CONTROL)
        conn.execute("insert into job select generate_series(1, %s)", (jobs,))
    session = Session(dsn, seed, "call control()")
    session.start()
    idle = "select not exists (select from job where not is_done)"
    harm(dsn, [session], random.Random(seed), kills, "select count(*) from job where is_done", idle)
    session.over.set()
    session.join()
    doubled = "select count(*) from (select what from trace where key = 'job' group by what having count(*) > 1) d"
    return int(ask(dsn, doubled)[0][0])


def prove(server_dsn: str, amount: int, seed: int) -> Findings:
    """Plays so many programs by sessions that the server ends, and five of each lot again from every unit."""
    total = Result()
    lots = range(0, amount, LOT)
    for lot in lots:
        name = servers.create_database(server_dsn)
        dsn = servers.dsn_of(server_dsn, name)
        servers.install_schema(dsn)
        try:
            result = campaign(
                dsn, programs=LOT, kills=KILLS, sessions=2, seed=f"{seed}/{lot}", spares_server=True
            )
            play_again(dsn, without_locks(dsn)[:5], result)
        finally:
            servers.drop_database(server_dsn, name)
        total.runs += result.runs
        total.kills += result.kills
        total.wrong += result.wrong
    fault = (
        "sessions ended under random workflows in SQL, which are forked and rewound at every unit"
    )
    return Findings(
        "sql programs",
        seed,
        [Evidence("G1", fault, total.runs, wrong=tuple(total.wrong))],
        {"session ended": (total.kills.total(), len(lots))},
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("dsn")
    for name, default in {
        "programs": 100,
        "kills": 100,
        "sessions": 2,
        "workers": 0,
        "copies": 1,
        "again": 0,
    }.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--seed", default="1")
    parser.add_argument("--control", action="store_true")
    given = parser.parse_args()
    if given.control:
        print(
            json.dumps(
                {
                    "doubled": control(
                        given.dsn, jobs=given.programs, kills=given.kills, seed=given.seed
                    )
                }
            )
        )
        return
    result = campaign(
        given.dsn,
        programs=given.programs,
        kills=given.kills,
        sessions=given.sessions,
        workers=given.workers,
        seed=given.seed,
        copies=given.copies,
    )
    if given.again:
        play_again(given.dsn, without_locks(given.dsn)[: given.again], result)
    print(
        json.dumps(
            {
                "runs": result.runs,
                "rows": result.rows,
                "kills": result.kills,
                "wrong": len(result.wrong),
            }
        )
    )
    for line in result.wrong[:20]:
        print(line)
    raise SystemExit(bool(result.wrong))


if __name__ == "__main__":
    main()
