-- Redaction: replace a value of a finished run by its hash, in all copies of the unit, and record author and reason
-- in a unit.
--
-- The placeholder is an envelope under the empty key, which no codec can have: opening it is refused wherever a value
-- would reach code, and readers show it like other envelopes. It begins with the hash. The chain of seals knows only
-- the hash of a value, so the chain does not change.
--
-- Locks: `pgflow.retention`, before any look. Forks, rewinds, removals and writes into the journal of a finished run
-- share it, so none copies the value meanwhile. Then the outcomes.

create or replace function pgflow.redacted_(body json, kind "char")
returns json
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
declare
  beside jsonb := '{}';
begin
  -- What ledgers and later rewinds read of a unit stays beside the hash.
  if kind = 'i' then
    select coalesce(jsonb_object_agg(m.name, m.part), '{}') into beside from jsonb_each(body::jsonb) as m (name, part)
    where m.name in ('risk', 'code', 'policy', 'decision', 'compensates', 'expects', 'is_undo', 'origin', 'leave');
  elsif kind = 'd' then
    select coalesce(jsonb_object_agg(m.name, m.part), '{}') into beside from jsonb_each(body::jsonb) as m (name, part)
    where m.name in ('policy', 'model', 'usage') and not pgflow.is_envelope_(body::jsonb);
  elsif kind = 'K' then
    select coalesce(jsonb_object_agg(m.name, m.part), '{}') into beside from jsonb_each(body::jsonb) as m (name, part)
    where m.name in ('run_id', 'status', 'reason');
    if jsonb_typeof(body::jsonb->'saga'->'effects') = 'array' then
      beside := beside || jsonb_build_object('saga', jsonb_build_object('effects',
        (select jsonb_agg('null'::jsonb) from jsonb_array_elements(body::jsonb->'saga'->'effects'))));
    end if;
  elsif kind = 'o' then
    select coalesce(jsonb_object_agg(m.name, m.part), '{}') into beside from jsonb_each(body::jsonb) as m (name, part)
    where m.name not in ('edit', 'input', 'was');
  elsif kind in ('g', 'G', 'O', 'D') then
    -- Approvers and answers of gates; obligations, their creditors, and how they were closed.
    select coalesce(jsonb_object_agg(m.name, m.part), '{}') into beside from jsonb_each(body::jsonb) as m (name, part)
    where m.name not in ('request', 'value', 'detail', 'on_breach', 'evidence');
  elsif kind in ('h', 'b') then
    -- Which update it is, and what became of it.
    select coalesce(jsonb_object_agg(m.name, m.part), '{}') into beside from jsonb_each(body::jsonb) as m (name, part)
    where m.name in ('id', 'status');
  elsif kind in ('U', 'E') then
    select coalesce(jsonb_object_agg(m.name, m.part), '{}') into beside from jsonb_each(body::jsonb) as m (name, part)
    where m.name in ('reason', 'verdict', 'by', 'word');
  end if;
  return '{"$codec":"","data":"","redacted":"' || encode(pgflow.hash_(body::text), 'hex') || '"'
    || case when beside = '{}' then '' else ',' || substr(beside::text, 2, length(beside::text) - 2) end || '}';
end
$$;
comment on function pgflow.redacted_(json, "char")
  is 'Stand-in for a value that was redacted: an envelope that no codec can open, with the hash of its text';

create or replace function pgflow.is_same_(value json, other json)
returns boolean
language sql
immutable
return pgflow.unwrapped_(value::text) = pgflow.unwrapped_(other::text);
comment on function pgflow.is_same_(json, json)
  is 'True if two values have the same text, be it that a rotation of keys has reached only one of them';

create or replace function pgflow.redact_copies_(runs bigint[], body json, asked json)
returns void
language sql
volatile
set search_path = pg_catalog, pg_temp
as $$
  update pgflow.carried c
  set payload = case when pgflow.is_same_(c.payload, body) then pgflow.redacted_(c.payload, null) else c.payload end,
    request = case when pgflow.is_same_(c.request, asked) then pgflow.redacted_(c.request, null) else c.request end
  where c.run_id = any(runs) and (pgflow.is_same_(c.payload, body) or pgflow.is_same_(c.request, asked));
  update pgflow.saga_effect s
  set result = case when pgflow.is_same_(s.result, body) then pgflow.redacted_(s.result, null) else s.result end,
    request = case when pgflow.is_same_(s.request, asked) then pgflow.redacted_(s.request, null) else s.request end
  where s.chain_id in (select r.chain_id from pgflow.run r where r.run_id = any(runs))
    and (pgflow.is_same_(s.result, body) or pgflow.is_same_(s.request, asked));
$$;
comment on function pgflow.redact_copies_(bigint[], json, json)
  is 'Takes a value out of what later generations have of it beside the journal, for reuse and for taking back';

create or replace function pgflow.redact(
  key text, seq int, why text, by text default null, what text default 'unit', tenant text default '',
  generation int default null
)
returns text
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
  chain bigint;
  shown constant text := quote_literal(key);
  me bigint;
  heirs bigint[];
  family bigint[];
  body json;
  heir record;
  old record;
  became json;
  was text;
  last_seq int;
  t timestamptz;
begin
  if what is null or what not in ('unit', 'input', 'result') then
    raise exception using errcode = 'PF003',
      message = format('what is redacted is a unit, the input or the result, not %s', quote_nullable(what));
  end if;
  -- A snapshot from before our locks may miss a run that began with the value meanwhile.
  if current_setting('transaction_isolation') <> 'read committed' then
    raise exception using errcode = 'PF006', message = 'a value is redacted at the level read committed only';
  end if;
  if coalesce(btrim(why), '') = '' then
    raise exception using errcode = 'PF003', message = 'say why the value is redacted';
  end if;
  if (seq is null) = (what = 'unit') then
    raise exception using errcode = 'PF003',
      message = case what when 'unit' then 'say which unit: its place in the journal' else 'seq must be null here' end;
  end if;
  perform pg_advisory_xact_lock(pgflow.latch_('retention'));
  chain := pgflow.chain_of_(tenant, key);
  perform pgflow.refuse_held_(chain);
  select r.run_id into me from pgflow.run r
  where (r.run_id = chain or r.chain_id = chain and r.generation > 1)
    and (generation is null and r.run_id = pgflow.newest_run_(chain) or r.generation = generation);
  if me is null then
    raise exception using errcode = 'PF001', message = format('run %s has no generation %s', shown, generation);
  end if;
  -- The unit is in the run that recorded it, and in all runs that began with its journal. So is the input.
  if what = 'unit' then
    loop
      exit when not exists (
        select from pgflow.run r join pgflow.run g on g.run_id = r.origin_run_id
        where r.run_id = me and r.origin_seq >= seq
      );
      me := (select r.origin_run_id from pgflow.run r where r.run_id = me);
    end loop;
  end if;
  was := (select pgflow.unwrapped_(r.input::text) from pgflow.run r where r.run_id = me);
  heirs := array(
    with recursive line as (
      select r.run_id from pgflow.run r
      where r.run_id = chain or r.chain_id = chain and r.generation > 1 or r.run_id = me
      union
      -- Those of an origin that is gone, too.
      select r.run_id from pgflow.run o join pgflow.run r on r.origin_run_id = o.origin_run_id where o.run_id = me
      union
      select r.run_id from line l join pgflow.run r on r.origin_run_id = l.run_id
    )
    select l.run_id from line l
  );
  family := case what
    when 'result' then array[me]
    when 'input' then array(
      select r.run_id from pgflow.run r
      where r.run_id = any(heirs) and pgflow.unwrapped_(r.input::text) = was order by 1
    )
    else array(
      with recursive line as (
        select me as run_id
        union
        select r.run_id from pgflow.run o join pgflow.run r on r.origin_run_id = o.origin_run_id and r.origin_seq >= seq
        where o.run_id = me and o.origin_seq >= seq
        union
        select r.run_id from line l join pgflow.run r on r.origin_run_id = l.run_id and r.origin_seq >= seq
      )
      select l.run_id from line l order by 1
    ) end;
  body := (
    select case what when 'unit' then (select u.payload from pgflow.unit u where u.run_id = me and u.seq = redact.seq)
      when 'input' then r.input else coalesce(o.output, o.error) end
    from pgflow.run r left join pgflow.outcome o on o.run_id = r.run_id where r.run_id = me
  );
  select r.key into heir from pgflow.run r
  where r.run_id = any(heirs) and not exists (select from pgflow.outcome o where o.run_id = r.run_id)
    and (r.run_id = any(family) or r.chain_id = chain
      or exists (select from pgflow.carried c where c.run_id = r.run_id and pgflow.is_same_(c.payload, body)))
  order by r.run_id limit 1;
  if found then
    raise exception using errcode = 'PF006',
      message = format('run %s is open: its code may need the value again', quote_literal(heir.key)),
      hint = 'Redact it once the run has ended, or cancel the run first.';
  end if;
  perform from pgflow.outcome o where o.run_id = any(family) order by o.run_id for update;
  t := pgflow.now_();
  for heir in
    select r.run_id, r.input, o.output, o.error, o.status from pgflow.run r
    join pgflow.outcome o on o.run_id = r.run_id where r.run_id = any(family) order by r.run_id
  loop
    select v.body, v.kind, v.call into old from (
      select u.payload as body, u.kind::"char" as kind, u.call::int as call from pgflow.unit u
      where what = 'unit' and u.run_id = heir.run_id and u.seq = redact.seq
      union all
      select heir.input, null::"char", 0 where what = 'input'
      union all
      select coalesce(heir.output, heir.error), null::"char", 0 where what = 'result'
    ) v;
    if not found then
      raise exception using errcode = 'PF003', message = format('run %s has no unit %s', shown, seq),
        hint = '`pgflow logs` and the view pgflow.timeline show them.';
    end if;
    if old.body is null then
      raise exception using errcode = 'PF003', message = format('%s of run %s holds no value',
        case what when 'unit' then format('unit %s', seq) else 'the ' || what end, shown);
    end if;
    if old.kind is not null
      and old.kind not in ('c', 'H', 'f', 'a', 'S', 'v', 'e', 'C', 'F', 'r', 'd', 'i', 'U', 'E', 'K', 'o', 'g', 'G',
        'O', 'D', 'h', 'b') then
      raise exception using errcode = 'PF003',
        message = format('unit %s of run %s is %s, which holds no value that can be redacted', seq, shown,
          (select k.name from pgflow.unit_kind k where k.kind = old.kind)),
        hint = 'Values are in results, verdicts, errors, signals, updates, state, decisions, requests, answers, '
          'obligations, results of children.';
    end if;
    if old.kind = 'O' and exists (
      select from pgflow.owed w where w.kind = 'obligation' and w.detail->>'key' = old.body->>'key'
    ) then
      raise exception using errcode = 'PF006',
        message = format('obligation %s is open: what it says is needed until it is closed', old.body->>'key'),
        hint = 'Redact it once it is discharged or waived.';
    end if;
    if pgflow.is_redacted_(old.body::text) then
      continue when heir.run_id <> me;
      raise exception using errcode = 'PF006', message = format('%s of run %s is redacted already',
        case what when 'unit' then format('unit %s', seq) else 'the ' || what end, shown);
    end if;
    became := pgflow.redacted_(old.body, old.kind);
    if what = 'unit' then
      perform set_config('pgflow.rewrites', 'on', true);
      update pgflow.unit u set payload = became where u.run_id = heir.run_id and u.seq = redact.seq;
      perform set_config('pgflow.rewrites', 'off', true);
      if old.kind = 'H' then
        -- The history of the entity has the verdict of an update too.
        update pgflow.entity_history h set verdict = became
        where h.run_id = heir.run_id and h.call = old.call and h.verdict is not null;
      elsif old.kind in ('g', 'G') then
        -- So have the answers at the gate: edits of the request, and the result of a take-over.
        update pgflow.gate_answer a set value = pgflow.redacted_(a.value, null)
        where a.value is not null and not pgflow.is_redacted_(a.value::text) and a.gate in (
          select u.key from pgflow.unit u where u.run_id = heir.run_id and u.call = old.call and u.kind = 'g'
        );
      end if;
    elsif what = 'input' then
      update pgflow.run r set input = became where r.run_id = heir.run_id;
    else
      update pgflow.outcome o
      set output = case when heir.output is not null then became end,
        error = case when heir.output is null then became end
      where o.run_id = heir.run_id;
    end if;
    select coalesce(max(u.seq), 0) into last_seq from pgflow.unit u where u.run_id = heir.run_id;
    perform pgflow.append_(heir.run_id, last_seq + 1, 0, 'Z', what, json_build_object('what', what,
      'seq', coalesce(seq, 0), 'hash', encode(pgflow.hash_(old.body::text), 'hex'),
      'left', encode(pgflow.hash_(became::text), 'hex'), 'why', pgflow.told_(why, 4096),
      'by', pgflow.sender_(by)), 0, t, t);
  end loop;
  perform pgflow.redact_copies_(heirs, body, case when what = 'unit' then body->'request' end);
  perform pgflow.look_again_(family);
  perform pgflow.unname_blobs_(heirs);
  return encode(pgflow.value_hash_(became::text), 'hex');
end
$$;
comment on function pgflow.redact(text, int, text, text, text, text, int)
  is 'Replaces a value of a run that has ended by its hash: the payload of a unit, in all runs that began with it, or '
     'the input or result of the run; a unit says who and why. Answers the hash. What is removed stays in dead rows '
     'until a vacuum, and in backups. PF001 if there is no such run, PF003 if there is no such value, PF006 while a '
     'run is open that may need it';
--! grant redact to pgflow_operator

create or replace function pgflow.redact_update(
  key text, update_id text, why text, by text default null, tenant text default '', out removed int
)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
  chain bigint;
  newest bigint;
  told pgflow.run_update;
  said record;
  became json;
  last_seq int;
  t timestamptz;
begin
  if current_setting('transaction_isolation') <> 'read committed' then
    raise exception using errcode = 'PF006', message = 'a value is redacted at the level read committed only';
  end if;
  if coalesce(btrim(why), '') = '' then
    raise exception using errcode = 'PF003', message = 'say why the update is redacted';
  end if;
  perform pg_advisory_xact_lock(pgflow.latch_('retention'));
  chain := pgflow.chain_of_(tenant, key);
  perform pgflow.refuse_held_(chain);
  newest := pgflow.newest_run_(chain);
  perform from pgflow.outcome o where o.run_id = newest and o.status <> 'continued' for update;
  if not found then
    raise exception using errcode = 'PF006',
      message = format('run %s is open: its code may need the update again', quote_literal(key)),
      hint = 'Redact it once the run has ended, or cancel the run first.';
  end if;
  select u.* into told from pgflow.run_update u where u.chain_id = chain and u.update_id = update_id for update;
  if not found then
    raise exception using errcode = 'PF001',
      message = format('no update of run %s has the id %s', quote_literal(key), quote_nullable(update_id));
  end if;
  removed := 0;
  for said in
    select r.generation, u.seq from pgflow.run r join pgflow.unit u on u.run_id = r.run_id
    where (r.run_id = chain or r.chain_id = chain and r.generation > 1) and u.seq > coalesce(r.origin_seq, 0)
      and u.kind in ('h', 'b') and u.payload->>'id' = update_id and not pgflow.is_redacted_(u.payload::text)
    order by r.generation, u.seq
  loop
    perform pgflow.redact(key, said.seq, why, by, 'unit', tenant, said.generation);
    removed := removed + 1;
  end loop;
  t := pgflow.now_();
  -- The error of its validator is in no journal; nor are updates that were not taken, which are closed now.
  update pgflow.run_update u set status = 'refused', replied_at = t
  where u.chain_id = chain and u.update_id = update_id and u.status is null;
  for said in
    select told.error as body, 0 as nth where told.error is not null
    union all
    select s.payload, 1 from pgflow.signal s
    where s.chain_id = chain and s.kind = 'u' and s.payload->>'id' = update_id
    union all
    select d.payload, 1 from pgflow.undelivered d
    where d.chain_id = chain and d.kind = 'u' and d.payload->>'id' = update_id
    order by 2
  loop
    continue when pgflow.is_redacted_(said.body::text);
    became := pgflow.redacted_(said.body, case when said.nth = 1 then 'h'::"char" end);
    removed := removed + 1;
    select coalesce(max(u.seq), 0) into last_seq from pgflow.unit u where u.run_id = newest;
    perform pgflow.append_(newest, last_seq + 1, 0, 'Z', 'update', json_build_object('what', 'update', 'seq', 0,
      'id', update_id, 'hash', encode(pgflow.hash_(said.body::text), 'hex'),
      'left', encode(pgflow.hash_(became::text), 'hex'), 'why', pgflow.told_(why, 4096),
      'by', pgflow.sender_(by)), 0, t, t);
  end loop;
  update pgflow.run_update u set error = pgflow.redacted_(u.error, null)
  where u.chain_id = chain and u.update_id = update_id and not pgflow.is_redacted_(u.error::text);
  -- A wake may be moving it from the one to the other.
  update pgflow.signal s set payload = pgflow.redacted_(s.payload, 'h')
  where s.chain_id = chain and s.kind = 'u' and s.payload->>'id' = update_id
    and not pgflow.is_redacted_(s.payload::text);
  update pgflow.undelivered d set payload = pgflow.redacted_(d.payload, 'h')
  where d.chain_id = chain and d.kind = 'u' and d.payload->>'id' = update_id
    and not pgflow.is_redacted_(d.payload::text);
  if removed = 0 then
    raise exception using errcode = 'PF006',
      message = format('update %s of run %s is redacted already, or holds no value', quote_literal(update_id),
        quote_literal(key));
  end if;
  perform pgflow.look_again_(array[newest]);
  perform pgflow.unname_blobs_(array[chain, newest]);
end
$$;
comment on function pgflow.redact_update(text, text, text, text, text)
  is 'Replaces by their hashes all values of an update of a run that has ended: its arguments, and its value or error, '
     'also of one that was rejected or never taken. Answers how many. PF001 if there is none of this id, PF006 '
     'while the run is open';
--! grant redact_update to pgflow_operator
