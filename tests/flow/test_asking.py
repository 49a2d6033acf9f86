"""``pgflow.updates.execute_update``: updates that the code of a workflow asks of another run."""

from __future__ import annotations

import os
from typing import Any

import pytest
from records import SOON, launch, result_of, settle, steps

import pgflow
from pgflow import KeyConflict, RunFailed, RunNotFound, Signal, workflow
from pgflow.errors import UpdateFailed, UpdateRefused, UpdateRejected

go = Signal("go", int)


class Salted:
    """A codec that never encodes a value the same way twice."""

    key_id = "k"
    hash_key = b"sixteen bytes or more"

    def encode(self, data: bytes) -> bytes:
        return os.urandom(8) + data[::-1]

    def decode(self, key_id: str, data: bytes) -> bytes:
        return data[8:][::-1]


@workflow(raises=[ValueError])
async def till(size: int) -> list[int]:
    coins: list[int] = []
    await go.wait()
    await pgflow.updates.serve(coins, until=lambda: len(coins) >= size)
    return coins


@till.update
def put(coins: list[int], coin: int) -> int:
    if coin == 13:
        raise ValueError("a button")
    coins.append(coin)
    return sum(coins)


@put.validator
def check_put(coins: list[int], coin: int) -> None:
    if coin < 0:
        raise ValueError("no coin")


@workflow
async def customer(key: str, coin: int) -> int:
    return await pgflow.updates.execute_update(key, put, coin)


@workflow
def customer_sync(key: str, coin: int) -> int:
    return pgflow.sync.execute_update(key, put, coin)


@pytest.mark.parametrize(("made", "codec"), [
    (customer, None), (customer_sync, None),
    pytest.param(customer, Salted(), marks=pytest.mark.full),
])  # fmt: skip
async def test_a_run_asks_another_once_and_is_parked_until_the_answer(aflow, conn, made, codec):
    aflow(codec=codec).include(till, made)
    asked = await aflow.start(till.options(key="till"), 1)
    run = await settle(aflow, made.options(key="ann"), "till", 5)
    assert await run.status() == "waiting"
    await aflow.crash()
    await asked.send(go, 1)
    await aflow.until_idle()
    assert await run.result(SOON) == 5
    assert await asked.result(SOON) == [5]
    assert [name for name, *_ in steps(conn, "ann")] == ["execute_update"]


@pytest.mark.parametrize(
    ("coin", "error"), [(13, UpdateFailed), (-1, UpdateRejected), (5, UpdateRefused)]
)
async def test_an_error_of_the_handler_and_a_refusal_reach_the_code(aflow, coin, error):
    asked = await launch(aflow, till.options(key="till"), 0 if coin == 5 else 1, beside=[customer])
    run = await settle(aflow, customer, "till", coin)
    await asked.send(go, 1)
    with pytest.raises(RunFailed) as failure:
        await run.result(SOON)
    assert isinstance(failure.value.__cause__, error)
    if coin != 5:
        assert isinstance(failure.value.__cause__.__cause__, ValueError)
        await asked.cancel()


@pytest.mark.full
@pytest.mark.parametrize("force", [False, True])
async def test_who_asks_a_run_that_is_ended_by_others_is_refused(aflow, conn, *, force):
    await launch(aflow, till.options(key="till"), 1, beside=[customer])
    run = await settle(aflow, customer, "till", 5)
    cancel = "select pgflow.wake(array[pgflow.cancel_run('till', 'enough', force => %s)])"
    conn.execute(cancel, (force,))
    await aflow.until_idle()
    with pytest.raises(RunFailed, match="UpdateRefused"):
        await run.result(SOON)
    late = await aflow.start(customer, "till", 5)
    with pytest.raises(RunFailed, match="UpdateRefused"):
        await late.result(SOON)


@workflow
async def customers() -> list[Any]:
    told: list[Any] = []
    child = await pgflow.start_child(till, 2)
    await child.send(go, 1)
    told.append(await child.execute_update(put, coin=1))
    told.append(await child.execute_update(put.options(update_id="two"), 2))
    told.append(await child.execute_update(put.options(update_id="two"), 2))
    for key, coin in (("nobody", 1), (child.key, 3)):
        try:
            await pgflow.updates.execute_update(key, put.options(update_id="two"), coin)
        except (RunNotFound, KeyConflict) as error:
            told.append(type(error).__name__)
    return told


async def test_a_parent_asks_its_child_and_hears_what_cannot_be_asked(aflow):
    told = await result_of(aflow, customers, beside=[till])
    assert told == [1, 3, 3, "RunNotFound", "KeyConflict"]


@pytest.mark.full
@pytest.mark.parametrize(("effects", "total"), [("reuse", 5), ("repeat", 10)])
async def test_a_rewound_run_keeps_its_answer_or_asks_again(aflow, effects, total):
    asked = await launch(aflow, till.options(key="till"), 2, beside=[customer])
    await asked.send(go, 1)
    run = await aflow.start(customer.options(key="ann"), "till", 5)
    assert await run.result(SOON) == 5
    await aflow.app.rewind("ann", 0, why="again", effects=effects)
    await aflow.until_idle()
    assert await run.result(SOON) == total
    if effects == "reuse":
        await asked.cancel()
