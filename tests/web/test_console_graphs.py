"""The graph of a run whose workflow came from a file: each node with its state."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("tree_sitter_bash", reason="the extra `run` is not installed")

from collections.abc import Sequence

from chromium import chromium, find_axe
from graphkit import begin_graphs
from runkit import start, write
from sqlkit import begin
from test_console_pages import seen_in
from test_web_command import console
from webkit import Browser, Watched, is_harmless

from pgflow.authority import Approve
from pgflow.declare import GRAPHS, Graph
from pgflow.declare.drawing.states import stand
from pgflow.declare.durable import declared
from pgflow.declare.graph import Approval, Bash, Cancel, Group, Loop, Node, Prompt, Until
from pgflow.inspect import Progress
from pgflow.web import Principal

NODES = """
- id: look
  bash: echo '<script>alert(1)</script>'
- id: ask
  approval: {message: "Go on?"}
  depends_on: [look]
- id: bad
  bash: echo sorry >&2; exit 3
  depends_on: [ask]
- id: after
  bash: echo no
  depends_on: [bad]
"""


LOOKS = ((1280, False), (390, True), (390, False), (1280, True), (390, True))


def graph_of(*nodes: Node) -> Graph:
    return Graph(name="x", nodes=nodes)


def words(graph: Graph, begun: list[str], *told: Any, asks: Sequence[str] = ()) -> list[str]:
    seen = stand(graph, begun, asks, told, has_ended=False)
    return [f"{one.node.id} {one.standing}" for one in seen]


@pytest.mark.full
async def test_a_run_of_a_file_shows_where_each_node_stands(aflow, tmp_path):
    await start(aflow, write(tmp_path, NODES), key="r")
    await aflow.until_idle()
    browser = Browser(aflow.app, Principal("ann", ["operate"]), graphs=GRAPHS)
    page = await browser.get("/run", key="r")
    seen_in(page, "4 nodes", "look completed bash", "ask asks approval", "bad waiting bash")
    assert is_harmless(page) == []
    async with Watched(browser, "/run?key=r") as watched:
        await aflow.answer("ask", Approve())
        await aflow.until_idle()
        page = await watched.until("bad failed bash")
        page = await watched.until("after skipped bash")
    assert is_harmless(page) == []


@pytest.mark.full
async def test_a_console_that_was_given_no_drawer_shows_the_run_without(aflow, tmp_path):
    await start(aflow, write(tmp_path, "- {id: a, bash: echo}"), key="r")
    page = await Browser(aflow.app, Principal("ann")).get("/run", key="r")
    assert "1 node" not in page.words

    class Broken:
        stream = "nodes"

        def __call__(self, *_: Any, **__: Any) -> Any:
            raise ZeroDivisionError

    graphs = {"pgflow.declared": Broken()}
    page = await Browser(aflow.app, Principal("ann"), graphs=graphs).get("/run", key="r")
    seen_in(page, "Journal")


async def test_nothing_of_a_graph_is_ever_html(aflow, conn):
    evil = "x</title></svg><script>alert(1)</script><a href='javascript:alert(1)' onload=\"x\">]]>"
    graph = graph_of(
        Node(id=evil, title=evil, body=Approval(message=evil)),
        Node(id="b", body=Bash(script=evil), depends_on=(evil,), description=evil),
        Node(id="c", body=Cancel(reason="\u202e" + evil)),
    )
    given = {"frozen": {"graph": graph.model_dump(mode="json")}}
    begin(conn, "pgflow.declared", key="r", input=json.dumps(given))
    said = json.dumps({"id": evil, "state": "failed", "reason": evil})
    draw = GRAPHS["pgflow.declared"]
    progress = Progress(frozenset({evil}), frozenset(), (json.loads(said), {"id": [], "state": {}}))
    drawn = draw(given, progress, has_ended=False)
    assert drawn is not None
    assert (drawn[0].standing, drawn[1].after) == ("failed", (evil,))
    page = await Browser(aflow.app, Principal("ann"), graphs=GRAPHS).get("/run", key="r")
    assert is_harmless(page) == []
    assert "\u202e" not in page.text
    assert page.words.count("<script>alert(1)</script>") > 3


@pytest.mark.full
async def test_graphs_have_no_barrier_and_fit_the_screen(aflow, dsn, tmp_path):
    axe = find_axe()
    aflow.include(declared)
    keys = await begin_graphs(aflow.app, tmp_path)
    await aflow.until_idle()
    await aflow.app.cancel("ended")
    await aflow.until_idle()
    found: dict[str, list[str]] = {}
    with console(dsn) as (url, _), chromium() as browser:
        browser.open(url.link)
        for (width, is_dark), key in zip(LOOKS, [*keys, "dag"], strict=True):
            browser.look(width, 900, dark=is_dark)
            browser.open(f"{url}/run?key={key}")
            assert browser.ask("document.querySelectorAll('#graph tbody tr').length") > 0, key
            assert browser.ask("document.documentElement.scrollWidth") == width, key
            found |= {key: barriers} if (barriers := browser.find_barriers(axe, "#graph")) else {}
        assert browser.complaints == []
    assert found == {}, json.dumps(found, indent=1)


def test_nodes_of_a_group_stand_where_they_do_in_its_newest_round():
    until = Until(max_iterations=3)
    inner = (Node(id="tick", body=Bash(script="x")), Node(id="tock", body=Bash(script="y")))
    graph = graph_of(
        Node(id="a", body=Prompt(text="x")),
        Node(id="a#b", body=Loop(text="x", until=until)),
        Node(id="group", body=Group(nodes=inner, until=until)),
    )
    first = [{"id": "tick", "state": "completed", "iteration": 1}]
    assert words(graph, ["group#1/tick", "group#1/tock"], *first)[2:] == [
        "group running",
        "tick completed",
        "tock running",
    ]
    begun = ["a", "a#b#2:until", "group#1/tick", "group#1/tock", "group#2/tick"]
    assert words(graph, begun, *first) == [
        "a running",
        "a#b running",
        "group running",
        "tick running",
        "tock waiting",
    ]
    ends = [{"id": "group", "state": "completed"}, {"id": "a", "state": "odd"}, "no", {"id": 7}]
    found = words(graph, begun[::-1], *ends)[2:]
    assert found == ["group completed", "tick running", "tock waiting"]
    assert words(graph, ["pgflow.folder", "", "b"], asks=["a:ask#2"])[0] == "a asks"


def test_a_node_at_work_when_its_run_ends_is_cut_off():
    graph = graph_of(Node(id="a", body=Prompt(text="x")), Node(id="b", body=Prompt(text="x")))
    seen = stand(graph, {"a"}, (), (), has_ended=True)
    assert [one.standing for one in seen] == ["cut off", "waiting"]


def test_an_input_without_a_graph_has_no_nodes():
    draw, nothing = GRAPHS["pgflow.declared"], Progress(frozenset(), frozenset(), ())
    for bad in (None, [], {}, {"frozen": 1}, {"frozen": {}}, {"frozen": {"graph": {"x": 1}}}):
        assert draw(bad, nothing, has_ended=False) is None
