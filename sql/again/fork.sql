-- Doing a part again: a fork is a new run that begins with the journal of another up to a cut; rewind,
-- restart and a retry from a step are new generations of the same chain. `sql/again/inherit.sql` says what they have
-- from the old journal, and what of it is dropped.
--
-- A fork only reads its origin, which may be running, and goes on beside it under a key of its own. A new
-- generation takes the place of the old one, whose outcome becomes `continued`: what it was before is in the
-- operator's unit, the first one after the cut. So a run that a worker holds must be paused first. Mail is the
-- chain's: what the dropped part had taken is put back, before what waits, and what was put aside at the end too.
-- A fork gets copies of it if it asks. Obligations that were opened in the kept part go on to the new
-- generation; those of the dropped part stay with the old one, open as they are, unless effects are to be
-- compensated (`sql/again/adopt.sql`); a fork owes nothing of its origin's.
--
-- Locks: `pgflow.retention`, shared, so that nothing here is removed meanwhile; then one for each chain, against
-- two that rewind it at once; then the run's place, waited for, as nothing else is held that anybody waits for.
-- A claim skips the row. A run with a lease is refused, which is only seen. Locked rows of others are skipped: the
-- deadline, and the parent's mailbox. Only children that go on as the run's own are waited for, place or lease, in the
-- order of their numbers. The keys of children that are given up are freed last. A fork takes the first of these locks
-- and a key. A wake that puts an ended run's mail aside shares the `outcome`, SKIP LOCKED, so no message is put aside
-- while the run is taken up again.

create or replace function pgflow.lock_chain_(chain bigint)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
begin
  perform pg_advisory_xact_lock_shared(pgflow.latch_('retention'));
  perform pg_advisory_xact_lock(pgflow.latch_('chain ' || chain));
end
$$;
comment on function pgflow.lock_chain_(bigint)
  is 'Keeps others from rewinding a chain or removing it, until the end of the transaction';

create or replace function pgflow.seize_(
  me bigint, shown text, verb text, out lane_id int, out priority smallint, out was json
)
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  for look in 1..100 loop
    select p.lane_id, p.priority, json_build_object('status', 'waiting') into lane_id, priority, was
    from pgflow.parked p where p.run_id = me for update;
    exit when found;
    select abs(r.lane_id), r.priority, json_build_object('status', 'queued') into lane_id, priority, was
    from pgflow.ready r where r.run_id = me for update;
    exit when found;
    select h.lane_id, h.priority, json_build_object('status', h.state, 'reason', h.reason, 'detail', h.detail)
    into lane_id, priority, was
    from pgflow.held h where h.run_id = me for update;
    exit when found;
    select r.lane_id, r.priority,
      json_build_object('status', o.status, 'reason', o.reason, 'finished_at', o.finished_at, 'output', o.output,
        'error', o.error)
    into lane_id, priority, was
    from pgflow.outcome o join pgflow.run r on r.run_id = o.run_id
    where o.run_id = me and o.status <> 'continued' for update of o;
    exit when found;
    if exists (select from pgflow.lease e where e.run_id = me) then
      raise exception using errcode = 'PF006', message = format('run %s is running', shown),
        hint = format('Pause it first, and %s it once it is paused.', verb);
    end if;
  end loop;
  if was is null then
    raise exception using errcode = 'PF006', message = format('run %s is on its way from one worker to another', shown),
      hint = 'Try again.';
  end if;
end
$$;
comment on function pgflow.seize_(bigint, text, text)
  is 'Locks a run where it is, unless a worker holds it (PF006); says how it was';

create or replace function pgflow.withdraw_(me bigint, shown text)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  parent record;
begin
  select p.run_id, p.chain_id, p.key, r.parent_call as call, exists (select from pgflow.outcome o
    where o.run_id = p.run_id) as is_over into parent
  from pgflow.run r join pgflow.run p on p.run_id = r.parent_run_id
  where r.run_id = me;
  if parent.run_id is null then
    return;
  end if;
  -- Even to repeat them: what the kept part did, and what earlier generations did, would be taken back by both.
  if exists (
    select from pgflow.run g join pgflow.unit k on k.run_id = g.run_id and k.kind = 'K'
    where (g.run_id = parent.chain_id or g.chain_id = parent.chain_id and g.generation > 1)
      and k.payload->>'run_id' = me::text and json_array_length(k.payload->'saga'->'effects') > 0
  ) then
    raise exception using errcode = 'PF006',
      message = format('run %s is a child, and its effects are its parent''s, %s, to keep or take back', shown,
        quote_literal(parent.key)),
      hint = 'Rewind the parent, or fork this run.';
  end if;
  if parent.is_over then
    return;
  end if;
  delete from pgflow.signal s where s.ctid = any(array(
    select m.ctid from pgflow.signal m
    where m.chain_id = parent.chain_id and m.kind = 'c' and m.name = parent.call::text
      and m.run_id = parent.run_id for update skip locked
  )) and s.chain_id = parent.chain_id;
  if not found and not exists (select from pgflow.unit u where u.run_id = parent.run_id and u.call = parent.call
    and u.kind = 'x') then
    raise exception using errcode = 'PF006',
      message = format('run %s is a child, and its parent %s has its result', shown, quote_literal(parent.key)),
      hint = 'Rewind the parent, or fork this run.';
  end if;
end
$$;
comment on function pgflow.withdraw_(bigint, text)
  is 'Takes the result of a child back from its parent''s mailbox; refuses (PF006) if the parent has taken it, or ever '
     'had its effects';

create or replace function pgflow.drop_children_(me bigint, cut int, children text, are_reused boolean)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  child record;
begin
  if children is null or children not in ('refuse', 'cancel') then
    raise exception using errcode = 'PF003',
      message = format('children must be refuse or cancel, not %s', quote_nullable(children));
  end if;
  for child in
    select a.seq, k.call, (k.payload->>'run_id')::bigint as chain_id, k.payload->>'key' as key, a.state
    from pgflow.acts_(me, cut) a join pgflow.unit k on k.run_id = me and k.seq = a.seq
    where a.what = 'child' order by a.seq
  loop
    if child.state not in ('completed', 'failed', 'cancelled', 'gone') then
      continue when are_reused and children = 'refuse';
      if children = 'refuse' then
        raise exception using errcode = 'PF006',
          message = format('child %s, started at unit %s, would be dropped and is still %s', quote_literal(child.key),
            child.seq, child.state),
          hint = 'Say that such children are to be cancelled, or wait until it has ended.';
      end if;
      perform pgflow.post_(child.chain_id,
        'x', 'cancel', json_build_object('why', 'its parent was rewound', 'reason', 'parent_rewound'), 'pgflow');
    elsif not (are_reused and child.state = 'completed') or pgflow.child_is_undone_(me, cut, child.call) then
      -- What the new generation starts may have this key; one that was made up is in nobody's way.
      delete from pgflow.run_key k where k.chain_id = child.chain_id and k.key = child.key and k.key <> k.root::text;
    end if;
  end loop;
end
$$;
comment on function pgflow.drop_children_(bigint, int, text, boolean)
  is 'Settles the children that the dropped part started, unless they are reused: open ones are cancelled or refused '
     '(PF006), keys of ended ones freed';

create or replace function pgflow.is_returned_(run_id bigint, seq int)
returns boolean
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
  select exists (
    select from pgflow.unit o
    where o.run_id = is_returned_.run_id and o.seq > is_returned_.seq and o.kind = 'o' and o.name = 'signal_returned'
      and (o.payload->>'seq')::int = is_returned_.seq
  )
$$;
comment on function pgflow.is_returned_(bigint, int)
  is 'True if a message that was taken at a unit went back to the mailbox';

create or replace function pgflow.put_back_(chain bigint, origin bigint, cut int, to_chain bigint)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  numbers bigint[];
begin
  -- By the time at which it was taken; before the time-out of the wait that it had ended.
  numbers := array(
    select nextval('pgflow.put_back_seq') from pgflow.unit u
    where u.run_id = origin and u.seq > cut and u.kind = 'S' and not pgflow.is_returned_(origin, u.seq)
  );
  insert into pgflow.signal (signal_id, chain_id, sent_at, kind, name, payload)
  overriding system value
  select numbers[s.n], to_chain, s.at, 's', s.name, s.payload
  from (
    select row_number() over (order by u.seq desc) as n, u.name, u.payload,
      least(u.at, (select min(w.due_at) from pgflow.unit w
        where w.run_id = origin and w.call = u.call and w.kind = 't')) as at
    from pgflow.unit u where u.run_id = origin and u.seq > cut and u.kind = 'S'
      and not pgflow.is_returned_(origin, u.seq)
  ) s;
  if to_chain = chain then
    with gone as (
      delete from pgflow.undelivered d
      where d.chain_id = chain and d.kind in ('s', 'u') and d.reason = 'ended' returning d.*
    )
    insert into pgflow.signal (signal_id, chain_id, sent_at, kind, name, sent_by, payload)
    overriding system value
    select g.signal_id, g.chain_id, g.sent_at, g.kind, g.name, g.sent_by, g.payload from gone g;
    -- An update that was answered is made again, as a signal is taken again, and its answer stays. One of which a
    -- sender was told that it is refused is left out where it would be taken: see offer_updates_.
    if exists (select from pgflow.unit u where u.run_id = origin and u.seq > cut and u.kind = 'h') then
      numbers := array(
        select nextval('pgflow.put_back_seq') from pgflow.unit u
        where u.run_id = origin and u.seq > cut and u.kind = 'h'
      );
      insert into pgflow.signal (signal_id, chain_id, sent_at, kind, name, payload)
      overriding system value
      select numbers[s.n], chain, s.at, 'u', s.name, s.payload
      from (
        select row_number() over (order by u.seq desc) as n, u.name, u.payload, u.at
        from pgflow.unit u where u.run_id = origin and u.seq > cut and u.kind = 'h'
      ) s;
    end if;
  else
    insert into pgflow.signal (chain_id, sent_at, kind, name, sent_by, payload)
    select to_chain, m.sent_at, 's', m.name, m.sent_by, m.payload
    from (
      select signal_id, sent_at, name, sent_by, payload from pgflow.signal s where s.chain_id = chain and s.kind = 's'
      union all
      select signal_id, sent_at, name, sent_by, payload from pgflow.undelivered d
      where d.chain_id = chain and d.kind = 's' and d.reason = 'ended'
    ) m order by m.signal_id;
  end if;
end
$$;
comment on function pgflow.put_back_(bigint, bigint, int, bigint)
  is 'Fills a mailbox: what the dropped part of a journal had taken, in order, then what waits or was put aside; '
     'copies of it, for another chain';

create or replace function pgflow.move_owed_(origin bigint, cut int, heir bigint)
returns void
language sql
volatile
set search_path = pg_catalog, pg_temp
as $$
  with gone as (
    delete from pgflow.owed o
    where o.run_id = origin and o.detail->>'state' is distinct from 'uncompensated'
      and exists (select from pgflow.unit u where u.run_id = origin and u.call = o.call and u.seq <= cut)
    returning o.*
  )
  insert into pgflow.owed (run_id, call, opened_at, due_at, kind, name, owed_to, detail)
  select heir, call, opened_at, due_at, kind, name, owed_to,
    case when kind = 'obligation' and detail->>'state' = 'open' then detail - 'reason' - 'since'
      else detail - 'reason' end
  from gone;
  select pgflow.move_beats_(origin, o.call, heir, o.call) from pgflow.owed o
  where o.run_id = heir and o.kind = 'effect' and o.detail ? 'ref'
$$;
comment on function pgflow.move_owed_(bigint, int, bigint)
  is 'Hands what was owed before a cut to the new generation; the rest stays owed by the old one';

create or replace function pgflow.move_words_(origin bigint, chain bigint, heir bigint, t timestamptz)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
begin
  update pgflow.signal s set run_id = heir
  where s.chain_id = chain and s.kind = 'e' and s.run_id = origin
    and exists (select from pgflow.owed o where o.run_id = heir and o.call = s.call);
  if exists (select from pgflow.signal s where s.chain_id = chain and s.kind = 'e' and s.run_id = origin) then
    perform pgflow.take_words_(origin, chain, 0, t, true, (select max(u.seq) from pgflow.unit u
      where u.run_id = origin));
  end if;
end
$$;
comment on function pgflow.move_words_(bigint, bigint, bigint, timestamptz)
  is 'Hands pending verdicts on open effects to the generation that owes them now, and records those on effects '
     'that the old one keeps';

create or replace function pgflow.leave_(me bigint, why text, t timestamptz)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  ended bigint;
begin
  delete from pgflow.parked where run_id = me;
  delete from pgflow.line_run where run_id = me;
  delete from pgflow.wait where run_id = me;
  delete from pgflow.timer where run_id = me;
  delete from pgflow.ready where run_id = me;
  delete from pgflow.held where run_id = me;
  -- The token stays, so that the worker that ended the run, and was never answered, learns that it did.
  delete from pgflow.outcome o where o.run_id = me returning o.token into ended;
  insert into pgflow.outcome (run_id, token, finished_at, status, reason) values (me, ended, t, 'continued', why);
  perform pgflow.look_again_(array[me]);
  delete from pgflow.deadline d where d.ctid = any(array(
    select k.ctid from pgflow.deadline k where k.run_id = me for update skip locked
  )) and d.run_id = me;
  delete from pgflow.step_beat where run_id = me;
  delete from pgflow.draft where run_id = me;
  perform pgflow.drop_frames_(array[me]);
  -- Results of children are sent again, to whom they are for now.
  delete from pgflow.signal s where s.chain_id = (select r.chain_id from pgflow.run r where r.run_id = me)
    and s.kind = 'c' and s.run_id = me;
  perform pgflow.close_gates_(array[me]);
end
$$;
comment on function pgflow.leave_(bigint, text, timestamptz)
  is 'Ends a generation whose place is locked, or that has ended, as continued by another';

create or replace function pgflow.bring_up_(heir pgflow.run, cut int, edit json, note jsonb, was json, t timestamptz)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  said json;
  last_seq int := cut + 1;
begin
  insert into pgflow.run select heir.*;
  if cut > 0 then
    perform pgflow.copy_units_(heir.origin_run_id, cut, heir.run_id, edit);
    perform pgflow.relabel_(heir.run_id, 0);
    perform pgflow.inherit_gates_(heir.run_id, cut);
  end if;
  if note->>'effects' = 'reuse' then
    perform pgflow.carry_(heir.origin_run_id, cut, heir.run_id);
  end if;
  -- Where the kept part has asked for children that it was given itself, the code asks for them again.
  insert into pgflow.carried (run_id, args_hash, seq, call, is_done, what, name, key, note)
  select heir.run_id, c.args_hash, c.seq, c.call, c.is_done, c.what, c.name, c.key, c.note
  from pgflow.carried c where c.run_id = heir.origin_run_id and c.what = 'child' and c.seq <= cut;
  said := json_build_object(
    'why', note->'why', 'by', note->'by', 'origin', json_build_object('run_id', heir.origin_run_id, 'seq', cut),
    'effects', note->'said',
    'dropped', (
      select json_agg(json_build_object('what', a.what, 'name', a.name, 'seq', a.seq, 'state', a.state))
      from (select * from pgflow.acts_(heir.origin_run_id, cut) limit 100) a
    ),
    'edit', note->'edit', 'input', note->'input', 'attempts', note->'attempts', 'was', was);
  perform pgflow.append_(heir.run_id, last_seq, 0, 'o', note->>'verb', said, 0, t, t);
  if note->>'said' = 'reuse' and note->>'children' is distinct from 'cancel' then
    last_seq := pgflow.adopt_children_(heir.origin_run_id, cut, heir, t, last_seq);
  elsif note->>'said' = 'compensate' then
    last_seq := pgflow.adopt_effects_(heir.origin_run_id, cut, heir.run_id, heir.chain_id, t, last_seq);
  end if;
  if heir.generation > 1 then
    last_seq := pgflow.adopt_obligations_(heir.origin_run_id, cut, heir.run_id, 0, true, t, last_seq);
  end if;
  if heir.deadline_at is not null then
    insert into pgflow.deadline (run_id, due_at) values (heir.run_id, heir.deadline_at);
  end if;
  if heir.run_at is not null then
    insert into pgflow.parked (run_id, chain_id, parked_at, lane_id, last_seq, priority)
    values (heir.run_id, heir.chain_id, t, heir.lane_id, last_seq, heir.priority);
    insert into pgflow.timer (due_at, run_id, call) values (heir.run_at, heir.run_id, 0);
  else
    insert into pgflow.ready (run_id, ready_at, lane_id, last_seq, attempt, priority, has_begun)
    values (heir.run_id, t, heir.lane_id, last_seq, 0, heir.priority, case
      when cut > 0 or note->>'said' = 'compensate'
        or pgflow.carried_saga_(heir.chain_id, heir.generation) is not null then true
    end);
  end if;
end
$$;
comment on function pgflow.bring_up_(pgflow.run, int, json, jsonb, json, timestamptz)
  is 'Inserts a run that begins with the journal of another, with the unit that says who wanted it and why, and its '
     'place';

create or replace function pgflow.edit_note_(run_id bigint, cut int, edit json)
returns jsonb
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
  select case when edit is not null then (
    select jsonb_build_object('seq', u.seq, 'name', u.name, 'was', k.name,
      'before', encode(sha256(convert_to(coalesce(u.payload::text, ''), 'UTF8')), 'hex'),
      'after', encode(sha256(convert_to(edit::text, 'UTF8')), 'hex'))
    from pgflow.unit u join pgflow.unit_kind k on k.kind = u.kind where u.run_id = edit_note_.run_id and u.seq = cut
  ) end
$$;
comment on function pgflow.edit_note_(bigint, int, json) is 'Hashes of a result before and after it was edited';

create or replace function pgflow.heir_of_(
  origin pgflow.run, cut int, input json, mode text, attempts int, timeout_seconds float8, t timestamptz
)
returns pgflow.run
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  heir pgflow.run := origin;
  own text := pgflow.own_stem_(origin.root, origin.generation);
  seeds jsonb;
  keys jsonb;
begin
  if attempts is not null and attempts < 1 then
    raise exception using errcode = 'PF003', message = format('attempts must be at least 1, not %s', attempts);
  end if;
  perform pgflow.check_start_(0, null, timeout_seconds, null, null, origin.tenant, null, t);
  if input is not null then
    if cut > 0 then
      raise exception using errcode = 'PF003',
        message = 'the input cannot be another where a part of the journal is kept, which rests on it',
        hint = 'Restart the run, or fork it at 0.';
    end if;
    perform pgflow.check_input_(input);
  end if;
  seeds := pgflow.segments_(origin.heritage->'seeds', own, cut);
  keys := pgflow.segments_(origin.heritage->'keys', own, cut);
  if mode = 'reuse' then
    seeds := seeds || jsonb_build_array(
      jsonb_build_array(null, (
        select s.stem from pgflow.segment_rows_(pgflow.segments_(origin.heritage->'seeds', own, 2147483647)) s
        order by s.n desc limit 1
      )));
  end if;
  heir.run_id := nextval('pgflow.run_id_seq');
  heir.created_at := t;
  heir.run_at := case when origin.run_at > t and cut = 0 then origin.run_at end;
  heir.deadline_at := case
    when timeout_seconds is not null then greatest(t, heir.run_at) + timeout_seconds * interval '1 second'
    when origin.deadline_at > t then origin.deadline_at
  end;
  heir.input := coalesce(input, origin.input);
  heir.origin_run_id := origin.run_id;
  heir.origin_seq := cut;
  heir.start_id := null;
  heir.labels := nullif(pgflow.labels_at_start_(origin.run_id, origin.labels), '{}');
  heir.heritage := jsonb_strip_nulls(jsonb_build_object(
    'began_us', case when cut > 0 then coalesce((origin.heritage->>'began_us')::bigint,
      pgflow.micros_(greatest(origin.created_at, origin.run_at))) end,
    'keys', nullif(keys, '[]'), 'attempts', attempts,
    -- Of an imported run; others have them in `carried`.
    'children', (
      select jsonb_agg(c) from jsonb_array_elements(origin.heritage->'children') c
      where exists (select from pgflow.unit u where u.run_id = origin.run_id and u.seq <= cut and u.kind = 'k'
        and u.call = (c->>0)::int)
    ))) || jsonb_build_object('seeds', seeds);
  return heir;
end
$$;
comment on function pgflow.heir_of_(pgflow.run, int, json, text, int, float8, timestamptz)
  is 'The row of a run that begins with the journal of another; whose chain it is, is left to the caller';

create or replace function pgflow.begin_again_(
  verb text, chain bigint, cut int, from_step text, input json, edit json, effects text, children text,
  attempts int, timeout_seconds float8, why text, sent_by text,
  out run_id bigint, out generation int, out lane_id int, out seq int
)
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
  old pgflow.run;
  heir pgflow.run;
  place record;
  mode text;
  note jsonb;
  shown text;
  t timestamptz;
begin
  perform pgflow.lock_chain_(chain);
  select r.* into old from pgflow.run r where r.run_id = pgflow.newest_run_(chain);
  if not found then
    raise exception using errcode = 'PF001', message = 'the history of this run was removed meanwhile';
  end if;
  shown := quote_literal(old.key);
  if exists (select from pgflow.imported i where i.run_id = old.run_id) then
    raise exception using errcode = 'PF006', message = format('run %s was imported: it is history', shown),
      hint = 'Fork it: the fork is a run of this database.';
  end if;
  select * into place from pgflow.seize_(old.run_id, shown, verb);
  t := pgflow.now_();
  if from_step is not null then
    if cut is not null then
      raise exception using errcode = 'PF003', message = 'say a unit or a step, not both';
    end if;
    cut := pgflow.cut_before_(old.run_id, from_step);
  elsif verb = 'retry' then
    if place.was->>'status' <> 'failed' then -- another has retried it meanwhile
      raise exception using errcode = 'PF006',
        message = format('run %s is %s: only a stuck or failed run can be retried', shown, place.was->>'status'),
        hint = 'Say from which step, or restart it.';
    end if;
    cut := pgflow.cut_to_retry_(old.run_id);
  end if;
  if pgflow.awaits_end_(old.run_id) then
    raise exception using errcode = 'PF006',
      message = format('run %s waits until %s', shown, case
        when exists (select from pgflow.replacement p where p.run_id = old.run_id)
          then 'the one that it replaces has ended'
        else 'the runs of its batch have ended' end),
      hint = 'It has done nothing yet. Start another in its place with the same key, or cancel it.';
  end if;
  if place.was->>'status' <> 'cancelled' and pgflow.is_undoing_(old.run_id, old.origin_seq) then
    raise exception using errcode = 'PF006',
      message = format('run %s is taking back effects of its dropped part', shown),
      hint = 'Let it finish first; pgflow.obligations lists what waits for a person.';
  end if;
  perform pgflow.check_cut_(old.run_id, cut, edit, false);
  mode := pgflow.check_acts_(old.run_id, cut, effects, false);
  if place.was->>'status' in ('completed', 'failed', 'cancelled') then
    perform pgflow.withdraw_(old.run_id, shown);
  end if;
  heir := pgflow.heir_of_(old, cut, input, mode, attempts, timeout_seconds, t);
  heir.generation := old.generation + 1;
  heir.lane_id := place.lane_id;
  heir.priority := place.priority;
  if old.parent_run_id is null then
    heir.root_run_id := heir.run_id;
  end if;
  note := jsonb_build_object('verb', verb, 'why', pgflow.told_(why, 4096), 'by', pgflow.sender_(sent_by),
    'effects', mode, 'said', effects,
    'edit', pgflow.edit_note_(old.run_id, cut, edit), 'input', case when input is not null then 'edited' end,
    'attempts', attempts, 'children', children);

  perform pgflow.leave_(old.run_id, verb, t);
  perform pgflow.note_taken_back_(chain, old.run_id, old.generation, cut);
  perform pgflow.bring_up_(heir, cut, edit, note, place.was, t);
  perform pgflow.move_owed_(old.run_id, cut, heir.run_id);
  perform pgflow.hand_on_debts_(old.run_id, cut, effects,
    format('the run goes on as generation %s', heir.generation), t);
  perform pgflow.move_words_(old.run_id, chain, heir.run_id, t);
  perform pgflow.move_locks_(old.run_id, cut, heir.run_id, t);
  perform pgflow.put_back_(chain, old.run_id, cut, chain);
  perform pgflow.send_results_(old.run_id, cut, heir.run_id, chain, t);
  perform pgflow.nudge_asked_(array[chain]);
  perform pgflow.drop_children_(old.run_id, cut, children, effects is not distinct from 'reuse');
  perform pgflow.return_reservations_(array[old.run_id]);
  run_id := heir.run_id;
  generation := heir.generation;
  lane_id := heir.lane_id;
  seq := cut;
end
$$;
comment on function pgflow.begin_again_(text, bigint, int, text, json, json, text, text, int, float8, text, text)
  is 'Puts a new generation in the place of a chain''s newest one, with its journal up to a cut';

create or replace function pgflow.rewind_run(
  key text, to_seq int default null, from_step text default null, edit json default null, effects text default null,
  children text default 'refuse', attempts int default null, timeout_seconds float8 default null,
  why text default 'rewound', tenant text default '', sent_by text default null,
  out run_id bigint, out generation int, out lane_id int, out seq int
)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
begin
  select b.run_id, b.generation, b.lane_id, b.seq into run_id, generation, lane_id, seq
  from pgflow.begin_again_('rewind', pgflow.chain_of_(tenant, key), to_seq, from_step, null, edit, effects, children,
    attempts, timeout_seconds, why, sent_by) b;
end
$$;
comment on function pgflow.rewind_run(text, int, text, json, text, text, int, float8, text, text, text)
  is 'Takes a run back to a unit of its journal, or before a step, and lets it go on from there as its next '
     'generation; PF006 while it runs, PF020 if what is dropped has acted';
--! grant rewind_run to pgflow_operator

create or replace function pgflow.restart_run(
  key text, input json default null, effects text default null, children text default 'refuse',
  attempts int default null,
  timeout_seconds float8 default null, why text default 'restarted', tenant text default '', sent_by text default null,
  out run_id bigint, out generation int, out lane_id int
)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
begin
  select b.run_id, b.generation, b.lane_id into run_id, generation, lane_id
  from pgflow.begin_again_('restart', pgflow.chain_of_(tenant, key), 0, null, input, null, effects, children, attempts,
    timeout_seconds, why, sent_by) b;
end
$$;
comment on function pgflow.restart_run(text, json, text, text, int, float8, text, text, text)
  is 'Begins a run anew as its next generation, with the same input or another; PF006 while it runs, PF020 if it has '
     'acted';
--! grant restart_run to pgflow_operator

create or replace function pgflow.fork_run(
  key text, new_key text default null, at_seq int default null, from_step text default null, edit json default null,
  input json default null,
  effects text default null, with_mail boolean default false, generation int default null, labels jsonb default null,
  attempts int default null,
  timeout_seconds float8 default null, why text default 'forked', tenant text default '', sent_by text default null,
  out run_key text, out run_id bigint, out is_new boolean, out lane_id int, out seq int
)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
  chain bigint := pgflow.chain_of_(tenant, key);
  request text;
  origin pgflow.run;
  heir pgflow.run;
  known pgflow.run;
  mode text;
  note jsonb;
  t timestamptz := pgflow.now_();
begin
  tenant := pgflow.own_tenant_(tenant);
  perform pgflow.check_key_(new_key);
  perform pgflow.check_start_(0, null, timeout_seconds, labels, null, tenant, null, t),
    pgflow.check_json_(edit, 'an edit'), pgflow.check_json_(input, 'the input');
  perform pg_advisory_xact_lock_shared(pgflow.latch_('retention'));
  request := md5(jsonb_build_array(chain, at_seq, from_step, pgflow.as_compared_(edit), pgflow.as_compared_(input),
    effects, with_mail, generation, labels, attempts, timeout_seconds)::text);
  if new_key is not null then
    select r.* into known from pgflow.run_key k join pgflow.run r on r.run_id = k.chain_id
    where k.tenant = tenant and k.key = new_key;
  end if;
  if known.run_id is null then
    select r.* into origin from pgflow.run r
    where r.run_id = case when generation is null then pgflow.newest_run_(chain) when generation = 1 then chain else (
      select g.run_id from pgflow.run g where g.chain_id = chain and g.generation = fork_run.generation
        and g.generation > 1
    ) end;
    if origin.run_id is null then
      raise exception using errcode = 'PF003',
        message = format('run %s has no generation %s', quote_literal(key), generation);
    end if;
    if from_step is not null and at_seq is not null then
      raise exception using errcode = 'PF003', message = 'say a unit or a step, not both';
    end if;
    seq := case when from_step is not null then pgflow.cut_before_(origin.run_id, from_step) else coalesce(at_seq, (
      select max(u.seq) from pgflow.unit u where u.run_id = origin.run_id and u.kind <> 'n'
    ), 0) end;
    perform pgflow.check_cut_(origin.run_id, seq, edit, true);
    mode := pgflow.check_acts_(origin.run_id, seq, effects, true);
    heir := pgflow.heir_of_(origin, seq, input, mode, attempts, timeout_seconds, t);
    heir.chain_id := heir.run_id;
    heir.root_run_id := heir.run_id;
    heir.generation := 1;
    heir.parent_run_id := null;
    heir.parent_call := null;
    heir.close_policy := null;
    heir.root := pgflow.uuid7_();
    heir.key := coalesce(new_key, heir.root::text);
    heir.labels := coalesce(labels, heir.labels);
    heir.heritage := heir.heritage || jsonb_build_object('request', request);
    insert into pgflow.run_key (tenant, key, chain_id, root) values (heir.tenant, heir.key, heir.run_id, heir.root)
    on conflict do nothing;
    if not found then
      select r.* into known from pgflow.run_key k join pgflow.run r on r.run_id = k.chain_id
      where k.tenant = tenant and k.key = new_key;
    end if;
  end if;
  if known.run_id is not null then
    if known.heritage->>'request' is distinct from request then
      raise exception using errcode = 'PF002',
        message = format('key %s already names another run', quote_literal(new_key)),
        hint = 'Use another key; with the same arguments it would be the same fork.';
    end if;
    run_key := known.key;
    run_id := known.run_id;
    is_new := false;
    lane_id := known.lane_id;
    seq := known.origin_seq;
    return;
  end if;

  note := jsonb_build_object('verb', 'fork', 'why', pgflow.told_(why, 4096), 'by', pgflow.sender_(sent_by),
    'effects', mode, 'said', effects,
    'edit', pgflow.edit_note_(origin.run_id, seq, edit), 'input', case when input is not null then 'edited' end,
    'attempts', attempts);
  if seq > 0 then
    perform pgflow.lend_saga_(origin, heir.chain_id);
  end if;
  perform pgflow.bring_up_(heir, seq, edit, note, null, t);
  perform pgflow.send_results_(origin.run_id, seq, heir.run_id, heir.chain_id, t);
  if with_mail then
    perform pgflow.put_back_(chain, origin.run_id, seq, heir.chain_id);
  end if;
  run_key := heir.key;
  run_id := heir.run_id;
  is_new := true;
  lane_id := heir.lane_id;
end
$$;
comment on function pgflow.fork_run(text, text, int, text, json, json, text, boolean, int, jsonb, int, float8, text,
  text, text)
  is 'Starts a run that begins with another''s journal up to a unit, or before a step, and goes on by itself; the '
     'origin is not touched. PF020 if what is left out has acted, PF002 if the new key is taken';
--! grant fork_run to pgflow_operator
