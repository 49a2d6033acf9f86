"""Parameters that a run needs and was not given: one gate asks for all of them.

The gate waits like any other, holds nothing, and needs no terminal. Its answer is an object of
values by name: ``pgflow edit GATE '{"topic": "tea"}'``. An answer with a name that is missing or
unknown is refused where it is given, and the gate stays open. After one with an empty value the
gate is asked again.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NotRequired

from pydantic import BaseModel, ConfigDict, Field, JsonValue, with_config
from typing_extensions import TypedDict

import pgflow
from pgflow.declare.graph import Graph, Input
from pgflow.declare.play.defaults import input_values
from pgflow.declare.text.javascript import trim
from pgflow.errors import NotStorable

GATE: Final = "parameters"
"""Name of the gate."""

Values = dict[str, JsonValue]


class Wanted(BaseModel):
    """Request of the gate, as a person sees it.

    Attributes:
        message: Sentence that says what to do.
        required: Descriptions of the parameters that are needed, by name.
        optional: Descriptions of those that may be given too.
    """

    model_config = ConfigDict(extra="forbid", defer_build=True)

    message: str
    required: dict[str, str]
    optional: dict[str, str] = Field(default_factory=dict)


def asked_for(graph: Graph) -> frozenset[str]:
    """Names of the inputs that a run asks for, if they are not given."""
    return frozenset(
        gate.name for node in graph.nodes for gate in node.gates if gate.kind == "input"
    )


def wanted_inputs(graph: Graph, given: Mapping[str, JsonValue]) -> list[Input]:
    """Return the inputs without which a run cannot begin, or would ask for them.

    Args:
        graph: The workflow.
        given: Values that are given.
    """
    asked, values = asked_for(graph), input_values(graph, given)
    return [
        one
        for one in graph.inputs
        if (one.name in asked and _is_empty(values.get(one.name)))
        or (one.required and one.name not in values)
    ]


async def ask_parameters(graph: Graph, given: Mapping[str, JsonValue]) -> Values:
    """Return the given values, and those of the parameters that the run must ask for.

    Args:
        graph: The workflow.
        given: Values that it was started with.

    Raises:
        asyncio.CancelledError: The person who was asked rejects.
    """
    values, needed, why = dict(given), asked_for(graph), ""
    while missing := [
        one for one in graph.inputs if one.name in needed and _is_empty(values.get(one.name))
    ]:
        more = [one for one in graph.inputs if one.name not in needed and one.name not in values]
        try:
            values |= await _ask(missing, more, why)
            why = "a required parameter was empty. "
        except NotStorable as error:
            why = f"{error.outline or error}. "
    return values


async def _ask(missing: Sequence[Input], more: Sequence[Input], why: str) -> Values:
    """Ask once.

    Raises:
        NotStorable: The answer has other names. asyncio.CancelledError: The person who was asked
            rejects.
    """
    names, others = [tuple(one.name for one in some) for some in (missing, more)]
    request = Wanted(
        message=f"{why}Give {', '.join(names)}",
        required={one.name: one.description for one in missing},
        optional={one.name: one.description for one in more},
    )
    answer = _answer_of(names, others)
    verdict: Any = await pgflow.authority.gate(GATE, request, answer=answer)
    match verdict:
        case pgflow.authority.Approved(value=said):
            return dict(said)
        case pgflow.authority.TakenOver(result=dict() as said):
            return {name: said[name] for name in (*names, *others) if name in said}
        case pgflow.authority.Rejected(reason=reason):
            raise CancelledError(reason or "Rejected")
        case other:
            raise CancelledError(f"the parameters were not given: {other}")


@lru_cache(maxsize=256)
def _answer_of(required: tuple[str, ...], optional: tuple[str, ...]) -> Any:
    """Return the type of answers with these names and no others."""
    make: Any = TypedDict
    fields = dict.fromkeys(required, Any) | dict.fromkeys(optional, NotRequired[Any])
    return with_config(ConfigDict(extra="forbid"))(make("Parameters", fields))


def _is_empty(value: JsonValue) -> bool:
    return value is None or (isinstance(value, str) and not trim(value))
