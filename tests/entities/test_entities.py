"""Entities: one update after the other, each with its verdict, once."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import psycopg
import pytest
import sqlkit
from records import SOON, count, events, eventually, in_a_loop, launch, result_of, settle

import pgflow
from pgflow import App, AsyncApp, InvalidArgument, Signal, workflow
from pgflow.errors import DefinitionError, NotStorable, VersionConflict, WrongColourError

go = Signal("go", str)


@pgflow.entities.entity("test incident")
@dataclass
class Incident:
    holder: str = ""
    until: datetime | None = None
    log: list[str] = field(default_factory=list)

    @pgflow.entities.update
    def claim(self, agent: str, minutes: int = 10) -> bool:
        """Takes the incident, if nobody has it."""
        if self.until is None or self.until <= pgflow.now():
            self.holder, self.until = agent, pgflow.now() + timedelta(minutes=minutes)
        return self.holder == agent

    @pgflow.entities.update
    def record(self, agent: str, action: str) -> int:
        self.log.append(f"{agent} {action}")
        return len(self.log)

    @record.validator
    def check(self, agent: str, action: str) -> None:
        if agent != self.holder:
            raise PermissionError(f"{agent} does not hold it")


@workflow
async def act(key: str, agent: str) -> list[Any]:
    won = await Incident.claim(key, agent)
    seen = await pgflow.entities.query(Incident, key)
    return [won, seen.version, seen.state.holder]


def updates(conn: psycopg.Connection[Any], key: str = "a") -> list[tuple[Any, ...]]:
    return conn.execute(
        "select update, version, said_by, verdict::text, state is not null"
        " from pgflow.entity_updates where key = %s order by history_id",
        (key,),
    ).fetchall()


@pytest.mark.full
async def test_an_update_in_a_run_is_one_commit_with_its_verdict_and_its_history(aflow, conn):
    assert await result_of(aflow, act.options(key="first"), "a", "ann") == [True, 1, "ann"]
    late = await aflow.start(act.options(key="second"), "a", "bob")
    assert await late.result(SOON) == [False, 1, "ann"]
    found = updates(conn)
    assert found == [("claim", 1, "first", "true", True), ("claim", 1, "second", "false", False)]
    assert events(conn, "first") == [
        ("entity_updated", "test incident.claim"),
        ("step_completed", "test incident.query"),
    ]
    same = """
        select u.xmin = h.xmin and h.xmin = e.xmin
        from pgflow.unit u, pgflow.entity_history h, pgflow.entity e
        where u.kind = 'H' and h.run_id = u.run_id and h.state is not null
    """
    assert conn.execute(same).fetchall() == [(True,)]


async def test_an_update_that_raises_changes_nothing_and_raises_in_the_run(aflow, conn):
    @workflow
    async def refused() -> str:
        await Incident.claim("a", "ann")
        try:
            await Incident.record("a", "bob", "rebooted")
        except PermissionError as error:
            return str(error)
        return "done"

    assert await result_of(aflow, refused) == "bob does not hold it"
    assert [row[0] for row in updates(conn)] == ["claim"]


@pytest.mark.full
async def test_runs_update_one_entity_one_after_the_other(aflow, conn):
    @workflow
    async def work(agent: str) -> int:
        return await Incident.record("a", agent, "acted")

    aflow.include(work)
    await aflow.app.update(Incident.claim, "a", "x")
    runs = [await aflow.start(work, "x") for _ in range(20)]
    assert sorted([await run.result(SOON) for run in runs]) == list(range(1, 21))
    assert (await aflow.app.query(Incident, "a")).version == 21


@pytest.mark.full
async def test_the_verdict_is_repeated_and_not_the_update_after_a_crash(aflow, conn):
    @workflow
    async def claims_and_waits(agent: str) -> bool:
        won = await Incident.claim("a", agent)
        await go.wait()
        return won

    run = await settle(aflow, claims_and_waits, "ann")
    await aflow.crash()
    await run.send(go, "on")
    await aflow.until_idle()
    assert await run.result(SOON) is True
    assert len(updates(conn)) == 1


async def test_an_expected_version_is_compared_before_the_change(aflow):
    @workflow
    async def careful() -> str:
        seen = await pgflow.entities.query(Incident, "a")
        await Incident.claim.options(expect=seen.version)("a", "ann")
        try:
            await Incident.claim.options(expect=seen.version)("a", "bob")
        except VersionConflict as error:
            return str(error)
        return "done"

    assert "'a' has version 1, not 0" in await result_of(aflow, careful)


async def test_updates_from_plain_code(aflow, conn):
    app = aflow.app
    assert await app.update(Incident.claim, "a", "ann", minutes=5) is True
    with pytest.raises(PermissionError):
        await app.update(Incident.record, "a", "bob", "acted")
    once = Incident.record.options(idempotency_key="mail-1")
    assert [await app.update(once, "a", "ann", "acted") for _ in range(3)] == [1, 1, 1]
    with pytest.raises(VersionConflict):
        await app.update(Incident.record.options(expect=1), "a", "ann", "acted")
    seen = await app.query(Incident, "a")
    assert (seen.version, seen.state.log, seen.state.holder) == (2, ["ann acted"], "ann")
    assert seen.updated_at is not None
    assert (await app.query(Incident, "never")).version == 0
    assert len(updates(conn)) == 2


def test_updates_from_sync_code_and_sync_workflows(flow, conn):
    @workflow
    def acts(agent: str) -> list[Any]:
        won = Incident.claim.sync("a", agent)
        return [won, pgflow.sync.query(Incident, "a").state.holder]

    assert result_of(flow, acts, "ann") == [True, "ann"]
    assert flow.app.update(Incident.record, "a", "ann", "acted") == 1
    assert flow.app.query(Incident, "a").version == 2


async def test_an_update_in_somebodys_transaction_goes_with_it(aflow, conn, pgflow_dsn):
    async with await psycopg.AsyncConnection.connect(pgflow_dsn) as own:
        assert await aflow.app.using(own).update(Incident.claim, "a", "ann") is True
        assert (await aflow.app.query(Incident, "a")).version == 0
        await own.rollback()
        assert await aflow.app.using(own).update(Incident.claim, "a", "bob") is True
        await own.commit()
    assert (await aflow.app.query(Incident, "a")).state.holder == "bob"
    assert len(updates(conn)) == 1


async def test_two_callers_at_once_are_one_after_the_other(aflow, conn):
    verdicts = await asyncio.gather(
        *(aflow.app.update(Incident.claim, "a", f"agent-{i}") for i in range(10))
    )
    assert sum(verdicts) == 1
    assert len(updates(conn)) == 10


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
@in_a_loop
async def test_callers_who_meet_in_one_snapshot_for_all_are_tried_again(dsn, conn, level):
    name = conn.info.dbname
    conn.execute(f"alter database {name} set default_transaction_isolation = '{level}'")
    async with AsyncApp(dsn) as app:
        await app.update(Incident.claim, "a", "ann")
        counts = await asyncio.gather(
            *(app.update(Incident.record, "a", "ann", str(n)) for n in range(40))
        )
    assert sorted(counts) == list(range(1, 41))


@pytest.mark.full
async def test_an_update_from_sql_is_made_by_a_worker_in_its_order(aflow, conn):
    aflow.include(act)
    ask = "select pgflow.post_update('test incident', 'a', %s, %s::json, sent_by => 'ops')"
    numbers = [
        sqlkit.one(conn, ask, update, json.dumps(args))
        for update, args in (
            ("claim", {"agent": "ann"}),
            ("record", {"agent": "ann", "action": "acted"}),
            ("record", {"agent": "bob", "action": "acted"}),
            ("claim", {"agents": "ann"}),
            ("close", {}),
        )
    ]
    verdict = "select state, verdict::text, error->>'type' from pgflow.update_verdict(%s)"
    assert sqlkit.one(conn, verdict, numbers[0]) == ("waiting", None, None)
    await settle(aflow, act, "b", "ann")
    async with aflow.app.worker(poll_seconds=0.1):
        await eventually(lambda: count(conn, "pgflow.entity_mail") == 0, "all are made")
    assert [sqlkit.one(conn, verdict, number) for number in numbers] == [
        ("done", "true", None),
        ("done", "1", None),
        ("refused", None, "builtins.PermissionError"),
        ("refused", None, "pgflow.errors.NotStorable"),
        ("refused", None, "pgflow.errors.WrongState"),
    ]
    with pytest.raises(psycopg.Error, match="no update of an entity"):
        sqlkit.one(conn, verdict, 0)


class Panic(BaseException):
    """As extensions written in Rust raise it."""


OWN_ERRORS = {
    "exit": SystemExit("no"),
    "panic": Panic("no"),
    "elsewhere": psycopg.OperationalError("another database is down"),
}


@pgflow.entities.entity("test broken")
@dataclass
class Broken:
    @pgflow.entities.update
    def fail(self, how: str) -> None:
        raise OWN_ERRORS[how]


async def test_whatever_an_update_from_sql_raises_refuses_it_and_the_worker_goes_on(aflow, conn):
    ask = "select pgflow.post_update('test broken', 'a', 'fail', %s::json)"
    numbers = [sqlkit.one(conn, ask, json.dumps({"how": how})) for how in OWN_ERRORS]
    good = "select pgflow.post_update('test incident', 'a', 'claim', '{\"agent\": \"ann\"}')"
    conn.execute(good)
    async with aflow.app.worker(poll_seconds=0.1):
        await eventually(lambda: count(conn, "pgflow.entity_mail") == 0, "all are made")
    verdict = "select state, error->>'type' from pgflow.update_verdict(%s)"
    assert [sqlkit.one(conn, verdict, number) for number in numbers] == [
        ("refused", "builtins.SystemExit"),
        ("refused", f"{__name__}.Panic"),
        ("refused", "psycopg.OperationalError"),
    ]
    assert [row[:2] for row in updates(conn)][-1] == ("claim", 1)


async def test_an_update_from_sql_is_made_once_under_its_key(aflow, conn):
    await aflow.app.update(Incident.claim, "a", "ann")
    ask = "select pgflow.post_update('test incident', 'a', %s, %s::json, idempotency_key => 'mail')"
    acted = json.dumps({"agent": "ann", "action": "acted"})
    numbers = [sqlkit.one(conn, ask, "record", acted) for _ in range(3)]
    numbers.append(sqlkit.one(conn, ask, "claim", '{"agent": "ann"}'))
    async with aflow.app.worker(poll_seconds=0.1):
        await eventually(lambda: count(conn, "pgflow.entity_mail") == 0, "all are made")
    verdict = "select state, verdict::text, error->>'type' from pgflow.update_verdict(%s)"
    found = [sqlkit.one(conn, verdict, number) for number in numbers]
    assert found == [*[("done", "1", None)] * 3, ("refused", None, "pgflow.errors.InvalidArgument")]
    assert (await aflow.app.query(Incident, "a")).state.log == ["ann acted"]
    assert [row[4] for row in updates(conn)] == [True, True, False, False, False]


@pytest.mark.full
async def test_mail_that_cannot_be_made_now_stops_no_other_entity(aflow, conn, dsn):
    await aflow.app.update(Incident.claim, "a", "ann")
    ask = "select pgflow.post_update('test incident', %s, 'claim', '{\"agent\": \"bob\"}')"
    with sqlkit.connect(dsn) as other, other.transaction():
        sqlkit.one(other, "select version from pgflow.open_entity('test incident', 'a')")
        for key in ("a", "b"):
            sqlkit.one(conn, ask, key)
        async with aflow.app.worker(poll_seconds=0.1):
            await eventually(lambda: len(updates(conn, "b")) == 1, "the other is made")
    assert len(updates(conn)) == 1
    async with aflow.app.worker(poll_seconds=0.1):
        await eventually(lambda: len(updates(conn)) == 2, "it is made later")


async def test_an_idempotency_key_holds_over_runs_and_plain_code(aflow, conn):
    once = Incident.record.options(idempotency_key="order-7")

    @workflow
    async def acts() -> int:
        return await once("a", "ann", "acted")

    aflow.include(acts)
    await aflow.app.update(Incident.claim, "a", "ann")
    assert await aflow.app.update(once, "a", "ann", "acted") == 1
    for _ in range(2):
        run = await aflow.start(acts)
        assert await run.result(SOON) == 1
    assert (await aflow.app.query(Incident, "a")).state.log == ["ann acted"]
    with pytest.raises(InvalidArgument, match="is of update 'record', not of 'claim'"):
        await aflow.app.update(Incident.claim.options(idempotency_key="order-7"), "a", "ann")


async def test_the_history_of_an_entity_outlives_its_runs(aflow, conn):
    await result_of(aflow, act, "a", "ann")
    await aflow.until_idle()
    conn.execute("select from pgflow.drop_history(pgflow.now_())")
    assert count(conn, "pgflow.unit") == 0
    assert [row[0] for row in updates(conn)] == ["claim"]
    assert sqlkit.unsound(conn) == set()


@pytest.mark.full
async def test_a_rewind_past_an_update_is_refused_until_it_is_said_what_becomes_of_it(aflow, conn):
    await result_of(aflow, act.options(key="first"), "a", "ann")
    with pytest.raises(pgflow.errors.HasActed, match=r"test incident\.claim"):
        await aflow.app.rewind("first", 0)
    await aflow.app.rewind("first", 0, effects="reuse")
    assert await aflow.app.get("first", act).result(SOON) == [True, 1, "ann"]
    assert len(updates(conn)) == 1
    await aflow.app.rewind("first", 0, effects="repeat")
    assert await aflow.app.get("first", act).result(SOON) == [True, 1, "ann"]
    assert len(updates(conn)) == 2


async def test_the_steps_of_a_run_have_its_updates(aflow, conn):
    run = await launch(aflow, act, "a", "ann")
    await run.result(SOON)
    shown = "select step, status, output::text from pgflow.steps where key = %s order by call"
    first, _ = conn.execute(shown, (run.key,)).fetchall()
    assert first == ("test incident.claim", "completed", "true")


def test_state_is_sealed_where_the_app_has_a_codec(dsn, conn):
    class Rot:
        key_id = "rot"
        hash_key = b"sixteen bytes or more"

        def encode(self, data: bytes) -> bytes:
            return data[::-1]

        def decode(self, key_id: str, data: bytes) -> bytes:
            return data[::-1]

    with App(dsn, codec=Rot()) as app:
        assert app.update(Incident.claim, "a", "secret agent") is True
        assert app.query(Incident, "a").state.holder == "secret agent"
    stored = conn.execute(
        "select e.state::text || h.args::text || h.state::text || h.verdict::text"
        " from pgflow.entity e join pgflow.entity_history h using (name, key)"
    ).fetchone()
    assert stored is not None
    assert "secret" not in stored[0]


async def test_mistakes_are_told_where_they_are_made(aflow):
    with pytest.raises(InvalidArgument, match="key of an entity"):
        await aflow.app.update(Incident.claim, "", "ann")
    with pytest.raises(TypeError):
        await aflow.app.update(Incident.claim, "a")  # type: ignore[call-arg]
    with pytest.raises(NotStorable):
        await aflow.app.update(Incident.claim, "a", 7)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="class of an entity"):
        await aflow.app.query(int, "a")
    with pytest.raises(pgflow.errors.NotInRunError):
        await Incident.claim("a", "ann")
    with pytest.raises(DefinitionError, match="without arguments"):

        @pgflow.entities.entity("test needy")
        @dataclass
        class Needy:
            name: str

    with pytest.raises(DefinitionError, match="longer together"):

        @pgflow.entities.entity("n" * 250)
        @dataclass
        class Long:
            @pgflow.entities.update
            def rename(self) -> None: ...

    with pytest.raises(DefinitionError, match="declared twice"):

        @pgflow.entities.entity("test incident")
        @dataclass
        class Again:
            name: str = ""

    with pytest.raises(DefinitionError, match="plain def"):

        @pgflow.entities.update
        async def wrong(self: Any) -> None: ...

    @workflow
    async def wrong_colour() -> str:
        try:
            Incident.claim.sync("a", "ann")
        except WrongColourError as error:
            return str(error)
        return ""

    assert "aio()" in await result_of(aflow, wrong_colour)


def test_a_version_that_is_older_is_refused_by_the_database(conn):
    sqlkit.one(conn, "select version from pgflow.open_entity('e', 'a')")
    write = "select pgflow.update_entity('e', 'a', %s, 'set', '{}', 'null', '1')"
    assert sqlkit.one(conn, write, 0) == 1
    with pytest.raises(psycopg.Error) as refused:
        sqlkit.one(conn, write, 0)
    assert refused.value.sqlstate == "PF024"
