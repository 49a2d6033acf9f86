"""The provider `pydantic-ai:MODEL`: turns of nodes taken by a model, here one without a network."""

from __future__ import annotations

import asyncio

import pytest

from pgflow.declare.durable.providers import Turn, make_provider
from pgflow.errors import InvalidArgument

pytest.importorskip("pydantic_ai")

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


@pytest.mark.parametrize(
    ("schema", "value"), [(None, None), ({"type": "array"}, None), (SCHEMA, {"n": 0})]
)
def test_a_model_takes_a_turn(schema, value):
    turn = Turn("How many?", "count", "count", ".", {}, schema=schema)
    reply = asyncio.run(make_provider("pydantic-ai:test").take(turn))
    assert (reply.model, reply.value, reply.has_value) == ("test", value, value is not None)
    assert bool(reply.text) is (value is None)
    assert reply.tokens > 0


@pytest.mark.parametrize(
    ("argument", "said"), [("", "names no model"), ("nonesuch:x", "cannot be used: Unknown model")]
)
def test_a_model_that_is_not_there_is_refused(argument, said):
    with pytest.raises(InvalidArgument, match=said):
        make_provider(f"pydantic-ai:{argument}")
