"""Agents for runs of declared workflows in tests: functions that answer at once, and say so in a
file of witnesses.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from decimal import Decimal
from pathlib import Path

from pgflow.declare.durable.providers import Reply, Turn, TurnFailed


def witness(turn: Turn, said: str) -> None:
    """A line in the file of witnesses, on the disk before anything else happens."""
    with Path(turn.cwd, "witness").open("a") as file:
        file.write(f"{turn.key} {said}\n")
        file.flush()
        os.fsync(file.fileno())


def answer(turn: Turn) -> str:
    """Says what it was told; DONE in the third turn of a loop."""
    witness(turn, "begins")
    witness(turn, "ends")
    return f"{turn.prompt} DONE" if turn.key.endswith("#3") else turn.prompt


def slow_answer(turn: Turn) -> str:
    """The same, in a sixth of a second: there is time to die in it."""
    witness(turn, "begins")
    time.sleep(0.15)
    witness(turn, "ends")
    return f"{turn.prompt} DONE" if turn.key.endswith("#3") else turn.prompt


async def hanging(turn: Turn) -> str:
    """Says all that it was told but its last word, one word after the other, and then nothing for
    ever.
    """
    for word in turn.prompt.split()[:-1]:
        turn.tell("assistant", f"{word} ")
    await asyncio.Event().wait()
    raise AssertionError


def careful(turn: Turn) -> str:
    """The same, by an agent that keeps to its tools."""
    return answer(turn)


careful.honours = {"allowed_tools"}  # type: ignore[attr-defined]


def paid(turn: Turn) -> Reply:
    """Takes 40 cents a turn."""
    witness(turn, "begins")
    return Reply("done", usd=Decimal("0.40"), tokens=1000, model="small-1")


paid.honours = {"maxBudgetUsd"}  # type: ignore[attr-defined]


def talkative(turn: Turn) -> Reply:
    """Says all that it knows, also where it fails."""
    known = " ".join(f"{name}={value}" for name, value in turn.env.items() if "TOKEN" in name)
    if "fail" in turn.prompt:
        raise ValueError(known)
    books = {"model": known, "session": known, "usd": Decimal("0.01")}
    return Reply(known, {"said": [known]}, has_value="value" in turn.prompt, **books)  # type: ignore[arg-type]


def moody(turn: Turn) -> str:
    """Fails the second turn until there is a file that mends it."""
    witness(turn, "begins")
    if turn.key == "second" and not Path(turn.cwd, "mended").exists():
        raise ValueError("not now")
    return turn.prompt


def clumsy(turn: Turn) -> str:
    """Answers in JSON only when it is asked again."""
    return '```json\n{"ok": true}\n```' if ":reask#" in turn.key else "Yes, of course!"


def remembering(turn: Turn) -> Reply:
    """Goes on in a session, and says in which: each turn forks one of its own, named by its key."""
    witness(turn, f"in {turn.session}")
    if turn.session is not None and Path(turn.cwd, "forgotten").exists():
        raise TurnFailed(f"agent exited with code 1: No conversation found: {turn.session}")
    said = "wrong" if turn.schema is not None and "reask" not in turn.key else '{"n": 1}'
    return Reply(f"{said} DONE" if turn.key.endswith("#3") else said, session=f"s:{turn.key}")


remembering.honours = {"context"}  # type: ignore[attr-defined]


def scribe(turn: Turn) -> object:
    """Works in a workspace: answers with the hash of what it was told, and passes every check that
    does not find the word ``bad``.
    """
    witness(turn, "begins")
    if turn.key.endswith(":check") or ":check#" in turn.key:
        is_bad = "bad" in turn.prompt.split("answer was:")[1].split("Answer with")[0]
        return {"passed": not is_bad, "findings": ["it is bad"] if is_bad else []}
    if "bad" in turn.prompt and ":re" not in turn.key:
        return f"bad {turn.node}"
    if "worse" in turn.prompt and ":repair" in turn.key:
        return f"bad {turn.node}"
    return f"{turn.key} of {sorted(set(re.findall('begin ([^ ]+)', turn.prompt)))}"


def slow_scribe(turn: Turn) -> object:
    """The same, and it takes a moment."""
    said = scribe(turn)
    time.sleep(0.25)
    return said


def writer(turn: Turn) -> str:
    """Writes the output of its stage itself, and says that it has."""
    Path(turn.cwd, "stages", turn.node, "output", "result.md").write_text("all of it")
    return "I have written it."


def obliging(turn: Turn) -> object:
    """Does all that a stage asks for, whatever that is."""
    witness(turn, "begins")
    if turn.schema is not None:
        return {"passed": True}
    named = turn.prompt.partition("by these names: ")[2].partition("\n")[0]
    names = re.findall(r"(?:^|, )([^,]+?) \(", named)
    return dict.fromkeys(names, f"words of {turn.key}") or f"words of {turn.key}"


def moody_scribe(turn: Turn) -> object:
    """Works in a workspace, and fails its third stage until there is a file that mends it."""
    said = scribe(turn)
    if turn.node.startswith("03") and not Path(turn.cwd, "mended").exists():
        raise ValueError("not now")
    return said
