"""Budgets: what a body or a workflow has spent.

What a call may spend is said where it is called, by ``options(admit=...)``, and decided by the
database before its body starts.
"""

from __future__ import annotations

from decimal import Decimal

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
    """Records what was spent, on the pool that admitted the step, else on the pool of the run.

    In the body of a step it is recorded with what the try comes to, a failed one too. It is never
    refused: the money is gone. What exceeds the reservation is drawn from the pool, and what
    exceeds that is an overrun, which keeps the pool from admitting anything more.

    Args:
        usd: Dollars.
        tokens: Tokens.
        calls: Calls; of an admitted step each try counts as one if its body does not say.
        seconds: Seconds; of an admitted step each try counts as long as it takes.
        model: Model that was paid, for ``pgflow.charges``.
        **units: Amounts of other units, by name.

    Raises:
        InvalidArgument: An amount is negative, or no number.
        NotInRunError: Neither a workflow nor a step calls it.

    Example::

        @step
        async def ask(question: str) -> str:
            answer = await model.complete(question)
            pgflow.charge(usd=answer.cost, tokens=answer.tokens, model=answer.model)
            return answer.text
    """
    scope: WorkflowScope | StepScope | None = current.get()
    if not isinstance(scope, StepScope):
        scope = workflow_scope("pgflow.charge()")
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
        scope.execution.budgets.charge(spent)
