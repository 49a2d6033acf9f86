"""A model and a market without a network: the model samples, so it says something else each time it
is asked, and costs money; the market moves between two looks.
"""

from __future__ import annotations

import random
import uuid
from dataclasses import dataclass
from decimal import Decimal

MODEL = "small-1"


@dataclass(frozen=True)
class Sample:
    """Answer of a model: a number, and the receipt.

    Attributes:
        id: Number of the answer at the model's maker.
        number: Its word.
        usd: Cost.
        tokens: Tokens.
    """

    id: str
    number: int
    usd: Decimal
    tokens: int


async def sample(least: int, most: int) -> Sample:
    """Return some number from least to most: all that this model can say."""
    tokens = random.randint(500, 4_000)
    usd = Decimal(tokens) / 100_000
    return Sample(uuid.uuid4().hex, random.randint(least, max(least, most)), usd, tokens)


async def price(item: str) -> int:
    """Return the price of a piece at this moment, in cents."""
    return 500 + len(item) + random.choice((0, 0, 0, 20))
