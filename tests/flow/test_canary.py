"""A password that an error quotes is nowhere: no table, view, log, span, page or answer of a
command has it.
"""

from __future__ import annotations

import asyncio
import io
import json
import logging
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from clikit import pgflow as command
from records import SOON
from spankit import Spans
from webkit import Browser

import pgflow
from pgflow import AsyncApp, Retries, RunFailed, RunStuck, step, workflow
from pgflow.effects import effect
from pgflow.logs import JsonFormatter
from pgflow.otel import Tracing
from pgflow.web import Principal

if TYPE_CHECKING:
    from collections.abc import Iterator

CANARY = "hunter2-canary"
URL = f"postgresql://app:{CANARY}@db/x"
ANN = Principal("ann", ["admin"])


class Unreachable(Exception):
    def __init__(self, url: str) -> None:
        super().__init__(f"cannot reach {url}", {"password": CANARY})
        self.url = url


def reach() -> None:
    try:
        raise OSError(f"host=db password={CANARY} refused")
    except OSError as error:
        raise Unreachable(URL) from error


@step(retries=Retries(max_attempts=2, first_delay=0.001))
async def call() -> None:
    pgflow.logger.warning("about to reach %s", URL)
    reach()


@effect(risk="reversible")
async def act() -> None:
    raise ValueError(URL)


@workflow
async def doomed() -> None:
    try:
        await call()
    except Exception:  # noqa: BLE001 - it fails for another reason below
        pgflow.logger.exception("reached nothing")
    await act()


@workflow
async def fails() -> None:
    await call()


@workflow
async def waits() -> None:
    await pgflow.sleep(3600)


@pytest.fixture
def logged() -> Iterator[io.StringIO]:
    """Everything that is logged, by formatters of ours and of an application."""
    text = io.StringIO()
    handlers = [logging.StreamHandler(text), logging.StreamHandler(text)]
    handlers[0].setFormatter(logging.Formatter("%(message)s"))
    handlers[1].setFormatter(JsonFormatter())
    logger = logging.getLogger("pgflow")
    level = logger.level
    logger.setLevel(logging.DEBUG)
    for handler in handlers:
        logger.addHandler(handler)
    yield text
    for handler in handlers:
        logger.removeHandler(handler)
    logger.setLevel(level)


def dump(conn: psycopg.Connection[Any]) -> str:
    """Every row of every table and view, as pg_dump would write it."""
    found = conn.execute(
        "select c.oid::regclass::text from pg_class c where c.relnamespace = 'pgflow'::regnamespace"
        " and c.relkind in ('r', 'p', 'v')"
    ).fetchall()
    return "\n".join(
        str(conn.execute(f"select t::text from {name} t").fetchall()) for (name,) in found
    )


async def play(dsn: str, conn: psycopg.Connection[Any], spans: Spans) -> str:
    """Have errors and reasons quote the password everywhere; return the pages of the console."""
    tracing = Tracing(spans.provider, record_exceptions=True)
    app = AsyncApp(dsn, include=[doomed, fails, waits], interceptors=[tracing])
    async with app, app.worker():
        with pytest.raises(RunStuck):
            await (await app.start(doomed.options(key="stuck"))).result(SOON)
        with pytest.raises(RunFailed) as failed:
            await (await app.start(fails.options(key="doomed"))).result(SOON)
        assert "postgresql://app:***@db/x" in str(failed.value)
        for number, order in enumerate(
            (
                "pause_run(%(key)s, %(why)s)",
                "resume_run(%(key)s, %(why)s)",
                "cancel_run(%(key)s, %(why)s)",
            )
        ):
            await app.start(waits.options(key=f"w{number}"))
            conn.execute(f"select pgflow.{order}", {"key": f"w{number}", "why": URL})
        conn.execute("""select pgflow.set_queue('q', '{"concurrency": 3}', %s)""", (URL,))
        conn.execute("select pgflow.set_policy('[]', %s)", (f"password={CANARY}",))
        conn.execute("""select pgflow.set_pool('p', '{"usd": 5}', why => %s)""", (URL,))
        conn.execute("select pgflow.take_lock('a', 'one', '1 hour')")
        conn.execute("select pgflow.break_lock('a', %s)", (URL,))
        browser = Browser(app, ANN)
        pages = [
            (await browser.get(path, **said), browser.last.text)[1]  # type: ignore[union-attr]
            for path, said in (("/", {}), ("/run", {"key": "doomed"}), ("/run", {"key": "stuck"}))
        ]
    return "".join(pages)


def test_a_password_that_an_error_quotes_is_nowhere(
    dsn: str, conn: psycopg.Connection[Any], logged: io.StringIO
) -> None:
    spans = Spans()
    pages = asyncio.run(play(dsn, conn, spans))
    texts = {
        "tables and views": dump(conn),
        "logs": logged.getvalue(),
        "spans": "".join(span.to_json() for span in spans.all),
        "pages": pages,
        "commands": "".join(
            (said := command(dsn, *words)).out + said.err
            for words in (
                ("show", "doomed"),
                ("show", "stuck"),
                ("logs", "doomed", "--json"),
                ("result", "doomed"),
                ("list", "--json"),
                ("export", "doomed"),
            )
        ),
        "inspect": json.dumps(
            conn.execute("select json_agg(t) from pgflow.timeline t").fetchone(), default=str
        ),
    }
    assert {where for where, text in texts.items() if CANARY in text} == set()
    # And each would have had it.
    for where in ("tables and views", "logs", "spans", "pages", "commands"):
        assert "app:***@db/x" in texts[where], where
