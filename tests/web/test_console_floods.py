"""Floods: thousands of names that clients have made up, slow questions, requests that never come as a
whole. The console goes on answering.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest
from sqlkit import one, rows
from webkit import Browser

from pgflow.errors import InvalidArgument
from pgflow.inspect import list_lanes, list_queued_lanes, list_queues, list_unserved_lanes
from pgflow.inspect.sheet import shown_statement
from pgflow.web import Principal
from pgflow.web import serving as web
from pgflow.web.pages import queues

ANN = Principal("ann", ["admin"])
NAMES = 300
OF_EACH = 3


@pytest.fixture
def flooded(conn: psycopg.Connection[Any]) -> psycopg.Connection[Any]:
    """Many names, since the statistics of the table were made, when all runs had one."""
    conn.execute(
        "select pgflow.start_run('one', '{}') from generate_series(1, %s)", (NAMES * OF_EACH,)
    )
    conn.execute("analyze pgflow.ready, pgflow.lane")
    conn.execute("delete from pgflow.ready")
    conn.execute("delete from pgflow.run")
    conn.execute("delete from pgflow.run_key")
    conn.execute(
        "select pgflow.start_run('<w' || n, '{}') from generate_series(1, %s) n, generate_series(1, %s)",
        (NAMES, OF_EACH),
    )
    return conn


def read_of_ready(plan: dict[str, Any]) -> float:
    """Return the number of rows of ``ready`` that a plan has looked at."""
    seen = sum(read_of_ready(part) for part in plan.get("Plans", ()))
    if plan.get("Relation Name") == "ready":
        left_out = plan.get("Rows Removed by Filter", 0)
        seen += plan["Actual Loops"] * (plan["Actual Rows"] + left_out)
    return float(seen)


def test_all_names_are_counted_by_reading_what_is_ready_once(flooded):
    for question in (list_lanes(), list_queued_lanes(limit=5), list_unserved_lanes(0, limit=5)):
        said = f"explain (analyze, format json) {shown_statement(question.first)}"
        plan = one(flooded, said)[0]["Plan"]
        assert read_of_ready(plan) <= 3 * NAMES * OF_EACH
    said = f"explain (analyze, format json) {shown_statement(list_queues().first)}"
    assert read_of_ready(one(flooded, said)[0]["Plan"]) <= 3 * NAMES * OF_EACH
    status = "select key, reason from pgflow.runs where status = 'queued'"
    plan = one(flooded, f"explain (analyze, format json) {status}")[0]["Plan"]
    assert read_of_ready(plan) <= 3 * NAMES * OF_EACH


async def test_pages_show_some_of_many_names(aflow, flooded):
    browser = Browser(aflow.app, ANN)
    page = await browser.get("/queues")
    assert page.words.count("<w") == queues.MOST_LANES
    assert "There are more." in page.words
    flooded.execute(
        "select pgflow.start_run('w', '{}', queue => 'q' || n) from generate_series(1, 300) n"
    )
    flooded.execute(
        "insert into pgflow.worker (pid, beat_at, started_at, concurrency, host, version, queues) values (1, now(), now(), 1, 'h', '1', '{default}')"
    )
    flooded.execute("update pgflow.ready set ready_at = now() - interval '1 hour'")
    page = await browser.get("/queues")
    assert "101 more queues" in page.words
    page = await browser.get("/")
    assert page.words.count("has workflow <w") < 20
    assert ("292 more See all" in page.words, "293 more See all" in page.words) == (True, True)
    flooded.execute("delete from pgflow.worker")


def test_names_that_no_worker_knows_are_bounded(conn):
    conn.execute(
        "insert into pgflow.lane (queue, workflow) select 'default', 'w' || n from generate_series(1, 9999) n"
    )
    one(conn, "select run_id from pgflow.start_run('last', '{}')")
    for start in ("start_run('more', '{}')", "start_runs('more', '[[null, {}]]')"):
        with pytest.raises(psycopg.Error, match="has ever had a workflow 'more'") as refused:
            conn.execute(f"select * from pgflow.{start}".encode())
        assert refused.value.sqlstate == InvalidArgument.sqlstate
    assert rows(conn, "select workflow from pgflow.lane where workflow = 'more'") == []
    one(conn, "select run_id from pgflow.start_run('w7', '{}')")  # it has a lane
    conn.execute(
        "insert into pgflow.code (first_at, last_at, is_pinned, workflow, version, code_hash) "
        "values (now(), now(), false, 'more', '1', 'h')"
    )
    one(conn, "select run_id from pgflow.start_run('more', '{}')")


async def test_a_page_that_asks_too_much_is_given_up_by_the_server(aflow, conn, monkeypatch):
    monkeypatch.setattr("pgflow.console.backend.PAGE_SECONDS", 0.2)
    browser = Browser(aflow.app, ANN)
    with conn.transaction():
        conn.execute("lock table pgflow.worker in access exclusive mode")
        for path in ("/", "/workers", "/queues"):
            assert await browser.status(path) == 503
            assert browser.last is not None
            assert "This took too long" in browser.last.text
    assert await browser.status("/workers") == 200
    assert (
        one(
            conn,
            "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()",
        )
        == 0
    )


async def echo(scope: Any, receive: Any, send: Any) -> None:
    message = await receive()
    while message.get("more_body"):
        message = await receive()
    await send(
        {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]}
    )
    await send({"type": "http.response.body", "body": b"ok"})


@contextlib.asynccontextmanager
async def serving(served: Any = echo) -> AsyncIterator[int]:
    """A server of ours, by its port."""
    server = web.make_server(served)
    with web.listen_at("127.0.0.1", 0) as listening:
        task = asyncio.create_task(server.serve(sockets=[listening]))
        try:
            yield listening.getsockname()[1]
        finally:
            server.should_exit = True
            await task


HALVES = (
    b"",
    b"GET / HTTP/1.1\r\nhost: a\r\n",
    b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\nab",
)


async def is_answered(port: int) -> bool:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
    answer = await reader.read()
    writer.close()
    return answer.startswith(b"HTTP/1.1 200") and answer.endswith(b"ok")


@pytest.mark.anyio
async def test_too_many_half_requests_make_room(monkeypatch):
    monkeypatch.setattr(web, "MOST_HALF_OPEN", 6)
    async with serving() as port:
        opened = []
        for n in range(7):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(HALVES[n % 3])
            opened.append((reader, writer))
        assert await opened[0][0].read() == b""  # the oldest
        assert await is_answered(port)
        for _, writer in opened:
            writer.close()


@pytest.mark.anyio
@pytest.mark.parametrize("half", HALVES)
async def test_a_request_that_never_comes_as_a_whole_is_given_up(half, monkeypatch):
    monkeypatch.setattr(web, "REQUEST_SECONDS", 0.1)
    async with serving() as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(half)
        assert await reader.read() == b""
        writer.close()
        assert await is_answered(port)


async def hasty(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"ok", "more_body": True})
    while (await receive())["type"] != "http.disconnect":
        pass


@pytest.mark.anyio
@pytest.mark.parametrize("has_begun", [False, True])
async def test_a_body_of_nonsense_is_no_error_of_ours(caplog, *, has_begun):
    """Neither before the answer has begun nor behind its beginning."""
    async with serving(hasty) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n")
        if has_begun:
            await reader.readuntil(b"ok")
        writer.write(b"zz\r\n")
        await reader.read()
        writer.close()
    assert [record.getMessage() for record in caplog.records if record.exc_info] == []


async def test_a_form_that_does_not_come_is_given_up_whatever_serves(aflow, monkeypatch):
    monkeypatch.setattr("pgflow.web.guard.BODY_SECONDS", 0.05)
    browser = Browser(aflow.app, ANN)

    async def trickling() -> AsyncIterator[bytes]:
        yield b"mark="
        await asyncio.Event().wait()

    answer = await browser.client.post("/sql", content=trickling())
    assert answer.status_code == 408
