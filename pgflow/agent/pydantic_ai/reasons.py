"""Reasons and cost of a response: the record of a request to a model in the journal beside it.

It has a fingerprint of the prompt, since the prompt itself is in the responses and tool results
before. Times and ids are left out of it, so the same question has the same fingerprint in every
run.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

# pyright: reportMissingImports=false
from pydantic import TypeAdapter
from pydantic_ai.messages import ModelResponse, ToolCallPart
from pydantic_core import to_jsonable_python

import pgflow

Price = Callable[[ModelResponse], Decimal]
"""Cost of a response in dollars."""

_RESPONSE: TypeAdapter[Any] = TypeAdapter(ModelResponse)
_PASSING = frozenset({"timestamp", "run_id", "conversation_id", "provider_response_id"})
"""Fields of messages and of their parts that differ from run to run."""


def listed_price(response: ModelResponse) -> Decimal:
    """Return the cost by the price list that comes with pydantic-ai; 0 for what is not on it."""
    try:
        return Decimal(response.cost().total_price)
    except (LookupError, ValueError, AssertionError):
        return Decimal(0)


def choice_of(
    payload: Any, asked: tuple[object, ...], price: Price, request: pgflow.extensions.Operation
) -> pgflow.decisions.Choice[Any]:
    """Return a response as a choice, charge its cost, and add it to the trace.

    Args:
        payload: The response as JSON.
        asked: Messages, settings and parameters of the request.
        price: Its cost.
        request: The request, as traces see it.
    """
    response: ModelResponse = _RESPONSE.validate_python(payload)
    usd, tokens = price(response), response.usage.total_tokens
    model = response.model_name or "unknown"
    pgflow.authority.charge(usd=usd, tokens=tokens, model=model[:255])
    _describe(request, response, usd)
    return pgflow.decisions.Choice(
        payload,
        why=_why(response),
        evidence=[f"prompt:{prompt_of(asked)}"],
        model=model,
        usage=pgflow.decisions.Usage(usd, tokens),
    )


def _describe(request: pgflow.extensions.Operation, response: ModelResponse, usd: Decimal) -> None:
    usage = response.usage
    request.model, request.provider = response.model_name, response.provider_name
    request.id, request.conversation = response.provider_response_id, response.conversation_id
    request.input_tokens, request.output_tokens = usage.input_tokens, usage.output_tokens
    request.cached_tokens, request.usd = usage.cache_read_tokens or None, usd
    request.finish_reasons = [response.finish_reason] if response.finish_reason else ()


def _why(response: ModelResponse) -> str:
    """Return the choice of the model as a code: the tools that it calls, or its reason to end."""
    tools = [part.tool_name for part in response.parts if isinstance(part, ToolCallPart)]
    return f"call:{','.join(tools)}" if tools else response.finish_reason or "answer"


def prompt_of(asked: tuple[object, ...]) -> str:
    """Return the fingerprint of a prompt."""
    messages, *rest = to_jsonable_python(asked, fallback=repr)
    for message in messages if isinstance(messages, list) else ():
        for passing in _PASSING:
            message.pop(passing, None)
        for part in message.get("parts", ()):
            part.pop("timestamp", None)
    return pgflow.effects.fingerprint([messages, *rest])
