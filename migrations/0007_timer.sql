-- A run's timers are found by a key that no question about time could be answered from, and the other way round.
-- Where statistics said that there is no timer, the planner took a run's for all of (due_at, run_id, call).
-- The table has one row for each run that waits for a time, and is locked while both indexes are built.

-- squawk-ignore ban-drop-constraint
alter table pgflow.timer drop constraint timer_pkey;
-- squawk-ignore adding-serial-primary-key-field, constraint-missing-not-valid
alter table pgflow.timer add constraint timer_pkey primary key (run_id, call);
-- squawk-ignore require-concurrent-index-deletion
drop index pgflow.timer_run_idx;
-- squawk-ignore require-concurrent-index-creation
create index timer_due_idx on pgflow.timer (due_at);
