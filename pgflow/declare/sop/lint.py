"""Remarks on an SOP: those of the format's own validator, in its words, and those that its rules
ask for besides.

Nothing here keeps an SOP from being used: the original serves any file that has an overview. Its
validator stops at its first remark; this one makes all of them, each with its place.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Final

from pgflow.declare.graph.problems import Problem
from pgflow.declare.sop.constraints import Rule
from pgflow.declare.sop.numbering import order_of
from pgflow.declare.sop.outline import Outline
from pgflow.declare.sop.page import Heading, bare
from pgflow.declare.sop.parameters import is_snake_case
from pgflow.declare.sop.prompts import called, variables
from pgflow.declare.sop.steps import OVERVIEW, PARAMETERS, STEPS, Step

_EXTENSIONS: Final = (".sop.md", ".script.md")
_QUOTE_LIMIT: Final = 80


def remarks(outline: Outline, file: str) -> Iterator[Problem]:
    """Yield the remarks on an SOP.

    Args:
        outline: The SOP.
        file: The name of its file.

    Returns:
        Warnings, in no order.
    """
    if not file.endswith(_EXTENSIONS):
        yield Problem("File must use .sop.md extension", severity="warning")
    yield from _of_sections(outline)
    yield from _of_parameters(outline)
    yield from _of_steps(outline)
    general = (block for _, block in outline.general)
    for block in chain(outline.acquisition, general, *(step.blocks for step in outline.steps)):
        for rule in block.rules:
            yield from _of_rule(rule)
    yield from _of_markdown(outline)


def _of_sections(outline: Outline) -> Iterator[Problem]:
    if outline.title is None:
        yield Problem("Missing required section: Title (H1)", severity="warning")
    for name in (OVERVIEW, PARAMETERS, STEPS):
        sections = outline.named(name)
        if not sections:
            yield Problem(f"Missing required section: {name.title()}", severity="warning")
        for again in sections[1:]:
            yield _at(
                again.heading,
                f"A second section {again.heading.title!r}",
                f"the first is on line {sections[0].start + 1}",
            )
    for name in ("Examples", "Troubleshooting"):
        if not outline.named(name.casefold()):
            yield Problem(f"Recommended section missing: {name}", severity="warning")


def _of_parameters(outline: Outline) -> Iterator[Problem]:
    sections = outline.named(PARAMETERS)
    if outline.parameters and not outline.acquisition:
        yield _at(
            sections[0].heading,
            "Parameters section missing 'Constraints for parameter acquisition'",
        )
    if sections and outline.page.lines[sections[0].start + 1 :][:1] != ("",):
        yield _at(sections[0].heading, "Parameters section must have blank line after heading")
    first: dict[str, int] = {}
    optional = None
    for parameter in outline.parameters:
        where = (parameter.line + 1, parameter.column)
        if parameter.name in first:
            yield _warning(
                f"Parameter '{parameter.name}' is declared twice",
                *where,
                f"the first counts, on line {first[parameter.name]}",
            )
        elif not is_snake_case(parameter.name):
            yield _warning(
                f"Parameter names must use lowercase letters and underscores: '{parameter.name}'",
                *where,
            )
        if parameter.required and optional:
            message = f"Required parameter '{parameter.name}' after the optional '{optional}'"
            yield _warning(message, *where, "list required parameters first")
        optional = optional or (None if parameter.required else parameter.name)
        first.setdefault(parameter.name, parameter.line + 1)


def _of_steps(outline: Outline) -> Iterator[Problem]:
    seen: dict[str, Step] = {}
    before: Step | None = None
    for step in outline.steps:
        if step.number in seen:
            yield _of_step(
                step,
                f"Step {step.number} is there twice",
                f"the first is on line {seen[step.number].start + 1}",
            )
        elif before is not None and order_of(step.number) < order_of(before.number):
            yield _of_step(
                step,
                f"Step {step.number} comes after step {before.number}",
                "steps run in the order of the file",
            )
        if not any(block.rules for block in step.blocks):
            yield _of_step(
                step, f"Step without constraints: {called(step)}", "add a '**Constraints:**' list"
            )
        for block in step.blocks:
            if not block.rules:
                yield _warning(
                    "No bullets under Constraints",
                    block.start + 1,
                    block.column,
                    "the agent gets its text unchanged",
                )
        seen.setdefault(step.number, step)
        before = step
    if outline.steps and not any(step.blocks for step in outline.steps):
        yield Problem("No Constraints sections found in steps", severity="warning")
    yield from _of_substeps(outline.steps)


def _of_substeps(steps: Iterable[Step]) -> Iterator[Problem]:
    for step in steps:
        seen: set[str] = set()
        for part in step.substeps:
            if part.number in seen:
                yield _warning(f"Substep {part.number} is there twice", part.start + 1, part.column)
            elif not part.number.startswith(step.number):
                yield _warning(
                    f"Substep {part.number} is inside step {step.number}",
                    part.start + 1,
                    part.column,
                )
            seen.add(part.number)


def _of_rule(rule: Rule) -> Iterator[Problem]:
    quote = rule.text.split("\n", 1)[0]
    quote = quote if len(quote) <= _QUOTE_LIMIT else quote[: _QUOTE_LIMIT - 3] + "..."
    if rule.level is None:
        hint = "say MUST, MUST NOT, SHOULD, SHOULD NOT or MAY"
        yield _warning(
            f"No RFC 2119 keyword in constraint: {quote}", rule.start + 1, rule.column, hint
        )
    elif rule.is_negative and not rule.because:
        yield _warning(
            f"Negative constraint without context: {quote}",
            rule.start + 1,
            rule.column,
            "add 'because', 'since', etc.",
        )


def _of_markdown(outline: Outline) -> Iterator[Problem]:
    page = outline.page
    if page.front_matter:
        yield _warning("Front matter is not part of the format", 1, 1, "it is left out")
    for line in page.unclosed:
        yield _warning(
            "This code fence is never closed", line + 1, 1, "all that follows it is read as code"
        )
    for line in page.glued:
        yield _warning(
            f"Not a heading: {bare(page.lines[line])[:_QUOTE_LIMIT]}",
            line + 1,
            1,
            "put a space after the number signs",
        )
    for number, text in enumerate(page.lines[page.front_matter :], page.front_matter + 1):
        for variable, column in variables(text):
            hint = "an SOP's own text is not a template: the agent sees ${...} as it is"
            yield _warning(f"{variable} is not filled in", number, column, hint)


def _of_step(step: Step, message: str, hint: str) -> Problem:
    return _warning(message, step.start + 1, step.column, hint)


def _at(heading: Heading, message: str, hint: str = "") -> Problem:
    return _warning(message, heading.line + 1, heading.column, hint)


def _warning(message: str, line: int, column: int, hint: str = "") -> Problem:
    return Problem(message, line, column, hint=hint, severity="warning")
