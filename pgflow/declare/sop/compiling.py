"""Compiling an SOP to the graph: each step becomes a prompt that waits for the one before it.

Parameters become inputs. A required one without a default is a gate of the first step: the run
waits there until someone gives it, rather than failing, and an agent that is started with
everything never stops. An optional one without a default is empty if it is not given: a prompt that
names it must not fail for that.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from itertools import chain, count
from typing import Final

from pgflow.declare.graph import (
    Constraint,
    Gate,
    Graph,
    Input,
    Node,
    Position,
    Prompt,
    Substep,
    Use,
)
from pgflow.declare.graph.problems import Problem
from pgflow.declare.play.defaults import names_in
from pgflow.declare.sop import steps
from pgflow.declare.sop.asking import asking_lines
from pgflow.declare.sop.chaining import Mention, by_name, mentions
from pgflow.declare.sop.constraints import Block
from pgflow.declare.sop.numbering import node_id, slug
from pgflow.declare.sop.outline import Outline
from pgflow.declare.sop.parameters import Parameter
from pgflow.declare.sop.prompts import called, context, prompt
from pgflow.declare.sop.steps import Step

_PROMPTS_LIMIT: Final = 32 * 1024 * 1024
"""Most characters of the prompts of one SOP together: the context is in each of them."""


class TooMuchText(ValueError):
    """The prompts of an SOP would be too large together."""


def compile_outline(
    outline: Outline,
    name: str,
    file: str,
    siblings: Collection[str] | None,
    problems: list[Problem],
) -> Graph:
    """Return the graph of an SOP that has steps.

    Args:
        outline: The SOP.
        name: Its name.
        file: Its file, for positions.
        siblings: The names of the SOP files in the same directory; None if they are not known.
        problems: Gets what is doubtful about other SOPs that it names.

    Returns:
        The graph.

    Raises:
        TooMuchText: If the prompts would be too large together.
    """
    maker = _Maker(outline, name, file)
    nodes = tuple(maker.nodes(maker.uses(siblings, problems)))
    return Graph(
        name=name,
        family="sop",
        description=outline.description,
        inputs=tuple(maker.inputs()),
        nodes=nodes,
        returns=nodes[-1].id,
        files=(file,),
    )


class _Maker:
    """Makes the parts of one SOP's graph."""

    def __init__(self, outline: Outline, name: str, file: str) -> None:
        self.outline = outline
        self.name = name
        self.file = file
        self.ids = tuple(_unique(node_id(step.number, step.title) for step in outline.steps))
        self.general = tuple(outline.general)
        declared: dict[str, Parameter] = {}
        for parameter in outline.parameters:
            declared.setdefault(parameter.name, parameter)
        self.parameters = tuple(declared.values())

    def inputs(self) -> Iterator[Input]:
        names = {parameter.name for parameter in self.parameters}
        for parameter in self.parameters:
            yield Input(
                name=parameter.name,
                required=parameter.required,
                default=parameter.default
                if parameter.default is not None or _is_asked_for(parameter)
                else "",
                has_default=not _is_asked_for(parameter),
                is_template=bool(names_in(parameter.default) & (names - {parameter.name})),
                description=parameter.description,
                position=self.at(parameter.line, parameter.column),
            )

    def nodes(self, uses: dict[int, tuple[Use, ...]]) -> Iterator[Node]:
        first, later = (context(self.outline, asks=asks) for asks in (True, False))
        if len(first) * len(self.ids) > _PROMPTS_LIMIT:
            raise TooMuchText
        before: tuple[str, str] | None = None
        for place, (step, own_id) in enumerate(zip(self.outline.steps, self.ids, strict=True)):
            yield Node(
                id=own_id,
                title=step.title,
                body=self.body(
                    step,
                    prompt(self.outline, step, self.name, later if before else first, before),
                    asks=before is None,
                ),
                depends_on=(before[1],) if before else (),
                gates=tuple(self.gates(step, asks=before is None)),
                reads=uses.get(place, ()),
                position=self.at(step.start, step.column),
            )
            before = (called(step), own_id)

    def body(self, step: Step, text: str, *, asks: bool) -> Prompt:
        blocks = [("parameters", block) for block in self.outline.acquisition] if asks else []
        blocks += [(step.part_at(block.start), block) for block in step.blocks]
        blocks += self.general
        return Prompt(
            text=text,
            tagged=True,
            constraints=tuple(
                constraint
                for scope, block in blocks
                for constraint in self.constraints(scope, block)
            ),
            substeps=tuple(self.substep(part) for part in step.substeps),
        )

    def substep(self, part: steps.Substep) -> Substep:
        return Substep(
            number=part.number, title=part.title, position=self.at(part.start, part.column)
        )

    def constraints(self, scope: str, block: Block) -> Iterator[Constraint]:
        for rule in block.in_order:
            yield Constraint(
                level=rule.level,
                text=rule.text,
                because=rule.because,
                scope=scope,
                position=self.at(rule.start, rule.column),
            )

    def gates(self, step: Step, *, asks: bool) -> Iterator[Gate]:
        """Yield a gate for the required parameters before the first step, and one for an agent that
        may ask in this step.
        """
        for parameter in self.parameters if asks else ():
            if _is_asked_for(parameter):
                yield Gate(
                    kind="input",
                    at="before",
                    name=parameter.name,
                    presents=parameter.description,
                    position=self.at(parameter.line, parameter.column),
                )
        if asking_lines(self.outline.page, step.start + 1, step.end):
            yield Gate(kind="question", at="inside", position=self.at(step.start, step.column))

    def uses(
        self, siblings: Collection[str] | None, problems: list[Problem]
    ) -> dict[int, tuple[Use, ...]]:
        """Return the uses of other SOPs by each step, by its place. Uses outside the steps belong
        to the first of them.
        """
        lines = {
            place: list(range(step.start, step.end))
            for place, step in enumerate(self.outline.steps)
        }
        lines[0] += [number for start, end in self.outline.context for number in range(start, end)]
        files = by_name(siblings) if siblings is not None else None
        own = (self.name, slug(self.outline.title.title) if self.outline.title else self.name)
        return {
            place: tuple(
                self.use(found)
                for found in mentions(self.outline.page, numbers, own, files, problems)
            )
            for place, numbers in lines.items()
        }

    def use(self, mention: Mention) -> Use:
        return Use(
            location=mention.file,
            scope="sop",
            why=mention.sentence,
            position=self.at(mention.line, mention.column),
        )

    def at(self, line: int, column: int) -> Position:
        return Position(file=self.file, line=line + 1, column=column)


def _is_asked_for(parameter: Parameter) -> bool:
    return parameter.required and not parameter.has_default


def _unique(ids: Iterable[str]) -> Iterator[str]:
    """Yield the ids, those that were there already with a number at the end."""
    seen: set[str] = set()
    for wanted in ids:
        free = next(
            name
            for name in chain([wanted], (f"{wanted}-{number}" for number in count(2)))
            if name not in seen
        )
        seen.add(free)
        yield free
