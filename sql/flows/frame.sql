-- Frames: where a run of a workflow in SQL is. A frame is a fold of the journal, unit by unit, and the row is kept so
-- that a step need not read the journal. Where there is none - a fork, a generation that rewinds - or units came after
-- it, it is folded anew. `check()` does so too, and compares.
--
-- What the database decides (S, T, W, k, K, x) says nothing of nodes. So each unit that the driver writes carries a
-- *mark*: the node that it is of, with what has changed since the unit before it that no unit tells:
--   {pc, loops: {node: number of the row at hand, lock that is held, or block with a handler}, state, vars: {name:
--   value}, version}
-- The mark of a result (c, f, a) is the sixth element of its licence in `starts`; that of a wait is the payload of its
-- `t` or `s`, with what is asked for (`ask`): the key of a lock, or an event. A child or a gate right behind a unit needs
-- none (`is_marked`): their own units say that they are open.
--
--   state       on, undoing (compensations are run, the last step's first), handling (the handler of an exception)
--   undo        nodes of compensations of what is done
--   waits       {call, timer: seq of its unit, ask, is_asked: a gate} of the call that is open
--   loops       of a lock: {call: that of the block, key, fence}; of a block: [compensations before it, handler, state]
--   tries       failed attempts of the step at hand; `strikes` are those of them that count against its `retry`

create or replace function pgflow.is_transient_(error jsonb)
returns boolean
language sql
immutable
return error->>'type' is distinct from 'StepTimeout' and coalesce(
  error->>'sqlstate' in ('40001', '40P01', '55P03', '57014', '25006')
  or left(error->>'sqlstate', 2) in ('08', '53', '57', '58'), false); -- that of a child may have none
comment on function pgflow.is_transient_(jsonb)
  is 'True if an error says nothing about the statement: it is tried again, and not counted';

create or replace function pgflow.whole_mark_(f pgflow.flow_frame)
returns jsonb
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
begin
  return jsonb_build_object('pc', f.pc)
    || case when f.loops = '{}' then '{}' else jsonb_build_object('loops', f.loops) end
    || case when f.state = 'on' then '{}' else jsonb_build_object('state', f.state) end
    || case when f.news = '{}' then '{}' else jsonb_build_object('vars', f.news) end
    || case when f.call = 0 then jsonb_build_object('version', f.run->'version') else '{}' end;
end
$$;
comment on function pgflow.whole_mark_(pgflow.flow_frame) is 'The mark of the next unit, with all that it may have';

create or replace function pgflow.mark_(f pgflow.flow_frame)
returns jsonb
language sql
stable
-- One expression, which is inlined: each unit has a mark. A function in it costs, called or not.
return case when f.loops = '{}' and f.state = 'on' and f.news = '{}' and f.call > 0
  then jsonb_build_object('pc', f.pc) else pgflow.whole_mark_(f) end;
comment on function pgflow.mark_(pgflow.flow_frame) is 'The mark of the next unit: the place at which its run is';

create or replace function pgflow.assign_(f pgflow.flow_frame, variable text, value jsonb)
returns pgflow.flow_frame
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
  if variable is not null then
    f.vars := f.vars || jsonb_build_object(variable, value);
  end if;
  return f;
end
$$;
comment on function pgflow.assign_(pgflow.flow_frame, text, jsonb) is 'Sets a variable, if there is one';

create or replace function pgflow.break_off_(f pgflow.flow_frame, error jsonb)
returns pgflow.flow_frame
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
  f.state := 'undoing';
  f.error := error;
  f.waits := null;
  return f;
end
$$;
comment on function pgflow.break_off_(pgflow.flow_frame, jsonb)
  is 'The frame after an error: what was done is taken back from here on';

create or replace function pgflow.held_locks_(f pgflow.flow_frame)
returns table (node text, call int, key text, fence bigint)
language sql
immutable
set search_path = pg_catalog, pg_temp
as $$
  select e.key, (e.value->>'call')::int, e.value->>'key', (e.value->>'fence')::bigint
  from jsonb_each(f.loops) e where jsonb_typeof(e.value) = 'object' order by 2
$$;
comment on function pgflow.held_locks_(pgflow.flow_frame) is 'Locks that a run in SQL holds, by the nodes that took them';

create or replace function pgflow.fold_released_(f pgflow.flow_frame, node pgflow.flow_node, call int, payload jsonb)
returns pgflow.flow_frame
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
declare
  held record;
begin
  select l.* into held from pgflow.held_locks_(f) l where l.call = fold_released_.call;
  f.loops := f.loops - held.node;
  if f.state = 'undoing' then
    return f;
  elsif held.node is null then
    return pgflow.break_off_(f, jsonb_build_object('type', 'LockRefused', 'sqlstate', 'PF025', 'step', node.name,
      'message', format('lock %s would never be had: who holds it waits for what this run holds',
        quote_literal(f.waits->>'ask'))));
  elsif node.op = 'unlock' and node.opts->>'lock' = held.node then
    f.pc := node.next;
    return f;
  end if;
  return pgflow.break_off_(f, jsonb_build_object('type', 'LockLost', 'sqlstate', 'PF025', 'step', node.name,
    'message', format('lock %s was lost: %s', quote_literal(held.key), payload->>'lost')));
end
$$;
comment on function pgflow.fold_released_(pgflow.flow_frame, pgflow.flow_node, int, jsonb)
  is 'The frame after a lock was given back, lost or refused';

create or replace function pgflow.owed_undo_(f pgflow.flow_frame, node pgflow.flow_node)
returns int[]
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
  return case when f.state = 'undoing' then f.undo[1 : cardinality(f.undo) - 1]
    else f.undo || (node.opts->>'undo')::int end;
end
$$;
comment on function pgflow.owed_undo_(pgflow.flow_frame, pgflow.flow_node)
  is 'Compensations of what is done, after a step that has one or is one';

create or replace function pgflow.fold_done_(
  f pgflow.flow_frame, node pgflow.flow_node, seq int, call int, vars jsonb
)
returns pgflow.flow_frame
language sql
immutable
-- One expression, which is inlined: each step ends with it.
return row(f.run_id, f.flow_id, seq, case when f.state = 'undoing' then f.pc else node.next end,
  greatest(f.call, call), 0, 0, f.state, true,
  case when f.state = 'undoing' or node.opts ? 'undo' then pgflow.owed_undo_(f, node) else f.undo end,
  null, f.run, f.loops, '{}', case when f.state = 'undoing' then f.error end, -- else a handler has it
  vars)::pgflow.flow_frame;
comment on function pgflow.fold_done_(pgflow.flow_frame, pgflow.flow_node, int, int, jsonb)
  is 'The frame, at a step, after the unit that it is done, with the variables as they are then';

create or replace function pgflow.fold_unit_(
  f pgflow.flow_frame, seq int, call int, kind "char", payload jsonb, starts jsonb
)
returns pgflow.flow_frame
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
  node pgflow.flow_node;
  mark jsonb := case when kind in ('t', 's') then payload else starts->0->5 end;
begin
  f.seq := seq;
  if kind = 'x' and call = 0 then
    f.state := 'undoing';
    f.error := jsonb_build_object('cancelled', payload->'why');
    f.waits := null;
    f.tries := 0;
    f.strikes := 0;
    return f;
  elsif call = 0 then
    return f; -- what people did to the run
  end if;
  f.call := greatest(f.call, call);
  if mark is not null then
    if mark ? 'version' then
      select w.flow_id into f.flow_id from pgflow.flow w
      where w.workflow = f.run->>'workflow' and w.version = (mark->>'version')::int;
    end if;
    f.pc := (mark->>'pc')::int;
    f.loops := coalesce(mark->'loops', '{}');
    f.state := coalesce(mark->>'state', 'on');
    if f.state <> 'undoing' then
      f.error := null; -- a handler has it
    end if;
    f.waits := null; -- as far as it is not this unit that begins a wait
    f.vars := f.vars || coalesce(mark->'vars', '{}');
    f.news := '{}';
  end if;
  f.is_marked := true;
  select n.* into node from pgflow.flow_node n where n.flow_id = f.flow_id and n.pc = f.pc;
  if kind = 'a' then
    f.tries := f.tries + 1;
    f.strikes := f.strikes + (not pgflow.is_transient_(payload))::int;
    return f;
  end if;
  if kind not in ('t', 's', 'k') then
    f.tries := 0;
    f.strikes := 0;
  end if;
  case
  when kind = 'c' and node.op = 'each' then
    f.waits := jsonb_build_object('call', call);
  when kind = 'c' and node.op = 'rows' then
    f.loops := f.loops || jsonb_build_object(f.pc::text, 0);
    f.pc := node.next;
  when kind = 'c' then
    f := pgflow.fold_done_(f, node, seq, call,
      case when jsonb_typeof(payload) = 'object' then f.vars || payload else f.vars end);
  when kind = 'f' then
    f := pgflow.break_off_(f, payload);
  when kind = 's' and node.op not in ('wait', 'event', 'lock') then
    null; -- what it announces may not have come about: that is said by k, g, v, e, M or u
  when kind in ('t', 's') then
    f.waits := jsonb_strip_nulls(jsonb_build_object('call', call, 'timer', case kind when 't' then seq end))
      || case when mark ? 'ask' then jsonb_build_object('ask', mark->'ask') else '{}' end;
  when kind in ('v', 'e', 'M') then
    f.pc := node.next;
  when kind = 'q' then
    f := pgflow.break_off_(f, jsonb_build_object('type', 'BudgetRefused', 'step', node.name, 'message',
      format('the budget %s does not allow it: %s', payload->>'pool', payload->>'reason')) || payload);
  when kind = 'g' then
    f.waits := coalesce(f.waits, '{}') || jsonb_build_object('call', call, 'is_asked', true);
  when kind = 'G' then
    f := pgflow.assign_(f, node.opts->>'into', payload - 'n');
    f := pgflow.assign_(f, 'timed_out', coalesce(payload->'timed_out', 'false'));
    f.waits := null;
    f.pc := node.next;
  when kind = 'L' then
    f.loops := f.loops || jsonb_build_object(f.pc::text,
      jsonb_build_object('call', call + 1, 'key', f.waits->'ask', 'fence', payload->'fence'));
    f.call := greatest(f.call, call + 1);
    f := pgflow.assign_(f, 'timed_out', 'false');
    f.waits := null;
    f.pc := node.next;
  when kind = 'u' then
    f := pgflow.fold_released_(f, node, call, payload);
  when kind = 'k' and node.op = 'run' then
    f.waits := jsonb_build_object('call', call);
  when kind in ('S', 'T', 'W') then
    if kind <> 'T' then
      f := pgflow.assign_(f, node.opts->>'into', case kind when 'S' then payload else 'null' end);
      f := pgflow.assign_(f, 'timed_out', to_jsonb(kind = 'W'));
    end if;
    f.waits := null;
    f.pc := case when node.op = 'lock' then node.alt else node.next end;
  when kind = 'K' and f.state = 'undoing' then
    null; -- another of a for each has failed first
  when kind = 'K' and payload->>'status' <> 'completed' and not coalesce((node.opts->>'go_on')::boolean, false) then
    f := pgflow.break_off_(f, coalesce(nullif(payload->'error', 'null'), jsonb_build_object('type', 'ChildEnded',
      'message', format('child %s was %s', node.name, payload->>'status')))
      || jsonb_build_object('step', node.name, 'child', payload->'status'));
  when kind = 'K' and node.op = 'run' then
    f := pgflow.assign_(f, node.opts->>'into', payload->'output');
    f.waits := null;
    f.pc := node.next;
  else
    null;
  end case;
  return f;
end
$$;
comment on function pgflow.fold_unit_(pgflow.flow_frame, int, int, "char", jsonb, jsonb)
  is 'The frame after one more unit of its journal';

create or replace function pgflow.fold_items_(f pgflow.flow_frame, call int, kind "char", payload jsonb)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
  pc int := case when f.state = 'on' or f.state = 'handling' then f.pc end;
begin
  if kind = 'c' then
    delete from pgflow.flow_item i where i.run_id = f.run_id and i.pc = pc;
    insert into pgflow.flow_item (run_id, pc, n, item)
    select f.run_id, pc, e.n, e.item from jsonb_array_elements(payload) with ordinality as e (item, n);
  elsif kind = 'k' then
    update pgflow.flow_item i set call = fold_items_.call
    where i.run_id = f.run_id and i.pc = pc and i.n = (
      select min(m.n) from pgflow.flow_item m where m.run_id = f.run_id and m.pc = pc and m.call is null);
  else
    update pgflow.flow_item i set is_done = true,
      output = case when payload->>'status' = 'completed' then payload->'output'
        else jsonb_build_object('error', payload->'error', 'status', payload->'status') end
    where i.run_id = f.run_id and i.pc = pc and i.call = fold_items_.call;
  end if;
end
$$;
comment on function pgflow.fold_items_(pgflow.flow_frame, int, "char", jsonb)
  is 'Keeps the rows that a loop has read, and which child each of them has, as a unit tells';

create or replace function pgflow.keep_undo_(f pgflow.flow_frame, undo int[], vars jsonb)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
  had int := cardinality(f.undo);
  has int := cardinality(undo);
begin
  if has > had then
    insert into pgflow.flow_item as i (run_id, pc, n, item) values (f.run_id, undo[has], has, vars)
    on conflict on constraint flow_item_pkey do update set item = excluded.item;
  else
    delete from pgflow.flow_item i where i.run_id = f.run_id and i.pc = f.undo[had] and i.n = had;
  end if;
end
$$;
comment on function pgflow.keep_undo_(pgflow.flow_frame, int[], jsonb)
  is 'Keeps the variables behind a step for its compensation, and drops them once it is done';

create or replace function pgflow.fresh_frame_(run_id bigint)
returns pgflow.flow_frame
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
declare
  f pgflow.flow_frame;
begin
  select r.run_id, w.flow_id, 0, 1, 0, 0, 0, 'on', false, array[]::int[], null::jsonb,
    jsonb_build_object('key', r.key, 'id', r.run_id, 'tenant', r.tenant, 'workflow', w.workflow, 'version', w.version,
      'queue', l.queue),
    jsonb '{}', jsonb '{}', null::jsonb, coalesce(r.input::jsonb, '{}')
  into f
  from pgflow.run r
  join pgflow.lane l on l.lane_id = r.lane_id
  join pgflow.flow w on w.workflow = l.workflow and w.is_current
  where r.run_id = fresh_frame_.run_id;
  return f;
end
$$;
comment on function pgflow.fresh_frame_(bigint) is 'The frame of a run that has not begun, with the current version';

create or replace function pgflow.fold_journal_(run_id bigint, keep_items boolean default false)
returns pgflow.flow_frame
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
  f pgflow.flow_frame := pgflow.fresh_frame_(run_id);
  before pgflow.flow_frame;
  unit record;
begin
  for unit in
    select u.seq::int as seq, u.call::int as call, u.kind::"char" as kind, u.payload::jsonb as payload,
      u.starts::jsonb as starts
    from pgflow.unit u where u.run_id = run_id order by u.seq
  loop
    before := f;
    f := pgflow.fold_unit_(f, unit.seq, unit.call, unit.kind, unit.payload, unit.starts);
    if keep_items and exists (
      select from pgflow.flow_node n where n.flow_id = f.flow_id and n.op in ('rows', 'each')
        and n.pc = case when unit.kind = 'c' then (unit.starts->0->5->>'pc')::int else before.pc end
    ) and unit.kind in ('c', 'k', 'K') then
      before.pc := coalesce((unit.starts->0->5->>'pc')::int, before.pc);
      before.state := case when unit.kind = 'c' then coalesce(unit.starts->0->5->>'state', 'on') else before.state end;
      perform pgflow.fold_items_(before, unit.call, unit.kind, unit.payload);
    end if;
    if keep_items and cardinality(f.undo) <> cardinality(before.undo) then
      perform pgflow.keep_undo_(before, f.undo, f.vars);
    end if;
  end loop;
  if keep_items then
    delete from pgflow.flow_item i where i.run_id = run_id and i.pc <> f.pc and i.pc <> all(f.undo)
      and not f.loops ? i.pc::text;
  end if;
  if f.run->>'version' is distinct from (select w.version::text from pgflow.flow w where w.flow_id = f.flow_id) then
    f.run := f.run || (select jsonb_build_object('version', w.version) from pgflow.flow w where w.flow_id = f.flow_id);
  end if;
  return f;
end
$$;
comment on function pgflow.fold_journal_(bigint, boolean)
  is 'The frame of a run as its journal tells it, and the rows of its loops';

create or replace function pgflow.flow_said_(f pgflow.flow_frame)
returns text
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
  select jsonb_build_object('flow', f.flow_id, 'pc', f.pc, 'call', f.call, 'tries', f.tries, 'state', f.state,
    'undo', f.undo, 'waits', f.waits, 'loops', f.loops, 'error', f.error,
    -- one that has no value, and one that nobody has set yet, are the same
    'vars', (select jsonb_object_agg(e.key, e.value) from jsonb_each(f.vars) e where e.value <> 'null'))::text
$$;
comment on function pgflow.flow_said_(pgflow.flow_frame) is 'A frame as text, as far as its journal determines it';

create or replace function pgflow.drop_frames_(run_ids bigint[])
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
begin
  delete from pgflow.flow_frame f where f.run_id = any(run_ids);
  delete from pgflow.flow_item i where i.run_id = any(run_ids);
end
$$;
comment on function pgflow.drop_frames_(bigint[]) is 'Forgets where runs were that have ended';

comment on column pgflow.flow_frame.run_id is 'The run';
comment on column pgflow.flow_frame.flow_id is 'The version with which it has begun';
comment on column pgflow.flow_frame.seq is 'The last unit that is in it';
comment on column pgflow.flow_frame.pc is 'The node at hand';
comment on column pgflow.flow_frame.call is 'The last call that was made';
comment on column pgflow.flow_frame.tries is 'Failed attempts of the step at hand';
comment on column pgflow.flow_frame.strikes is 'Those of them that count against its retry';
comment on column pgflow.flow_frame.state
  is 'on, undoing = compensations are run, handling = so is the handler of an exception';
comment on column pgflow.flow_frame.is_marked is 'True if the journal says where the run is';
comment on column pgflow.flow_frame.undo is 'Nodes of the compensations of what was done';
comment on column pgflow.flow_frame.waits is 'The call that is open, and the unit of its timer';
comment on column pgflow.flow_frame.run is 'Facts of the run, which steps see as the variable run';
comment on column pgflow.flow_frame.loops is 'Numbers of the rows at hand, and locks that are held, by node';
comment on column pgflow.flow_frame.news is 'Variables that have changed since the last mark, and that no unit tells';
comment on column pgflow.flow_frame.error is 'The error of a run that failed, or why it was cancelled';
comment on column pgflow.flow_frame.vars is 'All variables';

comment on column pgflow.flow_item.run_id is 'The run';
comment on column pgflow.flow_item.pc is 'The node that has read the rows, or that of a compensation';
comment on column pgflow.flow_item.n is 'Number of the row, or of the compensation among those that are owed';
comment on column pgflow.flow_item.call is 'Number of the call that started the child; null = not yet';
comment on column pgflow.flow_item.is_done is 'True if the child has ended';
comment on column pgflow.flow_item.item is 'The row, the input of the child, or the variables behind the step that is to be taken back';
comment on column pgflow.flow_item.output is 'Result of the child, or {error, status}';
