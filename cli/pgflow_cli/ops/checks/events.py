"""The outbox and the triggers."""

from __future__ import annotations

from pgflow import inspect
from pgflow_cli.look.output import many
from pgflow_cli.ops.checks.finding import Findings, Patient, warn


def check_relays(patient: Patient) -> Findings:
    """Yield relays whose target fails, and dead events."""
    relays = patient.ask(inspect.list_relays())
    for relay in relays:
        if relay.dead:
            yield warn(
                f"relay {relay.name} has {many(relay.dead, 'dead event')}",
                f"`pgflow outbox show {relay.name}` says why; then `pgflow outbox redeliver`",
            )
        if relay.state == "open":
            yield warn(
                f"the target of relay {relay.name} has failed {relay.failures} times in a row: "
                f"{relay.error}",
                f"fix {relay.target}, then `pgflow outbox resume {relay.name}`",
            )
        elif relay.state == "paused" or (relay.state == "idle" and relay.lag >= 10_000):
            yield warn(
                f"relay {relay.name} is {relay.state} with {relay.lag} events to take",
                f"`pgflow outbox resume {relay.name}`, start a worker whose app has it, or "
                f"`pgflow outbox drop {relay.name}`: it keeps its events meanwhile",
            )
    return f"{many(len(relays), 'relay')}, none in trouble"


def check_triggers(patient: Patient) -> Findings:
    """Triggers that are not as they were installed."""
    triggers = patient.ask(inspect.list_triggers())
    for trigger in triggers:
        if trigger.state != "installed":
            yield warn(
                f"trigger {trigger.name} on {trigger.target or 'a table that is gone'} was "
                f"{trigger.state} since it was installed",
                "install it again with what `pgflow triggers MODULE --sql` prints",
            )
    return f"{many(len(triggers), 'trigger')}, as installed"
