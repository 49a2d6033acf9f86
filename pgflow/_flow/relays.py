"""Relays, as they are declared: which events are brought where, and how hard it is tried.

A relay has a name and a place in the outbox, which the database keeps. Workers of an app that
includes it take turns in bringing its events to one target:

- a workflow, of which a run is started for each event;
- a handler, which is called with each event, perhaps in the transaction that settles it;
- a sink, such as those of :mod:`pgflow.sinks`: HTTP, NOTIFY, a broker.
"""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Literal, Protocol, runtime_checkable

from pgflow._db.query import Query
from pgflow._flow.decorators import Connection
from pgflow._flow.step import resolve_hints
from pgflow._flow.workflow import Workflow
from pgflow._model.durations import SHORTEST, Duration, duration
from pgflow._model.events import Event
from pgflow._model.names import is_name
from pgflow._model.options import Retries, retries_of
from pgflow.errors import DefinitionError

MAX_NAME_BYTES = 100

RETRIES = Retries(
    max_attempts=16,
    first_delay=timedelta(seconds=1),
    backoff=3,
    max_delay=timedelta(hours=6),
)
"""About two days."""


class TryLater(Exception):
    """Raised by a sink or handler to retry at a time that the target gave.

    Args:
        why: Reason, for operators.
        seconds: Time until then, as seconds or a timedelta.

    Raises:
        InvalidArgument: ``seconds`` is not a duration, or is longer than a hundred years.
    """

    def __init__(self, why: str, seconds: Duration) -> None:
        super().__init__(why)
        given = duration(seconds, "seconds of TryLater", least_seconds=-math.inf)
        self.seconds = given.total_seconds()


class Undeliverable(Exception):
    """Raised by a sink or handler: no further try would help, so the event is dead at once."""


@runtime_checkable
class Sink(Protocol):
    """A target outside of the database, such as a broker.

    ``deliver`` returns once the target has accepted the event for good, and raises if it has not.
    It is called again with the same event if the outcome is unknown.
    """

    async def deliver(self, event: Event, relay: str) -> None:
        """Deliver an event.

        Args:
            event: The event.
            relay: Name of the relay. With the number of the event it makes an idempotency key.

        Raises:
            TryLater: The target gave a time to retry.
            Undeliverable: Further attempts cannot succeed.
        """

    async def close(self) -> None:
        """Close its connections. It may be used again afterwards."""


@runtime_checkable
class Statement(Protocol):
    """A target in this database: its statement runs in the transaction that settles the event."""

    def statement(self, event: Event, relay: str) -> Query[Any]:
        """Return what to run for an event."""


Handler = Callable[..., Any]


class Relay:
    """A relay: events of some topics, and where they are brought.

    Args:
        name: Its name, at most 100 bytes. Its place in the outbox is kept under it.
        topics: Topics that it listens to.
        to: A workflow with one parameter, which gets the payload, or the whole event where it is
            annotated with :class:`pgflow.events.Event`; or a function of the event, ``async def``
            or ``def``; or a function of a connection and the event, whose writes commit together
            with the relay's progress; or a sink.
        start: Beginning of a new relay: with the ``oldest`` event that is kept, or behind the
            ``newest``.
        parallel: Maximum events delivered at once, each of another key.
        retries: Tries of an event, and the waits between them. One that has failed so often is
            dead until `pgflow outbox redeliver`, and the events of its key go on.
        timeout: Longest time for one try.
        circuit: After so many failures without a success nothing is tried for a while.
        cooldown: That while. It doubles with each further failure, up to ten minutes.

    Raises:
        DefinitionError: No relay can be so.

    Example::

        orders = Relay("mailer", ["orders"], to=send_mail)
        app = AsyncApp(include=[fulfil, orders])
    """

    def __init__(
        self,
        name: str,
        topics: list[str] | tuple[str, ...],
        *,
        to: Workflow[..., Any] | Sink | Statement | Handler,
        start: Literal["oldest", "newest"] = "oldest",
        parallel: int = 8,
        retries: Retries | int = RETRIES,
        timeout: Duration = timedelta(seconds=30),
        circuit: int = 5,
        cooldown: Duration = timedelta(seconds=30),
    ) -> None:
        if not is_name(name) or len(name.encode()) > MAX_NAME_BYTES:
            raise DefinitionError(
                f"the name of a relay must be a text of 1 to {MAX_NAME_BYTES} bytes without NUL, "
                f"not {name!r}"
            )
        if isinstance(topics, str) or not topics or not all(is_name(topic) for topic in topics):
            raise DefinitionError(
                f"relay {name!r} must listen to a list of topics, texts of 1 to 255 bytes, not "
                f"{topics!r}"
            )
        if start not in ("oldest", "newest"):
            raise DefinitionError(f"relay {name!r} starts with the oldest or newest, not {start!r}")
        if parallel < 1 or circuit < 1:
            raise DefinitionError(f"parallel and circuit of relay {name!r} must be at least 1")
        self.name = name
        self.topics = list(topics)
        self.to = to
        self.start = start
        self.parallel = parallel
        self.retries = retries_of(retries, f"retries of relay {name!r}")
        self.timeout_seconds = _seconds(timeout, f"timeout of relay {name!r}")
        self.circuit = circuit
        self.cooldown_seconds = _seconds(cooldown, f"cooldown of relay {name!r}")
        self.connection: Any = None
        """Annotation of the connection that the handler takes; None if it takes none."""
        self._check_target()

    def __repr__(self) -> str:
        """As in error messages."""
        return f"<Relay {self.name} to {self.target}>"

    @property
    def target(self) -> str:
        """Description of where it brings events."""
        if isinstance(self.to, Workflow):
            return f"workflow {self.to.name}"
        if isinstance(self.to, (Sink, Statement)):
            return str(self.to)
        return f"function {getattr(self.to, '__qualname__', self.to)}"

    @property
    def is_handled(self) -> bool:
        """True if its target is a function."""
        return not isinstance(self.to, (Workflow, Sink, Statement))

    def _check_target(self) -> None:
        to = self.to
        if isinstance(to, Workflow):
            to.start_options.refuse_place(f"relay {self.name!r}")
            if len(_parameters(to.fn)) != 1:
                raise DefinitionError(
                    f"relay {self.name!r} brings events to workflow {to.name}, which must have one "
                    "parameter: the payload, or a pgflow.events.Event"
                )
        elif self.is_handled:
            if not callable(to):
                raise DefinitionError(
                    f"relay {self.name!r}: to={to!r} is not a workflow, function or sink"
                )
            names = _parameters(to)
            if len(names) not in (1, 2):
                raise DefinitionError(
                    f"relay {self.name!r} calls {self.target} with an event, or with a connection "
                    f"and an event; it takes {len(names)} parameters"
                )
            if len(names) == 2:
                self.connection = resolve_hints(to).get(names[0], Connection)

    def input_of(self, event: Event) -> dict[str, Any]:
        """Arguments of the run that is started for an event.

        Raises:
            NotStorable: The payload does not fit the workflow.
        """
        workflow = self.to
        assert isinstance(workflow, Workflow)
        (name,) = _parameters(workflow.fn)
        if resolve_hints(workflow.fn).get(name) is Event:
            return {name: event}
        what = f"the payload of event {event.id}"
        text = json.dumps({name: event.payload})
        return dict(workflow.input_codec.decode(text, what))


def _parameters(fn: Callable[..., Any]) -> list[str]:
    return list(inspect.signature(fn).parameters)


def _seconds(given: Duration, what: str) -> float:
    found = duration(given, what, least_seconds=SHORTEST)
    assert found is not None
    return found.total_seconds()
