-- Results that are made anew when what they claim is gone, and what people have been told.

do $$
declare
  journal regclass;
begin
  alter table pgflow.unit drop constraint unit_kind_check;
  for journal in select i.inhrelid::regclass from pg_catalog.pg_inherits i where i.inhparent = 'pgflow.unit'::regclass loop
    execute format('alter table %s drop constraint if exists unit_kind_check', journal); -- a copy of its own
  end loop;
  alter table pgflow.unit add constraint unit_kind_check check (kind in (
    's', 'c', 'f', 'a', 't', 'T', 'S', 'W', 'k', 'K', 'x', 'X', 'p', 'w', 'v', 'e', 'n', 'o',
    'd', 'i', 'j', 'C', 'F', 'U', 'A', 'E', 'R', 'r'));
end $$;

insert into pgflow.unit_kind (kind, name, is_terminal, written_by) values
  ('r', 'step_renewed', false, 'commit_units: what a recorded result claimed was gone, and its body ran again; its new result');

-- Who has been told that a person is needed.

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
