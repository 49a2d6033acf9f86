-- Rules of retention, legal holds, and subjects that are forgotten.
--
-- A family is judged by the run that heads it, as its newest generation ended: a child goes with its parent, whatever
-- its workflow is. Of the rules that match, the one with the most conditions decides, and of several such the one that
-- keeps longer. So "30 days, and 180 if it failed" are two rules. A family that no rule matches stays.
--
-- Workers remove what is due (`retire_runs`), a batch in each transaction, in the order of run ids as drop_history
-- does. They pass over what must stay, and begin anew some minutes later.
--
-- A legal hold is of a run by its key, and keeps its whole family from every removal. To forget a subject removes
-- families whole, since keys and labels may name the subject, too. What is recorded of it are numbers.

create or replace function pgflow.set_retention(
  rule text, keep_seconds float8, workflow text default null, status text default null, labels jsonb default null,
  tenant text default null, sent_by text default null
)
returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
begin
  if pgflow.own_tenants() is not null then
    tenant := pgflow.own_tenant_(coalesce(tenant, ''));
    if exists (select from pgflow.retention_rule r where r.rule = rule and r.tenant is distinct from tenant) then
      raise exception using errcode = 'PF021', message = format('rule %s is not of tenant %s', rule, tenant);
    end if;
  end if;
  insert into pgflow.retention_rule as r (rule, keep_seconds, workflow, status, labels, tenant, set_at, set_by)
  values (rule, keep_seconds, workflow, status, nullif(labels, '{}'), tenant, pgflow.now_(), pgflow.sender_(sent_by))
  on conflict on constraint retention_rule_pkey do update
  set keep_seconds = excluded.keep_seconds, workflow = excluded.workflow, status = excluded.status,
    labels = excluded.labels, tenant = excluded.tenant, set_at = excluded.set_at, set_by = excluded.set_by;
exception when check_violation or not_null_violation then
  raise exception using errcode = 'PF003', message = format('rule %s of retention cannot be', quote_nullable(rule)),
    hint = 'It has a name, keeps runs for a number of seconds, and may name a workflow, a status (completed, failed or '
      'cancelled), labels as an object, and a tenant.';
end
$$;
comment on function pgflow.set_retention(text, float8, text, text, jsonb, text, text)
  is 'Sets a rule by its name: workers remove runs that match all of its conditions so many seconds after they have '
     'ended. The rule with the most conditions decides, and of several such the one that keeps longer. PF003 if it is '
     'none';
--! grant set_retention to pgflow_operator

create or replace function pgflow.drop_retention(rule text)
returns boolean
language sql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
  with gone as (
    delete from pgflow.retention_rule r
    where r.rule = drop_retention.rule and coalesce(r.tenant = any(pgflow.own_tenants()), pgflow.own_tenants() is null)
    returning 1
  )
  select exists (select from gone)
$$;
comment on function pgflow.drop_retention(text) is 'Takes back a rule of retention; true if there was one';
--! grant drop_retention to pgflow_operator

create or replace function pgflow.retire_runs(max int default 1000, after bigint default 0)
returns table (runs int, last_root bigint)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
  t timestamptz := pgflow.now_();
  soonest timestamptz := (select t - min(r.keep_seconds) * interval '1 second' from pgflow.retention_rule r);
  seen bigint[];
  newest bigint[];
  due record;
  gone bigint[];
begin
  runs := 0;
  if soonest is null or not pg_try_advisory_xact_lock(pgflow.latch_('retention')) then
    return next;
    return;
  end if;
  perform set_config('synchronous_commit', 'off', true);
  select array_agg(h.root), array_agg(h.newest) into seen, newest
  from pgflow.ended_roots_(soonest, after, pgflow.at_most_(max)) h;
  last_root := seen[cardinality(seen)];
  for due in
    select g.rule, array_agg(g.root order by g.root) as roots,
      array_agg(t - g.keep_seconds * interval '1 second' order by g.root) as before
    from (
      select s.root, k.rule, k.keep_seconds
      from unnest(seen, newest) as s (root, newest)
      join pgflow.run r on r.run_id = s.newest
      join pgflow.outcome o on o.run_id = s.newest
      join pgflow.lane l on l.lane_id = r.lane_id
      cross join lateral (
        select c.rule, c.keep_seconds from pgflow.retention_rule c
        where coalesce(c.workflow = l.workflow, true) and coalesce(c.status = o.status, true)
          and coalesce(c.tenant = r.tenant, true) and (c.labels is null or r.labels @> c.labels)
        order by num_nonnulls(c.workflow, c.status, c.tenant, c.labels) desc, c.keep_seconds desc, c.rule limit 1
      ) k
      where o.finished_at < t - k.keep_seconds * interval '1 second'
    ) g
    group by g.rule
    order by g.rule
  loop
    gone := pgflow.removable_(due.roots, due.before, t);
    perform pgflow.remove_runs_(gone, due.before[1], due.rule, t);
    runs := runs + cardinality(gone);
  end loop;
  if last_root is null then
    perform pgflow.remove_leftovers_(soonest);
  end if;
  perform pgflow.drop_blobs_();
  return next;
end
$$;
comment on function pgflow.retire_runs(int, bigint)
  is 'Removes runs whose time is over by the rules of retention, of so many families from a root on; answers how many, '
     'and the last root that it looked at, null once there are none. Workers call it';
--! grant retire_runs to pgflow_worker, pgflow_operator

create or replace function pgflow.hold_history(
  key text, why text, tenant text default '', sent_by text default null
)
returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  if coalesce(btrim(why), '') = '' then
    raise exception using errcode = 'PF003', message = 'say why the run must be kept';
  end if;
  -- Not while it is just being removed.
  perform pg_advisory_xact_lock_shared(pgflow.latch_('retention'));
  insert into pgflow.legal_hold (chain_id, held_at, why, held_by)
  values (pgflow.chain_of_(tenant, key), pgflow.now_(), pgflow.told_(why, 4096), pgflow.sender_(sent_by))
  on conflict (chain_id) do nothing;
end
$$;
comment on function pgflow.hold_history(text, text, text, text)
  is 'Puts a legal hold on a run: nothing removes it, or what belongs to its family, until release_history(). PF001 if '
     'no run has the key';
--! grant hold_history to pgflow_operator

create or replace function pgflow.refuse_held_(chain bigint)
returns void
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
begin
  if exists (select from pgflow.legal_hold h where h.chain_id = chain) then
    raise exception using errcode = 'PF006', message = 'the run is under a legal hold',
      hint = 'pgflow.release_history() releases it.';
  end if;
end
$$;
comment on function pgflow.refuse_held_(bigint) is 'Refuses (PF006) to take a value out of a run under a legal hold';

create or replace function pgflow.release_history(key text, tenant text default '')
returns boolean
language sql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
  with gone as (
    delete from pgflow.legal_hold h where h.chain_id = pgflow.chain_of_(release_history.tenant, release_history.key)
    returning 1
  )
  select exists (select from gone)
$$;
comment on function pgflow.release_history(text, text)
  is 'Releases the legal hold of a run; true if there was one. PF001 if no run has the key';
--! grant release_history to pgflow_operator

create or replace function pgflow.forget_subject(
  subject text, why text, label text default 'subject', tenant text default null, max int default 1000,
  is_dry boolean default false,
  out removed int, out open int, out held int, out owing int
)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
#variable_conflict use_variable
declare
  t timestamptz := pgflow.now_();
  wanted jsonb := jsonb_build_object(label, subject);
  own constant text[] := case when tenant is null then pgflow.own_tenants() else array[pgflow.own_tenant_(tenant)] end;
  roots bigint[];
  gone bigint[];
begin
  if coalesce(subject, '') = '' or coalesce(label, '') = '' or coalesce(btrim(why), '') = '' then
    raise exception using errcode = 'PF003', message = 'say who is forgotten, by which label, and why';
  end if;
  perform pg_advisory_xact_lock(pgflow.latch_('retention'));
  roots := array(
    with recursive line as (
      select r.run_id from pgflow.run r where r.labels @> wanted and (own is null or r.tenant = any(own))
      union
      select r.run_id from pgflow.relabelled x join pgflow.run r on r.run_id = x.run_id
      where x.labels @> wanted and (own is null or r.tenant = any(own))
      union
      -- The first generation of the chain, and the head of the family.
      select p.above from line m
      cross join lateral (
        select coalesce(r.parent_run_id, r.chain_id) as above from pgflow.run r where r.run_id = m.run_id
      ) p
    )
    select r.run_id from line m join pgflow.run r on r.run_id = m.run_id
    where r.parent_run_id is null and r.generation = 1
  );
  gone := pgflow.removable_(roots, array_fill(t + interval '1 microsecond', array[cardinality(roots)]), t, false);
  removed := cardinality(gone);
  select count(distinct f.root) filter (where not exists (select from pgflow.outcome o where o.run_id = f.run_id)),
    count(distinct f.root) filter (where exists (select from pgflow.legal_hold h where h.chain_id = r.chain_id)),
    count(distinct f.root) filter (where exists (select from pgflow.owed w where w.run_id = f.run_id))
  into open, held, owing
  from pgflow.families_(roots) f join pgflow.run r on r.run_id = f.run_id;
  if not is_dry and removed > 0 then
    -- Families whole, those that were started first.
    gone := array(
      select f.run_id from pgflow.families_(array(
        select g from unnest(gone) g where g = any(roots) order by g limit max
      )) f
    );
    removed := cardinality(gone);
    perform pgflow.remove_runs_(gone, t, pgflow.told_(why, 4096), t);
    perform pgflow.drop_blobs_();
  end if;
end
$$;
comment on function pgflow.forget_subject(text, text, text, text, int, boolean)
  is 'Removes the families of runs that have a label with the name of a subject, once they have ended: of so many '
     'families in one call, so call it until removed = 0. Answers the runs that it removed, and the families that it '
     'left since they are open, under a legal hold or owe something. It records why, and no name. is_dry only counts. '
     'Without a tenant: those of the session, or of all';
--! grant forget_subject to pgflow_operator

create or replace function pgflow.check_keeping_()
returns table (invariant text, detail text)
language sql
volatile
set search_path = pg_catalog, pg_temp
as $$
  select 'a legal hold is of a run', format('chain %s', h.chain_id)
  from pgflow.legal_hold h where not exists (select from pgflow.run r where r.run_id = h.chain_id)
$$;
comment on function pgflow.check_keeping_() is 'Legal holds of runs that are gone';

drop view if exists pgflow.retention_rules;
create view pgflow.retention_rules as
select r.rule, r.keep_seconds, r.workflow, r.status, r.labels, r.tenant as of_tenant, r.set_at, r.set_by
from pgflow.retention_rule r;
comment on view pgflow.retention_rules is 'For how long workers keep which runs; a condition that is null holds for all';
--! grant retention_rules to pgflow_client, pgflow_worker, pgflow_operator, pgflow_auditor
comment on column pgflow.retention_rules.rule is 'Name of the rule';
comment on column pgflow.retention_rules.keep_seconds is 'Seconds from the end of a family for which it is kept';
comment on column pgflow.retention_rules.workflow is 'Workflow of the runs that it is for';
comment on column pgflow.retention_rules.status is 'Status with which they ended: completed, failed or cancelled';
comment on column pgflow.retention_rules.labels is 'Labels that they have';
comment on column pgflow.retention_rules.of_tenant is 'Their tenant';
comment on column pgflow.retention_rules.set_at is 'Time at which it was set';
comment on column pgflow.retention_rules.set_by is 'Name of the setter';

drop view if exists pgflow.legal_holds;
create view pgflow.legal_holds as
select r.key, h.why, h.held_at, h.held_by, r.tenant
from pgflow.legal_hold h join pgflow.run r on r.run_id = h.chain_id;
comment on view pgflow.legal_holds is 'Runs under a legal hold, which nothing removes';
--! grant legal_holds to pgflow_client, pgflow_worker, pgflow_operator, pgflow_auditor
comment on column pgflow.legal_holds.key is 'Key of the run';
comment on column pgflow.legal_holds.why is 'The reason given';
comment on column pgflow.legal_holds.held_at is 'Time since which it is held';
comment on column pgflow.legal_holds.held_by is 'Name of the person who asked for it';
comment on column pgflow.legal_holds.tenant is 'Tenant of the run; empty where there is only one';

comment on column pgflow.retention_rule.rule is 'Name of the rule';
comment on column pgflow.retention_rule.keep_seconds is 'Seconds from the end of a family for which it is kept';
comment on column pgflow.retention_rule.workflow is 'Workflow of the runs that it is for; null = all';
comment on column pgflow.retention_rule.status is 'Status with which they ended; null = all';
comment on column pgflow.retention_rule.labels is 'Labels that they have; null = any';
comment on column pgflow.retention_rule.tenant is 'Their tenant; null = all';
comment on column pgflow.retention_rule.set_at is 'Time at which it was set';
comment on column pgflow.retention_rule.set_by is 'Name of the setter';
comment on column pgflow.legal_hold.chain_id is 'The run, by its first generation';
comment on column pgflow.legal_hold.held_at is 'Time since which it is held';
comment on column pgflow.legal_hold.why is 'The reason given';
comment on column pgflow.legal_hold.held_by is 'Name of the person who asked for it';
