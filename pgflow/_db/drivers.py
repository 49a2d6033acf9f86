"""Errors of other drivers, as psycopg's: what an error means is judged by its SQLSTATE, whichever
driver brought it.

SQLAlchemy may use asyncpg or psycopg2 below the sessions that it hands to transactional steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.pq import DiagnosticField

if TYPE_CHECKING:
    from collections.abc import Iterator

_OTHERS = ("asyncpg", "psycopg2")

# As psycopg2's diagnostics call them, and as asyncpg's errors do.
_FIELDS = {
    DiagnosticField.SQLSTATE: ("sqlstate", "sqlstate"),
    DiagnosticField.SEVERITY_NONLOCALIZED: ("severity_nonlocalized", "severity_en"),
    DiagnosticField.MESSAGE_PRIMARY: ("message_primary", "message"),
    DiagnosticField.MESSAGE_HINT: ("message_hint", "hint"),
    DiagnosticField.CONTEXT: ("context", "context"),
    DiagnosticField.CONSTRAINT_NAME: ("constraint_name", "constraint_name"),
}


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """An error, and those inside it that a library has wrapped."""
    for _ in range(6):
        if error is None:
            return
        yield error
        try:
            wrapped = getattr(error, "orig", None)
        except Exception:  # noqa: BLE001 - an error of the application's may have such code of its own
            wrapped = None
        error = wrapped if isinstance(wrapped, BaseException) else error.__cause__


def as_psycopg(error: BaseException) -> psycopg.Error | None:
    """An error of a driver, as psycopg would raise it; None if it is of none that is known."""
    if isinstance(error, psycopg.Error):
        return error
    if type(error).__module__.partition(".")[0] not in _OTHERS:
        return None
    diagnostics = getattr(error, "diag", error)
    found = {
        field: next((v for n in names if (v := getattr(diagnostics, n, None)) is not None), None)
        for field, names in _FIELDS.items()
    }
    info: dict[int, bytes | None] = dict.fromkeys(DiagnosticField)
    info.update({field: str(value).encode() for field, value in found.items() if value is not None})
    code = found[DiagnosticField.SQLSTATE]
    return (_class_without_code(error) if code is None else _class_of(str(code)))(
        str(error), info=info if code else None
    )


def _class_of(sqlstate: str) -> type[psycopg.Error]:
    try:
        return psycopg.errors.lookup(sqlstate)
    except KeyError:
        return psycopg.DatabaseError


def _class_without_code(error: BaseException) -> type[psycopg.Error]:
    """Return the class for an error that the driver has raised itself, by the names of its classes,
    which are those of Python's DB-API.
    """
    names = [cls.__name__ for cls in type(error).__mro__]
    if "DataError" in names:
        return psycopg.DataError
    if {"OperationalError", "InterfaceError"} & set(names):
        return psycopg.OperationalError
    return psycopg.DatabaseError if names[0] == "DatabaseError" else psycopg.ProgrammingError


def is_raised_in(transaction: Any, error: BaseException) -> bool:
    """Return True if an error comes from the connection of a transaction, or from a part of it such
    as a cursor; always if the library does not expose its connection.

    The frames of its traceback show it: an error does not reference its connection, and the state
    of the connection is of no use after the rollback of a savepoint.
    """
    connection = getattr(transaction, "driver_connection", None)
    if connection is None:
        return True
    for one in causes(error):
        trace = one.__traceback__
        while trace is not None:
            frame = trace.tb_frame
            names = _OWNERS.get(frame.f_globals.get("__name__", "").partition(".")[0], ())
            if any(_is_part(frame.f_locals.get(name), connection) for name in names):
                return True
            trace = trace.tb_next
    return False


# Psycopg2 has no frames of its own, so SQLAlchemy's say on what it called it.
_OWNERS = {"psycopg": ("self",), "asyncpg": ("self",), "sqlalchemy": ("cursor", "dbapi_connection")}


def _is_part(owner: Any, connection: Any) -> bool:
    if owner is None:
        return False
    return owner is connection or any(
        getattr(owner, name, None) is connection for name in ("connection", "_connection")
    )
