"""A node of Citus."""

from __future__ import annotations

from pgflow_cli.look.output import duration
from pgflow_cli.ops.checks.finding import Findings, Patient, fail, ok, warn

RECOVERY_SECONDS = 5.0
"""Longest time for which a committed row may be invisible after the death of a node. Citus's
default is a minute.
"""

_NODE = """
select exists (select from pg_extension where extname = 'citus') as is_node,
  (select count(*) from pg_class c where c.relnamespace = 'pgflow'::regnamespace
    and c.relkind in ('r', 'p') and not c.relispartition
    and not exists (select from pg_trigger t where t.tgrelid = c.oid and t.tgname = 'two_phase')
  ) as unguarded,
  current_setting('max_prepared_transactions')::int as prepared,
  extract(epoch from current_setting('citus.recover_2pc_interval', true)::interval)::float8
    as recovery_seconds
"""


def check_citus(patient: Patient) -> Findings:
    """On a node of Citus, a transaction commits on all nodes or on none, and soon everywhere."""
    row = patient.row(_NODE)
    if not row["is_node"] or not patient.row("select count(*) as nodes from pg_dist_node")["nodes"]:
        yield ok("this server is not a node of Citus")
        return
    if row["unguarded"]:
        yield fail(
            f"{row['unguarded']} tables of pgflow commit in one phase beside a remote shard: a "
            "step may happen twice after a crash",
            "pgflow migrate, on the coordinator first",
        )
    if row["prepared"] == 0:
        yield fail(
            "max_prepared_transactions is 0: no transaction of several nodes can commit",
            "alter system set max_prepared_transactions = 200, and restart the server",
        )
    seconds = row["recovery_seconds"]
    if seconds is not None and not 0 < seconds <= RECOVERY_SECONDS:
        yield warn(
            "citus.recover_2pc_interval is "
            + (duration(seconds) if seconds > 0 else "off")
            + ": after the death of a node, the next step may not see committed rows for as long",
            "alter system set citus.recover_2pc_interval = '5s'; select pg_reload_conf()",
        )
    if not row["unguarded"] and row["prepared"]:
        yield ok("transactions of several nodes commit in two phases")
