"""Entities: state under a name and a key, which runs, transactions and SQL change one after the
other.

An update is a method of the state's class. It is called on the state as it is, with the row of the
entity locked, and its verdict, the new state and a row of the history are one commit. In a run that
commit is a step's, so an update is made exactly once, and its verdict is recorded with it.
"""

from __future__ import annotations

import copy
import inspect
import sys
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, ClassVar, Concatenate, Generic, ParamSpec, Self, TypeVar, cast

import psycopg

from pgflow._db.calls import entities as calls
from pgflow._db.query import OnAsyncConnection, Steps, run_steps_async
from pgflow._flow.notes import updating
from pgflow._flow.run_info import EPOCH
from pgflow._flow.scope import StepScope, current
from pgflow._flow.step import AsyncStep, own_transaction, resolve_hints
from pgflow._flow.updating import UpdateFunction
from pgflow._model.codecs import Codec, codec_for
from pgflow._model.envelopes import Envelopes, open_text, seal_text
from pgflow._model.kinds import Kind
from pgflow._model.names import is_name
from pgflow.errors import DefinitionError, InvalidArgument, VersionConflict

S = TypeVar("S")
P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Snapshot(Generic[S]):
    """State of an entity at one moment.

    Attributes:
        state: The state; its first one if nothing has changed it yet.
        version: Number of changes that have led to it: what ``options(expect=)`` takes.
        updated_at: Time of the last change; None if there was none.
    """

    state: S
    version: int
    updated_at: datetime | None


class Entity(Generic[S]):
    """A kind of entity: the class of its state, its name, and its updates."""

    def __init__(self, name: str, cls: type[S]) -> None:
        self.name = name
        self.cls = cls
        self.codec: Codec[S] = codec_for(cls, f"the state of entity {name}")
        self.updates = {
            update.name: update for update in vars(cls).values() if isinstance(update, Update)
        }
        self.read_step = _query_step(self)

    def first(self) -> S:
        """Return the state of an entity that nothing has changed yet."""
        return self.cls()

    def read(self, stored: str | None, envelopes: Envelopes | None) -> S:
        """Return a state as the database has it."""
        if stored is None:
            return self.first()
        what = f"the state of entity {self.name}"
        return self.codec.decode(open_text(envelopes, stored, what), what)

    def snapshot(
        self, stored: calls.Stored | None, envelopes: Envelopes | None = None
    ) -> Snapshot[S]:
        """Return a snapshot of a stored entity; of version 0 if it is new."""
        if stored is None or not stored.version:
            return Snapshot(self.first(), 0, None)
        updated_at = EPOCH + timedelta(microseconds=stored.updated_us)
        return Snapshot(self.read(stored.state, envelopes), stored.version, updated_at)


known: dict[str, Entity[Any]] = {}
"""The entities of this process, by name."""


def entity(name: str) -> Callable[[type[S]], type[S]]:
    """Declare a class whose instances are the state of entities.

    The class is a dataclass that can be made without arguments: that is the
    state of an entity that nothing has changed yet. Its methods with :func:`pgflow.entities.update`
    are its updates.

    Args:
        name: Name of this kind of entity, for the whole database.

    Example::

        @pgflow.entities.entity("incident")
        @dataclass
        class Incident:
            holder: str = ""

            @pgflow.entities.update
            def claim(self, agent: str) -> bool:
                self.holder = self.holder or agent
                return self.holder == agent

        won = await Incident.claim("inc-7", "agent-a")     # in a workflow
    """
    if not is_name(name):
        raise DefinitionError(
            f"the name of an entity must be a text of 1 to 255 bytes without NUL, not {name!r}"
        )

    def declare(cls: type[S]) -> type[S]:
        for part in ("query", *(u.name for u in vars(cls).values() if isinstance(u, Update))):
            if not is_name(f"{name}.{part}"):
                raise DefinitionError(
                    f"entity {name!r}: the names of it and of {part!r} are longer together than "
                    "254 bytes, so no step could be called so"
                )
        made = Entity(name, cls)
        try:
            made.codec.encode(made.first(), f"the first state of entity {name}")
        except TypeError as error:
            raise DefinitionError(
                f"entity {name!r}: {cls.__qualname__}() must work without arguments, since that is "
                f"its first state: {error}"
            ) from error
        for update in made.updates.values():
            update.of = made
        before = known.get(name)
        if before is not None and _whereabouts(before.cls) != _whereabouts(cls):
            raise DefinitionError(
                f"entity {name!r} is declared twice: by {_whereabouts(before.cls)} and by "
                f"{_whereabouts(cls)}"
            )
        cls.__pgflow_entity__ = made  # type: ignore[attr-defined]
        known[name] = made
        return cls

    return declare


def _whereabouts(cls: type) -> str:
    """File and name of a class: the same if its module is loaded again, or as a program."""
    module = sys.modules.get(cls.__module__)
    return f"{getattr(module, '__file__', None) or cls.__module__}:{cls.__qualname__}"


def entity_of(cls: type[S]) -> Entity[S]:
    """The kind of entity whose state a class is.

    Raises:
        InvalidArgument: It is that of none.
    """
    found = vars(cls).get("__pgflow_entity__") if inspect.isclass(cls) else None
    if found is None:
        raise InvalidArgument(
            f"{cls!r} is not the class of an entity: declare it @pgflow.entities.entity"
        )
    return cast("Entity[S]", found)


def check_entity_key(key: str) -> str:
    """A key of an entity as it was given.

    Raises:
        InvalidArgument: No entity can have it.
    """
    if not is_name(key):
        raise InvalidArgument(
            f"the key of an entity must be a text of 1 to 255 bytes without NUL, not {key!r}"
        )
    return key


class Update(UpdateFunction[P, R]):
    """An update of an entity: call it in a workflow, or pass it to ``app.update(...)``.

    ``fn`` is the undecorated method.
    """

    returns: ClassVar[str] = "the verdict of"

    def __init__(self, fn: Callable[..., R]) -> None:
        super().__init__(fn)
        self.of: Entity[Any] | None = None
        self.expected: int | None = None
        self.idempotency_key: str | None = None
        self._step: AsyncStep[..., Any, Any] | None = None
        if inspect.iscoroutinefunction(fn):
            raise DefinitionError(
                f"update {fn.__qualname__} must be a plain def: it holds the row of its entity"
            )

    def __repr__(self) -> str:
        """As in error messages."""
        return f"<Update {self.name}>"

    def __call__(self, key: str, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        """Update an entity from the code of an async workflow. Await it.

        Args:
            key: Key of the entity.
            *args: Arguments of the update.
            **kwargs: The same by name.

        Raises:
            VersionConflict: It has another version than ``options(expect=)`` says.
        """
        update: AsyncStep[..., Any, Any] = self.as_step
        return update.aio(
            check_entity_key(key),
            self.encode_args(args, kwargs),
            self.expected,
            self.idempotency_key,
        )

    def sync(self, key: str, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Update an entity from the code of a sync workflow."""
        return cast(
            "R",
            self.as_step.sync(
                check_entity_key(key),
                self.encode_args(args, kwargs),
                self.expected,
                self.idempotency_key,
            ),
        )

    def options(self, *, expect: int | None = None, idempotency_key: str | None = None) -> Self:
        """Return a copy of the update with options.

        Args:
            expect: Version that the entity must have, from a :class:`pgflow.entities.Snapshot`.
            idempotency_key: Key that deduplicates the update: the same key on the same entity
                returns the first verdict. Runs do not need one.
        """
        other = copy.copy(self)
        other.expected, other.idempotency_key = expect, idempotency_key
        return other

    def validator(self, fn: F) -> F:
        """Declare a validator, which is called with the same arguments before the update. An error
        refuses the update and changes and records nothing of the entity.
        """
        self._check = fn
        return fn

    # ================================================================ for the library

    @property
    def kind(self) -> Entity[Any]:
        """The kind of entity that it is of."""
        if self.of is None:
            raise DefinitionError(
                f"update {self.fn.__qualname__} is a method of no entity: its class lacks "
                "@pgflow.entities.entity"
            )
        return self.of

    @property
    def as_step(self) -> AsyncStep[..., Any, Any]:
        """The step that makes it in a run."""
        if self._step is None:
            self._step = _update_step(self)
        return self._step

    def _decide(
        self, opened: calls.Opened, args: str, envelopes: Envelopes | None
    ) -> tuple[str | None, str]:
        """Call the update on the state; return the new state, None if that is as it was, and the
        verdict.
        """
        entity = self.kind
        what = f"the state of entity {entity.name}"
        state = entity.read(opened.state, envelopes)
        before = entity.codec.encode(state, what)
        given = self.decode_args(args)
        token = updating.set(opened.at_us)
        try:
            if self._check is not None:
                self._check(state, **given)
            value = self.fn(state, **given)
        finally:
            updating.reset(token)
        after = entity.codec.encode(state, what)
        entity.codec.decode(after, what)
        what = f"the verdict of update {self.name}"
        verdict = self.result_codec.encode(value, what)
        self.result_codec.decode(verdict, what)
        return (None if after == before else after), verdict

    def statements(
        self,
        key: str,
        args: str,
        envelopes: Envelopes | None,
        *,
        run_id: int | None = None,
        call: int | None = None,
        said_by: str | None = None,
        mail_id: int | None = None,
        expect: int | None = None,
        idempotency_key: str | None = None,
        idle_timeout_ms: int = 0,
    ) -> Steps[str]:
        """Make the update in an open transaction; return its verdict as JSON text.

        Args:
            key: Key of the entity.
            args: Its arguments as JSON text.
            envelopes: Envelopes of the app.
            run_id: The run that makes it.
            call: Number of its call.
            said_by: Name of the author.
            mail_id: The number of the update, if it came by mail.
            expect: Version that the entity must have.
            idempotency_key: Key under which it is made once.
            idle_timeout_ms: Milliseconds after which the server cuts off an idle caller, since
                others wait for the row; 0 in a transaction of the application.
        """
        name = self.kind.name
        opened: calls.Opened = yield calls.open_entity(
            name, key, expect, self.name, idempotency_key, idle_timeout_ms
        )
        state: str | None = None
        if opened.verdict is not None:
            sealed = opened.verdict
            verdict = open_text(envelopes, sealed, f"the verdict of update {self.name}")
            if run_id is None and mail_id is None:
                return verdict
            idempotency_key = None  # a run and the mail have a row of their own for each update
        else:
            state, verdict = self._decide(opened, args, envelopes)
            sealed = seal_text(envelopes, verdict, "the verdict of an update")
        yield calls.update_entity(
            calls.Made(
                name,
                key,
                opened.version,
                self.name,
                seal_text(envelopes, args, "the arguments of an update"),
                sealed,
                None if state is None else seal_text(envelopes, state, "the state of an entity"),
                run_id,
                call,
                idempotency_key,
                said_by,
                mail_id,
            )
        )
        return verdict


def update(fn: Callable[Concatenate[Any, P], R], /) -> Update[P, R]:
    """Declare a method that changes an entity. Its return value is the verdict.

    It is called on the state, changes that in place, and must do nothing else: ``pgflow.now()`` in
    it is the time of the update. It may be called again if its transaction is. An exception refuses
    the update, and nothing is changed.
    """
    return Update(fn)


# ---------------------------------------------------------------- in a run


def _make_step(name: str, fn: Callable[..., Any], returns: Any) -> Any:
    """A transactional step of the library's own, on a connection of the worker's."""
    made = own_transaction(fn, name, (VersionConflict,))
    made._hints = {**made.hints, "return": returns}
    return made


def _update_step(update: Update[..., Any]) -> AsyncStep[..., Any, Any]:
    async def make(
        connection: psycopg.AsyncConnection[Any],
        key: str,
        args: str,
        expect: int | None,
        idempotency_key: str | None,
    ) -> Any:
        scope = current.get()
        assert isinstance(scope, StepScope)
        claim = scope.claim
        steps = update.statements(
            key,
            args,
            claim.envelopes,
            run_id=claim.run_id,
            call=scope.call.number,
            said_by=claim.key,
            expect=expect,
            idempotency_key=idempotency_key,
        )
        verdict = await run_steps_async(OnAsyncConnection(connection), steps)
        return update.result_codec.decode(verdict, f"the verdict of update {update.name}")

    step: AsyncStep[..., Any, Any] = _make_step(
        f"{update.kind.name}.{update.name}",
        make,
        resolve_hints(update.fn).get("return", Any),
    )
    step.completes_as = Kind.ENTITY_UPDATED
    return step


def _query_step(entity: Entity[Any]) -> AsyncStep[..., Any, Any]:
    async def read(connection: psycopg.AsyncConnection[Any], key: str) -> Any:
        def steps() -> Steps[calls.Stored | None]:
            stored: calls.Stored | None = yield calls.read_entity(entity.name, key)
            return stored

        stored = await run_steps_async(OnAsyncConnection(connection), steps())
        return None if stored is None else list(stored)

    step: AsyncStep[..., Any, Any] = _make_step(f"{entity.name}.query", read, Any)
    return step


def _snapshot(cls: type[S], answer: Any) -> Snapshot[S]:
    scope = current.get()
    envelopes = None if scope is None else scope.claim.envelopes
    stored = None if answer is None else calls.Stored(*answer)
    return entity_of(cls).snapshot(stored, envelopes)


async def query(entity: type[S], key: str) -> Snapshot[S]:
    """Read an entity in the code of an async workflow, without a lock. The result is recorded.

    Args:
        entity: Class of the entity's state.
        key: Key of the entity.
    """
    answer = await entity_of(entity).read_step.aio(check_entity_key(key))
    return _snapshot(entity, answer)


def query_sync(entity: type[S], key: str) -> Snapshot[S]:
    """Read an entity, without a lock; see :func:`pgflow.entities.query`."""
    return _snapshot(entity, entity_of(entity).read_step.sync(check_entity_key(key)))
