"""Trouble of the engine's own connections, and of a body's: the first is waited out, the second is
the body's outcome.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from clikit import pgflow as cli
from psycopg.conninfo import make_conninfo
from psycopg.pq import DiagnosticField
from records import SOON, count, launch, result_of, run_row, steps, wait_until
from servers import HANG_SECONDS

import pgflow
from pgflow import App, Retries, RunFailed, RunStuck, read, step, transaction, workflow
from pgflow._db._async_pool import make_pool_async
from pgflow._db._sync_pool import make_pool
from pgflow._db.connect import ConnectOptions
from pgflow._db.failures import is_infrastructure, is_passing
from pgflow.decisions import decision
from pgflow.meter import Meter

AsyncConnection = psycopg.AsyncConnection[Any]
Connection = psycopg.Connection[Any]

LONG = timedelta(seconds=HANG_SECONDS)
AT_ONCE = timedelta(milliseconds=1)

COMMIT_FUNCTIONS = ("commit_unit", "commit_units", "commit_and_claim")


@contextmanager
def working(
    dsn: str, *workflows: pgflow.Workflow[..., Any], **options: Any
) -> Iterator[tuple[App, Meter]]:
    meter = Meter()
    with (
        App(dsn, include=workflows) as app,
        app.worker(poll_seconds=0.05, meter=meter, grace_seconds=1, **options),
    ):
        yield app, meter


@pytest.mark.parametrize(
    ("context", "is_trouble"),
    [
        ("while executing command on 10.0.0.7:5432", True),
        ("PL/pgSQL function f() line 1\nwhile executing command on db-2.example:5432", True),
        ("PL/pgSQL function f() line 1 at RAISE", False),
        (None, False),
    ],
)
def test_an_internal_error_of_another_node_of_citus_is_trouble_and_of_this_one_a_failure(
    context, is_trouble
):
    told = {DiagnosticField.CONTEXT: context and context.encode()}
    error = psycopg.errors.InternalError_("SSL SYSCALL error: EOF detected", info=told)
    assert is_infrastructure(error) is is_passing(error) is is_trouble


def test_citus_says_in_words_only_that_its_own_server_dies() -> None:
    told = {DiagnosticField.MESSAGE_PRIMARY: b"postmaster was shut down, exiting"}
    error = psycopg.errors.InternalError_("postmaster was shut down, exiting", info=told)
    assert is_infrastructure(error)
    assert is_passing(error)


def rename(conn: psycopg.Connection, functions: tuple[str, ...], *, back: bool = False) -> None:
    """As an upgrade does that is half-way, or the other way round."""
    for name in functions:
        query = "select oid::regprocedure from pg_proc where pronamespace = 'pgflow'::regnamespace and proname = %s"
        (signature,) = conn.execute(query, (f"{name}_away" if back else name,)).fetchone()
        conn.execute(f"alter function {signature} rename to {name if back else name + '_away'}")


def revoke(conn: psycopg.Connection, functions: tuple[str, ...], *, back: bool = False) -> None:
    for name in functions:
        query = "select oid::regprocedure from pg_proc where pronamespace = 'pgflow'::regnamespace and proname = %s"
        (signature,) = conn.execute(query, (name,)).fetchone()
        conn.execute(
            f"{'grant' if back else 'revoke'} execute on function {signature} "
            f"{'to' if back else 'from'} pgflow_worker"
        )


@pytest.fixture
def worker_dsn(dsn: str, conn: psycopg.Connection) -> Iterator[str]:
    """As a role that may do what workers may, and nothing else."""
    role = f"worker_{secrets.token_hex(5)}"
    conn.execute(f"create role {role} login password 'secret'; grant pgflow_worker to {role}")
    yield make_conninfo(dsn, user=role, password="secret")
    conn.execute(f"drop role {role}")


TAKE_AWAY: dict[str, Callable[..., None]] = {"missing": rename, "forbidden": revoke}


@pytest.mark.full
@pytest.mark.parametrize("how", TAKE_AWAY)
@pytest.mark.parametrize(
    "functions", [COMMIT_FUNCTIONS[:1], COMMIT_FUNCTIONS], ids=["one of them", "all of them"]
)
def test_a_commit_whose_function_is_not_to_be_had_is_sent_again_with_growing_pauses_and_its_body_does_not_run_again(
    worker_dsn, conn, functions, how
):
    ran, go_on = [], threading.Event()

    @step
    def act() -> int:
        ran.append(1)
        go_on.wait(HANG_SECONDS)
        return 1

    @workflow
    async def work() -> int:
        return await act.aio()

    with working(worker_dsn, work) as (app, meter):
        run = app.start(work)
        wait_until(lambda: ran, "the body runs")
        TAKE_AWAY[how](conn, functions)
        go_on.set()
        if len(functions) > 1:
            wait_until(lambda: meter.commit_failures >= 6, "the commit fails again and again")
            assert count(conn, "pgflow.held") == 0
        TAKE_AWAY[how](conn, functions, back=True)
        assert run.result(LONG) == 1
    assert ran == [1]


@pytest.mark.full
def test_a_commit_that_is_cancelled_by_a_statement_timeout_is_sent_again(dsn, conn):
    @step
    async def act(n: int) -> int:
        return n

    @workflow
    async def work(n: int) -> int:
        return sum([await act(i) for i in range(n)])

    with psycopg.connect(dsn, autocommit=True) as admin:
        admin.execute(
            "do $$ begin execute format('alter database %I set statement_timeout = 1000', "
            "current_database()); end $$"
        )
    with working(dsn, work) as (app, meter):
        with conn.transaction():
            conn.execute("lock table pgflow.unit in share mode")
            runs = app.start_many(work, [(5,) for _ in range(5)])
            wait_until(lambda: meter.commit_failures >= 3, "commits are cancelled")
        assert [run.result(LONG) for run in runs] == [10] * 5
    assert count(conn, "pgflow.held") == 0
    conn.execute(
        "do $$ begin execute format('alter database %I reset all', current_database()); end $$"
    )  # the audit takes its time


REFUSE = """
create function refuse() returns trigger language plpgsql as $$
begin
  if new.name = 'poor' then
    raise exception using errcode = '%s', message = 'not this one';
  end if;
  return new;
end $$;
create trigger refuse before insert on pgflow.unit for each row execute function refuse();
"""


@step
async def poor() -> int:
    return 1


@step
async def rich() -> int:
    return 2


@workflow
async def poor_work() -> int:
    return await poor()


@workflow
async def rich_work() -> int:
    return sum([await rich() for _ in range(5)])


@pytest.mark.full
@pytest.mark.parametrize("state", ["P0001", "40001", "57014"])
def test_what_is_refused_for_long_for_one_run_holds_that_run_and_no_other(
    dsn, conn, monkeypatch, state
):
    monkeypatch.setattr("pgflow._worker.committer.REFUSED_AFTER_SECONDS", 0.5)
    conn.execute(REFUSE % state)
    paged = []
    with App(dsn, include=[poor_work, rich_work]) as app:
        app.pager(paged.append)
        app.start(poor_work.options(key="poor"))
        with app.worker(poll_seconds=0.05):
            assert [app.start(rich_work).result(SOON) for _ in range(5)] == [10] * 5
            wait_until(lambda: paged, "a person is told")
            assert run_row(conn, "poor", "status, reason") == ("stuck", "refused")
            (detail,) = conn.execute("select detail from pgflow.held").fetchone()
            assert (detail["sqlstate"], "not this one" in detail["message"]) == (state, True)
            conn.execute("drop trigger refuse on pgflow.unit")
            conn.execute("select pgflow.retry_run('poor')")
            wait_until(
                lambda: run_row(conn, "poor", "status, output") == ("completed", 1), "it goes on"
            )
    assert paged[0].why == detail["message"]


def test_data_that_the_server_refuses_holds_its_run_at_once(dsn, conn):
    conn.execute(REFUSE % "22003")
    with working(dsn, poor_work, rich_work) as (app, _):
        app.start(poor_work.options(key="poor"))
        wait_until(lambda: count(conn, "pgflow.held"), "it is held")
        assert app.start(rich_work).result(SOON) == 10
    assert run_row(conn, "poor", "status, reason") == ("stuck", "refused")
    conn.execute("drop trigger refuse on pgflow.unit")


@pytest.mark.full
def test_a_run_is_not_held_for_what_the_server_takes_when_it_is_asked_once_more(
    dsn, conn, monkeypatch
):
    """A run is not held while nothing at all can be committed, since a hold cannot either: it goes
    on by itself afterwards.
    """
    monkeypatch.setattr("pgflow._worker.committer.REFUSED_AFTER_SECONDS", 0.1)
    with working(dsn, rich_work) as (app, meter):
        rename(conn, COMMIT_FUNCTIONS)
        run = app.start(rich_work)
        wait_until(
            lambda: meter.commit_failures >= 8,
            "the commit fails for longer than a run would be refused",
        )
        rename(conn, COMMIT_FUNCTIONS, back=True)
        assert run.result(LONG) == 10


@pytest.mark.full
def test_a_journal_without_room_is_waited_out_until_it_has_some(dsn, conn):
    """No partition for a run is trouble of ours, though Postgres calls it a violation of a
    check.
    """
    (partition,) = conn.execute(
        "select inhrelid::regclass::text from pg_inherits where inhparent = "
        "'pgflow.unit'::regclass order by 1 limit 1"
    ).fetchone()
    (bounds,) = conn.execute(
        "select pg_get_expr(relpartbound, oid) from pg_class where oid = %s::regclass", (partition,)
    ).fetchone()
    with working(dsn, rich_work) as (app, meter):
        conn.execute(f"alter table pgflow.unit detach partition {partition}")
        run = app.start(rich_work)
        wait_until(lambda: meter.commit_failures >= 4, "commits fail")
        assert count(conn, "pgflow.held") == 0
        conn.execute(f"alter table pgflow.unit attach partition {partition} {bounds}")
        assert run.result(LONG) == 10


@pytest.mark.parametrize("how", TAKE_AWAY)
@pytest.mark.parametrize("colour", ["async", "sync"])
def test_who_has_sent_something_is_not_told_that_it_failed_because_nobody_could_be_woken(
    worker_dsn, conn, colour, how, caplog
):
    """A message that was sent is committed, and would be sent twice."""
    go = pgflow.Signal("go", int)
    TAKE_AWAY[how](conn, ("wake",))

    async def send_async() -> None:
        async with pgflow.AsyncApp(worker_dsn, include=[rich_work]) as app:
            await app.start(rich_work.options(key="r"))
            await app.send("r", go, 1)

    if colour == "async":
        asyncio.run(send_async())
    else:
        with App(worker_dsn, include=[rich_work]) as app:
            app.start(rich_work.options(key="r"))
            app.send("r", go, 1)
    assert count(conn, "pgflow.signal") == 1
    assert "cannot wake" in caplog.text
    TAKE_AWAY[how](conn, ("wake",), back=True)


def test_a_signal_of_the_command_line_is_sent_though_nobody_could_be_woken(dsn, conn, caplog):
    with App(dsn, include=[rich_work]) as app:
        app.start(rich_work.options(key="r"))
    rename(conn, ("wake",))
    answer = cli(dsn, "signal", "r", "go", "1")
    assert (answer.code, count(conn, "pgflow.signal")) == (0, 1)
    assert "could not notify a worker" in caplog.text


def no_such_server() -> None:
    psycopg.connect("host=127.0.0.1 port=1 dbname=nowhere user=nobody connect_timeout=2")


def locked() -> None:
    raise psycopg.errors.LockNotAvailable("could not obtain lock on row")


@pytest.mark.parametrize("kind", ["step", "read", "decision"])
@pytest.mark.parametrize("colour", ["async", "sync"])
def test_trouble_with_a_database_of_the_body_s_own_is_its_failure(flow, conn, kind, colour):
    ran = []
    declare: Any = {"step": step, "read": read, "decision": decision}[kind]

    if colour == "async":

        @declare(retries=Retries(max_attempts=2, first_delay=AT_ONCE))
        async def other() -> Any:
            ran.append(1)
            no_such_server()
    else:

        @declare(retries=Retries(max_attempts=2, first_delay=AT_ONCE))
        def other() -> Any:
            ran.append(1)
            no_such_server()

    @workflow
    async def work() -> str:
        try:
            await (other() if colour == "async" else other.aio())
        except psycopg.OperationalError as error:
            return type(error).__name__
        except pgflow.StepFailed as error:
            return error.error_type
        return "nothing"

    assert result_of(flow, work) == "psycopg.OperationalError"
    assert ran == [1, 1]


@pytest.mark.parametrize("colour", ["async", "sync"])
def test_raises_of_a_step_counts_for_errors_of_a_database_too(flow, conn, colour):
    ran = []

    @step(retries=5, raises=[psycopg.errors.LockNotAvailable])
    async def nowait() -> None:
        ran.append(1)
        locked()

    @step(retries=5, raises=[psycopg.errors.LockNotAvailable])
    def nowait_sync() -> None:
        ran.append(1)
        locked()

    @workflow
    async def work() -> str:
        try:
            await (nowait() if colour == "async" else nowait_sync.aio())
        except psycopg.errors.LockNotAvailable:
            return "locked"
        return "not locked"

    assert result_of(flow, work) == "locked"
    assert ran == [1]


@pytest.mark.parametrize("colour", ["async", "sync"])
def test_another_connection_in_a_transaction_is_the_body_s_own(flow, conn, dsn, colour):
    ran = []

    @transaction
    async def other(mine: AsyncConnection) -> None:
        ran.append(1)
        await mine.execute("select 1")
        async with await psycopg.AsyncConnection.connect(dsn) as another:
            await another.execute("do $$ begin raise exception using errcode = '40001'; end $$")

    @transaction
    def other_sync(mine: Connection) -> None:
        ran.append(1)
        mine.execute("select 1")
        with psycopg.connect(dsn) as another:
            another.execute("do $$ begin raise exception using errcode = '40001'; end $$")

    @workflow
    async def work() -> None:
        await (other() if colour == "async" else other_sync.aio())

    with pytest.raises(RunFailed):
        result_of(flow, work)
    assert ran == [1]


def raising(states: list[str]) -> Callable[[], str | None]:
    """The SQLSTATEs to raise, one an attempt, then none."""
    remaining = iter(states)
    return lambda: next(remaining, None)


RAISE = "select set_config('raised.state', %s, true)"
RAISED = "do $$ begin raise exception using errcode = current_setting('raised.state'); end $$"


async def fail_there(connection: AsyncConnection, where: str) -> None:
    """Has a statement fail at this place of a body."""
    if where == "plainly":
        await connection.execute(RAISED)
    elif where == "in a savepoint":
        async with connection.transaction():
            await connection.execute(RAISED)
    else:
        try:
            await connection.execute(RAISED)
        except psycopg.Error as error:
            raise KeyError("mine") from error


def fail_there_sync(connection: Connection, where: str) -> None:
    """As `fail_there` does."""
    if where == "plainly":
        connection.execute(RAISED)
    elif where == "in a savepoint":
        with connection.transaction():
            connection.execute(RAISED)
    else:
        try:
            connection.execute(RAISED)
        except psycopg.Error as error:
            raise KeyError("mine") from error


@pytest.mark.parametrize("where", ["plainly", "in a savepoint", "and passed on as the body's own"])
@pytest.mark.parametrize(
    ("colour", "state"),
    [
        pytest.param(
            colour,
            state,
            marks=() if (colour == "sync") == (state == "40P01") else pytest.mark.full,
        )
        for colour in ("async", "sync")
        for state in ("40001", "40P01", "55P03", "53200", "57P01", "25P03")
    ],
)
def test_trouble_of_the_transaction_s_connection_is_waited_out(flow, conn, colour, state, where):
    ran, state_of = [], raising([state])

    @transaction(raises=[ValueError])
    async def mine(connection: AsyncConnection) -> int:
        ran.append(1)
        if wanted := state_of():
            await connection.execute(RAISE, (wanted,))
            await fail_there(connection, where)
        return len(ran)

    @transaction(raises=[ValueError])
    def mine_sync(connection: Connection) -> int:
        ran.append(1)
        if wanted := state_of():
            connection.execute(RAISE, (wanted,))
            fail_there_sync(connection, where)
        return len(ran)

    @workflow
    async def work() -> int:
        return await (mine() if colour == "async" else mine_sync.aio())

    run = launch(flow, work)
    assert run.result(SOON) == 2
    assert steps(conn, run.key) == [("mine" if colour == "async" else "mine_sync", "completed", 1)]


@pytest.mark.parametrize("colour", ["async", "sync"])
def test_a_lock_that_is_not_to_be_had_is_an_outcome_where_the_transaction_says_so(
    flow, conn, dsn, colour
):
    conn.execute("create table seat (n int primary key); insert into seat values (1)")
    ran = []

    @transaction(raises=[psycopg.errors.LockNotAvailable])
    async def take(mine: AsyncConnection) -> None:
        ran.append(1)
        await mine.execute("select from seat for update nowait")

    @transaction(raises=[psycopg.errors.LockNotAvailable])
    def take_sync(mine: Connection) -> None:
        ran.append(1)
        mine.execute("select from seat for update nowait")

    @workflow
    async def work() -> str:
        try:
            await (take() if colour == "async" else take_sync.aio())
        except psycopg.errors.LockNotAvailable:
            return "taken"
        return "free"

    with psycopg.connect(dsn) as other:
        other.execute("select from seat for update")
        assert result_of(flow, work) == "taken"
    assert ran == [1]


@pytest.mark.full
@pytest.mark.parametrize("colour", ["async", "sync"])
def test_a_lost_connection_and_a_conflict_are_no_outcome_whatever_the_transaction_says(
    flow, conn, colour
):
    ran, state_of = [], raising(["40001", "08006"])

    @transaction(raises=[psycopg.Error])
    async def take(mine: AsyncConnection) -> int:
        ran.append(1)
        if wanted := state_of():
            await mine.execute(RAISE, (wanted,))
            await mine.execute(RAISED)
        return len(ran)

    @transaction(raises=[psycopg.Error])
    def take_sync(mine: Connection) -> int:
        ran.append(1)
        if wanted := state_of():
            mine.execute(RAISE, (wanted,))
            mine.execute(RAISED)
        return len(ran)

    @workflow
    async def work() -> int:
        return await (take() if colour == "async" else take_sync.aio())

    assert result_of(flow, work) == 3


@pytest.mark.full
@pytest.mark.parametrize("name", ["begin_step", "fence_step"])
@pytest.mark.parametrize("colour", ["async", "sync"])
def test_an_engine_call_of_a_transaction_that_cannot_be_made_is_waited_out(dsn, conn, colour, name):
    @transaction
    async def take(mine: AsyncConnection) -> int:
        return 1

    @transaction
    def take_sync(mine: Connection) -> int:
        return 1

    @workflow
    async def work() -> int:
        return await (take() if colour == "async" else take_sync.aio())

    rename(conn, (name,))
    with working(dsn, work) as (app, meter):
        run = app.start(work)
        wait_until(lambda: meter.retries["transaction", "infrastructure"] >= 2, "it is tried again")
        rename(conn, (name,), back=True)
        assert run.result(LONG) == 1
        found = steps(conn, run.key)
        assert found == [("take" if colour == "async" else "take_sync", "completed", 1)]


@pytest.mark.full
def test_a_transaction_that_the_server_will_not_have_for_long_is_held_for_a_person(
    dsn, conn, monkeypatch
):
    monkeypatch.setattr("pgflow._worker.bodies.REFUSED_AFTER_SECONDS", 0.3)

    @transaction
    async def take(mine: AsyncConnection) -> int:
        return 1

    @workflow
    async def work() -> int:
        return await take()

    rename(conn, ("fence_step",))
    with working(dsn, work) as (app, _):
        run = app.start(work)
        wait_until(lambda: count(conn, "pgflow.held"), "it is held")
        assert run_row(conn, run.key, "status, reason") == ("stuck", "refused")
        (detail,) = conn.execute("select detail from pgflow.held").fetchone()
        assert (detail["sqlstate"], detail["step"]) == ("42883", "take")
        rename(conn, ("fence_step",), back=True)
        conn.execute("select pgflow.retry_run(%s)", (run.key,))
        wait_until(
            lambda: run_row(conn, run.key, "status, output") == ("completed", 1), "it goes on"
        )


def test_a_transaction_is_not_held_for_its_first_trouble_however_long_its_body_took(
    flow, conn, monkeypatch
):
    monkeypatch.setattr("pgflow._worker.bodies.REFUSED_AFTER_SECONDS", 0.0)
    ran, state_of = [], raising(["25P03"])

    @transaction
    async def long(mine: AsyncConnection) -> int:
        ran.append(1)
        if wanted := state_of():
            await mine.execute(RAISE, (wanted,))
            await mine.execute(RAISED)
        return len(ran)

    @workflow
    async def work() -> int:
        return await long()

    assert result_of(flow, work) == 2


@pytest.mark.parametrize(("state", "is_held"), [("40001", True), ("55P03", False)])
def test_a_transaction_that_loses_every_conflict_for_long_is_held_and_one_that_waits_for_a_lock_is_not(
    flow, conn, monkeypatch, state, is_held
):
    monkeypatch.setattr("pgflow._worker.bodies.REFUSED_AFTER_SECONDS", 0.0)
    ran = []

    @transaction
    async def unlucky(mine: AsyncConnection) -> int:
        ran.append(1)
        if len(ran) < 5:
            await mine.execute(RAISE, (state,))
            await mine.execute(RAISED)
        return len(ran)

    @workflow
    async def work() -> int:
        return await unlucky()

    run = launch(flow, work)
    if is_held:
        with pytest.raises(RunStuck, match="refused"):
            run.result(SOON)
        assert ran == [1, 1]
    else:
        assert run.result(SOON) == 5


def stand_still_before_the_first_commit(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Has the first COMMIT behind a fence wait until the server has ended the session."""
    from pgflow._transactions.psycopg import _AsyncPsycopgTransaction, _PsycopgTransaction

    stood_still = []
    gone = "select from pg_stat_activity where pid = %s"

    def is_gone(pid: int) -> bool:
        with psycopg.connect(dsn, autocommit=True) as witness:
            return not witness.execute(gone, (pid,)).fetchall()

    def stand_still(connection: Any) -> None:
        stood_still.append(1)
        wait_until(lambda: is_gone(connection.info.backend_pid), "the server has ended the session")

    commit, execute_and_commit = (
        _PsycopgTransaction.commit,
        _AsyncPsycopgTransaction.execute_and_commit,
    )

    def commit_late(self: Any) -> None:
        if not stood_still:
            stand_still(self.connection)
        commit(self)

    async def fence_and_commit_late(self: Any, sql: Any, params: Any) -> Any:
        if stood_still:
            return await execute_and_commit(self, sql, params)
        rows = (await self._rows((sql, params)))[0]
        await asyncio.to_thread(stand_still, self.connection)
        await self.commit()
        return rows

    monkeypatch.setattr(_PsycopgTransaction, "commit", commit_late)
    monkeypatch.setattr(_AsyncPsycopgTransaction, "execute_and_commit", fence_and_commit_late)


@pytest.mark.full
@pytest.mark.parametrize("colour", ["async", "sync"])
def test_a_session_that_the_server_ends_between_fence_and_commit_is_not_the_body_s_failure(
    dsn, conn, colour, monkeypatch
):
    """The fence sets a time-out of its own for what comes after it: a client that stands still
    there loses its session (25P03).
    """
    stand_still_before_the_first_commit(dsn, monkeypatch)
    conn.execute("create table booked (n int)")

    @transaction
    async def book(mine: AsyncConnection) -> int:
        await mine.execute("insert into booked values (1)")
        return 1

    @transaction
    def book_sync(mine: Connection) -> int:
        mine.execute("insert into booked values (1)")
        return 1

    @workflow
    async def work() -> int:
        return await (book() if colour == "async" else book_sync.aio())

    with working(dsn, work) as (app, _):
        run = app.start(work)
        assert run.result(LONG) == 1
        assert [status for _, status, _ in steps(conn, run.key)] == ["completed"]
    assert count(conn, "booked") == 1


@pytest.mark.parametrize("colour", ["async", "sync"])
def test_a_pool_whose_connections_have_all_died_has_another_at_once(dsn, conn, colour):
    options, size = ConnectOptions(dsn), 4
    kill = "select count(pg_terminate_backend(pid, 5000)) from pg_stat_activity where application_name = 'mortal' and datname = current_database()"

    async def take_async() -> int:
        async with make_pool_async(options, "mortal", size) as pool:
            for connection in [await pool.getconn() for _ in range(size)]:
                await pool.putconn(connection)
            assert conn.execute(kill).fetchone() == (size,)
            async with pool.connection(timeout=HANG_SECONDS) as connection:
                (one,) = await (await connection.execute("select 1")).fetchone() or (0,)
                return one

    def take() -> int:
        with make_pool(options, "mortal", size) as pool:
            for connection in [pool.getconn() for _ in range(size)]:
                pool.putconn(connection)
            assert conn.execute(kill).fetchone() == (size,)
            with pool.connection(timeout=HANG_SECONDS) as connection:
                (one,) = connection.execute("select 1").fetchone() or (0,)
                return one

    assert (asyncio.run(take_async()) if colour == "async" else take()) == 1


@pytest.mark.parametrize("colour", ["async", "sync"])
def test_a_body_that_closes_its_connection_is_not_run_again_and_again(flow, conn, colour):
    """It has ended its transaction itself: whether it has committed before, nobody can tell."""
    ran = []

    @transaction
    async def close(mine: AsyncConnection) -> None:
        ran.append(1)
        await mine.close()

    @transaction
    def close_sync(mine: Connection) -> None:
        ran.append(1)
        mine.close()

    @workflow
    async def work() -> None:
        await (close() if colour == "async" else close_sync.aio())

    with pytest.raises(RunStuck, match="committed_outside"):
        result_of(flow, work)
    assert ran == [1]
