"""Open claims and the units of answers, with every value of the user's in clear.

The engine and the code of workflows see clear values only, so this module opens all values from the
database, before any other code sees them. It lists the kinds of units that may hold an envelope,
and looks for one nowhere else: a value that merely looks like one is not changed.
"""

from __future__ import annotations

import json
from typing import Any

from pgflow._model.claims import Claim, Heritage, ReusedStep
from pgflow._model.codecs import ENVELOPE
from pgflow._model.envelopes import (
    REDACTED,
    Envelopes,
    is_envelope,
    open_text,
    open_unordered,
    open_value,
)
from pgflow._model.events import EVENT_MESSAGE
from pgflow._model.kinds import Kind
from pgflow._model.protocol import Answer, AnsweredUnit, SagaEntry
from pgflow._model.units import Unit

_WHOLE = frozenset({
    Kind.STEP_COMPLETED, Kind.STEP_RENEWED, Kind.STEP_FAILED, Kind.ATTEMPT_FAILED,
    Kind.DECISION_RECORDED, Kind.SIGNAL_RECEIVED, Kind.EFFECT_CONFIRMED, Kind.EFFECT_FAILED,
    Kind.EMITTED, Kind.ENTITY_UPDATED,
})  # fmt: skip
"""Kinds of units whose payload is a value or an error. What else replays read of a journal is never
sealed, save results of children. A person may have redacted others too; the request of an effect is
what a replay does not look at.
"""


def open_claim(claim: Claim, envelopes: Envelopes | None) -> None:
    """Open all values of a claim, in place. An offered signal stays sealed until the code takes it.

    Args:
        claim: The claim, with its whole journal.
        envelopes: Those of the app; None if it has no codec.

    Raises:
        CodecError: A value is in an envelope that cannot be opened here.
        Redacted: A value that the code would be given was redacted.
    """
    claim.envelopes = envelopes
    if claim.input.startswith(ENVELOPE):
        claim.input = open_text(envelopes, claim.input, f"the input of run {claim.key!r}")
    if claim.metadata:
        claim.metadata = open_unordered(envelopes, claim.metadata, f"metadata of run {claim.key!r}")
    if claim.units:
        claim.units[:] = open_units(claim.units, envelopes, claim.key)
    if claim.saga:
        claim.saga = [_open_entry(entry, envelopes, claim.key) for entry in claim.saga]
    if claim.heritage is not None:
        _open_heritage(claim.heritage, envelopes, claim.key)


def open_units(units: list[Unit], envelopes: Envelopes | None, key: str) -> list[Unit]:
    """Units in clear; see :func:`open_claim`."""
    return [
        unit if unit.payload is None else _opened(unit, unit.payload, envelopes, key)
        for unit in units
    ]


def open_answer(answer: Answer, envelopes: Envelopes | None, key: str) -> None:
    """Open the units that the database has decided, in place; see :func:`open_claim`."""
    answer["units"] = [
        unit
        if (payload := unit.payload) is None or "$codec" not in payload
        else _opened_unit(unit, payload, envelopes, key)
        for unit in answer["units"]
    ]


def _opened_unit(
    found: AnsweredUnit, payload: str, envelopes: Envelopes | None, key: str
) -> AnsweredUnit:
    unit = Unit(found.seq, found.call, found.kind, found.name, payload, None, 0, None)
    return found._replace(payload=_opened(unit, payload, envelopes, key).payload)


def _opened(unit: Unit, payload: str, envelopes: Envelopes | None, key: str) -> Unit:
    if payload.startswith(ENVELOPE) and (
        unit.kind in _WHOLE or (payload.startswith(REDACTED) and unit.kind != Kind.EFFECT_INTENDED)
    ):
        return unit._replace(payload=open_text(envelopes, payload, f"{unit} of run {key!r}"))
    if unit.kind == Kind.SIGNAL_RECEIVED and "$codec" in payload and is_event(unit.name):
        return unit._replace(payload=open_event(payload, envelopes, f"{unit} of run {key!r}"))
    if unit.kind in (Kind.GATE_ASKED, Kind.GATE_ANSWERED) and "$codec" in payload:
        return unit._replace(
            payload=_open_gate(json.loads(payload), envelopes, f"{unit} of run {key!r}")
        )
    if unit.kind == Kind.CHILD_FINISHED:
        return unit._replace(payload=open_child(envelopes, payload, f"{unit} of run {key!r}"))
    return unit


def is_event(name: str | None) -> bool:
    """Return True if a message of this name brings an event."""
    return name is not None and name.startswith(EVENT_MESSAGE)


def open_event(text: str, envelopes: Envelopes | None, what: str) -> str:
    """Return an event that a message brings in clear.

    Raises:
        CodecError: Its payload cannot be opened here.
    """
    data = json.loads(text)
    if isinstance(data, dict) and is_envelope(data.get("payload")):
        data["payload"] = open_value(envelopes, data["payload"], what)
    return json.dumps(data, ensure_ascii=False)


def _open_gate(data: dict[str, Any], envelopes: Envelopes | None, what: str) -> str:
    """Return what a gate asked, or its verdict, in clear."""
    for name in ("request", "value"):
        if is_envelope(data.get(name)):
            data[name] = open_value(envelopes, data[name], what)
    return json.dumps(data, ensure_ascii=False)


def open_child(envelopes: Envelopes | None, text: str, what: str) -> str:
    """Return the end of a child in clear: its result or error,
    and the effects that its parent takes back.

    Raises:
        CodecError: One of them is in an envelope that cannot be opened here.
    """
    if "$codec" not in text:
        return text
    data = json.loads(text)
    for name in ("output", "error"):
        if is_envelope(data.get(name)):
            data[name] = open_value(envelopes, data[name], what)
    if data.get("saga"):
        data["saga"]["effects"] = [
            list(_open_entry(SagaEntry(*entry), envelopes, what))[:6]
            for entry in data["saga"]["effects"]
        ]
    return json.dumps(data, ensure_ascii=False)


def _open_entry(entry: SagaEntry, envelopes: Envelopes | None, key: str) -> SagaEntry:
    what = f"effect {entry.name} of run {key!r}"
    result = (
        entry.result
        if entry.result is None
        else open_text(envelopes, entry.result, f"the result of {what}")
    )
    return entry._replace(
        request=open_text(envelopes, entry.request, f"the request of {what}"), result=result
    )


def _open_heritage(heritage: Heritage, envelopes: Envelopes | None, key: str) -> None:
    def opened(text: str | None, name: str) -> Any:
        return (
            text
            if text is None
            else open_text(envelopes, text, f"what run {key!r} takes over of {name}")
        )

    heritage.carried = {
        step: [ReusedStep(c.key, opened(c.result, step[0])) for c in carried]
        for step, carried in heritage.carried.items()
    }
    heritage.effects = {
        place: e._replace(result=opened(e.result, place[0]))
        for place, e in heritage.effects.items()
    }
    heritage.children = [c._replace(input=opened(c.input, c.workflow)) for c in heritage.children]
    heritage.undo = [
        d._replace(request=opened(d.request, d.name), result=opened(d.result, d.name))
        for d in heritage.undo
    ]
