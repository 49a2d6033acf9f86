"""The workflow code of a run, which receives one outcome at a time."""

from __future__ import annotations

from typing import Any

from pgflow._engine.agenda import Agenda
from pgflow._engine.calls import Call
from pgflow._engine.drivers import CLOSED, Driver
from pgflow._engine.parts import Parts


class Code:
    """Owns the driver, and whether the code has ended or is being unwound."""

    def __init__(self, parts: Parts) -> None:
        self._agenda = parts[Agenda]
        self.driver: Driver = CLOSED
        self.closing = False
        self.has_ended = False
        """True once the code has ended with an effect still open."""

    def drive_by(self, driver: Driver) -> None:
        """Set the driver. It needs the other parts, so it is made last."""
        self.driver = driver

    def deliver(self, call: Call, value: Any, error: Exception | None) -> None:
        """Close a call, pass its outcome to the code and run the code."""
        effect = self._agenda.effects.get(call.number)
        if effect is None:
            self._agenda.drop(call)
        else:
            self._agenda.close_effect(effect, value, error)
        call.deliver(value, error)
        if not self.has_ended:
            # Once the code has ended, its leftover tasks must not run on just because an effect is
            # still open.
            self.driver.resume()

    def end(self) -> None:
        """Mark the code as ended and drop every call but intended effects."""
        if not self.has_ended:
            self.has_ended = True
            self._agenda.drop_all_but_effects()

    def close(self) -> None:
        """Unwind the code."""
        self.closing = True
        self.driver.close()
        if not self.driver.busy:
            self.driver = CLOSED
