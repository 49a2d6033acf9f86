-- The part of the layer that each node of a cluster has for itself. A cluster is a number of databases, its nodes, each with a whole schema
-- `pgflow` and workers of its own. No run ever moves. They share two tables: `node`, and the directory `key`.
--
-- What is for another node is a letter: a row of `outbox`, part of the transaction that writes it. The courier, a part
-- of each worker, picks due letters (`pick`), has the other node take them (`receive`), and strikes them out here
-- (`settle`): three transactions, each on one node. If it dies between them, the letter comes again, and the receiver
-- knows its number (`received`). So nothing here is committed on two nodes at once, but for a claim in the directory.
--
--   kind     signal, cancel, start
--   verdict  done; wait: no run has the key yet, it comes again; dead: it never can be taken, and is put into `dead`
--
-- Letters to one key are delivered in their order: `pick` takes none while an earlier one of its key is on its way or
-- waits. One `pick` for each receiver at a time, by a latch; what was picked is leased, so no lock is held while the
-- other node is asked.
--
-- A child on another node is two runs: one here, of the workflow `pgflow.elsewhere`, which stands for it (`asked`), and
-- one there (`reply`). The end of that one becomes a letter in the transaction that ends it, by a trigger on
-- `pgflow.outcome`. Its number is made from the letter that started it, so that one start has one answer. If the run
-- here is cancelled or ended by force, the same trigger sends a cancel there.
--
-- Rule: no function of this node inside a statement on a shared table, only variables. Citus may send the call to
-- another node, which would answer for itself. What touches shared tables runs with the rights of the caller, because
-- Citus connects to other nodes as the current role; what touches only tables of this node runs as the owner of pgflow.
--
-- Lock order: the caller's own locks; `key` (remote); then one row of `outbox` that is inserted. The courier: the latch
-- of a receiver; `outbox` by seq. The receiver: `received`; then the locks of the verbs of pgflow.

create table if not exists pgflow_cluster.outbox (
  seq bigint generated always as identity primary key,
  id uuid not null unique default gen_random_uuid(),
  node int not null,
  kind text not null check (kind in ('start', 'signal', 'cancel')),
  tenant text not null,
  key text not null,
  content json not null,
  at timestamptz not null,
  due_at timestamptz not null,
  tries int not null default 0,
  error text,
  waits_since timestamptz
);
create index if not exists outbox_due on pgflow_cluster.outbox (node, due_at);
create index if not exists outbox_key on pgflow_cluster.outbox (tenant, key, seq);
comment on table pgflow_cluster.outbox is 'Letters to other nodes that are not known to have arrived';
comment on column pgflow_cluster.outbox.waits_since is
  'Time of the first answer that no run has its key yet: a node that was silent for long has not said so';

create table if not exists pgflow_cluster.received (
  id uuid primary key,
  sender int not null,
  seq bigint not null,
  at timestamptz not null
);
create index if not exists received_sender on pgflow_cluster.received (sender, seq);
comment on table pgflow_cluster.received is 'Numbers of letters taken here, while they may come again';

create table if not exists pgflow_cluster.dead (
  id uuid primary key,
  node int not null,
  kind text not null,
  tenant text not null,
  key text not null,
  content json not null,
  at timestamptz not null,
  died_at timestamptz not null,
  error text not null
);
comment on table pgflow_cluster.dead is 'Letters from here that no node will take, with the reason';

create table if not exists pgflow_cluster.reply (
  chain_id bigint primary key,
  letter uuid not null,
  node int not null,
  tenant text not null,
  key text not null
);
comment on table pgflow_cluster.reply is 'Runs here whose outcome a run of another node waits for';

create table if not exists pgflow_cluster.asked (
  chain_id bigint primary key,
  letter uuid not null,
  node int not null,
  tenant text not null,
  key text not null
);
comment on table pgflow_cluster.asked is 'Runs here that stand for a run of another node';

-- ---------------------------------------------------------------- this node alone, as the owner of pgflow

create or replace function pgflow_cluster.has_key(tenant text, key text)
returns boolean
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  return exists (
    select from pgflow.run_key k
    where k.tenant = pgflow.own_tenant_(has_key.tenant) collate "default" and k.key = has_key.key collate "default"
  );
end
$$;
comment on function pgflow_cluster.has_key(text, text) is 'True if a run of this node has the key';

create or replace function pgflow_cluster.own_tenant(tenant text)
returns text
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  return pgflow.own_tenant_(tenant);
end
$$;
comment on function pgflow_cluster.own_tenant(text) is 'The tenant that a session means, or may not act for';

create or replace function pgflow_cluster.put(
  node int, kind text, tenant text, key text, content json, id uuid default gen_random_uuid()
)
returns uuid
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  t constant timestamptz := pgflow.now_();
begin
  insert into pgflow_cluster.outbox (id, node, kind, tenant, key, content, at, due_at)
  values (put.id, put.node, put.kind, pgflow.own_tenant_(put.tenant), put.key, put.content, t, t)
  on conflict do nothing;
  return put.id;
end
$$;
comment on function pgflow_cluster.put(int, text, text, text, json, uuid) is
  'Puts a letter into the outbox; answers its number';

create or replace function pgflow_cluster.ask_for(letter uuid, node int, tenant text, key text, reply_key text)
returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
  insert into pgflow_cluster.asked (chain_id, letter, node, tenant, key)
  values (pgflow.chain_of_(ask_for.tenant, ask_for.reply_key), ask_for.letter, ask_for.node, ask_for.tenant,
    ask_for.key)
  on conflict on constraint asked_pkey do update
  set letter = excluded.letter, node = excluded.node, tenant = excluded.tenant, key = excluded.key;
end
$$;
comment on function pgflow_cluster.ask_for(uuid, int, text, text, text) is
  'Remembers that a run here stands for one of another node';

create or replace function pgflow_cluster.due()
returns int[]
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  t constant timestamptz := pgflow.now_();
begin
  return array(
    with recursive receiver as (
      select min(o.node) as node from pgflow_cluster.outbox o
      union all
      select (select min(o.node) from pgflow_cluster.outbox o where o.node > r.node) from receiver r
      where r.node is not null
    )
    select r.node from receiver r
    where exists (select from pgflow_cluster.outbox o where o.node = r.node and o.due_at <= t)
  );
end
$$;
comment on function pgflow_cluster.due() is 'Nodes for which letters are due';

create or replace function pgflow_cluster.pick(receiver int, most int, lease_seconds float8)
returns table (low bigint, letters json)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  t constant timestamptz := pgflow.now_();
begin
  if not pg_try_advisory_xact_lock(pgflow.latch_(format('pgflow_cluster.%s', receiver))) then
    return;
  end if;
  return query
  with due as (
    select o.seq from pgflow_cluster.outbox o
    where o.node = receiver and o.due_at <= t and not exists (
      select from pgflow_cluster.outbox e
      where e.tenant = o.tenant and e.key = o.key and e.seq < o.seq and e.node = o.node and e.due_at > t
    )
    order by o.seq limit most
    for update skip locked
  ), picked as (
    update pgflow_cluster.outbox o set due_at = t + lease_seconds * interval '1 second', tries = o.tries + 1
    from due d where o.seq = d.seq
    returning o.seq, o.id, o.kind, o.tenant, o.key, o.content
  )
  select (select min(o.seq) from pgflow_cluster.outbox o), json_agg(p order by p.seq) from picked p having count(*) > 0;
end
$$;
comment on function pgflow_cluster.pick(int, int, float8)
  is 'Leases due letters to a node, in their order; low = the lowest number that may still be on its way';

create or replace function pgflow_cluster.take(letter json)
returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  content constant json := letter->'content';
  tenant constant text := letter->>'tenant';
  key constant text := letter->>'key';
  started record;
begin
  case letter->>'kind'
    when 'signal' then
      perform pgflow.deliver_signal(key, content->>'name', content->'payload', tenant, content->>'sent_by',
        idempotency_key => content->>'idempotency_key');
    when 'cancel' then
      begin
        perform pgflow.cancel_run(key, content->>'why', tenant, content->>'sent_by', (content->>'force')::boolean);
      exception when sqlstate 'PF006' then
        null; -- it has ended
      end;
    when 'start' then
      select s.run_id, s.is_new, s.lane_id into started
      from pgflow.start_run(
        content->>'workflow', content->'input', key, content->>'queue', (content->>'priority')::int,
        (content->>'run_at')::timestamptz, (content->>'timeout_seconds')::float8, (content->'labels')::jsonb,
        (content->'metadata')::jsonb, tenant, null, content->>'version', content->>'if_taken',
        case when json_typeof(content->'defaults') = 'object' then content->'defaults' end,
        (content->>'start_id')::uuid, content->>'pool',
        case when json_typeof(content->'budget') = 'object' then (content->'budget')::jsonb end,
        (content->>'key_seconds')::float8, (content->>'debounce_seconds')::float8,
        (content->>'max_wait_seconds')::float8, (content->>'collect')::int
      ) s;
      if content->>'reply_key' is not null then
        if not started.is_new then
          raise exception using errcode = 'PF002',
            message = format('key %s already names a run, which is not this child', quote_literal(key));
        end if;
        insert into pgflow_cluster.reply (chain_id, letter, node, tenant, key)
        values (started.run_id, (letter->>'id')::uuid, (content->>'reply_node')::int, tenant, content->>'reply_key');
      end if;
      perform pgflow.tell_workers_(array[started.lane_id], '{}');
  end case;
end
$$;
comment on function pgflow_cluster.take(json) is 'Does what a letter asks';

create or replace function pgflow_cluster.receive(sender int, low bigint, letters json)
returns json
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  t constant timestamptz := pgflow.now_();
  letter json;
  address jsonb;
  waiting jsonb[] := '{}'; -- addresses whose later letters wait too, though their run may come meanwhile
  verdicts json[] := '{}';
begin
  for letter in select l.value from json_array_elements(letters) l loop
    begin
      address := jsonb_build_array(letter->>'tenant', letter->>'key');
      if address = any(waiting) then
        raise sqlstate 'PF001' using message = 'an earlier letter to this key waits';
      end if;
      insert into pgflow_cluster.received (id, sender, seq, at)
      values ((letter->>'id')::uuid, receive.sender, (letter->>'seq')::bigint, t) on conflict do nothing;
      if found then
        perform pgflow_cluster.take(letter);
      end if;
      verdicts := verdicts || json_build_object('id', letter->>'id', 'verdict', 'done');
    exception when others then
      if sqlstate ~ '^(08|25|40|53|55|57|58|XX)' then -- trouble of this moment, and of no letter
        raise;
      end if;
      if sqlstate = 'PF001' then
        waiting := waiting || address;
      end if;
      verdicts := verdicts || json_build_object('id', letter->>'id', 'code', sqlstate, 'error', sqlerrm,
        'verdict', case when sqlstate = 'PF001' then 'wait' else 'dead' end);
    end;
  end loop;
  delete from pgflow_cluster.received r where r.sender = receive.sender and r.seq < low and r.at < t - interval '1 day';
  return array_to_json(verdicts);
end
$$;
comment on function pgflow_cluster.receive(int, bigint, json)
  is 'Takes letters of another node, each once; answers the verdict on each';

create or replace function pgflow_cluster.settle(verdicts json)
returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  t constant timestamptz := pgflow.now_();
  one record;
  is_over boolean;
  waits timestamptz;
begin
  -- Without the latch, a pick beside this could pass over a letter that is locked here, and take the next one.
  perform pg_advisory_xact_lock(pgflow.latch_(format('pgflow_cluster.%s', n.node)))
  from (
    select distinct o.node from json_to_recordset(verdicts) as v (id uuid)
    join pgflow_cluster.outbox o on o.id = v.id order by 1
  ) n;
  for one in
    select o.*, v.verdict, v.code, v.error as why
    from json_to_recordset(verdicts) as v (id uuid, verdict text, code text, error text)
    join pgflow_cluster.outbox o on o.id = v.id order by o.seq
    for update of o
  loop
    waits := case when one.verdict = 'wait' then coalesce(one.waits_since, t) else one.waits_since end;
    is_over := one.verdict = 'dead' or one.verdict = 'wait' and waits < t - interval '1 hour'
      or one.verdict = 'silent' and one.at < t - interval '7 days';
    if one.verdict <> 'done' and not is_over then
      update pgflow_cluster.outbox o set error = one.why, waits_since = waits,
        due_at = t + least(5, 0.05 * 2 ^ least(one.tries, 7)) * interval '1 second'
      where o.seq = one.seq;
      continue;
    end if;
    delete from pgflow_cluster.outbox o where o.seq = one.seq;
    continue when one.verdict = 'done';
    insert into pgflow_cluster.dead (id, node, kind, tenant, key, content, at, died_at, error)
    values (one.id, one.node, one.kind, one.tenant, one.key, one.content, one.at, t, one.why) on conflict do nothing;
    if one.content->>'reply_key' is not null then
      perform pgflow_cluster.put_answer(one.id, (one.content->>'reply_node')::int, one.tenant,
        one.content->>'reply_key', json_build_object('status', 'refused', 'code', one.code, 'error', one.why));
    end if;
  end loop;
end
$$;
comment on function pgflow_cluster.settle(json)
  is 'Strikes out letters that were taken, puts aside those that never can be, and puts off the others';

create or replace function pgflow_cluster.put_answer(letter uuid, node int, tenant text, key text, answer json)
returns void
language sql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
  select pgflow_cluster.put(node, 'signal', tenant, key, json_build_object('name', 'pgflow.answer', 'payload', answer,
    'sent_by', 'pgflow'), md5(letter::text || 'answer')::uuid)
$$;
comment on function pgflow_cluster.put_answer(uuid, int, text, text, json)
  is 'Sends the outcome of a run to the one that waits for it: one letter has one answer';

create or replace function pgflow_cluster.tell_of_ends()
returns trigger
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  one record;
begin
  for one in
    delete from pgflow_cluster.reply p using ended e join pgflow.run r on r.run_id = e.run_id
    where p.chain_id = r.chain_id and e.status <> 'continued'
    returning p.*, e.status, e.reason, e.output, e.error
  loop
    perform pgflow_cluster.put_answer(one.letter, one.node, one.tenant, one.key,
      json_build_object('status', one.status, 'reason', one.reason, 'output', one.output::text,
        'error', one.error::text));
  end loop;
  for one in
    delete from pgflow_cluster.asked a using ended e join pgflow.run r on r.run_id = e.run_id
    where a.chain_id = r.chain_id and e.status <> 'continued'
    returning a.*, e.status
  loop
    continue when one.status <> 'cancelled';
    perform pgflow_cluster.put(one.node, 'cancel', one.tenant, one.key, json_build_object('why', 'the parent run ended',
      'sent_by', 'pgflow', 'force', false));
  end loop;
  return null;
end
$$;
comment on function pgflow_cluster.tell_of_ends() is 'Makes letters of the ends of runs that concern another node';

create or replace function pgflow_cluster.standing()
returns json
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  t constant timestamptz := pgflow.now_();
begin
  return (
    select json_build_object('waiting', count(*), 'oldest_at', min(o.at), 'read_at', t,
      'dead', (select count(*) from pgflow_cluster.dead d),
      'open_runs', (select count(*) from pgflow.places_() p),
      'couriers', (
        select count(*) from pgflow.worker w
        where 'pgflow.elsewhere' = any(w.queues) and w.beat_at > t - interval '15 seconds'
      ),
      'version', obj_description('pgflow'::regnamespace, 'pg_namespace'),
      'layer', obj_description('pgflow_cluster'::regnamespace, 'pg_namespace'))
    from pgflow_cluster.outbox o
  );
end
$$;
comment on function pgflow_cluster.standing() is
  'Letters, open runs, workers that bring letters and versions of this node, for `pgflow cluster list` and doctor';

-- ---------------------------------------------------------------- shared tables, with the rights of the caller

create or replace function pgflow_cluster.place(key text, near text)
returns int
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
declare
  what constant text := coalesce(place.near, place.key);
  found_at int;
begin
  -- The highest hash wins: a node that comes or goes moves no other key.
  select n.node into found_at from pgflow_cluster.node n where n.state = 'open'
  order by hashtextextended(what, n.node) desc, n.node limit 1;
  return found_at;
end
$$;
comment on function pgflow_cluster.place(text, text) is
  'Node for a new key: the same for all that are near the same value';

create or replace function pgflow_cluster.claim(
  key text, tenant text default '', node int default null, near_table text default null, near_value text default null
)
returns int
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
  home int;
  wanted int := node;
  tenant constant text := pgflow_cluster.own_tenant(claim.tenant);
  seen_at timestamptz;
  is_open boolean;
  seen constant timestamptz := clock_timestamp();
begin
  if wanted is null and near_table is not null then
    wanted := pgflow_cluster.where_is(near_table, near_value);
  end if;
  wanted := coalesce(wanted, pgflow_cluster.place(key, null));
  perform from pgflow_cluster.node n where n.node = wanted and n.state = 'open';
  is_open := found;
  -- First of all what touches the table: a transaction of Citus that has read a table, and then waits for a move of a
  -- shard to write it, writes the shard that is left behind.
  if is_open then
    insert into pgflow_cluster.key (key, tenant, node, at) values (key, tenant, wanted, seen) on conflict do nothing;
  end if;
  select k.node, k.at into home, seen_at from pgflow_cluster.key k where k.key = key and k.tenant = tenant;
  if home is null and not is_open then
    raise exception using errcode = 'PF003',
      message = format('node %s is not an open node of the cluster', coalesce(wanted::text, 'null')),
      hint = 'See `pgflow cluster list`.';
  elsif home is null then
    raise serialization_failure
      using message = format('key %s was claimed or freed meanwhile: try again', quote_literal(key));
  elsif seen_at < seen - interval '15 days' then -- or a sweep might free it before the run exists
    update pgflow_cluster.key k set at = seen where k.key = key and k.tenant = tenant;
  end if;
  return home;
end
$$;
comment on function pgflow_cluster.claim(text, text, int, text, text)
  is 'Gives a key to a node for good, unless a node has it; answers which. PF003 if that is not an open node';

create or replace function pgflow_cluster.claim_all(
  keys text[], tenant text default '', node int default null, near_table text default null,
  near_value text default null
)
returns int
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
  here constant int := pgflow_cluster.me();
  tenant constant text := pgflow_cluster.own_tenant(claim_all.tenant);
  asked constant text[] := array(select distinct g.k from unnest(keys) g (k) order by 1);
  seen constant timestamptz := clock_timestamp();
  known text[];
  homes int[];
  home int;
begin
  select array_agg(k.key), array_agg(distinct k.node order by k.node) into known, homes
  from pgflow_cluster.key k where k.tenant = tenant and k.key = any(asked);
  if cardinality(homes) > 1 then
    raise exception using errcode = 'PF003',
      message = format('one transaction cannot start runs on nodes %s, where keys of this batch are already',
        array_to_string(homes, ' and ')),
      hint = 'Start them one by one, or in a batch for each node.';
  end if;
  home := homes[1];
  if home is null and node is null and near_table is not null then
    home := pgflow_cluster.where_is(near_table, near_value);
  end if;
  home := coalesce(home, node, here);
  if cardinality(known) < cardinality(asked) or known is null then
    perform from pgflow_cluster.node n where n.node = home and n.state = 'open';
    if not found then
      raise exception using errcode = 'PF003', message = format('node %s is not an open node of the cluster', home),
        hint = 'See `pgflow cluster list`; options(node=...) names another.';
    end if;
    insert into pgflow_cluster.key (key, tenant, node, at)
    select g.k, tenant, home, seen from unnest(asked) g (k) where known is null or g.k <> all(known) order by g.k
    on conflict do nothing;
  end if;
  update pgflow_cluster.key k set at = seen
  where k.tenant = tenant and k.key = any(asked) and k.at < seen - interval '15 days'; -- see claim
  perform from pgflow_cluster.key k where k.tenant = tenant and k.key = any(asked) and k.node = home
  having count(*) = cardinality(asked);
  if not found then
    raise serialization_failure using message = 'a key of the batch was claimed or freed meanwhile: try again';
  end if;
  return home;
end
$$;
comment on function pgflow_cluster.claim_all(text[], text, int, text, text) is
  'Gives keys to one node for good: the one that has some of them, else that of the options, else this one. Answers '
  'which. PF003 if several nodes have some';

create or replace function pgflow_cluster.claim_beside(key text, new_key text, tenant text default '')
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
  here constant int := pgflow_cluster.me();
  home int;
begin
  if not pgflow_cluster.has_key(tenant, key) then
    raise exception using errcode = 'PF001', message = format('no run has the key %s', quote_nullable(key)),
      hint = 'It was never started, its start was rolled back, or its history has been removed.';
  end if;
  home := pgflow_cluster.claim(new_key, tenant, here);
  if home <> here then
    raise exception using errcode = 'PF002',
      message = format('key %s is one of node %s, and a fork is on the node of its run, %s', quote_literal(new_key),
        home, here),
      hint = 'Use another key.';
  end if;
end
$$;
comment on function pgflow_cluster.claim_beside(text, text, text) is
  'Gives a key to this node, where the run of another key is. PF001 if it is not, PF002 if another node has the key';

create or replace function pgflow_cluster.node_of(key text, tenant text default '')
returns int
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
  tenant constant text := pgflow_cluster.own_tenant(node_of.tenant);
begin
  return (select k.node from pgflow_cluster.key k where k.key = key and k.tenant = tenant);
end
$$;
comment on function pgflow_cluster.node_of(text, text) is 'The node that a key was given to; null if it was not';

create or replace function pgflow_cluster.home_of_(key text, tenant text)
returns int
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
declare
  home constant int := pgflow_cluster.node_of(key, tenant);
begin
  if home is null then
    raise exception using errcode = 'PF001',
      message = format('no run of this node, and no node of the cluster, has the key %s', quote_nullable(key)),
      hint = 'Keys of children, schedules and forks are known on their own node only.';
  end if;
  return home;
end
$$;
comment on function pgflow_cluster.home_of_(text, text) is 'The node that a key was given to, or PF001';

create or replace function pgflow_cluster.post_start(
  start json, node int default null, near_table text default null, near_value text default null
)
returns int
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
  key constant text := start->>'key';
  tenant constant text := start->>'tenant';
  home constant int := pgflow_cluster.claim(key, tenant, node, near_table, near_value);
  letter uuid;
begin
  letter := pgflow_cluster.put(home, 'start', tenant, key, start);
  if start->>'reply_key' is not null then
    perform pgflow_cluster.ask_for(letter, home, tenant, key, start->>'reply_key');
  end if;
  return home;
end
$$;
comment on function pgflow_cluster.post_start(json, int, text, text)
  is 'Starts a run on the node of its key, by a letter that is part of the transaction; answers the node';

create or replace function pgflow_cluster.send_signal(
  key text, name text, payload json default 'null', tenant text default '', sent_by text default null,
  idempotency_key text default null,
  out chain_id bigint, out message_id bigint, out ended_as text, out is_new boolean
)
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
begin
  if pgflow_cluster.has_key(tenant, key) then
    select p.chain_id, p.message_id, p.ended_as, p.is_new into chain_id, message_id, ended_as, is_new
    from pgflow.post_signal(key, name, payload, tenant, sent_by, idempotency_key) p;
    return;
  end if;
  perform pgflow_cluster.put(pgflow_cluster.home_of_(key, tenant), 'signal', tenant, key, json_build_object(
    'name', name, 'payload', coalesce(payload, 'null'), 'sent_by', sent_by, 'idempotency_key', idempotency_key));
  is_new := true;
end
$$;
comment on function pgflow_cluster.send_signal(text, text, json, text, text, text)
  is 'Sends a signal to a run of any node, in the caller''s transaction; chain_id is null if it goes by letter';

create or replace function pgflow_cluster.cancel_run(
  key text, why text default 'cancelled', tenant text default '', sent_by text default null, force boolean default false
)
returns bigint
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
begin
  if pgflow_cluster.has_key(tenant, key) then
    return pgflow.cancel_run(key, why, tenant, sent_by, force);
  end if;
  perform pgflow_cluster.put(pgflow_cluster.home_of_(key, tenant), 'cancel', tenant, key, json_build_object(
    'why', why, 'sent_by', sent_by, 'force', force));
  return null;
end
$$;
comment on function pgflow_cluster.cancel_run(text, text, text, text, boolean)
  is 'Cancels a run of any node, in the caller''s transaction; null if that goes by letter';

create or replace function pgflow_cluster.sweep(most int default 1000)
returns int
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  here constant int := pgflow_cluster.me();
  before constant timestamptz := clock_timestamp() - interval '30 days';
  seen constant timestamptz := clock_timestamp();
  freed int := 0;
  one record;
begin
  for one in
    select k.tenant, k.key from pgflow_cluster.key k where k.node = here and k.at < before order by k.at limit most
  loop
    if pgflow_cluster.has_key(one.tenant, one.key) then
      update pgflow_cluster.key k set at = seen where k.key = one.key and k.tenant = one.tenant and k.node = here;
    else
      delete from pgflow_cluster.key k where k.key = one.key and k.tenant = one.tenant and k.node = here
        and k.at < before;
      freed := freed + 1;
    end if;
  end loop;
  return freed;
end
$$;
comment on function pgflow_cluster.sweep(int)
  is 'Frees keys of this node that no run has had for 30 days; answers how many';

drop trigger if exists tell_of_ends on pgflow.outcome;
create trigger tell_of_ends after insert on pgflow.outcome referencing new table as ended
for each statement execute function pgflow_cluster.tell_of_ends();
