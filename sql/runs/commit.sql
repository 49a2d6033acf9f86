-- Group commit: the outcomes of many runs of one worker process in one transaction, each run fenced by
-- the token of the lease that the worker believes it holds.
--
-- The batch is one JSON document, described with all its rows by pgflow/_model/protocol.py and read by the functions
-- of runs/protocol.sql. A key without rows is left out. Each text inside it that is itself JSON travels as a string, so
-- that its exact characters are stored (jsonb would change key order, -0.0 and 1e22). Long payloads and outputs travel
-- beside the document, in `payloads`: their slot is null, and `apart` is their place there. So nothing escapes them or
-- reads them as part of another text.
--
-- The leases of runs that end, and all of a batch with questions, are locked first, in the order of run_id and skipping
-- what is locked elsewhere: `busy`, to be tried in the next batch. Everything else happens in later statements, which
-- see what was committed while a lock was waited for. No other run is locked, nor the lease of another holder: a batch
-- may wait for a key that a step of that holder has taken, and the step for its lease. Only four lock a lease: whoever
-- shows its token, a reaper, a wake (for runs with mail), and a rewind that takes over its child. So a batch may wait
-- under its leases for the needs of its children. Of those who hold a key until they commit, only a step of the same
-- holder would wait for these leases, and that step stands in line with the batch.
--
-- A run that only goes on needs no lock of its own, which would write its lease anew with every step, an eighth of a
-- step's WAL: all that must not happen before the batch is committed is that the run is given away. So the batch shares
-- the lock of its worker (see share_worker_) and reads such leases in a later statement, which sees whatever was given
-- away before; who gives runs away takes that lock alone. So a holder has one batch of a run under way, and resolves a
-- lost answer before the next: two at once are told apart by the key of their first unit, and an outcome has none.
-- Where one snapshot serves the whole transaction, leases are locked one by one.
--
-- Fast path: every lease is ours, so the units are inserted plainly; their primary key is the
-- compare-and-swap, and a duplicate (23505) makes the client send the batch again as careful. The
-- careful path reads what is there and decides `already` (these seqs exist under our token: the ack
-- of an earlier try was lost) before it looks at the lease or the outcome.
--
-- The answer is null where all is well and there is no news, else
--   {"bad": [[run_id, "already" | "lost" | "busy"], ...], "answers": [of answer_all_], "wake": [chains], "lanes":
--   [lanes], "told": [[chain, message of only_messages_], ...]}
-- `told` has results of children whose parents this worker holds.

create or replace function pgflow.verdict_(
  p_run_id bigint, p_token bigint, p_expected int, is_locked boolean, held_token bigint
)
returns text
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
declare
  next_token bigint;
  last_seq int;
begin
  select u.token into next_token from pgflow.unit u where u.run_id = p_run_id and u.seq = p_expected + 1;
  if next_token = p_token then
    return 'already';
  end if;
  if is_locked and held_token = p_token then
    select coalesce(max(u.seq), 0) into last_seq from pgflow.unit u where u.run_id = p_run_id;
    return case when last_seq = p_expected then 'ok' else 'lost' end;
  end if;
  if exists (select from pgflow.outcome o where o.run_id = p_run_id and o.token = p_token)
     or exists (select from pgflow.parked p where p.run_id = p_run_id and p.token = p_token)
     or exists (select from pgflow.held h where h.run_id = p_run_id and h.token = p_token) then
    return 'already';
  end if;
  if not is_locked and exists (select from pgflow.lease e where e.run_id = p_run_id and e.token = p_token) then
    return 'busy';
  end if;
  return 'lost';
end
$$;
comment on function pgflow.verdict_(bigint, bigint, int, boolean, bigint)
  is 'Verdict on one run of a batch: ok, already, busy or lost';

create or replace function pgflow.share_worker_(worker_id int)
returns boolean
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  salt bytea;
begin
  -- Whoever reads the leases after this must see what was given away before it: not so in one snapshot for all.
  if worker_id is null or current_setting('transaction_isolation') <> 'read committed' then
    return false;
  end if;
  select s.salt into salt from pgflow.salt s;
  return pg_try_advisory_xact_lock_shared(pgflow.latch_of_(salt, 'worker ' || worker_id));
end
$$;
comment on function pgflow.share_worker_(int)
  is 'Keeps a worker''s leases where they are until this transaction ends, without a lock on each; false if it cannot';

create or replace function pgflow.take_mail_(taken jsonb)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
declare
  gone int;
begin
  delete from pgflow.signal s where s.ctid = any(array(
    select m.ctid from pgflow.taken_rows_(taken) e
    cross join lateral (
      select s.ctid from pgflow.signal s
      where s.chain_id = e.chain_id and s.kind = coalesce(e.kind, 's') and s.name = e.name
        and s.signal_id = e.signal_id offset 0
    ) m
  ));
  get diagnostics gone = row_count;
  -- Only the holder of a run takes its messages: one that is gone was taken, and would be taken twice.
  if gone <> jsonb_array_length(taken) then
    raise exception using errcode = 'PF006',
      message = format('%s of %s messages are no longer in their mailboxes', jsonb_array_length(taken) - gone,
        jsonb_array_length(taken));
  end if;
end
$$;
comment on function pgflow.take_mail_(jsonb)
  is 'Deletes the messages that a batch records as taken; refuses (PF006) those that are not there';

create or replace function pgflow.lock_leases_(batch jsonb, careful boolean)
returns boolean
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  ids bigint[];
  tokens bigint[];
  ended bigint[];
  locked_ids bigint[];
  locked_tokens bigint[];
begin
  select array_agg(r.run_id), array_agg(r.token) into ids, tokens from pgflow.run_rows_(batch->'runs') r;
  if not careful and not batch ? 'questions' and pgflow.share_worker_((batch->'worker')::int) then
    ended := array(select e.run_id from pgflow.end_rows_(batch->'ends') e);
    select array_agg(k.run_id order by k.run_id), array_agg(k.token order by k.run_id) into locked_ids, locked_tokens
    from (
      select e.run_id, e.token from pgflow.lease e
      where e.run_id = any(ids) and e.token = any(tokens) and e.worker_id = (batch->'worker')::int
        and e.run_id <> all(ended)
      union all
      select l.run_id, l.token from (
        select e.run_id, e.token from pgflow.lease e
        where e.run_id = any(ended) and e.token = any(tokens) for no key update skip locked
      ) l
    ) k;
  end if;
  if locked_ids is distinct from ids or locked_tokens is distinct from tokens then
    select array_agg(k.run_id), array_agg(k.token) into locked_ids, locked_tokens
    from (
      select e.run_id, e.token from pgflow.lease e where e.run_id = any(ids) and e.token = any(tokens)
      order by e.run_id for no key update skip locked
    ) k;
  end if;
  return locked_ids is not distinct from ids and locked_tokens is not distinct from tokens;
end
$$;
comment on function pgflow.lock_leases_(jsonb, boolean)
  is 'Keeps the leases of a batch where they are, by the lock of their worker or one by one; true if it has '
     'all of them';

create or replace function pgflow.bad_runs_(batch jsonb)
returns jsonb
language sql
volatile
set search_path = pg_catalog, pg_temp
as $$
  with asked as materialized (
    select r.* from pgflow.run_rows_(batch->'runs') r
  ), locked as materialized (
    -- Those that lock_leases_ has locked.
    select e.run_id, e.token from pgflow.lease e
    where e.run_id = any(array(select a.run_id from asked a)) and e.token = any(array(select a.token from asked a))
    order by e.run_id for no key update skip locked
  )
  select jsonb_agg(jsonb_build_array(v.run_id, v.verdict))
  from (
    select a.run_id, pgflow.verdict_(a.run_id, a.token, a.expected_seq, l.run_id is not null, l.token) as verdict
    from asked a left join locked l on l.run_id = a.run_id
  ) v
  where v.verdict <> 'ok'
$$;
comment on function pgflow.bad_runs_(jsonb)
  is 'Runs that a batch may not commit, [[run, verdict], ...], by the leases that it has locked; null = none';

create or replace function pgflow.run_of_(item jsonb)
returns jsonb
language sql
immutable
return case jsonb_typeof(item) when 'array' then item->0 when 'object' then item->'run' else item end;
comment on function pgflow.run_of_(jsonb)
  is 'Run that a row of a batch is about, whatever its kind: each begins with it';

create or replace function pgflow.without_runs_(batch jsonb, bad jsonb)
returns jsonb
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
  select jsonb_object_agg(p.key, p.kept)
  from (
    select b.key, case when jsonb_typeof(b.value) = 'array' then (
        select jsonb_agg(e.item order by e.n) from jsonb_array_elements(b.value) with ordinality as e (item, n)
        where not bad @> jsonb_build_array(jsonb_build_array(pgflow.run_of_(e.item)))
      ) else b.value end as kept
    from jsonb_each(batch) b
  ) p
  where p.kept is not null
$$;
comment on function pgflow.without_runs_(jsonb, jsonb)
  is 'A batch without these runs: every list of it, so that no kind of row is forgotten';

create or replace function pgflow.run_ids_(list jsonb)
returns bigint[]
language sql
immutable
return array(select e::bigint from jsonb_array_elements(list) e);
comment on function pgflow.run_ids_(jsonb) is 'Numbers of runs in a list of a batch';

create or replace function pgflow.end_runs_(
  batch jsonb, payloads json[], t timestamptz, out to_wake bigint[], out told jsonb
)
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
declare
  ended bigint[];
  chains bigint[];
  parents bigint[];
begin
  to_wake := '{}';
  insert into pgflow.outcome (run_id, token, finished_at, status, reason, output, error)
  select e.run_id, e.token, t, e.status, e.reason, coalesce(e.output, payloads[e.apart]), e.error
  from pgflow.end_rows_(batch->'ends') e;
  select array_agg(e.run_id), array_agg(e.chain_id) into ended, chains from pgflow.end_rows_(batch->'ends') e;
  if batch ? 'has_obligations' then
    perform pgflow.leave_obligations_(ended, t);
  end if;
  delete from pgflow.lease where run_id = any(ended);
  if batch ? 'gated' then
    perform pgflow.close_gates_(pgflow.run_ids_(batch->'gated'));
  end if;
  if batch ? 'awaiting' then
    perform pgflow.forget_events_(array(
      select e.chain_id from pgflow.end_rows_(batch->'ends') e where e.run_id = any(pgflow.run_ids_(batch->'awaiting'))
    ));
  end if;
  if batch ? 'locking' then
    to_wake := pgflow.end_locks_(pgflow.run_ids_(batch->'locking'), t);
  end if;
  if exists (select from pgflow.signal s where s.chain_id = any(chains)) then
    to_wake := to_wake || pgflow.put_mail_aside_(chains, t);
  end if;
  if batch ? 'kin' then
    parents := pgflow.wind_up_(pgflow.run_ids_(batch->'kin'), t);
    to_wake := to_wake || parents;
    -- Of its first generation, a chain has the number of the run.
    parents := array(select e.run_id from pgflow.lease e
      where e.run_id = any(parents) and e.worker_id = (batch->'worker')::int);
    if parents <> '{}' then
      select jsonb_agg(jsonb_build_array(o.chain, o.message)) into told
      from pgflow.only_messages_(parents, parents) o;
    end if;
  end if;
end
$$;
comment on function pgflow.end_runs_(jsonb, json[], timestamptz)
  is 'Ends the runs of a batch: answers the chains to wake, and the results for parents that the same worker holds';

create or replace function pgflow.commit_units(batch jsonb, careful boolean default false, payloads json[] default null)
returns jsonb
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_variable
declare
  are_ours boolean;
  bad jsonb;
  answers jsonb := '[]';
  to_wake bigint[] := '{}';
  lanes int[] := '{}';
  told jsonb;
  pools text[];
  t timestamptz;
begin
  if current_setting('synchronous_commit') = 'off' then
    perform set_config('synchronous_commit', 'on', true);
  end if;
  are_ours := pgflow.lock_leases_(batch, careful);
  if careful or not are_ours then
    bad := pgflow.bad_runs_(batch);
  end if;
  t := pgflow.now_(); -- behind all locks of leases, so that a later commit of a run has a later time
  if bad is not null then
    if jsonb_array_length(bad) = jsonb_array_length(batch->'runs') then
      return jsonb_build_object('bad', bad);
    end if;
    batch := pgflow.without_runs_(batch, bad);
  end if;

  insert into pgflow.unit (run_id, seq, call, kind, name, payload, starts, token, at, recorded_at, due_at, key)
  select u.run_id, u.seq, u.call, u.kind, u.name, coalesce(u.payload, payloads[u.apart]), u.starts, u.token, u.at, t,
    t + u.delay, u.key
  from pgflow.unit_rows_(batch->'units') u;
  if batch ? 'has_ledger' then
    perform pgflow.book_(batch->'units', t);
  end if;
  if batch ? 'has_obligations' then
    perform pgflow.book_obligations_(batch->'units', t);
  end if;
  if batch ? 'taken' then
    perform pgflow.take_mail_(batch->'taken');
  end if;
  if batch ? 'replies' then
    to_wake := pgflow.settle_updates_(batch->'replies', t);
  end if;
  if batch ? 'returned' then
    perform pgflow.put_signals_back_(batch->'returned');
    perform pgflow.reopen_gates_(batch->'returned');
  end if;
  if batch ? 'locking' then
    perform pgflow.leave_queues_(pgflow.run_ids_(batch->'locking'), null, t);
  end if;
  if batch->'questions' @? '$[*].children[*]' then
    perform pgflow.take_names_(batch->'questions');
  end if;
  if batch ? 'draws' then
    pools := pgflow.take_pools_(batch);
    perform pgflow.settle_budgets_(batch->'units', batch->'draws', t);
  end if;
  if batch ? 'questions' then
    select a.answers, to_wake || a.to_wake, a.lanes into answers, to_wake, lanes
    from pgflow.answer_all_(batch->'questions', t) a;
  end if;
  if batch ? 'ends' then
    select to_wake || e.to_wake, e.told into to_wake, told from pgflow.end_runs_(batch, payloads, t) e;
  end if;
  if pools is not null then
    to_wake := to_wake || pgflow.tell_soft_(pools, array(
      select distinct d.run_id from pgflow.draw_rows_(batch->'draws') d));
  end if;

  if bad is null and answers = '[]' and to_wake = '{}' then
    return null;
  end if;
  return jsonb_build_object('bad', bad, 'answers', answers, 'wake', to_jsonb(to_wake), 'lanes', to_jsonb(lanes),
    'told', told);
end
$$;
comment on function pgflow.commit_units(jsonb, boolean, json[])
  is 'Commits units, outcomes and changes of place of many runs, each fenced by its lease; null = all well';
--! grant commit_units to pgflow_worker

create or replace function pgflow.commit_and_claim(
  batch jsonb, worker_id int, lanes int[], max int, tokens bigint[], take_suspect boolean, after bigint[] default null,
  payloads json[] default null
)
returns table (
  answer jsonb,
  run_id bigint, token bigint, chain_id bigint, lane_id int, generation int, attempt int, suspect int, last_seq int,
  key text, root text, input text, units text, has_mail boolean, created_us bigint, now_us bigint, priority int,
  extra jsonb,
  took_us bigint
)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  began timestamptz;
  ids bigint[];
begin
  answer := pgflow.commit_units(batch, payloads => payloads);
  if cardinality(tokens) > max then
    -- Those beyond are for runs that ask to park here: the place of one is free only if it has.
    max := least(cardinality(tokens),
      max + (select count(*) from jsonb_array_elements(answer->'answers') e where e->>'place' = 'parked')::int);
  end if;
  began := clock_timestamp();
  ids := pgflow.claim_(worker_id, lanes, max, tokens, take_suspect, after);
  took_us := pgflow.micros_(clock_timestamp()) - pgflow.micros_(began);
  -- Once, with the first: what a parent is told of its children is long.
  return query select case when row_number() over () = 1 then answer end, c.*, took_us from pgflow.claimed_(ids) c;
  if not found then
    return next;
  end if;
end
$$;
comment on function pgflow.commit_and_claim(jsonb, int, int[], int, bigint[], boolean, bigint[], json[])
  is 'commit_units and then claim_runs in one transaction: what a worker that drains a queue does. With more tokens '
     'than max, as many more runs are claimed as park in this commit';
--! grant commit_and_claim to pgflow_worker

create or replace function pgflow.commit_unit(
  run_id bigint, token bigint, seq int, call int, kind "char", name text, payload json, starts json, at_us bigint,
  worker_id int default null
)
returns text
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
#variable_conflict use_variable
declare
  held_token bigint;
begin
  if current_setting('synchronous_commit') = 'off' then
    perform set_config('synchronous_commit', 'on', true);
  end if;
  if pgflow.share_worker_(worker_id) then
    select e.token into held_token from pgflow.lease e
    where e.run_id = run_id and e.token = token and e.worker_id = worker_id;
  end if;
  if held_token is null then
    select e.token into held_token from pgflow.lease e
    where e.run_id = run_id and e.token = token for no key update skip locked;
  end if;
  if held_token is distinct from token then
    return pgflow.verdict_(run_id, token, seq - 1, held_token is not null, held_token);
  end if;
  insert into pgflow.unit (run_id, seq, call, kind, name, payload, starts, token, at, recorded_at)
  values (run_id, seq, call, kind, name, payload, starts, token, timestamptz 'epoch' + at_us * interval '1 microsecond',
    pgflow.now_());
  return null;
end
$$;
comment on function pgflow.commit_unit(bigint, bigint, int, int, "char", text, json, json, bigint, int)
  is 'commit_units for one unit of one run, without a document: what a run that is alone in its process pays; null = '
     'well';
--! grant commit_unit to pgflow_worker

create or replace function pgflow.check_journal_()
returns table (invariant text, detail text)
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  return query
  with newest as (
    select run_id, max(seq) as seq, min(seq) as first_seq, count(*) as units from pgflow.unit group by run_id
  ), terminal as (
    select u.run_id, u.call, count(*) as n
    from pgflow.unit u join pgflow.unit_kind k on k.kind = u.kind
    where k.is_terminal and u.call > 0
      -- The code may give up an effect; the ledger follows it to its end all the same.
      and not (u.kind = 'X' and exists (select from pgflow.unit i where i.run_id = u.run_id and i.call = u.call
        and i.kind = 'i'))
      -- A message that the code could not take went back: its wait goes on.
      and not (u.kind in ('S', 'G') and exists (
        select from pgflow.unit o
        where o.run_id = u.run_id and o.kind = 'o' and o.name in ('signal_returned', 'answer_returned')
          and (o.payload->>'seq')::int = u.seq
      ))
    group by u.run_id, u.call
  )
  select 'the units of a run are dense from 1',
    format('run %s has %s units from %s to %s', n.run_id, n.units, n.first_seq, n.seq)
  from newest n where n.first_seq <> 1 or n.units <> n.seq
  union all
  select 'units belong to a run', format('run %s', n.run_id)
  from newest n where not exists (select from pgflow.run r where r.run_id = n.run_id)
  union all
  select 'a call ends once', format('call %s of run %s ended %s times', t.call, t.run_id, t.n)
  from terminal t where t.n > 1
  union all
  select 'nothing is recorded after the outcome', format('run %s', o.run_id)
  -- Save what became, afterwards, of effects that a run ended by force had left open, or done, and of what it owed;
  -- and redactions.
  from pgflow.outcome o where exists (
    select from pgflow.unit u where u.run_id = o.run_id and u.recorded_at > o.finished_at
      and not (u.token = 0 and (u.kind in ('U', 'E', 'C', 'F', 'D', 'B', 'Z')
        or u.kind = 'o' and u.name in ('owed', 'discharged')))
  );
end
$$;
comment on function pgflow.check_journal_() is 'A journal is dense, and ends with its run';

comment on column pgflow.unit_kind.kind is 'The one character that it has in the journal';
comment on column pgflow.unit_kind.name is 'Name in the view timeline';
comment on column pgflow.unit_kind.is_terminal is 'True if a unit of this kind is the outcome of its call';
comment on column pgflow.unit_kind.written_by is 'Functions that write it, and the occasion';

comment on column pgflow.unit.run_id is 'The run whose journal it is';
comment on column pgflow.unit.seq is 'Its place in the journal, from 1 without a gap';
comment on column pgflow.unit.call is 'Number of the call that it is about; 0 = the run itself';
comment on column pgflow.unit.kind is 'Kind of event: see unit_kind';
comment on column pgflow.unit.args_hash
  is 'Hash of the arguments, on step_completed of a transaction and on the kinds of the effect and decision ledgers';
comment on column pgflow.unit.name
  is 'Of the step, signal, workflow or stream that it is about; null where there is none';
comment on column pgflow.unit.starts
  is 'Bodies that this commit allows to start: [[call, class, name, ordinal or key, hash of arguments], ...]; or the '
     'body of another run that the unit has its result from';
