"""The cost of durability for an agent: one agent of pydantic-ai, bare, with pgflow's adapter and with
DBOS's. ``python -m bench.agents DSN`` (``pip install -e '.[test,pydantic-ai]' 'pydantic-ai-slim[dbos]'``).

A run asks the model a number of times, and each answer but the last calls a tool. Model and tool
answer at once, so that all of the time is that of the framework and of what makes it durable. The
sides take turns; the medians of their rounds are told.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

from bench.server import Server

REQUESTS = 10
Batch = Callable[[int, int], Awaitable[None]]
"""Does so many runs, so many of them at once."""


def make_agent(*capabilities: Any, tool: Callable[..., Any] | None = None) -> Any:
    """An agent that asks its model ten times, and uses a tool in between."""
    from pydantic_ai import Agent
    from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
    from pydantic_ai.models.function import FunctionModel

    def answer(messages: list[Any], _: Any) -> ModelResponse:
        asked = len(messages) // 2
        if asked < REQUESTS - 1:
            return ModelResponse([ToolCallPart("look", {"number": asked})])
        return ModelResponse([TextPart("done")])

    async def look(number: int) -> str:
        return f"{number} is on its way"

    agent = Agent(FunctionModel(answer), name="support", capabilities=[*capabilities])
    agent.tool_plain(tool or look)
    return agent


async def _gather(run: Callable[[int], Awaitable[Any]], runs: int, at_once: int) -> None:
    numbers = iter(range(runs))

    async def work() -> None:
        for number in numbers:
            assert await run(number) == "done"

    await asyncio.gather(*(work() for _ in range(at_once)))


@contextlib.asynccontextmanager
async def bare(_: str) -> AsyncIterator[Batch]:
    """The framework alone."""
    agent = make_agent()

    async def run(number: int) -> str:
        return str((await agent.run(f"question {number}")).output)

    yield lambda runs, at_once: _gather(run, runs, at_once)


@contextlib.asynccontextmanager
async def with_pgflow(dsn: str) -> AsyncIterator[Batch]:
    """Each request to the model a decision, each call of the tool a step."""
    import pgflow
    from pgflow.agent.pydantic_ai import PgflowDurability

    agent = make_agent(PgflowDurability())

    @pgflow.workflow
    async def answer(question: str) -> str:
        return str((await agent.run(question)).output)

    async with pgflow.AsyncApp(dsn, include=[answer]) as app, app.worker(concurrency=64):

        async def run(number: int) -> str:
            return await (await app.start(answer, f"question {number}")).result(timeout=60)

        yield lambda runs, at_once: _gather(run, runs, at_once)


@contextlib.asynccontextmanager
async def with_dbos(dsn: str) -> AsyncIterator[Batch]:
    """Each request to the model a step, and the tool a step, as its documentation advises."""
    from dbos import DBOS
    from pydantic_ai.durable_exec.dbos import DBOSDurability

    DBOS(
        config={
            "name": "agents",
            "system_database_url": dsn,
            "run_admin_server": False,
            "log_level": "ERROR",
        }
    )

    @DBOS.step()
    async def look(number: int) -> str:
        return f"{number} is on its way"

    agent = make_agent(DBOSDurability(), tool=look)

    @DBOS.workflow()
    async def answer(question: str) -> str:
        return str((await agent.run(question)).output)

    DBOS.launch()
    try:

        async def run(number: int) -> str:
            return await answer(f"question {number}")

        yield lambda runs, at_once: _gather(run, runs, at_once)
    finally:
        DBOS.destroy()


SIDES = {"bare": bare, "pgflow": with_pgflow, "dbos": with_dbos}


async def serve(side: str, dsn: str, runs: int, at_once: int) -> None:
    """Does a batch for each line that it is told, and tells how many seconds it took, by the clock
    and of the processor.
    """
    async with SIDES[side](dsn) as batch:
        await batch(at_once, at_once)
        print("ready", flush=True)
        while await asyncio.to_thread(sys.stdin.readline):
            begun, used = time.perf_counter(), time.process_time()
            await batch(runs, at_once)
            print(time.perf_counter() - begun, time.process_time() - used, flush=True)


def measure(dsns: dict[str, str], runs: int, rounds: int, at_once: int) -> dict[str, list[float]]:
    """Milliseconds for a request and its tool by the clock and of the client's processor, by side:
    medians of the rounds. Each side is a process of its own; one works at a time.
    """
    took: dict[str, list[list[float]]] = {side: [] for side in SIDES}
    with contextlib.ExitStack() as stack:
        sides = {
            side: stack.enter_context(_start(side, dsns[side], runs, at_once)) for side in SIDES
        }
        for _ in range(rounds):
            for side, process in sides.items():
                assert process.stdin
                assert process.stdout
                process.stdin.write("go\n")
                process.stdin.flush()
                seconds = process.stdout.readline().split()
                took[side].append([float(one) * 1e3 / (runs * REQUESTS) for one in seconds])
    return {
        side: [*map(statistics.median, zip(*times, strict=True))] for side, times in took.items()
    }


@contextlib.contextmanager
def _start(side: str, dsn: str, runs: int, at_once: int) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "bench.agents", dsn, "--side", side]
    command += ["--runs", str(runs), "--at-once", str(at_once)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdin
        assert process.stdout
        while (line := process.stdout.readline()) != "ready\n":
            if not line:
                raise SystemExit(f"{side} has ended with {process.wait()}")
        try:
            yield process
        finally:
            process.stdin.close()


def main() -> None:
    """Measure one at a time and many at once, and print a table."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("dsn", help="a server on which databases are made")
    options.add_argument("--runs", type=int, default=60)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    options.add_argument("--at-once", type=int, default=1, help=argparse.SUPPRESS)
    asked = options.parse_args()
    if asked.side:
        asyncio.run(serve(asked.side, asked.dsn, asked.runs, asked.at_once))
        return
    server = Server(asked.dsn)
    with contextlib.ExitStack() as stack:
        urls = {side: stack.enter_context(server.database())[1] for side in SIDES}
        migrate = [sys.executable, "-m", "pgflow_cli", "migrate", "--dsn", urls["pgflow"]]
        subprocess.run(migrate, check=True, stdout=subprocess.DEVNULL)
        print(
            f"{'at once':>8} {'side':<7} {'ms a request':>13} {'above bare':>11} {'processor':>10}"
        )
        for at_once in (1, 16):
            found = measure(urls, max(asked.runs, at_once), asked.rounds, at_once)
            for side, (ms, cpu_ms) in found.items():
                above = ms - found["bare"][0]
                print(f"{at_once:>8} {side:<7} {ms:>13.2f} {above:>11.2f} {cpu_ms:>10.2f}")


if __name__ == "__main__":
    main()
