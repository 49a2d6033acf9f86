"""The world of the accounts, whatever the treasury does: the customers' receipts and the payments
to suppliers.

Drawn from a seed for each account and day, so that the same seed is the same quarter, however long
it is.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from examples.treasury.policy import ACCOUNTS, MILLION, policy_on

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import date

FUND = {"EUR": 80 * MILLION, "USD": 50 * MILLION, "GBP": 25 * MILLION, "AUD": 40 * MILLION}
"""Holdings in the fund before the first day."""

# The part of its target that an account turns over on a usual day,
# and how much a day differs from it.
_TURNOVER = 1 / 3
_SPREAD = 0.5

Line = dict[str, Any]


def opening_lines(days: Sequence[date], seed: int) -> list[Line]:
    """Return the bank's book before the treasury sends anything: balances, and the flows of every
    day.
    """
    targets = policy_on(days[0]).targets
    accounts = [_account(name, currency, targets[name]) for name, currency in ACCOUNTS.items()]
    funds = [
        _account(f"fund-{currency.lower()}", currency, cents) for currency, cents in FUND.items()
    ]
    flows = [
        flow for day in days for name in ACCOUNTS for flow in _flows(day, name, targets[name], seed)
    ]
    return [*accounts, *funds, *flows]


def _account(name: str, currency: str, cents: int) -> Line:
    return {"type": "account", "account": name, "currency": currency, "cents": cents}


def _flows(day: date, account: str, target: int, seed: int) -> list[Line]:
    chance = random.Random(f"{seed}/{account}/{day}")
    usual = target * _TURNOVER
    amounts = {
        kind: round(usual * chance.lognormvariate(0, _SPREAD)) for kind in ("receipts", "payments")
    }
    return [
        {
            "type": "flow",
            "day": day.isoformat(),
            "kind": kind,
            "account": account,
            "currency": ACCOUNTS[account],
            "cents": cents if kind == "receipts" else -cents,
        }
        for kind, cents in amounts.items()
    ]
