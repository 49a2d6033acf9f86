"""Declared workflows for tests: a small one of each family, as their authors would write them."""

from __future__ import annotations

import json
from pathlib import Path

REVIEW = """\
name: review
description: Reads a change and says what is wrong with it.
inputs:
  depth:
    default: short
  team:
    required: true
nodes:
  - id: size
    bash: measure-change
  - id: quick
    prompt: "Look at this $size.output change: $ARGUMENTS ($INPUTS.depth, $INPUTS.team)"
    depends_on: [size]
    when: "$size.output == 'small'"
  - id: thorough
    prompt: "Read all of $ARGUMENTS"
    depends_on: [size]
    when: "$size.output != 'small'"
  - id: report
    prompt: "Write up $quick.output$thorough.output"
    depends_on: [quick, thorough]
    trigger_rule: none_failed_min_one_success
"""

SOP = """\
# Greet

## Overview
Greets somebody.

## Parameters
- **name** (required): Who it is.

## Steps

### 1. Look

Find out about {name}.

**Constraints:**
- You MUST be kind

### 2. Greet

Say hello.
"""

CONTRACT = """\
# {title}

## Inputs

| Source | File/Location | Section/Scope | Why |
|---|---|---|---|
| brief | `{source}` | Full file | What is wanted |

## Process

1. Do it.

## Checkpoints

| After Step | Agent Presents | Human Decides |
|---|---|---|
| 1 | A draft | Whether it will do |

## Outputs

| Artifact | Location | Format |
|---|---|---|
| text | `output/text.md` | Markdown |
"""


def write_examples(folder: Path) -> None:
    """``review.yaml`` with ``stubs.json``, ``greet.sop.md``, and the workspace ``essays``."""
    (folder / "review.yaml").write_text(REVIEW)
    (folder / "stubs.json").write_text(
        json.dumps({"size": "large", "thorough": "it is fine", "report": "Fine."})
    )
    (folder / "greet.sop.md").write_text(SOP)
    make_workspace(folder / "essays")


def make_workspace(root: Path) -> None:
    """An ICM workspace of two stages, without workflow.yaml and frontmatter."""
    for number, (name, source) in enumerate(
        [("draft", "../../brief.md"), ("polish", "../01-draft/output/text.md")], 1
    ):
        stage = root / "stages" / f"{number:02}-{name}"
        (stage / "output").mkdir(parents=True)
        (stage / "output" / ".gitkeep").touch()
        (stage / "CONTEXT.md").write_text(CONTRACT.format(title=name.title(), source=source))
    (root / "CLAUDE.md").write_text("# Essays\n")
    (root / "CONTEXT.md").write_text("# Task Routing\n")
    (root / "brief.md").write_text("An essay.\n")
