"""Agents: the loop around a model that acts, and its outcome.

The loop is a function over functions: you pass what to observe, decide, ask, do and judge, and the
loop calls them in its order. It uses only public parts, ``@decision``, ``gate``, ``@effect``,
``saga``, ``because`` and ``continue_as_new``, so if you need another order, write it with the same
parts.

``loop`` is for async workflows, and ``pgflow.agent.sync.loop`` for sync ones.
"""

from pgflow.agent import sync as sync
from pgflow.agent._async_loop import loop as loop
from pgflow.agent.log import Feedback, LogUnit, Remarks, read_log
from pgflow.agent.outcome import Declined, NotGood, Outcome

__all__ = [
    "Declined", "Feedback", "LogUnit", "NotGood", "Outcome", "Remarks", "loop", "read_log", "sync",
]  # fmt: skip
