"""Options of starts, steps and maps."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any, Generic, Literal, TypeVar

from pgflow._model.durations import Duration, duration
from pgflow.errors import InvalidArgument

T = TypeVar("T")
R_co = TypeVar("R_co", covariant=True)


@dataclass(frozen=True)
class Retries:
    """Number of tries of a step, and the waits between them.

    Attributes:
        max_attempts: Tries in all, the first included.
        first_delay: Wait before the second try.
        backoff: Factor from one wait to the next.
        max_delay: No wait is longer.
    """

    max_attempts: int = 3
    first_delay: Duration = timedelta(seconds=0.5)
    backoff: float = 2.0
    max_delay: Duration = timedelta(seconds=60)

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "first_delay", duration(self.first_delay, "first_delay of Retries")
        )
        object.__setattr__(self, "max_delay", duration(self.max_delay, "max_delay of Retries"))
        for name in ("max_attempts", "backoff"):
            if (given := getattr(self, name)) < 1:
                raise InvalidArgument(f"{name} of Retries must be at least 1, not {given!r}")

    def delay_seconds(self, failed_attempts: int) -> float:
        """Wait after so many failed tries, with up to a fifth of it left to chance so that many do
        not return as one.
        """
        ceiling = duration(self.max_delay, "max_delay").total_seconds()
        try:
            delay = duration(self.first_delay, "first_delay").total_seconds() * self.backoff ** (
                failed_attempts - 1
            )
        except OverflowError:
            delay = ceiling
        return min(delay, ceiling) * random.uniform(0.8, 1.0)  # noqa: S311 - not a secret


def retries_of(given: Retries | int, what: str) -> Retries:
    """Return the value of a parameter ``retries``, which may be a number of attempts.

    Raises:
        InvalidArgument: It is less than 1.
    """
    if isinstance(given, Retries):
        return given
    if type(given) is not int or given < 1:
        raise InvalidArgument(
            f"{what} must be at least 1, not {given!r}: it counts the first try too"
        )
    return Retries(max_attempts=given)


IfTaken = Literal["match", "reject", "attach", "replace"]
"""Action of a start whose key a run already has; see :meth:`pgflow.Workflow.options`."""

DEFAULT_QUEUE = "default"
NO_CLUSTER = "node= and near= are for an app of a cluster: App(dsn, cluster=True)"
"""Reason why a start is refused."""


@dataclass(frozen=True)
class StartOptions:
    """Options of a start.

    Attributes:
        version: Version of the code that it is pinned to; empty = any.
        if_taken: Action where a run has the key.
        pool: Pool that it draws on.
        budget: Limits of a pool of its own, as they are recorded.
        key_for: Time from its start for which the key counts, and while its run is open; None = for
            good.
        debounce: Time after the last start with the key at which the run begins.
        max_wait: Time after the first of them at which it begins at the latest.
        collect: Number of items of a run that has those of all starts with the key.
        node: Node of a cluster that it runs on; None for any.
        near: Table and value: it runs on the node that has the rows with that value.
    """

    key: str | None = None
    queue: str = DEFAULT_QUEUE
    priority: int = 0
    run_at: datetime | None = None
    timeout: timedelta | None = None
    labels: dict[str, str] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    when_parent_ends: Literal["cancel", "abandon"] = "cancel"
    version: str = ""
    if_taken: IfTaken = "match"
    pool: str | None = None
    budget: dict[str, str] | None = None
    key_for: timedelta | None = None
    debounce: timedelta | None = None
    max_wait: timedelta | None = None
    collect: int | None = None
    node: int | None = None
    near: tuple[str, str] | None = None

    def __post_init__(self) -> None:
        if self.timeout is not None:
            object.__setattr__(self, "timeout", duration(self.timeout, "timeout of a run"))
        for name in ("key_for", "debounce", "max_wait"):
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, duration(value, f"{name} of a start"))

    @property
    def is_placed(self) -> bool:
        """True if it says on which node of a cluster it runs."""
        return self.node is not None or self.near is not None

    def refuse_place(self, what: str) -> None:
        """Refuse options that name a node of a cluster, for runs that have no choice.

        Args:
            what: Name of the thing that starts them, for the message.

        Raises:
            InvalidArgument: They name one.
        """
        if self.is_placed:
            raise InvalidArgument(
                f"{what} starts runs on its own node: it takes no node= and no near="
            )

    @cached_property
    def times_key(self) -> bool:
        """True if it says for how long its key counts, puts its run off, or adds to one."""
        return (self.key_for, self.debounce, self.max_wait, self.collect) != (None,) * 4


@dataclass(frozen=True)
class Slot:
    """The time for which a schedule started a run. Its workflow gets it if it has a parameter.

    Attributes:
        at: The time, in UTC; whatever the jitter, and however late the run begins.
    """

    at: datetime


@dataclass(frozen=True)
class MapResult(Generic[T, R_co]):
    """Results and failures of ``map()``.

    Attributes:
        values: Results of the items that succeeded, in the order of the items.
        failed: Items that did not, each a pair of the item and its error,
            in the order of the items.
    """

    values: list[R_co] = field(default_factory=list)
    failed: list[tuple[T, Exception]] = field(default_factory=list)
