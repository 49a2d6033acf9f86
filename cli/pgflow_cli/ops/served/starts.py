"""Runs of events: each source has its events come to `Starts.start`, with a key that is the same
whenever the event comes again. The database starts one run for a key.

Schedules start their runs in the database, so they are set here with the texts that the files have.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pgflow import inspect
from pgflow.declare.durable import declared
from pgflow.errors import NotStorable
from pgflow.events import Event, Relay
from pgflow.webhooks import Endpoint, GitHub, Request, StandardWebhooks, Start, Stripe, Verifier
from pgflow_cli.look.failures import Mistake
from pgflow_cli.look.options import operator
from pgflow_cli.ops.served.flows import Flows
from pgflow_cli.ops.served.triggers import Trigger, schedule_of

if TYPE_CHECKING:
    from pgflow import AsyncApp, Workflow

log = logging.getLogger("pgflow")

_VERIFIERS: dict[str, Callable[..., Verifier]] = {
    "github": GitHub,
    "stripe": Stripe,
    "standard": StandardWebhooks,
}
_LONGEST_KEY = 128


@dataclass
class Starts:
    """Starts of runs.

    Args:
        app: The app.
        flows: Texts of the workflows.
        triggers: The triggers.
        budget: Most that each run may spend.
    """

    app: AsyncApp
    flows: Flows
    triggers: list[Trigger]
    budget: Mapping[str, Decimal] | None

    async def start(self, trigger: Trigger, key: str, event: Any) -> None:
        """Start the run of an event, unless it has one.

        Raises:
            NotStorable: The event does not fit the trigger.
        """
        workflow, args = await asyncio.to_thread(self.prepare, trigger, event)
        run = await self.app.start(workflow.options(key=key, if_taken="attach"), *args)
        log.info("trigger %s: run %s", trigger.name, run.key)

    def prepare(self, trigger: Trigger, event: Any) -> tuple[Workflow[..., Any], tuple[Any, ...]]:
        """Return the workflow and the arguments of the run of an event.

        Raises:
            NotStorable: The event does not fit the trigger.
        """
        try:
            message, inputs = trigger.fill(event)
            conversation = trigger.conversation_of(event)
        except LookupError as error:
            raise NotStorable(f"trigger {trigger.name}: {error.args[0]}") from None
        found = self.flows.arguments(trigger)
        settings = found["settings"].model_copy(update={"conversation": conversation})
        labels = {"file": found["frozen"].graph.name[:255], "trigger": trigger.name}
        workflow = declared.options(labels=labels, budget=self.budget)
        return workflow, (found["frozen"], settings, message, inputs)

    # Schedules -----------------------------------------------------------------------------------

    async def set_schedules(self) -> None:
        """Have each schedule start runs of the text that its file has now."""
        for trigger in self.triggers:
            if not trigger.is_schedule:
                continue
            workflow, args = self.prepare(trigger, "")
            schedule = schedule_of(trigger)
            if await self.app.set_schedule(
                trigger.name, schedule, workflow, *args, why="pgflow serve", by=operator()
            ):
                log.info("trigger %s: its schedule is set", trigger.name)

    async def remove_schedules(self, folder: Path) -> None:
        """Remove the schedules of this folder's files that no trigger has any more."""
        names = {trigger.name for trigger in self.triggers if trigger.is_schedule}
        for row in await inspect.ask_async(self.app, inspect.list_schedules(limit=None)):
            frozen = row.input.get("frozen") if isinstance(row.input, dict) else None
            source = frozen.get("source") if isinstance(frozen, dict) else None
            is_ours = row.workflow == declared.name and isinstance(source, str)
            if is_ours and row.name not in names and Path(str(source)).is_relative_to(folder):
                await self.app.remove_schedule(
                    row.name, why="no trigger of pgflow serve has it", by=operator()
                )
                log.info("trigger %s is gone: its schedule is removed", row.name)

    # The outbox and webhooks ---------------------------------------------------------------------

    def relays(self) -> list[Relay]:
        """Relays that bring the events of topics."""
        return [self._relay(one) for one in self.triggers if one.source == "topic"]

    def _relay(self, trigger: Trigger) -> Relay:
        async def take(event: Event) -> None:
            await self.start(trigger, f"{trigger.name}/{event.id}", event.payload)

        start = trigger.options.get("start", "newest")
        return Relay(trigger.name, [trigger.value], to=take, start=start)

    def endpoints(self) -> list[Endpoint]:
        """Endpoints that take webhooks.

        Raises:
            Mistake: A secret is not in the environment.
        """
        return [self._endpoint(one) for one in self.triggers if one.source == "webhook"]

    def _endpoint(self, trigger: Trigger) -> Endpoint:
        def take(request: Request) -> Start:
            return Start(*self.prepare(trigger, request.payload))

        given = trigger.options["secret"]
        names = [given] if isinstance(given, str) else given
        secrets = [_secret(trigger, name) for name in names]
        return Endpoint(trigger.name, _VERIFIERS[trigger.value](*secrets), to=take)


def _secret(trigger: Trigger, name: str) -> str:
    found = os.environ.get(name)
    if not found:
        raise Mistake(f"[{trigger.name}] secret: variable {name} is not set, or is empty")
    return found


def key_of_file(trigger: Trigger, name: str, digest: str) -> str:
    """Key of the run of a file: its path and its content.

    Args:
        trigger: The trigger.
        name: Its path, as seen from the folder.
        digest: Hash of its content.
    """
    key = f"{trigger.name}/{name}@{digest[:16]}"
    with suppress(UnicodeEncodeError):  # no text, or too long
        if len(key.encode()) <= _LONGEST_KEY:
            return key
    both = hashlib.sha256(f"{name}\0{digest}".encode("utf-8", "surrogateescape")).hexdigest()
    return f"{trigger.name}/{both[:48]}"
