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
    """Result of an ``@effect`` that the counterparty has accepted and will confirm later.

    The workflow continues with it. The run does not complete until the effect is confirmed, with
    ``app.confirm_effect`` or ``pgflow.confirm_effect`` in SQL.

    Attributes:
        ref: The counterparty's reference for the confirmation.
        heartbeat_timeout: Longest time between heartbeats (``app.beat_effect``) of the
            counterparty. After that time without one, the outcome is unknown: the effect's
            ``.settle`` is called, else a person is needed. Only the ledger records it; the workflow
            gets ``Accepted(ref)``.
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
    """A reference to something outside that a result relies on: a file, a workspace, a row of
    another system.

    If the app has a checker for the kind (``app.ref_checker``), it is called whenever a run
    continues from its journal. If the target of a result of a ``@read`` or ``@step`` is gone, the
    body runs again under the same key, and the new result counts from then on. Results of effects,
    decisions and transactions are never made again: the run is stuck, reason ``ref_lost``.

    Attributes:
        kind: Name of its checker, such as ``"s3"``.
        id: Identifier for the checker.
        pgflow: Mark that distinguishes it in the journal from other objects with a kind and an id.
            Do not set it.
    """

    kind: str
    id: str
    pgflow: Literal["ref"] = field(default="ref", repr=False)
