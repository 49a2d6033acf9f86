"""One stage of a workspace, from its request to its delivery.

`StagePlay.play` is the table of contents. A stage has nothing to do if its inputs are those of its
last run, and its outputs exist. Else its agent takes a turn for each checkpoint, and one for the
rest. Its work is taken, checked, revised once, and shown to a person if the contract requires that.
Every look at the files is a step, so a replay sees what the run has seen.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

from pydantic import JsonValue

import pgflow
from pgflow.declare.durable.bodies import Done
from pgflow.declare.durable.frozen import Stage
from pgflow.declare.durable.questions import No, Yes, ask
from pgflow.declare.durable.results import NodeFailed
from pgflow.declare.durable.stages import prompts
from pgflow.declare.durable.stages.acting import Acting
from pgflow.declare.durable.stages.context import Context
from pgflow.declare.durable.stages.files import Outside
from pgflow.declare.durable.stages.looks import Kept, Look, StageFiles
from pgflow.declare.durable.stages.plans import deliveries
from pgflow.declare.durable.stages.telling import Telling
from pgflow.declare.graph import Pause
from pgflow.declare.play.failures import retry_delay_ms
from pgflow.declare.play.interpreter import Change, Settled, State, Task
from pgflow.declare.text.outputs import Output, completed
from pgflow.declare.text.times import TIME, due
from pgflow.errors import StepFailed

T = TypeVar("T", Look, Kept)


class _SaidNo(Exception):
    """A person does not let the stage go on: the run ends."""


class _TooLate(Exception):
    """A message has not come by the deadline."""


class StagePlay:
    """Plays one stage.

    Args:
        context: Surroundings of the run's stages.
        task: The stage's task.
        state: Progress of the run when the stage's layer opened.
    """

    def __init__(self, context: Context, task: Task, state: State) -> None:
        self.context = context
        self.task = task
        self.state = state
        self.node = task.node
        self.id = task.node.id
        self.stage = context.workspace.stages.get(self.id) or Stage(base=f"stages/{self.id}")
        self.files = StageFiles(
            context.tree, context.folders, self.id, self.stage, context.settings
        )
        self.pause = task.node.pause or Pause()
        self.kept = Kept()
        self.telling = Telling(task, self.stage, context.tree)
        self.acting = Acting(context, self.telling, state)

    async def play(self) -> Change:
        """Play it to its end."""
        place = self.task.place
        try:
            return await self._play()
        except NodeFailed as error:
            return Settled(place, Output("failed", error=str(error)), str(error), self.task.text)
        except _SaidNo as error:
            output = Output("completed", str(error))
            return Settled(place, output, "rejected", str(error), cancels=True)

    async def _play(self) -> Change:
        place = self.task.place
        if self._gates("request") and not await self.context.mail.is_requested(self.id):
            return Settled(place, Output("skipped"), "not_requested")
        look = await self._look()
        if look.is_current:
            return Settled(place, completed(look.text), "unchanged")
        has_waited = await self._waited()
        try:
            if await self._asked_before(look) or has_waited:
                look = await self._look()
        except _TooLate as error:
            if self.pause.skips:
                return Settled(place, Output("skipped"), str(error))
            raise NodeFailed(str(error)) from None
        said = await self._worked(look)
        said = await self._reviewed(await self._checked(said))
        kept = await self._finished(said, look)
        for effect in deliveries(self.node):
            await self.acting.deliver(effect, kept)
        return Settled(place, completed(kept.text), None, self.task.text)

    def _gates(self, kind: str) -> list[Any]:
        return [gate for gate in self.node.gates if gate.kind == kind]

    # Before --------------------------------------------------------------------------------------

    async def _look(self) -> Look:
        """Look at the stage's files.

        Raises:
            NodeFailed: One that it needs is not there.
        """
        outputs = self.state.scope.outputs
        left_out = tuple(one for one, output in outputs.items() if output.state == "skipped")
        may = bool(self.stage.writes) and not self.node.effects and not self._gates("signal")
        digest = prompts.digest(self.telling.prompt)
        look = await self._step(
            "look", lambda: self.files.look(digest, left_out, may_be_current=may), Look
        )
        if look.missing:
            raise NodeFailed(f"stage '{self.id}' reads {look.missing}, which is not there")
        return look

    async def _asked_before(self, look: Look) -> bool:
        """Wait for messages from outside and for a person's go-ahead; True if anything was waited
        for. A message that is waited for is the go-ahead.
        """
        names = [gate.name for gate in self._gates("signal")]
        has_come = [name for name in names if name in self.context.mail.heard]
        heard = await self._heard(names)
        self.telling.hear(prompts.heard(heard))
        if self._gates("interrupt") and len(has_come) == len(names):
            read = "\n".join(f"{path}: {digest}" for path, digest in look.inputs.items())
            answer = await self._ask("before", f"Stage {self.id} is about to run. It reads:", read)
            if isinstance(answer, No):
                raise _SaidNo(answer.reason)
            if answer.text:
                self.telling.hear(f"A person says: {answer.text}")
            return True
        return bool(names)

    async def _waited(self) -> bool:
        """Wait for the stage's time; True if there is one."""
        if self.pause.until is None:
            return False
        now = pgflow.now()
        at = due(self.pause.until, now)
        if at is None:
            raise NodeFailed(f"stage '{self.id}': wait must be {TIME}, not {self.pause.until!r}")
        await pgflow.sleep(max(timedelta(), at - now))
        return True

    async def _heard(self, names: list[str]) -> dict[str, JsonValue]:
        """Wait for messages until the deadline.

        Raises:
            _TooLate: One has not come by then.
        """
        limit, mail = self.pause.deadline_ms, self.context.mail
        missing = ""
        try:
            async with asyncio.timeout(None if limit is None else limit / 1000):
                for missing in names:
                    await mail.hear(missing)
        except TimeoutError:
            within = timedelta(milliseconds=limit or 0)
            said = f"stage '{self.id}': no message {missing!r} came within {within}"
            raise _TooLate(said) from None
        return {name: mail.heard[name] for name in names}

    # Work ----------------------------------------------------------------------------------------

    async def _worked(self, look: Look) -> str:
        """Have the agent work, with a person at each checkpoint; answer its last words."""
        for gate in self._gates("checkpoint"):
            while True:
                done = await self._turn("", prompts.up_to(gate))
                answer = await self._ask("checkpoint", gate.decides or gate.presents, done.text)
                if isinstance(answer, Yes):
                    self.telling.remember(prompts.decided(done.text, answer.text))
                    break
                self.telling.remember(prompts.again(done.text, answer.reason))
        done = await (self.acting.act() if self.acting.acts else self._turn(""))
        return await self._taken(done, look)

    async def _turn(
        self, kind: str, *more: str, whole: str | None = None, schema: JsonValue = None
    ) -> Done:
        """Have an agent take a turn, again where the stage's retries say so.

        Raises:
            NodeFailed: It has not.
        """
        task, prepare = self.telling.turn_task(kind, *more, whole=whole, schema=schema)
        key, attempt = self.telling.key(kind), 1
        while True:
            tried = key if attempt == 1 else f"{key}~{attempt}"
            done = await self.context.works.once(tried, task, {}, prepare=prepare)
            if done.error is None:
                return done
            delay = retry_delay_ms(self.node, attempt, done.error)
            if delay is None:
                raise NodeFailed(done.error)
            await pgflow.sleep(delay / 1000)
            attempt += 1

    async def _taken(self, done: Done, look: Look) -> str:
        """Take what the agent left; answer its words.

        Raises:
            NodeFailed: It owes something.
        """
        self.kept = await self._step(
            "files", lambda: self.files.take(done, look.stamps), Kept, prompts.digest(done.text)
        )
        if self.kept.missing:
            raise NodeFailed(f"stage '{self.id}' has not written {self.kept.missing}")
        return done.text

    async def _again(self, kind: str, said: str, notes: str) -> str:
        """Send the work back to the agent; answer its words."""
        look = await self._look()
        return await self._taken(await self._turn(kind, prompts.again(said, notes)), look)

    # Checks and reviews --------------------------------------------------------------------------

    async def _checked(self, said: str) -> str:
        """Have the work checked, revised once, and then decided by a person."""
        if not self.node.checks:
            return said
        was_mended = False
        while True:
            findings = await self._findings(said)
            if not findings:
                return said
            if not was_mended:
                was_mended, said = True, await self._again("repair", said, findings)
                continue
            answer = await self._ask("audit", f"The checks of {self.id} fail.", findings, said)
            if isinstance(answer, Yes):
                return said
            said = await self._again("rework", said, answer.reason)

    async def _findings(self, said: str) -> str:
        """Return the findings of the checks; nothing if they pass. A rehearsed stage passes its
        checks, unless they are rehearsed too.
        """
        stubs = self.context.settings.stubs
        if self.id in stubs and f"{self.id}:check" not in stubs:
            return ""
        text = prompts.to_check(self.id, self.node.checks, said)
        done = await self._turn("check", whole=text, schema=prompts.VERDICT)
        verdict = done.value if isinstance(done.value, dict) else {}
        if verdict.get("passed") is True:
            return ""
        found = verdict.get("findings")
        told = [str(one) for one in found] if isinstance(found, list) else []
        return "\n".join(told) or "A check does not pass."

    async def _reviewed(self, said: str) -> str:
        """Ask a person whether the work is accepted; until it is, it is sent back with notes."""
        for gate in self._gates("review"):
            while True:
                made = "\n".join(f"{path}: {digest}" for path, digest in self.kept.outputs.items())
                answer = await self._ask("review", f"{self.id}: {gate.decides}", made, said)
                if isinstance(answer, Yes):
                    break
                said = await self._checked(await self._again("rework", said, answer.reason))
        return said

    async def _ask(self, kind: str, *parts: str) -> Yes | No:
        return await ask(self.context.works.log, self.telling.key(kind), prompts.joined(*parts))

    # After ---------------------------------------------------------------------------------------

    async def _finished(self, said: str, look: Look) -> Kept:
        """Take the outputs as they are now, edits of people included, and record the stage.

        Raises:
            NodeFailed: One was taken away.
        """
        parcel = None
        if deliveries(self.node):
            parcel = [file for file in self.stage.reads if file.writer] + list(self.stage.writes)
        digest = prompts.digest(self.telling.first)
        kept = await self._step("done", lambda: self.files.finish(said, look, digest, parcel), Kept)
        if kept.missing:
            raise NodeFailed(f"stage '{self.id}': {kept.missing} is not there any more")
        return kept

    async def _step(self, kind: str, body: Callable[[], T], returns: type[T], *args: str) -> T:
        """Look at the files, or change them, as a step.

        Raises:
            NodeFailed: A path leads elsewhere, or the disk does not take it.
        """

        def once(*_: str) -> T:
            try:
                return body()
            except (Outside, OSError) as error:
                raise NodeFailed(f"stage '{self.id}': {error}") from None

        key = self.telling.key(kind)
        try:
            return await self.context.works.lease.during(
                lambda: pgflow.call(
                    key, once, *args, returns=returns, retries=1, raises=[NodeFailed]
                )
            )
        except StepFailed as error:
            raise NodeFailed(f"stage '{self.id}': {error}") from error
