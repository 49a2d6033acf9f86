"""Budgets: what a run has spent, and which of its calls are over.

The database lets a call through, or refuses it (``sql/ledgers/budgets.sql``): the call asks with
the next flush, before it asks for anything else (``Want.ADMISSION``), and its body starts when the
answer has come. The mark that admits a step carries its licence, so an admission needs no commit of
its own; a refusal is an outcome. What a body spends is recorded before what its try comes to, as
marks without a call; what the code spends are notes. The flush that records the end of a call says
that its reservation is over, and that of the run returns whatever is left.

During a replay nothing is settled: what the journal has was settled by the commits that wrote it.
Only an effect may have been closed by the database alone, and what the end of the code left behind
by nobody, so the first flush after a replay names those again. An inherited admission does not
count: what was reserved is the origin's, and the new run asks again.

Runs without a pool pay a look at one key of the batch and one of the questions. Steps of a run
under a hard pool ask too, since the claim says so.
"""

from __future__ import annotations

import json

from pgflow._engine import mypyc_attr
from pgflow._engine.agenda import Agenda
from pgflow._engine.buffer import Buffer
from pgflow._engine.history import History
from pgflow._model.budgets import Spent
from pgflow._model.kinds import Kind


@mypyc_attr(allow_interpreted_subclasses=True)
class Budgets:
    """Owns nothing: the rows are the buffer's, and what is over the agenda's."""

    def __init__(self, buffer: Buffer, agenda: Agenda, history: History) -> None:
        self._buffer = buffer
        self._agenda = agenda
        self._history = history

    def charge(self, spent: Spent) -> None:
        """Records what the code of the workflow has spent."""
        told: dict[str, object] = {"amounts": spent.amounts}
        if spent.model is not None:
            told["model"] = spent.model
        number = self._history.next_call()
        if self._history.note(number, Kind.BUDGET_CHARGED, None, json.dumps(told)) is None:
            self._buffer.draw()
