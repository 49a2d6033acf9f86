-- What a start may do where its key is taken: recognise itself when it is sent again, and replace the run that has the key.

alter table pgflow.run add column start_id uuid;
comment on column pgflow.run.start_id is 'Made up by whoever sent a start that must not find a run of somebody else under its key: sent again, it finds its own';

create table pgflow.replacement (
  run_id bigint not null,
  waits_for bigint not null,
  primary key (run_id, waits_for)
);
comment on table pgflow.replacement is 'Parked runs that begin once the chains whose key they have taken over have ended';
alter table pgflow.replacement set (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0);
comment on column pgflow.replacement.run_id is 'The run that is to begin';
comment on column pgflow.replacement.waits_for is 'A chain that has had its key';
