"""workflow.yaml and frontmatter: every field, what holds where both speak, branches and parallel
fan-out.
"""

from __future__ import annotations

from textwrap import dedent

import pytest

from pgflow.declare import icm
from pgflow.declare.graph import Graph
from pgflow.declare.graph.problems import Verdict
from pgflow.declare.play.dryrun import dry_run
from tests.kits.icmkit import CONTRACT, workspace

STATE = """
name: tested
state:
  request: { type: signal, schema: { kind: string, pages: integer } }
  plan: { type: file, written_by: 01-plan, schema: { kind: string } }
  video: { type: file, location: out/video.md, written_by: 02-video, optional: true }
  draft: { type: file, location: shared/draft.md }
stages:
"""


def read(stages: str, head: str = STATE) -> Verdict:
    return icm.read_text(dedent(head) + dedent(stages), "workflow.yaml")


def graph(stages: str, head: str = STATE) -> Graph:
    verdict = read(stages, head)
    assert verdict.errors == ()
    assert verdict.graph is not None
    return verdict.graph


def errors(stages: str, head: str = STATE) -> list[str]:
    verdict = read(stages, head)
    assert verdict.graph is None
    return [problem.message for problem in verdict.errors]


LINE = """
    - { id: 01-plan }
    - { id: 02-video }
    - { id: 03-end }
"""


def test_every_field_of_a_stage_is_in_the_graph():
    node = graph(
        """
        - id: 01-plan
          reads: [draft]
          writes: [plan]
          gate: explicit_request
          interrupt_before: true
          retry: { max_attempts: 4, delay: 5s, on_error: all }
          timeout: 15m
          side_effects:
            - { system: email, idempotency_key: request.kind, compensation: send_correction, description: mails the plan }
          compensations: { send_correction: Send a correction to the same people. }
        - { id: 02-video, next: END }
        """
    ).node("01-plan")
    assert [use.artifact for use in node.reads] == ["draft"]
    assert [use.artifact for use in node.writes] == ["plan"]
    assert [gate.kind for gate in node.gates] == ["request", "interrupt", "signal"]
    assert (node.retry.max_retries, node.retry.delay_ms, node.retry.on_error) == (4, 5_000, "all")
    assert node.timeout_ms == 900_000
    (effect,) = node.effects
    assert (effect.system, effect.idempotency_key, effect.compensation, effect.description) == (
        "email", "request.kind", "send_correction", "mails the plan",
    )  # fmt: skip
    found = [(c.name, c.description) for c in node.compensations]
    assert found == [("send_correction", "Send a correction to the same people.")]


@pytest.mark.parametrize(("written", "milliseconds"), [
    ("90", 90_000), ("1.5", 1_500), ("500ms", 500), ("90s", 90_000), ("2h", 7_200_000),
    ("7d", 604_800_000),
])  # fmt: skip
def test_durations_are_seconds_or_have_a_unit(written, milliseconds):
    assert (
        graph(f"- {{ id: 01-plan, timeout: {written} }}\n- {{ id: 02-video }}")
        .node("01-plan")
        .timeout_ms
        == milliseconds
    )


def test_a_retry_may_be_a_number():
    assert (
        graph("- { id: 01-plan, retry: 3 }\n- { id: 02-video }").node("01-plan").retry.max_retries
        == 3
    )


def test_a_compensation_may_be_the_workflows_or_an_instruction():
    found = graph(
        """
        - { id: 01-plan, side_effects: [{ system: a, idempotency_key: plan, compensation: undo }] }
        - { id: 02-video, side_effects: [{ system: b, idempotency_key: plan, compensation: tell a human }] }
        """,
        STATE.replace("stages:", "compensations: { undo: Take it back. }\nstages:"),
    )
    got = [(c.name, c.description) for c in found.node("01-plan").compensations]
    assert got == [("undo", "Take it back.")]
    assert found.node("02-video").effects[0].compensation == "tell a human"


def test_a_schema_may_be_a_json_schema():
    head = STATE.replace(
        "{ kind: string, pages: integer }",
        "{ type: object, properties: { kind: { enum: [a, b] } } }",
    )
    found = graph(
        "- { id: 01-plan, side_effects: [{ system: a, idempotency_key: request.kind }] }\n- { id: "
        "02-video }",
        head,
    )
    assert found.artifacts[0].json_schema == {
        "type": "object",
        "properties": {"kind": {"enum": ["a", "b"]}},
    }


@pytest.mark.parametrize(("stage", "message"), [
    ("reads: [plann]", "reads: the state has no entry 'plann'; did you mean 'plan'?"),
    ("reads: { a: 1 }", "reads must be a list, not a mapping"),
    ("gate: sometimes", "gate must be explicit_request, not 'sometimes'"),
    ("interrupt_before: 'yes'", "interrupt_before must be true or false, not 'yes'"),
    ("timeout: soon",
        "timeout must be a duration: seconds, or a text like 90s, 15m, 2h, 7d or seven days, not 'soon'"),
    ("timeout: 0", "timeout must be a duration"),
    ("wait: soon", "wait must be a time like 90s, seven days, tomorrow morning"),
    ("wait: monday 9:00 Mars/Base", "wait must be a time like"),
    ("on_deadline: panic", "on_deadline must be fail or skip, not 'panic'"),
    ("side_effects: [{ system: a, idempotency_key: 'x-{request.colour}' }]",
        "'request' has no field 'colour' (it has kind, pages)"),
    ("retry: -1", "retry must be a whole number from 0 to 100, not -1"),
    ("retry: { delay: 1s }", "retry must say max_attempts"),
    ("retry: { max_attempts: 1, on_error: some }",
        "on_error must be transient or all, not 'some'"),
    ("side_effects: [{ idempotency_key: plan }]", "names no system"),
    ("side_effects: [{ system: a, idempotency_key: request.colour }]",
        "'request' has no field 'colour' (it has kind, pages)"),
    ("side_effects: [{ system: a, idempotency_key: requests.kind }]",
        "the state has no entry 'requests'; did you mean 'request'?"),
    ("side_effects: [{ system: a, idempotency_key: '.kind' }]", "is not a path into the state"),
    ("side_effects: [{ system: a, idempotency_key: 'request kind' }]",
        "is not a path into the state"),
    ("side_effects: [{ system: a, idempotency_key: request.kind.deeper }]",
        "'request.kind' has no field 'deeper'"),
    ("side_effects: [{ system: a, idempotency_key: plan, compensation: undo }]",
        "compensation 'undo' is not declared"),
    ("next: 09-nowhere", "stage '01-plan': next '09-nowhere' is not a stage"),
])  # fmt: skip
def test_a_wrong_field_is_one_clear_error_where_it_stands(stage, message):
    verdict = read(
        f"- {{ id: 02-video }}\n- id: 01-plan\n  {stage}\n",
        STATE.replace("written_by: 02-video, ", ""),
    )
    (problem,) = verdict.errors if "next" not in stage else verdict.errors[:1]
    assert message in problem.message
    assert (problem.line, verdict.graph) == (11, None)


def test_side_effects_without_a_key_and_unknown_keys_are_warned_of():
    verdict = read(
        "- { id: 01-plan, side_effects: [{ system: slack }], read: [plan] }\n- { id: 02-video }"
    )
    assert [(p.message, p.hint) for p in verdict.warnings] == [
        ("unknown key 'read' will be ignored", "Did you mean 'reads'?"),
        ("the side effect on 'slack' has no idempotency_key: a retry may do it twice", ""),
    ]
    assert verdict.ok


def test_reading_what_is_written_later_is_warned_of():
    verdict = read("- { id: 01-plan, reads: [video] }\n- { id: 02-video, writes: [video] }")
    found = [p.message for p in verdict.warnings]
    assert found == ["stage '01-plan' reads 'video', which '02-video' has not written by then"]


@pytest.mark.parametrize(("head", "message"), [
    (STATE.replace("type: signal", "type: message"),
        "state.request.type must be file or signal, not 'message'"),
    (STATE.replace("written_by: 01-plan", "written_by: 01-plane"),
        "state entry 'plan' is written by '01-plane', which is not a stage"),
    (STATE.replace("pages: integer", "pages: number of pages"),
        "must be a type (string, number,"),
    (STATE.replace("optional: true", "optional: perhaps"),
        "state.video.optional must be true or false, not 'perhaps'"),
])  # fmt: skip
def test_a_wrong_state_entry_is_one_clear_error(head, message):
    (said,) = errors(LINE, head)
    assert message in said


def test_without_next_stages_follow_each_other():
    assert [node.depends_on for node in graph(LINE).nodes] == [(), ("01-plan",), ("02-video",)]


def test_a_list_fans_out_and_the_stage_that_both_lead_to_joins():
    found = graph(
        """
        - { id: 01-plan, next: [02-video, 02-audio] }
        - { id: 02-video, next: 03-join }
        - { id: 02-audio, next: 03-join }
        - { id: 03-join, next: END }
        """
    )
    assert found.node("02-video").depends_on == found.node("02-audio").depends_on == ("01-plan",)
    assert (found.node("03-join").depends_on, found.node("03-join").trigger_rule) == (
        ("02-video", "02-audio"),
        "all_success",
    )


MAPPING = """
    - id: 01-plan
      next: { 02-video: plan.kind == 'video', 02-audio: "plan.kind == 'audio' || plan.kind == 'both'", 03-join: else }
    - { id: 02-video, next: 03-join }
    - { id: 02-audio, next: 03-join }
    - { id: 03-join, next: END }
"""
LISTED = """
    - id: 01-plan
      next:
        - { to: 02-video, when: "plan.kind == 'video'" }
        - { to: 02-audio, when: "plan.kind == 'audio' || plan.kind == 'both'" }
        - { to: 03-join, else: true }
    - { id: 02-video, next: 03-join }
    - { id: 02-audio, next: 03-join }
    - { id: 03-join, next: END }
"""


@pytest.mark.parametrize("stages", [MAPPING, LISTED], ids=["mapping", "list"])
@pytest.mark.parametrize(("kind", "ran"), [
    ("video", ["01-plan", "02-video", "03-join"]), ("audio", ["01-plan", "02-audio", "03-join"]),
    ("both", ["01-plan", "02-audio", "03-join"]), ("none", ["01-plan", "03-join"]),
])  # fmt: skip
def test_the_branch_whose_condition_holds_is_taken(stages, kind, ran):
    stubs = {"01-plan": {"kind": kind}, "02-video": "made", "02-audio": "made", "03-join": "joined"}
    result = dry_run(graph(stages), stubs=stubs)
    assert sorted(entry.id for entry in result.trace if entry.state == "stubbed") == ran
    assert result.outcome == "completed"


@pytest.mark.parametrize(
    ("kind", "ran"), [("video", ["01-plan", "02-video", "03-more"]), ("none", ["01-plan"])]
)
def test_what_comes_after_a_branch_that_is_not_taken_is_left_out(kind, ran):
    found = graph(
        """
        - { id: 01-plan, next: { 02-video: plan.kind == 'video', END: else } }
        - { id: 02-video, next: 03-more }
        - { id: 03-more, next: END }
        """
    )
    result = dry_run(found, stubs={"01-plan": {"kind": kind}, "02-video": "v", "03-more": "m"})
    assert [entry.id for entry in result.trace if entry.state == "stubbed"] == ran


@pytest.mark.parametrize(("kind", "ran"), [
    ("video", ["01-plan", "02-video", "03-join"]), ("audio", ["01-plan", "03-join"]),
    ("none", ["01-plan"]),
])  # fmt: skip
def test_a_join_of_a_branch_and_a_way_without_condition_runs_only_if_one_of_them_is_gone(kind, ran):
    found = graph(
        """
        - { id: 01-plan, next: { 02-video: plan.kind == 'video', 03-join: plan.kind == 'audio' } }
        - { id: 02-video, next: 03-join }
        - { id: 03-join, next: END }
        """
    )
    result = dry_run(found, stubs={"01-plan": {"kind": kind}, "02-video": "v", "03-join": "j"})
    assert [entry.id for entry in result.trace if entry.state == "stubbed"] == ran


def test_a_condition_names_the_stage_that_writes_what_it_compares_and_signals_by_name():
    found = graph(
        """
        - { id: 01-plan, next: { 02-video: "plan.kind == 'video' && request.pages > 3", END: else } }
        - { id: 02-video, next: END }
        """
    )
    when = found.node("02-video").when
    assert when.text == "$01-plan.output.kind == 'video' && $request.output.pages > 3"
    got = [(atom.reference, atom.operator, atom.literal) for atom in when.any_of[0]]
    assert got == [("$01-plan.output.kind", "==", "video"), ("$request.output.pages", ">", "3")]


def test_else_is_the_negation_of_the_other_conditions():
    found = graph(
        """
        - { id: 01-plan, next: { 02-video: "plan.kind == 'a' && request.pages > 3 || plan.kind == 'b'", 03-rest: else } }
        - { id: 02-video, next: END }
        - { id: 03-rest, next: END }
        """
    )
    assert found.node("03-rest").when.text == (
        "$01-plan.output.kind != 'a' && $01-plan.output.kind != 'b' || $request.output.pages <= 3 "
        "&& $01-plan.output.kind != 'b'"
    )


def test_stages_on_request_one_after_the_other_are_both_passed_over():
    found = graph(
        """
        - { id: 01-plan }
        - { id: 02-video, gate: explicit_request }
        - { id: 03-more, gate: explicit_request }
        - { id: 04-end }
        """
    )
    last = found.node("04-end")
    assert (last.depends_on, last.trigger_rule) == (
        ("03-more", "02-video", "01-plan"),
        "none_failed_min_one_success",
    )


@pytest.mark.parametrize(("stages", "message"), [
    ("- { id: 01-plan, next: 02-video }\n- { id: 02-video, next: 01-plan }",
        "Cycle detected among stages: 01-plan, 02-video"),
    ("- { id: 01-plan, next: 01-plan }\n- { id: 02-video }",
        "Cycle detected among stages: 01-plan"),
    ("- { id: 01-plan, next: END }\n- { id: 02-video }", "stage '02-video' comes after none"),
    (("- { id: 01-plan, next: [02-video, 03-b] }\n- { id: 02-video, next: END }\n- { id: "
        "03-b }"), "stage '03-b' does not say what comes next"),
    ("- { id: 01-plan, next: { 02-video: else } }\n- { id: 02-video, next: END }",
        "stage '01-plan': use else once"),
    ("- { id: 01-plan, next: { 02-video: 'plan.kind is video' } }\n- { id: 02-video }",
        "condition 'plan.kind is video' cannot be read"),
    ("- { id: 01-plan, next: { 02-video: \"plan.colour == 'red'\" } }\n- { id: 02-video }",
        "'plan' has no field 'colour'"),
    ("- { id: 01-plan }\n- { id: 01-plan }\n- { id: 02-video }",
        "Duplicate stage id: '01-plan'"),
    ("- { name: 01-plan }\n- { id: 02-video }", "stages[0] has no id"),
    ("- { id: ../01-plan }\n- { id: 02-video }", "'../01-plan' cannot be the id of a stage"),
    ("- just text", "stages[0] must be a mapping, not 'just text'"),
])  # fmt: skip
def test_a_wrong_order_of_stages_is_said(stages, message):
    assert any(said.startswith(message) or message in said for said in errors(stages, STATE)), (
        errors(stages, STATE)
    )


def test_a_workflow_has_stages():
    assert errors("", "name: empty") == ["workflow.yaml lists no stages"]
    assert errors("", "stages: []") == ["workflow.yaml lists no stages"]


def test_a_join_behind_every_branch_has_no_condition():
    join = graph(MAPPING).node("03-join")
    assert (join.depends_on, join.when) == (("01-plan", "02-video", "02-audio"), None)


def test_conditions_that_nobody_could_write_out_are_refused():
    parts = " || ".join(f"plan.kind == 'a{n}' && request.pages > {n}" for n in range(12))
    (said,) = errors(
        f'- {{ id: 01-plan, next: {{ 02-video: "{parts}", 03-b: else }} }}\n- {{ id: 02-video, '
        f"next: END }}\n- {{ id: 03-b, next: END }}"
    )
    assert "too many for an else" in said


FLOW = """
    name: both
    state:
      rules: { type: file, location: stages/01-a/references/rules.md }
      result: { type: file, location: stages/01-a/output/result.md, written_by: 01-a }
      extra: { type: file, location: shared/extra.md }
    stages:
      - { id: 01-a, reads: [rules], writes: [result], timeout: 1m }
"""


def test_frontmatter_goes_before_workflow_yaml_and_the_difference_is_said(tmp_path):
    front = "---\nstage_id: 01-a\nreads: [rules, extra]\ntimeout: 2m\n---\n"
    verdict = icm.read_workspace(workspace(tmp_path, {"01-a": front + dedent(CONTRACT)}, FLOW))
    node = verdict.graph.nodes[0]
    assert [use.artifact for use in node.reads if use.artifact] == ["rules", "extra"]
    assert node.timeout_ms == 120_000
    assert [(p.message, p.line) for p in verdict.warnings] == [
        (
            (
                "stages/01-a/CONTEXT.md: reads of stage '01-a' differs from workflow.yaml; this one "
                "is used"
            ),
            3,
        ),
        (
            (
                "stages/01-a/CONTEXT.md: timeout of stage '01-a' differs from workflow.yaml; this one "
                "is used"
            ),
            4,
        ),
    ]


def test_a_declared_read_has_the_scope_and_reason_of_its_row(tmp_path):
    verdict = icm.read_workspace(workspace(tmp_path, {"01-a": CONTRACT}, FLOW))
    first = verdict.graph.nodes[0].reads[0]
    assert (first.artifact, first.location, first.scope, first.why, first.position.line) == (
        "rules", "references/rules.md", "Full file", "The rules", 9,
    )  # fmt: skip
    assert verdict.problems == ()


def test_a_row_that_the_declaration_leaves_out_is_left_out_with_a_warning(tmp_path):
    verdict = icm.read_workspace(
        workspace(tmp_path, {"01-a": CONTRACT}, FLOW.replace("reads: [rules]", "reads: [extra]"))
    )
    assert [use.artifact for use in verdict.graph.nodes[0].reads if use.artifact] == ["extra"]
    assert [p.message for p in verdict.warnings] == [
        (
            "stages/01-a/CONTEXT.md: 'references/rules.md' (rules) is not among the declared reads and "
            "is left out"
        )
    ]


def test_a_row_that_the_state_does_not_know_always_holds(tmp_path):
    flow = FLOW.replace(
        "      rules: { type: file, location: stages/01-a/references/rules.md }\n", ""
    ).replace("reads: [rules]", "reads: [extra]")
    node = icm.read_workspace(workspace(tmp_path, {"01-a": CONTRACT}, flow)).graph.nodes[0]
    found = [(use.artifact, use.location) for use in node.reads][:2]
    assert found == [(None, "references/rules.md"), ("extra", None)]
    assert "Read: extra (../../shared/extra.md)." in node.body.text


def test_frontmatter_alone_is_checked_against_what_the_prose_writes(tmp_path):
    front = "---\nside_effects: [{ system: git, idempotency_key: resultt }]\n---\n"
    verdict = icm.read_workspace(workspace(tmp_path, {"01-a": front + dedent(CONTRACT)}))
    assert [(p.message, p.line) for p in verdict.errors] == [
        (
            (
                "stages/01-a/CONTEXT.md: side_effects[0].idempotency_key 'resultt': the state has no "
                "entry 'resultt'; did you mean 'result'?"
            ),
            2,
        )
    ]


def test_positions_below_frontmatter_are_those_of_the_file(tmp_path):
    verdict = icm.read_workspace(
        workspace(tmp_path, {"01-a": "---\nstage_id: 01-a\n---\n" + dedent(CONTRACT)})
    )
    node = verdict.graph.nodes[0]
    lines = (tmp_path / "stages/01-a/CONTEXT.md").read_text().split("\n")
    assert "references/rules.md" in lines[node.reads[0].position.line - 1]
    assert lines[node.position.line - 1] == "# A stage"


def test_a_stage_may_be_called_otherwise_than_its_folder(tmp_path):
    flow = FLOW.replace("id: 01-a", "id: first").replace("written_by: 01-a", "written_by: first")
    verdict = icm.read_workspace(
        workspace(tmp_path, {"01-a": "---\nstage_id: first\n---\n" + dedent(CONTRACT)}, flow)
    )
    assert [node.id for node in verdict.graph.nodes] == ["first"]
    assert verdict.problems == ()


def test_a_folder_that_the_workflow_does_not_list_is_not_run(tmp_path):
    verdict = icm.read_workspace(workspace(tmp_path, {"01-a": CONTRACT, "02-b": CONTRACT}, FLOW))
    assert [node.id for node in verdict.graph.nodes] == ["01-a"]
    found = [p.message for p in verdict.warnings]
    assert found == ["stages/02-b/CONTEXT.md: stage '02-b' is not in workflow.yaml and is not run"]


def test_a_stage_without_a_folder_is_run_and_warned_of(tmp_path):
    verdict = icm.read_workspace(
        workspace(
            tmp_path,
            {"01-a": CONTRACT},
            FLOW + "      - { id: 02-b, description: Do the rest., reads: [result] }\n",
        )
    )
    found = [p.message for p in verdict.warnings]
    assert found == ["Missing stage contract: stages/02-b/CONTEXT.md"]
    assert verdict.graph.node("02-b").body.text == (
        "You work in stages/02-b/; the paths below are from there.\n\nDo the rest.\n\nRead: result "
        "(../../stages/01-a/output/result.md)."
    )


def test_a_workflow_file_of_a_workspace_stands_for_all_of_it(tmp_path):
    root = workspace(tmp_path, {"01-a": CONTRACT}, FLOW)
    assert icm.read_file(root / "workflow.yaml") == icm.read_workspace(root)


ONE_PLACE = """
    name: notes
    state:
      notes: { type: file, written_by: 01-a }
      extra: { type: file, written_by: 01-a }
      report: { type: file, written_by: 02-b }
    stages:
      - { id: 01-a, writes: [notes, extra] }
      - { id: 02-b, reads: [notes, extra], writes: [report] }
"""


def test_a_file_without_a_location_has_one_for_its_writer_and_its_reader(tmp_path):
    two = CONTRACT.replace("| Result | `output/result.md`", "| Notes | `output/all-notes.md`")
    root = workspace(tmp_path, {"01-a": two, "02-b": CONTRACT}, ONE_PLACE)
    graph = icm.read_workspace(root).graph
    assert graph is not None
    assert {artifact.name: artifact.location for artifact in graph.artifacts} == {
        "notes": "stages/01-a/output/all-notes.md",  # named by its row
        "extra": "stages/01-a/output/extra.md",  # no row names it
        "report": "stages/02-b/output/result.md",  # the only row of the only file
    }
    assert "Read: notes (../../stages/01-a/output/all-notes.md)" in graph.node("02-b").body.text
    assert [use.artifact for use in graph.node("01-a").writes] == ["notes", "extra"]
