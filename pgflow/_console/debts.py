"""Debts: states of effects and obligations, what they mean, and the verdicts that each takes."""

from __future__ import annotations

EFFECT_STATES = {
    "unknown": "Its outcome is unknown: it may or may not have been done.",
    "uncompensated": "It was done, and its run was ended by force before taking it back.",
    "absent": "It was not done, and will be tried again.",
    "accepted": "The other side has taken it on, and will confirm it.",
    "intended": "It is about to be done, or under way.",
}
"""States of effects, those that need a person first, and their meaning."""
OBLIGATION_STATES = {
    "breached": "It was due and is still open.",
    "open": "It is neither discharged nor waived.",
}

VERDICTS = {
    "unknown": ("confirmed", "failed", "absent"),
    "accepted": ("confirmed", "failed"),
    "uncompensated": ("taken_back", "stands"),
}
"""Verdicts that an effect takes in each state."""
SAYS = {
    "confirmed": "It was done. The run goes on with this result.",
    "failed": "It was not done, and will not be. The run continues with this failure.",
    "absent": "It was not done, and may be tried again.",
    "taken_back": "It was taken back by other means.",
    "stands": "It was done, and need not be taken back.",
}
