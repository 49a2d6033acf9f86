"""Failed runs, as passed to functions of ``on_failure``."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class FailedRun:
    """Notice to a function of ``app.on_failure`` that a run has failed for good.

    Attributes:
        run: Key of the run.
        workflow: Name of its workflow.
        error: Exception that its code raised, with the traceback.
        run_id: Number of the run in the database.
        generation: Generation of the run.
        tenant: Tenant of the run.
        labels: Names and values to list it by.
    """

    run: str
    workflow: str
    error: BaseException
    run_id: int
    generation: int
    tenant: str
    labels: dict[str, str]
