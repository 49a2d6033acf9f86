"""``pgflow gates``, and a person's answer to one: approve, edit, reject, escalate...."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from pgflow import inspect
from pgflow.console.output import Column, table, until
from pgflow_cli.look.database import Database
from pgflow_cli.look.declaring import Made, arg, opt
from pgflow_cli.look.failures import NEEDS_A_PERSON, Ended, Mistake
from pgflow_cli.look.options import Answer, ExitCode, OptionalKey, Rows, operator
from pgflow_cli.look.parsing import parse_json, refuse_empty
from pgflow_cli.look.selection import ENDED, find_run, see

if TYPE_CHECKING:
    from pgflow import authority

Gate = Annotated[
    str,
    arg(
        "Key of the gate, as `pgflow gates` shows it, or of a run that waits at one.",
        metavar="GATE",
    ),
]
Words = Annotated[
    list[str] | None,
    arg(
        "Words that go with it; a first one that names a node which asks says which gate.",
        metavar="WORDS",
    ),
]
By = Annotated[
    str | None,
    opt(
        "Who answers; by default your login and the machine: ann@host. A role that does "
        "not speak for others answers in its own name.",
        metavar="NAME",
        callback=refuse_empty,
    ),
]
To = Annotated[str, opt("Who must answer instead.", metavar="NAME", callback=refuse_empty)]
Why = Annotated[str | None, opt("The reason, kept with the answer.")]

_NAMES = (
    "gate", "key", "workflow", "name", "asked_at", "expires_at", "approvers", "quorum", "answers",
    "request", "payload_hash", "edited", "needs_value", "on_timeout", "escalate", "decision", "why",
    "evidence", "path",
)  # fmt: skip


def gates(
    db: Rows,
    key: OptionalKey = None,
    *,
    asks: Annotated[str | None, opt("--for", metavar="NAME")] = None,
    wanted: ExitCode = False,
) -> None:
    """Lists the gates that wait for an answer.

    Each row shows who is asked, for what, since when and until when. JSON has all of each gate: the
    exact request and its hash, the answers so far, and the decision that it rests on.

    Args:
        asks: Only those that this name or role may answer.
    """
    if key is not None:
        find_run(db, key)
    found = db.ask(inspect.list_gates(key, asks=asks, limit=None)).items
    columns = table(
        "RUN!/255 ASKED=asked_at ENDS ASKS/30 NAME=name/30@110 gate!/255@120 request~*200@110",
        db.now,
        RUN=lambda gate: " > ".join(gate.path),
        ENDS=lambda gate: until(gate.expires_at, db.now, "in 0ms"),
        ASKS=lambda gate: ", ".join(gate.approvers) or "anybody",
    )
    if any(gate.why for gate in found):
        columns.insert(-1, Column("WHY", "why", most=60))
    db.print(found, columns, "No gate waits for an answer.", _NAMES)
    if wanted and found:
        raise Ended(NEEDS_A_PERSON)


# ---------------------------------------------------------------- answers


@dataclass(frozen=True)
class AskedGate:
    """A gate as a command line names it, and the person who answers.

    Args:
        node: Gate of the run, by its name or that of its node, if it waits at several.
        payload_hash: The answer counts only for the request with this hash.
        roles: A role of the person who answers; may be given again.
    """

    named: Gate
    db: Answer
    node: Annotated[str | None, opt(metavar="NAME", callback=refuse_empty)] = None
    payload_hash: Annotated[str | None, opt("--hash", metavar="HASH")] = None
    by: By = None
    roles: Annotated[list[str] | None, opt("--as", metavar="ROLE", callback=refuse_empty)] = None
    why: Why = None

    def answer(self, verdict: str, words: tuple[str, ...] = (), value: Any = None) -> None:
        """Send an answer, and print what has become of the run.

        Args:
            verdict: ``approve``, ``reject``, ``respond``, ``edit``, ``escalate`` or ``take_over``.
            words: Words of the person; the first may be the node that asks.
            value: Argument of a verdict: a value, or the name of another person.
        """
        from pgflow.errors import RunNotFound

        db, by = self.db, self.by or own_name(self.db)
        asked, words = self._find(words)
        key = self.named if asked is None else asked.gate
        answer, verdict = make_answer(verdict, words, value, asked, self.why or "")
        db.client.answer(
            key, answer, by=by, payload_hash=self.payload_hash, acting_as=self.roles or None
        )
        still = db.ask(inspect.find_gate(key))
        try:
            run = db.ask(inspect.find_run(key if asked is None else asked.key))
        except RunNotFound:
            raise Mistake(f"the history of the run of gate {key} was removed meanwhile") from None
        row = {"gate": key, "verdict": verdict, "by": by, "key": run.key, "status": run.status}
        what = key if asked is None else f"{asked.name} of {run.key}"
        text = f"Answered {what}: {verdict}. Run {run.key} is {run.status}."
        if still is not None:
            text = f"Approved by {len(_approvals(still))} of {still.quorum}: {what}"
        self.db.answer({**row, "open": still is not None}, text)

    def _find(self, words: tuple[str, ...]) -> tuple[inspect.GateRow | None, tuple[str, ...]]:
        """Return the open gate, and the words without the node that they begin with. The gate is
        None if there is none.

        Raises:
            Mistake: The run waits at several or has ended, or the words begin with a node whose
                gate was answered. They are not taken for an answer to another gate.
        """
        ask, named, node = self.db.ask, self.named, self.node
        if (found := ask(inspect.find_gate(named))) is not None:
            return found, words
        below = ask(inspect.list_gates_below(named))
        open_gates = [one for one in below if one.key == named] or below
        first = words[0] if words else None
        if node is None and any(_is_of(one.name, first) for one in open_gates):
            node, words = first, words[1:]
        elif node is None and first is not None and open_gates:
            answered = any(_is_of(name, first) for name in ask(inspect.list_gate_names(named)))
            if answered:
                rest = _listed(open_gates)
                raise Mistake(f"gate {first!r} of run {named!r} was answered: {rest}")
        meant = [one for one in open_gates if node is None or _is_of(one.name, node)]
        if open_gates and not meant:
            raise Mistake(f"run {named!r} waits at no gate {node!r}: {_listed(open_gates)}")
        if len(meant) > 1:
            raise Mistake(f"run {named!r} waits at several gates: {_listed(meant)}")
        if not meant:
            refuse_ended(self.db, named)
        return (meant[0] if meant else None), words


def make_answer(
    verdict: str, words: tuple[str, ...], value: Any, asked: inspect.GateRow | None, why: str
) -> tuple[authority.Answer, str]:
    """Return an answer as this gate takes it, and its verdict. Words and decisions are an edit of a
    request that has a place for them; else words are the reason.

    Raises:
        Mistake: The gate does not offer the decision, or none is given.
    """
    from pgflow.authority import Approve, Escalate, Reject, TakeOver

    if verdict == "escalate":
        return Escalate(value, why), verdict
    if verdict == "take_over":
        return TakeOver(value, why), verdict
    if verdict == "edit":
        return Approve(value, why), "approve"
    request = asked.request if asked is not None and isinstance(asked.request, dict) else {}
    decision = None
    if verdict == "respond":
        if not words:
            raise Mistake("name the decision after the node")
        (verdict, *rest), offered = words, request.get("decisions") or ()
        words = tuple(rest)
        if verdict not in ("approve", "reject"):
            verdict, decision = "approve", verdict
            if asked is not None and decision not in offered:
                has = ", ".join(map(str, offered)) or "approve, reject"
                raise Mistake(f"gate {asked.name!r} offers no {decision!r}: it offers {has}")
    text = " ".join(words)
    if verdict == "reject":
        return Reject(why or text), verdict
    if "response" not in request:
        return Approve(comment=why or text), verdict
    edit = {name: word for name, word in (("response", text), ("decision", decision)) if word}
    return Approve(edit or None, why), verdict


def own_name(db: Database) -> str:
    """Return the name to answer as: that of the person at the terminal if the role of the
    connection may speak for people, else the role itself.
    """
    return operator() if db.ask(inspect.speaks_for_others()) else db.connection.info.user


def refuse_ended(db: Database, word: str) -> None:
    """Refuse the key of a run that has ended where that of a gate is asked for.

    Raises:
        Mistake: It has.
    """
    from pgflow.errors import RunNotFound

    try:
        found = db.ask(inspect.find_run(word))
    except RunNotFound:
        return
    if found.status in ENDED:
        text = f"run {word!r} is {found.status} and waits at no gate; nothing was answered"
        raise Mistake(f"{text}. {see(word)}")


def _is_of(gate: str, name: str | None) -> bool:
    """Return True for the name of a gate, or of the node that asks there, in any round."""
    node = re.sub(r"#[0-9]+", "", gate).partition(":")[0]
    return name in (gate, node, node.rpartition("/")[2])


def _listed(several: list[inspect.GateRow]) -> str:
    named = ", ".join(f"{one.name} ({one.gate})" for one in several)
    return f"name the node, or the gate by its key: {named}"


def _approvals(gate: inspect.GateRow) -> list[str]:
    """Return the names of those who have approved what the gate asks now."""
    names: list[str] = []
    for answer in gate.answers:
        if answer["verdict"] == "approve" and answer["refusal"] is None:
            names = [answer["by"]] if answer["value"] is not None else [*names, answer["by"]]
    return names


# ---------------------------------------------------------------- commands


Asked = Annotated[AskedGate, Made(AskedGate)]


def approve(gate: Asked, words: Words = None) -> None:
    """Approves what a gate asks.

    Words are the response, where a workflow file asks for one, and else the reason.
    """
    gate.answer("approve", tuple(words or ()))


def respond(
    gate: Asked, decision: Annotated[str, arg(metavar="DECISION")], words: Words = None
) -> None:
    """Answers a gate with one of the decisions it offers.

    This is for approvals of workflow files. Words are the text that goes with the decision.

    Args:
        decision: One that the gate offers, or approve, or reject.
    """
    gate.answer("respond", (decision, *(words or ())))


def edit(gate: Asked, value: Annotated[str, arg(metavar="JSON")]) -> None:
    """Approves an edited version of the request.

    What does not fit the type of its request is refused: exit code 2, and the gate stays open. Of a
    gate that asks for a value, this brings it.

    Args:
        value: Request to approve instead, in JSON, @FILE, or - for standard input.
    """
    edited = parse_json(value, "the edit")
    if edited is None:
        raise Mistake("the edit cannot be null: `pgflow approve` approves the request as it is")
    gate.answer("edit", value=edited)


def reject(gate: Asked, words: Words = None) -> None:
    """Rejects what a gate asks.

    One is enough, however many must approve. Words are the reason.
    """
    gate.answer("reject", tuple(words or ()))


def escalate(gate: Asked, to: To) -> None:
    """Escalates a gate to another person."""
    gate.answer("escalate", value=to)


def take_over(gate: Asked, result: Annotated[str, opt(metavar="JSON")] = "null") -> None:
    """Closes a gate whose request you did yourself.

    The run does not do it again.

    Args:
        result: Result in JSON, @FILE, or - for standard input.
    """
    gate.answer("take_over", value=parse_json(result, "the result"))


def delegate(gate: Gate, db: Answer, *, to: To, by: By = None, why: Why = None) -> None:
    """Delegates a gate to another person.

    In place of one who may.
    """
    refuse_ended(db, gate)
    who = by or own_name(db)
    db.client.delegate_gate(gate, to, by=who, why=why or "")
    db.answer({"gate": gate, "by": who, "to": to}, f"{to} may answer gate {gate} now.")
