-- Losses. A failover to a standby that lacks part of the log loses acknowledged commits, and the rows that could show
-- it are lost with them. So workers remember for some minutes what was acknowledged to them. When the server's log
-- continues from an earlier position, they ask here which of these units still exist, and record the missing ones.
-- Losses that no worker remembers - starts by clients, the application's own commits, the work of a worker that died
-- too - are between the two positions and in no list.

create or replace function pgflow.lost_runs(run_ids bigint[], tokens bigint[], seqs int[], has_ended boolean[])
returns setof bigint
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
  select a.run_id
  from unnest(run_ids, tokens, seqs, has_ended) a (run_id, token, seq, has_ended)
  where (a.seq > 0 and not exists (select from pgflow.unit u where u.run_id = a.run_id and u.seq = a.seq
    and u.token = a.token))
    or (a.has_ended and not exists (select from pgflow.outcome o where o.run_id = a.run_id))
$$;
comment on function pgflow.lost_runs(bigint[], bigint[], int[], boolean[])
  is 'Those runs that lack the unit that this token wrote as this seq, or the outcome if they have ended';
--! grant lost_runs to pgflow_worker

create or replace function pgflow.report_loss(
  worker_id int, host text, pid int, old_timeline int, new_timeline int, acknowledged bigint, kept bigint,
  age_seconds float8, run_count int,
  runs jsonb
)
returns bigint
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
  id bigint;
  t timestamptz := pgflow.now_();
begin
  insert into pgflow.loss (
    noticed_at, acknowledged_at, acknowledged_bytes, kept_bytes, old_timeline, new_timeline, worker_id, pid,
    run_count, host, runs
  ) values (
    t, t - age_seconds * interval '1 second', acknowledged, kept, old_timeline, new_timeline, worker_id, pid,
    run_count, left(host, 255), runs
  ) returning pgflow.loss.loss_id into id;
  perform pgflow.note_evidence_('loss', json_build_array(id));
  return id;
end
$$;
comment on function pgflow.report_loss(int, text, int, int, int, bigint, bigint, float8, int, jsonb)
  is 'A worker writes down that what was acknowledged to it is lost; answers the number of the loss';
--! grant report_loss to pgflow_worker

create or replace function pgflow.close_loss(loss_id bigint, why text, by text default session_user)
returns boolean
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
begin
  update pgflow.loss l set closed_at = pgflow.now_(), closed_by = pgflow.sender_(by), why = pgflow.told_(why, 1000)
  where l.loss_id = loss_id and l.closed_at is null;
  if not found then
    return false;
  end if;
  perform pgflow.note_evidence_('loss_closed', json_build_array(loss_id));
  return true;
end
$$;
comment on function pgflow.close_loss(bigint, text, text)
  is 'Closes a loss, so that doctor does not show it any more; returns false if no open loss has this number';
--! grant close_loss to pgflow_operator

drop view if exists pgflow.losses;
create view pgflow.losses as
select l.loss_id, l.noticed_at, l.acknowledged_at, '0/0'::pg_lsn + l.acknowledged_bytes as acknowledged_lsn,
  '0/0'::pg_lsn + l.kept_bytes as kept_lsn, l.old_timeline, l.new_timeline, l.worker_id, l.host, l.pid,
  l.run_count, l.runs,
  l.closed_at, l.closed_by, l.why
from pgflow.loss l;
comment on view pgflow.losses is 'Losses by failovers of units that were acknowledged to workers';
--! grant losses to pgflow_client, pgflow_worker, pgflow_operator, pgflow_auditor
comment on column pgflow.losses.loss_id is 'Number of the loss, for close_loss()';
comment on column pgflow.losses.noticed_at is 'Time at which the worker noticed';
comment on column pgflow.losses.acknowledged_at
  is 'Time at which the worker last learned the durable position of the lost server''s log';
comment on column pgflow.losses.acknowledged_lsn
  is 'Position up to which it was durable then; more may have been acknowledged since';
comment on column pgflow.losses.kept_lsn
  is 'Position in that log up to which the server at hand had come when it took over; at most, if it was restarted '
     'since';
comment on column pgflow.losses.old_timeline is 'Timeline of the lost server''s log';
comment on column pgflow.losses.new_timeline is 'Timeline of the log that goes on';
comment on column pgflow.losses.worker_id is 'The worker that noticed';
comment on column pgflow.losses.host is 'Name of its machine';
comment on column pgflow.losses.pid is 'Number of its process there';
comment on column pgflow.losses.run_count is 'Runs that lost units acknowledged to this worker';
comment on column pgflow.losses.runs
  is 'Those runs, up to a thousand: key, last acknowledged seq (0 = none), and a mark of an acknowledged end';
comment on column pgflow.losses.closed_at is 'Time at which a person closed it; null = it is open';
comment on column pgflow.losses.closed_by
  is 'Name of the person who closed it, with the role of the session in brackets';
comment on column pgflow.losses.why is 'Reason that they gave';

comment on column pgflow.loss.loss_id is 'Number of the loss';
comment on column pgflow.loss.noticed_at is 'Time at which a worker noticed';
comment on column pgflow.loss.acknowledged_at
  is 'Time at which it last knew how far the lost server''s log was durable';
comment on column pgflow.loss.closed_at is 'Time at which a person closed it; null = it is open';
comment on column pgflow.loss.acknowledged_bytes is 'Position up to which that log was durable then, in bytes';
comment on column pgflow.loss.kept_bytes is 'Position in it up to which the server at hand had come, in bytes';
comment on column pgflow.loss.old_timeline is 'Timeline of the lost log';
comment on column pgflow.loss.new_timeline is 'Timeline of the log that goes on';
comment on column pgflow.loss.worker_id is 'The worker that noticed';
comment on column pgflow.loss.pid is 'Number of its process';
comment on column pgflow.loss.run_count is 'Runs of which something is lost';
comment on column pgflow.loss.host is 'Name of its machine';
comment on column pgflow.loss.closed_by
  is 'Name of the person who closed it, with the role of the session in brackets';
comment on column pgflow.loss.why is 'Reason that they gave';
comment on column pgflow.loss.runs is 'Key, seq and end of each, up to a thousand';
