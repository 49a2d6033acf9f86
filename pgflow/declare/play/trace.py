"""Trace of a dry run: an entry for each node that ended, and the end of the whole."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import JsonValue

from pgflow.declare.play.interpreter import RunState


@dataclass(frozen=True, slots=True)
class Entry:
    """Entry on one node that ended, once.

    Args:
        id: The node.
        type: Its mode.
        state: ``stubbed`` if its output was given, ``completed`` if it needed none, ``skipped``,
            ``failed`` or ``paused``.
        reason: Reason of that state, if there is one.
        iteration: Number of the round of the group around it, from 1.
        text: Text that it would have been prompted with, run or asked.
        output: Its output.
    """

    id: str
    type: str
    state: str
    reason: str | None
    iteration: int | None = None
    text: str | None = None
    output: str | None = None

    def as_json(self) -> dict[str, JsonValue]:
        """Return the entry as an object. Empty fields are left out, except the reason."""
        entry: dict[str, JsonValue] = {
            "id": self.id,
            "type": self.type,
            "state": self.state,
            "reason": self.reason,
        }
        more: dict[str, JsonValue] = {
            "iteration": self.iteration,
            "text": self.text,
            "output": self.output,
        }
        return entry | {key: value for key, value in more.items() if value is not None}


@dataclass(frozen=True, slots=True)
class DryRun:
    """Result of a dry run.

    Args:
        outcome: End of the run.
        trace: Ends of the nodes, in their order.
        summary: Text of the first sink that has one; None if none has.
        missing: Ids of nodes that would have run and had no stub, sorted.
        unused: Ids of stubs that were not needed, sorted.
        made_up: Ids of nodes whose output is a placeholder, sorted.
        unasked: Ids of approvals that were to be rejected, and were not asked for so often, sorted.
    """

    outcome: RunState
    trace: tuple[Entry, ...]
    summary: str | None = None
    missing: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    made_up: tuple[str, ...] = ()
    unasked: tuple[str, ...] = ()

    def as_json(self) -> dict[str, JsonValue]:
        """Return the whole as an object, in the order in which it is read."""
        return {
            "outcome": self.outcome,
            "summary": self.summary,
            "missing": list(self.missing),
            "trace": [entry.as_json() for entry in self.trace],
        }
