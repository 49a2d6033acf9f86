"""The SQL tab: what each page asks, and statements of one's own, for whoever may."""

from __future__ import annotations

import pytest
import servers
from records import settle
from test_console_pages import FLOWS, PAGES, await_payment
from webkit import Browser, address, form_of, is_harmless

from pgflow.errors import InvalidArgument
from pgflow.inspect.sheet import VARIABLE, read_text
from pgflow.web import Principal

ANN = Principal("ann", ["admin"])
EVE = Principal("eve", ["operate", "approve"])
EVIL = "<script>alert(1)</script>"


@pytest.fixture(autouse=True)
def auditor(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, servers.as_auditor(dsn))


async def test_a_statement_is_run_and_its_rows_are_text(aflow):
    aflow.include(*FLOWS)
    await aflow.start(await_payment.options(key=EVIL), EVIL)
    browser = Browser(aflow.app, ANN)
    sql = "select key, input from pgflow.runs"
    answer = await browser.submit("/sql", {"sql": ""}, sql=sql)
    assert answer.status_code == 200
    from webkit import Reader

    page = Reader(answer.text)
    assert is_harmless(page) == []
    assert page.words.count(EVIL) == 2
    assert "1 row" in page.words
    for refused, status, says in (
        ("select 1; select 2", 400, "semicolon"),
        ("select * from pgflow.run", 400, "permission denied for table run"),
        ("select set_config('a', 'b', true)", 400, "set_config(text,text,boolean) is none"),
        ("select nothing", 400, "does not exist"),
    ):
        answer = await browser.submit("/sql", {"sql": ""}, sql=refused)
        assert (answer.status_code, says in answer.text) == (status, True), answer.text[-900:]


async def test_without_an_auditors_login_nothing_is_run(aflow, dsn, monkeypatch):
    monkeypatch.delenv(VARIABLE)
    browser = Browser(aflow.app, ANN)
    answer = await browser.submit("/sql", {"sql": ""}, sql="select 1 as a")
    assert (answer.status_code, "create role pgflow_reader login" in answer.text) == (403, True)
    for named, status in ((dsn, 403), (servers.as_auditor(dsn), 200)):
        browser = Browser(aflow.app, ANN, auditor_dsn=named)
        answer = await browser.submit("/sql", {"sql": ""}, sql="select 1 as a")
        assert answer.status_code == status


async def test_only_an_admin_runs_a_statement(aflow):
    aflow.include(*FLOWS)
    await aflow.start(await_payment.options(key="i"), "o")
    eve, ann = Browser(aflow.app, EVE), Browser(aflow.app, ANN)
    page = await eve.get("/sql")
    assert "needs the role admin" in page.words
    form = form_of(await ann.get("/sql"), {"sql": ""})
    (order,) = (await eve.get("/run/order", key="i", verb="cancel")).forms
    mark = order.fields["mark"]  # one of hers, so that only her role is in the way
    assert (await eve.send(form, mark=mark, sql="select 1 as a")).status_code == 403
    assert (await ann.client.post("/sql", data={"sql": "select 1"})).status_code == 403  # no mark
    form = form_of(await ann.get("/sql"), {"sql": ""})
    assert (await ann.send(form, sql="select 1 as a")).status_code == 200


@pytest.mark.full
async def test_each_page_shows_what_it_asks(aflow):
    aflow.include(*FLOWS)
    await settle(aflow, await_payment.options(key="i'1"), "o")
    browser = Browser(aflow.app, ANN)
    refused = []
    for path in (*PAGES, address("/run", key="i'1"), "/runs?status=failed&workflow=w"):
        if path == "/sql":
            continue
        page = await browser.get(path)
        (behind,) = [one for one in page.links if "/sql/page" in one]
        page = await browser.get(behind)
        assert is_harmless(page) == []
        taken = [one for one in page.links if one.startswith("/sql?sql=")]
        assert taken, path
        for one in taken:
            text = (await browser.get(one)).forms[-1].fields["sql"]
            try:
                read_text(text)
            except InvalidArgument as error:
                refused.append(str(error))
            answer = await browser.submit(one, {"sql": text})
            assert answer.status_code in (200, 400)
    assert refused == []
    for wrong in ("/nowhere", "", "/sql/page?page=%2F", "https://other"):
        assert await browser.status("/sql/page", page=wrong) == 400
    assert await browser.status("/sql/page", page="/run?key=none") == 404
