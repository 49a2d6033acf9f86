"""Logs of commands: an address that may be a secret is not in them."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import asyncio, httpx
from pgflow_cli.look.logs import set_up_logging

async def post():
    transport = httpx.MockTransport(lambda request: httpx.Response(200))
    async with httpx.AsyncClient(transport=transport) as client:
        await client.post("https://example.org/services/a-secret")

set_up_logging("debug")
asyncio.run(post())
"""


def test_the_address_of_a_hook_is_not_logged() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    )
    assert "a-secret" not in done.stderr
