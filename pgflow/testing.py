"""Testing kit: workflows in tests, on a real database, without waiting.

As a pytest plugin it brings two fixtures, ``flow`` and ``aflow``, each on a fresh database::

    async def test_an_order_nobody_approves_expires(aflow: AsyncHarness) -> None:
        aflow.include(ship)
        aflow.replace(post_to_slack, fake_post)
        run = await aflow.start(ship, order)
        await aflow.until_idle()
        await aflow.skip(timedelta(hours=9))
        assert await run.result() == "late"

At the end of the test every run is replayed against the code, and the database's own audit must be
empty. ``replay_histories`` is a third one, which needs no database: it replays histories that
``pgflow export`` wrote::

    def test_recorded_runs_still_fit(replay_histories: ReplayHistories) -> None:
        replay_histories("tests/histories", shop)

The server is the one of ``PGFLOW_TEST_DSN`` (a superuser's; databases are made and dropped on it),
else the embedded one. Override the fixture ``pgflow_dsn`` to bring databases of your own, with the
schema installed.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import os
import uuid
from collections.abc import (
    AsyncIterator,
    Callable,
    Container,
    Coroutine,
    Iterable,
    Iterator,
    Sequence,
)
from datetime import datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any, LiteralString, ParamSpec, Self, TypeVar, overload

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from pgflow._client._async.handles import AsyncRun
from pgflow._client._sync.handles import Run
from pgflow._db.calls import replay as replay_calls
from pgflow._db.calls import worker as worker_calls
from pgflow._flow.interceptor import Interceptor
from pgflow._flow.relays import Relay
from pgflow._flow.step import AsyncStep, Step, SyncStep
from pgflow._flow.workflow import Workflow
from pgflow._model.budgets import Pool
from pgflow._model.durations import Duration, duration
from pgflow._model.envelopes import PayloadCodec, envelopes_of
from pgflow._model.gates import Answer, Approve
from pgflow._worker.options import Definitions, WorkerOptions
from pgflow._worker.worker import Worker
from pgflow.app import App, AsyncApp
from pgflow.app._base import collect_workflows
from pgflow.errors import InvalidArgument, NonDeterminismError, Redacted, WrongState
from pgflow.inspect import (
    GateRow,
    LaneRow,
    ask,
    ask_async,
    check_books,
    list_chains,
    list_gates,
    list_lanes,
)
from pgflow.replay import histories
from pgflow.replay.check import replay
from pgflow.replay.histories import Replayed

P = ParamSpec("P")
R = TypeVar("R")

IDLE_TIMEOUT_SECONDS = 60.0
UNSERVED_SECONDS = 0.5
"""Time that runs must have waited before they count as unserved."""


class _Equipped:
    """Changes that both harnesses make to their apps."""

    app: Any

    def include(self, *things: Workflow[..., Any] | Relay | ModuleType) -> None:
        """Add workflows and relays, or modules of them, before anything is started."""
        self.app.include(*things)

    @overload
    def replace(
        self, step: AsyncStep[P, R, Any], fake: Callable[P, Coroutine[Any, Any, R]]
    ) -> None: ...
    @overload
    def replace(self, step: SyncStep[P, R, Any], fake: Callable[P, R]) -> None: ...
    def replace(self, step: Step[Any, Any], fake: Callable[..., Any]) -> None:
        """Run a fake instead of a step's body. The fake of a ``@transaction`` gets the connection
        too.
        """
        self.app.definitions.replacements[step.origin] = fake


class AsyncHarness(_Equipped):
    """An app with a worker under the test's control. It belongs to the event loop that first uses
    it.

    Attributes:
        app: The app.
    """

    app: AsyncApp

    def __init__(self, dsn: str) -> None:
        self.app = AsyncApp(dsn)
        self._dsn = dsn
        self._skipped = timedelta(0)
        self._stack = contextlib.AsyncExitStack()
        self._worker: Worker | None = None
        self._queues: set[str] = set()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def __aenter__(self) -> Self:
        """Open the app."""
        self._loop = asyncio.get_running_loop()
        await self.app.__aenter__()
        return self

    async def __aexit__(self, *details: object) -> None:
        """Stop the worker, and close the app."""
        try:
            await self._stack.aclose()
        finally:
            self._worker = None
            await self.app._disconnect()

    @contextlib.asynccontextmanager
    async def _here(self) -> AsyncIterator[None]:
        """Work on the loop of the test. If a fixture began on another loop, which is idle
        meanwhile, continue there afterwards.
        """
        loop, was_at_work = self._loop, self._worker is not None
        if loop is asyncio.get_running_loop():
            yield  # its fixture may go on with it
            return
        await asyncio.to_thread(self._finish)
        try:
            async with self:
                yield
        finally:
            self._loop = loop
            if loop is not None and was_at_work:
                await asyncio.to_thread(loop.run_until_complete, self._work())

    def _finish(self) -> None:
        """Stop the worker on a loop that is idle, unless that loop is closed."""
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.run_until_complete(self.__aexit__())

    def __call__(
        self,
        *,
        errors: Sequence[type[Exception]] = (),
        interceptors: Sequence[Interceptor] = (),
        providers: Sequence[Any] = (),
        codec: PayloadCodec | None = None,
        pools: Iterable[Pool] = (),
        queues: Iterable[str] = (),
    ) -> Self:
        """Set further arguments of the app, before anything is started.

        Args:
            errors: As ``errors=`` of an app.
            interceptors: As ``interceptors=`` of an app, inside those that it has.
            providers: As ``providers=`` of an app.
            codec: As ``codec=`` of an app.
            pools: As ``pools=`` of an app: budgets for the runs of the test.
            queues: Queues to serve, beside those of the workflows.

        Returns:
            The harness itself.

        Raises:
            WrongState: Its worker is at work already.
        """
        if self._worker is not None:
            raise WrongState(
                "the harness is at work: give it errors, interceptors, providers, pools, queues "
                "and a codec before the first start()"
            )
        _equip(self.app, errors, interceptors, codec)
        self.app.definitions.providers.extend(providers)
        self.app.definitions.pools.extend(pools)
        self._queues.update(queues)
        return self

    async def start(
        self, workflow: Workflow[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> AsyncRun[R]:
        """Start a run. :meth:`until_idle` works on it."""
        await self._work()
        return await self.app.start(workflow, *args, **kwargs)

    async def _work(self) -> Worker:
        if self._worker is None:
            served = {w.start_options.queue for w in self.app.definitions.workflows.values()}
            options = WorkerOptions(
                queues=sorted(served | self._queues | {"default"}),
                concurrency=20,
                poll_seconds=0.2,
                grace_seconds=5.0,
            )
            self._loop = asyncio.get_running_loop()
            self._worker = await self._stack.enter_async_context(self.app._run_worker(options))
        return self._worker

    async def until_idle(self) -> datetime | None:
        """Let the worker work until nothing is left to do before time passes.

        Returns:
            Time of the next timer, on the database's clock; None if there is none.

        Raises:
            WrongState: Runs wait for a workflow or a queue that no worker serves.
            TimeoutError: It did not become idle within a minute.
        """
        worker = await self._work()
        loop = asyncio.get_running_loop()
        look_at = loop.time() + UNSERVED_SECONDS
        try:
            async with asyncio.timeout(IDLE_TIMEOUT_SECONDS):
                while True:
                    state = await self.app.ask(replay_calls.idle_state())
                    if state.idle and not (await worker.fire_schedules()).runs:
                        return (await self.app.ask(replay_calls.idle_state())).next_due_at
                    if loop.time() >= look_at:
                        lanes = await ask_async(self.app, list_lanes())
                        tell_of_unserved(lanes, self.app.definitions.workflows)
                    await asyncio.sleep(0.005)
        except TimeoutError:
            raise TimeoutError(
                f"not idle after {IDLE_TIMEOUT_SECONDS:g} s: a step that does not end, or a run "
                "that cannot"
            ) from None

    async def gates(self, run: AsyncRun[Any] | str | None = None) -> list[GateRow]:
        """List the gates that wait for an answer, the oldest first.

        Args:
            run: Of this run, or the run with this key; all if not given.
        """
        key = run.key if isinstance(run, AsyncRun) else run
        return list(await ask_async(self.app, list_gates(key, limit=None)))

    async def answer(
        self, gate: GateRow | str, answer: Answer | None = None, *, by: str = "test"
    ) -> None:
        """Answer a gate, then work until idle.

        Args:
            gate: The gate, its key, or its name if only one with that name is open.
            answer: The answer; ``Approve()`` by default.
            by: Name of the approver.

        Raises:
            InvalidArgument: No open gate, or several, have this name.
        """
        await self.until_idle()
        key = find_one(await self.gates(), gate)
        await self.app.answer(key, Approve() if answer is None else answer, by=by)
        await self.until_idle()

    async def skip(self, by: Duration) -> None:
        """Move the database's clock forward, and do the work that is due then.

        On the way it stops at each slot of a schedule, so each fires at its time.

        Args:
            by: Time to skip; a number means seconds.
        """
        worker = await self._work()
        skipped = self._skipped + duration(by, "by of skip()")
        while (slot := (await worker.fire_schedules()).next_seconds) is not None:
            ahead = self._skipped + timedelta(seconds=slot)
            if ahead > skipped:
                break
            await self._set_clock(ahead)
            await worker.fire_schedules()
            await self.until_idle()
        await self._set_clock(skipped)
        worker.poll_now()
        await self.until_idle()

    async def _set_clock(self, skipped: timedelta) -> None:
        self._skipped = skipped
        await asyncio.to_thread(set_clock, self._dsn, skipped)

    async def crash(self) -> None:
        """Kill the worker at work, and let its death be noticed. The next call starts another."""
        worker = await self._work()
        await worker.abandon()
        beats = await self.app.ask(worker_calls.observe_workers())
        await self.app.ask(
            worker_calls.reap_worker(worker.worker_id, beats.get(worker.worker_id, -1))
        )
        self._worker = None


class Harness(_Equipped):
    """An app with a worker under the test's control; see :class:`AsyncHarness`.

    Attributes:
        app: The app.
    """

    app: App

    def __init__(self, dsn: str) -> None:
        self.app = App(dsn)
        self._portal, background = self.app._async_app()
        self._harness = AsyncHarness(dsn)
        self._harness.app = background
        self._portal.call(self._harness.__aenter__())

    def __call__(
        self,
        *,
        errors: Sequence[type[Exception]] = (),
        interceptors: Sequence[Interceptor] = (),
        providers: Sequence[Any] = (),
        codec: PayloadCodec | None = None,
        pools: Iterable[Pool] = (),
        queues: Iterable[str] = (),
    ) -> Self:
        """Set further arguments of the app before anything starts; see :class:`AsyncHarness`."""
        self._harness(
            errors=errors,
            interceptors=interceptors,
            providers=providers,
            codec=codec,
            pools=pools,
            queues=queues,
        )
        _equip(self.app, errors, interceptors, codec)
        return self

    def close(self) -> None:
        """Stop the worker, and close the app."""
        self._portal.call(self._harness.__aexit__(None, None, None))
        self.app.close()

    def start(self, workflow: Workflow[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Run[R]:
        """Start a run. :meth:`until_idle` works on it."""
        self._portal.call(self._harness._work())
        return self.app.start(workflow, *args, **kwargs)

    def until_idle(self) -> datetime | None:
        """Let the worker work until nothing is left to do before time passes; see
        :meth:`AsyncHarness.until_idle`.
        """
        return self._portal.call(self._harness.until_idle())

    def gates(self, run: Run[Any] | str | None = None) -> list[GateRow]:
        """List the gates that wait for an answer; see :meth:`AsyncHarness.gates`."""
        return self._portal.call(self._harness.gates(run.key if isinstance(run, Run) else run))

    def answer(
        self, gate: GateRow | str, answer: Answer | None = None, *, by: str = "test"
    ) -> None:
        """Answer a gate, then work until idle; see :meth:`AsyncHarness.answer`."""
        self.until_idle()
        key = find_one(self.gates(), gate)
        self.app.answer(key, Approve() if answer is None else answer, by=by)
        self.until_idle()

    def skip(self, by: Duration) -> None:
        """Move the database's clock forward, and do the work that is due then."""
        self._portal.call(self._harness.skip(by))

    def crash(self) -> None:
        """Kill the worker and let its death be noticed. The next call starts another."""
        self._portal.call(self._harness.crash())


def tell_of_unserved(lanes: Iterable[LaneRow], included: Container[str]) -> None:
    """Raise an error that names what is missing for runs that no worker takes.

    Args:
        lanes: Lanes, with the reasons why no worker takes their runs.
        included: Names of workflows that the worker has. Those included since its start are not
            yet in its registration, so they are left out.

    Raises:
        WrongState: Such runs exist.
    """
    missing = [
        f"{lane.why}, and {lane.queued} of {lane.workflow} "
        f"{'is' if lane.queued == 1 else 'are'} queued: {_REMEDIES[lane.why_code]}"
        for lane in lanes
        if lane.queued
        and lane.why_code in _REMEDIES
        and not (lane.why_code == "no_workflow" and lane.workflow in included)
    ]
    if missing:
        raise WrongState("\n".join(missing))


_REMEDIES = {
    "no_worker": "give the harness queues=[...]",
    "no_workflow": "include() it, unless its name is wrong",
    "no_version": "include() that version, or start the run without one",
}


def find_one(found: Sequence[GateRow], gate: GateRow | str) -> str:
    """The key of the gate that is meant.

    Raises:
        InvalidArgument: No open gate, or several, have this name.
    """
    if isinstance(gate, GateRow):
        return gate.gate
    keys = [one.gate for one in found if gate in (one.gate, one.name)]
    if len(keys) == 1:
        return keys[0]
    there = ", ".join(one.gate for one in found) or "none"
    raise InvalidArgument(f"{len(keys)} open gates are called {gate!r}; open are: {there}")


def _equip(
    app: App | AsyncApp,
    errors: Sequence[type[Exception]],
    interceptors: Sequence[Interceptor],
    codec: PayloadCodec | None,
) -> None:
    if codec is not None:
        app._envelopes = app.definitions.envelopes = envelopes_of(codec)
    app._errors = app.definitions.errors = tuple(dict.fromkeys((*app._errors, *errors)))
    app._interceptors.extend(interceptors)
    if app.definitions.interceptors is not app._interceptors:
        app.definitions.interceptors = list(app._interceptors)


class ReplayHistories:
    """Replays recorded histories against the code at hand; no body runs."""

    def __call__(
        self,
        path: str | Path,
        /,
        *things: Workflow[..., Any] | ModuleType | App | AsyncApp,
        errors: Sequence[type[Exception]] = (),
        ignore_unknown: bool = False,
        codec: PayloadCodec | None = None,
    ) -> int:
        """Fail the test if the code does not repeat a history.

        Args:
            path: A file that ``pgflow export`` wrote, or a folder of such ``*.jsonl``.
            *things: The code: workflows, modules of them, or an app.
            errors: Exception classes that recorded errors are raised as, like ``errors=`` of an
                app.
            ignore_unknown: True to skip runs of other workflows.
            codec: Codec that decodes the histories; by default the codec of an app among
                ``things``.

        Returns:
            Number of replayed runs.

        Raises:
            NonDeterminismError: The code does not repeat some of them; the error names them, with
                both sides and source lines.
            InvalidArgument: The path has no history, one cannot be read, or it belongs to a
                workflow that is not among ``things``.
        """
        definitions = _definitions_of(things, tuple(errors))
        if codec is not None:
            definitions.envelopes = envelopes_of(codec)
        replayed = Replayed()
        diverged = []
        for verdict in histories.replay_histories(histories.read_files([path]), definitions):
            replayed.count(verdict)
            if verdict.divergence is not None:
                diverged.append(str(verdict.divergence))
        if replayed.unknown and not ignore_unknown:
            others = ", ".join(sorted(replayed.unknown))
            raise InvalidArgument(
                f"{path} holds runs of {others}: pass these workflows too, or ignore_unknown=True"
            )
        if diverged:
            raise NonDeterminismError(
                "\n".join(
                    [
                        f"{len(diverged)} of {replayed.repeated + len(diverged)} runs diverge",
                        *diverged,
                    ]
                )
            )
        return replayed.repeated


def _definitions_of(
    things: Sequence[Workflow[..., Any] | ModuleType | App | AsyncApp],
    errors: tuple[type[Exception], ...],
) -> Definitions:
    apps = [thing for thing in things if isinstance(thing, (App, AsyncApp))]
    loose = [thing for thing in things if not isinstance(thing, (App, AsyncApp))]
    return Definitions(
        workflows=collect_workflows(
            [*(w for app in apps for w in app.definitions.workflows.values()), *loose]
        ),
        errors=tuple(
            dict.fromkeys((*errors, *(error for app in apps for error in app.definitions.errors)))
        ),
        interceptors=[interceptor for app in apps for interceptor in app.definitions.interceptors],
        envelopes=next(
            (app.definitions.envelopes for app in apps if app.definitions.envelopes is not None),
            None,
        ),
    )


@pytest.fixture
def replay_histories() -> ReplayHistories:
    """A :class:`ReplayHistories`; needs no database."""
    return ReplayHistories()


# ---------------------------------------------------------------- what the fixtures do


def set_clock(dsn: str, ahead: timedelta) -> None:
    """Replace the clock of a test database by one that is ahead. Only the owner of the schema can
    do this.
    """
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(
            sql.SQL(
                "create or replace function pgflow.now_() "
                "returns timestamptz language sql volatile "
                "set search_path = pg_catalog, pg_temp "
                "as $$ select clock_timestamp() + {} * interval '1 second' $$"
            ).format(sql.Literal(ahead.total_seconds()))
        )


def replay_all(app: AsyncApp | App) -> None:
    """Replay every run of the app's workflows, except stuck runs and runs with redacted values.
    Raises the first divergence.
    """
    with psycopg.connect(app.dsn, autocommit=True) as connection:
        _replay_on(connection, app.definitions)


def _replay_on(connection: psycopg.Connection[Any], definitions: Definitions) -> None:
    for recorded in histories.read_database(connection, ask(connection, list_chains())):
        workflow = definitions.workflows.get(recorded.claim.workflow)
        if workflow is not None and recorded.status != "stuck":
            try:
                divergence = replay(
                    recorded,
                    workflow,
                    definitions.errors,
                    definitions.interceptors,
                    definitions.envelopes,
                )
            except Redacted:
                continue
            if divergence is not None:
                raise NonDeterminismError(f"replayed after the test: {divergence}") from divergence


def audit(dsn: str) -> None:
    """Fail if an invariant of the database does not hold."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        violations = ask(connection, check_books(None))
    if violations:
        raise AssertionError(f"pgflow.check() found: {violations}")


@pytest.fixture(scope="session")
def pgflow_server() -> Iterator[str]:
    """DSN of the server on which test databases are made."""
    given = os.environ.get("PGFLOW_TEST_DSN")
    if given:
        yield given
        return
    from pgflow.embedded import acquire

    server = acquire()
    try:
        yield server.dsn
    finally:
        server.release()


@pytest.fixture(scope="session")
def pgflow_template(pgflow_server: str) -> Iterator[str]:
    """A database with the schema, from which those of the tests are cloned."""
    from pgflow.schema import migrate_dsn

    name = f"pgflow_template_{uuid.uuid4().hex[:12]}"
    _on_server(pgflow_server, "create database {}", name)
    try:
        migrate_dsn(make_conninfo(pgflow_server, dbname=name))
        yield name
    finally:
        _on_server(pgflow_server, "drop database {} with (force)", name)


@pytest.fixture
def pgflow_dsn(pgflow_server: str, pgflow_template: str) -> Iterator[str]:
    """DSN of a fresh database with the schema installed."""
    name = f"pgflow_test_{uuid.uuid4().hex[:12]}"
    _on_server(pgflow_server, "create database {} template {}", name, pgflow_template)
    try:
        yield make_conninfo(pgflow_server, dbname=name)
    finally:
        _on_server(pgflow_server, "drop database {} with (force)", name)


def _on_server(dsn: str, statement: LiteralString, *names: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(sql.SQL(statement).format(*map(sql.Identifier, names)))


@pytest.fixture
def flow(pgflow_dsn: str) -> Iterator[Harness]:
    """A :class:`Harness` on a fresh database."""
    harness = Harness(pgflow_dsn)
    try:
        yield harness
        harness._portal.call(harness._harness._stack.aclose())
        replay_all(harness.app)
        audit(pgflow_dsn)
    finally:
        harness.close()


@pytest.fixture
def aflow(request: pytest.FixtureRequest, pgflow_dsn: str) -> Iterator[AsyncHarness]:
    """An :class:`AsyncHarness` on a fresh database; tests that use it may be coroutines without any
    other plugin. With pytest-asyncio or anyio, it works on the event loop that runs the test.
    """
    if "anyio_backend" in request.fixturenames and "trio" in request.getfixturevalue(
        "anyio_backend"
    ):
        pytest.skip("aflow works on asyncio, and this test is to run on trio")
    harness = AsyncHarness(pgflow_dsn)
    harness.app._resolve()
    request.node.stash[_HARNESS] = harness
    try:
        yield harness
        harness._finish()
        replay_all(harness.app)
        audit(pgflow_dsn)
    finally:
        harness._finish()


_HARNESS = pytest.StashKey[AsyncHarness]()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Let the coroutine of a test open and close its harness, on the event loop that runs it."""
    harness = item.stash.get(_HARNESS, None)
    if harness is None or not isinstance(item, pytest.Function):
        return (yield)
    test = item.obj
    if not inspect.iscoroutinefunction(test):
        return (yield)

    @functools.wraps(test)
    async def with_harness(*args: Any, **kwargs: Any) -> None:
        async with harness._here():
            await test(*args, **kwargs)

    item.obj = with_harness
    try:
        return (yield)
    finally:
        item.obj = test


@pytest.hookimpl
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run coroutine tests that use ``aflow``, if no other plugin does."""
    test = pyfuncitem.obj
    if _HARNESS not in pyfuncitem.stash or not inspect.iscoroutinefunction(test):
        return None
    with asyncio.Runner() as runner:
        runner.run(
            test(**{name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames})
        )
    return True
