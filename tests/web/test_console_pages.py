"""The console's pages: what a person on call sees, with work and without, and that each is whole
without a script.
"""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from clikit import make_stuck
from records import SOON, settle
from webkit import Browser, address, is_harmless

import pgflow
from pgflow import Retries, Signal, step, workflow
from pgflow.authority import Pool
from pgflow.console.alert import MOST_ROWS
from pgflow.decisions import Choice, decision
from pgflow.effects import Accepted, StillUnknown, effect
from pgflow.web import Principal
from pgflow.web.console import NAVIGATION

ANN = Principal("ann", ["admin"], acts_as=["ops"])
PAGES = tuple(path for _, pages in NAVIGATION for path, _ in pages)


@dataclass(frozen=True)
class Order:
    sku: str
    qty: int
    rush: bool


paid = Signal("paid", dict)


@step
async def reserve(sku: str) -> str:
    return f"bin of {sku}"


@step(retries=Retries(max_attempts=1))
async def charge_card(cents: int) -> str:
    raise ValueError(f"declined: {cents} cents")


@decision()
async def pick(sku: str) -> Choice[str]:
    return Choice(
        "dhl", why="cheapest by Friday", evidence=["dhl 4", "ups 5"], alternatives=["ups"]
    )


@effect(risk="irreversible")
async def book(carrier: str) -> str | Accepted:
    if carrier == "lost":
        raise ConnectionError("the reply was lost")
    return f"booked {carrier}"


@book.settle
async def _(carrier: str) -> StillUnknown:
    return StillUnknown()


@workflow
async def checkout(order: Order) -> str:
    await reserve(order.sku)
    chosen = await pick(order.sku)
    with pgflow.because(chosen):
        return await book(chosen.value)


@workflow
async def pay(cents: int) -> str:
    return await charge_card(cents)


@workflow
async def ask_first(order: Order) -> str:
    return repr(
        await pgflow.authority.gate("approve-order", order, approvers=["ann", "ops"], timeout=3600)
    )


@workflow
async def ship(carrier: str) -> str:
    return str(await book(carrier))


@workflow
async def await_payment(order: str) -> str:
    pgflow.set_state(stage="invoice sent")
    return str(await paid.wait())


@workflow
async def contract(to: str) -> None:
    pgflow.authority.owe("send-invoice", to=to, due=timedelta(seconds=60), detail={"net": 30})


@step
async def think() -> str:
    pgflow.authority.charge(usd=2, model="large-3")
    return "hm"


@workflow
async def agent() -> str:
    return await think()


@workflow
async def long(steps: int) -> int:
    for n in range(steps):
        await reserve(f"sku {n}")
    return steps


FLOWS = (checkout, pay, ask_first, ship, await_payment, contract, agent, long)


def seen_in(page: Any, *words: str) -> None:
    for word in words:
        assert word in page.words, (word, page.words)


@pytest.mark.full
async def test_an_empty_database_says_what_to_do_next(aflow):
    browser = Browser(aflow.app, ANN)
    for path in PAGES:
        page = await browser.get(path)
        assert is_harmless(page) == []
    seen_in(await browser.get("/"), "Nothing needs you.", "pgflow init")
    seen_in(await browser.get("/runs"), "There are no runs yet.")
    seen_in(await browser.get("/runs", key="order-*"), "No runs match.")
    seen_in(await browser.get("/gates"), "No gate waits for an answer.")
    seen_in(await browser.get("/effects"), "Nothing is owed.")
    seen_in(await browser.get("/workers"), "No worker is running.")
    seen_in(await browser.get("/schedules"), "Nothing starts by itself.")
    seen_in(await browser.get("/outbox"), "There are no relays yet.")


@pytest.mark.full
async def test_home_names_each_need_with_its_one_next_action(aflow, conn):
    aflow(pools=[Pool("models", usd=1, per="1 day")])
    aflow.include(*FLOWS)
    await aflow.start(pay.options(key="pay-1"), 1999)
    await aflow.start(ask_first.options(key="ask-1"), Order("boots", 20, True))
    await aflow.start(ship.options(key="ship-1"), "lost")
    await aflow.start(contract.options(key="contract-1"), "ACME")
    await settle(aflow, agent.options(key="agent-1", pool="models"))
    await aflow.skip(120)
    await aflow.until_idle()
    make_stuck(conn, "stuck-1")
    browser = Browser(aflow.app, ANN)
    page = await browser.get("/")
    assert is_harmless(page) == []
    seen_in(page, "Needs repair 2", "Needs your answer 1", "Worth a look", "pgflow is asking")
    seen_in(page, "send-invoice Run contract-1 owes this to ACME, and it was due.", "Discharge it")
    seen_in(page, "book Run ship-1. Its outcome is unknown: it may or may not have been done.")
    seen_in(page, "stuck-1", "Mend it, then retry")
    seen_in(page, "ask_first ask-1 asks ann, ops. 20", "Answer it")
    seen_in(page, "pay-1 ValueError: declined: 1999 cents 1,999 cents", "Read its error")
    seen_in(page, "models All usd of this period are spent.")
    for link in dict.fromkeys(page.links):  # every one leads somewhere
        if not link.startswith("#"):
            assert await browser.status(link) == 200, link


@pytest.mark.full
async def test_home_counts_all_there_is_and_groups_what_is_alike(aflow):
    aflow.include(*FLOWS)
    many = 3 * MOST_ROWS
    for number in range(many):
        await aflow.start(ask_first.options(key=f"ask-{number}"), Order("boots", 20, True))
        await aflow.start(pay.options(key=f"pay-{number}"), 1999)
    await aflow.until_idle()
    browser = Browser(aflow.app, ANN)
    page = await browser.get("/")
    seen_in(page, f"Triage {2 * many}", f"Needs your answer {many}", f"Worth a look {many}")
    seen_in(page, f"approve-order {many} gates of ask_first. Each asks ann, ops.", f"Answer {many}")
    seen_in(page, f"pay {many} runs: ValueError, the newest: declined: 1999 cents")
    seen_in(page, f"pay-{many - 1} 1,999 cents")
    assert re.search(r"ask-\d+ 20 \S+ \w+ ago", page.words)
    assert page.words.count(f"and {many - 5} more") == 2
    for link in (
        "/gates?workflow=ask_first&name=approve-order",
        "/runs?status=failed&workflow=pay&error=ValueError",
    ):
        assert any(one.endswith(link) for one in page.links), page.links
        assert await browser.status(link) == 200


@pytest.mark.full
async def test_a_run_shows_what_it_did_and_why_it_stands_where_it_stands(aflow):
    aflow.include(*FLOWS)
    run = await settle(
        aflow,
        checkout.options(key="order/1", labels={"customer": "acme"}),
        Order("boots", 2, False),
    )
    await aflow.until_idle()
    assert await run.result(SOON) == "booked dhl"
    browser = Browser(aflow.app, ANN)
    page = await browser.get("/run", key="order/1")
    assert is_harmless(page) == []
    seen_in(page, "order/1", "completed", "It has completed, after", "customer=acme")
    seen_in(page, "What it did", "reserve", "pick", "book", "cheapest by Friday", "irreversible")
    seen_in(page, "Journal", "effect intended", "effect confirmed", "pgflow show order/1")
    assert sum(tag == "rect" for tag, _ in page.elements) > 3  # drawn on the server
    await settle(aflow, await_payment.options(key="invoice-1"), "order-1")
    page = await browser.get("/run", key="invoice-1")
    seen_in(page, "It waits for a signal from outside.", "invoice sent", "Send a signal")
    await settle(aflow, pay.options(key="pay-1"), 7)
    page = await browser.get("/run", key="pay-1")
    seen_in(page, "ValueError: declined: 7 cents", "Fix the cause, then retry it", "Traceback")


@pytest.mark.full
async def test_a_value_is_shown_in_full_as_text(aflow):
    aflow.include(*FLOWS)
    await settle(aflow, checkout.options(key="o"), Order("x" * 30_000, 1, False))
    browser = Browser(aflow.app, ANN)
    page = await browser.get("/run", key="o")
    seen_in(page, "characters more.", "In full, as text")
    assert await browser.status("/run/value", key="o", value="input") == 200
    answer = browser.last
    assert answer is not None
    assert answer.text.count("x") == 30_000
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert await browser.status("/run/value", key="o", value="1") == 200
    for wrong, status in (("99", 404), ("password", 400), ("-1", 400), ("²", 400)):
        assert await browser.status("/run/value", key="o", value=wrong) == status, wrong


@pytest.mark.full
async def test_runs_are_searched_and_come_in_pages(aflow):
    aflow.include(*FLOWS)
    for n in range(60):
        await aflow.start(long.options(key=f"long-{n:02}", labels={"n": str(n % 2)}), 0)
    await aflow.until_idle()
    browser = Browser(aflow.app, ANN)
    page = await browser.get("/runs")
    seen_in(page, "long-59", "long-10", "Next page")
    assert "long-09" not in page.words
    (next_page,) = [link for link in page.links if "after=" in link]
    page = await browser.get(next_page)
    seen_in(page, "long-09", "long-00", "From the newest")
    assert "long-10" not in page.words
    page = await browser.get("/runs", key="long-0*", label="n=1", status="completed", since="1h")
    seen_in(page, "long-01", "long-09", "pgflow list 'long-0*' --status completed --label n=1")
    assert "long-02" not in page.words
    assert await browser.status("/runs", status="lost") == 400
    assert await browser.status("/runs", label="n") == 400
    assert await browser.status("/runs", after="no~place") == 400
    assert await browser.status("/runs", since="ever") == 400


async def test_a_search_is_quick_and_leads_on_to_older_runs(aflow, conn):
    aflow.include(*FLOWS)
    await aflow.start(pay.options(key="old"), 7)
    conn.execute("select setval('pgflow.run_id_seq', 30000)")
    await settle(aflow, long.options(key="new"), 0)
    browser = Browser(aflow.app, ANN)
    page = await browser.get("/runs", workflow="pay")
    seen_in(page, "No runs match among the 20,000 newest.")
    (older,) = [link for link in page.links if "wide=1" in link]
    seen_in(await browser.get(older), "old", "failed")
    page = await browser.get("/runs", workflow="long")
    seen_in(page, "new", "Among the 20,000 newest runs, to be quick.")
    page = await browser.get("/runs", status="failed", error="DECLINED", since="1h")
    seen_in(page, "pgflow list --status failed --since 1h --error DECLINED")


@pytest.mark.full
async def test_a_long_journal_is_shown_in_windows(aflow):
    aflow.include(*FLOWS)
    await settle(aflow, long.options(key="long"), 700)
    browser = Browser(aflow.app, ANN)
    page = await browser.get("/run", key="long")
    seen_in(page, "sku 699", "Journal", "From the beginning")
    assert 'sku 1"' not in page.words
    (earlier,) = [link for link in page.links if "from=" in link and "from=0" not in link]
    page = await browser.get(earlier)
    assert "Newest" in page.words
    page = await browser.get("/run", **{"key": "long", "from": "0"})
    seen_in(page, "sku 1", "Later")
    assert await browser.status("/run", **{"key": "long", "from": "x"}) == 400


@pytest.mark.full
async def test_gates_effects_obligations_and_budgets_have_pages(aflow):
    aflow(pools=[Pool("models", usd=10, per="1 day"), Pool("all", calls=5)])
    aflow.include(*FLOWS)
    await aflow.start(ask_first.options(key="ask-1"), Order("boots", 20, True))
    await aflow.start(ship.options(key="ship-1"), "lost")
    await aflow.start(contract.options(key="contract-1"), "ACME")
    await settle(aflow, agent.options(key="agent-1", pool="models"))
    browser = Browser(aflow.app, ANN)
    seen_in(await browser.get("/gates"), "approve-order", "ask-1", "ann, ops", '"qty": 20')
    seen_in(await browser.get("/gates", mine="1"), "approve-order", "pgflow gates --for ann")
    seen_in(await browser.get("/effects"), "unknown", "book", "ship-1")
    seen_in(await browser.get("/effects", state="accepted"), "Nothing is accepted.")
    seen_in(await browser.get("/obligations"), "open", "send-invoice", "ACME")
    page = await browser.get("/budgets")
    seen_in(page, "models", "usd", "all", "calls", "Spent in 30 days", "Day", "agent-1", "think")
    page = await browser.get("/budget", pool="models")
    seen_in(page, "2 usd spent of 10", "agent-1", "large-3", "think 2 usd 1")
    seen_in(await browser.get("/queues"), "default", "no limit")
    seen_in(await browser.get("/workflows"), "contract", "ship")
    page = await browser.get("/workflow", name="agent")
    assert is_harmless(page) == []
    seen_in(page, "think", "of the newest: 1 run", "Versions in flight")
    assert await browser.status("/workflow", name="none") == 404
    seen_in(await browser.get("/policy"), "No policy is in force.")
    seen_in(await browser.get("/workers"), "default")
    assert await browser.status("/effects", state="lost") == 400
    assert await browser.status("/budget", pool="none") == 404
    assert await browser.status("/run", key="none") == 404
    assert await browser.status("/gate", gate="none") == 410
    assert await browser.status("/debt", key="none") == 404
    assert await browser.status("/nowhere") == 404


async def test_the_policy_says_what_it_would_ask_of_an_act(aflow, conn):
    rules = [
        {"name": "refund", "amount": "$.cents", "above": 1000, "needs": "gate"},
        {"name": "refund", "needs": "nothing"},
    ]
    conn.execute("select pgflow.set_policy(%s, 'limits')", (json.dumps(rules),))
    browser = Browser(aflow.app, ANN)
    page = await browser.get("/policy")
    assert is_harmless(page) == []
    seen_in(page, "cents", "version 1")
    page = await browser.get("/policy", name="refund", request='{"cents": 5000}')
    seen_in(page, "Rule 1 counts: a person must approve.")
    page = await browser.get("/policy", name="refund", request='{"cents": 5}')
    seen_in(page, "Rule 2 counts: it goes ahead.")
    seen_in(await browser.get("/policy", name="mail"), "No rule fits")
    for wrong in ({"risk": "lost"}, {"request": "["}, {"request": "[]"}):
        assert await browser.status("/policy", **wrong) == 400


@pytest.mark.full
async def test_a_page_is_loaded_anew_only_where_nobody_writes(aflow):
    aflow.include(*FLOWS)
    await settle(aflow, await_payment.options(key="i"), "o")
    browser = Browser(aflow.app, ANN)
    await browser.get("/run", key="i", live="1")
    assert browser.last is not None
    assert browser.last.headers["refresh"] == "5"
    await browser.get("/run", key="i")
    assert "refresh" not in browser.last.headers
    await browser.get(address("/run/order", key="i", verb="cancel", live="1"))
    assert "refresh" not in browser.last.headers


@pytest.mark.full
def test_a_sync_app_has_the_same_pages(flow):
    flow.include(*FLOWS)
    settle(flow, await_payment.options(key="i"), "o")

    async def look() -> None:
        browser = Browser(flow.app, ANN)
        seen_in(await browser.get("/run", key="i"), "It waits for a signal")
        answer = await browser.submit(address("/run/order", key="i", verb="pause"), {})
        assert answer.status_code == 303

    asyncio.run(look())
    flow.until_idle()
    assert flow.app.get("i", await_payment).status() == "paused"


@pytest.mark.full
async def test_mounted_below_a_path_every_address_stays_below_it(aflow):
    import httpx
    from starlette.applications import Starlette
    from starlette.routing import Mount

    from pgflow.web import asgi

    aflow.include(*FLOWS)
    await settle(aflow, await_payment.options(key="i"), "o")
    site = Starlette(routes=[Mount("/ops/pgflow", asgi(aflow.app, auth=lambda _: ANN))])
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(site), base_url="http://host"
    ) as client:
        from webkit import Reader, form_of

        for path in ("/", "/runs", "/run?key=i"):
            answer = await client.get(f"/ops/pgflow{path}")
            page = Reader(answer.text)
            assert answer.status_code == 200
            assert "Path=/ops/pgflow;" in answer.headers.get("set-cookie", "Path=/ops/pgflow;")
            for link in page.links:
                assert link.startswith(("/ops/pgflow/", "#")), link
        assert (await client.get("/ops/pgflow/static/console.css")).status_code == 200
        page = Reader((await client.get("/ops/pgflow/run/order?key=i&verb=pause")).text)
        form = form_of(page, {})
        answer = await client.post(form.action, data=form.fields)
        assert answer.headers["location"].startswith("/ops/pgflow/run?")
