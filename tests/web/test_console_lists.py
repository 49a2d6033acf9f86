"""Lists of runs: their order, the counts that filter them, ticked runs, folded schedules, two runs
side by side, and searches for everyone.
"""

from __future__ import annotations

from records import settle
from sqlkit import one
from test_console_pages import ANN, FLOWS, await_payment, long, pay, seen_in
from webkit import Browser, address, form_of, is_harmless

from pgflow.testing import AsyncHarness
from pgflow.web import Principal

BOB = Principal("bob", ["operate"])


async def begin(aflow: AsyncHarness) -> Browser:
    aflow.include(*FLOWS)
    await settle(aflow, await_payment.options(key="slow"), "o")
    await aflow.skip(60)
    for key in ("a", "b"):
        await aflow.start(long.options(key=key), 3 if key == "a" else 4)
    await settle(aflow, pay.options(key="bad"), 7)
    return Browser(aflow.app, ANN)


async def test_runs_have_a_duration_an_order_and_counts_that_filter(aflow):
    browser = await begin(aflow)
    page = await browser.get("/runs")
    assert is_harmless(page) == []
    seen_in(page, "Took", "waiting 1", "queued 0")
    assert address("/runs", status="waiting") in page.links
    keys = [one for one in page.words.split() if one in ("a", "b", "slow", "bad")]
    assert keys[0] == "bad"
    for sort, first in (("longest", "slow"), ("oldest", "slow")):
        page = await browser.get("/runs", sort=sort)
        found = page.words.partition("Why")[2]
        assert found.index(first) < found.index("bad"), sort
    assert await browser.status("/runs", sort="size") == 400
    assert await browser.status("/runs", sort="oldest", workflow="pay") == 400
    assert "waiting 1" not in (await browser.get("/runs", workflow="pay")).words


async def test_ticked_runs_get_an_order_or_stand_side_by_side(aflow):
    browser = await begin(aflow)
    page = await browser.get("/runs/order?verb=cancel&chosen=slow&chosen=a")
    seen_in(page, "Cancel 1 run for good", "pgflow cancel slow a")  # the other has ended
    answer = await browser.send(form_of(page, {}))
    assert "1 run ordered." in answer.text
    page = await browser.get("/run/compare?chosen=a&chosen=b")
    assert is_harmless(page) == []
    seen_in(page, "Two runs", "3 units are alike. Then they differ", "sku 3", "no further unit")
    page = await browser.get("/run/compare", key="a", **{"with": "b"})
    seen_in(page, "Two runs", "steps 4 3")
    assert await browser.status("/run/compare?chosen=a") == 400
    assert await browser.status("/runs/order?verb=cancel") == 400


async def test_runs_of_a_schedule_are_folded_unless_they_need_a_look(aflow, conn):
    aflow.include(*FLOWS)
    for n in range(5):
        labels = {"schedule": "nightly"}
        await aflow.start(long.options(key=f"nightly/{n}", labels=labels), 0)
        await aflow.start(pay.options(key=f"bad/{n}", labels=labels), 7)
    await aflow.until_idle()
    one(conn, "select pgflow.set_schedule('nightly', 'long', '{\"cron\": [\"30 2 * * *\"]}')")
    browser = Browser(aflow.app, ANN)
    page = await browser.get("/runs")
    seen_in(page, "5 runs of schedule nightly", "bad/0", "bad/4")
    assert "nightly/3" not in page.words
    folded = address("/runs", label="schedule=nightly", status="completed")
    assert folded in page.links
    seen_in(await browser.get(folded), "nightly/0", "nightly/4")
    for n in range(49):
        await aflow.start(long.options(key=f"other-{n}"), 0)
    await aflow.until_idle()
    page = await browser.get("/runs")
    assert "bad/3" not in page.words
    (older,) = [link for link in page.links if "after=" in link]
    page = await browser.get(older)
    seen_in(page, "bad/3", "5 runs of schedule nightly")


async def test_a_search_may_be_saved_for_everyone(aflow):
    browser = await begin(aflow)
    form = form_of(await browser.get(address("/filters", status="failed")), {"verb": "save"})
    form.fields.pop("everyone", None)
    assert (await browser.send(form, name="mine")).status_code == 303
    assert (await browser.send(form, name="ours", everyone="1")).status_code == 303
    page = await Browser(aflow.app, BOB).get("/runs")
    assert "ours" in page.words
    assert "mine" not in page.words
    seen_in(await browser.get("/runs"), "ours", "mine")
