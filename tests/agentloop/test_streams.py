"""Streams for many: what is committed is told, in order, with an id from which reading goes on
anywhere; what is not is flagged; and a process reads each stream once.
"""

from __future__ import annotations

import asyncio
import json
import random
from contextlib import aclosing
from datetime import timedelta
from typing import Any

import pytest
from records import SOON, eventually, launch, result_of
from servers import HANG_SECONDS
from sqlkit import one

import pgflow
from pgflow import InvalidArgument, RunNotFound, RunStuck, Signal, step, streams, workflow
from pgflow._worker import listener, progress
from pgflow.streams import Event, Tails
from pgflow.streams import web as endpoint
from pgflow.testing import AsyncHarness

go = Signal("go", int)


@workflow
async def counts(n: int) -> None:
    for i in range(n):
        pgflow.emit("numbers", i)


@workflow
async def hears(n: int) -> None:
    """Emits what it is told, n times."""
    for _ in range(n):
        pgflow.emit("heard", await go.wait())


@pytest.fixture
def tails(aflow: AsyncHarness) -> Tails:
    made = Tails(aflow.app)
    aflow._stack.push_async_callback(made.close)
    return made


async def values(tails: Tails, *args: Any, **options: Any) -> list[Any]:
    return [event.value async for event in tails.read(*args, **options)]


@pytest.mark.full
async def test_a_reader_goes_on_anywhere_without_gap_or_double(aflow, tails):
    """It reconnects at random, each time elsewhere, while the run emits."""
    run = await launch(aflow, hears.options(key="k"), 60)
    read: list[Any] = []
    chance = random.Random(7)

    async def follow() -> None:
        after = None
        while True:
            elsewhere = Tails(aflow.app)
            leave_after = chance.randint(1, 8)
            async with aclosing(elsewhere.read("k", "heard", after=after)) as events:
                async for event in events:
                    read.append(event.value)
                    after = event.id
                    leave_after -= 1
                    if not leave_after:
                        break
            await elsewhere.close()
            if leave_after:
                return

    following = asyncio.create_task(follow())
    for n in range(60):
        await run.send(go, n)
        if n == 30:
            await aflow.until_idle()
            await aflow.crash()
    await aflow.until_idle()
    await asyncio.wait_for(following, HANG_SECONDS)
    assert read == list(range(60))


@pytest.mark.full
async def test_an_id_holds_over_generations_and_rewinds(aflow, tails):
    run = await launch(aflow, hears.options(key="k"), 3)
    for n in range(3):
        await run.send(go, n)
    await run.result(SOON)
    events = [event async for event in tails.read("k", "heard")]
    assert [event.value for event in events] == [0, 1, 2]
    assert await values(tails, "k", "heard", after=events[0].id) == [1, 2]
    await aflow.app.rewind("k", to=2, effects="repeat")  # what it had heard is in the mailbox again
    following = asyncio.create_task(values(tails, "k", "heard", after=events[2].id))
    await run.result(SOON)
    found = await asyncio.wait_for(following, HANG_SECONDS)
    assert found == [1, 2], "who is ahead goes on with what is new"
    again = [event async for event in tails.read("k", "heard")]
    assert [event.value for event in again] == [0, 1, 2]
    assert again[0] == events[0]
    assert {event.id for event in again[1:]}.isdisjoint({event.id for event in events})


async def test_what_nobody_could_have_been_given_is_no_id(aflow, tails):
    await result_of(aflow, counts.options(key="k"), 1)
    for after in ("1", "1-", "-1", "1-x", "1-99999999999", f"{2**63}-1", "1-1 "):
        with pytest.raises(InvalidArgument, match="is not the id"):
            await values(tails, "k", "numbers", after=after)
    assert await values(tails, "k", "numbers", after=f"{2**63 - 1}-{2**31 - 1}") == []


@pytest.mark.parametrize("reach", ["nowhere", "the next units"])
async def test_who_comes_with_an_id_of_nowhere_makes_no_gap_for_others(aflow, tails, conn, reach):
    """He is the first whom the tail is for."""
    run = await launch(aflow, hears.options(key="k"), 3)
    await run.send(go, 0)
    await aflow.until_idle()
    (own,) = conn.execute("select max(run_id) from pgflow.timeline").fetchall()[0]
    after = f"{2**63 - 1}-1" if reach == "nowhere" else f"{own}-5"
    strange = asyncio.create_task(values(tails, "k", "heard", after=after))
    await eventually(lambda: tails.count == 1, "he reads")
    read: list[Any] = []

    async def follow() -> None:
        async for event in tails.read("k", "heard"):
            read.append(event.value)

    following = asyncio.create_task(follow())
    await eventually(lambda: read == [0], "the other has what there is")
    await run.send(go, 1)
    await aflow.until_idle()
    await eventually(lambda: read == [0, 1], "and what comes")
    await run.send(go, 2)
    await aflow.until_idle()
    await asyncio.wait_for(asyncio.gather(following, strange), HANG_SECONDS)
    assert read == [0, 1, 2]
    if reach == "nowhere":
        assert strange.result() == []


async def test_a_tail_that_is_sent_back_while_it_looks_looks_again(aflow, monkeypatch):
    """Its look began behind units that a reader has not had."""
    run = await launch(aflow, counts.options(key="k"), 3)
    await run.result(SOON)
    tail = streams.tails._Tail(aflow.app, "k", "numbers", (0, 0), lambda: 0.1)
    await tail.stop()
    found, _ = await tail.page((0, 0))
    tail.last = tail.base = found[1][0]
    read_page = tail.page

    async def page_while_it_is_sent_back(cursor: Any) -> Any:
        page = await read_page(cursor)
        tail.go_back((0, 0), cursor)
        return page

    monkeypatch.setattr(tail, "page", page_while_it_is_sent_back)
    assert await tail._look()
    monkeypatch.setattr(tail, "page", read_page)
    assert await tail._look()
    assert tail.since((0, 0)) == found


async def test_a_stream_that_is_closed_ends_and_a_run_that_is_stuck_says_so(aflow, tails):
    @workflow
    async def talks() -> None:
        pgflow.emit("short", 1)
        pgflow.close_stream("short")
        pgflow.emit("long", 1)
        await go.wait()

    await launch(aflow, talks.options(key="k"))
    assert await values(tails, "k", "short") == [1]
    with pytest.raises(RunNotFound):
        await values(tails, "nobody", "short")
    read = []
    with pytest.raises(RunStuck):
        async for event in tails.read("k", "long"):
            read.append(event.value)
            await aflow.app.send("k", Signal("go", str), "no number")
    assert read == [1]


async def test_a_thousand_readers_share_one_tail_and_one_listener(aflow, tails, conn):
    run = await launch(aflow, hears.options(key="k"), 5)
    readers = [asyncio.create_task(values(tails, "k", "heard")) for _ in range(1000)]
    listening = "select count(*) from pg_stat_activity where query = 'listen \"pgflow_stream\"'"
    await eventually(lambda: conn.execute(listening).fetchone() == (1,), "one listens for all")
    assert tails.count == 1
    for n in range(5):
        await run.send(go, n)
    assert await asyncio.wait_for(asyncio.gather(*readers), HANG_SECONDS) == [list(range(5))] * 1000
    assert tails.count == 0


async def test_who_is_far_behind_reads_for_itself_until_it_has_caught_up(aflow, tails, monkeypatch):
    monkeypatch.setattr(streams.tails, "KEPT", 4)
    monkeypatch.setattr(streams.tails, "STREAM_PAGE", 3)
    run = await launch(aflow, counts.options(key="k"), 40)
    slow = tails.read("k", "numbers")
    read = [(await anext(slow)).value]
    await run.result(SOON)
    assert await values(tails, "k", "numbers") == list(range(40))
    async for event in slow:
        read.append(event.value)
    assert read == list(range(40))


async def test_a_commit_is_heard_of_and_not_only_found(aflow, tails, monkeypatch):
    monkeypatch.setattr(streams.tails, "FIRST_LOOK_SECONDS", 300.0)
    monkeypatch.setattr(streams.tails, "LONGEST_LOOK_SECONDS", 300.0)
    run = await launch(aflow, hears.options(key="k"), 2)
    read: list[Any] = []

    async def follow() -> None:
        async for event in tails.read("k", "heard"):
            read.append(event.value)

    following = asyncio.create_task(follow())
    await eventually(lambda: tails._listener and tails._listener.listening, "it listens")
    await run.send(go, 1)
    await eventually(lambda: read == [1], "it hears of the first")
    await run.send(go, 2)
    await asyncio.wait_for(following, HANG_SECONDS)
    assert read == [1, 2]


async def test_a_commit_before_it_listens_is_found_once_it_does(aflow, tails, conn, monkeypatch):
    for name in ("FIRST", "UNTOLD", "LONGEST"):
        monkeypatch.setattr(streams.tails, f"{name}_LOOK_SECONDS", 300.0)
    connect, may_connect = listener.connect_async, asyncio.Event()

    async def connect_late(*args: Any) -> Any:
        task = asyncio.current_task()
        if task is not None and task.get_name().endswith(streams.tails.STREAM_CHANNEL):
            await may_connect.wait()
        return await connect(*args)

    monkeypatch.setattr(listener, "connect_async", connect_late)
    run = await launch(aflow, hears.options(key="k"), 3)
    read: list[Any] = []

    async def follow() -> None:
        async for event in tails.read("k", "heard"):
            read.append(event.value)

    def emitted() -> int:
        return one(conn, "select count(*) from pgflow.unit where kind = 'e'")

    await run.send(go, 1)
    await eventually(lambda: emitted() == 1, "the first is committed")
    following = asyncio.create_task(follow())
    await eventually(lambda: read == [1], "the first look finds it")
    await run.send(go, 2)
    await eventually(lambda: emitted() == 2, "the second is committed")
    may_connect.set()
    await eventually(lambda: read == [1, 2], "it looks once it listens")
    await run.send(go, 3)
    await asyncio.wait_for(following, HANG_SECONDS)
    assert read == [1, 2, 3]


async def test_nobody_is_left_behind_when_the_last_reader_leaves(aflow, tails):
    await launch(aflow, hears.options(key="k"), 1)
    reading = asyncio.create_task(values(tails, "k", "heard"))
    await eventually(lambda: tails.count == 1, "it is followed")
    reading.cancel()
    await asyncio.wait([reading])
    assert tails.count == 0
    assert not [t for t in asyncio.all_tasks() if t.get_name().startswith("pgflow-tail")]


@pytest.mark.full
async def test_the_words_of_a_model_come_at_once_and_the_whole_answer_takes_their_place(
    aflow, tails, conn
):
    said, proceed = asyncio.Event(), asyncio.Event()

    @step
    async def answer() -> str:
        pgflow.emit("answer", "so be", durable=False)
        pgflow.emit("answer", "gins")
        pgflow.emit("answer", " it", durable=False)
        said.set()
        await proceed.wait()
        pgflow.emit("answer", "so begins it")
        return "said"

    @workflow
    async def chat() -> str:
        return await answer()

    run = await launch(aflow, chat.options(key="k"))
    read: list[Event] = []

    async def follow() -> None:
        async for event in tails.read("k", "answer", live=True):
            read.append(event)

    following = asyncio.create_task(follow())
    await eventually(lambda: len(read) == 3, "the words come while the model speaks")
    found = [(e.value, e.is_durable) for e in read]
    assert found == [("so be", False), ("gins", False), (" it", False)]
    proceed.set()
    await asyncio.wait_for(following, HANG_SECONDS)
    await run.result(SOON)
    units = [event for event in read if event.is_durable]
    assert [event.value for event in units] == ["gins", "so begins it"]
    assert units[0].draft == read[1].draft, "a unit takes the place of its draft"
    assert units[1].draft not in {read[0].draft, read[2].draft}
    assert await values(tails, "k", "answer") == ["gins", "so begins it"]
    assert [v async for v in run.stream("answer", live=True)] == ["gins", "so begins it"]
    assert conn.execute("select count(*) from pgflow.draft").fetchone() == (0,)


async def test_a_try_that_fails_leaves_nothing_durable_and_a_newcomer_gets_the_words_so_far(
    aflow, tails
):
    tries: list[asyncio.Event] = []

    @step(retries=pgflow.Retries(2, first_delay=timedelta(milliseconds=1)))
    async def answer() -> None:
        proceed = asyncio.Event()
        tries.append(proceed)
        pgflow.emit("answer", f"try {len(tries)}", durable=False)
        await proceed.wait()
        if len(tries) == 1:
            raise ValueError
        pgflow.emit("answer", "done")

    @workflow
    async def chat() -> None:
        await answer()

    await launch(aflow, chat.options(key="k"))
    async with aclosing(tails.read("k", "answer", live=True)) as first:
        assert (await anext(first)).value == "try 1"
        async with aclosing(tails.read("k", "answer", live=True)) as second:
            assert (await anext(second)).value == "try 1"
    tries[0].set()
    async with aclosing(tails.read("k", "answer", live=True)) as third:
        event = await anext(third)
        while event.value == "try 1":
            event = await anext(third)
        assert (event.value, event.id) == ("try 2", None)
        tries[1].set()
        event = await anext(third)
        assert (event.value, event.is_durable) == ("done", True)


async def test_a_try_that_begins_before_the_failure_of_the_last_is_durable_is_seen(
    aflow, tails, conn, monkeypatch
):
    """What it emits is not taken for what its predecessor did."""
    monkeypatch.setattr(progress, "SEND_AFTER_SECONDS", 0)
    proceed = [asyncio.Event(), asyncio.Event()]
    tries: list[int] = []

    @step(retries=pgflow.Retries(2, first_delay=timedelta(milliseconds=1)))
    async def answer() -> None:
        tries.append(len(tries))
        pgflow.emit("answer", f"try {len(tries)}", durable=False)
        await proceed[tries[-1]].wait()
        if len(tries) == 1:
            raise ValueError

    @workflow
    async def chat() -> None:
        await answer()

    await launch(aflow, chat.options(key="k"))
    async with aclosing(tails.read("k", "answer", live=True)) as reader:
        assert (await anext(reader)).value == "try 1"
        with conn.transaction():
            conn.execute("select from pgflow.lease for no key update")  # no unit becomes durable
            proceed[0].set()
            await eventually(lambda: len(tries) == 2, "the second try begins")
            for _ in range(300):
                await asyncio.sleep(0)
                conn.execute("select")
        assert (await anext(reader)).value == "try 2"
    proceed[1].set()


async def test_what_workflow_code_emits_is_durable_at_once(aflow):
    @workflow
    async def talks() -> str:
        try:
            pgflow.emit("s", 1, durable=False)
        except InvalidArgument as error:
            return str(error)
        return "emitted"

    run = await launch(aflow, talks)
    assert "is for the body of a step" in await run.result(SOON)
    assert [value async for value in run.stream("s")] == []


class Browser:
    """A client of an ASGI application."""

    kind = "http"

    def __init__(self, app: Any, path: str, query: str = "", method: str = "GET", **headers: str):
        self.messages: list[dict[str, Any]] = []
        self._gone = asyncio.Event()
        scope = {
            "type": self.kind,
            "method": method,
            "path": path.replace("%2F", "/"),
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": [(k.replace("_", "-").encode(), v.encode()) for k, v in headers.items()],
        }
        self.task = asyncio.create_task(app(scope, self._receive, self._send))
        self._sent = False

    async def _receive(self) -> dict[str, Any]:
        if not self._sent:
            self._sent = True
            entered = "request" if self.kind == "http" else "connect"
            return {"type": f"{self.kind}.{entered}", "body": b"", "more_body": False}
        await self._gone.wait()
        return {"type": f"{self.kind}.disconnect"}

    async def _send(self, message: dict[str, Any]) -> None:
        self.messages.append(message)

    def hang_up(self) -> None:
        self._gone.set()

    @property
    def status(self) -> int | None:
        return self.messages[0]["status"] if self.messages else None

    @property
    def text(self) -> str:
        return b"".join(m.get("body", b"") for m in self.messages[1:]).decode()

    def events(self) -> list[dict[str, str]]:
        blocks = [b for b in self.text.split("\n\n") if b and not b.startswith((":", "retry"))]
        return [dict(line.split(": ", 1) for line in block.split("\n")) for block in blocks]

    def units(self) -> list[Any]:
        return [json.loads(e["data"])["value"] for e in self.events() if e["event"] == "unit"]

    async def over(self) -> Browser:
        await asyncio.wait_for(self.task, HANG_SECONDS)
        return self


async def anybody(scope: Any, run: str, stream: str) -> bool:
    return stream != "secret"


@pytest.mark.full
async def test_a_browser_reconnects_with_the_last_id_and_is_told_of_the_end(aflow, monkeypatch):
    aflow.include(hears)
    web = endpoint.asgi(aflow.app, may_read=anybody)
    run = await aflow.start(hears.options(key="team/7"), 3)
    first = Browser(web, "/streams/team%2F7/heard")
    await eventually(lambda: first.status == 200, "it is answered before there is anything")
    await run.send(go, 0)
    await run.send(go, 1)
    await eventually(lambda: first.units() == [0, 1], "both have come")
    first.hang_up()
    await first.over()
    last = first.events()[0]["id"]
    second = Browser(web, "/streams/team%2F7/heard", last_event_id=last)
    await run.send(go, 2)
    await second.over()
    assert second.units() == [1, 2]
    assert second.events()[-1]["event"] == "end"
    monkeypatch.setattr(endpoint, "FIRST_EVENT_SECONDS", 15.0)
    third = await Browser(web, "/x/team%2F7/heard", last_event_id=second.events()[1]["id"]).over()
    assert (third.status, third.text) == (204, "")
    again = await Browser(web, "/x/team%2F7/heard", query=f"after={last}").over()
    assert again.units() == [1, 2]


async def test_who_may_not_read_is_refused_and_so_is_what_is_not_there(aflow, monkeypatch):
    monkeypatch.setattr(endpoint, "FIRST_EVENT_SECONDS", 15.0)
    await result_of(aflow, counts.options(key="k"), 1)
    web = endpoint.asgi(aflow.app, may_read=anybody)
    asked = {
        ("/k/secret", "GET", ""): 403,
        ("/nobody/numbers", "GET", ""): 404,
        ("/k", "GET", ""): 404,
        ("/k/numbers", "POST", ""): 405,
        ("/k/numbers", "GET", "after=x"): 400,
        ("/k/numbers", "HEAD", ""): 200,
    }
    for (path, method, query), status in asked.items():
        answer = await Browser(web, path, query, method).over()
        assert answer.status == status, (path, method, query)
    assert (await Browser(web, "/k/numbers", method="HEAD").over()).text == ""
    with pytest.raises(RuntimeError, match="over HTTP"):
        await web({"type": "carrier pigeon"}, None, None)


async def test_drafts_are_events_without_an_id(aflow):
    proceed = asyncio.Event()

    @step
    async def speak() -> None:
        pgflow.emit("answer", "hel", durable=False)
        await proceed.wait()
        pgflow.emit("answer", "hello\nworld")

    @workflow
    async def chat() -> None:
        await speak()

    await launch(aflow, chat.options(key="k"))
    browser = Browser(endpoint.asgi(aflow.app, may_read=anybody), "/k/answer", query="live=1")
    await eventually(lambda: len(browser.events()) == 1, "the word is there")
    proceed.set()
    await browser.over()
    draft, unit, end = browser.events()
    assert (draft["event"], "id" in draft) == ("draft", False)
    assert json.loads(unit["data"])["value"] == "hello\nworld"
    assert end["event"] == "end"


class Socket(Browser):
    """A client that asks for a WebSocket."""

    kind = "websocket"

    @property
    def code(self) -> int | None:
        """Code with which it was closed."""
        last = self.messages[-1] if self.messages else {}
        return last.get("code") if last.get("type") == "websocket.close" else None

    def events(self) -> list[dict[str, Any]]:
        return [json.loads(m["text"]) for m in self.messages if m["type"] == "websocket.send"]

    def units(self) -> list[Any]:
        return [e["value"] for e in self.events() if e["event"] == "unit"]


async def test_a_socket_gets_the_same_and_goes_on_where_it_was(aflow):
    aflow.include(hears)
    web = endpoint.asgi(aflow.app, may_read=anybody)
    run = await aflow.start(hears.options(key="team/7"), 3)
    first = Socket(web, "/streams/team%2F7/heard")
    await run.send(go, 0)
    await run.send(go, 1)
    await eventually(lambda: first.units() == [0, 1], "both have come")
    assert first.messages[0]["type"] == "websocket.accept"
    first.hang_up()
    await first.over()
    assert first.code is None, "who has hung up is told nothing more"
    second = Socket(web, "/streams/team%2F7/heard", query=f"after={first.events()[0]['id']}")
    await run.send(go, 2)
    await second.over()
    assert second.units() == [1, 2]
    assert (second.events()[-1], second.code) == ({"event": "end"}, 1000)


async def test_a_socket_has_drafts_that_are_flagged_and_is_told_why_it_is_closed(aflow):
    @step
    async def speak() -> None:
        pgflow.emit("answer", "hel", durable=False)
        await eventually(lambda: len(browser.events()) == 1, "the word is there")
        pgflow.emit("answer", "hello")

    @workflow
    async def chat() -> None:
        await speak()
        await go.wait()

    run = await launch(aflow, chat.options(key="k"))
    web = endpoint.asgi(aflow.app, may_read=anybody)
    browser = Socket(web, "/k/answer", query="live=1")
    await eventually(lambda: browser.units() == ["hello"], "it is said")
    found = [(e["event"], e["id"] is None) for e in browser.events()]
    assert found == [("draft", True), ("unit", False)]
    await run.send(Signal("go", str), "no number")
    await browser.over()
    assert (browser.events()[-1]["event"], browser.code) == ("stuck", 1013)
    assert (await Socket(web, "/nobody/answer").over()).code == 4404
    assert (await Socket(web, "/k/answer", query="after=x").over()).code == 4400


@pytest.mark.parametrize(
    ("path", "headers", "is_let_in"),
    [
        ("/k/secret", {}, False),
        ("/k", {}, False),
        ("/k/numbers", {}, True),
        ("/k/numbers", {"origin": "https://web.example", "host": "web.example"}, True),
        ("/k/numbers", {"origin": "https://app.example", "host": "web.example"}, True),
        ("/k/numbers", {"origin": "https://evil.example", "host": "web.example"}, False),
        ("/k/numbers", {"origin": "null", "host": "web.example"}, False),
        ("/k/numbers", {"origin": "null"}, False),
    ],
)
async def test_a_page_of_another_origin_opens_no_socket_with_the_cookies_of_its_reader(
    aflow, path, headers, is_let_in
):
    await result_of(aflow, counts.options(key="k"), 1)
    web = endpoint.asgi(aflow.app, may_read=anybody, origins=["https://app.example"])
    socket = await Socket(web, path, **headers).over()
    assert socket.code == (1000 if is_let_in else 1008)
    assert (socket.units() == [0]) == is_let_in


async def test_a_reader_that_is_gone_when_something_comes_is_no_error(aflow):
    """Servers raise OSError then."""
    await result_of(aflow, counts.options(key="k"), 1)
    web = endpoint.asgi(aflow.app, may_read=anybody)
    for client in (Browser, Socket):

        class Gone(client):  # type: ignore[misc, valid-type]
            async def _send(self, message: dict[str, Any]) -> None:
                if message["type"] != "websocket.accept":
                    raise OSError

        await Gone(web, "/k/numbers").over()
    assert not [t for t in asyncio.all_tasks() if t.get_name().startswith("pgflow-tail")]


@pytest.mark.full
async def test_a_silent_line_is_kept_alive(aflow, monkeypatch):
    monkeypatch.setattr(endpoint, "BEAT_SECONDS", 0.01)
    await launch(aflow, hears.options(key="k"), 1)
    browser = Browser(endpoint.asgi(aflow.app, may_read=anybody), "/k/heard")
    await eventually(lambda: browser.text.count(": still here") > 2, "it is told")
    browser.hang_up()
    await browser.over()


def test_a_sync_app_serves_streams_too(flow):
    result_of(flow, counts.options(key="k"), 3)

    async def read() -> list[Any]:
        web = endpoint.asgi(flow.app, may_read=anybody)
        browser = await Browser(web, "/k/numbers").over()
        told = iter(["lifespan.startup", "lifespan.shutdown"])

        async def receive() -> dict[str, Any]:
            return {"type": next(told)}

        async def send(message: dict[str, Any]) -> None:
            del message

        await web({"type": "lifespan"}, receive, send)
        return browser.units()

    assert asyncio.run(read()) == [0, 1, 2]
