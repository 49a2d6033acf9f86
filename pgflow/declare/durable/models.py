"""Provider ``pydantic-ai:MODEL``: a model of any maker that pydantic-ai knows, such as
``pydantic-ai:anthropic:claude-sonnet-4-5``. The model ``test`` answers without a network.

A turn is one run of an agent without tools. The answer fits the node's schema by the model's own
means where the schema is one of an object. The cost is that of pydantic-ai's list of prices, and 0
for a model that is not in it. pydantic-ai is imported when such a provider is made.
"""

from __future__ import annotations

import asyncio
from decimal import Decimal
from typing import Any, Final

from pgflow.declare.durable.providers import Reply, Turn, TurnFailed
from pgflow.errors import InvalidArgument

_INSTALL: Final = "pip install 'pydantic-ai-slim[openai,anthropic,google]'"


class ModelProvider:
    """A model.

    Args:
        argument: Name of it, as pydantic-ai writes it: ``MAKER:MODEL``.
    """

    honours = frozenset({"systemPrompt"})

    def __init__(self, argument: str) -> None:
        try:
            from pydantic_ai.exceptions import UserError  # pyright: ignore[reportMissingImports]
            from pydantic_ai.models import infer_model  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise InvalidArgument(f"pydantic-ai is not installed: {_INSTALL}") from error
        if not argument:
            raise InvalidArgument(
                "pydantic-ai: names no model: write pydantic-ai:MAKER:MODEL, such as "
                "pydantic-ai:openai:gpt-5"
            )
        try:
            self.model = infer_model(argument)
        except (UserError, ImportError, ValueError) as error:
            raise InvalidArgument(f"pydantic-ai:{argument} cannot be used: {error}") from error

    async def take(self, turn: Turn) -> Reply:
        """Ask the model once.

        Raises:
            TurnFailed: It did not answer, or was silent for too long.
        """
        from pydantic_ai import Agent, StructuredDict  # pyright: ignore[reportMissingImports]

        is_object = isinstance(turn.schema, dict) and turn.schema.get("type") == "object"
        agent: Any = Agent(
            self.model,
            output_type=StructuredDict(dict(turn.schema)) if is_object else str,  # type: ignore[arg-type]
            instructions=_instructions(turn),
        )
        try:
            async with asyncio.timeout(turn.idle_seconds):
                result = await agent.run(turn.prompt)
        except TimeoutError as error:
            raise TurnFailed(f"the model timed out after {turn.idle_seconds:g}s") from error
        except Exception as error:
            raise TurnFailed(f"{type(error).__name__}: {error}") from error
        output = result.output
        return Reply(
            output if isinstance(output, str) else "",
            None if isinstance(output, str) else dict(output),
            has_value=not isinstance(output, str),
            model=result.response.model_name,
            usd=_cost(result),
            tokens=result.usage.total_tokens,
        )


def _instructions(turn: Turn) -> str | None:
    prompt = turn.agent.get("systemPrompt")
    return prompt if isinstance(prompt, str) else None


def _cost(result: Any) -> Decimal:
    """Return the price of all responses of a run in US dollars; 0 where one has no price."""
    from pydantic_ai.messages import ModelResponse  # pyright: ignore[reportMissingImports]

    cost = Decimal(0)
    for message in result.new_messages():
        if isinstance(message, ModelResponse):
            try:
                cost += message.cost().total_price
            except (AssertionError, LookupError, ValueError):
                return Decimal(0)
    return cost
