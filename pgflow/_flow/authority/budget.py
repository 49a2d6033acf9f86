"""Budgets: what may be spent."""

from __future__ import annotations

from decimal import Decimal

from pgflow._flow.unbuilt import declared_only
from pgflow.errors import NotBuiltError


@declared_only("budgets")
def charge(*, usd: Decimal = Decimal(0), tokens: int = 0) -> None:
    """Charges a budget. Declared now; budgets are not built yet."""
    raise NotBuiltError(f"budgets are not built yet: charge(usd={usd}, tokens={tokens})")
