"""Command-line agents as providers: what they are told, and what is read from what they print.

The programs are stand-ins that print a recorded stream and keep what they were given.
"""

from __future__ import annotations

import asyncio
import json
import os
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from runkit import play, write

from pgflow.declare import parse_workflow
from pgflow.declare.durable import Settings
from pgflow.declare.durable.agents import Agents
from pgflow.declare.durable.limits import refused
from pgflow.declare.durable.providers import Reply, Turn, TurnFailed, make_provider

pytest.importorskip("jsonschema", reason="the extra `run` is not installed")

USAGE = {"input_tokens": 7, "cache_read_input_tokens": 100, "output_tokens": 20}
RESULT = {
    "type": "result", "subtype": "success", "is_error": False, "num_turns": 2,
    "result": "Two files.", "session_id": "s-1", "total_cost_usd": 0.0125, "usage": USAGE,
}  # fmt: skip
CLAUDE: list[Any] = [
    {"type": "system", "subtype": "init", "session_id": "s-1", "model": "claude-opus-4-5"},
    {"type": "assistant", "message": {"content": [{"type": "text", "text": "I look."}]}},
    {"type": "assistant", "message": {"content": [{"type": "tool_use", "name": "Bash"}]}},
    {"type": "user", "message": {"content": [{"type": "tool_result", "content": "a b"}]}},
    "this line is no event",
    RESULT,
]
CODEX: list[Any] = [
    {"type": "thread.started", "thread_id": "t-1"},
    {"type": "turn.started"},
    {"type": "error", "message": "Reconnecting... 1/5"},
    {"type": "item.completed", "item": {"type": "reasoning", "text": "hm"}},
    {"type": "item.completed", "item": {"type": "agent_message", "text": "Two files."}},
    {"type": "turn.completed", "usage": {"input_tokens": 90, "output_tokens": 10}},
]
GEMINI: list[Any] = [
    {"type": "init", "session_id": "g-1", "model": "gemini-2.5-pro"},
    {"type": "message", "role": "user", "content": "the prompt"},
    {"type": "message", "role": "assistant", "content": "I look.", "delta": True},
    {"type": "tool_use", "tool_name": "ls", "tool_id": "1", "parameters": {}},
    {"type": "tool_result", "tool_id": "1", "status": "success", "output": "a b"},
    {"type": "message", "role": "assistant", "content": "Two ", "delta": True},
    {"type": "message", "role": "assistant", "content": "files.", "delta": True},
    {"type": "result", "status": "success", "stats": {"total_tokens": 250}},
]


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Agent:
    """Stand-ins for the programs, first in ``PATH``."""
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return Agent(tmp_path)


class Agent:
    """Programs that print a stream."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def says(self, name: str, events: list[Any], *, status: int = 0) -> None:
        """Have the program of that name print these events."""
        lines = [one if isinstance(one, str) else json.dumps(one) for one in events]
        (self.folder / "stream").write_text("\n".join(lines))
        program = self.folder / name
        program.write_text(
            f'#!/bin/bash\ncd {self.folder}\nprintf "%s\\0" "$@" > argv\ncat > prompt\n'
            'for word in "$@"; do case "$word" in --output-schema=*) cp "${word#*=}" schema;; esac; '
            f"done\ncat stream\necho trouble >&2\nexit {status}\n"
        )
        program.chmod(0o755)

    @property
    def argv(self) -> list[str]:
        """The arguments that the program was given last."""
        return (self.folder / "argv").read_text().split("\0")[:-1]

    def take(self, spec: str, **told: Any) -> Reply:
        """Take a turn."""
        turn = Turn("Count $(touch x)", "n", "n#1", str(self.folder), dict(os.environ), **told)
        return asyncio.run(make_provider(spec).take(turn))


@pytest.mark.parametrize(
    ("name", "stream", "expected"),
    [
        ("claude", CLAUDE,
         Reply("Two files.", None, False, "claude-opus-4-5", Decimal("0.0125"), 127, "s-1")),
        ("codex", CODEX, Reply("Two files.", tokens=100, session="t-1")),
        ("gemini", GEMINI,
         Reply("Two files.", model="gemini-2.5-pro", tokens=250, session="g-1")),
    ],
)  # fmt: skip
def test_the_answer_and_the_books_are_read_from_the_events(agent, name, stream, expected):
    agent.says(name, stream)
    assert agent.take(f"{name}:") == expected
    assert (agent.folder / "prompt").read_text() == "Count $(touch x)"
    assert not any("Count" in word for word in agent.argv)


def test_wishes_of_a_file_become_arguments_that_are_no_options(agent):
    agent.says("claude", CLAUDE)
    agent.take(
        "claude:--permission-mode acceptEdits",
        agent={
            "model": "--dangerously-skip-permissions",
            "allowed_tools": ["Read", "Bash(git:*)"],
            "denied_tools": ["WebSearch"],
            "mcp": "servers.json",
            "systemPrompt": "Be brief.",
        },
        max_usd=2.5,
        session="s-0",
    )
    assert agent.argv == [
        "-p", "--output-format=stream-json", "--verbose", "--model=--dangerously-skip-permissions",
        "--system-prompt=Be brief.", "--mcp-config=servers.json", "--disallowedTools=WebSearch",
        "--max-budget-usd=2.5", "--resume=s-0", "--strict-mcp-config", "--fork-session",
        "--tools=Read,Bash", "--allowedTools=Read,Bash(git:*)", "--permission-mode", "acceptEdits",
    ]  # fmt: skip


def test_no_tools_are_no_tools(agent):
    agent.says("claude", CLAUDE)
    agent.take("claude:", agent={"allowed_tools": []})
    assert {"--tools=", "--allowedTools="} <= set(agent.argv)


def test_an_effort_that_claude_does_not_know_is_the_nearest_that_it_knows(agent):
    agent.says("claude", CLAUDE)
    given = []
    for effort in ("minimal", "high", "persistent"):
        agent.take("claude:", agent={"effort": effort})
        given += [word for word in agent.argv if word.startswith("--effort")]
    assert given == ["--effort=low", "--effort=high", "--effort=max"]


def test_an_answer_by_schema_is_a_value(agent):
    schema = {"type": "object", "properties": {"files": {"type": "integer"}}}
    agent.says("claude", [*CLAUDE[:-1], {**RESULT, "structured_output": {"files": 2}}])
    reply = agent.take("claude:", schema=schema)
    assert (reply.value, reply.has_value) == ({"files": 2}, True)
    assert f"--json-schema={json.dumps(schema)}" in agent.argv
    agent.says("codex", CODEX)
    agent.take("codex:", schema=schema, session="t-0")
    assert json.loads((agent.folder / "schema").read_text()) == schema
    assert agent.argv[-3:] == ["resume", "t-0", "-"]


@pytest.mark.parametrize(
    ("name", "stream", "status", "error"),
    [
        ("claude", [*CLAUDE[:-1], {**RESULT, "subtype": "error_max_budget_usd", "result": None}], 1,
         "claude failed: error_max_budget_usd: I look."),
        ("claude", CLAUDE[:-1], 0, "claude ended without a result"),
        ("claude", [], 3, "claude exited with code 3: trouble"),
        ("codex", [{"type": "turn.failed", "error": {"message": "no credit"}}], 1,
         "codex failed: no credit"),
        ("gemini", [{"type": "result", "status": "error", "error": {"message": "quota"}}], 1,
         "gemini failed: quota"),
    ],
)  # fmt: skip
def test_a_turn_that_failed_says_why(agent, name, stream, status, error):
    agent.says(name, stream, status=status)
    with pytest.raises(TurnFailed) as failed:
        agent.take(f"{name}:")
    assert str(failed.value) == error


def test_the_limits_that_claude_keeps_are_not_refused(tmp_path):
    limits = "- {id: read, prompt: x, allowed_tools: [Read], maxBudgetUsd: 2}"
    graph = parse_workflow(write(tmp_path, limits))
    claude, codex = (Settings(cwd=".", provider=spec) for spec in ("claude:", "codex:"))
    assert refused(graph, Agents(graph, claude)) == []
    assert len(refused(graph, Agents(graph, codex))) == 2


@pytest.mark.full
@pytest.mark.parametrize("fails", [False, True])
async def test_a_turn_is_in_the_books_of_its_run(aflow, agent, conn, fails):
    agent.says("claude", [*CLAUDE[:-1], {**RESULT, "is_error": fails}])
    path = write(agent.folder, "- {id: count, prompt: Count.}")
    run = await play(aflow, path, provider="claude:", key="books", budget={"usd": 1})
    assert run.status == ("failed" if fails else "completed")
    assert run.output == ("" if fails else "Two files.")
    decided = conn.execute("select model from pgflow.decisions where key = 'books'").fetchall()
    assert decided == ([] if fails else [("claude-opus-4-5",)])
    spent = "select sum(usd)::float8 from pgflow.charges where key = 'books'"
    assert conn.execute(spent).fetchone() == (0.0125,)


SEEN = {
    "claude": [("assistant", "I look."), ("tool", "Bash")],
    "codex": [("tool", "command_execution ls -a"), ("assistant", "Two files.")],
    "gemini": [("assistant", "I look."), ("tool", "ls"), ("assistant", "Two "),
               ("assistant", "files.")],
}  # fmt: skip
STARTED = {"type": "item.started", "item": {"type": "command_execution", "command": "ls -a"}}


@pytest.mark.parametrize("name", ["claude", "codex", "gemini"])
def test_those_who_watch_see_words_and_tools(agent, name):
    streams = {"claude": CLAUDE, "codex": [STARTED, *CODEX], "gemini": GEMINI}
    agent.says(name, streams[name])
    seen: list[tuple[str, str]] = []
    agent.take(f"{name}:", tell=lambda kind, text: seen.append((kind, text)))
    wanted = [(kind, said.replace("ls -a", '"ls -a"')) for kind, said in SEEN[name]]
    assert [word for word in seen if word != ("stderr", "trouble")] == wanted
    assert ("stderr", "trouble") in seen


def test_a_watcher_that_fails_costs_no_turn(agent):
    def fail(kind: str, text: str) -> None:
        raise ValueError(f"{kind}: {text}")

    agent.says("claude", CLAUDE)
    assert agent.take("claude:", tell=fail).text == "Two files."
