"""The copies of the database that tests are lent one after another: none comes back changed."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import psycopg
import pytest
import servers
import sqlkit
from copies import APPLICATION
from sqlkit import one

if TYPE_CHECKING:
    from collections.abc import Iterator

    from copies import Copies


@pytest.fixture
def own_copies(copies: Copies, server_dsn: str, template: str) -> Iterator[Copies]:
    own = type(copies)(server_dsn, template)
    yield own
    own.close()


CHANGES = [
    "alter table pgflow.run_key alter column retention_seconds set default 0",
    "alter table pgflow.run alter column key set statistics 7",
    "alter sequence pgflow.run_id_seq increment by 2",
    "create rule quiet as on delete to pgflow.run_key do instead nothing",
    "create type pgflow.mood as enum ('calm')",
    "create operator public.=== (function = int4eq, leftarg = int4, rightarg = int4)",
    "create cast (text as pgflow.run) with inout",
    "revoke execute on function pg_catalog.pg_sleep(float8) from public",
    "grant select (key) on pgflow.run_key to public",
    "select lo_create(0)",
    "drop view pgflow.own_seals",
    "update pg_catalog.pg_index set indisvalid = false where indexrelid = 'pgflow.run_key_idx'::regclass",
]


@pytest.mark.parametrize("change", CHANGES)
def test_a_copy_whose_catalog_was_changed_is_not_lent_again(
    own_copies: Copies, change: str
) -> None:
    lent = own_copies.take()
    with psycopg.connect(lent, autocommit=True) as conn:
        conn.execute(change)
    own_copies.give_back(lent)
    assert own_copies.take() != lent


def test_one_with_other_rows_and_another_clock_is_lent_again_as_it_was(own_copies: Copies) -> None:
    lent = own_copies.take()
    with psycopg.connect(lent, autocommit=True) as conn:
        conn.execute("create temp table scratch (n int default 1)")
        conn.execute("select pgflow.start_run('pay', '{}'::json, key => 'a')")
        sqlkit.set_clock(conn, datetime(2001, 1, 1, tzinfo=UTC))
        assert one(conn, "select extract(year from pgflow.now_())") == 2001
    others = (
        "select count(*) from pg_stat_activity where datname = current_database() "
        f"and application_name <> '{APPLICATION}' and backend_type = 'client backend'"
    )
    servers.wait_until(lambda: one(own_copies.keeper(lent), others) == 0, "that session has gone")
    own_copies.give_back(lent)
    assert own_copies.take() == lent
    with psycopg.connect(lent, autocommit=True) as conn:
        assert conn.execute("select key from pgflow.runs").fetchall() == []
        assert one(conn, "select abs(extract(epoch from pgflow.now_() - clock_timestamp())) < 60")
