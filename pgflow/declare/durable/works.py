"""Works of nodes as steps: each shell, program and turn is one, recorded under its key.

A replay runs no body again, so all that reads the environment, the disk or a provider is in the
bodies. A node with ``effect: external`` is an effect instead of a step.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Final

from pydantic import JsonValue

import pgflow
from pgflow.declare.durable import bodies, live
from pgflow.declare.durable.agents import Agents
from pgflow.declare.durable.artifacts import earlier_outputs
from pgflow.declare.durable.bodies import Done, Job
from pgflow.declare.durable.checkouts import CheckoutChanged, keeping
from pgflow.declare.durable.folders import Folders
from pgflow.declare.durable.frozen import Frozen, Settings
from pgflow.declare.durable.lease import Lease
from pgflow.declare.durable.logfile import LogFile, tail
from pgflow.declare.durable.processes import KeeperLost, Mask
from pgflow.declare.durable.programs import fill
from pgflow.declare.durable.providers import Provider, Reply, Turn, TurnFailed, Word, provider_of
from pgflow.declare.durable.results import NodeFailed
from pgflow.declare.durable.turns import Asker, masked, take_turn, turn_once
from pgflow.declare.graph import Bash, Node, Script
from pgflow.declare.play.interpreter import Task
from pgflow.declare.play.progress import STREAM
from pgflow.declare.text.javascript import json_text
from pgflow.declare.text.outputs import Outputs, completed
from pgflow.declare.text.templates import Variables, resolve, with_context
from pgflow.errors import EffectFailed, StepFailed

_SHELLS: Final = ("bash", "script")
_READ: Final = "outputs that are given are read"
_EXACT: Final = "steps are asked for with all that they read"
_SLACK_SECONDS: Final = 30.0
_MOST_ASKED: Final = 250_000
"""Longest text of an effect, which is recorded with its intent."""

"""Characters of what an agent says at once that those see who watch."""

_TURN_SECONDS: Final = 7200.0
"""Longest time of a turn that is an effect."""

Prepare = Callable[[Turn], Turn]
"""Completes a turn when it is taken; called in the bodies of steps only."""

_GONE = re.compile(
    r"no (conversation|session|thread|rollout) found"
    r"|(conversation|session|thread|rollout)\b.{0,80}\bnot (be )?found",
    re.IGNORECASE,
)
"""Words of agents for a session that they do not have."""

_NUMBER = re.compile(r"\s*-?[0-9]*\s*")


class Works:
    """Runs the work of one run, up to a number of steps at a time.

    Args:
        frozen: The workflow, with every text that it can read.
        settings: Its settings.
        folders: Its folders.
        lease: Lease on the folder that it works in.
        log: Log of the run.

    Attributes:
        agents: The agents of its nodes.
        shared: Folder of the runs of its conversation; None if it has none.
        is_exact: True if a step is asked for with all that it reads, so that a retry keeps it only
            if that is the same. False in runs of earlier releases.
    """

    def __init__(
        self, frozen: Frozen, settings: Settings, folders: Folders, lease: Lease, log: LogFile
    ) -> None:
        self.frozen = frozen
        self.settings = settings
        self.folders = folders
        self.lease = lease
        self.log = log
        self.agents = Agents(frozen.graph, settings)
        self.shared = folders.of_conversation(frozen.graph.name, settings.conversation)
        self.slots = asyncio.Semaphore(settings.parallel)
        self._reads_given = bool(settings.stubs) and pgflow.patched(_READ)
        self.is_exact = pgflow.patched(_EXACT)

    async def once(
        self,
        key: str,
        task: Task,
        outputs: Outputs,
        *,
        session: str | None = None,
        prepare: Prepare | None = None,
    ) -> Done:
        """One try: a step of its own. A turn goes on in ``session``, completed by ``prepare``."""
        node = task.node
        if node.id in self.settings.stubs:
            return await self._given(key, self.settings.stubs[node.id])
        match node.body:
            case Bash(script=script):
                return await self.shell(key, node, script, task.variables, outputs)
            case Script():
                return await self._script(key, node, node.body, task, outputs)
            case _:
                return await self.turn(key, task, session=session, prepare=prepare)

    async def _given(self, key: str, stub: JsonValue) -> Done:
        """Return the output of a node that does nothing: it needs no folder, and no commit of its
        own.
        """

        async def look() -> Done:
            output = completed(stub)
            return Done(text=output.text, value=output.structured, has_value=output.has_structured)

        if not self._reads_given:
            return await self._step(key, look)
        return await pgflow.read(name=key)(look)()

    async def _step(self, key: str, body: Callable[[], Awaitable[Done]], *args: str) -> Done:
        """Do something once, and record its result."""

        async def once(*_: str) -> Done:
            done = await body()
            if done.error is not None:
                raise NodeFailed(done.error)
            return done

        async with self.slots:
            try:
                done = await self.lease.during(
                    lambda: pgflow.call(
                        key, once, *args, returns=Done, retries=3, raises=[NodeFailed]
                    )
                )
                return done.whole()
            except (NodeFailed, StepFailed) as error:
                return Done(error=str(error))

    async def _work(
        self, key: str, node: Node, work: Callable[[], Awaitable[Done]], text: str, *read: str
    ) -> Done:
        """Do the work of a node: as an effect, if it acts on the world and must not do so twice."""

        async def body() -> Done:
            try:
                return await keeping(node, self.settings.cwd, work)
            except CheckoutChanged as error:
                return Done(error=str(error))

        if not node.effects:
            return await self._step(key, body, text, *read)

        async def act(text: str, *read: str) -> Done:  # noqa: ARG001 - recorded with the intent
            done = await body()
            if done.unknown:
                raise TimeoutError(done.error)
            return done

        # What a timeout of its own leaves is unknown too, so the engine's comes later.
        limit = (
            bodies.seconds_of(node)
            if node.timeout_ms or node.body.mode in _SHELLS
            else _TURN_SECONDS
        )
        effect = pgflow.effects.effect(
            risk="irreversible", keyed=False, name=key, timeout=limit + _SLACK_SECONDS
        )(act)
        if len(text) > _MOST_ASKED:
            return Done(error=f"the prompt of node '{node.id}' is too long: {len(text)} characters")
        async with self.slots:
            try:
                return (await self.lease.during(lambda: effect(text, *read))).whole()
            except EffectFailed as error:
                return Done(error=str(error))

    async def shell(
        self, key: str, node: Node, script: str, variables: Variables, outputs: Outputs
    ) -> Done:
        """Run a shell script, or the check of a loop."""
        try:
            text, values = shell_of(self.frozen, node, script, variables, outputs)
        except NodeFailed as error:
            return Done(error=str(error))
        job = Job(node, key, variables, self.settings, self.folders, self.log, values)
        run = bodies.check_shell if key.endswith(":until") else bodies.run_shell
        work = lambda: run(job, text)  # noqa: E731 - what follows calls it
        read = _digest(values, variables) if self.is_exact else ()
        if key.endswith(":until"):
            return await self._step(key, work, text, *read)
        return await self._work(key, node, work, text, *read)

    async def _script(
        self, key: str, node: Node, body: Script, task: Task, outputs: Outputs
    ) -> Done:
        """Run the program of a script node."""
        try:
            text = program_of(self.frozen, body, task, outputs)
        except NodeFailed as error:
            return Done(error=str(error))
        job = Job(node, key, task.variables, self.settings, self.folders, self.log)
        typed = body.script in self.frozen.typed
        read = _digest({}, task.variables) if self.is_exact else ()
        return await self._work(
            key, node, lambda: bodies.run_script(job, body, text, typed=typed), text, *read
        )

    async def turn(
        self,
        key: str,
        task: Task,
        *,
        session: str | None = None,
        prepare: Prepare | None = None,
    ) -> Done:
        """Take a turn of an agent.

        Args:
            key: Key of the step.
            task: The node's task.
            session: Session of an earlier turn, which it goes on in; None to begin anew.
            prepare: Completes the turn in the step's body, when it is taken.
        """
        if self.agents.of(task.node).spec is None:
            return _nobody(task.node)
        turn, ask_provider = self._turn_of(key, task, session), self._asker(task, prepare)
        if task.node.effects:
            return await self._work(
                key, task.node, lambda: turn_once(ask_provider, turn, self.folders), task.text
            )
        async with self.slots:
            try:
                return await self.lease.during(
                    lambda: take_turn(
                        ask_provider,
                        turn,
                        self.folders,
                        has_budget=self.settings.has_budget,
                        is_step=self.is_exact,
                    )
                )
            except StepFailed as error:
                return Done(error=str(error))

    async def act(self, key: str, task: Task, prepare: Prepare | None = None) -> Done:
        """Take a turn inside the body of an effect, once."""
        if self.agents.of(task.node).spec is None:
            return _nobody(task.node)
        asked = self._asker(task, prepare)
        return await turn_once(asked, self._turn_of(key, task), self.folders)

    def _turn_of(self, key: str, task: Task, session: str | None = None) -> Turn:
        """Return the turn of an agent, without what only its step's body may ask."""
        idle = task.node.idle_timeout_ms
        return Turn(
            with_context(task.text, self._template(task.node), task.variables),
            task.node.id,
            key,
            self.settings.cwd,
            {},
            self.agents.of(task.node).fields,
            task.node.output_schema,
            1800.0 if idle is None else idle / 1000,
            None if task.node.budget is None else task.node.budget.max_usd,
            session=session,
        )

    def _asker(self, task: Task, prepare: Prepare | None) -> Asker:
        """Has a provider take a turn of a task."""
        spec = self.agents.of(task.node).spec or ""

        async def ask_provider(turn: Turn) -> Reply:
            try:
                secrets = tuple(bodies.secrets_of_run(self.settings).values())
                env = bodies.surroundings(self.settings, self.folders, task.variables)
            except bodies.Unusable as error:
                raise TurnFailed(f"node '{turn.node}' {error}") from error
            env = bodies.short_values(env)
            turn = replace(turn, env=env, secrets=secrets, tell=partial(self._tell_word, turn))
            turn = turn if prepare is None else prepare(turn)
            self.log.tell("node_start", turn.key, content=task.node.body.mode)
            live.tell(turn.node, turn.key, "start", task.node.body.mode)
            began = time.monotonic()
            try:
                with live.Beating():
                    reply = await keeping(
                        task.node,
                        turn.cwd,
                        lambda: self._in_session(provider_of(spec), turn),
                    )
            except CheckoutChanged as error:
                raise TurnFailed(str(error)) from None
            except KeeperLost:
                raise
            except Exception as error:  # noqa: BLE001 - it is raised again, without secrets
                raise _without(secrets, error) from None
            reply = masked(reply, secrets)
            self._tell_answer(turn, reply, time.monotonic() - began)
            return reply

        return ask_provider

    async def _in_session(self, provider: Provider, turn: Turn) -> Reply:
        """Have a turn taken; one whose session is gone begins anew, and says so."""
        try:
            return await provider.take(turn)
        except TurnFailed as error:
            if turn.session is None or not _GONE.search(str(error)):
                raise
        left = [] if self.shared is None else earlier_outputs(self.shared, self.folders.key)
        why = "; ".join(["its session is gone: it began anew", *left])
        pgflow.emit(STREAM, {"id": turn.node, "type": "session", "state": "lost", "reason": why})
        return await provider.take(replace(turn, session=None))

    def _tell_word(self, turn: Turn, kind: Word, text: str) -> None:
        """Publish a word or tool of an agent to watchers; call it inside the body of its step."""
        live.tell(turn.node, turn.key, kind, text)
        if kind == "tool":
            self.log.tell("tool", turn.key, content=text[: live.MOST_CHARS])

    def _tell_answer(self, turn: Turn, reply: Reply, seconds: float) -> None:
        """Write an answer to the log."""
        self.log.tell(
            "assistant",
            turn.key,
            content=tail(json_text(reply.value) if reply.has_value else reply.text),
            model=reply.model,
            tokens=reply.tokens or None,
            cost_usd=float(reply.usd) or None,
            duration_ms=round(seconds * 1000),
        )

    def _template(self, node: Node) -> str:
        """Return the text of a turn as its author wrote it."""
        body = node.body
        name = getattr(body, "name", None) or getattr(body, "command", None)
        return self.frozen.commands.get(name, "") if name else getattr(body, "text", None) or ""


def shell_of(
    frozen: Frozen, node: Node, script: str, variables: Variables, outputs: Outputs
) -> tuple[str, dict[str, str]]:
    """Return a shell script as it is run, and the values of its variables.

    Args:
        frozen: The workflow.
        node: The node.
        script: The script as its author wrote it.
        variables: Variables of the run.
        outputs: Outputs that it can read.

    Raises:
        NodeFailed: Bash would evaluate a value that is not a number.
        UnresolvableReference: A reference has no value.
    """
    shell = frozen.shells.get(script)
    values = {}
    for slot in shell.slots if shell is not None else ():
        value = resolve(slot.reference, variables, outputs, "script").text
        if slot.is_number and not _NUMBER.fullmatch(value):
            raise NodeFailed(
                f"bash node '{node.id}' takes {slot.reference} for a number where it "
                f"would be evaluated, and it is {value[:100]!r}"
            )
        values[slot.name] = value
    return script if shell is None else shell.text, values


def _digest(values: Mapping[str, str], variables: Variables) -> tuple[str, ...]:
    """Return the hash of what a program finds in its environment, as far as that is not the run's;
    none if it finds nothing.
    """
    texts = (variables.previous_output, variables.user_input, variables.rejection_reason)
    if not values and not any(texts):
        return ()
    text = json.dumps([sorted(values.items()), texts])
    return (f"sha256:{hashlib.sha256(text.encode()).hexdigest()}",)


def program_of(frozen: Frozen, body: Script, task: Task, outputs: Outputs) -> str:
    """Return the program of a script node with its values as literals.

    Args:
        frozen: The workflow.
        body: The node's body.
        task: Its task.
        outputs: Outputs that it can read.

    Raises:
        NodeFailed: The script does not exist.
        UnresolvableReference: A reference has no value.
    """
    program = frozen.programs.get(body.script)
    if program is None:
        raise NodeFailed(f"script node '{task.node.id}': script '{body.script}' does not exist")
    return fill(
        program, lambda reference: resolve(reference, task.variables, outputs, "script").text
    )


def _without(secrets: tuple[str, ...], error: Exception) -> Exception:
    """Return the error that a provider raised, without the secrets that it knew."""
    message = Mask(secrets).text(str(error))
    match error:
        case TurnFailed(spent=spent):
            return TurnFailed(message, spent=spent and masked(spent, secrets))
        case OSError():
            return OSError(message) if secrets else error
        case _:
            return TurnFailed(f"{type(error).__name__}: {message}")


def _nobody(node: Node) -> Done:
    return Done(error=f"node '{node.id}' needs a provider, and the run has none")
