"""Idempotency keys: how calls in the ledgers and calls of decisions get their keys."""

from __future__ import annotations

import uuid

from pgflow._engine.calls import StepCall
from pgflow._engine.history import History
from pgflow._engine.parts import Parts
from pgflow._model.kinds import StepKind
from pgflow.errors import InvalidArgument

Resting = tuple[str, str | int | None]
"""Key of a decision, and the item that a call is about."""

MAX_KEY_BYTES = 255
MAX_KEY_NAME_CHARS = 64
"""Maximum length of a step's name in its idempotency keys. Others allow 255 characters for a key,
and its other parts take about a hundred.
"""


class Keys:
    """Owns the number of uses of each name, in program order, and the used items of decisions."""

    def __init__(self, parts: Parts) -> None:
        self._claim = parts.claim
        self._journal = parts[History].journal
        self._counts: dict[str, int] = {}
        self._items: set[str] = set()

    def next_ordinal(self, name: str) -> int:
        """Return 1 for the first use of a name in this run, 2 for the second, ...: the last part of
        an idempotency key.
        """
        count = self._counts.get(name, 0) + 1
        self._counts[name] = count
        return count

    def count(self, call: StepCall) -> None:
        """Give a step its ordinal among those of its name. The key is built from it on request."""
        name = call.spec.name
        call.ordinal = self._counts[name] = self._counts.get(name, 0) + 1
        if len(name) > MAX_KEY_NAME_CHARS:
            # Journals and views would build a key with the full name from a bare number.
            started = self._journal.starts.get(call.number)
            call.ordinal = (
                f"{self._claim.stem}/{name_in_key(name)}/{call.ordinal}"
                if started is None
                else started.ordinal
            )

    def name(self, call: StepCall, rests_on: Resting | None) -> None:
        """Build the key of a call that the ledgers know by key. A call known by a former name keeps
        the key it has.
        """
        known = self._journal.names.get(call.number)
        if known is not None and known in call.aliases:
            call.name = known
        if rests_on is None:
            call.ordinal = self.next_ordinal(call.name)
            call.key = f"{self._claim.stem}/{name_in_key(call.name)}/{call.ordinal}"
            if len(call.name) > MAX_KEY_NAME_CHARS:
                call.ordinal = call.key
        else:
            self._name_resting(call, rests_on)
        intended = self._intended(call)
        if intended is not None:  # possibly by another run
            call.key = call.ordinal = intended

    def name_compensation(self, call: StepCall, effect_key: str) -> None:
        """Build the key of a compensation from its effect's key, which is the same in every run and
        generation.
        """
        stem = f"{effect_key}/{name_in_key(call.name)}"
        ordinal = self.next_ordinal(stem)
        key = f"{stem}/{ordinal}"
        if len(key.encode()) > MAX_KEY_BYTES:
            key = (
                f"{self._claim.root}/{name_in_key(call.name)}/"
                f"{uuid.uuid5(uuid.NAMESPACE_OID, effect_key)}/{ordinal}"
            )
        call.key = call.ordinal = self._intended(call) or key

    def _intended(self, call: StepCall) -> str | None:
        """Return the key under which the journal has intended the effect; None if it has not."""
        started = self._journal.starts.get(call.number)
        if (
            started is not None
            and started.effect == StepKind.EFFECT
            and isinstance(started.ordinal, str)
        ):
            return started.ordinal
        return None

    def _name_resting(self, call: StepCall, rests_on: Resting) -> None:
        decision, item = rests_on
        stem = f"{decision}/{name_in_key(call.name)}"
        call.key = call.ordinal = f"{stem}/{self.next_ordinal(stem) if item is None else item}"
        if call.key in self._items:
            raise InvalidArgument(
                f"{call.name} has already been called because of {decision} for item {item!r}: "
                "call it once for each item"
            )
        if len(call.key.encode()) > MAX_KEY_BYTES:
            raise InvalidArgument(
                f"the key of {call.name} would be longer than {MAX_KEY_BYTES} bytes: "
                f"{call.key[:80]}..."
            )
        self._items.add(call.key)


def name_in_key(name: str) -> str:
    """Return a name as idempotency keys have it: shortened to its beginning and a hash if it is
    long.
    """
    return (
        name
        if len(name) <= MAX_KEY_NAME_CHARS
        else f"{name[:31]}~{uuid.uuid5(uuid.NAMESPACE_OID, name).hex}"
    )
