"""Effects: actions outside the database, sagas that undo them, and plans of their undoing."""

from pgflow._flow.decorators import effect
from pgflow._flow.ledgers.effect import AsyncEffect, SyncEffect
from pgflow._flow.ledgers.saga import saga
from pgflow._flow.ledgers.undo_plan.propose import PlannedCall, UndoRequest
from pgflow._model.effects import Absent, Accepted, Confirmed, Ref, Risk, StillUnknown
from pgflow._model.fingerprints import fingerprint

__all__ = [
    "Absent", "Accepted", "AsyncEffect", "Confirmed", "PlannedCall", "Ref", "Risk",
    "StillUnknown", "SyncEffect", "UndoRequest", "effect", "fingerprint", "saga",
]  # fmt: skip
