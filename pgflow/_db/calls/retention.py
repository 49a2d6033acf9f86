"""``sql/ops/retention.sql`` and ``sql/ops/keeping.sql``: removing history, and keeping it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple

from pgflow._db.query import Query


class DroppedHistory(NamedTuple):
    """A batch of history that was removed; the place to go on from, None at the end."""

    runs: int
    partitions: int
    last_root: int | None


def drop_history(ended_before: datetime, most: int, after: int) -> Query[DroppedHistory]:
    """Remove runs that ended before a time, up to this number, from a place on."""
    sql = (
        "select runs, partitions, last_root "
        "from pgflow.drop_history(%s::timestamptz, %s::int, %s::bigint)"
    )
    return Query(sql, (ended_before, most, after), lambda rows: DroppedHistory(*rows[0]))


class Retired(NamedTuple):
    """A batch of runs that workers removed by the rules; the place to go on from, None at the
    end.
    """

    runs: int
    last_root: int | None


class Forgotten(NamedTuple):
    """Result of forgetting a subject. It has no names.

    Attributes:
        removed: Runs that were removed.
        open: Families of runs that were left since they are open.
        held: Families that were left since they are under a legal hold.
        owing: Families that were left since they owe something.
    """

    removed: int
    open: int
    held: int
    owing: int


def retire_runs(most: int, after: int) -> Query[Retired]:
    """Remove runs by the rules of retention, of up to so many families, from a place on."""
    sql = "select runs, last_root from pgflow.retire_runs(%s::int, %s::bigint)"
    return Query(sql, (most, after), lambda rows: Retired(*rows[0]))


def set_retention(
    rule: str,
    keep_seconds: float,
    workflow: str | None,
    status: str | None,
    labels: Mapping[str, str] | None,
    tenant: str | None,
    sent_by: str | None,
) -> Query[None]:
    """Set a rule of retention."""
    sql = (
        "select pgflow.set_retention(%s::text, %s::float8, %s::text, %s::text, %s::jsonb, "
        "%s::text, %s::text)"
    )
    said = None if labels is None else json.dumps(dict(labels))
    params = (rule, keep_seconds, workflow, status, said, tenant, sent_by)
    return Query(sql, params, lambda _: None)


def drop_retention(rule: str) -> Query[bool]:
    """Take back a rule of retention; False if there was none."""
    return Query("select pgflow.drop_retention(%s::text)", (rule,), lambda rows: bool(rows[0][0]))


def hold_history(key: str, why: str, sent_by: str | None) -> Query[None]:
    """Put a legal hold on a run."""
    sql = "select pgflow.hold_history(%s::text, %s::text, sent_by => %s::text)"
    return Query(sql, (key, why, sent_by), lambda _: None)


def release_history(key: str) -> Query[bool]:
    """Release the legal hold of a run; False if there was none."""
    return Query("select pgflow.release_history(%s::text)", (key,), lambda rows: bool(rows[0][0]))


def forget_subject(
    subject: str, why: str, label: str, tenant: str | None, *, is_dry: bool
) -> Query[Forgotten]:
    """Remove runs of a subject, of up to a thousand families."""
    sql = (
        "select removed, open, held, owing from pgflow.forget_subject(%s::text, %s::text, "
        "%s::text, %s::text, is_dry => %s::boolean)"
    )
    return Query(sql, (subject, why, label, tenant, is_dry), lambda rows: Forgotten(*rows[0]))
