-- The end of a run, whatever its cause: the parent hears of it, children that should not outlive
-- it are cancelled, mail that will not be taken is put aside, and what only served the open run goes.

create or replace function pgflow.tell_parents_(run_ids bigint[], t timestamptz)
returns bigint[]
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  parents bigint[];
begin
  with told as (
    insert into pgflow.signal (chain_id, run_id, sent_at, call, kind, name, payload)
    select p.chain_id, p.run_id, t, r.parent_call, 'c', r.parent_call::text,
      json_build_object('status', o.status, 'reason', o.reason, 'output', o.output, 'error', o.error,
        'run_id', r.run_id)
    from pgflow.run r
    join pgflow.outcome o on o.run_id = r.run_id
    join pgflow.run p on p.run_id = r.parent_run_id
    where r.run_id = any(run_ids) and o.status <> 'continued'
      and not exists (select from pgflow.outcome po where po.run_id = p.run_id)
    returning chain_id
  )
  select array_agg(distinct chain_id) into parents from told;
  insert into pgflow.nudge (chain_id) select c from unnest(parents) c;
  return coalesce(parents, '{}');
end
$$;
comment on function pgflow.tell_parents_(bigint[], timestamptz)
  is 'Posts the outcome of finished children to their parents that are still open; answers the parents'' chains';

create or replace function pgflow.cancel_children_(run_ids bigint[], t timestamptz)
returns bigint[]
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  children bigint[];
begin
  with told as (
    insert into pgflow.signal (chain_id, sent_at, kind, name, sent_by, payload)
    select c.chain_id, t, 'x', 'cancel', 'pgflow', json_build_object('why', 'the parent run ended',
      'reason', 'parent_ended')
    from pgflow.run c
    where c.parent_run_id = any(run_ids) and c.generation = 1 and c.close_policy = 'c'
      and not exists (
        select from pgflow.outcome o where o.run_id = pgflow.newest_run_(c.chain_id)
      )
    returning chain_id
  )
  select array_agg(chain_id) into children from told;
  insert into pgflow.nudge (chain_id) select c from unnest(children) c;
  return coalesce(children, '{}');
end
$$;
comment on function pgflow.cancel_children_(bigint[], timestamptz)
  is 'Posts a cancel to the open children that end with these runs; answers their chains';

create or replace function pgflow.put_mail_aside_(chains bigint[], t timestamptz)
returns bigint[]
language sql
volatile
set search_path = pg_catalog, pg_temp
as $$
  select pgflow.hear_late_(chains, t) where chains <> '{}';
  with gone as (
    delete from pgflow.signal s where s.ctid = any(array(
      select k.ctid from pgflow.signal k
      where k.chain_id = any(chains) and (k.kind <> 'e' or k.payload->>'obligation' is null) for update skip locked
    )) and s.chain_id = any(chains) returning s.*
  )
  insert into pgflow.undelivered (signal_id, chain_id, run_id, sent_at, moved_at, call, kind, name, sent_by,
    payload, why)
  select signal_id, chain_id, run_id, sent_at, t, call, kind, name, sent_by, payload, refusal->>'error' from gone;
  -- Results of children that a run ended by force will never hear of.
  select pgflow.owe_for_parent_(array_agg((d.payload->>'run_id')::bigint), t)
  from pgflow.undelivered d
  where d.chain_id = any(chains) and d.kind = 'c' and d.moved_at = t and d.payload->>'status' = 'completed'
  having count(*) > 0;
  select case when chains = '{}' then '{}' else pgflow.refuse_updates_(chains, t) end
$$;
comment on function pgflow.put_mail_aside_(bigint[], timestamptz)
  is 'Moves what is left in the mailboxes of finished chains to `undelivered`, except what another wake is moving; '
     'records the verdicts on obligations among it, and refuses updates that other runs have asked for; answers the '
     'chains of these, to be woken';

create or replace function pgflow.wind_up_(run_ids bigint[], t timestamptz)
returns bigint[]
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
begin
  -- A sweep that has a deadline in its hands is removing it: waiting for it could last, and go in a circle.
  delete from pgflow.deadline d where d.ctid = any(array(
    select k.ctid from pgflow.deadline k where k.run_id = any(run_ids) for update skip locked
  )) and d.run_id = any(run_ids);
  delete from pgflow.step_beat where run_id = any(run_ids);
  delete from pgflow.draft where run_id = any(run_ids);
  perform pgflow.owe_for_parent_(run_ids, t);
  return pgflow.tell_parents_(run_ids, t) || pgflow.cancel_children_(run_ids, t);
end
$$;
comment on function pgflow.wind_up_(bigint[], timestamptz)
  is 'Tells others that these runs have ended, and cancels children; answers the chains to wake';

create or replace function pgflow.check_ends_()
returns table (invariant text, detail text)
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  return query
  with chain_head as (
    select chain_id, max(run_id) as run_id, max(generation) as generation, count(*) as runs from pgflow.run
    group by chain_id
  )
  select 'an outcome belongs to a run', format('run %s', o.run_id)
  from pgflow.outcome o where not exists (select from pgflow.run r where r.run_id = o.run_id)
  union all
  select 'generations are dense', format('chain %s', h.chain_id)
  from chain_head h where h.generation <> h.runs
  union all
  select 'a continued run has a successor', format('run %s', o.run_id)
  from pgflow.outcome o join pgflow.run r on r.run_id = o.run_id
  where o.status = 'continued' and not exists (select from pgflow.run s where s.chain_id = r.chain_id
    and s.generation = r.generation + 1)
  union all
  select 'a run with a successor is continued', format('run %s', r.run_id)
  from pgflow.run r join pgflow.run s on s.chain_id = r.chain_id and s.generation = r.generation + 1
  where s.generation > 1 and not exists (select from pgflow.outcome o where o.run_id = r.run_id
    and o.status = 'continued');
end
$$;
comment on function pgflow.check_ends_() is 'Ended runs and the generations of a chain';

comment on column pgflow.outcome.run_id is 'The run that ended';
comment on column pgflow.outcome.finished_at is 'Time of the end';
comment on column pgflow.outcome.status is 'completed, failed, cancelled, or continued as the next generation';
comment on column pgflow.outcome.reason is 'Reason given for a cancel';
comment on column pgflow.outcome.output is 'Value that the workflow returned';
comment on column pgflow.outcome.error is 'The exception that it raised: type, message, traceback';
