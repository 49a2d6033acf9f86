"""One stage of a workspace, from its request to its delivery.

`StagePlay.play` is the table of contents. A stage whose inputs are those that it ran with, and
whose outputs are there, has nothing to do. Else its agent takes a turn for each checkpoint, and one
for the rest. What it left is taken, checked, mended once, and shown to a person where the contract
says so. Every look at the files is a step, so a replay sees what the run has seen.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pydantic import JsonValue

import pgflow
from pgflow.declare.durable.bodies import Done
from pgflow.declare.durable.providers import Turn
from pgflow.declare.durable.questions import No, Yes, ask
from pgflow.declare.durable.results import NodeFailed
from pgflow.declare.durable.stages import prompts
from pgflow.declare.durable.stages.delivery import (
    Delivered,
    DeliveryRefused,
    Parcel,
    deliver,
    take_back,
)
from pgflow.declare.durable.stages.files import Outside
from pgflow.declare.durable.stages.looks import Desk, Kept, Look, shown
from pgflow.declare.durable.stages.plans import Stage, acts, deliveries, value_at
from pgflow.declare.graph import Effect
from pgflow.declare.play.failures import retry_delay_ms
from pgflow.declare.play.interpreter import Change, Settled, State, Task
from pgflow.declare.text.outputs import Output, completed
from pgflow.errors import EffectFailed, StepFailed

if TYPE_CHECKING:
    from pgflow.declare.durable.stages.player import StagePlayer

MOST_SHOWN_BYTES: Final = 64 << 10
"""Longest file that is put into a prompt; a longer one is named only."""
REMEMBERED: Final = timedelta(days=3650)
"""Time for which a folder knows what was delivered to it: for good."""

_DELIVERY_SECONDS: Final = 300.0
_TURN_SECONDS: Final = 7200.0

T = TypeVar("T", Look, Kept)


class _SaidNo(Exception):
    """A person does not let the stage go on: the run ends."""


class StagePlay:
    """Plays one stage.

    Args:
        player: Player of the run.
        task: The stage's task.
        state: Progress of the run when the stage's layer opened.
    """

    def __init__(self, player: StagePlayer, task: Task, state: State) -> None:
        self.player = player
        self.task = task
        self.state = state
        self.node = task.node
        self.id = task.node.id
        self.stage = player.workspace.stages.get(self.id) or Stage(base=f"stages/{self.id}")
        self.desk = Desk(player.tree, player.folders, self.id, self.stage, player.folders.key)
        self.prompt = prompts.whole(task.text, self.stage, task.variables.message)
        self.dialogue: list[str] = []
        self.kept = Kept()
        self.counts: Counter[str] = Counter()

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
        if self._gates("request") and not await self.player.is_requested(self.id):
            return Settled(place, Output("skipped"), "not requested")
        look = await self._look()
        if look.is_current:
            return Settled(place, completed(look.text), "unchanged: its inputs are as they were")
        if await self._asked_before(look):
            look = await self._look()
        said = await self._worked(look)
        said = await self._reviewed(await self._checked(said))
        kept = await self._finished(said, look)
        for effect in deliveries(self.node):
            await self._delivered(effect, kept)
        return Settled(place, completed(kept.text), None, self.task.text)

    def _gates(self, kind: str) -> list[Any]:
        return [gate for gate in self.node.gates if gate.kind == kind]

    def _key(self, kind: str) -> str:
        """The next key of a kind of step; the first has no number."""
        self.counts[kind] += 1
        key = f"{self.id}:{kind}" if kind else self.id
        return key if self.counts[kind] == 1 else f"{key}#{self.counts[kind]}"

    # Before --------------------------------------------------------------------------------------

    async def _look(self) -> Look:
        """Look at the stage's files.

        Raises:
            NodeFailed: One that it needs is not there.
        """
        outputs = self.state.scope.outputs
        left_out = tuple(one for one, output in outputs.items() if output.state == "skipped")
        may = bool(self.stage.writes) and not self.node.effects and not self._gates("signal")
        digest = prompts.digest(self.prompt)
        look = await self._step(
            "look", lambda: self.desk.look(digest, left_out, may_be_current=may), Look
        )
        if look.missing:
            raise NodeFailed(f"stage '{self.id}' reads {look.missing}, which is not there")
        return look

    async def _asked_before(self, look: Look) -> bool:
        """Wait for messages from outside and for a person's go-ahead; True if anything was waited
        for. A message that is waited for is the go-ahead.
        """
        names = [gate.name for gate in self._gates("signal")]
        has_come = [name for name in names if name in self.player.heard]
        heard = {name: await self.player.hear(name) for name in names}
        self.prompt = prompts.joined(self.prompt, prompts.heard(heard))
        if self._gates("interrupt") and len(has_come) == len(names):
            read = "\n".join(f"{path}: {digest}" for path, digest in look.inputs.items())
            answer = await self._ask("before", f"Stage {self.id} is about to run. It reads:", read)
            if isinstance(answer, No):
                raise _SaidNo(answer.reason)
            if answer.text:
                self.prompt = prompts.joined(self.prompt, f"A person says: {answer.text}")
            return True
        return bool(names)

    # Work ----------------------------------------------------------------------------------------

    async def _worked(self, look: Look) -> str:
        """Have the agent work, with a person at each checkpoint; answer its last words."""
        for gate in self._gates("checkpoint"):
            while True:
                done = await self._turn("", prompts.up_to(gate))
                answer = await self._ask("checkpoint", gate.decides or gate.presents, done.text)
                if isinstance(answer, Yes):
                    self.dialogue.append(prompts.decided(done.text, answer.text))
                    break
                self.dialogue.append(prompts.again(done.text, answer.reason))
        done = await (self._act() if self._acts else self._turn(""))
        return await self._taken(done, look)

    @property
    def _acts(self) -> tuple[Effect, ...]:
        """Acts of the agent's turn, if that is really taken."""
        return () if self.id in self.player.settings.stubs else acts(self.node)

    async def _turn(
        self, kind: str, *more: str, whole: str | None = None, schema: JsonValue = None
    ) -> Done:
        """Have an agent take a turn, again where the stage's retries say so.

        Raises:
            NodeFailed: It has not.
        """
        task, prepare = self._turn_task(kind, *more, whole=whole, schema=schema)
        key, attempt = self._key(kind), 1
        while True:
            tried = key if attempt == 1 else f"{key}~{attempt}"
            done = await self.player.works.once(tried, task, {}, prepare)
            if done.error is None:
                return done
            delay = retry_delay_ms(self.node, attempt, done.error)
            if delay is None:
                raise NodeFailed(done.error)
            await pgflow.sleep(delay / 1000)
            attempt += 1

    def _turn_task(
        self, kind: str, *more: str, whole: str | None = None, schema: JsonValue = None
    ) -> tuple[Task, Callable[[Turn], Turn]]:
        """The task of a turn, and what puts the files into its prompt when it is taken."""
        text = whole or prompts.joined(self.prompt, *self.dialogue, *more)
        node = self.node.model_copy(
            update={
                "id": f"{self.id}:{kind}" if kind else self.id,
                "effects": (),
                "output_schema": schema,
                "idle_timeout_ms": self.node.idle_timeout_ms or self.node.timeout_ms,
            }
        )
        reads = self.stage.reads if whole is None else (*self.stage.reads, *self.stage.writes)
        stage, tree = self.stage.model_copy(update={"reads": reads}), self.player.tree

        def with_files(turn: Turn) -> Turn:
            files = shown(tree, stage, MOST_SHOWN_BYTES)
            return replace(turn, prompt=prompts.joined(turn.prompt, files))

        return replace(self.task, node=node, text=text), with_files

    async def _taken(self, done: Done, look: Look) -> str:
        """Take what the agent left; answer its words.

        Raises:
            NodeFailed: It owes something.
        """
        self.kept = await self._step(
            "files", lambda: self.desk.take(done, look.stamps), Kept, prompts.digest(done.text)
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
        """Have the work checked, mended once, and then decided by a person."""
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
        """What the checks find; nothing if they pass. A rehearsed stage passes its checks, unless
        they are rehearsed too.
        """
        stubs = self.player.settings.stubs
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
        return await ask(self._key(kind), prompts.joined(*parts))

    # After ---------------------------------------------------------------------------------------

    async def _finished(self, said: str, look: Look) -> Kept:
        """Take the outputs as they are now, edits of people included, and record the stage.

        Raises:
            NodeFailed: One was taken away.
        """
        parcel = None
        if deliveries(self.node):
            parcel = [file for file in self.stage.reads if file.writer] + list(self.stage.writes)
        digest = prompts.digest(prompts.whole(
            self.task.text, self.stage, self.task.variables.message
        ))  # fmt: skip
        kept = await self._step(
            "done", lambda: self.desk.finish(said, look, digest, parcel), Kept
        )
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

        key = self._key(kind)
        try:
            return await pgflow.call(
                key, once, *args, returns=returns, retries=1, raises=[NodeFailed]
            )
        except StepFailed as error:
            raise NodeFailed(f"stage '{self.id}': {error}") from error

    # Acts ----------------------------------------------------------------------------------------

    async def _act(self) -> Done:
        """Have the agent take a turn that acts on other systems, as an effect.

        Raises:
            NodeFailed: It has not acted.
        """
        values = self.player.values(self.state)
        named = {one.idempotency_key or "" for one in self._acts}
        keys = {path: value_at(path, values) for path in sorted(named) if path}
        key = self._key("")
        task, prepare = self._turn_task("", prompts.to_act(self._acts, keys))

        async def act(text: str) -> Done:  # noqa: ARG001 - recorded with the intent
            done = await self.player.works.act(key, task, prepare)
            if done.unknown:
                raise TimeoutError(done.error)
            return done

        undone = [one for one in reversed(self._acts) if one.compensation]
        effect = pgflow.effect(
            risk="compensable" if undone else "irreversible",
            keyed=False,
            name=key,
            timeout=_TURN_SECONDS,
        )(act)

        async def undo(result: Done, text: str) -> None:  # noqa: ARG001 - as the effect was asked
            for one in undone:
                await self._undone(one, result.text)

        if undone:
            undo.__name__ = "_"
            effect.compensate(undo)
        try:
            done = await effect(prompts.digest(task.text))
        except EffectFailed as error:
            raise NodeFailed(str(error)) from error
        if done.error is not None:
            raise NodeFailed(done.error)
        return done

    async def _delivered(self, effect: Effect, kept: Kept) -> None:
        """Deliver files to the folder that the effect's key names, as an effect.

        Raises:
            NodeFailed: They cannot be delivered there.
        """
        path = effect.idempotency_key or ""
        folder = value_at(path, self.player.values(self.state))
        if not isinstance(folder, str):
            raise NodeFailed(f"stage '{self.id}': {path} names no folder to deliver to")
        tree, folders = self.player.tree, self.player.folders

        async def put(folder: str, parcel: Parcel) -> Delivered:
            return await asyncio.to_thread(deliver, tree, folders, folder, parcel)

        act = pgflow.effect(
            risk="compensable" if effect.compensation else "reversible",
            raises=[DeliveryRefused],
            dedup_window=REMEMBERED,
            timeout=_DELIVERY_SECONDS,
            name=self._key("deliver"),
        )(put)

        async def undo(result: Delivered, folder: str, parcel: Parcel) -> None:  # noqa: ARG001
            await asyncio.to_thread(take_back, tree, folder, result)
            if self.id not in self.player.settings.stubs and self.player.settings.provider:
                await self._undone(effect, f"Delivered to {folder}")

        if effect.compensation:
            undo.__name__ = "_"
            act.compensate(undo)
        try:
            await act(folder, Parcel(files=kept.parcel))
        except (DeliveryRefused, EffectFailed) as error:
            raise NodeFailed(f"stage '{self.id}': {error}") from error

    async def _undone(self, effect: Effect, said: str) -> None:
        """Have an agent take back an act, inside the body that takes it back.

        Raises:
            TimeoutError: It has not; it is asked again.
        """
        named = {one.name: one.description or one.name for one in self.node.compensations}
        instruction = named.get(effect.compensation or "", effect.compensation or "")
        text = prompts.to_undo(self.id, effect.system, instruction, said)
        task, prepare = self._turn_task("compensate", whole=text)
        done = await self.player.works.act(f"{self.id}:compensate", task, prepare)
        if done.error is not None:
            raise TimeoutError(done.error)
