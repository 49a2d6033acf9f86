"""A workflow that is executed from Python, in one call."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from runkit import write

from pgflow import App, AsyncApp, InvalidArgument, KeyConflict, RunFailed
from pgflow.declare import Graph, parse_workflow
from pgflow.declare.durable import Result, Settings, WorkflowFailed, execute_workflow

pytest.importorskip("tree_sitter_bash", reason="the extra `run` is not installed")

INPUTS = "inputs: {file: {required: true}, more: {default: none}}"
NODES = """
- {id: see, bash: 'echo "$INPUTS_FILE $INPUTS_MORE"'}
- {id: say, prompt: "$ARGUMENTS: $see.output", depends_on: [see]}
"""


@pytest.fixture
def graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Graph:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ARCHON_HOME", str(tmp_path / "home"))
    return parse_workflow(write(tmp_path, NODES, INPUTS))


def test_an_async_app_executes_a_workflow(dsn, graph):
    async def execute() -> Result:
        async with AsyncApp(dsn) as app:
            return await execute_workflow(
                graph, "hello", app=app, inputs={"file": "a"}, provider="cmd:cat"
            )

    result = asyncio.run(execute())
    assert result.output == "hello: a none"
    assert result.nodes == {"see": "completed", "say": "completed"}


@pytest.mark.full
def test_an_app_executes_a_workflow_once_for_a_key(dsn, graph, tmp_path):
    settings = Settings(cwd=str(tmp_path), provider="cmd:sh -c 'echo x >> turns; cat'")
    with App(dsn) as app:
        for _ in range(2):
            result = execute_workflow(
                graph, "hi", app=app, inputs={"file": "a"}, settings=settings, key="once"
            )
            assert result.output == "hi: a none"
        with pytest.raises(KeyConflict):
            execute_workflow(
                graph, "ho", app=app, inputs={"file": "a"}, settings=settings, key="once"
            )
    assert (tmp_path / "turns").read_text() == "x\n"


def test_the_config_of_the_folder_counts(dsn, graph, tmp_path):
    (tmp_path / ".archon").mkdir()
    (tmp_path / ".archon/config.yaml").write_text("env: {INPUTS_MORE: config}\nassistant: nobody")
    with App(dsn) as app:
        result = execute_workflow(graph, app=app, inputs={"file": "a"}, provider="cmd:cat")
    assert result.output == ": a none", "the inputs of a run are stronger"


def test_a_failure_names_its_node(dsn, graph, tmp_path):
    del graph
    failing = parse_workflow(write(tmp_path, "- {id: stop, bash: 'exit 3'}"))
    with App(dsn) as app, pytest.raises(RunFailed, match="stop") as failed:
        execute_workflow(failing, app=app)
    assert isinstance(failed.value.__cause__, WorkflowFailed)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"provider": "cmd:cat"}, "needs input 'file'"),
        ({"inputs": {"file": "a"}}, "no provider for say: pass provider="),
        ({"inputs": {"file": "a", "fiel": "b"}, "provider": "cmd:cat"}, "no input 'fiel'"),
        ({"inputs": {"file": "a"}, "provider": "nobody:"}, "unknown provider 'nobody'"),
    ],
)
def test_a_run_that_could_not_be_as_it_is_meant_is_refused(dsn, conn, graph, options, says):
    with App(dsn) as app, pytest.raises(InvalidArgument, match=says):
        execute_workflow(graph, app=app, **options)  # type: ignore[arg-type]
    assert conn.execute("select count(*) from pgflow.runs").fetchone() == (0,)


def test_limits_are_kept_or_refused_and_wishes_are_warned_about(dsn, graph, tmp_path, caplog):
    del graph
    limited = parse_workflow(
        write(tmp_path, "- {id: a, prompt: x, allowed_tools: [Read], systemPrompt: y}")
    )
    with App(dsn) as app:
        with pytest.raises(InvalidArgument, match="limits its agent by allowed_tools"):
            execute_workflow(limited, app=app, provider="cmd:cat")
        settings = Settings(cwd=".", provider="cmd:cat", ignored=("allowed_tools",))
        assert execute_workflow(limited, app=app, settings=settings).output == "x"
    assert any("asks for systemPrompt" in message for message in caplog.messages)
