"""Upcasters: records of an older form of a class are read as its form today."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pydantic
import pytest
from records import SOON, settle
from typing_extensions import TypedDict

import pgflow
from pgflow import Signal, step, upcaster, workflow
from pgflow._model.codecs import codec_for
from pgflow.errors import DefinitionError, NotStorable

if TYPE_CHECKING:
    from pgflow.testing import AsyncHarness


class Order(pydantic.BaseModel):
    """Its third form: at first it had an item, then items, and now lines."""

    model_config = pydantic.ConfigDict(extra="forbid")
    lines: list[tuple[str, int]]


@upcaster(Order)
def item_became_items(old: dict[str, Any]) -> dict[str, Any]:
    return {"items": [old["item"]]}


@upcaster(Order)
def items_became_lines(old: dict[str, Any]) -> dict[str, Any]:
    return {"lines": [(item, 1) for item in old["items"]]}


LAMP = Order(lines=[("lamp", 1)])
FORMS = ['{"item": "lamp"}', '{"items": ["lamp"]}', '{"lines": [["lamp", 1]]}']


@pytest.mark.parametrize("text", FORMS)
def test_every_form_there_ever_was_is_read(text):
    assert codec_for(Order).decode(text, "an order") == LAMP


@pytest.mark.parametrize(("annotation", "text", "value"), [
    (list[Order], "[%s]", [LAMP]), (dict[str, Order | None], '{"a": %s, "b": null}', {"a": LAMP, "b": None}), (tuple[int, Order], "[1, %s]", (1, LAMP)),
])  # fmt: skip
@pytest.mark.parametrize("form", FORMS)
def test_wherever_in_a_value_the_class_stands(annotation, text, value, form):
    assert codec_for(annotation).decode(text % form, "it") == value


@pytest.mark.parametrize(
    "text", ["{}", "[]", "null", '{"item": 1}', '{"lines": 1}', '{"items": null}']
)
def test_what_no_form_takes_is_refused_as_the_class_of_today_says(text):
    with pytest.raises(
        NotStorable, match="an order does not fit its annotation Order: .*(lines|object|Extra)"
    ):
        codec_for(Order).decode(text, "an order")


def test_a_form_that_fits_is_taken_as_it_is():
    asked = []

    class Loose(pydantic.BaseModel):
        n: int = 0

    @upcaster(Loose)
    def never(old: dict[str, Any]) -> dict[str, Any]:
        asked.append(old)
        return {"n": 1}

    assert codec_for(Loose).decode('{"m": 5}', "it") == Loose(n=0)
    assert asked == []


def test_what_an_upcaster_changes_in_its_argument_is_not_seen_by_the_next_attempt():
    class Strict(pydantic.BaseModel):
        b: int

    @upcaster(Strict)
    def first(old: dict[str, Any]) -> dict[str, Any]:
        return {"a": old["z"]}

    @upcaster(Strict)
    def second(old: dict[str, Any]) -> dict[str, Any]:
        old.pop("z", None)
        return {"b": old.pop("a")}

    assert codec_for(Strict).decode('{"z": 7}', "it") == Strict(b=7)


def test_a_dataclass_a_typed_dict_and_a_class_that_holds_itself():
    @dataclasses.dataclass
    class Point:
        x: int

    class Shape(TypedDict):
        size: int

    upcaster(Point)(lambda old: {"x": old["left"]})
    upcaster(Shape)(lambda old: {"size": old["width"]})
    upcaster(Tree)(lambda old: {"kids": old["children"]})
    assert codec_for(Point).decode('{"left": 3}', "it") == Point(3)
    assert codec_for(Shape).decode('{"width": 3}', "it") == {"size": 3}
    found = codec_for(Tree).decode('{"children": [{"kids": []}, {"children": []}]}', "it")
    assert found == Tree(kids=[Tree(kids=[]), Tree(kids=[])])


class Tree(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    kids: list[Tree]


def test_an_upcaster_that_is_declared_after_the_first_use_counts():
    class Late(pydantic.BaseModel):
        b: int

    codec = codec_for(Late)
    with pytest.raises(NotStorable):
        codec.decode('{"a": 1}', "it")
    upcaster(Late)(lambda old: {"b": old["a"]})
    assert codec.decode('{"a": 1}', "it") == Late(b=1)


@pytest.mark.parametrize("target", [int, dict, "Order", list[Order]])
def test_only_objects_of_named_fields_are_upcast(target):
    with pytest.raises(
        DefinitionError, match="takes a pydantic model, a dataclass, a TypedDict or a workflow"
    ):
        upcaster(target)


OLD_ORDER, ORDER = Signal("order", dict), Signal("order", Order)


def shop_of_the_first_form() -> tuple[Any, Any]:
    """A workflow and its child, as the code was that knew the first form alone."""

    @step(name="price")
    async def price(n: int) -> dict[str, str]:
        return {"item": f"priced {n}"}

    @workflow(name="child")
    async def child() -> dict[str, str]:
        return {"item": "from a child"}

    @workflow(name="shop")
    async def shop(item: dict) -> dict[str, str]:
        await price(1)
        await pgflow.run_child(child)
        await OLD_ORDER.wait()
        await OLD_ORDER.wait()
        return {"item": "out"}

    return shop, child


def shop_of_the_last_form(called: list[str]) -> tuple[Any, Any]:
    """The same two, as the code is that knows the last form."""

    @step(name="price")
    async def price(n: int) -> Order:
        return LAMP

    @workflow(name="child")
    async def child() -> Order:
        return Order(lines=[("from a child", 1)])

    @workflow(name="shop")
    async def shop(bought: Order) -> list[Order]:
        called.append("shop")
        answers = [bought, await price(1), await pgflow.run_child(child)]
        return [*answers, await ORDER.wait(), await ORDER.wait()]

    @upcaster(shop)
    def a_parameter_was_renamed(old: dict[str, Any]) -> dict[str, Any]:
        return {"bought": old["item"]}

    return shop, child


async def shop_across_forms(aflow: AsyncHarness) -> list[str]:
    """Items of a run that is begun by code of the first form, and ended by code of the last."""
    called: list[str] = []
    (old_shop, old_child), (new_shop, new_child) = (
        shop_of_the_first_form(),
        shop_of_the_last_form(called),
    )
    run = await settle(aflow, old_shop, {"item": "in"}, beside=[old_child])
    await aflow.app.send(run.key, OLD_ORDER, {"item": "first"})
    await aflow.until_idle()
    await aflow.crash()  # in memory the run goes on with the old code
    aflow.app.definitions.workflows.update({"shop": new_shop, "child": new_child})
    await aflow.app.send(run.key, OLD_ORDER, {"items": ["second"]})
    await aflow.until_idle()
    assert called == ["shop"]
    return [o.lines[0][0] for o in await aflow.app.get(run.key, new_shop).result(SOON)]


@pytest.mark.full
async def test_inputs_results_signals_children_and_outputs_of_an_older_form(aflow):
    assert await shop_across_forms(aflow) == ["in", "priced 1", "from a child", "first", "second"]


@pytest.mark.full
async def test_what_is_recorded_keeps_its_form(aflow, conn):
    await shop_across_forms(aflow)
    assert conn.execute(
        "select payload->>'item' from pgflow.timeline where event = 'step_completed' and name = "
        "'price'"
    ).fetchone() == ("priced 1",)


async def test_a_result_that_was_recorded_in_an_older_form_is_no_divergence(aflow):
    @workflow(name="made")
    async def before() -> dict[str, str]:
        return {"item": "lamp"}

    @workflow(name="made")
    async def after() -> Order:
        return LAMP

    run = await settle(aflow, before)
    assert await aflow.app.get(run.key, after).result(SOON) == LAMP
    aflow.app.definitions.workflows["made"] = after  # replayed against it at the end of the test


async def test_choices_and_results_of_effects_of_an_older_form(aflow):
    is_new = [False]

    async def order(item: str) -> dict[str, str]:
        return {"item": item}

    async def pick(item: str) -> pgflow.decisions.Choice[dict[str, str]]:
        return pgflow.decisions.Choice({"item": item}, why="asked")

    old = (
        pgflow.effects.effect(risk="reversible", name="order")(order),
        pgflow.decisions.decision()(pick),
    )

    async def order_now(item: str) -> Order:
        return LAMP

    async def pick_now(item: str) -> pgflow.decisions.Choice[Order]:
        return pgflow.decisions.Choice(LAMP, why="asked")

    pick_now.__name__ = "pick"
    new = (
        pgflow.effects.effect(risk="reversible", name="order")(order_now),
        pgflow.decisions.decision()(pick_now),
    )

    @workflow
    async def shop() -> list[Any]:
        act, decide = new if is_new[0] else old
        said = [await act("done"), (await decide("chosen")).value]
        await Signal("go", int).wait()
        return [item.lines[0][0] for item in said]

    run = await settle(aflow, shop)
    await aflow.crash()  # in memory the run has objects of the old form
    is_new[0] = True
    await aflow.until_idle()
    await run.send(Signal("go", int), 1)
    assert await run.result(SOON) == ["done", "chosen"]
