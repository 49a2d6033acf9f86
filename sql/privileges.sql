-- Privileges. No role is granted a table: everything goes through functions, which run with the
-- rights of the schema's owner, and through views. Where the roles do not exist - they belong to the
-- whole cluster, and an installer may lack the right to make them - the owner alone may call; the
-- installer then prints the statements that a database administrator runs.
--
-- What may be called from outside is never compiled, nor is what it calls (`jit = off`). A server with LLVM
-- decides by the estimated cost of a plan, which for tables that fill and drain may be anything, and takes
-- longer to compile than any of our statements takes to run.
-- Applied last, whenever any file changed.

-- The grants stand beside what they are of: a line `--! grant NAME to ROLE, ...` after a function or view. The
-- installer reads those lines of all files, and hands them over in the setting pgflow.grants.

do $$
declare
  grants jsonb := current_setting('pgflow.grants');
  readers constant text[] := '{pgflow_client,pgflow_worker,pgflow_operator,pgflow_auditor,pgflow_declarer,'
    'pgflow_approver,pgflow_speaker,pgflow_tenant}';
  role_name text;
  reads_as text;
  unknown text;
  fn record;
begin
  select string_agg(g.name, ', ' order by g.name) into unknown
  from jsonb_object_keys(grants) as g (name)
  where not exists (select from pg_catalog.pg_proc p where p.pronamespace = 'pgflow'::regnamespace
    and p.proname = g.name)
    and not exists (select from pg_catalog.pg_class c where c.relnamespace = 'pgflow'::regnamespace and c.relkind = 'v'
      and c.relname = g.name);
  if unknown is not null then
    raise exception 'no function or view to grant: %', unknown using hint = 'A line --! grant names what no file makes';
  end if;
  -- A view of runs has a second one, of the runs that are of a tenant of the session.
  for fn in
    select c.relname as name, string_agg(case a.attname
      when 'tenant' then $x$case when coalesce(current_setting('pgflow.tenant', true), '') = '' then v.tenant else ''
        end as tenant$x$ else format('v.%I', a.attname) end, ', ' order by a.attnum) as columns
    from pg_catalog.pg_class c
    join pg_catalog.pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
    where c.relnamespace = 'pgflow'::regnamespace and c.relkind = 'v' and grants->c.relname ? 'pgflow_client'
    group by c.relname having bool_or(a.attname = 'tenant')
  loop
    grants := grants || jsonb_build_object('own_' || fn.name, grants->fn.name || '["pgflow_tenant"]');
    execute format('drop view if exists pgflow.%I', 'own_' || fn.name);
    execute format('create view pgflow.%I with (security_barrier) as select %s from pgflow.%I v '
      'where (select pgflow.own_tenants()) is null or v.tenant = any ((select pgflow.own_tenants())::text[])',
      'own_' || fn.name, fn.columns, fn.name);
    execute format('comment on view pgflow.%I is %L', 'own_' || fn.name,
      format('Rows of the view %s that are of a tenant of the session', fn.name));
  end loop;
  for fn in
    select p.oid::regprocedure as signature
    from pg_catalog.pg_proc p
    where p.pronamespace = 'pgflow'::regnamespace and p.prosecdef and not coalesce('jit=off' = any(p.proconfig), false)
  loop
    execute format('alter function %s set jit = off', fn.signature);
  end loop;
  revoke all on all routines in schema pgflow from public;
  revoke all on all tables in schema pgflow from public;
  revoke all on all sequences in schema pgflow from public;
  revoke all on schema pgflow from public;
  for role_name in select unnest(readers) loop
    continue when not exists (select from pg_catalog.pg_roles where rolname = role_name);
    execute format('revoke all on all routines in schema pgflow from %I', role_name);
    execute format('revoke all on all tables in schema pgflow from %I', role_name);
    execute format('grant usage on schema pgflow to %I', role_name);
    -- Who answers sees what it answers for.
    reads_as := case when role_name in ('pgflow_approver', 'pgflow_speaker') then 'pgflow_auditor' else role_name end;
    for fn in
      select p.oid::regprocedure as signature
      from pg_catalog.pg_proc p
      where p.pronamespace = 'pgflow'::regnamespace and grants->p.proname ?| array[role_name, reads_as]
    loop
      execute format('grant execute on routine %s to %I', fn.signature, role_name);
    end loop;
    for fn in
      select c.oid::regclass as signature
      from pg_catalog.pg_class c
      where c.relnamespace = 'pgflow'::regnamespace and c.relkind = 'v' and grants->c.relname ?| array[role_name, reads_as]
    loop
      execute format('grant select on %s to %I', fn.signature, role_name);
    end loop;
  end loop;
end $$;
