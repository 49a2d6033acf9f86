"""The protocol between workers and the database: each row that crosses, named and typed once.

`python -m tools.generate` writes ``sql/runs/protocol.sql`` from this module: for each kind of row a
function that reads its slots by name, so that the rest of ``sql/`` knows no positions. Rows travel
as JSON arrays, because a worker joins tens of thousands of them a second as text and the server
reads a slot of an array faster than a member of an object; a batch and a question, of which there
are few, are objects. The field of a row is a column there:

- ``Micros``, named ``*_us``: microseconds since the epoch, read as ``timestamptz`` without the
  suffix;
- ``Seconds``, named ``*_seconds``: read as ``interval`` without the suffix;
- ``JsonText``: JSON as a text, so that its exact characters are stored (``jsonb`` would change the
  order of keys, -0.0 and 1e22).

Each row of a batch begins with the run that it is about, so that the server can leave out the runs
that it rejects, whatever the kind. A trailing slot that is None may be left out.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, NamedTuple, NotRequired, TypedDict

Int = Annotated[int, "int"]
BigInt = Annotated[int, "bigint"]
BigInts = Annotated[list[int], "bigint[]"]
Bool = Annotated[bool, "boolean"]
Text = Annotated[str, "text"]
Char = Annotated[str, '"char"']
Json = Annotated[Any, "jsonb"]
JsonText = Annotated[str, "json"]
Micros = Annotated[int, "timestamptz"]
Seconds = Annotated[float, "interval"]

# ---------------------------------------------------------------- rows of a batch


class RunRow(NamedTuple):
    """Runs of a batch, each fenced by the token of its lease. Sorted by run."""

    run_id: BigInt
    token: BigInt
    expected_seq: Int
    """Last seq that the worker knows to be durable."""


class UnitRow(NamedTuple):
    """Units to append to journals. Written by the engine's buffer."""

    run_id: BigInt
    seq: Int
    call: Int
    kind: Char
    name: Text | None
    payload: JsonText | None
    """None if it has none, or travels beside the document."""
    starts: JsonText | None
    """Bodies that may start once this is durable, as :class:`StartRow`."""
    at_us: Micros
    delay_seconds: Seconds | None
    """Time from the commit until it is due."""
    token: BigInt
    key: Text | None = None
    apart: Int | None = None
    """Position in ``payloads`` of a long payload that is not escaped into the document."""


class EndRow(NamedTuple):
    """Ends of runs."""

    run_id: BigInt
    status: Text
    reason: Text | None
    output: JsonText | None
    error: JsonText | None
    chain_id: BigInt
    token: BigInt
    apart: Int | None = None
    """Position in ``payloads`` of a long output."""


class TakenRow(NamedTuple):
    """Messages to delete from mailboxes; a unit of the batch records each."""

    run_id: BigInt
    chain_id: BigInt
    name: Text
    signal_id: BigInt
    kind: Char | None = None
    """``c`` for the result of a child; None for a signal."""


class ReturnedRow(NamedTuple):
    """Messages and answers of gates that were taken and go back, with the reason."""

    run_id: BigInt
    chain_id: BigInt
    call: Int
    seq: Int
    """Seq of the unit that took it."""
    error: Text


class DrawRow(NamedTuple):
    """Calls whose reservations in pools are returned."""

    run_id: BigInt
    call: Int | None
    """None for all calls of the run, 0 for none."""


class ReplyRow(NamedTuple):
    """Updates that are taken out of mailboxes, or answered, or both."""

    run_id: BigInt
    chain_id: BigInt
    update_id: Text
    message: BigInt | None
    """Number of the message to delete; None to leave the mailbox alone."""
    seq: Int | None
    """Seq of the unit with the answer; None if the journal has none."""
    status: Text | None
    """The answer, a code; None if it is only taken."""
    error: JsonText | None
    """Reason of a rejection."""


class Batch(TypedDict):
    """Document of ``commit_units``: what runs of one worker commit together."""

    worker: int
    """The worker whose leases they are."""
    runs: list[RunRow]
    units: list[UnitRow]
    ends: NotRequired[list[EndRow]]
    kin: NotRequired[list[int]]
    """Runs of ``ends`` that have a parent, children, a deadline or heartbeats of steps."""
    gated: NotRequired[list[int]]
    """Runs of ``ends`` that have asked at gates."""
    awaiting: NotRequired[list[int]]
    """Runs of ``ends`` that have waited for events."""
    locking: NotRequired[list[int]]
    """Runs of ``ends`` that may hold a lock or wait for one."""
    has_ledger: NotRequired[bool]
    """True if units of the ledger of effects are among ``units``."""
    has_obligations: NotRequired[bool]
    """True if units of obligations are among ``units``, or a run of ``ends`` leaves some open."""
    taken: NotRequired[list[TakenRow]]
    returned: NotRequired[list[ReturnedRow]]
    draws: NotRequired[list[DrawRow]]
    replies: NotRequired[list[ReplyRow]]
    questions: NotRequired[list[Question]]


class StartRow(NamedTuple):
    """Licences in the column ``starts`` of units."""

    call: Int
    effect: Text
    name: Text
    ordinal: Text
    """Number of the use of the name, or the key under which the body runs."""
    args_hash: BigInt
    mark: Json | None = None
    """Place in a workflow in SQL."""


# ---------------------------------------------------------------- rows of a question


class ChildRow(NamedTuple):
    """Children to start."""

    call: Int
    workflow: Text
    queue: Text
    input: JsonText
    key: Text | None
    priority: Int | None
    run_at_us: Micros | None
    timeout_seconds: Seconds | None
    labels: Json | None
    metadata: Json | None
    close_policy: Char
    version: Text | None = None
    pool: Text | None = None
    budget: Json | None = None
    """Limits of a pool of its own."""


class CallRow(NamedTuple):
    """Calls."""

    call: Int


class SignalRow(NamedTuple):
    """Waits for signals."""

    call: Int
    name: Text


class TimerRow(NamedTuple):
    """Sleeps, and time-outs of waits; of reasons to wake, only the first two slots."""

    call: Int
    seq: Int
    """Seq of the unit that has the time."""
    kind: Char | None = None
    """Kind of the unit to write when it is due."""


class EventRow(NamedTuple):
    """Waits for events, which come as signals of a name of their own."""

    call: Int
    name: Text
    topic: Text
    match: Json | None
    key: Text | None
    after: BigInt | None
    """Number of the last event that does not count; None = events from now on."""


class LockRow(NamedTuple):
    """Waits for locks."""

    call: Int
    key: Text
    is_shared: Bool
    ttl_seconds: Seconds | None
    seq: Int | None
    """Seq of the unit that has the time-out."""
    within: BigInts
    """Fences that the code holds already."""


class HoldRow(NamedTuple):
    """Blocks that hold locks."""

    call: Int
    key: Text
    fence: BigInt
    is_given_back: Bool
    """True once the code has left the block."""


class RefusedRow(NamedTuple):
    """Signals that the code could not take."""

    name: Text
    error: Text
    code_hash: Text


class ReadRow(NamedTuple):
    """Reads on which an effect rests."""

    name: Text
    seq: Int
    max_age_seconds: Seconds


class HandedRow(NamedTuple):
    """Effects of a run that its next generation takes back if it fails."""

    call: Int
    code: Text


class SegmentRow(NamedTuple):
    """Parts of a journal, each with the beginning of its idempotency keys."""

    upto: Int | None
    """Last seq; None for all that follow."""
    stem: Text


class SagaEntry(NamedTuple):
    """Effects of earlier generations and of children, to be taken back if the run fails."""

    name: Text
    key: Text
    code: Text
    request: JsonText
    result: JsonText | None
    ref: Text | None
    is_own: Bool = True
    """False for what a fork repeats of its origin."""


class HoldReason(NamedTuple):
    """Reasons why runs are held."""

    state: Text
    """``paused``, or ``stuck`` if the run needs help."""
    reason: Text
    """Reason in short: the one given for the pause, or the kind of trouble, a code."""
    code_hash: Text | None
    """Hash of the code that is in trouble, so that a worker with other code may try."""
    detail: Json | None
    held_by: Text | None


class Admission(TypedDict):
    """Requests for admission to pools."""

    call: Int
    name: Text
    pool: NotRequired[Text]
    amounts: NotRequired[Json]
    hard: NotRequired[Bool]
    """True if the pool of the run must have something left, whatever pool is asked."""
    licence: NotRequired[Json]
    """A :class:`StartRow`, to be written with the admission."""


class Intent(TypedDict):
    """Requests for leave to attempt effects."""

    call: Int
    name: Text
    key: Text
    args_hash: BigInt
    ordinal: Json
    request: Text
    risk: Text
    code: Text
    is_keyed: Bool
    decision: NotRequired[Text]
    compensates: NotRequired[Text]
    reads: NotRequired[Json]
    """List of :class:`ReadRow`."""
    ground: NotRequired[Char]
    """Reason of a further attempt, a code; None for the first."""
    seconds: NotRequired[Seconds]
    """Time for which the ground holds."""
    expects: NotRequired[Text]
    notice: NotRequired[Json]
    is_undo: NotRequired[Bool]
    leave: NotRequired[Text]
    """Key of the gate that has let it through."""


class GateRequest(TypedDict):
    """Gates to ask."""

    call: Int
    name: Text
    key: Text
    request: JsonText
    hash: Text
    approvers: Json
    quorum: Json
    timeout: NotRequired[Json]
    """Seconds for each stage."""
    on_timeout: Text
    escalate: Json
    needs_value: Json
    decision: NotRequired[Text]
    shape: NotRequired[Json]


Calls = Annotated[list[int], "jsonb"]
Hold = Annotated[HoldReason, "jsonb"]

_Continued = TypedDict(
    "_Continued", {"continue": Text}, total=False
)  # a keyword has no class syntax


class QuestionPart(_Continued, total=False):
    """Requests of a question. What is absent is not asked for.

    Attributes:
        continue: Input of the next generation, as JSON.
    """

    children: Annotated[list[ChildRow], "jsonb"]
    signals: Annotated[list[SignalRow], "jsonb"]
    timers: Annotated[list[TimerRow], "jsonb"]
    retries: Annotated[list[TimerRow], "jsonb"]
    """Reasons to wake, never an answer."""
    child_calls: Annotated[str, "jsonb"]
    """Calls that wait for a child, as a multirange."""
    unwanted: Calls
    """Chains of children whose calls the code has given up: cancel them."""
    cancelled: Bool
    """True once a cancel was delivered: further ones are dropped."""
    idle: Bool
    """True if no body runs and none may start: the run may be paused."""
    park: Bool
    """True to park if nothing has happened."""
    stuck: Hold
    """Hold the run instead of parking it, since only a person can continue it."""
    hold: Hold
    refused: Annotated[list[RefusedRow], "jsonb"]
    """With a hold."""
    cancel: Json
    """Members why, by and reason of a cancel that came after the end, for the next generation."""
    saga: Annotated[list[HandedRow], "jsonb"]
    """For the next generation."""
    of_children: Annotated[list[str], "jsonb"]
    """Keys of effects of children, for the next generation."""
    owes: Bool
    """True if a run that continues has open obligations."""
    gated: Bool
    """True if a run that continues has open gates, which close."""
    awaited: Bool
    """True if a run that continues waits for no event any more."""
    admits: Annotated[list[Admission], "jsonb"]
    effects: Annotated[list[Intent], "jsonb"]
    open_effects: Calls
    """Effects that may be settled while the run is parked, and obligations that it waits for before
    it ends.
    """
    gates: Annotated[list[SignalRow], "jsonb"]
    """Gates that the code waits for."""
    new_gates: Annotated[list[GateRequest], "jsonb"]
    """Those of them that are to be asked."""
    locks: Annotated[list[LockRow], "jsonb"]
    """Empty if the run has locks and waits for none."""
    holds: Annotated[list[HoldRow], "jsonb"]
    unlocks: Calls
    """Calls that do not wait for their lock any more."""
    updates: Annotated[list[CallRow], "jsonb"]
    """Calls that take an update if their code admits it."""
    events: Annotated[list[EventRow], "jsonb"]
    """Empty ends all of them."""


class Question(QuestionPart):
    """Questions of runs that commit: for a decision of the database, or a change of place.

    The server answers with an :class:`Answer`.
    """

    run: BigInt
    token: BigInt
    chain: BigInt
    seq: Int
    """Last seq after the units of this flush."""


# ---------------------------------------------------------------- what the server answers


class AnsweredUnit(NamedTuple):
    """Units that the database has decided and appended."""

    seq: Int
    call: Int
    kind: Char
    name: Text | None
    payload: JsonText | None
    due_us: Micros | None = None


class Answer(TypedDict):
    """Answer to a question."""

    run: int
    units: list[AnsweredUnit]
    place: str
    """``leased``, ``parked``, ``held`` or ``ended``."""
    at: int
    """Time of the commit, in microseconds."""
    pause: bool
    """True if the run is to be paused once it is idle."""
    postponed: NotRequired[bool]
    """True if a lock that it rests on is lost, so nothing else of the question was done."""
    refused: NotRequired[list[tuple[int, int | None, str | None]]]
    """Effects without leave: call, version of the policy, name of a read that is too old."""
    terms: NotRequired[dict[str, Any]]
    """By call, the terms of the gates at which leave for those that are refused is asked."""
    offers: NotRequired[list[tuple[int, str, str, bool]]]
    """Updates that wait: message, name, payload, and whether it was taken before a rewind."""


class BatchAnswer(TypedDict):
    """Answer to a batch; None where all is well and there is no news."""

    bad: list[tuple[int, str]] | None
    """Runs that were not committed, each with ``already``, ``lost`` or ``busy``."""
    answers: NotRequired[list[Answer]]
    wake: NotRequired[list[int] | None]
    """Chains to wake."""
    lanes: NotRequired[list[int] | None]
    """Lanes with new runs."""
    told: NotRequired[list[tuple[int, list[Any]]] | None]
    """Results of children whose parents this worker holds: chain, and an ``Offer``."""


# ---------------------------------------------------------------- rows of other calls


class NewRunRow(NamedTuple):
    """Runs to start in one call."""

    key: Text | None
    input: Text
    """JSON, checked before it is read."""


class DraftRow(NamedTuple):
    """Values of streams that a running step emits."""

    stream: Text
    value: JsonText


class ActRow(NamedTuple):
    """Acts that the policy judges."""

    name: Text
    risk: Text
    request: Json


class CodeRow(NamedTuple):
    """Code of workflows, as workers and apps declare it."""

    workflow: Text
    version: Text
    code_hash: Text
    is_pinned: Bool
    alias_of: Text | None
    patches: Annotated[dict[str, bool], "jsonb"]
    signals: Annotated[dict[str, Any], "jsonb"] | None
    """Shapes of payloads, by signal."""
    defaults: JsonText | None
    """Defaults of the input."""
    parameters: Annotated[dict[str, Any], "jsonb"] | None = None
    """Shape of the input: the names of its parameters."""


class DeliveryRow(NamedTuple):
    """Outcomes of deliveries by a relay."""

    event_id: BigInt
    outcome: Annotated[Literal["ok", "failed", "dead", "behind"], "text"]
    """``behind``: it was not tried, since another of its key comes first."""
    error: Text | None = None
    delay_seconds: Seconds | None = None
    """Time until the next try."""


# ---------------------------------------------------------------- the readers in SQL


class Reader(NamedTuple):
    """A function in SQL that reads a list of rows.

    Attributes:
        row: Class of the rows.
        wire: Type of the list in SQL.
        of_objects: True if the rows are objects: a slot is read by its name, not its position.
        numbered: Name of a column with the position of the row; None = none.
        whole: Name of a column with the row as it is; None = none.
    """

    row: type
    wire: str = "jsonb"
    of_objects: bool = False
    numbered: str | None = None
    whole: str | None = None


READERS = {
    "run_rows_": Reader(RunRow),
    "unit_rows_": Reader(UnitRow),
    "end_rows_": Reader(EndRow),
    "taken_rows_": Reader(TakenRow),
    "returned_rows_": Reader(ReturnedRow),
    "draw_rows_": Reader(DrawRow),
    "reply_rows_": Reader(ReplyRow),
    "question_rows_": Reader(Question, of_objects=True, numbered="pos", whole="question"),
    "child_rows_": Reader(ChildRow, numbered="n", whole="child"),
    "call_rows_": Reader(CallRow),
    "signal_rows_": Reader(SignalRow),
    "timer_rows_": Reader(TimerRow),
    "event_rows_": Reader(EventRow),
    "lock_rows_": Reader(LockRow, numbered="n"),
    "hold_rows_": Reader(HoldRow),
    "refused_rows_": Reader(RefusedRow),
    "reason_rows_": Reader(HoldReason),
    "read_rows_": Reader(ReadRow),
    "handed_rows_": Reader(HandedRow),
    "saga_rows_": Reader(SagaEntry, numbered="n", whole="entry"),
    "admission_rows_": Reader(Admission, of_objects=True, numbered="n"),
    "intent_rows_": Reader(Intent, of_objects=True),
    "gate_rows_": Reader(GateRequest, of_objects=True, numbered="n"),
    "start_rows_": Reader(StartRow, wire="json", numbered="n", whole="start"),
    "segment_rows_": Reader(SegmentRow, numbered="n"),
    "new_run_rows_": Reader(NewRunRow, numbered="n", whole="wanted"),
    "draft_rows_": Reader(DraftRow, numbered="n"),
    "act_rows_": Reader(ActRow, numbered="n"),
    "code_rows_": Reader(CodeRow, whole="code"),
    "delivery_rows_": Reader(DeliveryRow, wire="json"),
    "answered_rows_": Reader(AnsweredUnit, numbered="n"),
}
"""By name in the schema ``pgflow``."""
