-- Sagas that are carried: what a run owes to take back lives on when it continues as new.
--
-- The stack of a generation is what the ones before it handed on (`saga_effect`, written by the commit that
-- continues) and what it does itself, which its journal knows. What is handed on is copied from that journal:
-- request and result of each effect that was done. A row is never changed, save once: where a generation that
-- had taken it back is rewound or restarted, the row says so (`taken_back_in`), and is none of the next one's.
--
-- Generation 0 stands for the origin of a fork, whose journal the fork repeats. A fork never takes back what its
-- origin did; it needs the rows only to repeat compensations that are in the copied part.

create or replace function pgflow.hand_on_saga_(me bigint, chain bigint, generation int, entries jsonb)
returns void
language sql
volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
  insert into pgflow.saga_effect (chain_id, generation, call, name, key, code, request, result, ref)
  select chain, hand_on_saga_.generation, f.call, (f.intent).name, (f.intent).key, e.entry->>1, (f.intent).payload->'request', f.result, f.ref
  from jsonb_array_elements(entries) as e (entry)
  join (
    select u.call, (array_agg(u order by u.seq) filter (where u.kind = 'i'))[1] as intent,
      (array_agg(u.payload order by u.seq) filter (where u.kind = 'C'))[1] as result,
      (array_agg(u.payload->>'ref' order by u.seq) filter (where u.kind = 'A'))[1] as ref
    from pgflow.unit u
    where u.run_id = me and u.kind in ('i', 'C', 'A')
    group by u.call
  ) f on f.call = (e.entry->0)::int
$$;
comment on function pgflow.hand_on_saga_(bigint, bigint, int, jsonb)
  is 'Hands effects of a run, [[call, where its code stands], ...], on to the next generation of its chain';

create or replace function pgflow.carried_saga_(chain bigint, generation int)
returns jsonb
language sql
stable
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
  select jsonb_agg(jsonb_build_array(s.name, s.key, s.code, s.request::text, s.result::text, s.ref) order by s.generation, s.call)
  from pgflow.saga_effect s
  where s.chain_id = chain and s.generation < carried_saga_.generation
    and (s.taken_back_in is null or s.taken_back_in >= carried_saga_.generation)
$$;
comment on function pgflow.carried_saga_(bigint, int)
  is 'What a generation must take back of those before it if it fails: [[name, key, where its code stands, request, result, reference], ...]; null = nothing';

create or replace function pgflow.note_taken_back_(chain bigint, origin bigint, generation int, cut int)
returns void
language sql
volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
  update pgflow.saga_effect s set taken_back_in = note_taken_back_.generation
  where s.chain_id = chain and s.taken_back_in is null and exists (
    select from pgflow.unit i
    where i.run_id = origin and i.seq > cut and i.kind = 'i' and i.payload->>'compensates' = s.key
      and not exists (select from pgflow.unit f where f.run_id = origin and f.call = i.call and f.kind = 'F')
  )
$$;
comment on function pgflow.note_taken_back_(bigint, bigint, int, int)
  is 'Remembers what the dropped part of a generation had taken back, or had begun to: the next one must not do it again';

create or replace function pgflow.lend_saga_(origin pgflow.run, chain bigint)
returns void
language sql
volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
  insert into pgflow.saga_effect (chain_id, generation, call, name, key, code, request, result, ref)
  select chain, 0, row_number() over (order by s.generation, s.call), s.name, s.key, s.code, s.request, s.result, s.ref
  from pgflow.saga_effect s
  where s.chain_id = origin.chain_id and s.generation < origin.generation
    and (s.taken_back_in is null or s.taken_back_in >= origin.generation)
$$;
comment on function pgflow.lend_saga_(pgflow.run, bigint) is 'Shows a fork what its origin had from earlier generations, so that it can repeat the copied part';

create or replace function pgflow.take_in_saga_(chain bigint, generation int, carried jsonb)
returns void
language sql
volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
  update pgflow.saga_effect s set taken_back_in = take_in_saga_.generation - 1
  where s.chain_id = chain and s.taken_back_in is null and not exists (select from jsonb_array_elements(carried) e where e->>1 = s.key);
  insert into pgflow.saga_effect (chain_id, generation, call, name, key, code, request, result, ref)
  select chain, take_in_saga_.generation - 1, e.n, e.entry->>0, e.entry->>1, e.entry->>2, (e.entry->>3)::json, (e.entry->>4)::json, e.entry->>5
  from jsonb_array_elements(carried) with ordinality as e (entry, n)
  where not exists (select from pgflow.saga_effect s where s.chain_id = chain and s.key = e.entry->>1)
$$;
comment on function pgflow.take_in_saga_(bigint, int, jsonb) is 'Takes in what an imported generation had from those before it, which are imported already';
