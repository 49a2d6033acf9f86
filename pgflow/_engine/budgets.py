"""Budgets: the spending of a run, and the calls whose reservations end.

The database admits a call or refuses it (``sql/ledgers/budgets.sql``). A call asks with the next
flush, before anything else (``Want.ADMISSION``), and its body starts upon the answer. The mark that
admits a step carries its licence, so an admission needs no commit of its own; a refusal is an
outcome. The spending of a body is recorded before the result of its try, as marks without a call;
the spending of the code is recorded as notes. The flush that records the end of a call ends its
reservation too, and the flush that ends the run returns the rest.

A replay settles nothing, because the commits that wrote the journal did. Two exceptions: the
database alone may have closed an effect, and calls left behind when the code ended were never
closed. The first flush after a replay names both again. An inherited admission does not count: the
reservation is the origin's, so the new run asks again.

Runs without a pool pay for two checks of a key, one in the batch and one in the questions. In a run
under a hard pool, which the claim reports, steps ask too.
"""

from __future__ import annotations

import json

from pgflow._engine import mypyc_attr
from pgflow._engine.buffer import Buffer
from pgflow._engine.history import History
from pgflow._engine.parts import Parts
from pgflow._model.budgets import Spent
from pgflow._model.kinds import Kind


@mypyc_attr(allow_interpreted_subclasses=True)
class Budgets:
    """Owns nothing: the buffer has the rows, the agenda the calls that ended."""

    def __init__(self, parts: Parts) -> None:
        self._buffer = parts[Buffer]
        self._history = parts[History]

    def charge(self, spent: Spent) -> None:
        """Record spending of the workflow's code."""
        charge: dict[str, object] = {"amounts": spent.amounts}
        if spent.model is not None:
            charge["model"] = spent.model
        number = self._history.next_call()
        if self._history.note(number, Kind.BUDGET_CHARGED, None, json.dumps(charge)) is None:
            self._buffer.draw()
