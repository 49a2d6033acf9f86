"""Calls a relay's target, and attributes its errors to it.

A target may query another database that is down, cancel itself, or exit the program. None of this
is an error of the worker: the event has failed, is retried, and is dead in the end. Only trouble
with the connection that pgflow passes to a handler is not the handler's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pgflow._db.drivers import is_raised_on
from pgflow._db.failures import is_infrastructure


class TargetFailed(Exception):
    """A target has failed, with this error."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(str(error))
        self.error = error


@contextmanager
def judged(transaction: Any = None) -> Iterator[None]:
    """Raise errors of a target in the block as TargetFailed.

    Args:
        transaction: The transaction that the target works in; None if it has none of pgflow's.

    Raises:
        TargetFailed: The target has failed.
    """
    try:
        yield
    except TargetFailed:
        raise
    except asyncio.CancelledError as error:
        if _is_being_cancelled():
            raise
        raise TargetFailed(asyncio.CancelledError("the target cancelled itself")) from error
    except (Exception, SystemExit) as error:
        if transaction is not None and is_infrastructure(error) and _is_of(error, transaction):
            raise
        raise TargetFailed(error) from error


def _is_being_cancelled() -> bool:
    try:
        task = asyncio.current_task()
    except RuntimeError:  # a thread has no loop and cannot be cancelled
        return False
    return task is not None and task.cancelling() > 0


def _is_of(error: BaseException, transaction: Any) -> bool:
    connection = getattr(transaction, "driver_connection", None)
    return connection is None or is_raised_on(error, connection)
