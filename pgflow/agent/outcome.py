"""Ends of an agent's loop, and the words of it that have no colour."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

import pgflow
from pgflow._flow.scope import workflow_scope
from pgflow.authority import Escalated, Expired, Rejected, Verdict
from pgflow.errors import DefinitionError, GateRejected, InvalidArgument

S = TypeVar("S")
A = TypeVar("A")

How = Literal["good", "needs review", "compensated"]


@dataclass(frozen=True)
class Outcome(Generic[S]):
    """End of an agent's loop.

    Attributes:
        how: ``good``; ``compensated``, if everything was compensated; or ``needs review``, if
            nothing was, because no person answered in time.
        state: The state at the end.
        why: Name of the error that caused the compensation; empty for none.
    """

    how: How
    state: S
    why: str = ""


class NotGood(Exception):
    """The oracle or a reviewer says that the goal is missed."""


class Declined(Exception):
    """An act was not approved, and the agent has no ``decline``."""


def verdict_of(refusal: GateRejected) -> Rejected | Escalated | Expired:
    """Return the verdict of a gate that the policy had asked."""
    if refusal.verdict == "escalate":
        return Escalated(refusal.reason)
    if refusal.verdict == "expire":
        return Expired()
    return Rejected(refusal.reason, refusal.by)


def check_turns(turns: int) -> None:
    """Refuses a generation that could do nothing.

    Raises:
        InvalidArgument: It has no turn.
    """
    if type(turns) is not int or turns < 1:
        raise InvalidArgument(f"turns of an agent's generation must be 1 or more, not {turns!r}")


def check_next(goal: Any, state: Any) -> None:
    """Refuses to begin what could not go on as a new generation.

    Raises:
        DefinitionError: The workflow does not take goal and state.
    """
    definition = workflow_scope("pgflow.agent.loop()").definition
    try:
        inspect.signature(definition.fn).bind(goal, state)
    except TypeError as error:
        raise DefinitionError(
            f"workflow {definition.name} runs an agent, and after some turns it continues as new "
            f"with the goal and the state: it must take both, in this order ({error})"
        ) from None


def declined(
    decline: Callable[[S, A, Verdict[A]], S] | None, state: S, action: A, verdict: Verdict[A]
) -> S:
    """Return the state after a no.

    Raises:
        Declined: The agent does not say how it goes on.
    """
    if decline is None:
        raise Declined
    return decline(state, action, verdict)


def agent_operation() -> AbstractContextManager[Any]:
    """Trace the agent: under the name of the workflow, with the run as its conversation."""
    info = pgflow.run_info()
    return pgflow.extensions.operation("invoke_agent", info.workflow, conversation=info.key)


def act_operation(act: Callable[..., Any]) -> AbstractContextManager[Any]:
    """Trace an act as a tool, under the name of its step or function."""
    step = getattr(act, "__self__", act)  # of its methods `sync` and `aio`
    name = getattr(step, "name", None) or getattr(act, "__name__", None)
    return pgflow.extensions.operation("execute_tool", name if isinstance(name, str) else "act")
