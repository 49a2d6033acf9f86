"""The code of a run, as its outcomes are handed to it."""

from __future__ import annotations

from typing import Any

from pgflow._engine.agenda import Agenda
from pgflow._engine.calls import Call, Waiter
from pgflow._engine.drivers import CLOSED, Driver
from pgflow._engine.effects import EffectCall


class Code:
    """Owns the driver, and whether the code has ended or is being taken apart."""

    def __init__(self, agenda: Agenda) -> None:
        self._agenda = agenda
        self.driver: Driver = CLOSED
        self.closing = False
        self.has_ended = False
        """True once the code has ended while an effect of it is open."""

    def drive_by(self, driver: Driver) -> None:
        """The driver, which is made when the parts that it speaks to are."""
        self.driver = driver

    def waiter(self) -> Waiter:
        """A new place for an outcome."""
        return self.driver.waiter()

    def resume(self) -> None:
        """Runs the code after an outcome was handed in."""
        self.driver.resume()

    def deliver(self, call: Call, value: Any, error: Exception | None) -> None:
        """Hands an outcome to whoever asked for it, and runs the code."""
        self._agenda.drop(call)
        if isinstance(call, EffectCall):
            self._agenda.close_effect(call, value, error)
        call.deliver(value, error)
        if not self.has_ended:
            # What the code left running when it ended does not go
            # on for the sake of an open effect.
            self.driver.resume()

    def end(self) -> None:
        """It has ended, and an effect of it is open: nothing else of what it asked for goes on."""
        if not self.has_ended:
            self.has_ended = True
            self._agenda.drop_all_but_effects()

    def close(self) -> None:
        """Takes it apart."""
        self.closing = True
        self.driver.close()
        if not self.driver.busy:
            self.driver = CLOSED
