-- Rights to a workflow in SQL: who may start, see and replace it, by role. Its owner is the role that made its first
-- version. Until something is granted or revoked, every role that may start runs may start it, and only members of its
-- owner see its text and replace it.
--
--   start     begin runs of it, directly or as children of a workflow of one's own
--   see       read its text
--   replace   make its next version, whose steps then run with one's own rights; of a name that is not taken: create it
--
-- A function that runs with its owner's rights does not see its caller, save by the role of the session. In a step that
-- would be the driver's. So a driver holds a latch with the name of the definer for as long as the transaction of the
-- step lasts. A step can neither give it back nor take another's, and `acting_` reads it. pg_locks shows its number to
-- everybody, so the name has the number of the transaction too: in any other it means nothing.
--
-- Roles that drive or operate start everything: they could write the rows of any child themselves.

create or replace function pgflow.acting_()
returns oid[]
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
  select case when pg_current_xact_id_if_assigned() is null then '{}' else array(
    select d.definer from (select distinct f.definer::oid as definer from pgflow.flow f) d
    where pgflow.latch_('definer ' || d.definer || ' ' || pg_current_xact_id_if_assigned()::text) in (
      select l.classid::bigint << 32 | l.objid::bigint from pg_locks l
      where l.pid = pg_backend_pid() and l.locktype = 'advisory' and l.objsubid = 1)) end
$$;
comment on function pgflow.acting_() is 'Definers of the steps that this transaction runs; empty outside of steps';

create or replace function pgflow.flow_owner_(workflow text)
returns oid
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
  -- One that is gone with its role is anybody's.
  select r.oid from (
    select f.definer from pgflow.flow f
    where f.workflow = flow_owner_.workflow and f.dropped_at is null order by f.version limit 1
  ) d join pg_roles r on r.oid = d.definer
$$;
comment on function pgflow.flow_owner_(text) is 'Role that made the first version of a workflow in SQL';

create or replace function pgflow.flow_allows_(workflow text, privilege text, role oid)
returns boolean
language sql
stable
set search_path = pg_catalog, pg_temp
as $$
  select coalesce(pg_has_role(flow_allows_.role, pgflow.flow_owner_(flow_allows_.workflow), 'MEMBER'), false)
    or exists (
      select from pgflow.flow_right f left join pg_roles r on r.oid = f.role
      where f.workflow = flow_allows_.workflow and f.privilege = flow_allows_.privilege
        and (f.role = 0 or r.oid is not null and pg_has_role(flow_allows_.role, r.oid, 'MEMBER')))
$$;
comment on function pgflow.flow_allows_(text, text, oid)
  is 'True if a role owns a workflow in SQL, or was granted this right to it';

create or replace function pgflow.refuse_start_(workflow text, definer oid default null)
returns void
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
  roles oid[] := case when definer is null then pgflow.acting_() else array[definer] end;
  other oid;
begin
  if not exists (select from pgflow.flow_right f where f.workflow = workflow and f.privilege = 'start') then
    return;
  elsif roles = '{}' and not pgflow.acts_as_('pgflow_worker') and not pgflow.acts_as_('pgflow_operator') then
    roles := array(select r.oid from pg_roles r where r.rolname = pgflow.caller_());
  end if;
  select r into other from unnest(roles) r where not pgflow.flow_allows_(workflow, 'start', r) limit 1;
  if found then
    raise exception using errcode = 'PF021',
      message = format('role %s may not start workflow %s', quote_ident(pg_get_userbyid(other)),
        quote_literal(workflow)),
      hint = format('Its owner grants it: select pgflow.grant_workflow(%L, %L, ''start'')', workflow,
        pg_get_userbyid(other));
  end if;
end
$$;
comment on function pgflow.refuse_start_(text, oid)
  is 'Refuses (PF021) a start of a workflow that the caller, or the definer of its parent, was not granted';

create or replace function pgflow.require_owner_(workflow text, privilege text)
returns name
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
  owner oid := pgflow.flow_owner_(workflow);
  caller name := pgflow.caller_();
begin
  if privilege not in ('start', 'see', 'replace') or privilege is null then
    raise exception using errcode = 'PF003',
      message = format('%s is no right to a workflow: it is start, see or replace', quote_nullable(privilege));
  elsif owner is null and not pgflow.acts_as_('pgflow_operator')
    and not (select r.rolsuper from pg_roles r where r.rolname = caller)
    or owner is not null and not pg_has_role(caller, owner, 'MEMBER')
  then
    raise exception using errcode = 'PF021',
      message = format('role %s does not own workflow %s', quote_ident(caller), quote_literal(workflow)),
      hint = 'Its owner or a superuser grants rights to it; to a name that is not taken, an operator.';
  end if;
  perform pgflow.lock_flow(workflow);
  if privilege = 'start' and not exists (
    select from pgflow.flow_right f where f.workflow = workflow and f.privilege = 'start')
  then
    -- What holds by default is written down, so that revoking the last right closes it.
    insert into pgflow.flow_right (role, granted_at, workflow, privilege, granted_by)
    select r, pgflow.now_(), workflow, 'start', caller from unnest(array[0, coalesce(owner, 10)]::oid[]) r;
  end if;
  return caller;
end
$$;
comment on function pgflow.require_owner_(text, text)
  is 'Refuses (PF021) a caller who does not own a workflow in SQL, and writes down what holds by default; answers the '
     'caller';

create or replace function pgflow.role_number_(role text)
returns oid
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
  number oid := case when role = 'public' then 0 else (select r.oid from pg_roles r where r.rolname = role) end;
begin
  if number is null then
    raise exception using errcode = 'PF001', message = format('there is no role %s', quote_nullable(role));
  end if;
  return number;
end
$$;
comment on function pgflow.role_number_(text) is 'Number of a role, 0 = public; PF001 if there is none';

create or replace function pgflow.grant_workflow(workflow text, role text, privilege text)
returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  number oid := pgflow.role_number_(role);
  caller name := pgflow.require_owner_(workflow, privilege);
begin
  insert into pgflow.flow_right (role, granted_at, workflow, privilege, granted_by)
  values (number, pgflow.now_(), workflow, privilege, caller) on conflict do nothing;
end
$$;
comment on function pgflow.grant_workflow(text, text, text)
  is 'Grants a role, or public, the right to start, see or replace a workflow in SQL. PF021 if you do not own it; an '
     'operator grants rights to a name that is not taken';
--! grant grant_workflow to pgflow_client, pgflow_operator

create or replace function pgflow.revoke_workflow(workflow text, role text, privilege text)
returns void
language plpgsql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
  number oid := pgflow.role_number_(role);
begin
  perform pgflow.require_owner_(workflow, privilege);
  delete from pgflow.flow_right f where f.workflow = workflow and f.privilege = privilege and f.role = number
    and f.role is distinct from pgflow.flow_owner_(workflow);
end
$$;
comment on function pgflow.revoke_workflow(text, text, text)
  is 'Takes a right to a workflow in SQL back. Revoke start from public to keep a workflow to the roles that were '
     'granted it. Its owner always has all rights. PF021 if you do not own it';
--! grant revoke_workflow to pgflow_client, pgflow_operator

comment on column pgflow.flow_right.role is 'Role that has the right; 0 = public';
comment on column pgflow.flow_right.granted_at is 'Time of the grant';
comment on column pgflow.flow_right.workflow is 'Name of the workflow';
comment on column pgflow.flow_right.privilege is 'start, see or replace';
comment on column pgflow.flow_right.granted_by is 'Role that granted it';
