"""``sql/runs/start.sql``: starting runs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import timedelta
from typing import LiteralString, NamedTuple

from pgflow._db.query import Query, Row
from pgflow._model.budgets import numbers
from pgflow._model.options import StartOptions


class Started(NamedTuple):
    """A run that exists, by this start or by an earlier one with the same key."""

    key: str
    chain_id: int
    is_new: bool
    lane_id: int
    replaced: int | None = None
    """The chain that has lost its key to this run, and is to be woken since it is cancelled."""

    @property
    def chains(self) -> list[int]:
        """Chains to wake."""
        return [] if self.replaced is None else [self.replaced]


@dataclass(frozen=True)
class StartQuery(Query[Started]):
    """A start, which may also travel to another node as a letter.

    Attributes:
        workflow: Its name.
        input_text: Its input, as JSON.
        key: Its key.
        options: Options of the start; they have the key if the caller named it.
        defaults: As of :func:`start_run`.
        start_id: As of :func:`start_run`.
    """

    workflow: str
    input_text: str
    key: str
    options: StartOptions
    defaults: str | None
    start_id: str | None

    def letter(self, tenant: str, reply_key: str | None = None, node: int | None = None) -> str:
        """Return the start as JSON, for a letter.

        Args:
            tenant: Tenant of the run.
            reply_key: Key of the run that waits for the outcome.
            node: Node of that run.
        """
        options = self.options
        run_at, timeout_seconds, labels, metadata = _shared(options)
        pool, budget = _draws(options) or (None, None)
        said = {
            "workflow": self.workflow, "key": self.key, "tenant": tenant, "queue": options.queue,
            "priority": options.priority, "run_at": None if run_at is None else str(run_at),
            "timeout_seconds": timeout_seconds, "version": options.version,
            "if_taken": options.if_taken, "start_id": self.start_id, "pool": pool,
            "key_seconds": _seconds(options.key_for), "collect": options.collect,
            "debounce_seconds": _seconds(options.debounce),
            "max_wait_seconds": _seconds(options.max_wait), "reply_key": reply_key,
            "reply_node": node,
        }  # fmt: skip
        parts = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in said.items()]
        texts = {
            "input": self.input_text, "labels": labels, "metadata": metadata, "budget": budget,
            "defaults": self.defaults,
        }  # fmt: skip
        parts += [f'"{name}": {text}' for name, text in texts.items() if text is not None]
        return f"{{{', '.join(parts)}}}"


_START_NAMED = (
    "select run_key, run_id, is_new, lane_id from pgflow.start_run(%s::text, %s::json, %s::text, "
    "%s::text, %s::int, %s::timestamptz, %s::float8, %s::jsonb, %s::jsonb, %s::text, null, "
    "%s::text)"
)
"""Of a workflow that is known by its name: the database fills in defaults, and judges the input."""
_START = _START_NAMED.replace("null, %s::text)", "null, %s::text, defaults => '{}')")
_START_AS_SAID = _START_NAMED.replace(
    "select run_key, run_id, is_new, lane_id", "select run_key, run_id, is_new, lane_id, replaced"
).replace("null, %s::text)", "null, %s::text, %s::text, %s::json, %s::uuid)")
"""With what is to be done where the key is taken; most starts say nothing of it, and send less."""
_START_DRAWING = _START_AS_SAID.replace("%s::uuid)", "%s::uuid, %s::text, %s::jsonb)")
"""With the pool that it draws on."""
_START_TIMED = _START_DRAWING.replace(
    "%s::jsonb)", "%s::jsonb, %s::float8, %s::float8, %s::float8, %s::int)"
)
"""With the times of its key."""
_START_MANY = (
    "select run_key, run_id, is_new, lane_id from pgflow.start_runs(%s::text, %s::jsonb, "
    "%s::text, %s::int, %s::timestamptz, %s::float8, %s::jsonb, %s::jsonb, %s::text, %s::text, "
    "%s::boolean, %s::text, %s::json, %s::uuid)"
)
_START_MANY_DRAWING = _START_MANY.replace("%s::uuid)", "%s::uuid, %s::text, %s::jsonb)")
_START_MANY_TIMED = _START_MANY_DRAWING.replace("%s::jsonb)", "%s::jsonb, %s::float8)")


def start_run(
    workflow: str,
    input_text: str,
    key: str,
    options: StartOptions,
    tenant: str = "",
    *,
    defaults: str | None = None,
    start_id: str | None = None,
) -> StartQuery:
    """Start one run.

    Args:
        workflow: Its name.
        input_text: Its input, as JSON.
        key: Its key.
        options: Options of the start; their key does not count.
        tenant: Tenant that it belongs to.
        defaults: Defaults of parameters that are left out, as JSON, where the key may be known.
        start_id: A UUID by which this start, sent again, knows its own run.
    """
    text, params = _statement(workflow, input_text, key, options, tenant, defaults, start_id)

    def read(rows: list[Row]) -> Started:
        return Started(*rows[0])

    return StartQuery(text, params, read, workflow, input_text, key, options, defaults, start_id)


def _statement(
    workflow: str,
    input_text: str,
    key: str,
    options: StartOptions,
    tenant: str,
    defaults: str | None,
    start_id: str | None,
) -> tuple[LiteralString, tuple[object, ...]]:
    params = (
        workflow,
        input_text,
        key,
        options.queue,
        options.priority,
        *_shared(options),
        tenant,
        options.version,
    )
    draws = _draws(options)
    is_plain = defaults in (None, "{}") and options.if_taken == "match"
    if is_plain and not draws and not options.times_key:
        return (_START_NAMED if defaults is None else _START), params
    values = (*params, options.if_taken, defaults, start_id)
    if options.times_key:
        times = (
            _seconds(options.key_for),
            _seconds(options.debounce),
            _seconds(options.max_wait),
            options.collect,
        )
        return _START_TIMED, (*values, *(draws or (None, None)), *times)
    if draws:
        return _START_DRAWING, (*values, *draws)
    return _START_AS_SAID, values


def start_runs(
    workflow: str,
    runs: list[tuple[str, str]],
    options: StartOptions,
    tenant: str = "",
    *,
    keys_are_new: bool = False,
    defaults: str | None = None,
    start_id: str | None = None,
) -> Query[list[Started]]:
    """Start many runs of one workflow, all or none: [(key, input text), ...]. New keys are UUIDs
    that were never sent before.
    """
    params = (
        workflow,
        json.dumps(runs),
        options.queue,
        options.priority,
        *_shared(options),
        tenant,
        options.version,
        keys_are_new,
        options.if_taken,
        defaults,
        start_id,
    )
    draws = _draws(options)
    if options.key_for is not None:
        return Query(
            _START_MANY_TIMED,
            (*params, *(draws or (None, None)), _seconds(options.key_for)),
            _read_all,
        )
    if draws:
        return Query(_START_MANY_DRAWING, (*params, *draws), _read_all)
    return Query(_START_MANY, params, _read_all)


def _draws(options: StartOptions) -> tuple[str | None, ...]:
    """Return the pool of a run and the limits of its own; nothing if it has neither."""
    if options.pool is None and options.budget is None:
        return ()
    return options.pool, None if options.budget is None else numbers(options.budget)


def _read_all(rows: list[Row]) -> list[Started]:
    return [Started(*row) for row in rows]


def _seconds(span: timedelta | None) -> float | None:
    return None if span is None else span.total_seconds()


def _shared(options: StartOptions) -> tuple[object, ...]:
    return (
        options.run_at,
        _seconds(options.timeout),
        json.dumps(options.labels) if options.labels else None,
        json.dumps(options.metadata) if options.metadata else None,
    )
