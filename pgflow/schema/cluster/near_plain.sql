-- The node for a run that is to be near something, on servers without distributed tables: runs that are near the same
-- value are on the same node.

create or replace function pgflow_cluster.where_is(near_table text, value text)
returns int language plpgsql stable set search_path = pg_catalog, pg_temp as $$
begin
  return pgflow_cluster.place(null, value);
end $$;
