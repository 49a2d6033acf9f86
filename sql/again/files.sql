-- Retries of runs of workflow files. Such a run goes on when a node of it fails, so its last failure says little. All
-- that failed is done again: from the first failure on, and what completed is kept. The runs of files that it has
-- called and that failed are retried before it, so that it takes them up where they were.
--
-- A node that says `always_run` is done again as well, and what completed of it is not handed on. Its player marks its
-- beginning by a read, NODE:always, since the journal has names in the clear, and the file perhaps not.

create or replace function pgflow.is_of_file_(run_id bigint)
returns boolean
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
  select exists (
    select from pgflow.run r join pgflow.lane l using (lane_id)
    where r.run_id = is_of_file_.run_id and l.workflow = 'pgflow.declared'
  )
$$;
comment on function pgflow.is_of_file_(bigint) is 'True for a run of a workflow file';

create or replace function pgflow.first_failure_(run_id bigint)
returns int
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
  with call as (
    select min(u.name) as name, min(u.seq) as seq, bool_or(u.kind in ('c', 'H', 'd', 'C')) as is_done,
      bool_or(u.kind in ('f', 'q')) as has_failed
    from pgflow.unit u where u.run_id = first_failure_.run_id group by u.call
  )
  select least(
    (select min(f.seq) from call f where f.has_failed and not exists (
      select from call d where d.is_done and split_part(d.name, '~', 1) = split_part(f.name, '~', 1)
    )),
    (select min(k.seq) from pgflow.unit k join pgflow.unit e on e.run_id = k.run_id and e.call = k.call
      where k.run_id = first_failure_.run_id and k.kind = 'k' and k.name = 'pgflow.declared' and e.kind = 'K'
        and e.payload->>'status' = 'failed')
  ) - 1
$$;
comment on function pgflow.first_failure_(bigint)
  is 'The seq before the first step of a run of a file that failed in its last try (NODE~2 is the second one), or '
     'before the start of the first run of a file that failed within; null for none';

create or replace function pgflow.fresh_nodes_(run_id bigint)
returns table (node text, seq int)
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
  select left(u.name, -length(':always')), min(u.seq) from pgflow.unit u
  where u.run_id = fresh_nodes_.run_id and u.kind = 'c' and u.name like '%:always' and pgflow.is_of_file_(u.run_id)
  group by u.name
$$;
comment on function pgflow.fresh_nodes_(bigint)
  is 'Nodes of a run of a file that are done again with every retry, each with where it began';

create or replace function pgflow.is_fresh_(step text, nodes text[])
returns boolean
language sql
immutable
set search_path = pg_catalog, pg_temp
as $$
  select exists (
    select from unnest(nodes) n
    where n = step or starts_with(step, n) and substr(step, length(n) + 1, 1) in ('#', '~', ':', '/')
  )
$$;
comment on function pgflow.is_fresh_(text, text[])
  is 'True for a step of one of these nodes, in any round and try of it';

create or replace function pgflow.first_again_(run_id bigint)
returns int
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
  select least(
    pgflow.first_failure_(run_id), (select min(f.seq) from pgflow.fresh_nodes_(first_again_.run_id) f) - 1
  )
$$;
comment on function pgflow.first_again_(bigint)
  is 'The seq from which a retry of a run of a file does its steps again, as far as they are not kept; null for none';

create or replace function pgflow.retry_called_(run_id bigint, why text, sent_by text)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  called record;
begin
  for called in
    select r.key, r.tenant, r.chain_id from pgflow.runs r
    where r.parent_run_id = retry_called_.run_id and r.status = 'failed' and r.workflow = 'pgflow.declared'
    order by r.run_id
  loop
    begin
      perform pgflow.retry_run(called.key, why, called.tenant, sent_by);
      perform pgflow.tell_workers_(array[r.lane_id], '{}')
      from pgflow.run r where r.run_id = pgflow.newest_run_(called.chain_id);
    exception when sqlstate 'PF006' or sqlstate 'PF020' then
      null; -- it stays as it is, and another is started in its place
    end;
  end loop;
end
$$;
comment on function pgflow.retry_called_(bigint, text, text)
  is 'Retries the runs of files that a run of a file has called and that failed, but for those that cannot be';
