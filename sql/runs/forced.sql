-- Debts of a run that is ended by force, without its code: none of them may be forgotten.
--
-- Effects that are open stay in `owed` as they are. What was done and would have been taken back is owed too,
-- in state `uncompensated`, unless what takes it back has begun, which is then owed itself. The journal says the same:
-- a unit `owed` of the operator opens such a debt, a unit `discharged` closes it, each naming the effect by its key.
-- Both may come after the outcome, since an ended run takes no mail and no worker claims it. Whoever writes into the
-- journal of an ended run holds the lock of its chain.
--
--   reason    forced           the run was ended by force
--             parent_forced    the run has completed, and its parent, which would take its effects back, was ended
--                              by force
--   verdict   taken_back       it was taken back by other means
--             stands           it need not be taken back
--             handed_on        the run goes on as another generation, or the parent has it: that takes it back
--
-- An effect that cannot be taken back (`irreversible`) leaves nothing to do. Effects of children that had completed are
-- the run's own; of generations before it, it owes what it was to take back of them. Calls of what the run did not do
-- itself have numbers beyond those of any code.

create or replace function pgflow.is_forced_(run_id bigint)
returns boolean
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
  select exists (
    select from pgflow.run r join pgflow.unit u on u.run_id = r.run_id
    where r.run_id = is_forced_.run_id and u.kind = 'o' and u.name = 'cancel' and u.seq > coalesce(r.origin_seq, 0)
      and (u.payload->>'force')::boolean
  )
$$;
comment on function pgflow.is_forced_(bigint) is 'True if a run was ended by force, without its code';

create or replace function pgflow.owe_(
  me bigint, call int, name text, key text, reason text, t timestamptz, inout seq int
)
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
begin
  seq := seq + 1;
  perform pgflow.append_(me, seq, call,
    'o', 'owed', json_build_object('effect', key, 'name', name, 'reason', reason), 0, t, t);
  insert into pgflow.owed as o (run_id, call, opened_at, kind, name, detail)
  values (me, call, t, 'effect', name, jsonb_build_object('state', 'uncompensated', 'key', key, 'reason', reason,
    'since', pgflow.micros_(t)))
  on conflict on constraint owed_pkey do update set due_at = null, detail = o.detail || excluded.detail;
  perform pgflow.look_again_(array[me]);
end
$$;
comment on function pgflow.owe_(bigint, int, text, text, text, timestamptz, int)
  is 'Opens a debt: an effect that was done and not taken back';

create or replace function pgflow.left_done_(me bigint)
returns table (call int, name text, key text)
language sql
stable
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
  with mine as (
    select r.* from pgflow.run r where r.run_id = me
  ), journal as materialized (
    select u.seq, u.call, u.kind, u.payload from pgflow.unit u where u.run_id = me and u.kind in ('i', 'F', 'E', 'K')
  ), undo as (
    -- What was begun to take one back is owed itself while it is open, and if it was done nothing is.
    select i.payload->>'compensates' as key from journal i
    where i.kind = 'i' and i.payload->>'compensates' is not null and not exists (
      select from journal f where f.call = i.call
        and (f.kind = 'F' or f.kind = 'E' and f.payload->>'verdict' = 'failed')
    )
  ), done as (
    select e.call, e.name, e.key, e.seq::bigint as at
    from pgflow.effects_after_(me, 0) e
    where e.state = 'confirmed' and not e.is_undo and not e.is_undone and not e.is_foreign
      and e.risk is distinct from 'irreversible'
    union all
    select null, x.name, x.key, k.seq
    from journal k join mine m on k.payload->'saga'->>'of' = m.root::text
    cross join lateral pgflow.saga_rows_((k.payload->'saga'->'effects')::jsonb) x
    where k.kind = 'K' and pgflow.is_to_be_undone_((k.payload->>'run_id')::bigint, x.key)
    union all
    select null, c.name, c.key, -1
    from mine m cross join lateral pgflow.saga_rows_(pgflow.carried_saga_(m.chain_id, m.generation)) c
    where c.is_own
    union all
    select null, c.name, c.key, c.seq
    from pgflow.carried c
    where c.run_id = me and c.what = 'undo' and c.is_done and c.note->>'compensates' is null
      and not coalesce((c.note->>'is_undone')::boolean, false) and c.note->>'risk' is distinct from 'irreversible'
    union all
    select null, c.name, c.key, c.seq
    from pgflow.unasked_(me) c join mine m on starts_with(c.key, m.root::text)
    where c.note->>'risk' is distinct from 'irreversible'
  )
  select min(d.call), min(d.name), d.key from done d
  where d.key not in (select u.key from undo u)
  group by d.key order by min(d.at)
$$;
comment on function pgflow.left_done_(bigint)
  is 'Effects that a run has done, or was given to take back, and has not begun to take back; call = null for those '
     'that it has not done itself';

create or replace function pgflow.is_to_be_undone_(child bigint, key text)
returns boolean
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
  select not exists (
    select from pgflow.unit i where i.run_id = child and i.kind = 'i' and i.key = is_to_be_undone_.key
      and i.payload->>'risk' = 'irreversible'
  )
$$;
comment on function pgflow.is_to_be_undone_(bigint, text)
  is 'True if an effect that a child left to its parent can be taken back';

create or replace function pgflow.owe_left_(me bigint, reason text, t timestamptz, inout seq int)
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
  done record;
  beyond int := pgflow.first_adopted_(me);
begin
  for done in
    select d.* from pgflow.left_done_(me) d
    where not exists (select from pgflow.owed o where o.run_id = me and o.kind = 'effect' and o.detail->>'key' = d.key)
      and not exists (select from pgflow.unit u where u.run_id = me and u.kind = 'o' and u.name = 'discharged'
        and u.payload->>'effect' = d.key)
  loop
    select o.seq into seq from pgflow.owe_(me, coalesce(done.call, beyond), done.name, done.key, reason, t, seq) o;
    if done.call is null then
      beyond := beyond + 1;
    end if;
  end loop;
end
$$;
comment on function pgflow.owe_left_(bigint, text, timestamptz, int)
  is 'Opens a debt for each effect that a run leaves behind without a compensation';

create or replace function pgflow.owe_by_force_(me bigint, chain bigint, t timestamptz, inout seq int)
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
begin
  update pgflow.owed o set detail = o.detail || '{"reason": "forced"}' where o.run_id = me and o.kind = 'effect';
  update pgflow.owed o
  set detail = o.detail || jsonb_build_object('reason', 'cancelled',
    'since', coalesce(o.detail->'since', to_jsonb(pgflow.micros_(t))))
  where o.run_id = me and o.kind = 'obligation' and not o.detail ? 'outlives';
  select w.seq into seq from pgflow.take_words_(me, chain, 0, t, true, seq) w;
  select o.seq into seq from pgflow.owe_left_(me, 'forced', t, seq) o;
end
$$;
comment on function pgflow.owe_by_force_(bigint, bigint, timestamptz, int)
  is 'Before a run is ended by force: applies the verdicts on its effects, and opens a debt for each that stays done';

create or replace function pgflow.owe_for_parent_(children bigint[], t timestamptz)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
declare
  child bigint;
begin
  for child in
    select i.id
    from unnest(children) as i (id)
    cross join lateral (select r.parent_run_id, r.close_policy from pgflow.run r where r.run_id = i.id offset 0) r
    cross join lateral (select o.status from pgflow.outcome o where o.run_id = i.id offset 0) o
    cross join lateral (select p.status from pgflow.outcome p where p.run_id = r.parent_run_id offset 0) p
    -- Only of a parent that was cancelled it is looked for how: the journal of any other need not be read.
    where r.close_policy = 'c' and o.status = 'completed' and case when p.status = 'cancelled'
      then pgflow.is_forced_(r.parent_run_id) end
    order by i.id
  loop
    perform pgflow.owe_left_(child, 'parent_forced', t,
      coalesce((select max(u.seq) from pgflow.unit u where u.run_id = child), 0));
  end loop;
end
$$;
comment on function pgflow.owe_for_parent_(bigint[], timestamptz)
  is 'Opens debts for what completed children did, if their parent was ended by force before it had their results';

create or replace function pgflow.discharge_(me bigint, call int, verdict text, why text, said_by text, t timestamptz)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
  debt pgflow.owed;
begin
  delete from pgflow.owed o where o.run_id = me and o.call = call and o.kind = 'effect' returning o.* into strict debt;
  perform pgflow.append_(me, (select max(u.seq) + 1 from pgflow.unit u where u.run_id = me), call, 'o', 'discharged',
    json_build_object('effect', debt.detail->>'key', 'verdict', verdict, 'why', pgflow.told_(why, 4096), 'by', said_by), 0, t,
    t);
end
$$;
comment on function pgflow.discharge_(bigint, int, text, text, text, timestamptz)
  is 'Closes a debt: says how, who and why';

create or replace function pgflow.hand_on_debts_(me bigint, cut int, said text, why text, t timestamptz)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
declare
  debt int;
begin
  for debt in
    select o.call from pgflow.owed o
    where o.run_id = me and o.kind = 'effect' and o.detail->>'state' = 'uncompensated' and (
      cut is null
      -- Done in the part that is kept, by the run itself or a child; or handed on by an earlier generation.
      or exists (select from pgflow.unit i where i.run_id = me and i.kind = 'i' and i.key = o.detail->>'key'
        and (i.seq <= cut or said in ('reuse', 'compensate')))
      or exists (
        select from pgflow.unit k cross join lateral pgflow.saga_rows_((k.payload->'saga'->'effects')::jsonb) x
        where k.run_id = me and k.kind = 'K' and (k.seq <= cut or said = 'reuse') and x.key = o.detail->>'key'
      )
      or exists (
        select from pgflow.run r join pgflow.saga_effect s on s.chain_id = r.chain_id and s.generation < r.generation
        where r.run_id = me and s.key = o.detail->>'key'
      )
      or said in ('reuse', 'compensate') and exists (select from pgflow.unasked_(me) c where c.key = o.detail->>'key')
    )
    order by o.call
  loop
    perform pgflow.discharge_(me, debt, 'handed_on', why, 'pgflow', t);
  end loop;
end
$$;
comment on function pgflow.hand_on_debts_(bigint, int, text, text, timestamptz)
  is 'Closes the debts of a run for what another takes back from now on: the generation that begins with its journal '
     'up to a cut, or, without a cut, its parent';

create or replace function pgflow.force_cancel_run(
  key text, why text default 'cancelled', tenant text default '', sent_by text default null
)
returns bigint
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  chain bigint := pgflow.chain_of_(tenant, key);
begin
  perform pgflow.post_(chain, 'x', 'force', json_build_object('why', pgflow.told_(why, 4096)), pgflow.sender_(sent_by));
  return chain;
end
$$;
comment on function pgflow.force_cancel_run(text, text, text, text)
  is 'Ends a run without running any more of its code; what it has done and not taken back is owed '
     '(pgflow.obligations). For operators';
--! grant force_cancel_run to pgflow_operator

create or replace function pgflow.check_may_force_(key text)
returns void
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
declare
  caller name := pgflow.caller_();
begin
  if not has_function_privilege(caller, 'pgflow.force_cancel_run(text, text, text, text)', 'execute') then
    raise exception using errcode = 'PF021',
      message = format('role %s may cancel run %s, and not by force', quote_ident(caller), quote_literal(key)),
      hint = 'Force ends a run without its code, so nothing is taken back: it is for pgflow_operator.';
  end if;
end
$$;
comment on function pgflow.check_may_force_(text) is 'Refuses (PF021) a caller without the right to force_cancel_run';
