"""A run beside its origin, its saga, and the link to its logs."""

from __future__ import annotations

import pytest
from records import settle
from test_console_pages import ANN, seen_in
from webkit import Browser, address, is_harmless

import pgflow
from pgflow import Signal, inspect, step, workflow
from pgflow.console.traces import checked_logs
from pgflow.effects import effect, saga
from pgflow.errors import InvalidArgument

go = Signal("go", str)


@step
async def price(item: str) -> str:
    return f"price of {item}"


@workflow
async def quote(item: str, shop: str) -> str:
    first = await price("everything")
    return f"{first}, {await price(item)} at {shop}"


@effect(risk="compensable")
async def reserve(seat: str) -> str:
    return f"seat {seat}"


@reserve.compensate
async def release(seat: str, result: str) -> None: ...


@workflow
async def travel(seat: str) -> str:
    async with saga():
        await reserve(seat)
        if await go.wait() == "fail":
            raise ValueError("no train")
    return seat


@pytest.mark.full
async def test_a_fork_is_shown_beside_its_origin(aflow):
    await settle(aflow, quote.options(key="q"), "<b>lamp</b>", "here")
    fork = await aflow.app.fork(
        "q", "f", at=0, input={"item": "desk", "shop": "here"}, effects="repeat"
    )
    await aflow.app.fork("q", "same", at=2, effects="repeat")
    await aflow.until_idle()
    browser = Browser(aflow.app, ANN)
    page = await browser.get("/run", key=str(fork))
    assert address("/run/compare", key="f") in page.links
    page = await browser.get("/run/compare", key="f")
    assert is_harmless(page) == []
    seen_in(page, "begins with 0 units of q", "1 unit after the cut is alike", "price of desk")
    seen_in(page, '"price of <b>lamp</b>"', '"desk"', "Status the same")
    assert "shop" not in page.words.partition("Result")[0].partition("Input")[2]
    page = await browser.get("/run/compare", key="same")
    seen_in(page, "after the cut are alike, as far as both go", "They have the same input.")
    assert await browser.status("/run/compare", key="q") == 400
    assert await browser.status("/run/compare", key="none") == 404
    await aflow.app.rewind("q", to=2, effects="repeat")
    await aflow.until_idle()
    seen_in(await browser.get("/run/compare", key="q"), "A generation and the one before")


async def test_a_run_tells_what_its_saga_would_take_back_and_has(aflow):
    await settle(aflow, travel.options(key="t"), "7a")
    browser = Browser(aflow.app, ANN)
    page = await browser.get("/run", key="t")
    seen_in(page, "Taking back It would be taken back, in this order, if a saga around it failed")
    await aflow.app.send("t", go, "fail")
    await aflow.until_idle()
    page = await browser.get("/run", key="t")
    seen_in(page, "is taken back by", "confirmed")
    assert "would be taken back" not in page.words


@pytest.mark.full
async def test_a_run_leads_to_its_logs_by_its_trace(aflow, conn):
    aflow.include(quote)
    trace = "0af7651916cd43dd8448eb211c80319c"
    parent = {"traceparent": f"00-{trace}-b7ad6b7169203331-01"}
    await aflow.start(quote.options(key="a&b", metadata=parent), "x", "y")
    await settle(aflow, quote.options(key="plain"), "x", "y")
    browser = Browser(aflow.app, ANN, logs="https://logs.example.org/?q={trace_id}&k={key}")
    page = await browser.get("/run", key="a&b")
    assert f"https://logs.example.org/?q={trace}&k=a%26b" in page.links
    page = await browser.get("/run", key="plain")
    (link,) = [one for one in page.links if "logs.example.org" in one]
    assert len(link.partition("q=")[2].partition("&")[0]) == 32
    assert "Logs" not in (await Browser(aflow.app, ANN).get("/run", key="plain")).words
    assert inspect.ask(conn, inspect.read_trace(-1)) == ""
    for wrong in (
        "javascript:alert('{key}')",
        "logs.example.org/{key}",
        "https://{key}/",
        "https://x/{id}",
        "https://{trace_id}.example.org/",
        "https://x/ {key}",
    ):
        with pytest.raises(InvalidArgument, match="logs="):
            checked_logs(wrong)


def test_the_trace_of_a_run_without_one_is_that_of_its_spans():
    assert inspect.derive_ids("x") == inspect.derive_ids("x")
    assert pgflow.inspect.derive_ids("x")[0] < 1 << 128
