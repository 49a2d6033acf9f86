"""Commits that a node of Citus has promised and not yet done.

If a node dies between the two phases, COMMIT succeeds with a warning. The rows appear there when
Citus has recovered the transaction. Until then the next body of the run would not find them: an
UPDATE would change nothing, without an error. So the run waits.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from pgflow._db.failures import REFUSED_AFTER_SECONDS
from pgflow._db.wire import Statement
from pgflow.logs import redacted

log = logging.getLogger("pgflow")

WARNING = "failed to commit transaction on "

IS_UNFINISHED: Statement = (
    (
        "select exists (select from pg_dist_transaction "
        "where gid like 'citus\\_%\\_' || pg_backend_pid() || '\\_%')"
    ),
    (),
)
"""True until Citus has recovered the transactions of this session."""

LOOK_SECONDS = 0.2
"""Pause between two looks: Citus recovers every five seconds at best."""

unfinished: set[int] = set()
"""Connections, by `id`, whose last commit brought the warning."""


def watch_commits(connection: psycopg.AsyncConnection[Any] | psycopg.Connection[Any]) -> None:
    """Note each unfinished commit of this connection."""
    number = id(connection)

    def handle(notice: psycopg.errors.Diagnostic) -> None:
        if (notice.message_primary or "").startswith(WARNING):
            unfinished.add(number)

    connection.add_notice_handler(handle)


def looks(connection: psycopg.AsyncConnection[Any] | psycopg.Connection[Any]) -> Iterator[float]:
    """Yield the seconds to wait between two looks if the commit of this connection is unfinished,
    for as long as the engine waits for a server.
    """
    if id(connection) not in unfinished:
        return
    unfinished.discard(id(connection))
    log.warning("a node of Citus died while a step committed; its run waits for the rows there")
    for _ in range(round(REFUSED_AFTER_SECONDS / LOOK_SECONDS)):
        yield LOOK_SECONDS
    log.error("the rows of a step are still missing on a node of Citus; its run continues")


@contextmanager
def logging_errors() -> Iterator[None]:
    """Log an error of a look. It is none of the transaction, which has committed."""
    try:
        yield
    except psycopg.Error as error:
        log.warning("cannot see whether a step has committed on all nodes: %s", redacted(error))
