"""What an exception means to whoever typed the command: an exit code and one line."""

from __future__ import annotations

import psycopg

from pgflow._io import database_error, is_infrastructure
from pgflow.dsn import redact_dsn
from pgflow.errors import PgflowError, RunCancelled, RunFailed, RunStuck

FAILED = 1
USAGE = 2
NEEDS_A_PERSON = 4
UNREACHABLE = 69


def explain(error: BaseException) -> tuple[int, str | None]:
    """Exit code and line for an error; no line for one that is a bug of ours."""
    cause = database_error(error)
    if isinstance(error, RunStuck):
        return NEEDS_A_PERSON, _line(error)
    if isinstance(error, (RunFailed, RunCancelled)):
        return FAILED, _line(error)
    if isinstance(error, PgflowError):
        return USAGE, _line(error)
    if cause is not None and is_infrastructure(cause):
        return UNREACHABLE, f"the database cannot be reached: {_line(cause)}. Check PGFLOW_DSN, --dsn and the server"
    if isinstance(cause, psycopg.ProgrammingError) and cause.sqlstate is None:
        return USAGE, f"the connection string cannot be read: {_line(cause)}"
    if cause is not None:
        return FAILED, f"the database refused: {_line(cause)}"
    return FAILED, None


def _line(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return redact_dsn(text) if "://" in text or "password=" in text else text
