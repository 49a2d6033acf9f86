"""The live tables as they are, read after every transaction, and what has changed since the last
look.

A row is a line of text: its table's letter, its run or chain, and the columns that matter. So a
look is one query, and the difference one of sets. What only grows - units, outcomes, rows of the
application - is read for the runs that changed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from tests.simulator.wire import Wire

LIVE = """
select string_agg(x, E'\\n') from (
  select 'r|' || run_id || '|' || lane_id || '|' || last_seq || '|' || attempt || '|' || suspect || '|' || coalesce(has_begun, false) as x from pgflow.ready
  union all select 'l|' || run_id || '|' || token || '|' || worker_id || '|' || lane_id || '|' || last_seq || '|' || attempt || '|' || suspect from pgflow.lease
  union all select 'p|' || run_id || '|' || last_seq || '|' || coalesce(token, 0) from pgflow.parked
  union all select 'h|' || run_id || '|' || last_seq || '|' || state || '|' || reason || '|' || coalesce(has_begun, false) from pgflow.held
  union all select 'w|' || run_id || '|' || call || '|' || kind::text || '|' || name || '|' || coalesce(calls::text, '') from pgflow.wait
  union all select 't|' || run_id || '|' || call || '|' || (date_part('epoch', due_at) * 1000000)::bigint from pgflow.timer
  union all select 'd|' || run_id || '|' || (date_part('epoch', due_at) * 1000000)::bigint from pgflow.deadline
  union all select 's|' || chain_id || '|' || signal_id || '|' || kind::text || '|' || name || '|' || coalesce(run_id, 0) || '|' || coalesce(call, 0)
    || '|' || case kind when 's' then payload::text when 'u' then payload->>'id' else '' end from pgflow.signal
  union all select 'n|' || chain_id || '|' || nudge_id from pgflow.nudge
  union all select 'q|' || fence || '|' || key || '|' || holder || '|' || is_shared from pgflow.lock
  union all select 'k|' || worker_id || '|' || beat from pgflow.worker
  union all select 'z|' || last_value from sim.clock
) q
"""

GROWN = """
select json_build_object('run', r.run_id, 'chain', r.chain_id, 'generation', r.generation, 'parent', r.parent_run_id, 'call', r.parent_call,
  'key', r.key, 'ops', r.input->'ops', 'deadline', pgflow.micros_(r.deadline_at),
  'outcome', (select json_build_array(o.status, o.token, o.reason, pgflow.micros_(o.finished_at)) from pgflow.outcome o where o.run_id = r.run_id),
  'units', (
    select json_agg(json_build_array(u.seq, u.call, u.kind, u.name, u.payload, u.token, pgflow.micros_(u.recorded_at), pgflow.micros_(u.due_at)) order by u.seq)
    from pgflow.unit u where u.run_id = r.run_id and u.seq > g.seq
  ),
  'booked', (select json_agg(json_build_array(b.call, b.token)) from sim.booked b where b.run_id = r.run_id))
from unnest($1::bigint[], $2::int[]) g (id, seq) join pgflow.run r on r.run_id = g.id order by r.run_id
"""

CLOCK = "select last_value from sim.clock"
ASIDE = "select signal_id, kind::text, payload::text from pgflow.undelivered where chain_id = any($1::bigint[])"

PLACES = "rlph"

Line = tuple[str, ...]


class Mirror:
    """Mirror of the tables at the last look."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.lines: set[bytes] = set()
        self.now_us = 0

    def look(self) -> tuple[list[Line], list[Line]]:
        """Rows that came and rows that went."""
        (text,) = self.wire.ask(LIVE)[0]
        rows = (text or b"").split(b"\n")
        self.now_us = int(rows.pop()[2:])
        fresh = set(rows)
        came, went = fresh - self.lines, self.lines - fresh
        self.lines = fresh
        return _parse(came), _parse(went)

    def clock(self) -> int:
        (text,) = self.wire.ask(CLOCK)[0]
        self.now_us = int(text or 0)
        return self.now_us

    def grown(self, known: dict[int, int]) -> list[dict[str, Any]]:
        """Runs with their units after the known seqs."""
        rows = self.wire.ask(GROWN, list(known), list(known.values()))
        return [json.loads(row[0] or b"null") for row in rows]

    def aside(self, chains: Iterable[int]) -> dict[int, tuple[str, str]]:
        """Mail that was put aside: (kind, payload) by number."""
        return {
            int(i or 0): ((k or b"").decode(), (p or b"").decode())
            for i, k, p in self.wire.ask(ASIDE, sorted(chains))
        }


def _parse(lines: set[bytes]) -> list[Line]:
    return [tuple(line.split("|")) for line in sorted(b.decode() for b in lines)]
