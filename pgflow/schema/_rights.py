"""Missing rights of a role: errors that name the grant."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from psycopg.conninfo import conninfo_to_dict

from pgflow._db.failures import database_error
from pgflow._db.tenants import OWN_VIEWS
from pgflow.assets import own_assets
from pgflow.errors import MissingGrant, PgflowError

_FROM_LEAST = (
    "pgflow_auditor",
    "pgflow_approver",
    "pgflow_speaker",
    "pgflow_declarer",
    "pgflow_client",
    "pgflow_operator",
    "pgflow_worker",
)


def refusal(error: psycopg.Error, role: str | None) -> MissingGrant | None:
    """Return what to say of a right that a role lacks to call or read something of ours, with the
    grant that helps; None if the error is of something else.

    Args:
        error: The error of one of our own statements.
        role: Name of the role; None if it is not known.
    """
    if error.sqlstate != "42501":
        return None
    who, to = (f"role {role}", role) if role else ("the role of this connection", "it")
    message = error.diag.message_primary or str(error)
    grants = own_assets().grants
    named = [word for word in re.findall(r"\w+", message) if word in grants]
    if named:
        roles = grants[named[-1]]
        least = next((one for one in _FROM_LEAST if one in roles), roles[0])
        others = [one for one in roles if one != least]
        return MissingGrant(
            f"{who} may not use pgflow.{named[-1]}: grant {least} to {to}"
            + (f" (or {', '.join(others)})" if others else "")
            + (", or name the tenant that it acts for" if named[-1] in OWN_VIEWS else "")
        )
    if re.search(r"\bpgflow\b", message):
        return MissingGrant(
            f"{who} may use nothing of the schema pgflow: grant pgflow_client to {to} (or "
            "pgflow_worker, pgflow_operator, pgflow_auditor)"
        )
    return None


@contextmanager
def naming_refusals(connection: object) -> Iterator[None]:
    """Raise :class:`MissingGrant`, with the grant, if the role of a connection lacks a right. Do
    not use it around code of the application.

    Args:
        connection: A psycopg connection, a connection of another library, whose role is unknown
            here, or a connection string.
    """
    try:
        yield
    except Exception as error:
        raise_refusal(error, connection)
        raise


def raise_refusal(error: Exception, connection: object) -> None:
    """Raise :class:`MissingGrant` for an error of the database that says that a right is lacking;
    see :func:`naming_refusals`.
    """
    cause = None if isinstance(error, PgflowError) else database_error(error)
    if cause is not None and (ours := refusal(cause, _role_of(connection))) is not None:
        raise ours from error


def _role_of(connection: object) -> str | None:
    if isinstance(connection, str):
        given = conninfo_to_dict(connection)
        user, options = given.get("user"), str(given.get("options") or "")
    elif isinstance(connection, (psycopg.Connection, psycopg.AsyncConnection)):
        user, options = connection.info.user, connection.info.options
    else:
        return None
    found = re.search(r"-c\s*role=(\w+)", options)
    return found[1] if found else (str(user) if user else None)
