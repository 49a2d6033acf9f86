"""Agents: the loop around a model that acts, and what it comes to.

The loop is a function over functions: what is observed, decided, asked, done and judged is the
caller's, and the order of these is the loop's. It is made of the public words alone, ``@decision``,
``gate``, ``@effect``, ``saga``, ``because`` and ``continue_as_new``, so that whoever needs another
order writes it down in the same words.

``loop`` is for async workflows, and ``pgflow.agent.sync.loop`` for sync ones.
"""

from pgflow.agent import sync as sync
from pgflow.agent._async_loop import loop as loop
from pgflow.agent.log import Feedback, LogUnit, Remarks, read_log
from pgflow.agent.outcome import Declined, NotGood, Outcome

__all__ = [
    "Declined", "Feedback", "LogUnit", "NotGood", "Outcome", "Remarks", "loop", "read_log", "sync",
]  # fmt: skip
