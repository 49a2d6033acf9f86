"""Prompts of a stage's turns: to work, to present, to check and to revise.

The author's contract comes first. Words of people and agents come after it, as quotations.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Final

from pydantic import JsonValue

from pgflow.declare.durable.frozen import Stage
from pgflow.declare.graph import Check, Effect, Gate
from pgflow.declare.text.javascript import json_text

VERDICT: Final[JsonValue] = {
    "type": "object",
    "properties": {
        "passed": {"type": "boolean"},
        "findings": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["passed"],
}
"""Schema of the checker's answer on a stage."""

_MOST_CHARS: Final = 20_000


def joined(*parts: str) -> str:
    """Paragraphs of a prompt; empty ones are left out."""
    return "\n\n".join(part for part in parts if part)


def digest(prompt: str) -> str:
    """Return the hash of a prompt."""
    return hashlib.sha256(prompt.encode("utf-8", "surrogatepass")).hexdigest()


def whole(contract: str, stage: Stage, message: str) -> str:
    """Return the first prompt of a stage's agent.

    Args:
        contract: The author's text.
        stage: The stage's files.
        message: Message of the person who started the run.
    """
    asked = f"The person who started this says: {message}" if message else ""
    return joined(contract, asked, _where(stage))


def _where(stage: Stage) -> str:
    """Return the place of the agent's work."""
    if not stage.writes:
        return ""
    if len(stage.writes) == 1:
        return (
            f"Write {stage.writes[0].location} (from the workspace), or answer with its whole text "
            "and nothing else."
        )
    named = ", ".join(f"{file.name} ({file.location})" for file in stage.writes)
    return (
        f"Write these files (paths from the workspace), or answer with one JSON object that has "
        f"their whole texts by these names: {named}."
    )


def heard(values: dict[str, JsonValue]) -> str:
    """Return messages from outside, a line each."""
    return "\n".join(f"Message {name}: {json_text(value)}" for name, value in values.items())


def up_to(gate: Gate) -> str:
    """Return the order to work up to a checkpoint, and to stop there."""
    after = (
        f"Do the process up to and including step {gate.after_step}"
        if gate.after_step
        else ("Do the process up to this checkpoint")
    )
    return f"{after}, and stop there: a person decides how you go on. Present: {gate.presents}"


def decided(presented: str, said: str) -> str:
    """Return words on a checkpoint: those of the agent, and of the person who decided."""
    words = said or "go on"
    return f"You have presented:\n\n{_cut(presented)}\n\nThe person who decides says: {words}"


def again(said: str, notes: str) -> str:
    """Return the prompt to revise an answer.

    Args:
        said: The agent's last words.
        notes: Faults of it.
    """
    return (
        f"You have done this stage before, and it is sent back to you. Mend it.\n\n"
        f"Your last answer:\n\n{_cut(said)}\n\nWhat is to be mended:\n\n{_cut(notes)}"
    )


def to_check(stage_id: str, checks: Iterable[Check], said: str) -> str:
    """Return the order to check what a stage has made."""
    rows = "\n".join(
        f"- {check.check}" + (f": passes if {check.passes_if}" if check.passes_if else "")
        for check in checks
    )
    return (
        f"Check the work of stage {stage_id}. Change nothing.\n\n{rows}\n\n"
        f"The agent's answer was:\n\n{_cut(said)}\n\n"
        "Answer with one JSON object: passed (true if every check passes) and findings (a list of "
        "sentences, one for each check that does not)."
    )


def to_act(effects: Iterable[Effect], keys: dict[str, JsonValue]) -> str:
    """Return the acts on other systems that a turn is meant to do, with their keys."""
    rows = []
    for effect in effects:
        key = keys.get(effect.idempotency_key or "")
        under = f", under the idempotency key {json_text(key)}" if key is not None else ""
        rows.append(f"- {effect.system}{under}. {effect.description}".rstrip())
    return "In this turn you act on:\n" + "\n".join(rows) if rows else ""


def to_undo(stage_id: str, system: str, instruction: str, said: str) -> str:
    """Return the order to take back what a stage has done."""
    return (
        f"The workflow has failed after stage {stage_id} had acted on {system}. Take that back: "
        f"{instruction}\n\nThe stage said:\n\n{_cut(said)}"
    )


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_CHARS else f"{text[:_MOST_CHARS]}\n(cut)"
