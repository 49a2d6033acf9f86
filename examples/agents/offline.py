"""A model and a market without a network. The model samples, so each call has another answer and
costs money; the market moves between two looks.
"""

from __future__ import annotations

import random
import uuid
from dataclasses import dataclass
from decimal import Decimal

MODEL = "small-1"


@dataclass(frozen=True)
class Sample:
    """Answer of a model: a number, and its cost.

    Attributes:
        id: Number of the answer at the provider.
        number: The answer.
        usd: Cost.
        tokens: Tokens.
    """

    id: str
    number: int
    usd: Decimal
    tokens: int


async def sample(least: int, most: int) -> Sample:
    """Return a random number from least to most."""
    tokens = random.randint(500, 4_000)
    usd = Decimal(tokens) / 100_000
    return Sample(uuid.uuid4().hex, random.randint(least, max(least, most)), usd, tokens)


async def price(item: str) -> int:
    """Return the current price of a piece, in cents."""
    return 500 + len(item) + random.choice((0, 0, 0, 20))
