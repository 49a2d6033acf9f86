"""Starts claimed runs: turns a claim into an execution that runs its code, or holds the run before
any of its code has run.
"""

from __future__ import annotations

import logging
import time
from functools import partial
from typing import Any

from pgflow._engine.drivers import Driver
from pgflow._engine.execution import Execution, Program
from pgflow._engine.undo import Undoing
from pgflow._engine.values import UNREADABLE
from pgflow._flow.main import make_driver
from pgflow._flow.scope import log_fields
from pgflow._flow.workflow import Workflow
from pgflow._model.claims import Claim
from pgflow._model.codecs import ANYTHING, Codec
from pgflow._model.effects import Ref
from pgflow._model.opening import open_claim
from pgflow._worker.fencing import Turns
from pgflow._worker.host import RunHost
from pgflow._worker.options import Definitions, WorkerOptions
from pgflow._worker.parts import Part, Tasks
from pgflow._worker.ref_checks import AT_ONCE, find_lost, refs_in
from pgflow._worker.runs import Runs
from pgflow._worker.supervision import is_the_end
from pgflow._worker.threads import AppCalls, Posts, SpareThreads
from pgflow._worker.undoing import make_undoing
from pgflow.errors import CodecError, DefinitionError

log = logging.getLogger("pgflow")


class Beginnings(Part):
    """Starts runs. It owns the threads for the code of sync workflows and for the checkers of Refs.

    Args:
        runs: The runs of this worker.
        host: Host of the executions.
        turns: Turns of transactional steps; notified when a run changes.
        posts: Calls from threads to the loop.
        tasks: Runs the checks of Refs.
    """

    def __init__(
        self,
        runs: Runs,
        host: RunHost,
        turns: Turns,
        posts: Posts,
        tasks: Tasks,
        definitions: Definitions,
        options: WorkerOptions,
    ) -> None:
        self._runs = runs
        self._host = host
        self._turns = turns
        self._posts = posts
        self._tasks = tasks
        self._definitions = definitions
        self._code_threads = SpareThreads(options.concurrency, "pgflow-workflow")
        self._checks = AppCalls(AT_ONCE, "pgflow-check")

    def begin(self, claim: Claim) -> None:
        """Start a claimed run. An error of the engine hands back this run only; the other runs and
        the worker continue.
        """
        try:
            self._begin_soundly(claim)
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

    def _begin_soundly(self, claim: Claim) -> None:
        workflow = self._definitions.workflows[claim.workflow]
        hopeless = self._runs.hopeless(claim)
        if hopeless is not None:
            tries, why = hopeless
            execution = Execution(claim, self._host, self._program(workflow))
            self._runs.add(execution)
            log.error(
                "run %s is held: the engine failed on it %d times: %s",
                claim.key,
                tries,
                why,
                extra=log_fields(claim),
            )
            execution.hold_for(
                "engine", {"message": f"the engine failed on it {tries} times: {why}"}
            )
            return
        try:
            open_claim(claim, self._definitions.envelopes)
        except CodecError as error:
            self._hold_unread(claim, workflow, error)
            return
        try:
            result, misfit = workflow.result_codec, None
        except DefinitionError as error:
            result, misfit = ANYTHING, str(error)
        if misfit is None and claim.heritage is not None and claim.heritage.undo:
            execution = make_undoing(claim, self._host, workflow, self._definitions.errors)
        else:
            execution = Execution(claim, self._host, self._program(workflow, result))
        execution.flushing.acknowledged_at(time.monotonic())
        self._runs.add(execution)
        if misfit is None:
            self._start(execution)
        else:
            log.error("run %s is held: %s", claim.key, misfit, extra=log_fields(claim))
            execution.hold_for("definition", {"message": misfit}, workflow.code_hash)

    def _program(self, workflow: Workflow[..., Any], result: Codec[Any] = ANYTHING) -> Program:
        return Program(partial(self._driver, workflow), result, workflow.code_hash)

    def _hold_unread(self, claim: Claim, workflow: Workflow[..., Any], error: CodecError) -> None:
        """Hold a run whose data cannot be decoded here before its code has seen any of it. A worker
        with other code may retry it.
        """
        execution = Execution(claim, self._host, self._program(workflow))
        self._runs.add(execution)
        log.error("run %s is held: %s", claim.key, error, extra=log_fields(claim))
        execution.hold_for(UNREADABLE, {"message": str(error)}, workflow.code_hash)

    def _start(self, execution: Execution) -> None:
        """Run the code, after checking that the Refs in the journal still exist."""
        checkers = self._definitions.ref_checkers
        refs = (
            refs_in(execution.claim.units, checkers)
            if checkers and not isinstance(execution, Undoing)
            else {}
        )
        if refs:
            execution.flushing.lock()
            self._tasks.spawn(self._check_and_start(execution, refs))
        else:
            self._runs.guard(execution, execution.start)

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

    def _driver(self, workflow: Workflow[..., Any], execution: Execution) -> Driver:
        definitions = self._definitions
        return make_driver(
            execution,
            workflow,
            definitions.errors,
            definitions.interceptors,
            self._code_threads.run,
            None
            if workflow.is_async
            else partial(self._posts.post, self._thread_stands, execution),
        )

    def _thread_stands(self, execution: Execution) -> None:
        self._runs.guard(execution, execution.thread_waits)
        self._turns.changed(execution)

    async def stop(self) -> None:
        """Stop using the threads, without waiting for calls that hang in them."""
        self._code_threads.close()
        self._checks.close()
