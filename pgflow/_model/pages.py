"""Needs for a person, as the pager tells them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

PageKind = Literal["stuck", "effect", "obligation"]
"""Reason why a person is needed."""


@dataclass(frozen=True)
class Page:
    """Notice to the hook of ``app.pager`` that only a person can bring something on.

    Attributes:
        id: The same whenever the same need is told, which may happen twice: the idempotency key of
            the message. What needs somebody again later has another.
        kind: ``stuck``: the run cannot go on; ``effect``: nobody knows what became of it;
            ``obligation``: it is owed, and its run does not see to it.
        run: Key of the run.
        workflow: Name of its workflow.
        name: Reason why it is stuck, in one word; or the name of the effect or obligation.
        why: That in a sentence, as far as it is known.
        since: Since when a person is needed.
        attempt: Number of the try to tell this, from 1.
        effect: Of an effect, its idempotency key: what ``pgflow settle`` takes. Of an obligation,
            its key: what ``pgflow discharge`` takes.
        tenant: Tenant of the run.
        generation: Generation of the run.
        reason: Code to branch on: why the run is stuck, as ``pgflow.runs`` has it, or why nobody
            knows what became of the effect, as its last unit ``effect_unknown`` has it;
            ``breached``, ``failed`` or ``cancelled`` of an obligation; empty if none is recorded.
    """

    id: str
    kind: PageKind
    run: str
    workflow: str
    name: str
    why: str
    since: datetime
    attempt: int = 1
    effect: str | None = None
    tenant: str = ""
    generation: int = 1
    reason: str = ""
