"""Runs of events: each source has its events come to `Starts.start`, with a key that is the same
whenever the event comes again. The database starts one run for a key.

A run uses the text that its file had at its start. So the server freezes a file when it starts, and
again at an event after anything in the folder has changed. It detects a change by the times and
sizes of the files, one look at each. If an edit breaks a file, runs keep using the last sound text,
and the log has the error. Schedules start their runs in the database, so they are set here with the
texts that the files have.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pgflow import inspect
from pgflow.console.output import shown
from pgflow.declare.durable import declared
from pgflow.errors import NotStorable, PgflowError
from pgflow.events import Event, Relay
from pgflow.webhooks import Endpoint, GitHub, Request, StandardWebhooks, Start, Stripe, Verifier
from pgflow_cli.files.watching import Sign, root_of, signatures
from pgflow_cli.look.failures import Ended, Mistake
from pgflow_cli.look.options import operator
from pgflow_cli.ops.served.triggers import Trigger, schedule_of
from pgflow_cli.runs.declared import FileOptions, prepare

if TYPE_CHECKING:
    from pgflow import AsyncApp, Workflow


@dataclass
class Flows:
    """The workflows of triggers.

    Args:
        folder: Folder of the files.
        triggers: The triggers.
        given: Options of the command line, which count for all runs.

    Raises:
        Mistake: One cannot be run.
        Ended: The file of one has errors; they are already printed.
    """

    folder: Path
    triggers: list[Trigger]
    given: FileOptions

    def __post_init__(self) -> None:
        """Freeze the files."""
        self._lock = threading.Lock()
        self._seen = self._look()
        self._arguments = {one.name: self._prepare(one) for one in self.triggers}

    def arguments(self, trigger: Trigger) -> Mapping[str, Any]:
        """Return the arguments of a run of a trigger, with the texts that the files have now."""
        self.refresh()
        return self._arguments[trigger.name]

    def refresh(self) -> bool:
        """Freeze the files again if one has changed; True if a run would be another one now."""
        with self._lock:
            seen = self._look()
            if seen == self._seen:
                return False
            self._seen = seen
            before = dict(self._arguments)
            for trigger in self.triggers:
                self._freeze_again(trigger)
            return self._arguments != before

    def _freeze_again(self, trigger: Trigger) -> None:
        try:
            self._arguments[trigger.name] = self._prepare(trigger)
        except (Mistake, PgflowError, Ended) as error:
            why = "its file has errors" if isinstance(error, Ended) else shown(str(error))
            log.warning("trigger %s goes on with the text of before: %s", trigger.name, why)

    def _prepare(self, trigger: Trigger) -> dict[str, Any]:
        """Return the arguments of a run. Fields of an event are filled in later."""
        given = {**dict.fromkeys(trigger.take, ""), **trigger.inputs}
        options = replace(
            self.given,
            inputs=[json.dumps(given)] if given else [],
            provider=trigger.provider or self.given.provider,
            conversation=trigger.conversation,
        )
        try:
            return prepare(find_flow(self.folder, trigger.run), options)
        except (Mistake, PgflowError) as error:
            raise Mistake(f"[{trigger.name}] {error}") from None

    def _look(self) -> frozenset[Sign]:
        """Signs of each file, by which a change of it is noticed."""
        roots = map(root_of, (self.folder, *self.given.folders))
        return frozenset(sign for root in roots for sign in signatures(root))


def find_flow(folder: Path, run: str) -> Path:
    """Return the workflow of a trigger: a path below the folder, or the name of one there.

    Raises:
        Mistake: It does not exist, or several have the name.
    """
    from pgflow.declare import discover_workflows

    if "\0" not in run and (path := folder / run).exists():
        return path
    found = [
        Path(verdict.file)
        for verdict in discover_workflows(folder)
        if verdict.graph is not None and verdict.graph.name == run
    ]
    if len(found) == 1:
        return found[0]
    if found:
        raise Mistake(f"{len(found)} workflows in {folder} are named {run!r}: name the file")
    raise Mistake(f"{folder} has no workflow {run!r}: name a file of it, or a workflow")


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
