"""A walk through the console in Chromium: watching work live, and doing it again; and no page that
somebody with a reader of screens, or without a mouse, could not use.
"""

from __future__ import annotations

import json

import pytest
from chromium import chromium, find_axe
from clikit import process
from records import run_row, settle, wait_until
from schedulekit import setting
from sqlkit import begin, one, rows, start, start_many
from test_console_forms import pay_back
from test_console_pages import FLOWS, PAGES, Order, agent, ask_first, checkout, contract, pay, ship
from test_web_command import console
from webkit import refuse

from pgflow.authority import Pool

pytest.importorskip("uvicorn", reason="needs uvicorn, which the extra test has")

MANY = 10_000


@pytest.mark.full
def test_a_person_watches_work_live_and_does_it_again(conn, dsn):
    start_many(conn, [(f"batch-{n}", "{}") for n in range(MANY)], queue="slow")
    first = process(dsn, "workers", "cli_jobs", "--dead-after", "5s")
    second = None
    try:
        with console(dsn) as (url, _), chromium() as browser:
            browser.open(url.link)
            browser.look(1280, 900)
            browser.open(f"{url}/runs?workflow=resting")
            start(conn, "resting", key="nap", input='{"count": 1, "seconds": 3600}')
            browser.until("nap running resting")
            start(conn, "greet", key="hello", input='{"name": "Ann"}')
            second = process(dsn, "workers", "cli_jobs", "--dead-after", "5s")
            browser.press("nap")
            browser.until("A worker holds it and runs its code.")
            wait_until(lambda: len(rows(conn, "select pid from pgflow.worker")) == 2, "both work")
            first.kill()
            browser.until("Worker 2, claim")
            browser.open(f"{url}/run?key=hello")
            browser.until("It has completed")
            browser.press("Repeat a part")
            browser.press("From the beginning, with another input")
            browser.fill('[name="new_key"]', "hello-eve")
            browser.fill('[name="input"]', '{"name": "<b>Eve</b>"}')
            browser.ask(
                "document.querySelector('form:has([name=new_key]) [name=effects]').value = 'repeat'"
            )
            browser.press("Fork")
            browser.until("Hello <b>Eve</b>")
            browser.press("with its fork's origin")
            assert "<b>Eve</b>" in browser.words
            browser.open(f"{url}/runs?queue=slow&status=queued")
            browser.press("Cancel")
            browser.fill('[name="why"]', "not wanted")
            browser.press("Cancel 500 runs for good")
            assert "500 runs ordered." in browser.words
            assert browser.complaints == []
    finally:
        for worker in filter(None, (first, second)):
            worker.kill()
            worker.communicate()
    found = rows(conn, "select status from pgflow.runs where reason = 'not wanted'")
    assert found == ["cancelled"] * 500
    assert one(conn, "select queued from pgflow.queues where queue = 'slow'") == MANY - 500
    assert run_row(conn, "hello", "status") == ("completed",)


@pytest.mark.full
def test_no_page_has_a_barrier(flow, conn, dsn):
    axe = find_axe()
    flow(pools=[Pool("models", usd=1)])
    flow.include(*FLOWS, pay_back)
    flow.start(checkout.options(key="order-1"), Order("boots", 1, True))
    flow.start(ask_first.options(key="ask-1"), Order("boots", 20, True))
    flow.start(pay_back.options(key="refund-1"))
    flow.start(ship.options(key="ship-1"), "lost")
    flow.start(pay.options(key="pay-1"), 7)
    flow.start(contract.options(key="contract-1"), "ACME")
    settle(flow, agent.options(key="agent-1", pool="models"))
    flow.app.fork("pay-1", "pay-2", at=0, input={"cents": 8}, effects="repeat")
    setting(conn, "nightly", why="because")
    one(conn, "select pgflow.declare_relay('mailer', array['orders'])")
    one(conn, "select pgflow.publish('orders', '1')")
    refuse(conn, "mailer", "no")
    one(conn, "select pgflow.pause_relay('mailer', 'why', 'ann')")
    rules = [{"name": "refund", "needs": "gate"}]
    one(conn, "select pgflow.set_policy(%s, 'limits')", json.dumps(rules))
    worker = begin(conn, key="held-1").worker
    gate, rich = rows(conn, "select gate from pgflow.gates order by workflow")
    debts = rows(conn, "select effect from pgflow.obligations where kind <> 'gate'")
    pages = [
        *PAGES,
        "/run?key=order-1",
        "/run?key=pay-1",
        "/run/again?key=pay-1",
        "/filters",
        "/run/compare?key=pay-2",
        "/run/order?key=ask-1&verb=cancel",
        f"/worker?id={worker}",
        "/runs?status=failed",
        "/gates/answer?workflow=ask_first&name=approve-order",
        "/runs/order?verb=retry&status=failed",
        "/filters?status=failed",
        "/sql/page?page=/",
        "/workflow?name=pay",
        "/budget?pool=models",
        "/schedule?name=nightly",
        "/schedule/order?name=nightly&verb=backfill",
        "/relay?name=mailer",
        "/relay/order?name=mailer&verb=replay",
        "/queue?name=default",
        f"/gate?gate={gate}",
        "/run?key=none",
        *(f"/debt?key={key}" for key in debts),
    ]
    found = {}
    with console(dsn) as (url, _), chromium() as browser:
        browser.open(url.link)
        for place, path in enumerate(pages):
            browser.look(1280 if place % 3 else 390, 900, dark=bool(place % 2))
            browser.open(url + path)
            found |= {path: barriers} if (barriers := browser.find_barriers(axe)) else {}
        for width, is_dark in ((1280, False), (390, True)):
            browser.look(width, 900, dark=is_dark)
            browser.open(f"{url}/gate?gate={rich}")
            browser.unfold("Edit, then approve")
            browser.fill('[name="value:/total"]', "many")
            browser.press("Approve as edited")
            assert "many is not a number." in browser.words
            found |= {"edit": barriers} if (barriers := browser.find_barriers(axe)) else {}
    assert found == {}, json.dumps(found, indent=1)
