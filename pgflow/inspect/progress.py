"""The progress of a run: the names of its calls, and the values that it emits.

A run of a graph names its calls after the nodes, and emits a value at the end of each node. The
states of the nodes are read from both, without the payloads of the journal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pgflow._db.query import Query, Row
from pgflow.inspect.question import Question, once

MOST_TOLD = 5_000


@dataclass(frozen=True)
class Progress:
    """Progress of a run: names of its calls, and emitted values.

    Attributes:
        begun: Names of its steps, effects and gates, each once.
        asks: Names of its gates that wait for an answer.
        told: Values emitted on the stream, in order, as stored.
    """

    begun: frozenset[str]
    asks: frozenset[str]
    told: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class NodeState:
    """A node of a graph that a run plays.

    Attributes:
        name: Its id.
        mode: Kind of its work.
        after: Ids of the nodes that it depends on.
        depth: Number of groups around it.
        standing: ``waiting``, ``running``, ``asks``, ``completed``, ``failed``, ``skipped`` or
            ``cut off``.
        round: Number of its round; None if it is in none.
        why: Reason of its end; empty if the run gives none.
    """

    name: str
    mode: str
    after: tuple[str, ...]
    depth: int
    standing: str
    round: int | None
    why: str


def read_progress(run_id: int, stream: str, *, limit: int = MOST_TOLD) -> Question[Progress]:
    """Ask for the progress of a run.

    Args:
        run_id: The number of the run.
        stream: Name of the stream of its progress.
        limit: Most values, the newest.
    """
    sql = """
      select 'begun' as what, name, null::json as told from (
        select u.name from pgflow.timeline u
        where u.run_id = %s and u.call > 0 and u.event not in ('emitted', 'stream_closed')
        union
        select s->>2
        from pgflow.timeline u cross join lateral jsonb_array_elements(u.starts::jsonb) s
        where u.run_id = %s and u.starts is not null
      ) n where name is not null
      union all
      select 'asks', g.name, null from pgflow.gates g where g.run_id = %s
      union all
      (select 'told', null, t.payload from (
        select seq, payload from pgflow.timeline
        where run_id = %s and event = 'emitted' and name = %s order by seq desc limit %s
      ) t order by t.seq)
    """
    return once(Query(sql, (run_id, run_id, run_id, run_id, stream, limit), _read))


def _read(rows: list[Row]) -> Progress:
    return Progress(
        frozenset(name for what, name, _ in rows if what == "begun"),
        frozenset(name for what, name, _ in rows if what == "asks"),
        tuple(told for what, _, told in rows if what == "told"),
    )
