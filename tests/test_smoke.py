import asyncio
from datetime import timedelta
import pytest
import pgflow
from pgflow import Signal, step, read, workflow, transaction, RunFailed, RunCancelled, RunStuck
from pgflow.testing import AsyncHarness, Harness

@step
async def add(a: int, b: int) -> int: return a + b

paid = Signal("paid", int)

@workflow
async def long_wait(x: int) -> str:
    a = await add(x, 1)
    try:
        p = await paid.wait(timeout=timedelta(hours=3))
    except TimeoutError:
        return f"timeout {a}"
    return f"paid {p} {a}"

async def test_timeout(aflow: AsyncHarness):
    aflow.include(long_wait)
    run = await aflow.start(long_wait, 1)
    due = await aflow.until_idle()
    assert due is not None
    await aflow.skip(timedelta(hours=4))
    assert await run.result() == "timeout 2"

async def test_signal(aflow: AsyncHarness):
    aflow.include(long_wait)
    run = await aflow.start(long_wait, 1)
    await aflow.until_idle()
    await aflow.crash()
    await run.send(paid, 7)
    await aflow.until_idle()
    assert await run.result() == "paid 7 2"

async def test_cancel(aflow: AsyncHarness):
    aflow.include(long_wait)
    run = await aflow.start(long_wait, 1)
    await aflow.until_idle()
    await run.cancel()
    with pytest.raises(RunCancelled):
        await run.result(timedelta(seconds=5))
    assert await run.status() == "cancelled"

tries = []
@step(retries=3)
async def flaky(n: int) -> int:
    tries.append(n)
    if len(tries) < n: raise ValueError("no")
    return len(tries)

@workflow
async def flakyflow(n: int) -> int: return await flaky(n)

async def test_retries(aflow):
    aflow.include(flakyflow)
    run = await aflow.start(flakyflow, 3)
    await aflow.until_idle()
    assert await run.result() == 3
    tries.clear()
    run = await aflow.start(flakyflow, 5)
    with pytest.raises(RunFailed) as e:
        await run.result(timedelta(seconds=15))
    assert isinstance(e.value.__cause__, ValueError)

@workflow
def sync_flow(n: int) -> int:
    total = 0
    for i in range(n): total += add.sync(i, 1)
    pgflow.sync.sleep(timedelta(days=1))
    return total

def test_sync(flow: Harness):
    flow.include(sync_flow)
    run = flow.start(sync_flow, 3)
    flow.until_idle()
    assert run.status() == "waiting"
    flow.crash()
    flow.skip(timedelta(days=1, seconds=1))
    assert run.result() == 6

@workflow
async def counter(n: int, total: int = 0) -> int:
    total = await add(total, n)
    if n > 0: pgflow.continue_as_new(n - 1, total)
    return total

async def test_continue(aflow):
    aflow.include(counter)
    run = await aflow.start(counter, 5)
    await aflow.until_idle()
    assert await run.result() == 15

switch = [True]
@workflow
async def changing() -> str:
    if switch[0]: await add(1, 2)
    else: await flaky(1)
    await paid.wait()
    return "x"

async def test_nondeterminism(aflow):
    aflow.include(changing)
    run = await aflow.start(changing)
    await aflow.until_idle()
    switch[0] = False
    await run.send(paid, 1)
    with pytest.raises(RunStuck) as e:
        await run.result(timedelta(seconds=5))
    print(e.value)
    switch[0] = True
    await aflow.app.retry(run.key)
    assert await run.result(timedelta(seconds=5)) == "x"

async def test_pause(aflow):
    aflow.include(long_wait)
    run = await aflow.start(long_wait, 1)
    await aflow.until_idle()
    await aflow.app.pause(run.key)
    assert await run.status() == "paused"
    await run.send(paid, 3)
    await aflow.until_idle()
    assert await run.status() == "paused"
    await aflow.app.resume(run.key)
    assert await run.result(timedelta(seconds=5)) == "paid 3 2"
