-- The run that begins with the first failure in a batch. sql/runs/batches.sql says how it is noticed.
--
-- A batch that asks for none has no row here.

create table pgflow.batch_failure (
  batch_id bigint primary key,
  looked bigint not null default 0,
  fired_at timestamptz,
  member_id bigint,
  started_key text,
  trouble text,
  workflow text not null,
  queue text not null,
  input json not null
) with (fillfactor = 70);
comment on table pgflow.batch_failure is 'Runs that begin with the first failure in their batch';
comment on column pgflow.batch_failure.batch_id is 'The batch';
comment on column pgflow.batch_failure.looked is 'Number of the member up to which the last look has come; it goes round and round';
comment on column pgflow.batch_failure.fired_at is 'Time at which the first failure was seen; null = not yet';
comment on column pgflow.batch_failure.member_id is 'The member that had failed';
comment on column pgflow.batch_failure.started_key is 'Key of the run that has begun with it';
comment on column pgflow.batch_failure.trouble is 'SQLSTATE with which its start was refused';
comment on column pgflow.batch_failure.workflow is 'Workflow of that run';
comment on column pgflow.batch_failure.queue is 'Its queue';
comment on column pgflow.batch_failure.input is 'Its input';
