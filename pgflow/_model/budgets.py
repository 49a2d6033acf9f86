"""Budgets: amounts by unit, pools, and the request of a call."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Context, Decimal, InvalidOperation
from typing import Any, NamedTuple, Self

from pgflow.errors import BudgetExceeded, InvalidArgument

Amount = Decimal | int | float
"""An amount of a unit."""

Amounts = dict[str, str]
"""Amounts by unit, each as decimal text: exact in every language."""

_UNIT = re.compile(r"[a-z][a-z0-9_]{0,62}")
_MOST = Decimal(10) ** 15
MOST_UNITS = 32
"""Units that one thing may name."""
MOST_DIGITS = 18
"""Digits behind the point that are kept of an amount."""
_EXACT = Context(prec=80)
PERIODS = ("hour", "day", "week", "month", "quarter", "year")


def amounts_of(given: Mapping[str, Amount | None], what: str, *, zeros: bool = False) -> Amounts:
    """Return amounts as they are recorded, without those that are None.

    Args:
        given: Amounts by unit; None if not given.
        what: Name for errors, as in "charge()".
        zeros: True to keep zeros, which matter as limits.

    Raises:
        InvalidArgument: A unit is not a valid name, an amount is not a number from 0 to 10^15, or
            there are more than 32.
    """
    if len(given) > MOST_UNITS:
        raise InvalidArgument(f"{what}: at most {MOST_UNITS} units, not {len(given)}")
    amounts: Amounts = {}
    for unit, amount in given.items():
        if amount is None:
            continue
        if not isinstance(unit, str) or _UNIT.fullmatch(unit) is None:
            raise InvalidArgument(f"{what}: a unit is a name in lower case, not {unit!r}")
        number = _decimal(amount)
        if number is None or not 0 <= number < _MOST:
            raise InvalidArgument(
                f"{what}: {unit} must be a number from 0 to 10^15, not {amount!s:.80}"
            )
        if number or zeros:
            amounts[unit] = f"{number:f}"
    return amounts


def _decimal(amount: Amount) -> Decimal | None:
    if isinstance(amount, bool) or not isinstance(amount, (Decimal, int, float)):
        return None
    try:
        number = Decimal(str(amount))
    except InvalidOperation:
        return None
    if not number.is_finite() or number.adjusted() > MOST_DIGITS:
        return None
    exponent = number.as_tuple().exponent
    if isinstance(exponent, int) and exponent < -MOST_DIGITS:
        return number.quantize(Decimal(1).scaleb(-MOST_DIGITS), context=_EXACT)
    return number


def parts_of(amounts: Amounts) -> Iterator[Amounts]:
    """The amounts in parts of as many units as one charge may have."""
    units = list(amounts.items())
    for start in range(0, len(units), MOST_UNITS):
        yield dict(units[start : start + MOST_UNITS])


def added(one: Amounts, other: Amounts) -> Amounts:
    """The sum of amounts."""
    sums = dict(one)
    for unit, amount in other.items():
        sums[unit] = f"{_EXACT.add(Decimal(sums.get(unit, '0')), Decimal(amount)):f}"
    return sums


def numbers(amounts: Amounts) -> str:
    """Amounts as a JSON object of numbers, which keep all their digits."""
    return "{" + ", ".join(f"{json.dumps(unit)}: {text}" for unit, text in amounts.items()) + "}"


class Pool:
    """A budget that runs draw on, with a limit by unit for each period.

    A draw on a pool is also a draw on its parent, on the parent of that, and so on. Units without a
    limit are unlimited.

    Args:
        name: Its name.
        usd: Maximum dollars.
        tokens: Maximum tokens.
        calls: Maximum admitted calls.
        seconds: Maximum seconds in admitted bodies.
        per: Calendar period after which the pool is refilled: "1 hour", "1 day", "1 week", "1
            month", "1 quarter" or "1 year"; None for never.
        tz: Time zone of that calendar.
        parent: The pool that it draws on, or its name.
        soft: Fraction of a limit from which a drawing run gets the signal ``budget``, once each
            period; None for no signal.
        hard: True to start no step at all of its runs once it is used up or revoked. Each step then
            asks the pool, at the cost of one more commit.
        **units: Limits of other units, by name.

    Raises:
        InvalidArgument: A limit is not an amount, or the period is not one of these.

    Example::

        tenant = Pool("acme", usd=500, per="1 month", tz="Europe/Berlin")
        app = App(include=[agent], pools=[tenant, Pool("acme-trial", usd=5, parent=tenant)])
    """

    def __init__(
        self,
        name: str,
        *,
        usd: Amount | None = None,
        tokens: int | None = None,
        calls: int | None = None,
        seconds: Amount | None = None,
        per: str | None = None,
        tz: str = "UTC",
        parent: Pool | str | None = None,
        soft: float | None = 0.8,
        hard: bool = False,
        **units: Amount,
    ) -> None:
        if not isinstance(name, str) or not 1 <= len(name.encode()) <= 255:
            raise InvalidArgument(f"the name of a pool is a text of 1 to 255 bytes, not {name!r}")
        span = None if per is None else per.removeprefix("1 ")
        if span is not None and span not in PERIODS:
            raise InvalidArgument(
                f"per= of pool {name!r} is '1 hour', '1 day', '1 week', '1 month', '1 quarter' or "
                f"'1 year', not {per!r}"
            )
        if soft is not None and not 0 < soft <= 1:
            raise InvalidArgument(
                f"soft= of pool {name!r} is a part of the limit, above 0 and up to 1, not {soft!r}"
            )
        given = {"usd": usd, "tokens": tokens, "calls": calls, "seconds": seconds, **units}
        self.name = name
        self.limits = amounts_of(given, f"pool {name!r}", zeros=True)
        self.per = span
        self.tz = tz
        self.parent = parent.name if isinstance(parent, Pool) else parent
        self.soft = soft
        self.hard = hard

    def __repr__(self) -> str:
        """As in error messages."""
        return f"<Pool {self.name}>"

    def declaration(self) -> str:
        """Return it as ``declare_pools`` takes it, JSON."""
        declared: dict[str, Any] = {
            "name": self.name,
            "parent": self.parent,
            "per": self.per,
            "tz": self.tz,
            "soft": self.soft,
            "hard": self.hard,
        }
        return f'{json.dumps(declared)[:-1]}, "limits": {numbers(self.limits)}}}'


@dataclass(frozen=True)
class Admit:
    """Most that a call may cost, reserved before it starts; see :meth:`Step.options`.

    Attributes:
        usd: Dollars.
        tokens: Tokens.
        calls: Calls; charged without a word of the body, for each try.
        seconds: Seconds; charged by the time that each try takes.
        pool: Pool to draw on; that of the run if not given.
        units: Amounts of other units, by name.
    """

    usd: Amount = Decimal(0)
    tokens: int = 0
    calls: int = 1
    seconds: Amount = 0
    pool: str | None = None
    units: Mapping[str, Amount] = field(default_factory=dict)

    def amounts(self) -> Amounts:
        """Return the requested amounts, as they are recorded.

        Raises:
            InvalidArgument: A value is not an amount.
        """
        given: dict[str, Amount | None] = {
            "usd": self.usd,
            "tokens": self.tokens,
            "calls": self.calls,
            "seconds": self.seconds,
            **self.units,
        }
        return amounts_of(given, "Admit()")


class Admission(NamedTuple):
    """Amounts that a step asks of a pool before its body starts."""

    amounts: Amounts
    pool: str | None

    @classmethod
    def of(cls, admit: Admit) -> Self:
        """Return what an Admit asks for."""
        return cls(admit.amounts(), admit.pool)


class Spent(NamedTuple):
    """A charge: the amounts that code says it has spent, and on which model."""

    amounts: Amounts
    model: str | None = None


def refusal(step: str, detail: dict[str, Any]) -> BudgetExceeded:
    """Return the error of a refused call, from its unit."""
    reason, pool, unit = detail.get("reason", ""), detail.get("pool"), detail.get("unit")
    if reason == "revoked":
        message = f"pool {pool!r} is revoked"
    elif reason == "used_up":
        message = (
            f"of {detail.get('limit')} {unit} pool {pool!r} has {detail.get('left')} left, and the "
            f"call asks for {detail.get('asked')}"
        )
    elif pool is not None:
        message = f"no pool is named {pool!r}"
    else:
        message = (
            "the run has no pool: start it with options(pool=...), or name one in Admit(pool=...)"
        )
    return BudgetExceeded(
        f"step {step} was not admitted and did not run: {message}",
        reason=reason,
        pool=pool,
        unit=unit,
        amounts={name: detail[name] for name in ("limit", "left", "asked") if name in detail},
    )
