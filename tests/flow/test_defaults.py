"""Left-out arguments: what they mean is recorded with the call, and each activation has values of
its own.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import psycopg
import pydantic
import pytest
from records import SOON, result_of, settle

import pgflow
from pgflow import KeyConflict, Signal, step, workflow

go = Signal("go", int)
ACTS: list[int] = []


class Options(pydantic.BaseModel):
    tries: int = 0


@dataclasses.dataclass
class Box:
    items: dict[str, int] = dataclasses.field(default_factory=dict)


@step
async def act(n: int) -> int:
    ACTS.append(n)
    return n


@workflow
async def by_list(tags: list[str] = []) -> int:  # noqa: B006 - it is what is tested
    tags.append("x")
    await act(len(tags))
    await go.wait()
    return len(tags)


@workflow
async def by_model(options: Options = Options()) -> int:  # noqa: B008
    options.tries += 1
    await act(options.tries)
    await go.wait()
    return options.tries


@workflow
async def by_dataclass(*, box: Box = Box()) -> int:  # noqa: B008
    box.items[str(len(box.items))] = 1
    await act(len(box.items))
    await go.wait()
    return len(box.items)


@workflow
async def by_position(first: int = 0, /, second: dict[str, Any] = {}) -> int:  # noqa: B006
    second[str(len(second))] = first
    await act(len(second))
    await go.wait()
    return len(second)


@workflow
async def with_children() -> list[int]:
    return [await pgflow.run_child(child), await pgflow.run_child(child)]


@workflow
async def child(seen: list[int] = []) -> int:  # noqa: B006
    seen.append(1)
    return len(seen)


@pytest.mark.parametrize("kind", [by_list, by_model, by_dataclass, by_position])
async def test_no_run_and_no_replay_sees_what_another_left_in_a_default(aflow, kind):
    ACTS.clear()
    aflow.include(kind)
    for _ in range(2):
        run = await settle(aflow, kind)
        await run.send(go, 1)
        assert await run.result(SOON) == 1
    assert ACTS == [1, 1]


async def test_children_have_defaults_of_their_own(aflow):
    assert await result_of(aflow, with_children, beside=[child]) == [1, 1]


def paying(fee: int) -> Any:
    """The code of a deploy."""

    @workflow(name="paying")
    async def code(amount: int, fee: int = fee, rate: float = 1.0) -> list[Any]:
        before = fee
        await go.wait()
        return [amount, before, fee, rate]

    return code


async def input_of(conn: psycopg.Connection[Any], key: str) -> Any:
    found = conn.execute("select input::text from pgflow.run where key = %s", (key,)).fetchone()
    assert found is not None
    return json.loads(found[0])


async def test_a_deploy_changes_no_default_of_a_run_that_has_begun(aflow, conn):
    old, new = paying(10), paying(30)
    run = await settle(aflow, old.options(key="k"), 5)
    assert await input_of(conn, "k") == {"amount": 5, "fee": 10, "rate": 1.0}
    aflow.app.definitions.workflows["paying"] = new
    await run.send(go, 1)
    assert await run.result(SOON) == [5, 10, 10, 1.0]
    with pytest.raises(KeyConflict, match="fee"):
        await aflow.start(new.options(key="k"), 5)


@pytest.mark.parametrize(
    "given", ['{"amount": 1}', '{"amount": 1, "fee": 7}', ' { "amount": 1, "rate" : -0.0 } ']
)
async def test_a_start_from_sql_records_the_defaults_that_workers_have_declared(aflow, conn, given):
    aflow.include(paying(10))
    await aflow.until_idle()
    conn.execute("select pgflow.start_run('paying', %s::json, key => 'one')", (given,))
    conn.execute(
        "select pgflow.start_runs('paying', jsonb_build_array(jsonb_build_array('many', %s::text)))",
        (given,),
    )
    expected = {"fee": 10, "rate": 1.0} | json.loads(given)
    for key in ("one", "many"):
        found = await input_of(conn, key)
        assert found == expected
        assert str(found["rate"]) == str(expected["rate"])
    conn.execute("select pgflow.start_run('unknown', %s::json, key => 'other')", (given,))
    assert await input_of(conn, "other") == json.loads(given)


async def test_a_default_that_cannot_be_stored_is_the_object_itself(aflow):
    marker = object()

    @workflow
    async def code(client: Any = marker) -> bool:
        return client is marker

    assert await result_of(aflow, code)


class Cart:
    """The state of a run that is updated."""

    def __init__(self) -> None:
        self.sizes: list[int] = []


@workflow
async def shop() -> list[int]:
    cart = Cart()
    await pgflow.updates.serve(cart, until=lambda: len(cart.sizes) == 2)
    return cart.sizes


@shop.update
async def add(cart: Cart, items: list[str] = []) -> int:  # noqa: B006
    items.append("x")
    cart.sizes.append(len(items))
    return len(items)


async def test_updates_have_defaults_of_their_own(aflow):
    run = await settle(aflow, shop)
    assert await run.execute_update(add) == 1
    assert await run.execute_update(add) == 1
    assert await run.result(SOON) == [1, 1]
