"""Rules of queues from Python and from the command line, on real workers."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import psycopg
import pytest
from clikit import pgflow as cli
from pgflow_cli.ops.queues import OPTIONS
from records import SOON, wait_until

from pgflow import App, AsyncApp, InvalidArgument, inspect, read, workflow
from pgflow.queues import QueueRules


@workflow(queue="orders")
async def order(customer: str, n: int = 0) -> int:
    await look(n)
    return n


@read
async def look(n: int) -> int:
    await asyncio.sleep(0)
    return n


def test_rules_are_set_in_both_colours_and_read(dsn):
    with App(dsn) as app:
        found = app.set_queue("orders", concurrency=50, rate="100/1m", why="slow", by="ann")
        assert found == {"concurrency": 50, "rate": "100/1m"}
        with pytest.raises(InvalidArgument, match="invalid rate"):
            app.set_queue("orders", rate="often")

    async def other() -> dict[str, object]:
        async with AsyncApp(dsn) as app:
            return await app.set_queue(
                "orders",
                rate=None,
                key="tenant",
                weights={"a": 2},
                ageing=timedelta(minutes=1),
                expires=timedelta(hours=1),
            )

    rules = {
        "concurrency": 50, "key": "tenant", "weights": {"a": 2}, "ageing_seconds": 60,
        "expires_seconds": 3600,
    }  # fmt: skip
    assert asyncio.run(other()) == rules
    with psycopg.connect(dsn, autocommit=True) as conn:
        assert inspect.ask(conn, inspect.list_queues("orders"))[0].rules == rules
        last, first = inspect.ask(conn, inspect.list_queue_changes("orders"))
        assert (first.why, first.changed_by, first.said) == (
            "slow",
            "ann (postgres)",
            {"concurrency": 50, "rate": "100/1m"},
        )
        assert last.said["rate"] is None
        assert inspect.ask(conn, inspect.list_queue_changes("other")) == []


def test_each_rule_has_an_option_a_kind_and_one_text():
    texts = {"weights" if name == "weight" else name: option[1] for name, option in OPTIONS.items()}
    assert texts == {name: rule.help for name, rule in inspect.QUEUE_RULES.items()}
    assert texts.keys() == QueueRules.__annotations__.keys()


def test_rules_are_set_and_shown_on_the_command_line(dsn):
    said = cli(
        dsn,
        "queues",
        "set",
        "orders",
        "--concurrency",
        "50",
        "--rate",
        "100/1m",
        "--key",
        "input.customer",
        "--per-key",
        "2",
        "--weight",
        "a=2",
        "--weight",
        "b=3",
        "--ageing",
        "90s",
        "--why",
        "launch",
        "--yes",
    )
    assert said.data[0]["rules"] == {
        "concurrency": 50, "rate": "100/1m", "key": "input.customer", "per_key": 2,
        "weights": {"a": 2, "b": 3}, "ageing_seconds": 90,
    }  # fmt: skip
    assert "rate=100/1m" in cli(dsn, "queues", tty=True).out
    fewer = cli(
        dsn,
        "queues",
        "set",
        "orders",
        "--rate",
        "none",
        "--weight",
        "none",
        "--ageing",
        "none",
        "--fifo",
        "--per-key",
        "none",
    ).data[0]
    assert fewer["rules"] == {"concurrency": 50, "key": "input.customer", "fifo": True}
    history = cli(dsn, "queues", "history", "orders").data
    assert [row["what"] for row in history] == ["set", "set"]
    assert history[1]["why"] == "launch"
    assert "rate=none" in cli(dsn, "queues", "history", tty=True).out
    strict = cli(dsn, "queues", "set", "orders", "--max-deaths", "2").data[0]
    assert (strict["max_deaths"], strict["rules"]["max_deaths"]) == (2, 2)
    usual = cli(
        dsn, "queues", "set", "orders", "--max-deaths", "none", "--concurrency", "none"
    ).data[0]
    assert (usual["max_deaths"], usual["max_running"]) == (5, None)
    assert "max_deaths must be" in cli(dsn, "queues", "set", "orders", "--max-deaths", "1001").err
    assert "no rule given" in cli(dsn, "queues", "set", "orders").err
    assert "whole number" in cli(dsn, "queues", "set", "orders", "--burst", "x").err


@pytest.mark.full
def test_workers_claim_again_when_a_rate_opens(dsn, conn):
    with App(dsn, include=[order]) as app:
        app.set_queue("orders", rate="5/100ms")
        runs = app.start_many(order, [("a", n) for n in range(40)])
        with app.worker(poll_seconds=3600):
            assert [run.result(SOON) for run in runs] == list(range(40))
    taken = "select max(finished_at) - min(finished_at) >= interval '0.6 s' from pgflow.outcome"
    assert conn.execute(taken).fetchone() == (True,)


@pytest.mark.full
def test_a_queue_of_many_keys_drains_on_two_workers(dsn, conn):
    with App(dsn, include=[order]) as app, App(dsn, include=[order]) as other:
        app.set_queue("orders", key="input.customer", per_key=1, concurrency=7)
        runs = app.start_many(order, [(str(n % 50), n) for n in range(500)])
        with app.worker(poll_seconds=0.1), other.worker(poll_seconds=0.1):
            app.set_queue("orders", fifo=True)
            assert [run.result(SOON) for run in runs] == list(range(500))
    wait_until(
        lambda: conn.execute("select count(*) from pgflow.line_run").fetchone() == (0,), "no line"
    )


@pytest.mark.parametrize(
    "rules", [{"concurrency": 2}, {"key": "input.customer", "per_key": 1}, {"key": "input.customer", "fifo": True}],
    ids=str,
)  # fmt: skip
def test_each_end_lets_the_next_of_a_limited_queue_begin(dsn, rules):
    """No poll comes in between: none is due before the test would be over."""
    with App(dsn, include=[order]) as app:
        app.set_queue("orders", **rules)  # type: ignore[arg-type]
        handles = [app.start(order, f"customer {n % 2}", n) for n in range(20)]
        with app.worker(concurrency=50, queues=["orders"], poll_seconds=600):
            assert [handle.result(SOON) for handle in handles] == list(range(20))
