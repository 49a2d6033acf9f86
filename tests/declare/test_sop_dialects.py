"""SOPs as people write them: numbers, parameters, labels and fences that the format's own tools do
not foresee.
"""

from __future__ import annotations

import pytest

from pgflow.declare.sop import read_file
from tests.kits.sopkit import PARAMETERS, STEPS, constraints, graph, messages, prompts, read, sop

RULES = "\n\n**Constraints:**\n- You MUST do it"


def titles(text):
    return [(node.id, node.title) for node in graph(text).nodes]


def parameter(line):
    (found,) = graph(
        sop(parameters=f"{line}\n\n**Constraints for parameter acquisition:**\n- You MUST ask")
    ).inputs
    return found


def rules(*lines, label="**Constraints:**"):
    text = sop(steps="### 1. Look\n\n" + label + "\n" + "\n".join(lines))
    return [rule for rule in constraints(graph(text)) if rule.scope != "parameters"]


def remarks(**parts):
    return messages(read(sop(**parts)))


def test_a_sop_that_keeps_to_the_format_is_not_remarked_on():
    assert read(sop()).problems == ()


@pytest.mark.parametrize(
    ("heading", "node_id", "title"),
    [
        ("### 1. Set up", "step-1-set-up", "Set up"),
        ("### 0. Ramp-Up", "step-0-ramp-up", "Ramp-Up"),
        ("### 0.5. Load State", "step-0-5-load-state", "Load State"),
        ("### 0.5 Load State", "step-0-5-load-state", "Load State"),
        ("### 1) Set up", "step-1-set-up", "Set up"),
        ("### 1 - Set up", "step-1-set-up", "Set up"),
        ("### Step 1: Set up", "step-1-set-up", "Set up"),
        ("### Step 4B: Generate", "step-4b-generate", "Generate"),
        ("### Phase 2 \N{EN DASH} Plan", "step-2-plan", "Plan"),
        ("### **3. Bold**", "step-3-bold", "Bold"),
        ("### 4. With `code` ##", "step-4-with-code", "With `code`"),
        ("   ### 5. Indented", "step-5-indented", "Indented"),
        ("### 6. Запуск", "step-6", "Запуск"),
        ("### 7. Café crème", "step-7-cafe-creme", "Café crème"),
        ("### 8.", "step-8", ""),
        (
            "### 9. " + "word " * 20,
            "step-9-word-word-word-word-word-word-word-word",
            ("word " * 20).strip(),
        ),
    ],
)
def test_a_step_is_known_by_its_number(heading, node_id, title):
    assert titles(sop(steps=heading + RULES)) == [(node_id, title)]


def test_steps_0_and_0_5_come_in_their_order_and_wait_for_each_other():
    text = sop(
        steps="".join(f"### {number} Go{RULES}\n\n" for number in ("0.", "0.5.", "1.", "2."))
    )
    nodes = graph(text).nodes
    assert [node.id for node in nodes] == ["step-0-go", "step-0-5-go", "step-1-go", "step-2-go"]
    found = [node.depends_on for node in nodes]
    assert found == [(), ("step-0-go",), ("step-0-5-go",), ("step-1-go",)]
    assert read(text).problems == ()


def test_a_number_is_not_taken_from_a_word():
    assert titles(sop(steps=f"### 3D model{RULES}\n\n### 2nd look{RULES}")) == [
        ("step-1-3d-model", "3D model"),
        ("step-2-2nd-look", "2nd look"),
    ]


def test_steps_without_numbers_are_counted():
    verdict = read(sop(steps=f"### Look{RULES}\n\n### Tell{RULES}"))
    assert [node.id for node in verdict.graph.nodes] == ["step-1-look", "step-2-tell"]
    assert messages(verdict) == ["No numbered steps found (format: ### 1. Step Name)"]


def test_a_list_of_steps_is_a_step_an_item():
    nodes = graph(sop(steps="1. Look at it\n2. Tell what you saw:\n   - all of it\n\n3. Go")).nodes
    assert [node.id for node in nodes] == ["step-1", "step-2", "step-3"]
    assert "2. Tell what you saw:\n   - all of it\n</content>" in nodes[1].body.text
    assert "3. Go" not in nodes[1].body.text


def test_steps_that_are_prose_are_one_step():
    (node,) = graph(sop(steps="Just look at it.\n\n**Constraints:**\n- You MUST look")).nodes
    assert node.id == "step-1" and "Just look at it." in node.body.text
    assert [rule.text for rule in node.body.constraints if not rule.scope] == ["You MUST look"]


def test_sections_may_be_the_steps():
    text = sop(
        steps_heading="",
        steps=f"## Step 1: Look{RULES}\n\n### 1.1 Left\n\nThere.\n\n## Step 2: Tell{RULES}",
    )
    verdict = read(text)
    found = [(node.id, len(node.body.substeps)) for node in verdict.graph.nodes]
    assert found == [("step-1-look", 1), ("step-2-tell", 0)]
    assert "Missing required section: Steps" in messages(verdict)


def test_an_sop_without_a_section_of_steps_is_read_where_its_steps_are():
    rest = f"## How to do it\n\nMind the gap.\n\n{STEPS}"
    verdict = read(sop(steps_heading="", steps="", after=rest).replace("## Parameters", "## Given"))
    assert [node.title for node in verdict.graph.nodes] == ["Look", "Tell"]
    assert {
        "Missing required section: Steps",
        "Missing required section: Parameters",
        "Steps found in section 'How to do it'",
    } <= set(messages(verdict))


def test_a_section_of_steps_without_a_word_in_it_has_no_step():
    verdict = read(sop(steps=""))
    assert (verdict.graph, messages(verdict)[:1]) == (
        None,
        ["No numbered steps found (format: ### 1. Step Name)"],
    )


def test_bold_words_at_the_beginning_of_a_line_are_no_label():
    verdict = read(sop(steps=f"### 1. Look\n\n**Look** and see.{RULES}\n\n### 2. Tell{RULES}"))
    assert verdict.problems == ()
    assert "**Look** and see." in prompts(verdict.graph)[0]


def test_a_heading_without_a_number_belongs_to_the_step_before_it():
    verdict = read(
        sop(steps=f"### 1. Look\n\n### Hints\n\nMind the gap.{RULES}\n\n### 2. Tell{RULES}")
    )
    assert [node.title for node in verdict.graph.nodes] == ["Look", "Tell"]
    assert "Mind the gap." in verdict.graph.nodes[0].body.text
    assert messages(verdict) == ["Heading without a number among the steps: 'Hints'"]


def test_what_stands_before_the_first_step_is_said_to_all():
    assert all(
        "Mind the gap." in prompt
        for prompt in prompts(graph(sop(steps="Mind the gap.\n\n" + STEPS)))
    )


def test_numbered_headings_elsewhere_are_no_steps():
    assert [
        node.title
        for node in graph(
            sop(after="## Notes\n\n### 3. Things\n\nSome.\n\n### 1. Other\n\nMore.")
        ).nodes
    ] == ["Look", "Tell"]


def test_substeps_have_their_own_numbers_and_constraints():
    steps = f"### 2. Explore\n\n#### 2.1 Analyze{RULES}\n\n#### Notes\n\nNone.\n\n#### 2.2. Research{RULES} twice\n\n#### Step 2B-i: Odd"
    (node,) = graph(sop(steps=steps)).nodes
    found = [(part.number, part.title) for part in node.body.substeps]
    assert found == [("2.1", "Analyze"), ("2.2", "Research"), ("2B-i", "Odd")]
    assert [rule.scope for rule in node.body.constraints] == ["parameters", "2.1", "2.2"]


def test_doubled_and_backward_numbers_are_remarked_on_and_kept_apart():
    verdict = read(sop(steps=f"### 2. Go{RULES}\n\n### 1. Go{RULES}\n\n### 2. Go{RULES}"))
    assert [node.id for node in verdict.graph.nodes] == ["step-2-go", "step-1-go", "step-2-go-2"]
    assert messages(verdict) == ["Step 1 comes after step 2", "Step 2 is there twice"]


@pytest.mark.parametrize(("line", "required", "default"), [
    ("- **a** (required): x", True, ...),
    ("- **a** (optional): x", False, ...),
    ('- **a** (optional, default: "lax"): x', False, "lax"),
    ("- **a** (optional, default: `lax`): x", False, "lax"),
    ("- **a** (optional, default: `2`): x", False, 2),
    ("- **a** (optional, default: true): x", False, True),
    ('- **a** (optional, default: "true"): x', False, "true"),
    ("- **a** (optional, default: 1.5): x", False, 1.5),
    ("- **a** (optional, default: none): x", False, None),
    ("- **a** (optional, default: current directory): x", False, "current directory"),
    ('- **a** (optional, default: ".agents/{b}"): x', False, ".agents/{b}"),
    ('- **a** (optional, default: "f(x)"): x', False, "f(x)"),
    ('- **a** (optional, default: "a, b"): x', False, "a, b"),
    ("- **a** (optional, default: `x`, only on Tuesdays): x", False, "x"),
    ("- **a** (optional, defaults to here): x", False, "here"),
    ("- **a** (default: 3): x", False, 3),
    ("- **a** (required on some systems, see note): x", True, ...),
    ("- **a** (required, see the `b` note (below)): x", True, ...),
    ("- **a** (string, required): x", True, ...),
    ("- **a** (**required**): x", True, ...),
    ("- **a** (not required): x", False, ...),
    ("- **`a`** (required): x", True, ...),
    ("- `a` (required): x", True, ...),
    ("- a (required): x", True, ...),
    ("* __a__ (required) - x", True, ...),
    ("- **a** (Required): x", True, ...),
    (("- **a** (optional, default: \N{LEFT DOUBLE QUOTATION MARK}y"
        "\N{RIGHT DOUBLE QUOTATION MARK}): x"), False, "y"),
])  # fmt: skip
def test_a_parameter_says_whether_it_is_needed_and_its_default(line, required, default):
    found = parameter(line)
    assert (found.name, found.required, found.description) == ("a", required, "x")
    got = found.default if found.has_default else ...
    assert got == (default if default not in (None, ...) or required else "")


def test_a_description_has_its_sub_bullets_and_later_lines():
    found = parameter("- **a** (required): One of:\n  - File paths\n  - A diff\n\n  Not both.")
    assert found.description == "One of:\n- File paths\n- A diff\n\nNot both."


def test_parameters_may_stand_in_a_table():
    table = """| Parameter | Required | Description |
|---|---|---|
| `url` | Required unless `file` has it | Where |
| `mode` | Required | One of `a` \\| `b` |
| `dir` | Optional, default `{root}/x/` | Which |
| `flag` | Optional, default false | Whether |"""
    inputs = graph(sop(parameters=table)).inputs
    assert [(each.name, each.required, each.default) for each in inputs] == [
        ("url", False, ""),
        ("mode", True, None),
        ("dir", False, "{root}/x/"),
        ("flag", False, False),
    ]
    assert inputs[1].description == "One of `a` | `b`"
    assert [each.position.line for each in inputs] == [11, 12, 13, 14]
    assert (
        "Parameter 'url' is required only under a condition: Required unless `file` has it"
        in remarks(parameters=table)
    )


def test_a_condition_on_being_required_is_told_and_not_asked_for():
    text = sop(parameters="- **a** (required if b is set): x")
    assert not graph(text).nodes[0].gates
    assert graph(text).inputs[0].description == "x (required if b is set)"


def test_parameters_may_be_lines_without_bullets():
    lines = """What it needs:

**alarm_name** (required): The alarm
to configure.
**region** (optional, default: "us-east-1"): Where.

**Note** the bold words that declare nothing."""
    inputs = graph(sop(parameters=lines)).inputs
    found = [(each.name, each.required, each.default) for each in inputs]
    assert found == [("alarm_name", True, None), ("region", False, "us-east-1")]
    assert inputs[0].description == "The alarm\nto configure."


def test_lists_of_required_and_of_optional_parameters_say_so_for_each():
    inputs = graph(sop(parameters="**Required:**\n- **a**: x\n\n### Optional\n\n- **b**: y")).inputs
    assert [(each.name, each.required) for each in inputs] == [("a", True), ("b", False)]


def test_doubtful_parameters_are_remarked_on():
    lines = "- **a** (optional): x\n- **Big-Name** (required): y\n- **a** (optional): z\n- **c**: w\n- nothing at all"
    assert remarks(parameters=lines) == [
        "Parameters section missing 'Constraints for parameter acquisition'",
        "Parameter names must use lowercase letters and underscores: 'Big-Name'",
        "Required parameter 'Big-Name' after the optional 'a'",
        "Parameter 'a' is declared twice",
        "Parameter 'c' is neither required nor optional",
        "Not a parameter (format: - **name** (required|optional[, default: value]): description)",
    ]
    assert [each.name for each in graph(sop(parameters=lines)).inputs] == ["a", "Big-Name", "c"]


def test_a_label_right_below_a_parameter_does_not_belong_to_it():
    text = sop(
        parameters="- **a** (required): x\n**Constraints for parameter acquisition:**\n- You MUST "
        "ask\n- You MAY guess"
    )
    assert graph(text).inputs[0].description == "x"
    found = [rule.text for rule in graph(text).nodes[0].body.constraints if rule.scope]
    assert found == ["You MUST ask", "You MAY guess"]


def test_other_words_for_the_acquisition_of_parameters_are_understood():
    text = sop(
        parameters="- **a** (required): x\n\n**Parameter acquisition rules:**\n\n- If all are "
        "there, You MUST proceed"
    )
    assert [rule.scope for rule in graph(text).nodes[0].body.constraints] == ["parameters", ""]
    assert len(graph(text).inputs) == 1


@pytest.mark.parametrize(
    "label",
    [
        "**Constraints:**",
        "**Constraints**:",
        "**Constraints**",
        "__Constraints:__",
        "Constraints:",
        "#### Constraints",
        "**Constraints:**\n",
        "Text.\n**Constraints:**",
    ],
)
def test_a_block_of_constraints_is_known_by_its_label(label):
    assert [rule.text for rule in rules("- You MUST a", "- You MAY b", label=label)] == [
        "You MUST a",
        "You MAY b",
    ]


@pytest.mark.parametrize(
    ("line", "level"),
    [
        ("You MUST go", "MUST"), ("It is REQUIRED to go", "MUST"), ("You SHALL go", "MUST"),
        ("You MUST NOT go", "MUST NOT"), ("You SHALL NOT go", "MUST NOT"), ("You MUST NEVER go", "MUST NOT"), ("NEVER go", "MUST NOT"),
        ("You SHOULD go", "SHOULD"), ("Going is RECOMMENDED", "SHOULD"),
        ("You SHOULD NOT go", "SHOULD NOT"), ("It is NOT RECOMMENDED", "SHOULD NOT"), ("You SHOULD NEVER go", "SHOULD NOT"),
        ("You MAY go", "MAY"), ("Going is OPTIONAL", "MAY"),
        ("You MAY go, but MUST come back", "MAY"), ("If it rains, You MUST stay", "MUST"),
        ("You **MUST NOT** go", "MUST NOT"), ("You **MUST** NOT go", "MUST NOT"),
        ("Say `You MUST` and You SHOULD go", "SHOULD"),
        ("When it rains:\n  - You SHOULD stay", "SHOULD"), ("You MAY do:\n  - what you MUST", "MAY"),
        ("You must go", None), ("MUSTER them", None), ("Go", None),
    ],
)  # fmt: skip
def test_the_level_is_the_first_keyword_of_the_sentence(line, level):
    assert [rule.level for rule in rules(f"- {line}")] == [level]


@pytest.mark.parametrize(("line", "because"), [
    ("You MUST NOT go because it rains", "it rains"),
    ("You MUST NOT go, since this wets you. Stay.", "this wets you."),
    ("You MUST NOT go as this could wet you", "this could wet you"),
    ("You MUST NOT go, as rain wets", "rain wets"),
    ("You MUST NOT go to avoid rain", "to avoid rain"),
    ("You MUST look because it\n  is there", "it is there"), ("You MUST NOT use it as a hat", ""),
    ("You MUST NOT list changes since the last one", ""), ("You MUST NOT go", ""),
])  # fmt: skip
def test_a_reason_is_kept_and_a_prohibition_without_one_remarked_on(line, because):
    (rule,) = rules(f"- {line}")
    assert rule.because == because
    remarked = any(
        each.startswith("Negative constraint without context")
        for each in remarks(steps=f"### 1. A\n\n**Constraints:**\n- {line}")
    )
    assert remarked == ("NOT" in line and not because)


def test_musts_come_first_and_what_has_no_level_stays_with_what_it_follows():
    lines = [
        "- You MAY a", "- You SHOULD b", "- and c", "- You MUST d", "- You SHOULD NOT e because f",
        "- You MUST NOT g because h",
    ]  # fmt: skip
    assert [
        rule.text
        for rule in graph(sop(steps="### 1. A\n\n**Constraints:**\n" + "\n".join(lines)))
        .nodes[0]
        .body.constraints[1:]
    ] == [
        "You MUST d",
        "You MUST NOT g because h",
        "You SHOULD b",
        "and c",
        "You SHOULD NOT e because f",
        "You MAY a",
    ]
    text = prompts(graph(sop(steps="### 1. A\n\n**Constraints:**\n" + "\n".join(lines))))[0]
    assert (
        "**Constraints:**\n- You MUST d\n- You MUST NOT g because h\n- You SHOULD b\n- and c\n- "
        "You SHOULD NOT e because f\n- You MAY a\n" in text
    )


def test_other_labels_quotes_and_text_end_a_block():
    for ending in (
        "**Expected Output:**\n- You MUST x",
        "> You MUST x\n> - y",
        "Example:\n\n- You MUST x",
        "---\n\n- You MUST x",
    ):
        assert [rule.text for rule in rules("- You MUST a", "", ending)] == ["You MUST a"], ending


def test_a_fence_at_the_margin_belongs_to_the_constraint_above_it():
    first, second = rules(
        "- You MUST write:", "```", "- You MUST not be counted", "```", "- You MUST stop"
    )
    assert first.text == "You MUST write:\n```\n- You MUST not be counted\n```"
    assert second.text == "You MUST stop"


def test_a_constraint_may_stand_beside_its_label_and_in_a_numbered_list():
    found = [rule.text for rule in rules("", label="**Constraints:** You MUST go")]
    assert found == ["You MUST go"]
    assert [rule.text for rule in rules("1. You MUST a", "2. You MUST b")] == [
        "You MUST a",
        "You MUST b",
    ]


def test_constraints_of_other_sections_hold_for_every_step():
    text = sop(
        before="## Execution Rules\n\n**Constraints:**\n- You MUST NOT run",
        steps="**Constraints:**\n- You MAY rest\n\n" + STEPS,
    )
    for node in graph(text).nodes:
        found = [(rule.scope, rule.text) for rule in node.body.constraints][-2:]
        assert found == [("Execution Rules", "You MUST NOT run"), ("Steps", "You MAY rest")]
        assert "- You MUST NOT run" in node.body.text and "- You MAY rest" in node.body.text
    assert messages(read(text)) == ["Negative constraint without context: You MUST NOT run"]


def test_rules_that_say_nothing_certain_are_remarked_on():
    assert remarks(
        steps="### 1. A\n\n**Constraints:**\n- Go\n\n### 2. B\n\nText.\n\n### 3. "
        "C\n\n**Constraints:**\n\nGo."
    ) == [
        "No RFC 2119 keyword in constraint: Go",
        "Step without constraints: 2. B",
        "Step without constraints: 3. C",
        "No bullets under Constraints",
    ]


@pytest.mark.parametrize("fence", [
    "```\n{}\n```", "~~~\n{}\n```\n~~~", "````markdown\n```\n{}\n```\n````",
    "- like this:\n  ```\n  {}\n  ```", "1. like this:\n\n    ```\n    {}\n    ```",
    "<!--\n{}\n-->", "text\n\n    {}",
])  # fmt: skip
def test_headings_in_examples_are_none(fence):
    hidden = fence.format(
        "## Steps\n### 9. Hidden".replace(
            "\n", "\n" + " " * (len(fence.split("{}")[0].split("\n")[-1]))
        )
    )
    text = sop(
        before=f"## Notes\n\n{hidden}",
        steps=f"### 1. Look\n\n{hidden}\n\n**Constraints:**\n- You MUST look",
    )
    assert [node.title for node in graph(text).nodes] == ["Look"]
    assert read(text).problems == ()


def test_a_fence_that_is_not_closed_is_reported_with_its_line():
    verdict = read(sop(after="## Notes\n\n```\nlost"))
    found = next(
        problem
        for problem in verdict.problems
        if problem.message == "This code fence is never closed"
    )
    assert sop(after="## Notes\n\n```\nlost").split("\n")[found.line - 1] == "```"


def test_a_rule_below_a_sentence_makes_it_no_heading_and_a_glued_sign_is_reported():
    verdict = read(sop(before="Some words\n---\n##Notes\n"))
    assert len(verdict.graph.nodes) == 2
    assert messages(verdict) == ["Not a heading: ##Notes"]


def test_sections_before_and_after_the_steps_are_in_every_prompt_once():
    text = sop(before="## Mode Behavior\n\nQuietly.", after="## Best Practices\n\nSlowly.")
    for prompt in prompts(graph(text)):
        assert (
            prompt.count("Quietly.")
            == prompt.count("Slowly.")
            == prompt.count("Looks at things.")
            == 1
        )


def test_front_matter_is_left_out():
    verdict = read("---\nname: x\ndescription: You MUST\n---\n\n" + sop())
    assert messages(verdict) == ["Front matter is not part of the format"]
    assert "name: x" not in prompts(verdict.graph)[0]
    assert verdict.graph.nodes[0].position.line == read(sop()).graph.nodes[0].position.line + 5


def test_a_second_sop_in_the_file_is_only_text_to_the_first():
    verdict = read(
        sop() + "\n# Another\n\n## Steps\n\n### 1. Hide\n\n**Constraints:**\n- You MUST hide\n"
    )
    assert [node.title for node in verdict.graph.nodes] == ["Look", "Tell"]
    assert all("You MUST hide" in prompt for prompt in prompts(verdict.graph))
    assert messages(verdict) == ["A second title: 'Another'"]


def test_missing_parts_are_named_in_the_validators_words():
    assert messages(read(f"## Steps\n\n{STEPS}")) == [
        "Missing required section: Title (H1)",
        "Missing required section: Overview",
        "Missing required section: Parameters",
        "Recommended section missing: Examples",
        "Recommended section missing: Troubleshooting",
    ]
    assert "Parameters section must have blank line after heading" in messages(
        read(sop().replace("## Parameters\n\n", "## Parameters\n"))
    )
    assert "No Constraints sections found in steps" in remarks(steps="### 1. A\n\nText.")
    assert "A second section 'Overview'" in remarks(after="## Overview\n\nAgain.")


def test_without_steps_there_is_no_graph():
    verdict = read(sop(steps="", steps_heading=""))
    assert (verdict.ok, verdict.graph) == (False, None)
    assert [problem.message for problem in verdict.errors] == [
        "No numbered steps found (format: ### 1. Step Name)"
    ]


def test_the_description_ends_before_a_subheading_and_the_prompts_have_all_of_it():
    text = sop().replace("Looks at things.", "Looks\nat things.\n\n### Scope\n\nAll.")
    assert graph(text).description == "Looks at things."
    assert "### Scope\n\nAll." in prompts(graph(text))[1]


def test_the_text_of_an_sop_is_no_template():
    text = sop(before="## Notes\n\nRun `echo $ARGUMENTS $step.output.x $INPUTS.topic $HOME`.")
    prompt = prompts(graph(text))[0]
    assert "Run `echo ${ARGUMENTS} ${step.output}.x ${INPUTS.topic} $HOME`." in prompt
    assert (
        prompt.count("$ARGUMENTS") == 1
        and '<parameter name="topic">$INPUTS.topic</parameter>' in prompt
    )
    assert messages(read(text)) == [
        f"{each} is not filled in" for each in ("$ARGUMENTS", "$step.output", "$INPUTS.topic")
    ]


def test_a_prompt_has_the_output_of_the_step_before_and_the_users_message():
    first, second = prompts(graph(sop()))
    assert ".output" not in first
    assert (
        "What the step before, 1. Look, said:\n\n"
        "<previous-step>\n$step-1-look.output\n</previous-step>\n"
    ) in second
    assert first.endswith("<user-input>\n$ARGUMENTS\n</user-input>\n")


def mentioned(sentence, *siblings):
    verdict = read(
        sop(steps=f"### 1. Go\n\n{sentence}{RULES}"), siblings=["looking.sop.md", *siblings]
    )
    return [use.location for use in verdict.graph.nodes[0].reads], messages(verdict)


@pytest.mark.parametrize(("sentence", "found"), [
    ("Run `code-assist.sop.md` then.", ["code-assist.sop.md"]),
    ("Run [it](./code-assist.sop.md).", ["code-assist.sop.md"]),
    ("Run `code-assist` then.", ["code-assist.sop.md"]),
    ("Run code-assist on each.", ["code-assist.sop.md"]),
    ("Run the PDD script first.", ["pdd.sop.md"]),
    ("Run `pdd` and code-assist.", ["pdd.sop.md", "code-assist.sop.md"]),
    ("Run code-assist. And code-assist again.", ["code-assist.sop.md"]), ("Run pdd first.", []),
    ("Look into eval/code-assist/x and code-assist-2.", []),
    ("This is the looking SOP, `looking.sop.md`.", []), ("```\nRun code-assist.sop.md\n```", []),
])  # fmt: skip
def test_an_sop_that_is_named_and_stands_beside_is_a_use(sentence, found):
    assert mentioned(sentence, "code-assist.sop.md", "pdd.sop.md") == (found, [])


def test_a_name_that_two_files_have_and_a_file_that_is_not_there_are_reported():
    uses, said = mentioned("Run `code-assist`.", "code-assist.sop.md", "code-assist.script.md")
    assert (uses, said) == (
        [],
        ["'code-assist' could be code-assist.script.md or code-assist.sop.md"],
    )
    found = mentioned("Run `audit.sop.md`.")
    assert found == (["audit.sop.md"], ["SOP 'audit' is not in the same directory"])


def test_without_knowing_the_directory_only_file_names_are_taken():
    verdict = read(sop(steps=f"### 1. Go\n\nRun `code-assist` or `audit.sop.md`.{RULES}"))
    assert [use.location for use in verdict.graph.nodes[0].reads] == ["audit.sop.md"]
    assert verdict.problems == ()


def test_a_reader_finds_the_siblings_itself(tmp_path):
    (tmp_path / "code-assist.script.md").write_text(sop())
    (tmp_path / "looking.sop.md").write_text(
        sop(parameters=PARAMETERS, steps=f"### 1. Go\n\nRun `code-assist`.{RULES}")
    )
    (use,) = read_file(tmp_path / "looking.sop.md").graph.nodes[0].reads
    assert (use.location, use.position.line) == ("code-assist.script.md", 18)


@pytest.mark.parametrize(
    ("listed", "header"), [("- **task** (required): x", "Name"), ("", "Choice")], ids=["list", "no"]
)
def test_a_table_that_declares_no_parameters_is_prose(listed, header):
    table = f"| {header} | Meaning |\n|---|---|\n| auto | alone |"
    verdict = read(
        f"# T\n\n## Overview\nx\n\n## Parameters\n\n{listed}\n\n{table}\n\n## Steps\n\n### 1. Do\nx\n"
    )
    assert verdict.graph is not None
    assert [one.name for one in verdict.graph.inputs] == (["task"] if listed else [])
    assert not any("auto" in problem.message for problem in verdict.problems)
