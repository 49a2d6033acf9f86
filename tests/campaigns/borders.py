"""Borders between pgflow and others: their sessions, their sizes, their names."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from typing import Any

import psycopg
import sqlalchemy
from sqlalchemy.orm import Session, sessionmaker

import pgflow.sqlalchemy
from pgflow import App, Signal, transaction, workflow
from pgflow.errors import PgflowError
from tests.campaigns import jobs
from tests.campaigns.ground import Ground, audit, drain, wait_until
from tests.kits import clikit
from tests.kits.evidence import Evidence
from tests.kits.processes import one

SETTINGS = {
    "synchronous_commit": "off", "search_path": "app, public", "default_transaction_isolation": "repeatable read", "statement_timeout": "31s",
    "lock_timeout": "32s", "idle_in_transaction_session_timeout": "33s", "timezone": "Asia/Kathmandu", "datestyle": "SQL, DMY", "role": "none",
}  # fmt: skip
"""Settings of the application's session, none at its default."""


def fingerprint(execute: Callable[[str], Any]) -> dict[str, Any]:
    """All that a session can carry from one user to the next. The settings of PL/pgSQL are there
    once anybody has used it.
    """
    execute("do $$ begin end $$")
    return {
        "settings": sorted(tuple(row) for row in execute("select name, setting from pg_settings")),
        "advisory locks": list(
            execute("select * from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()")
        ),
        "channels": list(execute("select pg_listening_channels()")),
        "prepared": list(execute("select name from pg_prepared_statements")),
        "temporary": list(execute("select relname from pg_class where relpersistence = 't'")),
        "cursors": list(execute("select name from pg_cursors where name <> ''")),
    }


def difference(before: dict[str, Any], after: dict[str, Any], where: str) -> list[str]:
    """Return a line on everything that is not as it was."""
    return [
        f"{where}: {what} was {set(before[what]) - set(after[what])}, is "
        f"{set(after[what]) - set(before[what])}"[:200]
        for what in before
        if before[what] != after[what]
    ]


@transaction
def book_with(session: Session, key: str, n: int) -> int:
    session.execute(
        sqlalchemy.text("insert into app.booked values (:key, :n)"), {"key": key, "n": n}
    )
    return n


@workflow
async def booking_with(key: str, steps: int) -> int:
    return sum([await book_with.aio(key, n) for n in range(steps)])


def sessions(ground: Ground) -> list[Evidence]:
    """Verbs and transactional steps in sessions of the application: each is left as it was
    found.
    """
    rounds = ground.scaled(5, 200)
    wrong: list[str] = []
    with ground.database() as (dsn, conn):
        wrong += _psycopg_session(dsn, rounds)
        wrong += _sqlalchemy_session(ground, dsn, rounds)
        wrong += _step_sessions(dsn, rounds)
        wrong += audit(conn)
        strong = one(conn, "select count(*) from pgflow.run")
    ground.happened("verbs in sessions of the application (G40)", 8 * rounds, 40)
    return [
        Evidence(
            "G40",
            "verbs and steps in the application's sessions",
            9 * rounds,
            wrong=tuple(wrong[:5]),
            figure=f"nothing left in them, {strong} runs",
        )
    ]


def _verbs(app: App, client: Any, key: str) -> None:
    client.start(jobs.following.options(key=key), key, 1)
    client.send(key, jobs.go, "x")
    client.start(jobs.booking, key, 1)
    client.cancel(key)
    del app


def _psycopg_session(dsn: str, rounds: int) -> list[str]:
    wrong = []
    with (
        App(dsn, include=jobs.WORKFLOWS, prepare_threshold=None) as app,
        psycopg.connect(dsn, prepare_threshold=None) as mine,
    ):
        for name, value in SETTINGS.items():
            mine.execute("select set_config(%s, %s, false)", (name, value))
        mine.commit()
        before = fingerprint(mine.execute)
        for n in range(rounds):
            _verbs(app, app.using(mine), f"psycopg-{n}")
            wrong += difference(before, fingerprint(mine.execute), "psycopg, inside")
            mine.commit() if n % 2 else mine.rollback()
        wrong += difference(before, fingerprint(mine.execute), "psycopg, afterwards")
        if mine.info.transaction_status.name != "INTRANS":
            wrong.append("psycopg: the caller's transaction was ended")
    return wrong


def _engine(dsn: str) -> sqlalchemy.Engine:
    """An engine with one connection, whose session has been set up as an application might."""
    engine = sqlalchemy.create_engine(
        dsn.replace("postgresql://", "postgresql+psycopg://", 1),
        pool_size=1,
        max_overflow=0,
        connect_args={"prepare_threshold": None},
    )
    with engine.begin() as mine:
        for name, value in SETTINGS.items():
            mine.execute(
                sqlalchemy.text("select set_config(:name, :value, false)"),
                {"name": name, "value": value},
            )
    return engine


def _read(engine: sqlalchemy.Engine) -> dict[str, Any]:
    with engine.connect() as mine:
        return fingerprint(
            lambda query: (
                result.fetchall() if (result := mine.exec_driver_sql(query)).returns_rows else []
            )
        )


def _sqlalchemy_session(ground: Ground, dsn: str, rounds: int) -> list[str]:
    engine = _engine(dsn)
    before = _read(engine)
    with App(dsn, include=jobs.WORKFLOWS) as app:
        for n in range(rounds):
            with Session(engine) as session, session.begin():
                _verbs(app, app.using(session), f"sqlalchemy-{n}")
                if ground.rng.random() < 0.5:
                    session.rollback()
    wrong = difference(before, _read(engine), "SQLAlchemy")
    engine.dispose()
    return wrong


def _step_sessions(dsn: str, rounds: int) -> list[str]:
    """Transactional steps on the application's own engine: its one session serves them all."""
    engine = _engine(dsn)
    before = _read(engine)
    provider = pgflow.sqlalchemy.SessionProvider(sessionmaker(engine))
    with App(dsn, include=[booking_with], providers=[provider]) as app, app.worker():
        value = app.start(booking_with, "steps", rounds).result()
    wrong = difference(before, _read(engine), "a transactional step")
    engine.dispose()
    return wrong + ([] if value == sum(range(rounds)) else [f"the steps came to {value}"])


def limits(ground: Ground) -> list[Evidence]:
    """Values beyond what can be stored: each is refused where it is written, by a typed error, and
    nothing is there afterwards.
    """
    with ground.database() as (dsn, conn), App(dsn, include=jobs.WORKFLOWS) as app:
        app.start(jobs.following.options(key="there"), "there", 1)
        before = _everything(conn)
        cases = {**_refused_by_sql(conn), **_refused_by_api(app)}
        wrong = [line for name, attempt in cases.items() if (line := _is_refused(name, attempt))]
        if _everything(conn) != before:
            wrong.append("something was written by what was refused")
        wrong += audit(conn)
    ground.happened("writes beyond a limit (G43)", len(cases), 30)
    return [
        Evidence(
            "G43",
            "sizes, depths, names and numbers beyond what can be stored",
            len(cases),
            wrong=tuple(wrong[:5]),
            figure="each a typed error",
        )
    ]


def _everything(conn: psycopg.Connection[Any]) -> Any:
    tables = (
        "run", "run_key", "ready", "parked", "signal", "nudge", "lane", "queue", "unit", "outcome",
        "undelivered",
    )  # fmt: skip
    return [one(conn, f"select count(*) from pgflow.{table}") for table in tables]


def _is_refused(name: str, attempt: Callable[[], object]) -> str | None:
    try:
        attempt()
    except PgflowError:
        return None
    except psycopg.Error as error:
        # JSON that Postgres itself cannot read is refused before a function of ours sees it.
        is_ours = error.sqlstate in ("PF003", "22P02", "22P05", "54001", "22021")
        return None if is_ours else f"{name}: {error.sqlstate} {str(error).splitlines()[0]}"
    return f"{name}: accepted"


def _refused_by_sql(conn: psycopg.Connection[Any]) -> dict[str, Callable[[], object]]:
    big = json.dumps({"x": "y" * 1_050_000})
    deep = '{"x": ' + "[" * 201 + "]" * 201 + "}"
    long_number = '{"x": ' + "1" * 4301 + "}"

    def call(query: str, *params: Any) -> Callable[[], object]:
        return lambda: conn.execute(query, params)

    start = "select pgflow.start_run('booking', {})"
    named = "select pgflow.start_run('booking', {} => %s)"
    cases = {
        "start: 1 MiB": call(start.format("%s::json"), big),
        "start: depth": call(start.format("%s::json"), deep),
        "start: digits": call(start.format("%s::json"), long_number),
        "start: no object": call(start.format("'[]'")),
        "start: NUL": call(start.format("%s::json"), '{"x": "\\u0000"}'),
        "start: surrogate": call(start.format("%s::json"), '{"x": "\\ud800"}'),
        "start: NaN": call(start.format("%s::json"), '{"x": NaN}'),
        "key: empty": call(named.format("key"), ""),
        "key: long": call(named.format("key"), "k" * 129),
        "queue: empty": call(named.format("queue"), ""),
        "queue: long": call(named.format("queue"), "q" * 256),
        "tenant: long": call(named.format("tenant"), "t" * 256),
        "priority": call(named.format("priority"), 40_000),
        "labels: size": call(named.format("labels"), json.dumps({"x": "y" * 17_000})),
        "labels: kind": call(named.format("labels"), '{"x": 1}'),
        "metadata: size": call(named.format("metadata"), json.dumps({"x": "y" * 17_000})),
        "metadata: kind": call(named.format("metadata"), "[]"),
        "deadline": call(named.format("timeout_seconds"), 0),
        "deadline: NaN": call(named.format("timeout_seconds"), math.nan),
        "deadline: infinite": call(named.format("timeout_seconds"), math.inf),
        "run_at": call(named.format("run_at"), "infinity"),
        "retention": call(named.format("key_retention_seconds"), -1),
        "workflow: empty": call("select pgflow.start_run('')"),
        "workflow: long": call("select pgflow.start_run(%s)", "w" * 256),
        "workflow: null": call("select pgflow.start_run(null)"),
        "batch: no array": call("select pgflow.start_runs('booking', '{}')"),
        "batch: depth": call("select pgflow.start_runs('booking', %s)", json.dumps([[None, deep]])),
        "batch: key": call(
            "select pgflow.start_runs('booking', %s)", json.dumps([["k" * 129, "{}"]])
        ),
    }
    send = "select pgflow.send_signal('there', %s, %s::json)"
    cases |= {
        "signal: 1 MiB": call(send, "go", big),
        "signal: depth": call(send, "go", deep),
        "signal: digits": call(send, "go", long_number),
        "signal: no name": call(send, "", "1"),
        "signal: long name": call(send, "n" * 256, "1"),
        "signal: null name": call(send, None, "1"),
        "limit": call("select pgflow.set_queue('default', jsonb_build_object('concurrency', 0))"),
        "deaths": call(
            "select pgflow.set_queue('default', jsonb_build_object('concurrency', 1, 'max_deaths', 0))"
        ),
    }
    return cases


def _refused_by_api(app: App) -> dict[str, Callable[[], object]]:
    def send(value: Any) -> Callable[[], object]:
        return lambda: app.send("there", jobs.go, value)

    def start(*args: Any, **options: Any) -> Callable[[], object]:
        return lambda: app.start(jobs.booking.options(**options), *(args or ("k", 1)))

    deep: list[Any] = []
    for _ in range(201):
        deep = [deep]
    return {
        "value: 1 MiB": send("y" * 1_050_000),
        "value: depth": send(deep),
        "value: digits": send(10**4301),
        "value: NaN": send(math.nan),
        "value: infinite": send(-math.inf),
        "value: NUL": send("a\0b"),
        "value: surrogate": send("\ud800"),
        "value: unknown class": send(object()),
        "argument: kind": start("k", "no number"),
        "argument: 1 MiB": start("y" * 1_050_000, 1),
        "option: key": start(key="k" * 129),
        "option: empty key": start(key=""),
        "option: NUL key": start(key="a\0"),
        "option: priority": start(priority=40_000),
        "option: queue": start(queue="q" * 256),
        "signal: NUL": lambda: Signal("a\0", str),
        "signal: surrogate": lambda: Signal("\ud800", str),
        "option: labels": start(labels={"x": "y" * 17_000}),
    }


HOSTILE = (
    "'; drop table app.booked; --", '"; drop table app.booked; --', "' or 1=1 --", "$$; drop table app.booked; $$", "$1", "%s", "%(x)s", "%", "\\", "\\'",
    "\\x00", "{}", "{0.__class__}", "${HOME}", "$(touch pgflow-was-here)", "`touch pgflow-was-here`", "a\nb", "a\tb", "\r", " ", "", "\0", "a\0b",
    "\ud800", "\u202eevil", "e\u0301", "ﷺ" * 20, "😀" * 10, "\U0001f469\u200d\U0001f467", "[red]x[/red]", "\x1b[2J", "\x07", "--help", "-", "--", "../../etc/passwd", "pgflow.run", "null",
    "NULL", "true", "1e400", "*", "?", "a/b", "a~2", "x" * 128, "x" * 255, "x" * 10_000, "é" * 128, "select", "CON", "'", '"', ";", "<script>alert(1)</script>",
)  # fmt: skip


def hostile_names(ground: Ground) -> list[Evidence]:
    """Names that mean something to SQL, shells, terminals or Python, as keys, signals, queues,
    labels, tenants: verbatim, or refused.
    """
    rng = random.Random(ground.rng.random())
    names = [
        *HOSTILE,
        *(
            "".join(rng.choices("'\"\\%$;{}[]()-/*\n\0é😀ab ", k=rng.randint(1, 40)))
            for _ in range(ground.scaled(10, 400))
        ),
    ]
    wrong: list[str] = []
    stored = refused = 0
    with ground.database() as (dsn, conn), App(dsn, include=jobs.WORKFLOWS) as app:
        for n, name in enumerate(names):
            for attempt in (_as_key, _as_queue, _as_label, _as_tenant, _as_signal):
                try:
                    found = attempt(app, conn, name, n)
                except PgflowError:
                    refused += 1
                except (psycopg.Error, UnicodeEncodeError) as error:
                    # From SQL: refused by us, or no text for Postgres at all.
                    if (
                        not isinstance(error, (psycopg.DataError, UnicodeEncodeError))
                        and getattr(error, "sqlstate", "") != "PF003"
                    ):
                        raise
                    refused += 1
                else:
                    stored += 1
                    wrong += (
                        [f"{attempt.__name__} {name!r:.60} is stored as {found!r:.60}"]
                        if found != name
                        else []
                    )
        for name in names[:: max(1, len(names) // ground.scaled(10, len(names)))]:
            wrong += _by_command(dsn, conn, name)
        with ground.workers(
            dsn,
            1,
            concurrency=100,
            queues=tuple({q for (q,) in conn.execute("select queue from pgflow.queue")}),
        ):
            wait_until(
                lambda: (
                    one(
                        conn,
                        "select count(*) from pgflow.runs where status in ('queued', 'running')",
                    )
                    == 0
                ),
                "every run is worked on",
            )
            conn.execute(
                "select pgflow.cancel_run(key, tenant => tenant) from pgflow.runs where status = "
                "'waiting'"
            )
            drain(conn, lambda: conn.execute("select pgflow.wake()"))
        # A key may be longer than the name of a signal: the workflow is told so, by a typed error.
        left = "select key from pgflow.runs where status not in ('completed', 'cancelled') and error->>'type' is distinct from 'pgflow.errors.InvalidArgument'"
        stuck = [key for (key,) in conn.execute(left)]
        wrong += (
            [f"{len(stuck)} runs are stuck or failed, such as {stuck[0]!r:.60}"] if stuck else []
        )
        if one(conn, "select to_regclass('app.booked') is null"):
            wrong.append("a name was executed")
        wrong += audit(conn)
    ground.happened("hostile names stored (G48)", stored, 50)
    ground.happened("hostile names refused (G48)", refused, 5)
    return [
        Evidence(
            "G48",
            "hostile names by library, SQL and command line",
            5 * len(names),
            wrong=tuple(wrong[:5]),
            figure=f"{stored} verbatim, {refused} refused, 0 executed",
        )
    ]


def _as_key(app: App, conn: psycopg.Connection[Any], name: str, n: int) -> Any:
    run = app.start(jobs.named.options(key=name), name)
    app.send(run.key, Signal(f"s{n}", str), name)
    return (
        one(conn, "select input->>'name' from pgflow.runs where key = %s", name)
        if run.status()
        else None
    )


def _as_queue(app: App, conn: psycopg.Connection[Any], name: str, n: int) -> Any:
    app.start(jobs.booking.options(key=f"queue-{n}", queue=name), f"queue-{n}", 0)
    return one(conn, "select queue from pgflow.runs where key = %s", f"queue-{n}")


def _as_label(app: App, conn: psycopg.Connection[Any], name: str, n: int) -> Any:
    app.start(jobs.booking.options(key=f"label-{n}", labels={name: name}), f"label-{n}", 0)
    return one(conn, "select labels->>%s from pgflow.runs where key = %s", name, f"label-{n}")


def _as_tenant(app: App, conn: psycopg.Connection[Any], name: str, n: int) -> Any:
    conn.execute(
        "select pgflow.start_run('booking', %s, %s, tenant => %s)",
        (f'{{"key": "tenant-{n}", "steps": 0}}', f"tenant-{n}", name),
    )
    return one(conn, "select tenant from pgflow.runs where key = %s", f"tenant-{n}")


def _as_signal(app: App, conn: psycopg.Connection[Any], name: str, n: int) -> Any:
    run = app.start(jobs.booking.options(key=f"signal-{n}"), f"signal-{n}", 0)
    app.send(run.key, Signal(name, str), name)
    query = "select name from pgflow.signal s join pgflow.run r using (chain_id) where r.key = %s"
    return one(conn, query, run.key)


def _by_command(dsn: str, conn: psycopg.Connection[Any], name: str) -> list[str]:
    """The commands that take a name: none ends with a traceback, and what is stored is what was
    typed.
    """
    if "\0" in name:
        return []  # no argument of a process can hold it
    wrong = []
    key = f"typed {name}"
    for words in (
        ["start", "booking", f"key={key}", "steps:=0", "--key", key, "--label", f"typed={name}"],
        ["show", "--", key],
        ["signal", "--", key, name, json.dumps(name)],
        ["list", "--label", f"typed={name}"],
        ["timeline", "--", key],
        ["cancel", "--yes", "--", key],
        ["show", "--", name],
        ["queues", "pause", "--", name],
    ):
        answer = clikit.pgflow(dsn, *words)
        if answer.code not in (0, 1, 2) or "Traceback" in answer.out + answer.err:
            wrong.append(
                f"pgflow {words[0]} with {name!r:.60}: exit code {answer.code}, "
                f"{answer.err.strip().splitlines()[-1:]}"
            )
        if "\x1b" in answer.out + answer.err:
            wrong.append(
                f"pgflow {words[0]} writes the control characters of {name!r:.60} to the terminal"
            )
    if (
        len(key) <= 128
        and "\ud800" not in name
        and not one(
            conn,
            "select count(*) from pgflow.runs where key = %s and labels->>'typed' = %s",
            key,
            name,
        )
    ):
        wrong.append(f"pgflow start did not store {name!r:.60} as it was typed")
    conn.execute("update pgflow.queue set paused_at = null")
    return wrong
