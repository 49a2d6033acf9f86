"""Results of bodies, on their way to the code and into the journal.

What the code sees on the first run is always the decoded text, which is what a replay will see.
"""

from __future__ import annotations

import json
from typing import Any

from pgflow._engine.calls import StepCall
from pgflow._engine.host import StepResult
from pgflow._model.envelopes import Envelopes, open_text
from pgflow._model.exceptions import encode_error, rebuild_error
from pgflow._model.kinds import StepKind
from pgflow.errors import NotStorable


def decode_result(
    call: StepCall, result: StepResult, envelopes: Envelopes | None = None
) -> tuple[Any, Exception | None, str]:
    """Return (value, error, text): decoded so that a replay sees the same,
    and the text as it is recorded.

    Raises:
        CodecError: The app's codec has failed.
    """
    data = result.error
    if result.text is not None:
        what = f"the result of step {call.name}"
        try:
            if envelopes is None:
                return call.value_of(result.text, what), None, result.text
            stored = seal_result(call, result.text, envelopes)
            return call.value_of(open_text(envelopes, stored, what), what), None, stored
        except NotStorable as refused:
            data = encode_error(refused, with_traceback=False)
    assert data is not None
    if envelopes is None:
        text = json.dumps(data)
    else:
        text, data = envelopes.seal_error(data)
    return None, rebuild_error(data, call.spec.errors, call.failed_attempts + 1), text


def seal_result(call: StepCall, text: str, envelopes: Envelopes) -> str:
    """Return the result of a step as it is recorded:
    of a decision, policy, model and usage stay readable.
    """
    what = f"the result of step {call.name}"
    if call.spec.effect != StepKind.DECISION:
        return envelopes.seal(text, what)
    chosen = json.loads(text)
    return envelopes.seal(
        text, what, {name: chosen.get(name) for name in ("policy", "model", "usage")}
    )
