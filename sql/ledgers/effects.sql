-- The effect ledger: writes to the outside that must not be repeated blindly.
--
-- An effect is intended (a unit with its request, key and risk, committed before the act), attempted, and then
-- confirmed, failed, accepted or unknown. Each of these is a unit of the run's journal; open effects are also in
-- `owed`, written by the same commit:
--
--   intended, again attempted     the act may be under way                    owed, state intended
--   unknown                       the outcome is not known                    owed, state unknown; `since`, if only
--                                                                             a person can say
--   settled as absent             a person or the counterparty denies it      owed, state absent
--   accepted                      done; its confirmation comes later          owed, state accepted; unknown once it
--                                                                             is silent (sql/ledgers/beats.sql)
--   confirmed, failed             closed
--   settled, once it was accepted closed
--
-- A worker requests intents with a flush, and they are written here, since the policy in force decides whether the
-- act may go ahead. A second attempt is allowed on one of three grounds, judged by this clock: the counterparty still
-- remembers the key (w), it was asked long enough after the last attempt and has no record (a), or a person has
-- stated that nothing was done (p).
--
-- An intent is an object; members that are null may be left out:
--   call, name, key, args_hash, risk, code
--   ordinal       place of the call among those of its name, or the key that the code gave
--   request       JSON, as text
--   decision      key of the decision that it follows from
--   compensates   key of the effect that it takes back
--   reads         [[name, seq, seconds], ...]   results that it relies on, and how old each may be
--   ground        w, a or p of a further attempt, with the seconds of w and a
--   is_keyed      whether the counterparty takes a key
--   expects       fingerprint of what it expects to find
--   notice        what a person should know of it
--   is_undo       whether it is a step of a plan that takes effects back
--   leave         key of the gate that approved it, if the policy requires approval, see leave_of_
--
-- A verdict from a person or a webhook is mail of kind e, which the run takes like any other: between look and commit
-- it holds the lease, so the books and the journal change as one. A run that was stuck without it is revived by
-- `wake`. A channel may deliver a verdict more than once, so the first verdict on a reference is kept in
-- `confirmation`, even after the debt is closed. Repeating the same verdict has no effect.

create or replace function pgflow.leave_of_(me bigint, leave text, name text, request jsonb)
returns json
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
  select v.payload::json
  from pgflow.unit a join pgflow.unit v on v.run_id = a.run_id and v.call = a.call and v.kind = 'G'
  where a.run_id = me and a.kind = 'g' and a.key = leave_of_.leave
    -- The name of a gate is cut where it would be too long.
    and (a.name = 'policy/' || leave_of_.name
      or octet_length(a.name) > 250 and starts_with('policy/' || leave_of_.name, a.name))
    and case v.payload->>'verdict'
      when 'take_over' then true
      -- What is encoded cannot be compared.
      when 'approve' then pgflow.is_envelope_(leave_of_.request) or leave_of_.request = case
        when (v.payload->>'edited')::boolean then v.payload->'value' else a.payload->'request' end::jsonb
      end
    and not exists (select from pgflow.unit i where i.run_id = me and i.kind = 'i'
      and i.payload->>'leave' = leave_of_.leave)
  order by v.seq desc limit 1
$$;
comment on function pgflow.leave_of_(bigint, text, text, jsonb)
  is 'The verdict by which a gate of a run lets an effect act with these arguments, once; null = it does not';

create or replace function pgflow.intend_(
  me bigint, token bigint, intents jsonb, t timestamptz, inout seq int, out units jsonb, out refused jsonb,
  out terms jsonb
)
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  e record;
  told record;
  kind "char";
  payload json;
  due timestamptz;
  first_at timestamptz;
  last_at timestamptz;
  asked_at timestamptz;
  is_absent boolean;
  wait interval;
  stale text;
  leave json;
begin
  units := '[]';
  refused := '[]';
  terms := '{}';
  for e in
    select i.* from pgflow.intent_rows_(intents) i
  loop
    due := null;
    leave := null;
    -- A word that was taken with this question may have closed it; and what was accepted is not attempted again.
    continue when e.ground is not null and not exists (
      select from pgflow.owed o where o.run_id = me and o.call = e.call and o.kind = 'effect'
        and not o.detail ? 'ref'
    );
    if e.ground is null then
      select r.name into stale
      from pgflow.read_rows_(e.reads) r join pgflow.unit u on u.run_id = me and u.seq = r.seq
      where u.at + r.max_age < t limit 1;
      if found then
        refused := refused || jsonb_build_array(jsonb_build_array(e.call, null, stale));
        terms := terms || jsonb_build_object(e.call, null);
        continue;
      end if;
      select n.* into told
      from pgflow.needs_(e.name, e.risk, e.request::jsonb, me, e.decision, coalesce(e.is_undo, false)) n;
      if e.leave is not null then
        leave := pgflow.leave_of_(me, e.leave, e.name, e.request::jsonb);
      end if;
      -- what takes back an effect that was let through needs no leave of its own
      if told.needs = 'gate' and e.compensates is null and leave is null then
        refused := refused || jsonb_build_array(jsonb_build_array(e.call, told.version, null));
        terms := terms || jsonb_build_object(e.call, told.terms);
        continue;
      end if;
      kind := 'i';
      payload := case
        when leave is not null then
          json_build_object('request', e.request::json, 'risk', e.risk, 'code', e.code, 'policy', told.version,
            'decision', e.decision, 'compensates', e.compensates, 'expects', e.expects, 'is_undo', e.is_undo,
            'leave', e.leave)
        when e.expects is null and e.is_undo is null then
          json_build_object('request', e.request::json, 'risk', e.risk, 'code', e.code, 'policy', told.version,
            'decision', e.decision, 'compensates', e.compensates)
        else
          json_build_object('request', e.request::json, 'risk', e.risk, 'code', e.code, 'policy', told.version,
            'decision', e.decision, 'compensates', e.compensates, 'expects', e.expects, 'is_undo', e.is_undo)
      end;
      insert into pgflow.owed (run_id, call, opened_at, kind, name, detail)
      select me, e.call, t, 'effect', e.name,
        jsonb_build_object('state', 'intended', 'key', e.key, 'risk', e.risk)
          || coalesce(nullif(e.notice, 'null'), '{}')
      where leave->>'verdict' is distinct from 'take_over';
    else
      wait := e.seconds;
      select min(u.recorded_at), max(u.recorded_at) into first_at, last_at
      from pgflow.unit u where u.run_id = me and u.call = e.call and u.kind in ('i', 'j');
      -- What was absent when it was asked counts by the time of the question, not of the answer.
      select u.at - (u.payload->>'took')::float8 * interval '1 second' into asked_at
      from pgflow.unit u where u.run_id = me and u.call = e.call and u.kind = 'E' order by u.seq desc limit 1;
      is_absent := coalesce(e.ground = 'a' and last_at + wait <= asked_at, false);
      if e.ground = 'p' or e.ground = 'w' and first_at + wait > t or is_absent and e.is_keyed then
        kind := 'j';
        payload := json_build_object('ground', e.ground);
        update pgflow.owed o set due_at = null, detail = o.detail || '{"state": "intended"}'
        where o.run_id = me and o.call = e.call and o.kind = 'effect';
      else
        kind := 'U';
        due := case when is_absent then null when e.ground = 'a' then greatest(last_at + wait, t) else t end;
        -- Workers from before the codes, which may hold the run during an upgrade, know the words.
        payload := case
          when is_absent then json_build_object('reason', 'absent_without_key', 'why',
            'absent, and without a key it cannot be tried again')
          when e.ground = 'a' then json_build_object('reason', 'absent_too_early', 'why',
            'absent, and asked too early to believe it')
          else json_build_object('reason', 'key_expired', 'why', 'the counterparty may have forgotten the key')
        end;
        update pgflow.owed o set due_at = due,
          detail = o.detail || jsonb_strip_nulls(jsonb_build_object('state', 'unknown', 'since',
            case when due is null then pgflow.micros_(t) end))
        where o.run_id = me and o.call = e.call and o.kind = 'effect';
      end if;
    end if;
    seq := seq + 1;
    insert into pgflow.unit (run_id, seq, call, kind, name, key, args_hash, payload, starts, token, at,
      recorded_at, due_at)
    values (
      me, seq, e.call, kind, e.name, e.key, e.args_hash, payload,
      case when kind <> 'U' and leave->>'verdict' is distinct from 'take_over'
        then json_build_array(json_build_array(e.call, 'e', e.name, e.ordinal, e.args_hash)) end,
      intend_.token, t, t, due
    );
    units := units || jsonb_build_array(
      pgflow.unit_json_(seq, e.call, kind, e.name, payload) || jsonb_build_array(pgflow.micros_(due))
    );
    if leave->>'verdict' = 'take_over' then
      -- The approver did the work: that is recorded, and no body starts.
      payload := json_build_object('verdict', 'confirmed', 'by', leave->'by'->>0, 'why', leave->>'reason',
        'word', true);
      perform pgflow.append_(me, seq + 1, e.call, 'E', e.name, payload, intend_.token, t, t);
      units := units || jsonb_build_array(pgflow.unit_json_(seq + 1, e.call, 'E', e.name, payload));
      payload := coalesce(leave->'value', 'null');
      perform pgflow.append_(me, seq + 2, e.call, 'C', e.name, payload, intend_.token, t, t);
      units := units || jsonb_build_array(pgflow.unit_json_(seq + 2, e.call, 'C', e.name, payload));
      seq := seq + 2;
    end if;
  end loop;
end
$$;
comment on function pgflow.intend_(bigint, bigint, jsonb, timestamptz, int)
  is 'Records the intents and further attempts that a flush asks for; refused = those that the policy does not let '
     'through, terms = those of the gates at which leave is asked';

create or replace function pgflow.note_confirmation_(ref text, chain bigint, verdict text, said_by text, t timestamptz)
returns void
language sql
volatile
set search_path = pg_catalog, pg_temp
as $$
  insert into pgflow.confirmation as c (chain_id, said_at, ref, verdict, said_by)
  values (chain, t, note_confirmation_.ref, case note_confirmation_.verdict when 'confirmed' then 'confirmed'
    else 'failed' end, left(note_confirmation_.said_by, 255))
  -- A counterparty may use a reference again once it is closed.
  on conflict on constraint confirmation_pkey do update
  set chain_id = excluded.chain_id, said_at = excluded.said_at, verdict = excluded.verdict, said_by = excluded.said_by
$$;
comment on function pgflow.note_confirmation_(text, bigint, text, text, timestamptz)
  is 'Records the outcome of a reference, so that repeated confirmations are recognised';

create or replace function pgflow.book_(units jsonb, t timestamptz)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
declare
  kinds "char"[];
  said record;
begin
  for said in
    select u.run_id, min(u.seq) as seq from pgflow.unit_rows_(units) u where u.kind = 'y' group by 1 order by 1
  loop
    perform pgflow.relabel_(said.run_id, said.seq - 1);
  end loop;
  kinds := array(select distinct u.kind from pgflow.unit_rows_(units) u);
  if 'E' = any(kinds) then
    -- Its own settle function has settled the acceptance.
    perform pgflow.note_confirmation_(o.detail->>'ref', r.chain_id, u.payload->>'verdict', null, t)
    from pgflow.unit_rows_(units) u
    join pgflow.owed o on o.run_id = u.run_id and o.call = u.call and o.kind = 'effect' and o.detail ? 'ref'
    join pgflow.run r on r.run_id = o.run_id
    where u.kind = 'E';
  end if;
  delete from pgflow.owed o using pgflow.unit_rows_(units) u
  where (u.kind in ('C', 'F') or u.kind = 'E' and o.detail ? 'ref') and o.run_id = u.run_id and o.call = u.call
    and o.kind = 'effect';
  -- The units of a run are in their order: of several, the last one counts.
  update pgflow.owed o
  set due_at = t + g.delay,
    detail = o.detail || jsonb_strip_nulls(jsonb_build_object(
      'state', case g.kind when 'U' then 'unknown' when 'A' then 'accepted' else 'absent' end, 'ref', g.ref,
      'since', case when g.kind = 'U' and g.delay is null then pgflow.micros_(t) end))
  from (
    select distinct on (u.run_id, u.call) u.run_id, u.call, u.delay,
      -- The counterparty may say of one that was silent that it still has it.
      case when u.kind = 'U' and u.payload->>'reason' = 'accepted' then 'A' else u.kind end as kind,
      case when u.kind = 'A' then u.payload->>'ref' end as ref
    from pgflow.unit_rows_(units) u
    where u.kind in ('U', 'A') or u.kind = 'E' and u.payload->>'verdict' = 'absent'
    order by u.run_id, u.call, u.seq desc
  ) g
  where o.run_id = g.run_id and o.call = g.call and o.kind = 'effect';
  if kinds && array['A', 'U', 'E']::"char"[] then
    perform pgflow.book_beats_(units, t);
  end if;
  if 'x' = any(kinds) then
    for said in
      select u.run_id, array_agg(u.call) as calls
      from pgflow.unit_rows_(units) u where u.kind = 'x' group by 1 order by 1
    loop
      perform pgflow.close_gates_(array[said.run_id], said.calls);
    end loop;
  end if;
end
$$;
comment on function pgflow.book_(jsonb, timestamptz)
  is 'Keeps owed equal to the effect units that a commit appends, and the labels to those that runs set, and closes '
     'cancelled gates';

create or replace function pgflow.settle_by_word_(
  me bigint, call int, payload json, sent_by text, token bigint, t timestamptz, is_over boolean, inout seq int,
  out units jsonb
)
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
#variable_conflict use_variable
declare
  debt record;
  verdict text := case when is_over and payload->>'verdict' = 'absent' then 'failed' else payload->>'verdict' end;
  word json;
  kind "char";
  outcome json;
begin
  units := '[]';
  select o.name, o.detail->>'state' as state, o.detail->>'reason' as reason, o.detail ? 'ref' as was_accepted into debt
  from pgflow.owed o where o.run_id = me and o.call = call and o.kind = 'effect';
  -- An attempt that is under way will say for itself what became of it, unless its run is over; so has one that was
  -- closed meanwhile.
  if debt.state is null or debt.state = 'uncompensated' or debt.state = 'intended' and not is_over then
    return;
  end if;
  if verdict = 'silent' then
    if debt.state = 'accepted' then
      select n.seq, n.units into seq, units from pgflow.note_silence_(me, call, debt.name, token, t, is_over, seq) n;
    end if;
    return;
  end if;
  word := json_build_object('verdict', verdict, 'by', sent_by, 'why', payload->>'why', 'word', true,
    'value', case when debt.was_accepted then payload->'value' end);
  seq := seq + 1;
  perform pgflow.append_(me, seq, call, 'E', debt.name, word, token, t, t);
  units := units || jsonb_build_array(pgflow.unit_json_(seq, call, 'E', debt.name, word));
  if verdict = 'absent' and not debt.was_accepted then
    update pgflow.owed o set due_at = null, detail = o.detail || '{"state": "absent"}'
    where o.run_id = me and o.call = call and o.kind = 'effect';
    return;
  end if;
  delete from pgflow.owed o where o.run_id = me and o.call = call and o.kind = 'effect';
  if debt.was_accepted then
    delete from pgflow.effect_beat b where b.run_id = me and b.call = call;
  else
    kind := case verdict when 'confirmed' then 'C' else 'F' end;
    outcome := case kind when 'C' then coalesce(payload->'value', 'null')
      else pgflow.effect_error_(debt.name, sent_by, payload->>'why') end;
    seq := seq + 1;
    perform pgflow.append_(me, seq, call, kind, debt.name, outcome, token, t, t);
    units := units || jsonb_build_array(pgflow.unit_json_(seq, call, kind, debt.name, outcome));
  end if;
  -- a late outcome is neither compensated, nor is a failed compensation repeated
  if debt.reason is not null then
    select l.seq into seq from pgflow.owe_left_(me, debt.reason, t, seq) l;
  end if;
end
$$;
comment on function pgflow.settle_by_word_(bigint, int, json, text, bigint, timestamptz, boolean, int)
  is 'Records a person''s verdict on an effect, and its outcome, if the effect is still open and not in progress';

create or replace function pgflow.take_words_(
  me bigint, chain bigint, token bigint, t timestamptz, is_over boolean, inout seq int, out units jsonb
)
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
#variable_conflict use_variable
declare
  word record;
  said jsonb;
begin
  units := '[]';
  for word in
    with gone as (
      delete from pgflow.signal s
      where s.chain_id = chain and s.kind = 'e' and case when s.payload->>'obligation' is null then s.run_id = me
        else not exists ( -- a later generation has it now, and takes the word
          select from pgflow.owed o where o.kind = 'obligation' and o.detail->>'key' = s.payload->>'obligation'
            and o.run_id > me
        ) end
      returning s.*
    )
    select * from gone order by signal_id
  loop
    if word.payload->>'obligation' is not null then
      select w.seq, w.units into seq, said
      from pgflow.close_by_word_(me, word.payload, word.sent_by, token, t, seq) w;
    else
      select w.seq, w.units into seq, said
      from pgflow.settle_by_word_(me, word.call, word.payload, word.sent_by, token, t, is_over, seq) w;
    end if;
    units := units || said;
  end loop;
end
$$;
comment on function pgflow.take_words_(bigint, bigint, bigint, timestamptz, boolean, int)
  is 'Takes the verdicts of people and webhooks on the effects and obligations of a run, and records them';

create or replace function pgflow.effect_error_(name text, said_by text, why text)
returns json
language sql
immutable
set search_path = pg_catalog, pg_temp
as $$
  select json_build_object(
    'type', 'pgflow.errors.EffectFailed',
    'mro', json_build_array('pgflow.errors.EffectFailed', 'pgflow.errors.PgflowError'),
    'args', json_build_array(m), 'message', m)
  from (select format('effect %s was not done, says %s: %s', name, said_by, coalesce(why, 'no reason given'))) as s (m)
$$;
comment on function pgflow.effect_error_(text, text, text)
  is 'The error that an effect raises after a person declared it failed';

create or replace function pgflow.find_debt_(effect_key text, ref text)
returns pgflow.owed
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
  debts pgflow.owed[];
begin
  for look in 1..3 loop -- a rewind may hand the debt to another generation meanwhile
    if ref is null then
      debts := array(select o from pgflow.owed o where o.kind = 'effect' and o.detail->>'key' = effect_key limit 2);
    else
      debts := array(
        select o from pgflow.owed o
        where o.detail ? 'ref' and o.detail->>'ref' = ref and o.kind = 'effect'
          and o.detail->>'state' <> 'uncompensated' limit 2
      );
    end if;
    exit when cardinality(debts) = 0;
    if cardinality(debts) > 1 and ref is not null then
      raise exception using errcode = 'PF003',
        message = format('several effects were accepted under the reference %s', quote_nullable(ref)),
        hint = 'Settle the one that is meant by its key: pgflow.settle_effect.';
    end if;
    -- No lease protects the journal of a finished run: writers take turns, and none writes during a rewind.
    perform pgflow.lock_chain_(r.chain_id) from pgflow.run r join pgflow.outcome o on o.run_id = r.run_id
    where r.run_id = debts[1].run_id;
    debts := array(
      select o from pgflow.owed o
      where o.run_id = debts[1].run_id and o.call = debts[1].call and o.kind = 'effect'
        and o.detail->>'key' = debts[1].detail->>'key' for update
    );
    exit when cardinality(debts) > 0;
  end loop;
  return debts[1];
end
$$;
comment on function pgflow.find_debt_(text, text)
  is 'The open effect that a key names, or that was accepted under a reference, locked; null = there is none. PF003 if '
     'several were accepted under it';

create or replace function pgflow.has_word_(debt pgflow.owed)
returns boolean
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
  select exists (
    select from pgflow.run r join pgflow.signal s on s.chain_id = r.chain_id
    where r.run_id = debt.run_id and s.kind = 'e' and s.run_id = debt.run_id and s.call = debt.call
      and s.payload->>'verdict' in ('confirmed', 'failed')
  )
$$;
comment on function pgflow.has_word_(pgflow.owed)
  is 'True if the run of an effect has mail that says what became of it, and has not taken it yet';

create or replace function pgflow.post_settlement_(debt pgflow.owed, verdict text, value json, why text, sent_by text)
returns bigint
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  chain bigint;
  ended boolean;
  state text := debt.detail->>'state';
begin
  select r.chain_id into strict chain from pgflow.run r where r.run_id = debt.run_id;
  select true into ended from pgflow.outcome o where o.run_id = debt.run_id;
  -- Of several words that wait, the first one counts.
  if debt.detail ? 'ref' and state <> 'uncompensated' and verdict in ('confirmed', 'failed')
    and not pgflow.has_word_(debt)
  then
    perform pgflow.note_confirmation_(debt.detail->>'ref', chain, verdict, sent_by, pgflow.now_());
  end if;
  if state = 'uncompensated' then
    if verdict not in ('taken_back', 'stands') then
      raise exception using errcode = 'PF006',
        message = format('effect %s was done and is not compensated any more: it cannot be %s',
          debt.detail->>'key', verdict),
        hint = 'Settle it as taken_back once you have undone it by other means, or as stands to keep it.';
    end if;
    perform pgflow.discharge_(debt.run_id, debt.call, verdict, why, sent_by, pgflow.now_());
  elsif verdict in ('taken_back', 'stands') then
    raise exception using errcode = 'PF006',
      message = format('effect %s is %s: only one that is uncompensated can be %s', debt.detail->>'key',
        state, verdict),
      hint = 'Say first what became of it: confirmed, failed or absent.';
  elsif ended is not true and state = 'intended' then
    raise exception using errcode = 'PF006',
      message = format('effect %s is under way: its own outcome will say what became of it', debt.detail->>'key'),
      hint = 'Only an effect whose outcome is unknown, or that was accepted, can be settled.';
  elsif ended then -- the run takes no more mail, and what is owed must not stay for ever
    perform pgflow.settle_by_word_(debt.run_id, debt.call,
      json_build_object('verdict', verdict, 'value', value, 'why', why), sent_by, 0, pgflow.now_(), true,
      (select max(u.seq) from pgflow.unit u where u.run_id = debt.run_id));
  else
    insert into pgflow.signal (chain_id, run_id, call, kind, name, sent_at, sent_by, payload)
    values (chain, debt.run_id, debt.call, 'e', debt.name, pgflow.now_(), left(sent_by, 255),
      json_build_object('verdict', verdict, 'value', value, 'why', pgflow.told_(why, 4096)));
    insert into pgflow.nudge (chain_id) values (chain);
  end if;
  return chain;
end
$$;
comment on function pgflow.post_settlement_(pgflow.owed, text, json, text, text)
  is 'Posts the outcome of an effect to its run, or records it if the run has ended; returns the chain';

create or replace function pgflow.settle_effect(
  effect_key text, verdict text, value json default 'null', why text default null, sent_by text default null
)
returns bigint
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  debt pgflow.owed;
begin
  if verdict is null or verdict not in ('confirmed', 'failed', 'absent', 'taken_back', 'stands') then
    raise exception using errcode = 'PF003',
      message = format('a verdict on an effect is confirmed, failed or absent, not %s', quote_nullable(verdict)),
      hint = 'Settle an effect that was done and is not compensated any more as taken_back or stands.';
  end if;
  perform pgflow.check_json_(value, 'the result of an effect');
  debt := pgflow.find_debt_(effect_key, null);
  if debt.run_id is null then
    raise exception using errcode = 'PF001',
      message = format('no open effect has the key %s', quote_nullable(effect_key)),
      hint = 'It is closed, or never existed; pgflow.obligations lists what is open.';
  end if;
  if debt.detail ? 'ref' and verdict = 'absent' then
    raise exception using errcode = 'PF003',
      message = format('effect %s was accepted: it is confirmed or failed, not absent', effect_key);
  end if;
  return pgflow.post_settlement_(debt, verdict, coalesce(value, 'null'), why, pgflow.sender_(sent_by));
end
$$;
comment on function pgflow.settle_effect(text, text, json, text, text)
  is 'Settles an effect whose outcome is unknown, or that was accepted: confirmed with its result, failed, or absent '
     '(then it may be retried). An uncompensated effect: taken_back, or stands. PF001 if no open effect has the key, '
     'PF006 while it is in progress';
--! grant settle_effect to pgflow_worker, pgflow_operator

create or replace function pgflow.confirm_effect(
  ref text, verdict text default 'confirmed', value json default 'null', why text default null,
  sent_by text default null
)
returns bigint
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  debt pgflow.owed;
  said pgflow.confirmation;
begin
  if verdict is null or verdict not in ('confirmed', 'failed') then
    raise exception using errcode = 'PF003',
      message = format('an accepted effect is confirmed or failed, not %s', quote_nullable(verdict));
  end if;
  perform pgflow.check_json_(value, 'the confirmation of an effect');
  if ref is not null then
    debt := pgflow.find_debt_(null, ref);
  end if;
  if debt.run_id is null or pgflow.has_word_(debt) then
    select c.* into said from pgflow.confirmation c where c.ref = confirm_effect.ref;
    if said.verdict <> confirm_effect.verdict then
      raise exception using errcode = 'PF006',
        message = format('what was accepted under the reference %s is %s already, as of %s: it cannot be %s',
          quote_literal(ref), said.verdict, date_trunc('second', said.said_at), verdict),
        hint = 'The first word counts.';
    elsif found then
      return said.chain_id;
    end if;
  end if;
  if debt.run_id is null then
    raise exception using errcode = 'PF001',
      message = format('no effect was accepted under the reference %s', quote_nullable(ref)),
      hint = 'Its acceptance may not be recorded yet: answer so that the counterparty sends again.';
  end if;
  return pgflow.post_settlement_(debt, verdict, coalesce(value, 'null'), why, pgflow.sender_(sent_by));
end
$$;
comment on function pgflow.confirm_effect(text, text, json, text, text)
  is 'Settles the effect that was accepted under a reference, for webhooks and queues. Repeating the same verdict '
     'has no effect; PF001 if no effect has the reference (yet), PF006 if it has another verdict';
--! grant confirm_effect to pgflow_client, pgflow_worker, pgflow_operator

create or replace function pgflow.is_handed_on_(run_id bigint, seq int)
returns boolean
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
  select exists (
      -- A later generation of the chain has it now.
      select from pgflow.run h join pgflow.run r on r.run_id = is_handed_on_.run_id
      where h.chain_id = r.chain_id and h.generation > 1 and h.generation > r.generation
        and h.origin_run_id = is_handed_on_.run_id and is_handed_on_.seq <= h.origin_seq
    ) or exists (
      -- Or has it under another call, to take back what was dropped.
      select from pgflow.run h join pgflow.run r on r.run_id = is_handed_on_.run_id
      join pgflow.carried c on c.run_id = h.run_id and c.what = 'undo' and not c.is_done and c.seq = is_handed_on_.seq
      where h.chain_id = r.chain_id and h.generation > 1 and h.generation > r.generation
        and h.origin_run_id = is_handed_on_.run_id
    ) or exists (
      -- A fork only repeats it: it is its origin's.
      select from pgflow.run r where r.run_id = is_handed_on_.run_id and r.generation = 1
        and is_handed_on_.seq <= r.origin_seq
    )
$$;
comment on function pgflow.is_handed_on_(bigint, int)
  is 'True if another run owes what a unit opened: the generation that took it over, or the origin of a fork';

create or replace function pgflow.check_effects_()
returns table (invariant text, detail text)
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  return query
  select 'what is owed equals the journal',
    format('call %s of run %s', coalesce(f.call, w.call), coalesce(f.run_id, w.run_id))
  from (
    -- One look at the journal for all of them: a run may have thousands.
    select e.run_id, e.call from (
      select u.run_id, u.call, array_agg(u.seq) filter (where u.kind = 'i') as intents,
        bool_or(u.kind in ('C', 'F')) as has_end, min(u.seq) filter (where u.kind = 'A') as accepted_at,
        max(u.seq) filter (where u.kind = 'E') as stated_at
      from pgflow.unit u where u.kind in ('i', 'A', 'C', 'E', 'F')
      group by u.run_id, u.call
    ) e
    where not e.has_end and (e.stated_at > e.accepted_at) is not true
      and exists (select from unnest(e.intents) i (seq) where not pgflow.is_handed_on_(e.run_id, i.seq))
      and not exists (select from pgflow.imported m where m.run_id = e.run_id)
    union all
    select u.run_id, u.call from pgflow.unit u join pgflow.run r on r.run_id = u.run_id
    where u.kind = 'o' and u.name = 'owed' and u.seq > coalesce(r.origin_seq, 0)
      and not exists (select from pgflow.imported m where m.run_id = u.run_id)
      and not exists (
        select from pgflow.unit d where d.run_id = u.run_id and d.call = u.call and d.kind = 'o'
          and d.name = 'discharged' and d.seq > u.seq
      )
  ) f
  full join (select run_id, call from pgflow.owed where kind = 'effect') w on w.run_id = f.run_id and w.call = f.call
  where f.run_id is null or w.run_id is null
  union all
  select 'a confirmation is of a run', format('reference %s', c.ref)
  from pgflow.confirmation c where not exists (select from pgflow.run r where r.run_id = c.chain_id);
end
$$;
comment on function pgflow.check_effects_() is 'The effects that are owed are those that the journal leaves open';

comment on column pgflow.owed.run_id is 'The run that owes it';
comment on column pgflow.owed.call is 'Number of the call that it is about';
comment on column pgflow.owed.opened_at is 'Time since which it is owed';
comment on column pgflow.owed.due_at is 'Time at which it should be closed; null = no time is set';
comment on column pgflow.owed.kind is 'effect, gate or obligation';
comment on column pgflow.owed.name is 'Of the effect, gate or obligation';
comment on column pgflow.owed.owed_to is 'Name of the creditor; null = not given';
comment on column pgflow.owed.detail
  is 'Notice for the person who closes it, its key and its state; null = none. sql/ledgers/obligations.sql has its '
     'members';
