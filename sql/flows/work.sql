-- The driver. `advance` does one transaction of one run: it walks nodes until so many steps are done, or the run waits
-- or ends. `work` claims runs, advances them and commits, and is all that a database needs to work on workflows in SQL.
-- Both are clients of the functions that workers in Python call: what a run is, what it waits for and who holds it is
-- decided by `commit_units`, in the same tables.
--
-- A step's rows, its unit and the frame are one transaction. So it happens exactly once, whoever dies when. What a
-- transaction cannot take back - sequences, dblink, what an extension sends - is not in this.
--
-- `work` commits, so it can have no SET clause, no rights but its caller's, and no block with a handler around a
-- COMMIT: it runs under a search path that others may have set. A step that SETs search_path for the session would
-- have the driver's next operator be one of its author's making: `advance` refuses that, by functions that are
-- named with their schema and take no operator. It also refuses a function whose owner has made it run with our rights.
--
-- Each session that works is a worker of its own. It shares the latch of its number for as long
-- as it lives. So its death is known at once and for sure, and a step may take as long as it likes; while that lock is
-- held, no reaper gives its runs away. A CALL that has failed leaves the lock: the next one of its session cleans up.

create or replace function pgflow.check_flow_input_(flow_id int, input jsonb)
returns void
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
declare
  flow pgflow.flow;
  odd text;
begin
  select w.* into flow from pgflow.flow w where w.flow_id = check_flow_input_.flow_id;
  select k into odd from jsonb_object_keys(input) k
  where not flow.parameters @> jsonb_build_array(jsonb_build_object('name', k)) limit 1;
  if odd is not null then
    raise exception using errcode = 'PF003', message = format('%s has no parameter %s', flow.signature,
      quote_literal(odd));
  end if;
  select p->>'name' into odd from jsonb_array_elements(flow.parameters) p
  where not input ? (p->>'name') and not p ? 'value' limit 1;
  if odd is not null then
    raise exception using errcode = 'PF003', message = format('%s needs the parameter %s', flow.signature,
      quote_literal(odd));
  end if;
end
$$;
comment on function pgflow.check_flow_input_(int, jsonb)
  is 'Refuses (PF003) an input that the parameters do not take';

create or replace function pgflow.check_asked_(node pgflow.flow_node, value jsonb, definer oid)
returns void
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
begin
  case
  when node.op in ('run', 'each') then
    perform pgflow.refuse_start_(node.name, definer);
  when node.opts->>'kind' = 'v' and jsonb_typeof(value) is distinct from 'object' then
    raise exception using errcode = 'PF003',
      message = 'the state of a run is an object: set state jsonb_build_object(...)';
  when node.op = 'event' then
    perform pgflow.check_name_(value->'ask'->>0, 'a topic');
  when node.op = 'lock' then
    perform pgflow.check_name_(value->>'ask', 'the key of a lock');
  when node.op = 'spend' then
    perform pgflow.check_amounts_(nullif(value, '{}'), 'what is spent');
  when node.op = 'ask' and ((value->>'quorum')::int < 1 or value->'quorum' = 'null'
    or value->'approvers' @> '[null]') then
    raise exception using errcode = 'PF003', message = format('gate %s needs approvers by name, and a quorum of them',
      quote_literal(node.name));
  else
    null;
  end case;
end
$$;
comment on function pgflow.check_asked_(pgflow.flow_node, jsonb, oid)
  is 'Refuses (PF003, PF021) what a run in SQL cannot say, ask for or start';

create or replace function pgflow.ask_flow_(
  inout f pgflow.flow_frame, worker_id int, token bigint, chain bigint, question jsonb, units jsonb, out place text,
  out wake jsonb
)
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
  first int := f.seq;
  t bigint := pgflow.micros_(pgflow.now_());
  answer jsonb;
  unit record;
  is_each boolean := (select n.op = 'each' from pgflow.flow_node n where n.flow_id = f.flow_id and n.pc = f.pc);
begin
  -- [kind, call, name, payload, starts, delay in seconds] -> as commit_units takes them
  units := (select coalesce(jsonb_agg(jsonb_build_array(f.run_id, first + u.n, u.unit->1, u.unit->0, u.unit->2,
    (u.unit->3)::text,
    nullif(u.unit->4, 'null')::text, t, u.unit->5, token, null, null) order by u.n), '[]')
    from jsonb_array_elements(units) with ordinality as u (unit, n));
  for unit in select u.* from pgflow.unit_rows_(units) u order by u.seq loop
    f := pgflow.fold_unit_(f, unit.seq, unit.call, unit.kind, unit.payload::jsonb, unit.starts::jsonb);
  end loop;
  if question ? 'timers' then -- of the wait that is open now
    question := question || jsonb_build_object('timers',
      case when f.waits ? 'timer' then jsonb_build_array(jsonb_build_array(f.waits->'call', f.waits->'timer',
        question->'timers')) else '[]' end);
  elsif question ? 'retries' then
    question := question || jsonb_build_object('retries', jsonb_build_array(jsonb_build_array(f.call, f.seq)));
  end if;
  if f.loops <> '{}' or question ? 'lock' then
    question := question - '{lock,give_back}'::text[] || jsonb_build_object(
      'locks', case when question ? 'lock' then jsonb_build_array(jsonb_build_array(f.waits->'call', f.waits->'ask', false,
        null, f.waits->'timer', (select coalesce(jsonb_agg(l.fence), '[]') from pgflow.held_locks_(f) l))) else '[]' end,
      'holds', (select coalesce(jsonb_agg(jsonb_build_array(l.call, l.key, l.fence, coalesce(l.node = question->>'give_back', false))),
        '[]') from pgflow.held_locks_(f) l))
      || case when question ? 'lock' and f.waits ? 'timer' then jsonb_build_object('retries',
        jsonb_build_array(jsonb_build_array(f.waits->'call', f.waits->'timer'))) else '{}' end;
  end if;
  answer := pgflow.commit_units(jsonb_build_object('worker', worker_id, 'units', units,
    'runs', jsonb_build_array(jsonb_build_array(f.run_id, token, first)), 'questions', jsonb_build_array(
      question || jsonb_build_object('run', f.run_id, 'token', token,
      'chain', chain, 'seq', f.seq, 'idle', true)
      || case when f.error ? 'cancelled' then jsonb '{"cancelled": true}' else '{}' end))
    || case when question ? 'admits' then jsonb_build_object('draws', jsonb_build_array(jsonb_build_array(f.run_id, 0)))
      else '{}' end);
  if answer->'bad' <> 'null' then
    raise exception using errcode = 'PF004', message = format('run %s is no longer held by this worker', f.run_id);
  end if;
  answer := answer || (answer->'answers'->0);
  for unit in select u.* from pgflow.answered_rows_(answer->'units') u order by u.n loop
    if is_each and unit.kind in ('k', 'K') and f.state <> 'undoing' then
      perform pgflow.fold_items_(f, unit.call, unit.kind, unit.payload::jsonb);
    end if;
    f := pgflow.fold_unit_(f, unit.seq, unit.call, unit.kind, unit.payload::jsonb, null);
  end loop;
  if question ? 'events' and f.waits is null then
    perform pgflow.forget_events_(array[chain]);
  end if;
  place := answer->>'place';
  wake := coalesce(nullif(answer->'wake', 'null'), '[]');
end
$$;
comment on function pgflow.ask_flow_(pgflow.flow_frame, int, bigint, bigint, jsonb, jsonb)
  is 'Commits units with a question, and folds both into the frame';

create or replace function pgflow.end_flow_(
  f pgflow.flow_frame, worker_id int, token bigint, chain bigint, status text, reason text, output jsonb, error jsonb
)
returns jsonb
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  answer jsonb;
  ops text[];
  has_kin boolean; -- whom else its end concerns: no step of it beats
begin
  select array(select distinct n.op from pgflow.flow_node n where n.flow_id = f.flow_id),
    r.parent_run_id is not null or r.deadline_at is not null or r.heritage is not null
      or exists (select from pgflow.run c where c.parent_run_id = r.run_id)
  into ops, has_kin from pgflow.run r where r.run_id = f.run_id;
  perform pgflow.drop_frames_(array[f.run_id]);
  answer := pgflow.commit_units(jsonb_build_object('worker', worker_id, 'units', jsonb '[]',
      'runs', jsonb_build_array(jsonb_build_array(f.run_id, token, f.seq)),
      'ends', jsonb_build_array(jsonb_build_array(f.run_id, status, reason, output::text, error::text, chain, token,
        null)))
    || case when has_kin then jsonb_build_object('kin', jsonb_build_array(f.run_id)) else '{}' end
    -- What may be left of these, if nothing but the run is to end them.
    || case when 'ask' = any(ops) then jsonb_build_object('gated', jsonb_build_array(f.run_id)) else '{}' end
    || case when 'event' = any(ops) then jsonb_build_object('awaiting', jsonb_build_array(f.run_id)) else '{}' end
    || case when 'lock' = any(ops) then jsonb_build_object('locking', jsonb_build_array(f.run_id)) else '{}' end
    || case when 'spend' = any(ops)
      then jsonb_build_object('draws', jsonb_build_array(jsonb_build_array(f.run_id, null))) else '{}' end);
  if answer->'bad' <> 'null' then
    raise exception using errcode = 'PF004', message = format('run %s is no longer held by this worker', f.run_id);
  end if;
  return jsonb_build_object('place', 'ended', 'wake', coalesce(nullif(answer->'wake', 'null'), '[]'));
end
$$;
comment on function pgflow.end_flow_(pgflow.flow_frame, int, bigint, bigint, text, text, jsonb, jsonb)
  is 'Ends a run of a workflow in SQL';

create or replace function pgflow.open_children_(me bigint)
returns jsonb
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
  select coalesce(jsonb_agg(c.chain_id order by c.chain_id), '[]') from pgflow.run c
  cross join lateral (select pgflow.newest_run_(c.chain_id) as run_id) n
  where c.parent_run_id = me and c.generation = 1
    and not exists (select from pgflow.outcome o where o.run_id = n.run_id)
    and not exists (select from pgflow.signal s where s.chain_id = c.chain_id and s.kind = 'x')
    and not exists (select from pgflow.unit u where u.run_id = n.run_id and u.kind = 'x' and u.call = 0)
$$;
comment on function pgflow.open_children_(bigint)
  is 'Chains of children of a run that have not ended and were not cancelled';

create or replace function pgflow.record_unit_(
  f pgflow.flow_frame, token bigint, kind "char", call int, name text, payload jsonb, starts jsonb
)
returns pgflow.flow_frame
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
begin
  -- `advance` holds the lease until this transaction ends.
  insert into pgflow.unit (run_id, seq, call, kind, name, payload, starts, token, at, recorded_at)
  values (f.run_id, f.seq + 1, call, kind, name, payload, starts, token, pgflow.now_(), pgflow.now_());
  return pgflow.fold_unit_(f, f.seq + 1, call, kind, payload, starts);
end
$$;
comment on function pgflow.record_unit_(pgflow.flow_frame, bigint, "char", int, text, jsonb, jsonb)
  is 'Appends a unit of a run that advance holds, and folds it into the frame';

create or replace function pgflow.record_step_(
  f pgflow.flow_frame, token bigint, kind "char", name text, payload jsonb
)
returns pgflow.flow_frame
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  call int := f.call + (f.tries = 0)::int;
begin
  -- q: a step; r: rows that were read, which is no act
  return pgflow.record_unit_(f, token, kind, call, name, payload, jsonb_build_array(jsonb_build_array(call,
    case jsonb_typeof(payload) when 'array' then 'r' else 'q' end, name, null, null, pgflow.mark_(f))));
end
$$;
comment on function pgflow.record_step_(pgflow.flow_frame, bigint, "char", text, jsonb)
  is 'Records the outcome of a node that ran SQL';

create or replace function pgflow.record_note_(
  f pgflow.flow_frame, token bigint, node pgflow.flow_node, value jsonb
)
returns pgflow.flow_frame
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  call int := f.call + 1;
begin
  -- A copy of the journal loses what stands in `starts` of these kinds, so the mark has a unit of its own.
  if not f.is_marked then
    f := pgflow.record_unit_(f, token, 's', call, node.name, pgflow.mark_(f), null);
  end if;
  return pgflow.record_unit_(f, token, (node.opts->>'kind')::"char", call,
    nullif(node.name, 'state'), value, null);
end
$$;
comment on function pgflow.record_note_(pgflow.flow_frame, bigint, pgflow.flow_node, jsonb)
  is 'Records what a run says of itself: its state, or a value of a stream';

create or replace function pgflow.spend_(
  f pgflow.flow_frame, node pgflow.flow_node, worker_id int, token bigint, chain bigint, amounts jsonb,
  out after pgflow.flow_frame, out place text, out wake jsonb
)
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  call int := f.call + 1;
  has_pool boolean := (select r.pool is not null from pgflow.run r where r.run_id = f.run_id);
  asked record;
  told jsonb;
  answer jsonb;
begin
  after := f;
  place := 'leased';
  wake := '[]';
  if not f.is_marked then
    after := pgflow.record_unit_(f, token, 's', call, node.name, pgflow.mark_(f), null);
  end if;
  if has_pool then
    select a.* into asked
    from pgflow.ask_flow_(after, worker_id, token, chain, jsonb_build_object('admits', jsonb_build_array(
      jsonb_build_object('call', call, 'name', node.name, 'amounts', amounts))), '[]') a;
    after := asked.f;
    place := asked.place;
    wake := asked.wake;
    if after.state <> f.state then
      return; -- refused, or cancelled meanwhile
    end if;
  end if;
  -- As texts, which are exact in every language.
  told := jsonb_build_object('call', call, 'amounts', (select coalesce(jsonb_object_agg(a.key, a.value), '{}')
    from jsonb_each_text(amounts) a));
  answer := pgflow.commit_units(jsonb_build_object('worker', worker_id,
    'runs', jsonb_build_array(jsonb_build_array(f.run_id, token, after.seq)), 'units', jsonb_build_array(
      jsonb_build_array(f.run_id, after.seq + 1, call, 'M', null, told::text, null,
      pgflow.micros_(pgflow.now_()), null, token, null, null)),
    'draws', jsonb_build_array(jsonb_build_array(f.run_id, case when has_pool then call else 0 end))));
  if answer->'bad' <> 'null' then
    raise exception using errcode = 'PF004', message = format('run %s is no longer held by this worker', f.run_id);
  end if;
  wake := wake || coalesce(answer->'wake', '[]');
  after := pgflow.fold_unit_(after, after.seq + 1, call, 'M', told, null);
end
$$;
comment on function pgflow.spend_(pgflow.flow_frame, pgflow.flow_node, int, bigint, bigint, jsonb)
  is 'Has the budget of a run allow what it spends, and charges it: both, or neither';

create or replace function pgflow.leave_block_(
  inout f pgflow.flow_frame, worker_id int, token bigint, chain bigint, try int, out wake jsonb
)
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  handler int := (f.loops->try::text->>1)::int;
  held record;
  asked record;
begin
  wake := '[]';
  for held in select l.node from pgflow.held_locks_(f) l where l.node::int > try order by l.call desc loop
    select a.* into asked
    from pgflow.ask_flow_(f, worker_id, token, chain, jsonb_build_object('give_back', held.node), '[]') a;
    f := asked.f;
    wake := wake || asked.wake;
    if f.error ? 'cancelled' then
      return;
    end if;
  end loop;
  f := pgflow.withdraw_(f, token);
  delete from pgflow.flow_item i where i.run_id = f.run_id and i.pc between try and handler;
  f.state := f.loops->try::text->>2;
  f.loops := (select coalesce(jsonb_object_agg(e.key, e.value), '{}') from jsonb_each(f.loops) e where e.key::int < try);
  f.pc := handler;
end
$$;
comment on function pgflow.leave_block_(pgflow.flow_frame, int, bigint, bigint, int)
  is 'Goes on with the handler of a block that has failed, once what was done in it is taken back';

create or replace function pgflow.open_block_(f pgflow.flow_frame)
returns int
language sql
immutable
set search_path = pg_catalog, pg_temp
as $$
  select max(e.key::int) from jsonb_each(f.loops) e where jsonb_typeof(e.value) = 'array'
$$;
comment on function pgflow.open_block_(pgflow.flow_frame) is 'The inmost block with a handler that a run is in';

create or replace function pgflow.withdraw_(f pgflow.flow_frame, token bigint)
returns pgflow.flow_frame
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  asked int;
begin
  for asked in select g.call from pgflow.gate g where g.run_id = f.run_id order by g.call loop
    f := pgflow.record_unit_(f, token, 'x', asked, null, null, null);
  end loop;
  perform pgflow.close_gates_(array[f.run_id]);
  perform pgflow.forget_events_(array[r.chain_id]) from pgflow.run r where r.run_id = f.run_id;
  return f;
end
$$;
comment on function pgflow.withdraw_(pgflow.flow_frame, bigint) is 'Withdraws the gate or the wait that is open';

create or replace function pgflow.let_go_(inout f pgflow.flow_frame, token bigint, out wake jsonb)
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
begin
  f := pgflow.withdraw_(f, token);
  wake := to_jsonb(pgflow.end_locks_(array[f.run_id], pgflow.now_()));
  f.loops := '{}';
end
$$;
comment on function pgflow.let_go_(pgflow.flow_frame, bigint)
  is 'Gives back and up, before the handler of a workflow, what it has held and waited for';

create or replace function pgflow.changes_(before jsonb, after jsonb)
returns jsonb
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
  return (select coalesce(jsonb_object_agg(e.key, e.value), '{}') from jsonb_each(after) e
    where e.value is distinct from coalesce(before->e.key, 'null'));
end
$$;
comment on function pgflow.changes_(jsonb, jsonb) is 'The variables that have another value than before';

create or replace function pgflow.fail_node_(
  f pgflow.flow_frame, node pgflow.flow_node, worker_id int, token bigint, chain bigint, error jsonb,
    out after pgflow.flow_frame,
  out place text, out wake jsonb
)
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  call int := f.call + (f.tries = 0)::int;
  name text := coalesce(node.name, node.op);
  is_transient boolean := pgflow.is_transient_(error) and f.tries < 100;
  asked record;
  is_again boolean := is_transient or f.strikes < coalesce((node.opts->>'retry')::int, 0);
begin
  if not is_again and f.state <> 'undoing' then
    after := pgflow.record_step_(f, token, 'f', name, error
      || case when f.state = 'handling' then jsonb '{"is_last": true}' else '{}' end);
    place := 'leased';
    wake := '[]';
    return;
  end if;
  -- A compensation that cannot be done is nothing to pass over: a person has to help, and says so by retry.
  select a.* into asked
  from pgflow.ask_flow_(f, worker_id, token, chain,
    case when is_again then jsonb '{"park": true, "retries": true}'
      else jsonb_build_object('hold', jsonb_build_array('stuck', 'undo', null, error)) end,
    jsonb_build_array(jsonb_build_array('a', call, name, error,
      jsonb_build_array(jsonb_build_array(call, 'q', name, null, null, pgflow.mark_(f))),
      case when is_transient then 0.1 * power(2, least(f.tries, 8)) else coalesce((node.opts->>'every')::float8,
        1) end))) a;
  after := asked.f;
  place := asked.place;
  wake := asked.wake;
end
$$;
comment on function pgflow.fail_node_(pgflow.flow_frame, pgflow.flow_node, int, bigint, bigint, jsonb)
  is 'Records that a node has failed: it is tried again later, or the run takes back what it did';

create or replace function pgflow.next_children_(f pgflow.flow_frame, node pgflow.flow_node)
returns jsonb
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  calls int[] := array(select i.call from pgflow.flow_item i
    where i.run_id = f.run_id and i.pc = f.pc and i.call is not null and not i.is_done order by i.call);
  children jsonb;
begin
  select jsonb_agg(jsonb_build_array(f.call + m.i, node.name, f.run->'queue', m.item::text, null, null, null, null,
    null, null,
    'c', '', null, null) order by m.i), calls || coalesce(array_agg(f.call + m.i order by m.i), '{}')
  into children, calls
  from (
    select row_number() over (order by i.n) as i, i.item from pgflow.flow_item i
    where i.run_id = f.run_id and i.pc = f.pc and i.call is null
    order by i.n limit greatest(0, (node.opts->>'most')::int - cardinality(calls))
  ) m;
  return case when calls <> '{}' then jsonb_build_object('child_calls', to_jsonb(calls))
    || case when children is null then '{}' else jsonb_build_object('children', children) end end;
end
$$;
comment on function pgflow.next_children_(pgflow.flow_frame, pgflow.flow_node)
  is 'The question of a for each: the children that may start now, and all that are waited for; null once all '
     'have ended';

create or replace function pgflow.new_gate_(f pgflow.flow_frame, node pgflow.flow_node, call int, value jsonb)
returns jsonb
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
  select jsonb_build_object('call', call, 'name', node.name, 'request', (value->'request')::text, 'hash',
    encode(sha256(convert_to((value->'request')::text, 'UTF8')), 'hex'), 'approvers', value->'approvers', 'quorum',
    value->'quorum', 'timeout', case when value->>'timeout' is not null
      then least(greatest((value->>'timeout')::float8, 0.001), 3e9) end, 'on_timeout', 'expire',
    'escalate', jsonb '[]', 'needs_value', false, 'shape', true,
    'key', format('%s/%s/%s', pgflow.own_stem_(r.root, r.generation), replace(node.name, '/', '_'), call))
  from pgflow.run r where r.run_id = f.run_id
$$;
comment on function pgflow.new_gate_(pgflow.flow_frame, pgflow.flow_node, int, jsonb)
  is 'A gate that is to be asked, as a question names it';

create or replace function pgflow.wait_question_(
  inout f pgflow.flow_frame, node pgflow.flow_node, value jsonb, out units jsonb, out question jsonb
)
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  call int := coalesce((f.waits->>'call')::int, f.call + 1);
  is_new boolean := f.waits is null;
  seconds float8 := case node.op when 'sleep' then (value#>>'{}')::float8
    when 'ask' then null else (value->>'timeout')::float8 end;
  -- What a later question has to say again.
  ask jsonb := case when not is_new then f.waits->'ask' when node.op = 'event' then jsonb_build_array(
      format('event %s %s %s', left(value->'ask'->>0, 50), call, left(md5(value::text), 12))) || (value->'ask')
    when node.op = 'lock' then value->'ask' end;
begin
  units := '[]';
  question := jsonb '{"park": true}' || case node.op
    when 'each' then pgflow.next_children_(f, node)
    when 'run' then jsonb_build_object('child_calls', jsonb_build_array(call))
    when 'wait' then jsonb_build_object('signals', jsonb_build_array(jsonb_build_array(call, node.name)))
    when 'event' then jsonb_build_object('signals', jsonb_build_array(jsonb_build_array(call, ask->0)), 'events',
      jsonb_build_array(jsonb_build_array(call, ask->0, ask->1, ask->2, ask->3, null)))
    when 'ask' then jsonb_build_object('gates', jsonb_build_array(jsonb_build_array(call, node.name)))
    when 'lock' then jsonb '{"lock": true}'
    else jsonb '{"timers": "T"}' end;
  if node.op in ('wait', 'event') and (seconds is not null or f.waits ? 'timer') then
    question := question || '{"timers": "W"}';
  end if;
  if not is_new then
    return;
  elsif seconds is not null or node.op = 'sleep' then
    units := jsonb_build_array(jsonb_build_array('t', call, node.name, pgflow.mark_(f)
      || case when ask is null then '{}' else jsonb_build_object('ask', ask) end, null,
      greatest(0, least(coalesce(seconds, 0), 3e9))));
  elsif not f.is_marked or node.op in ('wait', 'event', 'lock') then
    units := jsonb_build_array(jsonb_build_array('s', call, node.name, pgflow.mark_(f)
      || case when ask is null then '{}' else jsonb_build_object('ask', ask) end, null, null));
  end if;
  if node.op = 'ask' then
    question := question || jsonb_build_object('new_gates', jsonb_build_array(pgflow.new_gate_(f, node, call, value)));
  elsif node.op = 'run' then
    question := question || jsonb_build_object('children', jsonb_build_array(jsonb_build_array(call, node.name,
      f.run->'queue', value::text, null, null, null, null, null, null, 'c', '', null, null)));
  end if;
end
$$;
comment on function pgflow.wait_question_(pgflow.flow_frame, pgflow.flow_node, jsonb)
  is 'The question to the database of a wait, and the unit that begins it';

create or replace function pgflow.bound_waits_(seconds float8)
returns text
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  usual text := current_setting('lock_timeout');
begin
  -- statement_timeout counts from the CALL. Within it, only a wait for a lock can be cut short.
  if usual = '0' or usual::interval > seconds * interval '1 second' then
    perform set_config('lock_timeout', ceil(seconds * 1000) || 'ms', true);
  end if;
  return usual;
end
$$;
comment on function pgflow.bound_waits_(float8)
  is 'Sets lock_timeout to so many seconds, unless it is shorter; answers what it was';

create or replace function pgflow.error_of_(
  node pgflow.flow_node, began timestamptz, sqlstate text, message text, detail text, context text
)
returns jsonb
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  error jsonb := jsonb_build_object('type', 'SqlError', 'message', message, 'sqlstate', sqlstate, 'step',
    coalesce(node.name, node.op));
begin
  if node.op = 'step' and sqlstate in ('57014', '55P03')
    and clock_timestamp() - began >= (node.opts->>'timeout')::float8 * interval '1 second'
  then
    return error || jsonb_build_object('type', 'StepTimeout', 'sqlstate', '57014', 'message',
      format('step %s took longer than its timeout of %s s', node.name, node.opts->>'timeout'));
  end if;
  return error || case when detail <> '' then jsonb_build_object('detail', left(detail, 1000)) else '{}' end
    || coalesce(jsonb_build_object('line', substring(context from
      e'function \\S*@\\d+"?\\(integer,jsonb,jsonb\\) line (\\d+)')::int), '{}');
end
$$;
comment on function pgflow.error_of_(pgflow.flow_node, timestamptz, text, text, text, text)
  is 'The error of a node, as its journal has it';

create or replace function pgflow.advance(
  worker_id int, run_id bigint, token bigint, chain_id bigint, steps_per_commit int default 1,
  timed text default 'run'
)
returns jsonb
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set standard_conforming_strings = on -- whatever the session reads texts by
as $$
#variable_conflict use_variable
declare
  held record;
  f pgflow.flow_frame;
  salt bytea; -- of latches
  flow record; -- not its text, which may be long
  node pgflow.flow_node;
  value jsonb;
  taken jsonb; -- the variables of a step that is taken back, as they were behind it
  error jsonb;
  asked record;
  place text := 'leased';
  wake jsonb := '[]';
  steps int := 0;
  stop text; -- the CALL is to end
  began timestamptz;
  usual text; -- lock_timeout
  is_timed boolean; -- the node is a step with a timeout
  is_same boolean; -- the variables are what they were
  seconds float8; -- timeout of the step that is left to the caller
  block int; -- the inmost with a handler
  call int;
  news jsonb;
  state text;
  said text;
  detail text;
  context text;
begin
  -- What share_worker_ does, and the salt stays at hand. In the query, the latch would be planned anew each time.
  select s.salt into salt from pgflow.salt s;
  if current_setting('transaction_isolation') <> 'read committed'
    or not pg_try_advisory_xact_lock_shared(pgflow.latch_of_(salt, concat('worker ', worker_id)))
  then
    perform from pgflow.lease e where e.run_id = run_id and e.token = token for no key update skip locked;
    if not found then
      return '{"place": "lost", "steps": 0, "wake": []}';
    end if;
  end if;
  select e.last_seq, k as frame,
    exists (select from pgflow.signal s where s.chain_id = chain_id and s.kind in ('x', 'p')) as is_told
  into held
  from pgflow.lease e left join pgflow.flow_frame k on k.run_id = e.run_id
  where e.run_id = run_id and e.token = token and e.worker_id = worker_id;
  if not found then
    return '{"place": "lost", "steps": 0, "wake": []}';
  end if;
  if current_setting('synchronous_commit') = 'off' then
    perform set_config('synchronous_commit', 'on', true);
  end if;
  f := held.frame;
  if f.seq is null and held.last_seq = 0 then
    f := pgflow.fresh_frame_(run_id);
  elsif f.seq is null or f.seq < held.last_seq then
    f := pgflow.fold_journal_(run_id, true);
  end if;
  -- With the node at hand, which is all that one step looks at.
  select w.function, w.definer::oid as definer, w.handler, n as node, p.oid as proc, p.xmin as made_by, p.ctid as made_at
  into flow
  from pgflow.flow w
  left join pgflow.flow_node n on n.flow_id = w.flow_id and n.pc = f.pc
  left join pg_proc p on p.oid = to_regprocedure(w.function) and p.prosecdef and p.proowner = w.definer
  where w.flow_id = f.flow_id;
  node := flow.node;
  if held.is_told then
    select a.* into asked from pgflow.ask_flow_(f, worker_id, token, chain_id, '{}', '[]') a;
    f := asked.f;
    place := asked.place;
    wake := asked.wake;
  end if;

  for nodes in 1 .. 10000 loop
    -- The end of the run, or a wait, right behind the last step (`leads`) needs no transaction of its own.
    exit when place <> 'leased' or steps >= steps_per_commit
      and (f.state = 'undoing' or timed = 'armed' or not node.opts ? 'leads');
    if f.state = 'undoing' and f.waits is null then
      value := pgflow.open_children_(run_id);
      if value <> '[]' then
        select a.* into asked from pgflow.ask_flow_(f, worker_id, token, chain_id, jsonb_build_object('unwanted',
          value),
          '[]') a;
        f := asked.f;
        wake := wake || asked.wake;
      end if;
      block := case when not f.error ? 'cancelled' then pgflow.open_block_(f) end;
      if cardinality(f.undo) > coalesce((f.loops->block::text->>0)::int, 0) then
        f.pc := f.undo[cardinality(f.undo)];
        select i.item into taken from pgflow.flow_item i
        where i.run_id = run_id and i.pc = f.pc and i.n = cardinality(f.undo);
      elsif block is null and (f.error ? 'cancelled' or f.error ? 'is_last' or flow.handler is null) then
        value := pgflow.end_flow_(f, worker_id, token, chain_id,
          case when f.error ? 'cancelled' then 'cancelled' else 'failed' end, f.error->>'cancelled', null,
          case when not f.error ? 'cancelled' then f.error - 'is_last' end);
        return jsonb_build_object('place', 'ended', 'steps', steps, 'wake', wake || (value->'wake'));
      else
        value := f.error - 'is_last';
        taken := null;
        if block is not null then
          select g.* into asked from pgflow.leave_block_(f, worker_id, token, chain_id, block) g;
          f := asked.f;
          wake := wake || asked.wake;
          continue when f.error ? 'cancelled';
        else
          select g.* into asked from pgflow.let_go_(f, token) g;
          f := asked.f;
          wake := wake || asked.wake;
          f.pc := flow.handler;
          f.state := 'handling';
        end if;
        f.vars := f.vars || jsonb_build_object('error', value);
        f.news := f.news || jsonb_build_object('error', value);
        f.error := null;
        f.is_marked := false;
      end if;
    end if;
    if f.pc is distinct from node.pc then
      select n.* into node from pgflow.flow_node n where n.flow_id = f.flow_id and n.pc = f.pc;
    end if;
    is_timed := node.op = 'step' and node.opts ? 'timeout';
    if is_timed then
      if timed = 'leave' then
        seconds := (node.opts->>'timeout')::float8;
        exit;
      end if;
      began := case timed when 'armed' then statement_timestamp() else clock_timestamp() end;
      usual := pgflow.bound_waits_((node.opts->>'timeout')::float8);
    end if;
    if node.op = 'rethrow' then
      error := f.vars->'error';
    elsif f.waits is null and (node.op not in ('wait', 'next', 'goto', 'try', 'leave', 'unlock')
      or node.opts ? 'timeout') and not (node.opts ? 'void' and f.call > 0)
    then
      begin
        if flow.proc is null then
          raise exception using errcode = 'PF006',
            message = format('the function %s is gone, or does not run with the rights of %s any more', flow.function,
              pg_get_userbyid(flow.definer)),
            hint = 'Only pgflow.create_workflow makes and replaces functions of workflows.';
        end if;
        -- Conditions are nested where few get so far: a transaction sets up each expression that it reaches.
        if f.call = 0 then
          if f.pc = 1 and f.news = '{}' then
            perform pgflow.check_flow_input_(f.flow_id, f.vars);
          end if;
        end if;
        if not pg_try_advisory_xact_lock_shared(pgflow.latch_of_(salt,
          concat('definer ', flow.definer, ' ', pg_current_xact_id()))) -- see acting_
        then
          raise lock_not_available using message = 'the latch of the definer is taken';
        end if;
        execute 'select ' || left(flow.function, -length('(int, jsonb, jsonb)')) || '($1, $2, $3)'
        into value using f.pc, coalesce(taken, f.vars), f.run;
        if pg_catalog.textne(pg_catalog.current_setting('search_path'), 'pg_catalog, pg_temp')
          or pg_catalog.textne(pg_catalog.current_setting('standard_conforming_strings'), 'on')
        then
          raise exception using errcode = '42501',
            message = 'a step must not SET search_path or standard_conforming_strings for its session',
            hint = 'Name objects with their schema, or set it before pgflow.create_workflow.';
        end if;
        -- To `alter function` between a look and the call would not help: the row must be the same one after it.
        perform from pg_proc p where p.oid = flow.proc and p.xmin = flow.made_by and p.ctid = flow.made_at;
        if not found then
          raise exception using errcode = 'PF006',
            message = format('the function %s was altered meanwhile', flow.proc::regproc);
        end if;
        if is_timed then
          perform set_config('lock_timeout', usual, true);
          -- What could not be interrupted is not committed either.
          if clock_timestamp() - began >= (node.opts->>'timeout')::float8 * interval '1 second' then
            raise query_canceled using message = 'the step was too slow';
          end if;
        end if;
        is_same := value = coalesce(taken, f.vars);
        if not is_same then
          perform pgflow.check_json_(value::json, 'what a step makes of its variables');
        end if;
        if node.op <> 'step' then
          perform pgflow.check_asked_(node, value, flow.definer);
        elsif f.loops <> '{}' then
          if f.state <> 'undoing' then
            perform pgflow.check_fences_(run_id, array(select l.fence from pgflow.held_locks_(f) l));
          end if;
        end if;
      exception when others or query_canceled or assert_failure then
        get stacked diagnostics state = returned_sqlstate, said = message_text, detail = pg_exception_detail,
          context = pg_exception_context;
        error := pgflow.error_of_(node, began, state, said, detail, context);
        if is_timed then
          perform set_config('lock_timeout', usual, true);
        end if;
        stop := case when state = '57014' and error->>'type' <> 'StepTimeout' then said end;
      end;
    else
      value := null;
    end if;

    if error is not null then
      select a.* into asked from pgflow.fail_node_(f, node, worker_id, token, chain_id, error) a;
      error := null;
      f := asked.after;
      place := asked.place;
      wake := wake || asked.wake;
      continue;
    end if;
    case node.op
    when 'step' then
      -- What record_step_ does, of what each step does and without a look at the node.
      call := f.call + case f.tries when 0 then 1 else 0 end;
      news := '{}';
      if not is_same then
        news := pgflow.changes_(coalesce(taken, f.vars), value);
      end if;
      insert into pgflow.unit (run_id, seq, call, kind, name, payload, starts, token, at, recorded_at)
      values (run_id, f.seq + 1, call, 'c', node.name, news, json_build_array(json_build_array(call, 'q', node.name,
        null, null, pgflow.mark_(f))), token, pgflow.now_(), pgflow.now_());
      if f.state = 'undoing' or node.opts ? 'undo' then
        if taken is not null then
          value := f.vars || news;
        end if;
        perform pgflow.keep_undo_(f, pgflow.owed_undo_(f, node), value);
      end if;
      f := pgflow.fold_done_(f, node, f.seq + 1, call, value);
      steps := steps + 1;
    when 'rows' then
      perform pgflow.fold_items_(f, 0, 'c', value);
      f := pgflow.record_step_(f, token, 'c', node.name, value);
    when 'note' then
      f := pgflow.record_note_(f, token, node, coalesce(value, 'null'));
    when 'spend' then
      select a.* into asked from pgflow.spend_(f, node, worker_id, token, chain_id, value) a;
      f := asked.after;
      place := asked.place;
      wake := wake || asked.wake;
    when 'unlock' then
      if not f.is_marked then
        f := pgflow.record_unit_(f, token, 's', (f.loops->(node.opts->>'lock')->>'call')::int, node.name,
          pgflow.mark_(f), null);
      end if;
      select a.* into asked from pgflow.ask_flow_(f, worker_id, token, chain_id, jsonb_build_object('give_back',
        node.opts->'lock'), '[]') a;
      f := asked.f;
      place := asked.place;
      wake := wake || asked.wake;
    when 'set' then
      f.news := f.news || pgflow.changes_(f.vars, value);
      f.vars := value;
      f.pc := node.next;
      f.is_marked := false;
    when 'try' then
      f.loops := f.loops || jsonb_build_object(f.pc::text, jsonb_build_array(cardinality(f.undo), node.alt, f.state));
      f.pc := node.next;
      f.is_marked := false;
    when 'leave' then
      f.loops := f.loops - (node.opts->>'try');
      f.pc := node.next;
      f.is_marked := false;
    when 'goto', 'test' then
      f.pc := case when value = 'false' then node.alt else node.next end;
      f.is_marked := false;
    when 'next' then
      f.loops := jsonb_set(f.loops, array[node.opts->>'rows'], to_jsonb((f.loops->>(node.opts->>'rows'))::int + 1));
      select jsonb_build_object(node.opts->>'var', i.item) into value from pgflow.flow_item i
      where i.run_id = run_id and i.pc = (node.opts->>'rows')::int and i.n = (f.loops->>(node.opts->>'rows'))::int;
      if found then
        f.vars := f.vars || value;
        f.news := f.news || value;
        f.pc := node.next;
      else
        delete from pgflow.flow_item i where i.run_id = run_id and i.pc = (node.opts->>'rows')::int;
        f.loops := f.loops - (node.opts->>'rows');
        f.pc := node.alt;
      end if;
      f.is_marked := false;
    when 'return' then
      value := pgflow.end_flow_(f, worker_id, token, chain_id, 'completed', null, coalesce(value, 'null'), null);
      return jsonb_build_object('place', 'ended', 'steps', steps, 'wake', wake || (value->'wake'));
    else
      if node.op = 'each' and f.waits is null then
        perform pgflow.fold_items_(f, 0, 'c', value);
        f := pgflow.record_step_(f, token, 'c', 'for each ' || node.name, value);
      end if;
      if node.op = 'each' and pgflow.next_children_(f, node) is null then
        if node.opts ? 'into' then
          value := jsonb_build_object(node.opts->>'into', (select coalesce(jsonb_agg(i.output order by i.n), '[]')
            from pgflow.flow_item i where i.run_id = run_id and i.pc = f.pc));
          f.vars := f.vars || value;
          f.news := f.news || value;
        end if;
        delete from pgflow.flow_item i where i.run_id = run_id and i.pc = f.pc;
        f.waits := null;
        f.pc := node.next;
        f.is_marked := false;
        continue;
      end if;
      select q.* into asked from pgflow.wait_question_(f, node, value) q;
      select a.* into asked from pgflow.ask_flow_(asked.f, worker_id, token, chain_id, asked.question, asked.units) a;
      f := asked.f;
      place := asked.place;
      wake := wake || asked.wake;
      if f.state = 'undoing' then
        delete from pgflow.flow_item i where i.run_id = run_id and i.pc = node.pc;
      end if;
    end case;
  end loop;
  if place = 'ended' then
    perform pgflow.drop_frames_(array[run_id]);
  else
    update pgflow.flow_frame k set flow_id = f.flow_id, seq = f.seq, pc = f.pc, call = f.call, tries = f.tries,
      strikes = f.strikes, state = f.state, is_marked = f.is_marked, undo = f.undo, waits = f.waits, run = f.run,
      loops = f.loops, news = f.news, error = f.error, vars = f.vars
    where k.run_id = run_id;
    if not found then
      insert into pgflow.flow_frame select f.*;
    end if;
  end if;
  if place = 'leased' and steps = steps_per_commit and wake = '[]' and stop is null and seconds is null then
    return null;
  end if;
  return jsonb_build_object('place', place, 'steps', steps, 'wake', wake, 'stop', stop, 'timeout', seconds);
end
$$;
comment on function pgflow.advance(int, bigint, bigint, bigint, int, text)
  is 'One transaction''s worth of a run in SQL that a worker holds: up to so many steps, and what lies between them; '
     'answers its place (leased, parked, held, ended, lost) and chains for wake(); null = so many steps, nothing else. '
     'timed: leave = stops before a step '
     'that has a timeout and answers its seconds, armed = statement_timeout is set to them. Commit before anything else';
--! grant advance to pgflow_worker

create or replace function pgflow.serve_flows(worker_id int, queues text[])
returns int[]
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
  names text[] := array(select f.workflow from pgflow.flow f where f.is_current order by 1);
begin
  perform pgflow.register_code(worker_id, coalesce((select jsonb_agg(jsonb_build_array(n, 'sql', 'sql', false, null,
    jsonb '{}'))
    from unnest(names) n where not exists (select from pgflow.worker_code h join pgflow.code c on c.code_id = h.code_id
      where h.worker_id = serve_flows.worker_id and c.workflow = n)), '[]'));
  perform pgflow.beat(worker_id);
  return array(select l.lane_id from pgflow.serve_lanes(queues, names, array_fill(text '',
    array[cardinality(names)])) l);
end
$$;
comment on function pgflow.serve_flows(int, text[])
  is 'A session that works says that it has all workflows in SQL, and lives; answers the lanes that it serves';
--! grant serve_flows to pgflow_worker

create or replace function pgflow.claim_flows(worker_id int, lanes int[], max int)
returns jsonb
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan -- else all is planned anew for each claim
as $$
declare
  ids bigint[];
begin
  perform set_config('synchronous_commit', 'off', true);
  ids := pgflow.claim_(worker_id, lanes, max, array(select (random() * 9e18)::bigint from generate_series(1, max)),
    true, null);
  -- The frame has what claimed_ would read of a run.
  return (
    select jsonb_agg(jsonb_build_array(i.id, e.token, r.chain_id) order by i.n)
    from unnest(ids) with ordinality as i (id, n)
    cross join lateral (select l.token from pgflow.lease l where l.run_id = i.id offset 0) e
    cross join lateral (select n.chain_id from pgflow.run n where n.run_id = i.id offset 0) r
  );
end
$$;
comment on function pgflow.claim_flows(int, int[], int)
  is 'Claims runs for a session that works: [[run, token, chain], ...]; null = none';
--! grant claim_flows to pgflow_worker

-- The session itself knows under which numbers it has worked: that of a latch does not tell its name.
create or replace function pgflow.shared_sessions_()
returns int[]
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
  select coalesce(nullif(current_setting('pgflow.sessions', true), ''), '{}')::int[]
$$;
comment on function pgflow.shared_sessions_() is 'Workers that this session has been, of which it may still hold the latch';

create or replace function pgflow.share_session(worker int)
returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  perform pg_advisory_lock_shared(pgflow.latch_('worker ' || worker));
  perform set_config('pgflow.sessions', array_append(pgflow.shared_sessions_(), worker)::text, false);
end
$$;
comment on function pgflow.share_session(int) is 'Holds the latch of a worker for as long as this session lives';
--! grant share_session to pgflow_worker

create or replace function pgflow.unshare_session(worker int)
returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  if worker = any(pgflow.shared_sessions_()) then
    perform pg_advisory_unlock_shared(pgflow.latch_('worker ' || worker));
    perform set_config('pgflow.sessions', array_remove(pgflow.shared_sessions_(), worker)::text, false);
  end if;
end
$$;
comment on function pgflow.unshare_session(int) is 'Gives that latch back';
--! grant unshare_session to pgflow_worker

create or replace function pgflow.reap_sessions(is_own boolean default false)
returns int
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  dead record;
  reclaimed int := 0;
begin
  -- Our own are left of a CALL that has failed, if none is under way.
  for dead in
    select w.worker_id, w.beat, w.pid from pgflow.worker w
    where w.version = 'sql' and (w.pid <> pg_backend_pid() or is_own)
    union all
    select o.worker_id, o.beat, null from pgflow.observe_workers() o where o.beat = -1
    order by 1
  loop
    if pg_try_advisory_xact_lock(pgflow.latch_('worker ' || dead.worker_id)) then
      reclaimed := reclaimed + (select r.reclaimed from pgflow.reap_worker(dead.worker_id, dead.beat) r);
    end if;
  end loop;
  perform pgflow.unshare_session(s.worker_id) from unnest(pgflow.shared_sessions_()) as s (worker_id)
  where not exists (select from pgflow.worker w where w.worker_id = s.worker_id);
  return reclaimed;
end
$$;
comment on function pgflow.reap_sessions(boolean)
  is 'Gives runs away of sessions that worked and are gone, which a lock tells at once; answers how many';
--! grant reap_sessions to pgflow_worker

create or replace procedure pgflow.work_until(
  inout step jsonb, seconds float8 default 10, until_idle boolean default false, steps_per_commit int default 1,
  claim int default 1, queues text[] default '{default}', idle_seconds float8 default 0.05, steps int default null
)
language plpgsql
as $$
#variable_conflict use_variable
declare
  path text := pg_catalog.current_setting('search_path');
  level text := pg_catalog.current_setting('default_transaction_isolation');
  stop_at timestamptz := pg_catalog.clock_timestamp() + seconds * interval '1 second';
  look_at timestamptz := '-infinity';
  fire_at timestamptz := '-infinity';
  poll_at timestamptz := '-infinity';
  worker int;
  lanes int[];
  claimed jsonb;
  run jsonb;
  run_id bigint;
  token bigint;
  chain_id bigint;
  isolation text;
  answer jsonb;
  due float8;
  busy int;
  stop text;
  timed text := case when step is null then 'run' else 'leave' end;
begin
  -- What a lock was waited for must be seen after it.
  perform pg_catalog.set_config('default_transaction_isolation', 'read committed', false);
  commit;
  worker := (step->>'worker')::int;
  if worker is not null and step->'wake' <> '[]' then
    perform pgflow.wake(array(select w::bigint from pg_catalog.jsonb_array_elements_text(step->'wake') w));
    commit;
  elsif step is not null then
    claim := 1;
  end if;
  claim := case when steps is null then claim else 1 end;
  if worker is null then
    perform pgflow.reap_sessions(true);
    commit;
    worker := pgflow.register_worker('session', pg_catalog.pg_backend_pid(), queues, claim, 'sql');
    perform pgflow.share_session(worker);
    commit;
  end if;
  while stop is null and coalesce(steps > 0, true) and pg_catalog.clock_timestamp() < stop_at loop
    if pg_catalog.clock_timestamp() >= fire_at then
      fire_at := pg_catalog.clock_timestamp() + pgflow.fire_schedules(worker) * interval '1 second';
      commit;
    end if;
    if pg_catalog.clock_timestamp() >= look_at then
      look_at := pg_catalog.clock_timestamp() + interval '1 second';
      lanes := pgflow.serve_flows(worker, queues);
      commit;
      perform pgflow.reap_sessions();
      commit;
    end if;
    if step ? 'runs' then
      claimed := step->'runs';
      step := step - 'runs';
    else
      claimed := pgflow.claim_flows(worker, lanes, claim);
    end if;
    commit;
    for run in select e from pg_catalog.jsonb_array_elements(claimed) e loop
      run_id := run->0;
      token := run->1;
      chain_id := run->2;
      loop
        begin
          answer := pgflow.advance(worker, run_id, token, chain_id, least(steps_per_commit, steps), timed);
        exception when sqlstate 'PF004' then
          answer := '{"place": "lost", "steps": 0, "wake": []}';
        end;
        -- Before any operator: a step may have left another one. Assignments, since PERFORM is a query each time.
        path := pg_catalog.set_config('search_path', path, false);
        isolation := pg_catalog.set_config('default_transaction_isolation', 'read committed', false);
        commit;
        steps := steps - coalesce((answer->>'steps')::int, least(steps_per_commit, steps));
        if answer is not null then
          if answer->'wake' <> '[]' then
            perform pgflow.wake(array(select w::bigint from pg_catalog.jsonb_array_elements_text(answer->'wake') w));
            commit;
          end if;
          stop := answer->>'stop';
          exit when answer->>'place' <> 'leased';
          if answer->>'timeout' is not null then -- only a statement of its own can have a statement_timeout
            step := pg_catalog.jsonb_build_object('worker', worker, 'timeout', answer->'timeout', 'runs', claimed);
            return;
          end if;
        end if;
        if stop is not null or steps <= 0 or pg_catalog.clock_timestamp() >= stop_at then
          perform pgflow.release_runs(array[run_id], array[token]);
          commit;
          exit;
        end if;
      end loop;
    end loop;
    if claimed is null or pg_catalog.clock_timestamp() >= poll_at then
      poll_at := pg_catalog.clock_timestamp() + interval '0.2 second';
      select p.next_due_seconds, p.busy into due, busy from pgflow.poll() p;
      commit;
    end if;
    if claimed is null and not pgflow.has_ready(lanes) then
      commit;
      exit when until_idle and busy = 0 and coalesce(due >= 1, true);
      perform pg_catalog.pg_sleep(idle_seconds);
    end if;
    commit;
  end loop;
  perform pgflow.leave_worker(worker);
  perform pgflow.unshare_session(worker);
  perform pg_catalog.set_config('default_transaction_isolation', level, false);
  commit;
  step := null;
  if stop is not null then
    raise exception using errcode = '57014', message = stop,
      hint = 'The step is tried again by the next CALL. statement_timeout counts from the CALL: give the step a '
        'timeout of its own.';
  end if;
end
$$;
comment on procedure pgflow.work_until(jsonb, float8, boolean, int, int, text[], float8, int)
  is 'Does what work() does, for a driver that can set statement_timeout: with {} it ends before each step that has a '
     'timeout, and answers what run_timed() takes; null = all is done. CALL it again with what that answers';
--! grant work_until to pgflow_worker

create or replace function pgflow.run_timed(step jsonb)
returns jsonb
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  run jsonb := step->'runs'->0;
  answer jsonb;
begin
  begin
    answer := pgflow.advance((step->>'worker')::int, (run->>0)::bigint, (run->>1)::bigint, (run->>2)::bigint,
      timed => 'armed');
  exception when sqlstate 'PF004' then
    answer := '{"place": "lost", "steps": 0, "wake": []}';
  end;
  return jsonb_build_object('worker', step->'worker', 'wake', coalesce(answer->'wake', '[]'))
    || case when answer is null or answer->>'place' = 'leased' then jsonb_build_object('runs', step->'runs')
      else '{}' end;
end
$$;
comment on function pgflow.run_timed(jsonb)
  is 'Runs a step that has a timeout, of which statement_timeout was set to the seconds that work_until() has answered';
--! grant run_timed to pgflow_worker

create or replace procedure pgflow.work(
  seconds float8 default 10, until_idle boolean default false, steps_per_commit int default 1, claim int default 1,
  queues text[] default '{default}', idle_seconds float8 default 0.05, steps int default null
)
language plpgsql
as $$
declare
  step jsonb;
begin
  call pgflow.work_until(step, seconds, until_idle, steps_per_commit, claim, queues, idle_seconds, steps);
end
$$;
comment on procedure pgflow.work(float8, boolean, int, int, text[], float8, int)
  is 'Works on runs of workflows in SQL for so many seconds, until none can go on, or for so many steps; a step, or '
     'steps_per_commit of them, is one transaction. CALL it alone, outside of a transaction';
--! grant work to pgflow_worker

create or replace function pgflow.has_ready(lanes int[])
returns boolean
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
  -- In a line they stand under the negative of it.
  select exists (select from pgflow.ready r where r.lane_id = any(lanes || array(select -l from unnest(lanes) l)))
$$;
comment on function pgflow.has_ready(int[]) is 'True if a run of these lanes may be claimed';
--! grant has_ready to pgflow_worker

create or replace function pgflow.has_ready_flows(queues text[])
returns boolean
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
  select pgflow.has_ready(array(select l.lane_id from pgflow.flow f join pgflow.lane l on l.workflow = f.workflow
    where f.is_current and l.queue = any(queues) and l.version = ''))
$$;
comment on function pgflow.has_ready_flows(text[])
  is 'True if a run of a workflow in SQL may be claimed from these queues';
--! grant has_ready_flows to pgflow_worker
