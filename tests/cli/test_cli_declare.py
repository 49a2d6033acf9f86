"""validate, dry-run, compile and icm init: what they say to people and machines, and how they
end.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from clikit import finish, pgflow, process
from declarekit import CONTRACT, REVIEW, write_examples
from servers import HANG_SECONDS

BROKEN = """\
name: broken
description: Two nodes that wait for each other, and one that waits for nobody.
nodes:
  - id: a
    prompt: one
    depends_on: [b]
  - id: b
    prompt: two
    depends_on: [a]
  - id: c
    prompt: three
    depends_on: [nowhere]
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with one of each family, one broken file, and stubs."""
    write_examples(tmp_path)
    (tmp_path / "broken.yaml").write_text(BROKEN)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def lines(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines()]


# validate
# ---------------------------------------------------------------------------------------------------------------------


def test_files_that_are_fine_are_said_to_be(folder):
    answer = pgflow(None, "validate", "review.yaml", "greet.sop.md", "essays", tty=True)
    assert (answer.code, answer.err) == (0, answer.err)
    assert [line for line in answer.out.splitlines() if ": ok, " in line] == [
        "review.yaml: ok, 4 nodes",
        "greet.sop.md: ok, 2 nodes",
        "essays: ok, 2 nodes",
    ]
    assert answer.err.startswith("3 files ok")


def test_every_problem_has_file_line_and_column(folder):
    answer = pgflow(None, "validate", "broken.yaml", tty=True)
    assert answer.code == 1
    assert "broken.yaml:10:5: error: " in answer.out or "broken.yaml:12:" in answer.out
    assert "'c' depends_on unknown node 'nowhere'" in answer.out
    assert answer.err.startswith("1 of 1 file cannot be used: ")
    assert ": ok" not in answer.out


def test_json_is_one_object_a_line(folder):
    answer = pgflow(None, "validate", "review.yaml", "broken.yaml", "--json")
    fine, broken = lines(answer.out)
    assert answer.code == 1
    assert answer.err == ""
    assert (fine["file"], fine["ok"], fine["errors"]) == ("review.yaml", True, [])
    assert (broken["file"], broken["ok"]) == ("broken.yaml", False)
    assert list(broken) == ["file", "kind", "nodes", "ok", "errors", "warnings"]
    assert [(one["kind"], one["nodes"]) for one in (fine, broken)] == [("dag", 4), ("dag", None)]
    assert all(
        set(problem) == {"message", "line", "column"}
        for problem in broken["errors"] + broken["warnings"]
    )
    assert all(isinstance(problem["line"], int) for problem in broken["errors"])


def test_an_unknown_key_is_a_warning_and_does_not_fail(folder):
    (folder / "review.yaml").write_text(REVIEW + "policyFile: x\n")
    answer = pgflow(None, "validate", "review.yaml", tty=True)
    assert answer.code == 0
    assert "warning: Workflow 'review': unknown key 'policyFile' will be ignored." in answer.out


def test_a_sound_file_that_includes_what_is_not_there_is_ok_with_a_note(folder):
    (folder / "outer.yaml").write_text(
        "name: outer\ndescription: d\nnodes:\n  - id: inner\n    include: elsewhere\n"
    )
    answer = pgflow(None, "validate", "outer.yaml", tty=True)
    assert answer.code == 0
    assert re.match(r"outer.yaml:\d+:\d+: note: .*elsewhere", answer.out)
    assert "outer.yaml: ok, but this command has no graph of it" in answer.out
    answer = pgflow(None, "compile", "outer.yaml")
    assert (answer.code, answer.out) == (1, "")
    assert "elsewhere" in answer.err


def test_a_folder_stands_for_everything_in_it(folder):
    (folder / "plan.stubs.yaml").write_text("plan: x\n")
    (folder / "notes.md").write_text("# Notes\n")
    (folder / ".github" / "workflows").mkdir(parents=True)
    (folder / ".github" / "workflows" / "ci.yml").write_text("on: push\n")
    said = lines(pgflow(None, "validate", ".").out)
    assert [verdict["file"] for verdict in said] == [
        "broken.yaml",
        "greet.sop.md",
        "review.yaml",
        "essays",
    ]
    assert [verdict["ok"] for verdict in said] == [False, True, True, True]


def test_problems_of_a_workspace_name_the_file_in_it(folder):
    (folder / "essays/stages/02-polish/CONTEXT.md").write_text(
        CONTRACT.format(title="Polish", source="../01-draft/output/none.md") + "\n{{TONE}}\n"
    )
    answer = pgflow(None, "validate", "essays", tty=True)
    found = [line for line in answer.out.splitlines() if "warning: " in line or "error: " in line]
    assert found
    assert all(line.startswith("essays/stages/02-polish/CONTEXT.md:") for line in found)


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("nowhere.yaml", "Cannot be read: No such file or directory"),
        ("notes.txt", "Not a workflow"),
        ("empty", "No workflow is found here"),
        ("a\0b.yaml", "Cannot be read: embedded null byte"),
        ("x" * 300, "Cannot be read: File name too long"),
        ("pipe.yaml", "Not a file"),
    ],
)
def test_a_path_that_is_no_workflow_is_a_problem_like_others(folder, path, said):
    (folder / "notes.txt").write_text("notes")
    (folder / "empty").mkdir()
    os.mkfifo(folder / "pipe.yaml")
    bad, fine = lines(pgflow(None, "validate", path, "review.yaml").out)
    assert [problem["message"] for problem in bad["errors"]] == [said]
    assert (bad["ok"], fine["ok"]) == (False, True)
    assert pgflow(None, "validate", path, tty=True).code == 1


def test_control_characters_do_not_reach_the_terminal(folder):
    name = "evil\x1b]0;owned\x07\u202e.yaml"
    (folder / name).write_text('name: "\\e[31mred"\nnodes: []\n')
    answer = pgflow(None, "validate", name, tty=True)
    assert answer.code == 1
    assert not {"\x1b", "\x07", "\u202e"} & set(answer.out + answer.err)


def test_a_name_that_is_not_utf8_is_said_all_the_same(folder):
    path = os.fsdecode(bytes(folder) + b"/\xff.yaml")
    Path(path).write_text(REVIEW)
    assert [verdict["file"] for verdict in lines(pgflow(None, "validate", path).out)] == [path]
    assert pgflow(None, "validate", path, tty=True).code == 0


@pytest.mark.full
def test_verdicts_come_one_by_one_and_may_be_cut_off(folder):
    started = process(
        None,
        "validate",
        str(folder / "review.yaml"),
        *[str(folder / "greet.sop.md")] * 2_000,
        "--json",
    )
    assert json.loads(started.stdout.readline())["file"] == str(folder / "review.yaml")
    assert started.poll() is None, "it is still at work"
    started.stdout.close()
    assert started.wait(HANG_SECONDS) == 0
    with started.stderr:
        assert started.stderr.read() == ""


@pytest.mark.full
def test_ctrl_c_ends_it_with_its_own_code_and_no_traceback(folder):
    started = process(None, "validate", *[str(folder / "greet.sop.md")] * 5_000, "--json")
    started.stdout.readline()
    started.send_signal(signal.SIGINT)
    answer = finish(started)
    assert (answer.code, answer.err) in ((130, ""), (130, "pgflow: interrupted\n"))


def test_workflows_are_found_in_folders_that_are_named(folder):
    (folder / "own").mkdir()
    (folder / "own" / "main.yaml").write_text(
        "name: main\ndescription: d\nnodes: [{id: part, include: shared}]\n"
    )
    library = folder / "lib" / "more"
    library.mkdir(parents=True)
    (library / "x.yaml").write_text(
        "name: shared\ndescription: d\nnodes: [{id: a, prompt: hello}]\n"
    )
    alone = pgflow(None, "validate", "own/main.yaml", "--json")
    assert (alone.code, lines(alone.out)[0]["nodes"]) == (0, None)
    answer = pgflow(None, "validate", "own/main.yaml", "--json", "--path", "lib")
    assert lines(answer.out)[0]["nodes"] == 1
    answer = pgflow(None, "dry-run", "own/main.yaml", "--json", "--default-stubs", "--path", "lib")
    assert outputs(answer) == {"part__a": "TODO"}
    answer = pgflow(None, "compile", "own/main.yaml", "--path", "essays", "--path", "lib")
    assert answer.data["nodes"][0]["id"] == "part__a"
    answer = pgflow(None, "validate", "own/main.yaml", "--path", "nowhere")
    assert (answer.code, answer.err.strip()) == (2, "pgflow: --path nowhere is not a folder")


# dry-run
# ----------------------------------------------------------------------------------------------------------------------


def dry(*more: str, stubs: str = "stubs.json", tty: bool = False):
    return pgflow(
        None, "dry-run", "review.yaml", "--stubs", stubs, "--message", "PR 7", *more, tty=tty
    )


def test_a_dry_run_tells_what_would_happen(folder):
    answer = dry("--input", "team=core", "--json")
    assert answer.code == 0
    told = answer.data
    assert told["outcome"] == "completed"
    assert [(entry["id"], entry["state"]) for entry in told["trace"]] == [
        ("size", "stubbed"),
        ("quick", "skipped"),
        ("thorough", "stubbed"),
        ("report", "stubbed"),
    ]
    assert told["trace"][2] == {
        "id": "thorough",
        "type": "prompt",
        "state": "stubbed",
        "reason": None,
        "text": "Read all of PR 7",
        "output": "it is fine",
    }
    assert told["trace"][1]["reason"] == "when_condition_false"


def test_to_a_person_it_is_a_table(folder):
    answer = dry("--input", "team=core", tty=True)
    assert answer.code == 0
    assert [line.split()[:3] for line in answer.out.splitlines()[:3]] == [
        ["NODE", "MODE", "STATE"],
        ["size", "bash", "stubbed"],
        ["quick", "prompt", "skipped"],
    ]
    assert "The run would end as completed" in answer.out
    assert "It would say: Fine." in answer.out


def test_nodes_without_a_stub_and_stubs_without_a_node_are_named(folder):
    (folder / "stubs.json").write_text('{"size": "small", "nobody": 1}')
    answer = dry("--input", "team=core", tty=True)
    assert answer.code == 0, "the dry run was played; how the run would end is its answer"
    assert "The run would end as failed" in answer.out
    assert answer.err == "no stub for quick\nunused stubs: nobody\n"


def test_inputs_are_texts_or_json(folder):
    (folder / "stubs.json").write_text('{"size": "small", "quick": "q", "report": "r"}')
    told = dry("--input", "team=core", "--input", 'depth:={"lines": 3}').data
    assert told["trace"][1]["text"] == 'Look at this small change: PR 7 ({"lines":3}, core)'


def test_stubs_may_be_yaml_or_come_from_standard_input(folder):
    (folder / "stubs.yaml").write_text("size: large\nthorough: {score: 3}\nreport: done\n")
    told = dry(stubs="stubs.yaml").data
    assert [entry["output"] for entry in told["trace"] if "output" in entry] == [
        "large",
        '{"score":3}',
        "done",
    ]
    answer = pgflow(
        None, "dry-run", "review.yaml", "--stubs", "-", "--json", typed='{"size": "large"}'
    )
    assert answer.data["trace"][0]["output"] == "large"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "stubs.json is not JSON: Expecting property name"),
        ("[]", "stubs.json holds no stubs: they are an object"),
        ("[" * 100_000, "stubs.json is not JSON: it is nested too deeply"),
        ('{"plan": NaN}', "stubs.json is not JSON: NaN is not a number in JSON"),
        (b"\xff\xfe", "stubs.json cannot be read: 'utf-8' codec can't decode"),
        (None, "stubs.json cannot be read: No such file or directory"),
    ],
)
def test_stubs_that_cannot_be_read_are_one_line_and_a_usage_error(folder, content, said):
    if content is None:
        (folder / "stubs.json").unlink()
    else:
        (folder / "stubs.json").write_bytes(
            content.encode() if isinstance(content, str) else content
        )
    answer = dry()
    assert (answer.code, answer.out, answer.err.count("\n")) == (2, "", 1)
    assert answer.err.startswith(f"pgflow: {said}")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--input", "tone=soft"], "review has no input 'tone': it has depth, team"),
        (["--input", "team"], "a parameter is written NAME=TEXT or NAME:=JSON, not 'team'"),
        (["--input", "team:={"], "parameter team is not JSON"),
    ],
)
def test_inputs_that_make_no_sense_are_usage_errors(folder, more, said):
    answer = dry(*more)
    assert (answer.code, answer.out, answer.err.count("\n")) == (2, "", 1)
    assert answer.err.startswith(f"pgflow: {said}")


def test_half_a_surrogate_pair_does_not_stop_the_answer(folder):
    (folder / "stubs.json").write_text('{"size": "\\ud800"}')
    assert dry("--json").data["trace"][0]["output"] == "\ud800"
    assert dry(tty=True).code == 0


# Files that cannot be used, for every command that takes one
# ------------------------------------------------------------------


DEPLOY = """\
name: deploy
description: Builds, and asks.
interactive: true
nodes:
  - id: size
    bash: printf %s "$FROM_HERE $(ls)"
  - id: plan
    prompt: Plan $size.output
    output_format: {type: object, required: [risk], properties: {risk: {enum: [low, high]}}}
    depends_on: [size]
  - id: count
    bash: printf %s "$plan.output" | wc -c
    depends_on: [plan]
  - id: ask
    approval: {message: "Deploy?"}
    depends_on: [count]
  - id: publish
    bash: touch published
    effect: external
    depends_on: [ask]
"""


def deploy(*more: str):
    return pgflow(None, "dry-run", "deploy.yaml", "--json", *more)


def outputs(answer) -> dict[str, str | None]:
    assert answer.code == 0, answer.err
    return {entry["id"]: entry.get("output") for entry in answer.data["trace"]}


@pytest.fixture
def deployed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a workflow that runs code and asks a person."""
    (tmp_path / "deploy.yaml").write_text(DEPLOY)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_code_is_run_for_whoever_trusts_it_and_leaves_nothing(deployed, monkeypatch):
    pytest.importorskip("tree_sitter_bash", reason="the extra `run` is not installed")
    monkeypatch.setenv("FROM_HERE", "it's")
    found = outputs(deploy("--default-stubs", "--exec-code", "--env", "FROM_HERE"))
    assert found["size"] == "it's deploy.yaml"
    assert found["count"] == str(len(found["plan"]))
    assert found["publish"] == "TODO"
    assert [path.name for path in deployed.iterdir()] == ["deploy.yaml"]
    (deployed / "work").mkdir()
    found = outputs(deploy("--exec-code", "--cwd", "work", "--default-stubs"))
    assert found["size"] == " ", "another folder, and no variable that was not named"


def test_a_file_of_stubs_is_written_once(deployed):
    for name in ("fixtures/all.stubs.yaml", "all.json"):
        answer = deploy("--stubs-init", name)
        assert (answer.code, answer.err.strip()) == (0, f"Wrote {name}: 4 stubs")
        found = outputs(deploy("--stubs", name))
        assert found["plan"] == '{"risk":"low"}'
        assert found["count"] == "TODO"
    answer = deploy("--stubs-init", "all.json")
    assert (answer.code, "is there already" in answer.err) == (2, True)


def test_a_rejection_can_be_played(deployed):
    answer = deploy("--default-stubs", "--reject", "ask=too late")
    assert (answer.code, answer.data["outcome"]) == (0, "cancelled")
    answer = deploy("--default-stubs", "--reject", "ask=no", "--dialect", "ion")
    assert (answer.data["outcome"], answer.data["trace"][-2]["reason"]) == (
        "failed",
        "rejected: no",
    )
    answer = deploy("--default-stubs", "--pause-at-gates")
    assert (answer.data["outcome"], answer.data["trace"][-1]["state"]) == ("paused", "paused")
    answer = pgflow(
        None,
        "dry-run",
        "deploy.yaml",
        "--default-stubs",
        "--reject",
        "ask",
        "--reject",
        "ask",
        tty=True,
    )
    assert "made up: the output of count, plan, size" in answer.err
    assert "not asked so often: ask" in answer.err


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (["--reject", "size"], "has no approval 'size': it has ask"),
        (["--cwd", "."], "require --exec-code"),
        (["--exec-code", "--cwd", "nowhere"], "is not a folder"),
        (["--stubs-init", "x.json", "--default-stubs"], "pass it alone"),
        (["--stubs-init", "deploy.yaml/x.json"], "cannot be written"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(deployed, more, why):
    answer = deploy(*more)
    assert (answer.code, why in answer.err) == (2, True), answer.err


@pytest.mark.parametrize("command", ["dry-run", "compile"])
def test_a_file_with_errors_says_them_and_ends_with_1(folder, command):
    answer = pgflow(None, command, "broken.yaml")
    assert (answer.code, answer.out) == (1, "")
    assert "broken.yaml:" in answer.err
    assert "depends_on unknown node 'nowhere'" in answer.err


@pytest.mark.parametrize("command", ["dry-run", "compile"])
@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("nowhere.yaml", "nowhere.yaml: Cannot be read: No such file or directory"),
        (
            "stubs.json",
            (
                "stubs.json: Not a workflow (workflows end in .yaml, .yml, .sop.md, .script.md, or are "
                "ICM workspaces)"
            ),
        ),
        (".", ".: Several workflows are found here (name one of them)"),
    ],
)
def test_a_path_that_is_no_one_workflow_is_a_usage_error(folder, command, path, said):
    answer = pgflow(None, command, path)
    assert (answer.code, answer.out, answer.err) == (2, "", f"pgflow: {said}\n")


# compile
# ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "nodes"), [("review.yaml", 4), ("greet.sop.md", 2), ("essays", 2)]
)
def test_compile_prints_the_graph_of_every_family(folder, path, nodes):
    from pgflow.declare import Graph

    answer = pgflow(None, "compile", path)
    assert (answer.code, answer.err) == (0, "")
    graph = Graph.model_validate_json(answer.out)
    assert len(graph.nodes) == nodes


def test_compile_draws(folder):
    assert pgflow(None, "compile", "review.yaml", "--mermaid").out.startswith("flowchart TD\n")


def test_compile_writes_a_file(folder):
    answer = pgflow(None, "compile", "essays", "--mermaid", "--output", "essays.mmd")
    assert (answer.code, answer.out, answer.err) == (0, "", "Wrote essays.mmd\n")
    assert (folder / "essays.mmd").read_text().startswith("flowchart TD\n")


def test_a_file_that_cannot_be_written_is_one_line(folder):
    answer = pgflow(None, "compile", "review.yaml", "--output", "nowhere/graph.json")
    assert (answer.code, answer.err) == (
        2,
        "pgflow: nowhere/graph.json cannot be written: No such file or directory\n",
    )


# icm init
# ---------------------------------------------------------------------------------------------------------------------


def contents(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()
    }


def test_icm_init_writes_what_is_missing_and_keeps_the_prose(folder):
    before = contents(folder / "essays")
    answer = pgflow(None, "icm", "init", "essays", tty=True)
    assert answer.code == 0
    assert answer.out.splitlines() == [
        "workflow.yaml: new",
        "stages/01-draft/CONTEXT.md: frontmatter before the prose",
        "stages/02-polish/CONTEXT.md: frontmatter before the prose",
    ]
    assert answer.err.endswith("3 files written; the prose stays as it is\n")
    after = contents(folder / "essays")
    assert set(after) == {*before, "workflow.yaml"}
    assert all(after[name].endswith(before[name]) for name in before)
    assert pgflow(None, "icm", "init", "essays", tty=True).err.endswith("nothing is missing\n")


def test_icm_init_may_only_say_what_it_would_do(folder):
    before = contents(folder / "essays")
    answer = pgflow(None, "icm", "init", "essays", "--dry-run", tty=True)
    assert answer.err.endswith("3 files would be written; the prose stays as it is\n")
    told = pgflow(None, "icm", "init", "essays", "--dry-run", "--json").data
    assert (told["directory"], told["ok"], told["written"]) == ("essays", True, False)
    assert [file["path"] for file in told["files"]] == [
        "workflow.yaml",
        "stages/01-draft/CONTEXT.md",
        "stages/02-polish/CONTEXT.md",
    ]
    assert contents(folder / "essays") == before


def test_icm_init_refuses_what_is_no_workspace(folder):
    answer = pgflow(None, "icm", "init", "review.yaml")
    assert (answer.code, answer.err) == (
        2,
        "pgflow: review.yaml is not a directory: name the folder of an ICM workspace\n",
    )
    (folder / "plain").mkdir()
    answer = pgflow(None, "icm", "init", "plain", tty=True)
    assert answer.code == 1
    assert "plain: error: " in answer.err
    assert answer.err.endswith("nothing was written: fix the errors first\n")
    assert contents(folder / "plain") == {}


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is forbidden to root")
def test_icm_init_says_what_it_may_not_write(folder):
    (folder / "essays").chmod(0o555)
    answer = pgflow(None, "icm", "init", "essays")
    (folder / "essays").chmod(0o755)
    assert (answer.code, answer.err.count("\n")) == (2, 1)
    assert "cannot be written: Permission denied" in answer.err


@pytest.mark.full
def test_none_of_it_needs_a_database_or_a_driver_for_one(folder):
    code = (
        "import sys; from pgflow_cli.commands import run\n"
        "codes = [run(words) for words in (['validate', 'review.yaml', 'greet.sop.md', 'essays'], "
        "['compile', 'review.yaml'], ['dry-run', 'review.yaml'], ['icm', 'init', 'essays'])]\n"
        "print(codes, file=sys.stderr)"
    )
    env = {**os.environ, "PGFLOW_DSN": "postgresql://127.0.0.1:1/none"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
    )
    assert done.stderr.endswith("[0, 0, 0, 0]\n")


@pytest.mark.full
def test_many_files_take_seconds(folder):
    (folder / "many").mkdir()
    for number in range(100):
        (folder / "many" / f"{number:03}.yaml").write_text(
            REVIEW.replace("name: review", f"name: review-{number}")
        )
    started = process(None, "validate", str(folder / "many"), "--json")
    answer = finish(started)
    assert len(lines(answer.out)) == 100
    assert answer.code == 0
