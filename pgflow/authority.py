"""Authority: gates that people answer, budgets that calls draw on, obligations that a run keeps."""

from pgflow._flow.authority.budget import charge
from pgflow._flow.authority.gate import Verdict, gate
from pgflow._flow.authority.obligation import discharge, owe, transfer, waive
from pgflow._model.budgets import Admit, Pool
from pgflow._model.gates import (
    Answer,
    Approve,
    Approved,
    Escalate,
    Escalated,
    Expired,
    GateRequest,
    OpenGate,
    Reject,
    Rejected,
    TakenOver,
    TakeOver,
)
from pgflow._model.obligations import Obligation

__all__ = [
    "Admit", "Answer", "Approve", "Approved", "Escalate", "Escalated", "Expired", "GateRequest",
    "Obligation", "OpenGate", "Pool", "Reject", "Rejected", "TakeOver", "TakenOver", "Verdict",
    "charge", "discharge", "gate", "owe", "transfer", "waive",
]  # fmt: skip
