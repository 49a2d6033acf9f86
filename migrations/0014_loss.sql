-- What a fail-over has lost, as the workers remember it that were told it was durable.

create table pgflow.loss (
  loss_id bigint generated always as identity primary key,
  noticed_at timestamptz not null,
  acknowledged_at timestamptz not null,
  closed_at timestamptz,
  acknowledged_bytes bigint not null,
  kept_bytes bigint not null,
  old_timeline int not null,
  new_timeline int not null,
  worker_id int not null,
  pid int not null,
  run_count int not null,
  host text not null,
  closed_by text,
  why text,
  runs jsonb not null
);
comment on table pgflow.loss is 'Losses that workers have noticed: what was acknowledged and is not there any more';
