-- On a node of Citus what is written here commits in two phases with what the application wrote elsewhere, as the
-- tables of pgflow do (sql/core/citus.sql).

do $$
declare
  one text;
begin
  if to_regprocedure('pgflow_anchor.touch()') is null then
    return;
  end if;
  foreach one in array '{outbox,received,dead,reply,asked}'::text[] loop
    execute format('drop trigger if exists two_phase on pgflow_cluster.%I', one);
    execute format('create trigger two_phase before insert or update or delete on pgflow_cluster.%I'
      ' for each statement execute function pgflow_anchor.touch()', one);
    execute format('alter table pgflow_cluster.%I enable always trigger two_phase', one);
  end loop;
end $$;
