"""Acts of a stage on the world: the turn of an agent that acts on other systems, the delivery of
files, and the compensation of each.

Both are effects of the ledger. If the worker dies during an agent's turn, its outcome is unknown
and a person settles it. A delivery is sent again under the same key, since its folder remembers
what it got. If the run fails later, acts with a compensation are compensated, the last act first.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Final

import pgflow
from pgflow.declare.durable.bodies import Done
from pgflow.declare.durable.results import NodeFailed
from pgflow.declare.durable.stages import prompts
from pgflow.declare.durable.stages.context import Context
from pgflow.declare.durable.stages.delivery import (
    Delivered,
    DeliveryRefused,
    Parcel,
    deliver,
    take_back,
)
from pgflow.declare.durable.stages.looks import Kept
from pgflow.declare.durable.stages.plans import acts, value_of
from pgflow.declare.durable.stages.telling import Telling
from pgflow.declare.graph import Effect
from pgflow.declare.play.interpreter import State
from pgflow.errors import EffectFailed

REMEMBERED: Final = timedelta(days=3650)
"""Time for which a folder knows what was delivered to it: for good."""

_DELIVERY_SECONDS: Final = 300.0
_TURN_SECONDS: Final = 7200.0


class Acting:
    """The acts of one stage.

    Args:
        context: Surroundings of the run's stages.
        telling: Turns of the stage.
        state: Progress of the run when the stage's layer opened.
    """

    def __init__(self, context: Context, telling: Telling, state: State) -> None:
        self.context = context
        self.telling = telling
        self.id = telling.id
        self.node = telling.node
        self.state = state

    @property
    def acts(self) -> tuple[Effect, ...]:
        """Acts of the agent's turn, if that is really taken."""
        return () if self.id in self.context.settings.stubs else acts(self.node)

    async def act(self) -> Done:
        """Have the agent take a turn that acts on other systems, as an effect.

        Raises:
            NodeFailed: It has not acted.
        """
        values = self.context.mail.values(self.state)
        named = {one.idempotency_key or "" for one in self.acts}
        keys = {key: value_of(key, values) for key in sorted(named) if key}
        key = self.telling.key("")
        task, prepare = self.telling.turn_task("", prompts.to_act(self.acts, keys))

        async def act(text: str) -> Done:  # noqa: ARG001 - recorded with the intent
            done = await self.context.works.act(key, task, prepare)
            if done.unknown:
                raise TimeoutError(done.error)
            return done

        undone = [one for one in reversed(self.acts) if one.compensation]
        effect = pgflow.effects.effect(
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
            told = prompts.digest(task.text)
            done = (await self.context.works.lease.during(lambda: effect(told))).whole()
        except EffectFailed as error:
            raise NodeFailed(str(error)) from error
        if done.error is not None:
            raise NodeFailed(done.error)
        return done

    async def deliver(self, effect: Effect, kept: Kept) -> None:
        """Deliver files to the folder that the effect's key names, as an effect.

        Raises:
            NodeFailed: They cannot be delivered there.
        """
        path = effect.idempotency_key or ""
        folder = value_of(path, self.context.mail.values(self.state))
        if not isinstance(folder, str):
            raise NodeFailed(f"stage '{self.id}': {path} names no folder to deliver to")
        tree, folders = self.context.tree, self.context.folders

        async def put(folder: str, parcel: Parcel) -> Delivered:
            return await asyncio.to_thread(deliver, tree, folders, folder, parcel)

        act = pgflow.effects.effect(
            risk="compensable" if effect.compensation else "reversible",
            raises=[DeliveryRefused],
            dedup_window=REMEMBERED,
            timeout=_DELIVERY_SECONDS,
            name=self.telling.key("deliver"),
        )(put)

        async def undo(result: Delivered, folder: str, parcel: Parcel) -> None:  # noqa: ARG001
            await asyncio.to_thread(take_back, tree, folder, result)
            is_played = self.id not in self.context.settings.stubs
            if is_played and self.context.works.agents.of(self.node).spec:
                await self._undone(effect, f"Delivered to {folder}")

        if effect.compensation:
            undo.__name__ = "_"
            act.compensate(undo)
        try:
            parcel = Parcel(files=kept.parcel)
            await self.context.works.lease.during(lambda: act(folder, parcel))
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
        task, prepare = self.telling.turn_task("compensate", whole=text)
        done = await self.context.works.act(f"{self.id}:compensate", task, prepare)
        if done.error is not None:
            raise TimeoutError(done.error)
