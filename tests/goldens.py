"""Histories that are checked in: every example workflow, run on a real database and exported.

``python -m tests.goldens DSN [NAME...]`` records them anew into tests/histories: only after a
change of what is recorded.
"""

from __future__ import annotations

import asyncio
import json
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg

from pgflow.authority import Pool
from pgflow.replay.histories import export_chain
from pgflow.testing import AsyncHarness

sys.path.insert(0, str(Path(__file__).parent / "kits"))
sys.path.insert(0, str(Path(__file__).parent / "apps"))

import servers
from enginestore import PURSE
from exampleflows import EXAMPLES, Example, charged_child
from ledgerflows import LEDGERS, is_on_shelf

FOLDER = Path(__file__).with_name("histories")

REDACTED = "asking_a_person"
"""Example whose first request is redacted once it has ended: no replay needs it."""


class World:
    """Store for the events of an example: the database itself."""

    def __init__(self, connection: psycopg.Connection[Any], key: str) -> None:
        self.runs = {1: key}
        self._connection = connection

    def send(self, key: str, name: str, payload: Any) -> None:
        self._connection.execute(
            "select pgflow.send_signal(%s, %s, %s::json)", (key, name, json.dumps(payload))
        )

    def cancel(self, key: str, why: str) -> None:
        self._connection.execute("select pgflow.cancel_run(%s, %s)", (key, why))

    def confirm(self, ref: str) -> bool:
        """False if it is not owed yet."""
        if not self._connection.execute(
            "select from pgflow.obligations where ref = %s", (ref,)
        ).fetchall():
            return False
        self._connection.execute(
            "select pgflow.confirm_effect(%s, why => 'the letter of the day', sent_by => 'bank')",
            (ref,),
        )
        return True

    def answer(self, name: str, verdict: str, value: Any, by: str) -> bool:
        """False if it is not asked yet."""
        asked = self._connection.execute(
            "select gate from pgflow.gates where name = %s", (name,)
        ).fetchall()
        for (gate,) in asked:
            self._connection.execute(
                "select pgflow.answer_gate(%s, %s, value => %s::json, by => %s)",
                (gate, verdict, None if value is None else json.dumps(value), by),
            )
        return bool(asked)

    def settle(self, verdict: str, value: Any) -> None:
        ((key,),) = self._connection.execute("select effect from pgflow.obligations").fetchall()
        self._connection.execute(
            "select pgflow.settle_effect(%s, %s, %s::json, 'seen', 'ada')",
            (key, verdict, json.dumps(value)),
        )

    def discharge_named(self, name: str) -> bool:
        """False if it is not open yet."""
        opened = self._connection.execute(
            "select effect from pgflow.obligations where name = %s", (name,)
        ).fetchall()
        for (key,) in opened:
            self._connection.execute("select pgflow.discharge(%s, sent_by => 'a person')", (key,))
        return bool(opened)

    def update(self, name: str, args: Any) -> None:
        self._connection.execute(
            "select pgflow.send_update(%s, %s, %s::json)", (self.runs[1], name, json.dumps(args))
        )
        self._connection.execute("select pgflow.wake()")

    def pause(self, key: str) -> None:
        self._connection.execute("select pgflow.pause_run(%s, 'a look')", (key,))

    def resume(self, key: str) -> None:
        self._connection.execute("select pgflow.resume_run(%s)", (key,))


async def play(flow: AsyncHarness, example: Example) -> str:
    """Runs an example to its end; answers its key."""
    handle = await flow.start(example.workflow.options(key=f"{example.name}-1"), example.n)
    events: list[Any] = list(example.events)
    with psycopg.connect(flow.app.dsn, autocommit=True) as connection:
        world = World(connection, handle.key)
        for _ in range(60):
            due = await flow.until_idle()
            status = await handle.status()
            if status in ("completed", "failed", "cancelled"):
                assert status == example.status, f"{example.name} is {status}"
                return handle.key
            if events and events[0](world) is not False:
                events.pop(0)
            else:
                assert due is not None, f"{example.name} waits for nothing"
                now = connection.execute("select pgflow.now_()").fetchone()[0]  # type: ignore[index]
                await flow.skip(max(due - now, timedelta(0)) + timedelta(milliseconds=1))
    raise AssertionError(f"{example.name} does not end")


async def record(dsn: str, example: Example, folder: Path) -> None:
    """Plays an example in a database of its own, and exports it with its children."""
    async with AsyncHarness(dsn) as flow:
        flow(pools=[Pool("purse", usd=PURSE, soft=None)]).include(
            *{example.workflow, *example.children, charged_child}
        )
        flow.app.ref_checker("shelf")(is_on_shelf)
        key = await play(flow, example)
        with (
            psycopg.connect(dsn, autocommit=True) as connection,
            (folder / f"{example.name}.jsonl").open("w") as out,
        ):
            if example.name == REDACTED:
                connection.execute("select pgflow.redact(%s, 1, 'asked for', 'ada')", (key,))
            for (chain,) in connection.execute(
                "select distinct chain_id from pgflow.runs order by 1"
            ).fetchall():
                export_chain(connection, chain, out)


def main(server: str, *names: str) -> None:
    """Records those that are named, else all of them."""
    template = servers.create_database(server)
    servers.install_schema(servers.dsn_of(server, template))
    FOLDER.mkdir(exist_ok=True)
    for example in [*EXAMPLES, *LEDGERS]:
        if names and example.name not in names:
            continue
        name = servers.create_database(server, template)
        asyncio.run(record(servers.dsn_of(server, name), example, FOLDER))
        servers.drop_database(server, name)
        print(example.name)
    servers.drop_database(server, template)


if __name__ == "__main__":
    main(*sys.argv[1:])
