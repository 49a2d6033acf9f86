"""Taking events as a relay does, on a server where others work too."""

from __future__ import annotations

from typing import Any, NamedTuple

import psycopg
from servers import wait_until
from sqlkit import one

ME, OTHER = 11, 22
"""Tokens of two workers."""


class Taken(NamedTuple):
    """Answer of take_events."""

    state: str
    wait_seconds: float | None
    events: list[Any]

    @property
    def numbers(self) -> list[int]:
        return [event[0] for event in self.events]


def take(conn: psycopg.Connection[Any], name: str = "r", token: int = ME, most: int = 100) -> Taken:
    """Takes events; asks again while only other databases of the server hold a relay up: another
    test's, or autovacuum.
    """

    def taken() -> Taken | None:
        state, wait, events = conn.execute(
            "select state, wait_seconds, events from pgflow.take_events(%s, %s, 30, %s)",
            (name, token, most),
        ).fetchone()  # type: ignore[misc]
        is_ours = state != "behind" or one(
            conn,
            "select exists (select from pg_stat_activity where datname = current_database() "
            "and backend_type = 'client backend' and backend_xid is not null "
            "and pid <> pg_backend_pid())",
        )
        return Taken(state, wait, events or []) if is_ours else None

    return wait_until(taken, "other databases let the relay read")  # type: ignore[no-any-return]
