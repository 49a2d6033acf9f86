-- Triggers on the application's tables that start runs. Statements that the library generates from declarations in
-- code create them (`pgflow triggers --sql`). They belong to the application: they are on its tables, and their
-- functions are in a schema of their own, which an upgrade never touches.
--
-- Each is marked with the hash of its declaration, and with one of its catalog entry. So the code shows missing,
-- outdated and left-over triggers, and the catalog alone shows altered ones.

drop view if exists pgflow.triggers;
create view pgflow.triggers as
select p.proname::text as name, c.oid::regclass::text as target, m.mark[1] as definition,
  case when s.hash is null then 'removed' when not s.is_enabled then 'disabled'
    when s.hash is distinct from m.mark[2] then 'altered' else 'installed' end as state,
  s.hash
from pg_catalog.pg_proc p
join pg_catalog.pg_namespace n on n.oid = p.pronamespace and n.nspname = 'pgflow_triggers'
cross join lateral regexp_match(
  obj_description(p.oid, 'pg_proc'), '^pgflow trigger ([[:word:]]+) ([[:word:]]+) on ([0-9]+)$') as m (mark)
left join pg_catalog.pg_class c on c.oid = m.mark[3]::oid
cross join lateral (
  select md5(string_agg(concat_ws(chr(10), t.tgname, t.tgenabled, pg_get_triggerdef(t.oid), p.prosrc, p.prosecdef,
    p.proconfig), chr(10) order by t.tgname)) as hash, bool_and(t.tgenabled in ('O', 'A')) as is_enabled
  from pg_catalog.pg_trigger t where t.tgrelid = c.oid and t.tgfoid = p.oid and not t.tgisinternal
) s
where m.mark is not null;
comment on view pgflow.triggers is 'Triggers by which changes of tables start runs, and whether they are as they were';
--! grant triggers to pgflow_client, pgflow_worker, pgflow_operator, pgflow_auditor
comment on column pgflow.triggers.name is 'Its name';
comment on column pgflow.triggers.target is 'Table of the trigger; null = it was dropped';
comment on column pgflow.triggers.definition is 'Hash of its declaration in the code';
comment on column pgflow.triggers.state
  is 'installed, or altered since by hand, disabled, or removed though its function is still there';
comment on column pgflow.triggers.hash is 'Hash of all that the catalog says of it';
