"""Gates: waits for an authorised answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeVar, overload

from pgflow._flow.step import Step
from pgflow._flow.unbuilt import declared_only
from pgflow._model.durations import Duration
from pgflow._model.gates import Approved, Escalated, Expired, GateRequest, Rejected
from pgflow.errors import NotBuiltError

T = TypeVar("T")
A = TypeVar("A")


Verdict = Approved[T] | Rejected | Escalated | Expired
"""Answer of a gate."""


@overload
async def gate(
    name: str,
    request: T,
    *,
    approvers: Sequence[str] = (),
    quorum: int = 1,
    timeout: Duration | None = None,
    on_timeout: Literal["expire", "reject", "escalate", "approve"] = "expire",
    notify: Step[[GateRequest], Any] | None = None,
) -> Verdict[T]: ...
@overload
async def gate(
    name: str,
    request: Any,
    *,
    answer: type[A],
    approvers: Sequence[str] = (),
    quorum: int = 1,
    timeout: Duration | None = None,
    on_timeout: Literal["expire", "reject", "escalate", "approve"] = "expire",
    notify: Step[[GateRequest], Any] | None = None,
) -> Verdict[A]: ...
@declared_only("gates")
async def gate(name: str, request: Any, **options: Any) -> Any:  # noqa: ARG001 - the surface stands, the gate does not
    """Waits for an authorised answer. Declared now; gates are not built yet."""
    raise NotBuiltError(f"gates are not built yet: gate({name!r})")
