"""`pgflow check`: lines, JSON, annotations and exit codes of the lint of workflow code."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from clikit import Answer, environment, pgflow

BAD = """\
import time

import pgflow


@pgflow.workflow
def flow() -> None:
    time.time()
    print("50%, [bold]done[/bold]: ok")
"""
GOOD = "import pgflow\n\n\n@pgflow.workflow\ndef flow() -> None:\n    pgflow.now()\n"
CLOCK = "time.time() in workflow flow: a replay sees another time; use pgflow.now(), the database's time of the last outcome"
OUTPUT = "print() in workflow flow: every replay says it again; use pgflow.logger, which is silent on a replay"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a workflow that is well, and one that is not."""
    monkeypatch.chdir(tmp_path)
    for name in ("GITHUB_ACTIONS", "GITHUB_WORKSPACE"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "bad.py").write_text(BAD)
    (tmp_path / "good.py").write_text(GOOD)
    return tmp_path


def check(*arguments: str, tty: bool = False, width: int = 100) -> Answer:
    return pgflow(None, "check", *arguments, tty=tty, width=width)


@pytest.mark.parametrize("tty", [True, False])
def test_findings_are_lines_on_a_terminal_and_into_a_pipe(tty):
    answer = check("bad.py", "good.py", tty=tty, width=40)
    assert answer.code == 1
    assert answer.out == f"bad.py:8:5 PF101 {CLOCK}\nbad.py:9:5 PF110 {OUTPUT}\n"
    assert answer.err == "2 workflows in 2 files: 2 findings\n"


def test_nothing_found_is_code_0():
    assert check("good.py") == Answer(0, "", "1 workflow in 1 file: nothing found\n")


def test_findings_as_json():
    answer = check(".", "--json")
    assert answer.code == 1
    assert answer.data == [
        {
            "file": "bad.py",
            "line": 8,
            "column": 5,
            "code": "PF101",
            "title": "clock",
            "message": CLOCK,
        },
        {
            "file": "bad.py",
            "line": 9,
            "column": 5,
            "code": "PF110",
            "title": "output",
            "message": OUTPUT,
        },
    ]
    assert answer.out.count("\n") == 4, "one object a line"
    assert check("good.py", "--json").data == []


def test_annotations_for_github_are_escaped():
    (name,) = [Path("a,b:50%.py")]
    name.write_text(BAD.replace("time.time()", "pass"))
    answer = check(str(name), "--github")
    assert answer.code == 1
    assert (
        answer.err.splitlines()[0]
        == f"::error file=a%2Cb%3A50%25.py,line=9,col=5,title=PF110 output::{OUTPUT}"
    )
    assert answer.out.startswith("a,b:50%.py:9:5 PF110 ")


def test_annotations_come_by_themselves_in_github_actions(folder):
    (folder / "work").mkdir()
    (folder / "work" / "flow.py").write_text(BAD)
    with environment(GITHUB_ACTIONS="true", GITHUB_WORKSPACE=str(folder.parent)):
        answer = check("work", "--json")
    assert [line.partition(",")[0] for line in answer.err.splitlines()[:2]] == [
        f"::error file={folder.name}/work/flow.py"
    ] * 2
    assert len(answer.data) == 2
    with environment(GITHUB_ACTIONS="true", GITHUB_WORKSPACE="/elsewhere"):
        assert check("work").err.startswith(
            "::error file=work/flow.py,line=8,col=5,title=PF101 clock::"
        )
    with environment(GITHUB_ACTIONS="true"):
        assert "::" not in check("good.py").err


def test_rules_are_chosen(folder):
    assert [row["code"] for row in check(".", "--json", "--select", "PF110").data] == ["PF110"]
    assert [row["code"] for row in check(".", "--json", "--ignore", "PF101, PF2").data] == ["PF110"]
    assert check(".", "--select", "pf101,PF110", "--ignore", "PF1").code == 0


@pytest.mark.parametrize(("arguments", "said"), [
    ([], "nothing to check: name files, folders or modules, as in `pgflow check flows.py`"),
    (["nothing.py"], "file or folder nothing.py does not exist"),
    (["nothing_here"], "file, folder or module nothing_here does not exist"),
    (["empty"], "empty has no Python files"),
    (["bad.py:flow"], "bad.py:flow is neither a file, nor a folder, nor the name of a module"),
    ([".", "--select", "PF3044"], ("no rule is called PF3044 (did you mean PF304?): `pgflow check "
                                  "--rules` lists them")),
    (["--explain", "clock"], "no rule is called clock: `pgflow check --rules` lists them"),
])  # fmt: skip
def test_what_cannot_be_meant_is_one_line_and_code_2(folder, arguments, said):
    (folder / "empty").mkdir()
    assert check(*arguments) == Answer(2, "", f"pgflow: {said}\n")


def test_a_file_that_is_not_python_is_one_line_and_the_findings_of_the_others_are_said(folder):
    (folder / "broken.py").write_text("x = (\n\x1b[31m")
    answer = check(".")
    assert answer.code == 2
    assert len(answer.out.splitlines()) == 2
    first, last = answer.err.splitlines()
    assert re.match(r"pgflow: broken\.py:\d:\d+: this is not Python 3\.\d+: ", first)
    assert last == "2 workflows in 2 files: 2 findings, 1 file not read"
    assert check("broken.py", "--json").out == "[]\n"


def test_names_of_files_cannot_play_with_the_terminal(folder):
    (folder / "red\x1b[31m.py").write_text(BAD)
    assert "\x1b" not in check("--ignore", "PF110", ".").out
    assert "\x1b" not in check(".", "--json").out


@pytest.mark.full
def test_a_name_of_a_file_that_is_no_utf8_is_shown_all_the_same(folder):
    odd = folder / b"caf\xe9.py".decode(errors="surrogateescape")
    try:
        odd.write_text(BAD)
    except OSError:
        pytest.skip("this file system knows no such names")
    assert check(".", "--json").code == 1
    command = [sys.executable, "-m", "pgflow_cli", "check", ".", "--github"]
    done = subprocess.run(command, capture_output=True, check=False)
    assert done.returncode == 1
    assert b"Traceback" not in done.stderr
    assert len(done.stdout.splitlines()) == 4


def test_the_rules_are_listed_and_explained():
    from pgflow.lint import RULES

    listed = check("--rules")
    assert listed.code == 0
    assert [line.split()[0] for line in listed.out.splitlines()] == [rule.code for rule in RULES]
    assert [row["code"] for row in check("--rules", "--json").data] == [rule.code for rule in RULES]
    explained = check("--explain", "pf101").out
    assert "PF101 clock: a replay sees another time;" in explained
    assert "    return datetime.datetime.now().isoformat()" in explained.replace(
        "        return", "    return"
    )
    assert json.loads(check("--explain", "PF101", "--json").out)[0]["good"].startswith(
        "import pgflow"
    )


# ---------------------------------------------------------------- --import


def module(folder: Path, name: str, text: str) -> str:
    """A module of its own name, so that no other test has imported it."""
    (folder / f"{name}.py").write_text(text)
    return f"{name}.py"


def test_nothing_is_imported_unless_asked_for(folder):
    file = module(folder, "lint_boom", "raise SystemExit('was run')\n" + GOOD)
    assert check(file).code == 0
    assert "lint_boom" not in sys.modules


OPAQUE = """\
from typing import NewType
import pgflow

class Parts:
    class Wheel: ...

Secret = NewType("Secret", Parts.Wheel)

@pgflow.step
def turn(wheel: Parts.Wheel, secret: Secret) -> int:
    return 1

@pgflow.transaction
def store(conn: "Connection", name: str) -> int:
    return 1

@pgflow.workflow
def drive(name: str, *, missing: "NotThere" = None) -> list[Parts.Wheel]:
    return []
"""


def test_imported_modules_are_asked_for_the_codec_of_every_annotation(folder):
    file = module(folder, "lint_opaque", OPAQUE)
    read = {(row["line"], row["column"]) for row in check(file, "--json").data}
    found = {
        (row["line"], row["column"]): row["message"]
        for row in check(file, "--json", "--import").data
    }
    assert read == {(10, 17), (18, 56)}
    assert set(found) == read | {(10, 38), (13, 1), (17, 1)}
    assert found[10, 38].startswith("parameter secret of step turn cannot be stored: ")
    assert "'NotThere' is not defined" in found[17, 1]
    assert check(file, "--import", "--ignore", "PF301").code == 0


def test_an_imported_module_whose_annotations_are_well_has_no_findings(folder):
    text = "import pgflow\n@pgflow.step\ndef act(x: dict[str, list[int]]) -> bytes:\n    return b''\n@pgflow.transaction\ndef write(conn: object, x: int) -> None: ...\n"
    assert check(module(folder, "lint_well", text), "--import") == Answer(
        0, "", "0 workflows in 1 file: nothing found\n"
    )


def test_a_module_that_cannot_be_imported_is_one_line(folder):
    answer = check(
        module(folder, "lint_failing", GOOD + "raise ValueError('not today')\n"), "--import"
    )
    assert (answer.code, answer.err.count("\n")) == (2, 1)
    assert "lint_failing.py cannot be imported: ValueError: not today" in answer.err


def test_two_files_that_are_the_same_module_are_not_mixed_up(folder):
    for name in ("one", "two"):
        (folder / name).mkdir()
        module(folder / name, "lint_twin", GOOD)
    answer = check(".", "--import", "--select", "PF3")
    assert answer.code == 2
    assert re.fullmatch(
        r"pgflow: .*two/lint_twin\.py is module lint_twin, and so is .*one/lint_twin\.py: check "
        r"them one by one\n",
        answer.err,
    )
