"""An endpoint beside the keys opens values for a console and a command line that have none."""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import servers
from clikit import environment
from clikit import pgflow as command
from pydantic import SecretStr
from records import SOON, in_a_loop
from webkit import Browser

from pgflow import AsyncApp, workflow
from pgflow._model.envelopes import Envelopes
from pgflow.codecs import MAX_BODY_BYTES, Decoder, decode_endpoint
from pgflow.errors import CodecError, InvalidArgument
from pgflow.extensions import Keyring
from pgflow.web import Principal

if TYPE_CHECKING:
    from collections.abc import Iterator

uvicorn = pytest.importorskip("uvicorn", reason="needs uvicorn, which the extra test has")

ANN = Principal("ann", ["admin"])
TOKEN = "a token of the endpoint"
WORD, SECRET = "zanzibar-4711", "hunter2-secret"


@workflow
async def guard(word: str, password: SecretStr) -> dict[str, Any]:
    return {"told": f"{word} is told", "password": password}


def make_ring(name: str = "k") -> Keyring:
    return Keyring({name: os.urandom(32)}, name, hash_key=os.urandom(16))


async def play(dsn: str, ring: Keyring) -> None:
    """Have a run whose values are all encrypted."""
    async with AsyncApp(dsn, include=[guard], codec=ring) as app, app.worker():
        run = await app.start(guard.options(key="order-1"), WORD, SecretStr(SECRET))
        await run.result(SOON)


@contextmanager
def serving(served: Any) -> Iterator[str]:
    """Serve an ASGI application; its address."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = uvicorn.Server(uvicorn.Config(served, log_config=None, lifespan="off"))
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}/decode"
        finally:
            server.should_exit = True
            thread.join(servers.HANG_SECONDS)


@in_a_loop
async def test_a_console_without_keys_shows_what_the_endpoint_opens(
    dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    ring = make_ring()
    await play(dsn, ring)
    caplog.set_level(logging.DEBUG)
    with serving(decode_endpoint(ring, TOKEN)) as url:
        async with AsyncApp(dsn) as app:
            closed = await Browser(app, ANN).get("/run", key="order-1")
            browser = Browser(app, ANN, decoder=Decoder(url, TOKEN))
            opened = await browser.get("/run", key="order-1")
            fork = await browser.get("/run/again", key="order-1")
    assert WORD not in closed.words
    assert "<encoded with key k>" in closed.words
    assert f"{WORD} is told" in opened.words
    assert "<encoded with key k>" not in opened.words
    assert "***" in opened.words
    assert SECRET not in opened.text
    assert WORD not in fork.text, "what cannot be encoded again is not offered to be edited"
    assert WORD not in caplog.text


@in_a_loop
async def test_a_page_is_shown_encoded_where_the_endpoint_refuses(
    dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    ring = make_ring()
    await play(dsn, ring)
    with serving(decode_endpoint(ring, TOKEN)) as url:
        async with AsyncApp(dsn) as app:
            browser = Browser(app, ANN, decoder=Decoder(url, "another token, a long one"))
            page = await browser.get("/run", key="order-1")
    assert "<encoded with key k>" in page.words
    assert WORD not in page.text
    assert "the codec endpoint at 127.0.0.1 opened nothing: HTTPError 401" in caplog.text
    assert "another token" not in caplog.text


@in_a_loop
async def test_the_command_line_shows_it_too(dsn: str) -> None:
    ring = make_ring()
    await play(dsn, ring)
    with (
        serving(decode_endpoint(ring, TOKEN)) as url,
        environment(PGFLOW_CODEC_URL=url, PGFLOW_CODEC_TOKEN=TOKEN),
    ):
        table, whole = (command(dsn, "show", "order-1", form) for form in ("--table", "--json"))
        exported = command(dsn, "export", "order-1").out
    assert f"{WORD} is told" in table.out
    assert whole.data["input"] == {"word": WORD, "password": "***"}
    assert SECRET not in table.out + whole.out
    assert WORD not in exported
    with environment(PGFLOW_CODEC_URL="http://127.0.0.1:1/", PGFLOW_CODEC_TOKEN=TOKEN):
        answer = command(dsn, "show", "order-1", "--table")
    assert answer.code == 0
    assert "<encoded with key k>" in answer.out
    assert "values stay encoded: the codec endpoint at 127.0.0.1 opened nothing" in answer.err


@in_a_loop
async def test_the_endpoint_answers_who_has_the_token_and_opens_what_it_can() -> None:
    ring, other = make_ring(), make_ring("other")
    served = httpx.ASGITransport(decode_endpoint(ring, TOKEN))
    ours, theirs = (
        {"$codec": "wrapped", **parts} for parts in (sealed(ring, '"ours"'), sealed(other, "1"))
    )
    redacted = {"$codec": "", "data": "", "redacted": "00"}
    headers = {"authorization": f"Bearer {TOKEN}"}
    async with httpx.AsyncClient(transport=served, base_url="http://keys") as client:
        values = {"values": [ours, theirs, redacted, {"a": 1}, 7]}
        answer = await client.post("/decode", json=values, headers=headers)
        assert answer.json() == {"values": ["ours", None, None, None, None]}
        assert answer.headers["cache-control"] == "no-store"
        statuses = [
            (await client.get("/decode", headers=headers)).status_code,
            (await client.post("/decode", json=values)).status_code,
            (await client.post("/", json=values, headers={"authorization": TOKEN})).status_code,
            (await client.post("/", content=b"[", headers=headers)).status_code,
            (await client.post("/", json=[1], headers=headers)).status_code,
            (
                await client.post("/", content=b" " * MAX_BODY_BYTES + b"{}", headers=headers)
            ).status_code,
        ]
    assert statuses == [405, 401, 401, 400, 400, 413]


def sealed(ring: Keyring, text: str) -> dict[str, str]:
    """What an envelope has beside its first name."""
    envelope = json.loads(Envelopes(ring).seal(text, "a value"))
    return {"$wrap": envelope["$wrap"], "data": envelope["data"]}


def test_a_short_token_and_an_address_of_no_server_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="at least 16 bytes"):
        decode_endpoint(make_ring(), "short")
    with pytest.raises(InvalidArgument, match="at least 16 bytes"):
        Decoder("https://keys/decode", "")
    with pytest.raises(InvalidArgument, match="http or https, not 'file:///etc/passwd'"):
        Decoder("file:///etc/passwd", TOKEN)
    with environment(PGFLOW_CODEC_URL=None, PGFLOW_CODEC_TOKEN=None):
        assert Decoder.from_environment() is None


def test_the_token_follows_no_redirect() -> None:
    """The other address would be asked, and be sent the token."""
    asked = []

    async def redirect(scope: Any, receive: Any, send: Any) -> None:
        asked.append(scope["path"])
        headers = [(b"location", b"/elsewhere")]
        await send({"type": "http.response.start", "status": 302, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    with serving(redirect) as url, pytest.raises(CodecError, match="HTTPError 302"):
        Decoder(url, TOKEN).open({"$codec": "k", "data": "eA=="})
    assert asked == ["/decode"]
