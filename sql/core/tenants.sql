-- Tenants: customers whose runs share a database and must not meet. Each run has one, and hands it on to its children,
-- generations and forks. It comes from the session that starts a run, never from an input.
--
-- A login is bound to its tenants by two facts. It is a member of `pgflow_tenant`, which may call only what stays
-- within a tenant, and `grant_tenant` names the tenants that it acts for. Without such a grant it acts for none. All
-- other roles are of the application and of its operators, and act for every tenant.
--
-- Nothing here is row security of Postgres. No role has a right to a table, and the functions that work on them run
-- as their owner, so a policy would either bind the engine itself, in each statement of each step, or nobody. So the
-- doors ask instead: `chain_of_` where a key becomes a run, the starts, and `own_runs_` where a call names runs by
-- number. Workers pass no door for their steps, which cost the same with tenants as without.
--
-- For readers there is a second view `own_NAME` of each view of runs, made by sql/privileges.sql. It is a security
-- barrier, so no condition of the reader's sees a row of another tenant. The views of the application are none, since
-- the planner could not use an index on labels there.
--
-- The setting `pgflow.tenant` narrows a session to one of its tenants. Then an empty tenant means that one, in what is
-- said and in what the views own_NAME show: the session sees a database of that tenant alone. Anybody may set it, and it
-- adds no right.

create or replace function pgflow.own_tenants()
returns text[]
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  chosen constant text := nullif(current_setting('pgflow.tenant', true), '');
  caller constant name := coalesce(nullif(current_setting('role'), 'none'), session_user);
begin
  -- A superuser has every role.
  if not coalesce(pg_has_role(caller, to_regrole('pgflow_tenant'), 'usage'), false)
    or (select r.rolsuper from pg_roles r where r.rolname = caller)
  then
    return case when chosen is not null then array[chosen] end;
  end if;
  return array(
    select distinct g.tenant from pgflow.tenant_grant g
    where pg_has_role(caller, to_regrole(quote_ident(g.role)), 'usage') and (chosen is null or g.tenant = chosen)
  );
end
$$;
comment on function pgflow.own_tenants()
  is 'Tenants of this session: those that its role was granted, or the one of them that the setting pgflow.tenant '
     'names; null = all';
--! grant own_tenants to pgflow_tenant, pgflow_client, pgflow_worker, pgflow_operator, pgflow_auditor

create or replace function pgflow.has_tenants()
returns boolean
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
as $$ select pgflow.own_tenants() is null and exists (select from pgflow.run_key where tenant > '') $$;
comment on function pgflow.has_tenants()
  is 'True if some runs have a tenant and the session acts for all. A session of one tenant gets false';
--! grant has_tenants to pgflow_tenant, pgflow_client, pgflow_worker, pgflow_operator, pgflow_auditor

create or replace function pgflow.own_tenant_(given text)
returns text
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
declare
  own constant text[] := pgflow.own_tenants();
begin
  if own is null then
    return given;
  elsif given = '' and cardinality(own) = 1 then
    return own[1];
  elsif given = any(own) then
    return given;
  end if;
  raise exception using errcode = 'PF021',
    message = format('this session may not act for tenant %s',
      quote_nullable(case when given = '' then coalesce(current_setting('pgflow.tenant', true), '') else given end)),
    hint = case when own = '{}' then 'pgflow.grant_tenant(role, tenant) lets its role act for one.'
      else 'It acts for ' || array_to_string(own, ', ') || '.' end;
end
$$;
comment on function pgflow.own_tenant_(text)
  is 'The tenant that a caller names, or PF021 if it is not one of the session; empty = the only one of the session';

create or replace function pgflow.check_tenant_(tenant text)
returns void
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
  if tenant is null or octet_length(tenant) > 255 then
    raise exception using errcode = 'PF003',
      message = case when tenant is null then 'the tenant must not be null'
        else format('a tenant must be at most 255 bytes long, not %s', octet_length(tenant)) end;
  end if;
end
$$;
comment on function pgflow.check_tenant_(text) is 'Refuses (PF003) a tenant that no run can have';

create or replace function pgflow.own_runs_(ids bigint[])
returns bigint[]
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
declare
  own constant text[] := pgflow.own_tenants();
begin
  if own is null then
    return ids;
  end if;
  return array(
    select r.run_id from unnest(ids) with ordinality as g (id, n)
    left join pgflow.run r on r.run_id = g.id and r.tenant = any(own)
    order by g.n
  );
end
$$;
comment on function pgflow.own_runs_(bigint[])
  is 'The runs that a caller names, null in place of each that is not of a tenant of the session';

create or replace function pgflow.grant_tenant(role text, tenant text)
returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
  wider text;
begin
  if coalesce(tenant, '') = '' or octet_length(tenant) > 255 then
    raise exception using errcode = 'PF003', message = 'the name of a tenant must be 1 to 255 bytes long';
  elsif not exists (select from pg_roles r where r.rolname = role) then
    raise exception using errcode = 'PF003', message = format('there is no role %s', quote_nullable(role));
  elsif not coalesce(pg_has_role(role::name, to_regrole('pgflow_tenant'), 'usage'), false) then
    raise exception using errcode = 'PF006', message = format('role %s is not a member of pgflow_tenant', role),
      hint = format('Run as a database administrator: grant pgflow_tenant to %I', role);
  end if;
  wider := pgflow.serves_all_as_(role::name);
  if wider is not null then
    raise exception using errcode = 'PF006',
      message = format('role %s acts for every tenant, as a %s', role, wider),
      hint = 'Make another login for the tenant, which is a member of pgflow_tenant only.';
  end if;
  insert into pgflow.tenant_grant (role, tenant, granted_at, granted_by)
  values (role, tenant, pgflow.now_(), session_user) on conflict do nothing;
end
$$;
comment on function pgflow.grant_tenant(text, text)
  is 'Lets a login act for a tenant, and for no other but those that it was granted before. It must be a member of '
     'pgflow_tenant and of no other role of pgflow (else PF006), for instance not pgflow_client';
--! grant grant_tenant to pgflow_operator

create or replace function pgflow.revoke_tenant(role text, tenant text)
returns boolean
language sql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
  with gone as (
    delete from pgflow.tenant_grant g
    where g.role = revoke_tenant.role and g.tenant = revoke_tenant.tenant returning 1
  )
  select exists (select from gone)
$$;
comment on function pgflow.revoke_tenant(text, text)
  is 'Takes back a grant of grant_tenant(); true if there was one. Calls that are under way end as they began';
--! grant revoke_tenant to pgflow_operator

create or replace function pgflow.serves_all_as_(role name)
returns text
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
  select case when (select r.rolsuper from pg_roles r where r.rolname = role) then 'superuser' else (
    select r.rolname from pg_roles r
    where (r.rolname in ('pgflow_client', 'pgflow_worker', 'pgflow_operator', 'pgflow_auditor', 'pgflow_declarer',
        'pgflow_approver', 'pgflow_speaker')
      or r.oid = (select n.nspowner from pg_namespace n where n.nspname = 'pgflow'))
      and pg_has_role(role, r.oid, 'member')
    order by r.rolname limit 1
  ) end
$$;
comment on function pgflow.serves_all_as_(name)
  is 'Name of the role of pgflow that lets a role act for every tenant, or superuser; null = none';

create or replace function pgflow.check_tenants_()
returns table (invariant text, detail text)
language sql
volatile
set search_path = pg_catalog, pg_temp
as $$
  select 'a role of a tenant acts for no other', format('role %s is a %s', g.role, w.wider)
  from (select distinct t.role from pgflow.tenant_grant t) g
  join pg_roles r on r.rolname = g.role
  cross join lateral (select pgflow.serves_all_as_(r.rolname) as wider) w
  where w.wider is not null
  union all
  select 'a run has the tenant of what it comes from', format('run %s', r.run_id)
  from pgflow.run r join pgflow.run o on o.run_id in (r.chain_id, r.parent_run_id, r.origin_run_id)
  where o.tenant <> r.tenant
$$;
comment on function pgflow.check_tenants_()
  is 'Roles of tenants that another role lets act for all, and runs that have another tenant than what they come from';

drop view if exists pgflow.tenant_grants;
create view pgflow.tenant_grants as
select g.role, g.tenant::text as tenant, g.granted_at, g.granted_by from pgflow.tenant_grant g;
comment on view pgflow.tenant_grants is 'Tenants that each login may act for';
--! grant tenant_grants to pgflow_client, pgflow_worker, pgflow_operator, pgflow_auditor
comment on column pgflow.tenant_grants.role is 'Name of the role';
comment on column pgflow.tenant_grants.tenant is 'The tenant';
comment on column pgflow.tenant_grants.granted_at is 'Time of the grant';
comment on column pgflow.tenant_grants.granted_by is 'Role that granted it';

comment on column pgflow.tenant_grant.role is 'Name of the role, or of a group that it is a member of';
comment on column pgflow.tenant_grant.tenant is 'The tenant';
comment on column pgflow.tenant_grant.granted_at is 'Time of the grant';
comment on column pgflow.tenant_grant.granted_by is 'Role that granted it';
