"""A deterministic simulator of pgflow on the real stored functions: one thread, many actors, one
seed.

Each actor - a worker, a sender, an operator, a poller - has a connection of its own and does one
statement at a time; a scheduler drawn from the seed says whose turn it is, and what goes wrong.
Transactions are held open, rolled back, cut off and frozen; functions are halted between two of
their statements; clocks jump; an actor that waits for a lock stays waiting while the others go on.
After every transaction the whole of the live tables is read and compared with what the model in
Python allows, and `pgflow.check()` is run on top.

Then everybody is healed, and everything must drain.

`python -m tests.simulator [DSN] [--seed S] [--transactions N]`
"""

from __future__ import annotations

from tests.simulator.proof import prove

__all__ = ["prove"]
