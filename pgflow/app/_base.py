"""Base of the apps of both colours: the database, the app's definitions,
and whom to wake after a commit.
"""

from __future__ import annotations

import builtins
import logging
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import timedelta
from types import ModuleType
from typing import Any, TypeVar, overload

from pgflow._client.gates import Hook, Mapping
from pgflow._db.connect import PATIENCE_SECONDS, ConnectOptions, connect, is_behind_pooler
from pgflow._db.dsn import resolve_dsn
from pgflow._flow.elsewhere import ELSEWHERE, stand_in
from pgflow._flow.interceptor import Interceptor
from pgflow._flow.relays import Relay
from pgflow._flow.step import check_errors
from pgflow._flow.workflow import Workflow
from pgflow._model.budgets import Pool
from pgflow._model.durations import Duration, seconds
from pgflow._model.effects import Ref
from pgflow._model.envelopes import PayloadCodec, envelopes_of, open_value
from pgflow._model.failures import FailedRun
from pgflow._model.pages import Page
from pgflow._model.queues import Queue
from pgflow._worker.hooks import make_checker, make_pager_hook
from pgflow._worker.options import Definitions, Rhythm, WorkerOptions
from pgflow.errors import DefinitionError, WrongState
from pgflow.schema import require_schema

log = logging.getLogger("pgflow")

C = TypeVar("C", bound=Callable[[Ref], Any])
H = TypeVar("H", bound=Callable[[Page], Any])
F = TypeVar("F", bound=Callable[[], Any])
A = TypeVar("A", bound=Hook)
L = TypeVar("L", bound=Callable[[FailedRun], Any])

CLIENT_CONNECTIONS = 4
CHECK_TIMEOUT = timedelta(seconds=30)
PAGE_TIMEOUT = timedelta(seconds=60)
NUDGE_SECONDS = 0.003
"""Between two messages to workers about starts that come one right after the other: each costs a
commit of its own, and a run's first line comes three milliseconds after its start anyway
(bench/RESULTS.md, latency).
"""
WAKE_AGAIN_SECONDS = (0.0, 0.002, 0.008)
"""Waits before each try to wake: a run's place may be locked for a moment by another who looks at
it. Then the next poll will.
"""


class AppBase:
    """Base of the apps of both colours: the database, and the app's definitions."""

    def __init__(
        self,
        dsn: str | None = None,
        *,
        include: Iterable[Workflow[..., Any] | Relay | ModuleType] = (),
        providers: Sequence[Any] = (),
        errors: Sequence[type[Exception]] = (),
        interceptors: Sequence[Interceptor] = (),
        codec: PayloadCodec | None = None,
        pools: Iterable[Pool] = (),
        queues: Iterable[Queue] = (),
        prepare_threshold: int | None = 3,
        listen: bool = True,
        cluster: bool = False,
    ) -> None:
        """Declare an app, without connecting.

        The first process of the app to open, a worker or a client, sets the pools and rules of
        queues in the database, and registers relays and schedules. It needs the role
        ``pgflow_declarer`` or ``pgflow_worker``; without it, it logs this once, and a worker does
        it. Changes by hand stay until the declaration in the code changes.

        Args:
            dsn: Connection string of the database; by default ``PGFLOW_DSN``, else
                ``DATABASE_URL``, else an embedded server, started on demand.
            include: Workflows and relays, or modules with workflows and relays.
            providers: Sources of other libraries' connections for transactional steps.
            errors: Exception classes that recorded errors may be raised as.
            interceptors: Code around starts, workflows and steps.
            codec: Encodes values before they reach the database, for encryption or compression; see
                :class:`pgflow.extensions.PayloadCodec`.
            pools: Budgets that runs draw on, each parent before its children.
            queues: Queues with rules: limits, rates and order.
            prepare_threshold: Number of uses after which a statement is prepared; None for never.
                Behind a pooler in transaction mode, which is detected, nothing is prepared.
            listen: True if LISTEN works on this connection string. Behind a pooler in transaction
                mode, which is detected, work is found by polling.
            cluster: True if the database is a node of a cluster (``pgflow cluster``): runs are
                started on, and found on, any node.
        """
        if isinstance(include, Workflow | Relay | ModuleType | str):
            raise DefinitionError(
                f"include= takes a list of workflows and modules, not {include!r}: "
                "write include=[...]"
            )
        things = [*include, *([stand_in()] if cluster else [])]
        self._interceptors = list(interceptors)
        self._errors = check_errors(errors, "errors of an app")
        self._envelopes = envelopes_of(codec)
        self._mapping = Mapping()
        self.definitions = Definitions(
            workflows=collect_workflows(things),
            errors=self._errors,
            providers=list(providers),
            interceptors=self._interceptors,
            envelopes=self._envelopes,
            pools=list(pools),
            queues=list(queues),
            relays=collect_relays(things),
            is_in_cluster=cluster,
        )
        self._bring_checkers()
        self._dsn = dsn
        self._prepare_threshold = prepare_threshold
        self._listen = listen
        self._is_pooled = False
        self._connect: ConnectOptions | None = None
        self._embedded: Any = None
        self._pending_chains: set[int] = set()
        self._pending_lanes: set[int] = set()
        self._pending_lock = threading.Lock()
        self._resolving = threading.Lock()
        self._prepare()
        _apps.add(self)

    def _prepare(self) -> None:
        """Prepare the parts that only this colour has."""

    def _begin_after_fork(self) -> None:
        """In a forked process: the connections are those of the parent, and their threads are not
        here. New ones are opened when needed.
        """
        _of_the_parent.append(dict(vars(self)))
        self._pending_lock = threading.Lock()
        self._resolving = threading.Lock()
        self._prepare()

    @property
    def dsn(self) -> str:
        """The connection string in use, once the app is open; `WrongState` before."""
        if self._connect is None:
            raise WrongState(
                "the app is not open, so its connection string is not resolved yet: ask within "
                "`async with app:`"
            )
        return self._connect.dsn

    @property
    def queues(self) -> list[str]:
        """The queues of the app's workflows."""
        return sorted({w.start_options.queue for w in self.definitions.workflows.values()})

    @property
    def listens(self) -> bool:
        """True if LISTEN works on this connection string, as far as is known."""
        return self._listen and not self._is_pooled

    def include(self, *things: Workflow[..., Any] | Relay | ModuleType) -> None:
        """Add workflows and relays, or modules of them."""
        self.definitions.workflows.update(
            collect_workflows([*self.definitions.workflows.values(), *things])
        )
        self.definitions.relays.update(collect_relays([*self.definitions.relays.values(), *things]))
        self._bring_checkers()

    def _bring_checkers(self) -> None:
        """Have the checkers of Refs that workflows bring along asked, but for kinds that the app
        has one for.
        """
        for workflow in self.definitions.workflows.values():
            for kind, fn in workflow.ref_checkers.items():
                self.definitions.ref_checkers.setdefault(
                    kind, make_checker(kind, fn, CHECK_TIMEOUT)
                )

    def ref_checker(self, kind: str, *, timeout: Duration = CHECK_TIMEOUT) -> Callable[[C], C]:
        """Declare the check that the target of a :class:`pgflow.effects.Ref` of this kind still
        exists.

        The function, ``async def`` or ``def``, is called with the Ref and returns True or False. It
        is asked whenever a run goes on from its journal, outside any transaction; if it raises or
        takes too long, it is asked again.

        Args:
            kind: The kind of Ref that it knows; each kind has one checker.
            timeout: Longest time for one answer.

        Example::

            @app.ref_checker("s3")
            async def exists(ref: pgflow.effects.Ref) -> bool:
                return await bucket.has(ref.id)
        """

        def declare(fn: C) -> C:
            checkers = self.definitions.ref_checkers
            if kind in checkers:
                raise DefinitionError(
                    f"two functions check Refs of kind {kind!r}: each kind has one checker"
                )
            checkers[kind] = make_checker(kind, fn, timeout)
            return fn

        return declare

    @overload
    def pager(self, fn: H, /) -> H: ...
    @overload
    def pager(
        self, /, *, again_after: Duration | None = None, timeout: Duration = PAGE_TIMEOUT
    ) -> Callable[[H], H]: ...
    def pager(
        self,
        fn: Any = None,
        /,
        *,
        again_after: Duration | None = None,
        timeout: Duration = PAGE_TIMEOUT,
    ) -> Any:
        """Declare a function that is called when a person is needed: for a stuck run, or an effect
        to settle.

        Workers of the app call the function, ``async def`` or ``def``, with a :class:`pgflow.Page`,
        once for each need and at least once: if the worker is lost meanwhile, again. If it raises,
        it is tried again, with a growing delay.

        Args:
            fn: The function.
            again_after: Time after which it is called again if the need persists; never if not
                given.
            timeout: Longest time for one call.

        Example::

            @app.pager
            async def page(page: pgflow.Page) -> None:
                await pagerduty.trigger(page.why, dedup_key=page.id)
        """

        def declare(fn: H) -> H:
            if self.definitions.pager is not None:
                raise DefinitionError("the app has a pager: there is one function to call")
            self.definitions.pager = make_pager_hook(fn, again_after, timeout)
            return fn

        return declare if fn is None else declare(fn)

    def approvers(self, fn: A) -> A:
        """Declare the function that decides who may answer a gate.

        :meth:`answer` calls the function, a ``def``, with the gate
        (:class:`pgflow.authority.OpenGate`) and the name of the approver. It returns the roles of
        the approver, which are compared with the ``approvers`` of the gate, or True or False.
        Without such a function, the name itself must be among them.

        Args:
            fn: The function.

        Raises:
            DefinitionError: The app already has such a function.

        Example::

            @app.approvers
            def roles_of(gate: pgflow.authority.OpenGate, by: str) -> list[str]:
                return directory.groups_of(by)
        """
        self._mapping.declare(fn)
        return fn

    def on_start(self, fn: F) -> F:
        """Declare a function that is called before a worker of the app claims anything.

        Open there what your steps need: an engine of SQLAlchemy, an HTTP client, a model. ``pgflow
        workers`` and ``pgflow tick`` call it as ``app.worker()`` does, so a worker in a process of
        its own needs no code around it. Where an event loop has several workers of the app, the
        first calls it. If it raises, no worker starts.

        Args:
            fn: The function, ``async def`` or ``def``, without parameters. An ``async def`` runs on
                the worker's event loop, a ``def`` in a thread.
                Those that are declared first are called first.

        Raises:
            DefinitionError: It cannot be called without arguments.

        Example::

            @app.on_start
            async def connect() -> None:
                sessions.configure(bind=create_async_engine(os.environ["DATABASE_URL"]))
        """
        self.definitions.hooks.add_start(fn)
        return fn

    def on_stop(self, fn: F) -> F:
        """Declare a function that is called when the last worker of the app on an event loop has
        ended.

        No step of the worker is under way then, save for ``def`` bodies that went on beyond the
        grace. Those that are declared last are called first. One that raises keeps none of the
        others from being called.

        Args:
            fn: The function, ``async def`` or ``def``, without parameters.

        Raises:
            DefinitionError: It cannot be called without arguments.
        """
        self.definitions.hooks.add_stop(fn)
        return fn

    def on_failure(self, fn: L) -> L:
        """Declare a function that is called when a run has failed for good.

        The worker that recorded the failure calls it with a :class:`pgflow.FailedRun`, for at most
        30 seconds. It is not called if that worker is killed at this moment, nor for cancelled
        runs. Each failure is also logged as an ERROR. For stuck runs, use :meth:`pager`.

        Args:
            fn: The function, ``async def`` or ``def``. An ``async def`` runs on the worker's event
                loop, a ``def`` in a thread. Its errors are logged, and change nothing.

        Raises:
            DefinitionError: ``fn`` is not a function.

        Example::

            @app.on_failure
            async def tell(failed: pgflow.FailedRun) -> None:
                await slack.post(f"{failed.workflow} {failed.run}: {failed.error!r}")
        """
        if not callable(fn):
            raise DefinitionError(
                f"@app.on_failure takes a function, not {fn!r}: write it without parentheses"
            )
        self.definitions.on_failure.append(fn)
        return fn

    def _resolve(self) -> ConnectOptions:
        """Find the database and check that the schema is there. Start the embedded server if no
        database is given.
        """
        with self._resolving:
            return self._connect or self._resolved()

    def _resolved(self) -> ConnectOptions:
        dsn = resolve_dsn(self._dsn)
        if dsn is None:
            from pgflow.embedded import acquire_unnamed
            from pgflow.schema import migrate_dsn

            self._embedded = acquire_unnamed()
            dsn = self._embedded.dsn
            migrate_dsn(dsn)
        options = ConnectOptions(dsn, self._prepare_threshold)
        with connect(options, "pgflow", PATIENCE_SECONDS) as connection:
            require_schema(connection)
            self._is_pooled = (
                (options.prepares or self._listen)
                and self._embedded is None
                and is_behind_pooler(connection, options)
            )
        if self._is_pooled:
            tell_of_pooler(dsn)
            options = replace(options, prepare_threshold=None)
        self._connect = options
        return options

    def _let_go(self) -> None:
        self._connect = None
        if self._embedded is not None:
            self._embedded.release()
            self._embedded = None

    def _worker_options(
        self, concurrency: int, queues: Sequence[str] | None, options: dict[str, Any]
    ) -> WorkerOptions:
        served = self.queues if queues is None else sorted(set(queues))
        if self.definitions.is_in_cluster:
            served = sorted({*served, ELSEWHERE})
        if (dead_after := options.pop("dead_after", None)) is not None:
            options["rhythm"] = Rhythm.within(seconds(dead_after, "dead_after of a worker"))
        return WorkerOptions(queues=served, concurrency=concurrency, listen=self.listens, **options)

    def open_value(self, value: Any) -> Any:
        """Return a stored value in clear, as the app's codec has encoded it.

        Args:
            value: The value, as a reader of :mod:`pgflow.inspect` returns it.

        Raises:
            CodecError: It was encoded with a key that the app does not know.
        """
        return open_value(self._envelopes, value, "a stored value")

    def _note(self, chains: Iterable[int] = (), lanes: Iterable[int] = ()) -> None:
        """Remember the runs to wake once the caller has committed."""
        with self._pending_lock:
            self._pending_chains.update(chains)
            self._pending_lanes.update(lanes)

    def _has_notes(self) -> bool:
        return bool(self._pending_chains or self._pending_lanes)

    def _take_notes(self) -> tuple[list[int], set[int]]:
        with self._pending_lock:
            chains, self._pending_chains = self._pending_chains, set()
            lanes, self._pending_lanes = self._pending_lanes, set()
        return sorted(chains), lanes


_pooled: set[str] = set()


def tell_of_pooler(dsn: str) -> None:
    """Log once for each process that a pooler prevents prepared statements and LISTEN."""
    if dsn not in _pooled:
        _pooled.add(dsn)
        log.warning(
            "the connection uses a pooler in transaction mode: nothing is prepared, and work is "
            "found by polling"
        )


_apps: weakref.WeakSet[AppBase] = weakref.WeakSet()
_of_the_parent: list[Any] = []
"""Kept for good: closing it would use the parent's connections or wait for its threads."""


def _begin_all_after_fork() -> None:
    for app in _apps:
        app._begin_after_fork()


os.register_at_fork(after_in_child=_begin_all_after_fork)


def collect_workflows(
    include: Iterable[Workflow[..., Any] | Relay | ModuleType],
) -> dict[str, Workflow[..., Any]]:
    """Workflows by name, the names that they had before included, from workflows and modules.

    Raises:
        DefinitionError: Two different ones have the same name, or something is neither.
    """
    found: dict[str, Workflow[..., Any]] = {}
    for thing in include:
        workflows = (
            [v for v in vars(thing).values() if isinstance(v, Workflow)]
            if isinstance(thing, ModuleType)
            else [thing]
        )
        if isinstance(thing, Relay):
            continue
        for workflow in workflows:
            if not isinstance(workflow, Workflow):
                raise DefinitionError(
                    f"include= takes workflows and modules, not {thing!r}: is it decorated with "
                    "@pgflow.workflow?"
                )
            known = found.setdefault(workflow.name, workflow.origin)
            if _replaces(workflow.origin, known):
                found[workflow.name] = workflow.origin
            elif known is not workflow.origin:
                raise DefinitionError(
                    f"two workflows are named {workflow.name!r}: give one another name with "
                    "@workflow(name=...)"
                )
    for workflow in list(found.values()):
        for alias in workflow.aliases:
            if found.setdefault(alias, workflow) is not workflow:
                raise DefinitionError(
                    f"{alias!r} is an alias of workflow {workflow.name} and a name or alias of "
                    f"{found[alias].name} too"
                )
    return found


def _replaces(workflow: Workflow[..., Any], known: Workflow[..., Any]) -> bool:
    """Return True if a definition is another one again: that of a notebook's cell, or of a prompt,
    that was run twice.
    """
    new, old = workflow.fn, known.fn
    if workflow is known or (new.__module__, new.__qualname__) != ("__main__", old.__qualname__):
        return False
    if old.__module__ != "__main__" or "<locals>" in new.__qualname__:
        return False
    places = [(fn.__code__.co_filename, fn.__code__.co_firstlineno) for fn in (new, old)]
    return places[0] == places[1] or _is_interactive()


def _is_interactive() -> bool:
    """Return True at a prompt of Python, and in IPython and Jupyter."""
    return hasattr(sys, "ps1") or hasattr(builtins, "get_ipython") or bool(sys.flags.interactive)


def collect_relays(
    include: Iterable[Workflow[..., Any] | Relay | ModuleType],
) -> dict[str, Relay]:
    """Relays by name, from relays and modules.

    Raises:
        DefinitionError: Two different ones have the same name.
    """
    found: dict[str, Relay] = {}
    for thing in include:
        relays = (
            [v for v in vars(thing).values() if isinstance(v, Relay)]
            if isinstance(thing, ModuleType)
            else [thing]
            if isinstance(thing, Relay)
            else []
        )
        for relay in relays:
            if found.setdefault(relay.name, relay) is not relay:
                raise DefinitionError(
                    f"two relays are named {relay.name!r}: a name is a place in the outbox"
                )
    return found
