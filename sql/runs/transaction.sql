-- A transactional step: its result, the application's writes and whatever it sends or starts commit together or not at
-- all. The lease is checked without a lock at the beginning and fenced immediately before COMMIT: engine locks come
-- last, since an application that locks its own rows first and then calls us would deadlock with one of us that locked
-- the lease first. The fence waits for the lease, since it is the last thing before COMMIT. `beat_step` shares the
-- lease of its own run until it commits, so that the run's end finds the beat.

create or replace function pgflow.begin_step(
  run_id bigint, token bigint, call int, idle_timeout_ms int default 0, durable_seq int default 0
)
returns text
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
begin
  if not exists (select from pgflow.lease e where e.run_id = run_id and e.token = token) then
    raise exception using errcode = 'PF004', message = format('run %s is no longer held by this worker', run_id);
  end if;
  -- After a fail-over that has lost it, what goes on would leave a hole in the journal.
  if durable_seq > 0 and not exists (select from pgflow.unit u where u.run_id = run_id and u.seq = durable_seq) then
    raise exception using errcode = 'PF004',
      message = format('run %s lacks the unit %s, whose commit this worker has seen acknowledged', run_id, durable_seq);
  end if;
  perform set_config('pgflow.step', format('%s/%s/%s', run_id, token, call), true);
  if current_setting('synchronous_commit') = 'off' then
    perform set_config('synchronous_commit', 'on', true);
  end if;
  if idle_timeout_ms > 0 and current_setting('idle_in_transaction_session_timeout') = '0' then
    perform set_config('idle_in_transaction_session_timeout', idle_timeout_ms::text, true);
  end if;
  -- Its number is returned before anything can be lost: by it the worker learns what became of a COMMIT that never
  -- answered.
  return pg_current_xact_id()::text;
end
$$;
comment on function pgflow.begin_step(bigint, bigint, int, int, int)
  is 'First call of a transactional step''s transaction: checks the lease and that the last unit is there, leaves a '
     'mark that only this transaction carries, and returns its number';
--! grant begin_step to pgflow_worker

create or replace function pgflow.fence_step(
  run_id bigint, token bigint, call int, units jsonb, args_hash bigint default null, payloads json[] default null,
  closes jsonb default null, fences bigint[] default null
)
returns bigint
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
#variable_conflict use_variable
declare
  held_token bigint;
  t timestamptz;
begin
  if current_setting('pgflow.step', true) is distinct from format('%s/%s/%s', run_id, token, call) then
    raise exception using errcode = 'PF005',
      message = format('the body of call %s of run %s ended its transaction itself', call, run_id),
      hint = 'A transactional step must neither commit nor roll back: what it committed cannot be undone.';
  end if;
  select e.token into held_token from pgflow.lease e where e.run_id = run_id and e.token = token for no key update;
  if held_token is distinct from token then
    raise exception using errcode = 'PF004', message = format('run %s is no longer held by this worker', run_id);
  end if;
  -- From here to COMMIT no code of the application runs: a client that takes so long is frozen or gone.
  perform set_config('idle_in_transaction_session_timeout', '5000', true);
  t := pgflow.now_();
  if fences is not null then
    perform pgflow.check_fences_(run_id, fences);
  end if;
  insert into pgflow.unit (run_id, seq, call, kind, name, payload, starts, token, at, recorded_at, due_at,
    key, args_hash)
  select u.run_id, u.seq, u.call, u.kind, u.name, coalesce(u.payload, payloads[u.apart]), u.starts, u.token, u.at, t,
    t + u.delay, u.key, case when u.call = call then args_hash end
  from pgflow.unit_rows_(units) u;
  if closes is not null then
    perform pgflow.settle_fenced_(units, closes, t);
  end if;
  return pgflow.micros_(t);
end
$$;
comment on function pgflow.fence_step(bigint, bigint, int, jsonb, bigint, json[], jsonb, bigint[])
  is 'Last call of a transactional step''s transaction: fences the lease, appends the buffered units and the step''s '
     'own, none of which is of the ledger of effects, and settles what is spent of a budget; the time in '
     'microseconds. PF025 if the run does not hold one of these locks any more';
--! grant fence_step to pgflow_worker

create or replace function pgflow.read_unit(run_id bigint, seq int)
returns table (token bigint, call int, kind "char", payload text)
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
  select u.token, u.call, u.kind, u.payload::text from pgflow.unit u
  where u.run_id = read_unit.run_id and u.seq = read_unit.seq
$$;
comment on function pgflow.read_unit(bigint, int)
  is 'The unit at a seq: how a worker learns what became of a COMMIT whose answer was lost';
--! grant read_unit to pgflow_worker

create or replace function pgflow.transaction_status(xid text)
returns text
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  return pg_xact_status(xid::xid8);
exception when invalid_parameter_value then
  return 'aborted'; -- a number not given out yet: it was another server's, whose end this one has never seen
end
$$;
comment on function pgflow.transaction_status(text)
  is 'committed, aborted or in progress: an ambiguous COMMIT in progress must be waited out; aborted for a number that '
     'this server never gave out';
--! grant transaction_status to pgflow_worker

create or replace function pgflow.beat_step(run_id bigint, token bigint, call int, attempt int, details json)
returns boolean
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
begin
  perform set_config('synchronous_commit', 'off', true);
  -- The lock keeps the lease until this is committed: the end of the run then finds the beat and removes it.
  perform from pgflow.lease e where e.run_id = run_id and e.token = token for key share;
  if not found then
    return false;
  end if;
  insert into pgflow.step_beat (run_id, call, attempt, beat_at, details)
  values (run_id, call, attempt, pgflow.now_(), details)
  on conflict on constraint step_beat_pkey do update
  set attempt = excluded.attempt, beat_at = excluded.beat_at,
    details = coalesce(excluded.details, pgflow.step_beat.details);
  return true;
end
$$;
comment on function pgflow.beat_step(bigint, bigint, int, int, json)
  is 'A long step says that it lives and how far it is; false if the lease is lost';
--! grant beat_step to pgflow_worker

create or replace function pgflow.step_details(run_id bigint, call int)
returns text
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
  select b.details::text from pgflow.step_beat b where b.run_id = step_details.run_id and b.call = step_details.call
$$;
comment on function pgflow.step_details(bigint, int) is 'Progress that the last attempt of a step reported';
--! grant step_details to pgflow_worker

create or replace function pgflow.emit_drafts(
  run_id bigint, token bigint, call int, try text, after_seq int, first_n int, emitted jsonb
)
returns boolean
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
begin
  perform set_config('synchronous_commit', 'off', true);
  -- As for beats: the end of the run then finds the drafts and removes them.
  perform from pgflow.lease e where e.run_id = run_id and e.token = token for key share;
  if not found then
    return false;
  end if;
  if first_n = 0 then
    delete from pgflow.draft d where d.run_id = run_id and (d.call = call or exists (
      select from pgflow.unit u where u.run_id = run_id and u.seq > d.after_seq and u.call = d.call
    ));
    -- By which a later claim of the run knows that there is something to be removed at its end.
    insert into pgflow.step_beat (run_id, call, attempt, beat_at) values (run_id, call, 1, pgflow.now_())
    on conflict on constraint step_beat_pkey do nothing;
  end if;
  insert into pgflow.draft (run_id, call, n, after_seq, try, stream, value)
  select run_id, call, first_n + e.n - 1, after_seq, try, e.stream, e.value from pgflow.draft_rows_(emitted) e;
  return true;
end
$$;
comment on function pgflow.emit_drafts(bigint, bigint, int, text, int, int, jsonb)
  is 'A running step emits values, [[stream, value as text], ...], that count once it has completed; false if the '
     'lease is lost';
--! grant emit_drafts to pgflow_worker

create or replace function pgflow.check_steps_()
returns table (invariant text, detail text)
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  return query
  select 'beats of steps are of open runs', format('run %s', b.run_id)
  from pgflow.step_beat b where exists (select from pgflow.outcome o where o.run_id = b.run_id)
  union all
  select 'drafts are of open runs', format('run %s', d.run_id)
  from pgflow.draft d where exists (select from pgflow.outcome o where o.run_id = d.run_id);
end
$$;
comment on function pgflow.check_steps_() is 'Beats and drafts of steps are of open runs';

comment on column pgflow.step_beat.run_id is 'The run whose step it is';
comment on column pgflow.step_beat.call is 'Number of the step''s call';
comment on column pgflow.step_beat.attempt is 'Number of the attempt';
comment on column pgflow.step_beat.beat_at is 'Time of the last sign of life of the step';
comment on column pgflow.step_beat.details is 'Progress that the step reported; null = none';
