"""Workflows whose approvers are told by a worker that dies between the mail and the commit that
says so, for `tests/gates/test_notify_kills.py`.
"""

from __future__ import annotations

import os
import signal
from datetime import timedelta

import psycopg

import pgflow
from pgflow import AsyncApp, step, workflow
from pgflow.authority import GateRequest
from pgflow.effects import Absent, Confirmed, StillUnknown, effect
from pgflow.errors import GateRejected

OUTBOX = """
create schema app;
create table app.mail (id int generated always as identity, key text not null, gate text not null);
"""


async def send(gate: GateRequest) -> None:
    """Sends a mail: the first worker that did dies before it can say so."""
    key = pgflow.idempotency_key()
    async with await psycopg.AsyncConnection.connect(
        os.environ["PGFLOW_DSN"], autocommit=True
    ) as conn:
        await conn.execute("insert into app.mail (key, gate) values (%s, %s)", (key, gate.id))
        found = await (await conn.execute("select count(*) from app.mail")).fetchone()
    assert found is not None
    if found[0] == 1:
        os.kill(os.getpid(), signal.SIGKILL)


@step
async def mail_by_step(gate: GateRequest) -> None:
    await send(gate)


@effect(risk="irreversible", timeout=timedelta(minutes=1), settle_after=timedelta(minutes=2))
async def mail_by_effect(gate: GateRequest) -> None:
    await send(gate)


@mail_by_effect.settle
async def _(gate: GateRequest) -> Confirmed[None] | Absent | StillUnknown:
    async with await psycopg.AsyncConnection.connect(os.environ["PGFLOW_DSN"]) as conn:
        sent = await conn.execute("select 1 from app.mail where gate = %s", (gate.id,))
        return Confirmed(None) if await sent.fetchone() else Absent()


@effect(risk="compensable", notify=mail_by_effect)
async def pay(cents: int) -> int:
    return cents


@workflow
async def told_by_step() -> str:
    return type(await pgflow.authority.gate("g", 1, notify=mail_by_step)).__name__


@workflow
async def told_by_effect() -> str:
    return type(await pgflow.authority.gate("g", 1, notify=mail_by_effect)).__name__


@workflow
async def told_by_policy() -> str:
    try:
        await pay(600)
    except GateRejected:
        return "Rejected"
    return "Approved"


app = AsyncApp(include=[told_by_step, told_by_effect, told_by_policy])
