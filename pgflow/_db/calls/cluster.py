"""``pgflow/schema/cluster/node.sql``: nodes of a cluster, the directory of keys, letters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pgflow._db.calls.mail import Sent
from pgflow._db.query import Query, Row


class Node(NamedTuple):
    """A node of a cluster, and where its database is."""

    node: int
    host: str
    port: str
    dbname: str
    state: str


class Picked(NamedTuple):
    """Letters that were leased, as JSON, and the lowest number that may be on its way."""

    low: int
    letters: str


class Posted(Sent):
    """A message that went by letter: no run of this node is to be woken."""

    @property
    def chains(self) -> list[int]:
        """No chains."""
        return []

    @property
    def lanes(self) -> list[int]:
        """No lanes."""
        return []


def this_node() -> Query[int]:
    """Return the number of this node."""
    return Query("select pgflow_cluster.me()", (), lambda rows: int(rows[0][0]))


def list_nodes() -> Query[list[Node]]:
    """Return the nodes, by number."""
    sql = "select node, host, port, dbname, state from pgflow_cluster.node order by node"
    return Query(sql, (), lambda rows: [Node(*row) for row in rows])


def claim(
    key: str, tenant: str, node: int | None, near: tuple[str, str] | None
) -> Query[tuple[int, int]]:
    """Give a key to a node, unless one has it; return which, and the number of this node."""
    sql = (
        "select pgflow_cluster.claim(%s::text, %s::text, %s::int, %s::text, %s::text), "
        "pgflow_cluster.me()"
    )
    params = (key, tenant, node, *(near or (None, None)))
    return Query(sql, params, lambda rows: (int(rows[0][0]), int(rows[0][1])))


def claim_all(
    keys: Sequence[str], tenant: str, node: int | None, near: tuple[str, str] | None
) -> Query[int]:
    """Give keys to one node; return which."""
    sql = "select pgflow_cluster.claim_all(%s::text[], %s::text, %s::int, %s::text, %s::text)"
    params = (list(keys), tenant, node, *(near or (None, None)))
    return Query(sql, params, lambda rows: int(rows[0][0]))


def claim_beside(key: str, new_key: str) -> Query[None]:
    """Give a key to the node of another run."""
    sql = "select pgflow_cluster.claim_beside(%s::text, %s::text)"
    return Query(sql, (key, new_key), lambda _: None)


def where_is(near: tuple[str, str]) -> Query[int]:
    """Return the node of the rows of a table that have a value."""
    sql = "select pgflow_cluster.where_is(%s::text, %s::text)"
    return Query(sql, near, lambda rows: int(rows[0][0]))


def node_of(key: str, tenant: str) -> Query[int | None]:
    """Return the node that a key was given to."""
    sql = "select pgflow_cluster.node_of(%s::text, %s::text)"
    return Query(sql, (key, tenant), lambda rows: rows[0][0])


def post_start(letter: str, node: int | None, near: tuple[str, str] | None = None) -> Query[int]:
    """Start a run on the node of its key, by letter; return the node."""
    sql = "select pgflow_cluster.post_start(%s::json, %s::int, %s::text, %s::text)"
    params = (letter, node, *(near or (None, None)))
    return Query(sql, params, lambda rows: int(rows[0][0]))


def _read_posted(rows: list[Row]) -> Sent:
    chain, *rest = rows[0]
    return Posted(0, None, *rest) if chain is None else Sent(chain, None, *rest)


def send_signal(
    key: str,
    name: str,
    payload: str,
    tenant: str = "",
    sent_by: str | None = None,
    *,
    idempotency_key: str | None = None,
) -> Query[Sent]:
    """Send a signal to a run of any node, in any transaction."""
    sql = (
        "select chain_id, coalesce(message_id, 0), ended_as, is_new "
        "from pgflow_cluster.send_signal("
        "%s::text, %s::text, %s::json, %s::text, %s::text, %s::text)"
    )
    return Query(sql, (key, name, payload, tenant, sent_by, idempotency_key), _read_posted)


def cancel_run(
    key: str, why: str, tenant: str = "", sent_by: str | None = None, *, force: bool = False
) -> Query[Sent]:
    """Cancel a run of any node, in any transaction."""
    sql = "select pgflow_cluster.cancel_run(%s::text, %s::text, %s::text, %s::text, %s::boolean)"
    return Query(sql, (key, why, tenant, sent_by, force), _read_posted)


def due() -> Query[list[int]]:
    """Return the nodes for which letters are due."""
    return Query("select pgflow_cluster.due()", (), lambda rows: list(rows[0][0]))


def pick(receiver: int, most: int, lease_seconds: float) -> Query[Picked | None]:
    """Lease letters to a node; None if there are none, or another courier is picking."""
    sql = "select low, letters::text from pgflow_cluster.pick(%s::int, %s::int, %s::float8)"
    return Query(
        sql, (receiver, most, lease_seconds), lambda rows: Picked(*rows[0]) if rows else None
    )


def receive(sender: int, picked: Picked) -> Query[str]:
    """Have a node take letters; return its verdicts, as JSON."""
    sql = "select pgflow_cluster.receive(%s::int, %s::bigint, %s::json)::text"
    return Query(sql, (sender, picked.low, picked.letters), lambda rows: str(rows[0][0]))


def settle(verdicts: str) -> Query[None]:
    """Strike out letters by the verdicts on them."""
    return Query("select pgflow_cluster.settle(%s::json)", (verdicts,), lambda _: None)


def sweep() -> Query[int]:
    """Free keys of this node that no run has had for long; return how many."""
    return Query("select pgflow_cluster.sweep()", (), lambda rows: int(rows[0][0]))
