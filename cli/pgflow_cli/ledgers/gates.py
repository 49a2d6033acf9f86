"""``pgflow gates``, and a person's answer to one: approve, edit, reject, escalate...."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from pgflow_cli.look.database import Dsn, as_row, database_now, fetch, opened
from pgflow_cli.look.failures import NEEDS_A_PERSON, Ended, Mistake
from pgflow_cli.look.mail import operator, wake
from pgflow_cli.look.output import (
    AsCsv,
    AsJson,
    Column,
    choose_form,
    dump,
    duration,
    plain,
    print_one,
    print_rows,
)
from pgflow_cli.look.parsing import parse_json, refuse_empty
from pgflow_cli.look.selection import ENDED, complete_key, find_run, see

if TYPE_CHECKING:
    import psycopg

    from pgflow._db.calls.mail import Sent
    from pgflow._db.query import Query
    from pgflow.inspect import GateRow

Gate = Annotated[
    str,
    typer.Argument(
        metavar="GATE",
        help="Key of the gate, as `pgflow gates` shows it, or of a run that waits at one.",
        show_default=False,
    ),
]
Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="WORDS",
        help="Words that go with it; a first one that names a node which asks says which gate.",
        show_default=False,
    ),
]
Node = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        callback=refuse_empty,
        help="Which gate of the run, by its name or that of its node, if it waits at several.",
    ),
]
By = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        callback=refuse_empty,
        help="Who answers; by default your login and the machine: ann@host. A role that does "
        "not speak for others answers in its own name.",
    ),
]
As = Annotated[
    list[str] | None,
    typer.Option(
        "--as",
        metavar="ROLE",
        callback=refuse_empty,
        help="A role of the person who answers; may be given again.",
    ),
]
Hash = Annotated[
    str | None,
    typer.Option(
        "--hash", metavar="HASH", help="The answer counts only for the request with this hash."
    ),
]
Why = Annotated[str | None, typer.Option(help="The reason, kept with the answer.")]

_NAMES = (
    "gate", "key", "workflow", "name", "asked_at", "expires_at", "approvers", "quorum", "answers",
    "request", "payload_hash", "edited", "needs_value", "on_timeout", "escalate", "decision", "why",
    "evidence", "path",
)  # fmt: skip


def gates(
    key: Annotated[
        str | None,
        typer.Argument(help="Key of a run.", show_default=False, autocompletion=complete_key),
    ] = None,
    *,
    asks: Annotated[
        str | None,
        typer.Option("--for", metavar="NAME", help="Only those that this name or role may answer."),
    ] = None,
    wanted: Annotated[
        bool, typer.Option("--exit-code", help="Exit code 4 if there is one, for scripts.")
    ] = False,
    as_json: AsJson = None,
    as_csv: AsCsv = False,
    dsn: Dsn = None,
) -> None:
    """Lists the gates that wait for an answer.

    Each row shows who is asked, for what, since when and until when. JSON has all of each gate: the
    exact request and its hash, the answers so far, and the decision that it rests on.
    """
    form = choose_form(as_json=as_json, as_csv=as_csv)
    with opened(dsn) as connection:
        from pgflow.inspect import list_gates, readable

        if key is not None:
            find_run(connection, key)
        found = fetch(connection, list_gates(key, asks=asks, limit=None))
        rows = [as_row(gate, _NAMES) for gate in found]
        now = database_now(connection)

    def until(row: Any) -> str:
        if row["expires_at"] is None:
            return ""
        return "in " + duration(max(0.0, (row["expires_at"] - now).total_seconds()))

    columns = [
        Column("RUN", lambda row: plain(" > ".join(row["path"])), most=40),
        Column(
            "ASKED",
            lambda row: plain(duration((now - row["asked_at"]).total_seconds())),
            right=True,
        ),
        Column("ENDS", lambda row: plain(until(row))),
        Column("ASKS", lambda row: plain(", ".join(row["approvers"]) or "anybody"), most=30),
        Column("GATE", lambda row: plain(row["gate"]), most=255),
        Column(
            "REQUEST", lambda row: plain(dump(readable(row["request"]))), takes_rest=True, most=200
        ),
    ]
    if any(row["why"] for row in rows):
        columns.insert(-1, Column("WHY", lambda row: plain(row["why"] or ""), most=60))
    print_rows(form, columns, rows, names=_NAMES, empty="No gate waits for an answer.")
    if wanted and rows:
        raise Ended(NEEDS_A_PERSON)


def _answer(
    answer: Answer,
    gate: Gate,
    *,
    node: Node = None,
    payload_hash: Hash = None,
    by: By = None,
    roles: As = None,
    why: Why = None,
    as_json: AsJson = None,
    dsn: Dsn = None,
) -> None:
    with opened(dsn) as connection:
        from pgflow._db.calls import gates as calls
        from pgflow._db.query import run
        from pgflow.inspect import find_gate, find_newest

        who = by or _own_name(connection)

        asked, answer = _meant(connection, gate, node, answer)
        if asked is not None:
            gate, answer = asked.gate, _fitted(answer, asked)
        verdict, value, to = answer.verdict, answer.value, answer.to
        query: Query[Sent] = calls.answer_gate(
            gate, verdict, payload_hash, value, why or answer.words, who, roles or None, to
        )
        sent = run(connection, query)
        wake(connection, sent.chains, sent.lanes)
        still = fetch(connection, find_gate(gate))
        newest = fetch(connection, find_newest(sent.chain_id))
        if newest is None:
            raise Mistake(f"the history of the run of gate {gate} was removed meanwhile")
    said = {
        "gate": gate,
        "verdict": verdict,
        "by": who,
        "key": newest.key,
        "status": newest.status,
        "open": still is not None,
    }

    def told() -> Any:
        if still is not None:
            return plain(f"Approved by {len(_approvals(still))} of {still.quorum}: {gate}")
        return plain(f"Answered {gate}: {verdict}. Run {newest.key} is {newest.status}.")

    print_one(choose_form(as_json=as_json), said, told)


def _own_name(connection: psycopg.Connection[Any]) -> str:
    """Return the name to answer as: that of the person at the terminal if the role of the
    connection may speak for people, else the role itself.
    """
    from pgflow._db.calls.gates import speaks_for_others
    from pgflow._db.query import run

    return operator() if run(connection, speaks_for_others()) else connection.info.user


class Answer(NamedTuple):
    """A verdict on a gate with its value (JSON, or the name of a person), the answerer's comment,
    and the decision that they take.
    """

    verdict: str
    value: str | None = None
    to: str | None = None
    words: str = ""
    decision: str | None = None
    said: tuple[str, ...] = ()
    understood: Callable[[tuple[str, ...]], Answer] | None = None

    def without_first(self) -> Answer:
        """Return the answer without its first word."""
        return self if self.understood is None else self.understood(self.said[1:])


def _meant(
    connection: psycopg.Connection[Any], word: str, node: str | None, answer: Answer
) -> tuple[GateRow | None, Answer]:
    """Return the open gate that a word names, and the answer to it. The word is the key of the
    gate, or of a run that waits at it, itself or in a run that it called. The gate is None if there
    is none.

    Raises:
        Mistake: The run waits at several or has ended, or the words begin with a node whose gate
            was answered. They are not taken for an answer to another gate.
    """
    from pgflow.inspect import find_gate, list_gate_names, list_gates_below

    if (found := fetch(connection, find_gate(word))) is not None:
        return found, answer
    below = fetch(connection, list_gates_below(word))
    open_gates = [one for one in below if one.key == word] or below
    first = answer.said[0] if answer.said else None
    if node is None and any(_is_of(one.name, first) for one in open_gates):
        node, answer = first, answer.without_first()
    elif node is None and first is not None and open_gates:
        asked = fetch(connection, list_gate_names(word))
        if any(_is_of(name, first) for name in asked):
            raise Mistake(f"gate {first!r} of run {word!r} was answered: {_named(open_gates)}")
    named = [one for one in open_gates if node is None or _is_of(one.name, node)]
    if open_gates and not named:
        raise Mistake(f"run {word!r} waits at no gate {node!r}: {_named(open_gates)}")
    if len(named) > 1:
        raise Mistake(f"run {word!r} waits at several gates: {_named(named)}")
    if not named:
        _refuse_ended(connection, word)
    return (named[0] if named else None), answer


def _refuse_ended(connection: psycopg.Connection[Any], word: str) -> None:
    """Refuse the key of a run that has ended where that of a gate is asked for.

    Raises:
        Mistake: It has.
    """
    from pgflow.errors import RunNotFound
    from pgflow.inspect import find_run as run_of

    try:
        found = fetch(connection, run_of(word))
    except RunNotFound:
        return
    if found.status in ENDED:
        raise Mistake(
            f"run {word!r} is {found.status} and waits at no gate; nothing was answered. "
            f"{see(word)}"
        )


def _is_of(gate: str, name: str | None) -> bool:
    """Return True for the name of a gate, or of the node that asks there, in any round."""
    node = re.sub(r"#[0-9]+", "", gate).partition(":")[0]
    return name in (gate, node, node.rpartition("/")[2])


def _named(several: list[GateRow]) -> str:
    return "name the node, or the gate by its key: " + ", ".join(
        f"{one.name} ({one.gate})" for one in several
    )


def _fitted(answer: Answer, gate: GateRow) -> Answer:
    """Return an answer as this gate takes it: words and decisions are an edit of a request that has
    a place for them; else words are the reason.

    Raises:
        Mistake: The gate does not offer the decision.
    """
    asked = gate.request if isinstance(gate.request, dict) else {}
    offered, decision = asked.get("decisions"), answer.decision
    if decision is not None and decision not in (offered or ()):
        has = ", ".join(map(str, offered)) if offered else "approve, reject"
        raise Mistake(f"gate {gate.name!r} offers no {decision!r}: it offers {has}")
    if answer.verdict != "approve" or answer.value is not None or "response" not in asked:
        return answer
    said = {"response": answer.words, "decision": decision}
    value = {name: word for name, word in said.items() if word}
    return answer._replace(value=dump(value) if value else None, words="")


def an_answer(say: Callable[..., Answer]) -> Callable[..., None]:
    """Makes a command of a function of what is its own: the gate, and all options that answers
    share, are added to it.
    """
    shared = dict(inspect.signature(_answer, eval_str=True).parameters)
    del shared["answer"]
    own = inspect.signature(say, eval_str=True).parameters

    def command(**given: Any) -> None:
        answer = say(**{name: given.pop(name) for name in own})
        _answer(answer, given.pop("gate"), **given)

    parameters = [shared.pop("gate"), *own.values(), *shared.values()]
    command.__name__, command.__doc__, command.__module__ = (
        say.__name__,
        say.__doc__,
        say.__module__,
    )
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in parameters]
    )
    return command


@an_answer
def approve(words: Words = None) -> Answer:
    """Approves what a gate asks.

    Words are the response, where a workflow file asks for one, and else the reason.
    """
    return _worded("approve", tuple(words or ()))


def _worded(verdict: str, said: tuple[str, ...]) -> Answer:
    """Return a verdict with words."""
    return Answer(verdict, words=" ".join(said), said=said, understood=partial(_worded, verdict))


@an_answer
def respond(
    decision: Annotated[
        str,
        typer.Argument(
            metavar="DECISION",
            help="One that the gate offers, or approve, or reject.",
            show_default=False,
        ),
    ],
    words: Words = None,
) -> Answer:
    """Answers a gate with one of the decisions it offers.

    This is for approvals of workflow files. Words are the text that goes with the decision.
    """
    return _decided((decision, *(words or ())))


def _decided(said: tuple[str, ...]) -> Answer:
    """Return a decision with the words after it.

    Raises:
        Mistake: It is not there.
    """
    if not said:
        raise Mistake("name the decision after the node")
    answer = Answer("approve", words=" ".join(said[1:]), said=said, understood=_decided)
    if said[0] in ("approve", "reject"):
        return answer._replace(verdict=said[0])
    return answer._replace(decision=said[0])


@an_answer
def edit(
    value: Annotated[
        str,
        typer.Argument(
            metavar="JSON",
            help="What is approved instead, in JSON, @FILE, or - for standard input.",
            show_default=False,
        ),
    ],
) -> Answer:
    """Approves an edited version of the request.

    What does not fit the type of its request is refused: exit code 2, and the gate stays open. Of a
    gate that asks for a value, this brings it.
    """
    return Answer("approve", dump(parse_json(value, "the edit")))


@an_answer
def reject(words: Words = None) -> Answer:
    """Rejects what a gate asks.

    One is enough, however many must approve. Words are the reason.
    """
    return _worded("reject", tuple(words or ()))


@an_answer
def escalate(
    to: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            callback=refuse_empty,
            help="Who must decide instead; the run receives it.",
        ),
    ],
) -> Answer:
    """Escalates a gate to another person."""
    return Answer("escalate", to=to)


@an_answer
def take_over(
    result: Annotated[
        str, typer.Option(metavar="JSON", help="Result in JSON, @FILE, or - for standard input.")
    ] = "null",
) -> Answer:
    """Closes a gate whose request you did yourself.

    The run does not do it again.
    """
    return Answer("take_over", dump(parse_json(result, "the result")))


def delegate(
    gate: Gate,
    *,
    to: Annotated[
        str,
        typer.Option(metavar="NAME", callback=refuse_empty, help="Who may answer instead."),
    ],
    by: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            callback=refuse_empty,
            help="Who delegates; by default your login and the machine: ann@host.",
        ),
    ] = None,
    why: Why = None,
    as_json: AsJson = None,
    dsn: Dsn = None,
) -> None:
    """Delegates a gate to another person.

    In place of one who may.
    """
    with opened(dsn) as connection:
        from pgflow._db.calls import gates as calls
        from pgflow._db.query import run

        _refuse_ended(connection, gate)
        who = by or _own_name(connection)
        run(connection, calls.delegate_gate(gate, who, to, why or ""))
    said = {"gate": gate, "by": who, "to": to}
    print_one(
        choose_form(as_json=as_json), said, lambda: plain(f"{to} may answer gate {gate} now.")
    )


def _approvals(gate: Any) -> list[str]:
    """Names of those who have approved what the gate asks now."""
    names: list[str] = []
    for said in gate.answers:
        if said["verdict"] == "approve" and said["refusal"] is None:
            names = [said["by"]] if said["value"] is not None else [*names, said["by"]]
    return names
