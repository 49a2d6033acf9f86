-- Gates: a run asks for approval, and waits for an authorised answer.
--
-- The worker asks with a flush (`new_gates`). The database writes the unit `gate_asked`, a row of `gate` and one of
-- `owed` in the same commit, and the run parks: it holds nothing while it waits. `gate` has open gates only, so the
-- inbox never scans a journal.
--
-- An answer is a row of `gate_answer`. Its number follows those of earlier answers, so the primary key puts all
-- answers to a gate in one order, in any isolation level: the second writer waits for the first one's commit, looks
-- again (or fails with 40001, if one snapshot serves the whole transaction), and gets an error that the gate is
-- closed. The row that closes a gate is marked, and posts the verdict as mail of kind g. The run takes it like other
-- mail.
--
--   approve     closes once a quorum has approved the same request; an edit is another request, for which the
--               approvals before it do not count
--   reject      closes at once, whatever the quorum: it is a veto
--   take_over   closes: the person has done it, with this result
--   escalate    closes: the code gets the new name
--   delegate    one who may answer lets another do so; closes nothing
--   expire      the time is over; the verdict is what the code asked for then
--
-- This clock decides whose turn it is: first the approvers, then those of `escalate`, one after the other, each for
-- the same time. After that no answer counts. The run notices with its next look, for which it has a timer. An answer
-- shares an advisory lock of the gate until its commit, and expiry takes that lock exclusively, if it gets it at
-- once: an accepted answer is never overtaken. If it does not, expiry is postponed by a second.
--
-- A question names gates like this:
--   gates       [[call, name], ...]     that the code waits for
--   new_gates   [{call, name, key, request, hash, approvers, quorum, timeout, on_timeout, escalate, needs_value, shape,
--               decision}, ...]         those of them that are to be asked; the request is JSON, as text
--
-- An edit that certainly does not fit is refused at once (`shape`). One that the code cannot use goes back
-- (`answer_returned`): the gate is open again, and the answer has the reason why it does not count.

create or replace function pgflow.open_gate_(me bigint, asked_seq int)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
begin
  insert into pgflow.gate (run_id, chain_id, asked_at, expires_at, timeout_seconds, call, seq, quorum, needs_value,
    gate, name, on_timeout, payload_hash, approvers, escalate)
  select u.run_id, r.chain_id, u.recorded_at, u.due_at, (u.payload->>'timeout')::float8, u.call, u.seq,
    (u.payload->>'quorum')::int, (u.payload->>'needs_value')::boolean, u.key, u.name, u.payload->>'on_timeout',
    u.payload->>'hash', array(select json_array_elements_text(u.payload->'approvers')),
    array(select json_array_elements_text(u.payload->'escalate'))
  from pgflow.unit u join pgflow.run r on r.run_id = u.run_id
  where u.run_id = me and u.seq = asked_seq;
  insert into pgflow.owed (run_id, call, opened_at, due_at, kind, name, owed_to, detail)
  select g.run_id, g.call, g.asked_at, g.expires_at, 'gate', g.name, nullif(array_to_string(g.approvers, ', '), ''),
    jsonb_build_object('state', 'asked', 'gate', g.gate)
  from pgflow.gate g where g.run_id = me and g.seq = asked_seq;
end
$$;
comment on function pgflow.open_gate_(bigint, int) is 'Opens the gate that a unit asked for, and owes its answer';

create or replace function pgflow.close_gates_(ids bigint[], calls int[] default null)
returns void
language sql
volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
  with gone as (
    delete from pgflow.gate g
    where g.run_id = any(ids) and (calls is null or g.call = any(calls)) returning g.*
  ), paid as (
    -- By its key: an index of all gates that are owed would do as well, in the eyes of a planner with small statistics.
    delete from pgflow.owed o where o.ctid = any(array(
      select k.address from gone g
      cross join lateral (
        select w.ctid as address, w.kind from pgflow.owed w where w.run_id = g.run_id and w.call = g.call offset 0
      ) k
      where k.kind = 'gate'
    ))
  )
  -- An answer that came as the run went another way.
  delete from pgflow.signal s where s.ctid = any(array(
    select k.address from gone g
    cross join lateral (
      select m.ctid as address, m.run_id, m.call from pgflow.signal m
      where m.chain_id = g.chain_id and m.kind = 'g' and m.name = g.name offset 0
    ) k
    where k.run_id = g.run_id and k.call = g.call
  ))
$$;
comment on function pgflow.close_gates_(bigint[], int[])
  is 'Closes gates of runs, all or those of some calls, with their debts and their undelivered mail';

create or replace function pgflow.path_of_(me bigint)
returns json
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
  with recursive up as (
    select r.key, r.parent_run_id, 1 as n from pgflow.run r where r.run_id = me
    union all
    select p.key, p.parent_run_id, u.n + 1 from up u join pgflow.run p on p.run_id = u.parent_run_id where u.n < 100
  )
  select json_agg(u.key order by u.n desc) from up u
$$;
comment on function pgflow.path_of_(bigint) is 'Keys of the runs above a run and its own, the root first';

create or replace function pgflow.ask_gates_(questions jsonb, positions int[], seqs int[], t timestamptz)
returns table (pos int, seq int, units jsonb)
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
#variable_conflict use_column
declare
  asked record;
  payload json;
  due timestamptz;
begin
  for asked in
    select q.pos, q.run as me, q.token, g.*
    from pgflow.question_rows_(questions) q cross join lateral pgflow.gate_rows_(q.new_gates) g
    where q.pos = any(positions) order by q.pos, g.n
  loop
    if pos is distinct from asked.pos then
      if pos is not null then
        return next;
      end if;
      pos := asked.pos;
      seq := seqs[asked.pos];
      units := '[]';
    end if;
    seq := seq + 1;
    due := t + (asked.timeout #>> '{}')::float8 * (1 + jsonb_array_length(asked.escalate)) * interval '1 second';
    payload := json_build_object('request', asked.request, 'hash', asked.hash, 'approvers', asked.approvers,
      'quorum', asked.quorum, 'timeout', asked.timeout, 'on_timeout', asked.on_timeout, 'escalate', asked.escalate,
      'needs_value', asked.needs_value, 'decision', asked.decision, 'path', pgflow.path_of_(asked.me),
      'shape', asked.shape);
    insert into pgflow.unit (run_id, seq, call, kind, name, key, payload, token, at, recorded_at, due_at)
    values (asked.me, seq, asked.call, 'g', asked.name, asked.key, payload, asked.token, t, t, due);
    perform pgflow.open_gate_(asked.me, seq);
    units := units || jsonb_build_array(
      pgflow.unit_json_(seq, asked.call, 'g', asked.name, payload) || jsonb_build_array(pgflow.micros_(due)));
  end loop;
  if pos is not null then
    return next;
  end if;
end
$$;
comment on function pgflow.ask_gates_(jsonb, int[], int[], timestamptz)
  is 'Asks the gates that runs of a batch want asked: of each position with some the last seq then, and its units';

create or replace function pgflow.is_closed_(gate text)
returns boolean
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
  select exists (select from pgflow.gate_answer a where a.gate = is_closed_.gate and a.closes and a.refusal is null)
$$;
comment on function pgflow.is_closed_(text) is 'True if an answer that counts has closed a gate';

create or replace function pgflow.post_verdict_(asked pgflow.gate, n int, verdict text, t timestamptz)
returns void
language sql
volatile
set search_path = pg_catalog, pg_temp
as $$
  -- The approvals that count are those of the last edit and after it.
  with said as (
    select a.* from pgflow.gate_answer a where a.gate = asked.gate and a.refusal is null and a.n <= post_verdict_.n
  ), edit as (
    select s.n, s.value from said s where s.verdict = 'approve' and s.value is not null order by s.n desc limit 1
  ), last as (
    select s.* from said s where s.n = post_verdict_.n
  )
  insert into pgflow.signal (chain_id, run_id, call, kind, name, sent_at, sent_by, payload)
  select asked.chain_id, asked.run_id, asked.call, 'g', asked.name, t, left(l.answered_by, 255),
    json_build_object('verdict', post_verdict_.verdict, 'n', l.n,
      'by', case when l.verdict = 'expire' and post_verdict_.verdict <> 'approve' then '[]' else coalesce((
        select json_agg(s.answered_by order by s.n) from said s
        where case when post_verdict_.verdict = 'approve'
          then s.verdict = 'approve' and s.n >= coalesce((select e.n from edit e), 0) else s.n = l.n end), '[]') end,
      'edited', post_verdict_.verdict = 'approve' and exists (select from edit),
      'value', case post_verdict_.verdict when 'approve' then (select e.value from edit e) when 'take_over' then l.value
        end,
      'reason', l.reason, 'to', l.hand_to, 'timed_out', l.verdict = 'expire')
  from last l
$$;
comment on function pgflow.post_verdict_(pgflow.gate, int, text, timestamptz)
  is 'Posts the verdict of a gate, closed by the answer of this number, to its run';

create or replace function pgflow.expire_gates_(questions jsonb, positions int[], t timestamptz)
returns int[]
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
declare
  late record;
  asked pgflow.gate;
  number int;
  last_asked text;
  found_news int[] := '{}';
begin
  for late in
    select q.pos, g.asked
    from pgflow.question_rows_(questions) q
    cross join lateral (
      select o as asked, o.call from pgflow.gate o where o.run_id = q.run and o.expires_at <= t
        and q.gates @> jsonb_build_array(jsonb_build_array(o.call)) offset 0
    ) g
    where q.pos = any(positions) order by q.pos, g.call
  loop
    asked := late.asked;
    -- An answer in progress was in time. A statement sees only earlier commits, so the look is a statement of its
    -- own, after the lock.
    continue when not pg_try_advisory_xact_lock(pgflow.latch_('gate ' || asked.gate));
    continue when pgflow.is_closed_(asked.gate);
    select coalesce(max(a.n), 0) + 1 into number from pgflow.gate_answer a where a.gate = asked.gate;
    last_asked := coalesce(asked.escalate[cardinality(asked.escalate)], array_to_string(asked.approvers, ', '));
    insert into pgflow.gate_answer (gate, n, run_id, answered_at, closes, verdict, answered_by, sent_by, hand_to,
      reason)
    values (asked.gate, number, asked.run_id, asked.expires_at, true, 'expire', 'pgflow', session_user,
      case when asked.on_timeout = 'escalate' then nullif(left(last_asked, 255), '') end, 'timeout')
    -- Where one snapshot serves the whole transaction, an answer that it has not fails with 40001: all is done again.
    on conflict on constraint gate_answer_pkey do nothing;
    continue when not found;
    perform pgflow.note_evidence_('gate_answer', json_build_array(asked.gate, number), asked.run_id);
    perform pgflow.post_verdict_(asked, number, asked.on_timeout, asked.expires_at);
    found_news := found_news || late.pos;
  end loop;
  return found_news;
end
$$;
comment on function pgflow.expire_gates_(jsonb, int[], timestamptz)
  is 'Closes the expired gates of a batch, unless an answer is in progress; returns the positions that got mail';

create or replace function pgflow.park_gates_(questions jsonb, positions int[], t timestamptz)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
begin
  insert into pgflow.wait (run_id, call, kind, name)
  select g.run_id, g.call, 'g', g.name
  from pgflow.question_rows_(questions) q
  cross join lateral (select o.* from pgflow.gate o where o.run_id = q.run offset 0) g
  where q.pos = any(positions) and q.gates is not null;
  insert into pgflow.timer (due_at, run_id, call)
  select greatest(g.expires_at, t + interval '1 second'), g.run_id, g.call
  from pgflow.question_rows_(questions) q
  cross join lateral (select o.* from pgflow.gate o where o.run_id = q.run offset 0) g
  where q.pos = any(positions) and q.gates is not null and g.expires_at is not null;
end
$$;
comment on function pgflow.park_gates_(jsonb, int[], timestamptz)
  is 'Has runs that park wait for their gates, and for the end of the time of these';

create or replace function pgflow.reopen_gates_(returned jsonb)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
declare
  back record;
begin
  for back in
    select u.run_id, u.payload->>'n' as n, left(r.error, 4096) as error, a.seq, a.key
    from pgflow.returned_rows_(returned) r
    join pgflow.unit u on u.run_id = r.run_id and u.seq = r.seq and u.kind = 'G'
    cross join lateral (
      select o.seq, o.key from pgflow.unit o
      where o.run_id = u.run_id and o.call = u.call and o.kind = 'g' order by o.seq desc limit 1
    ) a
  loop
    update pgflow.gate_answer r set refusal = back.error where r.gate = back.key and r.n = back.n::int;
    perform pgflow.note_evidence_('gate_refusal', json_build_array(back.key, back.n::int), back.run_id);
    perform pgflow.open_gate_(back.run_id, back.seq);
  end loop;
end
$$;
comment on function pgflow.reopen_gates_(jsonb)
  is 'Opens the gates again whose answers the code could not take';

create or replace function pgflow.inherit_gates_(heir bigint, cut int)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  asked int;
begin
  for asked in
    select g.seq from pgflow.unit g
    where g.run_id = heir and g.seq <= cut and g.kind = 'g' and not pgflow.gate_has_ended_(heir, g.call)
    order by g.seq
  loop
    perform pgflow.open_gate_(heir, asked);
  end loop;
end
$$;
comment on function pgflow.inherit_gates_(bigint, int)
  is 'Opens the gates of a run that begins with the journal of another, where they are open: each under its own key';

create or replace function pgflow.gate_has_ended_(run_id bigint, call int)
returns boolean
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
  select exists (
    select from pgflow.unit u
    where u.run_id = gate_has_ended_.run_id and u.call = gate_has_ended_.call and (
      u.kind = 'x' or u.kind = 'G' and not exists (
        select from pgflow.unit o where o.run_id = u.run_id and o.kind = 'o' and o.name = 'answer_returned'
          and (o.payload->>'seq')::int = u.seq
      )
    )
  )
$$;
comment on function pgflow.gate_has_ended_(bigint, int)
  is 'True if the journal has the verdict of a gate, and it did not go back; or the code gave it up';

-- ---------------------------------------------------------------- answers

create or replace function pgflow.refuse_gate_(gate text)
returns void
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
  done pgflow.gate_answer;
begin
  select a.* into done from pgflow.gate_answer a where a.gate = gate and a.closes and a.refusal is null;
  if not found then
    raise exception using errcode = 'PF001',
      message = format('no open gate has the key %s', quote_nullable(gate)),
      hint = 'Its run has ended or has given it up, or it never existed; pgflow.gates lists what is open.';
  end if;
  raise exception using errcode = 'PF022',
    message = case done.verdict
      when 'expire' then format('gate %s expired at %s', gate, done.answered_at)
      else format('gate %s was answered at %s: %s by %s%s', gate, done.answered_at, done.verdict, done.answered_by,
        ', because ' || done.reason) end,
    detail = json_build_object('verdict', done.verdict, 'by', done.answered_by,
      'at', to_json(done.answered_at), 'reason', done.reason);
end
$$;
comment on function pgflow.refuse_gate_(text)
  is 'Raises PF022 with the author, time and verdict of a closed gate; PF001 if it was never closed';

create or replace function pgflow.stage_of_(asked pgflow.gate, t timestamptz)
returns int
language sql
immutable
return case when asked.timeout_seconds is null then 0 else greatest(0,
  least(floor(extract(epoch from t - asked.asked_at) / asked.timeout_seconds), cardinality(asked.escalate))::int) end;
comment on function pgflow.stage_of_(pgflow.gate, timestamptz)
  is 'Stage of a gate: 0 = its approvers may answer, 1 = the first to whom it is escalated';

create or replace function pgflow.approvers_of_(asked pgflow.gate, t timestamptz)
returns text[]
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
declare
  stage int := pgflow.stage_of_(asked, t);
  may text[] := case when stage = 0 then asked.approvers else array[asked.escalate[stage]] end;
  handed record;
begin
  for handed in
    select a.answered_by, a.hand_to from pgflow.gate_answer a
    where a.gate = asked.gate and a.verdict = 'delegate' order by a.n
  loop
    if handed.answered_by = any(may) then
      may := array_remove(array_remove(may, handed.answered_by), handed.hand_to) || handed.hand_to;
    end if;
  end loop;
  return may;
end
$$;
comment on function pgflow.approvers_of_(pgflow.gate, timestamptz)
  is 'Names and roles that may answer a gate at a time; empty = anybody';

create or replace function pgflow.quorum_of_(asked pgflow.gate, t timestamptz)
returns int
language sql
immutable
return case when pgflow.stage_of_(asked, t) = 0 then asked.quorum else 1 end;
comment on function pgflow.quorum_of_(pgflow.gate, timestamptz)
  is 'Number of people who must approve at a time: after an escalation, one';

create or replace function pgflow.hash_payload_(value json)
returns text
language sql
immutable
set search_path = pg_catalog, pg_temp
as $$
  select encode(sha256(convert_to(value::text, 'UTF8')), 'hex')
$$;
comment on function pgflow.hash_payload_(json) is 'Hash of a request as it is stored: SHA-256 of its text, in hex';

create or replace function pgflow.say_at_gate_(
  gate text, verdict text, payload_hash text, value json, reason text, said_by text, acting_as text[], hand_to text
)
returns bigint
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
  asked pgflow.gate;
  t timestamptz;
  may text[];
  number int;
  edited_n int;
  shown text;
  agreed text[];
  closing boolean;
  shape jsonb;
  why text;
begin
  -- Expiry of the gate takes this lock exclusively.
  perform pgflow.wait_for_latch_('gate ' || gate, true, format('gate %s', gate));
  loop
    -- The number comes first: if an answer is committed that the looks below could see and this one did not, it has the
    -- same number, and all is looked at again.
    select coalesce(max(a.n), 0) + 1 into number from pgflow.gate_answer a where a.gate = gate;
    select g.* into asked from pgflow.gate g where g.gate = gate;
    if asked.run_id is null or pgflow.is_closed_(gate) then
      perform pgflow.refuse_gate_(gate);
    end if;
    t := pgflow.now_();
    if asked.expires_at <= t then
      raise exception using errcode = 'PF022', message = format('gate %s expired at %s', gate, asked.expires_at),
        detail = json_build_object('verdict', 'expire', 'by', 'pgflow', 'at', to_json(asked.expires_at));
    end if;
    may := pgflow.approvers_of_(asked, t);
    if may <> '{}' and not (said_by = any(may) or coalesce(acting_as && may, false)) then
      raise exception using errcode = 'PF021',
        message = format('%s may not answer gate %s: it asks %s', quote_literal(said_by), gate,
          array_to_string(may, ', ')),
        hint = 'Pass a role that you have (--as, acting_as), or let one of them delegate the gate.';
    end if;
    if verdict = 'delegate' and (may = '{}' or hand_to = any(may)) then
      raise exception using errcode = 'PF006', message = case
        when may = '{}' then format('anybody may answer gate %s, so it cannot be delegated', gate)
        else format('%s may answer gate %s already', quote_literal(hand_to), gate) end;
    end if;
    select coalesce(max(a.n), 0) into edited_n from pgflow.gate_answer a
    where a.gate = gate and a.verdict = 'approve' and a.value is not null and a.refusal is null;
    shown := coalesce((select pgflow.hash_payload_(a.value) from pgflow.gate_answer a
      where a.gate = gate and a.n = edited_n), asked.payload_hash);
    if payload_hash <> shown then
      raise exception using errcode = 'PF023',
        message = format('what gate %s asks is not what was answered: its hash is %s, not %s', gate, shown,
          payload_hash),
        hint = 'Read the request again: it was edited, or belongs to another gate.';
    end if;
    agreed := array(
      select a.answered_by from pgflow.gate_answer a
      where a.gate = gate and a.n >= edited_n and a.verdict = 'approve' and a.refusal is null
    );
    closing := verdict in ('reject', 'escalate', 'take_over');
    -- Else one person's leave would count twice.
    if verdict = 'delegate' and said_by = any(agreed) then
      raise exception using errcode = 'PF006',
        message = format('%s has approved gate %s already, and so may not delegate it', quote_literal(said_by), gate);
    end if;
    if verdict = 'approve' then
      if said_by = any(agreed) and value is null then
        raise exception using errcode = 'PF006',
          message = format('%s has approved gate %s already, and counts once', said_by, gate);
      end if;
      if value is null and edited_n = 0 and asked.needs_value then
        raise exception using errcode = 'PF003',
          message = format('gate %s asks for a value: approve it with one', gate);
      end if;
      if value is not null and not pgflow.is_envelope_(value::jsonb) then
        select (u.payload->'shape')::jsonb into shape from pgflow.unit u
        where u.run_id = asked.run_id and u.seq = asked.seq;
        why := pgflow.misfit_(shape, value::jsonb);
        if why is not null then
          raise exception using errcode = 'PF003',
            message = format('the value does not fit what gate %s asks for: %s. The gate stays open', gate, why);
        end if;
      end if;
      closing := case when value is null then cardinality(agreed) + 1 else 1 end >= pgflow.quorum_of_(asked, t);
    end if;
    insert into pgflow.gate_answer (gate, n, run_id, answered_at, closes, verdict, answered_by, sent_by, payload_hash,
      hand_to, reason, acting_as, value)
    values (gate, number, asked.run_id, t, closing, verdict, said_by, session_user, shown, hand_to,
      pgflow.told_(reason, 4096), acting_as, value)
    on conflict on constraint gate_answer_pkey do nothing;
    exit when found;
  end loop;
  perform pgflow.note_evidence_('gate_answer', json_build_array(gate, number), asked.run_id);
  if closing then
    perform pgflow.post_verdict_(asked, number, verdict, t);
    insert into pgflow.nudge (chain_id) values (asked.chain_id);
  end if;
  return asked.chain_id;
end
$$;
comment on function pgflow.say_at_gate_(text, text, text, json, text, text, text[], text)
  is 'Adds an answer to a gate, and notifies its run if that closes it; returns the chain';

create or replace function pgflow.speaks_for_others()
returns boolean
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
  -- A role that owns everything cannot be distinguished from others; a superuser could write the row itself.
  select pgflow.acts_as_('pgflow_speaker')
    or pgflow.acts_as_((select pg_get_userbyid(n.nspowner)::text from pg_namespace n where n.nspname = 'pgflow'))
    or (select r.rolsuper from pg_roles r where r.rolname = pgflow.caller_())
$$;
comment on function pgflow.speaks_for_others()
  is 'True if you may answer gates in the names of others: as a member of pgflow_speaker, as the owner of the schema, '
     'or as a superuser';
--! grant speaks_for_others to pgflow_client, pgflow_worker, pgflow_operator, pgflow_approver, pgflow_speaker

create or replace function pgflow.own_roles_(gate text, by text, claimed text[])
returns text[]
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
declare
  own constant text[] := array(
    with recursive line as (
      select r.oid, r.rolname from pg_roles r where r.rolname = session_user
      union
      select r.oid, r.rolname from line l join pg_auth_members m on m.member = l.oid join pg_roles r on r.oid = m.roleid
    )
    select l.rolname::text from line l order by l.rolname
  );
  foreign_name text;
begin
  if pgflow.acting_() <> '{}' then
    raise exception using errcode = 'PF021', message = 'a step of a workflow in SQL may not answer gates',
      hint = 'A gate asks for a person: let a function that a person calls answer it.';
  end if;
  select n.name into foreign_name
  from (
    select own_roles_.by as name where own_roles_.by <> session_user
    union all
    select c.name from unnest(claimed) c (name) where c.name <> all(own)
  ) n limit 1;
  if foreign_name is not null then
    raise exception using errcode = 'PF021',
      message = format('%s may not answer gate %s as %s: it is a database role and answers in its own name',
        quote_literal(session_user), gate, quote_literal(foreign_name)),
      hint = format('An application that speaks for its users needs a right of its own: grant pgflow_speaker to %I',
        session_user);
  end if;
  return coalesce(claimed, nullif(array(
    select o.name from unnest(own) o (name)
    where o.name <> session_user and (
      exists (select from pgflow.gate g where g.gate = own_roles_.gate and o.name = any(g.approvers || g.escalate))
      or exists (select from pgflow.gate_answer a where a.gate = own_roles_.gate and a.hand_to = o.name)
    )
  ), '{}'));
end
$$;
comment on function pgflow.own_roles_(text, text, text[])
  is 'Roles as which the session may act at a gate: those claimed, or all that are asked there; PF021 if a name or '
     'role is not its own';

create or replace function pgflow.answer_gate(
  gate text, verdict text, payload_hash text default null, value json default null, reason text default null,
  by text default null, acting_as text[] default null, hand_to text default null, valid_until timestamptz default null
)
returns bigint
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
begin
  if verdict is null or verdict not in ('approve', 'reject', 'escalate', 'take_over') then
    raise exception using errcode = 'PF003',
      message = format('an answer is approve, reject, escalate or take_over, not %s', quote_nullable(verdict));
  end if;
  if verdict = 'escalate' and hand_to is null then
    raise exception using errcode = 'PF003', message = 'say to whom the gate is escalated: hand_to';
  end if;
  if value is not null and verdict not in ('approve', 'take_over') then
    raise exception using errcode = 'PF003',
      message = format('only an approval and a take-over have a value, and this is %s', quote_literal(verdict));
  end if;
  perform pgflow.check_json_(value, 'the value of an answer');
  if valid_until <= pgflow.now_() then
    raise exception using errcode = 'PF021',
      message = format('this answer to gate %s was good until %s', gate, valid_until);
  end if;
  if verdict = 'take_over' then
    value := coalesce(value, 'null');
  end if;
  if not pgflow.speaks_for_others() then
    acting_as := pgflow.own_roles_(gate, by, acting_as);
  end if;
  return pgflow.say_at_gate_(gate, verdict, payload_hash, value, reason, pgflow.answerer_(by), acting_as,
    case when verdict = 'escalate' then pgflow.answerer_(hand_to) end);
end
$$;
comment on function pgflow.answer_gate(text, text, text, json, text, text, text[], text, timestamptz)
  is 'Answers a gate, in any transaction: approve (value = the request as edited), reject, escalate (hand_to) or '
     'take_over (value = the result). by = who answers, acting_as = its roles. For a role of pgflow_speaker, which '
     'speaks for the users of an application, both are its word; all others answer as the role of their session, and '
     'act as roles that it is a member of (PF021). That role is kept beside. payload_hash binds the answer to what was shown: PF023 if that is another by '
     'now. valid_until = time from which it does not count (PF021). The first answer that closes the gate counts, and '
     'a later one is told who, when and what (PF022). PF021 if others are asked, PF003 if the value does not fit, '
     'PF001 if no open gate has the key. Answers the chain, for wake()';
--! grant answer_gate to pgflow_approver, pgflow_speaker

create or replace function pgflow.delegate_gate(
  gate text, from_approver text, to_approver text, reason text default null
)
returns bigint
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  if from_approver is null or to_approver is null then
    raise exception using errcode = 'PF003', message = 'say who delegates the gate, and to whom';
  end if;
  if not pgflow.speaks_for_others() then
    perform pgflow.own_roles_(gate, null, array[from_approver]);
    if exists (
      select from pgflow.gate_answer a
      where a.gate = delegate_gate.gate and a.verdict = 'approve' and a.answered_by = session_user and a.refusal is null
    ) then
      raise exception using errcode = 'PF006', message = format('%s has approved gate %s already, and so may not '
        'delegate it', quote_literal(session_user), gate);
    end if;
  end if;
  return pgflow.say_at_gate_(delegate_gate.gate, 'delegate', null, null, delegate_gate.reason,
    pgflow.answerer_(from_approver), null, pgflow.answerer_(to_approver));
end
$$;
comment on function pgflow.delegate_gate(text, text, text, text)
  is 'Lets another answer a gate in place of a name or role that it asks. PF021 if it does not ask that one, or if '
     'that is neither the role of the session nor one that it is a member of, save for pgflow_speaker. PF006 if that '
     'one has approved, if the other may answer already, or if anybody may; PF022 if the gate is closed, PF001 if '
     'no open gate has the key';
--! grant delegate_gate to pgflow_approver, pgflow_speaker

create or replace function pgflow.answerer_(name text)
returns text
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
begin
  if octet_length(name) not between 1 and 1024 then
    raise exception using errcode = 'PF003', message = 'the name of an approver must have 1 to 1024 bytes';
  end if;
  return coalesce(name, session_user);
end
$$;
comment on function pgflow.answerer_(text) is 'The name of the approver: by default the role of the session';

-- ---------------------------------------------------------------- what there is

create or replace function pgflow.gate_now(
  run_id bigint, call int, out approvers text[], out quorum int, out answers json, out edit json, out payload_hash text
)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
  asked pgflow.gate;
  t timestamptz := pgflow.now_();
  stage int;
  is_handed boolean;
begin
  select g.* into asked from pgflow.gate g where g.run_id = (pgflow.own_runs_(array[run_id]))[1] and g.call = call;
  quorum := pgflow.quorum_of_(asked, t);
  select json_agg(json_build_object('by', a.answered_by, 'verdict', a.verdict, 'at', a.answered_at, 'reason', a.reason,
      'to', a.hand_to, 'value', a.value, 'refusal', a.refusal) order by a.n),
    (array_agg(a.value order by a.n desc)
      filter (where a.verdict = 'approve' and a.value is not null and a.refusal is null))[1],
    bool_or(a.verdict = 'delegate')
  into answers, edit, is_handed
  from pgflow.gate_answer a where a.gate = asked.gate;
  -- Most gates have no answers yet.
  stage := pgflow.stage_of_(asked, t);
  approvers := case when is_handed then pgflow.approvers_of_(asked, t) when stage = 0 then asked.approvers
    else asked.escalate[stage:stage] end;
  answers := coalesce(answers, '[]');
  payload_hash := coalesce(pgflow.hash_payload_(edit), asked.payload_hash);
end
$$;
comment on function pgflow.gate_now(bigint, int)
  is 'Present state of an open gate, for the view gates: approvers, quorum, answers, and the request as edited last, '
     'with its hash';
--! grant gate_now to pgflow_tenant, pgflow_client, pgflow_worker, pgflow_operator, pgflow_auditor

create or replace function pgflow.has_passed(at timestamptz)
returns boolean
language sql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
  select at <= pgflow.now_()
$$;
comment on function pgflow.has_passed(timestamptz)
  is 'True if a time is over by the database''s clock: of a link, before it shows a gate';
--! grant has_passed to pgflow_tenant, pgflow_client, pgflow_worker, pgflow_operator, pgflow_auditor

drop view if exists pgflow.gates;
-- A page is read in the order of asking and no further, since the planner expects a row of each gate: joined to
-- tables with statistics of their own it would expect one in all, and sort them. Most gates have no answers yet.
create view pgflow.gates as
select g.gate, r.key, l.workflow, g.name, g.asked_at, g.expires_at, s.approvers, s.quorum, s.answers,
  coalesce(s.edit, u.payload->'request') as request, s.payload_hash, s.edit is not null as edited,
  g.needs_value, u.payload->'shape' as shape, g.on_timeout, g.escalate, u.payload->>'decision' as decision,
  d.payload->>'why' as why, d.payload->'evidence' as evidence, u.payload->'path' as path, r.tenant, g.run_id, g.call
from pgflow.gate g
join pgflow.run r on r.run_id = g.run_id
join pgflow.lane l on l.lane_id = r.lane_id
cross join lateral (select n.payload from pgflow.unit n where n.run_id = g.run_id and n.seq = g.seq offset 0) u
cross join lateral (
  select exists (select from pgflow.gate_answer a where a.gate = g.gate) as is_answered offset 0
) a
cross join lateral (
  select n.* from pgflow.gate_now(g.run_id, g.call) n where a.is_answered or cardinality(g.escalate) > 0
  union all
  select g.approvers, g.quorum, '[]', null, g.payload_hash where not (a.is_answered or cardinality(g.escalate) > 0)
  offset 0
) s
left join lateral (
  select n.payload from pgflow.unit n
  where u.payload->>'decision' is not null and n.run_id = g.run_id and n.kind = 'd'
    and n.key = u.payload->>'decision' limit 1
) d on true
where not (
  a.is_answered
  and (select exists (select from pgflow.gate_answer o where o.gate = g.gate and o.closes and o.refusal is null))
);
comment on view pgflow.gates is 'Inbox: the gates that wait for an answer, with their approvers and requests';
--! grant gates to pgflow_client, pgflow_worker, pgflow_operator, pgflow_auditor
comment on column pgflow.gates.gate is 'Key of the gate: what answer_gate takes';
comment on column pgflow.gates.key is 'Key of the run';
comment on column pgflow.gates.workflow is 'Name of its workflow';
comment on column pgflow.gates.name is 'Name of the gate';
comment on column pgflow.gates.asked_at is 'Since when it is asked';
comment on column pgflow.gates.expires_at is 'Time from which no answer counts; null = it waits for good';
comment on column pgflow.gates.approvers is 'Names or roles that may answer now; empty = anybody';
comment on column pgflow.gates.quorum is 'Number of people who must approve';
comment on column pgflow.gates.answers is 'Answers so far: [{by, verdict, at, reason, to, value, refusal}, ...]';
comment on column pgflow.gates.request is 'The exact request, or the last edit of it';
comment on column pgflow.gates.payload_hash is 'Its hash, by which an answer is bound to it';
comment on column pgflow.gates.edited is 'True if an answer has edited it';
comment on column pgflow.gates.needs_value is 'True if an approval must bring a value';
comment on column pgflow.gates.shape
  is 'Shape of the value that an approval may bring, see sql/core/shape.sql; true = anything';
comment on column pgflow.gates.on_timeout is 'Verdict once the time is over: expire, reject, escalate or approve';
comment on column pgflow.gates.escalate is 'Names of those who are asked next, one after the other';
comment on column pgflow.gates.decision is 'Key of the decision that it rests on; null = none';
comment on column pgflow.gates.why is 'The reason of that decision';
comment on column pgflow.gates.evidence is 'The evidence of that decision';
comment on column pgflow.gates.path is 'Keys of the runs above the run and its own, the root first';
comment on column pgflow.gates.tenant is 'Tenant of the run; empty where there is only one';
comment on column pgflow.gates.run_id is 'The number of the generation';
comment on column pgflow.gates.call is 'Number of the call';

drop view if exists pgflow.gate_answers;
create view pgflow.gate_answers as
select a.gate, a.n, r.key, a.answered_at, a.verdict, a.answered_by, a.acting_as, a.sent_by, a.reason, a.hand_to,
  a.value::json as value, a.payload_hash, a.closes, a.refusal, r.tenant, a.run_id
from pgflow.gate_answer a join pgflow.run r on r.run_id = a.run_id;
comment on view pgflow.gate_answers is 'Answers at gates, open or closed';
--! grant gate_answers to pgflow_client, pgflow_worker, pgflow_operator, pgflow_auditor
comment on column pgflow.gate_answers.gate is 'Key of the gate';
comment on column pgflow.gate_answers.n is 'Number of the answer at this gate, from 1';
comment on column pgflow.gate_answers.key is 'Key of the run';
comment on column pgflow.gate_answers.answered_at is 'Time of the answer';
comment on column pgflow.gate_answers.verdict
  is 'approve, reject, escalate or take_over; delegate = another may answer; expire = timed out';
comment on column pgflow.gate_answers.answered_by is 'Name of the approver';
comment on column pgflow.gate_answers.acting_as is 'Roles of the approver, as given by the app; null = none';
comment on column pgflow.gate_answers.sent_by is 'Role of the session that sent it';
comment on column pgflow.gate_answers.reason is 'The reason that was given; null = none';
comment on column pgflow.gate_answers.hand_to is 'Name or role that it was escalated or delegated to; null = none';
comment on column pgflow.gate_answers.value is 'Edited request, or the result of a take-over; null = none';
comment on column pgflow.gate_answers.payload_hash is 'Hash of what was answered';
comment on column pgflow.gate_answers.closes is 'True if it closed the gate';
comment on column pgflow.gate_answers.refusal
  is 'Reason why the code could not take it, so that it does not count; null = it counts';
comment on column pgflow.gate_answers.tenant is 'Tenant of the run; empty where there is only one';
comment on column pgflow.gate_answers.run_id is 'The number of the generation';

create or replace function pgflow.check_gates_()
returns table (invariant text, detail text)
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  return query
  select 'gates asked are answered, expired, given up or open',
    format('call %s of run %s', coalesce(f.call, g.call), coalesce(f.run_id, g.run_id))
  from (
    select u.run_id, u.call from pgflow.unit u
    where u.kind = 'g' and not exists (select from pgflow.outcome o where o.run_id = u.run_id)
      and not pgflow.gate_has_ended_(u.run_id, u.call)
  ) f
  full join pgflow.gate g on g.run_id = f.run_id and g.call = f.call
  where f.run_id is null or g.run_id is null
  union all
  select 'the answer of an open gate is owed', format('call %s of run %s', coalesce(g.call, o.call),
    coalesce(g.run_id, o.run_id))
  from pgflow.gate g
  full join (select run_id, call from pgflow.owed where kind = 'gate') o on o.run_id = g.run_id and o.call = g.call
  where g.run_id is null or o.run_id is null
  union all
  select 'a verdict is the answer that closed its gate', format('unit %s of run %s', v.seq, v.run_id)
  from pgflow.unit v join pgflow.run r on r.run_id = v.run_id
  where v.kind = 'G' and v.seq > coalesce(r.origin_seq, 0)
    and not exists (select from pgflow.imported m where m.run_id = v.run_id)
    and not exists (
      select from pgflow.unit u join pgflow.gate_answer a on a.gate = u.key and a.n = (v.payload->>'n')::int
      where u.run_id = v.run_id and u.call = v.call and u.kind = 'g' and a.closes
    )
  union all
  select 'a gate is closed once', format('gate %s', a.gate)
  from pgflow.gate_answer a where a.closes and a.refusal is null group by a.gate having count(*) > 1
  union all
  select 'no verdict is lost', format('gate %s', g.gate)
  from pgflow.gate g
  where pgflow.is_closed_(g.gate) and not exists (
    select from pgflow.signal s where s.chain_id = g.chain_id and s.kind = 'g' and s.run_id = g.run_id
      and s.call = g.call
  )
  union all
  select 'a parked run waits for its gates', format('gate %s', g.gate)
  from pgflow.gate g join pgflow.parked p on p.run_id = g.run_id
  where p.token is not null and (
    not exists (select from pgflow.wait w where w.run_id = g.run_id and w.call = g.call and w.kind = 'g')
    or g.expires_at is not null
      and not exists (select from pgflow.timer m where m.run_id = g.run_id and m.call = g.call)
  ) and exists (select from pgflow.wait w where w.run_id = g.run_id and w.kind <> 'e');
end
$$;
comment on function pgflow.check_gates_()
  is 'Gates asked are answered, expired, given up or open; what is open is owed, and its run waits for it';
