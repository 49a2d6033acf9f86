"""The workflow that the programs in this folder start: an order that a person approves if it is
large, and that waits for its payment.

Run a worker for it: ``pgflow workers examples/other-languages/shop.py``.
"""

from __future__ import annotations

import pgflow

paid = pgflow.Signal("paid", dict)


@pgflow.step
async def ship(order_id: str) -> str:
    """Ship an order."""
    return f"{order_id} is on its way"


@pgflow.workflow(signals=[paid])
async def fulfil(order_id: str, cents: int) -> str:
    """Ship an order once it is approved and paid."""
    if cents > 10_000:
        order = {"order_id": order_id, "cents": cents}
        verdict = await pgflow.authority.gate("approve-order", order)
        if not isinstance(verdict, pgflow.authority.Approved):
            return "rejected"
    await paid.wait()
    return await ship(order_id)
