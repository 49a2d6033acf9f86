"""Functions for the body of a step."""

from __future__ import annotations

from typing import Any

from pgflow._flow.scope import StepScope, current
from pgflow._model.codecs import MAX_BYTES, encode_plain
from pgflow._model.envelopes import seal_text
from pgflow.errors import InvalidArgument, NotInRunError


def heartbeat(details: Any = None) -> None:
    """In a long step: reports that it is alive, with its progress. The details are there for its
    next try.

    Args:
        details: Anything JSON, at most 64 KiB as it is stored.
    """
    scope = _step_scope("pgflow.heartbeat()")
    text = seal_text(
        scope.claim.envelopes,
        encode_plain(details, "the details of a heartbeat"),
        "the details of a heartbeat",
    )
    if len(text) > MAX_BYTES // 16:
        raise InvalidArgument("the details of a heartbeat may be 64 KiB at most")
    scope.beat(text)


def heartbeat_details() -> Any:
    """In a step, return the details that its last attempt passed to :func:`heartbeat`; None without
    any.
    """
    return _step_scope("pgflow.heartbeat_details()").last_details


def _step_scope(what: str) -> StepScope:
    scope = current.get()
    if not isinstance(scope, StepScope):
        raise NotInRunError(f"{what} works only in the body of a step that a workflow called")
    return scope
