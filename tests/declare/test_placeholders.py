"""Placeholders: outputs that are made up fit their schemas and end their loops."""

from __future__ import annotations

from typing import Any

import pytest

from pgflow.declare.graph import Approval, Bash, Graph, Group, Loop, Node, Prompt, Until
from pgflow.declare.play.placeholders import NoPlaceholder, placeholder, scaffold

pytest.importorskip("jsonschema", reason="the extra `run` is not installed")
from pgflow.declare.durable.schemas import misfits

NODE = {"type": "object", "required": ["next"], "properties": {"next": {"$ref": "#"}}}


def prompt(schema: Any = None, node_id: str = "a") -> Node:
    return Node(id=node_id, body=Prompt(text="go"), output_schema=schema)


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (None, "TODO"),
        ({"const": 7}, 7),
        ({"type": "string", "default": "x"}, "x"),
        ({"enum": ["low", "high"]}, "low"),
        ({"type": "string", "minLength": 6}, "TODOTT"),
        ({"type": "string", "maxLength": 2}, "TO"),
        ({"type": "integer", "minimum": 2.5}, 3),
        ({"type": "integer", "exclusiveMinimum": 2}, 3),
        ({"type": "number", "maximum": -1}, -1),
        ({"type": ["null", "string"]}, None),
        ({"type": "boolean"}, False),
        ({"type": "array", "items": {"type": "integer"}, "minItems": 2}, [0, 0]),
        ({"type": "array"}, []),
        ({"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}, "m": {}}},
         {"n": 0}),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, 0),
        ({"allOf": [{"required": ["a"]}, {"required": ["b"], "properties": {"b": {"const": 1}}}],
          "type": "object"}, {"a": "TODO", "b": 1}),
        ({"$ref": "#/$defs/x~1y", "$defs": {"x/y": {"type": "null"}}}, None),
    ],
)  # fmt: skip
def test_a_placeholder_is_the_smallest_value_of_its_schema(schema, value):
    assert placeholder(prompt(schema), misfits) == value


@pytest.mark.parametrize("schema", [{"type": "string", "pattern": "^[0-9]+$"}, NODE])
def test_a_schema_that_nothing_made_up_fits_asks_for_a_stub(schema):
    with pytest.raises(NoPlaceholder, match="no placeholder fits node 'a': .*: give it a stub"):
        placeholder(prompt(schema), misfits)


@pytest.mark.parametrize(("until", "schema", "value"), [
    (Until(max_iterations=3, signal="DONE"), None, "DONE"),
    (Until(max_iterations=3, field="ok"), None, {"ok": True}),
    (Until(max_iterations=3, field="ok"), {"type": "object"}, {"ok": True}),
    (Until(max_iterations=3, bash="true"), None, "TODO"),
])  # fmt: skip
def test_a_placeholder_ends_its_loop(until, schema, value):
    node = Node(id="a", body=Loop(text="go", until=until), output_schema=schema)
    assert placeholder(node, misfits) == value


def test_a_scaffold_has_each_node_that_takes_a_stub_also_inside_of_groups():
    inner = (prompt(node_id="b"), Node(id="c", body=Bash(script="echo")))
    group = Group(nodes=inner, until=Until(max_iterations=2, signal="DONE"))
    ask = Node(id="ask", body=Approval(message="?"))
    graph = Graph(name="g", nodes=(prompt(), Node(id="g", body=group), ask))
    assert scaffold(graph, misfits) == {"a": "TODO", "b": "TODO", "c": "TODO"}


def test_nodes_of_one_id_share_a_placeholder_that_fits_all():
    def graph(schema: Any) -> Graph:
        until = Until(max_iterations=2, signal="DONE")
        nodes = (
            Node(id=name, body=Group(nodes=(prompt(some),), until=until))
            for name, some in (("one", None), ("two", schema))
        )
        return Graph(name="g", nodes=tuple(nodes))

    assert scaffold(graph({"enum": ["x", "y"]}), misfits) == {"a": "x"}
    with pytest.raises(NoPlaceholder, match="called 'a'"):
        both = graph({"const": 1})
        wants_text = (
            both.nodes[0]
            .body.nodes[0]
            .model_copy(  # type: ignore[union-attr]
                update={"output_schema": {"type": "string"}}
            )
        )
        first = both.nodes[0].model_copy(
            update={"body": both.nodes[0].body.model_copy(update={"nodes": (wants_text,)})}
        )
        scaffold(both.model_copy(update={"nodes": (first, both.nodes[1])}), misfits)
