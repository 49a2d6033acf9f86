"""Errors of pydantic-ai in a journal: they come back as themselves.

Those in ``FINAL`` are not retried, since the next try would fail the same way. pgflow retries all
others, so turn the retries of the provider's client off.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from pydantic_ai import exceptions  # pyright: ignore[reportMissingImports]
from pydantic_core import PydanticSerializationError

import pgflow
from pgflow.errors import NotStorable

PASSING = frozenset({408, 409, 425, 429})
"""Refusals by HTTP that may be over at the next try."""

CLASSES = tuple(
    error
    for error in vars(exceptions).values()
    if isinstance(error, type)
    and issubclass(error, Exception)
    and not issubclass(error, (Warning, ExceptionGroup))
)

_ROOTS = (
    exceptions.UserError,
    exceptions.UnexpectedModelBehavior,
    exceptions.UsageLimitExceeded,
    exceptions.ModelRequestRejectedError,
    exceptions.ModelQuotaExceededError,
)
FINAL = (*(error for error in CLASSES if issubclass(error, _ROOTS)), NotStorable)
"""With the classes of errors by HTTP, which have the names of those that they belong to."""

pgflow.extensions.register_errors(*CLASSES)


@contextlib.contextmanager
def refusals_are_final() -> Iterator[None]:
    """Raise a model's refusal as the class that says so, where its client has not."""
    try:
        yield
    except exceptions.ModelHTTPError as error:
        code = error.status_code
        if isinstance(error, FINAL) or not 400 <= code < 500 or code in PASSING:
            raise
        raise exceptions.ModelHTTPError.for_category(
            exceptions.ModelRequestRejectedError,
            status_code=code,
            model_name=error.model_name,
            body=error.body,
        ) from error


@contextlib.contextmanager
def naming(step: str) -> Iterator[None]:
    """Add the name of the step to the error for a result that is not JSON."""
    try:
        yield
    except PydanticSerializationError as error:
        raise NotStorable(
            f"the result of step {step} is not JSON: {error}; return what pydantic can write"
        ) from error
