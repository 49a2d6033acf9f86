"""Talk inside a step: an agent asks the user, or has another SOP carried out, and is called again
with the answer.

An agent asks between tags at the end of its answer. Elsewhere the tags mean nothing, so an agent
may quote its instructions. Each call is a turn of its own, and its prompt has all of the talk so
far: agents need no memory, and a worker that dies loses one turn.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pydantic import JsonValue

from pgflow.declare.graph import Node
from pgflow.declare.sop.chaining import stem
from pgflow.declare.text.tags import attribute, tagged

MOST_TURNS: Final = 100
"""Most turns of one step."""

_RUN: Final = re.compile(r'\s+name="([^"<>\n]{1,200})"\s*>(.*)', re.DOTALL)


@dataclass(frozen=True, slots=True)
class Question:
    """The agent asks the user."""

    said: str
    text: str


@dataclass(frozen=True, slots=True)
class Errand:
    """A request of the agent to carry out another SOP.

    Args:
        said: Words of the agent before it.
        name: Name of the SOP.
        message: The user's message to it.
        inputs: Values of its parameters.
    """

    said: str
    name: str
    message: str
    inputs: Mapping[str, JsonValue]


def wish_of(text: str) -> Question | Errand | None:
    """Return the wish with which an answer ends; None if the answer is all there is.

    Args:
        text: The answer.
    """
    asked = _at_end(text, "ask-user")
    if asked is not None and asked[1].startswith(">") and asked[1][1:].strip():
        return Question(asked[0], asked[1][1:].strip())
    errand = _at_end(text, "run-sop")
    found = _RUN.fullmatch(errand[1]) if errand is not None else None
    if errand is None or found is None:
        return None
    told = found[2].strip()
    try:
        value = json.loads(told) if told.startswith("{") else None
    except (ValueError, RecursionError):
        value = None
    inputs = value if isinstance(value, dict) else {}
    return Errand(errand[0], found[1], "" if inputs else told, inputs)


def _at_end(text: str, tag: str) -> tuple[str, str] | None:
    """Return the words before a tag that ends a text, and what follows its name."""
    text, closing = text.rstrip(), f"</{tag}>"
    start = text.rfind(f"<{tag}") if text.endswith(closing) else -1
    if start < 0:
        return None
    return text[:start].rstrip(), text[start + len(tag) + 1 : -len(closing)]


def others_of(node: Node) -> dict[str, str]:
    """Return the other SOPs that a step names: their files, by name."""
    return {
        stem(use.location): use.location
        for use in node.reads
        if use.scope == "sop" and use.location
    }


def may_ask(node: Node) -> bool:
    """Return True if the agent of a step may ask the user."""
    return any(gate.kind == "question" for gate in node.gates)


def told(prompt: str, talk: list[str], *, asks: bool, others: Mapping[str, str]) -> str:
    """Return the prompt of a turn: the step's, the talk so far, and how to ask more.

    Args:
        prompt: The step's.
        talk: The talk so far.
        asks: True if the agent may ask the user.
        others: The SOPs that it may have carried out.
    """
    parts = [prompt.rstrip()]
    if talk:
        said = "\n".join(talk)
        parts.append(
            f"This was said in this step so far. Go on from there.\n\n<talk>\n{said}\n</talk>"
        )
    if asks:
        parts.append(_ASK)
    if others:
        names = ", ".join(f'"{attribute(name)}"' for name in others)
        parts.append(_RUN_SOP.format(names=names))
    if asks or others:
        parts.append(
            "An answer that does not end like this ends the step, and the next step reads it."
        )
    return "\n\n".join(parts) + "\n"


_ASK: Final = (
    "To ask the user, end your answer with the question between these tags, and wait: you are "
    "called again with what the user says.\n\n<ask-user>...</ask-user>"
)
_RUN_SOP: Final = (
    "To have another SOP carried out ({names}), end your answer with its name and what it is told: "
    "words, or a JSON object of its parameters. You are called again with what came of it.\n\n"
    '<run-sop name="...">...</run-sop>'
)


def heard(wish: Question | Errand, answer: str, tag: str = "user-said") -> list[str]:
    """Lines of the talk about a wish: the agent's words, and the answer.

    Args:
        wish: The wish.
        answer: The answer.
        tag: Tag that says whose it is.
    """
    asked = (
        wish.text
        if isinstance(wish, Question)
        else f"SOP {wish.name}: {wish.message or json.dumps(dict(wish.inputs))}"
    )
    said = f"{wish.said}\n\n{asked}" if wish.said else asked
    return [tagged("you-said", said), tagged(tag, answer)]
