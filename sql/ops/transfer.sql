-- Runs as text: out of one database, to be replayed anywhere or kept, and into another.
--
-- A line is one generation of a run: an object with the version of the format, what the run was started
-- with, how it stood, and its journal. Inputs, results, errors and payloads are the exact text that was
-- recorded, as strings. Waiting mail, timers and leases are not history and stay where they are.
--
-- An export of what has ended (`list_ended`) shares `pgflow.retention` until its page is written, so nothing that it
-- lists is removed first. What was removed before that is counted, so that a copy never lacks runs unnoticed.
--
-- An imported run is history and nothing else. It gets an outcome in the transaction that inserts it, so it
-- has no place from which it could be claimed, woken, resumed or cancelled into running. One that was open is
-- `cancelled` here, with the reason `imported while waiting`; `imported` keeps the status that it had.

create or replace function pgflow.told_heritage_(run_id bigint, heritage jsonb)
returns jsonb
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
  select heritage - 'request' || jsonb_strip_nulls(
    jsonb_build_object('children', pgflow.carried_children_(told_heritage_.run_id, heritage)))
$$;
comment on function pgflow.told_heritage_(bigint, jsonb)
  is 'Facts for a replay on a run that begins with the journal of another';

create or replace function pgflow.export_runs(chains bigint[])
returns table (chain_id bigint, run_id bigint, last_seq int, history text)
language sql
volatile
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
  select r.chain_id, r.run_id, coalesce((select max(u.seq) from pgflow.unit u where u.run_id = r.run_id), 0),
    json_build_object(
      'pgflow_history', 1, 'key', r.key, 'tenant', r.tenant, 'root', r.root, 'generation', r.generation,
      'run_id', r.run_id,
      'workflow', l.workflow, 'queue', l.queue, 'version', l.version, 'priority', r.priority,
      'status', coalesce(i.status, pgflow.status_(r.run_id)),
      'reason', case when i.run_id is null
        then coalesce(o.reason, (select h.reason from pgflow.held h where h.run_id = r.run_id)) end,
      'holds_key', exists (select from pgflow.run_key k
        where k.tenant = r.tenant and k.key = r.key and k.chain_id = r.chain_id),
      'parent', case
        when p.run_id is not null
          then jsonb_build_object('run_id', p.run_id, 'root', p.root, 'generation', p.generation, 'call', r.parent_call,
            'close_policy', r.close_policy)
        else i.origin->'parent' end,
      'created_us', pgflow.micros_(r.created_at), 'run_at_us', pgflow.micros_(r.run_at),
      'deadline_us', pgflow.micros_(r.deadline_at),
      'ended_us', case when i.run_id is null then pgflow.micros_(o.finished_at)
        else (i.origin->>'ended_us')::bigint end,
      'exported_us', pgflow.micros_(pgflow.now_()),
      'labels', nullif(pgflow.labels_at_start_(r.run_id, r.labels), '{}'), 'metadata', r.metadata,
      'heritage', pgflow.told_heritage_(r.run_id, r.heritage), 'origin_seq', r.origin_seq,
      'saga', pgflow.carried_saga_(r.chain_id, r.generation), 'input', r.input::text, 'output', o.output::text,
      'error', o.error::text
    )::text
  from unnest(chains) with ordinality as c (id, n)
  cross join lateral (
    select g.* from pgflow.run g where g.run_id = c.id
    union all
    select g.* from pgflow.run g where g.chain_id = c.id and g.generation > 1
  ) r
  join pgflow.lane l on l.lane_id = r.lane_id
  left join pgflow.outcome o on o.run_id = r.run_id
  left join pgflow.run p on p.run_id = r.parent_run_id
  left join pgflow.imported i on i.run_id = r.run_id
  order by c.n, r.generation
$$;
comment on function pgflow.export_runs(bigint[])
  is 'Each generation of these chains as a JSON object without its journal, which export_units has: what import_run '
     'reads';
--! grant export_runs to pgflow_worker, pgflow_operator

create or replace function pgflow.export_units(run_id bigint, after_seq int default 0)
returns text
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
  select json_agg(json_build_array(
      u.seq, u.call, u.kind, u.name, u.payload::text, u.starts, pgflow.micros_(u.at), pgflow.micros_(u.due_at),
      pgflow.micros_(u.recorded_at), u.token, u.args_hash, u.key
    ) order by u.seq)::text
  from (
    select p.*, sum(coalesce(octet_length(p.payload::text), 0) + 100) over (order by p.seq) as upto
    from (
      select * from pgflow.unit where run_id = export_units.run_id and seq > after_seq order by seq limit 2000
    ) p
  ) u
  where u.upto <= 1048576 or u.seq - 1 = after_seq
$$;
comment on function pgflow.export_units(bigint, int)
  is 'A page of a journal as JSON: [[seq, call, kind, name, payload as text, starts, at, due_at, recorded_at, token, '
     'args_hash, key], ...]; null at its end';
--! grant export_units to pgflow_worker, pgflow_operator

create or replace function pgflow.export_blobs(chains bigint[])
returns table (tenant text, digest text, size_bytes bigint)
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
  select b.tenant, encode(b.digest, 'hex'), b.size_bytes
  from pgflow.blob b
  where b.digest is not null and b.blob_id in (
    select u.blob_id
    from unnest(chains) c (id)
    cross join lateral (
      select c.id as run_id union select g.run_id from pgflow.run g where g.chain_id = c.id and g.generation > 1
    ) r
    join pgflow.blob_use u on u.run_id = r.run_id
  )
  order by b.blob_id
$$;
comment on function pgflow.export_blobs(bigint[])
  is 'Large values that runs of these chains name; read_chunk() reads them';
--! grant export_blobs to pgflow_worker, pgflow_operator

create or replace function pgflow.list_ended(place jsonb default null, max int default 1000)
returns table (chains bigint[], next jsonb, has_more boolean)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
declare
  passed bigint := coalesce((place->>'passed')::bigint, 0);
  upto bigint := (place->>'upto')::bigint;
  waits_for text[] := array(select jsonb_array_elements_text(place->'waits_for'));
  open bigint[] := array(select jsonb_array_elements_text(place->'open')::bigint);
  at timestamptz := (place->>'at')::timestamptz;
  own constant text[] := pgflow.own_tenants();
  found bigint[];
  still bigint[];
  removed bigint := 0;
begin
  perform pg_advisory_xact_lock_shared(pgflow.latch_('retention'));
  -- As the sealer passes new runs (sql/ledgers/seals.sql): none can appear behind it.
  if upto is null then
    select coalesce(sum(d.runs), 0) into removed from pgflow.dropped_history d
    where d.dropped_at > at and d.ended_before > at;
    at := pgflow.now_();
    select case when s.is_called then s.last_value else 0 end into upto from pgflow.run_id_seq s;
    waits_for := pgflow.starters_(false);
  elsif waits_for <> '{}' then
    waits_for := array(select unnest(waits_for) intersect select unnest(pgflow.starters_(false)));
  end if;
  found := '{}';
  if waits_for = '{}' then
    found := array(
      select r.run_id from pgflow.run r
      where r.run_id > passed and r.run_id <= upto and r.generation = 1 and (own is null or r.tenant = any(own))
      order by r.run_id limit pgflow.at_most_(max)
    );
  end if;
  has_more := cardinality(found) >= max;
  select coalesce(array_agg(c.id order by c.id) filter (where o.run_id is not null), '{}'),
    coalesce(array_agg(c.id order by c.id) filter (where o.run_id is null), '{}')
  into chains, still
  from unnest(open || found) as c (id)
  join pgflow.run r on r.run_id = c.id
  left join pgflow.outcome o on o.run_id = pgflow.newest_run_(c.id);
  removed := greatest(removed, cardinality(open || found) - cardinality(chains || still));
  next := jsonb_build_object('at', at, 'removed', removed, 'open', to_jsonb(still), 'waits_for', case when has_more or waits_for <> '{}'
      then to_jsonb(waits_for) else '[]' end, 'upto', case when has_more or waits_for <> '{}' then upto end,
    'passed', case when has_more then found[max] when waits_for <> '{}' then passed else greatest(passed, upto) end);
  return next;
end
$$;
comment on function pgflow.list_ended(jsonb, int)
  is 'Chains that have ended since a place, each once, those of the session''s tenants; the place to go on from, which '
     'names the runs that were open, and whether there is more to read at once. Its `removed` is how many runs at most were '
     'removed before they were listed. A run that is done again after its end is not listed a second time. Nothing is '
     'removed until the transaction ends: read them in it';
--! grant list_ended to pgflow_operator

create or replace function pgflow.check_history_(history jsonb)
returns void
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
declare
  whose text := format('run %s', coalesce(quote_literal(history->>'key'), 'without a key'));
  strange text;
begin
  if jsonb_typeof(history) is distinct from 'object' or history->>'pgflow_history' is null then
    raise exception using errcode = 'PF003', message = 'not a history of a run: pgflow_history is missing',
      hint = '`pgflow export` writes histories, one a line.';
  end if;
  if history->>'pgflow_history' <> '1' then
    raise exception using errcode = 'PF003',
      message = format('the history is of format %s, this version reads format 1', history->>'pgflow_history'),
      hint = 'Upgrade pgflow-engine here, or export with this version.';
  end if;
  if coalesce(history->>'key', '') = '' then
    raise exception using errcode = 'PF003', message = 'a history lacks its key';
  end if;
  perform pgflow.check_key_(history->>'key');
  perform pgflow.check_name_(history->>'workflow', 'the name of a workflow');
  perform pgflow.check_name_(history->>'queue', 'the name of a queue');
  perform pgflow.check_input_((history->>'input')::json);
  if coalesce(history->>'status', '') not in ('queued', 'running', 'waiting', 'paused', 'stuck', 'completed', 'failed',
    'cancelled', 'continued') then
    raise exception using errcode = 'PF003',
      message = format('%s has the status %s, which is none', whose,
        coalesce(quote_literal(history->>'status'), 'null'));
  end if;
  if jsonb_typeof(history->'units') is distinct from 'array' then
    raise exception using errcode = 'PF003', message = format('%s lacks its journal: units must be an array', whose);
  end if;
  select format('unit %s where unit %s must be', coalesce(u->>0, 'null'), n) into strange
  from jsonb_array_elements(history->'units') with ordinality as e (u, n) where u->>0 is distinct from n::text limit 1;
  if strange is not null then
    raise exception using errcode = 'PF003', message = format('the journal of %s has %s', whose, strange);
  end if;
  select format('unit %s of kind %s', u->>0, coalesce(quote_literal(u->>2), 'null')) into strange
  from jsonb_array_elements(history->'units') u
  where not exists (select from pgflow.unit_kind k where k.kind::text = u->>2) limit 1;
  if strange is not null then
    raise exception using errcode = 'PF003',
      message = format('the journal of %s has %s, which this version does not know', whose, strange);
  end if;
  select format('call %s ended %s times', u->>1, count(*)) into strange
  from jsonb_array_elements(history->'units') u join pgflow.unit_kind k on k.kind::text = u->>2
  where k.is_terminal and u->>1 <> '0'
    -- The code may give up an effect; the ledger follows it to its end all the same.
    and not (u->>2 = 'X' and exists (select from jsonb_array_elements(history->'units') i where i->>1 = u->>1
      and i->>2 = 'i'))
  group by u->>1 having count(*) > 1 limit 1;
  if strange is not null then
    raise exception using errcode = 'PF003', message = format('the journal of %s is not sound: %s', whose, strange);
  end if;
  -- Save what became, afterwards, of effects that a run ended by force had left open, or done, and of what it owed;
  -- and redactions.
  if (
    select max((u->>8)::bigint) from jsonb_array_elements(history->'units') u
    where not (u->>9 = '0' and (u->>2 in ('U', 'E', 'C', 'F', 'D', 'B', 'Z')
      or u->>2 = 'o' and u->>3 in ('owed', 'discharged')))
  ) > (history->>'ended_us')::bigint then
    raise exception using errcode = 'PF003',
      message = format('the journal of %s is not sound: it goes on after the end of the run', whose);
  end if;
end
$$;
comment on function pgflow.check_history_(jsonb) is 'Refuses (PF003) a history that no run can have had';

create or replace function pgflow.from_micros_(us bigint)
returns timestamptz
language sql
immutable strict
return timestamptz 'epoch' + us * interval '1 microsecond';
comment on function pgflow.from_micros_(bigint) is 'Converts microseconds since 1970 to a time';

create or replace function pgflow.insert_history_(history json, header jsonb, t timestamptz)
returns bigint
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  me bigint := nextval('pgflow.run_id_seq');
  stem uuid := (header->>'root')::uuid;
  gen int := (header->>'generation')::int;
  was text := header->>'status';
  ended_at timestamptz := pgflow.from_micros_((header->>'ended_us')::bigint);
  is_open boolean := was in ('queued', 'running', 'waiting', 'paused', 'stuck');
  chain bigint := me;
  before_status text;
  parent record;
begin
  if exists (select from pgflow.imported i where i.root = stem and i.generation = gen) then
    raise exception using errcode = 'PF002',
      message = format('run %s was imported before', quote_literal(header->>'key'));
  end if;
  if gen = 1 and (header->'holds_key')::boolean then
    insert into pgflow.run_key (tenant, key, chain_id, root) values (header->>'tenant', header->>'key', me, stem)
    on conflict do nothing;
    if not found then
      raise exception using errcode = 'PF002',
        message = format('the key %s already names a run of this database', quote_literal(header->>'key')),
        hint = 'Import into a database without it.';
    end if;
  elsif gen > 1 then
    select r.chain_id, i.status into chain, before_status
    from pgflow.imported i join pgflow.run r on r.run_id = i.run_id where i.root = stem and i.generation = gen - 1;
    if before_status is distinct from 'continued' then
      raise exception using errcode = 'PF003',
        message = format('generation %s of run %s comes without the one before it', gen, quote_literal(header->>'key')),
        hint = 'Export the run again: all its generations go together.';
    end if;
  end if;
  select r.run_id, r.root_run_id into parent
  from pgflow.imported i
  join pgflow.run r on r.run_id = i.run_id
  join pgflow.unit u on u.run_id = i.run_id and u.kind = 'k' and u.call = (header->'parent'->>'call')::int
  where i.root = (header->'parent'->>'root')::uuid and i.generation = (header->'parent'->>'generation')::int;

  insert into pgflow.run (
    run_id, chain_id, root_run_id, created_at, run_at, deadline_at, root, generation, lane_id, priority, tenant, key,
    input, labels, metadata,
    parent_run_id, parent_call, close_policy, heritage, origin_seq
  ) values (
    me, chain, coalesce(parent.root_run_id, me), pgflow.from_micros_((header->>'created_us')::bigint),
    pgflow.from_micros_((header->>'run_at_us')::bigint),
    pgflow.from_micros_((header->>'deadline_us')::bigint), stem, gen,
    pgflow.intern_lane_(header->>'queue', header->>'workflow', header->>'version'), (header->>'priority')::smallint,
    header->>'tenant',
    header->>'key', (header->>'input')::json, nullif(header->'labels', 'null'), nullif(header->'metadata', 'null'),
    parent.run_id, case when parent.run_id is not null then (header->'parent'->>'call')::int end,
    case when parent.run_id is not null then (header->'parent'->>'close_policy')::"char" end,
    nullif(header->'heritage', 'null'), (header->>'origin_seq')::int
  );
  insert into pgflow.unit (run_id, seq, call, kind, name, payload, starts, at, due_at, recorded_at, token,
    args_hash, key)
  select me, (u->>0)::int, (u->>1)::int, (u->>2)::"char", u->>3, (u->>4)::json, case when json_typeof(u->5) <> 'null'
    then u->5 end,
    pgflow.from_micros_((u->>6)::bigint), pgflow.from_micros_((u->>7)::bigint), pgflow.from_micros_((u->>8)::bigint),
    (u->>9)::bigint, (u->>10)::bigint, u->>11
  from json_array_elements(history->'units') u;
  perform pgflow.relabel_(me, 0);
  perform pgflow.take_in_saga_(chain, gen, nullif(header->'saga', 'null'));
  insert into pgflow.outcome (run_id, finished_at, status, reason, output, error)
  values (
    me, coalesce(ended_at, greatest(t, (select max(u.recorded_at) from pgflow.unit u where u.run_id = me))),
    case when is_open then 'cancelled' else was end, case when is_open then 'imported while ' || was
      else header->>'reason' end,
    (header->>'output')::json, (header->>'error')::json
  );
  insert into pgflow.imported (run_id, imported_at, generation, root, status, imported_by, origin)
  values (me, t, gen, stem, was, session_user,
    jsonb_build_object('run_id', header->'run_id', 'ended_us', header->'ended_us', 'parent', header->'parent'));
  perform pgflow.note_evidence_('imported', json_build_array(me), me);
  return me;
end
$$;
comment on function pgflow.insert_history_(json, jsonb, timestamptz)
  is 'Inserts a run that has ended, with its journal';

create or replace function pgflow.import_run(history json)
returns bigint
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  header jsonb;
  me bigint;
begin
  begin
    header := history::jsonb;
    perform pgflow.check_history_(header);
    me := pgflow.insert_history_(history, header - 'units', pgflow.now_());
  exception when data_exception or integrity_constraint_violation or program_limit_exceeded then
    raise exception using errcode = 'PF003',
      message = format('the history of run %s cannot be stored: %s', quote_nullable(header->>'key'), sqlerrm);
  end;
  if me % 100000 = 0 then
    perform pgflow.add_unit_partitions();
  end if;
  return me;
end
$$;
comment on function pgflow.import_run(json)
  is 'Inserts a run that another database exported, as history that nothing can execute; answers its number here. '
     'PF002 if the key or the run is known, PF003 if the text is not a history';
--! grant import_run to pgflow_operator

comment on column pgflow.imported.run_id is 'The number that the run has here';
comment on column pgflow.imported.imported_at is 'Time of the import';
comment on column pgflow.imported.generation is 'Number of the generation in its chain';
comment on column pgflow.imported.root is 'UUID of its chain: with the generation, the name of a run in all databases';
comment on column pgflow.imported.status is 'The status that it had where it was exported';
comment on column pgflow.imported.imported_by is 'Name of the session that imported it';
comment on column pgflow.imported.origin is 'Origin there: its number, and the run that started it';
