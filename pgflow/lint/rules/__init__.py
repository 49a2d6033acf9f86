"""The rules. Each is a class with a code that never changes its meaning; `RULES` has one of each,
in the order of the codes.

PF1xx is what a replay cannot repeat, PF2xx how code flows around calls, PF3xx what is declared,
PF9xx comments to the check.
"""

from __future__ import annotations

from pgflow.lint.rules.base import Rule
from pgflow.lint.rules.calls import (
    BodyCalled,
    MissingAwait,
    OtherColour,
    WaitInBody,
    WorkflowCalled,
)
from pgflow.lint.rules.cleanup import SideEffectInCleanup, SwallowedUnwind
from pgflow.lint.rules.comments import UnknownIgnore, UnusedIgnore
from pgflow.lint.rules.declarations import (
    CompensableWithoutCompensate,
    EffectWithoutSettle,
    LongName,
    NestedStep,
    SameName,
    WrongSchedule,
)
from pgflow.lint.rules.order import BareAsCompleted, Identity, SetIteration
from pgflow.lint.rules.outside import (
    BlockingSleep,
    Chance,
    Clock,
    Environment,
    Output,
    Outside,
    Threads,
)
from pgflow.lint.rules.state import ModuleState
from pgflow.lint.rules.values import NotStorableAnnotation

RULES: tuple[Rule, ...] = (
    Clock(), Chance(), Environment(), Outside(), BlockingSleep(), Threads(), SetIteration(),
    ModuleState(), Identity(), Output(), BareAsCompleted(), SideEffectInCleanup(),
    SwallowedUnwind(), MissingAwait(), WorkflowCalled(), BodyCalled(), WaitInBody(),
    OtherColour(), NotStorableAnnotation(),
    EffectWithoutSettle(), CompensableWithoutCompensate(), LongName(), NestedStep(),
    WrongSchedule(), SameName(), UnknownIgnore(), UnusedIgnore(),
)  # fmt: skip

BY_CODE = {rule.code: rule for rule in RULES}

__all__ = ["BY_CODE", "RULES", "Rule"]
