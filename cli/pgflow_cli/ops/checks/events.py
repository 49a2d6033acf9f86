"""The outbox and the triggers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pgflow_cli.ops.checks.finding import Finding, Patient, count_of

if TYPE_CHECKING:
    from collections.abc import Iterator


def check_relays(patient: Patient) -> Iterator[Finding]:
    """Yield relays whose target fails, and dead events."""
    from pgflow.inspect import list_relays

    relays = patient.ask(list_relays())
    is_well = True
    for relay in relays:
        if relay.dead:
            is_well = False
            yield Finding(
                "warn",
                f"relay {relay.name} has {count_of(relay.dead, 'dead event')}",
                f"`pgflow outbox show {relay.name}` says why; then `pgflow outbox redeliver`",
            )
        if relay.state == "open":
            is_well = False
            yield Finding(
                "warn",
                f"the target of relay {relay.name} has failed {relay.failures} times in a row: "
                f"{relay.error}",
                f"fix {relay.target}, then `pgflow outbox resume {relay.name}`",
            )
        elif relay.state == "paused" or (relay.state == "idle" and relay.lag >= 10_000):
            is_well = False
            yield Finding(
                "warn",
                f"relay {relay.name} is {relay.state} with {relay.lag} events to take",
                f"`pgflow outbox resume {relay.name}`, start a worker whose app has it, or "
                f"`pgflow outbox drop {relay.name}`: it keeps its events meanwhile",
            )
    if is_well:
        yield Finding("ok", f"{count_of(len(relays), 'relay')}, none in trouble")


def check_triggers(patient: Patient) -> Iterator[Finding]:
    """Triggers that are not as they were installed."""
    from pgflow.inspect import list_triggers

    triggers = patient.ask(list_triggers())
    for trigger in triggers:
        if trigger.state != "installed":
            yield Finding(
                "warn",
                f"trigger {trigger.name} on {trigger.target or 'a table that is gone'} was "
                f"{trigger.state} since it was installed",
                "install it again with what `pgflow triggers MODULE --sql` prints",
            )
    if all(trigger.state == "installed" for trigger in triggers):
        yield Finding("ok", f"{count_of(len(triggers), 'trigger')}, as installed")
