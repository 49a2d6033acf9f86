-- What people have been told: who must be told that a person is needed, and when one was.

create table pgflow.page (
  run_id bigint not null,
  opened_at timestamptz not null,
  next_at timestamptz not null,
  paged_at timestamptz,
  call int not null,
  tries int not null,
  kind text not null check (kind in ('stuck', 'effect')),
  last_error text check (char_length(last_error) <= 255),
  primary key (run_id, call, kind)
);
comment on table pgflow.page is 'What a person must bring on, and when one was told; kept by workers whose app has a pager';
