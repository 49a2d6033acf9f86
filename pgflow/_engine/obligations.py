"""Obligations: the code opens and closes them.

Both are notes. Others may close an obligation too, which the database records as a mark
(``sql/ledgers/obligations.sql``), so closing a closed obligation again has no effect.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from pgflow._engine import mypyc_attr
from pgflow._engine.agenda import Agenda
from pgflow._engine.buffer import Buffer
from pgflow._engine.history import History
from pgflow._engine.keys import Keys, name_in_key
from pgflow._engine.owed import Owed
from pgflow._engine.parts import Parts
from pgflow._engine.values import Values
from pgflow._model.codecs import quote_json
from pgflow._model.kinds import Kind
from pgflow.errors import InvalidArgument


@mypyc_attr(allow_interpreted_subclasses=True)
class Obligations:
    """Owns nothing: the agenda has the obligations, because the journal has marks on them too."""

    def __init__(self, parts: Parts) -> None:
        self._claim = parts.claim
        self._buffer = parts[Buffer]
        self._agenda = parts[Agenda]
        self._history = parts[History]
        self._values = parts[Values]
        self._keys = parts[Keys]

    def open(
        self,
        what: str,
        to: str,
        *,
        delay_seconds: float | None,
        due_us: int | None,
        outlives: bool,
        detail: str | None,
        agree: Callable[[str], dict[str, str]],
    ) -> str:
        """Record an obligation, and return its key.

        Args:
            what: Name of the obligation.
            to: Creditor; empty for none.
            delay_seconds: Seconds from now until it is due; None for none.
            due_us: Time when it is due, in microseconds; None for none.
            outlives: True if the run may complete before it is closed.
            detail: Further facts, as JSON; None for none.
            agree: Takes the key and returns what to do on a breach: JSON by member.
        """
        history = self._history
        number = history.next_call()
        noted = history.next_noted()  # reads what the run inherited
        place = f"/owe/{name_in_key(what)}/{self._keys.next_ordinal(f'owe/{what}')}"
        known = self._dropped(place, to)
        key = self._claim.stem + place if known is None else known.key
        agreed = agree(key)
        text = ""
        if noted is None or noted.kind != Kind.OBLIGATION_OPENED:
            text = self._text(
                key, to, due_us, detail, agreed, outlives=outlives, is_again=known is not None
            )
        unit = history.note(number, Kind.OBLIGATION_OPENED, what, text, delay_seconds)
        if unit is None:
            self._buffer.owe()
        else:
            key = json.loads(unit.payload or "{}")["key"]
            known = self._agenda.obligations.get(key)
        if known is not None:  # it continues unchanged
            known.call = number
        else:  # a fork only repeats what its origin owes
            is_own = key.startswith(self._claim.root)
            self._agenda.promise(
                Owed(key, what, to, number, holds=is_own and not outlives, is_open=is_own)
            )
        return key

    def _dropped(self, place: str, to: str) -> Owed | None:
        """Return the obligation that a dropped part of the journal opened at the same place, or
        None.
        """
        for owed in self._agenda.obligations.values():
            if owed.is_dropped and owed.key.endswith(place) and owed.to == to:
                return owed
        return None

    def _text(
        self,
        key: str,
        to: str,
        due_us: int | None,
        detail: str | None,
        agreed: dict[str, str],
        *,
        outlives: bool,
        is_again: bool,
    ) -> str:
        members = [f'"key":{quote_json(key)}']
        if is_again:
            members.append('"again":true')
        if to:
            members.append(f'"to":{quote_json(to)}')
        if due_us is not None:
            members.append(f'"due_us":{due_us}')
        if outlives:
            members.append('"outlives":true')
        if agreed:
            what = "what is sent or started on a breach"
            sealed = {
                name: self._values.sealed(text, what) if name in ("payload", "input") else text
                for name, text in agreed.items()
            }
            pairs = ",".join(f"{quote_json(name)}:{text}" for name, text in sealed.items())
            members.append(f'"on_breach":{{{pairs}}}')
        if detail is not None:
            members.append(f'"detail":{self._values.sealed(detail, "the detail of an obligation")}')
        return "{" + ",".join(members) + "}"

    def close(
        self, key: str, verdict: str, details: dict[str, Any], evidence: str | None = None
    ) -> None:
        """Record that an obligation is closed, or was transferred outside the run.

        Args:
            key: Its key.
            verdict: A member of :class:`pgflow._engine.owed.Closing`.
            details: Further facts: author, reason, and new debtor.
            evidence: Evidence, as JSON; None for none.

        Raises:
            InvalidArgument: The run has not opened it.
        """
        history = self._history
        history.check_open()
        history.next_noted()  # reads what the run inherited
        owed = self._agenda.obligations.get(key)
        if owed is None:
            raise InvalidArgument(
                f"{key!r} is not an obligation of this run: close another run's in a step, with "
                "the app's client"
            )
        number = history.next_call()
        text = json.dumps({"key": key, "verdict": verdict, **details})
        if evidence is not None and history.next_noted() is None:
            sealed = self._values.sealed(evidence, "the evidence of a discharge")
            text = f'{text[:-1]},"evidence":{sealed}}}'
        unit = history.note(number, Kind.OBLIGATION_CLOSED, owed.what, text)
        if unit is None:
            self._buffer.owe()
        else:
            was = json.loads(unit.payload or "{}")
            if (was.get("key"), was.get("verdict")) != (key, verdict):
                history.diverge(
                    f"in the journal obligation {was.get('key')} was {was.get('verdict')} here",
                    code=f"the code says that {key} is {verdict}",
                    unit=unit,
                )
        owed.close(verdict)
