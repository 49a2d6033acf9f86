-- The shared tables, as a node without Citus reaches those of the first node. The parts that vary are literals.

create extension if not exists postgres_fdw;
create schema if not exists pgflow_cluster;
drop server if exists pgflow_cluster_home cascade;
create server pgflow_cluster_home foreign data wrapper postgres_fdw
options (host {host}, port {port}, dbname {dbname});
create user mapping for public server pgflow_cluster_home options ({mapping});
create foreign table pgflow_cluster.node (
  node int not null, host text not null, port text not null, dbname text not null, state text not null,
  joined_at timestamptz not null
) server pgflow_cluster_home options (schema_name 'pgflow_cluster', table_name 'node');
create foreign table pgflow_cluster.key (
  tenant text not null, key text not null, node int not null, at timestamptz not null
) server pgflow_cluster_home options (schema_name 'pgflow_cluster', table_name 'key');
