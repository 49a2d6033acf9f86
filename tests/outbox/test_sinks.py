"""Sinks: what a server, a listener and a broker get of an event."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import subprocess
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import httpx
import pytest
from records import eventually, wait_until
from servers import HANG_SECONDS, find_program
from sqlkit import one, rows
from test_relays import AT_ONCE, QUICK, awaited, publish

from pgflow import AsyncApp, InvalidArgument
from pgflow.errors import DefinitionError
from pgflow.events import Event, Relay, TryLater, Undeliverable
from pgflow.sinks import Http, HttpRefused, Notify, RedisStream
from pgflow.webhooks import StandardWebhooks

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
AT = datetime(2026, 11, 26, tzinfo=UTC)
ORDER = Event(7, "orders", "k", {"total": 20}, AT)


class Server:
    """A server that answers what it is told to."""

    def __init__(self, *answers: httpx.Response) -> None:
        self.answers = list(answers)
        self.requests: list[httpx.Request] = []

    def client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(transport=httpx.MockTransport(self.handle))

    def handle(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        return self.answers.pop(0) if self.answers else httpx.Response(204)


def post(server: Server, *, relay: str = "hooks", **options: Any) -> None:
    sink = Http("https://example.org/hook?token=x", client=server.client(), **options)
    asyncio.run(sink.deliver(ORDER, relay))


def test_an_event_is_posted_under_its_number_and_signed_as_standard_webhooks_has_it():
    server = Server()
    post(server, relay="ho.oks", secret=[SECRET, "another secret of mine"], headers={"x-a": "1"})
    (request,) = server.requests
    assert json.loads(request.content) == {
        "id": 7,
        "type": "orders",
        "timestamp": "2026-11-26T00:00:00+00:00",
        "key": "k",
        "data": {"total": 20},
    }
    assert request.headers["idempotency-key"] == request.headers["webhook-id"] == "ho%2Eoks/7"
    assert request.headers["x-a"] == "1"
    for secret in (SECRET, "another secret of mine"):
        verifier = StandardWebhooks(secret)
        assert verifier.verify(dict(request.headers), request.content, time.time()) == "ho%2Eoks/7"


def test_the_signature_is_that_of_the_specification():
    # The example of https://www.standardwebhooks.com, as its libraries test it.
    headers = {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }
    found = StandardWebhooks(SECRET).verify(headers, b'{"test": 2432232314}', 1614265330)
    assert found == "msg_p5jXN8AQM9LWM0D4loKWxJek"


def test_what_a_server_answers_says_what_becomes_of_the_event():
    post(Server(httpx.Response(200)))
    for status in (301, 400, 429, 500):
        with pytest.raises(HttpRefused, match=str(status)):
            post(Server(httpx.Response(status)))
    with pytest.raises(Undeliverable):
        post(Server(httpx.Response(410)))
    soon = format_datetime(datetime.now(UTC) + timedelta(seconds=100), usegmt=True)
    for header, least, most in (("7", 7, 7), (soon, 90, 100), ("9" * 50, 86_400, 86_400)):
        with pytest.raises(TryLater) as refused:
            post(Server(httpx.Response(503, headers={"retry-after": header})))
        assert least <= refused.value.seconds <= most
    nines = "9" * 30
    for strange in ("soon", f"Fri, 31 Dec {nines} 23:59:59 GMT", f"1 Jan 1970 00:00 +{nines}", ""):
        with pytest.raises(HttpRefused):
            post(Server(httpx.Response(503, headers={"retry-after": strange})))


@awaited
async def test_a_relay_posts_until_the_server_takes_it(dsn, conn):
    server = Server(httpx.Response(500), httpx.Response(429, headers={"retry-after": "0"}))
    sink = Http("https://example.org/hook?token=x", client=server.client())
    publish(conn, "a")
    app = AsyncApp(dsn, include=[Relay("hooks", ["orders"], to=sink, retries=AT_ONCE)])
    async with app, app.worker(**QUICK):
        delivered = "select delivered from pgflow.relays"
        await eventually(lambda: one(conn, delivered) == 1, "it was delivered")
    assert [request.headers["idempotency-key"] for request in server.requests] == ["hooks/1"] * 3
    assert one(conn, "select target from pgflow.relays") == "POST https://example.org"


def test_what_no_sink_can_be_is_refused():
    for url in ("ftp://example.org", "https://", "example.org"):
        with pytest.raises(DefinitionError, match="URL of http"):
            Http(url)
    for secret in ("short", "whsec_!!", "whsec_c2hvcnQ="):
        with pytest.raises(InvalidArgument, match="secret of a webhook"):
            Http("https://example.org", secret=secret)
    for channel in ("", "x" * 64):
        with pytest.raises(DefinitionError, match="a channel has a name"):
            Notify(channel)


@awaited
async def test_who_listens_is_notified_of_each_event_once(dsn, conn):
    conn.execute('listen "the orders"')
    app = AsyncApp(dsn, include=[Relay("n", ["orders"], to=Notify("the orders"))])
    publish(conn, ["a", None])
    conn.execute("select pgflow.publish('orders', to_json(repeat('x', 9000)))")
    async with app, app.worker(**QUICK):
        delivered = "select delivered from pgflow.relays"
        await eventually(lambda: rows(conn, delivered) == [3], "all were delivered")
    conn.execute("""notify "the orders", '"the last"'""")
    heard = iter([json.loads(n.payload) for n in conn.notifies(timeout=HANG_SECONDS, stop_after=4)])
    assert list(iter(lambda: next(heard), "the last")) == [
        {"id": 1, "topic": "orders", "key": "a", "payload": 0},
        {"id": 2, "topic": "orders", "key": None, "payload": 1},
        {"id": 3, "topic": "orders", "key": None},
    ]


def _answers(port: int) -> bool:
    with contextlib.closing(socket.socket()) as asking:
        return asking.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def redis_url() -> Iterator[str]:
    """A Redis of this test's own; `apt install redis-server`."""
    program = find_program("redis-server", "redis-server")
    with contextlib.closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
    server = subprocess.Popen([program, *options], stdout=subprocess.DEVNULL)
    try:
        wait_until(lambda: _answers(port), "Redis answers")
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        server.terminate()
        server.wait()


@pytest.mark.full
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@awaited
async def test_a_stream_of_redis_has_each_event_in_its_order(dsn, conn, redis_url):
    import redis.asyncio

    app = AsyncApp(dsn, include=[Relay("broker", ["orders"], to=RedisStream(redis_url))])
    numbers = publish(conn, "ab" * 20)
    async with app, app.worker(**QUICK):
        delivered = "select delivered from pgflow.relays"
        await eventually(lambda: rows(conn, delivered) == [40], "all were delivered")
    client = redis.asyncio.from_url(redis_url, decode_responses=True)
    entries = [fields for _, fields in await client.xrange("orders")]
    await client.aclose()
    assert sorted(int(entry["id"]) for entry in entries) == numbers
    for key in "ab":
        ids = [int(entry["id"]) for entry in entries if entry["key"] == key]
        assert ids == sorted(ids)
    assert json.loads(entries[0]["payload"]) in (0, 1)


def test_a_redirection_is_not_followed_and_an_endless_answer_is_not_read():
    moved = Server(httpx.Response(302, headers={"location": "http://169.254.169.254/"}))
    with pytest.raises(HttpRefused, match="302"):
        post(moved)
    assert len(moved.requests) == 1

    class Endless(httpx.AsyncByteStream):
        async def __aiter__(self) -> Any:
            while True:
                yield b"x" * 1000

    post(Server(httpx.Response(200, stream=Endless())))


def test_the_status_alone_says_whether_a_server_took_an_event():
    said = {"content-encoding": "gzip", "content-length": "4"}

    class BreaksOff(httpx.AsyncByteStream):
        async def __aiter__(self) -> Any:
            yield b"abcd"
            raise httpx.RemoteProtocolError("the peer closed the connection")

    post(Server(httpx.Response(200, headers=said, stream=BreaksOff())))
    with pytest.raises(HttpRefused, match="500"):
        post(Server(httpx.Response(500, headers=said, stream=BreaksOff())))


@awaited
async def test_only_the_relay_says_how_long_a_server_may_take():
    sink = Http("https://example.org/hook")
    made = []

    def make(**options: Any) -> httpx.AsyncClient:
        made.append(httpx.AsyncClient(transport=httpx.MockTransport(Server().handle), **options))
        return made[0]

    sink._make = make  # type: ignore[assignment]
    await sink.deliver(ORDER, "hooks")
    assert made[0].timeout == httpx.Timeout(None)
    await sink.close()


def test_a_secret_in_an_address_is_shown_nowhere():
    sink = Http("https://me:word@example.org:8443/services/T0/hidden?token=hidden")
    assert str(sink) == "POST https://example.org:8443"
    with pytest.raises(DefinitionError) as refused:
        Http("ftp://me:word@example.org/hidden")
    assert "word" not in str(refused.value)
    assert "hidden" not in str(refused.value)
