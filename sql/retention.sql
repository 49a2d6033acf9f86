-- What may go: keys whose retention is over. (The history itself goes by partition.)

create or replace function pgflow.sweep_keys(max int default 1000)
returns int
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  swept int;
  t timestamptz := pgflow.now_();
begin
  with gone as (
    delete from pgflow.run_key k where k.ctid = any(array(
      select c.ctid from pgflow.run_key c
      join pgflow.outcome o on o.run_id = pgflow.newest_run_(c.chain_id)
      where c.retention_seconds is not null and o.finished_at + c.retention_seconds * interval '1 second' <= t
      limit max
    )) returning 1
  )
  select count(*) into swept from gone;
  return swept;
end
$$;
comment on function pgflow.sweep_keys(int) is 'Frees keys of finished chains whose retention is over; answers how many';
