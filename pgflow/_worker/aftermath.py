"""The result of a commit, applied to its run: the flush is durable, refused, or its lease
is lost.
"""

from __future__ import annotations

import json
import logging
import time
from typing import Any

from pgflow._engine.execution import Execution
from pgflow._engine.flush import Ending, Flush
from pgflow._engine.values import UNREADABLE
from pgflow._flow.scope import log_fields
from pgflow._model.envelopes import Envelopes
from pgflow._model.failures import FailedRun
from pgflow._model.kinds import Kind
from pgflow._model.opening import open_answer
from pgflow._model.protocol import Answer, QuestionPart
from pgflow._worker.acknowledged import Acknowledged
from pgflow._worker.failures import Failures
from pgflow._worker.fencing import Turns
from pgflow._worker.news import News
from pgflow._worker.pager import Pager
from pgflow._worker.runs import Runs
from pgflow._worker.suspects import Suspects
from pgflow.errors import CodecError, NotStorable
from pgflow.logs import redacted
from pgflow.meter import Meter

log = logging.getLogger("pgflow")

_TOLD = ("definition", "engine", "refused", UNREADABLE)
"""Reasons that already have a log record of their own."""


class Aftermath:
    """Applies the results of commits to their runs.

    Args:
        runs: The runs of this worker.
        turns: Turns of transactional steps; notified when a run changes.
        suspects: Cleared by the durable result of a body.
        acknowledged: Notes durable units.
        news: Announces runs that were ended from outside, and emitted values.
        pager: Looks at once when a run is held; None without a hook.
        meter: Counts ended runs.
        envelopes: Opens encrypted answers. If there are any, the text of errors is not logged.
        failures: Calls the `on_failure` functions for failed runs.

    Attributes:
        finished: Number of runs that have ended here.
    """

    def __init__(
        self,
        runs: Runs,
        turns: Turns,
        suspects: Suspects,
        acknowledged: Acknowledged,
        news: News,
        pager: Pager | None,
        meter: Meter | None,
        envelopes: Envelopes | None,
        failures: Failures,
    ) -> None:
        self.finished = 0
        self._runs = runs
        self._turns = turns
        self._suspects = suspects
        self._acknowledged = acknowledged
        self._news = news
        self._pager = pager
        self._meter = meter
        self._envelopes = envelopes
        self._failures = failures

    def committed(
        self, execution: Execution, flush: Flush, answer: Answer | None, server: Any
    ) -> None:
        """Apply a durable flush and the server's answer to its run."""
        claim = execution.claim
        if flush.rows or flush.ending is not None:
            seq = flush.last_seq if flush.rows else 0
            self._acknowledged.note(
                claim.run_id, claim.token, seq, claim.key, has_ended=flush.ending is not None
            )
        if flush.has_emitted:
            self._news.emitted([claim.chain_id])
        if answer is not None and not self._is_opened(execution, answer):
            return
        self._runs.guard(
            execution, execution.flush_committed, flush, answer, time.monotonic(), server
        )
        if claim.suspect and any(row.kind != Kind.STEP_STARTED for row in flush.rows):
            self._suspects.got_on(execution)
        if execution.over and self._runs.has(execution):
            if flush.ending is not None:
                self.finished += 1
                self._tell_end(execution, flush.ending)
            elif answer is not None:
                if answer["place"] in ("ended", "held"):
                    self._news.have_told([claim.chain_id])
                self._tell_place(execution, flush, answer["place"])
            self._runs.remove(execution)
        if execution in self._turns.waiting:
            self._turns.changed(execution)

    def over(self) -> None:
        """Wake the waiters for a durable change, once the whole batch is applied."""
        self._runs.changed.set()

    def _is_opened(self, execution: Execution, answer: Answer) -> bool:
        """Open the answer in place. If it cannot be decoded, hand the run back and return False:
        the value is in the journal, where the next claim finds it and holds the run.
        """
        try:
            open_answer(answer, self._envelopes, execution.claim.key)
        except CodecError as error:
            if self._runs.has(execution):
                log.warning(
                    "run %s is handed back: %s",
                    execution.claim.key,
                    error,
                    extra=log_fields(execution.claim),
                )
                self._runs.give_back(execution)
            return False
        return True

    def _tell_end(self, execution: Execution, ending: Ending) -> None:
        claim, status = execution.claim, ending.status
        if self._meter is not None:
            self._meter.run_ended(claim.workflow, status)
        if ending.error is not None:
            self._tell_failure(execution, ending.error)
            return
        level = logging.DEBUG if status == "completed" else logging.INFO
        if log.isEnabledFor(level):
            log.log(level, "run %s %s", claim.key, status, extra=log_fields(claim))

    def _tell_failure(self, execution: Execution, text: str) -> None:
        """Log a run that failed for good, and call the `on_failure` functions.

        Handlers get the error itself, to group and show it. The message has only its class, because
        its text may quote the run's data.
        """
        claim, data = execution.claim, json.loads(text)
        error = execution.code.driver.outcome()[1]
        if error is None:  # the code has returned what cannot be stored
            error = NotStorable(str(data["message"]))
        log.error(
            "run %s failed with %s",
            claim.key,
            data["type"].removeprefix("builtins."),
            exc_info=error if self._envelopes is None else None,
            extra=log_fields(claim),
        )
        self._failures.tell(
            FailedRun(
                claim.key,
                claim.workflow,
                error,
                claim.run_id,
                claim.generation,
                claim.tenant,
                dict(claim.labels),
            )
        )

    def _tell_place(self, execution: Execution, flush: Flush, place: str) -> None:
        """Count a run that left without an outcome of its own: parked, held, continued as new, or
        ended from outside. Log why it is held.
        """
        question: QuestionPart = flush.question or {}
        self._runs.count_left(
            execution,
            "waiting" if place == "parked" else "continued" if "continue" in question else place,
        )
        if place == "held" and self._pager is not None:
            self._pager.look_now()
        hold = question.get("hold") or question.get("stuck")
        if place == "held" and hold is not None and hold[1] not in _TOLD:
            claim = execution.claim
            log.warning(
                "run %s is stuck: %s; see `pgflow show`",
                claim.key,
                hold[1],
                extra=log_fields(claim),
            )

    def lost(self, execution: Execution) -> None:
        """Discard the run: another worker holds it."""
        self._runs.discard(execution, "another worker holds it")

    def unanswered(self, execution: Execution) -> None:
        """Hand the run back: the answer to its question is lost, and only a replay finds it."""
        self._runs.give_back(execution)

    def not_committed(self, execution: Execution, error: BaseException) -> None:
        """Hand the run back after the committer failed on its batch. The replay finds what is
        durable.
        """
        if self._runs.has(execution):
            self._runs.engine_failed(execution.claim, error)
            self._runs.give_back(execution)

    def refused(self, execution: Execution, error: Exception) -> None:
        """Log that the server rejected the run's data for good. The run is held for a person."""
        claim = execution.claim
        log.error(
            "run %s is held: the server rejected its commit: %s",
            claim.key,
            redacted(error),
            extra=log_fields(claim),
        )
