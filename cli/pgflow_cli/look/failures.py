"""Ends of commands: one table of exit codes, and one line for every mistake.

A command that has done its work ends with 0. Whatever else happens is an exception, and `explain`
says which code and which line it is worth. An exception without a line is a bug of ours and keeps
its traceback.
"""

from __future__ import annotations

import errno
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager

DONE = 0
FAILED = 1
USAGE = 2
TIME_LIMIT = 3
NEEDS_A_PERSON = 4
UNREACHABLE = 69
INTERRUPTED = 130

MEANINGS = {
    DONE: "done",
    FAILED: "a run failed, or a check found something",
    USAGE: "usage or bad input",
    TIME_LIMIT: "a time limit was reached with work left",
    NEEDS_A_PERSON: "a person is needed: a run is stuck, or waits at a gate",
    UNREACHABLE: "the database cannot be reached, or is in trouble",
    INTERRUPTED: "interrupted with Ctrl-C",
}
"""The exit codes of every command."""


class Mistake(Exception):
    """Misuse of a command. The message names the fix."""


@contextmanager
def mistaken(*kinds: type[Exception]) -> Iterator[None]:
    """Make mistakes of errors of these kinds, with the same messages."""
    try:
        yield
    except kinds as error:
        raise Mistake(str(error)) from error


@contextmanager
def opening(what: object, verb: str = "read") -> Iterator[None]:
    """Make mistakes of errors of a file that the command line names.

    Args:
        what: Words for it.
        verb: ``read`` or ``written``.
    """
    try:
        yield
    except (OSError, ValueError) as error:  # no such file, no name of one, or no text in it
        is_named = isinstance(error, OSError) and str(error.filename) in str(what)
        why = error.strerror if is_named and isinstance(error, OSError) else error
        raise Mistake(f"{what} cannot be {verb}: {why}") from error


class Ended(Exception):
    """End of a command with this exit code. Its output is already printed."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


EXTRAS = {
    "jinja2": "web", "markdown_it": "files", "mcp": "mcp", "pyarrow": "parquet", "ruamel": "files",
    "starlette": "web", "textual": "tui", "uvicorn": "web",
}  # fmt: skip
"""Extras of pgflow, by the module that each brings to the commands that need it."""


_BAD_OPTION = re.compile(
    r"invalid (?:\w+ value|port number): .+|invalid integer value .+ for connection option .+"
    r"|bad value for \w+: .+"
)
"""Words of libpq and psycopg for an option of a connection string, before they reach a server."""


def explain(error: BaseException) -> tuple[int, str | None]:
    """Exit code and line for an error; no line for one that is a bug of ours."""
    if isinstance(error, Mistake):
        return USAGE, _line(error)
    unsent = error.__cause__ if isinstance(error.__cause__, UnicodeEncodeError) else error
    if isinstance(unsent, UnicodeEncodeError) and (what := _no_text(unsent.object[unsent.start])):
        return USAGE, f"a text that was given is not UTF-8: it holds {what}"
    if isinstance(error, OSError) and error.errno in (errno.ENAMETOOLONG, errno.EACCES):
        return USAGE, f"{str(error.filename)[:100]}: {error.strerror}"
    if isinstance(error, ImportError) and (extra := EXTRAS.get((error.name or "").split(".")[0])):
        return USAGE, f'this needs {error.name}: pip install "pgflow-engine[{extra}]"'
    if not {"psycopg", "pgflow.errors"} & sys.modules.keys():
        return FAILED, None
    return _explain_known(error)


_OF_CITUS = "connection to the remote node "


def _explain_known(error: BaseException) -> tuple[int, str | None]:
    import psycopg

    from pgflow.errors import PgflowError, RunCancelled, RunFailed, RunStuck, WorkerFailed
    from pgflow.inspect.connecting import database_error, is_infrastructure

    cause = database_error(error)
    if isinstance(error, RunStuck):
        return NEEDS_A_PERSON, _line(error)
    if isinstance(error, (RunFailed, RunCancelled, WorkerFailed)):
        return FAILED, _line(error)
    if isinstance(error, PgflowError):
        return USAGE, _in_commands(_line(error))
    if isinstance(cause, psycopg.DataError):
        return USAGE, f"the database cannot take that: {_line(cause)}"
    if isinstance(cause, psycopg.errors.InsufficientPrivilege):
        text = f"this role may not do that: {_line(cause)}. `pgflow doctor` lists what it may do"
        return USAGE, text
    if cause is not None and (wrong := _BAD_OPTION.search(_line(cause))):
        return USAGE, f"the connection string is wrong: {wrong[0]}. Check --dsn and PGFLOW_DSN"
    if cause is not None and is_infrastructure(cause):
        if cause.sqlstate is not None and not cause.sqlstate.startswith("08"):  # it has answered
            return UNREACHABLE, f"the database was reached, and is in trouble: {_line(cause)}"
        if _OF_CITUS in _line(cause):
            text = f"the database was reached, and asked a node of Citus in vain: {_line(cause)}"
            return UNREACHABLE, text
        _, refuses, why = _line(cause).rpartition("failed: FATAL: ")
        if refuses:
            text = f"the server refuses the connection: {why.strip()}. Check --dsn and PGFLOW_DSN"
            return UNREACHABLE, text
        text = f"the database cannot be reached: {_unreached(cause)}"
        return UNREACHABLE, f"{text}. Check --dsn, PGFLOW_DSN and the server"
    if cause is not None:
        return FAILED, f"the database refused: {_line(cause)}"
    return FAILED, None


def _no_text(character: str) -> str | None:
    """Return a description of a character that no encoding can write; None if it can be written.
    The text around it may be a secret.
    """
    number = ord(character)
    if 0xDC80 <= number <= 0xDCFF:
        # As Python keeps those of a command line that it cannot read.
        return f"the byte 0x{number - 0xDC00:02x}"
    return f"the lone surrogate U+{number:04X}" if 0xD800 <= number <= 0xDFFF else None


def _unreached(error: BaseException) -> str:
    """Return libpq's message without its question: the advice comes after it once."""
    from pgflow.inspect.connecting import is_refused_as_standby

    if is_refused_as_standby(error):
        return (
            "no server that is named takes writes. Name the primary, "
            "or say target_session_attrs=any to read from a standby"
        )
    return _line(error).partition(" Is the server running ")[0]


_LISTED = {"gates": "gates", "obligations": "owed"}
"""Commands by the views that hints of the database name, for those who write SQL."""


def _in_commands(line: str) -> str:
    for view, command in _LISTED.items():
        line = line.replace(f"; pgflow.{view} lists ", f"; `pgflow {command}` lists ")
    return line


# The place in a statement that the user did not write.
_PLACE = re.compile(r"\nLINE \d+: .*\n *\^")


def _line(error: BaseException) -> str:
    text = " ".join(_PLACE.sub("", str(error)).split()) or type(error).__name__
    from pgflow.texts import hide_secrets

    return hide_secrets(text).rstrip(".")
