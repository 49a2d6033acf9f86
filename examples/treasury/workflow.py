"""The treasury day: read, price, decide, sweep, hedge, post, close.

Read `treasury_day` first. It is ordinary code that happens to survive: kill its worker anywhere,
and another one replays what is recorded and goes on. What each step may do on a second try is in
its decorator:

- `read_statement`, `read_rates` only look (``@read``).
- `sweep`, `trade` instruct the bank under a key (``@step``): the key is the run's name for this
  call, the same on every try and in every process, so the bank can distinguish a repetition from
  a new instruction.
- `post`, `close` write the ledger in the transaction that records the step (``@transaction``): both
  or neither. `close` hands the fund on to the next day in that same transaction.

The operating accounts are run on target balances: the sweep of an evening brings each back to its
target, so every day opens there and asks for nothing but its own flows. That is why a whole quarter
can be run side by side. Only the closes form a chain: a day's close waits for the fund as the day
before has left it.
"""

import asyncio
from datetime import date, timedelta
from decimal import Decimal
from typing import Any

import psycopg

import pgflow
from examples.treasury import client, ledger
from examples.treasury.bank import KeyReused, Refused
from examples.treasury.ledger import Booked, Day, Funds
from examples.treasury.policy import (
    ACCOUNTS,
    POLICIES,
    Hedge,
    Instruction,
    Plan,
    Statement,
    decide,
    policy_on,
)
from examples.treasury.rates import Rates, rates_on

opening = pgflow.Signal("opening", Funds)
"""The fund as the day before left it."""

cfo_ack = pgflow.Signal("cfo-ack", str)
"""The CFO has seen what the policy wants to be asked first; the payload is who it was."""

PATIENT = pgflow.Retries(
    max_attempts=30, first_delay=timedelta(milliseconds=50), max_delay=timedelta(seconds=1)
)
"""An answer that was lost, or a bank that is being restarted, comes back soon."""


# ---------------------------------------------------------------- steps


@pgflow.read(retries=PATIENT)
async def read_statement(account: str, day: date) -> Statement:
    """Read the bank's statement of an account."""
    return await client.read_statement(account, day)


@pgflow.read
async def read_rates(day: date) -> Rates:
    """Return the euro's rates on that day."""
    return await asyncio.to_thread(rates_on, day)


@pgflow.step(retries=PATIENT, raises=[Refused, KeyReused])
async def sweep(order: Instruction) -> Booked:
    """Moves money between an account and the fund."""
    return await client.instruct(order, pgflow.idempotency_key())


@pgflow.step(retries=PATIENT, raises=[Refused, KeyReused])
async def trade(leg: Instruction) -> Booked:
    """Trades one leg of a forward."""
    return await client.instruct(leg, pgflow.idempotency_key())


@pgflow.transaction
async def post(conn: psycopg.AsyncConnection[Any], day: Day) -> int:
    """Posts a day to the general ledger; answers how many postings that took."""
    postings = list(ledger.postings(day))
    await ledger.insert_postings(conn, day.day, pgflow.run_info().key, postings)
    return len(postings)


@pgflow.transaction
async def close(
    conn: psycopg.AsyncConnection[Any], day: Day, funds: Funds, next_day: date | None
) -> Decimal:
    """Closes a day: balances, report, and the fund for the next day.
    Answers the liquidity ratio.
    """
    run_key = pgflow.run_info().key
    closing = ledger.balances(day, funds)
    liquid = ledger.liquid_euro_cents(closing, day.rates)
    ratio = ledger.liquidity_ratio(liquid, POLICIES[day.policy])
    await ledger.insert_balances(conn, day, run_key, closing)
    await ledger.insert_report(conn, day, run_key, liquid, ratio)
    if next_day is not None:
        await app.using(conn).send(
            key_of(books_of(run_key), next_day), opening, ledger.funds_after(closing)
        )
    return ratio


# ---------------------------------------------------------------- the day


@pgflow.workflow(queue="treasury", raises=[Refused, KeyReused])
async def treasury_day(day: date, next_day: date | None) -> Decimal:
    """Runs the treasury for one business day.

    Args:
        day: The day.
        next_day: The next business day of the same books, whose run waits for this one's close;
            None for the last.

    Returns:
        The liquidity ratio as filed.
    """
    statements = await asyncio.gather(*(read_statement(account, day) for account in ACCOUNTS))
    rates = await read_rates(day)
    plan = decide(policy_on(day), day, statements, rates)
    acknowledged_by = await ask_cfo(plan) if plan.questions else None
    swept = await asyncio.gather(*(sweep(order) for order in plan.sweeps))
    legs = await asyncio.gather(*(hedge(forward) for forward in plan.hedges))
    booked = [*swept, *(leg for forward in legs for leg in forward)]
    done = Day(day, plan.policy, statements, rates, booked, acknowledged_by)
    await post(done)
    return await close(done, await opening.wait(), next_day)


async def ask_cfo(plan: Plan) -> str:
    """Waits, for days if need be and without a worker,
    until the CFO has seen what the policy asks about.
    """
    pgflow.set_state(questions=plan.questions)
    return await cfo_ack.wait()


async def hedge(forward: Hedge) -> list[Booked]:
    """Trades both legs or neither: where the desk refuses the second, the first is taken back."""
    try:
        first = await trade(forward.give)
    except Refused:
        return []
    try:
        return [first, await trade(forward.take)]
    except Refused:
        return [first, await trade(forward.reversal)]


def key_of(books: str, day: date) -> str:
    """Key of a day's run: starting the day a second time is the same run."""
    return f"{books}/{day}"


def books_of(key: str) -> str:
    """Return the set of books that a run belongs to."""
    return key.rpartition("/")[0]


app = pgflow.AsyncApp(include=[treasury_day])
