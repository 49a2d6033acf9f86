-- Evidence: acts and statements of people that are in no journal, sealed like a journal.
--
-- Answers at gates, delegations, broken locks, changes of the policy, of queues, pools, schedules and relays, imports
-- and removals of history are rows of tables of their own. The function that writes such a row notes its hash here,
-- in the same transaction. The sealer takes the notes as further leaves of its round (sql/ledgers/seals.sql). So an
-- edited or removed row differs from its hash, an inserted row has none, and an edited hash changes the root of its
-- round.
--
-- A row never changes once it is noted. Later facts are kinds of their own: an answer that the code could not take
-- (`gate_refusal`), and a loss that was closed (`loss_closed`). Values of answers count by the hash of their text, as
-- payloads do, so that they can be redacted.

create or replace function pgflow.evidence_kinds_()
returns table (kind text, is_of_run boolean, source text, key text, finds text)
language sql
immutable
set search_path = pg_catalog, pg_temp
as $$
  values
    ('gate_answer', true, 'select gate, n, run_id, answered_at, closes, verdict, answered_by, sent_by, payload_hash, '
      'hand_to, reason, acting_as, value from pgflow.gate_answer',
      'json_build_array(r.gate, r.n)', 'r.gate = $1->>0 and r.n = ($1->>1)::int'),
    ('gate_refusal', true, 'select gate, n, run_id, refusal from pgflow.gate_answer where refusal is not null',
      'json_build_array(r.gate, r.n)', 'r.gate = $1->>0 and r.n = ($1->>1)::int'),
    ('imported', true, 'select * from pgflow.imported',
      'json_build_array(r.run_id)', 'r.run_id = ($1->>0)::bigint'),
    ('lock_broken', false, 'select * from pgflow.lock_broken',
      'json_build_array(r.fence)', 'r.fence = ($1->>0)::bigint'),
    ('policy', false, 'select * from pgflow.policy',
      'json_build_array(r.version)', 'r.version = ($1->>0)::int'),
    ('policy_rule', false, 'select * from pgflow.policy_rule',
      'json_build_array(r.version, r.rule)', 'r.version = ($1->>0)::int and r.rule = ($1->>1)::int'),
    ('queue_change', false, 'select * from pgflow.queue_change',
      'json_build_array(r.queue_change_id)', 'r.queue_change_id = ($1->>0)::bigint'),
    ('pool_change', false, 'select * from pgflow.pool_change',
      'json_build_array(r.pool_change_id)', 'r.pool_change_id = ($1->>0)::bigint'),
    ('schedule_change', false, 'select * from pgflow.schedule_change',
      'json_build_array(r.change_id)', 'r.change_id = ($1->>0)::bigint'),
    ('relay_change', false, 'select * from pgflow.document '
      'where collection = ''pgflow.relays''',
      'array_to_json(r.path)', 'r.path = array(select json_array_elements_text($1))'),
    ('dropped_history', false, 'select * from pgflow.dropped_history',
      'json_build_array(r.dropped_history_id)', 'r.dropped_history_id = ($1->>0)::bigint'),
    ('loss', false, 'select loss_id, noticed_at, acknowledged_at, acknowledged_bytes, kept_bytes, old_timeline, '
      'new_timeline, worker_id, pid, run_count, host, runs from pgflow.loss',
      'json_build_array(r.loss_id)', 'r.loss_id = ($1->>0)::bigint'),
    ('loss_closed', false, 'select loss_id, closed_at, closed_by, why from pgflow.loss '
      'where num_nonnulls(closed_at, closed_by, why) > 0',
      'json_build_array(r.loss_id)', 'r.loss_id = ($1->>0)::bigint')
$$;
comment on function pgflow.evidence_kinds_()
  is 'Kinds of evidence: whether one belongs to a run, the rows, the key of a row r as JSON, and how $1 finds it';

create or replace function pgflow.evidence_hash_(kind text, key text)
returns bytea
language plpgsql
stable
set search_path = pg_catalog, pg_temp
set timezone = 'UTC'
set extra_float_digits = 1
set intervalstyle = 'postgres'
set bytea_output = 'hex'
as $$
#variable_conflict use_variable
declare
  known record;
  body json;
begin
  select k.* into known from pgflow.evidence_kinds_() k where k.kind = kind;
  if not found then
    return null;
  end if;
  execute format('select row_to_json(r) from (%s) r where %s', known.source, known.finds) into body using key::json;
  return (
    -- Columns that are null count as if they were not there: a later version may add some.
    select sha256(decode('05', 'hex') || convert_to(json_agg(json_build_array(c.key, case
      when c.key = 'value' and kind = 'gate_answer' then encode(pgflow.value_hash_(c.value::text), 'hex')
      else c.value::text end) order by c.key)::text, 'UTF8'))
    from json_each(body) c where json_typeof(c.value) <> 'null' having count(*) > 0
  );
exception when data_exception then
  return null; -- no key of ours
end
$$;
comment on function pgflow.evidence_hash_(text, text)
  is 'Hash, behind 05, of the row of a kind that has this key; null if there is none';

create or replace function pgflow.note_evidence_(kind text, key json, run_id bigint default null)
returns void
language sql
volatile
set search_path = pg_catalog, pg_temp
as $$
  insert into pgflow.evidence (run_id, noted_at, kind, key, hash)
  values (run_id, pgflow.now_(), kind, key::text, pgflow.evidence_hash_(kind, key::text))
$$;
comment on function pgflow.note_evidence_(text, json, bigint)
  is 'Notes a row that was just written, so that it is sealed. Every function that writes such a row calls this';

create or replace function pgflow.compare_evidence_(e pgflow.evidence)
returns table (finding text, detail text)
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
declare
  hash bytea := pgflow.evidence_hash_(e.kind, e.key);
begin
  if hash is null then
    if e.dropped_at is null
      or not exists (select from pgflow.dropped_history h where h.dropped_at = e.dropped_at) then
      return query select 'evidence_missing', format('%s %s is gone', e.kind, e.key);
    end if;
  elsif hash <> e.hash then
    return query select 'evidence_changed', format('%s %s is not as it was noted', e.kind, e.key);
  elsif e.dropped_at is not null then
    return query select 'evidence_changed', format('%s %s is there, and noted as removed', e.kind, e.key);
  elsif e.kind = 'gate_answer' and exists (
    select from pgflow.gate_answer a
    where a.gate = e.key::json->>0 and a.n = (e.key::json->>1)::int and pgflow.is_redacted_(a.value::text)
      and not exists (
        select from pgflow.unit z join pgflow.unit u on u.run_id = z.run_id and u.seq = (z.payload->>'seq')::int
        where z.run_id = a.run_id and z.kind = 'Z' and u.kind in ('g', 'G')
      )
  ) then
    return query select 'redaction_unrecorded', format('the value of %s %s is redacted, and no unit says so', e.kind,
      e.key);
  end if;
end
$$;
comment on function pgflow.compare_evidence_(pgflow.evidence)
  is 'Compares a row with what was noted of it; answers how it differs';

create or replace function pgflow.unnoted_(kinds text[], me bigint default null)
returns table (finding text, detail text)
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
declare
  known record;
begin
  for known in select k.* from pgflow.evidence_kinds_() k where k.kind = any(kinds) loop
    return query execute format(
      'select %L, format(''%%s %%s was put in'', %L::text, (%s)::text) from (%s) r where ($1 is null or %s) and not '
      'exists (select from pgflow.evidence e where e.kind = %2$L and e.key = (%3$s)::text) limit 1000',
      'evidence_added', known.kind, known.key, known.source,
      case when known.is_of_run then 'r.run_id = $1' else 'false' end
    ) using me;
  end loop;
end
$$;
comment on function pgflow.unnoted_(text[], bigint)
  is 'Rows of these kinds, or those of a run, of which nothing was noted: no function of ours has written them';

create or replace function pgflow.verify_said_(me bigint)
returns table (finding text, detail text)
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
begin
  return query
  select v.finding, v.detail from pgflow.evidence e cross join lateral pgflow.compare_evidence_(e) v
  where e.run_id = me order by e.evidence_id;
  return query
  select v.* from pgflow.unnoted_(array(select k.kind from pgflow.evidence_kinds_() k where k.is_of_run), me) v;
end
$$;
comment on function pgflow.verify_said_(bigint)
  is 'Compares the answers at the gates of a run, and the author of its import, with their noted hashes; returns the '
     'differences';

create or replace function pgflow.verify_evidence(after bigint default 0, max int default 1000)
returns jsonb
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
  ids bigint[];
  found_ jsonb;
begin
  perform pgflow.check_page_(after, max);
  ids := array(
    select e.evidence_id from pgflow.evidence e where e.evidence_id > after and e.run_id is null
    order by e.evidence_id limit max
  );
  select coalesce(jsonb_agg(jsonb_build_array(v.finding, v.detail) order by e.evidence_id), '[]') into found_
  from pgflow.evidence e cross join lateral pgflow.compare_evidence_(e) v where e.evidence_id = any(ids);
  if cardinality(ids) < max then
    found_ := found_ || coalesce((
      select jsonb_agg(jsonb_build_array(v.finding, v.detail))
      from pgflow.unnoted_(array(select k.kind from pgflow.evidence_kinds_() k where not k.is_of_run)) v
    ), '[]');
  end if;
  return jsonb_build_object('rows', cardinality(ids), 'findings', found_,
    'next', case when cardinality(ids) = max then ids[max] end);
end
$$;
comment on function pgflow.verify_evidence(bigint, int)
  is 'Compares a page of what operators did with what was noted of it: broken locks, changes of policy, queues, pools, '
     'schedules and relays, removals of history, losses. {rows: how many, findings: [[finding, detail], ...], next: '
     'where the next page begins, null at the end, where it also finds what was put in}. Of runs verify_runs does so';
--! grant verify_evidence to pgflow_operator, pgflow_auditor

create or replace function pgflow.check_evidence_()
returns table (invariant text, detail text)
language sql
volatile
set search_path = pg_catalog, pg_temp
as $$
  select 'what people said is as it was noted', format('%s', v.detail)
  from pgflow.evidence e cross join lateral pgflow.compare_evidence_(e) v
  union all
  select 'what people said is as it was noted', format('%s', v.detail)
  from pgflow.unnoted_(array(select k.kind from pgflow.evidence_kinds_() k)) v
$$;
comment on function pgflow.check_evidence_() is 'Every row that is evidence is noted, and is as it was then';
