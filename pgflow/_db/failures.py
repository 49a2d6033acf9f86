"""Errors of the database, and their meaning: who is to blame, and whether to try again. It is
decided here and nowhere else.

A call that failed for its own data (:func:`is_of_the_data`) would fail again, so it is not
repeated. All other calls are: claims and polls with the next turn, questions by
``WorkerConnection.insist``, commits by the committer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg

from pgflow._db.drivers import as_psycopg, causes
from pgflow.errors import (
    BY_SQLSTATE,
    GateClosed,
    InvalidArgument,
    NotAllowed,
    PgflowError,
)

# ---------------------------------------------------------------- what an error means


DATABASE_ERRORS = (psycopg.Error, OSError)
"""Errors of the database and of the connection to it; a TimeoutError is an OSError."""


def database_error(error: BaseException | None) -> psycopg.Error | None:
    """The driver's error inside an exception of psycopg, SQLAlchemy or Django, as psycopg's; None
    if there is none.
    """
    return next((found for one in causes(error) if (found := as_psycopg(one)) is not None), None)


def _holds_no_text(error: psycopg.Error) -> bool:
    """Return True if Postgres cannot hold a text, or one inside JSON;
    psycopg itself refuses to send NUL.
    """
    return error.sqlstate in ("22021", "22P02", "22P05") or (
        isinstance(error, psycopg.DataError) and "NUL" in str(error)
    )


def raise_ours(error: BaseException) -> None:
    """Raise the engine's exception if the error has one of its SQLSTATEs."""
    cause = database_error(error)
    if isinstance(error, UnicodeEncodeError) or (cause is not None and _holds_no_text(cause)):
        raise InvalidArgument(
            "a text holds a character that Postgres cannot store, NUL or half of a pair: "
            f"{(cause and cause.diag.message_primary) or error}"
        ) from error
    if cause is not None and cause.sqlstate == "42501" and _ANSWERS.search(str(cause)):
        raise NotAllowed(
            "the database role of this connection may not answer gates. Let a database "
            "administrator grant it pgflow_approver, to answer in its own name, or "
            "pgflow_speaker, to answer for the users of an application"
        ) from error
    cls = BY_SQLSTATE.get(cause.sqlstate or "") if cause is not None else None
    if cls is None or cause is None:
        return
    message = cause.diag.message_primary or str(cause)
    hint = f" {cause.diag.message_hint}" if cause.diag.message_hint else ""
    ours = cls(f"{message}.{hint}" if hint else message)
    if isinstance(ours, GateClosed):
        for name, value in json.loads(cause.diag.message_detail or "{}").items():
            setattr(ours, name, value)
    raise ours from error


_ANSWERS = re.compile(r"\b(?:answer_gate|delegate_gate)\b")
_INFRASTRUCTURE = re.compile(
    r"08|53|57P0|58|40001$|40P01$|55P03$|25006$|25P03$|25P04$|26000$|42P05$"
)
_PASSING = re.compile(r"08|53|57P0|58|55P03$|25006$")
# Citus has lost another node, or sees its own server die: both errors have no class of their own.
_REMOTE = re.compile(r"while executing command on \S+:\d+")
_DYING = "postmaster was shut down, exiting"
_UNANSWERED = re.compile(r"08|53|57P0|58|25006$|26000$|42P05$")
_DATA = re.compile(r"22|23|54|PF")
_HONOURED = ("55P03",)
_POOLED = ("26000", "42P05")

REFUSED_AFTER_SECONDS = 300.0
"""Seconds for which the server may refuse a run for trouble that is not of the moment; then a
person must look.
"""


def is_infrastructure(error: BaseException) -> bool:
    """Return True if an error of our connection says something of the connection or server and
    nothing of the work.

    Lost connections, serialization failures, deadlocks, lock time-outs, full disks, read-only
    servers, shutdowns, sessions that the server ends for being idle, and statements that a pooler
    has lost are retried and never recorded as the outcome of a step. An error of a connection that
    a body has opened itself is the body's own.
    """
    if isinstance(error, PgflowError):
        return False
    cause = database_error(error)
    if cause is None:
        return False
    if cause.sqlstate is None:
        # libpq made this answer itself, without a class: after a failed write it
        # does not ask the server.
        return (
            isinstance(cause, (psycopg.OperationalError, psycopg.InterfaceError))
            or type(cause) is psycopg.DatabaseError
        )
    return _INFRASTRUCTURE.match(cause.sqlstate) is not None or _is_of_citus(cause)


def _is_of_citus(cause: psycopg.Error) -> bool:
    return cause.sqlstate == "XX000" and (
        cause.diag.message_primary == _DYING or _REMOTE.search(cause.diag.context or "") is not None
    )


_OURS = "_pgflow_ours"


@contextmanager
def ours() -> Iterator[None]:
    """Mark the errors of a call of pgflow's, so that they are recognised inside a body: an error
    does not reference its connection.
    """
    try:
        yield
    except Exception as error:
        mark_ours(error)
        raise


def mark_ours(error: Exception) -> None:
    """Mark an error as one of a call of pgflow's; see :func:`ours`."""
    error.__dict__[_OURS] = True


def is_our_trouble(
    error: BaseException, is_on_ours: Callable[[BaseException], bool] = lambda _: False
) -> bool:
    """Return True if an error raised by a body comes from pgflow, not from the body. The step is
    then tried again, and nothing is recorded.

    Args:
        error: Error raised by the body.
        is_on_ours: Function that returns True for an error of a statement on a connection of
            pgflow's.
    """
    return is_infrastructure(error) and (
        any(_OURS in one.__dict__ for one in causes(error)) or is_on_ours(error)
    )


def is_of_the_data(error: BaseException) -> bool:
    """Return True if a call of our function failed for its arguments:
    sent again, it would fail again.

    All else - a statement that was cancelled, a function that is missing or forbidden while an
    upgrade runs - says nothing of the data. Neither does a journal without a partition for the run,
    though that is a violation of a check.
    """
    if isinstance(error, PgflowError):
        return True
    cause = database_error(error)
    if cause is None or cause.sqlstate is None:
        return isinstance(cause, psycopg.DataError)  # psycopg itself would not send it
    if cause.sqlstate == "23514" and not cause.diag.constraint_name:
        return False
    return _DATA.match(cause.sqlstate) is not None


def is_passing(error: BaseException) -> bool:
    """Return True if trouble passes by itself, however long it lasts, so the run needs no
    attention.

    A conflict does not: a run that loses conflicts for minutes will not win by itself.
    """
    cause = database_error(error)
    return (
        cause is None
        or cause.sqlstate is None
        or _PASSING.match(cause.sqlstate) is not None
        or _is_of_citus(cause)
    )


def is_answer(error: BaseException) -> bool:
    """Return True if the server answered and only this statement failed: another may fare better on
    the same connection.
    """
    cause = database_error(error)
    return (
        cause is not None
        and cause.sqlstate is not None
        and _UNANSWERED.match(cause.sqlstate) is None
    )


def is_honoured(error: BaseException) -> bool:
    """Return True if trouble is an outcome where ``raises=`` names its class: a body may have asked
    for it, as by NOWAIT.
    """
    return sqlstate_of(error) in _HONOURED


def is_of_a_pooler(error: BaseException) -> bool:
    """Return True if a prepared statement is missing or exists already, because a pooler shares one
    session among clients.
    """
    return sqlstate_of(error) in _POOLED


def sqlstate_of(error: BaseException) -> str | None:
    """The SQLSTATE inside an exception of psycopg, SQLAlchemy or Django, if there is one."""
    cause = database_error(error)
    return None if cause is None else cause.sqlstate


def is_ambiguous(error: BaseException) -> bool:
    """Return True if a COMMIT that raised this may have happened: the connection broke before the
    answer, or the server broke in it.
    """
    cause = database_error(error)
    if cause is None or cause.sqlstate is None or cause.sqlstate.startswith(("08", "57P0")):
        return True
    # A server that breaks while it commits says so and ends, whatever it has written by then. One
    # that ends an idle session has not.
    return cause.diag.severity_nonlocalized in ("FATAL", "PANIC") and cause.sqlstate not in (
        "25P03",
        "25P04",
    )


def is_conflict_on_unit(error: BaseException) -> bool:
    """Return True if another writer has taken the seq:
    a duplicate key of a partition of the journal.
    """
    cause = database_error(error)
    if cause is None or cause.sqlstate != "23505":
        return False
    return re.fullmatch(r"unit(_\d+)?_pkey", cause.diag.constraint_name or "") is not None
