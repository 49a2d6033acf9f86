"""Pages: notices of work that only a person can do."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

PageKind = Literal["stuck", "effect", "obligation"]
"""Reason why a person is needed."""


@dataclass(frozen=True)
class Page:
    """Notice for the hook of ``app.pager``: a run, effect or obligation needs a person.

    Attributes:
        id: Idempotency key of the notice, which may be delivered twice. A later need has another
            id.
        kind: ``stuck``: the run cannot go on; ``effect``: its outcome is unknown; ``obligation``:
            it is owed, and its run does not handle it.
        run: Key of the run.
        workflow: Name of its workflow.
        name: Reason of a stuck run, in one word, or the name of the effect or obligation.
        why: The reason in a sentence, as far as it is known.
        since: Time since which a person is needed.
        attempt: Number of the delivery attempt, from 1.
        effect: Idempotency key of the effect, for ``pgflow settle``; or key of the obligation, for
            ``pgflow discharge``.
        tenant: Tenant of the run.
        generation: Generation of the run.
        reason: Code to branch on: of a stuck run, as in ``pgflow.runs``; of an unknown effect, as
            in its last unit ``effect_unknown``; of an obligation ``breached``, ``failed`` or
            ``cancelled``. Empty if none is recorded.
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
