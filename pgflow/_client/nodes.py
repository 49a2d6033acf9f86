"""Starts in an open transaction of the application, on any node of a cluster."""

from __future__ import annotations

from pgflow._db.calls import cluster, start
from pgflow._db.query import Steps


def start_steps(starting: start.StartQuery, tenant: str) -> Steps[start.Started]:
    """Return the steps of a start: here, or by a letter that is part of the transaction.

    Args:
        starting: The start.
        tenant: Tenant of the run.
    """
    options = starting.options
    if options.key is None and not options.is_placed:
        here: start.Started = yield starting
        return here
    home, own = yield cluster.claim(starting.key, tenant, options.node, options.near)
    if home == own:
        here = yield starting
        return here
    yield cluster.post_start(starting.letter(tenant), home)
    # Whether it is new is decided there; no run is to be woken here.
    return start.Started(starting.key, 0, False, 0)
