"""The SRE agent: one agent answers a page, and what destroys needs leave and a fresh look."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta

import pgflow
from examples.agents.world import ATTEMPT, OFTEN, counterparty
from pgflow import (
    Absent,
    Approved,
    Choice,
    Confirmed,
    Stale,
    StillUnknown,
    decision,
    effect,
    read,
    workflow,
)

DESTRUCTIVE = {"restart", "drain"}


@pgflow.entity("agents.incident")
@dataclass
class Incident:
    """Incident that several agents see: who has it, and what was done. It outlives each run."""

    holder: str = ""
    log: list[str] = field(default_factory=list)

    @pgflow.update
    def claim(self, agent: str) -> bool:
        """Takes it, if nobody has it."""
        self.holder = self.holder or agent
        return self.holder == agent

    @pgflow.update
    def record(self, agent: str, action: str) -> int:
        """Writes down what was done; answers how much that is."""
        self.log.append(f"{agent}: {action}")
        return len(self.log)


@dataclass(frozen=True)
class Action:
    """Action on a host."""

    name: str
    host: str


def is_sick(host: str) -> bool:
    """Return True as long as nothing has cured the host."""
    return not any(line["host"] == host for line in counterparty("fleet").lines())


@read
async def probe(hosts: list[str]) -> list[str]:
    """Lists the hosts that are sick at this moment."""
    return [host for host in hosts if is_sick(host)]


@decision()
async def diagnose(sick: list[str]) -> Choice[Action]:
    """Chooses what to do. A model would; this one restarts the first."""
    return Choice(
        Action("restart", sick[0]), why=f"{sick[0]} does not answer", evidence=sick, model="rule-1"
    )


@effect(risk="irreversible", timeout=ATTEMPT, settle_retries=OFTEN)
async def run_on_host(action: Action) -> str:
    """Does it."""
    key = pgflow.idempotency_key()
    return await counterparty("fleet").act(action.name, key, host=action.host)


@run_on_host.precondition
async def _(action: Action) -> bool:
    """Look again: people and other agents have acted while leave was asked for."""
    return is_sick(action.host)


@run_on_host.settle
async def _(action: Action) -> Confirmed[str] | Absent | StillUnknown:
    del action
    found = counterparty("fleet").find(pgflow.idempotency_key())
    return Confirmed(found["number"]) if found else Absent()


@workflow
async def respond(incident: str, agent: str, hosts: list[str]) -> list[str]:
    """Cures the hosts of an incident, or stands down for whoever has it."""
    if not await Incident.claim(incident, agent):
        return []
    while sick := await probe(hosts):
        chosen = await diagnose(sick)
        action = chosen.value
        if action.name in DESTRUCTIVE:
            verdict = await pgflow.gate(
                "destroy", action, approvers=["on-call"], timeout=timedelta(minutes=15)
            )
            if not isinstance(verdict, Approved):
                await Incident.record(incident, agent, f"no leave to {action.name} {action.host}")
                break
            action = verdict.value
        try:
            await run_on_host.because(chosen)(action)
        except Stale:
            await Incident.record(incident, agent, f"{action.host} was well by then")
            continue
        await Incident.record(incident, agent, f"{action.name} {action.host}")
    return (await pgflow.query(Incident, incident)).state.log
