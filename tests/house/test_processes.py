"""Processes that tests start can be interrupted, whoever has started the tests."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import clikit
import psycopg
import pytest
from processes import one
from servers import wait_until

from tests.campaigns.nursery import Nursery

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def deaf() -> Iterator[None]:
    """A process that ignores SIGINT, as what a script starts with `&` does."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    yield
    assert signal.signal(signal.SIGINT, before) is signal.SIG_IGN


@pytest.mark.usefixtures("deaf")
def test_a_command_can_be_interrupted(dsn: str) -> None:
    watching = clikit.process(dsn, "list", "--watch", "--every", "0.1s")
    try:
        assert watching.stdout.readline() == "[]\n"
        watching.send_signal(signal.SIGINT)
        assert clikit.finish(watching).code == 0
    finally:
        watching.kill()
        watching.communicate()


@pytest.mark.unsound
@pytest.mark.usefixtures("deaf")
def test_a_child_of_the_nursery_can_be_interrupted(dsn: str, conn: psycopg.Connection) -> None:
    with Nursery() as nursery:
        child = nursery.start("worker", dsn)
        wait_until(
            lambda: one(conn, "select count(*) from pgflow.worker where pid = %s", child.pid),
            "it is at work",
        )
        child.send(signal.SIGINT)
        assert child.wait() == 130
