"""LangGraph with its Postgres checkpointer: a graph of ten nodes, each of which is a step,
checkpointed before the next.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any, TypedDict

os.environ.setdefault("LANGSMITH_TRACING", "false")

from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.graph import END, START, StateGraph
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool

from bench.engines import kit

CONNECTIONS = 8


class State(TypedDict):
    i: int


def graph(saver: Any, *, is_async: bool) -> Any:
    async def small_async(state: State) -> State:
        return {"i": state["i"] + 1}

    def small(state: State) -> State:
        return {"i": state["i"] + 1}

    builder = StateGraph(State)
    names = [f"small-{i}" for i in range(10)]
    for name in names:
        builder.add_node(name, small_async if is_async else small)
    for source, target in zip([START, *names], [*names, END], strict=True):
        builder.add_edge(source, target)
    return builder.compile(checkpointer=saver)


def thread(name: str) -> Any:
    return {"configurable": {"thread_id": name}}


def install(bench: kit.Bench) -> None:
    """The checkpointer's tables."""
    with PostgresSaver.from_conn_string(bench.dsn) as saver:
        saver.setup()


def steps(bench: kit.Bench) -> kit.Figures:
    """Ten nodes a run, with so many runs at once on one loop, and alone."""
    figures: kit.Figures = {}
    for concurrency in (128, 32):
        runs = bench[f"runs_at_{concurrency}"]
        span = asyncio.run(_among(bench, concurrency, runs))
        figures[f"steps_per_second_at_{concurrency}"] = runs * 10 / span.seconds
        figures[f"client_cpu_seconds_per_1000_steps_at_{concurrency}"] = (
            span.cpu_seconds / runs * 100
        )
    runs = bench["runs_at_1"]
    with kit.Span() as span:
        _alone(bench, runs)
    figures["steps_per_second_at_1"] = runs * 10 / span.seconds
    figures["client_cpu_seconds_per_1000_steps_at_1"] = span.cpu_seconds / runs * 100
    finished = "select count(*) from (select from checkpoints group by thread_id having max((metadata ->> 'step')::int) = 10) t"
    bench.check("runs finished", finished, bench["runs_at_128"] + bench["runs_at_32"] + runs)
    with kit.settings_of(bench, "checkpoints"):
        _alone(bench, 1, "settings")
    return figures


async def _among(bench: kit.Bench, concurrency: int, runs: int) -> kit.Span:
    slots = asyncio.Semaphore(concurrency)
    options = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
    async with AsyncConnectionPool(
        bench.dsn, min_size=CONNECTIONS, max_size=CONNECTIONS, kwargs=options
    ) as pool:
        compiled = graph(AsyncPostgresSaver(pool), is_async=True)  # type: ignore[arg-type]

        async def one(i: int) -> None:
            async with slots:
                await compiled.ainvoke({"i": 0}, thread(f"at-{concurrency}-{i}"), durability="sync")

        with kit.Span() as span:
            await asyncio.gather(*[one(i) for i in range(runs)])
    return span


def _alone(bench: kit.Bench, runs: int, name: str = "alone") -> None:
    with PostgresSaver.from_conn_string(bench.dsn) as saver:
        compiled = graph(saver, is_async=False)
        for i in range(runs):
            compiled.invoke({"i": 0}, thread(f"{name}-{i}"), durability="sync")


def accounts(bench: kit.Bench) -> kit.Figures:
    """Measure the server's work for a run of ten nodes."""
    name = iter(("few", "many"))
    costs = kit.marginal_costs(
        bench, lambda runs: _alone(bench, runs, next(name)), bench["few"], bench["runs_at_1"]
    )
    return {**costs.figures("run_at_1"), **costs.wal_figures("step_at_1", 10)}


if __name__ == "__main__":
    kit.main(globals())
