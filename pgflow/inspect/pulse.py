"""The pulse: one figure that changes with each write to a run, so that a page without notifications
sees when to ask again.

It comes from the statistics of the tables, so it costs the same for any number of runs. The server
updates them within a second under load, and within ten once the load stops.
"""

from __future__ import annotations

from typing import LiteralString

from pgflow.inspect.question import Question, only_row

_PULSE: LiteralString = """
select coalesce(sum(n_tup_ins + n_tup_upd + n_tup_del), 0)::bigint as pulse
from pg_catalog.pg_stat_all_tables where schemaname = 'pgflow' and relname <> 'worker'
"""


def read_pulse() -> Question[int]:
    """Ask for the number of rows that were ever written, but for the signs of life of workers.
    Compare it with an earlier one: another number means that something is new.
    """
    return only_row(int, _PULSE)
