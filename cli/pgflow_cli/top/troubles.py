"""Troubles: one line for the user on what went wrong."""

from __future__ import annotations

import asyncio
from typing import TypeVar

import psycopg

from pgflow import inspect
from pgflow._console.backend import Backend, Unreachable
from pgflow.app import App, AsyncApp
from pgflow.errors import PgflowError
from pgflow_cli.look.failures import hide_secrets
from pgflow_cli.look.output import shown

T = TypeVar("T")

ASKING_SECONDS = 5.0
"""Time for one question, after which the database counts as one that cannot be asked."""
ORDER_SECONDS = 10.0
"""Time limit of an order. After it, the outcome of the order is unknown."""

SILENT = (*Unreachable, TimeoutError, OSError)
"""Errors of a database that cannot be asked just now."""
EXPECTED = (*SILENT, PgflowError, psycopg.Error)
"""Errors that a person can do something about, or wait for the end of."""


class ImpatientBackend(Backend):
    """A backend that gives up soon when the database does not answer: the user shall hear of it."""

    def __init__(self, app: App | AsyncApp, seconds: float = ASKING_SECONDS) -> None:
        super().__init__(app)
        self._seconds = seconds

    async def ask(self, question: inspect.Question[T]) -> T:
        """Ask the database."""
        async with asyncio.timeout(self._seconds):
            return await super().ask(question)


def is_silent(error: BaseException) -> bool:
    """Return True if the database cannot be asked just now."""
    return isinstance(error, SILENT) and not isinstance(error, psycopg.errors.QueryCanceled)


def explain(error: BaseException) -> str:
    """Return a line for an error."""
    if isinstance(error, psycopg.errors.InsufficientPrivilege):
        return shown(
            f"{error.diag.message_primary}: the role of this connection is too low. Looking needs "
            "pgflow_auditor, orders pgflow_operator, answers to gates pgflow_approver"
        )
    if isinstance(error, psycopg.errors.QueryCanceled):
        return "This took the database too long"
    if is_silent(error):
        return "No answer from the database"
    if isinstance(error, psycopg.Error):
        message = error.diag.message_primary or str(error)
        return shown(hide_secrets(f"The database refused: {message}"))
    return shown(hide_secrets(str(error)))


def explain_order(error: BaseException) -> str:
    """Return a line for an error of an order: one that had no answer may have been done."""
    if is_silent(error):
        return "No answer from the database: it may have been done. Look before you say it again"
    return explain(error)
