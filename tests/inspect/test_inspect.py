"""The read side: every reader answers apps and connections of both colours alike, in typed rows and
in pages.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import re
import secrets
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from inspect import signature
from pathlib import Path
from typing import Any

import cli_jobs
import clikit
import psycopg
import pytest
import servers
from psycopg.rows import dict_row

import pgflow
from pgflow import App, AsyncApp, InvalidArgument, RunNotFound, inspect, workflow
from pgflow._db.calls import claim as claim_calls
from pgflow._db.calls import worker as worker_calls
from pgflow._db.query import run
from pgflow.decisions import Choice, decision
from pgflow.effects import effect
from pgflow.errors import WrongColourError, WrongState
from pgflow.inspect import RunFilter

Ask = Callable[[inspect.Question[Any]], Any]


@decision()
async def pick() -> Choice[str]:
    return Choice("lamp", why="it is dark", evidence=["meter-3"], alternatives=["candle"])


@effect(risk="irreversible")
async def order(what: str) -> str:
    raise ConnectionError(what)


@workflow
async def shop() -> str:
    chosen = await pick()
    return await order.because(chosen)(chosen.value)


async def _buy_and_rest(dsn: str) -> None:
    async with (
        AsyncApp(dsn, include=[shop, cli_jobs.resting]) as app,
        app.worker(poll_seconds=0.05),
    ):
        rested = await app.start(cli_jobs.resting.options(key="rest-1"), 6, 0.0)
        bought = await app.start(shop.options(key="shop-1"))
        with contextlib.suppress(pgflow.RunStuck):
            await bought.result()
        await rested.result()


@pytest.fixture(scope="module")
def prepared(server_dsn: str, template: str) -> Iterator[str]:
    """A database for tests that only read."""
    name = servers.create_database(server_dsn, template)
    dsn = servers.dsn_of(server_dsn, name)
    clikit.prepare(dsn)
    asyncio.run(_buy_and_rest(dsn))
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("select pgflow.post_signal('order-2', 'other', '7', sent_by => 'ada')")
        conn.execute("select pgflow.post_signal('hello-1', 'late', '8')")
        conn.execute("""select pgflow.set_pool('acme', '{"usd": 5}')""")
        conn.execute("select pgflow.wake()")
        conn.execute("select pgflow.set_sealing(true, 'ada')")
        conn.execute("select pgflow.seal_units(at_once => true)")
    yield dsn
    assert servers.unsound(dsn) == []
    servers.drop_database(server_dsn, name)


@contextlib.contextmanager
def asking(kind: str, dsn: str) -> Iterator[Ask]:
    """A way to put questions to a database."""
    if kind == "connection":
        with psycopg.connect(dsn, autocommit=True) as conn:
            yield lambda question: inspect.ask(conn, question)
    elif kind == "app":
        with App(dsn) as app:
            yield lambda question: inspect.ask(app, question)
    else:
        with asyncio.Runner() as runner:
            source: Any = AsyncApp(dsn) if kind == "async app" else runner.run(_connect(dsn))
            runner.run(source.__aenter__())
            try:
                yield lambda question: runner.run(inspect.ask_async(source, question))
            finally:
                runner.run(source.__aexit__(None, None, None))


async def _connect(dsn: str) -> psycopg.AsyncConnection[Any]:
    return await psycopg.AsyncConnection.connect(dsn, autocommit=True)


def by_connection(dsn: str) -> Ask:
    """Return a way to put each question on a connection of its own."""

    def ask(question: inspect.Question[Any]) -> Any:
        with asking("connection", dsn) as put:
            return put(question)

    return ask


@pytest.fixture(params=["connection", "app", "async connection", "async app"])
def ask(request: pytest.FixtureRequest, prepared: str) -> Iterator[Ask]:
    with asking(request.param, prepared) as put:
        yield put


@pytest.fixture
def look(prepared: str) -> Iterator[psycopg.Connection[Any]]:
    """A connection by which a test looks for itself."""
    with psycopg.connect(prepared, autocommit=True, row_factory=dict_row) as conn:
        yield conn


def one(look: psycopg.Connection[Any], query: str, *params: Any) -> dict[str, Any]:
    (row,) = look.execute(query, params).fetchall()
    return row


def run_id(look: psycopg.Connection[Any], key: str) -> int:
    return int(one(look, "select run_id from pgflow.runs where key = %s", key)["run_id"])


def keys(runs: Any) -> list[str]:
    return [run.key for run in runs]


def pages(ask: Ask, reader: Callable[..., Any], **options: Any) -> list[Any]:
    """All pages of a list, of which each but the last is full."""
    found, after = [], None
    while True:
        page = ask(reader(after=after, **options))
        found.append(page.items)
        assert len(page) == options["limit"] or page.next is None
        if page.next is None:
            return found
        after = page.next


def test_runs_come_in_pages_the_newest_first(ask, look):
    everything = [
        row["key"] for row in look.execute("select key from pgflow.runs order by run_id desc")
    ]
    found = pages(ask, inspect.list_runs, limit=4)
    assert [len(page) for page in found[:-1]] == [4] * (len(found) - 1)
    assert keys(run for page in found for run in page) == everything
    assert keys(ask(inspect.list_runs(limit=None))) == everything
    assert keys(ask(inspect.list_runs(limit=None, oldest_first=True))) == everything[::-1]
    oldest = ask(inspect.list_runs(limit=3, oldest_first=True))
    assert (
        keys(ask(inspect.list_runs(limit=3, oldest_first=True, after=oldest.next)))
        == everything[::-1][3:6]
    )


@pytest.mark.parametrize(
    ("where", "found"),
    [
        (RunFilter(status=["stuck"]), ["shop-1", "stuck-1"]),
        (RunFilter(status=["paused", "cancelled"]), ["cancelled-1", "paused-1"]),
        (RunFilter(status=["completed"], workflow=["checkout"]), ["order-1"]),
        (RunFilter(labels={"customer": "acme"}), ["order-2", "order-1"]),
        (RunFilter(labels={"customer": "acme", "region": "us"}), ["order-2"]),
        (RunFilter(queue=["unserved"]), ["queued-1"]),
        (RunFilter(key="order-*"), ["order-2", "order-1"]),
        (RunFilter(key="order_1*"), []),
        (RunFilter(key="x' or true --"), []),
        (RunFilter(keys=["order-1", "bad-1"]), ["bad-1", "order-1"]),
        (RunFilter(keys=["order-*", "bad-1"]), ["bad-1", "order-2", "order-1"]),
        (RunFilter(key="order-*", keys=["order-1"]), ["order-1"]),
        (RunFilter(error="VALUEerror"), ["bad-1"]),
        (RunFilter(error="no%such"), []),
        (RunFilter(until=timedelta(hours=1)), []),
        (RunFilter(since=timedelta(hours=1), workflow=["failing"]), ["bad-1"]),
        (RunFilter(since=datetime(2020, 1, 1, tzinfo=UTC), status=["cancelled"]), ["cancelled-1"]),
        (RunFilter(until=datetime(2020, 1, 1, tzinfo=UTC)), []),
        (RunFilter(tenant="", workflow=["failing"]), ["bad-1"]),
        (RunFilter(tenant="other"), []),
    ],
)
def test_filters_choose_runs(prepared, where, found):
    ask = by_connection(prepared)
    assert keys(ask(inspect.list_runs(where))) == found
    assert sum(ask(inspect.count_runs(where)).values()) == len(found)
    assert len(ask(inspect.list_chains(where))) == len(found)


def test_a_search_looks_through_the_newest_runs_and_leads_on(ask):
    where = RunFilter(workflow=["checkout"])
    everything = keys(ask(inspect.list_runs(where, limit=None)))
    looks, after = [], None
    while not looks or after is not None:
        page = ask(inspect.search_runs(where, after=after, within=2))
        looks.append(keys(page))
        after = page.next
    assert [key for look in looks for key in look] == everything
    assert [] in looks[:-1], "a look that found nothing leads on"
    assert keys(ask(inspect.search_runs(where))) == everything
    longest = ask(inspect.list_longest(where, limit=3))
    took = [(run.finished_at or datetime.now(UTC)) - run.created_at for run in longest]
    assert took == sorted(took, reverse=True)
    assert {run.key for run in longest} <= set(everything)
    first = ask(inspect.search_runs(limit=1)).next
    assert keys(ask(inspect.search_runs(after=first, within=100_000))) == keys(
        ask(inspect.list_runs(after=first))
    )
    for found in (
        RunFilter(status=["stuck"]),
        RunFilter(key="order-1"),
        RunFilter(),
        RunFilter(status=["failed"]),
        RunFilter(status=["cancelled"], tenant=""),
    ):
        assert keys(ask(inspect.search_runs(found, within=1, limit=None))) == keys(
            ask(inspect.list_runs(found, limit=None))
        )


def test_the_few_that_failed_are_searched_below_any_number_of_others(dsn, conn):
    ask = by_connection(dsn)
    with App(dsn) as app:
        for n in range(3):
            conn.execute("select pgflow.start_run('ship', key => %s)", (f"bad-{n}",))
            app.cancel(f"bad-{n}")
    conn.execute("select count(pgflow.start_run('mail')) from generate_series(1, 9)")
    where = RunFilter(status=["cancelled"], workflow=["ship"])
    page = ask(inspect.search_runs(where, within=2))
    assert keys(page) == ["bad-2", "bad-1"]
    last = ask(inspect.search_runs(where, after=page.next, within=2))
    assert (keys(last), last.next) == (["bad-0"], None)
    assert len(ask(inspect.list_longest(where, within=2))) == 2


def test_what_means_nothing_is_refused_before_anything_is_asked():
    with pytest.raises(
        InvalidArgument,
        match="status: there is no 'lost'; a run is queued, running, .* or cancelled",
    ):
        RunFilter(status=["lost"])
    with pytest.raises(InvalidArgument, match="since: 2020-01-01 00:00:00 has no time zone"):
        RunFilter(since=datetime(2020, 1, 1))  # noqa: DTZ001
    with pytest.raises(InvalidArgument, match="limit=0 is too small"):
        inspect.list_runs(limit=0)
    for after in ("soon", "1~2", ""):
        with pytest.raises(InvalidArgument, match=f"after='{after}' is not a place in this list"):
            inspect.list_runs(after=after)
    with pytest.raises(
        InvalidArgument, match="state: what is owed is intended, .* or breached, not 'late'"
    ):
        inspect.list_obligations(state="late")


def test_no_gate_is_open_where_nobody_asks(ask):
    assert ask(inspect.list_gates()).items == []
    assert ask(inspect.list_gates_below("shop-1")) == ask(inspect.count_gates()) == []
    assert ask(inspect.list_gate_names("shop-1")) == []
    assert ask(inspect.find_gate("shop-1/pay/1")) is None
    assert ask(inspect.find_gate("shop-1/pay/1", tenant="")) is None
    assert ask(inspect.read_shape("shop-1/pay/1")) is True


def test_runs_are_counted(ask, look):
    counts = ask(inspect.count_runs())
    assert counts == {
        "completed": 6,
        "waiting": 3,
        "stuck": 2,
        "failed": 1,
        "queued": 1,
        "cancelled": 1,
        "paused": 1,
    }
    assert list(counts)[:3] == ["completed", "waiting", "stuck"]
    assert set(counts) <= set(inspect.STATUSES)
    assert ask(inspect.count_ended(ask(inspect.database_now()))) == 8
    assert ask(inspect.has_passed(ask(inspect.database_now())))
    assert ask(inspect.count_ended(datetime(2020, 1, 1, tzinfo=UTC))) == 0


def test_a_run_is_found_by_its_key_with_and_without_its_values(ask, look):
    run = ask(inspect.find_run("bad-1"))
    assert (run.key, run.status, run.workflow, run.why) == (
        "bad-1",
        "failed",
        "failing",
        "ValueError: no 7",
    )
    detail = ask(inspect.find_detail("order-2"))
    assert (detail.input, detail.reason_code, detail.reason_detail["signals"]) == (
        {"order": {"sku": "desk", "amount": 2}},
        "signal",
        ["paid"],
    )
    assert detail == dataclasses.replace(detail, **vars(ask(inspect.find_run("order-2"))))
    assert ask(inspect.find_run("count-1")).generation == 3
    assert ask(inspect.find_newest(run.chain_id)) == run
    assert ask(inspect.find_newest(0)) is None
    for reader in (
        inspect.find_run,
        inspect.find_detail,
        inspect.read_history,
        inspect.read_audit,
        inspect.read_state,
        inspect.read_output,
    ):
        with pytest.raises(RunNotFound, match="order-3"):
            ask(reader("order-3"))
    with pytest.raises(RunNotFound):
        ask(inspect.find_run("order-1", tenant="other"))


def test_an_auditor_who_reads_views_only_sees_as_much(prepared, look):
    role = f"inspect_auditor_{secrets.token_hex(3)}"
    look.execute(f"create role {role} login password 'secret'; grant pgflow_auditor to {role}")
    try:
        theirs, ours = by_connection(clikit.as_role(prepared, role)), by_connection(prepared)
        for question in (
            inspect.find_detail("order-1"),
            inspect.list_runs(),
            inspect.read_audit("shop-1"),
            inspect.find_queue("greet"),
        ):
            assert theirs(question) == ours(question)
        assert theirs(inspect.read_state("order-1")) is None
        assert set(theirs(inspect.list_workflows())) == {
            row["workflow"] for row in look.execute("select distinct workflow from pgflow.runs")
        }
        with pytest.raises(RunNotFound):
            theirs(inspect.find_run("order-3"))
        with psycopg.connect(
            clikit.as_role(prepared, role)
        ) as conn:  # in whose one transaction all of it is asked
            assert inspect.ask(conn, inspect.read_state("order-1")) is None
            found = inspect.ask(conn, inspect.find_run("order-1"))
            assert found == ours(inspect.find_run("order-1"))
    finally:
        look.execute(f"drop owned by {role}; drop role {role}")


def test_kin_is_found(ask, look):
    parent = ask(inspect.find_run("family-1"))
    (child,) = ask(inspect.list_children(parent.run_id))
    assert (child.status, child.workflow) == ("completed", "greet")
    assert ask(inspect.find_key(ask(inspect.find_run(child.key)).parent_run_id)) == "family-1"
    assert ask(inspect.find_unserved(parent.chain_id)) is None
    assert ask(inspect.find_key(0)) is None
    assert ask(inspect.list_child_chains([parent.run_id])) == [child.run_id]
    assert ask(inspect.list_child_chains([parent.run_id], only_open=True)) == []
    assert ask(inspect.list_children(parent.run_id, after=child.run_id)).items == []


def test_smaller_questions_on_runs(ask, look):
    found = ask(inspect.read_statuses(["order-1", "nap-1"]))
    assert found == {"order-1": "completed", "nap-1": "waiting"}
    assert ask(inspect.read_state("order-1")) == {"phase": "paying"}
    assert (ask(inspect.read_output("hello-1")), ask(inspect.read_output("nap-1"))) == (
        "Hello Ada",
        None,
    )
    assert ask(inspect.find_keys("order-")) == ["order-2", "order-1"]
    assert ask(inspect.find_keys("order-", 1)) == ["order-2"]
    assert ask(inspect.has_queued(["unserved"], ["greet"])) is True
    assert ask(inspect.has_queued(["default"], ["greet"])) is False
    began, (chain,) = (
        datetime(2020, 1, 1, tzinfo=UTC),
        ask(inspect.list_chains(RunFilter(key="hello-1"))),
    )
    outcomes = ask(
        inspect.list_outcomes(
            [chain], stuck_since=began, queues=["fragile"], workflows=["poisoned"]
        )
    )
    assert keys(outcomes) == ["hello-1", "stuck-1"]
    assert ask(
        inspect.sample_chains(["greet", "failing"], RunFilter(status=["completed", "failed"]), 1)
    ) == [
        run_id(look, "bad-1"),
        max(
            row["chain_id"]
            for row in look.execute(
                "select chain_id from pgflow.runs where workflow = 'greet' and status = 'completed'"
            )
        ),
    ]


def test_long_lists_are_streamed_in_a_transaction(prepared, monkeypatch):
    monkeypatch.setattr(inspect.question, "STREAMED_ROWS", 4)
    question = inspect.list_chains()

    async def chains() -> list[int]:
        async with await psycopg.AsyncConnection.connect(prepared) as conn:
            return [chain async for chain in inspect.stream_async(conn, question)]

    with psycopg.connect(prepared) as conn:
        expected = inspect.ask(conn, question)
        assert list(inspect.stream(conn, question)) == expected == asyncio.run(chains())
    assert len(expected) > 8


def test_steps_come_in_pages(ask, look):
    found = pages(
        ask, lambda **options: inspect.list_steps(run_id(look, "rest-1"), **options), limit=4
    )
    assert [[step.call for step in page] for page in found] == [[1, 2, 3, 4], [5, 6]]
    assert {(step.step, step.status, step.attempts) for page in found for step in page} == {
        ("rest", "completed", 1)
    }


def test_units_come_in_pages(ask, look):
    number = run_id(look, "order-1")
    found = pages(ask, lambda **options: inspect.list_units(number, **options), limit=3)
    units = [unit for page in found for unit in page]
    assert [unit.seq for unit in units] == list(range(1, ask(inspect.last_seq(number)) + 1))
    assert ask(inspect.list_units(number, after=2, limit=None)).items == units[2:]
    assert ask(inspect.last_seq(0)) == 0
    assert ask(inspect.read_event_kinds(number)) == {unit.event for unit in units}


def test_progress_has_the_names_of_calls_and_what_was_told(ask, look):
    found = ask(inspect.read_progress(run_id(look, "order-1"), "nowhere"))
    assert "charge" in found.begun
    assert (found.asks, found.told) == (frozenset(), ())


def test_a_history_is_folded_into_entries(ask):
    history = ask(inspect.read_history("order-1"))
    entries = {entry.name: entry for entry in history.entries}
    assert (entries["charge"].kind, entries["charge"].status, entries["charge"].attempts) == (
        "step",
        "completed",
        2,
    )
    found = [inspect.describe_error(failure.error) for failure in entries["charge"].failures]
    assert found == ["ConnectionError: the bank is out [to lunch]"]
    assert (entries["paid"].kind, entries["paid"].status) == ("signal", "received")
    assert (entries["state set"].kind, entries["state set"].payload) == (
        "mark",
        {"phase": "paying"},
    )
    assert (history.status, history.generation, history.ended_at, history.has_ended) == (
        "completed",
        1,
        history.run.finished_at,
        True,
    )
    assert history.began_at <= history.entries[0].began_at <= history.seen_until <= history.now
    assert inspect.fold(history.units, history.began_at) == history.entries
    assert entries["charge"].seconds > 0


def test_earlier_generations_have_histories_of_their_own(ask):
    first, newest = ask(inspect.read_history("count-1", 1)), ask(inspect.read_history("count-1"))
    assert (first.status, first.generation, first.why, first.has_ended) == (
        "continued",
        1,
        None,
        False,
    )
    assert (newest.status, newest.generation, newest.run) == ("completed", 3, first.run)
    for generation in (0, 4):
        with pytest.raises(
            InvalidArgument, match=f"run 'count-1' has 3 generations, not {generation}"
        ):
            ask(inspect.read_history("count-1", generation))


def test_calls_of_one_name_are_folded_where_there_are_many(ask, look):
    number = run_id(look, "rest-1")
    (group,) = ask(inspect.read_calls(number, 3)).calls
    assert (group.name, group.counts, group.attempts, group.call) == (
        "rest",
        {"completed": 6},
        6,
        1,
    )
    assert isinstance(group, inspect.CallGroup)
    each = ask(inspect.read_calls(number))
    assert ([call.call for call in each.calls], each.more) == ([1, 2, 3, 4, 5, 6], 0)
    assert ask(inspect.read_calls(run_id(look, "order-1"), 1)).more == 1
    bought = ask(inspect.read_calls(run_id(look, "shop-1")))
    found = [(call.kind, call.name, call.status) for call in bought.calls]
    assert found == [("decision", "pick", "completed"), ("effect", "order", "unknown")]
    assert bought.calls[0].output == "lamp"


def entries(ask: Ask, look: psycopg.Connection[Any]) -> tuple[int, Any, Any, Any]:
    """The one run with a ledger, its decision, its effect, and the debt that this is."""
    number = run_id(look, "shop-1")
    (chosen,) = ask(inspect.list_decisions(number))
    (act,) = ask(inspect.list_effects(number))
    (debt,) = ask(inspect.list_obligations())
    return number, chosen, act, debt


def test_ledgers_tell_what_was_decided_and_done(ask, look):
    number, chosen, act, _ = entries(ask, look)
    assert (chosen.value, chosen.why, chosen.evidence) == ("lamp", "it is dark", ["meter-3"])
    assert (act.status, act.request, act.decision, act.risk) == (
        "unknown",
        {"what": "lamp"},
        chosen.decision,
        "irreversible",
    )
    assert (
        ask(inspect.list_effects(number, after=act.call)).items
        == ask(inspect.list_decisions(number, after=chosen.call)).items
        == []
    )


def test_budgets_are_told_where_nobody_has_spent_anything(ask, look):
    (row,) = ask(inspect.list_budgets())
    assert (row.pool, row.unit, row.allowed, row.charged, row.remaining) == ("acme", "usd", 5, 0, 5)
    assert ask(inspect.list_charges(run_id(look, "shop-1"))).items == []
    assert ask(inspect.sum_charges("model")) == []
    assert ask(inspect.sum_charges_by(["day", "run"])) == {"day": [], "run": []}


def test_ledgers_tell_what_is_owed(ask, look):
    number, _, act, debt = entries(ask, look)
    assert (debt.key, debt.state, debt.effect, debt.status) == (
        "shop-1",
        "unknown",
        act.effect,
        "stuck",
    )
    assert (
        ask(inspect.list_obligations(state="unknown", limit=1)).items
        == ask(inspect.list_debts(number))
        == [debt]
    )
    assert ask(inspect.list_obligations(state="accepted")).items == []
    assert ask(inspect.list_obligations(kind="effect", limit=1)).items == [debt]
    assert ask(inspect.list_obligations(kind="obligation")).items == []
    assert ask(inspect.find_obligation(debt.effect)) == debt
    assert ask(inspect.find_obligation(debt.effect, tenant="other")) is None
    (group,) = ask(inspect.count_debts(["unknown", "breached"]))
    (example,) = group.oldest
    assert (group.kind, group.name, group.debts, example.key, example.facts) == (
        "effect", debt.name, 1, "shop-1", {"what": "lamp"},
    )  # fmt: skip
    assert ask(inspect.count_debts(["breached"])) == []
    behind = f"{debt.opened_at.isoformat()}~{debt.run_id}~{debt.call}"
    assert ask(inspect.list_obligations(after=behind)).items == []
    assert ask(inspect.count_left(["shop-1"])) == 0


def test_an_audit_tells_decisions_effects_and_debts(ask, look):
    _, chosen, act, debt = entries(ask, look)
    audit = ask(inspect.read_audit("shop-1"))
    found = [event.event for event in audit.events]
    assert found == ["decision_recorded", "effect_intended", "effect_unknown"]
    assert [event.own_key for event in audit.events] == [chosen.decision, act.effect, act.effect]
    assert (audit.run.status, audit.owed) == ("stuck", [debt])


def test_queues_and_lanes_count_what_stands(ask):
    queues = {queue.queue: queue for queue in ask(inspect.list_queues())}
    assert (
        queues["default"].waiting,
        queues["fragile"].stuck,
        queues["unserved"].queued,
        queues["unserved"].workers,
    ) == (3, 1, 1, 0)
    assert ask(inspect.list_queues("unserved")) == [queues["unserved"]]
    assert ask(inspect.list_queue_names()) == sorted(queues)
    assert ask(inspect.unknown_queues(["default", "mial"])) == ["mial"]
    (lane,) = ask(inspect.list_lanes("unserved"))
    assert (lane.workflow, lane.queued, lane.why_code) == ("greet", 1, "no_worker")
    assert lane in ask(inspect.list_lanes())
    assert ask(inspect.list_queued_lanes("unserved")) == [lane]
    assert lane in ask(inspect.list_queued_lanes())
    assert (
        ask(inspect.why_unserved("unserved", "greet"))
        == lane.why
        == "no worker serves queue unserved"
    )
    assert ask(inspect.why_unserved("unserved", "nobody")) is None
    assert ask(inspect.why_unserved("unserved", "greet", "2")) is None
    assert ask(inspect.is_served("unserved")) is False
    assert (ask(inspect.find_queue("poisoned")), ask(inspect.find_queue("nobody"))) == (
        "fragile",
        None,
    )
    assert {"greet", "poisoned", "shop"} <= set(ask(inspect.list_workflows()))


@pytest.mark.parametrize("kind", ["connection", "async app"])
def test_workers_are_listed_and_counted(dsn, conn, kind):
    with asking(kind, dsn) as ask:
        hold_to_workers(ask, conn)


def hold_to_workers(ask: Ask, conn: psycopg.Connection[Any]) -> None:
    assert (ask(inspect.list_workers()), ask(inspect.count_workers())) == (
        [],
        inspect.WorkerCount(0, None),
    )
    conn.execute("select pgflow.register_worker('here', 7, '{mail}', 3, '1.0')")
    (worker,) = ask(inspect.list_workers())
    assert (
        worker.host,
        worker.pid,
        worker.queues,
        worker.concurrency,
        worker.running,
        worker.is_outdated,
    ) == ("here", 7, ["mail"], 3, 0, True)
    count = ask(inspect.count_workers())
    assert count.workers == 1
    assert count.silence_seconds >= 0
    assert ask(inspect.is_served("mail")) is True
    (health,) = ask(inspect.check_workers())
    assert (health.worker_id, health.pid, health.version, health.lost_threads) == (
        worker.worker_id,
        7,
        "1.0",
        0,
    )


@pytest.mark.unsound
def test_who_holds_runs_is_told_and_whose_worker_is_gone(dsn, conn):
    ask = by_connection(dsn)
    conn.execute("select pgflow.start_run('greet', '{}', 'k')")
    worker_id = run(conn, worker_calls.register_worker("here", 7, ["default"], 3, "1.0"))
    lanes = [lane.lane_id for lane in run(conn, claim_calls.serve_lanes(["default"], ["greet"]))]
    found = len(run(conn, claim_calls.claim_runs(claim_calls.ClaimRequest(worker_id, lanes, 10))))
    assert found == 1
    (holder,) = ask(inspect.list_holders(["default"], ["greet"], but=0))
    assert (holder.worker_id, type(holder.beat)) == (worker_id, int)
    assert ask(inspect.list_holders(["default"], ["greet"], but=worker_id)) == []
    assert ask(inspect.list_stray_leases()) == []
    conn.execute("delete from pgflow.worker")
    assert ask(inspect.list_stray_leases()) == [inspect.StrayLeases(worker_id, 1)]
    found = ask(inspect.list_holders(["default"], ["greet"], but=0))
    assert found == [inspect.Holder(worker_id, None)]


def test_mail_that_no_run_has_taken(ask):
    (late,) = ask(inspect.list_messages())
    assert (late.key, late.signal, late.state, late.payload) == ("hello-1", "late", "ended", 8)
    (waiting,) = ask(inspect.list_messages("order-2"))
    assert (waiting.signal, waiting.state, waiting.payload, waiting.sent_by) == (
        "other",
        "waiting",
        7,
        "ada (postgres)",
    )
    place = f"{waiting.sent_at.isoformat()}~{waiting.message}"
    assert ask(inspect.list_messages("order-2", after=place)).items == []
    assert ask(inspect.list_orders("order-2")) == []
    assert ask(inspect.count_left_messages()) == [inspect.LeftMessages("ended", 1, "hello-1")]


def test_versions_tell_what_may_go(ask, look):
    (version,) = ask(inspect.list_versions(["greet"]))
    assert (version.workflow, version.workers, version.begun_runs, version.safe_to_remove) == (
        "greet",
        0,
        version.begun_runs,
        version.begun_runs == 0,
    )
    assert version in ask(inspect.list_versions())
    assert (
        ask(inspect.list_versions(["nobody"]))
        == ask(inspect.list_patches())
        == ask(inspect.list_patches(["greet"]))
        == []
    )


def test_health_is_told_without_words(ask):
    (waiting,) = ask(inspect.list_waiting_queues())
    assert (waiting.queue, waiting.queued, waiting.is_paused, waiting.is_served) == (
        "unserved",
        1,
        False,
        False,
    )
    assert ask(inspect.list_unserved_lanes(0)) == []  # its queue has no worker at all
    assert ask(inspect.list_deadlocks()) == []
    assert ask(inspect.list_retention_rules()) == ask(inspect.list_legal_holds()) == []
    assert ask(inspect.read_tenants()).own == ()
    stuck = {group.example: group for group in ask(inspect.count_stuck())}
    assert (set(stuck), stuck["stuck-1"].runs) == ({"stuck-1", "shop-1"}, 1)
    groups = {one.newest[0].key: one for one in ask(inspect.group_runs("stuck"))}
    assert (set(groups), groups["shop-1"].newest[0].input) == (set(stuck), {})
    assert ask(inspect.group_runs("failed", within=timedelta(0))) == []
    assert (
        ask(inspect.list_losses())
        == ask(inspect.list_large_partitions())
        == ask(inspect.check_books())
        == []
    )
    idleness = ask(inspect.read_idleness())
    assert (idleness.idle, idleness.due_timers) == (False, 0)
    assert idleness.next_due_at > idleness.now
    assert set(ask(inspect.read_view_costs())) == {
        "runs", "steps", "effects", "decisions", "queues", "workers",
    }  # fmt: skip


def test_seals_tell_what_is_as_it_was(ask, look):
    (seal,) = ask(inspect.list_seals(run_id(look, "rest-1")))
    assert (seal.key, seal.has_ended, len(seal.hash)) == ("rest-1", True, 64)
    lag = ask(inspect.read_seal_lag())
    assert (lag.is_on, lag.said_by, lag.runs_behind, lag.is_late) == (
        True,
        "ada (postgres)",
        0,
        False,
    )
    anchor, proof = ask(inspect.read_anchor()), ask(inspect.read_proof("rest-1"))
    assert inspect.check_anchor(anchor) == inspect.check_proof(proof, anchor) == []
    told: list[int] = []
    found = ask(inspect.verify_seals(anchor=anchor, progress=told.append))
    assert (found.findings, found.rounds, found.anchored_rounds) == ([], 1, 1)
    assert told == [found.runs]
    assert ask(inspect.verify_seals("rest-1")).runs == 1


@pytest.mark.unsound
def test_losses_and_violations_are_told(dsn, conn):
    ask = by_connection(dsn)
    lost = '[{"key": "k", "seq": 3, "ended": false}]'
    conn.execute(
        "insert into pgflow.loss (noticed_at, acknowledged_at, acknowledged_bytes, kept_bytes, "
        "old_timeline, new_timeline, worker_id, pid, host, run_count, runs)"
        " values (now(), now(), 300, 100, 1, 2, 1, 7, 'here', 1, %s)",
        (lost,),
    )
    (loss,) = ask(inspect.list_losses())
    assert (loss.host, loss.pid, loss.bytes, loss.run_count, loss.keys) == ("here", 7, 200, 1, "k")
    conn.execute("select pgflow.start_run('greet', '{}', 'k')")
    conn.execute("delete from pgflow.ready")
    assert ask(inspect.check_books(1))[0].invariant
    assert len(ask(inspect.check_books(1))) == 1


VIEWS: list[tuple[str, Callable[[psycopg.Connection[Any]], inspect.Question[Any]], str]] = [
    ("runs", lambda _: inspect.find_detail("order-1"), "key = 'order-1'"),
    ("steps", lambda look: inspect.list_steps(run_id(look, "order-2")),
        "key = 'order-2' order by call"),
    ("timeline", lambda look: inspect.list_units(run_id(look, "order-2")),
        "key = 'order-2' order by seq"),
    ("decisions", lambda look: inspect.list_decisions(run_id(look, "shop-1")), "key = 'shop-1'"),
    ("effects", lambda look: inspect.list_effects(run_id(look, "shop-1")), "key = 'shop-1'"),
    ("obligations", lambda _: inspect.list_obligations(), "true"),
    ("queues", lambda _: inspect.list_queues(), "true order by queue"),
    ("lanes", lambda _: inspect.list_lanes(), "true order by queue, workflow, version"),
    ("versions", lambda _: inspect.list_versions(),
        "true order by workflow, first_at nulls first, version"),
    ("messages", lambda _: inspect.list_messages("order-2"), "key = 'order-2'"),
    ("seals", lambda look: inspect.list_seals(run_id(look, "rest-1")), "key = 'rest-1'"),
    ("seal_lag", lambda _: inspect.read_seal_lag(), "true"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("view", "question", "condition"), VIEWS, ids=[view for view, _, _ in VIEWS]
)
def test_a_row_has_the_columns_of_its_view_under_their_names(
    prepared, look, view, question, condition
):
    found = by_connection(prepared)(question(look))
    rows = (
        [found]
        if dataclasses.is_dataclass(found) and not isinstance(found, inspect.Listing)
        else list(found)
    )
    theirs = look.execute(f"select * from pgflow.{view} where {condition}").fetchall()
    shared = {field.name for field in dataclasses.fields(rows[0])} & set(theirs[0])
    assert len(shared) >= len(dataclasses.fields(rows[0])) - 2
    assert [{name: getattr(row, name) for name in shared} for row in rows] == [
        {name: row[name] for name in shared} for row in theirs
    ]


def test_a_connection_keeps_its_row_factory_and_its_transaction(conn):
    conn.row_factory = dict_row
    with conn.transaction(force_rollback=True):
        conn.execute("select pgflow.start_run('greet', '{}', 'mine')")
        assert inspect.ask(conn, inspect.find_run("mine")).status == "queued"
        assert keys(inspect.ask(conn, inspect.list_runs())) == ["mine"]
    assert inspect.ask(conn, inspect.list_runs()).items == []
    assert conn.execute("select 1 as n").fetchone() == {"n": 1}


def test_a_question_may_be_asked_again_and_shows_its_first_statement(conn):
    question = inspect.count_runs()
    assert inspect.ask(conn, question) == {}
    conn.execute("select pgflow.start_run('greet', '{}', 'k')")
    assert inspect.ask(conn, question) == {"queued": 1}
    assert question.first.sql.startswith(
        "select status, count(*) as runs from pgflow.runs where true"
    )


@pytest.mark.parametrize("text", ["\ud800", "a\0b"])
def test_a_text_that_cannot_be_stored_is_refused(prepared, text):
    for kind in ("connection", "async connection"):
        with (
            asking(kind, prepared) as ask,
            pytest.raises(InvalidArgument, match="a character that Postgres cannot store"),
        ):
            ask(inspect.list_runs(RunFilter(key=text)))


def test_a_source_of_the_other_colour_is_refused(conn, dsn):
    with pytest.raises(
        WrongColourError, match=r"ask\(\) takes an App or a connection of psycopg, not AsyncApp"
    ):
        inspect.ask(AsyncApp(dsn), inspect.list_queues())  # type: ignore[arg-type]
    for source in (App(dsn), conn, object()):
        with pytest.raises(
            WrongColourError,
            match=r"ask_async\(\) takes an AsyncApp or an async connection of psycopg, not ",
        ):
            asyncio.run(inspect.ask_async(source, inspect.list_queues()))  # type: ignore[arg-type]


def test_what_a_codec_has_encoded_has_a_word_in_its_place():
    envelope = {"$codec": "k1", "data": "x"}
    assert inspect.encoded(envelope) == "<encoded with key k1>"
    assert inspect.encoded({"data": "x"}) == ""
    assert inspect.readable([1, {"a": envelope}]) == [1, {"a": "<encoded with key k1>"}]
    found = inspect.describe_error({"type": "builtins.ValueError", "message": "no  7"})
    assert found == "ValueError: no 7"


def test_workflows_in_sql_have_versions(conn, dsn):
    for number in (1, 2):
        conn.execute("select pgflow.create_workflow('w()', %s)", (f"begin return {number}; end",))
    assert [flow.version for flow in inspect.ask(conn, inspect.list_sql_flows())] == [2]
    found = inspect.ask(App(dsn), inspect.list_sql_flows("w"))
    assert [(flow.is_current, flow.body) for flow in found] == [
        (False, "begin return 1; end"),
        (True, "begin return 2; end"),
    ]
    assert "return" in inspect.ask(conn, inspect.draw_sql_flow("w"))
    with pytest.raises(WrongState, match="plpgsql_check is not installed"):
        inspect.ask(conn, inspect.check_sql_flow("w"))


def test_a_typed_moment_is_of_its_zone():
    moment = inspect.parse_moment("2026-01-01T02:30", "the slot", "Europe/Berlin")
    assert moment == datetime(2026, 1, 1, 1, 30, tzinfo=UTC)


PLANTED = (
    "pg_total_relation_size(oid)",
    "pg_has_role(text, text)",
    "unnest(text[])",
    "concat_ws(text, text, text)",
)
"""Functions that fit calls of the readers better than those of Postgres do."""


def _questions() -> Iterator[inspect.Question[Any]]:
    """Questions of all readers that take such arguments."""
    samples = {"int": 1, "float": 1.0, "Sequence[int]": [1], "Sequence[str]": ["x"]}
    for name in inspect.__all__:
        if name.startswith(("list_", "read_", "find_", "count_", "search_")):
            reader = getattr(inspect, name)
            needed = [
                samples.get(str(parameter.annotation), "x")
                for parameter in signature(reader).parameters.values()
                if parameter.default is parameter.empty
                and parameter.kind is parameter.POSITIONAL_OR_KEYWORD
            ]
            with contextlib.suppress(TypeError, AttributeError):
                yield reader(*needed)


@pytest.mark.parametrize("way", ["app", "idle", "open"])
def test_no_reader_runs_what_others_planted_in_its_search_path(dsn, conn, way):
    for planted in PLANTED:
        conn.execute(
            f"create function public.{planted} returns text language plpgsql as "
            "$$ begin raise 'planted'; end $$"
        )
    errors = []
    with App(dsn) as app, psycopg.connect(dsn, autocommit=True) as own:
        own.execute("set search_path = public, pg_catalog")
        own.autocommit = way != "open"
        questions = list(_questions())
        for question in questions:
            try:
                inspect.ask(app if way == "app" else own, question)
            except (
                pgflow.PgflowError,
                psycopg.Error,
            ) as error:  # such as that there is no such run
                errors.append(f"{error} {error.__cause__}")
                own.rollback()
            assert own.execute("show search_path").fetchone() == ("public, pg_catalog",)
        with own.transaction():
            assert list(inspect.stream(own, inspect.list_chains(RunFilter()))) == []
            assert own.execute("show search_path").fetchone() == ("public, pg_catalog",)
    assert [error for error in errors if "planted" in error] == []
    assert len(questions) > 60


def test_every_reader_is_asked_here():
    source = "".join(path.read_text() for path in Path(__file__).parent.glob("test_inspect*.py"))
    readers = [name for name in inspect.__all__ if name[0].islower()]
    assert [
        name for name in readers if not re.search(rf"\binspect\.{name}\b|\b{name}\(", source)
    ] == []


def test_the_model_of_django_has_the_columns_of_a_run():
    import django_project  # noqa: F401  it configures Django

    from pgflow.django.models import Run

    columns = {field.name for field in dataclasses.fields(inspect.RunDetail)} - {"why"} | {"reason"}
    assert {field.name for field in Run._meta.get_fields()} <= columns
