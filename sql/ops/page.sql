-- Pages: notify a person once of a stuck run, or of an open effect that only a person can close.
--
-- The code that makes a run stuck - a worker, a reaper, a verb - writes nothing here. Workers whose app has a pager
-- look: each need for a person without a row in `page` gets one, and is paged. A row is claimed for a while before
-- the hook is called and marked after it, so a crash in between pages twice and never not at all; the end of the
-- lease is the token that a mark needs. A row is removed once no person is needed any more, and a later need is paged
-- again, under an id of its own.
--
-- One `claim_pages` works at a time, under an advisory lock that no call waits for (`pgflow.page`). No other function
-- claims rows of `page`.

create or replace function pgflow.needs_person_()
returns table (run_id bigint, call int, kind text, opened_at timestamptz, name text, detail json, effect text)
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
  select h.run_id, 0, 'stuck', h.held_at, h.reason, h.detail::json, null
  from pgflow.held h
  where h.state = 'stuck' and (h.reason <> 'effect' or not exists ( -- else its effects are told of by themselves
    select from pgflow.owed o
    where o.run_id = h.run_id and o.kind = 'effect' and o.detail->>'state' = 'unknown' and o.due_at is null
  ))
  union all
  select o.run_id, o.call, o.kind, n.since, o.name, null, o.detail->>'key'
  from pgflow.owed o
  cross join lateral (
    select case
      when o.detail->>'state' = 'accepted' then null
      when o.detail->>'state' = 'uncompensated' or o.detail->>'state' = 'unknown' and o.due_at is null then
        coalesce(timestamptz 'epoch' + (o.detail->>'since')::bigint * interval '1 microsecond', o.opened_at)
      else (select e.finished_at from pgflow.outcome e where e.run_id = o.run_id)
    end as since
  ) n
  where o.kind = 'effect' and n.since is not null
  union all
  select o.run_id, o.call, o.kind, timestamptz 'epoch' + (o.detail->>'since')::bigint * interval '1 microsecond',
    o.name, null, o.detail->>'key'
  from pgflow.owed o where o.kind = 'obligation' and o.detail ? 'since'
$$;
comment on function pgflow.needs_person_()
  is 'Needs for a person, each with its time: stuck runs, and effects and obligations that no run handles';

create or replace function pgflow.claim_pages(max int default 20, lease_seconds float8 default 60)
returns table (
  page_id text, run_id bigint, call int, kind text, opened_at timestamptz, key text, workflow text, generation int,
  tenant text, name text,
  why text, effect text, tries int, leased_until timestamptz, reason text, detail json
)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  t timestamptz;
begin
  -- One at a time; a second call finds the rest next time.
  if not pg_try_advisory_xact_lock(pgflow.latch_('page')) then
    return;
  end if;
  t := pgflow.now_();
  delete from pgflow.page p
  where not exists (
    select from pgflow.needs_person_() n where n.run_id = p.run_id and n.call = p.call and n.kind = p.kind
      and n.opened_at = p.opened_at
  );
  insert into pgflow.page (run_id, call, kind, opened_at, next_at, tries)
  select n.run_id, n.call, n.kind, n.opened_at, t, 0
  from pgflow.needs_person_() n
  where not exists (select from pgflow.page p where p.run_id = n.run_id and p.call = n.call and p.kind = n.kind);
  return query
  with due as (
    select p.run_id, p.call, p.kind from pgflow.page p where p.next_at <= t order by p.next_at, p.run_id, p.call
    limit max for update
  ), taken as (
    update pgflow.page p set tries = p.tries + 1, next_at = t + lease_seconds * interval '1 second'
    from due d where d.run_id = p.run_id and d.call = p.call and d.kind = p.kind
    returning p.*
  )
  select coalesce(n.effect || '#',
    format('%s%s/%s/', r.root, case when r.generation > 1 then '~' || r.generation end, n.kind))
      || pgflow.micros_(n.opened_at),
    n.run_id, n.call, n.kind, n.opened_at, r.key, l.workflow, r.generation, r.tenant, n.name,
    case n.kind when 'effect' then d.detail->>'why' else d.detail->>'message' end,
    n.effect, k.tries, k.next_at, case when n.kind in ('effect', 'obligation') then d.detail->>'reason' else n.name end,
    d.detail
  from taken k
  join pgflow.needs_person_() n on n.run_id = k.run_id and n.call = k.call and n.kind = k.kind
  join pgflow.run r on r.run_id = n.run_id
  join pgflow.lane l on l.lane_id = r.lane_id
  cross join lateral (
    select case n.kind when 'effect' then (
      select u.payload::json from pgflow.unit u where u.run_id = n.run_id and u.call = n.call and u.kind = 'U'
      order by u.seq desc limit 1
    ) when 'obligation' then (
      select json_build_object('reason', coalesce(o.detail->>'reason', o.detail->>'state'), 'to', o.owed_to,
        'due_at', o.due_at, 'trouble', o.detail->'trouble')
      from pgflow.owed o where o.run_id = n.run_id and o.call = n.call and o.kind = 'obligation'
    ) else n.detail end as detail
  ) d
  order by n.opened_at;
end
$$;
comment on function pgflow.claim_pages(int, float8)
  is 'Claims up to this number of due pages. Call page_sent after sending, else they are given out again after the '
     'lease';
--! grant claim_pages to pgflow_worker

create or replace function pgflow.page_sent(
  run_id bigint, call int, kind text, leased_until timestamptz, again_seconds float8 default null
)
returns void
language sql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
  update pgflow.page p
  set paged_at = t, tries = 0, last_error = null, next_at = coalesce(t + page_sent.again_seconds * interval '1 second',
    'infinity')
  from pgflow.now_() t
  where p.run_id = page_sent.run_id and p.call = page_sent.call and p.kind = page_sent.kind
    and p.next_at = page_sent.leased_until
$$;
comment on function pgflow.page_sent(bigint, int, text, timestamptz, float8)
  is 'Records a sent page; it is sent again after this number of seconds if the need persists, null = never. No '
     'effect once the page was given out again';
--! grant page_sent to pgflow_worker

create or replace function pgflow.page_failed(run_id bigint, call int, kind text, leased_until timestamptz, error text)
returns void
language sql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
  update pgflow.page p
  set last_error = left(page_failed.error, 255),
    next_at = t + least(600, 5 * 2 ^ least(p.tries - 1, 10)) * interval '1 second'
  from pgflow.now_() t
  where p.run_id = page_failed.run_id and p.call = page_failed.call and p.kind = page_failed.kind
    and p.next_at = page_failed.leased_until
$$;
comment on function pgflow.page_failed(bigint, int, text, timestamptz, text)
  is 'Records a failed page, which is given out again after a delay that grows from 5 seconds to 10 minutes. No '
     'effect once the page was given out again';
--! grant page_failed to pgflow_worker

comment on column pgflow.page.run_id is 'The run that needs a person';
comment on column pgflow.page.opened_at is 'Time since which a person is needed';
comment on column pgflow.page.next_at
  is 'Time of the next page, or end of the lease of the current one; infinity = never again';
comment on column pgflow.page.paged_at is 'Time of the last page; null = none yet';
comment on column pgflow.page.call is 'Number of the call that it is about; 0 = the run itself';
comment on column pgflow.page.tries is 'Number of attempts since the last page';
comment on column pgflow.page.kind is 'stuck, effect or obligation';
comment on column pgflow.page.last_error is 'Class of the error with which the last try failed; null = it did not';
