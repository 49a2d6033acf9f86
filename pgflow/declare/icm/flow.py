"""Flow: "what comes next" becomes "what must have come before", the wiring of a workflow's stages.

A graph's nodes wait for others (``depends_on``, ``trigger_rule``) and may be skipped (``when``).
Three things need care:

- *Branches and joins.* A stage behind a branch runs if the branch is taken. Where several ways lead
  to a stage and one of them has a condition, its ``when`` is the whole of the ways: the conditions
  on the way there, joined by or.
- *Else* is the negation of the other branches' conditions.
- *A stage that runs only on request* is left out if it is not requested, and the stages after it go
  on: they wait for the stages before it, too.
"""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, cast

from pgflow.declare.graph import Atom, Condition, Position, TriggerRule, Unparsed
from pgflow.declare.icm.findings import Findings
from pgflow.declare.icm.given import Given
from pgflow.declare.icm.state import State, check_path
from pgflow.declare.icm.workflow import END, Arrow, Declared
from pgflow.declare.text.conditions import parse_condition

Clause = tuple[Atom, ...]
Ways = tuple[Clause, ...]
"""Alternatives of comparisons that must all hold. ``((),)`` always holds, ``()`` never."""

ALWAYS: Final[Ways] = ((),)
_MOST_CLAUSES: Final = 64
_REVERSED: Final = {"==": "!=", "!=": "==", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}
_PATH = re.compile(r"(?<![\w$.'-])([A-Za-z_][\w-]*\.[A-Za-z_]\w*)(?=\s*(?:==|!=|<=|>=|<|>))")


class TooManyWays(Exception):
    """The conditions on the way to a stage are too many to be written out."""


@dataclass(frozen=True, slots=True)
class Wiring:
    """Preconditions of a stage."""

    depends_on: tuple[str, ...] = ()
    trigger_rule: TriggerRule = "all_success"
    when: Condition | None = None


@dataclass(frozen=True, slots=True)
class _Edge:
    source: str
    ways: Ways
    text: str
    at: Position


def wire(
    stages: tuple[Declared, ...], on_request: frozenset[str], state: State, findings: Findings
) -> dict[str, Wiring]:
    """Return the wiring of every stage.

    Args:
        stages: The stages in the order of their declaration.
        on_request: Those that run only on request.
        state: Values that conditions may compare.
        findings: Collector of unknown stages, circles and conditions that cannot be read.
    """
    arrows = _with_defaults(stages, findings)
    edges = _edges(stages, arrows, state, findings)
    order = _order(stages, edges, findings)
    if findings.failed:
        return {stage.id: Wiring() for stage in stages}
    return _Wiring(edges, on_request, findings).of(order)


def _with_defaults(
    stages: tuple[Declared, ...], findings: Findings
) -> dict[str, tuple[Arrow, ...]]:
    """Return the arrows from each stage: those it declares,
    else one to the stage after it in the list.
    """
    plain = all(
        stage.arrows is None or (len(stage.arrows) == 1 and stage.arrows[0].when is None)
        for stage in stages
    )
    arrows = {}
    for stage, after in itertools.zip_longest(stages, stages[1:]):
        if stage.arrows is None and not plain:
            findings.error(
                f"stage {stage.id!r} does not say what comes next",
                stage.at,
                "Add next: with a stage's id or END.",
            )
        default = (Arrow(after.id, stage.at),) if after is not None else ()
        arrows[stage.id] = default if stage.arrows is None else stage.arrows
    return arrows


def _edges(
    stages: tuple[Declared, ...],
    arrows: Mapping[str, tuple[Arrow, ...]],
    state: State,
    findings: Findings,
) -> dict[str, list[_Edge]]:
    """For each stage, the edges that lead to it."""
    ids = {stage.id for stage in stages}
    leading: dict[str, list[_Edge]] = defaultdict(list)
    for stage in stages:
        for arrow, ways in _judged(arrows[stage.id], stage, state, findings):
            if arrow.target != END and arrow.target not in ids:
                findings.error(
                    f"stage {stage.id!r}: next {arrow.target!r} is not a stage", arrow.at
                )
            elif arrow.target != END:
                leading[arrow.target].append(_Edge(stage.id, ways, arrow.when or "", arrow.at))
    for stage in stages[1:]:
        if stage.id not in leading:
            findings.error(
                f"stage {stage.id!r} comes after none",
                stage.at,
                "Name it in the next of the stage before it.",
            )
    return leading


def _judged(
    arrows: tuple[Arrow, ...], stage: Declared, state: State, findings: Findings
) -> list[tuple[Arrow, Ways]]:
    """Return the arrows of a stage with their conditions; else is what the others leave."""
    conditions = {
        arrow: _condition(arrow.when, arrow.given, state)
        for arrow in arrows
        if arrow.when and arrow.given is not None
    }
    if sum(arrow.otherwise for arrow in arrows) > 1 or (
        any(arrow.otherwise for arrow in arrows) and not conditions
    ):
        findings.error(
            f"stage {stage.id!r}: use else once, next to one or more branches with conditions",
            stage.at,
        )
        return [(arrow, ALWAYS) for arrow in arrows]
    try:
        rest = negated(tuple(itertools.chain.from_iterable(conditions.values())))
    except TooManyWays:
        findings.error(
            f"stage {stage.id!r}: its conditions are too many for an else",
            stage.at,
            "Write the condition of that branch out.",
        )
        return [(arrow, ALWAYS) for arrow in arrows]
    return [(arrow, conditions.get(arrow, rest if arrow.otherwise else ALWAYS)) for arrow in arrows]


# Conditions ---------------------------------------------------------------------------------------


def _condition(text: str, given: Given, state: State) -> Ways:
    """Return a condition on the state, with references to the outputs of the stages that write the
    values it compares.
    """
    parsed = parse_condition(_PATH.sub(r"$\1", text))
    for part in itertools.chain.from_iterable(parsed.any_of):
        if isinstance(part, Unparsed):
            hint = (
                "Compare paths into the state with literals: "
                "request.kind == 'video' && request.pages > 3."
            )
            given.findings.error(f"condition {text!r} cannot be read", given.at, hint)
            return ()
    return tuple(
        tuple(_atom(cast("Atom", part), given, state) for part in clause)
        for clause in parsed.any_of
    )


def _atom(atom: Atom, given: Given, state: State) -> Atom:
    """Return a comparison with the output of the stage that writes what is compared; a signal's
    message counts as its output.
    """
    path = atom.reference.removeprefix("$")
    if not check_path(path, state, given):
        return atom
    name, field = path.split(".", 1)
    return atom.model_copy(
        update={"reference": f"${state[name].written_by or name}.output.{field}"}
    )


def negated(ways: Ways) -> Ways:
    """Return the ways that hold exactly where the given ones do not.

    Args:
        ways: Alternatives of comparisons that must all hold.

    Raises:
        TooManyWays: It takes too many clauses to be readable.
    """
    result: Ways = ALWAYS
    for clause in ways:
        result = _simplest((*one, _reversed(atom)) for one in result for atom in clause)
    return result


def _reversed(atom: Atom) -> Atom:
    return atom.model_copy(update={"operator": _REVERSED[atom.operator]})


def _simplest(ways: Iterable[Clause]) -> Ways:
    """Return the ways without those that another makes superfluous: where ``a`` is enough, ``not a
    && b`` is ``b``.
    """
    clauses: list[Clause] = []
    for clause in ways:
        once = tuple(dict.fromkeys(clause))
        if any(set(other) <= set(once) for other in clauses):
            continue
        clauses = [other for other in clauses if not set(once) <= set(other)] + [once]
        if len(clauses) > _MOST_CLAUSES:
            raise TooManyWays
    needless = [_reversed(clause[0]) for clause in clauses if len(clause) == 1]
    shorter = [tuple(atom for atom in clause if atom not in needless) for clause in clauses]
    return _simplest(shorter) if shorter != clauses else tuple(clauses)


def _condition_of(ways: Ways, edges: list[_Edge]) -> Condition | None:
    """Return the ways as the graph's condition; None if they always hold."""
    if () in ways:
        return None
    text = " || ".join(" && ".join(map(_atom_text, clause)) for clause in ways)
    position = next((edge.at for edge in edges if edge.ways != ALWAYS), None)
    return Condition(text=text, any_of=ways, position=position)


def _atom_text(atom: Atom) -> str:
    literal = f"'{atom.literal}'" if atom.is_quoted else atom.literal
    return f"{atom.reference} {atom.operator} {literal}"


# Order --------------------------------------------------------------------------------------------


def _order(
    stages: tuple[Declared, ...], edges: Mapping[str, list[_Edge]], findings: Findings
) -> list[str]:
    """Return the stages so that each comes after those that lead to it."""
    waiting = {stage.id: {edge.source for edge in edges.get(stage.id, ())} for stage in stages}
    order: dict[str, None] = {}
    while ready := [stage for stage, before in waiting.items() if before <= order.keys()]:
        order.update(dict.fromkeys(ready))
        for stage in ready:
            del waiting[stage]
    if waiting:
        findings.error(
            f"Cycle detected among stages: {', '.join(waiting)}",
            next(s.at for s in stages if s.id in waiting),
        )
    return list(order)


@dataclass(slots=True)
class _Wiring:
    """The wiring of stages, one after the other in their order."""

    edges: Mapping[str, list[_Edge]]
    on_request: frozenset[str]
    findings: Findings
    may_miss: set[str] = field(default_factory=set)

    def of(self, order: list[str]) -> dict[str, Wiring]:
        """Return the wiring of each."""
        reached: dict[str, Ways] = {}
        wired: dict[str, Wiring] = {}
        for stage in order:
            edges = self.edges.get(stage, [])
            try:
                reached[stage] = self._ways(edges, reached)
            except TooManyWays:
                self.findings.error(
                    f"the conditions on the way to stage {stage!r} are too many", edges[0].at
                )
                reached[stage] = ALWAYS
            wired[stage] = self._wiring(edges, reached[stage], wired)
            self._note(stage, wired[stage])
        return wired

    def _ways(self, edges: list[_Edge], reached: Mapping[str, Ways]) -> Ways:
        """Return the conditions under which one of the edges is taken."""
        if not edges:
            return ALWAYS
        return _simplest(
            (*before, *here)
            for edge in edges
            for before in reached[edge.source]
            for here in edge.ways
        )

    def _wiring(self, edges: list[_Edge], ways: Ways, wired: Mapping[str, Wiring]) -> Wiring:
        sources = tuple(dict.fromkeys(edge.source for edge in edges))
        depends_on = tuple(
            dict.fromkeys(
                itertools.chain.from_iterable(self._behind(source, wired) for source in sources)
            )
        )
        if len(depends_on) <= 1:
            return Wiring(depends_on, when=_condition_of(tuple(_alternatives(edges)), edges))
        conditional = any(edge.ways != ALWAYS for edge in edges)
        rule: TriggerRule = (
            "none_failed_min_one_success"
            if conditional or self.may_miss & set(depends_on)
            else "all_success"
        )
        return Wiring(depends_on, rule, _condition_of(ways, edges) if conditional else None)

    def _behind(self, source: str, wired: Mapping[str, Wiring]) -> tuple[str, ...]:
        """Return a stage to wait for; with one that may not be asked for, those before it."""
        return (source, *wired[source].depends_on) if source in self.on_request else (source,)

    def _note(self, stage: str, wiring: Wiring) -> None:
        """Remember a stage that may be left out: on its own account, or since one before it is."""
        before = [source in self.may_miss for source in wiring.depends_on]
        inherits = any(before) if wiring.trigger_rule == "all_success" else all(before)
        if stage in self.on_request or wiring.when is not None or (before and inherits):
            self.may_miss.add(stage)


def _alternatives(edges: list[_Edge]) -> Iterable[Clause]:
    """Return the conditions of the edges from one stage; always, without an edge."""
    return itertools.chain.from_iterable(edge.ways for edge in edges) if edges else ALWAYS
