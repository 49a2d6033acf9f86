-- Unit tests of workflows in SQL. `test_run` plays a run to its end within the caller's transaction: signals are there
-- when they are waited for, a timer is due as soon as nothing else can go on, and children that are not in SQL have the
-- results that the test gives them. The run stands in a queue of its own, so no worker takes it, and nothing of it is
-- ever committed: the functions that workers call are called here, one after the other, and then all is rolled back.
-- Where the caller keeps it, to look at, COMMIT refuses it: nobody may end a wait of days by calling it a test.

create or replace function pgflow.refuse_test_()
returns trigger
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
begin
  raise exception using errcode = 'PF006', message = 'a transaction with a test of a workflow cannot be committed',
    hint = 'Roll it back.';
end
$$;
comment on function pgflow.refuse_test_() is 'Refuses (PF006) the COMMIT of a test';

drop trigger if exists refuse_test on pgflow.flow_test;
create constraint trigger refuse_test after insert on pgflow.flow_test deferrable initially deferred
for each row execute function pgflow.refuse_test_();

comment on column pgflow.flow_test.queue is 'The queue of the test';

create or replace function pgflow.pass_time_(queue text)
returns boolean
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
  next record;
begin
  select m.run_id, m.call into next
  from pgflow.timer m join pgflow.run r on r.run_id = m.run_id join pgflow.lane l on l.lane_id = r.lane_id
  where l.queue = queue order by m.due_at limit 1;
  if not found then
    return false;
  end if;
  -- The clock stays, and what was to come has come: in a transaction that nobody will see.
  perform set_config('pgflow.rewrites', 'on', true);
  update pgflow.unit u set due_at = u.at where u.run_id = next.run_id and u.call = next.call and u.due_at is not null;
  perform set_config('pgflow.rewrites', 'off', true);
  update pgflow.gate g set expires_at = g.asked_at where g.run_id = next.run_id and g.call = next.call;
  update pgflow.timer m set due_at = '-infinity' where m.run_id = next.run_id and m.call = next.call;
  perform pgflow.wake_due_(1, pgflow.now_());
  return true;
end
$$;
comment on function pgflow.pass_time_(text) is 'Lets the next timer of a test be due; false if there is none';

create or replace function pgflow.play_test_(workflow text, input json, signals jsonb, children jsonb, queue text)
returns jsonb
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
  worker int := pgflow.register_worker('test', pg_backend_pid(), array[queue], 1, 'test');
  run record;
  answer jsonb;
  signal record;
begin
  perform pgflow.start_run(workflow, input, key => queue, queue => queue);
  for signal in
    select s.key, p.value from jsonb_each(signals) s
    cross join lateral jsonb_array_elements(case jsonb_typeof(s.value) when 'array' then s.value
      else jsonb_build_array(s.value) end) p
  loop
    perform pgflow.send_signal(queue, signal.key, signal.value::json);
  end loop;
  for turns in 1 .. 100000 loop
    select c.run_id, c.token, c.chain_id, l.workflow, c.last_seq into run
    from pgflow.claim_runs(worker, array(select l.lane_id from pgflow.lane l where l.queue = queue), 1,
      array[(random() * 9e18)::bigint]) c
    join pgflow.lane l on l.lane_id = c.lane_id;
    if not found then
      exit when not pgflow.pass_time_(queue);
      continue;
    end if;
    if exists (select from pgflow.flow f where f.workflow = run.workflow and f.is_current) then
      answer := pgflow.advance(worker, run.run_id, run.token, run.chain_id, 1000);
      if answer is null or answer->>'place' = 'leased' then
        perform pgflow.release_runs(array[run.run_id], array[run.token]);
      end if;
    elsif children ? run.workflow then
      answer := pgflow.commit_units(jsonb_build_object('worker', worker, 'units', jsonb '[]',
        'runs', jsonb_build_array(jsonb_build_array(run.run_id, run.token, run.last_seq)),
        'kin', jsonb_build_array(run.run_id), 'ends', jsonb_build_array(
          jsonb_build_array(run.run_id, 'completed', null, (children->run.workflow)::text, null, run.chain_id,
          run.token, null))));
    else
      raise exception using errcode = 'PF001', message = format('the child %s is not in SQL', run.workflow),
        hint = 'Give its result: children => ''{"' || run.workflow || '": ...}''';
    end if;
    perform pgflow.wake(array(select w::bigint from jsonb_array_elements_text(coalesce(nullif(answer->'wake', 'null'),
      '[]')) w));
  end loop;
  perform pgflow.leave_worker(worker);
  return (
    select jsonb_build_object('status', r.status, 'output', r.output, 'error', r.error, 'steps', (
      select coalesce(jsonb_agg(u.name order by u.seq), '[]') from pgflow.unit u
      where u.run_id = r.run_id and u.kind = 'c' and u.starts->0->>1 = 'q'
    ), 'waits', r.reason)
    from pgflow.runs r where r.key = queue
  );
end
$$;
comment on function pgflow.play_test_(text, json, jsonb, jsonb, text) is 'Plays a run of a test, and says how it went';

create or replace function pgflow.test_run(
  workflow text, input json default '{}', signals jsonb default '{}', children jsonb default '{}',
    keep boolean default false
)
returns jsonb
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  queue constant text := 'test ' || gen_random_uuid();
  result jsonb;
begin
  perform pgflow.require_flow_(workflow), pgflow.check_form_(jsonb_typeof(signals), 'object', 'signals'),
    pgflow.check_form_(jsonb_typeof(children), 'object', 'children');
  if keep then
    insert into pgflow.flow_test (queue) values (queue);
    return pgflow.play_test_(workflow, input, signals, children, queue);
  end if;
  begin
    result := pgflow.play_test_(workflow, input, signals, children, queue);
    raise no_data_found; -- so that nothing is left of it
  exception when no_data_found then
    return result;
  end;
end
$$;
comment on function pgflow.test_run(text, json, jsonb, jsonb, boolean)
  is 'Plays a run of a workflow in SQL to its end and rolls it back: {status, output, error, steps, waits}. signals: '
     '{name: payload, or a list of them}; a time-out is over as soon as nothing else can go on. children: {workflow: '
     'result} of those that are not in SQL. keep: nothing is rolled back, so that you can look at what the steps have '
     'written; the transaction must be rolled back';
--! grant test_run to pgflow_client, pgflow_operator
