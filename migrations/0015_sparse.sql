-- Partitions of the journal that stay large for few rows: why each has not been shrunk yet, and when the next try is due.

create table pgflow.sparse_partition (
  name text primary key,
  noticed_at timestamptz not null,
  next_try_at timestamptz not null,
  units bigint not null,
  tries int not null default 0,
  reason text not null check (reason in ('busy', 'units', 'vacuum'))
);
comment on table pgflow.sparse_partition is 'Partitions of the journal that are nearly empty and could not be shrunk yet';
comment on column pgflow.sparse_partition.name is 'Name of the table';
comment on column pgflow.sparse_partition.noticed_at is 'Since when it is known to be nearly empty';
comment on column pgflow.sparse_partition.next_try_at is 'When workers ask for its lock again';
comment on column pgflow.sparse_partition.units is 'How many rows it is kept for, by the last look or the last vacuum';
comment on column pgflow.sparse_partition.tries is 'How often its lock was not to be had in time';
comment on column pgflow.sparse_partition.reason is 'busy = its lock was not to be had in time; units = too many rows to copy under a lock; vacuum = its dead rows are still there';
