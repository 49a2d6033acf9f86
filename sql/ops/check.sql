-- The engine's own audit. There are no foreign keys between hot tables; instead every invariant is a
-- query, and the tests run it after everything they do. An empty answer says that the books balance.
--
-- The invariants of a concept are in its file, as the function check_<concept>_() without arguments.

create or replace function pgflow.check()
returns table (invariant text, detail text)
language plpgsql -- which keeps its plan; before Postgres 18 a function of language sql plans anew at every call
volatile
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
  concept text;
begin
  for concept in
    select p.proname from pg_catalog.pg_proc p
    where p.pronamespace = 'pgflow'::regnamespace and p.pronargs = 0 and p.proname ~ '^check_.+_$'
    order by p.proname collate "C"
  loop
    return query execute format('select * from pgflow.%I()', concept);
  end loop;
end
$$;
comment on function pgflow.check() is 'The invariants that do not hold, one a row; empty = sound';
--! grant check to pgflow_operator, pgflow_auditor
