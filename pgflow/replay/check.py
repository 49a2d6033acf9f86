"""Replay recorded runs against the present code, without changing anything.

If the code repeats a history to its end with the same result, the run is safe to continue. No body
runs: a replay needs only the journal.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from pgflow._db.calls.replay import RecordedRun
from pgflow._engine.calls import StepCall
from pgflow._engine.execution import Execution, Program
from pgflow._engine.history import Parting
from pgflow._flow.interceptor import Interceptor
from pgflow._flow.main import make_driver
from pgflow._flow.workflow import Workflow
from pgflow._model import tags
from pgflow._model.codecs import encode_loosely
from pgflow._model.envelopes import Envelopes, open_text
from pgflow._model.opening import open_claim
from pgflow._worker.hooks import refs_in
from pgflow._worker.threads import start_daemon
from pgflow.errors import NonDeterminismError, NotStorable, Redacted

CONTEXT_UNITS = 3
"""Number of units to show before a divergence."""


class _NoHost:
    """A host that starts and commits nothing."""

    def start_body(self, execution: Execution, call: StepCall) -> None:
        """Do nothing."""

    def stop_body(self, execution: Execution, call: StepCall) -> None:
        """Do nothing."""

    def retry_body_later(self, execution: Execution, call: StepCall, delay_seconds: float) -> None:
        """Do nothing."""

    def want_flush(self, execution: Execution) -> None:
        """Do nothing."""

    def look_later(self, execution: Execution, delay_seconds: float) -> None:
        """Do nothing."""

    def patience_us(self) -> int:
        """Return 0: a replay waits for no commit."""
        return 0

    def hand_back(self, execution: Execution) -> None:
        """Do nothing."""

    def monotonic_ns(self) -> int:
        """Return 0: time does not pass in a replay."""
        return 0


@dataclass(frozen=True)
class Divergence:
    """Difference between the code and a recorded run.

    Attributes:
        message: Both sides in one sentence, with the run and its workflow.
        diff: The last units that the code repeats, then both sides: lines that begin with ``" "``,
            ``"- "``, ``"+ "``.
        where: Source lines where the code was, outermost first: ``file:line in function``.
    """

    message: str
    diff: list[str]
    where: list[str]

    def __str__(self) -> str:
        """Return message, diff and source lines, on several lines."""
        return "\n".join(
            [
                self.message,
                *(f"  {line}" for line in self.diff),
                *(f"  at {line}" for line in self.where),
            ]
        )


def replay(
    recorded: RecordedRun,
    workflow: Workflow[..., Any],
    errors: tuple[type[Exception], ...] = (),
    interceptors: Sequence[Interceptor] = (),
    envelopes: Envelopes | None = None,
) -> NonDeterminismError | None:
    """Replay one recorded run; see :func:`find_divergence`.

    Returns:
        How the code diverges from the record; None if it repeats it.
    """
    found = find_divergence(recorded, workflow, errors, interceptors, envelopes)
    return None if found is None else NonDeterminismError(found.message)


def find_divergence(
    recorded: RecordedRun,
    workflow: Workflow[..., Any],
    errors: tuple[type[Exception], ...] = (),
    interceptors: Sequence[Interceptor] = (),
    envelopes: Envelopes | None = None,
) -> Divergence | None:
    """Replay one recorded run.

    Args:
        recorded: The run with its whole journal.
        workflow: The code.
        errors: The app's ``errors=``.
        interceptors: The app's ``interceptors=``.
        envelopes: Those of the app; None if it has no codec.

    Returns:
        How the code diverges from the record; None if it repeats it.

    Raises:
        CodecError: A value in the record was encoded with a key that is not known here.
        Redacted: A value that the code needs was redacted, or is in a file that is not here.
    """
    open_claim(recorded.claim, envelopes)
    for ref in refs_in(recorded.claim.units, workflow.ref_checkers):
        if not workflow.ref_checkers[ref.kind](ref):
            raise Redacted(f"the journal of run {recorded.claim.key!r} needs {ref.id}: it is gone")
    if recorded.output is not None:
        recorded = recorded._replace(
            output=open_text(
                envelopes, recorded.output, f"the result of run {recorded.claim.key!r}"
            )
        )
    moved = threading.Event()

    spawn = partial(start_daemon, name="pgflow-replay")
    execution = Execution(
        recorded.claim,
        _NoHost(),
        Program(
            lambda e: make_driver(
                e, workflow, errors, interceptors, spawn, lambda _: moved.set(), is_check=True
            ),
            workflow.result_codec,
        ),
    )
    try:
        execution.start()
        while execution.code.driver.busy:
            moved.wait()
            moved.clear()
            execution.thread_waits()
        return _describe(execution, recorded, workflow)
    finally:
        execution.close()


def _describe(
    execution: Execution, recorded: RecordedRun, workflow: Workflow[..., Any]
) -> Divergence | None:
    """Return the divergence of a stopped replay, or None."""
    found = execution.history.divergence or _judge(recorded, execution)
    if found is None or _differs_in_form_only(recorded, execution, workflow):
        return None
    parting = execution.history.parting or Parting("", "", None, execution.code.driver.where())
    units = recorded.claim.units
    at = min(execution.buffer.seq, len(units)) if parting.seq is None else parting.seq - 1
    before = [f"  {unit}" for unit in units[max(0, at - CONTEXT_UNITS) : at]]
    both = [f"- {parting.journal.removesuffix(' here')}", f"+ {parting.code}"]
    if not parting.code:
        both = [f"- {'the record' if parting.seq is None else units[at]}", f"+ {found}"]
    return Divergence(str(found), before + both, parting.where)


def _differs_in_form_only(
    recorded: RecordedRun, execution: Execution, workflow: Workflow[..., Any]
) -> bool:
    """Return True if the recorded result equals the code's once it is read with today's class."""
    if (
        execution.history.divergence is not None
        or execution.end.ending is None
        or recorded.output is None
        or execution.end.ending.output is None
    ):
        return False
    try:
        today = workflow.result_codec.encode(
            workflow.result_codec.decode(recorded.output, "the recorded result"), "the result"
        )
    except NotStorable:
        return False
    output = _output_of(execution)
    return today == output or recorded.output == _without_tags(output, workflow)


def _without_tags(output: str | None, workflow: Workflow[..., Any]) -> str | None:
    """Return a result in the form that it had before tags; None if it has no tags."""
    if output is None or tags.MARK not in output:
        return None
    return encode_loosely(workflow.result_codec.decode(output, "the result"), "the result")


def _output_of(execution: Execution) -> str | None:
    """Return the value that the code returned, decoded; None if there is none."""
    output = None if execution.end.ending is None else execution.end.ending.output
    return output if output is None else open_text(execution.claim.envelopes, output, "the result")


def _judge(recorded: RecordedRun, execution: Execution) -> NonDeterminismError | None:
    """Return an error if a replay ended otherwise than the record, or None."""
    key, workflow = recorded.claim.key, recorded.claim.workflow
    if recorded.status == "completed":
        if execution.end.ending is None:
            return NonDeterminismError(f"run {key!r} ({workflow}) completed, the code continues")
        output = _output_of(execution)
        if output != recorded.output:
            return NonDeterminismError(
                f"run {key!r} ({workflow}) returned {recorded.output}, the code returns {output}"
            )
    elif recorded.status == "failed" and (
        execution.end.ending is None or execution.end.ending.status != "failed"
    ):
        return NonDeterminismError(f"run {key!r} ({workflow}) failed, the code does not")
    return None
