"""Values that no journal takes fail at once, with a line that says whose they are."""

from __future__ import annotations

from typing import Any

import pytest
from scripted import call, durable, echo

import pgflow

from pydantic_ai import BinaryImage  # isort: skip
from pydantic_ai.messages import FilePart  # isort: skip

tried: list[str] = []
LARGE = BinaryImage(data=bytes(3_000_000), media_type="image/png")


def odd() -> Any:
    tried.append("odd")
    return object()


def large() -> Any:
    tried.append("large")
    return LARGE


def draw(*_: Any) -> Any:
    tried.append("draw")
    return FilePart(content=LARGE)


agents = {
    "odd": durable(call("odd"), echo, name="odd", tools=[odd]),
    "large": durable(call("large"), echo, name="large", tools=[large]),
    "draw": durable(draw, name="draw"),
}


@pgflow.workflow
async def use(name: str) -> str:
    return str((await agents[name].run("hi")).output)


async def test_a_result_that_cannot_be_stored_fails_at_once_and_names_its_step(aflow):
    aflow.include(use)
    for name, said in (
        ("odd", r"call_tool:odd is not JSON: .*<class 'object'>"),
        ("large", "call_tool:large is 4,000,155 bytes of JSON; the limit is 1 MiB"),
        ("draw", r"draw__model.request is 4,\d*,\d* bytes of JSON; the limit is 1 MiB"),
    ):
        tried.clear()
        with pytest.raises(pgflow.RunFailed, match=said):
            await (await aflow.start(use, name)).result()
        assert tried == [name]
