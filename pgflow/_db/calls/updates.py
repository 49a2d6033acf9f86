"""``sql/runs/updates.sql``: updates of running workflows, and what these have published."""

from __future__ import annotations

from typing import NamedTuple

from pgflow._db.query import Query


class Sent(NamedTuple):
    """An update that is in the mailbox of a chain, which is to be woken after the commit."""

    update_id: str
    chain_id: int
    is_new: bool

    @property
    def chains(self) -> list[int]:
        """Chains to wake."""
        return [self.chain_id]

    @property
    def lanes(self) -> list[int]:
        """Lanes whose workers to notify: none."""
        return []


class Reply(NamedTuple):
    """Answer to an update: ``waiting`` or a code, and a value or an error as JSON text."""

    status: str
    value: str | None
    error: str | None


def send_update(
    key: str,
    name: str,
    args: str,
    update_id: str,
    tenant: str = "",
    sent_by: str | None = None,
    reply_to: str | None = None,
    reply_as: str | None = None,
) -> Query[Sent]:
    """Send an update, in any transaction. The run with the key ``reply_to`` gets the answer as a
    signal named ``reply_as``.
    """
    sql = (
        "select update_id, chain_id, is_new from pgflow.send_update("
        "%s::text, %s::text, %s::json, %s::text, %s::text, %s::text, %s::text, %s::text)"
    )
    given = key, name, args, update_id, tenant, sent_by, reply_to, reply_as
    return Query(sql, given, lambda rows: Sent(*rows[0]))


def update_reply(key: str, update_id: str, tenant: str = "") -> Query[Reply]:
    """Return the outcome of an update."""
    sql = (
        "select status, value::text, error::text "
        "from pgflow.update_reply(%s::text, %s::text, %s::text)"
    )
    return Query(sql, (key, update_id, tenant), lambda rows: Reply(*rows[0]))


def query(key: str, name: str, tenant: str = "") -> Query[str]:
    """Return a value that a run has published, as JSON text."""
    return Query(
        "select pgflow.query(%s::text, %s::text, %s::text)::text",
        (key, name, tenant),
        lambda rows: str(rows[0][0]),
    )
