-- Idleness: for tests, and for workers that leave when there is not.

create or replace function pgflow.idle_state()
returns table (idle boolean, next_due_at timestamptz, due_timers bigint)
language sql
volatile
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$
  with clock as materialized (select pgflow.now_() as at),
  due as materialized (
    select (select count(*) from pgflow.timer t where t.due_at <= (select at from clock))
      + (select count(*) from pgflow.deadline d where d.due_at <= (select at from clock)) as timers
  )
  select due.timers = 0
    and not exists (
      -- Lane by lane, so that a long queue that is paused is not read to its end.
      select from pgflow.lane l join pgflow.queue q on q.queue = l.queue
      cross join lateral (select from pgflow.ready r where r.lane_id = l.lane_id limit 1) r
      where l.paused_at is null and q.paused_at is null
    )
    and not exists (select from pgflow.lease)
    and not exists (select from pgflow.nudge)
    and not exists (select from pgflow.lock_nudge)
    and not exists (
      select from pgflow.event_wait w cross join pgflow.event_cursor c
      cross join lateral (
        select from pgflow.event e
        where e.topic = w.topic and e.event_id > case when w.is_current then greatest(c.event_id, w.event_id)
          else w.event_id end and pgflow.fits_(e, w) limit 1
      ) e
    )
    and not exists (select from pgflow.effect_beat b where b.look_at <= (select at from clock))
    and not exists (select from pgflow.schedule s where s.look_at <= (select at from clock))
    and not exists (select from pgflow.lock l where l.expires_at <= (select at from clock))
    and not exists (select from pgflow.batch b where b.begun_at is null and pgflow.is_batch_due_(b))
    and not exists (select from pgflow.owed o where o.kind = 'obligation' and o.detail->>'state' = 'open'
      and o.due_at <= (select at from clock)),
    (select min(d.due_at) from (
      select min(t.due_at) as due_at from pgflow.timer t union all select min(x.due_at) from pgflow.deadline x
      union all select min(b.look_at) from pgflow.effect_beat b
    union all select min(s.due_at) from pgflow.schedule s where s.look_at is not null
      union all select min(l.expires_at) from pgflow.lock l
      union all select min(o.due_at) from pgflow.owed o where o.kind = 'obligation' and o.detail->>'state' = 'open'
    ) d),
    due.timers
  from due
$$;
comment on function pgflow.idle_state()
  is 'True if nothing is ready, leased, nudged, due or to be brought to a run; the time of the next timer; and the '
     'number that are due';
--! grant idle_state to pgflow_worker
