"""Player of Agent SOPs: a run asks for the parameters that it was not given, and then each step is
a turn of an agent, or several where the agent talks.

A step may ask the user where its text says so, and have another SOP carried out where its text
names one and the run was started with ``chain``. The SOP is a child run then. It freezes its own
text when it starts, and asks for its own parameters.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from pgflow.declare.durable.bodies import Done
from pgflow.declare.durable.keys import key_of
from pgflow.declare.durable.parameters import ask_parameters
from pgflow.declare.durable.player import Player, cancels, output_of
from pgflow.declare.durable.questions import No, ask
from pgflow.declare.durable.results import Result
from pgflow.declare.durable.talk import (
    MOST_TURNS,
    Errand,
    Question,
    heard,
    may_ask,
    others_of,
    told,
    wish_of,
)
from pgflow.declare.graph import Prompt
from pgflow.declare.play.defaults import input_values
from pgflow.declare.play.interpreter import Change, State, Task, receive
from pgflow.declare.text.outputs import value_text


class SopPlayer(Player):
    """Plays the graph of an SOP."""

    async def play(self) -> Result:
        """Play all steps, once the parameters are there.

        Raises:
            WorkflowFailed: A step failed.
        """
        graph = self.frozen.graph
        values = input_values(graph, await ask_parameters(graph, self.given))
        variables = replace(self.surroundings.variables, inputs=values)
        self.surroundings = replace(self.surroundings, variables=variables)
        return await super().play()

    async def work(self, task: Task, state: State) -> Change:
        """Run turns of a step until its agent asks nothing more."""
        if not isinstance(task.node.body, Prompt):
            return await super().work(task, state)
        asks = may_ask(task.node)
        others = others_of(task.node) if self.settings.chain else {}
        key, talk = key_of(self.plan, state, task.place), list[str]()
        for turn in range(1, MOST_TURNS + 1):
            prompt = told(task.text, talk, asks=asks, others=others)
            done = await self.tried(
                replace(task, text=prompt), state, key if turn == 1 else f"{key}:turn#{turn}"
            )
            wish = None if done.error is not None or done.has_value else wish_of(done.text)
            if isinstance(wish, Question) and asks:
                answer = await ask(self.log, f"{key}:ask#{turn}", wish.text)
                if isinstance(answer, No):
                    return cancels(task.place, answer.reason)
                talk += heard(wish, answer.text or "Yes.")
            elif isinstance(wish, Errand) and others:
                talk += await self._errand(f"{key}:sop#{turn}", wish, others)
            else:
                return receive(task, output_of(done, task.node))
        endless = Done(error=f"step '{task.node.id}' has not ended after {MOST_TURNS} turns")
        return receive(task, output_of(endless, task.node))

    async def _errand(self, key: str, wish: Errand, others: dict[str, str]) -> list[str]:
        """Have another SOP carried out; lines of the talk about it."""
        if wish.name not in others:
            known = ", ".join(others)
            return heard(wish, f"There is no such SOP here: {known}", "sop-failed")
        file = Path(self.frozen.source).parent / others[wish.name]
        child = await self.children.run_file(key, str(file), wish.message, dict(wish.inputs))
        if child.state != "completed":
            return heard(wish, child.error, "sop-failed")
        outcome = value_text(child.value)
        return heard(wish, outcome, "sop-said")
