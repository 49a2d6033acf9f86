"""anyio in workflow code: its task groups, scopes and timers are durable and replay, and what it
cannot have is refused by name.

Frameworks for agents are written with it (mcp, pydantic-ai), and so is much that was not written
for workflows.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import math
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self

import anyio
import anyio.to_thread
import pytest
from records import calling, settle
from test_loop import Bench, bench  # noqa: F401 - the fixture

from pgflow import RunStuck, step, workflow
from pgflow._engine.loop import _ADVICE, MAX_REPEATS, WorkflowLoop
from pgflow.errors import NotInWorkflowError

if TYPE_CHECKING:
    from collections.abc import Callable


METHODS = [
    name
    for name in dir(asyncio.AbstractEventLoop)
    if not name.startswith("_") and callable(getattr(asyncio.AbstractEventLoop, name))
]


@pytest.mark.parametrize("name", METHODS)
def test_every_method_of_an_event_loop_works_or_refuses_by_name(
    bench: Callable[..., Bench],  # noqa: F811
    name: str,
) -> None:
    owner = next(cls for cls in WorkflowLoop.__mro__ if name in vars(cls))
    assert owner is not asyncio.AbstractEventLoop, (
        f"asyncio's own {name} raises NotImplementedError"
    )
    if name not in _ADVICE:
        return

    async def main(_: Bench) -> None:
        answer = getattr(asyncio.get_running_loop(), name)()
        if inspect.isawaitable(answer):
            await answer

    with pytest.raises(NotInWorkflowError, match=rf"\({name}\).*@pgflow\.step"):
        bench(main).main.result()


def test_what_a_loop_says_of_itself(bench):  # noqa: F811
    async def main(b: Bench) -> list[Any]:
        loop = asyncio.get_running_loop()
        return [
            loop.get_task_factory(),
            loop.get_debug(),
            loop.is_running(),
            loop.is_closed(),
            loop.get_exception_handler(),
        ]

    assert bench(main).main.result() == [None, False, True, False, None]


def test_an_exception_handler_is_told_what_a_callback_raises_and_not_what_is_found_at_collection(
    bench: Callable[..., Bench],  # noqa: F811
) -> None:
    async def main(b: Bench) -> None:
        loop = asyncio.get_running_loop()

        def fail() -> None:
            raise ValueError("in a callback")

        def heard(of: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
            b.log.append((of is loop, str(context["exception"])))
            raise RuntimeError("the handler fails too")

        loop.set_exception_handler(heard)
        assert loop.get_exception_handler() is heard
        loop.call_soon(fail)
        lost = loop.create_future()
        lost.set_exception(ValueError("never retrieved"))
        del lost
        await asyncio.sleep(0)
        loop.set_exception_handler(None)
        loop.call_soon(fail)
        with pytest.raises(TypeError, match="callable"):
            loop.set_exception_handler(3)  # type: ignore[arg-type]

    b = bench(main)
    b.main.result()
    assert b.log == [(True, "in a callback")]


@pytest.mark.parametrize("salt", range(12))
def test_scopes_in_a_cancelled_group_are_left_in_the_order_of_their_beginning(
    bench: Callable[..., Bench],  # noqa: F811
    salt: int,
) -> None:
    """anyio keeps them in a set, whose order is that of addresses."""
    kept: list[Any] = []

    async def patient(b: Bench, i: int) -> None:
        kept.extend(object() for _ in range((i * 7 + salt * 13) % 11))
        with anyio.CancelScope():
            try:
                await b.gate(str(i))
            finally:
                b.log.append(i)

    async def main(b: Bench) -> None:
        async with anyio.create_task_group() as group:
            for i in range(16):
                kept.append(bytearray(salt * 100 + i))
                group.start_soon(patient, b, i)
            await b.gate("go")
            group.cancel_scope.cancel()

    b = bench(main)
    b.open("go")
    assert b.main.done()
    assert b.log == list(range(16))


def test_a_scope_that_waits_for_code_that_will_not_end_lets_the_run_stand_still(
    bench: Callable[..., Bench],  # noqa: F811
) -> None:
    """anyio cancels again and again until all have ended, which here takes an outcome."""

    async def stubborn(b: Bench) -> None:
        try:
            await b.gate("never")
        except asyncio.CancelledError:
            b.log.append("cancelled")
            await asyncio.shield(b.gate("cleaned up"))
            b.log.append("clean")

    async def main(b: Bench) -> str:
        with anyio.move_on_after(5) as scope:
            async with asyncio.TaskGroup() as group:
                group.create_task(stubborn(b))
        return f"{scope.cancelled_caught}"

    b = bench(main)
    b.fire()
    assert not b.main.done()
    assert b.log == ["cancelled"]
    b.open("cleaned up")
    assert b.main.result() == "True"
    assert b.log == ["cancelled", "clean"]


def test_a_callback_that_appends_itself_again_rests_until_the_next_outcome(
    bench: Callable[..., Bench],  # noqa: F811
) -> None:
    class Poll:
        def __init__(self, b: Bench) -> None:
            self.b = b
            self.count = 0

        def look(self) -> None:
            self.count += 1
            if not self.b.gate("a").done():
                asyncio.get_running_loop().call_soon(self.look)

    async def main(b: Bench) -> int:
        poll = Poll(b)
        b.log.append(poll)
        asyncio.get_running_loop().call_soon(poll.look)
        await b.gate("b")
        await b.gate("a")
        await asyncio.sleep(0)
        return poll.count

    b = bench(main)
    assert b.log[0].count <= 2  # nothing came of the second
    before = b.log[0].count
    b.open("b")
    assert before < b.log[0].count <= before + MAX_REPEATS
    b.open("a")
    assert b.main.result() <= before + 4


@pytest.mark.parametrize("seconds", [math.inf, 1e15])
def test_what_is_never_due_starts_no_timer(bench, seconds):  # noqa: F811
    async def main(b: Bench) -> str:
        sleeping = asyncio.create_task(asyncio.sleep(seconds))
        await b.gate("go")
        sleeping.cancel()
        with pytest.raises(ValueError, match=r"nan|NaN"):
            asyncio.get_running_loop().call_later(math.nan, print)
        return "gone on"

    b = bench(main)
    b.open("go")
    assert b.main.result() == "gone on"
    assert b.timers.started == []


@step
async def slowly(name: str) -> str:
    return name.upper()


@step
async def failing(name: str) -> str:
    raise ValueError(name)


@workflow
async def in_a_group(names: list[str]) -> list[str]:
    found: dict[str, str] = {}

    async def look(name: str) -> None:
        with anyio.fail_after(3600):
            found[name] = await slowly(name)

    async with anyio.create_task_group() as group:
        for name in names:
            group.start_soon(look, name)
    return [found[name] for name in names]


@workflow
async def with_time_outs() -> list[Any]:
    heard: list[Any] = []
    began = anyio.current_time()
    with anyio.move_on_after(30) as scope:
        await anyio.sleep(3600)
    heard.append(scope.cancelled_caught)
    try:
        with anyio.fail_after(30):
            await anyio.sleep_forever()
    except TimeoutError:
        heard.append("late")
    with anyio.move_on_after(30) as unused:
        await anyio.sleep(10)
    heard.append(unused.cancelled_caught)
    heard.append(anyio.current_time() - began >= 70)
    return heard


@workflow
async def cleaning_up() -> list[str]:
    done: list[str] = []

    async def work(name: str) -> None:
        try:
            with anyio.CancelScope():
                await anyio.sleep(86_400)
        finally:
            with anyio.CancelScope(shield=True):
                done.append(await slowly(f"clean {name}"))

    try:
        async with anyio.create_task_group() as group:
            for name in "abc":
                group.start_soon(work, name)
            await slowly("first")
            group.start_soon(failing, "then")
    except* Exception as errors:
        done.append(type(errors.exceptions[0]).__name__)
    return done


@workflow
async def talking() -> list[int]:
    send, receive = anyio.create_memory_object_stream[int](1)
    got: list[int] = []
    ready = anyio.Event()

    async def produce(*, task_status: anyio.abc.TaskStatus[str]) -> None:
        task_status.started("began")
        await ready.wait()
        async with send:
            for i in range(4):
                await send.send(i)
                await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as group:
        assert await group.start(produce) == "began"
        await slowly("a")
        ready.set()
        async with receive:
            async for item in receive:
                got.append(item)
    async with anyio.Lock(), anyio.Semaphore(1):
        return got


class Session:
    """Questions and answers over two streams, as in a client of MCP: each question has a stream
    that its answer comes by.
    """

    def __init__(self, send: Any, receive: Any) -> None:
        self._send = send
        self._receive = receive
        self._asked: dict[int, Any] = {}

    async def __aenter__(self) -> Self:
        self._group = anyio.create_task_group()
        await self._group.__aenter__()
        self._group.start_soon(self._hear)
        return self

    async def __aexit__(self, *error: object) -> bool | None:
        self._group.cancel_scope.cancel()
        return await self._group.__aexit__(*error)

    async def _hear(self) -> None:
        async with self._receive, self._send:
            async for number, answer in self._receive:
                await self._asked.pop(number).send(answer)

    async def ask(self, name: str) -> str:
        number = len(self._asked)
        put, get = anyio.create_memory_object_stream[str](1)
        self._asked[number] = put
        try:
            await self._send.send((number, name))
            with anyio.fail_after(3600):
                return str(await get.receive())
        finally:
            await put.aclose()
            await get.aclose()


async def serve(receive: Any, send: Any) -> None:
    async with receive, send, anyio.create_task_group() as group:
        limit = anyio.CapacityLimiter(2)

        async def answer(number: int, name: str) -> None:
            async with limit:
                await send.send((number, await slowly(name)))

        async for number, name in receive:
            group.start_soon(answer, number, name)


@workflow
async def by_sessions() -> list[str]:
    heard: list[str] = []
    async with contextlib.AsyncExitStack() as stack:
        there, at_the_server = anyio.create_memory_object_stream[tuple[int, str]](0)
        back, at_the_client = anyio.create_memory_object_stream[tuple[int, str]](0)
        group = await stack.enter_async_context(anyio.create_task_group())
        group.start_soon(serve, at_the_server, back)
        session = await stack.enter_async_context(Session(there, at_the_client))

        async def use(name: str) -> None:
            heard.append(await session.ask(name))

        async with anyio.create_task_group() as calls:
            for name in "abc":
                calls.start_soon(use, name)
        stack.callback(group.cancel_scope.cancel)
    return sorted(heard)


WORKFLOWS = {
    in_a_group: (["a", "b", "c", "d"],), with_time_outs: (), cleaning_up: (), talking: (), by_sessions: (),
}  # fmt: skip
RESULTS = {
    "in_a_group": ["A", "B", "C", "D"], "with_time_outs": [True, "late", False, True],
    "cleaning_up": ["CLEAN A", "CLEAN B", "CLEAN C", "ValueError"], "talking": [0, 1, 2, 3], "by_sessions": ["A", "B", "C"],
}  # fmt: skip


@pytest.mark.parametrize("chosen", WORKFLOWS, ids=lambda w: w.name)
async def test_anyio_is_durable_in_workflow_code_and_replays(aflow, chosen):
    """The harness replays each run once more when the test is over."""
    run = await settle(aflow, chosen, *WORKFLOWS[chosen])
    for _ in range(4):
        await aflow.skip(timedelta(seconds=31))
        await aflow.until_idle()
    assert await run.result() == RESULTS[chosen.name]


@pytest.mark.parametrize("chosen", WORKFLOWS, ids=lambda w: w.name)
async def test_anyio_goes_on_after_a_crash(aflow, chosen):
    run = await settle(aflow, chosen, *WORKFLOWS[chosen])
    await aflow.crash()
    for _ in range(4):
        await aflow.skip(timedelta(seconds=31))
        await aflow.until_idle()
    assert await run.result() == RESULTS[chosen.name]


@workflow
async def using_a_thread() -> str:
    return await anyio.to_thread.run_sync(lambda: "from a thread")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_a_thread_of_anyio_has_no_way_back_and_the_run_says_so(aflow):
    """The thread is told by name that it cannot take part; the code is not, and waits for what
    nothing can bring.
    """
    run = await settle(aflow, using_a_thread)
    with pytest.raises(RunStuck, match="waits for something that nothing can bring"):
        await run.result()


async def test_no_body_of_a_step_is_kept_from_anyio(aflow):
    @step
    async def at_home() -> str:
        async with anyio.create_task_group() as group:
            group.start_soon(anyio.sleep, 0)
        return await anyio.to_thread.run_sync(lambda: "from a thread")

    run = await settle(aflow, calling(at_home))
    assert await run.result() == "from a thread"
