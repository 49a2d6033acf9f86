-- Obligations: debts of a run, their due times, and how they were closed.
--
-- The run's code opens an obligation (a unit `obligation_opened`), which is in `owed` from the same commit on:
--
--   open          it is owed
--   breached      it was due, by this clock, and is owed all the same: a unit `obligation_breached`
--   closed        a unit `obligation_closed`, with the verdict:
--     discharged    it was done, with the evidence
--     waived        it need not be done, with author and reason
--     handed_on     a later generation of the run has it, under the same key
--   transferred   a unit `obligation_closed` as well, but it stays owed: a party outside holds it now
--
-- Its key is made like idempotency keys, and closes it from anywhere. A run that owes does not complete: it waits,
-- reason `obligation NAME`. Two kinds let it complete and stay open without a run: those declared to outlive it, and
-- those transferred. A run that fails or is cancelled ends; its debts stay owed, with that as their reason, and a
-- person is needed.
--
-- Units come from two sides. Those of the code are notes: a replay makes them again. Those of others are marks beside
-- the code; their payload begins with the member `word`. A word to an open run is mail of kind e, which it takes like
-- verdicts on its effects: between look and commit it holds the lease, so the books and the journal change as one.
-- The mail names the obligation and is in the mailbox of the chain, so any generation that owes it takes it, and the
-- sender locks nothing. A word to a finished run is written into its journal at once, under the lock of its chain.
--
-- A poll finds breaches (`notice_breaches_`). It changes the state and performs `on_breach`, once, in the same
-- transaction: it sends the run a signal, starts a workflow under the key of the obligation plus `/breach`, or pages
-- a person. If that fails, it pages a person too.
--
-- Members of `owed.detail`: state, key, outlives, holder, on_breach, detail (what the code says of it), reason (of the
-- end of its run), since (time from which a person is needed), trouble (why what was agreed on could not be done).

create or replace function pgflow.book_obligations_(units jsonb, t timestamptz)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
declare
  said record;
begin
  for said in
    select u.run_id, u.call, u.kind, u.name, u.payload::jsonb as p, u.delay
    from pgflow.unit_rows_(units) u where u.kind in ('O', 'D') order by u.run_id, u.seq
  loop
    if said.kind = 'D' then
      perform pgflow.close_debt_(said.run_id, said.p);
      continue;
    end if;
    -- One of a dropped part of the journal is taken over as it is.
    update pgflow.owed o set call = said.call
    where said.p ? 'again' and o.run_id = said.run_id and o.kind = 'obligation' and o.detail->>'key' = said.p->>'key';
    continue when found;
    insert into pgflow.owed (run_id, call, opened_at, due_at, kind, name, owed_to, detail)
    values (said.run_id, said.call, t,
      coalesce(t + said.delay,
        timestamptz 'epoch' + (said.p->>'due_us')::bigint * interval '1 microsecond'),
      'obligation', said.name, said.p->>'to',
      jsonb_build_object('state', 'open', 'key', said.p->>'key') || (
        select coalesce(jsonb_object_agg(m.key, m.value), '{}') from jsonb_each(said.p) m
        where m.key in ('outlives', 'on_breach', 'detail')
      ));
  end loop;
end
$$;
comment on function pgflow.book_obligations_(jsonb, timestamptz)
  is 'Keeps what is owed equal to the obligations that the code opens and closes by the units of a commit';

create or replace function pgflow.close_debt_(me bigint, said jsonb)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
begin
  if said->>'verdict' = 'transferred' then
    update pgflow.owed o
    set detail = o.detail - 'reason' - case when o.detail->>'state' = 'breached' then '' else 'since' end
      || jsonb_build_object('outlives', true, 'holder', said->>'to')
    where o.run_id = me and o.kind = 'obligation' and o.detail->>'key' = said->>'key';
  else
    delete from pgflow.owed o where o.run_id = me and o.kind = 'obligation' and o.detail->>'key' = said->>'key';
  end if;
end
$$;
comment on function pgflow.close_debt_(bigint, jsonb)
  is 'Removes an obligation from what a run owes, or notes who holds it now; no effect if it is closed';

create or replace function pgflow.leave_obligations_(run_ids bigint[], t timestamptz)
returns void
language sql
volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
  update pgflow.owed o
  set detail = o.detail || jsonb_build_object('reason', e.status,
    'since', coalesce(o.detail->'since', to_jsonb(pgflow.micros_(t))))
  from pgflow.outcome e
  where o.run_id = any(run_ids) and e.run_id = o.run_id and e.status in ('failed', 'cancelled')
    and o.kind = 'obligation' and not o.detail ? 'outlives'
$$;
comment on function pgflow.leave_obligations_(bigint[], timestamptz)
  is 'Leaves to people what runs owe that have failed or were cancelled';

create or replace function pgflow.note_breach_(
  me bigint, call int, name text, obligation text, due_us bigint, token bigint, t timestamptz, inout seq int,
  out units jsonb
)
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  said json := json_build_object('word', true, 'key', obligation, 'due_us', due_us);
begin
  seq := seq + 1;
  perform pgflow.append_(me, seq, call, 'B', name, said, token, t, t);
  units := jsonb_build_array(pgflow.unit_json_(seq, call, 'B', name, said));
end
$$;
comment on function pgflow.note_breach_(bigint, int, text, text, bigint, bigint, timestamptz, int)
  is 'Records that an obligation was due and not discharged';

create or replace function pgflow.close_by_word_(
  me bigint, payload json, sent_by text, token bigint, t timestamptz, inout seq int, out units jsonb
)
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
#variable_conflict use_variable
declare
  debt pgflow.owed;
  said json;
begin
  units := '[]';
  select o.* into debt from pgflow.owed o
  where o.run_id = me and o.kind = 'obligation' and o.detail->>'key' = payload->>'obligation';
  if not found then
    return;
  end if;
  if payload->>'verdict' = 'breached' then
    select b.seq, b.units into seq, units
    from pgflow.note_breach_(me, debt.call, debt.name, payload->>'obligation', (payload->>'due_us')::bigint, token, t,
      seq) b;
    return;
  end if;
  said := json_build_object('word', true, 'key', payload->>'obligation', 'verdict', payload->>'verdict', 'by', sent_by,
    'why', payload->>'why', 'to', payload->>'to', 'evidence', payload->'evidence');
  seq := seq + 1;
  perform pgflow.append_(me, seq, debt.call, 'D', debt.name, said, token, t, t);
  units := jsonb_build_array(pgflow.unit_json_(seq, debt.call, 'D', debt.name, said));
  perform pgflow.close_debt_(me, jsonb_build_object('key', payload->>'obligation', 'verdict', payload->>'verdict',
    'to', payload->>'to'));
end
$$;
comment on function pgflow.close_by_word_(bigint, json, text, bigint, timestamptz, int)
  is 'Records a person''s word on an obligation, or its breach, if it is still open';

create or replace function pgflow.hear_late_(chains bigint[], t timestamptz)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
declare
  word record;
  debtor bigint;
begin
  for word in
    select s.ctid as address, s.chain_id, s.payload, s.sent_by from pgflow.signal s
    where s.chain_id = any(chains) and s.kind = 'e' and s.payload->>'obligation' is not null
    order by s.signal_id for update skip locked
  loop
    if not (
      pg_try_advisory_xact_lock_shared(pgflow.latch_('retention'))
      and pg_try_advisory_xact_lock(pgflow.latch_('chain ' || word.chain_id))
    ) then
      -- The generation of its sender may be gone; the mail went to the holder of the run.
      insert into pgflow.nudge (chain_id) select word.chain_id
      where not exists (select from pgflow.nudge n where n.chain_id = word.chain_id);
      continue;
    end if;
    select o.run_id into debtor from pgflow.owed o
    where o.kind = 'obligation' and o.detail->>'key' = word.payload->>'obligation';
    if found then
      perform pgflow.close_by_word_(debtor, word.payload, word.sent_by, 0, t,
        (select max(u.seq) from pgflow.unit u where u.run_id = debtor));
    end if;
    delete from pgflow.signal s where s.ctid = word.address;
  end loop;
end
$$;
comment on function pgflow.hear_late_(bigint[], timestamptz)
  is 'Takes the words on obligations that were sent to runs that have ended meanwhile; runs with another writer are '
     'left to the next wake';

create or replace function pgflow.say_of_obligation_(obligation_key text, said json, sent_by text)
returns bigint
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  debt pgflow.owed;
  chain bigint;
  has_ended boolean;
  who text := pgflow.sender_(sent_by);
  t timestamptz;
begin
  select o.* into debt from pgflow.owed o where o.kind = 'obligation' and o.detail->>'key' = obligation_key;
  if debt.run_id is null then
    return null;
  end if;
  select r.chain_id into strict chain from pgflow.run r where r.run_id = debt.run_id;
  has_ended := exists (select from pgflow.outcome e where e.run_id = debt.run_id);
  if has_ended then
    -- Writers of such a journal take turns. A rewind, or another word, may have come first.
    perform pgflow.lock_chain_(chain);
    select o.* into debt from pgflow.owed o where o.kind = 'obligation' and o.detail->>'key' = obligation_key;
    if debt.run_id is null then
      return null;
    end if;
    has_ended := exists (select from pgflow.outcome e where e.run_id = debt.run_id);
  end if;
  t := pgflow.now_();
  if has_ended then
    begin
      perform pgflow.close_by_word_(debt.run_id, said, who, 0, t,
        (select max(u.seq) from pgflow.unit u where u.run_id = debt.run_id));
    exception when unique_violation then
      raise serialization_failure using message = format('run %s was written into meanwhile: try again', debt.run_id);
    end;
  else
    insert into pgflow.signal (chain_id, run_id, call, kind, name, sent_at, sent_by, payload)
    values (chain, debt.run_id, debt.call, 'e', debt.name, t, who, said);
    insert into pgflow.nudge (chain_id) values (chain);
  end if;
  return chain;
end
$$;
comment on function pgflow.say_of_obligation_(text, json, text)
  is 'Posts a word on an obligation to its run, or records it if the run has ended; returns the chain, null if no '
     'open obligation has the key';

create or replace function pgflow.refuse_unowed_(obligation_key text)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
begin
  raise exception using errcode = 'PF001',
    message = format('no open obligation has the key %s', quote_nullable(obligation_key)),
    hint = 'It is closed, or never existed; pgflow.obligations lists what is open.';
end
$$;
comment on function pgflow.refuse_unowed_(text) is 'Says (PF001) that no open obligation has a key';

create or replace function pgflow.check_may_settle_(effect_key text)
returns void
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
declare
  caller name := pgflow.caller_();
begin
  if not has_function_privilege(caller, 'pgflow.settle_effect(text, text, json, text, text)', 'execute') then
    raise exception using errcode = 'PF021',
      message = format('role %s may discharge obligations, and not effect %s', quote_ident(caller), effect_key),
      hint = 'Who says what became of an effect needs the rights of pgflow_worker or pgflow_operator.';
  end if;
end
$$;
comment on function pgflow.check_may_settle_(text) is 'Refuses (PF021) a caller without the right to settle_effect';

create or replace function pgflow.discharge(
  obligation_key text, evidence json default null, sent_by text default null
)
returns bigint
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  chain bigint;
  debt pgflow.owed;
begin
  perform pgflow.check_json_(evidence, 'the evidence of a discharge');
  chain := pgflow.say_of_obligation_(obligation_key,
    json_build_object('obligation', obligation_key, 'verdict', 'discharged', 'evidence', evidence), sent_by);
  if chain is not null then
    return chain;
  end if;
  debt := pgflow.find_debt_(obligation_key, null);
  if debt.run_id is not null then
    perform pgflow.check_may_settle_(obligation_key);
  end if;
  if debt.detail->>'state' = 'uncompensated' then
    return pgflow.post_settlement_(debt, 'taken_back', 'null', evidence::text, pgflow.sender_(sent_by));
  elsif debt.run_id is not null then
    raise exception using errcode = 'PF006',
      message = format('effect %s is %s: it is settled, not discharged', obligation_key, debt.detail->>'state'),
      hint = 'Say what became of it: pgflow.settle_effect.';
  end if;
  perform pgflow.refuse_unowed_(obligation_key);
end
$$;
comment on function pgflow.discharge(text, json, text)
  is 'Closes an obligation: it was done, as the evidence shows. Also closes the debt of an effect that is '
     'uncompensated: it was taken back. PF001 if nothing that is owed has the key';
--! grant discharge to pgflow_client, pgflow_worker, pgflow_operator

create or replace function pgflow.transfer_obligation(
  obligation_key text, holder text, why text default null, sent_by text default null
)
returns bigint
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  chain bigint;
begin
  perform pgflow.check_name_(holder, 'who holds an obligation');
  chain := pgflow.say_of_obligation_(obligation_key, json_build_object('obligation', obligation_key,
    'verdict', 'transferred', 'to', holder, 'why', pgflow.told_(why, 4096)), sent_by);
  if chain is null then
    perform pgflow.refuse_unowed_(obligation_key);
  end if;
  return chain;
end
$$;
comment on function pgflow.transfer_obligation(text, text, text, text)
  is 'Transfers an obligation to a person or party outside: it stays owed, but its run no longer waits for it. PF001 '
     'if no open obligation has the key';
--! grant transfer_obligation to pgflow_client, pgflow_worker, pgflow_operator

create or replace function pgflow.waive_obligation(obligation_key text, why text, sent_by text default null)
returns bigint
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  chain bigint;
begin
  if coalesce(why, '') = '' then
    raise exception using errcode = 'PF003', message = 'an obligation is waived for a reason: say why';
  end if;
  chain := pgflow.say_of_obligation_(obligation_key, json_build_object('obligation', obligation_key,
    'verdict', 'waived', 'why', pgflow.told_(why, 4096)), sent_by);
  if chain is null then
    perform pgflow.refuse_unowed_(obligation_key);
  end if;
  return chain;
end
$$;
comment on function pgflow.waive_obligation(text, text, text)
  is 'Closes an obligation that need not be done, with who says so and why. PF001 if no open obligation has the key';
--! grant waive_obligation to pgflow_client, pgflow_worker, pgflow_operator

create or replace function pgflow.act_on_breach_(debt pgflow.owed, is_over boolean, t timestamptz)
returns jsonb
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  agreed jsonb := debt.detail->'on_breach';
  -- The exact text of what is sent and started, which jsonb would change; of its first unit, as the rest of the debt.
  written json;
  me pgflow.run;
  started record;
begin
  if agreed is null then
    return '{}';
  elsif agreed ? 'page' or agreed ? 'signal' and is_over then
    return jsonb_build_object('since', pgflow.micros_(t));
  end if;
  select r.* into strict me from pgflow.run r where r.run_id = debt.run_id;
  select u.payload->'on_breach' into written from pgflow.unit u
  where u.run_id = debt.run_id and u.kind = 'O' and u.payload->>'key' = debt.detail->>'key' order by u.seq limit 1;
  if agreed ? 'signal' then
    perform pgflow.post_(me.chain_id, 's', agreed->>'signal', written->'payload', 'pgflow');
    return '{}';
  end if;
  begin
    select s.run_key, s.lane_id into started from pgflow.start_run(
      agreed->>'workflow',
      pgflow.fill_input_(written->'input', (pgflow.known_code_(agreed->>'workflow', '')).defaults),
      debt.detail->>'key' || '/breach', coalesce(agreed->>'queue', 'default'),
      coalesce((agreed->>'priority')::int, 0), tenant => me.tenant, version => coalesce(agreed->>'version', ''),
      if_taken => 'attach', defaults => '{}', budget => agreed->'budget',
      pool => coalesce(agreed->>'pool', (select p.name from pgflow.pool p where p.name = me.pool))) s;
    return jsonb_build_object('started', started.run_key, 'lane', started.lane_id);
  exception when others then
    -- What is refused now would be refused with every poll.
    if left(sqlstate, 2) in ('40', '53', '55', '57', '08') then
      raise;
    end if;
    return jsonb_build_object('since', pgflow.micros_(t), 'trouble', sqlstate);
  end;
end
$$;
comment on function pgflow.act_on_breach_(pgflow.owed, boolean, timestamptz)
  is 'Does what was agreed on for the breach of an obligation; answers what is to be noted with it';

create or replace function pgflow.notice_breaches_(max int, t timestamptz)
returns int[]
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set plan_cache_mode = force_generic_plan -- else all is planned anew for each call
as $$
declare
  late pgflow.owed;
  chain bigint;
  is_over boolean;
  noted jsonb;
  lanes int[] := '{}';
begin
  if not exists (
    select from pgflow.owed o where o.kind = 'obligation' and o.detail->>'state' = 'open' and o.due_at <= t
  ) then
    return lanes;
  end if;
  -- New lanes first: a session that waits for one may hold a row of `owed`.
  perform pgflow.intern_lane_(n.queue, n.workflow, n.version) from (
    select distinct coalesce(b->>'queue', 'default') as queue, b->>'workflow' as workflow,
      coalesce(b->>'version', '') as version
    from (
      select o.detail->'on_breach' as b from pgflow.owed o
      where o.kind = 'obligation' and o.detail->>'state' = 'open' and o.due_at <= t order by o.due_at limit max
    ) d
    where b ? 'workflow' order by 1, 2, 3
  ) n;
  for late in
    select o.* from pgflow.owed o where o.kind = 'obligation' and o.detail->>'state' = 'open' and o.due_at <= t
    order by o.due_at limit max for update skip locked
  loop
    select r.chain_id into strict chain from pgflow.run r where r.run_id = late.run_id;
    is_over := exists (select from pgflow.outcome e where e.run_id = late.run_id);
    -- A finished run takes no mail: write it into its journal, or leave it to the next poll.
    continue when is_over and not (
      pg_try_advisory_xact_lock_shared(pgflow.latch_('retention'))
      and pg_try_advisory_xact_lock(pgflow.latch_('chain ' || chain))
    );
    noted := pgflow.act_on_breach_(late, is_over, t);
    lanes := lanes || array_remove(array[(noted->>'lane')::int], null);
    update pgflow.owed o set detail = o.detail || (noted - 'lane') || jsonb_build_object('state', 'breached')
      || case when o.detail ? 'since' then jsonb_build_object('since', o.detail->'since') else '{}' end
    where o.run_id = late.run_id and o.call = late.call and o.kind = 'obligation';
    if is_over then
      perform pgflow.note_breach_(late.run_id, late.call, late.name, late.detail->>'key', pgflow.micros_(late.due_at),
        0, t, (select max(u.seq) from pgflow.unit u where u.run_id = late.run_id));
    else
      insert into pgflow.signal (chain_id, run_id, call, kind, name, sent_at, sent_by, payload)
      values (chain, late.run_id, late.call, 'e', late.name, t, 'pgflow',
        json_build_object('obligation', late.detail->>'key', 'verdict', 'breached',
          'due_us', pgflow.micros_(late.due_at)));
      insert into pgflow.nudge (chain_id) values (chain);
    end if;
  end loop;
  return lanes;
end
$$;
comment on function pgflow.notice_breaches_(int, timestamptz)
  is 'Finds obligations that are due, notes that they are breached and does, once, what was agreed on; answers the '
     'lanes of workflows that it has started';

create or replace function pgflow.adopt_obligations_(
  origin bigint, cut int, heir bigint, token bigint, is_rewind boolean, t timestamptz, inout seq int
)
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
#variable_conflict use_variable
declare
  said record;
  debt record;
  own int := pgflow.first_adopted_(heir);
begin
  -- What was closed in the dropped part stays so, though it was opened in the part that is kept.
  for said in
    select d.name, d.at, d.payload as p, o.call
    from pgflow.unit d
    cross join lateral (
      select u.call from pgflow.unit u
      where u.run_id = origin and u.seq <= cut and u.kind = 'O' and u.payload->>'key' = d.payload->>'key'
      order by u.seq limit 1
    ) o
    where d.run_id = origin and d.seq > cut and d.kind = 'D' and d.payload->>'verdict' <> 'handed_on'
    order by d.seq
  loop
    seq := seq + 1;
    perform pgflow.append_(heir, seq, said.call, 'D', said.name, json_build_object('word', true,
      'key', said.p->>'key', 'verdict', said.p->>'verdict', 'by', said.p->>'by', 'why', said.p->>'why',
      'to', said.p->>'to', 'evidence', said.p->'evidence'), 0, said.at, t);
  end loop;
  for debt in
    select o.call, o.name, o.owed_to, o.detail, o.detail->>'key' as key, u.payload as p
    from pgflow.owed o
    cross join lateral (
      select n.payload from pgflow.unit n
      where n.run_id = origin and n.kind = 'O' and n.payload->>'key' = o.detail->>'key' order by n.seq limit 1
    ) u
    where o.run_id = origin and o.kind = 'obligation'
      and not exists (select from pgflow.unit k where k.run_id = origin and k.call = o.call and k.seq <= cut)
    order by o.call
  loop
    perform pgflow.append_(origin, (select max(x.seq) + 1 from pgflow.unit x where x.run_id = origin), debt.call, 'D',
      debt.name, json_build_object('word', true, 'key', debt.key, 'verdict', 'handed_on', 'by', 'pgflow',
        'run_id', heir), token, t, t);
    seq := seq + 1;
    -- The code asks for it again where it was dropped, not where an earlier generation had opened it.
    perform pgflow.append_(heir, seq, own, 'O', debt.name, json_build_object(
      'carried', case when is_rewind and debt.p->>'carried' is distinct from 'continued' then 'again'
        else 'continued' end,
      'key', debt.key, 'to', debt.owed_to, 'outlives', debt.detail->'outlives', 'on_breach', debt.p->'on_breach',
      'detail', debt.p->'detail'), 0, t, t);
    update pgflow.owed o
    set run_id = heir, call = own,
      detail = o.detail - 'reason' - case when o.detail->>'state' = 'breached' then '' else 'since' end
    where o.run_id = origin and o.call = debt.call and o.kind = 'obligation';
    own := own + 1;
  end loop;
end
$$;
comment on function pgflow.adopt_obligations_(bigint, int, bigint, bigint, boolean, timestamptz, int)
  is 'Hands the open obligations of the dropped part of another''s journal to a generation, and posts the closed '
     'ones to it; returns its last seq';

create or replace function pgflow.check_obligations_()
returns table (invariant text, detail text)
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  return query
  select 'opened obligations are closed or owed', format('%s of run %s', coalesce(f.key, w.key), coalesce(f.run_id,
    w.run_id))
  from (
    -- One look at the journal for all of them: a run may have thousands.
    select e.run_id, e.key
    from (
      select u.run_id, u.payload->>'key' as key, array_agg(u.seq) filter (where u.kind = 'O') as opened,
        bool_or(u.kind = 'D' and u.payload->>'verdict' <> 'transferred') as is_closed
      from pgflow.unit u where u.kind in ('O', 'D')
      group by u.run_id, u.payload->>'key'
    ) e
    join pgflow.run r on r.run_id = e.run_id
    where not e.is_closed
      -- What its origin owes, a fork only repeats, and every later generation of the fork.
      and starts_with(e.key, r.root::text)
      and exists (select from unnest(e.opened) i (seq) where not pgflow.is_handed_on_(e.run_id, i.seq))
      and not exists (select from pgflow.imported m where m.run_id = e.run_id)
  ) f
  full join (select run_id, o.detail->>'key' as key from pgflow.owed o where kind = 'obligation') w
    on w.run_id = f.run_id and w.key = f.key
  where f.run_id is null or w.run_id is null
  union all
  select 'a run that has completed owes only what outlives it', format('%s of run %s', o.detail->>'key', o.run_id)
  from pgflow.owed o join pgflow.outcome e on e.run_id = o.run_id
  where o.kind = 'obligation' and e.status = 'completed' and not o.detail ? 'outlives'
  union all
  select 'what was breached is recorded', format('%s of run %s', o.detail->>'key', o.run_id)
  from pgflow.owed o join pgflow.run r on r.run_id = o.run_id
  where o.kind = 'obligation' and o.detail->>'state' = 'breached' and not exists (
    select from pgflow.run g join pgflow.unit b on b.run_id = g.run_id
    where (g.run_id = r.chain_id or g.chain_id = r.chain_id and g.generation > 1) and b.kind = 'B'
      and b.payload->>'key' = o.detail->>'key'
  ) and not exists (
    select from pgflow.signal s where s.chain_id = r.chain_id and s.kind = 'e'
      and s.payload->>'obligation' = o.detail->>'key'
  );
end
$$;
comment on function pgflow.check_obligations_()
  is 'Every obligation that was opened is closed or in owed; a completed run has left none behind';
