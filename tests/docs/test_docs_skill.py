"""`pgflow install-skill`, and what it writes: tests/docs/test_docs.py runs the program in it."""

from __future__ import annotations

import re
from pathlib import Path

import servers
from clikit import pgflow
from pgflow_cli.look import failures
from ruamel.yaml import YAML

SKILL = servers.REPOSITORY / "cli" / "pgflow_cli" / "skill" / "SKILL.md"


def test_the_skill_is_written_and_renewed(tmp_path):
    target = tmp_path / "skills" / "pgflow" / "SKILL.md"
    answer = pgflow(None, "install-skill", "--to", str(tmp_path / "skills"), tty=True, width=200)
    assert (answer.code, answer.out) == (0, f"Wrote {target}\n")
    assert target.read_text() == SKILL.read_text()
    assert pgflow(None, "install-skill", "--to", str(tmp_path / "skills"), "--json").data == {
        "file": str(target),
        "changed": False,
    }
    target.write_text("---\nname: pgflow\n---\nwhat an older version said")
    assert pgflow(None, "install-skill", "--to", str(tmp_path / "skills"), "--json").data == {
        "file": str(target),
        "changed": True,
    }
    assert target.read_text() == SKILL.read_text()


def test_the_folder_of_skills_is_that_of_the_project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert pgflow(None, "install-skill").code == 0
    assert Path(".agents/skills/pgflow/SKILL.md").exists()


def test_a_file_of_somebody_else_is_left_alone(tmp_path):
    target = tmp_path / "pgflow" / "SKILL.md"
    target.parent.mkdir()
    target.write_text("mine")
    answer = pgflow(None, "install-skill", "--to", str(tmp_path))
    assert answer.code == 2
    assert "was not written by pgflow" in answer.err
    assert target.read_text() == "mine"


def test_a_folder_that_cannot_be_made_is_a_mistake_of_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    answer = pgflow(None, "install-skill", "--to", str(tmp_path / "file"))
    assert answer.code == 2
    assert len(answer.err.splitlines()) == 1


def test_the_front_matter_is_what_assistants_read():
    matter = YAML(typ="safe").load(SKILL.read_text().split("---\n")[1])
    assert set(matter) == {"name", "description"}
    assert matter["name"] == "pgflow"
    assert 100 < len(matter["description"]) <= 1024


def test_the_exit_codes_are_those_of_the_program():
    said = re.search(r"Exit codes: (.*)\.", SKILL.read_text())[1]
    assert {int(code) for code in re.findall(r"(\d+) ", said)} == set(failures.MEANINGS) - {
        failures.INTERRUPTED
    }
