"""Pictures of graphs: everything is in them, and no text from a file can break or abuse them."""

from __future__ import annotations

import re

import pytest

from pgflow.declare.drawing import draw_mermaid
from pgflow.declare.drawing.sketch import sketch
from pgflow.declare.drawing.theme import FAMILIES, family_of
from pgflow.declare.graph import (
    Approval,
    Bash,
    Body,
    Budget,
    Call,
    Cancel,
    Command,
    Compensation,
    Decision,
    Effect,
    FanOut,
    Gate,
    Graph,
    Group,
    Input,
    Loop,
    Node,
    Prompt,
    Retry,
    Rework,
    Script,
    Until,
)
from pgflow.declare.text.conditions import parse_condition
from pgflow.texts import visible

HOSTILE = '</svg><script>alert(1)</script>"]\n  end\n  click n0 "javascript:alert(1)"; `**x**` #quot; & $HOME \x00\x1b[31m \u202egnp.exe \ud800 \ufffe'

BODIES: dict[str, Body] = {
    "prompt": Prompt(text="Say it"),
    "command": Command(name="plan-it"),
    "bash": Bash(script="true"),
    "script": Script(script="measure", runtime="uv", inline=False),
    "loop": Loop(text="Again", until=Until(max_iterations=7, signal="COMPLETE")),
    "approval": Approval(
        message="Shall we?",
        decisions=(Decision(id="approve"), Decision(id="wait")),
        on_reject=Rework(text="Redo"),
    ),
    "cancel": Cancel(reason="Not wanted"),
    "loop_group": Group(
        until=Until(max_iterations=2, bash="true"), nodes=(Node(id="inner", body=Prompt(text="x")),)
    ),
    "workflow": Call(name="child-flow", fan_out=FanOut(items="$prompt.output", max_parallel=3)),
}


def of_every_mode() -> Graph:
    """A chain of one node of each mode."""
    modes = list(BODIES)
    nodes = (
        Node(id=mode, body=BODIES[mode], depends_on=tuple(modes[max(number - 1, 0) : number]))
        for number, mode in enumerate(modes)
    )
    return Graph(
        name="every mode",
        description="One of each.",
        inputs=(Input(name="topic", required=True), Input(name="tone")),
        nodes=tuple(nodes),
    )


def one(node: Node) -> Graph:
    return Graph(name="one", nodes=(node,))


def test_the_picture_names_mode_and_id_of_every_node_also_inside_groups():
    drawn = draw_mermaid(of_every_mode())
    for mode in BODIES:
        shown = "".join(c if c.isalnum() else f"#{ord(c)};" for c in mode).replace("#95;", "_")
        assert f"<b>{shown}</b><br/><i>{shown}</i>" in drawn or f"<b>{shown}</b>, <i>" in drawn
    assert "<b>inner</b>" in drawn
    assert all(text in drawn for text in ("plan-it", "measure", "Shall we#63;", "child-flow"))


@pytest.mark.parametrize(("more", "marks"), [
    ({"retry": Retry(max_retries=2)}, ["retry 2 ×"]),
    ({"retry": Retry(max_retries=1, on_error="all")}, ["retry 1 ×, any error"]),
    ({"timeout_ms": 90_000}, ["timeout 1.5 min"]),
    ({"trigger_rule": "one_success"}, ["one_success"]),
    ({"always_run": True, "budget": Budget(max_usd=2.5)}, ["≤ $2.5", "always run"]),
    ({"gates": tuple(Gate(kind="checkpoint", at="inside") for _ in "ab")}, ["2 × checkpoint"]),
    ({"gates": (Gate(kind="request", at="before"),
        Gate(kind="signal", at="before", name="paid"))}, ["only on request", "waits for paid"]),
    ({"gates": (Gate(kind="interrupt", at="before"),
        Gate(kind="input", at="before", name="plan"))}, ["interrupt before", "asks for plan"]),
    ({"gates": (Gate(kind="review", at="after"),)}, ["review after"]),
    ({"effects": (Effect(system="drive", risk="compensable"),),
        "compensations": (Compensation(name="remove it"),)},
        ["effect drive, compensable", "undo remove it"]),
    ({"body": BODIES["loop"]}, ["≤ 7 × until COMPLETE"]),
    ({"body": Loop(command="c", until=Until(max_iterations=3, field="done", bash="true"),
        interactive=True)},
        ["≤ 3 × until field done or a script says so", "asks after each turn"]),
    ({"body": BODIES["approval"]}, ["approve / wait", "rework ≤ 3 ×"]),
    ({"body": BODIES["workflow"]}, ["for each of $prompt.output", "≤ 3 at once"]),
])  # fmt: skip
def test_marks_say_what_may_happen_to_a_node(more, marks):
    graph = one(Node(**{"id": "n", "body": Prompt(text="x"), **more}))
    mermaid = draw_mermaid(graph)
    for mark in marks:
        assert (
            "".join(c if c.isalnum() or c in " -_.,/" else f"#{ord(c)};" for c in mark) in mermaid
        )


def test_the_node_whose_output_is_the_runs_is_marked():
    graph = Graph(
        name="r", nodes=tuple(Node(id=name, body=Prompt(text="x")) for name in "ab"), returns="b"
    )
    assert draw_mermaid(graph).count("returned") == 1


def branch(depends_on: tuple[str, ...]) -> Graph:
    before = tuple(Node(id=name, body=Prompt(text="x")) for name in "ab")
    return Graph(
        name="w",
        nodes=(
            *before,
            Node(
                id="c",
                body=Prompt(text="x"),
                depends_on=depends_on,
                when=parse_condition("$a.output.kind == 'bug'"),
            ),
        ),
    )


def test_a_condition_stands_where_the_edges_enter():
    assert 'n0 -->|"output.kind == #39;bug#39;"| n2' in draw_mermaid(branch(("a",)))
    assert "if #36;a.output.kind == #39;bug#39;" in draw_mermaid(branch(("a", "b")))


def test_the_same_graph_gives_the_same_text():
    assert draw_mermaid(of_every_mode()) == draw_mermaid(of_every_mode())


def luminance(colour: str) -> float:
    channels = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(first: str, second: str) -> float:
    lighter, darker = sorted((luminance(first), luminance(second)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("tone", FAMILIES.values())
def test_every_text_is_legible_on_its_ground(tone):
    assert contrast(tone.fill, tone.text) >= 4.5


def hostile() -> Graph:
    prompt = Prompt(text=HOSTILE)
    nodes = (
        Node(
            id=HOSTILE,
            title=HOSTILE,
            description=HOSTILE,
            body=Command(name=HOSTILE),
            when=parse_condition(HOSTILE),
            effects=(Effect(system=HOSTILE),),
        ),
        Node(
            id="end",
            body=Group(
                until=Until(max_iterations=1, signal=HOSTILE),
                nodes=(Node(id="subgraph", body=prompt),),
            ),
            depends_on=(HOSTILE,),
        ),
    )
    return Graph(name=HOSTILE, description=HOSTILE, inputs=(Input(name=HOSTILE),), nodes=nodes)


def test_hostile_texts_stay_texts_in_mermaid():
    lines = draw_mermaid(hostile()).splitlines()
    node = r'n\d+[\[({]+"(?:</?[bi]>|<br/>|[^"`<>&])*"[\])}]+'
    allowed = rf"flowchart TD|\s+(?:{node}|subgraph {node}|direction TB|end|n\d+ --> n\d+|classDef on_\w+ [\w:#,]+|class [n\d,]+ on_\w+)"
    assert lines
    assert [line for line in lines if not re.fullmatch(allowed, line)] == []
    assert "javascript:" not in "".join(lines)


def test_ids_that_are_the_same_inside_and_outside_a_group_are_two_nodes():
    inside = (
        Node(id="a", body=Prompt(text="x")),
        Node(id="b", body=Prompt(text="x"), depends_on=("a",)),
    )
    group = Node(id="g", body=Group(until=Until(max_iterations=1), nodes=inside), depends_on=("a",))
    drawn = sketch(Graph(name="twice", nodes=(Node(id="a", body=Bash(script="x")), group)))
    assert [(item.number, item.name, item.parent) for item in drawn.items] == [
        (0, "a", None), (1, "g", None), (2, "a", 1), (3, "b", 1),
    ]  # fmt: skip
    assert {(link.source, link.target) for link in drawn.links} == {(0, 1), (2, 3)}


def test_a_graph_without_nodes_is_a_picture_too():
    assert draw_mermaid(Graph(name="empty", nodes=())) == "flowchart TD\n"


def test_a_dependency_that_does_not_exist_is_not_drawn():
    graph = one(Node(id="a", body=Prompt(text="x"), depends_on=("nowhere",)))
    assert "-->" not in draw_mermaid(graph)


def test_invisible_characters_are_shown_as_such():
    assert visible("a\u202eb\x00c\u200bd\ud800") == "a�b�c�d�"
    assert visible(" two\n\tlines\u2028here ") == "two lines here"
    assert visible("\N{FAMILY}\N{ZERO WIDTH JOINER}x") == "\N{FAMILY}\N{ZERO WIDTH JOINER}x", (
        "a joiner makes one picture of several"
    )


def test_every_mode_has_colours():
    assert {family_of(mode) for mode in BODIES} == {
        "agent", "code", "loop", "person", "stop", "call",
    }  # fmt: skip
