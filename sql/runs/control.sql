-- Orders of people to runs. These verbs too only post a message: nobody who cancels or pauses waits for
-- the run, and exactly one order of the two is recorded. The next wake applies it - a worker's within
-- its poll, or the caller's own `select pgflow.wake()` after the commit.

create or replace function pgflow.cancel_run(
  key text, why text default 'cancelled', tenant text default '', sent_by text default null, force boolean default false
)
returns bigint
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  chain bigint := pgflow.chain_of_(tenant, key);
begin
  if force then
    perform pgflow.check_may_force_(key);
    return pgflow.force_cancel_run(key, why, tenant, sent_by);
  end if;
  perform pgflow.post_(chain, 'x', 'cancel', json_build_object('why', pgflow.told_(why, 4096)), pgflow.sender_(sent_by));
  return chain;
end
$$;
comment on function pgflow.cancel_run(text, text, text, text, boolean)
  is 'Asks for a run to be cancelled: its code may clean up. Takes effect once a worker looks, within its poll, or '
     'you call wake() after your commit; until then pgflow.orders has it, and pgflow.runs the run as it was. force '
     'does what force_cancel_run does, at once, if the caller may (else PF021)';
--! grant cancel_run to pgflow_tenant, pgflow_client, pgflow_worker, pgflow_operator

create or replace function pgflow.pause_run(
  key text, why text default 'paused', tenant text default '', sent_by text default null
)
returns bigint
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  chain bigint := pgflow.chain_of_(tenant, key);
begin
  perform pgflow.post_(chain, 'p', 'pause', json_build_object('why', pgflow.told_(why, 4096)), pgflow.sender_(sent_by));
  return chain;
end
$$;
comment on function pgflow.pause_run(text, text, text, text)
  is 'Asks for a run to be held: bodies that run finish, nothing new starts until resume_run. Takes effect once a '
     'worker looks, within its poll, or you call wake() after your commit; until then pgflow.orders has it, and '
     'pgflow.runs the run as it was';
--! grant pause_run to pgflow_operator

create or replace function pgflow.resume_run(
  key text, why text default 'resumed', tenant text default '', sent_by text default null
)
returns bigint
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  chain bigint := pgflow.chain_of_(tenant, key);
begin
  perform pgflow.post_(chain, 'r', 'resume', json_build_object('why', pgflow.told_(why, 4096)), pgflow.sender_(sent_by));
  return chain;
end
$$;
comment on function pgflow.resume_run(text, text, text, text)
  is 'Lets a paused or stuck run go on, once a worker looks, within its poll, or you call wake() after your commit';
--! grant resume_run to pgflow_operator

create or replace function pgflow.retry_run(
  key text, why text default 'retried', tenant text default '', sent_by text default null,
  from_step text default null, attempts int default null, effects text default null, children text default 'refuse'
)
returns bigint
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  chain bigint := pgflow.chain_of_(tenant, key);
  me bigint := pgflow.newest_run_(chain);
  ended text;
  is_again boolean := from_step is not null;
begin
  select status into ended from pgflow.outcome where run_id = me;
  if not is_again and ended = 'failed' and pgflow.is_of_file_(me) then
    perform pgflow.lock_chain_(chain);
    is_again := pgflow.first_again_(me) is not null;
    if is_again and pgflow.newest_run_(chain) = me then
      perform pgflow.retry_called_(me, why, sent_by);
      effects := coalesce(effects, 'reuse');
    end if;
  end if;
  if not is_again and ended = 'failed' then
    is_again := exists (select from pgflow.unit u where u.run_id = me and u.kind in ('f', 'q'));
  end if;
  if not is_again and ended is not null then
    raise exception using errcode = 'PF006', message = format('run %s is %s: %s', quote_literal(key), ended,
        case ended when 'failed' then 'no step of it has failed' else 'only a stuck or failed run can be retried' end),
      hint = 'Say from which step, or restart it.';
  end if;
  if not is_again and (attempts is not null or effects is not null) then
    raise exception using errcode = 'PF003', message = 'attempts and effects need a step to retry from';
  end if;
  if not is_again then
    perform pgflow.post_(chain, 't', 'retry', json_build_object('why', pgflow.told_(why, 4096)), pgflow.sender_(sent_by));
  else
    perform pgflow.begin_again_('retry', chain, null, from_step, null, null, effects, children, attempts, null,
      why, sent_by);
  end if;
  return chain;
end
$$;
comment on function pgflow.retry_run(text, text, text, text, text, int, text, text)
  is 'Lets a stuck run go on with a fresh budget of attempts; rewinds a failed one, or any that does not run, to just '
     'before a step, whose key stays the same, and of itself to before what was taken back since. Of a run of a file, '
     'all that failed is done again, also in the runs that it called. PF006 if there is nothing to retry';
--! grant retry_run to pgflow_operator

drop view if exists pgflow.orders;
create view pgflow.orders as
select r.key, case s.kind when 'x' then 'cancel' when 'p' then 'pause' when 'r' then 'resume' else 'retry' end as verb,
  s.payload->>'why' as why, s.sent_at, s.sent_by, r.tenant, s.chain_id
from pgflow.signal s join pgflow.run r on r.run_id = s.chain_id
where s.kind in ('x', 'p', 'r', 't');
comment on view pgflow.orders
  is 'Cancels, pauses, resumes and retries that were asked for, and that no worker has taken yet';
--! grant orders to pgflow_client, pgflow_worker, pgflow_operator, pgflow_auditor
comment on column pgflow.orders.key is 'Key of the run';
comment on column pgflow.orders.verb is 'cancel, pause, resume or retry';
comment on column pgflow.orders.why is 'The reason that was given';
comment on column pgflow.orders.sent_at is 'Time at which it was asked for';
comment on column pgflow.orders.sent_by
  is 'Sender: the name that was given, with the role of the session in brackets; pgflow = itself';
comment on column pgflow.orders.tenant is 'Tenant of the run; empty where there is only one';
comment on column pgflow.orders.chain_id is 'Number of the first run of the chain';
