"""Errors of nodes: their class, read from the message, and whether and when a failed node is
retried.

The original knows only messages of services. It counts neither "timed out after 5ms" nor "failed
[exit 1]" as transient, so it never retries a shell node with ``on_error: transient``. Here both are
transient, because a retry declared for a shell node is meant for these. The original also finds 403
in a process id, which is not a status here.
"""

from __future__ import annotations

import re
from typing import Literal

from pgflow.declare.graph import Command, Node, Prompt, Retry

ErrorClass = Literal["TRANSIENT", "FATAL", "UNKNOWN"]

DEFAULT_RETRY = Retry(max_retries=2, delay_ms=3000, on_error="transient")
"""Retry of an agent's turn that declares none.
Shell and scripts act on the world: they are tried once.
"""

_FATAL = (
    "unauthorized", "forbidden", "invalid token", "authentication failed", "permission denied",
    "401", "403", "credit balance", "session limit", "usage limit reached", "credit exhaustion",
)  # fmt: skip
_TRANSIENT = (
    "timeout", "econnrefused", "econnreset", "etimedout", "rate limit", "too many requests",
    "429", "502", "503", "529", "overloaded", "at capacity", "network error", "socket hang up",
    "exited with code", "claude code crash",
)  # fmt: skip
_PASSING = re.compile(r"timed out after [0-9]|failed \[exit ")
_FATAL_UNLESS_TRANSIENT = ("auth error",)


def classify(message: str) -> ErrorClass:
    """Return the class of an error: it may pass (TRANSIENT), will not (FATAL), or neither is known
    (UNKNOWN).

    Args:
        message: The error's text. A sign of FATAL wins over one of TRANSIENT.
    """
    text = message.lower()
    if _says(text, _FATAL):
        return "FATAL"
    if _says(text, _TRANSIENT) or _PASSING.search(text):
        return "TRANSIENT"
    return "FATAL" if _says(text, _FATAL_UNLESS_TRANSIENT) else "UNKNOWN"


def _says(text: str, signs: tuple[str, ...]) -> bool:
    """Return True if a text has one of these signs. A number must be separate: process 24036 is not
    403.
    """
    return any(
        re.search(rf"(?<![0-9]){sign}(?![0-9])", text) if sign.isdecimal() else sign in text
        for sign in signs
    )


def retry_of(node: Node) -> Retry | None:
    """Return the retry of a node: as it declares,
    else as holds for its mode; None if it has none.
    """
    if node.retry is not None:
        return node.retry
    return DEFAULT_RETRY if isinstance(node.body, Prompt | Command) else None


def retry_delay_ms(node: Node, attempt: int, message: str) -> int | None:
    """After how long a node whose attempt failed is tried again.

    Args:
        node: The node.
        attempt: Number of the attempt that failed, from 1.
        message: Its error.

    Returns:
        Milliseconds, doubled with each attempt; None if it is not tried again.
    """
    retry = retry_of(node)
    if retry is None or attempt > retry.max_retries:
        return None
    kind = classify(message)
    if kind == "FATAL" or (kind == "UNKNOWN" and retry.on_error == "transient"):
        return None
    return retry.delay_ms << (attempt - 1)
