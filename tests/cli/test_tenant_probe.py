"""Every command, page and tool, on behalf of one tenant, beside the runs of another: nothing of them is shown or done.

The three lists are those of the program, so a new one is probed, or the test asks for the reason why it is not.
`tests/sql/test_tenants.py` does the same with every function and view.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click
import pytest
from clikit import pgflow
from pgflow_cli.commands import app as commands
from records import in_a_loop
from sqlkit import fill_beta, rows, start
from typer.main import get_command
from webkit import Browser

from pgflow import AsyncApp
from pgflow._db.tenants import dsn_of_tenant
from pgflow.mcp import make_server
from pgflow.web import Principal
from pgflow.web.console import READS

if TYPE_CHECKING:
    from collections.abc import Iterator

    import psycopg

SECRET = "beta-hush"
KEYS = ("same", "beta-waits", "beta-queued")

ELSEWHERE = {
    "bench": "measures in runs of its own",
    "check": "reads code",
    "cleanup": "removes files",
    "compile": "reads files",
    "demo": "has a database of its own",
    "dry-run": "reads files",
    "icm": "reads files",
    "init": "installs",
    "install-skill": "writes a file",
    "mcp": "its tools are probed",
    "migrate": "installs",
    "pg": "is a server",
    "reset-sessions": "reads files",
    "serve": "works until it is stopped",
    "tick": "works for all tenants, and refuses one",
    "top": "is the console in a terminal",
    "validate": "reads files",
    "web": "its pages are probed",
    "workers": "works for all tenants, and refuses one",
    "run": "works on files or code",
    "replay": "reads code",
    "rotate": "reads code",
    "apply": "reads files",
    "import": "reads a file",
    "request": "is of files",
    "sql": "runs what an auditor of all tenants says",
    "doctor": "checks the server",
}
"""Commands that are not probed."""


def fill(conn: psycopg.Connection[Any]) -> None:
    """beta has runs in many states, each with a secret wherever a value or a label can be; acme has one."""
    fill_beta(conn, f'"{SECRET}"', done="same", subject="same")
    start(conn, key="same", tenant="acme")


def of_beta(conn: psycopg.Connection[Any]) -> set[str]:
    """All that the tables have of beta."""
    runs = set(rows(conn, "select run_id from pgflow.run where tenant = 'beta'"))
    tables = rows(
        conn,
        "select relname from pg_class where relnamespace = 'pgflow'::regnamespace and relkind in ('r', 'p')"
        " and not relispartition",
    )
    found = set()
    for table in tables:
        for text in rows(conn, f"select to_json(t)::text from pgflow.{table} t"):  # noqa: S608
            row = json.loads(text)
            ids = {row.get(name) for name in ("run_id", "chain_id", "batch_id", "parent_run_id")}
            if row.get("tenant") == "beta" or not runs.isdisjoint(ids):
                found.add(f"{table} {text}")
    return found


def each_command() -> Iterator[tuple[str, ...]]:
    """Yield the words of every command that is probed."""

    def walk(command: Any, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        if path and path[0] in ELSEWHERE:
            return
        inner = getattr(command, "commands", {})
        if path and (not inner or command.invoke_without_command):
            yield path
        for name in inner:
            yield from walk(command.commands[name], (*path, name))

    yield from walk(get_command(commands), ())


def words_of(path: tuple[str, ...], key: str) -> list[str]:
    """Return a command with what it needs, about a run."""
    command: Any = get_command(commands)
    for name in path:
        command = command.commands[name]
    words = list(path)
    for one in command.params:
        longest = max(one.opts, key=len)
        if isinstance(one, click.Argument) or one.param_type_name == "argument":
            words += [key] if one.nargs in (1, -1) else [key] * one.nargs
        elif longest in ("--why", "--reason", "--by"):
            words += [longest, "a probe"]
        elif longest in ("--yes", "--json", "--no-follow"):
            words.append(longest)
        elif longest in ("--timeout", "--for", "--older-than", "--keep"):
            words += [longest, "0s"]
        elif one.required:
            words += [longest, key]
    return words


@pytest.mark.full
@pytest.mark.parametrize("key", KEYS)
def test_no_command_crosses(dsn: str, conn: psycopg.Connection[Any], key: str) -> None:
    fill(conn)
    before, crossed, probed = of_beta(conn), [], 0
    for path in each_command():
        answer = pgflow(dsn, "--tenant", "acme", *words_of(path, key))
        probed += 1
        said = answer.out + answer.err
        if SECRET in said:
            crossed.append(f"{' '.join(path)} shows {said}")
        if of_beta(conn) != before:
            crossed.append(f"{' '.join(path)} changes {of_beta(conn) ^ before}")
            before = of_beta(conn)
    assert crossed == []
    assert probed > 30


def test_every_command_that_is_not_probed_exists() -> None:
    assert set(ELSEWHERE) <= set(get_command(commands).commands)  # type: ignore[attr-defined]


@pytest.mark.full
@in_a_loop
async def test_no_page_crosses(dsn: str, conn: psycopg.Connection[Any]) -> None:
    fill(conn)
    before = of_beta(conn)
    crossed = []
    async with AsyncApp(dsn_of_tenant(dsn, "acme")) as app:
        browser = Browser(app, Principal("ann", ["admin"]))
        for path, _ in READS:
            for key in KEYS:
                names = dict.fromkeys(("key", "run", "gate", "workflow", "update", "message"), key)
                await browser.status(path, **names, id="1", value="input", verb="cancel")
                if SECRET in browser.last.text:  # type: ignore[union-attr]
                    crossed.append(path)
    assert crossed == []
    assert of_beta(conn) == before
    assert len(READS) > 20


@pytest.mark.full
@in_a_loop
async def test_no_tool_crosses(dsn: str, conn: psycopg.Connection[Any]) -> None:
    mcp = pytest.importorskip("mcp", reason="needs the extra mcp")
    fill(conn)
    before, crossed, probed = of_beta(conn), [], 0
    async with AsyncApp(dsn_of_tenant(dsn, "acme")) as app:
        server = make_server(app, name="ann", writes=True, answers=True)
        async with mcp.Client(server) as client:
            for tool in (await client.list_tools()).tools:
                wanted = tool.input_schema.get("properties", {})
                for key in KEYS:
                    given = {
                        name: of["enum"][0]
                        if "enum" in of
                        else key
                        if "string" in json.dumps(of)
                        else 1
                        for name, of in wanted.items()
                        if name in tool.input_schema.get("required", ())
                    }
                    found = await client.call_tool(tool.name, given)
                    probed += 1
                    if SECRET in str(found):
                        crossed.append(tool.name)
    assert crossed == []
    assert of_beta(conn) == before
    assert probed > 30


def test_the_probe_notices_a_door_without_its_guard(
    dsn: str, conn: psycopg.Connection[Any]
) -> None:
    fill(conn)
    before = of_beta(conn)
    query = "select pg_get_functiondef(oid) from pg_proc where proname = %s and pronamespace = 'pgflow'::regnamespace"
    (text,) = rows(conn, query, "own_tenants")
    conn.execute(
        text.replace("case when chosen is not null then array[chosen] end", "null").encode()
    )
    conn.execute(
        rows(conn, query, "own_tenant_")[0]
        .replace("if own is null then", "if own is null then given := 'beta';")
        .encode()
    )
    pgflow(dsn, "--tenant", "acme", "cancel", "beta-queued", "--yes")
    shown = pgflow(dsn, "--tenant", "acme", "show", "same")
    assert SECRET in shown.out or of_beta(conn) != before
