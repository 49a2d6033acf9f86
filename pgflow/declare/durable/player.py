"""The player of a durable run: the pure interpreter's tasks become steps.

What happens next is decided by the same functions that decide a dry run
(`pgflow.declare.play.interpreter`). Nodes of a layer run at the same time, and all of them begin
from the state in which the layer opened. Their ends are carried into the state in the order of the
file, once all of them are there. So nothing that a run decides depends on which of them was faster.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import JsonValue

import pgflow
from pgflow.declare.durable.artifacts import keep_output
from pgflow.declare.durable.bodies import Done
from pgflow.declare.durable.children import Children
from pgflow.declare.durable.conversations import Conversation
from pgflow.declare.durable.folders import Folders
from pgflow.declare.durable.frozen import Frozen, Settings
from pgflow.declare.durable.keys import key_of
from pgflow.declare.durable.lease import Lease
from pgflow.declare.durable.logfile import Kind, LogFile
from pgflow.declare.durable.long import KIND, Long, beginning, shortened
from pgflow.declare.durable.questions import No, Yes, answered, ask
from pgflow.declare.durable.results import NodeFailed, Result, WorkflowFailed
from pgflow.declare.durable.sessions import Sessions
from pgflow.declare.durable.works import Works
from pgflow.declare.graph import (
    Approval,
    Call,
    Group,
    Loop,
    Node,
    Until,
    Wait,
    every_node,
)
from pgflow.declare.play.approvals import Refused, Rework, asks_after_turn, fails_when_rejected
from pgflow.declare.play.defaults import (
    EXPIRED,
    SATISFIED,
    input_values,
    placeholder_command,
)
from pgflow.declare.play.failures import retry_delay_ms
from pgflow.declare.play.interpreter import (
    Change,
    Channel,
    CommandUnavailable,
    NextRound,
    Place,
    Settled,
    State,
    Surroundings,
    Task,
    apply,
    begin,
    first_said,
    group_output,
    judge,
    make_plan,
    receive,
    round_at,
    run_output,
    run_state,
    until_met,
)
from pgflow.declare.play.progress import STREAM, visible
from pgflow.declare.play.signals import without_signal_tags
from pgflow.declare.text.javascript import trim
from pgflow.declare.text.moments import MOMENT, moment
from pgflow.declare.text.outputs import (
    Beyond,
    Output,
    UnresolvableReference,
    completed,
    declared_fields,
)
from pgflow.declare.text.templates import Variables, resolve
from pgflow.errors import StepFailed
from pgflow.texts import cut

_MOST_RESULT: Final = 700_000
"""Longest result in bytes that is kept in the journal instead of a file. The database takes 1 MiB,
and a codec may need more than the text.
"""

_LOGGED: Final[dict[str, Kind]] = {
    "completed": "node_complete", "failed": "node_error", "skipped": "node_skipped"
}  # fmt: skip

_KEPT: Final = "outputs of a type are files"
_ANYTHING: Final[Any] = Any


@dataclass(frozen=True, slots=True)
class _Played:
    """A node that was played: its end, unless the run was cancelled inside of it."""

    end: Settled | None
    cancelled: str | None = None


class Player:
    """Plays a graph: asks which nodes are open, has them done, and carries the results into the
    state.

    Args:
        declared: The workflow that this is the code of; it runs the children too.
        frozen: The graph, with every text that it can read.
        settings: Settings of the run.
        message: Words of the person who started it.
        inputs: Values of its inputs; the others have their defaults.
    """

    def __init__(
        self,
        declared: pgflow.Workflow[..., Result],
        frozen: Frozen,
        settings: Settings,
        message: str,
        inputs: dict[str, JsonValue],
    ) -> None:
        info = pgflow.run_info()
        self.frozen = frozen
        self.settings = settings
        self.is_child = settings.depth > 0
        self.folders = Folders(settings.home or settings.cwd, info.key)
        self.plan = make_plan(frozen.graph.nodes)
        self.lease = Lease(settings, frozen.graph)
        self.children = Children(declared, frozen, settings, self.lease)
        self.log = LogFile(self.folders)
        self.works = Works(frozen, settings, self.folders, self.lease, self.log)
        self.sessions = Sessions(self.plan, self.works.agents)
        self.conversation = Conversation(frozen.graph, settings, self.works.agents)
        self.given = inputs
        variables = Variables(
            workflow_id=info.key,
            message=message,
            artifacts_dir=settings.artifacts or self.folders.artifacts,
            state_dir=self.folders.state,
            base_branch=settings.base_branch,
            docs_dir=settings.docs_dir,
            context=settings.context,
            inputs=input_values(frozen.graph, inputs),
        )
        self.surroundings = Surroundings(variables, self._command_text)

    def _command_text(self, name: str) -> str:
        text = self.frozen.commands.get(name)
        if text is None and self.settings.provider == "stub:":
            return placeholder_command(name)  # its node has a stub, or no provider
        if text is None or not trim(text):
            raise CommandUnavailable(f"Command '{name}' was not found, or its file is empty")
        return text

    # The run, and the nodes in it ----------------------------------------------------------------

    async def play(self) -> Result:
        """Play the whole graph, and answer its result.

        Raises:
            WorkflowFailed: It failed.
        """
        state = await self.play_layers((), State())
        if state.cancelled is not None:
            raise asyncio.CancelledError(state.cancelled)
        outputs = state.scope.outputs
        if run_state(state) == "failed":
            raise WorkflowFailed(self._why_failed(state))
        await self._check_evidence()
        returned = outputs.get(self.frozen.graph.returns or "")
        has_value = self.is_child and returned is not None and returned.has_structured
        said = (
            run_output(self.frozen.graph, self.plan, state)
            if self.is_child
            else first_said(self.plan, outputs)
        )
        result = Result(
            output=said,
            value=returned.structured if has_value and returned is not None else None,
            has_value=has_value,
            outcome=self._outcome(returned),
            nodes={node_id: output.state for node_id, output in outputs.items()},
        )
        beyond = next((one.beyond for one in outputs.values() if one.text == said), None)
        return await self._kept(result, beyond)

    async def _kept(self, result: Result, beyond: Beyond | None) -> Result:
        """Return the result as it is recorded: what is too long is a file."""
        if beyond is not None:
            long = Long(file=pgflow.effects.Ref(KIND, beyond.path), size=beyond.size)
            return result.model_copy(update={"long": long})
        text, value, has_value = result.output, result.value, result.has_value
        if len(result.model_dump_json().encode()) <= _MOST_RESULT:
            return result

        def keep() -> Long:
            kept = shortened(self.folders.spills, text, value, has_value=has_value, most=0)[2]
            assert kept is not None
            return kept

        long = await pgflow.call("result", keep, retries=3, returns=Long)
        begun = beginning(text.encode("utf-8", "replace"))
        return result.model_copy(update={"output": begun, "value": None, "long": long})

    async def _check_evidence(self) -> None:
        """Fail a run that must leave evidence and has not. A retry looks again.

        Raises:
            WorkflowFailed: The file of evidence is missing.
        """
        policy = self.frozen.graph.options.get("evidence_policy")
        if not isinstance(policy, dict) or not policy.get("required") or self.settings.stubs:
            return
        path = Path(self.surroundings.variables.artifacts_dir, "evidence.json")

        def look() -> None:
            if not path.is_file():
                raise NodeFailed(f"evidence_policy: there is no {path}")

        try:
            await pgflow.call("evidence", look, retries=1, raises=[NodeFailed])
        except NodeFailed as error:
            raise WorkflowFailed(str(error)) from error

    def _outcome(self, returned: Output | None) -> Literal["succeeded", "failed"] | None:
        """Return ``succeeded`` or ``failed`` by the workflow's result; None if the result does not
        decide it.
        """
        field = self.frozen.graph.outcome_field
        if field is None or returned is None or not isinstance(returned.structured, dict):
            return None
        outcome = returned.structured.get(field)
        return None if not isinstance(outcome, bool) else "succeeded" if outcome else "failed"

    def _why_failed(self, state: State) -> str:
        failed = {
            node_id: output.error
            for node_id, output in state.scope.outputs.items()
            if output.state == "failed"
        }
        if not failed:
            return "no node of it ran"
        first = next(iter(failed))
        more = f" (and {len(failed) - 1} more failed)" if len(failed) > 1 else ""
        return f"node '{first}' failed: {failed[first] or 'it did not say why'}{more}"

    async def play_layers(self, within: Place, state: State) -> State:
        """Play the nodes of the run, or of a group's round, layer by layer."""
        self.sessions.cut(within)
        for layer in self.plan.within(within).layers:
            if len(layer) > 1:
                self.sessions.cut(within)
            places = [(*within, node_id) for node_id in layer]
            state = await self.opened(places, state)
            steps = self._begun(places, state)
            await self._mark_fresh(steps)
            played = await self._together(
                [self.play_node(place, state, step) for place, step in steps.items()]
            )
            for one in played:
                if one.end is not None:
                    state = apply(state, one.end)
                elif state.cancelled is None:
                    state = replace(state, cancelled=one.cancelled)
            if state.cancelled is not None:
                break
        return state

    async def opened(self, places: list[Place], state: State) -> State:  # noqa: ARG002
        """Return the state in which a layer opens, with all that its conditions need."""
        return state

    def _begun(self, places: list[Place], state: State) -> dict[Place, Task | Change]:
        """Begin the nodes of a layer; those after one that ends the run are not begun."""
        steps: dict[Place, Task | Change] = {}
        for place in places:
            step = steps[place] = begin(self.plan, state, place, self.surroundings)
            if isinstance(step, Settled) and step.cancels:
                break
        return steps

    async def _mark_fresh(self, steps: Mapping[Place, Task | Change]) -> None:
        """Say in the journal which nodes a retry does again though they completed."""
        for place, step in steps.items():
            node = self.plan.node(place)
            is_fresh = node.always_run and len(place) == 1 and not isinstance(step, Settled)
            if is_fresh and self.works.is_exact:
                await pgflow.read(name=f"{node.id}:always")(_nothing)()

    async def _together(self, plays: list[Any]) -> list[_Played]:
        if len(plays) == 1:
            return [await plays[0]]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(play) for play in plays]
        return [task.result() for task in tasks]

    async def play_node(self, place: Place, state: State, step: Task | Change) -> _Played:
        """Play a node that has begun to its end: all turns of a loop, all rounds of a group."""
        while True:
            if isinstance(step, NextRound):
                return await self.play_group(step, state)
            change = await self.work(step, state) if isinstance(step, Task) else step
            if isinstance(change, Settled):
                await self._end(change, state)
                return _Played(change)
            state = apply(state, change)
            step = begin(self.plan, state, place, self.surroundings)

    async def play_group(self, first: NextRound, state: State) -> _Played:
        """Play a group, round after round."""
        place, body = first.place, self.plan.node(first.place).body
        assert isinstance(body, Group)
        state, was_answered = apply(state, first), False
        while True:
            state = await self.play_layers(place, state)
            if state.cancelled is not None:
                return _Played(None, state.cancelled)
            change, was_answered = await self._judge(body, place, state, was_answered=was_answered)
            if isinstance(change, Settled):
                await self._end(change, state)
                return _Played(change)
            state = apply(state, change)

    async def _judge(
        self, body: Group, place: Place, state: State, *, was_answered: bool
    ) -> tuple[Change, bool]:
        """Judge the round of a group that has ended, with the person who is asked about it."""
        current = round_at(state, place)
        assert current is not None
        inner = current.scope.outputs if current.scope is not None else {}
        if any(output.state == "failed" for output in inner.values()):
            return judge(self.plan, state, place, None), was_answered
        output = group_output(self.plan, state, place)
        key = f"{key_of(self.plan, state, place)}#{current.number}"
        node = self.plan.node(place)
        variables = replace(self.surroundings.variables, user_input=current.user_input)
        channel = await self._channel(
            body.until, output, key, node, variables, visible(state, place)
        )
        user_input = ""
        if asks_after_turn(body, is_over=channel is not None, was_answered=was_answered):
            answer = await ask(self.log, f"{key}:ask", self._gate_message(body, output.text))
            if isinstance(answer, No):
                return cancels(place, answer.reason), True
            channel, user_input = (channel if not trim(answer.text) else None), answer.text
            was_answered = True
        return judge(self.plan, state, place, channel, user_input), was_answered

    async def _end(self, end: Settled, state: State) -> None:
        """Report the end of a node, and write its output to a file if it has a type."""
        node, output = self.plan.node(end.place), end.output
        if node.output_type is not None and output.state == "completed" and pgflow.patched(_KEPT):
            key = key_of(self.plan, state, end.place)
            metadata = {"nodeId": node.id, "outputType": node.output_type}
            shared = self.works.shared if self.conversation.keeps(node) else None
            name = key_of(self.plan, state, end.place, None)
            keep = partial(keep_output, self.folders, name, metadata, shared)
            try:
                await pgflow.call(f"{key}:artifact", keep, output.text, retries=1)
            except StepFailed as error:
                pgflow.emit(
                    STREAM,
                    {
                        "id": node.id,
                        "type": "artifact",
                        "state": "failed",
                        "reason": str(error)[:1000],
                    },
                )
        self.tell(end, state)

    def tell(self, end: Settled, state: State) -> None:
        """Publish that a node has ended."""
        node = self.plan.node(end.place)
        around = round_at(state, end.place[:-1]) if len(end.place) > 1 else None
        event: dict[str, JsonValue] = {
            "id": node.id,
            "type": node.body.mode,
            "state": end.output.state,
            "reason": end.reason if end.reason is None else cut(end.reason, 1000),
        }
        if around is not None:
            event["iteration"] = around.number
        pgflow.emit(STREAM, event)
        if node.id not in self.settings.stubs:
            key = key_of(self.plan, state, end.place, None)
            why = {"error": end.reason} if end.output.state == "failed" else {"cause": end.reason}
            self.log.tell(_LOGGED[end.output.state], key, content=node.body.mode, **why)

    # Work ----------------------------------------------------------------------------------------

    async def work(self, task: Task, state: State) -> Change:
        """Do the work of a node, or of a turn of it."""
        match task.node.body:
            case Approval():
                return await self._approval(task, state)
            case Call():
                key = key_of(self.plan, state, task.place)
                output = await self.children.call(key, task, visible(state, task.place))
                return Settled(task.place, output, output.error or None)
            case Wait() if task.node.id not in self.settings.stubs:
                return await self._wait(task, task.node.body, key_of(self.plan, state, task.place))
            case Loop():
                return await self._turn_of_loop(task, state)
            case _:
                done = await self.tried(task, state)
                change = receive(task, output_of(done, task.node))
                if done.skipped is not None and isinstance(change, Settled):
                    return replace(change, reason=done.skipped)
                return change

    async def tried(self, task: Task, state: State, key: str = "") -> Done:
        """Do the work of a node, again where the node's retries say so.

        Args:
            task: The work.
            state: Progress of the run.
            key: Key of the step, if it is not the node's own.
        """
        key, attempt = key or key_of(self.plan, state, task.place, task.round), 1
        is_kept, known = self.conversation.keeps(task.node), None
        if is_kept:
            known = await self.conversation.session(key, task.node)
        while True:
            tried = key if attempt == 1 else f"{key}~{attempt}"
            try:
                session = known or self.sessions.of(task)
                done = await self.works.once(
                    tried, task, visible(state, task.place), session=session
                )
            except UnresolvableReference as error:
                return Done(error=str(error))
            if done.error is None:
                self.sessions.leave(task, done.session)
                if is_kept:
                    await self.conversation.keep(key, task.node, done.session)
                return done
            delay = retry_delay_ms(task.node, attempt, done.error)
            if delay is None or task.node.effects or isinstance(task.node.body, Loop):
                return done
            await pgflow.sleep(delay / 1000)
            attempt += 1

    # Loops ---------------------------------------------------------------------------------------

    async def _turn_of_loop(self, task: Task, state: State) -> Change:
        """One turn of a loop, what says that it was the last, and the person who is asked."""
        body = task.node.body
        assert isinstance(body, Loop)
        output = output_of(await self.tried(task, state), task.node)
        if output.state != "completed":
            return receive(task, output)
        key = key_of(self.plan, state, task.place, task.round)
        channel = await self._channel(
            body.until, output, key, task.node, task.variables, visible(state, task.place)
        )
        output = replace(output, text=without_signal_tags(output.text, body.until.signal))
        was_answered = task.round > 1 and body.interactive
        if not asks_after_turn(body, is_over=channel is not None, was_answered=was_answered):
            return receive(task, output, channel)
        answer = await ask(self.log, f"{key}:ask", self._gate_message(body, output.text))
        if isinstance(answer, No):
            return cancels(task.place, answer.reason)
        if channel is not None and not trim(answer.text):
            return receive(task, output, channel)
        return receive(task, output, None, answer.text)

    def _gate_message(self, body: Loop | Group, message: str) -> str:
        """Return the text that a person is asked after a turn."""
        return f"{body.gate_message or 'Go on?'}\n\n{message}".rstrip()

    async def _channel(
        self,
        until: Until,
        output: Output,
        key: str,
        node: Node,
        variables: Variables,
        outputs: Any,
    ) -> Channel | None:
        """Return the channel by which a turn or a round was the last; None if it was not."""
        met = until_met(until, output)
        if met is not None or until.bash is None:
            return met
        if self._is_rehearsed(node):
            return "assumed"
        try:
            done = await self.works.shell(f"{key}:until", node, until.bash, variables, outputs)
        except UnresolvableReference:
            return None
        return "check" if done.text == "pass" else None

    def _is_rehearsed(self, node: Node) -> bool:
        """Return True if all work of a loop is stubbed, so that its check would be meaningless."""
        inner = node.body.nodes if isinstance(node.body, Group) else (node,)
        works = [one.id for one in every_node(inner) if not isinstance(one.body, Group)]
        return bool(self.settings.stubs) and all(one in self.settings.stubs for one in works)

    # People --------------------------------------------------------------------------------------

    async def _approval(self, task: Task, state: State) -> Change:
        """Ask a person, and after a rejection work on it and ask again."""
        body, rejections = task.node.body, 0
        assert isinstance(body, Approval)
        key = key_of(self.plan, state, task.place)
        while True:
            asked = key if rejections == 0 else f"{key}#{rejections + 1}"
            answer = await ask(self.log, asked, task.text, body.decisions)
            if isinstance(answer, No) and fails_when_rejected(body, self.settings.dialect):
                error = f"rejected: {answer.reason}"
                return Settled(task.place, Output("failed", error=error), error, task.text)
            meant = answered(body, answer, rejections)
            if isinstance(meant, Output):
                return Settled(task.place, meant, meant.error or None, task.text)
            if isinstance(meant, Refused):
                return cancels(task.place, meant.reason)
            rejections += 1
            done = await self._rework(task, state, meant, answer, rejections)
            if done.error is not None:
                return Settled(
                    task.place, Output("failed", error=done.error), done.error, task.text
                )

    async def _wait(self, task: Task, wait: Wait, key: str) -> Change:
        """Wait for a time, an event or a person. The event is a signal of its name."""
        state = SATISFIED
        if wait.attention is not None:
            answer = await ask(self.log, key, task.text)
            if isinstance(answer, No):
                return cancels(task.place, answer.reason)
            return Settled(task.place, completed(state), None, task.text)
        self.log.tell("node_suspended", key, content=wait.event or task.text or None)
        if wait.event is not None:
            try:
                await pgflow.Signal(wait.event, _ANYTHING).wait(
                    timeout=(wait.deadline_ms or 0) / 1000
                )
            except TimeoutError:
                state = EXPIRED
        elif wait.duration_ms is not None:
            await pgflow.sleep(wait.duration_ms / 1000)
        elif (until := moment(task.text)) is not None:
            await pgflow.sleep(max(timedelta(), until - pgflow.now()))
        else:
            error = f"'wait.until' must be {MOMENT}, not {task.text[:100]!r}"
            return Settled(task.place, Output("failed", error=error), error, task.text)
        return Settled(task.place, completed(state), None, task.text)

    async def _rework(
        self, task: Task, state: State, rework: Rework, answer: Yes | No, number: int
    ) -> Done:
        """Have an agent work on what a person rejected."""
        reason = answer.reason if isinstance(answer, No) else ""
        variables = replace(task.variables, rejection_reason=reason)
        key = f"{key_of(self.plan, state, task.place)}:rework#{number}"
        try:
            text = resolve(rework.text, variables, visible(state, task.place)).text
        except UnresolvableReference as error:
            return Done(error=str(error))
        return await self.works.turn(key, replace(task, text=text, variables=variables))


async def _nothing() -> None:
    """Is the body of a mark."""


def output_of(done: Done, node: Node) -> Output:
    """Return the outcome of a node's work, as the graph takes it."""
    if done.error is not None:
        return Output("failed", error=done.error)
    if done.skipped is not None:
        return Output("skipped")
    return Output(
        "completed",
        done.text,
        structured=done.value,
        has_structured=done.has_value,
        declared=declared_fields(node.output_schema),
        beyond=None if done.long is None else done.long.beyond,
    )


def cancels(place: Place, reason: str) -> Settled:
    """Return the end of a node whose rejection cancels the run."""
    return Settled(place, Output("completed", reason), "rejected", reason, cancels=True)
