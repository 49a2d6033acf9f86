"""The SRE agent: one agent answers a page; a destructive act needs approval and a fresh check."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta

import pgflow
from examples.agents.world import ATTEMPT, OFTEN, counterparty
from pgflow import read, workflow
from pgflow.authority import Approved
from pgflow.decisions import Choice, decision
from pgflow.effects import Absent, Confirmed, StillUnknown, effect
from pgflow.errors import Stale

DESTRUCTIVE = {"restart", "drain"}


@pgflow.entities.entity("agents.incident")
@dataclass
class Incident:
    """Incident shared by several agents: its holder and its log. It outlives each run."""

    holder: str = ""
    log: list[str] = field(default_factory=list)

    @pgflow.entities.update
    def claim(self, agent: str) -> bool:
        """Take the incident if it is free."""
        self.holder = self.holder or agent
        return self.holder == agent

    @pgflow.entities.update
    def record(self, agent: str, action: str) -> int:
        """Log an action; return the number of logged actions."""
        self.log.append(f"{agent}: {action}")
        return len(self.log)


@dataclass(frozen=True)
class Action:
    """Action on a host."""

    name: str
    host: str


def is_sick(host: str) -> bool:
    """Return True while the host is sick."""
    return not any(line["host"] == host for line in counterparty("fleet").lines())


@read
async def probe(hosts: list[str]) -> list[str]:
    """List the hosts that are sick now."""
    return [host for host in hosts if is_sick(host)]


@decision()
async def diagnose(sick: list[str]) -> Choice[Action]:
    """Choose an action: this stand-in for a model restarts the first host."""
    return Choice(
        Action("restart", sick[0]), why=f"{sick[0]} does not answer", evidence=sick, model="rule-1"
    )


@effect(risk="irreversible", timeout=ATTEMPT, settle_retries=OFTEN)
async def run_on_host(action: Action) -> str:
    """Run the action."""
    key = pgflow.idempotency_key()
    return await counterparty("fleet").act(action.name, key, host=action.host)


@run_on_host.precondition
async def _(action: Action) -> bool:
    """Check again: people and other agents may have acted during the wait for approval."""
    return is_sick(action.host)


@run_on_host.settle
async def _(action: Action) -> Confirmed[str] | Absent | StillUnknown:
    del action
    found = counterparty("fleet").find(pgflow.idempotency_key())
    return Confirmed(found["number"]) if found else Absent()


@workflow
async def respond(incident: str, agent: str, hosts: list[str]) -> list[str]:
    """Cure the hosts of an incident, or stop if another agent has it."""
    if not await Incident.claim(incident, agent):
        return []
    while sick := await probe(hosts):
        chosen = await diagnose(sick)
        action = chosen.value
        if action.name in DESTRUCTIVE:
            verdict = await pgflow.authority.gate(
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
    return (await pgflow.entities.query(Incident, incident)).state.log
