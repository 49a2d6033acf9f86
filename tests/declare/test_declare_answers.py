"""Answers that were to be JSON and nearly are, read as they are meant."""

from __future__ import annotations

import pytest

from pgflow.declare.text.answers import meant


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('Sure: {"n": 6}', {"n": 6}),
        ('```json\n{"n": 6}\n```', {"n": 6}),
        ('```{"n": 6}```', {"n": 6}),
        ('Here you are:\n\n{"n": [1, 2,], "m": {"k": null,},}', {"n": [1, 2], "m": {"k": None}}),
        ("{'n': 'it is \"so\"', 'm': 'don\\'t'}", {"n": 'it is "so"', "m": "don't"}),
        (
            "{n: 6, is-it: true, so: False, no: None}",
            {"n": 6, "is-it": True, "so": False, "no": None},
        ),
        ("{n: -1.5e2, word: plain words}", {"n": -150.0, "word": "plain words"}),
        ('{"n": 6, // a number\n /* and */ "m": 1}', {"n": 6, "m": 1}),
        ('{"n": 6, "said": "it was cut o', {"n": 6, "said": "it was cut o"}),
        ('{"n": [1, {"m": 2', {"n": [1, {"m": 2}]}),
        ('{"n": 6, "m', {"n": 6, "m": None}),
        ('{"a\\u00e4": "x\\ny"}', {"aä": "x\ny"}),
        ('{"n": "two\nlines"}', {"n": "two\nlines"}),
        ('{"n": "cut\\', {"n": "cut"}),
    ],
)
def test_an_answer_that_is_nearly_json_is_read(text, value):
    assert meant(text) == value


@pytest.mark.parametrize("text", [
    "", "no object", "[1, 2]", "{not valid}", '{"n": 6} or rather: {"n": 7}',
    '{"n": 6}\nThat is all.', '{"n" 6: 1}', '{"n": [1}', '{"n": ' + "[" * 5000,
])  # fmt: skip
def test_an_answer_that_may_mean_something_else_is_none(text):
    assert meant(text) is None
