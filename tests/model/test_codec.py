"""Values that an app's codec encodes: nothing of them is readable in the database, and everything
goes on as it did in clear.

The canary is a word that is in every value of a run, whatever it is used for. It must be in no row
of any table.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import os
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from clikit import pgflow as command
from psycopg import sql
from records import SOON, events, eventually, in_a_loop, launch, run_row, settle
from servers import HANG_SECONDS

import pgflow
from pgflow import (
    App,
    AsyncApp,
    KeyConflict,
    RunFailed,
    RunStuck,
    Signal,
    step,
    transaction,
    workflow,
)
from pgflow._model.codecs import hash_arguments
from pgflow._model.envelopes import envelopes_of
from pgflow.decisions import Choice, decision
from pgflow.effects import Absent, Accepted, Confirmed, StillUnknown, effect
from pgflow.errors import CodecError, DefinitionError, NeedsGate, NonDeterminismError, NotStorable
from pgflow.replay.check import find_divergence
from pgflow.replay.histories import read_database

if TYPE_CHECKING:
    from pgflow.testing import AsyncHarness

CANARY = "zanzibar-4711"
SECRET = b"what is compared is hashed with this"


@dataclass
class Cipher:
    """A stream cipher for tests, with a new nonce for each value; real ones come from a library."""

    key_id: str | None = "k1"
    keys: dict[str, bytes] = field(default_factory=lambda: {"k1": b"one"})
    hash_key: bytes | None = SECRET
    is_broken: bool = False

    def encode(self, data: bytes) -> bytes:
        if self.is_broken:
            raise OSError("the vault is sealed")
        assert self.key_id is not None
        nonce = os.urandom(12)
        return nonce + self._mixed(self.keys[self.key_id], nonce, data)

    def decode(self, key_id: str, data: bytes) -> bytes:
        return self._mixed(self.keys[key_id], data[:12], data[12:])

    @staticmethod
    def _mixed(key: bytes, nonce: bytes, data: bytes) -> bytes:
        stream = hashlib.shake_256(key + nonce).digest(len(data))
        return bytes(a ^ b for a, b in zip(data, stream, strict=True))


@dataclass
class Zipped:
    key_id: str | None = "zlib"
    hash_key: bytes | None = None

    def encode(self, data: bytes) -> bytes:
        return zlib.compress(data)

    def decode(self, key_id: str, data: bytes) -> bytes:
        assert key_id == "zlib"
        return zlib.decompress(data)


def rows(conn: psycopg.Connection[Any]) -> dict[str, str]:
    """All rows of all tables of the schema, as text."""
    tables = [
        name
        for (name,) in conn.execute(
            "select tablename from pg_tables where schemaname = 'pgflow' order by 1"
        )
    ]
    found = {}
    for name in tables:
        query = sql.SQL("select coalesce(string_agg(t::text, e'\\n'), '') from pgflow.{} t").format(
            sql.Identifier(name)
        )
        found[name] = conn.execute(query).fetchone()[0]  # type: ignore[index]
    return found


def tables_with(conn: psycopg.Connection[Any], word: str) -> set[str]:
    """The tables that hold a word, as it is or in hexadecimal or base64."""
    shapes = [
        word,
        word.encode().hex(),
        *(base64.b64encode(b"x" * n + word.encode())[n + 1 : -4].decode() for n in range(3)),
    ]
    return {name for name, text in rows(conn).items() if any(shape in text for shape in shapes)}


go = Signal("go", str)
late = Signal("late", dict)  # type: ignore[type-arg]


class LostError(Exception):
    def __init__(self, where: str) -> None:
        super().__init__(f"lost at {where}")
        self.where = where


@step
async def fetch(word: str) -> dict[str, str]:
    pgflow.heartbeat({"at": word})
    pgflow.emit("lines", f"step {word}")
    return {"word": word}


@step(retries=2)
async def fetch_twice(word: str) -> str:
    if pgflow.run_info().step_attempt == 1:
        raise LostError(word)
    return f"found {word}"


@step(raises=[LostError])
def lose(word: str) -> None:
    raise LostError(word) from ValueError(f"because of {word}")


@decision()
async def choose(word: str) -> Choice[str]:
    return Choice(
        word,
        why=f"why {word}",
        evidence=[f"seen {word}"],
        alternatives=[f"or {word}"],
        policy="prudence",
        model="m1",
    )


@transaction
async def note(conn: psycopg.AsyncConnection[Any], word: str) -> str:
    await conn.execute("select 1")
    return f"noted {word}"


@transaction
def note_sync(conn: psycopg.Connection[Any], word: str) -> str:
    conn.execute("select 1")
    return f"noted {word}"


@effect(risk="compensable")
async def charge(card: str, cents: int) -> str:
    return f"charged {card}"


@charge.verify
async def _(found: str, card: str, cents: int) -> bool:
    return found == f"charged {card}" and cents > 0


@charge.compensate
async def _(found: str, card: str, cents: int) -> str:
    return f"gave back {found}"


@effect(risk="reversible")
def post(word: str) -> str:
    return f"posted {word}"


@post.compensate
def _(found: str, word: str) -> str:
    return f"took back {found}"


@workflow
async def helper(word: str) -> str:
    await charge(word, 5)
    return f"helped {word}, {pgflow.run_info().metadata['of']}"


@workflow(raises=[LostError])
async def unhelpful(word: str) -> str:
    raise LostError(word)


async def fails(awaitable: Any) -> str:
    try:
        await awaitable
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    raise AssertionError


@workflow(raises=[LostError])
async def everything(word: str) -> list[Any]:
    pgflow.set_state(at=word, more={"also": word})
    pgflow.emit("lines", f"line {word}")
    seen: list[Any] = [
        await fetch(word), await fetch_twice(word), await choose(word), await note(word),
        await charge(word, 7), await fails(lose.aio(word)), await pgflow.run_child(helper, word),
        await pgflow.run_child(helper.options(key="named"), word),
        await fails(pgflow.run_child(unhelpful, word)), await go.wait(), await late.wait(),
    ]  # fmt: skip
    seen[2] = [seen[2].value, seen[2].why, list(seen[2].evidence), seen[2].policy]
    try:
        async with pgflow.effects.saga(goal=f"sell {word}"):
            await charge(f"again {word}", 9)
            raise LostError(word)
    except LostError as lost:
        seen.append(lost.where)
    return seen


@workflow(raises=[LostError])
def everything_sync(word: str) -> list[Any]:
    pgflow.set_state(at=word)
    pgflow.emit("lines", f"line {word}")
    seen: list[Any] = [
        fetch.sync(word), fetch_twice.sync(word), choose.sync(word).why, note_sync(word),
        post(word), pgflow.sync.run_child(helper, word), go.sync.wait(),
    ]  # fmt: skip
    try:
        lose(word)
    except LostError as lost:
        seen += [lost.where, str(lost.__cause__)]
    try:
        with pgflow.sync.saga():
            post(f"again {word}")
            raise LostError(word)
    except LostError as lost:
        seen.append(str(lost))
    return seen


@workflow(raises=[LostError])
async def lost(word: str) -> None:
    await charge(word, 3)
    raise LostError(word)


@workflow
async def again(word: str, left: int) -> str:
    await charge(f"{word} {left}", left + 1)
    if left:
        pgflow.continue_as_new(word, left - 1)
    await go.wait()
    raise LostError(word)


@workflow
async def simple(word: str, times: int = 1) -> str:
    return str(await fetch_twice(word)) * times


@workflow
async def waits(word: str) -> str:
    found = await fetch(word)
    return f"{found['word']} {await go.wait()}"


EXPECTED = [
    {"word": CANARY}, f"found {CANARY}", [CANARY, f"why {CANARY}", [f"seen {CANARY}"], "prudence"], f"noted {CANARY}",
    f"charged {CANARY}", f"LostError: lost at {CANARY}", f"helped {CANARY}, {CANARY}", f"helped {CANARY}, {CANARY}",
    f"RunFailed: child unhelpful failed: lost at {CANARY}", f"go {CANARY}", {"late": CANARY}, CANARY,
]  # fmt: skip


async def run_everything(
    aflow: AsyncHarness, conn: psycopg.Connection[Any], codec: Any = None
) -> None:
    """Runs that leave a value in every place there is, and read what they have left."""
    app = aflow(codec=codec or Cipher(), errors=[LostError]).app
    run = await launch(
        aflow,
        everything.options(key="all", labels={"shop": "1"}, metadata={"of": CANARY}),
        CANARY,
        beside=[helper, unhelpful, lost, again],
    )
    failed = await aflow.start(lost.options(key="lost"), CANARY)
    anew = await aflow.start(again.options(key="again"), CANARY, 2)
    await run.send(go, f"go {CANARY}")
    await aflow.until_idle()
    found = run_row(conn, "all", "status, reason, labels")
    assert found == ("waiting", "signal late", {"shop": "1"})
    assert await run.state() == {"at": CANARY, "more": {"also": CANARY}}
    await app.send("all", late, {"late": CANARY}, idempotency_key="once")
    await app.send("all", late, {"late": CANARY}, idempotency_key="once")
    assert await run.result(SOON) == EXPECTED
    with pytest.raises(RunFailed, match=CANARY) as told:
        await failed.result(SOON)
    assert told.value.__cause__.where == CANARY  # type: ignore[union-attr]
    await anew.send(go, CANARY)
    with pytest.raises(RunFailed):
        await anew.result(SOON)
    assert [value async for value in run.stream("lines")] == [f"line {CANARY}", f"step {CANARY}"]


@pytest.mark.full
async def test_no_value_of_a_run_is_readable_in_the_database(aflow, conn):
    await run_everything(aflow, conn)
    assert tables_with(conn, CANARY) == set()


@pytest.mark.full
async def test_what_sql_branches_on_and_people_look_for_is_readable(aflow, conn):
    await run_everything(aflow, conn)
    found = run_row(conn, "lost", "error->>'type', error->>'message'")
    assert found == ("test_codec.LostError", None)
    found = conn.execute("select name, policy, model, why from pgflow.decisions").fetchall()
    assert found == [("choose", "prudence", "m1", None)]
    assert {kind for kind, _ in events(conn, "again")} >= {"effect_confirmed", "continued"}
    taken_back = conn.execute(
        "select count(*) from pgflow.effects where name = 'charge.compensate' and status = "
        "'confirmed'"
    ).fetchone()
    assert taken_back == (5,)
    assert conn.execute("select pgflow.run_state('all')->'at'->>'$codec'").fetchone() == ("k1",)


@pytest.mark.full
def test_no_value_of_a_sync_run_is_readable_in_the_database(flow, conn):
    flow(codec=Cipher(), errors=[LostError]).include(everything_sync, helper)
    run = flow.start(everything_sync.options(key="all", metadata={"of": CANARY}), CANARY)
    flow.app.send("all", go, f"go {CANARY}")
    assert run.result(SOON) == [
        {"word": CANARY}, f"found {CANARY}", f"why {CANARY}", f"noted {CANARY}", f"posted {CANARY}",
        f"helped {CANARY}, {CANARY}", f"go {CANARY}", CANARY, f"because of {CANARY}",
        f"lost at {CANARY}",
    ]  # fmt: skip
    assert list(run.stream("lines")) == [f"line {CANARY}", f"step {CANARY}"]
    assert (run.state(), tables_with(conn, CANARY)) == ({"at": CANARY}, set())


async def test_a_run_that_is_stuck_tells_nothing_of_its_values(aflow, conn):
    @dataclass
    class Order:
        word: str

        def __post_init__(self) -> None:
            if self.word != "fine":
                raise ValueError(f"not {self.word}")

    order = Signal("order", Order)

    @workflow
    async def picky() -> None:
        await order.wait()

    aflow(codec=Cipher()).include(picky)
    run = await settle(aflow, picky.options(key="p"))
    await aflow.app.send("p", Signal("order", dict), {"word": CANARY})
    with pytest.raises(RunStuck, match="does not fit its annotation"):
        await run.result(SOON)
    assert tables_with(conn, CANARY) == set()
    (message,) = await aflow.app.messages("p")
    assert message.payload == {"word": CANARY}
    await aflow.app.replace_message("p", message.message, {"word": "fine"})
    assert await run.result(SOON) is None
    assert tables_with(conn, '"fine"') == set()


@pytest.mark.full
async def test_what_a_planner_proposes_is_not_readable(aflow, conn):
    @effect(risk="compensable")
    async def book(word: str) -> str:
        return word

    @step
    async def unbook(word: str) -> str:
        raise LostError(word)

    @decision()
    async def plan(request: pgflow.effects.UndoRequest) -> Choice[list[pgflow.effects.PlannedCall]]:
        assert request.request == {"word": CANARY}
        return Choice([pgflow.effects.PlannedCall("unbook", {"word": CANARY})], why=CANARY)

    @workflow
    async def trip(word: str) -> None:
        async with pgflow.effects.saga(
            goal="a trip", planner=plan, steps=[unbook.options(retries=1)]
        ):
            await book(word)
            raise LostError(word)

    aflow(codec=Cipher()).include(trip)
    run = await aflow.start(trip.options(key="t"), CANARY)
    with pytest.raises(RunStuck, match="failed with StepFailed"):
        await run.result(SOON)
    assert tables_with(conn, CANARY) == set()
    ((key,),) = conn.execute("select detail->>'key' from pgflow.owed").fetchall()
    await aflow.app.settle_effect(key, "confirmed", CANARY)
    with pytest.raises(RunFailed):
        await run.result(SOON)
    assert tables_with(conn, CANARY) == set()


@in_a_loop
async def test_old_values_stay_readable_after_a_rotation(dsn, conn):
    old, new = Cipher(), Cipher("k2", {"k1": b"one", "k2": b"two"})
    async with AsyncApp(dsn, include=[waits], codec=old) as app, app.worker():
        run = await app.start(waits.options(key="w"), CANARY)
        await eventually(lambda: run_row(conn, "w", "status") == ("waiting",), "it waits")
    async with AsyncApp(dsn, include=[waits], codec=new) as app, app.worker():
        run = app.get("w", waits)
        await run.send(go, "on")
        assert await run.result(SOON) == f"{CANARY} on"
        assert (
            await app.start(waits.options(key="w"), CANARY)
        ).key == "w"  # the same input, encoded with another key
    keys = conn.execute(
        "select input->>'$codec', output->>'$codec' from pgflow.runs where key = 'w'"
    ).fetchall()
    assert keys == [("k1", "k2")]
    async with AsyncApp(dsn, codec=Cipher("k2", {"k2": b"two"})) as app:
        assert await app.get("w", waits).result(SOON) == f"{CANARY} on"
    assert tables_with(conn, CANARY) == set()


@pytest.mark.full
@pytest.mark.parametrize(
    "codec", [None, Cipher("k2", {"k2": b"two"})], ids=["without a codec", "without the key"]
)
@in_a_loop
async def test_whoever_cannot_decode_a_value_is_told_and_holds_the_run(dsn, conn, codec):
    why = r"was encoded with key 'k1', and (this app has no codec: pass codec= to App|the app's codec cannot decode it \(KeyError\))"
    async with AsyncApp(dsn, include=[waits], codec=Cipher()) as app, app.worker():
        await app.start(waits.options(key="w"), CANARY)
        await eventually(lambda: run_row(conn, "w", "status") == ("waiting",), "it waits")
        await app.send("w", go, "on")
        assert await app.get("w", waits).result(SOON) == f"{CANARY} on"
        await app.start(waits.options(key="open"), CANARY)
        await eventually(lambda: run_row(conn, "open", "status") == ("waiting",), "it waits")
    async with AsyncApp(dsn, include=[waits], codec=codec) as other:
        with pytest.raises(CodecError, match=f"the result of run 'w' {why}"):
            await other.get("w", waits).result(SOON)
        async with other.worker():
            await other.send("open", go, "clear or k2")
            with pytest.raises(
                RunStuck, match=rf"is stuck \(codec\): the input of run 'open' {why}"
            ):
                await other.get("open", waits).result(SOON)
    assert events(conn, "open")[-1][0] != "step_failed"
    async with (
        AsyncApp(dsn, include=[waits], codec=Cipher("k1", {"k1": b"one", "k2": b"two"})) as app,
        app.worker(),
    ):
        await app.resume("open")
        assert await app.get("open", waits).result(SOON) == f"{CANARY} clear or k2"


@pytest.mark.full
@in_a_loop
async def test_an_answer_that_cannot_be_decoded_holds_the_run_and_is_not_lost(dsn, conn):
    async with (
        AsyncApp(dsn, codec=Cipher("other", {"other": b"other"})) as stranger,
        AsyncApp(dsn, include=[waits], codec=Cipher()) as app,
    ):
        run = await app.start(waits.options(key="w"), CANARY)
        async with app.worker():
            await eventually(lambda: run_row(conn, "w", "status") == ("waiting",), "it waits")
            await stranger.send("w", go, CANARY)
            with pytest.raises(RunStuck, match="encoded with key 'other'"):
                await run.result(SOON)
    knowing = Cipher("k1", {"k1": b"one", "other": b"other"})
    async with AsyncApp(dsn, include=[waits], codec=knowing) as app, app.worker():
        await app.resume("w")
        assert await app.get("w", waits).result(SOON) == f"{CANARY} {CANARY}"


@pytest.mark.full
@in_a_loop
async def test_two_apps_of_one_process_do_not_mix(dsn, conn):
    one, two, clear = (
        AsyncApp(dsn, include=[simple], codec=Cipher()),
        AsyncApp(dsn, include=[simple], codec=Zipped()),
        AsyncApp(dsn, include=[simple]),
    )
    for app, key, key_id in (
        (one, "a", "k1"),
        (two, "b", "zlib"),
        (clear, "c", None),
        (one, "d", "k1"),
    ):
        async with app:
            assert await app.run(simple.options(key=key), CANARY) == f"found {CANARY}"
        assert run_row(conn, key, "input->>'$codec', output->>'$codec'") == (key_id, key_id)


@pytest.mark.full
@in_a_loop
async def test_a_codec_is_switched_on_under_runs_that_go_on(dsn, conn):
    """The step has begun with a plain hash of its arguments, and the worker is lost."""
    begun, may_end = asyncio.Event(), asyncio.Event()

    @step
    async def slow(word: str) -> str:
        begun.set()
        await may_end.wait()
        return word

    @workflow
    async def slowly(word: str) -> str:
        return await slow(word)

    for key, codecs in (
        ("on", (None, Cipher(None), Cipher())),
        ("off", (Cipher(), Cipher(None), Cipher(None))),
    ):
        may_end.clear()
        for n, codec in enumerate(codecs):
            begun.clear()
            async with AsyncApp(dsn, include=[slowly], codec=codec) as app:
                run = (
                    await app.start(slowly.options(key=key), CANARY)
                    if n == 0
                    else app.get(key, slowly)
                )
                async with app.worker(grace_seconds=0.0):
                    await asyncio.wait_for(begun.wait(), HANG_SECONDS)
                    if n == 2:
                        may_end.set()
                        assert await run.result(SOON) == CANARY
    assert run_row(conn, "on", "input->>'word', output->>'$codec'") == (CANARY, "k1")
    assert run_row(conn, "off", "input->>'$codec', output #>> '{}'") == ("k1", CANARY)


def test_a_start_under_a_key_is_the_same_run_with_the_same_input_only(dsn, conn):
    with App(dsn, codec=Cipher()) as app:
        first = app.start(simple.options(key="a"), CANARY)
        assert (
            app.start(simple.options(key="a"), word=CANARY, times=1).key == first.key
        )  # what is left out counts as its default
        with pytest.raises(KeyConflict, match=r"has another input \(encoded\)"):
            app.start(simple.options(key="a"), CANARY, 2)
        keys = [run.key for run in app.start_many(simple, [(CANARY,), ("other",)], keys=["b", "c"])]
        assert (
            [run.key for run in app.start_many(simple, [(CANARY,), ("other",)], keys=["b", "c"])]
            == keys
            == ["b", "c"]
        )
        with pytest.raises(KeyConflict, match=r"another input \(encoded\)"):
            app.start_many(simple, [("other",)], keys=["b"])
    hashes = conn.execute(
        "select input->>'hash' from pgflow.run where key in ('a', 'b')"
    ).fetchall()
    assert len(set(hashes)) == 2  # of the same input, under another key
    assert tables_with(conn, CANARY) == set()


@in_a_loop
async def test_hashes_of_arguments_are_keyed_and_other_arguments_are_noticed(dsn, conn):
    begun = asyncio.Event()
    said = [CANARY]

    @step
    async def slow(word: str) -> str:
        begun.set()
        await asyncio.Event().wait()
        return word

    @workflow
    async def fickle() -> str:
        return await slow(said[0])

    async with AsyncApp(dsn, include=[fickle], codec=Cipher()) as app:
        run = await app.start(fickle.options(key="f"))
        async with app.worker(grace_seconds=0.0):
            await asyncio.wait_for(begun.wait(), HANG_SECONDS)
        ((starts,),) = conn.execute(
            "select starts from pgflow.timeline where key = 'f' and starts is not null"
        ).fetchall()
        assert starts[0][4] != hash_arguments((CANARY,), {}, "slow")
        said[0] = "another"
        async with app.worker(grace_seconds=0.0):
            with pytest.raises(RunStuck, match="other arguments"):
                await run.result(SOON)


@pytest.mark.full
async def test_the_policy_sees_what_an_effect_lets_it_see_and_nothing_passes_unseen(aflow, conn):
    @effect(risk="reversible", readable=["cents"])
    async def open_pay(card: str, cents: int) -> str:
        return card

    @effect(risk="reversible")
    async def hidden_pay(card: str, cents: int) -> str:
        return card

    @workflow
    async def pay(cents: int) -> list[str]:
        said = []
        for act in (open_pay, hidden_pay):
            try:
                said.append(await act(CANARY, cents))
            except NeedsGate:
                said.append("gate")
        return said

    async def refused(run: Any) -> Any:
        """Return the result of a run if whoever is asked says no."""
        await aflow.until_idle()
        while gates := await aflow.gates(run):
            await aflow.answer(gates[0], pgflow.authority.Reject("no"))
        return await run.result(SOON)

    aflow(codec=Cipher()).include(pay)
    for rules in (
        '[{"amount": "$.cents", "above": 500}]',
        '[{"predicate": "$.cents > 500"}]',
        '[{"predicate": "$.\\"cents\\" > 500 && $.cents > 1"}]',
    ):
        conn.execute("select pgflow.set_policy(%s, 'a test')", (rules,))
        assert await refused(await aflow.start(pay, 5)) == [CANARY, "gate"]
        assert await refused(await aflow.start(pay, 600)) == ["gate", "gate"]
    for rules in (
        '[{"predicate": "$.card == \\"x\\""}]',
        '[{"amount": "$ ? (@.cents > 9).cents", "above": 1}]',
        '[{"amount": "$.*", "above": 9}]',
    ):
        conn.execute("select pgflow.set_policy(%s, 'a test')", (rules,))
        assert await refused(await aflow.start(pay, 5)) == ["gate", "gate"]
    ((shown,),) = conn.execute(
        "select distinct (request->'shown')::jsonb from pgflow.effects where name = 'open_pay'"
    ).fetchall()
    assert shown == {"cents": 5}
    assert tables_with(conn, CANARY) == set()


def test_what_stays_readable_of_an_effect_is_one_of_its_parameters():
    with pytest.raises(DefinitionError, match="'amount', which is none of its parameters"):

        @effect(risk="reversible", readable=["amount"])
        async def pay(cents: int) -> None: ...


def test_a_client_without_a_worker_reads_and_writes(dsn, conn):
    with App(dsn, codec=Cipher()) as client, psycopg.connect(dsn) as caller:
        run = client.using(caller).start(waits.options(key="w"), CANARY)
        client.using(caller).send("w", go, CANARY)
        caller.commit()
        with App(dsn, include=[waits], codec=Cipher()) as app, app.worker():
            assert run.result(SOON) == f"{CANARY} {CANARY}"
    assert tables_with(conn, CANARY) == set()


@pytest.mark.full
async def test_what_sql_starts_and_sends_in_clear_is_read_and_stored_in_clear(aflow, conn):
    aflow(codec=Cipher()).include(waits)
    conn.execute("select pgflow.start_run('waits', '{\"word\": \"from SQL\"}', 'w')")
    await aflow.until_idle()
    conn.execute("select pgflow.send_signal('w', 'go', '\"sent\"')")
    assert await aflow.app.get("w", waits).result(SOON) == "from SQL sent"
    assert run_row(conn, "w", "input->>'word', output->>'$codec'") == ("from SQL", "k1")
    with pytest.raises(KeyConflict, match=r"another input \(encoded\)"):
        await aflow.app.start(waits.options(key="w"), "from SQL")


def test_a_value_that_looks_encoded_is_refused_with_a_codec_and_without(dsn):
    look = {"$codec": "k1", "data": "AAAA"}
    for codec in (None, Cipher()):
        with App(dsn, codec=codec) as app:
            app.start(waits, "x")
            for sent in (
                lambda app=app: app.send("w", Signal("go", dict), look),
                lambda app=app: app.start(simple.options(metadata=look), "x"),
            ):
                with pytest.raises(NotStorable, match=r"'\$codec'.* would be taken for"):
                    sent()


@workflow
async def lookalike() -> list[str]:
    said = []
    for act in (
        lambda: pgflow.emit("s", {"$codec": "k"}),
        lambda: pgflow.set_state(x={"$codec": "k"}),
    ):
        try:
            act()
        except NotStorable as refused:
            said.append(str(refused).partition(" begins")[0])
    pgflow.set_state(x={"y": {"$codec": "k", "data": "is deeper"}})
    return said


@pytest.mark.parametrize("codec", [None, Cipher()], ids=["clear", "encoded"])
async def test_code_that_says_what_looks_encoded_is_told(aflow, codec):
    aflow(codec=codec).include(lookalike)
    run = await aflow.start(lookalike)
    assert await run.result(SOON) == ["a value of stream 's'", "x= of set_state()"]
    assert await run.state() == {"x": {"y": {"$codec": "k", "data": "is deeper"}}}


@pytest.mark.full
def test_forks_rewinds_and_edits_of_encoded_runs(flow, conn):
    flow(codec=Cipher()).include(waits, simple)
    app = flow.app
    run = flow.start(waits.options(key="w"), CANARY)
    run.send(go, CANARY)
    assert run.result(SOON) == f"{CANARY} {CANARY}"
    flow.until_idle()
    seq = conn.execute(
        "select seq from pgflow.timeline where key = 'w' and event = 'step_completed'"
    ).fetchone()[0]  # type: ignore[index]
    for _ in range(2):
        assert app.fork("w", "f", at=seq, edit={"word": f"edited {CANARY}"}, with_mail=True) == "f"
    assert app.get("f", waits).result(SOON) == f"edited {CANARY} {CANARY}"
    app.rewind("w", seq, edit={"word": "rewound"})
    assert app.get("w", waits).result(SOON) == f"rewound {CANARY}"
    app.restart("w", input={"word": f"new {CANARY}"}, effects="reuse")
    assert app.get("w", waits).result(SOON) == f"new {CANARY} {CANARY}"
    app.restart("w", effects="reuse")  # hands on what the step came to
    assert app.get("w", waits).result(SOON) == f"new {CANARY} {CANARY}"
    assert tables_with(conn, CANARY) == set()


@pytest.mark.full
async def test_what_is_dropped_of_an_encoded_run_is_taken_back_or_handed_on(aflow, conn):
    @workflow
    async def shop(word: str) -> str:
        await charge(word, 3)
        return f"{await pgflow.run_child(helper.options(metadata={'of': word}), word)} {await charge(word, 4)}"

    aflow(codec=Cipher()).include(shop, helper)
    run = await aflow.start(shop.options(key="s"), CANARY)
    expected = f"helped {CANARY}, {CANARY} charged {CANARY}"
    assert await run.result(SOON) == expected
    await aflow.until_idle()
    await aflow.app.rewind("s", 0, effects="reuse")
    assert await run.result(SOON) == expected
    attempts = conn.execute(
        "select sum(attempts) from pgflow.effects where name = 'charge'"
    ).fetchone()
    assert attempts == (3,)
    await aflow.until_idle()
    await aflow.app.fork("s", "copy", at=0, effects="repeat")
    assert await aflow.app.get("copy", shop).result(SOON) == expected
    assert tables_with(conn, CANARY) == set()


async def test_an_accepted_or_unknown_effect_is_settled_with_an_encoded_value(aflow, conn):
    @effect(risk="compensable")
    async def wire(word: str) -> str | Accepted:
        return Accepted("ref-1")

    @effect(risk="compensable")
    async def lose_it(word: str) -> str:
        raise LostError(word)

    @lose_it.settle
    async def _(word: str) -> Confirmed[str] | Absent | StillUnknown:
        return Confirmed(f"asked {word}")

    @workflow
    async def bank(word: str) -> list[Any]:
        return [str(await wire(word)), await lose_it(word)]

    aflow(codec=Cipher()).include(bank)
    run = await settle(aflow, bank.options(key="b"), CANARY)
    assert conn.execute("select detail->>'ref' from pgflow.owed").fetchall() == [("ref-1",)]
    await aflow.app.confirm_effect("ref-1", value={"receipt": CANARY})
    assert await run.result(SOON) == [str(Accepted("ref-1")), f"asked {CANARY}"]
    assert tables_with(conn, CANARY) == set()


@pytest.mark.full
@in_a_loop
async def test_recorded_histories_are_replayed_with_the_codec_only(dsn, conn):
    codec = Cipher()
    async with AsyncApp(dsn, include=[simple], codec=codec) as app:
        await app.run(simple.options(key="s"), CANARY)
    ((chain,),) = conn.execute("select chain_id from pgflow.runs").fetchall()
    with pytest.raises(CodecError, match="pass codec="):
        find_divergence(next(read_database(conn, [chain])), simple)
    assert (
        find_divergence(
            next(read_database(conn, [chain])), simple, (LostError,), (), envelopes_of(codec)
        )
        is None
    )

    @workflow(name="simple")
    async def other(word: str, times: int = 1) -> str:
        return "another"

    diverged = find_divergence(
        next(read_database(conn, [chain])), other, (), (), envelopes_of(codec)
    )
    assert diverged is not None


@pytest.mark.full
@in_a_loop
async def test_the_command_line_shows_that_a_value_is_encoded(dsn):
    async with AsyncApp(dsn, include=[simple, lost], codec=Cipher()) as app, app.worker():
        await (await app.start(simple.options(key="s"), CANARY)).result(SOON)
        with pytest.raises(RunFailed):
            await (await app.start(lost.options(key="l"), CANARY)).result(SOON)
    shown = command(dsn, "show", "s", "--table").out
    assert "<encoded with key k1>" in shown
    assert "data" not in shown
    assert "LostError: <encoded with key k1>" in command(dsn, "show", "l", "--table").out
    assert "<encoded with key k1>" in command(dsn, "audit", "l", "--table").out
    for verb in ("list", "timeline s", "timeline l", "audit l", "logs l", "show s", "list --json"):
        assert CANARY not in command(dsn, *verb.split()).out


@pytest.mark.full
async def test_the_limit_holds_for_what_is_stored(aflow):
    @step(retries=1)
    async def long() -> str:
        return os.urandom(450_000).hex()

    @workflow
    async def writes() -> list[str]:
        said = []
        for act in (long, lambda: pgflow.run_child(simple, os.urandom(1).hex() * 450_000)):
            try:
                await act()
            except NotStorable as refused:
                said.append(str(refused))
        try:
            pgflow.set_state(x="y" * 900_000)
        except NotStorable as refused:
            said.append(str(refused))
        return said

    aflow(codec=Cipher()).include(writes, simple)
    said = await (await aflow.start(writes)).result(SOON)
    assert len(said) == 3
    assert all("once it is encoded; the limit is 1 MiB" in text for text in said)


async def test_an_error_too_long_to_be_encoded_is_cut_and_never_lost(aflow):
    @step(raises=[LostError])
    async def burst() -> None:
        error: Exception = LostError("first")
        for n in range(8):
            cause = error
            error = LostError(f"{n}")
            error.args = tuple("x" * 60_000 for _ in range(2))
            error.__cause__ = cause
        raise error

    @workflow(raises=[LostError])
    async def bursts() -> str:
        try:
            await burst()
        except LostError as lost:
            return lost.where
        return ""

    aflow(codec=Cipher(), errors=[LostError]).include(bursts)
    assert await (await aflow.start(bursts)).result(SOON) == "7"


async def test_a_codec_that_fails_holds_the_run_which_goes_on_later(aflow, conn):
    codec = Cipher()
    acted: list[str] = []

    @step
    async def act() -> str:
        acted.append(pgflow.idempotency_key())
        codec.is_broken = len(acted) == 1
        return CANARY

    @workflow
    async def acts() -> str:
        return await act()

    aflow(codec=codec).include(acts)
    run = await aflow.start(acts.options(key="a"))
    with pytest.raises(
        RunStuck,
        match=r"\(codec\).*cannot be encoded with key 'k1': the app's codec raised OSError",
    ):
        await run.result(SOON)
    codec.is_broken = False
    await aflow.app.resume("a")
    assert await run.result(SOON) == CANARY
    assert len(set(acted)) == 1  # the same idempotency key


@pytest.mark.parametrize(
    ("codec", "says"),
    [
        (object(), "takes an object with key_id"),
        (Cipher(key_id=""), "key_id of a codec"),
        (Cipher(key_id=7), "key_id of a codec"),  # type: ignore[arg-type]
        (Cipher(hash_key=b"short"), "at least 16 random bytes"),
    ],
)
def test_what_is_no_codec_is_refused(codec, says):
    with pytest.raises(DefinitionError, match=says):
        App(codec=codec)


@pytest.mark.full
@in_a_loop
async def test_progress_and_drafts_are_encoded(dsn, conn):
    told, may_end = asyncio.Event(), asyncio.Event()

    @step
    async def long(word: str) -> list[Any]:
        before = pgflow.heartbeat_details()
        pgflow.emit("live", f"now {word}")
        pgflow.heartbeat({"at": word})
        told.set()
        await may_end.wait()
        return [before]

    @workflow
    async def runs(word: str) -> list[Any]:
        return await long(word)

    async with AsyncApp(dsn, include=[runs], codec=Cipher()) as app:
        run = await app.start(runs.options(key="r"), CANARY)
        async with app.worker(grace_seconds=0.0):
            async for value in run.stream("live", live=True):
                assert value == f"now {CANARY}"
                break
            await eventually(lambda: rows(conn)["step_beat"] != "", "the heartbeat is there")
            assert rows(conn)["draft"] != ""
            assert tables_with(conn, CANARY) == set()
        may_end.set()
        async with app.worker():
            assert await run.result(SOON) == [{"at": CANARY}]
    assert tables_with(conn, CANARY) == set()


@pytest.mark.full
def test_a_codec_that_compresses_hides_nothing_and_needs_no_secret(dsn, conn):
    with App(dsn, include=[simple], codec=Zipped()) as app:
        assert app.run(simple.options(key="z"), "a" * 100_000) == "found " + "a" * 100_000
        assert app.start(simple.options(key="z"), "a" * 100_000).key == "z"
    assert run_row(
        conn, "z", "octet_length(input::text) < 1000, octet_length(output::text) < 1000"
    ) == (True, True)


DJANGO_CODEC = Cipher()


def test_a_django_project_names_its_codec_in_the_settings(dsn, conn, monkeypatch):
    import django_project

    import pgflow.django

    monkeypatch.setattr(
        django_project.settings, "PGFLOW", {"DSN": dsn, "CODEC": "test_codec.DJANGO_CODEC"}
    )
    with pgflow.django.project_app.__wrapped__() as app:
        app.start(simple.options(key="d"), CANARY)
    assert run_row(conn, "d", "input->>'$codec'") == ("k1",)


def test_an_error_of_divergence_is_still_one(dsn):
    assert issubclass(CodecError, pgflow.PgflowError)
    assert not issubclass(CodecError, NonDeterminismError)
