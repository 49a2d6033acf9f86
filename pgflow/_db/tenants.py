"""Sessions that act for one tenant: the setting, and the views that such a session reads.

The setting ``pgflow.tenant`` names the tenant (`sql/core/tenants.sql`). A client of a tenant sets
it for one transaction at a time, since connections are shared and may come from a pooler. A process
that serves one tenant only, such as a command, gets it with its connection string.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, LiteralString

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from pgflow.errors import InvalidArgument

OWN_VIEWS = (
    *("batches", "charges", "decisions", "effects", "gate_answers", "gates", "legal_holds"),
    *("messages",),
    *("obligations", "orders", "provenance", "repeated_steps", "runs", "seals", "steps"),
    *("tenant_grants", "timeline", "traces", "undelivered_messages", "updates"),
)
"""The views of which there is another, ``own_NAME``, with the rows of the session's tenant."""

_VIEW = re.compile(rf"\bpgflow\.({'|'.join(OWN_VIEWS)})\b(?!\()")
_SETTING = "pgflow.tenant"


@lru_cache(maxsize=512)
def of_own(sql: LiteralString) -> LiteralString:
    """Return a statement that reads the rows of the session's tenant instead of all."""
    return _VIEW.sub(r"pgflow.own_\1", sql)


def text_on(
    connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any], sql: LiteralString
) -> LiteralString:
    """Return a statement as it is run on a connection, which may be of a tenant."""
    return of_own(sql) if _SETTING in connection.info.options else sql


def check_tenant(name: str) -> str:
    """Return the name of a tenant.

    Raises:
        InvalidArgument: It is empty or longer than 255 bytes.
    """
    if not 1 <= len(name.encode()) <= 255:
        raise InvalidArgument(f"the name of a tenant must be 1 to 255 bytes long, not {name!r}")
    return name


def dsn_of_tenant(dsn: str, tenant: str) -> str:
    """Return the connection string of sessions that act for a tenant.

    Raises:
        InvalidArgument: The name is empty or too long.
    """
    name = re.sub(r"([\\\s])", r"\\\1", check_tenant(tenant))
    options = f"{conninfo_to_dict(dsn).get('options') or ''} -c {_SETTING}={name}"
    return make_conninfo(dsn, options=options.strip())
