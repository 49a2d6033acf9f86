"""Declarations of an app, as the database takes them from its first process."""

from __future__ import annotations

import json
import logging
from typing import Any

import psycopg

from pgflow._db.failures import database_error
from pgflow._flow.schedules import declarations_of
from pgflow._worker.options import Definitions
from pgflow._worker.registration import code_of
from pgflow.errors import MissingGrant

log = logging.getLogger("pgflow")


def declarations(definitions: Definitions) -> str | None:
    """Return pools, rules of queues, relays, schedules and payloads of signals as JSON; None if the
    app declares none of these.
    """
    workflows = definitions.workflows
    declared: dict[str, Any] = {
        "pools": [json.loads(pool.declaration(), parse_float=str) for pool in definitions.pools],
        "queues": [queue.declaration() for queue in definitions.queues],
        "relays": [
            {
                "name": relay.name,
                "topics": list(relay.topics),
                "target": relay.target,
                "start": relay.start,
            }
            for relay in definitions.relays.values()
        ],
        "schedules": declarations_of(workflows.values()),
        "codes": [
            list(code_of(name, workflow))
            for name, workflow in workflows.items()
            if workflow.signals
        ],
    }
    return json.dumps(declared) if any(declared.values()) else None


def forgive(error: Exception, missing: list[str]) -> None:
    """Continue without declaring if this process may not: its role lacks the right, or the server
    is read-only. Raise any other error.
    """
    cause = database_error(error)
    if isinstance(error, MissingGrant):
        log.warning(
            "%s: not set yet, and this process may not: %s. A worker of the app sets it too",
            ", ".join(missing) or "what the app declares",
            error,
        )
    elif not isinstance(cause, psycopg.errors.ReadOnlySqlTransaction):
        raise error
