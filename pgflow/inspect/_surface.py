"""Readers of `pgflow.inspect` and their rows: all that the package offers."""

from pgflow._db.calls.replay import Idleness
from pgflow._db.calls.updates import Reply
from pgflow._model.queues import QUEUE_RULES, QueueRule
from pgflow._model.schedules import parse_moment
from pgflow.inspect.batches import BatchRow, list_batches
from pgflow.inspect.budgets import (
    BudgetRow,
    ChargeRow,
    ChargesBy,
    SpentRow,
    list_budgets,
    list_charges,
    sum_charges,
    sum_charges_by,
    sum_taken,
)
from pgflow.inspect.calls import Call, CallGroup, CallRow, Calls, read_calls
from pgflow.inspect.clock import database_now, has_passed
from pgflow.inspect.connecting import connect, resolve_dsn
from pgflow.inspect.decided import DecidedRow, list_decided
from pgflow.inspect.documents import DocumentRow, list_documents
from pgflow.inspect.entities import (
    EntityRow,
    EntityUpdateRow,
    find_entity,
    list_entities,
    list_entity_names,
    list_entity_updates,
)
from pgflow.inspect.gates import (
    GateGroup,
    GateRow,
    count_gates,
    find_gate,
    list_gate_names,
    list_gates,
    list_gates_below,
    read_shape,
    speaks_for_others,
)
from pgflow.inspect.health import (
    Deadlock,
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
    list_deadlocks,
    list_large_partitions,
    list_losses,
    list_stray_leases,
    list_unserved_lanes,
    list_waiting_queues,
    read_idleness,
    read_view_costs,
)
from pgflow.inspect.keeping import LegalHold, RetentionRule, list_legal_holds, list_retention_rules
from pgflow.inspect.ledgers import (
    Audit,
    DebtExample,
    DebtGroup,
    DecisionRow,
    EffectRow,
    LedgerEvent,
    ObligationRow,
    count_debts,
    count_left,
    find_obligation,
    list_debts,
    list_decisions,
    list_effects,
    list_obligations,
    read_audit,
)
from pgflow.inspect.listing import After, Listing
from pgflow.inspect.locks import LockRow, list_locks
from pgflow.inspect.mail import MessageRow, OrderRow, list_messages, list_orders
from pgflow.inspect.nodes import (
    NodeRow,
    NodeStanding,
    list_nodes,
    node_of,
    read_standing,
    this_node,
)
from pgflow.inspect.outbox import (
    DeliveryRow,
    EventRow,
    RelayChangeRow,
    RelayRow,
    TriggerRow,
    list_deliveries,
    list_events,
    list_relay_changes,
    list_relays,
    list_triggers,
)
from pgflow.inspect.policy import JudgedRule, judge_act
from pgflow.inspect.progress import NodeState, Progress, read_progress
from pgflow.inspect.proofs import check_anchor, check_proof
from pgflow.inspect.pulse import read_pulse
from pgflow.inspect.question import (
    AsyncSource,
    Question,
    Source,
    ask,
    ask_async,
    stream,
    stream_async,
)
from pgflow.inspect.queues import (
    LaneRow,
    QueueChangeRow,
    QueueRow,
    find_queue,
    is_served,
    list_lanes,
    list_queue_changes,
    list_queue_names,
    list_queued_lanes,
    list_queues,
    list_workflows,
    unknown_queues,
    why_unserved,
)
from pgflow.inspect.rates import Bin, Rates, read_rates
from pgflow.inspect.runs import (
    EVERY_RUN,
    STATUSES,
    ChildRow,
    RunDetail,
    RunExample,
    RunFilter,
    RunGroup,
    RunRow,
    count_ended,
    count_runs,
    find_detail,
    find_key,
    find_keys,
    find_newest,
    find_run,
    find_unserved,
    group_runs,
    has_queued,
    list_chains,
    list_child_chains,
    list_children,
    list_outcomes,
    list_runs,
    read_output,
    read_published,
    read_reply,
    read_state,
    read_statuses,
    sample_chains,
)
from pgflow.inspect.schedules import (
    ScheduleChangeRow,
    ScheduleCount,
    ScheduleRow,
    count_schedules,
    find_schedule,
    list_schedule_changes,
    list_schedules,
)
from pgflow.inspect.seals import (
    SealFinding,
    SealLag,
    SealRow,
    Verification,
    list_seals,
    read_anchor,
    read_proof,
    read_seal_lag,
    verify_seals,
)
from pgflow.inspect.searching import list_longest, search_runs
from pgflow.inspect.server import (
    ServerState,
    SnapshotRow,
    StatementRow,
    TableRow,
    list_slow_statements,
    list_snapshots,
    list_tables,
    read_server,
)
from pgflow.inspect.sqlflows import (
    SqlFlowError,
    SqlFlowRow,
    check_sql_flow,
    draw_sql_flow,
    list_sql_flows,
)
from pgflow.inspect.steps import StepRow, list_steps
from pgflow.inspect.tenants import Tenants, read_tenants
from pgflow.inspect.timeline import (
    Entry,
    Failure,
    History,
    UnitRow,
    fold,
    last_seq,
    list_units,
    read_event_kinds,
    read_history,
)
from pgflow.inspect.traces import derive_ids, read_trace
from pgflow.inspect.versions import PatchRow, VersionRow, list_patches, list_versions
from pgflow.inspect.words import describe_error, describe_reason, encoded, readable
from pgflow.inspect.workers import (
    HeldRun,
    Holder,
    WorkerCount,
    WorkerRow,
    count_workers,
    list_held_runs,
    list_holders,
    list_workers,
)
from pgflow.inspect.workflows import (
    StepTimes,
    WorkflowRow,
    list_step_times,
    list_workflow_rows,
)

__all__ = [
    "EVERY_RUN", "QUEUE_RULES", "STATUSES", "After", "AsyncSource", "Audit", "BatchRow", "Bin",
    "BudgetRow", "Call", "CallGroup", "CallRow", "Calls", "ChargeRow", "ChargesBy", "ChildRow",
    "Deadlock", "DebtExample", "DebtGroup", "DecidedRow", "DecisionRow", "DeliveryRow",
    "DocumentRow", "EffectRow", "EntityRow", "EntityUpdateRow", "Entry", "EventRow", "Failure",
    "GateGroup", "GateRow", "HeldRun", "History", "Holder", "Idleness", "JudgedRule", "LaneRow",
    "LargePartition", "LedgerEvent", "LeftMessages", "LegalHold", "Listing", "LockRow", "LossRow",
    "MessageRow", "NodeRow", "NodeStanding", "NodeState", "ObligationRow", "OrderRow", "PatchRow",
    "Progress", "Question", "QueueChangeRow", "QueueRow", "QueueRule", "Rates", "RelayChangeRow",
    "RelayRow", "Reply", "RetentionRule", "RunDetail", "RunExample", "RunFilter", "RunGroup",
    "RunRow", "ScheduleChangeRow", "ScheduleCount", "ScheduleRow", "SealFinding", "SealLag",
    "SealRow", "ServerState", "SnapshotRow", "Source", "SpentRow", "SqlFlowError", "SqlFlowRow",
    "StatementRow", "StepRow", "StepTimes", "StrayLeases", "StuckRuns", "TableRow", "Tenants",
    "TriggerRow", "UnitRow", "UnservedLane", "Verification", "VersionRow", "Violation",
    "WaitingQueue", "WorkerCount", "WorkerHealth", "WorkerRow", "WorkflowRow", "ask", "ask_async",
    "check_anchor", "check_books", "check_proof", "check_sql_flow", "check_workers", "connect",
    "count_debts", "count_ended", "count_gates", "count_left", "count_left_messages", "count_runs",
    "count_schedules", "count_stuck", "count_workers", "database_now", "derive_ids",
    "describe_error", "describe_reason", "draw_sql_flow", "encoded", "find_detail", "find_entity",
    "find_gate", "find_key", "find_keys", "find_newest", "find_obligation", "find_queue",
    "find_run", "find_schedule", "find_unserved", "fold", "group_runs", "has_passed", "has_queued",
    "is_served", "judge_act", "last_seq", "list_batches", "list_budgets", "list_chains",
    "list_charges", "list_child_chains", "list_children", "list_deadlocks", "list_debts",
    "list_decided", "list_decisions", "list_deliveries", "list_documents", "list_effects",
    "list_entities", "list_entity_names", "list_entity_updates", "list_events", "list_gate_names",
    "list_gates", "list_gates_below", "list_held_runs", "list_holders", "list_lanes",
    "list_large_partitions", "list_legal_holds", "list_locks", "list_longest", "list_losses",
    "list_messages", "list_nodes", "list_obligations", "list_orders", "list_outcomes",
    "list_patches", "list_queue_changes", "list_queue_names", "list_queued_lanes", "list_queues",
    "list_relay_changes", "list_relays", "list_retention_rules", "list_runs",
    "list_schedule_changes", "list_schedules", "list_seals", "list_slow_statements",
    "list_snapshots", "list_sql_flows", "list_step_times", "list_steps", "list_stray_leases",
    "list_tables", "list_triggers", "list_units", "list_unserved_lanes", "list_versions",
    "list_waiting_queues", "list_workers", "list_workflow_rows", "list_workflows", "node_of",
    "parse_moment", "read_anchor", "read_audit", "read_calls", "read_event_kinds", "read_history",
    "read_idleness", "read_output", "read_progress", "read_proof", "read_published", "read_pulse",
    "read_rates", "read_reply", "read_seal_lag", "read_server", "read_shape", "read_standing",
    "read_state", "read_statuses", "read_tenants", "read_trace", "read_view_costs", "readable",
    "resolve_dsn", "sample_chains", "search_runs", "speaks_for_others", "stream", "stream_async",
    "sum_charges", "sum_charges_by", "sum_taken", "this_node", "unknown_queues", "verify_seals",
    "why_unserved",
]  # fmt: skip
