-- The engine's own audit. There are no foreign keys between hot tables; instead every invariant is a
-- query here, and the tests run it after everything they do. An empty answer says that the books balance.

create or replace function pgflow.is_handed_on_(run_id bigint, seq int)
returns boolean
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
  select exists (
      -- A later generation of the chain has it now.
      select from pgflow.run h join pgflow.run r on r.run_id = is_handed_on_.run_id
      where h.chain_id = r.chain_id and h.generation > 1 and h.generation > r.generation and h.origin_run_id = is_handed_on_.run_id and is_handed_on_.seq <= h.origin_seq
    ) or exists (
      -- Or has it under another call, to take back what was dropped.
      select from pgflow.run h join pgflow.run r on r.run_id = is_handed_on_.run_id
      join pgflow.carried c on c.run_id = h.run_id and c.what = 'undo' and not c.is_done and c.seq = is_handed_on_.seq
      where h.chain_id = r.chain_id and h.generation > 1 and h.generation > r.generation and h.origin_run_id = is_handed_on_.run_id
    ) or exists (
      -- A fork only repeats it: it is its origin's.
      select from pgflow.run r where r.run_id = is_handed_on_.run_id and r.generation = 1 and is_handed_on_.seq <= r.origin_seq
    )
$$;
comment on function pgflow.is_handed_on_(bigint, int) is 'True if another run owes what a unit opened: the generation that took it over, or the origin of a fork';

create or replace function pgflow.check()
returns table (invariant text, detail text)
language plpgsql -- which keeps its plan; before Postgres 18 a function of language sql plans anew at every call
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  return query
  with place as (
    select run_id, 'ready' as place, last_seq, lane_id from pgflow.ready
    union all select run_id, 'lease', last_seq, lane_id from pgflow.lease
    union all select run_id, 'parked', last_seq, lane_id from pgflow.parked
    union all select run_id, 'held', last_seq, lane_id from pgflow.held
  ), newest as (
    select run_id, max(seq) as seq, min(seq) as first_seq, count(*) as units from pgflow.unit group by run_id
  ), terminal as (
    select u.run_id, u.call, count(*) as n
    from pgflow.unit u join pgflow.unit_kind k on k.kind = u.kind
    where k.is_terminal and u.call > 0
      -- The code may give up an effect; the ledger follows it to its end all the same.
      and not (u.kind = 'X' and exists (select from pgflow.unit i where i.run_id = u.run_id and i.call = u.call and i.kind = 'i'))
      -- A message that the code could not take went back: its wait goes on.
      and not (u.kind = 'S' and exists (
        select from pgflow.unit o where o.run_id = u.run_id and o.kind = 'o' and o.name = 'signal_returned' and (o.payload->>'seq')::int = u.seq
      ))
    group by u.run_id, u.call
  ), chain_head as (
    select chain_id, max(run_id) as run_id, max(generation) as generation, count(*) as runs from pgflow.run group by chain_id
  )
  select 'an open run has exactly one place', format('run %s has %s', r.run_id, count(p.run_id))
  from pgflow.run r left join place p on p.run_id = r.run_id
  where not exists (select from pgflow.outcome o where o.run_id = r.run_id)
  group by r.run_id having count(p.run_id) <> 1
  union all
  select 'a finished run has no place', format('run %s is in %s', p.run_id, p.place)
  from place p join pgflow.outcome o on o.run_id = p.run_id
  union all
  select 'a place belongs to a run', format('run %s in %s', p.run_id, p.place)
  from place p where not exists (select from pgflow.run r where r.run_id = p.run_id)
  union all
  select 'a place stands in a lane', format('run %s in %s stands in lane %s', p.run_id, p.place, p.lane_id)
  from place p where not exists (select from pgflow.lane l where l.lane_id = p.lane_id)
  union all
  select 'an outcome belongs to a run', format('run %s', o.run_id)
  from pgflow.outcome o where not exists (select from pgflow.run r where r.run_id = o.run_id)
  union all
  select 'the units of a run are dense from 1', format('run %s has %s units from %s to %s', n.run_id, n.units, n.first_seq, n.seq)
  from newest n where n.first_seq <> 1 or n.units <> n.seq
  union all
  select 'units belong to a run', format('run %s', n.run_id)
  from newest n where not exists (select from pgflow.run r where r.run_id = n.run_id)
  union all
  select 'a place knows the last unit', format('run %s in %s says %s, the journal %s', p.run_id, p.place, p.last_seq, coalesce(n.seq, 0))
  from place p left join newest n on n.run_id = p.run_id
  where case when p.place = 'lease' then p.last_seq > coalesce(n.seq, 0) else p.last_seq <> coalesce(n.seq, 0) end
  union all
  select 'a call ends once', format('call %s of run %s ended %s times', t.call, t.run_id, t.n)
  from terminal t where t.n > 1
  union all
  select 'nothing is recorded after the outcome', format('run %s', o.run_id)
  -- Save what became, afterwards, of effects that a run ended by force had left open, or done.
  from pgflow.outcome o where exists (
    select from pgflow.unit u where u.run_id = o.run_id and u.recorded_at > o.finished_at and not (u.token = 0 and (u.kind in ('U', 'E', 'C', 'F') or u.kind = 'o' and u.name in ('owed', 'discharged')))
  )
  union all
  select 'a parked run can be woken', format('run %s waits for nothing', p.run_id)
  from pgflow.parked p
  where not exists (select from pgflow.wait w where w.run_id = p.run_id) and not exists (select from pgflow.timer m where m.run_id = p.run_id)
    and not exists (select from pgflow.replacement r where r.run_id = p.run_id)
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
      or w.kind = 'e' and s.run_id = p.run_id and s.call = w.call
    )
  ) and not exists (select from pgflow.nudge n where n.chain_id = p.chain_id)
  union all
  select 'no request of a person is lost', format('chain %s', s.chain_id)
  from pgflow.signal s
  where s.kind in ('x', 'p', 'r', 't', 'e')
    and not exists (select from pgflow.nudge n where n.chain_id = s.chain_id)
    and exists (
      select from pgflow.run r join place p on p.run_id = r.run_id
      where (r.run_id = s.chain_id or r.chain_id = s.chain_id and r.generation > 1) and (
          -- A cancel that has brought a run on, which got stuck again before it could take it, rests until the run goes on.
          p.place = 'parked' and (s.kind <> 'e' or s.run_id = p.run_id) or p.place = 'held' and s.has_had_its_try is not true
          and (s.kind <> 'e' or exists (select from pgflow.held h where h.run_id = p.run_id and h.state = 'stuck' and h.reason = 'effect'))
        )
    )
  union all
  select 'mail of the finished is put aside', format('message %s to chain %s', s.signal_id, s.chain_id)
  from pgflow.signal s join chain_head h on h.chain_id = s.chain_id join pgflow.outcome o on o.run_id = h.run_id
  where not exists (select from pgflow.nudge n where n.chain_id = s.chain_id)
  union all
  select 'mail belongs to a chain', format('message %s to chain %s', s.signal_id, s.chain_id)
  from pgflow.signal s where not exists (select from pgflow.run r where r.run_id = s.chain_id)
  union all
  select 'generations are dense', format('chain %s', h.chain_id)
  from chain_head h where h.generation <> h.runs
  union all
  select 'a continued run has a successor', format('run %s', o.run_id)
  from pgflow.outcome o join pgflow.run r on r.run_id = o.run_id
  where o.status = 'continued' and not exists (select from pgflow.run s where s.chain_id = r.chain_id and s.generation = r.generation + 1)
  union all
  select 'a run with a successor is continued', format('run %s', r.run_id)
  from pgflow.run r join pgflow.run s on s.chain_id = r.chain_id and s.generation = r.generation + 1
  where s.generation > 1 and not exists (select from pgflow.outcome o where o.run_id = r.run_id and o.status = 'continued')
  union all
  select 'a key names a chain', format('key %s', k.key)
  from pgflow.run_key k where not exists (select from pgflow.run r where r.run_id = k.chain_id)
  union all
  select 'a child is recorded by its parent', format('run %s', c.run_id)
  from pgflow.run c
  where c.parent_run_id is not null and c.generation = 1
    and not exists (select from pgflow.unit u where u.run_id = c.parent_run_id and u.call = c.parent_call and u.kind = 'k')
  union all
  select 'a parent hears of its child', format('run %s', c.run_id)
  from pgflow.run c join pgflow.outcome o on o.run_id = c.run_id and o.status <> 'continued'
  where c.parent_run_id is not null
    and not exists (select from pgflow.outcome po where po.run_id = c.parent_run_id)
    and not exists (select from pgflow.signal s where s.kind = 'c' and s.run_id = c.parent_run_id and s.call = c.parent_call)
    and not exists (select from pgflow.unit u where u.run_id = c.parent_run_id and u.call = c.parent_call and u.kind in ('K', 'x'))
  union all
  select 'a deadline is not forgotten', format('run %s', r.run_id)
  from pgflow.run r
  where r.deadline_at > pgflow.now_()
    and not exists (select from pgflow.deadline d where d.run_id = r.run_id)
    and not exists (select from pgflow.outcome o where o.run_id = r.run_id)
  union all
  select 'deadlines are of open runs', format('run %s', d.run_id)
  -- One that is due may be in the hands of a sweep; if that fails, the next removes it.
  from pgflow.deadline d where d.due_at > pgflow.now_() and exists (select from pgflow.outcome o where o.run_id = d.run_id)
  union all
  select 'beats of steps are of open runs', format('run %s', b.run_id)
  from pgflow.step_beat b where exists (select from pgflow.outcome o where o.run_id = b.run_id)
  union all
  select 'beats are of accepted effects', format('call %s of run %s', b.call, b.run_id)
  from pgflow.effect_beat b
  where not exists (select from pgflow.owed o where o.run_id = b.run_id and o.call = b.call and o.kind = 'effect' and o.detail ? 'ref')
  union all
  select 'an accepted effect that promised beats is watched', format('call %s of run %s', o.call, o.run_id)
  from pgflow.owed o
  join pgflow.unit a on a.run_id = o.run_id and a.call = o.call and a.kind = 'A' and a.payload->>'heartbeat_timeout' is not null
  left join pgflow.effect_beat b on b.run_id = o.run_id and b.call = o.call
  where o.kind = 'effect' and o.detail->>'state' in ('accepted', 'unknown') and (
    b.run_id is null
    or (b.look_at is null) <> (o.detail->>'state' = 'unknown' or exists (
      select from pgflow.run r join pgflow.signal s on s.chain_id = r.chain_id
      where r.run_id = o.run_id and s.kind = 'e' and s.run_id = o.run_id and s.call = o.call and s.payload->>'verdict' = 'silent'
    ))
  )
  union all
  select 'drafts are of open runs', format('run %s', d.run_id)
  from pgflow.draft d where exists (select from pgflow.outcome o where o.run_id = d.run_id)
  union all
  select 'a run begins with the journal of its origin', format('unit %s of run %s', coalesce(u.seq, o.seq), r.run_id)
  from pgflow.run r
  join pgflow.run g on g.run_id = r.origin_run_id
  cross join lateral (select x.seq, x.call, x.kind, x.name, x.at from pgflow.unit x where x.run_id = g.run_id and x.seq <= r.origin_seq) o
  full join (
    select x.run_id, x.seq, x.call, x.kind, x.name, x.at, w.origin_run_id, w.origin_seq
    from pgflow.run w join pgflow.unit x on x.run_id = w.run_id and x.seq <= w.origin_seq
    where exists (select from pgflow.run s where s.run_id = w.origin_run_id)
  ) u on u.run_id = r.run_id and u.seq = o.seq
  where (u.call, u.name, u.at) is distinct from (o.call, o.name, o.at) or u.kind is distinct from o.kind and not (u.kind = 'c' and o.kind = 'f' and o.seq = r.origin_seq)
  union all
  select 'labels are those of the start with what the run has said of them', format('run %s', x.run_id)
  from (select run_id from pgflow.relabelled union select run_id from pgflow.unit where kind = 'y') x
  left join pgflow.run r on r.run_id = x.run_id
  left join pgflow.relabelled l on l.run_id = x.run_id
  where l.run_id is null or r.labels is null or r.labels is distinct from pgflow.relabelled_(l.labels, x.run_id, 0)
  union all
  select 'what is carried is for a run', format('run %s', c.run_id)
  from pgflow.carried c where not exists (select from pgflow.run r where r.run_id = c.run_id)
  union all
  select 'what a saga carries was done by its chain', format('effect %s of chain %s', s.key, s.chain_id)
  from pgflow.saga_effect s
  where not exists (select from pgflow.run r where r.run_id = s.chain_id)
    or s.generation > 0 and not exists (select from pgflow.imported m where m.run_id = s.chain_id) and not exists (
      select from pgflow.run r join pgflow.unit u on u.run_id = r.run_id and u.call = s.call
      where (r.run_id = s.chain_id or r.chain_id = s.chain_id and r.generation > 1) and r.generation = s.generation
        and (u.kind = 'i' and u.key = s.key or u.kind = 'k' and exists (select from pgflow.unit i where i.kind = 'i' and i.key = s.key))
    )
  union all
  select 'a run that failed has taken back what it carried', format('effect %s, run %s', s.key, o.run_id)
  from pgflow.saga_effect s
  join chain_head h on h.chain_id = s.chain_id
  join pgflow.outcome o on o.run_id = h.run_id and o.status = 'failed'
  where s.generation > 0 and s.taken_back_in is null and s.generation < h.generation
    and not exists (select from pgflow.imported m where m.run_id = s.chain_id)
    and not exists (select from pgflow.unit i where i.run_id = h.run_id and i.kind = 'i' and i.payload->>'compensates' = s.key)
  union all
  select 'what is owed equals the journal', format('call %s of run %s', coalesce(f.call, w.call), coalesce(f.run_id, w.run_id))
  from (
    select u.run_id, u.call from pgflow.unit u
    where u.kind = 'i' and not pgflow.is_handed_on_(u.run_id, u.seq) and not exists (select from pgflow.imported m where m.run_id = u.run_id)
      and pgflow.effect_end_(u.run_id, u.call) is null
    union all
    select u.run_id, u.call from pgflow.unit u join pgflow.run r on r.run_id = u.run_id
    where u.kind = 'o' and u.name = 'owed' and u.seq > coalesce(r.origin_seq, 0) and not exists (select from pgflow.imported m where m.run_id = u.run_id)
      and not exists (
        select from pgflow.unit d where d.run_id = u.run_id and d.call = u.call and d.kind = 'o' and d.name = 'discharged' and d.seq > u.seq
      )
  ) f
  full join (select run_id, call from pgflow.owed where kind = 'effect') w on w.run_id = f.run_id and w.call = f.call
  where f.run_id is null or w.run_id is null;
end
$$;
comment on function pgflow.check() is 'The invariants that do not hold, one a row; empty = sound';
