"""Single cases of the little languages of declared workflows, with the original's own answers.

``corpus/dag/edge_cases.jsonl`` was made by asking the original's functions. Where its answer is one
of its known bugs, ours is another on purpose: such cases are named here, with the reason and what
we answer instead.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pgflow.declare.play.failures import classify
from pgflow.declare.play.signals import has_signal, without_signal_tags
from pgflow.declare.play.triggers import is_triggered
from pgflow.declare.text.conditions import holds, parse_condition
from pgflow.declare.text.outputs import Inputs, Output, Outputs, UnresolvableReference, completed
from pgflow.declare.text.scripts import is_inline
from pgflow.declare.text.templates import Variables, resolve, takes_context

CASES = [
    json.loads(line)
    for line in Path(__file__)
    .parents[1]
    .joinpath("corpus/dag/edge_cases.jsonl")
    .read_text("utf-8")
    .splitlines()
]

J = {
    "status": "ok", "value": 42, "flag": True, "nul": None, "arr": [1, "b"], "obj": {"k": 1},
    "neg": -3.5,
}  # fmt: skip
OPTIONAL = {"type": "object", "properties": {"opt": {"type": "string"}}}
OUTPUTS: Outputs = {
    "a": Output("completed", "X"), "n": Output("completed", "42"),
    "j": Output("completed", json.dumps(J)), "p": Output("completed", "some prose"),
    "e": Output("completed", ""), "nl": Output("completed", "X\n"),
    "f": Output("failed", error="boom"), "sk": Output("skipped"), "d": completed({}, OPTIONAL),
    "s": completed({"n": None}), "arr": Output("completed", '[{"status":"ok"}]'),
    "fence": Output("completed", 'Here it is:\n```json\n{"status": "ok"}\n```\nDone.'),
    "a-b": Output("completed", "dash"),
}  # fmt: skip
INPUTS: Inputs = {"mode": "fast", "obj": {"a": [1]}, "flag": False, "num": 3}

READS_THE_MESSAGE_AGAIN = (
    "The original reads a person's message again for the variables that come after it, and takes "
    "`$&` in it for the text that is "
    "replaced: whoever writes a message could write templates. Here a message is put in as it is."
)
KNOWS_ONLY_SERVICES = (
    "The original takes a shell's timeout and a nonzero exit for unknown errors, so that "
    "`on_error: transient` never tries a shell "
    "node again. Here they are transient."
)
SEES_WORDS_IN_WORDS = (
    "The original takes a signal at the end of the output even if it is the tail of a longer word: "
    "INCOMPLETE is taken for COMPLETE. "
    "Here a signal begins where a word begins."
)


def of(kind: str) -> list[Any]:
    return [
        pytest.param(case, id=f"{kind}-{number}")
        for number, case in enumerate(CASES)
        if case["kind"] == kind
    ]


def variables(message: str) -> Variables:
    return Variables(
        workflow_id="RUN",
        message=message,
        artifacts_dir="/art",
        state_dir="/state",
        base_branch="main",
        context="CTX",
        user_input="LUI",
        rejection_reason="REJ",
        previous_output="PREV",
        inputs=INPUTS,
    )


def answer_or_throw(question: Any) -> Any:
    """Return the answer to a question, in the form of the file: a value, or the error thrown."""
    try:
        return question()
    except UnresolvableReference as error:
        return {"throw": str(error), "reason": error.reason}


def as_thrown(expected: Any, ours: Any) -> Any:
    """Our answer, without the reason if the file gives none."""
    if isinstance(ours, dict) and "throw" in ours and isinstance(expected, dict):
        return {key: value for key, value in ours.items() if key in expected}
    return ours


def without_class(expected: Any) -> Any:
    return (
        {key: value for key, value in expected.items() if key != "name"}
        if isinstance(expected, dict)
        else expected
    )


@pytest.mark.parametrize("case", of("when"))
def test_a_condition_is_answered_as_in_the_original(case):
    def ask() -> Any:
        answer = holds(parse_condition(case["expr"]), OUTPUTS, INPUTS)
        return {"result": bool(answer), "parsed": answer is not None}

    expected = without_class(case["result"])
    assert as_thrown(expected, answer_or_throw(ask)) == expected


@pytest.mark.parametrize("case", of("trigger"))
def test_a_trigger_rule_is_answered_as_in_the_original(case):
    states = ["failed" if state == "<missing>" else state for state in case["deps"]]
    assert is_triggered(case["rule"] or "all_success", states) == (case["result"] == "run")


@pytest.mark.parametrize("case", of("ref"))
def test_a_reference_is_replaced_as_in_the_original(case):
    outputs = {"a": Output("completed", case["value"])} if "value" in case else OUTPUTS
    surface = "bash" if case["bash"] else "script"
    ours = answer_or_throw(lambda: resolve(case["text"], variables("hello"), outputs, surface).text)
    assert as_thrown(case["result"], ours) == case["result"]


@pytest.mark.parametrize("case", of("var"))
def test_a_variable_is_replaced_as_in_the_original(case):
    given = variables(case["user"])

    def ask() -> Any:
        text = resolve(case["text"], given, {}, "script" if case["shellSafe"] else "prompt").text
        return {"prompt": text, "contextSubstituted": takes_context(case["text"], given)}

    ours = as_thrown(case["result"], answer_or_throw(ask))
    mentions_message = any(
        name in case["text"] and f"{{{name[1:]}}}" not in case["text"]
        for name in ("$ARGUMENTS", "$USER_MESSAGE")
    )
    if "$" in case["user"] and mentions_message and not case["shellSafe"]:
        better = (
            case["text"].replace("$ARGUMENTS", case["user"]).replace("$USER_MESSAGE", case["user"])
        )
        assert ours == {"prompt": better, "contextSubstituted": False} != case["result"], (
            READS_THE_MESSAGE_AGAIN
        )
    else:
        assert ours == case["result"]


@pytest.mark.parametrize("case", of("var-nobase"))
def test_a_branch_that_nobody_knows_is_refused_as_in_the_original(case):
    nowhere = Variables("RUN", "hello", "/art", "/state", base_branch="")
    ours = as_thrown(
        case["result"], answer_or_throw(lambda: resolve(case["text"], nowhere, {}).text)
    )
    assert ours == case["result"]


@pytest.mark.parametrize("case", of("signal"))
def test_a_signal_is_heard_as_in_the_original(case):
    output, signal = case["output"], case["signal"]
    if output.endswith(f"IN{signal}"):
        assert not has_signal(output, signal), SEES_WORDS_IN_WORDS
    else:
        assert has_signal(output, signal) == case["result"]
    assert without_signal_tags(output, signal) == case["stripped"]


@pytest.mark.parametrize("case", of("inline"))
def test_a_script_is_told_from_a_name_as_in_the_original(case):
    assert is_inline(case["script"]) == case["result"]


@pytest.mark.parametrize("case", of("classify"))
def test_an_error_is_classified_as_in_the_original(case):
    ours = classify(case["message"])
    if "timed out after" in case["message"] or "failed [exit" in case["message"]:
        assert (ours, case["result"]) == ("TRANSIENT", "UNKNOWN"), KNOWS_ONLY_SERVICES
    else:
        assert ours == case["result"]
