"""``sql/again/fork.sql``: forks, and generations that take the place of others."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any, Literal, TypedDict

from pgflow._db.calls.start import Started
from pgflow._db.query import Query, Row

DroppedEffects = Literal["reuse", "repeat", "compensate"]
"""Treatment of the outside effects of a dropped part of a journal."""


class AgainOptions(TypedDict, total=False):
    """Options that a rewind, a restart and a fork share.

    Attributes:
        effects: Treatment of the steps, transactions, effects and children that the dropped part
            completed: ``"reuse"`` hands their results to the new run where it makes the same call
            with the same arguments, ``"repeat"`` does them again under new keys, ``"compensate"``
            compensates the effects, the last first, before the run continues; not for a fork.
        attempts: Maximum attempts of each step from here on, in place of the declared one.
        timeout: A new deadline, from now; by default the old one, unless it has passed.
        why: The reason, kept in the history.
        by: Name of the person or service that asks; the database role by default.
    """

    effects: DroppedEffects | None
    attempts: int | None
    timeout: timedelta | None
    why: str
    by: str | None


class PlaceOptions(AgainOptions, total=False):
    """Options of a rewind and a restart.

    Attributes:
        children: Of open children that the dropped part has started: ``"refuse"`` to go on, which
            is the default, or ``"cancel"`` them.
    """

    children: Literal["refuse", "cancel"]


class ForkOptions(AgainOptions, total=False):
    """Options of a fork.

    Attributes:
        at: Number of units of the journal that it begins with: all if neither this nor
            ``from_step`` is given.
        from_step: Begins just before the last call of this step;
            of the last that failed, if one did.
        edit: Another result for the last unit that is kept,
            which must be that of a step or a decision.
        input: Another input, an object of parameter names: only with ``at=0``.
        with_mail: True to give it copies of the messages that wait, and of those that the part left
            out had taken.
        generation: Of which generation; the newest if not given.
        labels: Other labels.
    """

    at: int | None
    from_step: str | None
    edit: Any
    input: dict[str, Any] | None
    with_mail: bool
    generation: int | None
    labels: dict[str, str] | None


def fork_run(
    key: str,
    new_key: str | None,
    edit: str | None,
    input_text: str | None,
    options: ForkOptions,
) -> Query[Started]:
    """Start a fork; ``edit`` and ``input_text`` are JSON text."""
    sql = (
        "select run_key, run_id, is_new, lane_id from pgflow.fork_run(%s::text, %s::text, "
        "at_seq => %s::int, from_step => %s::text, edit => %s::json, input => %s::json, "
        "effects => %s::text, with_mail => %s::boolean, generation => %s::int, "
        "labels => %s::jsonb, attempts => %s::int, timeout_seconds => %s::float8, "
        "why => %s::text, sent_by => %s::text)"
    )
    labels = options.get("labels")
    params = (
        key,
        new_key,
        options.get("at"),
        options.get("from_step"),
        edit,
        input_text,
        options.get("effects"),
        options.get("with_mail", False),
        options.get("generation"),
        None if labels is None else json.dumps(labels),
        *_shared(options, "forked"),
    )
    return Query(sql, params, lambda rows: Started(*rows[0]))


def rewind_run(
    key: str,
    to_seq: int | None,
    from_step: str | None,
    edit: str | None,
    options: PlaceOptions,
) -> Query[Started]:
    """Rewind a run; ``edit`` is JSON text."""
    sql = (
        "select run_id, lane_id from pgflow.rewind_run(%s::text, to_seq => %s::int, "
        "from_step => %s::text, edit => %s::json, effects => %s::text, children => %s::text, "
        "attempts => %s::int, timeout_seconds => %s::float8, why => %s::text, "
        "sent_by => %s::text)"
    )
    params = (
        key,
        to_seq,
        from_step,
        edit,
        options.get("effects"),
        options.get("children", "refuse"),
        *_shared(options, "rewound"),
    )
    return Query(sql, params, lambda rows: _renewed(key, rows))


def restart_run(key: str, input_text: str | None, options: PlaceOptions) -> Query[Started]:
    """Restart a run; ``input_text`` is JSON text."""
    sql = (
        "select run_id, lane_id from pgflow.restart_run(%s::text, input => %s::json, "
        "effects => %s::text, children => %s::text, attempts => %s::int, "
        "timeout_seconds => %s::float8, why => %s::text, sent_by => %s::text)"
    )
    params = (
        key,
        input_text,
        options.get("effects"),
        options.get("children", "refuse"),
        *_shared(options, "restarted"),
    )
    return Query(sql, params, lambda rows: _renewed(key, rows))


def _shared(options: AgainOptions, why: str) -> tuple[object, ...]:
    timeout = options.get("timeout")
    seconds = None if timeout is None else timeout.total_seconds()
    return options.get("attempts"), seconds, options.get("why", why), options.get("by")


def _renewed(key: str, rows: list[Row]) -> Started:
    run_id, lane_id = rows[0]
    return Started(key, run_id, True, lane_id)
