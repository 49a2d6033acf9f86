"""Files that are no SOP, or are one in an odd encoding or of an absurd shape: an answer each, never
a traceback.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pgflow.declare.sop import read_file, read_text
from pgflow.declare.sop.reading import LINE_LIMIT, SIZE_LIMIT_BYTES
from tests.kits.sopkit import CORPUS, graph, prompts, sop

HEAD = "# T\n\n## Overview\n\nx\n\n## Parameters\n\n"
STEP = "\n\n## Steps\n\n### 1. A\n\n"


def verdict_of(tmp_path, content, name="looking.sop.md"):
    (tmp_path / name).write_bytes(content)
    return read_file(tmp_path / name)


def only_error(verdict):
    (error,) = verdict.errors
    assert verdict.graph is None and not verdict.ok
    return error.kind, error.message, error.line, error.column


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"", ("parse_error", "The file is empty", None, None)),
        (b" \r\n\t\n", ("parse_error", "The file is empty", None, None)),
        (b"\xef\xbb\xbf", ("parse_error", "The file is empty", None, None)),
        (b"# A\n\nab\0c", ("parse_error", "A character that no text has: U+0000", 3, 3)),
        (b"# A\r\nab\xff", ("read_error", "Not UTF-8: byte 0xff", 2, 3)),
        ("# A\n".encode("utf-16"), ("read_error", "Not UTF-8: byte 0xff", 1, 1)),
        (b"#" * (10 * 1024 * 1024), ("read_error", "The file is larger than 256 KiB", None, None)),
        (
            b"a\n" * LINE_LIMIT,
            ("read_error", f"The file has more than {LINE_LIMIT} lines", None, None),
        ),
        (
            b"just words",
            ("validation_error", "No numbered steps found (format: ### 1. Step Name)", None, None),
        ),
    ],
)
def test_a_file_that_is_no_sop_gets_one_error(tmp_path, content, error):
    assert only_error(verdict_of(tmp_path, content)) == error


def test_what_cannot_be_opened_gets_one_error(tmp_path):
    os.mkfifo(tmp_path / "pipe.sop.md")
    (tmp_path / "loop.sop.md").symlink_to("loop.sop.md")
    found = only_error(read_file(tmp_path / "none.sop.md"))[1]
    assert found == "The file cannot be read: No such file or directory"
    assert only_error(read_file(tmp_path))[1] == "Not a file"
    assert only_error(read_file(tmp_path / "pipe.sop.md"))[1] == "Not a file"
    assert only_error(read_file(tmp_path / "loop.sop.md"))[1].startswith(
        "The file cannot be read: "
    )
    assert only_error(read_file("a\0b.sop.md"))[1].startswith("The file cannot be read: ")
    assert (
        only_error(read_text("# A\udc80", "a.sop.md"))[1] == "A character that no text has: U+DC80"
    )


@pytest.mark.parametrize(
    "file",
    ["strands/code-assist.sop.md", "strands/pdd.sop.md", "history/codebase-summary.script.md"],
)
def test_line_ends_and_a_byte_order_mark_change_nothing(tmp_path, file):
    text = (CORPUS / file).read_text(encoding="utf-8")
    plain = read_text(text, "a.sop.md")
    for ending in ("\r\n", "\r"):
        assert read_text("\ufeff" + text.replace("\n", ending), "a.sop.md") == plain
    written = verdict_of(tmp_path, b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode())
    found = [node.body for node in written.graph.nodes if node.reads]
    assert found == [node.body for node in plain.graph.nodes if node.reads]


def test_the_name_is_the_stem_whatever_the_file_is_called(tmp_path):
    for name, expected in {
        "a.sop.md": "a",
        "b.script.md": "b",
        "c.v2.sop.md": "c.v2",
        "d.md": "d",
        "é ü.sop.md": "é ü",
    }.items():
        verdict = verdict_of(tmp_path, sop().encode(), name)
        assert verdict.graph.name == expected
        found = [each.message for each in verdict.problems]
        assert found == (["File must use .sop.md extension"] if name == "d.md" else [])


def test_odd_characters_pass_through():
    text = sop(before="## Notes\n\n\x85\x90 \u2028 \N{PILE OF POO} \x0b\x0c end")
    assert all(
        "\x85\x90 \u2028 \N{PILE OF POO} \x0b\x0c end" in prompt for prompt in prompts(graph(text))
    )


@pytest.mark.full
@pytest.mark.parametrize(
    "text",
    [
        HEAD + "- **a** (" + '"a' * 60_000 + STEP,
        HEAD + "- **a** (" + "if " * 40_000 + ")" + STEP,
        HEAD + "- **a** (required): x\n" * 9_000 + STEP,
        HEAD + STEP + "**Constraints:**\n- " + "`" * 100_000,
        HEAD + STEP + "**Constraints:**\n- " + "``a`" * 30_000,
        HEAD + STEP + "**Constraints:**\n" + "- a\n" * 15_000,
        HEAD + STEP + "- x\n" + "**Constraints:**\n" * 12_000,
        HEAD + STEP + "#### 1.1 A\n" * 12_000,
        HEAD + STEP + ">" * 100_000,
        HEAD + STEP + "".join(" " * (2 * depth) + "- a\n" for depth in range(450)),
        HEAD + STEP + "*" * 100_000 + "a" * 50_000 + "-a" * 20_000,
        HEAD + "\n## Steps\n\n### 1" + "." * 50_000 + " -" * 20_000,
        HEAD + "|a|b|\n|-|-|\n" + "|x|y|\n" * 10_000 + STEP,
        HEAD + "\n## X\n\n" + "### 1. A\n" * 15_000,
        HEAD + "\n## Steps\n\n" + "- a\n" * 15_000,
        HEAD + STEP + "```\n" * 15_000,
        "# a\n" * 15_000,
    ],
)
def test_absurd_files_are_read_to_their_end(text):
    assert len(text.encode()) <= SIZE_LIMIT_BYTES and text.count("\n") < LINE_LIMIT
    verdict = read_text(
        text, "absurd.sop.md", siblings=[f"a-{number}.sop.md" for number in range(1000)]
    )
    assert verdict.graph is not None or verdict.errors


def test_prompts_that_would_be_too_large_together_are_refused():
    text = sop(before="x" * 100_000, steps="".join(f"### {number}. A\n\n" for number in range(900)))
    found = [error.message for error in read_text(text, "a.sop.md").errors]
    assert found == ["The prompts would be too large together"]
    many = sop(steps="".join(f"### {number}. A\n" for number in range(1001)))
    found = [error.message for error in read_text(many, "a.sop.md").errors]
    assert found == ["1001 steps: more than 1000 are not read"]


PIECES = st.sampled_from(
    [
        "# T", "## Overview", "## Parameters", "## Steps", "## Notes", "### 1. A", "### 0.5 B", "### C", "#### 1.1 D", "**Constraints:**", "**Constraints", "- You MUST a",
        "  - b", "- **p** (required): x", "- **q** (optional, default: `", "| a | b |", "|---|---|", "```", "~~~", "> q", "---", "", "    code", "<!--", "-->", "\t- tab", "1. x", "text", "- ", "*", "$x.output",
    ]
)  # fmt: skip


@pytest.mark.full
@given(st.lists(PIECES, max_size=40), st.text(max_size=20))
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_arrangement_of_pieces_is_answered_and_loses_no_constraint(pieces, tail):
    text = "\n".join(pieces) + tail.encode("utf-8", "replace").decode()
    verdict = read_text(text, "a.sop.md", siblings=())
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    assert all(
        problem.line is None or 1 <= problem.line <= len(lines) for problem in verdict.problems
    )
    if verdict.graph is None:
        assert verdict.errors
        return
    verdict.graph.model_dump_json()
    told = "\n".join(prompts(verdict.graph)).replace("${x.output}", "$x.output").split("\n")
    front = any(problem.message.startswith("Front matter") for problem in verdict.problems)
    assert front or sum(line.strip() == "- You MUST a" for line in lines) <= sum(
        line.strip() == "- You MUST a" for line in told
    )
