-- Privileges. Tables are granted to nobody: everything goes through functions, which run with the
-- rights of the schema's owner, and through views. Where the roles do not exist - they belong to the
-- whole cluster, and an installer may lack the right to make them - the owner alone may call; the
-- installer then prints the statements that a database administrator runs.
--
-- What may be called from outside is never compiled, nor is what it calls (`jit = off`). A server with LLVM
-- decides by the estimated cost of a plan, which for tables that fill and drain may be anything, and takes
-- longer to compile than any of our statements takes to run.
-- Applied last, whenever any file changed.

do $$
declare
  grants constant jsonb := '{
    "pgflow_client": ["start_run", "start_runs", "send_signal", "post_signal", "deliver_signal", "cancel_run", "result", "results", "find_chain", "run_status",
      "run_state", "read_stream", "read_drafts", "wake", "confirm_effect", "beat_effect"],
    "pgflow_operator": ["start_run", "start_runs", "send_signal", "post_signal", "deliver_signal", "cancel_run", "force_cancel_run", "pause_run", "resume_run", "retry_run",
      "fork_run", "rewind_run", "restart_run", "result",
      "results", "find_chain", "run_status", "run_state", "read_stream", "read_drafts", "wake", "check", "pause_queue", "resume_queue", "limit_queue", "require_known",
      "sweep_keys", "drop_history", "shrink_journal", "settle_effect", "confirm_effect", "beat_effect", "set_policy", "close_loss", "drop_message", "replace_message", "requeue_message",
      "export_runs", "export_units", "import_run"],
    "pgflow_worker": ["sweep_keys", "shrink_journal", "start_run", "start_runs", "send_signal", "post_signal", "deliver_signal", "cancel_run", "result", "results", "find_chain", "run_status",
      "run_state", "read_stream", "read_drafts", "wake", "serve_lanes", "claim_runs", "load_units", "release_runs", "release_strays", "commit_units", "commit_and_claim",
      "commit_unit", "begin_step", "fence_step", "read_unit", "transaction_status", "beat_step", "emit_drafts", "step_details", "poll",
      "idle_state", "register_worker", "beat", "lost_runs", "report_loss", "count_lost_threads", "observe_workers", "reap_worker", "leave_worker", "release_stuck", "add_unit_partitions",
      "confirm_effect", "settle_effect", "beat_effect", "judge_acts", "written_tables", "claim_pages", "page_sent", "page_failed", "register_code", "release_outdated", "export_runs", "export_units"]
  }';
  readers constant text[] := '{pgflow_client,pgflow_worker,pgflow_operator,pgflow_auditor}';
  role_name text;
  fn record;
begin
  for fn in
    select p.oid::regprocedure as signature
    from pg_catalog.pg_proc p
    where p.pronamespace = 'pgflow'::regnamespace and p.prosecdef and not coalesce('jit=off' = any(p.proconfig), false)
  loop
    execute format('alter function %s set jit = off', fn.signature);
  end loop;
  revoke all on all functions in schema pgflow from public;
  revoke all on all tables in schema pgflow from public;
  revoke all on all sequences in schema pgflow from public;
  revoke all on schema pgflow from public;
  for role_name in select unnest(readers) loop
    continue when not exists (select from pg_catalog.pg_roles where rolname = role_name);
    execute format('revoke all on all functions in schema pgflow from %I', role_name);
    execute format('revoke all on all tables in schema pgflow from %I', role_name);
    execute format('grant usage on schema pgflow to %I', role_name);
    execute format('grant select on pgflow.runs, pgflow.steps, pgflow.repeated_steps, pgflow.timeline, pgflow.queues, pgflow.lanes, pgflow.workers, pgflow.decisions, pgflow.effects,
      pgflow.obligations, pgflow.provenance, pgflow.versions, pgflow.patches, pgflow.losses, pgflow.messages, pgflow.undelivered_messages, pgflow.partitions to %I', role_name);
    for fn in
      select p.oid::regprocedure as signature
      from pg_catalog.pg_proc p
      where p.pronamespace = 'pgflow'::regnamespace and grants->role_name ? p.proname
    loop
      execute format('grant execute on function %s to %I', fn.signature, role_name);
    end loop;
  end loop;
end $$;
