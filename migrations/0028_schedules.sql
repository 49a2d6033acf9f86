-- Schedules: when runs of a workflow start by themselves. sql/events/schedules.sql says how they are kept.
--
-- A row changes with each firing, within its page: half of it stays free. Only the time of the next look is indexed.

create table pgflow.schedule (
  name text primary key check (char_length(name) between 1 and 90),
  version int not null default 1,
  created_at timestamptz not null,
  changed_at timestamptz not null,
  paused_at timestamptz,
  undeclared_at timestamptz,
  after_at timestamptz not null,
  due_at timestamptz,
  look_at timestamptz,
  last_slot_at timestamptz,
  last_fired_at timestamptz,
  error_at timestamptz,
  timeout_seconds float8,
  jitter_seconds float8 not null default 0 check (jitter_seconds between 0 and 86400),
  fired bigint not null default 0,
  skipped bigint not null default 0,
  missed bigint not null default 0,
  priority int not null default 0,
  max_catch_up int not null default 100 check (max_catch_up between 1 and 1000),
  is_over boolean not null default false,
  overlap text not null check (overlap in ('skip', 'buffer_one', 'buffer_all', 'cancel_other', 'allow')),
  catch_up text not null check (catch_up in ('skip', 'latest', 'all')),
  workflow text not null,
  queue text not null,
  run_version text not null default '',
  slot_parameter text,
  paused_by text,
  why_paused text,
  last_run_key text,
  error text,
  spec jsonb not null,
  labels jsonb,
  declared jsonb,
  input json not null,
  upcoming timestamptz[] not null default '{}',
  buffered timestamptz[] not null default '{}',
  open_chains bigint[] not null default '{}'
) with (fillfactor = 50);
comment on table pgflow.schedule is 'Schedules, with the slots that come next';
comment on column pgflow.schedule.name is 'Its name, the first part of the keys of its runs';
comment on column pgflow.schedule.version is 'Grows with each change of what the slots are: slots of an older one are not taken';
comment on column pgflow.schedule.created_at is 'When it was set first';
comment on column pgflow.schedule.changed_at is 'When it was set last';
comment on column pgflow.schedule.paused_at is 'When it was paused; null = it is not';
comment on column pgflow.schedule.undeclared_at is 'When a slot was due and the code of no living worker declared it; null = it is declared, or no code ever did';
comment on column pgflow.schedule.after_at is 'The last slot that was computed, or the time from which on there are slots';
comment on column pgflow.schedule.due_at is 'When the first of the upcoming slots is due, its jitter included; null = none is known';
comment on column pgflow.schedule.look_at is 'When it is looked at next; null = it is paused, over, undeclared or cannot be evaluated';
comment on column pgflow.schedule.last_slot_at is 'The last slot that was decided: nothing up to it fires by itself any more';
comment on column pgflow.schedule.last_fired_at is 'When it last started a run';
comment on column pgflow.schedule.error_at is 'When it last failed to start a run, or to be evaluated';
comment on column pgflow.schedule.timeout_seconds is 'A run that is not over by then is cancelled; null = never';
comment on column pgflow.schedule.jitter_seconds is 'Most seconds by which a slot is late on purpose: always the same for one slot';
comment on column pgflow.schedule.fired is 'Number of runs that it has started';
comment on column pgflow.schedule.skipped is 'Number of slots that started nothing because a run before was open';
comment on column pgflow.schedule.missed is 'Number of known slots that were late and not caught up';
comment on column pgflow.schedule.priority is 'Priority of its runs';
comment on column pgflow.schedule.max_catch_up is 'Most late slots that are caught up at once: the newest';
comment on column pgflow.schedule.is_over is 'True if no slot comes after those that are known';
comment on column pgflow.schedule.overlap is 'What a slot does while a run before is open';
comment on column pgflow.schedule.catch_up is 'Which of the slots that are late by more than a minute start a run';
comment on column pgflow.schedule.workflow is 'Workflow of its runs';
comment on column pgflow.schedule.queue is 'Queue of its runs';
comment on column pgflow.schedule.run_version is 'Version of the code that its runs are pinned to; empty = any';
comment on column pgflow.schedule.slot_parameter is 'Parameter of the workflow that gets the slot; null = none';
comment on column pgflow.schedule.paused_by is 'Who paused it';
comment on column pgflow.schedule.why_paused is 'The reason';
comment on column pgflow.schedule.last_run_key is 'Key of the run that it started last';
comment on column pgflow.schedule.error is 'Trouble of its last slot, or the reason for which it cannot be evaluated; null = none';
comment on column pgflow.schedule.spec is 'What its slots are: {cron, every, offset, tz, not_on, only_on, start_at, end_at}';
comment on column pgflow.schedule.labels is 'Labels of its runs, beside the name of the schedule';
comment on column pgflow.schedule.declared is 'As the code last declared it; null = no code did';
comment on column pgflow.schedule.input is 'Input of its runs, without the slot';
comment on column pgflow.schedule.upcoming is 'The next slots, in their order';
comment on column pgflow.schedule.buffered is 'Slots that wait for the end of a run before, in their order';
comment on column pgflow.schedule.open_chains is 'The runs that it started last and that may be open';
-- squawk-ignore require-concurrent-index-creation
create index schedule_look_idx on pgflow.schedule (look_at) where look_at is not null;
alter table pgflow.schedule set (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 2000);

create table pgflow.schedule_declaration (
  declared_at timestamptz,
  worker_id int not null,
  schedule text not null,
  declared jsonb,
  primary key (schedule, worker_id)
);
comment on table pgflow.schedule_declaration is 'Which worker''s code declares which schedule; rows of workers that are gone mean nothing';
comment on column pgflow.schedule_declaration.declared_at is 'When a living worker first said the same; null = nothing was said yet';
comment on column pgflow.schedule_declaration.worker_id is 'The worker';
comment on column pgflow.schedule_declaration.schedule is 'Name of the schedule';
comment on column pgflow.schedule_declaration.declared is 'What its code says of the schedule';

create table pgflow.schedule_change (
  change_id bigint generated always as identity primary key,
  at timestamptz not null,
  schedule text not null,
  what text not null check (what in ('set', 'declared', 'paused', 'resumed', 'triggered', 'backfilled', 'removed')),
  said_by text not null,
  why text,
  detail jsonb
);
comment on table pgflow.schedule_change is 'What was said of schedules, by whom and why; append only';
comment on column pgflow.schedule_change.change_id is 'Number of the change';
comment on column pgflow.schedule_change.at is 'Its time';
comment on column pgflow.schedule_change.schedule is 'Name of the schedule';
comment on column pgflow.schedule_change.what is 'What was done';
comment on column pgflow.schedule_change.said_by is 'A role, or the name that the caller gave';
comment on column pgflow.schedule_change.why is 'The reason; null = none was given';
comment on column pgflow.schedule_change.detail is 'What it was set to, the run that was started, or the slots that were backfilled';
-- squawk-ignore require-concurrent-index-creation
create index schedule_change_name_idx on pgflow.schedule_change (schedule, change_id);

create table pgflow.schedule_state (
  fleet bigint,
  kept_until timestamptz,
  keeper int,
  is_the_only boolean primary key default true check (is_the_only)
) with (fillfactor = 50);
comment on table pgflow.schedule_state is 'Who looks after the schedules: one row';
comment on column pgflow.schedule_state.fleet is 'Hash of the workers among whose declarations the newest were last chosen; null = something was declared since';
comment on column pgflow.schedule_state.kept_until is 'Until then the keeper must have looked again, else another worker takes over';
comment on column pgflow.schedule_state.keeper is 'The worker that looks when a slot is due; the others only see whether it still does';
comment on column pgflow.schedule_state.is_the_only is 'True: there is one row';
insert into pgflow.schedule_state default values;
