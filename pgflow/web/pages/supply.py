"""Supplies that work draws on: budgets and workers."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal, InvalidOperation
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from pgflow.console.alerts import SILENT_SECONDS
from pgflow.console.backend import Backend
from pgflow.console.spending import NEWEST_CHARGES, SINCE, WAYS, read_spending
from pgflow.console.words import quoted
from pgflow.errors import InvalidArgument, PoolNotFound, RunNotFound
from pgflow.inspect import (
    BudgetRow,
    check_workers,
    database_now,
    list_budgets,
    list_held_runs,
    list_stray_leases,
    list_workers,
)
from pgflow.web.page import Page, need, principal_of, query, read_form, see

PAGE_ROWS = 50
DONE = {
    "grant": "More is allowed in this period.",
    "revoke": "It admits nothing from now on.",
    "restore": "It admits again.",
}


async def show_budgets(backend: Backend, request: Request) -> Page:
    """Show pools, unit by unit."""
    found = await backend.ask(
        list_budgets(after=request.query_params.get("after"), limit=PAGE_ROWS)
    )
    return Page(
        "budgets",
        "Budgets",
        {
            "budgets": [(row, used(row)) for row in found],
            "next": found.next,
            "now": await backend.ask(database_now()),
            **await _spending(backend),
        },
        "pgflow budgets",
    )


async def _spending(
    backend: Backend, pool: str | None = None, since: datetime | None = None
) -> dict[str, Any]:
    return {
        "spent": await read_spending(backend, pool, since or SINCE),
        "ways": WAYS,
        "newest": NEWEST_CHARGES,
    }


def used(row: BudgetRow) -> tuple[float, float] | None:
    """Return the parts of a limit that are spent and reserved, in per cent; None for no limit."""
    if row.allowed is None:
        return None
    if row.allowed <= 0:
        return 100.0, 0.0
    spent = min(100.0, float(100 * row.charged / row.allowed))
    return round(spent, 2), round(min(100.0 - spent, float(100 * row.reserved / row.allowed)), 2)


async def show_budget(backend: Backend, request: Request) -> Page:
    """Show a pool, who has spent out of it, and the forms that change it."""
    pool = query(request, "pool")
    rows = (await backend.ask(list_budgets(pool, limit=None))).items
    if not rows:
        raise PoolNotFound(f"pool {pool!r} does not exist")
    return Page(
        "budget",
        pool,
        {
            "pool": pool,
            "budgets": [(row, used(row)) for row in rows],
            **await _spending(backend, pool, rows[0].period_at),
            "may": principal_of(request).may("admin"),
            "now": await backend.ask(database_now()),
            "done": DONE.get(request.query_params.get("done", ""), ""),
        },
        f"pgflow budgets {quoted(pool)}",
    )


async def change_budget(backend: Backend, request: Request) -> Response:
    """Allow more of a pool, or revoke it."""
    principal = need(request, "admin")
    form = await read_form(request)
    pool, verb, why = query(request, "pool"), form.get("verb", ""), form.get("why", "").strip()
    if not why:
        raise InvalidArgument("say why: it is kept with the change")
    if verb == "grant":
        amount = {form.get("unit", "").strip(): _amount(form.get("amount", ""))}
        await backend.call("grant_budget", pool, amount, why=why, by=principal.name)
    elif verb in ("revoke", "restore"):
        await backend.call(
            "revoke_pool", pool, why=why, by=principal.name, restore=verb == "restore"
        )
    else:
        raise InvalidArgument("a pool is granted more, revoked or restored")
    return see(request, "/budget", pool=pool, done=verb)


def _amount(text: str) -> Decimal:
    try:
        amount = Decimal(text.strip())
    except InvalidOperation:
        raise InvalidArgument(f"{text!r} is not an amount") from None
    if not amount.is_finite() or amount <= 0:
        raise InvalidArgument(
            f"{text!r} cannot be granted: an amount is finite and greater than zero"
        )
    return amount


async def show_workers(backend: Backend, request: Request) -> Page:
    """Show workers, and runs of workers that are gone."""
    del request
    silent = {
        worker.worker_id: worker.silent_seconds for worker in await backend.ask(check_workers())
    }
    return Page(
        "workers",
        "Workers",
        {
            "workers": await backend.ask(list_workers()),
            "silent": silent,
            "too_silent": SILENT_SECONDS,
            "strays": await backend.ask(list_stray_leases()),
            "now": await backend.ask(database_now()),
        },
        "pgflow workers --list",
    )


async def show_worker(backend: Backend, request: Request) -> Page:
    """Show a worker, and the runs that it holds."""
    number = query(request, "id")
    found = [row for row in await backend.ask(list_workers()) if str(row.worker_id) == number]
    if not found:
        raise RunNotFound(f"worker {number!r} is gone: it has left, or counts as dead")
    (worker,) = found
    silent = {one.worker_id: one.silent_seconds for one in await backend.ask(check_workers())}
    return Page(
        "worker",
        f"Worker {worker.worker_id}",
        {
            "worker": worker,
            "silent": silent.get(worker.worker_id, 0.0),
            "too_silent": SILENT_SECONDS,
            "most": PAGE_ROWS,
            "held": await backend.ask(
                list_held_runs(worker.worker_id, tenant=backend.tenant, limit=PAGE_ROWS)
            ),
            "now": await backend.ask(database_now()),
        },
        "pgflow workers --list",
    )
