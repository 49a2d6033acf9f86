"""Amounts: the sum of money, or the number, that a request is about, by the names of its fields."""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal, InvalidOperation
from typing import Any

from pgflow.console.words import number

NAMES = ("amount", "total", "sum", "price", "cost", "cents", "qty", "quantity")
"""Fields that have an amount, the most telling first."""
UNITS = ("currency", "unit", "asset")
"""Fields beside them that have its unit."""
MOST_CHARS = 12
"""Most characters of a unit."""
_WORD = re.compile(r"[a-z]+")


def amount_of(facts: Any) -> str:
    """Return the amount in a request, or in the arguments of a run: ``120.5 usd``; empty for none.

    Args:
        facts: The request in clear. It may hold the fields in objects, such as ``order.total``.
    """
    found = list(_fields(facts))
    for name in NAMES:
        for field, value, beside in found:
            if name in _WORD.findall(field.lower()) and (text := _text(value)):
                unit = "cents" if name == "cents" else _unit(beside)
                return f"{text} {unit}".rstrip()
    return ""


def _fields(facts: Any, depth: int = 3) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """Yield name and value of each field, and the fields beside it; outer ones first."""
    if not isinstance(facts, dict) or not depth:
        return
    for name, value in facts.items():
        yield str(name), value, facts
    for value in facts.values():
        yield from _fields(value, depth - 1)


def _text(value: Any) -> str:
    """Return a number with separators; empty for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return ""
    try:
        found = Decimal(str(value))
    except InvalidOperation:
        return ""
    return number(found) if found.is_finite() and abs(found) < 10**15 else ""


def _unit(beside: dict[str, Any]) -> str:
    for name in UNITS:
        if isinstance(unit := beside.get(name), str) and len(unit) <= MOST_CHARS:
            return unit
    return ""
