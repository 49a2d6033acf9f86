-- Partitions of the journal that a few rows keep.
--
-- A run that stays open for years keeps the partition of the five million runs that began beside it. Their
-- rows are deleted, but the file stays as large as it was: no later write goes there that could use the
-- room again. So what is still needed is moved into a new file, and the old file is removed as a whole.
--
-- `cluster` does that: it copies the rows behind its index, with the transaction numbers that they have,
-- under a lock on this partition alone. Rows inserted anew into a fresh table would carry our number, and
-- a reader with a snapshot from before - a transaction at repeatable read, a dump, a claim that is
-- just under way - would find an empty journal. It is one transaction: a kill leaves the old file.
--
-- Everybody who reads the journal waits while the lock is held, so the copy must be short. We look first, without the
-- lock, at what the index still points to, dead or alive, and refuse more than `max_units` rows or `max_bytes`. We take
-- the lock (`access exclusive`) only if it is to be had within 100 ms, in which readers of the journal wait behind us,
-- and while we hold nothing that others wait for. If we give up, workers try again after 1, 2, 4 and at most 60
-- minutes. Only one shrinks at a time: others just try its advisory lock (`pgflow.shrink_journal`).

drop view if exists pgflow.partitions;
create view pgflow.partitions as
select c.relname::text as partition, b.first_run_id, b.last_run_id,
  pg_total_relation_size(c.oid) as bytes,
  case when s.name is not null then s.units when c.reltuples >= 0 then c.reltuples::bigint end as units,
  s.reason as kept_large, s.noticed_at, s.tries, s.next_try_at
from pg_inherits i
join pg_class c on c.oid = i.inhrelid
cross join lateral regexp_match(pg_get_expr(c.relpartbound, c.oid), 'FROM [(]''([0-9]+)''[)] TO [(]''([0-9]+)''[)]') m
cross join lateral (select m[1]::bigint as first_run_id, m[2]::bigint - 1 as last_run_id) b
left join pgflow.sparse_partition s on s.name = c.relname
where i.inhparent = 'pgflow.unit'::regclass;
comment on view pgflow.partitions
  is 'The partitions of the journal, how large each is, and why one that is nearly empty is still large';
--! grant partitions to pgflow_client, pgflow_worker, pgflow_operator, pgflow_auditor
comment on column pgflow.partitions.partition is 'Name of the table in the schema pgflow';
comment on column pgflow.partitions.first_run_id is 'The first run id that belongs here';
comment on column pgflow.partitions.last_run_id is 'The last run id that belongs here';
comment on column pgflow.partitions.bytes is 'Size on disk, with indexes';
comment on column pgflow.partitions.units is 'Rows, by the last vacuum; null = none has been by';
comment on column pgflow.partitions.kept_large
  is 'Reason why it has not been shrunk: busy = its lock was not to be had in time, units = too many rows, vacuum = '
     'its dead rows are still there; null = it is not nearly empty';
comment on column pgflow.partitions.noticed_at is 'Time since which it is known to be nearly empty';
comment on column pgflow.partitions.tries is 'Number of times that its lock was not to be had in time';
comment on column pgflow.partitions.next_try_at is 'Time at which workers try again';

create or replace function pgflow.shrink_journal(
  max_units int default 10000, max_bytes bigint default 67108864, min_bytes bigint default 8388608,
  backing_off boolean default false
)
returns table (partition text, bytes_before bigint, bytes_after bigint, units bigint)
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '100ms'
-- What the index points to is read and copied in its order, never the whole file.
set enable_seqscan = off
set enable_bitmapscan = off
set enable_sort = off
set seq_page_cost = 1000000
set max_parallel_workers_per_gather = 0
as $$
#variable_conflict use_column
declare
  page_size constant int := current_setting('block_size')::int;
  newest bigint;
  part record;
  obstacle text;
  found_units bigint;
  found_bytes bigint;
  read_before bigint;
  t timestamptz;
begin
  if not coalesce(max_units > 0 and min_bytes >= 0, false) or max_bytes <= 0 then
    raise exception using errcode = 'PF003',
      message = 'max_units and max_bytes must be greater than zero, and min_bytes not less than zero';
  end if;
  if not pg_try_advisory_xact_lock(pgflow.latch_('shrink_journal')) then
    return;
  end if;
  t := pgflow.now_();
  select case when is_called then last_value else 0 end into newest from pgflow.run_id_seq;
  delete from pgflow.sparse_partition s where not exists (select from pgflow.partitions p where p.partition = s.name);
  for part in
    select p.partition, p.bytes, p.kept_large, p.next_try_at, c.oid, c.relpages, c.relallvisible, c.reltuples,
      x.oid as key_index,
      pg_relation_size(c.oid) / page_size as pages, pg_relation_size(x.oid) / page_size as index_pages
    from pgflow.partitions p
    join pg_class c on c.relname = p.partition and c.relnamespace = 'pgflow'::regnamespace
    join pg_class x on x.relname = p.partition || '_pkey' and x.relnamespace = 'pgflow'::regnamespace
    -- Runs whose number is taken but not committed yet may still begin in the partition before the newest run's.
    where 2 * p.last_run_id - p.first_run_id + 2 <= newest
    order by p.first_run_id
  loop
    found_units := greatest(part.reltuples, 0);
    obstacle := case
      -- Values of many pages lie beside the table, so a row has no four pages of it to itself unless others have gone.
      when (part.pages + part.index_pages) * page_size < min_bytes then 'full'
      -- Where the file has grown by much since it was counted is unknown.
      when part.reltuples < 0 or part.pages + part.index_pages <= 4 * part.reltuples
        or part.pages - part.relpages > 1000 then
        case when pg_stat_get_dead_tuples(part.oid) > greatest(pg_stat_get_live_tuples(part.oid), 1) then 'vacuum'
          else 'full' end
      when part.reltuples > max_units then 'units'
      when part.relpages - part.relallvisible > 1000 then 'vacuum'
    end;
    if obstacle = 'full' then
      delete from pgflow.sparse_partition s where s.name = part.partition;
      continue;
    end if;
    continue when backing_off and part.kept_large = 'busy' and part.next_try_at > t;
    if obstacle is null then
      begin
        read_before := pg_stat_get_xact_tuples_returned(part.key_index);
        execute format('
          select count(*), coalesce(
            sum(100 + coalesce(pg_column_size(u.payload), 0) + coalesce(pg_column_size(u.starts), 0)), 0)
          from (select payload, starts from pgflow.%I order by run_id, seq
            limit %s) u', part.partition, max_units + 1::bigint)
        into found_units, found_bytes;
        obstacle := case
          when found_units > max_units or found_bytes > max_bytes then 'units'
          when pg_stat_get_xact_tuples_returned(part.key_index) - read_before > 2 * found_units + 100 then 'vacuum'
        end;
        if obstacle is null then
          execute format('cluster pgflow.%I using %I', part.partition, part.partition || '_pkey');
          execute format('alter table pgflow.%I set without cluster', part.partition);
        end if;
      exception
        when lock_not_available then
          obstacle := 'busy';
        when undefined_table then
          continue;  -- dropped meanwhile
      end;
    end if;
    if obstacle is null then
      delete from pgflow.sparse_partition s where s.name = part.partition;
      partition := part.partition;
      bytes_before := part.bytes;
      bytes_after := pg_total_relation_size(part.oid);
      units := found_units;
      return next;
      continue;
    end if;
    insert into pgflow.sparse_partition as s (name, noticed_at, next_try_at, units, tries, reason)
    values (part.partition, t, t + interval '1 minute', found_units, case obstacle when 'busy' then 1
      else 0 end, obstacle)
    on conflict (name) do update set
      units = excluded.units, reason = excluded.reason, tries = s.tries + excluded.tries,
      next_try_at = t + least(2 ^ least(s.tries, 6), 60) * interval '1 minute';
    -- Readers of the journal have waited behind us: not twice in one call.
    exit when obstacle = 'busy';
  end loop;
end
$$;
comment on function pgflow.shrink_journal(int, bigint, bigint, boolean)
  is 'Shrinks partitions of the journal that hold little after history was removed: moves what is left in each into a '
     'new file, if it is not more than that (max_bytes null = any size); answers which. Workers call it once a minute, '
     'and back off from one that others use';
--! grant shrink_journal to pgflow_worker, pgflow_operator
