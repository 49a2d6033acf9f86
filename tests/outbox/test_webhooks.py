"""Webhooks that come in: each delivery once, and none whose signature does not hold."""

from __future__ import annotations

import hashlib
import hmac
import io
import json
import time
from typing import Any

import pytest
from sqlkit import one, rows

from pgflow import Signal, workflow
from pgflow._model.signatures import key_of, sign
from pgflow.errors import DefinitionError, InvalidSignature
from pgflow.webhooks import (
    Endpoint,
    GitHub,
    Request,
    Send,
    StandardWebhooks,
    Start,
    Stripe,
    asgi,
    wsgi,
)

SECRET = "a secret of sixteen bytes"
paid = Signal("paid", int)


@workflow
async def on_order(order: dict[str, int]) -> int:
    return order["id"]


@workflow
async def on_request(request: Request) -> list[Any]:
    return [request.id, request.payload]


@workflow
async def waits() -> int:
    return await paid.wait()


def standard(body: bytes, delivery: str = "msg_1", at: float | None = None) -> dict[str, str]:
    at = time.time() if at is None else at
    return {
        "webhook-id": delivery,
        "webhook-timestamp": str(int(at)),
        "webhook-signature": "v1,bm9uZQ== " + sign(key_of(SECRET), delivery, int(at), body),
    }


def stripe(body: bytes, at: float | None = None) -> dict[str, str]:
    at = int(time.time() if at is None else at)
    mac = hmac.new(SECRET.encode(), f"{at}.".encode() + body, hashlib.sha256).hexdigest()
    return {"stripe-signature": f"t={at},v1={'0' * 64},v1={mac},v0=x"}


def github(body: bytes, delivery: str = "d1") -> dict[str, str]:
    mac = hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()
    return {"x-hub-signature-256": f"sha256={mac}", "x-github-delivery": delivery}


def route(request: Request) -> Start | Send | None:
    if request.payload is None:
        return None
    return Send(request.payload["run"], paid, request.payload["cents"])


ENDPOINTS = [
    Endpoint("orders", StandardWebhooks(SECRET), to=on_order),
    Endpoint("bills", Stripe(SECRET), to=on_request),
    Endpoint("code", GitHub(SECRET), to=on_request),
    Endpoint("paid", StandardWebhooks(SECRET), to=route),
]


async def post(
    served: Any, path: str, headers: dict[str, str], *body: bytes, method: str = "POST"
) -> int:
    """Asks an ASGI application; answers the status."""
    sent: list[dict[str, Any]] = []
    parts = [
        {"type": "http.request", "body": part, "more_body": number + 1 < len(body)}
        for number, part in enumerate(body)
    ]

    async def receive() -> dict[str, Any]:
        return parts.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    pairs = [(name.title().encode(), value.encode()) for name, value in headers.items()]
    await served({"type": "http", "method": method, "path": path, "headers": pairs}, receive, send)
    return int(sent[0]["status"])


async def test_a_delivery_starts_one_run_however_often_it_is_sent(aflow, conn):
    aflow.include(on_order, on_request)
    served = asgi(aflow.app, ENDPOINTS)
    body = b'{"id": 7}'
    for _ in range(3):
        assert await post(served, "/hooks/orders", standard(body), body[:3], body[3:]) == 202
    assert await post(served, "/hooks/orders/", standard(body, "msg_2"), body) == 202
    bill = b'{"id": "evt_1"}'
    for _ in range(2):
        assert await post(served, "/bills", stripe(bill), bill) == 202
    for delivery in ("d1", "d1", "d2"):
        assert await post(served, "/code", github(body, delivery), body) == 202
    await aflow.until_idle()
    assert await aflow.app.get("orders/msg_1", on_order).result() == 7
    assert await aflow.app.get("bills/evt_1", on_request).result() == ["evt_1", {"id": "evt_1"}]
    assert one(conn, "select count(*) from pgflow.runs") == 5


async def test_a_delivery_is_one_signal(aflow, conn):
    aflow.include(waits)
    served = asgi(aflow.app, ENDPOINTS)
    run = await aflow.start(waits.options(key="w"))
    body = json.dumps({"run": "w", "cents": 5}).encode()
    assert await post(served, "/paid", standard(body), body) == 202
    assert await run.result() == 5
    assert await post(served, "/paid", standard(body), body) == 202
    assert rows(conn, "select 1 from pgflow.undelivered_messages") == []
    assert await post(served, "/paid", standard(b""), b"") == 202
    lost = json.dumps({"run": "x", "cents": 5}).encode()
    assert await post(served, "/paid", standard(lost, "msg_9"), lost) == 404


async def test_what_is_not_signed_or_does_not_fit_starts_nothing(aflow, conn):
    aflow.include(on_order, on_request)
    served = asgi(aflow.app, ENDPOINTS)
    body = b'{"id": 7}'
    now = time.time()
    for path, headers in (
        ("/orders", {}),
        ("/orders", standard(b"other")),
        ("/orders", {**standard(body), "webhook-id": "msg_2"}),
        ("/orders", standard(body, at=now - 400)),
        ("/orders", standard(body, at=now + 400)),
        ("/orders", {**standard(body), "webhook-timestamp": "now"}),
        ("/bills", stripe(b"other")),
        ("/bills", stripe(body)),  # no id
        ("/bills", {"stripe-signature": "v1=x"}),
        ("/code", github(b"other")),
        ("/code", {"x-hub-signature-256": github(body)["x-hub-signature-256"]}),
    ):
        assert await post(served, path, headers, body) == 401, (path, headers)
    assert await post(served, "/orders", standard(b"{"), b"{") == 422
    assert await post(served, "/orders", standard(b'{"id": "x"}'), b'{"id": "x"}') == 422
    assert await post(served, "/orders", standard(body), b"x" * 1_048_577) == 413
    assert await post(served, "/orders", {}, b"", method="GET") == 405
    assert await post(served, "/nothing", standard(body), body) == 404
    assert rows(conn, "select 1 from pgflow.runs") == []


def test_a_wsgi_server_takes_them_too(flow, conn):
    flow.include(on_order)
    served = wsgi(flow.app, ENDPOINTS)
    body = b'{"id": 7}'

    def ask(method: str, length: str, headers: dict[str, str]) -> str:
        statuses: list[str] = []
        environ = {
            "REQUEST_METHOD": method,
            "PATH_INFO": "/hooks/orders",
            "CONTENT_LENGTH": length,
            "wsgi.input": io.BytesIO(body),
            **{"HTTP_" + name.upper().replace("-", "_"): text for name, text in headers.items()},
        }
        served(environ, lambda status, _: statuses.append(status))
        return statuses[0]

    for _ in range(2):
        assert ask("POST", str(len(body)), standard(body)) == "202 Accepted"
    assert ask("POST", "9999999", standard(body)) == "413 Content Too Large"
    assert ask("POST", "", standard(body)) == "401 Unauthorized"
    assert ask("GET", "", {}) == "405 Method Not Allowed"
    flow.until_idle()
    assert flow.app.get("orders/msg_1", on_order).result() == 7
    assert one(conn, "select count(*) from pgflow.runs") == 1


def test_a_github_hook_may_take_the_same_content_once():
    verifier = GitHub("another", SECRET, once_per_content=True)
    numbers = {verifier.verify(github(b"{}", delivery), b"{}", 0) for delivery in ("d1", "d2")}
    assert len(numbers) == 1
    with pytest.raises(InvalidSignature):
        GitHub("another").verify(github(b"{}"), b"{}", 0)


def test_long_numbers_of_deliveries_are_hashed_into_a_key():
    endpoint = ENDPOINTS[0]
    long = Request("x" * 200, {}, None)
    assert endpoint.key_of(Request("1", {}, None)) == "orders/1"
    assert len(endpoint.key_of(long)) < 128
    assert endpoint.key_of(long) == endpoint.key_of(long)
    assert endpoint.key_of(long) != endpoint.key_of(Request("y" * 200, {}, None))


def test_what_no_endpoint_can_be_is_refused(dsn):
    for name in ("", "a/b", "x" * 65):
        with pytest.raises(DefinitionError, match="name of an endpoint"):
            Endpoint(name, GitHub(SECRET), to=on_order)
    with pytest.raises(DefinitionError, match="one parameter"):
        Endpoint("a", GitHub(SECRET), to=waits)
    with pytest.raises(DefinitionError, match="needs a secret"):
        GitHub()
    with pytest.raises(DefinitionError, match="two endpoints"):
        wsgi(None, [ENDPOINTS[0], Endpoint("orders", GitHub(SECRET), to=on_order)])  # type: ignore[arg-type]


async def test_a_long_content_comes_whole_and_a_delivery_that_was_another_one_is_refused(
    aflow, conn
):
    aflow.include(on_request, waits)
    served = asgi(aflow.app, [*ENDPOINTS, Endpoint("any", StandardWebhooks(SECRET), to=on_request)])
    body = json.dumps({"text": "ü" * 100_000}).encode()
    parts = [body[at : at + 1000] for at in range(0, len(body), 1000)]
    assert await post(served, "/any", standard(body), *parts) == 202
    # A run is that of the delivery, whatever comes under its number later.
    assert await post(served, "/any", standard(b"{}"), b"{}") == 202
    await aflow.until_idle()
    found = await aflow.app.get("any/msg_1", on_request).result()
    assert found == ["msg_1", {"text": "ü" * 100_000}]
    await aflow.start(waits.options(key="w"))
    for cents, status in ((5, 202), (5, 202), (6, 409)):
        said = json.dumps({"run": "w", "cents": cents}).encode()
        assert await post(served, "/paid", standard(said, "msg_7"), said) == status
    deep = b"[" * 100_000
    assert await post(served, "/any", standard(deep, "msg_8"), deep) == 422
    await aflow.until_idle()


async def test_what_is_refused_is_logged_without_secrets_or_content(aflow, caplog):
    aflow.include(on_order)
    served = asgi(aflow.app, ENDPOINTS)
    body = b'{"id": "hidden"}'
    assert await post(served, "/orders", standard(b"other"), body) == 401
    assert await post(served, "/orders", standard(b"\n"), b"\n") == 422
    assert "webhook orders: request refused" in caplog.text
    assert SECRET not in caplog.text
    assert "hidden" not in caplog.text
