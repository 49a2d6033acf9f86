"""Files that no workflow can be: each is refused at once, by what is wrong with it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pgflow.declare import discover_workflows
from pgflow.declare.dag import read_file, read_text, shelf
from pgflow.declare.durable.shell import NotRewritable, rewrite

SOUND = 'name: a\ndescription: d\nnodes: [{id: a, bash: "echo"}]\n'


def errors(path: Path) -> list[tuple[str, int | None]]:
    """Errors of a file, with their lines."""
    return [(problem.message, problem.line) for problem in read_file(path).errors]


def test_a_pipe_among_workflows_is_refused_and_not_waited_for(tmp_path):
    folder = tmp_path / ".archon" / "workflows"
    folder.mkdir(parents=True)
    (folder / "a.yaml").write_text(SOUND)
    os.mkfifo(folder / "b.yaml")
    verdicts = discover_workflows(tmp_path)
    assert [verdict.ok for verdict in verdicts] == [True, False]
    assert verdicts[1].errors[0].message == "Not a file"


@pytest.mark.parametrize(
    ("written", "said"),
    [("x\\0y", "A NUL in a text"), ("x\\ud800y", "Half of a character in a text")],
)
def test_a_text_that_nobody_can_take_is_refused_by_its_line(written, said):
    verdict = read_text(SOUND.replace("echo", written))
    assert [(one.message, one.line) for one in verdict.errors] == [(f"YAML parse error: {said}", 3)]


@pytest.mark.parametrize("coding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_a_file_in_utf16_is_called_so(tmp_path, coding):
    (tmp_path / "a.yaml").write_bytes(SOUND.encode(coding))
    assert errors(tmp_path / "a.yaml") == [("The file is UTF-16", 1)]


def test_a_file_of_two_documents_is_told_that_it_has_them():
    said = [one.message for one in read_text(f"{SOUND}---\n{SOUND}").errors]
    assert said == ["Missing required field 'name': the file has several documents"]


def test_files_beyond_the_limit_are_not_left_out_in_silence(tmp_path, monkeypatch):
    monkeypatch.setattr(shelf, "MAX_FILES", 2)
    folder = tmp_path / ".archon" / "workflows"
    folder.mkdir(parents=True)
    for name in "abc":
        (folder / f"{name}.yaml").write_text(SOUND.replace("name: a", f"name: {name}"))
    *sound, last = discover_workflows(tmp_path)
    assert [verdict.ok for verdict in sound] == [True, True]
    assert "more than 2 files" in last.errors[0].message
    assert "c.yaml" in last.errors[0].message


@pytest.mark.parametrize("use", [
    "y=ab; echo ${y#$((x))}", 'declare -ai n; n+=("x")', '[[ "x" -eq 1 ]]', "[[ 'x' -eq 1 ]]",
    "stdbuf -o0 $x",
])  # fmt: skip
def test_bash_that_would_evaluate_a_value_behind_quotes_is_refused(use):
    with pytest.raises(NotRewritable):
        rewrite(f'x="$a.output"\n{use}\n')
