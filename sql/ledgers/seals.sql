-- Seals: proof that the journal is what it was.
--
-- The journal is append only by privilege and by trigger (sql/core/guard.sql). Against the owner, and anyone with
-- access to the files, only a hash that is kept elsewhere helps. So workers seal the records in the background,
-- without blocking others:
--
--   unit     hash of all its columns; of the payload, only the hash of its text
--   seal     hash of the previous seal of the run, of the units since, and of the outcome. The first one begins
--            with the start of the run
--   evidence hash of a row about an act of a person, outside of journals (sql/ledgers/evidence.sql)
--   round    Merkle root over the seals of one round, and its evidence (RFC 6962: leaves behind 00, nodes behind 01)
--   day      Merkle root over its rounds (number, time and root of each), chained to the day before
--
-- `anchor` returns the roots and heads of all days, and of the open day. Store it where no writer of this database
-- has access, and it proves any later state of this journal (`verify_anchor`). `proof` returns the data to check one
-- run against an anchor, without this database.
--
-- The chain has only hashes of values, so a value can be removed (`redact`): an envelope with its hash replaces it,
-- and a unit records author and reason. The chain does not change.
--
-- How the sealer finds new records, without an index, a trigger or a scan of the journal:
--
-- - New runs by their number. It passes them in this order, and none can appear behind it: before it passes a number it
--   notes who holds the lock of the sequence, which every transaction that has drawn a number keeps to its end, and
--   waits until all of these have ended. (That is sharper than the oldest running transaction: one that has drawn a
--   number may have no transaction number yet, and one that never starts a run delays no seal.)
-- - A run that has ended is sealed as a whole. What may still grow is `seal_pending`, and looked at in turn: open runs,
--   and those that have ended and still owe, since a person's word on it is recorded after the end.
-- - A rewind replaces an outcome, a redaction adds a unit, and so does a debt that is opened after the end: each makes
--   the run pending again (`look_again_`). It only inserts, so it is safe at any isolation level and waits for no lock.
--   It need not where nothing was ever sealed; so the first round also waits for transactions that have looked whether that is so.
--
-- One round seals a limited number of runs, of each at most 1,000 units or a megabyte, and starts no further run
-- after 50 ms: others use the worker's connection too. One worker at a time seals, and the row `seal_state` has the
-- time of the next round, for any number of workers. Runs that may still grow are visited once in half a minute, plus
-- a second for each thousand of them. Nothing is sealed while history is removed, so that no seal is left of a
-- removed run (`pgflow.retention`, shared).

-- ---------------------------------------------------------------- hashes

create or replace function pgflow.hash_(body text)
returns bytea
language sql
stable
return sha256(convert_to(pgflow.unwrapped_(body), 'UTF8'));
comment on function pgflow.hash_(text) is 'SHA-256 of a text in UTF-8, without the wraps of envelopes in it';

create or replace function pgflow.value_hash_(body text)
returns bytea
language sql
stable
return case when pgflow.is_redacted_(body) then decode(substr(body, 36, 64), 'hex')
  else pgflow.hash_(body) end;
comment on function pgflow.value_hash_(text)
  is 'Hash of a value''s text; of one that was redacted, the hash that it had';

create or replace function pgflow.exact_(at timestamptz)
returns text
language sql
stable
-- No time that is written into a row may exempt it from comparison.
return case when isfinite(at) then pgflow.micros_(at)::text else at::text end;
comment on function pgflow.exact_(timestamptz) is 'A time as microseconds since 1970, or infinity';

create or replace function pgflow.unit_text_(
  seq int, call int, kind "char", name text, key text, args_hash bigint, payload json, starts json, token bigint,
  at timestamptz, recorded_at timestamptz, due_at timestamptz
)
returns text
language sql
stable
return json_build_array(seq, call, kind, name, key, args_hash, encode(pgflow.value_hash_(payload::text), 'hex'),
  starts::text, token, pgflow.exact_(at), pgflow.exact_(recorded_at), pgflow.exact_(due_at))::text;
comment on function pgflow.unit_text_(
  int, int, "char", text, text, bigint, json, json, bigint, timestamptz, timestamptz, timestamptz
)
  is 'All of a unit as one text, with the hash of its payload: what its own hash is of';

create or replace function pgflow.run_text_(r pgflow.run)
returns text
language sql
stable
-- All but what changes: labels, and whose child it is.
return (
  select json_build_array('pgflow run', r.run_id, r.chain_id, r.root, r.generation, r.tenant, r.key,
    l.workflow, l.version, l.queue, r.priority,
    pgflow.exact_(r.created_at), pgflow.exact_(r.run_at), pgflow.exact_(r.deadline_at), r.root_run_id,
    r.close_policy, r.pool, r.start_id, r.origin_run_id, r.origin_seq, encode(pgflow.hash_(r.heritage::text), 'hex'),
    encode(pgflow.hash_(r.metadata::text), 'hex'), encode(pgflow.value_hash_(r.input::text), 'hex'))::text
  from (values (r.lane_id)) as x (lane_id) left join pgflow.lane l on l.lane_id = x.lane_id
);
comment on function pgflow.run_text_(pgflow.run)
  is 'Start of a run as one text, with the hashes of its values: its chain begins with it';

create or replace function pgflow.outcome_text_(o pgflow.outcome)
returns text
language sql
stable
return json_build_array(o.status, o.reason, encode(pgflow.value_hash_(o.output::text), 'hex'),
  encode(pgflow.value_hash_(o.error::text), 'hex'), o.token, pgflow.exact_(o.finished_at))::text;
comment on function pgflow.outcome_text_(pgflow.outcome)
  is 'All of an outcome as one text, with the hashes of its values';

create or replace function pgflow.chain_(before bytea, segment bytea, upto_seq int, outcome_hash bytea)
returns bytea
language sql
immutable
return sha256(decode('02', 'hex') || before || segment || int4send(upto_seq) || coalesce(outcome_hash, ''::bytea));
comment on function pgflow.chain_(bytea, bytea, int, bytea)
  is 'Hash of a seal: behind 02, the seal before it, the hash of the hashes of the units since, the last seq, and the '
     'outcome';

create or replace function pgflow.round_hash_(r pgflow.seal_round)
returns bytea
language sql
stable
return sha256(decode('04', 'hex') || int8send(r.round) || int8send(
  case when isfinite(r.sealed_at) then pgflow.micros_(r.sealed_at) else -1 end) || r.root);
comment on function pgflow.round_hash_(pgflow.seal_round)
  is 'Hash of a round: behind 04, its number, its time and its root';

create or replace function pgflow.merkle_levels_(leaves bytea[])
returns setof bytea[]
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
declare
  level bytea[] := array(select sha256(decode('00', 'hex') || l.h) from unnest(leaves) with ordinality as l (h, n)
    order by l.n);
begin
  loop
    return next level;
    exit when cardinality(level) <= 1;
    level := array(
      select case when level[i + 1] is null then level[i]
        else sha256(decode('01', 'hex') || level[i] || level[i + 1]) end
      from generate_series(1, cardinality(level), 2) i order by i
    );
  end loop;
end
$$;
comment on function pgflow.merkle_levels_(bytea[])
  is 'The levels of a Merkle tree over so many hashes, the leaves first';

create or replace function pgflow.evidence_leaf_(e pgflow.evidence)
returns bytea
language sql
stable
return pgflow.hash_(json_build_array('pgflow evidence', e.evidence_id, e.kind, e.key, e.run_id,
  pgflow.exact_(e.noted_at), encode(e.hash, 'hex'))::text);
comment on function pgflow.evidence_leaf_(pgflow.evidence) is 'Leaf of a piece of evidence in the tree of its round';

create or replace function pgflow.leaves_(this_round bigint, runs bigint[])
returns bytea[]
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
  select coalesce((
      select array_agg(s.hash order by s.run_id)
      from unnest(runs) as i (id) join pgflow.seal s on s.run_id = i.id and s.round = this_round
    ), '{}')
    || coalesce((
      select array_agg(pgflow.evidence_leaf_(e) order by e.evidence_id) from pgflow.evidence e
      where e.round = this_round
    ), '{}')
$$;
comment on function pgflow.leaves_(bigint, bigint[])
  is 'Leaves of a round: the seals of its runs, and behind them its evidence';

create or replace function pgflow.merkle_root_(leaves bytea[])
returns bytea
language sql
immutable
set search_path = pg_catalog, pg_temp
as $$
  select l.level[1] from pgflow.merkle_levels_(leaves) as l (level) where cardinality(l.level) = 1
$$;
comment on function pgflow.merkle_root_(bytea[]) is 'Merkle root over hashes, in their order';

create or replace function pgflow.merkle_path_(leaves bytea[], place int)
returns jsonb
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
declare
  level bytea[];
  path jsonb := '[]';
  beside int;
begin
  for level in select l.level from pgflow.merkle_levels_(leaves) as l (level) loop
    beside := case when place % 2 = 1 then place + 1 else place - 1 end;
    if level[beside] is not null and cardinality(level) > 1 then
      path := path || jsonb_build_array(jsonb_build_array(case when beside < place then 'left' else 'right' end,
        encode(level[beside], 'hex')));
    end if;
    place := (place + 1) / 2;
  end loop;
  return path;
end
$$;
comment on function pgflow.merkle_path_(bytea[], int)
  is 'The way from a leaf, counted from 1, to the root: [["left" or "right", hash of that neighbour], ...]';

-- ---------------------------------------------------------------- sealing

create or replace function pgflow.set_sealing(is_on boolean, by text default null)
returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  if set_sealing.is_on is null then
    raise exception using errcode = 'PF003', message = 'is_on must be true or false';
  end if;
  update pgflow.seal_state s
  set is_on = set_sealing.is_on, said_by = pgflow.sender_(by), said_at = pgflow.now_(),
    next_look_at = null;
end
$$;
comment on function pgflow.set_sealing(boolean, text)
  is 'Has workers seal the journal from now on, what is in it by then included; or no longer';
--! grant set_sealing to pgflow_operator

create or replace function pgflow.seal_runs_(ids bigint[], this_round bigint, t timestamptz)
returns bigint[]
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set plan_cache_mode = force_generic_plan
as $$
declare
  most_units constant int := 1000;
  most_bytes constant int := 1048576;
  sealed bigint[];
begin
  with found as (
    select r.run_id, g.upto, p.upto_seq, p.outcome_hash as known,
      coalesce(p.hash, pgflow.hash_(pgflow.run_text_(r))) as before, g.units, g.hash,
      case when o.run_id is not null and g.is_all then pgflow.hash_(pgflow.outcome_text_(o)) end as outcome,
      -- Dense, and no outcome but one that a later generation has replaced: else verification reports it.
      g.units = coalesce(g.upto, p.upto_seq, 0) - coalesce(p.upto_seq, 0)
        and (p.outcome_hash is null or o.run_id is not null
          and (p.outcome_hash = pgflow.hash_(pgflow.outcome_text_(o)) or o.status = 'continued' and exists (
            select from pgflow.run h where h.chain_id = r.chain_id and h.generation > 1 and h.generation > r.generation
          ))) as is_sound,
      exists (select from pgflow.owed w where w.run_id = r.run_id) as owes
    from unnest(ids) as i (id)
    join pgflow.run r on r.run_id = i.id
    left join pgflow.outcome o on o.run_id = i.id
    left join lateral (
      select s.hash, s.upto_seq, s.outcome_hash from pgflow.seal s where s.run_id = i.id order by s.round desc limit 1
    ) p on true
    cross join lateral (
      select count(*) filter (where u.fits)::int as units, max(u.seq) filter (where u.fits) as upto,
        count(*) < most_units and coalesce(bool_and(u.fits), true) as is_all,
        sha256(coalesce(string_agg(pgflow.hash_(pgflow.unit_text_(u.seq, u.call, u.kind, u.name, u.key, u.args_hash,
          u.payload, u.starts, u.token, u.at, u.recorded_at, u.due_at)), ''::bytea order by u.seq)
          filter (where u.fits), ''::bytea)) as hash
      from (
        -- As stored: a long value is read only if it is hashed.
        select n.*, n.seq = coalesce(p.upto_seq, 0) + 1
          or sum(pg_column_size(n.payload)) over (order by n.seq) <= most_bytes is not false as fits
        from (
          select * from pgflow.unit n where n.run_id = i.id and n.seq > coalesce(p.upto_seq, 0)
          order by n.seq limit most_units
        ) n
      ) u
    ) g
  ), kept as (
    insert into pgflow.seal (run_id, round, sealed_at, upto_seq, hash, outcome_hash)
    select f.run_id, this_round, t, coalesce(f.upto, f.upto_seq, 0),
      pgflow.chain_(f.before, f.hash, coalesce(f.upto, f.upto_seq, 0), f.outcome), f.outcome
    from found f
    where f.is_sound and (f.units > 0 or f.outcome is distinct from f.known)
    order by f.run_id
    returning run_id
  ), done as (
    select n.run_id, n.is_sound and n.outcome is not null and not n.owes as is_closed from found n
  ), let_go as (
    -- Of what all of this has seen: who asks meanwhile is not forgotten. Of one that may still grow, all but one row.
    delete from pgflow.seal_pending p using done d
    where p.run_id = d.run_id
      and (d.is_closed or exists (select from pgflow.seal_pending q where q.run_id = p.run_id and q.ask < p.ask))
  ), added as (
    insert into pgflow.seal_pending (run_id)
    select d.run_id from done d
    where not d.is_closed and not exists (select from pgflow.seal_pending q where q.run_id = d.run_id)
    order by d.run_id
  )
  select coalesce(array_agg(k.run_id), '{}') into sealed from kept k;
  return sealed;
end
$$;
comment on function pgflow.seal_runs_(bigint[], bigint, timestamptz)
  is 'Seals what is new of these runs, and keeps those pending that may still grow; answers which have a new seal';

create or replace function pgflow.seal_until_(
  ids bigint[], this_round bigint, t timestamptz, until timestamptz, out looked int, out sealed bigint[]
)
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  slice constant int := 10;
begin
  looked := 0;
  sealed := '{}';
  while looked < cardinality(ids) and (looked = 0 or clock_timestamp() < until) loop
    sealed := sealed || pgflow.seal_runs_(ids[looked + 1:looked + slice], this_round, t);
    looked := least(looked + slice, cardinality(ids));
  end loop;
end
$$;
comment on function pgflow.seal_until_(bigint[], bigint, timestamptz, timestamptz)
  is 'Seals what is new of these runs, a few at a time until a time is over, and the first few in any case; answers '
     'how many it has looked at, and which have a new seal';

create or replace function pgflow.starters_(is_first boolean)
returns text[]
language sql
volatile
set search_path = pg_catalog, pg_temp
as $$
  select coalesce(array_agg(case when l.pid is null then 'prepared' else l.virtualtransaction end), '{}')
  from pg_locks l
  where l.locktype = 'relation' and l.database = (select d.oid from pg_database d where d.datname = current_database())
    and l.pid is distinct from pg_backend_pid()
    and (l.relation = 'pgflow.run_id_seq'::regclass and l.mode = 'RowExclusiveLock'
      or is_first and l.relation = 'pgflow.seal_state'::regclass)
$$;
comment on function pgflow.starters_(boolean)
  is 'Transactions that have drawn a number for a run, and have not ended; at first also those that have looked '
     'whether anything is sealed';

create or replace function pgflow.close_days_(t timestamptz)
returns int
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  today constant date := (t at time zone 'UTC')::date;
  last record;
  roots bytea[];
  closed int := 0;
  over record;
begin
  loop
    select d.last_round, d.head into last from pgflow.seal_day d order by d.day desc limit 1;
    select r.day, r.round as first_round into over
    from pgflow.seal_round r where r.round > coalesce(last.last_round, 0) order by r.round limit 1;
    exit when over.day is null or over.day >= today;
    roots := array(
      select pgflow.round_hash_(r) from pgflow.seal_round r where r.round >= over.first_round and r.day = over.day
      order by r.round
    );
    insert into pgflow.seal_day (day, first_round, last_round, closed_at, root, head)
    select over.day, over.first_round, over.first_round + cardinality(roots) - 1, t, m.root,
      pgflow.day_head_(last.head, over.day, m.root)
    from pgflow.merkle_root_(roots) as m (root);
    closed := closed + 1;
  end loop;
  return closed;
end
$$;
comment on function pgflow.close_days_(timestamptz) is 'Computes the roots of days that are over; answers how many';

create or replace function pgflow.day_head_(before bytea, day date, root bytea)
returns bytea
language sql
stable
return sha256(decode('03', 'hex') || coalesce(before, ''::bytea)
  || convert_to(to_char(day, 'YYYY-MM-DD'), 'UTF8') || root);
comment on function pgflow.day_head_(bytea, date, bytea)
  is 'Head of a day: hash, behind 03, of the head of the day before it, the day and its root';

create or replace function pgflow.seal_units(max_runs int default 500, at_once boolean default false)
returns table (sealed int, has_more boolean, wait_seconds float8)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_variable
declare
  pause constant interval := '5 seconds';
  -- The more runs may still grow, the more seldom each is looked at.
  cycle constant interval := interval '30 seconds' + greatest(
    (select c.reltuples from pg_class c where c.oid = 'pgflow.seal_pending'::regclass), 0) * interval '1 ms';
  state pgflow.seal_state;
  starters text[];
  fresh bigint[] := '{}';
  open_runs bigint[];
  part record;
  ids bigint[] := '{}';
  most_evidence constant int := 1000;
  evidence bigint[];
  this_round bigint;
  last_at timestamptz;
  t timestamptz;
  until constant timestamptz := case when at_once then 'infinity' else clock_timestamp() + interval '50 ms' end;
begin
  sealed := 0;
  has_more := false;
  max_runs := greatest(coalesce(max_runs, 500), 1);
  at_once := coalesce(at_once, false);
  -- Not a row read by a sealer that was before us, nor runs that are seen later than the locks of their starts.
  if current_setting('transaction_isolation') <> 'read committed' then
    raise exception using errcode = 'PF006', message = 'the journal is sealed at the level read committed only';
  end if;
  if not (select s.is_on from pgflow.seal_state s) then
    return next;
    return;
  end if;
  if at_once then
    perform pg_advisory_xact_lock(pgflow.latch_('seal'));
  elsif not pg_try_advisory_xact_lock(pgflow.latch_('seal')) then
    wait_seconds := extract(epoch from pause);
    return next;
    return;
  end if;
  if at_once then
    perform pg_advisory_xact_lock_shared(pgflow.latch_('retention'));
  elsif not pg_try_advisory_xact_lock_shared(pgflow.latch_('retention')) then
    wait_seconds := 1;
    return next;
    return;
  end if;
  select s.* into strict state from pgflow.seal_state s;
  t := pgflow.now_();
  if not at_once and state.next_look_at > t and state.next_look_at <= t + pause then
    wait_seconds := extract(epoch from state.next_look_at - t);
    return next;
    return;
  end if;
  select r.round, r.sealed_at into this_round, last_at from pgflow.seal_round r order by r.round desc limit 1;
  this_round := coalesce(this_round, 0) + 1;
  t := greatest(t, last_at); -- a day that is closed stays closed, whatever becomes of the clock
  perform pgflow.close_days_(t);

  if state.next_run_id is null then
    select case when is_called then last_value else 0 end into state.next_run_id from pgflow.run_id_seq;
    -- In a statement of its own: every number drawn after it was read is greater.
    state.waits_for := pgflow.starters_(this_round = 1);
  elsif state.waits_for <> '{}' then
    starters := pgflow.starters_(this_round = 1);
    -- One that was prepared since has another name now.
    if starters && array['prepared'] then
      state.waits_for := array['prepared'];
    else
      state.waits_for := array(select unnest(state.waits_for) intersect select unnest(starters));
    end if;
  end if;
  if state.waits_for = '{}' then
    fresh := array(
      select r.run_id from pgflow.run r where r.run_id > state.passed_run_id and r.run_id <= state.next_run_id
      order by r.run_id limit max_runs
    );
    select s.* into strict part from pgflow.seal_until_(fresh, this_round, t, until) s;
    ids := part.sealed;
    if part.looked < cardinality(fresh) or part.looked = max_runs then
      state.passed_run_id := fresh[part.looked];
      has_more := true;
    else
      state.passed_run_id := greatest(state.passed_run_id, state.next_run_id);
      state.next_run_id := null;
      state.waits_for := null;
    end if;
  end if;

  if state.looked_upto > 0 or at_once or state.cycle_began_at is null or state.cycle_began_at + cycle <= t
     or state.cycle_began_at > t then
    if state.looked_upto = 0 then
      state.cycle_began_at := t;
    end if;
    open_runs := array(
      select distinct p.run_id from pgflow.seal_pending p
      where p.run_id > state.looked_upto and p.run_id <= state.passed_run_id and p.run_id <> all(fresh)
      order by p.run_id limit max_runs
    );
    select s.* into strict part from pgflow.seal_until_(open_runs, this_round, t, until) s;
    ids := ids || part.sealed;
    if part.looked < cardinality(open_runs) or part.looked = max_runs then
      state.looked_upto := open_runs[part.looked];
      has_more := true;
    else
      state.looked_upto := 0;
    end if;
  end if;

  ids := array(select i.id from unnest(ids) as i (id) order by i.id); -- as the leaves are
  -- Of one that has more units than a seal covers, the rest comes with the next round.
  if exists (
    select from pgflow.seal s where s.run_id = any(ids) and s.round = this_round and s.outcome_hash is null
      and exists (select from pgflow.unit u where u.run_id = s.run_id and u.seq = s.upto_seq + 1)
  ) then
    has_more := true;
    state.cycle_began_at := null;
  end if;
  evidence := array(
    select e.evidence_id from pgflow.evidence e where e.round is null order by e.evidence_id limit most_evidence
  );
  has_more := has_more or cardinality(evidence) = most_evidence;
  sealed := cardinality(ids);
  if sealed > 0 or evidence <> '{}' then
    update pgflow.evidence e set round = this_round where e.evidence_id = any(evidence);
    insert into pgflow.seal_round (round, sealed_at, day, root, runs)
    values (this_round, t, (t at time zone 'UTC')::date, pgflow.merkle_root_(pgflow.leaves_(this_round, ids)), ids);
  else
    perform set_config('synchronous_commit', 'off', true); -- nothing is lost but the knowledge where we are
  end if;
  wait_seconds := case when has_more then 0 else extract(epoch from pause) end;
  update pgflow.seal_state s
  set passed_run_id = state.passed_run_id, next_run_id = state.next_run_id, waits_for = state.waits_for,
    looked_upto = state.looked_upto, cycle_began_at = state.cycle_began_at,
    next_look_at = t + wait_seconds * interval '1 second';
  return next;
end
$$;
comment on function pgflow.seal_units(int, boolean)
  is 'One round of the sealer: seals what is new of at most so many new runs and so many that were open; answers how '
     'many have a new seal, whether there is more to do at once, and when the next round is due (null: sealing is '
     'off). at_once: without waiting for that time, and for other sealers';
--! grant seal_units to pgflow_worker, pgflow_operator

create or replace function pgflow.look_again_(ids bigint[])
returns void
language sql
volatile
set search_path = pg_catalog, pg_temp
as $$
  -- Sealed or not: the sealer may be about to seal it without what is added here. An old snapshot does not tell
  -- whether there is one.
  insert into pgflow.seal_pending (run_id)
  select i.id from unnest(ids) as i (id)
  where exists (select from pgflow.seal_state s where s.is_on) or exists (select from pgflow.seal_round)
    or current_setting('transaction_isolation') <> 'read committed'
$$;
comment on function pgflow.look_again_(bigint[])
  is 'Has the sealer look again at runs that may have ended, and whose journal or outcome is being added to';

create or replace function pgflow.drop_seals_(ids bigint[], t timestamptz)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
declare
  rounds bigint[];
begin
  delete from pgflow.seal_pending p where p.run_id = any(ids);
  delete from pgflow.evidence e where e.run_id = any(ids) and e.round is null;
  with gone as (
    update pgflow.seal s set dropped_at = t where s.run_id = any(ids) returning s.round
  ), unsaid as (
    update pgflow.evidence e set dropped_at = t where e.run_id = any(ids) returning e.round
  )
  select array_agg(distinct g.round) into rounds from (select * from gone union all select * from unsaid) g;
  if rounds is null then
    return;
  end if;
  -- Of a round that has no run any more, the root stays: it is all that its day needs.
  rounds := array(
    select r.round from pgflow.seal_round r where r.round = any(rounds) and not exists (
      select from unnest(r.runs) as m (id) join pgflow.seal s on s.run_id = m.id and s.round = r.round
      where s.dropped_at is null
    ) and not exists (select from pgflow.evidence e where e.round = r.round and e.dropped_at is null)
  );
  delete from pgflow.evidence e where e.round = any(rounds);
  delete from pgflow.seal s using pgflow.seal_round r, unnest(r.runs) as m (id)
  where r.round = any(rounds) and s.run_id = m.id and s.round = r.round;
  update pgflow.seal_round r set dropped_at = t, runs = '{}' where r.round = any(rounds);
end
$$;
comment on function pgflow.drop_seals_(bigint[], timestamptz)
  is 'Notes of seals that the history of their runs was removed, and removes those whose whole round is';

-- ---------------------------------------------------------------- looking

drop view if exists pgflow.seals;
create view pgflow.seals as
select r.key, r.generation, r.tenant, s.run_id, s.round, s.upto_seq, s.outcome_hash is not null as has_ended,
  encode(s.hash, 'hex') as hash, s.sealed_at, (s.sealed_at at time zone 'UTC')::date as day, s.dropped_at
from pgflow.seal s left join pgflow.run r on r.run_id = s.run_id;
comment on view pgflow.seals is 'Seals of runs: up to which unit each goes, and its hash';
--! grant seals to pgflow_client, pgflow_worker, pgflow_operator, pgflow_auditor
comment on column pgflow.seals.key is 'Key of the run; null = its history was removed';
comment on column pgflow.seals.generation is 'Generation of the run';
comment on column pgflow.seals.tenant is 'Tenant of the run; empty where there is only one';
comment on column pgflow.seals.run_id is 'The number of that generation';
comment on column pgflow.seals.round is 'The round that sealed it';
comment on column pgflow.seals.upto_seq is 'The last unit that it covers; 0 = none';
comment on column pgflow.seals.has_ended is 'True if it covers the outcome too';
comment on column pgflow.seals.hash is 'Its hash, chained to the seal before it';
comment on column pgflow.seals.sealed_at is 'Time of sealing';
comment on column pgflow.seals.day is 'Day of that time in UTC, whose root covers it once the day is over';
comment on column pgflow.seals.dropped_at is 'Time at which the history of the run was removed; null = it is there';

drop view if exists pgflow.seal_lag;
create view pgflow.seal_lag as
select s.is_on, l.round as last_round, l.sealed_at as last_sealed_at, s.passed_run_id,
  greatest(n.newest - s.passed_run_id, 0) as runs_behind, b.created_at as behind_since, s.cycle_began_at,
  (select count(distinct p.run_id) from pgflow.seal_pending p) as runs_pending, d.day as last_day, s.said_by, s.said_at,
  s.is_on and (b.created_at < clock_timestamp() - interval '1 hour'
    or s.cycle_began_at < clock_timestamp() - interval '1 day') is true as is_late
from pgflow.seal_state s
cross join (select case when is_called then last_value else 0 end as newest from pgflow.run_id_seq) n
left join lateral (select r.round, r.sealed_at from pgflow.seal_round r order by r.round desc limit 1) l on true
left join lateral (select d.day from pgflow.seal_day d order by d.day desc limit 1) d on true
left join lateral (
  select r.created_at from pgflow.run r where r.run_id > s.passed_run_id order by r.run_id limit 1
) b on true;
comment on view pgflow.seal_lag is 'Progress of the sealer: one row';
--! grant seal_lag to pgflow_client, pgflow_worker, pgflow_operator, pgflow_auditor
comment on column pgflow.seal_lag.is_on is 'True if workers seal';
comment on column pgflow.seal_lag.last_round is 'Number of the last round that sealed something; null = none has';
comment on column pgflow.seal_lag.last_sealed_at is 'Time of that round';
comment on column pgflow.seal_lag.passed_run_id is 'Every run up to this number is sealed or pending';
comment on column pgflow.seal_lag.runs_behind is 'Numbers of runs behind that one: those that it has not come to';
comment on column pgflow.seal_lag.behind_since is 'Start of the first of them; null = it has come to all';
comment on column pgflow.seal_lag.cycle_began_at is 'Time at which it last began to look at those that were open';
comment on column pgflow.seal_lag.runs_pending is 'Number of runs that it has come to and that may still grow';
comment on column pgflow.seal_lag.last_day is 'The last day that has its root; null = none has';
comment on column pgflow.seal_lag.said_by
  is 'Author of the last switch of sealing, with the role of the session in brackets; null = never switched';
comment on column pgflow.seal_lag.said_at is 'Time of that';
comment on column pgflow.seal_lag.is_late
  is 'True if it has not come to a run that started an hour ago, or to all open ones for a day';

create or replace function pgflow.check_seals_()
returns table (invariant text, detail text)
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  return query
  select 'the journal is append only by trigger', format('table %s', c.relname)
  from pg_class c
  where (c.oid = 'pgflow.unit'::regclass
      or c.oid in (select i.inhrelid from pg_inherits i where i.inhparent = 'pgflow.unit'::regclass))
    and not exists (
      select from pg_trigger g where g.tgrelid = c.oid and g.tgname = 'append_only' and g.tgenabled in ('O', 'A')
    )
  union all
  select 'a seal belongs to its round', format('run %s, round %s', s.run_id, s.round)
  from pgflow.seal s where not exists (
    select from pgflow.seal_round d where d.round = s.round and s.run_id = any(d.runs)
  )
  union all
  select 'the runs that were passed are sealed or pending', format('run %s', r.run_id)
  from pgflow.run r cross join pgflow.seal_state s
  where r.run_id <= s.passed_run_id
    and not exists (select from pgflow.seal x where x.run_id = r.run_id)
    and not exists (select from pgflow.seal_pending p where p.run_id = r.run_id)
  union all
  select 'what is sealed is what is there', format('run %s: %s: %s', i.run_id, v.finding, v.detail)
  from (
    select distinct s.run_id from pgflow.seal s join pgflow.seal_round d on d.round = s.round and s.run_id = any(d.runs)
  ) i
  cross join lateral pgflow.verify_run_(i.run_id) v;
end
$$;
comment on function pgflow.check_seals_() is 'The journal is guarded, and equals what was sealed of it';
