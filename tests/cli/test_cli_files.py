"""`pgflow run FILE`: what is refused before there is a run, what is said, and with which exit code."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from clikit import finish, pgflow, process

from pgflow.declare.durable.lease import lease_key
from pgflow.declare.durable.processes import close_keeper

COUNT = """\
name: count
description: Counts lines.
inputs:
  file: {required: true}
nodes:
  - id: lines
    bash: wc -l < "$INPUTS_FILE"
  - id: report
    prompt: "$INPUTS.file: $lines.output lines, $ARGUMENTS"
    depends_on: [lines]
"""
ASK = """\
name: release
description: Asks.
interactive: true
nodes:
  - id: ask
    approval: {message: "Release 1.4?", capture_response: true}
  - id: tell
    bash: echo "they said $ask.output"
    depends_on: [ask]
"""
LIMITED = """\
name: limited
description: Reads.
nodes:
  - {id: read, prompt: "hello", allowed_tools: [Read], systemPrompt: Be brief.}
"""
STEPS = """\
name: steps
description: Counts what it does.
nodes:
  - {id: first, bash: "echo x >> first; echo one"}
  - {id: second, bash: "echo x >> second; test -e mended", depends_on: [first]}
  - {id: third, bash: "echo x >> third; echo $first.output", depends_on: [second]}
"""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(tmp_path)
    Path("count.yaml").write_text(COUNT)
    Path("release.yaml").write_text(ASK)
    Path("limited.yaml").write_text(LIMITED)
    Path("steps.yaml").write_text(STEPS)
    yield
    close_keeper()
    os.chdir(before)


@pytest.mark.full
def test_a_file_is_run_and_says_what_its_last_node_said(dsn: str) -> None:
    said = finish(
        process(
            dsn,
            "run",
            str(Path("count.yaml").absolute()),
            "well",
            "done",
            "--table",
            "--watch",
            "--cwd",
            str(Path.cwd()),
            "--input",
            "file=count.yaml",
            "--provider",
            "cmd:tr a-z A-Z",
            "--key",
            "count-1",
        )
    )
    assert (said.code, said.out) == (0, "count-1 completed: COUNT.YAML: 10 LINES, WELL DONE\n"), (
        said
    )
    ends = [line for line in said.err.splitlines() if line.startswith("completed")]
    assert [line.partition(" (")[0] for line in ends] == ["completed lines", "completed report"]


def test_a_folder_in_which_another_run_works_is_refused_by_its_key(dsn: str, conn: Any) -> None:
    conn.execute(
        "select pgflow.take_lock(%s, holder => 'night job', ttl => '10 minutes')",
        (lease_key(str(Path.cwd())),),
    )
    said = pgflow(dsn, "run", "steps.yaml", "--lease", "refuse")
    assert said.code == 2
    assert "run 'night job' works in" in said.err


@pytest.mark.full
def test_a_workflow_is_named_where_archon_has_them(dsn: str) -> None:
    folder = Path(".archon", "workflows")
    folder.mkdir(parents=True)
    (folder / "one.yaml").write_text(
        "name: one-node\ndescription: d\nnodes: [{id: a, bash: echo hi}]\n"
    )
    said = pgflow(dsn, "run", "one-node", "--json")
    assert said.code == 0, said.err
    assert said.data["output"]["output"] == "hi"
    assert said.data["output"]["nodes"] == {"a": "completed"}


@pytest.mark.full
def test_a_workflow_is_named_in_a_folder_that_is_searched_with_what_it_calls(dsn: str) -> None:
    folder = Path("library", "workflows")
    folder.mkdir(parents=True)
    for name, node in (("outer", "workflow: inner"), ("inner", "bash: echo hi")):
        text = f"name: {name}-node\ndescription: d\nnodes: [{{id: a, {node}}}]\n"
        (folder / f"{name}.yaml").write_text(text.replace("workflow: inner", "include: inner-node"))
    Path("calls.yaml").write_text(
        "name: calls\ndescription: d\nnodes: [{id: a, workflow: outer-node}]\n"
    )
    said = pgflow(dsn, "run", "calls.yaml", "--path", str(folder), "--json")
    assert said.code == 0, said.err
    assert said.data["output"]["output"] == "hi"
    said = pgflow(dsn, "run", "outer-node", "--path", str(folder), "--json", "--detach")
    assert (said.code, said.data["new"]) == (0, True), said.err


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["count.yaml", "--path", "nowhere"], "is not a folder"),
        (["count.yaml"], "pass --provider"),
        (["count.yaml", "--provider", "cmd:cat"], "needs input 'file'"),
        (["count.yaml", "--provider", "cmd:cat", "-i", "files=x"], "has no input 'files'"),
        (["count.yaml", "--provider", "no:x", "-i", "file=x"], "unknown provider 'no'"),
        (["count.yaml", "--cwd", "nowhere"], "is not a folder"),
        (["count.yaml", "--env", "NO_SUCH_NAME"], "--env: the variable NO_SUCH_NAME is not set"),
        (["missing.yaml"], "No such file"),
        (
            ["release.yaml", "--secret", "NO_SUCH_NAME"],
            "--secret: the variable NO_SUCH_NAME is not set",
        ),
        (["release.yaml", "--secret", "PGFLOW_DSN"], "no program gets the connection"),
        (
            ["release.yaml", os.environ["PATH"], "--secret", "PATH"],
            "the message says the value of the secret PATH",
        ),
        (["release.yaml", "--env", "DATABASE_URL"], "no program gets the connection"),
        (["limited.yaml", "--provider", "cmd:cat"], "limits its agent by allowed_tools"),
        (
            ["count.yaml", "-i", "file=a", "--provider", "cmd:no-such-agent -p"],
            "cannot find program",
        ),
        (
            ["count.yaml", "-i", "file=a", "--provider", "cmd:./agent.sh"],
            "cannot find program './agent.sh'",
        ),
        (["count.yaml", "-i", "file=a", "--provider", "python:no_such:answer"], "cannot be found"),
        (["release.yaml", "--worktree"], "is in no git repository"),
        (["release.yaml", "--from", "ask"], "--from requires a file and the --key"),
        (["release.yaml", "--key", "k", "--from", "ask", "--cwd", "."], "--from alone"),
        (["release.yaml", "--key", "k", "--from", "nonesuch"], "has no node 'nonesuch'"),
        (["release.yaml", "--key", "k", "--from", "ask"], "no run"),
        (["treasury:pay", "--provider", "cmd:cat"], "--provider requires a file"),
    ],
)
def test_what_can_be_refused_is_refused_before_there_is_a_run(
    dsn: str, arguments: list[str], why: str
) -> None:
    said = pgflow(dsn, "run", *arguments)
    assert said.code == 2
    assert why in said.err
    assert pgflow(dsn, "list", "--json").data == []


@pytest.mark.full
def test_a_run_that_waits_for_a_person_says_so_and_goes_on_under_its_key(dsn: str) -> None:
    pytest.importorskip("tree_sitter_bash", reason="the extra `run` is not installed")
    command = ("run", "release.yaml", "--key", "release-1", "--table")
    said = pgflow(dsn, *command)
    assert said.code == 4, said
    assert "ask asks: Release 1.4?" in said.err
    assert "pgflow approve release-1 ['...']   or   pgflow reject release-1 --why" in said.err
    assert pgflow(dsn, "edit", "release-1", '{"response": "go"}').code == 0
    said = pgflow(dsn, *command)
    assert (said.code, said.out) == (0, "release-1 completed: they said go\n"), said


TWO = """\
name: two
description: Asks twice at once.
interactive: true
nodes:
  - {id: left, approval: {message: "Left?", capture_response: true}}
  - id: right
    approval: {message: "Right?", decisions: [{id: approve, label: Yes}, {id: later, label: Later}]}
  - id: tell
    bash: echo "$left.output $right.output.decision $right.output.text"
    depends_on: [left, right]
"""


@pytest.mark.full
def test_the_words_of_other_engines_answer_and_look_by_the_key_of_the_run(dsn: str) -> None:
    pytest.importorskip("tree_sitter_bash", reason="the extra `run` is not installed")
    Path("two.yaml").write_text(TWO)
    command = ("run", "two.yaml", "--key", "two-1", "--json")
    said = pgflow(dsn, *command)
    assert (said.code, "respond two-1 --node right later" in said.err) == (4, True), said
    assert [run["key"] for run in pgflow(dsn, "status", "--json").data] == ["two-1"]
    assert pgflow(dsn, "status", "two-1", "--json").data["status"] == "waiting"
    several = pgflow(dsn, "approve", "two-1")
    assert (several.code, "several gates: name the node" in several.err) == (2, True)
    assert "no gate 'up'" in pgflow(dsn, "approve", "two-1", "--node", "up").err
    strange = pgflow(dsn, "respond", "two-1", "never", "--node", "right")
    assert (strange.code, "it offers approve, later" in strange.err) == (2, True), strange
    assert pgflow(dsn, "approve", "two-1", "left", "well", "done").code == 0
    assert "name the decision" in pgflow(dsn, "respond", "two-1", "right").err
    assert pgflow(dsn, "respond", "two-1", "right", "later", "in", "May").code == 0
    assert pgflow(dsn, *command).data["output"]["output"] == "well done later in May"
    assert pgflow(dsn, "get", "two-1", "--json").data["status"] == "completed"
    assert [run["key"] for run in pgflow(dsn, "runs", "--json").data] == ["two-1"]
    assert pgflow(dsn, "status", "--json").data == []
    assert "has ended" in pgflow(dsn, "abandon", "two-1").err


@pytest.mark.full
def test_a_second_answer_to_a_node_is_no_answer_to_another(dsn: str) -> None:
    Path("two.yaml").write_text(TWO)
    assert pgflow(dsn, "run", "two.yaml", "--key", "two-2", "--json").code == 4
    assert pgflow(dsn, "approve", "two-2", "left", "well").code == 0
    for verb in ("approve", "reject"):
        again = pgflow(dsn, verb, "two-2", "left", "well")
        assert (again.code, "gate 'left' of run 'two-2' was answered" in again.err) == (2, True)
    assert [gate["name"] for gate in pgflow(dsn, "gates", "--json").data] == ["right"]
    assert pgflow(dsn, "approve", "two-2", "--node", "right", "left", "it").code == 0


@pytest.mark.full
def test_inputs_that_are_missing_are_asked_for_at_a_terminal(dsn: str) -> None:
    pytest.importorskip("tree_sitter_bash", reason="the extra `run` is not installed")
    command = ("run", "count.yaml", "--provider", "cmd:cat", "--key", "asked-1", "--table")
    said = pgflow(dsn, *command, typed="\n  \ncount.yaml\n")
    assert (said.code, said.out) == (0, "asked-1 completed: count.yaml: 10 lines,\n"), said
    assert "file: " in said.err
    said = pgflow(dsn, *command)
    assert (said.code, said.out) == (0, "asked-1 completed: count.yaml: 10 lines,\n"), said
    assert "file: " not in said.err, "the run has its inputs"
    said = pgflow(dsn, "run", "count.yaml", "--provider", "cmd:cat", typed="")
    assert (said.code, "nothing was done" in said.err) == (1, True), "nobody answers"
    assert [one["key"] for one in pgflow(dsn, "list", "--json").data] == ["asked-1"]


@pytest.mark.full
def test_the_config_of_the_folder_gives_variables_documents_and_the_base(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("told.yaml").write_text(
        "name: told\ndescription: d\nnodes:\n"
        """  - {id: a, bash: 'echo "$LEVEL,$NAMED,$PGPASSWORD,$DOCS_DIR,$BASE_BRANCH"'}\n"""
    )
    Path(".archon").mkdir()
    config = Path(".archon", "config.yaml")
    config.write_text(
        "env: {LEVEL: 3, NAMED: config, PGPASSWORD: x}\ndocs: {path: handbook/}\n"
        "worktree: {baseBranch: trunk}\n"
    )
    monkeypatch.setenv("NAMED", "named")
    said = pgflow(dsn, "run", "told.yaml", "--env", "NAMED", "--json")
    assert said.data["output"]["output"] == "3,named,,handbook/,trunk", said.err
    monkeypatch.setenv("ARCHON_HOME", str(Path("home").absolute()))
    Path("home").mkdir()
    Path("home", "config.yaml").write_text(config.read_text().replace("3", "4"))
    config.write_text("docs: {path: manual/}")
    said = pgflow(dsn, "run", "told.yaml", "--json")
    assert said.data["output"]["output"] == "4,config,,manual/,trunk", "the user's own"
    for text, why in (
        ("env: [x]", "env must be a mapping"),
        ("docs: {path: 1}", "must be text"),
        ("env: {a-b: 1}", "env.a-b must be the name of a variable"),
        ("a: [", "cannot be read"),
    ):
        config.write_text(text)
        said = pgflow(dsn, "run", "told.yaml")
        assert (said.code, why in said.err) == (2, True), said


MODELS = """\
name: models
description: Has an agent for each word.
model: small
nodes:
  - {id: a, prompt: x}
  - {id: b, prompt: x, model: medium}
  - {id: c, prompt: x, model: "@mine"}
  - {id: d, prompt: x, model: "@nobody"}
  - {id: tell, bash: 'echo "$a.output $b.output $c.output $d.output"', depends_on: [a, b, c, d]}
"""


@pytest.mark.full
def test_a_word_for_a_model_is_what_the_config_says(dsn: str) -> None:
    pytest.importorskip("tree_sitter_bash", reason="the extra `run` is not installed")
    Path("models.yaml").write_text(MODELS)
    Path(".archon").mkdir()
    config = Path(".archon/config.yaml")
    config.write_text(
        "tiers: {small: {provider: claude, model: haiku}, large: {provider: claude, model: opus}}\n"
        "aliases: {'@mine': {provider: local, model: my-own, effort: high}}\n"
    )
    command = ("run", "models.yaml", "--provider", "cmd:sh -c 'printf %s $PGFLOW_MODEL'", "--json")
    said = pgflow(dsn, *command)
    assert (said.code, said.err.count("warning")) == (0, 1), said
    assert said.data["output"]["output"] == "haiku opus my-own @nobody"
    assert "model @nobody is in no config" in said.err
    for wrong in ("tiers: {tiny: {model: x}}", "aliases: {mine: {model: x}}", "tiers: {small: x}"):
        config.write_text(wrong)
        refused = pgflow(dsn, *command)
        assert (refused.code, wrong.split(":")[0] in refused.err) == (2, True), refused


@pytest.mark.full
def test_a_run_of_a_file_is_shown_without_all_of_the_file(dsn: str) -> None:
    pytest.importorskip("tree_sitter_bash", reason="the extra `run` is not installed")
    long = "x" * 3000
    assert pgflow(dsn, "run", "release.yaml", "hello", "--key", "seen-1", "--detach").code == 0
    said = pgflow(dsn, "show", "seen-1", "--table").out
    assert ('"hello"' in said, "release.yaml" in said) == (True, True), said
    assert "approval" not in said
    assert "frozen" in pgflow(dsn, "show", "seen-1").data["input"]
    assert pgflow(dsn, "run", "release.yaml", long, "--key", "seen-2", "--detach").code == 0
    said = pgflow(dsn, "show", "seen-2", "--table").out
    assert ("characters; --json has all" in said, len(said) < 4000) == (True, True), said


def test_a_detached_run_waits_for_a_worker(dsn: str) -> None:
    pytest.importorskip("tree_sitter_bash", reason="the extra `run` is not installed")
    said = pgflow(dsn, "run", "release.yaml", "--key", "release-2", "--detach", "--table")
    assert (said.code, said.out) == (
        0,
        "Started release-2 (pgflow.declared, queue declared)\n",
    )
    assert pgflow(dsn, "list", "--json").data[0]["status"] == "queued"


def test_what_a_run_will_not_do_is_said_at_its_start(dsn: str) -> None:
    command = ("run", "limited.yaml", "--provider", "cmd:cat", "--table")
    said = pgflow(dsn, *command, "--ignore", "allowed_tools")
    assert said.code == 0, said
    assert said.err.splitlines() == [
        "warning: node 'read' asks for systemPrompt, which this provider does not have"
    ]


def done() -> list[int]:
    """Number of times that each node was done."""
    files = [Path(name) for name in ("first", "second", "third")]
    return [len(file.read_text().split()) if file.exists() else 0 for file in files]


@pytest.mark.full
def test_a_run_is_done_again_from_a_node_on(dsn: str) -> None:
    pytest.importorskip("tree_sitter_bash", reason="the extra `run` is not installed")
    command = ("run", "steps.yaml", "--key", "steps-1", "--table")
    said = pgflow(dsn, *command)
    assert (said.code, done()) == (1, [1, 1, 0]), said
    said = pgflow(dsn, *command, "--from", "third")
    assert (said.code, done()) == (2, [1, 1, 0]), said
    assert "has not come to node 'third'" in said.err
    said = pgflow(dsn, "resume", "steps-1")
    assert (said.code, "is failed: `pgflow retry` lets it try again" in said.err) == (2, True), said
    Path("mended").touch()
    said = pgflow(dsn, *command, "--from", "second")
    assert (said.code, said.out, done()) == (0, "steps-1 completed: one\n", [1, 2, 1]), said
    Path("steps.yaml").write_text(STEPS.replace("echo one", "echo two"))
    said = pgflow(dsn, *command, "--from", "first")
    assert (said.code, said.out, done()) == (0, "steps-1 completed: one\n", [2, 3, 2]), said
    assert "the file was edited since" in said.err


@pytest.mark.full
def test_an_external_node_is_done_again_only_for_whoever_says_so(dsn: str) -> None:
    pytest.importorskip("tree_sitter_bash", reason="the extra `run` is not installed")
    Path("steps.yaml").write_text(STEPS.replace('echo one"', 'echo one", effect: external'))
    Path("mended").touch()
    command = ("run", "steps.yaml", "--key", "steps-2", "--table")
    assert pgflow(dsn, *command).code == 0
    said = pgflow(dsn, *command, "--from", "first")
    assert said.code != 0, said
    assert "effects" in said.err
    assert done() == [1, 1, 1]
    said = pgflow(dsn, *command, "--from", "first", "--effects", "repeat")
    assert (said.code, done()) == (0, [2, 2, 2]), said


def test_a_file_with_errors_is_no_failed_run(dsn: str) -> None:
    Path("bad.yaml").write_text(
        "name: bad\ndescription: d\nnodes:\n  - {id: a, bash: 'echo $none.output'}\n"
    )
    for more in ((), ("--key", "bad-1", "--from", "a")):
        said = pgflow(dsn, "run", "bad.yaml", *more)
        assert (said.code, "unknown node '$none.output'" in said.err) == (2, True), said
    assert pgflow(dsn, "list", "--json").data == []


@pytest.mark.full
def test_a_budget_that_is_used_up_takes_no_turn(dsn: str) -> None:
    command = ("run", "limited.yaml", "--provider", "cmd:cat", "--ignore", "allowed_tools")
    assert pgflow(dsn, *command, "--budget", "usd=1", "--table").code == 0
    said = pgflow(dsn, *command, "--budget", "usd=0", "--table")
    assert said.code == 1
    assert "budget exceeded" in said.err


@pytest.mark.full
def test_a_retry_does_each_node_that_failed_again_and_no_other(dsn: str) -> None:
    Path("two.yaml").write_text(
        "name: two\ndescription: d\nnodes:\n"
        "  - {id: a, bash: 'echo a >> ran; test -e fine'}\n"
        "  - {id: b, bash: 'echo b >> ran; test -e fine'}\n"
        "  - {id: c, bash: 'echo c >> ran', depends_on: [a], trigger_rule: all_done}\n"
        "  - {id: d, bash: 'echo d >> ran', depends_on: [a, b]}\n"
    )
    assert pgflow(dsn, "run", "two.yaml", "--key", "two-1").code == 1
    ran = Path("ran")
    assert sorted(ran.read_text().split()) == ["a", "b", "c"]
    ran.write_text("")
    Path("fine").touch()
    assert pgflow(dsn, "retry", "two-1").code == 0
    said = pgflow(dsn, "run", "two.yaml", "--key", "two-1", "--json")
    assert (said.code, sorted(ran.read_text().split())) == (0, ["a", "b", "d"]), said.err


@pytest.mark.full
def test_a_retry_takes_the_run_that_failed_within_up_where_it_was(dsn: str) -> None:
    Path(".archon/workflows").mkdir(parents=True)
    Path(".archon/workflows/inner.yaml").write_text(
        "name: inner\ndescription: d\nnodes:\n"
        "  - {id: a, bash: 'echo a >> ran'}\n"
        "  - {id: b, bash: 'echo b >> ran; test -e fine', depends_on: [a]}\n"
    )
    Path(".archon/workflows/outer.yaml").write_text(
        "name: outer\ndescription: d\nnodes:\n"
        "  - {id: x, bash: 'echo x >> ran'}\n"
        "  - {id: call, workflow: inner, depends_on: [x]}\n"
        "  - {id: y, bash: 'echo y >> ran', depends_on: [call]}\n"
    )
    assert pgflow(dsn, "run", "outer", "--key", "outer-1").code == 1
    ran = Path("ran")
    assert ran.read_text().split() == ["x", "a", "b"]
    ran.write_text("")
    Path("fine").touch()
    assert pgflow(dsn, "retry", "outer-1").code == 0
    said = pgflow(dsn, "run", "outer", "--key", "outer-1", "--json")
    assert (said.code, ran.read_text().split()) == (0, ["b", "y"]), said.err
