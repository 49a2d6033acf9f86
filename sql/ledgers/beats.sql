-- Beats of accepted effects. A counterparty that accepts an effect may promise regular signs of life
-- (heartbeat_timeout of Accepted). Each beat updates `effect_beat`, without waking a run or adding to a journal. The
-- commits that open, close or hand on the debt keep these rows equal to `owed`.
--
-- If no beat arrives in time, by this clock, the effect is silent: its outcome is unknown. That is final, so a later
-- beat is refused even if the silence is not recorded yet. The steps:
--
--   beat          locks `owed`, then `effect_beat`, reads the clock, and moves beat_at;
--   poll          finds due rows by its index. After a beat it looks again later; without
--                 one, it posts mail of kind e, verdict `silent`, once, and stops looking;
--   the run       takes that like the verdicts of people: a unit `effect_unknown`, reason
--                 `silent`, and state unknown in `owed`. The engine resumes the call beside its acceptance, which
--                 the code has had. The act is not repeated: the counterparty is asked, else a person is needed.
--
-- A confirmation meanwhile closes the effect, and the mail of the silence then finds no debt. The counterparty may
-- answer that it still has the effect: a unit `effect_unknown`, reason `accepted`, and beats count again.
--
-- A run that was ended by force takes no mail, so the poll records the silence itself, under the lock of the chain. A
-- poll locks `effect_beat` before `owed`, so it waits for neither of them, nor for the chain.

create or replace function pgflow.book_beats_(units jsonb, t timestamptz)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
begin
  insert into pgflow.effect_beat (run_id, call, look_at, beat_at, timeout_seconds, can_ask)
  select g.run_id, g.call, t + g.seconds * interval '1 second', t, g.seconds, g.can_ask
  from (
    select u.run_id, u.call, (u.payload->>'heartbeat_timeout')::float8 as seconds,
      coalesce((u.payload->>'can_ask')::boolean, false) as can_ask
    from pgflow.unit_rows_(units) u where u.kind = 'A'
  ) g
  where g.seconds is not null and exists (select from pgflow.owed o where o.run_id = g.run_id and o.call = g.call
    and o.kind = 'effect');
  update pgflow.effect_beat b
  set look_at = t + coalesce(g.seconds, b.timeout_seconds) * interval '1 second', beat_at = t,
    timeout_seconds = coalesce(g.seconds, b.timeout_seconds)
  from (
    select u.run_id, u.call, (u.payload->>'heartbeat_timeout')::float8 as seconds
    from pgflow.unit_rows_(units) u where u.kind = 'U' and u.payload->>'reason' = 'accepted'
  ) g
  where b.run_id = g.run_id and b.call = g.call;
  delete from pgflow.effect_beat b using pgflow.unit_rows_(units) u
  where u.kind = 'E' and b.run_id = u.run_id and b.call = u.call
    and not exists (select from pgflow.owed o where o.run_id = b.run_id and o.call = b.call and o.kind = 'effect');
end
$$;
comment on function pgflow.book_beats_(jsonb, timestamptz)
  is 'Starts watching the beats of effects that a commit accepts, or accepts again, and stops for those that it '
     'closes';

create or replace function pgflow.note_silence_(
  me bigint, call int, name text, token bigint, t timestamptz, is_over boolean, inout seq int, out units jsonb
)
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
  beat pgflow.effect_beat;
  due timestamptz;
  said json;
begin
  units := '[]';
  select b.* into beat from pgflow.effect_beat b where b.run_id = me and b.call = call;
  if beat.beat_at + beat.timeout_seconds * interval '1 second' <= t is not true then
    update pgflow.effect_beat b set look_at = t where b.run_id = me and b.call = call and b.look_at is null;
    return;
  end if;
  said := json_build_object('reason', 'silent', 'heartbeat_timeout', beat.timeout_seconds,
    'beat_at', pgflow.micros_(beat.beat_at), 'details', beat.details);
  seq := seq + 1;
  perform pgflow.append_(me, seq, call, 'U', name, said, token, t, t);
  units := jsonb_build_array(pgflow.unit_json_(seq, call, 'U', name, said));
  -- Where it can be asked for, the run does so next; else a person is needed from now on.
  due := case when beat.can_ask and not is_over then t end;
  update pgflow.effect_beat b set look_at = null where b.run_id = me and b.call = call;
  update pgflow.owed o
  set due_at = due,
    detail = o.detail || jsonb_strip_nulls(jsonb_build_object('state', 'unknown', 'since',
      case when due is null then pgflow.micros_(t) end))
  where o.run_id = me and o.call = call and o.kind = 'effect';
end
$$;
comment on function pgflow.note_silence_(bigint, int, text, bigint, timestamptz, boolean, int)
  is 'Records the outcome of an accepted effect as unknown, because its beats have stopped';

create or replace function pgflow.move_beats_(origin bigint, old_call int, heir bigint, new_call int)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
begin
  update pgflow.effect_beat b set run_id = heir, call = new_call where b.run_id = origin and b.call = old_call;
  -- What the heir's journal does not know to be silent is found to be so again.
  with again as (
    update pgflow.owed o set due_at = null, detail = o.detail || '{"state": "accepted"}'
    where o.run_id = heir and o.call = new_call and o.kind = 'effect' and o.detail ? 'ref'
      and o.detail->>'state' = 'unknown'
      and (
        select case u.kind when 'A' then 'accepted' else u.payload->>'reason' end from pgflow.unit u
        where u.run_id = heir and u.call = new_call and u.kind in ('A', 'U') order by u.seq desc limit 1
      ) = 'accepted'
    returning o.run_id, o.call
  )
  update pgflow.effect_beat b set look_at = b.beat_at + b.timeout_seconds * interval '1 second'
  from again g where b.run_id = g.run_id and b.call = g.call;
end
$$;
comment on function pgflow.move_beats_(bigint, int, bigint, int)
  is 'Moves the beats of an accepted effect to the generation that owes it now, whose journal and debt exist already';

create or replace function pgflow.notice_silence_(max int, t timestamptz)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set plan_cache_mode = force_generic_plan -- else all is planned anew for each call
as $$
declare
  late record;
  debt pgflow.owed;
  chain bigint;
begin
  for late in
    select b.run_id, b.call, b.beat_at + b.timeout_seconds * interval '1 second' as silent_at
    from pgflow.effect_beat b where b.look_at <= t order by b.look_at limit max for update skip locked
  loop
    if late.silent_at > t then
      update pgflow.effect_beat b set look_at = late.silent_at where b.run_id = late.run_id and b.call = late.call;
      continue;
    end if;
    -- A forced end takes the run's mail once it has this row, so mail posted under the lock is taken then.
    select o.* into debt from pgflow.owed o
    where o.run_id = late.run_id and o.call = late.call and o.kind = 'effect' for update skip locked;
    continue when not found;
    select r.chain_id into strict chain from pgflow.run r where r.run_id = late.run_id;
    if not exists (select from pgflow.outcome o where o.run_id = late.run_id) then
      insert into pgflow.signal (chain_id, run_id, call, kind, name, sent_at, sent_by, payload)
      values (chain, late.run_id, late.call, 'e', debt.name, t, 'pgflow', '{"verdict": "silent"}');
      insert into pgflow.nudge (chain_id) values (chain);
      update pgflow.effect_beat b set look_at = null where b.run_id = late.run_id and b.call = late.call;
    elsif pg_try_advisory_xact_lock_shared(pgflow.latch_('retention'))
      and pg_try_advisory_xact_lock(pgflow.latch_('chain ' || chain)) then
      perform pgflow.settle_by_word_(late.run_id, late.call, '{"verdict": "silent"}', 'pgflow', 0, pgflow.now_(), true,
        (select max(u.seq) from pgflow.unit u where u.run_id = late.run_id));
    end if;
  end loop;
end
$$;
comment on function pgflow.notice_silence_(int, timestamptz)
  is 'Notifies runs of accepted effects whose beats have stopped; for finished runs, records it';

create or replace function pgflow.beat_effect(ref text, details json default null)
returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
  debt pgflow.owed;
  beat pgflow.effect_beat;
  t timestamptz;
begin
  perform pgflow.check_json_(details, 'the details of a beat');
  if octet_length(details::text) > 65536 then
    raise exception using errcode = 'PF003', message = 'the details of a beat may be 64 KiB at most';
  end if;
  if ref is not null then
    debt := pgflow.find_debt_(null, ref);
  end if;
  if debt.run_id is null then
    raise exception using errcode = 'PF001',
      message = format('no open effect was accepted under the reference %s', quote_nullable(ref)),
      hint = 'It is closed, or its acceptance is not recorded yet.';
  end if;
  select b.* into beat from pgflow.effect_beat b where b.run_id = debt.run_id and b.call = debt.call for update;
  if not found then
    raise exception using errcode = 'PF006',
      message = format('effect %s was accepted without heartbeat_timeout, so it takes no beats',
        debt.detail->>'key');
  end if;
  t := pgflow.now_();
  if debt.detail->>'state' <> 'accepted' or beat.beat_at + beat.timeout_seconds * interval '1 second' <= t then
    raise exception using errcode = 'PF006',
      message = format('effect %s has been silent for more than %s s: its outcome is unknown', debt.detail->>'key',
        beat.timeout_seconds),
      hint = 'Its confirmation still counts: pgflow.confirm_effect.';
  end if;
  update pgflow.effect_beat b set beat_at = t, details = coalesce(details, b.details)
  where b.run_id = debt.run_id and b.call = debt.call;
end
$$;
comment on function pgflow.beat_effect(text, json)
  is 'Records a heartbeat of the effect that was accepted under a reference, with details of its progress. PF001 if '
     'no such effect is open, PF006 if its beats stopped too long ago or were never promised';
--! grant beat_effect to pgflow_client, pgflow_worker, pgflow_operator

create or replace function pgflow.check_beats_()
returns table (invariant text, detail text)
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  return query
  select 'beats are of accepted effects', format('call %s of run %s', b.call, b.run_id)
  from pgflow.effect_beat b
  where not exists (select from pgflow.owed o where o.run_id = b.run_id and o.call = b.call and o.kind = 'effect'
    and o.detail ? 'ref')
  union all
  select 'an accepted effect that promised beats is watched', format('call %s of run %s', o.call, o.run_id)
  from pgflow.owed o
  join pgflow.unit a on a.run_id = o.run_id and a.call = o.call and a.kind = 'A'
    and a.payload->>'heartbeat_timeout' is not null
  left join pgflow.effect_beat b on b.run_id = o.run_id and b.call = o.call
  where o.kind = 'effect' and o.detail->>'state' in ('accepted', 'unknown') and (
    b.run_id is null
    or (b.look_at is null) <> (o.detail->>'state' = 'unknown' or exists (
      select from pgflow.run r join pgflow.signal s on s.chain_id = r.chain_id
      where r.run_id = o.run_id and s.kind = 'e' and s.run_id = o.run_id and s.call = o.call
        and s.payload->>'verdict' = 'silent'
    ))
  );
end
$$;
comment on function pgflow.check_beats_() is 'Accepted effects that promised beats are watched';
