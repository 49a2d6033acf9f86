"""The overview: one line on the health of the system, and plots of a day that say in words what
they draw.
"""

from __future__ import annotations

from clikit import make_stuck
from records import settle
from sqlkit import one
from test_console_pages import ANN, FLOWS, Order, ask_first, long, pay, seen_in
from webkit import Browser, address, is_harmless

SILENCE = """
begin;
lock table pgflow.worker;  -- else a beat that is under way and the trigger wait for each other
update pgflow.worker set beat_at = beat_at - interval '5 minutes';
create function public.keep_silent() returns trigger language plpgsql as
  'begin new.beat_at := old.beat_at; return new; end';
create trigger keep_silent before update on pgflow.worker
  for each row execute function public.keep_silent();
commit
"""
"""Makes all workers silent for five minutes, and keeps them so, however often they beat."""


async def test_one_line_says_whether_the_system_is_healthy(aflow, conn):
    aflow.include(*FLOWS)
    await settle(aflow, long.options(key="l"), 1)
    seen_in(await Browser(aflow.app, ANN).get("/overview"), "Healthy. 1 worker, 0 runs queued")
    await settle(aflow, ask_first.options(key="a"), Order("boots", 2, True))
    seen_in(
        await Browser(aflow.app, ANN).get("/overview"), "Healthy.", "Open for an answer: 1 gate."
    )
    await settle(aflow, pay.options(key="p"), 7)
    page = await Browser(aflow.app, ANN).get("/overview")
    seen_in(page, "Working, with something to look at: 1 failed. Triage")
    make_stuck(conn, "s")
    seen_in(await Browser(aflow.app, ANN).get("/overview"), "Needs repair: 1 stuck.")


async def test_a_worker_that_is_silent_is_not_counted_among_those_that_work(aflow, conn):
    aflow.include(*FLOWS)
    await settle(aflow, long.options(key="l"), 1)
    conn.execute(SILENCE)
    page = await Browser(aflow.app, ANN).get("/overview")
    seen_in(page, "Needs repair: 1 worker.", "1 worker, 1 silent.")
    seen_in(await Browser(aflow.app, ANN).get("/workers"), "silent")
    page = await Browser(aflow.app, ANN).get("/")
    seen_in(page, "The next live worker takes over its 0 runs.", "pgflow top --once")


async def test_plots_have_axes_a_range_and_words_for_each_bar(aflow, conn):
    aflow.include(*FLOWS)
    await settle(aflow, long.options(key="l"), 1)
    took = "{" + "0," * 40 + "9,1}"
    one(conn, "select pgflow.add_rates('[[1, 8, 2, 0]]', %s)", took)
    conn.execute("update pgflow.rate set minute = minute - interval '3 hours'")
    browser = Browser(aflow.app, ANN)
    page = await browser.get("/overview")
    assert is_harmless(page) == []
    seen_in(page, "0 runs ended", "60 m ago 30 m ago now", "No run has ended.")
    for chosen, beginning in (("6h", "6 h ago 3 h ago now"), ("24h", "24 h ago 12 h ago now")):
        page = await browser.get("/overview", range=chosen)
        seen_in(
            page, "10 runs ended, 2 of them failed", "p50 1.2 s, p99 1.5 s", beginning, "10 5 0"
        )
        assert address("/overview", range="1h") in page.links
        assert "UTC: 10 ended, 2 failed" in page.text
    assert await browser.status("/overview", range="7d") == 400
