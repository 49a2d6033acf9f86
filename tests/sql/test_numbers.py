"""Rows that come to another server without its sequences and roles: nothing in them is a number of
the server that they left, and no worker begins where numbers would be given twice.
"""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from sqlkit import count, one, rows, start

Conn = psycopg.Connection[Any]


def test_no_column_has_an_oid(db: Conn) -> None:
    """A role by its number would be another one elsewhere: `regrole` is read and written by name."""
    query = """
        select format('%s.%s', c.relname, a.attname) from pg_class c join pg_attribute a on a.attrelid = c.oid
        where c.relnamespace = 'pgflow'::regnamespace and c.relkind in ('r', 'p') and a.attnum > 0
          and a.atttypid in ('oid'::regtype, 'regproc'::regtype, 'regprocedure'::regtype, 'regclass'::regtype)
    """
    assert rows(db, query) == []


def test_each_sequence_is_compared_with_the_rows(db: Conn) -> None:
    query = "select s.oid::regclass::text from pg_class s where s.relkind = 'S' and s.relnamespace = 'pgflow'::regnamespace"
    compared = rows(db, "select sequence::text from pgflow.used_numbers_()")
    assert sorted(compared) == sorted(rows(db, query))


@pytest.mark.unsound
def test_no_worker_begins_where_a_sequence_is_behind_the_rows(db: Conn) -> None:
    register = "select pgflow.register_worker('h', 1, '{default}', 1, '1')"
    start(db, key="a")
    last = one(db, "select last_value from pgflow.run_id_seq")
    db.execute("select setval('pgflow.run_id_seq', 1, false)")
    with pytest.raises(psycopg.Error, match="are behind") as caught, db.transaction():
        db.execute(register)
    assert caught.value.sqlstate == "PF006"
    assert caught.value.diag.message_hint == f"select setval('pgflow.run_id_seq', {last});"
    db.execute(caught.value.diag.message_hint)
    db.execute(register)
    assert count(db, "worker") == 1


@pytest.mark.unsound
def test_an_event_below_a_cursor_cannot_be_published_unnoticed(db: Conn) -> None:
    """No row has the number any more, but relays and waits have passed it."""
    number = one(db, "select pgflow.publish('t', '1')")
    db.execute("update pgflow.event_cursor set event_id = %s, horizon = %s", (number, number))
    db.execute("delete from pgflow.event")
    assert rows(db, "select detail from pgflow.check_numbers_()") == []
    db.execute("select setval('pgflow.event_id_seq', 1, false)")
    behind = rows(db, "select detail from pgflow.check_numbers_()")
    assert behind == [f"select setval('pgflow.event_id_seq', {number});"]
    db.execute(behind[0])
