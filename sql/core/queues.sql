-- Rules of queues, changed while they work, and who changed them.
--
-- `set_queue` says only what is to change: a rule that it does not name stays, and null takes one away. Claims of a
-- queue with a rule stand behind the lock of its row, and so does this: from its commit on no claim goes by the old
-- rules. What runs already goes on. A lower limit is reached as runs end.

create or replace function pgflow.read_rate_(said text, out many int, out seconds float8)
returns record
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
declare
  part text[] := regexp_match(said, '^ *([0-9]{1,9}) */ *([0-9]{0,9}(?:[.][0-9]{1,6})?) *(ms|s|m|h|d) *$');
begin
  if said is null then
    return;
  end if;
  many := part[1]::int;
  seconds := coalesce(nullif(part[2], ''), '1')::float8
    * case part[3] when 'ms' then 0.001 when 's' then 1 when 'm' then 60 when 'h' then 3600 when 'd' then 86400 end;
  if part is null or many = 0 or seconds not between 0.01 and 2592000 then
    raise exception using errcode = 'PF003', message = format('invalid rate: %s', quote_literal(said)),
      hint = 'Say how many in which time, from 10ms to 30d: 100/1m, 5/s, 1000/2h.';
  end if;
end
$$;
comment on function pgflow.read_rate_(text)
  is 'Number and seconds of a rate such as 100/1m; PF003 if it is none';

create or replace function pgflow.note_queue_(queue text, what text, said jsonb, why text, sent_by text, t timestamptz)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  id bigint;
begin
  insert into pgflow.queue_change (changed_at, queue, what, said, why, changed_by)
  values (t, queue, what, said, pgflow.told_(why, 4096), pgflow.sender_(sent_by))
  returning queue_change_id into id;
  perform pgflow.note_evidence_('queue_change', json_build_array(id));
end
$$;
comment on function pgflow.note_queue_(text, text, jsonb, text, text, timestamptz)
  is 'Records a change of a queue, and by whom';

create or replace function pgflow.refuse_rules_(rules jsonb)
returns void
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
declare
  wrong text;
begin
  select format('%s must be %s, not %s', g.name, k.wants, left(g.value::text, 100)) into wrong
  from jsonb_each(rules) as g (name, value)
  join (values
    ('concurrency', 'number', 'a whole number from 1'), ('per_worker', 'number', 'a whole number from 1'),
    ('per_key', 'number', 'a whole number from 1'), ('burst', 'number', 'a whole number from 1'),
    ('key_burst', 'number', 'a whole number from 1'), ('max_deaths', 'number', 'a whole number from 1 to 1000'),
    ('ageing_seconds', 'number', 'seconds, at most 30 days'),
    ('expires_seconds', 'number', 'seconds, at most a year'), ('key', 'string', 'an expression'),
    ('rate', 'string', 'a rate such as 100/1m'),
    ('key_rate', 'string', 'a rate such as 100/1m'), ('fifo', 'boolean', 'true or false'),
    ('closed', 'boolean', 'true or false'),
    ('weights', 'object', 'an object of whole numbers from 1 to 1000')
  ) as k (name, type, wants) on k.name = g.name
  where g.value <> 'null' and (
    jsonb_typeof(g.value) <> k.type
    or k.type = 'number' and ((g.value)::numeric <= 0 or (g.value)::numeric > 2147483647
      or k.name not in ('ageing_seconds', 'expires_seconds') and (g.value)::numeric % 1 <> 0
      or k.name = 'max_deaths' and (g.value)::numeric > 1000
      or k.name = 'ageing_seconds' and (g.value)::numeric > 2592000
      or k.name = 'expires_seconds' and (g.value)::numeric > 31536000)
    or k.type = 'object' and exists (
      select from jsonb_each(g.value) w where jsonb_typeof(w.value) <> 'number' or case
        when jsonb_typeof(w.value) = 'number' then (w.value)::numeric not between 1 and 1000
          or (w.value)::numeric % 1 <> 0 end)
  )
  order by g.name limit 1;
  if wrong is not null then
    raise exception using errcode = 'PF003', message = wrong;
  end if;
  if exists (
    select from string_to_array(replace(rules->>'key', ' ', ''), ',') as e (terms)
    cross join unnest(e.terms) as t (term)
    where t.term !~ '^(tenant|workflow|labels[.].+|input([.][^.]+)+)$' or cardinality(e.terms) > 8
  ) or octet_length(rules->>'key') not between 1 and 255 then
    raise exception using errcode = 'PF003',
      message = format('%s is no key', quote_literal(left(rules->>'key', 255))),
      hint = 'Name parts of the input, labels, the tenant or the workflow: '
        '`input.customer.id`, `tenant, labels.region`.';
  end if;
end
$$;
comment on function pgflow.refuse_rules_(jsonb) is 'Refuses (PF003) rules that no queue can have';

create or replace function pgflow.move_slots_(queue text, scope "char", was float8, becomes float8)
returns void
language sql
volatile
set search_path = pg_catalog, pg_temp
as $$
  -- Of the new hundredth in which the old one ended: what began counts for no shorter than it should.
  with gone as (
    delete from pgflow.line_rate s where s.queue = move_slots_.queue and s.scope = move_slots_.scope returning s.*
  )
  insert into pgflow.line_rate (slot, starts, scope, queue, key)
  select ((g.slot + 1) * (was * 10000)::bigint - 1) / (becomes * 10000)::bigint, sum(g.starts), g.scope, g.queue, g.key
  from gone g where becomes is not null group by 1, g.scope, g.queue, g.key
$$;
comment on function pgflow.move_slots_(text, "char", float8, float8)
  is 'Counts what has begun by the hundredths of a window of another length';

create or replace function pgflow.set_queue(
  queue text, rules jsonb, why text default null, sent_by text default null
)
returns jsonb
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
  t timestamptz;
  unknown text;
  was pgflow.line;
  line pgflow.line;
  lanes int[];
  more int[];
begin
  perform pgflow.check_name_(queue, 'the name of a queue');
  if jsonb_typeof(rules) is distinct from 'object' then
    raise exception using errcode = 'PF003', message = 'the rules of a queue must be an object';
  end if;
  select string_agg(k, ', ' order by k) into unknown from jsonb_object_keys(rules) k
  where k not in ('concurrency', 'per_worker', 'key', 'per_key', 'fifo', 'rate', 'burst', 'key_rate', 'key_burst',
    'ageing_seconds', 'weights', 'expires_seconds', 'closed', 'max_deaths');
  if unknown is not null then
    raise exception using errcode = 'PF003', message = format('a queue has no rule named %s', unknown),
      hint = 'There are concurrency, per_worker, key, per_key, fifo, rate, burst, key_rate, key_burst, '
        'ageing_seconds, weights, expires_seconds, closed and max_deaths.';
  end if;
  perform pgflow.refuse_rules_(rules);
  insert into pgflow.queue (queue) values (queue) on conflict do nothing;
  perform from pgflow.queue q where q.queue = queue for no key update;
  select p.* into was from pgflow.line p where p.queue = queue;
  t := pgflow.now_();

  line := was;
  line.queue := queue;
  line.is_fifo := coalesce(line.is_fifo, false);
  if rules ? 'key' then line.key := rules->>'key'; end if;
  if rules ? 'per_key' then line.max_per_key := (rules->>'per_key')::int; end if;
  if rules ? 'fifo' then line.is_fifo := coalesce((rules->>'fifo')::boolean, false); end if;
  if rules ? 'ageing_seconds' then line.ageing_seconds := (rules->>'ageing_seconds')::float8; end if;
  if rules ? 'expires_seconds' then line.expires_seconds := (rules->>'expires_seconds')::float8; end if;
  if rules ? 'weights' then line.weights := nullif(rules->'weights', 'null'); end if;
  if rules ? 'rate' then
    select r.many, r.seconds into line.rate, line.rate_seconds from pgflow.read_rate_(rules->>'rate') r;
    line.rate_said := replace(rules->>'rate', ' ', '');
  end if;
  if rules ? 'burst' or line.rate is null then line.burst := (rules->>'burst')::int; end if;
  if rules ? 'key_rate' then
    select r.many, r.seconds into line.key_rate, line.key_rate_seconds from pgflow.read_rate_(rules->>'key_rate') r;
    line.key_rate_said := replace(rules->>'key_rate', ' ', '');
  end if;
  if rules ? 'key_burst' or line.key_rate is null then line.key_burst := (rules->>'key_burst')::int; end if;
  if line.burst is not null and line.rate is null or line.key_burst is not null and line.key_rate is null then
    raise exception using errcode = 'PF003', message = 'a burst is of a rate: say the rate too';
  end if;
  if line.key is null and (line.max_per_key is not null or line.key_rate is not null or line.weights is not null) then
    raise exception using errcode = 'PF003', message = 'per_key, key_rate and weights are of keys: say the key too',
      hint = 'For example: {"key": "input.customer", "per_key": 1}';
  end if;
  if line.is_fifo and (line.max_per_key > 1 or line.ageing_seconds is not null) then
    raise exception using errcode = 'PF003',
      message = 'first in, first out has one run of a key at a time, and no priorities: take per_key and ageing away';
  end if;
  line.is_over := (line.key, line.max_per_key, line.rate, line.key_rate, line.ageing_seconds, line.weights,
    line.expires_seconds) is null and not line.is_fifo;

  update pgflow.queue q
  set max_running = case when rules ? 'concurrency' then (rules->>'concurrency')::int else q.max_running end,
    max_per_worker = case when rules ? 'per_worker' then (rules->>'per_worker')::int else q.max_per_worker end,
    max_deaths = case when rules ? 'max_deaths' then coalesce((rules->>'max_deaths')::int, 5) else q.max_deaths end,
    is_lined = case when not line.is_over then true end,
    is_closed = case when rules ? 'closed' then nullif((rules->>'closed')::boolean, false) else q.is_closed end
  where q.queue = queue;

  if not line.is_over or was.queue is not null then
    delete from pgflow.line p where p.queue = queue;
    insert into pgflow.line select line.*;
    insert into pgflow.line_state (queue) values (queue) on conflict do nothing;
    update pgflow.line_state s set opens_at = null where s.queue = queue;
    if was.rate_seconds is distinct from line.rate_seconds then
      perform pgflow.move_slots_(queue, 'q', was.rate_seconds, line.rate_seconds);
    end if;
    if was.key_rate_seconds is distinct from line.key_rate_seconds then
      perform pgflow.move_slots_(queue, 'k', was.key_rate_seconds, line.key_rate_seconds);
    end if;
    if line.is_over or (was.key, was.is_fifo, was.ageing_seconds, was.expires_seconds)
       is distinct from (line.key, line.is_fifo, line.ageing_seconds, line.expires_seconds) then
      -- Claims line them up anew, by the new rules.
      loop
        more := pgflow.leave_line_(queue, 10000);
        exit when more = '{}';
        lanes := lanes || more;
      end loop;
    end if;
    delete from pgflow.line_turn n where n.queue = queue;
    if line.max_per_key is not null or line.is_fifo then
      insert into pgflow.line_turn (chain_id, run_id, queue, key)
      select r.chain_id, r.run_id, queue, pgflow.line_key_(line.key, r.tenant, l.workflow, r.labels, r.input)
      from (
        select e.run_id, e.lane_id from pgflow.lease e
        union all select p.run_id, p.lane_id from pgflow.parked p where p.token is not null
        union all select h.run_id, h.lane_id from pgflow.held h where h.has_begun
        union all select x.run_id, abs(x.lane_id) from pgflow.ready x where x.has_begun
      ) b
      join pgflow.lane l on l.lane_id = b.lane_id and l.queue = set_queue.queue
      join pgflow.run r on r.run_id = b.run_id;
    end if;
  end if;
  perform pgflow.note_queue_(queue, 'set', rules, why, sent_by, t),
    pgflow.tell_workers_(array(select l.lane_id from pgflow.lane l where l.queue = set_queue.queue), '{}');
  return (select q.rules from pgflow.queue_rules q where q.queue = set_queue.queue);
end
$$;
comment on function pgflow.set_queue(text, jsonb, text, text)
  is 'Sets rules of a queue, of those that it names, and answers all: concurrency and per_worker, most runs held at '
     'once by all workers and by one; key, an expression over the input, labels, tenant and workflow of a run; '
     'per_key, most runs of one key; fifo, each once those before it of its key have ended; rate and key_rate, such '
     'as 100/1m, most runs that begin, with burst and key_burst as a bucket; ageing_seconds of waiting that are worth '
     'one step of priority; weights of keys; expires_seconds after which a run that has not begun is cancelled; '
     'closed, true to take no new runs; max_deaths, after so many workers died over a run it is stuck (5 by '
     'default). null removes a rule. PF003: a rule that no queue can have';
--! grant set_queue to pgflow_operator

drop view if exists pgflow.queue_changes;
create view pgflow.queue_changes as
select c.changed_at, c.queue, c.what, c.said, c.why, c.changed_by from pgflow.queue_change c;
comment on view pgflow.queue_changes
  is 'Rules that were set, pauses, resumptions and purges of queues: who, when and why';
--! grant queue_changes to pgflow_client, pgflow_worker, pgflow_operator, pgflow_auditor
comment on column pgflow.queue_changes.changed_at is 'Time of the change';
comment on column pgflow.queue_changes.queue is 'Name of the queue';
comment on column pgflow.queue_changes.what is 'set, paused, resumed or purged';
comment on column pgflow.queue_changes.said
  is 'The rules that were set, as given; null removes one. Of a purge, the number of runs';
comment on column pgflow.queue_changes.why is 'The reason given; null = none';
comment on column pgflow.queue_changes.changed_by
  is 'Author of the change, with the role of the session in brackets';
