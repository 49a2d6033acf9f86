"""Live pages: what is new comes by itself, and nothing else costs the database anything."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import pytest
from chromium import chromium
from clikit import finish
from records import settle
from starlette.requests import Request
from test_console_pages import FLOWS, await_payment, long
from test_web_command import console
from webkit import Browser, Watched, is_harmless

from pgflow.inspect import Question
from pgflow.inspect.question import Steps
from pgflow.web import Principal, live, news

ANN = Principal("ann", ["admin"], acts_as=["ops"])


@pytest.fixture(autouse=True)
def swift(monkeypatch: pytest.MonkeyPatch) -> None:
    """Poll often, rest shortly."""
    monkeypatch.setattr(news, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(live, "REST_SECONDS", 0.01)


@pytest.mark.full
async def test_what_is_new_comes_by_itself(aflow):
    aflow.include(*FLOWS)
    browser = Browser(aflow.app, ANN)
    async with Watched(browser, "/runs") as runs, Watched(browser, "/run?key=i") as run:
        await run.until("Not found")  # it is told once it is there
        await settle(aflow, await_payment.options(key="i"), "o")
        page = await runs.until("i waiting")
        assert is_harmless(page) == []
        assert "Search" in page.words
        await run.until("It waits for a signal from outside.")
    browser.served.close()


@pytest.mark.full
async def test_a_page_of_which_nothing_is_new_is_not_made_again(aflow, monkeypatch):
    aflow.include(*FLOWS)
    await settle(aflow, long.options(key="l"), 1)
    polls = 0

    def counted() -> Question[int]:
        nonlocal polls
        polls += 1
        return Question(nothing_new)

    monkeypatch.setattr(news, "read_pulse", counted)
    monkeypatch.setattr(news.News, "_listener", lambda _: None)  # else it is told once it listens
    browser = Browser(aflow.app, ANN)
    async with Watched(browser, "/run?key=l") as first:
        await first.until("completed")
        page = await browser.get("/run", key="l")
        (mark,) = [attrs["data-live"] for tag, attrs in page.elements if tag == "main"]
        made, before = len(first.events), polls
        async with (
            Watched(browser, f"/run?key=l&seen={mark}") as second,
            Watched(browser, "/run?key=l", **{"last-event-id": str(mark)}) as third,
            Watched(browser, "/run?key=l&seen=other-1") as fourth,
        ):
            await fourth.until("completed")  # it was made by another process
            while polls < before + 5:
                await asyncio.sleep(0)
            assert (len(first.events), second.events, third.events) == (made, [], [])
    browser.served.close()


def nothing_new() -> Steps[int]:
    yield from ()
    return 7


async def test_a_stream_is_of_whoever_may_see_the_page(aflow):
    stranger = Browser(aflow.app, auth=lambda _: None)
    async with Watched(stranger, "/runs") as watched:
        assert await watched.ended() == 401
    browser = Browser(aflow.app, ANN)
    for path in ("/run/order?key=i&verb=cancel", "/gate?gate=g", "/run/value?key=i&value=input"):
        async with Watched(browser, path) as watched:
            assert await watched.ended() == 406


async def test_streams_end_soon_with_the_server_and_by_themselves(aflow, monkeypatch):
    browser = Browser(aflow.app, ANN)
    async with Watched(browser, "/") as watched:
        await watched.until("Nothing needs you.")
        browser.served.close()
        assert await watched.ended() == 200
    monkeypatch.setattr(live, "STREAM_SECONDS", 0.2)
    browser = Browser(aflow.app, ANN)
    async with Watched(browser, "/") as watched:
        assert await watched.ended() == 200
    monkeypatch.setattr(live, "MOST_STREAMS", 0)
    async with Watched(browser, "/") as watched:
        assert await watched.ended() == 503
    browser.served.close()


def test_all_live_pages_together_take_a_part_of_a_core(monkeypatch):
    """The rest after each page is in proportion to what it took, whoever looks."""
    made = 0

    async def make(_: Any) -> tuple[str, float]:
        nonlocal made
        made += 1
        return "<p>page</p>", 400.0

    class Always:
        count = 7

    async def look() -> None:
        streams, rests = live.Live(Always(), make), []  # type: ignore[arg-type]

        async def rest(seconds: float) -> None:
            rests.append(seconds)

        monkeypatch.setattr(streams, "_rest", rest)
        request = Request({"type": "http"})
        await asyncio.gather(*(streams._renew(request, live._View(), 7) for _ in range(6)))
        assert sum(3000 < seconds <= 3600 for seconds in rests) == 5
        assert made == 6
        shared = live._View()
        await asyncio.gather(*(streams._renew(request, shared, 7) for _ in range(6)))
        assert made == 7  # of one page and person, once

    monkeypatch.setattr(live, "SHARE", 0.1)
    asyncio.run(look())


def test_a_page_that_has_to_rest_ends_with_the_console():
    async def make(_: Any) -> tuple[str, float]:
        return "<p>page</p>", 3600

    class Silent:
        count = 7

        def close(self) -> None:
            pass

    async def look() -> None:
        streams, second = live.Live(Silent(), make), live._View()  # type: ignore[arg-type]
        await streams._renew(Request({"type": "http"}), live._View(), 7)
        resting = asyncio.create_task(streams._renew(Request({"type": "http"}), second, 7))
        while not streams._turn.locked():
            await asyncio.sleep(0)
        streams.close()
        await resting
        assert second.html == ""

    asyncio.run(look())


@pytest.mark.full
def test_a_browser_shows_what_is_new_and_keeps_what_is_unfolded(flow, dsn):
    flow.include(*FLOWS)
    flow.start(await_payment.options(key="i"), "x" * 100)
    with console(dsn) as (url, served), chromium() as browser:
        browser.open(url.link)
        browser.open(f"{url}/run?key=i")
        browser.ask("document.querySelector('details').open = true")
        flow.until_idle()
        browser.until("It waits for a signal from outside.")
        assert browser.ask("document.querySelector('details').open") is True
        assert "Live" in browser.ask("document.querySelector('footer').innerText")
        browser.open(f"{url}/runs")
        browser.fill('[name="key"]', "new*")
        flow.start(await_payment.options(key="new-1"), "o")
        browser.until("new-1")
        assert browser.ask("document.querySelector('[name=key]').value") == "new*"
        assert browser.complaints == []
        served.send_signal(signal.SIGTERM)  # with a page open
        assert finish(served).code == 0
