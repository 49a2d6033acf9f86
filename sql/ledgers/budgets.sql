-- Budgets: what runs may spend, decided before they spend it.
--
-- A pool has limits by unit (usd, tokens, calls, seconds, or any other name) and perhaps a parent. A draw on a pool
-- is also a draw on all of its ancestors. `spend` has a row for each pool, period and unit. Its constraints are the
-- promise:
--
--   charged + reserved <= allowed              at every instant, for every writer
--   admitted = charged + returned + reserved   nothing is lost between them
--
-- The database admits a call (`admit_all_`, for the question of a flush) by reserving amounts on the pool and its
-- ancestors, or refuses it with a reason. The reservation has the key (run, call), so another attempt of the body, in
-- this worker or another, finds it. Spending of a body is a unit `budget_charged` and a row of `charge`, written by
-- the commit of its outcome or failed attempt. That commit moves the amount from reserved to charged. The end of the
-- call returns the rest of the reservation.
--
-- A call may cost more than it has reserved, and the money is gone by then. The rest is drawn from the pool if there
-- is room. Any excess goes to `overrun`: the pool is full and admits nothing until a new period, a grant or a
-- returned reservation makes room. The overrun is covered first.
--
-- Locks: rows of `pool`, in the order of their names, in a statement of its own; the lock on a pool's row covers its
-- rows of `spend`. They come after leases, the keys of children and obligations, and their holder waits for nothing
-- else. If one snapshot serves the whole transaction, changed rows make it fail (40001), and it is repeated.

create or replace function pgflow.check_amounts_(amounts jsonb, what text)
returns void
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
declare
  bad text;
begin
  if amounts is null or jsonb_typeof(amounts) <> 'object' then
    raise exception using errcode = 'PF003', message = format('%s must be an object of amounts by unit', what),
      hint = 'For example: {"usd": 0.04, "tokens": 12000}';
  end if;
  select e.key into bad from jsonb_each(amounts) e
  where e.key !~ '^[a-z][a-z0-9_]{0,62}$' or jsonb_typeof(e.value) <> 'number'
    or case when jsonb_typeof(e.value) = 'number' then e.value::numeric < 0 or e.value::numeric >= 1e15 end
  limit 1;
  if bad is not null then
    raise exception using errcode = 'PF003',
      message = format('%s: the unit %s must be a name in lower case with an amount of 0 to 10^15', what,
        quote_literal(bad));
  end if;
  if octet_length(amounts::text) > 4096 then
    raise exception using errcode = 'PF003',
      message = format('%s are %s bytes of JSON, more than 4,096', what, octet_length(amounts::text));
  end if;
end
$$;
comment on function pgflow.check_amounts_(jsonb, text) is 'Refuses (PF003) amounts that no pool can have';

create or replace function pgflow.period_of_(per text, tz text, t timestamptz)
returns timestamptz
language sql
stable
return case when per is null then '-infinity' else date_trunc(per, t, tz) end;
comment on function pgflow.period_of_(text, text, timestamptz) is 'Beginning of the calendar period that a time is in';

create or replace function pgflow.lock_pools_(names text[])
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
begin
  perform from pgflow.pool p where p.name = any(names) order by p.name collate "C" for no key update;
end
$$;
comment on function pgflow.lock_pools_(text[]) is 'Locks pools in the order of their names';

create or replace function pgflow.periods_of_(names text[], t timestamptz)
returns timestamptz[]
language sql
stable
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
  select array_agg(pgflow.period_of_(p.per, p.tz, t) order by x.n)
  from unnest(names) with ordinality as x (name, n)
  left join lateral (select l.per, l.tz from pgflow.pool l where l.name = x.name offset 0) p on true
$$;
comment on function pgflow.periods_of_(text[], timestamptz)
  is 'The period that each of these pools is in, whether there is such a pool or not';

create or replace function pgflow.open_spend_(names text[], periods timestamptz[], units text[])
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
begin
  insert into pgflow.spend (pool, period_at, unit, allowed)
  select x.pool, x.period_at, u.unit, (p.limits->>u.unit)::numeric
  from unnest(names, periods) as x (pool, period_at)
  cross join lateral (select l.limits from pgflow.pool l where l.name = x.pool offset 0) p
  cross join lateral (select jsonb_object_keys(p.limits) union select a from unnest(units) a) as u (unit)
  where not exists (
    select from pgflow.spend s where s.pool = x.pool and s.period_at = x.period_at and s.unit = u.unit offset 0
  )
  on conflict do nothing;
  if current_setting('transaction_isolation') <> 'read committed' then
    -- Sums that have changed since make it fail here, instead of being judged as they were.
    perform from unnest(names, periods) as x (pool, period_at)
    join pgflow.spend s on s.pool = x.pool and s.period_at = x.period_at
    for no key update of s;
  end if;
end
$$;
comment on function pgflow.open_spend_(text[], timestamptz[], text[])
  is 'Makes the rows of a period that are not there yet: a pool is full again with the first draw of a period. After '
     'it, sums are those of now';

create or replace function pgflow.lacking_(
  names text[], periods timestamptz[], amounts jsonb,
  out reason text, out pool text, out unit text, out allowed numeric, out remaining numeric, out asked numeric
)
language plpgsql
stable
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
#variable_conflict use_column
begin
  select case when p.name is null then 'no_pool' else 'revoked' end, x.name into reason, pool
  from unnest(names) with ordinality as x (name, n)
  left join lateral (select l.name, l.revoked_at from pgflow.pool l where l.name = x.name offset 0) p on true
  where p.name is null or p.revoked_at is not null order by x.n limit 1;
  if reason is null then
    select 'used_up', s.pool, s.unit, s.allowed, s.allowed - s.charged - s.reserved, a.asked
    into reason, pool, unit, allowed, remaining, asked
    from unnest(names, periods) with ordinality as x (pool, period_at, n)
    cross join lateral (
      select l.* from pgflow.spend l
      where l.pool = x.pool and l.period_at = x.period_at and l.allowed is not null offset 0
    ) s
    cross join lateral (select coalesce((amounts->>s.unit)::numeric, 0) as asked) a
    where s.allowed - s.charged - s.reserved < a.asked or s.allowed <= s.charged + s.reserved
    order by x.n, s.unit limit 1;
  end if;
end
$$;
comment on function pgflow.lacking_(text[], timestamptz[], jsonb)
  is 'Reason why pools do not admit these amounts: no_pool, revoked, or used_up with the unit and what is left; null = '
     'they do. A pool with a limit that is used up admits nothing at all';

create or replace function pgflow.take_pools_(batch jsonb)
returns text[]
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
declare
  names text[];
begin
  -- A sweep that has the row of an obligation may wait for pools: such rows come before them.
  perform from pgflow.owed o
  where o.run_id = any(array(select r.run_id from pgflow.run_rows_(batch->'runs') r)) and o.kind = 'obligation'
  order by o.run_id, o.call for update;
  with drawing as (
    select d.run_id from pgflow.draw_rows_(batch->'draws') d
    union
    -- Those that this batch ends by force return what they have.
    select q.run from pgflow.question_rows_(batch->'questions') q
    where exists (select from pgflow.signal s where s.chain_id = q.chain and s.kind = 'x'
      and s.name = 'force' offset 0)
  ), asked as (
    select r.pool as name from drawing d
    cross join lateral (select n.pool from pgflow.run n where n.run_id = d.run_id offset 0) r
    union
    select a.pool
    from pgflow.question_rows_(batch->'questions') q cross join lateral pgflow.admission_rows_(q.admits) a
  )
  select array_agg(distinct n) into names
  from (
    select unnest(p.pools) as n from asked a
    cross join lateral (select l.pools from pgflow.pool l where l.name = a.name offset 0) p
    union
    select unnest(v.pools) from drawing d
    cross join lateral (select o.pools from pgflow.reservation o where o.run_id = d.run_id offset 0) v
  ) g;
  perform pgflow.lock_pools_(names);
  return coalesce(names, '{}');
end
$$;
comment on function pgflow.take_pools_(jsonb) is 'Locks the pools that the runs of a batch draw on, all in one order';

create or replace function pgflow.charge_one_(me bigint, at_seq int, clock timestamptz, t timestamptz)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
declare
  unit record;
  open record;
  names text[];
  periods timestamptz[];
  kept jsonb := '{}';
  spent jsonb;
begin
  select u.call, u.name, u.payload::jsonb as said into strict unit
  from pgflow.unit u where u.run_id = me and u.seq = at_seq;
  -- Amounts travel as texts, which are exact in every language.
  spent := (select jsonb_object_agg(a.key, a.value::numeric) from jsonb_each_text(unit.said->'amounts') a);
  select v.pools, v.periods, v.amounts into open
  from pgflow.reservation v where v.run_id = me and v.call = (unit.said->>'call')::int;
  if found then
    names := open.pools;
    periods := open.periods;
    kept := open.amounts;
  else
    -- A child may name a pool that does not exist: then none of its calls is admitted, and charges go to the other
    -- pools.
    names := array(
      select x.name from pgflow.run r
      cross join lateral (select l.pools from pgflow.pool l where l.name = r.pool offset 0) p
      cross join lateral unnest(p.pools) with ordinality as x (name, n)
      where r.run_id = me and exists (select from pgflow.pool l where l.name = x.name offset 0)
      order by x.n
    );
    periods := coalesce(pgflow.periods_of_(names, clock), '{}');
  end if;
  if names <> '{}' then
    perform pgflow.open_spend_(names, periods, array(select jsonb_object_keys(spent)));
    with asked as (
      select a.key as unit, a.value::numeric as amount,
        least(a.value::numeric, coalesce((kept->>a.key)::numeric, 0)) as taken
      from jsonb_each_text(spent) a
    ), draw as (
      select s.pool, s.period_at, s.unit, g.taken, g.amount - g.taken as rest,
        least(g.amount - g.taken, coalesce(s.allowed - s.charged - s.reserved, g.amount - g.taken)) as drawn
      from unnest(names, periods) as x (pool, period_at)
      cross join asked g
      cross join lateral (
        select l.* from pgflow.spend l where l.pool = x.pool and l.period_at = x.period_at and l.unit = g.unit offset 0
      ) s
    )
    update pgflow.spend s
    set reserved = s.reserved - d.taken, charged = s.charged + d.taken + d.drawn, admitted = s.admitted + d.drawn,
      overrun = s.overrun + d.rest - d.drawn
    from draw d
    where s.pool = d.pool and s.period_at = d.period_at and s.unit = d.unit;
  end if;
  if kept <> '{}' then
    update pgflow.reservation v
    set amounts = (
      select jsonb_object_agg(k.key, greatest(k.value::numeric - coalesce((spent->>k.key)::numeric, 0), 0))
      from jsonb_each_text(kept) k
    )
    where v.run_id = me and v.call = (unit.said->>'call')::int;
  end if;
  insert into pgflow.charge (run_id, charged_at, seq, call, name, model, decision, pools, periods, amounts)
  values (me, t, at_seq, coalesce((unit.said->>'call')::int, unit.call), unit.name, unit.said->>'model',
    unit.said->>'decision', names, periods, spent);
end
$$;
comment on function pgflow.charge_one_(bigint, int, timestamptz, timestamptz)
  is 'Books what one unit says was spent: out of the reservation of its call, then out of the pool, then as overrun';

create or replace function pgflow.close_reservations_(runs bigint[], calls int[])
returns void
language sql
volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
  with closed as (
    select distinct c.run_id, v.call from unnest(runs, calls) as c (run_id, call)
    cross join lateral (
      select o.call from pgflow.reservation o where o.run_id = c.run_id and o.call = c.call
      union all
      select o.call from pgflow.reservation o where o.run_id = c.run_id and c.call is null
    ) v
  ), gone as (
    delete from pgflow.reservation v using closed o where v.run_id = o.run_id and v.call = o.call returning v.*
  ), given as (
    select x.pool, x.period_at, a.key as unit, sum(a.value::numeric) as amount
    from gone g
    cross join lateral unnest(g.pools, g.periods) as x (pool, period_at)
    cross join lateral jsonb_each_text(g.amounts) a
    where a.value::numeric > 0
    group by x.pool, x.period_at, a.key
  )
  -- What was spent beyond the limit is covered first.
  update pgflow.spend s
  set reserved = s.reserved - g.amount, returned = s.returned + g.amount,
    charged = s.charged + least(s.overrun, coalesce(s.allowed - s.charged - s.reserved + g.amount, 0)),
    admitted = s.admitted + least(s.overrun, coalesce(s.allowed - s.charged - s.reserved + g.amount, 0)),
    overrun = s.overrun - least(s.overrun, coalesce(s.allowed - s.charged - s.reserved + g.amount, 0))
  from given g
  where s.pool = g.pool and s.period_at = g.period_at and s.unit = g.unit
$$;
comment on function pgflow.close_reservations_(bigint[], int[])
  is 'Returns what calls have reserved and not spent: of each run this call, or every one if it is null. The pools are '
     'locked';

create or replace function pgflow.settle_budgets_(units jsonb, closes jsonb, t timestamptz)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  clock timestamptz := pgflow.now_(); -- the pools are locked: what is decided now stands
  one record;
begin
  for one in
    select u.run_id, u.seq from pgflow.unit_rows_(units) u where u.kind = 'M' order by 1, 2
  loop
    perform pgflow.charge_one_(one.run_id, one.seq, clock, t);
  end loop;
  perform pgflow.close_reservations_(array_agg(d.run_id), array_agg(d.call))
  from pgflow.draw_rows_(closes) d where d.call is distinct from 0 having count(*) > 0;
end
$$;
comment on function pgflow.settle_budgets_(jsonb, jsonb, timestamptz)
  is 'Books what the units of a batch say was spent, and returns the reservations of calls that are over. The pools '
     'are locked';

create or replace function pgflow.return_reservations_(runs bigint[])
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
declare
  names text[] := array(
    select distinct n from unnest(runs) as r (id)
    cross join lateral (select o.pools from pgflow.reservation o where o.run_id = r.id offset 0) v
    cross join lateral unnest(v.pools) n
  );
begin
  if names <> '{}' then
    perform pgflow.lock_pools_(names);
    perform pgflow.close_reservations_(runs, array_fill(null::int, array[cardinality(runs)]));
  end if;
end
$$;
comment on function pgflow.return_reservations_(bigint[])
  is 'Returns what runs have reserved that go no further: they were ended by force, or go on as other generations';

create or replace function pgflow.admit_all_(questions jsonb, positions int[], seqs int[], t timestamptz)
returns table (pos int, seq int, units jsonb)
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
#variable_conflict use_column
declare
  clock timestamptz := pgflow.now_(); -- the pools are locked: what is decided now stands
  one record;
  names text[];
  above text[];
  periods timestamptz[];
  amounts jsonb;
  short record;
  kind "char";
  payload json;
  at_seq int;
begin
  for one in
    select q.pos, q.run as me, q.token, r.pool as own_pool, a.n, a.call, a.name, a.pool, a.amounts,
      coalesce(a.hard, false) as is_hard, a.licence,
      lag(q.pos) over (order by q.pos, a.n) is distinct from q.pos as is_first,
      lead(q.pos) over (order by q.pos, a.n) is distinct from q.pos as is_last
    from pgflow.question_rows_(questions) q
    cross join lateral (select n.pool from pgflow.run n where n.run_id = q.run offset 0) r
    cross join lateral pgflow.admission_rows_(q.admits) a
    where q.pos = any(positions)
    order by q.pos, a.n
  loop
    if one.is_first then
      pos := one.pos;
      at_seq := seqs[one.pos];
      units := '[]';
    end if;
    names := null;
    select l.pools into names from pgflow.pool l where l.name = coalesce(one.pool, one.own_pool);
    -- What no pool limits need not be reserved.
    amounts := coalesce((
      select jsonb_object_agg(g.key, g.value::numeric) from jsonb_each_text(one.amounts) g
      where exists (select from pgflow.pool l where l.name = any(names) and l.limits ? g.key)
    ), '{}');
    short := null;
    if names is null then
      select 'no_pool' as reason, coalesce(one.pool, one.own_pool) as pool, null::text as unit,
        null::numeric as allowed, null::numeric as remaining, null::numeric as asked into short;
    else
      periods := pgflow.periods_of_(names, clock);
      perform pgflow.open_spend_(names, periods, array(select jsonb_object_keys(amounts)));
      select l.* into short from pgflow.lacking_(names, periods, amounts) l;
      if short.reason is null and one.is_hard and one.pool is distinct from one.own_pool then
        select l.pools into above from pgflow.pool l where l.name = one.own_pool;
        perform pgflow.open_spend_(above, pgflow.periods_of_(above, clock), '{}');
        select l.* into short from pgflow.lacking_(above, pgflow.periods_of_(above, clock), '{}') l;
      end if;
    end if;
    at_seq := at_seq + 1;
    if short.reason is null then
      kind := 'm';
      payload := json_build_object('pool', names[1], 'amounts', amounts);
      if amounts <> '{}' then
        update pgflow.spend s set reserved = s.reserved + g.asked, admitted = s.admitted + g.asked
        from (
          select x.pool, x.period_at, a.key as unit, a.value::numeric as asked
          from unnest(names, periods) as x (pool, period_at) cross join jsonb_each_text(amounts) a
        ) g
        where s.pool = g.pool and s.period_at = g.period_at and s.unit = g.unit;
        insert into pgflow.reservation (run_id, reserved_at, call, pools, periods, amounts)
        values (one.me, clock, one.call, names, periods, amounts);
      end if;
    else
      kind := 'q';
      payload := json_strip_nulls(json_build_object('reason', short.reason, 'pool', short.pool, 'unit', short.unit,
        'limit', trim_scale(short.allowed)::text,
        'left', trim_scale(case when short.remaining < 0 then 0 else short.remaining end)::text,
        'asked', trim_scale(short.asked)::text));
    end if;
    insert into pgflow.unit (run_id, seq, call, kind, name, payload, starts, token, at, recorded_at)
    values (one.me, at_seq, one.call, kind, one.name, payload,
      case when kind = 'm' and one.licence is not null then json_build_array(one.licence) end, one.token, t, t);
    units := units || jsonb_build_array(pgflow.unit_json_(at_seq, one.call, kind, one.name, payload));
    if one.is_last then
      seq := at_seq;
      return next;
    end if;
  end loop;
end
$$;
comment on function pgflow.admit_all_(jsonb, int[], int[], timestamptz)
  is 'Admits the calls that runs of a batch ask for, or refuses them, one after the other: of each position the last '
     'seq then, and its units. The pools are locked';

create or replace function pgflow.tell_soft_(names text[], runs bigint[])
returns bigint[]
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
declare
  clock timestamptz := pgflow.now_();
  passed record;
  chains bigint[] := '{}';
begin
  for passed in
    select s.pool, s.period_at, s.unit, s.allowed, s.charged + s.overrun as charged, s.reserved,
      array(
        select r.chain_id from unnest(runs) as i (id)
        cross join lateral (select n.chain_id, n.pool from pgflow.run n where n.run_id = i.id offset 0) r
        where (exists (select from pgflow.pool o where o.name = r.pool and s.pool = any(o.pools))
            or exists (select from pgflow.reservation v where v.run_id = i.id and s.pool = any(v.pools)))
          and not exists (select from pgflow.outcome e where e.run_id = i.id)
        order by i.id
      ) as chains
    from unnest(names) as x (name)
    cross join lateral (select l.* from pgflow.pool l where l.name = x.name and l.soft is not null offset 0) p
    cross join lateral (
      select l.* from pgflow.spend l
      where l.pool = x.name and l.period_at = pgflow.period_of_(p.per, p.tz, clock) and l.soft_at is null
        and l.charged + l.reserved + l.overrun >= p.soft * l.allowed and l.allowed > 0 offset 0
    ) s
    order by s.pool, s.unit
  loop
    continue when passed.chains = '{}';
    update pgflow.spend s set soft_at = clock
    where s.pool = passed.pool and s.period_at = passed.period_at and s.unit = passed.unit;
    insert into pgflow.signal (chain_id, kind, name, sent_at, sent_by, payload)
    select c, 's', 'budget', clock, 'pgflow', json_build_object('pool', passed.pool, 'unit', passed.unit,
      'limit', trim_scale(passed.allowed)::text, 'charged', trim_scale(passed.charged)::text,
      'reserved', trim_scale(passed.reserved)::text,
      'left', trim_scale(greatest(passed.allowed - passed.charged - passed.reserved, 0))::text)
    from unnest(passed.chains) c;
    insert into pgflow.nudge (chain_id) select c from unnest(passed.chains) c;
    chains := chains || passed.chains;
  end loop;
  return chains;
end
$$;
comment on function pgflow.tell_soft_(text[], bigint[])
  is 'Sends the signal budget to those of these runs of whose pools one has passed its soft threshold, once a period; '
     'answers their chains';

create or replace function pgflow.settle_fenced_(units jsonb, closes jsonb, t timestamptz)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  names text[] := pgflow.take_pools_(jsonb_build_object('draws', closes));
begin
  perform pgflow.settle_budgets_(units, closes, t);
  perform pgflow.tell_soft_(names, array(select distinct d.run_id from pgflow.draw_rows_(closes) d));
end
$$;
comment on function pgflow.settle_fenced_(jsonb, jsonb, timestamptz)
  is 'The same for the transaction of a step, whose last locks these are';

create or replace function pgflow.allow_(pool text, period_at timestamptz, unit text, allowed numeric)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
  held numeric := (select s.reserved from pgflow.spend s
    where s.pool = pool and s.period_at = period_at and s.unit = unit);
begin
  if held > allowed then
    raise exception using errcode = 'PF006',
      message = format('open calls have reserved %s %s of pool %s, more than %s', trim_scale(held), unit,
        quote_literal(pool), trim_scale(allowed)),
      hint = 'Revoke the pool, and set the limit once these calls are over.';
  end if;
  update pgflow.spend s
  set allowed = allow_.allowed, charged = g.charged, overrun = s.charged + s.overrun - g.charged,
    admitted = g.charged + s.returned + s.reserved,
    soft_at = case when s.charged + s.reserved + s.overrun >= allow_.allowed then s.soft_at end
  from (
    select least(b.charged + b.overrun, coalesce(allow_.allowed - b.reserved, b.charged + b.overrun)) as charged
    from pgflow.spend b where b.pool = pool and b.period_at = period_at and b.unit = unit
  ) g
  where s.pool = pool and s.period_at = period_at and s.unit = unit;
end
$$;
comment on function pgflow.allow_(text, timestamptz, text, numeric)
  is 'Sets what may be spent of a unit in a period, and what of the charges is beyond it; PF006 if open calls have '
     'reserved more. The pool is locked';

create or replace function pgflow.note_change_(pool text, what text, said jsonb, why text, sent_by text, t timestamptz)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  id bigint;
begin
  insert into pgflow.pool_change (changed_at, pool, what, said, why, changed_by)
  values (t, pool, what, said, pgflow.told_(why, 4096), pgflow.sender_(sent_by))
  returning pool_change_id into id;
  perform pgflow.note_evidence_('pool_change', json_build_array(id));
end
$$;
comment on function pgflow.note_change_(text, text, jsonb, text, text, timestamptz)
  is 'Records the author and the reason of a change of a pool';

create or replace function pgflow.known_pool_(name text)
returns pgflow.pool
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  known pgflow.pool;
begin
  select p.* into known from pgflow.pool p where p.name = known_pool_.name for no key update;
  if known.name is null then
    raise exception using errcode = 'PF026', message = format('no pool is named %s', quote_nullable(name)),
      hint = 'pgflow.budgets lists them; pgflow.set_pool makes one, and so does an app that declares it: App(pools=[...]).';
  end if;
  return known;
end
$$;
comment on function pgflow.known_pool_(text) is 'A pool, locked; PF026 if there is none of this name';

create or replace function pgflow.set_pool(
  name text, limits jsonb default '{}', parent text default null, per text default null, tz text default 'UTC',
  soft numeric default 0.8, hard boolean default false, why text default null, sent_by text default null
)
returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
  span text := regexp_replace(per, '^1 ', '');
  known pgflow.pool;
  line text[];
  clock timestamptz;
  period timestamptz;
  one record;
begin
  perform pgflow.check_amounts_(limits, 'the limits of a pool');
  if name is null or octet_length(name) not between 1 and 255 then
    raise exception using errcode = 'PF003', message = 'the name of a pool must be a text of 1 to 255 bytes';
  end if;
  if starts_with(name, 'run/') and not exists (select from pgflow.pool p where p.name = set_pool.name) then
    raise exception using errcode = 'PF003',
      message = format('%s is a name for the pool that a run has of its own', quote_literal(name)),
      hint = 'Start a run with a budget, or take another name.';
  end if;
  if span not in ('hour', 'day', 'week', 'month', 'quarter', 'year') then
    raise exception using errcode = 'PF003',
      message = format('a pool is per hour, day, week, month, quarter or year, not %s', quote_literal(per));
  end if;
  perform pgflow.check_zone_(tz);
  if soft is not null and not (soft > 0 and soft <= 1) then
    raise exception using errcode = 'PF003',
      message = format('soft must be a part of the limit, above 0 and up to 1, not %s', soft);
  end if;
  line := array[name];
  if parent is not null then
    line := line || (select p.pools from pgflow.pool p where p.name = parent);
    if cardinality(line) = 1 then
      raise exception using errcode = 'PF026', message = format('no pool is named %s', quote_literal(parent)),
        hint = 'Set the parent first.';
    end if;
    if cardinality(line) > 8 then
      raise exception using errcode = 'PF003', message = 'pools may be nested 8 deep at most';
    end if;
  end if;
  insert into pgflow.pool (made_at, soft, is_hard, name, pools, per, tz, limits)
  values (pgflow.now_(), soft, coalesce(hard, false), name, line, span, tz, limits)
  on conflict on constraint pool_pkey do nothing;
  if not found then
    known := pgflow.known_pool_(name);
    if known.pools <> line then
      raise exception using errcode = 'PF006',
        message = format('pool %s draws on %s, which cannot be changed', quote_literal(name),
          coalesce(quote_literal(known.pools[2]), 'no other')),
        hint = 'Make another pool.';
    end if;
    update pgflow.pool p set soft = set_pool.soft, is_hard = coalesce(hard, false), per = span, tz = set_pool.tz,
      limits = set_pool.limits
    where p.name = name;
  end if;
  clock := pgflow.now_();
  period := pgflow.period_of_(span, tz, clock);
  for one in
    select s.unit, (limits->>s.unit)::numeric + s.granted as allowed from pgflow.spend s
    where s.pool = name and s.period_at = period
      and s.allowed is distinct from (limits->>s.unit)::numeric + s.granted
    order by s.unit
  loop
    perform pgflow.allow_(name, period, one.unit, one.allowed);
  end loop;
  perform pgflow.note_change_(name, 'set', jsonb_strip_nulls(jsonb_build_object('limits', limits, 'parent', parent,
    'per', span, 'tz', tz, 'soft', soft, 'hard', coalesce(hard, false))), why, sent_by, clock);
end
$$;
comment on function pgflow.set_pool(text, jsonb, text, text, text, numeric, boolean, text, text)
  is 'Makes a pool, or sets its limits anew: limits by unit, such as {"usd": 50}; parent = the pool that it draws on; '
     'per = hour, day, week, month, quarter or year after which it is full again, in a time zone; soft = part of a '
     'limit from which on runs are told; hard = no step at all of a run under it is licensed once it is used up. PF026 '
     'if there is no such parent, PF006 if it has another';
--! grant set_pool to pgflow_worker, pgflow_operator

create or replace function pgflow.declare_pools(pools jsonb)
returns int
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  one jsonb;
  changed int := 0;
begin
  perform pgflow.check_objects_(pools, 'pools');
  if exists (
    select from jsonb_array_elements(pools) e
    where e->>'soft' !~ '^[0-9]*[.]?[0-9]+$' or jsonb_typeof(e->'hard') not in ('boolean', 'null')
  ) then
    raise exception using errcode = 'PF003', message = 'of a pool soft is a number, and hard true or false';
  end if;
  -- All at once and in the order of their names, as everybody locks them.
  perform pgflow.lock_pools_(array(
    select p.name from jsonb_array_elements(pools) e join pgflow.pool p on p.name = e->>'name'
    where p.declared is distinct from e
  ));
  for one in select e from jsonb_array_elements(pools) with ordinality as x (e, n) order by n loop
    -- Changes by hand stay until the declaration in the code changes.
    if not exists (select from pgflow.pool p where p.name = one->>'name' and p.declared = one) then
      perform pgflow.set_pool(one->>'name', one->'limits', one->>'parent', one->>'per', one->>'tz',
        (one->>'soft')::numeric, (one->>'hard')::boolean, 'declared by an app');
      update pgflow.pool p set declared = one where p.name = one->>'name';
      changed := changed + 1;
    end if;
  end loop;
  return changed;
end
$$;
comment on function pgflow.declare_pools(jsonb)
  is 'Sets the pools that an app declares, [{name, limits, parent, per, tz, soft, hard}, ...], each parent first, '
     'where that differs from its last declaration; answers how many';
--! grant declare_pools to pgflow_worker, pgflow_operator

create or replace function pgflow.grant_budget(
  pool text, amounts jsonb, why text default null, sent_by text default null
)
returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
  known pgflow.pool;
  clock timestamptz;
  period timestamptz;
  one record;
begin
  perform pgflow.check_amounts_(amounts, 'a grant');
  known := pgflow.known_pool_(pool);
  clock := pgflow.now_();
  period := pgflow.period_of_(known.per, known.tz, clock);
  for one in select a.key as unit, a.value::numeric as amount from jsonb_each_text(amounts) a order by a.key loop
    if not known.limits ? one.unit then
      raise exception using errcode = 'PF003',
        message = format('pool %s has no limit of %s to be raised', quote_literal(pool), one.unit);
    end if;
    perform pgflow.open_spend_(array[pool], array[period], '{}');
    update pgflow.spend s set granted = s.granted + one.amount
    where s.pool = pool and s.period_at = period and s.unit = one.unit;
    perform pgflow.allow_(pool, period, one.unit, (
      select s.allowed + one.amount from pgflow.spend s
      where s.pool = pool and s.period_at = period and s.unit = one.unit
    ));
  end loop;
  perform pgflow.note_change_(pool, 'granted', amounts, why, sent_by, clock);
end
$$;
comment on function pgflow.grant_budget(text, jsonb, text, text)
  is 'Allows more of a pool in its current period: amounts by unit, such as {"usd": 10}, beyond its limits. PF026 if '
     'there is no such pool';
--! grant grant_budget to pgflow_operator

create or replace function pgflow.revoke_pool(
  name text, why text default null, sent_by text default null, restore boolean default false
)
returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
  clock timestamptz;
begin
  perform pgflow.known_pool_(name);
  clock := pgflow.now_();
  update pgflow.pool p
  set revoked_at = case when not restore then coalesce(p.revoked_at, clock) end,
    revoked_by = case when not restore then pgflow.sender_(sent_by) end,
    revoked_why = case when not restore then pgflow.told_(why, 4096) end
  where p.name = name;
  perform pgflow.note_change_(name, case when restore then 'restored' else 'revoked' end, '{}', why, sent_by, clock);
end
$$;
comment on function pgflow.revoke_pool(text, text, text, boolean)
  is 'Has a pool, and every pool that draws on it, admit nothing from now on; what is under way goes on. With restore '
     'it admits again. PF026 if there is no such pool';
--! grant revoke_pool to pgflow_operator

create or replace function pgflow.check_pool_(name text, budget jsonb)
returns void
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
begin
  if budget is not null then
    perform pgflow.check_amounts_(budget, 'the budget of a run');
  end if;
  -- A pool of a tenant has its name: what others draw on says how much they spend.
  if split_part(name, '/', 1) <> all (pgflow.own_tenants()) then
    raise exception using errcode = 'PF021', message = format('a tenant does not draw on pool %s', quote_literal(name)),
      hint = 'A pool of a tenant is named TENANT or TENANT/NAME.';
  end if;
  if name is not null and not exists (select from pgflow.pool p where p.name = check_pool_.name) then
    raise exception using errcode = 'PF026', message = format('no pool is named %s', quote_nullable(name)),
      hint = 'pgflow.budgets lists them; pgflow.set_pool makes one, and so does an app that declares it: App(pools=[...]).';
  end if;
end
$$;
comment on function pgflow.check_pool_(text, jsonb)
  is 'Refuses a pool that is not there (PF026) and bad limits (PF003)';

create or replace function pgflow.own_pool_(root uuid)
returns text
language sql
immutable
return 'run/' || root::text;
comment on function pgflow.own_pool_(uuid) is 'Name of the pool that a run has of its own';

create or replace function pgflow.own_line_(root uuid, parent text)
returns text[]
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
  select array[pgflow.own_pool_(own_line_.root)]
    || coalesce((select p.pools from pgflow.pool p where p.name = parent), array_remove(array[parent], null))
$$;
comment on function pgflow.own_line_(uuid, text)
  is 'The pool of a run and its ancestors, including pools that do not exist yet';

create or replace function pgflow.make_own_pools_(roots uuid[], parent text, budget jsonb, t timestamptz)
returns void
language sql
volatile
set search_path = pg_catalog, pg_temp
as $$
  insert into pgflow.pool (made_at, soft, is_hard, name, pools, tz, limits)
  select t, 0.8, false, pgflow.own_pool_(r), pgflow.own_line_(r, parent), 'UTC', budget
  from unnest(roots) r
$$;
comment on function pgflow.make_own_pools_(uuid[], text, jsonb, timestamptz)
  is 'Makes the pools that runs have of their own, which draw on another';

create or replace function pgflow.pool_for_claim_(name text)
returns jsonb
language sql
stable
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
  select jsonb_build_object('name', pool_for_claim_.name, 'hard', exists (
    select from pgflow.pool p
    cross join lateral unnest(p.pools) n
    cross join lateral (select l.is_hard from pgflow.pool l where l.name = n offset 0) a
    where p.name = pool_for_claim_.name and a.is_hard
  ))
$$;
comment on function pgflow.pool_for_claim_(text) is 'Facts for a worker on the pool of a run';

create or replace function pgflow.drop_own_pools_(names text[])
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
declare
  own record;
begin
  -- The lowest first: one that is gone draws on those above it no more.
  for own in
    select distinct cardinality(a.pools) as depth, a.name
    from unnest(names) x
    cross join lateral (select l.pools from pgflow.pool l where l.name = x offset 0) p
    cross join lateral unnest(p.pools) n
    cross join lateral (select l.name, l.pools from pgflow.pool l where l.name = n offset 0) a
    where starts_with(a.name, 'run/')
    order by 1 desc, 2
  loop
    continue when exists (select from pgflow.run r where r.pool = own.name)
      or exists (select from pgflow.pool p where p.pools[2] = own.name);
    delete from pgflow.spend s where s.pool = own.name;
    delete from pgflow.pool p where p.name = own.name;
  end loop;
end
$$;
comment on function pgflow.drop_own_pools_(text[])
  is 'Removes the pools that runs had of their own among these and those above them, unless another run draws on them, '
     'such as a fork';

create or replace function pgflow.forget_charges_(runs bigint[])
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
begin
  if not exists (select from pgflow.charge c where c.run_id = any(runs)) then
    return;
  end if;
  perform pgflow.lock_pools_(array(select distinct n from pgflow.charge c cross join lateral unnest(c.pools) n
    where c.run_id = any(runs)));
  with gone as (
    delete from pgflow.charge c where c.run_id = any(runs) returning c.*
  )
  update pgflow.spend s set forgotten = s.forgotten + f.amount
  from (
    select x.pool, x.period_at, a.key as unit, sum(a.value::numeric) as amount
    from gone g
    cross join lateral unnest(g.pools, g.periods) as x (pool, period_at)
    cross join lateral jsonb_each_text(g.amounts) a
    group by x.pool, x.period_at, a.key
  ) f
  where s.pool = f.pool and s.period_at = f.period_at and s.unit = f.unit;
end
$$;
comment on function pgflow.forget_charges_(bigint[])
  is 'Removes the charges of runs whose history goes; the sums of their pools stay';

create or replace function pgflow.period_now(per text, tz text)
returns timestamptz
language sql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
  select pgflow.period_of_(per, tz, pgflow.now_())
$$;
comment on function pgflow.period_now(text, text)
  is 'Of a pool, for the view budgets: beginning of the calendar period that it is in';
--! grant period_now to pgflow_client, pgflow_worker, pgflow_operator, pgflow_auditor

drop view if exists pgflow.charges;
drop view if exists pgflow.budgets;

create view pgflow.budgets as
select p.name as pool, u.unit, nullif(s.period_at, '-infinity') as period_at, p.per, p.tz,
  coalesce(s.allowed, (p.limits->>u.unit)::numeric) as allowed, coalesce(s.charged + s.overrun, 0) as charged,
  coalesce(s.reserved, 0) as reserved,
  case when s.pool is null then (p.limits->>u.unit)::numeric else s.allowed - s.charged - s.reserved end as remaining,
  coalesce(s.overrun, 0) as overrun, coalesce(s.returned, 0) as returned, p.pools[2] as parent, p.is_hard, p.soft,
  s.soft_at, p.revoked_at, p.revoked_by, p.revoked_why, p.made_at
from pgflow.pool p
cross join lateral (select pgflow.period_now(p.per, p.tz) as period_at offset 0) c
cross join lateral (
  select jsonb_object_keys(p.limits)
  union
  select l.unit from pgflow.spend l where l.pool = p.name and l.period_at = c.period_at
) as u (unit)
left join pgflow.spend s on s.pool = p.name and s.period_at = c.period_at and s.unit = u.unit;
comment on view pgflow.budgets
  is 'Budgets: what each pool allows in its current period, and what of that is spent or reserved, by unit';
--! grant budgets to pgflow_client, pgflow_worker, pgflow_operator, pgflow_auditor
comment on column pgflow.budgets.pool is 'Name of the pool';
comment on column pgflow.budgets.unit is 'The unit: usd, tokens, calls, seconds or another';
comment on column pgflow.budgets.period_at
  is 'Beginning of the period; null = nothing was drawn in it yet, or the pool has no periods';
comment on column pgflow.budgets.per is 'Calendar period after which it is full again; null = never';
comment on column pgflow.budgets.tz is 'Time zone of that calendar';
comment on column pgflow.budgets.allowed is 'Most that may be spent in the period; null = any amount';
comment on column pgflow.budgets.charged is 'Amount that was spent';
comment on column pgflow.budgets.reserved is 'Amount that open calls have reserved and not spent yet';
comment on column pgflow.budgets.remaining is 'Amount that can still be admitted; null = any amount';
comment on column pgflow.budgets.overrun
  is 'Part of the charges that is beyond the limit, since calls cost more than they had reserved';
comment on column pgflow.budgets.returned is 'Amount that was reserved and not spent';
comment on column pgflow.budgets.parent is 'The pool that it draws on; null = none';
comment on column pgflow.budgets.is_hard
  is 'True if no step of a run under it is licensed once it is used up or revoked';
comment on column pgflow.budgets.soft is 'Fraction of the limit from which runs get a signal; null = no signal';
comment on column pgflow.budgets.soft_at is 'Time at which it passed that part; null = it has not';
comment on column pgflow.budgets.revoked_at is 'Time since which it admits nothing; null = it does';
comment on column pgflow.budgets.revoked_by is 'Author of the revocation, with the role of the session in brackets';
comment on column pgflow.budgets.revoked_why is 'The reason given';
comment on column pgflow.budgets.made_at is 'Time at which it was made';

create view pgflow.charges as
select r.key, c.charged_at, c.name as step, c.call,
  coalesce(c.model, (
    select u.payload->>'model' from pgflow.unit u where u.run_id = c.run_id and u.kind = 'd' and u.call = c.call limit 1
  )) as model,
  c.decision, c.pools[1] as pool, c.pools, (c.amounts->>'usd')::numeric as usd,
  (c.amounts->>'tokens')::numeric as tokens,
  c.amounts::jsonb as amounts, l.workflow, r.generation, r.tenant, c.run_id, c.seq
from pgflow.charge c
join pgflow.run r on r.run_id = c.run_id
join pgflow.lane l on l.lane_id = r.lane_id;
comment on view pgflow.charges
  is 'Charges: what runs have spent, on which step, decision and model, and out of which pool';
--! grant charges to pgflow_client, pgflow_worker, pgflow_operator, pgflow_auditor
comment on column pgflow.charges.key is 'Key of the run';
comment on column pgflow.charges.charged_at is 'Time of the commit that recorded it';
comment on column pgflow.charges.step is 'Name of the step whose body spent it; null = the code of the workflow did';
comment on column pgflow.charges.call is 'Number of the call, in the order in which the code made them';
comment on column pgflow.charges.model is 'The model that was paid; null = none is named';
comment on column pgflow.charges.decision
  is 'Key of the decision that it was spent on, or that its step rests on; null = none';
comment on column pgflow.charges.pool is 'The pool that it was drawn on; null = the run has none';
comment on column pgflow.charges.pools is 'That pool and those above it';
comment on column pgflow.charges.usd is 'Dollars; null = none';
comment on column pgflow.charges.tokens is 'Tokens; null = none';
comment on column pgflow.charges.amounts is 'All of it, by unit';
comment on column pgflow.charges.workflow is 'Name of the workflow';
comment on column pgflow.charges.generation is 'Generation of the run that spent it';
comment on column pgflow.charges.tenant is 'Tenant of the run; empty where there is only one';
comment on column pgflow.charges.run_id is 'The number of that generation';
comment on column pgflow.charges.seq is 'Place of its unit in the journal';

create or replace function pgflow.check_budgets_()
returns table (invariant text, detail text)
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  return query
  with kept as (
    select x.pool, x.period_at, a.key as unit, sum(a.value::numeric) as amount
    from pgflow.reservation v
    cross join lateral unnest(v.pools, v.periods) as x (pool, period_at)
    cross join lateral jsonb_each_text(v.amounts) a
    group by x.pool, x.period_at, a.key
  ), spent as (
    select x.pool, x.period_at, a.key as unit, sum(a.value::numeric) as amount
    from pgflow.charge c
    cross join lateral unnest(c.pools, c.periods) as x (pool, period_at)
    cross join lateral jsonb_each_text(c.amounts) a
    group by x.pool, x.period_at, a.key
  ), sums as (
    select coalesce(s.pool, k.pool, c.pool) as pool, coalesce(s.unit, k.unit, c.unit) as unit,
      s.reserved, coalesce(k.amount, 0) as kept, s.charged + s.overrun as charged,
      coalesce(c.amount, 0) + coalesce(s.forgotten, 0) as spent
    from pgflow.spend s
    full join kept k on k.pool = s.pool and k.period_at = s.period_at and k.unit = s.unit
    full join spent c on c.pool = coalesce(s.pool, k.pool) and c.period_at = coalesce(s.period_at, k.period_at)
      and c.unit = coalesce(s.unit, k.unit)
  )
  select 'a pool has reserved what open calls have', format('%s of %s', g.unit, g.pool)
  from sums g where g.reserved is distinct from g.kept
  union all
  select 'a pool has charged what runs have spent', format('%s of %s', g.unit, g.pool)
  from sums g where g.charged is distinct from g.spent
  union all
  select 'a reservation is of an open call', format('call %s of run %s', v.call, v.run_id)
  from pgflow.reservation v
  where exists (select from pgflow.outcome o where o.run_id = v.run_id)
    or not exists (select from pgflow.unit u where u.run_id = v.run_id and u.call = v.call and u.kind = 'm')
    or exists (select from pgflow.unit u where u.run_id = v.run_id and u.call = v.call
      and u.kind in ('c', 'f', 'd', 'x'))
  union all
  select 'a charge is beside its unit',
    format('unit %s of run %s', coalesce(c.seq, u.seq), coalesce(c.run_id, u.run_id))
  from (
    select u.run_id, u.seq from pgflow.unit u
    cross join lateral (select coalesce(r.origin_seq, 0) as cut from pgflow.run r where r.run_id = u.run_id) r
    where u.kind = 'M' and u.seq > r.cut and not exists (select from pgflow.imported m where m.run_id = u.run_id)
  ) u
  full join pgflow.charge c on c.run_id = u.run_id and c.seq = u.seq
  where c.run_id is null or u.run_id is null
  union all
  select 'the pool that a run has of its own is there', format('run %s', r.run_id)
  from pgflow.run r where starts_with(r.pool, 'run/') and not exists (select from pgflow.pool p where p.name = r.pool)
    and not exists (select from pgflow.outcome o where o.run_id = r.run_id);
end
$$;
comment on function pgflow.check_budgets_() is 'The sums of pools are those of the rows behind them';
