"""Runs: a page of those that a filter chooses, counts of them, one run by its key, its kin.

Conditions are fixed texts with placeholders, and the columns are those of the row classes. A value
that you pass only ever travels as a parameter.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import groupby
from typing import Any, Literal, LiteralString, get_args

from pgflow._db.calls import result, updates
from pgflow._db.calls.updates import Reply
from pgflow._db.query import Query, Row
from pgflow._model.kinds import Status
from pgflow.errors import InvalidArgument, RunNotFound
from pgflow.inspect.listing import (
    COUNTED,
    EXAMPLES,
    After,
    Listing,
    cut,
    one_more,
    page,
    parse_place,
)
from pgflow.inspect.question import (
    Question,
    Steps,
    all_rows,
    first_row,
    once,
    only_row,
    question,
    select,
    statement,
)

STATUSES: tuple[str, ...] = get_args(Status)
"""Each status that a run may have, in the order of its life."""

RECENT_RUNS = 20_000
"""Number of newest runs to scan where no index helps. The statements below repeat it."""

# ---------------------------------------------------------------- rows


@dataclass(frozen=True)
class RunRow:
    """A run as it is now; of a chain of generations the newest. A row of the view ``pgflow.runs``.

    Attributes:
        key: The key given at the start, or a generated one.
        status: ``queued``, ``running``, ``waiting``, ``paused``, ``stuck``, ``completed``,
            ``failed`` or ``cancelled``.
        workflow: Name of the workflow.
        queue: Name of its queue.
        labels: Strings by name, to find runs by; None if it has none.
        priority: Lower numbers are claimed first, among runs of one workflow and queue.
        attempt: Claims since the run last made progress; None where it is waiting or has ended.
        worker_id: The worker that holds it; None if none does.
        generation: 1, and one more each time the run continued as new, was rewound or restarted.
        created_at: Time of the start.
        since: Time since which it has this status.
        run_at: Time at which it may begin, if that is later than its start.
        deadline_at: Time at which it is cancelled if it has not ended; None for never.
        finished_at: Time of the end; None if it has not ended.
        why: Reason of its status in one text: the wait, the lack of a worker, the reason of a pause
            or cancel, the trouble, or the error of a failed run; None if there is none.
        version: Version of the code that it needs; empty for any.
        tenant: Tenant of the run; empty where there is only one.
        run_id: The number of this generation.
        chain_id: Number of the first run of the chain: the same for all generations.
        parent_run_id: The run that started this one as its child; None for none.
    """

    key: str
    status: Status
    workflow: str
    queue: str
    labels: dict[str, str] | None
    priority: int
    attempt: int | None
    worker_id: int | None
    generation: int
    created_at: datetime
    since: datetime
    run_at: datetime | None
    deadline_at: datetime | None
    finished_at: datetime | None
    why: str | None
    version: str
    tenant: str
    run_id: int
    chain_id: int
    parent_run_id: int | None


@dataclass(frozen=True)
class RunDetail(RunRow):
    """A run with its values and its origin, beside all that a :class:`RunRow` has.

    Attributes:
        reason_code: Code of the reason of its status, as ``pgflow.runs`` has it: branch on this,
            not on ``why``.
        reason_detail: Detail of that reason: ``signals``, ``children``, ``effects`` and ``until``
            of the waits, and so on.
        input: Arguments of the workflow by name.
        output: Value that the workflow returned; None until it has completed.
        error: The exception that it raised, or the reason why it is stuck.
        origin_key: Key of the run whose journal this one begins with; None if it began empty, or
            that history is gone.
        origin_generation: Generation of that run.
        origin_seq: Number of units it has from there; None if it began empty.
        origin_run_id: The number of that generation.
    """

    reason_code: str | None
    reason_detail: dict[str, Any] | None
    input: dict[str, Any] | None
    output: Any
    error: dict[str, Any] | None
    origin_key: str | None
    origin_generation: int | None
    origin_seq: int | None
    origin_run_id: int | None


@dataclass(frozen=True)
class ChildRow:
    """A child of a run, as it is now.

    Attributes:
        key: Key of the child.
        status: Its status.
        workflow: Name of its workflow.
        run_id: The number of its newest generation.
    """

    key: str
    status: Status
    workflow: str
    run_id: int


_WHY: LiteralString = r"""case status
    when 'failed' then
      concat_ws(': ', regexp_replace(error->>'type', '^.*\.', ''), error->>'message')
    when 'stuck' then concat_ws(': ', reason, error->>'message')
    else reason end as why"""

_COLUMNS: LiteralString = (
    "key, status, workflow, queue, labels, priority, attempt, worker_id, generation, created_at, "
    "since, run_at, deadline_at, finished_at, "
    + _WHY
    + ", version, tenant, run_id, chain_id, parent_run_id"
)
_DETAILS: LiteralString = (
    _COLUMNS + ", reason_code, reason_detail, input, output, error, origin_key, origin_generation, "
    "origin_seq, origin_run_id"
)


def _read_runs(rows: list[Row]) -> list[RunRow]:
    return [RunRow(*row) for row in rows]


# ---------------------------------------------------------------- filters


@dataclass(frozen=True)
class RunFilter:
    """Filter for runs. All given conditions must hold; without any, every run matches.

    Attributes:
        status: Only runs of one of these statuses.
        workflow: Only runs of one of these workflows.
        queue: Only runs of one of these queues.
        labels: Only runs with all of these labels.
        key: Only runs with this key; ``*`` matches anything.
        keys: Only runs with one of these keys; ``*`` matches anything.
        since: Only runs created since this time, or since so long ago by the database's clock.
        until: Only runs created before this time, or before so long ago.
        error: Only runs whose error has this text in its type or message, in capitals or not:
            failed ones, and stuck ones.
        tenant: Only runs of this tenant; None for all tenants.

    Raises:
        InvalidArgument: The status does not exist, or a time has no zone.
    """

    status: Sequence[str] = ()
    workflow: Sequence[str] = ()
    queue: Sequence[str] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    key: str | None = None
    keys: Sequence[str] = ()
    since: datetime | timedelta | None = None
    until: datetime | timedelta | None = None
    tenant: str | None = None
    error: str | None = None

    def __post_init__(self) -> None:
        """Refuse invalid conditions."""
        for status in self.status:
            if status not in STATUSES:
                raise InvalidArgument(
                    f"status: there is no {status!r}; a run is {', '.join(STATUSES[:-1])} or "
                    f"{STATUSES[-1]}"
                )
        for name, moment in (("since", self.since), ("until", self.until)):
            if isinstance(moment, datetime) and moment.tzinfo is None:
                raise InvalidArgument(
                    f"{name}: {moment} has no time zone; pass an aware datetime, or a timedelta "
                    "for so long ago"
                )


EVERY_RUN = RunFilter()


def condition_of(where: RunFilter) -> tuple[LiteralString, list[Any]]:
    """Return the condition on ``pgflow.runs`` that a filter means, and its parameters."""
    parts: list[tuple[LiteralString, Any]] = []
    if where.status:
        parts.append(("status = any(%s)", list(where.status)))
    if where.workflow:
        parts.append(("workflow = any(%s)", list(where.workflow)))
    if where.queue:
        parts.append(("queue = any(%s)", list(where.queue)))
    if where.labels:
        parts.append(("labels @> %s::jsonb", json.dumps(dict(where.labels))))
    if where.key is not None:
        parts.append(
            ("key like %s", _like(where.key)) if "*" in where.key else ("key = %s", where.key)
        )
    if where.keys:
        parts.append(_any_key(list(where.keys)))
    if where.since is not None:
        is_age = isinstance(where.since, timedelta)
        parts.append(
            ("created_at >= clock_timestamp() - %s" if is_age else "created_at >= %s", where.since)
        )
    if where.until is not None:
        is_age = isinstance(where.until, timedelta)
        parts.append(
            ("created_at < clock_timestamp() - %s" if is_age else "created_at < %s", where.until)
        )
    if where.tenant is not None:
        parts.append(("tenant = %s", where.tenant))
    if where.error is not None:
        parts.append((_HAS_ERROR, "%" + _like(where.error, star="*") + "%"))
    texts: list[LiteralString] = [text for text, _ in parts]
    return " and ".join(texts) if texts else "true", [param for _, param in parts]


_HAS_ERROR: LiteralString = (
    "status <> all ('{queued,running,waiting}')"
    " and case when run_id > 0 and status in ('failed', 'stuck')"
    " then concat_ws(': ', error->>'type', error->>'message') ilike %s end"
)
"""A condition on both sides of the view's join: on one, all ends of runs would be looked through
before it is seen which are within reach. The first part leaves out places in which nothing fails,
and promises the planner nothing of ends: of few it would read all that have failed.
"""


def _any_key(patterns: list[str]) -> tuple[LiteralString, list[str]]:
    """An exact key is looked up by its index."""
    if any("*" in pattern for pattern in patterns):
        return "key like any(%s)", [_like(pattern) for pattern in patterns]
    return "key = any(%s)", patterns


def _like(pattern: str, star: str = "%") -> str:
    escaped = pattern.replace("\\", r"\\").replace("%", r"\%").replace("_", r"\_")
    return escaped.replace("*", star)


# ---------------------------------------------------------------- many


def list_runs(
    where: RunFilter = EVERY_RUN,
    *,
    after: After = None,
    limit: int | None = 50,
    oldest_first: bool = False,
    down_to: int | None = None,
) -> Question[Listing[RunRow]]:
    """Ask for a page of runs, the newest first.

    Args:
        where: Filter that chooses them.
        after: ``next`` of the previous page; None for the first.
        limit: Maximum runs of a page; None for all.
        oldest_first: True for the other order.
        down_to: Only runs with this number or a higher one; None for all.

    Raises:
        InvalidArgument: ``limit`` is less than 1, or ``after`` is not a place in the list.

    Example::

        where = inspect.RunFilter(workflow=["checkout"])
        page = inspect.ask(app, inspect.list_runs(where, limit=20))
        more = inspect.ask(app, inspect.list_runs(where, limit=20, after=page.next))
    """
    condition, params = condition_of(where)
    if place := parse_place(after, int):
        condition = statement(condition, "and run_id > %s" if oldest_first else "and run_id < %s")
    if down_to is not None:
        condition, place = statement(condition, "and run_id >= %s"), (*place, down_to)
    order: LiteralString = "run_id" if oldest_first else "run_id desc"
    if "waiting" in where.status and (where.workflow or where.queue):
        # The view would look up the reason of each waiting run that it passes over.
        condition = statement(
            "run_id in (select run_id from pgflow.runs where",
            *(condition, "order by", order, "limit %s) and status = any(%s)"),
        )
        place = (*place, one_more(limit), list(where.status))
    sql = statement(
        "select", _COLUMNS, "from pgflow.runs where", condition, "order by", order, "limit %s"
    )
    return once(
        Query(
            sql,
            (*params, *place, one_more(limit)),
            lambda rows: cut(_read_runs(rows), limit, lambda run: (run.run_id,)),
        )
    )


def longest_runs(where: RunFilter, limit: int, down_to: int) -> Query[list[RunRow]]:
    """Return the query for the runs of a filter that have taken longest, of those with this number
    or a higher one.
    """
    condition, params = condition_of(where)
    sql = statement(
        "select",
        _COLUMNS,
        "from pgflow.runs where",
        condition,
        "and run_id >= %s order by coalesce(finished_at, clock_timestamp()) - created_at desc,",
        "run_id limit %s",
    )
    return Query(sql, (*params, down_to, limit), _read_runs)


def count_runs(where: RunFilter = EVERY_RUN) -> Question[dict[Status, int]]:
    """Ask for the number of runs of each status that there is, the most frequent first.

    Args:
        where: Filter that chooses the runs.
    """
    condition, params = condition_of(where)
    sql = statement(
        "select status, count(*) as runs from pgflow.runs where",
        condition,
        "group by status order by runs desc, status",
    )
    return once(Query(sql, params, lambda rows: {row[0]: int(row[1]) for row in rows}))


@dataclass(frozen=True)
class RunExample:
    """A run, as its group shows it.

    Attributes:
        key: Key of the run.
        since: Time since which it has its status.
        why: Reason of its status; None for none.
        input: Arguments of the workflow by name; None for none.
    """

    key: str
    since: datetime
    why: str | None
    input: dict[str, Any] | None


@dataclass(frozen=True)
class RunGroup:
    """The runs of one workflow that are stuck, or have failed, for one reason.

    Attributes:
        workflow: Name of the workflow.
        reason: Class of the error of failed runs; reason why runs are stuck.
        runs: Number of them.
        newest: The newest five.
    """

    workflow: str
    reason: str | None
    runs: int
    newest: list[RunExample]


_RUN_GROUPS: LiteralString = statement(
    "select g.workflow, g.what, g.runs, g.key, g.since, g.why, i.input from (",
    "select r.*, count(*) over (partition by r.workflow, r.what) as runs,",
    "row_number() over (partition by r.workflow, r.what order by r.run_id desc) as place from (",
    "select run_id, key, workflow, since, finished_at,",
    r"case status when 'failed' then regexp_replace(error->>'type', '^.*\.', '')",
    "else reason end as what,",
    _WHY,
    "from pgflow.runs where status = %s and tenant = %s order by run_id desc limit %s",
    ") r where %s::interval is null or r.finished_at > clock_timestamp() - %s::interval",
    ") g left join lateral (",
    "select n.input from pgflow.runs n where n.run_id = g.run_id offset 0",
    ") i on true where g.place <= %s order by max(g.run_id) over (partition by g.workflow, g.what)",
    "desc, g.workflow, g.what, g.place",
)


def group_runs(
    status: Literal["stuck", "failed"],
    *,
    within: timedelta | None = None,
    tenant: str = "",
    most: int = COUNTED,
) -> Question[list[RunGroup]]:
    """Ask for the number of stuck or failed runs by workflow and reason, the group with the newest
    run first.

    Args:
        status: Status of the runs.
        within: Only runs that have ended within this time; None for all.
        tenant: Tenant of the runs.
        most: Number of the newest runs that are counted: one more than that says that there are
            further ones.
    """
    params = (status, tenant, most + 1, within, within, EXAMPLES)
    return once(Query(_RUN_GROUPS, params, _read_groups))


def _read_groups(rows: list[Row]) -> list[RunGroup]:
    return [
        RunGroup(workflow, reason, runs, [RunExample(*row[3:]) for row in members])
        for (workflow, reason, runs), members in groupby(rows, key=lambda row: row[:3])
    ]


def count_ended(before: datetime) -> Question[int]:
    """Ask for the number of runs that ended before a time."""
    return only_row(int, "select count(*) from pgflow.runs where finished_at < %s", before)


def list_chains(where: RunFilter = EVERY_RUN) -> Question[list[int]]:
    """Ask for the numbers of the chains that a filter chooses, in the order of their starts. Meant
    for :func:`stream`.
    """
    condition, params = condition_of(where)
    sql = statement("select chain_id from pgflow.runs where", condition, "order by chain_id")
    return all_rows(int, sql, *params)


def sample_chains(workflows: Sequence[str], where: RunFilter, limit: int) -> Question[list[int]]:
    """Ask for the numbers of some chains of each of these workflows:
    open ones first, then the newest.

    Args:
        workflows: Names of the workflows.
        where: Filter that chooses the runs of each.
        limit: Most chains of one workflow.
    """
    condition, params = condition_of(where)
    sql = statement(
        "select c.chain_id from unnest(%s::text[]) as w (name) cross join lateral (",
        "select chain_id from pgflow.runs where workflow = w.name and",
        condition,
        "order by finished_at is not null, run_id desc limit %s",
        ") c order by w.name, c.chain_id",
    )
    return all_rows(int, sql, list(workflows), *params, limit)


def list_outcomes(
    chains: Sequence[int], *, stuck_since: datetime, queues: Sequence[str], workflows: Sequence[str]
) -> Question[list[RunRow]]:
    """Ask for the runs of some chains, and for those that have become stuck since a time;
    the oldest first.

    Args:
        chains: Numbers of the chains.
        stuck_since: Time since which others have become stuck.
        queues: Queues of these others.
        workflows: Workflows of these others.
    """
    sql = statement(
        "select",
        _COLUMNS,
        "from pgflow.runs where chain_id = any(%s::bigint[])",
        "or (status = 'stuck' and since >= %s and queue = any(%s::text[]) and workflow = "
        "any(%s::text[])) order by run_id",
    )
    return all_rows(RunRow, sql, list(chains), stuck_since, list(queues), list(workflows))


def has_queued(queues: Sequence[str], workflows: Sequence[str]) -> Question[bool]:
    """Ask for True if a run of these workflows is queued
    in one of these queues that is not paused.
    """
    sql = """
      select exists (
        select from pgflow.runs r join pgflow.queues q on q.queue = r.queue
        where r.status = 'queued' and r.queue = any(%s::text[]) and r.workflow = any(%s::text[])
          and q.paused_at is null
      )
    """
    return only_row(bool, sql, list(queues), list(workflows))


def find_keys(beginning: str, limit: int = 30) -> Question[list[str]]:
    """Ask for keys with a prefix among the newest 20,000 runs, the newest first. Meant for
    completion and for "did you mean".

    Args:
        beginning: Prefix of the keys; ``*`` matches anything.
        limit: Maximum keys.
    """
    sql = """
      select key from (select key, run_id from pgflow.runs order by run_id desc limit 20000) recent
      where key like %s order by run_id desc limit %s
    """
    return all_rows(str, sql, _like(beginning) + "%", limit)


# ---------------------------------------------------------------- one


def _may_call(function: str) -> Query[bool]:
    """Ask first, since an auditor reads views only,
    and a refusal would end the transaction that is open.
    """
    sql: LiteralString = "select pg_catalog.has_function_privilege(%s, 'execute')"
    return Query(sql, (function,), lambda rows: bool(rows[0][0]))


def _find(columns: LiteralString, key: str, tenant: str) -> Steps[Row]:
    """Look a run up by the index on keys: a history may be long.

    Raises:
        RunNotFound: No run has the key.
    """
    looks: tuple[tuple[LiteralString, tuple[Any, ...]], ...] = (
        ("key = %s and tenant = %s", (key, tenant)),
    )
    if (yield _may_call("pgflow.find_chain(text, text)")):
        chain: int = yield result.find_chain(key, tenant)
        looks = (("run_id = %s", (chain,)), ("chain_id = %s and generation > 1", (chain,)))
    for condition, params in looks:
        rows: list[Row] = yield Query(
            statement("select", columns, "from pgflow.runs where", condition), params, list
        )
        if rows:
            return rows[0]
    raise RunNotFound(f"no run has the key {key!r}")


@question
def find_run(key: str, *, tenant: str = "") -> Steps[RunRow]:
    """Ask for the run that a key names.

    Args:
        key: Its key.
        tenant: Its tenant.

    Raises:
        RunNotFound: No run has the key.
    """
    row = yield from _find(_COLUMNS, key, tenant)
    return RunRow(*row)


@question
def find_detail(key: str, *, tenant: str = "") -> Steps[RunDetail]:
    """Ask for the run that a key names, with its input, output, error and origin.

    Args:
        key: Its key.
        tenant: Its tenant.

    Raises:
        RunNotFound: No run has the key.
    """
    row = yield from _find(_DETAILS, key, tenant)
    return RunDetail(*row)


def find_newest(chain_id: int) -> Question[RunRow | None]:
    """Ask for the newest generation of a chain; None if its history is gone."""
    sql = statement(
        "select", _COLUMNS, "from pgflow.runs where chain_id = %s order by generation desc limit 1"
    )
    return first_row(RunRow, sql, chain_id)


def find_key(run_id: int) -> Question[str | None]:
    """Ask for the key of a run by its number, such as ``parent_run_id``. None if the run is gone or
    has a newer generation.
    """
    return first_row(str, "select key from pgflow.runs where run_id = %s", run_id)


def find_unserved(chain_id: int) -> Question[str | None]:
    """Ask for the reason why no worker takes the newest generation of a chain, or one of its
    children; None if all are taken.
    """
    sql = """
      with newest as materialized (
        select run_id from pgflow.runs where chain_id = %s order by generation desc limit 1
      )
      select u.told from (
        select format('it is queued, and %%s', r.reason) as told, 0 as place, r.run_id
        from pgflow.runs r
        where r.run_id = (select run_id from newest) and r.status = 'queued'
          and r.reason is not null
        union all
        select format('its child %%s is queued, and %%s', r.key, r.reason), 1, r.run_id
        from pgflow.runs r
        where r.parent_run_id = (select run_id from newest) and r.status = 'queued'
          and r.reason is not null
      ) u order by u.place, u.run_id limit 1
    """
    return first_row(str, sql, chain_id)


def list_children(
    run_id: int, *, after: After = None, limit: int | None = 100
) -> Question[Listing[ChildRow]]:
    """Ask for a page of the children that a run has started, the oldest first.

    Args:
        run_id: The number of the run.
        after: ``next`` of the previous page; None for the first.
        limit: Maximum children of a page; None for all.

    Raises:
        InvalidArgument: ``limit`` is less than 1, or ``after`` is not a place in the list.
    """
    sql = select(ChildRow, "from pgflow.runs where parent_run_id = %s")
    return page(ChildRow, sql, (run_id,), {"run_id": int}, after, limit)


def list_child_chains(parents: Sequence[int], *, only_open: bool = False) -> Question[list[int]]:
    """Ask for the numbers of the chains that some runs have started as their children.

    Args:
        parents: Numbers of the runs.
        only_open: True for children that have not ended.
    """
    condition: LiteralString = (
        "and status not in ('completed', 'failed', 'cancelled')" if only_open else ""
    )
    sql = statement(
        "select distinct chain_id from pgflow.runs where parent_run_id = any(%s)",
        condition,
        "order by chain_id",
    )
    return all_rows(int, sql, list(parents))


def read_statuses(keys: Sequence[str]) -> Question[dict[str, Status]]:
    """Ask for the status of each run that these keys name.

    Raises:
        RunNotFound: No run has one of the keys.
    """
    sql = "select key, pgflow.run_status(key) as status from unnest(%s::text[]) as k (key)"
    return once(Query(sql, (list(keys),), lambda rows: {row[0]: row[1] for row in rows}))


@question
def read_state(key: str, *, tenant: str = "") -> Steps[dict[str, Any] | None]:
    """Ask for the values that a run last set with ``set_state``;
    None for an auditor, who reads views only.

    Args:
        key: Key of the run.
        tenant: Its tenant.

    Raises:
        RunNotFound: No run has the key.
    """
    if not (yield _may_call("pgflow.run_state(text, text)")):
        return None
    state: dict[str, Any] = yield result.run_state(key, tenant)
    return state


def read_published(key: str, name: str, *, tenant: str = "") -> Question[str]:
    """Ask for the value that a run last published under a name with ``set_state``, as JSON text.

    Args:
        key: Key of the run.
        name: Name of the value.
        tenant: Tenant of the run.

    Raises:
        RunNotFound: No run has the key.
        InvalidArgument: The run has published no value under the name.
    """
    return once(updates.query(key, name, tenant))


def read_reply(key: str, update_id: str, *, tenant: str = "") -> Question[Reply]:
    """Ask for the answer to an update.

    Args:
        key: Key of the run.
        update_id: Id of the update.
        tenant: Tenant of the run.

    Raises:
        RunNotFound: No run has the key, or the run no update of this id.
    """
    return once(updates.update_reply(key, update_id, tenant))


def read_output(key: str, *, tenant: str = "") -> Question[Any]:
    """Ask for the value that a run has returned, as it is stored; None if it has not completed.

    Args:
        key: Key of the run.
        tenant: Its tenant.

    Raises:
        RunNotFound: No run has the key.
    """
    return once(
        Query(
            "select output from pgflow.result(%s::text, %s::text)",
            (key, tenant),
            lambda rows: rows[0][0],
        )
    )
