-- Tables of the durable engine.
--
-- Every fact about a run is a row, and every open run has exactly one place: `ready` (runnable),
-- `lease` (a worker holds it), `parked` (waiting) or `held` (paused or stuck). Only the transaction
-- that deletes the old place inserts the new one, so a run can be neither lost nor run twice.
-- `run` and `outcome` are insert-only (but for the labels of a run) and `unit` is append-only: no row
-- that says what happened is ever updated, which also keeps the hot tables narrow and their dead
-- tuples few. A feature that a database does not use has no row in its tables.
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

-- Anybody who may connect may take an advisory lock, so the numbers of ours must not be guessed (sql/core/latch.sql).
create table pgflow.salt (
  is_the_only boolean primary key default true check (is_the_only),
  salt bytea not null
);
comment on table pgflow.salt is 'Secret of this installation, of which the numbers of its advisory locks are made; one row';
comment on column pgflow.salt.is_the_only is 'True: there is one row';
comment on column pgflow.salt.salt is 'Random bytes, which no view and no function shows';
insert into pgflow.salt (salt) values (uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()));

-- ---------------------------------------------------------------- queues and lanes

create table pgflow.queue (
  queue text primary key check (octet_length(queue) between 1 and 255),
  paused_at timestamptz,
  max_running int check (max_running > 0),
  max_per_worker int check (max_per_worker > 0),
  max_deaths smallint not null default 5 check (max_deaths between 1 and 1000),
  refuses_unknown boolean not null default false,
  is_lined boolean,
  is_closed boolean,
  declared jsonb
);
comment on table pgflow.queue is 'Limits and policy of a queue; a row appears when a queue is first named';
comment on column pgflow.queue.max_running is 'How many runs of this queue may be leased at once over all workers; null = no limit';
comment on column pgflow.queue.max_per_worker is 'Most runs of this queue that one worker may hold at once; null = no limit';
comment on column pgflow.queue.max_deaths is 'After so many workers died holding a run that recorded nothing since its claim, the run is stuck';
comment on column pgflow.queue.refuses_unknown is 'Whether a start of a workflow, or of a version of it, that no worker has ever had is refused';
comment on column pgflow.queue.is_lined is 'True if its runs stand in a line: see pgflow.line; null = they do not';
comment on column pgflow.queue.is_closed is 'True if it takes no new runs; null = it does';

create table pgflow.queue_change (
  queue_change_id bigint generated always as identity primary key,
  changed_at timestamptz not null,
  queue text not null,
  what text not null check (what in ('set', 'paused', 'resumed', 'purged')),
  said jsonb not null,
  why text,
  changed_by text not null
);
comment on table pgflow.queue_change is 'What was said of queues, append only: who set which rule, when and why';
comment on column pgflow.queue_change.queue_change_id is 'Number of the change';
comment on column pgflow.queue_change.changed_at is 'Time at which it was said';
comment on column pgflow.queue_change.queue is 'Name of the queue';
comment on column pgflow.queue_change.what is 'set, paused, resumed or purged';
comment on column pgflow.queue_change.said is 'The rules that were set, as they were said; null takes one away. Of a purge, how many runs';
comment on column pgflow.queue_change.why is 'The reason given';
comment on column pgflow.queue_change.changed_by is 'Name of whoever said it';
create index queue_change_idx on pgflow.queue_change (queue, changed_at);

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
create index run_key_retention_idx on pgflow.run_key (retention_seconds, chain_id) where retention_seconds is not null;

create table pgflow.tenant_grant (
  granted_at timestamptz not null,
  role text not null,
  tenant pgflow.tenant_name not null check (tenant <> ''),
  granted_by text not null,
  primary key (role, tenant)
);
comment on table pgflow.tenant_grant is 'Which roles act for which tenants; a role is named, not numbered, so that a dump keeps its grants';

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
  origin_run_id bigint,
  created_at timestamptz not null,
  run_at timestamptz,
  deadline_at timestamptz,
  root uuid not null,
  start_id uuid,
  generation int not null,
  lane_id int not null,
  parent_call int,
  origin_seq int,
  priority smallint not null,
  close_policy "char",
  tenant text not null,
  key text not null,
  pool text,
  input pgflow.run_input not null,
  labels pgflow.run_object,
  metadata pgflow.run_object,
  heritage jsonb,
  check (
    (generation > 1 or generation = 1 and chain_id = run_id)
    and (parent_run_id is null) = (parent_call is null) and (parent_run_id is null) = (close_policy is null)
    and (close_policy is null or close_policy in ('c', 'a'))
  )
);
comment on table pgflow.run is 'One execution of a workflow; insert only, but for labels that it changes. A chain is a run and the generations that continued it';
comment on column pgflow.run.root_run_id is 'The topmost ancestor (itself for a run without a parent)';
comment on column pgflow.run.start_id is 'Made up by whoever sent a start that must not find a run of somebody else under its key: sent again, it finds its own';
comment on column pgflow.run.close_policy is 'What the end of the parent does to this run: c = cancel it, a = abandon it to itself';
comment on column pgflow.run.pool is 'The pool that it draws on; null = none';
-- (chain_id, generation) is unique: for generation 1 by the primary key, since chain_id = run_id there.
create unique index run_generation_key on pgflow.run (chain_id, generation) where generation > 1;
create index run_parent_idx on pgflow.run (parent_run_id) where parent_run_id is not null;
create index run_key_idx on pgflow.run (key);
create index run_labels_idx on pgflow.run using gin (labels jsonb_path_ops) where labels is not null;
create index run_pool_idx on pgflow.run (pool) where pool is not null;

create table pgflow.relabelled (
  run_id bigint primary key,
  labels pgflow.run_object
);
comment on table pgflow.relabelled is 'Runs that have changed their labels, with those that they were started with';
comment on column pgflow.relabelled.run_id is 'The run';
comment on column pgflow.relabelled.labels is 'Its labels when it was started; null = none';

create table pgflow.replacement (
  run_id bigint not null,
  waits_for bigint not null,
  primary key (run_id, waits_for)
);
comment on table pgflow.replacement is 'Parked runs that begin once the chains whose key they have taken over have ended';
comment on column pgflow.replacement.run_id is 'The run that is to begin';
comment on column pgflow.replacement.waits_for is 'A chain that has had its key';

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
  company smallint not null default 0,
  has_begun boolean,
  primary key (lane_id, priority, run_id)
);
comment on table pgflow.ready is 'Place: runnable now. The primary key is the order of claiming: started first, served first, however often it waited meanwhile';
comment on column pgflow.ready.last_seq is 'Last unit of the run: 0 says that nothing has been recorded and nothing need be read';
comment on column pgflow.ready.attempt is 'Claims so far since the run last made progress';
comment on column pgflow.ready.suspect is 'Workers that died holding this run without a new unit; from the second on a worker has one group of such runs at a time';
comment on column pgflow.ready.company is 'Most runs of its group, itself included: half of those that were suspects with it when a worker last died; 0 = no matter';
comment on column pgflow.ready.has_begun is 'True once a worker has held the run; null before, which takes no room in the rows of those that start';
-- A worker claims one group of suspects at a time, the least suspicious first: this finds them without reading past
-- the others.
create index ready_suspect_idx on pgflow.ready (lane_id, suspect, priority, run_id) where suspect > 1;

create table pgflow.lease (
  run_id bigint primary key,
  token bigint not null,
  claimed_at timestamptz not null,
  worker_id int not null,
  lane_id int not null,
  last_seq int not null,
  attempt int not null,
  priority smallint not null,
  suspect smallint not null,
  company smallint not null default 0
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
  kind "char" not null check (kind in ('c', 'e', 'g', 'l', 's', 'u')),
  name text not null check (octet_length(name) <= 255),
  calls int[],
  primary key (run_id, call),
  check ((kind = 'c') = (calls is not null))
);
comment on table pgflow.wait is 'What a parked run waits for: s = a signal of that name; c = the result of a child of one of these calls (one row for all); e = what became of an effect; g = the answer of a gate; l = a lock; u = an update';

create table pgflow.timer (
  due_at timestamptz not null,
  run_id bigint not null,
  call int not null,
  primary key (run_id, call)
);
comment on table pgflow.timer is 'When a parked run must go on though nothing came: sleep, time-out, retry or start (call 0)';
create index timer_due_idx on pgflow.timer (due_at);

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
comment on table pgflow.held is 'Place: paused by somebody, or stuck until somebody helps; says why';
comment on column pgflow.held.has_begun is 'True once a worker has held the run';
comment on column pgflow.held.code_hash is 'Hash of the code that found the run impossible to replay: a worker with other code tries it again';

-- ---------------------------------------------------------------- mail

create table pgflow.signal (
  signal_id bigint generated always as identity,
  chain_id bigint not null,
  run_id bigint,
  sent_at timestamptz not null,
  call int,
  kind "char" not null check (kind in ('c', 'e', 'g', 'l', 'p', 'r', 's', 't', 'u', 'x')),
  name text not null check (octet_length(name) between 1 and 255),
  has_had_its_try boolean,
  sent_by text,
  payload json check (octet_length(payload::text) <= 1114112),
  refusal jsonb,
  primary key (chain_id, kind, name, signal_id)
);
comment on table pgflow.signal is 'Mailbox of a chain; senders only insert, the commit that consumes a message deletes it';
comment on column pgflow.signal.run_id is 'Result of a child, what became of an effect, verdict of a gate: the generation that it is for, with its call';
comment on column pgflow.signal.kind is 's = signal, c = result of a child, x = cancel, p = pause, r = resume, t = retry, e = what became of an effect, g = the verdict of a gate, l = what became of the wait for a lock, u = an update';
comment on column pgflow.signal.has_had_its_try is 'True of a cancel that has brought on a run that was paused or stuck: if the run gets stuck again, it stays so';
comment on column pgflow.signal.refusal is 'Why the code could not take it, {error, code_hash}: the run was held for a person; null = nobody has tried, or it has been mended';

create table pgflow.sent_key (
  chain_id bigint not null,
  message_id bigint,
  same_as bigint not null,
  key text not null check (char_length(key) between 1 and 255),
  primary key (chain_id, key)
);
comment on table pgflow.sent_key is 'Idempotency keys of messages, for as long as the history of their run: the same key to the same run is one message';
comment on column pgflow.sent_key.chain_id is 'The chain that it was sent to';
comment on column pgflow.sent_key.message_id is 'The message that was sent under the key';
comment on column pgflow.sent_key.same_as is 'Hash of its name and payload: another message under the same key is refused';
comment on column pgflow.sent_key.key is 'The key that the sender gave it';

create table pgflow.undelivered (
  signal_id bigint primary key,
  chain_id bigint not null,
  run_id bigint,
  replaced_in bigint,
  sent_at timestamptz not null,
  moved_at timestamptz not null,
  call int,
  kind "char" not null,
  reason text not null default 'ended' check (reason in ('ended', 'dropped', 'replaced')),
  name text not null,
  sent_by text,
  moved_by text check (char_length(moved_by) <= 255),
  why text check (char_length(why) <= 4096),
  payload json
);
comment on table pgflow.undelivered is 'Messages that no run took: it had ended, or somebody took them out of its mailbox';
comment on column pgflow.undelivered.replaced_in is 'The number that it had, which is that of the message in its place now';
comment on column pgflow.undelivered.reason is 'ended = the run had ended; dropped, replaced = somebody took it out of the mailbox';
comment on column pgflow.undelivered.moved_by is 'Who took it out of the mailbox; null = the run had ended';
comment on column pgflow.undelivered.why is 'The reason that was given';
create index undelivered_chain_idx on pgflow.undelivered (chain_id);

create sequence pgflow.nudge_id_seq;
comment on sequence pgflow.nudge_id_seq is 'Numbers nudges';

create table pgflow.nudge (
  chain_id bigint not null,
  nudge_id bigint not null default nextval('pgflow.nudge_id_seq'),
  primary key (chain_id, nudge_id)
);
comment on table pgflow.nudge is 'Chains to look at: written together with a message, deleted by the wake that found the run where it could be looked at';

-- Updates: what somebody asks a running workflow to do, and the one answer to each. The request is mail, and in the
-- journal once the workflow has taken it; so is what its handler came to. Here is who waits for which answer.
create table pgflow.run_update (
  chain_id bigint not null,
  sent_at timestamptz not null,
  replied_at timestamptz,
  reply_run_id bigint,
  same_as bigint not null,
  reply_seq int,
  update_id text not null check (char_length(update_id) between 1 and 255),
  name text not null check (octet_length(name) between 1 and 255),
  sent_by text,
  status text check (status in ('done', 'failed', 'rejected', 'refused')),
  error json,
  primary key (chain_id, update_id)
) with (fillfactor = 80);
comment on table pgflow.run_update is 'Updates that were sent to runs; kept as long as the history of the run. What was asked and answered is in the mailbox and the journal';
comment on column pgflow.run_update.chain_id is 'The chain that it is for';
comment on column pgflow.run_update.sent_at is 'Time of sending';
comment on column pgflow.run_update.replied_at is 'Time of the answer; null = there is none yet';
comment on column pgflow.run_update.reply_run_id is 'The generation whose journal has the answer; null = none has it';
comment on column pgflow.run_update.same_as is 'Hash of its name and arguments: the same id with others is refused';
comment on column pgflow.run_update.reply_seq is 'Place of the answer in that journal';
comment on column pgflow.run_update.update_id is 'Id of the update, within its run';
comment on column pgflow.run_update.name is 'Name of the handler';
comment on column pgflow.run_update.sent_by is 'Sender: a role, or the name that the caller gave';
comment on column pgflow.run_update.status is 'done, failed: its handler returned or raised; rejected: by its validator; refused: the run ended first; null = no answer yet';
comment on column pgflow.run_update.error is 'Reason for which it was rejected; null = it was not, or the journal has it';

create table pgflow.update_asker (
  chain_id bigint not null,
  reply_to bigint not null,
  update_id text not null,
  reply_as text not null check (octet_length(reply_as) between 1 and 255),
  primary key (chain_id, update_id, reply_to, reply_as)
);
comment on table pgflow.update_asker is 'Runs that wait for the answer of an update: deleted by the transaction that sends it to them';
comment on column pgflow.update_asker.chain_id is 'The chain that is asked';
comment on column pgflow.update_asker.reply_to is 'The chain that gets the answer';
comment on column pgflow.update_asker.update_id is 'Id of the update';
comment on column pgflow.update_asker.reply_as is 'Name of the signal with the answer';

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
  ('R', 'compensated', true, 'commit_units: there was nothing to take back, since what had been accepted was not done'),
  ('r', 'step_renewed', false, 'commit_units: what a recorded result claimed was gone, and its body ran again; its new result'),
  ('y', 'labels_set', true, 'commit_units: set_labels()'),
  ('O', 'obligation_opened', false, 'commit_units: owe(); adopt_obligations_: one that another generation had opened'),
  ('D', 'obligation_closed', false, 'commit_units: discharge(), waive(), transfer(); close_by_word_: said by others; adopt_obligations_: handed on'),
  ('B', 'obligation_breached', false, 'note_breach_: it was due and not discharged'),
  ('m', 'budget_admitted', false, 'commit_units: the pool has let a call through'),
  ('M', 'budget_charged', true, 'commit_units, fence_step: charge()'),
  ('q', 'budget_refused', true, 'commit_units: the pool has not let a call through'),
  ('g', 'gate_asked', false, 'answer: the database asked for an answer, and says until when'),
  ('G', 'gate_answered', true, 'answer: somebody answered, or the time for it was over'),
  ('l', 'lock_asked', false, 'ask_locks_: a run stands in the queue of a lock'),
  ('L', 'lock_won', true, 'ask_locks_, look: a run holds a lock from here on; its fence'),
  ('u', 'lock_released', true, 'settle_locks_, look: a lock was given back or lost, or the wait for it refused'),
  ('H', 'entity_updated', true, 'fence_step: an update of an entity, with its verdict'),
  ('Z', 'redacted', false, 'redact: a person had a value of the run replaced by its hash'),
  ('h', 'update_taken', true, 'commit_units: serve() takes an update that its validator has let through'),
  ('b', 'update_replied', false, 'commit_units: what the handler of an update came to');

-- Domains for the reason that is given at `run_key`.
create domain pgflow.unit_call as int check (value >= 0);
comment on domain pgflow.unit_call is 'Number of a durable call; 0 = of the run itself';
create domain pgflow.unit_letter as "char" check (value in (
  'A', 'B', 'C', 'D', 'E', 'F', 'G', 'H', 'K', 'L', 'M', 'O', 'R', 'S', 'T', 'U', 'W', 'X', 'Z', 'a', 'b', 'c',
  'd', 'e', 'f', 'g', 'h', 'i', 'j', 'k', 'l', 'm', 'n', 'o', 'p', 'q', 'r', 's', 't', 'u', 'v', 'w', 'x', 'y'));
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
comment on column pgflow.unit.token is 'Token of the lease that wrote it; 0 where no worker held the run';
comment on column pgflow.unit.at is 'When it happened, on the database''s clock; what now() showed to the workflow';
comment on column pgflow.unit.recorded_at is 'When the commit wrote it';
comment on column pgflow.unit.due_at is 'timer_started, attempt_failed: when the timer or the next attempt is due, set by the commit';
comment on column pgflow.unit.args_hash is 'Hash of the arguments, on the kinds of the effect and decision ledgers';
comment on column pgflow.unit.key is 'Idempotency key, on the kinds of the effect and decision ledgers';
comment on column pgflow.unit.payload is 'The encoder''s exact text, hence json and not jsonb; the bound leaves 64 KiB around a value of 1 MiB';
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

-- What bodies of steps emit while they run: readers may have it at once, and it counts only once the step has completed.
-- Unlogged, since it may be lost at any time: what completed steps emitted is in the journal.
create unlogged table pgflow.draft (
  run_id bigint not null,
  call int not null,
  n int not null,
  after_seq int not null,
  try text not null check (octet_length(try) <= 64),
  stream text not null check (octet_length(stream) between 1 and 255),
  value pgflow.run_value not null,
  primary key (run_id, call, n)
);
comment on table pgflow.draft is 'Values that bodies of steps have emitted and whose steps have not completed; gone with the next try, the next step that emits, or the run';
comment on column pgflow.draft.run_id is 'The run whose step emits';
comment on column pgflow.draft.call is 'Number of the step''s call';
comment on column pgflow.draft.n is 'Which value of this try it is, from 0';
comment on column pgflow.draft.after_seq is 'The last unit of the run when it was emitted: a later one of the same call ends the try, and this value with it';
comment on column pgflow.draft.try is 'Which try it is of';
comment on column pgflow.draft.stream is 'Name of the stream';
comment on column pgflow.draft.value is 'The value';

create table pgflow.dropped_history (
  dropped_history_id bigint generated always as identity primary key,
  dropped_at timestamptz not null,
  ended_before timestamptz not null,
  runs int not null,
  dropped_by text not null,
  why text
);
comment on table pgflow.dropped_history is 'What of the history has been removed, by whom: one row a batch';

create table pgflow.retention_rule (
  keep_seconds float8 not null check (keep_seconds >= 0 and keep_seconds < 'infinity'),
  set_at timestamptz not null,
  rule text primary key check (octet_length(rule) between 1 and 255),
  workflow text,
  status text check (status in ('completed', 'failed', 'cancelled')),
  tenant text,
  labels jsonb check (jsonb_typeof(labels) = 'object'),
  set_by text not null
);
comment on table pgflow.retention_rule is 'For how long workers keep which runs; what no rule matches stays';

create table pgflow.legal_hold (
  chain_id bigint primary key,
  held_at timestamptz not null,
  why text not null,
  held_by text not null
);
comment on table pgflow.legal_hold is 'Runs that nothing removes until the hold is released';

create table pgflow.sparse_partition (
  name text primary key,
  noticed_at timestamptz not null,
  next_try_at timestamptz not null,
  units bigint not null,
  tries int not null default 0,
  reason text not null check (reason in ('busy', 'units', 'vacuum'))
);
comment on table pgflow.sparse_partition is 'Partitions of the journal that are nearly empty and could not be shrunk yet';
comment on column pgflow.sparse_partition.name is 'Name of the table';
comment on column pgflow.sparse_partition.noticed_at is 'Since when it is known to be nearly empty';
comment on column pgflow.sparse_partition.next_try_at is 'When workers ask for its lock again';
comment on column pgflow.sparse_partition.units is 'How many rows it is kept for, by the last look or the last vacuum';
comment on column pgflow.sparse_partition.tries is 'How often its lock was not to be had in time';
comment on column pgflow.sparse_partition.reason is 'busy = its lock was not to be had in time; units = too many rows to copy under a lock; vacuum = its dead rows are still there';

-- ---------------------------------------------------------------- forks, and histories of another database

-- Messages that a dropped part of a journal had taken come before all that wait: their numbers run downwards.
create sequence pgflow.put_back_seq increment by -1 maxvalue -1 start with -1;
comment on sequence pgflow.put_back_seq is 'Numbers messages that are put back into a mailbox: below zero, and lower each time';

create table pgflow.carried (
  run_id bigint not null,
  args_hash bigint not null,
  seq int not null,
  call int not null,
  is_done boolean not null,
  what text not null default 'step' check (what in ('step', 'effect', 'child', 'undo')),
  name text not null check (octet_length(name) <= 255),
  key text not null check (octet_length(key) <= 1024),
  payload json,
  request json,
  note jsonb,
  primary key (run_id, seq, call)
);
comment on table pgflow.carried is 'What a dropped part of a journal knew of what it did, for the run that took its place: results that are handed to it where it asks for the same, keys of steps that did not complete, and effects that it must take back first';

create table pgflow.imported (
  run_id bigint primary key,
  imported_at timestamptz not null,
  generation int not null,
  root uuid not null,
  status text not null,
  imported_by text not null,
  origin jsonb not null,
  unique (root, generation)
);
comment on table pgflow.imported is 'Runs whose history was recorded in another database. They have an outcome and so can never be claimed';

-- ---------------------------------------------------------------- lines
-- Queues whose runs wait by key, and the rules by which keys take turns. sql/runs/lines.sql says how.

create table pgflow.line (
  rate_seconds float8 check (rate_seconds between 0.01 and 2592000),
  key_rate_seconds float8 check (key_rate_seconds between 0.01 and 2592000),
  expires_seconds float8 check (expires_seconds > 0 and expires_seconds <= 31536000),
  ageing_seconds float8 check (ageing_seconds > 0 and ageing_seconds <= 2592000),
  max_per_key int check (max_per_key > 0),
  rate int check (rate > 0),
  burst int check (burst > 0),
  key_rate int check (key_rate > 0),
  key_burst int check (key_burst > 0),
  is_fifo boolean not null default false,
  is_over boolean not null default false,
  queue text primary key,
  key text check (octet_length(key) between 1 and 255),
  rate_said text,
  key_rate_said text,
  weights jsonb check (jsonb_typeof(weights) = 'object'),
  check (
    (rate is null) = (rate_seconds is null) and (key_rate is null) = (key_rate_seconds is null)
    and (burst is null or rate is not null) and (key_burst is null or key_rate is not null)
  )
);
comment on table pgflow.line is 'Rules of queues whose runs stand in a line';
comment on column pgflow.line.rate_seconds is 'Seconds for which that rate is';
comment on column pgflow.line.key_rate_seconds is 'Seconds for which that rate is';
comment on column pgflow.line.expires_seconds is 'Seconds after which a run that has not begun is cancelled; null = never';
comment on column pgflow.line.ageing_seconds is 'Seconds of waiting that are worth one step of priority; null = priorities are strict';
comment on column pgflow.line.max_per_key is 'Most runs of one key that may be held at once; null = no limit';
comment on column pgflow.line.rate is 'Most runs of the queue that may begin in so many seconds; null = no limit';
comment on column pgflow.line.burst is 'Size of the bucket that fills at this rate; null = no window of that length ever has more';
comment on column pgflow.line.key_rate is 'Most runs of one key that may begin in so many seconds; null = no limit';
comment on column pgflow.line.key_burst is 'Size of a bucket for each key; null = windows';
comment on column pgflow.line.is_fifo is 'True if a run of a key begins only once those before it have ended';
comment on column pgflow.line.is_over is 'True if the queue has no such rules any more: whatever still comes into its line is taken out';
comment on column pgflow.line.queue is 'Name of the queue';
comment on column pgflow.line.key is 'Expression for the key of a run; null = all have one';
comment on column pgflow.line.rate_said is 'The rate as it was said';
comment on column pgflow.line.key_rate_said is 'The rate of keys as it was said';
comment on column pgflow.line.weights is 'Runs in a turn, by key; one that is not named has 1';

create table pgflow.line_state (
  opens_at timestamptz,
  tended_at timestamptz,
  queue text primary key,
  cursor text not null default ''
) with (fillfactor = 50);
comment on table pgflow.line_state is 'Progress of lines, changed by claims under the lock of their queue';
comment on column pgflow.line_state.opens_at is 'Time at which a rate lets somebody begin again; null = no rate holds anybody back';
comment on column pgflow.line_state.tended_at is 'Time at which it was last tidied up';
comment on column pgflow.line_state.queue is 'Name of the queue';
comment on column pgflow.line_state.cursor is 'The key whose turn was last';

create table pgflow.line_run (
  run_id bigint primary key,
  expires_at timestamptz,
  rank bigint not null,
  lane_id int not null,
  suspect smallint not null default 0,
  is_fresh boolean not null,
  queue text not null,
  key text not null
);
comment on table pgflow.line_run is 'Runs that stand in a line: ready, once their turn comes';
comment on column pgflow.line_run.run_id is 'The run';
comment on column pgflow.line_run.expires_at is 'Time from which it must not begin; null = none';
comment on column pgflow.line_run.rank is 'Place among the runs of its key, before its number: priority, or time and priority; -1 in order = an ancestor has the turn';
comment on column pgflow.line_run.lane_id is 'Its queue, workflow and version';
comment on column pgflow.line_run.suspect is 'Workers that died holding it without a new unit';
comment on column pgflow.line_run.is_fresh is 'True if no worker ever held its chain: rates are for these, and they stand behind the others';
comment on column pgflow.line_run.queue is 'Name of the queue';
comment on column pgflow.line_run.key is 'Its key; empty = none';
create index line_run_order_idx on pgflow.line_run (queue, is_fresh, key, rank, run_id);
create index line_run_suspect_idx on pgflow.line_run (queue, suspect, rank, run_id) where suspect > 1;
create index line_run_expires_idx on pgflow.line_run (expires_at) where expires_at is not null;

create table pgflow.line_turn (
  chain_id bigint not null,
  run_id bigint not null,
  queue text not null,
  key text not null,
  primary key (queue, key, chain_id)
);
comment on table pgflow.line_turn is 'Chains that have had a turn, of queues with a limit for each key: counts while it is held, in order while it is open';
comment on column pgflow.line_turn.chain_id is 'The chain';
comment on column pgflow.line_turn.run_id is 'Its generation that was claimed last';
comment on column pgflow.line_turn.queue is 'Name of the queue';
comment on column pgflow.line_turn.key is 'Its key';

create table pgflow.line_rate (
  slot bigint not null,
  starts int not null,
  scope "char" not null check (scope in ('q', 'k')),
  queue text not null,
  key text not null,
  primary key (queue, scope, key, slot)
) with (fillfactor = 70);
comment on table pgflow.line_rate is 'Runs that began, counted by hundredths of a window';
comment on column pgflow.line_rate.slot is 'Number of the hundredth';
comment on column pgflow.line_rate.starts is 'Runs that began in it';
comment on column pgflow.line_rate.scope is 'q = of the queue, k = of a key';
comment on column pgflow.line_rate.queue is 'Name of the queue';
comment on column pgflow.line_rate.key is 'The key; empty for the queue';

create table pgflow.line_bucket (
  filled_at timestamptz not null,
  tokens float8 not null,
  scope "char" not null check (scope in ('q', 'k')),
  queue text not null,
  key text not null,
  primary key (queue, scope, key)
) with (fillfactor = 70);
comment on table pgflow.line_bucket is 'Buckets of rates with a burst; one that is not here is full';
comment on column pgflow.line_bucket.filled_at is 'Time at which it held that much';
comment on column pgflow.line_bucket.tokens is 'Runs that could begin then';
comment on column pgflow.line_bucket.scope is 'q = of the queue, k = of a key';
comment on column pgflow.line_bucket.queue is 'Name of the queue';
comment on column pgflow.line_bucket.key is 'The key; empty for the queue';

-- ---------------------------------------------------------------- batches
-- Runs that belong together, one that begins once all of them have ended, and one that begins with the first failure.
-- sql/runs/batches.sql says how.

create table pgflow.batch (
  batch_id bigint primary key,
  upto bigint not null default 0,
  opened_at timestamptz not null,
  begun_at timestamptz,
  is_whole boolean not null default false
) with (fillfactor = 70);
comment on table pgflow.batch is 'Runs that begin once all members of their batch have ended';
comment on column pgflow.batch.batch_id is 'The chain that begins then';
comment on column pgflow.batch.upto is 'Number of the member up to which all have ended';
comment on column pgflow.batch.opened_at is 'Time at which its first members were named';
comment on column pgflow.batch.begun_at is 'Time at which all had ended, or the run had been cancelled; null = not yet';
comment on column pgflow.batch.is_whole is 'True once all members are named';
create index batch_open_idx on pgflow.batch (batch_id) where begun_at is null;

create table pgflow.batch_member (
  batch_id bigint not null,
  n bigint generated always as identity,
  chain_id bigint not null,
  primary key (batch_id, n),
  unique (batch_id, chain_id)
);
comment on table pgflow.batch_member is 'Members of batches, kept as long as the history of the run that they are waited for by';
comment on column pgflow.batch_member.batch_id is 'The chain that waits for them';
comment on column pgflow.batch_member.n is 'Number of the member, in the order in which they were named';
comment on column pgflow.batch_member.chain_id is 'The member';

create table pgflow.batch_failure (
  batch_id bigint primary key,
  looked bigint not null default 0,
  fired_at timestamptz,
  member_id bigint,
  started_key text,
  trouble text,
  workflow text not null,
  queue text not null,
  input json not null
) with (fillfactor = 70);
comment on table pgflow.batch_failure is 'Runs that begin with the first failure in their batch';
comment on column pgflow.batch_failure.batch_id is 'The batch';
comment on column pgflow.batch_failure.looked is 'Number of the member up to which the last look has come; it goes round and round';
comment on column pgflow.batch_failure.fired_at is 'Time at which the first failure was seen; null = not yet';
comment on column pgflow.batch_failure.member_id is 'The member that had failed';
comment on column pgflow.batch_failure.started_key is 'Key of the run that has begun with it';
comment on column pgflow.batch_failure.trouble is 'SQLSTATE with which its start was refused';
comment on column pgflow.batch_failure.workflow is 'Workflow of that run';
comment on column pgflow.batch_failure.queue is 'Its queue';
comment on column pgflow.batch_failure.input is 'Its input';

-- ---------------------------------------------------------------- effects and obligations
-- What runs owe, and what became of it.

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
comment on table pgflow.owed is 'Open effects, gates and obligations, so that an inbox never scans the journal; equals the fold over units';
create index owed_ref_idx on pgflow.owed ((detail->>'ref')) where detail ? 'ref';
create index owed_key_idx on pgflow.owed ((detail->>'key')) where kind = 'effect';
create index owed_opened_idx on pgflow.owed (kind, opened_at);
-- By its key, which everybody has who closes it.
create index owed_obligation_idx on pgflow.owed ((detail->>'key')) where kind = 'obligation';
-- Those that the sweep finds once they are due.
create index owed_due_idx on pgflow.owed (due_at) where kind = 'obligation' and detail->>'state' = 'open';
-- Those that a person is told of.
create index owed_person_idx on pgflow.owed (run_id) where kind = 'obligation' and detail ? 'since';

-- The outside has promised a sign of life at least so often, and a sweep notices when none comes. A beat writes beat_at
-- and details, which no index has, so that it is an update within the page. When to look is indexed, and moves ahead
-- only when a sweep has come to it.
create table pgflow.effect_beat (
  run_id bigint not null,
  call int not null,
  look_at timestamptz,
  beat_at timestamptz not null,
  timeout_seconds float8 not null check (timeout_seconds > 0),
  can_ask boolean not null,
  details json check (octet_length(details::text) <= 65536),
  primary key (run_id, call)
) with (fillfactor = 50);
comment on table pgflow.effect_beat is 'Last sign of life of each accepted effect whose counterparty has promised some; gone when the effect is closed';
comment on column pgflow.effect_beat.run_id is 'The run that owes the effect';
comment on column pgflow.effect_beat.call is 'Number of the effect''s call';
comment on column pgflow.effect_beat.look_at is 'When a sweep looks whether a beat has come; null = it has found none, and the run knows or has mail that says so';
comment on column pgflow.effect_beat.beat_at is 'When the last beat came, or the acceptance';
comment on column pgflow.effect_beat.timeout_seconds is 'Without a beat for so long, nobody knows what has become of the effect';
comment on column pgflow.effect_beat.can_ask is 'Whether the code has a way to ask the counterparty';
comment on column pgflow.effect_beat.details is 'What the last beat with details said of the progress; null = nothing';
create index effect_beat_look_idx on pgflow.effect_beat (look_at);

-- Whoever sends a confirmation over another channel, as a webhook or a message of a queue, sends it again until he
-- hears that it was taken. The debt may be closed by then. So here is what each reference came to.
create table pgflow.confirmation (
  chain_id bigint not null,
  said_at timestamptz not null,
  ref text primary key check (octet_length(ref) between 1 and 255),
  verdict text not null check (verdict in ('confirmed', 'failed')),
  said_by text
);
comment on table pgflow.confirmation is 'What became of effects that were accepted, by the reference of the counterparty; kept as long as the history of the run';
comment on column pgflow.confirmation.chain_id is 'The chain whose effect it is';
comment on column pgflow.confirmation.said_at is 'Time at which it was said';
comment on column pgflow.confirmation.ref is 'Reference of the counterparty';
comment on column pgflow.confirmation.verdict is 'confirmed or failed';
comment on column pgflow.confirmation.said_by is 'Name of whoever said so; null = its own settle function';
create index confirmation_chain_idx on pgflow.confirmation (chain_id);

create table pgflow.saga_effect (
  chain_id bigint not null,
  generation int not null check (generation >= 0),
  call int not null,
  n int not null default 1,
  taken_back_in int,
  name text not null check (octet_length(name) <= 255),
  key text not null check (octet_length(key) <= 255),
  code text not null check (octet_length(code) <= 1024),
  request json not null,
  result json,
  ref text,
  primary key (chain_id, generation, key)
);
comment on table pgflow.saga_effect is 'Effects that a generation handed on when it continued as new: a later one takes them back if it fails';

-- ---------------------------------------------------------------- policy and gates
-- Which effects need somebody's leave, and who gave it. `gate` has the open ones only; the journal has them all. What
-- people said is in `gate_answer` for as long as the history of the run: rows are only added, one number after the other,
-- so the primary key decides whose answer comes first.

create table pgflow.policy (
  version int primary key,
  set_at timestamptz not null,
  set_by text not null check (char_length(set_by) <= 255),
  why text not null check (char_length(why) <= 4096)
);
comment on table pgflow.policy is 'Versions of the policy, insert only: the newest counts';

create table pgflow.policy_rule (
  timeout_seconds float8 check (timeout_seconds > 0 and timeout_seconds < 'Infinity'),
  version int not null references pgflow.policy,
  rule int not null,
  quorum int not null default 1 check (quorum between 1 and 100),
  needs text not null check (needs in ('gate', 'nothing')),
  risk text check (risk in ('reversible', 'compensable', 'irreversible')),
  name text check (octet_length(name) between 1 and 255),
  amount text,
  above numeric check (above not in ('NaN', 'Infinity', '-Infinity')),
  predicate text,
  author text check (author = 'model'),
  role text check (octet_length(role) between 1 and 63),
  on_timeout text not null default 'expire' check (on_timeout in ('expire', 'reject', 'escalate', 'approve')),
  approvers text[] not null default '{}',
  escalate text[] not null default '{}',
  primary key (version, rule),
  check ((amount is null) = (above is null)),
  constraint policy_rule_asks_check check (
    needs = 'gate' or approvers = '{}' and quorum = 1 and timeout_seconds is null
  )
);
comment on table pgflow.policy_rule is 'Rules of a version of the policy: the first that fits an effect says what it needs';

create table pgflow.gate (
  run_id bigint not null,
  chain_id bigint not null,
  asked_at timestamptz not null,
  expires_at timestamptz,
  timeout_seconds float8 check (timeout_seconds > 0),
  call int not null,
  seq int not null,
  quorum int not null check (quorum >= 1),
  needs_value boolean not null,
  gate text not null check (octet_length(gate) between 1 and 255),
  name text not null check (octet_length(name) between 1 and 255),
  on_timeout text not null check (on_timeout in ('expire', 'reject', 'escalate', 'approve')),
  payload_hash text not null,
  approvers text[] not null,
  escalate text[] not null,
  primary key (run_id, call)
);
comment on table pgflow.gate is 'Gates that wait for an answer; gone when one is answered, has expired, was given up, or its run has ended';
comment on column pgflow.gate.run_id is 'The run that waits';
comment on column pgflow.gate.chain_id is 'Its chain, under which the answer comes';
comment on column pgflow.gate.asked_at is 'Time of asking';
comment on column pgflow.gate.expires_at is 'Time from which no answer counts; null = it waits for good';
comment on column pgflow.gate.timeout_seconds is 'Seconds that each of those have who are asked one after the other; null = no limit';
comment on column pgflow.gate.call is 'Number of the call that waits';
comment on column pgflow.gate.seq is 'Place in the journal of the unit that asked, which has the request';
comment on column pgflow.gate.quorum is 'Number of people who must approve';
comment on column pgflow.gate.needs_value is 'True if an approval must bring a value: the request is none of the type that is asked for';
comment on column pgflow.gate.gate is 'Key of the gate, by which it is answered';
comment on column pgflow.gate.name is 'Name of the gate';
comment on column pgflow.gate.on_timeout is 'Verdict once its time is over: expire, reject, escalate or approve';
comment on column pgflow.gate.payload_hash is 'Hash of the request as it was asked';
comment on column pgflow.gate.approvers is 'Names or roles of whoever may answer at first; empty = anybody';
comment on column pgflow.gate.escalate is 'Names of those who are asked next, one after the other, when the time of those before is over';
create unique index gate_key on pgflow.gate (gate);
create index gate_asked_idx on pgflow.gate (asked_at);

create table pgflow.gate_answer (
  gate text not null,
  n int not null,
  run_id bigint not null,
  answered_at timestamptz not null,
  closes boolean not null,
  verdict text not null check (verdict in ('approve', 'reject', 'escalate', 'take_over', 'delegate', 'expire')),
  answered_by text not null check (octet_length(answered_by) between 1 and 1024),
  sent_by text not null,
  payload_hash text,
  hand_to text check (octet_length(hand_to) between 1 and 1024),
  reason text,
  refusal text,
  acting_as text[],
  value pgflow.run_value,
  primary key (gate, n)
);
comment on table pgflow.gate_answer is 'Answers at gates, in their order; kept as long as the history of the run';
comment on column pgflow.gate_answer.gate is 'Key of the gate';
comment on column pgflow.gate_answer.n is 'Its place among what was said at this gate, from 1';
comment on column pgflow.gate_answer.run_id is 'The run that asked';
comment on column pgflow.gate_answer.answered_at is 'Time of the answer';
comment on column pgflow.gate_answer.closes is 'True if it closed the gate: one of several approvals that are needed does not';
comment on column pgflow.gate_answer.verdict is 'approve, reject, escalate or take_over; delegate = somebody else may answer; expire = nobody did in time';
comment on column pgflow.gate_answer.answered_by is 'Name of whoever answered, as the caller gave it';
comment on column pgflow.gate_answer.sent_by is 'Role of the session that said so';
comment on column pgflow.gate_answer.payload_hash is 'Hash of what was answered: the request, or the last edit of it';
comment on column pgflow.gate_answer.hand_to is 'To whom it was escalated or delegated; null = to nobody';
comment on column pgflow.gate_answer.reason is 'The reason that was given; null = none';
comment on column pgflow.gate_answer.refusal is 'Reason why the code of the run could not take it, so that it does not count; null = it counts';
comment on column pgflow.gate_answer.acting_as is 'Roles of whoever answered, as the app gave them; null = none were given';
comment on column pgflow.gate_answer.value is 'Edited request, or the result of whoever took over; null = none';
create index gate_answer_run_idx on pgflow.gate_answer (run_id);

-- ---------------------------------------------------------------- budgets
-- Pools that runs draw on, what each has let in and what was spent, and the rows behind these sums.
--
-- The sums of a pool stand in one row for each unit and period, so that the bound is a constraint: whatever code is wrong,
-- the row cannot be written.

create domain pgflow.amounts as jsonb check (jsonb_typeof(value) = 'object' and octet_length(value::text) <= 4096);
comment on domain pgflow.amounts is 'Amounts by unit, such as {"usd": 0.04, "tokens": 12000}: an object of at most 4 KiB';

create table pgflow.pool (
  made_at timestamptz not null,
  revoked_at timestamptz,
  soft numeric check (soft > 0 and soft <= 1),
  is_hard boolean not null,
  name text primary key check (octet_length(name) between 1 and 255),
  pools text[] not null check (pools[1] = name and cardinality(pools) <= 8),
  per text check (per in ('hour', 'day', 'week', 'month', 'quarter', 'year')),
  tz text not null,
  limits pgflow.amounts not null,
  revoked_by text,
  revoked_why text,
  declared jsonb
);
comment on table pgflow.pool is 'Pools that runs draw on: what may be spent, by unit, in each period';
comment on column pgflow.pool.made_at is 'Time at which it was made';
comment on column pgflow.pool.revoked_at is 'Time since which it admits nothing; null = it does';
comment on column pgflow.pool.soft is 'Part of a limit from which on a run that draws is told; null = none is';
comment on column pgflow.pool.is_hard is 'True if no step at all of a run under it is licensed once it is used up or revoked';
comment on column pgflow.pool.name is 'Its name';
comment on column pgflow.pool.pools is 'Itself, its parent, the parent of that, and so on: what is drawn on it is drawn on all of them';
comment on column pgflow.pool.per is 'Calendar period after which it is full again; null = never';
comment on column pgflow.pool.tz is 'Time zone of that calendar';
comment on column pgflow.pool.limits is 'What may be spent in a period, by unit; a unit that is not named has no limit';
comment on column pgflow.pool.revoked_by is 'Who revoked it';
comment on column pgflow.pool.revoked_why is 'The reason given';
comment on column pgflow.pool.declared is 'What the code of an app last declared of it; null = no app declares it';
create index pool_parent_idx on pgflow.pool ((pools[2])) where pools[2] is not null;

create table pgflow.spend (
  period_at timestamptz not null,
  soft_at timestamptz,
  pool text not null,
  unit text not null check (octet_length(unit) between 1 and 63),
  allowed numeric,
  granted numeric not null default 0,
  admitted numeric not null default 0,
  charged numeric not null default 0,
  returned numeric not null default 0,
  reserved numeric not null default 0,
  overrun numeric not null default 0,
  forgotten numeric not null default 0,
  primary key (pool, period_at, unit),
  constraint spend_is_bounded check (allowed is null or charged + reserved <= allowed),
  constraint spend_balances check (admitted = charged + returned + reserved),
  constraint spend_is_full_before_it_overruns check (overrun = 0 or charged + reserved = allowed),
  constraint spend_is_positive check (least(allowed, charged, returned, reserved, overrun, forgotten) >= 0)
) with (fillfactor = 50);
comment on table pgflow.spend is 'What a pool has let in and what was spent, by period and unit';
comment on column pgflow.spend.period_at is 'Beginning of the period; -infinity for a pool without';
comment on column pgflow.spend.soft_at is 'Time at which it passed its soft threshold; null = it has not';
comment on column pgflow.spend.pool is 'The pool';
comment on column pgflow.spend.unit is 'The unit: usd, tokens, calls, seconds or another';
comment on column pgflow.spend.allowed is 'What may be spent in this period; null = any amount';
comment on column pgflow.spend.granted is 'The part of it that was granted for this period alone';
comment on column pgflow.spend.admitted is 'What was ever let in: charged, returned and reserved together';
comment on column pgflow.spend.charged is 'What was spent, within what is allowed';
comment on column pgflow.spend.returned is 'What was reserved and not spent';
comment on column pgflow.spend.reserved is 'What open calls have reserved and not spent yet';
comment on column pgflow.spend.overrun is 'What was spent beyond what is allowed, since a call cost more than it had reserved';
comment on column pgflow.spend.forgotten is 'What was spent by runs whose history has been removed';

create table pgflow.reservation (
  run_id bigint not null,
  reserved_at timestamptz not null,
  call int not null,
  pools text[] not null,
  periods timestamptz[] not null,
  amounts pgflow.amounts not null,
  primary key (run_id, call)
);
comment on table pgflow.reservation is 'What open calls have reserved and not spent yet';
comment on column pgflow.reservation.run_id is 'The run';
comment on column pgflow.reservation.reserved_at is 'Time at which the call was admitted';
comment on column pgflow.reservation.call is 'Number of the call';
comment on column pgflow.reservation.pools is 'The pools that it draws on';
comment on column pgflow.reservation.periods is 'The period of each';
comment on column pgflow.reservation.amounts is 'What is left of it, by unit';

create table pgflow.charge (
  run_id bigint not null,
  charged_at timestamptz not null,
  seq int not null,
  call int not null,
  name text,
  model text,
  decision text,
  pools text[] not null,
  periods timestamptz[] not null,
  amounts pgflow.amounts not null,
  primary key (run_id, seq)
);
comment on table pgflow.charge is 'What runs have spent, append only: a row beside each unit budget_charged';
comment on column pgflow.charge.run_id is 'The run';
comment on column pgflow.charge.charged_at is 'Time of the commit that recorded it';
comment on column pgflow.charge.seq is 'Place of its unit in the journal';
comment on column pgflow.charge.call is 'Number of the call whose body spent it, or of the call of charge() itself';
comment on column pgflow.charge.name is 'Name of that step; null = the code of the workflow spent it';
comment on column pgflow.charge.model is 'The model that was paid; null = none is named';
comment on column pgflow.charge.decision is 'Key of the decision that it was spent on, or that it rests on; null = none';
comment on column pgflow.charge.pools is 'The pools that it was drawn on; empty = the run has none';
comment on column pgflow.charge.periods is 'The period of each';
comment on column pgflow.charge.amounts is 'What was spent, by unit';
create index charge_time_idx on pgflow.charge (charged_at);

create table pgflow.pool_change (
  pool_change_id bigint generated always as identity primary key,
  changed_at timestamptz not null,
  pool text not null,
  what text not null check (what in ('set', 'granted', 'revoked', 'restored')),
  said jsonb not null,
  why text,
  changed_by text not null
);
comment on table pgflow.pool_change is 'What was said of pools, append only: who allowed what, when and why';
comment on column pgflow.pool_change.pool_change_id is 'Number of the change';
comment on column pgflow.pool_change.changed_at is 'Time at which it was said';
comment on column pgflow.pool_change.pool is 'The pool';
comment on column pgflow.pool_change.what is 'set, granted, revoked or restored';
comment on column pgflow.pool_change.said is 'The limits and options that were set, or the amounts that were granted';
comment on column pgflow.pool_change.why is 'The reason given';
comment on column pgflow.pool_change.changed_by is 'Who said it';
create index pool_change_idx on pgflow.pool_change (pool, changed_at);

-- ---------------------------------------------------------------- seals
-- Kept over the journal by workers once an operator has asked for them: sql/ledgers/seals.sql says what they are.

create table pgflow.seal (
  run_id bigint not null,
  round bigint not null,
  sealed_at timestamptz not null,
  dropped_at timestamptz,
  upto_seq int not null,
  hash bytea not null,
  outcome_hash bytea,
  primary key (run_id, round)
);
comment on table pgflow.seal is 'Hash chain of each run: one row for each round that found something new in its journal';
comment on column pgflow.seal.run_id is 'The run';
comment on column pgflow.seal.round is 'The round that sealed it';
comment on column pgflow.seal.sealed_at is 'Time of the round';
comment on column pgflow.seal.dropped_at is 'When the history of the run was removed; null = it is there';
comment on column pgflow.seal.upto_seq is 'The last unit that the chain covers; 0 = none';
comment on column pgflow.seal.hash is 'Hash of the seal before it, the units since, and the outcome';
comment on column pgflow.seal.outcome_hash is 'Hash of the outcome; null = the run was open, or not all of it is sealed yet';

create table pgflow.seal_round (
  round bigint primary key,
  sealed_at timestamptz not null,
  dropped_at timestamptz,
  day date not null,
  root bytea not null,
  runs bigint[] not null
);
comment on table pgflow.seal_round is 'Rounds of the sealer, numbered without a gap: the Merkle root over the seals of each';
comment on column pgflow.seal_round.round is 'Number of the round';
comment on column pgflow.seal_round.sealed_at is 'Its time, which never goes back';
comment on column pgflow.seal_round.dropped_at is 'When its seals were removed, with the history of all their runs; null = they are there';
comment on column pgflow.seal_round.day is 'Day of that time, in UTC';
comment on column pgflow.seal_round.root is 'Merkle root over its seals, and behind them its evidence';
comment on column pgflow.seal_round.runs is 'The runs of its seals, in the order of the leaves';

create table pgflow.seal_day (
  day date primary key,
  first_round bigint not null,
  last_round bigint not null,
  closed_at timestamptz not null,
  root bytea not null,
  head bytea not null
);
comment on table pgflow.seal_day is 'Days that are over: the Merkle root over the roots of their rounds, chained from day to day';
comment on column pgflow.seal_day.day is 'The day, in UTC';
comment on column pgflow.seal_day.first_round is 'Its first round';
comment on column pgflow.seal_day.last_round is 'Its last round';
comment on column pgflow.seal_day.closed_at is 'When the root was computed';
comment on column pgflow.seal_day.root is 'Merkle root over the roots of its rounds';
comment on column pgflow.seal_day.head is 'Hash of the head of the day before, the day and its root';

create table pgflow.evidence (
  evidence_id bigint generated always as identity primary key,
  round bigint,
  run_id bigint,
  noted_at timestamptz not null,
  dropped_at timestamptz,
  kind text not null,
  key text not null,
  hash bytea not null,
  unique (kind, key)
);
comment on table pgflow.evidence is 'What people said and did beside the journal: one row for each row that must stay as it is, with its hash';
comment on column pgflow.evidence.evidence_id is 'Number of the row';
comment on column pgflow.evidence.round is 'The round that sealed it; null = none yet';
comment on column pgflow.evidence.run_id is 'The run that it belongs to, with whose history it goes; null = none';
comment on column pgflow.evidence.noted_at is 'Time of writing';
comment on column pgflow.evidence.dropped_at is 'When the history of the run was removed; null = it is there';
comment on column pgflow.evidence.kind is 'Kind of row, see pgflow.evidence_kinds_()';
comment on column pgflow.evidence.key is 'Key of that row, as a JSON array';
comment on column pgflow.evidence.hash is 'Hash of that row';
create index evidence_run_idx on pgflow.evidence (run_id, evidence_id) where run_id is not null;
create index evidence_round_idx on pgflow.evidence (round, evidence_id) where round is not null;
create index evidence_new_idx on pgflow.evidence (evidence_id) where round is null;

create table pgflow.seal_pending (
  run_id bigint not null,
  ask bigint generated always as identity,
  primary key (run_id, ask)
);
comment on table pgflow.seal_pending is 'Runs that may still grow, in the order in which the sealer looks at them: one row of its own, and one for each who asked for another look';
comment on column pgflow.seal_pending.run_id is 'The run';
comment on column pgflow.seal_pending.ask is 'Number of the row: no two ask for the same, so nobody waits for anybody, and who asks while the sealer looks is not forgotten';

create table pgflow.seal_state (
  is_the_only boolean primary key default true check (is_the_only),
  is_on boolean not null default false,
  passed_run_id bigint not null default 0,
  next_run_id bigint,
  waits_for text[],
  looked_upto bigint not null default 0,
  cycle_began_at timestamptz,
  next_look_at timestamptz,
  said_by text,
  said_at timestamptz
) with (fillfactor = 50);
comment on table pgflow.seal_state is 'Progress of the sealer: one row';
comment on column pgflow.seal_state.is_the_only is 'True: there is one row';
comment on column pgflow.seal_state.is_on is 'True if workers are to seal';
comment on column pgflow.seal_state.passed_run_id is 'Every run up to this number is sealed, or pending';
comment on column pgflow.seal_state.next_run_id is 'How far it goes next, once nobody can start a run with such a number any more; null = not known';
comment on column pgflow.seal_state.waits_for is 'Transactions that may yet start one';
comment on column pgflow.seal_state.looked_upto is 'The pending run that was looked at last';
comment on column pgflow.seal_state.cycle_began_at is 'When it last began with the first of those';
comment on column pgflow.seal_state.next_look_at is 'When the next round is due';
comment on column pgflow.seal_state.said_by is 'Who switched sealing on or off; null = nobody';
comment on column pgflow.seal_state.said_at is 'When';
insert into pgflow.seal_state default values;

-- ---------------------------------------------------------------- locks
-- Who holds a key, who waits for it, and which keys somebody must look at.
--
-- A fence is a number of one sequence, drawn by whoever has the key to itself: so fences of a key grow, and no row has to
-- remember a key that nobody uses.

create sequence pgflow.lock_fence_seq;
comment on sequence pgflow.lock_fence_seq is 'Numbers the times that a lock was won';

create table pgflow.lock (
  fence bigint primary key,
  run_id bigint,
  since timestamptz not null,
  expires_at timestamptz,
  call int,
  is_shared boolean not null,
  key text not null check (octet_length(key) between 1 and 255),
  holder text not null check (octet_length(holder) between 1 and 512),
  proof bytea,
  check ((run_id is null) = (call is null)),
  check (run_id is not null or expires_at is not null and proof is not null)
);
comment on table pgflow.lock is 'Who holds a lock: a run, or plain code for a limited time; several share one if all of them said so';
comment on column pgflow.lock.fence is 'The number of this time that the lock was won: greater than that of every holder of the key before';
comment on column pgflow.lock.run_id is 'The run that holds it; null = plain code';
comment on column pgflow.lock.since is 'Time at which it was won';
comment on column pgflow.lock.expires_at is 'Time from which it counts no more; null = as long as its run holds it';
comment on column pgflow.lock.call is 'Number of the call of the run that asked for it; 0 = it comes from the generation before, and nobody has asked yet';
comment on column pgflow.lock.is_shared is 'True if others may hold it too that share it';
comment on column pgflow.lock.key is 'Name of what is locked';
comment on column pgflow.lock.holder is 'Key of the run, or the name that plain code gave';
comment on column pgflow.lock.proof is 'Hash of the secret by which plain code shows that it is the holder; null = a run, which has its lease';
-- The last line of defence, whatever went wrong before it.
create unique index lock_exclusive_key on pgflow.lock (key) where not is_shared;
create index lock_key_idx on pgflow.lock (key);
create index lock_run_idx on pgflow.lock (run_id) where run_id is not null;
create index lock_expires_idx on pgflow.lock (expires_at) where expires_at is not null;

create table pgflow.lock_wait (
  ticket bigint generated always as identity primary key,
  run_id bigint,
  asked_at timestamptz not null,
  expires_at timestamptz,
  ttl interval,
  call int,
  is_shared boolean not null,
  is_checked boolean not null,
  key text not null check (octet_length(key) between 1 and 255),
  holder text not null check (octet_length(holder) between 1 and 512),
  proof bytea,
  within bigint[] not null default '{}',
  check ((run_id is null) = (call is null)),
  check (run_id is not null or expires_at is not null and ttl is not null and proof is not null)
);
comment on table pgflow.lock_wait is 'Who waits for a lock, in the order in which they asked';
comment on column pgflow.lock_wait.ticket is 'Its place in the queue of the key';
comment on column pgflow.lock_wait.run_id is 'The run that waits; null = plain code';
comment on column pgflow.lock_wait.asked_at is 'Time at which it asked';
comment on column pgflow.lock_wait.expires_at is 'Plain code: when it must have asked again, or it is passed over; null for a run';
comment on column pgflow.lock_wait.ttl is 'Time for which it wants the lock; null = until it gives it back';
comment on column pgflow.lock_wait.call is 'Number of the call of the run';
comment on column pgflow.lock_wait.is_shared is 'True if it would share the lock';
comment on column pgflow.lock_wait.is_checked is 'True once it is known to close no circle of runs that wait for each other';
comment on column pgflow.lock_wait.key is 'Name of what is locked';
comment on column pgflow.lock_wait.holder is 'Key of the run, or the name that plain code gave';
comment on column pgflow.lock_wait.proof is 'Hash of the secret of plain code, as it will be in the lock; null = a run';
comment on column pgflow.lock_wait.within is 'Fences that the code holds around this: they are not given back before it has the lock';
create index lock_wait_key_idx on pgflow.lock_wait (key, ticket);
create unique index lock_wait_call_key on pgflow.lock_wait (run_id, call) where run_id is not null;
create unique index lock_wait_holder_key on pgflow.lock_wait (key, holder, proof) where run_id is null;
create index lock_wait_expires_idx on pgflow.lock_wait (expires_at) where expires_at is not null;
create index lock_wait_unchecked_idx on pgflow.lock_wait (key, ticket) where not is_checked;
create index lock_wait_within_idx on pgflow.lock_wait using gin (within) where within <> '{}';

create table pgflow.lock_nudge (
  nudge_id bigint generated always as identity primary key,
  nudged_at timestamptz not null,
  key text not null
);
comment on table pgflow.lock_nudge is 'Keys of locks to look at: written by who could not look itself, deleted by the sweep that could';
comment on column pgflow.lock_nudge.nudge_id is 'The number of the nudge';
comment on column pgflow.lock_nudge.nudged_at is 'Time of writing: as long as it is new, whoever wakes runs sweeps soon';
comment on column pgflow.lock_nudge.key is 'Name of what is locked';

create table pgflow.lock_broken (
  fence bigint primary key,
  run_id bigint,
  broken_at timestamptz not null,
  key text not null,
  holder text not null,
  broken_by text not null,
  why text not null
);
comment on table pgflow.lock_broken is 'Locks that an operator took from their holders';
comment on column pgflow.lock_broken.fence is 'The number of the time that it had been won';
comment on column pgflow.lock_broken.run_id is 'The run that held it; null = plain code';
comment on column pgflow.lock_broken.broken_at is 'Time at which it was taken away';
comment on column pgflow.lock_broken.key is 'Name of what was locked';
comment on column pgflow.lock_broken.holder is 'Key of the run, or the name that plain code gave';
comment on column pgflow.lock_broken.broken_by is 'Name of whoever took it away';
comment on column pgflow.lock_broken.why is 'Reason, in the words of whoever took it away';

-- ---------------------------------------------------------------- entities
-- State under a name and a key that any run and any transaction may change, one change after the other.
--
-- The row is updated within its page, since no index has what changes. What was changed, by whom and with what verdict is
-- a row of the history, which only grows.

create table pgflow.entity (
  version bigint not null check (version >= 0),
  updated_at timestamptz not null,
  name text not null check (octet_length(name) between 1 and 255),
  key text not null check (octet_length(key) between 1 and 255),
  state json check (octet_length(state::text) <= 1048576),
  primary key (name, key)
) with (fillfactor = 50);
comment on table pgflow.entity is 'State of entities, by name and key';
comment on column pgflow.entity.version is 'Number of changes so far; 0 = it has its first state still';
comment on column pgflow.entity.updated_at is 'Time of the last change';
comment on column pgflow.entity.name is 'Name of the kind of entity';
comment on column pgflow.entity.key is 'Key of this one';
comment on column pgflow.entity.state is 'Its state, as the encoder wrote it; null = its first, which only the code knows';

create table pgflow.entity_history (
  history_id bigint generated always as identity primary key,
  version bigint not null,
  at timestamptz not null,
  run_id bigint,
  mail_id bigint,
  call int,
  name text not null,
  key text not null,
  update text not null check (octet_length(update) between 1 and 255),
  said_by text not null,
  idempotency_key text check (octet_length(idempotency_key) between 1 and 255),
  args json not null check (octet_length(args::text) <= 1048576),
  verdict json check (octet_length(verdict::text) <= 1048576),
  error json check (octet_length(error::text) <= 65536),
  state json check (octet_length(state::text) <= 1048576),
  check ((run_id is null) = (call is null)),
  check ((verdict is null) = (error is not null))
);
comment on table pgflow.entity_history is 'Every update of an entity, with its verdict; append only';
comment on column pgflow.entity_history.history_id is 'Numbers the updates in the order in which they were made, of each entity';
comment on column pgflow.entity_history.version is 'Version of the entity after it';
comment on column pgflow.entity_history.at is 'Time of the update';
comment on column pgflow.entity_history.run_id is 'The run whose update it is; null = of somebody else';
comment on column pgflow.entity_history.mail_id is 'The number of the update, if it came by the mailbox';
comment on column pgflow.entity_history.call is 'Number of the call of that run';
comment on column pgflow.entity_history.name is 'Name of the kind of entity';
comment on column pgflow.entity_history.key is 'Key of the entity';
comment on column pgflow.entity_history.update is 'Name of the update';
comment on column pgflow.entity_history.said_by is 'Key of the run, or the role or name of whoever made it';
comment on column pgflow.entity_history.idempotency_key is 'Under which it is made once; null = none was given';
comment on column pgflow.entity_history.args is 'Its arguments by their names';
comment on column pgflow.entity_history.verdict is 'Value that the update returned; null = it was refused';
comment on column pgflow.entity_history.error is 'Reason for which an update by the mailbox was refused; null = it was not';
comment on column pgflow.entity_history.state is 'The state after it; null = it changed nothing';
create index entity_history_key_idx on pgflow.entity_history (name, key, history_id);
create unique index entity_history_call_key on pgflow.entity_history (run_id, call) where run_id is not null;
create unique index entity_history_once_key on pgflow.entity_history (name, key, idempotency_key)
  where idempotency_key is not null;
create unique index entity_history_mail_key on pgflow.entity_history (mail_id) where mail_id is not null;

create table pgflow.entity_mail (
  mail_id bigint generated always as identity primary key,
  sent_at timestamptz not null,
  expect bigint,
  name text not null check (octet_length(name) between 1 and 255),
  key text not null check (octet_length(key) between 1 and 255),
  update text not null check (octet_length(update) between 1 and 255),
  sent_by text not null,
  idempotency_key text check (octet_length(idempotency_key) between 1 and 255),
  args json not null check (octet_length(args::text) <= 1048576)
);
comment on table pgflow.entity_mail is 'Updates that were asked for from SQL; a worker whose code has the entity makes them, of each entity in their order';
comment on column pgflow.entity_mail.mail_id is 'The number of the update: they are made in this order';
comment on column pgflow.entity_mail.sent_at is 'Time of sending';
comment on column pgflow.entity_mail.expect is 'Version that the entity must have; null = any';
comment on column pgflow.entity_mail.name is 'Name of the kind of entity';
comment on column pgflow.entity_mail.key is 'Key of the entity';
comment on column pgflow.entity_mail.update is 'Name of the update';
comment on column pgflow.entity_mail.sent_by is 'Sender: a role, or the name that the caller gave';
comment on column pgflow.entity_mail.idempotency_key is 'Under which it is made once; null = none was given';
comment on column pgflow.entity_mail.args is 'Its arguments by their names';
create index entity_mail_key_idx on pgflow.entity_mail (name, key, mail_id);

-- ---------------------------------------------------------------- documents
-- Values under paths, which others keep here for their own purposes. sql/coordination/documents.sql says how.

create table pgflow.document (
  created_at timestamptz not null,
  updated_at timestamptz not null,
  expires_at timestamptz,
  ttl_ms bigint check (ttl_ms > 0),
  collection text collate "C" not null check (octet_length(collection) between 1 and 100),
  path text[] collate "C" not null check (cardinality(path) between 1 and 50 and array_position(path, null) is null),
  value json not null,
  primary key (collection, path),
  check ((ttl_ms is null) = (expires_at is null))
);
comment on table pgflow.document is 'Values under paths: what integrations and applications keep beside their runs';
comment on column pgflow.document.created_at is 'Time at which the path was written first';
comment on column pgflow.document.updated_at is 'Time of the last write';
comment on column pgflow.document.expires_at is 'Time from which nobody sees it any more; null = never';
comment on column pgflow.document.ttl_ms is 'Milliseconds from a write, or a read that says so, to that time';
comment on column pgflow.document.collection is 'Name of the collection';
comment on column pgflow.document.path is 'Names of folders, the outermost first, and a name in the last one';
comment on column pgflow.document.value is 'Value, as the encoder wrote it';
create index document_expires_idx on pgflow.document (expires_at) where expires_at is not null;

-- ---------------------------------------------------------------- blobs
-- Large values, in chunks beside the runs that name them. sql/runs/blobs.sql says how.

create table pgflow.blob (
  blob_id bigint generated always as identity primary key,
  size_bytes bigint check (size_bytes >= 0),
  stored_at timestamptz not null,
  writer xid8 not null,
  tenant pgflow.tenant_name not null default '',
  is_loose boolean not null default true,
  digest bytea check (octet_length(digest) = 32),
  unique (tenant, digest),
  check ((digest is null) = (size_bytes is null))
);
comment on table pgflow.blob is 'Large values: each content once in its tenant, for as long as a run names it';
comment on column pgflow.blob.blob_id is 'Number of the blob';
comment on column pgflow.blob.size_bytes is 'Its length; null until it is complete';
comment on column pgflow.blob.stored_at is 'Time at which it was begun';
comment on column pgflow.blob.writer is 'Transaction that stores it: no other adds to it';
comment on column pgflow.blob.tenant is 'Tenant of the runs that may name it';
comment on column pgflow.blob.is_loose is 'Whether perhaps no run names it: the next sweep looks';
comment on column pgflow.blob.digest is 'SHA-256 of the SHA-256 of its chunks, one after the other; null until it is complete';
create index blob_loose_idx on pgflow.blob (blob_id) where is_loose;

create table pgflow.blob_chunk (
  blob_id bigint not null,
  n int not null check (n >= 0),
  hash bytea not null check (octet_length(hash) = 32),
  data bytea not null check (octet_length(data) between 1 and 262144),
  primary key (blob_id, n)
);
comment on table pgflow.blob_chunk is 'Content of the blobs: all chunks but the last have 256 KiB';
comment on column pgflow.blob_chunk.blob_id is 'The blob';
comment on column pgflow.blob_chunk.n is 'Number of the chunk, from 0';
comment on column pgflow.blob_chunk.hash is 'SHA-256 of the chunk';
comment on column pgflow.blob_chunk.data is 'The bytes';

create table pgflow.blob_use (
  use_id bigint generated always as identity primary key,
  blob_id bigint not null,
  run_id bigint not null
);
comment on table pgflow.blob_use is 'Which runs name which blobs; the same may be said twice, so that no writer waits for another';
comment on column pgflow.blob_use.use_id is 'Number of the row';
comment on column pgflow.blob_use.blob_id is 'The blob';
comment on column pgflow.blob_use.run_id is 'The run, or the first of the chain to which a message was sent';
create index blob_use_blob_idx on pgflow.blob_use (blob_id, run_id);
create index blob_use_run_idx on pgflow.blob_use (run_id);

-- ---------------------------------------------------------------- schedules
-- When runs of a workflow start by themselves. sql/events/schedules.sql says how they are kept.
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
create index schedule_look_idx on pgflow.schedule (look_at) where look_at is not null;

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

-- ---------------------------------------------------------------- the outbox
-- Events that are published in the writer's own transaction, and relays that bring them somewhere.
--
-- An event has a number of one sequence, drawn once its transaction has a number itself. A relay has a cursor: every
-- event up to it is delivered, or kept as a delivery of its own that waits for another try or is dead. So a relay is a
-- row, and what it costs to publish does not depend on how many there are.

create sequence pgflow.event_id_seq;
comment on sequence pgflow.event_id_seq is 'Numbers the events; a transaction draws from it only once it has a number itself';

create table pgflow.event (
  event_id bigint not null,
  xid xid8 not null,
  at timestamptz not null,
  run_id bigint,
  topic text not null check (octet_length(topic) between 1 and 255),
  key text check (octet_length(key) between 1 and 255),
  payload json not null check (octet_length(payload::text) <= 1048576),
  primary key (event_id)
) partition by range (event_id);
comment on table pgflow.event is 'Events that were published, in partitions by their numbers; append only, whole partitions go';
comment on column pgflow.event.event_id is 'The number of the event: relays bring events in this order';
comment on column pgflow.event.xid is 'Its transaction: a run that waits sees it if that committed after the wait began';
comment on column pgflow.event.at is 'Time of publishing';
comment on column pgflow.event.run_id is 'The run that has published it; null = somebody else';
comment on column pgflow.event.topic is 'Topic, to which relays listen';
comment on column pgflow.event.key is 'Events of one key come in their order; null = any order will do';
comment on column pgflow.event.payload is 'Content, as the encoder wrote it';
create index event_topic_idx on pgflow.event (topic, event_id);

create table pgflow.relay (
  event_id bigint not null default 0,
  horizon bigint not null default 0,
  seen_id bigint,
  seen_xid xid8,
  token bigint,
  leased_until timestamptz,
  open_until timestamptz,
  paused_at timestamptz,
  declared_at timestamptz not null,
  delivered bigint not null default 0,
  failures int not null default 0,
  name text primary key check (octet_length(name) between 1 and 100),
  target text not null,
  error text,
  topics text[] not null,
  check ((seen_id is null) = (seen_xid is null)),
  check ((token is null) = (leased_until is null))
) with (fillfactor = 50);
comment on table pgflow.relay is 'Relays: who brings which events where, and how far each has come';
comment on column pgflow.relay.event_id is 'Its cursor: every event up to this number was delivered, or is a delivery';
comment on column pgflow.relay.horizon is 'No event up to this number can appear any more: it goes no further';
comment on column pgflow.relay.seen_id is 'The next horizon: the newest number when it last looked';
comment on column pgflow.relay.seen_xid is 'It is one once every transaction before this one has ended';
comment on column pgflow.relay.token is 'Fence of the worker that delivers for it; null = none does';
comment on column pgflow.relay.leased_until is 'Time from which another worker may';
comment on column pgflow.relay.open_until is 'The circuit is open until then: its target has failed again and again';
comment on column pgflow.relay.paused_at is 'Time at which an operator has paused it';
comment on column pgflow.relay.declared_at is 'Time at which it was declared first';
comment on column pgflow.relay.delivered is 'Number of events that it has delivered';
comment on column pgflow.relay.failures is 'Deliveries that failed since one last succeeded';
comment on column pgflow.relay.name is 'Its name';
comment on column pgflow.relay.target is 'Target of its events, in words';
comment on column pgflow.relay.error is 'The last failure; null = none since the last success';
comment on column pgflow.relay.topics is 'Topics that it listens to';

create table pgflow.delivery (
  event_id bigint not null,
  run_id bigint,
  at timestamptz not null,
  due_at timestamptz not null,
  attempts int not null,
  is_dead boolean not null,
  relay text not null,
  topic text not null,
  key text,
  error text,
  payload json not null,
  primary key (relay, event_id)
);
comment on table pgflow.delivery is 'Events that a relay could not deliver at once: they wait for another try, or are dead';
comment on column pgflow.delivery.event_id is 'The number of the event';
comment on column pgflow.delivery.run_id is 'The run that has published it; null = somebody else';
comment on column pgflow.delivery.at is 'Time of publishing';
comment on column pgflow.delivery.due_at is 'Time of the next try; of a dead one, when it died';
comment on column pgflow.delivery.attempts is 'Number of tries so far; 0 = it stands behind another of its key';
comment on column pgflow.delivery.is_dead is 'True if it is not tried any more, until somebody says so';
comment on column pgflow.delivery.relay is 'Name of the relay';
comment on column pgflow.delivery.topic is 'Topic of the event';
comment on column pgflow.delivery.key is 'Key of the event';
comment on column pgflow.delivery.error is 'Failure of the last try';
comment on column pgflow.delivery.payload is 'Content of the event: it stays when the event is removed';
create index delivery_due_idx on pgflow.delivery (relay, due_at) where not is_dead;
create index delivery_key_idx on pgflow.delivery (relay, key, event_id) where not is_dead;
create index delivery_dead_idx on pgflow.delivery (relay, event_id) where is_dead;

create table pgflow.event_wait (
  chain_id bigint not null,
  event_id bigint not null,
  value bigint not null,
  seen_id bigint,
  is_current boolean not null,
  name text not null,
  topic text not null,
  key text,
  path text[] not null,
  match jsonb,
  seen pg_snapshot,
  primary key (chain_id, name),
  check ((seen_id is null) = (seen is null))
);
comment on table pgflow.event_wait is 'Runs that wait for an event, until one is in their mailbox';
comment on column pgflow.event_wait.chain_id is 'The chain of the run';
comment on column pgflow.event_wait.event_id is 'Every event up to this number was compared, or is none of those that it waits for';
comment on column pgflow.event_wait.value is 'Hash of what the event must have at the path; 0 where that is empty';
comment on column pgflow.event_wait.seen_id is 'The newest number when the wait began: greater ones are of later events';
comment on column pgflow.event_wait.is_current is 'True once it is compared with each event that the cursor passes';
comment on column pgflow.event_wait.name is 'Name of the message that brings the event';
comment on column pgflow.event_wait.topic is 'Topic of the event';
comment on column pgflow.event_wait.key is 'Key of the event; null = any';
comment on column pgflow.event_wait.path is 'Path in the payload of the first constant of the match: by that it is found';
comment on column pgflow.event_wait.match is 'Content that the payload must have; null = anything';
comment on column pgflow.event_wait.seen is 'Snapshot of the moment when it began: an event that was committed by then is none for it; null = it goes by numbers alone';
create index event_wait_slot_idx on pgflow.event_wait (topic, path, value) where is_current;
create index event_wait_behind_idx on pgflow.event_wait (event_id) where not is_current;

create table pgflow.event_cursor (
  event_id bigint not null default 0,
  horizon bigint not null default 0,
  seen_id bigint,
  seen_xid xid8,
  is_only boolean primary key default true check (is_only),
  check ((seen_id is null) = (seen_xid is null))
);
comment on table pgflow.event_cursor is 'Cursor of the sweep that compares events with the runs that wait for some; one row';
comment on column pgflow.event_cursor.event_id is 'Every event up to this number was compared';
comment on column pgflow.event_cursor.horizon is 'No event up to this number can appear any more: it goes no further';
comment on column pgflow.event_cursor.seen_id is 'The next horizon: the newest number when it was last looked';
comment on column pgflow.event_cursor.seen_xid is 'It is one once every transaction before this one has ended';
comment on column pgflow.event_cursor.is_only is 'True: there is one row';
insert into pgflow.event_cursor default values;

-- ---------------------------------------------------------------- workers and their code

create table pgflow.worker (
  worker_id int generated always as identity primary key,
  pid int not null,
  beat bigint not null default 0,
  beat_at timestamptz not null,
  started_at timestamptz not null,
  concurrency int not null,
  lost_threads int not null default 0,
  stopping boolean not null default false,
  host text not null,
  version text not null,
  stamp text,
  queues text[] not null
) with (fillfactor = 50);
comment on table pgflow.worker is 'One row a worker process; its beat is the only sign of life that counts';
comment on column pgflow.worker.lost_threads is 'Threads at bodies that nobody waits for any more';
comment on column pgflow.worker.stamp is 'Comment of the schema that its code would install; null = it did not say so';

-- What it takes to change code under runs that are open.
create table pgflow.code (
  code_id int generated always as identity primary key,
  first_at timestamptz not null,
  last_at timestamptz not null,
  is_pinned boolean not null,
  workflow text not null check (octet_length(workflow) between 1 and 255),
  version text not null check (octet_length(version) between 1 and 255),
  code_hash text not null check (octet_length(code_hash) between 1 and 255),
  alias_of text check (octet_length(alias_of) between 1 and 255),
  defaults json,
  parameters jsonb,
  unique (workflow, version, code_hash)
);
comment on table pgflow.code is 'What code workers have had of each workflow, and when: written by workers as they come and go, never by a run';

create table pgflow.worker_code (
  worker_id int not null,
  code_id int not null,
  primary key (worker_id, code_id)
);
comment on table pgflow.worker_code is 'What code the workers have that count as alive';

create table pgflow.code_patch (
  code_id int not null,
  is_deprecated boolean not null,
  patch text not null check (octet_length(patch) between 1 and 255),
  primary key (code_id, patch)
);
comment on table pgflow.code_patch is 'Which patches are written in that code';

create table pgflow.code_signal (
  code_id int not null,
  signal text not null check (octet_length(signal) between 1 and 255),
  shape jsonb not null,
  code_signal_id bigint generated always as identity primary key
);
comment on table pgflow.code_signal is 'What payloads the signals have that code waits for, as far as it declares them';
comment on column pgflow.code_signal.code_id is 'The code';
comment on column pgflow.code_signal.signal is 'Name of the signal';
comment on column pgflow.code_signal.shape is 'What the code certainly refuses, see sql/shape.sql';
comment on column pgflow.code_signal.code_signal_id is 'Number of the row';
create unique index code_signal_key on pgflow.code_signal (signal, code_id, md5(shape::text));
create index code_signal_code_idx on pgflow.code_signal (code_id);

-- Who must be told that a person is needed, and when one was.
create table pgflow.page (
  run_id bigint not null,
  opened_at timestamptz not null,
  next_at timestamptz not null,
  paged_at timestamptz,
  call int not null,
  tries int not null,
  kind text not null check (kind in ('stuck', 'effect', 'gate', 'obligation')),
  last_error text check (char_length(last_error) <= 255),
  primary key (run_id, call, kind)
);
comment on table pgflow.page is 'What a person must bring on, and when one was told; kept by workers whose app has a pager';

-- What was started and what ended in each minute of the last day. Rows are updated a few times, and then never again.
create table pgflow.rate (
  minute timestamptz not null,
  upto_run_id bigint,
  started int not null default 0,
  completed int not null default 0,
  failed int not null default 0,
  cancelled int not null default 0,
  queued int,
  oldest_seconds real,
  queue text not null,
  took int[],
  primary key (minute, queue)
) with (fillfactor = 50);
comment on table pgflow.rate is 'Counts of runs by minute and queue, for people who look at the system';

-- What a fail-over has lost, as the workers remember it that were told it was durable.
create table pgflow.loss (
  loss_id bigint generated always as identity primary key,
  noticed_at timestamptz not null,
  acknowledged_at timestamptz not null,
  closed_at timestamptz,
  acknowledged_bytes bigint not null,
  kept_bytes bigint not null,
  old_timeline int not null,
  new_timeline int not null,
  worker_id int not null,
  pid int not null,
  run_count int not null,
  host text not null,
  closed_by text,
  why text,
  runs jsonb not null
);
comment on table pgflow.loss is 'Losses that workers have noticed: what was acknowledged and is not there any more';

-- ---------------------------------------------------------------- workflows in SQL
-- What a text was compiled to, and where its runs are. A frame is a fold of the run's journal, kept so that a step need
-- not read it: without it, as after a fork or a rewind, it is made anew.

create table pgflow.flow (
  flow_id int generated always as identity primary key,
  version int not null,
  created_at timestamptz not null,
  dropped_at timestamptz,
  handler int,
  is_current boolean not null,
  definer regrole not null,
  workflow text not null check (octet_length(workflow) between 1 and 50),
  function text not null,
  hash text not null,
  created_by text not null,
  signature text not null,
  body text not null,
  parameters jsonb not null,
  unique (workflow, version)
);
comment on table pgflow.flow is 'Every version of every workflow in SQL, with its text; none is ever removed';

create table pgflow.flow_right (
  role regrole not null,
  granted_at timestamptz not null,
  workflow text not null check (octet_length(workflow) between 1 and 50),
  privilege text not null check (privilege in ('start', 'see', 'replace')),
  granted_by text not null,
  primary key (workflow, privilege, role)
);
comment on table pgflow.flow_right is 'Rights to workflows in SQL, by role: see sql/flows/rights.sql';

create table pgflow.flow_node (
  flow_id int not null,
  pc int not null,
  next int not null,
  alt int,
  op text not null,
  name text,
  opts jsonb not null,
  primary key (flow_id, pc)
);
comment on table pgflow.flow_node is 'What a workflow in SQL was compiled to: see sql/flows/compile.sql';

create domain pgflow.flow_state as text check (value in ('on', 'undoing', 'handling'));
comment on domain pgflow.flow_state is 'What a run of a workflow in SQL does: see sql/flows/frame.sql';

create table pgflow.flow_frame (
  run_id bigint primary key,
  flow_id int not null,
  seq int not null,
  pc int not null,
  call int not null,
  tries int not null,
  strikes int not null,
  state pgflow.flow_state not null,
  is_marked boolean not null,
  undo int[] not null,
  waits jsonb,
  run jsonb not null,
  loops jsonb not null,
  news jsonb not null,
  error jsonb,
  vars jsonb not null
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);
comment on table pgflow.flow_frame is 'Where a run of a workflow in SQL is: a row while it is open';

create table pgflow.flow_item (
  run_id bigint not null,
  pc int not null,
  n int not null,
  call int,
  is_done boolean not null default false,
  item jsonb not null,
  output jsonb,
  primary key (run_id, pc, n)
) with (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);
create table pgflow.flow_test (
  queue text primary key
);
comment on table pgflow.flow_test is 'Tests whose rows their transaction keeps: a row here keeps that from being committed';

comment on table pgflow.flow_item is 'The rows that an open loop walks, and the inputs and results of children that a for each starts';

-- ---------------------------------------------------------------- upkeep of hot tables
-- Places, mail and nudges live for milliseconds and are small: vacuum them by count, not by share,
-- and without a pause, else their indexes fill with dead entries that every claim must step over.

alter table pgflow.ready set (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_scale_factor = 0.5);
alter table pgflow.lease set (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_scale_factor = 0.5);
alter table pgflow.parked set (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);
alter table pgflow.wait set (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);
alter table pgflow.timer set (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);
alter table pgflow.signal set (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);
alter table pgflow.nudge set (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);
alter table pgflow.worker set (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 100, autovacuum_vacuum_cost_delay = 0);
alter table pgflow.replacement set (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);
alter table pgflow.effect_beat set (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);
alter table pgflow.spend set (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);
alter table pgflow.reservation set (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);
alter table pgflow.gate set (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);
alter table pgflow.lock set (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);
alter table pgflow.lock_wait set (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);
alter table pgflow.lock_nudge set (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);
alter table pgflow.entity set (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);
alter table pgflow.entity_mail set (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);
alter table pgflow.seal_pending set (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 2000);
alter table pgflow.schedule set (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 2000);
alter table pgflow.relay set (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
alter table pgflow.delivery set (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);
alter table pgflow.event_wait set (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);
alter table pgflow.line_state set (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_cost_delay = 0);
alter table pgflow.line_run set (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);
alter table pgflow.line_turn set (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);
alter table pgflow.line_rate set (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);
alter table pgflow.line_bucket set (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);

-- lz4 packs payloads faster than pglz; a server built without it keeps its default.
do $$
begin
  alter table pgflow.unit alter column payload set compression lz4;
  alter table pgflow.run alter column input set compression lz4;
  alter table pgflow.outcome alter column output set compression lz4;
exception when feature_not_supported then
  null;
end $$;
