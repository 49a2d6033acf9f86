"""The calls of a run for ``pgflow show``: steps, decisions and effects in the order of the code,
many of one name as one line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pgflow import inspect
from pgflow_cli.look.output import short_json, table

if TYPE_CHECKING:
    from rich.text import Text


GOOD, BAD = ("completed", "confirmed"), ("failed", "abandoned", "unknown")
_WORDS = {"completed": "done", "confirmed": "done", "started": "running", "intended": "running"}
_STYLES = {**dict.fromkeys(GOOD, "green"), **dict.fromkeys(BAD, "red")}


def _name(call: inspect.Call) -> str:
    name = f"{call.kind}: {call.name}" if call.kind != "step" else call.name
    return (
        f"{name} x {sum(call.counts.values()):,}" if isinstance(call, inspect.CallGroup) else name
    )


def _status(call: inspect.Call) -> Text:
    from rich.text import Text

    if isinstance(call, inspect.CallRow):
        return Text(call.status, style=_STYLES.get(call.status, "yellow"))
    by_word: dict[str, int] = {}
    for status, calls in call.counts.items():
        word = _WORDS.get(status, status)
        by_word[word] = by_word.get(word, 0) + calls
    is_good, is_bad = call.counts.keys() <= set(GOOD), call.counts.keys() & set(BAD)
    style = "red" if is_bad else "green" if is_good else "yellow"
    return Text(", ".join(f"{calls:,} {word}" for word, calls in by_word.items()), style=style)


def _result(call: inspect.Call) -> Any:
    if not isinstance(call, inspect.CallRow):
        return ""
    if call.error:
        return inspect.describe_error(call.error)
    return short_json(call.output) if call.status in GOOD else ""


CALL_COLUMNS = table(
    "call NAME/40 STATUS TRIES=attempts ENDED=ended_at@110 "
    "IDEMPOTENCY_KEY=idempotency_key/70@150 RESULT*200",
    NAME=_name,
    STATUS=_status,
    RESULT=_result,
)
