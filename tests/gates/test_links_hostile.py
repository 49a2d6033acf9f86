"""Links in the hands of others: each byte altered, of another gate, request or key, out of time, by
other methods, huge and malformed.
"""

from __future__ import annotations

import asyncio
import string
from datetime import timedelta
from typing import Any

import pytest
from records import SOON, count
from test_gates import BOOTS, told
from test_links import KEYS, ask, at_gate, later

from pgflow.authority import Approved
from pgflow.errors import InvalidLink
from pgflow.links import LinkKeys, asgi

LETTERS = string.ascii_letters + string.digits + "-_."


def line_of(page: str) -> str:
    """The text of a page, below its title."""
    said = page.partition("</h1>")[2].partition("</body>")[0]
    assert said.startswith("<p>")
    assert said.endswith("</p>")
    assert said.count("<p>") == 1
    return said[3:-4]


@pytest.mark.full
def test_no_letter_of_a_link_can_be_another():
    token = KEYS.sign("a/gate/1", "0" * 64, "approve", "ann", later())
    for place, letter in enumerate(token):
        for other in LETTERS:
            if other != letter:
                with pytest.raises(InvalidLink):
                    KEYS.read(token[:place] + other + token[place + 1 :])
        with pytest.raises(InvalidLink):
            KEYS.read(token[:place] + token[place + 1 :])
        with pytest.raises(InvalidLink):
            KEYS.read(token[:place])
        with pytest.raises(InvalidLink):
            KEYS.read(token[:place] + letter + token[place:])


@pytest.mark.parametrize(
    "token",
    [
        "",
        ".",
        "..",
        "a.b.c",
        "=.=",
        "\0.\0",
        "\ud800.\ud800",
        "é" * 100,
        "a" * 4096 + "." + "b" * 43,
        "a" * 10_000_000,
        "%2e%2e%2f",
        "null",
        "W10.W10",
    ],
    ids=["empty", "dot", "dots", "parts", "padding", "nul", "surrogate", "letters", "long", "huge", "path", "null", "json"],
)  # fmt: skip
async def test_what_is_no_link_is_refused_in_one_line(token, aflow, conn):
    served = asgi(aflow.app, keys=KEYS)
    for method in ("GET", "POST"):
        status, page = await ask(served, method, token)
        assert status == 403
        assert "link" in line_of(page)
        assert len(page) < 2000
    assert await ask(served, "HEAD", token) == (403, "")


async def test_only_post_answers(aflow, conn):
    run, gate, shown = await at_gate(aflow, conn, ["ann"])
    served = asgi(aflow.app, keys=KEYS)
    link = KEYS.sign(gate, shown, "approve", "ann", later())
    for method in ("PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "post", "BREW"):
        status, page = await ask(served, method, link)
        assert (status, "button" in line_of(page)) == (405, True), method
    for method in ("GET", "HEAD", "GET"):
        assert (await ask(served, method, link))[0] == 200
    assert count(conn, "pgflow.gate_answer") == 0
    assert (await ask(served, "POST", link))[0] == 200
    assert await run.result(SOON) == told(Approved(BOOTS, ("ann",), False))


async def test_of_many_that_use_a_link_at_once_one_does(aflow, conn):
    run, gate, shown = await at_gate(aflow, conn, ["ann"])
    served = asgi(aflow.app, keys=KEYS)
    link = KEYS.sign(gate, shown, "approve", "ann", later())
    answers = await asyncio.gather(*(ask(served, "POST", link) for _ in range(16)))
    assert [status for status, _ in answers].count(200) == 1
    for status, page in answers:
        if status == 409:  # between the answer and the end of the gate
            assert "You have answered" in page
        elif status == 410:
            assert "was answered at" in line_of(page)
            assert line_of(page).endswith("approve by ann")
        else:
            assert status == 200
    assert await run.result(SOON) == told(Approved(BOOTS, ("ann",), False))
    assert count(conn, "pgflow.gate_answer") == 1


async def test_a_link_out_of_time_shows_nothing_and_answers_nothing(aflow, conn):
    _, gate, shown = await at_gate(aflow, conn, ["ann"])
    served = asgi(aflow.app, keys=KEYS)
    link = KEYS.sign(gate, shown, "approve", "ann", later())
    await aflow.skip(timedelta(hours=2))
    for method in ("GET", "POST"):
        status, page = await ask(served, method, link)
        assert (status, "was good until" in line_of(page)) == (403, True), method
        assert "boots" not in page
    assert count(conn, "pgflow.gate_answer") == 0


async def test_a_link_for_another_gate_or_request_is_refused(aflow, conn):
    _, gate, shown = await at_gate(aflow, conn, ["ann"])
    served = asgi(aflow.app, keys=KEYS)
    for of, payload, status in ((gate, "0" * 64, 409), (gate + "0", shown, 410), ("x", shown, 410)):
        link = KEYS.sign(of, payload, "approve", "ann", later())
        for method in ("GET", "POST"):
            found, page = await ask(served, method, link)
            assert (found, bool(line_of(page))) == (status, True), (of, method)
    assert count(conn, "pgflow.gate_answer") == 0


async def test_a_key_of_another_name_or_text_does_not_help(aflow, conn):
    _, gate, shown = await at_gate(aflow, conn, ["ann"])
    served = asgi(aflow.app, keys=KEYS)
    for keys in (LinkKeys({"new": "x" * 32}), LinkKeys({"other": "x" * 32})):
        status, page = await ask(served, "POST", keys.sign(gate, shown, "approve", "ann", later()))
        assert (status, "not known" in line_of(page)) == (403, True)
    # The same secret under another name says which key signed, and is none of ours.
    renamed = LinkKeys({"other": "n" * 32}).sign(gate, shown, "approve", "ann", later())
    assert (await ask(served, "POST", renamed))[0] == 403
    assert count(conn, "pgflow.gate_answer") == 0


async def test_a_form_that_is_huge_malformed_or_cut_off_answers_nothing(aflow, conn):
    run, gate, shown = await at_gate(aflow, conn, ["ann"])
    served = asgi(aflow.app, keys=KEYS)
    link = KEYS.sign(gate, shown, "reject", "ann", later())
    status, page = await ask(served, "POST", link, b"reason=" + b"x" * 20_000)
    assert (status, "too long" in line_of(page)) == (400, True)
    assert await posts(served, link, [{"type": "http.disconnect"}]) == 400
    part = {"type": "http.request", "body": b"reason=no", "more_body": True}
    assert await posts(served, link, [part, {"type": "http.disconnect"}]) == 400
    assert count(conn, "pgflow.gate_answer") == 0
    fields = b"&".join(b"a=b" for _ in range(4000))
    assert (await ask(served, "POST", link, b"reason=%00%ff;\xff&" + fields))[0] in (200, 400)


async def posts(served: Any, token: str, messages: list[dict[str, Any]]) -> int:
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return messages.pop(0) if messages else {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": f"/{token}", "headers": []}
    await served(scope, receive, send)
    return int(sent[0]["status"])
