"""Reading foreign YAML: what is in it, where it stands, and that no text does harm."""

from __future__ import annotations

import json
import math

import pytest

from pgflow.declare.text.yamlfile import MAX_BYTES, YamlError, decode, read_bytes, read_yaml
from tests.kits.dagkit import rows

CASES = rows("yaml_cases.jsonl")
STRICTER = {"dup", "dupn", "numkey"}
"""Cases with a key that stands twice, which the original lets pass."""


def finite(value):
    """The value with numbers as the cases have them."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [finite(item) for item in value]
    if isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, float) and not math.isfinite(value):
        return f"NUM:{'NaN' if math.isnan(value) else 'Infinity' if value > 0 else '-Infinity'}"
    return value


def wrong(text):
    with pytest.raises(YamlError) as raised:
        read_yaml(text)
    return raised.value


@pytest.mark.parametrize(
    "case",
    [case for case in CASES if "value" in case and case["case"] not in STRICTER],
    ids=lambda case: case["case"],
)
def test_a_text_means_what_it_means_to_the_original(case):
    found = finite(read_yaml(case["text"]).value)
    assert found == finite(json.loads(json.dumps(case["value"]).replace('"NEG0"', "0")))


@pytest.mark.parametrize(
    "case", [case for case in CASES if "error" in case], ids=lambda case: case["case"]
)
def test_what_is_no_yaml_to_the_original_is_none_here(case):
    assert wrong(case["text"]).line is not None


@pytest.mark.parametrize(
    "text", ["a: 1\na: 2", "n:\n  a: 1\n  b: 2\n  a: 3", "1: x\n1.0: y", "{a: 1, a: 2}"]
)
def test_a_key_that_stands_twice_is_an_error(text):
    error = wrong(text)
    assert error.message.startswith("Duplicate key")
    assert "line 1" in error.hint or "line 2" in error.hint


def test_a_value_has_its_place_and_so_has_its_key():
    document = read_yaml("a: 1\nnodes:\n  - id: x\n    when: >-\n      $a.output\n")
    assert document.place(("nodes", 0, "id")) == (3, 5)
    assert document.place(("nodes", 0)) == (3, 5)
    assert document.place(("nodes", 0, "missing")) == (3, 5)
    assert document.find(("nodes", 0, "when"), "$a.output", document_lines()) == (5, 7)


def document_lines():
    return ["a: 1", "nodes:", "  - id: x", "    when: >-", "      $a.output", ""]


def test_control_characters_and_separators_stay_and_so_do_private_ones():
    text = "a: \x91\x85\u2028\u2029\ue000\ue001\x07\x7f"
    document = read_yaml(f"# \ue002\n{text}\nb: 1\n")
    assert document.value == {"a": text[3:], "b": 1}
    assert document.place(("b",)) == (3, 1)


def test_a_lone_surrogate_becomes_a_replacement_character():
    assert read_yaml("a: \ud800").value == {"a": "\ufffd"}


def test_bytes_that_are_no_utf8_are_read_and_told():
    assert decode("a: ü".encode()) == ("a: ü", None)
    assert decode(b"a: 1\nb: \xfc\n") == ("a: 1\nb: \ufffd\n", 2)


def test_a_nul_is_refused_with_its_place():
    error = wrong("a: b\nc: d\0")
    assert (error.line, error.column) == (2, 5)


@pytest.mark.parametrize("text", [
    "[" * 100_000, "{a: " * 5_000, "- " * 100_000, "? " * 100_000,
    "".join(" " * depth + "a:\n" for depth in range(300)),
], ids=["brackets", "braces", "dashes", "question marks", "blocks"])  # fmt: skip
def test_deep_nesting_is_refused(text):
    assert "Nested deeper than 100 levels" in wrong(text).message


def test_aliases_count_as_what_they_stand_for():
    letters = "abcdefghij"
    lines = ["a: &a [x, x, x, x, x, x, x, x, x, x]"]
    lines += [
        f"{new}: &{new} [{', '.join([f'*{old}'] * 10)}]"
        for old, new in zip(letters, letters[1:], strict=False)
    ]
    assert "More than 100,000 values" in wrong("\n".join(lines)).message


def test_an_alias_inside_what_it_refers_to_is_refused():
    error = wrong("a: &x [*x]")
    assert "is inside the value that it refers to" in error.hint


def test_a_text_of_ten_megabytes_is_refused(tmp_path):
    assert "larger than" in wrong("a: " + "x" * 10_000_000).message
    file = tmp_path / "large.yaml"
    file.write_bytes(b"a" * (MAX_BYTES + 1))
    with pytest.raises(YamlError, match="larger than 1,048,576 bytes"):
        read_bytes(file)


def test_merged_keys_come_after_ones_own_and_do_not_replace_them():
    document = read_yaml("x: &x {a: 1, b: 2}\ny:\n  <<: *x\n  b: 3\n")
    assert list(document.value["y"].items()) == [("b", 3), ("a", 1)]
