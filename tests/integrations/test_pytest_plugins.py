"""The testing kit beside other plugins of pytest: whatever runs or wraps a test, its harness works.

Pytest is a process of its own here, with the plugins of the extra `adapters`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

pytest.importorskip("pytest_asyncio")
pytest.importorskip("pytest_randomly")

pytestmark = pytest.mark.full

COMMON = """
import asyncio
import functools

import pytest
import pytest_asyncio

import pgflow

go = pgflow.Signal("go", int)

@pgflow.step
async def double(n: int) -> int:
    return 2 * n

@pgflow.workflow
async def doubling(n: int) -> int:
    return await double(n)

@pgflow.workflow
async def waiting(n: int) -> int:
    return n + await go.wait()

async def check(harness):
    harness.include(doubling)
    assert await (await harness.start(doubling, 1)).result() == 2
    await harness.crash()
    assert await (await harness.start(doubling, 2)).result() == 4
"""

ASYNCIO = (
    COMMON
    + """
@pytest.mark.asyncio
async def test_a_marked_test(aflow):
    await check(aflow)

@pytest.mark.asyncio(loop_scope="module")
async def test_a_test_on_the_modules_loop(aflow):
    await check(aflow)

@pytest_asyncio.fixture
async def started(aflow):
    aflow.include(waiting)
    run = await aflow.start(waiting, 1)
    await aflow.until_idle()
    yield run
    await run.send(go, 5)
    assert await run.result() == 6

@pytest.mark.asyncio
async def test_a_fixture_that_uses_the_harness_before_and_after(aflow, started):
    assert await started.status() == "waiting"

@pytest.mark.asyncio(loop_scope="module")
async def test_a_fixture_on_another_loop(aflow, started):
    assert await started.status() == "waiting"

@pytest.mark.asyncio
async def test_a_harness_that_only_a_fixture_names(started):
    assert await started.status() == "waiting"

def on_a_loop_of_its_own(test):
    @functools.wraps(test)
    def run(*args, **kwargs):
        asyncio.run(test(*args, **kwargs))
    return run

@on_a_loop_of_its_own
async def test_a_wrapped_test(aflow):
    await check(aflow)

class TestOfAClass:
    @pytest.mark.timeout(600)
    @pytest.mark.parametrize("n", [1, 2])
    async def test_a_method(self, aflow, n):
        await check(aflow)

async def test_a_test_without_a_mark(aflow):
    await check(aflow)

@pytest.mark.asyncio
async def test_the_sync_harness_in_an_async_test(flow):
    flow.include(doubling)
    assert flow.start(doubling, 2).result() == 4

def test_the_sync_harness(flow):
    flow.include(doubling)
    assert flow.start(doubling, 2).result() == 4
"""
)

ANYIO = (
    COMMON
    + """
pytestmark = pytest.mark.anyio

@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request):
    return request.param

async def test_a_marked_test(aflow):
    await check(aflow)

@pytest.fixture
async def started(aflow, anyio_backend):
    aflow.include(waiting)
    run = await aflow.start(waiting, 1)
    await aflow.until_idle()
    yield run
    await run.send(go, 5)
    await aflow.until_idle()
    assert await run.result() == 6

async def test_a_fixture_that_uses_the_harness_before_and_after(aflow, started):
    assert await started.status() == "waiting"
"""
)


@pytest.mark.parametrize(
    "options",
    [
        ["-o", "asyncio_mode=auto"],
        ["-o", "asyncio_mode=strict", "-p", "no:randomly"],
        ["-o", "asyncio_mode=auto", "-n", "2", "--timeout", "600", "-p", "randomly"],
        ["-o", "asyncio_mode=strict", "-n", "2", "--timeout-method", "thread"],
    ],
    ids=["auto", "strict", "auto on two processes", "strict on two processes"],
)
def test_the_kit_works_beside_asyncio_anyio_xdist_randomly_and_timeout(
    tmp_path, server_dsn, options
):
    (tmp_path / "test_asyncio.py").write_text(ASYNCIO)
    (tmp_path / "test_anyio.py").write_text(ANYIO)
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\nasyncio_default_fixture_loop_scope = function\nfilterwarnings = error\n"
    )
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-rA", "-p", "no:cacheprovider", "--tb=short", *options],
        cwd=tmp_path,
        env={**os.environ, "PGFLOW_TEST_DSN": server_dsn, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )
    # Those on trio are skipped: the harness is asyncio's.
    assert re.search(r"\b13 passed, 2 skipped in", ran.stdout), ran.stdout + ran.stderr
