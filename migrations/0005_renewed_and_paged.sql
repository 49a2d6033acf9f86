-- Results that are made anew when what they claim is gone.

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
