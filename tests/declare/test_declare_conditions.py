"""Conditions: how `when` texts are read, and what they answer."""

from __future__ import annotations

import pytest

from pgflow.declare.graph import Atom, Position, Unparsed
from pgflow.declare.text.conditions import holds, parse_condition
from pgflow.declare.text.outputs import Output, UnresolvableReference, completed

OUTPUTS = {
    "a": Output("completed", "X"),
    "n": Output("completed", " 42.0px"),
    "failed": Output("failed", "stale", error="boom"),
}


def test_alternatives_are_split_before_parts_and_quotes_hide_both():
    condition = parse_condition(
        " $a.output == 'x || y && z' && $b.f != 5 || $INPUTS.mode == true ",
        Position(file="w.yaml", line=3),
    )
    assert condition.any_of == (
        (
            Atom(reference="$a.output", operator="==", literal="x || y && z", is_quoted=True),
            Atom(reference="$b.f", operator="!=", literal="5"),
        ),
        (Atom(reference="$INPUTS.mode", operator="==", literal="true"),),
    )
    assert condition.text.startswith(" $a")
    assert condition.position == Position(file="w.yaml", line=3)


@pytest.mark.parametrize("text", [
    "", "   ", "($a.output == 'X')", "!$a.output == 'X'", '$a.output == "X"', "$a.output = 'X'",
    "$a.output === 'X'", "$a == 'X'", "$INPUTS.a.b == 'X'", "$a.field.deeper == 'X'",
    "$a.output.f.g == 'X'", "$a.output == 1.", "$a.output == .5", "$a.output == +5",
    "$a.output == \u0665", "$a.output == 'it\\'s'", "$a.output\x1c== 'X'",
    "$a.output == 'X' \x85", "$ä.output == 'X'", "$a.output contains 'X'", "$a.output == null",
    "$a.output == 'X'\x00",
])  # fmt: skip
def test_what_is_no_comparison_skips_its_node(text):
    assert any(isinstance(part, Unparsed) for part in parse_condition(text).any_of[0])
    assert holds(parse_condition(text), OUTPUTS) is None


@pytest.mark.parametrize("text", [
    "$a.output=='X'", "$a.output\u00a0==\ufeff'X'", "\u2028$a.output == 'X'\n",
    "$a.output\n==\n'X'",
])  # fmt: skip
def test_blanks_between_the_parts_do_not_matter(text):
    assert holds(parse_condition(text), OUTPUTS) is True


@pytest.mark.parametrize(("text", "answer"), [
    ("$a.output == 'X' || bogus", True), ("bogus || $a.output == 'X'", None),
    ("$a.output == 'Y' && bogus", False), ("$a.output == 'Y' && bogus || $a.output == 'X'", True),
    ("$a.output == 'X' && bogus", None), ("$a.output == 'Y' && $unknown.output.f == ''", False),
    ("$unknown.output == ''", True),
])  # fmt: skip
def test_nothing_is_looked_at_that_is_not_needed(text, answer):
    assert holds(parse_condition(text), OUTPUTS) is answer


@pytest.mark.parametrize(("text", "answer"), [
    ("$n.output > 41", True), ("$n.output <= '42'", True), ("$n.output < '42.5 or so'", True),
    ("$n.output >= 'many'", None), ("$a.output > 1", None), ("$n.output > 'Infinity'", None),
    ("$n.output == '42'", False),
])  # fmt: skip
def test_order_is_one_of_numbers_and_equality_one_of_texts(text, answer):
    assert holds(parse_condition(text), OUTPUTS) is answer


def test_what_a_failed_node_left_is_not_believed():
    with pytest.raises(
        UnresolvableReference,
        match=r"it failed \(boom\), so its output cannot be trusted in a 'when:' condition",
    ):
        holds(parse_condition("$failed.output == 'stale'"), OUTPUTS)
    with pytest.raises(
        UnresolvableReference, match=r"node 'failed' failed, so its output cannot be trusted"
    ) as caught:
        holds(parse_condition("$failed.field == 'stale'"), OUTPUTS)
    assert caught.value.reason == "producer-failed"


def test_inputs_are_compared_as_their_texts():
    inputs = {
        "flag": False, "list": [1, "b"], "none": None, "big": 1e21, "output": "named like a node's",
    }  # fmt: skip
    for text in (
        "$INPUTS.flag == false",
        "$INPUTS.list == '[1,\"b\"]'",
        "$INPUTS.none == 'null'",
        "$INPUTS.big == '1e+21'",
    ):
        assert holds(parse_condition(text), {}, inputs) is True
    assert holds(parse_condition("$INPUTS.output != ''"), {}, inputs) is True


@pytest.mark.parametrize(("inputs", "hint"), [
    (None, " This run has no declared inputs."), ({}, " This run has no declared inputs."),
    ({"other": 1}, " Available inputs: $INPUTS.other."),
    ({"mdoe": 1, "Modes": 2, "MODE": 3}, " Did you mean $INPUTS.Modes, $INPUTS.mdoe?"),
])  # fmt: skip
def test_an_unknown_input_fails_the_node_and_says_which_there_are(inputs, hint):
    with pytest.raises(UnresolvableReference) as caught:
        holds(parse_condition("$INPUTS.mode == 'x'"), {}, inputs)  # type: ignore[arg-type]
    assert str(caught.value) == f"Unknown input '$INPUTS.mode'.{hint}"


def test_a_long_condition_is_read_to_its_end():
    condition = parse_condition(" && ".join(["$a.output == 'X'"] * 20_000) + " " * 200_000)
    assert len(condition.any_of[0]) == 20_000
    assert holds(condition, OUTPUTS) is True


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("$LOOP_PREV.a.output == 'X'", True),
        ("$LOOP_PREV.n.output > 41", True),
        ("$LOOP_PREV.j.output.verdict == 'red'", True),
        ("$LOOP_PREV.skipped.output == 'X'", False),
        ("$LOOP_PREV.skipped.output.verdict == 'red'", False),
        ("$LOOP_PREV.none.output == ''", True),
        ("$LOOP_PREV.a == 'X'", None),
        ("$LOOP_PREV.j.verdict == 'red'", None),
    ],
)
def test_the_round_before_is_read_from_its_outputs(text: str, answer: bool | None) -> None:
    before = OUTPUTS | {"j": completed({"verdict": "red"}), "skipped": Output("skipped")}
    assert holds(parse_condition(text), {}, previous=before) is answer


def test_nothing_was_before_the_first_round() -> None:
    assert holds(parse_condition("$LOOP_PREV.a.output == ''"), OUTPUTS) is True


def test_what_failed_in_the_round_before_is_not_read() -> None:
    with pytest.raises(UnresolvableReference, match="but it failed"):
        holds(parse_condition("$LOOP_PREV.failed.output == 'x'"), {}, previous=OUTPUTS)
