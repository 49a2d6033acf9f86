"""Answers on effects: confirmed, absent, accepted; and references."""

from __future__ import annotations

from dataclasses import InitVar, dataclass, field
from typing import Generic, Literal, TypeVar

from pgflow._model.durations import SHORTEST, Duration, duration
from pgflow._model.tags import known

T = TypeVar("T")


Risk = Literal["reversible", "compensable", "irreversible"]
"""Means by which an effect can be taken back, if at all."""


@dataclass(frozen=True)
class Confirmed(Generic[T]):
    """The counterparty knows the effect; this is its result."""

    value: T


@dataclass(frozen=True)
class Absent:
    """The counterparty has never heard of the effect."""


@dataclass(frozen=True)
class StillUnknown:
    """The counterparty cannot say yet."""


@dataclass(frozen=True)
class Accepted:
    """Result of an ``@effect`` whose counterparty has taken it on and will confirm it later.

    The workflow goes on with it; the run does not complete before somebody has confirmed it
    (``app.confirm_effect``, or ``pgflow.confirm_effect`` in SQL).

    Attributes:
        ref: The counterparty's reference, under which the confirmation will come.
        heartbeat_timeout: The counterparty promises a beat (``app.beat_effect``) at least so often.
            After so long without one the outcome is unknown: the effect's ``.settle`` asks, else a
            person is needed. It is a promise to the ledger, and the workflow gets
            ``Accepted(ref)``.
    """

    ref: str
    heartbeat_timeout: InitVar[Duration | None] = None

    def __post_init__(self, heartbeat_timeout: Duration | None) -> None:
        if heartbeat_timeout is not None:
            promised = duration(
                heartbeat_timeout, "heartbeat_timeout of Accepted", least_seconds=SHORTEST
            )
            self.__dict__["_beats_within"] = promised.total_seconds()

    @property
    def beats_within_seconds(self) -> float | None:
        """Seconds within which each beat is promised;
        None if none is, or where the workflow looks.
        """
        within: float | None = self.__dict__.get("_beats_within")
        return within


@known
@dataclass(frozen=True)
class Ref:
    """Something outside that a result claims to exist:
    a file, a workspace, a row of another system.

    Where the app has a checker for the kind (``app.ref_checker``), it is asked whenever a run goes
    on from its journal. If what a ``@read`` or ``@step`` returned is gone, its body runs again
    under the same key and the new result counts from then on; what an effect, a decision or a
    transaction returned is never made again: the run is stuck, with reason ``ref_lost``.

    Attributes:
        kind: Name of the checker that knows it, such as ``"s3"``.
        id: Identifier by which that checker finds it.
        pgflow: Mark by which the journal tells it from other objects with a kind and an id;
            leave it as it is.
    """

    kind: str
    id: str
    pgflow: Literal["ref"] = field(default="ref", repr=False)
