-- Effects and children of a dropped part of a journal that a run takes over.
--
-- effects => 'reuse': a confirmed effect that was not taken back, and a child that has completed or still goes on,
-- are handed to the run that asks for the same: the same name, the same place in the count of that name, the same
-- arguments. effects => 'compensate': every effect that may have been done is taken back before the run's code goes
-- on, the last one first; what is open is settled first.
--
-- What must go on in the new journal before its code has asked for it has calls from 1,000,000,000 on,
-- after the operator's unit: children with their start, so that their results find the run, which is their parent from
-- then on (the only update that a row of `run` ever gets); open effects with copies of all their units and with what is
-- owed. A worker that claims the run takes the effects back (`undo` in `carried`) and ends that with a unit
-- `compensated`; only then does the code begin.
--
-- A fork takes nothing from its origin, which goes on owing what it owes and takes back what it did.

create or replace function pgflow.first_run_(run_id bigint, seq int)
returns bigint
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
declare
  me bigint := first_run_.run_id;
  origin record;
begin
  loop
    select r.origin_run_id as id, r.origin_seq as upto into origin from pgflow.run r where r.run_id = me;
    exit when origin.id is null or first_run_.seq > origin.upto;
    me := origin.id;
  end loop;
  return me;
end
$$;
comment on function pgflow.first_run_(bigint, int)
  is 'The run to which a unit of a journal happened, of which others have copies';

create or replace function pgflow.undone_from_(run_id bigint, cut int)
returns table (key text, is_done boolean)
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
  select i.payload->>'compensates', exists (
    select from pgflow.unit c where c.run_id = i.run_id and c.call = i.call and c.kind = 'C'
  ) or exists (
    select from pgflow.unit a join pgflow.unit e on e.run_id = a.run_id and e.call = a.call and e.kind = 'E'
      and e.seq > a.seq
    where a.run_id = i.run_id and a.call = i.call and a.kind = 'A' and e.payload->>'verdict' = 'confirmed'
  )
  from pgflow.run me
  join pgflow.run g on g.run_id = me.run_id
    or g.generation > me.generation and g.chain_id = me.chain_id and g.generation > 1
  join pgflow.unit i on i.run_id = g.run_id and i.kind = 'i' and i.payload->>'compensates' is not null
    and (g.run_id <> me.run_id or i.seq > undone_from_.cut)
  where me.run_id = undone_from_.run_id
  union all
  select d.payload->>'effect', true
  from pgflow.run me
  join pgflow.run g on g.run_id = me.run_id
    or g.generation > me.generation and g.chain_id = me.chain_id and g.generation > 1
  join pgflow.unit d on d.run_id = g.run_id and d.kind = 'o' and d.name = 'discharged'
    and d.payload->>'verdict' = 'taken_back'
  where me.run_id = undone_from_.run_id
$$;
comment on function pgflow.undone_from_(bigint, int)
  is 'Keys of effects that a run took back after a cut, or a later generation of its chain did, or began to, each with '
     'whether it is done';

create or replace function pgflow.effects_after_(run_id bigint, cut int)
returns table (
  seq int, call int, name text, key text, args_hash bigint, request json, risk text, code text, decision text,
  compensates text,
  state text, outcome "char", result json, is_undo boolean, is_undone boolean, is_foreign boolean, origin jsonb
)
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  return query
    with ledger as materialized (
      select i.seq, i.call::int as call, i.name::text as name, i.key::text as key,
        coalesce(i.args_hash, pgflow.licensed_hash_(i.starts)) as args_hash,
        i.payload::json as payload, o.kind::"char" as kind, o.payload::json as result,
        case
          when o.kind is null then 'open'
          when o.kind = 'C' then 'confirmed'
          when o.kind = 'F' then 'failed'
          when s.verdict is null then 'open'
          else s.verdict
        end as state
      from pgflow.unit i
      left join lateral (
        select u.kind, u.payload, u.seq from pgflow.unit u
        where u.run_id = i.run_id and u.call = i.call and u.kind in ('C', 'F', 'A') order by u.seq limit 1
      ) o on true
      left join lateral (
        select u.payload->>'verdict' as verdict from pgflow.unit u
        where o.kind = 'A' and u.run_id = i.run_id and u.call = i.call and u.kind = 'E' and u.seq > o.seq
        order by u.seq limit 1
      ) s on true
      where i.run_id = effects_after_.run_id and i.kind = 'i' and i.seq > cut
    ), done_back as materialized (
      select u.key from pgflow.undone_from_(effects_after_.run_id, effects_after_.cut) u where u.is_done
    )
    select l.seq, l.call, l.name, l.key, l.args_hash, l.payload->'request', l.payload->>'risk', l.payload->>'code',
      l.payload->>'decision', l.payload->>'compensates',
      l.state, l.kind, l.result, l.payload->>'compensates' is not null
        or coalesce((l.payload->>'is_undo')::boolean, false),
      l.key in (select d.key from done_back d),
      not starts_with(l.key, me.root::text),
      coalesce((l.payload->'origin')::jsonb,
        jsonb_build_object('run_id', pgflow.first_run_(me.run_id, l.seq), 'seq', l.seq))
    from ledger l join pgflow.run me on me.run_id = effects_after_.run_id order by l.seq;
end
$$;
comment on function pgflow.effects_after_(bigint, int)
  is 'The effects that a journal intends after a cut, each with what became of it (open, confirmed, failed), whether '
     'it helps to take another back, whether it was taken back there or in a later generation, whether the run that '
     'this one was forked from did it, and where';

create or replace function pgflow.has_done_(chain bigint)
returns boolean
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
  with recursive family as (
    select r.run_id from pgflow.run r where r.run_id = has_done_.chain or r.chain_id = has_done_.chain
      and r.generation > 1
    union
    select r.run_id
    from family f
    join pgflow.unit k on k.run_id = f.run_id and k.kind = 'k'
    join pgflow.run r on r.run_id = (k.payload->>'run_id')::bigint or r.chain_id = (k.payload->>'run_id')::bigint
      and r.generation > 1
  )
  select exists (
    select from family f cross join lateral pgflow.effects_after_(f.run_id, 0) e
    where not e.is_undo and e.state <> 'failed' and not e.is_undone and not e.is_foreign
  )
$$;
comment on function pgflow.has_done_(bigint)
  is 'True if a run, or a child of it, has done effects, or may have, that were not taken back';

create or replace function pgflow.first_adopted_(run_id bigint)
returns int
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
  select greatest(1000000000, (select max(u.call) + 1 from pgflow.unit u where u.run_id = first_adopted_.run_id))
$$;
comment on function pgflow.first_adopted_(bigint)
  is 'The next number, beyond those of any code, for a call that a run takes over from a dropped part';

create or replace function pgflow.adopt_effects_(
  origin bigint, cut int, heir bigint, chain bigint, t timestamptz, inout seq int
)
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
  done record;
  has_open boolean := false;
  own int := pgflow.first_adopted_(heir);
begin
  for done in select * from pgflow.effects_after_(origin, cut) loop
    -- What was not done need not be taken back, nor what takes back another; but what is open stays owed. What a
    -- fork repeats is its origin's. What was begun to take back an effect that is not dropped stays the old one's.
    continue when done.is_foreign or done.state <> 'open' and (done.state = 'failed' or done.is_undo or done.is_undone);
    continue when done.is_undo and not exists (
      select from pgflow.effects_after_(origin, cut) e
      where e.key = done.compensates and not e.is_undo and not e.is_foreign
    );
    insert into pgflow.carried (run_id, args_hash, seq, call, is_done, what, name, key, payload, request, note)
    values (heir, coalesce(done.args_hash, 0), done.seq, case when done.state = 'open' then own
      else 0 end, done.state <> 'open', 'undo', done.name, done.key,
      case when done.state <> 'open' then done.result end, done.request,
      jsonb_build_object('compensates', done.compensates, 'risk', done.risk, 'code', done.code,
        'is_accepted', coalesce(done.outcome = 'A', false), 'is_undone', done.is_undone));
    continue when done.state <> 'open';
    insert into pgflow.unit (run_id, token, at, recorded_at, due_at, args_hash, seq, call, kind, name, key,
      payload, starts)
    select heir, 0, u.at, u.recorded_at, u.due_at, u.args_hash, seq + row_number() over (order by u.seq), own, u.kind,
      u.name, u.key, u.payload,
      case when u.kind in ('i', 'j')
        then json_build_array(json_build_array(own, 'e', done.name, done.key, done.args_hash)) end
    from pgflow.unit u where u.run_id = origin and u.call = done.call and u.kind in ('i', 'j', 'U', 'A', 'E');
    select max(u.seq) into seq from pgflow.unit u where u.run_id = heir;
    with gone as (
      delete from pgflow.owed o where o.run_id = origin and o.call = done.call and o.kind = 'effect' returning o.*
    )
    insert into pgflow.owed (run_id, call, opened_at, due_at, kind, name, owed_to, detail)
    select heir, own, opened_at, due_at, kind, name, owed_to, detail - 'reason' from gone;
    perform pgflow.move_beats_(origin, done.call, heir, own);
    update pgflow.signal s set run_id = heir, call = own
    where s.chain_id = chain and s.kind = 'e' and s.run_id = origin and s.call = done.call;
    own := own + 1;
    has_open := true;
  end loop;
  -- What the old generation was given itself and has not asked for was done before all of that, and is taken back after
  -- it.
  insert into pgflow.carried (run_id, args_hash, seq, call, is_done, what, name, key, payload, request, note)
  select heir, c.args_hash, row_number() over (order by c.seq, c.call) - 2147483648, 0, true, 'undo', c.name, c.key,
    c.payload, c.request,
    jsonb_build_object('compensates', null, 'risk', c.note->>'risk', 'code', c.note->>'code',
      'is_accepted', (c.note->>'is_accepted')::boolean, 'is_undone', false)
  from pgflow.unasked_(origin) c join pgflow.run r on r.run_id = origin where starts_with(c.key, r.root::text);
  if has_open then -- what could be asked in vain before is asked anew
    seq := seq + 1;
    perform pgflow.append_(heir, seq, 0,
      'o', 'retry', json_build_object('why', 'what was dropped is taken back'), 0, t, t);
  end if;
end
$$;
comment on function pgflow.adopt_effects_(bigint, int, bigint, bigint, timestamptz, int)
  is 'Hands to a generation the effects of the dropped part that it must take back: those that are open with their '
     'units and what is owed; answers its last seq';

create or replace function pgflow.hold_still_(child bigint)
returns bigint
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  me bigint;
begin
  for look in 1..100 loop
    me := pgflow.newest_run_(child);
    if exists (select from pgflow.outcome o where o.run_id = me and o.status <> 'continued') then
      return null;
    end if;
    perform from pgflow.parked p where p.run_id = me for update;
    if found then return me; end if;
    perform from pgflow.ready r where r.run_id = me for update;
    if found then return me; end if;
    perform from pgflow.held h where h.run_id = me for update;
    if found then return me; end if;
    perform from pgflow.lease e where e.run_id = me for update;
    if found then return me; end if;
  end loop;
  raise exception using errcode = 'PF006', message = format('run %s is on its way from one worker to another', child),
    hint = 'Try again.';
end
$$;
comment on function pgflow.hold_still_(bigint)
  is 'Locks an open run where it is, a lease too, so that it ends neither meanwhile nor unheard; null = it has ended';

create or replace function pgflow.child_is_undone_(origin bigint, cut int, call int)
returns boolean
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
  select exists (
    select from pgflow.unit s
    join pgflow.run me on me.run_id = s.run_id
    join pgflow.run g on g.run_id = me.run_id or g.generation > me.generation and g.chain_id = me.chain_id
      and g.generation > 1
    join pgflow.unit k on k.run_id = g.run_id and k.kind = 'K' and (k.run_id = origin and k.call = s.call or exists (
      select from pgflow.run kid
      where kid.run_id = (k.payload->>'run_id')::bigint and kid.chain_id = (s.payload->>'run_id')::bigint
    ))
    cross join lateral pgflow.saga_rows_((k.payload->'saga'->'effects')::jsonb) e
    join pgflow.undone_from_(origin, cut) u on u.key = e.key
    where s.run_id = origin and s.kind = 'k' and s.call = child_is_undone_.call
  )
$$;
comment on function pgflow.child_is_undone_(bigint, int, int)
  is 'True if the dropped part of a journal, or a later generation, has taken back what a child did, or begun to: its '
     'result must not be handed over';

create or replace function pgflow.adopt_children_(origin bigint, cut int, heir pgflow.run, t timestamptz, inout seq int)
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
  kid record;
  child pgflow.run;
  ended pgflow.outcome;
  own int := pgflow.first_adopted_(heir.run_id);
begin
  for kid in
    select k.seq, k.call, k.name, (k.payload->>'run_id')::bigint as chain
    from pgflow.unit k where k.run_id = origin and k.seq > cut and k.kind = 'k' order by (k.payload->>'run_id')::bigint
  loop
    select r.* into child from pgflow.run r where r.run_id = kid.chain;
    continue when child.run_id is null or pgflow.child_is_undone_(origin, cut, kid.call);
    if heir.generation > 1 and pgflow.hold_still_(kid.chain) is not null then
      -- Of a run, this alone ever changes: who hears of its end.
      update pgflow.run r set parent_run_id = heir.run_id, parent_call = own
      where r.run_id = kid.chain or r.chain_id = kid.chain and r.generation > 1;
    else
      select o.* into ended from pgflow.outcome o where o.run_id = pgflow.newest_run_(kid.chain);
      continue when ended.status is distinct from 'completed';
      insert into pgflow.signal (chain_id, run_id, sent_at, call, kind, name, payload)
      values (heir.chain_id, heir.run_id, t, own, 'c', own::text,
        json_build_object('status', ended.status, 'reason', ended.reason, 'output', ended.output, 'error', ended.error,
          'run_id', ended.run_id));
    end if;
    seq := seq + 1;
    perform pgflow.append_(heir.run_id, seq, own, 'k', kid.name,
      json_build_object('run_id', kid.chain, 'key', child.key), 0, t, t);
    insert into pgflow.carried (run_id, args_hash, seq, call, is_done, what, name, key, note)
    values (heir.run_id, 0, seq, own, false, 'child', kid.name, child.key,
      jsonb_build_object('chain', kid.chain, 'at', kid.seq, 'is_named', child.key <> child.root::text));
    own := own + 1;
  end loop;
end
$$;
comment on function pgflow.adopt_children_(bigint, int, pgflow.run, timestamptz, int)
  is 'Hands to a run the children of the dropped part that have completed, with their results, or still go on; answers '
     'its last seq';

create or replace function pgflow.free_key_(tenant text, parent bigint, key text)
returns void
language sql
volatile
set search_path = pg_catalog, pg_temp
as $$
  delete from pgflow.run_key k
  using pgflow.carried c
  where k.tenant = free_key_.tenant and k.key = free_key_.key and c.run_id = free_key_.parent and c.what = 'child'
    and (c.note->>'chain')::bigint = k.chain_id
    and exists (select from pgflow.outcome o where o.run_id = pgflow.newest_run_(k.chain_id)
      and o.status <> 'continued')
$$;
comment on function pgflow.free_key_(text, bigint, text)
  is 'Frees the key of a child that was handed over, has ended, and is asked for with other arguments';

create or replace function pgflow.is_undoing_(run_id bigint, cut int)
returns boolean
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
  select exists (select from pgflow.carried c where c.run_id = is_undoing_.run_id and c.what = 'undo') and not exists (
    select from pgflow.unit u where u.run_id = is_undoing_.run_id and u.seq > is_undoing_.cut and u.kind = 'o'
      and u.name = 'compensated'
  )
$$;
comment on function pgflow.is_undoing_(bigint, int)
  is 'True if a run has yet to take back a dropped part before its code goes on';

create or replace function pgflow.carried_children_(run_id bigint, heritage jsonb)
returns jsonb
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
begin
  return coalesce((
    select jsonb_agg(jsonb_build_array(c.call, c.name, r.input::text, case when (c.note->>'is_named')::boolean
      then c.key end, r.run_id)
      order by case when c.seq > h.origin_seq then 1 else 0 end, (c.note->>'at')::int, c.call)
    from pgflow.run h join pgflow.carried c on c.run_id = h.run_id and c.what = 'child'
    join pgflow.run r on r.run_id = (c.note->>'chain')::bigint
    where h.run_id = carried_children_.run_id
  ), heritage->'children'); -- which an imported run has
end
$$;
comment on function pgflow.carried_children_(bigint, jsonb)
  is 'Children that a run may ask for and be given: [[call, workflow, input as text, key unless it was made up, '
     'chain], ...]; null = none';
