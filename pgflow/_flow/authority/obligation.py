"""Obligations: promises that a run must keep or hand over.

The functions are the same for async and sync code: none of them waits.
"""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from pgflow._engine.obligations import Obligations
from pgflow._engine.owed import Closing
from pgflow._flow.scope import workflow_scope
from pgflow._flow.signals import Signal
from pgflow._flow.workflow import Workflow
from pgflow._model.budgets import numbers
from pgflow._model.codecs import encode_plain
from pgflow._model.durations import Duration, duration
from pgflow._model.exceptions import clean
from pgflow._model.names import is_name
from pgflow._model.obligations import Obligation, key_of
from pgflow.errors import InvalidArgument

MAX_DETAIL_BYTES = 65_536
MAX_WHY_CHARS = 4_096
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

OnBreach = Signal[Obligation] | Workflow[[Obligation], Any] | Literal["page"]
"""Act that follows once an obligation is due and not discharged."""


def owe(
    what: str,
    *,
    to: str = "",
    due: Duration | datetime | None = None,
    on_breach: OnBreach | None = None,
    outlives: bool = False,
    detail: Any = None,
) -> Obligation:
    """Open an obligation: a debt of this run.

    The run does not complete until the obligation is closed: it waits, reason ``obligation NAME``,
    until the code or a client discharges, transfers or waives it. If the run fails or is cancelled,
    it ends, and a person is notified of its debts.

    Args:
        what: Name of the debt, such as ``refund``.
        to: Name of the creditor.
        due: Time by which it must be discharged, or a duration from now, by the database's clock.
        on_breach: Action once it is overdue. A signal to this run or a workflow gets the
            obligation; ``"page"`` has the app's pager notify a person. The workflow starts under
            the obligation's key plus ``/breach``, and draws on the pool of this run unless it names
            another. The obligation stays owed in any case.
        outlives: Let the run complete while the obligation is open.
        detail: Facts for the person who discharges it, as JSON of at most 64 KiB.

    Returns:
        The obligation. Its ``key`` is enough to close it.

    Raises:
        InvalidArgument: An argument is not valid.
        NotStorable: The detail is not JSON, or the signal or workflow does not accept an
            obligation.

    Example::

        due = timedelta(days=5)
        refund = pgflow.authority.owe("refund", to=order.customer, due=due, on_breach="page")
        receipt = await pay_back(order)
        pgflow.authority.discharge(refund, evidence=receipt)
    """
    scope = workflow_scope("pgflow.authority.owe()")
    if not is_name(what):
        raise InvalidArgument(
            f"what is owed must be a text of 1 to 255 bytes without NUL, not {what!r}"
        )
    if to and not is_name(to):
        raise InvalidArgument(
            f"to of owe({what!r}) must be a text of at most 255 bytes, not {to!r}"
        )
    delay_seconds, due_us = _due(what, due)
    text = None if detail is None else encode_plain(detail, f"the detail of owe({what!r})")
    if text is not None and len(text.encode()) > MAX_DETAIL_BYTES:
        raise InvalidArgument(
            f"the detail of owe({what!r}) is {len(text.encode())} bytes long; the limit is 64 KiB"
        )
    plain = None if text is None else json.loads(text)
    key = scope.execution.parts[Obligations].open(
        what,
        to,
        delay_seconds=delay_seconds,
        due_us=due_us,
        outlives=outlives,
        detail=text,
        agree=lambda key: _agreed(what, on_breach, Obligation(key, what, to, plain)),
    )
    return Obligation(key, what, to, plain)


def discharge(obligation: Obligation | str, evidence: Any = None) -> None:
    """Close an obligation of this run as done.

    Closing a closed obligation has no effect.

    Args:
        obligation: The obligation, or its key.
        evidence: Proof that it was done; anything JSON.

    Raises:
        InvalidArgument: This run has not opened it. To close one of another run, call the client's
            ``discharge`` in a step.
    """
    scope = workflow_scope("pgflow.authority.discharge()")
    text = None if evidence is None else encode_plain(evidence, "the evidence of a discharge")
    scope.execution.parts[Obligations].close(key_of(obligation), Closing.DISCHARGED, {}, text)


def transfer(obligation: Obligation | str, to: str, *, why: str = "") -> None:
    """Transfer an obligation of this run to a person or party outside. It stays owed, but the run
    no longer waits for it.

    Args:
        obligation: The obligation, or its key.
        to: Name of the new holder.
        why: Reason for it.

    Raises:
        InvalidArgument: This run has not opened it, or ``to`` is empty.
    """
    scope = workflow_scope("pgflow.authority.transfer()")
    if not is_name(to):
        raise InvalidArgument(
            f"to of transfer() must be a text of 1 to 255 bytes without NUL, not {to!r}"
        )
    details = {"to": to, "why": clean(why, MAX_WHY_CHARS)} if why else {"to": to}
    scope.execution.parts[Obligations].close(key_of(obligation), Closing.TRANSFERRED, details)


def waive(obligation: Obligation | str, *, by: str, why: str) -> None:
    """Close an obligation of this run without discharging it.

    Args:
        obligation: The obligation, or its key.
        by: Name of the person or service that asks.
        why: Reason for it.

    Raises:
        InvalidArgument: This run has not opened it, or ``by`` or ``why`` is empty.
    """
    scope = workflow_scope("pgflow.authority.waive()")
    if not by or not why:
        raise InvalidArgument("waive() needs a name and a reason: pass by= and why=")
    scope.execution.parts[Obligations].close(
        key_of(obligation),
        Closing.WAIVED,
        {"by": clean(by, 255), "why": clean(why, MAX_WHY_CHARS)},
    )


def _due(what: str, due: Duration | datetime | None) -> tuple[float | None, int | None]:
    """Return the seconds until it is due, or the time in microseconds."""
    if isinstance(due, datetime):
        if due.tzinfo is None:
            raise InvalidArgument(f"due of owe({what!r}) must have a time zone, not {due!r}")
        return None, (due - _EPOCH) // timedelta(microseconds=1)
    patience = duration(due, f"due of owe({what!r})", least_seconds=-math.inf)
    return None if patience is None else patience.total_seconds(), None


def _agreed(what: str, on_breach: Any, obligation: Obligation) -> dict[str, str]:
    """Return the action on a breach, as JSON by member (``sql/ledgers/obligations.sql``)."""
    if on_breach is None:
        return {}
    if on_breach == "page":
        return {"page": "true"}
    if isinstance(on_breach, Signal):
        payload = f"the payload of signal {on_breach.name!r}"
        text = on_breach.codec.encode(obligation, payload)
        on_breach.codec.decode(text, payload)
        return {"signal": json.dumps(on_breach.name), "payload": text}
    if isinstance(on_breach, Workflow):
        options = on_breach.start_options
        options.refuse_place(f"on_breach of owe({what!r})")
        details = {
            "workflow": on_breach.name,
            "queue": options.queue,
            "priority": options.priority,
            "version": options.version,
            "pool": options.pool,
        }
        own = {} if options.budget is None else {"budget": numbers(options.budget)}
        return {
            **{name: json.dumps(value) for name, value in details.items() if value},
            **own,
            "input": on_breach.encode_input((obligation,), {}),
        }
    raise InvalidArgument(
        f'on_breach of owe({what!r}) must be a signal, a workflow or "page", not {on_breach!r}'
    )
