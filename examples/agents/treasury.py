"""The treasury agent's close: a sweep that is confirmed hours later, and a hedge with two legs or
none.
"""

from __future__ import annotations

from dataclasses import dataclass

import pgflow
from examples.agents.counterparty import Refused
from examples.agents.world import ATTEMPT, OFTEN, counterparty
from pgflow import read, workflow
from pgflow.decisions import Choice, decision
from pgflow.effects import Absent, Accepted, Confirmed, StillUnknown, effect


@dataclass(frozen=True)
class Sweep:
    """Amount to sweep, and its fund."""

    cents: int
    fund: str


@read
async def balance(account: str) -> int:
    """Return the balance of an account."""
    return 5_000_000 + len(account)


@decision()
async def decide_sweep(account: str, cents: int, floor: int) -> Choice[Sweep]:
    """Sweep everything above the floor to the fund of the policy."""
    return Choice(
        Sweep(cents - floor, "MMF-1"),
        why=f"{account} holds {cents - floor} above its floor of {floor}",
        evidence=[f"balance of {account}: {cents}"],
        alternatives=["leave it"],
        policy="sweep-2",
    )


@effect(risk="irreversible", raises=[Refused], timeout=ATTEMPT, settle_retries=OFTEN)
async def wire(sweep: Sweep) -> str | Accepted:
    """Instruct the bank, which accepts now and confirms at the end of its day."""
    return Accepted(
        await counterparty("bank").act(
            "wire", pgflow.idempotency_key(), cents=sweep.cents, to=sweep.fund
        )
    )


@wire.precondition
async def _(sweep: Sweep) -> bool:
    return sweep.cents > 0


@wire.settle
async def _(sweep: Sweep) -> Confirmed[str | Accepted] | Absent | StillUnknown:
    del sweep
    found = counterparty("bank").find(pgflow.idempotency_key())
    return Confirmed(Accepted(found["number"])) if found else Absent()


@effect(risk="compensable", raises=[Refused], timeout=ATTEMPT, settle_retries=OFTEN)
async def trade(leg: str, cents: int) -> str:
    """Trade one leg of a hedge."""
    return await counterparty("broker").act("trade", pgflow.idempotency_key(), leg=leg, cents=cents)


@trade.settle
async def _(leg: str, cents: int) -> Confirmed[str] | Absent | StillUnknown:
    del leg, cents
    found = counterparty("broker").find(pgflow.idempotency_key())
    return Confirmed(found["number"]) if found else Absent()


@trade.compensate
async def reverse(number: str, leg: str, cents: int) -> None:
    """Trade the opposite."""
    del leg, cents
    await counterparty("broker").act("reverse", pgflow.idempotency_key(), undoes=number)


@workflow
async def close_day(account: str, floor: int) -> str:
    """Sweep, and hedge if both legs are available; the day closes once the bank has confirmed."""
    chosen = await decide_sweep(account, await balance(account), floor)
    taken = await wire.because(chosen)(chosen.value)
    try:
        async with pgflow.effects.saga():
            for leg in ("AUD spot", "AUD forward"):
                await trade(leg, chosen.value.cents)
        hedge = "hedged"
    except Refused:
        hedge = "not hedged"
    return f"{taken.ref if isinstance(taken, Accepted) else taken}, {hedge}"
