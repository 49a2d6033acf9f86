"""The part of each kind of call."""

from __future__ import annotations

from typing import Any, Final

from pgflow._engine.calls import Call, ChildCall, SignalCall, StepCall, TimerCall
from pgflow._engine.children import Children
from pgflow._engine.effects import EffectCall
from pgflow._engine.events import EventCall, Events
from pgflow._engine.gates import GateCall, Gates
from pgflow._engine.kind import KindOfCall
from pgflow._engine.ledger import Ledger
from pgflow._engine.locking import Holds, Locks
from pgflow._engine.locks import HoldCall, LockCall
from pgflow._engine.signals import Signals
from pgflow._engine.steps import Steps
from pgflow._engine.timers import Timers
from pgflow._engine.updates import UpdateCall, Updates

KINDS: Final[dict[type[Call], type[KindOfCall[Any]]]] = {
    StepCall: Steps,
    EffectCall: Ledger,
    TimerCall: Timers,
    SignalCall: Signals,
    EventCall: Events,
    ChildCall: Children,
    GateCall: Gates,
    UpdateCall: Updates,
    LockCall: Locks,
    HoldCall: Holds,
}
