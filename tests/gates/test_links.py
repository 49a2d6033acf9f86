"""Links that answer a gate: shown by GET, answered by POST, used up by the answer."""

from __future__ import annotations

import asyncio
import base64
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from records import SOON, count, settle
from test_gates import BOOTS, gate_of, ship, ship_by, told

from pgflow import InvalidArgument
from pgflow.authority import Approve, Approved, Rejected
from pgflow.errors import InvalidLink
from pgflow.links import LinkKeys, asgi
from pgflow.testing import AsyncHarness

KEYS = LinkKeys({"old": "o" * 32, "new": "n" * 32})
HOUR = timedelta(hours=1)


async def ask(served: Any, method: str, token: str, form: bytes = b"") -> tuple[int, str]:
    """Asks an ASGI application; answers status and page."""
    sent: list[dict[str, Any]] = []
    body = [{"type": "http.request", "body": form}]

    async def receive() -> dict[str, Any]:
        return body.pop()

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": method, "path": f"/gates/{token}", "headers": []}
    await served(scope, receive, send)
    return sent[0]["status"], sent[1]["body"].decode()


def shown_hash(conn: psycopg.Connection, gate: str) -> str:
    rows = conn.execute("select payload_hash from pgflow.gates where gate = %s", (gate,)).fetchall()
    return str(rows[0][0])


async def at_gate(
    aflow: AsyncHarness, conn: psycopg.Connection, *given: Any
) -> tuple[Any, str, str]:
    run = await settle(aflow, ship_by, BOOTS, *given)
    gate = gate_of(conn, run.key)
    return run, gate, shown_hash(conn, gate)


def later(by: timedelta = HOUR) -> datetime:
    return datetime.now(UTC) + by


@pytest.mark.full
async def test_looking_at_a_link_changes_nothing_and_the_button_answers(aflow, conn):
    run, gate, shown = await at_gate(aflow, conn, ["ann"])
    served = asgi(aflow.app, keys=KEYS)
    link = KEYS.sign(gate, shown, "approve", "ann", later())
    for _ in range(2):
        status, page = await ask(served, "GET", link)
        assert (status, "boots" in page, "<button>Approve</button>" in page) == (200, True, True)
        assert await ask(served, "HEAD", link) == (200, "")
    assert count(conn, "pgflow.gate_answer") == 0
    assert (await ask(served, "POST", link))[0] == 200
    assert await run.result(SOON) == told(Approved(BOOTS, ("ann",), False))
    assert (await ask(served, "GET", link))[0] == 410


@pytest.mark.full
def test_so_does_a_sync_app(flow, conn):
    run = settle(flow, ship, BOOTS)
    gate = gate_of(conn, run.key)
    link = KEYS.sign(gate, shown_hash(conn, gate), "reject", "ann", later())
    served = asgi(flow.app, keys=KEYS)
    assert 'name="reason"' in asyncio.run(ask(served, "GET", link))[1]
    assert asyncio.run(ask(served, "POST", link, b"reason=too+many"))[0] == 200
    assert run.result(SOON) == told(Rejected("too many", ("ann",)))


async def test_a_link_that_was_used_is_used_up(aflow, conn):
    run, gate, shown = await at_gate(aflow, conn, ["ann", "bob"], 2)
    served = asgi(aflow.app, keys=KEYS)
    mine, other = (KEYS.sign(gate, shown, "approve", by, later()) for by in ("ann", "bob"))
    assert (await ask(served, "POST", mine))[0] == 200
    assert (await ask(served, "POST", mine))[0] == 409  # one of two, and she counts once
    assert (await ask(served, "POST", other))[0] == 200
    for again in (mine, other):
        status, page = await ask(served, "POST", again)
        assert (status, "was answered at" in page) == (410, True)
    assert await run.result(SOON) == told(Approved(BOOTS, ("ann", "bob"), False))
    assert count(conn, "pgflow.gate_answer") == 2


def altered(link: str) -> dict[str, str]:
    """The link with each of its parts changed, and signed as before."""
    body, _, mac = link.partition(".")
    said = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    others = ["old", "another/gate/1", "0" * 64, "reject", "eve", "2999-01-01T00:00:00+00:00"]
    found = {}
    for place, other in enumerate(others):
        changed = [*said[:place], other, *said[place + 1 :]]
        text = base64.urlsafe_b64encode(json.dumps(changed).encode()).decode().rstrip("=")
        found[f"part {place}"] = f"{text}.{mac}"
    found |= {
        "no signature": body,
        "empty signature": f"{body}.",
        "cut signature": link[:-2],
        "other signature": f"{body}.{mac[::-1]}",
        "padded": f"{link}=",
        "nothing": "",
        "no base64": "a.b",
        "no text": "\u00e4.\u00e4",
        "deep": base64.urlsafe_b64encode(b"[" * 3000).decode() + "." + mac,
        "long": "a" * 10_000,
    }
    return found


async def test_a_link_that_was_altered_is_refused(aflow, conn):
    _, gate, shown = await at_gate(aflow, conn, ["ann", "eve"])
    served = asgi(aflow.app, keys=KEYS)
    for what, link in altered(KEYS.sign(gate, shown, "approve", "ann", later())).items():
        for method in ("GET", "POST"):
            assert (await ask(served, method, link))[0] == 403, what
    assert count(conn, "pgflow.gate_answer") == 0


@pytest.mark.full
async def test_a_link_is_for_one_gate(aflow, conn):
    _, gate, shown = await at_gate(aflow, conn, ["ann"])
    _, other, _ = await at_gate(aflow, conn, ["ann"])
    served = asgi(aflow.app, keys=KEYS)
    mine = KEYS.sign(gate, shown, "approve", "ann", later())
    its = KEYS.sign(other, shown, "approve", "ann", later())
    crossed = its.partition(".")[0] + "." + mine.partition(".")[2]
    assert (await ask(served, "POST", crossed))[0] == 403
    await aflow.app.answer(gate, Approve(edit={"sku": "boots", "qty": 1}), by="ann")
    assert (await ask(served, "POST", mine))[0] == 410
    assert count(conn, "pgflow.gate_answers", f"gate = '{other}'") == 0


async def test_a_link_is_for_the_request_that_was_shown(aflow, conn):
    _, gate, shown = await at_gate(aflow, conn, ["ann", "bob"], 2)
    served = asgi(aflow.app, keys=KEYS)
    link = KEYS.sign(gate, shown, "approve", "ann", later())
    await aflow.app.answer(gate, Approve(edit={"sku": "boots", "qty": 1}), by="bob")
    assert (await ask(served, "GET", link))[0] == 409
    assert (await ask(served, "POST", link))[0] == 409


@pytest.mark.full
async def test_a_link_ends_by_the_clock_of_the_database(aflow, conn):
    _, gate, shown = await at_gate(aflow, conn, ["ann"])
    served = asgi(aflow.app, keys=KEYS)
    link = KEYS.sign(gate, shown, "approve", "ann", later())
    await aflow.skip(2 * HOUR)
    status, page = await ask(served, "POST", link)
    assert (status, "was good until" in page) == (403, True)
    assert (await ask(served, "POST", KEYS.sign(gate, shown, "approve", "ann", later(3 * HOUR))))[
        0
    ] == 200


async def test_keys_are_rotated_and_a_link_for_somebody_else_does_not_help(aflow, conn):
    _, gate, shown = await at_gate(aflow, conn, ["ann"])
    link = LinkKeys({"old": "o" * 32}).sign(gate, shown, "approve", "bob", later())
    assert KEYS.read(link).key_id == "old"
    assert KEYS.read(KEYS.sign(gate, shown, "approve", "bob", later())).key_id == "new"
    assert (await ask(asgi(aflow.app, keys=KEYS), "POST", link))[0] == 403  # the gate asks ann
    with pytest.raises(InvalidLink):
        LinkKeys({"new": "n" * 32}).read(link)
    assert (await ask(asgi(aflow.app, keys=KEYS), "PUT", link))[0] == 405


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: LinkKeys({}), "need a key"),
        (lambda: LinkKeys({"a": "short"}), "shorter than"),
        (lambda: LinkKeys({"a": "a" * 16}, current="b"), "'b' is not among the keys"),
        (lambda: KEYS.sign("g", "h", "approve", "ann", datetime(2030, 1, 1)), "time zone"),  # noqa: DTZ001
        (lambda: KEYS.sign("g", None, "approve", "ann", later()), "needs a gate"),  # type: ignore[arg-type]
        (lambda: KEYS.sign("g", "h", "shrug", "ann", later()), "not 'shrug'"),  # type: ignore[arg-type]
    ],
    ids=["none", "short", "unknown", "naive", "unbound", "verdict"],
)
def test_links_that_cannot_be_are_refused(make, says):
    with pytest.raises(InvalidArgument, match=says):
        make()
