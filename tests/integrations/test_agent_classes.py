"""Agents of examples/agents that act where no key helps: whatever reply is lost and whatever moves
meanwhile, each act is done once, or none.
"""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest
from gitkit import git, make_repository
from processes import worker
from records import SOON, settle
from servers import HANG_SECONDS, wait_until
from sqlkit import one, rows

from examples.agents import browser, coding, research, sales, sre, world
from examples.agents.counterparty import LOSSES, Loss
from pgflow import App, RunFailed
from pgflow.authority import Approve, Pool, Reject
from pgflow.workspace import Workspace

Conn = psycopg.Connection[Any]

ALL = pytest.mark.parametrize("loss", [None, *LOSSES], ids=str)


@pytest.fixture(autouse=True)
def books(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTS_FOLDER", str(tmp_path))
    monkeypatch.setattr(world, "_known", {})


def lines(name: str) -> list[dict[str, Any]]:
    return world.counterparty(name).lines()


def lose(name: str, loss: Loss | None, *places: int) -> None:
    world.counterparty(name).lose = {place: loss for place in places if loss is not None}


@ALL
async def test_no_button_is_clicked_twice_though_the_site_knows_no_keys(aflow, loss):
    lose("shop", loss, 1, 3)
    aflow.include(browser.buy)
    run = await aflow.start(browser.buy, "shop", ["bread", "milk"])
    assert await run.result(SOON) == browser.Page("thanks", ("bread", "milk"))
    assert [line["button"] for line in lines("shop")] == ["add bread", "add milk", "buy"]


async def test_a_page_that_has_changed_is_not_clicked_on(aflow, conn, monkeypatch):
    seen = browser.page_of
    looks = iter([True])

    def moving(site: str) -> browser.Page:
        page = seen(site)
        if next(looks, False):  # behind the first look somebody else clicks
            world.counterparty(site)._write(
                {"number": "0", "act": "click", "key": "a person", "button": "add bread"}
            )
        return page

    monkeypatch.setattr(browser, "page_of", moving)
    aflow.include(browser.buy)
    run = await aflow.start(browser.buy, "shop", ["bread"])
    assert await run.result(SOON) == browser.Page("thanks", ("bread",))
    assert [line["button"] for line in lines("shop")] == ["add bread", "buy"]
    assert rows(conn, "select status from pgflow.effects order by seq") == ["failed", "confirmed"]


@pytest.mark.full
@ALL
async def test_one_agent_restarts_each_sick_host_once(aflow, loss):
    lose("fleet", loss, 1)
    aflow.include(sre.respond)
    first = await aflow.start(sre.respond, "inc-7", "ann's", ["web-1", "web-2"])
    await aflow.until_idle()
    second = await aflow.start(sre.respond, "inc-7", "bob's", ["web-1", "web-2"])
    assert await second.result(SOON) == []
    for _ in range(2):
        await aflow.answer("destroy", Approve(), by="on-call")
        await aflow.until_idle()
    log = ["ann's: restart web-1", "ann's: restart web-2"]
    assert await first.result(SOON) == log
    assert [line["host"] for line in lines("fleet")] == ["web-1", "web-2"]


async def test_a_host_that_is_well_by_then_is_left_alone(aflow):
    aflow.include(sre.respond)
    run = await aflow.start(sre.respond, "inc-8", "ann's", ["web-1"])
    await aflow.until_idle()
    await world.counterparty("fleet").act("repaired", "by a person", host="web-1")
    await aflow.answer("destroy", Approve(), by="on-call")
    assert await run.result(SOON) == ["ann's: web-1 was well by then"]
    assert [line["act"] for line in lines("fleet")] == ["repaired"]


async def test_without_leave_nothing_is_destroyed(aflow):
    aflow.include(sre.respond)
    run = await aflow.start(sre.respond, "inc-9", "ann's", ["web-1"])
    await aflow.until_idle()
    await aflow.answer("destroy", Reject("not during the sale"), by="on-call")
    assert await run.result(SOON) == ["ann's: no leave to restart web-1"]
    assert lines("fleet") == []


@pytest.mark.parametrize(("usd", "readings"), [(1, 6), (Decimal("0.06"), 3)])
async def test_a_report_has_a_source_for_each_claim_and_ends_with_the_money(
    aflow, conn, usd, readings
):
    aflow(pools=[Pool("reading", usd=usd)]).include(research.research)
    run = await aflow.start(research.research.options(pool="reading"), "why")
    report = await run.result(SOON)
    assert len(report.claims) == readings
    assert report.unread == ([] if readings == 6 else ["why.1", "why.1.1"])
    assert len(lines("model")) == readings
    assert one(conn, "select sum(usd) from pgflow.charges") == readings * research.PRICE
    found = "select evidence->>0 from pgflow.decisions order by seq"
    assert rows(conn, found) == [url for _, url in report.claims]


@pytest.mark.full
@ALL
async def test_each_mail_is_sent_once_and_an_answer_ends_them(aflow, loss):
    lose("mail", loss, 1, 2)
    aflow.include(sales.reach_out)
    run = await aflow.start(sales.reach_out, "ada")
    await aflow.until_idle()
    await aflow.answer("first mail", Approve(edit="Dear Ada"), by="sales lead")
    await aflow.until_idle()
    await aflow.skip(timedelta(days=4))
    await aflow.until_idle()
    await run.send(sales.answered, "call me")
    assert await run.result(SOON) == "answered: call me"
    assert [line["text"] for line in lines("mail")] == ["Dear Ada", "Dear ada, mail 2"]


@pytest.mark.full
async def test_whoever_wants_no_mail_gets_none_from_any_run(aflow):
    aflow.include(sales.reach_out)
    runs = [await aflow.start(sales.reach_out, "ada") for _ in range(2)]
    await aflow.until_idle()
    assert sorted([await run.status() for run in runs]) == ["waiting", "waiting"]
    await world.counterparty("stop list").act("stop", "k", prospect="ada")
    await aflow.answer("first mail", Approve(), by="sales lead")
    assert [await run.result(SOON) for run in runs] == ["wants none", "wants none"]
    assert lines("mail") == []


SHOP = "def price(cents):\n    return cents\n"
TEST = "import shop\nassert shop.price(5) == {}, shop.price(5)\n"


@pytest.fixture
def repository(tmp_path: Path) -> Workspace:
    folder = make_repository(
        tmp_path / "shop", **{"shop.py": SHOP, "test_shop.py": TEST.format(10)}
    )
    git(tmp_path, "init", "--quiet", "--bare", "remote")
    return Workspace(str(folder), "ticket-7")


@pytest.mark.full
async def test_edits_are_pushed_once_a_person_has_seen_them(aflow, conn, repository, tmp_path):
    remote = tmp_path / "remote"
    aflow(pools=[Pool("tickets", usd=1)]).include(coding.code)
    options = coding.code.options(pool="tickets")
    run = await settle(aflow, options, repository, "twice the price", str(remote))
    (diff,) = rows(conn, "select request #>> '{}' from pgflow.gates")
    assert "+    return cents * 2" in diff
    assert git(remote, "for-each-ref") == ""
    await aflow.answer("push", Approve(), by="reviewer")
    after = await run.result(SOON)
    assert git(remote, "rev-parse", "agent/ticket-7").strip() == after
    assert "cents * 2" in git(remote, "show", "agent/ticket-7:shop.py")
    (edit,) = [one for one in repository.history() if one.kind == "change"]
    assert edit.decision == one(conn, "select decision from pgflow.charges")


@pytest.mark.full
async def test_edits_that_stay_red_are_dropped_and_those_of_people_are_not(
    aflow, conn, repository, tmp_path
):
    folder = Path(repository.path)
    (folder / "test_shop.py").write_text(TEST.format(20))
    (folder / "mine").write_text("mine")
    aflow(pools=[Pool("tickets", usd=1)]).include(coding.code)
    options = coding.code.options(pool="tickets")
    run = await aflow.start(options, repository, "four times", str(tmp_path / "remote"), 1)
    with pytest.raises(RunFailed) as failed:
        await run.result(SOON)
    assert "AssertionError: 10" in str(failed.value)
    assert (folder / "shop.py").read_text() == SHOP
    assert (folder / "mine").read_text() == "mine"
    assert one(conn, "select sum(usd) from pgflow.charges") == Decimal("0.50")


@pytest.mark.full
@pytest.mark.parametrize("place", ["browser", "sre", "research", "sales", "coding"])
def test_an_agent_that_is_killed_in_an_act_goes_on_and_does_it_once(
    dsn, conn, repository, tmp_path, monkeypatch, place
):
    """The worker dies by SIGKILL when the act is done and nobody has recorded it."""
    monkeypatch.setenv("AGENT_RECORD", str(tmp_path / "record"))
    conn.execute("select pgflow.set_pool('all', '{\"usd\": 5}')")
    flow, arguments, gate = {
        "browser": (browser.buy, ("site", ["bread"]), None),
        "sre": (sre.respond, ("inc-7", "ann's", ["web-1"]), "on-call"),
        "research": (research.research, ("why",), None),
        "sales": (sales.reach_out, ("ada", 1), "sales lead"),
        "coding": (coding.code, (repository, "twice", str(tmp_path / "remote")), "reviewer"),
    }[place]
    with App(dsn) as app, worker(dsn, module="agent_jobs") as victim:
        handle = app.start(flow.options(pool="all"), *arguments)  # type: ignore[attr-defined]
        approve(app, conn, gate if place != "coding" else None)
        victim.process.wait(HANG_SECONDS)
        assert victim.process.returncode == -9
        with worker(dsn, module="agent_jobs"):
            approve(app, conn, gate if place == "coding" else None)
            if place == "sales":
                wait_for(conn, "select count(*) = 1 from pgflow.effects where status = 'confirmed'")
                handle.send(sales.answered, "yes")
            handle.result(HANG_SECONDS)
    single = {"browser": "site", "sre": "fleet", "research": "model", "sales": "mail"}
    if place == "coding":
        assert (Path(repository.path) / "shop.py").read_text().count("* 2") == 1
        kinds = [snapshot.kind for snapshot in repository.history()]
        assert kinds.count("change") == 1
    else:
        book = lines(single[place])
        about = [
            line.get("button") or line.get("host") or line.get("url") or line.get("text")
            for line in book
        ]
        assert len(about) == len(set(about)) > 0, about


def approve(app: App, conn: Conn, by: str | None) -> None:
    """Answers the gate of a run, once it asks."""
    if by is not None:
        wait_for(conn, "select count(*) = 1 from pgflow.gates")
        app.answer(one(conn, "select gate from pgflow.gates"), Approve(), by=by)


def wait_for(conn: Conn, query: str) -> None:
    """Waits until a query says true."""
    wait_until(lambda: one(conn, query), query)
