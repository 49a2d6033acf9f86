-- The stage on which the specs play: runs in a known place, the verbs as one call each, and the closing look.
--
-- A verb answers what a caller would read from it, and writes the answer into `said` in its own transaction:
-- what is rolled back was never said. `look` holds the journal, the mailbox and the places against what was
-- said, and counts what is lost and what is doubled. Nothing here prints an id, a time or a token.
--
-- Gates: a verb for which `set local scene.gate = 1` was said stops where the engine reads its clock, that is
-- after its locks and before it looks, until `scene.open(1)` is called. `scene.clock` says at which reading.

create schema scene;

create table scene.run (name text primary key, run_id bigint, chain_id bigint, token bigint, seq int, worker_id int, lane_id int);
create table scene.said (name text, verb text, token bigint, answer text);
create table scene.sent (name text, payload text);
create table scene.app (name text);
create table scene.complaint (invariant text);
create table scene.brought (n serial, event_id bigint);
create table scene.published (event_id bigint);

create or replace function pgflow.now_()
returns timestamptz
language plpgsql
volatile
as $$
declare
  gate int := nullif(current_setting('scene.gate', true), '')::int;
  left_over int := coalesce(nullif(current_setting('scene.clock', true), ''), '1')::int - 1;
begin
  if gate is not null then
    if left_over > 0 then
      perform set_config('scene.clock', left_over::text, true);
    else
      perform set_config('scene.gate', '', true);
      perform pg_advisory_lock_shared(gate), pg_advisory_unlock_shared(gate);
    end if;
  end if;
  return clock_timestamp();
end
$$;

create procedure scene.shut() language sql as 'select pg_advisory_lock(1), pg_advisory_lock(2)';
create procedure scene.open(gate int) language sql as 'select pg_advisory_unlock(gate)';
create procedure scene.open() language sql as 'select pg_advisory_unlock_all()';

-- ---------------------------------------------------------------- setting the stage

create function scene.start_(name text, run_at timestamptz default null, timeout_seconds float8 default null, pool text default null)
returns void
language sql
as $$
  insert into scene.run (name, run_id, chain_id, seq, lane_id)
  select name, s.run_id, s.run_id, 0, s.lane_id
  from pgflow.start_run(name, key => name, run_at => run_at, timeout_seconds => timeout_seconds, pool => pool) s
$$;

create function scene.take_(of text, host text, new_token bigint)
returns void
language plpgsql
as $$
declare
  number int := pgflow.register_worker(host, 1, '{default}', 10, 'test');
begin
  perform from scene.run r, pgflow.claim_runs(number, array[r.lane_id], 1, array[new_token]) c where r.name = of;
  update scene.run r set token = new_token, worker_id = number where r.name = of and exists (select from pgflow.lease e where e.token = new_token);
end
$$;

create function scene.send_(of text, name text, payload text)
returns void
language sql
as $$
  insert into scene.sent (name, payload) values (of, payload);
  select pgflow.send_signal(of, name, to_json(payload))
$$;

-- One flush of one run. A unit is [call, kind, name, payload, delay]; null fields of the document are left out.
-- `draws` are the calls whose reservations are returned, `words` say what becomes of updates.
create function scene.commit_(of text, by_token bigint, units jsonb, question jsonb default null, outcome jsonb default null, draws jsonb default null, words jsonb default null)
returns text
language plpgsql
as $$
declare
  me scene.run;
  batch jsonb;
  answer jsonb;
  verdict text;
begin
  select * into strict me from scene.run r where r.name = of;
  batch := jsonb_build_object('worker', case when by_token = me.token then me.worker_id else 0 end, 'runs', jsonb_build_array(jsonb_build_array(me.run_id, by_token, me.seq)), 'units', scene.units_(me, by_token, units));
  if exists (select from jsonb_array_elements(units) u where u->>2 = 'waive') then
    batch := batch || '{"has_ledger": true}';
  end if;
  if question is not null then
    batch := batch || jsonb_build_object('questions', jsonb_build_array(question || jsonb_build_object(
      'run', me.run_id, 'token', by_token, 'chain', me.chain_id, 'seq', me.seq + jsonb_array_length(units))));
  end if;
  if outcome is not null then
    batch := batch || jsonb_build_object('ends', jsonb_build_array(jsonb_build_array(me.run_id) || outcome || jsonb_build_array(me.chain_id, by_token)),
      'kin', jsonb_build_array(me.run_id), 'gated', jsonb_build_array(me.run_id),
      'locking', jsonb_build_array(me.run_id));
  end if;
  if exists (select from pgflow.owed o where o.run_id = me.run_id) or units @? 'strict $[*] ? (@[1] == "O")' then
    batch := batch || '{"has_ledger": true, "has_obligations": true}';
  end if;
  if draws is not null then
    batch := batch || jsonb_build_object('draws', (select jsonb_agg(jsonb_build_array(me.run_id, d)) from jsonb_array_elements(draws) d));
  end if;
  if words is not null then
    batch := batch || jsonb_build_object('replies', (select jsonb_agg(jsonb_build_array(me.run_id, me.chain_id) || w) from jsonb_array_elements(words) w));
  end if;
  begin
    answer := pgflow.commit_units(batch);
  exception when unique_violation then -- an earlier try was not answered, and yet committed
    answer := pgflow.commit_units(batch, true);
  end;
  verdict := coalesce(answer->'bad'->0->>1, answer->'answers'->0->>'place', 'ok');
  return verdict || coalesce(
    (select ', took ' || string_agg(u->>3, ' and ') from jsonb_array_elements(answer->'answers'->0->'units') u where u->>2 in ('S', 'x', 'K', 'T', 'W', 'G')), '')
    || case answer->'answers'->0->'units'->0->>2 when 'm' then ', admitted' when 'q' then ', refused' else '' end;
end
$$;

create function scene.debt_(of text)
returns text
language sql
as $$ select r.root || '/owe/refund/1' from pgflow.run r where r.key = of and r.generation = 1 $$;

create function scene.units_(me scene.run, by_token bigint, units jsonb)
returns jsonb
language sql
as $$
  select coalesce(jsonb_agg(jsonb_build_array(me.run_id, me.seq + n, u->0, u->1, u->2, u->3, null, 0, u->4, by_token) order by n), '[]')
  from jsonb_array_elements(units) with ordinality as x (u, n)
$$;

create procedure scene.clear_()
language sql
as $$
  set pgflow.rewrites = 'on';
  delete from pgflow.run; delete from pgflow.run_key; delete from pgflow.outcome; delete from pgflow.deadline;
  delete from pgflow.ready; delete from pgflow.lease; delete from pgflow.parked; delete from pgflow.held;
  delete from pgflow.wait; delete from pgflow.timer; delete from pgflow.signal; delete from pgflow.undelivered;
  delete from pgflow.nudge; delete from pgflow.unit; delete from pgflow.worker; delete from pgflow.step_beat;
  delete from pgflow.gate; delete from pgflow.gate_answer; delete from pgflow.evidence; delete from pgflow.owed; delete from pgflow.run_update; delete from pgflow.update_asker;
  delete from pgflow.pool; delete from pgflow.spend; delete from pgflow.reservation; delete from pgflow.charge; delete from pgflow.pool_change;
  delete from pgflow.seal; delete from pgflow.seal_round; delete from pgflow.seal_day; delete from pgflow.seal_pending;
  update pgflow.seal_state set is_on = false, passed_run_id = 0, next_run_id = null, waits_for = null, looked_upto = 0, cycle_began_at = null, next_look_at = null;
  delete from pgflow.schedule; delete from pgflow.schedule_declaration; delete from pgflow.schedule_change;
  delete from pgflow.queue_change; delete from pgflow.document where collection = 'pgflow.relays'; delete from pgflow.dropped_history;
  delete from pgflow.imported; delete from pgflow.loss; delete from pgflow.rate;
  update pgflow.schedule_state set fleet = null, kept_until = null, keeper = null;
  delete from pgflow.lane where workflow like 'new%';
  delete from pgflow.line; delete from pgflow.line_run; delete from pgflow.line_turn; delete from pgflow.line_state;
  update pgflow.queue set is_lined = null where is_lined;
  delete from pgflow.lock; delete from pgflow.lock_wait; delete from pgflow.lock_nudge; delete from pgflow.lock_broken;
  select setval('pgflow.lock_fence_seq', 1, false);
  delete from pgflow.event; delete from pgflow.relay; delete from pgflow.delivery; delete from pgflow.event_wait; delete from scene.brought; delete from scene.published;
  update pgflow.event_cursor set event_id = 0, horizon = 0, seen_id = null, seen_xid = null;
  select setval('pgflow.event_id_seq', 1, false);
  delete from scene.run; delete from scene.said; delete from scene.sent; delete from scene.app; delete from scene.complaint;
  select setval('pgflow.run_id_seq', 1, false), setval('pgflow.worker_worker_id_seq', 1, false);
$$;

create procedure scene.expire_()
language sql
as $$
  update pgflow.deadline set due_at = due_at - interval '2 hours';
  update pgflow.run set deadline_at = deadline_at - interval '2 hours'
$$;

create procedure scene.world(place text)
language plpgsql
as $$
begin
  call scene.clear_();
  case place
    when 'empty' then
      insert into scene.run (name, run_id, chain_id, seq, lane_id) select 'k', 1, 1, 0, s.lane_id from pgflow.serve_lanes('{default}', '{k}') s;
    when 'ready' then
      perform scene.start_('k');
      update scene.run set worker_id = pgflow.register_worker('first', 1, '{default}', 10, 'test');
    when 'lined', 'stopped' then
      perform pgflow.set_queue('default', '{"key": "input.n", "per_key": 1}'), scene.start_('k');
      update scene.run set worker_id = pgflow.register_worker('first', 1, '{default}', 10, 'test');
      update pgflow.line_state set tended_at = clock_timestamp(); -- a claim waits for a poll that tidies up
      if place = 'stopped' then
        perform pgflow.pause_run('k');
      end if;
    when 'overdue' then
      perform scene.start_('k', timeout_seconds => 3600), pgflow.cancel_run('k', force => true);
      call scene.expire_();
    when 'split' then
      perform scene.start_('k'), scene.start_('l'), scene.take_('k', 'first', 100), scene.take_('l', 'first', 201);
      perform pgflow.release_runs(array[run_id], array[100]) from scene.run where name = 'k';
      perform scene.take_('k', 'second', 101);
    when 'leased', 'late' then
      perform scene.start_('k', timeout_seconds => 3600), scene.take_('k', 'first', 101), scene.send_('k', 'other', 'earlier');
      if place = 'late' then
        call scene.expire_();
      end if;
    when 'taken' then
      perform scene.start_('k'), scene.take_('k', 'first', 100);
      perform pgflow.reap_worker(worker_id, 0) from scene.run;
      perform scene.take_('k', 'second', 101), scene.send_('k', 'other', 'earlier');
    when 'parked', 'mailed', 'due', 'expired' then
      perform scene.start_('k', timeout_seconds => 3600), scene.take_('k', 'first', 101);
      perform scene.play('park');
      case place
        when 'mailed' then perform scene.send_('k', 'go', 'earlier');
        when 'due' then
          update pgflow.timer set due_at = due_at - interval '2 hours';
          perform set_config('pgflow.rewrites', 'on', true);
          update pgflow.unit set due_at = due_at - interval '2 hours' where kind = 't';
        when 'expired' then call scene.expire_();
        else null;
      end case;
    when 'asking', 'at_gate', 'out_of_time' then
      perform scene.start_('k'), scene.take_('k', 'first', 101);
      perform scene.commit_('k', 101, '[]', jsonb_build_object('gates', '[[1, "go"]]'::jsonb, 'park', place = 'asking', 'idle', true,
        'new_gates', '[{"call": 1, "name": "go", "key": "k/go/1", "request": "1", "hash": "h", "approvers": [], "quorum": 1, "timeout": 3600,
          "on_timeout": "reject", "escalate": [], "needs_value": false, "decision": null, "shape": true}]'::jsonb));
      update scene.run set seq = 1;
      if place = 'out_of_time' then
        update pgflow.gate set asked_at = asked_at - interval '2 hours', expires_at = expires_at - interval '2 hours';
        update pgflow.unit set due_at = due_at - interval '2 hours' where kind = 'g';
      end if;
    when 'serving', 'updated', 'unheard' then
      perform scene.start_('k'), scene.take_('k', 'first', 101);
      case place
        when 'serving' then perform scene.commit_('k', 101, '[]', '{"updates": [[1]], "park": true, "idle": true}');
        when 'updated' then perform pgflow.send_update('k', 'add', '{}', 'u');
        else perform pgflow.send_update('k', 'add', '{}', 'u'), scene.play('complete');
      end case;
    when 'watched', 'ended', 'sealed' then
      perform pgflow.set_sealing(true), scene.start_('k'), scene.take_('k', 'first', 101);
      if place <> 'watched' then
        perform scene.play('complete');
      end if;
      if place = 'sealed' then
        perform scene.play('seal');
        update pgflow.seal_state set next_look_at = null, cycle_began_at = null;
      end if;
    when 'scheduled' then
      perform scene.start_('k'), pgflow.set_schedule('s', 'k', '{"every": 3600}', overlap => 'buffer_one');
      update pgflow.schedule set upcoming = '{2020-01-01 00:00+00,2100-01-01 00:00+00}', after_at = '2100-01-01 00:00+00',
        due_at = '2020-01-01 00:00+00', look_at = '2020-01-01 00:00+00';
    when 'planned' then
      perform scene.start_('k', run_at => clock_timestamp() + interval '1 hour');
    when 'begins' then
      perform scene.start_('k', run_at => clock_timestamp() + interval '1 hour');
      update pgflow.timer set due_at = due_at - interval '2 hours';
    when 'collects', 'collected' then
      perform scene.start_('k', run_at => clock_timestamp() + interval '1 hour');
      update pgflow.run set input = case place when 'collects' then '{"items": [0]}' else '{"items": [0, 0]}' end::json;
      if place = 'collected' then
        update pgflow.timer set due_at = due_at - interval '2 hours';
      end if;
    when 'asked' then
      perform scene.start_('k'), pgflow.pause_run('k');
    when 'paused', 'resumed' then
      perform scene.start_('k'), pgflow.pause_run('k');
      perform pgflow.wake();
      if place = 'resumed' then
        perform pgflow.resume_run('k');
      end if;
    when 'stuck', 'retried' then
      perform scene.start_('k'), scene.take_('k', 'first', 101);
      perform scene.play('hold');
      if place = 'retried' then
        perform pgflow.retry_run('k');
      end if;
    when 'family' then
      perform scene.start_('k'), scene.take_('k', 'first', 101);
      perform scene.commit_('k', 101, '[]', '{"children": [[1, "l", "default", "{}", "l", 0, null, null, null, null, "c"]]}');
      update scene.run set seq = 1 where name = 'k';
      insert into scene.run (name, run_id, chain_id, seq, lane_id)
      select 'l', r.run_id, r.chain_id, 0, r.lane_id from pgflow.run r where r.key = 'l';
      perform scene.take_('l', 'second', 201);
    when 'owing', 'breached', 'outlived' then
      perform scene.start_('k'), scene.take_('k', 'first', 101);
      perform scene.commit_('k', 101, jsonb_build_array(jsonb_build_array(1, 'O', 'refund',
        json_strip_nulls(json_build_object('key', scene.debt_('k'), 'outlives', case place when 'outlived' then true end))::text, 3600)));
      update scene.run set seq = 1;
      if place = 'outlived' then
        perform scene.commit_('k', 101, '[]', outcome => '["completed", null, "1", null]');
      end if;
      if place <> 'owing' then
        update pgflow.owed set due_at = due_at - interval '2 hours';
      end if;
    when 'spending', 'forfeit' then
      perform pgflow.set_pool('top', '{"usd": 1}', soft => null),
        pgflow.set_pool('x', '{"usd": 0.9}', 'top', soft => null), pgflow.set_pool('y', '{"usd": 0.9}', 'top', soft => null);
      perform scene.start_('k', pool => 'y'), scene.start_('l', pool => 'x'), scene.take_('k', 'first', 101), scene.take_('l', 'second', 201);
      perform scene.commit_(r.name, r.token, '[]', '{"admits": [{"call": 1, "name": "work", "amounts": {"usd": "0.3"}}]}', draws => '[0]')
      from scene.run r order by r.name;
      update scene.run set seq = 1;
      if place = 'forfeit' then
        perform scene.commit_('k', 101, '[]', '{"hold": ["stuck", "nondeterminism", "old", null, "pgflow"]}'), pgflow.cancel_run('k', force => true);
      end if;
    when 'free', 'locked', 'queued', 'lent' then
      perform scene.start_('k'), scene.start_('l'), scene.take_('k', 'first', 101), scene.take_('l', 'second', 201);
      if place = 'lent' then
        perform pgflow.take_lock('a', 'plain', '1 hour', secret => 'mine');
      elsif place <> 'free' then
        perform scene.commit_('k', 101, '[]', '{"locks": [[1, "a", false, null, null, []]]}');
        update scene.run set seq = 1 where name = 'k';
      end if;
      if place = 'queued' then
        perform scene.play('ask', 'l');
      end if;
    when 'published', 'relayed' then
      perform pgflow.declare_relay('r', '{orders}'), pgflow.publish('orders', '1', 'k');
      update pgflow.relay set horizon = 1, event_id = case place when 'published' then 1 else 0 end;
      if place = 'published' then
        insert into scene.brought (event_id) values (1);
        insert into scene.published select pgflow.publish('orders', '2', 'k');
      else
        update pgflow.relay set token = 1, leased_until = clock_timestamp() - interval '1 hour';
      end if;
    when 'listening', 'expecting', 'attentive' then
      perform scene.start_('k'), scene.take_('k', 'first', 101), pgflow.publish('orders', '{"n": 1}');
      update pgflow.event_cursor set event_id = 1, horizon = 1;
      if place = 'expecting' then
        perform scene.play('await_event');
      elsif place = 'attentive' then
        perform scene.commit_('k', 101, '[]', '{"signals": [[1, "event"]], "events": [[1, "event", "orders", {"n": 1}, null, null]], "idle": true}');
      end if;
    when 'two' then
      perform scene.start_('k'), scene.start_('l'), scene.take_('k', 'first', 101), scene.take_('l', 'second', 201);
      update pgflow.lease set worker_id = (select r.worker_id from scene.run r where r.name = 'k');
      perform scene.send_('k', 'other', 'earlier'), scene.send_('l', 'other', 'earlier');
  end case;
  delete from scene.said;
end
$$;

-- ---------------------------------------------------------------- the verbs

create procedure scene.snapshot() language plpgsql as $$ begin perform from scene.run; end $$;

create function scene.woken_(lanes int[], mail bigint[], ended bigint[], busy int)
returns text
language sql
as $$
  select coalesce(nullif(concat_ws(', ', case when lanes <> '{}' then 'woke' end, case when mail <> '{}' then 'mail' end,
    case when ended <> '{}' then 'ended' end, case when busy > 0 then 'busy' end), ''), 'nothing')
$$;

create function scene.bring_(by_token bigint)
returns text
language plpgsql
as $$
declare
  taken record;
begin
  select * into taken from pgflow.take_events('r', by_token, 0) t;
  if taken.state = 'taken' then
    insert into scene.brought (event_id) select (e->>0)::bigint from json_array_elements(taken.events) with ordinality as x (e, n) order by n;
    perform pgflow.settle_events('r', by_token, (select max((e->>0)::bigint) from json_array_elements(taken.events) e),
      (select json_agg(json_build_array(e->0, 'ok')) from json_array_elements(taken.events) e), 0);
  end if;
  return case when taken.state in ('busy', 'leased') then taken.state else 'looked' end;
end
$$;

create function scene.play(verb text, of text default 'k', by_token bigint default null)
returns text
language plpgsql
as $$
declare
  me scene.run;
  answer text;
  step_call int;
begin
  select * into me from scene.run r where r.name = of;
  -- The block of a lock is a call too.
  step_call := case when exists (select from pgflow.unit u where u.run_id = me.run_id and u.kind = 'L') then 2 else 1 end;
  by_token := coalesce(by_token, case verb when 'claim' then pg_backend_pid() else me.token end);
  case verb
    when 'claim' then
      select case when count(*) = 0 then 'nothing' else 'claimed' end into answer
      from pgflow.claim_runs(coalesce(me.worker_id, pgflow.register_worker('another', 1, '{default}', 10, 'test')), array[me.lane_id], 1, array[by_token]);
    when 'flush' then
      answer := scene.commit_(of, by_token, '[[1, "c", "flush", "1", null]]');
    when 'park' then
      answer := scene.commit_(of, by_token, '[[1, "t", "park", null, 3600]]', jsonb_build_object(
        'signals', '[[1, "go"]]'::jsonb, 'timers', jsonb_build_array(jsonb_build_array(1, me.seq + 1, 'W')), 'park', true, 'idle', true));
    when 'await' then
      answer := scene.commit_(of, by_token, '[[2, "c", "await", "1", null]]', '{"child_calls": [1], "park": true, "idle": true}');
    when 'ask' then
      answer := scene.commit_(of, by_token, '[]', '{"locks": [[1, "a", false, null, null, []]], "park": true, "idle": true}');
    when 'give' then
      answer := scene.commit_(of, by_token, '[]', '{"locks": [], "holds": [[2, "a", 1, true]]}');
    when 'take_lock' then
      answer := case when pgflow.take_lock('a', pg_backend_pid()::text, '1 hour', false, '1 hour') is null then 'waits' else 'won' end;
    when 'free_lock' then
      answer := case when pgflow.release_lock('a', 1, 'mine') then 'free' else 'lost' end;
    when 'break_lock' then
      answer := case pgflow.break_lock('a', 'it hangs') when 0 then 'nothing' else 'taken' end;
    when 'sweep_locks' then
      select scene.woken_(w.lanes, w.mail, w.ended, w.busy) into answer from pgflow.sweep_locks() w;
    when 'publish', 'publish_rr' then
      insert into scene.published select pgflow.publish('orders', '{"n": 1}', 'k');
      answer := 'published';
    -- How much they find depends on what else runs on this server.
    when 'bring' then
      answer := scene.bring_(pg_backend_pid());
    when 'take_over' then
      select case when t.state in ('busy', 'leased') then t.state else 'looked' end into answer
      from pgflow.take_events('r', 2) t;
    when 'settle_events' then
      -- It was delivered before, whatever becomes of this.
      insert into scene.brought (event_id) values (1);
      answer := case when pgflow.settle_events('r', 1, 1, '[[1, "ok"]]') then 'settled' else 'lost' end;
    when 'replay_events' then
      answer := 'from 1';
      perform pgflow.replay_relay('r', 1);
    when 'drop_events' then
      perform pgflow.drop_events('0');
      answer := 'dropped';
    when 'await_event' then
      answer := scene.commit_(of, by_token, '[]', jsonb_build_object('signals', '[[1, "event"]]'::jsonb,
        'events', '[[1, "event", "orders", {"n": 1}, null, null]]'::jsonb, 'park', true, 'idle', true));
    when 'forget_event' then
      answer := scene.commit_(of, by_token, '[[1, "x", "forget_event", null, null]]', '{"events": []}');
    when 'match' then
      perform pgflow.poll();
      answer := 'looked';
    when 'give_up' then
      answer := scene.commit_(of, by_token, '[[1, "x", "give_up", null, null]]',
        jsonb_build_object('unwanted', (select jsonb_agg(r.chain_id) from scene.run r where r.name = 'l')));
    when 'peek', 'expire' then
      answer := scene.commit_(of, by_token, '[]', '{"gates": [[1, "go"]], "park": true, "idle": true}');
    when 'waive' then
      answer := scene.commit_(of, by_token, '[[1, "x", "waive", null, null]]');
    when 'approve', 'approve_rr', 'approve_ser', 'reject' then
      begin
        perform pgflow.answer_gate('k/go/1', split_part(verb, '_', 1), by => verb);
        answer := 'answered';
      exception when sqlstate 'PF022' or sqlstate 'PF001' then
        answer := 'too late';
      end;
    when 'update', 'update_rr', 'update_ser' then
      select case when is_new then 'new' else 'known' end into answer from pgflow.send_update(of, 'add', '{}', 'u');
    when 'take_update', 'reject_update' then -- it was shown, since it waits in this place
      if verb = 'take_update' then
        answer := scene.commit_(of, by_token, '[[1, "h", "take_update", "{\"id\": \"u\"}", null], [2, "b", "add", "{\"id\": \"u\", \"status\": \"done\", \"value\": 1}", null]]',
          words => (select jsonb_build_array(jsonb_build_array('u', min(m.signal_id), null, null, null), jsonb_build_array('u', null, me.seq + 2, 'done', null))
            from pgflow.signal m where m.kind = 'u'));
      else
        answer := scene.commit_(of, by_token, '[[1, "c", "reject_update", "1", null]]',
          words => (select jsonb_build_array(jsonb_build_array('u', min(m.signal_id), null, 'rejected', '{"message": "no"}')) from pgflow.signal m where m.kind = 'u'));
      end if;
    when 'ask_reply' then
      begin
        select r.status into answer from pgflow.update_reply(of, 'u') r;
      exception when sqlstate 'PF001' then
        answer := 'refused: ' || sqlstate;
      end;
    when 'redact_update' then
      begin
        perform pgflow.redact_update(of, 'u', 'asked for', 'someone');
        answer := 'redacted';
      exception when sqlstate 'PF001' or sqlstate 'PF006' then
        answer := 'refused: ' || sqlstate;
      end;
    when 'complete' then
      answer := scene.commit_(of, by_token, '[[2, "c", "complete", "1", null]]', outcome => '["completed", null, "1", null]');
    when 'continue' then
      answer := scene.commit_(of, by_token, '[[2, "c", "continue", "1", null]]', '{"continue": "{}"}' || case
        when exists (select from pgflow.gate) then '{"gated": true}' when exists (select from pgflow.lock) then '{"locks": []}' else '{}' end::jsonb);
    when 'keep' then
      answer := scene.commit_(of, by_token, jsonb_build_array(jsonb_build_array(2, 'D', 'refund',
        json_build_object('key', scene.debt_(of), 'verdict', 'discharged')::text, null)));
    when 'hand_on' then
      answer := scene.commit_(of, by_token, '[[2, "c", "hand_on", "1", null]]', '{"continue": "{}", "owes": true}');
    when 'wait_owing' then
      answer := scene.commit_(of, by_token, '[[2, "c", "wait_owing", "1", null]]', '{"open_effects": [1], "park": true, "idle": true}');
    when 'fail' then
      answer := scene.commit_(of, by_token, '[[2, "c", "fail", "1", null]]', outcome => '["failed", null, null, "{}"]');
    when 'hold' then
      answer := scene.commit_(of, by_token, '[[2, "c", "hold", "1", null]]', '{"hold": ["stuck", "nondeterminism", "old", null, "pgflow"]}');
    when 'child' then
      answer := scene.commit_(of, by_token, '[[2, "c", "child", "1", null]]', '{"children": [[3, "c", "default", "{}", "c", 0, null, null, null, null, "c"]]}');
    when 'begin' then
      perform pgflow.begin_step(me.run_id, by_token, step_call);
      insert into scene.app (name) values (of);
      return 'ok';
    when 'begin with a start' then
      perform pgflow.begin_step(me.run_id, by_token, step_call);
      insert into scene.app (name) values (of);
      perform pgflow.start_run('c', key => 'c');
      return 'ok';
    when 'fence' then
      if exists (select from pgflow.reservation v where v.run_id = me.run_id) then
        perform pgflow.fence_step(me.run_id, by_token, 1, scene.units_(me, by_token,
          '[[0, "M", "work", "{\"call\": 1, \"amounts\": {\"usd\": \"0.2\"}}", null], [1, "c", "fence", "1", null]]'),
          closes => jsonb_build_array(jsonb_build_array(me.run_id, 1)));
      else
        perform pgflow.fence_step(me.run_id, by_token, step_call,
          scene.units_(me, by_token, jsonb_build_array(jsonb_build_array(step_call, 'c', 'fence', '1', null))));
      end if;
      answer := 'ok';
    when 'admit' then
      answer := scene.commit_(of, by_token, '[]', '{"admits": [{"call": 2, "name": "admit", "amounts": {"usd": "0.3"}}]}', draws => '[0]');
    when 'charge' then
      answer := scene.commit_(of, by_token,
        '[[0, "M", "work", "{\"call\": 1, \"amounts\": {\"usd\": \"0.5\"}}", null], [1, "c", "charge", "1", null]]', draws => '[1]');
    when 'settle' then
      answer := scene.commit_(of, by_token, '[[2, "c", "settle", "1", null]]', outcome => '["completed", null, "1", null]', draws => '[null]');
    when 'grant', 'grant_rr' then
      perform pgflow.grant_budget('top', '{"usd": 0.5}');
      answer := 'granted';
    when 'revoke' then
      perform pgflow.revoke_pool('top');
      answer := 'revoked';
    when 'lower' then
      begin
        perform pgflow.set_pool('top', '{"usd": 0.5}', soft => null);
        answer := 'lowered';
      exception when sqlstate 'PF006' then
        answer := 'refused';
      end;
    when 'flush_both' then
      select coalesce(string_agg(x->>1, ', '), 'ok') into answer
      from scene.run k, scene.run l, jsonb_array_elements(coalesce(pgflow.commit_units(jsonb_build_object(
        'worker', l.worker_id, 'runs', jsonb_build_array(jsonb_build_array(k.run_id, k.token, 0), jsonb_build_array(l.run_id, l.token, 0)),
        'units', scene.units_(k, k.token, '[[1, "c", "flush_both", "1", null]]') || scene.units_(l, l.token, '[[1, "c", "flush_both", "1", null]]')
      ), true)->'bad', '[]')) x
      where k.name = 'k' and l.name = 'l';
    when 'batch' then
      select coalesce(string_agg(x->>1, ', '), 'ok') into answer
      from scene.run k, scene.run l, jsonb_array_elements(coalesce(pgflow.commit_units(jsonb_build_object(
        'worker', l.worker_id, 'runs', jsonb_build_array(jsonb_build_array(k.run_id, by_token, 0), jsonb_build_array(l.run_id, l.token, 0)),
        'units', scene.units_(k, by_token, '[[1, "c", "batch", "1", null]]'),
        'questions', jsonb_build_array(jsonb_build_object('run', l.run_id, 'token', l.token, 'chain', l.chain_id, 'seq', 0,
          'children', '[[3, "c", "default", "{}", "c", 0, null, null, null, null, "c"]]'::jsonb))
      ))->'bad', '[]')) x
      where k.name = 'k' and l.name = 'l';
    when 'children', 'children_back' then
      answer := scene.commit_(of, by_token, '[[2, "c", "children", "1", null]]', jsonb_build_object('children', case verb
        when 'children' then '[[3, "new_a", "default", "{}", "a", 0, null, null, null, null, "c"], [4, "new_b", "default", "{}", "b", 0, null, null, null, null, "c"]]'::jsonb
        else '[[3, "new_b", "default", "{}", "d", 0, null, null, null, null, "c"], [4, "new_a", "default", "{}", "c", 0, null, null, null, null, "c"]]' end));
    when 'release_both' then
      select case when count(*) = 2 then 'ready' else count(*) || ' ready' end into answer
      from scene.run k, scene.run l, unnest(pgflow.release_runs(array[l.run_id, k.run_id], array[l.token, k.token]))
      where k.name = 'k' and l.name = 'l';
    when 'wake_both' then
      select scene.woken_(w.lanes, w.mail, w.ended, w.busy) into answer from pgflow.wake(array(select r.chain_id from scene.run r)) w;
    when 'takeover' then
      select case when reclaimed > 0 then 'reclaimed' else 'nothing' end into answer from pgflow.reap_worker(me.worker_id, 0);
      perform scene.take_(of, 'second', 102);
    when 'start_child' then
      select case when is_new then 'new' else 'known' end into answer from pgflow.start_run('c', key => 'c');
    when 'release' then
      answer := case when pgflow.release_runs(array[me.run_id], array[by_token]) = '{}' then 'lost' else 'ready' end;
    when 'reap' then
      select case when reclaimed > 0 then 'reclaimed' else 'nothing' end into answer from pgflow.reap_worker(me.worker_id, 0);
    when 'wake' then
      select scene.woken_(w.lanes, w.mail, w.ended, w.busy) into answer from pgflow.wake(array[me.chain_id]) w;
    when 'poll' then
      select scene.woken_(p.lanes, p.mail, p.ended, p.busy) into answer from pgflow.poll() p;
    when 'signal', 'signal_rr', 'signal_ser' then
      perform scene.send_(of, 'go', verb);
      answer := 'sent';
    when 'deliver', 'deliver_rr' then
      insert into scene.sent (name, payload) values (of, verb);
      select case when lane_id is null then 'sent' else 'woke' end into answer from pgflow.deliver_signal(of, 'go', to_json(verb));
    when 'discharge', 'discharge_rr' then
      begin
        perform pgflow.discharge(scene.debt_(of), sent_by => 'someone');
        answer := 'sent';
      exception when sqlstate 'PF001' then
        answer := 'closed';
      end;
    when 'cancel', 'cancel_rr' then
      perform pgflow.cancel_run(of, sent_by => 'someone');
      answer := 'sent';
    when 'force' then
      perform pgflow.cancel_run(of, sent_by => 'someone', force => true);
      answer := 'sent';
    when 'pause' then
      perform pgflow.pause_run(of, sent_by => 'someone');
      answer := 'sent';
    when 'resume' then
      perform pgflow.resume_run(of, sent_by => 'someone');
      answer := 'sent';
    when 'retry' then
      perform pgflow.retry_run(of, sent_by => 'someone');
      answer := 'sent';
    when 'restart' then
      begin
        select 'generation ' || r.generation into answer from pgflow.restart_run(of, effects => 'repeat', sent_by => 'someone') r;
      exception when sqlstate 'PF001' or sqlstate 'PF006' then
        answer := 'refused: ' || sqlstate;
      end;
    when 'redact' then
      begin
        perform pgflow.redact(of, 1, 'asked for', 'someone', generation => 1);
        answer := 'redacted';
      exception when sqlstate 'PF001' or sqlstate 'PF006' then
        answer := 'refused: ' || sqlstate;
      end;
    when 'drop' then
      select case runs when 0 then 'nothing' else 'dropped' end into answer from pgflow.drop_history(clock_timestamp());
    when 'seal' then
      select case sealed when 0 then 'nothing' else 'sealed' end into answer from pgflow.seal_units();
    when 'fire' then
      select case fired when 0 then 'nothing' else 'fired' end into answer from pgflow.keep_schedules(0, at_once => true);
    when 'trigger' then
      select case when is_new then 'new' else 'known' end into answer
      from pgflow.trigger_schedule('s', slot_at => '2020-01-01 00:00+00');
    when 'backfill' then
      select b.state into answer from pgflow.backfill_schedule('s', '{2020-01-01 00:00+00}', 'allow') b;
    when 'start_slot' then
      select case when is_new then 'new' else 'known' end into answer
      from pgflow.start_run('k', key => 's/2020-01-01T00:00:00Z');
    when 'pause_schedule' then
      answer := case when pgflow.pause_schedule('s') then 'paused' else 'nothing' end;
    when 'patch' then
      answer := case pgflow.release_stuck(array[of], '{new}') when 0 then 'nothing' else 'woke' end;
    when 'start', 'start_rr', 'start_ser', 'start_later' then
      select case when is_new then 'new' else 'known' end into answer
      from pgflow.start_run('k', key => 'k', run_at => case verb when 'start_later' then clock_timestamp() + interval '1 hour' end);
    when 'put_off' then
      select case when is_new then 'new' else 'changed' end into answer
      from pgflow.start_run('k', key => 'k', input => '{"n": 1}', debounce_seconds => 3600);
    when 'collect' then
      select case when is_new then 'new' else 'changed' end into answer
      from pgflow.start_run('k', key => 'k', input => '{"items": [1]}', collect => 3, max_wait_seconds => 3600);
    when 'start_many' then
      select case when bool_or(is_new) then 'new' else 'known' end into answer
      from pgflow.start_runs('k', '[["l", "{}"], ["k", "{}"], ["j", "{}"]]');
  end case;
  insert into scene.said (name, verb, token, answer) values (of, verb, by_token, answer);
  return answer;
end
$$;

-- ---------------------------------------------------------------- the closing look

create procedure scene.close()
language plpgsql
as $$
declare
  again scene.said;
begin
  insert into scene.complaint select c.invariant from pgflow.check() c;
  commit;
  for again in select * from scene.said where answer = 'busy' and verb not in ('wake', 'poll', 'bring', 'take_over') loop
    delete from scene.said s where s = again;
    perform scene.play(again.verb, again.name, again.token);
    commit;
  end loop;
  perform pgflow.reap_worker(o.worker_id, -1) from pgflow.observe_workers() o where o.beat = -1;
  commit;
  perform pgflow.poll();
  commit;
  perform pgflow.poll();
  commit;
  -- Other transactions of this server may hold up the horizon.
  update pgflow.relay set leased_until = clock_timestamp() where token is not null;
  commit;
  for round in 1..500 loop
    exit when not exists (select from pgflow.relay where event_id < pgflow.newest_event_())
      and not exists (select from pgflow.event_wait, pgflow.event_cursor c where c.event_id < pgflow.newest_event_());
    perform scene.bring_(9) from pgflow.relay;
    commit;
    perform pgflow.poll();
    commit;
    perform pg_sleep(0.01);
  end loop;
  perform pgflow.poll();
  commit;
  for round in 1..3 loop
    perform pgflow.seal_units(at_once => true);
    commit;
  end loop;
  insert into scene.complaint select c.invariant from pgflow.check() c;
end
$$;
comment on procedure scene.close() is 'Upkeep that every worker does sooner or later: what was busy is tried again, leases of nobody are taken, and two polls';

create view scene.place as
select k.key as name, k.chain_id, r.run_id, concat_ws(' of ', coalesce(o.status, case when e.run_id is not null then 'lease' end,
  case when y.run_id is not null then 'ready' end, case when p.run_id is not null then 'parked' end, h.state, 'nowhere'),
  case when r.generation > 1 then 'generation ' || r.generation end) as place
from pgflow.run_key k
join pgflow.run r on r.run_id = pgflow.newest_run_(k.chain_id)
left join pgflow.outcome o on o.run_id = r.run_id
left join pgflow.lease e on e.run_id = r.run_id
left join pgflow.ready y on y.run_id = r.run_id
left join pgflow.parked p on p.run_id = r.run_id
left join pgflow.held h on h.run_id = r.run_id;

create view scene.letter as -- wherever a message may be
select chain_id, kind::text as kind, name, payload::text as payload, 'mailbox' as found from pgflow.signal
union all
select chain_id, kind::text, name, payload::text, 'aside' from pgflow.undelivered
union all
select r.chain_id, lower(u.kind::text), u.name, u.payload::text, 'journal' from pgflow.unit u join pgflow.run r on r.run_id = u.run_id where u.kind in ('S', 'x')
union all
select r.chain_id, left(case when u.name = 'cancel' then 'x' else u.name end, 1), u.name, u.payload::text, 'journal'
from pgflow.unit u join pgflow.run r on r.run_id = u.run_id where u.kind = 'o';

create view scene.fault as
-- a message is in exactly one place
select 'signal' as what, greatest(s.times - f.times, 0)::int as lost, greatest(f.times - s.times, 0)::int as doubled
from (select name, payload, count(*) as times from scene.sent group by name, payload) s join pgflow.run_key k on k.key = s.name
cross join lateral (
  select count(*) as times from scene.letter l where l.chain_id = k.chain_id and l.kind = 's' and l.payload = to_json(s.payload)::text
) f
union all
-- what was acknowledged is in the journal once, and what was refused is not
select 'flush ' || s.verb, (bool_or(s.answer not like 'lost%' and s.answer not like 'busy%') and min(f.times) = 0)::int,
  greatest(max(f.times) - case when bool_or(s.answer not like 'lost%' and s.answer not like 'busy%') then 1 else 0 end, 0)::int
from scene.said s join pgflow.run_key k on k.key = s.name
cross join lateral (
  select count(*) as times from pgflow.unit u join pgflow.run r on r.run_id = u.run_id
  where r.chain_id = k.chain_id and u.name = s.verb and u.token = s.token and u.kind in ('c', 't', 'x', 'm', 'q', 'h')
) f
where s.verb in ('flush', 'park', 'await', 'give_up', 'complete', 'continue', 'hold', 'child', 'fence', 'hand_on', 'wait_owing', 'fail', 'admit', 'charge', 'settle', 'take_update', 'reject_update')
group by s.verb, s.name, s.token
union all
-- the application's rows and the step's unit stand and fall together
select 'step', greatest(u.n - a.n, 0), greatest(a.n - u.n, 0)
from (select count(*)::int as n from scene.app) a, (select count(*)::int as n from pgflow.unit where name = 'fence') u
union all
-- nobody claims what another holds
select 'claim', 0, greatest(count(*) filter (where answer = 'claimed') - 1 - count(*) filter (where answer in ('ready', 'reclaimed', 'woke')), 0)::int from scene.said
union all
-- after the poll nobody waits for what is there
select 'wake-up', count(distinct w.run_id)::int, 0
from pgflow.wait w join pgflow.parked p on p.run_id = w.run_id join pgflow.signal s on s.chain_id = p.chain_id and s.kind = w.kind
where w.kind = 'c' and s.run_id = p.run_id and s.call = any(w.calls) or w.kind = 's' and s.name = w.name or w.kind = 'e'
  or w.kind in ('g', 'l') and s.run_id = p.run_id and s.call = w.call or w.kind = 'u'
union all
-- an update is taken once, and who was told that the run had ended is never heard
select 'update', 0, greatest(u.taken - 1, 0)::int + (s.was_refused and u.taken > 0)::int
from (select count(*) as taken from pgflow.unit where kind = 'h') u,
  (select bool_or(answer = 'refused') is true as was_refused from scene.said where verb = 'ask_reply') s
union all
-- word of an obligation is on record once, or in the mailbox of whoever owes it; and it is breached once
select 'obligation', (s.is_said and u.closed = 0 and not exists (select from pgflow.signal m where m.kind = 'e'))::int,
  (greatest(u.words - 1, 0) + greatest(u.breaches - 1, 0))::int + (u.closed > 0 and exists (select from pgflow.owed))::int
from (select bool_or(answer = 'sent') is true as is_said from scene.said where verb in ('discharge', 'discharge_rr')) s
cross join (
  select count(*) filter (where kind = 'B') as breaches, count(*) filter (where payload->>'verdict' = 'discharged') as closed,
    count(*) filter (where payload->>'verdict' = 'discharged' and payload->>'word' is not null) as words
  from pgflow.unit where kind in ('D', 'B')
) u
union all
-- one answer counts, and the run takes its verdict once, unless the gate went with the run or was given up
select 'verdict', (a.n > 0 and f.n = 0 and exists (select from pgflow.gate))::int,
  (greatest(a.n - 1, 0) + greatest(f.n - 1, 0) + greatest(c.n - 1, 0))::int
from (select count(*) as n from scene.said where answer = 'answered') a,
  (select count(*) as n from pgflow.gate_answer where closes) c,
  (select (select count(*) from pgflow.unit where kind = 'G') + (select count(*) from pgflow.signal where kind = 'g') as n) f
union all
-- nobody waits for a lock that is free, and one alone holds it
select 'lock', count(distinct w.key)::int, 0 from pgflow.lock_wait w where not exists (select from pgflow.lock l where l.key = w.key)
union all
select 'lock', 0, greatest(count(*)::int - 1, 0) from pgflow.lock
union all
select 'timer', count(distinct p.run_id)::int, 0 from pgflow.parked p join pgflow.timer m on m.run_id = p.run_id where m.due_at <= clock_timestamp()
union all
-- what people asked for has happened, or waits for the holder, or came too late
select 'cancel', 1, 0
from (select distinct name from scene.said where verb in ('cancel', 'cancel_rr', 'force')) s join scene.place p on p.name = s.name
where p.place not like 'cancelled%' and not exists (select from scene.letter l where l.chain_id = p.chain_id and l.kind = 'x')
union all
select 'pause', 1, 0
from (
  select name from scene.said group by name
  having bool_or(verb = 'pause') and not bool_or(verb in ('resume', 'retry', 'cancel', 'cancel_rr', 'force'))
) s join scene.place p on p.name = s.name
where not exists (select from scene.letter l where l.chain_id = p.chain_id and l.kind = 'x') -- which counts for more
  and (p.place like 'ready%' or p.place like 'parked%'
    or p.place like 'lease%' and not exists (select from scene.letter l where l.chain_id = p.chain_id and l.kind = 'p' and l.found = 'mailbox'))
union all
select 'resume', 1, 0
from (select name from scene.said group by name having bool_or(verb in ('resume', 'retry')) and not bool_or(verb = 'pause')) s join scene.place p on p.name = s.name
where p.place like 'paused%'
  or p.place like 'stuck%' and not exists (select from scene.said h where h.name = s.name and h.verb = 'hold')
union all
-- what has ended is sealed, as it is
select 'seal', count(*)::int, 0
from pgflow.outcome o join pgflow.seal_state s on s.is_on
where not exists (
  select from pgflow.seal x
  where x.run_id = o.run_id and x.outcome_hash = pgflow.hash_(pgflow.outcome_text_(o))
    and x.upto_seq = (select max(u.seq) from pgflow.unit u where u.run_id = o.run_id)
)
union all
-- what was published is brought, once unless somebody took it over or went back, and in its order
select 'event', (select count(*) from scene.published p where not exists (select from scene.brought b where b.event_id = p.event_id))::int,
  case when exists (select from scene.said where verb in ('settle_events', 'replay_events')) then 0
    else (select count(*) - count(distinct event_id) from scene.brought) end::int
from pgflow.relay
union all
select 'order', count(*)::int, 0
from (select event_id, min(n) as n from scene.brought group by event_id) a
join (select event_id, min(n) as n from scene.brought group by event_id) b on b.event_id > a.event_id and b.n < a.n
union all
-- a run that waits gets its event, and one
select 'wait', (select count(*) from pgflow.event e, pgflow.event_wait w where pgflow.fits_(e, w))::int,
  greatest(count(*)::int - 1, 0) from scene.letter where name = 'event'
union all
-- an item is in one run
select 'item', greatest(s.times - f.times, 0)::int, greatest(f.times - s.times, 0)::int
from (select count(*) as times from scene.said where verb = 'collect') s,
  (select count(*) as times from pgflow.run r cross join json_array_elements(r.input->'items') i where i::text = '1') f
union all
-- a key names one chain, unless the last of its starts came when that had begun, or was full
select 'start', 0, greatest(count(*)::int - count(distinct (r.tenant, r.key))::int
  - (select count(*) from scene.said where verb in ('put_off', 'collect') and answer = 'new')::int, 0) from pgflow.run r where r.generation = 1;

-- A function and no view, since its plans are kept for the next look.
create function scene.look()
returns table (place text, journal text, mail text, said text, lost bigint, doubled bigint, unsound text)
language plpgsql
as $$
begin
  select string_agg(p.name || ' ' || p.place, ', ' order by p.name) into place from scene.place p;
  select string_agg(k.name || coalesce(' ' || u.name, ''), ', ' order by u.run_id, u.seq) into journal
  from pgflow.unit u join pgflow.unit_kind k on k.kind = u.kind;
  select string_agg(l.found || ' ' || l.name, ', ' order by l.found, l.name) into mail from scene.letter l where l.found <> 'journal';
  select string_agg(s.verb || ': ' || s.answer, ', ' order by s.verb, s.name, s.token, s.answer) into said from scene.said s;
  select sum(f.lost), sum(f.doubled) into lost, doubled from scene.fault f;
  select string_agg(distinct c.invariant, ', ') into unsound from scene.complaint c;
  return next;
end
$$;
