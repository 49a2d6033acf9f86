"""Decisions: steps that record a choice, its alternatives, its model and its cost."""

from pgflow._flow.decorators import decision
from pgflow._model.decisions import Choice, Decision, Usage

__all__ = ["Choice", "Decision", "Usage", "decision"]
