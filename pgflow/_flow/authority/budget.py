"""Budgets: charges of steps and workflows.

A call declares what it may spend with ``options(admit=...)``. The database decides before the body
starts.
"""

from __future__ import annotations

from decimal import Decimal

from pgflow._engine.budgets import Budgets
from pgflow._flow.scope import StepScope, WorkflowScope, current, workflow_scope
from pgflow._model.budgets import Amount, Spent, amounts_of
from pgflow.errors import InvalidArgument

MAX_MODEL_BYTES = 255


def charge(
    *,
    usd: Amount = Decimal(0),
    tokens: int = 0,
    calls: int = 0,
    seconds: Amount = 0,
    model: str | None = None,
    **units: Amount,
) -> None:
    """Charge an amount to the pool that admitted the step, else to the pool of the run.

    In the body of a step, the charge is recorded with the outcome of the attempt, even a failed
    one. It is never refused: the money is gone. An amount above the reservation is drawn from the
    pool, and an amount above that is an overrun, after which the pool admits no more calls.

    Args:
        usd: Dollars.
        tokens: Tokens.
        calls: Calls; by default 1 for each attempt of an admitted step.
        seconds: Seconds; by default the duration of each attempt of an admitted step.
        model: Model that was paid, for ``pgflow.charges``.
        **units: Amounts of other units, by name.

    Raises:
        InvalidArgument: An amount is negative or not a number.
        NotInRunError: The caller is neither a workflow nor a step.

    Example::

        @step
        async def ask(question: str) -> str:
            answer = await model.complete(question)
            pgflow.authority.charge(usd=answer.cost, tokens=answer.tokens, model=answer.model)
            return answer.text
    """
    scope: WorkflowScope | StepScope | None = current.get()
    if not isinstance(scope, StepScope):
        scope = workflow_scope("pgflow.authority.charge()")
    given = {"usd": usd, "tokens": tokens, "calls": calls, "seconds": seconds, **units}
    amounts = amounts_of(given, "charge()")
    if model is not None and not (
        isinstance(model, str) and 1 <= len(model.encode()) <= MAX_MODEL_BYTES and "\0" not in model
    ):
        raise InvalidArgument(f"charge(): the model is a text of 1 to 255 bytes, not {model!r}")
    if not amounts:
        return
    spent = Spent(amounts, model)
    if isinstance(scope, StepScope):
        scope.charge(spent)
    else:
        scope.execution.parts[Budgets].charge(spent)
