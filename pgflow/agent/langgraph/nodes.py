"""Nodes of a graph as steps: each replaces a node of a durable graph.

The body of the step is the node itself, with all that the framework gives it. Its result is
recorded, so a replay does not run it again. Where it calls ``interrupt()``, the step ends there and
reports that; a gate asks, and the next step runs the node with the answers so far, as the framework
does. So answers are in the journal, each at its place, and need no checkpoint.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.config import merge_configs, set_config_context
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.errors import GraphInterrupt
from langgraph.types import RetryPolicy
from pydantic_core import to_jsonable_python

import pgflow
from pgflow._flow.operations import is_heard
from pgflow.agent.colour import call, sleep
from pgflow.agent.colour import gate as ask
from pgflow.agent.langgraph.operations import Telling
from pgflow.agent.langgraph.values import from_json, to_json
from pgflow.authority import Approved, TakenOver
from pgflow.errors import GateRejected, InvalidArgument, WrongColourError

SCRATCHPAD = "__pregel_scratchpad"
RUNTIME = "__pregel_runtime"
SEND = "__pregel_send"
RESUME = "__resume__"
"""Names of the framework in the config of a node."""

STREAM = "langgraph"
"""Stream of the run to which the writer of a node writes."""


@dataclass(frozen=True)
class Terms:
    """Terms on which the nodes of a graph run.

    Attributes:
        serde: Serialiser of their results.
        approvers: Names or roles of the people who may answer an interrupt; none for anyone.
        timeout: Time to answer; None for no limit.
    """

    serde: SerializerProtocol
    approvers: tuple[str, ...] = ()
    timeout: timedelta | float | None = None


class NodeStep(Runnable[Any, Any]):
    """The code of a node, called as a step of the run.

    Args:
        path: Names of the graphs around it, and its own.
        node: The node.
        terms: Terms on which it runs.
        policies: Policies of its tries; the first that fits an error counts.
        asks: Times at which a person is asked for leave: ``before`` and ``after`` it.
    """

    def __init__(
        self,
        path: str,
        node: Any,
        terms: Terms,
        policies: Sequence[RetryPolicy],
        asks: frozenset[str],
    ) -> None:
        self.path, self._bound, self._terms, self._asks = path, node.bound, terms, asks
        self._timeout = _timeout_of(path, node)
        self._policies = policies
        self._raises = _classes_of(policies)

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:  # noqa: A002, ARG002
        """Refuses: the framework calls the nodes of a durable graph by ``ainvoke``."""
        raise WrongColourError(f"node {self.path!r} of a durable graph has no sync code")

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:  # noqa: A002
        """Runs the node as a step, again and again until it is asked nothing any more."""
        assert config is not None
        await self._ask_leave("before")
        answers: list[Any] = []
        failures = 0
        while True:
            try:
                ended = await self._step(input, config, kwargs, answers)
            except Exception as error:  # noqa: BLE001 - the policies judge it
                failures += 1
                await sleep(self._delay(error, failures))
                continue
            if "asks" not in ended:
                break
            answers.append(await self._answer(f"interrupt:{self.path}", ended["asks"]))
        for channel, value in ended["writes"]:
            config["configurable"][SEND]([(channel, from_json(self._terms.serde, value))])
        await self._ask_leave("after")
        return from_json(self._terms.serde, ended["output"])

    def _delay(self, error: Exception, failures: int) -> float:
        """Return the seconds until the next try; raise the error if it was the last one."""
        for policy in self._policies:
            if _is_retried(policy, error):
                if failures >= policy.max_attempts:
                    break
                delay = policy.initial_interval * policy.backoff_factor ** (failures - 1)
                return min(delay, policy.max_interval)
        raise error

    async def _step(
        self, given: Any, config: RunnableConfig, kwargs: dict[str, Any], answers: list[Any]
    ) -> dict[str, Any]:
        sent: list[tuple[str, Any]] = []
        inner = _config_of(config, answers, sent)

        async def body() -> Any:
            sent.clear()
            own = merge_configs(inner, {"callbacks": [Telling()]}) if is_heard() else inner
            try:
                with set_config_context(own) as context:
                    running = self._bound.ainvoke(given, own, **kwargs)
                    output = await asyncio.create_task(running, context=context)
            except GraphInterrupt as stop:
                return {"asks": stop.args[0][0].value}
            return self._ended(output, sent)

        ended: dict[str, Any] = await call(
            f"node:{self.path}", body, retries=1, timeout=self._timeout, raises=self._raises
        )
        return ended

    def _ended(self, output: Any, sent: list[tuple[str, Any]]) -> dict[str, Any]:
        serde, what = self._terms.serde, f"the result of node {self.path!r}"
        return {
            "output": to_json(serde, output, what),
            "writes": [
                [channel, to_json(serde, value, what)]
                for channel, value in sent
                if channel != RESUME
            ],
        }

    async def _ask_leave(self, when: str) -> None:
        if when in self._asks:
            await self._answer(f"{when}:{self.path}", {"node": self.path, "when": when})

    async def _answer(self, gate: str, request: Any) -> Any:
        """Return a person's answer.

        Raises:
            GateRejected: They reject, or do not answer in time.
        """
        terms = self._terms
        verdict = await ask(
            gate, request, answer=Any, approvers=terms.approvers, timeout=terms.timeout
        )
        if isinstance(verdict, Approved):
            return verdict.value
        if isinstance(verdict, TakenOver):
            return verdict.result
        raise GateRejected(f"gate {gate!r} was not approved: {type(verdict).__name__}")


def _config_of(
    config: RunnableConfig, answers: list[Any], sent: list[tuple[str, Any]]
) -> RunnableConfig:
    """Return the config for one try of a node: with the answers that there are, and with writers
    that lead to the journal.
    """
    configurable = dict(config["configurable"])
    counter = itertools.count()
    configurable[SEND] = sent.extend
    if SCRATCHPAD in configurable:
        configurable[SCRATCHPAD] = dataclasses.replace(
            configurable[SCRATCHPAD],
            resume=list(answers),
            interrupt_counter=lambda: next(counter),
            get_null_resume=lambda _consume: None,
        )
    if RUNTIME in configurable:
        configurable[RUNTIME] = configurable[RUNTIME].override(
            stream_writer=lambda chunk: pgflow.emit(
                STREAM, to_jsonable_python(chunk, bytes_mode="base64")
            )
        )
    return {**config, "configurable": configurable}


def _timeout_of(path: str, node: Any) -> timedelta | float | None:
    if node.timeout is None:
        return None
    if node.timeout.idle_timeout is not None:
        raise InvalidArgument(
            f"node {path!r} has an idle_timeout, which a step has not: give it a run_timeout"
        )
    return node.timeout.run_timeout


def _classes_of(policies: Sequence[RetryPolicy]) -> tuple[type[Exception], ...]:
    """Return the errors that a policy names, so that they come back from the journal as
    themselves.
    """
    found: list[type[Exception]] = []
    for policy in policies:
        named = policy.retry_on
        found += (
            [named] if isinstance(named, type) else named if isinstance(named, Sequence) else []
        )
    return tuple(found)


def _is_retried(policy: RetryPolicy, error: Exception) -> bool:
    named = policy.retry_on
    if isinstance(named, type):
        return isinstance(error, named)
    return isinstance(error, tuple(named)) if isinstance(named, Sequence) else named(error)
