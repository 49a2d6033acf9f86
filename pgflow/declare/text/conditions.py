"""The little language of ``when``: comparisons, joined by ``&&`` (binds tighter) and ``||``,
without parentheses.

A text is parsed once, when its file is read. Other parts than comparisons stay in it as
`Unparsed`: the original looks at a condition from left to right and no further than needed, so a
bad part harms only if it is reached. Then the node is skipped; a condition that cannot be
understood never lets work happen.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from math import isfinite
from operator import ge, gt, le, lt
from typing import cast

from pgflow.declare.graph import Atom, Condition, Operator, Position, Unparsed
from pgflow.declare.text.javascript import SPACE, parse_float, trim
from pgflow.declare.text.outputs import (
    Inputs,
    Outputs,
    UnresolvableReference,
    has_left,
    read_field,
    read_input,
    refuse_beyond,
    value_text,
)

_ORDERS = {"<": lt, ">": gt, "<=": le, ">=": ge}
_NAME = "[a-zA-Z_][a-zA-Z0-9_-]*"
_FIELD = "[a-zA-Z_][a-zA-Z0-9_]*"
_ATOM = re.compile(
    rf"(?P<reference>\$INPUTS\.(?P<input>{_NAME})"
    rf"|\$LOOP_PREV\.(?P<previous>{_NAME})\.output(?:\.{_FIELD})?"
    rf"|\$(?P<node>{_NAME})\.(?P<first>{_FIELD})(?:\.(?P<second>{_FIELD}))?)"
    rf"{SPACE}*(?P<operator>==|!=|<=|>=|<|>){SPACE}*"
    r"(?:'(?P<quoted>[^']*)'|(?P<bare>-?[0-9]+(?:\.[0-9]+)?|true|false))"
)


def parse_condition(text: str, position: Position | None = None) -> Condition:
    """Read a condition. Never fails: text that is not a comparison is kept as `Unparsed`, and skips
    its node if it is reached.

    Args:
        text: The text after ``when``.
        position: Its place in the source.

    Returns:
        The condition: alternatives of parts that must all hold.
    """
    alternatives = (tuple(map(_part, _split(clause, "&&"))) for clause in _split(trim(text), "||"))
    return Condition(text=text, any_of=tuple(alternatives), position=position)


def _split(text: str, separator: str) -> Iterator[str]:
    """Yield the trimmed pieces between separators outside single quotes."""
    start = place = 0
    quoted = False
    while place < len(text):
        if not quoted and text.startswith(separator, place):
            yield trim(text[start:place])
            start = place = place + len(separator)
            continue
        quoted ^= text[place] == "'"
        place += 1
    yield trim(text[start:])


def _part(text: str) -> Atom | Unparsed:
    """One part of a condition, as a comparison if it is one."""
    found = _ATOM.fullmatch(text)
    if found is None or _is_no_reference(found):
        return Unparsed(text=text)
    quoted = found["quoted"]
    return Atom(
        reference=found["reference"],
        operator=cast("Operator", found["operator"]),
        literal=found["bare"] if quoted is None else quoted,
        is_quoted=quoted is not None,
    )


def _is_no_reference(found: re.Match[str]) -> bool:
    """Return True if the left side goes deeper than references do: ``$INPUTS.a.b``, or
    ``$node.field.deeper``.
    """
    if found["input"] or found["previous"]:
        return False
    return found["node"] in ("INPUTS", "LOOP_PREV") or (
        found["first"] != "output" and found["second"] is not None
    )


def holds(
    condition: Condition,
    outputs: Outputs,
    inputs: Inputs | None = None,
    previous: Outputs | None = None,
) -> bool | None:
    """Return True if a condition holds, looking no further than needed.

    Args:
        condition: The condition.
        outputs: Outputs of the nodes so far.
        inputs: The run's inputs.
        previous: Outputs of the nodes of a group in the round before.

    Returns:
        True or False; None if an evaluated part is not a comparison, or compares the size of
        something that is not a number.

    Raises:
        UnresolvableReference: If an evaluated reference has no value.
    """
    read = partial(_read, outputs=outputs, inputs=inputs, previous=previous or {})
    for alternative in condition.any_of:
        answer = _all_hold(alternative, read)
        if answer is not False:
            return answer
    return False


def _all_hold(parts: tuple[Atom | Unparsed, ...], read: Callable[[str], str]) -> bool | None:
    """Return True if all parts hold; stop at the first that does not and return its answer, False
    or None.
    """
    for part in parts:
        answer = None if isinstance(part, Unparsed) else _atom_holds(part, read)
        if not answer:
            return answer
    return True


def _atom_holds(atom: Atom, read: Callable[[str], str]) -> bool | None:
    """Return True if a comparison holds: texts are equal, or the numbers they begin with in order;
    None without numbers.
    """
    actual = read(atom.reference)
    if atom.operator == "==":
        return actual == atom.literal
    if atom.operator == "!=":
        return actual != atom.literal
    left, right = parse_float(actual), parse_float(atom.literal)
    if not (isfinite(left) and isfinite(right)):
        return None
    return bool(_ORDERS[atom.operator](left, right))


def _read(reference: str, outputs: Outputs, inputs: Inputs | None, previous: Outputs) -> str:
    """Return the text of the left side of a comparison. What did not run in the round before is
    empty.
    """
    scope, _, path = reference.removeprefix("$").partition(".")
    if scope == "INPUTS":
        return value_text(read_input(inputs, path))
    if scope == "LOOP_PREV":
        scope, _, path = path.partition(".")
        outputs = previous
        if not has_left(outputs.get(scope)):
            return ""
    first, _, second = path.partition(".")
    field = second if first == "output" else first
    return value_text(read_field(outputs, scope, field)) if field else _read_whole(outputs, scope)


def _read_whole(outputs: Outputs, node_id: str) -> str:
    """Return a node's whole output; empty if it left none, or is not known."""
    output = outputs.get(node_id)
    if output is None:
        return ""
    if output.state == "failed":
        raise UnresolvableReference(
            f"'${node_id}.output' references node '{node_id}', but it failed ({output.error}), so "
            "its output cannot be trusted in a "
            "'when:' condition. A failed producer's stale output is never evaluated — branch on a "
            "different node's output instead.",
            "producer-failed",
        )
    refuse_beyond(output, node_id)
    return output.text
