-- Rights and owners: the parts that run as their definer belong to the owner of pgflow.

do $$
declare
  owner constant name := (select pg_get_userbyid(n.nspowner) from pg_namespace n where n.nspname = 'pgflow');
  one record;
  role_name text;
begin
  execute format('grant all on schema pgflow_cluster to %I', owner);
  for one in
    select c.oid::regclass as name from pg_class c where c.relnamespace = 'pgflow_cluster'::regnamespace
      and c.relname in ('outbox', 'received', 'dead', 'reply', 'asked')
  loop
    execute format('alter table %s owner to %I', one.name, owner);
  end loop;
  for one in
    select p.oid::regprocedure as name, p.prosecdef, p.proname from pg_proc p
    where p.pronamespace = 'pgflow_cluster'::regnamespace
  loop
    if one.prosecdef then
      execute format('alter function %s owner to %I', one.name, owner);
    end if;
    execute format('revoke execute on function %s from public', one.name);
    execute format('grant execute on function %s to %I', one.name, owner);
    foreach role_name in array '{pgflow_client,pgflow_worker,pgflow_operator}'::text[] loop
      continue when not exists (select from pg_roles where rolname = role_name);
      execute format('grant usage on schema pgflow_cluster to %I', role_name);
      execute format('grant select on pgflow_cluster.node to %I', role_name);
      execute format('grant select, insert, update on pgflow_cluster.key to %I', role_name);
      continue when one.proname in ('take', 'put_answer', 'tell_of_ends') or role_name <> 'pgflow_worker'
        and one.proname in ('pick', 'receive', 'settle', 'sweep', 'due');
      execute format('grant execute on function %s to %I', one.name, role_name);
    end loop;
  end loop;
  if exists (select from pg_roles where rolname = 'pgflow_worker') then
    grant delete on pgflow_cluster.key to pgflow_worker;
  end if;
end $$;
