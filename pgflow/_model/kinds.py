"""Kinds of units, what a replay does with each, and the states of a run.

During a replay units fall into three sorts:

- *outcomes* are released to the code, one at a time;
- *notes* were written while the code ran (a timer started, state set, a call given up): the code
  must produce each of them again, at the same point;
- *marks* were written beside the code (a licence, a failed attempt, a child's start, an operator's
  word): they are read and not expected of it.
"""

from __future__ import annotations

from typing import Final, Literal, get_args

Status = Literal[
    "queued", "running", "waiting", "paused", "stuck", "completed", "failed", "cancelled"
]
"""Status of a run, as users see it."""

EndedAs = Literal["completed", "failed", "cancelled"]
"""Status of a run that has ended."""

ENDED: Final[tuple[EndedAs, ...]] = get_args(EndedAs)
"""Each of them."""


class Kind:
    """Kinds of units, as one byte; the table ``pgflow.unit_kind`` documents them and a test holds
    the two equal.
    """

    STEP_STARTED: Final = "s"
    STEP_COMPLETED: Final = "c"
    STEP_FAILED: Final = "f"
    ATTEMPT_FAILED: Final = "a"
    TIMER_STARTED: Final = "t"
    TIMER_FIRED: Final = "T"
    SIGNAL_RECEIVED: Final = "S"
    WAIT_TIMED_OUT: Final = "W"
    CHILD_STARTED: Final = "k"
    CHILD_FINISHED: Final = "K"
    CALL_CANCELLED: Final = "x"
    STEP_ABANDONED: Final = "X"
    PATCHED: Final = "p"
    CLOCK_READ: Final = "w"
    STATE_SET: Final = "v"
    EMITTED: Final = "e"
    CONTINUED: Final = "n"
    OPERATOR: Final = "o"
    DECISION_RECORDED: Final = "d"
    EFFECT_INTENDED: Final = "i"
    EFFECT_ATTEMPTED: Final = "j"
    EFFECT_CONFIRMED: Final = "C"
    EFFECT_FAILED: Final = "F"
    EFFECT_UNKNOWN: Final = "U"
    EFFECT_ACCEPTED: Final = "A"
    EFFECT_SETTLED: Final = "E"
    COMPENSATED: Final = "R"
    STEP_RENEWED: Final = "r"
    LABELS_SET: Final = "y"
    OBLIGATION_OPENED: Final = "O"
    OBLIGATION_CLOSED: Final = "D"
    OBLIGATION_BREACHED: Final = "B"
    BUDGET_ADMITTED: Final = "m"
    BUDGET_CHARGED: Final = "M"
    BUDGET_REFUSED: Final = "q"
    GATE_ASKED: Final = "g"
    GATE_ANSWERED: Final = "G"
    LOCK_ASKED: Final = "l"
    LOCK_WON: Final = "L"
    LOCK_RELEASED: Final = "u"
    ENTITY_UPDATED: Final = "H"
    REDACTED: Final = "Z"
    UPDATE_TAKEN: Final = "h"
    UPDATE_REPLIED: Final = "b"


KIND_NAMES: Final = {
    letter: name.lower().replace("_", " ") for name, letter in vars(Kind).items() if name.isupper()
}
"""Names for messages."""

EFFECT_OUTCOMES = frozenset({Kind.EFFECT_CONFIRMED, Kind.EFFECT_FAILED, Kind.EFFECT_ACCEPTED})
ANSWERS = EFFECT_OUTCOMES | {
    Kind.TIMER_FIRED,
    Kind.SIGNAL_RECEIVED,
    Kind.WAIT_TIMED_OUT,
    Kind.CHILD_FINISHED,
    Kind.BUDGET_REFUSED,
    Kind.GATE_ANSWERED,
    Kind.LOCK_WON,
    Kind.LOCK_RELEASED,
}
OUTCOMES = ANSWERS | {
    Kind.STEP_COMPLETED,
    Kind.STEP_FAILED,
    Kind.DECISION_RECORDED,
    Kind.COMPENSATED,
    Kind.ENTITY_UPDATED,
    Kind.UPDATE_TAKEN,
}
EFFECT_MARKS = frozenset(
    {Kind.EFFECT_INTENDED, Kind.EFFECT_ATTEMPTED, Kind.EFFECT_UNKNOWN, Kind.EFFECT_SETTLED}
)
CALL_MARKS = EFFECT_MARKS | {
    Kind.ATTEMPT_FAILED,
    Kind.CHILD_STARTED,
    Kind.BUDGET_ADMITTED,
    Kind.GATE_ASKED,
    Kind.LOCK_ASKED,
}
"""Marks that say something of a call that the code has asked for."""
MARKS = CALL_MARKS | {
    Kind.STEP_STARTED,
    Kind.OPERATOR,
    Kind.STEP_RENEWED,
    Kind.OBLIGATION_BREACHED,
    Kind.REDACTED,
}
OBLIGATION_MARKS = frozenset(
    {Kind.OBLIGATION_OPENED, Kind.OBLIGATION_CLOSED, Kind.OBLIGATION_BREACHED}
)
"""Kinds of what others say of an obligation, whichever call it is about; the first two are also
notes of the code.
"""


class StepKind:
    """Kinds of steps, as one byte:
    what a unit says of the calls that began with it (``starts``).
    """

    READ: Final = "r"
    STEP: Final = "s"
    TRANSACTION: Final = "t"
    DECISION: Final = "d"
    EFFECT: Final = "e"


class Ground:
    """Grounds on which an effect may be attempted again; the database judges them by its clock
    (``sql/ledgers/effects.sql``).
    """

    REMEMBERED: Final = "w"
    """The counterparty still remembers the key."""
    ABSENT: Final = "a"
    """The counterparty was asked long enough after the last attempt, and knows nothing."""
    PERSON: Final = "p"
    """A person has stated that nothing was done."""


class ClosePolicy:
    """Policies for a child that is open when its parent ends."""

    CANCEL: Final = "c"
    ABANDON: Final = "a"
