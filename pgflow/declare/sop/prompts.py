"""The prompt of an agent for one step of an SOP.

It is the SOP itself with the other steps taken out: its sections in their order, then the step with
its substeps, each block of constraints with the strictest first. Around it are the tags in which
the original hands SOPs to agents, the parameters' values, the output of the step before, and the
user's message, each between tags that it cannot end. Only the first step's prompt says how to ask
for parameters; the later ones have their values.

An SOP's text is not a template. A reference that would be filled in (``$ARGUMENTS`` in an example
of a shell script) is written with braces, which are never filled in and mean the same to a shell.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from pgflow.declare.sop.constraints import Block
from pgflow.declare.sop.outline import Outline
from pgflow.declare.sop.page import Page
from pgflow.declare.sop.steps import Step
from pgflow.declare.text.tags import attribute
from pgflow.declare.text.templates import input_reference

_VARIABLE: Final = re.compile(
    r"\$(WORKFLOW_ID|ARTIFACTS_DIR|STATE_DIR|BASE_BRANCH|DOCS_DIR|USER_MESSAGE|ARGUMENTS|LOOP_USER_INPUT|REJECTION_REASON|LOOP_PREV_OUTPUT"
    r"|EXTERNAL_CONTEXT|ISSUE_CONTEXT|CONTEXT|INPUTS\.[A-Za-z0-9_-]+|INPUTS\{[^{}\n]+\}|[a-zA-Z_][a-zA-Z0-9_-]*\.output)"
)


def variables(line: str) -> Iterator[tuple[str, int]]:
    """Yield each placeholder of a line, with its column."""
    for found in _VARIABLE.finditer(line):
        yield found[0], found.start() + 1


def as_is(text: str) -> str:
    """Return a text with the same meaning in which nothing is filled in."""
    return _VARIABLE.sub(r"${\1}", text)


def context(outline: Outline, *, asks: bool) -> str:
    """Return the context of an SOP, which is in every prompt.

    Args:
        outline: The SOP.
        asks: True to include how to get parameters.

    Returns:
        Its text without steps.
    """
    blocks = {block.start: block for block in outline.acquisition}
    parts = (
        _with_blocks(outline.page, start, end, blocks, keep=asks) for start, end in outline.context
    )
    return as_is("\n\n".join(part for part in parts if part))


def prompt(
    outline: Outline, step: Step, name: str, shared: str, before: tuple[str, str] | None
) -> str:
    """Return the prompt of a step.

    Args:
        outline: The SOP.
        step: The step.
        name: The SOP's name.
        shared: Text of `context`.
        before: The previous step, as a person would call it,
            and the id of its node; None for the first.

    Returns:
        A template: values, the previous output and the user's message
        are filled in before it is sent.
    """
    own = as_is(
        _with_blocks(
            outline.page,
            step.start,
            step.end,
            {block.start: block for block in step.blocks},
            keep=True,
        )
    )
    parts = [
        (
            f"Carry out one step of this SOP: {called(step)}. "
            "Its other steps are carried out before and after this one."
        ),
        (
            f'<agent-sop name="{as_is(attribute(name))}">\n<content>\n{shared}\n\n## '
            f"Steps\n\n{own}\n</content>\n</agent-sop>"
        ),
        _values(outline),
        f"What the step before, {as_is(before[0])}, said:\n\n<previous-step>\n"
        f"${before[1]}.output\n</previous-step>"
        if before
        else "",
        "<user-input>\n$ARGUMENTS\n</user-input>",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def called(step: Step) -> str:
    """Return a step as a person would name it: ``2. Explore Phase``."""
    return f"{step.number}. {step.title}".rstrip(". ")


def _values(outline: Outline) -> str:
    """Return the parameters, one below the other: a value may have lines of its own."""
    names = dict.fromkeys(parameter.name for parameter in outline.parameters)
    given = "\n".join(
        f'<parameter name="{name}">{input_reference(name)}</parameter>' for name in names
    )
    return f"Parameters (an empty one was not given):\n\n{given}" if given else ""


def _with_blocks(page: Page, start: int, end: int, blocks: dict[int, Block], *, keep: bool) -> str:
    """Lines with the blocks of constraints among them put into their order, or left out."""
    parts = []
    for opening in sorted(opening for opening in blocks if start <= opening < end):
        parts.append(page.text(start, opening))
        if keep:
            parts.append(_block(page, blocks[opening]))
        start = blocks[opening].end
    parts.append(page.text(start, end))
    return "\n\n".join(part for part in parts if part)


def _block(page: Page, block: Block) -> str:
    first = block.rules[0].start if block.rules else block.end
    head = page.text(block.start, max(first, block.start + 1))
    if not block.rules or block.rules[0].start == block.start:
        return page.text(block.start, block.end)
    return head + "\n" + "\n".join(page.text(rule.start, rule.end) for rule in block.in_order)
