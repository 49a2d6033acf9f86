-- Verification: whether the journal is what was sealed (sql/ledgers/seals.sql), and what others need to see that.
--
-- Each run is compared with its seals, each round with its seals, each day with its rounds, and all days with an anchor
-- that was kept elsewhere. A page of runs or rounds is one statement of its own, so a verification of everything holds
-- no snapshot for long. What is found has a code:
--
--   run_missing, run_unsealed               a run is gone, or its seals are
--   units_missing, units_changed, units_added
--   outcome_missing, outcome_changed
--   redaction_unrecorded                    a value was replaced by its hash, and no unit says so
--   seal_missing, seal_added, seal_changed
--   evidence_missing, evidence_changed, evidence_added       an answer, an order or a rule, see sql/ledgers/evidence.sql
--   round_missing, round_changed, day_missing, day_changed
--   anchor_missing, anchor_changed          what is here is not what was here when the anchor was taken

create or replace function pgflow.is_recorded_redaction_(me bigint, seq int, what text, body text)
returns boolean
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
  -- In this run, or in one that it has the unit from.
  with recursive line as (
    select r.run_id, r.origin_run_id, r.origin_seq from pgflow.run r where r.run_id = me
    union
    select r.run_id, r.origin_run_id, r.origin_seq from line l join pgflow.run r on r.run_id = l.origin_run_id
    where is_recorded_redaction_.seq <= l.origin_seq
  )
  select exists (
    select from line l join pgflow.unit z on z.run_id = l.run_id and z.kind = 'Z'
    where z.payload->>'what' = is_recorded_redaction_.what
      and z.payload->>'seq' = is_recorded_redaction_.seq::text
      and z.payload->>'hash' = encode(pgflow.value_hash_(body), 'hex')
      and z.payload->>'left' = encode(pgflow.hash_(body), 'hex')
  )
$$;
comment on function pgflow.is_recorded_redaction_(bigint, int, text, text)
  is 'True if a unit says that this value was redacted to what is there now';

create or replace function pgflow.verify_run_(me bigint)
returns table (finding text, detail text)
language plpgsql
stable
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
#variable_conflict use_variable
declare
  r pgflow.run;
  o pgflow.outcome;
  s pgflow.seal;
  part record;
  before bytea;
  after int := 0;
  has_seal boolean := false;
  is_pending boolean;
  hides boolean := false;
  outcome_hash bytea;
begin
  select x.* into r from pgflow.run x where x.run_id = me;
  select x.* into o from pgflow.outcome x where x.run_id = me;
  select exists (select from pgflow.seal_pending p where p.run_id = me) into is_pending;
  outcome_hash := case when o.run_id is not null then pgflow.hash_(pgflow.outcome_text_(o)) end;
  before := pgflow.hash_(pgflow.run_text_(r));
  hides := coalesce(pgflow.is_redacted_(r.input::text), false)
    or coalesce(pgflow.is_redacted_(coalesce(o.output, o.error)::text), false);
  for s in select x.* from pgflow.seal x where x.run_id = me order by x.round loop
    has_seal := true;
    if not exists (
      select from pgflow.seal_round d where d.round = s.round and me = any(d.runs) and d.sealed_at = s.sealed_at
    ) then
      return query select 'seal_added', format('round %s does not have this seal', s.round);
    end if;
    continue when s.dropped_at is not null and r.run_id is null
      and exists (select from pgflow.dropped_history h where h.dropped_at = s.dropped_at);
    if r.run_id is null then
      return query select 'run_missing', 'it was sealed, and no removal of history is recorded for it';
      return;
    end if;
    if s.dropped_at is not null then
      return query select 'seal_changed', format('the seal of round %s is of a run that was removed', s.round);
    end if;
    select count(*)::int as units, sha256(coalesce(string_agg(u.hash, ''::bytea order by u.seq), ''::bytea)) as hash,
      bool_or(u.is_redacted) as hides
    into part
    from (
      select u.seq, pgflow.is_redacted_(u.payload::text) as is_redacted,
        pgflow.hash_(pgflow.unit_text_(u.seq, u.call, u.kind, u.name, u.key, u.args_hash, u.payload, u.starts,
          u.token, u.at, u.recorded_at, u.due_at)) as hash
      from pgflow.unit u where u.run_id = me and u.seq > after and u.seq <= s.upto_seq
    ) u;
    hides := hides or coalesce(part.hides, false);
    if part.units <> s.upto_seq - after then
      return query select 'units_missing',
        format('of units %s to %s, %s are there', after + 1, s.upto_seq, part.units);
    elsif pgflow.chain_(before, part.hash, s.upto_seq, s.outcome_hash) is distinct from s.hash then
      return query select 'units_changed', case
        when s.upto_seq = after then 'its seal is not that of its outcome, or of what it was started with'
        when after = 0 then format('units 1 to %s, or what it was started with, are not as they were sealed',
          s.upto_seq)
        else format('units %s to %s are not as they were sealed', after + 1, s.upto_seq) end;
    end if;
    before := s.hash;
    after := s.upto_seq;
  end loop;
  if r.run_id is null then
    if exists (select from pgflow.unit u where u.run_id = me) then
      return query select 'units_added', 'there are units of it, and no run';
    end if;
    return;
  end if;
  if not has_seal then
    if not is_pending then
      return query select 'run_unsealed', 'the sealer has passed it, and there is no seal of it';
    end if;
    return;
  end if;
  if s.outcome_hash is not null and o.run_id is null then
    return query select 'outcome_missing', 'its outcome was sealed and is gone';
  elsif s.outcome_hash is distinct from outcome_hash
     and not (is_pending and (s.outcome_hash is null or o.status = 'continued' and exists (
       select from pgflow.run h where h.chain_id = r.chain_id and h.generation > 1 and h.generation > r.generation
     ))) then
    return query select 'outcome_changed', 'its outcome is not as it was sealed';
  end if;
  if exists (select from pgflow.unit u where u.run_id = me and u.seq < 1)
     or not is_pending and exists (select from pgflow.unit u where u.run_id = me and u.seq > after) then
    return query select 'units_added', format('there are units beside the %s that were sealed', after);
  elsif (
    select count(*) <> coalesce(max(u.seq), after) - after from pgflow.unit u where u.run_id = me and u.seq > after
  ) then
    return query select 'units_missing', format('of the units behind %s, which are not sealed yet', after);
  end if;
  if hides then
    return query
    select 'redaction_unrecorded', format('%s is redacted, and no unit says so',
      case v.what when 'unit' then format('unit %s', v.seq) else 'its ' || v.what end)
    from (
      select u.seq, 'unit' as what, u.payload::text as body from pgflow.unit u where u.run_id = me
      union all select 0, 'input', r.input::text
      union all select 0, 'result', coalesce(o.output, o.error)::text
    ) v
    where pgflow.is_redacted_(v.body)
      and not pgflow.is_recorded_redaction_(me, v.seq, v.what, v.body);
  end if;
end
$$;
comment on function pgflow.verify_run_(bigint) is 'Compares a run with its seals; answers what is not as it was';

create or replace function pgflow.check_page_(after bigint, max int)
returns void
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
  -- Of no page at all nothing was found, either.
  if after is null or coalesce(max, 0) < 1 then
    raise exception using errcode = 'PF003', message = 'after must be a number, and max one from 1 on';
  end if;
end
$$;
comment on function pgflow.check_page_(bigint, int) is 'Refuses (PF003) a page of a verification that holds nothing';

create or replace function pgflow.verify_runs(
  after bigint default -9223372036854775808, max int default 1000, key text default null, tenant text default ''
)
returns jsonb
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
#variable_conflict use_variable
declare
  passed bigint := (select s.passed_run_id from pgflow.seal_state s);
  chain bigint;
  ids bigint[];
  found_ jsonb;
begin
  perform pgflow.check_page_(after, max);
  if key is not null then
    chain := pgflow.chain_of_(tenant, key);
    ids := array(
      select chain union select r.run_id from pgflow.run r where r.chain_id = chain and r.generation > 1 order by 1
    );
    if not exists (select from pgflow.seal s where s.run_id = any(ids)) then
      raise exception using errcode = 'PF006', message = format('no seal covers run %s yet', quote_literal(key)),
        hint = 'Workers seal it soon, once `pgflow audit on` was called; pgflow.seal_lag says how far they are.';
    end if;
  else
    ids := array(
      select x.run_id from (
        (select r.run_id from pgflow.run r where r.run_id > after and r.run_id <= passed order by r.run_id limit max)
        union
        (select distinct s.run_id from pgflow.seal s where s.run_id > after order by s.run_id limit max)
        union
        -- Of which there may be no run.
        (
          select distinct u.run_id from pgflow.unit u where u.run_id > after and u.run_id <= passed
          order by u.run_id limit max
        )
        union
        (
          select distinct a.run_id from pgflow.gate_answer a where a.run_id > after order by a.run_id limit max
        )
        union
        (select m.run_id from pgflow.imported m where m.run_id > after order by m.run_id limit max)
        union
        (select distinct e.run_id from pgflow.evidence e where e.run_id > after order by e.run_id limit max)
      ) x order by 1 limit max
    );
  end if;
  select coalesce(jsonb_agg(jsonb_build_array(i.id, r.key, r.generation, v.finding, v.detail) order by i.id), '[]')
  into found_
  from unnest(ids) as i (id)
  cross join lateral (
    -- Evidence of runs that the sealer has not reached is noted too.
    select n.* from pgflow.verify_run_(i.id) n
    where key is not null or i.id <= passed or exists (select from pgflow.seal s where s.run_id = i.id)
    union all
    select * from pgflow.verify_said_(i.id)
  ) v
  left join pgflow.run r on r.run_id = i.id;
  return jsonb_build_object('runs', (select count(*) from unnest(ids) i (id) where key is not null or i.id <= passed),
    'findings', found_,
    'next', case when key is null and cardinality(ids) = max then ids[max] end);
end
$$;
comment on function pgflow.verify_runs(bigint, int, text, text)
  is 'Compares a page of runs, or the one with a key, with their seals: {runs: how many, findings: [[run_id, key, '
     'generation, finding, detail], ...], next: where the next page begins, null at the end}';
--! grant verify_runs to pgflow_operator, pgflow_auditor

create or replace function pgflow.verify_rounds(after bigint default 0, max int default 1000)
returns jsonb
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
#variable_conflict use_variable
declare
  expected bigint := after;
  found_ jsonb := '[]';
  d record;
begin
  perform pgflow.check_page_(after, max);
  for d in
    select r.round, r.day, r.sealed_at, r.root, r.runs, r.dropped_at, pgflow.leaves_(r.round, r.runs) as leaves, m.seals
    from pgflow.seal_round r
    cross join lateral (
      select count(*) as seals
      from unnest(r.runs) as i (id) join pgflow.seal s on s.run_id = i.id and s.round = r.round
    ) m
    where r.round > after order by r.round limit max
  loop
    if d.round <> expected + 1 then
      found_ := found_ || jsonb_build_array(jsonb_build_array(d.round, 'round_missing',
        format('the round before it is %s', expected)));
    end if;
    expected := d.round;
    if d.day <> (d.sealed_at at time zone 'UTC')::date then
      found_ := found_ || jsonb_build_array(jsonb_build_array(d.round, 'round_changed',
        'its day is not that of its time'));
    end if;
    continue when d.dropped_at is not null and exists (
      select from pgflow.dropped_history h where h.dropped_at = d.dropped_at
    );
    if d.seals <> cardinality(d.runs) then
      found_ := found_ || jsonb_build_array(jsonb_build_array(d.round, 'seal_missing',
        format('of %s seals, %s are there', cardinality(d.runs), d.seals)));
    elsif pgflow.merkle_root_(d.leaves) is distinct from d.root then
      found_ := found_ || jsonb_build_array(jsonb_build_array(d.round, 'round_changed',
        'its root is not that of its seals and its evidence'));
    end if;
  end loop;
  return jsonb_build_object('rounds', expected - after, 'findings', found_,
    'next', case when exists (select from pgflow.seal_round r where r.round > expected) then expected end);
end
$$;
comment on function pgflow.verify_rounds(bigint, int)
  is 'Compares a page of rounds with their seals: {rounds, findings: [[round, finding, detail], ...], next}';
--! grant verify_rounds to pgflow_operator, pgflow_auditor

create or replace function pgflow.verify_days()
returns jsonb
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  found_ jsonb := '[]';
  d pgflow.seal_day;
  roots bytea[];
  last_round bigint := 0;
  head bytea;
  days int := 0;
begin
  for d in select x.* from pgflow.seal_day x order by x.day loop
    days := days + 1;
    roots := array(
      select pgflow.round_hash_(r) from pgflow.seal_round r
      where r.round between d.first_round and d.last_round and r.day = d.day order by r.round
    );
    if d.first_round <> last_round + 1 then
      found_ := found_ || jsonb_build_array(jsonb_build_array(d.day, 'day_missing',
        format('it begins with round %s, and the day before it ends with %s', d.first_round, last_round)));
    end if;
    if cardinality(roots) <> d.last_round - d.first_round + 1 or pgflow.merkle_root_(roots) is distinct from d.root then
      found_ := found_ || jsonb_build_array(jsonb_build_array(d.day, 'day_changed',
        'its root is not that of its rounds'));
    end if;
    if pgflow.day_head_(head, d.day, d.root) <> d.head then
      found_ := found_ || jsonb_build_array(jsonb_build_array(d.day, 'day_changed',
        'its head does not follow from the day before it'));
    end if;
    last_round := d.last_round;
    head := d.head;
  end loop;
  return jsonb_build_object('days', days, 'findings', found_);
end
$$;
comment on function pgflow.verify_days()
  is 'Compares the roots and heads of days with their rounds: {days, findings: [[day, finding, detail], ...]}';
--! grant verify_days to pgflow_operator, pgflow_auditor

create or replace function pgflow.anchor()
returns jsonb
language sql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
  select jsonb_build_object(
    'pgflow_anchor', 1, 'taken_at', to_char(pgflow.now_() at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'),
    'days', coalesce((
      select jsonb_agg(jsonb_build_object('day', d.day, 'first_round', d.first_round, 'last_round', d.last_round,
        'root', encode(d.root, 'hex'), 'head', encode(d.head, 'hex')) order by d.day)
      from pgflow.seal_day d), '[]'),
    'open', (
      select jsonb_build_object('first_round', min(r.round), 'last_round', max(r.round),
        'root', encode(pgflow.merkle_root_(array_agg(pgflow.round_hash_(r) order by r.round)), 'hex'))
      from pgflow.seal_round r
      where r.round > coalesce((select d.last_round from pgflow.seal_day d order by d.day desc limit 1), 0)
      having count(*) > 0)
  )
$$;
comment on function pgflow.anchor()
  is 'The roots and heads of all days, and the root of what is sealed since. Store it where no writer of this '
     'database has access';
--! grant anchor to pgflow_operator, pgflow_auditor

create or replace function pgflow.verify_anchor(anchor jsonb)
returns jsonb
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  found_ jsonb := '[]';
  kept jsonb;
  d pgflow.seal_day;
  roots bytea[];
  reach record;
begin
  select a.* into strict reach from pgflow.reach_(anchor) a;
  for kept in select e from jsonb_array_elements(anchor->'days') e loop
    select x.* into d from pgflow.seal_day x where x.day = (kept->>'day')::date;
    if d.day is null then
      found_ := found_ || jsonb_build_array(jsonb_build_array(kept->>'day', 'anchor_missing',
        'the anchor has this day, and the database has not'));
    elsif (kept->>'root', kept->>'head', kept->>'first_round', kept->>'last_round') is distinct from
      (encode(d.root, 'hex'), encode(d.head, 'hex'), d.first_round::text, d.last_round::text) then
      found_ := found_ || jsonb_build_array(jsonb_build_array(kept->>'day', 'anchor_changed',
        'its root or head is not the one in the anchor'));
    end if;
  end loop;
  kept := nullif(anchor->'open', 'null');
  if kept is not null then
    roots := array(select pgflow.round_hash_(r) from pgflow.seal_round r
      where r.round between (kept->>'first_round')::bigint and (kept->>'last_round')::bigint order by r.round);
    if cardinality(roots) <> (kept->>'last_round')::bigint - (kept->>'first_round')::bigint + 1 then
      found_ := found_ || jsonb_build_array(jsonb_build_array('rounds ' || (kept->>'first_round') || ' to '
        || (kept->>'last_round'), 'anchor_missing', 'the anchor has these rounds, and the database has not all'));
    elsif encode(pgflow.merkle_root_(roots), 'hex') is distinct from kept->>'root' then
      found_ := found_ || jsonb_build_array(jsonb_build_array('rounds ' || (kept->>'first_round') || ' to '
        || (kept->>'last_round'), 'anchor_changed', 'their root is not the one in the anchor'));
    end if;
  end if;
  return jsonb_build_object('days', jsonb_array_length(anchor->'days'),
    'rounds', reach.last_round, 'findings', found_);
exception when invalid_text_representation or numeric_value_out_of_range or datetime_field_overflow
  or invalid_datetime_format then
  raise exception using errcode = 'PF003', message = 'this anchor is damaged: ' || sqlerrm;
end
$$;
comment on function pgflow.verify_anchor(jsonb)
  is 'Compares an anchor that was kept elsewhere with the roots that are here: {days, rounds: the last one that it '
     'covers, findings: [[place, finding, detail], ...]}. PF003 if it is none';
--! grant verify_anchor to pgflow_operator, pgflow_auditor

create or replace function pgflow.proof(key text, tenant text default '', anchor jsonb default null)
returns jsonb
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
#variable_conflict use_variable
declare
  chain bigint := pgflow.chain_of_(tenant, key);
  runs jsonb := '[]';
  reach record;
  r pgflow.run;
begin
  if anchor is not null then
    select a.* into strict reach from pgflow.reach_(anchor) a;
  else
    select coalesce((select max(d.last_round) from pgflow.seal_day d), 0) as closed_round,
      coalesce((select max(x.round) from pgflow.seal_round x), 0) as last_round
    into strict reach;
  end if;
  for r in
    select x.* from pgflow.run x where x.run_id = chain
    union all
    select x.* from pgflow.run x where x.chain_id = chain and x.generation > 1
    order by generation
  loop
    continue when not exists (select from pgflow.seal s where s.run_id = r.run_id and s.round <= reach.last_round);
    runs := runs || jsonb_build_array(jsonb_build_object(
      'run', pgflow.run_text_(r),
      'outcome', (select pgflow.outcome_text_(o) from pgflow.outcome o where o.run_id = r.run_id),
      'units', (
        select coalesce(jsonb_agg(pgflow.unit_text_(u.seq, u.call, u.kind, u.name, u.key, u.args_hash, u.payload,
          u.starts, u.token, u.at, u.recorded_at, u.due_at) order by u.seq), '[]')
        from pgflow.unit u
        where u.run_id = r.run_id and u.seq <= (
          select max(s.upto_seq) from pgflow.seal s where s.run_id = r.run_id and s.round <= reach.last_round
        )
      ),
      'seals', (
        select jsonb_agg(jsonb_build_object(
          'upto_seq', s.upto_seq, 'outcome_hash', encode(s.outcome_hash, 'hex'), 'hash', encode(s.hash, 'hex'),
          'round', s.round, 'sealed_us', pgflow.micros_(s.sealed_at),
          'path', pgflow.path_in_round_(s.round, s.run_id),
          'day', d.day, 'first_round', f.first_round, 'last_round', f.last_round,
          'day_path', pgflow.path_in_day_(s.round, f.first_round, f.last_round)) order by s.round)
        from pgflow.seal s
        left join pgflow.seal_day d
          on s.round between d.first_round and d.last_round and d.last_round <= reach.closed_round
        cross join lateral (
          select coalesce(d.first_round, reach.closed_round + 1), coalesce(d.last_round, reach.last_round)
        ) as f (first_round, last_round)
        where s.run_id = r.run_id and s.round <= reach.last_round
      )
    ));
  end loop;
  if runs = '[]' then
    raise exception using errcode = 'PF006', message = case
      when anchor is null then format('no seal covers run %s yet', quote_literal(key))
      else format('no seal of run %s is as old as the anchor', quote_literal(key)) end,
      hint = 'Workers seal it soon, once `pgflow audit on` was called; pgflow.seal_lag says how far they are.';
  end if;
  return jsonb_build_object('pgflow_proof', 1, 'key', key, 'runs', runs);
end
$$;
comment on function pgflow.proof(text, text, jsonb)
  is 'All that is needed to check a run against an anchor, offline: the texts that are hashed, which hold no values, '
     'and the ways to the roots that the anchor has; null = one that is taken now. PF003 if it is none, PF006 if the '
     'run is not sealed yet';
--! grant proof to pgflow_operator, pgflow_auditor

create or replace function pgflow.reach_(anchor jsonb, out closed_round bigint, out last_round bigint)
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
  if jsonb_typeof(anchor) is distinct from 'object' or anchor->>'pgflow_anchor' is distinct from '1'
     or jsonb_typeof(anchor->'days') is distinct from 'array' then
    raise exception using errcode = 'PF003', message = 'not an anchor', hint = 'Write one with `pgflow audit anchor`.';
  end if;
  closed_round := coalesce((anchor->'days'->-1->>'last_round')::bigint, 0);
  last_round := coalesce((anchor->'open'->>'last_round')::bigint, closed_round);
exception when invalid_text_representation or numeric_value_out_of_range then
  raise exception using errcode = 'PF003', message = 'this anchor is damaged: ' || sqlerrm;
end
$$;
comment on function pgflow.reach_(jsonb)
  is 'The last round of the days that an anchor has, and the last one that it covers. PF003 if it is none';

create or replace function pgflow.path_in_round_(round bigint, run_id bigint)
returns jsonb
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
  select pgflow.merkle_path_(pgflow.leaves_(r.round, r.runs), array_position(r.runs, path_in_round_.run_id))
  from pgflow.seal_round r where r.round = path_in_round_.round
$$;
comment on function pgflow.path_in_round_(bigint, bigint) is 'The way from a run''s seal to the root of its round';

create or replace function pgflow.path_in_day_(round bigint, first_round bigint, last_round bigint)
returns jsonb
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
  select pgflow.merkle_path_(
    array(select pgflow.round_hash_(r) from pgflow.seal_round r
      where r.round between path_in_day_.first_round and path_in_day_.last_round order by r.round),
    (path_in_day_.round - path_in_day_.first_round + 1)::int)
$$;
comment on function pgflow.path_in_day_(bigint, bigint, bigint)
  is 'The way from a round''s root to the root of its day, or of the rounds that an anchor has of an open one';
