"""Metrics: the counters of a worker, and the endpoint at which Prometheus reads them."""

from __future__ import annotations

import json
import signal
import socket
import time
import urllib.request
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest
import servers
from clikit import finish, make_stuck, process
from processes import worker
from prometheus_client.parser import text_string_to_metric_families
from psycopg.conninfo import make_conninfo
from records import SOON, wait_until
from servers import HANG_SECONDS

import pgflow
from pgflow import App, Retries, RunFailed, Signal, read, step, transaction, workflow
from pgflow.meter import Histogram, Meter
from pgflow.prometheus import serve

go = Signal("go", int)

Figures = dict[tuple[str, frozenset[tuple[str, str]]], float]


def scrape(url: str) -> Figures:
    """Every sample, as a real parser reads it."""
    with urllib.request.urlopen(
        url, timeout=HANG_SECONDS
    ) as answer:  # proxies are of no use to the loopback
        assert answer.headers["Content-Type"].startswith("text/plain")
        text = answer.read().decode()
    return {
        (s.name, frozenset(s.labels.items())): s.value
        for family in text_string_to_metric_families(text)
        for s in family.samples
    }


def of(figures: Figures, name: str, **labels: str) -> float | None:
    return figures.get((name, frozenset(labels.items())))


@pytest.fixture
def meter() -> Meter:
    return Meter()


@pytest.fixture
def url(dsn: str, meter: Meter) -> Iterator[str]:
    server = serve(meter, dsn, port=0)
    yield server.url
    server.close()


@step(retries=Retries(max_attempts=2, first_delay=timedelta(milliseconds=1)))
async def shaky() -> int:
    if pgflow.run_info().step_attempt == 1:
        raise OSError
    return 1


@step(retries=1)
def hopeless() -> None:
    raise ValueError


@read
async def look() -> int:
    return 1


@transaction
async def write(conn: psycopg.AsyncConnection[Any]) -> int:
    return 1


@workflow
async def work() -> int:
    await shaky()
    await look()
    await write()
    return await go.wait()


@workflow
async def bad() -> None:
    await hopeless.aio()


@pytest.mark.full
def test_a_worker_counts_runs_steps_retries_and_commits(dsn, meter, url):
    began = time.monotonic()
    with App(dsn, include=[work, bad]) as app, app.worker(meter=meter, concurrency=7):
        run = app.start(work)
        wait_until(lambda: run.status() == "waiting", "the run waits")
        run.send(go, 1)
        run.result(SOON)
        with pytest.raises(RunFailed):
            app.start(bad).result(SOON)
        wait_until(
            lambda: meter.worker is not None and meter.worker.active == 0,
            "the worker has nothing to do",
        )
        found = scrape(url)
    assert of(found, "pgflow_runs_claimed_total", workflow="work") == 2
    assert of(found, "pgflow_runs_left_total", workflow="work", place="waiting") == 1
    assert of(found, "pgflow_runs_finished_total", workflow="work", status="completed") == 1
    assert of(found, "pgflow_runs_finished_total", workflow="bad", status="failed") == 1
    attempts = {
        key: value for key, value in found.items() if key[0] == "pgflow_step_attempts_total"
    }
    assert {
        (dict(labels)["effect"], dict(labels)["outcome"]): value
        for (_, labels), value in attempts.items()
    } == {
        ("step", "retried"): 1,
        ("step", "completed"): 1,
        ("step", "failed"): 1,
        ("read", "completed"): 1,
        ("transaction", "completed"): 1,
    }
    assert of(found, "pgflow_step_retries_total", effect="step", reason="failure") == 1
    commits = of(found, "pgflow_commits_total")
    assert commits is not None
    assert commits >= 4
    assert (
        of(found, "pgflow_commit_seconds_count")
        == of(found, "pgflow_commit_batch_runs_count")
        == commits
    )
    assert of(found, "pgflow_commit_batch_runs_bucket", le="1.0") == commits, "one run at a time"
    assert (of(found, "pgflow_claim_seconds_count") or 0) >= 1
    assert (of(found, "pgflow_units_committed_total") or 0) >= 3
    assert (of(found, "pgflow_active_runs"), of(found, "pgflow_concurrency")) == (0, 7)
    age = of(found, "pgflow_heartbeat_age_seconds")
    assert age is not None
    assert 0 <= age <= time.monotonic() - began


@pytest.mark.full
def test_the_endpoint_says_how_much_stands_in_the_database(dsn, conn, url):
    make_stuck(conn, "stuck-1")
    began = time.monotonic()
    conn.execute("select pgflow.start_run('work', '{}', null, 'mail') from generate_series(1, 3)")
    conn.execute(
        "select pgflow.start_run('work', '{}', 'later', 'mail', run_at => now() + interval '1 "
        "hour')"
    )
    found = scrape(url)
    conn.execute("select pgflow.start_run('work', '{}', null, 'mail')")
    assert of(scrape(url), "pgflow_queue_runs", queue="mail", status="queued") == 3, (
        "the database is not asked again at once"
    )
    assert of(found, "pgflow_database_up") == 1
    assert of(found, "pgflow_queue_runs", queue="mail", status="queued") == 3
    assert of(found, "pgflow_queue_runs", queue="mail", status="waiting") == 1
    assert of(found, "pgflow_queue_runs", queue="fragile", status="stuck") == 1
    assert of(found, "pgflow_queue_oldest_ready_age_seconds", queue="fragile") == 0
    age = of(found, "pgflow_queue_oldest_ready_age_seconds", queue="mail")
    assert age is not None
    assert 0 < age <= time.monotonic() - began
    assert of(found, "pgflow_workers") == 0
    assert (of(found, "pgflow_timers_due"), of(found, "pgflow_timer_lateness_seconds")) == (0, 0)
    (due,) = conn.execute(
        "select extract(epoch from run_at)::float8 from pgflow.runs where key = 'later'"
    ).fetchone()
    assert of(found, "pgflow_timer_next_due_timestamp_seconds") == pytest.approx(due)


@pytest.mark.full
def test_a_timer_that_nobody_takes_is_late(dsn, conn, url):
    for key in ("soon", "as soon"):
        conn.execute(
            "select pgflow.start_run('work', '{}', %s, run_at => clock_timestamp() + interval '0.1 "
            "s')",
            (key,),
        )
    conn.execute(
        "select pgflow.start_run('work', '{}', 'later', run_at => clock_timestamp() + interval '1 "
        "hour')"
    )
    wait_until(
        lambda: (
            conn.execute(
                "select run_at < clock_timestamp() from pgflow.runs where key = 'as soon'"
            ).fetchone()
            == (True,)
        ),
        "it is due",
    )
    found = scrape(url)
    assert of(found, "pgflow_timers_due") == 2
    assert (of(found, "pgflow_timer_lateness_seconds") or 0) > 0


@pytest.mark.full
def test_a_worker_that_may_do_no_more_than_work_may_be_scraped(dsn, conn, meter):
    conn.execute(
        "do $$ begin create role pgflow_worker; exception when duplicate_object then null; end $$"
    )
    servers.install_schema(dsn)  # grants to the roles there are
    conn.execute(
        "drop role if exists pgflow_metrics_test; create role pgflow_metrics_test login password "
        "'hunter2' in role pgflow_worker"
    )
    try:
        server = serve(
            meter, make_conninfo(dsn, user="pgflow_metrics_test", password="hunter2"), port=0
        )
        try:
            assert of(scrape(server.url), "pgflow_database_up") == 1
        finally:
            server.close()
    finally:
        conn.execute("drop role pgflow_metrics_test")


@pytest.mark.full
def test_a_database_that_is_away_is_said_to_be_and_the_rest_goes_on(meter, caplog):
    meter.claimed["work"] += 1
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and nobody listens
        server = serve(
            meter, f"postgresql://app:hunter2@127.0.0.1:{taken.getsockname()[1]}/app", port=0
        )
        try:
            found = scrape(server.url)
        finally:
            server.close()
    assert of(found, "pgflow_database_up") == 0
    assert of(found, "pgflow_runs_claimed_total", workflow="work") == 1
    assert not any(name.startswith("pgflow_queue") for name, _ in found)
    assert "cannot ask the database" in caplog.text
    assert "hunter2" not in caplog.text


def test_a_histogram_counts_each_value_in_its_bucket():
    histogram = Histogram((1, 2))
    for value in (0.5, 1, 1.5, 99):
        histogram.observe(value)
    assert (histogram.counts, histogram.total) == ([2, 1, 1], 102)


@pytest.mark.full
def test_workers_serves_figures_and_logs_objects(dsn, conn):
    conn.execute("create schema app; create table app.booked (key text, n int)")
    conn.execute(
        """select pgflow.start_run('booking', '{"key": "k", "steps": 2, "pause": 0}', 'k')"""
    )
    with worker(
        dsn, "--metrics-port", "0", "--log-format", "json", "--log-level", "debug"
    ) as started:
        assert started.process.stderr is not None
        url = next(
            line["message"].removeprefix("metrics at ")
            for line in map(json.loads, started.process.stderr)
            if "metrics at" in line["message"]
        )
        assert url.startswith("http://127.0.0.1:")
        wait_until(
            lambda: (
                of(
                    scrape(url),
                    "pgflow_runs_finished_total",
                    workflow="booking",
                    status="completed",
                )
                == 1
            ),
            "the run is over",
        )
        found = scrape(url)
        assert (
            of(found, "pgflow_step_attempts_total", effect="transaction", outcome="completed") == 2
        )
        assert of(found, "process_resident_memory_bytes")
        started.send(signal.SIGTERM)
        code, log = started.finish()
    assert code == 0
    ended = [
        line for line in map(json.loads, log.splitlines()) if line["message"] == "run k completed"
    ]
    assert [(line["run"], line["run_id"], line["workflow"], line["level"]) for line in ended] == [
        ("k", 1, "booking", "debug")
    ]


def test_a_port_that_is_taken_is_a_mistake(shared_dsn):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        answer = finish(
            process(
                shared_dsn, "workers", "worker_jobs", "--metrics-port", str(taken.getsockname()[1])
            )
        )
    assert answer.code == 2
    assert "no metrics at 127.0.0.1:" in answer.err.strip().splitlines()[-1]


def test_a_format_that_there_is_not_is_a_mistake():
    answer = finish(process(None, "workers", "worker_jobs", "--log-format", "xml"))
    assert (answer.code, answer.err.strip()) == (
        2,
        "pgflow: --log-format is text or json, not 'xml'",
    )
