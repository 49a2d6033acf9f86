-- Plans of a planner to undo an effect: the policy's verdict on their steps, and the tables that a statement has
-- written.
--
-- The locks of a transaction show the tables that it writes. A write of a table holds ROW EXCLUSIVE or more on it
-- until the transaction ends, for any cause: the statement, a trigger, a rule, a view, a cascade, TRUNCATE. Row
-- counters would miss writes that change no row, and can be switched off. A partition counts as the table that it is
-- part of; a table that inherits from another is a table of its own.

create or replace function pgflow.judge_acts(acts jsonb)
returns jsonb
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
  select coalesce(jsonb_agg(case when n.needs = 'gate' then to_jsonb(n.version) end order by a.n), '[]')
  from pgflow.act_rows_(acts) a cross join lateral pgflow.needs_(a.name, a.risk, a.request, is_planned => true) n
$$;
comment on function pgflow.judge_acts(jsonb)
  is 'Judgement of the policy in force on acts [[name, risk, request], ...]: for each the version that wants a gate, '
     'or null';
--! grant judge_acts to pgflow_worker

create or replace function pgflow.judge_plan(acts jsonb)
returns jsonb
language sql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
  select coalesce(jsonb_agg(case when n.needs = 'gate' then jsonb_build_object('version', n.version, 'terms', n.terms)
    end order by a.n), '[]')
  from pgflow.act_rows_(acts) a cross join lateral pgflow.needs_(a.name, a.risk, a.request, is_planned => true) n
$$;
comment on function pgflow.judge_plan(jsonb)
  is 'Judgement of the policy in force on acts [[name, risk, request], ...] that a model has planned: for each the '
     'version that wants a gate, with its terms, or null';
--! grant judge_plan to pgflow_worker

create or replace function pgflow.written_tables()
returns table (schema_name text, table_name text)
language sql
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
  select distinct n.nspname::text, t.relname::text
  from pg_locks l
  join pg_class c on c.oid = l.relation and c.relkind in ('r', 'p', 'f', 'm')
  join pg_class t on t.oid = coalesce(pg_partition_root(c.oid), c.oid)
  join pg_namespace n on n.oid = t.relnamespace
  where l.locktype = 'relation' and l.pid = pg_backend_pid() and l.granted
    and l.database = (select d.oid from pg_database d where d.datname = current_database())
    and l.mode in ('RowExclusiveLock', 'ShareUpdateExclusiveLock', 'ShareLock', 'ShareRowExclusiveLock',
      'ExclusiveLock', 'AccessExclusiveLock')
  order by 1, 2
$$;
comment on function pgflow.written_tables()
  is 'The tables that this transaction has written, or locked as only a writer does';
--! grant written_tables to pgflow_worker
