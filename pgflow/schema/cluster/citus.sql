-- The shared tables on Citus, once, on the coordinator: each node reads its own copy of `node`, and a key is on one
-- shard.

select create_reference_table('pgflow_cluster.node'::regclass)
where not exists (select from pg_dist_partition p where p.logicalrelid = 'pgflow_cluster.node'::regclass);
select create_distributed_table('pgflow_cluster.key'::regclass, 'key', colocate_with => 'none')
where not exists (select from pg_dist_partition p where p.logicalrelid = 'pgflow_cluster.key'::regclass);
