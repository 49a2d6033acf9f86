-- Tables of the durable engine.
--
-- Every fact about a run is a row, and every open run has exactly one place: `ready` (runnable),
-- `lease` (a worker holds it), `parked` (waiting) or `held` (paused or stuck). Only the transaction
-- that deletes the old place inserts the new one, so a run can be neither lost nor run twice.
-- `run` and `outcome` are insert-only and `unit` is append-only: no row that says what happened is
-- ever updated, which also keeps the hot tables narrow and their dead tuples few.
--
-- There are no foreign keys between hot tables: `pgflow.check()` proves integrity instead.
-- Columns are ordered by alignment (8, 4, 2, 1 bytes, then variable), so that rows carry no padding.

create table pgflow.migration (
  number int primary key,
  name text not null,
  sha256 text not null,
  applied_at timestamptz not null default clock_timestamp()
);
comment on table pgflow.migration is 'pgflow-engine marker: the numbered migrations applied to this schema, each once';

create table pgflow.source (
  name text primary key,
  sha256 text not null,
  applied_at timestamptz not null default clock_timestamp()
);
comment on table pgflow.source is 'The re-appliable SQL files (functions, triggers, views) and the hash of the text applied last';

-- ---------------------------------------------------------------- queues and lanes

create table pgflow.queue (
  queue text primary key check (octet_length(queue) between 1 and 255),
  paused_at timestamptz,
  max_running int check (max_running > 0),
  max_deaths smallint not null default 5 check (max_deaths between 1 and 1000)
);
comment on table pgflow.queue is 'Limits and policy of a queue; a row appears when a queue is first named';
comment on column pgflow.queue.max_running is 'How many runs of this queue may be leased at once over all workers; null = no limit';
comment on column pgflow.queue.max_deaths is 'After so many workers died holding a run that recorded nothing since its claim, the run is stuck';

create table pgflow.lane (
  lane_id int generated always as identity primary key,
  queue text not null check (octet_length(queue) between 1 and 255),
  workflow text not null check (octet_length(workflow) between 1 and 255),
  version text not null default '' check (octet_length(version) <= 255),
  paused_at timestamptz,
  unique (queue, workflow, version)
);
comment on table pgflow.lane is 'Interned (queue, workflow, version): the stable number under which runs queue up, so that a worker reads only what it serves';

-- ---------------------------------------------------------------- runs

create sequence pgflow.run_id_seq;
comment on sequence pgflow.run_id_seq is 'Numbers runs; a chain is numbered by its first run';

-- The bounds of the tables that every start, step and end write are domains: a statement reads a table's CHECK
-- constraints from their text each time it begins, which was half of what recording one step cost, and a sixth of a start.
create domain pgflow.tenant_name as text check (octet_length(value) <= 255);
comment on domain pgflow.tenant_name is 'Name of a tenant: at most 255 bytes, empty where there is only one';
create domain pgflow.key_text as text check (char_length(value) between 1 and 128);
comment on domain pgflow.key_text is 'Key of a run: 1 to 128 characters';
create domain pgflow.key_retention as int check (value >= 0);
comment on domain pgflow.key_retention is 'Seconds for which a key stays taken';

create table pgflow.run_key (
  chain_id bigint not null,
  root uuid not null,
  retention_seconds pgflow.key_retention,
  tenant pgflow.tenant_name not null default '',
  key pgflow.key_text not null,
  primary key (tenant, key)
);
comment on table pgflow.run_key is 'Which chain a public key names; while the row is here, a second start with this key is the same run or a conflict';
comment on column pgflow.run_key.root is 'UUIDv7 made at the first start: the stem of every idempotency key this chain shows to the outside';
comment on column pgflow.run_key.retention_seconds is 'How long after the end of its chain the key stays taken; null = as long as the history';

create domain pgflow.run_input as json check (json_typeof(value) = 'object' and octet_length(value::text) <= 1048576);
comment on domain pgflow.run_input is 'Arguments of a run by their names: at most 1 MiB, as the encoder wrote them';
create domain pgflow.run_object as jsonb check (jsonb_typeof(value) = 'object' and octet_length(value::text) <= 16384);
comment on domain pgflow.run_object is 'Labels or metadata of a run: an object of at most 16 KiB';
create domain pgflow.run_value as json check (octet_length(value::text) <= 1048576);
comment on domain pgflow.run_value is 'What a run returned or raised: at most 1 MiB, as the encoder wrote it';

create table pgflow.run (
  run_id bigint primary key,
  chain_id bigint not null,
  root_run_id bigint not null,
  parent_run_id bigint,
  created_at timestamptz not null,
  run_at timestamptz,
  deadline_at timestamptz,
  root uuid not null,
  generation int not null,
  lane_id int not null,
  parent_call int,
  priority smallint not null,
  close_policy "char",
  tenant text not null,
  key text not null,
  input pgflow.run_input not null,
  labels pgflow.run_object,
  metadata pgflow.run_object,
  check (
    (generation > 1 or generation = 1 and chain_id = run_id)
    and (parent_run_id is null) = (parent_call is null) and (parent_run_id is null) = (close_policy is null)
    and (close_policy is null or close_policy in ('c', 'a'))
  )
);
comment on table pgflow.run is 'One execution of a workflow; insert only. A chain is a run and the generations that continued it';
comment on column pgflow.run.root_run_id is 'The topmost ancestor (itself for a run without a parent)';
comment on column pgflow.run.close_policy is 'What the end of the parent does to this run: c = cancel it, a = abandon it to itself';

-- (chain_id, generation) is unique: for generation 1 by the primary key, since chain_id = run_id there.
create unique index run_generation_key on pgflow.run (chain_id, generation) where generation > 1;
create index run_parent_idx on pgflow.run (parent_run_id) where parent_run_id is not null;
create index run_key_idx on pgflow.run (key);
create index run_labels_idx on pgflow.run using gin (labels jsonb_path_ops) where labels is not null;

create table pgflow.outcome (
  run_id bigint primary key,
  token bigint,
  finished_at timestamptz not null,
  status text not null check (status in ('completed', 'failed', 'cancelled', 'continued')),
  reason text,
  output pgflow.run_value,
  error pgflow.run_value,
  check ((status = 'failed') = (error is not null))
);
comment on table pgflow.outcome is 'How a run ended; insert only, so that "written once" is a constraint';
comment on column pgflow.outcome.token is 'Token of the lease that wrote it; null where SQL ended a run that no worker held';
-- For whoever looks for the newest of the few that did not go well, each kind in its order.
create index outcome_failed_idx on pgflow.outcome (run_id) where status = 'failed';
create index outcome_cancelled_idx on pgflow.outcome (run_id) where status = 'cancelled';

create table pgflow.deadline (
  run_id bigint primary key,
  due_at timestamptz not null
);
comment on table pgflow.deadline is 'Open runs that must be over by a certain time';
create index deadline_due_idx on pgflow.deadline (due_at);

-- ---------------------------------------------------------------- places

create table pgflow.ready (
  run_id bigint not null unique,
  ready_at timestamptz not null,
  lane_id int not null,
  last_seq int not null,
  attempt int not null,
  priority smallint not null,
  suspect smallint not null default 0,
  has_begun boolean,
  primary key (lane_id, priority, run_id)
);
comment on table pgflow.ready is 'Place: runnable now. The primary key is the order of claiming: started first, served first, however often it waited meanwhile';
comment on column pgflow.ready.has_begun is 'True once a worker has held the run; null before, which takes no room in the rows of those that start';
comment on column pgflow.ready.last_seq is 'Last unit of the run: 0 says that nothing has been recorded and nothing need be read';
comment on column pgflow.ready.attempt is 'Claims so far since the run last made progress';
comment on column pgflow.ready.suspect is 'Workers that died holding this run without a new unit; such runs are claimed one at a time';
-- A worker claims at most one suspect at a time: this finds the first without reading past the others.
create index ready_suspect_idx on pgflow.ready (lane_id, priority, run_id) where suspect > 0;

create table pgflow.lease (
  run_id bigint primary key,
  token bigint not null,
  claimed_at timestamptz not null,
  worker_id int not null,
  lane_id int not null,
  last_seq int not null,
  attempt int not null,
  priority smallint not null,
  suspect smallint not null
);
comment on table pgflow.lease is 'Place: a worker holds the run. Whoever writes for it must show this token; rows are immutable';
comment on column pgflow.lease.last_seq is 'Last unit at the time of the claim: a higher one in the journal is progress';

create table pgflow.parked (
  run_id bigint primary key,
  chain_id bigint not null,
  token bigint,
  parked_at timestamptz not null,
  lane_id int not null,
  last_seq int not null,
  priority smallint not null
);
comment on table pgflow.parked is 'Place: waiting for a signal, a child, a timer or its time to start; holds no lease, thread or connection';
comment on column pgflow.parked.token is 'Token of the lease that parked it; null for a run that has not begun';

create table pgflow.wait (
  run_id bigint not null,
  call int not null,
  kind "char" not null check (kind in ('s', 'c', 'e')),
  name text not null check (octet_length(name) <= 255),
  calls int[],
  primary key (run_id, call),
  check ((kind = 'c') = (calls is not null))
);
comment on table pgflow.wait is 'What a parked run waits for: s = a signal of that name; c = the result of a child of one of these calls (one row for all); e = what became of an effect';

create table pgflow.timer (
  due_at timestamptz not null,
  run_id bigint not null,
  call int not null,
  primary key (due_at, run_id, call)
);
comment on table pgflow.timer is 'When a parked run must go on though nothing came: sleep, time-out, retry or start (call 0)';
create index timer_run_idx on pgflow.timer (run_id);

create table pgflow.held (
  run_id bigint primary key,
  token bigint,
  held_at timestamptz not null,
  lane_id int not null,
  last_seq int not null,
  attempt int not null,
  priority smallint not null,
  has_begun boolean,
  state text not null check (state in ('paused', 'stuck')),
  reason text not null check (char_length(reason) <= 255),
  held_by text,
  code_hash text,
  detail jsonb
);
comment on column pgflow.held.has_begun is 'True once a worker has held the run';
comment on table pgflow.held is 'Place: paused by somebody, or stuck until somebody helps; says why';
comment on column pgflow.held.code_hash is 'Hash of the code that found the run impossible to replay: a worker with other code tries it again';

-- ---------------------------------------------------------------- mail

create table pgflow.signal (
  signal_id bigint generated always as identity,
  chain_id bigint not null,
  run_id bigint,
  sent_at timestamptz not null,
  call int,
  kind "char" not null check (kind in ('s', 'c', 'x', 'p', 'r', 't', 'e')),
  name text not null check (octet_length(name) between 1 and 255),
  has_had_its_try boolean,
  sent_by text,
  payload json check (octet_length(payload::text) <= 1114112),
  primary key (chain_id, kind, name, signal_id)
);
comment on table pgflow.signal is 'Mailbox of a chain; senders only insert, the commit that consumes a message deletes it';
comment on column pgflow.signal.kind is 's = signal, c = result of a child, x = cancel, p = pause, r = resume, t = retry, e = what became of an effect';
comment on column pgflow.signal.has_had_its_try is 'True of a cancel that has brought on a run that was paused or stuck: if the run gets stuck again, it stays so';
comment on column pgflow.signal.run_id is 'Result of a child, what became of an effect: the generation that it is for, with its call';

create table pgflow.undelivered (
  signal_id bigint primary key,
  chain_id bigint not null,
  run_id bigint,
  sent_at timestamptz not null,
  moved_at timestamptz not null,
  call int,
  kind "char" not null,
  name text not null,
  sent_by text,
  payload json
);
comment on table pgflow.undelivered is 'Messages whose run ended before it took them';
create index undelivered_chain_idx on pgflow.undelivered (chain_id);

create table pgflow.dropped_history (
  dropped_at timestamptz not null,
  ended_before timestamptz not null,
  runs int not null,
  dropped_by text not null
);
comment on table pgflow.dropped_history is 'What of the history has been removed, by whom: one row a batch';

create sequence pgflow.nudge_id_seq;
comment on sequence pgflow.nudge_id_seq is 'Numbers nudges';

create table pgflow.nudge (
  chain_id bigint not null,
  nudge_id bigint not null default nextval('pgflow.nudge_id_seq'),
  primary key (chain_id, nudge_id)
);
comment on table pgflow.nudge is 'Chains to look at: written together with a message, deleted by the wake that found the run where it could be looked at';

-- ---------------------------------------------------------------- the journal

create table pgflow.unit_kind (
  kind "char" primary key,
  name text not null unique,
  is_terminal boolean not null,
  written_by text not null
);
comment on table pgflow.unit_kind is 'The closed list of unit kinds: name, whether it ends its call, and who writes it';

insert into pgflow.unit_kind (kind, name, is_terminal, written_by) values
  ('s', 'step_started', false, 'commit_units: the licence of bodies, when no other unit of the flush can carry it'),
  ('c', 'step_completed', true, 'commit_units, fence_step: a body returned'),
  ('f', 'step_failed', true, 'commit_units, fence_step: a body raised for the last time'),
  ('a', 'attempt_failed', false, 'commit_units: a body raised and will be tried again'),
  ('t', 'timer_started', false, 'commit_units: a sleep or a time-out began; due_at is set by the commit'),
  ('T', 'timer_fired', true, 'settle: the database found a sleep due'),
  ('S', 'signal_received', true, 'settle: the database chose and deleted a message'),
  ('W', 'wait_timed_out', true, 'settle: the database found the time-out of a wait due'),
  ('k', 'child_started', false, 'settle: the child exists from this commit on'),
  ('K', 'child_finished', true, 'settle: the result of a child, or why it could not be started'),
  ('x', 'call_cancelled', true, 'commit_units: workflow code gave up a call; settle, with call 0: the whole run'),
  ('X', 'step_abandoned', true, 'commit_units: workflow code gave up a step whose body may still be running'),
  ('p', 'patched', true, 'commit_units: the new side of a code change was taken'),
  ('w', 'clock_read', true, 'commit_units: now() before anything else was recorded'),
  ('v', 'state_set', true, 'commit_units: set_state()'),
  ('e', 'emitted', true, 'commit_units: emit()'),
  ('n', 'continued', true, 'settle: the run goes on as the next generation'),
  ('o', 'operator', false, 'wake, settle: what a person did to the run, who and why'),
  ('d', 'decision_recorded', true, 'commit_units: a choice with its reasons'),
  ('i', 'effect_intended', false, 'settle: an effect may act from this commit on; carries the licence of its body'),
  ('j', 'effect_attempted', false, 'settle: an effect may act again, under the same key'),
  ('C', 'effect_confirmed', true, 'commit_units, look: an effect was done; its result'),
  ('F', 'effect_failed', true, 'commit_units, look: the counterparty refused, or nothing was done'),
  ('U', 'effect_unknown', false, 'commit_units, settle: nobody knows yet whether an effect was done'),
  ('A', 'effect_accepted', true, 'commit_units: the counterparty took an effect on, and will confirm it later'),
  ('E', 'effect_settled', false, 'commit_units, look: who said what became of an effect'),
  ('R', 'compensated', true, 'commit_units: kept for compensations that are no effects'),
  ('r', 'step_renewed', false, 'commit_units: what a recorded result claimed was gone, and its body ran again; its new result');

-- Domains for the reason that is given at `run_key`.
create domain pgflow.unit_call as int check (value >= 0);
comment on domain pgflow.unit_call is 'Number of a durable call; 0 = of the run itself';
create domain pgflow.unit_letter as "char" check (value in (
  's', 'c', 'f', 'a', 't', 'T', 'S', 'W', 'k', 'K', 'x', 'X', 'p', 'w', 'v', 'e', 'n', 'o',
  'd', 'i', 'j', 'C', 'F', 'U', 'A', 'E', 'R', 'r'));
comment on domain pgflow.unit_letter is 'Kind of a unit: see pgflow.unit_kind';
create domain pgflow.unit_name as text check (octet_length(value) <= 255);
comment on domain pgflow.unit_name is 'Name of a call, or its idempotency key: at most 255 bytes';
create domain pgflow.unit_payload as json check (octet_length(value::text) <= 1114112);
comment on domain pgflow.unit_payload is 'What a unit holds: a value of 1 MiB, and 64 KiB around it';

create table pgflow.unit (
  run_id bigint not null,
  token bigint not null,
  at timestamptz not null,
  recorded_at timestamptz not null,
  due_at timestamptz,
  args_hash bigint,
  seq int not null,
  call pgflow.unit_call not null,
  kind pgflow.unit_letter not null,
  name pgflow.unit_name,
  key pgflow.unit_name,
  payload pgflow.unit_payload,
  starts json,
  constraint unit_pkey primary key (run_id, seq)
) partition by range (run_id);
comment on table pgflow.unit is 'The journal, append only. seq is dense from 1; call numbers the durable calls in the order in which the code issued them';
comment on column pgflow.unit.at is 'When it happened, on the database''s clock; what now() showed to the workflow';
comment on column pgflow.unit.recorded_at is 'When the commit wrote it';
comment on column pgflow.unit.due_at is 'timer_started, attempt_failed: when the timer or the next attempt is due, set by the commit';
comment on column pgflow.unit.token is 'Token of the lease that wrote it; 0 where no worker held the run';
comment on column pgflow.unit.key is 'Idempotency key, on the kinds of the effect and decision ledgers';
comment on column pgflow.unit.payload is 'The encoder''s exact text, hence json and not jsonb; the bound leaves 64 KiB around a value of 1 MiB';
comment on column pgflow.unit.args_hash is 'Hash of the arguments, on the kinds of the effect and decision ledgers';
comment on column pgflow.unit.starts is 'Bodies that this commit allows to start: [[call, class, name, ordinal or key, hash of arguments], ...]';

create table pgflow.step_beat (
  run_id bigint not null,
  call int not null,
  attempt int not null,
  beat_at timestamptz not null,
  details json check (octet_length(details::text) <= 65536),
  primary key (run_id, call)
);
comment on table pgflow.step_beat is 'Last sign of life of a long step, with details for its next attempt; gone when the run ends';

create table pgflow.owed (
  run_id bigint not null,
  call int not null,
  opened_at timestamptz not null,
  due_at timestamptz,
  kind text not null check (kind in ('effect', 'gate', 'obligation')),
  name text not null check (octet_length(name) between 1 and 255),
  owed_to text,
  detail jsonb,
  primary key (run_id, call, kind)
);
create index owed_ref_idx on pgflow.owed ((detail->>'ref')) where detail ? 'ref';
create index owed_key_idx on pgflow.owed ((detail->>'key')) where kind = 'effect';
create index owed_opened_idx on pgflow.owed (kind, opened_at);
comment on table pgflow.owed is 'Open effects, gates and obligations, so that an inbox never scans the journal; equals the fold over units';

-- ---------------------------------------------------------------- workers

create table pgflow.worker (
  worker_id int generated always as identity primary key,
  pid int not null,
  beat bigint not null default 0,
  beat_at timestamptz not null,
  started_at timestamptz not null,
  concurrency int not null,
  stopping boolean not null default false,
  host text not null,
  version text not null,
  queues text[] not null
) with (fillfactor = 50);
comment on table pgflow.worker is 'One row a worker process; its beat is the only sign of life that counts';

-- ---------------------------------------------------------------- upkeep of hot tables
-- Places, mail and nudges live for milliseconds and are small: vacuum them by count, not by share,
-- and without a pause, else their indexes fill with dead entries that every claim must step over.

alter table pgflow.ready set (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_scale_factor = 0.5);
alter table pgflow.lease set (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_scale_factor = 0.5);
alter table pgflow.parked set (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);
alter table pgflow.timer set (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);
alter table pgflow.wait set (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);
alter table pgflow.signal set (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);
alter table pgflow.nudge set (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);
alter table pgflow.worker set (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 100, autovacuum_vacuum_cost_delay = 0);

-- lz4 packs payloads faster than pglz; a server built without it keeps its default.
do $$
begin
  alter table pgflow.unit alter column payload set compression lz4;
  alter table pgflow.run alter column input set compression lz4;
  alter table pgflow.outcome alter column output set compression lz4;
exception when feature_not_supported then
  null;
end $$;
