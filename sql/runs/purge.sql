-- Purging a queue: the runs of it that have not begun are cancelled, however many there are.
--
-- A purge counts first, and gets the highest number among them. You confirm that number: it names the
-- runs, since those that have not begun and are not above it can only become fewer. Then batches cancel them, each
-- a transaction of its own. Nothing that is started meanwhile is purged.

create or replace function pgflow.unbegun_(queue text, upto bigint)
returns table (run_id bigint, chain_id bigint)
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  lanes int[] := array(select s.sign * l.lane_id from pgflow.lane l cross join (values (1), (-1)) s (sign)
    where l.queue = unbegun_.queue);
begin
  return query
    select w.run_id, r.chain_id
    from (
      select x.run_id from pgflow.ready x
      where x.lane_id = any(lanes) and x.has_begun is null and x.last_seq = 0 and x.attempt = 0
      union all
      select x.run_id from pgflow.parked x where x.lane_id = any(lanes) and x.token is null and x.last_seq = 0
    ) w
    cross join lateral (select n.chain_id from pgflow.run n where n.run_id = w.run_id offset 0) r
    where (w.run_id <= unbegun_.upto or unbegun_.upto is null)
      and not exists (select from pgflow.signal s where s.chain_id = r.chain_id and s.kind = 'x' offset 0);
end
$$;
comment on function pgflow.unbegun_(text, bigint)
  is 'Runs of a queue that wait, and have not been claimed, paused or cancelled, up to a number';

create or replace function pgflow.purge_queue(
  queue text, upto bigint default null, max int default 1000, why text default null, sent_by text default null,
  out runs bigint, out newest bigint, out chains bigint[]
)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
  t timestamptz := pgflow.now_();
  sender text := pgflow.sender_(sent_by);
begin
  perform pgflow.check_name_(queue, 'the name of a queue');
  if max is null or max not between 1 and 10000 then
    raise exception using errcode = 'PF003', message = 'max must be between 1 and 10000';
  end if;
  if upto is null then
    select count(*), max(u.run_id), '{}'::bigint[] into runs, newest, chains from pgflow.unbegun_(queue, null) u;
    return;
  end if;
  newest := upto;
  chains := array(select u.chain_id from pgflow.unbegun_(queue, upto) u order by u.run_id limit max);
  runs := cardinality(chains);
  insert into pgflow.signal (chain_id, sent_at, kind, name, sent_by, payload)
  select c, t, 'x', 'cancel', sender,
    json_build_object('why', pgflow.told_(coalesce(why, 'purged'), 4096), 'reason', 'purged')
  from unnest(chains) c;
  insert into pgflow.nudge (chain_id) select c from unnest(chains) c;
  if runs > 0 then
    perform pgflow.note_queue_(queue, 'purged', jsonb_build_object('runs', runs, 'upto', upto), why, sent_by, t);
  end if;
end
$$;
comment on function pgflow.purge_queue(text, bigint, int, text, text)
  is 'Cancels runs of a queue that have not begun. Without upto it only counts them and answers the newest; with that '
     'number it cancels up to max of those, and answers how many. Call it again until there are none, each time in a '
     'transaction of its own, and wake their chains';
--! grant purge_queue to pgflow_operator
