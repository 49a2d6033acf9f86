"""The codec that encrypts: its keys are rotated under load and kills, and nothing is unreadable."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
from typing import Any

import forked
import processes
import psycopg
import pytest
from clikit import pgflow as command
from keyring_jobs import extends, ring
from pydantic import SecretStr
from records import SOON, in_a_loop
from sealkit import findings, seal, switch_on, tamper
from servers import wait_until
from test_codec import CANARY, again, everything, rows, run_everything, tables_with

from pgflow import App, AsyncApp, RunStuck
from pgflow._model.envelopes import envelopes_of
from pgflow.errors import CodecError, DefinitionError
from pgflow.extensions import Keyring
from pgflow.replay.histories import read_database, replay_histories


def wraps(conn: psycopg.Connection[Any]) -> set[str]:
    """Names of the keys that stored values need."""
    text = "\n".join(rows(conn).values())
    found = re.findall(r"\$wrap\\*\"*: ?\\*\"*([A-Za-z0-9._-]+):", text)
    assert len(found) >= text.count("$wrap") > 0
    return set(found)


def divergences(conn: psycopg.Connection[Any], app: AsyncApp) -> list[Any]:
    """What the code does not repeat of all runs, by the codec of an app."""
    chains = [chain for (chain,) in conn.execute("select chain_id from pgflow.runs").fetchall()]
    verdicts = list(replay_histories(read_database(conn, chains), app.definitions))
    assert len(verdicts) >= len(chains)
    return [one.divergence for one in verdicts if one.divergence is not None]


async def test_a_rotation_reaches_every_value_and_changes_none(aflow, dsn, conn):
    switch_on(conn)
    await run_everything(aflow, conn, ring("k1"))
    seal(conn)
    assert wraps(conn) == {"k1"}
    assert tables_with(conn, CANARY) == set()
    journal = conn.execute("select run_id, seq, kind from pgflow.unit order by 1, 2").fetchall()
    async with AsyncApp(dsn, codec=ring("k2", "k1")) as both:
        done = await both.rotate_keys(pages=1)
        assert done.rows > 50
        assert (done.unknown, done.busy) == ((), False)
        assert (await both.rotate_keys()).rows == 0
    assert wraps(conn) == {"k2"}
    assert findings(conn) == []
    found = conn.execute("select run_id, seq, kind from pgflow.unit order by 1, 2").fetchall()
    assert found == journal
    new = AsyncApp(dsn, include=[everything, again], codec=ring("k2"))
    assert divergences(conn, new) == []
    # A seal holds all of a value but its wrap.
    change = """update pgflow.unit set payload = replace(payload::text, %s, %s)::json
        where seq = 2 and payload::text like '%%"$wrap"%%'"""
    tamper(conn, change, '"data":"', '"data":"A')
    assert findings(conn) != []
    tamper(conn, change, '"data":"A', '"data":"')
    assert findings(conn) == []
    async with AsyncApp(dsn, codec=ring("k1", "k2")) as back:  # what the harness replays with
        assert (await back.rotate_keys()).rows == done.rows


def test_a_value_is_redacted_in_copies_that_a_rotation_has_not_reached(dsn, conn):
    switch_on(conn)
    with App(dsn, include=[extends], codec=ring("k1")) as app:
        with app.worker():
            app.start(extends.options(key="a"), SecretStr("token"), 3).result(SOON)
            app.get(app.fork("a", "b", at=2, effects="reuse"), extends).result(SOON)
        seal(conn)
    with App(dsn, codec=ring("k2", "k1")) as app:
        with psycopg.connect(dsn) as other:
            other.execute("select from pgflow.run where key = 'b' for update")
            assert app.rotate_keys().busy
        assert wraps(conn) == {"k1", "k2"}
        app.redact("a", why="asked for", what="input")
        assert conn.execute(
            "select count(*) from pgflow.run where pgflow.is_redacted_(input::text)"
        ).fetchone() == (2,)
        assert not app.rotate_keys().busy
    assert wraps(conn) == {"k2"}
    seal(conn)
    assert findings(conn) == []


@in_a_loop
async def test_a_run_whose_key_is_lost_is_stuck_and_goes_on_when_it_is_back(dsn):
    secret = SecretStr("token")
    async with AsyncApp(dsn, include=[extends], codec=ring("k1")) as app:
        await app.start(extends.options(key="a"), secret, 2)
    async with AsyncApp(dsn, include=[extends], codec=ring("k2")) as app, app.worker():
        with pytest.raises(RunStuck, match=r"codec.*key 'k1', and the app's codec cannot") as told:
            await app.get("a", extends).result(SOON)
        assert "token" not in str(told.value)
        done = await app.rotate_keys()
        assert (done.rows, done.unknown, done.busy) == (0, ("k1",), False)
    async with AsyncApp(dsn, include=[extends], codec=ring("k2", "k1")) as app, app.worker():
        await app.resume("a")
        assert (await app.get("a", extends).result(SOON)).get_secret_value() == "token++"


def begin_rotating(dsn: str) -> Any:
    """Start `pgflow rotate` as a process."""
    path = os.pathsep.join(map(str, processes.FOLDERS))
    return forked.start(
        ["-m", "pgflow_cli", "--dsn", dsn, "rotate", "keyring_jobs", "--pages", "1"],
        env={**os.environ, "PYTHONPATH": path},
        cwd=processes.APPS,
    )


@pytest.mark.full
def test_keys_are_rotated_under_load_and_kills(dsn, conn, monkeypatch):
    """Workers and rotations die again and again, while the present key changes under them."""
    switch_on(conn)
    runs: list[str] = []
    for old, new in itertools.pairwise(["k1", "k2", "k3", "k4"]):
        # First every process has the new key, then it is the present one, then all is rotated.
        for present, other in ((old, new), (new, old)):
            monkeypatch.setenv("SHOP_KEYS", f"{present} {other}")
            with App(dsn, include=[extends], codec=ring(present, other)) as app:
                begun = [f"{present}-{other}-{n}" for n in range(10)]
                for key in begun:
                    app.start(extends.options(key=key), SecretStr("t"), 20)
                with processes.worker(dsn, module="keyring_jobs") as killed:
                    killed.registered()
                    if present == new:
                        rotating = begin_rotating(dsn)
                        wait_until(lambda of=runs[-1], to=new: has_key(conn, of, to), "it rotates")
                        rotating.kill()
                        rotating.wait()
                    killed.send(signal.SIGKILL)
                    killed.finish()
                runs += begun
                conn.execute("select pgflow.seal_units(at_once => true)")
        with App(dsn, include=[extends], codec=ring(new, old)) as app, app.worker():
            for key in runs:
                app.get(key, extends).result(SOON)
            done = app.rotate_keys()
            assert (done.unknown, done.busy) == ((), False)
        assert wraps(conn) == {new}
    seal(conn)
    assert findings(conn) == []
    last = AsyncApp(dsn, include=[extends], codec=ring("k4"))
    assert divergences(conn, last) == []
    with App(dsn, include=[extends], codec=ring("k4")) as app:
        results = {app.get(key, extends).result(SOON).get_secret_value() for key in runs}
    assert results == {"t" + "+" * 20}


def has_key(conn: psycopg.Connection[Any], key: str, name: str) -> bool:
    """True if the input of a run needs a key of this name."""
    query = "select input::text like %s from pgflow.run where key = %s"
    return conn.execute(query, (f'%"$wrap":"{name}:%', key)).fetchone() == (True,)


def test_the_command_line_rotates(dsn, conn, monkeypatch):
    with App(dsn, include=[extends], codec=ring("k0")) as app, app.worker():
        app.start(extends.options(key="a"), SecretStr("token"), 2).result(SOON)
    assert "<encoded with key k0>" in command(dsn, "show", "a", "--table").out
    said = command(dsn, "rotate", "keyring_jobs")
    assert (said.code, json.loads(said.out)["unknown"]) == (1, ["k0"])
    assert wraps(conn) == {"k0"}


def test_what_is_no_key_is_refused():
    key = os.urandom(32)
    for keys, key_id, says in (
        ({"a": key[:16]}, "a", "32 random bytes"),
        ({"a b": key}, "a b", "1 to 64 letters"),
        ({"a": key}, "b", "names no key"),
    ):
        with pytest.raises(DefinitionError, match=says):
            Keyring(keys, key_id, hash_key=b"x" * 16)
    held = Keyring({"a": key}, "a", hash_key=b"x" * 16)
    assert repr(held) == "Keyring(a; writes with a)"
    sealed = envelopes_of(held).seal('"x"', "it")  # type: ignore[union-attr]
    for broken in (sealed.replace('"$wrap":"a:', '"$wrap":"a:AAAA'), sealed.replace("a:", "b:")):
        with pytest.raises(CodecError, match="cannot decode it"):
            envelopes_of(held).open_sealed(json.loads(broken), "it")  # type: ignore[union-attr]
