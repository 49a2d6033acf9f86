"""`pgflow workers` as processes: stopping, dying, freezing, losing the database, holding up the
loop.
"""

from __future__ import annotations

import json
import os
import signal
from contextlib import contextmanager, suppress

import pytest
from processes import one, worker
from servers import wait_until


@pytest.fixture
def app_conn(conn):
    conn.execute("create schema app; create table app.booked (key text, n int)")
    return conn


def start(conn, workflow, key=None, /, **input_):
    return one(
        conn,
        "select run_key from pgflow.start_run(%s, %s::json, %s)",
        workflow,
        json.dumps(input_),
        key,
    )


def start_bookings(conn, count, steps=5, pause=0.0, name="k"):
    keys = [f"{name}{i}" for i in range(count)]
    for key in keys:
        start(conn, "booking", key, key=key, steps=steps, pause=pause)
    return keys


def unfinished(conn):
    return one(
        conn,
        "select count(*) from pgflow.runs where status not in ('completed', 'failed', 'cancelled', "
        "'stuck')",
    )


def assert_booked_once(conn, keys, steps):
    rows = conn.execute(
        "select key, count(*), count(distinct n) from app.booked group by key"
    ).fetchall()
    assert sorted(rows) == sorted((key, steps, steps) for key in keys)


@pytest.mark.full
def test_two_processes_share_a_queue_and_do_everything_once(dsn, app_conn):
    keys = start_bookings(app_conn, 200)
    with worker(dsn) as first, worker(dsn) as second:
        first.registered(), second.registered()
        wait_until(lambda: unfinished(app_conn) == 0, "the queue is drained")
    assert_booked_once(app_conn, keys, 5)


@pytest.mark.full
def test_after_sigterm_nothing_is_leased_and_the_exit_code_is_zero(dsn, app_conn):
    keys = start_bookings(app_conn, 60, steps=20, pause=0.01)
    for booked in (0, 1, 90, 200, 410, 800):  # wherever it is in its work
        with worker(dsn, "--concurrency", "10") as process:
            process.registered()
            wait_until(
                lambda booked=booked: one(app_conn, "select count(*) from app.booked") >= booked,
                "it has got so far",
            )
            process.send(signal.SIGTERM)
            code, log = process.finish()
            assert code == 0, log
        assert one(app_conn, "select count(*) from pgflow.lease") == 0
        assert one(app_conn, "select count(*) from pgflow.workers") == 0
    with worker(dsn):
        wait_until(lambda: unfinished(app_conn) == 0, "the queue is drained")
    assert_booked_once(app_conn, keys, 20)


@pytest.mark.full
@pytest.mark.parametrize("workflow", ["hanging", "unwilling"])
def test_a_thread_that_never_ends_does_not_keep_the_process_alive(dsn, app_conn, workflow):
    start(app_conn, workflow)
    with worker(dsn, "--grace", "0.2s") as process:
        process.registered()
        wait_until(
            lambda: one(
                app_conn, "select count(*) from pgflow.runs where status in ('running', 'waiting')"
            ),
            "the run is worked on",
        )
        process.send(signal.SIGTERM)
        code, log = process.finish()
    assert code == 0, log
    assert one(app_conn, "select count(*) from pgflow.lease") == 0


def test_a_stop_that_comes_during_the_start_is_not_lost(dsn, app_conn):
    with worker(dsn, module="stop_during_start") as process:
        code, log = process.finish()
    assert code == 0, log
    assert one(app_conn, "select count(*) from pgflow.workers") == 0


@pytest.mark.full
def test_a_second_sigterm_is_a_crash_and_the_runs_go_on_elsewhere(dsn, app_conn):
    start(app_conn, "booking", "slow", key="slow", steps=3, pause=1.0)
    with worker(dsn, "--grace", "60s") as process:
        process.registered()
        wait_until(
            lambda: one(
                app_conn,
                "select count(*) from pgflow.steps where step = 'rest' and status = 'started'",
            ),
            "it is in its step",
        )
        process.send(signal.SIGTERM)
        wait_until(
            lambda: one(app_conn, "select bool_or(stopping) from pgflow.workers"),
            "the worker is stopping",
        )
        process.send(signal.SIGTERM)
        assert process.finish()[0] == 1
    assert one(app_conn, "select count(*) from pgflow.lease") == 1
    with worker(dsn):
        wait_until(lambda: unfinished(app_conn) == 0, "the run goes on elsewhere")
    assert_booked_once(app_conn, ["slow"], 3)


def pids_of(conn):
    return {pid for (pid,) in conn.execute("select pid from pgflow.workers")}


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@contextmanager
def two_supervised(dsn, conn):
    with worker(dsn, "--processes", "2") as supervisor:
        wait_until(lambda: len(pids_of(conn)) == 2, "both have registered")
        pids = pids_of(conn)
        assert supervisor.pid not in pids
        yield supervisor, pids
    wait_until(lambda: not any(map(is_alive, pids)), "none is left")


@pytest.mark.full
def test_a_supervised_worker_that_dies_is_replaced_and_one_sigterm_stops_all(dsn, app_conn):
    with two_supervised(dsn, app_conn) as (supervisor, pids):
        os.kill(min(pids), signal.SIGKILL)
        wait_until(lambda: pids_of(app_conn) - pids, "another has registered")
        keys = start_bookings(app_conn, 20)
        wait_until(lambda: unfinished(app_conn) == 0, "the queue is drained")
        assert_booked_once(app_conn, keys, 5)
        supervisor.send(signal.SIGTERM)
        for pid in pids_of(app_conn) - {min(pids)}:  # as systemd sends it to all of a service
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        code, log = supervisor.finish()
        assert code == 0, log
        assert "was killed by signal 9; starting another" in log
    assert pids_of(app_conn) <= {min(pids)}


@pytest.mark.full
@pytest.mark.parametrize("how", ["killed", "asked twice"])
def test_supervised_workers_end_with_their_supervisor(dsn, app_conn, how):
    start(app_conn, "booking", "slow", key="slow", steps=3, pause=5.0)
    with two_supervised(dsn, app_conn) as (supervisor, _):
        wait_until(
            lambda: one(
                app_conn,
                "select count(*) from pgflow.steps where step = 'rest' and status = 'started'",
            ),
            "it is in its step",
        )
        if how == "asked twice":
            supervisor.send(signal.SIGTERM)
            wait_until(
                lambda: one(app_conn, "select bool_or(stopping) from pgflow.workers"),
                "they are stopping",
            )
            supervisor.send(signal.SIGTERM)
            assert supervisor.finish()[0] == 1
        else:
            supervisor.send(signal.SIGKILL)


@pytest.mark.full
def test_a_mistake_ends_all_supervised_workers(dsn):
    with worker(dsn, "--processes", "2", module="no_such_module") as supervisor:
        code, log = supervisor.finish()
    assert code == 2
    assert "no_such_module" in log


@pytest.mark.full
def test_a_frozen_worker_that_wakes_up_commits_nothing_and_begins_anew(dsn, app_conn):
    keys = start_bookings(app_conn, 20, steps=30, pause=0.02)
    with worker(dsn, "--concurrency", "20") as frozen:
        dead = frozen.registered()
        wait_until(lambda: one(app_conn, "select count(*) from app.booked") > 20, "it works")
        frozen.send(signal.SIGSTOP)
        with worker(dsn) as other:
            other.registered()
            wait_until(
                lambda: (
                    one(app_conn, "select count(*) from pgflow.lease where worker_id = %s", dead)
                    == 0
                ),
                "its runs are taken",
            )
            frozen.send(signal.SIGCONT)
            wait_until(
                lambda: one(app_conn, "select count(*) from pgflow.workers") == 2,
                "it registers anew",
            )
            wait_until(lambda: unfinished(app_conn) == 0, "everything is done")
    assert_booked_once(app_conn, keys, 30)


@pytest.mark.full
def test_a_poison_run_is_stuck_in_the_end_and_condemns_no_neighbour(dsn, app_conn):
    app_conn.execute("select pgflow.set_queue('default', jsonb_build_object('max_deaths', 3))")
    keys = start_bookings(app_conn, 12, steps=40, pause=0.05)
    start(app_conn, "poison", "bad")
    deaths = 0
    processes = []
    try:

        def stuck():
            nonlocal deaths
            for entry in [p for p in processes if p[1].process.poll() is not None]:
                deaths += 1
                entry[0].__exit__(None, None, None)
                processes.remove(entry)
            while len(processes) < 2:
                manager = worker(dsn, "--dead-after", "2s")
                processes.append((manager, manager.__enter__()))
            return one(app_conn, "select count(*) from pgflow.runs where status = 'stuck'")

        wait_until(stuck, "the poison run is stuck")
        assert app_conn.execute(
            "select key, reason from pgflow.runs where status = 'stuck'"
        ).fetchall() == [("bad", "poison")]
        wait_until(lambda: (stuck(), unfinished(app_conn) == 0)[1], "its neighbours finish")
    finally:
        for manager, _ in processes:
            manager.__exit__(None, None, None)
    # The licence of its step is progress: the first death is not counted. Neighbours that die with it
    # twice are told from it in groups that halve.
    assert 4 <= deaths <= 4 + 4
    assert_booked_once(app_conn, keys, 40)


@pytest.mark.full
def test_work_goes_on_while_connections_are_killed_again_and_again(dsn, app_conn):
    keys = []
    kill = (
        "select count(pg_terminate_backend(pid)) from (select pid from pg_stat_activity "
        "where datname = current_database() "
        "and pid <> pg_backend_pid() and application_name like 'pgflow%%' order by "
        "random() limit 1) x"
    )
    with worker(dsn, "--concurrency", "30") as process:
        process.registered()
        for more in "abcdefghijkl":
            keys += start_bookings(app_conn, 5, steps=20, pause=0.01, name=more)
            booked = "select count(*) from app.booked where key like %s"
            wait_until(lambda: one(app_conn, booked, f"{more}%") > 5, "they have begun")  # noqa: B023
            wait_until(lambda: one(app_conn, kill), "a connection is killed")
        wait_until(lambda: unfinished(app_conn) == 0, "everything is done")
    assert_booked_once(app_conn, keys, 20)


@pytest.mark.full
def test_a_step_that_hogs_the_processor_is_not_taken_for_a_death(dsn, app_conn, tmp_path):
    key = start(app_conn, "hogging", until=str(tmp_path / "enough"))
    seen = ("--dead-after", "3s")  # five beats
    with worker(dsn, *seen) as process, worker(dsn, *seen) as other:
        process.registered(), other.registered()
        begun = "select count(*) from pgflow.steps where key = %s and status = 'started'"
        wait_until(lambda: one(app_conn, begun, key), "it is in its step")
        before = one(app_conn, "select max(beat) from pgflow.workers")
        beats = "select count(*) = 2 from pgflow.workers where beat > %s"
        wait_until(lambda: one(app_conn, beats, before + 6), "both hearts beat on")
        (tmp_path / "enough").touch()
        wait_until(lambda: unfinished(app_conn) == 0, "the run is done")
    found = one(app_conn, "select count(*) from pgflow.steps where key = %s and attempts = 1", key)
    assert found == 1


@pytest.mark.full
def test_code_that_blocks_the_loop_is_named_in_the_log(dsn, app_conn):
    key = start(app_conn, "blocking", "blocker", seconds=2.5)
    with worker(dsn) as process:
        process.registered()
        wait_until(lambda: unfinished(app_conn) == 0, "the run is done")
        process.send(signal.SIGTERM)
        code, log = process.finish()
    assert code == 0
    assert "blocked for" in log and f"the code of run {key!r}" in log


def test_a_worker_finds_work_by_polling_when_nobody_notifies(dsn, app_conn):
    with worker(dsn) as process:
        process.registered()
        start(app_conn, "booking", "quiet", key="quiet", steps=1)
        wait_until(lambda: unfinished(app_conn) == 0, "the run is done")


def test_an_unreachable_database_is_one_line_and_exit_code_69():
    with worker("host=127.0.0.1 port=1 connect_timeout=2") as process:
        code, log = process.finish()
    assert code == 69
    assert log.startswith("pgflow: the database cannot be reached") and log.count("\n") == 1


@pytest.mark.full
def test_waiting_runs_are_woken_by_a_signal_from_sql(dsn, app_conn):
    start(app_conn, "waiting", "w")
    with worker(dsn) as process:
        process.registered()
        wait_until(
            lambda: one(app_conn, "select status from pgflow.runs where key = 'w'") == "waiting",
            "it waits",
        )
        app_conn.execute("select pgflow.send_signal('w', 'go', '5')")
        wait_until(
            lambda: one(app_conn, "select status from pgflow.runs where key = 'w'") == "completed",
            "it goes on",
        )
    assert one(app_conn, "select output::text from pgflow.runs where key = 'w'") == "5"
