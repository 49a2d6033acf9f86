"""Versions: the code that may work on a run, the records of it, and the time at which old code may
go.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import textwrap
from collections.abc import AsyncIterator, Callable, Coroutine
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from clikit import pgflow as cli
from records import SOON, events, eventually, result_of, settle, steps

import pgflow
from pgflow import AsyncApp, Signal, Workflow, step, workflow
from pgflow._flow.patches import find_patches
from pgflow.errors import DefinitionError
from pgflow.testing import AsyncHarness


def seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


go = Signal("go", int)


@step
async def note(what: str) -> str:
    return what


def alone(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """A coroutine test that brings its own apps."""

    @functools.wraps(test)
    def run(**fixtures: Any) -> None:
        asyncio.run(test(**fixtures))

    return run


def make(
    version: str | None, *, pinned: bool = False, says: str | None = None, **options: Any
) -> Workflow[[], str]:
    """The code of a version: says which it is, before and after a wait."""

    @workflow(name="flow", version=version, pinned=pinned, **options)
    async def flow_of_a_version() -> str:
        said = await note(says or f"by {version}")
        await go.wait()
        return f"{said}, then by {says or version}"

    flow_of_a_version.__dict__["code_hash"] = f"code of {says or version}"
    return flow_of_a_version


@contextlib.asynccontextmanager
async def workers(dsn: str, *codes: Any) -> AsyncIterator[AsyncApp]:
    """A worker for each of these versions of code; answers the app of the first."""
    async with contextlib.AsyncExitStack() as stack:
        apps = []
        for code in codes:
            app = AsyncApp(dsn, include=[code])
            await stack.enter_async_context(app)
            await stack.enter_async_context(app.worker(poll_seconds=0.1, grace_seconds=1.0))
            apps.append(app)
        yield apps[0]


def versions(conn: psycopg.Connection, columns: str) -> dict[str, tuple[Any, ...]]:
    return {
        row[0]: row[1:]
        for row in conn.execute(f"select version, {columns} from pgflow.versions").fetchall()
    }


def patch(
    conn: psycopg.Connection,
    name: str,
    columns: str = "new_side, old_side, marked, safe_to_deprecate, safe_to_remove",
) -> tuple[Any, ...]:
    row = conn.execute(f"select {columns} from pgflow.patches where patch = %s", (name,)).fetchone()
    assert row is not None
    return row


async def waiting(conn: psycopg.Connection, *keys: str) -> None:
    await eventually(
        lambda: (
            conn.execute(
                "select count(*) from pgflow.runs where key = any(%s) and status = 'waiting'",
                (list(keys),),
            ).fetchone()
            == (len(keys),)
        ),
        f"{keys} wait",
    )


@alone
async def test_a_run_started_with_a_version_that_a_worker_has_is_taken_by_it_though_nothing_was_pinned_before(
    dsn, conn
):
    async with workers(dsn, make("1")) as app:
        conn.execute("select pgflow.start_run('flow', key => 'a', version => '1')")
        conn.execute("select pgflow.start_run('flow', key => 'b', version => '2')")
        await app.get("a", make("1")).send(go, 1)
        assert await app.get("a", make("1")).result(SOON) == "by 1, then by 1"
        assert await app.get("b", make("1")).status() == "queued"


@alone
async def test_a_lane_that_is_new_is_served_as_soon_as_somebody_tells_of_it(dsn, monkeypatch):
    monkeypatch.setattr("pgflow._worker.lanes.LANES_EVERY_SECONDS", 3600.0)
    code = make("1")
    async with (
        AsyncApp(dsn, include=[code]) as app,
        app.worker(poll_seconds=3600, grace_seconds=1.0),
    ):
        first = await app.start(code)
        await first.send(go, 1)
        await first.result(SOON)  # its polls and its listener are at work
        pinned = make("1", pinned=True)
        run = await app.start(pinned)
        await run.send(go, 1)
        assert await run.result(SOON) == "by 1, then by 1"


@pytest.mark.full
@alone
async def test_a_pinned_run_is_worked_on_by_its_version_only_and_any_other_by_anybody(dsn, conn):
    one, two = make("1", pinned=True), make("2", pinned=True)
    async with workers(dsn, one, two) as app:
        runs = [
            await app.start(code.options(key=f"{code.version}-{n}"))
            for n in range(5)
            for code in (one, two)
        ]
        for run in runs:
            await run.send(go, 1)
        for run in runs:
            version = run.key[0]
            assert await run.result(SOON) == f"by {version}, then by {version}"
    found = dict(conn.execute("select version, count(*) from pgflow.runs group by 1").fetchall())
    assert found == {"1": 5, "2": 5}


@pytest.mark.full
@alone
async def test_a_pinned_run_waits_for_its_version_while_others_go_past_it(dsn, conn):
    old, new, auto = make("1", pinned=True), make("2", pinned=True), make(None, says="auto")
    async with AsyncApp(dsn, include=[old]) as app:
        stays = await app.start(old.options(key="stays", priority=-5))
    async with workers(dsn, new) as app:
        done = await app.start(new.options(key="done"))
        await done.send(go, 1)
        assert await done.result(SOON) == "by 2, then by 2"
        assert await app.get("stays", old).status() == "queued"
        found = versions(conn, "pinned_runs, workers, safe_to_remove")
        assert found == {"1": (1, 0, False), "2": (0, 1, True)}
    async with workers(dsn, auto) as app:
        assert await app.get("stays", old).status() == "queued"
    async with workers(dsn, old) as app:
        await app.get("stays", old).send(go, 1)
        assert await app.get("stays", old).result(SOON) == "by 1, then by 1"
    assert versions(conn, "safe_to_remove")["1"] == (True,)
    del stays


@alone
async def test_without_a_name_a_version_is_the_hash_of_the_code():
    code = make(None, pinned=True, says="x")
    assert workflow(pinned=True)(note.fn).start_options.version == workflow(note.fn).code_hash
    assert code.version == code.code_hash
    assert make("1").start_options.version == ""


async def test_a_child_and_the_next_generation_stay_with_the_version(aflow, conn):
    @workflow(version="c1", pinned=True)
    async def child(n: int) -> int:
        return n

    @workflow(version="p1", pinned=True)
    async def parent(n: int) -> int:
        if n > 0:
            await pgflow.run_child(child, n)
            pgflow.continue_as_new(n - 1)
        return n

    aflow.include(parent, child)
    assert await result_of(aflow, parent, 2) == 0
    rows = conn.execute(
        "select l.workflow, l.version, count(*) from pgflow.run r join pgflow.lane l using "
        "(lane_id) group by 1, 2 order by 1"
    ).fetchall()
    found = [(name.rpartition(".")[2], *rest) for name, *rest in rows]
    assert found == [("child", "c1", 2), ("parent", "p1", 3)]


def test_batches_and_sql_start_pinned_runs_too(flow, conn):
    code = make("7", pinned=True)
    flow.include(code)
    flow.app.start_many(code, [(), ()], keys=["a", "b"])
    conn.execute("select pgflow.start_run('flow', '{}', 'c', version => '7')")
    conn.execute("select pgflow.start_run('flow', '{}', 'd', version => '8')")
    flow.start(code)
    found = dict(conn.execute("select version, count(*) from pgflow.runs group by 1").fetchall())
    assert found == {"7": 4, "8": 1}
    with pytest.raises(psycopg.Error, match="a version must be at most 255 bytes"):
        conn.execute("select pgflow.start_run('flow', '{}', version => repeat('x', 256))")
    conn.execute("select pgflow.cancel_run('d')")
    conn.execute("select pgflow.wake()")


@pytest.mark.parametrize("version", ["", "a\0", "x" * 256])
def test_a_version_is_a_name(version):
    with pytest.raises(
        DefinitionError, match="the version of workflow flow must be a text of 1 to 255 bytes"
    ):
        make(version)


def test_a_worker_that_is_gone_serves_nothing(flow, conn):
    flow.include(make("1"))
    flow.start(make("1"))
    flow.until_idle()
    found = versions(conn, "workers, last_at is null, begun_runs, safe_to_remove")
    assert found == {"1": (1, True, 1, False)}
    flow.crash()
    found = versions(conn, "workers, last_at is null, begun_runs, safe_to_remove")
    assert found == {"1": (0, False, 1, False)}


@pytest.mark.full
@alone
async def test_a_version_may_go_once_no_run_from_its_time_is_open(dsn, conn):
    old, new = make("1"), make("2")
    async with workers(dsn, old) as app:
        await app.start(old.options(key="before"))
        await waiting(conn, "before")
    async with workers(dsn, new) as app:
        await app.start(new.options(key="after"))
        await waiting(conn, "after")
        found = versions(conn, "begun_runs, workers, safe_to_remove")
        assert found == {"1": (1, 0, False), "2": (2, 1, False)}
        await app.get("before", new).send(go, 1)
        await app.get("before", new).result(SOON)
        found = versions(conn, "begun_runs, workers, safe_to_remove")
        assert found == {"1": (0, 0, True), "2": (1, 1, False)}
    # Starts within a minute take their numbers in any order, so code of that minute is kept.
    conn.execute(
        "update pgflow.code set last_at = last_at - interval '1 minute' where version = '1'"
    )
    conn.execute("select pgflow.drop_history(clock_timestamp())")
    conn.execute("select pgflow.drop_history(clock_timestamp(), 1000, 1000000)")
    assert set(versions(conn, "workers")) == {"2"}, (
        "code is forgotten with the history, as far as no open run is as old"
    )


@pytest.mark.full
def test_what_versions_and_patches_say_in_a_terminal(dsn, conn, flow):
    assert cli(dsn, "versions", tty=True).err == "No worker has reported its code yet.\n"
    assert cli(dsn, "patches", tty=True).err == "Neither a worker nor an open run knows a patch.\n"
    flow.include(make("1", pinned=True), changing)
    flow.start(make("1", pinned=True))
    settle(flow, changing)
    conn.execute("select pgflow.start_run('flow', '{}', 'x', version => '0')")
    said = cli(dsn, "versions", tty=True).out
    assert "no: runs wait for a worker that has it" in said
    assert "no: pinned runs need its workers" in said
    assert "no: the code must fit these runs" in said
    assert "WORKERS" in cli(dsn, "patches", tty=True).out
    assert [row["version"] for row in cli(dsn, "versions", "-w", "flow").data] == ["0", "1"]
    assert cli(dsn, "patches", "-w", "changing", "--csv").out.startswith(
        "workflow,patch,new_side,old_side"
    )
    conn.execute("select pgflow.cancel_run('x')")
    conn.execute("select pgflow.wake()")


class Code:
    """Deployed code: tests change it between two activations."""

    stage = 1


@pytest.fixture(autouse=True)
def _first_stage() -> None:
    Code.stage = 1


@workflow
async def changing() -> list[str]:
    said = []
    if Code.stage == 1:
        said.append(await note("old"))
    elif Code.stage == 2:
        said.append(await note("new" if pgflow.patched("renew") else "old"))
    else:
        if Code.stage == 3:
            pgflow.deprecate_patch("renew")
        said.append(await note("new"))
    await go.wait()
    said.append(await note("end"))
    return said


async def begin(aflow: AsyncHarness, stage: int) -> Any:
    Code.stage = stage
    return await settle(aflow, changing)


async def end(aflow: AsyncHarness, stage: int, run: Any) -> Any:
    Code.stage = stage
    await run.send(go, 1)
    await aflow.until_idle()
    return await run.result(SOON)


@pytest.mark.parametrize(
    ("earlier", "ended"), [(2, 2), (2, 3), (3, 3), (3, 4), (3, 2), (4, 4), (1, 2), (4, 3)]
)
async def test_stages_of_a_patch_that_fit_each_other(aflow, earlier, ended):
    aflow.include(changing)
    run = await begin(aflow, earlier)
    assert await end(aflow, ended, run) == ["old" if earlier == 1 else "new", "end"]
    Code.stage = ended


async def test_the_marker_of_a_deprecated_patch_has_no_call_and_is_recorded_once(aflow, conn):
    aflow.include(changing)
    run = await begin(aflow, 3)
    assert conn.execute(
        "select call, name from pgflow.timeline where event = 'patched'"
    ).fetchall() == [(0, "renew")]
    await end(aflow, 3, run)
    assert [event for event, _ in events(conn, run.key)].count("patched") == 1
    assert [name for name, _, _ in steps(conn, run.key)] == ["note", "note"]


@pytest.mark.full
async def test_code_without_the_call_does_not_fit_a_run_that_patched_has_marked(aflow, conn):
    aflow.include(changing)
    run = await begin(aflow, 2)
    await aflow.crash()  # in memory the run would go on
    Code.stage = 4
    await aflow.until_idle()
    await run.send(go, 1)
    with pytest.raises(pgflow.RunStuck, match="patched 'renew'"):
        await run.result(SOON)
    Code.stage = 3
    conn.execute("select pgflow.resume_run(%s)", (run.key,))
    await aflow.until_idle()
    assert await run.result(SOON) == ["new", "end"]


def test_deprecate_patch_works_in_a_sync_workflow(flow):
    stage = [2]

    @workflow
    def changing_sync() -> str:
        if stage[0] == 2:
            said = note.sync("new" if pgflow.patched("renew") else "old")
        else:
            pgflow.deprecate_patch("renew")
            said = note.sync("new")
        go.sync.wait()
        return said

    first = settle(flow, changing_sync)
    stage[0] = 3
    second = settle(flow, changing_sync)
    for run in (first, second):
        run.send(go, 1)
        assert run.result(SOON) == "new"


async def test_two_deprecated_patches_side_by_side_and_one_of_them_removed(aflow):
    has_both = [True]

    @workflow
    async def twice() -> str:
        if has_both[0]:
            pgflow.deprecate_patch("a")
        pgflow.deprecate_patch("b")
        pgflow.set_state(x=1)
        await go.wait()
        return await note("done")

    run = await settle(aflow, twice)
    has_both[0] = False
    await run.send(go, 1)
    assert await run.result(SOON) == "done"


def load(tmp_path: Path, name: str, body: str) -> Any:
    import importlib.util
    import sys

    file = tmp_path / f"{name}.py"
    file.write_text(
        textwrap.dedent(
            "import pgflow\ngo = pgflow.Signal('go', int)\n@pgflow.step\nasync def note(what: str) "
            "-> str:\n    return what\n"
        )
        + textwrap.dedent(body)
    )
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


STAGES = {
    "s1": "@pgflow.workflow(name='w')\nasync def w() -> None:\n    await note('old')\n    await "
    "go.wait()\n",
    "s2": "async def side() -> None:\n    await note('new' if pgflow.patched('renew') else "
    "'old')\n@pgflow.workflow(name='w')\nasync def w() -> None:\n    await side()\n    await "
    "go.wait()\n",
    "s3": "@pgflow.workflow(name='w')\nasync def w() -> None:\n    "
    "pgflow.deprecate_patch('renew')\n    await note('new')\n    await go.wait()\n",
}


@pytest.mark.full
@alone
async def test_the_life_of_a_patch_as_the_view_tells_it(dsn, conn, tmp_path):
    old, patched, deprecated = (
        load(tmp_path, f"{name}_of_a_patch", body) for name, body in STAGES.items()
    )

    async def finish(app: AsyncApp, key: str) -> None:
        await app.get(key, old.w).send(go, 1)
        await app.get(key, old.w).result(SOON)

    async with workers(dsn, old) as app:
        await app.start(old.w.options(key="a"))
        await waiting(conn, "a")
        async with workers(dsn, patched) as newer:
            found = patch(conn, "renew")
            assert found == (0, 1, 0, False, False), "known before any run has reached it"
            await app.start(old.w.options(key="b"))
            await waiting(conn, "b")
            del newer
    async with workers(dsn, patched) as app:
        await app.start(old.w.options(key="c"))
        await waiting(conn, "c")
        new_side, old_side, *_, safe, _ = patch(conn, "renew")
        assert (new_side + old_side, safe) == (3, False)
        await finish(app, "a")
        await finish(app, "b")
        assert patch(conn, "renew") == (1, 0, 1, True, False)
        assert patch(conn, "renew", "workers, deprecated") == (1, False)
    async with workers(dsn, deprecated) as app:
        await app.start(old.w.options(key="d"))
        await waiting(conn, "d")
        assert patch(conn, "renew") == (2, 0, 1, True, False)
        await finish(app, "c")
        assert patch(conn, "renew") == (1, 0, 0, True, True)
        assert patch(conn, "renew", "workers, deprecated") == (1, True)


@alone
async def test_a_run_from_before_any_worker_said_what_code_it_has_may_take_the_old_side(
    dsn, conn, tmp_path
):
    old, patched = (
        load(tmp_path, "s1_unsaid", STAGES["s1"]),
        load(tmp_path, "s2_unsaid", STAGES["s2"]),
    )
    async with workers(dsn, old) as app:
        await app.start(old.w.options(key="a"))
        await waiting(conn, "a")
    conn.execute("delete from pgflow.code")
    async with workers(dsn, patched):
        assert patch(conn, "renew") == (0, 1, 0, False, False)


def test_patches_are_found_in_the_function_and_in_what_it_names(tmp_path):
    module = load(
        tmp_path,
        "many_patches",
        """
        def helper():
            return pgflow.patched(id="in a helper")

        def stranger():
            return pgflow.patched("of another")

        @pgflow.workflow
        async def w() -> None:
            helper()
            pgflow.patched("here")
            pgflow.deprecate_patch("old")
            pgflow.patched("both")
            pgflow.deprecate_patch("both")
            pgflow.patched(f"{1}")
    """,
    )
    found = find_patches(module.w.fn)
    assert found == {"in a helper": False, "here": False, "old": True, "both": False}
    assert find_patches(eval("lambda: None")) == {}


@pytest.mark.full
@alone
async def test_a_workflow_serves_runs_of_its_old_name(dsn, conn):
    old = make("1")

    @workflow(name="new name", aliases=["flow"])
    async def renamed() -> str:
        said = await note("by 1")
        await go.wait()
        return f"{said}, then renamed"

    async with workers(dsn, old) as app:
        await app.start(old.options(key="a"))
        await waiting(conn, "a")
    async with workers(dsn, renamed) as app:
        again = await app.start(renamed.options(key="a"))
        assert again.key == "a", "the key names the same run under either name"
        assert [run.key for run in await app.start_many(renamed, [()], keys=["a"])] == ["a"]
        await again.send(go, 1)
        assert await again.result(SOON) == "by 1, then renamed"
        await app.start(renamed.options(key="b"))
        await waiting(conn, "b")
    async with workers(dsn, old) as app:
        with pytest.raises(pgflow.KeyConflict):
            await app.start(make_other().options(key="b"))
    found = conn.execute("select workflow from pgflow.versions order by 1").fetchall()
    assert found == [("flow",), ("flow",), ("new name",)]


def make_other() -> Workflow[[], None]:
    @workflow(name="quite another")
    async def other() -> None: ...

    return other


def test_an_alias_that_is_taken_is_refused():
    with pytest.raises(
        DefinitionError, match="'flow' is an alias of workflow x and a name or alias of flow too"
    ):
        AsyncApp(include=[make("1"), workflow(name="x", aliases=["flow"])(note.fn)])


@pytest.mark.parametrize("aliases", ["name", [""], [1], ["x" * 256]])
def test_aliases_are_names(aliases):
    with pytest.raises(
        DefinitionError, match="the aliases of step note must be a sequence of names"
    ):
        step(aliases=aliases)(note.fn)


async def pay_under_a_new_name(aflow: AsyncHarness, *, crash: bool) -> list[tuple[int, str]]:
    """Deploys a new name of a step under a run that has it finished, under way with a failed
    attempt, and not yet begun; the answer are the keys of its attempts.
    """
    is_new, works, keys = [False], asyncio.Event(), []
    retries = pgflow.Retries(5, first_delay=seconds(2))

    @step(name="pay", retries=retries)
    async def pay(n: int) -> str:
        keys.append((n, pgflow.idempotency_key()))
        if n == 2 and not works.is_set():
            raise ConnectionError("not yet")
        return f"paid {n}"

    new_pay = step(name="charge", aliases=["pay"], retries=retries)(pay.fn)
    own = step(name="charge")(pay.fn)

    @workflow
    async def paying() -> list[str]:
        first = new_pay if is_new[0] else pay
        return [await (new_pay if is_new[0] else own)(0), *[await first(n) for n in (1, 2, 3)]]

    run = await settle(aflow, paying)
    is_new[0] = True
    works.set()
    if crash:
        await aflow.crash()
    await aflow.skip(seconds(60))
    assert await run.result(SOON) == [f"paid {n}" for n in range(4)]
    return keys


@pytest.mark.parametrize("crash", [False, True])
async def test_a_step_under_a_new_name_goes_on_with_the_old_key(aflow, crash):
    keys = await pay_under_a_new_name(aflow, crash=crash)
    stem = keys[0][1].partition("/")[0]
    assert keys == [
        (0, f"{stem}/charge/1"),
        (1, f"{stem}/pay/1"),
        (2, f"{stem}/pay/2"),
        (2, f"{stem}/pay/2"),
        (3, f"{stem}/charge/4"),
    ]


def read_write_and_stall(suffix: str = "", *, aliased: bool = False) -> tuple[Any, Any, Any]:
    """A read, a transaction and a step that never ends well; aliased, with their old names too."""

    async def body(n: int) -> int:
        return n

    async def write(conn: psycopg.AsyncConnection, n: int) -> int:
        return n

    async def forever() -> None:
        raise ConnectionError("never")

    def aliases(name: str) -> list[str]:
        return [name] if aliased else []

    write.__name__ = f"write{suffix}"
    return (
        pgflow.read(name=f"look{suffix}", aliases=aliases("look"))(body),
        pgflow.transaction(aliases=aliases("write"))(write),
        step(
            name=f"stall{suffix}",
            aliases=aliases("stall"),
            retries=pgflow.Retries(9, first_delay=seconds(30)),
        )(forever),
    )


async def test_reads_transactions_and_given_up_steps_fit_under_a_new_name(aflow):
    is_new = [False]
    old, new = read_write_and_stall(), read_write_and_stall("_anew", aliased=True)

    @workflow
    async def mixed() -> list[Any]:
        look, put, stall = new if is_new[0] else old
        said: list[Any] = [await look(1), await put(2)]
        try:
            async with asyncio.timeout(60):
                await stall()
        except TimeoutError:
            said.append("late")
        await go.wait()
        return said

    run = await settle(aflow, mixed)
    await aflow.skip(seconds(61))
    is_new[0] = True
    await run.send(go, 1)
    assert await run.result(SOON) == [1, 2, "late"]


@pytest.mark.full
async def test_a_child_under_a_new_name_is_the_same_child(aflow):
    is_new = [False]

    async def body() -> int:
        return await go.wait()

    old, new = workflow(name="kid")(body), workflow(name="offspring", aliases=["kid"])(body)

    @workflow
    async def parent() -> int:
        return await pgflow.run_child(new if is_new[0] else old)

    aflow.include(parent, new)
    run = await settle(aflow, parent)
    is_new[0] = True
    with psycopg.connect(aflow.app.dsn, autocommit=True) as conn:
        ((key,),) = conn.execute("select key from pgflow.runs where workflow = 'kid'").fetchall()
    await aflow.app.send(key, go, 5)
    await aflow.until_idle()
    assert await run.result(SOON) == 5


def test_a_name_that_is_no_alias_still_diverges(flow):
    is_new = [False]

    @workflow
    def renaming() -> str:
        said = (
            step(name="b", aliases=["c"])(note.fn) if is_new[0] else step(name="a")(note.fn)
        ).sync("x")
        go.sync.wait()
        return said

    run = settle(flow, renaming)
    is_new[0] = True
    run.send(go, 1)
    with pytest.raises(pgflow.RunStuck, match="step 'a'"):
        run.result(SOON)
    is_new[0] = False


class Deploy:
    """Code of two effects and a decision that is deployed with new names for them; the keys under
    which its bodies were called, settling ones with a negative number.
    """

    def __init__(self) -> None:
        self.is_new = self.is_known = False
        self.keys: list[tuple[int, str]] = []
        self.old = (self._effect("pay"), self._decision("pick"))
        self.new = (self._effect("charge", "pay"), self._decision("choose", "pick"))

    def _note(self, n: int) -> None:
        self.keys.append((n, pgflow.idempotency_key()))

    def _effect(self, name: str, *aliases: str) -> Any:
        async def pay(n: int) -> str:
            self._note(n)
            if n == 2 and len(self.keys) == 2:
                raise ConnectionError("no reply")
            return f"paid {n}"

        async def ask(
            n: int,
        ) -> pgflow.effects.Confirmed[str] | pgflow.effects.Absent | pgflow.effects.StillUnknown:
            self._note(-n)
            return (
                pgflow.effects.Confirmed("paid 2")
                if self.is_known
                else pgflow.effects.StillUnknown()
            )

        async def take_back(receipt: str, n: int) -> None:
            self._note(n)

        retries = pgflow.Retries(9, first_delay=seconds(30), backoff=1)
        made = pgflow.effects.effect(
            risk="compensable", name=name, aliases=aliases, settle_retries=retries
        )(pay)
        made.settle(ask)
        take_back.__name__ = "_"
        made.compensate(take_back)
        return made

    @staticmethod
    def _decision(name: str, *aliases: str) -> Any:
        async def pick(n: int) -> pgflow.decisions.Choice[int]:
            return pgflow.decisions.Choice(n, why="asked")

        pick.__name__ = name
        return pgflow.decisions.decision(aliases=aliases)(pick)

    async def under_way(self, aflow: AsyncHarness) -> str:
        """Deploys under a run whose effects are done, unknown and not yet intended, and a
        decision not yet made; the answer is the stem of its keys.
        """

        @workflow
        async def paying() -> str:
            act, decide = self.new if self.is_new else self.old
            chosen = await decide(1)
            said = [await act.because(chosen)(1)]
            try:
                async with pgflow.effects.saga():
                    said += [await act(2), await act(3)]
                    await decide(2)
                    raise LookupError
            except LookupError:
                return ", ".join(said)

        run = await settle(aflow, paying)
        assert [n for n, _ in self.keys] == [1, 2, -2]
        self.is_new = self.is_known = True
        await aflow.crash()
        await aflow.skip(seconds(60))
        assert await run.result(SOON) == "paid 1, paid 2, paid 3"
        return self.keys[1][1].partition("/")[0]


async def test_effects_under_new_names_keep_their_keys(aflow):
    deploy = Deploy()
    stem = await deploy.under_way(aflow)
    assert deploy.keys[0] == (1, f"{stem}/pick/1/pay/1")
    assert {key for n, key in deploy.keys[1:] if abs(n) == 2 and "compensate" not in key} == {
        f"{stem}/pay/1"
    }
    found = [key.removeprefix(f"{stem}/") for _, key in deploy.keys[-3:]]
    assert found == ["charge/1", "charge/1/charge.compensate/1", "pay/1/charge.compensate/1"]


@pytest.mark.full
async def test_decisions_under_new_names_keep_their_keys(aflow, conn):
    stem = await Deploy().under_way(aflow)
    found = conn.execute("select decision from pgflow.decisions order by seq").fetchall()
    assert found == [(f"{stem}/pick/1",), (f"{stem}/choose/1",)]
