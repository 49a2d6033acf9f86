"""Turns of agents: each a decision of the journal, with the model, its cost and the hash of what it
was told; and outputs that must fit a schema, which are asked for again if they do not.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Final

from pydantic import JsonValue

import pgflow
from pgflow.declare.durable.bodies import Done
from pgflow.declare.durable.providers import Reply, Turn, TurnFailed
from pgflow.declare.text.javascript import json_text, parse_json, trim
from pgflow.declare.text.outputs import fenced

MOST_REASKS: Final = 3
_EXHAUSTED: Final = ("credit balance is too low", "credit exhausted")


Asker = Callable[[Turn], Awaitable[Reply]]
"""Has a provider take a turn; called in the bodies of steps only."""


async def take_turn(ask: Asker, turn: Turn) -> Done:
    """Take a turn as a decision; and if its answer does not fit the node's schema, others.

    Args:
        ask: Has it taken.
        turn: The turn.
    """
    done, errors = await _take(ask, turn), ""
    for number in range(1, MOST_REASKS + 1):
        if turn.schema is None or done.error is not None:
            return done
        done, errors = _fitted(done, turn.schema)
        if not errors:
            return done
        asked = replace(
            turn,
            key=f"{turn.key}:reask#{number}",
            prompt=f"{turn.prompt}\n\nYour last answer did not fit: {errors}\n"
            f"Answer with one JSON value that fits this schema, and nothing else:\n"
            f"{json_text(turn.schema)}",
        )
        done = await _take(ask, asked)
    if done.error is None and turn.schema is not None:
        done, errors = _fitted(done, turn.schema)
    if errors:
        return Done(error=f"the answer does not fit output_format: {errors}")
    return done


async def turn_once(ask: Asker, turn: Turn) -> Done:
    """Take a turn that acts on the world: nobody knows what an agent that failed has done."""
    try:
        reply = await ask(turn)
    except TurnFailed as error:
        return Done(error=str(error)[:4000], unknown=True)
    done = _done(reply.text, reply.value, has_value=reply.has_value)
    if turn.schema is None or done.error is not None:
        return done
    done, errors = _fitted(done, turn.schema)
    return Done(error=f"the answer does not fit output_format: {errors}") if errors else done


async def _take(ask: Asker, turn: Turn) -> Done:
    """Take one turn as a step. A turn that was not taken is an outcome of it; what else is raised
    is trouble of the machine, and tried again.
    """

    async def body(prompt: str) -> pgflow.Choice[dict[str, Any]]:
        digest = hashlib.sha256(prompt.encode("utf-8", "surrogatepass")).hexdigest()
        evidence = [f"prompt sha256:{digest}"]
        try:
            reply = await ask(turn)
        except TurnFailed as error:
            said = Done(error=str(error)[:4000])
            return pgflow.Choice(said.model_dump(), "the turn failed", evidence)
        return pgflow.Choice(
            _done(reply.text, reply.value, has_value=reply.has_value).model_dump(),
            "the answer of the agent",
            evidence,
            model=reply.model,
            usage=pgflow.Usage(reply.usd, reply.tokens),
        )

    body.__name__ = turn.key
    decided = await pgflow.decision(retries=3)(body)(turn.prompt)
    return Done.model_validate(decided.value)


def _done(text: str, value: JsonValue, *, has_value: bool) -> Done:
    """The outcome of a node whose agent answered: one that says nothing has failed."""
    text = text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()
    if any(sign in text.lower() for sign in _EXHAUSTED) and len(text) < 500:
        return Done(error=f"credit exhaustion: {trim(text)}")
    if has_value:
        return Done(text=json_text(value), value=value, has_value=True)
    if not trim(text):
        return Done(error="the agent said nothing")
    return Done(text=text)


def _fitted(done: Done, schema: JsonValue) -> tuple[Done, str]:
    """An answer as the value that its schema asks for, and what is wrong with it, if anything."""
    if done.has_value:
        value = done.value
    else:
        try:
            value = parse_json(fenced(done.text) or done.text)
        except ValueError as error:
            return done, f"it is no JSON: {error}"
    wrong = _misfits(value, schema)
    if wrong:
        return done, wrong
    return Done(text=json_text(value), value=value, has_value=True), ""


def _misfits(value: JsonValue, schema: Any) -> str:
    """Return the faults of a value; nothing for a schema that is none itself."""
    import jsonschema
    from jsonschema.validators import validator_for

    try:
        validator = validator_for(schema)(schema)
        validator.check_schema(schema)
    except (jsonschema.SchemaError, AttributeError, TypeError):
        return ""
    errors = [error.message for error in validator.iter_errors(value)]
    return "; ".join(errors[:5])[:1000]
