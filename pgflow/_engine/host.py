"""The interface between an execution and the worker that runs it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Protocol, TypeVar

from pgflow._engine.calls import StepCall
from pgflow._engine.effects import EffectCall
from pgflow._model.exceptions import ErrorData

Finding = Literal[
    "confirmed", "accepted", "failed", "absent", "not begun", "unknown", "needless", "carried"
]
"""Finding on an effect. needless: the effect that it takes back was never done; carried: confirmed
in a dropped part of the journal.
"""

E_contra = TypeVar("E_contra", contravariant=True)


class ContinueAsNew(BaseException):
    """Raised by ``continue_as_new``; carries the input of the next generation."""

    def __init__(self, input_text: str) -> None:
        super().__init__(input_text)
        self.input_text = input_text
        self.saga: list[tuple[EffectCall, str]] = []
        """Effects that the next generation takes back if it fails, each with the place of its code.
        """
        self.of_children: list[str] = []
        """Keys of those that children did."""


class StepResult:
    """Result of a body: the text of its value, or its error."""

    __slots__ = ("call", "delay_seconds", "error", "text")

    def __init__(
        self,
        call: StepCall,
        text: str | None,
        error: ErrorData | None,
        delay_seconds: float | None = None,
    ) -> None:
        self.call = call
        self.text = text
        self.error = error
        self.delay_seconds = delay_seconds


class EffectResult(StepResult):
    """Finding on an effect after its body or a question to the counterparty returned.

    ``text`` is the text of its value if it is confirmed, and the counterparty's reference if it is
    accepted; ``beats_within_seconds`` is then the promised interval of heartbeats.
    """

    __slots__ = ("beats_within_seconds", "reason", "took_seconds", "turn", "verdict")

    def __init__(
        self,
        call: EffectCall,
        verdict: Finding,
        text: str | None = None,
        error: ErrorData | None = None,
        reason: str = "",
        beats_within_seconds: float | None = None,
    ) -> None:
        super().__init__(call, text, error)
        self.verdict: Finding = verdict
        self.reason = reason
        self.beats_within_seconds = beats_within_seconds
        self.took_seconds = 0.0
        self.turn = call.turn


class Host(Protocol[E_contra]):
    """Interface of the worker for the executions that it runs."""

    def start_body(self, execution: E_contra, call: StepCall) -> None:
        """Run the body of a step, then call ``step_returned``."""

    def stop_body(self, execution: E_contra, call: StepCall) -> None:
        """Stop a body whose result is not needed."""

    def retry_body_later(self, execution: E_contra, call: StepCall, delay_seconds: float) -> None:
        """Call ``retry_due`` after a delay."""

    def want_flush(self, execution: E_contra) -> None:
        """Call ``flushing.take`` soon."""

    def look_later(self, execution: E_contra, delay_seconds: float) -> None:
        """Call ``look_due`` after a delay."""

    def patience_us(self) -> int:
        """Return the microseconds that a parent may wait in memory for news of its children; 0 if
        it may not.
        """

    def hand_back(self, execution: E_contra) -> None:
        """Hand the run back, to be claimed again and run by its own code."""

    def monotonic_ns(self) -> int:
        """Return nanoseconds on a clock that only measures durations."""


class Line:
    """The worker, as the parts of one execution see it.

    Owns the parts' only reference to the execution, and with it to parts that are made on first
    use. Cuts it when the execution closes: a cycle would wait for the garbage collector.
    """

    def __init__(self, host: Host[Any], execution: Any) -> None:
        self.host = host
        self.execution: Any = execution
        self.monotonic_ns: Callable[[], int] = host.monotonic_ns
        """Nanoseconds on a clock that only measures durations."""

    def want_flush(self) -> None:
        """Request a flush soon."""
        self.host.want_flush(self.execution)

    def stop_body(self, call: StepCall) -> None:
        """Stop a body whose result is not needed."""
        self.host.stop_body(self.execution, call)

    def retry_later(self, call: StepCall, delay_seconds: float) -> None:
        """Retry a body after a delay."""
        self.host.retry_body_later(self.execution, call, delay_seconds)

    def look_later(self, delay_seconds: float) -> None:
        """Schedule a look after a delay."""
        self.host.look_later(self.execution, delay_seconds)

    def hand_back(self) -> None:
        """Hand the run back, to be claimed again and run by its own code."""
        self.host.hand_back(self.execution)

    def patience_us(self) -> int:
        """Return the microseconds that a parent may wait in memory for news of its children; 0 if
        it may not.
        """
        return self.host.patience_us()

    def go_live(self) -> None:
        """Continue the open calls after the replay."""
        if self.execution is not None:
            self.execution.go_live()

    def cut(self) -> None:
        """Drop the reference to the execution."""
        self.execution = None
