"""Templates: the `$` in texts and the values that take its place."""

from __future__ import annotations

import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgflow.declare.text.outputs import Output, UnresolvableReference, completed
from pgflow.declare.text.templates import (
    Previous,
    Spill,
    Surface,
    Variables,
    environment,
    references,
    resolve,
    shell_quoted,
    with_context,
)

RUN = Variables(
    "run-1", "hello", "/art", "/state", "main", inputs={"mode": "fast", "output": "not a node's"}
)
OUTPUTS = {
    "a": Output("completed", "X"),
    "quote": Output("completed", "it's; rm -rf $HOME"),
    "data": completed({"n": 42.0, "yes": True, "text": "a b", "none": None, "list": [1, {"k": "v"}],
        "huge": 1e999}),
    "empty": Output("completed", ""),
    "failed": Output("failed", error="boom"),
}  # fmt: skip


def resolved(text: str, surface: Surface = "prompt", variables: Variables = RUN) -> str:
    return resolve(text, variables, OUTPUTS, surface).text


def test_references_are_found_with_their_places():
    text = (
        "see $a.output.field, $b-1.outputs and $LOOP_PREV.c.output; not ${d.output} nor $1e.output"
    )
    found = [(r.node_id, r.field, r.text) for r in references(text)]
    assert found == [("a", "field", "$a.output.field"), ("b-1", None, "$b-1.output")]
    assert all(text[r.start : r.end] == r.text for r in references(text))


def test_what_is_put_in_is_not_read_again():
    sly = Variables(
        "run-1",
        "$a.output $WORKFLOW_ID $INPUTS.mode $ARGUMENTS $& $$ $' $`",
        "/art",
        "/state",
        "main",
        inputs={"x": "$a.output"},
    )
    for variable in ("$ARGUMENTS", "$USER_MESSAGE"):
        assert resolved(f"<{variable}>", variables=sly) == f"<{sly.message}>"
    assert resolved("$INPUTS.x", variables=sly) == "$a.output"


def test_the_display_of_the_original_reads_a_message_again():
    shown = Variables("run-1", "do $ARGUMENTS", "/art", "/state", "main", rereads=True)
    assert resolved("$USER_MESSAGE", variables=shown) == "do do $ARGUMENTS"


def test_an_output_is_quoted_for_a_shell_and_plain_elsewhere():
    assert resolved("$quote.output") == "it's; rm -rf $HOME"
    assert resolved("$quote.output", "script") == "it's; rm -rf $HOME"
    assert resolved("$quote.output", "bash") == r"'it'\''s; rm -rf $HOME'"
    assert resolved("$empty.output$nobody.output", "bash") == "''''"


def test_numbers_and_truth_values_need_no_quotes_in_a_shell():
    fields = "$data.output.n $data.output.yes $data.output.text $data.output.none $data.output.list $data.output.huge $data.output.nil"
    assert resolved(fields, "bash") == """42 true 'a b' 'null' '[1,{"k":"v"}]' Infinity ''"""
    assert resolved(fields) == """42 true a b null [1,{"k":"v"}] Infinity """


@pytest.mark.full
@given(st.text(st.characters(exclude_characters="\x00", exclude_categories=("Cs",))))
def test_a_quoted_text_is_one_word_for_a_real_shell(text):
    made = subprocess.run(
        ["sh", "-c", f"printf %s {shell_quoted(text)}"], capture_output=True, check=True
    )
    assert made.stdout.decode() == text


def test_what_people_say_never_becomes_part_of_a_program():
    text = "echo $ARGUMENTS $USER_MESSAGE $LOOP_USER_INPUT $REJECTION_REASON $LOOP_PREV_OUTPUT $CONTEXT $INPUTS.mode; cd $ARTIFACTS_DIR"
    for surface in ("bash", "script"):
        assert resolved(text, surface) == text.replace("$ARTIFACTS_DIR", "/art")  # type: ignore[arg-type]


def test_programs_get_it_as_their_environment():
    given = Variables(
        "run-1",
        "rm $HOME",
        "/art",
        "/state",
        "main",
        context="issue",
        previous_output="P",
        inputs={"my-list": [1], "x": "y"},
    )
    found = environment(given)
    assert found["ARGUMENTS"] == found["USER_MESSAGE"] == "rm $HOME"
    assert (found["INPUTS_MY_LIST"], found["INPUTS_X"], found["ISSUE_CONTEXT"]) == (
        "[1]",
        "y",
        "issue",
    )
    assert (found["WORKFLOW_ID"], found["DOCS_DIR"], found["LOOP_PREV_OUTPUT"]) == (
        "run-1",
        "docs/",
        "P",
    )


def test_long_values_are_handed_to_a_shell_in_a_file():
    long, emoji = "x" * 32_769, "😀" * 16_385
    outputs = {
        "a": completed({"text": long, "short": "x" * 32_768, "emoji": emoji}),
        "b": Output("completed", long),
    }
    made = resolve(
        "cat $a.output.text $b.output $a.output.emoji", RUN, outputs, "bash", "/art/spills"
    )
    assert (
        made.text
        == "cat $(cat '/art/spills/a.text.nodeoutput') $(cat '/art/spills/b.nodeoutput') $(cat "
        "'/art/spills/a.emoji.nodeoutput')"
    )
    assert made.spills[0] == Spill("/art/spills/a.text.nodeoutput", long)
    assert len(made.spills) == 3
    assert resolve("$a.output.short", RUN, outputs, "bash", "/art/spills").spills == ()
    assert resolve("$b.output", RUN, outputs, "bash").text == f"'{long}'"


def test_inputs_come_before_a_node_called_like_them():
    assert resolved("$INPUTS.output") == "not a node's"
    assert resolved("$INPUTS.output", "bash") == "''"


def test_a_failed_node_leaves_nothing_to_be_read():
    with pytest.raises(
        UnresolvableReference,
        match=r"it failed \(boom\), so its output cannot be spliced into this node's prompt/script",
    ):
        resolved("$failed.output")


def test_the_unknown_input_is_told_before_the_unknown_field():
    with pytest.raises(
        UnresolvableReference,
        match=r"Unknown input '\$INPUTS\.mod'\. Did you mean \$INPUTS\.mode\?",
    ):
        resolved("$a.output.field $INPUTS.mod")


def test_a_state_directory_must_be_known_to_be_mentioned():
    nowhere = Variables("run-1", "", "/art", "", "main")
    with pytest.raises(UnresolvableReference, match="no state directory was resolved"):
        resolved("cd $STATE_DIR", "bash", nowhere)


def test_context_is_appended_unless_the_template_takes_it():
    known = Variables("run-1", "", "/art", "/state", "main", context="CTX")
    assert with_context("do it", "do it", known) == "do it\n\n---\n\nCTX"
    assert with_context("do CTX", "do $ISSUE_CONTEXT", known) == "do CTX"
    assert with_context("do $CONTEXTUAL", "do $CONTEXTUAL", known).endswith("CTX")
    assert with_context("do it", "do it", RUN) == "do it"


def previous(**outputs: Output) -> Variables:
    known = ("a", "b", "inner")
    return Variables(
        "run-1",
        "",
        "/art",
        "/state",
        "main",
        previous=Previous(outputs, frozenset({"a", "b"}), known),
    )


def test_the_previous_round_is_read_where_there_was_one():
    text = "$LOOP_PREV.a.output|$LOOP_PREV.b.output.f"
    assert resolved(text, variables=previous()) == "|"
    assert resolved(text, "bash", previous()) == "''|''"
    found = resolved(text, variables=previous(a=Output("completed", "A"), b=completed({"f": [1]})))
    assert found == "A|[1]"
    assert resolved(text, variables=previous(a=Output("skipped"), b=Output("pending"))) == "|"


def test_the_previous_round_of_a_group_within_is_left_to_that_group():
    found = resolved("$LOOP_PREV.inner.output.f", variables=previous())
    assert found == "$LOOP_PREV.inner.output.f"
    assert resolved("$LOOP_PREV.nobody.output", variables=previous()) == ""
    with pytest.raises(UnresolvableReference, match=r"Did you mean: 'inner'\?"):
        resolved("$LOOP_PREV.inne.output.f", variables=previous())


def test_outside_of_groups_there_is_no_previous_round():
    assert resolved("$LOOP_PREV.a.output") == "$LOOP_PREV.a.output"


@pytest.mark.parametrize("text", [
    '```json\n{"k": 1}\n```', 'Sure:\n\n```\n\n {"k": 1}\n\n   ```\nthanks',
    '```py\nx\n```\n{"k":1}\n```', '{"k":1}', '\n {"k":1}\n', '``` json\n```json \n{"k":1}\n ```',
])  # fmt: skip
def test_fields_are_read_from_the_first_closed_fence(text):
    assert resolve("$a.output.k", RUN, {"a": Output("completed", text)}).text == "1"


@pytest.mark.parametrize(("text", "reason"), [
    ('```json\n{"k":1}', "unparseable"), ('```json\n{"k":1}```', "unparseable"),
    ('```json {"k":1}\n```', "unparseable"), ('\ufeff{"k":1}', "unparseable"),
    ("{k:1}", "unparseable"), ("[" * 100_000, "unparseable"), ('[{"k":1}]', "array-aggregate"),
    ('{"K":1}', "missing-key"), ("", "unparseable"), ("7", "unparseable"),
])  # fmt: skip
def test_fields_are_not_read_where_there_is_no_object(text, reason):
    with pytest.raises(UnresolvableReference) as caught:
        resolve("$a.output.k", RUN, {"a": Output("completed", text)})
    assert caught.value.reason == reason


def test_hostile_outputs_are_read_to_their_end():
    for text in (
        "```\n" + "\n" * 300_000,
        "``` " * 100_000,
        "```" * 100_000 + "\n",
        "```\n" + " " * 300_000 + "x```",
    ):
        with pytest.raises(UnresolvableReference):
            resolve("$a.output.k", RUN, {"a": Output("completed", text)})
