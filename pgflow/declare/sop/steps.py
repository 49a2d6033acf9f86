"""Steps of an SOP, found in its sections.

The format says ``### N. Name`` under ``## Steps``, with substeps ``#### N.M Name``. Real files
also number from 0 and with fractions, write ``### Step 4A: Name``, leave the numbers out, list
the steps instead of giving them headings, or have them in sections of another name; a step that
slipped behind another section is still a step. Whatever is not the format is read as it is
meant, and reported.
"""

from __future__ import annotations

import re
from bisect import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Final

from pgflow.declare.graph.problems import Problem
from pgflow.declare.sop.constraints import Block, is_constraints, read_blocks
from pgflow.declare.sop.numbering import read_number
from pgflow.declare.sop.page import MARKER, Heading, Page, after, between, name_of

OVERVIEW: Final = "overview"
PARAMETERS: Final = "parameters"
STEPS: Final = "steps"
NO_NUMBERED_STEPS: Final = "No numbered steps found (format: ### 1. Step Name)"

_STEP_SECTION: Final = re.compile(r"(step|phase|stage)\s+\d", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Section:
    """A level two heading and its content, lines ``start`` to ``end``."""

    heading: Heading
    start: int
    end: int

    @property
    def name(self) -> str:
        """Name by which it is recognised."""
        return name_of(self.heading.title)


@dataclass(frozen=True, slots=True)
class Substep:
    """A numbered part of a step, lines ``start`` to ``end``."""

    number: str
    title: str
    start: int
    end: int
    column: int


@dataclass(frozen=True, slots=True)
class Step:
    """A step, lines ``start`` to ``end``. ``level`` is that of its heading, 0 if it has none."""

    number: str
    title: str
    start: int
    end: int
    column: int
    level: int = 3
    substeps: tuple[Substep, ...] = ()
    blocks: tuple[Block, ...] = ()

    def part_at(self, line: int) -> str:
        """Return the number of the substep that a line belongs to, or nothing."""
        place = bisect(self.substeps, line, key=attrgetter("start"))
        return (
            self.substeps[place - 1].number if place and line < self.substeps[place - 1].end else ""
        )


def read_steps(
    page: Page, sections: Sequence[Section], problems: list[Problem]
) -> tuple[Step, ...]:
    """Return the steps of an SOP in their order.

    Args:
        page: The file.
        sections: Its sections.
        problems: List to which violations of the format are added.

    Returns:
        The steps with their substeps and constraints; empty if the file has no steps.
    """
    proper = [section for section in sections if section.name == STEPS]
    found = [step for section in proper for step in _of_section(page, section, problems)] or list(
        _elsewhere(page, sections, problems)
    )
    found += _strays(
        page,
        [section for section in sections if section.name not in (STEPS, PARAMETERS, OVERVIEW)],
        found,
        problems,
    )
    return tuple(_with_parts(page, step) for step in sorted(found, key=lambda step: step.start))


def _of_section(page: Page, section: Section, problems: list[Problem]) -> Iterator[Step]:
    """Return the steps of a section that is called Steps."""
    heads = [
        heading
        for heading in between(page.headings, section.start + 1, section.end)
        if heading.level == 3
    ]
    if any(read_number(heading.title) for heading in heads):
        return _numbered(heads, section, problems)
    if not page.text(section.start + 1, section.end):
        return iter(())
    problems.append(
        _remark(NO_NUMBERED_STEPS, section.heading, "the steps are taken in their order")
    )
    return _headed(heads, section) if heads else _listed(page, section)


def _numbered(
    heads: Sequence[Heading], section: Section, problems: list[Problem]
) -> Iterator[Step]:
    """Yield a step for each heading with a number; one without belongs to the step before it."""
    numbered = []
    for heading in heads:
        if read_number(heading.title):
            numbered.append(heading)
        else:
            hint = (
                f"it is read as part of {numbered[-1].title!r}"
                if numbered
                else "it is read as part of all steps"
            )
            problems.append(
                _remark(
                    f"Heading without a number among the steps: {heading.title!r}", heading, hint
                )
            )
    for heading, following in zip(numbered, [*numbered[1:], None], strict=True):
        named = read_number(heading.title)
        assert named is not None
        yield Step(
            named.number,
            named.title,
            heading.line,
            following.line if following else section.end,
            heading.column,
            heading.level,
        )


def _headed(heads: Sequence[Heading], section: Section) -> Iterator[Step]:
    """Yield a step for each heading, counted."""
    for place, (heading, following) in enumerate(zip(heads, [*heads[1:], None], strict=True), 1):
        yield Step(
            str(place),
            heading.title,
            heading.line,
            following.line if following else section.end,
            heading.column,
        )


def _listed(page: Page, section: Section) -> Iterator[Step]:
    """Yield a step for each item of a list; one step for everything, if it is more than a list or
    none.
    """
    items = between(page.items, section.start + 1, section.end)
    if not items or between(page.labels, section.start + 1, section.end):
        first = next(
            number for number in range(section.start + 1, section.end) if page.lines[number].strip()
        )
        yield Step("1", "", first, section.end, 1, level=0)
        return
    for place, (item, following) in enumerate(zip(items, [*items[1:], None], strict=True), 1):
        marker = MARKER.match(page.lines[item.line])
        number = marker[2].rstrip(".)") if marker and marker[2][0].isdigit() else str(place)
        yield Step(
            number,
            "",
            item.line,
            following.line if following else section.end,
            item.column,
            level=0,
        )


def _elsewhere(page: Page, sections: Sequence[Section], problems: list[Problem]) -> Iterator[Step]:
    """Yield the steps of an SOP without a section called Steps: sections that are steps, or one
    whose parts look like steps.
    """
    for section in sections:
        if (
            _STEP_SECTION.match(section.heading.title)
            and (named := read_number(section.heading.title)) is not None
        ):
            yield Step(
                named.number,
                named.title,
                section.start,
                section.end,
                section.heading.column,
                section.heading.level,
            )
    if any(_STEP_SECTION.match(section.heading.title) for section in sections):
        return
    for section in sections:
        heads = [
            heading
            for heading in between(page.headings, section.start, section.end)
            if heading.level == 3
        ]
        if any(
            read_number(heading.title) and _has_constraints(page, heading, section.end)
            for heading in heads
        ):
            problems.append(
                _remark(
                    f"Steps found in section {section.heading.title!r}",
                    section.heading,
                    "call it '## Steps'",
                )
            )
            yield from _numbered(heads, section, problems)
            return


def _strays(
    page: Page, sections: Sequence[Section], found: Sequence[Step], problems: list[Problem]
) -> Iterator[Step]:
    """Steps that continue the numbers in a section of another kind,
    with constraints of their own.
    """
    last = found[-1].number if found else ""
    starts = {step.start for step in found}
    for section in sections:
        for heading in between(page.headings, section.start + 1, section.end):
            named = (
                read_number(heading.title)
                if heading.level == 3 and heading.line not in starts
                else None
            )
            if (
                named
                and last.isdigit()
                and named.number == str(int(last) + 1)
                and _has_constraints(page, heading, section.end)
            ):
                message = f"Step {named.number} is in section {section.heading.title!r}"
                problems.append(
                    _remark(message, heading, "it is run as a step; move it to '## Steps'")
                )
                last = named.number
                yield Step(
                    named.number,
                    named.title,
                    heading.line,
                    _end_of(page, heading, section.end),
                    heading.column,
                )


def _end_of(page: Page, heading: Heading, limit: int) -> int:
    """Return the line before which a heading's content ends."""
    return min(
        limit,
        next(
            (
                other.line
                for other in after(page.headings, heading.line)
                if other.level <= heading.level
            ),
            limit,
        ),
    )


def _has_constraints(page: Page, heading: Heading, limit: int) -> bool:
    return any(
        is_constraints(label)
        for label in between(page.labels, heading.line, _end_of(page, heading, limit))
    )


def _with_parts(page: Page, step: Step) -> Step:
    return replace(
        step,
        substeps=tuple(_substeps(page, step)),
        blocks=tuple(read_blocks(page, step.start, step.end, is_constraints)),
    )


def _substeps(page: Page, step: Step) -> Iterator[Substep]:
    for heading in between(page.headings, step.start + 1, step.end):
        named = (
            read_number(heading.title) if step.level and heading.level == step.level + 1 else None
        )
        if named:
            yield Substep(
                named.number,
                named.title,
                heading.line,
                _end_of(page, heading, step.end),
                heading.column,
            )


def _remark(message: str, heading: Heading, hint: str) -> Problem:
    return Problem(message, heading.line + 1, heading.column, hint=hint, severity="warning")
