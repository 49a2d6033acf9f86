"""Every line marked E must be an error in both checkers."""

# The bodies of the mistakes are dots, which says something only in a stub.
# mypy: disable-error-code="empty-body"

from __future__ import annotations
import pgflow
from typing_programs import (
    app,
    charge,
    checkout,
    decide,
    greet,
    hello,
    paid,
    perform,
    post_to_slack,
    reserve,
    reserve_orm,
    Order,
    ship,
    nightly,
    thumbnail,
)
from pgflow.testing import AsyncHarness
from pgflow import workflow
from pgflow.effects import Absent, Confirmed, StillUnknown


async def wrong(aflow: AsyncHarness) -> None:
    greet("x")  # E forgotten await
    await hello("x")  # E workflow is not callable
    await app.start(hello, 1)  # E argument type
    await app.start(hello.options(keyy="x"), "a")  # E unknown option
    await reserve_orm("a", 1)  # E sync step awaited without .aio
    pgflow.sleep(3)  # E forgotten await
    await app.send("k", paid, 3)  # E signal payload
    await perform.because("p-91")(1)  # E decision type, E argument

    async def fake(g: int) -> None: ...

    aflow.replace(post_to_slack, fake)  # E fake's signature
    await pgflow.map(thumbnail, [1, 2])  # E item type
    await pgflow.authority.gate("x", 1, notify=greet)  # E notify's parameter
    await pgflow.start_child(hello, 1)  # E argument type
    pgflow.call("x", greet, "Ada")  # E forgotten await
    await pgflow.call("x", greet.fn, 1)  # E argument type
    await pgflow.call("x", greet.fn)  # E too few arguments


@charge.settle  # E wrong value type
async def s(card: str, cents: int) -> Confirmed[int] | Absent | StillUnknown: ...
@charge.compensate  # E wrong result type
async def c(charge_id: int, card: str, cents: int) -> None: ...
@pgflow.schedule("* * * * *")  # E schedule needs Slot or nothing
@workflow
async def needs_arg(x: int) -> None: ...
@pgflow.transaction  # E no connection parameter
async def forgot_conn(sku: str, qty: int) -> int: ...
