-- Waking: what a message, a timer or a person's word does to a run that no worker holds.
--
-- Each side publishes before it looks. A sender inserts its message and a nudge, and after its commit
-- calls wake, which reads nudges and then, in later statements and so with a newer view, looks at the
-- run. Whoever is about to change the run's place has locked its lease (or its row in another place)
-- before it looks at the mailbox. So there is one rule: a wake deletes the nudges that it saw before it
-- looked, and of those only the ones of runs that it found where they can be looked at:
--
--   parked           and locked by this wake, which moves the run if it has a reason to go on;
--   a lease          that this wake could lock: no one that looked before the message was committed can
--                    still be on the way to park, hold or end the run, and the next look sees it;
--   ready, held      seen there, if only signals wait (the next holder looks); locked, if people ask;
--   ended            and the mail has been put aside.
--
-- Any other nudge stays: the run's row was locked elsewhere, or the run was on its way from one place or
-- generation to the next. It is counted as busy, and the next poll of any worker looks again. A nudge
-- whose sender died before it could wake is found by the same poll. Nobody waits for a lock here, but for the pools of
-- runs that are ended by force, which come last.
--
-- So a park, an ordinary end and a flush need no nudge of their own. Only who takes a run from its lease
-- without taking its mail (hold, release, reap, continue) leaves a nudge, if people have asked something;
-- and who ends a run that no worker holds, since the next holder will not come.
-- A cancel brings a run that is stuck on once, and is marked: if the run gets stuck again before it could
-- take the cancel, it stays so, with the cancel in its mailbox, and does not go round and round.
--
-- Statistics of these tables may be from a moment when they had no rows, however many have come since. What
-- must be looked up one by one says so then with `offset 0`, which keeps the planner from reading all of a
-- table instead; and a question of a run's own timers hides the time from the index of what is due.
--
-- Must run in a READ COMMITTED transaction of its own.

create or replace function pgflow.end_by_force_(me bigint, chain bigint, last_seq int, token bigint, t timestamptz)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  request record;
begin
  select s.payload->>'why' as why, s.payload->>'reason' as reason, s.sent_by, s.name = 'force' as is_forced into request
  from pgflow.signal s where s.chain_id = chain and s.kind = 'x' order by s.name = 'force' desc, s.signal_id limit 1;
  select o.seq into last_seq from pgflow.owe_by_force_(me, chain, t, last_seq) o;
  perform pgflow.append_(me, last_seq + 1, 0, 'o', 'cancel', case
    when request.is_forced then json_build_object('why', request.why, 'by', request.sent_by, 'force', true)
    when request.reason is not null
      then json_build_object('why', request.why, 'by', request.sent_by, 'reason', request.reason)
    else json_build_object('why', request.why, 'by', request.sent_by)
  end, coalesce(token, 0), t, t);
  insert into pgflow.outcome (run_id, token, finished_at, status, reason)
  values (me, token, t, 'cancelled', request.why);
  delete from pgflow.signal where chain_id = chain and kind in ('x', 'p', 'r', 't');
  perform pgflow.close_gates_(array[me]);
  perform pgflow.forget_events_(array[chain]);
  perform pgflow.end_locks_(array[me], t);
  perform pgflow.drop_frames_(array[me]);
  perform pgflow.put_mail_aside_(array[chain], t);
end
$$;
comment on function pgflow.end_by_force_(bigint, bigint, int, bigint, timestamptz)
  is 'Writes the outcome of a run that is cancelled without its code, who did it, and what it leaves owed';

create or replace function pgflow.note_operator_(
  me bigint, chain bigint, last_word bigint, inout last_seq int, t timestamptz
)
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  request record;
begin
  for request in
    with gone as (
      delete from pgflow.signal s where s.chain_id = chain and s.kind in ('p', 'r', 't') and s.signal_id <= last_word
      returning s.*
    )
    select * from gone order by signal_id
  loop
    last_seq := last_seq + 1;
    perform pgflow.append_(me, last_seq, 0, 'o', request.name,
      json_build_object('why', request.payload->'why', 'by', request.sent_by), 0, t, t);
  end loop;
end
$$;
comment on function pgflow.note_operator_(bigint, bigint, bigint, int, timestamptz)
  is 'Turns requests to pause or go on, up to the last one seen, into units that say who did what and why';

create or replace function pgflow.wake_parked_(ids bigint[], t timestamptz)
returns table (run_id bigint, lane_id int)
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
#variable_conflict use_column
begin
  delete from pgflow.wait where run_id = any(ids);
  delete from pgflow.timer where run_id = any(ids);
  return query
    with gone as (
      delete from pgflow.parked p where p.run_id = any(ids) returning p.*
    )
    insert into pgflow.ready as r (run_id, ready_at, lane_id, last_seq, attempt, priority, has_begun)
    select g.run_id, t, g.lane_id, g.last_seq, 0, g.priority, case when g.token is not null then true end from gone g
    order by g.run_id
    returning r.run_id, r.lane_id;
end
$$;
comment on function pgflow.wake_parked_(bigint[], timestamptz)
  is 'Parked -> ready, for runs whose parked rows are locked';

create or replace function pgflow.apply_controls_(
  chain bigint, me bigint, t timestamptz, out woken_lane int, out ended boolean, out looked boolean
)
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
declare
  asked record;
  place record;
  starts_at timestamptz;
  is_early boolean := false;
  seq int;
  lane int;
begin
  ended := false;
  looked := false;
  select bool_or(s.kind = 'x') as cancel, bool_or(s.kind = 'x' and s.name = 'force') as force,
         (array_agg(s.kind order by s.signal_id desc) filter (where s.kind in ('p', 'r', 't')))[1] as latest,
         max(s.signal_id) as last_word,
         (array_agg(s.payload->>'why' order by s.signal_id desc) filter (where s.kind = 'p'))[1] as pause_why,
         (array_agg(s.sent_by order by s.signal_id desc) filter (where s.kind = 'p'))[1] as pause_by
  into asked
  from pgflow.signal s where s.chain_id = chain and s.kind in ('x', 'p', 'r', 't');
  if asked.cancel is null then
    return;
  end if;

  -- The run's place, locked; at most one of the three is there, and none if a worker holds it.
  select p.lane_id, p.last_seq, 0 as attempt, p.priority, p.token is not null as has_begun, 'parked' as place into place
  from pgflow.parked p where p.run_id = me for update skip locked;
  if not found then
    select abs(r.lane_id) as lane_id, r.last_seq, r.attempt, r.priority, r.has_begun, 'ready' as place into place
    from pgflow.ready r where r.run_id = me for update skip locked;
  end if;
  if not found then
    select h.lane_id, h.last_seq, h.attempt, h.priority, h.has_begun, h.state as place into place
    from pgflow.held h where h.run_id = me for update skip locked;
  end if;
  if not found then
    return;
  end if;
  looked := true;
  seq := place.last_seq;
  t := greatest(t, pgflow.now_()); -- read before this lock, it may be older than what a worker has recorded meanwhile

  if asked.force or (asked.cancel and place.has_begun is not true) then
    perform pgflow.end_by_force_(me, chain, seq, null, t);
    -- Until this is committed others see the run where it was, and leave its mail to the next holder.
    insert into pgflow.nudge (chain_id) values (chain);
    ended := true;
  elsif asked.cancel or asked.latest in ('r', 't') then
    if place.has_begun is not true then
      select r.run_at into starts_at from pgflow.run r where r.run_id = me and r.run_at > t;
      is_early := starts_at is not null or pgflow.awaits_end_(me);
    end if;
    if place.place = 'ready' or (place.place = 'parked' and is_early) then
      delete from pgflow.signal s
      where s.chain_id = chain and s.kind in ('p', 'r', 't') and s.signal_id <= asked.last_word;
      return;
    end if;
    select n.last_seq into seq from pgflow.note_operator_(me, chain, asked.last_word, seq, t) n;
    if asked.cancel and place.place <> 'parked' then
      update pgflow.signal s set has_had_its_try = true where s.chain_id = chain and s.kind = 'x';
    end if;
    if is_early then
      insert into pgflow.parked (run_id, chain_id, parked_at, lane_id, last_seq, priority)
      values (me, chain, t, place.lane_id, seq, place.priority);
      insert into pgflow.timer (due_at, run_id, call) select starts_at, me, 0 where starts_at is not null;
    else
      insert into pgflow.ready (run_id, ready_at, lane_id, last_seq, attempt, priority, has_begun)
      values (me, t, place.lane_id, seq, 0, place.priority, place.has_begun);
      woken_lane := place.lane_id;
    end if;
  elsif place.place in ('paused', 'stuck') then
    delete from pgflow.signal s
    where s.chain_id = chain and s.kind in ('p', 'r', 't') and s.signal_id <= asked.last_word;
    return;
  else
    select n.last_seq into seq from pgflow.note_operator_(me, chain, asked.last_word, seq, t) n;
    insert into pgflow.held (run_id, held_at, lane_id, last_seq, attempt, priority, has_begun, state, reason, held_by)
    values (me, t, place.lane_id, seq, place.attempt, place.priority, place.has_begun,
      'paused', coalesce(left(asked.pause_why, 255), 'paused'), asked.pause_by);
  end if;

  if place.place = 'parked' then
    delete from pgflow.parked where run_id = me;
    delete from pgflow.wait where run_id = me;
    delete from pgflow.timer where run_id = me;
  elsif place.place = 'ready' then
    delete from pgflow.ready r where r.run_id = me returning r.lane_id into lane;
    if lane < 0 then
      delete from pgflow.line_run where run_id = me;
    end if;
  else
    delete from pgflow.held where run_id = me;
  end if;
end
$$;
comment on function pgflow.apply_controls_(bigint, bigint, timestamptz)
  is 'Does what people asked of a run that no worker holds; looked = its place was there to be locked';

create or replace function pgflow.free_settled_(chains bigint[], ids bigint[], t timestamptz)
returns table (run_id bigint, lane_id int)
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
#variable_conflict use_column
begin
  return query
    with freed as (
      delete from pgflow.held h where h.run_id = any(array(
        select k.run_id from unnest(chains, ids) as s (c, i) join pgflow.held k on k.run_id = s.i
        where k.state = 'stuck' and k.reason = 'effect'
          and exists (select from pgflow.signal m where m.chain_id = s.c and m.kind = 'e'
            and (m.run_id = s.i or m.payload->>'obligation' is not null) offset 0)
        order by k.run_id for update of k skip locked
      )) returning h.*
    )
    insert into pgflow.ready as r (run_id, ready_at, lane_id, last_seq, attempt, priority, has_begun)
    select f.run_id, t, f.lane_id, f.last_seq, 0, f.priority, true from freed f order by f.run_id
    returning r.run_id, r.lane_id;
end
$$;
comment on function pgflow.free_settled_(bigint[], bigint[], timestamptz)
  is 'Held -> ready for runs that are stuck for want of an effect''s outcome, once its outcome has been settled';

create or replace function pgflow.tell_workers_(lanes int[], mail bigint[])
returns void
language sql
volatile
set search_path = pg_catalog, pg_temp
as $$
  -- A notification holds 8,000 bytes: 350 numbers of at most 20 digits each, with a comma.
  select pg_notify('pgflow_work', string_agg(p.part, ';'))
  from (
    select 'r' || string_agg(l.id::text, ',') as part, l.n / 350 as page, 1 as kind
    from (select id, row_number() over (order by id) - 1 as n from (select distinct unnest(lanes) as id) d) l
    group by page
    union all
    select 'm' || string_agg(m.id::text, ','), m.n / 350, 2
    from (select id, row_number() over (order by id) - 1 as n from (select distinct unnest(mail) as id) d) m
    group by m.n / 350
  ) p
  group by p.kind, p.page
$$;
comment on function pgflow.tell_workers_(int[], bigint[])
  is 'Notifies workers of lanes with ready runs and of leased runs with mail, once the transaction is committed: '
     '`r1,2` or `m7,8`';

create or replace function pgflow.wake(chains bigint[] default null, max int default 1000, tell boolean default true)
returns table (lanes int[], mail bigint[], ended bigint[], busy int)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set plan_cache_mode = force_generic_plan -- else all is planned anew for each call
as $$
declare
  nudged bigint[];
  nudges bigint[];
  seen bigint[];
  ids bigint[];
  looked bigint[];
  ready_ids bigint[];
  keep bigint[];
  control record;
  done record;
  t timestamptz;
begin
  lanes := '{}';
  mail := '{}';
  ended := '{}';
  busy := 0;
  chains := pgflow.own_runs_(chains);
  if chains is not null then
    chains := array(select c from unnest(chains) c where c is not null); -- of any dimensions
  end if;
  perform set_config('synchronous_commit', 'off', true);
  -- Only nudges seen before looking may be deleted after it: a later one speaks of a later message.
  if chains is null then
    select array_agg(k.chain_id), array_agg(k.nudge_id) into nudged, nudges from (
      select n.chain_id, n.nudge_id from pgflow.nudge n order by n.chain_id, n.nudge_id
      limit pgflow.at_most_(max) for update skip locked
    ) k;
  else
    select array_agg(k.chain_id), array_agg(k.nudge_id) into nudged, nudges from (
      select n.chain_id, n.nudge_id from pgflow.nudge n where n.chain_id = any(chains)
      order by n.chain_id, n.nudge_id for update skip locked
    ) k;
  end if;
  seen := coalesce(chains, nudged);
  if seen is null then
    return next;
    return;
  end if;

  select array_agg(c order by c), array_agg(pgflow.newest_run_(c) order by c) into seen, ids
  from (select distinct c from unnest(seen) c) d;
  looked := array(
    select k.run_id from (
      select p.run_id from pgflow.parked p where p.run_id = any(ids) order by p.run_id for update skip locked
    ) k
  );
  t := pgflow.now_();

  for control in
    select s.c as chain, s.i as me from unnest(seen, ids) as s (c, i)
    where exists (select from pgflow.signal m where m.chain_id = s.c and m.kind in ('x', 'p', 'r', 't') offset 0)
    order by s.i
  loop
    select * into done from pgflow.apply_controls_(control.chain, control.me, t);
    lanes := lanes || array_remove(array[done.woken_lane], null);
    if done.ended then
      ended := ended || control.me;
    end if;
    if done.looked then
      looked := looked || control.me;
    end if;
  end loop;
  if ended <> '{}' then
    perform pgflow.wind_up_(ended, t);
  end if;

  ready_ids := array(
    select p.run_id from pgflow.parked p
    where p.run_id = any(looked) and (
      exists (select from pgflow.timer m where m.run_id = p.run_id and m.due_at + interval '0' <= t offset 0)
      or exists (
        select from pgflow.wait w join pgflow.signal s on s.chain_id = p.chain_id and s.kind = w.kind
        where w.run_id = p.run_id and (
          w.kind = 'c' and s.run_id = p.run_id and s.call = any(w.calls) or w.kind = 's' and s.name = w.name
          or w.kind in ('g', 'l') and s.run_id = p.run_id and s.call = w.call or w.kind = 'u'
        )
        offset 0
      )
      or exists (select from pgflow.signal s where s.chain_id = p.chain_id and s.kind = 'e'
        and (s.run_id = p.run_id or s.payload->>'obligation' is not null) offset 0)
    )
  );
  select lanes || coalesce(array_agg(w.lane_id), '{}') into lanes from pgflow.wake_parked_(ready_ids, t) w;

  -- Who says what became of an effect brings on the run that is stuck for want of it.
  if exists (select from pgflow.signal m where m.chain_id = any(seen) and m.kind = 'e') then
    select lanes || coalesce(array_agg(f.lane_id), '{}'), looked || coalesce(array_agg(f.run_id), '{}')
    into lanes, looked
    from pgflow.free_settled_(seen, ids, t) f;
  end if;

  -- A worker that holds the run gets a notification of its mail; mail of finished runs is put aside.
  mail := array(
    select e.run_id from unnest(seen, ids) as s (c, i)
    cross join lateral (select l.run_id from pgflow.lease l where l.run_id = s.i offset 0) e
    where exists (select from pgflow.signal m where m.chain_id = s.c offset 0)
  );
  if mail <> '{}' then
    looked := looked || array(
      select k.run_id from (
        select e.run_id from pgflow.lease e where e.run_id = any(mail) order by e.run_id for no key update skip locked
      ) k
    );
  end if;
  if not ids <@ looked then
    -- The history of the chain was removed during the send.
    delete from pgflow.signal m where m.chain_id = any(array(
      select s.c from unnest(seen, ids) as s (c, i)
      where s.i <> all(looked) and not exists (select from pgflow.run r where r.run_id = s.c offset 0)
    ));
  end if;
  perform pgflow.put_mail_aside_(array(
    select s.c from unnest(seen, ids) as s (c, i) join pgflow.outcome o on o.run_id = s.i and o.status <> 'continued'
    where exists (select from pgflow.signal m where m.chain_id = s.c offset 0)
    for key share of o skip locked -- one that is just being rewound goes on to take its mail
  ), t);

  keep := array(
    select s.c from unnest(seen, ids) as s (c, i)
    where s.i <> all(looked)
      and exists (select from pgflow.signal m where m.chain_id = s.c offset 0)
      and (
        exists (select from pgflow.signal m where m.chain_id = s.c and m.kind in ('x', 'p', 'r', 't') offset 0)
        or exists (select from pgflow.signal m where m.chain_id = s.c and m.kind = 'e' offset 0)
          and not exists (select from pgflow.ready r where r.run_id = s.i offset 0)
          and not exists (select from pgflow.held h where h.run_id = s.i
            and (h.state <> 'stuck' or h.reason <> 'effect') offset 0)
        or not exists (select from pgflow.ready r where r.run_id = s.i offset 0)
        and not exists (select from pgflow.held h where h.run_id = s.i offset 0)
      )
  );
  delete from pgflow.nudge n using unnest(nudged, nudges) as g (chain, id)
  where n.chain_id = g.chain and n.nudge_id = g.id and g.chain <> all(keep);
  -- Of those that were not read, a full sweep knows only that there may be some: the sweeper looks again soon.
  busy := cardinality(keep) + (chains is null and cardinality(nudged) >= max)::int
    + (exists (select from pgflow.lock_nudge n where n.nudged_at > t - interval '1 second'))::int;
  if tell and (lanes <> '{}' or mail <> '{}') then
    perform pgflow.tell_workers_(lanes, mail);
  end if;
  if ended <> '{}' then
    perform pgflow.return_reservations_(ended);
  end if;
  return next;
end
$$;
comment on function pgflow.wake(bigint[], int, boolean)
  is 'Looks at the runs of these chains, or of all nudged ones, moves those with a reason to go on, and notifies '
     'workers unless tell is false; returns lanes made ready, leased runs with mail, and runs ended';
--! grant wake to pgflow_tenant, pgflow_client, pgflow_worker, pgflow_operator, pgflow_approver, pgflow_speaker

create or replace function pgflow.wake_due_(max int, t timestamptz)
returns int[]
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set plan_cache_mode = force_generic_plan -- else all is planned anew for each call
as $$
declare
  due bigint[];
  locked bigint[];
  woken int[];
begin
  due := array(select m.run_id from pgflow.timer m where m.due_at <= t order by m.due_at limit max);
  if due = '{}' then
    return array[]::int[];
  end if;
  locked := array(
    select k.run_id from (
      select p.run_id from pgflow.parked p where p.run_id = any(due) order by p.run_id for update skip locked
    ) k
  );
  -- Whoever held the row before may have parked the run again, for later: look once more.
  locked := array(
    select i from unnest(locked) i
    where exists (select from pgflow.timer m where m.run_id = i and m.due_at + interval '0' <= t offset 0)
  );
  select array_agg(w.lane_id) into woken from pgflow.wake_parked_(locked, t) w;
  return coalesce(woken, '{}');
end
$$;
comment on function pgflow.wake_due_(int, timestamptz) is 'Parked -> ready for runs with a timer that is due';

create or replace function pgflow.expire_runs_(max int, t timestamptz)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
declare
  expired bigint[];
begin
  with gone as (
    delete from pgflow.deadline d where d.ctid = any(array(
      select k.ctid from pgflow.deadline k where k.due_at <= t order by k.due_at limit max for update skip locked
    )) returning d.run_id
  )
  select array_agg(run_id) into expired from gone;
  if expired is null then
    return;
  end if;
  with told as (
    insert into pgflow.signal (chain_id, sent_at, kind, name, sent_by, payload)
    select r.chain_id, t, 'x', 'cancel', 'pgflow', json_build_object('why', 'deadline', 'reason', 'deadline')
    from pgflow.run r where r.run_id = any(expired) and not exists (select from pgflow.outcome o
      where o.run_id = r.run_id)
    returning chain_id
  )
  insert into pgflow.nudge (chain_id) select chain_id from told;
end
$$;
comment on function pgflow.expire_runs_(int, timestamptz) is 'Posts a cancel to runs whose deadline has passed';

create or replace function pgflow.poll(max int default 1000)
returns table (lanes int[], mail bigint[], ended bigint[], busy int, next_due_seconds float8, newest_lane int)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
declare
  t timestamptz := pgflow.now_();
  next_due timestamptz;
  breached int[];
  durably text;
  has_more boolean;
begin
  perform set_config('synchronous_commit', 'off', true);
  has_more := pgflow.match_events_(max);  -- first, before anything is written
  perform pgflow.expire_runs_(max, t);
  perform pgflow.expire_lines_(max, t);
  perform pgflow.notice_silence_(max, t);
  breached := pgflow.notice_breaches_(max, t);
  perform pgflow.sweep_locks_(max, t);
  durably := current_setting('synchronous_commit');  -- on, if a lock was won
  select w.lanes, w.mail, w.ended, w.busy + has_more::int into lanes, mail, ended, busy
  from pgflow.wake(null, max, false) w;
  lanes := lanes || breached || pgflow.wake_due_(max, t) || pgflow.begin_replacements_(max, t)
    || pgflow.begin_batches_(max, t) || pgflow.tend_lines_(max, t);
  if durably <> 'off' then
    perform set_config('synchronous_commit', durably, true);
  end if;
  select least(
    (select m.due_at from pgflow.timer m order by m.due_at limit 1), (select d.due_at from pgflow.deadline d
      order by d.due_at limit 1),
    (select b.look_at from pgflow.effect_beat b order by b.look_at limit 1),
    (select l.expires_at from pgflow.lock l where l.expires_at is not null order by l.expires_at limit 1),
    -- One that is due already was locked, perhaps for long: it is found again by a later poll.
    (select o.due_at from pgflow.owed o where o.kind = 'obligation' and o.detail->>'state' = 'open' and o.due_at > t
      order by o.due_at limit 1)
  ), (select l.lane_id from pgflow.lane l order by l.lane_id desc limit 1) into next_due, newest_lane;
  next_due_seconds := extract(epoch from next_due - pgflow.now_());
  return next;
end
$$;
comment on function pgflow.poll(int)
  is 'The sweep of every worker: events that runs wait for, expired runs, effects without a beat, obligations that are '
     'due, locks, nudges, due timers; also says in how many seconds the next of these is due, and which lane is the '
     'newest, for a worker to notice one that it serves';
--! grant poll to pgflow_worker

create or replace function pgflow.check_waits_()
returns table (invariant text, detail text)
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  return query
  select 'a parked run can be woken', format('run %s waits for nothing', p.run_id)
  from pgflow.parked p
  where not exists (select from pgflow.wait w where w.run_id = p.run_id)
    and not exists (select from pgflow.timer m where m.run_id = p.run_id)
    and not exists (select from pgflow.replacement r where r.run_id = p.run_id)
    and not exists (select from pgflow.batch b where b.batch_id = p.run_id and b.begun_at is null)
  union all
  select 'a wait with a time-out has its timer', format('call %s of run %s', w.call, w.run_id)
  from pgflow.wait w join pgflow.unit u on u.run_id = w.run_id and u.call = w.call and u.kind = 't'
  where not exists (select from pgflow.timer m where m.run_id = w.run_id and m.call = w.call)
  union all
  select 'only parked runs wait', format('run %s', w.run_id)
  from (select run_id from pgflow.wait union select run_id from pgflow.timer) w
  where not exists (select from pgflow.parked p where p.run_id = w.run_id)
  union all
  select 'no wake-up is lost', format('parked run %s has mail it waits for', p.run_id)
  from pgflow.parked p
  where exists (
    select from pgflow.wait w join pgflow.signal s on s.chain_id = p.chain_id and s.kind = w.kind
    where w.run_id = p.run_id and (
      w.kind = 'c' and s.run_id = p.run_id and s.call = any(w.calls) or w.kind = 's' and s.name = w.name
      or w.kind = 'e' and (s.run_id = p.run_id and s.call = w.call or s.payload->>'obligation' is not null)
      or w.kind in ('g', 'l') and s.run_id = p.run_id and s.call = w.call or w.kind = 'u'
    )
  ) and not exists (select from pgflow.nudge n where n.chain_id = p.chain_id);
end
$$;
comment on function pgflow.check_waits_() is 'A parked run waits for something that can come, and has not come';

comment on column pgflow.wait.run_id is 'The parked run';
comment on column pgflow.wait.call is 'Number of the call that waits; of children, the first of those calls';
comment on column pgflow.wait.kind
  is 's = for a signal, c = for the result of a child, e = for word of an effect or obligation, g = for the '
     'answer of a gate, l = for a lock, u = for an update';
comment on column pgflow.wait.name is 'Name of the signal, key of the lock, or child';
comment on column pgflow.wait.calls is 'Numbers of the calls that wait for a child; null where it is for a signal';

comment on column pgflow.timer.due_at is 'Time at which the run must go on';
comment on column pgflow.timer.run_id is 'The parked run';
comment on column pgflow.timer.call is 'Number of the call whose sleep, time-out or retry it is; 0 = the start';

comment on column pgflow.nudge.chain_id is 'The chain to look at';
comment on column pgflow.nudge.nudge_id is 'The number of the nudge: a wake deletes only those it saw before it looked';
