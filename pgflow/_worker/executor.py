"""The way of a run through a worker: claim -> begin -> run bodies -> commit -> end.

:meth:`Executor.execute` is that way in one function. Only the first runs of a worker, and those
after a pause, are claimed without a commit: by the loop of the same class.
"""

from __future__ import annotations

import json
import logging
import time
from functools import partial
from typing import Any

from pgflow._db.calls import claim as claim_calls
from pgflow._db.calls import commit as commit_calls
from pgflow._db.calls.claim import ClaimRequest
from pgflow._db.failures import DATABASE_ERRORS
from pgflow._db.query import Query
from pgflow._db.wire import OwnWire
from pgflow._engine.execution import Execution, Program
from pgflow._engine.flush import Ending, Flush, batch_document
from pgflow._engine.host import Host
from pgflow._engine.undo import Undoing
from pgflow._engine.values import UNREADABLE
from pgflow._flow.main import make_driver
from pgflow._flow.scope import log_fields
from pgflow._flow.workflow import Workflow
from pgflow._model.claims import Claim
from pgflow._model.codecs import ANYTHING, Codec
from pgflow._model.effects import Ref
from pgflow._model.failures import FailedRun
from pgflow._model.kinds import Kind
from pgflow._model.opening import open_answer, open_claim
from pgflow._model.protocol import Answer, QuestionPart
from pgflow._worker.claims import Claims
from pgflow._worker.context import WorkerContext
from pgflow._worker.hooks import AT_ONCE, FailureCallbacks, find_lost, refs_in
from pgflow._worker.notifications import Notifications
from pgflow._worker.parts import Loop, Part, is_the_end
from pgflow._worker.rates import Rates
from pgflow._worker.runs import Runs
from pgflow._worker.threads import AppCalls, SpareThreads
from pgflow._worker.transaction_bodies import Turns
from pgflow._worker.undoing import make_undoing
from pgflow.errors import CodecError, DefinitionError, LeaseLost, NotStorable, PgflowError
from pgflow.logs import redacted

log = logging.getLogger("pgflow")

Item = tuple[Execution, Flush]
"""A run with something to commit."""

_LOGGED = ("definition", "engine", "refused", UNREADABLE)
"""Reasons of a hold that already have a log record of their own."""


LONG_UNITS = 25_000
"""Units of a journal after each of which a worker warns: a replay reads all of them."""


def _warn_of_length(claim: Claim, units: int) -> None:
    log.warning(
        "run %s has recorded %s units, and each claim of it replays all of them: let its code "
        "call pgflow.continue_as_new(), which begins with an empty journal",
        claim.key,
        f"{units:,}",
        extra=log_fields(claim),
    )


class Executor(Loop):
    """Takes runs through this worker, one round at a time. Its loop claims the first ones, and
    whenever there is room; while there is a backlog, claims travel with commits.

    Args:
        claims: Counts the free places, and requests claims for them.
        starter: Begins the claimed runs.
        results: Applies the result of a commit to its runs.
    """

    name = "the loop of claims"

    def __init__(
        self, context: WorkerContext, claims: Claims, starter: RunStarter, results: CommitResults
    ) -> None:
        super().__init__(context.tasks)
        self._control = context.control
        self._life = context.life
        self._wanted = context.wanted.claims
        self._meter = context.options.meter
        self._claims = claims
        self._starter = starter
        self._resting = starter.runs.resting
        self._results = results

    async def execute(
        self, wire: OwnWire, batch: list[Item], server: Any, *, careful: bool
    ) -> list[Item]:
        """Take runs one round through the worker, in one round trip. Each run comes by once as a
        claim, then with each of its commits, until one of them ends it.

        Args:
            wire: Connection to commit on.
            batch: Runs with something to commit, each with its flush.
            server: Server to which the connection leads; None if unknown.
            careful: True to check what the server has already; then nothing is claimed.

        Returns:
            What must be sent again: the server was busy with these runs.
        """
        request = None if careful else self._claims.request_with([flush for _, flush in batch])
        answer, claims = commit_calls.ALL_WELL, list[Claim]()
        began = time.perf_counter()
        try:
            # Claim and commit. Until the answer is here, nothing that depends on the batch starts.
            if request is None:
                answer = await wire.ask(self.commit_query(batch, careful=careful))
            else:
                answer, claims = await wire.ask(self._claiming_query(batch, request))
        finally:
            if request is not None:
                # Also after an error, which frees the places that it asked for.
                request = self._claims.arrived(request, claims, answer.parked)
        if self._meter is not None:
            rows = sum(len(flush.rows) for _, flush in batch)
            self._meter.committed(len(batch), rows, time.perf_counter() - began)
        # Begin: run the code of each claimed run until it waits. What it asks for is queued for the
        # next commit, which licenses its bodies.
        self._begin(claims)
        if request is not None and answer.lanes:
            answer.lanes = self._claims.left_of(request, claims, answer.lanes)
        # Run the bodies that the commit licenses, or end the run. The result of a body queues its
        # run again (:meth:`Bodies.returned`).
        return self._results.apply(batch, answer, server)

    async def loop(self) -> None:
        """Claim whenever there may be work, for as long as there is work and room."""
        while True:
            await self._wanted.wait()
            # Before the claim: work announced during it is claimed in the next round.
            self._wanted.clear()
            while not self._life.is_stopping and (count := self._claims.free()) > 0:
                try:
                    if await self.claim(count) < count:
                        break
                except LeaseLost:
                    break
                except DATABASE_ERRORS as error:
                    log.warning("cannot claim: %s", redacted(error))
                    break

    async def claim(self, count: int) -> int:
        """Claim up to `count` runs and return how many were found. Fewer means that there are no
        more.
        """
        found, is_from_head = await self._claim_once(count)
        # Behind the cursor there are too few: runs may have become ready before it.
        if found < count and not is_from_head:
            found += (await self._claim_once(count - found))[0]
        return found

    async def _claim_once(self, count: int) -> tuple[int, bool]:
        request = self._claims.request(count)
        claims: list[Claim] = []
        began = time.perf_counter()
        try:
            claims = await self._control.ask(claim_calls.claim_runs(request))
            if self._meter is not None:
                self._meter.claim_seconds.observe(time.perf_counter() - began)
        finally:
            self._claims.arrived(request, claims)
        self._begin(claims)
        return len(claims), request.after is None

    def _begin(self, claims: list[Claim]) -> None:
        for claim in claims:
            if claim.run_id in self._resting and self._starter.go_on(claim):
                continue
            if claim.page is not None:
                claim.read_page()
            if len(claim.units) < claim.last_seq and not self._life.is_stopping:
                # Keep the place until the rest of the journal is here.
                self._claims.journal_awaited(claim.run_id)
                self._tasks.spawn(self._load_and_begin(claim))
            else:
                self._starter.begin(claim)

    async def _load_and_begin(self, claim: Claim) -> None:
        """Load the rest of a journal that was too long for the claim's answer, then begin
        the run.
        """
        try:
            is_loaded = await self._starter.load(claim)
        finally:
            self._claims.journal_read(claim.run_id)
        if is_loaded:
            self._starter.begin(claim)

    # ------------------------------------------------------------ what a commit sends

    def _document(self, batch: list[Item], apart: list[str]) -> str:
        return batch_document(
            self._life.worker_id,
            [(flush, execution.clock.estimate_us) for execution, flush in batch],
            apart,
        )

    def _claiming_query(
        self, batch: list[Item], request: ClaimRequest
    ) -> Query[tuple[commit_calls.CommitAnswer, list[Claim]]]:
        apart: list[str] = []
        return commit_calls.commit_and_claim(self._document(batch, apart), request, apart)

    def commit_query(self, batch: list[Item], *, careful: bool) -> Query[commit_calls.CommitAnswer]:
        """Return the direct call for a lone unit, else the batch."""
        flush = batch[0][1]
        if (
            len(batch) == 1
            and not careful
            and len(flush.rows) == 1
            and flush.question is None
            and flush.ending is None
        ):
            row = flush.rows[0]
            if (
                row.delay_seconds is None
                and row.key is None
                and not (flush.has_ledger or flush.taken or flush.returned or flush.words)
                and flush.over is None
            ):
                return commit_calls.commit_unit(
                    self._life.worker_id,
                    flush.run_id,
                    flush.token,
                    row.seq,
                    row.call,
                    row.kind,
                    row.name,
                    row.payload,
                    flush.licences(0) or None,
                    row.at_us,
                )
        apart: list[str] = []
        return commit_calls.commit_units(self._document(batch, apart), apart, careful=careful)


class RunStarter(Part):
    """Begins claimed runs: turns a claim into an execution that runs its code, or holds the run
    before any of its code has run. It owns the threads for the code of sync workflows and for the
    checkers of Refs.

    Args:
        runs: The runs of this worker.
        host: Host of the executions.
        turns: Turns of transactional steps; notified when a run changes.
    """

    def __init__(self, context: WorkerContext, runs: Runs, host: Host[Any], turns: Turns) -> None:
        self._life = context.life
        self._control = context.control
        self._posts = context.posts
        self._tasks = context.tasks
        self._definitions = context.definitions
        self.runs = self._runs = runs
        self._host = host
        self._turns = turns
        self._code_threads = SpareThreads(context.options.concurrency, "pgflow-workflow")
        self._checks = AppCalls(AT_ONCE, "pgflow-check")
        self._programs: dict[Workflow[..., Any], Program] = {}

    async def load(self, claim: Claim) -> bool:
        """Load the rest of a journal. If that fails, hand the run back and return False."""
        try:
            while len(claim.units) < claim.last_seq:
                query = claim_calls.load_units(claim.run_id, len(claim.units))
                page = await self._control.insist(query)
                if not page:
                    break
                claim.units.extend(page)
        except PgflowError:
            raise  # the worker ends
        except Exception as error:
            log.exception(
                "run %s: cannot read its journal; the run is handed back",
                claim.key,
                extra=log_fields(claim),
            )
            self._runs.engine_failed(claim, error)
            self._runs.release_soon(claim)
            return False
        return True

    def go_on(self, claim: Claim) -> bool:
        """Let a run go on where it has waited in memory; return False if only a replay can: its
        journal has grown elsewhere.
        """
        execution = self._runs.resting.pop(claim.run_id)
        if self._life.is_stopping or not execution.fits(claim):
            execution.close()
            return False
        self._runs.add(execution)
        self._runs.guard(execution, execution.go_on, claim)
        return True

    def leave(self) -> None:
        """Forget the runs that wait in memory: the new primary may lack units of them."""
        self._runs.forget_resting()

    def begin(self, claim: Claim) -> None:
        """Begin a claimed run, or hand it back if the worker stops. An error of the engine hands
        back this run only; the other runs and the worker continue.
        """
        if self._life.is_stopping:
            self._runs.release_soon(claim)
            return
        try:
            self._open(claim)
        except BaseException as error:
            if is_the_end(error):
                raise
            log.exception(
                "run %s: the engine failed; the run is handed back",
                claim.key,
                extra=log_fields(claim),
            )
            self._runs.engine_failed(claim, error)
            execution = self._runs.executions.get(claim.run_id)
            if execution is not None and execution.claim is claim:
                self._runs.remove(execution)
            self._runs.release_soon(claim)

    def _open(self, claim: Claim) -> None:
        workflow = self._definitions.workflows[claim.workflow]
        if claim.run_id in self._runs.engine_failures and (
            failures := self._runs.repeated_failures(claim)
        ):
            tries, why = failures
            message = f"the engine failed on it {tries} times: {why}"
            self._hold(claim, workflow, "engine", message, None)
            return
        try:
            open_claim(claim, self._definitions.envelopes)
            claim.is_in_cluster = self._definitions.is_in_cluster
        except CodecError as error:
            self._hold(claim, workflow, UNREADABLE, str(error), workflow.code_hash)
            return
        program = self._programs.get(workflow)
        if program is None:
            try:
                program = self._program(workflow, workflow.result_codec)
            except DefinitionError as error:
                self._hold(claim, workflow, "definition", str(error), workflow.code_hash)
                return
            self._programs[workflow] = program
        if claim.heritage is not None and claim.heritage.undo:
            execution: Execution = make_undoing(
                claim, self._host, workflow, self._definitions.errors
            )
        else:
            execution = Execution(claim, self._host, program)
        self._runs.add(execution)
        checkers = self._definitions.ref_checkers
        # The Refs in the journal must still exist.
        if (
            checkers
            and not isinstance(execution, Undoing)
            and (refs := refs_in(claim.units, checkers))
        ):
            execution.flushing.lock()
            self._tasks.spawn(self._check_and_start(execution, refs))
        else:
            execution.start()

    def _program(self, workflow: Workflow[..., Any], result: Codec[Any] = ANYTHING) -> Program:
        definitions = self._definitions
        driver = partial(
            make_driver,
            workflow=workflow,
            errors=definitions.errors,
            interceptors=definitions.interceptors,
            spawn=self._code_threads.run,
            yield_control=partial(self._posts.post, self._thread_stands),
        )
        may_rest = workflow.is_async and not (definitions.interceptors or definitions.ref_checkers)
        return Program(driver, result, workflow.code_hash, may_rest)

    def _hold(
        self,
        claim: Claim,
        workflow: Workflow[..., Any],
        reason: str,
        message: str,
        code_hash: str | None,
    ) -> None:
        """Hold a run before its code has seen any of it. With a `code_hash`, workers with other
        code may retry it.
        """
        execution = Execution(claim, self._host, self._program(workflow))
        self._runs.add(execution)
        log.error("run %s is held: %s", claim.key, message, extra=log_fields(claim))
        execution.hold_for(reason, {"message": message}, code_hash)

    async def _check_and_start(self, execution: Execution, refs: dict[Ref, list[int]]) -> None:
        checkers = self._definitions.ref_checkers
        try:
            lost = await find_lost(
                execution.claim,
                refs,
                checkers,
                self._checks,
                lambda: not (execution.over or execution.flushing.draining),
            )
        except BaseException:
            if self._runs.has(execution):
                self._runs.give_back(execution)
            raise
        if execution.flushing.draining and self._runs.has(execution):
            self._runs.give_back(execution)
        elif not execution.over:
            execution.claim.lost = lost
            execution.flushing.unlock()
            self._runs.guard(execution, execution.start)

    def _thread_stands(self, execution: Execution) -> None:
        self._runs.guard(execution, execution.thread_waits)
        self._turns.changed(execution)

    async def stop(self) -> None:
        """Stop using the threads, without waiting for calls that hang in them, and unwind the runs
        that wait in memory.
        """
        self._runs.forget_resting()
        self._code_threads.close()
        self._checks.close()


class CommitResults:
    """Applies the results of commits to their runs.

    Args:
        turns: Turns of transactional steps; notified when a run changes.
        notifications: Announces runs that have ended, and emitted values.

    Attributes:
        finished: Number of runs that have ended here.
        failures: Calls the `on_failure` functions for failed runs.
    """

    def __init__(
        self,
        context: WorkerContext,
        turns: Turns,
        notifications: Notifications,
        rates: Rates,
    ) -> None:
        self.finished = 0
        self._rates = rates
        self.failures = FailureCallbacks(context.tasks, context.definitions.on_failure)
        self._acknowledged = context.acknowledged
        self._want_pages = context.wanted.pages.set
        self._meter = context.options.meter
        # Opens encrypted answers. If there are any, the text of errors is not logged.
        self._envelopes = context.definitions.envelopes
        self._runs = turns.runs
        self._turns = turns
        self._notifications = notifications

    def apply(
        self, batch: list[Item], answer: commit_calls.CommitAnswer, server: Any
    ) -> list[Item]:
        """Apply the answer to each run of a batch, and return what must be sent again, because the
        server was busy with its run.
        """
        ended, busy, departures = [], list[Item](), self._runs.departures
        for execution, flush in batch:
            verdict = answer.bad.get(execution.run_id) if answer.bad else None
            if verdict is None or (verdict == "already" and flush.question is None):
                if flush.ending is not None or (
                    flush.words and any(word.status is not None for word in flush.words)
                ):
                    ended.append(flush.chain_id)
                decided = answer.settled.get(execution.run_id)
                self._committed(execution, flush, decided, server)
            elif verdict == "busy":
                flush.tries += 1
                busy.append((execution, flush))
            elif verdict == "already":
                # The answer to its question is lost, and only a replay finds it.
                self._runs.give_back(execution)
            else:
                self._runs.discard(execution, "another worker holds it")
        # Once the whole batch is applied: waiters look for a durable change.
        if self._runs.departures != departures:
            self._runs.made_room()
        else:
            self._runs.changed.set()
        if answer.wake or answer.lanes:
            self._notifications.wake_soon(answer.wake, set(answer.lanes), answer.told)
        if ended:
            self._notifications.ended(ended)
        return busy

    def _committed(
        self, execution: Execution, flush: Flush, answer: Answer | None, server: Any
    ) -> None:
        """Apply a durable flush and the server's answer to its run: start the bodies that it
        licenses, or end the run.
        """
        claim = execution.claim
        if flush.rows or flush.ending is not None:
            seq = flush.last_seq if flush.rows else 0
            if seq // LONG_UNITS > flush.expected_seq // LONG_UNITS and flush.ending is None:
                _warn_of_length(claim, seq)
            self._acknowledged.note(
                claim.run_id, claim.token, seq, claim.key, has_ended=flush.ending is not None
            )
        if flush.has_emitted:
            self._notifications.emitted([claim.chain_id])
        if answer is not None and answer["units"] and not self._is_opened(execution, answer):
            return
        try:
            execution.flush_committed(flush, answer, time.monotonic(), server)
        except BaseException as error:  # noqa: BLE001 - raised again if it is the end
            self._runs.move_failed(execution, error)
        if claim.suspect and any(row.kind != Kind.STEP_STARTED for row in flush.rows):
            self._runs.suspects.progressed(execution)
        if execution.over:
            newest = self._runs.executions.get(execution.run_id)
            if newest is execution:
                self._left(execution, flush, answer)
            elif newest is not None:  # parked, and claimed again before its commit was delivered
                execution.close()
        if execution in self._turns.waiting:
            self._turns.changed(execution)

    def _left(self, execution: Execution, flush: Flush, answer: Answer | None) -> None:
        """Count a run that is over here; keep it in memory if it is parked and may rest."""
        claim = execution.claim
        if flush.ending is not None:
            self.finished += 1
            self._count_end(execution, flush.ending)
        elif answer is not None:
            if answer["place"] in ("ended", "held"):
                self._notifications.ended([claim.chain_id])
            self._count_leave(execution, flush, answer["place"])
        if answer is not None and answer["place"] == "parked" and execution.may_rest:
            self._runs.rest(execution)
        else:
            self._runs.take_apart(execution)

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

    def _count_end(self, execution: Execution, ending: Ending) -> None:
        claim, status = execution.claim, ending.status
        self._rates.ended(claim.lane_id, status, execution.clock.estimate_us() - claim.created_us)
        if self._meter is not None:
            self._meter.run_ended(claim.workflow, status)
        if ending.error is not None:
            self._report_failure(execution, ending.error)
            return
        level = logging.DEBUG if status == "completed" else logging.INFO
        if log.isEnabledFor(level):
            log.log(level, "run %s %s", claim.key, status, extra=log_fields(claim))

    def _report_failure(self, execution: Execution, text: str) -> None:
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
        self.failures.call(
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

    def _count_leave(self, execution: Execution, flush: Flush, place: str) -> None:
        """Count a run that left without an outcome of its own: parked, held, continued as new, or
        ended from outside. Log why it is held.
        """
        question: QuestionPart = flush.question or {}
        if self._meter is not None:
            self._runs.count_left(
                execution,
                "waiting"
                if place == "parked"
                else "continued"
                if "continue" in question
                else place,
            )
        if place == "held":
            self._want_pages()
        hold = question.get("hold") or question.get("stuck")
        if place == "held" and hold is not None and hold[1] not in _LOGGED:
            claim = execution.claim
            log.warning(
                "run %s is stuck: %s; see `pgflow show`",
                claim.key,
                hold[1],
                extra=log_fields(claim),
            )

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
