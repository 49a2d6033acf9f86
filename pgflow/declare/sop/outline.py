"""An SOP as read: its title, sections, parameters, steps and constraints, each with its lines.

Everything but parameters and steps is *context*: the overview, notes on modes, formats, examples,
troubleshooting. It applies to the SOP as a whole, wherever it is written, and goes into every
step's prompt.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pgflow.declare.graph.problems import Problem
from pgflow.declare.sop.constraints import Block, is_acquisition, is_constraints, read_blocks
from pgflow.declare.sop.page import Heading, Page, between
from pgflow.declare.sop.parameters import Parameter, read_parameters
from pgflow.declare.sop.steps import OVERVIEW, PARAMETERS, STEPS, Section, Step, read_steps


@dataclass(frozen=True, slots=True)
class Outline:
    """The parts of an SOP. ``problems`` are what its parts were read in spite of."""

    page: Page
    title: Heading | None
    sections: tuple[Section, ...]
    parameters: tuple[Parameter, ...]
    acquisition: tuple[Block, ...]
    steps: tuple[Step, ...]
    problems: tuple[Problem, ...]

    @property
    def general(self) -> Iterator[tuple[str, Block]]:
        """The constraints outside the steps, with the title of their section."""
        of_steps = {block.start for step in self.steps for block in step.blocks}
        for section in self.sections:
            if section.name != PARAMETERS:
                for block in read_blocks(self.page, section.start, section.end, is_constraints):
                    if block.start not in of_steps:
                        yield section.heading.title, block

    def named(self, name: str) -> tuple[Section, ...]:
        """Return the sections of that name."""
        return tuple(section for section in self.sections if section.name == name)

    @property
    def description(self) -> str:
        """The overview up to its first subheading, on one line,
        as the original makes descriptions.
        """
        for section in self.named(OVERVIEW)[:1]:
            end = next(
                (
                    heading.line
                    for heading in between(self.page.headings, section.start + 1, section.end)
                ),
                section.end,
            )
            return self.page.text(section.start + 1, end).strip().replace("\n", " ")
        return ""

    @property
    def context(self) -> Iterator[tuple[int, int]]:
        """Yield the lines of the context as ranges: all but the steps and the heading over them."""
        start = self.page.front_matter
        apart = [(section.start, section.start + 1) for section in self.named(STEPS)] + [
            (step.start, step.end) for step in self.steps
        ]
        for out, until in sorted(apart):
            yield start, out
            start = until
        yield start, len(self.page.lines)


def read_outline(page: Page) -> Outline:
    """Return the parts of an SOP, and remarks on its doubtful ones."""
    problems: list[Problem] = []
    title = next((heading for heading in page.headings if heading.level == 1), None)
    sections = tuple(_sections(page, _end(page, title, problems)))
    acquisition: list[Block] = []
    parameters: list[Parameter] = []
    for section in (section for section in sections if section.name == PARAMETERS):
        blocks = tuple(read_blocks(page, section.start, section.end, is_acquisition))
        acquisition += blocks
        parameters += read_parameters(page, section.start, section.end, blocks, problems)
    steps = read_steps(page, sections, problems)
    return Outline(
        page, title, sections, tuple(parameters), tuple(acquisition), steps, tuple(problems)
    )


def _end(page: Page, title: Heading | None, problems: list[Problem]) -> int:
    """Return the line before which the SOP ends. A file may hold a second SOP, which is only text
    to the first.
    """
    second = next(
        (heading for heading in page.headings if heading.level == 1 and heading is not title), None
    )
    if second is None:
        return len(page.lines)
    hint = (
        "the text after it goes into every prompt unchanged; move a second SOP to a file of its own"
    )
    problems.append(
        Problem(
            f"A second title: {second.title!r}",
            second.line + 1,
            second.column,
            hint=hint,
            severity="warning",
        )
    )
    return second.line


def _sections(page: Page, end: int) -> Iterator[Section]:
    heads = [heading for heading in page.headings if heading.level == 2 and heading.line < end]
    for heading, until in zip(
        heads, [*(following.line for following in heads[1:]), end], strict=False
    ):
        yield Section(heading, heading.line, until)
