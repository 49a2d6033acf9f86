"""Runs of other tenants in the console, which knows one: no address leads to them."""

from __future__ import annotations

from sqlkit import begin, commit, flush, start, unit
from test_console_pages import ANN
from webkit import Browser, address, form_of

from pgflow import AsyncApp
from pgflow.inspect.connecting import dsn_of_tenant


async def test_no_address_leads_to_a_run_of_another_tenant(aflow, conn):
    start(conn, "another", key="ours", input='{"a": 1}')
    held = begin(conn, key="theirs", input='{"secret": "hush"}', tenant="other")
    spent = unit(kind="M", call=0, name="pick", payload='{"call": 1, "amounts": {"usd": "1"}}')
    commit(conn, flush(held, unit(name="pick", payload='"hush"'), spent))
    conn.execute(
        "insert into pgflow.charge (run_id, charged_at, seq, call, name, pools, periods, amounts)"
        " select run_id, recorded_at, seq, 1, name, '{}', '{}', '{\"usd\": 1}'"
        " from pgflow.unit where kind = 'M'"
    )
    browser = Browser(aflow.app, ANN)
    for path, more in (
        ("/run", {}),
        ("/run/value", {"value": "input"}),
        ("/run/value", {"value": "1"}),
        ("/run/order", {"verb": "cancel"}),
        ("/run/again", {}),
        ("/run/compare", {}),
    ):
        assert await browser.status(path, key="theirs", **more) == 404, path
    for path in ("/", "/runs", "/runs?key=*", "/runs?status=running", "/budgets"):
        assert "theirs" not in (await browser.get(path)).words, path
    page = await browser.get("/worker", id=str(held.worker))
    assert "theirs" not in page.words
    form = form_of(await browser.get(address("/run/order", key="ours", verb="cancel")), {})
    form.action = address("/run/order", key="theirs", verb="cancel")
    assert (await browser.send(form)).status_code == 404
    form = form_of(await browser.get(address("/run/again", key="ours")), {"verb": "fork"})
    form.action = address("/run/again", key="theirs")
    assert (await browser.send(form, at="0", new_key="mine")).status_code == 404
    bulk = form_of(await browser.get("/runs/order?verb=cancel&key=ours"), {})
    answer = await browser.send(bulk, keys='["theirs"]')
    assert "0 runs ordered" in " ".join(answer.text.split()) or answer.status_code == 404
    status = "select status from pgflow.runs where key = 'theirs'"
    assert conn.execute(status).fetchone() == ("running",)


async def test_a_page_says_whose_runs_it_lists(aflow, conn, dsn):
    """A console of no tenant says that runs of tenants are left out, where there are any."""
    hint = "Only runs without a tenant are listed. For those of one: pgflow --tenant NAME web"
    start(conn, key="order-1")
    assert hint not in (await Browser(aflow.app, ANN).get("/runs")).words
    start(conn, key="order-1", tenant="acme")
    for path in ("/", "/runs", "/gates"):
        assert hint in (await Browser(aflow.app, ANN).get(path)).words
    async with AsyncApp(dsn_of_tenant(dsn, "acme")) as app:
        page = await Browser(app, ANN).get("/runs")
        assert "tenant acme" in page.words
        assert "order-1" in page.words
        assert hint not in page.words
