"""Notes: state and labels that the code sets, and the time and randomness that a replay repeats."""

from __future__ import annotations

import json
import random
import uuid

from pgflow._engine import mypyc_attr
from pgflow._engine.buffer import Buffer
from pgflow._engine.clock import Clock
from pgflow._engine.history import History
from pgflow._engine.parts import Parts
from pgflow._engine.values import Values
from pgflow._model.kinds import Kind
from pgflow._model.units import Unit, relabelled


@mypyc_attr(allow_interpreted_subclasses=True)
class Notes:
    """Owns the run's random number generator, which a replay repeats."""

    def __init__(self, parts: Parts) -> None:
        self._claim = parts.claim
        self._clock = parts[Clock]
        self._buffer = parts[Buffer]
        self._history = parts[History]
        self._values = parts[Values]
        self._random: random.Random | None = None
        self._random_stem = ""

    # ================================================================ time and chance

    def now_us(self) -> int:
        """Return the time of the last outcome, for ``now()``. Before the first one, record the
        current time and return that.
        """
        if self._clock.stands_us is None:
            unit = self._history.note(self._history.next_call(), Kind.CLOCK_READ, None, None)
            self._clock.stand_at(unit.at_us if unit is not None else self._buffer.rows[-1].at_us)
        assert self._clock.stands_us is not None
        return self._clock.stands_us

    @property
    def random(self) -> random.Random:
        """Random number generator that a replay repeats."""
        stem = self.stem
        if self._random is None or self._random_stem != stem:
            self._random, self._random_stem = random.Random(stem), stem  # noqa: S311 - must be repeatable
        return self._random

    @property
    def stem(self) -> str:
        """Seed of random numbers and of keys that the code makes. An inherited part of the journal
        keeps its seed.
        """
        if self._claim.heritage is not None:
            for upto, stem in self._claim.heritage.seeds:
                if upto is None or self._buffer.seq < upto:
                    return stem
        return self._claim.stem

    def uuid(self) -> uuid.UUID:
        """Return a random UUID that a replay repeats."""
        return uuid.UUID(int=self.random.getrandbits(128), version=4)

    # ================================================================ state, labels and streams

    def set_state(self, text: str) -> None:
        """Record the run's state."""
        number = self._history.next_call()
        self._history.note(
            number,
            Kind.STATE_SET,
            None,
            self._values.sealed_note(text, "the state of a run", is_object=True),
        )

    def set_labels(self, text: str) -> None:
        """Record a change of the run's labels: names and values, null to remove one."""
        unit = self._history.note(self._history.next_call(), Kind.LABELS_SET, None, text)
        if unit is None:
            self._buffer.book()
        else:
            text = unit.payload or "{}"
        self._claim.labels = relabelled(self._claim.labels, json.loads(text))

    def emit(self, stream: str, text: str) -> None:
        """Record a value of an output stream and flush it at once."""
        number = self._history.next_call()
        self._emit(number, stream, self._values.sealed_note(text, f"a value of stream {stream!r}"))

    def close_stream(self, stream: str) -> None:
        """Record the end of an output stream: a unit without a value."""
        self._emit(self._history.next_call(), stream, None)

    def _emit(self, number: int, stream: str, text: str | None) -> None:
        unit = self._history.note(number, Kind.EMITTED, stream, text)
        if unit is None:
            self._buffer.emitted()
        elif (unit.payload is None) != (text is None):
            was, asked = (
                ("closed", "emit to") if unit.payload is None else ("given a value", "close")
            )
            self._history.diverge(
                f"in the journal stream {stream!r} was {was} here",
                code=f"the code asks to {asked} it",
            )

    # ================================================================ patches

    def patched(self, patch_id: str) -> bool:
        """Return True if the code may take the new side of a change: always, unless this run passed
        here before the change.
        """
        if self._take_deprecated(patch_id):
            return True
        unit = self._history.next_noted()
        if unit is not None and (unit.kind, unit.name) != (Kind.PATCHED, patch_id):
            return False
        self._history.note(self._history.next_call(), Kind.PATCHED, patch_id, None)
        return True

    def deprecate_patch(self, patch_id: str) -> None:
        """Accept the marker of a change, or its absence. A new marker has no call number, so that
        you can remove the call later.
        """
        if self._take_deprecated(patch_id):
            return
        unit = self._history.next_noted()
        if unit is None:
            self._history.check_open()
            self._buffer.record(0, Kind.PATCHED, patch_id, None)
        elif (unit.kind, unit.name) == (Kind.PATCHED, patch_id):
            self._history.note(self._history.next_call(), Kind.PATCHED, patch_id, None)

    def _take_deprecated(self, patch_id: str) -> bool:
        """Take the marker of a deprecated patch; return True if the journal has it here."""
        history = self._history
        history.check_open()
        if not history.replaying:
            return False
        history.skip_marks(upto_patch=patch_id)
        unit: Unit | None = history.journal.peek()
        if unit is None or (unit.call, unit.kind, unit.name) != (0, Kind.PATCHED, patch_id):
            return False
        history.take()
        return True
