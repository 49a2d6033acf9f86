"""Finding the workflow files of a folder; none that is wrong stops the others."""

from __future__ import annotations

import os

import pytest

from pgflow.declare.dag import discover, read_file
from tests.kits.dagkit import workflow

FINE = workflow("- {id: a, bash: x}")


def write(root, **files):
    for name, text in files.items():
        path = root / f"{name.replace('__', '/')}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


def named(name):
    return FINE.replace("name: w", f"name: {name}")


def found(folder):
    return {verdict.file.rsplit("/", 1)[1]: verdict for verdict in discover(folder)}


def test_every_file_of_a_folder_is_judged_alone(tmp_path):
    verdicts = found(write(tmp_path, a=FINE, b="name: [", c="name: x", deep__er__d=FINE))
    got = {name: verdict.ok for name, verdict in verdicts.items()}
    assert got == {"a.yaml": True, "b.yaml": False, "c.yaml": False, "d.yaml": True}
    assert verdicts["b.yaml"].errors[0].kind == "parse_error"


def test_in_the_originals_layout_only_the_workflows_are_read(tmp_path):
    write(tmp_path, other="a: 1")
    write(
        tmp_path / ".archon",
        config="a: 1",
        workflows__a=FINE,
        workflows__pack__b__b=named("b"),
        workflows__pack__b__fixtures__x="a: 1",
    )
    assert sorted(found(tmp_path)) == ["a.yaml", "b.yaml"]
    assert sorted(found(tmp_path / ".archon" / "workflows")) == ["a.yaml", "b.yaml"]


def test_two_workflows_of_one_name_are_both_wrong_in_the_originals_layout(tmp_path):
    root = write(tmp_path / ".archon" / "workflows", a=FINE, b=FINE, c=named("c"))
    verdicts = found(tmp_path)
    assert [verdicts[name].ok for name in ("a.yaml", "b.yaml", "c.yaml")] == [False, False, True]
    assert verdicts["a.yaml"].errors[0].message == (
        "Duplicate workflow name 'w' — also declared in b.yaml. Workflow names must be unique; "
        "same-name files do not override each "
        "other (overrides are by filename)."
    )
    assert verdicts["a.yaml"].errors[0].line == 1
    assert root.exists()


def test_two_files_of_one_name_are_both_wrong_in_the_originals_layout(tmp_path):
    write(tmp_path / ".archon" / "workflows", one__a=named("x"), two__a=named("y"))
    found = [verdict.errors[0].message[:50] for verdict in discover(tmp_path)]
    assert found == ["Workflow filename collision within one scope: 'a.y"] * 2


def test_the_same_names_are_fine_in_a_folder_of_no_layout(tmp_path):
    write(tmp_path, one__a=FINE, two__a=FINE)
    assert all(verdict.ok for verdict in discover(tmp_path))


def test_stubs_and_fixtures_are_no_workflows(tmp_path):
    write(tmp_path, a=FINE, fixtures__b="a: 1")
    (tmp_path / "c.stubs.yaml").write_text("a: 1", encoding="utf-8")
    assert list(found(tmp_path)) == ["a.yaml"]


def test_an_empty_folder_has_no_workflows(tmp_path):
    assert discover(tmp_path) == []


def test_a_file_that_is_not_there_is_an_error(tmp_path):
    (problem,) = read_file(tmp_path / "none.yaml").errors
    assert (problem.kind, problem.message) == (
        "read_error",
        "File read error: No such file or directory (ENOENT)",
    )


def test_a_folder_is_no_file(tmp_path):
    (problem,) = read_file(tmp_path).errors
    assert problem.kind == "read_error"


def test_a_file_of_ten_megabytes_is_an_error(tmp_path):
    file = tmp_path / "large.yaml"
    file.write_bytes(FINE.encode() + b"# " + b"x" * 10_000_000)
    (problem,) = read_file(file).errors
    assert problem.message == "File is larger than 1,048,576 bytes"


def test_a_file_that_is_not_utf8_is_read_and_warned_of(tmp_path):
    file = tmp_path / "old.yaml"
    file.write_bytes(FINE.replace("description: d", "description: für").encode("latin-1"))
    verdict = read_file(file)
    assert verdict.ok
    found = [(problem.message, problem.line) for problem in verdict.warnings]
    assert found == [("Bytes that are not UTF-8 were read as U+FFFD", 2)]


@pytest.mark.skipif(not hasattr(os, "symlink"), reason="needs links")
def test_links_to_folders_are_not_followed(tmp_path):
    write(tmp_path, a=FINE)
    (tmp_path / "again").symlink_to(tmp_path, target_is_directory=True)
    assert list(found(tmp_path)) == ["a.yaml"]
