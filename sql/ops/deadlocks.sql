-- Deadlocks: circles of runs that wait for each other until a person ends one of them.
--
-- A wait has one or several events that would end it. A parked run continues with any of them: one of its children
-- ends, a lock is released. Events from outside may always come: a signal, an answer, a verdict on an effect, an
-- update, an event, a timer; and a held run needs a person anyway. A run that waits in line in order, replaces others
-- or waits for a batch needs all runs before it. So this starts with every run that waits for something of that kind,
-- walks on to the runs that it waits for, and then repeatedly crosses out runs that wait for a crossed-out one. The
-- rest waits forever.
--
-- Limits do not matter: they count leased runs, and a waiting run has no lease. Pools refuse instead of waiting. A
-- circle of locks alone is refused when it would close (`sql/coordination/locks.sql`).

create or replace function pgflow.waits_of_(ids bigint[])
returns table (run_id bigint, alternative text, waits_for bigint)
language sql
volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
  with one as (
    select i.id, r.chain_id from unnest(ids) as i (id) join pgflow.run r on r.run_id = i.id
  ), parked as (
    select o.id, o.chain_id from one o join pgflow.parked p on p.run_id = o.id
    where not exists (select from pgflow.timer t where t.run_id = o.id)
      and not exists (select from pgflow.signal s where s.chain_id = o.chain_id)
      and not exists (select from pgflow.event_wait e where e.chain_id = o.chain_id)
      and not exists (select from pgflow.wait w where w.run_id = o.id and w.kind not in ('c', 'l'))
  )
  select p.id, 'child ' || c.run_id, pgflow.newest_run_(c.chain_id)
  from parked p join pgflow.wait w on w.run_id = p.id and w.kind = 'c'
  join pgflow.run c on c.parent_run_id = p.id and c.parent_call = any(w.calls) and c.generation = 1
  union all
  select p.id, 'lock ' || w.call, l.run_id
  from parked p join pgflow.wait w on w.run_id = p.id and w.kind = 'l'
  join pgflow.lock_wait k on k.run_id = p.id and k.call = w.call
  left join pgflow.lock l on l.key = k.key and l.expires_at is null
  union all
  select p.id, 'replacement', pgflow.newest_run_(r.waits_for)
  from parked p join pgflow.replacement r on r.run_id = p.id
  union all
  select p.id, 'batch', pgflow.newest_run_(m.chain_id)
  from parked p join pgflow.batch b on b.batch_id = p.chain_id and b.begun_at is null
  join pgflow.batch_member m on m.batch_id = b.batch_id and m.n > b.upto
  union all
  select o.id, 'line', pgflow.newest_run_(n.chain_id)
  from one o join pgflow.line_run w on w.run_id = o.id and w.is_fresh
  join pgflow.line p on p.queue = w.queue and p.is_fifo
  join pgflow.line_turn n on n.queue = w.queue and n.key = w.key and pgflow.is_chain_open_(n.chain_id, n.run_id)
  where not (w.rank < 0 and pgflow.may_pass_(o.id, w.queue, w.key))
$$;
comment on function pgflow.waits_of_(bigint[])
  is 'For each of these runs that only other runs let go on: those, by alternative. It goes on with any alternative, and '
     'an alternative needs all of its own; null = what may come from outside';

create or replace function pgflow.deadlocks()
returns table (key text, workflow text, queue text, what text, waits_for text)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
  most constant int := 100000;
  seen bigint[];
  more bigint[];
  waiting bigint[] := '{}';
  alternatives text[] := '{}';
  others bigint[] := '{}';
  blocked bigint[];
  still bigint[];
  found record;
begin
  more := array(
    select w.run_id from pgflow.lock_wait w where w.run_id is not null
    union select r.run_id from pgflow.replacement r
    union select b.batch_id from pgflow.batch b where b.begun_at is null
    union
    select h.run_id from pgflow.line p
    cross join lateral (
      select distinct n.key from pgflow.line_turn n where n.queue = p.queue
    ) k
    cross join lateral (
      select w.run_id from pgflow.line_run w where w.queue = p.queue and w.is_fresh and w.key = k.key
      order by w.rank, w.run_id limit 1
    ) h
    where p.is_fifo
    limit most
  );
  seen := more;
  while more <> '{}' and cardinality(seen) <= most loop
    select coalesce(array_agg(w.run_id), '{}') as runs, coalesce(array_agg(w.alternative), '{}') as alternatives,
      coalesce(array_agg(w.waits_for), '{}') as others
    into found from pgflow.waits_of_(more) w;
    waiting := waiting || found.runs;
    alternatives := alternatives || found.alternatives;
    others := others || found.others;
    more := array(select distinct o from unnest(found.others) o where o is not null and o <> all(seen));
    seen := seen || more;
  end loop;
  blocked := array(select distinct r from unnest(waiting) r);
  loop
    still := array(
      select a.run
      from (
        select w.run, coalesce(bool_or(w.other = any(blocked)), false) as is_blocked
        from unnest(waiting, alternatives, others) as w (run, alternative, other)
        where w.run = any(blocked) group by w.run, w.alternative
      ) a
      group by a.run having bool_and(a.is_blocked)
    );
    exit when cardinality(still) = cardinality(blocked);
    blocked := still;
  end loop;
  return query
    select r.key, l.workflow, l.queue, split_part(w.alternative, ' ', 1), o.key
    from unnest(waiting, alternatives, others) as w (run, alternative, other)
    join pgflow.run r on r.run_id = w.run join pgflow.lane l on l.lane_id = r.lane_id
    join pgflow.run o on o.run_id = w.other
    where w.run = any(blocked) and w.other = any(blocked)
    order by r.run_id, o.run_id;
end
$$;
comment on function pgflow.deadlocks()
  is 'Runs that wait for each other for ever: what each waits for (child, lock, line, replacement or batch), and the run '
     'that it waits for. Cancel one of them';
--! grant deadlocks to pgflow_client, pgflow_worker, pgflow_operator, pgflow_auditor
