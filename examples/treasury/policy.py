"""The standing policy of the treasury, and its decisions for one day.

`decide` is workflow code: no clock, no chance, no outside. So a replay decides the same from the
recorded statements and rates, and a test needs neither a bank nor a database.

All amounts are whole cents, signed from the view of the account they belong to: a gain is positive.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date

from examples.treasury.rates import Rates, in_euro_cents

MILLION = 100_000_000

ACCOUNTS = {"eur-ops": "EUR", "usd-ops": "USD", "gbp-ops": "GBP", "aud-ops": "AUD"}
"""Our operating accounts and their currencies."""


@dataclass(frozen=True)
class Policy:
    """Policy that the CFO has laid down.

    Attributes:
        version: Its name, which goes into the report of every day decided by it.
        in_force_from: The first day it holds for.
        targets: Balance that each operating account keeps overnight; the day's surplus or shortfall
            is swept.
        fund: The only money-market fund to sweep to and from; one sub-account a currency.
        desk: The only counterparty for forwards.
        tolerated_exposure: A day's net flow in a foreign currency above this is hedged; euro cents.
        ask_first_above: A sweep above this waits for the CFO; euro cents.
        stressed_outflow: Cost of thirty bad days, under the liquidity ratio; euro cents.
    """

    version: str
    in_force_from: date
    targets: dict[str, int]
    fund: str
    desk: str
    tolerated_exposure: int
    ask_first_above: int
    stressed_outflow: int


_FIRST = Policy(
    version="2024-1",
    in_force_from=date(2024, 1, 1),
    targets={
        "eur-ops": 5 * MILLION,
        "usd-ops": 4 * MILLION,
        "gbp-ops": 2 * MILLION,
        "aud-ops": 3 * MILLION,
    },
    fund="fund",
    desk="forwards-desk",
    tolerated_exposure=MILLION,
    ask_first_above=5 * MILLION // 2,
    stressed_outflow=60 * MILLION,
)

_SECOND = replace(
    _FIRST, version="2024-2", in_force_from=date(2024, 2, 15), tolerated_exposure=3 * MILLION // 4
)

POLICIES = {policy.version: policy for policy in (_FIRST, _SECOND)}
"""Every version that was ever in force: a day is always decided by the one of its date, however
late it is run.
"""


def policy_on(day: date) -> Policy:
    """Return the policy in force on a day."""
    return max(
        (p for p in POLICIES.values() if p.in_force_from <= day), key=lambda p: p.in_force_from
    )


@dataclass(frozen=True)
class Statement:
    """The bank's statement of an account for one day, before anything is swept."""

    account: str
    currency: str
    opening: int
    receipts: int
    payments: int

    @property
    def net(self) -> int:
        """Sum of the day's flows; payments are negative."""
        return self.receipts + self.payments


@dataclass(frozen=True)
class Instruction:
    """Instruction to the bank: the account gains `cents`, which the counterparty gives."""

    day: date
    kind: str
    account: str
    currency: str
    cents: int
    counterparty: str


@dataclass(frozen=True)
class Hedge:
    """A forward in two legs, both or neither: give one currency, take the other."""

    give: Instruction
    take: Instruction

    @property
    def reversal(self) -> Instruction:
        """Instruction that takes the first leg back."""
        return replace(self.give, kind="hedge-reversal", cents=-self.give.cents)


@dataclass(frozen=True)
class Plan:
    """Actions that a day asks for.

    Attributes:
        policy: Version of the policy that says so.
        sweeps: To and from the fund.
        hedges: Against the day's exposure.
        questions: Points that need the CFO's acknowledgement first, in words.
    """

    policy: str
    sweeps: list[Instruction]
    hedges: list[Hedge]
    questions: list[str]


def decide(policy: Policy, day: date, statements: Sequence[Statement], rates: Rates) -> Plan:
    """Return the actions that the policy asks for on a day with these statements and rates."""
    sweeps = [sweep for s in statements if (sweep := _sweep(policy, day, s)).cents != 0]
    hedges = [_hedge(policy, day, s, rates) for s in statements if _is_exposed(policy, s, rates)]
    questions = [
        f"{-s.cents / 100:+,.2f} {s.currency} from {s.account} to the fund"
        for s in sweeps
        if abs(in_euro_cents(s.cents, rates[s.currency])) > policy.ask_first_above
    ]
    return Plan(policy.version, sweeps, hedges, questions)


def _sweep(policy: Policy, day: date, statement: Statement) -> Instruction:
    missing = policy.targets[statement.account] - (statement.opening + statement.net)
    fund = f"{policy.fund}-{statement.currency.lower()}"
    return Instruction(day, "sweep", statement.account, statement.currency, missing, fund)


def _is_exposed(policy: Policy, statement: Statement, rates: Rates) -> bool:
    exposure = abs(in_euro_cents(statement.net, rates[statement.currency]))
    return statement.currency != "EUR" and exposure > policy.tolerated_exposure


def _hedge(policy: Policy, day: date, statement: Statement, rates: Rates) -> Hedge:
    """Gives the day's net flow in the foreign currency, or takes it where it is a debt, against
    euros at the day's rate.
    """
    position = f"forward-{statement.currency.lower()}"
    foreign = Instruction(day, "", position, statement.currency, -statement.net, policy.desk)
    euro = replace(
        foreign, currency="EUR", cents=in_euro_cents(statement.net, rates[statement.currency])
    )
    give, take = (foreign, euro) if statement.net > 0 else (euro, foreign)
    return Hedge(replace(give, kind="hedge-give"), replace(take, kind="hedge-take"))
