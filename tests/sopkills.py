"""Workers of Agent SOPs are killed inside steps and between them, again and again: `python -m
tests.sopkills SERVER_DSN [--kills N] [--seed S]`.

The SOP has what an SOP can have: parameters that are asked for, steps that ask the user, and a step
that has another SOP carried out, which asks for its own. What was recorded when a worker died is
never done again, no question is asked twice, and each run completes with the same words. The rest
is `tests.filekills`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, ClassVar

from pgflow.authority import Approve
from pgflow.inspect import GateRow
from tests import filekills
from tests.kits.sopkit import sop

STEPS = """### 1. Look

**Constraints:**
- You MUST ask the user which part matters

### 2. Think

**Constraints:**
- You MUST think

### 3. Hand on

**Constraints:**
- You MUST run `helping` on it

### 4. Tell

**Constraints:**
- You MUST ask the user whether it is told well"""
HELP = """### 1. Help

**Constraints:**
- You MUST help

### 2. Check

**Constraints:**
- You MUST check"""
REPLIES = {
    "step-1-look": "<ask-user>Which part?</ask-user>",
    "step-1-look:turn#2": "<ask-user>Sure?</ask-user>",
    "step-3-hand-on": '<run-sop name="helping">help me</run-sop>',
    "step-4-tell": "<ask-user>Well?</ask-user>",
}


class SopPlay(filekills.Play):
    """One run of the SOP."""

    output = "did step-4-tell"
    settings: ClassVar[dict[str, Any]] = {"provider": "python:sop_agents:slow", "chain": True}

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.asked: set[str] = set()

    def file(self) -> Path:
        """Write the SOPs, and what the agent says."""
        (self.folder / "helping.sop.md").write_text(sop(steps=HELP))
        (self.folder / "replies.json").write_text(json.dumps(REPLIES))
        path = self.folder / "looking.sop.md"
        path.write_text(sop(steps=STEPS))
        return path

    def answer_to(self, gate: GateRow) -> Approve:
        """Give the parameters, or say yes; each question comes once."""
        if gate.gate in self.asked:
            self.wrong.append(f"{gate.gate} was asked again")
        self.asked.add(gate.gate)
        return Approve(edit={"topic": "tea"}) if gate.name == "parameters" else Approve()


if __name__ == "__main__":
    sys.exit(filekills.main(SopPlay, __doc__))
