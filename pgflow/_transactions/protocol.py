"""One attempt at a transactional step, written once for both colours.

The protocol is a generator that yields operations and gets their results; :func:`drive` and
:func:`drive_async` perform them. Its order is the guarantee: check the lease, run the body, encode
its result, take the run's turn, fence and append, COMMIT - and, if the answer to COMMIT was lost,
read the outcome back before the run continues.

If the library's connection allows it, the fence and COMMIT go in one round trip: the server runs
COMMIT only if the fence held. BEGIN goes with the check of the lease. So on a psycopg connection a
body of one statement takes three round trips, as many as without an engine.

The connection of the provider is ours: its trouble, and that of any call of the engine on it, is
raised as :class:`Trouble`, which is not an outcome. Errors of other connections belong to the body.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NoReturn, Protocol

import psycopg

from pgflow._db.calls import transaction as calls
from pgflow._db.deadlines import BEGIN_SECONDS, COMMIT_SECONDS, Cord, Limit
from pgflow._db.failures import (
    is_ambiguous,
    is_conflict_on_unit,
    is_honoured,
    is_infrastructure,
    is_of_the_data,
    is_our_trouble,
    sqlstate_of,
)
from pgflow._db.query import Query, run_by, run_on, run_on_async, run_through
from pgflow._engine.calls import StepCall
from pgflow._engine.flush import Flush, draws_of
from pgflow._model.claims import Claim
from pgflow._transactions.provider import AsyncTransaction, Transaction
from pgflow.errors import StepCommitted
from pgflow.logs import redacted

log = logging.getLogger("pgflow")


class Trouble(Exception):
    """An attempt ended without a fault of the body. It is repeated, and nothing is recorded.

    Attributes:
        error: The cause.
    """

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error


class Unstorable(Exception):
    """A body has returned what cannot be stored: that is its outcome, for it would return the like
    again.

    Attributes:
        error: Error that the code gets.
    """

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


class Fencing(Protocol):
    """Interface of the engine and of another connection, as the protocol needs them; the driver
    calls it where it lives.
    """

    def take_turn(self, call: StepCall, text: str) -> Flush | None:
        """Wait for the run's turn. Return None if the step is no longer wanted."""

    def end_turn(self, call: StepCall, flush: Flush, committed: bool, at_us: int) -> None:
        """The turn is over."""

    def ask_elsewhere(self, query: Query[Any]) -> Any:
        """Run a query on another connection, however long it takes to get one."""

    def pause(self, tries: int) -> None:
        """Wait a little before asking again."""


@dataclass(frozen=True)
class Op:
    """Something the protocol wants done."""

    what: Literal["query", "body", "flush", "commit", "last", "turn", "end", "elsewhere", "pause"]
    args: tuple[Any, ...] = ()


Protocol_ = Generator[Op, Any, bool]


def attempt(  # noqa: PLR0912 - the protocol, in its order
    claim: Claim,
    call: StepCall,
    encode: Callable[[Any], str],
    *,
    together: bool,
    is_ours: Callable[[BaseException], bool] = lambda _: True,
    has_closed: Callable[[], bool] = lambda: False,
    has_hooks: bool = False,
    durable_seq: int = 0,
    idle_ms: int = 300_000,
) -> Protocol_:
    """Run the protocol of one attempt inside an open transaction. Return False if the step is no
    longer wanted.

    ``together``: the transaction can do the fence and COMMIT in one round trip. ``is_ours``:
    returns True for a body's error that comes from the transaction's connection. ``has_closed``:
    returns True if the body has closed that connection. ``has_hooks``: more than COMMIT may run on
    commit. ``durable_seq``: the last acknowledged unit of the run; a server that lacks it has lost
    it. ``idle_ms``: time without a statement after which the server ends the transaction.
    """
    try:
        begun = calls.begin_step(claim.run_id, claim.token, call.number, idle_ms, durable_seq)
        xid: str = yield Op("query", (begun, BEGIN_SECONDS))
    except Exception as error:  # noqa: BLE001 - judged there
        _raise_from_engine(error)
    try:
        value = yield Op("body")
        if has_closed():
            _raise_closed(claim, call)
        text = encode(value)
        yield Op("flush")
    except Exception as error:
        if is_our_trouble(error, is_ours):
            _raise_from_connection(call, error)
        raise
    flush: Flush | None = yield Op("turn", (call, text))
    if flush is None:
        return False
    committed, at_us = False, 0
    try:
        fence = _fence(claim, call, flush)
        if not together:
            try:
                at_us = yield Op("query", (fence, COMMIT_SECONDS))
            except Exception as error:  # noqa: BLE001 - judged there
                _raise_from_engine(error)
        try:
            if together:
                at_us = yield Op("last", (fence,))
            else:
                yield Op("commit")
            committed = True
        except Exception as error:  # noqa: BLE001 - judged there
            committed = (has_hooks or is_ambiguous(error)) and (
                yield from _resolve(claim, flush, xid)
            )
            if not committed:
                _raise_from_commit(error, together=together)
            if has_hooks:
                warning = (
                    "step %s has committed, but its commit raised (%s): "
                    "hooks behind it may not have run"
                )
                log.warning(warning, call.name, redacted(error))
    finally:
        yield Op("end", (call, flush, committed, at_us))
    return True


def _fence(claim: Claim, call: StepCall, flush: Flush) -> Query[int]:
    """Return the query that fences the transaction and writes what the step has to record."""
    at = flush.rows[-1].at_us
    apart: list[str] = []
    rows = flush.unit_rows(lambda: at, apart)  # it fills `apart`
    return calls.fence_step(
        claim.run_id,
        claim.token,
        call.number,
        rows,
        call.args_hash,
        apart,
        draws_of(flush),
        call.fences,
    )


def _raise_from_engine(error: Exception) -> NoReturn:
    """A function of ours has failed: that is the body's doing if it left the transaction as no call
    can go on in it.
    """
    state = sqlstate_of(error)
    if is_conflict_on_unit(error):
        raise Trouble(error) from error
    if state is not None and not is_of_the_data(error) and state not in ("25P01", "25P02"):
        raise Trouble(error) from error
    if state is None and is_infrastructure(error):
        raise Trouble(error) from error
    raise error


def _raise_closed(claim: Claim, call: StepCall) -> NoReturn:
    raise StepCommitted(
        f"the body of call {call.number} of run {claim.key} closed the connection of its "
        "transaction, which has ended with it; whether it committed something before cannot be "
        "known"
    )


def _raise_from_connection(call: StepCall, error: Exception) -> NoReturn:
    """Trouble of the transaction's connection, unless the body has asked for this."""
    if is_honoured(error) and isinstance(error, call.spec.raises):
        raise error
    raise Trouble(error) from error


def _raise_from_commit(error: Exception, *, together: bool) -> NoReturn:
    """COMMIT has failed, or the fence with which it went: what the application defers to COMMIT is
    its own, down to its triggers.
    """
    state = sqlstate_of(error) or ""
    # No trigger: the fence could not be called.
    is_call = together and isinstance(error, psycopg.Error) and error.diag.context is None
    if (
        is_infrastructure(error)
        or is_conflict_on_unit(error)
        or state.startswith(("57014", "XX"))
        or (is_call and state.startswith("42"))
    ):
        raise Trouble(error) from error
    raise error


def _resolve(claim: Claim, flush: Flush, xid: str) -> Generator[Op, Any, bool]:
    """Return True if a COMMIT whose answer was lost has happened. Wait while it is in progress."""
    tries = 0
    while True:
        recorded: calls.Recorded | None = yield Op(
            "elsewhere", (calls.read_unit(claim.run_id, flush.last_seq),)
        )
        if recorded is not None:
            return recorded.token == claim.token and recorded.call == flush.rows[-1].call
        status = yield Op("elsewhere", (calls.transaction_status(xid),))
        if status != "in progress":
            again: calls.Recorded | None = yield Op(
                "elsewhere", (calls.read_unit(claim.run_id, flush.last_seq),)
            )
            return again is not None and again.token == claim.token
        tries += 1
        yield Op("pause", (tries,))


def socket_of(transaction: Transaction | AsyncTransaction) -> int | None:
    """Return the socket of an open transaction's connection, or None if its provider does not
    expose it.
    """
    tell: Callable[[], int | None] | None = getattr(transaction, "fileno", None)
    try:
        return None if tell is None else tell()
    except Exception:  # noqa: BLE001 - a library that has lost its connection says so in its own way, and then there is nothing to cut
        return None


_OF_TURNS = {
    "turn": "take_turn", "end": "end_turn", "elsewhere": "ask_elsewhere", "pause": "pause",
}  # fmt: skip


def _work_of(
    op: Op,
    transaction: Any,
    body: Callable[[Any], Any],
    turns: Any,
    run: Callable[..., Any],
    run_by_way: Callable[..., Any],
) -> tuple[float | None, Callable[[], Any]]:
    """Return the function that does an operation, and the seconds that it may take: the engine's
    own statements have a deadline, those of the body have none.
    """
    match op.what:
        case "query":
            query, seconds = op.args
            return seconds, partial(run, transaction, query)
        case "last":
            return COMMIT_SECONDS, partial(run_by_way, transaction.execute_and_commit, *op.args)
        case "commit":
            return COMMIT_SECONDS, transaction.commit
        case "flush":
            return None, transaction.flush
        case "body":
            return None, partial(body, transaction.connection)
        case _:
            return None, partial(getattr(turns, _OF_TURNS[op.what]), *op.args)


def drive(
    protocol: Protocol_,
    transaction: Transaction,
    body: Callable[[Any], Any],
    turns: Fencing,
    cord: Callable[[], Cord | None] = lambda: None,
) -> bool:
    """Drive the protocol in sync code. The cord carries out the deadlines."""
    answer: Any = None
    error: Exception | None = None
    while True:
        try:
            op = protocol.throw(error) if error is not None else protocol.send(answer)
        except StopIteration as stop:
            return bool(stop.value)
        answer, error = None, None
        try:
            seconds, work = _work_of(op, transaction, body, turns, run_on, run_through)
            if seconds is None:
                answer = work()
            else:
                with Limit(cord(), seconds):
                    answer = work()
        except Exception as raised:  # noqa: BLE001 - the protocol decides what an error means
            error = raised


async def drive_async(
    protocol: Protocol_, transaction: AsyncTransaction, body: Callable[[Any], Any], turns: Any
) -> bool:
    """Drive the protocol in async code; ``turns`` is a :class:`Fencing` of coroutines."""
    answer: Any = None
    error: BaseException | None = None
    while True:
        try:
            op = protocol.throw(error) if error is not None else protocol.send(answer)
        except StopIteration as stop:
            return bool(stop.value)
        answer, error = None, None
        try:
            seconds, work = _work_of(op, transaction, body, turns, run_on_async, run_by)
            if seconds is None:
                answer = await work()
            else:
                with Limit(socket_of(transaction), seconds):
                    answer = await work()
        except BaseException as raised:  # noqa: BLE001 - cancellation too must pass through the protocol, which ends its turn
            error = raised
