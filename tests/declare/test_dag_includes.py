"""Includes: what becomes of the nodes of one workflow in the place of a node of another."""

from __future__ import annotations

import pytest

from pgflow.declare.dag import read_file
from pgflow.declare.graph import Call, FanOut, Group, Loop, Prompt, Script
from tests.kits.dagkit import CORPUS, workflow

BLOCK = workflow(
    """
    - {id: gather, bash: 'git diff $INPUTS.base'}
    - {id: judge, depends_on: [gather], prompt: 'Judge $gather.output for $INPUTS.focus', when: "$gather.output != ''"}
    """
).replace("name: w", "name: block")


def tree(folder, **files):
    """A tree of workflows: names of files and their texts. Answers the folder."""
    root = folder / "workflows"
    for name, text in files.items():
        path = root / f"{name.replace('__', '/')}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


def expanded(folder, main, **others):
    """The graph of a workflow with the others beside it."""
    verdict = read_file(tree(folder, main=main, **others) / "main.yaml")
    assert verdict.graph is not None, verdict
    return verdict.graph


def wrong(folder, main, **others):
    """The message of what is wrong with a workflow with the others beside it."""
    (problem,) = read_file(tree(folder, main=main, **others) / "main.yaml").errors
    return problem.message


def by_id(graph):
    return {node.id: node for node in graph.nodes}


def test_the_nodes_of_what_is_included_stand_in_its_place(tmp_path):
    main = workflow(
        """
        - {id: gather, bash: x}
        - {id: review, include: block, depends_on: [gather], when: "$gather.output == 'go'", with: {base: dev, focus: '$gather.output'}}
        - {id: report, depends_on: [review], prompt: 'Say $review.output'}
        """,
        "returns: review",
    )
    graph = expanded(tmp_path, main, block=BLOCK)
    nodes = by_id(graph)
    assert list(nodes) == ["gather", "review__gather", "review__judge", "report"]
    assert nodes["review__gather"].body.script == "git diff dev"
    assert nodes["review__gather"].depends_on == ("gather",)
    assert nodes["review__gather"].when.text == "$gather.output == 'go'"
    assert nodes["review__judge"].body.text == "Judge $review__gather.output for $gather.output"
    assert nodes["review__judge"].when.text == "$review__gather.output != ''"
    assert nodes["report"].depends_on == ("review__judge",)
    assert nodes["report"].body.text == "Say $review__judge.output"
    assert graph.returns == "review__judge"
    assert [file.rsplit("/", 1)[1] for file in graph.files] == ["main.yaml", "block.yaml"]
    assert nodes["review__judge"].position.file.endswith("block.yaml")


def test_a_declared_result_is_the_includes_output_and_all_ends_are_waited_for(tmp_path):
    block = workflow(
        "- {id: a, bash: x}\n- {id: b, bash: y, depends_on: [a]}\n- {id: c, bash: z, depends_on: "
        "[a]}",
        "returns: a",
    )
    main = workflow("- {id: i, include: block}\n- {id: d, bash: 'echo $i.output', depends_on: [i]}")
    nodes = by_id(expanded(tmp_path, main, block=block.replace("name: w", "name: block")))
    assert nodes["d"].depends_on == ("i__b", "i__c")
    assert nodes["d"].body.script == "echo $i__a.output"


def test_conditions_of_an_include_and_of_its_first_node_both_hold(tmp_path):
    block = workflow(
        "- {id: a, bash: x, when: $INPUTS.go == true, trigger_rule: all_done}"
    ).replace("name: w", "name: block")
    main = workflow(
        "- {id: s, bash: x}\n- {id: i, include: block, depends_on: [s], trigger_rule: one_success, "
        "when: \"$s.output == '1'\", with: {go: true}}"
    )
    assert "unparseable" in wrong(tmp_path, main, block=block)
    other = workflow(
        "- {id: b, bash: x}\n- {id: a, bash: x, depends_on: [b]}\n- {id: c, bash: x, when: "
        "\"$b.output == 'q'\"}"
    )
    nodes = by_id(expanded(tmp_path, main, block=other.replace("name: w", "name: block")))
    assert nodes["i__c"].when.text == "$s.output == '1' && $i__b.output == 'q'"
    assert nodes["i__c"].trigger_rule == "one_success"


def test_alternatives_are_not_joined_with_another_condition(tmp_path):
    block = workflow(
        "- {id: a, bash: x}\n- {id: b, bash: x, when: \"$a.output == '1' || $a.output == '2'\"}"
    )
    main = workflow("- {id: s, bash: x}\n- {id: i, include: block, when: \"$s.output == '1'\"}")
    found = wrong(tmp_path, main, block=block.replace("name: w", "name: block"))
    assert "because one side uses '||'" in found


def test_inputs_have_defaults_types_and_must_be_known(tmp_path):
    block = workflow(
        "- {id: a, script: run, runtime: uv, with: {q: $INPUTS.number}}\n- {id: b, prompt: "
        "'n=$INPUTS.number l=$INPUTS.list'}",
        "inputs: {number: {default: 3}, list: {required: true}}",
    ).replace("name: w", "name: block")
    nodes = by_id(
        expanded(tmp_path, workflow("- {id: i, include: block, with: {list: [1, a]}}"), block=block)
    )
    found = {binding.name: binding.value for binding in nodes["i__a"].arguments}
    assert found == {"q": 3, "number": 3, "list": [1, "a"]}
    assert nodes["i__b"].body.text == 'n=3 l=[1,"a"]'
    missing = wrong(tmp_path, workflow("- {id: i, include: block}"), block=block)
    assert (
        missing
        == "Node 'i': included block 'block' requires input 'list'. Pass it through 'with:'."
    )
    strange = wrong(
        tmp_path, workflow("- {id: i, include: block, with: {list: 1, lits: 2}}"), block=block
    )
    assert (
        strange
        == "Node 'i': included block 'block' does not declare input 'lits'. Declared inputs: list, "
        "number."
    )


def test_an_input_that_nobody_gives_is_missed(tmp_path):
    message = wrong(tmp_path, workflow("- {id: i, include: block, with: {base: x}}"), block=BLOCK)
    assert (
        message
        == "Node 'i': included block 'block' references missing input $INPUTS.focus. Pass it "
        "through 'with:'."
    )


def test_includes_nest_three_deep_and_no_deeper(tmp_path):
    files = {
        f"f{n}": workflow(f"- {{id: i, include: f{n + 1}}}").replace("name: w", f"name: f{n}")
        for n in range(1, 5)
    }
    files["f5"] = workflow("- {id: a, bash: x}").replace("name: w", "name: f5")
    three = expanded(tmp_path, workflow("- {id: i, include: f3}"), **files)
    assert [node.id for node in three.nodes] == ["i__i__i__a"]
    message = wrong(tmp_path, workflow("- {id: i, include: f2}"), **files)
    assert "include depth limit exceeded (max 3 levels): w -> f2 -> f3 -> f4 -> f5" in message


def test_a_circle_of_includes_is_refused(tmp_path):
    other = workflow("- {id: i, include: w}").replace("name: w", "name: other")
    message = wrong(tmp_path, workflow("- {id: i, include: other}"), other=other)
    assert message == "Node 'i': include cycle detected: w -> other -> w"


@pytest.mark.full
def test_includes_that_multiply_are_bounded(tmp_path):
    files = {}
    for n in (1, 2):
        body = "\n".join(f"- {{id: i{k}, include: f{n + 1}}}" for k in range(110))
        files[f"f{n}"] = workflow(body).replace("name: w", f"name: f{n}")
    files["f3"] = workflow("- {id: a, bash: x}").replace("name: w", "name: f3")
    assert "More than 10,000 nodes" in wrong(tmp_path, workflow("- {id: i, include: f1}"), **files)


def test_long_inputs_that_multiply_are_bounded(tmp_path):
    block = workflow("- {id: a, prompt: '" + "$INPUTS.x " * 2000 + "'}").replace(
        "name: w", "name: block"
    )
    main = workflow("- {id: i, include: block, with: {x: '" + "y" * 20_000 + "'}}")
    assert "More than 10,000,000 characters come from inputs" in wrong(tmp_path, main, block=block)


def test_what_is_not_in_the_tree_leaves_a_file_right_and_without_a_graph(tmp_path):
    verdict = read_file(
        tree(tmp_path, main=workflow("- {id: i, include: elsewhere}")) / "main.yaml"
    )
    assert verdict.ok
    assert verdict.graph is None
    found = [problem.message for problem in verdict.unresolved]
    assert found == ["Node 'i': include target 'elsewhere' not found"]
    assert (verdict.unresolved[0].line, verdict.unresolved[0].column) == (5, 5)


def test_a_file_that_is_wrong_cannot_be_included(tmp_path):
    broken = workflow("- {id: a, bash: x, depends_on: [zz]}").replace("name: w", "name: broken")
    (problem,) = read_file(
        tree(tmp_path, main=workflow("- {id: i, include: broken}"), broken=broken) / "main.yaml"
    ).errors
    assert problem.message == "Node 'i': include target 'broken' not found"
    assert "broken.yaml has errors of its own" in problem.hint


def test_an_include_in_a_group_stays_in_it_and_the_groups_end_sees_it(tmp_path):
    main = workflow(
        """
        - id: g
          loop_group:
            until_bash: test "$i.output" = done
            max_iterations: 2
            nodes:
              - {id: i, include: block, with: {base: x, focus: '$LOOP_PREV.q.output'}}
              - {id: q, bash: 'echo $i.output', depends_on: [i]}
        """
    )
    (group,) = expanded(tmp_path, main, block=BLOCK).nodes
    assert isinstance(group.body, Group)
    assert [node.id for node in group.body.nodes] == ["i__gather", "i__judge", "q"]
    assert group.body.until.bash == 'test "$i__judge.output" = done'
    assert group.body.nodes[1].body.text == "Judge $i__gather.output for $LOOP_PREV.q.output"


def test_a_node_runs_as_its_own_file_says(tmp_path):
    block = workflow(
        "- {id: a, prompt: x}\n- {id: b, prompt: x, provider: claude}\n- {id: c, bash: x}",
        "provider: codex\nmodel: large\nrequires: [github]",
    )
    graph = expanded(
        tmp_path,
        workflow("- {id: i, include: block}\n- {id: d, prompt: x}", "model: small\ntags: [q]"),
        block=block.replace("name: w", "name: block"),
    )
    agents = {node.id: node.agent for node in graph.nodes}
    assert agents == {
        "i__a": {"provider": "codex", "model": "large"},
        "i__b": {"provider": "claude"},
        "i__c": {},
        "d": {"model": "small"},
    }
    assert graph.options == {"tags": ["q"], "requires": ["github"]}


def test_commands_that_are_found_become_part_of_the_graph(tmp_path):
    block = workflow(
        "- {id: a, bash: x}\n- {id: b, command: judge, depends_on: [a]}\n- {id: c, command: "
        "elsewhere}"
    ).replace("name: w", "name: block")
    root = tree(
        tmp_path, main=workflow("- {id: i, include: block, with: {q: 1}}"), pack__block__block=block
    )
    commands = root / "pack" / "block" / "commands"
    commands.mkdir()
    (commands / "judge.md").write_text("Judge $a.output by $INPUTS.q", encoding="utf-8")
    graph = read_file(root / "main.yaml").graph
    assert graph is not None
    nodes = by_id(graph)
    assert nodes["i__b"].body == Prompt(text="Judge $i__a.output by 1")
    assert nodes["i__c"].body.name == "elsewhere"
    assert [binding.name for binding in nodes["i__c"].arguments] == ["q"]
    (commands / "judge.md").write_text("Judge $outside.output", encoding="utf-8")
    (problem,) = read_file(root / "main.yaml").errors
    assert "references '$outside.output' outside its workflow namespace" in problem.message


def test_the_pack_of_the_originals_authors_is_expanded_whole():
    verdict = read_file(CORPUS / "sdlc-pack/archon/workflows/sdlc/deliver/deliver.yaml")
    graph = verdict.graph
    assert graph is not None
    nodes = by_id(graph)
    assert {"impl__implement", "review__synthesize", "validate__validate"} <= set(nodes)
    assert isinstance(nodes["impl__implement"].body, Loop)
    assert isinstance(nodes["impl__assert-changed"].body, Script)
    inner = nodes["corrections"].body
    assert isinstance(inner, Group)
    assert "recheck__synthesize" in {node.id for node in inner.nodes}
    assert not any("include" in node.id for node in graph.nodes)


@pytest.mark.parametrize("name", ["../main", "/etc/passwd", "main.yaml", "workflows/main"])
def test_a_name_is_never_a_path(tmp_path, name):
    verdict = read_file(
        tree(tmp_path, main=workflow(f"- {{id: i, include: '{name}'}}"), other=BLOCK) / "main.yaml"
    )
    assert verdict.graph is None


LEAF = workflow("- {id: l, bash: 'echo $INPUTS_ITEM'}", "inputs: {item: {required: true}}").replace(
    "name: w", "name: leaf"
)
EACH = "- {id: a, bash: x}\n- {id: each, include: leaf, depends_on: [a], fan_out: {items: $a.output, as: item}"


def test_a_block_for_each_item_stays_a_node(tmp_path):
    graph = expanded(tmp_path, workflow(EACH + "}"), leaf=LEAF)
    found = by_id(graph)["each"].body
    assert found == Call(name="leaf", fan_out=FanOut(items="$a.output"), is_block=True)
    assert len(graph.files) == 2


@pytest.mark.parametrize(("nodes", "leaf", "message"), [
    (EACH.replace(", as: item", "") + "}", LEAF,
        ("'fan_out.as' is required on an include node so each runtime item has an explicit "
            "$INPUTS.<name> binding")),
    (EACH.replace("item}", "1x}") + "}", LEAF, "invalid fan-out input name '1x'"),
    (EACH.replace("item}", "thing}") + "}", LEAF, "does not declare input 'thing'"),
    (EACH + ", with: {item: 1}}", LEAF, "collides with a 'with:' key of the same name"),
    (EACH + ", mutates_checkout: false}", LEAF, "or set 'fan_out.max_parallel: 1'"),
    (EACH + "}", LEAF + "  - {id: w, wait: {duration_ms: 5}}\n",
        ("Node 'each': included block 'leaf' can pause at 'w', and a block that runs for each "
            "item cannot")),
    (EACH + "}", LEAF + "  - {id: q, include: w}\n", "include cycle detected: w -> leaf -> w"),
])  # fmt: skip
def test_a_block_for_each_item_is_checked_when_it_is_read(tmp_path, nodes, leaf, message):
    assert message in wrong(tmp_path, workflow(nodes), leaf=leaf)
