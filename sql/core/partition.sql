-- Partitions of the journal, by run_id: a month of history goes by dropping tables, not by deleting
-- rows. Each is made as a table of its own and then attached, which locks the parent only against
-- other changes of its shape and never against readers or writers.

create or replace function pgflow.add_partitions_(
  parent text, newest bigint, ahead int, width bigint, indexed text default null
)
returns setof text
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  upper_bound bigint;
  next_number int;
  name text;
begin
  select coalesce(max((regexp_match(pg_get_expr(c.relpartbound, c.oid), 'TO [(]''([0-9]+)''[)]'))[1]::bigint), 0),
         coalesce(max((regexp_match(c.relname, format('^%s_([0-9]+)$', parent)))[1]::int), -1) + 1
  into upper_bound, next_number
  from pg_inherits i join pg_class c on c.oid = i.inhrelid
  where i.inhparent = format('pgflow.%I', parent)::regclass;

  while upper_bound <= newest + ahead * width loop
    name := format('%s_%s', parent, next_number);
    execute format('create table pgflow.%I (like pgflow.%I including defaults including constraints including '
      'compression)', name, parent);
    execute format('alter table pgflow.%I set (autovacuum_vacuum_insert_scale_factor = 0.1)', name);
    if indexed is not null then
      execute format('create index %I on pgflow.%I (%s)', format('%s_%s_idx', name, split_part(indexed, ',', 1)), name,
        indexed);
    end if;
    -- This makes the key, of an empty table.
    execute format('alter table pgflow.%I attach partition pgflow.%I for values from (%s) to (%s)', parent, name,
      upper_bound, upper_bound + width);
    return next name;
    upper_bound := upper_bound + width;
    next_number := next_number + 1;
  end loop;
end
$$;
comment on function pgflow.add_partitions_(text, bigint, int, bigint, text)
  is 'Makes partitions of a table until so many are ahead of its newest number, each with an index on these columns '
     'besides its key; answers their names';

create or replace function pgflow.add_unit_partitions(ahead int default 3, width bigint default 5000000)
returns int
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  newest bigint;
  name text;
  added int := 0;
begin
  perform pg_advisory_xact_lock(pgflow.latch_('add_unit_partitions'));
  select case when is_called then last_value else 0 end into newest from pgflow.run_id_seq;
  for name in select pgflow.add_partitions_('unit', newest, ahead, width) loop
    perform pgflow.guard_table_(name);
    added := added + 1;
  end loop;
  return added;
end
$$;
comment on function pgflow.add_unit_partitions(int, bigint)
  is 'Makes partitions of the journal until so many are ahead of the newest run; answers how many it made';
--! grant add_unit_partitions to pgflow_worker

create or replace function pgflow.drop_empty_partitions_()
returns int
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
declare
  newest bigint;
  part record;
  dropped int := 0;
begin
  select case when is_called then last_value else 0 end into newest from pgflow.run_id_seq;
  -- No session waits behind us for long: a partition whose turn does not come goes the next time.
  perform set_config('lock_timeout', '100ms', true);
  for part in
    select c.relname, b.lower, b.upper
    from pg_inherits i
    join pg_class c on c.oid = i.inhrelid
    cross join lateral regexp_match(pg_get_expr(c.relpartbound, c.oid),
      'FROM [(]''([0-9]+)''[)] TO [(]''([0-9]+)''[)]') m
    cross join lateral (select m[1]::bigint as lower, m[2]::bigint as upper) b
    -- A start may have its number and not be committed yet: the partition before the newest run's stays.
    where i.inhparent = 'pgflow.unit'::regclass and b.upper + (b.upper - b.lower) <= newest
    order by b.lower
  loop
    continue when exists (select from pgflow.run r where r.run_id >= part.lower and r.run_id < part.upper);
    begin
      execute format('drop table pgflow.%I', part.relname);
      dropped := dropped + 1;
    exception when lock_not_available then
      return dropped;
    end;
  end loop;
  return dropped;
end
$$;
comment on function pgflow.drop_empty_partitions_()
  is 'Drops partitions of the journal of which no run is left; answers how many';

select pgflow.add_unit_partitions();
