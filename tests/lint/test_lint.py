"""`pgflow.lint` finds what a replay would not repeat, at its place, and keeps quiet about what is
well.
"""

from __future__ import annotations

import re
import sys
import textwrap
import threading
from importlib import import_module
from pathlib import Path

import docskit
import pytest
import servers

from pgflow._model.codecs import codec_for
from pgflow.errors import DefinitionError, NotStorable
from pgflow.lint import (
    BY_CODE,
    RULES,
    Finding,
    Source,
    UnknownCode,
    UnknownTarget,
    Unreadable,
    check,
    check_source,
)
from pgflow.lint.rules.values import WITHOUT_FORM
from pgflow.lint.vocabulary import CHANCE, CLOCK, ENVIRONMENT, OUTPUT, OUTSIDE, SLEEPING, THREADS

HEAD = """
import asyncio
import pgflow
from pgflow import read, step, transaction, workflow
from pgflow.decisions import decision
from pgflow.effects import effect

@step
async def act(x: int = 0) -> int:
    return x

@step
def work(x: int = 0) -> int:
    return x
"""


def found(text: str, *, head: str = HEAD) -> list[Finding]:
    """Everything that is found in a module."""
    return check_source(Source("m.py", head + textwrap.dedent(text)))[1]


def marked(text: str) -> list[tuple[int, str]]:
    """Return (line, code) of the findings that comments of a module announce: ``# <- PF101`` at its
    line.
    """
    lines = (HEAD + textwrap.dedent(text)).splitlines()
    return [
        (number, code)
        for number, line in enumerate(lines, 1)
        if "# <- " in line
        for code in line.rpartition("# <- ")[2].split()
    ]


def places(findings: list[Finding]) -> list[tuple[int, str]]:
    return [(finding.line, finding.code) for finding in findings]


# Each text holds what is found, marked, and its neighbours that are not.
CASES: dict[str, str] = {
    "the clock, by any name": """
        import time, time as t
        import datetime as dt
        from datetime import date, datetime
        from time import time as now, monotonic
        from time import gmtime, strftime

        @workflow
        async def flow(moment: datetime, seconds: float) -> None:
            time.time()  # <- PF101
            t.perf_counter_ns()  # <- PF101
            now()  # <- PF101
            monotonic()  # <- PF101
            datetime.now()  # <- PF101
            dt.datetime.utcnow()  # <- PF101
            date.today()  # <- PF101
            later = datetime.now  # <- PF101
            gmtime()  # <- PF101
            gmtime(seconds)
            strftime("%Y")  # <- PF101
            strftime("%Y", gmtime(0))
            pgflow.now()
            moment.timestamp()
            datetime.fromisoformat("2026-01-01")
            dt.timedelta(days=1)
            asyncio.get_running_loop().time()
    """,
    "randomness": """
        import random, secrets, uuid, os
        from uuid import uuid4, uuid5, NAMESPACE_URL
        shared = random.Random(7)

        def choose(generator: random.Random) -> int:
            return generator.choice([1, 2])

        @workflow
        async def flow(seed: int) -> None:
            random.random()  # <- PF102
            random.shuffle([1, 2])  # <- PF102
            uuid.uuid1()  # <- PF102
            uuid4()  # <- PF102
            os.urandom(3)  # <- PF102
            secrets.token_hex()  # <- PF102
            random.Random().random()  # <- PF102
            shared.random()  # <- PF102
            sorted([1, 2], key=random.random)  # <- PF102
            mine = random.Random(seed)
            mine.choice([1, 2])
            choose(mine)
            secrets.compare_digest("a", "b")
            uuid5(NAMESPACE_URL, "a")
            uuid.UUID(int=3)
            pgflow.random(), pgflow.uuid()
    """,
    "a function of the same name is another function": """
        from pgflow import random, uuid, now

        @workflow
        async def flow(time: dict[str, int]) -> None:
            random(), uuid(), now()
            time.get("time")

        @workflow
        async def shadowed(id: int, open: bool, hash: str) -> str:
            return f"{id} {open} {hash}" if open else hash
    """,
    "the environment": """
        import os, sys, platform, socket, pathlib
        from os import environ, getenv

        @workflow
        async def flow() -> None:
            os.environ["A"]  # <- PF103
            environ.get("A")  # <- PF103
            getenv("A")  # <- PF103
            sys.argv[1]  # <- PF103
            platform.node()  # <- PF103
            socket.gethostname()  # <- PF103
            os.getpid()  # <- PF103
            pathlib.Path.cwd()  # <- PF103
            os.path.join("a", "b")
            sys.maxsize
            os.sep
    """,
    "files, networks, databases, processes": """
        import os, shutil, subprocess, tempfile, urllib.request
        from pathlib import Path
        import httpx, requests
        import psycopg
        import sqlalchemy as sa
        engine = sa.create_engine("postgresql://")
        session = requests.Session()

        def query(conn: psycopg.Connection, other: "psycopg.Connection") -> None:
            conn.execute("select 1")  # <- PF104
            isinstance(conn, psycopg.Connection)

        @workflow
        async def flow(path: Path, name: str) -> None:
            query(name)
            with open(name) as file:  # <- PF104
                file.read()
            path.read_text()  # <- PF104
            Path(name).exists()  # <- PF104
            anything.write_bytes(b"")  # <- PF104
            os.listdir(".")  # <- PF104
            os.system("true")  # <- PF104
            shutil.copy("a", "b")  # <- PF104
            subprocess.run(["true"])  # <- PF104
            urllib.request.urlopen("http://a")  # <- PF104
            requests.get("http://a")  # <- PF104
            session.get("http://a")  # <- PF104
            async with httpx.AsyncClient() as client:  # <- PF104
                await client.get("http://a")
            psycopg.connect("")  # <- PF104
            engine.connect()  # <- PF104
            Order.objects.filter(pk=1)  # <- PF104
            input()  # <- PF104
            Path(name).name
            path / "b"
            try:
                await act()
            except (httpx.TimeoutException, subprocess.CalledProcessError, requests.HTTPError):
                raise
            "a b".replace("a", "b")
    """,
    "sleeping": """
        import time
        from time import sleep

        @workflow
        async def flow() -> None:
            time.sleep(1)  # <- PF105
            sleep(1)  # <- PF105
            await pgflow.sleep(1)
            await asyncio.sleep(1)

        @workflow
        def sync_flow() -> None:
            pgflow.sync.sleep(1)
    """,
    "threads": """
        import threading, multiprocessing
        import concurrent.futures as futures
        from concurrent.futures import ThreadPoolExecutor
        pool = ThreadPoolExecutor()

        @workflow
        async def flow() -> None:
            threading.Thread(target=print).start()  # <- PF106 PF110
            multiprocessing.Process()  # <- PF106
            with ThreadPoolExecutor() as mine:  # <- PF106
                mine.submit(len, "")
            pool.submit(len, "")  # <- PF106
            await asyncio.to_thread(len, "")  # <- PF106
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(None, len, "")  # <- PF106
            await unknown.run_in_executor(None, len, "")  # <- PF106
            asyncio.create_task(act())
            async with asyncio.TaskGroup() as group:
                group.create_task(act())
            async with asyncio.Semaphore(2):
                await act()
            try:
                await act()
            except futures.TimeoutError:
                raise
    """,
    "the order of sets": """
        NAMES = {"a", "b"}

        @workflow
        async def flow(given: set[str], frozen: frozenset[int], items: list[str], counts: dict[str, int]) -> None:
            for x in {"a", "b"}:  # <- PF107
                await act()
            for x in given:  # <- PF107
                await act()
            for x in NAMES:  # <- PF107
                await act()
            for x in set(items) - {"a"}:  # <- PF107
                await act()
            for x in given.union(items):  # <- PF107
                await act()
            for x in counts.keys() - given:  # <- PF107
                await act()
            mine = set()
            mine.add("x")
            mine |= given
            list(mine)  # <- PF107
            [x for x in mine]  # <- PF107
            {x: 1 for x in frozen}  # <- PF107
            await asyncio.gather(*{act(1), act(2)})  # <- PF107
            await pgflow.map(act, frozen)  # <- PF107
            ",".join(given)  # <- PF107
            mine.pop()  # <- PF107
            first, second = given  # <- PF107
            next(iter(given))  # <- PF107
            for x in sorted(given):
                await act()
            for x in sorted(list(given)):
                await act()
            sorted(x for x in given)
            sorted([x for x in given])
            len(given), sum(x for x in frozen), max(given), "a" in given
            {x for x in given}
            set(x for x in given)
            any(await act(x) for x in frozen)  # <- PF107
            for x in counts:
                await act()
            for x in dict.fromkeys(items):
                await act()
            await act(len(given))
    """,
    "sets of tasks": """
        def cancel(tasks: set[asyncio.Task[int]]) -> None:
            for task in tasks:
                task.cancel()

        @workflow
        async def flow() -> None:
            cancel(set())
            running = set()
            running.add(asyncio.create_task(act()))
            for task in running:
                await task
            for task in {asyncio.create_task(act()), asyncio.ensure_future(act())}:
                await task
            made = {asyncio.create_task(act(i)) for i in range(3)}
            done, pending = await asyncio.wait(made)
            for task in done:
                task.result()
            await asyncio.gather(*made)
    """,
    "variables of the module": """
        from collections import deque
        import itertools
        CONSTANT = ["a"]
        CONSTANT.append("b")
        TABLE = {}
        for letter in "ab":
            TABLE[letter] = 1
        seen = []
        cache: dict[str, int] = {}
        queue = deque()
        current = None
        ids = itertools.count()
        config = object()
        of_steps = []

        def remember(x: int) -> None:
            global current
            current = x

        def enable() -> None:
            config.debug = True

        @step
        async def noted(x: int) -> None:
            of_steps.append(x)

        registry = {}
        mixed = {}

        def register(fn):
            def inner():
                registry["inner"] = fn
            registry[fn.__name__] = fn
            return fn

        def register_both(fn):
            mixed[fn.__name__] = fn
            return fn

        def register_as(name):
            def add(fn):
                registry[name] = fn
                return fn
            return add

        def fill() -> None:
            registry["filled"] = fill_in
        fill()

        @register_as("other")
        @register
        @register_both
        def handler() -> None: ...

        def later() -> None:
            register_both(handler)

        @workflow
        async def flow(key: str) -> None:
            seen.append(key)  # <- PF108
            len(seen)
            cache[key] = 1  # <- PF108
            queue.popleft()  # <- PF108
            if current is None:  # <- PF108
                next(ids)  # <- PF108
            if config.debug:  # <- PF108
                await noted(1)
            registry["handler"]
            mixed["handler"]  # <- PF108
            for x in CONSTANT:
                TABLE[x]
            mine = []
            mine.append(1)

        @workflow
        async def shadowed(seen: list[str]) -> int:
            cache = {}
            cache["a"] = 1
            return len(seen)

        debug = False
        def main() -> None:
            global debug
            debug = True
        if __name__ == "__main__":
            main()

        @workflow
        async def reading() -> bool:
            return debug  # <- PF108

        @workflow
        async def setting() -> None:
            global current
            current = 1  # <- PF108
    """,
    "identities": """
        def helper() -> None: ...

        @workflow
        async def flow(name: str) -> str:
            a = id(name)  # <- PF109
            b = hash(name)  # <- PF109
            sorted([name], key=id)  # <- PF109
            repr(helper)  # <- PF109
            f"{helper} {name}"  # <- PF109
            str(object())  # <- PF109
            repr(name)
            return f"{name!r} {act}"
    """,
    "output": """
        import logging, sys
        from rich import print as show
        log = logging.getLogger(__name__)

        @workflow
        async def flow() -> None:
            print("a")  # <- PF110
            show("a")  # <- PF110
            log.info("a")  # <- PF110
            logging.warning("a")  # <- PF110
            sys.stderr.write("a")  # <- PF110
            pgflow.logger.info("a")
    """,
    "as_completed": """
        from asyncio import as_completed

        @workflow
        async def flow(n: int) -> None:
            for next_one in as_completed([act(i) for i in range(n)]):  # <- PF111
                await next_one
            for next_one in asyncio.as_completed((act(1), act(2))):  # <- PF111
                await next_one
            calls = [act(i) for i in range(n)]
            for next_one in as_completed(calls):  # <- PF111
                await next_one
            tasks = [asyncio.create_task(act(i)) for i in range(n)]
            for next_one in as_completed(tasks):
                await next_one
            async for value in pgflow.as_completed([act(1)]):
                return
    """,
    "side effects in finally": """
        import gc
        from elsewhere import client, release, free
        import elsewhere
        registry = {}

        def note() -> None:
            client.close()

        def harmless(x: list[int]) -> None:
            x.clear()

        async def undo() -> None:
            await act(2)

        @workflow
        async def flow(items: list[int]) -> None:
            task = asyncio.create_task(act())
            try:
                await act()
            finally:
                client.close()  # <- PF201
                elsewhere.free(1)  # <- PF201
                gc.collect()  # <- PF201
                note()  # <- PF201
                print("x")  # <- PF201
                elsewhere.state = 1  # <- PF201
                if items:
                    free()  # <- PF201
                await act(1)
                await work.aio()
                await undo()
                await release(1)
                await asyncio.sleep(1)
                pgflow.set_state(done=True)
                pgflow.logger.info("x")
                items.append(1)
                harmless(items)
                task.cancel()
                result = len(items)
            try:
                await act()
            except BaseException:
                client.close()  # <- PF201
                raise
            try:
                await act()
            except Exception:
                client.recover()

        @workflow
        def sync_flow() -> None:
            try:
                work()
            finally:
                work()
                act.sync(1)
    """,
    "exceptions that are swallowed": """
        import contextlib

        @workflow
        async def flow(n: int) -> int:
            try:
                await act()
            except:  # <- PF202
                pass
            try:
                await act()
            except BaseException as error:  # <- PF202
                n = 1
            try:
                await act()
            except (ValueError, BaseException):  # <- PF202
                n = 1
            with contextlib.suppress(BaseException):  # <- PF202
                await act()
            try:
                await act()
            finally:
                return n  # <- PF202
            for _ in range(n):
                try:
                    await act()
                finally:
                    continue  # <- PF202
            try:
                await act()
            finally:
                for _ in range(n):
                    break
            try:
                await act()
            except BaseException:
                if n:
                    raise
            try:
                await act()
            except Exception:
                n = 1
            with contextlib.suppress(Exception):
                await act()
            try:
                await act()
            except asyncio.CancelledError:
                raise
            return n
    """,
    "a missing await": """
        paid = pgflow.Signal("paid", int)

        async def helper() -> None:
            await act()

        async def pages():
            yield 1

        @workflow
        async def flow(n: int) -> int:
            act(1)  # <- PF203
            act.options(retries=2)(1)  # <- PF203
            work.aio(1)  # <- PF203
            pgflow.sleep(1)  # <- PF203
            asyncio.sleep(1)  # <- PF203
            paid.wait()  # <- PF203
            helper()  # <- PF203
            dropped = act(1)  # <- PF203
            if act(1):  # <- PF203
                pass
            total = 1 + act(2)  # <- PF203
            f"{act(2)}"  # <- PF203
            for x in act(2):  # <- PF203
                pass
            match act(2):  # <- PF203
                case 1:
                    pass
            kept = act(1)
            await kept
            calls = [act(i) for i in range(n)]
            await asyncio.gather(*calls, act(1))
            tasks = {"a": asyncio.create_task(act())}
            pages()
            call = lambda: act(1)
            await call()
            return act(1)  # <- PF203

        @workflow
        def sync_flow() -> int:
            act(1)  # <- PF203
            pgflow.sleep(1)  # <- PF203
            paid.wait()  # <- PF203
            pgflow.sync.sleep(1)
            paid.sync.wait()
            return act.sync(1) + work(1)
    """,
    "calls of the other colour": """
        from pgflow import sync

        paid = pgflow.Signal("paid", int)

        @workflow
        async def child(n: int) -> int:
            return n

        def add(n: int) -> int:
            return n + work(n)  # <- PF207

        @workflow
        async def flow(n: int) -> int:
            work(1)  # <- PF207
            kept = work.options(retries=2)(1)  # <- PF207
            sync.sleep(1)  # <- PF207
            pgflow.sync.run_child(child, 1)  # <- PF207
            got = paid.sync.wait()  # <- PF207
            await work.aio(1)
            await pgflow.sleep(1)
            got = await paid.wait()
            return act.sync(1) + add(2)  # <- PF207

        @workflow
        def sync_flow(n: int) -> int:
            first = act(n)  # <- PF207
            second = act.aio(n)  # <- PF207
            third = work.aio(n)  # <- PF207
            got = paid.wait()  # <- PF207
            other = [first, second, third, got]
            pgflow.sync.sleep(1)
            paid.sync.wait()
            other.append(pgflow.run_child(child, 1))  # <- PF207
            work(act.sync(1))
            return act(sync.run_child(child, 1))  # <- PF207
    """,
    "workflows of one name": """
        @workflow(name="twin")
        async def a(n: int) -> int: ...
        @workflow(name="twin")  # <- PF307
        async def b(n: int) -> int: ...
        @workflow  # <- PF307
        async def twin() -> None: ...
        NAME = "twin"
        @workflow(name=NAME)
        async def c() -> None: ...
        def made(n: int):
            @workflow(name="twin")
            async def inner() -> None: ...
            return inner
    """,
    "workflows that are called": """
        @workflow
        async def child(n: int) -> int:
            return n

        @workflow
        def other(n: int) -> int:
            return n

        @workflow
        async def flow() -> None:
            await child(1)  # <- PF204
            other(1)  # <- PF204
            await pgflow.run_child(child, 1)
            await pgflow.map(child, [1, 2])
            await pgflow.run_child(child.options(key="a"), 1)
            await child.fn(1)
    """,
    "bodies that are called": """
        @workflow
        async def flow() -> None:
            await act.fn(1)  # <- PF205
            work.fn(1)  # <- PF205
            await act(1)
    """,
    "bodies that wait": """
        from pgflow import Signal, sync
        from pgflow.authority import gate
        from pgflow.effects import effect

        go = Signal("go", str)

        @step
        async def publish(text: str) -> None:
            await pgflow.authority.gate("publish", text)  # <- PF206
            await go.wait()  # <- PF206

        @step
        def print_(text: str) -> None:
            sync.gate("publish", text)  # <- PF206
            for _ in range(2):
                go.sync.wait()  # <- PF206

        @effect(risk="compensable")
        async def send(text: str) -> None:
            pass

        @send.compensate
        async def _(sent: None, text: str) -> None:
            await gate("unsend", text)  # <- PF206

        @workflow
        async def flow(text: str) -> None:
            await gate("publish", text)
            await go.wait()
            await publish(text)
    """,
    "annotations": """
        import threading, enum, dataclasses
        from collections.abc import Callable, Iterator, Sequence
        from typing import Any, Annotated, Generic, Literal, NamedTuple, Optional, TextIO, TypedDict, TypeVar
        import psycopg
        import pydantic
        from typing import TYPE_CHECKING
        if TYPE_CHECKING:
            from psycopg import AsyncConnection
        T = TypeVar("T")

        class Plain: ...
        class Odd(Exception): ...
        class Box(Generic[T]): ...
        @dataclasses.dataclass
        class Data: ...
        class Model(pydantic.BaseModel): ...
        class Colour(enum.Enum): RED = 1
        class Shape(TypedDict): a: int
        class Pair(NamedTuple): a: int
        class Known(Model): ...

        @step
        async def a(f: Callable[[], int]) -> None: ...  # <- PF301
        @step
        async def b(f: int) -> Iterator[int]: ...  # <- PF301
        @step
        async def c(f: list[TextIO] | None, g: Optional[Plain]) -> None: ...  # <- PF301 PF301
        @step
        async def d(f: "threading.Lock", g: Annotated[Odd, "x"], h: Box[int]) -> None: ...  # <- PF301 PF301 PF301
        @workflow
        async def e(f: object, *, g: memoryview) -> dict[str, Plain]: ...  # <- PF301 PF301
        @transaction
        async def g(conn: psycopg.AsyncConnection, other: psycopg.Connection) -> None: ...  # <- PF301
        @transaction
        async def h(conn: "AsyncConnection[Any]", x: Sequence[int]) -> None: ...
        @step
        async def i(a: Data, b: Model, c: Colour, d: Shape, e: Pair, f: Known, g: Literal["Plain"], h: Any, i=None) -> Unknown: ...
        @step
        async def j(a: bytes | float | None, b: tuple[int, ...], c: "not python (") -> Any: ...
        def plain(f: Callable[[], int], lock: threading.Lock) -> None: ...
    """,
    "effects": """
        @effect(risk="irreversible")  # <- PF302
        async def launch() -> None: ...
        @effect(risk="reversible", keyed=False)  # <- PF302
        async def knock() -> None: ...
        @effect(risk="compensable")  # <- PF303
        async def book() -> int: ...
        @effect(risk="reversible")
        async def look() -> None: ...
        @effect(risk="irreversible")
        async def send() -> None: ...
        @send.settle
        async def _(): ...
        @effect(risk="compensable", keyed=False)
        async def charge() -> int: ...
        async def find_charge(): ...
        charge.settle(find_charge)
        @charge.compensate
        async def refund(charged: int): ...
    """,
    "effects that a planner takes back": """
        from pgflow.effects import UndoRequest, saga

        @effect(risk="compensable")
        async def wish(text: str) -> str: ...
        @decision()
        async def propose(done: UndoRequest) -> Choice[list[Any]]: ...
        @workflow
        async def trip() -> None:
            async with saga(planner=propose):
                await wish("a view")
    """,
    "blocks of sagas and of decisions are workflow code": """
        import time
        from pgflow.decisions import Choice
        from pgflow.effects import Accepted, Confirmed, Absent, StillUnknown

        @decision()
        async def choose(offers: list[int]) -> Choice[int]: ...
        @effect(risk="compensable")
        async def hold(cents: int) -> str | Accepted: ...
        @hold.settle
        async def _(cents: int) -> Confirmed[str | Accepted] | Absent | StillUnknown: ...
        @hold.compensate
        async def release(held: str, cents: int) -> None: ...

        @workflow
        async def buy(offers: list[int]) -> None:
            chosen = await choose(offers)
            choose(offers)  # <- PF203
            async with pgflow.effects.saga():
                with pgflow.because(chosen):
                    time.time()  # <- PF101
                    hold(3)  # <- PF203
                await hold.because(chosen)(4)
                await hold.because(chosen, item=1).fn(4)  # <- PF205
                hold.because(chosen)(5)  # <- PF203
        @workflow
        def buy_in_a_thread() -> None:
            with pgflow.sync.saga():
                time.sleep(1)  # <- PF105
    """,
    "names": f"""
        @step  # <- PF304
        async def {"a" * 256}() -> None: ...
        @step(name="{"b" * 256}")  # <- PF304
        async def short() -> None: ...
        @workflow(name="{"c" * 256}")  # <- PF304
        async def flow() -> None: ...
        @step
        async def {"d" * 255}() -> None: ...
        @step(name=NAME)
        async def {"f" * 256}() -> None: ...
        @workflow
        async def {"e" * 255}() -> None: ...
    """,
    "nested steps": """
        doubled = step(lambda x: 2 * x)  # <- PF305

        @workflow
        async def flow() -> None:
            @step  # <- PF305
            async def inner() -> None: ...
            await inner()

        def make(times: int):
            @step
            async def made() -> int:
                return times
            return made
    """,
    "schedules name slots": """
        from pgflow import schedule as at
        from pgflow.authority import gate, owe, Admit

        @pgflow.schedule("* 24 * * *")  # <- PF306
        @workflow
        async def nightly() -> None: ...

        @at(["0 0 * * *", "60 0 * * *"])  # <- PF306
        @at("0 0 * * *", tz="Europe/Lundon")  # <- PF306
        @at("0 0 * * *", tz="Europe/London")
        @at(every=300)
        @at(BY_HAND)
        @workflow
        async def daily() -> None: ...

        @step
        async def costs() -> None:
            pgflow.authority.charge(tokens=3)

        @workflow
        async def flow() -> None:
            await gate("a", 1)
            pgflow.authority.discharge(owe("a refund"))
            await act.options(admit=Admit(tokens=3))()
            await act.options(retries=3)()

    """,
    "bodies of steps and of effects may do anything": """
        import time, random, os
        from pgflow._flow.decorators import read as look

        @look
        async def a() -> float:
            return time.time() + random.random() + len(os.environ) + len(open("x").read())
        @transaction
        def b(conn: "psycopg.Connection") -> None:
            print(time.time())
        @decision(retries=2)
        async def c() -> "Choice[int]":
            time.sleep(1)
        @effect(risk="compensable")
        async def d() -> None:
            time.sleep(1)
        @d.settle
        async def _(): time.sleep(1)
        @d.compensate
        async def _(): time.sleep(1)
        @d.precondition
        async def _(): time.sleep(1)
        @d.verify
        async def _(): time.sleep(1)
        patient = step(retries=9)
        @patient
        async def e() -> None:
            time.sleep(1)
        def sleepy() -> None:
            time.sleep(1)
        f = step(name="f")(sleepy)
        @workflow
        async def flow() -> None:
            await asyncio.gather(a(), b.aio(), c(), d(), e(), f.aio())
        def main() -> None:
            print(time.time())
    """,
    "functions that a dynamic step is made of are bodies": """
        import time
        from pgflow import call
        from pgflow.sync import call as call_sync

        async def ask() -> float:
            return time.time()

        @workflow
        async def agent(model: str) -> None:
            def now() -> float:
                return time.time()

            async def later() -> float:
                return time.time()

            await pgflow.call(f"model:{model}", ask)
            await pgflow.call("now", now)
            await call("now", lambda: time.time())
            now()
            pgflow.call("now", later)  # <- PF203
            await pgflow.call("at", ask, time.time())  # <- PF101

        @workflow
        def agent_sync() -> None:
            pgflow.sync.call("now", lambda: time.time())
            call_sync("now", ask)
    """,
    "what workflows use is workflow code": """
        import dataclasses, time, uuid

        class Base:
            def inherited(self) -> float:
                return time.time()  # <- PF101

        class Planner(Base):
            def __init__(self) -> None:
                self.begun = time.time()  # <- PF101
            def plan(self) -> float:
                return self.helper()
            def helper(self) -> float:
                return time.time()  # <- PF101
            def unused(self) -> float:
                return time.time()
            def __hash__(self) -> int:
                return hash(self.begun)

        @dataclasses.dataclass
        class Order:
            id: str = dataclasses.field(default_factory=lambda: str(uuid.uuid4()))  # <- PF102
            at: float = dataclasses.field(default_factory=time.time)  # <- PF101
            items: list[str] = dataclasses.field(default_factory=list)

        @dataclasses.dataclass
        class NeverMade:
            at: float = dataclasses.field(default_factory=time.time)

        class Later(Planner):
            pass

        def direct() -> float:
            return indirect()
        def indirect() -> float:
            return time.time()  # <- PF101
        def by_reference(x: int) -> float:
            return time.time()  # <- PF101
        async def generating():
            yield time.time()  # <- PF101
        def of_planner(planner: Planner) -> float:
            return planner.inherited()
        def unused() -> float:
            return time.time()

        @workflow
        async def flow() -> None:
            direct()
            sorted([1], key=by_reference)
            async for x in generating():
                pass
            planner = Later()
            planner.plan()
            Order()
            of_planner(planner)
            def nested() -> float:
                return time.time()  # <- PF101
            nested()
            [time.time() for _ in range(3)]  # <- PF101
            key = lambda x: time.time()  # <- PF101
    """,
    "decorators by every name": """
        import time
        import pgflow as pf
        from pgflow import workflow as durable
        from pgflow._flow.workflow import workflow as deep

        @pf.workflow
        async def a(): time.time()  # <- PF101
        @durable(queue="q")
        async def b(): time.time()  # <- PF101
        @pgflow.schedule("0 2 * * *")
        @pgflow.workflow
        async def c(): time.time()  # <- PF101
        @deep
        def d(): time.time()  # <- PF101
        def plain(): time.time()  # <- PF101
        e = workflow(name="e")(plain)
        def made():
            @workflow
            async def inner(): time.time()  # <- PF101
            return inner
        class Space:
            @staticmethod
            @workflow
            async def f(): time.time()  # <- PF101
        def workflow_of_others(fn): return fn
        @workflow_of_others
        async def g(): time.time()
    """,
    "annotations and decorators are no workflow code": """
        import os, time, random

        @workflow(queue=os.environ.get("QUEUE", "default"))
        async def flow(x: float = time.time()) -> None:
            y: time.time = 1
            await act.options(timeout=None)(1)
    """,
    "imports anywhere": """
        try:
            from time import monotonic as tick
        except ImportError:
            tick = None

        @workflow
        async def flow() -> None:
            import random as rnd
            from os import path, getpid
            rnd.random()  # <- PF102
            getpid()  # <- PF103
            tick()  # <- PF101
            path.join("a", "b")
    """,
    "stars": """
        from time import *
        from os.path import *
        from unknown.place import *

        @workflow
        async def flow() -> None:
            time()  # <- PF101
            sleep(1)  # <- PF105
            something()
            join("a", "b")
    """,
    "aliases of values": """
        import time
        clock = time.time
        other = clock

        @workflow
        async def flow() -> None:
            clock()  # <- PF101
            other()  # <- PF101
    """,
    "ignored": """
        import time

        @workflow
        async def flow() -> None:
            time.time()  # pgflow: ignore[PF101] the reason
            print(time.time())  # pgflow: ignore[PF101, PF110]
            print(time.time())  # pgflow: ignore[pf110]  # <- PF101
            print(
                "a",
            )  # pgflow: ignore[PF110]
            text = "# pgflow: ignore[PF101]"
            act(1)  # pgflow: ignore[PF999]  # <- PF203 PF901
            await act(1)  # pgflow: ignore  # <- PF901
            await act(1)  # pgflow: ignore[PF101]  # <- PF902
            await act(1)  # pgflow: ignore[PF101, PF902]

        @effect(risk="irreversible")  # pgflow: ignore[PF302] the other side has no way to ask
        async def launch() -> None: ...
        @effect(risk="irreversible")
        async def again() -> None: ...  # pgflow: ignore[PF302]
    """,
}


@pytest.mark.parametrize("text", CASES.values(), ids=CASES)
def test_what_is_marked_is_found_and_nothing_else(text):
    assert sorted(places(found(text))) == sorted(marked(text))


def test_every_rule_is_in_the_table():
    assert {code for text in CASES.values() for _, code in marked(text)} == set(BY_CODE)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_the_examples_of_a_rule_are_what_they_are_called(rule):
    assert {finding.code for finding in found(rule.bad, head="")} == {rule.code}
    assert found(rule.good, head="") == []


def test_codes_have_their_order_and_their_words():
    assert [rule.code for rule in RULES] == sorted(BY_CODE)
    assert all(re.fullmatch(r"PF[1239]\d\d", code) for code in BY_CODE)
    assert len({rule.title for rule in RULES}) == len(RULES)


def test_a_finding_says_where_it_is_what_it_is_and_what_to_do():
    text = "import time, pgflow\ndef tick():\n    return 'é', time.time()\n@pgflow.workflow(name='w')\ndef flow():\n    tick()\n"
    (finding,) = found(text, head="")
    assert (finding.file, finding.line, finding.column, finding.code) == ("m.py", 3, 17, "PF101")
    assert (
        finding.message
        == "time.time() in tick(), which workflow w uses: a replay sees another time; use "
        "pgflow.now(), the database's time of the last outcome"
    )


def test_a_sync_workflow_is_told_of_the_sync_twin():
    text = (
        "import time\n@workflow\ndef flow():\n    time.sleep(1)\n    pgflow.sleep(1)\n    act(1)\n"
    )
    assert [finding.message.rpartition("; ")[2] for finding in found(text)] == [
        "call pgflow.sync.sleep(...)",
        "in a sync workflow, call pgflow.sync.sleep()",
        "in a sync workflow, call act.sync()",
    ]


def test_a_function_that_two_workflows_use_is_told_of_once():
    text = "import time\ndef tick(): time.time()\n@workflow\ndef a(): tick()\n@workflow\ndef b(): tick()\n"
    assert len(found(text)) == 1


# ---------------------------------------------------------------- what is known is true


VOCABULARIES = {
    "clock": CLOCK,
    "chance": CHANCE,
    "environment": ENVIRONMENT,
    "outside": OUTSIDE,
    "sleeping": SLEEPING,
    "threads": THREADS,
    "output": OUTPUT,
}
NEWER = {"uuid.uuid6", "uuid.uuid7", "uuid.uuid8"}
ELSEWHERE = {"os.startfile", "os.environb", "os.getenvb", "os.getrandom"}
"""Names that other systems have, or only some."""


def lookup(path: str):
    """Return the object that a dotted path names; None if its library is not installed here."""
    parts = path.removesuffix(".*").replace("()", "").split(".")
    for at in range(len(parts), 0, -1):
        try:
            value = import_module(".".join(parts[:at]))
        except ImportError:
            continue
        for name in parts[at:]:
            value = getattr(value, name)
        return value
    return None


@pytest.mark.parametrize("name", VOCABULARIES)
def test_every_name_of_the_standard_library_is_there(name):
    paths = VOCABULARIES[name].paths - NEWER - ELSEWHERE
    known = [
        path
        for path in paths
        if path.partition(".")[0] in sys.stdlib_module_names and "()" not in path
    ]
    assert known
    for path in known:
        assert lookup(path) is not None, path


WRITTEN_NEVER_READ = {"Callable": len, "RLock": threading.RLock()}
"""Values of classes for which pydantic has a schema that cannot write them."""


@pytest.mark.parametrize(
    "path", sorted(WITHOUT_FORM - {"typing.Generator", "collections.abc.Generator"})
)
def test_there_is_no_codec_for_what_is_said_to_have_none(path):
    try:
        annotation = lookup(path)
    except AttributeError:
        annotation = None
    if annotation is None:
        pytest.skip("not installed here")
    if path.rpartition(".")[2] in WRITTEN_NEVER_READ:
        value = WRITTEN_NEVER_READ[path.rpartition(".")[2]]
        with pytest.raises(NotStorable):
            codec_for(annotation).encode(value, "x")
        return
    with pytest.raises(DefinitionError):
        codec_for(annotation)


# ---------------------------------------------------------------- files, folders, modules


def write(folder: Path, files: dict[str, str | bytes]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())


BAD = "import time, pgflow\n@pgflow.workflow\ndef flow():\n    time.time()\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_folders_are_searched_but_not_where_others_write(folder):
    write(
        folder,
        {
            "a.py": BAD,
            "deep/er/b.py": BAD,
            "note.txt": "(",
            ".hidden/c.py": BAD,
            "venv/pyvenv.cfg": "",
            "venv/d.py": BAD,
            "node_modules/e.py": BAD,
            "__pycache__/f.py": BAD,
            ".#lock.py": BAD,
        },
    )
    report = check(".")
    assert [finding.file for finding in report.findings] == ["a.py", "deep/er/b.py"]
    assert (report.files, report.workflows) == (2, 2)


def test_links_that_lead_in_circles_are_not_followed(folder):
    write(folder, {"a.py": BAD})
    (folder / "round").symlink_to(folder)
    (folder / "self.py").symlink_to(folder / "self.py")
    (folder / "gone.py").symlink_to(folder / "nowhere.py")
    (folder / "again.py").symlink_to(folder / "a.py")
    assert len(check(".").findings) == 1


def test_a_file_that_is_named_twice_is_checked_once(folder):
    write(folder, {"a.py": BAD})
    assert check("a.py", ".", str(folder / "a.py"), "a").files == 1


def test_modules_are_found_by_name_and_nothing_is_run(folder):
    before = set(sys.modules)
    boom = "raise SystemExit('this was run')\n"
    write(
        folder,
        {
            "lint_pkg/__init__.py": boom,
            "lint_pkg/flows.py": boom + BAD,
            "lint_pkg/sub/__init__.py": boom,
            "lint_one.py": boom + BAD,
        },
    )
    assert [f.file for f in check("lint_pkg.flows", "lint_one").findings] == [
        "lint_one.py",
        "lint_pkg/flows.py",
    ]
    assert check("lint_pkg").files == 3
    assert check("lint_pkg.sub").files == 1
    assert not {name for name in sys.modules.keys() - before if name.startswith("lint_")}


@pytest.mark.parametrize(("target", "said"), [
    ("nothing.py", "file or folder nothing.py does not exist"),
    ("no/thing", "file or folder no/thing does not exist"),
    ("nothing_of_that_name", "file, folder or module nothing_of_that_name does not exist"),
    ("json.nothing.more", "file, folder or module json.nothing.more does not exist"),
    ("sys", "module sys has no source in Python"),
    ("flows:checkout", "flows:checkout is neither a file, nor a folder, nor the name of a module"),
    ("empty", "empty has no Python files"),
])  # fmt: skip
def test_what_is_not_there_is_said(folder, target, said):
    (folder / "empty").mkdir()
    with pytest.raises(UnknownTarget, match="^" + re.escape(said)):
        check(target)


@pytest.mark.parametrize(("content", "said"), [
    (b"x = (\n", r"m\.py:1:5: this is not Python 3\.\d+: "),
    (b"x = 1\ndef f(:\n", r"m\.py:2:7: this is not Python 3\.\d+: invalid syntax"),
    (b"x = '\xe9'\n", r"m\.py:1: the byte 0xe9 is not utf-8: declare the encoding"),
    (b"# coding: klingon\n", r"m\.py:1: its encoding is not known: "),
    (b"x = 1\0\n", r"m\.py.*: this is not Python"),
    (b"x = " + b"(" * 300 + b")" * 300, (r"m\.py.*: (this is not Python|its expressions are nested "
                                        r"too deeply)")),
    (b"x = " + b"-" * 100_000 + b"1", (r"m\.py.*: (this is not Python|its expressions are nested "
                                      r"too deeply)")),
])  # fmt: skip
def test_a_file_that_cannot_be_read_is_one_line_and_the_others_are_checked(folder, content, said):
    write(folder, {"m.py": content, "a.py": BAD})
    report = check(".")
    assert len(report.findings) == report.files == 1
    (line,) = report.unreadable
    assert re.match(said, line)
    assert "\n" not in line


def test_encodings_are_those_that_a_file_declares(folder):
    write(
        folder,
        {
            "latin.py": b"# coding: latin-1\nname = '\xe9'\n" + BAD.encode(),
            "mark.py": b"\xef\xbb\xbf" + BAD.encode(),
            "windows.py": BAD.replace("\n", "\r\n"),
            "old.py": BAD.replace("\n", "\r"),
        },
    )
    assert [(f.file, f.line) for f in check(".").findings] == [
        ("latin.py", 6),
        ("mark.py", 4),
        ("old.py", 4),
        ("windows.py", 4),
    ]


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="this Python knows it")
def test_syntax_that_this_python_does_not_know_is_said_to_be_so(folder):
    write(folder, {"m.py": "x = t'{y}'\n"})
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert (
        check("m.py").unreadable[0].startswith("m.py:1:")
        and f"this is not Python {version}: " in check("m.py").unreadable[0]
    )


@pytest.mark.parametrize(
    "text",
    [
        "x = " + " + ".join(["1"] * 800),
        "x = a" + ".b" * 800,
        "x = " + "[" * 90 + "]" * 90,
        "x = {" + "'a', " * 20_000 + "}",
    ],
)
def test_expressions_may_be_long_and_deep(text):
    assert places(found(text + "\n" + BAD, head="")) == [(5, "PF101")]


def test_what_is_nested_too_deeply_for_the_rules_is_said_to_be():
    text = (
        "import pgflow\n@pgflow.workflow\ndef flow(x):\n    for y in x" + " | x" * 950 + ": ...\n"
    )
    with pytest.raises(Unreadable, match="^m.py: its expressions are nested too deeply to be"):
        found(text, head="")


@pytest.mark.full
def test_a_long_module_is_judged_to_its_end():
    many = "".join(
        f"def f{n}(x):\n    y = g(x.a.b, [i for i in x if i])\n    return f{n + 1}(y)\n"
        for n in range(2000)
    )
    text = f"import time, pgflow\n@pgflow.workflow\ndef flow():\n    f0(1)\n{many}def f2000(x):\n    time.time()\n"
    assert places(found(text, head="")) == [(len(text.splitlines()), "PF101")]


# ---------------------------------------------------------------- other modules of the project


def test_steps_and_signals_of_other_modules_are_known(folder):
    steps = "import pgflow\n@pgflow.step\nasync def act(x=0): ...\n@pgflow.workflow\nasync def child(): ...\npaid = pgflow.Signal('paid', int)\n"
    text = """\
        import pgflow
        from shop.steps import act
        from . import steps as s, again, paid
        from .tools import clean
        import shop.steps
        @pgflow.workflow
        async def flow():
            act(1)  # found
            s.act(1)  # found
            again(1)  # found
            shop.steps.act.options(retries=1)(1)  # found
            paid.wait()  # found
            await s.child()  # found
            await act(1)
            await paid.wait()
            try:
                await act.fn(1)  # found
            finally:
                await act(1)
                clean()  # found
        """
    text = textwrap.dedent(text)
    init = "from .steps import act as again, paid\nfrom .flows import flow\n"
    write(
        folder,
        {
            "shop/__init__.py": init,
            "shop/steps.py": steps,
            "shop/flows.py": text,
            "shop/tools.py": "def clean(): ...\n",
        },
    )
    expected = [number for number, line in enumerate(text.splitlines(), 1) if "# found" in line]
    assert [finding.line for finding in check("shop").findings] == expected


def test_other_modules_that_cannot_be_read_are_let_be(folder):
    write(
        folder,
        {
            "broken.py": "def (",
            "flows.py": "from broken import act\nfrom absent import x\n"
            + BAD
            + "    act()\n    x()\n",
        },
    )
    assert [finding.line for finding in check("flows.py").findings] == [6]


def test_modules_that_import_each_other_in_a_circle_are_no_danger(folder):
    write(
        folder,
        {
            "a.py": "from b import x\nimport pgflow\n@pgflow.workflow\ndef flow():\n    x()\n",
            "b.py": "from a import x\n",
        },
    )
    assert check("a.py").findings == []


# ---------------------------------------------------------------- choosing rules


def test_rules_are_chosen_by_code_or_by_how_it_begins(folder):
    write(
        folder,
        {
            "m.py": "import time, pgflow\n@pgflow.workflow\ndef flow():\n    print(time.time())\n  "
            "  hash('a')  # pgflow: ignore[PF109]\n"
        },
    )
    assert {f.code for f in check("m.py").findings} == {"PF101", "PF110"}
    assert {f.code for f in check("m.py", select=["PF110"]).findings} == {"PF110"}
    assert {f.code for f in check("m.py", select=["pf1"], ignore=["PF101"]).findings} == {"PF110"}
    assert check("m.py", select=["PF2"]).findings == []
    assert check("m.py", ignore=["PF"]).findings == []


@pytest.mark.parametrize(
    "options", [{"select": ["PF7"]}, {"ignore": ["nonsense"]}, {"select": [""]}]
)
def test_a_code_that_no_rule_has_is_refused(folder, options):
    write(folder, {"m.py": BAD})
    with pytest.raises(UnknownCode):
        check("m.py", **options)


def test_an_ignore_for_a_rule_that_is_not_checked_is_not_called_needless(folder):
    write(folder, {"m.py": BAD.replace("time.time()", "time.time()  # pgflow: ignore[PF101]")})
    assert check("m.py", select=["PF9", "PF2"]).findings == []


# ---------------------------------------------------------------- our own code


OURS = [
    "examples", "cli", "bench", "tests/campaigns", "tests/apps/cli_jobs.py", "tests/crashes.py", "tests/apps/exampleflows.py", "tests/apps/ledgerflows.py",
    "tests/apps/otel_jobs.py", "tests/programs.py", "tests/apps/session_shop.py", "tests/kits/wirepaths.py", "tests/apps/worker_jobs.py",
]  # fmt: skip


@pytest.mark.full
def test_our_own_workflows_are_clean():
    report = check(*(str(servers.REPOSITORY / name) for name in OURS))
    assert report.unreadable == []
    assert report.findings == []
    assert report.workflows > 90


SHOW_MISTAKES = {"check-workflows.md", "checks.md"}


def test_the_workflows_of_the_docs_are_clean():
    pages = [page for page in docskit.pages() if page.name not in SHOW_MISTAKES]
    blocks = [
        (page.name, block)
        for page in pages
        for block in docskit.blocks(page)
        if block.language == "python"
    ]
    findings = {
        (name, f.code)
        for name, block in blocks
        for f in check_source(Source(f"{name}:{block.line}", block.text))[1]
    }
    assert findings == {("determinism.md", "PF108"), ("change-running-code.md", "PF108")}, (
        "they change code under a run, to show what happens"
    )
    assert len(blocks) > 20


def test_the_starter_that_init_writes_is_clean():
    text = (servers.REPOSITORY / "cli" / "pgflow_cli" / "ops" / "starter.py.txt").read_text()
    module, findings = check_source(Source("flows.py", text))
    assert (len(module.definitions.workflows()), findings) == (2, [])
