-- The node for a run that is to be near something, on Citus: the one that has the shard now.

create or replace function pgflow_cluster.where_is(near_table text, value text)
returns int language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
  found_table constant regclass := coalesce(to_regclass(near_table), to_regclass('public.' || near_table));
begin
  if not exists (select from pg_dist_partition p where p.logicalrelid = found_table and p.partmethod = 'h') then
    raise exception using errcode = 'PF003', message = format('near: %s is not a distributed table', near_table);
  end if;
  return (select p.groupid from pg_dist_placement p
    where p.shardid = get_shard_id_for_distribution_column(found_table, value) limit 1);
end $$;
