"""The general ledger: the postings of a day, the balances at its close, and the SQL that stores
them.

Double entry, in cents, one posting for each event: its debit and its credit are equal and in one
currency, so that every sum over a day and a currency balances.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from importlib import resources
from typing import Any

import psycopg

from examples.treasury.policy import Instruction, Policy, Statement
from examples.treasury.rates import Rates, in_euro_cents

OURS = "pgflow example: the treasury"

Funds = dict[str, int]
"""Currency -> cents in the fund."""


@dataclass(frozen=True)
class Booked:
    """An instruction that the bank has executed, and the bank's reference for it."""

    order: Instruction
    reference: str


@dataclass(frozen=True)
class Day:
    """Facts of a day, of which all its books are made."""

    day: date
    policy: str
    statements: list[Statement]
    rates: Rates
    booked: list[Booked]
    acknowledged_by: str | None


@dataclass(frozen=True)
class Balance:
    """Balance of an account at the close of a day."""

    account: str
    currency: str
    opening: int
    flows: int
    sweeps: int

    @property
    def closing(self) -> int:
        """Amount that it takes into the next day."""
        return self.opening + self.flows + self.sweeps


@dataclass(frozen=True)
class Posting:
    """Two entries: what one account is debited, another is credited."""

    kind: str
    debit: str
    credit: str
    currency: str
    cents: int
    reference: str | None = None


# ------------------------------------------------------ what the books say, without a database


def postings(day: Day) -> Iterator[Posting]:
    """Yield the postings of a day: its flows, then what the bank has executed."""
    for s in day.statements:
        if s.receipts:
            yield Posting(
                "receipts", f"bank:{s.account}", f"customers:{s.currency}", s.currency, s.receipts
            )
        if s.payments:
            yield Posting(
                "payments", f"suppliers:{s.currency}", f"bank:{s.account}", s.currency, -s.payments
            )
    for booked in day.booked:
        yield _posting(booked)


def _posting(booked: Booked) -> Posting:
    order = booked.order
    own, other = order.account, f"clearing-{order.account}"
    if order.kind == "sweep":
        own, other = f"bank:{order.account}", order.counterparty
    debit, credit = (own, other) if order.cents > 0 else (other, own)
    return Posting(order.kind, debit, credit, order.currency, abs(order.cents), booked.reference)


def balances(day: Day, funds: Funds) -> list[Balance]:
    """Return the operating accounts and the fund at the close of a day that the fund began with
    `funds`.
    """
    swept = {b.order.account: b.order.cents for b in day.booked if b.order.kind == "sweep"}
    operating = [
        Balance(s.account, s.currency, s.opening, s.net, swept.get(s.account, 0))
        for s in day.statements
    ]
    return operating + [
        Balance(
            f"fund-{s.currency.lower()}", s.currency, funds[s.currency], 0, -swept.get(s.account, 0)
        )
        for s in day.statements
    ]


def funds_after(closing: list[Balance]) -> Funds:
    """Return the fund's holdings at the start of the next day, by currency."""
    return {b.currency: b.closing for b in closing if b.account.startswith("fund-")}


def liquid_euro_cents(closing: list[Balance], rates: Rates) -> int:
    """Return all that is at hand, at the rates of the day."""
    return sum(in_euro_cents(b.closing, rates[b.currency]) for b in closing)


def liquidity_ratio(liquid: int, policy: Policy) -> Decimal:
    """Return the money at hand as a share of the cost of thirty bad days."""
    return (Decimal(liquid) / policy.stressed_outflow).quantize(Decimal("0.0001"))


# ---------------------------------------------------------------- the tables


def create(conn: psycopg.Connection[Any], name: str, seed: int, bank_book_path: str) -> None:
    """Create an empty ledger, in place of one that an earlier run of the example left.

    Raises:
        ValueError: The schema was not made by this example. psycopg.errors.LockNotAvailable: The
            old ledger is in use.
    """
    found = conn.execute(
        "select obj_description(oid, 'pg_namespace') from pg_namespace where nspname = 'treasury'"
    ).fetchone()
    if found is not None and found[0] != OURS:
        raise ValueError(
            "this database has a schema treasury that is not the example's: use another database"
        )
    with conn.transaction():
        conn.execute("set local lock_timeout = '2s'")
        conn.execute("drop schema if exists treasury cascade")
        conn.execute(resources.files(__package__).joinpath("ledger.sql").read_bytes())
        conn.execute(
            "insert into treasury.books (name, seed, bank_book_path) values (%s, %s, %s)",
            (name, seed, bank_book_path),
        )


async def insert_postings(
    conn: psycopg.AsyncConnection[Any], day: date, run_key: str, items: list[Posting]
) -> None:
    """Writes postings, two entries each."""
    rows = [
        (day, number, p.kind, account, p.currency, debit, credit, p.reference, run_key)
        for number, p in enumerate(items, 1)
        for account, debit, credit in ((p.debit, p.cents, 0), (p.credit, 0, p.cents))
    ]
    async with conn.cursor() as cursor:
        await cursor.executemany(
            "insert into treasury.gl_entry (day, posting, kind, account, currency, debit, credit, "
            "reference, run_key) "
            "values (%s, %s, %s, %s, %s, %s, %s, %s, %s)",
            rows,
        )


async def insert_balances(
    conn: psycopg.AsyncConnection[Any], day: Day, run_key: str, closing: list[Balance]
) -> None:
    """Write the balances of the accounts."""
    rows = [
        (
            day.day,
            b.account,
            b.currency,
            b.opening,
            b.flows,
            b.sweeps,
            b.closing,
            day.rates[b.currency],
            run_key,
        )
        for b in closing
    ]
    async with conn.cursor() as cursor:
        await cursor.executemany(
            "insert into treasury.balance (day, account, currency, opening, flows, sweeps, "
            "closing, euros_buy, run_key) "
            "values (%s, %s, %s, %s, %s, %s, %s, %s, %s)",
            rows,
        )


async def insert_report(
    conn: psycopg.AsyncConnection[Any], day: Day, run_key: str, liquid: int, ratio: Decimal
) -> None:
    """Files the report of a closed day."""
    await conn.execute(
        "insert into treasury.report (day, policy, liquid_euro_cents, liquidity_ratio, "
        "acknowledged_by, run_key) "
        "values (%s, %s, %s, %s, %s, %s)",
        (day.day, day.policy, liquid, ratio, day.acknowledged_by, run_key),
    )
