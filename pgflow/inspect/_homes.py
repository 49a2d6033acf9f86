"""Modules of the readers of `pgflow.inspect` and of their rows. Generated from `_surface`."""

HOMES = {
    name: module
    for module, names in {
        "pgflow._db.calls.replay": "Idleness",
        "pgflow._db.calls.updates": "Reply",
        "pgflow._model.queues": "QUEUE_RULES QueueRule",
        "pgflow._model.schedules": "parse_moment",
        "pgflow.inspect.batches": "BatchRow list_batches",
        "pgflow.inspect.budgets": "BudgetRow ChargeRow ChargesBy SpentRow list_budgets "
        "list_charges sum_charges sum_charges_by sum_taken",
        "pgflow.inspect.calls": "Call CallGroup CallRow Calls read_calls",
        "pgflow.inspect.clock": "database_now has_passed",
        "pgflow.inspect.connecting": "connect resolve_dsn",
        "pgflow.inspect.decided": "DecidedRow list_decided",
        "pgflow.inspect.documents": "DocumentRow list_documents",
        "pgflow.inspect.entities": "EntityRow EntityUpdateRow find_entity list_entities "
        "list_entity_names list_entity_updates",
        "pgflow.inspect.gates": "GateGroup GateRow count_gates find_gate list_gate_names "
        "list_gates list_gates_below read_shape speaks_for_others",
        "pgflow.inspect.health": "Deadlock LargePartition LeftMessages LossRow StrayLeases "
        "StuckRuns UnservedLane Violation WaitingQueue WorkerHealth check_books check_workers "
        "count_left_messages count_stuck list_deadlocks list_large_partitions list_losses "
        "list_stray_leases list_unserved_lanes list_waiting_queues read_idleness read_view_costs",
        "pgflow.inspect.keeping": "LegalHold RetentionRule list_legal_holds list_retention_rules",
        "pgflow.inspect.ledgers": "Audit DebtExample DebtGroup DecisionRow EffectRow LedgerEvent "
        "ObligationRow count_debts count_left find_obligation list_debts list_decisions "
        "list_effects list_obligations read_audit",
        "pgflow.inspect.listing": "After Listing",
        "pgflow.inspect.locks": "LockRow list_locks",
        "pgflow.inspect.mail": "MessageRow OrderRow list_messages list_orders",
        "pgflow.inspect.nodes": "NodeRow NodeStanding list_nodes node_of read_standing this_node",
        "pgflow.inspect.outbox": "DeliveryRow EventRow RelayChangeRow RelayRow TriggerRow "
        "list_deliveries list_events list_relay_changes list_relays list_triggers",
        "pgflow.inspect.policy": "JudgedRule judge_act",
        "pgflow.inspect.progress": "NodeState Progress read_progress",
        "pgflow.inspect.proofs": "check_anchor check_proof",
        "pgflow.inspect.pulse": "read_pulse",
        "pgflow.inspect.question": "AsyncSource Question Source ask ask_async stream stream_async",
        "pgflow.inspect.queues": "LaneRow QueueChangeRow QueueRow find_queue is_served list_lanes "
        "list_queue_changes list_queue_names list_queued_lanes list_queues list_workflows "
        "unknown_queues why_unserved",
        "pgflow.inspect.rates": "Bin Rates read_rates",
        "pgflow.inspect.runs": "ChildRow EVERY_RUN RunDetail RunExample RunFilter RunGroup RunRow "
        "STATUSES count_ended count_runs find_detail find_key find_keys find_newest find_run "
        "find_unserved group_runs has_queued list_chains list_child_chains list_children "
        "list_outcomes list_runs read_output read_published read_reply read_state read_statuses "
        "sample_chains",
        "pgflow.inspect.schedules": "ScheduleChangeRow ScheduleCount ScheduleRow count_schedules "
        "find_schedule list_schedule_changes list_schedules",
        "pgflow.inspect.seals": "SealFinding SealLag SealRow Verification list_seals read_anchor "
        "read_proof read_seal_lag verify_seals",
        "pgflow.inspect.searching": "list_longest search_runs",
        "pgflow.inspect.server": "ServerState SnapshotRow StatementRow TableRow "
        "list_slow_statements list_snapshots list_tables read_server",
        "pgflow.inspect.sqlflows": "SqlFlowError SqlFlowRow check_sql_flow draw_sql_flow "
        "list_sql_flows",
        "pgflow.inspect.steps": "StepRow list_steps",
        "pgflow.inspect.tenants": "Tenants read_tenants",
        "pgflow.inspect.timeline": "Entry Failure History UnitRow fold last_seq list_units "
        "read_event_kinds read_history",
        "pgflow.inspect.traces": "derive_ids read_trace",
        "pgflow.inspect.versions": "PatchRow VersionRow list_patches list_versions",
        "pgflow.inspect.words": "describe_error describe_reason encoded readable",
        "pgflow.inspect.workers": "HeldRun Holder WorkerCount WorkerRow count_workers "
        "list_held_runs list_holders list_workers",
        "pgflow.inspect.workflows": "StepTimes WorkflowRow list_step_times list_workflow_rows",
    }.items()
    for name in names.split()
}
