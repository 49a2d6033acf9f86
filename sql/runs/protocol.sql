-- Rows that cross between a worker and the database, read by name. Made by tools/protocol.py from
-- pgflow/_model/protocol.py, which describes each kind, its fields, their units and their writers.
--
-- The planner inlines each function into the query that calls it, for which it must be stable, have no settings and
-- not be numbered by its caller (`with ordinality`): so a reader numbers its rows itself.

create or replace function pgflow.run_rows_(list jsonb)
returns table (run_id bigint, token bigint, expected_seq int)
language sql
stable
begin atomic
  select (r.e->0)::bigint as run_id, (r.e->1)::bigint as token, (r.e->2)::int as expected_seq
  from jsonb_array_elements(list) as r (e);
end;
comment on function pgflow.run_rows_(jsonb)
  is 'Rows of the protocol as columns: runs of a batch, each fenced by the token of its lease';

create or replace function pgflow.unit_rows_(list jsonb)
returns table (run_id bigint, seq int, call int, kind "char", name text, payload json, starts json, at timestamptz,
  delay interval, token bigint, key text, apart int)
language sql
stable
begin atomic
  select (r.e->0)::bigint as run_id, (r.e->1)::int as seq, (r.e->2)::int as call, (r.e->>3)::"char" as kind,
  r.e->>4 as name, (r.e->>5)::json as payload, (r.e->>6)::json as starts,
  timestamptz 'epoch' + (r.e->7)::bigint * interval '1 microsecond' as at,
  (r.e->>8)::float8 * interval '1 second' as delay, (r.e->9)::bigint as token, r.e->>10 as key,
  (r.e->>11)::int as apart
  from jsonb_array_elements(list) as r (e);
end;
comment on function pgflow.unit_rows_(jsonb)
  is 'Rows of the protocol as columns: units to append to journals';

create or replace function pgflow.end_rows_(list jsonb)
returns table (run_id bigint, status text, reason text, output json, error json, chain_id bigint, token bigint,
  apart int)
language sql
stable
begin atomic
  select (r.e->0)::bigint as run_id, r.e->>1 as status, r.e->>2 as reason, (r.e->>3)::json as output,
  (r.e->>4)::json as error, (r.e->5)::bigint as chain_id, (r.e->6)::bigint as token, (r.e->>7)::int as apart
  from jsonb_array_elements(list) as r (e);
end;
comment on function pgflow.end_rows_(jsonb)
  is 'Rows of the protocol as columns: ends of runs';

create or replace function pgflow.taken_rows_(list jsonb)
returns table (run_id bigint, chain_id bigint, name text, signal_id bigint, kind "char")
language sql
stable
begin atomic
  select (r.e->0)::bigint as run_id, (r.e->1)::bigint as chain_id, r.e->>2 as name, (r.e->3)::bigint as signal_id,
  (r.e->>4)::"char" as kind
  from jsonb_array_elements(list) as r (e);
end;
comment on function pgflow.taken_rows_(jsonb)
  is 'Rows of the protocol as columns: messages to delete from mailboxes; a unit of the batch records each';

create or replace function pgflow.returned_rows_(list jsonb)
returns table (run_id bigint, chain_id bigint, call int, seq int, error text)
language sql
stable
begin atomic
  select (r.e->0)::bigint as run_id, (r.e->1)::bigint as chain_id, (r.e->2)::int as call, (r.e->3)::int as seq,
  r.e->>4 as error
  from jsonb_array_elements(list) as r (e);
end;
comment on function pgflow.returned_rows_(jsonb)
  is 'Rows of the protocol as columns: messages and answers of gates that were taken and go back, with the reason';

create or replace function pgflow.draw_rows_(list jsonb)
returns table (run_id bigint, call int)
language sql
stable
begin atomic
  select (r.e->0)::bigint as run_id, (r.e->>1)::int as call
  from jsonb_array_elements(list) as r (e);
end;
comment on function pgflow.draw_rows_(jsonb)
  is 'Rows of the protocol as columns: calls whose reservations in pools are returned';

create or replace function pgflow.reply_rows_(list jsonb)
returns table (run_id bigint, chain_id bigint, update_id text, message bigint, seq int, status text, error json)
language sql
stable
begin atomic
  select (r.e->0)::bigint as run_id, (r.e->1)::bigint as chain_id, r.e->>2 as update_id, (r.e->>3)::bigint as message,
  (r.e->>4)::int as seq, r.e->>5 as status, (r.e->>6)::json as error
  from jsonb_array_elements(list) as r (e);
end;
comment on function pgflow.reply_rows_(jsonb)
  is 'Rows of the protocol as columns: updates that are taken out of mailboxes, or answered, or both';

create or replace function pgflow.question_rows_(list jsonb)
returns table (pos int, question jsonb, continue text, children jsonb, signals jsonb, timers jsonb, retries jsonb,
  child_calls jsonb, unwanted jsonb, cancelled boolean, idle boolean, park boolean, stuck jsonb, hold jsonb,
  refused jsonb, cancel jsonb, saga jsonb, of_children jsonb, owes boolean, gated boolean, awaited boolean,
  admits jsonb, effects jsonb, open_effects jsonb, gates jsonb, new_gates jsonb, locks jsonb, holds jsonb,
  unlocks jsonb, updates jsonb, events jsonb, run bigint, token bigint, chain bigint, seq int)
language sql
stable
begin atomic
  select r.n::int as pos, r.e as question, r.e->>'continue' as continue, r.e->'children' as children,
  r.e->'signals' as signals, r.e->'timers' as timers, r.e->'retries' as retries, r.e->'child_calls' as child_calls,
  r.e->'unwanted' as unwanted, (r.e->>'cancelled')::boolean as cancelled, (r.e->>'idle')::boolean as idle,
  (r.e->>'park')::boolean as park, r.e->'stuck' as stuck, r.e->'hold' as hold, r.e->'refused' as refused,
  r.e->'cancel' as cancel, r.e->'saga' as saga, r.e->'of_children' as of_children, (r.e->>'owes')::boolean as owes,
  (r.e->>'gated')::boolean as gated, (r.e->>'awaited')::boolean as awaited, r.e->'admits' as admits,
  r.e->'effects' as effects, r.e->'open_effects' as open_effects, r.e->'gates' as gates, r.e->'new_gates' as new_gates,
  r.e->'locks' as locks, r.e->'holds' as holds, r.e->'unlocks' as unlocks, r.e->'updates' as updates,
  r.e->'events' as events, (r.e->'run')::bigint as run, (r.e->'token')::bigint as token,
  (r.e->'chain')::bigint as chain, (r.e->'seq')::int as seq
  from jsonb_array_elements(list) with ordinality as r (e, n);
end;
comment on function pgflow.question_rows_(jsonb)
  is 'Objects of the protocol as columns: questions of runs that commit: for a decision of the database, or a change of place';

create or replace function pgflow.child_rows_(list jsonb)
returns table (n int, child jsonb, call int, workflow text, queue text, input json, key text, priority int,
  run_at timestamptz, timeout interval, labels jsonb, metadata jsonb, close_policy "char", version text, pool text,
  budget jsonb)
language sql
stable
begin atomic
  select r.n::int as n, r.e as child, (r.e->0)::int as call, r.e->>1 as workflow, r.e->>2 as queue,
  (r.e->>3)::json as input, r.e->>4 as key, (r.e->>5)::int as priority,
  timestamptz 'epoch' + (r.e->>6)::bigint * interval '1 microsecond' as run_at,
  (r.e->>7)::float8 * interval '1 second' as timeout, nullif(r.e->8, 'null') as labels,
  nullif(r.e->9, 'null') as metadata, (r.e->>10)::"char" as close_policy, r.e->>11 as version, r.e->>12 as pool,
  nullif(r.e->13, 'null') as budget
  from jsonb_array_elements(list) with ordinality as r (e, n);
end;
comment on function pgflow.child_rows_(jsonb)
  is 'Rows of the protocol as columns: children to start';

create or replace function pgflow.call_rows_(list jsonb)
returns table (call int)
language sql
stable
begin atomic
  select (r.e->0)::int as call
  from jsonb_array_elements(list) as r (e);
end;
comment on function pgflow.call_rows_(jsonb)
  is 'Rows of the protocol as columns: calls';

create or replace function pgflow.signal_rows_(list jsonb)
returns table (call int, name text)
language sql
stable
begin atomic
  select (r.e->0)::int as call, r.e->>1 as name
  from jsonb_array_elements(list) as r (e);
end;
comment on function pgflow.signal_rows_(jsonb)
  is 'Rows of the protocol as columns: waits for signals';

create or replace function pgflow.timer_rows_(list jsonb)
returns table (call int, seq int, kind "char")
language sql
stable
begin atomic
  select (r.e->0)::int as call, (r.e->1)::int as seq, (r.e->>2)::"char" as kind
  from jsonb_array_elements(list) as r (e);
end;
comment on function pgflow.timer_rows_(jsonb)
  is 'Rows of the protocol as columns: sleeps, and time-outs of waits; of reasons to wake, only the first two slots';

create or replace function pgflow.event_rows_(list jsonb)
returns table (call int, name text, topic text, match jsonb, key text, after bigint)
language sql
stable
begin atomic
  select (r.e->0)::int as call, r.e->>1 as name, r.e->>2 as topic, nullif(r.e->3, 'null') as match, r.e->>4 as key,
  (r.e->>5)::bigint as after
  from jsonb_array_elements(list) as r (e);
end;
comment on function pgflow.event_rows_(jsonb)
  is 'Rows of the protocol as columns: waits for events, which come as signals of a name of their own';

create or replace function pgflow.lock_rows_(list jsonb)
returns table (n int, call int, key text, is_shared boolean, ttl interval, seq int, within bigint[])
language sql
stable
begin atomic
  select r.n::int as n, (r.e->0)::int as call, r.e->>1 as key, (r.e->2)::boolean as is_shared,
  (r.e->>3)::float8 * interval '1 second' as ttl, (r.e->>4)::int as seq,
  array(select f::bigint from jsonb_array_elements_text(r.e->5) f) as within
  from jsonb_array_elements(list) with ordinality as r (e, n);
end;
comment on function pgflow.lock_rows_(jsonb)
  is 'Rows of the protocol as columns: waits for locks';

create or replace function pgflow.hold_rows_(list jsonb)
returns table (call int, key text, fence bigint, is_given_back boolean)
language sql
stable
begin atomic
  select (r.e->0)::int as call, r.e->>1 as key, (r.e->2)::bigint as fence, (r.e->3)::boolean as is_given_back
  from jsonb_array_elements(list) as r (e);
end;
comment on function pgflow.hold_rows_(jsonb)
  is 'Rows of the protocol as columns: blocks that hold locks';

create or replace function pgflow.refused_rows_(list jsonb)
returns table (name text, error text, code_hash text)
language sql
stable
begin atomic
  select r.e->>0 as name, r.e->>1 as error, r.e->>2 as code_hash
  from jsonb_array_elements(list) as r (e);
end;
comment on function pgflow.refused_rows_(jsonb)
  is 'Rows of the protocol as columns: signals that the code could not take';

create or replace function pgflow.reason_rows_(list jsonb)
returns table (state text, reason text, code_hash text, detail jsonb, held_by text)
language sql
stable
begin atomic
  select r.e->>0 as state, r.e->>1 as reason, r.e->>2 as code_hash, nullif(r.e->3, 'null') as detail,
  r.e->>4 as held_by
  from jsonb_array_elements(list) as r (e);
end;
comment on function pgflow.reason_rows_(jsonb)
  is 'Rows of the protocol as columns: reasons why runs are held';

create or replace function pgflow.read_rows_(list jsonb)
returns table (name text, seq int, max_age interval)
language sql
stable
begin atomic
  select r.e->>0 as name, (r.e->1)::int as seq, (r.e->>2)::float8 * interval '1 second' as max_age
  from jsonb_array_elements(list) as r (e);
end;
comment on function pgflow.read_rows_(jsonb)
  is 'Rows of the protocol as columns: reads on which an effect rests';

create or replace function pgflow.handed_rows_(list jsonb)
returns table (call int, code text)
language sql
stable
begin atomic
  select (r.e->0)::int as call, r.e->>1 as code
  from jsonb_array_elements(list) as r (e);
end;
comment on function pgflow.handed_rows_(jsonb)
  is 'Rows of the protocol as columns: effects of a run that its next generation takes back if it fails';

create or replace function pgflow.saga_rows_(list jsonb)
returns table (n int, entry jsonb, name text, key text, code text, request json, result json, ref text, is_own boolean)
language sql
stable
begin atomic
  select r.n::int as n, r.e as entry, r.e->>0 as name, r.e->>1 as key, r.e->>2 as code, (r.e->>3)::json as request,
  (r.e->>4)::json as result, r.e->>5 as ref, (r.e->6)::boolean as is_own
  from jsonb_array_elements(list) with ordinality as r (e, n);
end;
comment on function pgflow.saga_rows_(jsonb)
  is 'Rows of the protocol as columns: effects of earlier generations and of children, to be taken back if the run fails';

create or replace function pgflow.admission_rows_(list jsonb)
returns table (n int, call int, name text, pool text, amounts jsonb, hard boolean, licence jsonb)
language sql
stable
begin atomic
  select r.n::int as n, (r.e->'call')::int as call, r.e->>'name' as name, r.e->>'pool' as pool,
  r.e->'amounts' as amounts, (r.e->'hard')::boolean as hard, r.e->'licence' as licence
  from jsonb_array_elements(list) with ordinality as r (e, n);
end;
comment on function pgflow.admission_rows_(jsonb)
  is 'Objects of the protocol as columns: requests for admission to pools';

create or replace function pgflow.intent_rows_(list jsonb)
returns table (call int, name text, key text, args_hash bigint, ordinal jsonb, request text, risk text, code text,
  is_keyed boolean, decision text, compensates text, reads jsonb, ground "char", seconds interval, expects text,
  notice jsonb, is_undo boolean, leave text)
language sql
stable
begin atomic
  select (r.e->'call')::int as call, r.e->>'name' as name, r.e->>'key' as key, (r.e->'args_hash')::bigint as args_hash,
  r.e->'ordinal' as ordinal, r.e->>'request' as request, r.e->>'risk' as risk, r.e->>'code' as code,
  (r.e->'is_keyed')::boolean as is_keyed, r.e->>'decision' as decision, r.e->>'compensates' as compensates,
  r.e->'reads' as reads, (r.e->>'ground')::"char" as ground, (r.e->>'seconds')::float8 * interval '1 second' as seconds,
  r.e->>'expects' as expects, r.e->'notice' as notice, (r.e->'is_undo')::boolean as is_undo, r.e->>'leave' as leave
  from jsonb_array_elements(list) as r (e);
end;
comment on function pgflow.intent_rows_(jsonb)
  is 'Objects of the protocol as columns: requests for leave to attempt effects';

create or replace function pgflow.gate_rows_(list jsonb)
returns table (n int, call int, name text, key text, request json, hash text, approvers jsonb, quorum jsonb,
  timeout jsonb, on_timeout text, escalate jsonb, needs_value jsonb, decision text, shape jsonb)
language sql
stable
begin atomic
  select r.n::int as n, (r.e->'call')::int as call, r.e->>'name' as name, r.e->>'key' as key,
  (r.e->>'request')::json as request, r.e->>'hash' as hash, r.e->'approvers' as approvers, r.e->'quorum' as quorum,
  r.e->'timeout' as timeout, r.e->>'on_timeout' as on_timeout, r.e->'escalate' as escalate,
  r.e->'needs_value' as needs_value, r.e->>'decision' as decision, r.e->'shape' as shape
  from jsonb_array_elements(list) with ordinality as r (e, n);
end;
comment on function pgflow.gate_rows_(jsonb)
  is 'Objects of the protocol as columns: gates to ask';

create or replace function pgflow.start_rows_(list json)
returns table (n int, start json, call int, effect text, name text, ordinal text, args_hash bigint, mark jsonb)
language sql
stable
begin atomic
  select r.n::int as n, r.e as start, (r.e->>0)::int as call, r.e->>1 as effect, r.e->>2 as name, r.e->>3 as ordinal,
  (r.e->>4)::bigint as args_hash, nullif((r.e->5)::jsonb, 'null') as mark
  from json_array_elements(list) with ordinality as r (e, n);
end;
comment on function pgflow.start_rows_(json)
  is 'Rows of the protocol as columns: licences in the column ``starts`` of units';

create or replace function pgflow.segment_rows_(list jsonb)
returns table (n int, upto int, stem text)
language sql
stable
begin atomic
  select r.n::int as n, (r.e->>0)::int as upto, r.e->>1 as stem
  from jsonb_array_elements(list) with ordinality as r (e, n);
end;
comment on function pgflow.segment_rows_(jsonb)
  is 'Rows of the protocol as columns: parts of a journal, each with the beginning of its idempotency keys';

create or replace function pgflow.new_run_rows_(list jsonb)
returns table (n int, wanted jsonb, key text, input text)
language sql
stable
begin atomic
  select r.n::int as n, r.e as wanted, r.e->>0 as key, r.e->>1 as input
  from jsonb_array_elements(list) with ordinality as r (e, n);
end;
comment on function pgflow.new_run_rows_(jsonb)
  is 'Rows of the protocol as columns: runs to start in one call';

create or replace function pgflow.draft_rows_(list jsonb)
returns table (n int, stream text, value json)
language sql
stable
begin atomic
  select r.n::int as n, r.e->>0 as stream, (r.e->>1)::json as value
  from jsonb_array_elements(list) with ordinality as r (e, n);
end;
comment on function pgflow.draft_rows_(jsonb)
  is 'Rows of the protocol as columns: values of streams that a running step emits';

create or replace function pgflow.act_rows_(list jsonb)
returns table (n int, name text, risk text, request jsonb)
language sql
stable
begin atomic
  select r.n::int as n, r.e->>0 as name, r.e->>1 as risk, r.e->2 as request
  from jsonb_array_elements(list) with ordinality as r (e, n);
end;
comment on function pgflow.act_rows_(jsonb)
  is 'Rows of the protocol as columns: acts that the policy judges';

create or replace function pgflow.code_rows_(list jsonb)
returns table (code jsonb, workflow text, version text, code_hash text, is_pinned boolean, alias_of text, patches jsonb,
  signals jsonb, defaults json, parameters jsonb)
language sql
stable
begin atomic
  select r.e as code, r.e->>0 as workflow, r.e->>1 as version, r.e->>2 as code_hash, (r.e->3)::boolean as is_pinned,
  r.e->>4 as alias_of, r.e->5 as patches, nullif(r.e->6, 'null') as signals, (r.e->>7)::json as defaults,
  nullif(r.e->8, 'null') as parameters
  from jsonb_array_elements(list) as r (e);
end;
comment on function pgflow.code_rows_(jsonb)
  is 'Rows of the protocol as columns: code of workflows, as workers and apps declare it';

create or replace function pgflow.delivery_rows_(list json)
returns table (event_id bigint, outcome text, error text, delay interval)
language sql
stable
begin atomic
  select (r.e->>0)::bigint as event_id, r.e->>1 as outcome, r.e->>2 as error,
  (r.e->>3)::float8 * interval '1 second' as delay
  from json_array_elements(list) as r (e);
end;
comment on function pgflow.delivery_rows_(json)
  is 'Rows of the protocol as columns: outcomes of deliveries by a relay';

create or replace function pgflow.answered_rows_(list jsonb)
returns table (n int, seq int, call int, kind "char", name text, payload json, due timestamptz)
language sql
stable
begin atomic
  select r.n::int as n, (r.e->0)::int as seq, (r.e->1)::int as call, (r.e->>2)::"char" as kind, r.e->>3 as name,
  (r.e->>4)::json as payload, timestamptz 'epoch' + (r.e->>5)::bigint * interval '1 microsecond' as due
  from jsonb_array_elements(list) with ordinality as r (e, n);
end;
comment on function pgflow.answered_rows_(jsonb)
  is 'Rows of the protocol as columns: units that the database has decided and appended';
