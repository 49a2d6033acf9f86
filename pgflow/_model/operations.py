"""Operations of an agent: a request to a model, a call of a tool, a run of the agent itself.

They are what traces speak of, and nothing of them is recorded: the journal has decisions, steps and
charges. The kinds are the words of OpenTelemetry's conventions for generative AI.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal

OperationKind = Literal["chat", "execute_tool", "invoke_agent"]


@dataclass
class Operation:
    """An operation of an agent. The attributes below ``conversation`` are set once they are known.

    Attributes:
        kind: ``chat`` for a request to a model, ``execute_tool`` or ``invoke_agent``.
        name: Name of the model, tool or agent.
        provider: Provider of the model.
        id: Id of the call of a tool, or of the response to a request.
        conversation: Id of the conversation.
        model: The model that answered.
        input_tokens: Tokens of the prompt.
        output_tokens: Tokens of the response.
        cached_tokens: Tokens of the prompt that the provider had in its cache.
        tokens: All tokens, if the parts are not known.
        usd: Cost in dollars.
        finish_reasons: Reasons why the model stopped.
        began_ns: Time of its begin, in nanoseconds of the epoch, if it began before it was
            reported.
    """

    kind: OperationKind
    name: str | None = None
    provider: str | None = None
    id: str | None = None
    conversation: str | None = None
    model: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    tokens: int | None = None
    usd: Decimal | None = None
    finish_reasons: Sequence[str] = ()
    began_ns: int | None = None
