"""The story of a run in words, from its ledgers: what it decided and why, what it did, what it
owes; and as one page for a browser.
"""

from __future__ import annotations

import html
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pgflow import inspect


@dataclass(frozen=True)
class Event:
    """One line of the story.

    Attributes:
        at: Time of the event.
        what: decided, intended, unknown, confirmed and so on.
        name: Of the decision or effect.
        text: Text to print of it.
        key: Key of the decision or effect.
        generation: Of the run.
        seq: Place in its journal.
    """

    at: datetime
    what: str
    name: str
    text: str
    key: str
    generation: int
    seq: int


def _short(value: Any, most: int = 200) -> str:
    text = json.dumps(inspect.readable(value), ensure_ascii=False)
    return text if len(text) <= most else text[: most - 1] + "…"


def _decided(p: Mapping[str, Any]) -> str:
    parts = [inspect.encoded(dict(p)) or f"{_short(p['value'])}, because {p['why']}"]
    for label, name in (("evidence", "evidence"), ("instead of", "alternatives")):
        if p.get(name):
            parts.append(f"{label} {', '.join(map(str, p[name]))}")
    parts += [f"{name} {p[name]}" for name in ("policy", "model") if p.get(name)]
    return "; ".join(parts)


def _intended(p: Mapping[str, Any]) -> str:
    parts = [inspect.encoded(dict(p)) or _short(p["request"]), str(p["risk"])]
    if p.get("decision"):
        parts.append(f"rests on {p['decision']}")
    if p.get("compensates"):
        parts.append(f"takes back {p['compensates']}")
    if p.get("policy"):
        parts.append(f"policy {p['policy']}")
    return "; ".join(parts)


def _settled(p: Mapping[str, Any]) -> str:
    words = inspect.describe_reason(p)
    return f"{p['verdict']}, says {p['by']}" + (f": {words}" if words else "")


def _promised(p: Mapping[str, Any]) -> str:
    parts = [f"to {p['to']}"] if p.get("to") else []
    if p.get("detail") is not None:
        parts.append(_short(p["detail"]))
    if p.get("carried"):
        parts.append("handed on by an earlier generation")
    return "; ".join(parts)


def _closed(p: Mapping[str, Any]) -> str:
    verdict = f"{p['verdict']}, says {p['by']}" if p.get("by") else str(p["verdict"])
    parts = [verdict + (f" to {p['to']}" if p.get("to") else "")]
    if p.get("why"):
        parts.append(str(p["why"]))
    if p.get("evidence") is not None:
        parts.append(f"evidence {_short(p['evidence'])}")
    return "; ".join(parts)


def _redacted(p: Mapping[str, Any]) -> str:
    named = {"unit": f"unit {p['seq']}", "update": f"update {p.get('id')}"}
    what = named.get(p["what"], f"the {p['what']}")
    return f"{what}, by {p['by']}: {p['why']}"


def _error(p: Any) -> str:
    return inspect.describe_error(p)


_GROUNDS = {
    "w": "the counterparty still knows the key",
    "a": "it was absent",
    "p": "a person confirmed that it was not done",
}

_EVENTS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "decision_recorded": ("decided", _decided),
    "effect_intended": ("intended", _intended),
    "effect_attempted": ("again", lambda p: _GROUNDS.get(p["ground"], "")),
    "effect_unknown": ("unknown", lambda p: _error(p).removeprefix("unknown: ")),
    "effect_settled": ("settled", _settled),
    "effect_confirmed": ("confirmed", _short),
    "effect_failed": ("failed", _error),
    "effect_accepted": ("accepted", lambda p: f"under {p['ref']}"),
    "obligation_opened": ("promised", _promised),
    "obligation_closed": ("closed", _closed),
    "obligation_breached": ("breached", lambda _: "it was due, and is owed all the same"),
    "operator": (
        "person",
        lambda p: ", ".join(
            f"{name}: {value}" for name, value in p.items() if value is not None and value != ""
        ),
    ),
    "redacted": ("redacted", _redacted),
    "continued": ("continued", lambda _: "as the next generation"),
}


def story_of(found: inspect.Audit) -> list[Event]:
    """Return the events of a run in words."""
    events = []
    for one in found.events:
        what, describe = _EVENTS[one.event]
        payload = one.payload if one.payload is not None or what == "confirmed" else {}
        text, own_key = describe(payload), one.own_key or ""
        events.append(Event(one.at, what, one.name or "", text, own_key, one.generation, one.seq))
    return events


def headline(run: inspect.RunDetail) -> str:
    """Return the line above the story of a run."""
    why = f": {run.why}" if run.why else ""
    return f"{run.key}  {run.workflow}  {run.status}{why}"


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">\
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title><style>
:root {{ color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif }}
body {{ max-width: 64rem; margin: 2rem auto; padding: 0 1rem }}
table {{ border-collapse: collapse; width: 100% }}
td, th {{ text-align: left; vertical-align: top; padding: .3rem .6rem }}
tr {{ border-bottom: 1px solid color-mix(in srgb, currentColor 20%, transparent) }}
td.text {{ overflow-wrap: anywhere }}
td.at {{ white-space: nowrap; opacity: .7 }}
tr.unknown td, tr.owed td, tr.failed td {{ color: #c2410c }}
tr.confirmed td.what, tr.decided td.what {{ font-weight: 600 }} \
code {{ font-size: .85em; opacity: .75; overflow-wrap: anywhere }}
</style></head><body><h1>{title}</h1><p>{status}</p>
<table><thead><tr><th>When</th><th>What</th><th>Name</th><th>Story</th></tr></thead><tbody>
{rows}
</tbody></table></body></html>"""


def page(found: inspect.Audit, events: list[Event]) -> str:
    """Return the story as one HTML page that needs nothing else."""

    def row(at: datetime, what: str, name: str, text: str, key: str) -> str:
        return (
            f'<tr class="{html.escape(what)}"><td class="at">{at:%Y-%m-%d %H:%M:%S}</td>'
            f'<td class="what">{html.escape(what)}</td><td>{html.escape(name)}</td>'
            f'<td class="text">{html.escape(text)}<br><code>{html.escape(key)}</code></td></tr>'
        )

    rows = [row(e.at, e.what, e.name, e.text, e.key) for e in events]
    rows += [
        row(debt.opened_at, "owed", debt.name, f"{debt.state} since then", debt.effect or "")
        for debt in found.owed
    ]
    title, status = html.escape(found.run.key), html.escape(headline(found.run))
    return _PAGE.format(title=title, status=status, rows="\n".join(rows))
