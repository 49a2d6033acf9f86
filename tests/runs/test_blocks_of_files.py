"""Blocks that run once for each item, outputs of programs with a schema, and nodes that must leave
the checkout as it is.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from runkit import play, write

from pgflow.declare.durable.folders import Folders

pytest.importorskip("tree_sitter_bash", reason="the extra `run` is not installed")

EACH = """
- {id: list, bash: 'echo ''["a","b"]'''}
- id: each
  include: leaf
  fan_out: {items: $list.output, as: item, max_parallel: 2}
  with: {tone: loud}
  depends_on: [list]
- {id: out, bash: 'echo $each.output; sort "$ARTIFACTS_DIR/seen"', depends_on: [each]}
"""
LEAF = """
- id: l
  bash: 'echo "$INPUTS_ITEM" >> "$ARTIFACTS_DIR/seen"; echo "$INPUTS_TONE $INPUTS_ITEM, $USER_MESSAGE"'
"""
INPUTS = "mutates_checkout: false\nreturns: l\ninputs: {item: {required: true}, tone: {}}"


async def test_a_block_runs_once_for_each_item_inside_the_run_that_includes_it(
    aflow, conn, tmp_path
):
    write(tmp_path, LEAF, INPUTS, name="leaf")
    run = await play(aflow, write(tmp_path, EACH), "hello", key="main")
    assert run.output.splitlines() == ['["loud a, hello","loud b, hello"]', "a", "b"], run
    seen = Path(Folders(str(tmp_path), "main").artifacts, "seen")
    assert sorted(seen.read_text().split()) == ["a", "b"]
    assert conn.execute("select * from pgflow.check()").fetchall() == []


OBJECT = "{type: object, properties: {n: {type: integer}}, required: [n]}"


@pytest.mark.parametrize(
    ("work", "error"),
    [
        ("bash: 'echo ''{\"n\": 3}'''", ""),
        ("script: 'print(''{\"n\": 3}'')', runtime: uv", ""),
        ("bash: echo three", "it is not JSON"),
        ("bash: 'echo ''{\"n\": \"3\"}'''", "'3' is not of type 'integer'"),
    ],
)
async def test_what_a_program_prints_fits_its_schema_before_the_next_node_reads_it(
    aflow, tmp_path, work, error
):
    nodes = f"""
    - {{id: count, {work}, output_format: {OBJECT}}}
    - {{id: after, bash: 'echo $count.output.n', depends_on: [count]}}
    """
    run = await play(aflow, write(tmp_path, nodes))
    if error:
        assert "printed what does not fit output_format" in run.error, run
        assert error in run.error
        assert run.states["after"] == "skipped"
    else:
        assert run.output == "3", run


@pytest.mark.parametrize(
    ("work", "provider"),
    [("bash: 'echo x > {file}; echo ok'", None), ("prompt: hi", "cmd:tee {file}")],
)
@pytest.mark.parametrize("file", ["new.txt", "left-out"])
async def test_a_node_that_must_leave_the_checkout_as_it_is_fails_with_what_it_changed(
    aflow, tmp_path, work, provider, file
):
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / ".gitignore").write_text("left-out\n")
    nodes = f"- {{id: look, {work.format(file=file)}, mutates_checkout: false}}"
    options = {"provider": provider.format(file=file)} if provider else {}
    run = await play(aflow, write(tmp_path, nodes), **options)
    if file == "left-out":
        assert run.status == "completed", run
    else:
        assert "node 'look' says mutates_checkout: false and changed new.txt" in run.error, run
