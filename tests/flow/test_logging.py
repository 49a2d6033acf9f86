"""The logger of runs: silent while a replay repeats what was logged before, and every record says
whose it is.
"""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import sys
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from processes import worker
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from records import SOON, recover, result_of, settle, wait_until

import pgflow
from pgflow import App, Retries, RunFailed, RunStuck, Signal, logger, logs, step, workflow
from pgflow.logs import FIELDS, JsonFormatter, TextFormatter
from pgflow.texts import without_secrets

go = Signal("go", int)


@pytest.fixture(autouse=True)
def _all_levels(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="pgflow.run")


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "pgflow.run"]


@step(retries=Retries(max_attempts=2, first_delay=timedelta(milliseconds=1)))
async def work(n: int) -> int:
    logger.info("in step %s, try %s", n, pgflow.run_info().step_attempt)
    if n == 2 and pgflow.run_info().step_attempt == 1:
        raise OSError
    return n


@step
def work_sync(n: int) -> int:
    logger.info("in sync step %s", n)
    return n


@workflow
async def talks() -> int:
    logger.info("begins")
    await work(1)
    logger.warning("goes on")
    await go.wait()
    logger.info("hears")
    return await work_sync.aio(2)


@workflow
def talks_sync() -> int:
    logger.info("begins")
    work.sync(1)
    logger.warning("goes on")
    go.sync.wait()
    logger.info("hears")
    return work_sync(2)


@pytest.mark.full
@pytest.mark.parametrize("made", [talks, talks_sync])
async def test_what_was_logged_is_not_logged_again_by_a_replay(aflow, caplog, made):
    run = await settle(aflow, made)
    before = said(caplog)
    await recover(aflow)
    await run.send(go, 1)
    assert await run.result(SOON) == 2
    assert before == ["begins", "in step 1, try 1", "goes on"]
    assert said(caplog)[3:] == ["hears", "in sync step 2"]


async def test_records_say_which_run_workflow_step_and_attempt_they_are_of(aflow, caplog):
    @workflow
    async def retries() -> None:
        logger.info("begins", extra={"own": 7})
        await work(2)

    await result_of(aflow, retries.options(key="k"))
    records = [record for record in caplog.records if record.name == "pgflow.run"]
    fields = [tuple(getattr(record, name, None) for name in FIELDS) for record in records]
    name = retries.name
    assert fields == [
        ("k", 1, name, 1, None, None, None),
        ("k", 1, name, 1, "work", 1, 1),
        ("k", 1, name, 1, "work", 1, 2),
    ]
    assert records[0].own == 7  # type: ignore[attr-defined]


async def test_what_the_unwinding_of_a_parked_run_would_log_is_not_logged(aflow, caplog):
    @workflow
    async def tidy() -> None:
        try:
            await go.wait()
        finally:
            logger.info("cleans up")

    run = await settle(aflow, tidy)
    assert said(caplog) == []
    await run.send(go, 1)
    await run.result(SOON)
    assert said(caplog) == ["cleans up"]


def test_outside_a_run_it_is_an_ordinary_logger(caplog):
    logger.info("hello %s", "world")
    assert said(caplog) == ["hello world"]
    assert not hasattr(caplog.records[-1], "run")


async def test_levels_are_those_of_the_logger_behind_it(aflow, caplog):
    @workflow
    async def quiet() -> None:
        logger.debug("too fine")
        logger.error("heard")
        await asyncio.sleep(0)

    caplog.set_level(logging.ERROR, logger="pgflow.run")
    await result_of(aflow, quiet)
    assert said(caplog) == ["heard"]


def test_a_record_can_carry_an_exception(flow, caplog):
    @workflow
    def fails_softly() -> None:
        try:
            _ = 1 / 0
        except ZeroDivisionError:
            logger.exception("divided")

    result_of(flow, fails_softly)
    (record,) = [record for record in caplog.records if record.name == "pgflow.run"]
    assert record.exc_info is not None


@step(retries=Retries(max_attempts=2, first_delay=timedelta(milliseconds=1)))
async def hopeless(secret: str) -> None:
    raise ValueError(secret)


@workflow
async def doomed(secret: str) -> None:
    await hopeless(secret)


class Cipher:
    """A codec that hides a little."""

    key_id = "k1"
    hash_key = b"h" * 32

    def encode(self, data: bytes) -> bytes:
        return bytes(byte ^ 7 for byte in data)

    def decode(self, key_id: str, data: bytes) -> bytes:
        return self.encode(data)


@pytest.mark.parametrize("codec", [None, Cipher()], ids=["clear", "sealed"])
def test_the_worker_says_of_which_run_and_step_it_speaks(dsn, caplog, codec):
    caplog.set_level(logging.INFO, logger="pgflow")
    with App(dsn, include=[doomed], codec=codec) as app, app.worker(), pytest.raises(RunFailed):
        app.start(doomed.options(key="k"), "hunter2").result(SOON)
    records = [record for record in caplog.records if record.name == "pgflow"]
    first, last, run = (
        {name: getattr(record, name, None) for name in FIELDS} for record in records
    )
    about = {"run": "k", "run_id": 1, "workflow": "doomed", "generation": 1}
    assert first == {**about, "step": "hopeless", "call": 1, "attempt": 1}
    assert last == {**about, "step": "hopeless", "call": 1, "attempt": 2}
    assert run == {**about, "step": None, "call": None, "attempt": None}
    said_ = [record.getMessage() for record in records]
    assert said_[0].startswith("step hopeless failed with ValueError: retrying in ")
    assert said_[1:] == [
        "step hopeless failed with ValueError: not retried",
        "run k failed with ValueError",
    ]
    assert "hunter2" not in " ".join(said_)
    assert [record.levelname for record in records] == ["INFO", "INFO", "ERROR"]
    assert [record.exc_info is None for record in records] == [True, True, codec is not None]
    if codec is None:  # for whoever watches; the engine's own formatters leave out the text
        assert isinstance(records[-1].exc_info[1], ValueError)
        for formatter in (TextFormatter(), JsonFormatter()):
            line = formatter.format(records[-1])
            assert "in doomed" in line
            assert "hunter2" not in line
    else:
        assert "hunter2" not in caplog.text


@workflow
async def forgotten() -> None:
    await asyncio.get_running_loop().create_future()


def test_a_run_that_needs_a_person_is_a_warning(dsn, caplog):
    with App(dsn, include=[forgotten]) as app, app.worker(), pytest.raises(RunStuck):
        app.start(forgotten.options(key="k")).result(SOON)
    (record,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert record.getMessage() == "run k is stuck: deadlock; see `pgflow show`"
    assert record.run == "k"  # type: ignore[attr-defined]


def record_of(message: str, *args: Any, **extra: Any) -> logging.LogRecord:
    return logging.getLogger("pgflow.run").makeRecord(
        "pgflow.run", logging.INFO, "f.py", 1, message, args, None, extra=extra
    )


def test_an_object_a_line_has_the_fields_of_the_record():
    text = JsonFormatter().format(
        record_of(
            "said %s\nmore",
            "é",
            run="k",
            run_id=1,
            step="s",
            own={"a": [1, timedelta(0)]},
            other=timedelta(1),
        )
    )
    assert "\n" not in text
    line = json.loads(text)
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "info", "logger": "pgflow.run", "message": "said é\nmore", "run": "k", "run_id": 1,
        "step": "s", "own": {"a": [1, "0:00:00"]}, "other": "1 day, 0:00:00",
    }  # fmt: skip


def test_a_line_for_people_ends_with_what_it_is_about():
    assert TextFormatter().format(record_of("hello")).endswith(" INFO pgflow.run: hello")
    record = record_of("hello", run="a\nb] x", step="s", call=2, attempt=1, workflow="w")
    assert TextFormatter().format(record).endswith('hello [run="a\\nb] x" step=s call=2 attempt=1]')


@pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter()])
def test_no_password_of_a_connection_string_is_written(formatter):
    record = record_of(
        "no %s",
        "postgresql://app:hunter2@db/x?password=hunter2, or host=db password='hunter2 x'",
        dsn="postgres://a:hunter2@b",
    )
    try:
        raise ConnectionError("at postgresql://app:hunter2@db/x")
    except ConnectionError:
        record.exc_info = sys.exc_info()
    text = formatter.format(record)
    assert "hunter2" not in text
    assert "app:***@db/x" in text
    assert "ConnectionError" in text


def test_what_an_error_says_is_one_line_without_what_the_server_quotes(db):
    with pytest.raises(psycopg.errors.InvalidTextRepresentation) as refused:
        db.execute("select %s::json", ('{"password": hunter2}',))
    assert "hunter2" in str(refused.value)
    assert logs.redacted(refused.value) == "invalid input syntax for type json"
    assert logs.redacted(OSError("a\n  b")) == "a b"
    assert logs.redacted(TimeoutError()) == "TimeoutError"
    assert without_secrets("nothing to hide: a://b") == "nothing to hide: a://b"


@pytest.mark.full
def test_no_password_input_result_or_text_of_an_error_is_in_the_log_of_a_worker(dsn, conn):
    secret = "hunter2-canary"
    if not conninfo_to_dict(dsn).get("password"):
        dsn = make_conninfo(dsn, password=secret)
    conn.execute(
        "select pgflow.start_run('doomed', %s::json, 'k')", (json.dumps({"secret": secret}),)
    )
    conn.execute(
        "select pgflow.start_run('told', %s::json, 'told')", (json.dumps({"secret": secret}),)
    )
    with worker(dsn, "--log-level", "debug", "--log-format", "json", module=__file__) as started:
        wait_until(
            lambda: conn.execute("select count(*) from pgflow.outcome").fetchone() == (2,),
            "the runs are over",
        )
        started.send(signal.SIGTERM)
        code, log = started.finish()
    lines = [json.loads(line) for line in log.splitlines()]
    assert code == 0
    found = {line["message"] for line in lines}
    assert {"run k failed with ValueError", "run told completed"} <= found
    assert [line["step"] for line in lines if line["logger"] == "pgflow.run"] == ["tell"]
    assert secret not in log


@step
async def tell(secret: str) -> str:
    logger.info("has something to keep")
    return secret


@workflow
async def told(secret: str) -> str:
    return await tell(secret)


HOSTILE = "order\x1b[2J\n2026-01-01 00:00:00,000 INFO pgflow: run paid \u202eevil\x9b1m"


def test_a_key_with_a_newline_makes_no_second_line_whatever_the_formatter(caplog):
    with caplog.at_level(logging.INFO, logger="pgflow"):
        logging.getLogger("pgflow").info(
            "run %s of %d is over: %s", HOSTILE, 3, ValueError(HOSTILE)
        )
    message = caplog.records[-1].getMessage()
    assert message.isprintable()
    assert message.count("order\N{REPLACEMENT CHARACTER}[2J 2026-01-01") == 2
    assert " of 3 is over" in message


def test_further_lines_of_a_message_are_indented_and_nothing_in_them_is_obeyed():
    record = logging.makeLogRecord(
        {
            "msg": "first\n2026-01-01 INFO pgflow: forged\x1b[2J",
            "name": "pgflow.run",
            "levelname": "INFO",
            "run": HOSTILE,
        }
    )
    lines = TextFormatter().format(record).split("\n")
    assert len(lines) == 2
    assert lines[1].startswith(
        "    2026-01-01 INFO pgflow: forged\N{REPLACEMENT CHARACTER}[2J [run="
    )
    assert all(line.isprintable() for line in lines)
