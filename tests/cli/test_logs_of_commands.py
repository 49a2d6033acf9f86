"""Logs of commands: what a driver says of each try is not in them, nor an address that may be a
secret.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

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


TRIES = """
import logging, sys
from pgflow_cli.commands import run
from pgflow_cli.look.logs import set_up_logging

logging.getLogger("psycopg").setLevel(sys.argv[2])
run(["list", "--help"])
if sys.argv[1]:
    set_up_logging(sys.argv[1])
for name in ("psycopg", "psycopg.pool"):
    logging.getLogger(name).warning("error connecting, says %s", name)
"""


@pytest.mark.full
@pytest.mark.parametrize(
    ("level", "own_level", "told"),
    [
        ("", "NOTSET", []),
        ("warning", "NOTSET", []),
        ("debug", "NOTSET", ["psycopg", "psycopg.pool"]),
        ("warning", "WARNING", []),
        ("warning", "INFO", ["psycopg", "psycopg.pool"]),
    ],
)
def test_what_a_driver_says_is_for_who_asks_for_it(
    level: str, own_level: str, told: list[str]
) -> None:
    """Asked for is it by --log-level debug, or by a program that has set the level itself."""
    done = subprocess.run(
        [sys.executable, "-c", TRIES, level, own_level],
        capture_output=True,
        text=True,
        check=True,
    )
    said = [line for line in done.stderr.splitlines() if "error connecting" in line]
    assert [line.rpartition(" ")[2] for line in said] == told
