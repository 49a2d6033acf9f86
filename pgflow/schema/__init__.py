"""Installs the schema `pgflow`, brings it up to date, and judges whether it fits this version.

Everything is one transaction under an advisory lock: the numbered migrations that are missing, then
every file of stored functions and views whose text changed, `privileges.sql` last. So two
installers at once take turns, and one that is killed leaves nothing. What `migrate` executes is
what `migration_sql` prints: the same statements, which decide on the server what the connected role
may do.

The schema carries two marks. The comment of `pgflow.migration` says that the schema is ours: one
without it is never touched. The comment of the schema is the stamp: version, highest migration and
a digest of all files. Comments are readable by everybody, so a worker whose role may read no table
can still see in one query whether it fits. The order of two stamps is that of their migrations,
then of their versions:

- an older version never migrates a newer schema,
  since it would put old functions under new workers;
- an older worker runs on a newer schema, as a rolling upgrade needs, unless a migration in between
  has a line ``--! breaking-change``; it looks at the stamp while it works and says so, or takes no
  further runs;
- a newer worker does not run on an older schema.

Objects belong to `pgflow_owner` where that role can be had, else to the role that installs, and
never to a superuser: the functions run with their owner's rights. A superuser upgrades only what
belongs to `pgflow_owner` or to itself, because `set role` gives no shelter from triggers that
another owner wrote.
"""

from typing import TYPE_CHECKING

from pgflow._lazy import importer
from pgflow.assets import Assets, SqlFile, own_assets, read_assets
from pgflow.schema._rights import naming_refusals, raise_refusal
from pgflow.schema._state import SCHEMA_QUERY, Standing, compare_stamp, judge_schema, require_schema

if TYPE_CHECKING:
    from pgflow.schema._install import (
        LOCK_KEY,
        MigrationReport,
        install,
        migrate,
        migrate_dsn,
        migration_sql,
    )
else:  # few that work with a schema install it
    __getattr__ = importer(
        globals(),
        dict.fromkeys(
            ("LOCK_KEY", "MigrationReport", "install", "migrate", "migrate_dsn", "migration_sql"),
            "pgflow.schema._install",
        ),
    )

__all__ = [
    "LOCK_KEY", "SCHEMA_QUERY", "Assets", "MigrationReport", "SqlFile", "Standing",
    "compare_stamp", "install", "judge_schema", "migrate", "migrate_dsn", "migration_sql",
    "naming_refusals", "own_assets", "raise_refusal", "read_assets", "require_schema",
]  # fmt: skip
