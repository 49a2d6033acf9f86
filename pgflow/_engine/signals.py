"""Waits for signals."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from pgflow._engine import mypyc_attr
from pgflow._engine.calls import SignalCall
from pgflow._engine.history import NEVER
from pgflow._engine.kind import KindOfCall
from pgflow._model.codecs import Codec


@mypyc_attr(allow_interpreted_subclasses=True)
class Signals(KindOfCall[SignalCall]):
    """Owns nothing: a wait is an open call, and a note if it has a time-out. The database decides
    which message it takes.
    """

    def issue(self, name: str, codec: Codec[Any], timeout: timedelta | None) -> SignalCall:
        """Wait for a signal."""
        call = SignalCall(self._history.next_call(), name, self._code.driver.waiter(), codec=codec)
        if call.number != NEVER:
            self._agenda.enter(call)
            if timeout is not None:
                self._limit(call, name, timeout)
            self._agenda.look()
        return call
