"""Tools that read: each is a question or two of `pgflow.inspect`, and none changes a row."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from pgflow.app import AsyncApp
from pgflow.inspect import (
    RunFilter,
    ask_async,
    find_detail,
    find_gate,
    list_decisions,
    list_effects,
    list_gates,
    list_obligations,
    list_queues,
    list_runs,
    list_unserved_lanes,
    list_workers,
    read_calls,
)
from pgflow.mcp.shown import shown

MOST_ROWS = 50
LATE_SECONDS = 60.0
"""Time for which a run that could be claimed may wait before it is worth a look."""
FAILED_WITHIN = timedelta(hours=24)

Tool = Callable[..., Any]


class Reading:
    """Tools that read, of one app."""

    def __init__(self, app: AsyncApp) -> None:
        self._app = app

    @property
    def tools(self) -> list[Tool]:
        """All of them, in the order in which they are listed."""
        return [
            self.triage,
            self.runs,
            self.run,
            self.gates,
            self.gate,
            self.owed,
            self.queues,
        ]

    async def triage(self) -> str:
        """List what needs a person now: stuck runs, gates that wait, effects with an unknown
        outcome, breached obligations, runs that no worker serves, and those that failed in the last
        24 hours. Begin here.
        """
        recent = RunFilter(status=["failed"], since=FAILED_WITHIN)
        return shown(
            stuck=await self._rows(list_runs(RunFilter(status=["stuck"]), limit=MOST_ROWS)),
            gates=await self._rows(list_gates(limit=MOST_ROWS)),
            unknown_effects=await self._rows(list_obligations(state="unknown", limit=MOST_ROWS)),
            breached=await self._rows(list_obligations(state="breached", limit=MOST_ROWS)),
            unserved=await self._rows(list_unserved_lanes(LATE_SECONDS, limit=MOST_ROWS)),
            failed=await self._rows(list_runs(recent, limit=MOST_ROWS)),
        )

    async def runs(
        self,
        status: str = "",
        workflow: str = "",
        queue: str = "",
        key: str = "",
        label: str = "",
        limit: int = 20,
        after: str = "",
    ) -> str:
        """List runs, the newest first. status: queued, running, waiting, paused, stuck, completed,
        failed or cancelled. key: * matches anything. label: NAME=VALUE. after: `next` of the page
        before.
        """
        name, _, value = label.partition("=")
        where = RunFilter(
            status=[status] if status else [],
            workflow=[workflow] if workflow else [],
            queue=[queue] if queue else [],
            labels={name: value} if name else {},
            key=key or None,
        )
        page = await ask_async(
            self._app, list_runs(where, after=after or None, limit=max(1, min(limit, MOST_ROWS)))
        )
        return shown(runs=list(page), next=page.next)

    async def run(self, key: str) -> str:
        """Show one run: its status and the reason, input, output or error, its steps, attempts and
        waits in their order, its decisions, its effects, and the gates that it waits for.
        """
        detail = await ask_async(self._app, find_detail(key))
        return shown(
            run=detail,
            calls=await ask_async(self._app, read_calls(detail.run_id, MOST_ROWS)),
            decisions=await self._rows(list_decisions(detail.run_id, limit=MOST_ROWS)),
            effects=await self._rows(list_effects(detail.run_id, limit=MOST_ROWS)),
            gates=await self._rows(list_gates(key, limit=MOST_ROWS)),
        )

    async def gates(self, run_key: str = "") -> str:
        """List gates that wait for an answer, of one run or of all: the request is exactly what
        would be done.
        """
        return shown(gates=await self._rows(list_gates(run_key or None, limit=MOST_ROWS)))

    async def gate(self, gate: str) -> str:
        """Show one gate: what is asked, the decision behind it, and who may answer."""
        return shown(gate=await ask_async(self._app, find_gate(gate)))

    async def owed(self, state: str = "", kind: str = "") -> str:
        """List what is owed. kind: effect, gate or obligation. state: unknown, accepted, open,
        breached and others.
        """
        found = list_obligations(state=state or None, kind=kind or None, limit=MOST_ROWS)
        return shown(owed=await self._rows(found))

    async def queues(self) -> str:
        """Show each queue with its depth, its oldest run, limits and pauses, and the workers."""
        return shown(
            queues=await ask_async(self._app, list_queues()),
            workers=await self._rows(list_workers()),
        )

    async def _rows(self, question: Any) -> list[Any]:
        return list(await ask_async(self._app, question))
