"""A password that an error quotes is nowhere, and neither is what a secret holds: no table, view,
dump, log, span, page or answer of a command has it.
"""

from __future__ import annotations

import asyncio
import io
import json
import logging
import os
import secrets
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from clikit import pgflow as command
from pydantic import SecretStr
from records import SOON
from spankit import Spans
from webkit import Browser

import pgflow
from pgflow import AsyncApp, Retries, RunFailed, RunStuck, Signal, step, workflow
from pgflow.effects import effect
from pgflow.errors import NotStorable
from pgflow.extensions import Keyring
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


def test_a_password_that_an_error_quotes_is_nowhere(dsn, conn, logged):
    spans = Spans()
    pages = asyncio.run(play(dsn, conn, spans))
    texts = {
        "tables and views": dump(conn),
        "logs": logged.getvalue(),
        "spans": "".join(span.to_json() for span in spans.all),
        "pages": pages,
        "commands": "".join((said := command(dsn, *words)).out + said.err for words in (("show",
            "doomed"), ("show", "stuck"), ("logs", "doomed", "--json"), ("result", "doomed"),
            ("list", "--json"), ("export", "doomed"))),
        "inspect": json.dumps(conn.execute("select json_agg(t) from pgflow.timeline t").fetchone(),
            default=str),
    }  # fmt: skip
    assert {where for where, text in texts.items() if CANARY in text} == set()
    # And each would have had it.
    for where in ("tables and views", "logs", "spans", "pages", "commands"):
        assert "app:***@db/x" in texts[where], where


told = Signal("told", SecretStr)


@step(retries=Retries(max_attempts=1))
async def sign_in(password: SecretStr) -> SecretStr:
    pgflow.logger.warning("signing in with %s", password.get_secret_value())
    pgflow.heartbeat({"with": str(password)})
    return SecretStr(f"{password.get_secret_value()}-session")


@step(retries=Retries(max_attempts=2, first_delay=0.001))
async def refuse(session: SecretStr) -> None:
    raise Unreachable(f"{session.get_secret_value()!r} is refused: {session.get_secret_value()}")


@workflow
async def keeps(password: SecretStr) -> dict[str, SecretStr]:
    session = await sign_in(password)
    pgflow.logger.info("the session is %r, of %s", session.get_secret_value(), password)
    return {"password": password, "session": session, "told": await told.wait()}


@workflow
async def loses(password: SecretStr) -> None:
    await refuse(await sign_in(password))


@effect(risk="compensable")
async def pay(card: SecretStr, cents: int) -> SecretStr:
    pgflow.logger.warning("charging %s", card.get_secret_value())
    return SecretStr(f"{card.get_secret_value()}-receipt")


@pay.compensate
async def repay(receipt: SecretStr, card: SecretStr, cents: int) -> None:
    pgflow.logger.warning("returning %s of %s", receipt.get_secret_value(), card)
    assert receipt.get_secret_value() == f"{card.get_secret_value()}-receipt"


@effect(risk="reversible", raises=[Unreachable])
async def decline(card: SecretStr) -> None:
    raise Unreachable(card.get_secret_value())


@effect(risk="reversible")
async def vanish(card: SecretStr) -> None:
    raise ConnectionResetError(card.get_secret_value())


@workflow
async def pays(card: SecretStr) -> None:
    async with pgflow.effects.saga():
        await pay(card, 500)
        await decline(card)


@workflow
async def hangs(card: SecretStr) -> None:
    await vanish(card)


async def play_secrets(dsn: str, spans: Spans, secret: str) -> str:
    """Have a secret in each kind of value; return the pages of the console."""
    tracing = Tracing(spans.provider, record_exceptions=True)
    ring = Keyring({"k": os.urandom(32)}, "k", hash_key=os.urandom(16))
    app = AsyncApp(dsn, include=[keeps, loses, pays, hangs], interceptors=[tracing], codec=ring)
    async with app, app.worker():
        run = await app.start(keeps.options(key="kept"), SecretStr(secret))
        await run.send(told, SecretStr(secret))
        kept = await run.result(SOON)
        found = {name: one.get_secret_value() for name, one in kept.items()}
        assert found == {"password": secret, "session": f"{secret}-session", "told": secret}
        with pytest.raises(RunFailed) as failed:
            await (await app.start(loses.options(key="lost"), SecretStr(secret))).result(SOON)
        assert secret not in str(failed.value)
        with pytest.raises(RunFailed) as failed:
            await (await app.start(pays.options(key="paid"), SecretStr(secret))).result(SOON)
        assert secret not in str(failed.value)
        with pytest.raises(RunStuck) as stuck:
            await (await app.start(hangs.options(key="hung"), SecretStr(secret))).result(SOON)
        assert secret not in str(stuck.value)
        browser = Browser(app, ANN)
        pages = [
            (await browser.get(path, **said), browser.last.text)[1]  # type: ignore[union-attr]
            for path, said in (
                ("/", {}),
                ("/effects", {}),
                *(("/run", {"key": key}) for key in ("kept", "lost", "paid", "hung")),
            )
        ]
    return "".join(pages)


def real_dump(dsn: str) -> str:
    """The database as pg_dump writes it; empty where that is not installed."""
    program = shutil.which("pg_dump")
    if program is None:
        return ""
    done = subprocess.run([program, dsn], capture_output=True, text=True, check=False)
    return done.stdout


def test_what_a_secret_holds_is_nowhere(dsn, conn, logged):
    secret, spans = f"canary{secrets.token_hex(8)}", Spans()
    pages = asyncio.run(play_secrets(dsn, spans, secret))
    words = [
        ("show", "kept"), ("show", "lost"), ("logs", "kept", "--json"), ("logs", "lost"),
        ("result", "kept"), ("result", "lost"), ("list", "--json"), ("timeline", "kept"),
        ("export", "kept"),
        *((verb, key) for verb in ("show", "logs", "audit", "export") for key in ("paid", "hung")),
        ("owed", "--json"), ("--dsn", f"postgresql://app:{secret}@127.0.0.1:1/x", "list"),
        ("--dsn", f"host=127.0.0.1 port=1 password={secret}", "doctor"),
    ]  # fmt: skip
    texts = {
        "tables and views": dump(conn),
        "the dump": real_dump(dsn),
        "logs": logged.getvalue(),
        "spans": "".join(span.to_json() for span in spans.all),
        "pages": pages,
        **{" ".join(one[-2:]): (said := command(dsn, *one)).out + said.err for one in words},
    }
    assert {where for where, text in texts.items() if secret in text} == set()
    # And each would have had it.
    assert "signing in with ***" in texts["logs"]
    assert "***" in texts["spans"]
    assert "***" in pages
    assert "$wrap" in texts["tables and views"]
    acts = conn.execute(
        "select key, name, status, request::text from pgflow.effects order by key, name"
    ).fetchall()
    assert [act[:3] for act in acts] == [
        ("hung", "vanish", "unknown"),
        ("paid", "decline", "failed"),
        ("paid", "pay", "confirmed"),
        ("paid", "repay", "confirmed"),
    ]
    for _, _, _, request in acts:
        assert json.loads(request)["$codec"] == "wrapped"


def test_a_secret_is_refused_where_nothing_encrypts_it(dsn, logged):
    secret = f"canary{secrets.token_hex(8)}"

    @workflow
    async def reads() -> SecretStr:
        return await sign_in(SecretStr(secret))

    async def play() -> list[str]:
        app = AsyncApp(dsn, include=[reads, keeps])
        said = []
        async with app, app.worker():
            with pytest.raises(NotStorable) as refused:
                await app.start(keeps.options(key="a"), SecretStr(secret))
            said.append(str(refused.value))
            with pytest.raises(RunFailed) as failed:
                await (await app.start(reads.options(key="b"))).result(SOON)
            said.append(str(failed.value))
        return said

    for text in asyncio.run(play()):
        assert "App(codec=pgflow.extensions.Keyring(" in text
        assert secret not in text
        assert "\n" not in text
    assert secret not in logged.getvalue()
