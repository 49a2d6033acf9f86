"""One answer to many gates: exactly those that were shown and ticked, each by the person who sends
it, with the checks of a single one.
"""

from __future__ import annotations

from webkit import Browser, address, form_of, is_harmless

import pgflow
from pgflow import workflow
from pgflow._model.kinds import Status
from pgflow.inspect import ask_async, list_gates, read_statuses
from pgflow.testing import AsyncHarness
from pgflow.web import Principal

ANN = Principal("ann", ["approve"], acts_as=["ops"])
EVE = Principal("eve", ["view"])
NAMED = {"workflow": "refund", "name": "approve-refund"}


@workflow
async def refund(cents: int, who: str = "ops") -> str:
    said = await pgflow.authority.gate(
        "approve-refund", {"cents": cents}, approvers=[who], timeout=3600
    )
    return f"{type(said).__name__} {getattr(said, 'reason', '')}".strip()


async def begin(aflow: AsyncHarness, *keys: str, who: str = "ops") -> None:
    aflow.include(refund)
    for number, key in enumerate(keys):
        await aflow.start(refund.options(key=key), number + 1, who)
    await aflow.until_idle()


async def results(aflow: AsyncHarness, *keys: str) -> list[Status]:
    await aflow.until_idle()
    return list((await ask_async(aflow.app, read_statuses(keys))).values())


async def test_many_gates_take_one_answer_and_later_ones_none(aflow):
    await begin(aflow, "r-1", "r-2", "r-3")
    browser = Browser(aflow.app, ANN)
    page = await browser.get("/gates", **NAMED)
    assert "approve-refund of refund 3" in page.words
    assert any(link.endswith(address("/gates/answer", **NAMED)) for link in page.links)
    page = await browser.get("/gates/answer", **NAMED)
    assert is_harmless(page) == []
    assert "Answer 3 gates" in page.words
    assert "r-2 2 cents" in page.words
    await begin(aflow, "r-4")  # while the page is read
    form = form_of(page, {})
    (left,) = await ask_async(aflow.app, list_gates("r-3"))
    del form.fields[f"hash:{left.gate}"]  # not ticked
    answer = await browser.send(form, verdict="approve", why="checked")
    assert "2 gates approved." in answer.text
    assert await results(aflow, "r-1", "r-2", "r-3", "r-4") == [
        "completed", "completed", "waiting", "waiting",
    ]  # fmt: skip
    answer = await browser.send(form, verdict="approve")  # sent twice
    assert "2 gates refused it." in answer.text
    answer = await browser.submit(address("/gates/answer", **NAMED), {}, verdict="reject")
    assert answer.status_code == 400
    assert "give a reason" in answer.text


async def test_each_of_many_answers_has_the_checks_of_a_single_one(aflow):
    await begin(aflow, "r-1")
    await begin(aflow, "boss-1", who="boss")
    gates = await ask_async(aflow.app, list_gates())
    chosen = "&".join(f"gate={gate.gate}" for gate in gates)
    browser = Browser(aflow.app, ANN)
    page = await browser.get(f"/gates/answer?{chosen}")
    form = form_of(page, {})
    ticks = [name for name in form.fields if name.startswith("hash:")]
    assert len(ticks) == 1  # the one that asks her
    boss = next(gate for gate in gates if gate.key == "boss-1")
    form.fields[f"hash:{boss.gate}"] = boss.payload_hash
    form.fields[ticks[0]] = "0" * 64  # of another request
    answer = await browser.send(form, verdict="reject", why="no")
    assert "2 gates refused it." in answer.text
    assert await results(aflow, "r-1", "boss-1") == ["waiting", "waiting"]
    assert await Browser(aflow.app, EVE).status("/gates/answer", **NAMED) == 403
    assert await browser.status("/gates/answer") == 400
