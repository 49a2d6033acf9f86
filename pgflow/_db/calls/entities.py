"""``sql/coordination/entities.sql``: state under a name and a key."""

from __future__ import annotations

from typing import NamedTuple

from pgflow._db.query import Query, Row


class Opened(NamedTuple):
    """An entity that is locked until the end of the transaction."""

    version: int
    state: str | None
    """Its state as JSON text; None for its first one."""
    at_us: int
    """Time of the database."""
    verdict: str | None
    """Verdict, as JSON text, of the update that was made under the idempotency key before."""


class Stored(NamedTuple):
    """An entity as it is stored."""

    version: int
    state: str | None
    updated_us: int


class Asked(NamedTuple):
    """An update that was asked for by mail."""

    mail_id: int
    name: str
    key: str
    update: str
    args: str
    expect: int | None
    sent_by: str
    idempotency_key: str | None


class Made(NamedTuple):
    """An update that was made, to be written."""

    name: str
    key: str
    from_version: int
    update: str
    args: str
    verdict: str
    state: str | None
    """The new state; None if it changed nothing."""
    run_id: int | None = None
    call: int | None = None
    idempotency_key: str | None = None
    said_by: str | None = None
    mail_id: int | None = None


def open_entity(
    name: str,
    key: str,
    expect: int | None,
    update: str,
    idempotency_key: str | None,
    idle_timeout_ms: int,
) -> Query[Opened]:
    """Lock an entity, for an update."""
    sql = (
        "select version, state, at_us, verdict"
        " from pgflow.open_entity(%s::text, %s::text, %s::bigint, %s::text, %s::text, %s::int)"
    )
    values = (name, key, expect, update, idempotency_key, idle_timeout_ms)
    return Query(sql, values, lambda rows: Opened(*rows[0]))


def update_entity(made: Made) -> Query[int]:
    """Write the outcome of an update of an entity; return its new version."""
    sql = (
        "select pgflow.update_entity(%s::text, %s::text, %s::bigint, %s::text, %s::json, %s::json,"
        " %s::json, %s::bigint, %s::int, %s::text, %s::text, %s::bigint)"
    )
    return Query(sql, made, lambda rows: int(rows[0][0]))


def read_entity(name: str, key: str) -> Query[Stored | None]:
    """State of an entity, without a lock; None if it was never opened."""

    def read(rows: list[Row]) -> Stored | None:
        return Stored(*rows[0]) if rows else None

    sql = "select version, state, updated_us from pgflow.read_entity(%s::text, %s::text)"
    return Query(sql, (name, key), read)


def has_updates(names: list[str]) -> Query[bool]:
    """Ask if an update waits in the mail."""
    return Query("select pgflow.has_updates(%s::text[])", (names,), lambda rows: bool(rows[0][0]))


def take_update(names: list[str], passed_over: list[int]) -> Query[Asked | None]:
    """Take the oldest update in the mail; None if there is none."""

    def read(rows: list[Row]) -> Asked | None:
        return Asked(*rows[0]) if rows else None

    sql = (
        "select mail_id, name, key, update, args, expect, sent_by, idempotency_key"
        " from pgflow.take_update(%s::text[], %s::bigint[])"
    )
    return Query(sql, (names, passed_over), read)


def refuse_update(mail_id: int, error: str) -> Query[None]:
    """Record the refusal of an update by mail."""
    sql = "select pgflow.refuse_update(%s::bigint, %s::json)"
    return Query(sql, (mail_id, error), lambda _: None)
