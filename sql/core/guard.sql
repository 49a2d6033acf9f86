-- The journal is append only: for roles by privilege, since no table is granted to any role, and for the owner by these
-- triggers. They stand on the journal and on each of its partitions, fire once a statement, and only for those that
-- change or remove rows; an insert has nothing to do with them.
--
-- What may rewrite history switches `pgflow.rewrites` on for one statement: the removal of history and the redaction of
-- a value, which record what they did. It guards against mistakes and is not a secret: what an owner changes on purpose
-- is found by the seals (sql/ledgers/seals.sql).

create or replace function pgflow.refuse_rewrite_()
returns trigger
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
begin
  if coalesce(current_setting('pgflow.rewrites', true), '') <> 'on' then
    raise exception using errcode = 'PF006',
      message = format('%s of %s.%s: the journal is append only', lower(tg_op), tg_table_schema, tg_table_name),
      hint = 'pgflow.drop_history removes runs that have ended; pgflow.redact replaces a value by its hash.';
  end if;
  return null;
end
$$;
comment on function pgflow.refuse_rewrite_()
  is 'Refuses (PF006) to change or remove units, save in functions that record that they do';

create or replace function pgflow.guard_table_(name text)
returns void
language plpgsql
volatile
set search_path = pg_catalog, pg_temp
as $$
begin
  if not exists (
    select from pg_trigger t where t.tgrelid = to_regclass(format('pgflow.%I', name)) and t.tgname = 'append_only'
  ) then
    execute format('create trigger append_only before update or delete or truncate on pgflow.%I '
      'for each statement execute '
      'function pgflow.refuse_rewrite_()', name);
  end if;
end
$$;
comment on function pgflow.guard_table_(text) is 'Makes a table append only, unless it is';

-- The journal before its partitions, as writers lock them.
do $$
declare
  name text;
begin
  perform pgflow.guard_table_('unit');
  for name in
    select c.relname from pg_catalog.pg_inherits i join pg_catalog.pg_class c on c.oid = i.inhrelid
    where i.inhparent = 'pgflow.unit'::regclass order by c.oid
  loop
    perform pgflow.guard_table_(name);
  end loop;
end $$;
