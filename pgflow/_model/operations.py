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
    """Facts on an operation of an agent. Those below ``conversation`` are set once they are known.

    Attributes:
        kind: ``chat`` for a request to a model, ``execute_tool`` or ``invoke_agent``.
        name: The model that is asked, the tool, or the agent.
        provider: Provider of the model.
        id: Of a call of a tool its id; of a request the id of its response.
        conversation: Id of the conversation.
        model: The model that has answered.
        input_tokens: Tokens of the prompt.
        output_tokens: Tokens of the response.
        cached_tokens: Tokens of the prompt that the provider had in its cache.
        tokens: All tokens, where nobody says how many are which.
        usd: Cost in dollars.
        finish_reasons: Reasons for which the model ended.
        began_ns: Time at which it began, where that was before anybody could say so.
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
