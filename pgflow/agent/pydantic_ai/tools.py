"""Tools that are steps of yours: each class of step, with all that belongs to it.

A plain function is a step of the agent. That is not enough for a tool that writes in a transaction
of your application, or whose act must not be repeated blindly. Declare it with ``@transaction`` or
``@effect``, and make a tool of that.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

# pyright: reportMissingImports=false
from pydantic_ai.exceptions import ToolFailed
from pydantic_ai.tools import Tool

import pgflow
from pgflow._flow.step import Step
from pgflow._model.kinds import StepKind
from pgflow.agent.colour import perform
from pgflow.agent.pydantic_ai.options import KEY

REFUSALS = (pgflow.errors.EffectFailed, pgflow.errors.GateRejected)
"""Errors that are passed to the model, since they mean that nothing was done."""


def as_tool(step: Step[..., Any], **options: Any) -> Tool[Any]:
    """Make a tool of a step.

    The agent sees the step's name, its parameters and its docstring. It does not see the connection
    of a ``@transaction``, which its provider passes. If the policy refuses an effect, the model
    gets that as the result. To pass it other failures, let the body raise ``ToolFailed``, and name
    that in ``raises=``.

    Args:
        step: Step of any class but ``@decision``.
        **options: Options of pydantic-ai's ``Tool``, such as ``requires_approval``.

    Example::

        @pgflow.effects.effect(risk="irreversible", dedup_window=timedelta(days=1))
        async def refund(order: str, cents: int) -> str:
            return await bank.refund(order, cents, key=pgflow.idempotency_key())


        agent = Agent(model, name="a", tools=[as_tool(refund)], capabilities=[PgflowDurability()])
    """
    metadata = {**(options.pop("metadata", None) or {}), KEY: False}
    return Tool(
        _function_of(step),
        takes_ctx=False,
        name=options.pop("name", step.name),
        metadata=metadata,
        **options,
    )


def _function_of(step: Step[..., Any]) -> Callable[..., Any]:
    """Return a function that calls a step, with its signature."""

    async def call(**arguments: Any) -> Any:
        try:
            return await perform(step, **arguments)
        except REFUSALS as refused:
            raise ToolFailed(str(refused)) from refused

    signature = inspect.signature(step.fn)
    given = list(signature.parameters.values())
    if step.effect == StepKind.TRANSACTION:
        given = given[1:]
    hints = step.hints
    call.__name__ = call.__qualname__ = step.name
    call.__doc__ = step.__doc__
    call.__module__ = step.fn.__module__
    call.__annotations__ = {p.name: hints.get(p.name, Any) for p in given}
    call.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [p.replace(annotation=hints.get(p.name, Any)) for p in given]
    )
    return call
