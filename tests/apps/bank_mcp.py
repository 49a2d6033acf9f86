"""A bank as a server of the Model Context Protocol, on its standard input and output.

Its book is the file ``PGFLOW_TEST_BOOK``, one line a transfer that it has made. With ``lose`` it
makes a transfer and dies before it answers, once.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError


def book() -> Path:
    return Path(os.environ["PGFLOW_TEST_BOOK"])


server = MCPServer("bank")


@server.tool()
def balance(account: str) -> int:
    """Return the balance of an account."""
    return 1_000 - sum(one["cents"] for one in transfers(account))


@server.tool()
def transfer(to: str, cents: int, key: str, ctx: Context, *, lose: bool = False) -> dict[str, str]:
    """Send money, once for each key."""
    if cents > 1_000:
        raise ToolError("not so much")
    if not any(one["key"] == key for one in transfers(to)):
        meta = ctx.request_context.meta or {}
        with book().open("a") as lines:
            lines.write(
                json.dumps({"to": to, "cents": cents, "key": key, "meta": dict(meta)}) + "\n"
            )
        if lose:
            os._exit(1)
    return {"receipt": f"{cents} to {to}"}


@server.tool()
def find_transfer(to: str, key: str) -> str | None:
    """Return the receipt of a transfer."""
    found = [one for one in transfers(to) if one["key"] == key]
    return f"{found[0]['cents']} to {to}" if found else None


def transfers(to: str) -> list[dict[str, object]]:
    rows = map(json.loads, book().read_text().splitlines()) if book().exists() else ()
    return [one for one in rows if one["to"] == to]


if __name__ == "__main__":
    server.run()
