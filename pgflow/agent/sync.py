"""For sync workflows: the twin of the loop."""

from pgflow.agent._sync_loop import loop

__all__ = ["loop"]
