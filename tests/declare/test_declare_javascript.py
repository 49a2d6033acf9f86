"""Numbers, blanks and JSON as JavaScript has them."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pgflow.declare.text.javascript import json_text, number_text, parse_float, parse_json, trim

JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize(("number", "text"), [
    (42.0, "42"), (-0.0, "0"), (0.1, "0.1"), (-12.5, "-12.5"), (1e20, "100000000000000000000"),
    (123456789012345680000, "123456789012345680000"), (1e21, "1e+21"), (1.5e300, "1.5e+300"),
    (0.000001, "0.000001"), (1e-7, "1e-7"), (1.25e-7, "1.25e-7"), (5e-324, "5e-324"),
    (2**53 + 1, "9007199254740992"), (10**400, "Infinity"), (-(10**400), "-Infinity"),
    (math.nan, "NaN"),
])  # fmt: skip
def test_a_number_is_written_as_javascript_writes_it(number, text):
    assert number_text(number) == text


@pytest.mark.parametrize(("text", "number"), [
    ("42", 42), (" \u00a0\ufeff\n42px", 42), ("42.0.1", 42), ("-.5e", -0.5), ("+1e2x", 100),
    ("5.", 5), ("1e5e5", 1e5), ("-Infinity!", -math.inf), ("1e999", math.inf),
])  # fmt: skip
def test_parse_float_reads_what_a_text_begins_with(text, number):
    assert parse_float(text) == number


@pytest.mark.parametrize("text", ["", "x1", ".", "-", "e5", "infinity", "\x1c1", "\u06f1"])
def test_parse_float_finds_no_number_where_none_is(text):
    assert math.isnan(parse_float(text))


def test_blanks_are_those_of_javascript():
    assert trim("\ufeff\u2028\u3000 x \v\u00a0") == "x"
    assert trim("\x1cx\x85") == "\x1cx\x85"


def test_json_is_compact_and_puts_array_indices_first():
    value = {
        "b": [1.0, "é\u2028\ud800\x7f\n"], "10": None, "2": True, "01": {}, "-1": [],
        "4294967295": 1,
    }  # fmt: skip
    assert (
        json_text(value)
        == '{"2":true,"10":null,"b":[1,"é\u2028\\ud800\x7f\\n"],"01":{},"-1":[],"4294967295":1}'
    )


def test_json_has_no_word_for_what_is_no_number():
    assert json_text([math.nan, math.inf]) == "[null,null]"
    with pytest.raises(ValueError):
        parse_json("NaN")
    with pytest.raises(ValueError):
        parse_json("[-Infinity]")


@pytest.mark.full
@settings(suppress_health_check=[HealthCheck.too_slow])  # a machine that pauses is no finding
@given(JSON_VALUES)
def test_json_text_says_what_the_value_is(value):
    assert parse_json(json_text(value)) == value  # type: ignore[arg-type]


@pytest.mark.full
def test_a_value_of_any_depth_is_written():
    value: list[object] = []
    for _ in range(100_000):
        value = [value]
    assert json_text(value).count("[") == 100_001  # type: ignore[arg-type]


def test_json_that_is_too_deep_is_refused_and_not_choked_on():
    with pytest.raises(ValueError):
        parse_json("[" * 1_000_000)


def test_whole_numbers_beyond_doubles_are_rounded_like_doubles():
    assert parse_json("12345678901234567890123") == 12345678901234567890123.0
    assert json_text(parse_json("9" * 5000)) == "null"
    assert json.loads("9007199254740993") != parse_json("9007199254740993")
