-- Carried sagas: the effects that a run has to compensate live on when it continues as new.
--
-- The stack of a generation consists of the effects that earlier ones handed on (`saga_effect`, written by the commit
-- that continues) and its own, which its journal knows. Handed-on effects are copied from that journal: request and
-- result of each completed effect. A row changes only once: if a generation that had compensated it is rewound or
-- restarted, the row is marked (`taken_back_in`) and does not go to the next one.
--
-- The parent compensates the effects of a completed child: they come with its result, in the unit `child_finished`
-- (`look_all_`), with their chain. So the parent's journal alone has all effects of its saga, and no rows of a second
-- run are locked. A child that may outlive its parent keeps its own effects.
--
-- Generation 0 is the origin of a fork, whose journal the fork repeats. A fork never compensates effects of its
-- origin; it needs the rows only to repeat compensations in the copied part.

create or replace function pgflow.hand_on_saga_(
  me bigint, chain bigint, generation int, entries jsonb, of_children jsonb
)
returns void
language sql
volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
  insert into pgflow.saga_effect (chain_id, generation, call, name, key, code, request, result, ref)
  select chain, hand_on_saga_.generation, f.call, (f.intent).name, (f.intent).key, e.code,
    (f.intent).payload->'request', f.result, f.ref
  from pgflow.handed_rows_(entries) e
  join (
    select u.call, (array_agg(u order by u.seq) filter (where u.kind = 'i'))[1] as intent,
      (array_agg(u.payload order by u.seq) filter (where u.kind = 'C'))[1] as result,
      (array_agg(u.payload->>'ref' order by u.seq) filter (where u.kind = 'A'))[1] as ref
    from pgflow.unit u
    where u.run_id = me and u.kind in ('i', 'C', 'A')
    group by u.call
  ) f on f.call = e.call;
  insert into pgflow.saga_effect (chain_id, generation, call, n, name, key, code, request, result, ref)
  select chain, hand_on_saga_.generation, k.call, e.n, e.name, e.key, e.code, e.request, e.result, e.ref
  from pgflow.unit k cross join lateral pgflow.saga_rows_((k.payload->'saga'->'effects')::jsonb) e
  where of_children is not null and k.run_id = me and k.kind = 'K' and of_children ? e.key
$$;
comment on function pgflow.hand_on_saga_(bigint, bigint, int, jsonb, jsonb)
  is 'Hands effects of a run, [[call, place of its code], ...], and those of its children, by key, on to the next '
     'generation of its chain';

create or replace function pgflow.carried_saga_(chain bigint, generation int)
returns jsonb
language sql
stable
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
  select jsonb_agg(jsonb_build_array(s.name, s.key, s.code, s.request::text, s.result::text, s.ref, s.generation > 0)
    order by s.generation, s.call, s.n)
  from pgflow.saga_effect s
  where s.chain_id = chain and s.generation < carried_saga_.generation
    and (s.taken_back_in is null or s.taken_back_in >= carried_saga_.generation)
$$;
comment on function pgflow.carried_saga_(bigint, int)
  is 'Effects of earlier generations that a generation must compensate if it fails: [[name, key, place of its code, '
     'request, result, reference, whether it is its own], ...]; null = none';

create or replace function pgflow.note_taken_back_(chain bigint, origin bigint, generation int, cut int)
returns void
language sql
volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
  update pgflow.saga_effect s set taken_back_in = note_taken_back_.generation
  where s.chain_id = chain and s.taken_back_in is null and (exists (
    select from pgflow.unit d
    where d.run_id = origin and d.kind = 'o' and d.name = 'discharged' and d.payload->>'effect' = s.key
      and d.payload->>'verdict' = 'taken_back'
  ) or exists (
    select from pgflow.unit i
    where i.run_id = origin and i.seq > cut and i.kind = 'i' and i.payload->>'compensates' = s.key
      and not exists (select from pgflow.unit f where f.run_id = origin and f.call = i.call and f.kind = 'F')
  ))
$$;
comment on function pgflow.note_taken_back_(bigint, bigint, int, int)
  is 'Remembers what the dropped part of a generation had taken back, or had begun to: the next one must not do it '
     'again';

create or replace function pgflow.lend_saga_(origin pgflow.run, chain bigint)
returns void
language sql
volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
  insert into pgflow.saga_effect (chain_id, generation, call, name, key, code, request, result, ref)
  select chain, 0, row_number() over (order by s.generation, s.call, s.n), s.name, s.key, s.code, s.request,
    s.result, s.ref
  from pgflow.saga_effect s
  where s.chain_id = origin.chain_id and s.generation < origin.generation
    and (s.taken_back_in is null or s.taken_back_in >= origin.generation)
$$;
comment on function pgflow.lend_saga_(pgflow.run, bigint)
  is 'Shows a fork what its origin had from earlier generations, so that it can repeat the copied part';

create or replace function pgflow.take_in_saga_(chain bigint, generation int, carried jsonb)
returns void
language sql
volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
  update pgflow.saga_effect s set taken_back_in = take_in_saga_.generation - 1
  where s.chain_id = chain and s.taken_back_in is null and not exists (select from pgflow.saga_rows_(carried) e
    where e.key = s.key);
  insert into pgflow.saga_effect (chain_id, generation, call, name, key, code, request, result, ref)
  select chain, take_in_saga_.generation - 1, e.n, e.name, e.key, e.code, e.request, e.result, e.ref
  from pgflow.saga_rows_(carried) e
  where not exists (select from pgflow.saga_effect s where s.chain_id = chain and s.key = e.key)
$$;
comment on function pgflow.take_in_saga_(bigint, int, jsonb)
  is 'Takes in what an imported generation had from those before it, which are imported already';

create or replace function pgflow.leaves_effects_(child bigint, chain bigint)
returns boolean
language plpgsql
stable
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
begin
  return exists (select from pgflow.unit u where u.run_id = child and u.kind in ('i', 'K'))
    or exists (select from pgflow.saga_effect e where e.chain_id = chain);
end
$$;
comment on function pgflow.leaves_effects_(bigint, bigint)
  is 'True if a run, or a child of it, may have done what its parent takes back';

create or replace function pgflow.child_saga_(parent bigint, child bigint)
returns jsonb
language sql
stable
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
  with family as (
    select c.chain_id, c.generation, c.root, p.root as parent_root
    from pgflow.run c
    join pgflow.outcome o on o.run_id = c.run_id and o.status = 'completed'
    join pgflow.run p on p.run_id = parent
    join pgflow.run starter on starter.run_id = c.parent_run_id and starter.chain_id = p.chain_id
    where c.run_id = child and c.close_policy = 'c'
  ), journal as materialized (
    select u.seq, u.call, u.kind, u.name, u.key, u.payload
    from pgflow.unit u where u.run_id = child and u.kind in ('i', 'C', 'A', 'E', 'K') and exists (select from family)
  ), own as (
    select min(j.seq) as seq, min(j.name) filter (where j.kind = 'i') as name,
      min(j.key) filter (where j.kind = 'i') as key,
      min((j.payload->'request')::text) filter (where j.kind = 'i') as request,
      min(j.payload->>'code') filter (where j.kind = 'i') as code,
      min(j.payload::text) filter (where j.kind = 'C') as result,
      min(j.payload->>'ref') filter (where j.kind = 'A') as ref,
      bool_or(j.kind = 'i' and (j.payload->>'compensates' is not null or j.payload->>'is_undo' is not null)) as is_undo
    from journal j
    where j.kind <> 'K'
    group by j.call
    having bool_or(j.kind = 'i')
      and (bool_or(j.kind = 'C') or bool_or(j.kind = 'A')
        and not bool_or(j.kind = 'E' and j.payload->>'verdict' = 'failed'))
  ), done as (
    select 0 as seq, e.n, e.key, e.entry - 6 as entry
    from family f cross join lateral pgflow.saga_rows_(pgflow.carried_saga_(f.chain_id, f.generation)) e
    union all
    select o.seq, 1, o.key, jsonb_build_array(o.name, o.key, coalesce(o.code, ''), o.request, o.result, o.ref)
    from own o
    where not o.is_undo
    union all
    select k.seq, e.n, e.key, e.entry
    from family f cross join journal k
    cross join lateral pgflow.saga_rows_((k.payload->'saga'->'effects')::jsonb) e
    where k.kind = 'K' and k.payload->'saga'->>'of' = f.root::text
  )
  select jsonb_build_object('of', (select f.parent_root from family f),
    'effects', jsonb_agg(d.entry order by d.seq, d.n))
  from done d
  left join (select distinct i.payload->>'compensates' as key from journal i
    where i.kind = 'i') back on back.key = d.key
  where back.key is null
  having count(*) > 0
$$;
comment on function pgflow.child_saga_(bigint, bigint)
  is 'Effects of a child that has completed which its parent must take back if it fails: {of: root of the parent, '
     'effects: [[name, key, code, request, result, reference], ...]}; null = none';

create or replace function pgflow.check_sagas_()
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
  select 'what a saga carries was done by its chain', format('effect %s of chain %s', s.key, s.chain_id)
  from pgflow.saga_effect s
  where not exists (select from pgflow.run r where r.run_id = s.chain_id)
    or s.generation > 0 and not exists (select from pgflow.imported m where m.run_id = s.chain_id) and not exists (
      select from pgflow.run r join pgflow.unit u on u.run_id = r.run_id and u.call = s.call
      where (r.run_id = s.chain_id or r.chain_id = s.chain_id and r.generation > 1) and r.generation = s.generation
        and (u.kind = 'i' and u.key = s.key or u.kind = 'k'
          and exists (select from pgflow.unit i where i.kind = 'i' and i.key = s.key))
    )
  union all
  select 'a run that failed has taken back what it carried', format('effect %s, run %s', s.key, o.run_id)
  from pgflow.saga_effect s
  join chain_head h on h.chain_id = s.chain_id
  join pgflow.outcome o on o.run_id = h.run_id and o.status = 'failed'
  where s.generation > 0 and s.taken_back_in is null and s.generation < h.generation
    and not exists (select from pgflow.imported m where m.run_id = s.chain_id)
    and not exists (select from pgflow.unit i where i.run_id = h.run_id and i.kind = 'i'
      and i.payload->>'compensates' = s.key);
end
$$;
comment on function pgflow.check_sagas_()
  is 'Effects that are carried were done by the chain, and are taken back where it fails';

comment on column pgflow.saga_effect.chain_id is 'The chain whose run did it';
comment on column pgflow.saga_effect.generation
  is 'The generation that did it and continued as new; 0 = the origin of a fork';
comment on column pgflow.saga_effect.call
  is 'Number that its call had there; of an origin''s and of an imported one, its place';
comment on column pgflow.saga_effect.n
  is 'Number among those of that call: the effects of a child come with its result';
comment on column pgflow.saga_effect.taken_back_in
  is 'The generation that has taken it back, or begun to, and was then rewound or restarted; null = none';
comment on column pgflow.saga_effect.name is 'Name of the effect';
comment on column pgflow.saga_effect.key is 'Its idempotency key, from which the key of its compensation is made';
comment on column pgflow.saga_effect.code
  is 'Place of the effect in the code: module and name; empty if its run did not record it';
comment on column pgflow.saga_effect.request is 'Its arguments, by name';
comment on column pgflow.saga_effect.result is 'Value that it returned; null where it was accepted first';
comment on column pgflow.saga_effect.ref
  is 'The counterparty''s reference under which it was accepted; null = it was not';
