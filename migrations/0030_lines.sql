-- Lines: queues whose runs wait by key, and the rules by which keys take turns. sql/runs/lines.sql says how.
--
-- A queue without such rules has no row in any of these tables, and nothing reads them for it.

alter table pgflow.queue add column is_lined boolean, add column is_closed boolean,
  add column max_per_worker int check (max_per_worker > 0);
comment on column pgflow.queue.is_closed is 'True if it takes no new runs; null = it does';
comment on column pgflow.queue.is_lined is 'True if its runs stand in a line: see pgflow.line; null = they do not';
comment on column pgflow.queue.max_per_worker is 'Most runs of this queue that one worker may hold at once; null = no limit';

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
create index line_run_order_idx on pgflow.line_run (queue, is_fresh, key, rank, run_id);
create index line_run_suspect_idx on pgflow.line_run (queue, rank, run_id) where suspect > 0;
create index line_run_expires_idx on pgflow.line_run (expires_at) where expires_at is not null;
comment on table pgflow.line_run is 'Runs that stand in a line: ready, once their turn comes';
comment on column pgflow.line_run.run_id is 'The run';
comment on column pgflow.line_run.expires_at is 'Time from which it must not begin; null = none';
comment on column pgflow.line_run.rank is 'Place among the runs of its key, before its number: priority, or time and priority';
comment on column pgflow.line_run.lane_id is 'Its queue, workflow and version';
comment on column pgflow.line_run.suspect is 'Workers that died holding it without a new unit';
comment on column pgflow.line_run.is_fresh is 'True if no worker ever held its chain: rates are for these, and they stand behind the others';
comment on column pgflow.line_run.queue is 'Name of the queue';
comment on column pgflow.line_run.key is 'Its key; empty = none';

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

create table pgflow.queue_change (
  changed_at timestamptz not null,
  queue text not null,
  what text not null check (what in ('set', 'paused', 'resumed', 'purged')),
  said jsonb not null,
  why text,
  changed_by text not null
);
-- squawk-ignore require-concurrent-index-creation
create index queue_change_idx on pgflow.queue_change (queue, changed_at);
comment on table pgflow.queue_change is 'What was said of queues, append only: who set which rule, when and why';
comment on column pgflow.queue_change.changed_at is 'Time at which it was said';
comment on column pgflow.queue_change.queue is 'Name of the queue';
comment on column pgflow.queue_change.what is 'set, paused, resumed or purged';
comment on column pgflow.queue_change.said is 'The rules that were set, as they were said; null takes one away. Of a purge, how many runs';
comment on column pgflow.queue_change.why is 'The reason given';
comment on column pgflow.queue_change.changed_by is 'Name of whoever said it';

alter table pgflow.line_run set (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);
alter table pgflow.line_turn set (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);
alter table pgflow.line_state set (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_cost_delay = 0);
alter table pgflow.line_rate set (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);
alter table pgflow.line_bucket set (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);
