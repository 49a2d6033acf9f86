"""The log of an agent: its journal in the words of a conversation, and people's feedback on it.

Every provider of models speaks of messages, tool calls and tool results. The journal of a run has
them all, each as a unit of its own: a call is recorded before its body runs, each result when it
comes, a failure as one too, and a question to a person until it is answered. So a second log, which
could differ, is not needed. This module reads the journal in these words.

A branch is a run, or its continuation after a rewind. It shares its first part with the branch
before, whose units keep their ids there, and changes nothing of that branch.

Later feedback is kept beside the journal, not in it: an entity has feedback on units, and the names
of archived ones, with the history of both.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Literal, NamedTuple

import pgflow
from pgflow.inspect import (
    History,
    RunDetail,
    UnitRow,
    find_detail,
    find_entity,
    read_history,
)
from pgflow.inspect.question import Steps, question

Role = Literal["user", "assistant", "system"]
LogKind = Literal["message", "tool_call", "tool_result", "failure", "final"]

REMARKS = "pgflow.remarks"
"""Name of the entities that have what people say of a run."""


@dataclass
class Feedback:
    """Feedback of a person on a unit.

    Attributes:
        unit: Id of the unit.
        value: The feedback: anything JSON.
        by: Name of the person.
    """

    unit: str
    value: Any
    by: str


@pgflow.entities.entity(REMARKS)
@dataclass
class Remarks:
    """Words of people on the units of a run: the entity's key is that of the run.

    Attributes:
        feedback: Words on units, the oldest first. None is taken back.
        archived: Ids of units that are not to be shown to a model any more.
    """

    feedback: list[Feedback] = field(default_factory=list)
    archived: list[str] = field(default_factory=list)

    @pgflow.entities.update
    def note(self, unit: str, value: Any, by: str) -> int:
        """Adds a word on a unit, and returns how many there are."""
        self.feedback.append(Feedback(unit, value, by))
        return len(self.feedback)

    @pgflow.entities.update
    def archive(self, unit: str) -> bool:
        """Archives a unit; returns False if it was."""
        if unit in self.archived:
            return False
        self.archived.append(unit)
        return True

    @pgflow.entities.update
    def restore(self, unit: str) -> bool:
        """Takes a unit out of the archive; returns False if it was not there."""
        if unit not in self.archived:
            return False
        self.archived.remove(unit)
        return True


@dataclass(frozen=True)
class LogUnit:
    """A unit of the log.

    Attributes:
        id: Its id, unique among all units of all runs: the same after a rewind that keeps it, and
            that of the event where it was emitted (:class:`pgflow.streams.Event`).
        parent: Id of the unit before it in this branch; None for the first.
        role: ``user`` for people, ``assistant`` for the model, ``system`` for the workflow.
        kind: ``message``, ``tool_call``, ``tool_result``, ``failure`` or ``final``.
        name: Name of the step, signal, gate, workflow or stream; None for none.
        value: Message, request, result or error, as it is stored.
        ref: Of a result or a failure, the id of its call; of a call of a sub-agent, the key of its
            run, under which it has a log of its own.
        at: Time of it.
        is_owed: True for a call that has no result yet.
        is_archived: True if it was archived.
        feedback: Feedback of people on it.
    """

    id: str
    parent: str | None
    role: Role
    kind: LogKind
    name: str | None
    value: Any
    ref: str | None
    at: datetime
    is_owed: bool = False
    is_archived: bool = False
    feedback: tuple[Feedback, ...] = ()


class _Said(NamedTuple):
    """A part of a unit, in the words of the log."""

    role: Role
    kind: LogKind
    name: str | None
    value: Any
    call: int = 0
    suffix: str = ""
    ref: str | None = None


_RESULTS: dict[str, tuple[Role, LogKind]] = {
    "step_completed": ("system", "tool_result"),
    "entity_updated": ("system", "tool_result"),
    "effect_confirmed": ("system", "tool_result"),
    "effect_accepted": ("system", "tool_result"),
    "child_finished": ("system", "tool_result"),
    "gate_answered": ("user", "tool_result"),
    "step_failed": ("system", "failure"),
    "attempt_failed": ("system", "failure"),
    "effect_failed": ("system", "failure"),
    "effect_unknown": ("system", "failure"),
    "budget_refused": ("system", "failure"),
}
"""Events that say what a call has come to."""
_OPEN = {"attempt_failed", "effect_unknown"}
"""Those after which its result is still owed."""
_MESSAGES: dict[str, Role] = {
    "signal_received": "user",
    "update_taken": "user",
    "decision_recorded": "assistant",
    "emitted": "assistant",
}


def _said(unit: UnitRow) -> Iterator[_Said]:
    """Yield what a unit is in the words of the log. What is only the machine's says nothing."""
    event, payload = unit.event, unit.payload
    if event == "effect_intended":
        asked = payload.get("request") if isinstance(payload, dict) else payload
        yield _Said("assistant", "tool_call", unit.name, asked, unit.call)
    elif event == "gate_asked":
        yield _Said("assistant", "tool_call", unit.name, payload["request"], unit.call)
    elif event == "child_started":
        yield _Said("assistant", "tool_call", unit.name, None, unit.call, ref=payload["key"])
    elif event in _RESULTS:
        role, kind = _RESULTS[event]
        yield _Said(role, kind, unit.name, payload, unit.call)
    elif event in _MESSAGES:
        yield _Said(_MESSAGES[event], "message", unit.name, payload)
    for call, kind_of_step, name, *_ in unit.starts or ():
        if kind_of_step not in ("e", "d"):
            yield _Said("assistant", "tool_call", name, None, call, suffix=f".{call}")


def _continues(history: History) -> bool:
    return any(unit.event == "continued" for unit in reversed(history.units))


@question
def read_log(key: str, *, tenant: str = "") -> Steps[list[LogUnit]]:
    """Ask for the log of a run as it is now: without what a rewind has dropped, and over all
    generations that have continued as new.

    Args:
        key: Key of the run.
        tenant: Tenant of the run.

    Raises:
        RunNotFound: No run has the key.
    """
    detail = yield from find_detail(key, tenant=tenant)
    newest = yield from read_history(key, tenant=tenant)
    histories = {newest.generation: newest}
    parts = [newest.generation]
    for generation in range(newest.generation - 1, 0, -1):
        before = yield from read_history(key, generation, tenant=tenant)
        histories[generation] = before
        if _continues(before):
            parts.insert(0, generation)
    remarks = yield from find_entity(REMARKS, key)
    return _with_remarks(_log(detail, histories, parts), remarks and remarks.state)


def _log(detail: RunDetail, histories: dict[int, History], parts: list[int]) -> list[LogUnit]:
    log: list[LogUnit] = []
    newest = max(histories)

    def add(unit_id: str, said: _Said, ref: str | None, at: datetime) -> None:
        parent = log[-1].id if log else None
        log.append(LogUnit(unit_id, parent, said.role, said.kind, said.name, said.value, ref, at))

    for generation in parts:
        history = histories[generation]
        if generation == newest:  # the question, or the summary with which it continues
            role: Role = "user" if len(parts) == 1 else "system"
            asked = _Said(role, "message", detail.workflow, detail.input)
            began = generation  # where a rewind of it had begun, too
            while began > 1 and began - 1 not in parts:
                began -= 1
            add(f"{histories[began].run_id or detail.run_id}-0", asked, None, history.began_at)
        calls: dict[int, int] = {}
        for unit in history.units:
            for said in _said(unit):
                origin = histories[_origin(histories, generation, unit)]
                unit_id = f"{origin.run_id}-{unit.seq}{said.suffix}"
                ref = said.ref
                if said.kind == "tool_call":
                    calls[said.call] = len(log)
                elif said.call in calls:
                    asked_at = calls[said.call]
                    ref = log[asked_at].id
                    log[asked_at] = replace(log[asked_at], is_owed=unit.event in _OPEN)
                add(unit_id, said, ref, unit.at)
                if said.kind == "tool_call":
                    log[-1] = replace(log[-1], is_owed=True)
    if detail.finished_at is not None:
        end = (
            _Said("assistant", "final", detail.workflow, detail.output)
            if detail.status == "completed"
            else _Said("system", "failure", detail.workflow, detail.error or detail.why)
        )
        add(f"{detail.run_id}-end", end, None, detail.finished_at)
    return log


def _origin(histories: dict[int, History], generation: int, unit: UnitRow) -> int:
    """Return the generation in which a unit was recorded that later ones may have, too."""
    while unit.is_inherited and generation - 1 in histories:
        before = histories[generation - 1].units
        if not 0 < unit.seq <= len(before):
            break
        generation, unit = generation - 1, before[unit.seq - 1]
    return generation


def _with_remarks(log: list[LogUnit], state: Any) -> list[LogUnit]:
    if not isinstance(state, dict):
        return log
    archived = set(state.get("archived", ()))
    words: dict[str, list[Feedback]] = {}
    for word in state.get("feedback", ()):
        words.setdefault(word["unit"], []).append(Feedback(**word))
    return [
        replace(unit, is_archived=unit.id in archived, feedback=tuple(words.get(unit.id, ())))
        for unit in log
    ]
