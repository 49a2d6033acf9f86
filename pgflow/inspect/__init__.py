"""The read side: typed readers of pgflow's views, for sync and async code.

A reader makes a question, and :func:`ask` or :func:`ask_async` puts it to an app or to a connection. Answers are frozen rows, one
class for each view; long lists come in pages. Whoever shows what is in the database reads here: the command line, the endpoint for
Prometheus, and dashboards of your own. Nothing here writes.

Values are as they are stored. What a codec of an app has encoded stays encoded; :func:`readable` puts a word in its place.
"""

from pgflow.inspect.calls import Call, CallGroup, CallRow, Calls, read_calls
from pgflow.inspect.clock import database_now
from pgflow.inspect.health import (
    Idleness,
    LargePartition,
    LeftMessages,
    LossRow,
    StrayLeases,
    StuckRuns,
    UnservedLane,
    Violation,
    WaitingQueue,
    WorkerHealth,
    check_books,
    check_workers,
    count_left_messages,
    count_stuck,
    list_large_partitions,
    list_losses,
    list_stray_leases,
    list_unserved_lanes,
    list_waiting_queues,
    read_idleness,
    read_view_costs,
)
from pgflow.inspect.ledgers import (
    Audit,
    DecisionRow,
    EffectRow,
    LedgerEvent,
    ObligationRow,
    count_left,
    list_debts,
    list_decisions,
    list_effects,
    list_obligations,
    read_audit,
)
from pgflow.inspect.mail import MessageRow, list_messages
from pgflow.inspect.pages import After, Page
from pgflow.inspect.question import AsyncSource, Question, Source, ask, ask_async, stream, stream_async
from pgflow.inspect.queues import (
    LaneRow,
    QueueRow,
    find_queue,
    is_served,
    list_lanes,
    list_queue_names,
    list_queues,
    list_workflows,
    unknown_queues,
    why_unserved,
)
from pgflow.inspect.runs import (
    EVERY_RUN,
    STATUSES,
    ChildRow,
    RunDetail,
    RunFilter,
    RunRow,
    count_ended,
    count_runs,
    find_detail,
    find_key,
    find_keys,
    find_newest,
    find_run,
    has_queued,
    list_chains,
    list_child_chains,
    list_children,
    list_outcomes,
    list_runs,
    read_output,
    read_state,
    read_statuses,
    sample_chains,
)
from pgflow.inspect.steps import StepRow, list_steps
from pgflow.inspect.timeline import Entry, Failure, History, UnitRow, fold, last_seq, list_units, read_history
from pgflow.inspect.versions import PatchRow, VersionRow, list_patches, list_versions
from pgflow.inspect.words import describe_error, encoded, readable
from pgflow.inspect.workers import Holder, WorkerCount, WorkerRow, count_workers, list_holders, list_workers

__all__ = [
    "EVERY_RUN", "STATUSES", "After", "AsyncSource", "Audit", "Call", "CallGroup", "CallRow", "Calls", "ChildRow", "DecisionRow",
    "EffectRow", "Entry", "Failure", "History", "Holder", "Idleness", "LaneRow", "LargePartition", "LedgerEvent", "LeftMessages",
    "LossRow", "MessageRow", "ObligationRow", "Page", "PatchRow", "Question", "QueueRow", "RunDetail", "RunFilter", "RunRow",
    "Source", "StepRow", "StrayLeases", "StuckRuns", "UnitRow", "UnservedLane", "VersionRow", "Violation", "WaitingQueue",
    "WorkerCount", "WorkerHealth", "WorkerRow", "ask", "ask_async", "check_books", "check_workers", "count_ended", "count_left",
    "count_left_messages", "count_runs", "count_stuck", "count_workers", "database_now", "describe_error", "encoded",
    "find_detail", "find_key", "find_keys", "find_newest", "find_queue", "find_run", "fold", "has_queued", "is_served",
    "last_seq", "list_chains", "list_child_chains", "list_children", "list_debts", "list_decisions", "list_effects",
    "list_holders", "list_lanes", "list_large_partitions", "list_losses", "list_messages", "list_obligations", "list_outcomes",
    "list_patches", "list_queue_names", "list_queues", "list_runs", "list_steps", "list_stray_leases", "list_units",
    "list_unserved_lanes", "list_versions", "list_waiting_queues", "list_workers", "list_workflows", "read_audit", "read_calls",
    "read_history", "read_idleness", "read_output", "read_state", "read_statuses", "read_view_costs", "readable", "sample_chains",
    "stream", "stream_async", "unknown_queues", "why_unserved",
]  # fmt: skip
