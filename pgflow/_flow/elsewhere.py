"""Children on other nodes of a cluster.

Such a child is two runs. One is a child of its parent like any other, on the parent's node, of the
workflow here: it starts the other by a letter, and waits for the letter with the outcome. So
results, cancels, close policies, forks and rewinds of the parent are those of a child here. The
values of the other run pass through as they were recorded.
"""

from __future__ import annotations

import asyncio
import json
from functools import cache
from typing import Any

import psycopg

from pgflow._db.calls import cluster, start
from pgflow._db.query import OnAsyncConnection, run_on_async
from pgflow._flow.scope import StepScope, current
from pgflow._flow.signals import Signal
from pgflow._flow.step import own_transaction
from pgflow._flow.workflow import Workflow, workflow
from pgflow._model.codecs import ANYTHING
from pgflow._model.envelopes import open_text, seal_metadata
from pgflow._model.exceptions import Recorded
from pgflow._model.options import StartOptions
from pgflow.errors import InvalidArgument, KeyConflict, RunNotFound

ELSEWHERE = "pgflow.elsewhere"
"""Name of the workflow, and of the queue that each worker of a cluster serves."""


def request_of(workflow_name: str, input_text: str, options: StartOptions) -> dict[str, Any]:
    """Return the input of the run that stands for a child on another node.

    Args:
        workflow_name: Workflow of the child.
        input_text: Its input, as JSON.
        options: Its options.

    Raises:
        InvalidArgument: An option is one that cannot travel.
    """
    for name in ("run_at", "pool", "budget"):
        if getattr(options, name) is not None:
            raise InvalidArgument(f"a child on another node takes no {name}=")
    return {
        "name": workflow_name,
        "text": input_text,
        "options": {
            "key": options.key,
            "queue": options.queue,
            "priority": options.priority,
            "timeout": None if options.timeout is None else options.timeout.total_seconds(),
            "labels": options.labels,
            "metadata": options.metadata,
            "version": options.version,
            "node": options.node,
            "near": None if options.near is None else list(options.near),
        },
    }


def key_of(proxy_key: str, given: str | None) -> str:
    """Return the key of a run on another node: the one that was given, or one made from the key of
    the run that stands for it.
    """
    return given or f"{proxy_key[:118]}@elsewhere"


async def _start(
    connection: psycopg.AsyncConnection[Any], name: str, text: str, given: dict[str, Any]
) -> str:
    """Start the run, and return its key."""
    scope = current.get()
    assert isinstance(scope, StepScope)
    claim, envelopes = scope.claim, scope.claim.envelopes
    key = key_of(claim.key, given["key"])
    if envelopes is not None:
        text = envelopes.seal_compared(text, f"the input of workflow {name}", key)
    options = StartOptions(
        key=key,
        queue=given["queue"],
        priority=given["priority"],
        timeout=given["timeout"],
        labels=given["labels"],
        metadata=seal_metadata(envelopes, given["metadata"]) or {},
        version=given["version"],
    )
    executor = OnAsyncConnection(connection)
    node = await run_on_async(executor, cluster.this_node())
    starting = start.start_run(name, text, key, options, defaults="{}")
    near = given["near"]
    posting = cluster.post_start(
        starting.letter(claim.tenant, claim.key, node),
        given["node"],
        None if near is None else (near[0], near[1]),
    )
    await run_on_async(executor, posting)
    return key


async def _cancel(connection: psycopg.AsyncConnection[Any], key: str) -> None:
    scope = current.get()
    assert isinstance(scope, StepScope)
    claim = scope.claim
    asking = cluster.cancel_run(
        key, "the run that waits for it is cancelled", claim.tenant, "pgflow"
    )
    sent = await run_on_async(OnAsyncConnection(connection), asking)
    scope.chains_to_wake += tuple(sent.chains)


_REFUSALS = (RunNotFound, InvalidArgument)


@cache
def stand_in() -> Workflow[..., Any]:
    """Return the workflow of runs that stand for one of another node. Few apps are of a cluster, so
    it is made for the first.
    """
    answer: Signal[Any] = Signal("pgflow.answer", object)
    starting = own_transaction(_start, "start_elsewhere", _REFUSALS)
    cancelling = own_transaction(_cancel, "cancel_elsewhere", _REFUSALS)

    @workflow(name=ELSEWHERE, queue=ELSEWHERE)
    async def elsewhere(name: str, text: str, options: dict[str, Any]) -> Any:
        """Stand for a run of another node: start it, and end as it ends."""
        key = await starting.aio(name, text, options)
        try:
            outcome = await answer.wait()
        except asyncio.CancelledError:
            await cancelling.aio(key)
            await answer.wait()
            raise
        return _ended(outcome)

    return elsewhere


def _ended(answer: dict[str, Any]) -> Any:
    """Return the value of the other run, or raise its error."""
    scope = current.get()
    envelopes = None if scope is None else scope.claim.envelopes
    if answer["status"] == "refused":
        error = KeyConflict if answer["code"] == KeyConflict.sqlstate else InvalidArgument
        raise error(answer["error"])
    if answer["status"] == "cancelled":
        raise asyncio.CancelledError(answer["reason"] or "cancelled")
    what = "the outcome of a run of another node"
    if answer["status"] == "completed":
        return ANYTHING.decode(open_text(envelopes, answer["output"] or "null", what), what)
    raise Recorded(json.loads(open_text(envelopes, answer["error"] or "{}", what)))
