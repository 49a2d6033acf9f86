-- Batches: runs that belong together, and one that begins once all of them have ended. sql/runs/batches.sql says how.
--
-- A database without batches has no row in these tables.

create table pgflow.batch (
  batch_id bigint primary key,
  upto bigint not null default 0,
  opened_at timestamptz not null,
  begun_at timestamptz,
  is_whole boolean not null default false
) with (fillfactor = 70);
create index batch_open_idx on pgflow.batch (batch_id) where begun_at is null;
comment on table pgflow.batch is 'Runs that begin once all members of their batch have ended';
comment on column pgflow.batch.batch_id is 'The chain that begins then';
comment on column pgflow.batch.upto is 'Number of the member up to which all have ended';
comment on column pgflow.batch.opened_at is 'Time at which its first members were named';
comment on column pgflow.batch.begun_at is 'Time at which all had ended, or the run had been cancelled; null = not yet';
comment on column pgflow.batch.is_whole is 'True once all members are named';

create table pgflow.batch_member (
  batch_id bigint not null,
  n bigint generated always as identity,
  chain_id bigint not null,
  primary key (batch_id, n),
  unique (batch_id, chain_id)
);
comment on table pgflow.batch_member is 'Members of batches, kept as long as the history of the run that they are waited for by';
comment on column pgflow.batch_member.batch_id is 'The chain that waits for them';
comment on column pgflow.batch_member.n is 'Number of the member, in the order in which they were named';
comment on column pgflow.batch_member.chain_id is 'The member';
