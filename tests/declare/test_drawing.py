"""Pictures of graphs: everything is in them, nothing overflows, and no text from a file can break
or abuse them.
"""

from __future__ import annotations

import re
import subprocess
import sys
import unicodedata
from xml.etree import ElementTree as ET

import pytest

from pgflow.declare.drawing import draw_mermaid, draw_svg
from pgflow.declare.drawing.card import make_card
from pgflow.declare.drawing.layout import MAX_EDGES, MAX_NODES, Box, Rect, Wire, place
from pgflow.declare.drawing.sketch import sketch
from pgflow.declare.drawing.text import shorten, width_of, wrap
from pgflow.declare.drawing.theme import FAMILIES, Tone, family_of
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
from pgflow.errors import InvalidArgument
from pgflow.texts import visible

SVG = "{http://www.w3.org/2000/svg}"
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


def texts(svg: str) -> list[str]:
    return ["".join(found.itertext()) for found in ET.fromstring(svg).iter(f"{SVG}text")]


def test_the_svg_says_mode_and_id_of_every_node_also_inside_groups():
    said = texts(draw_svg(of_every_mode()))
    for mode in BODIES:
        assert said.count(mode) == 2 + (mode == "prompt"), (
            mode
        )  # the mode, the id that is the same here, and the prompt in the group
    assert "inner" in said
    assert {"plan-it", "measure", "Shall we?", "Not wanted", "child-flow"} <= set(said)
    assert {"every mode", "One of each.", "inputs: topic*, tone"} <= set(said)


def test_each_mode_has_a_form_of_its_own_kind():
    svg = draw_svg(of_every_mode())
    assert svg.count('<polygon class="box"') == 2  # a person's hexagon and the end's octagon
    assert svg.count('class="group"') == 1
    assert svg.count('class="edge"') == len(BODIES) - 1
    assert svg.count('class="tip"') == len(BODIES) - 1


@pytest.mark.parametrize(
    ("more", "marks"),
    [
        ({"retry": Retry(max_retries=2)}, ["retry 2 ×"]),
        ({"retry": Retry(max_retries=1, on_error="all")}, ["retry 1 ×, any error"]),
        ({"timeout_ms": 90_000}, ["timeout 1.5 min"]),
        ({"trigger_rule": "one_success"}, ["one_success"]),
        ({"always_run": True, "budget": Budget(max_usd=2.5)}, ["≤ $2.5", "always run"]),
        ({"gates": tuple(Gate(kind="checkpoint", at="inside") for _ in "ab")}, ["2 × checkpoint"]),
        (
            {
                "gates": (
                    Gate(kind="request", at="before"),
                    Gate(kind="signal", at="before", name="paid"),
                )
            },
            ["only on request", "waits for paid"],
        ),
        (
            {
                "gates": (
                    Gate(kind="interrupt", at="before"),
                    Gate(kind="input", at="before", name="plan"),
                )
            },
            ["interrupt before", "asks for plan"],
        ),
        ({"gates": (Gate(kind="review", at="after"),)}, ["review after"]),
        (
            {
                "effects": (Effect(system="drive", risk="compensable"),),
                "compensations": (Compensation(name="remove it"),),
            },
            ["effect drive, compensable", "undo remove it"],
        ),
        ({"body": BODIES["loop"]}, ["≤ 7 × until COMPLETE"]),
        (
            {
                "body": Loop(
                    command="c",
                    until=Until(max_iterations=3, field="done", bash="true"),
                    interactive=True,
                )
            },
            ["≤ 3 × until field done or a script says so", "asks after each turn"],
        ),
        ({"body": BODIES["approval"]}, ["approve / wait", "rework ≤ 3 ×"]),
        ({"body": BODIES["workflow"]}, ["for each of $prompt.output", "≤ 3 at once"]),
    ],
)
def test_marks_say_what_may_happen_to_a_node(more, marks):
    graph = one(Node(**{"id": "n", "body": Prompt(text="x"), **more}))
    assert set(marks) <= set(texts(draw_svg(graph)))
    mermaid = draw_mermaid(graph)
    for mark in marks:
        assert (
            "".join(c if c.isalnum() or c in " -_.,/" else f"#{ord(c)};" for c in mark) in mermaid
        )


def test_the_node_whose_output_is_the_runs_is_marked():
    graph = Graph(
        name="r", nodes=tuple(Node(id=name, body=Prompt(text="x")) for name in "ab"), returns="b"
    )
    assert texts(draw_svg(graph)).count("returned") == 1
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
    assert "if output.kind == 'bug'" in texts(draw_svg(branch(("a",)))), (
        "whose output it is needs not be said again"
    )
    assert "if $a.output.kind == 'bug'" in texts(draw_svg(branch(("a", "b"))))
    assert "if $a.output.kind == 'bug'" in texts(draw_svg(branch(())))
    assert 'n0 -->|"output.kind == #39;bug#39;"| n2' in draw_mermaid(branch(("a",)))
    assert "if #36;a.output.kind == #39;bug#39;" in draw_mermaid(branch(("a", "b")))


def test_the_same_graph_gives_the_same_text():
    assert draw_svg(of_every_mode()) == draw_svg(of_every_mode())
    assert draw_mermaid(of_every_mode()) == draw_mermaid(of_every_mode())


def test_a_picture_says_what_it_is_to_those_who_do_not_see_it():
    root = ET.fromstring(draw_svg(of_every_mode()))
    assert root.get("role") == "img"
    assert root.get("aria-label") == "Workflow every mode: 10 nodes, 8 edges"
    assert root[0].tag == f"{SVG}title"
    assert root[0].text == root.get("aria-label")


def test_a_picture_depends_on_nothing_outside_and_restyles_nothing_outside():
    svg = draw_svg(of_every_mode())
    assert not re.search(r"(href|url\(|@import|<script|<image|<foreignObject|\bon\w+=)", svg)
    rules = [
        rule.strip()
        for rule in re.findall(
            r"([^{}\n]+)\{", svg.partition("<style>")[2].partition("</style>")[0]
        )
    ]
    selectors = [
        selector.strip()
        for rule in rules
        if not rule.startswith("@media")
        for selector in rule.split(",")
    ]
    assert selectors
    assert all(selector.startswith(".pgflow-graph ") for selector in selectors)
    assert "prefers-color-scheme: dark" in svg


def luminance(colour: str) -> float:
    channels = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(first: str, second: str) -> float:
    lighter, darker = sorted((luminance(first), luminance(second)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize(
    "tone", [tone for family in FAMILIES.values() for tone in (family.light, family.dark)]
)
def test_every_text_is_legible_on_its_ground(tone: Tone):
    assert contrast(tone.fill, tone.text) >= 4.5


def test_lines_of_text_are_legible_on_every_card():
    for family in FAMILIES.values():
        assert min(contrast(family.light.fill, ink) for ink in ("#1b2230", "#5a6372")) >= 4.5
        assert min(contrast(family.dark.fill, ink) for ink in ("#e9edf3", "#a3adbb")) >= 4.5


# Hostile texts
# ----------------------------------------------------------------------------------------------------------------


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


def test_hostile_texts_stay_texts_in_svg():
    svg = draw_svg(hostile())
    root = ET.fromstring(svg.encode())
    assert {found.tag.removeprefix(SVG) for found in root.iter()} <= {
        "svg",
        "title",
        "style",
        "rect",
        "g",
        "path",
        "polygon",
        "text",
    }
    assert not any(unicodedata.category(char)[0] == "C" and char != "\n" for char in svg)
    assert any(text.startswith("</svg><script>") for text in texts(svg))


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
        (0, "a", None),
        (1, "g", None),
        (2, "a", 1),
        (3, "b", 1),
    ]
    assert {(link.source, link.target) for link in drawn.links} == {(0, 1), (2, 3)}


def test_a_graph_without_nodes_is_a_picture_too():
    assert texts(draw_svg(Graph(name="empty", nodes=()))) == ["empty"]
    assert draw_mermaid(Graph(name="empty", nodes=())) == "flowchart TD\n"


def test_a_dependency_that_does_not_exist_is_not_drawn():
    svg = draw_svg(one(Node(id="a", body=Prompt(text="x"), depends_on=("nowhere",))))
    assert 'class="edge"' not in svg


def test_what_is_too_large_for_a_picture_says_so_at_once():
    many = Graph(
        name="many",
        nodes=tuple(Node(id=f"n{i}", body=Prompt(text="x")) for i in range(MAX_NODES + 1)),
    )
    with pytest.raises(
        InvalidArgument, match=r"too large to draw: 501 nodes and 0 edges .*Mermaid and JSON"
    ):
        draw_svg(many)
    assert draw_mermaid(many).count("<b>") == MAX_NODES + 1
    dense = [Wire(source, target) for target in range(60) for source in range(target)]
    assert len(dense) > MAX_EDGES
    with pytest.raises(InvalidArgument, match="too large to draw"):
        place([Box(100, 40)] * 60, dense, group_header_px=50)


@pytest.mark.full
def test_without_the_layout_library_it_says_what_to_install():
    code = (
        "import sys; sys.modules['graphlay'] = None\n"
        "from pgflow.declare.drawing import draw_mermaid, draw_svg\n"
        "from pgflow.declare.graph import Graph\n"
        "draw_mermaid(Graph(name='x', nodes=()))\n"
        "try: draw_svg(Graph(name='x', nodes=()))\n"
        "except ImportError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == 'drawing SVG needs graphlay: pip install "pgflow-engine[draw]"\n'


# Places and widths
# ------------------------------------------------------------------------------------------------------------


def overlap(first: Rect, second: Rect) -> bool:
    across = first.x < second.x + second.width and second.x < first.x + first.width
    return across and first.y < second.y + second.height and second.y < first.y + first.height


def holds(outer: Rect, inner: Rect) -> bool:
    return (
        outer.x <= inner.x
        and outer.y <= inner.y
        and inner.x + inner.width <= outer.x + outer.width
        and inner.y + inner.height <= outer.y + outer.height
    )


def test_boxes_do_not_overlap_and_groups_hold_theirs():
    boxes = [
        Box(200, 60),
        Box(400, 52),
        Box(150, 80, 1),
        Box(180, 50, 1),
        Box(90, 40),
        Box(120, 40),
    ]
    wires = [Wire(0, 1), Wire(2, 3), Wire(0, 4), Wire(1, 5), Wire(4, 5)]
    found = place(boxes, wires, group_header_px=52)
    outside = [found.boxes[number] for number in (0, 1, 4, 5)]
    assert not any(overlap(a, b) for number, a in enumerate(outside) for b in outside[:number])
    assert all(holds(found.boxes[1], found.boxes[number]) for number in (2, 3))
    assert found.boxes[1].width >= 400
    assert min(found.boxes[number].y for number in (2, 3)) >= found.boxes[1].y + 52, (
        "the header is above the members"
    )
    for wire, route in zip(wires, found.routes, strict=True):
        source, target = found.boxes[wire.source], found.boxes[wire.target]
        assert route[0][1] == pytest.approx(source.y + source.height)
        assert route[-1][1] == pytest.approx(target.y), "an edge into a group ends at its frame"
        assert target.x <= route[-1][0] <= target.x + target.width


def test_an_edge_past_a_group_does_not_run_through_it():
    boxes = [
        Box(200, 60),
        Box(400, 52),
        Box(150, 80, 1),
        Box(150, 80, 1),
        Box(150, 80, 1),
        Box(90, 40),
    ]
    wires = [Wire(0, 1), Wire(2, 3), Wire(2, 4), Wire(1, 5), Wire(0, 5)]
    found = place(boxes, wires, group_header_px=52)
    frame, past = found.boxes[1], found.routes[4]
    assert len(past) >= 4, "it goes around"
    for (x1, y1), (x2, y2) in zip(past, past[1:], strict=False):
        assert (
            max(x1, x2) <= frame.x
            or min(x1, x2) >= frame.x + frame.width
            or max(y1, y2) <= frame.y
            or min(y1, y2) >= frame.y + frame.height
        )


def test_what_stands_on_a_card_is_narrower_than_the_card():
    long = "archon-adversarial-development-" * 5
    condition = parse_condition(
        "$classify.output.issue_type == 'bug' && $research.output.confidence >= '0.75' && "
        "$a.output == 'b'"
    )
    node = Node(
        id=long,
        title="A title of words " * 20,
        body=Prompt(text="x"),
        when=condition,
        effects=tuple(Effect(system=long) for _ in "ab"),
        timeout_ms=1,
    )
    card = make_card(sketch(one(node)).items[0])
    room = card.width - 28
    assert card.width <= 300
    assert width_of(card.name, 13, monospaced=True) <= room
    assert len(card.lines) == 2
    assert max(width_of(line, 12) for line in card.lines) <= room
    assert len(card.guard) == 2
    assert max(width_of(line, 10.5, monospaced=True) for line in card.guard) <= room
    assert max(chip.x + chip.width for chip in card.chips) <= room
    assert all(text.endswith("…") for text in (card.name, card.lines[-1], card.guard[-1]))


DEJAVU_SANS_EM = {
    "The quick brown fox": 10.101,
    "WAMMWW%@": 7.271,
    "illi.,:|": 2.42,
    "0123456789": 6.362,
    "$research.output": 8.578,
    "if Approved: {yes}": 9.399,
}
"""Widths in DejaVu Sans, the widest of the usual fonts, as a browser measures them."""


@pytest.mark.parametrize(("text", "em"), DEJAVU_SANS_EM.items())
def test_texts_are_never_taken_to_be_narrower_than_they_are(text, em):
    assert width_of(text, 10) >= em * 10


def test_wide_and_combining_characters_count_as_what_they_take():
    assert width_of("日本", 10) >= 20
    assert width_of("🎉", 10) >= 10
    assert width_of("e\u0301", 10) == width_of("e", 10)
    assert width_of("日", 10, monospaced=True) > width_of("a", 10, monospaced=True)


def test_shortening_keeps_what_fits_and_says_that_something_is_missing():
    assert shorten("short", 100, 10) == "short"
    cut = shorten("a very long line of text", 60, 10)
    assert cut.endswith("…")
    assert width_of(cut, 10) <= 60
    assert shorten("x" * 100_000, 60, 10).endswith("…")
    assert wrap("one two three four", 55, 10, lines=2) == ["one two", "three fo…"]
    assert wrap("one", 45, 10, lines=2) == ["one"]
    assert wrap("", 45, 10, lines=2) == []


def test_invisible_characters_are_shown_as_such():
    assert visible("a\u202eb\x00c\u200bd\ud800") == "a�b�c�d�"
    assert visible(" two\n\tlines\u2028here ") == "two lines here"
    assert visible("\N{FAMILY}\N{ZERO WIDTH JOINER}x") == "\N{FAMILY}\N{ZERO WIDTH JOINER}x", (
        "a joiner makes one picture of several"
    )


def test_every_mode_has_colours():
    assert {family_of(mode) for mode in BODIES} == {
        "agent",
        "code",
        "loop",
        "person",
        "stop",
        "call",
    }
