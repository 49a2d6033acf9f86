"""Tools that change something: the client's verbs, each recorded under the name of the person whom
the assistant works for.

Orders to runs carry that name followed by ` by mcp`. An answer to a gate needs an approver, so it
has the name itself, and is offered only on request: an assistant that answers the questions meant
for a person would defeat the gate.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Literal

from pgflow import Signal
from pgflow.app import AsyncApp
from pgflow.authority import Approve, Reject
from pgflow.errors import InvalidArgument
from pgflow.mcp.reading import Tool
from pgflow.mcp.shown import shown

Verdict = Literal["confirmed", "failed", "absent"]


class Ordering:
    """Tools that change something, of one app and one name.

    Args:
        app: The app.
        name: Name of the person whom the assistant works for.
        acts_as: Roles of that name, for gates.
    """

    def __init__(self, app: AsyncApp, name: str, acts_as: Sequence[str] = ()) -> None:
        self._app = app
        self._name = name
        self._by = f"{name} by mcp"
        self._acts_as = list(acts_as)

    @property
    def tools(self) -> list[Tool]:
        """Those that give orders."""
        return [self.signal, self.pause, self.resume, self.retry, self.cancel, self.settle]

    @property
    def answers(self) -> list[Tool]:
        """Those that answer gates."""
        return [self.approve, self.reject]

    async def signal(self, key: str, name: str, payload: str = "null") -> str:
        """Send a signal to a run. payload: JSON."""
        value = _json(payload, "payload")
        await self._app.send(key, Signal(name, object), value, by=self._by)
        return shown(done=f"the signal {name} is in the mailbox of run {key}")

    async def pause(self, key: str, why: str) -> str:
        """Pause a run: steps that are running finish, and nothing new starts."""
        await self._app.pause(key, why=why, by=self._by)
        return shown(done=f"run {key} will pause")

    async def resume(self, key: str, why: str) -> str:
        """Let a paused or stuck run go on."""
        await self._app.resume(key, why=why, by=self._by)
        return shown(done=f"run {key} will continue")

    async def retry(self, key: str, why: str) -> str:
        """Let a stuck run go on with a fresh budget, or do a failed one again from the step that
        failed.
        """
        await self._app.retry(key, why=why, by=self._by)
        return shown(done=f"run {key} will try again")

    async def cancel(self, key: str, why: str) -> str:
        """Cancel a run. Its code may clean up first. Nothing takes this back."""
        await self._app.cancel(key, why=why, by=self._by)
        return shown(done=f"run {key} will end")

    async def settle(
        self,
        effect: str,
        verdict: Literal["confirmed", "failed", "absent"],
        why: str,
        value: str = "null",
    ) -> str:
        """Say what became of an effect whose outcome is unknown, once you have looked at the other
        side. value: JSON of its result, if it is confirmed.
        """
        found = _json(value, "value")
        await self._app.settle_effect(effect, verdict, found, why=why, by=self._by)
        return shown(done=f"effect {effect} is {verdict}")

    async def approve(self, gate: str, payload_hash: str) -> str:
        """Approve the payload of a gate unchanged. payload_hash: that of the payload that a person
        has seen, from the tool gate.
        """
        await self._app.answer(
            gate, Approve(), by=self._name, payload_hash=payload_hash, acting_as=self._acts_as
        )
        return shown(done=f"gate {gate} has the answer of {self._name}")

    async def reject(self, gate: str, reason: str) -> str:
        """Reject a gate, for a reason that its run gets."""
        await self._app.answer(gate, Reject(reason), by=self._name, acting_as=self._acts_as)
        return shown(done=f"gate {gate} has the answer of {self._name}")


def _json(text: str, what: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"{what}: no JSON: {error}") from None
