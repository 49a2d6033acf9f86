"""The Claude Agent SDK: its own test of session stores, and the recipe of the docs with a scripted
CLI in place of the real one.
"""

from __future__ import annotations

import itertools
import sys
from typing import Any

import docskit
import pytest
import servers

pytest.importorskip("claude_agent_sdk", reason="pip install -e '.[test,claude-agent-sdk]'")


from claude_agent_sdk._internal.transport.subprocess_cli import SubprocessCLITransport
from claude_agent_sdk.testing import run_session_store_conformance

from pgflow.agent.claude_sdk import PgflowSessionStore

CLI = """#!{python}
import json, sys, uuid

session = str(uuid.uuid4())
is_new = not any(word.startswith("--resume") for word in sys.argv)


def say(**message):
    print(json.dumps(message), flush=True)


def ask_server(number, method, **params):
    message = {{"jsonrpc": "2.0", "id": number, "method": method, "params": params}}
    request = {{"subtype": "mcp_message", "server_name": "shop", "message": message}}
    say(type="control_request", request_id=str(number), request=request)


def end(text):
    took = {{"duration_ms": 1, "duration_api_ms": 1, "num_turns": 1, "is_error": False}}
    say(type="result", subtype="success", session_id=session, result=text, **took)


for line in sys.stdin:
    said = json.loads(line)
    if said["type"] == "control_request":
        answer = {{"subtype": "success", "request_id": said["request_id"], "response": {{}}}}
        say(type="control_response", response=answer)
    elif said["type"] == "user" and is_new:
        client = {{"name": "cli", "version": "1"}}
        ask_server(1, "initialize", protocolVersion="2025-06-18", capabilities={{}}, clientInfo=client)
    elif said["type"] == "user":
        end(said["message"]["content"])
        break
    elif said["response"]["request_id"] == "1":
        ask_server(2, "tools/call", name="refund", arguments={{"order": "A1", "cents": 700}})
    else:
        end("I have asked")
        break
"""
"""Speaks as Claude Code does to the SDK: asks a tool in the first turn, and repeats what it hears in
the second.
"""


class Apart(PgflowSessionStore):
    """A store with projects of its own: the suite wants an empty one for each of its contracts."""

    numbers = itertools.count()

    def __init__(self, app: Any) -> None:
        super().__init__(app)
        self._number = next(self.numbers)

    def _own(self, key: Any) -> Any:
        return {**key, "project_key": f"{self._number}/{key['project_key']}"}

    async def append(self, key: Any, entries: Any) -> None:
        await super().append(self._own(key), entries)

    async def load(self, key: Any) -> Any:
        return await super().load(self._own(key))

    async def list_sessions(self, project_key: str) -> Any:
        return await super().list_sessions(f"{self._number}/{project_key}")

    async def delete(self, key: Any) -> None:
        await super().delete(self._own(key))

    async def list_subkeys(self, key: Any) -> Any:
        return await super().list_subkeys(self._own(key))


async def test_the_store_holds_every_contract_of_the_sdk(aflow):
    await run_session_store_conformance(lambda: Apart(aflow.app))


async def test_an_entry_that_comes_again_is_kept_once(aflow):
    store, key = PgflowSessionStore(aflow.app), {"project_key": "p", "session_id": "s"}
    entries: Any = [{"type": "user", "uuid": "a"}, {"type": "title"}, {"type": "user", "uuid": "b"}]
    await store.append(key, entries)
    await store.append(key, [entries[0], entries[2], {"type": "user", "uuid": "c"}])
    assert await store.load(key) == [*entries, {"type": "user", "uuid": "c"}]


def test_the_recipe_of_the_docs_asks_a_person_between_two_turns(dsn, conn, tmp_path, monkeypatch):
    cli = tmp_path / "claude"
    cli.write_text(CLI.format(python=sys.executable))
    cli.chmod(0o755)
    monkeypatch.setattr(SubprocessCLITransport, "_find_cli", lambda _: str(cli))
    page = servers.REPOSITORY / "docs" / "how-to" / "claude-agent-sdk.md"
    docskit.Reader(dsn, tmp_path).follow(page)
    turns = conn.execute(
        "select step, status, output ->> 'text' from pgflow.steps where step = 'turn' order by call"
    ).fetchall()
    assert turns == [
        ("turn", "completed", "I have asked"),
        ("turn", "completed", "A1: 500 paid back"),
    ]
