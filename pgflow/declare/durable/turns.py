"""Turns of agents. Each is a decision of the journal, with the model, its cost and the hash of its
prompt. An output that does not fit its schema is asked for again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, Final

from pydantic import BaseModel, JsonValue

import pgflow
from pgflow.declare.durable.bodies import Done
from pgflow.declare.durable.folders import Folders
from pgflow.declare.durable.long import READABLE
from pgflow.declare.durable.processes import KeeperLost, Mask
from pgflow.declare.durable.providers import Reply, Turn, TurnFailed
from pgflow.declare.durable.results import NodeFailed
from pgflow.declare.durable.schemas import misfits
from pgflow.declare.text.answers import meant
from pgflow.declare.text.javascript import json_text, parse_json, trim
from pgflow.declare.text.outputs import fenced
from pgflow.errors import BudgetExceeded

MOST_REASKS: Final = 3
_TRIES: Final = 3
_EXHAUSTED: Final = ("credit balance is too low", "credit exhausted")


class _Taken(BaseModel):
    """A turn that was taken: its answer, the generation of the run that has it, and its cost."""

    done: Done
    generation: int
    model: str | None = None
    usd: Decimal = Decimal(0)
    tokens: int = 0


Asker = Callable[[Turn], Awaitable[Reply]]
"""Has a provider take a turn; called in the bodies of steps only."""


async def take_turn(
    ask: Asker, turn: Turn, folders: Folders, *, has_budget: bool = False, is_step: bool = True
) -> Done:
    """Take a turn as a decision; and if its answer does not fit the node's schema, others.

    Args:
        ask: Has it taken.
        turn: The turn.
        folders: Folders of the run, for an answer that is too long for the journal.
        has_budget: True if the pool of the run is asked first.
        is_step: True if its answer is a step's, which a retry keeps; False in runs of before.
    """
    taker = _Taker(ask, folders, has_budget=has_budget, is_step=is_step)
    try:
        return await _taken(taker, turn)
    except NodeFailed as error:
        return Done(error=str(error))
    except BudgetExceeded as error:
        return Done(error=f"budget exceeded: {error}")


@dataclass(frozen=True, slots=True)
class _Taker:
    """Takes single turns."""

    ask: Asker
    folders: Folders
    has_budget: bool
    is_step: bool


async def _taken(taker: _Taker, turn: Turn) -> Done:
    """Take a turn, and those that ask again.

    Raises:
        NodeFailed: One was not taken, or the last does not fit either.
        BudgetExceeded: The pool does not admit one.
    """
    asked, session = turn, None
    for number in range(1, MOST_REASKS + 2):
        is_last = number > MOST_REASKS
        done = await _take(taker, asked, is_last=is_last)
        if turn.schema is None:
            return done
        # A later turn goes on in the session of the first try, without what was asked again.
        session = done.session if number == 1 else session
        done, errors = _fitted(done, turn.schema)
        if not errors:
            return done.model_copy(update={"session": session})
        asked = replace(
            turn,
            key=f"{turn.key}:reask#{number}",
            prompt=f"{turn.prompt}\n\nYour last answer did not fit: {errors}\n"
            f"Answer with one JSON value that fits this schema, and nothing else:\n"
            f"{json_text(turn.schema)}",
            session=None,
        )
    raise AssertionError("the last turn fits, or has failed")


async def turn_once(ask: Asker, turn: Turn, folders: Folders) -> Done:
    """Take a turn that acts on the world. If it fails, its outcome is unknown. Return the answer as
    the journal has it.
    """
    try:
        reply = await ask(turn)
    except TurnFailed as error:
        charge(error.spent)
        return Done(error=str(error)[:4000], unknown=True)
    charge(reply)
    done = _meant(_done(reply.text, reply.value, has_value=reply.has_value), turn.schema)
    done = done.model_copy(update={"session": reply.session})
    if turn.schema is not None and done.error is None:
        done, errors = _fitted(done, turn.schema)
        if errors:
            return Done(error=f"the answer does not fit output_format: {errors}")
    return done.shortened(folders)


async def _take(taker: _Taker, turn: Turn, *, is_last: bool) -> Done:
    """Take one turn as a step, whose answer a later generation of the run may keep, and record it
    as a decision. What a provider does not do is the step's failure, so a retry of the run takes
    the turn again.
    """

    async def body(prompt: str) -> _Taken:  # noqa: ARG001 - an equal prompt gets this answer
        return await _answer(taker.ask, turn, taker.folders, is_last=is_last)

    async def decide(prompt: str) -> pgflow.decisions.Choice[dict[str, Any]]:
        return _choice(prompt, await body(prompt))

    admits = pgflow.authority.Admit(usd=Decimal(str(turn.max_usd or 0)))
    if not taker.is_step:
        decide.__name__ = turn.key
        take = pgflow.decisions.decision(retries=1)(decide)
        decided = await (take.options(admit=admits) if taker.has_budget else take)(turn.prompt)
        return Done.model_validate(decided.value).whole()
    body.__name__ = turn.key
    step = pgflow.step(retries=1)(body)
    taken = await (step.options(admit=admits) if taker.has_budget else step)(turn.prompt)

    async def record(prompt: str) -> pgflow.decisions.Choice[dict[str, Any]]:
        return _choice(prompt, taken)

    record.__name__ = turn.key
    with suppress(BudgetExceeded):  # of a hard pool: the cost is in the books
        await pgflow.decisions.decision(retries=1)(record)(turn.prompt)
    return taken.done.whole()


async def _answer(ask: Asker, turn: Turn, folders: Folders, *, is_last: bool) -> _Taken:
    """Have a turn taken.

    Raises:
        NodeFailed: It failed, or its answer is useless.
    """
    try:
        reply = await _asked(ask, turn)
    except TurnFailed as error:
        charge(error.spent)
        raise NodeFailed(str(error)[:4000]) from None
    charge(reply)
    done = _meant(_done(reply.text, reply.value, has_value=reply.has_value), turn.schema)
    if done.error is not None:
        raise NodeFailed(done.error)
    done = done.model_copy(update={"session": reply.session})
    if is_last and turn.schema is not None and (wrong := _fitted(done, turn.schema)[1]):
        raise NodeFailed(f"the answer does not fit output_format: {wrong}")
    return _Taken(
        done=done.shortened(folders),
        generation=pgflow.run_info().generation,
        model=reply.model,
        usd=reply.usd,
        tokens=reply.tokens,
    )


def _choice(prompt: str, taken: _Taken) -> pgflow.decisions.Choice[dict[str, Any]]:
    """Return an answer as a decision; one that another generation has paid for costs nothing
    here.
    """
    digest = hashlib.sha256(prompt.encode("utf-8", "surrogatepass")).hexdigest()
    is_paid = taken.generation != pgflow.run_info().generation
    return pgflow.decisions.Choice(
        taken.done.model_dump(),
        "the answer of the agent",
        [f"prompt sha256:{digest}"],
        model=taken.model,
        usage=None if is_paid else pgflow.decisions.Usage(taken.usd, taken.tokens),
    )


async def _asked(ask: Asker, turn: Turn) -> Reply:
    """Have a turn taken, and again if the machine gets into trouble."""
    for left in reversed(range(_TRIES)):
        try:
            return await ask(turn)
        except (KeeperLost, OSError):
            if not left:
                raise
    raise AssertionError("it was taken, or has failed")


def charge(reply: Reply | None) -> None:
    """Record the cost of a turn on the pool of the run, also of one that failed."""
    if reply is not None and (reply.usd or reply.tokens):
        pgflow.authority.charge(usd=reply.usd, tokens=reply.tokens, model=reply.model)


def masked(reply: Reply, secrets: tuple[str, ...]) -> Reply:
    """Return an answer without the secrets that its agent was given."""
    if not secrets:
        return reply
    mask = Mask(secrets)
    return replace(
        reply,
        text=mask.text(reply.text),
        value=_masked(reply.value, mask),
        model=reply.model and mask.text(reply.model),
        session=reply.session and mask.text(reply.session),
    )


def _masked(value: JsonValue, mask: Mask) -> JsonValue:
    if isinstance(value, str):
        return mask.text(value)
    if isinstance(value, list):
        return [_masked(part, mask) for part in value]
    if isinstance(value, dict):
        return {mask.text(name): _masked(part, mask) for name, part in value.items()}
    if isinstance(value, int | float) and (masked := mask.text(f"{value}")) != f"{value}":
        return masked
    return value


def _done(text: str, value: JsonValue, *, has_value: bool) -> Done:
    """Return the outcome of a node whose agent answered. An empty answer has failed."""
    text = text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()
    if any(sign in text.lower() for sign in _EXHAUSTED) and len(text) < 500:
        return Done(error=f"credit exhaustion: {trim(text)}")
    output = json_text(value) if has_value else text
    if (size := len(output.encode("utf-8", "replace"))) > READABLE:
        return Done(error=f"the agent's answer has {size} bytes, more than {READABLE >> 20} MiB")
    if has_value:
        return Done(text=output, value=value, has_value=True)
    if not trim(text):
        return Done(error="the agent's answer is empty")
    return Done(text=text)


def _meant(done: Done, schema: JsonValue) -> Done:
    """An answer as the object that it nearly is, where one is asked for: no turn is paid again for
    a word before it.
    """
    if schema is None or done.has_value or done.error is not None:
        return done
    if not _fitted(done, schema)[1] or (value := meant(done.text)) is None:
        return done
    return Done(text=json_text(value), value=value, has_value=True)


def _fitted(done: Done, schema: JsonValue) -> tuple[Done, str]:
    """Return an answer as the value that its schema asks for, and the reason why it does not fit;
    empty if it does.
    """
    if done.has_value:
        value = done.value
    else:
        try:
            value = parse_json(fenced(done.text) or done.text)
        except ValueError as error:
            return done, f"it is not JSON: {error}"
    wrong = misfits(value, schema)
    if wrong:
        return done, wrong
    return Done(text=json_text(value), value=value, has_value=True, session=done.session), ""
