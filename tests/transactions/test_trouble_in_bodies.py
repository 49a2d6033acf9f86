"""Trouble that a call of pgflow's meets inside a body, with its connection or its server: it is
waited out, and is never the outcome of a step. Each call fails once, with each SQLSTATE, in each
kind of body.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from records import SOON

import pgflow
from pgflow import App, AsyncApp, RunFailed, Signal, read, step, transaction, workflow
from pgflow.decisions import Choice, decision
from pgflow.documents import AsyncDocuments, Documents, Put
from pgflow.effects import effect

AsyncConnection = psycopg.AsyncConnection[Any]
Connection = psycopg.Connection[Any]

told = Signal("told", str)

FAILS_ONCE = """
create schema faults;
grant usage on schema faults to public;
create function faults.raise_once() returns trigger language plpgsql security definer set search_path = pg_catalog as $$
declare
  code text := case tg_argv[0] when 'key' then to_jsonb(new)->>'key'
    when 'path' then to_jsonb(new)->'path'->>0 else to_jsonb(new)->>'payload' end;
begin
  if to_regclass(format('faults.%I', code)) is null or nextval(format('faults.%I', code)) > 1 then
    return new;
  elsif code like '57P01%' then
    perform pg_terminate_backend(pg_backend_pid()), pg_sleep(10);
  end if;
  raise exception using errcode = left(code, 5), message = 'simulated';
end $$;
create trigger fails_once before insert on pgflow.run_key for each row execute function faults.raise_once('key');
create trigger fails_once before insert on pgflow.signal for each row execute function faults.raise_once('signal');
create trigger fails_once before insert on pgflow.document for each row execute function faults.raise_once('path');
create trigger fails_once before insert on pgflow.lock for each row execute function faults.raise_once('key');
create trigger fails_once before insert on pgflow.entity for each row execute function faults.raise_once('key');
create trigger fails_once before insert on pgflow.event for each row execute function faults.raise_once('key');
"""

CODES = ("08006", "40001", "40P01", "55P03", "53200", "57P01", "58030", "25006")
AMBIGUOUS = ("08006", "57P01", "58030")
"""Of which nobody knows whether the call was made."""

BODIES = ("read", "step", "decision", "effect", "transaction")
OWN = ("start", "send", "publish")
"""Calls on a connection of the app."""
JOINED = ("join_start", "join_send", "join_publish", "publish_here")
"""Calls in the transaction of the body."""
MORE = ("start_many", "put", "lock")
"""Further calls of the first kind."""
OF_CODE = ("send", "publish", "update")
"""Calls of a workflow's own code: each is a step of its own."""

CASES = [
    (code, body, verb)
    for code in CODES
    for body in BODIES
    for verb in (OWN + JOINED if body == "transaction" else OWN)
    # A message may have been sent, and an effect is not repeated on that ground: it is unknown.
    if not (body == "effect" and verb != "start" and code in AMBIGUOUS)
]
MORE_CASES = [
    *((code, body, verb) for code in CODES for body in BODIES for verb in MORE),
    *((code, "transaction", "put_here") for code in CODES),
    *((code, "code", verb) for code in CODES for verb in OF_CODE),
]


@workflow
async def child() -> None:
    """Does nothing."""


@workflow
async def listener() -> str:
    return await told.wait()


@pgflow.entities.entity("tally")
@dataclass
class Tally:
    count: int = 0

    @pgflow.entities.update
    def add(self, n: int) -> int:
        self.count += n
        return self.count


async def call_of_code(verb: str, key: str) -> str:
    match verb:
        case "send":
            await pgflow.send("listener", told, key)
        case "publish":
            await pgflow.events.publish("topic", 1, key=key)
        case "update":
            await Tally.add(key, 1)
    return key


class Async:
    """The calls, for async bodies."""

    def __init__(self, app: AsyncApp) -> None:
        self.app = app

    async def call(self, verb: str, key: str, conn: AsyncConnection | None = None) -> None:
        client = self.app.using(conn) if verb.startswith("join_") else self.app
        match verb.removeprefix("join_"):
            case "start":
                await client.start(child.options(key=key))
            case "start_many":
                await self.app.start_many(child, [()], keys=[key])
            case "put" | "put_here":
                await AsyncDocuments(conn or self.app).put([Put("faults", (key,), 1)])
            case "lock":
                async with self.app.lock(key, ttl=timedelta(minutes=1)):
                    pass
            case "send":
                await client.send("listener", told, key)
            case "publish":
                await client.publish("topic", 1, key=key)
            case "publish_here":
                await pgflow.events.publish("topic", 1, key=key)

    def bodies(self) -> dict[str, Any]:
        @read(retries=1)
        async def look(verb: str, key: str) -> str:
            await self.call(verb, key)
            return key

        @step(retries=1)
        async def act(verb: str, key: str) -> str:
            await self.call(verb, key)
            return key

        @decision(retries=1)
        async def decide(verb: str, key: str) -> Choice[str]:
            await self.call(verb, key)
            return Choice(key, why="tried")

        @effect(risk="reversible", dedup_window=timedelta(hours=1))
        async def do(verb: str, key: str) -> str:
            await self.call(verb, key)
            return key

        @transaction
        async def book(conn: AsyncConnection, verb: str, key: str) -> str:
            await self.call(verb, key, conn)
            return key

        return {"read": look, "step": act, "decision": decide, "effect": do, "transaction": book}


class Sync:
    """The same for sync ones."""

    def __init__(self, app: App) -> None:
        self.app = app

    def call(self, verb: str, key: str, conn: Connection | None = None) -> None:
        client = self.app.using(conn) if verb.startswith("join_") else self.app
        match verb.removeprefix("join_"):
            case "start":
                client.start(child.options(key=key))
            case "start_many":
                self.app.start_many(child, [()], keys=[key])
            case "put" | "put_here":
                Documents(conn or self.app).put([Put("faults", (key,), 1)])
            case "lock":
                with self.app.lock(key, ttl=timedelta(minutes=1)):
                    pass
            case "send":
                client.send("listener", told, key)
            case "publish":
                client.publish("topic", 1, key=key)
            case "publish_here":
                pgflow.sync.publish("topic", 1, key=key)

    def bodies(self) -> dict[str, Any]:
        @read(retries=1)
        def look(verb: str, key: str) -> str:
            self.call(verb, key)
            return key

        @step(retries=1)
        def act(verb: str, key: str) -> str:
            self.call(verb, key)
            return key

        @decision(retries=1)
        def decide(verb: str, key: str) -> Choice[str]:
            self.call(verb, key)
            return Choice(key, why="tried")

        @effect(risk="reversible", dedup_window=timedelta(hours=1))
        def do(verb: str, key: str) -> str:
            self.call(verb, key)
            return key

        @transaction
        def book(conn: Connection, verb: str, key: str) -> str:
            self.call(verb, key, conn)
            return key

        return {"read": look, "step": act, "decision": decide, "effect": do, "transaction": book}


async def play(
    dsn: str, conn: psycopg.Connection[Any], colour: str, cases: list[tuple[str, str, str]]
) -> None:
    conn.execute(FAILS_ONCE)
    sync_app, app = App(dsn), AsyncApp(dsn, include=[child, listener])
    kit: Async | Sync = Async(app) if colour == "async" else Sync(sync_app)
    bodies = kit.bodies()

    @workflow
    async def work(body: str, verb: str, key: str) -> Any:
        if body == "code":
            return await call_of_code(verb, key)
        declared = bodies[body]
        got = await (declared if colour == "async" else declared.aio)(verb, key)
        return getattr(got, "value", got)

    app.include(work)
    keys = [f"{code}-{body}-{verb}" for code, body, verb in cases]
    for key in keys:
        conn.execute(f'create sequence faults."{key}"')
    with sync_app:
        async with app, app.worker():
            await app.start(listener.options(key="listener"))
            runs = [
                await app.start(work, body, verb, key)
                for (_, body, verb), key in zip(cases, keys, strict=True)
            ]
            ended = {}
            for run, key in zip(runs, keys, strict=True):
                try:
                    await run.result(SOON)
                except (RunFailed, pgflow.PgflowError) as error:
                    ended[key] = str(error)
    assert ended == {}
    met = {
        key: conn.execute(f'select last_value from faults."{key}" where is_called').fetchone()
        for key in keys
    }
    assert [key for key, times in met.items() if times is None or times[0] < 2] == []
    told_of = "select u.kind::text, r.input->>'key', u.payload from pgflow.unit u join pgflow.run r using (run_id) where u.kind in ('a', 'f', 'U', 'F')"
    assert conn.execute(told_of).fetchall() == []


@pytest.mark.parametrize(
    "cases", [CASES, pytest.param(MORE_CASES, marks=pytest.mark.full)], ids=["often", "more"]
)
@pytest.mark.parametrize("colour", ["async", "sync"])
def test_trouble_of_ours_in_a_body_is_no_outcome(dsn, conn, colour, cases):
    asyncio.run(play(dsn, conn, colour, cases))
