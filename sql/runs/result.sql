-- Reading what became of runs: by key for people and SQL, by chain for the clients that wait.

create or replace function pgflow.status_(run_id bigint)
returns text
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
  select coalesce(
    (select o.status from pgflow.outcome o where o.run_id = status_.run_id),
    (select 'running' from pgflow.lease e where e.run_id = status_.run_id),
    (select 'queued' from pgflow.ready r where r.run_id = status_.run_id),
    (select 'waiting' from pgflow.parked p where p.run_id = status_.run_id),
    (select h.state from pgflow.held h where h.run_id = status_.run_id)
  )
$$;
comment on function pgflow.status_(bigint) is 'Status of a run, read from its place';

create or replace function pgflow.result(
  key text, tenant text default '', out status text, out output json, out error json, out reason text
)
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  id bigint := pgflow.newest_run_(pgflow.chain_of_(tenant, key));
begin
  status := pgflow.status_(id);
  select o.output, o.error, o.reason into output, error, reason from pgflow.outcome o where o.run_id = id;
  if status in ('paused', 'stuck') then
    select to_json(h.detail), h.reason into error, reason from pgflow.held h where h.run_id = id;
  end if;
end
$$;
comment on function pgflow.result(text, text)
  is 'Status of the run that a key names and, once it has ended, its output or error; PF001 if there is none';
--! grant result to pgflow_tenant, pgflow_client, pgflow_worker, pgflow_operator

create or replace function pgflow.find_chain(key text, tenant text default '')
returns bigint
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
  select pgflow.chain_of_(tenant, key)
$$;
comment on function pgflow.find_chain(text, text) is 'The chain that a key names; PF001 if there is none';
--! grant find_chain to pgflow_tenant, pgflow_client, pgflow_worker, pgflow_operator

create or replace function pgflow.results(chains bigint[])
returns table (chain_id bigint, status text, reason text, output text, error text, key text)
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
  select c.id, coalesce(o.status, h.state, 'gone'), coalesce(o.reason, h.reason), o.output::text,
    coalesce(o.error::text, h.detail::text),
    (select k.key from pgflow.run k where k.run_id = n.run_id)
  from unnest(chains, pgflow.own_runs_(chains)) as c (id, own)
  cross join lateral (
    -- No run at all: its history was removed during the wait.
    select case when exists (select from pgflow.outcome f where f.run_id = c.own and f.status <> 'continued' offset 0)
      then c.own else coalesce(
        (select r.run_id from pgflow.run r where r.chain_id = c.own and r.generation > 1
          order by r.generation desc limit 1),
        (select r.run_id from pgflow.run r where r.run_id = c.own)
      ) end as run_id
  ) n
  left join lateral (select e.* from pgflow.outcome e where e.run_id = n.run_id offset 0) o on true
  left join lateral (select * from pgflow.held s where s.run_id = n.run_id and s.state = 'stuck' limit 1) h on true
  where o.run_id is not null or h.run_id is not null or n.run_id is null
$$;
comment on function pgflow.results(bigint[])
  is 'Those of these chains that have ended, are stuck, or are gone with their history, with output or error: what a '
     'waiting client asks';
--! grant results to pgflow_tenant, pgflow_client, pgflow_worker, pgflow_operator

create or replace function pgflow.run_status(key text, tenant text default '')
returns text
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
  select pgflow.status_(pgflow.newest_run_(pgflow.chain_of_(tenant, key)))
$$;
comment on function pgflow.run_status(text, text)
  is 'queued, running, waiting, paused, stuck, completed, failed or cancelled; PF001 if no run has the key';
--! grant run_status to pgflow_tenant, pgflow_client, pgflow_worker, pgflow_operator

create or replace function pgflow.run_state(key text, tenant text default '')
returns json
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
  select coalesce(json_object_agg(l.key, l.value), '{}')
  from (
    select distinct on (e.key) e.key, e.value
    from pgflow.unit u cross join lateral json_each(u.payload) e
    where u.run_id = pgflow.newest_run_(pgflow.chain_of_(run_state.tenant, run_state.key)) and u.kind = 'v'
    order by e.key, u.seq desc
  ) l
$$;
comment on function pgflow.run_state(text, text) is 'Values that the run last set with set_state()';
--! grant run_state to pgflow_tenant, pgflow_client, pgflow_worker, pgflow_operator

create or replace function pgflow.read_stream(
  key text, stream text, after_run bigint default 0, after_seq int default 0, skip int default 0, max int default 1000,
  tenant text default ''
)
returns table (run_id bigint, seq int, value text, draft text)
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
  -- A reader that skips values still learns where the stream was closed.
  select v.run_id, v.seq, v.value, v.key
  from (
    select u.run_id, u.seq, u.payload::text as value, u.key::text as key,
      count(u.payload) over (order by u.run_id, u.seq) as n
    from (select pgflow.chain_of_(read_stream.tenant, read_stream.key) as id) c
    cross join lateral (
      -- What a generation has from the one before has been read there; what the one after it has not taken over is
      -- history, and no more the run's.
      select s.run_id, s.known, min(s.cut) over (
          partition by s.begun_anew order by s.generation desc rows between unbounded preceding and 1 preceding
        ) as upto
      from (
        select k.*, coalesce(sum(case when k.cut is null then 1 else 0 end) over (
            order by k.generation desc rows between unbounded preceding and 1 preceding
          ), 0) as begun_anew
        from (
          select c.id as run_id, 1 as generation, 0 as known, null::int as cut
          union all
          select r.run_id, r.generation, coalesce(r.origin_seq, 0), r.origin_seq from pgflow.run r
          where r.chain_id = c.id and r.generation > 1
        ) k
        where k.run_id >= after_run
      ) s
    ) g
    -- Journal by journal, whatever the planner thinks of how many there are.
    cross join lateral (
      select * from pgflow.unit e
      where e.run_id = g.run_id and e.kind = 'e' and e.name = stream and e.seq > g.known
        and e.seq <= coalesce(g.upto, 2147483647) and (e.run_id, e.seq) > (after_run, after_seq)
      -- A generation closes a stream once at most.
      order by e.seq limit read_stream.max::bigint + pgflow.at_most_(skip) + 1
    ) u
  ) v
  where v.value is null or v.n > skip
  order by v.run_id, v.seq limit pgflow.at_most_(max)
$$;
comment on function pgflow.read_stream(text, text, bigint, int, int, int, text)
  is 'Values that a run emitted to a stream, in order, over its generations, without those that a rewind has dropped; '
     'null = the stream was closed there. `draft` names the value as read_drafts() did while its step ran';
--! grant read_stream to pgflow_tenant, pgflow_client, pgflow_worker, pgflow_operator

create or replace function pgflow.read_drafts(key text, stream text, tenant text default '')
returns table (draft text, value text)
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
  select d.call || ':' || d.try || ':' || d.n, d.value::text
  from pgflow.draft d
  where d.run_id = pgflow.newest_run_(pgflow.chain_of_(read_drafts.tenant, read_drafts.key))
    and d.stream = read_drafts.stream
    -- The end of a try is a unit of its call, and the values are in the journal then, or void.
    and not exists (select from pgflow.unit u where u.run_id = d.run_id and u.seq > d.after_seq and u.call = d.call)
  order by d.call, d.n
$$;
comment on function pgflow.read_drafts(text, text, text)
  is 'Values that running steps of a run have emitted to a stream, and that do not count yet';
--! grant read_drafts to pgflow_tenant, pgflow_client, pgflow_worker, pgflow_operator
