"""Rejections in a dry run: approvals are rejected so often before they count as answered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from pgflow.declare.graph import Approval
from pgflow.declare.play.approvals import Dialect, Refused, fails_when_rejected, reject
from pgflow.declare.play.interpreter import Change, Settled, Task
from pgflow.declare.text.outputs import Output, Outputs, UnresolvableReference
from pgflow.declare.text.templates import resolve

ShowRework = Callable[[str, str, str], None]
"""Shows a turn of an agent that works on a rejection: its key, its reason and its text."""


class Rejections:
    """The rejections of one dry run.

    Args:
        wanted: Reasons with which approvals are rejected, by id, one after the other.
        dialect: Family that says what a rejection means.
    """

    def __init__(self, wanted: Mapping[str, Sequence[str]], dialect: Dialect) -> None:
        self._wanted = wanted
        self._dialect: Dialect = dialect
        self._said: Counter[str] = Counter()

    @property
    def unasked(self) -> tuple[str, ...]:
        """Ids of approvals that were not asked for so often as they were to be rejected, sorted."""
        some = self._wanted.items()
        return tuple(sorted(name for name, reasons in some if self._said[name] < len(reasons)))

    def of(self, task: Task, body: Approval, outputs: Outputs, show: ShowRework) -> Change | None:
        """Return the consequence of the rejections of an approval; None where it is asked again, or
        is not to be rejected.

        Args:
            task: Its task.
            body: The approval.
            outputs: Outputs that it can read.
            show: Shows the work on each rejection.
        """
        node_id, place, text = task.node.id, task.place, task.text
        for reason in self._wanted.get(node_id, ())[self._said[node_id] :]:
            self._said[node_id] += 1
            number = self._said[node_id]
            if fails_when_rejected(body, self._dialect):
                return _failed(task, f"rejected: {reason}")
            meant = reject(body, reason, number - 1)
            if isinstance(meant, Output):
                return Settled(place, meant, "rejected", text)
            if isinstance(meant, Refused):
                output = Output("completed", meant.reason)
                return Settled(place, output, "rejected", text, cancels=True)
            variables = replace(task.variables, rejection_reason=reason)
            try:
                told = resolve(meant.text, variables, outputs).text
            except UnresolvableReference as error:
                return _failed(task, str(error))
            show(f"{node_id}:rework#{number}", f"rejected: {reason}", told)
        return None


def _failed(task: Task, error: str) -> Change:
    return Settled(task.place, Output("failed", error=error), error, task.text)
