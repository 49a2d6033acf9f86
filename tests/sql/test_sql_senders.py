"""Senders: a caller may give a name, and the role of its session always stands behind it."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from clikit import as_role
from records import calling, settle
from sqlkit import (
    begin,
    commit,
    connect,
    finish,
    flush,
    hold,
    one,
    rows,
    start,
    unit,
    wait_for,
    wake,
)

import pgflow
from pgflow import workflow
from pgflow.effects import Accepted

if TYPE_CHECKING:
    from collections.abc import Iterator

    Conn = psycopg.Connection[Any]


@pytest.fixture
def role(dsn: str, conn: Conn) -> Iterator[str]:
    """A role that may sign in, send and give orders."""
    name = f"clerk_{secrets.token_hex(3)}"
    conn.execute(
        f"create role {name} login password 'secret';"  # type: ignore[arg-type]
        f"grant pgflow_client, pgflow_operator to {name}"
    )
    yield name
    conn.execute(f"drop owned by {name}; drop role {name}")  # type: ignore[arg-type]


@pytest.fixture
def theirs(dsn: str, role: str) -> Iterator[Conn]:
    """Its session."""
    with connect(as_role(dsn, role)) as connection:
        yield connection


def waiting(conn: Conn) -> None:
    """A run ``k`` that nobody has claimed."""
    start(conn, key="k")


def with_mail(conn: Conn) -> None:
    waiting(conn)
    conn.execute("select pgflow.send_signal('k', 'go')")


def over(conn: Conn) -> None:
    """A run ``k`` that has recorded a step and ended."""
    claim = begin(conn, key="k")
    commit(conn, flush(claim, unit("c", 1, "step", '"secret"')))
    finish(conn, claim)


def stuck(conn: Conn) -> None:
    commit(conn, hold(begin(conn, key="k")))


def parked(conn: Conn) -> None:
    """A run ``k`` that waits for the signal ``go``."""
    commit(conn, wait_for(begin(conn, key="k"), "go"))


def locked(conn: Conn) -> None:
    conn.execute(
        "insert into pgflow.lock (fence, since, expires_at, is_shared, key, holder, proof)"
        "values (nextval('pgflow.lock_fence_seq'), now(), now() + interval '1 day', false, 'l', 'x', '')"
    )


def lost(conn: Conn) -> None:
    conn.execute("select pgflow.report_loss(1, 'h', 1, 1, 2, 5000, 4000, 1, 0, '[]')")


def told(conn: Conn) -> None:
    """Something of each kind that has a name."""
    conn.execute(
        """
        select pgflow.set_pool('p', '{"usd": 9}');
        select pgflow.set_schedule('s', 'demo', '{"every": 3600}');
        select pgflow.declare_relay('r', '{orders}');
        select pgflow.pause_queue('q');
        """
    )


ORDER = "select payload->>'by' from pgflow.unit where payload->>'by' is not null order by seq desc"
MESSAGE = "select sent_by from pgflow.messages"
QUEUE = "select changed_by from pgflow.queue_changes order by changed_at desc"
POOL = "select changed_by from pgflow.pool_change order by changed_at desc"
SCHEDULE = "select said_by from pgflow.schedule_changes order by change_id desc"
RELAY = "select changed_by from pgflow.relay_changes order by changed_at desc"
THIS = "(select message from pgflow.messages)"
OPEN = "(select version from pgflow.open_entity('n', 'k', null, 'u', null, 0))"
NEWEST = "(select newest from pgflow.purge_queue('default'))"

VERBS: list[tuple[Any, str, str]] = [
    (waiting, "send_signal('k', 'go', sent_by => {})", MESSAGE),
    (waiting, "post_signal('k', 'go', sent_by => {})", MESSAGE),
    (waiting, "deliver_signal('k', 'go', sent_by => {})", MESSAGE),
    (waiting, "deliver_signal('k', 'go', sent_by => {}, idempotency_key => 'once')", MESSAGE),
    (parked, "deliver_signal('k', 'go', sent_by => {})", MESSAGE),
    (waiting, "cancel_run('k', sent_by => {})", ORDER),
    (waiting, "cancel_run('k', sent_by => {}, force => true)", ORDER),
    (waiting, "force_cancel_run('k', sent_by => {})", ORDER),
    (waiting, "pause_run('k', sent_by => {})", ORDER),
    (waiting, "pause_run('k', sent_by => {})", "select held_by from pgflow.held"),
    (stuck, "resume_run('k', sent_by => {})", ORDER),
    (stuck, "retry_run('k', sent_by => {})", ORDER),
    (over, "retry_run('k', from_step => 'step', sent_by => {})", ORDER),
    (over, "rewind_run('k', to_seq => 0, sent_by => {})", ORDER),
    (over, "restart_run('k', sent_by => {})", ORDER),
    (over, "fork_run('k', 'copy', sent_by => {})", ORDER),
    (over, "redact('k', 1, 'why', {})", ORDER),
    (with_mail, f"drop_message('k', {THIS}, sent_by => {{}})",
     "select moved_by from pgflow.undelivered_messages"),
    (with_mail, f"replace_message('k', {THIS}, '1', sent_by => {{}})", MESSAGE),
    (with_mail, f"replace_message('k', {THIS}, '1', sent_by => {{}})",
     "select moved_by from pgflow.undelivered_messages"),
    (waiting, "send_update('k', 'u', sent_by => {})", "select sent_by from pgflow.updates"),
    (waiting, "send_update('k', 'u', sent_by => {})",
     "select sent_by from pgflow.signal where kind = 'u'"),
    (waiting, f"purge_queue('default', {NEWEST}, sent_by => {{}})", QUEUE),
    (waiting, f"purge_queue('default', {NEWEST}, sent_by => {{}})", ORDER),
    (None, "pause_queue('q', sent_by => {})", QUEUE),
    (told, "resume_queue('q', sent_by => {})", QUEUE),
    (None, "set_queue('q', '{{\"concurrency\": 2}}', sent_by => {})", QUEUE),
    (None, "set_pool('p', '{{\"usd\": 9}}', sent_by => {})", POOL),
    (told, "grant_budget('p', '{{\"usd\": 9}}', sent_by => {})", POOL),
    (told, "revoke_pool('p', sent_by => {})", POOL),
    (told, "revoke_pool('p', sent_by => {})", "select revoked_by from pgflow.budgets"),
    (None, "set_schedule('s', 'demo', '{{\"every\": 3600}}', sent_by => {})", SCHEDULE),
    (told, "pause_schedule('s', sent_by => {})", SCHEDULE),
    (told, "pause_schedule('s', sent_by => {})", "select paused_by from pgflow.schedules"),
    (told, "trigger_schedule('s', sent_by => {})", SCHEDULE),
    (told, "remove_schedule('s', sent_by => {})", SCHEDULE),
    (told, "pause_relay('r', sent_by => {})", RELAY),
    (told, "resume_relay('r', sent_by => {})", RELAY),
    (told, "replay_relay('r', 1, sent_by => {})", RELAY),
    (locked, "break_lock('l', 'why', {})", "select broken_by from pgflow.broken_locks"),
    (None, "post_update('n', 'k', 'u', sent_by => {})", "select sent_by from pgflow.entity_mail"),
    (None, f"update_entity('n', 'k', {OPEN}, 'u', '{{{{}}}}', '1', '1', said_by => {{}})",
     "select said_by from pgflow.entity_updates"),
    (None, "set_policy('[]', 'why', {})", "select set_by from pgflow.policy"),
    (None, "set_sealing(false, {})", "select said_by from pgflow.seal_lag"),
    (lost, "close_loss((select loss_id from pgflow.losses), 'why', {})",
     "select closed_by from pgflow.losses"),
]  # fmt: skip


@pytest.mark.parametrize(("given", "verb", "kept"), VERBS)
def test_the_role_of_the_session_stands_behind_the_name_that_it_gives(
    conn, theirs, role, given, verb, kept
):
    if given is not None:
        given(conn)
    theirs.execute("select pgflow." + verb.format("'the-ceo'"))  # type: ignore[arg-type]
    wake(conn)
    assert one(conn, kept) == f"the-ceo ({role})"


@pytest.mark.parametrize(("name", "who"), [
    ("x" * 300, "x" * 180 + " ({role})"), ("the-ceo (boss)", "the-ceo (boss) ({role})"),
    ("{role}", "{role}"), ("", "{role}"), (None, "{role}"),
])  # fmt: skip
def test_no_name_hides_the_role(conn, theirs, role, name, who):
    waiting(conn)
    name = name and name.format(role=role)
    theirs.execute("select pgflow.send_signal('k', 'go', sent_by => %s)", (name,))
    assert rows(conn, MESSAGE) == [who.format(role=role)]


def test_a_message_that_is_requeued_keeps_its_sender(conn, theirs, role):
    waiting(conn)
    theirs.execute("select pgflow.send_signal('k', 'go', sent_by => 'ann')")
    for _ in range(2):
        theirs.execute(f"select pgflow.requeue_message('k', {THIS}, sent_by => 'bob')")  # type: ignore[arg-type]
    assert rows(conn, MESSAGE) == [f"ann ({role})"]


def test_an_update_by_mail_is_made_in_the_name_of_its_sender(conn, theirs, role):
    number = one(theirs, "select pgflow.post_update('n', 'k', 'u', sent_by => 'ann')")
    with conn.transaction():
        version = one(conn, "select version from pgflow.open_entity('n', 'k', null, 'u', null, 0)")
        one(
            conn,
            "select pgflow.update_entity('n', 'k', %s, 'u', '{}', '1', '1', said_by => 'eve', "
            "mail_id => %s)",
            version,
            number,
        )
    assert rows(conn, "select said_by from pgflow.entity_updates") == [f"ann ({role})"]


@pytest.mark.parametrize("name", ["mail_id", "run_id"])
def test_an_update_for_the_mailbox_or_a_run_is_refused_to_whoever_is_no_worker(conn, theirs, name):
    waiting(conn)
    number = one(conn, "select pgflow.post_update('n', 'k', 'u', sent_by => 'ann')")
    with (
        pytest.raises(psycopg.Error, match="not for a run or the mailbox") as told,
        theirs.transaction(),
    ):
        version = one(theirs, f"select {OPEN}")
        one(
            theirs,
            f"select pgflow.update_entity('n', 'k', %s, 'u', '{{}}', '1', '1', {name} => %s)",
            version,
            number,
        )
    assert told.value.sqlstate == "PF021"
    assert one(conn, "select count(*) from pgflow.entity_mail") == 1
    assert rows(conn, "select said_by from pgflow.entity_updates") == []


@pytest.mark.parametrize("role", ["pgflow_worker", "pgflow_client"])
def test_the_role_that_a_session_has_set_is_who_updates_for_the_mailbox(conn, role):
    number = one(conn, "select pgflow.post_update('n', 'k', 'u', sent_by => 'ann')")
    verb = "select pgflow.update_entity('n', 'k', %s, 'u', '{}', '1', '1', mail_id => %s)"
    with conn.transaction(force_rollback=True):
        conn.execute(f"set local role {role}")  # type: ignore[arg-type]
        version = one(conn, f"select {OPEN}")
        if role == "pgflow_worker":
            assert one(conn, verb, version, number) == version + 1
        else:
            with pytest.raises(psycopg.Error, match="role pgflow_client may update entities, and"):
                one(conn, verb, version, number)


@pytest.mark.parametrize(
    "verb", ["discharge({}, sent_by => {})", "transfer_obligation({}, 'bob', sent_by => {})",
             "waive_obligation({}, 'why', {})"],
)  # fmt: skip
@pytest.mark.parametrize("has_ended", [False, True])
async def test_who_closes_an_obligation_has_a_role(aflow, conn, theirs, role, verb, has_ended):
    @workflow
    async def pay() -> None:
        pgflow.authority.owe("receipt")

    await settle(aflow, pay.options(key="k"))
    if has_ended:
        conn.execute("select pgflow.force_cancel_run('k')")
        wake(conn)
    key = one(conn, "select effect from pgflow.obligations")
    theirs.execute("select pgflow." + verb.format(f"'{key}'", "'ann'"))  # type: ignore[arg-type]
    await aflow.app.nudge()
    await aflow.until_idle()
    assert one(conn, ORDER) == f"ann ({role})"


@pytest.mark.parametrize("verb", ["settle_effect({}, 'confirmed', ", "confirm_effect('T-1', "])
async def test_who_settles_an_effect_has_a_role(aflow, conn, theirs, role, verb):
    @pgflow.effects.effect(risk="irreversible")
    async def wire() -> Accepted:
        return Accepted("T-1")

    await settle(aflow, calling(wire).options(key="k"))
    key = one(conn, "select effect from pgflow.effects")
    theirs.execute("select pgflow." + verb.format(f"'{key}'") + "sent_by => 'ann')")  # type: ignore[arg-type]
    await aflow.app.nudge()
    await aflow.until_idle()
    assert one(conn, ORDER) == f"ann ({role})"
    assert one(conn, "select said_by from pgflow.confirmation") == f"ann ({role})"
