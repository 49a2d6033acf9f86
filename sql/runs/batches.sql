-- Batches: many runs, and one that begins once all of them have ended, however they ended.
--
-- That run is started like any other, and parked before anybody can claim it. So it can be looked at, waited for,
-- paused and cancelled from the first moment, and a key names it once. Its members are named in one go, or in parts;
-- the last part makes the batch whole.
--
-- Nobody counts the members as they end: one row that 100,000 runs change would be a queue of its own, and runs of no
-- batch would have to be told apart from others. Members have numbers, and every poll looks on from the first that it
-- has found open (`upto`). So each member is passed once, an end costs nothing, and a poll that finds the same one open
-- reads one row. A member that fails, and is tried again later, has ended.
--
-- A run may begin with the first failure, while others go on. It is started when that is seen, once: the row of the
-- batch is locked, and then says so. Every poll looks at the members that it passes, and at some more, round and
-- round, so that a failure behind a member that stays open is seen, too.

create or replace function pgflow.fill_batch(
  batch text, workflow text, run_ids bigint[], is_whole boolean default true, tenant text default ''
)
returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
  me bigint := pgflow.chain_of_(tenant, batch);
  known pgflow.batch;
begin
  perform pgflow.refuse_other_(me, workflow, '{}');
  if array_position(pgflow.own_runs_(run_ids), null) is not null then
    raise exception using errcode = 'PF001', message = format('no run has the number %s',
      run_ids[array_position(pgflow.own_runs_(run_ids), null)]);
  end if;
  select b.* into known from pgflow.batch b where b.batch_id = me for no key update;
  if known.batch_id is null then
    if pgflow.lock_unbegun_(me) is null then
      raise exception using errcode = 'PF006',
        message = format('run %s has begun: it can wait for no members', quote_literal(batch)),
        hint = 'Name them in the transaction that starts it, or use another key.';
    end if;
    insert into pgflow.batch (batch_id, opened_at) values (me, pgflow.now_());
    delete from pgflow.timer m where m.run_id = me;
    delete from pgflow.line_run w where w.run_id = me;
    with gone as (
      delete from pgflow.ready r where r.run_id = me returning r.*
    )
    insert into pgflow.parked (run_id, chain_id, parked_at, lane_id, last_seq, priority)
    select g.run_id, g.run_id, g.ready_at, abs(g.lane_id), 0, g.priority from gone g;
  elsif known.begun_at is not null and exists (
    select from unnest(run_ids) g (id)
    where not exists (select from pgflow.batch_member m where m.batch_id = me and m.chain_id = g.id)
  ) then
    raise exception using errcode = 'PF006', message = format('the batch %s is over', quote_literal(batch)),
      hint = 'Members are named before all others have ended: say is_whole => false until then.';
  end if;
  insert into pgflow.batch_member (batch_id, chain_id)
  select me, g.id from unnest(run_ids) with ordinality as g (id, n) order by g.n
  on conflict do nothing;
  if is_whole then
    update pgflow.batch b set is_whole = true where b.batch_id = me and not b.is_whole;
  end if;
end
$$;
comment on function pgflow.fill_batch(text, text, bigint[], boolean, text)
  is 'Has a run of this workflow, which has not begun, wait until these runs have ended. It is named by its key, and '
     'they by their numbers. Call it in the transaction that starts them; is_whole: no more are named later. PF001: no '
     'run has the key; PF002: one of another workflow has it; PF006: it has begun';
--! grant fill_batch to pgflow_tenant, pgflow_client, pgflow_worker, pgflow_operator

create or replace function pgflow.on_batch_failure(
  batch text, workflow text, input json default '{}', queue text default 'default', tenant text default ''
)
returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
  me bigint := pgflow.chain_of_(tenant, batch);
  known pgflow.batch;
begin
  perform pgflow.check_key_(batch || '/failed'), pgflow.check_input_(input);
  select b.* into known from pgflow.batch b where b.batch_id = me for no key update;
  if known.batch_id is null then
    raise exception using errcode = 'PF001', message = format('run %s has no batch', quote_literal(batch)),
      hint = 'Name its members first: pgflow.fill_batch().';
  elsif exists (
    select from pgflow.batch_failure f where f.batch_id = me
    and (f.workflow, f.queue, f.input::text) is distinct from (workflow, queue, input::text)
  ) then
    raise exception using errcode = 'PF002',
      message = format('the batch %s begins something else with its first failure', quote_literal(batch));
  elsif known.begun_at is not null and not exists (select from pgflow.batch_failure f where f.batch_id = me) then
    raise exception using errcode = 'PF006', message = format('the batch %s is over', quote_literal(batch)),
      hint = 'Say it in the transaction that names the first members.';
  end if;
  insert into pgflow.batch_failure (batch_id, workflow, queue, input) values (me, workflow, queue, input)
  on conflict do nothing;
end
$$;
comment on function pgflow.on_batch_failure(text, text, json, text, text)
  is 'Has a run of this workflow begin with the first failure in a batch, once: its key is that of the batch with '
     '/failed behind it, and its labels batch and failed name the batch and the member. PF001: no run that has a batch '
     'has the key; PF002: the batch begins another; PF003: no run can have this input; PF006: the batch is over';
--! grant on_batch_failure to pgflow_tenant, pgflow_client, pgflow_worker, pgflow_operator

create or replace function pgflow.start_failure_(f pgflow.batch_failure, member_id bigint, t timestamptz)
returns int
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  mine pgflow.run;
  failed text;
  begun text;
  lane int;
  refused text;
begin
  select r.* into strict mine from pgflow.run r where r.run_id = f.batch_id;
  select r.key into strict failed from pgflow.run r where r.run_id = member_id;
  begin
    select s.run_key, s.lane_id into begun, lane from pgflow.start_run(
      f.workflow, pgflow.fill_input_(f.input, (pgflow.known_code_(f.workflow, '')).defaults), mine.key || '/failed',
      f.queue,
      tenant => mine.tenant, if_taken => 'attach', defaults => '{}',
      labels => jsonb_build_object('batch', mine.key, 'failed', failed)) s;
  exception when others then
    -- What is refused now would be refused with every poll.
    if left(sqlstate, 2) in ('40', '53', '55', '57', '08') then
      raise;
    end if;
    refused := sqlstate;
  end;
  update pgflow.batch_failure b set fired_at = t, member_id = start_failure_.member_id,
    started_key = begun, trouble = refused
  where b.batch_id = f.batch_id;
  return lane;
end
$$;
comment on function pgflow.start_failure_(pgflow.batch_failure, bigint, timestamptz)
  is 'Starts the run that begins with the failure of this member, and notes it; answers its lane';

create or replace function pgflow.notice_failure_(b pgflow.batch, max int, t timestamptz)
returns int
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
declare
  f pgflow.batch_failure;
  now_upto bigint := (select c.upto from pgflow.batch c where c.batch_id = b.batch_id);
  member record;
  last bigint;
begin
  select x.* into f from pgflow.batch_failure x where x.batch_id = b.batch_id and x.fired_at is null;
  if f.batch_id is null then
    return null;
  end if;
  for member in
    (select m.n, m.chain_id from pgflow.batch_member m where m.batch_id = b.batch_id
      and m.n > b.upto and m.n <= now_upto order by m.n)
    union all
    (select m.n, m.chain_id from pgflow.batch_member m where m.batch_id = b.batch_id
      and m.n > greatest(f.looked, now_upto) order by m.n limit max)
  loop
    if pgflow.ended_as_(pgflow.newest_run_(member.chain_id)) = 'failed' then
      return pgflow.start_failure_(f, member.chain_id, t);
    end if;
    last := member.n;
  end loop;
  -- Behind the last member it begins anew.
  last := case when exists (select from pgflow.batch_member m where m.batch_id = b.batch_id and m.n > last)
    then last else 0 end;
  if last <> f.looked then
    update pgflow.batch_failure x set looked = last where x.batch_id = b.batch_id;
  end if;
  return null;
end
$$;
comment on function pgflow.notice_failure_(pgflow.batch, int, timestamptz)
  is 'Looks for a member that has failed: of a locked batch as it was before it advanced, at those that were passed '
     'since, and at up to max more, where the last look ended. Starts what begins with it; answers its lane then';

create or replace function pgflow.advance_batch_(b pgflow.batch, max int, t timestamptz)
returns int
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
declare
  member record;
  last bigint := b.upto;
  looked int := 0;
  is_over boolean := b.is_whole;
  lane int;
begin
  for member in
    select m.n, m.chain_id from pgflow.batch_member m where m.batch_id = b.batch_id and m.n > b.upto
    order by m.n limit max
  loop
    looked := looked + 1;
    if pgflow.is_open_(member.chain_id) then
      is_over := false;
      exit;
    end if;
    last := member.n;
  end loop;
  is_over := is_over and looked < max;
  if is_over then
    -- Whoever is just cancelling or pausing it decides, and the next poll looks again.
    perform from pgflow.parked p where p.run_id = b.batch_id for update skip locked;
    is_over := found;
    if is_over then
      select w.lane_id into lane from pgflow.wake_parked_(array[b.batch_id], t) w;
    end if;
  end if;
  is_over := is_over or exists (select from pgflow.outcome o where o.run_id = b.batch_id);
  if is_over or last > b.upto then
    update pgflow.batch set upto = last, begun_at = case when is_over then t end where batch_id = b.batch_id;
  end if;
  return lane;
end
$$;
comment on function pgflow.advance_batch_(pgflow.batch, int, timestamptz)
  is 'Looks at up to max members of a locked batch, and lets its run begin if all have ended; answers its lane then';

create or replace function pgflow.is_batch_due_(b pgflow.batch)
returns boolean
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
declare
  first bigint := (select m.chain_id from pgflow.batch_member m where m.batch_id = b.batch_id and m.n > b.upto
    order by m.n limit 1);
begin
  if exists (select from pgflow.batch_failure f where f.batch_id = b.batch_id and f.fired_at is null) and exists (
    select from pgflow.batch_member m where m.batch_id = b.batch_id and m.n > b.upto
    and pgflow.ended_as_(pgflow.newest_run_(m.chain_id)) = 'failed'
  ) then
    return true;
  elsif first is null then
    return b.is_whole and exists (select from pgflow.parked p where p.run_id = b.batch_id);
  end if;
  return not pgflow.is_open_(first);
end
$$;
comment on function pgflow.is_batch_due_(pgflow.batch) is 'True if a poll finds that a member has ended, or all';

create or replace function pgflow.begin_batches_(max int, t timestamptz)
returns int[]
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
declare
  began timestamptz := clock_timestamp();
  oldest bigint := (select min(b.batch_id) from pgflow.batch b where b.begun_at is null);
  newest bigint;
  anywhere bigint;
  one pgflow.batch;
  woken int[] := '{}';
begin
  if oldest is null then
    return woken;
  end if;
  newest := (select max(b.batch_id) from pgflow.batch b where b.begun_at is null);
  anywhere := oldest + (random() * (newest - oldest))::bigint;
  -- From the oldest on, and from anywhere: many that are open for long would hide those behind them for as long.
  for one in
    select b.* from pgflow.batch b
    where b.begun_at is null and b.batch_id = any(array(
      (select o.batch_id from pgflow.batch o where o.begun_at is null order by o.batch_id limit max)
      union
      (select o.batch_id from pgflow.batch o where o.begun_at is null and o.batch_id >= anywhere
        order by o.batch_id limit max)
    ))
    order by b.batch_id for no key update skip locked
  loop
    -- What it passes has ended: whatever failed of that is seen behind it.
    woken := woken || pgflow.advance_batch_(one, 20 * max, t) || pgflow.notice_failure_(one, max, t);
    exit when clock_timestamp() > began + interval '0.2 seconds'; -- the others in the next poll
  end loop;
  return array_remove(woken, null);
end
$$;
comment on function pgflow.begin_batches_(int, timestamptz)
  is 'Parked -> ready for runs of whose batches all members have ended';

create or replace function pgflow.count_batch(
  batch text, tenant text default '',
  out runs bigint, out completed bigint, out failed bigint, out cancelled bigint, out is_whole boolean
)
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
#variable_conflict use_variable
declare
  me bigint := pgflow.chain_of_(tenant, batch);
begin
  select b.is_whole into is_whole from pgflow.batch b where b.batch_id = me;
  if is_whole is null then
    raise exception using errcode = 'PF001', message = format('run %s has no batch', quote_literal(batch));
  end if;
  select count(*), count(*) filter (where o.status = 'completed'), count(*) filter (where o.status = 'failed'),
    count(*) filter (where o.status = 'cancelled')
  into runs, completed, failed, cancelled
  from pgflow.batch_member m
  left join lateral (
    select e.status from pgflow.outcome e where e.run_id = pgflow.newest_run_(m.chain_id) offset 0
  ) o on true
  where m.batch_id = me;
end
$$;
comment on function pgflow.count_batch(text, text)
  is 'Number of the members of a batch, and how many of them have ended in which way; is_whole: all are named. PF001: '
     'no run that has a batch has the key';
--! grant count_batch to pgflow_tenant, pgflow_client, pgflow_worker, pgflow_operator, pgflow_auditor

drop view if exists pgflow.batches;
create view pgflow.batches as
select r.tenant, r.key, l.workflow, b.opened_at, b.begun_at, b.is_whole,
  (select count(*) from pgflow.batch_member m where m.batch_id = b.batch_id) as runs,
  (select count(*) from pgflow.batch_member m where m.batch_id = b.batch_id and m.n <= b.upto) as passed,
  f.workflow as on_failure, f.fired_at as failed_at, m.key as first_failed, f.started_key as failure_key,
  f.trouble as failure_trouble
from pgflow.batch b
join pgflow.run r on r.run_id = b.batch_id
join pgflow.lane l on l.lane_id = r.lane_id
left join pgflow.batch_failure f on f.batch_id = b.batch_id
left join pgflow.run m on m.run_id = f.member_id;
comment on view pgflow.batches is 'Batches: runs that begin once all their members have ended';
--! grant batches to pgflow_client, pgflow_worker, pgflow_operator, pgflow_auditor
comment on column pgflow.batches.tenant is 'Tenant of the run that waits';
comment on column pgflow.batches.key is 'Key of the run that waits';
comment on column pgflow.batches.workflow is 'Its workflow';
comment on column pgflow.batches.opened_at is 'Time at which its first members were named';
comment on column pgflow.batches.begun_at
  is 'Time at which all had ended, or it had been cancelled; null = it waits';
comment on column pgflow.batches.is_whole is 'True once all members are named';
comment on column pgflow.batches.runs is 'Members';
comment on column pgflow.batches.passed
  is 'Members before the first that is open, in the order in which they were named; count_batch() counts all that have '
     'ended';
comment on column pgflow.batches.on_failure
  is 'Workflow of the run that begins with the first failure; null = none does';
comment on column pgflow.batches.failed_at is 'Time at which the first failure was seen';
comment on column pgflow.batches.first_failed is 'Key of the member that had failed then';
comment on column pgflow.batches.failure_key is 'Key of the run that has begun with it';
comment on column pgflow.batches.failure_trouble is 'SQLSTATE with which its start was refused';
